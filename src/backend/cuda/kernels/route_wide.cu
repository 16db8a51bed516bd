/*
 * The router's logits of so many rows that a block has a tile of 32 of them and 32 outputs: the sums of project_f32.cu.
 *
 *     order   eight slices of K; of a slice, lane l adds elements 4l .. 4l + 3, then those 128 further on, and so forth in one
 *             chain; lanes fold as a tree, then slices. Products are rounded before they are added
 *     block   persistent, 8 warps, each 8 rows and 16 outputs: 128 chains a lane. All have the same slice, one after the other
 *     memory  a ring of three steps of 128 inputs, 24 KB each, which goes on into the next slice and tile while lanes fold.
 *             They fold by way of shared memory, a lane's chains a line: a lane then adds those of two outputs of all
 *     bytes   of a tile 128 * cols and 64 * cols: 0.6 GB from the second-level cache at 4,096 rows of 6,144 and 128 outputs,
 *             where tiles of 16 and 8 (route_many.cu) take 1.6
 *     bound   the multipliers: two instructions a product, 201 million of a warp, 0.21 ms. Of a step's instructions of a warp
 *             1,024 are these, and some 190 load, widen rows, ask for the next step and fold
 */
#include "backend/cuda/kernels/fragment.cuh"
#include "backend/cuda/kernels/route.h"

enum {
    TILE = ROUTE_WIDE,
    ROWS = ROUTE_WIDE_ROWS,
    OUTPUTS = ROUTE_WIDE_OUTPUTS,
    SUMS = ROWS * OUTPUTS,
    ACROSS = TILE / OUTPUTS, /* warps side by side along outputs */
    WARPS = PROJECT_BLOCK / CUDA_WARP,
    STAGES = ROUTE_WIDE_STAGES,
    STEP = 4 * CUDA_WARP,
    WEIGHT_LINE = STEP * 4,
    ROW_LINE = STEP * 2,
    ROWS_AT = TILE * WEIGHT_LINE,
    STAGE = ROWS_AT + TILE * ROW_LINE,
    HALF = SUMS / 2,
    FOLD_LINE = HALF * 4 + 16, /* eight lanes that write 16 bytes of their own lines meet every bank once */
};
static_assert(ROUTE_WIDE_SHARED == STAGES * STAGE + WARPS * CUDA_WARP * FOLD_LINE, "shared memory");
static_assert(WARPS == ACROSS * (TILE / ROWS), "a tile is the warps'");

/* What a thread asks for next: elements `k`, and k_row of two rows, of the slice that ends at `end`. */
struct route_asked {
    int32_t tile, slice, k, end;
    const float *weights;    /* of this warp's first output, from its lane's elements of a slice on */
    const uint16_t *rows[2]; /* NULL: no such row */
};
enum { ASKED_OUTPUTS = TILE / WARPS, ASKED_ROWS = TILE / (2 * WARPS) };
static_assert(ASKED_ROWS == 2, "rows of a thread");

DEVICE void route_tile(const route_many_args &a, int32_t tile, route_asked &to)
{
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int32_t blocks = a.experts / TILE, output0 = tile % blocks * TILE, row0 = tile / blocks * TILE;
    to.tile = tile, to.slice = 0;
    slice_of(a.cols, 0, &to.k, &to.end);
    to.weights = a.router + (int64_t)(output0 + warp) * a.cols + 4 * lane;
    UNROLL for (int i = 0; i < ASKED_ROWS; i++)
    {
        int32_t row = row0 + (i * WARPS + warp) * 2 + lane / 16;
        to.rows[i] = row < a.count ? a.in + (int64_t)row * a.cols + lane % 16 * 8 : NULL;
    }
}

/* Asks for a step and goes on to the next; behind the last tile nothing comes. */
DEVICE void route_ask(const route_many_args &a, route_asked &s, int32_t tiles, unsigned char *stage)
{
    if (s.tile >= tiles) return;
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    bool there = s.k + 4 * lane < s.end, row_there = s.k + lane % 16 * 8 < s.end;
    const float *w = there ? s.weights + s.k : a.router;
    UNROLL for (int i = 0; i < ASKED_OUTPUTS; i++)
        copy_async(stage + (i * WARPS + warp) * WEIGHT_LINE + lane * 16, w + (int64_t)i * WARPS * a.cols, there);
    UNROLL for (int i = 0; i < ASKED_ROWS; i++)
    {
        bool come = row_there && s.rows[i];
        copy_async(stage + ROWS_AT + (i * WARPS + warp) * 2 * ROW_LINE + lane * 16, come ? s.rows[i] + s.k : a.in, come);
    }
    s.k += STEP;
    if (s.k < s.end) return;
    if (++s.slice < PROJECT_SLICES)
        slice_of(a.cols, s.slice, &s.k, &s.end);
    else
        route_tile(a, s.tile + (int32_t)gridDim.x, s);
}

/* Four inputs of this lane: all products of its rows and outputs, inputs ascending. */
DEVICE void route_step(const unsigned char *weights, const unsigned char *rows, float (&sum)[SUMS])
{
    float v[ROWS][4];
    UNROLL for (int r = 0; r < ROWS; r++)
    {
        uint64_t in = *(const uint64_t *)(rows + r * ROW_LINE);
        UNROLL for (int i = 0; i < 4; i++) v[r][i] = float_of_bf16((uint32_t)(in >> 16 * i) & 0xFFFF);
    }
    UNROLL for (int m = 0; m < OUTPUTS; m++)
    {
        quad value = *(const quad *)(weights + m * WEIGHT_LINE);
        UNROLL for (int i = 0; i < 4; i++)
            UNROLL for (int r = 0; r < ROWS; r++) sum[r * OUTPUTS + m] += bits_float(value.w[i]) * v[r][i];
    }
}

/* Of sums h * HALF + 2 * lane and the next one, of half h, all lanes', in the order of project_f32.cu. */
DEVICE void route_fold(const float (&sum)[SUMS], unsigned char *lines, float (&y)[4])
{
    int lane = (int)threadIdx.x % CUDA_WARP;
    UNROLL for (int h = 0; h < 2; h++)
    {
        WARP_SYNC(); /* the lines have been read */
        UNROLL for (int i = 0; i < HALF / 4; i++)
        {
            quad q;
            UNROLL for (int c = 0; c < 4; c++) q.w[c] = float_bits(sum[h * HALF + 4 * i + c]);
            *(quad *)(lines + lane * FOLD_LINE + i * 16) = q;
        }
        WARP_SYNC();
        float part[2][CUDA_WARP];
        UNROLL for (int l = 0; l < CUDA_WARP; l++)
        {
            uint64_t pair = *(const uint64_t *)(lines + l * FOLD_LINE + lane * 8);
            part[0][l] = bits_float((uint32_t)pair), part[1][l] = bits_float((uint32_t)(pair >> 32));
        }
        UNROLL for (int left = CUDA_WARP / 2; left; left /= 2)
            UNROLL for (int l = 0; l < CUDA_WARP / 2; l++)
                if (l < left)
                    UNROLL for (int c = 0; c < 2; c++) part[c][l] += part[c][l + left];
        UNROLL for (int c = 0; c < 2; c++) y[2 * h + c] = part[c][0];
    }
}

KERNEL_OF(route_wide, route_many_args, PROJECT_BLOCK, 1)
{
    int lane = (int)threadIdx.x % CUDA_WARP, warp = (int)threadIdx.x / CUDA_WARP;
    int row_of_warp = warp / ACROSS * ROWS, output_of_warp = warp % ACROSS * OUTPUTS;
    unsigned char *ring = DYNAMIC(unsigned char), *lines = ring + STAGES * STAGE + warp * CUDA_WARP * FOLD_LINE;
    int32_t blocks = a.experts / TILE, tiles = blocks * ((a.count + TILE - 1) / TILE);
    route_asked asked;
    route_tile(a, (int32_t)blockIdx.x, asked);
    for (int i = 0; i < STAGES - 1; i++) {
        route_ask(a, asked, tiles, ring + i * STAGE);
        copy_commit();
    }
    int stage = 0;
    float kept[3][4]; /* sums of one slice, of two, of four that wait for as many more */
    for (int32_t tile = (int32_t)blockIdx.x; tile < tiles; tile += (int32_t)gridDim.x)
        for (int slice = 0; slice < PROJECT_SLICES; slice++) {
            int32_t k, end;
            float sum[SUMS], y[4];
            UNROLL for (int i = 0; i < SUMS; i++) sum[i] = 0;
            slice_of(a.cols, slice, &k, &end);
            do { /* an empty slice has a step of zeros */
                copy_wait<STAGES - 2>();
                BLOCK_SYNC(); /* the step is there for all, and all are done with the one before */
                route_ask(a, asked, tiles, ring + (stage ? stage - 1 : STAGES - 1) * STAGE);
                copy_commit();
                route_step(ring + stage * STAGE + output_of_warp * WEIGHT_LINE + lane * 16,
                           ring + stage * STAGE + ROWS_AT + row_of_warp * ROW_LINE + lane * 8, sum);
                stage = stage < STAGES - 1 ? stage + 1 : 0;
            } while ((k += STEP) < end);
            route_fold(sum, lines, y);
            /* ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), each sum as soon as both are there. */
            bool whole = true;
            UNROLL for (int level = 0; level < 3; level++)
                if (whole) {
                    whole = slice >> level & 1;
                    UNROLL for (int i = 0; i < 4; i++)
                        if (whole)
                            y[i] = kept[level][i] + y[i];
                        else
                            kept[level][i] = y[i];
                }
            if (!whole) continue;
            UNROLL for (int h = 0; h < 2; h++)
            {
                int sum0 = h * HALF + 2 * lane; /* an even output and the next one */
                int32_t row = tile / blocks * TILE + row_of_warp + sum0 / OUTPUTS;
                int32_t output = tile % blocks * TILE + output_of_warp + sum0 % OUTPUTS;
                if (row < a.count)
                    *(uint64_t *)(a.scores + (int64_t)row * a.experts + output) =
                        (uint64_t)float_bits(y[2 * h + 1]) << 32 | float_bits(y[2 * h]);
            }
        }
    copy_wait<0>();
}
