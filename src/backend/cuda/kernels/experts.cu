/*
 * The routed experts with NVFP4 weights.
 *
 *     z = bf16((up + 1) gate sigmoid(alpha gate)),  gate, up = W1 h, W3 h;  y = W2 z;  x += scaling * sum w_e y_e + shared
 *
 * Inputs are bf16, or (W4A4) NVFP4 by the quantisers of number/nvfp4.h, decoded: code * scale has six significant bits. So
 * either kind feeds bf16 tensor cores with exact operands and fp32 sums, by one code; integer products of the codes would
 * take a multiplication of scales for each output, row and group of 16 instead of one for each weight.
 * Tile: 16 outputs, which is also a group of the quantiser of z, and 8, 16, 32 or 64 rows of one expert. A warp has two of
 * them (the same 16 of gate and up, or 32 of down), with few rows one. K is one chain: chunks of
 * 256 inputs ascending, in a chunk 16 MMAs in one order, so a row's bits do not depend on who sits beside it or on the
 * number of rows. Lane (g, t) of a quad takes 32 neighbouring inputs of row g, 16 bytes, which come through a
 * ring of four chunks in shared memory that no other lane reads; experts.h has the weights' order, a chunk of which is
 * 2,048 bytes of codes and 256 of scales in a row.
 * Grid: tiles of outputs, experts that have rows (found on the device), row tiles in turns.
 * Bytes per output: 9/16 * K of weights for all rows of a tile. Bound: memory up to about 46 rows an expert.
 */
#include "backend/cuda/kernels/experts_tile.cuh"

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

/* Eight codes in order to the order of experts.h. */
DEVICE uint32_t experts_weave(uint32_t word)
{
    uint32_t woven = (word >> 3 & 0x00010001u) << 15 | (word & 0x00070007u) << 6;
    woven |= (word >> 7 & 0x00010001u) << 12 | (word >> 4 & 0x00070007u) << 3;
    woven |= (word >> 11 & 0x00010001u) << 13 | (word >> 8 & 0x00070007u);
    return woven | (word >> 15 & 0x00010001u) << 14 | (word >> 12 & 0x00070007u) << 9;
}

KERNEL(experts_prepare, experts_prepare_args)
{
    int32_t words = 2 * a.cols, row_words = a.cols / 8, row_scales = a.cols / 16;
    uint32_t *codes = DYNAMIC(uint32_t); /* [16][row_words] */
    uint8_t *scales = (uint8_t *)(codes + words); /* [16][row_scales] */
    uint32_t *data = (uint32_t *)(a.data + blockIdx.y * a.bytes) + (int64_t)blockIdx.x * words;
    uint8_t *out = a.scales + blockIdx.y * a.scale_bytes + (int64_t)blockIdx.x * a.cols;
    for (int32_t i = threadIdx.x; i < words; i += blockDim.x) codes[i] = data[i];
    for (int32_t i = threadIdx.x; i < a.cols; i += blockDim.x) scales[i] = out[i];
    BLOCK_SYNC();
    for (int32_t i = threadIdx.x; i < words; i += blockDim.x) {
        int32_t block = i / 64, row = EXPERTS_PLACE(i / 4 % 16, block), word = i % 4;
        uint32_t turn = scales[row * row_scales + block * 2 + word / 2] & 0x80 ? 0x88888888u : 0;
        data[i] = experts_weave(codes[row * row_words + block * 4 + word] ^ turn);
    }
    for (int32_t i = threadIdx.x; i < a.cols; i += blockDim.x) {
        uint32_t scale = scales[i % 32 / 2 * row_scales + i / 32 * 2 + i % 2] & 0x7F;
        out[i] = (uint8_t)scale;
        if (scale == 0x7F) *a.wrong = blockIdx.y + 1;
    }
}

/* ---- Who goes where ---------------------------------------------------------------------------------------------- */

/* All threads of a block. */
DEVICE void experts_plan(const experts_plan_args &a, int32_t expert, int32_t found[32])
{
    int lane = threadIdx.x % CUDA_WARP, warp = threadIdx.x / CUDA_WARP, warps = blockDim.x / CUDA_WARP;
    int32_t before = 0, *members = a.lists.members + (int64_t)expert * a.lists.capacity;
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
        if (place >= 0 && a.lists.position) a.lists.position[row * a.lists.per_token + place] = at;
        BLOCK_SYNC(); /* found has been read */
    }
    if (threadIdx.x == 0) a.lists.count[expert] = before;
}

/* ---- Inputs ------------------------------------------------------------------------------------------------------ */

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

/* All threads of a block. */
DEVICE void experts_in(const experts_in_args &a, int32_t row, uint32_t part[32])
{
    const float *h = a.h + (int64_t)row * a.hidden;
    uint16_t *out = a.out + (int64_t)row * a.hidden;
    float factor = 1;
    if (a.quantise) {
        float r = bits_float(experts_row_largest(h, a.hidden, part));
        if (r < 1e-12f) r = 1e-12f;
        factor = 2688.0f / r;
        if (threadIdx.x == 0) a.factor[row] = round_bf16(r / 2688.0f);
    }
    if (!a.quantise && !a.woven) {
        for (int32_t i = threadIdx.x; i < a.hidden; i += blockDim.x) out[i] = bf16_of_float(h[i]);
        return;
    }
    for (int32_t group = threadIdx.x; group < a.hidden / 16; group += blockDim.x)
        experts_in_group(a, h + group * 16, factor, out + group * 16);
}

/* SwiGLU of the shared expert: EXPERTS_GLU_BLOCK values of the block. */
DEVICE void experts_shared_glu(const experts_shared_args &a, int64_t block)
{
    int64_t first = block * EXPERTS_GLU_BLOCK;
    for (int i = threadIdx.x; i < EXPERTS_GLU_BLOCK && first + i < a.total; i += blockDim.x)
        a.z[first + i] = bf16_of_float(experts_swiglu(a.gate[first + i], a.up[first + i], a.alpha, a.limit));
}

KERNEL(experts_begin, experts_begin_args)
{
    SHARED(uint32_t, part, 32);
    int32_t block = blockIdx.x, experts = a.plan.lists.experts;
    if (block < experts)
        experts_plan(a.plan, block, (int32_t *)part);
    else if (block < experts + a.plan.count)
        experts_in(a.in, block - experts, part);
    else
        experts_shared_glu(a.shared, block - experts - a.plan.count);
}

/* ---- Sum --------------------------------------------------------------------------------------------------------- */

/* x of one column of a row; member i of the row has its output at y[(row * per_token + i) * stride]. Routes are ascending,
 * so a place's order is its expert's. */
DEVICE void experts_sum(const experts_sum_args &a, int32_t row, int32_t column, const float *y, int64_t stride)
{
    float sum = 0;
    int64_t member = (int64_t)row * a.per_token;
    for (int i = 0; i < a.per_token && a.sequence[row] >= 0; i++, member++) {
        if (i > 0 && a.routes[member] == a.routes[member - 1]) continue; /* experts_plan takes the first */
        sum += a.weights[member] * y[member * stride];
    }
    int64_t at = (int64_t)row * a.hidden + column;
    float routed = a.scaling * sum;
    a.x[at] += a.shared ? routed + a.shared[at] : routed;
}

KERNEL(experts_combine, experts_combine_args)
{
    int32_t row = blockIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column < a.sum.hidden) experts_sum(a.sum, row, column, a.y + column, a.sum.hidden);
}

/* Four columns a thread, hidden a multiple of four: all that it reads is on its way at once. */
KERNEL(experts_combine_four, experts_combine_args)
{
    enum { AHEAD = 4 };
    const experts_sum_args &s = a.sum;
    int32_t row = blockIdx.y, column = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (column >= s.hidden) return;
    int64_t member = (int64_t)row * s.per_token, at = (int64_t)row * s.hidden + column;
    int32_t places = s.sequence[row] >= 0 ? s.per_token : 0;
    quad x = *(const quad *)(s.x + at), shared = {{0, 0, 0, 0}};
    if (s.shared) shared = *(const quad *)(s.shared + at);
    float sum[4] = {0, 0, 0, 0};
    for (int first = 0; first < places; first += AHEAD) {
        quad y[AHEAD];
        UNROLL for (int i = 0; i < AHEAD; i++)
            if (first + i < places) y[i] = *(const quad *)(a.y + (member + first + i) * s.hidden + column);
        UNROLL for (int i = 0; i < AHEAD; i++)
        {
            int64_t m = member + first + i;
            if (first + i >= places || (first + i > 0 && s.routes[m] == s.routes[m - 1])) continue; /* as in experts_sum */
            float weight = s.weights[m];
            UNROLL for (int j = 0; j < 4; j++) sum[j] += weight * bits_float(y[i].w[j]);
        }
    }
    UNROLL for (int j = 0; j < 4; j++)
    {
        float routed = s.scaling * sum[j];
        x.w[j] = float_bits(bits_float(x.w[j]) + (s.shared ? routed + bits_float(shared.w[j]) : routed));
    }
    *(quad *)(s.x + at) = x;
}

/* ---- Tiles of outputs -------------------------------------------------------------------------------------------- */

/* Asks for the first chunks; what comes before experts_sums runs while they are on their way. */
template <int TILES> DEVICE void experts_prime(const experts_tiles<TILES> &w, quad *ring, int lane)
{
    for (int32_t c = 0; c < EXPERTS_STAGES - 1; c++) {
        if (c * EXPERTS_CHUNK < w.cols) experts_ask<TILES>(w, c, ring + c * experts_stage<TILES>::QUADS, lane);
        copy_commit();
    }
}

/* The sums over all inputs, which NVFP4_SHIFT is to be multiplied with. */
template <int TILES, int EIGHTS>
DEVICE void experts_sums(const experts_tiles<TILES> &w, quad *ring, const experts_inputs<EIGHTS> &source, int lane,
                         float d[TILES][EIGHTS][4])
{
    enum { QUADS = experts_stage<TILES>::QUADS };
    UNROLL for (int tile = 0; tile < TILES; tile++)
        UNROLL for (int n = 0; n < EIGHTS; n++)
            UNROLL for (int i = 0; i < 4; i++) d[tile][n][i] = 0;
    int32_t chunks = (w.cols + EXPERTS_CHUNK - 1) / EXPERTS_CHUNK;
    for (int32_t c = 0; c < chunks; c++) {
        copy_wait<EXPERTS_STAGES - 2>();
        WARP_SYNC(); /* chunk c is there for all lanes, and all are done with the one before it */
        int32_t next = c + EXPERTS_STAGES - 1;
        if (next < chunks) experts_ask<TILES>(w, next, ring + next % EXPERTS_STAGES * QUADS, lane);
        copy_commit();
        experts_multiply<TILES, EIGHTS>(w.cols, c, ring + c % EXPERTS_STAGES * QUADS, source, lane, d);
    }
    WARP_SYNC(); /* the ring may be filled again */
}

/* ---- Gate, up and SwiGLU ----------------------------------------------------------------------------------------- */

/* z of 8 * EIGHTS rows from `first` on. */
template <int EIGHTS>
DEVICE void experts_glu_rows(const experts_glu_args &a, const experts_tiles<2> &w, quad *ring, int32_t expert, int32_t first,
                             int32_t out, int lane)
{
    experts_inputs<EIGHTS> source;
    float d[2][EIGHTS][4];
    experts_prime<2>(w, ring, lane);
    experts_sources<EIGHTS>(a.lists, expert, first, a.in, w.cols, a.lists.per_token, lane / 4, source);
    experts_sums<2, EIGHTS>(w, ring, source, lane, d);
    UNROLL for (int n = 0; n < EIGHTS; n++) experts_finish_glu(a, expert, first + 8 * n, out, 8, d[0][n], d[1][n], lane);
}

template <int EIGHTS> DEVICE void experts_glu(const experts_glu_args &a)
{
    int lane = threadIdx.x % CUDA_WARP, warp = threadIdx.x / CUDA_WARP, warps = blockDim.x / CUDA_WARP;
    int32_t expert = experts_nth(a.lists, blockIdx.y, lane), out = (blockIdx.x * warps + warp) * EXPERTS_TILE;
    if (expert < 0 || out >= a.gate.first.rows) return;
    quad *ring = DYNAMIC(quad) + warp * EXPERTS_STAGES * experts_stage<2>::QUADS;
    experts_tiles<2> w = {{experts_data(a.gate, expert, out), experts_data(a.up, expert, out)},
                          {experts_scales(a.gate, expert, out), experts_scales(a.up, expert, out)},
                          a.gate.first.cols};
    int32_t count = a.lists.count[expert];
    for (int32_t first = blockIdx.z * 8 * EIGHTS; first < count; first += gridDim.z * 8 * EIGHTS)
        if (count - first <= 4 * EIGHTS)
            experts_glu_rows<EIGHTS / 2>(a, w, ring, expert, first, out, lane);
        else
            experts_glu_rows<EIGHTS>(a, w, ring, expert, first, out, lane);
}

KERNEL(experts_glu_2, experts_glu_args) { experts_glu<2>(a); }
KERNEL(experts_glu_4, experts_glu_args) { experts_glu<4>(a); }
KERNEL(experts_glu_8, experts_glu_args) { experts_glu<8>(a); }

/* Few rows: twice the warps, one for gate and one for up. */
KERNEL(experts_glu_1, experts_glu_args)
{
    SHARED(float, gates, 4 * CUDA_WARP);
    int lane = threadIdx.x % CUDA_WARP, warp = threadIdx.x / CUDA_WARP;
    int32_t expert = experts_nth(a.lists, blockIdx.y, lane), out = blockIdx.x * EXPERTS_TILE;
    if (expert < 0) return;
    quad *ring = DYNAMIC(quad) + warp * EXPERTS_STAGES * experts_stage<1>::QUADS;
    const experts_weight &of = warp == 0 ? a.gate : a.up;
    experts_tiles<1> w = {{experts_data(of, expert, out)}, {experts_scales(of, expert, out)}, of.first.cols};
    for (int32_t first = blockIdx.z * 8; first < a.lists.count[expert]; first += gridDim.z * 8) {
        experts_inputs<1> source;
        float d[1][1][4];
        experts_prime<1>(w, ring, lane);
        experts_sources<1>(a.lists, expert, first, a.in, w.cols, a.lists.per_token, lane / 4, source);
        experts_sums<1, 1>(w, ring, source, lane, d);
        if (warp == 0)
            for (int i = 0; i < 4; i++) gates[i * CUDA_WARP + lane] = d[0][0][i];
        BLOCK_SYNC();
        if (warp == 1) {
            float gate[4];
            for (int i = 0; i < 4; i++) gate[i] = gates[i * CUDA_WARP + lane];
            experts_finish_glu(a, expert, first, out, 8, gate, d[0][0], lane);
        }
        BLOCK_SYNC(); /* gates have been read */
    }
}

/* ---- Down -------------------------------------------------------------------------------------------------------- */

/* y of 8 * EIGHTS rows from `first` on. */
template <int EIGHTS>
DEVICE void experts_down_rows(const experts_down_args &a, const experts_tiles<2> &w, quad *ring, int32_t expert,
                              int32_t first, int32_t out, int lane)
{
    int g = lane / 4, t = lane % 4;
    int32_t count = a.lists.count[expert];
    const int32_t *members = a.lists.members + (int64_t)expert * a.lists.capacity;
    float factor = a.down.factors[expert];
    experts_inputs<EIGHTS> source;
    float d[2][EIGHTS][4];
    experts_prime<2>(w, ring, lane);
    experts_sources<EIGHTS>(a.lists, expert, first, a.z, w.cols, 1, g, source);
    experts_sums<2, EIGHTS>(w, ring, source, lane, d);
    UNROLL for (int n = 0; n < EIGHTS; n++)
        UNROLL for (int i = 0; i < 2; i++) {
            int32_t m = first + 8 * n + 2 * t + i;
            if (m >= count) continue;
            float *y = a.y + (int64_t)members[m] * a.down.first.rows + out + g;
            UNROLL for (int part = 0; part < 4; part++)
                y[8 * part] = d[part / 2][n][part % 2 * 2 + i] * NVFP4_SHIFT * factor * a.factor;
        }
}

template <int EIGHTS> DEVICE void experts_down(const experts_down_args &a)
{
    int lane = threadIdx.x % CUDA_WARP, warp = threadIdx.x / CUDA_WARP, warps = blockDim.x / CUDA_WARP;
    int32_t expert = experts_nth(a.lists, blockIdx.y, lane), out = (blockIdx.x * warps + warp) * 2 * EXPERTS_TILE;
    if (expert < 0 || out >= a.down.first.rows) return;
    quad *ring = DYNAMIC(quad) + warp * EXPERTS_STAGES * experts_stage<2>::QUADS;
    experts_tiles<2> w = {{experts_data(a.down, expert, out), experts_data(a.down, expert, out + EXPERTS_TILE)},
                          {experts_scales(a.down, expert, out), experts_scales(a.down, expert, out + EXPERTS_TILE)},
                          a.down.first.cols};
    int32_t count = a.lists.count[expert];
    for (int32_t first = blockIdx.z * 8 * EIGHTS; first < count; first += gridDim.z * 8 * EIGHTS)
        if (count - first <= 4 * EIGHTS)
            experts_down_rows<EIGHTS / 2>(a, w, ring, expert, first, out, lane);
        else
            experts_down_rows<EIGHTS>(a, w, ring, expert, first, out, lane);
}

KERNEL(experts_down_2, experts_down_args) { experts_down<2>(a); }
KERNEL(experts_down_4, experts_down_args) { experts_down<4>(a); }
KERNEL(experts_down_8, experts_down_args) { experts_down<8>(a); }

/* Few members: a block has 16 columns, its warps share the experts, the outputs stay in shared memory and are summed at
 * once. */
KERNEL(experts_down_few, experts_down_args)
{
    SHARED(float, y, EXPERTS_FEW * EXPERTS_TILE); /* [members][16] */
    int lane = threadIdx.x % CUDA_WARP, warp = threadIdx.x / CUDA_WARP, warps = blockDim.x / CUDA_WARP;
    int g = lane / 4, t = lane % 4;
    int32_t out = blockIdx.x * EXPERTS_TILE;
    quad *ring = DYNAMIC(quad) + warp * EXPERTS_STAGES * experts_stage<1>::QUADS;
    for (int32_t n = warp;; n += warps) {
        int32_t expert = experts_nth(a.lists, n, lane);
        if (expert < 0) break;
        experts_tiles<1> w = {{experts_data(a.down, expert, out)}, {experts_scales(a.down, expert, out)}, a.down.first.cols};
        float factor = a.down.factors[expert];
        int32_t count = a.lists.count[expert];
        const int32_t *members = a.lists.members + (int64_t)expert * a.lists.capacity;
        for (int32_t first = 0; first < count; first += 8) {
            experts_inputs<1> source;
            float d[1][1][4];
            experts_prime<1>(w, ring, lane);
            experts_sources<1>(a.lists, expert, first, a.z, w.cols, 1, g, source);
            experts_sums<1, 1>(w, ring, source, lane, d);
            UNROLL for (int i = 0; i < 4; i++) {
                int32_t m = first + 2 * t + i % 2;
                if (m < count)
                    y[members[m] * EXPERTS_TILE + g + i / 2 * 8] = d[0][0][i] * NVFP4_SHIFT * factor * a.factor;
            }
        }
    }
    BLOCK_SYNC();
    for (int i = threadIdx.x; i < a.sum.count * EXPERTS_TILE; i += blockDim.x)
        experts_sum(a.sum, i / EXPERTS_TILE, out + i % EXPERTS_TILE, y + i % EXPERTS_TILE, EXPERTS_TILE);
}
