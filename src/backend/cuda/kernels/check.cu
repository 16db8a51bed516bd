/*
 * check: whether weights hold what the CPU refuses when it packs them: a value that is NaN or infinite (fp32, bf16), a code that
 * is NaN or a scale above 2^119 (MXFP8), a scale that is NaN and, where the weight is a file's, one that is negative (NVFP4; -0
 * is 0). All codes of NVFP4 are numbers, and are not read.
 *
 * Layout: 16 bytes a thread and turn, data and then scales, in any order. Every byte is read once: 0.25 ms a gigabyte at the
 * memory's speed, where the link takes 18.
 */
#include "backend/cuda/kernels/args.h"
#include "backend/cuda/kernels/check.h"
#include "backend/cuda/kernels/kernel.cuh"

/* An exponent of ones and one more carry into the sign, which is masked: two halves at once. */
DEVICE uint32_t check_data(uint32_t w, int32_t format)
{
    if (format == KERNEL_F32) return ((w & 0x7F800000u) + 0x00800000u) & 0x80000000u;
    if (format == KERNEL_BF16) return ((w & 0x7F807F80u) + 0x00800080u) & 0x80008000u;
    return ((w & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u; /* E4M3: a magnitude of ones */
}

DEVICE uint32_t check_scales(uint32_t w, int32_t format, int32_t strict)
{
    uint32_t bad = 0;
    UNROLL
    for (int i = 0; i < 32; i += 8) {
        uint32_t s = w >> i & 0xFFu;
        if (format == KERNEL_MXFP8) bad |= s > 246;
        if (format == KERNEL_NVFP4) bad |= (s & 0x7Fu) == 0x7Fu || (strict && s > 0x80u);
    }
    return bad;
}

KERNEL(check, check_args)
{
    int64_t pieces = a.format == KERNEL_NVFP4 ? 0 : a.bytes / 16, all = pieces + a.scale_bytes / 16;
    const uint8_t *data = a.data + blockIdx.y * a.bytes, *scales = a.scales + blockIdx.y * a.scale_bytes;
    uint32_t bad = 0;
    for (int64_t i = (int64_t)blockIdx.x * CHECK_THREADS + threadIdx.x; i < all; i += (int64_t)gridDim.x * CHECK_THREADS) {
        quad q = load_once(i < pieces ? data + i * 16 : scales + (i - pieces) * 16);
        UNROLL
        for (int j = 0; j < 4; j++)
            bad |= i < pieces ? check_data(q.w[j], a.format) : check_scales(q.w[j], a.format, a.strict);
    }
    if (bad && *a.found == 0) *a.found = a.number + blockIdx.y;
}
