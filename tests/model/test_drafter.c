/* The drafter of a model: what opening it gives, what it costs, what is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/forward.h"
#include "model/model_parts.h"

static hy_error err;
#define OK(call)                                                                                                       \
    do {                                                                                                               \
        hy_status status_ = (call);                                                                                    \
        if (status_ != HY_OK) fail_msg("%s: %s", hy_status_name(status_), err.message);                                \
    } while (0)

static hy_model *open_model(const char *path, hy_model_options options)
{
    hy_model *m = NULL;
    OK(hy_model_open(path, &options, &m, &err));
    return m;
}

static void test_bundled(void **state)
{
    (void)state;
    hy_model *m = open_model(TEST_SOURCE "/models/m3-nano", (hy_model_options){.drafter = "on"});
    const ops_model *t = model_ops_model(m);
    const ops_drafter *d = t->drafter;
    assert_non_null(d);
    assert_int_equal(d->layers, 3);
    assert_int_equal(d->heads, 8);
    assert_int_equal(d->kv_heads, 4);
    assert_int_equal(d->head_dim, 128);
    assert_int_equal(d->rotary_dim, 64);
    assert_int_equal(d->width, 768);
    assert_int_equal(d->block, 7);
    assert_int_equal(d->window, 256);
    assert_int_equal(d->noise_token, 2041);
    assert_int_equal(d->tap_count, 5);
    for (int i = 0; i < 5; i++) assert_int_equal(d->tap[i], i + 1);
    assert_true(d->rope_theta == 5e6f && d->norm_eps == 1e-6f && d->swiglu_alpha == 1.702f && d->swiglu_limit == 7);
    assert_false(d->plain_norm || d->plain_swiglu);
    assert_int_equal(d->cache, CACHE_FP8);
    assert_ptr_equal(d->embed.data, t->embed.data);
    assert_ptr_equal(d->head.data, t->head.data);
    assert_int_equal(d->fc.rows, t->hidden);
    assert_int_equal(d->fc.cols, 5 * t->hidden);
    assert_int_equal(d->confidence.cols, t->hidden + d->markov_rank);
    assert_int_equal(d->layer[2].q.format, WEIGHT_MXFP8);
    assert_int_equal(d->layer[2].down.rows, t->hidden);
    assert_int_equal(d->layer[2].down.cols, 768);

    hy_model_info info;
    hy_model_describe(m, &info);
    assert_non_null(strstr(info.drafter, "/dspark"));
    assert_string_equal(info.draft_cache_dtype, "fp8");
    assert_int_equal(info.draft_block, 7);
    assert_int_equal(info.draft_cache_bytes_per_token, 3 * 4 * 2 * 128);
    const cache_layout *l = model_cache_layout(m);
    assert_int_equal(l->row_bytes, CACHE_BLOCK * info.cache_bytes_per_token);
    assert_int_equal(l->draft_offset + CACHE_BLOCK * info.draft_cache_bytes_per_token, l->row_bytes);
    hy_model_close(m);
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

#define MODEL TEST_SOURCE "/models/m3-nano"

static void test_without(void **state)
{
    (void)state;
    hy_model_info info;
    const hy_model_options options[] = {{0}, {.drafter = "off"}, {.drafter = "", .draft_cache_dtype = "bf16"}};
    for (int i = 0; i < 3; i++) {
        hy_model *m = open_model(MODEL, options[i]);
        hy_model_describe(m, &info);
        assert_null(model_ops_model(m)->drafter);
        assert_null(info.drafter);
        assert_null(info.draft_cache_dtype);
        assert_int_equal(info.draft_block + (int)(info.draft_cache_bytes_per_token + info.draft_weight_bytes), 0);
        assert_int_equal(model_cache_layout(m)->draft_offset, CACHE_NO_OFFSET);
        assert_int_equal(model_cache_layout(m)->row_bytes, CACHE_BLOCK * info.cache_bytes_per_token);
        hy_model_close(m);
    }
}

static void test_cache_format(void **state)
{
    (void)state;
    const struct {
        const char *main, *draft, *backend, *becomes;
        uint64_t bytes;
    } cases[] = {
        {"auto", "auto", "cpu", "fp8", 3072},      {"nvfp4", NULL, "cpu", "fp8", 3072},
        {"fp8", "", "cpu", "fp8", 3072},           {"bf16", NULL, "cpu", "bf16", 6144},
        {"bf16", "fp8", "cpu", "fp8", 3072},       {"nvfp4", "bf16", "cpu", "bf16", 6144},
        {"fp32", NULL, "reference", "fp32", 12288}, {"nvfp4", "fp32", "cpu", "bf16", 6144},
    };
    hy_model_info info;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hy_model *m = open_model(MODEL, (hy_model_options){.drafter = "on",
                                                           .backend = cases[i].backend,
                                                           .kv_cache_dtype = cases[i].main,
                                                           .draft_cache_dtype = cases[i].draft});
        hy_model_describe(m, &info);
        assert_string_equal(info.draft_cache_dtype, cases[i].becomes);
        assert_int_equal(info.draft_cache_bytes_per_token, cases[i].bytes);
        assert_string_equal(cache_format_name(model_cache_layout(m)->draft), cases[i].becomes);
        hy_model_close(m);
    }
}

static void refused(const char *path, hy_model_options options, hy_status status, const char *words)
{
    hy_model *m = NULL;
    hy_status got = hy_model_open(path, &options, &m, &err);
    if (got != status) fail_msg("%s in place of %s: %s", hy_status_name(got), hy_status_name(status), err.message);
    assert_null(m);
    if (!strstr(err.message, words)) fail_msg("no '%s' in: %s", words, err.message);
}

static void test_refused(void **state)
{
    (void)state;
    refused(MODEL, (hy_model_options){.drafter = "on", .draft_cache_dtype = "nvfp4"}, HY_USAGE, "auto, fp8 or bf16");
    refused(MODEL, (hy_model_options){.drafter = "on", .draft_cache_dtype = "int8"}, HY_USAGE, "--draft-kv-dtype");
    refused(MODEL, (hy_model_options){.drafter = "/no/such/drafter"}, HY_BAD_MODEL, "/no/such/drafter");
    refused(TEST_DATA "/oracle/m3-short", (hy_model_options){.drafter = "on"}, HY_BAD_MODEL, "has no drafter");
    refused(TEST_DATA "/oracle/m3-short", (hy_model_options){.drafter = MODEL}, HY_BAD_MODEL, "do not belong together");
}

/* Named by its folder, or by the model that it is beside, it is the same. */
static void test_folder(void **state)
{
    (void)state;
    const char *const names[] = {MODEL "/dspark", MODEL};
    for (int i = 0; i < 2; i++) {
        hy_model *m = open_model(MODEL, (hy_model_options){.drafter = names[i]});
        assert_int_equal(model_ops_model(m)->drafter->noise_token, 2041);
        hy_model_close(m);
    }
}

/* What backends say that weights and a step take includes it. */
static void test_memory(void **state)
{
    (void)state;
    ops_memory bare, with, drafting;
    ops_limits limits = {.rows = 64, .logit_rows = 64, .positions = 4096};
    for (int i = 0; i < 2; i++) {
        hy_model *m = open_model(MODEL, (hy_model_options){.drafter = i ? "on" : "off", .threads = 1});
        const ops_options options = {.pool = model_pool(m), .activation = MOE_ACTIVATION_NVFP4};
        model_ops(m)->measure(model_ops_model(m), &options, &limits, i ? &with : &bare);
        if (i) {
            limits.drafts = 8, limits.draft_rows = 7;
            model_ops(m)->measure(model_ops_model(m), &options, &limits, &drafting);
        }
        hy_model_close(m);
    }
    assert_true(with.weights > bare.weights + 4000000); /* of the 5.4 MB of its file */
    assert_int_equal(with.step, bare.step);
    assert_true(drafting.step > with.step);
    refused(MODEL, (hy_model_options){.drafter = "on", .memory = 1 << 20}, HY_NO_FIT, "are needed");
}

/* ---- Shapes alone ------------------------------------------------------------------------------------------------ */

static void test_shapes(void **state)
{
    (void)state;
    hy_model *m = open_model(MODEL, (hy_model_options){.drafter = "on"});
    const ops_drafter *d = model_ops_model(m)->drafter;
    model_weights w;
    OK(model_weights_shape(model_config(m), SCHEME_M31, &w, &err));
    assert_null(w.shape.drafter);
    OK(model_drafter_shape(model_config(m), checkpoint_draft(model_checkpoint(m)), CACHE_FP8, &w, &err));
    const ops_drafter *s = w.shape.drafter;
#define SAME(part)                                                                                                     \
    assert_true(s->part.format == d->part.format && s->part.rows == d->part.rows && s->part.cols == d->part.cols)
    SAME(fc), SAME(hidden_norm), SAME(final_norm), SAME(markov_in), SAME(markov_out), SAME(confidence);
    SAME(confidence_bias);
    for (int i = 0; i < d->layers; i++) {
        SAME(layer[i].input_norm), SAME(layer[i].post_norm), SAME(layer[i].q), SAME(layer[i].k), SAME(layer[i].v);
        SAME(layer[i].o), SAME(layer[i].q_norm), SAME(layer[i].k_norm), SAME(layer[i].gate), SAME(layer[i].up);
        SAME(layer[i].down);
    }
    hy_model_info info;
    hy_model_describe(m, &info);
    assert_int_equal(w.draft_parameters, info.draft_parameters);
    model_weights_close(&w);
    hy_model_close(m);
}

/* ---- The forward pass -------------------------------------------------------------------------------------------- */

static char calls[512];

static void note(const char *what, int number)
{
    size_t n = strlen(calls);
    snprintf(calls + n, sizeof calls - n, number < 0 ? "%s " : "%s%d ", what, number);
}

static void on_begin(ops_step *step, ops_cache *cache, const ops_rows *rows)
{
    (void)step, (void)cache, (void)rows;
}
static void on_nothing(ops_step *step)
{
    (void)step;
}
static void on_layer(ops_step *step, int layer)
{
    (void)step, (void)layer;
}
static void on_feed(ops_step *step, int layer)
{
    (void)step, note("layer", layer);
}
static void on_tap(ops_step *step, int tap)
{
    (void)step, note("tap", tap);
}
static void on_context(ops_step *step)
{
    (void)step, note("context", -1);
}
static void on_head(ops_step *step)
{
    (void)step, note("head", -1);
}

/* Behind each layer its taps, also one that is listed twice; the context behind the last. */
static void test_forward(void **state)
{
    (void)state;
    const hy_ops ops = {.begin = on_begin,
                        .embed = on_nothing,
                        .attend_in = on_layer,
                        .attend = on_layer,
                        .attend_out = on_layer,
                        .feed_dense = on_feed,
                        .draft_tap = on_tap,
                        .draft_context = on_context,
                        .head = on_head};
    ops_layer layers[3] = {{0}};
    ops_drafter d = {.tap_count = 4, .tap = {0, 2, 2, 0}};
    hy_model m = {.ops = &ops, .weights.shape = {.layers = 3, .layer = layers, .drafter = &d}};
    ops_rows rows = {0};
    calls[0] = 0;
    forward_run(&m, NULL, NULL, &rows, true, NULL);
    assert_string_equal(calls, "layer0 tap0 tap3 layer1 layer2 tap1 tap2 context head ");
    calls[0] = 0;
    forward_run(&m, NULL, NULL, &rows, false, NULL);
    assert_string_equal(calls, "layer0 layer1 layer2 head ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bundled), cmocka_unit_test(test_without), cmocka_unit_test(test_cache_format),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_folder),  cmocka_unit_test(test_memory),
        cmocka_unit_test(test_shapes),  cmocka_unit_test(test_forward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
