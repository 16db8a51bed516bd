/*
 * Blocks of the cache decoded into tiles of shared memory that wgmma reads (hopper.cuh), by one warpgroup: vectors of 128
 * dims, a line of 64 values a token, the second half of the dims PAGE_HALF bytes behind the first.
 *
 * A thread takes pieces of 16 bytes as they lie. Lane l has token l % 8 of eight and piece l / 8 of four, so that a warp's
 * load is one run of memory and its stores, eight tokens of one unit, meet every bank once.
 */
#ifndef HAYATE_BACKEND_CUDA_PAGE_CUH
#define HAYATE_BACKEND_CUDA_PAGE_CUH

#include "backend/cuda/kernels/cache.cuh"
#include "backend/cuda/kernels/hopper.cuh"

enum { PAGE_DIM = 128, PAGE_HALF = CUDA_BLOCK_TOKENS * LINE_BYTES, PAGE_BYTES = 2 * PAGE_HALF };

/* What a thread holds of a block's keys or values: all of its pieces, or of bf16 one of two parts. */
template <int FORMAT> struct raw_page {
    enum {
        BYTES = cached_bytes<FORMAT>(PAGE_DIM), /* of a vector */
        PIECES = BYTES / 16,                    /* of a vector, and of a thread */
        VALUES = PAGE_DIM / PIECES,             /* of a piece */
        UNITS = VALUES / 8,                     /* of a piece */
        HELD = PIECES < 8 ? PIECES : 8,
        PARTS = PIECES / HELD,
    };
    quad piece[HELD];
    uint32_t scale[is_nvfp4<FORMAT>() ? HELD : 1]; /* of NVFP4 the two of a piece, the first in the low byte */
};

/* Token and piece of a vector of this thread's i-th piece. */
DEVICE int page_token(int i, int thread) { return (thread / CUDA_WARP % 4 + i % 4 * 4) * 8 + thread % 8; }
DEVICE int page_piece(int i, int thread) { return i / 4 * 4 + thread % CUDA_WARP / 8; }

/* quads: scales lie in quads of tokens, as those of values do. */
template <int FORMAT>
DEVICE void load_page(raw_page<FORMAT> &page, int part, const uint8_t *data, const uint8_t *scales, bool quads)
{
    typedef raw_page<FORMAT> raw;
    int thread = known_here(threadIdx.x);
    UNROLL for (int i = 0; i < raw::HELD; i++) {
        int t = page_token(i, thread), p = page_piece(part * raw::HELD + i, thread);
        page.piece[i] = load_once(data + t * raw::BYTES + 16 * p);
        if constexpr (is_nvfp4<FORMAT>()) {
            const uint8_t *at = scales + (quads ? t / 4 * 32 + p * 8 + t % 4 : t * 8 + p * 2);
            page.scale[i] = quads ? (uint32_t)at[0] | (uint32_t)at[4] << 8 : (uint32_t) * (const uint16_t *)at;
        }
    }
}

/*
 * In what order a token's values lie. Values of attention: in that of their decoding, so that column c of eight is dim
 * cached_order(c). Keys of attention: key_order. Keys of the indexer: with NVFP4 the same; of the other formats step k of
 * the product takes elements 4k .. 4k + 3 of each quarter of the dims too (index.cu), neighbours in pairs: place 16k + 8p
 * + 2t + h is element 32t + 4k + 2p + h.
 */
enum page_order { PAGE_VALUES, PAGE_KEYS, PAGE_INDEX };

/* Elements of a query of 128 dims at `from` that units 4c .. 4c + 3 of its line are made of, and the units, as bf16 in the
 * order of the keys. */
template <int FORMAT, page_order ORDER> DEVICE constexpr bool queries_whole() /* 32 neighbours, else eight of each quarter */
{
    return ORDER == PAGE_KEYS && !is_nvfp4<FORMAT>();
}
template <int FORMAT, page_order ORDER> DEVICE void fetch_query(const float *from, int c, float x[4][8])
{
    UNROLL for (int i = 0; i < 8; i++) {
        int at = queries_whole<FORMAT, ORDER>() ? 32 * c + 8 * (i / 2) : 32 * (i / 2) + 8 * c;
        quad q = ((const quad *)(from + at))[i % 2];
        UNROLL for (int w = 0; w < 4; w++) x[i / 2][i % 2 * 4 + w] = bits_float(q.w[w]);
    }
}
template <int FORMAT, page_order ORDER> DEVICE void order_query(const float x[4][8], quad unit[4])
{
    UNROLL for (int j = 0; j < 4; j++)
        UNROLL for (int w = 0; w < 4; w++)
            unit[j].w[w] = queries_whole<FORMAT, ORDER>() ? round_pair(x[j][2 * w], x[j][2 * w + 1])
                           : is_nvfp4<FORMAT>()          ? round_pair(x[w][j], x[w][j + 4])
                                                         : round_pair(x[w][2 * j], x[w][2 * j + 1]);
}

/* Do keys lie word by word? Else unit by unit. */
template <int FORMAT, page_order ORDER> DEVICE constexpr bool keys_by_words()
{
    return ORDER == PAGE_INDEX || (ORDER == PAGE_KEYS && is_nvfp4<FORMAT>());
}
/* Bytes from the start of a line, before the swizzle, to the pair or unit of values that begins with `value`. */
template <int FORMAT, page_order ORDER> DEVICE constexpr int32_t page_offset(int value)
{
    return keys_by_words<FORMAT, ORDER>() ? value % 32 / 16 * PAGE_HALF + (value % 16 / 2 << 4) + value / 32 * 4
                                          : value / 64 * PAGE_HALF + (value % 64 / 8 << 4);
}

/*
 * Zeros from token `tokens` on.
 *
 * A value is at the sum of two numbers that have no bit in common, one of the thread and one that is known here, and so is
 * its place: eight addresses, which the swizzle makes, serve all stores of a thread, with constants.
 */
template <int FORMAT, page_order ORDER>
DEVICE void store_page(const raw_page<FORMAT> &page, int part, unsigned char *tile, int tokens)
{
    typedef raw_page<FORMAT> raw;
    enum { WORDS = cached_bytes<FORMAT>(8) / 4, SWIZZLED = 7 << 4 };
    int thread = known_here(threadIdx.x), first = page_token(0, thread);
    int32_t own = first * LINE_BYTES + (page_offset<FORMAT, ORDER>(page_piece(0, thread) * raw::VALUES) ^ thread % 8 << 4);
    unsigned char *at[8];
    UNROLL for (int u = 0; u < 8; u++) at[u] = tile + (own ^ u << 4);
    UNROLL for (int i = 0; i < raw::HELD; i++) {
        uint32_t factor[2] = {0, 0};
        if constexpr (is_nvfp4<FORMAT>()) nvfp4_units(page.scale[i], factor);
        bool none = first + page_token(i, 0) >= tokens;
        UNROLL for (int c = 0; c < raw::UNITS; c++) {
            quad out;
            uint32_t word[WORDS];
            UNROLL for (int w = 0; w < WORDS; w++) word[w] = (uint32_t)known_here((int32_t)page.piece[i].w[c * WORDS + w]);
            decode_eight<FORMAT>(word, factor[c / 2 % 2], out.w);
            if (none) out = quad{{0, 0, 0, 0}};
            int value = page_piece(i, 0) * raw::VALUES + 8 * c, rest = page_token(i, 0) * LINE_BYTES;
            rest += page_offset<FORMAT, ORDER>(page_piece(part * raw::HELD, 0) * raw::VALUES); /* of all of its bits */
            UNROLL for (int w = 0; w < 4; w++) {
                int32_t to = page_offset<FORMAT, ORDER>(value + 2 * w);
                unsigned char *place = at[(to & SWIZZLED) >> 4] + (rest + (to & ~SWIZZLED));
                if constexpr (keys_by_words<FORMAT, ORDER>())
                    *(uint32_t *)place = out.w[w];
                else if (w == 0)
                    *(quad *)place = out;
            }
        }
    }
}

/* Has this thread a value from token `from` on that is no finite number? */
template <int FORMAT> DEVICE bool page_not_finite(const raw_page<FORMAT> &page, int from)
{
    bool found = false;
    UNROLL for (int i = 0; i < raw_page<FORMAT>::HELD; i++) {
        if (page_token(i, threadIdx.x) < from) continue;
        if constexpr (is_nvfp4<FORMAT>()) {
            found |= (page.scale[i] & 0x7F) == 0x7F || (page.scale[i] >> 8 & 0x7F) == 0x7F;
        } else {
            UNROLL for (int w = 0; w < 4; w++) {
                uint32_t x = page.piece[i].w[w];
                if constexpr (FORMAT == KERNEL_CACHE_FP8)
                    found |= e4m3_nan(x);
                else
                    found |= (x & 0x7F800000u) == 0x7F800000u || (x & 0x7F80u) == 0x7F80u;
            }
        }
    }
    return found;
}

#endif
