/*
 * The drafter of the reference backend: a block against the formulas in double, what its rows see and what they don't, the
 * context written in any portions, drafts left to right through the Markov head, and what ends them.
 */
#include "backend/random_model.h"

#include "backend/reference/reference.h"

enum { HIDDEN = 64, VOCAB = 50, TAPS = 2, LONGEST = 320 };

static const model_kind kind = {
    .layers = 3, .hidden = HIDDEN, .heads = 4, .kv_heads = 2, .head_dim = 32, .index_dim = 32, .index_top = 3,
    .rotary_dim = 16, .experts = 8, .per_token = 3, .expert_width = 32, .shared_width = 32, .dense_width = 64,
    .vocab = VOCAB, .linear = WEIGHT_BF16, .expert = WEIGHT_NVFP4,
};
static const drafter_kind draft_kind = {
    .layers = 2, .heads = 6, .kv_heads = 2, .head_dim = 16, .rotary_dim = 8, .width = 96, .block = 3, .window = 8,
    .tap_count = TAPS, .markov_rank = 8, .tap = {0, 2}, .cache = CACHE_FP32, .confidence = true, .linear = WEIGHT_MXFP8,
};

static void open_drafter(bench *b, random_model *m, const drafter_kind *k)
{
    random_model_make(m, &kind);
    random_model_draft(m, k);
    bench_open(b, &ops_reference, m, CACHE_BF16, CACHE_BF16, (ops_options){0}, 2);
}

static void close_drafter(bench *b, random_model *m)
{
    bench_close(b);
    random_model_free(m);
}

/* ---- Feeding and drafting ---------------------------------------------------------------------------------------- */

/* What the target hands to the taps at a position: [TAPS, HIDDEN]. */
static void taps_of(int sequence, int position, float *out)
{
    for (int i = 0; i < TAPS * HIDDEN; i++)
        out[i] = (float)(token_at(sequence, position * TAPS * HIDDEN + i, 2001) - 1000) * 1e-3f;
}

/* The context of rows that are there already, as if the target had seen `source` at their positions. */
static void feed_rows(const bench *b, const step_rows *rows, int source)
{
    hy_error err = {0};
    int count = rows->ops.count;
    float *taps = malloc((size_t)count * TAPS * HIDDEN * sizeof *taps), *x = malloc((size_t)count * HIDDEN * sizeof *x);
    b->ops->begin(b->step, b->cache, &rows->ops);
    for (int t = 0; t < count; t++) taps_of(source, rows->position[t], taps + t * TAPS * HIDDEN);
    for (int tap = 0; tap < TAPS; tap++) {
        for (int t = 0; t < count; t++) memcpy(x + t * HIDDEN, taps + (t * TAPS + tap) * HIDDEN, HIDDEN * sizeof *x);
        b->ops->tensor_write(b->step, OPS_X, 0, count, x);
        b->ops->draft_tap(b->step, tap);
    }
    b->ops->draft_context(b->step);
    check(b->ops->finish(b->step, &err), &err);
    free(taps), free(x);
}

/* Positions [first, first + count) of a sequence. */
static void feed(const bench *b, int sequence, int source, int first, int count)
{
    step_rows rows;
    rows_open(&rows);
    rows_add(&rows, sequence, first, count, VOCAB);
    feed_rows(b, &rows, source);
}

static void feed_all(const bench *b, int sequence, int count)
{
    for (int first = 0; first < count; first += MAX_ROWS)
        feed(b, sequence, sequence, first, count - first < MAX_ROWS ? count - first : MAX_ROWS);
}

/* A round of drafts and what it borrows. */
typedef struct round {
    ops_draft ops;
    ops_sampled after[3];
    int32_t after_count, draft[DRAFT_MAX_BLOCK], count;
} round_of;

/* Behind `anchor` at position n; the last of two tokens of the step before, so that position and place differ. */
static void round_open(round_of *r, int sequence, int n, int32_t anchor, int rows)
{
    *r = (round_of){.after_count = n ? 2 : 1};
    r->after[0].id = n ? 1 : anchor, r->after[1].id = anchor, r->after[2].id = 2;
    r->ops = (ops_draft){.sequence = sequence, .after = r->after, .after_count = &r->after_count, .position = n ? n - 1 : 0,
                         .rows = rows, .end = INT32_MAX, .method = DRAFT_PROBABILISTIC, .draft = r->draft,
                         .count = &r->count};
}

static void run_rounds(const bench *b, round_of *rounds, int count)
{
    step_rows rows;
    hy_error err = {0};
    ops_draft list[MAX_SEQUENCES];
    rows_open(&rows);
    for (int i = 0; i < count; i++) {
        list[i] = rounds[i].ops;
        list[i].after = rounds[i].after, list[i].after_count = &rounds[i].after_count;
        list[i].draft = rounds[i].draft, list[i].count = &rounds[i].count;
        rounds[i].count = -7;
    }
    b->ops->begin(b->step, b->cache, &rows.ops);
    b->ops->draft(b->step, list, count);
    check(b->ops->finish(b->step, &err), &err);
}

/* One round at temperature 0; h [rows, HIDDEN] and L [rows, VOCAB] if not NULL. */
static void draft(const bench *b, int sequence, int n, int32_t anchor, int rows, float *h, float *logits, int32_t *tokens)
{
    round_of r;
    round_open(&r, sequence, n, anchor, rows);
    run_rounds(b, &r, 1);
    assert_int_equal(r.count, rows);
    if (h) b->ops->tensor_read(b->step, OPS_DRAFT_H, 0, rows, h);
    if (logits) b->ops->tensor_read(b->step, OPS_DRAFT_LOGITS, 0, rows, logits);
    if (tokens) memcpy(tokens, r.draft, (size_t)rows * sizeof *tokens);
}

/* ---- The formulas in double ---------------------------------------------------------------------------------------- */

static void matrix(const weight *w, const double *in, double *out)
{
    float row[1024];
    assert_true(w->cols <= 1024);
    for (int64_t o = 0; o < w->rows; o++) {
        weight_row(w, o, row);
        out[o] = 0;
        for (int64_t i = 0; i < w->cols; i++) out[o] += (double)row[i] * in[i];
    }
}

static void normed(const ops_drafter *d, const weight *gain, double *x, int vectors)
{
    float g[1024];
    weight_row(gain, 0, g);
    for (int n = (int)gain->cols; vectors-- > 0; x += n) {
        double squares = 0;
        for (int i = 0; i < n; i++) squares += x[i] * x[i];
        for (int i = 0; i < n; i++)
            x[i] *= ((d->plain_norm ? 0 : 1) + (double)g[i]) / sqrt(squares / n + (double)d->norm_eps);
    }
}

static void turned(const ops_drafter *d, double *x, int heads, int position)
{
    for (int h = 0; h < heads; h++, x += d->head_dim)
        for (int j = 0, half = d->rotary_dim / 2; j < half; j++) {
            double angle = position * pow((double)d->rope_theta, -2.0 * j / d->rotary_dim), a = x[j], b = x[j + half];
            x[j] = a * cos(angle) - b * sin(angle), x[j + half] = b * cos(angle) + a * sin(angle);
        }
}

static double through_cache(const ops_drafter *d, double x)
{
    if (d->cache == CACHE_FP32) return x;
    float half = bf16_round((float)x);
    return (double)(d->cache == CACHE_BF16 ? half : e4m3_round(half));
}

static double activated(const ops_drafter *d, double g, double u)
{
    if (d->plain_swiglu) return g / (1 + exp(-g)) * u;
    double limit = (double)d->swiglu_limit;
    g = fmin(g, limit), u = fmax(fmin(u, limit), -limit);
    return g / (1 + exp(-(double)d->swiglu_alpha * g)) * (u + 1);
}

/* Key and value of a row in [HIDDEN]. */
static void key_value(const ops_drafter *d, const ops_draft_layer *l, const double *in, int position, double *k, double *v)
{
    matrix(&l->k, in, k), matrix(&l->v, in, v);
    normed(d, &l->k_norm, k, d->kv_heads);
    turned(d, k, d->kv_heads, position);
}

enum { KV = 32, Q = 96 }; /* of draft_kind */

/* h [g, HIDDEN] and U [g, VOCAB] of a block behind position n, its context made from taps_of. */
static void formulas(const ops_model *m, int sequence, int n, int32_t anchor, int g, double *h, double *u)
{
    const ops_drafter *d = m->drafter;
    static double keys[LONGEST + DRAFT_MAX_BLOCK][KV], values[LONGEST + DRAFT_MAX_BLOCK][KV];
    double x[DRAFT_MAX_BLOCK][HIDDEN], in[TAPS * HIDDEN], c[HIDDEN], q[DRAFT_MAX_BLOCK][Q], a[Q], gate[96], up[96];
    for (int k = 0; k < g; k++) {
        float row[HIDDEN];
        weight_row(&d->embed, k ? d->noise_token : anchor, row);
        for (int i = 0; i < HIDDEN; i++) x[k][i] = (double)row[i];
    }
    for (int layer = 0; layer < d->layers; layer++) {
        const ops_draft_layer *l = &d->layer[layer];
        for (int s = 0; s < n; s++) {
            float taps[TAPS * HIDDEN];
            taps_of(sequence, s, taps);
            for (int i = 0; i < TAPS * HIDDEN; i++) in[i] = (double)taps[i];
            matrix(&d->fc, in, c);
            normed(d, &d->hidden_norm, c, 1);
            key_value(d, l, c, s, keys[s], values[s]);
            for (int i = 0; i < KV; i++) {
                keys[s][i] = through_cache(d, keys[s][i]);
                values[s][i] = through_cache(d, values[s][i]);
            }
        }
        for (int k = 0; k < g; k++) {
            memcpy(c, x[k], sizeof c);
            normed(d, &l->input_norm, c, 1);
            key_value(d, l, c, n + k, keys[n + k], values[n + k]);
            matrix(&l->q, c, q[k]);
            normed(d, &l->q_norm, q[k], d->heads);
            turned(d, q[k], d->heads, n + k);
        }
        for (int k = 0; k < g; k++) {
            int first = n + k - d->window + 1 > 0 ? n + k - d->window + 1 : 0;
            for (int head = 0; head < d->heads; head++) {
                int kv = head / (d->heads / d->kv_heads) * d->head_dim;
                double sum = 0, *out = a + head * d->head_dim;
                memset(out, 0, (size_t)d->head_dim * sizeof *out);
                for (int s = first < n ? first : n; s < n + g; s++) {
                    double dot = 0;
                    for (int i = 0; i < d->head_dim; i++) dot += q[k][head * d->head_dim + i] * keys[s][kv + i];
                    double p = exp(dot / sqrt(d->head_dim));
                    sum += p;
                    for (int i = 0; i < d->head_dim; i++) out[i] += p * values[s][kv + i];
                }
                for (int i = 0; i < d->head_dim; i++) out[i] /= sum;
            }
            matrix(&l->o, a, c);
            for (int i = 0; i < HIDDEN; i++) x[k][i] += c[i];
            memcpy(c, x[k], sizeof c);
            normed(d, &l->post_norm, c, 1);
            matrix(&l->gate, c, gate), matrix(&l->up, c, up);
            for (int i = 0; i < d->width; i++) gate[i] = activated(d, gate[i], up[i]);
            matrix(&l->down, gate, c);
            for (int i = 0; i < HIDDEN; i++) x[k][i] += c[i];
        }
    }
    for (int k = 0; k < g; k++) {
        memcpy(h + k * HIDDEN, x[k], sizeof x[k]);
        normed(d, &d->final_norm, h + k * HIDDEN, 1);
        matrix(&d->head, h + k * HIDDEN, u + k * VOCAB);
    }
}

/* L = U + markov_out . markov_in[before]. */
static void follow(const ops_drafter *d, int32_t before, double *u)
{
    float row[64];
    double in[64], out[VOCAB];
    if (!d->markov_rank) return;
    weight_row(&d->markov_in, before, row);
    for (int i = 0; i < d->markov_rank; i++) in[i] = (double)row[i];
    matrix(&d->markov_out, in, out);
    for (int v = 0; v < VOCAB; v++) u[v] += out[v];
}

static void check_near(const float *got, const double *wanted, int n, double bound)
{
    double top = 0;
    for (int i = 0; i < n; i++) top = fmax(top, fabs(wanted[i]));
    for (int i = 0; i < n; i++)
        if (!(fabs((double)got[i] - wanted[i]) <= bound * top))
            fail_msg("value %d is %.9g, not %.9g", i, (double)got[i], wanted[i]);
}

/* Blocks of every length behind contexts below, at and beyond the window and over borders of cache blocks. A narrow cache
 * turns a last bit into a step of its format, so those are held less tightly. */
static void check_formulas(const drafter_kind *k, float sharp, double bound)
{
    random_model m;
    bench b;
    open_drafter(&b, &m, k);
    bench_fill(&b, 0xFF); /* NaN in every format, behind what is written */
    for (int i = 0; i < k->layers && sharp > 0; i++)
        m.ops.drafter->layer[i].q_norm = random_weight(&m.memory, WEIGHT_F32, 1, k->head_dim, sharp, false);
    const int places[] = {0, 1, 5, 7, 8, 9, 127, 128, 131, 300};
    feed_all(&b, 3, 300);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        for (int g = 1; g <= k->block; g++) {
            float h[3 * HIDDEN], logits[3 * VOCAB];
            double wanted_h[3 * HIDDEN], wanted[3 * VOCAB];
            int32_t tokens[3], anchor = (int32_t)i + 11;
            draft(&b, 3, places[i], anchor, g, h, logits, tokens);
            formulas(&m.ops, 3, places[i], anchor, g, wanted_h, wanted);
            check_near(h, wanted_h, g * HIDDEN, bound);
            for (int row = 0; row < g; row++) {
                follow(m.ops.drafter, row ? tokens[row - 1] : anchor, wanted + row * VOCAB);
                check_near(logits + row * VOCAB, wanted + row * VOCAB, VOCAB, bound);
                for (int v = 0; v < VOCAB; v++) assert_true(logits[row * VOCAB + v] <= logits[row * VOCAB + tokens[row]]);
            }
        }
    close_drafter(&b, &m);
}

static void test_formulas(void **state)
{
    (void)state;
    drafter_kind k = draft_kind;
    check_formulas(&k, 0, 2e-5);
    k.window = 200;
    check_formulas(&k, 0, 2e-5);
    check_formulas(&k, 60, 2e-3); /* scores hundreds apart, whose last bits are as much larger */
    k.plain = true;
    check_formulas(&k, 0, 2e-5);
    k.markov_rank = 0, k.confidence = false;
    check_formulas(&k, 0, 2e-5);
    k = draft_kind, k.window = 200, k.cache = CACHE_BF16;
    check_formulas(&k, 0, 2e-3);
    k.cache = CACHE_FP8;
    check_formulas(&k, 0, 2e-2);
}

/* ---- What a row sees --------------------------------------------------------------------------------------------- */

/* Bytes of the vectors of one position in the cache, K and V of every head and layer; `write` puts them there. */
static void vectors_at(const bench *b, int sequence, int position, uint8_t *bytes, bool write)
{
    const cache_layout *l = &b->layout;
    step_rows rows;
    rows_open(&rows);
    int32_t block = rows.table[sequence * TABLE + position / CACHE_BLOCK];
    size_t size = cache_vector_bytes(l->draft, l->draft_head_dim), at = l->draft_offset + (size_t)(position % CACHE_BLOCK) * size;
    for (int head = 0; head < l->draft_layers * l->draft_kv_heads; head++, at += l->draft_head_bytes)
        for (int v = 0; v < 2; v++, bytes += size) {
            size_t from = at + (v ? l->draft_v_data : 0);
            if (write)
                b->ops->cache_write(b->cache, block, from, size, bytes);
            else
                b->ops->cache_read(b->cache, block, from, size, bytes);
        }
}

enum { VECTORS = 2 * 2 * 2 * 16 }; /* values of a position: layers, K and V, heads, dims; half of it with one layer */

/* With one layer a row's output depends on what itself sees and on nothing that others see. */
static void test_mask_table(void **state)
{
    (void)state;
    random_model m;
    bench b;
    drafter_kind k = draft_kind;
    k.layers = 1;
    open_drafter(&b, &m, &k);
    feed_all(&b, 1, 140);
    const int places[] = {0, 1, 6, 7, 8, 9, 10, 128, 134, 135, 137};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        int n = places[i];
        float before[3 * HIDDEN], after[3 * HIDDEN], kept[VECTORS], other[VECTORS];
        draft(&b, 1, n, 17, 3, before, NULL, NULL);
        for (int s = 0; s < n + 3; s++) {
            vectors_at(&b, 1, s, (uint8_t *)kept, false);
            for (int j = 0; j < VECTORS; j++) other[j] = 0.5f - kept[j];
            vectors_at(&b, 1, s, (uint8_t *)other, true);
            draft(&b, 1, n, 17, 3, after, NULL, NULL);
            for (int row = 0; row < 3; row++) {
                bool sees = s < n && s >= n + row - 8 + 1;
                bool changed = memcmp(before + row * HIDDEN, after + row * HIDDEN, HIDDEN * sizeof *before) != 0;
                if (sees != changed) fail_msg("n %d, row %d and key %d: %s", n, row, s, sees ? "not seen" : "seen");
            }
            vectors_at(&b, 1, s, (uint8_t *)kept, true);
        }
    }
    close_drafter(&b, &m);
}

/* Rows of a block see each other in both directions: a row more changes those before it, the anchor those behind it. What
 * is neither the anchor nor the noise token is not looked at. */
static void test_block_rows(void **state)
{
    (void)state;
    random_model m;
    bench b;
    drafter_kind k = draft_kind;
    k.layers = 1;
    open_drafter(&b, &m, &k);
    feed_all(&b, 1, 20);
    float three[3 * HIDDEN], other[3 * HIDDEN], embed[VOCAB * HIDDEN];
    size_t row = HIDDEN * sizeof *three;
    draft(&b, 1, 20, 17, 3, three, NULL, NULL);
    for (int g = 1; g < 3; g++) {
        draft(&b, 1, 20, 17, g, other, NULL, NULL);
        for (int i = 0; i < g; i++) assert_memory_not_equal(three + i * HIDDEN, other + i * HIDDEN, row);
    }
    draft(&b, 1, 20, 18, 3, other, NULL, NULL);
    for (int i = 0; i < 3; i++) assert_memory_not_equal(three + i * HIDDEN, other + i * HIDDEN, row);

    ops_drafter *d = m.ops.drafter;
    for (int v = 0; v < VOCAB; v++) {
        weight_row(&d->embed, v, embed + v * HIDDEN);
        for (int i = 0; i < HIDDEN && v != 17 && v != d->noise_token; i++) embed[v * HIDDEN + i] = NAN;
    }
    d->embed = make_weight(&m.memory, WEIGHT_F32, VOCAB, HIDDEN, embed, false);
    draft(&b, 1, 20, 17, 3, other, NULL, NULL);
    assert_memory_equal(three, other, sizeof three);
    embed[d->noise_token * HIDDEN] += 1;
    d->embed = make_weight(&m.memory, WEIGHT_F32, VOCAB, HIDDEN, embed, false);
    draft(&b, 1, 20, 17, 3, other, NULL, NULL);
    for (int i = 0; i < 3; i++) assert_memory_not_equal(three + i * HIDDEN, other + i * HIDDEN, row);
    close_drafter(&b, &m);
}

/* The known answer of the published window, W 4096 and g 7 behind n = 5000: row 0 sees context 905 .. 4999, row 6 sees
 * 911 .. 4999, and both the seven rows of the block. Keys of 0 give all that is seen the same weight. */
static void test_published_window(void **state)
{
    (void)state;
    enum { N = 5000, W = 4096, G = 7, BLOCKS = N / CACHE_BLOCK + 1 };
    random_model m;
    bench b;
    drafter_kind k = draft_kind;
    k.layers = 1, k.window = W, k.block = G;
    open_drafter(&b, &m, &k);
    float zeros[KV * HIDDEN] = {0};
    m.ops.drafter->layer[0].k = m.ops.drafter->layer[0].v = make_weight(&m.memory, WEIGHT_F32, KV, HIDDEN, zeros, false);

    int32_t table[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) table[i] = BLOCKS - i;
    ops_rows rows = {.sequences = 1, .block_table = table, .block_table_stride = BLOCKS};
    const struct {
        int first, last, seen[G]; /* values of 1 at these positions, and how many of them the rows see */
    } cases[] = {
        {0, BLOCKS * CACHE_BLOCK - 1, {4095, 4094, 4093, 4092, 4091, 4090, 4089}},
        {0, 904, {0}},
        {905, 905, {1}},
        {905, 910, {6, 5, 4, 3, 2, 1, 0}},
        {911, 911, {1, 1, 1, 1, 1, 1, 1}},
        {4999, 4999, {1, 1, 1, 1, 1, 1, 1}},
        {5000, BLOCKS * CACHE_BLOCK - 1, {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench_fill(&b, 0);
        for (int s = cases[i].first; s <= cases[i].last; s++)
            for (int head = 0; head < 2; head++) {
                float one[16];
                for (int j = 0; j < 16; j++) one[j] = 1;
                size_t at = b.layout.draft_offset + (size_t)head * b.layout.draft_head_bytes + b.layout.draft_v_data;
                ops_reference.cache_write(b.cache, table[s / CACHE_BLOCK], at + (size_t)(s % CACHE_BLOCK) * sizeof one,
                                          sizeof one, one);
            }
        round_of r;
        round_open(&r, 0, N, 17, G);
        ops_reference.begin(b.step, b.cache, &rows);
        ops_reference.draft(b.step, &r.ops, 1);
        assert_int_equal(r.count, G);
        for (int row = 0; row < G; row++)
            for (int j = 0; j < Q; j++) {
                double wanted = cases[i].seen[row] / (W - 1.0 - row + G), got = (double)b.step->draft.attention[row * Q + j];
                if (fabs(got - wanted) > 1e-5 * wanted) fail_msg("row %d: %.9g, not %.9g", row, got, wanted);
            }
    }
    close_drafter(&b, &m);
}

/* ---- Context ----------------------------------------------------------------------------------------------------- */

/* Whether the context of [0, n) is the same in two sequences, to the byte. */
static void check_context(const bench *b, int one, int other, int n)
{
    uint8_t a[VECTORS * sizeof(float)], c[VECTORS * sizeof(float)];
    memset(a, 0, sizeof a), memset(c, 0, sizeof c);
    for (int s = 0; s < n; s++) {
        vectors_at(b, one, s, a, false);
        vectors_at(b, other, s, c, false);
        assert_memory_equal(a, c, sizeof a);
    }
}

/* The context in one piece, token by token, in chunks beside another sequence and padding, and with rows of rejected drafts
 * that later ones overwrite. */
static void test_portions(void **state)
{
    (void)state;
    for (int format = CACHE_FP32; format <= CACHE_FP8; format++) {
        enum { N = 200 };
        random_model m;
        bench b;
        drafter_kind k = draft_kind;
        k.cache = (cache_format)format, k.window = 150;
        open_drafter(&b, &m, &k);
        bench_fill(&b, 0xFF);
        feed(&b, 0, 0, 0, N);
        for (int s = 0; s < N; s++) feed(&b, 1, 0, s, 1);
        for (int first = 0, count; first < N; first += count) {
            step_rows rows;
            rows_open(&rows);
            count = first + 33 < N ? 33 : N - first;
            rows_add(&rows, 4, first / 2, 7, VOCAB);
            rows_add(&rows, -1, 0, 3, VOCAB);
            rows_add(&rows, 2, first, count, VOCAB);
            feed_rows(&b, &rows, 0);
        }
        for (int first = 0, round = 0; first < N; round++) {
            int accepted = round % 5;
            feed(&b, 3, 0, first, 1 + accepted < N - first ? 1 + accepted : N - first);
            first += 1 + accepted;
            if (first + 4 - accepted <= N && accepted < 4) feed(&b, 3, 77, first, 4 - accepted);
        }
        float h[4][3 * HIDDEN];
        int32_t tokens[4][3];
        for (int i = 0; i < 4; i++) {
            if (i) check_context(&b, 0, i, N);
            draft(&b, i, N, 23, 3, h[i], NULL, tokens[i]);
            assert_memory_equal(h[0], h[i], sizeof *h);
            assert_memory_equal(tokens[0], tokens[i], sizeof *tokens);
        }
        /* Rejected rows at n and behind it are not seen, nor is what a NaN they leave would spread. */
        feed(&b, 0, 78, N, 4);
        draft(&b, 0, N, 23, 3, h[1], NULL, NULL);
        assert_memory_equal(h[0], h[1], sizeof *h);
        close_drafter(&b, &m);
    }
}

/* K and V as the taps make them, in the bytes of the format; rows without a slot and padding write nothing. */
static void test_store(void **state)
{
    (void)state;
    for (int format = CACHE_FP32; format <= CACHE_FP8; format++) {
        random_model m;
        bench b;
        drafter_kind k = draft_kind;
        k.cache = (cache_format)format;
        open_drafter(&b, &m, &k);
        bench_fill(&b, 0x5A);
        step_rows rows;
        rows_open(&rows);
        rows_add(&rows, 1, 126, 4, VOCAB);
        rows_add(&rows, -1, 0, 1, VOCAB);
        rows.slot[2] = -1;
        feed_rows(&b, &rows, 1);
        float *c = bench_read(&b, OPS_DRAFT_C, 4, HIDDEN);
        for (int t = 0; t < 4; t++) {
            double in[HIDDEN], key[KV], value[KV];
            uint8_t bytes[VECTORS * sizeof(float)];
            vectors_at(&b, 1, 126 + t, bytes, false);
            size_t size = cache_vector_bytes(k.cache, 16);
            if (t == 2)
                for (size_t i = 0; i < 8 * size; i++) assert_int_equal(bytes[i], 0x5A);
            for (int layer = 0; layer < 2 && t != 2; layer++) {
                for (int i = 0; i < HIDDEN; i++) in[i] = (double)c[t * HIDDEN + i];
                key_value(m.ops.drafter, &m.ops.drafter->layer[layer], in, 126 + t, key, value);
                for (int i = 0; i < KV; i++)
                    for (int v = 0; v < 2; v++) {
                        const uint8_t *at = bytes + (size_t)((layer * 2 + i / 16) * 2 + v) * size;
                        double wanted = v ? value[i] : key[i], got, step = 0, least = 3e-5;
                        uint16_t half;
                        float full;
                        memcpy(&half, at + i % 16 * 2, 2);
                        if (k.cache == CACHE_FP32) memcpy(&full, at + i % 16 * 4, 4), got = (double)full;
                        if (k.cache == CACHE_BF16) got = (double)bf16_to_float(half), step = 0x1p-8;
                        if (k.cache == CACHE_FP8) got = (double)e4m3_to_float(at[i % 16]), step = 0x1.1p-4, least += 0x1p-10;
                        if (fabs(got - wanted) > fabs(wanted) * step + least) /* half a step of the format */
                            fail_msg("%s: %.9g, not %.9g", cache_format_name(k.cache), got, wanted);
                    }
            }
        }
        free(c);
        uint8_t *row = malloc(b.layout.row_bytes); /* nor anything in other blocks */
        for (int32_t block = 0; block < CACHE_BLOCKS; block++) {
            if (block == rows.table[TABLE] || block == rows.table[TABLE + 1]) continue;
            b.ops->cache_read(b.cache, block, 0, b.layout.row_bytes, row);
            for (size_t i = 0; i < b.layout.row_bytes; i++) assert_int_equal(row[i], 0x5A);
        }
        free(row);
        close_drafter(&b, &m);
    }
}

/* A row that is not a number spoils the rounds that see it, and no other. */
static void test_nan_rows(void **state)
{
    (void)state;
    random_model m;
    bench b;
    open_drafter(&b, &m, &draft_kind);
    round_of r[3];
    float before[9 * HIDDEN], after[9 * HIDDEN];
    for (int i = 0; i < 3; i++) {
        feed_all(&b, i, 40);
        round_open(&r[i], i, 40, 17, 3);
        r[i].ops.law = i;
    }
    run_rounds(&b, r, 3);
    b.ops->tensor_read(b.step, OPS_DRAFT_H, 0, 9, before);
    uint8_t nan[VECTORS * sizeof(float)];
    memset(nan, 0xFF, sizeof nan);
    vectors_at(&b, 1, 39, nan, true); /* seen */
    vectors_at(&b, 2, 32, nan, true); /* before the window of all rows */
    vectors_at(&b, 2, 40, nan, true); /* behind the context */
    run_rounds(&b, r, 3);
    b.ops->tensor_read(b.step, OPS_DRAFT_H, 0, 9, after);
    assert_int_equal(r[0].count, 3);
    assert_int_equal(r[1].count, 0);
    assert_int_equal(r[2].count, 3);
    for (int i = 0; i < 3; i += 2) assert_memory_equal(before + i * 3 * HIDDEN, after + i * 3 * HIDDEN, sizeof before / 3);
    for (int i = 3 * HIDDEN; i < 6 * HIDDEN; i++) assert_true(isnan(after[i]));
    /* Seen by row 0 alone: the other rows of one layer would be numbers, those of two are not. */
    memset(nan, 0, sizeof nan);
    vectors_at(&b, 1, 39, nan, true);
    memset(nan, 0xFF, sizeof nan);
    vectors_at(&b, 1, 33, nan, true);
    run_rounds(&b, r, 3);
    assert_int_equal(r[1].count, 0);
    /* A NaN among logits counts as -inf. */
    float head[VOCAB * HIDDEN];
    for (int v = 0; v < VOCAB; v++) weight_row(&m.ops.drafter->head, v, head + v * HIDDEN);
    int32_t best = r[0].draft[0];
    head[best * HIDDEN] = NAN;
    m.ops.drafter->head = make_weight(&m.memory, WEIGHT_F32, VOCAB, HIDDEN, head, false);
    run_rounds(&b, r, 1);
    assert_int_equal(r[0].count, 3);
    for (int k = 0; k < 3; k++) assert_int_not_equal(r[0].draft[k], best);
    close_drafter(&b, &m);
}

/* The whole network with taps and context in every step equals the same taps written by hand. */
static void test_forward(void **state)
{
    (void)state;
    random_model m;
    bench b;
    step_rows rows;
    hy_error err = {0};
    open_drafter(&b, &m, &draft_kind);
    rows_open(&rows);
    rows_add(&rows, 0, 0, 30, VOCAB);
    float *kept[TAPS], logits[3 * VOCAB], again[3 * VOCAB];
    ops_reference.begin(b.step, b.cache, &rows.ops);
    ops_reference.embed(b.step);
    for (int i = 0; i < kind.layers; i++) {
        const ops_layer *l = &m.ops.layer[i];
        ops_reference.attend_in(b.step, i);
        if (l->sparse) ops_reference.index_select(b.step, i);
        ops_reference.attend(b.step, i);
        ops_reference.attend_out(b.step, i);
        if (l->moe)
            ops_reference.route(b.step, i), ops_reference.experts(b.step, i);
        else
            ops_reference.feed_dense(b.step, i);
        for (int tap = 0; tap < TAPS; tap++)
            if (draft_kind.tap[tap] == i) kept[tap] = bench_read(&b, OPS_X, 30, HIDDEN);
    }
    for (int tap = TAPS; tap-- > 0;) { /* in any order */
        ops_reference.tensor_write(b.step, OPS_X, 0, 30, kept[tap]);
        ops_reference.draft_tap(b.step, tap);
        free(kept[tap]);
    }
    ops_reference.draft_context(b.step);
    check(ops_reference.finish(b.step, &err), &err);
    draft(&b, 0, 30, 5, 3, NULL, logits, NULL);
    bench_fill(&b, 0xFF);
    bench_forward(&b, &rows, NULL);
    draft(&b, 0, 30, 5, 3, NULL, again, NULL);
    assert_memory_equal(logits, again, sizeof logits);
    close_drafter(&b, &m);
}

/* ---- Drafts ------------------------------------------------------------------------------------------------------ */

/* U = 0, W1 the identity and W2[v][t] = 10 where v = t + 1: behind token 1 come 2, 3, 4. */
static void test_markov(void **state)
{
    (void)state;
    random_model m;
    bench b;
    drafter_kind k = draft_kind;
    k.markov_rank = VOCAB;
    open_drafter(&b, &m, &k);
    static float zeros[VOCAB * HIDDEN], in[VOCAB * VOCAB], out[VOCAB * VOCAB];
    for (int t = 0; t < VOCAB; t++) {
        in[t * VOCAB + t] = 1;
        if (t + 1 < VOCAB) out[(t + 1) * VOCAB + t] = 10;
    }
    ops_drafter *d = m.ops.drafter;
    d->head = make_weight(&m.memory, WEIGHT_F32, VOCAB, HIDDEN, zeros, false);
    d->markov_in = make_weight(&m.memory, WEIGHT_F32, VOCAB, VOCAB, in, false);
    d->markov_out = make_weight(&m.memory, WEIGHT_F32, VOCAB, VOCAB, out, false);
    feed_all(&b, 0, 9);
    for (int method = DRAFT_COUPLED; method <= DRAFT_PROBABILISTIC; method++)
        for (int hot = 0; hot < 2; hot++) {
            round_of r;
            round_open(&r, 0, 9, 1, 3);
            r.ops.method = (ops_draft_method)method;
            if (hot) r.ops.temperature = method == DRAFT_GREEDY ? 1 : 0.05f; /* 200 apart: no noise reaches that */
            run_rounds(&b, &r, 1);
            assert_int_equal(r.count, 3);
            for (int i = 0; i < 3; i++) assert_int_equal(r.draft[i], 2 + i);
        }
    int32_t tokens[3];
    draft(&b, 0, 9, VOCAB - 1, 3, NULL, NULL, tokens); /* nothing behind the last token: a tie, the lowest */
    for (int i = 0; i < 3; i++) assert_int_equal(tokens[i], i);
    close_drafter(&b, &m);
}

/* A coupled draft is what the target would pick at that position had it the drafter's logits; a greedy one is the largest
 * logit; a probabilistic one is drawn with noise of its own, which the anchor's position is part of. */
static void test_noise(void **state)
{
    (void)state;
    random_model m;
    bench b;
    open_drafter(&b, &m, &draft_kind);
    feed_all(&b, 0, 12);
    void *scratch = malloc(sample_scratch_bytes(VOCAB));
    int moved[3] = {0}, same = 0, rounds = 100;
    for (int i = 0; i < rounds; i++) {
        round_of r[3];
        float laws[3 * VOCAB], largest[3 * VOCAB];
        for (int method = 0; method < 3; method++) {
            round_open(&r[method], 0, 12, 17, 3);
            r[method].ops.method = (ops_draft_method)method;
            r[method].ops.seed = (uint64_t)i << 33 | 5, r[method].ops.choice = (uint32_t)i % 3;
            r[method].ops.temperature = 0.8f, r[method].ops.law = 1;
            run_rounds(&b, &r[method], 1);
            assert_int_equal(r[method].count, 3);
        }
        b.ops->tensor_read(b.step, OPS_DRAFT_LOGITS, 3, 3, laws);
        draft(&b, 0, 12, 17, 3, NULL, largest, NULL);
        /* Rows of one round share U and differ by what the token before adds, so only the first is the same for all. */
        assert_memory_equal(laws, largest, VOCAB * sizeof *laws);
        ops_sample how = {.seed = r[0].ops.seed, .position = 13, .choice = r[0].ops.choice, .temperature = 0.8f, .top_p = 1,
                          .repetition_penalty = 1, .logprobs = -1};
        ops_sampled picked;
        sample_row(laws, VOCAB, &how, scratch, &picked);
        assert_int_equal(r[DRAFT_COUPLED].draft[0], picked.id);
        float follows[2][64], sum[VOCAB];
        for (int v = 0; v < VOCAB; v++) {
            weight_row(&m.ops.drafter->markov_out, v, follows[1]);
            double base = (double)largest[VOCAB + v];
            int32_t before[2];
            before[0] = 0, before[1] = r[DRAFT_COUPLED].draft[0];
            for (int w = 0; w < VOCAB; w++)
                if (largest[w] > largest[before[0]]) before[0] = w;
            for (int j = 0; j < 2; j++) {
                double added = 0;
                weight_row(&m.ops.drafter->markov_in, before[j], follows[0]);
                for (int e = 0; e < 8; e++) added += (double)follows[0][e] * (double)follows[1][e];
                base += j ? added : -added;
            }
            sum[v] = (float)base;
        }
        how.position = 14;
        sample_row(sum, VOCAB, &how, scratch, &picked);
        same += r[DRAFT_COUPLED].draft[1] == picked.id;
        for (int method = 0; method < 3; method++) moved[method] += r[method].draft[0] != r[DRAFT_GREEDY].draft[0];
        moved[DRAFT_GREEDY] += largest[r[DRAFT_GREEDY].draft[0]] < largest[picked.id];
        for (int v = 0; v < VOCAB; v++) assert_true(laws[v] <= laws[r[DRAFT_GREEDY].draft[0]]);
    }
    assert_true(same >= rounds - 1); /* but for a tie within what fp32 and double differ by */
    assert_int_equal(moved[DRAFT_GREEDY], 0);
    assert_true(moved[DRAFT_COUPLED] > 10 && moved[DRAFT_PROBABILISTIC] > 10);
    free(scratch);
    close_drafter(&b, &m);
}

/* What ends a round: a position, no anchor, an error of the step, and the confidence head. */
static void test_ends(void **state)
{
    (void)state;
    random_model m;
    bench b;
    open_drafter(&b, &m, &draft_kind);
    feed_all(&b, 0, 12);
    round_of r;
    int32_t whole[3];
    draft(&b, 0, 12, 17, 3, NULL, NULL, whole);
    for (int end = 11; end < 18; end++) { /* the first draft is for position 13, and the block is that of 3 rows always */
        round_open(&r, 0, 12, 17, 3);
        r.ops.end = end;
        run_rounds(&b, &r, 1);
        int wanted = end < 13 ? 0 : end - 13 < 3 ? end - 13 : 3;
        assert_int_equal(r.count, wanted);
        assert_memory_equal(r.draft, whole, (size_t)wanted * sizeof *whole);
    }
    round_open(&r, 0, 12, -1, 3);
    run_rounds(&b, &r, 1);
    assert_int_equal(r.count, 0);
    r.after_count = 0;
    run_rounds(&b, &r, 1);
    assert_int_equal(r.count, 0);

    step_rows rows;
    hy_error err = {0};
    rows_open(&rows);
    rows_add(&rows, 0, 12, 2, VOCAB);
    rows.token[1] = VOCAB;
    round_open(&r, 0, 12, 17, 3);
    r.count = -7;
    ops_reference.begin(b.step, b.cache, &rows.ops);
    ops_reference.embed(b.step);
    ops_reference.draft_tap(b.step, 0);
    ops_reference.draft_context(b.step);
    ops_reference.draft(b.step, &r.ops, 1);
    assert_int_equal(r.count, 0);
    assert_int_equal(ops_reference.finish(b.step, &err), HY_BAD_INPUT);
    draft(&b, 0, 12, 17, 3, NULL, NULL, whole + 0); /* and works again */

    /* c = sigmoid(w . [h; W1 of the token before] + b), which does not look at the draft that it judges. */
    float h[3 * HIDDEN], row[HIDDEN + 8], before[8], bias;
    double least = 1, c[3];
    draft(&b, 0, 12, 17, 3, h, NULL, whole);
    weight_row(&m.ops.drafter->confidence, 0, row);
    weight_row(&m.ops.drafter->confidence_bias, 0, &bias);
    for (int k = 0; k < 3; k++) {
        double z = (double)bias;
        weight_row(&m.ops.drafter->markov_in, k ? whole[k - 1] : 17, before);
        for (int i = 0; i < HIDDEN; i++) z += (double)row[i] * (double)h[k * HIDDEN + i];
        for (int i = 0; i < 8; i++) z += (double)row[HIDDEN + i] * (double)before[i];
        c[k] = 1 / (1 + exp(-z));
    }
    for (int k = 0; k < 3; k++) {
        if (c[k] >= least) continue;
        least = c[k];
        round_open(&r, 0, 12, 17, 3);
        r.ops.threshold = (float)(c[k] * 1.0001);
        run_rounds(&b, &r, 1);
        assert_int_equal(r.count, k);
        assert_memory_equal(r.draft, whole, (size_t)k * sizeof *whole);
        r.ops.threshold = (float)(c[k] * 0.9999);
        run_rounds(&b, &r, 1);
        assert_true(r.count > k);
    }
    float nan = NAN;
    m.ops.drafter->confidence_bias = make_weight(&m.memory, WEIGHT_F32, 1, 1, &nan, false);
    r.ops.threshold = 1e-6f;
    run_rounds(&b, &r, 1);
    assert_int_equal(r.count, 0);
    m.ops.drafter->confidence.format = WEIGHT_NONE; /* without a head the threshold asks nothing */
    r.ops.threshold = 1;
    run_rounds(&b, &r, 1);
    assert_int_equal(r.count, 3);
    close_drafter(&b, &m);
}

/* Rounds of different sequences, lengths and methods in one call are those of calls of their own, to the bit; laws lie where
 * they were asked for and nothing else is written. */
static void test_rounds_together(void **state)
{
    (void)state;
    random_model m;
    bench b;
    drafter_kind k = draft_kind;
    k.window = 40;
    open_drafter(&b, &m, &k);
    enum { ROUNDS = 6 };
    round_of r[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        feed_all(&b, i, 25 * i + 3);
        round_open(&r[i], i, 25 * i + 3, 11 + i, 1 + i / 2);
        r[i].ops.method = (ops_draft_method)(i % 3), r[i].ops.temperature = i < 4 ? 0.9f : 0;
        r[i].ops.seed = (uint64_t)i * 77, r[i].ops.law = 7 - i;
    }
    r[3].after[1].id = -1;
    float *none = random_floats(MAX_SEQUENCES * 3 * VOCAB, 1, false);
    b.ops->tensor_write(b.step, OPS_DRAFT_LOGITS, 0, MAX_SEQUENCES * 3, none);
    run_rounds(&b, r, ROUNDS);
    float *h = bench_read(&b, OPS_DRAFT_H, MAX_SEQUENCES * 3, HIDDEN),
          *laws = bench_read(&b, OPS_DRAFT_LOGITS, MAX_SEQUENCES * 3, VOCAB);
    for (int i = 0; i < ROUNDS; i++) {
        float own_h[3 * HIDDEN], own[3 * VOCAB];
        round_of alone = r[i];
        run_rounds(&b, &alone, 1);
        int rows = i == 3 ? 0 : 1 + i / 2;
        assert_int_equal(alone.count, rows);
        assert_int_equal(r[i].count, rows);
        assert_memory_equal(alone.draft, r[i].draft, (size_t)rows * sizeof *alone.draft);
        b.ops->tensor_read(b.step, OPS_DRAFT_H, 0, 3, own_h);
        assert_memory_equal(own_h, h + i * 3 * HIDDEN, (size_t)(rows * HIDDEN) * sizeof *h);
        b.ops->tensor_read(b.step, OPS_DRAFT_LOGITS, (7 - i) * 3, 3, own);
        bool kept = r[i].ops.method == DRAFT_PROBABILISTIC;
        assert_memory_equal(own, laws + (7 - i) * 3 * VOCAB, sizeof own);
        size_t written = kept ? (size_t)(rows * VOCAB) : 0, at = (size_t)(7 - i) * 3 * VOCAB;
        assert_memory_equal(laws + at + written, none + at + written, (3 * VOCAB - written) * sizeof *laws);
        if (kept) assert_memory_not_equal(laws + at, none + at, written * sizeof *laws);
    }
    free(none), free(h), free(laws);
    close_drafter(&b, &m);
}

/* A step without drafts, of a model with a drafter and of one without, has no memory for them and runs as ever. */
static void test_without(void **state)
{
    (void)state;
    random_model m;
    bench b;
    step_rows rows;
    hy_error err = {0};
    float with[20 * VOCAB], without[20 * VOCAB];
    open_drafter(&b, &m, &draft_kind);
    rows_open(&rows);
    rows_add(&rows, 0, 0, 20, VOCAB);
    bench_forward(&b, &rows, with);
    ops_reference.step_close(b.step);
    ops_limits limits = {.rows = 20, .logit_rows = 20, .positions = 20};
    check(ops_reference.step_open(b.backend, &limits, &b.step, &err), &err);
    assert_null(b.step->draft.taps);
    assert_null(b.step->draft.h);
    bench_close(&b);
    m.ops.drafter = NULL;
    bench_open(&b, &ops_reference, &m, CACHE_BF16, CACHE_BF16, (ops_options){0}, 1);
    assert_true(b.layout.draft_offset == CACHE_NO_OFFSET);
    bench_forward(&b, &rows, without);
    assert_memory_equal(with, without, sizeof with);
    close_drafter(&b, &m);
}

/* Drafters that neither host backend can run are refused at open, by what is wrong with them. */
static void test_refusals(void **state)
{
    (void)state;
    const struct {
        ops_drafter change; /* fields that are not 0 replace the drafter's */
        const char *message;
    } cases[] = {
        {{.kv_heads = 4}, "6 query heads of the drafter"},
        {{.rotary_dim = 7}, "rotary dim of 7"},
        {{.rotary_dim = 18}, "rotary dim of 18"},
        {{.block = DRAFT_MAX_BLOCK + 1, .window = 99}, "makes 17 tokens"},
        {{.window = 2}, "window of 2 tokens is smaller than its block of 3"},
        {{.tap_count = DRAFT_MAX_TAPS + 1}, "listens to 17 layers"},
        {{.tap = {0, 3}}, "listens to layer 3 of 3"},
        {{.tap = {-1, 2}}, "listens to layer -1"},
        {{.noise_token = VOCAB}, "noise token 50"},
        {{.noise_token = -1}, "noise token -1"},
        {{.cache = CACHE_NVFP4}, "cannot be nvfp4"},
    };
    random_model m;
    random_model_make(&m, &kind);
    random_model_draft(&m, &draft_kind);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ops_drafter *c = &cases[i].change;
        ops_drafter d = *m.ops.drafter;
        ops_model changed = m.ops;
        changed.drafter = &d;
        if (c->kv_heads) d.kv_heads = c->kv_heads;
        if (c->rotary_dim) d.rotary_dim = c->rotary_dim;
        if (c->block) d.block = c->block;
        if (c->window) d.window = c->window;
        if (c->tap_count) d.tap_count = c->tap_count;
        if (c->tap[1]) memcpy(d.tap, c->tap, sizeof d.tap);
        if (c->noise_token) d.noise_token = c->noise_token;
        if (c->cache) d.cache = c->cache;
        for (int cpu = 0; cpu < 2; cpu++) {
            hy_error err = {0};
            ops_backend *backend = NULL;
            assert_int_equal((cpu ? ops_cpu : ops_reference).open(&changed, &(ops_options){0}, &backend, &err), HY_UNSUPPORTED);
            if (!strstr(err.message, cases[i].message)) fail_msg("\"%s\" is not said in \"%s\"", cases[i].message, err.message);
            assert_null(backend);
        }
    }
    random_model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_mask_table),
        cmocka_unit_test(test_block_rows),
        cmocka_unit_test(test_published_window),
        cmocka_unit_test(test_portions),
        cmocka_unit_test(test_store),
        cmocka_unit_test(test_nan_rows),
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_markov),
        cmocka_unit_test(test_noise),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_rounds_together),
        cmocka_unit_test(test_without),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
