/* Folders: shards and their index, hub caches, the drafter beside the model. */
#include "small_model.h"

/* ---- Shards, index, hub ------------------------------------------------------------------------------------------ */

static void refused(const char *path, const char *words)
{
    checkpoint *c = NULL;
    hy_error err = {0};
    assert_int_equal(checkpoint_open(path, &c, &err), HY_BAD_MODEL);
    assert_null(c);
    if (!strstr(err.message, words)) fail_msg("\"%s\" does not say \"%s\"", err.message, words);
}

/* A model's own drafter that is none stops nobody who does not ask for it; who does is told why. */
static void left_out(hy_status status, const char *words)
{
    hy_error err = {0};
    checkpoint *c = opened();
    assert_null(checkpoint_draft(c));
    assert_null(checkpoint_draft_folder(c));
    assert_int_equal(checkpoint_tensor_count(c, true), 0);
    assert_int_equal(checkpoint_check_draft(c, &err), status);
    if (!strstr(err.message, words)) fail_msg("\"%s\" does not say \"%s\"", err.message, words);
    checkpoint_close(c);
}

/* Two shards; the second one begins with tensor `cut`. */
static size_t write_sharded(const files *f)
{
    config c = tiny();
    size_t cut = f->count / 2;
    write_config(&c);
    write_range(f, "b-00001.safetensors", 0, cut);
    write_range(f, "b-00002.safetensors", cut, f->count);
    return cut;
}

/* The index of write_sharded with `change` appended to its map; skip leaves one tensor out. */
static void write_index(const files *f, size_t cut, size_t skip, const char *change)
{
    static char text[32768];
    size_t n = (size_t)snprintf(text, sizeof text,
                                "{\"metadata\":{\"total_size\":1.5e3,\"x\":[true,null,\"\\n\"]},\"weight_map\":{");
    bool first = true;
    for (size_t i = 0; i < f->count; i++) {
        if (i == skip) continue;
        n += (size_t)snprintf(text + n, sizeof text - n, "%s\"%s\":\"b-0000%d.safetensors\"", first ? "" : ",",
                              f->list[i].name, i < cut ? 1 : 2);
        first = false;
    }
    snprintf(text + n, sizeof text - n, "%s}}", change);
    put_text("model.safetensors.index.json", text);
}

static void sharded(void **state)
{
    (void)state;
    parts p = make_parts();
    files f = make_plain(&p, PUBLISHED);
    size_t cut = write_sharded(&f);
    put_text("a.txt", "not a shard");
    for (int indexed = 0; indexed < 2; indexed++) { /* first all files of the folder, then those of the index */
        if (indexed) write_index(&f, cut, SIZE_MAX, "");
        checkpoint *c = opened();
        assert_int_equal(checkpoint_shard_count(c, false), 2);
        assert_non_null(strstr(checkpoint_shard_path(c, 1, false), "/b-00002.safetensors"));
        assert_null(checkpoint_shard_path(c, 2, false));
        assert_int_equal(checkpoint_tensor_count(c, false), f.count);
        for (size_t i = 0; i < f.count; i++)
            assert_string_equal(checkpoint_tensor_at(c, i, false)->name, f.list[i].name);
        assert_null(checkpoint_tensor_at(c, f.count, false));
        check_values(c, &p);
        checkpoint_close(c);
    }
    write_index(&f, cut, 0, ""); /* a tensor that the index does not list is still there */
    checkpoint *c = opened();
    assert_int_equal(checkpoint_tensor_count(c, false), f.count);
    assert_non_null(checkpoint_find(c, f.list[0].name));
    checkpoint_close(c);
    free_files(&f);
    free_parts(&p);
}

static void bad_index(void **state)
{
    (void)state;
    parts p = make_parts();
    files f = make_plain(&p, PUBLISHED);
    size_t cut = write_sharded(&f);
    static const struct {
        const char *change, *words;
    } list[] = {
        {",\"x\":\"../b-00001.safetensors\"", "puts x into \"../b-00001.safetensors\", which is not the name"},
        {",\"x\":\"/etc/x.safetensors\"", "puts x into \"/etc/x.safetensors\""},
        {",\"x\":\"sub/b.safetensors\"", "puts x into \"sub/b.safetensors\""},
        {",\"x\":\"..\"", "puts x into \"..\""},
        {",\"x\":\"\"", "puts x into \"\""},
        {",\"x\":\"config.json\"", "puts x into \"config.json\""},
        {",\"x\":\"b-00003.safetensors\"",
         "the shard b-00003.safetensors that model.safetensors.index.json names is missing"},
        {",\"x\":\"b-00001.safetensors\"", "tensor x is missing from b-00001.safetensors"},
        {",\"x\":1", "damaged"},
        {",\"x\"", "damaged"},
        {"", NULL},
    };
    for (size_t i = 0; list[i].words; i++) {
        write_index(&f, cut, SIZE_MAX, list[i].change);
        refused(folder, list[i].words);
    }
    write_index(&f, cut + 1, SIZE_MAX, ""); /* the first tensor of shard 2 is said to be in shard 1 */
    refused(folder, f.list[cut].name);
    refused(folder, "into b-00001.safetensors but it is in b-00002.safetensors");
    static const char *const broken[][2] = {{"", "damaged"},
                                            {"[]", "damaged"},
                                            {"{}", "no weight_map"},
                                            {"{\"weight_map\":[]}", "damaged"},
                                            {"{\"weight_map\":{}} x", "follows"},
                                            {"{\"weight_map\":{},\"weight_map\":{}}", "twice"},
                                            {"{\"metadata\":{\"a\":01},\"weight_map\":{}}", "damaged"}};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        put_text("model.safetensors.index.json", broken[i][0]);
        refused(folder, broken[i][1]);
    }
    unlink(at("model.safetensors.index.json"));
    write_range(&f, "b-00003.safetensors", 0, 1);
    refused(folder, "is in two files: b-00001.safetensors and b-00003.safetensors");
    /* a truncated shard */
    unlink(at("b-00003.safetensors"));
    struct stat st;
    assert_int_equal(stat(at("b-00002.safetensors"), &st), 0);
    assert_int_equal(truncate(at("b-00002.safetensors"), st.st_size - 1), 0);
    refused(folder, "b-00002.safetensors");
    refused(folder, "truncated");
    free_files(&f);
    free_parts(&p);
}

static void bad_folders(void **state)
{
    (void)state;
    config c = tiny();
    refused(at("nothing"), "is not a folder");
    refused(folder, "has no config.json");
    write_config(&c);
    refused(folder, "has no safetensors files");
    refused(at("config.json"), "is not a folder");
    put_text("config.json", "{\"model_type\":\"llama\"}");
    refused(folder, "model_type \"llama\"");
}

static void hub_cache(void **state)
{
    (void)state;
    parts p = make_parts();
    files f = make_plain(&p, PUBLISHED);
    const char *home = "models--MiniMaxAI--MiniMax-M3", *rev = "0123456789abcdef0123456789abcdef01234567";
    char name[200], snapshot[200], top[256];
    assert_int_equal(mkdir(at(home), 0755), 0);
    snprintf(top, sizeof top, "%s", at(home));
    snprintf(name, sizeof name, "%s/snapshots", home);
    assert_int_equal(mkdir(at(name), 0755), 0);
    refused(top, "has no snapshot");
    snprintf(snapshot, sizeof snapshot, "%s/snapshots/%s", home, rev);
    assert_int_equal(mkdir(at(snapshot), 0755), 0);
    /* blobs and links, as the hub's client lays them out */
    snprintf(name, sizeof name, "%s/blobs", home);
    assert_int_equal(mkdir(at(name), 0755), 0);
    write_model(&f);
    static const char *const moved[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        char from[200], to[200], link[300];
        snprintf(to, sizeof to, "%s/blobs/%d", home, i);
        snprintf(from, sizeof from, "../../blobs/%d", i);
        snprintf(link, sizeof link, "%s/%s", snapshot, moved[i]);
        assert_int_equal(rename(at(moved[i]), at(to)), 0);
        assert_int_equal(symlink(from, at(link)), 0);
    }
    char paths[3][512];
    snprintf(paths[0], sizeof paths[0], "%s", top);
    snprintf(paths[1], sizeof paths[1], "%s/snapshots/", top);
    snprintf(paths[2], sizeof paths[2], "%s/snapshots/%s", top, rev);
    for (int with_ref = 0; with_ref < 2; with_ref++) {
        if (with_ref) {
            snprintf(name, sizeof name, "%s/refs", home);
            assert_int_equal(mkdir(at(name), 0755), 0);
            strcat(name, "/main");
            put_text(name, "0123456789abcdef0123456789abcdef01234567\n");
        }
        for (int i = 0; i < 3; i++) {
            checkpoint *c = NULL;
            hy_error err = {0};
            if (checkpoint_open(paths[i], &c, &err) != HY_OK) fail_msg("%s: %s", paths[i], err.message);
            assert_string_equal(checkpoint_folder(c) + strlen(checkpoint_folder(c)) - strlen(rev), rev);
            check_values(c, &p);
            checkpoint_close(c);
        }
    }
    static const char *const refs[][2] = {{"../../x", "holds no revision but \"../../x\""},
                                          {"", "holds no revision"},
                                          {"..", "holds no revision"},
                                          {"a/b", "holds no revision"},
                                          {"feed", "the snapshot feed of"}};
    for (size_t i = 0; i < sizeof refs / sizeof refs[0]; i++) {
        put_text(name, refs[i][0]);
        refused(top, refs[i][1]);
    }
    free_files(&f);
    free_parts(&p);
}

/* ---- The drafter's folder ---------------------------------------------------------------------------------------- */

static void drafter_folder(void **state)
{
    (void)state;
    parts p = make_parts();
    files f = make_plain(&p, PUBLISHED);
    config k = tiny();
    write_model(&f);
    assert_int_equal(mkdir(at("dspark"), 0755), 0);
    left_out(HY_BAD_MODEL, "dspark has no config.json");
    draft_config d = config_drafter(&k);
    char *text = draft_config_write(&d, NULL);
    put_text("dspark/config.json", text);
    free(text);
    left_out(HY_BAD_MODEL, "dspark has no safetensors files");
    write_range(&f, "dspark/model.safetensors", 0, 2);
    checkpoint *c = opened();
    assert_non_null(checkpoint_draft(c));
    assert_int_equal(checkpoint_draft(c)->taps[4], 1);
    assert_int_equal(checkpoint_tensor_count(c, true), 2);
    assert_int_equal(checkpoint_tensor_count(c, false), f.count);
    assert_int_equal(checkpoint_shard_count(c, true), 1);
    checkpoint_close(c);
    d.taps[4] = 2;
    text = draft_config_write(&d, NULL);
    put_text("dspark/config.json", text);
    free(text);
    left_out(HY_BAD_MODEL, "reads layer 2 of a target with 2 layers");
    d.taps[4] = 1, d.hidden = 96;
    text = draft_config_write(&d, NULL);
    put_text("dspark/config.json", text);
    free(text);
    left_out(HY_BAD_MODEL, "do not belong together");
    free_files(&f);
    free_parts(&p);
}

int main(void)
{
#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(sharded),   IN_FOLDER(bad_index),      IN_FOLDER(bad_folders),
        IN_FOLDER(hub_cache), IN_FOLDER(drafter_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
