/*
 * Weights on the GPU: random ones that are made there are those that a file would hold, byte for byte; and what the CPU
 * refuses when it packs is refused, by its name, and nothing else.
 */
#include "backend/cuda_test.h"

#include "backend/cuda/kernels/check.h"
#include "backend/cuda/kernels/synth.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/synth.h"

#include <unistd.h>

/* ---- Made on the GPU --------------------------------------------------------------------------------------------- */

static config small(void)
{
    config c;
    hy_error err = {0};
    assert_true(config_known("m3.1-flash", &c));
    check(config_slice(&c, 2, 1, &err), &err);
    c.hidden = 96, c.vocab = 90, c.heads = 4, c.kv_heads = 2, c.index_heads = 2, c.head_dim = 32, c.rotary_dim = 16;
    c.experts = 2, c.expert_width = 64, c.shared_width = 64, c.dense_width = 160, c.vision_layers = 0;
    return c;
}

/* Every tensor of a small checkpoint in the given scheme, with what lies around it, against synth_file's. */
static void scheme_is_made(gpu *g, layout_scheme scheme)
{
    enum { AROUND = 32 };
    config c = small();
    char name[] = "/tmp/hayate-made-XXXXXX";
    hy_error err = {0};
    safetensors *file = NULL;
    synth_made made = {0};
    int fd = mkstemp(name);
    assert_true(fd >= 0);
    synth_options how = {.scheme = scheme, .seed = 0x123456789ABCDEF};
    check(synth_file(&c, NULL, fd, name, &how, &err), &err);
    check(safetensors_open(name, &file, &err), &err);
    size_t count = safetensors_count(file), compared = 0;
    const tensor **tensors = malloc(count * sizeof *tensors);
    for (size_t i = 0; i < count; i++) tensors[i] = safetensors_at(file, i);
    check(synth_made_add(&made, &c, NULL, &how, tensors, count, &err), &err);
    const void *tables = device_put(g, &made.tables, sizeof(synth_lookup));
    for (size_t i = 0; i < count; i++) {
        const synth_piece *p = synth_made_find(&made, tensors[i]->data);
        assert_non_null(p);
        assert_int_equal(p->bytes, tensors[i]->bytes);
        if (p->stream.constant) continue;
        uint8_t *out = device_take(g, p->bytes + 2 * AROUND);
        g->calls->fill(g, out, 0xEE, p->bytes + 2 * AROUND);
        synth_args args = {.tables = tables,
                           .out = out + AROUND,
                           .key = p->stream.key,
                           .bytes = p->bytes,
                           .kind = (int32_t)p->stream.kind,
                           .mean = p->stream.mean,
                           .deviation = p->stream.deviation,
                           .scale_low = p->stream.scale_low,
                           .scale_up = p->stream.scale_up};
        device_run(g, "synth", 1 + (int)(compared++ % 3), 1, 1, SYNTH_THREADS, 0, &args, sizeof args);
        uint8_t *there = device_get(g, out, p->bytes + 2 * AROUND);
        if (memcmp(there + AROUND, tensors[i]->data, p->bytes) != 0) fail_msg("%s is another", tensors[i]->name);
        for (int n = 0; n < AROUND; n++) {
            assert_int_equal(there[n], 0xEE);
            assert_int_equal(there[AROUND + p->bytes + (size_t)n], 0xEE);
        }
        free(there);
        g->calls->free(g, out);
    }
    assert_true(compared > 30);
    assert_null(synth_made_find(&made, (const uint8_t *)tensors[0]->data + 1));
    assert_null(synth_made_find(NULL, tensors[0]->data));
    g->calls->free(g, (void *)(uintptr_t)tables);
    synth_made_free(&made);
    free(tensors);
    safetensors_close(file);
    close(fd), unlink(name);
}

static void made(void **state)
{
    (void)state;
    gpu *g = device_open();
    for (layout_scheme s = SCHEME_BF16; s <= SCHEME_MODELOPT; s++) scheme_is_made(g, s);
    g->calls->close(g);
}

/* ---- Damaged ----------------------------------------------------------------------------------------------------- */

static const model_kind plain_kind = {
    .layers = 3, .hidden = 64, .heads = 2, .kv_heads = 1, .head_dim = 32, .index_dim = 32, .index_top = 2,
    .rotary_dim = 16, .experts = 3, .per_token = 2, .expert_width = 32, .shared_width = 32, .dense_width = 64,
    .vocab = 40, .linear = WEIGHT_BF16, .expert = WEIGHT_MXFP8,
};

/* Every place of one bad value would take long: these of a weight, its corners and some between. */
static size_t place_at(int turn, size_t count)
{
    return turn == 0 ? 0 : turn == 1 ? count - 1 : (size_t)random_bits() % count;
}

typedef struct damage {
    weight_format linear, expert;
    size_t bytes;     /* of a value */
    bool scale;       /* the value is a scale's */
    uint32_t bad, good;
} damage;

static const damage damages[] = {
    {WEIGHT_BF16, WEIGHT_MXFP8, 2, false, 0x7F80, 0x7F7F}, {WEIGHT_BF16, WEIGHT_MXFP8, 2, false, 0xFFC1, 0xFF7F},
    {WEIGHT_F32, WEIGHT_NVFP4, 4, false, 0x7F800001, 0xFF7FFFFF}, {WEIGHT_F32, WEIGHT_NVFP4, 4, false, 0xFF800000, 1},
    {WEIGHT_MXFP8, WEIGHT_BF16, 1, false, 0x7F, 0x7E}, {WEIGHT_MXFP8, WEIGHT_BF16, 1, false, 0xFF, 0xFE},
    {WEIGHT_MXFP8, WEIGHT_BF16, 1, true, 247, 246}, {WEIGHT_MXFP8, WEIGHT_BF16, 1, true, 255, 0},
    {WEIGHT_NVFP4, WEIGHT_F32, 1, true, 0x7F, 0x7E}, {WEIGHT_NVFP4, WEIGHT_F32, 1, true, 0xFF, 0xFE},
};

/* NULL: it opens. */
static const char *opens(const ops_model *m, const ops_options *options, hy_error *err)
{
    ops_backend *b = NULL;
    *err = (hy_error){0};
    hy_status status = ops_cuda.open(m, options, &b, err);
    if (status == HY_OK) {
        ops_cuda.close(b);
        return NULL;
    }
    assert_int_equal(status, HY_BAD_MODEL);
    return err->message;
}

static void expect(const ops_model *m, const weight *w, const damage *d, const char *name, int turn)
{
    uint8_t *at = d->scale ? (uint8_t *)(uintptr_t)w->scales : (uint8_t *)(uintptr_t)w->data, kept[4];
    size_t count = (size_t)w->rows * (d->scale ? weight_row_scales(w) : (size_t)w->cols);
    hy_error err;
    at += place_at(turn, count) * d->bytes;
    memcpy(kept, at, d->bytes);
    memcpy(at, &d->good, d->bytes);
    assert_null(opens(m, &(ops_options){0}, &err));
    memcpy(at, &d->bad, d->bytes);
    const char *said = opens(m, &(ops_options){0}, &err);
    if (!said || !strstr(said, name) || !strstr(said, "the file is damaged, download it again"))
        fail_msg("%s: %s", name, said ? said : "it opened");
    memcpy(at, kept, d->bytes);
}

static void damaged(void **state)
{
    (void)state;
    random_state = 11;
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        const damage *d = &damages[i];
        model_kind kind = plain_kind;
        random_model m;
        kind.linear = d->linear, kind.expert = i % 2 ? d->linear : d->expert;
        random_model_make(&m, &kind);
        ops_layer *l = m.ops.layer;
        const struct {
            const weight *w;
            const char *name;
        } all[] = {{&m.ops.head, "lm_head: "}, {&l[0].dense_down, "layer 0, down_proj: "},
                   {&l[1].index_k, "layer 1, index_k_proj: "}, {&l[2].o, "layer 2, o_proj: "},
                   {&l[2].shared_up, "layer 2, shared expert, up: "}};
        expect(&m.ops, all[i % 5].w, d, all[i % 5].name, (int)i / 5);
        if (kind.expert == d->linear && kind.expert != WEIGHT_NVFP4)
            expect(&m.ops, &l[1].expert_up[2], d, "layer 1, experts, up, expert 2: ", (int)i / 5);
        random_model_free(&m);
    }
}

/* What the CPU does not look at either: vectors, the embedding; and of memory, not of a file, negative scales of NVFP4. */
static void not_looked_at(void **state)
{
    (void)state;
    random_model m;
    hy_error err;
    model_kind kind = plain_kind;
    kind.linear = kind.expert = WEIGHT_NVFP4;
    random_model_make(&m, &kind);
    float infinity = INFINITY;
    uint16_t nan = 0x7FC0;
    memcpy((uint8_t *)(uintptr_t)m.ops.layer[1].router_bias.data + 4, &infinity, 4);
    memcpy((uint8_t *)(uintptr_t)m.ops.layer[0].input_norm.data + 2, &nan, 2);
    memcpy((uint8_t *)(uintptr_t)m.ops.embed.data + 6, &nan, 2);
    const weight *q = &m.ops.layer[1].q;
    ((uint8_t *)(uintptr_t)q->scales)[3] |= 0x80;
    assert_null(opens(&m.ops, &(ops_options){0}, &err));
    memcpy((uint8_t *)(uintptr_t)m.ops.layer[1].router.data + 8, &infinity, 4);
    assert_non_null(strstr(opens(&m.ops, &(ops_options){0}, &err), "layer 1, router: its f32 weights hold"));
    memset((uint8_t *)(uintptr_t)m.ops.layer[1].router.data + 8, 0, 4);
    /* Of a file they are refused, -0 excepted. */
    weight_file file = {"weights", q->scales, (size_t)q->rows * weight_row_scales(q)};
    ops_options options = {.files = &file, .file_count = 1};
    assert_non_null(strstr(opens(&m.ops, &options, &err), "layer 1, q_proj: its nvfp4 weights hold"));
    ((uint8_t *)(uintptr_t)q->scales)[3] = 0x80;
    assert_null(opens(&m.ops, &options, &err));
    random_model_free(&m);
}

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(made), cmocka_unit_test(damaged), cmocka_unit_test(not_looked_at)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
