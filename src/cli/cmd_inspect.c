/* hayate inspect: what a checkpoint holds, with sizes, from its headers alone. */
#include "cli/cli.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "cli/find_model.h"
#include "number/e4m3.h"

static const char usage[] = "inspect MODEL [TENSOR] [flags]";
static const char about[] =
    "Shows what the checkpoint folder MODEL holds: its shapes, and its tensors summed up by kind and by name pattern. "
    "With TENSOR (a full name) the shape and statistics of its values. Only headers are read, but for TENSOR.\n\n"
    "examples:\n  hayate inspect models/m3-nano\n"
    "  hayate inspect models/m3-nano language_model.lm_head.weight";

/* ---- Kinds and formats
 * ----------------------------------------------------------------------------------------------- */

typedef enum kind {
    KIND_EMBEDDING,
    KIND_ATTENTION,
    KIND_INDEXER,
    KIND_EXPERTS,
    KIND_SHARED,
    KIND_DENSE,
    KIND_ROUTER,
    KIND_NORMS,
    KIND_VISION,
    KIND_DRAFT,
    KIND_OTHER,
    KIND_COUNT,
} kind;

static const char *const kind_names[KIND_COUNT] = {
    "embedding and head",
    "attention",
    "indexer",
    "routed experts",
    "shared experts",
    "dense feed-forward",
    "router",
    "norms",
    "vision",
    "taps and draft heads",
    "other",
};

static kind kind_of(const char *name)
{
    static const struct {
        const char *part;
        kind kind;
    } rules[] = {
        {"vision_tower.", KIND_VISION},
        {"multi_modal_projector.", KIND_VISION},
        {"patch_merge_mlp.", KIND_VISION},
        {"markov_head.", KIND_DRAFT},
        {"confidence_head.", KIND_DRAFT},
        {"dspark.fc.", KIND_DRAFT},
        {".mtp.", KIND_DRAFT},
        {"norm", KIND_NORMS},
        {"embed_tokens", KIND_EMBEDDING},
        {"lm_head", KIND_EMBEDDING},
        {".shared_experts.", KIND_SHARED},
        {".experts.", KIND_EXPERTS},
        {".index_", KIND_INDEXER},
        {".indexer.", KIND_INDEXER},
        {".self_attn.", KIND_ATTENTION},
        {"e_score_correction_bias", KIND_ROUTER},
        {".gate.weight", KIND_ROUTER},
        {".mlp.", KIND_DENSE},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (strstr(name, rules[i].part)) return rules[i].kind;
    return KIND_OTHER;
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

/* Rows of the format table: the two quantised formats, then one for each element type. */
enum { FORMAT_NVFP4, FORMAT_MXFP8, FORMAT_PLAIN, FORMAT_COUNT = FORMAT_PLAIN + TENSOR_F8_E8M0 + 1 };

static int format_of(const tensor *t)
{
    static const char *const nvfp4[] = {".weight_packed",      ".weight_scale",   ".weight_global_scale",
                                        ".input_global_scale", ".weight_scale_2", ".input_scale"};
    for (size_t i = 0; i < sizeof nvfp4 / sizeof nvfp4[0]; i++)
        if (ends_with(t->name, nvfp4[i])) return FORMAT_NVFP4;
    if (t->dtype == TENSOR_U8 && ends_with(t->name, ".weight")) return FORMAT_NVFP4;
    if (t->dtype == TENSOR_F8_E4M3 || ends_with(t->name, ".weight_scale_inv")) return FORMAT_MXFP8;
    return FORMAT_PLAIN + (int)t->dtype;
}

static const char *format_name(int format)
{
    if (format == FORMAT_NVFP4) return "NVFP4";
    if (format == FORMAT_MXFP8) return "MXFP8";
    return tensor_dtype_name((tensor_dtype)(format - FORMAT_PLAIN));
}

/* Logical weights of a tensor: none for scales, two a byte for packed codes. */
static uint64_t parameters_of(const tensor *t)
{
    static const char *const scales[] = {
        ".weight_scale",       ".weight_scale_inv", ".weight_scale_2", ".weight_global_scale",
        ".input_global_scale", ".input_scale",      ".k_scale",        ".v_scale"};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++)
        if (ends_with(t->name, scales[i])) return 0;
    uint64_t elements = t->bytes / tensor_dtype_bytes(t->dtype);
    return format_of(t) == FORMAT_NVFP4 ? 2 * elements : elements;
}

/* ---- Sums
 * ------------------------------------------------------------------------------------------------------------ */

typedef struct sum {
    uint64_t tensors, bytes;
} sum;

/* Tensors whose names differ in numbers only, of one type and shape. */
typedef struct group {
    char pattern[192];
    const tensor *first;
    sum sum;
} group;

typedef struct summary {
    sum all, table[KIND_COUNT][FORMAT_COUNT];
    uint64_t parameters;
    group *groups; /* [count] in file order */
    size_t count, room;
    uint32_t *slots; /* [slot_count] open hash table of group number + 1 */
    size_t slot_count;
} summary;

/* Parts of the name that are numbers become *. Longer names are cut: they make groups of their own. */
static void make_pattern(const char *name, char out[192])
{
    size_t n = 0;
    for (const char *p = name; *p && n < 191;) {
        size_t digits = 0;
        if (p == name || p[-1] == '.')
            while (isdigit((unsigned char)p[digits])) digits++;
        if (digits && (p[digits] == '.' || !p[digits])) {
            out[n++] = '*';
            p += digits;
        } else {
            out[n++] = *p++;
        }
    }
    out[n] = 0;
}

static bool same_kind(const tensor *a, const tensor *b)
{
    return a->dtype == b->dtype && a->dims == b->dims &&
           !memcmp(a->shape, b->shape, sizeof a->shape[0] * (size_t)a->dims);
}

static uint64_t hash_of(const char *pattern, const tensor *t)
{
    uint64_t h = UINT64_C(1469598103934665603) ^ (uint64_t)t->dtype; /* FNV-1a */
    for (; *pattern; pattern++) h = (h ^ (uint8_t)*pattern) * UINT64_C(1099511628211);
    for (int i = 0; i < t->dims; i++) h = (h ^ (uint64_t)t->shape[i]) * UINT64_C(1099511628211);
    return h ^ h >> 29;
}

static bool add_to_group(summary *s, const tensor *t)
{
    char pattern[192];
    make_pattern(t->name, pattern);
    size_t at = (size_t)hash_of(pattern, t) & (s->slot_count - 1);
    for (; s->slots[at]; at = (at + 1) & (s->slot_count - 1)) {
        group *g = &s->groups[s->slots[at] - 1];
        if (strcmp(g->pattern, pattern) || !same_kind(g->first, t)) continue;
        g->sum.tensors++, g->sum.bytes += t->bytes;
        return true;
    }
    if (!memory_reserve((void **)&s->groups, &s->room, s->count + 1, sizeof *s->groups)) return false;
    group *g = &s->groups[s->count++];
    *g = (group){.first = t, .sum = {1, t->bytes}};
    strcpy(g->pattern, pattern);
    s->slots[at] = (uint32_t)s->count;
    return true;
}

/* False: no memory. */
static bool summarise(const checkpoint *c, bool draft, summary *s)
{
    size_t count = checkpoint_tensor_count(c, draft);
    *s = (summary){.slot_count = 1024};
    while (s->slot_count < 2 * count) s->slot_count *= 2;
    s->slots = calloc(s->slot_count, sizeof *s->slots);
    if (!s->slots) return false;
    for (size_t i = 0; i < count; i++) {
        const tensor *t = checkpoint_tensor_at(c, i, draft);
        sum *cell = &s->table[kind_of(t->name)][format_of(t)];
        cell->tensors++, cell->bytes += t->bytes;
        s->all.tensors++, s->all.bytes += t->bytes;
        s->parameters += parameters_of(t);
        if (!add_to_group(s, t)) return false;
    }
    return true;
}

static void summary_free(summary *s)
{
    free(s->groups);
    free(s->slots);
}

/* ---- Text
 * ------------------------------------------------------------------------------------------------------------ */

static const char *shape_text(const tensor *t, char out[160])
{
    int n = snprintf(out, 160, "[");
    for (int i = 0; i < t->dims; i++)
        n += snprintf(out + n, (size_t)(160 - n), "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    snprintf(out + n, (size_t)(160 - n), "]");
    return out;
}

static void print_config(const checkpoint *c)
{
    const config *f = checkpoint_config(c);
    char a[32];
    int sparse = 0, moe = 0;
    for (int i = 0; i < f->layers; i++) sparse += f->sparse[i], moe += f->moe[i];
    printf("%s: %s, %s%s%s%s\n", checkpoint_folder(c), f->model_type,
           f->quant_method[0] ? f->quant_method : "not quantised", f->moe_quant[0] ? ", experts " : "", f->moe_quant,
           f->transformers_spelling ? ", config as transformers spells it" : "");
    printf("  %d layers, %d of them block-sparse, %d with experts; hidden %d, vocabulary %d%s\n", f->layers, sparse,
           moe, f->hidden, f->vocab, f->tied_head ? ", tied head" : "");
    printf("  attention: %d query and %d KV heads of %d, rotary %d, theta %g, up to %s positions\n", f->heads,
           f->kv_heads, f->head_dim, f->rotary_dim, (double)f->rope_theta,
           cli_format_count((uint64_t)f->max_positions, a));
    if (sparse)
        printf("  selection: %d index heads of %d, %d blocks of %d a query, %d local\n", f->index_heads, f->index_dim,
               f->index_top, f->index_block, f->index_local);
    if (moe)
        printf("  experts: %d of width %d, %d a token, scaling %g%s", f->experts, f->expert_width, f->experts_per_token,
               (double)f->routed_scaling, f->shared_expert ? "" : "\n");
    if (moe && f->shared_expert) printf("; shared expert of width %d\n", f->shared_width);
    if (moe < f->layers) printf("  dense feed-forward of width %d\n", f->dense_width);
    if (f->vision_layers)
        printf("  vision: %d layers, hidden %d, %d heads, patches of %d\n", f->vision_layers, f->vision_hidden,
               f->vision_heads, f->vision_patch);
}

static void print_draft_config(const checkpoint *c)
{
    const draft_config *d = checkpoint_draft(c);
    char window[24] = "none", text[CLI_TEXT];
    hy_error err = {0};
    if (d->window) snprintf(window, sizeof window, "%d", d->window);
    printf("\ndrafter: %s, %d layers, window %s, block %d, Markov rank %d, taps",
           d->family == DRAFT_RELEASED ? "as released" : "Qwen3", d->layers, window, d->block, d->markov_rank);
    for (int i = 0; i < d->tap_count; i++) printf(" %d", d->taps[i]);
    printf("%s\n", d->confidence_head ? ", confidence head" : "");
    if (checkpoint_check_draft(c, &err) != HY_OK)
        printf("  it cannot be opened: %s\n", cli_format_text(err.message, text));
}

static void print_summary(const checkpoint *c, bool draft, const summary *s)
{
    char a[32], b[32], p[32], shape[160], name[CLI_TEXT];
    printf("  %s tensors in %zu file%s, %s bytes (%s), %s parameters\n\n", cli_format_count(s->all.tensors, a),
           checkpoint_shard_count(c, draft), checkpoint_shard_count(c, draft) == 1 ? "" : "s",
           cli_format_count(s->all.bytes, b), cli_format_bytes(s->all.bytes, p),
           cli_format_count(s->parameters, shape));
    printf("  %-22s %-8s %10s %19s %9s\n", "kind", "format", "tensors", "bytes", "");
    for (int k = 0; k < KIND_COUNT; k++)
        for (int f = 0; f < FORMAT_COUNT; f++) {
            const sum *cell = &s->table[k][f];
            if (cell->tensors)
                printf("  %-22s %-8s %10s %19s %9s\n", kind_names[k], format_name(f),
                       cli_format_count(cell->tensors, a), cli_format_count(cell->bytes, b),
                       cli_format_bytes(cell->bytes, p));
        }
    printf("\n  %10s %19s  %-8s %-20s %s\n", "tensors", "bytes", "type", "shape", "name (* stands for a number)");
    for (size_t i = 0; i < s->count; i++) {
        const group *g = &s->groups[i];
        printf("  %10s %19s  %-8s %-20s %s\n", cli_format_count(g->sum.tensors, a), cli_format_count(g->sum.bytes, b),
               tensor_dtype_name(g->first->dtype), shape_text(g->first, shape), cli_format_text(g->pattern, name));
    }
}

/* ---- Every tensor
 * ---------------------------------------------------------------------------------------------------- */

typedef void (*each_fn)(void *user, const tensor *t, const char *shard);

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* All tensors with the file that holds them: they come in the order of the files, whose headers say how many they have.
 */
static hy_status each_tensor(const checkpoint *c, bool draft, each_fn fn, void *user, hy_error *err)
{
    size_t i = 0;
    for (size_t shard = 0; shard < checkpoint_shard_count(c, draft); shard++) {
        const char *path = checkpoint_shard_path(c, shard, draft);
        safetensors *file = NULL;
        hy_status s = safetensors_open(path, &file, err);
        if (s != HY_OK) return s;
        size_t end = i + safetensors_count(file);
        safetensors_close(file);
        for (; i < end && i < checkpoint_tensor_count(c, draft); i++)
            fn(user, checkpoint_tensor_at(c, i, draft), file_name(path));
    }
    return HY_OK;
}

static void print_tensor(void *user, const tensor *t, const char *shard)
{
    char shape[160], bytes[32], name[CLI_TEXT], file[CLI_TEXT];
    (void)user;
    printf("%-10s %-22s %16s  %s  %s\n", tensor_dtype_name(t->dtype), shape_text(t, shape),
           cli_format_count(t->bytes, bytes), cli_format_text(shard, file), cli_format_text(t->name, name));
}

/* ---- JSON
 * ------------------------------------------------------------------------------------------------------------ */

static void put(json_writer *w, const char *key, int64_t value)
{
    writer_key(w, key);
    writer_integer(w, value);
}

static void put_bits(json_writer *w, const char *key, const uint8_t *bits, int count)
{
    writer_key(w, key);
    writer_array(w);
    for (int i = 0; i < count; i++) writer_integer(w, bits[i]);
    writer_end(w);
}

static void json_config(json_writer *w, const config *f)
{
    writer_key(w, "config");
    writer_object(w);
    writer_key(w, "model_type");
    writer_text(w, f->model_type);
    writer_key(w, "quant_method");
    writer_text(w, f->quant_method[0] ? f->quant_method : NULL);
    writer_key(w, "moe_quant_algo");
    writer_text(w, f->moe_quant[0] ? f->moe_quant : NULL);
    put(w, "num_hidden_layers", f->layers);
    put(w, "hidden_size", f->hidden);
    put(w, "vocab_size", f->vocab);
    put(w, "max_position_embeddings", f->max_positions);
    put(w, "num_attention_heads", f->heads);
    put(w, "num_key_value_heads", f->kv_heads);
    put(w, "head_dim", f->head_dim);
    put(w, "rotary_dim", f->rotary_dim);
    put(w, "num_local_experts", f->experts);
    put(w, "num_experts_per_tok", f->experts_per_token);
    put(w, "intermediate_size", f->expert_width);
    put(w, "shared_intermediate_size", f->shared_width);
    put(w, "dense_intermediate_size", f->dense_width);
    put(w, "sparse_num_index_heads", f->index_heads);
    put(w, "sparse_index_dim", f->index_dim);
    put(w, "sparse_topk_blocks", f->index_top);
    put(w, "sparse_block_size", f->index_block);
    put_bits(w, "sparse_attention_freq", f->sparse, f->layers);
    put_bits(w, "moe_layer_freq", f->moe, f->layers);
    put(w, "vision_layers", f->vision_layers);
    writer_key(w, "tie_word_embeddings");
    writer_bool(w, f->tied_head);
    writer_end(w);
}

static void json_counts(json_writer *w, const checkpoint *c, bool draft, const summary *s)
{
    writer_key(w, "tensors");
    writer_unsigned(w, s->all.tensors);
    writer_key(w, "tensor_bytes");
    writer_unsigned(w, s->all.bytes);
    put(w, "shards", (int64_t)checkpoint_shard_count(c, draft));
    writer_key(w, "parameters");
    writer_unsigned(w, s->parameters);
    writer_key(w, "kinds");
    writer_array(w);
    for (int k = 0; k < KIND_COUNT; k++)
        for (int f = 0; f < FORMAT_COUNT; f++) {
            if (!s->table[k][f].tensors) continue;
            writer_object(w);
            writer_key(w, "kind");
            writer_text(w, kind_names[k]);
            writer_key(w, "format");
            writer_text(w, format_name(f));
            put(w, "tensors", (int64_t)s->table[k][f].tensors);
            put(w, "bytes", (int64_t)s->table[k][f].bytes);
            writer_end(w);
        }
    writer_end(w);
}

static void json_tensor(void *user, const tensor *t, const char *shard)
{
    json_writer *w = user;
    writer_object(w);
    writer_key(w, "name");
    writer_text(w, t->name);
    writer_key(w, "dtype");
    writer_text(w, tensor_dtype_name(t->dtype));
    writer_key(w, "shape");
    writer_array(w);
    for (int i = 0; i < t->dims; i++) writer_integer(w, t->shape[i]);
    writer_end(w);
    put(w, "bytes", (int64_t)t->bytes);
    writer_key(w, "file");
    writer_text(w, shard);
    writer_end(w);
}

static hy_status json_list(json_writer *w, const checkpoint *c, bool draft, hy_error *err)
{
    writer_key(w, "list");
    writer_array(w);
    hy_status s = each_tensor(c, draft, json_tensor, w, err);
    writer_end(w);
    return s;
}

static hy_status print_json(const checkpoint *c, const summary *main, const summary *draft, bool all, hy_error *err)
{
    buffer b = {0};
    json_writer w = {.out = &b};
    hy_status s = HY_OK;
    writer_object(&w);
    writer_key(&w, "path");
    writer_text(&w, checkpoint_folder(c));
    json_counts(&w, c, false, main);
    if (all) s = json_list(&w, c, false, err);
    writer_key(&w, "draft");
    if (checkpoint_draft(c)) {
        const draft_config *d = checkpoint_draft(c);
        writer_object(&w);
        json_counts(&w, c, true, draft);
        if (all && s == HY_OK) s = json_list(&w, c, true, err);
        put(&w, "layers", d->layers);
        put(&w, "window", d->window);
        put(&w, "block", d->block);
        hy_error problem = {0};
        writer_key(&w, "problem"); /* null: it opens */
        if (checkpoint_check_draft(c, &problem) == HY_OK)
            writer_null(&w);
        else
            writer_text(&w, problem.message);
        writer_key(&w, "taps");
        writer_array(&w);
        for (int i = 0; i < d->tap_count; i++) writer_integer(&w, d->taps[i]);
        writer_end(&w);
        writer_end(&w);
    } else {
        writer_null(&w);
    }
    json_config(&w, checkpoint_config(c));
    writer_end(&w);
    if (s == HY_OK && !buffer_ok(&b))
        s = HY_NO_FIT, snprintf(err->message, sizeof err->message, "no memory for the output");
    if (s == HY_OK) printf("%s\n", b.data);
    buffer_free(&b);
    return s;
}

/* ---- One tensor
 * ------------------------------------------------------------------------------------------------------ */

/* Element types that a `weight` knows how to decode. */
static weight_format value_format(tensor_dtype dtype)
{
    switch (dtype) {
    case TENSOR_F32: return WEIGHT_F32;
    case TENSOR_BF16: return WEIGHT_BF16;
    case TENSOR_F16: return WEIGHT_F16;
    default: return WEIGHT_NONE;
    }
}

typedef struct statistics {
    double sum, squares, low, high;
    uint64_t count, zeros, not_finite;
} statistics;

static void collect(statistics *s, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            s->not_finite++;
            continue;
        }
        s->zeros += x[i] == 0;
        s->sum += x[i], s->squares += (double)x[i] * x[i];
        if (!s->count || x[i] < s->low) s->low = x[i];
        if (!s->count || x[i] > s->high) s->high = x[i];
        s->count++;
    }
}

/* Values of a tensor in pieces: decoded ones, E4M3 by its table, other bytes as the integers that they are. */
static bool read_values(const tensor *t, size_t at, size_t n, float *out)
{
    weight_format f = value_format(t->dtype);
    size_t size = tensor_dtype_bytes(t->dtype);
    const uint8_t *bytes = (const uint8_t *)t->data + at * size;
    if (f != WEIGHT_NONE) {
        weight w = {.format = f, .rows = 1, .cols = (int64_t)n, .data = bytes};
        weight_row(&w, 0, out);
        return true;
    }
    if (t->dtype == TENSOR_F8_E4M3) {
        for (size_t i = 0; i < n; i++) out[i] = e4m3_to_float(bytes[i]);
        return true;
    }
    if (size != 1) return false;
    for (size_t i = 0; i < n; i++) out[i] = bytes[i];
    return true;
}

static int print_one(const checkpoint *c, const char *name)
{
    const tensor *t = checkpoint_find(c, name);
    if (!t) {
        for (size_t i = 0; !t && i < checkpoint_tensor_count(c, true); i++)
            if (!strcmp(checkpoint_tensor_at(c, i, true)->name, name)) t = checkpoint_tensor_at(c, i, true);
        if (!t) {
            fprintf(stderr, "hayate: there is no tensor '%.200s' in %s; 'hayate inspect %s --all' lists them\n", name,
                    checkpoint_folder(c), checkpoint_folder(c));
            return 2;
        }
    }
    char shape[160], bytes[32], text[CLI_TEXT];
    printf("%s\n  %s %s, %s bytes\n", cli_format_text(t->name, text), tensor_dtype_name(t->dtype), shape_text(t, shape),
           cli_format_count(t->bytes, bytes));
    float values[4096];
    statistics s = {0};
    size_t total = t->bytes / tensor_dtype_bytes(t->dtype), step = sizeof values / sizeof values[0];
    for (size_t at = 0; at < total; at += step) {
        size_t n = total - at < step ? total - at : step;
        if (!read_values(t, at, n, values)) return 0;
        if (at == 0) {
            printf("  begins");
            for (size_t i = 0; i < n && i < 8; i++) printf(" %.6g", (double)values[i]);
            printf("\n");
        }
        collect(&s, values, n);
    }
    if (s.count)
        printf("  smallest %.6g, largest %.6g, mean %.6g, root mean square %.6g, %s zeros%s\n", s.low, s.high,
               s.sum / (double)s.count, sqrt(s.squares / (double)s.count), cli_format_count(s.zeros, bytes),
               tensor_dtype_bytes(t->dtype) == 1 ? " (stored codes, scales not applied)" : "");
    if (s.not_finite) printf("  %s values are NaN or infinite\n", cli_format_count(s.not_finite, bytes));
    return 0;
}

/* ---- The command
 * ----------------------------------------------------------------------------------------------------- */

static hy_status print_all(const checkpoint *c, hy_error *err)
{
    hy_status s = each_tensor(c, false, print_tensor, NULL, err);
    return s == HY_OK && checkpoint_draft(c) ? each_tensor(c, true, print_tensor, NULL, err) : s;
}

static hy_status show(const checkpoint *c, bool json, bool all, hy_error *err)
{
    summary main = {0}, draft = {0};
    hy_status s = HY_OK;
    if (!summarise(c, false, &main) || (checkpoint_draft(c) && !summarise(c, true, &draft))) {
        s = HY_NO_FIT;
        snprintf(err->message, sizeof err->message, "no memory to sum up the tensors");
    } else if (json) {
        s = print_json(c, &main, &draft, all, err);
    } else if (all) {
        s = print_all(c, err);
    } else {
        print_config(c);
        print_summary(c, false, &main);
        if (checkpoint_draft(c)) {
            print_draft_config(c);
            print_summary(c, true, &draft);
        }
    }
    summary_free(&main);
    summary_free(&draft);
    return s;
}

int cmd_inspect(int argc, char **argv)
{
    const char *places[2];
    int count = 2;
    bool json = false, all = false;
    const cli_option options[] = {
        {"all", NULL, "a line for every tensor: type, shape, bytes, file, name", &all, CLI_FLAG},
        {"json", NULL, "one JSON object; with --all a list of every tensor in it", &json, CLI_FLAG},
    };
    int code =
        cli_parse("inspect", usage, about, options, sizeof options / sizeof options[0], argc, argv, places, &count);
    if (code >= 0) return code;
    if (count < 1) return cli_usage_error("inspect", "MODEL is needed: a checkpoint folder or its files");
    if (count == 2 && (json || all))
        return cli_usage_error("inspect", "--json and --all are for a whole model, not for one tensor");
    hy_error err = {0};
    checkpoint *c = NULL;
    char folder[FIND_PATH_SIZE];
    hy_status s = find_model(places[0], NULL, folder, &err);
    if (s == HY_OK) s = checkpoint_open(folder, &c, &err);
    if (s == HY_OK) checkpoint_warn_draft(c);
    if (s == HY_OK && count == 2)
        code = print_one(c, places[1]);
    else if (s == HY_OK)
        s = show(c, json, all, &err);
    checkpoint_close(c);
    if (s == HY_OK) return count == 2 ? code : 0;
    cli_error(&err);
    return cli_exit(s);
}
