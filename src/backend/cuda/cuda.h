/*
 * The CUDA backend: private to this folder and its tests.
 *
 *     gpu.h, driver.c    a GPU: memory, kernels by name; launches.c: launches, and graphs of them; driver_api.c: the driver
 *                        loaded at run time
 *     backend.c          ops_cuda: opening and closing, what it refuses
 *     measure.c          memory by arithmetic
 *     bench.h, bench.c   what a GPU can do and how long launches take, for hayate bench
 *     weights.c          weights into the GPU's memory; upload.c: from files and the host's memory, many pieces at once
 *     cache.c            blocks in the GPU's memory
 *     step.c             a step: rows and tensors, begin, finish, launches
 *     tensors.c          tensor_read and tensor_write
 *     linear.c           embed, norms and projections, head
 *     attend.c           attend_in, index_*, attend, attend_out; prefill.c: scores and attention of many rows on Hopper
 *     feed.c             route, experts, feed_dense
 *     sample.c           sample and verify
 *     draft.c            the drafter's operations
 *     sample_rows.c      the chain of sampling on the GPU, for rows that ask for nothing rare
 *     kernels/           CUDA C, built ahead and carried in the program; kernel.cuh says how they are written
 *
 * A step's tensors are what the reference's are, fp32 and row-major, and beside them bf16 copies of what enters a
 * projection. An operation checks nothing: begin did, and after an error a step has no rows.
 */
#ifndef HAYATE_BACKEND_CUDA_CUDA_H
#define HAYATE_BACKEND_CUDA_CUDA_H

#include <pthread.h>
#include <stdatomic.h>

#include "backend/cuda/gpu.h"
#include "backend/cuda/kernels/args.h"
#include "backend/host.h" /* struct ops_cache too, whose data is the device's here */

typedef struct cuda_layer {
    kernel_weight input_norm, post_norm, q, k, v, o, q_norm, k_norm;
    kernel_weight index_q, index_k, index_q_norm, index_k_norm;
    kernel_weight dense_gate, dense_up, dense_down;
    kernel_weight router, router_bias;
    /* Experts lie one behind the other: expert e of a weight is at data + e * expert_bytes[i], scales + e *
     * expert_scale_bytes[i], i of gate, up, down; the factors are in device memory. cuda_feed_prepare may put them into another
     * order. */
    kernel_weight gate, up, down;
    int64_t expert_bytes[3], expert_scale_bytes[3];
    const float *factors[3]; /* device, [experts] */
    kernel_weight shared_gate, shared_up, shared_down;
} cuda_layer;

typedef struct cuda_draft_layer {
    kernel_weight input_norm, post_norm, q, k, v, o, q_norm, k_norm, gate, up, down;
} cuda_draft_layer;

/* While weights are loaded, weights.c's. */
struct cuda_loading {
    struct upload *upload; /* owned */
    const void *tables;    /* device, of made weights */
    uint64_t made, reported; /* bytes */
};

struct ops_backend {
    const ops_model *model; /* borrowed */
    ops_options options;
    gpu *gpu; /* owned */
    gpu_info info;
    bool prefill_alike; /* neighbouring rows chose alike in the step before: which form prefill.c takes */
    int64_t prefill_pairs_units; /* from so many rows and KV heads on lists are attended to with packed blocks, where that pays */
    int wgmma_tried;     /* trial.c */
    atomic_bool running; /* a step is between begin and finish, driven by thread `driver` */
    pthread_t driver;
    kernel_weight embed, head, final_norm;
    cuda_layer *layer; /* [layers] */
    kernel_weight draft_fc, draft_hidden_norm, draft_final_norm, draft_embed, draft_head, markov_in, markov_out,
        confidence, confidence_bias;
    cuda_draft_layer *draft_layer; /* [drafter layers] or NULL */
    const float *frequency, *draft_frequency; /* device, [rotary_dim / 2] */
    /* For comparisons in tests: experts in launches of their own; kernels/moe.h's `late`; none by warpgroups. */
    bool apart, late, narrow;
    void **owned; /* device memory of all weights, [owned_count] */
    size_t owned_count, owned_room;
    uint64_t weight_bytes;
    struct cuda_loading *loading; /* NULL otherwise */
    ops_loaded loaded;
};

/* sample.c's lists, host: rows that the GPU picks and what it picked; what is left to the host. What was asked for last
 * and is not answered yet: `count` of `rows` into `out`, or of `sequences`; `picked` rows in all, in that order. */
typedef struct cuda_picks {
    const ops_sample **row;
    int32_t *id, *left;
    size_t row_room, id_room, left_room;
    const ops_sample *rows;
    ops_sampled *out;
    const ops_verify *sequences;
    int32_t count, picked;
    bool asked;
} cuda_picks;

/* All pointers are the device's but where it says host. T = limits.rows, R = limits.logit_rows, D = limits.drafts,
 * G = limits.draft_rows. bf16 tensors are uint16_t. */
struct ops_step {
    ops_backend *backend;
    ops_limits limits;
    int32_t max_blocks; /* of the longest sequence */
    ops_cache *cache;   /* of the running step */
    ops_rows rows;      /* host, as given; count is 0 after an error */
    kernel_rows device_rows;
    kernel_cache device_cache;
    int32_t logit_rows;    /* of the running step */
    int32_t *logit_row;    /* [R] row of logit row r */
    hy_error error;
    void **owned; /* [owned_count] device memory */
    size_t owned_count, owned_room;
    uint8_t *rows_memory; /* device, what begin writes in one copy; `rows_host` is the same in host memory */
    uint8_t *rows_host;
    size_t rows_bytes;    /* of both; they grow with what steps bring */
    uint8_t *logits_read; /* host, [R], sample.c: whether a row of host_logits is that of the last `head`; 0: no */
    cuda_picks picks;

    float *x;               /* [T, hidden] */
    float *cosine, *sine;   /* [T, rotary_dim / 2] */
    uint16_t *normed;       /* [T, hidden] bf16: input of projections */
    float *q;               /* [T, heads, head_dim] bf16 values */
    float *k, *v;           /* [T, kv_heads, head_dim] before the cache */
    float *index_q;         /* [T, index_heads, index_dim] bf16 values */
    float *index_k;         /* [T, index_dim] */
    float *scores;          /* [T, index_heads, max_blocks] */
    int index_layer;        /* whose they are */
    uint32_t *index_drawn;  /* [index_rows] zeros between kernels, as the next: thread blocks of index_decode that came */
    uint32_t *index_order;  /* [index_rows, index_heads, decode_stride(max_blocks)] scores that they hand over */
    int32_t index_rows;     /* T, or less: for so many rows they are there */
    int32_t *blocks;        /* [T, index_heads, index_top] */
    float *attention;       /* [T, heads, head_dim] bf16 values */
    uint16_t *attention_bf16;
    void *attend_partials;  /* what attend wants beside; attend.c sizes it */
    int routing;            /* layer + 1 whose router is still to be asked (cuda_route_now), or 0 */
    struct cuda_prefill *prefill; /* prefill.c's, NULL where attention of many rows has no kernels of its own */
    float *h;               /* [T, hidden] bf16 values */
    float *router;          /* [T, experts] logits */
    int32_t *routes;        /* [T, experts_per_token] */
    float *route_weights;   /* [T, experts_per_token] */
    void *experts_scratch;  /* feed.c sizes it */
    float *y;               /* [T, widest] output of a projection: hidden, heads, or gate and up of dense or shared width, up at
                             * y + T * width */
    uint16_t *z;            /* [T, widest of dense and shared width] bf16: SwiGLU output */
    uint16_t *packed;       /* rows of a projection as the kernels of project_hopper.h want them, [packed_rows, packed_cols] at
                             * most; NULL: they are not used */
    int32_t packed_rows, packed_cols;
    uint16_t *expanded;     /* weights for project_wide.h, or NULL */
    size_t expanded_bytes;
    int32_t expanded_rows;  /* from so many on they go there */
    float *slice_sums;      /* of project_slices.cuh; NULL: they are not for this GPU */
    size_t slice_bytes;
    float *open_sums;       /* of those kernels */
    float *logits;          /* [R, vocab] */
    float *host_logits;     /* host, [R, vocab] */
    uint8_t *sample_scratch; /* host, [workers, sample_bytes] */
    size_t sample_bytes;
    float *draft_logits;    /* host, [D, G, vocab] or NULL: the laws */
    bool drafting;           /* in `draft`, which runs without rows too */
    struct cuda_draft *draft; /* draft.c's, NULL without a drafter or limits.drafts */
    struct cuda_sampling *sampling; /* sample_rows.c's */
};

/* ---- backend.c, weights.c ---------------------------------------------------------------------------------------- */

/* What ops_cuda.open opens: gpu_driver_open. Tests put another one here before they open anything. */
extern hy_status (*cuda_open_gpu)(gpu **g, hy_error *err);
/* linear.c for trial.c: a product, or with `z` a SwiGLU, of one part's format by warpgroups or by the kernels of every GPU; the
 * columns that the former take are multiples. */
struct project_args;
typedef enum cuda_project_way { CUDA_BY_ALL /* GPUs' kernels */, CUDA_BY_HOPPER, CUDA_BY_WIDE } cuda_project_way;
void cuda_project_by(ops_step *step, cuda_project_way way, const struct project_args *args);
int cuda_hopper_cols(int32_t format);
/* trial.c: step->packed becomes NULL where projections by warpgroups have other bits than the rest. */
hy_status cuda_trial(ops_step *step, hy_error *err);
/* options.gpu_wgmma_rows becomes the number of rows from which on warpgroups multiply on this GPU, 0: never. */
void cuda_wgmma_settle(ops_backend *b);

/* measure.c: bytes of the weights, and of a step on a GPU of the largest kind. */
void cuda_measure(const ops_model *model, const ops_options *options, const ops_limits *limits, ops_memory *out);

/* Weights into device memory that the backend owns; while it loads, they are there when their layer has come. WEIGHT_NONE gives
 * an empty struct. */
hy_status cuda_weight_load(ops_backend *b, const weight *w, const char *what, kernel_weight *out, hy_error *err);
hy_status cuda_weights_open(ops_backend *b, hy_error *err); /* all of the model */
void cuda_weights_close(ops_backend *b);
uint64_t cuda_weights_bytes(const ops_model *model); /* that they take */

/* ---- cache.c ----------------------------------------------------------------------------------------------------- */

hy_status cuda_cache_open(ops_backend *b, const cache_layout *layout, int32_t blocks, ops_cache **cache, hy_error *err);
void cuda_cache_close(ops_cache *cache);
void cuda_cache_read(ops_cache *cache, int32_t block, size_t offset, size_t bytes, void *out);
void cuda_cache_write(ops_cache *cache, int32_t block, size_t offset, size_t bytes, const void *in);
void cuda_cache_copy(ops_cache *cache, int32_t from, int32_t to);

/* ---- step.c ------------------------------------------------------------------------------------------------------ */

/* Entries of the backend's table. cuda_logits is `head`. */
hy_status cuda_step_open(ops_backend *b, const ops_limits *limits, ops_step **step, hy_error *err);
void cuda_step_close(ops_step *step);
void cuda_begin(ops_step *step, ops_cache *cache, const ops_rows *rows);
hy_status cuda_finish(ops_step *step, hy_error *err);
void cuda_logits(ops_step *step);
/* tensors.c */
void cuda_tensor_read(ops_step *step, ops_tensor which, int32_t first, int32_t rows, void *out);
void cuda_tensor_write(ops_step *step, ops_tensor which, int32_t first, int32_t rows, const void *in);

/* Device memory that the step owns, zeroed, into the pointer at `out`. */
hy_status cuda_step_alloc(ops_step *step, size_t count, size_t size, const char *what, void *out, hy_error *err);
/* Launches kernel hy_`name`; nothing when the step has no rows. */
void cuda_launch(ops_step *step, const char *name, int grid_x, int grid_y, int grid_z, int block, size_t shared,
                 const void *args, size_t bytes);

/* n up to the next eighth of a power of two: numbers that launches depend on grow in steps, since a list of launches is a graph
 * only as long as it is the same. */
static inline int64_t cuda_rounded_up(int64_t n)
{
    int64_t step = 1;
    while (16 * step <= n) step *= 2;
    return (n + step - 1) / step * step;
}

/* Angles of `count` positions (device), what `begin` does for the rows: cosine, sine [count, pairs]. */
void cuda_rotary(ops_step *step, const int32_t *position, const float *frequency, int32_t count, int pairs,
                 float *cosine, float *sine);

/* ---- attend.c, prefill.c ----------------------------------------------------------------------------------------- */

/* Factor of q . k in powers of two, the scale of an fp8 cache and what decoded NVFP4 is short of in it. */
float cuda_attend_scale(const ops_step *step, int layer);
/* prefill.c's memory, as cuda_attend_open allocates; freed with the step but for what cuda_prefill_close frees. */
hy_status cuda_prefill_open(ops_step *step, hy_error *err);
void cuda_prefill_close(ops_step *step);
void cuda_prefill_finish(ops_step *step); /* behind the wait of a step's end: what it says for the next one */
/* `attend`, and the scores of blocks [first, first + count) of index_score, by Hopper's kernels. False: nothing was done, the
 * GPU, the model's sizes or the rows are not for them. needed: nobody reads scores of rows that take all that they see. */
bool cuda_prefill_attend(ops_step *step, int layer);
bool cuda_prefill_always(const ops_step *step); /* scores of all steps come from cuda_prefill_score */
bool cuda_prefill_score(ops_step *step, int layer, int32_t first, int32_t count, bool needed);

/* ---- linear.c ---------------------------------------------------------------------------------------------------- */

/* out [count, hidden] bf16 (and out_float, or NULL, the same values) = RMSNorm of x with gain. plain: gain instead of
 * 1 + gain. */
void cuda_norm(ops_step *step, const float *x, const kernel_weight *gain, int hidden, float eps, bool plain,
               int32_t count, uint16_t *out, float *out_float);
/* What a projection does with its sums. */
typedef enum cuda_project_kind {
    CUDA_STORE,  /* out = y */
    CUDA_ADD,    /* out += y */
} cuda_project_kind;
/* out [count, stride] fp32 from in [count, w.cols] bf16. sliced: K in the eight slices of docs/numerics.md. `rows`, or
 * NULL: input row r is in[rows[r]]. */
void cuda_project(ops_step *step, const kernel_weight *w, const uint16_t *in, int32_t count, const int32_t *rows,
                  bool sliced, cuda_project_kind kind, float *out, int64_t stride);
/* Several weights on the same input, all of the same number of columns; those of one format go in one launch. */
typedef struct cuda_part {
    const kernel_weight *w;
    float *out; /* [count, stride] */
    int64_t stride;
} cuda_part;
void cuda_project_parts(ops_step *step, const cuda_part *parts, int n, const uint16_t *in, int32_t count,
                        const int32_t *rows, cuda_project_kind kind);
struct attend_in_args;
/* The norm of x, in step->normed, or in step->packed if all `parts`, which alone take it, want it in blocks. */
const uint16_t *cuda_norm_for(ops_step *step, const cuda_part *parts, int n, const float *x, const kernel_weight *gain,
                              int hidden, float eps, int32_t count);
/* The products of query, key, value and index with what attend_in makes of them, in one launch: the bits of
 * cuda_project_parts and that. False: nothing is done, since rows are few or there is no such kernel (qkv_wide.h). n is 3
 * or 5. */
bool cuda_project_heads(ops_step *step, const cuda_part *parts, int n, const uint16_t *in, int32_t count,
                        const struct attend_in_args *heads);

/* z [count, n] bf16 = SwiGLU-OAI of gate and up [count, n] fp32. plain: silu(gate) * up. */
void cuda_swiglu(ops_step *step, const float *gate, const float *up, int64_t n, int32_t count, float alpha, float limit,
                 bool plain, uint16_t *z);

/* z [count, gate.rows] bf16 = SwiGLU-OAI of gate . in and up . in: the bits of cuda_project twice and cuda_swiglu. y is
 * room for [2, count, gate.rows] where it comes to that. */
void cuda_glu(ops_step *step, const kernel_weight *gate, const kernel_weight *up, const uint16_t *in, int32_t count,
              float alpha, float limit, bool plain, float *y, uint16_t *z);

/* ---- the operations ---------------------------------------------------------------------------------------------- */

void cuda_embed(ops_step *step);
void cuda_attend_in(ops_step *step, int layer);
void cuda_index_select(ops_step *step, int layer);
void cuda_index_score(ops_step *step, int layer, int32_t first, int32_t count);
void cuda_index_top(ops_step *step, int32_t part, int32_t first, int32_t count);
void cuda_index_merge(ops_step *step, int32_t parts);
void cuda_attend(ops_step *step, int layer);
void cuda_attend_out(ops_step *step, int layer);
void cuda_route(ops_step *step, int layer);
void cuda_route_now(ops_step *step); /* the routes that cuda_route has left to cuda_experts, if it has */
void cuda_experts(ops_step *step, int layer);
void cuda_feed_dense(ops_step *step, int layer);
void cuda_head(ops_step *step);
/* sample, verify and draft only launch where the GPU can do all of it; what came of them is handed out by cuda_answer, in
 * `finish` or where it is wanted earlier: it waits, brings all of it in one copy, and does what is left to the host. */
void cuda_answer(ops_step *step);
void cuda_sample(ops_step *step, const ops_sample *rows, int32_t count, ops_sampled *out);
void cuda_verify(ops_step *step, const ops_verify *sequences, int32_t count);
void cuda_draft_tap(ops_step *step, int tap);
void cuda_draft_context(ops_step *step);
void cuda_draft(ops_step *step, const ops_draft *sequences, int32_t count);

hy_status cuda_attend_check(const ops_model *model, hy_error *err); /* heads that there are kernels for */
/* Memory beside the tensors above: allocated by step_open through these, freed with the step. They alloc, write and fill, and
 * nothing else, and by limits, model and gpu_info alone: measure.c counts what they take on a GPU that is none. */
hy_status cuda_linear_open(ops_step *step, hy_error *err);
hy_status cuda_attend_open(ops_step *step, hy_error *err);
hy_status cuda_feed_open(ops_step *step, hy_error *err);
/* Brings a layer's experts, which are loaded, into the order of kernels/experts.h where its kernels take them; called once.
 * A NaN among their scales is an error of `what`. */
hy_status cuda_feed_prepare(ops_backend *b, cuda_layer *l, const char *what, hy_error *err);
hy_status cuda_draft_open(ops_step *step, hy_error *err); /* only with a drafter and limits.drafts */
void cuda_draft_close(ops_step *step);
int32_t cuda_draft_asked(const ops_step *step); /* sequences whose drafts are not answered yet */
void cuda_draft_answer(ops_step *step, bool came);
/* Rows [first, first + rows) of OPS_DRAFT_C or OPS_DRAFT_H, for tensor_read. */
void cuda_draft_read(ops_step *step, ops_tensor which, int32_t first, int32_t rows, float *out);

/* ---- sample_rows.c ----------------------------------------------------------------------------------------------- */

hy_status cuda_sampling_open(ops_step *step, hy_error *err); /* as those above, always */
void cuda_sampling_close(ops_step *step);
/* Whether cuda_sample_rows samples such a row: no bias, penalties, log-probabilities. */
bool cuda_sample_on_gpu(const ops_step *step, const ops_sample *row);
/* Starts picking at most cuda_sample_room rows out of step->logits: their ids become the first of the answers. */
void cuda_sample_start(ops_step *step, const ops_sample *const *rows, int32_t count);
int32_t cuda_sample_room(const ops_step *step);
/* Answers, ids and behind them states of the drafter, device or host; cuda_answer_read brings the first ones. False: the step
 * or the GPU has failed. */
int32_t *cuda_answer_ids(const ops_step *step, bool host);
struct draft_state *cuda_answer_drafts(const ops_step *step, bool host);
bool cuda_answer_read(ops_step *step, int32_t ids, int32_t drafts);
/* ids[i] of rows[i], any number of them, out of step->logits: what sample_row picks. -1: nothing is left of the row, and
 * sample_row says what it is. Waits. */
void cuda_sample_rows(ops_step *step, const ops_sample *const *rows, int32_t count, int32_t *ids);

#endif
