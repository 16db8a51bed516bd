/*
 * Projections of at most eight rows: the sums of project.cuh, bit for bit, from weights that never stop coming.
 *
 *     block   persistent, one a multiprocessor: up to three teams of eight warps. A team has a tile of 16 outputs (with GLU 8 of
 *             gate and 8 of up) at a time, warp i of it slice i of K; partial sums meet in shared memory, two turns of them, so
 *             that one barrier a tile is enough
 *     weights a ring of STAGES stages in shared memory for each warp, which fills its own by copy_async, past tiles' ends: 128
 *             bytes of 16 rows a stage, scales as a word a row. Lines of odd rows have their halves swapped against bank
 *             conflicts. The first stages are on their way before the kernel before has ended
 *     rows    once into shared memory, all of K; that is what bounds their number
 *     order   of mxfp8's four elements of a step 0, 2, 1, 3: three instructions less for each word of codes, and an MMA adds its 16
 *             products whatever their order (probe.cu, linear's tests)
 *     shapes  K such that a slice is whole stages: a multiple of 512 (bf16) or 1024 (mxfp8)
 *
 * Bound: the memory's bandwidth. Instructions of a stage of mxfp8 are 245 a warp as nvcc 13.0 compiles them, where the memory
 * brings one in 108 cycles of a multiprocessor: 2.3 of 4 a cycle. On an H200, of 4,475 GB/s: a bf16 head of 200,064 outputs
 * 99 % with one row and 97 % with eight; mxfp8 of 6,144 outputs of 8,192 inputs 16 us beside a launch of nothing, where the bytes
 * take 11.8. With all of these weights in the second-level cache it takes as long: instructions are what it waits for. Halves of
 * tiles in the last round, so that all teams end together, changed nothing.
 */
#ifndef HAYATE_BACKEND_CUDA_PROJECT_FEW_CUH
#define HAYATE_BACKEND_CUDA_PROJECT_FEW_CUH

#include "backend/cuda/kernels/fragment.cuh"
#include "backend/cuda/kernels/swiglu.cuh"

template <int FORMAT> struct few {
    enum {
        K = 2 * fragment<FORMAT>::CHUNK, /* of a stage */
        LINES = 16 * FEW_LINE,
        STAGE = FORMAT == KERNEL_MXFP8 ? FEW_STAGE_MXFP8 : FEW_STAGE_BF16, /* scales lie behind the lines */
        GAP = FORMAT == KERNEL_MXFP8 ? FEW_GAP_MXFP8 : FEW_GAP_BF16,
    };
};

/* The weight of tile `index`, which has 16 of its outputs, or with GLU 8 of gate and of up; *output becomes the first. */
template <bool GLU> DEVICE const project_part *few_tile(const project_args &a, int32_t index, int32_t *output)
{
    const project_part *part = GLU ? &a.part[0] : part_of(a, &index);
    *output = index * (GLU ? 8 : 16);
    return part;
}

/* What a lane copies next: lines of 16 bytes of the tile's rows lane / 8 + 0, 4, 8, 12, and a word of scales. */
struct few_source {
    const uint8_t *low, *high, *scales; /* rows from 0 and from 8 on */
    int64_t four;                       /* bytes of four rows */
};

/* Outputs from `output` on, 16 of w or 8 each of w and v. */
template <int FORMAT, bool GLU>
DEVICE void few_source_of(const kernel_weight &w, const kernel_weight &v, int32_t output, int slice, int lane, few_source *s)
{
    int64_t row = (int64_t)w.cols * (FORMAT == KERNEL_BF16 ? 2 : 1), begin = row / PROJECT_SLICES * slice + lane % 8 * 16;
    int32_t first = output + lane / 8, groups = w.cols / 32;
    s->low = (const uint8_t *)w.data + first * row + begin;
    s->high = (const uint8_t *)v.data + (first + (GLU ? 0 : 8)) * row + begin;
    s->four = 4 * row;
    if (FORMAT == KERNEL_MXFP8)
        s->scales = (const uint8_t *)(lane < 8 ? w : v).scales + (int64_t)(output + lane % (GLU ? 8 : 16)) * groups +
                    groups / PROJECT_SLICES * slice;
}

template <int FORMAT, bool GLU> DEVICE void few_begin(const project_args &a, int32_t index, int slice, int lane, few_source *s)
{
    int32_t output;
    const project_part *part = few_tile<GLU>(a, index, &output);
    few_source_of<FORMAT, GLU>(part->w, GLU ? a.part[1].w : part->w, output, slice, lane, s);
}

/* `to`: where this lane's line of row 0 goes; rows are 128 bytes apart, with the units of odd ones swapped by fours. */
template <int FORMAT> DEVICE void few_copy(uint8_t *stage, int32_t to, few_source *s, int lane)
{
    copy_async(stage + to, s->low, true);
    copy_async(stage + to + 512, s->low + s->four, true);
    copy_async(stage + to + 1024, s->high, true);
    copy_async(stage + to + 1536, s->high + s->four, true);
    s->low += 128, s->high += 128;
    if (FORMAT == KERNEL_MXFP8) {
        if (lane < 16) copy_async_word(stage + few<FORMAT>::LINES + lane * 4, s->scales);
        s->scales += 4;
    }
}

/* 16 bytes of codes as pairs of bf16: of each word elements 0, 2 and 1, 3 for mxfp8, in order for bf16. */
template <int FORMAT, bool LARGE> DEVICE void few_decode(const quad &q, uint32_t scale, uint32_t *pair)
{
    if (FORMAT == KERNEL_BF16) {
        UNROLL for (int i = 0; i < 4; i++) pair[i] = q.w[i];
        return;
    }
    uint32_t unit = LARGE ? mxfp8_unit(scale) : (scale + 120) * 0x00800080u, rest = LARGE ? mxfp8_unit_rest(scale) : 0;
    UNROLL for (int i = 0; i < 4; i++)
    {
        e4m3_pairs_apart(q.w[i], pair + 2 * i);
        pair[2 * i] = multiply_pairs(pair[2 * i], unit), pair[2 * i + 1] = multiply_pairs(pair[2 * i + 1], unit);
        if (LARGE && scale > MXFP8_UNIT_MOST)
            pair[2 * i] = multiply_pairs(pair[2 * i], rest), pair[2 * i + 1] = multiply_pairs(pair[2 * i + 1], rest);
    }
}

/* Is a scale of this lane's two rows of a stage above what few_decode takes at once? */
template <int FORMAT> DEVICE bool few_large(const uint8_t *stage, int g)
{
    bool large = false;
    if (FORMAT == KERNEL_MXFP8)
        UNROLL for (int h = 0; h < 2; h++)
        {
            uint32_t scales = *(const uint32_t *)(stage + few<FORMAT>::LINES + (g + 8 * h) * 4);
            large |= (((scales & 0x7F7F7F7Fu) + 0x79797979u) & scales & 0x80808080u) != 0;
        }
    return large;
}

/* Chunk c of a stage as fragments of its MMAs. */
template <int FORMAT, bool LARGE>
DEVICE void few_expand(const uint8_t *stage, int c, int g, int t, uint32_t (&v)[fragment<FORMAT>::STEPS][4])
{
    typedef fragment<FORMAT> f;
    const uint8_t *from = stage + g * 128 + ((4 * c + t) ^ (g & 1) << 2) * 16;
    UNROLL for (int h = 0; h < 2; h++)
    {
        uint32_t pair[2 * f::STEPS];
        uint32_t scale = FORMAT == KERNEL_MXFP8 ? stage[few<FORMAT>::LINES + (g + 8 * h) * 4 + 2 * c + t / 2] : 0;
        few_decode<FORMAT, LARGE>(*(const quad *)(from + h * 1024), scale, pair);
        UNROLL for (int s = 0; s < f::STEPS; s++) v[s][h] = pair[2 * s], v[s][2 + h] = pair[2 * s + 1];
    }
}

/* A stage of codes times its inputs, which begin at x. */
template <int FORMAT, bool LARGE> DEVICE void few_multiply(const uint8_t *stage, const uint16_t *x, int g, int t, float sum[4])
{
    typedef fragment<FORMAT> f;
    UNROLL for (int c = 0; c < 2; c++)
    {
        uint32_t v[f::STEPS][4];
        few_expand<FORMAT, LARGE>(stage, c, g, t, v);
        activations<FORMAT> b;
        load_activations<FORMAT, false>(x + c * f::CHUNK, 1, &b);
        UNROLL for (int s = 0; s < f::STEPS; s++) mma_bf16(sum, v[s], b.pair + 2 * s);
    }
}

/* Inputs in the order of few_decode. */
DEVICE void few_apart(quad *q)
{
    uint32_t w[4];
    UNROLL for (int i = 0; i < 4; i++) w[i] = permute_bytes(q->w[i / 2 * 2], q->w[i / 2 * 2 + 1], i % 2 ? 0x7632 : 0x5410);
    UNROLL for (int i = 0; i < 4; i++) q->w[i] = w[i];
}

/* Place of output o and row r in a slice's sums. */
DEVICE int few_place(int r, int o) { return (o / 8 * 2 + r % 2) * 32 + r / 2 * 8 + o % 8; }

DEVICE float few_fold(const float *sums, int r, int o)
{
    float y[PROJECT_SLICES];
    UNROLL for (int s = 0; s < PROJECT_SLICES; s++) y[s] = sums[s * FEW_TILE + few_place(r, o)];
    return ((y[0] + y[1]) + (y[2] + y[3])) + ((y[4] + y[5]) + (y[6] + y[7]));
}

template <int FORMAT, bool GLU, int TEAMS, int STAGES> DEVICE void project_few(const project_args &a)
{
    typedef few<FORMAT> of;
    enum { WARPS = TEAMS * PROJECT_SLICES, SUMS = FEW_SUMS / 4 };
    uint8_t *shared = DYNAMIC(uint8_t);
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP, g = lane / 4, t = lane % 4;
    int slice = warp % PROJECT_SLICES, team = warp / PROJECT_SLICES;
    uint8_t *ring = shared + warp * STAGES * of::STAGE;
    float *sums = (float *)(shared + WARPS * STAGES * of::STAGE) + team * 2 * SUMS;
    uint16_t *held = (uint16_t *)(shared + TEAMS * (PROJECT_SLICES * STAGES * of::STAGE + 2 * FEW_SUMS));
    const project_part *last = &a.part[GLU ? 0 : a.parts - 1];
    int32_t cols = last->w.cols, tiles = last->first + (last->w.rows + (GLU ? 7 : 15)) / (GLU ? 8 : 16);
    int32_t steps = cols / PROJECT_SLICES / of::K, jump = TEAMS * (int32_t)gridDim.x;
    int32_t index = team * (int32_t)gridDim.x + (int32_t)blockIdx.x;

    int32_t ahead = index, line_to = lane / 8 * FEW_LINE + (lane % 8 ^ (lane / 8 & 1) << 2) * 16;
    int to_copy = 0, place = 0; /* steps of `ahead` that have been copied, and the stage where the next one goes */
    few_source source = {nullptr, nullptr, nullptr, 0};
    if (ahead < tiles) few_begin<FORMAT, GLU>(a, ahead, slice, lane, &source);
#define FEW_COPY()                                                                                                    \
    do {                                                                                                              \
        if (ahead < tiles) {                                                                                          \
            few_copy<FORMAT>(ring + place * of::STAGE, line_to, &source, lane);                                       \
            if (++to_copy == steps) {                                                                                 \
                to_copy = 0, ahead += jump;                                                                           \
                if (ahead < tiles) few_begin<FORMAT, GLU>(a, ahead, slice, lane, &source);                            \
            }                                                                                                         \
        }                                                                                                             \
        copy_commit();                                                                                                \
        if (++place == STAGES) place = 0;                                                                             \
    } while (0)
    for (int i = 0; i < STAGES - 1; i++) FEW_COPY();
    follow(); /* weights are on their way before their inputs are there */

    int32_t units = cols / 8, line = cols + of::GAP;
    for (int32_t i = (int32_t)threadIdx.x; i < a.count * units; i += WARPS * CUDA_WARP) {
        int32_t r = i / units, u = i % units;
        quad q = *(const quad *)(a.in + (int64_t)(a.rows ? a.rows[r] : r) * cols + 8 * u);
        if (FORMAT == KERNEL_MXFP8) few_apart(&q);
        *(quad *)(held + r * line + 8 * u) = q;
    }
    BLOCK_SYNC();
    /* Columns of rows that are not there are not stored. */
    const uint16_t *x = held + (g < a.count ? g : a.count - 1) * line + cols / PROJECT_SLICES * slice + t * fragment<FORMAT>::VALUES;

    int stage = 0, turn = 0;
    for (int32_t base = (int32_t)blockIdx.x; base < tiles; base += jump, index += jump, turn ^= 1) {
        float sum[4] = {0, 0, 0, 0}, *to = sums + turn * SUMS;
        if (index < tiles) {
            for (int step = 0; step < steps; step++) {
                copy_wait<STAGES - 2>();
                WARP_SYNC();
                FEW_COPY(); /* where the step before this one was */
                const uint8_t *from = ring + stage * of::STAGE;
                if (FORMAT == KERNEL_MXFP8 && lane_ballot(few_large<FORMAT>(from, g)))
                    few_multiply<FORMAT, true>(from, x + step * of::K, g, t, sum);
                else
                    few_multiply<FORMAT, false>(from, x + step * of::K, g, t, sum);
                if (++stage == STAGES) stage = 0;
            }
            UNROLL for (int i = 0; i < 4; i++) to[slice * FEW_TILE + few_place(2 * t + i % 2, 8 * (i / 2) + g)] = sum[i];
        }
        BLOCK_SYNC();
        int i = (int)threadIdx.x % PROJECT_BLOCK, r = i / (GLU ? 8 : 16), o = i % (GLU ? 8 : 16);
        if (index >= tiles || r >= a.count) continue;
        int32_t output;
        const project_part *part = few_tile<GLU>(a, index, &output);
        output += o;
        if (output >= part->w.rows) continue;
        float y = few_fold(to, r, o);
        if (GLU) {
            float up = few_fold(to, r, 8 + o);
            a.z[(int64_t)r * part->w.rows + output] = bf16_of_float(swiglu_of(y, up, a.law));
        } else {
            float *out = part->out + r * part->stride + output;
            *out = part->add ? *out + y : y;
        }
    }
#undef FEW_COPY
}

/* The kernels of a format, by teams and stages. Three teams for mxfp8, whose instructions want more warps than two teams are: a
 * step of one row of 20 layers takes 3.38 ms with three and two stages, 3.43 with two and four. */
#define PROJECT_FEW(name, format, teams, stages)                                                                      \
    KERNEL_AHEAD_OF(project_few_##name, project_args, FEW_BOUND(teams), 1)                                            \
    {                                                                                                                 \
        project_few<format, false, teams, stages>(a);                                                                 \
    }                                                                                                                 \
    KERNEL_AHEAD_OF(glu_few_##name, project_args, FEW_BOUND(teams), 1)                                                \
    {                                                                                                                 \
        project_few<format, true, teams, stages>(a);                                                                  \
    }
#define FEW_BOUND(teams) ((teams) == 1 ? 256 : 768) /* 80 registers of 768 threads */

#endif
