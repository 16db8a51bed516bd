/* The Messages dialect without a model: bodies to plans, parts to bytes. */
#include "server_helpers.h"

#include "server/messages_request.h"
#include "server/messages_response.h"

typedef struct asked {
    generation_plan plan;
    messages_asked asked;
    request_fault fault;
    bool ok;
} asked;

static asked ask(const char *body, messages_options options)
{
    asked a = {0};
    json_t *j = quoted(body);
    a.ok = messages_request_read(j, options, &a.plan, &a.asked, &a.fault);
    json_decref(j);
    return a;
}

static void drop(asked *a)
{
    json_decref(a->plan.messages), json_decref(a->plan.kwargs), json_decref(a->plan.effort);
    json_decref(a->plan.tools.list), json_decref(a->asked.fields);
    request_grammar_free(&a->plan.grammar);
}

/* `more` is the inside of an object, behind what every request needs. */
static asked ask_more(const char *more)
{
    char body[4096];
    snprintf(body, sizeof body, "{'max_tokens':9,'messages':[{'role':'user','content':'hi'}]%s%s}", *more ? "," : "",
             more);
    return ask(body, (messages_options){0});
}

static void messages_are(const char *messages, const char *want)
{
    char body[4096];
    snprintf(body, sizeof body, "{'max_tokens':9,'messages':%s}", messages);
    asked a = ask(body, (messages_options){0});
    if (!a.ok) fail_msg("%s: %s", messages, a.fault.message);
    assert_json(a.plan.messages, want);
    drop(&a);
}

static void refused(const char *body, const char *message)
{
    asked a = ask(body, (messages_options){0});
    assert_false(a.ok);
    assert_int_equal(a.fault.status, 400); /* not 501, which clients repeat */
    if (!strstr(a.fault.message, message)) fail_msg("%s: %s", body, a.fault.message);
    drop(&a);
}

static void refused_more(const char *more, const char *message)
{
    char body[4096];
    snprintf(body, sizeof body, "{'max_tokens':9,'messages':[{'role':'user','content':'hi'}],%s}", more);
    refused(body, message);
}

static void test_turns(void **state)
{
    (void)state;
    messages_are("[{'role':'user','content':'hi'}]", "[{'role':'user','content':'hi'}]");
    messages_are("[{'role':'user','content':[{'type':'text','text':'a'},{'type':'text','text':''},"
                 "{'type':'text','text':'b'}]}]",
                 "[{'role':'user','content':[{'type':'text','text':'a'},{'type':'text','text':'b'}]}]");
    messages_are("[{'role':'user','content':'q'},{'role':'assistant','content':["
                 "{'type':'thinking','thinking':'hm','signature':'s'},{'type':'redacted_thinking','data':'x'},"
                 "{'type':'text','text':'look'},{'type':'tool_use','id':'t1','name':'f','input':{'a':1}},"
                 "{'type':'tool_use','id':'t2','name':'g'}]},"
                 "{'role':'user','content':[{'type':'tool_result','tool_use_id':'t1','content':'one'},"
                 "{'type':'text','text':'go on'},"
                 "{'type':'tool_result','tool_use_id':'t2','is_error':true,'content':[{'type':'text','text':'x'},"
                 "{'type':'text','text':'y'}]}]}]",
                 "[{'role':'user','content':'q'},"
                 "{'role':'assistant','content':'look','reasoning':'hm','tool_calls':["
                 "{'id':'t1','type':'function','function':{'name':'f','arguments':{'a':1}}},"
                 "{'id':'t2','type':'function','function':{'name':'g','arguments':{}}}]},"
                 "{'role':'tool','tool_call_id':'t1','content':'one'},"
                 "{'role':'tool','tool_call_id':'t2','content':'Error: x\\ny'},"
                 "{'role':'user','content':'go on'}]");
}

static void test_results(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"'content':'a'", "a"},
        {"'content':''", ""},
        {"'content':null", ""},
        {"'is_error':false", ""},
        {"'content':'a\\u0000b'", "a\\u0000b"},
        {"'content':'error: no','is_error':true", "error: no"},
        {"'content':'no','is_error':true", "Error: no"},
        {"'is_error':true", "Error: "},
        {"'content':[{'type':'tool_reference','tool_name':'f'},{'type':'text','text':'b'}]", "f\\nb"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char ask_for[512], want[256];
        snprintf(ask_for, sizeof ask_for, "[{'role':'user','content':[{'type':'tool_result','tool_use_id':'t',%s}]}]",
                 cases[i][0]);
        snprintf(want, sizeof want, "[{'role':'tool','tool_call_id':'t','content':'%s'}]", cases[i][1]);
        messages_are(ask_for, want);
    }
}

static void test_system(void **state)
{
    (void)state;
    asked a = ask("{'max_tokens':1,'system':[{'type':'text','text':'x-anthropic-billing-header: cc=1;'},"
                  "{'type':'text','text':'Be ','cache_control':{'type':'ephemeral'}},{'type':'text','text':'brief.'}],"
                  "'messages':[{'role':'user','content':'a'},{'role':'system','content':' Be kind.'},"
                  "{'role':'assistant','content':'b'},{'role':'user','content':'c'}]}",
                  (messages_options){0});
    assert_true(a.ok);
    assert_json(a.plan.messages, "[{'role':'system','content':'Be brief. Be kind.'},{'role':'user','content':'a'},"
                                 "{'role':'assistant','content':'b'},{'role':'user','content':'c'}]");
    assert_null(json_object_get(a.plan.kwargs, "continue_final_message"));
    drop(&a);
    messages_are("[{'role':'system','content':[{'type':'text','text':'S'}]},{'role':'user','content':'a'}]",
                 "[{'role':'system','content':'S'},{'role':'user','content':'a'}]");
}

static void test_last_turn_of_the_assistant_is_continued(void **state)
{
    (void)state;
    static const char *const yes = "{'continue_final_message':true,'add_generation_prompt':false}";
    static const char *const cases[][2] = {
        {"'{'", yes},
        {"[{'type':'text','text':'a'}]", yes},
        {"''", "{}"},
        {"[]", "{}"},
        {"[{'type':'text','text':'a'},{'type':'tool_use','id':'t','name':'f','input':{}}]", "{}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[512];
        snprintf(body, sizeof body,
                 "{'max_tokens':1,'messages':[{'role':'user','content':'a'},{'role':'assistant','content':%s}]}",
                 cases[i][0]);
        asked a = ask(body, (messages_options){0});
        assert_true(a.ok);
        assert_json(a.plan.kwargs, cases[i][1]);
        drop(&a);
    }
}

static void test_tools(void **state)
{
    (void)state;
    static const char tools[] = "'tools':[{'name':'f','description':'d','input_schema':{'properties':{}},"
                                "'cache_control':{'type':'ephemeral'}},"
                                "{'type':'custom','name':'g','input_schema':{'type':'object'},'strict':true}]";
    static const struct {
        const char *choice;
        request_tool_mode mode;
        const char *name;
        bool parallel;
    } cases[] = {
        {"", REQUEST_TOOLS_AUTO, "", true},
        {",'tool_choice':{'type':'auto','disable_parallel_tool_use':true}", REQUEST_TOOLS_AUTO, "", false},
        {",'tool_choice':{'type':'any'}", REQUEST_TOOLS_REQUIRED, "", true},
        {",'tool_choice':{'type':'any','disable_parallel_tool_use':true}", REQUEST_TOOLS_REQUIRED, "", false},
        {",'tool_choice':{'type':'tool','name':'g'}", REQUEST_TOOLS_NAMED, "g", true},
        {",'tool_choice':{'type':'none'}", REQUEST_TOOLS_NONE, "", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char more[1024];
        snprintf(more, sizeof more, "%s%s", tools, cases[i].choice);
        asked a = ask_more(more);
        if (!a.ok) fail_msg("%s: %s", more, a.fault.message);
        assert_json(a.plan.tools.list,
                    "[{'type':'function','function':{'name':'f','description':'d','parameters':{'properties':{},"
                    "'type':'object'}}},{'type':'function','function':{'name':'g','parameters':{'type':'object'},"
                    "'strict':true}}]");
        assert_int_equal(a.plan.tools.mode, cases[i].mode);
        assert_string_equal(a.plan.tools.name, cases[i].name);
        assert_int_equal(a.plan.tools.parallel, cases[i].parallel);
        drop(&a);
    }
    asked a = ask_more("'tools':[]");
    assert_true(a.ok && !a.plan.tools.list && a.plan.tools.mode == REQUEST_TOOLS_NONE);
    drop(&a);
}

static void test_effort_and_thinking(void **state)
{
    (void)state;
    static const struct {
        const char *more, *effort, *kwargs;
    } cases[] = {
        {"", NULL, "{}"},
        {"'output_config':{'effort':'low'},'reasoning_effort':'max','reasoning':{'effort':'high'}", "low", "{}"},
        {"'reasoning_effort':'max','reasoning':{'effort':'high'}", "max", "{}"},
        {"'reasoning':{'effort':'brand new'}", "brand new", "{}"},
        {"'thinking':{'type':'enabled','budget_tokens':1024}", NULL, "{'thinking_mode':'enabled'}"},
        {"'thinking':{'type':'adaptive'}", NULL, "{'thinking_mode':'adaptive'}"},
        {"'thinking':{'type':'disabled'}", NULL, "{'thinking_mode':'disabled'}"},
        {"'thinking':{'type':'disabled'},'chat_template_kwargs':{'thinking_mode':'enabled','x':1}", NULL,
         "{'thinking_mode':'enabled','x':1}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        asked a = ask_more(cases[i].more);
        if (!a.ok) fail_msg("%s: %s", cases[i].more, a.fault.message);
        assert_json(a.plan.kwargs, cases[i].kwargs);
        if (cases[i].effort)
            assert_string_equal(json_string_value(a.plan.effort), cases[i].effort);
        else
            assert_null(a.plan.effort);
        drop(&a);
    }
    static const char always[] = "{'max_tokens':1,'thinking':{'type':'%s'},'messages':[{'role':'user','content':'a'}]}";
    static const char *const kinds[] = {"enabled", "adaptive", "disabled"};
    for (size_t i = 0; i < 3; i++) {
        char body[256];
        snprintf(body, sizeof body, always, kinds[i]);
        asked a = ask(body, (messages_options){.always_thinks = true});
        assert_int_equal(a.ok, i < 2);
        if (a.ok) assert_json(a.plan.kwargs, "{}");
        if (!a.ok) assert_non_null(strstr(a.fault.message, "always thinks"));
        drop(&a);
    }
}

static void test_fields(void **state)
{
    (void)state;
    asked a = ask_more("'model':'m','stream':true,'stop_sequences':['x'],'temperature':0.5,'top_k':3,"
                       "'output_config':{'format':{'type':'json_schema','schema':{'type':'integer'}}}");
    assert_true(a.ok);
    assert_json(json_object_get(a.asked.fields, "model"), "'m'");
    assert_json(json_object_get(a.asked.fields, "stream"), "true");
    assert_null(json_object_get(a.asked.fields, "max_tokens"));
    assert_true(a.plan.parse);
    assert_int_equal(a.asked.max_tokens, 9);
    assert_json(json_object_get(a.asked.fields, "stop"), "['x']");
    assert_json(json_object_get(a.asked.fields, "top_k"), "3");
    assert_true(a.plan.grammar.any);
    assert_int_equal(a.plan.grammar.kind, HY_GRAMMAR_JSON_SCHEMA);
    assert_string_equal(a.plan.grammar.source, "{\"type\":\"integer\"}");
    drop(&a);
    /* Counting wants no max_tokens. */
    a = ask("{'messages':[{'role':'user','content':'a'}]}", (messages_options){.count = true});
    assert_true(a.ok);
    drop(&a);
    a = ask_more("'context_management':{'edits':[{'type':'clear_thinking_20251015','keep':'all'}]},"
                 "'metadata':{'user_id':'u'},'mcp_servers':[],'kv_transfer_params':{},'service_tier':'auto'");
    assert_true(a.ok);
    drop(&a);
}

static void test_refusals(void **state)
{
    (void)state;
    refused("{'messages':[{'role':'user','content':'a'}]}", "max_tokens: Field required");
    refused("{'max_tokens':0,'messages':[{'role':'user','content':'a'}]}", "max_tokens: Input should be greater");
    refused("{'max_tokens':'9','messages':[{'role':'user','content':'a'}]}", "max_tokens: Input should be a valid int");
    refused("{'max_tokens':9}", "messages: Field required");
    refused("{'max_tokens':9,'messages':[]}", "messages: at least one");
    refused("{'max_tokens':9,'messages':{}}", "messages: Input should be a valid list");
    refused("{'max_tokens':9,'messages':[5]}", "messages.0: Input should be a valid dictionary");
    refused("{'max_tokens':9,'messages':[{'role':'user','content':[]}]}", "messages: all of them are empty");
    refused("{'max_tokens':9,'messages':[{'role':'robot','content':'a'}]}", "messages.0.role: Input should be");
    refused("{'max_tokens':9,'messages':[{'role':'user'}]}", "messages.0.content: a string or a list");
    static const char *const blocks[][2] = {
        {"5", "messages.0.content.0: Input should be a valid dictionary"},
        {"{}", "messages.0.content.0.type: Field required"},
        {"{'type':'text'}", "messages.0.content.0.text: Field required"},
        {"{'type':'image','source':{}}", "messages.0.content.0: image blocks are not supported"},
        {"{'type':'document','source':{}}", "document blocks are not supported"},
        {"{'type':'server_tool_use'}", "blocks of the type server_tool_use are not supported"},
        {"{'type':'tool_use','id':'a','name':'f','input':{}}", "tool_use blocks belong to the assistant"},
        {"{'type':'thinking','thinking':'a'}", "thinking blocks belong to the assistant"},
        {"{'type':'tool_result'}", "messages.0.content.0.tool_use_id: Field required"},
        {"{'type':'tool_result','tool_use_id':'a','content':5}", "content: a string or a list of blocks"},
        {"{'type':'tool_result','tool_use_id':'a','is_error':1}", "is_error: Input should be a valid boolean"},
        {"{'type':'tool_result','tool_use_id':'a','content':[{'type':'image'}]}", "image blocks are not supported"},
        {"{'type':'tool_result','tool_use_id':'a','content':[{'type':'text'}]}", "has no text"},
    };
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        char body[512];
        snprintf(body, sizeof body, "{'max_tokens':9,'messages':[{'role':'user','content':[%s]}]}", blocks[i][0]);
        refused(body, blocks[i][1]);
    }
    refused("{'max_tokens':9,'messages':[{'role':'assistant','content':[{'type':'tool_use','id':'a'}]}]}",
            "messages.0.content.0.name: Field required");
    refused("{'max_tokens':9,'messages':[{'role':'assistant','content':[{'type':'tool_use','id':'a','name':'f',"
            "'input':[]}]}]}",
            "messages.0.content.0.input: Input should be a valid dictionary");
    refused("{'max_tokens':9,'messages':[{'role':'assistant','content':[{'type':'tool_result','tool_use_id':'a'}]}]}",
            "tool_result blocks belong to the user");
}

static void test_refused_fields(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"'system':5", "system: a string or a list"},
        {"'system':[{'type':'image'}]", "system.0: only text blocks"},
        {"'stop_sequences':'x'", "stop_sequences: Input should be a valid list"},
        {"'stop_sequences':['']", "stop_sequences.0"},
        {"'tools':{}", "tools: Input should be a valid list"},
        {"'tools':[{'input_schema':{}}]", "tools.0.name: Field required"},
        {"'tools':[{'name':'f'}]", "tools.0.input_schema: Field required"},
        {"'tools':[{'type':'web_search_20250305','name':'web_search'}]", "web_search_20250305"},
        {"'tool_choice':{'type':'any'}", "there are no tools"},
        {"'tools':[{'name':'f','input_schema':{}}],'tool_choice':{'type':'tool','name':'g'}",
         "no tool with the name g"},
        {"'tools':[{'name':'f','input_schema':{}}],'tool_choice':{'type':'tool'}", "tool_choice.name: Field required"},
        {"'tools':[{'name':'f','input_schema':{}}],'tool_choice':'auto'", "tool_choice.type: Input should be"},
        {"'output_config':{'effort':5}", "('body', 'output_config', 'effort')"},
        {"'output_config':5", "output_config: Input should be a valid dictionary"},
        {"'output_config':{'format':{'type':'text'}}", "output_config.format.type"},
        {"'output_config':{'format':{'type':'json_schema'}}", "output_config.format.schema: Field required"},
        {"'reasoning_effort':{}", "('body', 'reasoning_effort')"},
        {"'thinking':{'type':'enabled','display':'loud'}", "thinking.display"},
        {"'thinking':{'type':'maybe'}", "thinking.type: Input should be"},
        {"'thinking':{'type':'enabled','budget_tokens':0}", "thinking.budget_tokens"},
        {"'chat_template_kwargs':[]", "chat_template_kwargs: Input should be a valid dictionary"},
        {"'mcp_servers':[{'url':'x'}]", "mcp_servers: not supported by this server"},
        {"'kv_transfer_params':{'a':1}", "kv_transfer_params: not supported by this server"},
        {"'ec_transfer_params':true", "ec_transfer_params: not supported by this server"},
        {"'context_management':{'edits':[{'type':'clear_tool_uses_20250919'}]}", "clear_tool_uses_20250919"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) refused_more(cases[i][0], cases[i][1]);
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

static void feed(answer_blocks *b, block_fn fn, void *user)
{
    answer_blocks_add(b, TEXT_PART_REASONING, "hm", 2, fn, user);
    answer_blocks_add(b, TEXT_PART_CONTENT, "a\"b", 3, fn, user);
    answer_blocks_add(b, TEXT_PART_CALL, "f", 1, fn, user);
    answer_blocks_add(b, TEXT_PART_ARGUMENTS, "{\"x\":", 5, fn, user);
    answer_blocks_add(b, TEXT_PART_ARGUMENTS, "1}", 2, fn, user);
    answer_blocks_add(b, TEXT_PART_CALL_END, "", 0, fn, user);
    answer_blocks_add(b, TEXT_PART_CALL, "g", 1, fn, user);
    answer_blocks_add(b, TEXT_PART_CALL_END, "", 0, fn, user);
    answer_blocks_finish(b, true, fn, user);
}

static void test_whole_bytes(void **state)
{
    (void)state;
    answer_blocks b = {0};
    buffer out = {0};
    feed(&b, NULL, NULL);
    messages_write_whole(&out, "msg_1", "m", &b, false, &(messages_ending){.finish = HY_FINISH_STOP, .calls = true},
                         (messages_usage){.prompt = 10, .cached = 4, .output = 7, .thinking = 2});
    assert_bytes(&out, "{'id':'msg_1','type':'message','role':'assistant','model':'m','content':["
                       "{'type':'thinking','thinking':'hm','signature':'ID'},{'type':'text','text':'a\\'b'},"
                       "{'type':'tool_use','id':'toolu_ID','name':'f','input':{'x':1}},"
                       "{'type':'tool_use','id':'toolu_ID','name':'g','input':{}}],'stop_reason':'tool_use',"
                       "'usage':{'input_tokens':6,'output_tokens':7,'cache_read_input_tokens':4,"
                       "'output_tokens_details':{'thinking_tokens':2}}}");
    buffer_free(&out);
    answer_blocks_free(&b);
}

static void test_stream_bytes(void **state)
{
    (void)state;
    answer_blocks b = {0};
    buffer out = {0};
    messages_events to = {.emit = write_event, .user = &out};
    messages_emit_start(&to, "msg_1", "m", (messages_usage){.prompt = 10, .cached = 4});
    feed(&b, messages_emit_block, &to);
    messages_emit_end(&to, &(messages_ending){.finish = HY_FINISH_STOP, .stop_string = "x"},
                      (messages_usage){.prompt = 10, .cached = 4, .output = 7, .thinking = 2});
    assert_bytes(
        &out,
        "{'type':'message_start','message':{'id':'msg_1','type':'message','role':'assistant','model':'m','content':[],"
        "'usage':{'input_tokens':6,'output_tokens':0,'cache_read_input_tokens':4}}}\n"
        "{'type':'content_block_start','index':0,'content_block':{'type':'thinking','thinking':'','signature':''}}\n"
        "{'type':'content_block_delta','index':0,'delta':{'type':'thinking_delta','thinking':'hm'}}\n"
        "{'type':'content_block_delta','index':0,'delta':{'type':'signature_delta','signature':'ID'}}\n"
        "{'type':'content_block_stop','index':0}\n"
        "{'type':'content_block_start','index':1,'content_block':{'type':'text','text':''}}\n"
        "{'type':'content_block_delta','index':1,'delta':{'type':'text_delta','text':'a\\'b'}}\n"
        "{'type':'content_block_stop','index':1}\n"
        "{'type':'content_block_start','index':2,'content_block':{'type':'tool_use','id':'toolu_ID','name':'f',"
        "'input':{}}}\n"
        "{'type':'content_block_delta','index':2,'delta':{'type':'input_json_delta','partial_json':'{\\'x\\':'}}\n"
        "{'type':'content_block_delta','index':2,'delta':{'type':'input_json_delta','partial_json':'1}'}}\n"
        "{'type':'content_block_stop','index':2}\n"
        "{'type':'content_block_start','index':3,'content_block':{'type':'tool_use','id':'toolu_ID','name':'g',"
        "'input':{}}}\n"
        "{'type':'content_block_delta','index':3,'delta':{'type':'input_json_delta','partial_json':'{}'}}\n"
        "{'type':'content_block_stop','index':3}\n"
        "{'type':'message_delta','delta':{'stop_reason':'stop_sequence','stop_sequence':'x'},"
        "'usage':{'input_tokens':6,'output_tokens':7,'cache_read_input_tokens':4,"
        "'output_tokens_details':{'thinking_tokens':2}}}\n"
        "{'type':'message_stop'}\n");
    buffer_free(&out);
    answer_blocks_free(&b);
}

static void test_hidden_thinking(void **state)
{
    (void)state;
    answer_blocks b = {0};
    buffer out = {0};
    messages_events to = {write_event, &out, true};
    answer_blocks_add(&b, TEXT_PART_REASONING, "hm", 2, messages_emit_block, &to);
    answer_blocks_finish(&b, true, messages_emit_block, &to);
    messages_write_whole(&out, "i", "m", &b, true, &(messages_ending){.finish = HY_FINISH_STOP}, (messages_usage){0});
    assert_bytes(
        &out,
        "{'type':'content_block_start','index':0,'content_block':{'type':'thinking','thinking':'','signature':''}}\n"
        "{'type':'content_block_delta','index':0,'delta':{'type':'signature_delta','signature':'ID'}}\n"
        "{'type':'content_block_stop','index':0}\n"
        "{'id':'i','type':'message','role':'assistant','model':'m','content':[{'type':'thinking','thinking':'',"
        "'signature':'ID'}],'stop_reason':'end_turn','usage':{'input_tokens':0,'output_tokens':0,"
        "'cache_read_input_tokens':0,'output_tokens_details':{'thinking_tokens':0}}}");
    buffer_free(&out);
    answer_blocks_free(&b);
}

static void test_endings(void **state)
{
    (void)state;
    static const struct {
        messages_ending ending;
        const char *reason;
    } cases[] = {
        {{HY_FINISH_STOP, NULL, false}, "'stop_reason':'end_turn','usage'"},
        {{HY_FINISH_STOP, NULL, true}, "'stop_reason':'tool_use','usage'"},
        {{HY_FINISH_STOP, "x", true}, "'stop_reason':'stop_sequence','stop_sequence':'x','usage'"},
        {{HY_FINISH_LENGTH, NULL, true}, "'stop_reason':'max_tokens','usage'"},
        {{HY_FINISH_LENGTH, NULL, false}, "'stop_reason':'max_tokens','usage'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        answer_blocks b = {0};
        buffer out = {0};
        char want[512];
        answer_blocks_finish(&b, true, NULL, NULL);
        messages_write_whole(&out, "i", "m", &b, false, &cases[i].ending, (messages_usage){0});
        snprintf(want, sizeof want,
                 "{'id':'i','type':'message','role':'assistant','model':'m','content':[{'type':'text','text':''}],%s:"
                 "{'input_tokens':0,'output_tokens':0,'cache_read_input_tokens':0,'output_tokens_details':{'thinking_"
                 "tokens':0}}}",
                 cases[i].reason);
        assert_bytes(&out, want);
        buffer_free(&out);
        answer_blocks_free(&b);
    }
}

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *type;
    } cases[] = {{400, "invalid_request_error"},
                 {401, "authentication_error"},
                 {403, "permission_error"},
                 {404, "not_found_error"},
                 {413, "request_too_large"},
                 {429, "rate_limit_error"},
                 {500, "api_error"},
                 {501, "invalid_request_error"},
                 {503, "overloaded_error"},
                 {504, "timeout_error"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        buffer out = {0};
        char want[128];
        messages_write_error(&out, cases[i].status, "no");
        snprintf(want, sizeof want, "{'type':'error','error':{'type':'%s','message':'no'}}", cases[i].type);
        assert_bytes(&out, want);
        buffer_free(&out);
    }
    buffer out = {0};
    messages_write_count(&out, 12);
    assert_bytes(&out, "{'input_tokens':12,'context_management':{'original_input_tokens':12}}");
    buffer_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns),          cmocka_unit_test(test_results),
        cmocka_unit_test(test_system),         cmocka_unit_test(test_last_turn_of_the_assistant_is_continued),
        cmocka_unit_test(test_tools),          cmocka_unit_test(test_effort_and_thinking),
        cmocka_unit_test(test_fields),         cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_refused_fields), cmocka_unit_test(test_whole_bytes),
        cmocka_unit_test(test_stream_bytes),   cmocka_unit_test(test_hidden_thinking),
        cmocka_unit_test(test_endings),        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
