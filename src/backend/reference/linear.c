/* Dot products and projections. */
#include "backend/reference/reference.h"

#include <string.h>

/* Four chains side by side; compilers that are left to it transpose the tile instead. */
typedef float quad __attribute__((vector_size(16)));

static quad load_quad(const float *from)
{
    quad q;
    memcpy(&q, from, sizeof q);
    return q;
}

void reference_dot(const float *x, const float *tile, int64_t n, float acc[REFERENCE_TILE])
{
    quad a = load_quad(acc), b = load_quad(acc + 4), c = load_quad(acc + 8), d = load_quad(acc + 12);
    for (int64_t i = 0; i < n; i++, tile += REFERENCE_TILE) {
        a += x[i] * load_quad(tile);
        b += x[i] * load_quad(tile + 4);
        c += x[i] * load_quad(tile + 8);
        d += x[i] * load_quad(tile + 12);
    }
    quad sums[4] = {a, b, c, d};
    memcpy(acc, sums, sizeof sums);
}

void reference_tiles(const float *matrix, int64_t rows, int64_t cols, float *tiles)
{
    for (int64_t r0 = 0; r0 < rows; r0 += REFERENCE_TILE) {
        float *tile = tiles + r0 * cols;
        for (int64_t j = 0; j < REFERENCE_TILE; j++)
            for (int64_t i = 0; i < cols; i++)
                tile[i * REFERENCE_TILE + j] = r0 + j < rows ? matrix[(r0 + j) * cols + i] : 0;
    }
}

/* Slice i covers the groups of 32 inputs from floor(iG/8) to floor((i+1)G/8); narrow matrices have empty slices. */
void reference_slice(int64_t cols, int i, int64_t *begin, int64_t *end)
{
    int64_t groups = (cols + 31) / 32;
    *begin = i * groups / 8 * 32;
    *end = (i + 1) * groups / 8 * 32;
    if (*end > cols) *end = cols;
}

size_t reference_linear_scratch(const ops_backend *backend)
{
    return (REFERENCE_TILE + 1) * backend->max_width;
}

typedef struct linear_work {
    const ops_step *step;
    const weight *w;
    const float *in; /* [count, cols] */
    int32_t count;
    bool sliced;
    float *out; /* [count, rows] */
} linear_work;

/* Eight partial sums, added pairwise: ((0+1)+(2+3))+((4+5)+(6+7)), so that ranks that own runs of slices agree. */
static void dot_sliced(const float *x, const float *tile, int64_t cols, float acc[REFERENCE_TILE])
{
    float part[8][REFERENCE_TILE] = {{0}};
    for (int i = 0; i < 8; i++) {
        int64_t begin, end;
        reference_slice(cols, i, &begin, &end);
        reference_dot(x + begin, tile + begin * REFERENCE_TILE, end - begin, part[i]);
    }
    for (int step = 1; step < 8; step *= 2)
        for (int i = 0; i < 8; i += 2 * step)
            for (int j = 0; j < REFERENCE_TILE; j++) part[i][j] += part[i + step][j];
    memcpy(acc, part[0], sizeof part[0]);
}

/* An item is a tile of outputs: its weight rows are decoded once and meet every input row. */
static void linear_tiles(void *arg, int64_t first, int64_t last, int worker)
{
    const linear_work *work = arg;
    const weight *w = work->w;
    float *tile = reference_scratch(work->step, worker); /* [cols, 16] */
    float *row = tile + REFERENCE_TILE * w->cols;        /* [cols] */
    for (int64_t item = first; item < last; item++) {
        int64_t n0 = item * REFERENCE_TILE, width = w->rows - n0 < REFERENCE_TILE ? w->rows - n0 : REFERENCE_TILE;
        if (width < REFERENCE_TILE) memset(tile, 0, (size_t)(REFERENCE_TILE * w->cols) * sizeof *tile);
        for (int64_t j = 0; j < width; j++) {
            weight_row(w, n0 + j, row);
            for (int64_t i = 0; i < w->cols; i++) tile[i * REFERENCE_TILE + j] = row[i];
        }
        for (int64_t t = 0; t < work->count; t++) {
            float acc[REFERENCE_TILE] = {0};
            const float *x = work->in + t * w->cols;
            if (work->sliced)
                dot_sliced(x, tile, w->cols, acc);
            else
                reference_dot(x, tile, w->cols, acc);
            memcpy(work->out + t * w->rows + n0, acc, (size_t)width * sizeof *acc);
        }
    }
}

static void linear(const ops_step *step, const weight *w, const float *in, int32_t count, bool sliced, float *out)
{
    linear_work work = {step, w, in, count, sliced, out};
    if (count) reference_parallel(step, (w->rows + REFERENCE_TILE - 1) / REFERENCE_TILE, linear_tiles, &work);
}

void reference_linear(const ops_step *step, const weight *w, const float *in, int32_t count, float *out)
{
    linear(step, w, in, count, false, out);
}

void reference_linear_sliced(const ops_step *step, const weight *w, const float *in, int32_t count, float *out)
{
    linear(step, w, in, count, true, out);
}
