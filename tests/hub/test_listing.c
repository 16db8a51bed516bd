/* Names of the hub, and what is taken from its list of a model's files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hub/blob.h"
#include "hub/fetch.h"
#include "hub/listing.h"

#define HASH40 "0123456789abcdef0123456789abcdef01234567"
#define HASH64 HASH40 "0123456789abcdef01234567"

static void names(void **state)
{
    (void)state;
    static const char *const good[] = {"a/b", "MiniMaxAI/MiniMax-M3.1-Flash", "a/b@main", "a/b@feature/x-1", "a_b/c.d@v1.0"};
    static const char *const bad[] = {"",     "a",      "/a/b",   "a/b/c",  "a/",     "/b",       "./a",   "a/..",    "../a",     "~/a",
                                      "a b/c", "a/b@",  "a/b@..", "a/b@/x", "a/b@x/", "a/b@x//y", "a@b/c", "a/b@x@y", "a/b\nc", "-a/b", "a/b..c"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_true(hub_is_name(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (hub_is_name(bad[i])) fail_msg("'%s' is taken for a name", bad[i]);
    hub_name n;
    hy_error err = {0};
    assert_int_equal(hub_name_read("a/b@v1", NULL, &n, &err), HY_OK);
    assert_string_equal(n.model, "a/b");
    assert_string_equal(n.revision, "v1");
    assert_int_equal(hub_name_read("a/b@v1", "v2", &n, &err), HY_OK);
    assert_string_equal(n.revision, "v2");
    assert_int_equal(hub_name_read("a/b", NULL, &n, &err), HY_OK);
    assert_string_equal(n.revision, "main");
    assert_int_equal(hub_name_read("a/b", "../x", &n, &err), HY_USAGE);
    char path[HUB_PATH];
    assert_true(hub_folder("/cache", &n, "blobs/x", path));
    assert_string_equal(path, "/cache/models--a--b/blobs/x");
    char longest[HUB_PATH];
    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = 0;
    assert_false(hub_folder(longest, &n, "", path));
}

static void parts(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        hub_part part;
    } files[] = {{"config.json", HUB_SMALL},      {"chat_template.jinja", HUB_SMALL},
                 {"tokenizer.json", HUB_SMALL},   {"merges.txt", HUB_SMALL},
                 {"a.tiktoken", HUB_SMALL},       {"model-00001-of-00002.safetensors", HUB_WEIGHTS},
                 {"model.safetensors.index.json", HUB_INDEX},
                 {"dspark/config.json", HUB_SMALL}, {"dspark/model.safetensors", HUB_WEIGHTS},
                 {"README.md", HUB_NOT_NEEDED},   {"original/a.safetensors", HUB_NOT_NEEDED},
                 {".json", HUB_NOT_NEEDED},       {"modeling.py", HUB_NOT_NEEDED},
                 {"pytorch_model.bin", HUB_NOT_NEEDED}, {"../config.json", HUB_NOT_NEEDED},
                 {"dspark/../config.json", HUB_NOT_NEEDED}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) assert_int_equal(hub_part_of(files[i].path), files[i].part);
    static const char *const bad[] = {"", "/a", "a//b", "a/", "../a", "a/../b", ".a", "a\\b", "a\nb"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(hub_path_valid(bad[i]));
    assert_true(hub_path_valid("dspark/model 1.safetensors"));
    assert_true(hub_is_hash(HASH40) && hub_is_hash(HASH64) && hub_is_commit(HASH40));
    assert_false(hub_is_hash("abc") || hub_is_commit(HASH64) || hub_is_hash("G123456789abcdef0123456789abcdef01234567"));
}

static hy_status read_text(const char *text, hub_listing *l, hy_error *err)
{
    return listing_read(text, strlen(text), l, err);
}

#define FILE40(name) "{\"rfilename\":\"" name "\",\"size\":7,\"blobId\":\"" HASH40 "\"}"
#define FILE64(name) "{\"rfilename\":\"" name "\",\"size\":1,\"blobId\":\"x\",\"lfs\":{\"sha256\":\"" HASH64 "\",\"size\":9}}"
#define LIST(files) "{\"sha\":\"" HASH40 "\",\"siblings\":[" files "]}"

static void listings(void **state)
{
    (void)state;
    hub_listing l;
    hy_error err = {0};
    assert_int_equal(read_text(LIST(FILE64("m-2.safetensors") "," FILE40("config.json") "," FILE40("README.md") "," FILE64("m-1.safetensors")
                                        "," FILE64("x.safetensors") "," FILE64("dspark/model.safetensors") "," FILE64("dspark/y.safetensors")),
                               &l, &err),
                     HY_OK);
    assert_string_equal(l.commit, HASH40);
    assert_int_equal(l.count, 6);
    assert_string_equal(l.files[0].path, "config.json"); /* what is small comes first */
    assert_int_equal(l.files[0].size, 7);
    assert_int_equal(l.files[1].size, 9);
    assert_string_equal(l.files[1].hash, HASH64);
    const char *index = "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\",\"c\":\"m-1.safetensors\"}}";
    assert_int_equal(listing_keep(&l, "", index, &err), HY_OK);
    assert_int_equal(l.count, 5);
    assert_int_equal(listing_keep(&l, "dspark/", NULL, &err), HY_OK);
    assert_int_equal(l.count, 4);
    assert_string_equal(l.files[1].path, "dspark/model.safetensors");
    assert_string_equal(l.files[3].path, "m-2.safetensors");
    assert_int_equal(listing_keep(&l, "", "{\"weight_map\":{\"a\":\"../../m.safetensors\"}}", &err), HY_BAD_MODEL);
    assert_int_equal(listing_keep(&l, "", "[]", &err), HY_BAD_MODEL);
    listing_free(&l);
    static const char *const bad[] = {"", "[]", "{}", "{\"sha\":\"x\",\"siblings\":[]}", "{\"sha\":\"" HASH40 "\"}", LIST("{}"), LIST("3"),
                                      LIST("{\"rfilename\":\"config.json\"}"), LIST("{\"rfilename\":\"config.json\",\"size\":-1,\"blobId\":\"" HASH40 "\"}"),
                                      LIST("{\"rfilename\":\"config.json\",\"size\":1,\"blobId\":\"../x\"}"),
                                      LIST("{\"rfilename\":\"a.json\",\"size\":1,\"blobId\":\"" HASH40 "\",\"lfs\":{\"sha256\":\"" HASH40 "\",\"size\":1}}")};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(read_text(bad[i], &l, &err), HY_FAILED);
}

/* As many files as a listing may have, in time; against all pairs for few. */
static void same_contents(void **state)
{
    (void)state;
    enum { FEW = 300, MANY = 100000 };
    hub_file *files = calloc(MANY, sizeof *files);
    assert_non_null(files);
    for (int i = 0; i < FEW; i++) snprintf(files[i].hash, sizeof files[i].hash, "%d", (i * 7919) % 97);
    bool *again = blobs_again(files, FEW);
    assert_non_null(again);
    for (int i = 0; i < FEW; i++) {
        bool want = false;
        for (int k = 0; k < i; k++) want = want || !strcmp(files[k].hash, files[i].hash);
        assert_int_equal(again[i], want);
    }
    free(again);
    for (int i = 0; i < MANY; i++) snprintf(files[i].hash, sizeof files[i].hash, "%064d", i / 2 * 2);
    again = blobs_again(files, MANY);
    assert_non_null(again);
    for (int i = 0; i < MANY; i++) assert_int_equal(again[i], i % 2);
    free(again);
    again = blobs_again(files, 0);
    assert_non_null(again);
    free(again), free(files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(names), cmocka_unit_test(parts), cmocka_unit_test(listings), cmocka_unit_test(same_contents)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
