/* The JSON flags: which members there are, what they may be, what they do here. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/members.h"
#include "cli/serve_setup.h"
#include "model/model.h"

#define CHECK(flag, object, specs) members_check("serve", flag, object, specs, sizeof(specs) / sizeof *(specs))

static const char *text_of(const json_t *object, const char *name)
{
    return json_string_value(json_object_get(object, name));
}

/* ---- Attention -------------------------------------------------------------------------------------------------- */

static const member_spec attention[] = {
    {"backend", MEMBER_TEXT, NULL},
    {"backend_per_kind", MEMBER_ANY, NULL},
    {"flash_attn_version", MEMBER_COUNT, NULL},
    {"use_prefill_decode_attention", MEMBER_BOOL, NULL},
    {"flash_attn_max_num_splits_for_cuda_graph", MEMBER_COUNT, NULL},
    {"tq_max_kv_splits_for_cuda_graph", MEMBER_COUNT, NULL},
    {"use_trtllm_attention", MEMBER_BOOL, NULL},
    {"use_cudnn_prefill", MEMBER_BOOL, NULL},
    {"use_trtllm_ragged_deepseek_prefill", MEMBER_BOOL, NULL},
    {"disable_flashinfer_prefill", MEMBER_BOOL, NULL},
    {"disable_flashinfer_q_quantization", MEMBER_BOOL, NULL},
    {"mla_prefill_backend", MEMBER_TEXT, NULL},
    {"use_prefill_query_quantization", MEMBER_BOOL, NULL},
    {"use_fp4_indexer_cache", MEMBER_BOOL, NULL},
    {"indexer_kv_dtype", MEMBER_TEXT, NULL},
    {"indexer_decode_cp", MEMBER_BOOL, NULL},
    {"minimax_m3_msa_decode_backend", MEMBER_TEXT, NULL},
    {"use_non_causal", MEMBER_BOOL, NULL},
    {"sparse_mla_force_mqa", MEMBER_BOOL, NULL},
    {"flex_attn_block_m", MEMBER_COUNT, NULL},
    {"flex_attn_block_n", MEMBER_COUNT, NULL},
    {"flex_attn_q_block_size", MEMBER_COUNT, NULL},
    {"flex_attn_kv_block_size", MEMBER_COUNT, NULL},
};

int setup_attention(const serve_args *args, serve_setup *out)
{
    const json_t *object = serve_json(args, "attention-config");
    int code = CHECK("attention-config", object, attention);
    const char *indexer = text_of(object, "indexer_kv_dtype");
    if (code >= 0 || !indexer) return code;
    const char *name = !strcmp(indexer, "bfloat16") ? "bf16" : !strcmp(indexer, "fp8_e4m3") ? "fp8" : indexer;
    if (!members_among(name, "auto|bf16|fp8|nvfp4|fp32")) {
        return cli_usage_error(
            "serve", "--attention-config: indexer_kv_dtype %.40s is not among the formats: auto, bf16, fp8, nvfp4",
            indexer);
    }
    if (serve_given(args, "indexer-kv-dtype") && strcmp(out->model.indexer_kv_dtype, name)) {
        return cli_usage_error("serve", "--indexer-kv-dtype says %s and --attention-config %s: give one",
                               out->model.indexer_kv_dtype, name);
    }
    out->model.indexer_kv_dtype = name;
    return -1;
}

/* ---- Speculation ------------------------------------------------------------------------------------------------ */

/* The shorthands of members, such as --spec-tokens, put into the object where it has none. */
static int add_shorthands(const serve_args *args, json_t *object)
{
    static const char *const shorthands[][2] = {
        {"spec-method", "method"}, {"spec-model", "model"}, {"spec-tokens", "num_speculative_tokens"}};
    for (int i = 0; i < 3; i++) {
        const char *flag = shorthands[i][0], *name = shorthands[i][1];
        const json_t *given = serve_given(args, flag) ? serve_json(args, flag) : NULL,
                     *there = json_object_get(object, name);
        if (!given) continue;
        if (there && !json_is_null(there) && !json_equal(given, there))
            return cli_usage_error("serve", "--%s and --speculative-config say different things: give one", flag);
        json_object_set(object, name, (json_t *)given);
    }
    return -1;
}

int setup_speculation(const serve_args *args, serve_setup *out)
{
    json_t *object = serve_given(args, "speculative-config")
                         ? json_copy((json_t *)serve_json(args, "speculative-config"))
                         : json_object();
    int code = add_shorthands(args, object);
    bool given = json_object_size(object) > 0 || serve_given(args, "speculative-config");
    if (code < 0 && given)
        code = speculation_read("serve", object, serve_integer(args, "tensor-parallel-size"), &out->drafts);
    json_decref(object);
    return code;
}

/* ---- Structured output and reasoning ------------------------------------------------------------------------------
 */

static const member_spec structured[] = {
    {"backend", MEMBER_CHOICE, "auto|xgrammar|guidance|outlines|lm-format-enforcer"},
    {"disable_any_whitespace", MEMBER_BOOL, NULL},
    {"disable_additional_properties", MEMBER_BOOL, NULL},
    {"reasoning_parser", MEMBER_TEXT, NULL},
    {"reasoning_parser_plugin", MEMBER_TEXT, NULL},
    {"enable_in_reasoning", MEMBER_BOOL, NULL},
    {"disable_fallback", MEMBER_BOOL, NULL},
};

static const member_spec reasoning_members[] = {
    {"reasoning_parser", MEMBER_TEXT, NULL},
    {"reasoning_start_str", MEMBER_TEXT, NULL},
    {"reasoning_end_str", MEMBER_TEXT, NULL},
};

int setup_structured(const serve_args *args, serve_setup *out, const char **reasoning)
{
    const json_t *o = serve_json(args, "structured-outputs-config"), *r = serve_json(args, "reasoning-config");
    int code = CHECK("structured-outputs-config", o, structured);
    if (code < 0) code = CHECK("reasoning-config", r, reasoning_members);
    if (code >= 0) return code;
    const char *plugin = text_of(o, "reasoning_parser_plugin");
    if (plugin && *plugin)
        return cli_usage_error("serve",
                               "--structured-outputs-config: reasoning_parser_plugin is not possible: there is "
                               "no Python in it to load from");
    out->server.compact_json = json_is_true(json_object_get(o, "disable_any_whitespace"));
    out->server.closed_objects = json_is_true(json_object_get(o, "disable_additional_properties"));
    out->server.grammar_at_once = json_is_true(json_object_get(o, "enable_in_reasoning"));
    const char *start = text_of(r, "reasoning_start_str"), *end = text_of(r, "reasoning_end_str");
    if ((start && *start && strcmp(start, "<mm:think>")) || (end && *end && strcmp(end, "</mm:think>")))
        return cli_usage_error("serve", "--reasoning-config: the markers of this model are <mm:think> and </mm:think>");
    *reasoning = text_of(o, "reasoning_parser") ? text_of(o, "reasoning_parser") : text_of(r, "reasoning_parser");
    return -1;
}

/* ---- What is left ----------------------------------------------------------------------------------------------- */

static const member_spec events[] = {
    {"enable_kv_cache_events", MEMBER_BOOL, NULL},
    {"publisher", MEMBER_TEXT, NULL},
    {"endpoint", MEMBER_TEXT, NULL},
    {"replay_endpoint", MEMBER_TEXT, NULL},
    {"topic", MEMBER_TEXT, NULL},
    {"buffer_steps", MEMBER_ANY, NULL},
    {"hwm", MEMBER_ANY, NULL},
    {"max_queue_size", MEMBER_ANY, NULL},
};

static const member_spec quantization[] = {
    {"linear", MEMBER_ANY, NULL}, {"moe", MEMBER_ANY, NULL}, {"ignore", MEMBER_ANY, NULL}};

static const member_spec overrides[] = {
    {"temperature", MEMBER_NUMBER, NULL},
    {"top_p", MEMBER_NUMBER, NULL},
    {"top_k", MEMBER_NUMBER, NULL},
    {"min_p", MEMBER_NUMBER, NULL},
    {"repetition_penalty", MEMBER_NUMBER, NULL},
    {"max_new_tokens", MEMBER_COUNT, NULL},
    {"do_sample", MEMBER_BOOL, NULL},
    {"bos_token_id", MEMBER_ANY, NULL},
    {"eos_token_id", MEMBER_ANY, NULL},
    {"pad_token_id", MEMBER_ANY, NULL},
    {"transformers_version", MEMBER_ANY, NULL},
};

int setup_rest(const serve_args *args)
{
    const json_t *e = serve_json(args, "kv-events-config"), *g = serve_json(args, "override-generation-config");
    int code = CHECK("kv-events-config", e, events);
    if (code < 0 && json_is_true(json_object_get(e, "enable_kv_cache_events")))
        code = cli_usage_error("serve", "--kv-events-config: this version publishes no events");
    if (code < 0) code = CHECK("quantization-config", serve_json(args, "quantization-config"), quantization);
    if (code < 0) code = CHECK("override-generation-config", g, overrides);
    if (code < 0 && json_object_get(g, "eos_token_id"))
        code = cli_usage_error(
            "serve", "--override-generation-config: eos_token_id is the model's; requests have stop_token_ids");
    return code;
}

/* ---- Sampling --------------------------------------------------------------------------------------------------- */

typedef struct override {
    const char *name;
    double low, high;
    float *to;
    int32_t *count; /* in place of `to`: a whole number */
} override;

/* One of the overrides, where it is given; an error names it and `flag`, which brought it. */
static hy_status override_apply(const json_t *o, const char *flag, const override *one, hy_error *err)
{
    const json_t *value = json_object_get(o, one->name);
    if (!value || json_is_null(value)) return HY_OK;
    double x = json_is_number(value) ? json_number_value(value) : NAN; /* members of a folder's file are of any type */
    if (!(x >= one->low && x <= one->high) || (one->count && x != floor(x)))
        return error_at(err, HY_USAGE, one->name, "--%s: %s must be a %s from %.9g to %.9g", flag, one->name,
                        one->count ? "whole number" : "number", one->low, one->high);
    if (one->count)
        *one->count = (int32_t)x;
    else
        *one->to = (float)x;
    return HY_OK;
}

static hy_status overrides_apply(const json_t *o, const char *flag, hy_sampling *s, hy_error *err)
{
    const override all[] = {
        {"temperature", 0, 2, &s->temperature, NULL},
        {"top_p", 0x1p-20, 1, &s->top_p, NULL},
        {"min_p", 0, 1, &s->min_p, NULL},
        {"top_k", -1, 1 << 24, NULL, &s->top_k},
        {"repetition_penalty", 0x1p-20, 1000, &s->repetition_penalty, NULL},
    };
    hy_status status = HY_OK;
    for (size_t i = 0; i < sizeof all / sizeof *all && status == HY_OK; i++)
        status = override_apply(o, flag, &all[i], err);
    if (json_is_false(json_object_get(o, "do_sample"))) s->temperature = 0;
    return status;
}

static hy_status folder_generation(const char *folder, json_t **out, hy_error *err)
{
    char path[4096];
    snprintf(path, sizeof path, "%.4000s/generation_config.json", folder);
    json_error_t e;
    *out = json_load_file(path, JSON_REJECT_DUPLICATES, &e);
    if (json_is_object(*out)) return HY_OK;
    json_decref(*out);
    *out = NULL;
    return error_at(err, HY_USAGE, path, "--generation-config: %.200s is no JSON object: %.100s", path, e.text);
}

hy_status setup_sampling(serve_setup *s, const hy_model *model, hy_error *err)
{
    hy_sampling plain = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = -1, .logprobs = -1};
    json_t *file = NULL;
    const json_t *most = json_object_get(s->generation, "max_new_tokens");
    s->sampling = hy_sampling_defaults(model);
    plain.seed = s->sampling.seed, plain.logprobs = s->sampling.logprobs;
    if (s->vllm_sampling || s->generation_folder) s->sampling = plain;
    if (s->generation_folder) {
        hy_status status = folder_generation(s->generation_folder, &file, err);
        if (status != HY_OK) return status;
        status = overrides_apply(file, "generation-config", &s->sampling, err);
        const json_t *limit = json_object_get(file, "max_new_tokens");
        if (status == HY_OK && limit && !json_is_null(limit) &&
            !(json_is_integer(limit) && json_integer_value(limit) > 0))
            status = error_at(err, HY_USAGE, "max_new_tokens",
                              "--generation-config: max_new_tokens must be a whole number from 1");
        if (!most) s->server.max_new_tokens = json_integer_value(limit);
        json_decref(file);
        if (status != HY_OK) return status;
    }
    hy_status status = overrides_apply(s->generation, "override-generation-config", &s->sampling, err);
    if (status != HY_OK) return status;
    if (most) s->server.max_new_tokens = json_integer_value(most);
    s->server.defaults = &s->sampling;
    return HY_OK;
}
