/*
 * A step: its memory, the rows that `begin` brings to the GPU in one copy, launches, and the end.
 *
 * What begin copies, one array behind the other, each at a multiple of 16 bytes:
 *     slot [T], sequence, position, token [T], logit_row [R], block_table [S, columns], flags [T], and what is
 * replayed. The table is cut to the columns that the rows can see, so that a copy does not grow with the longest
 * sequence there may be.
 */
#include "backend/cuda/cuda.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/kernels/index.h"
#include "backend/cuda/kernels/rows.h"
#include "base/error.h"
#include "base/memory.h"

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

enum { INDEX_ROWS = 1024 }; /* of a step that selects in one launch, at most */

hy_status cuda_step_alloc(ops_step *step, size_t count, size_t size, const char *what, void *out, hy_error *err)
{
    ops_backend *b = step->backend;
    size_t bytes;
    void *memory;
    if (!size_mul(count ? count : 1, size, &bytes) || bytes > SIZE_MAX - 15) return error_memory(err, what, SIZE_MAX);
    bytes = (bytes + 15) / 16 * 16; /* whole quads, which kernels load */
    if (!memory_reserve((void **)&step->owned, &step->owned_room, step->owned_count + 1, sizeof *step->owned))
        return error_memory(err, what, sizeof *step->owned);
    hy_status status = b->gpu->calls->alloc(b->gpu, bytes, what, &memory, err);
    if (status != HY_OK) return status;
    step->owned[step->owned_count++] = memory;
    memcpy(out, &memory, sizeof memory);
    return HY_OK;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static hy_status open_tensors(ops_step *s, hy_error *err)
{
    const ops_model *m = s->backend->model;
    size_t rows = (size_t)s->limits.rows, hidden = (size_t)m->hidden, pairs = (size_t)m->rotary_dim / 2;
    size_t q = (size_t)m->heads * (size_t)m->head_dim, kv = (size_t)m->kv_heads * (size_t)m->head_dim;
    size_t index_heads = (size_t)m->index_heads, per_token = (size_t)m->experts_per_token;
    size_t wide = larger((size_t)m->dense_width, (size_t)m->shared_width), f = sizeof(float), h = sizeof(uint16_t);
    const struct {
        void *at;
        size_t columns, size;
    } tensors[] = {
        {&s->x, hidden, f},
        {&s->cosine, pairs, f},
        {&s->sine, pairs, f},
        {&s->normed, hidden, h},
        {&s->q, q, f},
        {&s->k, kv, f},
        {&s->v, kv, f},
        {&s->index_q, index_heads * (size_t)m->index_dim, f},
        {&s->index_k, (size_t)m->index_dim, f},
        {&s->scores, index_heads * (size_t)s->max_blocks, f},
        {&s->blocks, index_heads * (size_t)m->index_top, sizeof *s->blocks},
        {&s->attention, q, f},
        {&s->attention_bf16, q, h},
        {&s->h, hidden, f},
        {&s->router, (size_t)m->experts, f},
        {&s->routes, per_token, sizeof *s->routes},
        {&s->route_weights, per_token, f},
        {&s->y, larger(2 * wide, larger(hidden, q)), f},
        {&s->z, wide, h},
    };
    hy_status status = HY_OK;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors && status == HY_OK; i++) {
        size_t count;
        if (!size_mul(rows, tensors[i].columns, &count)) return error_memory(err, "the tensors of a step", SIZE_MAX);
        status = cuda_step_alloc(s, count, tensors[i].size, "the tensors of a step", tensors[i].at, err);
    }
    size_t logits = (size_t)s->limits.logit_rows * (size_t)m->vocab;
    size_t order = index_heads * (size_t)decode_stride(s->max_blocks), index_rows = larger(s->limits.rows, 1);
    if (index_rows > INDEX_ROWS) index_rows = INDEX_ROWS;
    s->index_rows = (int32_t)index_rows;
    if (status == HY_OK)
        status = cuda_step_alloc(s, index_rows * order, sizeof *s->index_order, "the tensors of a step",
                                 &s->index_order, err);
    if (status == HY_OK)
        status = cuda_step_alloc(s, index_rows, sizeof *s->index_drawn, "the tensors of a step", &s->index_drawn, err);
    if (status == HY_OK) status = cuda_step_alloc(s, logits, f, "the logits of a step", &s->logits, err);
    return status;
}

static hy_status open_host(ops_step *s, hy_error *err)
{
    const ops_model *m = s->backend->model;
    const threads *pool = s->backend->options.pool;
    size_t workers = pool ? (size_t)threads_count(pool) : 1;
    size_t laws = s->limits.draft_laws ? (size_t)s->limits.drafts : 0;
    s->sample_bytes = (host_verify_scratch(&s->limits, m->vocab) + 63) / 64 * 64;
    const host_array arrays[] = {
        {&s->logits_read, (size_t)s->limits.logit_rows, 1, 1},
        {&s->host_logits, (size_t)s->limits.logit_rows, (size_t)m->vocab, sizeof(float)},
        {&s->draft_logits, laws, (size_t)s->limits.draft_rows * (size_t)m->vocab, sizeof(float)},
        {&s->sample_scratch, workers, s->sample_bytes, 1},
    };
    return host_arrays_open(arrays, sizeof arrays / sizeof *arrays, err);
}

/* Room for `bytes` of rows. What was there is not kept. */
static hy_status reserve_rows(ops_step *s, size_t bytes, hy_error *err)
{
    gpu *g = s->backend->gpu;
    void *device = NULL;
    if (bytes <= s->rows_bytes) return HY_OK;
    bytes += bytes / 2;
    uint8_t *host = memory_alloc(bytes, 1);
    if (!host) return error_memory(err, "the rows of a step", bytes);
    hy_status status = g->calls->alloc(g, bytes, "the rows of a step", &device, err);
    if (status != HY_OK) {
        memory_free(host);
        return status;
    }
    memory_free(s->rows_host);
    if (s->rows_memory) g->calls->free(g, s->rows_memory);
    s->rows_host = host;
    s->rows_memory = device;
    s->rows_bytes = bytes;
    return HY_OK;
}

void cuda_step_close(ops_step *s)
{
    if (!s) return;
    gpu *g = s->backend->gpu;
    if (s->draft) cuda_draft_close(s);
    cuda_sampling_close(s);
    cuda_prefill_close(s);
    for (size_t i = 0; i < s->owned_count; i++) g->calls->free(g, s->owned[i]);
    if (s->rows_memory) g->calls->free(g, s->rows_memory);
    void *reserved[] = {s->owned, s->picks.row, s->picks.id, s->picks.left};
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++) free(reserved[i]);
    void *arrays[] = {s->rows_host, s->logits_read, s->host_logits, s->draft_logits, s->sample_scratch, s};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) memory_free(arrays[i]);
}

hy_status cuda_step_open(ops_backend *b, const ops_limits *limits, ops_step **out, hy_error *err)
{
    assert(limits->rows > 0 && limits->logit_rows >= 0 && limits->positions > 0);
    assert(limits->drafts == 0 || limits->draft_rows > 0);
    ops_step *s = memory_zeroed(1, sizeof *s);
    if (!s) return error_memory(err, "a step", sizeof *s);
    s->backend = b;
    s->limits = *limits;
    s->max_blocks = (int32_t)(((int64_t)limits->positions + CACHE_BLOCK - 1) / CACHE_BLOCK);
    hy_status status = open_host(s, err);
    if (status == HY_OK) status = open_tensors(s, err);
    if (status == HY_OK) status = reserve_rows(s, 64 * (size_t)limits->rows, err);
    if (status == HY_OK) status = cuda_linear_open(s, err);
    if (status == HY_OK) status = cuda_attend_open(s, err);
    if (status == HY_OK) status = cuda_prefill_open(s, err);
    if (status == HY_OK) status = cuda_feed_open(s, err);
    if (status == HY_OK) status = cuda_sampling_open(s, err);
    if (status == HY_OK && b->model->drafter && limits->drafts > 0) status = cuda_draft_open(s, err);
    if (status != HY_OK) {
        cuda_step_close(s);
        return status;
    }
    *out = s;
    return HY_OK;
}

/* ---- The rows of a step ------------------------------------------------------------------------------------------ */

/* Arrays that lie one behind the other: first only counted, then written. */
typedef struct packing {
    uint8_t *host; /* NULL: only counting */
    const uint8_t *device;
    size_t at;
} packing;

/* The place of `bytes` on the GPU, filled from `from` if there is one. */
static const void *pack(packing *p, const void *from, size_t bytes)
{
    size_t at = p->at;
    p->at = (at + bytes + 15) / 16 * 16;
    if (!p->host) return NULL;
    if (from && bytes) memcpy(p->host + at, from, bytes);
    return p->device + at;
}

/* Blocks of the longest of the step's sequences, or some more. */
static int32_t table_columns(const ops_rows *rows)
{
    int32_t columns = 1;
    for (int32_t t = 0; t < rows->count; t++) {
        int32_t blocks = rows->sequence[t] < 0 ? 1 : rows->position[t] / CACHE_BLOCK + 1;
        if (blocks > columns) columns = blocks;
    }
    columns = (int32_t)cuda_rounded_up(columns);
    return columns < rows->block_table_stride ? columns : rows->block_table_stride;
}

static void pack_rows(ops_step *s, packing *p, int32_t columns)
{
    const ops_rows *rows = &s->rows;
    const ops_model *m = s->backend->model;
    size_t n = (size_t)rows->count, all = (size_t)m->layers * n, i = sizeof(int32_t);
    kernel_rows *to = &s->device_rows;
    *to = (kernel_rows){.count = rows->count, .block_table_stride = columns};
    to->slot = pack(p, rows->slot, n * sizeof *rows->slot);
    to->sequence = pack(p, rows->sequence, n * i);
    to->position = pack(p, rows->position, n * i);
    to->token = pack(p, rows->token, n * i);

    int32_t *logit_row = (int32_t *)(void *)(p->host ? p->host + p->at : NULL);
    const void *device_logit_row = pack(p, NULL, (size_t)s->logit_rows * i);
    if (device_logit_row) memcpy(&s->logit_row, &device_logit_row, sizeof device_logit_row);
    for (int32_t t = 0, r = 0; t < rows->count && logit_row; t++)
        if (rows->flags[t] & ROW_LOGITS) logit_row[r++] = t;

    uint8_t *table = p->host ? p->host + p->at : NULL;
    size_t line = (size_t)columns * i;
    to->block_table = pack(p, NULL, (size_t)rows->sequences * line);
    for (int32_t q = 0; q < rows->sequences && table; q++)
        memcpy(table + (size_t)q * line, rows->block_table + (int64_t)q * rows->block_table_stride, line);

    to->flags = pack(p, rows->flags, n);
    if (rows->replay_blocks)
        to->replay_blocks = pack(p, rows->replay_blocks, all * (size_t)m->index_heads * (size_t)m->index_top * i);
    if (rows->replay_routes) to->replay_routes = pack(p, rows->replay_routes, all * (size_t)m->experts_per_token * i);
}

static kernel_cache cache_of(const ops_cache *cache)
{
    const cache_layout *l = &cache->layout;
    const int32_t formats[] = {
        [CACHE_BF16] = KERNEL_CACHE_BF16, [CACHE_FP8] = KERNEL_CACHE_FP8, [CACHE_NVFP4] = KERNEL_CACHE_NVFP4};
    return (kernel_cache){.base = cache->data,
                          .row_bytes = (int64_t)l->row_bytes,
                          .main = formats[l->main],
                          .index = formats[l->index],
                          .draft = formats[l->draft],
                          .head_bytes = (int64_t)l->head_bytes,
                          .k_scales = (int64_t)l->k_scales,
                          .v_data = (int64_t)l->v_data,
                          .v_scales = (int64_t)l->v_scales,
                          .index_scales = (int64_t)l->index_scales,
                          .draft_head_bytes = (int64_t)l->draft_head_bytes,
                          .draft_v_data = (int64_t)l->draft_v_data};
}

void cuda_begin(ops_step *s, ops_cache *cache, const ops_rows *rows)
{
    ops_backend *b = s->backend;
    const ops_model *m = b->model;
    b->driver = pthread_self();
    atomic_store(&b->running, true);
    s->error = (hy_error){0};
    s->picks.asked = false; /* by a step that was not finished */
    cuda_draft_answer(s, false);
    s->cache = cache;
    s->rows = *rows;
    s->routing = 0;
    s->logit_rows = 0;
    memset(s->logits_read, 0, (size_t)s->limits.logit_rows);
    s->device_rows = (kernel_rows){0};
    s->device_cache = cache_of(cache);
    assert(rows->count <= s->limits.rows);
    for (int32_t t = 0; t < rows->count; t++) {
        if (host_check_row(m, &s->limits, cache, rows, t, &s->error) != HY_OK) break;
        s->logit_rows += (rows->flags[t] & ROW_LOGITS) != 0;
    }
    assert(s->logit_rows <= s->limits.logit_rows);
    packing p = {0};
    int32_t columns = s->error.status == HY_OK ? table_columns(rows) : 0;
    if (s->error.status == HY_OK) {
        pack_rows(s, &p, columns);
        reserve_rows(s, p.at, &s->error);
    }
    if (s->error.status != HY_OK || rows->count == 0) {
        s->rows.count = s->logit_rows = 0; /* the operations that follow do nothing */
        s->device_rows = (kernel_rows){0};
        return;
    }
    p = (packing){.host = s->rows_host, .device = s->rows_memory};
    pack_rows(s, &p, columns);
    b->gpu->calls->write(b->gpu, s->rows_memory, s->rows_host, p.at);
    cuda_rotary(s, s->device_rows.position, b->frequency, rows->count, m->rotary_dim / 2, s->cosine, s->sine);
}

hy_status cuda_finish(ops_step *s, hy_error *err)
{
    ops_backend *b = s->backend;
    hy_error of_gpu = {0};
    cuda_route_now(s);
    cuda_answer(s);
    hy_status status = b->gpu->calls->wait(b->gpu, &of_gpu);
    if (s->error.status == HY_OK && status != HY_OK) s->error = of_gpu;
    if (status == HY_OK) cuda_prefill_finish(s);
    atomic_store(&b->running, false);
    status = s->error.status;
    if (status != HY_OK && err) *err = s->error;
    return status;
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

void cuda_launch(ops_step *s, const char *name, int grid_x, int grid_y, int grid_z, int block, size_t shared,
                 const void *args, size_t bytes)
{
    gpu *g = s->backend->gpu;
    char full[64] = "hy_";
    size_t length = strlen(name);
    if (s->error.status != HY_OK || (s->rows.count == 0 && !s->drafting)) return;
    if (grid_x <= 0 || grid_y <= 0 || grid_z <= 0) return;
    cuda_route_now(s);
    assert(length < sizeof full - 3 && block % CUDA_WARP == 0);
    memcpy(full + 3, name, length + 1);
    const gpu_kernel *kernel = g->calls->kernel(g, full);
    if (kernel) g->calls->launch(g, kernel, (const int[3]){grid_x, grid_y, grid_z}, block, shared, args, bytes);
}

void cuda_rotary(ops_step *s, const int32_t *position, const float *frequency, int32_t count, int pairs, float *cosine,
                 float *sine)
{
    enum { THREADS = 128 };
    rotary_args a = {position, frequency, cosine, sine, count, pairs};
    int64_t angles = (int64_t)count * pairs;
    cuda_launch(s, "rotary", (int)((angles + THREADS - 1) / THREADS), 1, 1, THREADS, 0, &a, sizeof a);
}

void cuda_logits(ops_step *s)
{
    memset(s->logits_read, 0, (size_t)s->limits.logit_rows);
    cuda_head(s);
}
