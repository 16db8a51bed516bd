/*
 * The reference backend: every operation of backend/ops.h in plain fp32, which defines the answer.
 *
 * Nothing here is fast on purpose and nothing is rounded but what the contract rounds: what enters a cache other than
 * fp32 (to bf16, then to its format), activations of W4A4 experts, and queries when e4m3 is asked for. Every product
 * sum in the network is one function, reference_dot; threads share out rows or outputs, so that each sum is made by
 * one of them in one order.
 *
 *     step.c         opening and closing, the rows of a step, named tensors, embedding, head, sampling
 *     linear.c       dot products and projections
 *     norm_rotary.c  RMSNorm and rotary position embedding
 *     cache_rows.c   keys, values and index keys into and out of cache blocks
 *     attention.c    attend_in, attend, attend_out
 *     index.c        block scores and selection
 *     experts.c      router, experts, dense feed-forward
 *     drafter.c      draft_tap, draft_context, draft
 */
#ifndef HAYATE_BACKEND_REFERENCE_H
#define HAYATE_BACKEND_REFERENCE_H

#include "backend/host.h"

enum {
    REFERENCE_TILE = 16,  /* outputs that a dot product makes side by side, each a chain of its own */
    REFERENCE_PARTS = 16, /* spans that index_merge can join */
};

struct ops_backend {
    const ops_model *model; /* borrowed */
    ops_options options;
    float *frequency; /* [rotary_dim / 2] */
    float *draft_frequency; /* [drafter rotary_dim / 2] */
    size_t max_width; /* inputs of the widest projection */
    int workers;
};

/* A block that may be selected. */
typedef struct reference_candidate {
    float score;
    int32_t block; /* -1: none */
    bool forced;
} reference_candidate;

/* The drafter's tensors of a step; G = limits.draft_rows, D = limits.drafts. A block of drafts is one sequence's. */
typedef struct reference_draft {
    float *taps;            /* [T, taps, hidden] */
    float *c;               /* [T, hidden] */
    float *x, *normed, *y;  /* [G, hidden] */
    float *q, *attention;   /* [G, heads, head_dim] */
    float *k, *v;           /* [T or G, kv_heads, head_dim]: of the context, of a block */
    float *cosine, *sine;   /* [T or G, rotary_dim / 2] */
    float *gate, *up;       /* [G, width] */
    float *h;               /* [D, G, hidden] */
    float *logits;          /* [G, vocab] U of the running block */
    float *follow, *markov; /* [vocab], [rank]: of the token before */
    float *confidence;      /* [hidden + rank] decoded */
} reference_draft;

struct ops_step {
    ops_backend *backend;
    ops_limits limits;
    int32_t max_blocks; /* of the longest sequence */
    ops_cache *cache;   /* of the running step, as `rows` */
    ops_rows rows;      /* count is 0 after an error */
    int32_t logit_rows;
    int index_layer; /* whose scores are in `scores` */
    hy_error error;  /* of the running step */

    float *x;                        /* [T, hidden] */
    float *normed;                   /* [T, hidden] input of attention projections */
    float *cosine, *sine;            /* [T, rotary_dim / 2] */
    float *q;                        /* [T, heads, head_dim] */
    float *k, *v;                    /* [T, kv_heads, head_dim] */
    float *index_q;                  /* [T, index_heads, index_dim] */
    float *index_k;                  /* [T, index_dim] */
    float *scores;                   /* [T, index_heads, max_blocks] */
    reference_candidate *candidates; /* [REFERENCE_PARTS, T, index_heads, index_top] */
    int32_t *blocks;                 /* [T, index_heads, index_top] */
    float *attention;                /* [T, heads, head_dim] */
    float *h;                        /* [T, hidden] input of router and experts */
    float *router;                   /* [T, experts] logits */
    int32_t *routes;                 /* [T, experts_per_token] */
    float *route_weights;            /* [T, experts_per_token] */
    int32_t *members;                /* [T] rows of one expert */
    float *member_factor;            /* [T] outer factor of a quantised activation row */
    float *gathered;                 /* [T, hidden] */
    float *gate, *up;                /* [T, widest of the feed-forward widths] */
    float *y;                        /* [T, hidden] output of a projection */
    float *sum;                      /* [T, hidden] of the routed experts */
    float *logits;                   /* [R, vocab] */
    float *draft_logits;             /* [drafts, draft_rows, vocab] L, kept for verify; none without limits.draft_laws */
    float *scratch;                  /* [workers, scratch_floats] */
    size_t scratch_floats;
    void *sample_scratch;
    reference_draft draft; /* NULLs without a drafter or limits.drafts */
};

/* Runs fn over the items with the borrowed pool; without one, here. Scratch of worker w: reference_scratch. */
void reference_parallel(const ops_step *step, int64_t items, threads_fn fn, void *arg);
float *reference_scratch(const ops_step *step, int worker);

/* ---- linear.c ------------------------------------------------------------------------------------------------- */

/*
 * acc[j] += x[i] * tile[i][j] for i = 0 .. n-1 in ascending order, one product and one sum at a time: the chain of
 * every dot product. tile [n, REFERENCE_TILE] holds the other operands side by side.
 */
void reference_dot(const float *x, const float *tile, int64_t n, float acc[REFERENCE_TILE]);

/* matrix [rows, cols] into tiles [ceil(rows / 16), cols, 16], so that reference_dot sums over the columns. */
void reference_tiles(const float *matrix, int64_t rows, int64_t cols, float *tiles);

/* out [count, w.rows] = in [count, w.cols] . w^T, one chain over the columns. */
void reference_linear(const ops_step *step, const weight *w, const float *in, int32_t count, float *out);
/* The same with the columns in eight slices (see reference_slice), for projections that ranks may split. */
void reference_linear_sliced(const ops_step *step, const weight *w, const float *in, int32_t count, float *out);
/* Columns [*begin, *end) of slice i of 8 over `cols` columns, in groups of 32. */
void reference_slice(int64_t cols, int i, int64_t *begin, int64_t *end);

/* ---- norm_rotary.c -------------------------------------------------------------------------------------------- */

/* out = x / sqrt(mean(x^2) + eps) * (1 + w). out may be x. gain is a weight of n columns, or decoded [n]. */
void reference_rms_norm(const float *x, const float *gain, int n, float eps, float *out);
/* The same with `gain` in place of 1 + gain. */
void reference_rms_norm_plain(const float *x, const float *gain, int n, float eps, float *out);
void reference_rms_norm_rows(const ops_step *step, const float *x, const weight *gain, float *out); /* [T, hidden] */
/* frequency_j = 1 / theta^(2j / rotary_dim). */
void reference_rotary_frequencies(float theta, int rotary_dim, float *frequency);
/* Pairs (j, j + rotary_dim/2) of x are turned by the row's angles; dims from rotary_dim on stay. */
void reference_rotate(float *x, const float *cosine, const float *sine, int rotary_dim);
/* Tables of the rows' positions. */
void reference_rotary_tables(ops_step *step);

/* ---- cache_rows.c --------------------------------------------------------------------------------------------- */

/* Writes K and V, and on sparse layers the index keys, of all rows that have a slot. */
void reference_cache_store(ops_step *step, int layer);
/* Tokens [0, tokens) of a block as fp32. */
void reference_cache_keys(const ops_cache *cache, int layer, int head, int32_t block, int tokens, float *out);
void reference_cache_values(const ops_cache *cache, int layer, int head, int32_t block, int tokens, float *out);
void reference_cache_index_keys(const ops_cache *cache, int layer, int32_t block, int tokens, float *out);
/* The cache block of logical block b of row t. */
int32_t reference_cache_block(const ops_step *step, int32_t t, int32_t b);
/* The drafter's part: K and V [T, kv_heads, head_dim] of all rows that have a slot; tokens [0, tokens) of a block. */
void reference_cache_draft_store(ops_step *step, int layer, const float *k, const float *v);
void reference_cache_draft_keys(const ops_cache *cache, int layer, int head, int32_t block, int tokens, float *out);
void reference_cache_draft_values(const ops_cache *cache, int layer, int head, int32_t block, int tokens, float *out);

/* ---- experts.c ------------------------------------------------------------------------------------------------ */

/* out = (min(max(up, -limit), limit) + 1) * g * sigmoid(alpha * g), g = min(gate, limit). out may be gate. */
void reference_swiglu(const float *gate, const float *up, int64_t n, float alpha, float limit, float *out);

/* ---- drafter.c ------------------------------------------------------------------------------------------------ */

hy_status reference_draft_open(ops_step *step, hy_error *err); /* memory; closed with the step, also on failure */
void reference_draft_close(ops_step *step);

/* ---- the operations ------------------------------------------------------------------------------------------- */

void reference_attend_in(ops_step *step, int layer);
void reference_attend(ops_step *step, int layer);
void reference_attend_out(ops_step *step, int layer);
void reference_index_score(ops_step *step, int layer, int32_t first, int32_t count);
void reference_index_top(ops_step *step, int32_t part, int32_t first, int32_t count);
void reference_index_merge(ops_step *step, int32_t parts);
void reference_index_select(ops_step *step, int layer);
void reference_route(ops_step *step, int layer);
void reference_experts(ops_step *step, int layer);
void reference_feed_dense(ops_step *step, int layer);
void reference_draft_tap(ops_step *step, int tap);
void reference_draft_context(ops_step *step);
void reference_draft_block(ops_step *step, const ops_draft *sequences, int32_t count);

/* Floats of scratch that a worker needs in linear.c, attention.c, index.c and drafter.c. */
size_t reference_linear_scratch(const ops_backend *backend);
size_t reference_attention_scratch(const ops_backend *backend);
size_t reference_index_scratch(const ops_backend *backend);
size_t reference_draft_scratch(const ops_backend *backend);

#endif
