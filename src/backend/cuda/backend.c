/* The backend's table, opening and closing, and what it refuses by name. */
#include "backend/cuda/cuda.h"

#include <math.h>
#include <stdio.h>

#include "backend/cuda/kernels/prefill.h"
#include "base/error.h"
#include "base/memory.h"
#include "checkpoint/tensor.h"

_Static_assert((int)CUDA_BLOCK_TOKENS == (int)CACHE_BLOCK, "kernels and host have blocks of one size");

hy_status (*cuda_open_gpu)(gpu **g, hy_error *err) = gpu_driver_open;

static hy_status check(const ops_model *m, const ops_options *o, hy_error *err)
{
    hy_status status = host_check_model("cuda", m, o, err);
    if (status != HY_OK) return status;
    if (o->weights == OPS_WEIGHTS_STREAM)
        return error_set(err, HY_UNSUPPORTED,
                         "the cuda backend keeps all experts in the GPU's memory: their weights cannot be streamed");
    if (o->query_e4m3)
        return error_set(err, HY_UNSUPPORTED, "the cuda backend does not round queries to e4m3: choose bf16 queries");
    return cuda_attend_check(m, err);
}

static void cuda_close(ops_backend *b)
{
    if (!b) return;
    cuda_weights_close(b);
    if (b->gpu) b->gpu->calls->close(b->gpu);
    memory_free(b);
}

void cuda_wgmma_settle(ops_backend *b)
{
    enum { FASTER = 128 }; /* rows: docs/gpu.md, "Projections by warpgroups" */
    int32_t *rows = &b->options.gpu_wgmma_rows;
    if (*rows == 0) *rows = FASTER;
    if (*rows < 0 || b->info.major != 9) *rows = 0;
}

static hy_status cuda_open(const ops_model *model, const ops_options *options, ops_backend **out, hy_error *err)
{
    hy_status status = check(model, options, err);
    if (status != HY_OK) return status;
    ops_backend *b = memory_zeroed(1, sizeof *b);
    if (!b) return error_memory(err, "the cuda backend", sizeof *b);
    b->model = model;
    b->options = *options;
    status = cuda_open_gpu(&b->gpu, err);
    if (status == HY_OK) {
        b->gpu->calls->info(b->gpu, &b->info);
        cuda_wgmma_settle(b);
        b->prefill_pairs_units = 2 * PREFILL_PAIRS_BLOCKS * (int64_t)b->info.processors; /* two rounds */
        status = cuda_weights_open(b, err);
    }
    if (status == HY_OK) status = b->gpu->calls->wait(b->gpu, err);
    if (status != HY_OK) {
        cuda_close(b);
        return status;
    }
    *out = b;
    return HY_OK;
}

static uint64_t memory_free_bytes(const ops_backend *b)
{
    gpu_info now;
    b->gpu->calls->info(b->gpu, &now);
    return now.free;
}

static void loaded(const ops_backend *b, ops_loaded *out)
{
    *out = b->loaded;
}

static const char *variant(const ops_backend *b, char out[OPS_VARIANT])
{
    snprintf(out, OPS_VARIANT, "%.40s, sm_%d%d", b->info.name, b->info.major, b->info.minor);
    return out;
}

const hy_ops ops_cuda = {
    .name = "cuda",
    .makes_weights = true,
    .checks_scales = true,
    .open = cuda_open,
    .close = cuda_close,
    .measure = cuda_measure,
    .loaded = loaded,
    .memory_free = memory_free_bytes,
    .variant = variant,
    .cache_open = cuda_cache_open,
    .cache_close = cuda_cache_close,
    .cache_read = cuda_cache_read,
    .cache_write = cuda_cache_write,
    .cache_copy = cuda_cache_copy,
    .step_open = cuda_step_open,
    .step_close = cuda_step_close,
    .begin = cuda_begin,
    .finish = cuda_finish,
    .embed = cuda_embed,
    .attend_in = cuda_attend_in,
    .index_select = cuda_index_select,
    .index_score = cuda_index_score,
    .index_top = cuda_index_top,
    .index_merge = cuda_index_merge,
    .attend = cuda_attend,
    .attend_out = cuda_attend_out,
    .route = cuda_route,
    .experts = cuda_experts,
    .feed_dense = cuda_feed_dense,
    .head = cuda_logits,
    .sample = cuda_sample,
    .verify = cuda_verify,
    .draft_tap = cuda_draft_tap,
    .draft_context = cuda_draft_context,
    .draft = cuda_draft,
    .tensor_read = cuda_tensor_read,
    .tensor_write = cuda_tensor_write,
};
