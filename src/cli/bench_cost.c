#include "cli/bench_cost.h"

#include <string.h>

const char *const bench_op_names[BENCH_OPS] = {
    "embed", "attend_in", "index_select", "attend", "attend_out", "route", "experts", "feed_dense", "head",
};
const char *const bench_kind_names[BENCH_KINDS] = {
    "experts", "linear", "head", "router", "cache", "index_cache", "other",
};
const char *const bench_peak_names[BENCH_PEAKS] = {"int8", "int16", "bf16", "fp32"};

/* ---- Costs ---------------------------------------------------------------------------------------------------- */

static bench_peak peak_of(const weight *w, bool quantised_rows)
{
    if (w->format == WEIGHT_F32) return PEAK_FP32;
    return w->format == WEIGHT_NVFP4 && quantised_rows ? PEAK_INT8 : PEAK_BF16;
}

/* `rows` rows through a weight whose bytes are read `copies` times (distinct experts of the same shape). */
static void add_product(const weight *w, bench_kind kind, bool quantised_rows, int64_t rows, int64_t copies,
                        bench_cost *out)
{
    if (w->format == WEIGHT_NONE || rows == 0) return;
    out->bytes[kind] += (double)weight_bytes(w) * (double)copies;
    out->operations[peak_of(w, quantised_rows)] += 2.0 * (double)w->rows * (double)w->cols * (double)rows;
}

static void add_linear(const weight *w, int64_t rows, bench_cost *out)
{
    add_product(w, BYTES_LINEAR, false, rows, 1, out);
}

static void add_vector(const weight *w, bench_cost *out)
{
    if (w->format != WEIGHT_NONE) out->bytes[BYTES_OTHER] += (double)weight_bytes(w);
}

static void add_attend_in(const bench_shape *s, const ops_layer *l, const bench_work *work, bench_cost *out)
{
    const ops_model *m = s->model;
    add_vector(&l->input_norm, out);
    add_linear(&l->q, work->rows, out);
    add_linear(&l->k, work->rows, out);
    add_linear(&l->v, work->rows, out);
    out->bytes[BYTES_CACHE] +=
        2.0 * (double)work->rows * m->kv_heads * (double)cache_vector_bytes(s->main, m->head_dim);
    if (!l->sparse) return;
    add_linear(&l->index_q, work->rows, out);
    add_linear(&l->index_k, work->rows, out);
    out->bytes[BYTES_INDEX_CACHE] += (double)work->rows * (double)cache_vector_bytes(s->index, m->index_dim);
}

/* Of q.k with keys of a format. */
static bench_peak key_peak(const bench_shape *s, cache_format format)
{
    return format == CACHE_NVFP4 && s->read == READBACK_EXACT ? PEAK_INT16 : PEAK_BF16;
}

static void add_index(const bench_shape *s, const bench_work *work, bench_cost *out)
{
    const ops_model *m = s->model;
    out->bytes[BYTES_INDEX_CACHE] += (double)work->index_tokens * (double)cache_vector_bytes(s->index, m->index_dim);
    out->operations[key_peak(s, s->index)] += 2.0 * (double)work->scored * m->index_heads * m->index_dim;
}

static void add_attend(const bench_shape *s, const bench_work *work, bench_cost *out)
{
    const ops_model *m = s->model;
    double queries = (double)m->heads / m->kv_heads; /* that share a KV head */
    out->bytes[BYTES_CACHE] += 2.0 * (double)work->cache_tokens * (double)cache_vector_bytes(s->main, m->head_dim);
    double each = 2.0 * (double)work->attended * queries * m->head_dim; /* of q.k and of p.v */
    out->operations[key_peak(s, s->main)] += each;
    out->operations[PEAK_BF16] += each;
}

static void add_experts(const bench_shape *s, const ops_layer *l, const bench_work *work, bench_cost *out)
{
    const weight *routed[] = {&l->expert_gate[0], &l->expert_up[0], &l->expert_down[0]};
    const weight *shared[] = {&l->shared_gate, &l->shared_up, &l->shared_down};
    bool quantised = s->activation == MOE_ACTIVATION_NVFP4;
    for (int i = 0; i < 3; i++) {
        add_product(routed[i], BYTES_EXPERTS, quantised, work->rows * s->model->experts_per_token, work->experts, out);
        add_linear(shared[i], work->rows, out);
    }
}

void bench_cost_add(const bench_shape *s, bench_op op, int layer, const bench_work *work, bench_cost *out)
{
    const ops_model *m = s->model;
    const ops_layer *l = &m->layer[layer];
    switch (op) {
    case BENCH_EMBED:
        out->bytes[BYTES_OTHER] += (double)weight_bytes(&m->embed) / (double)m->embed.rows * (double)work->rows;
        break;
    case BENCH_ATTEND_IN: add_attend_in(s, l, work, out); break;
    case BENCH_INDEX: add_index(s, work, out); break;
    case BENCH_ATTEND: add_attend(s, work, out); break;
    case BENCH_ATTEND_OUT: add_linear(&l->o, work->rows, out); break;
    case BENCH_ROUTE:
        add_vector(&l->post_norm, out);
        add_product(&l->router, BYTES_ROUTER, false, work->rows, 1, out);
        break;
    case BENCH_EXPERTS: add_experts(s, l, work, out); break;
    case BENCH_FEED_DENSE:
        add_vector(&l->post_norm, out);
        add_linear(&l->dense_gate, work->rows, out);
        add_linear(&l->dense_up, work->rows, out);
        add_linear(&l->dense_down, work->rows, out);
        break;
    case BENCH_HEAD: add_product(&m->head, BYTES_HEAD, false, work->logit_rows, 1, out); break;
    case BENCH_OPS: break;
    }
}

void bench_cost_sum(bench_cost *to, const bench_cost *from)
{
    for (int i = 0; i < BENCH_KINDS; i++) to->bytes[i] += from->bytes[i];
    for (int i = 0; i < BENCH_PEAKS; i++) to->operations[i] += from->operations[i];
}

double bench_cost_bytes(const bench_cost *cost)
{
    double sum = 0;
    for (int i = 0; i < BENCH_KINDS; i++) sum += cost->bytes[i];
    return sum;
}

double bench_cost_read_seconds(const bench_cost *cost, double read)
{
    return bench_cost_bytes(cost) / read;
}

bench_peak bench_cost_peak(bench_peak which, const double peaks[BENCH_PEAKS])
{
    bench_peak best = which;
    for (int i = which + 1; i < BENCH_PEAKS && which != PEAK_INT8; i++)
        if (peaks[i] > peaks[best]) best = (bench_peak)i;
    return best;
}

double bench_cost_peak_seconds(const bench_cost *cost, const double peaks[BENCH_PEAKS])
{
    double sum = 0;
    for (int i = 0; i < BENCH_PEAKS; i++)
        if (cost->operations[i] > 0) sum += cost->operations[i] / peaks[bench_cost_peak((bench_peak)i, peaks)];
    return sum;
}

double bench_cost_bound(const bench_cost *cost, double read, const double peaks[BENCH_PEAKS])
{
    double bytes = bench_cost_read_seconds(cost, read), operations = bench_cost_peak_seconds(cost, peaks);
    return bytes > operations ? bytes : operations;
}

/* ---- Counting ------------------------------------------------------------------------------------------------- */

/* Tokens of block b that a row at `position` sees. */
static int64_t block_tokens(int32_t position, int32_t b)
{
    int64_t left = (int64_t)position + 1 - (int64_t)b * CACHE_BLOCK;
    return left < CACHE_BLOCK ? left : CACHE_BLOCK;
}

size_t bench_count_scratch(const ops_model *model, const ops_rows *rows)
{
    return (size_t)rows->sequences * (size_t)model->kv_heads * (size_t)rows->block_table_stride;
}

/* One more block of a KV head: how many of its tokens nobody had read before. `seen` holds the most tokens so far. */
static int64_t fresh_tokens(uint8_t *seen, int64_t tokens)
{
    int64_t fresh = tokens > *seen ? tokens - *seen : 0;
    *seen = (uint8_t)(*seen + fresh);
    return fresh;
}

static void count_row(const ops_model *m, const ops_rows *rows, int64_t t, const int32_t *blocks, uint8_t *seen,
                      bench_work *work)
{
    int32_t position = rows->position[t], stride = rows->block_table_stride;
    uint8_t *mine = seen + (int64_t)rows->sequence[t] * m->kv_heads * stride;
    for (int h = 0; h < m->kv_heads; h++) {
        const int32_t *list = blocks ? blocks + (t * m->index_heads + h) * m->index_top : NULL;
        int32_t count = list ? m->index_top : position / CACHE_BLOCK + 1;
        for (int32_t i = 0; i < count; i++) {
            int32_t b = list ? list[i] : i;
            if (b < 0) break;
            work->attended += block_tokens(position, b);
            work->cache_tokens += fresh_tokens(&mine[(int64_t)h * stride + b], block_tokens(position, b));
        }
    }
}

/* Index keys: rows that see at most index_top blocks take all of them unread. */
static void count_scores(const ops_model *m, const ops_rows *rows, uint8_t *seen, bench_work *work)
{
    memset(seen, 0, bench_count_scratch(m, rows));
    for (int32_t t = 0; t < rows->count; t++) {
        int32_t visible = rows->position[t] / CACHE_BLOCK + 1;
        if (rows->sequence[t] < 0 || visible <= m->index_top) continue;
        uint8_t *mine = seen + (int64_t)rows->sequence[t] * m->kv_heads * rows->block_table_stride;
        work->scored += (int64_t)rows->position[t] + 1;
        for (int32_t b = 0; b < visible; b++)
            work->index_tokens += fresh_tokens(&mine[b], block_tokens(rows->position[t], b));
    }
}

void bench_count_attention(const ops_model *model, const ops_rows *rows, const int32_t *blocks, uint8_t *seen,
                           bench_work *work)
{
    work->scored = work->index_tokens = work->attended = work->cache_tokens = 0;
    if (blocks) count_scores(model, rows, seen, work);
    memset(seen, 0, bench_count_scratch(model, rows));
    for (int32_t t = 0; t < rows->count; t++)
        if (rows->sequence[t] >= 0) count_row(model, rows, t, blocks, seen, work);
}

int64_t bench_count_experts(const ops_model *model, int64_t rows, const int32_t *routes, uint8_t *seen)
{
    int64_t distinct = 0;
    memset(seen, 0, (size_t)model->experts);
    for (int64_t i = 0; i < rows * model->experts_per_token; i++) {
        distinct += !seen[routes[i]];
        seen[routes[i]] = 1;
    }
    return distinct;
}
