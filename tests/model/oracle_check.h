/*
 * A backend against an oracle: how far the logits are, how many selections and routes differ, which greedy ids.
 *
 * An oracle may be cut to its first tokens, since no row depends on what follows it.
 */
#ifndef TESTS_MODEL_ORACLE_CHECK_H
#define TESTS_MODEL_ORACLE_CHECK_H

#include "model/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct oracle_result {
    double median, p90;            /* relative L2 error of the logits, over rows of the prompt and fed tokens */
    size_t lists, lists_different; /* selected blocks and routes, of every row (and group) and layer */
    size_t greedy_different;
    double weight_error; /* largest difference of an expert's weight where the routes are equal */
} oracle_result;

/* Bounds for a backend that computes in fp32: without and with quantised caches and weights. */
typedef struct oracle_bounds {
    double median, p90, lists_different; /* of all lists, 0 .. 1 */
} oracle_bounds;

static const oracle_bounds oracle_fp32 = {1e-5, 1e-4, 0}, oracle_quantised = {1e-3, 4e-2, 0.005};

static inline bool oracle_is_quantised(const char *name)
{
    return strncmp(name, "m31", 3) == 0;
}

static inline bool oracle_within(const oracle_result *r, const oracle_bounds *b)
{
    return r->median <= b->median && r->p90 <= b->p90 && r->greedy_different == 0 &&
           (double)r->lists_different <= b->lists_different * (double)r->lists;
}

static inline int oracle_compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Relative L2 errors of `rows` rows; NaN counts as infinite. */
static inline void oracle_row_errors(const float *got, const float *wanted, size_t rows, size_t columns, double *errors)
{
    for (size_t r = 0; r < rows; r++) {
        double error = 0, norm = 0;
        for (size_t i = 0; i < columns; i++) {
            double a = got[r * columns + i], b = wanted[r * columns + i];
            error += (a - b) * (a - b), norm += b * b;
        }
        errors[r] = sqrt(error / norm);
        if (isnan(errors[r])) errors[r] = INFINITY;
    }
}

/* The oracle's tensor in aligned memory, free() it. */
static inline void *oracle_values(const safetensors *file, const char *name)
{
    const tensor *t = safetensors_find(file, name);
    void *copy = t ? malloc(t->bytes) : NULL;
    if (copy) memcpy(copy, t->data, t->bytes);
    return copy;
}

/* Lists of int32 of the first rows; a cut prompt has fewer blocks, so that lists of the trace may be shorter. */
static inline void oracle_compare_lists(const tensor *got, const tensor *wanted, oracle_result *r)
{
    size_t k = (size_t)got->shape[got->dims - 1], wide = (size_t)wanted->shape[wanted->dims - 1];
    size_t lists = got->bytes / 4 / k;
    const int32_t *a = got->data;
    for (size_t i = 0; i < lists; i++) {
        int32_t b[64];
        memcpy(b, (const char *)wanted->data + i * wide * 4, wide * 4);
        bool same = memcmp(a + i * k, b, k * 4) == 0;
        for (size_t j = k; j < wide; j++) same = same && b[j] == -1;
        r->lists_different += !same;
    }
    r->lists += lists;
}

static inline void oracle_compare_weights(const trace *t, const safetensors *oracle, int layer, oracle_result *r)
{
    char experts[32], weights[32];
    snprintf(experts, sizeof experts, "experts.%d", layer);
    snprintf(weights, sizeof weights, "expert_weights.%d", layer);
    const tensor *e = trace_find(t, experts), *w = trace_find(t, weights);
    int32_t *wanted_e = oracle_values(oracle, experts);
    float *wanted_w = oracle_values(oracle, weights);
    size_t k = (size_t)e->shape[1];
    for (size_t i = 0; i < (size_t)e->shape[0]; i++) {
        if (memcmp((const int32_t *)e->data + i * k, wanted_e + i * k, k * 4)) continue;
        for (size_t j = i * k; j < (i + 1) * k; j++)
            r->weight_error = fmax(r->weight_error, fabs((double)((const float *)w->data)[j] - (double)wanted_w[j]));
    }
    free(wanted_e);
    free(wanted_w);
}

static inline void oracle_compare(const trace *t, const trace_plan *plan, const safetensors *oracle, int vocab,
                                  oracle_result *r)
{
    size_t rows = plan->logit_row_count, fed = plan->feed_count, all = rows + fed;
    float *logits = oracle_values(oracle, "prefill_logits"), *decode = oracle_values(oracle, "decode_logits");
    double *errors = calloc(all, sizeof *errors);
    oracle_row_errors(trace_find(t, "prefill_logits")->data, logits, rows, (size_t)vocab, errors);
    if (fed) oracle_row_errors(trace_find(t, "decode_logits")->data, decode, fed, (size_t)vocab, errors + rows);
    qsort(errors, all, sizeof *errors, oracle_compare_doubles);
    r->median = errors[all / 2], r->p90 = errors[all * 9 / 10];
    const int32_t *greedy = trace_find(t, "greedy_ids")->data;
    for (size_t i = 0; i < fed; i++) r->greedy_different += greedy[i] != plan->feed[i];
    for (size_t i = 0; i < trace_count(t); i++) {
        const tensor *got = trace_at(t, i);
        int layer = 0;
        if (sscanf(got->name, "blocks.%d", &layer) == 1 || sscanf(got->name, "experts.%d", &layer) == 1)
            oracle_compare_lists(got, safetensors_find(oracle, got->name), r);
        if (sscanf(got->name, "expert_weights.%d", &layer) == 1) oracle_compare_weights(t, oracle, layer, r);
    }
    free(errors);
    free(logits);
    free(decode);
}

/* The first `tokens` of the prompt and nothing fed; the whole oracle for 0. */
static inline void oracle_cut(trace_plan *plan, size_t tokens)
{
    if (!tokens || tokens >= plan->id_count) return;
    plan->id_count = tokens;
    while (plan->logit_row_count && (size_t)plan->logit_rows[plan->logit_row_count - 1] >= tokens)
        plan->logit_row_count--;
    plan->hidden_row_count = plan->feed_count = 0;
}

/*
 * Runs `name` of `folder` with the oracle's numerics. `replay` imposes its selections and routes. `observe` may be
 * NULL. HY_OK and *out, or what failed.
 */
static inline hy_status oracle_run(const char *folder, const char *name, const char *backend, size_t tokens,
                                   bool replay, const forward_observer *observe, oracle_result *out, hy_error *err)
{
    char path[512];
    safetensors *oracle = NULL;
    trace_plan plan = {0};
    hy_model *model = NULL;
    trace *t = NULL;
    snprintf(path, sizeof path, "%s/%s/oracle.safetensors", folder, name);
    hy_status status = safetensors_open(path, &oracle, err);
    if (status == HY_OK) status = trace_plan_like(oracle, &plan, err);
    if (status == HY_OK) {
        oracle_cut(&plan, tokens);
        hy_model_options options = {.backend = backend,
                                    .kv_cache_dtype = safetensors_metadata(oracle, "kv_cache_dtype"),
                                    .indexer_kv_dtype = safetensors_metadata(oracle, "indexer_kv_dtype"),
                                    .readback = safetensors_metadata(oracle, "readback"),
                                    .moe_activation = safetensors_metadata(oracle, "moe_activation")};
        snprintf(path, sizeof path, "%s/%s", folder, name);
        status = hy_model_open(path, &options, &model, err);
    }
    trace_options options = {.replay = replay ? oracle : NULL, .observe = observe};
    if (status == HY_OK) status = trace_run(model, &plan, &options, &t, err);
    if (status == HY_OK) {
        *out = (oracle_result){0};
        oracle_compare(t, &plan, oracle, model_ops_model(model)->vocab, out);
    }
    trace_close(t);
    hy_model_close(model);
    trace_plan_free(&plan);
    safetensors_close(oracle);
    return status;
}

#endif
