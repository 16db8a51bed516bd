/*
 * sample and verify: rows that ask for nothing rare are picked on the GPU, all of a call together (sample_rows.c). Of
 * the others, and of those that nothing is left of, the logits come to the host, whose threads run the chain that
 * defines the answer.
 *
 * A call whose rows are all picked there only launches, so that drafts can follow it (draft.c) and the host meets the
 * GPU once a step, in `finish`: there the ids come, with the drafts, and verify compares them. Another call waits for
 * them at once.
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

/* What was picked goes to those who asked; the rest is left. */
static void sample_picked(ops_step *s, const int32_t *id)
{
    cuda_picks *p = &s->picks;
    int32_t taken = 0, left = 0;
    for (int32_t i = 0; i < p->count; i++) {
        bool mine = taken < p->picked && p->row[taken] == &p->rows[i];
        if (mine && id[taken++] >= 0) {
            p->out[i].id = id[taken - 1];
            continue;
        }
        want_row(s, p->rows[i].logit_row);
        p->left[left++] = i;
    }
    read_rows(s);
    sampling work = {s, p->rows, p->out};
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

static void verify_picked(ops_step *s, const int32_t *id)
{
    cuda_picks *p = &s->picks;
    int32_t taken = 0, left = 0;
    for (int32_t i = 0; i < p->count; i++) {
        const ops_verify *v = &p->sequences[i];
        if (taken < p->picked && p->row[taken] == v->row) {
            const int32_t *own = id + taken;
            taken += v->drafts + 1;
            if (compare(v, own)) continue;
        }
        for (int32_t j = 0; j <= v->drafts; j++) want_row(s, v->row[j].logit_row);
        p->left[left++] = i;
    }
    read_rows(s);
    verifying work = {s, p->sequences};
    run(s, left, verify_sequences, &work);
}

/* ---- Asking and answering ---------------------------------------------------------------------------------------- */

static void hand_out(ops_step *s, const int32_t *id)
{
    s->picks.asked = false;
    if (s->picks.sequences)
        verify_picked(s, id);
    else
        sample_picked(s, id);
}

/* The rows that are listed are picked; `all`: nothing is left to the host, and nobody waits. */
static void pick(ops_step *s, bool all)
{
    cuda_picks *p = &s->picks;
    p->asked = true;
    if (all && p->picked > 0 && p->picked <= cuda_sample_room(s)) {
        cuda_sample_start(s, p->row, p->picked);
        return;
    }
    if (p->picked) cuda_sample_rows(s, p->row, p->picked, p->id);
    hand_out(s, p->id);
}

void cuda_answer(ops_step *s)
{
    cuda_picks *p = &s->picks;
    if (!p->asked && !cuda_draft_asked(s)) return;
    bool came = cuda_answer_read(s, p->picked, cuda_draft_asked(s));
    if (came && p->asked) hand_out(s, cuda_answer_ids(s, true));
    cuda_draft_answer(s, came);
    p->asked = false;
}

void cuda_sample(ops_step *s, const ops_sample *rows, int32_t count, ops_sampled *out)
{
    cuda_picks *p = &s->picks;
    cuda_answer(s);
    for (int32_t i = 0; i < count; i++) out[i] = (ops_sampled){.id = SAMPLED_NONE};
    if (!reserve(s, (size_t)count)) return;
    p->rows = rows, p->out = out, p->sequences = NULL, p->count = count, p->picked = 0;
    for (int32_t i = 0; i < count; i++)
        if (cuda_sample_on_gpu(s, &rows[i])) p->row[p->picked++] = &rows[i];
    pick(s, p->picked == count);
}

void cuda_verify(ops_step *s, const ops_verify *sequences, int32_t count)
{
    cuda_picks *p = &s->picks;
    int64_t rows = 0;
    cuda_answer(s);
    for (int32_t i = 0; i < count; i++) {
        sequences[i].out[0] = (ops_sampled){.id = SAMPLED_NONE};
        *sequences[i].count = 1;
        rows += sequences[i].drafts + 1;
    }
    if (!reserve(s, (size_t)rows)) return;
    p->sequences = sequences, p->count = count, p->picked = 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t own = picks_only(s, &sequences[i]) ? sequences[i].drafts + 1 : 0;
        for (int32_t j = 0; j < own; j++) p->row[p->picked++] = &sequences[i].row[j];
    }
    pick(s, p->picked == rows);
}
