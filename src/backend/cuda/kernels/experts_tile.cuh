/*
 * A warp's tile of 16 outputs of one expert: its weights through a ring in shared memory, decoded and multiplied with up to
 * 64 rows, and what becomes of gate and up. experts.cu says in what order all of it happens; the order is the same for all
 * kernels that include this.
 */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_EXPERTS_TILE_CUH
#define HAYATE_BACKEND_CUDA_KERNELS_EXPERTS_TILE_CUH

#include "backend/cuda/kernels/experts.cuh"

/* One or two tiles of 16 outputs: their codes and scales. */
template <int TILES> struct experts_tiles {
    const uint8_t *data[TILES], *scales[TILES];
    int32_t cols;
};

/* A stage, in quads: [tile][lower, upper 8 outputs][half chunk][lane], then scales [tile][32 inputs][16 outputs][2]. */
template <int TILES> struct experts_stage {
    enum { SCALES = TILES * 2 * 2 * CUDA_WARP, QUADS = SCALES + TILES * 16 };
};

template <int TILES> DEVICE void experts_ask(const experts_tiles<TILES> &w, int32_t chunk, quad *stage, int lane)
{
    int g = lane / 4, t = lane % 4;
    UNROLL for (int tile = 0; tile < TILES; tile++)
        UNROLL for (int half = 0; half < 2; half++) {
            int32_t block = chunk * (EXPERTS_CHUNK / 32) + half * 4 + t;
            bool there = block * 32 < w.cols;
            const uint8_t *from = w.data[tile] + (there ? (int64_t)(block * 16 + EXPERTS_PLACE(g, t)) * 16 : 0);
            UNROLL for (int upper = 0; upper < 2; upper++)
                copy_async(stage + ((tile * 2 + upper) * 2 + half) * CUDA_WARP + lane, from + upper * 128, there);
        }
    if (lane >= TILES * 16) return;
    int32_t block = chunk * (EXPERTS_CHUNK / 32) + lane % 16 / 2;
    bool there = block * 32 < w.cols;
    const uint8_t *from = lane < 16 ? w.scales[0] : w.scales[TILES - 1];
    copy_async(stage + experts_stage<TILES>::SCALES + lane, from + (there ? block * 32 + lane % 2 * 16 : 0), there);
}

/* Pairs (0,4), (1,5), (2,6), (3,7) of a word, times 2^-126. */
DEVICE void experts_pairs(uint32_t word, uint32_t pair[4])
{
    pair[0] = word & 0x81C081C0u;
    pair[1] = word << 3 & 0x81C081C0u;
    pair[2] = (word & 0x20072007u) * 0x44u & 0x81C081C0u; /* two shifts in one: what else they leave lies elsewhere */
    pair[3] = (word << 1 & 0x80008000u) | (word >> 3 & 0x01C001C0u);
}

/* nvfp4_unit of two scales that are positive numbers. */
DEVICE void experts_units(uint32_t scales, uint32_t unit[2])
{
    uint32_t both = multiply_pairs(scales * 0x1010u & 0x07F007F0u, 0x7F007F00u);
    both = multiply_pairs(both, 0x76007600u);
    unit[0] = (both & 0xFFFFu) | both << 16;
    unit[1] = both >> 16 | (both & 0xFFFF0000u);
}

/* Where a lane's inputs are: row source[n] elements behind `in` for each eight rows. */
template <int EIGHTS> struct experts_inputs {
    const uint16_t *in;
    uint32_t row[EIGHTS];
};

/* d [tile][rows of eight] += weights of half a stage times inputs. */
template <int TILES, int EIGHTS>
DEVICE void experts_multiply_half(int32_t cols, int32_t chunk, int half, const quad *stage,
                                  const experts_inputs<EIGHTS> &source, int lane, float d[TILES][EIGHTS][4])
{
    int g = lane / 4, t = lane % 4;
    const uint16_t *scales = (const uint16_t *)(stage + experts_stage<TILES>::SCALES) + half * 64 + t * 16 + g;
    int32_t k = chunk * EXPERTS_CHUNK + half * 128 + t * 32;
    const uint16_t *in = source.in + (k < cols ? k : 0); /* the weights are zero there */
    quad codes[TILES][2];
    uint32_t unit[TILES][2][2]; /* of the lane's two groups */
    UNROLL for (int tile = 0; tile < TILES; tile++)
        UNROLL for (int upper = 0; upper < 2; upper++) {
            codes[tile][upper] = stage[((tile * 2 + upper) * 2 + half) * CUDA_WARP + lane];
            experts_units(scales[tile * 128 + upper * 8], unit[tile][upper]);
        }
    UNROLL for (int i = 0; i < 4; i++) { /* eight inputs */
        quad x[EIGHTS];
        UNROLL for (int n = 0; n < EIGHTS; n++) x[n] = *(const quad *)(in + source.row[n] + 8 * i);
        UNROLL for (int tile = 0; tile < TILES; tile++) {
            uint32_t p[2][4];
            UNROLL for (int upper = 0; upper < 2; upper++) {
                experts_pairs(codes[tile][upper].w[i], p[upper]);
                UNROLL for (int j = 0; j < 4; j++) p[upper][j] = multiply_pairs(p[upper][j], unit[tile][upper][i / 2]);
            }
            UNROLL for (int j = 0; j < 4; j += 2) {
                uint32_t weights[4] = {p[0][j], p[1][j], p[0][j + 1], p[1][j + 1]};
                UNROLL for (int n = 0; n < EIGHTS; n++) mma_bf16(d[tile][n], weights, &x[n].w[j]);
            }
        }
    }
}

/* The whole stage. */
template <int TILES, int EIGHTS>
DEVICE void experts_multiply(int32_t cols, int32_t chunk, const quad *stage, const experts_inputs<EIGHTS> &source, int lane,
                             float d[TILES][EIGHTS][4])
{
    if (EIGHTS < 8) {
        UNROLL for (int half = 0; half < 2; half++)
            experts_multiply_half<TILES, EIGHTS>(cols, chunk, half, stage, source, lane, d);
    } else { /* registers are short */
        _Pragma("unroll 1") for (int half = 0; half < 2; half++)
            experts_multiply_half<TILES, EIGHTS>(cols, chunk, half, stage, source, lane, d);
    }
}

DEVICE const uint8_t *experts_data(const experts_weight &w, int32_t expert, int32_t row)
{
    return (const uint8_t *)w.first.data + expert * w.bytes + (int64_t)row * (w.first.cols / 2);
}

DEVICE const uint8_t *experts_scales(const experts_weight &w, int32_t expert, int32_t row)
{
    return (const uint8_t *)w.first.scales + expert * w.scale_bytes + (int64_t)row * (w.first.cols / 16);
}

/* ---- Gate, up and SwiGLU ----------------------------------------------------------------------------------------- */

/* Writes z of a member at the tile's outputs g and g + 8 of every lane; `z`: the member's first place, or NULL; `upper`: from it
 * to that of the upper eight. */
DEVICE void experts_store_glu(const experts_glu_args &a, float low, float high, uint16_t *z, int32_t upper, int g)
{
    low = round_bf16(low), high = round_bf16(high);
    if (a.row_factor) {
        uint32_t most = experts_larger(experts_magnitude(low), experts_magnitude(high));
        for (int mask = 4; mask < CUDA_WARP; mask *= 2) most = experts_larger(most, lane_xor(most, mask));
        float scale = float_of_e4m3(nvfp4_scale(bits_float(most) / 6 * 16)), unit = scale * 0.0625f;
        low = experts_code(low, unit, scale), high = experts_code(high, unit, scale);
    }
    int at = g < 4 ? 2 * g : 2 * g - 7; /* woven */
    if (z) z[at] = bf16_of_float(low), z[upper + at] = bf16_of_float(high);
}

/* Of the lane's two columns of eight rows: members, or -1, with the factors of their inputs; and the expert's factors. */
struct experts_columns {
    int32_t member[2];
    float row_factor[2], gate, up;
};

DEVICE experts_columns experts_columns_of(const experts_glu_args &a, int32_t expert, int32_t count, int32_t first, int lane)
{
    const int32_t *members = a.lists.members + (int64_t)expert * a.lists.capacity;
    experts_columns c;
    c.gate = a.gate.factors[expert], c.up = a.up.factors[expert];
    UNROLL for (int i = 0; i < 2; i++) {
        int32_t m = first + 2 * (lane % 4) + i;
        c.member[i] = m < count ? members[m] : -1;
    }
    UNROLL for (int i = 0; i < 2; i++)
        c.row_factor[i] = a.row_factor && c.member[i] >= 0 ? a.row_factor[c.member[i] / a.lists.per_token] : 1;
    return c;
}

/* z of eight rows from the sums of gate and up; its tile begins at `out`, the upper eight are `upper_at` behind. */
DEVICE void experts_finish_columns(const experts_glu_args &a, const experts_columns &c, int32_t out, int32_t upper_at,
                                   const float gate[4], const float up[4], int lane)
{
    int32_t width = a.gate.first.rows;
    UNROLL for (int i = 0; i < 2; i++) {
        float z[2];
        UNROLL for (int upper = 0; upper < 2; upper++)
            z[upper] = experts_swiglu(gate[2 * upper + i] * NVFP4_SHIFT * c.gate * c.row_factor[i],
                                      up[2 * upper + i] * NVFP4_SHIFT * c.up * c.row_factor[i], a.alpha, a.limit);
        experts_store_glu(a, z[0], z[1], c.member[i] >= 0 ? a.z + (int64_t)c.member[i] * width + out : NULL, upper_at, lane / 4);
    }
}

/* The same of the eight rows from `first` on. */
DEVICE void experts_finish_glu(const experts_glu_args &a, int32_t expert, int32_t first, int32_t out, int32_t upper_at,
                               const float gate[4], const float up[4], int lane)
{
    experts_columns c = experts_columns_of(a, expert, a.lists.count[expert], first, lane);
    experts_finish_columns(a, c, out, upper_at, gate, up, lane);
}

/* The lane's rows of inputs: of row g of every eight from `first` on. Behind the last member comes the last one again,
 * into columns that nobody looks at. */
template <int EIGHTS>
DEVICE void experts_sources(const experts_lists &lists, int32_t expert, int32_t first, const uint16_t *in, int32_t cols,
                            int32_t members_of_row, int g, experts_inputs<EIGHTS> &source)
{
    source.in = in;
    int32_t count = lists.count[expert];
    const int32_t *members = lists.members + (int64_t)expert * lists.capacity;
    UNROLL for (int n = 0; n < EIGHTS; n++) {
        int32_t m = first + 8 * n + g;
        if (m >= count) m = count - 1;
        source.row[n] = (uint32_t)(members[m] / members_of_row) * (uint32_t)cols;
    }
}

#endif
