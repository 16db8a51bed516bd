/*
 * sample and verify: rows that ask for nothing rare are picked on the GPU, all of a call together (sample_rows.c). Of
 * the others, and of those that nothing is left of, the logits come to the host, whose threads run the chain that
 * defines the answer.
 */
#include "backend/cuda/cuda.h"

#include <assert.h>
#include <string.h>

#include "backend/sample.h"
#include "base/error.h"
#include "base/memory.h"

/* Rows whose logits the host needs, each asked for once, and what was asked for: a read for neighbours together. */
enum { ROW_ABSENT, ROW_WANTED, ROW_READ };

static void want_row(ops_step *s, int32_t r)
{
    if (r < s->logit_rows && s->logits_read[r] == ROW_ABSENT) s->logits_read[r] = ROW_WANTED;
}

static void read_rows(ops_step *s)
{
    gpu *g = s->backend->gpu;
    size_t row = (size_t)s->backend->model->vocab;
    for (int32_t r = 0, count; r < s->logit_rows; r += count) {
        for (count = 0; r + count < s->logit_rows && s->logits_read[r + count] == ROW_WANTED; count++)
            s->logits_read[r + count] = ROW_READ;
        size_t at = (size_t)r * row, values = (size_t)count * row;
        if (count) g->calls->read(g, s->logits + at, s->host_logits + at, values * sizeof *s->logits);
        count += count == 0;
    }
}

static bool reserve(ops_step *s, size_t rows)
{
    cuda_picks *p = &s->picks;
    if (memory_reserve((void **)&p->row, &p->row_room, rows, sizeof *p->row) &&
        memory_reserve((void **)&p->id, &p->id_room, rows, sizeof *p->id) &&
        memory_reserve((void **)&p->left, &p->left_room, rows, sizeof *p->left))
        return true;
    error_memory(&s->error, "what is sampled", rows * sizeof *p->row);
    return false;
}

/* Items that are left to the host, over its threads. */
static void run(const ops_step *s, int64_t items, threads_fn fn, void *arg)
{
    threads *pool = s->backend->options.pool;
    if (pool && items > 1)
        threads_run(pool, items, 1, fn, arg);
    else if (items)
        fn(arg, 0, items, 0);
}

/* ---- sample ------------------------------------------------------------------------------------------------------ */

typedef struct sampling {
    ops_step *step;
    const ops_sample *rows;
    ops_sampled *out;
} sampling;

static void sample_rows(void *arg, int64_t first, int64_t last, int worker)
{
    const sampling *work = arg;
    const ops_step *s = work->step;
    int32_t vocab = s->backend->model->vocab;
    for (int64_t n = first; n < last; n++) {
        int32_t i = s->picks.left[n];
        if (work->rows[i].logit_row >= s->logit_rows) continue; /* only after an error of the step */
        sample_row(s->host_logits + (int64_t)work->rows[i].logit_row * vocab, vocab, &work->rows[i],
                   s->sample_scratch + (size_t)worker * s->sample_bytes, &work->out[i]);
    }
}

void cuda_sample(ops_step *s, const ops_sample *rows, int32_t count, ops_sampled *out)
{
    cuda_picks *p = &s->picks;
    int32_t picked = 0, taken = 0, left = 0;
    for (int32_t i = 0; i < count; i++) out[i] = (ops_sampled){.id = SAMPLED_NONE};
    if (!reserve(s, (size_t)count)) return;
    for (int32_t i = 0; i < count; i++)
        if (cuda_sample_on_gpu(s, &rows[i])) p->row[picked++] = &rows[i];
    if (picked) cuda_sample_rows(s, p->row, picked, p->id);
    for (int32_t i = 0; i < count; i++) {
        bool mine = taken < picked && p->row[taken] == &rows[i];
        if (mine && p->id[taken++] >= 0) {
            out[i].id = p->id[taken - 1];
            continue;
        }
        want_row(s, rows[i].logit_row);
        p->left[left++] = i;
    }
    read_rows(s);
    sampling work = {s, rows, out};
    run(s, left, sample_rows, &work);
}

/* ---- verify ------------------------------------------------------------------------------------------------------ */

typedef struct verifying {
    ops_step *step;
    const ops_verify *sequences;
} verifying;

static void verify_sequences(void *arg, int64_t first, int64_t last, int worker)
{
    const verifying *work = arg;
    const ops_step *s = work->step;
    for (int64_t n = first; n < last; n++)
        host_verify(&s->limits, s->host_logits, s->logit_rows, s->backend->model->vocab, s->draft_logits,
                    &work->sequences[s->picks.left[n]], s->sample_scratch + (size_t)worker * s->sample_bytes);
}

/* Whether verify comes to picking row after row and comparing, and the GPU can pick them all. */
static bool picks_only(const ops_step *s, const ops_verify *v)
{
    bool greedy = v->method != VERIFY_SYNTHETIC && sample_is_greedy(v->row[0].temperature);
    if (v->drafts > 0 && v->method != VERIFY_COUPLED && !greedy) return false;
    for (int32_t j = 0; j <= v->drafts; j++)
        if (!cuda_sample_on_gpu(s, &v->row[j])) return false;
    return true;
}

/* The picks up to the first that is not the draft. False: one of them is left to the host. */
static bool compare(const ops_verify *v, const int32_t *id)
{
    for (int32_t j = 0;; j++) {
        if (id[j] < 0) return false;
        v->out[j] = (ops_sampled){.id = id[j]};
        *v->count = j + 1;
        if (j == v->drafts || v->draft[j] != id[j]) return true;
    }
}

void cuda_verify(ops_step *s, const ops_verify *sequences, int32_t count)
{
    cuda_picks *p = &s->picks;
    int64_t rows = 0;
    int32_t picked = 0, taken = 0, left = 0;
    for (int32_t i = 0; i < count; i++) {
        sequences[i].out[0] = (ops_sampled){.id = SAMPLED_NONE};
        *sequences[i].count = 1;
        rows += sequences[i].drafts + 1;
    }
    if (!reserve(s, (size_t)rows)) return;
    for (int32_t i = 0; i < count; i++) {
        int32_t own = picks_only(s, &sequences[i]) ? sequences[i].drafts + 1 : 0;
        for (int32_t j = 0; j < own; j++) p->row[picked++] = &sequences[i].row[j];
    }
    if (picked) cuda_sample_rows(s, p->row, picked, p->id);
    for (int32_t i = 0; i < count; i++) {
        const ops_verify *v = &sequences[i];
        if (taken < picked && p->row[taken] == v->row) {
            const int32_t *id = p->id + taken;
            taken += v->drafts + 1;
            if (compare(v, id)) continue;
        }
        for (int32_t j = 0; j <= v->drafts; j++) want_row(s, v->row[j].logit_row);
        p->left[left++] = i;
    }
    read_rows(s);
    verifying work = {s, sequences};
    run(s, left, verify_sequences, &work);
}
