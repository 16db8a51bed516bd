/* The numerics id: the same for the same model however it is opened, another one for all that changes a block's bytes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/identity.h"

static hy_error err;
#define OK(call)                                                                                                       \
    do {                                                                                                               \
        hy_status status_ = (call);                                                                                    \
        if (status_ != HY_OK) fail_msg("%s: %s", hy_status_name(status_), err.message);                                \
    } while (0)

static char folder[512]; /* for copies of models */

static void shell(const char *command)
{
    if (system(command) != 0) fail_msg("%s", command);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/test-identity-XXXXXX", TEST_BINARY);
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    shell(command);
    return 0;
}

static const char *oracle(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/oracle/%s", TEST_DATA, name);
    return path;
}

typedef struct id {
    uint8_t bytes[32];
} id;

static id id_of(const char *path, hy_model_options options)
{
    id out = {{0}};
    hy_model *m = NULL;
    OK(hy_model_open(path, &options, &m, &err));
    OK(model_identity(m, out.bytes, &err));
    hy_model_close(m);
    return out;
}

static bool same(id a, id b)
{
    return memcmp(a.bytes, b.bytes, sizeof a.bytes) == 0;
}

/* A copy with the times of its files, to be changed. */
static const char *copy(const char *name)
{
    static char path[600];
    char command[2000];
    snprintf(path, sizeof path, "%s/copy", folder);
    snprintf(command, sizeof command, "rm -rf '%s' && cp -Rp '%s' '%s'", path, oracle(name), path);
    shell(command);
    return path;
}

static void test_same(void **state)
{
    (void)state;
    id first = id_of(oracle("m3-short"), (hy_model_options){.threads = 1});
    assert_true(same(first, id_of(oracle("m3-short"), (hy_model_options){.threads = 1})));
    assert_true(same(first, id_of(oracle("m3-short"), (hy_model_options){.threads = 3})));
    assert_true(same(first, id_of(oracle("m3-short"), (hy_model_options){.max_model_len = 1000})));
    assert_true(same(first, id_of(oracle("m3-short"), (hy_model_options){.kv_cache_dtype = "bf16"}))); /* as "auto" */
    assert_true(same(first, id_of(copy("m3-short"), (hy_model_options){0})));                          /* elsewhere */
}

/* Every one of these is another one than all others. */
static void test_options(void **state)
{
    (void)state;
    const hy_model_options options[] = {
        {0},
        {.kv_cache_dtype = "fp8"},
        {.kv_cache_dtype = "bf16"},
        {.indexer_kv_dtype = "bf16"},
        {.readback = "e4m3"},
        {.moe_activation = "none"},
        {.attention = "dense"},
        {.backend = "reference"},
        {.backend = "reference", .kv_cache_dtype = "fp32"},
    };
    enum { COUNT = sizeof options / sizeof *options };
    id ids[COUNT];
    for (int i = 0; i < COUNT; i++) {
        ids[i] = id_of(oracle("m31-w16"), options[i]);
        for (int j = 0; j < i; j++)
            if (same(ids[i], ids[j])) fail_msg("options %d and %d", j, i);
    }
    assert_false(same(id_of(oracle("m3-short"), options[0]), id_of(oracle("m3-dense"), options[0])));
}

/* One bit of a file that is `from_end` bytes from its end, with its time kept or not. */
static void flip(const char *path, off_t from_end, bool keep_time)
{
    char name[700];
    struct stat st;
    uint8_t byte = 0;
    snprintf(name, sizeof name, "%s/model.safetensors", path);
    int fd = open(name, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    off_t at = st.st_size - from_end;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    const struct timespec times[2] = {st.st_atim, st.st_mtim};
    if (keep_time) assert_int_equal(futimens(fd, times), 0);
    close(fd);
}

static void test_weights(void **state)
{
    (void)state;
    const hy_model_options o = {.backend = "reference"};
    const char *path = copy("m3-short");
    id before = id_of(path, o);
    const off_t places[] = {1, 100000, 2000000, 4000000};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        flip(path, places[i], true);
        assert_false(same(before, id_of(path, o)));
        flip(path, places[i], true); /* back */
        assert_true(same(before, id_of(path, o)));
    }
    flip(path, 1, false);
    flip(path, 1, false);
    assert_false(same(before, id_of(path, o))); /* the time alone */
}

static void test_config(void **state)
{
    (void)state;
    const char *path = copy("m3-short");
    id before = id_of(path, (hy_model_options){0});
    char command[2000];
    snprintf(command, sizeof command,
             "sed 's/\"rope_theta\": *[0-9.e+]*/\"rope_theta\": 7777.0/' '%s/config.json' > '%s/new' && "
             "! cmp -s '%s/new' '%s/config.json' && mv '%s/new' '%s/config.json'",
             path, path, path, path, path, path);
    shell(command);
    assert_false(same(before, id_of(path, (hy_model_options){0})));
}

/* The drafter counts when it is open: its file, its config, the format of its context. */
static void test_drafter(void **state)
{
    (void)state;
    char command[2000], nano[600];
    snprintf(nano, sizeof nano, "%s/nano", folder);
    snprintf(command, sizeof command, "rm -rf '%s' && cp -Rp '%s/models/m3-nano' '%s'", nano, TEST_SOURCE, nano);
    shell(command);
    const hy_model_options off = {0}, on = {.drafter = "on"}, bf16 = {.drafter = "on", .draft_cache_dtype = "bf16"};
    id without = id_of(nano, off), with = id_of(nano, on);
    assert_false(same(without, with));
    assert_true(same(with, id_of(nano, on)));
    assert_true(same(without, id_of(nano, (hy_model_options){.draft_cache_dtype = "bf16"})));
    assert_false(same(with, id_of(nano, bf16)));
    char inner[610];
    snprintf(inner, sizeof inner, "%s/dspark", nano);
    flip(inner, 100000, true);
    assert_false(same(with, id_of(nano, on)));
    assert_true(same(without, id_of(nano, off)));
    flip(inner, 100000, true);
    assert_true(same(with, id_of(nano, on)));
    snprintf(command, sizeof command, "sed -i 's/\"sliding_window\": 256/\"sliding_window\": 255/' '%s/config.json'", inner);
    shell(command);
    assert_false(same(with, id_of(nano, on)));
    assert_true(same(without, id_of(nano, off)));
}

/* A file that is not what was opened. */
static void test_gone(void **state)
{
    (void)state;
    const char *path = copy("m3-short");
    char name[700], moved[710];
    uint8_t out[32];
    hy_model *m = NULL;
    OK(hy_model_open(path, NULL, &m, &err));
    snprintf(name, sizeof name, "%s/model.safetensors", path);
    snprintf(moved, sizeof moved, "%s.x", name);
    assert_int_equal(rename(name, moved), 0);
    assert_int_equal(model_identity(m, out, &err), HY_FAILED);
    assert_non_null(strstr(err.message, "model.safetensors"));
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(model_identity(m, out, &err), HY_FAILED);
    assert_non_null(strstr(err.message, "was changed"));
    hy_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_same, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_options, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_weights, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_config, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_drafter, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_gone, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
