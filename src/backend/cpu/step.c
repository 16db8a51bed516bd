/* Opening and closing the cpu backend, cache memory, the rows of a step, named tensors, embedding, head and sampling.
 */
#include "backend/cpu/cpu.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "number/bf16.h"

/* ---- Backend ----------------------------------------------------------------------------------------------------- */

static void cpu_close(ops_backend *b)
{
    if (!b) return;
    cpu_weights_close(b);
    read_files_close(b->rows);
    memory_free(b->frequency);
    threads_close(b->own_pool);
    memory_free(b);
}

void cpu_frequencies(float theta, int rotary_dim, float *frequency)
{
    for (int j = 0; j < rotary_dim / 2; j++)
        frequency[j] = 1.0f / (float)pow((double)theta, (double)((float)(2 * j) / (float)rotary_dim));
}

static hy_status cpu_open(const ops_model *model, const ops_options *options, ops_backend **out, hy_error *err)
{
    hy_status status = host_check_model("cpu", model, options, err);
    if (status != HY_OK) return status;
    ops_backend *b = memory_zeroed(1, sizeof *b);
    if (!b) return error_memory(err, "the cpu backend", sizeof *b);
    *b = (ops_backend){.model = model,
                       .options = *options,
                       .kernels = cpu_kernels_best(),
                       .products = cpu_products_best(),
                       .blocks = cpu_blocks_best(),
                       .pool = options->pool};
    if (!b->pool) {
        status = threads_open(1, &b->own_pool, err);
        b->pool = b->own_pool;
    }
    b->frequency = memory_zeroed((size_t)model->rotary_dim / 2 + 1, sizeof *b->frequency);
    if (status == HY_OK && !b->frequency) status = error_memory(err, "the cpu backend", (size_t)model->rotary_dim * 2);
    if (status == HY_OK) status = cpu_weights_open(b, err);
    if (status == HY_OK && options->bounded)
        status = read_files_open(options->files, options->file_count, false, &b->rows, err);
    if (status != HY_OK) {
        cpu_close(b);
        return status;
    }
    cpu_frequencies(model->rope_theta, model->rotary_dim, b->frequency);
    *out = b;
    return HY_OK;
}

/* ---- Cache ------------------------------------------------------------------------------------------------------- */

static hy_status cache_open(ops_backend *backend, const cache_layout *layout, int32_t blocks, ops_cache **out,
                            hy_error *err)
{
    assert(layout->layers == backend->model->layers && layout->head_dim == backend->model->head_dim);
    if (layout->main == CACHE_FP32 || layout->index == CACHE_FP32)
        return error_set(err, HY_UNSUPPORTED, "the cpu backend has no fp32 cache: choose bf16, fp8 or nvfp4");
    return host_cache_open(backend, layout, blocks, false, out, err);
}

/* What this thread has recorded may read and write the cache. A step of another thread is none of its business: blocks
 * that it uses are not touched here meanwhile, and its loops must not run twice. */
static void run_recorded(const ops_cache *cache)
{
    cpu_flush_own(cache->backend);
}

static void cache_read(ops_cache *cache, int32_t block, size_t offset, size_t bytes, void *out)
{
    run_recorded(cache);
    host_cache_read(cache, block, offset, bytes, out);
}

static void cache_write(ops_cache *cache, int32_t block, size_t offset, size_t bytes, const void *in)
{
    run_recorded(cache);
    host_cache_write(cache, block, offset, bytes, in);
}

static void cache_copy(ops_cache *cache, int32_t from, int32_t to)
{
    run_recorded(cache);
    host_cache_copy(cache, from, to);
}

/* ---- Step memory ------------------------------------------------------------------------------------------------- */

/* The arrays of a step: opens them, or with `bytes` only adds up what they take. */
static hy_status open_tensors(ops_step *s, uint64_t *bytes, hy_error *err)
{
    const ops_model *m = s->backend->model;
    size_t rows = (size_t)s->limits.rows, hidden = (size_t)m->hidden, pairs = (size_t)m->rotary_dim / 2;
    size_t q = (size_t)m->heads * (size_t)m->head_dim, kv = (size_t)m->kv_heads * (size_t)m->head_dim;
    size_t index_heads = (size_t)m->index_heads, top = (size_t)m->index_top, per_token = (size_t)m->experts_per_token;
    size_t f = sizeof(float), i = sizeof(int32_t);
    size_t moe = per_token * (size_t)m->expert_width + (size_t)m->shared_width, dense = (size_t)m->dense_width;
    bool block4 = false, plain4 = false;
    for (int n = 0; n < m->layers && s->backend->options.activation == MOE_ACTIVATION_NVFP4; n++)
        if (m->layer[n].moe) *(cpu_experts_block4(s->backend, n) ? &block4 : &plain4) = true;
    size_t parts = (size_t)s->parts + (size_t)s->open_parts;
    size_t laws = s->limits.draft_laws ? (size_t)s->limits.drafts : 0;
    size_t ahead = s->backend->options.weights == OPS_WEIGHTS_STREAM ? AHEAD_ROWS : 0, experts = (size_t)m->experts;
    size_t few = rows < FEW_ROWS ? rows : FEW_ROWS;
    const host_array arrays[] = {
        {&s->tiles, rows, 1, sizeof *s->tiles},
        {&s->x, rows, hidden, f},
        {&s->h, rows, hidden, f},
        {&s->cosine, rows, pairs, f},
        {&s->sine, rows, pairs, f},
        {&s->q, rows, q, f},
        {&s->k, rows, kv, f},
        {&s->v, rows, kv, f},
        {&s->index_q, rows, index_heads * (size_t)m->index_dim, f},
        {&s->index_k, rows, (size_t)m->index_dim, f},
        {&s->index_columns, rows, index_heads * (size_t)m->index_dim, f},
        {&s->index_unscale, rows, index_heads, f},
        {&s->scores, rows, index_heads * (size_t)s->max_blocks, f},
        {&s->candidates, rows, INDEX_PARTS * index_heads * top, sizeof *s->candidates},
        {&s->blocks, rows, index_heads * top, i},
        {&s->attention, rows, q, f},
        {&s->part_state, parts, 1, sizeof *s->part_state},
        {&s->part_out, parts, LANES * (size_t)m->head_dim, f},
        {&s->router, rows, (size_t)m->experts, f},
        {&s->routes, rows, per_token, i},
        {&s->route_weights, rows, per_token, f},
        {&s->expert_first, (size_t)m->experts + 1, 1, i},
        {&s->glu_item, (size_t)m->experts + 1, 1, sizeof *s->glu_item},
        {&s->members, rows, per_token, i},
        {&s->fp4_factor, rows, 1, f},
        {&s->fp4_h, block4 ? rows : 0, hidden / 16, sizeof *s->fp4_h},
        {&s->fp4_z, block4 ? rows : 0, per_token * (size_t)m->expert_width / 16, sizeof *s->fp4_z},
        {&s->fp4, plain4 ? rows : 0, hidden, f},
        {&s->z, rows, moe > dense ? moe : dense, f},
        {&s->sum, rows, hidden, f},
        {&s->apart, experts ? few : 0, (per_token + 1) * hidden, f},
        {&s->touched, experts, 1, i},
        {&s->ahead_h, ahead, hidden, f},
        {&s->ahead_scores, ahead, experts, f},
        {&s->ahead_routes, ahead, per_token, i},
        {&s->wanted, experts, 1, i},
        {&s->logits, (size_t)s->limits.logit_rows, (size_t)m->vocab, f},
        {&s->logit_row, (size_t)s->limits.logit_rows, 1, i},
        {&s->draft_logits, laws, (size_t)s->limits.draft_rows * (size_t)m->vocab, f},
        {&s->worker, (size_t)s->workers, 1, sizeof *s->worker},
    };
    size_t n = sizeof arrays / sizeof *arrays;
    if (bytes) *bytes += host_arrays_bytes(arrays, n);
    hy_status status = bytes ? HY_OK : host_arrays_open(arrays, n, err);
    return status == HY_OK && s->limits.drafts > 0 && m->drafter ? cpu_draft_open(s, bytes, err) : status;
}

static hy_status open_worker(const ops_step *step, cpu_worker *w, uint64_t *bytes, hy_error *err)
{
    const ops_model *m = step->backend->model;
    bool drafts = step->limits.drafts > 0 && m->drafter && m->head_dim < m->drafter->head_dim;
    size_t dim = (size_t)(drafts ? m->drafter->head_dim : m->head_dim), index_dim = (size_t)m->index_dim;
    size_t columns = ROW_TILE * (size_t)m->index_heads;
    const host_array arrays[] = {
        {&w->product.expanded, SCRATCH_EXPANDED, 1, sizeof(float)},
        {&w->product.pairs, SCRATCH_PAIRS, 1, sizeof(uint32_t)},
        {&w->product.sums, SCRATCH_SUMS, 1, sizeof(float)},
        {&w->keys, CACHE_BLOCK, (index_dim + UNIT - 1) / UNIT * UNIT, sizeof(float)},
        {&w->query, ROW_TILE * LANES, dim, sizeof(float)},
        {&w->factor, ROW_TILE, LANES, sizeof(float)},
        {&w->out, ROW_TILE * LANES, dim, sizeof(float)},
        {&w->attend, ATTEND_SCRATCH(dim, ROW_TILE), 1, sizeof(float)},
        {&w->score, SCORE_SCRATCH(index_dim, columns), 1, sizeof(float)},
        {&w->visible, columns, 1, sizeof(int32_t)},
        {&w->best, columns, 1, sizeof(float)},
        {&w->sample, host_verify_scratch(&step->limits, m->vocab), 1, 1},
        {&w->embedding, cpu_embedding_scratch(m), 1, 1},
    };
    size_t n = sizeof arrays / sizeof *arrays;
    if (bytes) *bytes += host_arrays_bytes(arrays, n);
    return bytes ? HY_OK : host_arrays_open(arrays, n, err);
}

static void step_close(ops_step *s)
{
    if (!s) return;
    cpu_drop(s);
    for (int i = 0; i < s->workers && s->worker; i++) {
        cpu_worker *w = &s->worker[i];
        void *scratch[] = {
            w->product.expanded, w->product.pairs, w->product.sums, w->keys, w->query,  w->factor,   w->out,
            w->attend,           w->score,         w->visible,      w->best, w->sample, w->embedding};
        for (size_t n = 0; n < sizeof scratch / sizeof *scratch; n++) memory_free(scratch[n]);
    }
    cpu_draft_close(s);
    void *arrays[] = {s->tiles,
                      s->x,
                      s->h,
                      s->cosine,
                      s->sine,
                      s->q,
                      s->k,
                      s->v,
                      s->index_q,
                      s->index_k,
                      s->index_columns,
                      s->index_unscale,
                      s->scores,
                      s->candidates,
                      s->blocks,
                      s->attention,
                      s->part_state,
                      s->part_out,
                      s->router,
                      s->routes,
                      s->route_weights,
                      s->expert_first,
                      s->glu_item,
                      s->members,
                      s->fp4_factor,
                      s->fp4_h,
                      s->fp4_z,
                      s->fp4,
                      s->z,
                      s->sum,
                      s->apart,
                      s->touched,
                      s->logits,
                      s->logit_row,
                      s->draft_logits,
                      s->worker,
                      s->ahead_h,
                      s->ahead_scores,
                      s->ahead_routes,
                      s->wanted,
                      s};
    for (size_t n = 0; n < sizeof arrays / sizeof *arrays; n++) memory_free(arrays[n]);
}

static void set_sizes(ops_step *step, const threads *pool)
{
    step->max_blocks = (int32_t)(((int64_t)step->limits.positions + CACHE_BLOCK - 1) / CACHE_BLOCK);
    step->workers = pool ? threads_count(pool) : 1;
    step->open_parts = step->workers > 1 ? ATTEND_OPEN * step->workers : 0;
    step->parts = 4 * step->open_parts;
}

static void measure(const ops_model *model, const ops_options *options, const ops_limits *limits, ops_memory *out)
{
    ops_backend backend = {.model = model, .options = *options};
    ops_step step = {.backend = &backend, .limits = *limits};
    cpu_worker worker;
    set_sizes(&step, options->pool);
    *out = (ops_memory){0};
    cpu_weights_measure(model, options->weights == OPS_WEIGHTS_STREAM, out);
    open_tensors(&step, &out->step, NULL);
    for (int i = 0; i < step.workers; i++) open_worker(&step, &worker, &out->step, NULL);
}

static hy_status step_open(ops_backend *backend, const ops_limits *limits, ops_step **out, hy_error *err)
{
    assert(limits->rows > 0 && limits->logit_rows >= 0 && limits->positions > 0);
    assert(limits->drafts == 0 || limits->draft_rows > 0);
    assert(limits->drafts == 0 || !backend->drafter || limits->draft_rows <= backend->model->drafter->block);
    ops_step *step = memory_zeroed(1, sizeof *step);
    if (!step) return error_memory(err, "a step", sizeof *step);
    step->backend = backend;
    step->limits = *limits;
    set_sizes(step, backend->pool);
    hy_status status = open_tensors(step, NULL, err);
    for (int i = 0; i < step->workers && status == HY_OK; i++) status = open_worker(step, &step->worker[i], NULL, err);
    if (status != HY_OK) {
        step_close(step);
        return status;
    }
    *out = step;
    return HY_OK;
}

/* ---- The rows of a step ------------------------------------------------------------------------------------------ */

/* Runs of neighbouring rows of one sequence, cut into tiles. Only the last row's blocks need checking: it sees the
 * most. */
static void make_tiles(ops_step *step)
{
    const ops_rows *rows = &step->rows;
    step->tile_count = 0;
    for (int32_t t = 0; t < rows->count; t++) {
        if (rows->sequence[t] < 0) continue;
        cpu_tile *last = step->tile_count ? &step->tiles[step->tile_count - 1] : NULL;
        if (last && last->sequence == rows->sequence[t] && last->first + last->count == t && last->count < ROW_TILE) {
            assert(rows->position[t] > rows->position[t - 1]);
            last->count++;
        } else {
            step->tiles[step->tile_count++] = (cpu_tile){t, 1, rows->sequence[t]};
        }
    }
    for (int32_t i = 0; i < step->tile_count; i++) {
        const cpu_tile *tile = &step->tiles[i];
        int32_t position = rows->position[tile->first + tile->count - 1];
        for (int32_t b = 0; b <= position / CACHE_BLOCK; b++) {
            int32_t block = cpu_cache_block(step, tile->sequence, b);
            assert(block >= 0 && block < step->cache->blocks);
            (void)block;
        }
    }
}

void cpu_angles(int32_t position, const float *frequency, int pairs, float *cosine, float *sine)
{
    for (int j = 0; j < pairs; j++) {
        float angle = (float)position * frequency[j];
        cosine[j] = (float)cos((double)angle);
        sine[j] = (float)sin((double)angle);
    }
}

static void rotary_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    ops_step *step = *(ops_step **)arg;
    int pairs = step->backend->model->rotary_dim / 2;
    for (int64_t t = begin; t < end; t++)
        cpu_angles(step->rows.position[t], step->backend->frequency, pairs, step->cosine + t * pairs,
                   step->sine + t * pairs);
}

static void begin(ops_step *step, ops_cache *cache, const ops_rows *rows)
{
    if (step->backend->recording) cpu_flush(step->backend->recording);
    step->error = (hy_error){0};
    step->cache = cache;
    step->rows = *rows;
    step->logit_rows = step->tile_count = 0;
    assert(rows->count <= step->limits.rows);
    for (int32_t t = 0; t < rows->count; t++) {
        if (host_check_row(step->backend->model, &step->limits, cache, rows, t, &step->error) != HY_OK) {
            step->rows.count = step->logit_rows = 0; /* the operations that follow do nothing */
            return;
        }
        if (!(rows->flags[t] & ROW_LOGITS)) continue;
        assert(step->logit_rows < step->limits.logit_rows);
        step->logit_row[step->logit_rows++] = t;
    }
    make_tiles(step);
    cpu_stage(step, rows->count, rotary_rows, &step, sizeof step);
}

static hy_status finish(ops_step *step, hy_error *err)
{
    cpu_flush(step);
    hy_status status = step->error.status;
    if (status != HY_OK && err) *err = step->error;
    return status;
}

/* ---- Embedding, norm, head, sampling ----------------------------------------------------------------------------- */

static void embed_rows(void *arg, int64_t first, int64_t last, int worker)
{
    ops_step *step = *(ops_step **)arg;
    const ops_model *m = step->backend->model;
    for (int64_t t = first; t < last; t++) {
        float *x = step->x + t * m->hidden;
        if (step->rows.sequence[t] < 0)
            memset(x, 0, (size_t)m->hidden * sizeof *x);
        else if (!cpu_embedding_row(step, &m->embed, step->rows.token[t], step->worker[worker].embedding, x))
            return;
    }
}

/* Rows that are not in memory are read from the map's file: asked for together, they take the time of one read. */
static void ask_for_embeddings(const ops_step *step)
{
    const weight *embed = &step->backend->model->embed;
    for (int32_t t = 0; t < step->rows.count; t++) {
        if (step->rows.sequence[t] < 0) continue;
        weight row = weight_rows(embed, step->rows.token[t], 1);
        file_map_want(row.data, weight_row_data(&row));
        if (row.scales) file_map_want(row.scales, weight_row_scales(&row));
    }
}

static void embed(ops_step *step)
{
    if (!step->backend->rows) ask_for_embeddings(step);
    if (step->backend->rows)
        embed_rows(&step, 0, step->rows.count, 0); /* may fail the step */
    else
        cpu_stage(step, step->rows.count, embed_rows, &step, sizeof step)->beside = 1; /* the angles */
}

typedef struct norm_work {
    const ops_step *step;
    const float *gain;  /* [hidden] */
    const int32_t *row; /* [n] rows of x; NULL: 0 .. n-1 */
} norm_work;

static void norm_rows(void *arg, int64_t first, int64_t last, int worker)
{
    (void)worker;
    const norm_work *work = arg;
    const ops_backend *b = work->step->backend;
    int hidden = b->model->hidden;
    for (int64_t t = first; t < last; t++)
        b->kernels->rms_norm(work->step->x + (work->row ? work->row[t] : t) * hidden, work->gain, hidden,
                             b->model->norm_eps, true, work->step->h + t * hidden);
}

void cpu_norm_rows(ops_step *step, const float *gain)
{
    norm_work work = {step, gain, NULL};
    cpu_stage(step, step->rows.count, norm_rows, &work, sizeof work);
}

static void head(ops_step *step)
{
    norm_work work = {step, step->backend->final_gain, step->logit_row};
    cpu_stage(step, step->logit_rows, norm_rows, &work, sizeof work);
    cpu_output output = {&step->backend->head, step->logits};
    cpu_project(step, &output, 1, step->h, step->logit_rows);
}

typedef struct sample_work {
    const ops_step *step;
    const ops_sample *rows;
    ops_sampled *out;
} sample_work;

static void sample_rows(void *arg, int64_t first, int64_t last, int worker)
{
    const sample_work *work = arg;
    const ops_step *step = work->step;
    int32_t vocab = step->backend->model->vocab;
    for (int64_t i = first; i < last; i++) {
        work->out[i] = (ops_sampled){.id = SAMPLED_NONE};
        if (work->rows[i].logit_row >= step->logit_rows) continue; /* only after an error of the step */
        sample_row(step->logits + (int64_t)work->rows[i].logit_row * vocab, vocab, &work->rows[i],
                   step->worker[worker].sample, &work->out[i]);
    }
}

static void sample(ops_step *step, const ops_sample *rows, int32_t count, ops_sampled *out)
{
    sample_work work = {step, rows, out};
    cpu_stage(step, count, sample_rows, &work, sizeof work);
}

typedef struct verify_work {
    const ops_step *step;
    const ops_verify *sequences;
} verify_work;

static void verify_sequences(void *arg, int64_t first, int64_t last, int worker)
{
    const verify_work *work = arg;
    const ops_step *step = work->step;
    for (int64_t i = first; i < last; i++)
        host_verify(&step->limits, step->logits, step->logit_rows, step->backend->model->vocab, step->draft_logits,
                    &work->sequences[i], step->worker[worker].sample);
}

static void verify(ops_step *step, const ops_verify *sequences, int32_t count)
{
    verify_work work = {step, sequences};
    cpu_stage(step, count, verify_sequences, &work, sizeof work);
}

/* ---- Named tensors ----------------------------------------------------------------------------------------------- */

typedef struct named {
    void *at;
    size_t columns; /* of four bytes */
    bool half;      /* kept as bf16 values: what is written is rounded */
} named;

static named tensor_of(const ops_step *s, ops_tensor which)
{
    const ops_model *m = s->backend->model;
    size_t heads = (size_t)m->heads * (size_t)m->head_dim, index_heads = (size_t)m->index_heads;
    const named tensors[] = {
        [OPS_X] = {s->x, (size_t)m->hidden, false},
        [OPS_Q] = {s->q, heads, true},
        [OPS_INDEX_Q] = {s->index_q, index_heads * (size_t)m->index_dim, true},
        [OPS_SCORES] = {s->scores, index_heads * (size_t)s->max_blocks, false},
        [OPS_BLOCKS] = {s->blocks, index_heads * (size_t)m->index_top, false},
        [OPS_ATTENTION] = {s->attention, heads, true},
        [OPS_H] = {s->h, (size_t)m->hidden, true},
        [OPS_ROUTES] = {s->routes, (size_t)m->experts_per_token, false},
        [OPS_ROUTE_WEIGHTS] = {s->route_weights, (size_t)m->experts_per_token, false},
        [OPS_LOGITS] = {s->logits, (size_t)m->vocab, false},
        [OPS_DRAFT_LOGITS] = {s->draft_logits, (size_t)m->vocab, false},
        [OPS_DRAFT_C] = {s->draft.c, (size_t)m->hidden, true},
        [OPS_DRAFT_H] = {s->draft.final, (size_t)m->hidden, true},
    };
    return tensors[which];
}

static void tensor_read(ops_step *step, ops_tensor which, int32_t first, int32_t rows, void *out)
{
    cpu_flush(step);
    named t = tensor_of(step, which);
    assert(first >= 0 && first + rows <= (which == OPS_LOGITS ? step->limits.logit_rows : step->limits.rows));
    memcpy(out, (const char *)t.at + (size_t)first * t.columns * 4, (size_t)rows * t.columns * 4);
}

static void tensor_write(ops_step *step, ops_tensor which, int32_t first, int32_t rows, const void *in)
{
    cpu_flush(step);
    named t = tensor_of(step, which);
    assert(first >= 0 && first + rows <= (which == OPS_LOGITS ? step->limits.logit_rows : step->limits.rows));
    size_t count = (size_t)rows * t.columns;
    memcpy((char *)t.at + (size_t)first * t.columns * 4, in, count * 4);
    float *values = (float *)t.at + (size_t)first * t.columns;
    for (size_t i = 0; i < count && t.half; i++) values[i] = bf16_round(values[i]);
}

static hy_status expert_memory(ops_backend *b, uint64_t bytes, hy_error *err)
{
    return b->store ? expert_store_resize(b->store, bytes, err) : HY_OK;
}

static bool expert_stats(const ops_backend *b, hy_expert_stats *out)
{
    if (b->store) expert_store_stats(b->store, out);
    return b->store != NULL;
}

static const char *variant(const ops_backend *backend, char out[OPS_VARIANT])
{
    snprintf(out, OPS_VARIANT, "%s, %s, %s", backend->products->name, backend->blocks->name, backend->kernels->name);
    return out;
}

const hy_ops ops_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .measure = measure,
    .expert_memory = expert_memory,
    .expert_stats = expert_stats,
    .variant = variant,
    .cache_open = cache_open,
    .cache_close = host_cache_close,
    .cache_read = cache_read,
    .cache_write = cache_write,
    .cache_copy = cache_copy,
    .step_open = step_open,
    .step_close = step_close,
    .begin = begin,
    .finish = finish,
    .settle = cpu_flush,
    .embed = embed,
    .attend_in = cpu_attend_in,
    .index_select = cpu_index_select,
    .index_score = cpu_index_score,
    .index_top = cpu_index_top,
    .index_merge = cpu_index_merge,
    .attend = cpu_attend,
    .attend_out = cpu_attend_out,
    .route = cpu_route,
    .experts = cpu_experts,
    .feed_dense = cpu_feed_dense,
    .head = head,
    .sample = sample,
    .verify = verify,
    .draft_tap = cpu_draft_tap,
    .draft_context = cpu_draft_context,
    .draft = cpu_draft_blocks,
    .tensor_read = tensor_read,
    .tensor_write = tensor_write,
};
