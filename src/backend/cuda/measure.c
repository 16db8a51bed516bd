/* What weights and a step take, before there is a GPU: a step is opened on one that only counts. */
#include "backend/cuda/cuda.h"

#include "base/memory.h"

typedef struct counting_gpu {
    gpu base;
    uint64_t bytes;
} counting_gpu;

enum { ALIGNMENT = 256 };

static void count_info(gpu *g, gpu_info *out)
{
    (void)g;
    *out = (gpu_info){.name = "none", .major = 9, .processors = 160, .shared = 227 << 10};
}

/* The address is none that anybody reads through: it tells where its owner puts arrays of his own. */
static hy_status count_alloc(gpu *g, size_t bytes, const char *what, void **device, hy_error *err)
{
    counting_gpu *c = (counting_gpu *)(void *)g;
    (void)what, (void)err;
    c->bytes = bytes_sum(c->bytes, (bytes / ALIGNMENT + 1) * (uint64_t)ALIGNMENT);
    *device = (void *)(uintptr_t)ALIGNMENT;
    return HY_OK;
}

static void count_free(gpu *g, void *device)
{
    (void)g, (void)device;
}

static void count_write(gpu *g, void *device, const void *host, size_t bytes)
{
    (void)g, (void)device, (void)host, (void)bytes;
}

static void count_fill(gpu *g, void *device, int byte, size_t bytes)
{
    (void)g, (void)device, (void)byte, (void)bytes;
}

static const gpu_calls calls = {
    .info = count_info, .alloc = count_alloc, .free = count_free, .write = count_write, .fill = count_fill};

void cuda_measure(const ops_model *model, const ops_options *options, const ops_limits *limits, ops_memory *out)
{
    counting_gpu counting = {.base.calls = &calls};
    ops_backend backend = {.model = model, .options = *options, .gpu = &counting.base};
    ops_step *step = NULL;
    count_info(&counting.base, &backend.info);
    cuda_wgmma_settle(&backend);
    *out = (ops_memory){.weights = cuda_weights_bytes(model), .step = UINT64_MAX};
    if (cuda_step_open(&backend, limits, &step, NULL) != HY_OK) return;
    out->step = counting.bytes;
    cuda_step_close(step);
}
