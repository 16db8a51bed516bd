/* The Responses dialect without a model: bodies to plans, parts to bytes. */
#include "server_helpers.h"

#include "server/responses_request.h"
#include "server/responses_response.h"

typedef struct asking {
    generation_plan plan;
    responses_asked asked;
    request_fault fault;
    bool ok;
} asking;

static asking ask_after(const char *body, bool storing, const json_t *before)
{
    asking a = {0};
    json_t *j = quoted(body);
    a.ok = responses_request_read(j, storing, &a.plan, &a.asked, &a.fault) &&
           responses_request_turns(j, before, &a.plan, &a.asked, &a.fault);
    json_decref(j);
    return a;
}

static asking ask(const char *body)
{
    return ask_after(body, false, NULL);
}

static void drop(asking *a)
{
    json_decref(a->plan.messages), json_decref(a->plan.kwargs), json_decref(a->plan.effort);
    json_decref(a->plan.tools.list);
    request_grammar_free(&a->plan.grammar);
    responses_asked_free(&a->asked);
}

static void messages_are(const char *body, const char *want)
{
    asking a = ask(body);
    if (!a.ok) fail_msg("%s: %s", body, a.fault.message);
    assert_json(a.plan.messages, want);
    drop(&a);
}

static void refused(const char *body, const char *param, const char *message)
{
    asking a = ask(body);
    assert_false(a.ok);
    if (strcmp(a.fault.param, param) != 0 || !strstr(a.fault.message, message))
        fail_msg("%s: %s: %s", body, a.fault.param, a.fault.message);
    drop(&a);
}

static void test_input(void **state)
{
    (void)state;
    messages_are("{'input':'hi'}", "[{'role':'user','content':'hi'}]");
    messages_are("{'input':'hi','instructions':'Be brief.'}",
                 "[{'role':'system','content':'Be brief.'},{'role':'user','content':'hi'}]");
    messages_are("{'input':[{'role':'developer','content':'D'},{'role':'user','content':[{'type':'input_text',"
                 "'text':'a'},{'type':'input_text','text':'b'}]},{'role':'system','content':'S'}],'instructions':'I'}",
                 "[{'role':'system','content':'I\\n\\nD\\n\\nS'},{'role':'user','content':'ab'}]");
    messages_are("{'input':[{'type':'message','role':'user','content':'q'},"
                 "{'type':'message','role':'assistant','id':'msg_1','status':'completed','content':["
                 "{'type':'output_text','text':'a','annotations':[]},{'type':'refusal','refusal':'no'}]},"
                 "{'role':'user','content':'r'}]}",
                 "[{'role':'user','content':'q'},{'role':'assistant','content':'ano'},{'role':'user','content':'r'}]");
}

static const char f[] = "{'type':'function_call','call_id':'c1','name':'f','arguments':'{}'}";
static const char g[] = "{'type':'function_call','call_id':'c2','name':'g','arguments':'{}'}";
static const char call_f[] = "{'id':'c1','type':'function','function':{'name':'f','arguments':'{}'}}";
static const char call_g[] = "{'id':'c2','type':'function','function':{'name':'g','arguments':'{}'}}";

static void test_turns_of_the_assistant(void **state)
{
    (void)state;
    static const char hm[] = "{'type':'reasoning','id':'rs_1','summary':[],'content':[{'type':'reasoning_text',"
                             "'text':'hm'}]}";
    static const char a[] = "{'role':'assistant','content':'a'}", b[] = "{'role':'assistant','content':'b'}";
    static const char out[] = "{'type':'function_call_output','call_id':'c1','output':'1'}";
    static const char tool[] = "{'role':'tool','tool_call_id':'c1','content':'1'}";
    static const char user[] = "{'role':'user','content':'u'}";
    char body[2048], want[2048];
#define CASE(in, result)                                                                                               \
    do {                                                                                                               \
        snprintf(body, sizeof body, "{'input':[%s]}", in);                                                             \
        snprintf(want, sizeof want, "[%s]", result);                                                                   \
        messages_are(body, want);                                                                                      \
    } while (0)
    char in[1024], result[1024];
    snprintf(in, sizeof in, "%s,%s,%s,%s,%s", hm, a, f, g, out);
    snprintf(result, sizeof result, "{'role':'assistant','content':'a','reasoning':'hm','tool_calls':[%s,%s]},%s",
             call_f, call_g, tool);
    CASE(in, result);
    snprintf(in, sizeof in, "%s,%s", f, a); /* text behind a call is of the same turn */
    snprintf(result, sizeof result, "{'role':'assistant','content':'a','tool_calls':[%s]}", call_f);
    CASE(in, result);
    snprintf(in, sizeof in, "%s,%s", a, b); /* text behind text is another */
    snprintf(result, sizeof result, "%s,%s", a, b);
    CASE(in, result);
    snprintf(in, sizeof in, "%s,%s,%s", a, hm, b);
    snprintf(result, sizeof result, "%s,{'role':'assistant','content':'b','reasoning':'hm'}", a);
    CASE(in, result);
    snprintf(in, sizeof in, "%s,%s,%s,%s", hm, user, f, out); /* a user's item ends the turn */
    snprintf(
        result, sizeof result,
        "{'role':'assistant','content':'','reasoning':'hm'},%s,{'role':'assistant','content':'','tool_calls':[%s]},%s",
        user, call_f, tool);
    CASE(in, result);
    snprintf(in, sizeof in,
             "%s,%s,{'type':'function_call_output','call_id':'c1','output':[{'type':'input_text',"
             "'text':'x'}]},%s",
             f, out, g);
    snprintf(result, sizeof result,
             "{'role':'assistant','content':'','tool_calls':[%s]},%s,{'role':'tool','tool_call_id':'c1','content':'x'},"
             "{'role':'assistant','content':'','tool_calls':[%s]}",
             call_f, tool, call_g);
    CASE(in, result);
    CASE("{'type':'reasoning','summary':[{'type':'summary_text','text':'s'}],'encrypted_content':'x'},"
         "{'role':'assistant','content':'a'}",
         "{'role':'assistant','content':'a','reasoning':'s'}");
}

static void test_going_on(void **state)
{
    (void)state;
    json_t *before = quoted("[{'role':'user','content':'q'},{'role':'assistant','content':'a'}]");
    asking a = ask_after("{'input':'r','instructions':'I','previous_response_id':'resp_1'}", true, before);
    assert_true(a.ok);
    assert_json(a.plan.messages, "[{'role':'system','content':'I'},{'role':'user','content':'q'},"
                                 "{'role':'assistant','content':'a'},{'role':'user','content':'r'}]");
    assert_json(a.asked.turns, "[{'role':'user','content':'q'},{'role':'assistant','content':'a'},"
                               "{'role':'user','content':'r'}]");
    assert_json(before, "[{'role':'user','content':'q'},{'role':'assistant','content':'a'}]");
    drop(&a);
    /* A call that goes on from a turn is one of its own: what is kept does not change. */
    a = ask_after("{'input':[{'role':'assistant','content':'b'}],'previous_response_id':'resp_1'}", true, before);
    assert_true(a.ok);
    assert_json(before, "[{'role':'user','content':'q'},{'role':'assistant','content':'a'}]");
    drop(&a);
    json_decref(before);
}

static void test_tools(void **state)
{
    (void)state;
    static const char tools[] =
        "'tools':[{'type':'function','name':'f','description':'d','parameters':{'type':'object'},"
        "'strict':true},{'type':'function','name':'g','parameters':null}]";
    static const struct {
        const char *choice;
        request_tool_mode mode;
        const char *name;
        bool parallel;
    } cases[] = {
        {"", REQUEST_TOOLS_AUTO, "", true},
        {",'tool_choice':'auto','parallel_tool_calls':false", REQUEST_TOOLS_AUTO, "", false},
        {",'tool_choice':'required'", REQUEST_TOOLS_REQUIRED, "", true},
        {",'tool_choice':{'type':'function','name':'g'}", REQUEST_TOOLS_NAMED, "g", true},
        {",'tool_choice':'none'", REQUEST_TOOLS_NONE, "", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[1024];
        snprintf(body, sizeof body, "{'input':'a',%s%s}", tools, cases[i].choice);
        asking a = ask(body);
        if (!a.ok) fail_msg("%s: %s", body, a.fault.message);
        assert_json(a.plan.tools.list,
                    "[{'type':'function','function':{'name':'f','description':'d','parameters':{'type':'object'},"
                    "'strict':true}},{'type':'function','function':{'name':'g'}}]");
        assert_int_equal(a.plan.tools.mode, cases[i].mode);
        assert_string_equal(a.plan.tools.name, cases[i].name);
        assert_int_equal(a.plan.tools.parallel, cases[i].parallel);
        drop(&a);
    }
}

static void test_fields(void **state)
{
    (void)state;
    asking a = ask("{'input':'a','model':'m','stream':true,'max_output_tokens':7,'top_logprobs':3,'seed':5,"
                   "'include':['message.output_text.logprobs','reasoning.encrypted_content'],"
                   "'reasoning':{'effort':'low','summary':'auto'},'reasoning_effort':'max','metadata':{'k':'v'},"
                   "'text':{'format':{'type':'json_schema','name':'n','schema':{'type':'integer'},'strict':true}},"
                   "'chat_template_kwargs':{'thinking_mode':'enabled'},'store':true}");
    if (!a.ok) fail_msg("%s", a.fault.message);
    assert_json(json_object_get(a.asked.fields, "model"), "'m'");
    assert_json(json_object_get(a.asked.fields, "stream"), "true");
    assert_null(json_object_get(a.asked.fields, "top_logprobs"));
    assert_true(a.plan.parse && a.asked.logprobs && !a.asked.store && !a.plan.background);
    assert_int_equal(a.asked.max_tokens, 7);
    assert_int_equal(a.asked.top_logprobs, 3);
    assert_json(json_object_get(a.asked.fields, "seed"), "5");
    assert_json(a.plan.kwargs, "{'thinking_mode':'enabled'}");
    assert_string_equal(json_string_value(a.plan.effort), "low");
    assert_int_equal(a.plan.grammar.kind, HY_GRAMMAR_JSON_SCHEMA);
    assert_string_equal(a.plan.grammar.source, "{\"type\":\"integer\"}");
    assert_json(a.asked.echo,
                "{'background':false,'instructions':null,'max_output_tokens':7,'max_tool_calls':null,"
                "'previous_response_id':null,'prompt_cache_key':null,'safety_identifier':null,'user':null,"
                "'metadata':{'k':'v'},'parallel_tool_calls':true,'prompt':null,"
                "'reasoning':{'effort':'low','summary':null},'service_tier':'auto','store':false,"
                "'text':{'format':{'type':'json_schema','name':'n','schema':{'type':'integer'},'strict':true}},"
                "'tool_choice':'auto','tools':[],'top_logprobs':3,'truncation':'disabled'}");
    drop(&a);
    a = ask("{'input':'a','reasoning_effort':'brand new','output_config':{'effort':'x'}}");
    assert_string_equal(json_string_value(a.plan.effort), "brand new");
    drop(&a);
    a = ask("{'input':'a','text':{'format':{'type':'json_object'}}}");
    assert_true(a.ok && a.plan.grammar.any && a.plan.grammar.kind == HY_GRAMMAR_JSON_OBJECT);
    drop(&a);
    a = ask_after("{'input':'a','background':true}", true, NULL);
    assert_true(a.ok && a.asked.store && a.asked.background && a.plan.background);
    drop(&a);
    a = ask_after("{'input':'a','store':false}", true, NULL);
    assert_true(a.ok && !a.asked.store);
    drop(&a);
}

static void test_refusals(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"{}", "body.input", "Field required"},
        {"{'input':5}", "body.input", "Input should be"},
        {"{'input':[]}", "input", "must not be empty"},
        {"{'input':[5]}", "input", "input[0]: Input should be a valid dictionary"},
        {"{'input':[{'role':'robot','content':''}]}", "input", "input[0].role"},
        {"{'input':[{'role':'user'}]}", "input", "input[0].content"},
        {"{'input':[{'role':'user','content':[{'type':'input_image','image_url':'x'}]}]}", "input",
         "parts of the type input_image are not supported"},
        {"{'input':[{'role':'user','content':[{'type':'input_file'}]}]}", "input", "input_file"},
        {"{'input':[{'role':'user','content':[{'type':'input_text'}]}]}", "input", "text: Field required"},
        {"{'input':[{'type':'item_reference','id':'x'}]}", "input", "items of the type item_reference"},
        {"{'input':[{'type':'function_call','call_id':'x','name':'f'}]}", "input", "input[0].arguments"},
        {"{'input':[{'type':'function_call','name':'f'}]}", "input", "input[0].call_id"},
        {"{'input':[{'type':'function_call_output','output':'f'}]}", "input", "input[0].call_id"},
        {"{'input':'a','instructions':[]}", "body.instructions", "valid string"},
        {"{'input':'a','prompt':{'id':'p'}}", "prompt", "prompt templates"},
        {"{'input':'a','conversation':'c'}", "conversation", "not supported"},
        {"{'input':'a','previous_response_id':'resp_1'}", "previous_response_id", "needs a server that keeps"},
        {"{'input':'a','background':true}", "background", "needs a server that keeps"},
        {"{'input':'a','truncation':'auto'}", "truncation", "not supported"},
        {"{'input':'a','max_output_tokens':0}", "max_output_tokens", "must be between"},
        {"{'input':'a','max_output_tokens':'x'}", "body.max_output_tokens", "valid integer"},
        {"{'input':'a','top_logprobs':21}", "top_logprobs", "must be between"},
        {"{'input':'a','top_logprobs':2}", "top_logprobs", "needs include"},
        {"{'input':'a','include':['file_search_call.results']}", "include", "file_search_call.results"},
        {"{'input':'a','include':[5]}", "include", "no string"},
        {"{'input':'a','tools':{}}", "body.tools", "valid list"},
        {"{'input':'a','tools':[{'type':'web_search'}]}", "tools", "web_search"},
        {"{'input':'a','tools':[{'type':'function'}]}", "tools", "tools[0].name"},
        {"{'input':'a','tool_choice':'required'}", "tool_choice", "`tools` must be set"},
        {"{'input':'a','tool_choice':'maybe'}", "tool_choice", "must be"},
        {"{'input':'a','tools':[{'type':'function','name':'f'}],'tool_choice':{'type':'function','name':'g'}}",
         "tool_choice", "not in tools"},
        {"{'input':'a','text':5}", "body.text", "valid dictionary"},
        {"{'input':'a','reasoning':5}", "body.reasoning", "valid dictionary"},
        {"{'input':'a','reasoning':{'effort':5}}", "body.reasoning.effort", "valid string"},
        {"{'input':'a','parallel_tool_calls':5}", "body.parallel_tool_calls", "valid boolean"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) refused(cases[i][0], cases[i][1], cases[i][2]);
    asking a = ask_after("{'input':'a','background':true,'store':false}", true, NULL);
    assert_false(a.ok);
    drop(&a);
}

/* ---- Bytes ------------------------------------------------------------------------------------------------------ */

static void write_event(void *user, const char *name, const buffer *data)
{
    buffer *out = user;
    json_t *j = json_loadb(data->data, data->length, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(j, "type")), name);
    json_decref(j);
    buffer_append(out, data->data, data->length);
    buffer_char(out, '\n');
}

static void feed(answer_blocks *b, bool complete, responses_events *to)
{
    answer_blocks_add(b, TEXT_PART_REASONING, "hm", 2, responses_emit_block, to);
    buffer_string(&to->logprobs, "{\"p\":1}");
    answer_blocks_add(b, TEXT_PART_CONTENT, "a", 1, responses_emit_block, to);
    buffer_string(&to->logprobs, "{\"p\":2}");
    answer_blocks_add(b, TEXT_PART_CONTENT, "b", 1, responses_emit_block, to);
    answer_blocks_add(b, TEXT_PART_CALL, "f", 1, responses_emit_block, to);
    answer_blocks_add(b, TEXT_PART_ARGUMENTS, "{}", 2, responses_emit_block, to);
    if (complete) answer_blocks_add(b, TEXT_PART_CALL_END, "", 0, responses_emit_block, to);
    answer_blocks_finish(b, complete, responses_emit_block, to);
}

#define ITEMS                                                                                                          \
    "{'id':'rs_ID','type':'reasoning','status':'completed','summary':[],'content':[{'type':'reasoning_text',"          \
    "'text':'hm'}],'encrypted_content':null},"                                                                         \
    "{'id':'msg_ID','type':'message','status':'completed','role':'assistant','content':[{'type':'output_text',"        \
    "'text':'ab','annotations':[],'logprobs':[{'p':1},{'p':2}]}]},"

static void test_whole_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *status, *details, *item;
        bool complete;
    } cases[] = {
        {"completed", "null", "completed", true},
        {"incomplete", "{'reason':'max_output_tokens'}", "incomplete", false},
    };
    for (size_t i = 0; i < 2; i++) {
        answer_blocks b = {0};
        responses_events to = {.blocks = &b};
        buffer out = {0};
        json_t *echo = quoted("{'tools':[],'user':null}");
        feed(&b, cases[i].complete, &to);
        responses_head head = {"resp_1", "m", 5, 1, 0.95, echo};
        responses_state end = {
            .status = cases[i].status, .has_usage = true, .prompt = 9, .cached = 4, .output = 7, .reasoning = 2};
        responses_write(&out, &head, &end, &b);
        char want[2048];
        snprintf(want, sizeof want,
                 "{'id':'resp_1','object':'response','created_at':5,'status':'%s','error':null,"
                 "'incomplete_details':%s,'model':'m','output':[" ITEMS
                 "{'id':'fc_ID','type':'function_call','status':'%s','call_id':'call_ID','name':'f','arguments':'{}'}],"
                 "'temperature':1.0,'top_p':0.95,'tools':[],'user':null,"
                 "'usage':{'input_tokens':9,'input_tokens_details':{'cached_tokens':4},'output_tokens':7,"
                 "'output_tokens_details':{'reasoning_tokens':2},'total_tokens':16}}",
                 cases[i].status, cases[i].details, cases[i].item);
        assert_bytes(&out, want);
        json_t *turn = responses_turn(&b);
        json_t *call = json_array_get(json_object_get(turn, "tool_calls"), 0);
        assert_int_equal(strlen(json_string_value(json_object_get(call, "id"))), 37);
        json_object_set_new(call, "id", json_string("c"));
        assert_json(turn,
                    "{'role':'assistant','content':'ab','reasoning':'hm','tool_calls':[{'id':'c','type':'function',"
                    "'function':{'name':'f','arguments':'{}'}}]}");
        json_decref(turn), json_decref(echo);
        buffer_free(&out), buffer_free(&to.logprobs);
        answer_blocks_free(&b);
    }
}

static void test_failed(void **state)
{
    (void)state;
    buffer out = {0};
    json_t *echo = json_object();
    responses_head head = {"resp_1", "m", 5, 0, 1, echo};
    responses_write(&out, &head, &(responses_state){.status = "failed", .error = "no"}, NULL);
    assert_bytes(&out, "{'id':'resp_1','object':'response','created_at':5,'status':'failed',"
                       "'error':{'code':'server_error','message':'no'},'incomplete_details':null,'model':'m',"
                       "'output':[],'temperature':0.0,'top_p':1.0,'usage':null}");
    json_decref(echo);
    buffer_free(&out);
}

static void test_stream_bytes(void **state)
{
    (void)state;
    answer_blocks b = {0};
    buffer out = {0};
    responses_events to = {.emit = write_event, .user = &out, .blocks = &b};
    json_t *echo = json_object();
    responses_head head = {"resp_1", "m", 5, 1, 1, echo};
    responses_emit_response(&to, "response.created", &head, &(responses_state){.status = "in_progress"});
    feed(&b, true, &to);
    assert_bytes(
        &out,
        "{'type':'response.created','sequence_number':0,'response':{'id':'resp_1','object':'response','created_at':5,"
        "'status':'in_progress','error':null,'incomplete_details':null,'model':'m','output':[],'temperature':1.0,'top_"
        "p':1.0,"
        "'usage':null}}\n"
        "{'type':'response.output_item.added','sequence_number':1,'output_index':0,'item':{'id':'rs_ID',"
        "'type':'reasoning','status':'in_progress','summary':[],'content':[],'encrypted_content':null}}\n"
        "{'type':'response.reasoning_part.added','sequence_number':2,'item_id':'rs_ID','output_index':0,"
        "'content_index':0,'part':{'type':'reasoning_text','text':''}}\n"
        "{'type':'response.reasoning_text.delta','sequence_number':3,'item_id':'rs_ID','output_index':0,"
        "'content_index':0,'delta':'hm'}\n"
        "{'type':'response.reasoning_text.done','sequence_number':4,'item_id':'rs_ID','output_index':0,"
        "'content_index':0,'text':'hm'}\n"
        "{'type':'response.reasoning_part.done','sequence_number':5,'item_id':'rs_ID','output_index':0,"
        "'content_index':0,'part':{'type':'reasoning_text','text':'hm'}}\n"
        "{'type':'response.output_item.done','sequence_number':6,'output_index':0,'item':{'id':'rs_ID',"
        "'type':'reasoning','status':'completed','summary':[],'content':[{'type':'reasoning_text','text':'hm'}],"
        "'encrypted_content':null}}\n"
        "{'type':'response.output_item.added','sequence_number':7,'output_index':1,'item':{'id':'msg_ID',"
        "'type':'message','status':'in_progress','role':'assistant','content':[]}}\n"
        "{'type':'response.content_part.added','sequence_number':8,'item_id':'msg_ID','output_index':1,"
        "'content_index':0,'part':{'type':'output_text','text':'','annotations':[],'logprobs':[]}}\n"
        "{'type':'response.output_text.delta','sequence_number':9,'item_id':'msg_ID','output_index':1,"
        "'content_index':0,'delta':'a','logprobs':[{'p':1}]}\n"
        "{'type':'response.output_text.delta','sequence_number':10,'item_id':'msg_ID','output_index':1,"
        "'content_index':0,'delta':'b','logprobs':[{'p':2}]}\n"
        "{'type':'response.output_text.done','sequence_number':11,'item_id':'msg_ID','output_index':1,"
        "'content_index':0,'text':'ab','logprobs':[{'p':1},{'p':2}]}\n"
        "{'type':'response.content_part.done','sequence_number':12,'item_id':'msg_ID','output_index':1,"
        "'content_index':0,'part':{'type':'output_text','text':'ab','annotations':[],'logprobs':[{'p':1},{'p':2}]}}\n"
        "{'type':'response.output_item.done','sequence_number':13,'output_index':1,'item':{'id':'msg_ID',"
        "'type':'message','status':'completed','role':'assistant','content':[{'type':'output_text','text':'ab',"
        "'annotations':[],'logprobs':[{'p':1},{'p':2}]}]}}\n"
        "{'type':'response.output_item.added','sequence_number':14,'output_index':2,'item':{'id':'fc_ID',"
        "'type':'function_call','status':'in_progress','call_id':'call_ID','name':'f','arguments':''}}\n"
        "{'type':'response.function_call_arguments.delta','sequence_number':15,'item_id':'fc_ID','output_index':2,"
        "'delta':'{}'}\n"
        "{'type':'response.function_call_arguments.done','sequence_number':16,'item_id':'fc_ID','output_index':2,"
        "'name':'f','arguments':'{}'}\n"
        "{'type':'response.output_item.done','sequence_number':17,'output_index':2,'item':{'id':'fc_ID',"
        "'type':'function_call','status':'completed','call_id':'call_ID','name':'f','arguments':'{}'}}\n");
    json_decref(echo);
    buffer_free(&out), buffer_free(&to.logprobs);
    answer_blocks_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_input),        cmocka_unit_test(test_turns_of_the_assistant),
        cmocka_unit_test(test_going_on),     cmocka_unit_test(test_tools),
        cmocka_unit_test(test_fields),       cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_whole_bytes),  cmocka_unit_test(test_failed),
        cmocka_unit_test(test_stream_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
