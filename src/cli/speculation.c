#include "cli/speculation.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/config.h"
#include "checkpoint/source.h"
#include "cli/cli.h"
#include "cli/members.h"
#include "cli/speculation_cost.h"
#include "model/model.h"

/* Drafters of other models and other ways to draft, which upstream knows and this engine does not run. */
static const char others[] = "ngram|ngram_gpu|eagle|eagle3|medusa|mlp_speculator|draft_model|suffix|mtp|dflash|custom_"
                             "class|extract_hidden_states";

static const member_spec members[] = {
    {"method", MEMBER_TEXT, NULL},
    {"model", MEMBER_TEXT, NULL},
    {"num_speculative_tokens", MEMBER_ANY, NULL},
    {"num_speculative_tokens_per_batch_size", MEMBER_ANY, NULL},
    {"draft_table", MEMBER_TEXT, NULL},
    {"attention_backend", MEMBER_TEXT, NULL},
    {"kv_cache_dtype", MEMBER_CHOICE, "auto|bfloat16|bf16|fp8|fp8_e4m3"},
    {"draft_tensor_parallel_size", MEMBER_COUNT, NULL},
    {"draft_sample_method", MEMBER_CHOICE, "greedy|probabilistic"},
    {"rejection_sample_method", MEMBER_CHOICE, "coupled|standard|block|synthetic|strict|probabilistic"},
    {"synthetic_acceptance_length", MEMBER_NUMBER, NULL},
    {"synthetic_acceptance_rates", MEMBER_ANY, NULL},
    {"confidence_threshold", MEMBER_NUMBER, NULL},
    {"enable_adaptive_verification", MEMBER_BOOL, NULL},
    /* Without effect here. */
    {"moe_backend", MEMBER_TEXT, NULL},
    {"quantization", MEMBER_TEXT, NULL},
    {"max_model_len", MEMBER_COUNT, NULL},
    {"revision", MEMBER_TEXT, NULL},
    {"code_revision", MEMBER_TEXT, NULL},
    {"enforce_eager", MEMBER_BOOL, NULL},
    {"disable_padded_drafter_batch", MEMBER_BOOL, NULL},
    {"use_local_argmax_reduction", MEMBER_BOOL, NULL},
    {"use_heterogeneous_vocab", MEMBER_BOOL, NULL},
    {"parallel_drafting", MEMBER_BOOL, NULL},
    {"draft_load_config", MEMBER_ANY, NULL},
    /* Of other methods. */
    {"prompt_lookup_max", MEMBER_COUNT, NULL},
    {"prompt_lookup_min", MEMBER_COUNT, NULL},
    {"suffix_decoding_max_tree_depth", MEMBER_ANY, NULL},
    {"suffix_decoding_max_cached_requests", MEMBER_ANY, NULL},
    {"suffix_decoding_max_spec_factor", MEMBER_ANY, NULL},
    {"suffix_decoding_min_token_prob", MEMBER_ANY, NULL},
};
static const char idle_members[] =
    "attention_backend|moe_backend|quantization|max_model_len|revision|code_revision|enforce_eager|"
    "disable_padded_drafter_batch|use_local_argmax_reduction|use_heterogeneous_vocab|parallel_drafting|draft_load_"
    "config";

static int fail(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int fail(const char *command, const char *format, ...)
{
    char text[400];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return cli_usage_error(command, "--speculative-config: %s", text);
}

static const json_t *value_of(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    return json_is_null(v) ? NULL : v;
}

static const char *text_of(const json_t *o, const char *name)
{
    return json_string_value(value_of(o, name));
}

/* ---- Members ------------------------------------------------------------------------------------------------------
 */

static int read_method(const char *command, const json_t *o)
{
    const char *method = text_of(o, "method"), *name;
    json_t *v;
    if (method && members_among(method, others))
        return fail(command, "method %s is not done: the drafter of this model is dspark", method);
    if (method && strcmp(method, "dspark") != 0)
        return fail(command, "method %.40s is unknown: the drafter of this model is dspark", method);
    json_object_foreach((json_t *)o, name, v)
    {
        if (json_is_null(v) || (strncmp(name, "prompt_lookup", 13) != 0 && strncmp(name, "suffix_decoding", 15) != 0))
            continue;
        return fail(command, "%s belongs to another method than dspark", name);
    }
    return -1;
}

static int read_count(const char *command, const json_t *o, speculation *s)
{
    const json_t *n = value_of(o, "num_speculative_tokens");
    const char *word = json_string_value(n), *table = text_of(o, "draft_table");
    if (word && strcmp(word, "auto") == 0)
        s->automatic = true;
    else if (n && (!json_is_integer(n) || json_integer_value(n) < 1 || json_integer_value(n) > HY_MAX_DRAFTS))
        return fail(command,
                    "num_speculative_tokens must be a whole number from 1 to %d and no more than the drafter's "
                    "block, or auto",
                    HY_MAX_DRAFTS);
    s->drafts = (int)json_integer_value(n);
    if (table && (!*table || strlen(table) >= sizeof s->table)) return fail(command, "draft_table needs a file");
    if (table && n && !s->automatic) return fail(command, "draft_table is for num_speculative_tokens auto");
    if (table) snprintf(s->table, sizeof s->table, "%s", table), s->automatic = true;
    return -1;
}

/* [[1, 4, 7], [5, 64, 3]]: with so many to so many sequences so many drafts, without gaps. */
static int read_schedule(const char *command, const json_t *o, speculation *s)
{
    static const char name[] = "num_speculative_tokens_per_batch_size";
    const json_t *list = value_of(o, name), *v;
    json_int_t next = 1;
    size_t i;
    if (!list) return -1;
    if (s->automatic) return fail(command, "give one of %s and num_speculative_tokens auto", name);
    json_int_t most = s->drafts ? s->drafts : HY_MAX_DRAFTS;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return fail(command, "%s must be a list such as [[1, 4, 7], [5, 64, 3]]", name);
    json_array_foreach(list, i, v)
    {
        json_int_t part[3];
        bool right = json_is_array(v) && json_array_size(v) == 3;
        for (size_t k = 0; k < 3 && right; k++) {
            right = json_is_integer(json_array_get(v, k));
            part[k] = json_integer_value(json_array_get(v, k));
        }
        if (!right || part[0] != next || part[1] < part[0] || part[2] < 0 || part[2] > most)
            return fail(command,
                        "%s: entry %zu must be [first, last, drafts] with first %lld, last from there and drafts 0 to "
                        "%lld",
                        name, i, (long long)next, (long long)most);
        for (json_int_t b = part[0]; b <= part[1] && b <= SPECULATION_BATCHES; b++)
            s->by_batch[s->by_batch_count++] = (int)part[2];
        next = part[1] + 1;
    }
    return -1;
}

/* What older releases of upstream call them: "strict" accepts a draft that the target picks, "probabilistic" is the
 * standard rule. */
static const char *method_called(const char *name)
{
    static const char *const names[][2] = {{"coupled", "coupled"},   {"strict", "coupled"},
                                           {"standard", "standard"}, {"probabilistic", "standard"},
                                           {"block", "block"},       {"synthetic", "synthetic"}};
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i][0]) == 0) return names[i][1];
    return "coupled";
}

/* Parts of the rounds, each in [0, 1] and not above the one before. */
static bool read_rates(const json_t *list, int drafts, speculation *s)
{
    size_t n = json_array_size(list);
    double last = 1;
    if (n < 1 || n > HY_MAX_DRAFTS || (drafts > 0 && n != (size_t)drafts)) return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        double x = json_is_number(v) ? json_number_value(v) : NAN;
        if (!(x >= 0 && x <= last)) return false;
        s->rates[i] = (float)(last = x);
    }
    s->rate_count = (int)n;
    return true;
}

static int read_synthetic(const char *command, const json_t *o, speculation *s)
{
    const json_t *length = value_of(o, "synthetic_acceptance_length"),
                 *rates = value_of(o, "synthetic_acceptance_rates");
    bool synthetic = strcmp(s->method, "synthetic") == 0;
    if (!synthetic && (length || rates))
        return fail(command, "synthetic_acceptance_length and _rates are for rejection_sample_method synthetic");
    if (synthetic && !length == !rates)
        return fail(command, "rejection_sample_method synthetic needs either synthetic_acceptance_length or _rates");
    s->length = json_number_value(length);
    if (length && !(s->length >= 1 && s->length <= (s->drafts ? s->drafts : HY_MAX_DRAFTS) + 1))
        return fail(command,
                    "synthetic_acceptance_length must be 1 to num_speculative_tokens + 1, the target's own token "
                    "being one");
    if (rates && !read_rates(rates, s->drafts, s))
        return fail(command,
                    "synthetic_acceptance_rates must be num_speculative_tokens numbers from 0 to 1 that do not "
                    "rise: the part of the rounds in which so many drafts are accepted");
    if (rates && !s->drafts && !s->automatic) s->drafts = s->rate_count;
    return -1;
}

static int read_confidence(const char *command, const json_t *o, speculation *s)
{
    const json_t *v = value_of(o, "confidence_threshold");
    double x = json_number_value(v);
    if (json_is_true(value_of(o, "enable_adaptive_verification")))
        return fail(command,
                    "enable_adaptive_verification is not done: a round's length follows num_speculative_tokens, or "
                    "its own drafts with confidence_threshold");
    if (v && !(x >= 0 && x < 1)) return fail(command, "confidence_threshold must be from 0 to below 1");
    if (x > 0 && strcmp(s->method, "synthetic") == 0)
        return fail(command, "confidence_threshold and rejection_sample_method synthetic contradict each other");
    s->confidence = (float)x;
    return -1;
}

/* Names of upstream's backends are words in capitals; there is one set of kernels to choose. */
static int read_idle(const char *command, const json_t *o, int64_t ranks, speculation *s)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.";
    const char *backend = text_of(o, "attention_backend"), *name;
    json_t *v;
    if (backend && (!*backend || backend[strspn(backend, letters)]))
        return fail(command, "attention_backend must be a name such as FLASHINFER_TS or TRITON_ATTN, not '%.40s'",
                    backend);
    json_int_t draft = json_integer_value(value_of(o, "draft_tensor_parallel_size"));
    if (draft > 1 && draft != ranks)
        return fail(command, "draft_tensor_parallel_size must be 1 or --tensor-parallel-size");
    json_object_foreach((json_t *)o, name, v)
    {
        size_t n = strlen(s->idle);
        if (!json_is_null(v) && members_among(name, idle_members))
            snprintf(s->idle + n, sizeof s->idle - n, "%s%s", n ? ", " : "", name);
    }
    return -1;
}

int speculation_read(const char *command, const json_t *given, int64_t ranks, speculation *s)
{
    *s = (speculation){.given = true};
    int code = members_check(command, "speculative-config", given, members, sizeof members / sizeof *members);
    if (code >= 0) return code;
    const char *model = text_of(given, "model"), *cache = text_of(given, "kv_cache_dtype"),
               *draws = text_of(given, "draft_sample_method");
    if (model && (!*model || strlen(model) >= sizeof s->model)) return fail(command, "model needs a folder");
    snprintf(s->model, sizeof s->model, "%s", model ? model : "on");
    s->cache_dtype = !cache || !strcmp(cache, "auto") ? "auto" : cache[0] == 'b' ? "bf16" : "fp8";
    s->greedy = draws && !strcmp(draws, "greedy");
    s->method = method_called(text_of(given, "rejection_sample_method"));
    code = read_method(command, given);
    if (code < 0) code = read_count(command, given, s);
    if (code < 0) code = read_synthetic(command, given, s);
    if (code < 0) code = read_schedule(command, given, s);
    if (code < 0) code = read_confidence(command, given, s);
    if (code < 0) code = read_idle(command, given, ranks, s);
    return code;
}

int speculation_parse(const char *command, const char *text, speculation *out)
{
    json_error_t e;
    json_t *given = json_loads(text, JSON_REJECT_DUPLICATES, &e);
    if (!json_is_object(given)) {
        json_decref(given);
        return cli_usage_error(command,
                               "--speculative-config takes a JSON object such as "
                               "'{\"num_speculative_tokens\": 7}'%s%.120s",
                               given ? "" : ": ", given ? "" : e.text);
    }
    int code = speculation_read(command, given, 1, out);
    json_decref(given);
    return code;
}

/* ---- The drafter and the table ------------------------------------------------------------------------------------
 */

/* Block of the drafter whose folder it is; 0: its config cannot be read here, and opening the model will say why. */
static int block_of(const char *folder)
{
    char path[FIND_PATH_SIZE + 16], *text = NULL;
    size_t length = 0;
    draft_config d;
    snprintf(path, sizeof path, "%.4090s/config.json", folder);
    bool read = file_read(path, 1 << 20, &text, &length, NULL) == HY_OK &&
                draft_config_parse(path, text, length, &d, NULL) == HY_OK;
    free(text);
    return read ? d.block : 0;
}

static bool has(const char *folder, const char *name)
{
    char path[FIND_PATH_SIZE + 32];
    snprintf(path, sizeof path, "%.4090s/%s", folder, name);
    return file_present(path);
}

/* Where the drafter is: a folder, one with the folder dspark in it, or a name of the hub. */
static hy_status find_drafter(speculation *s, const char *folder, char out[FIND_PATH_SIZE], hy_error *err)
{
    static const char inside[] = "dspark/config.json";
    bool own = strcmp(s->model, "on") == 0;
    hy_status status = own ? HY_OK : find_model(s->model, NULL, out, err);
    if (status != HY_OK) return status;
    if (own && !has(folder, "dspark"))
        return error_set(err, HY_USAGE,
                         "--speculative-config: %.200s comes without a drafter, the folder dspark: name one with the "
                         "member model, or serve without drafts",
                         folder);
    if (own) snprintf(out, FIND_PATH_SIZE, "%.4080s/dspark", folder);
    if (!own && has(out, inside) && strlen(out) + 8 < FIND_PATH_SIZE) strcat(out, "/dspark");
    if (!own) snprintf(s->model, sizeof s->model, "%s", out);
    return HY_OK;
}

void speculation_rates(double length, int drafts, float rates[HY_MAX_DRAFTS])
{
    double left = length - 1;
    for (int i = 0; i < drafts; i++, left -= 1) rates[i] = left >= 1 ? 1 : left > 0 ? (float)left : 0;
}

static hy_status settle_rates(speculation *s, hy_error *err)
{
    if (strcmp(s->method, "synthetic") != 0) return HY_OK;
    if (s->rate_count > 0 && s->rate_count != s->drafts)
        return error_set(
            err, HY_USAGE,
            "--speculative-config: synthetic_acceptance_rates has %d numbers and the drafter's block %d: give so "
            "many, or num_speculative_tokens",
            s->rate_count, s->drafts);
    if (s->length > s->drafts + 1)
        return error_set(err, HY_USAGE, "--speculative-config: synthetic_acceptance_length must be 1 to %d",
                         s->drafts + 1);
    if (s->rate_count == 0) speculation_rates(s->length, s->drafts, s->rates);
    return HY_OK;
}

hy_status speculation_table_read(const char *path, int drafts, speculation *s, hy_error *err)
{
    json_error_t e;
    json_t *o = json_load_file(path, JSON_REJECT_DUPLICATES, &e);
    const json_t *batch = json_object_get(o, "batch"), *list = json_object_get(o, "drafts");
    size_t n = json_array_size(batch);
    bool right = json_is_integer(json_object_get(o, "hayate_draft_table")) && n > 0 && n == json_array_size(list);
    s->by_batch_count = 0;
    for (size_t i = 0; i < n && right; i++) {
        const json_t *b = json_array_get(batch, i), *d = json_array_get(list, i);
        json_int_t last = json_integer_value(b), count = json_integer_value(d);
        right = json_is_integer(b) && json_is_integer(d) && last > s->by_batch_count && count >= 0 &&
                count <= HY_MAX_DRAFTS && last <= SPECULATION_BATCHES;
        while (right && s->by_batch_count < last)
            s->by_batch[s->by_batch_count++] = (int)(count < drafts ? count : drafts);
    }
    hy_status status = HY_OK;
    if (!o)
        status = error_at(err, HY_USAGE, path, "--speculative-config: draft_table %.200s: %.160s", path, e.text);
    else if (!right)
        status =
            error_at(err, HY_USAGE, path,
                     "--speculative-config: draft_table %.200s is no table of drafts, which 'hayate bench speculation "
                     "MODEL --write-table FILE' writes",
                     path);
    json_decref(o);
    return status;
}

static void fill(speculation *s, hy_model_options *model, hy_engine_options *engine)
{
    model->drafter = s->model, model->draft_cache_dtype = s->cache_dtype;
    engine->speculation = (hy_speculation){.drafts = s->drafts,
                                           .method = s->method,
                                           .greedy_drafts = s->greedy,
                                           .by_batch = s->by_batch_count > 0 ? s->by_batch : NULL,
                                           .by_batch_count = (size_t)s->by_batch_count,
                                           .rates = strcmp(s->method, "synthetic") == 0 ? s->rates : NULL,
                                           .confidence = s->confidence};
}

hy_status speculation_find(speculation *s, const char *folder, hy_model_options *model, hy_engine_options *engine,
                           hy_error *err)
{
    char place[FIND_PATH_SIZE];
    model_source source = {0};
    if (!s->given || source_open(folder, &source, NULL) != HY_OK)
        return HY_OK; /* no model is the worse mistake: opening it will tell */
    hy_status status = find_drafter(s, source.folder, place, err);
    source_close(&source);
    if (status != HY_OK) return status;
    int block = block_of(place);
    if (block > 0 && s->drafts > block)
        return error_set(
            err, HY_USAGE,
            "--speculative-config: num_speculative_tokens %d is more than the block of the drafter, %d: give 1 to "
            "%d, or auto",
            s->drafts, block, block);
    if (!s->drafts) s->drafts = block > 0 ? block : 1;
    for (int i = 0; i < s->by_batch_count; i++)
        if (s->by_batch[i] > s->drafts)
            return error_set(
                err, HY_USAGE,
                "--speculative-config: num_speculative_tokens_per_batch_size has %d drafts, the drafter's block "
                "%d",
                s->by_batch[i], s->drafts);
    status = settle_rates(s, err);
    if (status == HY_OK && *s->table) status = speculation_table_read(s->table, s->drafts, s, err);
    if (status == HY_OK) fill(s, model, engine);
    return status;
}

void speculation_settle(speculation *s, const hy_model *model, int most, hy_engine_options *engine)
{
    if (!s->given || !s->automatic || *s->table) return;
    if (most > SPECULATION_BATCHES) most = SPECULATION_BATCHES;
    speculation_cost_table(model, s->drafts, most, s->by_batch);
    s->by_batch_count = most;
    engine->speculation.by_batch = s->by_batch, engine->speculation.by_batch_count = (size_t)most;
}
