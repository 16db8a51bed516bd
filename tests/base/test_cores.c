/* Which cores there are, where, and which a worker gets; against made-up machines. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cores.h"
#include "base/threads.h"

static void lists(void **state)
{
    (void)state;
    assert_true(cores_list_has("0", 0));
    assert_true(cores_list_has("0-3,8,10-11\n", 2));
    assert_true(cores_list_has("0-3,8,10-11\n", 8));
    assert_true(cores_list_has("0-3,8,10-11\n", 11));
    assert_false(cores_list_has("0-3,8,10-11\n", 9));
    assert_false(cores_list_has("0-3,8,10-11\n", 4));
    assert_false(cores_list_has("0-3,8,10-11\n", 12));
    assert_false(cores_list_has("", 0));
    assert_false(cores_list_has("\n", 0));
    assert_false(cores_list_has("x", 0));
    assert_false(cores_list_has("1-x", 1));
    assert_false(cores_list_has("0,,1", 1));
}

static char root[] = "/tmp/hayate-cores-XXXXXX";

static void put(const char *path, const char *text)
{
    char full[4096];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *s = full + strlen(root) + 1; (s = strchr(s, '/')) != NULL; s++) {
        *s = 0;
        mkdir(full, 0700);
        *s = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* Two nodes of four cores with two hardware threads each; the second threads are numbered behind all first ones. */
static void make_machine(void)
{
    assert_non_null(mkdtemp(root));
    put("devices/system/node/online", "0-1\n");
    put("devices/system/node/node0/cpulist", "0-3,8-11\n");
    put("devices/system/node/node1/cpulist", "4-7,12-15\n");
    for (int i = 0; i < 16; i++) {
        char path[128], text[32];
        snprintf(path, sizeof path, "devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
        snprintf(text, sizeof text, "%d,%d\n", i % 8, i % 8 + 8);
        put(path, text);
    }
}

static void remove_machine(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", root);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c) */
}

static void nodes_and_threads(void **state)
{
    (void)state;
    core list[16];
    static const int order[] = {0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15};
    make_machine();
    for (int i = 0; i < 16; i++) list[i] = (core){.cpu = 15 - i, .node = 77, .second = true};
    assert_int_equal(cores_describe(root, list, 16), 2);
    for (int i = 0; i < 16; i++) {
        assert_int_equal(list[i].cpu, order[i]);
        assert_int_equal(list[i].node, i >= 8);
        assert_int_equal(list[i].second, i % 8 >= 4);
    }
    /* A mask without the first threads: the others are no further ones. */
    core few[3] = {{.cpu = 12}, {.cpu = 9}, {.cpu = 8}};
    assert_int_equal(cores_describe(root, few, 3), 2);
    assert_int_equal(few[0].cpu, 8);
    assert_int_equal(few[2].cpu, 12);
    for (int i = 0; i < 3; i++) assert_false(few[i].second);
    remove_machine();
    /* Nothing is known: one node. */
    core two[2] = {{.cpu = 5}, {.cpu = 3}};
    assert_int_equal(cores_describe("/nonexistent", two, 2), 1);
    assert_int_equal(two[0].cpu, 3);
}

static void places(void **state)
{
    (void)state;
    static core list[] = {{0, 0, false}, {1, 0, false}, {2, 0, true}, {3, 0, true},
                          {4, 1, false}, {5, 1, false}, {6, 1, true}, {7, 1, true}};
    const cores c = {list, 8, 2};
    static const struct {
        int workers, cpus[8];
    } cases[] = {
        {1, {0}},
        {2, {0, 4}},
        {3, {0, 1, 4}},
        {4, {0, 1, 4, 5}}, /* no core twice */
        {6, {0, 1, 2, 4, 5, 6}},
        {8, {0, 1, 2, 3, 4, 5, 6, 7}},
    };
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
        for (int i = 0; i < cases[n].workers; i++)
            assert_int_equal(cores_place(&c, i, cases[n].workers), cases[n].cpus[i]);
    /* Whatever the machine: no cpu twice, nodes in runs. */
    core odd[11];
    for (int i = 0; i < 11; i++) odd[i] = (core){.cpu = i * 2, .node = i < 3 ? 0 : i < 4 ? 1 : 5};
    const cores uneven = {odd, 11, 3};
    for (int workers = 1; workers <= 11; workers++)
        for (int i = 1; i < workers; i++)
            assert_true(cores_place(&uneven, i, workers) > cores_place(&uneven, i - 1, workers));
}

static void this_machine(void **state)
{
    (void)state;
    cores c;
    hy_error err = {0};
    assert_int_equal(cores_open(&c, &err), HY_OK);
    assert_true(c.count >= 1 && c.nodes >= 1 && c.nodes <= c.count);
    assert_true(cores_usable() >= 1 && cores_usable() <= c.count);
    int most = c.count;
    cores_close(&c);
    assert_null(c.list);

    threads *pool = NULL;
    assert_int_equal(threads_open_pinned(most + 1, THREADS_PIN_ON, &pool, &err), HY_USAGE);
    assert_non_null(strstr(err.message, "--threads"));
    assert_null(pool);
    static const threads_pin pins[] = {THREADS_PIN_AUTO, THREADS_PIN_ON, THREADS_PIN_OFF};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(threads_open_pinned(most, pins[i], &pool, &err), HY_OK);
        assert_int_equal(threads_count(pool), most);
        threads_close(pool);
    }
    assert_int_equal(threads_open_pinned(most + 3, THREADS_PIN_AUTO, &pool, &err), HY_OK);
    threads_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists),
        cmocka_unit_test(nodes_and_threads),
        cmocka_unit_test(places),
        cmocka_unit_test(this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
