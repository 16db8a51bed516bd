/*
 * Flags that several commands share: how a model is opened, how its engine is set up, how tokens are chosen.
 *
 * Each `flags_..._table` appends its lines to a command's table and returns the new count; the tables then go through
 * cli_parse as one.
 */
#ifndef HAYATE_CLI_FLAGS_H
#define HAYATE_CLI_FLAGS_H

#include "cli/cli.h"

enum { FLAGS_MAX = 50 }; /* room for a command's own lines and all of these */

/* Log lines of the library go to stderr as "LEVEL MM-DD HH:MM:SS message", from this level on. */
void flags_log_start(hy_log_level level);
/* From here on errors are not among them: a command with one request at a time prints how it ended (cli_error). */
void flags_log_no_errors(void);

typedef struct model_flags {
    hy_model_options model; /* on_progress is cli_progress */
    uint64_t cache_bytes, max_batched_tokens, offload_disk_bytes;
    const char *offload_disk, *speculative_config;
    bool verbose;
} model_flags;

/* Everything at its default. */
model_flags flags_model(void);
/* What computes, and in which formats: backend, threads, cache, activations. */
int flags_backend_table(hy_model_options *model, cli_option *table, int count);
/* tokenizer only: what text needs, without cache and backend. */
int flags_text_table(model_flags *f, cli_option *table, int count);
int flags_model_table(model_flags *f, cli_option *table, int count);
/* What the flags alone can tell: -1, or 2 after an error that is printed. */
int flags_check(const char *command, const model_flags *f);
/* Opens model and engine; on failure both are NULL. Sets the log level first. */
hy_status flags_open(const char *path, const model_flags *f, hy_model **model, hy_engine **engine, hy_error *err);

/* Values that were not given stay at what the model recommends. */
typedef struct sampling_flags {
    float temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty; /* NAN: not given */
    int top_k, max_tokens, min_tokens, logprobs;                                              /* INT_MIN: not given */
    int64_t seed;
    const char *stop_ids;
    cli_strings stop;
    bool ignore_eos, include_stop;
    hy_ids stop_id_list; /* owned: flags_sampling_free */
} sampling_flags;

sampling_flags flags_sampling(void);
int flags_sampling_table(sampling_flags *f, cli_option *table, int count);
/* Onto the model's defaults. The result borrows from `f`. */
hy_status flags_sampling_apply(sampling_flags *f, const hy_model *model, hy_sampling *out, hy_error *err);
void flags_sampling_free(sampling_flags *f);

/* A file's whole text, "-" for standard input. free() it. HY_FAILED, or HY_BAD_INPUT when it is larger than 256 MiB. */
hy_status flags_read_text(const char *path, char **text, size_t *length, hy_error *err);
/* Token ids: a file that holds them, or the list itself: "1,2,3", "[1, 2, 3]". */
hy_status flags_read_ids(const char *file_or_list, hy_ids *ids, hy_error *err);

/* "enabled", "disabled" or "adaptive" */
bool flags_thinking_mode(const char *mode);
/* "stop", "length", "cancel", "error" */
const char *flags_finish_name(hy_finish finish);

#endif
