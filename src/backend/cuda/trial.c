/*
 * Projections by warpgroups are tried before any row goes to them.
 *
 * A row may go to project_hopper.cu, to project_wide.cu or to the kernels of every GPU, by how many stand beside it: so
 * all must give the same bits. What an instruction of wgmma adds at once is the hardware's, and what becomes of
 * registers while one is in flight the compiler's: it was wrong once, on a card alone. So a product and a SwiGLU of
 * random values, with rows and outputs that fill no tile, are computed all ways when a backend opens its first step
 * (some milliseconds). Where a bit differs, none go there, and the log says so.
 */
#include "backend/cuda/cuda.h"

#include <string.h>

#include "backend/cuda/kernels/linear.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"

enum { ROWS = 200, OUTPUTS = 416, UNTRIED = 0, EQUAL, DIFFERENT };

static uint32_t next_bits(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* bf16 of either sign between 2^-4 and 2^4. */
static uint16_t some_bf16(uint64_t *state)
{
    uint32_t r = next_bits(state);
    return (uint16_t)((r & 0x8000) | ((123 + (r & 7)) << 7) | (r >> 3 & 0x7F));
}

/* On the GPU; NULL after an error. */
static void *put(ops_step *step, const void *from, size_t bytes, void **owned, int *count, hy_error *err)
{
    gpu *g = step->backend->gpu;
    void *at = NULL;
    if (g->calls->alloc(g, bytes, "a trial of warpgroups", &at, err) != HY_OK) return NULL;
    owned[(*count)++] = at;
    g->calls->write(g, at, from, bytes);
    return at;
}

/* Random weights of a format: moderate values and scales, no NaN. */
static void fill_weight(int32_t format, uint8_t *data, size_t bytes, uint8_t *scales, size_t scale_bytes,
                        uint64_t *state)
{
    for (size_t i = 0; i < bytes; i += 2) {
        uint16_t value = some_bf16(state);
        if (format == KERNEL_MXFP8) /* codes of E4M3 between 2^-3 and 2^5 */
            value = (uint16_t)((value & 0x8080) | ((value & 0x3F3F) + 0x2020));
        memcpy(data + i, &value, sizeof value);
    }
    for (size_t i = 0; i < scale_bytes; i++)
        scales[i] = (uint8_t)(format == KERNEL_MXFP8 ? 120 + next_bits(state) % 8 : 0x30 + next_bits(state) % 16);
}

/* Runs `args` all ways into two places of `bytes`, which held ones; are they equal? */
static hy_status all_ways(ops_step *step, project_args *args, void *out[2], size_t bytes, uint8_t *host[2], bool *equal,
                          hy_error *err)
{
    gpu *g = step->backend->gpu;
    bool glu = args->z != NULL;
    hy_status status = HY_OK;
    for (int way = CUDA_BY_ALL; way <= (step->expanded ? CUDA_BY_WIDE : CUDA_BY_HOPPER) && status == HY_OK; way++) {
        int to = way != CUDA_BY_ALL;
        if (glu)
            args->z = out[to];
        else
            args->part[0].out = out[to];
        cuda_project_by(step, (cuda_project_way)way, args);
        status = g->calls->wait(g, err);
        if (status == HY_OK && step->error.status != HY_OK) *err = step->error, status = step->error.status;
        if (status == HY_OK) g->calls->read(g, out[to], host[to], bytes);
        *equal = *equal && (!to || memcmp(host[0], host[1], bytes) == 0);
        if (to) g->calls->fill(g, out[to], 0xFF, bytes);
    }
    return status;
}

static hy_status try_format(ops_step *step, int32_t format, bool *equal, hy_error *err)
{
    gpu *g = step->backend->gpu;
    int32_t cols = cuda_hopper_cols(format) * (2 * cuda_hopper_cols(format) <= step->packed_cols ? 2 : 1);
    int32_t rows = step->packed_rows < ROWS ? step->packed_rows : ROWS;
    size_t values = (size_t)OUTPUTS * (size_t)cols, bytes = format == KERNEL_BF16    ? 2 * values
                                                            : format == KERNEL_MXFP8 ? values
                                                                                     : values / 2;
    size_t scale_bytes = format == KERNEL_BF16 ? 0 : format == KERNEL_MXFP8 ? values / 32 : values / 16;
    size_t in_bytes = (size_t)rows * (size_t)cols * sizeof(uint16_t),
           out_bytes = (size_t)rows * OUTPUTS * sizeof(float);
    size_t most = bytes > in_bytes ? bytes : in_bytes;
    if (most < out_bytes) most = out_bytes;
    uint8_t *host[] = {memory_alloc(most, 1), memory_alloc(most, 1)};
    void *owned[5] = {NULL}, *out[2] = {NULL, NULL};
    int count = 0;
    uint64_t state = (uint64_t)format + 1;
    hy_status status = host[0] && host[1] ? HY_OK : error_memory(err, "a trial of warpgroups", most);
    if (status == HY_OK) {
        fill_weight(format, host[0], bytes, host[1], scale_bytes, &state);
        kernel_weight w = {.format = format, .rows = OUTPUTS, .cols = cols, .factor = 1};
        w.data = put(step, host[0], bytes, owned, &count, err);
        if (w.data && scale_bytes) w.scales = put(step, host[1], scale_bytes, owned, &count, err);
        for (size_t i = 0; i < in_bytes; i += 2) {
            uint16_t x = some_bf16(&state);
            memcpy(host[0] + i, &x, sizeof x);
        }
        project_args args = {.part = {{.w = w, .stride = OUTPUTS}}, .parts = 1, .count = rows, .law = {1.702f, 7, 0}};
        if (count == 1 + (scale_bytes > 0)) args.in = put(step, host[0], in_bytes, owned, &count, err);
        memset(host[0], 0xFF, out_bytes);
        for (int i = 0; i < 2 && args.in; i++) out[i] = put(step, host[0], out_bytes, owned, &count, err);
        status = out[0] && out[1] ? HY_OK : err->status;
        if (status == HY_OK) status = all_ways(step, &args, out, out_bytes, host, equal, err);
        args.parts = 2;
        args.part[1] = args.part[0];
        args.part[0].w.rows = args.part[1].w.rows = OUTPUTS / 2; /* gate, and up behind it */
        args.part[1].w.data = (const uint8_t *)w.data + bytes / 2;
        if (scale_bytes) args.part[1].w.scales = (const uint8_t *)w.scales + scale_bytes / 2;
        args.part[0].stride = OUTPUTS / 2;
        args.z = out[0];
        if (status == HY_OK)
            status = all_ways(step, &args, out, (size_t)rows * OUTPUTS / 2 * sizeof(uint16_t), host, equal, err);
    }
    for (int i = 0; i < count; i++) g->calls->free(g, owned[i]);
    for (int i = 0; i < 2; i++) memory_free(host[i]);
    return status;
}

/* Does a projection that could go there have this format? */
static bool has_format(const ops_backend *b, int32_t format)
{
    bool found = b->head.format == format;
    for (int l = 0; l < b->model->layers; l++) {
        const cuda_layer *layer = &b->layer[l];
        found |= layer->q.format == format || layer->o.format == format || layer->dense_gate.format == format ||
                 layer->shared_gate.format == format;
    }
    return found;
}

hy_status cuda_trial(ops_step *step, hy_error *err)
{
    ops_backend *b = step->backend;
    hy_status status = HY_OK;
    if (!b->layer) return HY_OK; /* a step that is only counted */
    if (b->wgmma_tried == UNTRIED) {
        bool equal = true;
        step->rows.count = 1; /* that launches are taken */
        for (int32_t format = KERNEL_BF16; format <= KERNEL_NVFP4 && status == HY_OK; format++)
            if (has_format(b, format) && cuda_hopper_cols(format) <= step->packed_cols)
                status = try_format(step, format, &equal, err);
        step->rows.count = 0;
        if (status != HY_OK) return status;
        b->wgmma_tried = equal ? EQUAL : DIFFERENT;
        if (!equal)
            log_line(HY_LOG_WARNING,
                     "projections by warpgroups do not have the bits of the other kernels on this GPU and "
                     "driver (%s): they are not used; please report it",
                     b->info.name);
    }
    if (b->wgmma_tried == DIFFERENT) step->packed = NULL;
    return HY_OK;
}
