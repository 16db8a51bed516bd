/*
 * A plan of streamed experts: what memory.c and the engine compute when they open, of weights that are shapes alone.
 *
 *     fixed = program + margin + weights that stay + workspace + buffers of readers + the smallest cache of experts
 *
 * What is left goes to the KV cache, by the engine's own rule where no length is asked for, and the rest to experts.
 */
#include "cache/plan.h"
#include "model/model_parts.h"
#include "model/plan.h"

static ops_limits limits_of(const plan_input *in)
{
    uint64_t length = in->max_model_len ? in->max_model_len : (uint64_t)in->model->max_positions;
    int rows = (int)(in->step_rows ? in->step_rows : MODEL_DEFAULT_ROWS), sequences = in->sequences ? in->sequences : 1;
    int drafts = in->drafter ? in->drafter->block : 0; /* a sequence verifies as many rows more */
    int64_t logit_rows = (int64_t)sequences * (1 + drafts);
    return (ops_limits){.rows = rows,
                        .logit_rows = logit_rows < rows ? (int32_t)logit_rows : rows,
                        .positions = (int32_t)length,
                        .drafts = drafts ? sequences : 0,
                        .draft_rows = drafts};
}

static hy_status measure(const plan_input *in, ops_memory *need, hy_error *err)
{
    model_weights w;
    model_formats formats;
    const hy_model_options automatic = {0};
    threads *pool = NULL;
    hy_status status = model_weights_shape(in->model, in->scheme, &w, err);
    if (status != HY_OK) return status;
    if (in->drafter) status = model_drafter_shape(in->model, in->drafter, in->draft, &w, err);
    if (status == HY_OK) status = model_formats_resolve(&w.shape, &automatic, false, &formats, err);
    if (status == HY_OK) status = threads_open(0, &pool, err);
    if (status == HY_OK) {
        ops_options options = {.weights = OPS_WEIGHTS_STREAM, .activation = formats.activation, .pool = pool};
        ops_limits limits = limits_of(in);
        ops_cpu.measure(&w.shape, &options, &limits, need);
    }
    threads_close(pool);
    model_weights_close(&w);
    return status;
}

hy_status plan_stream(const plan_input *in, plan_result *out, hy_error *err)
{
    ops_memory need;
    hy_status status = measure(in, &need, err);
    if (status != HY_OK) return status;
    out->rank_weight_bytes = need.weights;
    if (!in->workspace) out->workspace_bytes = need.step;
    out->program_bytes = in->program + MODEL_MEMORY_MARGIN;
    out->reader_bytes = need.readers;
    out->token_expert_bytes = out->token_expert_bytes / (out->expert_bytes ? out->expert_bytes : 1) * need.expert;
    out->expert_bytes = need.expert;
    uint64_t fixed =
        out->program_bytes + out->rank_weight_bytes + out->workspace_bytes + out->reader_bytes + need.expert_least;
    uint64_t room = out->usable_bytes > fixed ? out->usable_bytes - fixed : 0;
    uint64_t row = CACHE_BLOCK * out->token_bytes_per_rank;
    out->longest = room > row ? (room - 1) / row * CACHE_BLOCK : 0;
    if (!in->max_model_len) {
        cache_plan plan;
        status = cache_plan_make(row, in->model->max_positions, 0, model_memory_for_cache(room, row), &plan, err);
        if (status != HY_OK) return status;
        if (plan.bytes >= room) plan.blocks = 1; /* the engine opens with no more than that */
        out->tokens = (uint64_t)plan.blocks * CACHE_BLOCK;
        out->sequence_bytes = (uint64_t)plan.blocks * row;
    }
    if (room <= out->sequence_bytes) {
        out->missing_bytes = fixed + out->sequence_bytes + 1 - out->usable_bytes;
        return HY_OK;
    }
    out->sequences = out->sequences_per_group = 1;
    out->rank_cache_bytes = out->cache_bytes = out->sequence_bytes;
    out->expert_slots = need.expert ? (room - out->sequence_bytes + need.expert_least) / need.expert : 0;
    if (out->expert_slots > out->experts) out->expert_slots = out->experts;
    return HY_OK;
}
