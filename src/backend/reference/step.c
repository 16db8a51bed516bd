/* Opening and closing the reference backend, the rows of a step, named tensors, embedding, head and sampling. */
#include "backend/reference/reference.h"
#include "base/error.h"
#include "base/memory.h"

#include <assert.h>
#include <string.h>

void reference_parallel(const ops_step *step, int64_t items, threads_fn fn, void *arg)
{
    threads *pool = step->backend->options.pool;
    if (pool)
        threads_run(pool, items, 1, fn, arg);
    else if (items)
        fn(arg, 0, items, 0);
}

float *reference_scratch(const ops_step *step, int worker)
{
    return step->scratch + (size_t)worker * step->scratch_floats;
}

/* ---- Backend -------------------------------------------------------------------------------------------------- */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The widest vector that a worker holds: inputs of a projection, a gain, the router's bias. */
static size_t widest(const ops_model *m)
{
    static const ops_drafter none;
    const ops_drafter *d = m->drafter ? m->drafter : &none;
    int64_t widths[] = {m->hidden,       (int64_t)m->heads * m->head_dim,
                        m->expert_width, m->shared_width,
                        m->dense_width,  m->experts,
                        m->index_dim,    (int64_t)d->tap_count * m->hidden,
                        d->width,        (int64_t)d->heads * d->head_dim,
                        d->markov_rank};
    size_t most = 0;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) most = larger(most, (size_t)widths[i]);
    return most;
}

static void reference_close(ops_backend *b)
{
    if (!b) return;
    memory_free(b->frequency);
    memory_free(b->draft_frequency);
    memory_free(b);
}

static hy_status reference_open(const ops_model *model, const ops_options *options, ops_backend **out, hy_error *err)
{
    hy_status status = host_check_model("reference", model, options, err);
    if (status != HY_OK) return status;
    const ops_drafter *d = model->drafter;
    size_t pairs = (size_t)model->rotary_dim / 2, draft_pairs = d ? (size_t)d->rotary_dim / 2 : 0;
    ops_backend *b = memory_zeroed(1, sizeof *b);
    float *frequency = memory_zeroed(pairs + 1, sizeof *frequency);
    float *draft_frequency = memory_zeroed(draft_pairs + 1, sizeof *draft_frequency);
    if (!b || !frequency || !draft_frequency) {
        memory_free(b);
        memory_free(frequency);
        memory_free(draft_frequency);
        return error_memory(err, "the reference backend", sizeof *b);
    }
    *b = (ops_backend){.model = model,
                       .options = *options,
                       .frequency = frequency,
                       .draft_frequency = draft_frequency,
                       .max_width = widest(model),
                       .workers = options->pool ? threads_count(options->pool) : 1};
    reference_rotary_frequencies(model->rope_theta, model->rotary_dim, frequency);
    if (d) reference_rotary_frequencies(d->rope_theta, d->rotary_dim, draft_frequency);
    *out = b;
    return HY_OK;
}

/* ---- Cache ---------------------------------------------------------------------------------------------------- */

static hy_status cache_open(ops_backend *backend, const cache_layout *layout, int32_t blocks, ops_cache **out,
                            hy_error *err)
{
    assert(layout->layers == backend->model->layers);
    /* Zeroed, so that tokens which no row may see yet decode to numbers. */
    return host_cache_open(backend, layout, blocks, true, out, err);
}

/* ---- Step ----------------------------------------------------------------------------------------------------- */

static void step_close(ops_step *step)
{
    if (!step) return;
    reference_draft_close(step);
    void *arrays[] = {step->x,
                      step->normed,
                      step->cosine,
                      step->sine,
                      step->q,
                      step->k,
                      step->v,
                      step->index_q,
                      step->index_k,
                      step->scores,
                      step->candidates,
                      step->blocks,
                      step->attention,
                      step->h,
                      step->router,
                      step->routes,
                      step->route_weights,
                      step->members,
                      step->member_factor,
                      step->gathered,
                      step->gate,
                      step->up,
                      step->y,
                      step->sum,
                      step->logits,
                      step->scratch,
                      step->draft_logits,
                      step->sample_scratch,
                      step};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) memory_free(arrays[i]);
}

static hy_status step_arrays(ops_step *s, hy_error *err)
{
    const ops_model *m = s->backend->model;
    size_t rows = (size_t)s->limits.rows, logit_rows = (size_t)s->limits.logit_rows, hidden = (size_t)m->hidden;
    size_t q = (size_t)m->heads * (size_t)m->head_dim, kv = (size_t)m->kv_heads * (size_t)m->head_dim;
    size_t pairs = (size_t)m->rotary_dim / 2, index_heads = (size_t)m->index_heads, top = (size_t)m->index_top;
    size_t routes = (size_t)m->experts_per_token, f = sizeof(float), i = sizeof(int32_t);
    size_t wide = larger(larger((size_t)m->expert_width, (size_t)m->shared_width), (size_t)m->dense_width);
    size_t laws = s->limits.draft_laws ? (size_t)s->limits.drafts : 0;
    s->scratch_floats = larger(larger(reference_linear_scratch(s->backend), reference_index_scratch(s->backend)),
                               larger(reference_attention_scratch(s->backend), reference_draft_scratch(s->backend)));
    const host_array arrays[] = {
        {&s->x, rows, hidden, f},
        {&s->normed, rows, hidden, f},
        {&s->cosine, rows, pairs, f},
        {&s->sine, rows, pairs, f},
        {&s->q, rows, q, f},
        {&s->k, rows, kv, f},
        {&s->v, rows, kv, f},
        {&s->index_q, rows, index_heads * (size_t)m->index_dim, f},
        {&s->index_k, rows, (size_t)m->index_dim, f},
        {&s->scores, rows, index_heads * (size_t)s->max_blocks, f},
        {&s->candidates, rows, REFERENCE_PARTS * index_heads * top, sizeof *s->candidates},
        {&s->blocks, rows, index_heads * top, i},
        {&s->attention, rows, q, f},
        {&s->h, rows, hidden, f},
        {&s->router, rows, (size_t)m->experts, f},
        {&s->routes, rows, routes, i},
        {&s->route_weights, rows, routes, f},
        {&s->members, rows, 1, i},
        {&s->member_factor, rows, 1, f},
        {&s->gathered, rows, hidden, f},
        {&s->gate, rows, wide, f},
        {&s->up, rows, wide, f},
        {&s->y, rows, hidden, f},
        {&s->sum, rows, hidden, f},
        {&s->logits, logit_rows, (size_t)m->vocab, f},
        {&s->scratch, (size_t)s->backend->workers, s->scratch_floats, f},
        {&s->draft_logits, laws, (size_t)s->limits.draft_rows * (size_t)m->vocab, f},
        {&s->sample_scratch, 1, host_verify_scratch(&s->limits, m->vocab), 1},
    };
    return host_arrays_open(arrays, sizeof arrays / sizeof *arrays, err);
}

static hy_status step_open(ops_backend *backend, const ops_limits *limits, ops_step **out, hy_error *err)
{
    assert(limits->rows > 0 && limits->logit_rows >= 0 && limits->positions > 0);
    ops_step *step = memory_zeroed(1, sizeof *step);
    if (!step) return error_memory(err, "a step", sizeof *step);
    step->backend = backend;
    step->limits = *limits;
    step->max_blocks = (limits->positions + CACHE_BLOCK - 1) / CACHE_BLOCK;
    hy_status status = step_arrays(step, err);
    if (status == HY_OK) status = reference_draft_open(step, err);
    if (status != HY_OK) {
        step_close(step);
        return status;
    }
    *out = step;
    return HY_OK;
}

static void begin(ops_step *step, ops_cache *cache, const ops_rows *rows)
{
    step->error = (hy_error){0};
    step->cache = cache;
    step->rows = *rows;
    step->logit_rows = 0;
    assert(rows->count <= step->limits.rows);
    for (int32_t t = 0; t < rows->count; t++) {
        step->logit_rows += (rows->flags[t] & ROW_LOGITS) != 0;
        if (host_check_row(step->backend->model, &step->limits, cache, rows, t, &step->error) == HY_OK) continue;
        step->rows.count = step->logit_rows = 0; /* the operations that follow do nothing */
        return;
    }
    assert(step->logit_rows <= step->limits.logit_rows);
    reference_rotary_tables(step);
}

static hy_status finish(ops_step *step, hy_error *err)
{
    hy_status status = step->error.status;
    if (status != HY_OK && err) *err = step->error;
    return status;
}

/* ---- Embedding, head, sampling --------------------------------------------------------------------------------- */

static void embed(ops_step *step)
{
    const ops_model *m = step->backend->model;
    for (int64_t t = 0; t < step->rows.count; t++) {
        float *x = step->x + t * m->hidden;
        if (step->rows.sequence[t] < 0)
            memset(x, 0, (size_t)m->hidden * sizeof *x);
        else
            weight_row(&m->embed, step->rows.token[t], x);
    }
}

static void head(ops_step *step)
{
    const ops_model *m = step->backend->model;
    int32_t n = 0;
    reference_rms_norm_rows(step, step->x, &m->final_norm, step->normed);
    for (int64_t t = 0; t < step->rows.count; t++)
        if (step->rows.flags[t] & ROW_LOGITS)
            memcpy(step->gathered + (int64_t)n++ * m->hidden, step->normed + t * m->hidden,
                   (size_t)m->hidden * sizeof(float));
    reference_linear(step, &m->head, step->gathered, n, step->logits);
}

static void sample(ops_step *step, const ops_sample *rows, int32_t count, ops_sampled *out)
{
    int32_t vocab = step->backend->model->vocab;
    for (int32_t i = 0; i < count; i++) {
        out[i] = (ops_sampled){.id = SAMPLED_NONE};
        if (rows[i].logit_row >= step->logit_rows) continue; /* only after an error of the step */
        sample_row(step->logits + (int64_t)rows[i].logit_row * vocab, vocab, &rows[i], step->sample_scratch, &out[i]);
    }
}

static void verify(ops_step *step, const ops_verify *sequences, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        host_verify(&step->limits, step->logits, step->logit_rows, step->backend->model->vocab, step->draft_logits,
                    &sequences[i], step->sample_scratch);
}

/* ---- Named tensors --------------------------------------------------------------------------------------------- */

/* Row `first` of a tensor, of which there are `rows` more, and their bytes. */
static void *tensor_at(ops_step *step, ops_tensor which, int32_t first, int32_t rows, size_t *bytes)
{
    const ops_model *m = step->backend->model;
    const ops_limits *limits = &step->limits;
    size_t heads = (size_t)m->heads * (size_t)m->head_dim, index_heads = (size_t)m->index_heads;
    int32_t drafts = limits->drafts * limits->draft_rows;
    const struct {
        void *at;
        size_t columns; /* of four bytes */
        int32_t rows;
    } tensors[] = {
        [OPS_X] = {step->x, (size_t)m->hidden, limits->rows},
        [OPS_Q] = {step->q, heads, limits->rows},
        [OPS_INDEX_Q] = {step->index_q, index_heads * (size_t)m->index_dim, limits->rows},
        [OPS_SCORES] = {step->scores, index_heads * (size_t)step->max_blocks, limits->rows},
        [OPS_BLOCKS] = {step->blocks, index_heads * (size_t)m->index_top, limits->rows},
        [OPS_ATTENTION] = {step->attention, heads, limits->rows},
        [OPS_H] = {step->h, (size_t)m->hidden, limits->rows},
        [OPS_ROUTES] = {step->routes, (size_t)m->experts_per_token, limits->rows},
        [OPS_ROUTE_WEIGHTS] = {step->route_weights, (size_t)m->experts_per_token, limits->rows},
        [OPS_LOGITS] = {step->logits, (size_t)m->vocab, limits->logit_rows},
        [OPS_DRAFT_C] = {step->draft.c, (size_t)m->hidden, limits->rows},
        [OPS_DRAFT_H] = {step->draft.h, (size_t)m->hidden, drafts},
        [OPS_DRAFT_LOGITS] = {step->draft_logits, (size_t)m->vocab, limits->draft_laws ? drafts : 0},
    };
    size_t row_bytes = tensors[which].columns * 4;
    char *at = tensors[which].at;
    assert(at && first >= 0 && rows >= 0 && rows <= tensors[which].rows - first);
    *bytes = (size_t)rows * row_bytes;
    return at + (size_t)first * row_bytes;
}

static void tensor_read(ops_step *step, ops_tensor which, int32_t first, int32_t rows, void *out)
{
    size_t bytes;
    const void *at = tensor_at(step, which, first, rows, &bytes);
    memcpy(out, at, bytes);
}

static void tensor_write(ops_step *step, ops_tensor which, int32_t first, int32_t rows, const void *in)
{
    size_t bytes;
    void *at = tensor_at(step, which, first, rows, &bytes);
    memcpy(at, in, bytes);
}

const hy_ops ops_reference = {
    .name = "reference",
    .open = reference_open,
    .close = reference_close,
    .cache_open = cache_open,
    .cache_close = host_cache_close,
    .cache_read = host_cache_read,
    .cache_write = host_cache_write,
    .cache_copy = host_cache_copy,
    .step_open = step_open,
    .step_close = step_close,
    .begin = begin,
    .finish = finish,
    .embed = embed,
    .attend_in = reference_attend_in,
    .index_select = reference_index_select,
    .index_score = reference_index_score,
    .index_top = reference_index_top,
    .index_merge = reference_index_merge,
    .attend = reference_attend,
    .attend_out = reference_attend_out,
    .route = reference_route,
    .experts = reference_experts,
    .feed_dense = reference_feed_dense,
    .head = head,
    .sample = sample,
    .verify = verify,
    .draft_tap = reference_draft_tap,
    .draft_context = reference_draft_context,
    .draft = reference_draft_block,
    .tensor_read = tensor_read,
    .tensor_write = tensor_write,
};
