/*
 * Weights into the GPU's memory: the bytes of the file, rows padded with zeros to a multiple of 16; F16 as fp32,
 * vectors as fp32. The routed experts of a layer lie one behind the other, each from a multiple of 256 bytes on, so
 * that a kernel finds expert e without a table.
 */
#include "backend/cuda/cuda.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

enum { ROW_PADDING = 16, ALIGNMENT = 256 };

static size_t padded(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static int kernel_format(weight_format format)
{
    switch (format) {
    case WEIGHT_BF16: return KERNEL_BF16;
    case WEIGHT_MXFP8: return KERNEL_MXFP8;
    case WEIGHT_NVFP4: return KERNEL_NVFP4;
    default: return KERNEL_F32;
    }
}

/* Where a matrix lies on the GPU. */
typedef struct place {
    size_t row_data, row_scales; /* bytes of a row there */
    size_t data, scales;         /* of all of them, padded; data is a multiple of ALIGNMENT, scales are 0 or one too */
} place;

static place place_of(const weight *w)
{
    size_t rows = padded((size_t)w->rows, ROW_PADDING);
    place p = {.row_data = w->format == WEIGHT_F16 ? (size_t)w->cols * sizeof(float) : weight_row_data(w),
               .row_scales = weight_row_scales(w)};
    p.data = padded(rows * p.row_data, ALIGNMENT);
    p.scales = padded(rows * p.row_scales, ALIGNMENT);
    return p;
}

static float factor_of(const weight *w)
{
    if (w->format != WEIGHT_NVFP4) return 1;
    return w->divides ? 1 / w->global : w->global;
}

/* Device memory that the backend owns. */
static hy_status take(ops_backend *b, size_t bytes, const char *what, void **out, hy_error *err)
{
    if (!memory_reserve((void **)&b->owned, &b->owned_room, b->owned_count + 1, sizeof *b->owned))
        return error_memory(err, what, sizeof *b->owned);
    hy_status status = b->gpu->calls->alloc(b->gpu, bytes ? bytes : ALIGNMENT, what, out, err);
    if (status == HY_OK) b->owned[b->owned_count++] = *out, b->weight_bytes += bytes;
    return status;
}

typedef struct fetching {
    const uint8_t *data;
    size_t bytes;
} fetching;

enum { FETCH_BYTES = 1 << 20, PAGE_BYTES = 4096 };

static void fetch(void *arg, int64_t first, int64_t last, int worker)
{
    const fetching *f = arg;
    (void)worker;
    for (int64_t i = first; i < last; i++) {
        size_t end = (size_t)(i + 1) * FETCH_BYTES;
        for (size_t at = (size_t)i * FETCH_BYTES; at < end && at < f->bytes; at += PAGE_BYTES)
            (void)*(const volatile uint8_t *)(f->data + at);
    }
}

/* Pages of a mapped file are brought in by all threads: one alone waits for each longer than it takes to copy it. */
static void bring_in(const ops_backend *b, const void *data, size_t bytes)
{
    fetching f = {data, bytes};
    if (b->options.pool && bytes > 2 * FETCH_BYTES)
        threads_run(b->options.pool, (int64_t)((bytes + FETCH_BYTES - 1) / FETCH_BYTES), 1, fetch, &f);
}

/* The file's bytes to `data` and `scales`; padding is zero already. */
static hy_status put(ops_backend *b, const weight *w, void *data, void *scales, hy_error *err)
{
    const gpu_calls *calls = b->gpu->calls;
    if (w->format == WEIGHT_F16) {
        float *row = memory_alloc((size_t)w->cols, sizeof *row);
        if (!row) return error_memory(err, "a row of weights", (size_t)w->cols * sizeof *row);
        for (int64_t r = 0; r < w->rows; r++) {
            weight_row(w, r, row);
            calls->write(b->gpu, (float *)data + r * w->cols, row, (size_t)w->cols * sizeof *row);
        }
        memory_free(row);
        return HY_OK;
    }
    bring_in(b, w->data, (size_t)w->rows * weight_row_data(w));
    calls->write(b->gpu, data, w->data, (size_t)w->rows * weight_row_data(w));
    if (w->scales) calls->write(b->gpu, scales, w->scales, (size_t)w->rows * weight_row_scales(w));
    return HY_OK;
}

hy_status cuda_weight_load(ops_backend *b, const weight *w, const char *what, kernel_weight *out, hy_error *err)
{
    *out = (kernel_weight){0};
    if (w->format == WEIGHT_NONE) return HY_OK;
    if (w->rows > INT32_MAX || w->cols > INT32_MAX || w->cols % 16 || (w->format == WEIGHT_MXFP8 && w->cols % 32))
        return error_set(err, HY_UNSUPPORTED, "%s is [%lld, %lld]: the cuda backend needs a multiple of 16 inputs",
                         what, (long long)w->rows, (long long)w->cols);
    place p = place_of(w);
    void *data = NULL;
    hy_status status = take(b, p.data + p.scales, what, &data, err);
    if (status != HY_OK) return status;
    *out = (kernel_weight){.data = data,
                           .scales = p.scales ? (uint8_t *)data + p.data : NULL,
                           .format = kernel_format(w->format),
                           .rows = (int32_t)w->rows,
                           .cols = (int32_t)w->cols,
                           .factor = factor_of(w)};
    return put(b, w, data, p.scales ? (uint8_t *)data + p.data : NULL, err);
}

/* ---- All of a model ---------------------------------------------------------------------------------------------- */

typedef struct loading {
    ops_backend *backend;
    hy_error *err;
    hy_status status; /* of the first failure; what follows it does nothing */
    int layer;        /* whose weights come; -1: none */
    bool drafter;
    progress report;
} loading;

static const char *name_of(const loading *l, const char *what, char name[96])
{
    int n = snprintf(name, 96, "%s", l->drafter ? "drafter, " : "");
    if (l->layer >= 0) n += snprintf(name + n, 96 - (size_t)n, "layer %d, ", l->layer);
    snprintf(name + n, 96 - (size_t)n, "%s", what);
    return name;
}

static void report(loading *l, const weight *w)
{
    if (l->status == HY_OK && !progress_add(&l->report, weight_bytes(w)))
        l->status = error_set(l->err, HY_CANCELLED, "preparing the weights was stopped");
}

static void load(loading *l, const weight *w, const char *what, kernel_weight *out)
{
    char name[96];
    if (l->status != HY_OK) return;
    l->status = cuda_weight_load(l->backend, w, name_of(l, what, name), out, l->err);
    report(l, w);
}

/* A vector as fp32. */
static void load_vector(loading *l, const weight *w, int64_t n, const char *what, kernel_weight *out)
{
    char name[96];
    void *data = NULL;
    if (l->status != HY_OK) return;
    float *values = memory_zeroed((size_t)n, sizeof *values);
    if (!values) {
        l->status = error_memory(l->err, what, (size_t)n * sizeof *values);
        return;
    }
    if (w->format != WEIGHT_NONE) weight_row(w, 0, values);
    l->status = take(l->backend, (size_t)n * sizeof *values, name_of(l, what, name), &data, l->err);
    if (l->status == HY_OK) {
        l->backend->gpu->calls->write(l->backend->gpu, data, values, (size_t)n * sizeof *values);
        *out = (kernel_weight){.data = data, .format = KERNEL_F32, .rows = 1, .cols = (int32_t)n, .factor = 1};
    }
    memory_free(values);
}

/* All experts' gates, ups or downs: they have one shape and one format. */
static hy_status load_experts_of(loading *l, const weight *w, const char *what, kernel_weight *out, int64_t *bytes,
                                 int64_t *scale_bytes, const float **factors)
{
    ops_backend *b = l->backend;
    size_t experts = (size_t)b->model->experts;
    if (w->cols % 16)
        return error_set(l->err, HY_UNSUPPORTED, "%s has %lld inputs: the cuda backend needs a multiple of 16", what,
                         (long long)w->cols);
    for (size_t e = 0; e < experts; e++)
        if (w[e].format != w->format || w[e].rows != w->rows || w[e].cols != w->cols)
            return error_set(l->err, HY_UNSUPPORTED,
                             "%s: expert %zu is %s, expert 0 %s: the cuda backend needs one format", what, e,
                             weight_format_name(w[e].format), weight_format_name(w->format));
    place p = place_of(w);
    void *data = NULL, *factor = NULL;
    float *values = memory_zeroed(experts, sizeof *values);
    if (!values) return error_memory(l->err, what, experts * sizeof *values);
    hy_status status = take(b, experts * (p.data + p.scales), what, &data, l->err);
    uint8_t *scales = p.scales && data ? (uint8_t *)data + experts * p.data : NULL;
    if (status == HY_OK) status = take(b, experts * sizeof *values, what, &factor, l->err);
    for (size_t e = 0; e < experts && status == HY_OK && l->status == HY_OK; e++) {
        values[e] = factor_of(&w[e]);
        status = put(b, &w[e], (uint8_t *)data + e * p.data, scales ? scales + e * p.scales : NULL, l->err);
        report(l, &w[e]);
    }
    if (status == HY_OK) b->gpu->calls->write(b->gpu, factor, values, experts * sizeof *values);
    memory_free(values);
    *out = (kernel_weight){.data = data,
                           .scales = scales,
                           .format = kernel_format(w->format),
                           .rows = (int32_t)w->rows,
                           .cols = (int32_t)w->cols,
                           .factor = 1};
    *bytes = (int64_t)p.data;
    *scale_bytes = (int64_t)p.scales;
    *factors = factor;
    return status == HY_OK ? l->status : status;
}

static void load_experts(loading *l, const ops_layer *from, cuda_layer *to)
{
    const weight *w[] = {from->expert_gate, from->expert_up, from->expert_down};
    const char *what[] = {"experts, gate", "experts, up", "experts, down"};
    kernel_weight *out[] = {&to->gate, &to->up, &to->down};
    char name[96];
    for (int i = 0; i < 3 && l->status == HY_OK; i++)
        l->status = load_experts_of(l, w[i], name_of(l, what[i], name), out[i], &to->expert_bytes[i],
                                    &to->expert_scale_bytes[i], &to->factors[i]);
    if (l->status == HY_OK) l->status = cuda_feed_prepare(l->backend, to, name_of(l, "experts", name), l->err);
}

static void load_layer(loading *l, const ops_layer *from, cuda_layer *to)
{
    const ops_model *m = l->backend->model;
    load_vector(l, &from->input_norm, m->hidden, "input norm", &to->input_norm);
    load_vector(l, &from->post_norm, m->hidden, "post norm", &to->post_norm);
    load_vector(l, &from->q_norm, m->head_dim, "q_norm", &to->q_norm);
    load_vector(l, &from->k_norm, m->head_dim, "k_norm", &to->k_norm);
    load(l, &from->q, "q_proj", &to->q);
    load(l, &from->k, "k_proj", &to->k);
    load(l, &from->v, "v_proj", &to->v);
    load(l, &from->o, "o_proj", &to->o);
    if (from->sparse) {
        load_vector(l, &from->index_q_norm, m->index_dim, "index_q_norm", &to->index_q_norm);
        load_vector(l, &from->index_k_norm, m->index_dim, "index_k_norm", &to->index_k_norm);
        load(l, &from->index_q, "index_q_proj", &to->index_q);
        load(l, &from->index_k, "index_k_proj", &to->index_k);
    }
    if (from->moe) {
        load(l, &from->router, "router", &to->router);
        load_vector(l, &from->router_bias, m->experts, "router bias", &to->router_bias);
        load_experts(l, from, to);
        load(l, &from->shared_gate, "shared expert, gate", &to->shared_gate);
        load(l, &from->shared_up, "shared expert, up", &to->shared_up);
        load(l, &from->shared_down, "shared expert, down", &to->shared_down);
    } else {
        load(l, &from->dense_gate, "gate_proj", &to->dense_gate);
        load(l, &from->dense_up, "up_proj", &to->dense_up);
        load(l, &from->dense_down, "down_proj", &to->dense_down);
    }
}

static void load_draft_layer(loading *l, const ops_drafter *d, const ops_draft_layer *from, cuda_draft_layer *to)
{
    int hidden = l->backend->model->hidden;
    load_vector(l, &from->input_norm, hidden, "input norm", &to->input_norm);
    load_vector(l, &from->post_norm, hidden, "post norm", &to->post_norm);
    load_vector(l, &from->q_norm, d->head_dim, "q_norm", &to->q_norm);
    load_vector(l, &from->k_norm, d->head_dim, "k_norm", &to->k_norm);
    load(l, &from->q, "q_proj", &to->q);
    load(l, &from->k, "k_proj", &to->k);
    load(l, &from->v, "v_proj", &to->v);
    load(l, &from->o, "o_proj", &to->o);
    load(l, &from->gate, "gate_proj", &to->gate);
    load(l, &from->up, "up_proj", &to->up);
    load(l, &from->down, "down_proj", &to->down);
}

/* A drafter that brings no embedding or head of its own has the target's. */
static void load_or_share(loading *l, const weight *w, const weight *target, const kernel_weight *there,
                          const char *what, kernel_weight *out)
{
    if (w->data == target->data)
        *out = *there;
    else
        load(l, w, what, out);
}

static void load_drafter(loading *l)
{
    ops_backend *b = l->backend;
    const ops_model *m = b->model;
    const ops_drafter *d = m->drafter;
    if (!d || l->status != HY_OK) return;
    b->draft_layer = memory_zeroed((size_t)d->layers, sizeof *b->draft_layer);
    if (!b->draft_layer) {
        l->status = error_memory(l->err, "the drafter", (size_t)d->layers * sizeof *b->draft_layer);
        return;
    }
    l->drafter = true;
    load(l, &d->fc, "fc", &b->draft_fc);
    load_vector(l, &d->hidden_norm, m->hidden, "hidden norm", &b->draft_hidden_norm);
    load_vector(l, &d->final_norm, m->hidden, "final norm", &b->draft_final_norm);
    load_or_share(l, &d->embed, &m->embed, &b->embed, "embedding", &b->draft_embed);
    load_or_share(l, &d->head, &m->head, &b->head, "lm_head", &b->draft_head);
    if (d->markov_rank > 0) {
        load(l, &d->markov_in, "markov_w1", &b->markov_in);
        load(l, &d->markov_out, "markov_w2", &b->markov_out);
    }
    if (d->confidence.format != WEIGHT_NONE) {
        load_vector(l, &d->confidence, d->confidence.cols, "confidence", &b->confidence);
        load_vector(l, &d->confidence_bias, 1, "confidence bias", &b->confidence_bias);
    }
    for (int i = 0; i < d->layers; i++) {
        l->layer = i;
        load_draft_layer(l, d, &d->layer[i], &b->draft_layer[i]);
    }
    l->layer = -1;
}

static void load_frequencies(loading *l, float theta, int rotary_dim, const float **out)
{
    kernel_weight table = {0};
    int pairs = rotary_dim / 2;
    if (l->status != HY_OK) return;
    float *values = memory_zeroed((size_t)pairs + 1, sizeof *values);
    if (!values) {
        l->status = error_memory(l->err, "rotary frequencies", (size_t)pairs * sizeof *values);
        return;
    }
    for (int j = 0; j < pairs; j++)
        values[j] = 1.0f / (float)pow((double)theta, (double)((float)(2 * j) / (float)rotary_dim));
    weight w = {.format = WEIGHT_F32, .rows = 1, .cols = pairs, .data = values};
    if (pairs) load_vector(l, &w, pairs, "rotary frequencies", &table);
    *out = table.data;
    memory_free(values);
}

typedef uint64_t (*count_fn)(const weight *w);

static uint64_t matrices_bytes(const ops_model *m, count_fn bytes)
{
    uint64_t sum = bytes(&m->embed) + bytes(&m->head);
    for (int i = 0; i < m->layers; i++) {
        const ops_layer *l = &m->layer[i];
        const weight *all[] = {&l->q, &l->k, &l->v, &l->o};
        const weight *index[] = {&l->index_q, &l->index_k};
        const weight *dense[] = {&l->dense_gate, &l->dense_up, &l->dense_down};
        const weight *moe[] = {&l->router, &l->shared_gate, &l->shared_up, &l->shared_down};
        for (int n = 0; n < 4; n++) sum += bytes(all[n]);
        for (int n = 0; n < 2 && l->sparse; n++) sum += bytes(index[n]);
        for (int n = 0; n < 3 && !l->moe; n++) sum += bytes(dense[n]);
        for (int n = 0; n < 4 && l->moe; n++) sum += bytes(moe[n]);
        for (int e = 0; e < m->experts && l->moe; e++)
            sum += bytes(&l->expert_gate[e]) + bytes(&l->expert_up[e]) + bytes(&l->expert_down[e]);
    }
    const ops_drafter *d = m->drafter;
    if (!d) return sum;
    sum += bytes(&d->fc);
    if (d->embed.data != m->embed.data) sum += bytes(&d->embed);
    if (d->head.data != m->head.data) sum += bytes(&d->head);
    if (d->markov_rank > 0) sum += bytes(&d->markov_in) + bytes(&d->markov_out);
    for (int i = 0; i < d->layers; i++) {
        const ops_draft_layer *l = &d->layer[i];
        const weight *all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (int n = 0; n < 7; n++) sum += bytes(all[n]);
    }
    return sum;
}

static uint64_t file_bytes(const weight *w)
{
    return weight_bytes(w);
}

static uint64_t device_bytes(const weight *w)
{
    if (w->format == WEIGHT_NONE) return 0;
    place p = place_of(w);
    return p.data + p.scales;
}

uint64_t cuda_weights_bytes(const ops_model *m)
{
    return matrices_bytes(m, device_bytes);
}

hy_status cuda_weights_open(ops_backend *b, hy_error *err)
{
    const ops_model *m = b->model;
    char need[32], room[32];
    uint64_t bytes = cuda_weights_bytes(m);
    if (bytes > b->info.free)
        return error_set(err, HY_NO_FIT, "the weights take %s of the GPU's memory, which has %s free",
                         memory_text(bytes, need), memory_text(b->info.free, room));
    loading l = {.backend = b, .err = err, .layer = -1};
    l.report = (progress){.fn = b->options.on_progress,
                          .user = b->options.user,
                          .what = "preparing weights",
                          .unit = "bytes",
                          .total = matrices_bytes(m, file_bytes)};
    b->layer = memory_zeroed((size_t)m->layers, sizeof *b->layer);
    if (!b->layer) return error_memory(err, "the layers", (size_t)m->layers * sizeof *b->layer);
    load_frequencies(&l, m->rope_theta, m->rotary_dim, &b->frequency);
    if (m->drafter) load_frequencies(&l, m->drafter->rope_theta, m->drafter->rotary_dim, &b->draft_frequency);
    load(&l, &m->embed, "embedding", &b->embed);
    load_or_share(&l, &m->head, &m->embed, &b->embed, "lm_head", &b->head);
    load_vector(&l, &m->final_norm, m->hidden, "final norm", &b->final_norm);
    for (int i = 0; i < m->layers; i++) {
        l.layer = i;
        load_layer(&l, &m->layer[i], &b->layer[i]);
    }
    l.layer = -1;
    load_drafter(&l);
    if (l.status == HY_OK) progress_end(&l.report);
    return l.status;
}

void cuda_weights_close(ops_backend *b)
{
    for (size_t i = 0; i < b->owned_count; i++) b->gpu->calls->free(b->gpu, b->owned[i]);
    free(b->owned);
    memory_free(b->layer);
    memory_free(b->draft_layer);
}
