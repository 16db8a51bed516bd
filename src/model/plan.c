#include "model/plan.h"

#include <string.h>

#include "base/error.h"

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

typedef enum share {
    SHARE_REPLICATED,
    SHARE_DIVIDED, /* over all ranks */
    SHARE_EXPERT,  /* routed experts: whole ones under dep */
    SHARE_KV,      /* over at most kv_heads ranks, then repeated */
} share;

typedef struct split {
    const plan_input *in;
    bool drafter;
    uint64_t replicated, divided, expert, kv, drafter_bytes, parameters;
    uint64_t routed; /* experts, of the bytes above */
} split;

static share tp_share(const layout_entry *e)
{
    switch (e->role) {
    case ROLE_EMBED:
    case ROLE_HEAD:
    case ROLE_Q:
    case ROLE_O:
    case ROLE_DENSE_GATE:
    case ROLE_DENSE_UP:
    case ROLE_DENSE_DOWN:
    case ROLE_SHARED_GATE:
    case ROLE_SHARED_UP:
    case ROLE_SHARED_DOWN:
    case ROLE_EXPERT_GATE:
    case ROLE_EXPERT_UP:
    case ROLE_EXPERT_DOWN: return SHARE_DIVIDED;
    case ROLE_K:
    case ROLE_V: return SHARE_KV;
    default: return SHARE_REPLICATED;
    }
}

/* The drafter's tensors have no roles: matrices are divided like the target's, vectors and the confidence head not. */
static share tp_draft_share(const layout_entry *e)
{
    if (strstr(e->name, ".k_proj.") || strstr(e->name, ".v_proj.")) return SHARE_KV;
    return e->dims == 2 && e->shape[0] > 1 ? SHARE_DIVIDED : SHARE_REPLICATED;
}

static share share_of(const split *s, const layout_entry *e)
{
    switch (s->in->parallel) {
    case PLAN_SINGLE: return SHARE_REPLICATED;
    case PLAN_TP: return s->drafter ? tp_draft_share(e) : tp_share(e);
    case PLAN_DEP: break;
    }
    bool expert = e->role == ROLE_EXPERT_GATE || e->role == ROLE_EXPERT_UP || e->role == ROLE_EXPERT_DOWN;
    return expert ? SHARE_EXPERT : SHARE_REPLICATED;
}

static bool add(void *user, const layout_entry *e)
{
    split *s = user;
    uint64_t bytes = layout_entry_bytes(e);
    if (e->role == ROLE_EXPERT_GATE || e->role == ROLE_EXPERT_UP || e->role == ROLE_EXPERT_DOWN) s->routed += bytes;
    switch (share_of(s, e)) {
    case SHARE_REPLICATED: s->replicated += bytes; break;
    case SHARE_DIVIDED: s->divided += bytes; break;
    case SHARE_EXPERT: s->expert += bytes; break;
    case SHARE_KV: s->kv += bytes; break;
    }
    if (s->drafter) s->drafter_bytes += bytes;
    return true;
}

static uint64_t ceil_divide(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

static void weights(const plan_input *in, plan_result *out)
{
    const config *c = in->model;
    split s = {.in = in};
    layout_walk(c, in->scheme, add, &s);
    s.drafter = true;
    if (in->drafter) layout_walk_draft(c, in->drafter, add, &s);
    if (in->extra_bytes >= 0)
        s.replicated += (uint64_t)in->extra_bytes;
    else
        s.replicated -= (uint64_t)-in->extra_bytes < s.replicated ? (uint64_t)-in->extra_bytes : s.replicated;

    uint64_t ranks = (uint64_t)in->ranks, kv_ranks = ranks < (uint64_t)c->kv_heads ? ranks : (uint64_t)c->kv_heads;
    uint64_t experts = c->experts > 0 ? (uint64_t)c->experts : 1; /* of a layer; every expert has the same size */
    out->divided_bytes = s.divided + s.expert + s.kv;
    out->replicated_bytes = s.replicated;
    out->drafter_bytes = s.drafter_bytes;
    out->rank_weight_bytes = s.replicated + ceil_divide(s.divided, ranks) + ceil_divide(s.kv, kv_ranks) +
                             s.expert / experts * ceil_divide(experts, ranks);
    out->weight_bytes =
        ranks * s.replicated + s.divided + s.expert + (in->parallel == PLAN_TP ? s.kv * ranks / kv_ranks : s.kv);
    out->parameters = layout_count(c, in->scheme).parameters;
    if (!in->stream) return;
    uint64_t layers = 0;
    for (int i = 0; i < c->layers; i++) layers += c->moe[i] != 0;
    out->experts = layers * experts;
    out->streamed_bytes = s.routed;
    out->expert_bytes = out->experts ? s.routed / out->experts : 0;
    out->token_expert_bytes = layers * (uint64_t)c->experts_per_token * out->expert_bytes;
}

/* ---- Cache ------------------------------------------------------------------------------------------------------- */

static void tokens(const plan_input *in, plan_result *out)
{
    const config *c = in->model;
    const draft_config *d = in->drafter;
    uint64_t sparse = 0, ranks = in->parallel == PLAN_TP ? (uint64_t)in->ranks : 1;
    for (int i = 0; i < c->layers; i++) sparse += c->sparse[i] != 0;
    uint64_t vector = 2 * (uint64_t)c->layers * cache_vector_bytes(in->main, c->head_dim); /* K and V of one head */
    uint64_t index = sparse ? sparse * cache_vector_bytes(in->index, c->index_dim) : 0;
    uint64_t draft = d ? 2 * (uint64_t)d->layers * cache_vector_bytes(in->draft, d->head_dim) : 0;
    uint64_t heads = ceil_divide((uint64_t)c->kv_heads, ranks),
             draft_heads = d ? ceil_divide((uint64_t)d->kv_heads, ranks) : 0;
    out->token_bytes_per_rank = heads * vector + index + draft_heads * draft;
    out->kv_bytes_per_token = ranks * heads * vector;
    out->index_bytes_per_token = ranks * index;
    out->draft_bytes_per_token = ranks * draft_heads * draft;
    uint64_t length = in->max_model_len ? in->max_model_len : (uint64_t)c->max_positions;
    out->tokens = ceil_divide(length, CACHE_BLOCK) * CACHE_BLOCK;
    out->sequence_bytes = out->tokens * out->token_bytes_per_rank;
}

uint64_t plan_workspace(const plan_input *in)
{
    const config *c = in->model;
    uint64_t parts = in->parallel == PLAN_TP ? (uint64_t)in->ranks : 1;
    uint64_t rows = in->step_rows ? in->step_rows : PLAN_STEP_ROWS;
    uint64_t hidden = (uint64_t)c->hidden, slots = (uint64_t)c->experts_per_token;
    uint64_t q = (uint64_t)c->heads * (uint64_t)c->head_dim, kv = (uint64_t)c->kv_heads * (uint64_t)c->head_dim;
    uint64_t iq = (uint64_t)(c->index_heads + 1) * (uint64_t)c->index_dim;
    uint64_t routed = slots * (uint64_t)c->expert_width + (c->shared_expert ? (uint64_t)c->shared_width : 0);
    uint64_t dense = (uint64_t)c->dense_width, width = routed > dense ? routed : dense;
    uint64_t row =
        4 * hidden + 2 * hidden + 2 * (2 * q + 2 * kv) / parts + 2 * iq + 2 * 3 * width / parts + 2 * slots * hidden;
    return rows * row + PLAN_LOGIT_ROWS * (uint64_t)c->vocab * 4 / parts;
}

/* ---- The plan ---------------------------------------------------------------------------------------------------- */

static hy_status check(const plan_input *in, hy_error *err)
{
    const config *c = in->model;
    if (in->ranks < 1 || in->ranks > 4096)
        return error_set(err, HY_USAGE, "a plan is for 1 to 4096 GPUs, not %d", in->ranks);
    if (in->parallel == PLAN_SINGLE && in->ranks != 1)
        return error_set(err, HY_USAGE, "single means one rank, not %d: use tp%d or dep%d", in->ranks, in->ranks,
                         in->ranks);
    if (in->stream && in->parallel != PLAN_SINGLE)
        return error_set(err, HY_USAGE, "streamed weights are planned for one machine, not for %d GPUs", in->ranks);
    if (!(in->utilisation > 0 && in->utilisation <= 1))
        return error_set(err, HY_USAGE, "the utilisation is a fraction over 0 and up to 1, not %g", in->utilisation);
    if (in->parallel == PLAN_DEP && in->ranks > c->experts)
        return error_set(err, HY_USAGE, "dep%d has more ranks than the %d experts of a layer", in->ranks, c->experts);
    int n = in->ranks, kv = c->kv_heads;
    if (in->parallel == PLAN_TP && (c->heads % n || (n <= kv ? kv % n : n % kv)))
        return error_set(err, HY_USAGE,
                         "tp%d does not divide %d query and %d KV heads evenly: choose another number or dep%d", n,
                         c->heads, kv, n);
    if (in->memory > UINT64_C(1) << 50 || in->max_model_len > UINT64_C(1) << 32 || in->step_rows > UINT64_C(1) << 24)
        return error_set(err, HY_USAGE, "memory, length or rows of a step are beyond anything that exists");
    if (in->stream && in->max_model_len > (uint64_t)c->max_positions)
        return error_set(err, HY_USAGE, "--max-model-len %llu is more than the %d positions of this model",
                         (unsigned long long)in->max_model_len, c->max_positions);
    if (in->workspace > UINT64_C(1) << 50) return error_set(err, HY_USAGE, "the workspace is larger than any memory");
    if (in->drafter && in->draft == CACHE_NVFP4)
        return error_set(err, HY_USAGE, "the drafter's cache cannot be nvfp4: choose fp8 or bf16");
    if (in->main == CACHE_NVFP4 && c->head_dim % 16)
        return error_set(err, HY_USAGE, "an nvfp4 cache needs heads of a multiple of 16, not %d: choose fp8 or bf16",
                         c->head_dim);
    return HY_OK;
}

hy_status plan_compute(const plan_input *in, plan_result *out, hy_error *err)
{
    hy_status s = check(in, err);
    if (s != HY_OK) return s;
    *out = (plan_result){0};
    weights(in, out);
    tokens(in, out);
    uint64_t groups = in->parallel == PLAN_DEP ? (uint64_t)in->ranks : 1;
    out->usable_bytes = (uint64_t)((double)in->memory * in->utilisation + 0.5);
    out->workspace_bytes = in->workspace ? in->workspace : plan_workspace(in);
    if (in->stream) return plan_stream(in, out, err);
    uint64_t fixed = out->rank_weight_bytes + out->workspace_bytes;
    if (out->usable_bytes > fixed) out->rank_cache_bytes = out->usable_bytes - fixed;
    out->cache_bytes = out->rank_cache_bytes * (uint64_t)in->ranks;
    out->sequences_per_group = out->rank_cache_bytes / out->sequence_bytes;
    out->sequences = out->sequences_per_group * groups;
    out->longest = out->rank_cache_bytes / (CACHE_BLOCK * out->token_bytes_per_rank) * CACHE_BLOCK;
    if (!out->sequences) out->missing_bytes = fixed + out->sequence_bytes - out->usable_bytes;
    return HY_OK;
}

uint64_t plan_needed(const plan_input *in, const plan_result *r, uint64_t sequences)
{
    uint64_t groups = in->parallel == PLAN_DEP ? (uint64_t)in->ranks : 1;
    return r->rank_weight_bytes + r->workspace_bytes + ceil_divide(sequences, groups) * r->sequence_bytes;
}

cache_format plan_auto_format(layout_scheme scheme)
{
    switch (scheme) {
    case SCHEME_M31: return CACHE_NVFP4;
    case SCHEME_MXFP8:
    case SCHEME_MODELOPT: return CACHE_FP8;
    case SCHEME_BF16: break;
    }
    return CACHE_BF16;
}

const plan_announced *plan_find_announced(const char *name, const plan_input *in)
{
    static const plan_announced all[] = {
        {"m3.1-flash", CACHE_NVFP4, PLAN_DEP, 4, UINT64_C(288000000000), 262144, 76},
        {"m3-mxfp8", CACHE_FP8, PLAN_DEP, 4, UINT64_C(288000000000), 262144, 28},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const plan_announced *a = &all[i];
        if (!strcmp(a->name, name) && a->main == in->main && a->parallel == in->parallel && a->ranks == in->ranks &&
            a->memory == in->memory && a->tokens == in->max_model_len)
            return a;
    }
    return NULL;
}
