/*
 * Weights into the GPU's memory: the bytes of the file, rows padded with zeros to a multiple of 16; F16 as fp32,
 * vectors as fp32. The routed experts of a layer lie one behind the other, each from a multiple of 256 bytes on, so
 * that a kernel finds expert e without a table.
 *
 * They come through upload.c, a layer's all at once, or are made there (kernels/synth.cu). What has come is looked at
 * by kernels/check.cu, as the CPU looks when it packs: matrices that products read, and neither vectors nor embeddings,
 * which are looked at before or taken as they are on every backend. What it found is read once, at the end.
 */
#include "backend/cuda/cuda.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/kernels/check.h"
#include "backend/cuda/kernels/synth.h"
#include "backend/cuda/upload.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "checkpoint/synth_made.h"

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

/* A grid that fills the GPU some times over with blocks for `pieces` of work, and no more. */
static int blocks_for(const ops_backend *b, uint64_t pieces, int block)
{
    uint64_t blocks = (pieces + (uint64_t)block - 1) / (uint64_t)block, most = 8 * (uint64_t)b->info.processors;
    return (int)(blocks < most ? blocks : most);
}

static void launch(const ops_backend *b, const char *name, int x, int y, int block, const void *args, size_t bytes)
{
    const gpu_kernel *kernel = b->gpu->calls->kernel(b->gpu, name);
    if (kernel && x > 0 && y > 0) b->gpu->calls->launch(b->gpu, kernel, (const int[3]){x, y, 1}, block, 0, args, bytes);
}

_Static_assert((int)SYNTH_OF_F32 == (int)SYNTH_F32 && (int)SYNTH_OF_E2M1 == (int)SYNTH_E2M1 &&
                   (int)SYNTH_OF_E4M3_SCALE == (int)SYNTH_E4M3_SCALE && (int)SYNTH_NORMALS == (int)SYNTH_QUANTILES,
               "kernels and host make the same weights");

static void make(const ops_backend *b, const synth_piece *p, void *device)
{
    const synth_stream *from = &p->stream;
    synth_args args;
    memset(&args, 0, sizeof args);
    args.tables = b->loading->tables, args.out = device, args.key = from->key, args.bytes = p->bytes;
    args.kind = (int32_t)from->kind, args.mean = from->mean, args.deviation = from->deviation;
    args.scale_low = from->scale_low, args.scale_up = from->scale_up;
    launch(b, "hy_synth", blocks_for(b, (p->bytes + SYNTH_PIECE - 1) / SYNTH_PIECE, SYNTH_THREADS), 1, SYNTH_THREADS,
           &args, sizeof args);
}

/* Bytes of the host to the GPU: made there, listed, or written. */
static hy_status put_bytes(ops_backend *b, const void *host, size_t bytes, void *device, hy_error *err)
{
    const synth_piece *p = b->loading ? synth_made_find(b->options.made, host) : NULL;
    if (p && p->bytes == bytes && !p->stream.constant) {
        make(b, p, device);
        b->loading->made += bytes;
        return HY_OK;
    }
    if (b->loading) return upload_add(b->loading->upload, device, host, bytes, err);
    b->gpu->calls->write(b->gpu, device, host, bytes);
    return HY_OK;
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
    hy_status status = put_bytes(b, w->data, (size_t)w->rows * weight_row_data(w), data, err);
    if (status == HY_OK && w->scales)
        status = put_bytes(b, w->scales, (size_t)w->rows * weight_row_scales(w), scales, err);
    return status;
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

/* A weight that is to be looked at when it has come, or as many as a layer has experts. */
typedef struct checking {
    char name[96];
    check_args args;
    int32_t count;
    weight_format format;
} checking;

typedef struct loading {
    ops_backend *backend;
    hy_error *err;
    hy_status status; /* of the first failure; what follows it does nothing */
    int layer;        /* whose weights come; -1: none */
    bool drafter;
    progress report;
    struct cuda_loading of_backend;
    checking *check; /* [checks], of which the first `checked` are launched */
    size_t checks, checked, check_room;
    uint32_t *found; /* device */
} loading;

static const char *name_of(const loading *l, const char *what, char name[96])
{
    int n = snprintf(name, 96, "%s", l->drafter ? "drafter, " : "");
    if (l->layer >= 0) n += snprintf(name + n, 96 - (size_t)n, "layer %d, ", l->layer);
    snprintf(name + n, 96 - (size_t)n, "%s", what);
    return name;
}

/* Of a file more is refused: what its format has no use for. */
static bool is_of_file(const ops_options *o, const void *data)
{
    uint64_t at;
    return weight_file_find(o->files, o->file_count, data, &at) != NULL;
}

/* `count` weights like w, one behind the other at `there`, are to be looked at. Made ones are as they should be. */
static void check_later(loading *l, const weight *w, const kernel_weight *there, int32_t count, const char *what)
{
    const ops_options *o = &l->backend->options;
    if (l->status != HY_OK || w->format == WEIGHT_NONE || synth_made_find(o->made, w->data)) return;
    if (!memory_reserve((void **)&l->check, &l->check_room, l->checks + 1, sizeof *l->check)) {
        l->status = error_memory(l->err, "the list of weights", sizeof *l->check);
        return;
    }
    place p = place_of(w);
    checking *c = &l->check[l->checks++];
    *c = (checking){.count = count, .format = w->format};
    name_of(l, what, c->name);
    memset(&c->args, 0, sizeof c->args);
    c->args.data = there->data, c->args.scales = there->scales, c->args.bytes = (int64_t)p.data;
    c->args.scale_bytes = (int64_t)p.scales, c->args.format = there->format;
    c->args.strict = is_of_file(o, w->scales), c->args.found = l->found;
    c->args.number = c == l->check ? 1 : c[-1].args.number + (uint32_t)c[-1].count;
}

/* What is listed comes, and is looked at. */
static void bring(loading *l)
{
    if (l->status == HY_OK) l->status = upload_run(l->of_backend.upload, l->err);
    for (; l->checked < l->checks && l->status == HY_OK; l->checked++) {
        const checking *c = &l->check[l->checked];
        int64_t bytes = (c->format == WEIGHT_NVFP4 ? 0 : c->args.bytes) + c->args.scale_bytes;
        launch(l->backend, "hy_check", blocks_for(l->backend, (uint64_t)bytes / 16, CHECK_THREADS), c->count,
               CHECK_THREADS, &c->args, sizeof c->args);
    }
}

/* What was found, when all of them have been looked at. */
static void judge(loading *l)
{
    uint32_t found = 0;
    char expert[32] = "";
    if (l->status != HY_OK) return;
    l->backend->gpu->calls->read(l->backend->gpu, l->found, &found, sizeof found);
    l->status = l->backend->gpu->calls->wait(l->backend->gpu, l->err);
    for (size_t i = 0; i < l->checks && found && l->status == HY_OK; i++) {
        const checking *c = &l->check[i];
        uint32_t n = found - c->args.number;
        if (n >= (uint32_t)c->count) continue;
        if (c->count > 1) snprintf(expert, sizeof expert, ", expert %u", n);
        l->status = error_at(l->err, HY_BAD_MODEL, c->name,
                             "%s%s: its %s weights hold %s: the file is damaged, download it again", c->name, expert,
                             weight_format_name(c->format), weight_fault(c->format));
    }
}

/* Bytes that do not go through the list. */
static void report_made(loading *l)
{
    uint64_t made = l->of_backend.made - l->of_backend.reported;
    l->of_backend.reported = l->of_backend.made;
    if (l->status == HY_OK && made && !progress_add(&l->report, made))
        l->status = error_set(l->err, HY_CANCELLED, "loading the weights was stopped");
}

/* Rows of embeddings are read token by token, and not looked at. */
static void load_rows(loading *l, const weight *w, const char *what, kernel_weight *out)
{
    char name[96];
    if (l->status != HY_OK) return;
    l->status = cuda_weight_load(l->backend, w, name_of(l, what, name), out, l->err);
    report_made(l);
}

static void load(loading *l, const weight *w, const char *what, kernel_weight *out)
{
    load_rows(l, w, what, out);
    check_later(l, w, out, 1, what);
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
        report_made(l);
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
    for (int i = 0; i < 3 && l->status == HY_OK; i++) {
        l->status = load_experts_of(l, w[i], name_of(l, what[i], name), out[i], &to->expert_bytes[i],
                                    &to->expert_scale_bytes[i], &to->factors[i]);
        check_later(l, w[i], out[i], l->backend->model->experts, what[i]);
    }
    bring(l);
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
        load_rows(l, w, what, out);
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
    if (d->head.data != m->head.data) check_later(l, &d->head, &b->draft_head, 1, "lm_head");
    if (d->markov_rank > 0) {
        load_rows(l, &d->markov_in, "markov_w1", &b->markov_in);
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

/* The list, the tables of random numbers, the place of what is found. */
static void open_loading(loading *l)
{
    ops_backend *b = l->backend;
    const gpu_calls *calls = b->gpu->calls;
    struct cuda_loading *of = &l->of_backend;
    const synth_made *made = b->options.made;
    void *found = NULL, *tables = NULL;
    l->status = upload_open(b->gpu, &b->options, &l->report, &of->upload, l->err);
    if (l->status == HY_OK) l->status = calls->alloc(b->gpu, ALIGNMENT, "the check of the weights", &found, l->err);
    l->found = found;
    if (l->status == HY_OK && made) {
        l->status = calls->alloc(b->gpu, sizeof(synth_lookup), "random numbers", &tables, l->err);
        if (tables) calls->write(b->gpu, tables, &made->tables, sizeof(synth_lookup));
    }
    of->tables = tables;
    b->loading = of;
}

_Static_assert(offsetof(synth_tables, e2m1) == offsetof(synth_lookup, e2m1), "the tables begin alike");

static void close_loading(loading *l)
{
    ops_backend *b = l->backend;
    b->gpu->calls->free(b->gpu, l->found);
    b->gpu->calls->free(b->gpu, (void *)(uintptr_t)l->of_backend.tables);
    upload_close(l->of_backend.upload);
    free(l->check);
    b->loading = NULL;
}

static void tell(const loading *l, double seconds)
{
    ops_loaded *out = &l->backend->loaded;
    char bytes[32], rate[32];
    bool made = l->of_backend.made > upload_bytes(l->of_backend.upload);
    *out = (ops_loaded){.bytes = l->of_backend.made + upload_bytes(l->of_backend.upload),
                        .seconds = seconds,
                        .way = made ? "made on the GPU" : upload_way(l->of_backend.upload)};
    log_line(HY_LOG_INFO, "weights on the GPU: %s in %.2f s, %s/s, %s", memory_text(out->bytes, bytes), out->seconds,
             memory_text((uint64_t)((double)out->bytes / seconds), rate), out->way);
}

hy_status cuda_weights_open(ops_backend *b, hy_error *err)
{
    const ops_model *m = b->model;
    char need[32], room[32];
    uint64_t bytes = cuda_weights_bytes(m);
    double begin = clock_seconds();
    if (bytes > b->info.free)
        return error_set(err, HY_NO_FIT, "the weights take %s of the GPU's memory, which has %s free",
                         memory_text(bytes, need), memory_text(b->info.free, room));
    loading l = {.backend = b, .err = err, .layer = -1};
    l.report = (progress){.fn = b->options.on_progress,
                          .user = b->options.user,
                          .what = b->options.made ? "making weights" : "loading weights",
                          .unit = "bytes",
                          .total = matrices_bytes(m, file_bytes)};
    b->layer = memory_zeroed((size_t)m->layers, sizeof *b->layer);
    if (!b->layer) return error_memory(err, "the layers", (size_t)m->layers * sizeof *b->layer);
    open_loading(&l);
    load_frequencies(&l, m->rope_theta, m->rotary_dim, &b->frequency);
    if (m->drafter) load_frequencies(&l, m->drafter->rope_theta, m->drafter->rotary_dim, &b->draft_frequency);
    load_rows(&l, &m->embed, "embedding", &b->embed);
    load_or_share(&l, &m->head, &m->embed, &b->embed, "lm_head", &b->head);
    check_later(&l, &m->head, &b->head, 1, "lm_head");
    load_vector(&l, &m->final_norm, m->hidden, "final norm", &b->final_norm);
    for (int i = 0; i < m->layers; i++) {
        l.layer = i;
        load_layer(&l, &m->layer[i], &b->layer[i]);
    }
    l.layer = -1;
    load_drafter(&l);
    bring(&l);
    judge(&l);
    if (l.status == HY_OK) progress_end(&l.report);
    if (l.status == HY_OK) tell(&l, clock_seconds() - begin);
    close_loading(&l);
    return l.status;
}

void cuda_weights_close(ops_backend *b)
{
    for (size_t i = 0; i < b->owned_count; i++) b->gpu->calls->free(b->gpu, b->owned[i]);
    free(b->owned);
    memory_free(b->layer);
    memory_free(b->draft_layer);
}
