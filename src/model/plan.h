/*
 * Will it fit: weights, cache and sequences of a machine as arithmetic over shapes, before anything is read.
 *
 *     usable    = memory * utilisation                                   per rank
 *     cache     = usable - weights - workspace                           per rank
 *     per token = main + index + draft bytes that one token of a sequence takes on a rank
 *     sequences = floor(cache / (tokens * per token))                    tokens: max_model_len in whole blocks of 128
 *                 times the number of ranks under dep, where a sequence lives on one rank
 *
 * How the ranks share:
 *   single  one rank holds everything.
 *   dep N   attention data parallel, experts expert parallel: routed experts are divided (a rank holds at most
 *           ceil(experts / N) of each layer), everything else is there N times. A sequence lives on one rank.
 *   tp N    heads, widths, experts and the vocabulary are divided, KV heads are repeated where N is larger than their
 *           number; norms, routers, index projections and the vision tower are there N times. Keys and values are
 * divided by KV heads, index keys are there N times. Every sequence lives on all ranks.
 *
 * With streamed weights (one rank) routed experts stay in the files, as do the embedding, of which rows are read, and the vision
 * tower, which the CPU does not run; a drafter is whole in memory. The figures are those of the engine: bytes of weights as the
 * CPU keeps them, its workspace, its cache where no length is asked for, one sequence otherwise; what remains is the cache of
 * experts, which must hold those of two layers of one token.
 *
 * No constant here is fitted to a measured number.
 */
#ifndef HAYATE_MODEL_PLAN_H
#define HAYATE_MODEL_PLAN_H

#include "backend/ops.h"
#include "checkpoint/layout.h"

typedef enum plan_parallel { PLAN_SINGLE, PLAN_TP, PLAN_DEP } plan_parallel;

#define PLAN_UTILISATION 0.92 /* the default of --gpu-memory-utilization */
enum { PLAN_STEP_ROWS = 8192, PLAN_LOGIT_ROWS = 256 };

typedef struct plan_input {
    const config *model;
    layout_scheme scheme;
    const draft_config *drafter; /* NULL: none */
    int64_t extra_bytes; /* tensors of a real checkpoint beyond (or, negative, short of) the layout; replicated */
    plan_parallel parallel;
    int ranks;
    bool stream;            /* routed experts are read as they are needed; PLAN_SINGLE */
    uint64_t memory;        /* bytes of one rank's device */
    double utilisation;     /* (0, 1] of it that may be used */
    uint64_t max_model_len; /* tokens of a sequence; 0: the config's */
    uint64_t step_rows;     /* rows of a step, for the workspace; 0: PLAN_STEP_ROWS, with `stream` MODEL_DEFAULT_ROWS */
    int sequences;          /* that run at once, for the logits of a step with `stream`; 0: 1 */
    uint64_t program;       /* bytes of the process without weights, with `stream` */
    uint64_t workspace;     /* bytes per rank; 0: plan_workspace() */
    cache_format main, index, draft;
} plan_input;

typedef struct plan_result {
    /* bytes of one token of a sequence, over all ranks that hold the sequence */
    uint64_t kv_bytes_per_token, index_bytes_per_token, draft_bytes_per_token;
    uint64_t token_bytes_per_rank; /* the part of the three that one rank holds */
    /* weights */
    uint64_t divided_bytes;     /* of one copy: what the ranks share out */
    uint64_t replicated_bytes;  /* of one copy: what every rank holds */
    uint64_t drafter_bytes;     /* of one copy; part of the two above */
    uint64_t rank_weight_bytes; /* on the fullest rank */
    uint64_t weight_bytes;      /* over all ranks */
    uint64_t parameters;        /* logical, drafter not counted */
    /* streamed experts; 0 without */
    uint64_t streamed_bytes, expert_bytes; /* of all routed experts, of one */
    uint64_t experts, expert_slots;        /* of all layers; that the cache holds */
    uint64_t token_expert_bytes;           /* of the experts that one token is routed to */
    uint64_t program_bytes, reader_bytes;  /* of the process with what is not counted, of the buffers of readers */
    /* memory */
    uint64_t usable_bytes;     /* per rank */
    uint64_t workspace_bytes;  /* per rank */
    uint64_t rank_cache_bytes; /* what remains on the fullest rank; 0 when nothing does */
    uint64_t cache_bytes;      /* over all ranks */
    uint64_t missing_bytes;    /* per rank, for weights, workspace and one sequence; 0: it fits */
    /* sequences */
    uint64_t tokens;              /* of one sequence, in whole blocks */
    uint64_t sequence_bytes;      /* of one sequence on one rank */
    uint64_t sequences_per_group; /* a group: the ranks that hold a sequence */
    uint64_t sequences;
    uint64_t longest; /* tokens of the longest single sequence that fits */
} plan_result;

/* HY_USAGE: a rank count, utilisation or format that makes no sense. A plan that does not fit is HY_OK with
 * missing_bytes set and no sequences. */
hy_status plan_compute(const plan_input *in, plan_result *out, hy_error *err);

/* The rest of plan_compute with `stream`, where file sizes, bytes of a token and usable_bytes are there already. */
hy_status plan_stream(const plan_input *in, plan_result *out, hy_error *err);

/*
 * Bytes of one rank's step tensors: for every row residual fp32, normed input, queries, attention output, keys, values,
 * index queries and keys in bf16, gate, up and product of the widest feed-forward in bf16, an output in bf16 for each
 * expert of the row; and fp32 logits of PLAN_LOGIT_ROWS rows. Experts are assumed to be chosen evenly.
 */
uint64_t plan_workspace(const plan_input *in);

/* Bytes of one rank's device that give `sequences` at the plan's utilisation 1: weights + workspace + their cache. */
uint64_t plan_needed(const plan_input *in, const plan_result *r, uint64_t sequences);

/* The formats that `auto` means for a scheme: nvfp4 for M3.1, fp8 for the other quantised ones, bf16 for bf16. */
cache_format plan_auto_format(layout_scheme scheme);

/* A published number of concurrent sequences, to be set beside ours. */
typedef struct plan_announced {
    const char *name; /* known geometry */
    cache_format main;
    plan_parallel parallel;
    int ranks;
    uint64_t memory, tokens, sequences;
} plan_announced;
/* vLLM's announcement of M3.1-Flash support: 76 and 28 sequences of 256K on four GPUs of 288 GB at dep4. NULL: none. */
const plan_announced *plan_find_announced(const char *name, const plan_input *in);

#endif
