/*
 * The operations contract: what a backend does, what it is given, and what every backend must agree on.
 *
 * A step runs the network over T rows. A row is one token of one sequence at one position; a prefill chunk, a decoded
 * token and a verified draft are rows alike. The forward pass (src/model/forward.h) is the only caller; it runs
 *
 *     begin, embed, per layer { attend_in, [index_select], attend, attend_out, route + experts | feed_dense },
 *     head, sample | verify, finish
 *
 * and with a drafter `draft_tap` behind the layers that it listens to, `draft_context` behind the last one, and `draft`
 * behind verify.
 *
 * The operations are coarse, each the unit that a GPU would fuse. Tensors between them live in the backend's memory as
 * named tensors of an `ops_step`; `tensor_read` and `tensor_write` move them as float or int32 for tests, traces and
 * replay. `backend/reference` defines the answer in scalar fp32; the others are held to it operation by operation.
 *
 * Numerics (what reference / the others round) and the order of every sum are in docs/numerics.md. In short: residual,
 * norms, softmax and sums are fp32 everywhere; off the reference the inputs of projections, queries after rotary,
 * attention output, SwiGLU output and the softmax weights that enter P.V are rounded once to bf16. Sums have one order
 * whatever the batch, the chunk and the threads, so a row's result depends on nothing but its own sequence.
 */
#ifndef HAYATE_BACKEND_OPS_H
#define HAYATE_BACKEND_OPS_H

#include "base/threads.h"
#include "checkpoint/tensor.h"

/* ---- Cache rows ---------------------------------------------------------------------------------------------- */

enum { CACHE_BLOCK = 128 }; /* tokens of a block, which is also the unit of selection */

typedef enum cache_format {
    CACHE_FP32,  /* reference only: oracles */
    CACHE_BF16,
    CACHE_FP8,   /* E4M3, scale 1 (or the checkpoint's k_scale, v_scale) */
    CACHE_NVFP4, /* E2M1 pairs and E4M3 scales per 16, no outer scale */
} cache_format;

#define CACHE_NO_OFFSET ((size_t)-1)

/*
 * One block of 128 tokens, all layers, is one contiguous row: main K and V of layer 0, 1, ..., then index keys of the
 * sparse layers in order, then (when present) the drafter's. A layer is base + offset + block * row_bytes.
 *
 * Main part of a layer, per KV head (head_bytes): K data [128, head_dim] | K scales | V data [128, head_dim] | V scales.
 * Index part: data [128, index_dim] | scales. Data is fp32, bf16, E4M3, or E2M1 pairs (even dim low).
 * NVFP4 scales, G = head_dim / 16 groups: K and index linear [128][G]; V in token quads, (t/4)*4G + g*4 + t%4.
 * Drafter part, [draft layer][KV head]: K data [128, draft head_dim] | V data [128, draft head_dim], never NVFP4, scale 1.
 */
typedef struct cache_layout {
    cache_format main, index;
    int layers, kv_heads, head_dim, index_dim;
    size_t *main_offset;  /* [layers] */
    size_t *index_offset; /* [layers], CACHE_NO_OFFSET on dense layers */
    size_t head_bytes;    /* one KV head of one layer */
    size_t k_scales, v_data, v_scales; /* offsets inside a head; K data is at 0 */
    size_t index_scales;  /* offset inside a layer's index part */
    cache_format draft;   /* as the next three: of the model's drafter, zeroed without one */
    int draft_layers, draft_kv_heads, draft_head_dim;
    size_t draft_offset;  /* of its part, CACHE_NO_OFFSET without one */
    size_t draft_head_bytes, draft_v_data; /* one KV head of one layer; offset of V inside it */
    size_t row_bytes;     /* multiple of 64 */
} cache_layout;

struct ops_model;
/* Computes the layout; release with cache_layout_free. HY_UNSUPPORTED: dims that the format cannot hold. */
hy_status cache_layout_make(const struct ops_model *model, cache_format main, cache_format index, cache_layout *layout,
                            hy_error *err);
void cache_layout_free(cache_layout *layout);
const char *cache_format_name(cache_format format);                  /* "fp32", "bf16", "fp8", "nvfp4" */
bool cache_format_parse(const char *name, cache_format *format);     /* also "bfloat16", "fp8_e4m3" */
size_t cache_vector_bytes(cache_format format, int dim);             /* one head vector with its scales */

/* ---- Model ---------------------------------------------------------------------------------------------------- */

typedef struct ops_layer {
    bool sparse; /* block-sparse attention with an indexer, else dense causal */
    bool moe;    /* routed experts and shared expert, else dense feed-forward */
    weight input_norm, post_norm;              /* [1, hidden] */
    weight q, o;                               /* [heads*head_dim, hidden], [hidden, heads*head_dim] */
    weight k, v;                               /* [kv_heads*head_dim, hidden] */
    weight q_norm, k_norm;                     /* [1, head_dim] */
    weight index_q, index_k;                   /* [index_heads*index_dim, hidden], [index_dim, hidden] */
    weight index_q_norm, index_k_norm;         /* [1, index_dim] */
    weight dense_gate, dense_up, dense_down;   /* [dense_width, hidden] x2, [hidden, dense_width] */
    weight router, router_bias;                /* [experts, hidden], [1, experts] */
    weight *expert_gate, *expert_up, *expert_down; /* [experts] of [expert_width, hidden] x2, [hidden, expert_width] */
    /* [shared_width, hidden] x2, [hidden, shared_width]; WEIGHT_NONE: no shared expert */
    weight shared_gate, shared_up, shared_down;
    float k_scale, v_scale;                    /* of an fp8 cache: stored = x / scale; 1 in the released models */
} ops_layer;

/* ---- Drafter (DSpark) ----------------------------------------------------------------------------------------------
 *
 * It listens to the residual stream behind some layers of the target. For each position s that the target computes
 *
 *     c = hidden_norm(fc . taps(s));  K_i(s) = rotary_s(k_norm_i(Wk_i . c)),  V_i(s) = Wv_i . c     (no input norm)
 *
 * goes into the drafter's part of the cache row. A block of drafts runs g rows through all layers at once: the anchor (the
 * last token, not yet computed by the target) at position n and g - 1 noise tokens at n + 1, ...; row k attends to context
 * keys at max(0, n + k - window + 1) .. n - 1 and to all g rows of the block, earlier and later. Their own keys and values are
 * normed as usual (input_norm) and never stored. Row k's logits are those of position n + 1 + k:
 *
 *     U_k = head . final_norm(h_k),   L_k = U_k + markov_out . markov_in[token before position n + 1 + k]
 *
 * taken left to right, so that row k sees the token that row k - 1 chose. Feed-forward is SwiGLU-OAI with the constants
 * below; norms scale by 1 + gain. Norms of DeepSpec's own families scale by the gain, and their SwiGLU is the plain one. */

enum { DRAFT_MAX_TAPS = 16, DRAFT_MAX_BLOCK = 16 };

typedef struct ops_draft_layer {
    weight input_norm, post_norm; /* [1, hidden] */
    weight q, o;                  /* [heads*head_dim, hidden], [hidden, heads*head_dim] */
    weight k, v;                  /* [kv_heads*head_dim, hidden] */
    weight q_norm, k_norm;        /* [1, head_dim] */
    weight gate, up, down;        /* [width, hidden] x2, [hidden, width] */
} ops_draft_layer;

typedef struct ops_drafter {
    int layers, heads, kv_heads, head_dim, rotary_dim, width; /* hidden and vocab are the target's */
    float rope_theta, norm_eps, swiglu_alpha, swiglu_limit;
    bool plain_norm, plain_swiglu; /* gain without the 1; silu(gate) * up */
    int block;  /* g: most drafts of a round */
    int window; /* keys that a row sees, itself counted; at least `block` */
    int32_t noise_token;
    int tap_count, tap[DRAFT_MAX_TAPS]; /* layers of the target behind which OPS_X is taken, in the order of fc's inputs */
    int markov_rank;                    /* 0: none */
    cache_format cache;                 /* of its context rows: fp8 or bf16; fp32 on the reference */
    weight fc;                          /* [hidden, tap_count*hidden] */
    weight hidden_norm, final_norm;     /* [1, hidden] */
    weight embed, head;                 /* [vocab, hidden] x2: the target's, unless it brings its own */
    weight markov_in, markov_out;       /* [vocab, markov_rank] x2 */
    weight confidence, confidence_bias; /* [1, hidden + markov_rank], [1, 1]; WEIGHT_NONE: no confidence head */
    ops_draft_layer *layer;             /* [layers] */
} ops_drafter;

/* Shapes and weights, borrowed from src/model for the backend's life. */
typedef struct ops_model {
    int layers, hidden, vocab, max_positions;
    int heads, kv_heads, head_dim, rotary_dim; /* query head h reads KV head h / (heads / kv_heads) */
    float rope_theta, norm_eps;
    int experts, experts_per_token, expert_width, shared_width, dense_width;
    float routed_scaling, swiglu_alpha, swiglu_limit;
    int index_heads, index_dim, index_top, index_local; /* index head r selects for KV head r */
    weight embed, head, final_norm;                     /* [vocab, hidden] x2, [1, hidden] */
    ops_layer *layer;                                   /* [layers] */
    ops_drafter *drafter;                               /* NULL: none */
} ops_model;

typedef enum readback { READBACK_EXACT, READBACK_E4M3 } readback;           /* e2m1 * scale, or that rounded to E4M3 */
typedef enum moe_activation { MOE_ACTIVATION_NONE, MOE_ACTIVATION_NVFP4 } moe_activation; /* W4A16, W4A4 */

/* What this rank holds of each tensor. One rank holds all; backends refuse at open what they cannot split. */
typedef struct ops_shard {
    int rank, ranks;
    int head_begin, head_end;     /* KV heads */
    int expert_begin, expert_end; /* routed experts */
} ops_shard;

/* Where the weights of the routed experts are kept. */
typedef enum ops_weights {
    OPS_WEIGHTS_LOAD,   /* prepared at open, in memory */
    OPS_WEIGHTS_STREAM, /* read from `files` as they are routed to, into a cache */
} ops_weights;

typedef struct ops_options {
    readback read;
    bool query_e4m3; /* round q and iq to E4M3 as well (parity with the vendor's kernels) */
    moe_activation activation;
    threads *pool;   /* borrowed */
    const weight_file *files; /* [file_count] maps that the weights borrow from; those of other memory are in none */
    size_t file_count;
    const struct synth_made *made; /* with hy_ops.makes_weights: what of the weights is to be made, see there; NULL: nothing */
    ops_weights weights;
    bool bounded; /* memory counts: nothing is read through the maps in a step, whose pages would stay */
    ops_shard shard; /* zeroed: one rank */
    /* cuda on Hopper: steps of so many rows and more take warpgroups' products; 0: where those are faster, below 0: none do. */
    int32_t gpu_wgmma_rows;
    bool gpu_apart; /* cuda: queries, keys and values become heads in a kernel of their own, behind their projections (benches) */
    hy_progress_fn on_progress;
    void *user;
} ops_options;

/* ---- A step --------------------------------------------------------------------------------------------------- */

enum {
    ROW_LOGITS = 1,        /* wants logits; such rows are numbered 0, 1, ... in row order */
    ROW_REPLAY_BLOCKS = 2, /* takes its selected blocks from replay_blocks */
    ROW_REPLAY_ROUTES = 4, /* takes its experts from replay_routes (their weights are computed) */
};

/* The rows of a step, borrowed during the step. All rows of a sequence are in ascending, contiguous positions. */
typedef struct ops_rows {
    int32_t count;           /* T */
    const int32_t *sequence; /* [T] index into block_table, -1: padding */
    const int32_t *position; /* [T] */
    const int32_t *token;    /* [T] id in the vocabulary */
    const int64_t *slot;     /* [T] cache slot to write, block * 128 + position % 128; -1: none */
    const uint8_t *flags;    /* [T] ROW_ bits */
    int32_t sequences;             /* S */
    const int32_t *block_table;    /* [S, block_table_stride] cache block of a sequence's logical block */
    int32_t block_table_stride;
    const int32_t *replay_blocks;  /* [layers, T, index_heads, index_top] or NULL; ascending, -1 last */
    const int32_t *replay_routes;  /* [layers, T, experts_per_token] or NULL; ascending */
} ops_rows;

typedef struct ops_limits {
    int32_t rows;         /* most rows of a step */
    int32_t logit_rows;   /* most rows that want logits */
    int32_t positions;    /* longest sequence */
    int32_t drafts;       /* most sequences that `draft` is asked for; 0: the step has none of the drafter's operations */
    int32_t draft_rows;   /* most drafts of a round, 1 .. drafter.block */
    bool draft_laws;      /* laws of probabilistic drafts are kept for verify: [drafts, draft_rows, vocab] */
} ops_limits;

typedef enum ops_tensor {
    OPS_X,             /* float [T, hidden]: the residual stream */
    OPS_Q,             /* float [T, heads, head_dim]: after norm and rotary */
    OPS_INDEX_Q,       /* float [T, index_heads, index_dim] */
    OPS_SCORES,        /* float [T, index_heads, blocks]: block maxima, -inf where not visible;
                        * blocks = ceil(limits.positions / 128) */
    OPS_BLOCKS,        /* int32 [T, index_heads, index_top]: ascending, -1 last */
    OPS_ATTENTION,     /* float [T, heads, head_dim] */
    OPS_H,             /* float [T, hidden]: normed input of router and experts */
    OPS_ROUTES,        /* int32 [T, experts_per_token]: ascending */
    OPS_ROUTE_WEIGHTS, /* float [T, experts_per_token]: sum 1, without routed_scaling */
    OPS_LOGITS,        /* float [R, vocab] */
    OPS_DRAFT_C,       /* float [T, hidden]: c of the drafter's context */
    OPS_DRAFT_H,       /* float [drafts, draft_rows, hidden] of the limits: final_norm's output of the last `draft`, its
                        * sequence i at i * draft_rows */
    OPS_DRAFT_LOGITS,  /* float [drafts, draft_rows, vocab]: the laws, L of a probabilistic draft k of its last `draft` at
                        * law * draft_rows + k; only with limits.draft_laws */
} ops_tensor;

enum { SAMPLE_MAX_LOGPROBS = 20 /* that an ops_sampled has room for; with more the asker brings the room */ };

/*
 * How one logit row is sampled. The chain: masks (allowed, end ids before min_tokens, bad words, mask bits) -> bias ->
 * repetition, frequency, presence penalties -> temperature -> min-p -> top-k -> top-p (shortest prefix in order of
 * logit descending, id ascending, whose mass renormalised after top-k reaches p) -> argmax(logit + Gumbel noise).
 * NaN counts as -inf. Below temperature 1e-5 there is no noise and no cut.
 */
typedef struct ops_sample {
    int32_t logit_row;
    uint64_t seed;
    uint32_t position; /* that the drawn token will occupy: row position + 1 */
    uint32_t choice;   /* 0 .. n-1 of n answers to one prompt */
    float temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty;
    int32_t top_k;
    const int32_t *prompt; int32_t prompt_count; /* history for penalties and bad words */
    const int32_t *output; int32_t output_count;
    const int32_t *allowed; int32_t allowed_count; /* 0: everything */
    int32_t min_tokens;                            /* end ids are masked while output_count is below */
    const int32_t *end_ids; int32_t end_id_count;
    const hy_token_bias *bias; int32_t bias_count;
    const int32_t *const *bad_words; const size_t *bad_word_lengths; int32_t bad_word_count;
    const uint32_t *mask; /* [ceil(vocab/32)] bit i%32 of word i/32 set: allowed; NULL: everything */
    int32_t logprobs;     /* -1: none; else the n best beside the pick's own, at most the vocabulary */
    hy_logprob *best;     /* [logprobs] where they go when they are more than SAMPLE_MAX_LOGPROBS, else not used */
    hy_logprobs_mode logprobs_mode;
    const int32_t *score_ids; int32_t score_count; /* with logprobs: tokens whose numbers go to `scores` */
    float *scores;                                 /* [score_count] */
} ops_sample;

/* In place of a token. */
enum {
    SAMPLED_NONE = -1,   /* no finite logit is left, and not all of the row were: the network's fault */
    SAMPLED_MASKED = -2, /* all logits of the row are finite, and what the request asks for leaves none of them */
};

typedef struct ops_sampled {
    int32_t id; /* or one of the two above */
    float logprob;
    int32_t rank; /* with logprobs: 1 + tokens that are likelier */
    int32_t top_count; /* of the n best: those with a probability */
    int32_t top_ids[SAMPLE_MAX_LOGPROBS];
    float top_logprobs[SAMPLE_MAX_LOGPROBS];
} ops_sampled;

/*
 * How drafts are judged (spec: Leviathan et al. 2023 for `standard`, Sun et al. 2024 for `block`).
 * coupled: row by row the target picks with its own noise; a draft is accepted when it is that pick. The tokens are those
 *     of decoding without drafts.
 * standard: draft d is accepted when u < p(d) / q(d), else a token of max(p - q, 0) takes its place.
 * block: judged as a whole; never shorter on average.
 * synthetic: draft j is accepted when u < rates[j], whatever it is: for benchmarks. What is drawn behind a rejected draft is
 *     the target's pick (temperature 0) or a token of max(p - q, 0).
 * p is what the chain of ops_sample leaves at a row, q what `draft` sampled from at the row's temperature; a greedy draft's q
 * is a point mass. With a temperature below 1e-5 `standard` and `block` compare with the target's argmax. They must not be
 * given drafts of DRAFT_COUPLED, whose noise is also that of the token that replaces a draft: that would bend the law.
 */
typedef enum ops_verify_method { VERIFY_COUPLED, VERIFY_STANDARD, VERIFY_BLOCK, VERIFY_SYNTHETIC } ops_verify_method;

/* One sequence's logit rows row[0 .. drafts], in the order of positions. */
typedef struct ops_verify {
    const ops_sample *row; /* [drafts + 1]; row j's history ends with drafts 0 .. j - 1 */
    const int32_t *draft;  /* [drafts]; an id below 0 or outside the vocabulary ends them: that row is sampled as the last */
    int32_t drafts;        /* 0: plain sampling */
    ops_verify_method method;
    int32_t law;           /* where `draft` kept q (ops_draft.law); -1: point masses */
    const float *rates;    /* [drafts] synthetic: accepted given that those before were */
    uint32_t anchor;       /* position of the token that the drafts were made behind */
    ops_sampled *out;      /* [drafts + 1]; with log-probabilities of the target */
    int32_t *count;        /* tokens in `out`: accepted drafts and one more. An id below 0 ends it, see ops_sampled */
} ops_verify;

typedef enum ops_draft_method {
    DRAFT_COUPLED,       /* argmax of L / temperature and the noise with which the target will pick at that position */
    DRAFT_GREEDY,        /* argmax of L */
    DRAFT_PROBABILISTIC, /* drawn from softmax(L / temperature) with noise of its own (RANDOM_DRAFT) */
} ops_draft_method;

/* A round of drafts behind the last token that verify or sample put into `after`, read when the operation runs. */
typedef struct ops_draft {
    int32_t sequence;         /* row of the block table, whose context rows below the anchor are written */
    const ops_sampled *after; /* [*after_count]: the last one is the anchor; an id below 0 there: no drafts */
    const int32_t *after_count;
    int32_t position;         /* of after[0] */
    int32_t rows;             /* g of the block that is computed: drafts wanted, 1 .. limits.draft_rows */
    int32_t end;              /* no draft for this position or one behind it */
    uint64_t seed;
    uint32_t choice;
    float temperature;        /* below 1e-5: argmax, whatever the method */
    ops_draft_method method;
    int32_t law;              /* probabilistic: where q is kept until verify, 0 .. limits.drafts - 1 */
    float threshold;          /* drafts end before the first whose confidence is below; 0: not asked */
    int32_t *draft;           /* [rows] */
    int32_t *count;           /* of them */
} ops_draft;

/* Bytes that a model takes in a backend's memory. */
typedef struct ops_memory {
    uint64_t weights;      /* prepared at open */
    uint64_t expert;       /* one routed expert; 0 where experts are not streamed, as the next two */
    uint64_t expert_least; /* the smallest expert cache: those of two layers of one token */
    uint64_t all_experts;
    uint64_t readers; /* buffers through which experts are read */
    uint64_t step;         /* a step of the given limits */
} ops_memory;

/* How the weights came into a backend's memory. */
typedef struct ops_loaded {
    uint64_t bytes;
    double seconds;
    const char *way; /* "read directly", "read through the page cache", "copied", "made on the GPU" */
} ops_loaded;

enum { OPS_VARIANT = 64 };

typedef struct ops_backend ops_backend; /* weights in a backend's own layout */
typedef struct ops_cache ops_cache;     /* blocks in a backend's memory */
typedef struct ops_step ops_step;       /* descriptors and named tensors for steps up to some limits */

/*
 * A backend. Operations return nothing: an error of a step is kept and returned by `finish`, which waits until all
 * that was asked for is done. One thread drives a step; several steps of one backend run one after the other.
 */
typedef struct hy_ops {
    const char *name;
    /* Random weights can be made in the backend's memory (checkpoint/synth_made.h): the data of those in options.made are holes,
     * vectors excepted, and the host has no need of room for them. */
    bool makes_weights;
    /* `open` refuses scales that hold no number, or of files one that no quantiser writes: nobody has to look before. */
    bool checks_scales;

    /* Prepares weights. HY_UNSUPPORTED names the operation or format that this backend cannot do. */
    hy_status (*open)(const ops_model *model, const ops_options *options, ops_backend **backend, hy_error *err);
    void (*close)(ops_backend *backend);

    /* Bytes that open and step_open would take: before anything is read. NULL: this backend cannot be bounded. */
    void (*measure)(const ops_model *model, const ops_options *options, const ops_limits *limits, ops_memory *out);
    /* NULL: not counted. */
    void (*loaded)(const ops_backend *backend, ops_loaded *out);
    /* Bytes that caches and steps can still take where the backend keeps them. NULL: they take this process's memory. */
    uint64_t (*memory_free)(const ops_backend *backend);
    /* With streamed weights, between steps: the expert cache has `bytes` and is empty. At open it has none, and there can
     * be no step. HY_NO_FIT. NULL, as the next: this backend does not stream. */
    hy_status (*expert_memory)(ops_backend *backend, uint64_t bytes, hy_error *err);
    /* From any thread. False: the experts are not streamed. */
    bool (*expert_stats)(const ops_backend *backend, hy_expert_stats *out);
    /* The variants of the inner loops that this machine runs, by name; returns `out`. NULL: there is one. */
    const char *(*variant)(const ops_backend *backend, char out[OPS_VARIANT]);

    /* `blocks` rows of the layout, contents undefined. The layout is copied. */
    hy_status (*cache_open)(ops_backend *backend, const cache_layout *layout, int32_t blocks, ops_cache **cache,
                            hy_error *err);
    void (*cache_close)(ops_cache *cache);
    /* Bytes [offset, offset + bytes) of a block's row, out of and into the backend's memory. From any thread, also while
     * another one drives a step that does not use the block. */
    void (*cache_read)(ops_cache *cache, int32_t block, size_t offset, size_t bytes, void *out);
    void (*cache_write)(ops_cache *cache, int32_t block, size_t offset, size_t bytes, const void *in);
    /* The whole row of a block onto another. */
    void (*cache_copy)(ops_cache *cache, int32_t from, int32_t to);

    hy_status (*step_open)(ops_backend *backend, const ops_limits *limits, ops_step **step, hy_error *err);
    void (*step_close)(ops_step *step);

    /* Takes the rows of the next step and the cache that they read and write. */
    void (*begin)(ops_step *step, ops_cache *cache, const ops_rows *rows);
    hy_status (*finish)(ops_step *step, hy_error *err);
    /* All that was asked for so far is done when it returns. For a host backend that records operations and runs them later:
     * so that the caller knows how far a step is. NULL: nothing is recorded, or waiting would cost too much. */
    void (*settle)(ops_step *step);

    /* OPS_X = embedding rows. */
    void (*embed)(ops_step *step);
    /* RMSNorm; Q, K, V and on sparse layers index projections; per-head norm; rotary; K, V, index K into the cache. */
    void (*attend_in)(ops_step *step, int layer);
    /*
     * index_select = index_score over all blocks, index_top, index_merge of one part. The three are for a context that
     * is split over ranks: scores of blocks [first, first + count) into OPS_SCORES; the best index_top of that span as
     * candidates of `part` (local block forced where the span has it); the merge of `parts` lists into OPS_BLOCKS.
     */
    void (*index_select)(ops_step *step, int layer);
    void (*index_score)(ops_step *step, int layer, int32_t first, int32_t count);
    void (*index_top)(ops_step *step, int32_t part, int32_t first, int32_t count);
    void (*index_merge)(ops_step *step, int32_t parts);
    /* Exact attention over the selected blocks (OPS_BLOCKS), or all of them on a dense layer, into OPS_ATTENTION. */
    void (*attend)(ops_step *step, int layer);
    /* OPS_X += o . OPS_ATTENTION, K in eight slices. */
    void (*attend_out)(ops_step *step, int layer);
    /* OPS_H = RMSNorm(OPS_X); OPS_ROUTES, OPS_ROUTE_WEIGHTS. */
    void (*route)(ops_step *step, int layer);
    /* OPS_X += routed_scaling * sum of weighted experts in ascending number + shared expert. */
    void (*experts)(ops_step *step, int layer);
    /* OPS_X += dense SwiGLU-OAI of RMSNorm(OPS_X). */
    void (*feed_dense)(ops_step *step, int layer);
    /* OPS_LOGITS of the rows that want them: final norm and output projection. */
    void (*head)(ops_step *step);
    /* Samples `count` logit rows. `rows` is borrowed until finish, after which `out` is valid. */
    void (*sample)(ops_step *step, const ops_sample *rows, int32_t count, ops_sampled *out);
    /* Samples and judges `count` sequences; by another method than coupled only with limits.drafts. Borrowed until finish,
     * as the next. */
    void (*verify)(ops_step *step, const ops_verify *sequences, int32_t count);

    /* The drafter's operations, see above; only with ops_model.drafter and limits.drafts. OPS_X of all rows is kept as tap
     * `tap`; the context rows of all rows with a slot are written; drafts for `count` sequences are made. */
    void (*draft_tap)(ops_step *step, int tap);
    void (*draft_context)(ops_step *step);
    void (*draft)(ops_step *step, const ops_draft *sequences, int32_t count);

    /* Rows [first, first + rows) of a named tensor as float or int32 (see ops_tensor). Waits for what is running. */
    void (*tensor_read)(ops_step *step, ops_tensor which, int32_t first, int32_t rows, void *out);
    void (*tensor_write)(ops_step *step, ops_tensor which, int32_t first, int32_t rows, const void *in);
} hy_ops;

extern const hy_ops ops_reference, ops_cpu, ops_cuda;
/* A backend by name, NULL if there is none; the names for messages. */
const hy_ops *ops_find(const char *name);
extern const char ops_names[]; /* "cpu, cuda, reference" */

/* ---- Definitions shared by host backends --------------------------------------------------------------------- */

/* The sampling chain on one row of logits in host memory (backend/sample.c), which defines it. `scratch` holds
 * sample_scratch_bytes(vocab). */
void sample_row(const float *logits /* [vocab] */, int32_t vocab, const ops_sample *how, void *scratch,
                ops_sampled *out);
size_t sample_scratch_bytes(int32_t vocab);

/* The law that sample_row draws from, p[vocab], sums to 1 (a point mass below temperature 1e-5); false: no finite logit, and
 * p is 0 everywhere. */
bool sample_law(const float *logits, int32_t vocab, const ops_sample *how, void *scratch, float *p);

/* backend/verify.c, which defines verify: one sequence. `logits` [*, vocab] are the step's; `laws` [drafts, vocab] the stored
 * logits L of the drafts, NULL: point masses. `scratch` holds verify_scratch_bytes(vocab). */
void verify_sequence(const float *logits, int32_t vocab, const ops_verify *v, const float *laws, void *scratch);
size_t verify_scratch_bytes(int32_t vocab);
/* One draft of the row L [vocab] for `position` (backend/verify.c); `anchor` is the position of the round's anchor. */
int32_t draft_pick(const float *logits, int32_t vocab, const ops_draft *d, uint32_t position, uint32_t anchor);

#endif
