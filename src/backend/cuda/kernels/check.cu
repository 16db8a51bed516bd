/*
 * check: whether a weight holds a NaN or an infinity, an E4M3 code that is NaN, or a scale that is NaN, negative (NVFP4; -0
 * counts as 0) or above 2^119 (MXFP8): what the other backends refuse when they pack.
 *
 * Layout: 16 bytes a thread and turn, data and then scales, in any order. Every byte is read once; bound: memory, 0.2 ms a
 * gigabyte, where it takes tens of them to come through the link.
 */
#include "backend/cuda/kernels/args.h"
#include "backend/cuda/kernels/check.h"
#include "backend/cuda/kernels/kernel.cuh"

DEVICE bool bad_word(uint32_t w, int32_t format)
{
    if (format == KERNEL_F32) return (w & 0x7F800000u) == 0x7F800000u;
    if (format == KERNEL_BF16) return (w & 0x7F80u) == 0x7F80u || (w & 0x7F800000u) == 0x7F800000u;
    bool bad = false;
    UNROLL for (int i = 0; i < 32; i += 8) bad |= format == KERNEL_MXFP8 && (w >> i & 0x7Fu) == 0x7Fu;
    return bad;
}

DEVICE bool bad_scales(uint32_t w, int32_t format)
{
    bool bad = false;
    UNROLL for (int i = 0; i < 32; i += 8)
    {
        uint32_t s = w >> i & 0xFFu;
        bad |= format == KERNEL_MXFP8 ? s > 246 : s >= 0x7F && s != 0x80;
    }
    return bad;
}

KERNEL(check, check_args)
{
    int64_t stride = (int64_t)gridDim.x * blockDim.x, all = a.data_pieces + a.scale_pieces;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += stride) {
        bool scales = i >= a.data_pieces, bad = false;
        const quad *from = scales ? (const quad *)a.scales + (i - a.data_pieces) : (const quad *)a.data + i;
        quad q = load_once(from);
        UNROLL for (int j = 0; j < 4; j++) bad |= scales ? bad_scales(q.w[j], a.format) : bad_word(q.w[j], a.format);
        if (bad) count_up(a.found, 1);
    }
}
