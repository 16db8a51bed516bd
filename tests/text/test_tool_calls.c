/* Tool calls as models write them: known answers, repairs, faults, and the inverse of the chat template. */
#include "text_helpers.h"

#include "text/chat_template.h"
#include "text/tool_calls.h"

#define NS TEXT_TOOL_NAMESPACE
#define E(name, value) NS "<" name ">" value NS "</" name ">"
#define INVOKE(name, arguments) NS "<invoke name=\"" name "\">" arguments NS "</invoke>\n"
#define BLOCK(calls) NS "<tool_call>\n" calls NS "</tool_call>"

/* One tool, f, whose parameters cover the types. */
static const char schema[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"n\":{\"type\":\"number\"},\"b\":{\"type\":\"boolean\"},"
    "\"e\":{\"enum\":[\"on\",\"off\"]},\"z\":{\"type\":[\"integer\",\"null\"]},\"m\":{\"anyOf\":[{\"type\":\"boolean\"}"
    ","
    "{\"type\":\"integer\"},{\"type\":\"string\"}]},\"sn\":{\"type\":[\"string\",\"null\"]},"
    "\"ls\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},\"li\":{\"type\":\"array\",\"items\":{\"type\":"
    "\"integer\"}},\"o\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"number\"},\"t\":{\"type\":\"string\"}},"
    "\"additionalProperties\":{\"type\":\"boolean\"}},\"lo\":{\"type\":\"array\",\"items\":{\"type\":\"object\","
    "\"properties\":{\"sku\":{\"type\":\"string\"},\"qty\":{\"type\":\"integer\"}}}}}}}}]";

static json_t *tools;

static int set_up(void **state)
{
    (void)state;
    json_error_t e;
    tools = json_loads(schema, 0, &e);
    return tools ? 0 : 1;
}

static int tear_down(void **state)
{
    (void)state;
    json_decref(tools);
    return 0;
}

/* The calls as compact JSON; NULL `calls` wants a fault. */
static void check_text(const char *text, size_t length, const char *content, const char *calls, int repairs)
{
    text_tool_calls got;
    hy_error err = {0};
    hy_status s = text_tool_calls_read(text, length, tools, &got, &err);
    if (!calls) {
        if (!s) fail_msg("%s is taken", text);
        assert_int_equal(s, HY_BAD_INPUT);
        assert_one_line(&err);
        text_tool_calls_free(&got);
        return;
    }
    if (s) fail_msg("%s: %s", text, err.message);
    char *have = json_dumps(got.calls, JSON_COMPACT);
    assert_string_equal(have, calls);
    assert_int_equal(got.content_length, strlen(content));
    assert_memory_equal(text, content, got.content_length);
    assert_int_equal(got.repairs, repairs);
    free(have);
    text_tool_calls_free(&got);
}

static void check(const char *text, const char *content, const char *calls, int repairs)
{
    check_text(text, strlen(text), content, calls, repairs);
}

/* One call of f with these arguments. */
static void arguments(const char *text, const char *want)
{
    buffer in = {0}, out = {0};
    buffer_printf(&in, NS "<tool_call>\n" NS "<invoke name=\"f\">%s" NS "</invoke>\n" NS "</tool_call>", text);
    buffer_printf(&out, "[{\"name\":\"f\",\"arguments\":%s}]", want);
    check(in.data, "", out.data, 0);
    buffer_free(&in);
    buffer_free(&out);
}

static void test_whole(void **state)
{
    (void)state;
    check("", "", "[]", 0);
    check("No tool is needed.", "No tool is needed.", "[]", 0);
    check("An " NS " alone.", "An " NS " alone.", "[]", 0);
    check(BLOCK(""), "", "[]", 0);
    check("Sure." BLOCK(INVOKE("f", E("s", "Paris") E("i", "2"))), "Sure.",
          "[{\"name\":\"f\",\"arguments\":{\"s\":\"Paris\",\"i\":2}}]", 0);
    check(BLOCK(INVOKE("f", E("i", "1")) INVOKE("g", E("i", "1")) INVOKE("h", "")), "",
          "[{\"name\":\"f\",\"arguments\":{\"i\":1}},{\"name\":\"g\",\"arguments\":{\"i\":\"1\"}},"
          "{\"name\":\"h\",\"arguments\":{}}]",
          0);
    /* What follows is ignored, a second block too. */
    check(BLOCK(INVOKE("f", "")) " and more" BLOCK(INVOKE("f", E("i", "1"))), "", "[{\"name\":\"f\",\"arguments\":{}}]",
          0);
    /* Quotes, none, and spaces. */
    check(BLOCK(NS "<invoke name='a b'>" NS "</invoke>" NS "<invoke  name=c>" NS "</invoke>"), "",
          "[{\"name\":\"a b\",\"arguments\":{}},{\"name\":\"c\",\"arguments\":{}}]", 0);
}

static void test_types(void **state)
{
    (void)state;
    arguments(E("s", "5") E("i", "5") E("n", "5"), "{\"s\":\"5\",\"i\":5,\"n\":5}");
    arguments(E("s", "null") E("i", "null") E("sn", "NULL") E("z", "null"),
              "{\"s\":\"null\",\"i\":null,\"sn\":null,\"z\":null}");
    arguments(E("s", " a\n<b> \"c\" ") E("e", "on"), "{\"s\":\" a\\n<b> \\\"c\\\" \",\"e\":\"on\"}");
    arguments(E("i", "-12") E("z", "+7"), "{\"i\":-12,\"z\":7}");
    arguments(E("i", "5.0") E("z", "x"), "{\"i\":\"5.0\",\"z\":\"x\"}");
    arguments(E("i", "9223372036854775807"), "{\"i\":9223372036854775807}");
    arguments(E("i", "9223372036854775808"), "{\"i\":\"9223372036854775808\"}");
    arguments(E("n", "-1.5"), "{\"n\":-1.5}");
    arguments(E("n", "1e3"), "{\"n\":1000.0}");
    arguments(E("n", "1e999"), "{\"n\":\"1e999\"}");
    arguments(E("n", "0x10"), "{\"n\":\"0x10\"}");
    arguments(E("n", "nan"), "{\"n\":\"nan\"}");
    arguments(E("n", ""), "{\"n\":\"\"}");
    arguments(E("b", "true"), "{\"b\":true}");
    arguments(E("b", "0"), "{\"b\":false}");
    arguments(E("b", "yes"), "{\"b\":\"yes\"}");
    /* In a string no tag counts but its own end. */
    arguments(E("s", NS), "{\"s\":\"" NS "\"}");
    arguments(E("s", E("i", "1") NS "</invoke>" NS), "{\"s\":\"" E("i", "1") NS "</invoke>" NS "\"}");
    arguments(E("sn", E("i", "1")), "{\"sn\":\"" E("i", "1") "\"}");
    /* Several types: the first that the text can be. */
    arguments(E("m", "1"), "{\"m\":true}");
    arguments(E("m", "2"), "{\"m\":2}");
    arguments(E("m", "two"), "{\"m\":\"two\"}");
    /* Nothing known: string. */
    arguments(E("unknown", "5"), "{\"unknown\":\"5\"}");
    arguments(E("i", "1") E("i", "2"), "{\"i\":2}");
}

static void test_elements(void **state)
{
    (void)state;
    arguments(E("ls", E("item", "1") E("item", "b")), "{\"ls\":[\"1\",\"b\"]}");
    arguments(E("li", E("item", "1") E("number", "2")), "{\"li\":[1,2]}");
    arguments(E("li", ""), "{\"li\":[]}");
    arguments(E("li", "[1, 2]"), "{\"li\":[1,2]}");
    arguments(E("li", "{\"a\": 1}"), "{\"li\":\"{\\\"a\\\": 1}\"}");
    arguments(E("o", E("x", "1.5") E("t", "2") E("more", "true")), "{\"o\":{\"x\":1.5,\"t\":\"2\",\"more\":true}}");
    arguments(E("o", ""), "{\"o\":{}}");
    arguments(E("o", "{\"x\": 2}"), "{\"o\":{\"x\":2}}");
    arguments(E("o", "[1"), "{\"o\":\"[1\"}");
    arguments(E("lo", E("item", E("sku", "a<b") E("qty", "2")) "\n" E("item", E("sku", "7") E("qty", "1"))),
              "{\"lo\":[{\"sku\":\"a<b\",\"qty\":2},{\"sku\":\"7\",\"qty\":1}]}");
    /* A member named twice is a list; text beside elements has a name; without a schema it is an object of strings. */
    arguments(E("o", E("x", "1") E("x", "2")), "{\"o\":{\"x\":[1,2]}}");
    arguments(E("o", "note" E("x", "1")), "{\"o\":{\"x\":1,\"$text\":\"note\"}}");
    arguments(E("q", "note" E("$text", "1")), "{\"q\":{\"$text\":\"1\",\"$$text\":\"note\"}}");
    arguments(E("q", E("item", "1") E("item", "2")), "{\"q\":{\"item\":[\"1\",\"2\"]}}");
}

static void test_repairs(void **state)
{
    (void)state;
    check(BLOCK(NS "invoke name=\"f\">" E("i", "1") NS "</invoke>\n"), "", "[{\"name\":\"f\",\"arguments\":{\"i\":1}}]",
          1);
    check(BLOCK(INVOKE("f", NS "4" NS "</i>" E("s", "x"))), "",
          "[{\"name\":\"f\",\"arguments\":{\"i\":4,\"s\":\"x\"}}]", 1);
    check(BLOCK(INVOKE("f", E("i", "1") "and so" E("s", "x")) INVOKE("f", E("i", "2"))), "",
          "[{\"name\":\"f\",\"arguments\":{\"i\":1}},{\"name\":\"f\",\"arguments\":{\"i\":2}}]", 1);
}

static void test_faults(void **state)
{
    (void)state;
    static const char *const faults[] = {
        NS "<tool_call>",
        NS "<tool_call>\n" INVOKE("f", ""),
        BLOCK("text"),
        BLOCK(E("s", "x")),
        BLOCK(NS "<invoke>" NS "</invoke>"),
        BLOCK(NS "<invoke name=\"\">" NS "</invoke>"),
        BLOCK(NS "<invoke name=\"f" NS "</invoke>"),
        BLOCK(NS "<invoke name=\"f\">"),
        BLOCK(INVOKE("f", NS "<s>open")),
        BLOCK(INVOKE("f", NS "<s>x" NS "</i>")),
        BLOCK(INVOKE("f", E("i", NS))),
        BLOCK(INVOKE("f", E("", "x"))),
        BLOCK(INVOKE("f", NS "</s>")),
        BLOCK(INVOKE("f", NS "<s")),
        BLOCK(INVOKE("f", E("s", "\xFF"))),
        BLOCK(INVOKE("f", E("\xFF", "x"))),
        BLOCK(INVOKE("\xFF", "")),
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) check(faults[i], "", NULL, 0);

    /* Calls before the fault stand; every cut of a block is a fault or no block at all. */
    static const char block[] = "Yes." BLOCK(INVOKE("f", E("li", E("item", "1"))) INVOKE("f", NS "4" NS "</i>"));
    for (size_t n = 0; n < sizeof block - 1; n++) {
        text_tool_calls got;
        hy_error err = {0};
        hy_status s = text_tool_calls_read(block, n, tools, &got, &err);
        assert_int_equal(got.content_length, got.block ? 4 : n);
        assert_int_equal(s, got.block ? HY_BAD_INPUT : HY_OK);
        if (s) assert_one_line(&err);
        if (strstr(block, "</invoke>") + 9 - block <= (long)n) assert_true(json_array_size(got.calls) > 0);
        text_tool_calls_free(&got);
    }
    buffer deep = {0};
    buffer_string(&deep, NS "<tool_call>" NS "<invoke name=\"f\">");
    for (int i = 0; i < 300; i++) buffer_string(&deep, NS "<o>");
    check(deep.data, "", NULL, 0);
    buffer_free(&deep);
}

/* ---- The inverse of the template -------------------------------------------------------------------------------- */

/* A value of a random kind with the schema that describes it. */
static json_t *random_value(uint64_t *seed, int depth, json_t **out_schema)
{
    static const char *const words[] = {"a", "null", "7", "true", "x <b> y", "]<]", "{}", " two words\n", "\xC3\xA9"};
    switch (draw(seed) % (depth < 3 ? 6 : 4)) {
    case 0: *out_schema = json_pack("{s:s}", "type", "integer"); return json_integer((int)draw(seed) - (1 << 29));
    case 1: *out_schema = json_pack("{s:s}", "type", "number"); return json_real((draw(seed) % 100000) / 64.0);
    case 2: *out_schema = json_pack("{s:[s,s]}", "type", "boolean", "null"); return json_boolean(draw(seed) % 2);
    case 3: *out_schema = json_pack("{s:s}", "type", "string"); return json_string(words[draw(seed) % 9]);
    case 4: {
        json_t *object = json_object(), *properties = json_object();
        for (uint32_t n = draw(seed) % 4, i = 0; i < n; i++) {
            json_t *member;
            char key[16];
            snprintf(key, sizeof key, "k%u", i);
            json_object_set_new(object, key, random_value(seed, depth + 1, &member));
            json_object_set_new(properties, key, member);
        }
        *out_schema = json_pack("{s:s, s:o}", "type", "object", "properties", properties);
        return object;
    }
    default: {
        json_t *item, *list = json_array(), *first = random_value(seed, depth + 1, &item);
        json_array_append_new(list, first);
        for (uint32_t n = draw(seed) % 3; n; n--) json_array_append(list, first);
        *out_schema = json_pack("{s:s, s:o}", "type", "array", "items", item);
        return list;
    }
    }
}

static void test_inverse(void **state)
{
    (void)state;
    static const text_template m3 = {.kind = TEXT_TEMPLATE_MINIMAX_M3};
    uint64_t seed = 11;
    for (int i = 0; i < 3000; i++) {
        json_t *properties = json_object(), *values = json_object();
        for (int k = 0; k < 3; k++) {
            json_t *one;
            char key[8];
            snprintf(key, sizeof key, "p%d", k);
            json_object_set_new(values, key, random_value(&seed, 0, &one));
            json_object_set_new(properties, key, one);
        }
        json_t *offered = json_pack("[{s:{s:s, s:{s:s, s:o}}}]", "function", "name", "f", "parameters", "type",
                                    "object", "properties", properties);
        json_t *calls = json_pack("[{s:s, s:o}, {s:s, s:o}]", "name", "f", "arguments", values, "name", "g",
                                  "arguments", json_object());
        json_t *messages = json_pack("[{s:s, s:s, s:O}]", "role", "assistant", "content", "Now.", "tool_calls", calls);
        buffer out = {0};
        hy_error err = {0};
        assert_int_equal(text_template_render(&m3, messages, offered, NULL, &out, &err), HY_OK);
        char *from = strstr(out.data, "]~b]ai\n</mm:think>Now."), *end = from ? strstr(from, "[e~[") : NULL;
        assert_non_null(end);
        from += strlen("]~b]ai\n</mm:think>");
        text_tool_calls got;
        hy_status s = text_tool_calls_read(from, (size_t)(end - from), offered, &got, &err);
        if (s || !json_equal(got.calls, calls)) fail_msg("%s\n%s", from, err.message);
        assert_int_equal(got.content_length, 4);
        assert_int_equal(got.repairs, 0);
        text_tool_calls_free(&got);
        buffer_free(&out);
        json_decref(messages);
        json_decref(calls);
        json_decref(offered);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),   cmocka_unit_test(test_types),  cmocka_unit_test(test_elements),
        cmocka_unit_test(test_repairs), cmocka_unit_test(test_faults), cmocka_unit_test(test_inverse),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
