/*
 * sample and verify: rows that ask for nothing rare are picked on the GPU (sample_rows.c), for the others the logits
 * come to the host, once a step, and its threads run the chain that defines the answer.
 */
#include "backend/cuda/cuda.h"

#include <assert.h>
#include <string.h>

#include "base/memory.h"

static void read_logits(ops_step *s)
{
    gpu *g = s->backend->gpu;
    if (s->logits_read || s->logit_rows == 0) return;
    g->calls->read(g, s->logits, s->host_logits,
                   (size_t)s->logit_rows * (size_t)s->backend->model->vocab * sizeof *s->host_logits);
    s->logits_read = true;
}

static void run(const ops_step *s, int64_t items, threads_fn fn, void *arg)
{
    threads *pool = s->backend->options.pool;
    if (pool && items > 1)
        threads_run(pool, items, 1, fn, arg);
    else if (items)
        fn(arg, 0, items, 0);
}

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
    for (int64_t i = first; i < last; i++) {
        work->out[i] = (ops_sampled){.id = SAMPLED_NONE};
        if (work->rows[i].logit_row >= s->logit_rows) continue; /* only after an error of the step */
        sample_row(s->host_logits + (int64_t)work->rows[i].logit_row * vocab, vocab, &work->rows[i],
                   s->sample_scratch + (size_t)worker * s->sample_bytes, &work->out[i]);
    }
}

void cuda_sample(ops_step *s, const ops_sample *rows, int32_t count, ops_sampled *out)
{
    sampling work = {s, rows, out};
    read_logits(s);
    run(s, count, sample_rows, &work);
}

typedef struct verifying {
    ops_step *step;
    const ops_verify *sequences;
} verifying;

static void verify_sequences(void *arg, int64_t first, int64_t last, int worker)
{
    const verifying *work = arg;
    const ops_step *s = work->step;
    for (int64_t i = first; i < last; i++)
        host_verify(&s->limits, s->host_logits, s->logit_rows, s->backend->model->vocab, s->draft_logits,
                    &work->sequences[i], s->sample_scratch + (size_t)worker * s->sample_bytes);
}

void cuda_verify(ops_step *s, const ops_verify *sequences, int32_t count)
{
    verifying work = {s, sequences};
    read_logits(s);
    run(s, count, verify_sequences, &work);
}
