/* The store of responses: what is kept, what goes, and in which order. */
#include "server_helpers.h"

#include "server/responses_store.h"

static void put(responses_store *s, const char *id, size_t bytes, void *running)
{
    buffer json = {0};
    buffer_string(&json, id);
    json_t *turns = json_pack("[s]", id);
    responses_store_put(s, id, &json, turns, bytes, running, running != NULL);
    assert_null(json.data);
    json_decref(turns);
}

static bool has(responses_store *s, const char *id)
{
    json_t *turns;
    bool found = responses_store_turns(s, id, &turns);
    if (found) assert_string_equal(json_string_value(json_array_get(turns, 0)), id);
    json_decref(turns);
    return found;
}

static void test_keeps_and_finds(void **state)
{
    (void)state;
    responses_store *s = responses_store_open(10, 1 << 20);
    assert_null(responses_store_find(s, "a"));
    put(s, "a", 0, NULL);
    const kept_response *k = responses_store_find(s, "a");
    assert_string_equal(k->json.data, "a");
    assert_string_equal(k->id, "a");
    assert_false(k->background);
    /* The same id again: the later one. */
    int someone;
    put(s, "a", 0, &someone);
    k = responses_store_find(s, "a");
    assert_ptr_equal(k->running, &someone);
    responses_store_ended(s, "a", s); /* not this one's */
    assert_non_null(responses_store_find(s, "a")->running);
    responses_store_ended(s, "a", &someone);
    assert_null(responses_store_find(s, "a")->running);
    responses_store_close(s);
}

static void test_the_one_not_asked_for_longest_goes(void **state)
{
    (void)state;
    responses_store *s = responses_store_open(2, 1 << 20);
    put(s, "a", 0, NULL);
    put(s, "b", 0, NULL);
    assert_true(has(s, "a"));
    put(s, "c", 0, NULL);
    assert_false(has(s, "b"));
    assert_true(has(s, "a") && has(s, "c"));
    responses_store_close(s);
}

static void test_bytes(void **state)
{
    (void)state;
    responses_store *s = responses_store_open(10, 10000);
    put(s, "a", 4000, NULL);
    put(s, "b", 4000, NULL);
    assert_true(has(s, "a") && has(s, "b"));
    put(s, "c", 4000, NULL);
    assert_false(has(s, "a"));
    assert_true(has(s, "b") && has(s, "c"));
    put(s, "big", 20000, NULL); /* larger than all: nothing is kept, and nothing breaks */
    assert_false(has(s, "big"));
    put(s, "d", 0, NULL);
    assert_true(has(s, "d"));
    responses_store_close(s);
}

static void test_what_is_being_made_stays(void **state)
{
    (void)state;
    int someone;
    responses_store *s = responses_store_open(1, 1 << 20);
    put(s, "a", 0, &someone);
    put(s, "b", 0, NULL);
    assert_true(has(s, "a"));
    assert_false(has(s, "b"));
    put(s, "c", 0, &someone);
    assert_true(has(s, "a") && has(s, "c"));
    responses_store_ended(s, "a", &someone);
    assert_false(has(s, "a"));
    assert_true(has(s, "c"));
    responses_store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keeps_and_finds),
        cmocka_unit_test(test_the_one_not_asked_for_longest_goes),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_what_is_being_made_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
