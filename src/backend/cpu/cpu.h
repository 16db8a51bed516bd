/*
 * The cpu backend: portable C on a thread pool, with the roundings of docs/numerics.md.
 *
 *     step.c      opening, closing, cache memory, the rows of a step, named tensors, embedding, head, sampling
 *     stages.c    the schedule of a step, in which operations record their loops
 *     weights.c   packed weights of the layers
 *     linear.c    packing of weights, products with them
 *     products.c, products_*, blocks.c, blocks_*, kernels.c, kernels_*  inner loops over weights, over cache blocks, and
 *                 what is left, in variants per instruction set with the same bits
 *     project.c   attend_in, attend_out
 *     cache_rows.c  keys and values into cache blocks and back
 *     index.c     block scores and selection
 *     attend.c    attention
 *     feed.c      router, experts, dense feed-forward
 *     draft.c     blocks of drafts: layers, head, Markov head; draft_context.c, draft_attend.c their context and attention
 *     stream.c    experts that are read as they are routed to; expert_store.c their cache, file_reads.c the reads
 *
 * Work is cut so that every output is made by one worker in one order: outputs of a projection in groups of 32, rows in
 * tiles. Rows of one tile belong to one sequence and share decoded cache blocks. Nothing is allocated in a step.
 */
#ifndef HAYATE_BACKEND_CPU_CPU_H
#define HAYATE_BACKEND_CPU_CPU_H

#include "backend/cpu/blocks.h"
#include "backend/cpu/draft.h"
#include "backend/cpu/expert_store.h"
#include "backend/file_reads.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/linear.h"
#include "backend/host.h"

enum {
    AHEAD_ROWS = 16,  /* rows of a step whose next experts are guessed */
    ROW_TILE = 2 * ATTEND_ROWS, /* rows of one sequence that share decoded cache blocks */
    INDEX_PARTS = 16, /* candidate lists that index_merge takes */
    ATTEND_OPEN = 2,  /* heads of rows a worker whose blocks are spread over the workers; see attend.c */
    STAGE_ARGUMENT = 192, /* bytes that a loop of a schedule may have as its argument */
};

typedef struct cpu_layer {
    float *input_gain, *post_gain; /* [hidden]: 1 + w, as are all gains */
    float *q_gain, *k_gain;        /* [head_dim] */
    float *index_q_gain, *index_k_gain; /* [index_dim] */
    cpu_linear q, k, v, o, index_q, index_k;
    cpu_linear dense_gate, dense_up, dense_down;
    cpu_linear router;
    float *router_bias; /* [experts] */
    cpu_linear *expert_gate, *expert_up, *expert_down; /* [experts] */
    cpu_linear shared_gate, shared_up, shared_down;    /* WEIGHT_NONE: no shared expert */
} cpu_layer;

struct ops_backend {
    const ops_model *model; /* borrowed */
    ops_options options;
    const cpu_kernels *kernels;
    const cpu_products *products;
    const cpu_blocks *blocks;
    threads *pool;    /* borrowed, or own_pool */
    threads *own_pool; /* of one worker, where the caller gave none */
    ops_step *recording; /* the step that has loops which have not run; NULL: none */
    cpu_layer *layer; /* [layers] */
    cpu_linear head;
    float *final_gain; /* [hidden] */
    cpu_drafter *drafter; /* NULL: none */
    expert_store *store; /* NULL: all experts are in memory */
    read_files *rows;    /* of embeddings, NULL: they are read through the map */
    float *frequency;  /* [rotary_dim / 2] */
};

/* Rows [first, first + count) of one sequence, at most ROW_TILE. */
typedef struct cpu_tile {
    int32_t first, count, sequence;
} cpu_tile;

/* Scratch of one worker. */
typedef struct cpu_worker {
    cpu_scratch product;
    float *keys;          /* [ceil(index_dim/16)][128][16]: index keys */
    float *query;         /* [ROW_TILE][head_dim][16]: queries of 16 heads in lanes */
    float *factor;        /* [ROW_TILE][16] of the queries */
    float *out;           /* [ROW_TILE][head_dim][16] */
    float *attend;        /* ATTEND_SCRATCH of a tile */
    float *score;         /* SCORE_SCRATCH of a tile's columns */
    int32_t *visible;     /* [ROW_TILE * index_heads] tokens of a block */
    float *best;          /* [ROW_TILE * index_heads] maxima of a block */
    cpu_softmax state[ROW_TILE];
    void *sample;         /* of sample and verify */
    uint8_t *embedding; /* one row as the file has it */
} cpu_worker;

struct ops_step {
    ops_backend *backend;
    ops_limits limits;
    int32_t max_blocks; /* ceil(limits.positions / 128) */
    ops_cache *cache;   /* of the running step, as `rows` */
    ops_rows rows;      /* count is 0 after an error */
    hy_error error;     /* of the running step */
    int32_t logit_rows;
    int index_layer;    /* whose blocks were scored last */

    cpu_tile *tiles; /* [T] */
    int32_t tile_count;

    float *x;             /* [T, hidden] residual */
    float *h;             /* [T, hidden] normed, bf16 values; of attention projections, then of router and experts */
    float *cosine, *sine; /* [T, rotary_dim / 2] */
    float *q;             /* [T, heads, head_dim], bf16 values */
    float *k, *v;         /* [T, kv_heads, head_dim] as projected; k is normed and turned on its way to the cache */
    float *index_q;       /* [T, index_heads, index_dim], bf16 values */
    float *index_k;       /* [T, index_dim] as projected */
    void *index_columns;  /* [T, index_heads, index_dim] queries as they are multiplied: int32 pairs (half of it) or float */
    float *index_unscale; /* [T, index_heads] what scores are then multiplied with */
    float *scores;        /* [T, index_heads, max_blocks] */
    uint64_t *candidates; /* [INDEX_PARTS, T, index_heads, index_top] keys, best first, 0: none */
    int32_t *blocks;      /* [T, index_heads, index_top] */
    float *attention;     /* [T, heads, head_dim], bf16 values */
    cpu_softmax *part_state; /* [parts]: of single blocks, then [open_parts] of their folds; see attend.c */
    float *part_out;         /* [parts + open_parts][head_dim][16] */
    int parts, open_parts;
    float *router;        /* [T, experts] sigmoids of the logits, padded to 16 */
    int32_t *routes;      /* [T, experts_per_token] */
    float *route_weights; /* [T, experts_per_token] */
    int32_t *expert_first; /* [experts + 1] where an expert's members begin */
    int64_t *glu_item;    /* [experts + 1] the first item of a SwiGLU: of an expert, last of the shared one */
    int32_t *members;     /* [T * experts_per_token]: row * experts_per_token + place, by expert, rows ascending */
    float *fp4_factor;    /* [T] of h as W4A4 experts read it */
    cpu_block4 *fp4_h;    /* [T, hidden / 16] h for NVFP4 experts */
    cpu_block4 *fp4_z;    /* [T * experts_per_token, expert_width / 16] z for NVFP4 experts */
    float *fp4;           /* [T, hidden] h decoded, for experts of other formats */
    float *z; /* SwiGLU outputs: [T * experts_per_token, expert_width] and [T, shared_width], or [T, dense_width] */
    float *sum;           /* [T, hidden] of the routed experts */
    float *apart;         /* [min(T, FEW_ROWS) * (experts_per_token + 1), hidden] outputs of members, then of the shared expert */
    int32_t *touched;     /* [experts] those that have rows, ascending */
    int32_t touched_count;
    float *ahead_h, *ahead_scores; /* [AHEAD_ROWS, hidden], [AHEAD_ROWS, experts] */
    int32_t *ahead_routes; /* [AHEAD_ROWS, experts_per_token] */
    int32_t *wanted;       /* [experts] */
    float *logits;        /* [R, vocab] */
    int32_t *logit_row;   /* [R] row of a logit row */
    float *draft_logits;  /* [drafts, draft_rows, vocab] L, kept for verify; none without limits.draft_laws */

    cpu_draft draft;      /* without limits.drafts nothing */

    cpu_worker *worker; /* [workers] */
    int workers;

    threads_stage stage[THREADS_MAX_STAGES]; /* loops that have not run */
    int stage_count;
    _Alignas(64) unsigned char stage_argument[THREADS_MAX_STAGES][STAGE_ARGUMENT];
};

/* ---- weights.c -------------------------------------------------------------------------------------------------- */

hy_status cpu_weights_open(ops_backend *backend, hy_error *err);
void cpu_weights_close(ops_backend *backend);
/* Fills in all but `step`. */
void cpu_weights_measure(const ops_model *model, bool stream, ops_memory *out);

/* ---- stages.c --------------------------------------------------------------------------------------------------- */

/* Adds a loop to the step's schedule: it waits for all before it, and takes one item at a time. Copies `size` bytes of
 * `arg`. The caller may change the stage until the schedule runs, and an earlier loop its `items` and argument. */
threads_stage *cpu_stage(ops_step *step, int64_t items, threads_fn fn, const void *arg, size_t size);
/* Loops that know of each other are in one schedule: makes sure that there is room for `stages`. */
void cpu_room(ops_step *step, int stages);
/* Runs the schedule. HY_CANCELLED is the error of a step whose pool was stopped (threads_watch). */
void cpu_flush(ops_step *step);
/* Runs what the calling thread has recorded for a step of this backend, if it has not run yet. */
void cpu_flush_own(const ops_backend *backend);
/* The step has failed: what follows does nothing, and finish returns the error. */
void cpu_fail(ops_step *step, const hy_error *err);
/* Forgets the schedule. */
void cpu_drop(ops_step *step);

/* ---- step.c ----------------------------------------------------------------------------------------------------- */

/* theta^(-2j / rotary_dim), the power rounded to fp32 before it divides, and the angles of a position: an fp32 product, as
 * the model was trained with; at positions of a million a double one differs. */
void cpu_frequencies(float theta, int rotary_dim, float *frequency);
void cpu_angles(int32_t position, const float *frequency, int pairs, float *cosine, float *sine);
/* step->h of rows [0, T) = bf16 RMSNorm of step->x. */
void cpu_norm_rows(ops_step *step, const float *gain);

/* ---- project.c -------------------------------------------------------------------------------------------------- */

/* One projection of several that share their input: out [T, w.rows]. */
typedef struct cpu_output {
    const cpu_linear *w;
    float *out;
} cpu_output;

enum { MAX_OUTPUTS = 5 };

/* Up to MAX_OUTPUTS projections of x [count, K] in one pass over the pool. */
threads_stage *cpu_project(ops_step *step, const cpu_output *outputs, int n, const float *x, int32_t count);
/* x [count, w.rows] += w . in, K in eight slices. */
void cpu_project_onto(ops_step *step, const cpu_linear *w, const float *in, int32_t count, float *x);
/* The same for all rows of the step onto step->x. */
void cpu_project_residual(ops_step *step, const cpu_linear *w, const float *in);
/* y_j = x_j cos - x_{j+half} sin;  y_{j+half} = x_{j+half} cos + x_j sin. */
void cpu_rotate(float *x, const float *cosine, const float *sine, int half);
/* Groups that one item takes, so that `groups` groups times `tiles` row tiles keep all workers busy. */
int cpu_groups_per_item(const ops_step *step, int64_t groups, int64_t tiles);
/* The routed experts of a layer take 4-bit inputs as integers: all of them are NVFP4, and so are activations. */
bool cpu_experts_block4(const ops_backend *backend, int layer);

void cpu_attend_in(ops_step *step, int layer);
void cpu_attend_out(ops_step *step, int layer);

/* ---- cache_rows.c ----------------------------------------------------------------------------------------------- */

typedef enum cpu_cached { CACHED_KEY, CACHED_VALUE, CACHED_INDEX } cpu_cached;
/* Writes one vector of a token: of KV head `head`, or its index key. */
void cpu_cache_store(const ops_cache *cache, int layer, int64_t slot, cpu_cached kind, int head, const float *x);
/* Whether keys of a format are multiplied as integers (see blocks.h). */
bool cpu_cache_pairs(const ops_cache *cache, cache_format format);
/* One KV head of a block; block `next` (-1: none) is asked for as this one is attended to. */
cpu_block cpu_cache_head(const ops_cache *cache, int layer, int head, int32_t block, int32_t next);
/* score_pairs or score_keys of blocks.h, as the format asks, on one block of index keys; block `next` (-1: none) is asked for.
 * `keys` [ceil(index_dim/16)][128][16] and `scratch` are theirs. */
void cpu_cache_score(const ops_cache *cache, int layer, int32_t block, int32_t next, const void *query, int columns,
                     const int32_t *visible, float *best, float *keys, float *scratch);
/* The drafter's part: key and value of a token; one KV head of a block from token `first` on. */
void cpu_cache_store_draft(const ops_cache *cache, int layer, int64_t slot, int head, const float *key, const float *value);
cpu_block cpu_cache_draft(const ops_cache *cache, int layer, int head, int32_t block, int first, int32_t next);
/* The cache block of logical block b of a sequence. */
int32_t cpu_cache_block(const ops_step *step, int32_t sequence, int32_t b);

/* ---- index.c, attend.c, feed.c ---------------------------------------------------------------------------------- */

void cpu_index_score(ops_step *step, int layer, int32_t first, int32_t count);
void cpu_index_top(ops_step *step, int32_t part, int32_t first, int32_t count);
void cpu_index_merge(ops_step *step, int32_t parts);
void cpu_index_select(ops_step *step, int layer);
void cpu_attend(ops_step *step, int layer);
void cpu_route(ops_step *step, int layer);
void cpu_experts(ops_step *step, int layer);
void cpu_feed_dense(ops_step *step, int layer);
/* The best experts of one row by s + bias in ascending number. */
void cpu_choose_experts(const float *s, const float *bias, int experts, int count, int32_t *routes);

/* ---- draft.c, draft_context.c, draft_attend.c ------------------------------------------------------------------- */

void cpu_draft_tap(ops_step *step, int tap);
void cpu_draft_context(ops_step *step);
void cpu_draft_blocks(ops_step *step, const ops_draft *sequences, int32_t count);
/* The step's memory for drafts, or with `bytes` only what it takes. */
hy_status cpu_draft_open(ops_step *step, uint64_t *bytes, hy_error *err);
void cpu_draft_close(ops_step *step);
/* draft.attention of the slice's rows from draft.q and draft.own. */
void cpu_draft_attend(ops_step *step, int layer);

/* ---- stream.c --------------------------------------------------------------------------------------------------- */

/* Opens the store over the layers, whose experts have shapes and no data. */
hy_status cpu_stream_open(ops_backend *backend, hy_error *err);
/* Asks for the experts that the step's rows go to, and for those that the next layer seems to need. */
void cpu_stream_want(ops_step *step, int layer);
/*
 * Experts in groups, in ascending number: [*first, *last) are there and are the next that have rows. Without a store there
 * is one group of all. False: no more, or the step has failed. Every group ends with cpu_stream_done.
 */
typedef struct cpu_batch {
    int first, last;  /* experts */
    bool begins, ends; /* the first group, the last one */
    int from, until, count; /* places among the wanted; how many are wanted */
} cpu_batch;
bool cpu_stream_next(ops_step *step, cpu_batch *batch);
void cpu_stream_done(ops_step *step, const cpu_batch *batch);
/* Row `token` of an embedding (or of markov_in), from its file if backend->rows, and then by the thread that drives the step
 * alone. False: the step has failed. */
bool cpu_embedding_row(ops_step *step, const weight *embed, int32_t token, uint8_t *scratch, float *out);
size_t cpu_embedding_scratch(const ops_model *model);

#endif
