/*
 * Hayate: run MiniMax-M3 and M3.1-Flash checkpoints from C.
 *
 * Four nouns. A `hy_model` is a checkpoint that has been read: its config, its tokenizer and its prepared weights.
 * A `hy_engine` owns a cache and two threads, a planner and a runner, that turn requests into tokens. A `hy_request` is
 * one prompt on its way; its tokens arrive in a callback. `hy_sampling` says how a token is chosen.
 *
 *     hy_error err = {0};
 *     hy_model *model = NULL;
 *     hy_engine *engine = NULL;
 *     if (hy_model_open("models/m3-nano", NULL, &model, &err) != HY_OK) ...
 *     if (hy_engine_open(model, NULL, &engine, &err) != HY_OK) ...
 *     hy_request_options options = hy_request_defaults(model);
 *     options.prompt_ids = ids, options.prompt_count = n, options.on_event = print_text;
 *     hy_request *request = NULL;
 *     if (hy_engine_submit(engine, &options, &request, &err) != HY_OK) ...
 *     hy_request_wait(request);
 *     hy_request_close(request), hy_engine_close(engine), hy_model_close(model);
 *
 * Link with: build/libhayate.a $(pkg-config --libs jansson libutf8proc libcrypto) -pthread -lm
 *
 * Rules that hold everywhere:
 *  - Functions that can fail return `hy_status` and fill the caller's `hy_error` (which may be NULL). On failure the
 *    outputs are untouched. The library never prints and never exits; log lines go to `hy_log_set`.
 *  - Strings are UTF-8 and end in NUL unless a length stands beside them. Options are copied during the call.
 *  - Objects are closed by the one who opened them, in the reverse order. Closing NULL does nothing.
 *  - A model may be shared by engines and threads. An engine's functions may be called from any thread.
 *  - The tokens of a request depend on its prompt, its parameters and its seed (with `rendered`, also on the answers
 *    that this engine made), and on nothing else.
 */
#ifndef HAYATE_H
#define HAYATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HY_VERSION "0.1.0"

/* ---- Errors -------------------------------------------------------------------------------------------------- */

typedef enum hy_status {
    HY_OK = 0,
    HY_FAILED,      /* an operation of the system failed: a file could not be read, a thread not be started */
    HY_USAGE,       /* an argument or an option is wrong; the caller can repair it */
    HY_BAD_MODEL,   /* a model file is damaged, inconsistent or of a kind that is not supported */
    HY_NO_FIT,      /* it does not fit: memory, cache, or a prompt longer than what can be served */
    HY_BAD_INPUT,   /* a request's content is wrong: a token id outside the vocabulary, an empty
                     * prompt, restrictions that leave no token to choose */
    HY_CANCELLED,   /* the request was cancelled by its owner */
    HY_UNSUPPORTED, /* known, but not done by this build or backend */
    HY_LATE,        /* the request's deadline passed before its end */
    HY_BUSY,        /* the queue is full: try again later */
} hy_status;

/* What went wrong, owned by the caller. `message` is one line that says what was wrong and what to do. */
typedef struct hy_error {
    hy_status status;
    char message[512];
    char where[96]; /* a file, a tensor or a flag that the message is about; may be empty */
} hy_error;

/* The name of a status for logs: "ok", "failed", "usage", ... Never NULL. */
const char *hy_status_name(hy_status status);

/* ---- Logging and progress ------------------------------------------------------------------------------------- */

typedef enum hy_log_level { HY_LOG_DEBUG, HY_LOG_INFO, HY_LOG_WARNING, HY_LOG_ERROR } hy_log_level;

/* Receives one line without a newline. May be called from several threads at once. */
typedef void (*hy_log_fn)(void *user, hy_log_level level, const char *line);

/* Sets where log lines of the whole process go; NULL (the start value) drops them. Lines below `level` are not made. */
void hy_log_set(hy_log_fn fn, void *user, hy_log_level level);

/*
 * Called at most about ten times a second during long work. `done` and `total` count `unit` ("bytes", "tokens",
 * "tensors"); `total` is 0 while unknown. Return false to stop the work, which then fails with HY_CANCELLED.
 */
typedef bool (*hy_progress_fn)(void *user, const char *what, uint64_t done, uint64_t total, const char *unit);

/* ---- Models --------------------------------------------------------------------------------------------------- */

typedef struct hy_model hy_model;

struct hy_engine_options;

/* A zeroed struct means every default. Names are those of the command line. */
typedef struct hy_model_options {
    const char *backend;          /* "cpu" (default, as "auto"), "cuda" or "reference" */
    const char *kv_cache_dtype;   /* "auto" (default), "bf16", "fp8", "nvfp4"; "fp32" on the reference */
    const char *indexer_kv_dtype; /* the same; "auto" follows the main cache */
    const char *readback;         /* "exact" (default) or "e4m3" */
    const char *moe_activation;   /* "auto" (default: "nvfp4" for pack-quantised experts), "nvfp4" or "none" */
    const char *attention;        /* "sparse" (default: as the config says), or "dense": every row reads all blocks, the index
                                   * branch is not used; for comparisons */
    const char *tokenizer;        /* a folder, a tokenizer.json or a rank file; NULL looks in the model's folder */
    const char *chat_template;    /* "auto" (default): the folder's; "minimax-m3": the built-in renderer whatever the folder has;
                                   * a file with a template, or the text of one */
    int threads;                  /* 0: one per core that this process may use */
    const char *cpu_pin;          /* workers stay on a core each: "auto" (default: with several memory nodes), "on", "off" */
    int gpu_wgmma_rows;           /* "cuda" on Hopper: steps of so many rows and more multiply by warpgroups, with the same bits
                                   * (docs/gpu.md); 0 (default): where that is faster, 1: all, -1: none; below: HY_USAGE */
    int max_model_len;            /* tokens of a sequence; 0: the config's max_position_embeddings */
    const char *drafter;          /* "off" (default), "on": the checkpoint's own (its folder dspark), or a drafter's folder */
    const char *draft_cache_dtype; /* of the drafter's context: "auto" (default: fp8, with a bf16 cache bf16), "fp8", "bf16" */
    const char *weights;          /* "load" (default), or "stream": routed experts are read from the files as a step routes
                                   * to them, into a cache; the files must stay as they are while the model is open */
    const char *load_format;      /* "auto" (default) or "safetensors": the files; "dummy": random weights of the config's shape,
                                   * made in memory (a GPU's in its own) without reading any file of weights; the path may then be
                                   * the name of a released geometry, "m3.1-flash", "m3", "m3-mxfp8" */
    uint64_t dummy_seed;          /* of random weights: the same seed gives the same */
    int dummy_layers;             /* with "dummy": only so many layers, 0 all; of these the last dummy_expert_layers, 0 as the */
    int dummy_expert_layers;      /* first dummy_layers have them, with experts */
    uint64_t memory;              /* bytes that the whole process may take; 0: no limit, with "stream" nine tenths of what
                                   * is free. What the engine and the weights leave is the cache of streamed experts. */
    const struct hy_engine_options *engine; /* with a limit: the engine to come, so that what will not fit is refused before
                                             * anything is read; NULL: the defaults */
    hy_progress_fn on_progress;
    void *user;
} hy_model_options;

/* What a model is, for planning and display. Strings live as long as the model. */
typedef struct hy_model_info {
    const char *path, *name;               /* folder; last part of it */
    const char *backend;                   /* "cpu", "cuda", "reference" */
    const char *kv_cache_dtype, *indexer_kv_dtype, *readback, *moe_activation; /* as resolved */
    int layers, hidden, vocab, max_model_len;
    uint64_t parameters;                   /* logical weights, counted from shapes */
    uint64_t weight_bytes;                 /* tensor bytes in the files */
    uint64_t cache_bytes_per_token;        /* all parts, bytes */
    bool has_tokenizer;
    uint64_t load_bytes;                   /* of weights brought or made on the device, in load_seconds; 0: not counted */
    double load_seconds;
    const char *load_way;                  /* "read directly", "read through the page cache", "copied", "made on the GPU" */
    const char *drafter;                   /* its folder; NULL: the model was opened without, and the next are 0 */
    const char *draft_cache_dtype;         /* as resolved */
    int draft_block;                       /* most drafts of a round */
    uint64_t draft_parameters, draft_weight_bytes; /* not in the two above */
    uint64_t draft_cache_bytes_per_token;  /* of cache_bytes_per_token */
} hy_model_info;

/*
 * Reads a checkpoint folder (or a hub cache folder, or a list of files: "a.safetensors,b.safetensors,config.json") and prepares
 * its weights. HY_BAD_MODEL names the file or tensor at fault, HY_USAGE a wrong option. A folder without a tokenizer opens; what needs text then fails by name.
 */
hy_status hy_model_open(const char *path, const hy_model_options *options, hy_model **model, hy_error *err);
void hy_model_close(hy_model *model);
void hy_model_describe(const hy_model *model, hy_model_info *info);

/* ---- Text ----------------------------------------------------------------------------------------------------- */

/* Token ids owned by the caller; release with hy_ids_free. A zeroed struct is empty. */
typedef struct hy_ids {
    int32_t *data; /* [count] */
    size_t count;
} hy_ids;
void hy_ids_free(hy_ids *ids);

/* Encodes text. Added tokens ("]~b]", "<mm:think>", ...) in it become their ids. HY_USAGE without a tokenizer. */
hy_status hy_tokenize(const hy_model *model, const char *text, size_t length, hy_ids *ids, hy_error *err);

/* Decodes ids into a string that the caller frees with free(). Broken UTF-8 becomes U+FFFD. An id of the vocabulary that
 * stands for no token is no text; HY_BAD_INPUT: one outside of the vocabulary. */
hy_status hy_detokenize(const hy_model *model, const int32_t *ids, size_t count, bool skip_special, char **text,
                        hy_error *err);

/*
 * Renders a conversation with the model's chat template and encodes it. `messages_json` is the array of the chat
 * completions protocol; `tools_json` (may be NULL) its tools array; `kwargs_json` (may be NULL) an object of template
 * variables such as {"thinking_mode": "enabled"}. HY_BAD_INPUT for what the template refuses.
 */
hy_status hy_render_chat(const hy_model *model, const char *messages_json, const char *tools_json,
                         const char *kwargs_json, hy_ids *ids, hy_error *err);

/* ---- Structured output ---------------------------------------------------------------------------------------- */

typedef struct hy_grammar hy_grammar;

/* JSON_SCHEMA: a JSON Schema. JSON_OBJECT: any object, no source. REGEX. CHOICE: a JSON array of strings. EBNF: GBNF. TOOLS:
 * {"tools": [...], "name": string or null, "parallel": bool}, calls in the model's form. TAGS: a structural_tag object. */
typedef enum hy_grammar_kind {
    HY_GRAMMAR_JSON_SCHEMA,
    HY_GRAMMAR_JSON_OBJECT,
    HY_GRAMMAR_REGEX,
    HY_GRAMMAR_CHOICE,
    HY_GRAMMAR_EBNF,
    HY_GRAMMAR_TOOLS,
    HY_GRAMMAR_TAGS,
} hy_grammar_kind;

typedef struct hy_grammar_options {
    bool compact;              /* JSON: no white space of the model's own choice between tokens */
    bool closed;               /* JSON: no properties beyond those that a schema names, where it does not say */
    const char *whitespace;    /* JSON: a regex for the white space between tokens; NULL: bounded white space */
} hy_grammar_options;

/* Compiles what texts are allowed. HY_BAD_INPUT names what is malformed or not supported. A grammar serves any number of
 * requests; those that run keep it alive. `options` may be NULL. */
hy_status hy_grammar_compile(const hy_model *model, hy_grammar_kind kind, const char *source, size_t length,
                             const hy_grammar_options *options, hy_grammar **grammar, hy_error *err);
void hy_grammar_close(hy_grammar *grammar);

/* ---- Sampling ------------------------------------------------------------------------------------------------- */

typedef struct hy_token_bias {
    int32_t token;
    float bias; /* added to the raw logit, -100 .. 100 */
} hy_token_bias;

/* Which numbers log-probabilities are: of the distribution as the network made it, or of the one that is drawn from (after masks,
 * bias, penalties, temperature and cuts); as logarithms of probabilities, or as logits. */
typedef enum hy_logprobs_mode {
    HY_RAW_LOGPROBS,
    HY_RAW_LOGITS,
    HY_PROCESSED_LOGPROBS,
    HY_PROCESSED_LOGITS,
} hy_logprobs_mode;

/*
 * How a token is chosen. The chain runs in this order: allowed ids, bad words and min_tokens; bias; repetition,
 * frequency and presence penalties; temperature; min-p; top-k; top-p; draw with Philox4x32-10 noise.
 */
typedef struct hy_sampling {
    float temperature;        /* 0 .. 2; below 1e-5 the largest logit wins */
    float top_p;              /* (0, 1]; 1 is off */
    int32_t top_k;            /* 0 or -1 is off */
    float min_p;              /* [0, 1]; 0 is off */
    float repetition_penalty; /* > 0; 1 is off; over prompt and output */
    float frequency_penalty;  /* -2 .. 2, per occurrence in the output */
    float presence_penalty;   /* -2 .. 2, once per token of the output */
    int64_t seed;             /* -1 draws one, which is logged and reported */
    int32_t max_tokens;       /* most tokens to make; 0: as many as the model's length allows */
    int32_t min_tokens;       /* end and stop ids are masked until then */
    int32_t logprobs;         /* -1: none; n >= 0: the token's own and the n best, at most the vocabulary */
    hy_logprobs_mode logprobs_mode;
    const int32_t *logprob_ids; size_t logprob_id_count; /* with logprobs: these tokens' too, behind the best; at most 128 */
    bool score_prompt;        /* the prompt's own log-probabilities (always raw) are told, see hy_result; its whole prompt is */
    int32_t prompt_logprobs;  /* computed. Each with so many best beside it, 0 .. the vocabulary */
    bool limit_thinking;      /* after thinking_tokens tokens of reasoning its closing marker is the only choice */
    int32_t thinking_tokens;  /* >= 0 */
    int32_t repeat_most, repeat_least, repeat_count; /* ends with HY_FINISH_REPETITION when the last tokens are one pattern of
                               * repeat_least .. repeat_most tokens, repeat_count (>= 2) times; repeat_most 0: never */
    bool ignore_eos;
    bool include_stop;        /* keep the stop string that was met in the text */
    const char *const *stop; size_t stop_count;                 /* strings that end the text */
    const int32_t *stop_ids; size_t stop_id_count;              /* tokens that end it, beside the model's own */
    const int32_t *allowed_ids; size_t allowed_count;           /* if any: nothing else can be chosen */
    const hy_token_bias *bias; size_t bias_count;
    const int32_t *const *bad_words; const size_t *bad_word_lengths; size_t bad_word_count; /* id sequences */
    const hy_grammar *grammar;  /* NULL: any text */
    bool grammar_at_once;       /* also holds for reasoning; otherwise from its end on */
} hy_sampling;

/* The checkpoint's recommended parameters (generation_config.json), else temperature 1 with nothing cut. */
hy_sampling hy_sampling_defaults(const hy_model *model);

/* ---- Requests ------------------------------------------------------------------------------------------------- */

typedef enum hy_finish {
    HY_RUNNING,
    HY_FINISH_STOP,   /* the end token, a stop id or a stop string */
    HY_FINISH_LENGTH, /* max_tokens, or the model's length */
    HY_FINISH_CANCEL, /* hy_request_cancel, or the callback returned false */
    HY_FINISH_ERROR,  /* see `error` */
    HY_FINISH_REPETITION, /* hy_sampling.repeat_most */
} hy_finish;

typedef struct hy_logprob {
    int32_t token;
    float logprob;
} hy_logprob;

/* What one step brought to one request. Everything is borrowed and valid during the callback only. */
typedef struct hy_event {
    const int32_t *ids; size_t id_count;     /* new tokens, the ending one included */
    const char *text; size_t text_length;    /* whole characters that may be shown now; can be empty */
    const hy_logprob *logprobs;              /* [id_count, logprobs_per_token]: the token itself, the n best (-1: fewer have a
                                              * probability), logprob_ids; NULL if not asked */
    size_t logprobs_per_token;
    hy_finish finish;                        /* HY_RUNNING until the last event */
    const char *stop_string; int32_t stop_id; /* what ended it: NULL and -1 where not a stop */
    const hy_error *error;                   /* with HY_FINISH_ERROR */
} hy_event;

/* Called on the engine's planner thread; must not block for long and must not close the request. False cancels. */
typedef bool (*hy_event_fn)(void *user, const hy_event *event);

typedef struct hy_request hy_request;

typedef struct hy_request_options {
    const int32_t *prompt_ids; size_t prompt_count; /* at least one, all within the vocabulary */
    hy_sampling sampling;
    int32_t choice;         /* 0 .. 16,383: which of n answers to one prompt and seed. Requests with one prompt that are
                             * submitted together compute it once. */
    int32_t usual_tokens;   /* without sampling.max_tokens: most tokens of the answer, where so many fit; 0: as many as fit */
    int32_t priority;       /* with the policy "priority" smaller goes first; ties in order of arrival */
    double deadline_s;      /* seconds from the client's asking after which the request ends with HY_LATE; 0: none */
    double waited_s;        /* seconds that the client waited before the submission: part of those above, of first_token_s and
                             * of whole_s */
    const char *cache_salt; /* cached blocks are shared with requests of the same salt only; NULL is "" */
    bool no_prefix_cache;   /* computes its whole prompt */
    int drafts;             /* of a round at most: 0: as the engine has it, below 0: none */
    const char *draft_method; /* in place of the engine's; NULL: that. HY_BAD_INPUT: what the engine was not opened for;
                             * without drafts only "coupled" is right */
    bool rendered;          /* the prompt is a conversation rendered as text and encoded: where an answer in it was made by
                             * this engine and reads the same, the tokens that were sampled take its place */
    bool keep_special;                              /* show added tokens in the text */
    bool routes;            /* the experts of every token are kept, see hy_result; its whole prompt is computed */
    hy_event_fn on_event;                           /* may be NULL: then only hy_request_result tells */
    void *user;
} hy_request_options;

hy_request_options hy_request_defaults(const hy_model *model);

/* How much of a prompt was there already. */
typedef struct hy_reuse {
    int32_t tokens;              /* of the prompt that were not computed: the sum of the next three */
    int32_t cache, memory, disk; /* found in the cache; brought back from the tier in memory, from the one on disk */
    char miss[64];               /* why not more: "new", "evicted", "salt", "off", "template changed at token 812", ... ; empty:
                                  * all but the last token was there, or the request was never admitted */
} hy_reuse;

/* What a request has made so far; strings and arrays are borrowed from the request. */
typedef struct hy_result {
    const int32_t *ids; size_t id_count;
    const char *text; size_t text_length;
    const int32_t *prompt_ids; size_t prompt_count; /* as computed: with `rendered` the sampled tokens in it */
    hy_reuse reuse;               /* of the first admission */
    int32_t preemptions;          /* times that it lost its cache and was computed again */
    int32_t draft_rounds, drafts, drafts_accepted; /* steps that verified drafts; these; of them accepted */
    hy_finish finish;
    /* With score_prompt, once the first token is there: of the tokens behind the prompt's first, [prompt_count - 1,
     * prompt_logprobs_per_token], the token's own first; and its rank among all, 1 being the likeliest. */
    const hy_logprob *prompt_logprobs; size_t prompt_logprobs_per_token;
    const int32_t *prompt_ranks;  /* [prompt_count - 1] */
    /* With `routes`: experts in ascending order, [prompt_count + id_count - 1, layers, experts_per_token]; the last token has
     * none, layers without experts have zeros. */
    const uint16_t *routes; int32_t route_layers, route_experts;
    int64_t seed;                 /* the one that was used */
    double queue_s, prefill_s, decode_s;
} hy_result;

/* ---- Engine --------------------------------------------------------------------------------------------------- */

typedef struct hy_engine hy_engine;

/*
 * Drafts: the model's drafter (hy_model_options.drafter) proposes tokens that one step verifies together. With "coupled" the
 * tokens of every request are those without drafts. The others are there for comparison and benchmarks.
 */
enum { HY_MAX_DRAFTS = 16 };

typedef struct hy_speculation {
    int drafts;             /* of a round at most; 0: none (default). Not above the drafter's block */
    const char *method;     /* "coupled" (default), "standard", "block", "synthetic" */
    bool greedy_drafts;     /* drafts are the likeliest tokens, not drawn; with "coupled" at a temperature they rarely agree */
    const int *by_batch;    /* [by_batch_count] drafts with up to i + 1 sequences in a step, the last for more; NULL: `drafts` */
    size_t by_batch_count;
    const float *rates;     /* [drafts] synthetic: part of the rounds in which so many drafts at least are accepted: not rising */
    float confidence;       /* a round ends before the first draft that the drafter trusts less; 0: not asked */
} hy_speculation;

/* A zeroed struct means every default. Names are those of the command line. */
typedef struct hy_engine_options {
    int max_num_seqs;            /* requests running at once; 0: 256 */
    int max_num_batched_tokens;  /* rows of one step; 0: 512 */
    int max_waiting;             /* requests that may queue before new ones are refused with HY_BUSY; 0: 4096 */
    int long_prefill_token_threshold; /* rows that one request may have in a step; 0: as many as there are */
    const char *scheduling_policy;    /* "fcfs" (default) or "priority" */
    hy_speculation speculation;       /* copied; its method is borrowed as the other strings are: until the engine is open */
    double watermark;                 /* part of the blocks that admission leaves free, 0 .. 0.5 */
    const char *prefix_caching;       /* "on" (default) or "off" */
    uint64_t offload_memory;          /* bytes of memory for blocks that leave the cache; 0: none */
    const char *offload_disk;         /* folder that keeps blocks which nobody uses at the moment, so that the next start finds
                                       * them; NULL: none */
    uint64_t offload_disk_bytes;      /* most bytes there; 0: half of what is free */
    double log_seconds;               /* between lines of throughput and hits; 0: 10, below 0: none; finite */
    double stall_seconds;             /* without progress until the log says where; 0: 60, below 0: never; finite */
    uint64_t cache_bytes;        /* 0: sixteen longest sequences, at most a quarter of the free memory; one: half; with
                                  * streamed weights at most an eighth of what is left, the rest being for experts; on a
                                  * GPU 256 longest sequences, within cache_share */
    double cache_share;          /* on a GPU: the most that the cache takes of what weights and a step leave, 0 .. 1; 0: 0.92 */
} hy_engine_options;

/* Plans memory, allocates the cache and starts the engine's two threads. HY_NO_FIT says what would fit. */
hy_status hy_engine_open(hy_model *model, const hy_engine_options *options, hy_engine **engine, hy_error *err);
/* Cancels what runs, waits for the threads. Requests must still be closed by their owners, before or after. */
void hy_engine_close(hy_engine *engine);

/*
 * Queues a request. HY_BAD_INPUT: empty prompt, an id outside the vocabulary, a parameter out of range. HY_NO_FIT:
 * the prompt cannot fit the model's length or the cache, ever. HY_BUSY: the queue is full. HY_FAILED: the engine has
 * stopped.
 */
hy_status hy_engine_submit(hy_engine *engine, const hy_request_options *options, hy_request **request, hy_error *err);
/* Ends a request at the next step; its last event has HY_FINISH_CANCEL. Safe from the callback and after the end. */
void hy_request_cancel(hy_request *request);
/* Blocks until the last event has been delivered. Returns HY_OK, HY_CANCELLED, or the error's status. */
hy_status hy_request_wait(hy_request *request);
/* A view of what is there. Call after hy_request_wait, or from the callback. */
void hy_request_result(const hy_request *request, hy_result *result);
/* Cancels if still running, waits for the end and frees. Not from the callback. */
void hy_request_close(hy_request *request);

/* What streaming the experts did since the model was opened; all zero with loaded weights. */
typedef struct hy_expert_stats {
    uint64_t slots, slot_bytes;      /* experts that the cache holds, bytes of one */
    uint64_t experts;                /* of the model, all layers */
    uint64_t hits, misses;           /* experts that a layer of a step wanted: there, not there */
    uint64_t ahead_hits, ahead_late; /* of the hits: brought by look-ahead; of the misses: look-ahead was reading them */
    uint64_t ahead_reads;            /* experts that look-ahead began to read */
    uint64_t loaded, evicted, bytes_read;
    double wait_seconds;             /* that steps waited for reads */
    const char *io;                  /* "io_uring, direct", "pread", ...; NULL with loaded weights */
} hy_expert_stats;

/* Why a prompt was not reused further. */
typedef enum hy_miss {
    HY_MISS_NONE,     /* all but the last token was there */
    HY_MISS_NEW,      /* nobody has had this continuation */
    HY_MISS_EVICTED,  /* it was there and had to make room */
    HY_MISS_SALT,     /* it is there under another salt */
    HY_MISS_TEMPLATE, /* an answer made here came back as other text */
    HY_MISS_OFF,      /* prefix caching is off, for the engine or the request */
    HY_MISS_DAMAGED,  /* a block on disk was damaged or gone */
    HY_MISS_REASONS,
} hy_miss;
const char *hy_miss_name(hy_miss miss); /* "none", "new", "evicted", ... */

/* Numbers of the engine for metrics and displays; counters since the start. */
typedef struct hy_engine_stats {
    int running, waiting;
    uint64_t prompt_tokens; /* computed or reused, each of a request once */
    uint64_t prompt_cached, prompt_loaded; /* of these: found in the cache, brought back from the tiers */
    uint64_t generated_tokens, steps, requests_finished;
    double cache_usage; /* 0 .. 1 of the blocks in use */
    uint64_t cache_blocks, cache_bytes;
    double cache_longest; /* sequences of the model's length that the cache holds */
    bool prefix_caching;
    uint64_t rows;                      /* of all steps: prompt tokens that were computed and tokens fed back */
    uint64_t preemptions, cancelled, failed, refused;
    int failing_steps; /* steps that failed since the last one that did not */
    uint64_t draft_rounds, drafts, drafts_accepted;    /* one request in one step that verified drafts of it is a round */
    uint64_t drafts_accepted_at[HY_MAX_DRAFTS];        /* rounds in which at least i + 1 were accepted */
    bool speculates; /* the engine was opened with drafts */
    int draft_positions; /* most drafts of a round */
    uint64_t prefix_queries, prefix_hits; /* tokens of admitted prompts; those found in the cache */
    uint64_t memory_hits, disk_hits;      /* tokens brought back from the tiers */
    uint64_t misses[HY_MISS_REASONS];     /* admissions by why not more was reused */
    uint64_t memory_blocks, disk_blocks, disk_written, disk_damaged; /* of the tiers; blocks written and found damaged */
    /* Seconds since the start: taking in and planning, running operations, sampling, drafting, handing out tokens; and of the steps'
     * threads: waiting for a plan while there was work. */
    double plan_s, forward_s, sample_s, draft_s, hand_out_s, wait_s;
    hy_expert_stats experts;
} hy_engine_stats;
void hy_engine_describe(const hy_engine *engine, hy_engine_stats *stats);

enum { HY_HISTOGRAM_BOUNDS = 24, HY_FINISH_REASONS = 8 /* room for those of hy_finish */ };

/* How often values were at most bounds[i] and above the bound before; counts[bound_count]: above all. */
typedef struct hy_histogram {
    const double *bounds; size_t bound_count; /* ascending; borrowed from the engine */
    uint64_t counts[HY_HISTOGRAM_BOUNDS + 1];
    double sum;
} hy_histogram;

/* What the engine measured since the start. Each request is observed at its end, with what it came to. */
typedef struct hy_engine_measures {
    hy_histogram first_token_s;     /* from the client's asking (waited_s) to the first token */
    hy_histogram between_tokens_s;  /* one a token, but for first ones */
    hy_histogram per_token_s;       /* of one request: the mean of the line above */
    hy_histogram whole_s, queue_s;  /* from the client's asking to the end; from the submission to the admission */
    hy_histogram inference_s, prefill_s, decode_s; /* admission to last token; to first token; from there to the last */
    hy_histogram prompt_tokens, generated_tokens;
    hy_histogram max_tokens;        /* that it could have made */
    hy_histogram prefill_tokens;    /* of the prompt that were computed */
    hy_histogram step_rows;         /* one a step */
    uint64_t ended[HY_FINISH_REASONS]; /* requests, by hy_finish */
} hy_engine_measures;
void hy_engine_measure(const hy_engine *engine, hy_engine_measures *measures);

#ifdef __cplusplus
}
#endif
#endif
