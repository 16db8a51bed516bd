/*
 * The drafter's own kernels; its norms and projections are those of linear.cu.
 *
 *     context    c = hidden_norm(fc . taps); per layer K = rotary(k_norm(Wk . c)), V = Wv . c into the cache
 *     attention  a(k, h) = sum_j softmax_j(q(k, h) . k_j / sqrt(dim)) v_j over the context keys at positions
 *                max(0, n + k - window + 1) .. n - 1 and all g rows of the block itself
 *     drafts     L_k = U_k + markov_out . markov_in[token before], left to right; the best of each is the next token
 *
 * Attention: a block of threads has one KV head, all g * heads / kv_heads queries and 128 keys: one cache block, or the
 * drafts' own rows, which are the last. Keys and values lie in shared memory as bf16, a warp has tiles of 16 queries: scores
 * and output stay in its registers, 16 x 128 and 16 x dim. Each block of keys gives its own maximum, sum and output. The
 * blocks of the context are divided into four runs of neighbours. A run folds its blocks in ascending order, and then the own
 * rows, run 0, 1, 2, 3 are folded: draft_fold does both, or whoever has several blocks, so that who takes which changes no bit.
 *
 * Bytes: the window's keys and values once a layer and sequence, 2 * 4,096 * 4 * 128 = 4 MiB in fp8, and as parts 34 blocks
 * of fp32 outputs, 7.5 MiB for g = 7, written and read again. Arithmetic is 4 * 4,096 * 128 * 64 * g operations. Of heads of
 * 128 dims on Hopper draft_hopper.cu has the attention, which is far nearer to them.
 */
#include "backend/cuda/kernels/cache.cuh"
#include "backend/cuda/kernels/draft.cuh"
#include "backend/cuda/kernels/draw.cuh"

/* ---- Rows of weights --------------------------------------------------------------------------------------------- */

/* One element, for tables of which a step reads few rows. */
DEVICE float element(const kernel_weight &w, int64_t row, int column)
{
    int64_t at = row * w.cols + column;
    if (w.format == KERNEL_F32) return ((const float *)w.data)[at];
    if (w.format == KERNEL_BF16) return float_of_bf16(((const uint16_t *)w.data)[at]);
    const uint8_t *codes = (const uint8_t *)w.data, *scales = (const uint8_t *)w.scales;
    if (w.format == KERNEL_MXFP8) return float_of_e4m3(codes[at]) * float_of_e8m0(scales[at / 32]);
    return float_of_e2m1(codes[at / 2] >> at % 2 * 4 & 15) * float_of_e4m3(scales[at / 16]) * w.factor;
}

/* ---- Taps and the first rows ------------------------------------------------------------------------------------- */

KERNEL(draft_tap, draft_tap_args)
{
    const float *x = a.x + (int64_t)blockIdx.x * a.hidden;
    uint16_t *to = a.taps + ((int64_t)blockIdx.x * a.tap_count + a.tap) * a.hidden;
    for (int i = threadIdx.x; i < a.hidden; i += blockDim.x) to[i] = bf16_of_float(x[i]);
}

KERNEL(draft_open, draft_open_args)
{
    const draft_asked &of = a.asked[blockIdx.x];
    const int32_t *id = a.ids + of.first;
    int n = 0;
    while (n < of.judged && id[n] >= 0 && id[n] == of.draft[n]) n++;
    int32_t anchor = id[n], position = of.position + n, room = of.end - (position + 1);
    int32_t low = position - a.window + 1, first = low > 0 ? low / CUDA_BLOCK_TOKENS : 0;
    int32_t end = (position + CUDA_BLOCK_TOKENS - 1) / CUDA_BLOCK_TOKENS;
    const int32_t *blocks = a.block_table + (int64_t)of.line * a.block_table_stride;
    int32_t *table = a.table + (int64_t)blockIdx.x * a.blocks;
    for (int i = first + threadIdx.x; i < end; i += blockDim.x) table[i - first] = blocks[i];
    if (threadIdx.x > 0) return;
    draw_stream stream = of.stream;
    stream.position = (uint32_t)position + 1;
    if (of.anchored) stream.anchor = (uint32_t)position + 1;
    draft_sequence &to = a.sequence[blockIdx.x];
    to.anchor = max(anchor, 0), to.position = position;
    to.first_block = first, to.blocks = end - first + 1;
    to.rows = of.rows, to.wanted = anchor < 0 ? 0 : max(min(room, of.rows), 0);
    to.threshold = of.threshold;
    to.stream = stream;
}

KERNEL(draft_begin, draft_begin_args)
{
    int64_t row = blockIdx.x;
    int s = blockIdx.x / a.stride, k = blockIdx.x % a.stride;
    const draft_sequence &of = a.sequence[s];
    int32_t token = k ? a.noise : of.anchor;
    for (int i = threadIdx.x; i < a.hidden; i += blockDim.x) a.x[row * a.hidden + i] = element(a.embed, token, i);
    if (threadIdx.x == 0) a.position[row] = of.position + k;
    if (k == 0 && threadIdx.x == 0) a.state[s].before = of.wanted > 0 ? of.anchor : -1, a.state[s].count = 0;
}

/* ---- Heads ------------------------------------------------------------------------------------------------------- */

KERNEL(draft_heads, draft_heads_args)
{
    SHARED(float, values, 4 * DRAFT_HEAD_DIM);
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP, heads = 0;
    for (int p = 0; p < a.parts; p++) heads += a.part[p].heads;
    int64_t which = (int64_t)blockIdx.x * 4 + warp;
    if (which >= (int64_t)a.rows * heads) return;
    int64_t row = which / heads;
    int head = (int)(which % heads), p = 0;
    while (head >= a.part[p].heads) head -= a.part[p++].heads;
    const draft_heads_part &part = a.part[p];
    bool cached = part.out == nullptr;
    if (cached && (a.slot[row] < 0 || a.sequence[row] < 0)) return;

    float *x = values + warp * DRAFT_HEAD_DIM, sum = 0;
    const float *in = part.in + (row * part.heads + head) * a.dim;
    for (int i = lane; i < a.dim; i += CUDA_WARP) x[i] = in[i], sum += x[i] * x[i];
    if (part.gain.data) {
        for (int mask = 16; mask > 0; mask /= 2) sum += lane_xor(sum, mask);
        float inverse = 1 / sqrtf(sum / (float)a.dim + a.eps);
        for (int i = lane; i < a.dim; i += CUDA_WARP) x[i] = x[i] * inverse * (a.one + element(part.gain, 0, i));
        WARP_SYNC();
        for (int i = lane; i < a.pairs; i += CUDA_WARP) {
            float c = a.cosine[row * a.pairs + i], s = a.sine[row * a.pairs + i], low = x[i], high = x[i + a.pairs];
            x[i] = low * c - high * s;
            x[i + a.pairs] = high * c + low * s;
        }
        WARP_SYNC();
    }
    if (!cached) {
        uint16_t *to = part.out + (row * part.heads + head) * a.dim;
        for (int i = lane; i < a.dim; i += CUDA_WARP) to[i] = bf16_of_float(x[i]);
        return;
    }
    int64_t slot = a.slot[row];
    int bytes = a.cache.draft == KERNEL_CACHE_BF16 ? 2 : 1;
    uint8_t *to = a.cache.base + slot / CUDA_BLOCK_TOKENS * a.cache.row_bytes + part.at +
                  head * a.cache.draft_head_bytes + slot % CUDA_BLOCK_TOKENS * a.dim * bytes;
    for (int i = lane; i < a.dim; i += CUDA_WARP) {
        uint16_t rounded = bf16_of_float(x[i]);
        if (bytes == 2)
            ((uint16_t *)to)[i] = rounded;
        else
            to[i] = (uint8_t)e4m3_of_float(float_of_bf16(rounded));
    }
}

/* ---- Attention --------------------------------------------------------------------------------------------------- */

/* Eight values of a key or of a value, in the cache as bf16 or E4M3; at a multiple of 8 bytes of these. */
DEVICE quad eight(const uint8_t *at, bool half)
{
    struct alignas(8) codes {
        uint32_t w[2];
    };
    if (half) return *(const quad *)at;
    quad out;
    codes from = *(const codes *)at;
    e4m3_values(from.w[0], out.w);
    e4m3_values(from.w[1], out.w + 2);
    return out;
}

/* Keys and values [128, dim] of block b as bf16, what row 0 does not see and what is beyond dim as zeros. */
template <int DIM>
DEVICE void load_keys(const draft_attend_args &a, const draft_sequence &of, int s, int b, int group,
                      uint16_t *keys, uint16_t *values)
{
    const int row = DIM + DRAFT_PAD, pieces = DIM / 8;
    key_span span = span_of(a, of, b, 0);
    bool own = b == of.blocks - 1, half = own || a.cache.draft == KERNEL_CACHE_BF16;
    const uint8_t *k, *v;
    int64_t stride; /* bytes from token to token */
    if (own) {
        int64_t at = ((int64_t)s * a.stride * a.kv_heads + group) * a.dim;
        k = (const uint8_t *)(a.own_k + at), v = (const uint8_t *)(a.own_v + at);
        stride = (int64_t)a.kv_heads * a.dim * 2;
    } else {
        int64_t block = a.table[(int64_t)s * a.blocks + b];
        k = a.cache.base + block * a.cache.row_bytes + a.at + group * a.cache.draft_head_bytes;
        v = k + a.cache.draft_v_data;
        stride = half ? 2 * a.dim : a.dim;
    }
    int tokens = (span.end + 15) / 16 * 16;
    for (int i = threadIdx.x; i < tokens * pieces; i += DRAFT_ATTEND_THREADS) {
        int t = i / pieces, from = i % pieces * 8;
        quad key = {{0, 0, 0, 0}}, value = {{0, 0, 0, 0}};
        if (t >= span.first && t < span.end && from < a.dim) {
            int64_t at = t * stride + (half ? 2 * from : from);
            key = eight(k + at, half), value = eight(v + at, half);
        }
        *(quad *)(keys + t * row + from) = key;
        *(quad *)(values + t * row + from) = value;
    }
}

template <int DIM> DEVICE void attend_block(const draft_attend_args &a)
{
    uint16_t *keys = DYNAMIC(uint16_t), *values = keys + CUDA_BLOCK_TOKENS * (DIM + DRAFT_PAD);
    const int row = DIM + DRAFT_PAD;
    int b = blockIdx.x, group = blockIdx.y, s = blockIdx.z, warp = threadIdx.x / CUDA_WARP;
    int lane = threadIdx.x % CUDA_WARP, g = lane / 4, t = lane % 4, per_group = a.heads / a.kv_heads;
    const draft_sequence &of = a.sequence[s];
    if (b >= of.blocks) return;
    load_keys<DIM>(a, of, s, b, group, keys, values);
    BLOCK_SYNC();

    int queries = of.rows * per_group, tokens = (span_of(a, of, b, 0).end + 15) / 16 * 16;
    int64_t part = part_at(a, s, group, b);
    for (int first = warp * 16; first < queries; first += DRAFT_ATTEND_THREADS / CUDA_WARP * 16) {
        /* This lane's two queries, g and g + 8 of the tile. */
        uint32_t q[DIM / 16][4];
        int begin[2], end[2];
        for (int i = 0; i < 2; i++) {
            int query = first + g + 8 * i, k = query / per_group;
            bool there = query < queries;
            const uint16_t *from =
                a.q + (((int64_t)s * a.stride + k) * a.heads + group * per_group + query % per_group) * a.dim;
            UNROLL
            for (int j = 0; j < DIM / 16; j++)
                UNROLL for (int half = 0; half < 2; half++) {
                    int at = j * 16 + half * 8 + 2 * t;
                    q[j][half * 2 + i] = there && at < a.dim ? *(const uint32_t *)(from + at) : 0;
                }
            key_span span = span_of(a, of, b, k);
            begin[i] = span.first, end[i] = there ? span.end : 0;
        }
        float score[16][4], top[2] = {DRAW_NONE, DRAW_NONE}, sum[2] = {0, 0};
        UNROLL
        for (int n = 0; n < 16; n += 2) {
            UNROLL
            for (int i = 0; i < 4; i++) score[n][i] = score[n + 1][i] = 0;
            if (n * 8 < tokens) {
                UNROLL
                for (int j = 0; j < DIM / 16; j++) {
                    uint32_t k[4];
                    load_matrices(k, keys + (n * 8 + lane / 16 * 8 + lane % 8) * row + j * 16 + lane / 8 % 2 * 8);
                    mma_bf16(score[n], q[j], k);
                    mma_bf16(score[n + 1], q[j], k + 2);
                }
            }
            UNROLL
            for (int m = n; m < n + 2; m++)
                UNROLL for (int i = 0; i < 4; i++) {
                    int token = m * 8 + 2 * t + i % 2;
                    bool seen = token >= begin[i / 2] && token < end[i / 2];
                    score[m][i] = score[m][i] * a.scale;
                    if (!seen) score[m][i] = DRAW_NONE;
                    if (score[m][i] > top[i / 2]) top[i / 2] = score[m][i];
                }
        }
        UNROLL
        for (int i = 0; i < 2; i++)
            UNROLL for (int mask = 1; mask < 4; mask *= 2) {
                float other = lane_xor(top[i], mask);
                if (other > top[i]) top[i] = other;
            }
        UNROLL
        for (int n = 0; n < 16; n++)
            UNROLL for (int i = 0; i < 4; i++) {
                int token = n * 8 + 2 * t + i % 2;
                bool seen = token >= begin[i / 2] && token < end[i / 2];
                score[n][i] = seen ? exp2f(score[n][i] - top[i / 2]) : 0;
                sum[i / 2] += score[n][i];
            }

        float out[DIM / 8][4];
        UNROLL
        for (int n = 0; n < DIM / 8; n++)
            UNROLL for (int i = 0; i < 4; i++) out[n][i] = 0;
        UNROLL
        for (int m = 0; m < 8; m++) {
            uint32_t p[4] = {bf16_pair(score[2 * m][0], score[2 * m][1]), bf16_pair(score[2 * m][2], score[2 * m][3]),
                             bf16_pair(score[2 * m + 1][0], score[2 * m + 1][1]),
                             bf16_pair(score[2 * m + 1][2], score[2 * m + 1][3])};
            if (m * 16 >= tokens) break;
            UNROLL
            for (int n = 0; n < DIM / 8; n += 2) {
                uint32_t v[4];
                load_transposed(v, values + (m * 16 + lane % 16) * row + n * 8 + lane / 16 * 8);
                mma_bf16(out[n], p, v);
                mma_bf16(out[n + 1], p, v + 2);
            }
        }
        store_part_state(a, part, first / 16, top, sum);
        quad *to = part_out_at(a, part, first / 16);
        UNROLL
        for (int n = 0; n < DIM / 8; n++) {
            quad x;
            UNROLL for (int i = 0; i < 4; i++) x.w[i] = float_bits(out[n][i]);
            if (n * 8 < a.dim) to[n * CUDA_WARP] = x;
        }
    }
}

KERNEL(draft_attend_32, draft_attend_args) { attend_block<32>(a); }
KERNEL(draft_attend_64, draft_attend_args) { attend_block<64>(a); }
KERNEL(draft_attend_128, draft_attend_args) { attend_block<128>(a); }

DEVICE fold_state fold_nothing() { return {{-INFINITY, -INFINITY}, {0, 0}, {0, 0, 0, 0}}; }

DEVICE void fold_into(fold_state &to, const fold_state &from)
{
    UNROLL for (int r = 0; r < 2; r++) {
        float before, now;
        fold_step(to.top[r], from.top[r], before, now);
        to.sum[r] = fold_value(to.sum[r], before, from.sum[r], now);
        UNROLL for (int i = 2 * r; i < 2 * r + 2; i++) to.out[i] = fold_value(to.out[i], before, from.out[i], now);
    }
}
/* Eight dims of a tile. */
DEVICE fold_state load_part(const draft_attend_args &a, int64_t part, int tile, int eight)
{
    fold_state x;
    UNROLL for (int r = 0; r < 2; r++) {
        part_state from = *part_state_at(a, part, tile, r);
        x.top[r] = from.top, x.sum[r] = from.sum;
    }
    quad q = part_out_at(a, part, tile)[eight * CUDA_WARP];
    UNROLL for (int i = 0; i < 4; i++) x.out[i] = bits_float(q.w[i]);
    return x;
}
DEVICE void store_attention(const draft_attend_args &a, int s, int group, int tile, int eight, const fold_state &x)
{
    int per_group = a.heads / a.kv_heads, lane = threadIdx.x % CUDA_WARP, queries = a.sequence[s].rows * per_group;
    UNROLL for (int r = 0; r < 2; r++) {
        int query = 16 * tile + lane / 4 + 8 * r;
        float sum = sum_of_row(x.sum[r]);
        if (query >= queries) continue;
        int64_t row = (int64_t)s * a.stride + query / per_group, head = group * per_group + query % per_group;
        uint32_t *to = (uint32_t *)(a.attention + (row * a.heads + head) * a.dim + 8 * eight + lane % 4 * 2);
        *to = bf16_pair(x.out[2 * r] / sum, x.out[2 * r + 1] / sum);
    }
}

/* Eight dims of a tile of 16 queries, and a warp for each run. */
KERNEL(draft_fold, draft_attend_args)
{
    SHARED(fold_state, state, DRAFT_RUNS * CUDA_WARP);
    int eights = a.dim / 8, tile = blockIdx.x / eights, eight = blockIdx.x % eights, group = blockIdx.y, s = blockIdx.z;
    int lane = threadIdx.x % CUDA_WARP, run = threadIdx.x / CUDA_WARP, blocks = a.sequence[s].blocks - 1;
    if (16 * tile >= a.sequence[s].rows * (a.heads / a.kv_heads)) return;
    int64_t first = part_at(a, s, group, 0);
    const int ahead = 9; /* blocks whose loads are on their way together */
    fold_state now = fold_nothing(), all;
    int end = run_begin(blocks, run + 1);
    if (run == 0) all = load_part(a, first + (int64_t)blocks * a.queries, tile, eight);
    for (int from = run_begin(blocks, run); from < end; from += ahead) {
        fold_state part[ahead];
        UNROLL for (int n = 0; n < ahead; n++)
            if (from + n < end) part[n] = load_part(a, first + (int64_t)(from + n) * a.queries, tile, eight);
        UNROLL for (int n = 0; n < ahead; n++)
            if (from + n < end) fold_into(now, part[n]);
    }
    state[threadIdx.x] = now;
    BLOCK_SYNC();
    if (run > 0) return;
    UNROLL for (int r = 0; r < DRAFT_RUNS; r++) fold_into(all, state[r * CUDA_WARP + lane]);
    store_attention(a, s, group, tile, eight, all);
}

/* A warp for eight dims of a tile. */
KERNEL(draft_fold_runs, draft_attend_args)
{
    int eights = a.dim / 8, warps = DRAFT_FOLD_THREADS / CUDA_WARP, blocks = (eights + warps - 1) / warps;
    int tile = blockIdx.x / blocks, eight = (int)(blockIdx.x % blocks * warps + threadIdx.x / CUDA_WARP);
    int group = blockIdx.y, s = blockIdx.z;
    if (16 * tile >= a.sequence[s].rows * (a.heads / a.kv_heads) || eight >= eights) return;
    int64_t first = part_at(a, s, group, 0);
    fold_state part[DRAFT_RUNS], all = load_part(a, first + (int64_t)DRAFT_RUNS * a.queries, tile, eight);
    UNROLL for (int r = 0; r < DRAFT_RUNS; r++) part[r] = load_part(a, first + (int64_t)r * a.queries, tile, eight);
    UNROLL for (int r = 0; r < DRAFT_RUNS; r++) fold_into(all, part[r]);
    store_attention(a, s, group, tile, eight, all);
}

/* ---- Drafts ------------------------------------------------------------------------------------------------------ */

enum { PICK_FOURS = 4 }; /* that a thread reads at once */

KERNEL(draft_pick, draft_pick_args)
{
    SHARED(uint64_t, part, 8);
    int s = blockIdx.y, warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
    const draft_sequence &of = a.sequence[s];
    if (a.state[s].before < 0 || a.k >= of.wanted) return;
    const float *row = a.logits + ((int64_t)s * a.stride + a.k) * a.vocab;
    draw_stream stream = of.stream;
    stream.position += (uint32_t)a.k;
    draw_best best = {DRAW_NONE, -1};
    float bound = DRAW_NONE;
    draw_scaling scaling = draw_scaling_of(stream);
    int step = 4 * gridDim.x * blockDim.x;
    for (int base = 4 * (blockIdx.x * blockDim.x); base < a.vocab; base += PICK_FOURS * step) {
        int first = base + 4 * (int)threadIdx.x;
        float z[PICK_FOURS][4];
        UNROLL for (int n = 0; n < PICK_FOURS; n++) {
            UNROLL for (int i = 0; i < 4; i++) z[n][i] = DRAW_NONE;
            if (first + n * step < a.vocab) draw_four(row, first + n * step, a.vocab, z[n]);
        }
        if (stream.greedy) {
            UNROLL for (int n = 0; n < PICK_FOURS; n++)
                UNROLL for (int i = 0; i < 4; i++) draw_take(best, draw_clean(z[n][i]), first + n * step + i);
        } else {
            UNROLL for (int n = 0; n < PICK_FOURS; n++) draw_scale_four(scaling, z[n]);
            draw_noisy(best, bound, stream, z, first, step);
        }
    }
    uint64_t place = draw_best_of_warp(draw_place(best));
    if (lane == 0) part[warp] = place;
    BLOCK_SYNC();
    if (threadIdx.x > 0) return;
    for (unsigned i = 1; i < blockDim.x / CUDA_WARP; i++)
        if (part[i] > place) place = part[i];
    a.best[(int64_t)s * a.chunks + blockIdx.x] = place;
}

/* Draft k of a sequence is the best of the parts; by one warp. */
DEVICE void take(draft_state &state, const uint64_t *best, int chunks, int k)
{
    int lane = threadIdx.x % CUDA_WARP;
    uint64_t place = 0;
    for (int i = lane; i < chunks; i += CUDA_WARP)
        if (best[i] > place) place = best[i];
    place = draw_best_of_warp(place);
    if (lane > 0) return;
    int32_t id = draw_id(place);
    state.before = id;
    if (id >= 0) state.draft[k] = id, state.count = k + 1;
}

/* Behind the last draft: one warp a sequence. */
KERNEL(draft_take, draft_pick_args)
{
    int s = blockIdx.x;
    draft_state &state = a.state[s];
    bool drafted = state.before >= 0 && a.k < a.sequence[s].wanted;
    WARP_SYNC(); /* all lanes have read the state */
    if (drafted) take(state, a.best + (int64_t)s * a.chunks, a.chunks, a.k);
}

/* In front of draft k, behind the one before. */
KERNEL(draft_markov, draft_markov_args)
{
    SHARED(float, part, 4);
    int s = blockIdx.x, warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
    const draft_sequence &of = a.sequence[s];
    bool taken = a.k > 0 && a.state[s].before >= 0 && a.k - 1 < of.wanted;
    BLOCK_SYNC(); /* all threads have read the state */
    if (taken && warp == 0) take(a.state[s], a.best + (int64_t)s * a.chunks, a.chunks, a.k - 1);
    BLOCK_SYNC();
    int32_t before = a.state[s].before;
    bool drafts = before >= 0 && a.k < of.wanted;
    uint16_t *markov = a.markov + (int64_t)s * a.rank;
    for (int i = threadIdx.x; i < a.rank; i += blockDim.x)
        markov[i] = drafts ? bf16_of_float(element(a.markov_in, before, i)) : 0;
    if (!drafts || !(of.threshold > 0) || !a.confidence.data) return;
    const float *u = a.h + ((int64_t)s * a.stride + a.k) * a.hidden;
    float sum = 0;
    for (int i = threadIdx.x; i < a.hidden; i += blockDim.x) sum += element(a.confidence, 0, i) * u[i];
    for (int i = threadIdx.x; i < a.rank; i += blockDim.x)
        sum += element(a.confidence, 0, a.hidden + i) * round_bf16(element(a.markov_in, before, i));
    for (int mask = 16; mask > 0; mask /= 2) sum += lane_xor(sum, mask);
    if (lane == 0) part[warp] = sum;
    BLOCK_SYNC();
    if (threadIdx.x > 0) return;
    sum = (part[0] + part[1]) + (part[2] + part[3]) + element(a.confidence_bias, 0, 0);
    if (!(1 / (1 + expf(-sum)) >= of.threshold)) a.state[s].before = -1; /* a NaN is not */
}
