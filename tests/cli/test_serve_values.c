/* Pieces of serve's flags: human integers, members of JSON objects, YAML files, the table itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buffer.h"
#include "cli/serve_config.h"
#include "cli/serve_table.h"
#include "cli/serve_values.h"

static void humans(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {{"1k", 1000},     {"1K", 1024}, {"25.6k", 25600}, {"2m", 2000000},           {"1M", 1048576}, {"1g", 1000000000},
                {"1G", 1 << 30},  {"-1", -1},   {"auto", -1},     {"AUTO", -1},              {"0", 0},        {"4GiB", INT64_C(4) << 30},
                {"0.5K", 512},    {"12", 12},   {"1T", INT64_C(1) << 40}};
    static const char *const bad[] = {"", "k", "1x", "-2", "1.k", "1 k k", "99999999999999999999", "9223372036854775808", "0x10"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        int64_t value = 7;
        assert_true(values_human(good[i].text, false, &value));
        assert_int_equal(value, good[i].value);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t value;
        assert_false(values_human(bad[i], true, &value));
    }
}

/* Bytes are rounded down, what is counted is not. */
static void fractions(void **state)
{
    (void)state;
    int64_t value = 7;
    assert_true(values_human("1.1GiB", true, &value));
    assert_int_equal(value, INT64_C(1181116006));
    assert_false(values_human("1.1GiB", false, &value));
    assert_false(values_human("1.9", false, &value));
    assert_false(values_human("1.9", true, &value));
    assert_true(values_human("1.5K", false, &value));
    assert_int_equal(value, 1536);
}

static void assert_json(json_t *value, const char *text)
{
    json_t *want = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(want);
    if (!value || !json_equal(value, want)) {
        char *got = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
        fail_msg("%s, not %s", got ? got : "nothing", text);
    }
    json_decref(want);
}

static void members(void **state)
{
    (void)state;
    static const struct {
        const char *text, *value;
    } words[] = {{"3", "3"},        {"1.5", "1.5"},       {"true", "true"},    {"null", "null"}, {"[1, \"a\"]", "[1,\"a\"]"},
                 {"\"7\"", "\"7\""}, {"nvfp4", "\"nvfp4\""}, {"True", "\"True\""}, {"80g", "80000000000"}, {"2K", "2048"},
                 {"", "\"\""},      {"8GB", "\"8GB\""},   {"{\"a\": 1}", "{\"a\":1}"}, {"k", "\"k\""}, {"{\"a\":1,\"a\":2}", "\"{\\\"a\\\":1,\\\"a\\\":2}\""}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        json_t *value = values_member(words[i].text);
        assert_json(value, words[i].value);
        json_decref(value);
    }
}

static void paths(void **state)
{
    (void)state;
    char why[160] = "";
    json_t *o = json_object();
    assert_true(values_set(o, "a", "1", why, sizeof why));
    assert_true(values_set(o, "b.c.d", "x", why, sizeof why));
    assert_true(values_set(o, "b.c.e", "2k", why, sizeof why));
    assert_true(values_set(o, "list+", "x,y", why, sizeof why));
    assert_true(values_set(o, "list+", "3", why, sizeof why));
    assert_true(values_set(o, "b.list+", "", why, sizeof why));
    assert_json(o, "{\"a\":1,\"b\":{\"c\":{\"d\":\"x\",\"e\":2000},\"list\":[\"\"]},\"list\":[\"x\",\"y\",\"3\"]}");
    assert_true(values_set(o, "a.z", "5", why, sizeof why)); /* over what was no object */
    assert_true(values_set(o, "list", "[]", why, sizeof why));
    assert_json(json_object_get(o, "a"), "{\"z\":5}");
    static const char *const bad[] = {"", ".a", "a.", "a..b", "+", "a.+", "b.c.d+", "b+",
                                      "a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        why[0] = 0;
        assert_false(values_set(o, bad[i], "1", why, sizeof why));
        assert_true(why[0]);
    }
    assert_false(values_set(o, "t", "\xff", why, sizeof why));
    json_decref(o);
}

static void python(void **state)
{
    (void)state;
    json_t *o = json_loads("{\"a\": 1, \"b\": [true, null, 1.5, 2.0], \"c\": \"it's \\\"x\\\"\\n\", \"d\": \"it's\", \"e\": {}}", 0, NULL);
    buffer b = {0};
    values_python(&b, o);
    assert_string_equal(b.data, "{'a': 1, 'b': [True, None, 1.5, 2.0], 'c': 'it\\'s \"x\"\\n', 'd': \"it's\", 'e': {}}");
    buffer_free(&b);
    json_decref(o);
}

static char yaml_path[64];

static hy_status read_yaml(const char *text, json_t **out, hy_error *err)
{
    strcpy(yaml_path, "/tmp/hayate-yaml-XXXXXX");
    int f = mkstemp(yaml_path);
    assert_true(f >= 0 && write(f, text, strlen(text)) == (ssize_t)strlen(text));
    close(f);
    hy_status status = config_file_read(yaml_path, out, err);
    unlink(yaml_path);
    return status;
}

static void yaml(void **state)
{
    (void)state;
    json_t *all = NULL;
    hy_error err = {0};
    assert_int_equal(read_yaml("# a comment\nport: 8001\nuvicorn-log-level: \"on\"\nenforce_eager: yes\nx: ~\n"
                               "served-model-name: [a, 'b', 3]\nmax-model-len: 25.6k\nattention-config:\n  indexer_kv_dtype: nvfp4\n"
                               "  deep: {n: 1e3, hex: 0x10, off: no, t: '1'}\nlist:\n- 1\n- -2.5\nbase: &b {k: 1}\nagain: *b\n",
                               &all, &err),
                     HY_OK);
    assert_json(json_object_get(json_object_get(all, "port"), "value"), "8001");
    assert_json(json_object_get(json_object_get(all, "port"), "line"), "2");
    assert_json(json_object_get(json_object_get(all, "port"), "text"), "\"8001\"");
    assert_json(json_object_get(json_object_get(all, "uvicorn-log-level"), "value"), "\"on\"");
    assert_json(json_object_get(json_object_get(all, "enforce_eager"), "value"), "true");
    assert_json(json_object_get(json_object_get(all, "x"), "value"), "null");
    assert_json(json_object_get(json_object_get(all, "served-model-name"), "value"), "[\"a\",\"b\",3]");
    assert_json(json_object_get(json_object_get(all, "max-model-len"), "text"), "\"25.6k\"");
    assert_json(json_object_get(json_object_get(all, "attention-config"), "value"),
                "{\"indexer_kv_dtype\":\"nvfp4\",\"deep\":{\"n\":1000.0,\"hex\":16,\"off\":false,\"t\":\"1\"}}");
    assert_json(json_object_get(json_object_get(all, "list"), "value"), "[1,-2.5]");
    assert_json(json_object_get(json_object_get(all, "again"), "value"), "{\"k\":1}");
    json_decref(all);
    assert_int_equal(read_yaml("", &all, &err), HY_OK);
    assert_int_equal(json_object_size(all), 0);
    json_decref(all);
}

static void yaml_faults(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"- a\n- b\n", "must be lines of the form"},
        {"port\n", "must be lines of the form"},
        {"a: 1\nb: [1, 2\n", "is not YAML"},
        {"a: 1\na: 2\n", "line 2: this key came before"},
        {"a:\n  b: 1\n  b: 2\n", "line 3: this key came before"},
        {"? [x]\n: 1\n", "a key must be a word"},
        {"a: \"x\\0y\"\n", "has a NUL"},
        {"\t: x\n", "is not YAML"},
        {"a: &a [*a]\n", "nested too deeply"},
        {"a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
         "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n", "too many"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *all = NULL;
        hy_error err = {0};
        assert_int_equal(read_yaml(bad[i].text, &all, &err), HY_USAGE);
        if (!strstr(err.message, bad[i].words)) fail_msg("%zu: %s", i, err.message);
        assert_null(all);
    }
    json_t *all = NULL;
    hy_error err = {0};
    assert_int_equal(config_file_read("/nowhere/x.yaml", &all, &err), HY_USAGE);
}

static void table(void **state)
{
    (void)state;
    size_t count;
    const arg_spec *all = serve_table(&count);
    assert_true(count > 282);
    for (size_t i = 0; i < count; i++) {
        const arg_spec *a = &all[i];
        assert_ptr_equal(serve_find(a->name, strlen(a->name)), a); /* once, and found */
        if (a->letters[0]) assert_ptr_equal(serve_find_letters(a->letters, strlen(a->letters)), a);
        assert_true(a->help[0] && strlen(a->name) < 64);
        bool plain = a->fate == FATE_DONE || a->fate == FATE_RANKS;
        if (plain != (a->note[0] == 0)) fail_msg("--%s: a note and what becomes of it do not fit", a->name);
        if ((a->kind == ARG_CHOICE) != (a->choices[0] != 0)) fail_msg("--%s: choices and kind do not fit", a->name);
        if (a->kind == ARG_CHOICE && !strstr(a->choices, a->value)) fail_msg("--%s: the default is no choice", a->name);
        assert_true(a->group < GROUP_COUNT && serve_group(a->group)->title);
    }
    assert_ptr_equal(serve_find("max_model_len", 13), serve_find("max-model-len", 13));
    assert_string_equal(serve_nearest("max-model-length"), "max-model-len");
    assert_string_equal(serve_nearest("tensor-parallel"), "tensor-parallel-size");
    assert_null(serve_nearest("qqqqqqqqqqqq"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(humans), cmocka_unit_test(fractions), cmocka_unit_test(members),     cmocka_unit_test(paths), cmocka_unit_test(python),
        cmocka_unit_test(yaml),   cmocka_unit_test(yaml_faults), cmocka_unit_test(table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
