/*
 * The routed experts with NVFP4 weights.
 *
 *     z = bf16((up + 1) gate sigmoid(alpha gate)),  gate, up = W1 h, W3 h;  y = W2 z;  x += scaling * sum w_e y_e + shared
 *
 * Inputs are bf16, or (W4A4) NVFP4 by the quantisers of number/nvfp4.h, decoded: code * scale has six significant bits. So
 * either kind feeds bf16 tensor cores with exact operands and fp32 sums, by one code; integer products of the codes would
 * take a multiplication of scales for each output, row and group of 16 instead of one for each weight.
 * Tile: a warp has two tiles of 16 outputs (the same 16 of gate and up, so that SwiGLU and the quantiser, whose group is 16
 * outputs of a row, stay in registers; or 32 of down) and 8, 16, 32 or 64 rows of one expert. K is one chain: chunks of
 * 256 inputs ascending, in a chunk 16 MMAs in one order, so a row's bits do not depend on who sits beside it or on the
 * number of rows. Lane (g, t) of a quad takes 32 neighbouring inputs of row g, 16 bytes, which come through a
 * ring of four chunks in shared memory that no other lane reads; the scales are 16 bytes a row and chunk, read by a quad.
 * Grid: tiles of outputs, experts that have rows (found on the device), row tiles in turns.
 * Bytes per output: 9/16 * K of weights for all rows of a tile. Bound: memory up to about 46 rows an expert.
 */
#include "backend/cuda/kernels/experts.cuh"

/* ---- Who goes where ---------------------------------------------------------------------------------------------- */

KERNEL(experts_plan, experts_plan_args)
{
    SHARED(int32_t, found, 32);
    int lane = threadIdx.x % CUDA_WARP, warp = threadIdx.x / CUDA_WARP, warps = blockDim.x / CUDA_WARP;
    int32_t expert = blockIdx.x, before = 0, *members = a.lists.members + (int64_t)expert * a.lists.capacity;
    for (int32_t first = 0; first < a.count; first += blockDim.x) {
        int32_t row = first + threadIdx.x, place = -1;
        if (row < a.count && a.sequence[row] >= 0)
            for (int i = a.lists.per_token - 1; i >= 0; i--)
                if (a.routes[(int64_t)row * a.lists.per_token + i] == expert) place = i;
        uint32_t here = lane_ballot(place >= 0);
        if (lane == 0) found[warp] = count_bits(here);
        BLOCK_SYNC();
        int32_t at = before + count_bits(here & ((1u << lane) - 1));
        for (int i = 0; i < warps; i++) {
            if (i < warp) at += found[i];
            before += found[i];
        }
        if (place >= 0) members[at] = row * a.lists.per_token + place;
        BLOCK_SYNC(); /* found has been read */
    }
    if (threadIdx.x == 0) a.lists.count[expert] = before;
}

/* ---- Inputs ------------------------------------------------------------------------------------------------------ */

/* Word i of eight values: elements 2i, 2i + 1, or woven. */
DEVICE uint32_t experts_word(const float *x, int i, bool woven)
{
    return woven ? bf16_pair(x[i], x[i + 4]) : bf16_pair(x[2 * i], x[2 * i + 1]);
}

/* max|h| of a row over the block, as bits. */
DEVICE uint32_t experts_row_largest(const float *h, int32_t hidden, uint32_t *part)
{
    uint32_t most = 0;
    for (int32_t i = threadIdx.x; i < hidden; i += blockDim.x) most = experts_larger(most, experts_magnitude(h[i]));
    for (int mask = 1; mask < CUDA_WARP; mask *= 2) most = experts_larger(most, lane_xor(most, mask));
    if (threadIdx.x % CUDA_WARP == 0) part[threadIdx.x / CUDA_WARP] = most;
    BLOCK_SYNC();
    for (int i = 0; i < (int)(blockDim.x / CUDA_WARP); i++) most = experts_larger(most, part[i]);
    return most;
}

/* One group of nvfp4_fc1_round_row, in place. */
DEVICE void experts_round_group(float x[16], float factor)
{
    uint32_t most = 0;
    UNROLL for (int i = 0; i < 16; i++) {
        x[i] = round_bf16(x[i] * factor);
        most = experts_larger(most, experts_magnitude(x[i]));
    }
    float scale = float_of_e4m3(nvfp4_scale(bits_float(most) / 6));
    UNROLL for (int i = 0; i < 16; i++) x[i] = experts_code(x[i], scale, scale);
}

KERNEL(experts_in, experts_in_args)
{
    SHARED(uint32_t, part, 32);
    const float *h = a.h + (int64_t)blockIdx.x * a.hidden;
    uint16_t *out = a.out + (int64_t)blockIdx.x * a.hidden;
    float factor = 1;
    if (a.quantise) {
        float r = bits_float(experts_row_largest(h, a.hidden, part));
        if (r < 1e-12f) r = 1e-12f;
        factor = 2688.0f / r;
        if (threadIdx.x == 0) a.factor[blockIdx.x] = round_bf16(r / 2688.0f);
    }
    if (!a.quantise && !a.woven) {
        for (int32_t i = threadIdx.x; i < a.hidden; i += blockDim.x) out[i] = bf16_of_float(h[i]);
        return;
    }
    for (int32_t group = threadIdx.x; group < a.hidden / 16; group += blockDim.x) {
        float x[16];
        UNROLL for (int i = 0; i < 16; i++) x[i] = h[group * 16 + i];
        if (a.quantise) experts_round_group(x, factor);
        uint32_t *words = (uint32_t *)(out + group * 16);
        UNROLL for (int i = 0; i < 8; i++) words[i] = experts_word(x + i / 4 * 8, i % 4, a.woven);
    }
}

/* ---- Two tiles of outputs ---------------------------------------------------------------------------------------- */

/* Two tiles of 16 outputs: codes and scales of their first rows. */
typedef struct experts_tiles {
    const uint8_t *data[2], *scales[2];
    int32_t cols;
} experts_tiles;

/* A stage: quads [tile][lower, upper 8 outputs][half chunk][lane], then scales [tile][16 outputs][16]. */
enum { EXPERTS_STAGE = EXPERTS_STAGE_BYTES / 16, EXPERTS_SCALES = 2 * 2 * 2 * CUDA_WARP };

DEVICE void experts_ask(const experts_tiles &w, int32_t chunk, quad *stage, int lane)
{
    int g = lane / 4, t = lane % 4;
    UNROLL for (int tile = 0; tile < 2; tile++)
        UNROLL for (int upper = 0; upper < 2; upper++)
            UNROLL for (int half = 0; half < 2; half++) {
                int32_t k = chunk * EXPERTS_CHUNK + half * 128 + t * 32;
                const uint8_t *from = w.data[tile] + (int64_t)(g + 8 * upper) * (w.cols / 2) + k / 2;
                bool there = k < w.cols;
                copy_async(stage + ((tile * 2 + upper) * 2 + half) * CUDA_WARP + lane, there ? from : w.data[tile], there);
            }
    int32_t groups = w.cols / 16, at = chunk * (EXPERTS_CHUNK / 16);
    const uint8_t *from = (lane < 16 ? w.scales[0] : w.scales[1]) + (int64_t)(lane % 16) * groups + at;
    quad *to = stage + EXPERTS_SCALES + lane;
    if (groups % 16 == 0) {
        copy_async(to, from, true);
    } else {
        for (int i = 0; i < 16; i++) ((uint8_t *)to)[i] = at + i < groups ? from[i] : 0;
    }
}

/* d [tile][rows of eight] += the stage's weights times inputs; source: the lane's row of each eight, or NULL. */
template <int TILES>
DEVICE void experts_multiply(const experts_tiles &w, int32_t chunk, const quad *stage, const uint16_t *const source[TILES],
                             int lane, float d[2][TILES][4])
{
    int g = lane / 4, t = lane % 4;
    UNROLL for (int half = 0; half < 2; half++) {
        int32_t k = chunk * EXPERTS_CHUNK + half * 128 + t * 32;
        quad codes[2][2];
        uint32_t unit[2][2][2]; /* of the lane's two groups */
        UNROLL for (int i = 0; i < 4; i++) {
            int tile = i / 2, upper = i % 2;
            codes[tile][upper] = stage[(i * 2 + half) * CUDA_WARP + lane];
            const uint8_t *scales = (const uint8_t *)(stage + EXPERTS_SCALES + tile * 16 + g + 8 * upper) + half * 8 + 2 * t;
            uint32_t pair = *(const uint16_t *)scales;
            unit[tile][upper][0] = nvfp4_unit(pair & 0xFF);
            unit[tile][upper][1] = nvfp4_unit(pair >> 8);
        }
        UNROLL for (int i = 0; i < 4; i++) { /* eight inputs */
            quad x[TILES];
            UNROLL for (int n = 0; n < TILES; n++) {
                x[n] = quad{{0, 0, 0, 0}};
                if (source[n] && k < w.cols) x[n] = *(const quad *)(source[n] + k + 8 * i);
            }
            UNROLL for (int tile = 0; tile < 2; tile++) {
                uint32_t p[2][4];
                UNROLL for (int upper = 0; upper < 2; upper++) {
                    e2m1_pairs(codes[tile][upper].w[i], p[upper]);
                    UNROLL for (int j = 0; j < 4; j++) p[upper][j] = multiply_pairs(p[upper][j], unit[tile][upper][i / 2]);
                }
                UNROLL for (int j = 0; j < 4; j += 2) {
                    uint32_t weights[4] = {p[0][j], p[1][j], p[0][j + 1], p[1][j + 1]};
                    UNROLL for (int n = 0; n < TILES; n++) mma_bf16(d[tile][n], weights, &x[n].w[j]);
                }
            }
        }
    }
}

/* The sums of all inputs, times NVFP4_SHIFT to be. */
template <int TILES>
DEVICE void experts_sums(const experts_tiles &w, quad *ring, const uint16_t *const source[TILES], int lane,
                         float d[2][TILES][4])
{
    UNROLL for (int tile = 0; tile < 2; tile++)
        UNROLL for (int n = 0; n < TILES; n++)
            UNROLL for (int i = 0; i < 4; i++) d[tile][n][i] = 0;
    int32_t chunks = (w.cols + EXPERTS_CHUNK - 1) / EXPERTS_CHUNK;
    for (int32_t c = 0; c < EXPERTS_STAGES - 1; c++) {
        if (c < chunks) experts_ask(w, c, ring + c * EXPERTS_STAGE, lane);
        copy_commit();
    }
    for (int32_t c = 0; c < chunks; c++) {
        copy_wait<EXPERTS_STAGES - 2>();
        WARP_SYNC(); /* chunk c is there for all lanes, and all are done with the one before it */
        int32_t next = c + EXPERTS_STAGES - 1;
        if (next < chunks) experts_ask(w, next, ring + next % EXPERTS_STAGES * EXPERTS_STAGE, lane);
        copy_commit();
        experts_multiply<TILES>(w, c, ring + c % EXPERTS_STAGES * EXPERTS_STAGE, source, lane, d);
    }
    WARP_SYNC();
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

/* Writes z of column `member` of the tile's outputs g and g + 8 of every lane; `z` is the member's 16 places. */
DEVICE void experts_store_glu(const experts_glu_args &a, float low, float high, uint16_t *z, int g)
{
    low = round_bf16(low), high = round_bf16(high);
    if (a.row_factor) {
        uint32_t most = experts_larger(experts_magnitude(low), experts_magnitude(high));
        for (int mask = 4; mask < CUDA_WARP; mask *= 2) most = experts_larger(most, lane_xor(most, mask));
        float scale = float_of_e4m3(nvfp4_scale(bits_float(most) / 6 * 16)), unit = scale * 0.0625f;
        low = experts_code(low, unit, scale), high = experts_code(high, unit, scale);
    }
    int at = g < 4 ? 2 * g : 2 * g - 7; /* woven */
    if (z) z[at] = bf16_of_float(low), z[8 + at] = bf16_of_float(high);
}

template <int TILES> DEVICE void experts_glu(const experts_glu_args &a)
{
    int lane = threadIdx.x % CUDA_WARP, warp = threadIdx.x / CUDA_WARP, warps = blockDim.x / CUDA_WARP;
    int g = lane / 4, t = lane % 4;
    int32_t expert = experts_nth(a.lists, blockIdx.y, lane), out = (blockIdx.x * warps + warp) * EXPERTS_TILE;
    int32_t hidden = a.gate.first.cols, width = a.gate.first.rows;
    if (expert < 0 || out >= width) return;
    quad *ring = DYNAMIC(quad) + warp * EXPERTS_STAGES * EXPERTS_STAGE;
    experts_tiles w = {{experts_data(a.gate, expert, out), experts_data(a.up, expert, out)},
                       {experts_scales(a.gate, expert, out), experts_scales(a.up, expert, out)},
                       hidden};
    float gate_factor = a.gate.factors[expert], up_factor = a.up.factors[expert];
    int32_t count = a.lists.count[expert];
    const int32_t *members = a.lists.members + (int64_t)expert * a.lists.capacity;
    for (int32_t first = blockIdx.z * 8 * TILES; first < count; first += gridDim.z * 8 * TILES) {
        const uint16_t *source[TILES];
        UNROLL for (int n = 0; n < TILES; n++) {
            int32_t m = first + 8 * n + g;
            source[n] = m < count ? a.in + (int64_t)(members[m] / a.lists.per_token) * hidden : NULL;
        }
        float d[2][TILES][4];
        experts_sums<TILES>(w, ring, source, lane, d);
        UNROLL for (int n = 0; n < TILES; n++)
            UNROLL for (int i = 0; i < 2; i++) {
                int32_t m = first + 8 * n + 2 * t + i, member = m < count ? members[m] : -1;
                float row_factor = a.row_factor && member >= 0 ? a.row_factor[member / a.lists.per_token] : 1;
                float z[2];
                UNROLL for (int upper = 0; upper < 2; upper++) {
                    float gate = d[0][n][2 * upper + i] * NVFP4_SHIFT * gate_factor * row_factor;
                    float up = d[1][n][2 * upper + i] * NVFP4_SHIFT * up_factor * row_factor;
                    z[upper] = experts_swiglu(gate, up, a.alpha, a.limit);
                }
                experts_store_glu(a, z[0], z[1], member >= 0 ? a.z + (int64_t)member * width + out : NULL, g);
            }
    }
}

KERNEL(experts_glu_1, experts_glu_args) { experts_glu<1>(a); }
KERNEL(experts_glu_2, experts_glu_args) { experts_glu<2>(a); }
KERNEL(experts_glu_4, experts_glu_args) { experts_glu<4>(a); }
KERNEL(experts_glu_8, experts_glu_args) { experts_glu<8>(a); }

/* ---- Down -------------------------------------------------------------------------------------------------------- */

template <int TILES> DEVICE void experts_down(const experts_down_args &a)
{
    int lane = threadIdx.x % CUDA_WARP, warp = threadIdx.x / CUDA_WARP, warps = blockDim.x / CUDA_WARP;
    int g = lane / 4, t = lane % 4;
    int32_t expert = experts_nth(a.lists, blockIdx.y, lane), out = (blockIdx.x * warps + warp) * 2 * EXPERTS_TILE;
    int32_t hidden = a.down.first.rows, width = a.down.first.cols;
    if (expert < 0 || out >= hidden) return;
    quad *ring = DYNAMIC(quad) + warp * EXPERTS_STAGES * EXPERTS_STAGE;
    experts_tiles w = {{experts_data(a.down, expert, out), experts_data(a.down, expert, out + EXPERTS_TILE)},
                       {experts_scales(a.down, expert, out), experts_scales(a.down, expert, out + EXPERTS_TILE)},
                       width};
    float factor = a.down.factors[expert];
    int32_t count = a.lists.count[expert];
    const int32_t *members = a.lists.members + (int64_t)expert * a.lists.capacity;
    for (int32_t first = blockIdx.z * 8 * TILES; first < count; first += gridDim.z * 8 * TILES) {
        const uint16_t *source[TILES];
        UNROLL for (int n = 0; n < TILES; n++) {
            int32_t m = first + 8 * n + g;
            source[n] = m < count ? a.z + (int64_t)members[m] * width : NULL;
        }
        float d[2][TILES][4];
        experts_sums<TILES>(w, ring, source, lane, d);
        UNROLL for (int n = 0; n < TILES; n++)
            UNROLL for (int i = 0; i < 2; i++) {
                int32_t m = first + 8 * n + 2 * t + i;
                if (m >= count) continue;
                float *y = a.y + (int64_t)members[m] * hidden + out + g;
                UNROLL for (int part = 0; part < 4; part++)
                    y[8 * part] = d[part / 2][n][part % 2 * 2 + i] * NVFP4_SHIFT * factor * a.factor;
            }
    }
}

KERNEL(experts_down_1, experts_down_args) { experts_down<1>(a); }
KERNEL(experts_down_2, experts_down_args) { experts_down<2>(a); }
KERNEL(experts_down_4, experts_down_args) { experts_down<4>(a); }
KERNEL(experts_down_8, experts_down_args) { experts_down<8>(a); }

/* ---- Sum --------------------------------------------------------------------------------------------------------- */

/* Routes are ascending, so a place's order is its expert's. */
KERNEL(experts_combine, experts_combine_args)
{
    int32_t row = blockIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= a.hidden) return;
    float sum = 0;
    const int32_t *routes = a.routes + (int64_t)row * a.per_token;
    for (int i = 0; i < a.per_token && a.sequence[row] >= 0; i++) {
        int64_t member = (int64_t)row * a.per_token + i;
        if (i > 0 && routes[i] == routes[i - 1]) continue; /* experts_plan takes the first */
        sum += a.weights[member] * a.y[member * a.hidden + column];
    }
    int64_t at = (int64_t)row * a.hidden + column;
    float routed = a.scaling * sum;
    a.x[at] += a.shared ? routed + a.shared[at] : routed;
}
