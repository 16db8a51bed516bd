/* What the last lane of a warp does for all 32 where they meet: see cuda_emulated.cuh. */
#include "backend/cuda_emulated.cuh"

namespace emulated {

enum { LANES = 32 };

void ballot_work(void *const lanes[32])
{
    uint32_t bits = 0;
    for (int i = 0; i < LANES; i++) bits |= (uint32_t)(((exchange<uint32_t> *)lanes[i])->in != 0) << i;
    for (int i = 0; i < LANES; i++) ((exchange<uint32_t> *)lanes[i])->out = bits;
}

void least_work(void *const lanes[32])
{
    uint32_t least = 0xFFFFFFFFu;
    for (int i = 0; i < LANES; i++) {
        uint32_t x = ((exchange<uint32_t> *)lanes[i])->in;
        least = x < least ? x : least;
    }
    for (int i = 0; i < LANES; i++) ((exchange<uint32_t> *)lanes[i])->out = least;
}

void sync_work(void *const *)
{
}

namespace {

inline float low(uint32_t pair)
{
    return bits_float(pair << 16);
}
inline float high(uint32_t pair)
{
    return bits_float(pair & 0xFFFF0000u);
}

} // namespace

/* One rounding for all products of an instruction, which takes 16 of them in any order, as tensor cores do. */
#if defined __x86_64__
__attribute__((target_clones("avx2", "default")))
#endif
void mma_work(void *const lanes[32])
{
    alignas(32) float a[16][16], b[16][8], d[16][8];
    for (int i = 0; i < LANES; i++) {
        const mma_lane *l = (const mma_lane *)lanes[i];
        int g = i / 4, t = i % 4 * 2;
        for (int j = 0; j < 4; j++) {
            float *at = &a[g + j % 2 * 8][t + j / 2 * 8];
            at[0] = low(l->a[j]), at[1] = high(l->a[j]);
        }
        for (int j = 0; j < 2; j++) {
            b[t + j * 8][g] = low(l->b[j]);
            b[t + j * 8 + 1][g] = high(l->b[j]);
            d[g + j * 8][t] = l->d[j * 2];
            d[g + j * 8][t + 1] = l->d[j * 2 + 1];
        }
    }
    for (int i = 0; i < 16; i++) {
        double sum[8];
        for (int j = 0; j < 8; j++) sum[j] = d[i][j];
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++) sum[j] += (double)a[i][k] * b[k][j];
        for (int j = 0; j < 8; j++) d[i][j] = (float)sum[j];
    }
    for (int i = 0; i < LANES; i++) {
        const mma_lane *l = (const mma_lane *)lanes[i];
        int g = i / 4, t = i % 4 * 2;
        for (int j = 0; j < 4; j++) l->d[j] = d[g + j / 2 * 8][t + j % 2];
    }
}

void matrices_work(void *const lanes[32])
{
    for (int i = 0; i < LANES; i++)
        for (int m = 0; m < 4; m++)
            memcpy(&((matrix_lane *)lanes[i])->out[m],
                   (const char *)((matrix_lane *)lanes[m * 8 + i / 4])->shared + i % 4 * 4, 4);
}

void transposed_work(void *const lanes[32])
{
    for (int i = 0; i < LANES; i++)
        for (int m = 0; m < 4; m++)
            for (int j = 0; j < 2; j++)
                memcpy((char *)&((matrix_lane *)lanes[i])->out[m] + j * 2,
                       (const char *)((matrix_lane *)lanes[m * 8 + i % 4 * 2 + j])->shared + i / 4 * 2, 2);
}

void transposed_store(void *const lanes[32])
{
    for (int i = 0; i < LANES; i++)
        for (int m = 0; m < 4; m++)
            for (int j = 0; j < 2; j++)
                memcpy((char *)((matrix_lane *)lanes[m * 8 + i % 4 * 2 + j])->shared + i / 4 * 2,
                       (const char *)&((matrix_lane *)lanes[i])->out[m] + j * 2, 2);
}

} // namespace emulated
