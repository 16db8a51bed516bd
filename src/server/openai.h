/* What chat completions and completions have in common: fields of the request, pieces of the answer. Private to the
 * room. */
#ifndef HAYATE_SERVER_OPENAI_H
#define HAYATE_SERVER_OPENAI_H

#include "base/json.h"
#include "server/generation.h"

/* Fields by table; strings and trees are borrowed from the body and gone once the request is submitted. */
typedef struct openai_request {
    const char *model, *cache_salt;
    int64_t n, priority, interval, prompt_logprobs, truncate;
    double deadline_s, length_penalty;
    bool beam_search, stream, return_token_ids, tokens_as_ids, skip_special;
    bool has_prompt_logprobs, include_usage, continuous_usage;
    json_t *stream_options, *response_format, *structured_outputs, *repetition, *speculation;
    const char *truncation_side;
} openai_request;

extern const request_field openai_fields[];
extern const size_t openai_field_count;

/* Reads and checks the common fields, the sampling ones among them, into `r` and g->plan. */
bool openai_read(generation *g, json_t *body, openai_request *r, request_fault *fault);
/* How many best tokens a request may see: `name` has `top`, -1 means all. Sets *out. */
bool openai_logprobs(const generation *g, const char *name, int64_t top, int32_t *out, request_fault *fault);
/* repetition_detection, may be NULL; `place` is its own for faults. */
bool openai_repetition(const json_t *detection, const char *place, hy_sampling *s, request_fault *fault);
/* thinking_token_budget, -1: none. */
bool openai_thinking_budget(generation *g, int64_t budget, request_fault *fault);
/* A salt of the cache is some text, and no long one. NULL: none. */
bool openai_check_salt(const char *salt, request_fault *fault);

/* `speculation` of a request, NULL: not given: {"num_speculative_tokens", "rejection_sample_method"} into the plan. */
bool openai_read_speculation(const json_t *object, generation_plan *plan, request_fault *fault);

/* ---- Writing ---------------------------------------------------------------------------------------------------- */

/* {"id":…,"object":…,"created":…,"model":…,"choices":[ */
void openai_write_head(json_writer *w, const generation *g, const char *object);
/* One token's text, "token_id:N" with `as_id`. */
void openai_write_token_text(json_writer *w, const generation *g, int32_t token, bool as_id);
/* The same as a key of an object. */
void openai_write_token_key(json_writer *w, const generation *g, int32_t token, bool as_id);
/* "logprobs":{"content":[…]}; step NULL: null. */
void openai_write_logprobs(json_writer *w, const generation *g, const generation_step *step, bool as_ids);
void openai_write_stop_reason(json_writer *w, const generation_step *step);
void openai_write_ids(json_writer *w, const char *key, const int32_t *ids, size_t count); /* ids NULL: null */
/* In a usage: "hayate_drafts":{"rounds","drafted","accepted"}, where there were rounds. */
void openai_write_drafts(json_writer *w, int64_t rounds, int64_t drafts, int64_t accepted);
/* "usage":{…}; with `details` what of the prompt was not computed. `index` as generation_usage_of. */
void openai_write_usage(json_writer *w, const generation *g, int index, bool details);
void openai_write_fingerprint(json_writer *w, const generation *g);
void openai_write_metrics(json_writer *w, const generation *g);
/* The log-probabilities of a prompt: null, then {"id":{"logprob","rank","decoded_token"}, …}. */
void openai_write_prompt_logprobs(json_writer *w, const generation *g, size_t prompt);
/* "kv_transfer_params": of an answer that was given, else null. */
void openai_write_transfer(json_writer *w, const generation *g);
/* The experts of a whole answer's tokens as base64 of a NumPy file, where the request has them; else null. */
void openai_write_routes(json_writer *w, const generation *g, const generation_step *step);
double openai_logprob(float x); /* at least -9999 */

/* The header endpoint-load-metrics of a whole answer, for routers that ask for it. Before the reply. */
void openai_load_header(const generation *g);

/* Sends an event of the stream and frees the buffer. */
void openai_send(generation *g, buffer *event);
/* The last chunk of a stream, choices empty, if the request wants it; then the end. */
void openai_end_stream(generation *g, const char *object, bool include_usage);

#endif
