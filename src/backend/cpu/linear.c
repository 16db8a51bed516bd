#include "backend/cpu/linear.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "number/fp16.h"
#include "number/mxfp8.h"
#include "number/nvfp4.h"

/* Bytes of a panel that are asked for ahead: two of the largest units, so that scales come with their codes. */
enum { PREFETCH = 2 * MXFP8_UNIT_LINES * LINE };

/* Bytes of a file, divided by PACK_ROWS, that are packed before their pages are let go: large maps and their packed
 * copies are never in memory together. */
enum { PACK_SLICE = 4 << 20 };

/* ---- Packing --------------------------------------------------------------------------------------------------- */

static size_t panel_size(weight_format format, int64_t cols)
{
    size_t k = (size_t)cols;
    switch (format) {
    case WEIGHT_F32: return k * LINE;
    case WEIGHT_BF16: return (k + 1) / 2 * LINE;
    case WEIGHT_MXFP8: return (k + MXFP8_UNIT - 1) / MXFP8_UNIT * MXFP8_UNIT_LINES * LINE;
    case WEIGHT_NVFP4: return (k + NVFP4_UNIT - 1) / NVFP4_UNIT * NVFP4_UNIT_LINES * LINE;
    default: return 0;
    }
}

/* 32 bits into lane n of a line; the bytes that a row does not have are zeros. */
static void put(uint8_t *line, int n, const uint8_t *from, size_t bytes)
{
    memcpy(line + 4 * n, from, bytes < 4 ? bytes : 4);
}

/* The codes of a row into units of `lines` lines, the last of which takes the scales of the unit, four a lane. */
static void pack_units(const uint8_t *codes, size_t code_bytes, const uint8_t *scales, size_t scale_count, int lines,
                       int n, uint8_t *panel)
{
    size_t lane = 4 * (size_t)(lines - 1); /* code bytes of a lane in a unit */
    for (size_t at = 0; at < code_bytes; at += 4)
        put(panel + (at / lane * (size_t)lines + at % lane / 4) * LINE, n, codes + at, code_bytes - at);
    for (size_t at = 0; at < scale_count; at += 4)
        put(panel + (at / 4 * (size_t)lines + (size_t)lines - 1) * LINE, n, scales + at, scale_count - at);
}

/* One row of the weight into lane n of a zeroed panel. */
static void pack_row(const weight *w, int64_t row, weight_format format, int n, uint8_t *panel)
{
    size_t cols = (size_t)w->cols, r = (size_t)row;
    const uint8_t *data = w->data;
    switch (format) {
    case WEIGHT_F32:
        for (size_t k = 0; k < cols; k++) {
            float x;
            if (w->format == WEIGHT_F16) {
                uint16_t half;
                memcpy(&half, data + (r * cols + k) * 2, sizeof half);
                x = fp16_to_float(half);
            } else {
                memcpy(&x, data + (r * cols + k) * 4, sizeof x);
            }
            memcpy(panel + k * LINE + 4 * (size_t)n, &x, sizeof x);
        }
        break;
    case WEIGHT_BF16:
        for (size_t at = 0; at < cols * 2; at += 4)
            put(panel + at / 4 * LINE, n, data + r * cols * 2 + at, cols * 2 - at);
        break;
    case WEIGHT_MXFP8:
        pack_units(data + r * cols, cols, w->scales + r * (cols / MXFP8_BLOCK), cols / MXFP8_BLOCK, MXFP8_UNIT_LINES, n,
                   panel);
        break;
    default: /* WEIGHT_NVFP4 */
        pack_units(data + r * (cols / 2), cols / 2, w->scales + r * (cols / NVFP4_GROUP), cols / NVFP4_GROUP,
                   NVFP4_UNIT_LINES, n, panel);
        break;
    }
}

void cpu_linear_pack_rows(const weight *part, int64_t first, cpu_linear *l)
{
    assert(first % PACK_ROWS == 0 && first + part->rows <= l->rows);
    for (int64_t row = 0; row < part->rows; row += LANES) {
        uint8_t *panel = l->data + (size_t)((first + row) / LANES) * l->panel_bytes;
        int64_t rows = part->rows - row < LANES ? part->rows - row : LANES;
        memset(panel, 0, l->panel_bytes);
        for (int64_t n = 0; n < rows; n++) pack_row(part, row + n, l->format, (int)n, panel);
    }
}

hy_status cpu_linear_shape(const weight *w, const char *what, cpu_linear *linear, hy_error *err)
{
    *linear = (cpu_linear){0};
    if (w->format == WEIGHT_NONE) return HY_OK;
    int group = w->format == WEIGHT_MXFP8 ? MXFP8_BLOCK : w->format == WEIGHT_NVFP4 ? NVFP4_GROUP : 1;
    if (w->cols % group != 0)
        return error_at(err, HY_UNSUPPORTED, what, "the cpu backend needs %s columns in multiples of %d, not %lld",
                        weight_format_name(w->format), group, (long long)w->cols);
    *linear = (cpu_linear){
        .format = w->format == WEIGHT_F16 ? WEIGHT_F32 : w->format,
        .rows = w->rows,
        .cols = w->cols,
        .panels = (w->rows + LANES - 1) / LANES,
        .factor = w->format == WEIGHT_NVFP4 ? w->global : 1,
        .divides = w->format == WEIGHT_NVFP4 && w->divides,
    };
    linear->panel_bytes = panel_size(linear->format, linear->cols);
    return HY_OK;
}

size_t cpu_linear_bytes(const cpu_linear *linear)
{
    return (size_t)linear->panels * linear->panel_bytes;
}

typedef struct pack_work {
    const weight *w;
    int64_t first; /* row of the whole weight where `w` begins */
    cpu_linear *linear;
} pack_work;

static void pack_items(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const pack_work *work = arg;
    int64_t first = begin * PACK_ROWS, rows = end * PACK_ROWS;
    if (rows > work->w->rows) rows = work->w->rows;
    weight part = weight_rows(work->w, first, rows - first);
    cpu_linear_pack_rows(&part, work->first + first, work->linear);
}

hy_status cpu_linear_pack(const weight *w, const char *what, threads *pool, const weight_file *files, size_t file_count,
                          cpu_linear *linear, hy_error *err)
{
    cpu_linear l;
    hy_status status = cpu_linear_shape(w, what, &l, err);
    *linear = (cpu_linear){0};
    if (status != HY_OK || w->format == WEIGHT_NONE) return status;
    l.data = memory_alloc((size_t)l.panels, l.panel_bytes);
    if (!l.data) return error_memory(err, what, (size_t)l.panels * l.panel_bytes);
    memory_prefer_huge(l.data, cpu_linear_bytes(&l));
    uint64_t at;
    bool mapped = weight_file_find(files, file_count, w->data, &at) != NULL;
    size_t row_bytes = weight_row_data(w) + weight_row_scales(w);
    int64_t slice = (int64_t)(PACK_SLICE / (row_bytes + 1) + 1) * PACK_ROWS;
    for (int64_t first = 0; first < w->rows; first += slice) {
        weight part = weight_rows(w, first, w->rows - first < slice ? w->rows - first : slice);
        pack_work work = {&part, first, &l};
        threads_run(pool, (part.rows + PACK_ROWS - 1) / PACK_ROWS, 4, pack_items, &work);
        if (!mapped) continue;
        file_map_drop(part.data, (size_t)part.rows * weight_row_data(&part));
        file_map_drop(part.scales, (size_t)part.rows * weight_row_scales(&part));
    }
    *linear = l;
    return HY_OK;
}

void cpu_linear_free(cpu_linear *linear)
{
    memory_free(linear->data);
    *linear = (cpu_linear){0};
}

/* ---- Products -------------------------------------------------------------------------------------------------- */

/* Columns [begin, end) of a panel; begin is a multiple of 32. */
static void decode(const cpu_kernels *kernels, const cpu_panel *p, int64_t begin, int64_t end, float *out)
{
    const uint8_t *data = p->w->data + (size_t)p->panel * p->w->panel_bytes;
    switch (p->w->format) {
    case WEIGHT_BF16: kernels->decode_bf16(data, begin, end, out); break;
    case WEIGHT_MXFP8: kernels->decode_mxfp8(data, begin, end, out); break;
    case WEIGHT_NVFP4: kernels->decode_nvfp4(data, begin, end, out); break;
    default: memcpy(out, data + (size_t)begin * LINE, (size_t)(end - begin) * LINE); break;
    }
}

/*
 * Asks for bytes of a panel as far ahead as they will be needed, as many as columns [begin, end) take. Decoding a line
 * takes so many instructions that the processor by itself has too few reads under way to fill the memory's bandwidth.
 */
static void prefetch(const cpu_panel *p, int64_t begin, int64_t end)
{
    const uint8_t *panel = p->w->data + (size_t)p->panel * p->w->panel_bytes;
    size_t from = panel_size(p->w->format, begin) + PREFETCH, to = panel_size(p->w->format, end) + PREFETCH;
    for (size_t at = from; at < to && at < p->w->panel_bytes; at += LINE) __builtin_prefetch(panel + at);
}

/* sums [rows][panels][16] += the products over columns [begin, end). */
static void multiply_slice(const cpu_kernels *kernels, const cpu_product *work, const cpu_panel *panel, int panels,
                           const float *const *x, int rows, int64_t begin, int64_t end, float *sums)
{
    for (int64_t k = begin; k < end; k += K_CHUNK) {
        int64_t stop = end - k < K_CHUNK ? end : k + K_CHUNK;
        const float *chunk[TILE_ROWS];
        for (int r = 0; r < rows; r++) chunk[r] = x[r] + k;
        for (int p = 0; p < panels; p++) prefetch(&panel[p], k, stop);
        for (int p = 0; p < panels; p++) decode(kernels, &panel[p], k, stop, work->decoded + p * K_CHUNK * LANES);
        kernels->product(chunk, rows, work->decoded, K_CHUNK * LANES, panels, (int)(stop - k), sums);
    }
}

/* The outer factors of NVFP4. */
static void apply_factor(const cpu_panel *panel, int panels, int rows, float *sums)
{
    for (int p = 0; p < panels; p++) {
        const cpu_linear *w = panel[p].w;
        if (w->format != WEIGHT_NVFP4) continue;
        for (int r = 0; r < rows; r++) {
            float *y = sums + (r * panels + p) * LANES;
            for (int n = 0; n < LANES; n++) y[n] = w->divides ? y[n] / w->factor : y[n] * w->factor;
        }
    }
}

const float *cpu_multiply(const cpu_kernels *kernels, const cpu_product *work, const cpu_panel *panel, int panels,
                          const float *const *x, int rows, bool sliced)
{
    int64_t cols = panel->w->cols, groups = (cols + 31) / 32;
    size_t count = (size_t)(rows * panels) * LANES; /* floats of one slice */
    int slices = sliced ? K_SLICES : 1;
    memset(work->sums, 0, (size_t)slices * count * sizeof(float));
    for (int i = 0; i < slices; i++) {
        int64_t begin = i * groups / slices * 32, end = (i + 1) * groups / slices * 32;
        multiply_slice(kernels, work, panel, panels, x, rows, begin, end < cols ? end : cols,
                       work->sums + (size_t)i * count);
    }
    for (int width = 1; width < slices; width *= 2)
        for (int i = 0; i < slices; i += 2 * width) {
            float *a = work->sums + (size_t)i * count;
            const float *b = work->sums + (size_t)(i + width) * count;
            for (size_t j = 0; j < count; j++) a[j] += b[j];
        }
    apply_factor(panel, panels, rows, work->sums);
    return work->sums;
}
