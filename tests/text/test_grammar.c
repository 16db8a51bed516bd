/*
 * Grammars: what every kind of description accepts and refuses, that masks say exactly what would be accepted, that reasoning
 * goes before, and that what is too large is refused in time.
 */
#include "text_helpers.h"

#include "text/grammar.h"
#include "text/tool_calls.h"

static text_tokenizer *tok;

static int open_tokenizer(void **state)
{
    (void)state;
    tok = open_data("m3-small.json");
    return 0;
}

static int close_tokenizer(void **state)
{
    (void)state;
    text_tokenizer_close(tok);
    return 0;
}

/* ---- Helpers -------------------------------------------------------------------------------------------------- */

static const text_grammar_options compact = {.additional_properties = true}, spaced = {.any_whitespace = true};

static text_grammar *compile_with(text_grammar_kind kind, const char *source, const text_grammar_options *o)
{
    text_grammar *g = NULL;
    hy_error err = {0};
    if (text_grammar_compile(tok, kind, source, strlen(source), o, &g, &err) != HY_OK)
        fail_msg("%s: %s", source, err.message);
    return g;
}

static int32_t byte_token(char c)
{
    char text[2] = {c, 0};
    return text_tokenizer_find(tok, text);
}

/* 0: not even a beginning, 1: a beginning, 2: a whole text. Byte by byte. */
static int judge(const text_grammar *g, const char *text)
{
    text_matcher *m = text_matcher_open(g, false, TEXT_START_CLOSED, NULL, 0);
    int result = 1;
    for (const char *c = text; *c && result; c++) result = text_matcher_accept(m, byte_token(*c));
    if (result && text_matcher_complete(m)) result = 2;
    text_matcher_close(m);
    return result;
}

/* Texts that match, NULL, texts that do not, NULL. */
typedef struct example {
    text_grammar_kind kind;
    const char *source;
    const char *texts[24];
} example;

static void check(const example *e, const text_grammar_options *o)
{
    text_grammar *g = compile_with(e->kind, e->source, o);
    int i = 0;
    for (; e->texts[i]; i++)
        if (judge(g, e->texts[i]) != 2) fail_msg("%s does not accept %s", e->source, e->texts[i]);
    for (i++; e->texts[i]; i++)
        if (judge(g, e->texts[i]) == 2) fail_msg("%s accepts %s", e->source, e->texts[i]);
    text_grammar_release(g);
}

static void check_all(const example *list, size_t count, const text_grammar_options *o)
{
    for (size_t i = 0; i < count; i++) check(&list[i], o);
}

static void refused(text_grammar_kind kind, const char *source, const char *message)
{
    text_grammar *g = NULL;
    hy_error err = {0};
    hy_status status = text_grammar_compile(tok, kind, source, strlen(source), &compact, &g, &err);
    if (status == HY_OK) fail_msg("%.200s is not refused", source);
    assert_true(status == HY_BAD_INPUT || status == HY_NO_FIT);
    assert_one_line(&err);
    if (!strstr(err.message, message)) fail_msg("%.200s: \"%s\" does not say \"%s\"", source, err.message, message);
    assert_null(g);
}

#define S TEXT_GRAMMAR_JSON_SCHEMA
#define R TEXT_GRAMMAR_REGEX
#define E TEXT_GRAMMAR_EBNF

/* ---- JSON Schema ---------------------------------------------------------------------------------------------- */

static void test_schema_values(void **state)
{
    (void)state;
    static const example list[] = {
        {S, "{\"type\": \"string\", \"minLength\": 1, \"maxLength\": 1e300}", {"\"a\"", "\"ab\"", NULL, "\"\""}},
        {S, "{\"type\": \"string\", \"minLength\": 2.0, \"maxLength\": 9223372036854775807}", {"\"ab\"", NULL, "\"a\""}},
        {S, "{\"type\": \"string\"}", {"\"\"", "\"a\\n\\u00e9\xC3\xA9\"", "\"\\ud83d\\ude00\"", NULL, "\"\n\"", "\"\\x\"", "\"", "\"\\ud83d\"", "\"\\udc00\"", "\"\\u0000\"", "1"}},
        {S, "{\"type\": \"integer\"}", {"0", "-1", "120", NULL, "01", "1.0", "+1", "-", "1e3"}},
        {S, "{\"type\": \"number\"}", {"0", "-1.5", "1e9", "2E-3", "10.250", NULL, ".5", "1.", "00", "1e", "NaN"}},
        {S, "{\"type\": \"boolean\"}", {"true", "false", NULL, "True", "null"}},
        {S, "{\"type\": \"null\"}", {"null", NULL, "nul"}},
        {S, "{\"type\": [\"integer\", \"null\"]}", {"5", "null", NULL, "\"5\""}},
        {S, "{\"type\": \"integer\", \"nullable\": true}", {"5", "null", NULL, "true"}},
        {S, "{\"enum\": [\"a\", 1, null, true, [1, \"x\"], {\"k\": 2}]}", {"\"a\"", "1", "null", "true", "[1, \"x\"]", "{\"k\": 2}", NULL, "\"b\"", "false", "[1,\"x\"]"}},
        {S, "{\"const\": \"q\\\"\\n\xC3\xA9\"}", {"\"q\\\"\\n\xC3\xA9\"", NULL, "\"q\""}},
        {S, "{\"type\": \"string\", \"enum\": [\"a\", 1]}", {"\"a\"", NULL, "1"}},
        {S, "{\"type\": \"integer\", \"enum\": [1, 5, 9], \"minimum\": 2}", {"5", "9", NULL, "1"}},
        {S, "{}", {"1", "\"x\"", "[]", "{}", "[1, {\"a\": null}]", NULL, "x", "[1 2]", "{1: 2}"}},
        {S, "true", {"1", NULL, ""}},
        {S, "{\"description\": \"anything\", \"x-more\": 1}", {"[[]]", NULL, "]"}},
    };
    check_all(list, sizeof list / sizeof *list, &compact);
}

static void test_schema_numbers(void **state)
{
    (void)state;
    static const example list[] = {
        {S, "{\"type\": \"integer\", \"minimum\": 7, \"maximum\": 123}", {"7", "10", "99", "100", "123", NULL, "6", "124", "0", "-7", "007"}},
        {S, "{\"type\": \"integer\", \"minimum\": -15, \"maximum\": 3}", {"-15", "-9", "-1", "0", "3", NULL, "-16", "4", "-0"}},
        {S, "{\"type\": \"integer\", \"exclusiveMinimum\": 0}", {"1", "999999999999999999", NULL, "0", "-1"}},
        {S, "{\"type\": \"integer\", \"maximum\": -10}", {"-10", "-99", "-100", NULL, "-9", "0", "10"}},
        {S, "{\"type\": \"integer\", \"minimum\": 1.5, \"maximum\": 3.5}", {"2", "3", NULL, "1", "4"}},
        {S, "{\"type\": \"integer\", \"minimum\": 0, \"exclusiveMinimum\": true}", {"1", NULL, "0"}},
        /* Draft 4's switches beside other bounds, of which they change only their own. */
        {S, "{\"type\": \"number\", \"maximum\": 3, \"exclusiveMaximum\": true, \"minimum\": 1, \"exclusiveMinimum\": false}", {"1", "2.9", NULL, "3", "3.0", "0.9"}},
        {S, "{\"type\": \"integer\", \"allOf\": [{\"minimum\": 5, \"exclusiveMinimum\": true}, {\"minimum\": 7}]}", {"7", NULL, "5", "6"}},
        {S, "{\"type\": \"integer\", \"allOf\": [{\"minimum\": 7, \"exclusiveMinimum\": true}, {\"minimum\": 5}]}", {"8", NULL, "7", "6"}},
        {S, "{\"type\": \"integer\", \"allOf\": [{\"exclusiveMinimum\": -5}, {\"exclusiveMinimum\": false}]}", {"-4", "0", NULL, "-5"}},
        {S, "{\"type\": \"integer\", \"allOf\": [{\"maximum\": 9, \"exclusiveMaximum\": true}, {\"exclusiveMaximum\": 7}, {\"maximum\": 8}]}", {"6", "-1", NULL, "7", "8"}},
        {S, "{\"allOf\": [{\"enum\": [1, 2, 3]}, {\"minimum\": 1, \"exclusiveMinimum\": true, \"maximum\": 3, \"exclusiveMaximum\": true}]}", {"2", NULL, "1", "3"}},
        {S, "{\"enum\": [1, 2], \"minimum\": 1, \"exclusiveMinimum\": true}", {"2", NULL, "1"}},
        {S, "{\"type\": \"number\", \"minimum\": 1.25, \"maximum\": 10}", {"1.25", "1.3", "2", "9.99", "10", "10.0", "1.250", NULL, "1.2", "1", "10.01", "0.9", "11", "1.249999"}},
        {S, "{\"type\": \"number\", \"exclusiveMinimum\": 0, \"exclusiveMaximum\": 1}", {"0.5", "0.01", "0.999", NULL, "0", "0.0", "1", "1.0", "-0.5"}},
        {S, "{\"type\": \"number\", \"minimum\": -2.5, \"maximum\": -0.5}", {"-2.5", "-1", "-0.5", NULL, "-2.51", "-0.4", "1"}},
        {S, "{\"type\": \"number\", \"maximum\": 0}", {"0", "-0", "-3.5", NULL, "0.1", "1"}},
        {S, "{\"type\": \"number\", \"minimum\": 100}", {"100", "100.5", "2000", NULL, "99.9", "-100"}},
        {S, "{\"type\": \"integer\", \"multipleOf\": 7}", {"0", "7", "-14", "700", NULL, "8", "1"}},
        {S, "{\"type\": \"number\", \"multipleOf\": 0.25, \"minimum\": 0, \"maximum\": 3}", {"0", "0.25", "1.5", "3", "2.50", NULL, "0.3", "1.255", "3.25"}},
        {S, "{\"type\": \"integer\", \"multipleOf\": 1.5, \"minimum\": 1}", {"3", "6", NULL, "4", "1"}},
        {S, "{\"minimum\": 3}", {"3", "4.5", NULL, "2"}},
    };
    check_all(list, sizeof list / sizeof *list, &compact);
}

static void test_schema_strings(void **state)
{
    (void)state;
    static const example list[] = {
        {S, "{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 3}", {"\"ab\"", "\"abc\"", "\"\xC3\xA9\xC3\xA9\"", "\"\\n\\u0041\"", "\"\\ud83d\\ude00x\"", NULL, "\"a\"", "\"abcd\"", "\"\""}},
        {S, "{\"type\": \"string\", \"maxLength\": 0}", {"\"\"", NULL, "\"a\""}},
        {S, "{\"type\": \"string\", \"minLength\": 1}", {"\"a\"", "\"abcdefgh\"", NULL, "\"\""}},
        {S, "{\"type\": \"string\", \"pattern\": \"^[a-c]{2}$\"}", {"\"ab\"", NULL, "\"a\"", "\"abc\"", "\"xab\""}},
        {S, "{\"type\": \"string\", \"pattern\": \"b+\"}", {"\"b\"", "\"abbc\"", "\"\\nb\"", NULL, "\"ac\"", "\"\""}},
        {S, "{\"type\": \"string\", \"pattern\": \"^a|b$\"}", {"\"ax\"", "\"xb\"", NULL, "\"xa\"", "\"bx\""}},
        {S, "{\"type\": \"string\", \"pattern\": \"^\\\"$\"}", {"\"\\\"\"", NULL, "\"a\""}},
        {S, "{\"type\": \"string\", \"pattern\": \"^[a-z]+$\", \"minLength\": 2, \"maxLength\": 4}", {"\"ab\"", "\"abcd\"", NULL, "\"a\"", "\"abcde\"", "\"a1\""}},
        {S, "{\"type\": \"string\", \"format\": \"date\"}", {"\"2024-12-31\"", "\"1999-02-28\"", NULL, "\"2024-13-01\"", "\"2024-04-31\"", "\"24-1-1\""}},
        {S, "{\"type\": \"string\", \"format\": \"date-time\"}", {"\"2024-12-31T23:59:59Z\"", "\"2024-01-01T00:00:00.5+02:00\"", NULL, "\"2024-12-31\"", "\"2024-12-31T24:00:00Z\""}},
        {S, "{\"type\": \"string\", \"format\": \"time\"}", {"\"12:30:00Z\"", NULL, "\"25:00:00Z\""}},
        {S, "{\"type\": \"string\", \"format\": \"uuid\"}", {"\"123e4567-e89b-12d3-a456-426614174000\"", NULL, "\"123e4567\""}},
        {S, "{\"type\": \"string\", \"format\": \"email\"}", {"\"a.b@c.de\"", NULL, "\"a@\"", "\"@b.c\""}},
        {S, "{\"type\": \"string\", \"format\": \"ipv4\"}", {"\"127.0.0.1\"", "\"255.255.255.255\"", NULL, "\"256.1.1.1\"", "\"1.2.3\""}},
        {S, "{\"type\": \"string\", \"format\": \"ipv6\"}", {"\"::1\"", "\"fe80::1\"", "\"1:2:3:4:5:6:7:8\"", NULL, "\"1:2\"", "\":::\""}},
        {S, "{\"type\": \"string\", \"format\": \"hostname\"}", {"\"example.org\"", NULL, "\"-a\"", "\"a..b\""}},
        {S, "{\"type\": \"string\", \"format\": \"uri\"}", {"\"https://a.b/c?d=e#f\"", NULL, "\"a.b\"", "\"http://\""}},
        {S, "{\"type\": \"string\", \"format\": \"duration\"}", {"\"P1Y2M\"", "\"PT5M\"", NULL, "\"P\"", "\"1Y\""}},
        {S, "{\"type\": \"string\", \"format\": \"my-own\"}", {"\"x\"", NULL, "x"}},
    };
    check_all(list, sizeof list / sizeof *list, &compact);
}

static void test_schema_lists(void **state)
{
    (void)state;
    static const example list[] = {
        {S, "{\"type\": \"array\", \"items\": {\"type\": \"integer\"}}", {"[]", "[1]", "[1, 2, 3]", NULL, "[1,2]", "[1, ]", "[\"a\"]"}},
        {S, "{\"type\": \"array\", \"items\": {\"type\": \"null\"}, \"minItems\": 2, \"maxItems\": 3}", {"[null, null]", "[null, null, null]", NULL, "[null]", "[]", "[null, null, null, null]"}},
        {S, "{\"type\": \"array\", \"items\": {\"type\": \"null\"}, \"minItems\": 3}", {"[null, null, null]", "[null, null, null, null]", NULL, "[null, null]"}},
        {S, "{\"type\": \"array\", \"maxItems\": 0}", {"[]", NULL, "[1]"}},
        {S, "{\"type\": \"array\"}", {"[1, \"a\", []]", NULL, "{}"}},
        {S, "{\"prefixItems\": [{\"type\": \"null\"}, {\"type\": \"boolean\"}], \"items\": false}", {"[]", "[null]", "[null, true]", NULL, "[true]", "[null, true, 1]"}},
        {S, "{\"prefixItems\": [{\"type\": \"null\"}], \"items\": {\"type\": \"integer\"}, \"minItems\": 2}", {"[null, 1]", "[null, 1, 2]", NULL, "[null]", "[1]"}},
        {S, "{\"items\": [{\"type\": \"null\"}], \"minItems\": 1}", {"[null]", "[null, 5]", NULL, "[5]"}},
    };
    check_all(list, sizeof list / sizeof *list, &compact);
}

#define AB "\"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": \"null\"}}"

static void test_schema_objects(void **state)
{
    (void)state;
    static const example list[] = {
        {S, "{" AB ", \"required\": [\"a\"], \"additionalProperties\": false}", {"{\"a\": 1}", "{\"a\": 1, \"b\": null}", NULL, "{}", "{\"b\": null}", "{\"b\": null, \"a\": 1}", "{\"a\": 1, \"c\": 1}", "{\"a\": 1,}"}},
        {S, "{" AB ", \"additionalProperties\": false}", {"{}", "{\"a\": 1}", "{\"b\": null}", "{\"a\": 1, \"b\": null}", NULL, "{, \"b\": null}", "{\"a\": null}"}},
        {S, "{" AB ", \"additionalProperties\": {\"type\": \"boolean\"}}", {"{\"c\": true}", "{\"a\": 1, \"aa\": true, \"x y\": false}", NULL, "{\"c\": 1}", "{\"b\": true}", "{\"c\": true, \"a\": 1}", "{\"\\u0061\": true}"}},
        {S, "{" AB "}", {"{\"a\": 1, \"z\": [1]}", "{}", NULL, "{\"b\": 2}"}},
        {S, "{\"type\": \"object\"}", {"{}", "{\"x\": {\"y\": 1}}", NULL, "[]"}},
        {S, "{\"type\": \"object\", \"required\": [\"k\"], \"additionalProperties\": {\"type\": \"null\"}}", {"{\"k\": null}", "{\"k\": null, \"l\": null}", NULL, "{}", "{\"k\": 1}"}},
        {S, "{" AB ", \"additionalProperties\": false, \"minProperties\": 1}", {"{\"a\": 1}", "{\"b\": null}", NULL, "{}"}},
        {S, "{" AB ", \"additionalProperties\": {\"type\": \"null\"}, \"maxProperties\": 2}", {"{}", "{\"a\": 1, \"x\": null}", "{\"x\": null, \"y\": null}", NULL, "{\"a\": 1, \"b\": null, \"x\": null}", "{\"x\": null, \"y\": null, \"z\": null}"}},
        {S, "{\"type\": \"object\", \"additionalProperties\": {\"type\": \"null\"}, \"minProperties\": 1}", {"{\"x\": null}", NULL, "{}"}},
        {S, "{\"patternProperties\": {\"^n_\": {\"type\": \"null\"}, \"^[0-9]$\": {\"type\": \"boolean\"}}, \"additionalProperties\": false}", {"{}", "{\"n_a\": null}", "{\"5\": true, \"n_\": null}", NULL, "{\"5\": null}", "{\"x\": null}", "{\"n_\": true}"}},
        {S, "{\"type\": \"object\", \"allOf\": [{\"patternProperties\": {\"^n\": {\"type\": \"null\"}}}, {\"properties\": {\"n1\": {}}, \"additionalProperties\": false}]}", {"{}", "{\"n1\": null}", NULL, "{\"n\": null}", "{\"n1\": 1}", "{\"m\": 1}"}},
        {S, "{\"type\": \"object\", \"allOf\": [{\"additionalProperties\": {\"type\": [\"null\", \"boolean\"]}}, {\"patternProperties\": {\"^n\": {\"enum\": [null, 1]}}}]}", {"{\"n\": null, \"m\": true}", NULL, "{\"n\": 1}", "{\"n\": true}", "{\"m\": 1}"}},
        {S, "{\"patternProperties\": {\"^n\": {\"type\": \"null\"}}, \"additionalProperties\": {\"type\": \"boolean\"}}", {"{\"n\": null, \"m\": true}", NULL, "{\"n\": true}", "{\"m\": null}"}},
        {S, "{\"type\": \"object\", \"propertyNames\": {\"pattern\": \"^[a-b]+$\", \"maxLength\": 2}, \"additionalProperties\": {\"type\": \"null\"}}", {"{\"ab\": null}", NULL, "{\"c\": null}", "{\"aaa\": null}"}},
        {S, "{\"properties\": {\"a\": false, \"b\": true}, \"additionalProperties\": false}", {"{}", "{\"b\": 1}", NULL, "{\"a\": 1}"}},
        {S, "{" AB ", \"unevaluatedProperties\": false}", {"{\"a\": 1}", NULL, "{\"c\": 1}"}},
    };
    check_all(list, sizeof list / sizeof *list, &compact);
    static const example closed[] = {
        {S, "{" AB "}", {"{\"a\":1 }", "{ }", "{\n  \"a\": 1,\n  \"b\": null\n}", NULL, "{\"a\": 1, \"z\": 1}", "{ \n\n\n\n}", "{\"a\" : 1}"}},
        {S, "{\"type\": \"object\"}", {"{\"x\":1}", NULL, "x"}},
        {S, "{\"type\": \"array\", \"items\": {\"type\": \"null\"}}", {"[null,null]", "[ null, null ]", "[\n\tnull\n]", NULL, "[null null]", "[            null]"}},
    };
    check_all(closed, sizeof closed / sizeof *closed, &spaced);
    text_grammar_options dots = {.whitespace_pattern = "\\.?"};
    static const example own = {S, "{" AB "}", {"{.\"a\":.1.}", "{\"a\":1}", NULL, "{ \"a\": 1}"}};
    check(&own, &dots);
}

static void test_schema_compositions(void **state)
{
    (void)state;
    static const example list[] = {
        {S, "{\"anyOf\": [{\"type\": \"null\"}, {\"type\": \"integer\"}]}", {"null", "3", NULL, "true"}},
        {S, "{\"type\": \"string\", \"anyOf\": [{\"maxLength\": 1}, {\"pattern\": \"^xy\"}]}", {"\"a\"", "\"xyz\"", NULL, "\"ab\""}},
        {S, "{\"oneOf\": [{\"type\": \"string\"}, {\"type\": \"integer\"}]}", {"1", "\"1\"", NULL, "1.5"}},
        {S, "{\"oneOf\": [{\"properties\": {\"t\": {\"const\": 1}}, \"required\": [\"t\"], \"type\": \"object\"}, {\"type\": \"object\", \"properties\": {\"t\": {\"const\": 2}}, \"required\": [\"t\"]}]}", {"{\"t\": 1}", "{\"t\": 2}", NULL, "{\"t\": 3}"}},
        {S, "{\"allOf\": [{\"type\": \"integer\"}, {\"minimum\": 3}, {\"maximum\": 5}]}", {"3", "5", NULL, "2", "6", "3.5"}},
        {S, "{\"allOf\": [{" AB ", \"required\": [\"a\"]}, {\"properties\": {\"a\": {\"maximum\": 2}}, \"required\": [\"b\"]}], \"additionalProperties\": true, \"maxProperties\": 2, \"type\": \"object\"}", {"{\"a\": 2, \"b\": null}", NULL, "{\"a\": 3, \"b\": null}", "{\"a\": 1}"}},
        {S, "{\"$ref\": \"#/$defs/a\", \"$defs\": {\"a\": {\"type\": \"integer\"}}, \"maximum\": 3}", {"3", NULL, "4"}},
        {S, "{\"$defs\": {\"t\": {\"type\": \"object\", \"properties\": {\"c\": {\"type\": \"array\", \"items\": {\"$ref\": \"#/$defs/t\"}}}, \"required\": [\"c\"], \"additionalProperties\": false}}, \"$ref\": \"#/$defs/t\"}", {"{\"c\": []}", "{\"c\": [{\"c\": []}, {\"c\": [{\"c\": []}]}]}", NULL, "{\"c\": [1]}", "{}"}},
        {S, "{\"definitions\": {\"a/b c\": {\"type\": \"null\"}}, \"$ref\": \"#/definitions/a~1b%20c\"}", {"null", NULL, "1"}},
        {S, "{\"type\": \"array\", \"items\": {\"$ref\": \"#\"}}", {"[]", "[[], [[]]]", NULL, "[1]"}},
        {S, "{" AB ", \"additionalProperties\": false, \"anyOf\": [{\"required\": [\"a\"]}, {\"required\": [\"b\"]}]}", {"{\"a\": 1}", "{\"b\": null}", "{\"a\": 1, \"b\": null}", NULL, "{}"}},
    };
    check_all(list, sizeof list / sizeof *list, &compact);
}

static void test_schema_refusals(void **state)
{
    (void)state;
    static const char *const keywords[] = {"not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies",
                                           "contains", "minContains", "maxContains", "unevaluatedItems", "$dynamicRef"};
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++) {
        char source[200], want[80];
        snprintf(source, sizeof source, "{\"type\": \"object\", \"properties\": {\"a\": {\"%s\": {}}}}", keywords[i]);
        snprintf(want, sizeof want, "$.properties.a: `%s` is not supported", keywords[i]);
        refused(S, source, want);
    }
    refused(S, "{\"type\": \"array\", \"uniqueItems\": true}", "`uniqueItems`");
    refused(S, "{\"type\": \"string\", \"format\": \"iri\"}", "`format` \"iri\"");
    refused(S, "{\"type\": \"strin\"}", "\"strin\" is no type");
    refused(S, "{\"type\": 5}", "is no type");
    refused(S, "{\"$ref\": \"http://example.org/x\"}", "`$ref`");
    refused(S, "{\"$ref\": \"#/nowhere\"}", "leads nowhere");
    refused(S, "{\"$ref\": \"#\"}", "refers to itself");
    refused(S, "{\"anyOf\": [{\"$ref\": \"#\"}]}", "no text can match");
    refused(S, "{\"anyOf\": [{\"$ref\": \"#\"}, {\"type\": \"null\"}]}", "refers to itself");
    refused(S, "{\"oneOf\": [{\"type\": \"integer\"}, {\"type\": \"number\"}]}", "`oneOf`");
    refused(S, "{\"properties\": {\"a\": {\"type\": \"string\", \"pattern\": \"(?=x)\"}}}", "$.properties.a: a pattern");
    refused(S, "{\"type\": \"string\", \"minLength\": -1}", "`minLength`");
    refused(S, "{\"type\": \"string\", \"minLength\": 3, \"maxLength\": 2}", "`minLength`");
    refused(S, "{\"type\": \"integer\", \"minimum\": 3, \"maximum\": 2}", "`minimum`");
    refused(S, "{\"type\": \"integer\", \"minimum\": \"3\"}", "`minimum`");
    refused(S, "{\"type\": \"number\", \"multipleOf\": 0}", "`multipleOf`");
    refused(S, "{\"type\": \"number\", \"multipleOf\": 123457}", "`multipleOf`");
    refused(S, "{\"type\": \"object\", \"required\": [\"a\"], \"additionalProperties\": false}", "`required`");
    refused(S, "{\"type\": \"object\", \"additionalProperties\": {}, \"minProperties\": 2}", "`minProperties`");
    refused(S, "{\"patternProperties\": {\"^a\": {}, \"b$\": {}}}", "`patternProperties`");
    refused(S, "{\"allOf\": [{\"patternProperties\": {\"^a\": {}}}, {\"patternProperties\": {\"^b\": {}}, \"additionalProperties\": false}]}",
            "`patternProperties`");
    refused(S, "{\"enum\": []}", "no text can match");
    refused(S, "false", "no text can match");
    refused(S, "{\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#\"}}, \"required\": [\"a\"]}", "no text can match");
    refused(S, "{\"type\": \"object\", \"properties\": 5}", "`properties`");
    refused(S, "{\"properties\": {\"a\": 5}}", "$.properties.a: a schema is");
    refused(S, "[1]", "a schema is");
    refused(S, "{\"type\": ", "not valid JSON");
    refused(S, "", "not valid JSON");
}

/* ---- Patterns ------------------------------------------------------------------------------------------------- */

static void test_regex(void **state)
{
    (void)state;
    static const example list[] = {
        {R, "a|bc*", {"a", "b", "bccc", NULL, "", "ab", "c"}},
        {R, "(ab){2,3}", {"abab", "ababab", NULL, "ab", "abababab"}},
        {R, "a{2}b{1,}c{0,1}", {"aab", "aabbbc", NULL, "ab", "aabcc"}},
        {R, "a*?b+?", {"b", "aab", "abb", NULL, "a"}},
        {R, "[^a-c\\n]", {"d", "\xC3\xA9", "\xF0\x9F\x98\x80", NULL, "a", "\n", "dd", "\xC3"}},
        {R, "\\d\\w\\s", {"1a ", "0_\t", NULL, "a1 ", "1aa"}},
        {R, "\\D\\W\\S", {"a-b", NULL, "1-b", "aab", "a- "}},
        {R, "^a$|^b", {"a", "b", NULL, "ab", ""}},
        {R, "a^b|c", {"c", NULL, "ab", "a"}},
        {R, "a$b|c", {"c", NULL, "ab"}},
        {R, "(?:x|(?P<n>y)|(?<m>z))+", {"xyz", NULL, "w"}},
        {R, "(?i)aB[c]", {"abc", "ABC", NULL, "ab"}},
        {R, "(?i:a)b", {"ab", "Ab", NULL, "aB"}},
        {R, "(?s).", {"\n", NULL, ""}},
        {R, ".", {"x", "\xE2\x82\xAC", NULL, "\n", "\xE2"}},
        {R, "\\x41\\u00e9\\u{1F600}\\.\\/", {"A\xC3\xA9\xF0\x9F\x98\x80./", NULL, "A"}},
        {R, "\\p{Lu}\\p{L}*\\P{L}", {"Ab1", "\xC3\x84z-", NULL, "ab1", "Abc"}},
        {R, "[\\]\\-x-]{2}", {"]-", "x-", NULL, "]", "yy"}},
        {R, "[]a]", {"]", "a", NULL, "b"}},
        {R, "a{,x}", {"a{,x}", NULL, "a"}},
        {R, ".{50,60}", {"01234567890123456789012345678901234567890123456789", NULL, "0123456789"}},
        {R, "([a-z]{1,30}\\.){20,40}", {"a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s.tt.", NULL, "a.b.", "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s..."}},
        {R, "(a?){30}b", {"b", "aaab", NULL, "aaa"}},
        {R, "", {"", NULL, "a"}},
    };
    check_all(list, sizeof list / sizeof *list, &compact);
    static const char *const bad[][2] = {
        {"(a)\\1", "back-references"}, {"(?P=n)", "back-references"}, {"\\k<n>", "back-references"}, {"(?=a)", "look-around"},
        {"(?!a)", "look-around"},      {"(?<=a)b", "look-around"},    {"(?<!a)b", "look-around"},    {"\\ba", "word boundaries"},
        {"(?>a)", "atomic"},           {"a++", "possessive"},         {"a**", "repeated"},           {"*a", "nothing before"},
        {"(a", "no )"},                {"a)", ")"},                   {"[a", "no ]"},                {"a{3,2}", "at least 3"},
        {"[z-a]", "backwards"},        {"\\", "backslash"},           {"\\p{Foo}", "\\p{Foo}"},      {"a(?i)", "flags"},
        {"\\q", "\\q"},                {"a{9999999}", "repetition"},  {"\xFF", "UTF-8"},             {"a\\xZ", "hexadecimal"},
        {"a$b", "no text can match"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) refused(R, bad[i][0], bad[i][1]);
}

/* ---- Grammars ------------------------------------------------------------------------------------------------- */

static void test_ebnf(void **state)
{
    (void)state;
    static const example list[] = {
        {E, "root ::= \"a\" b? [0-9]+ # digits\nb ::= \"x\" | \"y\" \"z\"", {"a1", "ax23", "ayz0", NULL, "a", "ab1"}},
        {E, "root ::= ( \"a\" | root2 ){2,3}\nroot2 ::= \"b\"*", {"ab", "aaa", "bbbb", "", NULL, "aaaa", "c"}},
        {E, "root ::= expr\nexpr ::= term (\"+\" term)*\nterm ::= [a-z] | \"(\" expr \")\"", {"a", "a+b", "((a)+b)+c", NULL, "a+", "(a", ")"}},
        {E, "root ::= \"\\\"\\\\\\n\\x41\\u00e9\" [^\"\\\\]", {"\"\\\nA\xC3\xA9z", NULL, "\"\\\nA\xC3\xA9\""}},
        {E, "root ::=\n  \"a\"\n  | \"b\"\n", {"a", "b", NULL, "ab"}},
        {E, "root ::= .{2}", {"ab", "\n\xC3\xA9", NULL, "a"}},
        {E, "start: \"SELECT \" NAME (\",\" NAME)* [\" DESC\"]\nNAME: /[a-z]+/\n", {"SELECT a", "SELECT a,bc DESC", NULL, "SELECT", "select a"}},
        {E, "?start: a | b -> other\na: \"x\"i\n | \"q\"\n!b: \"0\"..\"3\" ~ 2..3\n", {"x", "X", "q", "00", "123", NULL, "4", "0", "0000"}},
        {E, "// a comment\nstart: WORD+\nWORD.2: /h[aeiou]/i | \"-\"", {"ha", "HO-he", NULL, "h", ""}},
    };
    check_all(list, sizeof list / sizeof *list, &compact);
    static const char *const bad[][2] = {
        {"root ::= a", "rule a is used and not defined"}, {"root ::= root \"a\" | \"b\"", "rule root refers to itself"},
        {"root ::= a root | \"b\"\na ::= \"x\"?", "rule root refers to itself"}, {"a ::= \"b\"", "no rule named root"},
        {"root ::= \"a", "closing"}, {"root ::= (\"a\"", "closing"}, {"root ::= \"a\" )", "too many"}, {"root ::= [a", "closing"},
        {"root ::= \"a\"\nroot ::= \"b\"", "defined twice"}, {"start: \"a\"\n%ignore WS", "%ignore"}, {"%import common.WS\nstart: WS", "%import"},
        {"root ::= \"a\" root", "no text can match"}, {"start: a{b}", "templates"}, {"root ::= \"a\"{3,1}", "at least 3"},
        {"", "no rule named"}, {"root ::= \"\\q\"", "\\q"}, {"root ::= [z-a]", "backwards"}, {"hello", "colon"},
        {"start: \"\\", "not supported"}, {"root ::= \"a\"\n\nb ::= .\n# c\nc ::= [z-a]", "line 5: "}, {"root ::= \"a\"{1000001}", "at most 1000000"},
        {"root ::= \"a\"{99999999999999999999}", "at most 1000000"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) refused(E, bad[i][0], bad[i][1]);
}

static void test_choice_and_object(void **state)
{
    (void)state;
    static const example list[] = {
        {TEXT_GRAMMAR_CHOICE, "[\"yes\", \"yes!\", \"no\"]", {"yes", "yes!", "no", NULL, "ye", "maybe", ""}},
        {TEXT_GRAMMAR_JSON_OBJECT, "", {"{}", "{\"a\": [1, {\"b\": \"\\\"\"}]}", NULL, "[]", "1", "{\"a\"}"}},
    };
    check_all(list, 2, &compact);
    refused(TEXT_GRAMMAR_CHOICE, "[]", "at least one");
    refused(TEXT_GRAMMAR_CHOICE, "[1]", "no text");
    refused(TEXT_GRAMMAR_CHOICE, "{}", "at least one");
}

static void test_tags(void **state)
{
    (void)state;
    static const example list[] = {
        {TEXT_GRAMMAR_TAGS, "{\"type\": \"structural_tag\", \"structures\": [{\"begin\": \"<f=a>\", \"schema\": {\"type\": \"integer\"}, \"end\": \"</f>\"}, {\"begin\": \"<f=b>\", \"schema\": {\"type\": \"null\"}, \"end\": \"</f>\"}], \"triggers\": [\"<f=\"]}",
         {"", "text < f=", "x<f=a>12</f> and <f=b>null</f>", "<<f=a>1</f>", NULL, "<f=", "<f=c>", "<f=a>x</f>", "<f=a>1"}},
        {TEXT_GRAMMAR_TAGS, "{\"format\": {\"type\": \"triggered_tags\", \"triggers\": [\"[\"], \"at_least_one\": true, \"stop_after_first\": true, \"tags\": [{\"begin\": \"[x]\", \"content\": {\"type\": \"any_text\"}, \"end\": \"[/x]\"}]}}",
         {"[x]hello[/x]", "so [x][/x]", NULL, "so", "[x]", "[x]a[/x]b"}},
        {TEXT_GRAMMAR_TAGS, "{\"format\": {\"type\": \"sequence\", \"elements\": [{\"type\": \"const_string\", \"value\": \"a\"}, {\"type\": \"or\", \"elements\": [{\"type\": \"regex\", \"pattern\": \"[0-9]+\"}, {\"type\": \"json_schema\", \"json_schema\": {\"type\": \"null\"}}]}, {\"type\": \"grammar\", \"grammar\": \"root ::= \\\"!\\\"\"}]}}",
         {"a12!", "anull!", NULL, "a!", "a12"}},
    };
    check_all(list, sizeof list / sizeof *list, &compact);
    refused(TEXT_GRAMMAR_TAGS, "{}", "neither");
    refused(TEXT_GRAMMAR_TAGS, "{\"format\": {\"type\": \"qwen\"}}", "\"qwen\"");
    refused(TEXT_GRAMMAR_TAGS, "{\"structures\": [], \"triggers\": [\"<\"]}", "no tag begins");
    refused(TEXT_GRAMMAR_TAGS, "{\"structures\": [], \"triggers\": []}", "triggers");
}

/* ---- Tools ---------------------------------------------------------------------------------------------------- */

#define NS TEXT_TOOL_NAMESPACE
#define CALLS(x) NS "<tool_call>\n" x NS "</tool_call>"
#define CALL(name, x) NS "<invoke name=\"" name "\">" x NS "</invoke>\n"
#define ARG(k, v) NS "<" k ">" v NS "</" k ">"

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {"
    "\"s\": {\"type\": \"string\"}, \"n\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 20}, "
    "\"e\": {\"enum\": [\"x\", \"y\"]}, \"l\": {\"type\": \"array\", \"items\": {\"type\": \"number\"}, \"minItems\": 1, \"maxItems\": 3}, "
    "\"o\": {\"type\": \"object\", \"properties\": {\"k\": {\"type\": \"boolean\"}}, \"required\": [\"k\"]}, "
    "\"m\": {\"type\": \"object\", \"additionalProperties\": {\"type\": \"integer\"}}, "
    "\"u\": {\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"null\"}]}, \"p\": {\"type\": \"string\", \"pattern\": \"^[a-c]+$\"}}, "
    "\"required\": [\"s\"]}}}, {\"type\": \"function\", \"function\": {\"name\": \"g\"}}]";

static void test_tools(void **state)
{
    (void)state;
    char source[2000];
    example e = {TEXT_GRAMMAR_TOOLS, source,
        {CALLS(CALL("f", ARG("s", "any text, ]<] even\n"))), CALLS(CALL("f", ARG("s", ""))),
         CALLS(CALL("f", ARG("s", "]<") ARG("n", "20"))), CALLS(CALL("g", "") CALL("f", ARG("s", "a"))),
         CALLS(CALL("f", ARG("s", "a") ARG("e", "y") ARG("l", ARG("item", "1.5") ARG("item", "2")) ARG("o", ARG("k", "true")) ARG("m", "{\"q\": 1}") ARG("u", "null") ARG("p", "abc"))),
         NULL, "text", CALLS(""), CALLS(CALL("h", "")), CALLS(CALL("f", "")), CALLS(CALL("f", ARG("n", "5"))), CALLS(CALL("f", ARG("s", "a") ARG("n", "21"))),
         CALLS(CALL("f", ARG("s", "a") ARG("e", "z"))), CALLS(CALL("f", ARG("s", "a") ARG("l", ""))), CALLS(CALL("f", ARG("s", "a") ARG("o", ""))),
         CALLS(CALL("f", ARG("s", "a") ARG("p", "abd"))), CALLS(CALL("f", ARG("s", "\xC3"))), CALLS(CALL("f", ARG("s", "a" NS "b"))), NULL}};
    snprintf(source, sizeof source, "{\"tools\": %s, \"name\": null, \"parallel\": true}", tools);
    check(&e, &compact);
    example named = {TEXT_GRAMMAR_TOOLS, source, {CALLS(CALL("g", "")), NULL, CALLS(CALL("f", ARG("s", "a"))), CALLS(CALL("g", "") CALL("g", "")), NULL}};
    snprintf(source, sizeof source, "{\"tools\": %s, \"name\": \"g\", \"parallel\": false}", tools);
    check(&named, &compact);
    refused(TEXT_GRAMMAR_TOOLS, "{\"tools\": []}", "at least one");
    snprintf(source, sizeof source, "{\"tools\": %s, \"name\": \"h\"}", tools);
    refused(TEXT_GRAMMAR_TOOLS, source, "no tool named h");
    refused(TEXT_GRAMMAR_TOOLS, "{\"tools\": [{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": {\"type\": \"x\"}}}}}]}", "$.f.properties.a: `type`");
}

/* ---- Masks ---------------------------------------------------------------------------------------------------- */

/* A walk by random tokens of the mask, after every step of which each token is allowed exactly if it would be accepted. */
static void check_masks(text_grammar_kind kind, const char *source, const text_grammar_options *o, uint64_t seed, int steps)
{
    text_grammar *g = compile_with(kind, source, o);
    int32_t vocab = text_tokenizer_vocab_size(tok), end = text_tokenizer_find(tok, "[e~["), taken[64];
    uint32_t *mask = calloc(((size_t)vocab + 31) / 32, sizeof *mask);
    text_matcher *m = text_matcher_open(g, false, TEXT_START_CLOSED, &end, 1);
    for (int n = 0; n < steps; n++) {
        int32_t pick = -1;
        uint32_t seen = 0;
        assert_true(text_matcher_mask(m, mask));
        for (int32_t id = 0; id < vocab; id++) {
            text_matcher *other = text_matcher_open(g, false, TEXT_START_CLOSED, &end, 1);
            for (int i = 0; i < n; i++) assert_true(text_matcher_accept(other, taken[i]));
            bool allowed = mask[id >> 5] >> (id & 31) & 1;
            size_t length;
            if (allowed != text_matcher_accept(other, id))
                fail_msg("%.300s: step %d: the mask says %d of token %d \"%s\"", source, n, allowed, id,
                         text_tokenizer_bytes(tok, id, &length));
            text_matcher_close(other);
            text_tokenizer_bytes(tok, id, &length);
            /* Long tokens more often: they leave rules. */
            for (size_t k = 0; allowed && id != end && k < length; k++)
                if (draw(&seed) % ++seen == 0) pick = id;
        }
        if (pick < 0) break;
        taken[n] = pick;
        assert_true(text_matcher_accept(m, pick));
    }
    text_matcher_close(m);
    free(mask);
    text_grammar_release(g);
}

static void test_masks_are_exact(void **state)
{
    (void)state;
    static const struct {
        text_grammar_kind kind;
        const char *source;
        bool spaced;
    } list[] = {
        {S, "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\"}, \"n\": {\"type\": \"integer\"}}, \"required\": [\"name\"]}", false},
        {S, "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 7, \"minLength\": 3}}, \"additionalProperties\": {\"type\": \"string\", \"maxLength\": 2}}", true},
        {S, "{\"type\": \"array\", \"items\": {\"anyOf\": [{\"type\": \"string\", \"maxLength\": 4}, {\"$ref\": \"#\"}]}, \"minItems\": 2, \"maxItems\": 3}", true},
        {S, "{\"type\": \"array\", \"items\": {\"type\": \"number\", \"minimum\": 1, \"maximum\": 30}}", false},
        {S, "{\"type\": \"string\", \"pattern\": \"the|and\"}", false},
        {R, "([a-z]{2,40} ){3,9}the end", false},
        {R, "(.{1,5}the)+", false},
        {R, "(a|an|the|th|e|n|nd|and| ){5,60}", false},
        {E, "root ::= word (\" \" word)* \".\"\nword ::= [a-z]+ | root2\nroot2 ::= \"(\" root \")\"", false},
        {E, "root ::= x x x\nx ::= [a-z]+ \" \"? | \"\"", false},
        {TEXT_GRAMMAR_JSON_OBJECT, "", true},
        {TEXT_GRAMMAR_CHOICE, "[\"the first\", \"the second\", \"then\", \"the\"]", false},
        {TEXT_GRAMMAR_TAGS, "{\"structures\": [{\"begin\": \"the <\", \"schema\": {\"type\": \"string\"}, \"end\": \">\"}], \"triggers\": [\"the\"]}", false},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (uint64_t seed = 1; seed <= 2; seed++)
            check_masks(list[i].kind, list[i].source, list[i].spaced ? &spaced : &compact, seed + i, 7);
    char source[2000];
    snprintf(source, sizeof source, "{\"tools\": %s, \"name\": null, \"parallel\": true}", tools);
    check_masks(TEXT_GRAMMAR_TOOLS, source, &compact, 3, 12);
}

/* ---- Reasoning and ends --------------------------------------------------------------------------------------- */

static bool allows(text_matcher *m, int32_t id)
{
    static uint32_t mask[1 << 12];
    if (!text_matcher_mask(m, mask)) return true;
    return mask[id >> 5] >> (id & 31) & 1;
}

static bool say(text_matcher *m, const char *text)
{
    for (; *text; text++)
        if (!allows(m, byte_token(*text)) || !text_matcher_accept(m, byte_token(*text))) return false;
    return true;
}

static void test_reasoning(void **state)
{
    (void)state;
    int32_t open = text_tokenizer_find(tok, TEXT_THINK_OPEN), close = text_tokenizer_find(tok, TEXT_THINK_CLOSE);
    int32_t end = text_tokenizer_find(tok, "[e~["), z = byte_token('z'), one = byte_token('1');
    assert_true(open > 0 && close > 0 && end > 0);
    text_grammar *g = compile_with(R, "1+", &compact);

    text_matcher *m = text_matcher_open(g, true, TEXT_START_INSIDE, &end, 1);
    assert_true(allows(m, z) && allows(m, one) && allows(m, close) && !allows(m, end)); /* thinking does not end the answer */
    assert_true(say(m, "zz <mm:think> </mm:thin"));
    assert_false(text_matcher_complete(m));
    assert_true(say(m, "k>"));
    assert_true(!allows(m, z) && allows(m, one) && !allows(m, end) && !allows(m, open));
    assert_true(say(m, "11") && allows(m, end) && text_matcher_complete(m) && !text_matcher_over(m));
    assert_true(text_matcher_accept(m, end) && text_matcher_over(m) && allows(m, end) && !allows(m, one));
    assert_false(text_matcher_accept(m, one));
    text_matcher_close(m);

    m = text_matcher_open(g, true, TEXT_START_INSIDE, &end, 1);
    assert_true(text_matcher_accept(m, z) && text_matcher_accept(m, close) && !allows(m, z) && allows(m, one));
    text_matcher_close(m);

    m = text_matcher_open(g, true, TEXT_START_OPEN, &end, 1);
    assert_true(allows(m, open) && allows(m, close) && allows(m, one) && !allows(m, z) && !allows(m, end));
    assert_true(text_matcher_accept(m, open) && allows(m, z) && text_matcher_accept(m, z));
    assert_true(text_matcher_accept(m, close) && !allows(m, z) && say(m, "1"));
    text_matcher_close(m);

    m = text_matcher_open(g, true, TEXT_START_OPEN, &end, 1);
    assert_true(text_matcher_accept(m, close) && allows(m, one) && !allows(m, open) && !allows(m, close));
    text_matcher_close(m);

    m = text_matcher_open(g, true, TEXT_START_OPEN, &end, 1);
    assert_true(say(m, "1") && !allows(m, open) && allows(m, end));
    text_matcher_close(m);

    m = text_matcher_open(g, true, TEXT_START_CLOSED, &end, 1);
    assert_true(!allows(m, open) && !allows(m, z) && allows(m, one));
    text_matcher_close(m);
    m = text_matcher_open(g, false, TEXT_START_INSIDE, &end, 1);
    assert_true(!allows(m, z) && allows(m, one));
    text_matcher_close(m);
    text_grammar_release(g);
}

static void test_over(void **state)
{
    (void)state;
    text_grammar *g = compile_with(TEXT_GRAMMAR_CHOICE, "[\"ab\", \"abc\"]", &compact);
    text_matcher *m = text_matcher_open(g, false, TEXT_START_CLOSED, NULL, 0);
    text_grammar_release(g); /* the matcher has its own reference */
    assert_true(say(m, "ab") && text_matcher_complete(m) && !text_matcher_over(m));
    assert_true(say(m, "c") && text_matcher_complete(m) && text_matcher_over(m));
    text_matcher_close(m);
}

/* ---- Limits --------------------------------------------------------------------------------------------------- */

static void append(buffer *b, const char *text, int times)
{
    for (int i = 0; i < times; i++) buffer_string(b, text);
}

/* Refused, or compiled; never for long: the work of compiling has a limit of its own, so there is no clock here. */
static void test_large(void **state)
{
    (void)state;
    static const char *const regexes[] = {"(a|b)*a(a|b){22}", "((a{1,100}){1,100}){1,100}", "(a?){900}a{900}", "(.*a.*b.*c){40}x",
                                          "([a-z]*[0-9]*){60}!", "(\\p{L}{1,50}\\p{N}){40}", "(a|aa|aaa|aaaa){1,99999}",
                                          "((((a*)*)*)*)*", "(a{0,1000}){0,1000}"};
    for (size_t i = 0; i < sizeof regexes / sizeof *regexes; i++) {
        text_grammar *g = NULL;
        hy_error err = {0};
        hy_status s = text_grammar_compile(tok, R, regexes[i], strlen(regexes[i]), &compact, &g, &err);
        assert_true(s == HY_OK || s == HY_NO_FIT);
        if (s != HY_OK) continue;
        assert_true(judge(g, "aaaa") >= 0);
        text_grammar_release(g);
    }
    buffer b = {0};
    append(&b, "{\"type\": \"array\", \"items\": ", 1500);
    buffer_string(&b, "{}");
    append(&b, "}", 1500);
    refused(S, b.data, "nested deeper");
    buffer_clear(&b);
    append(&b, "(", 5000);
    refused(R, b.data, "nested deeper");
    buffer_clear(&b);
    buffer_string(&b, "root ::= ");
    append(&b, "(", 5000);
    refused(E, b.data, "nested deeper");
    buffer_clear(&b);
    buffer_string(&b, "{\"type\": \"object\", \"properties\": {");
    for (int i = 0; i < 400; i++) buffer_printf(&b, "%s\"property%d\": {\"type\": \"string\", \"maxLength\": 99}", i ? ", " : "", i);
    buffer_string(&b, "}, \"additionalProperties\": false}");
    text_grammar *g = compile_with(S, b.data, &compact);
    assert_int_equal(judge(g, "{\"property3\": \"x\", \"property399\": \"y\"}"), 2);
    assert_int_equal(judge(g, "{\"property3\": \"x\", \"property3\": \"y\"}"), 0);
    text_grammar_release(g);
    buffer_free(&b);
}

/* {"type": "object", "required": ["a" x width], "properties": {"a": such a one}} */
static void append_required(buffer *b, int depth, int width)
{
    for (int i = 0; i < depth; i++) {
        buffer_string(b, "{\"type\": \"object\", \"required\": [\"a\"");
        append(b, ", \"a\"", width - 1);
        buffer_string(b, "], \"properties\": {\"a\": ");
    }
    buffer_string(b, "{}");
    append(b, "}}", depth);
}

/* The numbers 0 .. count - 1, each between two texts, separated by commas. */
static void append_numbered(buffer *b, const char *before, const char *after, int count)
{
    for (int i = 0; i < count; i++) buffer_printf(b, "%s%s%d%s", i ? "," : "", before, i, after);
}

/* Short schemas of which some part is to be looked at once for every other: refused after the same work as any, which
 * a step that costs nothing in the count would never reach. */
static void test_schemas_that_multiply(void **state)
{
    (void)state;
    static const char *const slow = "too long to compile";
    buffer b = {0};
    append_required(&b, 8, 60);
    refused(S, b.data, slow);
    buffer_clear(&b);
    buffer_string(&b, "{\"allOf\": [");
    append_numbered(&b, "{\"properties\": {\"k", "\": true}}", 20000);
    buffer_string(&b, "]}");
    refused(S, b.data, slow);
    buffer_clear(&b);
    buffer_string(&b, "{\"allOf\": [{\"enum\": [");
    append_numbered(&b, "", "", 15000);
    buffer_string(&b, "]}, {\"enum\": [");
    append_numbered(&b, "-1", "", 15000);
    buffer_string(&b, ", 7]}]}");
    refused(S, b.data, slow);
    buffer_clear(&b);
    buffer_string(&b, "{\"type\": [\"string\"");
    append(&b, ", \"string\"", 20000);
    buffer_string(&b, "], \"enum\": [");
    append_numbered(&b, "", "", 20000);
    buffer_string(&b, ", \"x\"]}");
    refused(S, b.data, slow);
    buffer_clear(&b);
    buffer_string(&b, "{\"allOf\": [");
    append(&b, "{\"title\": \"x\"}, ", 500);
    buffer_string(&b, "{}]");
    for (int i = 0; i < 20000; i++) buffer_printf(&b, ", \"note%d\": 1", i);
    buffer_string(&b, "}");
    refused(S, b.data, slow);
    refused(S, "{\"type\": \"string\", \"minLength\": 1, \"pattern\": \"((){1000000}){1000000}\"}", slow);
    buffer_clear(&b);
    buffer_string(&b, "(^(");
    append(&b, "a", 200000);
    buffer_string(&b, "){0}){1000000}");
    refused(R, b.data, slow);
    buffer_clear(&b);
    buffer_string(&b, "{\"enum\": ["); /* every value is in the list that it comes from */
    append_numbered(&b, "\"v", "\"", 100000);
    buffer_string(&b, "]}");
    text_grammar *g = compile_with(S, b.data, &compact);
    assert_int_equal(judge(g, "\"v99999\""), 2);
    assert_int_equal(judge(g, "\"v100000\""), 0);
    text_grammar_release(g);
    buffer_free(&b);
}

/* A deep text and an ambiguous one: memory grows by levels, places are bounded. */
static void test_deep_and_ambiguous(void **state)
{
    (void)state;
    text_grammar *g = compile_with(S, "{\"type\": \"array\", \"items\": {\"$ref\": \"#\"}}", &compact);
    text_matcher *m = text_matcher_open(g, false, TEXT_START_CLOSED, NULL, 0);
    static uint32_t mask[1 << 12];
    for (int i = 0; i < 60000; i++) {
        assert_true(text_matcher_accept(m, byte_token('[')));
        if (i % 997 == 0) assert_true(text_matcher_mask(m, mask));
    }
    for (int i = 0; i < 60000; i++) assert_true(text_matcher_accept(m, byte_token(']')));
    assert_true(text_matcher_over(m));
    text_matcher_close(m);
    text_grammar_release(g);
    g = compile_with(E, "root ::= x root y | y root x | x\nx ::= \"a\" | \"aa\"\ny ::= \"a\" | \"aaa\"", &compact);
    m = text_matcher_open(g, false, TEXT_START_CLOSED, NULL, 0);
    for (int i = 0; i < 60; i++) {
        assert_true(text_matcher_accept(m, byte_token('a')));
        assert_true(text_matcher_places(m) <= 1024);
        assert_true(text_matcher_mask(m, mask));
    }
    text_matcher_close(m);
    text_grammar_release(g);
}

/* ---- Looking ahead -------------------------------------------------------------------------------------------- */

/* Whatever is walked through from a mark, masks and what is accepted are the same again behind text_matcher_back. */
static void test_back(void **state)
{
    (void)state;
    static const char schema[] = "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":"
                                 "\"integer\"}},\"required\":[\"a\"]}}";
    static const char said[] = "<mm:think>hm</mm:think>[{\"a\": 17}, {\"a\": -4}]",
                      other[] = "why</mm:think>[{\"a\": 9999}]x";
    size_t words = ((size_t)text_tokenizer_vocab_size(tok) + 31) / 32;
    uint32_t *before = calloc(words, sizeof *before), *after = calloc(words, sizeof *after);
    text_grammar *g = compile_with(TEXT_GRAMMAR_JSON_SCHEMA, schema, &compact);
    text_matcher *m = text_matcher_open(g, true, TEXT_START_OPEN, NULL, 0);
    int looked = 0;
    for (const char *c = said; *c; c++) {
        int32_t token = byte_token(*c);
        if (c == said) token = text_tokenizer_find(tok, "<mm:think>"), c += 9;
        memset(before, 0, words * sizeof *before), memset(after, 0, words * sizeof *after);
        bool some = text_matcher_mask(m, before), complete = text_matcher_complete(m);
        text_matcher_mark(m);
        for (const char *o = other; *o; o++) {
            text_matcher_mask(m, after);
            looked += text_matcher_accept(m, byte_token(*o));
        }
        text_matcher_back(m);
        memset(after, 0, words * sizeof *after);
        assert_int_equal(text_matcher_mask(m, after), some);
        assert_memory_equal(after, before, words * sizeof *after);
        assert_int_equal(text_matcher_complete(m), complete);
        assert_true(text_matcher_accept(m, token));
    }
    assert_true(text_matcher_complete(m));
    assert_true(looked > 100);
    text_matcher_close(m);
    text_grammar_release(g);
    free(before), free(after);
}

/* Looking ahead in every step, as drafts do, takes no more memory than not to. */
static void test_back_and_memory(void **state)
{
    (void)state;
    text_grammar *g = compile_with(TEXT_GRAMMAR_REGEX, "[a-z]{0,9000}", &compact);
    text_matcher *m = text_matcher_open(g, false, TEXT_START_CLOSED, NULL, 0);
    size_t words = ((size_t)text_tokenizer_vocab_size(tok) + 31) / 32, most = 0;
    uint32_t *mask = malloc(words * sizeof *mask);
    for (int i = 0; i < 3000; i++) {
        text_matcher_mark(m);
        for (int ahead = 0; ahead < 4; ahead++) {
            text_matcher_mask(m, mask);
            assert_true(text_matcher_accept(m, byte_token('a' + ahead)));
        }
        text_matcher_back(m);
        assert_true(text_matcher_accept(m, byte_token('z')));
        if (text_matcher_remembered(m) > most) most = text_matcher_remembered(m);
    }
    assert_in_range(most, 1000, 1100); /* it did fill, and was tidied */
    text_matcher_close(m);
    text_grammar_release(g);
    free(mask);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schema_values),     cmocka_unit_test(test_schema_numbers),
        cmocka_unit_test(test_schema_strings),    cmocka_unit_test(test_schema_lists),
        cmocka_unit_test(test_schema_objects),    cmocka_unit_test(test_schema_compositions),
        cmocka_unit_test(test_schema_refusals),   cmocka_unit_test(test_regex),
        cmocka_unit_test(test_ebnf),              cmocka_unit_test(test_choice_and_object),
        cmocka_unit_test(test_tags),              cmocka_unit_test(test_tools),
        cmocka_unit_test(test_masks_are_exact),   cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_over),              cmocka_unit_test(test_large),
        cmocka_unit_test(test_deep_and_ambiguous), cmocka_unit_test(test_schemas_that_multiply),
        cmocka_unit_test(test_back),              cmocka_unit_test(test_back_and_memory),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
