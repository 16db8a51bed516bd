/* Cache formats, read-back and activations: options resolved against what the checkpoint holds. */
#include "base/error.h"
#include "base/log.h"
#include "model/model_parts.h"

#include <string.h>

/* NULL and "" are the default too. */
static bool is_auto(const char *option)
{
    return !option || !*option || strcmp(option, "auto") == 0;
}

/* What tells the released checkpoints apart: the routed experts, or in a model without any the query projection. */
static const weight *telling_weight(const ops_model *m)
{
    for (int i = 0; i < m->layers; i++)
        if (m->layer[i].moe) return &m->layer[i].expert_gate[0];
    return &m->layer[0].q;
}

static bool pack_quantised(const ops_model *m)
{
    const weight *w = telling_weight(m);
    return w->format == WEIGHT_NVFP4 && w->divides;
}

static hy_status resolve_cache(const char *flag, const char *option, cache_format otherwise, bool reference,
                               cache_format *out, hy_error *err)
{
    if (is_auto(option)) {
        *out = otherwise;
        return HY_OK;
    }
    if (!cache_format_parse(option, out))
        return error_at(err, HY_USAGE, flag, "%s cannot be '%.40s': choose auto, bf16, fp8, nvfp4%s", flag, option,
                        reference ? " or fp32" : "");
    if (*out == CACHE_FP32 && !reference) {
        log_line(HY_LOG_WARNING, "%s fp32 is for the reference backend; this one keeps bf16", flag);
        *out = CACHE_BF16;
    }
    return HY_OK;
}

/* The drafter's keys are normed and its values small: E4M3 holds them, four bits would not. */
static hy_status resolve_draft(const char *option, cache_format main, bool reference, cache_format *out, hy_error *err)
{
    static const char flag[] = "--draft-kv-dtype";
    cache_format otherwise = main == CACHE_NVFP4 ? CACHE_FP8 : main;
    hy_status status = resolve_cache(flag, option, otherwise, reference, out, err);
    if (status == HY_OK && *out == CACHE_NVFP4)
        status = error_at(err, HY_USAGE, flag, "%s cannot be nvfp4: choose auto, fp8 or bf16", flag);
    return status;
}

static hy_status resolve_activation(const char *option, bool packed, moe_activation *out, hy_error *err)
{
    if (is_auto(option))
        *out = packed ? MOE_ACTIVATION_NVFP4 : MOE_ACTIVATION_NONE;
    else if (strcmp(option, "nvfp4") == 0)
        *out = MOE_ACTIVATION_NVFP4;
    else if (strcmp(option, "none") == 0)
        *out = MOE_ACTIVATION_NONE;
    else
        return error_at(err, HY_USAGE, "--moe-activation",
                        "--moe-activation cannot be '%.40s': choose auto, nvfp4 or none", option);
    return HY_OK;
}

hy_status model_formats_resolve(const ops_model *shape, const hy_model_options *options, bool reference,
                                model_formats *out, hy_error *err)
{
    model_formats f = {.read = READBACK_EXACT};
    bool packed = pack_quantised(shape);
    cache_format main = packed ? CACHE_NVFP4 : telling_weight(shape)->format == WEIGHT_MXFP8 ? CACHE_FP8 : CACHE_BF16;
    hy_status status = resolve_cache("--kv-cache-dtype", options->kv_cache_dtype, main, reference, &f.main, err);
    if (status == HY_OK)
        status = resolve_cache("--indexer-kv-dtype", options->indexer_kv_dtype, f.main, reference, &f.index, err);
    if (status == HY_OK) status = resolve_draft(options->draft_cache_dtype, f.main, reference, &f.draft, err);
    if (status == HY_OK) status = resolve_activation(options->moe_activation, packed, &f.activation, err);
    if (status != HY_OK) return status;
    const char *read = options->readback;
    if (read && strcmp(read, "e4m3") == 0)
        f.read = READBACK_E4M3;
    else if (!is_auto(read) && strcmp(read, "exact") != 0)
        return error_at(err, HY_USAGE, "--readback", "--readback cannot be '%.40s': choose exact or e4m3", read);
    *out = f;
    return HY_OK;
}
