/* hayate plan: will it fit, by arithmetic alone. */
#include "cli/cli.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "cli/geometry.h"
#include "model/model.h"
#include "model/plan.h"
#include "text/tokenizer.h"

static const char usage[] = "plan MODEL [--gpus N --gpu-memory SIZE | --memory SIZE] [flags]";
static const char about[] =
    "Says what a model needs and how many sequences a machine holds, from shapes alone: nothing is loaded. MODEL is a "
    "released model by name (m3.1-flash, m3, m3-mxfp8), a config.json, a checkpoint folder or its files, or owner/name "
    "of the hub, from where no weights are downloaded. Exit code 4: it does not fit.\n\n"
    "examples:\n  hayate plan m3.1-flash --gpus 8 --gpu-memory 141GB --max-model-len 256K\n"
    "  hayate plan models/m3-nano --memory 4GB";

enum { MAX_NOTES = 24, NOTE_LENGTH = 320 };

typedef struct plan_command {
    geometry g;
    draft_config drafter;
    plan_input in;
    plan_result out;
    bool tokenizer;                     /* is counted in the program */
    int gpus;                           /* 0: a machine without GPUs */
    bool here;                          /* the memory is this machine's */
    char notes[MAX_NOTES][NOTE_LENGTH]; /* the assumptions, one sentence each */
    int note_count;
} plan_command;

static void note(plan_command *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void note(plan_command *p, const char *format, ...)
{
    va_list args;
    if (p->note_count == MAX_NOTES) return;
    va_start(args, format);
    vsnprintf(p->notes[p->note_count++], NOTE_LENGTH, format, args);
    va_end(args);
}

/* ---- Flags ---------------------------------------------------------------------------------------------------------
 */

/* "single", "tp4", "dep4"; "tp" and "dep" take the number of GPUs. */
static int parse_parallel(const char *text, int gpus, plan_input *in)
{
    const char *digits;
    in->ranks = gpus > 0 ? gpus : 1;
    if (!text) {
        in->parallel = in->ranks > 1 ? PLAN_TP : PLAN_SINGLE;
        return -1;
    }
    if (!strcmp(text, "single"))
        in->parallel = PLAN_SINGLE, digits = text + 6;
    else if (!strncmp(text, "tp", 2))
        in->parallel = PLAN_TP, digits = text + 2;
    else if (!strncmp(text, "dep", 3))
        in->parallel = PLAN_DEP, digits = text + 3;
    else
        return cli_usage_error("plan", "--parallel is single, tpN or depN, not '%s'", text);
    if (!*digits) return -1;
    char *end;
    long n = strtol(digits, &end, 10);
    if (!isdigit((unsigned char)*digits) || *end || n < 1 || n > 4096)
        return cli_usage_error("plan", "--parallel is single, tpN or depN, not '%s'", text);
    if (gpus > 0 && n != gpus)
        return cli_usage_error("plan", "--parallel %s needs %ld GPUs, --gpus says %d", text, n, gpus);
    in->ranks = (int)n;
    return -1;
}

static int parse_format(const char *flag, const char *text, cache_format automatic, cache_format *out)
{
    *out = automatic;
    if (!text || !strcmp(text, "auto") || cache_format_parse(text, out)) return -1;
    return cli_usage_error("plan", "%s is auto, bf16, fp8 or nvfp4, not '%s'", flag, text);
}

/* As a model that is opened: fp8 beside nvfp4, elsewhere as the main cache. */
static int parse_draft_format(const char *text, cache_format main, cache_format *out)
{
    *out = main == CACHE_NVFP4 ? CACHE_FP8 : main;
    bool known = !text || !strcmp(text, "auto") || cache_format_parse(text, out);
    if (known && *out != CACHE_NVFP4) return -1;
    return cli_usage_error("plan", "--draft-kv-dtype is auto, bf16 or fp8, not '%s'", text);
}

/* ---- Checkpoint folders --------------------------------------------------------------------------------------------
 */

/* A checkpoint's own tensors: whether there is a drafter, and how many bytes it has beside the layout's. */
static hy_status measure_folder(plan_command *p, const char *path, hy_error *err)
{
    checkpoint *c = NULL;
    hy_status s = checkpoint_open(p->g.hub ? p->g.folder : path, &c, err);
    if (s != HY_OK && p->g.hub) {
        note(p, "the weights of %.160s are not in the cache here: the published layout counts", path);
        return HY_OK;
    }
    if (s != HY_OK) return s;
    uint64_t bytes = 0, expected = layout_count(&p->g.config, p->in.scheme).bytes;
    for (size_t i = 0; i < checkpoint_tensor_count(c, false); i++) bytes += checkpoint_tensor_at(c, i, false)->bytes;
    p->in.extra_bytes = (int64_t)(bytes - expected);
    if (bytes != expected)
        note(p, "the folder holds %lld bytes %s than the published layout of scheme %s; they count as replicated",
             llabs(p->in.extra_bytes), bytes > expected ? "more" : "fewer", layout_scheme_name(p->in.scheme));
    const draft_config *d = checkpoint_draft(c);
    checkpoint_warn_draft(c);
    p->g.drafter = d != NULL;
    if (d) p->drafter = *d;
    checkpoint_close(c);
    return HY_OK;
}

/* What a program has resident that has opened everything but the weights. */
static hy_status measure_program(plan_command *p, hy_error *err)
{
    const char *path = p->g.folder;
    text_tokenizer *tokenizer = NULL;
    hy_status s = HY_OK;
    p->tokenizer = *path && text_tokenizer_present(path);
    if (p->tokenizer) s = text_tokenizer_open(path, &tokenizer, err);
    p->in.program = memory_resident();
    text_tokenizer_close(tokenizer);
    return s;
}

/* Weights that are here: of a folder, of a list of files. A name of the hub may have left them there. */
static bool has_weights(const plan_command *p, const char *model)
{
    char file[SOURCE_PATH + 32];
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    if (source_is_files(model)) return true;
    for (size_t i = 0; p->g.folder[0] && i < sizeof names / sizeof names[0]; i++)
        if (file_join(p->g.folder, names[i], file, sizeof file, NULL) == HY_OK && file_exists(file)) return true;
    return false;
}

/* ---- Assumptions ---------------------------------------------------------------------------------------------------
 */

static const char *device(const plan_command *p)
{
    return p->gpus ? "GPU" : "machine";
}

static void assumptions(plan_command *p)
{
    const plan_input *in = &p->in;
    const plan_result *r = &p->out;
    char a[32], b[32];
    int n = in->ranks;
    note(p, "%s of %s bytes a %s are used (utilisation %g)%s", cli_format_count(r->usable_bytes, a),
         cli_format_count(in->memory, b), device(p), in->utilisation,
         p->here ? "; that is the memory available on this machine now" : "");
    if (in->workspace)
        note(p, "workspace: %s bytes a %s, as given", cli_format_count(in->workspace, a), device(p));
    else if (in->stream)
        note(p, "workspace: %s bytes, the engine's own with --max-num-batched-tokens %llu and --max-num-seqs %d",
             cli_format_count(r->workspace_bytes, a),
             (unsigned long long)(in->step_rows ? in->step_rows : MODEL_DEFAULT_ROWS), in->sequences);
    else
        note(p,
             "workspace: %s bytes a %s, the tensors of a step of %llu rows with experts chosen evenly and logits of %d "
             "rows",
             cli_format_count(r->workspace_bytes, a), device(p),
             (unsigned long long)(in->step_rows ? in->step_rows : PLAN_STEP_ROWS), PLAN_LOGIT_ROWS);
    if (in->parallel == PLAN_DEP) {
        note(p, "dep%d: routed experts are divided among %d ranks, all other weights are on each of them", n, n);
        note(p, "dep%d: a sequence lives on one rank, so sequences are counted per rank and rounded down there", n);
    } else if (in->parallel == PLAN_TP) {
        note(p,
             "tp%d: attention and feed-forward projections, experts, embedding and head are divided; norms, routers, "
             "index "
             "projections and the vision tower are on each rank",
             n);
        note(p,
             "tp%d: keys and values are divided by KV heads, index keys are kept %d times; per-token figures are sums "
             "over "
             "the ranks",
             n, n);
    }
    note(p, "a sequence takes whole blocks of %d tokens; no prefix is shared", CACHE_BLOCK);
    if (in->drafter && in->drafter->window)
        note(p,
             "the drafter's weights are loaded and its cache keeps every token, as cache rows do (its window is %d "
             "tokens)",
             in->drafter->window);
    else if (in->drafter)
        note(p, "the drafter's weights are loaded and its cache keeps every token");
    else if (in->stream && p->g.drafter)
        note(p, "without the drafter that the model comes with, as the engine without drafts; --drafter counts it");
    else
        note(p, "no drafter");
    if (in->stream && in->max_model_len)
        note(p, "--weights stream: the cache is for one sequence, as with --kv-cache-memory-bytes %llu",
             (unsigned long long)r->sequence_bytes);
    else if (in->stream)
        note(p, "--weights stream: the cache is what the engine takes, at most an eighth of what is left "
                "(--max-model-len plans for one sequence of that length)");
    if (in->stream) {
        note(p, "the program: what this command has resident%s, and %d MiB for what is not counted",
             p->tokenizer ? " with the model's tokenizer" : " without a tokenizer", MODEL_MEMORY_MARGIN >> 20);
        note(p, "the embedding is read row by row, a vision tower not at all");
    }
    if (in->model->mtp_modules)
        note(p, "the weights of the model's MTP module are not counted: no drafter of that kind is run");
}

/*
 * The published number beside ours, and the one assumption that would close the difference: how much of each device
 * the published machine must have given to weights, workspace and cache, everything else as computed here.
 */
static void compare(plan_command *p, const char *name)
{
    const plan_announced *a = plan_find_announced(name, &p->in);
    if (!a) return;
    plan_input in = p->in;
    plan_result r;
    hy_error ignored;
    in.drafter = NULL; /* the published bytes per token do not include one */
    if (plan_compute(&in, &r, &ignored) != HY_OK) return;
    uint64_t need = plan_needed(&in, &r, a->sequences);
    uint64_t beyond = plan_needed(&in, &r, a->sequences + (uint64_t)in.ranks);
    char x[32], y[32];
    unsigned long long ours = p->out.sequences, bare = r.sequences, said = a->sequences;
    if (p->in.drafter)
        note(p, "announced: %llu sequences; here %llu, and %llu without the drafter", said, ours, bare);
    else
        note(p, "announced: %llu sequences; here %llu", said, bare);
    const char *without = p->in.drafter ? " without the drafter" : "";
    if (bare == said)
        note(p,
             "the announced %llu follows%s: it needs %s to %s bytes a GPU for weights, workspace and cache "
             "(utilisation %.4f "
             "to %.4f)",
             said, without, cli_format_count(need, x), cli_format_count(beyond - 1, y),
             (double)need / (double)in.memory, (double)(beyond - 1) / (double)in.memory);
    else
        note(p,
             "what would close the difference: %llu sequences%s need %s bytes a GPU for weights, workspace and cache, "
             "which "
             "is a utilisation of %.4f instead of %g; everything else as above",
             said, without, cli_format_count(need, x), (double)need / (double)in.memory, in.utilisation);
}

/* ---- Output --------------------------------------------------------------------------------------------------------
 */

static int print_json(const plan_command *p)
{
    const plan_result *r = &p->out;
    buffer b = {0};
    json_writer w = {.out = &b};
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {
        {"kv_bytes_per_token", r->kv_bytes_per_token},
        {"index_bytes_per_token", r->index_bytes_per_token},
        {"draft_bytes_per_token", r->draft_bytes_per_token},
        {"weight_bytes", r->weight_bytes},
        {"cache_bytes", r->cache_bytes},
        {"sequences", r->sequences},
        {"expert_bytes", r->expert_bytes},
        {"experts", r->experts},
        {"expert_slots", r->expert_slots},
        {"token_expert_bytes", r->token_expert_bytes},
    };
    size_t count = sizeof numbers / sizeof numbers[0] - (p->in.stream ? 0 : 4);
    writer_object(&w);
    for (size_t i = 0; i < count; i++) {
        writer_key(&w, numbers[i].key);
        writer_unsigned(&w, numbers[i].value);
    }
    writer_key(&w, "assumptions");
    writer_array(&w);
    for (int i = 0; i < p->note_count; i++) writer_text(&w, p->notes[i]);
    writer_end(&w);
    writer_end(&w);
    bool ok = buffer_ok(&b);
    if (ok) printf("%s\n", b.data);
    buffer_free(&b);
    return ok ? 0 : 1;
}

static void line(const char *label, const char *detail, uint64_t bytes)
{
    char count[32], human[32];
    printf("  %-26s %-22s %19s B  %9s\n", label, detail, cli_format_count(bytes, count),
           cli_format_bytes(bytes, human));
}

static void print_weights(const plan_command *p)
{
    const plan_input *in = &p->in;
    const plan_result *r = &p->out;
    char detail[64];
    printf("weights\n");
    if (in->parallel != PLAN_SINGLE) {
        snprintf(detail, sizeof detail, "once, over %d GPUs", in->ranks);
        line("divided", detail, r->divided_bytes);
        snprintf(detail, sizeof detail, "on each of %d GPUs", in->ranks);
        line("replicated", detail, r->replicated_bytes);
    }
    if (in->drafter) line("of these the drafter", "one copy", r->drafter_bytes);
    if (in->parallel != PLAN_SINGLE) line("on the fullest GPU", "", r->rank_weight_bytes);
    line("all", "", r->weight_bytes);
    if (!in->stream) return;
    line("routed experts", "read as needed", r->streamed_bytes);
    line("stay in memory", "", r->rank_weight_bytes);
}

static void print_experts(const plan_command *p)
{
    const plan_result *r = &p->out;
    char a[32], b[32];
    double share = r->experts ? (double)r->expert_slots / (double)r->experts : 0;
    line("cache of experts", "what remains", r->expert_slots * r->expert_bytes);
    printf("\nstreamed experts: the cache holds %s of %s, %.1f %%\n", cli_format_count(r->expert_slots, a),
           cli_format_count(r->experts, b), 100 * share);
    line("experts of one token", "", r->token_expert_bytes);
    line("of these read", "if used evenly", (uint64_t)((1 - share) * (double)r->token_expert_bytes));
}

static void print_cache(const plan_command *p)
{
    const plan_input *in = &p->in;
    const plan_result *r = &p->out;
    printf("\ncache of one token\n");
    line("keys and values", cache_format_name(in->main), r->kv_bytes_per_token);
    line("index keys", in->model->index_heads ? cache_format_name(in->index) : "none", r->index_bytes_per_token);
    line("drafter", in->drafter ? cache_format_name(in->draft) : "none", r->draft_bytes_per_token);
    printf("\nmemory of one %s\n", device(p));
    line("usable", "", r->usable_bytes);
    if (in->stream) line("program", "and what is not counted", r->program_bytes);
    line("weights", in->stream ? "that stay" : "", r->rank_weight_bytes);
    line("workspace", "", r->workspace_bytes);
    if (in->stream) line("buffers of readers", "", r->reader_bytes);
    line("cache", in->stream ? "of keys and values" : "what remains", r->rank_cache_bytes);
    if (in->stream) print_experts(p);
}

static void print_sequences(const plan_command *p)
{
    const plan_input *in = &p->in;
    const plan_result *r = &p->out;
    char a[32], b[32], c[32], d[32];
    uint64_t groups = in->parallel == PLAN_DEP ? (uint64_t)in->ranks : 1;
    printf("\nsequences = floor(cache of a %s / (tokens * bytes of a token there))%s\n", device(p),
           groups > 1 ? " * GPUs" : "");
    printf("          = floor(%s / (%s * %s))", cli_format_count(r->rank_cache_bytes, a),
           cli_format_count(r->tokens, b), cli_format_count(r->token_bytes_per_rank, c));
    if (groups > 1) printf(" * %s", cli_format_count(groups, d));
    printf(" = %s\n", cli_format_count(r->sequences, a));
    printf("cache over all: %s bytes; the longest single sequence that fits has %s tokens\n",
           cli_format_count(r->cache_bytes, a), cli_format_count(r->longest, b));
}

static void print_table(const plan_command *p, const char *name)
{
    static const char *const layouts[] = {"single", "tp", "dep"};
    char memory[32], count[32], many[16] = "";
    if (p->in.parallel != PLAN_SINGLE) snprintf(many, sizeof many, "%d", p->in.ranks);
    printf("%s: scheme %s, %s parameters, %d %s%s of %s, %s%s\n\n", name, layout_scheme_name(p->in.scheme),
           cli_format_count(p->out.parameters, count), p->in.ranks, device(p), p->in.ranks > 1 ? "s" : "",
           cli_format_bytes(p->in.memory, memory), layouts[p->in.parallel], many);
    print_weights(p);
    print_cache(p);
    if (!p->in.stream) print_sequences(p);
    printf("\nassumptions\n");
    for (int i = 0; i < p->note_count; i++) printf("  - %s\n", p->notes[i]);
}

static hy_status no_fit(const plan_command *p, hy_error *err)
{
    const plan_result *r = &p->out;
    char tokens[32], missing[32], longest[32];
    cli_format_count(r->tokens, tokens);
    cli_format_bytes(r->missing_bytes, missing);
    if (r->longest)
        return error_set(err, HY_NO_FIT,
                         "a sequence of %s tokens does not fit: each %s lacks %s; the longest that fits has %s tokens "
                         "(--max-model-len)",
                         tokens, device(p), missing, cli_format_count(r->longest, longest));
    if (p->in.stream)
        return error_set(
            err, HY_NO_FIT,
            "it does not fit: for the lines above, %s of cache and %s for the experts of two layers of one "
            "token the machine lacks %s",
            cli_format_bytes(r->sequence_bytes, tokens),
            cli_format_bytes(2 * (uint64_t)p->in.model->experts_per_token * r->expert_bytes, longest), missing);
    return error_set(err, HY_NO_FIT,
                     "it does not fit: for weights, workspace and one sequence of %s tokens each %s lacks %s", tokens,
                     device(p), missing);
}

/* ---- The command ---------------------------------------------------------------------------------------------------
 */

typedef struct flags {
    const char *parallel, *scheme, *main, *index, *draft, *weights;
    int gpus, drafter; /* INT_MIN and -1: not given */
    uint64_t gpu_memory, memory;
    bool json;
} flags;

/* Turns flags into the plan's input; -1 or an exit code. */
static int resolve(plan_command *p, const flags *f)
{
    plan_input *in = &p->in;
    cache_format automatic = plan_auto_format(in->scheme);
    int code = parse_parallel(f->parallel, f->gpus, in);
    if (code < 0) code = parse_format("--kv-cache-dtype", f->main, automatic, &in->main);
    if (code < 0) code = parse_format("--indexer-kv-dtype", f->index, in->main, &in->index);
    if (code < 0) code = parse_draft_format(f->draft, in->main, &in->draft);
    if (code >= 0) return code;
    if (f->memory && (f->gpus > 0 || f->gpu_memory))
        return cli_usage_error("plan", "--memory is for a machine without GPUs: leave out --gpus and --gpu-memory");
    if (f->weights && strcmp(f->weights, "load") && strcmp(f->weights, "stream"))
        return cli_usage_error("plan", "--weights is load or stream, not '%.40s'", f->weights);
    in->stream = f->weights && !strcmp(f->weights, "stream");
    if (in->sequences < 1) return cli_usage_error("plan", "--max-num-seqs must be at least 1, not %d", in->sequences);
    if (in->stream && (f->gpus > 0 || f->gpu_memory))
        return cli_usage_error("plan", "--weights stream is for a machine without GPUs");
    if (f->gpus != INT_MIN && f->gpus < 1) return cli_usage_error("plan", "--gpus must be at least 1, not %d", f->gpus);
    if ((f->gpu_memory && f->gpu_memory < 1 << 20) || (f->memory && f->memory < 1 << 20))
        return cli_usage_error("plan", "%llu bytes hold no model; sizes are written as 288GB or 80GiB",
                               (unsigned long long)(f->gpu_memory ? f->gpu_memory : f->memory));
    if (f->gpus > 0 && !f->gpu_memory) return cli_usage_error("plan", "--gpus N comes with --gpu-memory SIZE");
    p->gpus = f->gpu_memory ? in->ranks : 0;
    if (!p->gpus && in->ranks > 1)
        return cli_usage_error("plan", "--parallel %s needs --gpus and --gpu-memory", f->parallel);
    in->memory = f->gpu_memory ? f->gpu_memory : f->memory ? f->memory : memory_available();
    p->here = !f->gpu_memory && !f->memory;
    if (isnan(in->utilisation)) in->utilisation = in->stream ? 1 : PLAN_UTILISATION;
    if (in->stream) in->extra_bytes = 0;
    /* With streamed weights the figures are those of an engine, which has a drafter when it is asked for. */
    if (p->g.drafter && (in->stream ? f->drafter == 1 : f->drafter != 0)) in->drafter = &p->drafter;
    if (f->drafter == 1 && !p->g.drafter)
        return cli_usage_error("plan", "--drafter: this model comes without one (scheme %s)",
                               layout_scheme_name(in->scheme));
    return -1;
}

static int run(plan_command *p, const char *model, const flags *f)
{
    hy_error err = {0};
    hy_status s = geometry_load(model, &p->g, &err);
    p->in.model = &p->g.config;
    p->in.scheme = p->g.scheme;
    if (s == HY_OK && f->scheme) {
        if (!layout_parse_scheme(f->scheme, &p->in.scheme))
            return cli_usage_error("plan", "there is no scheme '%s': m31, mxfp8, modelopt and bf16 are known",
                                   f->scheme);
        p->g.drafter = p->in.scheme == SCHEME_M31;
    }
    if (s == HY_OK) p->drafter = config_drafter(&p->g.config);
    if (s == HY_OK && !p->g.known && !f->scheme && has_weights(p, model)) s = measure_folder(p, model, &err);
    if (s == HY_OK) {
        int code = resolve(p, f);
        if (code >= 0) return code;
        if (p->in.stream) s = measure_program(p, &err);
        if (s == HY_OK) s = plan_compute(&p->in, &p->out, &err);
    }
    if (s != HY_OK) {
        cli_error(&err);
        return cli_exit(s);
    }
    assumptions(p);
    if (p->g.known) compare(p, p->g.known);
    if (f->json) {
        if (print_json(p) != 0) return 1;
    } else {
        print_table(p, model);
    }
    if (p->out.sequences) return 0;
    s = no_fit(p, &err);
    fflush(stdout);
    cli_error(&err);
    return cli_exit(s);
}

int cmd_plan(int argc, char **argv)
{
    const char *model = NULL;
    int count = 1;
    flags f = {.gpus = INT_MIN, .drafter = -1};
    plan_command *p = calloc(1, sizeof *p);
    if (!p) return 1;
    p->in.utilisation = NAN;
    p->in.sequences = 1;
    const cli_option options[] = {
        {"gpus", "N", "number of GPUs", &f.gpus, CLI_INT},
        {"gpu-memory", "SIZE", "memory of one GPU, such as 288GB or 80GiB", &f.gpu_memory, CLI_SIZE},
        {"memory", "SIZE", "memory of a machine without GPUs (default: what this one has free)", &f.memory, CLI_SIZE},
        {"weights", "KIND", "load (default), or stream: experts are read as they are needed, --memory is the limit",
         &f.weights, CLI_STRING},
        {"parallel", "LAYOUT", "single, tpN or depN (default: tp over the GPUs)", &f.parallel, CLI_STRING},
        {"gpu-memory-utilization", "F",
         "fraction of the memory that may be used (default 0.92; with --weights stream 1)", &p->in.utilisation,
         CLI_DOUBLE},
        {"max-model-len", "N",
         "tokens of a sequence, such as 256K (default: the config's; with --weights stream what the engine's cache "
         "holds)",
         &p->in.max_model_len, CLI_COUNT},
        {"kv-cache-dtype", "NAME", "auto, bf16, fp8 or nvfp4 (auto: nvfp4 for m31, fp8 for mxfp8, bf16 for bf16)",
         &f.main, CLI_STRING},
        {"indexer-kv-dtype", "NAME", "the same for index keys (auto: as the main cache)", &f.index, CLI_STRING},
        {"draft-kv-dtype", "NAME", "auto, bf16 or fp8, of the drafter's cache (auto: fp8, beside bf16 bf16)", &f.draft,
         CLI_STRING},
        {"drafter", NULL,
         "count a drafter, or --no-drafter (default: when the model comes with one; with --weights stream not)",
         &f.drafter, CLI_SWITCH},
        {"scheme", "NAME", "m31, mxfp8, modelopt or bf16 (default: what MODEL has)", &f.scheme, CLI_STRING},
        {"max-num-batched-tokens", "N", "rows of a step, for the workspace (default 8192; with --weights stream 512)",
         &p->in.step_rows, CLI_COUNT},
        {"max-num-seqs", "N",
         "requests that run at once, for the logits with --weights stream (default 1, as generate; serve has 256)",
         &p->in.sequences, CLI_INT},
        {"workspace", "SIZE", "bytes set aside on each device instead of the computed workspace", &p->in.workspace,
         CLI_SIZE},
        {"json", NULL, "one JSON object", &f.json, CLI_FLAG},
    };
    int code = cli_parse("plan", usage, about, options, sizeof options / sizeof options[0], argc, argv, &model, &count);
    if (code < 0)
        code = count ? run(p, model, &f)
                     : cli_usage_error("plan", "MODEL is needed: %s, a file or a folder", config_known_names);
    free(p);
    return code;
}
