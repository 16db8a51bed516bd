/* Tool tasks: what is rendered is read back the same, schemas decide, and calls that differ in anything are wrong. */
#include "tasks_helpers.h"

#include "tasks/tools.h"
#include "text/tool_calls.h"

#define NS TEXT_TOOL_NAMESPACE

static bool marked(const task *t, size_t turn, const char *content, bool *valid)
{
    return task_mark(t, turn, "", content, valid);
}

/* A call as the chat format spells it, in place of the reference. */
static char *spell(const task *t, size_t turn, json_t *calls)
{
    size_t at = t->turns[turn].message, i;
    json_t *messages = json_array(), *list = json_array(), *one;
    task other = *t;
    buffer text = {0};
    hy_error err = {0};
    for (i = 0; i < at; i++) json_array_append(messages, json_array_get(t->messages, i));
    json_array_foreach(calls, i, one) json_array_append_new(list, json_pack("{s:O}", "function", one));
    json_array_append_new(messages,
                          json_pack("{s:s, s:s, s:o}", "role", "assistant", "content", "", "tool_calls", list));
    other.messages = messages;
    written_text(&other, at, &text, &err);
    json_decref(messages);
    return buffer_take(&text, &i);
}

static bool calls_are(const task *t, size_t turn, json_t *calls, bool *valid)
{
    char *text = spell(t, turn, calls);
    bool right = marked(t, turn, text, valid);
    free(text);
    return right;
}

static void rendered_calls_are_read_back(void **state)
{
    (void)state;
    int calls = 0, types[8] = {0};
    for (uint64_t n = 0; calls < 10000; n++) {
        task t = make(TASK_TOOLS, n % 4 ? TASK_TRAIN : TASK_HELD_OUT, 21, n, n % 3 ? 0 : 1200);
        for (size_t k = 0; k < t.turn_count; k++) {
            json_t *want = json_object_get(t.turns[k].expect, "calls"), *one, *value;
            size_t i;
            const char *name;
            buffer text = {0};
            hy_error err = {0};
            if (!want) continue;
            written_text(&t, t.turns[k].message, &text, &err);
            text_tool_calls got;
            if (text_tool_calls_read(text.data, text.length, t.tools, &got, &err))
                fail_msg("%s: %s", text.data, err.message);
            assert_int_equal(got.content_length, 0);
            assert_int_equal(got.repairs, 0);
            if (!json_equal(got.calls, want))
                fail_msg("%s %s %s", text.data, json_dumps(want, 0), json_dumps(t.tools, 0));
            json_array_foreach(want, i, one)
            {
                calls++;
                json_object_foreach(json_object_get(one, "arguments"), name, value) types[json_typeof(value)]++;
            }
            text_tool_calls_free(&got);
            buffer_free(&text);
        }
        task_free(&t);
    }
    /* Every JSON type but null, which has no spelling. */
    assert_true(types[JSON_OBJECT] > 100 && types[JSON_ARRAY] > 300 && types[JSON_STRING] > 300 &&
                types[JSON_INTEGER] > 300);
    assert_true(types[JSON_REAL] > 100 && types[JSON_TRUE] > 100 && types[JSON_FALSE] > 100);
}

/* Another value of the same type. */
static json_t *other_value(const json_t *v)
{
    char text[256];
    switch (json_typeof(v)) {
    case JSON_STRING: snprintf(text, sizeof text, "%.200sx", json_string_value(v)); return json_string(text);
    case JSON_INTEGER: return json_integer(json_integer_value(v) + 1);
    case JSON_REAL: return json_real(json_real_value(v) + 0.5);
    case JSON_TRUE: return json_false();
    case JSON_FALSE: return json_true();
    case JSON_ARRAY: {
        json_t *list = json_deep_copy(v);
        json_array_append(list, json_array_get(v, 0));
        return list;
    }
    default: {
        json_t *object = json_deep_copy(v), *one;
        const char *name;
        json_object_foreach((json_t *)v, name, one)
        {
            json_object_set_new(object, name, other_value(one));
            break;
        }
        return object;
    }
    }
}

static void differing_calls_are_wrong(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 1500; n++) {
        task t = make(TASK_TOOLS, n % 2 ? TASK_TRAIN : TASK_HELD_OUT, 22, n, 0);
        bool valid;
        for (size_t k = 0; k < t.turn_count; k++) {
            json_t *want = json_object_get(t.turns[k].expect, "calls"), *value;
            const char *name;
            if (!want) continue;
            assert_true(calls_are(&t, k, want, &valid) && valid);
            /* In another order: the same. */
            json_t *calls = json_array();
            for (size_t i = json_array_size(want); i-- > 0;) json_array_append(calls, json_array_get(want, i));
            assert_true(calls_are(&t, k, calls, &valid) && valid);
            /* One too many, none. */
            json_array_append(calls, json_array_get(want, 0));
            assert_false(calls_are(&t, k, calls, &valid));
            assert_true(valid);
            assert_false(marked(&t, k, "I have no tool for that.", &valid));
            json_decref(calls);
            json_object_foreach(json_object_get(json_array_get(want, 0), "arguments"), name, value)
            {
                json_t *changed = json_deep_copy(want),
                       *arguments = json_object_get(json_array_get(changed, 0), "arguments");
                json_object_set_new(arguments, name, other_value(value));
                assert_false(calls_are(&t, k, changed, &valid));
                json_object_del(arguments, name);
                assert_false(calls_are(&t, k, changed, &valid));
                json_object_set(arguments, name, value);
                json_object_set_new(arguments, "unknown_one", json_true());
                assert_false(calls_are(&t, k, changed, &valid));
                assert_false(valid);
                json_decref(changed);
            }
            json_t *renamed = json_deep_copy(want);
            json_object_set_new(json_array_get(renamed, 0), "name", json_string("no_such_tool"));
            assert_false(calls_are(&t, k, renamed, &valid));
            assert_false(valid);
            json_decref(renamed);
        }
        task_free(&t);
    }
}

static void answers_tell_the_result(void **state)
{
    (void)state;
    int told = 0, asked = 0, refused = 0;
    for (uint64_t n = 0; n < 3000; n++) {
        task t = make(TASK_TOOLS, n % 2 ? TASK_TRAIN : TASK_HELD_OUT, 23, n, 0);
        bool valid;
        for (size_t k = 0; k < t.turn_count; k++) {
            const json_t *values = json_object_get(t.turns[k].expect, "values");
            const char *reference = task_text(&t, t.turns[k].message, "content");
            if (json_object_get(t.turns[k].expect, "calls")) continue;
            assert_true(marked(&t, k, reference, &valid) && valid);
            assert_false(marked(&t, k, "", &valid));
            assert_false(valid);
            assert_false(marked(&t, k, "[e~[", &valid));
            marked(&t, k, "Half a call " NS "<invoke", &valid);
            assert_false(valid);
            marked(&t, k, NS "<tool_call>\n" NS "<invoke name=\"", &valid);
            assert_false(valid);
            told += json_array_size(values) > 0;
            asked += json_object_get(t.turns[k].expect, "missing") != NULL;
            refused += json_object_get(t.turns[k].expect, "no tool") != NULL;
            if (!json_array_size(values)) continue;
            char wrong[1000];
            snprintf(wrong, sizeof wrong, "%.800s Or 7712301.", reference);
            assert_false(marked(&t, k, wrong, &valid));
            assert_false(marked(&t, k, "I do not know.", &valid));
        }
        task_free(&t);
    }
    print_message("%d results told, %d arguments asked for, %d requests without a tool\n", told, asked, refused);
    assert_true(told > 1500 && asked > 100 && refused > 100);
}

/* No call of one split is made in the other. */
static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Calls by the words of the table: those of conversations that keep the names. */
static size_t collect(task_split split, char **out, size_t room)
{
    size_t count = 0;
    for (uint64_t n = 0; count < room; n++) {
        task t = make(TASK_TOOLS, split, 24, n, 0);
        for (size_t k = 0; k < t.turn_count; k++) {
            size_t i;
            json_t *one;
            json_array_foreach(json_object_get(t.turns[k].expect, "calls"), i, one) if (count < room) out[count++] =
                json_dumps(one, JSON_SORT_KEYS);
        }
        task_free(&t);
    }
    return count;
}

static void splits_share_no_call(void **state)
{
    (void)state;
    enum { ROOM = 6000 };
    static char *train[ROOM], *held[ROOM];
    collect(TASK_TRAIN, train, ROOM);
    collect(TASK_HELD_OUT, held, ROOM);
    qsort(train, ROOM, sizeof *train, by_text);
    for (size_t i = 0; i < ROOM; i++)
        if (bsearch(&held[i], train, ROOM, sizeof *train, by_text)) fail_msg("in both splits: %s", held[i]);
    for (size_t i = 0; i < ROOM; i++) free(train[i]), free(held[i]);
}

static bool fits(const char *schema, const char *value)
{
    json_error_t e;
    json_t *s = json_loads(schema, 0, &e), *v = json_loads(value, JSON_DECODE_ANY, &e);
    assert_true(s && v);
    bool ok = schema_fits(s, v);
    json_decref(s);
    json_decref(v);
    return ok;
}

static void schemas(void **state)
{
    (void)state;
#define OBJECT                                                                                                         \
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":[\"string\",\"null\"]}},"       \
    "\"required\":[\"a\"]}"
    assert_true(fits("{\"type\":\"integer\"}", "5") && !fits("{\"type\":\"integer\"}", "5.0"));
    assert_true(fits("{\"type\":\"number\"}", "5") && fits("{\"type\":\"number\"}", "5.5"));
    assert_true(!fits("{\"type\":\"number\"}", "\"5\"") && !fits("{\"type\":\"string\"}", "5"));
    assert_true(fits("{\"type\":\"boolean\"}", "true") && !fits("{\"type\":\"boolean\"}", "1"));
    assert_true(fits("{\"type\":\"string\",\"enum\":[\"x\",\"y\"]}", "\"y\""));
    assert_true(!fits("{\"type\":\"string\",\"enum\":[\"x\",\"y\"]}", "\"z\""));
    assert_true(fits(OBJECT, "{\"a\":1}") && fits(OBJECT, "{\"a\":1,\"b\":null}") &&
                fits(OBJECT, "{\"b\":\"x\",\"a\":1}"));
    assert_true(!fits(OBJECT, "{}") && !fits(OBJECT, "{\"a\":null}") && !fits(OBJECT, "{\"a\":1,\"c\":2}") &&
                !fits(OBJECT, "[]"));
    assert_true(fits("{\"type\":\"array\",\"items\":" OBJECT "}", "[{\"a\":1},{\"a\":2}]"));
    assert_true(!fits("{\"type\":\"array\",\"items\":" OBJECT "}", "[{\"a\":1},{\"a\":\"2\"}]"));
}

static bool equal(const char *a, const char *b)
{
    json_error_t e;
    json_t *x = json_loads(a, JSON_DECODE_ANY, &e), *y = json_loads(b, JSON_DECODE_ANY, &e);
    bool same = values_equal(x, y), back = values_equal(y, x);
    assert_int_equal(same, back);
    json_decref(x);
    json_decref(y);
    return same;
}

static void values(void **state)
{
    (void)state;
    assert_true(equal("5", "5.0") && !equal("5", "\"5\"") && !equal("5", "6"));
    assert_true(equal("{\"a\":1,\"b\":2}", "{\"b\":2,\"a\":1}") && equal("{\"a\":1,\"b\":null}", "{\"a\":1}"));
    assert_true(!equal("{\"a\":1}", "{\"b\":1}") && !equal("{\"a\":1,\"b\":2}", "{\"a\":1}"));
    assert_true(equal("[1,[2]]", "[1,[2.0]]") && !equal("[1,2]", "[2,1]") && !equal("[1]", "[1,1]"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rendered_calls_are_read_back),
        cmocka_unit_test(differing_calls_are_wrong),
        cmocka_unit_test(answers_tell_the_result),
        cmocka_unit_test(splits_share_no_call),
        cmocka_unit_test(schemas),
        cmocka_unit_test(values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
