/* hayate trace: what a model computes for given token ids, as safetensors. */
#include "base/error.h"
#include "cli/cli.h"
#include "cli/find_model.h"
#include "cli/flags.h"
#include "model/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char about[] =
    "Runs token ids through a model and writes logits, layer outputs, selected blocks and expert routes as "
    "safetensors. --like takes ids, rows and numerics from an oracle file and writes tensors of the same names and "
    "shapes; --input-ids takes ids and writes the logits of every row.\n\n"
    "examples:\n  hayate trace models/m3-nano --input-ids 1,2,3 -o out.safetensors\n"
    "  hayate trace MODEL --like MODEL/oracle.safetensors --backend reference -o out.safetensors";

enum { MAX_CHUNKS = 1024 };

typedef struct trace_flags {
    const char *like, *replay, *input_ids, *output, *chunks;
    bool last;
    hy_model_options model;
} trace_flags;

/* "1,127,128": rows of successive steps. */
static hy_status parse_chunks(const char *text, int32_t *chunks, size_t *count, hy_error *err)
{
    hy_ids ids = {0};
    hy_status status = trace_parse_ids(text, strlen(text), &ids, err);
    for (size_t i = 0; i < ids.count && status == HY_OK; i++)
        if (ids.data[i] < 1) status = HY_USAGE;
    if (status != HY_OK || !ids.count || ids.count > MAX_CHUNKS)
        status = error_at(err, HY_USAGE, "--chunks",
                          "--chunks takes up to %d sizes from 1 such as 1,127,128, not '%.40s'", MAX_CHUNKS, text);
    for (size_t i = 0; i < ids.count && status == HY_OK; i++) chunks[i] = ids.data[i];
    *count = ids.count;
    hy_ids_free(&ids);
    return status;
}

/* Numerics of the oracle where no flag names others. */
static void numerics_like(const safetensors *oracle, hy_model_options *o)
{
    if (!o->kv_cache_dtype) o->kv_cache_dtype = safetensors_metadata(oracle, "kv_cache_dtype");
    if (!o->indexer_kv_dtype) o->indexer_kv_dtype = safetensors_metadata(oracle, "indexer_kv_dtype");
    if (!o->readback) o->readback = safetensors_metadata(oracle, "readback");
    if (!o->moe_activation) o->moe_activation = safetensors_metadata(oracle, "moe_activation");
}

static hy_status plan_of_ids(const trace_flags *f, trace_plan *plan, hy_error *err)
{
    hy_ids ids = {0};
    hy_status status = flags_read_ids(f->input_ids, &ids, err);
    if (status == HY_OK) status = trace_plan_ids(ids.data, ids.count, f->last, plan, err);
    hy_ids_free(&ids);
    return status;
}

/* What was done and what came out, in a few lines. */
static void summary(const hy_model *model, const trace *t, const trace_plan *plan, const char *path)
{
    hy_model_info info;
    hy_model_describe(model, &info);
    printf("%zu tokens of prompt, %zu fed after it; backend %s, cache %s, index cache %s, read-back %s, expert "
           "activations %s\n",
           plan->id_count, plan->feed_count, info.backend, info.kv_cache_dtype, info.indexer_kv_dtype, info.readback,
           info.moe_activation);
    const tensor *greedy = trace_find(t, "greedy_ids");
    printf("greedy ids:");
    for (int64_t i = 0; i < greedy->shape[0]; i++) printf(" %d", ((const int32_t *)greedy->data)[i]);
    printf("\n%zu tensors written to %s\n", trace_count(t), path);
}

static hy_status run(const char *name, trace_flags *f, hy_error *err)
{
    char folder[FIND_PATH_SIZE];
    safetensors *like = NULL, *replay = NULL;
    trace_plan plan = {0};
    hy_model *model = NULL;
    trace *t = NULL;
    int32_t chunks[MAX_CHUNKS];
    trace_options options = {.chunks = chunks, .on_progress = cli_progress};
    hy_status status = f->chunks ? parse_chunks(f->chunks, chunks, &options.chunk_count, err) : HY_OK;
    if (status == HY_OK && f->like) status = safetensors_open(f->like, &like, err);
    if (status == HY_OK && f->replay) status = safetensors_open(f->replay, &replay, err);
    if (status == HY_OK) status = like ? trace_plan_like(like, &plan, err) : plan_of_ids(f, &plan, err);
    if (status == HY_OK && like) numerics_like(like, &f->model);
    if (status == HY_OK) status = find_model(name, NULL, folder, err);
    if (status == HY_OK) status = hy_model_open(folder, &f->model, &model, err);
    options.replay = replay;
    if (status == HY_OK) status = trace_run(model, &plan, &options, &t, err);
    if (status == HY_OK) status = trace_write(t, f->output, err);
    if (status == HY_OK) summary(model, t, &plan, f->output);
    trace_close(t);
    hy_model_close(model);
    trace_plan_free(&plan);
    safetensors_close(replay);
    safetensors_close(like);
    return status;
}

int cmd_trace(int argc, char **argv)
{
    trace_flags f = {.model = {.on_progress = cli_progress}};
    const cli_option flags[] = {
        {"like", "ORACLE", "a safetensors file whose ids, rows, cache formats and numerics are taken", &f.like,
         CLI_STRING},
        {"input-ids", "FILE|LIST", "token ids instead of --like: a file of numbers, or 1,2,3", &f.input_ids,
         CLI_STRING},
        {"output,o", "OUT", "the file to write", &f.output, CLI_STRING},
        {"replay", "ORACLE", "impose the selected blocks and expert routes of this file", &f.replay, CLI_STRING},
        {"last", NULL, "with --input-ids: logits of the last row only", &f.last, CLI_FLAG},
        {"chunks", "LIST", "rows of the prompt's steps, such as 1,127,128; the last size repeats (default 512)",
         &f.chunks, CLI_STRING},
        {"backend", "NAME", "cpu (default), cuda or reference", &f.model.backend, CLI_STRING},
        {"device", "NAME", "the same: auto (default), cpu or cuda", &f.model.backend, CLI_STRING},
        {"kv-cache-dtype", "FORMAT", "auto, bf16, fp8, nvfp4; fp32 on the reference (default: the oracle's, or auto)",
         &f.model.kv_cache_dtype, CLI_STRING},
        {"indexer-kv-dtype", "FORMAT", "the same for index keys", &f.model.indexer_kv_dtype, CLI_STRING},
        {"readback", "KIND", "exact or e4m3: how an nvfp4 cache is read (default: the oracle's, or exact)",
         &f.model.readback, CLI_STRING},
        {"moe-activation", "KIND", "auto, nvfp4 or none (default: the oracle's, or auto)", &f.model.moe_activation,
         CLI_STRING},
        {"max-model-len", "N", "longest sequence (default: the model's)", &f.model.max_model_len, CLI_INT},
        {"threads", "N", "worker threads (default: one per core)", &f.model.threads, CLI_INT},
        {"cpu-pin", "WHEN", "keep each thread on a core: auto (default: on several memory nodes), on, off",
         &f.model.cpu_pin, CLI_STRING},
    };
    const char *places[1];
    int count = 1;
    int code = cli_parse("trace", "trace MODEL (--like ORACLE | --input-ids IDS) -o OUT [flags]", about, flags,
                         sizeof flags / sizeof *flags, argc, argv, places, &count);
    if (code >= 0) return code;
    if (count < 1) return cli_usage_error("trace", "name the folder of a model");
    if (!f.output) return cli_usage_error("trace", "name the file to write with -o");
    if (!f.like == !f.input_ids) return cli_usage_error("trace", "give either --like ORACLE or --input-ids IDS");
    hy_error err = {0};
    cli_catch_interrupt();
    hy_status status = run(places[0], &f, &err);
    if (status != HY_OK) cli_error(&err);
    return cli_exit(status);
}
