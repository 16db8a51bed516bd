/*
 * Prompts of MiniMax-M3. Whole prompts are held against the SHA-256 of what the model's own template renders
 * (https://huggingface.co/MiniMaxAI/MiniMax-M3, run in jinja2); the rules one by one against their text.
 */
#include "text_helpers.h"

#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include "text/chat_template.h"
#include "text/python_text.h"

#define NS "]<]minimax[>["
#define WEATHER                                                                                                        \
    "{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":\"Current "                         \
    "weather\",\"parameters\":"                                                                                        \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}},"            \
    "\"required\":[\"city\"]}}}"
#define ORDER                                                                                                          \
    "{\"type\":\"function\",\"function\":{\"name\":\"make_order\",\"description\":null,\"parameters\":{\"type\":"      \
    "\"object\",\"properties\":{\"items\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"sku\":" \
    "{\"type\":\"string\"},\"qty\":{\"type\":\"integer\"}}}},\"gift\":{\"type\":\"boolean\"},\"note\":{\"type\":"      \
    "[\"string\",\"null\"]}}}}}"

static const text_template m3 = {.kind = TEXT_TEMPLATE_MINIMAX_M3};

static json_t *parse(const char *text)
{
    json_error_t e;
    json_t *j = text ? json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e) : NULL;
    if (text && !j) fail_msg("%s: %s", text, e.text);
    return j;
}

static hy_status render(const char *messages, const char *tools, const char *kwargs, buffer *out, hy_error *err)
{
    json_t *m = parse(messages), *t = parse(tools), *k = parse(kwargs);
    hy_status s = text_template_render(&m3, m, t, k, out, err);
    json_decref(m);
    json_decref(t);
    json_decref(k);
    return s;
}

static void sha256(const void *data, size_t length, char hex[65])
{
    unsigned char digest[32];
    assert_int_equal(EVP_Digest(data, length, digest, NULL, EVP_sha256(), NULL), 1);
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}

/* ---- Whole prompts -------------------------------------------------------------------------------------------- */

static void test_whole_prompts(void **state)
{
    (void)state;
    static const struct {
        const char *messages, *tools, *kwargs;
        size_t length; /* ASCII: characters are bytes */
        const char *sha256;
    } prompts[] = {
        {"[{\"role\":\"user\",\"content\":\"Hi\"}]", NULL, NULL, 866, "128d8148b153f0fe"},
        {"[{\"role\":\"user\",\"content\":\"Hi\"}]", "[]", "{\"thinking_mode\":\"enabled\"}", 855, "19b3a8091e93937e"},
        {"[{\"role\":\"system\",\"content\":\"Answer in French.\"},{\"role\":\"user\",\"content\":\"Hi\"}]", NULL,
         "{\"thinking_mode\":\"disabled\"}", 782, "ce0635024d6afab2"},
        {"[{\"role\":\"user\",\"content\":\"1+1?\"},{\"role\":\"assistant\",\"content\":\"2\",\"reasoning_content\":"
         "\"easy\"},"
         "{\"role\":\"user\",\"content\":\"2+2?\"},{\"role\":\"assistant\",\"content\":\"4\"},"
         "{\"role\":\"user\",\"content\":\"3+3?\"}]",
         NULL, "{}", 966, "efab3e1998fbc5bf"},
        {"[{\"role\":\"user\",\"content\":\"Weather in Paris and Oslo?\"},{\"role\":\"assistant\",\"content\":\"\","
         "\"reasoning\":\"Need two "
         "calls.\",\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\","
         "\"arguments\":{\"city\":\"Paris\",\"days\":2}}},{\"type\":\"function\",\"function\":{\"name\":\"get_"
         "weather\","
         "\"arguments\":\"{\\\"city\\\": \\\"Oslo\\\", \\\"days\\\": null}\"}}]},"
         "{\"role\":\"tool\",\"content\":\"{\\\"t\\\": 21}\"},{\"role\":\"tool\",\"content\":\"{\\\"t\\\": 9}\"}]",
         "[" WEATHER "]", "{\"thinking_mode\":\"enabled\"}", 2314, "b060598ff9a76246"},
        {"[{\"role\":\"user\",\"content\":\"Order\"},{\"role\":\"assistant\",\"content\":\"Sure.\",\"tool_calls\":"
         "[{\"type\":\"function\",\"function\":{\"name\":\"make_order\",\"arguments\":{\"items\":[{\"sku\":\"a<b\","
         "\"qty\":2},{\"sku\":\"c\",\"qty\":1}],\"gift\":true,\"note\":null}}}]},{\"role\":\"tool\",\"content\":\"ok\"}"
         "]",
         "[" ORDER "]", "{\"thinking_mode\":\"disabled\"}", 2401, "3f2113f5b1709500"},
        {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":"
         "\"<mm:think>\\nplan\\n</mm:think>\\nanswer\\n\"},{\"role\":\"user\",\"content\":\"y\"}]",
         NULL, NULL, 923, "f6fe1c637e995ec3"},
    };
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        buffer out = {0};
        hy_error err = {0};
        char hex[65];
        if (render(prompts[i].messages, prompts[i].tools, prompts[i].kwargs, &out, &err)) fail_msg("%s", err.message);
        sha256(out.data, out.length, hex);
        hex[16] = 0;
        if (out.length != prompts[i].length || strcmp(hex, prompts[i].sha256) != 0)
            fail_msg("prompt %zu has %zu bytes and hash %s:\n%s", i, out.length, hex, out.data);
        buffer_free(&out);
    }
}

/* ---- Turn by turn --------------------------------------------------------------------------------------------- */

/* Renders and looks at what follows the developer block; without a generation prompt. */
static void turns(const char *messages, const char *want)
{
    buffer out = {0};
    hy_error err = {0};
    if (render(messages, NULL, "{\"add_generation_prompt\":false}", &out, &err))
        fail_msg("%s: %s", messages, err.message);
    const char *at = strstr(out.data, "]~b]developer\n");
    assert_non_null(at);
    at = strstr(at, "[e~[\n");
    assert_non_null(at);
    if (strcmp(at + 5, want) != 0) fail_msg("%s gave \"%s\", want \"%s\"", messages, at + 5, want);
    buffer_free(&out);
}

#define U(text) "{\"role\":\"user\",\"content\":" text "}"
#define A(rest) "{\"role\":\"assistant\"," rest "}"
#define CALL(arguments) "\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":" arguments "}}]"

static void test_content(void **state)
{
    (void)state;
    turns("[" U("\"a\"") "]", "]~b]user\na[e~[\n");
    turns("[" U("null") "]", "]~b]user\n[e~[\n");
    turns("[{\"role\":\"user\"}]", "]~b]user\n[e~[\n");
    turns("[" U("[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image\"},\"b\",{\"type\":\"video\"},{\"type\":"
                "\"audio\"}]") "]",
          "]~b]user\na]<]image[>[b]<]video[>[[e~[\n");
    turns("[" U("\"a\"") ",{\"role\":\"system\",\"content\":\"late\"},{\"role\":\"weird\"}," U("\"b\"") "]",
          "]~b]user\na[e~[\n]~b]user\nb[e~[\n");
    turns("[" U("\"]~b]\xC3\xA9\"") "]", "]~b]user\n]~b]\xC3\xA9[e~[\n");
}

static void test_assistant(void **state)
{
    (void)state;
    turns("[" A("\"content\":\"x\"") "]", "]~b]ai\n</mm:think>x[e~[\n");
    turns("[" A("\"content\":\"x\",\"reasoning_content\":\"r\"") "]", "]~b]ai\n<mm:think>r</mm:think>x[e~[\n");
    turns("[" A("\"content\":\"x\",\"reasoning\":\" r \"") "]", "]~b]ai\n<mm:think> r </mm:think>x[e~[\n");
    turns("[" A("\"content\":\"x\",\"reasoning\":null,\"reasoning_content\":\"r\"") "]",
          "]~b]ai\n<mm:think>r</mm:think>x[e~[\n");
    /* An empty reasoning is one: the content is not searched. */
    turns("[" A("\"content\":\"a</mm:think>b\",\"reasoning_content\":\"\"") "]",
          "]~b]ai\n</mm:think>a</mm:think>b[e~[\n");
    turns("[" A("\"content\":\"a</mm:think>b\"") "]", "]~b]ai\n<mm:think>a</mm:think>b[e~[\n");
    turns("[" A("\"content\":\"\\n<mm:think>\\n\\na\\n</mm:think>\\n\\nb\\n\"") "]",
          "]~b]ai\n<mm:think>a</mm:think>b[e~[\n");
    turns("[" A("\"content\":\"p<mm:think>q<mm:think>r</mm:think>s</mm:think>t\"") "]",
          "]~b]ai\n<mm:think>r</mm:think>t[e~[\n");
    turns("[" A("\"content\":\"</mm:think>\"") "]", "]~b]ai\n</mm:think>[e~[\n");
    turns("[" A("\"content\":\"<mm:think>open\"") "]", "]~b]ai\n</mm:think><mm:think>open[e~[\n");
    turns("[" A("\"content\":[{\"type\":\"text\",\"text\":\"a</mm:\"},{\"type\":\"text\",\"text\":\"think>b\"}]") "]",
          "]~b]ai\n<mm:think>a</mm:think>b[e~[\n");
}

#define CALLED(inside)                                                                                                 \
    "]~b]ai\n</mm:think>" NS "<tool_call>\n" NS "<invoke name=\"f\">" inside NS "</invoke>\n" NS "</tool_call>[e~[\n"
#define ELEMENT(key, value) NS "<" key ">" value NS "</" key ">"

static void test_tool_calls(void **state)
{
    (void)state;
    turns("[" A(CALL("{}")) "]", CALLED(""));
    turns("[" A(CALL("\"\"")) "]", CALLED(""));
    turns("[" A(CALL("null")) "]", CALLED(""));
    turns("[" A("\"content\":null,\"tool_calls\":[{\"name\":\"f\"}]") "]", CALLED(""));
    turns("[" A(CALL("\"{\\\"a\\\": [1, 2.0, true, null, \\\"<&>\\\"]}\"")) "]",
          CALLED(ELEMENT("a", ELEMENT("item", "1") ELEMENT("item", "2.0") ELEMENT("item", "true") ELEMENT("item", "")
                                  ELEMENT("item", "<&>"))));
    turns("[" A(CALL("{\"z\":{\"b\":1e20,\"a\":null},\"y\":null,\"x\":[],\"w\":{},\"v\":false,\"u\":-1.5e-7}")) "]",
          CALLED(ELEMENT("z", ELEMENT("b", "1e+20")) ELEMENT("x", "") ELEMENT("w", "") ELEMENT("v", "false")
                     ELEMENT("u", "-1.5e-07")));
    turns("[" A("\"content\":\"x\",\"tool_calls\":[]") "]", "]~b]ai\n</mm:think>x[e~[\n");
}

#define T(text) "{\"role\":\"tool\",\"content\":" text "}"
#define RESPONSE(text) "\n<response>" text "</response>"

static void test_results(void **state)
{
    (void)state;
    turns("[" A(CALL("{}")) "," T("\"1\"") "," T("\"2\"") "," U("\"u\"") "," T("\"3\"") "]",
          CALLED("") "]~b]tool" RESPONSE("1") RESPONSE("2") "[e~[\n]~b]user\nu[e~[\n]~b]tool" RESPONSE("3") "[e~[\n");
    turns("[" A(CALL("{}")) "," T("[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]") "]",
          CALLED("") "]~b]tool" RESPONSE("a\nb") "[e~[\n");
    turns("[" A(CALL("{}")) "," T("[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image\"}]") "]",
          CALLED("") "]~b]tool" RESPONSE("a]<]image[>[") "[e~[\n");
    turns("[" A(CALL("{}")) "," T("null") "]", CALLED("") "]~b]tool" RESPONSE("") "[e~[\n");
    /* A dropped message between two results parts their turns, as the template looks at its neighbours only. */
    turns("[" A(CALL("{}")) "," T("\"1\"") ",{\"role\":\"system\",\"content\":\"x\"}," T("\"2\"") "]",
          CALLED("") "]~b]tool" RESPONSE("1") "[e~[\n]~b]tool" RESPONSE("2") "[e~[\n");
}

/* ---- Head and end --------------------------------------------------------------------------------------------- */

static void contains(const char *messages, const char *tools, const char *kwargs, const char *part, bool wanted)
{
    buffer out = {0};
    hy_error err = {0};
    if (render(messages, tools, kwargs, &out, &err)) fail_msg("%s: %s", messages, err.message);
    if ((strstr(out.data, part) != NULL) != wanted)
        fail_msg("%s %s in \"%s\"", wanted ? "no" : "unwanted", part, out.data);
    buffer_free(&out);
}

static void test_head(void **state)
{
    (void)state;
    const char *root =
        "[{\"role\":\"root\",\"content\":\"R\"},{\"role\":\"developer\",\"content\":\"D\"}," U("\"x\"") "]";
    contains(root, NULL, NULL, "]~!b[]~b]system\nR\n\n<thinking_instructions>\n", true);
    contains(root, NULL, NULL, "]~b]developer\nD[e~[\n]~b]user\nx", true);
    contains("[{\"role\":\"root\",\"content\":\"\"}]", NULL, NULL, "]~b]system\nYour model version is MiniMax-M3,",
             true);
    contains("[{\"role\":\"root\",\"content\":[]}]", NULL, NULL, "]~b]system\nYour model version is MiniMax-M3,", true);
    contains("[{\"role\":\"system\",\"content\":\"\"}]", NULL, NULL, "]~b]developer\nYou are a helpful assistant.[e~[",
             true);
    contains("[]", NULL, "{\"model_identity\":\"Nemo\"}", "]~b]developer\nNemo[e~[", true);
    contains("[]", NULL, "{\"model_identity\":\"\"}", "]~b]developer\n[e~[", true);
    contains("[{\"role\":\"system\",\"content\":\"S\"}]", NULL, "{\"model_identity\":\"Nemo\"}", "Nemo", false);
    contains("[{\"role\":\"developer\",\"content\":\"1\"},{\"role\":\"developer\",\"content\":\"2\"}]", NULL, NULL,
             "]~b]developer\n1[e~[\n]~b]ai\n", true);
    contains("[]", NULL, "{\"thinking_mode\":\"other\"}", "Current thinking mode", false);
    contains("[]", NULL, "{\"thinking_mode\":null}", "Current thinking mode", false);
    contains("[]", NULL, NULL, "Current thinking mode: adaptive.", true);
    contains("[]", NULL, "{\"add_generation_prompt\":false}", "]~b]ai\n", false);
    contains("[]", NULL, "{\"thinking_mode\":\"disabled\"}", "]~b]ai\n</mm:think>", true);
    contains("[]", NULL, "{\"reasoning_effort\":\"max\",\"enable_thinking\":false}", "max", false);
}

static void test_tools(void **state)
{
    (void)state;
    contains("[]", "[]", NULL, "# Tools", false);
    contains("[]", "[{\"function\":{\"name\":\"n\"}}]", NULL,
             "<tools>\n<tool>{\"name\": \"n\", \"description\": null, \"parameters\": null}</tool>\n</tools>\n", true);
    contains("[]",
             "[{\"function\":{\"zz\":1,\"strict\":true,\"defer_loading\":null,\"parameters\":{\"b\":[1.0,1e16,{}],"
             "\"a\":\"\\u00e9"
             "\\\"\\n\\u0001\\u007f/\"},\"description\":\"d\",\"name\":\"n\"}}]",
             NULL,
             "<tool>{\"name\": \"n\", \"description\": \"d\", \"parameters\": {\"b\": [1.0, 1e+16, {}], "
             "\"a\": \"\xC3\xA9\\\"\\n\\u0001\x7F/\"}, \"strict\": true}</tool>\n",
             true);
}

static void test_continue(void **state)
{
    (void)state;
    static const struct {
        const char *messages, *end;
    } cases[] = {
        {"[" U("\"x\"") "," A("\"content\":\"The answer is \\n\"") "]", "]~b]ai\n</mm:think>The answer is"},
        {"[" U("\"x\"") "," A("\"content\":\"\",\"reasoning\":\"r\"") "]", "]~b]ai\n<mm:think>r</mm:think>"},
        {"[" A("\"content\":\"c\"," CALL("{\"a\":1}")) "]", "]~b]ai\n</mm:think>c"},
        {"[" U("\"  x  \"") "]", "]~b]user\n  x"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        buffer out = {0};
        hy_error err = {0};
        if (render(cases[i].messages, NULL, "{\"continue_final_message\":true}", &out, &err))
            fail_msg("%s", err.message);
        size_t n = strlen(cases[i].end);
        assert_true(out.length > n);
        assert_string_equal(out.data + out.length - n, cases[i].end);
        buffer_free(&out);
    }
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *messages, *tools, *kwargs, *part;
    } cases[] = {
        {"{}", NULL, NULL, "messages is not a list"},
        {"[1]", NULL, NULL, "messages[0] is a number"},
        {"[{\"content\":\"x\"}]", NULL, NULL, "messages[0].role"},
        {"[" U("1") "]", NULL, NULL, "messages[0].content is a number"},
        {"[" U("{}") "]", NULL, NULL, "messages[0].content is an object"},
        {"[" U("[1]") "]", NULL, NULL, "messages[0].content[0]"},
        {"[" U("[{\"type\":\"text\"}]") "]", NULL, NULL, "messages[0].content[0].text"},
        {"[" T("\"x\"") "]", NULL, NULL,
         "Message has tool role, but there was no previous assistant message with a tool call!"},
        {"[" A(CALL("{}")) "," A("\"content\":\"x\"") "," T("\"x\"") "]", NULL, NULL, "Message has tool role"},
        {"[" A("\"tool_calls\":{}") "]", NULL, NULL, "messages[0].tool_calls is an object"},
        {"[" A("\"tool_calls\":[1]") "]", NULL, NULL, "messages[0].tool_calls[0].function.name"},
        {"[" A(CALL("[]")) "]", NULL, NULL, "arguments is not a JSON object"},
        {"[" A(CALL("\"[1]\"")) "]", NULL, NULL, "arguments is not a JSON object"},
        {"[" A(CALL("\"{\\\"a\\\": \"")) "]", NULL, NULL, "arguments is not a JSON object: not valid JSON at line 1"},
        {"[" A("\"reasoning\":1") "]", NULL, NULL, "messages[0].reasoning is a number"},
        {"[]", "{}", NULL, "tools is not a list"},
        {"[]", "[1]", NULL, "tools[0].function"},
        {"[]", "[{\"function\":{}}]", NULL, "tools[0].function.name"},
        {"[]", "[{\"function\":{\"name\":\"x\",\"parameters\":[]}}]", NULL, "tools[0].function.parameters"},
        {"[]", "[{\"function\":{\"name\":\"x\",\"description\":1}}]", NULL, "tools[0].function.description"},
        {"[]", NULL, "[]", "chat_template_kwargs is a list"},
        {"[]", NULL, "{\"model_identity\":1}", "model_identity"},
        {"[]", NULL, "{\"add_generation_prompt\":1}", "add_generation_prompt"},
        {"[]", NULL, "{\"continue_final_message\":true}", "last message"},
        {"[]", NULL, "{\"continue_final_message\":true,\"add_generation_prompt\":true}", "exclude"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        buffer out = {0};
        hy_error err = {0};
        hy_status s = render(cases[i].messages, cases[i].tools, cases[i].kwargs, &out, &err);
        if (s != HY_BAD_INPUT) fail_msg("status %d for %s", s, cases[i].messages);
        assert_one_line(&err);
        if (!strstr(err.message, cases[i].part)) fail_msg("\"%s\" does not say \"%s\"", err.message, cases[i].part);
        buffer_free(&out);
    }
}

static void test_deep_arguments(void **state)
{
    (void)state;
    buffer text = {0}, out = {0};
    hy_error err = {0};
    buffer_string(&text, "[{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\",\"arguments\":{\"a\":");
    for (int i = 0; i < 1000; i++) buffer_char(&text, '[');
    for (int i = 0; i < 1000; i++) buffer_char(&text, ']');
    buffer_string(&text, "}}]}]");
    assert_int_equal(render(text.data, NULL, NULL, &out, &err), HY_BAD_INPUT);
    assert_non_null(strstr(err.message, "nested"));
    buffer_free(&text);
    buffer_free(&out);
}

/* ---- Numbers as Python prints them ---------------------------------------------------------------------------- */

static void test_floats(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        {0, "0.0"},
        {-0.0, "-0.0"},
        {1, "1.0"},
        {-2.5, "-2.5"},
        {100, "100.0"},
        {0.1, "0.1"},
        {1e15, "1000000000000000.0"},
        {1e16, "1e+16"},
        {123456789012345680.0, "1.2345678901234568e+17"},
        {9007199254740993.0, "9007199254740992.0"},
        {1e20, "1e+20"},
        {1.5e300, "1.5e+300"},
        {0.0001, "0.0001"},
        {0.00012345, "0.00012345"},
        {0.00001, "1e-05"},
        {5e-324, "5e-324"},
        {1.7976931348623157e308, "1.7976931348623157e+308"},
        {3.141592653589793, "3.141592653589793"},
        {1.0 / 3, "0.3333333333333333"},
        {12345.678, "12345.678"},
        {0.30000000000000004, "0.30000000000000004"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        buffer out = {0};
        python_float(cases[i].value, &out);
        assert_buffer(&out, cases[i].text, strlen(cases[i].text));
        buffer_free(&out);
    }
}

/* ---- Which template a folder has ------------------------------------------------------------------------------ */

static char folder[] = "/tmp/hayate-template-XXXXXX";

static void write_file(const char *name, const char *text)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void remove_file(const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
}

static text_template detect(const char *option)
{
    text_template t;
    hy_error err = {0};
    if (text_template_detect(folder, option, &t, &err) != HY_OK) fail_msg("%s: %s", err.where, err.message);
    return t;
}

/* The hash of what the folder has now. */
static void assert_hash(const char *source, const char *hex)
{
    text_template t = detect(NULL);
    assert_string_equal(t.sha256, hex);
    if (source) assert_string_equal(t.source, source);
    text_template_free(&t);
}

static void test_detect(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    text_template t = detect(NULL);
    assert_int_equal(t.kind, TEXT_TEMPLATE_NONE);
    assert_string_equal(t.sha256, "");

    write_file("tokenizer_config.json", "{\"chat_template\": \"{{ messages }}\"}");
    t = detect("auto");
    assert_int_equal(t.kind, TEXT_TEMPLATE_INTERPRETED);
    assert_string_equal(t.source, "tokenizer_config.json");
    char hex[65];
    sha256("{{ messages }}", 14, hex);
    assert_string_equal(t.sha256, hex);
    text_template_free(&t);
    t = detect("minimax-m3");
    assert_int_equal(t.kind, TEXT_TEMPLATE_MINIMAX_M3);

    /* chat_template.jinja comes first; line ends and a last newline do not count. */
    sha256("a\nb", 3, hex);
    static const char *const same[] = {"a\nb", "a\nb\n", "a\r\nb\r\n", "a\rb"};
    for (int i = 0; i < 4; i++) {
        write_file("chat_template.jinja", same[i]);
        assert_hash("chat_template.jinja", hex);
    }
    write_file("chat_template.jinja", "a\nb\n\n");
    t = detect(NULL);
    assert_string_not_equal(t.sha256, hex);
    text_template_free(&t);
    remove_file("chat_template.jinja");

    write_file("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"x\"}, "
                                        "{\"name\": \"default\", \"template\": \"a\\nb\"}]}");
    assert_hash("tokenizer_config.json", hex);
    write_file("tokenizer_config.json", "{\"other\": 1}");
    assert_int_equal(detect(NULL).kind, TEXT_TEMPLATE_NONE);

    /* A damaged file is refused by its name. */
    static const char *const damaged[][2] = {{"{", "not valid JSON"}, {"[]", "a JSON object"}, {"{\"chat_template\": 7}", "neither"}};
    for (int i = 0; i < 3; i++) {
        hy_error err = {0};
        write_file("tokenizer_config.json", damaged[i][0]);
        assert_int_equal(text_template_detect(folder, NULL, &t, &err), HY_BAD_MODEL);
        assert_non_null(strstr(err.message, "tokenizer_config.json"));
        assert_non_null(strstr(err.message, damaged[i][1]));
        assert_one_line(&err);
    }
}

/* What cannot be compiled lets the model open, says the line, and renders nothing; an option that cannot is an error. */
static void test_broken(void **state)
{
    (void)state;
    write_file("chat_template.jinja", "{{ bos_token }}\n{% if x %}\n{% endfor %}");
    text_template t = detect(NULL);
    buffer out = {0};
    hy_error err = {0};
    json_t *messages = json_array();
    assert_int_equal(t.kind, TEXT_TEMPLATE_BROKEN);
    assert_int_equal(text_template_usable(&t, &err), HY_BAD_MODEL);
    assert_non_null(strstr(err.message, "chat_template.jinja:3: "));
    assert_non_null(strstr(err.message, "minimax-m3"));
    assert_one_line(&err);
    assert_int_equal(text_template_render(&t, messages, NULL, NULL, &out, &err), HY_BAD_MODEL);
    assert_int_equal(out.length, 0);
    assert_false(text_template_reads(&t, "messages"));
    text_template_free(&t);

    t = detect("minimax-m3");
    assert_int_equal(text_template_render(&t, messages, NULL, NULL, &out, &err), HY_OK);
    buffer_free(&out);
    char path[200];
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    assert_int_equal(text_template_detect(NULL, path, &t, &err), HY_USAGE);
    assert_non_null(strstr(err.message, "chat_template.jinja:3: "));
    assert_int_equal(text_template_detect(NULL, "{% for %}", &t, &err), HY_USAGE);
    assert_non_null(strstr(err.message, "--chat-template:1: "));
    assert_int_equal(text_template_compile(&m3, "a\n{{", 4, &t, &err), HY_BAD_INPUT);
    assert_non_null(strstr(err.message, "chat_template:2: "));
    remove_file("chat_template.jinja");
    json_decref(messages);
}

/* ---- Templates that are interpreted ---------------------------------------------------------------------------- */

static hy_status render_with(const char *text, const char *messages, const char *tools, const char *kwargs, buffer *out,
                             hy_error *err)
{
    text_template t;
    json_t *m = parse(messages), *l = parse(tools), *k = parse(kwargs);
    if (text_template_detect(folder, text, &t, err)) fail_msg("%s: %s", err->where, err->message);
    assert_int_equal(t.kind, TEXT_TEMPLATE_INTERPRETED);
    hy_status s = text_template_render(&t, m, l, k, out, err);
    text_template_free(&t);
    json_decref(m);
    json_decref(l);
    json_decref(k);
    return s;
}

static void gives(const char *text, const char *messages, const char *tools, const char *kwargs, const char *want)
{
    buffer out = {0};
    hy_error err = {0};
    if (render_with(text, messages, tools, kwargs, &out, &err)) fail_msg("%s: %s", text, err.message);
    assert_buffer(&out, want, strlen(want));
    buffer_free(&out);
}

static void refuses(const char *text, const char *messages, const char *kwargs, const char *want)
{
    buffer out = {0};
    hy_error err = {0};
    assert_int_equal(render_with(text, messages, NULL, kwargs, &out, &err), HY_BAD_INPUT);
    if (!strstr(err.message, want)) fail_msg("\"%s\", want \"%s\"", err.message, want);
    assert_one_line(&err);
    buffer_free(&out);
}

#define USER "[{\"role\":\"user\",\"content\":\"Hi\"}]"

static void test_context(void **state)
{
    (void)state;
    write_file("tokenizer_config.json", "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"</s>\", \"pad_token\": null}");
    write_file("special_tokens_map.json", "{\"bos_token\": \"<x>\", \"unk_token\": \"<u>\"}");
    gives("{{ bos_token ~ eos_token ~ unk_token }}{{ pad_token is defined }}", "[]", NULL, NULL, "<s></s><u>False");
    gives("{{ bos_token }}", "[]", NULL, "{\"bos_token\":\"mine\"}", "mine");
    gives("{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }} {{ continue_final_message is defined }}", USER,
          NULL, NULL, "True True True False");
    gives("{{ tools }}|{{ documents }}|{{ add_generation_prompt }}|{{ x }}", "[]", "[]",
          "{\"documents\":[1],\"add_generation_prompt\":false,\"x\":null}", "[]|[1]|False|None");
    gives("{{ tools | tojson }}", "[]",
          "[{\"type\":\"function\",\"function\":{\"parameters\":{},\"name\":\"f\",\"more\":1,\"strict\":true}}]", NULL,
          "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": null, \"parameters\": {}, \"strict\": true}}]");
    refuses("{{ messages }}", "[]", "{\"messages\":[]}", "cannot set messages");
    refuses("{{ messages }}", "{}", NULL, "messages is not a list");
    refuses("{{ raise_exception('No ' ~ 'tools\\nhere') }}", "[]", NULL, "No tools here");
    refuses("a\n{{ messages[0].content + 1 }}", USER, NULL, "--chat-template:2: can only concatenate str");
    remove_file("tokenizer_config.json");
    remove_file("special_tokens_map.json");
}

static void test_messages(void **state)
{
    (void)state;
    static const char parts[] = "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},\"b\"]}]";
    static const char image[] = "[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]";
    static const char loop[] = "{% for m in messages %}{% for p in m.content %}<{{ p.type }}{{ p.text }}>{% endfor %}{% endfor %}";
    /* One text for templates that know no parts, else parts. */
    gives("{{ messages[0].content }}", parts, NULL, NULL, "a\nb");
    gives(loop, parts, NULL, NULL, "<texta><textb>");
    gives(loop, image, NULL, NULL, "<image>");
    gives(loop, USER, NULL, NULL, "<textHi>");
    gives("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}"
          "{% endfor %}{% endif %}{% endfor %}",
          USER, NULL, NULL, "Hi");
    refuses("{{ messages[0].content }}", image, NULL, "no part of type \"image\"");
    refuses("{{ messages[0].content }}", "[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", NULL, "text is not a string");
    refuses("{{ messages[0].content }}", "[{\"role\":\"user\",\"content\":1}]", NULL, "content is a number");
    gives("{% for m in messages %}[{{ m.content }}]{% endfor %}", "[{\"role\":\"user\"},{\"role\":\"user\",\"content\":null}]", NULL,
          NULL, "[][]");
    gives("{% for m in messages %}[{{ m.reasoning }}|{{ m.reasoning_content }}]{% endfor %}",
          "[{\"role\":\"assistant\",\"reasoning\":\"r\"},{\"role\":\"assistant\",\"reasoning_content\":\"c\"}]", NULL, NULL,
          "[r|r][c|c]");
    gives("{% for m in messages %}{{ m.tool_calls | tojson if m.tool_calls is defined }};{% endfor %}",
          "[{\"role\":\"assistant\",\"tool_calls\":[]},{\"role\":\"assistant\",\"tool_calls\":null},{\"role\":\"assistant\","
          "\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}},"
          "{\"function\":{\"name\":\"g\",\"arguments\":\"\"}}]}]",
          NULL, NULL,
          ";;[{\"id\": \"1\", \"function\": {\"name\": \"f\", \"arguments\": {\"a\": 1}}}, {\"function\": {\"name\": \"g\", "
          "\"arguments\": {}}}];");
    refuses("{# #}x", "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"[\"}}]}]", NULL,
            "messages[0].tool_calls[0].function.arguments is not a JSON object");
}

static void test_continued(void **state)
{
    (void)state;
    static const char chat[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{{ 'G' if add_generation_prompt }}";
    static const char prefix[] = "[{\"role\":\"user\",\"content\":\"ab\"},{\"role\":\"assistant\",\"content\":\"ab c \\n\"}]";
    gives(chat, prefix, NULL, "{\"continue_final_message\":true}", "<user>ab</><assistant>ab c");
    gives("{% for m in messages %}<{{ m.content | trim }}>{% endfor %}", prefix, NULL, "{\"continue_final_message\":true}", "<ab><ab c");
    gives("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% endif %}{% for p in m.content if m.content is not "
          "string %}<{{ p.text }}>{% endfor %}{% endfor %}",
          "[{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b \"}]}]", NULL,
          "{\"continue_final_message\":true}", "<a><b");
    refuses("{{ messages[0].content }}", prefix, "{\"continue_final_message\":true}", "does not show the content of the last message");
    refuses(chat, prefix, "{\"continue_final_message\":true,\"add_generation_prompt\":true}", "exclude each other");
    refuses(chat, "[]", "{\"continue_final_message\":true}", "no message to continue");
}

static void test_effort(void **state)
{
    (void)state;
    static const char both[] = "{{ reasoning_effort | default('max') }} {{ effort | default('max') }}";
    gives(both, "[]", NULL, NULL, "max max");
    gives(both, "[]", NULL, "{\"reasoning_effort\":null}", "max max");
    gives(both, "[]", NULL, "{\"reasoning_effort\":\"low\"}", "low low");
    gives(both, "[]", NULL, "{\"effort\":\"of its own\"}", "of its own of its own");
    gives(both, "[]", NULL, "{\"effort\":\"a\",\"reasoning_effort\":\"b\"}", "b a");
    refuses(both, "[]", "{\"effort\":1}", "effort is a number");

    /* No thinking: refused where there is no such mode, the template's business where there is, nothing where none thinks. */
    refuses(both, "[]", "{\"thinking_mode\":\"disabled\"}", "this model always reasons");
    refuses(both, "[]", "{\"reasoning_effort\":\"none\"}", "this model always reasons");
    refuses("{# #}<think>", "[]", "{\"enable_thinking\":false}", "this model always reasons");
    refuses("{# #}<think>", "[]", "{\"thinking\":false}", "this model always reasons");
    gives("{# #}<think>", "[]", NULL, "{\"enable_thinking\":true}", "<think>");
    gives("{{ thinking_mode }}", "[]", NULL, "{\"thinking_mode\":\"disabled\"}", "disabled");
    gives("{{ effort }} {{ enable_thinking }}", "[]", NULL, "{\"effort\":\"none\",\"enable_thinking\":false}", "none False");
    gives("{# #}plain", "[]", NULL, "{\"thinking_mode\":\"disabled\"}", "plain");

    text_template t;
    hy_error err = {0};
    assert_int_equal(text_template_detect(NULL, "{% set b = a.c %}{{ b }}", &t, &err), HY_OK);
    assert_true(text_template_reads(&t, "a"));
    assert_false(text_template_reads(&t, "c"));
    assert_false(text_template_reads(&t, "effort"));
    assert_true(text_template_reads(&m3, "thinking_mode"));
    assert_false(text_template_reads(&m3, "reasoning_effort"));
    text_template_free(&t);
}

static void test_detect_errors(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "{", "{\"chat_template\": 1}", "{\"chat_template\": []}",
                                      "{\"chat_template\": \"a\", \"chat_template\": \"b\"}"};
    text_template t;
    for (int i = 0; i < 5; i++) {
        hy_error err = {0};
        write_file("tokenizer_config.json", bad[i]);
        assert_int_equal(text_template_detect(folder, NULL, &t, &err), HY_BAD_MODEL);
        assert_one_line(&err);
    }
    hy_error err = {0};
    assert_int_equal(text_template_detect(folder, "chatml", &t, &err), HY_USAGE);
    assert_one_line(&err);
    remove_file("tokenizer_config.json");
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_prompts),  cmocka_unit_test(test_content),  cmocka_unit_test(test_assistant),
        cmocka_unit_test(test_tool_calls),     cmocka_unit_test(test_results),  cmocka_unit_test(test_head),
        cmocka_unit_test(test_tools),          cmocka_unit_test(test_continue), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_deep_arguments), cmocka_unit_test(test_floats),   cmocka_unit_test(test_detect),
        cmocka_unit_test(test_broken),         cmocka_unit_test(test_context),  cmocka_unit_test(test_messages),
        cmocka_unit_test(test_continued),      cmocka_unit_test(test_effort),   cmocka_unit_test(test_detect_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
