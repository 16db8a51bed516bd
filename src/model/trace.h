/*
 * What a model computes for given token ids, tensor by tensor, for comparison with another implementation.
 *
 * A trace has the tensors of an oracle file:
 *     input_ids int32 [T]; logit_rows int32 [R], prefill_logits [R, vocab]; hidden_rows int32 [N], hidden.L [N, hidden]
 *     (0 is the embedding, L the residual after layer L - 1, the last one after the final norm); blocks.L int32
 *     [T, index heads, k] selected blocks, ascending, -1 last, k the smaller of the model's top-k and the prompt's
 *     blocks; experts.L int32 [T, n] ascending, expert_weights.L [T, n]; greedy_ids int32 [S]: the largest logit after
 *     the prompt and after each fed token but the last; decode_logits [S, vocab] after feeding each token.
 */
#ifndef HAYATE_MODEL_TRACE_H
#define HAYATE_MODEL_TRACE_H

#include "checkpoint/safetensors.h"
#include "model/forward.h"

/* What to run. Arrays are owned; release with trace_plan_free. */
typedef struct trace_plan {
    int32_t *ids;         /* [id_count] the prompt */
    int32_t *logit_rows;  /* [logit_row_count] rows of the prompt, ascending */
    int32_t *hidden_rows; /* [hidden_row_count] */
    int32_t *feed;        /* [feed_count] tokens fed one by one after the prompt */
    size_t id_count, logit_row_count, hidden_row_count, feed_count;
} trace_plan;

/* From an oracle's input_ids, logit_rows, hidden_rows and greedy_ids. HY_BAD_MODEL: one is missing or wrong. */
hy_status trace_plan_like(const safetensors *oracle, trace_plan *plan, hy_error *err);
/* From a list of ids (copied); logits of every row, or of the last one. */
hy_status trace_plan_ids(const int32_t *ids, size_t count, bool last_only, trace_plan *plan, hy_error *err);
/* Ids from text: numbers separated by white space or commas, or a JSON list of numbers. HY_BAD_INPUT says where. */
hy_status trace_parse_ids(const char *text, size_t length, hy_ids *ids, hy_error *err);
void trace_plan_free(trace_plan *plan);

typedef struct trace_options {
    const safetensors *replay; /* its blocks.L and experts.L are imposed on the rows that it has; NULL: none */
    const int32_t *chunks;     /* [chunk_count] rows of the successive steps of the prompt, the last one repeats */
    size_t chunk_count;        /* 0: 512 rows a step */
    const forward_observer *observe; /* sees every step after the trace itself has; NULL: none */
    hy_progress_fn on_progress;
    void *user;
} trace_options;

typedef struct trace trace;

/* HY_BAD_INPUT: empty prompt or an id outside the vocabulary. HY_NO_FIT: longer than the model's limit. */
hy_status trace_run(const hy_model *model, const trace_plan *plan, const trace_options *options, trace **out,
                    hy_error *err);
void trace_close(trace *t);

size_t trace_count(const trace *t);
const tensor *trace_at(const trace *t, size_t i);
const tensor *trace_find(const trace *t, const char *name); /* NULL: not there */

/* Writes all tensors with the model's formats as metadata. */
hy_status trace_write(const trace *t, const char *path, hy_error *err);

#endif
