/*
 * What host and kernels agree on: structs of plain numbers and device addresses, in C and in CUDA. A kernel's own
 * parameter is declared in the header of its subject beside this one.
 */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_ARGS_H
#define HAYATE_BACKEND_CUDA_KERNELS_ARGS_H

#include <stdint.h>

enum {
    CUDA_WARP = 32,
    CUDA_BLOCK_TOKENS = 128, /* CACHE_BLOCK */
};

/* As weight_format, cache_format, readback have them; the host checks that the numbers agree. */
enum { KERNEL_F32, KERNEL_BF16, KERNEL_MXFP8, KERNEL_NVFP4 };
enum { KERNEL_CACHE_BF16, KERNEL_CACHE_FP8, KERNEL_CACHE_NVFP4 };

/* A weight [rows, cols] in the device's memory, laid out as weights.c packs it:
 *     f32, bf16   [rows][cols]
 *     mxfp8       E4M3 [rows][cols], UE8M0 [rows][cols / 32]
 *     nvfp4       E2M1 pairs [rows][cols / 2], low half first; E4M3 [rows][cols / 16]; the finished sum times factor
 * Rows are padded with zeros to a multiple of 16, cols are as they are (a multiple of 32; 16 for nvfp4). data and scales
 * are aligned to 256 bytes. */
typedef struct kernel_weight {
    const void *data, *scales;
    int32_t format;
    int32_t rows, cols;
    float factor;
} kernel_weight;

/* The rows of a step; see ops_rows. */
typedef struct kernel_rows {
    int32_t count;
    const int32_t *sequence, *position, *token;
    const int64_t *slot;
    const uint8_t *flags;
    const int32_t *block_table;
    int32_t block_table_stride;
    const int32_t *replay_blocks, *replay_routes; /* of all layers, or NULL */
} kernel_rows;

/* The cache; block b, part at `offset`: base + b * row_bytes + offset. Offsets are those of cache_layout. */
typedef struct kernel_cache {
    uint8_t *base;
    int64_t row_bytes;
    int32_t main, index, draft; /* KERNEL_CACHE_ */
    int64_t head_bytes, k_scales, v_data, v_scales, index_scales, draft_head_bytes, draft_v_data;
} kernel_cache;

#endif
