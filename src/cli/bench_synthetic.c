#include "cli/bench_synthetic.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "cli/bench_rows.h"
#include "cli/cli.h"
#include "number/bf16.h"

enum { PERIOD = 1 << 20 }; /* values that come over and over where they may */

/* ---- Weights ------------------------------------------------------------------------------------------------------
 */

static void *take(bench_synthetic *s, size_t bytes)
{
    void *p = NULL;
    if (!s->failed && memory_reserve((void **)&s->memory, &s->capacity, s->count + 1, sizeof *s->memory))
        p = memory_alloc(bytes + 8, 1);
    if (p)
        s->memory[s->count++] = p;
    else
        s->failed = true;
    return p;
}

/* Words of random bits, AND and OR applied to every byte. */
static void fill(bench_synthetic *s, uint8_t *out, size_t bytes, uint64_t and_bits, uint64_t or_bits)
{
    for (size_t i = 0; i < bytes; i += 8) { /* take leaves room behind the end */
        uint64_t bits = (bench_random(&s->state) & and_bits) | or_bits;
        memcpy(out + i, &bits, 8);
    }
}

#define BYTES(x) (0x0101010101010101 * (uint64_t)(x))

/* Uniform values of standard deviation 1/sqrt(cols), as bf16 or fp32. */
static void fill_plain(bench_synthetic *s, weight_format format, uint8_t *out, size_t count, int64_t cols)
{
    float scale = (float)(sqrt(3.0 / (double)cols) / 32768);
    for (size_t i = 0; i < count; i++) {
        float x = (float)((int)(bench_random(&s->state) & 0xFFFF) - 32768) * scale;
        uint16_t half = bf16_from_float(x);
        if (format == WEIGHT_F32)
            memcpy(out + 4 * i, &x, 4);
        else
            memcpy(out + 2 * i, &half, 2);
    }
}

static weight matrix(bench_synthetic *s, weight_format format, int64_t rows, int64_t cols)
{
    weight w = {.format = format, .rows = rows, .cols = cols};
    size_t n = (size_t)rows * (size_t)cols;
    if (format == WEIGHT_NVFP4 || format == WEIGHT_MXFP8) {
        bool four = format == WEIGHT_NVFP4;
        uint8_t *data = take(s, four ? n / 2 : n), *scales = take(s, four ? n / 16 : n / 32);
        if (s->failed) return (weight){0};
        w.data = data, w.scales = scales;
        if (four) { /* any code; scales of 128 to 240; 500 is about the deviation of their product */
            fill(s, data, n / 2, UINT64_MAX, 0);
            fill(s, scales, n / 16, BYTES(0x07), BYTES(0x70));
            w.global = (float)(500 * sqrt((double)cols)), w.divides = true;
        } else { /* 1/8 to 1.9 with a scale that makes it 1/sqrt(cols) */
            fill(s, data, n, BYTES(0x9F), BYTES(0x20));
            fill(s, scales, n / 32, 0, BYTES(127 - (int)lround(log2((double)cols) / 2)));
        }
        return w;
    }
    size_t size = format == WEIGHT_F32 ? 4 : 2, own = s->alike && n > PERIOD ? PERIOD : n;
    uint8_t *data = take(s, n * size);
    if (s->failed) return (weight){0};
    fill_plain(s, format, data, own, cols);
    for (size_t at = own, piece; at < n; at += piece) {
        piece = n - at < own ? n - at : own;
        memcpy(data + at * size, data, piece * size);
    }
    w.data = data;
    return w;
}

/* A gain of one: norms multiply by 1 + w. */
static weight norm(bench_synthetic *s, int64_t n)
{
    uint8_t *data = take(s, (size_t)n * 2);
    if (s->failed) return (weight){0};
    memset(data, 0, (size_t)n * 2);
    return (weight){.format = WEIGHT_BF16, .rows = 1, .cols = n, .data = data};
}

static weight linear(bench_synthetic *s, int64_t rows, int64_t cols)
{
    return matrix(s, WEIGHT_MXFP8, rows, cols);
}

static void make_attention(bench_synthetic *s, ops_layer *l)
{
    const ops_model *m = &s->model;
    int64_t q = (int64_t)m->heads * m->head_dim, kv = (int64_t)m->kv_heads * m->head_dim;
    l->k_scale = l->v_scale = 1;
    l->input_norm = norm(s, m->hidden), l->post_norm = norm(s, m->hidden);
    l->q_norm = norm(s, m->head_dim), l->k_norm = norm(s, m->head_dim);
    l->q = linear(s, q, m->hidden), l->k = linear(s, kv, m->hidden), l->v = linear(s, kv, m->hidden);
    l->o = linear(s, m->hidden, q);
    l->sparse = m->index_heads > 0;
    if (!l->sparse) return;
    l->index_q = linear(s, (int64_t)m->index_heads * m->index_dim, m->hidden);
    l->index_k = linear(s, m->index_dim, m->hidden);
    l->index_q_norm = norm(s, m->index_dim), l->index_k_norm = norm(s, m->index_dim);
}

static void make_feed(bench_synthetic *s, ops_layer *l)
{
    const ops_model *m = &s->model;
    if (!l->moe) {
        l->dense_gate = linear(s, m->dense_width, m->hidden), l->dense_up = linear(s, m->dense_width, m->hidden);
        l->dense_down = linear(s, m->hidden, m->dense_width);
        return;
    }
    l->router = matrix(s, WEIGHT_F32, m->experts, m->hidden);
    l->router_bias = matrix(s, WEIGHT_F32, 1, m->experts);
    weight *experts = take(s, 3 * (size_t)m->experts * sizeof *experts);
    if (s->failed) return;
    l->expert_gate = experts, l->expert_up = experts + m->experts, l->expert_down = experts + 2 * m->experts;
    for (int e = 0; e < m->experts; e++) {
        if (s->alike && e > 0) {
            l->expert_gate[e] = l->expert_gate[0], l->expert_up[e] = l->expert_up[0];
            l->expert_down[e] = l->expert_down[0];
            continue;
        }
        l->expert_gate[e] = matrix(s, WEIGHT_NVFP4, m->expert_width, m->hidden);
        l->expert_up[e] = matrix(s, WEIGHT_NVFP4, m->expert_width, m->hidden);
        l->expert_down[e] = matrix(s, WEIGHT_NVFP4, m->hidden, m->expert_width);
    }
    if (!m->shared_width) return;
    l->shared_gate = linear(s, m->shared_width, m->hidden), l->shared_up = linear(s, m->shared_width, m->hidden);
    l->shared_down = linear(s, m->hidden, m->shared_width);
}

uint64_t bench_synthetic_bytes(const ops_model *m, int dense_layers, int moe_layers)
{
    uint64_t hidden = (uint64_t)m->hidden, dim = (uint64_t)m->head_dim;
    uint64_t attention = 2 * ((uint64_t)m->heads + (uint64_t)m->kv_heads) * dim * hidden;
    if (m->index_heads) attention += ((uint64_t)m->index_heads + 1) * (uint64_t)m->index_dim * hidden;
    uint64_t dense = 3 * (uint64_t)m->dense_width * hidden, shared = 3 * (uint64_t)m->shared_width * hidden;
    uint64_t experts = 3 * (uint64_t)m->experts * (uint64_t)m->expert_width * hidden;
    uint64_t eight = attention * (uint64_t)(dense_layers + moe_layers) + dense * (uint64_t)dense_layers +
                     shared * (uint64_t)moe_layers;
    return eight / 32 * 33 + experts * (uint64_t)moe_layers / 16 * 9 + 2 * 2 * hidden * (uint64_t)m->vocab +
           4 * hidden * (uint64_t)m->experts * (uint64_t)moe_layers;
}

static hy_status open_with(const ops_model *shape, int dense_layers, int moe_layers, bool alike, bench_synthetic *out,
                           hy_error *err)
{
    *out = (bench_synthetic){.model = *shape, .state = 1, .alike = alike};
    bench_synthetic *s = out;
    ops_model *m = &s->model;
    m->layers = dense_layers + moe_layers;
    m->layer = memory_zeroed((size_t)m->layers, sizeof *m->layer);
    s->failed = !m->layer;
    for (int i = 0; i < m->layers && !s->failed; i++) {
        m->layer[i].moe = i >= dense_layers;
        make_attention(s, &m->layer[i]);
        make_feed(s, &m->layer[i]);
    }
    m->embed = matrix(s, WEIGHT_BF16, m->vocab, m->hidden);
    m->head = alike ? m->embed : matrix(s, WEIGHT_BF16, m->vocab, m->hidden);
    m->final_norm = norm(s, m->hidden);
    if (!s->failed) return HY_OK;
    bench_synthetic_close(s);
    return error_memory(err, "random weights", bench_synthetic_bytes(shape, dense_layers, moe_layers));
}

hy_status bench_synthetic_open(const ops_model *shape, int dense_layers, int moe_layers, bench_synthetic *out,
                               hy_error *err)
{
    return open_with(shape, dense_layers, moe_layers, false, out, err);
}

hy_status bench_synthetic_open_alike(const ops_model *shape, int dense_layers, int moe_layers, bench_synthetic *out,
                                     hy_error *err)
{
    return open_with(shape, dense_layers, moe_layers, true, out, err);
}

hy_status bench_synthetic_draft(bench_synthetic *s, const ops_drafter *shape, hy_error *err)
{
    ops_model *m = &s->model;
    ops_drafter *d = take(s, sizeof *d);
    ops_draft_layer *layer = take(s, (size_t)shape->layers * sizeof *layer);
    int64_t q = (int64_t)shape->heads * shape->head_dim, kv = (int64_t)shape->kv_heads * shape->head_dim;
    if (!s->failed) {
        *d = *shape;
        d->layer = layer, d->markov_rank = 0, d->embed = m->embed, d->head = m->head;
        d->fc = matrix(s, WEIGHT_BF16, m->hidden, (int64_t)d->tap_count * m->hidden);
        d->hidden_norm = norm(s, m->hidden), d->final_norm = norm(s, m->hidden);
    }
    for (int i = 0; i < shape->layers && !s->failed; i++)
        layer[i] = (ops_draft_layer){.input_norm = norm(s, m->hidden),
                                     .post_norm = norm(s, m->hidden),
                                     .q_norm = norm(s, d->head_dim),
                                     .k_norm = norm(s, d->head_dim),
                                     .q = linear(s, q, m->hidden),
                                     .k = linear(s, kv, m->hidden),
                                     .v = linear(s, kv, m->hidden),
                                     .o = linear(s, m->hidden, q),
                                     .gate = linear(s, d->width, m->hidden),
                                     .up = linear(s, d->width, m->hidden),
                                     .down = linear(s, m->hidden, d->width)};
    if (!s->failed) {
        m->drafter = d;
        return HY_OK;
    }
    return error_memory(err, "a random drafter", (size_t)m->hidden * (size_t)m->hidden);
}

hy_status bench_synthetic_fits(uint64_t weights, uint64_t cache, uint64_t read_buffer, hy_error *err)
{
    char need[32], has[32];
    uint64_t all = 2 * weights + cache + read_buffer, free_bytes = memory_available();
    if (all < free_bytes / 10 * 9 + read_buffer) return HY_OK;
    return error_set(err, HY_NO_FIT, "this bench needs %s and %s are free: take a smaller geometry",
                     cli_format_bytes(all, need), cli_format_bytes(free_bytes, has));
}

void bench_synthetic_close(bench_synthetic *s)
{
    for (size_t i = 0; i < s->count; i++) memory_free(s->memory[i]);
    free(s->memory);
    memory_free(s->model.layer);
    *s = (bench_synthetic){0};
}
