/*
 * Hayate: run MiniMax-M3 and M3.1-Flash checkpoints from C.
 *
 * Four nouns. A `hy_model` is a checkpoint that has been read: its config, its tokenizer and its prepared weights.
 * A `hy_engine` owns a cache and a thread that turns requests into tokens. A `hy_request` is one prompt on its way;
 * its tokens arrive in a callback. `hy_sampling` says how a token is chosen.
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
 * Rules that hold everywhere:
 *  - Functions that can fail return `hy_status` and fill the caller's `hy_error` (which may be NULL). On failure the
 *    outputs are untouched. The library never prints and never exits; log lines go to `hy_log_set`.
 *  - Strings are UTF-8 and end in NUL unless a length stands beside them. Options are copied during the call.
 *  - Objects are closed by the one who opened them, in the reverse order. Closing NULL does nothing.
 *  - A model may be shared by engines and threads. An engine's functions may be called from any thread.
 *  - The tokens of a request depend on its prompt, its parameters and its seed, and on nothing else.
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
    HY_BAD_INPUT,   /* a request's content is wrong: a token id outside the vocabulary, an empty prompt */
    HY_CANCELLED,   /* the request was cancelled by its owner */
    HY_UNSUPPORTED, /* known, but not done by this build or backend */
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
    const char *backend;          /* "cpu" (default) or "reference" */
    const char *kv_cache_dtype;   /* "auto" (default), "bf16", "fp8", "nvfp4"; "fp32" on the reference */
    const char *indexer_kv_dtype; /* the same; "auto" follows the main cache */
    const char *readback;         /* "exact" (default) or "e4m3" */
    const char *moe_activation;   /* "auto" (default: "nvfp4" for pack-quantised experts), "nvfp4" or "none" */
    const char *attention;        /* "sparse" (default: as the config says), or "dense": every row reads all blocks, the index
                                   * branch is not used; for comparisons */
    const char *tokenizer;        /* a folder, a tokenizer.json or a rank file; NULL looks in the model's folder */
    const char *chat_template;    /* "auto" (default) or "minimax-m3", the built-in renderer whatever the folder has */
    int threads;                  /* 0: one per core that this process may use */
    const char *cpu_pin;          /* workers stay on a core each: "auto" (default: with several memory nodes), "on", "off" */
    int max_model_len;            /* tokens of a sequence; 0: the config's max_position_embeddings */
    const char *weights;          /* "load" (default), or "stream": routed experts are read from the files as a step routes
                                   * to them, into a cache; the files must stay as they are while the model is open */
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
    const char *backend;                   /* "cpu", "reference" */
    const char *kv_cache_dtype, *indexer_kv_dtype, *readback, *moe_activation; /* as resolved */
    int layers, hidden, vocab, max_model_len;
    uint64_t parameters;                   /* logical weights, counted from shapes */
    uint64_t weight_bytes;                 /* tensor bytes in the files */
    uint64_t cache_bytes_per_token;        /* main and index parts, bytes */
    bool has_tokenizer;
} hy_model_info;

/*
 * Reads a checkpoint folder (or a hub cache folder) and prepares its weights. HY_BAD_MODEL names the file or tensor
 * at fault, HY_USAGE a wrong option. A folder without a tokenizer opens; what needs text then fails by name.
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

/* Decodes ids into a string that the caller frees with free(). Broken UTF-8 becomes U+FFFD. */
hy_status hy_detokenize(const hy_model *model, const int32_t *ids, size_t count, bool skip_special, char **text,
                        hy_error *err);

/*
 * Renders a conversation with the model's chat template and encodes it. `messages_json` is the array of the chat
 * completions protocol; `tools_json` (may be NULL) its tools array; `kwargs_json` (may be NULL) an object of template
 * variables such as {"thinking_mode": "enabled"}. HY_BAD_INPUT for what the template refuses.
 */
hy_status hy_render_chat(const hy_model *model, const char *messages_json, const char *tools_json,
                         const char *kwargs_json, hy_ids *ids, hy_error *err);

/* ---- Sampling ------------------------------------------------------------------------------------------------- */

typedef struct hy_token_bias {
    int32_t token;
    float bias; /* added to the raw logit, -100 .. 100 */
} hy_token_bias;

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
    int32_t logprobs;         /* -1: none; n >= 0: the token's own and the n best, at most 20 */
    bool ignore_eos;
    bool include_stop;        /* keep the stop string that was met in the text */
    const char *const *stop; size_t stop_count;                 /* strings that end the text */
    const int32_t *stop_ids; size_t stop_id_count;              /* tokens that end it, beside the model's own */
    const int32_t *allowed_ids; size_t allowed_count;           /* if any: nothing else can be chosen */
    const hy_token_bias *bias; size_t bias_count;
    const int32_t *const *bad_words; const size_t *bad_word_lengths; size_t bad_word_count; /* id sequences */
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
} hy_finish;

typedef struct hy_logprob {
    int32_t token;
    float logprob;
} hy_logprob;

/* What one step brought to one request. Everything is borrowed and valid during the callback only. */
typedef struct hy_event {
    const int32_t *ids; size_t id_count;     /* new tokens, the ending one included */
    const char *text; size_t text_length;    /* whole characters that may be shown now; can be empty */
    const hy_logprob *logprobs;              /* [id_count, 1 + n]: the token itself, then the n best; NULL if not asked */
    size_t logprobs_per_token;
    hy_finish finish;                        /* HY_RUNNING until the last event */
    const char *stop_string; int32_t stop_id; /* what ended it: NULL and -1 where not a stop */
    const hy_error *error;                   /* with HY_FINISH_ERROR */
} hy_event;

/* Called on the engine's thread; must not block for long and must not close the request. False cancels. */
typedef bool (*hy_event_fn)(void *user, const hy_event *event);

typedef struct hy_request hy_request;

typedef struct hy_request_options {
    const int32_t *prompt_ids; size_t prompt_count; /* at least one, all within the vocabulary */
    hy_sampling sampling;
    bool keep_special;                              /* show added tokens in the text */
    hy_event_fn on_event;                           /* may be NULL: then only hy_request_result tells */
    void *user;
} hy_request_options;

hy_request_options hy_request_defaults(const hy_model *model);

/* What a request has made so far; strings and arrays are borrowed from the request. */
typedef struct hy_result {
    const int32_t *ids; size_t id_count;
    const char *text; size_t text_length;
    size_t prompt_count;
    hy_finish finish;
    int64_t seed;                 /* the one that was used */
    double queue_s, prefill_s, decode_s;
} hy_result;

/* ---- Engine --------------------------------------------------------------------------------------------------- */

typedef struct hy_engine hy_engine;

typedef struct hy_engine_options {
    int max_num_seqs;            /* requests running at once; 0: 256 */
    int max_num_batched_tokens;  /* rows of one step; 0: 512 */
    int max_waiting;             /* requests that may queue before new ones are refused; 0: 4096 */
    uint64_t cache_bytes;        /* 0: sixteen longest sequences, at most a quarter of the free memory; one: half; with
                                  * streamed weights at most an eighth of what is left, the rest being for experts */
} hy_engine_options;

/* Plans memory, allocates the cache and starts the engine's thread. HY_NO_FIT says what would fit. */
hy_status hy_engine_open(hy_model *model, const hy_engine_options *options, hy_engine **engine, hy_error *err);
/* Cancels what runs, waits for the thread. Requests must still be closed by their owners, before or after. */
void hy_engine_close(hy_engine *engine);

/*
 * Queues a request. HY_BAD_INPUT: empty prompt, an id outside the vocabulary, a parameter out of range. HY_NO_FIT:
 * the prompt cannot fit the model's length or the cache, ever. HY_FAILED: the queue is full or the engine has stopped.
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

/* Numbers of the engine for metrics and displays; counters since the start. */
typedef struct hy_engine_stats {
    int running, waiting;
    uint64_t prompt_tokens, generated_tokens, steps, requests_finished;
    double cache_usage; /* 0 .. 1 of the blocks in use */
    uint64_t cache_blocks, cache_bytes;
    hy_expert_stats experts;
} hy_engine_stats;
void hy_engine_describe(const hy_engine *engine, hy_engine_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
