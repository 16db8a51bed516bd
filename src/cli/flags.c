#include "cli/flags.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buffer.h"
#include "base/error.h"
#include "base/file.h"
#include "cli/find_model.h"
#include "cli/speculation.h"
#include "model/trace.h"

enum { TEXT_LIMIT = 256 << 20 };

/* ---- Log ------------------------------------------------------------------------------------------------------ */

static atomic_bool no_errors;

static void print_line(void *user, hy_log_level level, const char *line)
{
    static const char *const names[] = {"DEBUG", "INFO", "WARNING", "ERROR"};
    char when[32];
    time_t now = time(NULL);
    struct tm local;
    (void)user;
    if (level == HY_LOG_ERROR && atomic_load(&no_errors)) return;
    localtime_r(&now, &local);
    strftime(when, sizeof when, "%m-%d %H:%M:%S", &local);
    fprintf(stderr, "%s %s %s\n", names[level], when, line); /* one call: lines of threads do not mix */
}

void flags_log_start(hy_log_level level)
{
    hy_log_set(print_line, NULL, level);
}

void flags_log_no_errors(void)
{
    atomic_store(&no_errors, true);
}

/* ---- Model and engine ----------------------------------------------------------------------------------------- */

static int add(cli_option *table, int count, cli_option line)
{
    table[count] = line;
    return count + 1;
}

model_flags flags_model(void)
{
    return (model_flags){.model = {.on_progress = cli_progress}};
}

int flags_text_table(model_flags *f, cli_option *t, int n)
{
    hy_model_options *m = &f->model;
    n = add(t, n,
            (cli_option){"tokenizer", "PATH", "a folder, tokenizer.json or rank file (default: the model's folder)",
                         &m->tokenizer, CLI_STRING});
    n = add(t, n, (cli_option){"verbose", NULL, "show the log on stderr", &f->verbose, CLI_FLAG});
    return n;
}

int flags_backend_table(hy_model_options *m, cli_option *t, int n)
{
    n = add(t, n, (cli_option){"backend", "NAME", "cpu (default), cuda or reference", &m->backend, CLI_STRING});
    n = add(t, n, (cli_option){"device", "NAME", "the same: auto (default), cpu or cuda", &m->backend, CLI_STRING});
    n = add(t, n, (cli_option){"threads", "N", "worker threads (default: one per core)", &m->threads, CLI_INT});
    n = add(
        t, n,
        (cli_option){
            "cpu-pin", "WHEN",
            "keep each thread on a core: auto (default: on several memory nodes and with one for every core), on, off",
            &m->cpu_pin, CLI_STRING});
    n = add(t, n,
            (cli_option){"kv-cache-dtype", "FORMAT", "auto (default), bf16, fp8, nvfp4; fp32 on the reference",
                         &m->kv_cache_dtype, CLI_STRING});
    n = add(t, n,
            (cli_option){"indexer-kv-dtype", "FORMAT", "the same for index keys (default: as the main cache)",
                         &m->indexer_kv_dtype, CLI_STRING});
    n = add(t, n,
            (cli_option){"readback", "KIND", "how an nvfp4 cache is read: exact (default) or e4m3", &m->readback,
                         CLI_STRING});
    n = add(t, n,
            (cli_option){"moe-activation", "KIND", "activations of routed experts: auto (default), nvfp4 or none",
                         &m->moe_activation, CLI_STRING});
    n = add(t, n,
            (cli_option){"gpu-wgmma-rows", "N",
                         "with cuda on Hopper: products of N rows and more by warpgroups (default 0: where that is "
                         "faster; 1: all; -1: "
                         "none)",
                         &m->gpu_wgmma_rows, CLI_INT});
    return n;
}

int flags_model_table(model_flags *f, cli_option *t, int n)
{
    hy_model_options *m = &f->model;
    n = flags_backend_table(m, t, n);
    n = add(t, n,
            (cli_option){"max-model-len", "N", "longest sequence in tokens (default: the model's)", &m->max_model_len,
                         CLI_INT});
    n = add(t, n,
            (cli_option){"kv-cache-memory-bytes", "SIZE",
                         "size of the cache, such as 4GiB (default: sixteen longest sequences, at most a quarter of "
                         "the free memory; with --weights stream an eighth)",
                         &f->cache_bytes, CLI_SIZE});
    n = add(t, n,
            (cli_option){"weights", "KIND",
                         "load (default): all weights in memory; stream: experts are read from the files as they are "
                         "needed, for models larger than memory",
                         &m->weights, CLI_STRING});
    n = add(t, n,
            (cli_option){"memory", "SIZE",
                         "most memory of the whole process, such as 20G (default or 0: no limit; with --weights stream "
                         "nine tenths of what is free)",
                         &m->memory, CLI_SIZE});
    n = add(t, n,
            (cli_option){"max-num-batched-tokens", "N", "rows of one step (default 512)", &f->max_batched_tokens,
                         CLI_COUNT});
    n = add(t, n,
            (cli_option){"kv-offload-disk", "FOLDER",
                         "folder that keeps blocks which nobody uses at the moment, so that the next start finds them "
                         "(default: none)",
                         &f->offload_disk, CLI_STRING});
    n = add(t, n,
            (cli_option){"kv-offload-disk-size", "SIZE", "most bytes there (default: half of what is free)",
                         &f->offload_disk_bytes, CLI_SIZE});
    n = add(t, n,
            (cli_option){"chat-template", "TEXT",
                         "auto (default): the folder's; minimax-m3: the built-in one; a file, or the template itself",
                         &m->chat_template, CLI_STRING});
    n = add(
        t, n,
        (cli_option){"speculative-config", "JSON",
                     "drafts of the model's drafter, such as '{\"num_speculative_tokens\": 7}'; the tokens stay the "
                     "same (docs/speculation.md; default: none)",
                     &f->speculative_config, CLI_STRING});
    return flags_text_table(f, t, n);
}

int flags_check(const char *command, const model_flags *f)
{
    speculation s;
    return f->speculative_config ? speculation_parse(command, f->speculative_config, &s) : -1;
}

hy_status flags_open(const char *path, const model_flags *f, hy_model **model, hy_engine **engine, hy_error *err)
{
    if (f->verbose) flags_log_start(HY_LOG_INFO);
    if (f->max_batched_tokens > INT_MAX)
        return error_set(err, HY_USAGE, "--max-num-batched-tokens is too large: 512 is usual");
    if (f->offload_disk_bytes > 0 && !f->offload_disk)
        return error_set(err, HY_USAGE,
                         "--kv-offload-disk-size limits the folder of --kv-offload-disk, which was not given");
    hy_engine_options options = {.max_num_seqs = 1,
                                 .max_num_batched_tokens = (int)f->max_batched_tokens,
                                 .offload_disk = f->offload_disk,
                                 .offload_disk_bytes = f->offload_disk_bytes,
                                 .cache_bytes = f->cache_bytes};
    hy_model_options o = f->model;
    o.engine = &options;
    char folder[FIND_PATH_SIZE];
    speculation s = {0};
    if (f->speculative_config) speculation_parse("", f->speculative_config, &s); /* flags_check found it right */
    hy_status status = find_model(path, NULL, folder, err);
    if (status == HY_OK) status = speculation_find(&s, folder, &o, &options, err);
    if (status == HY_OK) status = hy_model_open(folder, &o, model, err);
    if (status == HY_OK) speculation_settle(&s, *model, 1, &options);
    if (status == HY_OK) status = hy_engine_open(*model, &options, engine, err);
    if (status != HY_OK) {
        hy_model_close(*model);
        *model = NULL;
    }
    return status;
}

/* ---- Sampling ------------------------------------------------------------------------------------------------- */

sampling_flags flags_sampling(void)
{
    return (sampling_flags){NAN, NAN, NAN, NAN, NAN, NAN, INT_MIN, INT_MIN, INT_MIN, INT_MIN, .seed = -1};
}

int flags_sampling_table(sampling_flags *f, cli_option *t, int n)
{
    n = add(t, n,
            (cli_option){"temperature", "T", "0 to 2; 0 takes the likeliest token (default: the model's)",
                         &f->temperature, CLI_FLOAT});
    n = add(t, n,
            (cli_option){"top-p", "P", "choose among the likeliest tokens that make up P (default: the model's)",
                         &f->top_p, CLI_FLOAT});
    n = add(t, n,
            (cli_option){"top-k", "K", "choose among the K likeliest; 0 is off (default: the model's)", &f->top_k,
                         CLI_INT});
    n = add(t, n,
            (cli_option){"min-p", "P", "leave out tokens less likely than P times the best (default: the model's)",
                         &f->min_p, CLI_FLOAT});
    n = add(t, n,
            (cli_option){"repetition-penalty", "X", "above 0; 1 is off (default: the model's)", &f->repetition_penalty,
                         CLI_FLOAT});
    n = add(t, n,
            (cli_option){"frequency-penalty", "X", "-2 to 2, for every time a token came (default 0)",
                         &f->frequency_penalty, CLI_FLOAT});
    n = add(t, n,
            (cli_option){"presence-penalty", "X", "-2 to 2, once for a token that came (default 0)",
                         &f->presence_penalty, CLI_FLOAT});
    n = add(t, n, (cli_option){"seed", "N", "start of the random numbers; -1 draws one (default)", &f->seed, CLI_LONG});
    n = add(t, n,
            (cli_option){"max-tokens", "N", "most tokens to make (default: as many as fit)", &f->max_tokens, CLI_INT});
    n = add(t, n, (cli_option){"min-tokens", "N", "no end before so many tokens (default 0)", &f->min_tokens, CLI_INT});
    n = add(
        t, n,
        (cli_option){"stop", "TEXT", "end where this text comes; may be given several times", &f->stop, CLI_STRINGS});
    n = add(t, n, (cli_option){"stop-ids", "LIST", "end at these tokens, such as 5,17", &f->stop_ids, CLI_STRING});
    n = add(t, n, (cli_option){"include-stop", NULL, "keep the stop text", &f->include_stop, CLI_FLAG});
    n = add(t, n, (cli_option){"ignore-eos", NULL, "go on after the model's end token", &f->ignore_eos, CLI_FLAG});
    return n;
}

hy_status flags_sampling_apply(sampling_flags *f, const hy_model *model, hy_sampling *out, hy_error *err)
{
    hy_sampling s = hy_sampling_defaults(model);
    const struct {
        float given, *to;
    } numbers[] = {{f->temperature, &s.temperature},
                   {f->top_p, &s.top_p},
                   {f->min_p, &s.min_p},
                   {f->repetition_penalty, &s.repetition_penalty},
                   {f->frequency_penalty, &s.frequency_penalty},
                   {f->presence_penalty, &s.presence_penalty}};
    const struct {
        int given;
        int32_t *to;
    } wholes[] = {{f->top_k, &s.top_k},
                  {f->max_tokens, &s.max_tokens},
                  {f->min_tokens, &s.min_tokens},
                  {f->logprobs, &s.logprobs}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!isnan(numbers[i].given)) *numbers[i].to = numbers[i].given;
    for (size_t i = 0; i < sizeof wholes / sizeof *wholes; i++)
        if (wholes[i].given != INT_MIN) *wholes[i].to = wholes[i].given;
    s.seed = f->seed;
    s.ignore_eos = f->ignore_eos, s.include_stop = f->include_stop;
    s.stop = f->stop.items, s.stop_count = (size_t)f->stop.count;
    if (f->stop_ids) {
        hy_status status = trace_parse_ids(f->stop_ids, strlen(f->stop_ids), &f->stop_id_list, err);
        if (status != HY_OK) return status;
        s.stop_ids = f->stop_id_list.data, s.stop_id_count = f->stop_id_list.count;
    }
    *out = s;
    return HY_OK;
}

void flags_sampling_free(sampling_flags *f)
{
    hy_ids_free(&f->stop_id_list);
}

/* ---- Text and ids from outside -------------------------------------------------------------------------------- */

hy_status flags_read_text(const char *path, char **text, size_t *length, hy_error *err)
{
    FILE *in = strcmp(path, "-") ? fopen(path, "rb") : stdin;
    if (!in) return error_at(err, HY_FAILED, path, "cannot read %s: %s", path, strerror(errno));
    buffer b = {0};
    char piece[65536];
    size_t n;
    while ((n = fread(piece, 1, sizeof piece, in)) > 0 && b.length <= TEXT_LIMIT) buffer_append(&b, piece, n);
    hy_status status = HY_OK;
    if (ferror(in))
        status = error_at(err, HY_FAILED, path, "cannot read %s: %s", path, strerror(errno));
    else if (b.length > TEXT_LIMIT)
        status = error_at(err, HY_BAD_INPUT, path, "%s is larger than %d MiB, the most that is read", path,
                          TEXT_LIMIT >> 20);
    if (in != stdin) fclose(in);
    char *made = status == HY_OK ? buffer_take(&b, length) : NULL;
    if (status == HY_OK && !made) status = error_memory(err, "a text", b.length);
    buffer_free(&b);
    if (status == HY_OK) *text = made;
    return status;
}

hy_status flags_read_ids(const char *given, hy_ids *ids, hy_error *err)
{
    if (strcmp(given, "-") != 0 && !file_exists(given)) {
        if (strspn(given, "0123456789-+, \t\n[]") != strlen(given))
            return error_at(err, HY_USAGE, given, "'%.60s' is neither a file nor a list of token ids such as 1,2,3",
                            given);
        return trace_parse_ids(given, strlen(given), ids, err);
    }
    char *text = NULL;
    size_t length = 0;
    hy_status status = flags_read_text(given, &text, &length, err);
    if (status == HY_OK) status = trace_parse_ids(text, length, ids, err);
    free(text);
    return status;
}

bool flags_thinking_mode(const char *mode)
{
    static const char *const modes[] = {"enabled", "disabled", "adaptive"};
    for (int i = 0; i < 3; i++)
        if (strcmp(mode, modes[i]) == 0) return true;
    return false;
}

const char *flags_finish_name(hy_finish finish)
{
    switch (finish) {
    case HY_RUNNING: return "running";
    case HY_FINISH_STOP: return "stop";
    case HY_FINISH_LENGTH: return "length";
    case HY_FINISH_CANCEL: return "cancel";
    case HY_FINISH_ERROR: return "error";
    case HY_FINISH_REPETITION: return "repetition";
    }
    return "unknown";
}
