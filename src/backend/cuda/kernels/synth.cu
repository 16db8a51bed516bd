/*
 * Random weights in the GPU's memory: the bytes of checkpoint/synth_made.h, which says what they are, so that a file of
 * them, the CPU's and these are the same.
 *
 * A thread makes 16 bytes of four draws (fp32: of two), then those a grid further on. A draw is SplitMix64's finaliser of
 * its place, about 25 integer operations; the looking up is in shared memory, whose tables a block copies once.
 *
 * Bytes written: those of the tensor; read: none but the tables. Bound: looking up. A draw of E2M1, which is 4 bytes, looks
 * eight bytes up, and 32 random bytes out of 64 words meet in one bank about 3.5 times: 28 cycles of a multiprocessor for 32
 * draws, 4.6 bytes a cycle, with 132 of them at 1.7 GHz 1.0 TB/s. E4M3 and bf16 (four and four of two words) do as well or
 * better. So 100 GB are a matter of 0.1 s, and what counts is the host's part: some microseconds a tensor.
 */
#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/number.cuh"
#include "backend/cuda/kernels/synth.h"

/* The 64 bits at a place of a stream. */
DEVICE uint64_t synth_draw(uint64_t key, uint64_t place)
{
    uint64_t x = key + (place + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

DEVICE float synth_normal(const synth_args &a, const float *normal, uint32_t bits)
{
    return a.mean + a.deviation * (normal[bits & 4095] + normal[bits >> 12 & 4095]);
}

/* Four bytes of a quantised tensor, or two bf16 values. */
DEVICE uint32_t synth_word(const synth_args &a, const float *normal, const uint8_t *codes, uint64_t bits)
{
    if (a.kind == SYNTH_OF_BF16)
        return bf16_pair(synth_normal(a, normal, (uint32_t)bits), synth_normal(a, normal, (uint32_t)(bits >> 32)));
    uint32_t word = 0;
    UNROLL
    for (int j = 0; j < 4; j++) {
        uint32_t b = (uint32_t)(bits >> (16 * j)) & 0xFFFF, byte;
        if (a.kind == SYNTH_OF_E4M3)
            byte = codes[b & 4095];
        else if (a.kind == SYNTH_OF_E2M1)
            byte = codes[b & 255] | (uint32_t)codes[b >> 8] << 4;
        else if (a.kind == SYNTH_OF_E8M0)
            byte = a.scale_low + (b < a.scale_up);
        else
            byte = 0x70 + (b & 7);
        word |= byte << (8 * j);
    }
    return word;
}

KERNEL(synth, synth_args)
{
    SHARED(float, normal, SYNTH_NORMALS);
    SHARED(uint8_t, codes, SYNTH_NORMALS);
    bool plain = a.kind == SYNTH_OF_F32 || a.kind == SYNTH_OF_BF16;
    for (int i = threadIdx.x; plain && i < SYNTH_NORMALS; i += SYNTH_THREADS) normal[i] = a.tables->normal[i];
    for (int i = threadIdx.x; a.kind == SYNTH_OF_E4M3 && i < SYNTH_NORMALS; i += SYNTH_THREADS) codes[i] = a.tables->e4m3[i];
    for (int i = threadIdx.x; a.kind == SYNTH_OF_E2M1 && i < SYNTH_PAIRS; i += SYNTH_THREADS) codes[i] = a.tables->e2m1[i];
    BLOCK_SYNC();
    uint64_t pieces = (a.bytes + SYNTH_PIECE - 1) / SYNTH_PIECE, step = (uint64_t)gridDim.x * SYNTH_THREADS;
    for (uint64_t i = (uint64_t)blockIdx.x * SYNTH_THREADS + threadIdx.x; i < pieces; i += step) {
        quad q;
        UNROLL
        for (int w = 0; w < 4; w++) {
            if (a.kind == SYNTH_OF_F32) {
                uint64_t bits = synth_draw(a.key, 2 * i + w / 2);
                q.w[w] = float_bits(synth_normal(a, normal, (uint32_t)(w % 2 ? bits >> 32 : bits)));
            } else {
                q.w[w] = synth_word(a, normal, codes, synth_draw(a.key, 4 * i + w));
            }
        }
        uint64_t at = i * SYNTH_PIECE;
        if (a.bytes - at >= SYNTH_PIECE) {
            *(quad *)(a.out + at) = q;
        } else {
            UNROLL
            for (int n = 0; n < SYNTH_PIECE; n++)
                if (at + n < a.bytes) a.out[at + n] = (uint8_t)(q.w[n / 4] >> (8 * (n % 4)));
        }
    }
}
