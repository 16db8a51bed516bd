/* The answer parser: known answers in every cut, damaged answers, and what users of servers of this model reported. */
#include "answer_helpers.h"

/* One call of f behind nothing; neither a repair nor a fault. */
static void arguments(const char *text, const char *want)
{
    buffer in = {0}, out = {0};
    buffer_printf(&in, NS "<tool_call>\n" NS "<invoke name=\"f\">%s" NS "</invoke>\n" NS "</tool_call>", text);
    buffer_printf(&out, "f%s", want);
    answer_log log = expect(TEXT_START_OPEN, in.data, "", "", out.data);
    assert_int_equal(log.repairs + log.faults + log.cut, 0);
    buffer_free(&in);
    buffer_free(&out);
}

/* The same cut after `text`: what is open is closed. */
static void cut(const char *text, const char *want)
{
    buffer in = {0}, out = {0};
    buffer_printf(&in, NS "<tool_call>\n" NS "<invoke name=\"f\">%s", text);
    buffer_printf(&out, "f%s", want);
    answer_log log = expect(TEXT_START_OPEN, in.data, "", "", out.data);
    assert_true(log.cut);
    assert_int_equal(log.faults, 0);
    buffer_free(&in);
    buffer_free(&out);
}

static void test_whole(void **state)
{
    (void)state;
    expect(TEXT_START_OPEN, "", "", "", "");
    expect(TEXT_START_OPEN, "Hello.", "", "Hello.", "");
    expect(TEXT_START_OPEN, O "why" C "Sure." BLOCK(INVOKE("f", E("s", "a") E("i", "2"))), "why", "Sure.",
           "f{\"s\":\"a\",\"i\":2}");
    expect(TEXT_START_INSIDE, "why" C BLOCK(INVOKE("f", "") INVOKE("g", E("i", "1"))), "why", "", "f{}g{\"i\":\"1\"}");
    expect(TEXT_START_CLOSED, "x" BLOCK(INVOKE("f", E("i", "1") E("i", "2"))), "", "x", "f{\"i\":1,\"i\":2}");
    /* Not asked for: text. */
    text_answer_options plain = {.tools = tools};
    expect_with(&plain, O "a" C BLOCK(""), "", O "a" C BLOCK(""), "");
    plain.split_reasoning = true;
    expect_with(&plain, O "a" C BLOCK(""), "a", BLOCK(""), "");
}

static void test_values(void **state)
{
    (void)state;
    arguments(E("s", "5") E("i", "5") E("n", "1.1") E("b", "true"), "{\"s\":\"5\",\"i\":5,\"n\":1.1,\"b\":true}");
    arguments(E("n", "1e3") E("n", "1e300"), "{\"n\":1000.0,\"n\":1e+300}");
    arguments(E("s", " \n\"\\\t\x01\x7F") E("e", "on"), "{\"s\":\" \\n\\\"\\\\\\t\\u0001\x7F\",\"e\":\"on\"}");
    arguments(E("s", "null") E("sn", "null") E("z", "null"), "{\"s\":\"null\",\"sn\":null,\"z\":null}");
    arguments(E("sn", "nul") E("sn", "NuLl") E("sn", "nulls") E("sn", ""),
              "{\"sn\":\"nul\",\"sn\":null,\"sn\":\"nulls\",\"sn\":\"\"}");
    arguments(E("ls", E("item", "1") E("item", "b")) E("li", E("a", "1") E("b", "x")),
              "{\"ls\":[\"1\",\"b\"],\"li\":[1,\"x\"]}");
    arguments(E("ls", "") E("li", "[1, 2]") E("li", "[1"), "{\"ls\":[],\"li\":[1,2],\"li\":\"[1\"}");
    arguments(E("ll", E("item", "") E("item", E("item", "x") E("item", "y"))), "{\"ll\":[[],[\"x\",\"y\"]]}");
    arguments(E("ls", "a " E("item", "1") "b"), "{\"ls\":[\"1\",\"a b\"]}");
    arguments(E("o", E("x", "1.5") E("t", "2") E("more", "true") E("l", E("item", "q"))),
              "{\"o\":{\"x\":1.5,\"t\":\"2\",\"more\":true,\"l\":[\"q\"]}}");
    arguments(E("o", E("x", "1") E("x", "2") "note"), "{\"o\":{\"x\":[1,2],\"$text\":\"note\"}}");
    arguments(E("lo", E("item", E("sku", "a<b") E("qty", "2")) "\n" E("item", "{}")),
              "{\"lo\":[{\"sku\":\"a<b\",\"qty\":2},{}]}");
    arguments(E("any", "5") E("q", E("item", "1") E("item", "2")) E("any", E("$text", "1") "t"),
              "{\"any\":\"5\",\"q\":{\"item\":[\"1\",\"2\"]},\"any\":{\"$text\":\"1\",\"$$text\":\"t\"}}");
}

/* Schemas that say it elsewhere. */
static void test_references(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *text, *want;
    } cases[] = {
        {"{\"$ref\":\"#/$defs/int\"}", "5", "5"},
        {"{\"$ref\":\"#/$defs/a~1b~0\"}", "5", "\"5\""},
        {"{\"allOf\":[{\"title\":\"x\"},{\"$ref\":\"#/$defs/int\"}],\"description\":\"d\"}", "5", "5"},
        {"{\"anyOf\":[{\"$ref\":\"#/$defs/item\"},{\"type\":\"null\"}]}", E("q", "1") E("next", E("q", "2")),
         "{\"q\":1,\"next\":{\"q\":2}}"},
        {"{\"anyOf\":[{\"$ref\":\"#/$defs/item\"},{\"type\":\"null\"}]}", "null", "null"},
        {"{\"oneOf\":[{\"type\":\"null\"},{\"$ref\":\"#/$defs/either\"}]}", "x", "\"x\""},
        {"{\"oneOf\":[{\"type\":\"null\"},{\"$ref\":\"#/$defs/either\"}]}", "7", "7"},
        {"{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/item\"}}", E("item", E("q", "1")), "[{\"q\":1}]"},
        {"{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/text\"}}", E("item", NS "<i>"), "[\"" NS "<i>\"]"},
        {"{\"$ref\":\"#/properties/p/none\"}", "5", "\"5\""},
        {"{\"$ref\":\"#/$defs/circle\"}", "5", "\"5\""},
        {"{\"anyOf\":[{\"$ref\":\"#/$defs/wheel\"},{\"type\":\"integer\"}]}", "5", "\"5\""},
        {"{\"$ref\":\"http://localhost/x\"}", "5", "\"5\""},
        {"{\"$ref\":\"#/$defs/either/anyOf/0\"}", "5", "5"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        buffer schema = {0}, text = {0}, want = {0};
        json_error_t e;
        buffer_printf(&schema,
                      "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"p\":%s},\"$defs\":{\"int\":{"
                      "\"type\":\"integer\"},\"text\":{\"type\":\"string\"},\"a/b~\":{\"$ref\":\"#/$defs/text\"},"
                      "\"either\":{\"anyOf\":[{\"$ref\":\"#/$defs/int\"},{\"$ref\":\"#/$defs/text\"}]},\"item\":{"
                      "\"properties\":{\"q\":{\"$ref\":\"#/$defs/int\"},\"next\":{\"$ref\":\"#/$defs/item\"}}},"
                      "\"circle\":{\"$ref\":\"#/$defs/circle\"},\"wheel\":{\"anyOf\":[{\"$ref\":\"#/$defs/wheel\"},"
                      "{\"$ref\":\"#/$defs/wheel\"}]}}}}}]",
                      cases[i].schema);
        json_t *own = json_loads(schema.data, 0, &e);
        if (!own) fail_msg("%s: %s", schema.data, e.text);
        buffer_printf(&text,
                      NS "<tool_call>" NS "<invoke name=\"f\">" NS "<p>%s" NS "</p>" NS "</invoke>" NS "</tool_call>",
                      cases[i].text);
        buffer_printf(&want, "f{\"p\":%s}", cases[i].want);
        text_answer_options options = options_of(TEXT_START_OPEN);
        options.tools = own;
        expect_with(&options, text.data, "", "", want.data);
        json_decref(own);
        buffer_free(&schema), buffer_free(&text), buffer_free(&want);
    }
}

/* Bytes that are no characters, in strings that flow and in values that wait. */
static void test_bytes(void **state)
{
    (void)state;
    arguments(E("s", "\xC3\xA9\xF0\x9F\x98\x80") E("any", "\xE4\xBD\xA0"),
              "{\"s\":\"\xC3\xA9\xF0\x9F\x98\x80\",\"any\":\"\xE4\xBD\xA0\"}");
    arguments(E("s", "a\xFF\xE4\xBDz\xF0\x9F\x98") E("any", "a\xFF\xE4\xBDz\xF0\x9F\x98") E("i", "\xC3"),
              "{\"s\":\"a\xEF\xBF\xBD\xEF\xBF\xBDz\xEF\xBF\xBD\",\"any\":\"a\xEF\xBF\xBD\xEF\xBF\xBDz\xEF\xBF\xBD\","
              "\"i\":\"\xEF\xBF\xBD\"}");
    arguments(E("s", "\xE4\xE4\xBD\xA0") E("ls", E("item", "\xF0\xC3\xA9") "\xFF"),
              "{\"s\":\"\xEF\xBF\xBD\xE4\xBD\xA0\",\"ls\":[\"\xEF\xBF\xBD\xC3\xA9\",\"\xEF\xBF\xBD\"]}");
}

static void test_cut(void **state)
{
    (void)state;
    cut("", "{}");
    cut(NS "<s>ab", "{\"s\":\"ab\"}");
    cut(NS "<s>ab" NS "</s", "{\"s\":\"ab\"}");
    cut(NS "<s", "{}");
    cut(E("s", "a") NS "<i>12", "{\"s\":\"a\"}");
    cut(E("s", "a") NS "<i>12" NS "</", "{\"s\":\"a\",\"i\":12}");
    cut(NS "<sn>nul", "{}");
    cut(NS "<sn>null ", "{\"sn\":\"null \"}");
    cut(NS "<any>ab", "{\"any\":\"ab\"}");
    cut(NS "<ls>[\"a", "{}");
    cut(NS "<ls>" E("item", "a") NS "<item>b", "{\"ls\":[\"a\",\"b\"]}");
    cut(NS "<li>" E("item", "1") NS "<item>2", "{\"li\":[1]}");
    cut(NS "<li>" NS "<item>2", "{\"li\":[]}");
    cut(NS "<lo>" NS "<item>" E("sku", "a") NS "<qty>2", "{\"lo\":[{\"sku\":\"a\"}]}");
    cut(NS "<lo>" NS "<item>" NS "<sku>a", "{\"lo\":[{\"sku\":\"a\"}]}");
    cut(NS "<o>" NS "<x>1", "{\"o\":{}}");
}

static void repaired(const char *text, const char *content, const char *calls, int repairs)
{
    answer_log log = expect(TEXT_START_OPEN, text, "", content, calls);
    assert_int_equal(log.repairs, repairs);
    assert_int_equal(log.faults, 0);
    assert_false(log.cut);
}

static void test_repairs(void **state)
{
    (void)state;
    repaired(BLOCK(NS "invoke name=\"f\">" E("i", "1") NS "</invoke>\n"), "", "f{\"i\":1}", 1);
    repaired(BLOCK(INVOKE("f", NS "4" NS "</i>" E("s", "x"))), "", "f{\"i\":4,\"s\":\"x\"}", 1);
    repaired(BLOCK(INVOKE("f", E("i", "1") NS "a\nb" NS "</s>")), "", "f{\"i\":1,\"s\":\"a\\nb\"}", 1);
    repaired(BLOCK(INVOKE("f", NS NS "</s>")), "", "f{\"s\":\"\"}", 1);
    repaired(BLOCK(INVOKE("f", E("i", "1") "and so" E("s", "x")) INVOKE("f", E("i", "2"))), "", "f{\"i\":1}f{\"i\":2}",
             1);
    repaired("So:" INVOKE("f", E("i", "1")) NS "</tool_call>", "So:", "f{\"i\":1}", 1);
    /* Quotes, none, and spaces. */
    repaired(BLOCK(NS "<invoke name='a b'>" NS "</invoke>" NS "<invoke  name=c>" NS "</invoke>"), "", "a b{}c{}", 0);
    repaired(BLOCK(NS "<invoke name=\"a>b\">" E("invoke_id", "1") NS "</invoke>"), "", "a>b{\"invoke_id\":\"1\"}", 0);
    /* Further blocks count, white space between them does not, and a block may be empty. */
    repaired(BLOCK(INVOKE("f", "")) "\n" BLOCK(INVOKE("f", E("i", "1"))) " \n", "", "f{}f{\"i\":1}", 0);
    repaired("a " BLOCK(INVOKE("f", "")) " b " BLOCK(INVOKE("g", "")) "c", "a  b c", "f{}g{}", 0);
    repaired("a" BLOCK(""), "a", "", 0);
}

static void damaged(const char *text, const char *content, const char *calls, int faults)
{
    answer_log log = expect(TEXT_START_OPEN, text, "", content, calls);
    assert_int_equal(log.faults, faults);
}

static void test_damaged(void **state)
{
    (void)state;
    static const char good[] = "f{\"i\":7}";
    /* What is no call is content; the call behind it counts, in the same block and in the next. */
    damaged(BLOCK("text" INVOKE("f", E("i", "7"))), "text", good, 1);
    damaged(BLOCK("text") BLOCK(INVOKE("f", E("i", "7"))), "text", good, 1);
    damaged(BLOCK(E("s", "x") INVOKE("f", E("i", "7"))), "<s>x</s>", good, 1);
    damaged(BLOCK(NS "<invoke>" NS "</invoke>" INVOKE("f", E("i", "7"))), "<invoke>", good, 1);
    damaged(BLOCK(NS "<invoke name=\"\">" NS "</invoke>" INVOKE("f", E("i", "7"))), "<invoke name=\"\">", good, 1);
    damaged(BLOCK(NS "<invoke name=\"a" NS "</invoke>" INVOKE("f", E("i", "7"))), "<invoke name=\"a", good, 1);
    damaged(BLOCK(NS "<tool_call>" INVOKE("f", E("i", "7"))), "", good, 1);
    damaged(BLOCK(INVOKE("\xFF", "") INVOKE("f", E("i", "7"))), "<invoke name=\"\xFF\">", good, 1);
    /* A call that is damaged keeps what it has. */
    damaged(BLOCK(INVOKE("g", NS "</s>") INVOKE("f", E("i", "7"))), "</s>", "g{}f{\"i\":7}", 1);
    damaged(BLOCK(INVOKE("f", NS "<i>7" NS "</s>") INVOKE("f", E("i", "7"))), "</s>", "f{\"i\":7}f{\"i\":7}", 1);
    damaged(BLOCK(INVOKE("f", NS "<i>7") INVOKE("f", E("i", "7"))), "", "f{\"i\":7}f{\"i\":7}", 1);
    damaged(BLOCK(NS "<invoke name=\"f\">" E("i", "7") "\n" INVOKE("f", E("i", "7"))), "", "f{\"i\":7}f{\"i\":7}", 1);
    damaged(BLOCK(NS "<invoke name=\"f\">" E("i", "7")) "end", "end", good, 1);
    damaged(BLOCK(INVOKE("f", E("i", NS))), "</i>", "f{\"i\":\"\"}", 1);
    damaged(BLOCK(INVOKE("f", E("", "x")) INVOKE("f", E("i", "7"))), "<>x</>", "f{}f{\"i\":7}", 1);
    damaged(BLOCK(INVOKE("f", E("\xFF", "x"))), "<\xFF>x</\xFF>", "f{}", 1);
    damaged(BLOCK(INVOKE("f", NS "<lo" NS "<i>1")), "<lo<i>1", "f{}", 1);
    damaged(BLOCK(INVOKE("f", NS "<lo>" NS "<item>" E("sku", "a") NS "</lo>" E("i", "1"))), "</lo><i>1</i>",
            "f{\"lo\":[{\"sku\":\"a\"}]}", 1);
    damaged(BLOCK(INVOKE("f", E("i", "7") "and" NS "</tool_call>")) "end", "</invoke>\n</tool_call>end", good, 1);
    /* The end of a string is missing: it runs on, but the end of the whole answer is not part of it. */
    damaged(BLOCK(INVOKE("f", NS "<s>x")) "\n", "", "f{\"s\":\"x\"}", 0);
    damaged(BLOCK(INVOKE("f", NS "<s>x")) "\n.", "", "f{\"s\":\"x" NS "</invoke>\\n" NS "</tool_call>\\n.\"}", 0);

    /* Deep nesting, long names and text that does not end are faults as well, and no silence. */
    buffer text = {0};
    buffer_string(&text, NS "<tool_call>" NS "<invoke name=\"f\">");
    for (int i = 0; i < 300; i++) buffer_string(&text, NS "<o>");
    text_answer_options options = options_of(TEXT_START_OPEN);
    answer_log log = {0};
    answer_run(text.data, &text.length, 1, &options, &log);
    assert_int_equal(log.faults, 1);
    assert_non_null(strstr(log.text.data, "\2<o><o><o>"));
    answer_log_free(&log);
    for (int stray = 0; stray < 2; stray++) {
        buffer_clear(&text);
        buffer_string(&text, NS "<tool_call>" NS "<invoke name=\"f\">");
        buffer_string(&text, stray ? "" : NS "<");
        for (int i = 0; i < 5000; i++) buffer_char(&text, 'x');
        text_answer *a = text_answer_open(&options);
        text_answer_feed(a, text.data, text.length, answer_take, &log);
        assert_int_equal(text_answer_faults(a), 1);
        buffer got = {0};
        answer_pick(&log, "\2", &got);
        assert_int_equal(got.length, stray ? 5000 : 5001);
        buffer_free(&got);
        text_answer_close(a);
        answer_log_free(&log);
    }
    buffer_free(&text);
}

static void test_limit_of_calls(void **state)
{
    (void)state;
    text_answer_options options = options_of(TEXT_START_OPEN);
    static const char text[] = "a" BLOCK(INVOKE("f", E("s", "x")) INVOKE("f", E("s", NS "<i>") E("i", "2"))) "b" BLOCK(
        INVOKE("g", NS "x" NS "y") INVOKE("g", E("ls", E("item", "z"))));
    options.max_calls = 1;
    expect_with(&options, text, "", "abxy", "f{\"s\":\"x\"}");
    options.max_calls = 2;
    expect_with(&options, text, "", "abxy", "f{\"s\":\"x\"}f{\"s\":\"" NS "<i>\",\"i\":2}");
    options.max_calls = 0;
    expect_with(&options, text, "", "abxy",
                "f{\"s\":\"x\"}f{\"s\":\"" NS "<i>\",\"i\":2}g{}g{\"ls\":{\"item\":\"z\"}}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),      cmocka_unit_test(test_values),
        cmocka_unit_test(test_references), cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_cut),        cmocka_unit_test(test_repairs),
        cmocka_unit_test(test_damaged),    cmocka_unit_test(test_limit_of_calls),
    };
    return cmocka_run_group_tests(tests, answer_set_up, answer_tear_down);
}
