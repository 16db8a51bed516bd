/*
 * The drafter of the reference backend with the bundled weights against the code that trained them, layer by layer:
 * tests/data/draft_golden.safetensors, which tools/nano/draft_golden.py describes and writes.
 */
#include "backend/random_model.h"

#include "backend/reference/reference.h"
#include "checkpoint/safetensors.h"

enum { HIDDEN = 256, VOCAB = 2048, LAYERS = 3, HEADS = 8, KV_HEADS = 4, DIM = 128, WIDTH = 768, BLOCK = 7, TAPS = 5, RANK = 64 };

/* Of a row's largest value. Both sum in fp32, in different orders. */
static const float BOUND = 5e-6f;

typedef struct golden {
    safetensors *target, *drafter, *values;
    random_model model; /* whose own network takes no part */
    bench bench;
    const int32_t *ids, *place;
    int anchor, first, rows; /* of the stored taps */
} golden;

static const tensor *find(const safetensors *file, const char *name, int i, const char *rest)
{
    char full[200];
    char number[12] = "";
    if (i >= 0) snprintf(number, sizeof number, "%d", i);
    snprintf(full, sizeof full, "%s%s%s", name, number, rest);
    const tensor *t = safetensors_find(file, full);
    if (!t) fail_msg("no tensor %s", full);
    return t;
}

static weight load(const safetensors *file, const char *name, int i, const char *rest, int64_t rows, int64_t cols)
{
    const tensor *t = find(file, name, i, rest);
    weight w = {.rows = rows, .cols = cols, .data = t->data, .format = t->dtype == TENSOR_BF16 ? WEIGHT_BF16 : WEIGHT_MXFP8};
    char scales[100];
    snprintf(scales, sizeof scales, "%s_scale_inv", rest);
    if (w.format == WEIGHT_MXFP8) w.scales = find(file, name, i, scales)->data;
    assert_true(t->bytes == weight_row_data(&w) * (size_t)rows);
    return w;
}

static ops_draft_layer load_layer(const safetensors *file, int i)
{
    static const char layers[] = "language_model.model.dspark.layers.";
    return (ops_draft_layer){
        .input_norm = load(file, layers, i, ".decoder_layer.input_layernorm.weight", 1, HIDDEN),
        .post_norm = load(file, layers, i, ".decoder_layer.post_attention_layernorm.weight", 1, HIDDEN),
        .q = load(file, layers, i, ".decoder_layer.self_attn.q_proj.weight", HEADS * DIM, HIDDEN),
        .k = load(file, layers, i, ".decoder_layer.self_attn.k_proj.weight", KV_HEADS * DIM, HIDDEN),
        .v = load(file, layers, i, ".decoder_layer.self_attn.v_proj.weight", KV_HEADS * DIM, HIDDEN),
        .o = load(file, layers, i, ".decoder_layer.self_attn.o_proj.weight", HIDDEN, HEADS * DIM),
        .q_norm = load(file, layers, i, ".decoder_layer.self_attn.q_norm.weight", 1, DIM),
        .k_norm = load(file, layers, i, ".decoder_layer.self_attn.k_norm.weight", 1, DIM),
        .gate = load(file, layers, i, ".decoder_layer.mlp.gate_proj.weight", WIDTH, HIDDEN),
        .up = load(file, layers, i, ".decoder_layer.mlp.up_proj.weight", WIDTH, HIDDEN),
        .down = load(file, layers, i, ".decoder_layer.mlp.down_proj.weight", HIDDEN, WIDTH),
    };
}

/* Weights by name, the shape as dspark/config.json has it but for the window, which the stored rows fill. */
static void load_drafter(golden *g)
{
    static const char pre[] = "language_model.model.dspark.";
    const safetensors *f = g->drafter;
    ops_drafter *d = g->model.ops.drafter = arena_take(&g->model.memory, sizeof *d);
    *d = (ops_drafter){
        .layers = LAYERS, .heads = HEADS, .kv_heads = KV_HEADS, .head_dim = DIM, .rotary_dim = 64, .width = WIDTH,
        .rope_theta = 5e6f, .norm_eps = 1e-6f, .swiglu_alpha = 1.702f, .swiglu_limit = 7, .block = BLOCK,
        .window = g->place[2], .noise_token = 2041, .tap_count = TAPS, .tap = {0, 0, 1, 1, 1}, .markov_rank = RANK,
        .cache = CACHE_FP32,
        .fc = load(f, pre, -1, "fc.weight", HIDDEN, TAPS * HIDDEN),
        .hidden_norm = load(f, pre, -1, "hidden_norm.weight", 1, HIDDEN),
        .final_norm = load(f, pre, -1, "final_norm.weight", 1, HIDDEN),
        .embed = load(g->target, "language_model.model.", -1, "embed_tokens.weight", VOCAB, HIDDEN),
        .head = load(g->target, "language_model.", -1, "lm_head.weight", VOCAB, HIDDEN),
        .markov_in = load(f, pre, -1, "markov_head.markov_w1.weight", VOCAB, RANK),
        .markov_out = load(f, pre, -1, "markov_head.markov_w2.weight", VOCAB, RANK),
        .confidence = load(f, pre, -1, "confidence_head.proj.weight", 1, HIDDEN + RANK),
        .confidence_bias = load(f, pre, -1, "confidence_head.proj.bias", 1, 1),
    };
    d->layer = arena_take(&g->model.memory, LAYERS * sizeof *d->layer);
    for (int i = 0; i < LAYERS; i++) d->layer[i] = load_layer(f, i);
}

static const void *values(const golden *g, const char *name, int i, size_t bytes)
{
    const tensor *t = find(g->values, name, i, "");
    assert_true(t->bytes == bytes && (uintptr_t)t->data % 4 == 0);
    return t->data;
}

/* The stored taps through draft_tap and draft_context. */
static void feed(const golden *g)
{
    step_rows rows;
    hy_error err = {0};
    const uint16_t *taps = values(g, "taps", -1, (size_t)(g->rows * TAPS * HIDDEN) * 2);
    float x[MAX_ROWS * HIDDEN];
    rows_open(&rows);
    rows_add(&rows, 0, g->first, g->rows, VOCAB);
    ops_reference.begin(g->bench.step, g->bench.cache, &rows.ops);
    for (int tap = 0; tap < TAPS; tap++) {
        for (int t = 0; t < g->rows; t++)
            for (int i = 0; i < HIDDEN; i++) x[t * HIDDEN + i] = bf16_to_float(taps[(t * TAPS + tap) * HIDDEN + i]);
        ops_reference.tensor_write(g->bench.step, OPS_X, 0, g->rows, x);
        ops_reference.draft_tap(g->bench.step, tap);
    }
    ops_reference.draft_context(g->bench.step);
    check(ops_reference.finish(g->bench.step, &err), &err);
}

static int open_golden(void **state)
{
    golden *g = *state = calloc(1, sizeof *g);
    hy_error err = {0};
    check(safetensors_open(TEST_SOURCE "/models/m3-nano/model.safetensors", &g->target, &err), &err);
    check(safetensors_open(TEST_SOURCE "/models/m3-nano/dspark/model.safetensors", &g->drafter, &err), &err);
    check(safetensors_open(TEST_DATA "/draft_golden.safetensors", &g->values, &err), &err);
    g->place = values(g, "place", -1, 12);
    g->ids = find(g->values, "ids", -1, "")->data;
    g->anchor = g->place[0], g->first = g->place[1], g->rows = g->anchor - g->first;
    random_model_make(&g->model, &(model_kind){
        .layers = 2, .hidden = HIDDEN, .heads = 2, .kv_heads = 1, .head_dim = 32, .index_dim = 32, .index_top = 2,
        .rotary_dim = 16, .experts = 2, .per_token = 1, .expert_width = 32, .shared_width = 32, .dense_width = 32,
        .vocab = VOCAB, .linear = WEIGHT_BF16, .expert = WEIGHT_BF16});
    load_drafter(g);
    bench_open(&g->bench, &ops_reference, &g->model, CACHE_BF16, CACHE_BF16, (ops_options){0}, 2);
    feed(g);
    return 0;
}

static int close_golden(void **state)
{
    golden *g = *state;
    bench_close(&g->bench);
    random_model_free(&g->model);
    safetensors_close(g->target), safetensors_close(g->drafter), safetensors_close(g->values);
    free(g);
    return 0;
}

/* One round at temperature 0; the number of drafts. */
static int32_t round_of(const golden *g, float threshold, int32_t *tokens)
{
    int32_t one = 1, count = -1;
    step_rows rows;
    hy_error err = {0};
    ops_sampled anchor = {.id = g->ids[g->anchor]};
    ops_draft how = {.after = &anchor, .after_count = &one, .position = g->anchor, .rows = BLOCK, .end = INT32_MAX,
                     .method = DRAFT_PROBABILISTIC, .threshold = threshold, .draft = tokens, .count = &count};
    rows_open(&rows);
    ops_reference.begin(g->bench.step, g->bench.cache, &rows.ops);
    ops_reference.draft(g->bench.step, &how, 1);
    check(ops_reference.finish(g->bench.step, &err), &err);
    return count;
}

static void check_rows(const char *what, const float *wanted, const float *got, int32_t rows, size_t columns)
{
    float error = row_error(wanted, got, rows, columns);
    if (!(error <= BOUND)) fail_msg("%s: %.3g, more than %.3g", what, (double)error, (double)BOUND);
}

static void test_context(void **state)
{
    const golden *g = *state;
    float *c = bench_read(&g->bench, OPS_DRAFT_C, g->rows, HIDDEN);
    check_rows("c", values(g, "c", -1, (size_t)(g->rows * HIDDEN) * sizeof *c), c, g->rows, HIDDEN);
    free(c);

    enum { KEPT = 4, KV = KV_HEADS * DIM };
    const int32_t *kept = values(g, "kv_rows", -1, KEPT * sizeof *kept);
    step_rows rows;
    rows_open(&rows);
    for (int layer = 0; layer < LAYERS; layer++) {
        float k[KEPT * KV], v[KEPT * KV], block[CACHE_BLOCK * DIM];
        for (int i = 0; i < KEPT; i++)
            for (int head = 0; head < KV_HEADS; head++) {
                int position = g->first + kept[i], at = position % CACHE_BLOCK;
                int32_t b = rows.table[position / CACHE_BLOCK];
                reference_cache_draft_keys(g->bench.cache, layer, head, b, at + 1, block);
                memcpy(k + i * KV + head * DIM, block + at * DIM, DIM * sizeof *k);
                reference_cache_draft_values(g->bench.cache, layer, head, b, at + 1, block);
                memcpy(v + i * KV + head * DIM, block + at * DIM, DIM * sizeof *v);
            }
        check_rows("K of a layer", values(g, "k.", layer, sizeof k), k, KEPT, KV);
        check_rows("V of a layer", values(g, "v.", layer, sizeof v), v, KEPT, KV);
    }
}

/* The drafter cut off behind each of its layers: the last norm of what it has by then. */
static void test_layers(void **state)
{
    const golden *g = *state;
    for (int layer = 0; layer < LAYERS; layer++) {
        float u[BLOCK * HIDDEN];
        int32_t tokens[BLOCK];
        g->model.ops.drafter->layers = layer + 1;
        round_of(g, 0, tokens);
        ops_reference.tensor_read(g->bench.step, OPS_DRAFT_H, 0, BLOCK, u);
        check_rows("u behind a layer", values(g, "u.", layer, sizeof u), u, BLOCK, HIDDEN);
    }
}

static void test_logits(void **state)
{
    const golden *g = *state;
    int32_t tokens[BLOCK];
    static float logits[BLOCK * VOCAB];
    assert_int_equal(round_of(g, 0, tokens), BLOCK);
    ops_reference.tensor_read(g->bench.step, OPS_DRAFT_LOGITS, 0, BLOCK, logits);
    check_rows("L", values(g, "L", -1, sizeof logits), logits, BLOCK, VOCAB);
    assert_memory_equal(values(g, "drafts", -1, sizeof tokens), tokens, sizeof tokens);
    g->model.ops.drafter->markov_rank = 0;
    round_of(g, 0, tokens);
    ops_reference.tensor_read(g->bench.step, OPS_DRAFT_LOGITS, 0, BLOCK, logits);
    check_rows("U", values(g, "U", -1, sizeof logits), logits, BLOCK, VOCAB);
    g->model.ops.drafter->markov_rank = RANK;
}

/* A threshold just above a confidence that is the least so far ends the drafts there, one just below it does not. */
static void test_confidence(void **state)
{
    const golden *g = *state;
    const float *c = values(g, "confidence", -1, BLOCK * sizeof *c);
    float least = 2;
    int32_t tokens[BLOCK], met = 0;
    for (int k = 0; k < BLOCK; k++) {
        if (c[k] >= least * 0.999f) continue;
        least = c[k];
        assert_int_equal(round_of(g, c[k] * (1 + BOUND), tokens), k);
        assert_true(round_of(g, c[k] * (1 - BOUND), tokens) > k);
        met++;
    }
    assert_true(met >= 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_context),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_confidence),
    };
    return cmocka_run_group_tests(tests, open_golden, close_golden);
}
