/*
 * --speculative-config: what a command line says about drafts, from JSON to the options of model and engine.
 *
 *     speculation_read      the members, checked; all that can be told wrong without a model
 *     speculation_find      before the model is opened: its drafter's block, the table of drafts by batch
 *     speculation_settle    once it is open: the table of "auto" without a file, from the cost model
 *
 * Members are those of `vllm serve` (docs/speculation.md); our own are draft_table and confidence_threshold, and the
 * rejection_sample_method "coupled", which is the default.
 */
#ifndef HAYATE_CLI_SPECULATION_H
#define HAYATE_CLI_SPECULATION_H

#include <jansson.h>

#include "cli/find_model.h"
#include "hayate.h"

enum { SPECULATION_BATCHES = 1024 }; /* most that a table tells apart */

typedef struct speculation {
    bool given;      /* drafts were asked for */
    bool automatic;  /* num_speculative_tokens is auto: they follow the batch */
    int drafts;      /* 0: as many as the drafter's block */
    const char *method, *cache_dtype; /* constants */
    bool greedy;
    float confidence;
    double length;                    /* synthetic_acceptance_length; 0: not given */
    int rate_count;                   /* synthetic_acceptance_rates; 0: not given */
    float rates[HY_MAX_DRAFTS];
    int by_batch_count, by_batch[SPECULATION_BATCHES]; /* 0: none */
    char idle[160];                   /* members that were given and have no effect here, with commas */
    char model[FIND_PATH_SIZE];       /* "on", or where the drafter is */
    char table[FIND_PATH_SIZE];       /* draft_table; "": none */
} speculation;

/* `ranks` is what draft_tensor_parallel_size may be, beside 1. -1, or 2 after an error that is printed. */
int speculation_read(const char *command, const json_t *given, int64_t ranks, speculation *out);
/* The same from a word of the command line. */
int speculation_parse(const char *command, const char *text, speculation *out);

/* `folder` is the model's. Fills drafter and draft_cache_dtype of `model` and speculation of `engine`, which borrow from `s`;
 * without drafts neither is touched. HY_USAGE: more drafts than the block has, no drafter, a table that is none. */
hy_status speculation_find(speculation *s, const char *folder, hy_model_options *model, hy_engine_options *engine,
                           hy_error *err);
/* Changes engine->speculation alone. `most` sequences run at once. */
void speculation_settle(speculation *s, const hy_model *model, int most, hy_engine_options *engine);

/* The rates of an acceptance length (the target's token included) with the least variance: as many whole drafts as it has,
 * a part of the next one. */
void speculation_rates(double length, int drafts, float rates[HY_MAX_DRAFTS]);

/* A table of drafts by batch as text: {"hayate_draft_table": 1, "batch": [1, 4, 16], "drafts": [7, 3, 0]}, drafts[i] up to
 * batch[i] sequences, the last for more. HY_USAGE names what is wrong. */
hy_status speculation_table_read(const char *path, int drafts, speculation *s, hy_error *err);

#endif
