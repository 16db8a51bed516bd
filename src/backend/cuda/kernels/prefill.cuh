/* What the kernels of prefill.h have in common: products of a warpgroup with a decoded block, and the softmax between
 * them, in the order of attend.cu. Two warpgroups multiply, four rows of the step each, a warp a row with 16 heads; a
 * third one decodes. */
#ifndef HAYATE_BACKEND_CUDA_PREFILL_CUH
#define HAYATE_BACKEND_CUDA_PREFILL_CUH

#include "backend/cuda/kernels/page.cuh"
#include "backend/cuda/kernels/prefill.h"

enum {
    MULTIPLIERS = 2, /* warpgroups */
    OWN_ROWS = WARPGROUP / CUDA_WARP,
    QUERY_LINES = OWN_ROWS * PREFILL_HEADS, /* of a warpgroup's A */
    QUERY_HALF = QUERY_LINES * LINE_BYTES,
    QUERY_BYTES = 2 * QUERY_HALF,
};

DEVICE int tokens_seen(int position, int b) { return min(position + 1 - b * CUDA_BLOCK_TOKENS, (int)CUDA_BLOCK_TOKENS); }

/* Stages: filled by all threads of the decoding warpgroup, given back by every multiplying warp. */
DEVICE void open_stages(arrivals *full, arrivals *empty, int count)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < count; i++) {
            arrivals_init(full + i, WARPGROUP);
            arrivals_init(empty + i, MULTIPLIERS * WARPGROUP / CUDA_WARP);
        }
        arrivals_ready();
    }
    BLOCK_SYNC();
}

/* Barrier of this warpgroup alone. */
DEVICE void multipliers_meet(int group)
{
    if (group == 0)
        threads_meet<1, WARPGROUP>();
    else
        threads_meet<2, WARPGROUP>();
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

/* Keys and values of a head that wait in registers, as far as they fit there: of bf16 nothing does. */
template <int FORMAT> struct prefill_block {
    raw_page<FORMAT> keys, values;
};

template <int FORMAT>
DEVICE void load_keys(const kernel_cache &cache, prefill_block<FORMAT> &to, int part, const uint8_t *head)
{
    load_page<FORMAT>(to.keys, part, head, head + cache.k_scales, false);
}
template <int FORMAT>
DEVICE void load_values(const kernel_cache &cache, prefill_block<FORMAT> &to, int part, const uint8_t *head)
{
    load_page<FORMAT>(to.values, part, head + cache.v_data, head + cache.v_scales, true);
}

/* What waits comes from the head at `head`. */
template <int FORMAT> DEVICE void load_block(const kernel_cache &cache, prefill_block<FORMAT> &waiting, const uint8_t *head)
{
    if (raw_page<FORMAT>::PARTS > 1) return;
    load_keys(cache, waiting, 0, head);
    load_values(cache, waiting, 0, head);
}

/* What waits into a stage, values from token `tokens` on as zeros. Of bf16 it comes from `head` at once. */
template <int FORMAT>
DEVICE void store_block(const kernel_cache &cache, prefill_block<FORMAT> &waiting, unsigned char *stage, const uint8_t *head,
                        int tokens)
{
    typedef raw_page<FORMAT> raw;
    for (int part = 0; part < raw::PARTS; part++) {
        if (raw::PARTS > 1) load_keys(cache, waiting, part, head);
        store_page<FORMAT, PAGE_KEYS>(waiting.keys, part, stage, CUDA_BLOCK_TOKENS);
        if (raw::PARTS > 1) load_values(cache, waiting, part, head);
        store_page<FORMAT, PAGE_VALUES>(waiting.values, part, stage + PAGE_BYTES, tokens);
    }
}

/* All threads of the decoding warpgroup: is a value of the head from token `least` on no finite number? found: shared, 0
 * before and after. */
template <int FORMAT>
DEVICE bool not_finite(const kernel_cache &cache, prefill_block<FORMAT> &waiting, const uint8_t *head, int least,
                       uint32_t *found)
{
    typedef raw_page<FORMAT> raw;
    for (int part = 0; part < raw::PARTS; part++) {
        if (raw::PARTS > 1) load_values(cache, waiting, part, head);
        if (page_not_finite<FORMAT>(waiting.values, least)) *found = 1;
    }
    threads_meet<3, WARPGROUP>();
    bool is = *found != 0;
    threads_meet<3, WARPGROUP>();
    if (threadIdx.x % WARPGROUP == 0) *found = 0;
    threads_meet<3, WARPGROUP>();
    return is;
}

/* ---- Queries ----------------------------------------------------------------------------------------------------- */

/* What a lane holds of its warp's row: half of a head's query. */
struct raw_queries {
    float x[2][4][8];
};

/* heads: that there are at `from`, the rest is zeros; from: NULL without a row. */
template <int FORMAT> DEVICE void fetch_queries(raw_queries &raw, const float *from, int heads)
{
    int lane = threadIdx.x % CUDA_WARP, h = lane % PREFILL_HEADS;
    UNROLL for (int n = 0; n < 2; n++)
        UNROLL for (int i = 0; i < 32; i++) raw.x[n][i / 8][i % 8] = 0;
    if (!from || h >= heads) return;
    UNROLL for (int n = 0; n < 2; n++)
        fetch_query<FORMAT, PAGE_KEYS>(from + h * PREFILL_DIM, lane / PREFILL_HEADS + 2 * n, raw.x[n]);
}

/* As the warp's 16 lines of A. */
template <int FORMAT> DEVICE void put_queries(const raw_queries &raw, unsigned char *tile)
{
    int lane = threadIdx.x % CUDA_WARP, line = threadIdx.x / CUDA_WARP % OWN_ROWS * PREFILL_HEADS + lane % PREFILL_HEADS;
    UNROLL for (int n = 0; n < 2; n++) {
        int c = lane / PREFILL_HEADS + 2 * n;
        quad unit[4];
        order_query<FORMAT, PAGE_KEYS>(raw.x[n], unit);
        UNROLL for (int j = 0; j < 4; j++)
            *(quad *)(tile + n * QUERY_HALF + tile_unit(line, c % 2 * 4 + j)) = unit[j];
    }
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

/* S [64 queries][128 tokens]; half: bytes from the queries' first 64 dims to the others. Not waited for. */
DEVICE void multiply_keys(float (&s)[64], const unsigned char *queries, int half, const unsigned char *keys)
{
    wgmma_fence();
    UNROLL for (int k = 0; k < PREFILL_DIM / 16; k++)
        wgmma_shared<CUDA_BLOCK_TOKENS>(s, matrix_of(queries + k / 4 * half, 0, ATOM_BYTES) + k % 4 * MATRIX_NEXT,
                                        matrix_of(keys + k / 4 * PAGE_HALF, 0, ATOM_BYTES) + k % 4 * MATRIX_NEXT, k > 0);
    wgmma_commit();
}

/* O [64 queries][128 dims]. Not waited for. */
DEVICE void multiply_values(float (&out)[64], const uint32_t (&weights)[32], const unsigned char *values)
{
    wgmma_fence();
    UNROLL for (int k = 0; k < CUDA_BLOCK_TOKENS / 16; k++)
        wgmma<PREFILL_DIM, false, true>(out, weights + 4 * k,
                                        matrix_of(values + k * 16 * LINE_BYTES, PAGE_HALF, ATOM_BYTES), k > 0);
    wgmma_commit();
}

/* Scores s become weights, pairs of bf16 as A of wgmma; the block's maxima and sums, of heads g and g + 8. PARTLY: the
 * row sees its first `tokens` tokens, else all. */
template <bool PARTLY>
DEVICE void weigh_tokens(float (&s)[64], float scale, int tokens, uint32_t (&weights)[32], float maximum[2], float sum[2])
{
    int t = threadIdx.x % 4;
    maximum[0] = maximum[1] = -INFINITY;
    UNROLL for (int i = 0; i < 16; i++)
        UNROLL for (int c = 0; c < 4; c++) {
            float x = s[4 * i + c] * scale;
            if (PARTLY && 8 * i + 2 * t + c % 2 >= tokens) x = -INFINITY;
            s[4 * i + c] = x;
            maximum[c / 2] = fmaxf(maximum[c / 2], x);
        }
    UNROLL for (int r = 0; r < 2; r++) {
        maximum[r] = fmaxf(maximum[r], lane_xor(maximum[r], 1));
        maximum[r] = fmaxf(maximum[r], lane_xor(maximum[r], 2));
        sum[r] = 0;
    }
    UNROLL for (int n = 0; n < 8; n++) /* 16 tokens */
        UNROLL for (int r = 0; r < 2; r++) {
            float part = 0;
            UNROLL for (int i = 2 * n; i < 2 * n + 2; i++) {
                float p[2];
                UNROLL for (int c = 0; c < 2; c++) {
                    p[c] = power_of_two(s[4 * i + 2 * r + c] - maximum[r]);
                    if (PARTLY && 8 * i + 2 * t + c >= tokens) p[c] = 0;
                    part += p[c];
                }
                weights[4 * n + i % 2 * 2 + r] = round_pair(p[0], p[1]);
            }
            part += lane_xor(part, 1);
            part += lane_xor(part, 2);
            sum[r] += part;
        }
}

/* The same for a warp whose row sees `tokens` of the block; 0: it does not take it, and its weights are zeros. */
DEVICE void weigh_row(float (&s)[64], float scale, int tokens, uint32_t (&weights)[32], float maximum[2], float sum[2])
{
    if (tokens >= CUDA_BLOCK_TOKENS) {
        weigh_tokens<false>(s, scale, tokens, weights, maximum, sum);
    } else if (tokens > 0) {
        weigh_tokens<true>(s, scale, tokens, weights, maximum, sum);
    } else {
        UNROLL for (int i = 0; i < 32; i++) weights[i] = 0;
        UNROLL for (int r = 0; r < 2; r++) maximum[r] = sum[r] = 0;
    }
}

/* Eight values of the output, as bf16 and as fp32. */
DEVICE void store_unit(float *attention, uint16_t *attention_bf16, int64_t at, const quad &half)
{
    quad whole[2];
    UNROLL for (int w = 0; w < 8; w++) whole[w / 4].w[w % 4] = w % 2 ? half.w[w / 2] & 0xFFFF0000u : half.w[w / 2] << 16;
    *(quad *)(attention_bf16 + at) = half;
    ((quad *)(attention + at))[0] = whole[0];
    ((quad *)(attention + at))[1] = whole[1];
}

/* One step of the fold. */
DEVICE void fold_step(float &maximum, float now_maximum, float &before, float &now)
{
    float joint = fmaxf(maximum, now_maximum);
    before = power_of_two(maximum - joint);
    now = power_of_two(now_maximum - joint);
    maximum = joint;
}

#endif
