/* Random checkpoints: the same bytes for a seed whatever the files look like, and values that a network can live with.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/synth.h"

static char work[64]; /* a folder of this test */

static const char *path(const char *name)
{
    static char out[4][128];
    static int next;
    char *p = out[next++ % 4];
    snprintf(p, sizeof out[0], "%s/%s", work, name);
    return p;
}

static int set_up(void **state)
{
    (void)state;
    strcpy(work, "/tmp/hayate-synth-XXXXXX");
    return mkdtemp(work) ? 0 : -1;
}

static int tear_down(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", work);
    return system(command);
}

static config small(void)
{
    config c;
    assert_true(config_known("m3.1-flash", &c));
    hy_error err = {0};
    assert_int_equal(config_slice(&c, 3, 1, &err), HY_OK);
    c.bos = 1, c.eos = 2, c.image_token = 3, c.video_token = 4;
    c.hidden = 256, c.vocab = 500, c.heads = 32, c.kv_heads = 2, c.index_heads = 2;
    c.experts = 6, c.expert_width = 192, c.shared_width = 128, c.dense_width = 512;
    c.vision_layers = 1, c.vision_hidden = 64, c.vision_heads = 2, c.vision_width = 128, c.projector_hidden = 96;
    return c;
}

static checkpoint *write_and_open(const config *c, const char *name, const synth_options *o)
{
    hy_error err = {0};
    checkpoint *opened = NULL;
    if (synth_write(c, path(name), o, &err) != HY_OK) fail_msg("%s", err.message);
    if (checkpoint_open(path(name), &opened, &err) != HY_OK) fail_msg("%s", err.message);
    return opened;
}

/* Tensors of a equal those of b of the same name; how many bytes differ. */
static uint64_t differences(const checkpoint *a, const checkpoint *b, bool draft)
{
    uint64_t n = 0;
    assert_int_equal(checkpoint_tensor_count(a, draft), checkpoint_tensor_count(b, draft));
    for (size_t i = 0; i < checkpoint_tensor_count(a, draft); i++) {
        const tensor *t = checkpoint_tensor_at(a, i, draft);
        const tensor *u = draft ? checkpoint_tensor_at(b, i, true) : checkpoint_find(b, t->name);
        assert_non_null(u);
        assert_string_equal(t->name, u->name);
        assert_int_equal(t->bytes, u->bytes);
        for (size_t k = 0; k < t->bytes; k++) n += ((const uint8_t *)t->data)[k] != ((const uint8_t *)u->data)[k];
    }
    return n;
}

static void a_seed_decides_every_byte(void **state)
{
    (void)state;
    config c = small();
    checkpoint *one = write_and_open(&c, "one", &(synth_options){.scheme = SCHEME_M31, .seed = 5, .drafter = true});
    checkpoint *cut = write_and_open(
        &c, "cut", &(synth_options){.scheme = SCHEME_M31, .seed = 5, .drafter = true, .shard_bytes = 100000});
    checkpoint *other = write_and_open(&c, "other", &(synth_options){.scheme = SCHEME_M31, .seed = 6, .drafter = true});
    assert_int_equal(checkpoint_shard_count(one, false), 1);
    assert_true(checkpoint_shard_count(cut, false) > 20);
    assert_int_equal(differences(one, cut, false), 0);
    assert_int_equal(differences(one, cut, true), 0);
    assert_true(differences(one, other, false) > 100000);
    assert_true(differences(one, other, true) > 100000);
    checkpoint_close(one);
    checkpoint_close(cut);
    checkpoint_close(other);
}

/* Where another makes the weights, what is left of them is a hole, has its description, and the rest is as it would be. */
static void made_elsewhere(void **state)
{
    (void)state;
    config c = small();
    hy_error err = {0};
    uint64_t seed;
    checkpoint *written = write_and_open(&c, "whole", &(synth_options){.scheme = SCHEME_M31, .seed = 9, .drafter = true});
    checkpoint *made = NULL;
    dummy_options o = {.seed = 9, .copies = 1 << 30, .elsewhere = true};
    if (checkpoint_open_dummy(path("whole"), &o, &made, &err) != HY_OK) fail_msg("%s", err.message);
    if (checkpoint_open_dummy_draft(made, NULL, &o, &err) != HY_OK) fail_msg("%s", err.message);
    const synth_made *list = checkpoint_made(made, &seed);
    assert_non_null(list);
    assert_int_equal(seed, 9);
    assert_null(checkpoint_made(written, &seed));
    size_t holes = 0;
    for (int draft = 0; draft < 2; draft++)
        for (size_t i = 0; i < checkpoint_tensor_count(made, draft); i++) {
            const tensor *t = checkpoint_tensor_at(made, i, draft), *u = checkpoint_tensor_at(written, i, draft);
            const synth_piece *p = synth_made_find(list, t->data);
            assert_string_equal(t->name, u->name);
            assert_int_equal(t->bytes, u->bytes);
            assert_non_null(p);
            assert_int_equal(p->bytes, t->bytes);
            bool hole = t->bytes > SYNTH_MADE_HERE && t->shape[0] > 1;
            holes += hole;
            for (size_t k = 0; k < t->bytes && hole; k++) assert_int_equal(((const uint8_t *)t->data)[k], 0);
            if (!hole) assert_memory_equal(t->data, u->data, t->bytes);
        }
    assert_true(holes > 10);
    checkpoint_close(made), checkpoint_close(written);
}

/* A geometry by its name, or some layers of it; of the real size where another makes it. */
static void geometries(void **state)
{
    (void)state;
    checkpoint *c = NULL;
    hy_error err = {0};
    uint64_t seed, bytes = 0;
    dummy_options o = {.layers = 24, .with_experts = 24, .elsewhere = true};
    if (checkpoint_open_dummy("m3.1-flash", &o, &c, &err) != HY_OK) fail_msg("%s", err.message);
    assert_false(checkpoint_has_config(c));
    assert_int_equal(checkpoint_config(c)->layers, 24);
    for (int i = 0; i < 24; i++) assert_true(checkpoint_config(c)->moe[i]);
    for (size_t i = 0; i < checkpoint_tensor_count(c, false); i++) bytes += checkpoint_tensor_at(c, i, false)->bytes;
    assert_true(bytes > 100000000000);
    if (checkpoint_open_dummy_draft(c, NULL, &o, &err) != HY_OK) fail_msg("%s", err.message);
    assert_int_equal(checkpoint_check_draft(c, &err), HY_OK);
    assert_non_null(checkpoint_made(c, &seed));
    weight w;
    assert_int_equal(checkpoint_weight(c, ROLE_EXPERT_UP, 23, 127, &w, &err), HY_OK);
    assert_int_equal(w.format, WEIGHT_NVFP4);
    assert_true(w.global > 0);
    assert_non_null(synth_made_find(checkpoint_made(c, &seed), w.data));
    checkpoint_close(c);
    o = (dummy_options){.layers = 5, .with_experts = 6, .elsewhere = true};
    assert_int_equal(checkpoint_open_dummy("m3.1-flash", &o, &c, &err), HY_USAGE);
    o.layers = -1, o.with_experts = 0;
    assert_int_equal(checkpoint_open_dummy("m3.1-flash", &o, &c, &err), HY_USAGE);
    o.layers = 0;
    assert_int_equal(checkpoint_open_dummy("m3.2-flash", &o, &c, &err), HY_BAD_MODEL);
}

static bool stop_at_once(void *user, const char *what, uint64_t done, uint64_t total, const char *unit)
{
    (void)what, (void)unit;
    *(uint64_t *)user = total;
    return done > total; /* never */
}

/* Weights of memory are those that a file would hold, also where there are no files at all. */
static void dummies_are_the_same(void **state)
{
    (void)state;
    static const layout_scheme schemes[] = {SCHEME_M31, SCHEME_MXFP8, SCHEME_BF16};
    config c = small();
    hy_error err = {0};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        char name[16], file[96], command[400];
        checkpoint *made = NULL, *again = NULL;
        snprintf(name, sizeof name, "dummy%zu", i);
        checkpoint *written =
            write_and_open(&c, name, &(synth_options){.scheme = schemes[i], .seed = 9, .drafter = true});
        snprintf(file, sizeof file, "%s/alone%zu", work, i);
        snprintf(command, sizeof command, "mkdir -p %s/d && cp %s/config.json %s && cp %s/dspark/config.json %s/d",
                 file, path(name), file, path(name), file);
        assert_int_equal(system(command), 0);
        dummy_options o = {.seed = 9, .copies = 1};
        if (checkpoint_open_dummy(file, &o, &made, &err) != HY_OK) fail_msg("%s", err.message);
        assert_int_equal(differences(written, made, false), 0);
        weight_file map = checkpoint_shard_file(made, 0, false);
        assert_true(file_exists(map.path) && map.bytes > 0);
        o.seed = 10;
        assert_int_equal(checkpoint_open_dummy(path(name), &o, &again, &err),
                         HY_OK); /* weights that are there are not read */
        assert_true(differences(written, again, false) > 100000);
        assert_null(checkpoint_draft(again));
        /* A drafter as well, from a folder of its own or the checkpoint's. */
        snprintf(command, sizeof command, "%s/d", file);
        o.seed = 9;
        assert_int_equal(checkpoint_open_dummy_draft(made, file, &o, &err), HY_BAD_MODEL); /* a target's config */
        assert_int_equal(checkpoint_open_dummy_draft(again, NULL, &o, &err), HY_OK);
        assert_int_equal(checkpoint_check_draft(again, &err), HY_OK);
        assert_int_equal(differences(written, again, true), 0);
        checkpoint_close(again);
        assert_int_equal(checkpoint_open_dummy(file, &o, &again, &err), HY_OK);
        assert_int_equal(checkpoint_open_dummy_draft(again, command, &o, &err), HY_OK);
        assert_int_equal(differences(written, again, true), 0);
        checkpoint_close(again), checkpoint_close(made), checkpoint_close(written);
    }
    checkpoint *none = NULL;
    uint64_t total = 0;
    dummy_options o = {.copies = 1 << 30};
    assert_int_equal(checkpoint_open_dummy(path("alone0"), &o, &none, &err), HY_NO_FIT);
    assert_non_null(strstr(err.message, "are needed and"));
    o.copies = 1, o.on_progress = stop_at_once, o.user = &total;
    assert_int_equal(checkpoint_open_dummy(path("alone0"), &o, &none, &err), HY_CANCELLED);
    assert_int_equal(total, layout_count(&c, SCHEME_M31).bytes);
    assert_int_equal(checkpoint_open_dummy("/nowhere", &o, &none, &err), HY_BAD_MODEL);
    assert_null(none);
}

/* The tensors are those of the layout, in its order. */
typedef struct order {
    const checkpoint *c;
    size_t next;
    bool draft;
} order;

static bool same_as_file(void *user, const layout_entry *e)
{
    order *o = user;
    const tensor *t = checkpoint_tensor_at(o->c, o->next++, o->draft);
    assert_string_equal(t->name, e->name);
    assert_int_equal(t->dtype, e->dtype);
    assert_int_equal(t->dims, e->dims);
    for (int i = 0; i < e->dims; i++) assert_int_equal(t->shape[i], e->shape[i]);
    return true;
}

static void files_follow_the_layout(void **state)
{
    (void)state;
    static const char *const names[] = {"l-bf16", "l-mxfp8", "l-m31", "l-modelopt"};
    config c = small();
    for (int scheme = 0; scheme < 4; scheme++) {
        checkpoint *k =
            write_and_open(&c, names[scheme], &(synth_options){.scheme = (layout_scheme)scheme, .drafter = true});
        order o = {.c = k};
        layout_walk(&c, (layout_scheme)scheme, same_as_file, &o);
        assert_int_equal(o.next, checkpoint_tensor_count(k, false));
        order d = {.c = k, .draft = true};
        layout_walk_draft(&c, checkpoint_draft(k), same_as_file, &d);
        assert_int_equal(d.next, 97);
        assert_int_equal(checkpoint_config(k)->layers, 3);
        assert_int_equal(checkpoint_config(k)->experts, 6);
        checkpoint_close(k);
    }
}

typedef struct moments {
    double mean, deviation, largest;
} moments;

static moments measure(const weight *w)
{
    double sum = 0, squares = 0, largest = 0, n = (double)w->rows * (double)w->cols;
    float *row = malloc((size_t)w->cols * sizeof *row);
    for (int64_t r = 0; r < w->rows; r++) {
        weight_row(w, r, row);
        for (int64_t i = 0; i < w->cols; i++) {
            assert_true(isfinite(row[i]));
            sum += row[i], squares += (double)row[i] * row[i];
            if (fabs((double)row[i]) > largest) largest = fabs((double)row[i]);
        }
    }
    free(row);
    return (moments){sum / n, sqrt(squares / n - sum / n * (sum / n)), largest};
}

static void expect(const checkpoint *c, weight_role role, int layer, int expert, double deviation)
{
    weight w;
    hy_error err = {0};
    if (checkpoint_weight(c, role, layer, expert, &w, &err) != HY_OK) fail_msg("%s", err.message);
    if (checkpoint_check_scales(&w, weight_role_name(role), &err) != HY_OK) fail_msg("%s", err.message);
    moments m = measure(&w);
    double n = (double)w.rows * (double)w.cols;
    /* sampling error of mean and deviation: five sigma; quantised deviations also by their discrete scales */
    double slack =
        5 * deviation / sqrt(n) + (w.format == WEIGHT_MXFP8 || w.format == WEIGHT_NVFP4 ? 0.02 * deviation : 0);
    if (fabs(m.mean) > slack || fabs(m.deviation - deviation) > slack)
        fail_msg("%s of layer %d: mean %g, deviation %g instead of %g", weight_role_name(role), layer, m.mean,
                 m.deviation, deviation);
}

static void values_are_sane_in_every_scheme(void **state)
{
    (void)state;
    static const char *const names[] = {"v-bf16", "v-mxfp8", "v-m31", "v-modelopt"};
    config c = small();
    double add = 1 / sqrt(2.0 * c.layers);
    for (int scheme = 0; scheme < 4; scheme++) {
        checkpoint *k = write_and_open(&c, names[scheme], &(synth_options){.scheme = (layout_scheme)scheme, .seed = 1});
        expect(k, ROLE_EMBED, -1, 0, 1);
        expect(k, ROLE_HEAD, -1, 0, 1 / 16.0);
        expect(k, ROLE_FINAL_NORM, -1, 0, 0.1);
        expect(k, ROLE_INPUT_NORM, 0, 0, 0.1);
        expect(k, ROLE_INDEX_K_NORM, 1, 0, 0.1);
        for (weight_role r = ROLE_Q; r <= ROLE_V; r++) expect(k, r, 1, 0, 1 / 16.0);
        expect(k, ROLE_O, 1, 0, add / 64);
        expect(k, ROLE_INDEX_Q, 2, 0, 1 / 16.0);
        expect(k, ROLE_INDEX_K, 0, 0, 1 / 16.0);
        expect(k, ROLE_DENSE_UP, 0, 0, 1 / 16.0);
        expect(k, ROLE_DENSE_DOWN, 0, 0, add / sqrt(512));
        expect(k, ROLE_ROUTER, 1, 0, 1 / 16.0);
        expect(k, ROLE_ROUTER_BIAS, 2, 0, 0.1);
        expect(k, ROLE_SHARED_GATE, 1, 0, 1 / 16.0);
        expect(k, ROLE_SHARED_DOWN, 2, 0, add / sqrt(128));
        for (int e = 0; e < c.experts; e++) {
            expect(k, ROLE_EXPERT_GATE, 1, e, 1 / 16.0);
            expect(k, ROLE_EXPERT_UP, 2, e, 1 / 16.0);
            expect(k, ROLE_EXPERT_DOWN, 1, e, add / sqrt(192));
        }
        weight up, gate;
        hy_error err = {0};
        assert_int_equal(checkpoint_weight(k, ROLE_EXPERT_UP, 1, 0, &up, &err), HY_OK);
        assert_int_equal(checkpoint_weight(k, ROLE_EXPERT_GATE, 1, 0, &gate, &err), HY_OK);
        if (up.format == WEIGHT_NVFP4) assert_true(up.global == gate.global); /* w1 and w3 share it */
        checkpoint_close(k);
    }
}

/* E4M3 codes are never NaN and E2M1 codes never negative zero, in any tensor. */
static void codes_are_legal(void **state)
{
    (void)state;
    config c = small();
    checkpoint *k = write_and_open(&c, "codes", &(synth_options){.scheme = SCHEME_M31, .drafter = true});
    for (int draft = 0; draft < 2; draft++)
        for (size_t i = 0; i < checkpoint_tensor_count(k, draft); i++) {
            const tensor *t = checkpoint_tensor_at(k, i, draft);
            const uint8_t *b = t->data;
            bool packed = strstr(t->name, ".weight_packed") != NULL,
                 scale = strstr(t->name, ".weight_scale_inv") != NULL;
            uint64_t bad = 0;
            for (size_t j = 0; j < t->bytes; j++) {
                if (t->dtype == TENSOR_F8_E4M3) bad += (b[j] & 0x7F) == 0x7F;
                if (packed) bad += (b[j] & 15) == 8 || b[j] >> 4 == 8;
                if (scale) bad += b[j] < 100 || b[j] > 130;
            }
            assert_int_equal(bad, 0);
        }
    checkpoint_close(k);
}

static void holes_have_size_but_no_data(void **state)
{
    (void)state;
    config c;
    hy_error err = {0};
    assert_true(config_known("m3.1-flash", &c));
    assert_int_equal(
        synth_write(&c, path("holes"), &(synth_options){.scheme = SCHEME_M31, .holes = true, .drafter = true}, &err),
        HY_OK);
    uint64_t size = 0, blocks = 0;
    for (int i = 1; i <= 48; i++) {
        char name[64];
        struct stat st;
        snprintf(name, sizeof name, "holes/model-%05d-of-00048.safetensors", i);
        assert_int_equal(stat(path(name), &st), 0);
        assert_true((uint64_t)st.st_size < 5260000000u);
        size += (uint64_t)st.st_size, blocks += (uint64_t)st.st_blocks;
    }
    assert_true(size > 250103411200 && size < 250103411200 + 20000000);
    assert_true(blocks * 512 < 100000000);
    checkpoint *k = NULL;
    assert_int_equal(checkpoint_open(path("holes"), &k, &err), HY_OK);
    assert_int_equal(checkpoint_tensor_count(k, false), 89632);
    assert_int_equal(checkpoint_tensor_count(k, true), 97);
    checkpoint_close(k);
}

static void failures_leave_nothing(void **state)
{
    (void)state;
    config c = small();
    hy_error err = {0};
    uint64_t total = 0;
    synth_options o = {.scheme = SCHEME_M31, .on_progress = stop_at_once, .user = &total};
    assert_int_equal(synth_write(&c, path("stopped"), &o, &err), HY_CANCELLED);
    assert_int_equal(total, layout_count(&c, SCHEME_M31).bytes);
    assert_false(file_is_folder(path("stopped")));

    /* a folder that was there stays, empty as before */
    assert_int_equal(mkdir(path("mine"), 0777), 0);
    assert_int_equal(synth_write(&c, path("mine"), &o, &err), HY_CANCELLED);
    assert_int_equal(rmdir(path("mine")), 0);

    /* a write that fails half-way: a limit on file sizes stands for a full disk */
    struct rlimit old, low = {1 << 20, 1 << 20};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    low.rlim_max = old.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    hy_status s = synth_write(&c, path("full"), &(synth_options){.scheme = SCHEME_M31}, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(s, HY_FAILED);
    assert_non_null(strstr(err.message, "model.safetensors"));
    assert_false(file_is_folder(path("full")));
}

static void wrong_places_are_refused(void **state)
{
    (void)state;
    config c = small();
    hy_error err = {0};
    synth_options o = {.scheme = SCHEME_M31};
    assert_int_equal(synth_write(&c, work, &o, &err), HY_USAGE); /* has folders of the other tests */
    assert_non_null(strstr(err.message, "not empty"));
    assert_int_equal(synth_write(&c, path("no/such/place"), &o, &err), HY_USAGE);
    FILE *f = fopen(path("a-file"), "w");
    fclose(f);
    assert_int_equal(synth_write(&c, path("a-file"), &o, &err), HY_USAGE);
    assert_non_null(strstr(err.message, "not a folder"));
    assert_int_equal(synth_write(&c, "", &o, &err), HY_USAGE);
    c.hidden = 250;
    assert_int_equal(synth_write(&c, path("odd"), &o, &err), HY_USAGE);
    assert_non_null(strstr(err.message, "hidden_size is 250"));
    assert_false(file_is_folder(path("odd")));
    c = small();
    c.vocab = 2000000000, c.hidden = 1 << 20; /* petabytes */
    assert_int_equal(synth_write(&c, path("huge"), &o, &err), HY_NO_FIT);
    assert_non_null(strstr(err.message, "GB free"));
    assert_false(file_is_folder(path("huge")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_seed_decides_every_byte), cmocka_unit_test(dummies_are_the_same),
        cmocka_unit_test(made_elsewhere),            cmocka_unit_test(geometries),
        cmocka_unit_test(files_follow_the_layout),   cmocka_unit_test(values_are_sane_in_every_scheme),
        cmocka_unit_test(codes_are_legal),           cmocka_unit_test(holes_have_size_but_no_data),
        cmocka_unit_test(failures_leave_nothing),    cmocka_unit_test(wrong_places_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
