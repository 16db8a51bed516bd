#include "cli/eval.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "cli/cli.h"
#include "cli/find_model.h"
#include "cli/speculation.h"

static const int lengths[] = {1024, 2048, 4096, 8192, 16384};
enum { LENGTHS = sizeof lengths / sizeof *lengths, SAMPLES = 8 };

/* Tasks of a set that take five minutes in all on two cores, and with --full. */
static const struct {
    int tasks, full;
} counts[EVAL_SETS] = {
    [TASK_ARITHMETIC] = {200, 1000}, [TASK_SYNTHAIME] = {30, 30}, [TASK_RETRIEVAL] = {2, 10},
    [TASK_TOOLS] = {120, 600},       [TASK_FORM] = {150, 800},    [TASK_TALK] = {60, 300},
    [EVAL_PERPLEXITY] = {60, 600},
};

/* ---- Ways -------------------------------------------------------------------------------------------------------- */

typedef struct way_options {
    char format[16], readback[16], selection[16];
} way_options;

/* Item `i` of a list with commas; false: it has fewer, or the item is too long. */
static bool item(const char *list, int i, char out[16])
{
    const char *at = list;
    for (; i > 0 && at; i--) at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL;
    if (!at) return false;
    size_t n = strcspn(at, ",");
    snprintf(out, 16, "%.*s", n < 16 ? (int)n : 15, at);
    return true;
}

/* All combinations. A read-back differs in an nvfp4 cache alone. */
static hy_status list_ways(const eval_flags *f, way_options out[EVAL_MAX_WAYS], int *count, hy_error *err)
{
    way_options w;
    *count = 0;
    for (int s = 0; item(f->selections, s, w.selection); s++) {
        if (strcmp(w.selection, "trained") != 0 && strcmp(w.selection, "random") != 0 &&
            strcmp(w.selection, "dense") != 0)
            return error_at(err, HY_USAGE, "--selection", "--selection '%s': choose among trained, random, dense",
                            w.selection);
        for (int k = 0; item(f->formats, k, w.format); k++)
            for (int r = 0; item(f->readbacks, r, w.readback); r++) {
                if (r && strcmp(w.format, "bf16") == 0) continue;
                if (r && strcmp(w.format, "fp8") == 0) continue;
                if (*count == EVAL_MAX_WAYS)
                    return error_set(err, HY_USAGE, "more than %d ways: name fewer formats", EVAL_MAX_WAYS);
                out[(*count)++] = w;
            }
    }
    return HY_OK;
}

static void name_way(const hy_model *model, const way_options *w, char name[64])
{
    hy_model_info info;
    hy_model_describe(model, &info);
    bool e4m3 = strcmp(info.kv_cache_dtype, "nvfp4") == 0 && strcmp(info.readback, "e4m3") == 0;
    bool plain = strcmp(w->selection, "trained") == 0;
    snprintf(name, 64, "%s%s%s%s", info.kv_cache_dtype, e4m3 ? " e4m3" : "", plain ? "" : " ",
             plain ? "" : w->selection);
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

static hy_status run_set(hy_model *model, const eval_flags *f, const hy_speculation *drafts, int set, bool random,
                         eval_way *way, hy_error *err)
{
    eval_options o = {.seed = f->seed,
                      .count = f->count  ? f->count
                               : f->full ? counts[set].full
                                         : counts[set].tasks,
                      .samples = 1,
                      .limit = 512,
                      .lengths = lengths,
                      .random = random,
                      .drafts = drafts,
                      .show = f->show};
    while (o.length_count < LENGTHS && lengths[o.length_count] + 256 <= model_max_len(model)) o.length_count++;
    if (set == TASK_SYNTHAIME)
        o.seed += TASK_SYNTHAIME_SEED, o.temperature = 1, o.samples = f->full ? 4 * SAMPLES : SAMPLES;
    if (set == TASK_RETRIEVAL && !o.length_count) return HY_OK;
    char what[96];
    snprintf(what, sizeof what, "%.24s, %.63s", eval_set_name(set), way->name);
    double began = clock_seconds();
    hy_status status = set == EVAL_PERPLEXITY ? eval_perplexity(model, &o, what, &way->marks[set], err)
                                              : eval_set(model, (task_set)set, &o, what, &way->marks[set], err);
    way->seconds[set] = clock_seconds() - began;
    return status;
}

/* `ways`: those before this one, whose name must differ. */
static hy_status run_way(const char *path, const eval_flags *f, const way_options *w, const eval_way *ways,
                         eval_way *way, hy_error *err)
{
    hy_model_options options = f->model;
    options.kv_cache_dtype = w->format, options.readback = w->readback;
    options.attention = strcmp(w->selection, "dense") == 0 ? "dense" : "sparse";
    hy_engine_options engine = {0};
    hy_model *model = NULL;
    speculation s = {0};
    char folder[FIND_PATH_SIZE];
    if (f->speculative) speculation_parse("", f->speculative, &s); /* cmd_eval found it right */
    hy_status status = find_model(path, NULL, folder, err);
    if (status == HY_OK) status = speculation_find(&s, folder, &options, &engine, err);
    if (status == HY_OK) status = hy_model_open(folder, &options, &model, err);
    if (status != HY_OK) return status;
    speculation_settle(&s, model, EVAL_SEQUENCES, &engine);
    name_way(model, w, way->name);
    status = model_can_chat(model, err);
    for (; ways != way && status == HY_OK; ways++)
        if (strcmp(ways->name, way->name) == 0)
            status = error_at(err, HY_USAGE, "--kv-cache-dtype",
                              "--kv-cache-dtype %s names the way '%s' twice: name each once", f->formats, way->name);
    bool random = strcmp(w->selection, "random") == 0;
    for (int set = 0; set < EVAL_SETS && status == HY_OK; set++)
        if (f->wanted[set] && (!random || set == TASK_RETRIEVAL))
            status = run_set(model, f, &engine.speculation, set, random, way, err);
    hy_model_close(model);
    return status;
}

hy_status eval_model(const char *path, const eval_flags *f, hy_error *err)
{
    way_options options[EVAL_MAX_WAYS];
    eval_way ways[EVAL_MAX_WAYS] = {{{0}, {{0}}, {0}}};
    int count;
    hy_status status = list_ways(f, options, &count, err);
    for (int i = 0; i < count && status == HY_OK; i++) status = run_way(path, f, &options[i], ways, &ways[i], err);
    if (status == HY_OK && f->json) {
        buffer out = {0};
        eval_report_json(ways, count, lengths, LENGTHS, &out);
        status = buffer_ok(&out) ? HY_OK : error_memory(err, "the report", out.length);
        if (status == HY_OK) printf("%.*s\n", (int)out.length, out.data);
        buffer_free(&out);
    } else if (status == HY_OK) {
        eval_report_table(ways, count, lengths, LENGTHS);
    }
    for (int i = 0; i < count; i++)
        for (int set = 0; set < EVAL_SETS; set++) eval_marks_free(&ways[i].marks[set]);
    return status;
}
