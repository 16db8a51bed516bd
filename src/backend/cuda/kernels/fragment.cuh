/*
 * Fragments of weights in the file's layout, and of activations, for projections on the tensor cores.
 *
 * Nothing is transposed or swizzled: a thread takes 16 bytes of codes as they lie, and K is given to the MMAs in another
 * order. A chunk is what the four threads of a row load at once, 64 bytes; thread t has the chunk's elements
 * [t * VALUES, (t + 1) * VALUES), and MMA s of the chunk takes elements 4s .. 4s + 3 of each thread: as its k = 2t, 2t + 1,
 * 2t + 8, 2t + 9. Activations are read by the same rule, so that both sides agree and the products are those of the plain
 * order; only the order in which the tensor core adds 16 of them is another one, which is a function of the format alone.
 *
 *     format    VALUES of a thread    chunk    MMAs
 *     bf16               8              32       2
 *     mxfp8             16              64       4
 *     nvfp4             32             128       8
 *
 * A chunk may reach beyond its slice of K: what lies there counts as zero on both sides.
 */
#ifndef HAYATE_BACKEND_CUDA_FRAGMENT_CUH
#define HAYATE_BACKEND_CUDA_FRAGMENT_CUH

#include "backend/cuda/kernels/linear.h"
#include "backend/cuda/kernels/number.cuh"

template <int FORMAT> struct fragment;

template <> struct fragment<KERNEL_BF16> {
    enum { VALUES = 8, STEPS = 2, CHUNK = 32 };
};
template <> struct fragment<KERNEL_MXFP8> {
    enum { VALUES = 16, STEPS = 4, CHUNK = 64 };
};
template <> struct fragment<KERNEL_NVFP4> {
    enum { VALUES = 32, STEPS = 8, CHUNK = 128 };
};

/* The part of a block; the blocks before it are taken from *block. */
DEVICE const project_part *part_of(const project_args &a, int32_t *block)
{
    int i = 0;
    while (i + 1 < a.parts && *block >= a.part[i + 1].first) i++;
    *block -= a.part[i].first;
    return &a.part[i];
}

/* Slice i of K, [begin, end): docs/numerics.md. */
DEVICE void slice_of(int32_t cols, int i, int32_t *begin, int32_t *end)
{
    int32_t groups = (cols + 31) / 32;
    *begin = (int32_t)((int64_t)i * groups / PROJECT_SLICES * 32);
    *end = (int32_t)((int64_t)(i + 1) * groups / PROJECT_SLICES * 32);
    if (*end > cols) *end = cols;
}

/* Codes of one row that a thread has of a chunk, and their scales: a byte of mxfp8, two of nvfp4. */
struct codes {
    quad data;
    uint32_t scales;
};

/* From element k of row `row`, `left` elements of which are in the slice. ODD: of nvfp4, rows are not aligned to 16 bytes,
 * and a thread may have half of its elements. */
template <int FORMAT, bool ODD> DEVICE codes load_codes(const kernel_weight *w, int64_t row, int32_t k, int32_t left)
{
    codes c = {{{0, 0, 0, 0}}, 0};
    if (left <= 0) return c;
    int64_t at = row * w->cols + k;
    const uint8_t *data = (const uint8_t *)w->data, *scales = (const uint8_t *)w->scales;
    if (FORMAT == KERNEL_BF16) {
        c.data = load_once(data + at * 2);
    } else if (FORMAT == KERNEL_MXFP8) {
        c.data = load_once(data + at);
        c.scales = scales[at / 32];
    } else if (ODD) {
        int groups = left < 32 ? 1 : 2;
        for (int i = 0; i < 8 * groups; i++) c.data.w[i / 4] |= (uint32_t)data[at / 2 + i] << i % 4 * 8;
        for (int i = 0; i < groups; i++) c.scales |= (uint32_t)scales[at / 16 + i] << i * 8;
    } else {
        c.data = load_once(data + at / 2);
        c.scales = *(const uint16_t *)(scales + at / 16);
    }
    return c;
}

/* The pairs of MMA step s of a row: elements 4s, 4s + 1 and 4s + 2, 4s + 3 of the thread. */
template <int FORMAT> struct decoded {
    uint32_t pair[fragment<FORMAT>::STEPS * 2];
};

template <int FORMAT> DEVICE void decode(const codes &c, decoded<FORMAT> *out)
{
    if (FORMAT == KERNEL_BF16) {
        UNROLL for (int i = 0; i < 4; i++) out->pair[i] = c.data.w[i];
    } else if (FORMAT == KERNEL_MXFP8) {
        uint32_t unit = mxfp8_unit(c.scales);
        UNROLL for (int i = 0; i < 4; i++)
        {
            uint32_t p[2];
            e4m3_pairs(c.data.w[i], p);
            out->pair[2 * i] = multiply_pairs(p[0], unit);
            out->pair[2 * i + 1] = multiply_pairs(p[1], unit);
        }
        if (c.scales > MXFP8_UNIT_MOST) {
            uint32_t rest = mxfp8_unit_rest(c.scales);
            UNROLL for (int i = 0; i < 8; i++) out->pair[i] = multiply_pairs(out->pair[i], rest);
        }
    } else {
        UNROLL for (int i = 0; i < 4; i++)
            nvfp4_pairs(c.data.w[i], nvfp4_unit(c.scales >> i / 2 * 8 & 0xFF), out->pair + 4 * i);
    }
}

/* Activations that a thread has of a chunk: VALUES of one row. */
template <int FORMAT> struct activations {
    uint32_t pair[fragment<FORMAT>::STEPS * 2];
};

/* x: from element k of a row; aligned to 16 bytes. */
template <int FORMAT, bool ODD> DEVICE void load_activations(const uint16_t *x, int32_t left, activations<FORMAT> *out)
{
    enum { PAIRS = fragment<FORMAT>::STEPS * 2 };
    UNROLL for (int i = 0; i < PAIRS / 4; i++)
    {
        quad q = {{0, 0, 0, 0}};
        if (ODD ? 8 * i < left : left > 0) q = *(const quad *)(x + 8 * i);
        UNROLL for (int j = 0; j < 4; j++) out->pair[4 * i + j] = q.w[j];
    }
}

#endif
