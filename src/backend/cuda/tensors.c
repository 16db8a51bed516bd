/* The named tensors of a step for tests, traces and replay: fp32 and int32 on both sides, so they only travel. Of those
 * that are kept as bf16 values the bf16 copy, where there is one, is written too. */
#include "backend/cuda/cuda.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "number/bf16.h"

typedef struct named {
    void *at;       /* device */
    size_t columns; /* of four bytes */
    int32_t rows;
    bool half;      /* bf16 values: what is written is rounded */
    uint16_t *copy; /* device, the same values as bf16, or NULL */
} named;

static named tensor_of(const ops_step *s, ops_tensor which)
{
    const ops_model *m = s->backend->model;
    size_t heads = (size_t)m->heads * (size_t)m->head_dim, index_heads = (size_t)m->index_heads;
    int32_t rows = s->limits.rows, drafts = s->limits.drafts * s->limits.draft_rows;
    const named tensors[] = {
        [OPS_X] = {s->x, (size_t)m->hidden, rows, false, NULL},
        [OPS_Q] = {s->q, heads, rows, true, NULL},
        [OPS_INDEX_Q] = {s->index_q, index_heads * (size_t)m->index_dim, rows, true, NULL},
        [OPS_SCORES] = {s->scores, index_heads * (size_t)s->max_blocks, rows, false, NULL},
        [OPS_BLOCKS] = {s->blocks, index_heads * (size_t)m->index_top, rows, false, NULL},
        [OPS_ATTENTION] = {s->attention, heads, rows, true, s->attention_bf16},
        [OPS_H] = {s->h, (size_t)m->hidden, rows, true, s->normed},
        [OPS_ROUTES] = {s->routes, (size_t)m->experts_per_token, rows, false, NULL},
        [OPS_ROUTE_WEIGHTS] = {s->route_weights, (size_t)m->experts_per_token, rows, false, NULL},
        [OPS_LOGITS] = {s->logits, (size_t)m->vocab, s->limits.logit_rows, false, NULL},
        [OPS_DRAFT_C] = {NULL, (size_t)m->hidden, rows, true, NULL},
        [OPS_DRAFT_H] = {NULL, (size_t)m->hidden, drafts, true, NULL},
        [OPS_DRAFT_LOGITS] = {NULL, (size_t)m->vocab, s->limits.draft_laws ? drafts : 0, false, NULL},
    };
    return tensors[which];
}

void cuda_tensor_read(ops_step *s, ops_tensor which, int32_t first, int32_t rows, void *out)
{
    gpu *g = s->backend->gpu;
    named t = tensor_of(s, which);
    size_t begin = (size_t)first * t.columns * 4, bytes = (size_t)rows * t.columns * 4;
    assert(first >= 0 && rows >= 0 && rows <= t.rows - first);
    cuda_route_now(s);
    if (which == OPS_DRAFT_LOGITS)
        memcpy(out, (const uint8_t *)s->draft_logits + begin, bytes);
    else if (which == OPS_DRAFT_C || which == OPS_DRAFT_H)
        cuda_draft_read(s, which, first, rows, out);
    else
        g->calls->read(g, (const uint8_t *)t.at + begin, out, bytes);
}

void cuda_tensor_write(ops_step *s, ops_tensor which, int32_t first, int32_t rows, const void *in)
{
    gpu *g = s->backend->gpu;
    named t = tensor_of(s, which);
    size_t begin = (size_t)first * t.columns, count = (size_t)rows * t.columns;
    assert(first >= 0 && rows >= 0 && rows <= t.rows - first && which != OPS_DRAFT_C && which != OPS_DRAFT_H);
    cuda_route_now(s);
    if (which == OPS_LOGITS) cuda_answer(s);
    if (which == OPS_LOGITS) memset(s->logits_read, 0, (size_t)t.rows);
    if (which == OPS_DRAFT_LOGITS) {
        memcpy(s->draft_logits + begin, in, count * 4);
        return;
    }
    if (!t.half) {
        g->calls->write(g, (uint8_t *)t.at + begin * 4, in, count * 4);
        return;
    }
    float *values = memory_alloc(count, sizeof *values);
    uint16_t *halves = memory_alloc(count, sizeof *halves);
    if (values && halves) {
        for (size_t i = 0; i < count; i++) {
            halves[i] = bf16_from_float(((const float *)in)[i]);
            values[i] = bf16_to_float(halves[i]);
        }
        g->calls->write(g, (float *)t.at + begin, values, count * sizeof *values);
        if (t.copy) g->calls->write(g, t.copy + begin, halves, count * sizeof *halves);
    } else {
        error_memory(&s->error, "a tensor", count * sizeof *values);
    }
    memory_free(values);
    memory_free(halves);
}
