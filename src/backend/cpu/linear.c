#include "backend/cpu/linear.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "number/fp16.h"
#include "number/mxfp8.h"
#include "number/nvfp4.h"

/* Bytes of a file, divided by PACK_ROWS, that are packed before their pages are let go: large maps and their packed
 * copies are never in memory together. */
enum { PACK_SLICE = 1 << 20 };

/* ---- Packing --------------------------------------------------------------------------------------------------- */

static size_t packed_group_bytes(weight_format format, int64_t cols)
{
    size_t k = (size_t)cols;
    switch (format) {
    case WEIGHT_F32: return k * 2 * LINE;
    case WEIGHT_BF16: return (k + 1) / 2 * 2 * LINE;
    case WEIGHT_MXFP8: return (k + MXFP8_UNIT - 1) / MXFP8_UNIT * 2 * MXFP8_UNIT_LINES * LINE;
    case WEIGHT_NVFP4: return (k + NVFP4_UNIT - 1) / NVFP4_UNIT * 2 * NVFP4_UNIT_LINES * LINE;
    default: return 0;
    }
}

/* Bytes of sixteen rows; a missing row is NULL. */
typedef struct lanes16 {
    const uint8_t *row[LANES];
    size_t bytes; /* of a row */
} lanes16;

/* Four bytes of row n from `at` on; what a row does not have is zero. */
static uint32_t word_of(const lanes16 *from, int n, size_t at)
{
    uint32_t word = 0;
    if (!from->row[n] || at >= from->bytes) return 0;
    if (at + 4 <= from->bytes)
        memcpy(&word, from->row[n] + at, 4);
    else
        memcpy(&word, from->row[n] + at, from->bytes - at);
    return word;
}

static void put_line(uint8_t *line, const lanes16 *from, size_t at)
{
    uint32_t word[LANES];
    for (int n = 0; n < LANES; n++) word[n] = word_of(from, n, at);
    memcpy(line, word, LINE);
}

/* A line of bf16 or fp32 values. False: one of them is NaN or infinite. */
static bool put_plain(uint8_t *line, const lanes16 *from, size_t at, weight_format format)
{
    /* An exponent of ones alone, and one more, carries into the sign, which was masked. */
    uint32_t exponents = format == WEIGHT_BF16 ? 0x7F807F80 : 0x7F800000, ones = exponents & 0x00800080;
    uint32_t word[LANES], carried = 0;
    put_line(line, from, at);
    memcpy(word, line, sizeof word);
    for (int n = 0; n < LANES; n++) carried |= (word[n] & exponents) + ones;
    return !(carried & 0x80008000 & ~exponents);
}

/* Eight lines: 32 bytes of every row. */
static void put_lines8(uint8_t *line, const lanes16 *from, size_t at)
{
    uint32_t word[LANES][8], column[8][LANES];
    bool whole = at + sizeof word[0] <= from->bytes;
    for (int n = 0; n < LANES && whole; n++) whole = from->row[n] != NULL;
    if (!whole) {
        for (size_t j = 0; j < 8; j++) put_line(line + j * LINE, from, at + 4 * j);
        return;
    }
    for (int n = 0; n < LANES; n++) memcpy(word[n], from->row[n] + at, sizeof word[n]);
    for (int j = 0; j < 8; j++)
        for (int n = 0; n < LANES; n++) column[j][n] = word[n][j];
    memcpy(line, column, sizeof column);
}

/* E4M3 codes: two bytes of all rows, then the next two. False: one of them is NaN. */
static bool put_pairs(uint8_t *line, const lanes16 *from, size_t at)
{
    uint16_t pair[2 * LANES];
    uint32_t nan = 0;
    for (int n = 0; n < LANES; n++) {
        uint32_t word = word_of(from, n, at);
        pair[n] = (uint16_t)word, pair[LANES + n] = (uint16_t)(word >> 16);
        nan |= (word & 0x7F7F7F7F) + 0x01010101;
    }
    memcpy(line, pair, LINE);
    return !(nan & 0x80808080);
}

/* An E4M3 scale with five exponent bits, so that subnormals are like other numbers. */
static uint8_t wide_scale(uint8_t e4m3)
{
    static const uint8_t subnormal[8] = {0, 8, 16, 20, 24, 26, 28, 30};
    return e4m3 < 8 ? subnormal[e4m3] : (uint8_t)(e4m3 + 24);
}

/* Four scales a lane. False: one of them is not allowed. */
static bool put_scales(uint8_t *line, const lanes16 *from, size_t at, weight_format format)
{
    bool good = true;
    put_line(line, from, at);
    uint8_t least = 0xFF, most = 0;
    for (int i = 0; i < LINE; i++) least = line[i] < least ? line[i] : least, most = line[i] > most ? line[i] : most;
    if (format == WEIGHT_NVFP4 && least >= 8 && most < 0x7F) { /* nearly always */
        for (int i = 0; i < LINE; i++) line[i] = (uint8_t)(line[i] + 24);
        return true;
    }
    for (int i = 0; i < LINE; i++) {
        if (format == WEIGHT_NVFP4) {
            if (line[i] == 0x80) line[i] = 0;
            good &= line[i] < 0x7F;
            line[i] = wide_scale(line[i] & 0x7F);
        } else {
            good &= line[i] <= 246;
        }
    }
    return good;
}

/* False: a value is NaN or infinite. */
static bool put_f16(uint8_t *panel, const lanes16 *from, size_t cols)
{
    bool good = true;
    for (size_t k = 0; k < cols; k++)
        for (int n = 0; n < LANES; n++) {
            uint16_t half = 0;
            if (from->row[n]) memcpy(&half, from->row[n] + 2 * k, 2);
            float x = fp16_to_float(half);
            good &= (half & 0x7C00) != 0x7C00;
            memcpy(panel + k * 2 * LINE + 4 * (size_t)n, &x, sizeof x);
        }
    return good;
}

/* Sixteen rows into a panel, the first of whose lines is given. */
static bool pack_panel(const weight *w, const lanes16 *data, const lanes16 *scales, uint8_t *panel)
{
    bool good = true;
    size_t unit_lines = w->format == WEIGHT_MXFP8 ? MXFP8_UNIT_LINES : NVFP4_UNIT_LINES, codes = unit_lines - 1;
    switch (w->format) {
    case WEIGHT_F16: good = put_f16(panel, data, (size_t)w->cols); break;
    case WEIGHT_F32:
    case WEIGHT_BF16:
        for (size_t at = 0; at < data->bytes; at += 4, panel += 2 * LINE) good &= put_plain(panel, data, at, w->format);
        break;
    default:
        for (size_t unit = 0; unit * codes * 4 < data->bytes; unit++, panel += 2 * unit_lines * LINE) {
            if (w->format == WEIGHT_NVFP4) put_lines8(panel, data, unit * codes * 4);
            for (size_t j = 0; j < codes && w->format == WEIGHT_MXFP8; j++)
                good &= put_pairs(panel + j * LINE, data, (unit * codes + j) * 4);
            good &= put_scales(panel + codes * LINE, scales, unit * 4, w->format);
        }
        break;
    }
    return good;
}

bool cpu_linear_pack_rows(const weight *part, int64_t first, cpu_linear *l)
{
    assert(first % PACK_ROWS == 0 && first + part->rows <= l->rows);
    bool good = true;
    size_t unit = LINE; /* from one panel to the other */
    if (l->format == WEIGHT_MXFP8) unit = MXFP8_UNIT_LINES * LINE;
    if (l->format == WEIGHT_NVFP4) unit = NVFP4_UNIT_LINES * LINE;
    lanes16 data = {.bytes = weight_row_data(part)}, scales = {.bytes = weight_row_scales(part)};
    for (int64_t panel = 0; panel < (part->rows + GROUP - 1) / GROUP * 2; panel++) {
        for (int n = 0; n < LANES; n++) {
            int64_t row = panel * LANES + n;
            bool there = row < part->rows;
            data.row[n] = there ? (const uint8_t *)part->data + (size_t)row * data.bytes : NULL;
            scales.row[n] = there && part->scales ? part->scales + (size_t)row * scales.bytes : NULL;
        }
        uint8_t *group = l->data + (size_t)(first / GROUP + panel / 2) * l->stride;
        good &= pack_panel(part, &data, &scales, group + (size_t)(panel % 2) * unit);
    }
    return good;
}

hy_status cpu_linear_shape(const weight *w, const char *what, cpu_linear *linear, hy_error *err)
{
    *linear = (cpu_linear){0};
    if (w->format == WEIGHT_NONE) return HY_OK;
    int block = w->format == WEIGHT_MXFP8 ? MXFP8_BLOCK : w->format == WEIGHT_NVFP4 ? NVFP4_GROUP : 1;
    if (w->cols % block != 0)
        return error_at(err, HY_UNSUPPORTED, what, "the cpu backend needs %s columns in multiples of %d, not %lld",
                        weight_format_name(w->format), block, (long long)w->cols);
    *linear = (cpu_linear){
        .format = w->format == WEIGHT_F16 ? WEIGHT_F32 : w->format,
        .rows = w->rows,
        .cols = w->cols,
        .groups = (w->rows + GROUP - 1) / GROUP,
        .factor = w->format == WEIGHT_NVFP4 ? w->global : 1,
        .divides = w->format == WEIGHT_NVFP4 && w->divides,
    };
    linear->stride = linear->group_bytes = packed_group_bytes(linear->format, linear->cols);
    return HY_OK;
}

size_t cpu_linear_bytes(const cpu_linear *linear)
{
    return (size_t)linear->groups * linear->group_bytes;
}

/* Memory that a product walks through as a whole, on large pages from its first byte on if it fills any. */
static uint8_t *packed_memory(size_t bytes)
{
    enum { HUGE = 2 << 20 };
    if (bytes < HUGE) return memory_alloc(bytes, 1);
    uint8_t *data = aligned_alloc(HUGE, (bytes + LINE - 1) / LINE * LINE);
    if (data) memory_prefer_huge(data, bytes);
    return data;
}

typedef struct pack_work {
    const weight *w;
    int64_t first; /* row of the whole weight where `w` begins */
    cpu_linear *linear;
    atomic_bool bad;
} pack_work;

static void pack_items(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    pack_work *work = arg;
    int64_t first = begin * PACK_ROWS, rows = end * PACK_ROWS;
    if (rows > work->w->rows) rows = work->w->rows;
    weight part = weight_rows(work->w, first, rows - first);
    if (!cpu_linear_pack_rows(&part, work->first + first, work->linear))
        atomic_store_explicit(&work->bad, true, memory_order_relaxed);
}

/* All rows into l->data. */
static hy_status pack_rows(const weight *w, const char *what, threads *pool, const weight_file *files,
                           size_t file_count, cpu_linear *l, hy_error *err)
{
    uint64_t at;
    bool mapped = weight_file_find(files, file_count, w->data, &at) != NULL;
    size_t row_bytes = weight_row_data(w) + weight_row_scales(w);
    int64_t slice = (int64_t)(PACK_SLICE / (row_bytes + 1) + 1) * PACK_ROWS;
    for (int64_t first = 0; first < w->rows; first += slice) {
        weight part = weight_rows(w, first, w->rows - first < slice ? w->rows - first : slice);
        pack_work work = {&part, first, l, false};
        threads_run(pool, (part.rows + PACK_ROWS - 1) / PACK_ROWS, 2, pack_items, &work);
        if (work.bad)
            return error_at(err, HY_BAD_MODEL, what, "%.160s: its %s weights hold %s", what,
                            weight_format_name(w->format), weight_fault(w->format));
        if (!mapped) continue;
        file_map_drop(part.data, (size_t)part.rows * weight_row_data(&part));
        file_map_drop(part.scales, (size_t)part.rows * weight_row_scales(&part));
    }
    return HY_OK;
}

hy_status cpu_linear_pack(const weight *w, const char *what, threads *pool, const weight_file *files, size_t file_count,
                          cpu_linear *linear, hy_error *err)
{
    hy_status status = cpu_linear_shape(w, what, linear, err);
    if (status != HY_OK || w->format == WEIGHT_NONE) return status;
    linear->data = packed_memory(cpu_linear_bytes(linear));
    if (!linear->data) return error_memory(err, what, cpu_linear_bytes(linear));
    status = pack_rows(w, what, pool, files, file_count, linear, err);
    if (status != HY_OK) cpu_linear_free(linear);
    return status;
}

hy_status cpu_linear_pack_pair(const weight *const w[2], const char *const names[2], threads *pool,
                               const weight_file *files, size_t file_count, cpu_linear *const linear[2], hy_error *err)
{
    hy_status status = cpu_linear_shape(w[0], names[0], linear[0], err);
    if (status == HY_OK) status = cpu_linear_shape(w[1], names[1], linear[1], err);
    if (status != HY_OK) return status;
    size_t bytes = cpu_linear_bytes(linear[0]), group = linear[0]->group_bytes;
    if (w[0]->format == WEIGHT_NONE || bytes != cpu_linear_bytes(linear[1]) || group != linear[1]->group_bytes) {
        status = cpu_linear_pack(w[0], names[0], pool, files, file_count, linear[0], err);
        if (status == HY_OK) status = cpu_linear_pack(w[1], names[1], pool, files, file_count, linear[1], err);
        return status;
    }
    linear[0]->data = packed_memory(2 * bytes);
    if (!linear[0]->data) return error_memory(err, names[0], 2 * bytes);
    linear[1]->data = linear[0]->data + group, linear[1]->shares = true;
    for (int i = 0; i < 2; i++) linear[i]->stride = 2 * group;
    for (int i = 0; i < 2 && status == HY_OK; i++)
        status = pack_rows(w[i], names[i], pool, files, file_count, linear[i], err);
    if (status != HY_OK) cpu_linear_free(linear[1]), cpu_linear_free(linear[0]);
    return status;
}

void cpu_linear_free(cpu_linear *linear)
{
    if (!linear->shares) memory_free(linear->data);
    *linear = (cpu_linear){0};
}

/* ---- Products -------------------------------------------------------------------------------------------------- */

static const uint8_t *group_data(const cpu_group *g)
{
    return g->w->data + (size_t)g->group * g->w->stride;
}

static cpu_few few_function(const cpu_products *p, weight_format format)
{
    switch (format) {
    case WEIGHT_BF16: return p->few_bf16;
    case WEIGHT_MXFP8: return p->few_mxfp8;
    case WEIGHT_NVFP4: return p->few_nvfp4;
    default: return NULL;
    }
}

/* Columns [begin, end) of a group, [end - begin][32]; those of f32 lie there as they are. */
static const float *expand(const cpu_products *p, const cpu_group *g, int64_t begin, int64_t end, float *out)
{
    const uint8_t *data = group_data(g);
    switch (g->w->format) {
    case WEIGHT_BF16: p->expand_bf16(data, begin, end, out); break;
    case WEIGHT_MXFP8: p->expand_mxfp8(data, begin, end, out); break;
    case WEIGHT_NVFP4: p->expand_nvfp4(data, begin, end, out); break;
    default: return (const float *)(const void *)(data + (size_t)begin * 2 * LINE);
    }
    return out;
}

/* The same as pairs of bf16. */
static const uint32_t *expand_pairs(const cpu_products *p, const cpu_group *g, int64_t begin, int64_t end,
                                    const cpu_scratch *work)
{
    weight_format format = g->w->format;
    cpu_pairs pairs = format == WEIGHT_MXFP8 ? p->pairs_mxfp8 : p->pairs_nvfp4;
    if (format == WEIGHT_BF16) return (const uint32_t *)(const void *)(group_data(g) + (size_t)begin * LINE);
    if (pairs)
        pairs(group_data(g), begin, end, work->pairs);
    else
        p->pair_weights(expand(p, g, begin, end, work->expanded), (int)(end - begin), work->pairs);
    return work->pairs;
}

/* Lines of whole units that 32 outputs have of so many columns. */
static int lines_of(weight_format format, int64_t columns)
{
    return (int)(packed_group_bytes(format, columns) / LINE);
}

/* sums [groups][rows][32] += products over columns [begin, end), chunk by chunk, so that the rows' inputs stay near
 * while the groups take turns. */
static void multiply_chunk_pairs(const cpu_products *p, const cpu_scratch *work, const cpu_group *group, int groups,
                                 const float *const *x, int rows, int64_t begin, int64_t end, float *sums)
{
    weight_format format = group->w->format;
    uint32_t *inputs = work->pairs + K_CHUNK / 2 * GROUP;
    for (int64_t at = begin; at < end; at += K_CHUNK) {
        int64_t stop = end - at < K_CHUNK ? end : at + K_CHUNK, left = group->w->cols - stop;
        int k = (int)(stop - at), lines = lines_of(format, left < K_CHUNK ? left : K_CHUNK);
        const float *ahead[TILE_ROWS];
        for (int r = 0; r < rows; r++) {
            p->pair_row(x[r] + at, k, inputs + r * (K_CHUNK / 2));
            ahead[r] = x[r] + stop;
        }
        for (int g = 0; g < groups; g++) {
            const uint32_t *w = expand_pairs(p, &group[g], at, stop, work);
            p->multiply_pairs(inputs, rows, w, (k + 1) / 2, group_data(&group[g]) + lines_of(format, stop) * LINE,
                              lines, g == 0 && left > 0 ? ahead : NULL, sums + g * rows * GROUP);
        }
    }
}

static void multiply_chunks(const cpu_products *p, const cpu_scratch *work, const cpu_group *group, int groups,
                            const float *const *x, int rows, int64_t begin, int64_t end, float *sums)
{
    weight_format format = group->w->format;
    /* For so few rows, expanding bf16 twice costs less than storing and loading what it gives. */
    cpu_few direct = format == WEIGHT_BF16 && rows <= 2 * FEW_ROWS ? p->few_bf16 : NULL;
    for (int64_t at = begin; at < end; at += K_CHUNK) {
        int64_t stop = end - at < K_CHUNK ? end : at + K_CHUNK;
        int k = (int)(stop - at);
        for (int g = 0; g < groups; g++) {
            float *to = sums + g * rows * GROUP;
            for (int r = 0; r < rows && direct; r += FEW_ROWS)
                direct(x + r, rows - r < FEW_ROWS ? rows - r : FEW_ROWS, group_data(&group[g]), at, stop,
                       to + r * GROUP);
            if (direct) continue;
            const float *w = expand(p, &group[g], at, stop, work->expanded);
            if (format == WEIGHT_F32)
                p->multiply_f32(x, at, rows, w, k, to);
            else
                p->multiply(x, at, rows, w, k, to);
        }
    }
}

void cpu_group_ask(const cpu_group *group)
{
    enum { BYTES = 8192 };
    for (size_t at = 0; at < BYTES && at < group->w->group_bytes; at += LINE)
        __builtin_prefetch(group_data(group) + at, 0, 2);
}

/* Few rows walk through group after group. What does not lie behind the last one is asked for while that is read: the
 * loops ask ahead within their own stream alone. */
static void ask_for_next(const cpu_group *group, int groups)
{
    if (groups > 1 && group_data(&group[1]) != group_data(&group[0]) + group[0].w->group_bytes)
        cpu_group_ask(&group[1]);
}

/* With rows for two passes, making pairs of E4M3 codes twice costs less than storing and loading them. */
static cpu_few_pairs few_pairs_function(const cpu_products *p, weight_format format, int rows)
{
    switch (format) {
    case WEIGHT_BF16: return rows <= 2 * FEW_ROWS ? p->few_pairs_bf16 : NULL;
    case WEIGHT_MXFP8: return rows <= 2 * FEW_ROWS ? p->few_pairs_mxfp8 : NULL;
    case WEIGHT_NVFP4: return rows <= FEW_ROWS && (rows > 1 || !p->one_nvfp4) ? p->few_pairs_nvfp4 : NULL;
    default: return NULL;
    }
}

/* The columns of slice `i`, as they lie between those of the whole product. */
typedef struct slice {
    int64_t begin, end;
} slice;

static slice slice_at(int64_t cols, int slices, int i)
{
    int64_t blocks = (cols + 31) / 32, end = (i + 1) * blocks / slices * 32;
    return (slice){i * blocks / slices * 32, end < cols ? end : cols};
}

/* Few rows as pairs: the rows become pairs once for all groups, as many columns as the scratch holds, and a group is
 * read from end to end. sums [slices][groups][rows][32]. */
static void multiply_few_pairs(const cpu_products *p, const cpu_scratch *work, const cpu_group *group, int groups,
                               const float *const *x, int rows, int slices, float *sums)
{
    enum { SHARED = 512 }; /* columns that several passes over a group share */
    cpu_few_pairs few = few_pairs_function(p, group->w->format, rows);
    int64_t cols = group->w->cols, part = (SCRATCH_PAIRS / rows - LANES) * 2 / K_CHUNK * K_CHUNK,
            stride = part / 2 + LANES;
    if (rows > FEW_ROWS && part > SHARED) part = SHARED;
    for (int64_t at = 0; at < cols; at += part) {
        int64_t stop = cols - at < part ? cols : at + part;
        for (int r = 0; r < rows; r++) p->pair_row(x[r] + at, (int)(stop - at), work->pairs + r * stride);
        for (int g = 0; g < groups; g++) {
            if (at == 0) ask_for_next(&group[g], groups - g);
            for (int i = 0; i < slices; i++) {
                slice of = slice_at(cols, slices, i);
                int64_t begin = of.begin > at ? of.begin : at, end = of.end < stop ? of.end : stop;
                if (begin < end)
                    few(work->pairs + (begin - at) / 2, stride, rows, group_data(&group[g]), begin, end,
                        sums + (size_t)((i * groups + g) * rows) * GROUP);
            }
        }
    }
}

static void multiply_slice(const cpu_products *p, const cpu_scratch *work, const cpu_group *group, int groups,
                           const float *const *x, int rows, int64_t begin, int64_t end, float *sums)
{
    weight_format format = group->w->format;
    cpu_few few = few_function(p, format);
    if (p->multiply_pairs && rows > FEW_ROWS / 2 && format != WEIGHT_F32)
        multiply_chunk_pairs(p, work, group, groups, x, rows, begin, end, sums);
    else if (rows > FEW_ROWS || !few)
        multiply_chunks(p, work, group, groups, x, rows, begin, end, sums);
    else if (groups == 2)
        p->one_nvfp4(x[0], group_data(&group[0]), group_data(&group[1]), begin, end, sums, sums + GROUP);
    else
        few(x, rows, group_data(group), begin, end, sums);
}

/* Groups that a slice is multiplied with before the next slice follows. */
static int groups_at_once(const cpu_products *p, const cpu_group *group, int groups, int rows)
{
    if (rows > FEW_ROWS) return groups;
    return rows == 1 && groups > 1 && group->w->format == WEIGHT_NVFP4 && p->one_nvfp4 ? 2 : 1;
}

/* The outer factors of NVFP4. */
static void apply_factors(const cpu_group *group, int groups, int rows, float *sums)
{
    for (int g = 0; g < groups; g++) {
        const cpu_linear *w = group[g].w;
        if (w->format != WEIGHT_NVFP4) continue;
        float *y = sums + g * rows * GROUP, factor = w->factor;
        for (int r = 0; r < rows; r++, y += GROUP) /* in vectors */
            if (w->divides)
                for (int i = 0; i < GROUP; i++) y[i] /= factor;
            else
                for (int i = 0; i < GROUP; i++) y[i] *= factor;
    }
}

const float *cpu_multiply(const cpu_products *products, const cpu_scratch *work, const cpu_group *group, int groups,
                          const float *const *x, int rows, bool sliced)
{
    assert(rows <= TILE_ROWS && groups <= MAX_GROUPS);
    size_t count = (size_t)(rows * groups) * GROUP; /* floats of one slice */
    int slices = sliced ? K_SLICES : 1;
    bool pairs = few_pairs_function(products, group->w->format, rows) != NULL;
    memset(work->sums, 0, (size_t)slices * count * sizeof(float));
    if (pairs) multiply_few_pairs(products, work, group, groups, x, rows, slices, work->sums);
    for (int g = 0, step = groups_at_once(products, group, groups, rows); g < groups && !pairs; g += step) {
        int left = groups - g;
        if (rows <= FEW_ROWS) ask_for_next(&group[g + (step == 2)], left - (step == 2));
        for (int i = 0; i < slices; i++) {
            slice of = slice_at(group->w->cols, slices, i);
            multiply_slice(products, work, &group[g], left < step ? left : step, x, rows, of.begin, of.end,
                           work->sums + (size_t)i * count + (size_t)(g * rows) * GROUP);
        }
    }
    for (int width = 1; width < slices; width *= 2)
        for (int i = 0; i < slices; i += 2 * width) {
            float *a = work->sums + (size_t)i * count;
            const float *b = work->sums + (size_t)(i + width) * count;
            for (size_t j = 0; j < count; j++) a[j] += b[j];
        }
    apply_factors(group, groups, rows, work->sums);
    return work->sums;
}

const float *cpu_multiply_block4(const cpu_products *products, const cpu_scratch *work, const cpu_group *group,
                                 int groups, const cpu_block4 *const *x, int rows, const cpu_group *next)
{
    assert(rows <= TILE_ROWS && groups <= MAX_GROUPS && group->w->format == WEIGHT_NVFP4);
    enum { FAR = 32, CHUNK = 64 }; /* rows that stay near while a group is read; blocks at a time with more */
    int64_t blocks = group->w->cols / NVFP4_GROUP, chunk = rows <= FAR ? blocks : CHUNK;
    memset(work->sums, 0, (size_t)(rows * groups) * GROUP * sizeof(float));
    for (int64_t at = 0; at < blocks; at += chunk)
        for (int g = 0; g < groups; g++) {
            int64_t end = at + chunk < blocks ? at + chunk : blocks;
            const uint8_t *ahead = group_data(group) + lines_of(WEIGHT_NVFP4, end * NVFP4_GROUP) * LINE;
            if (g + 1 < groups)
                ahead = group_data(&group[g + 1]) + lines_of(WEIGHT_NVFP4, at * NVFP4_GROUP) * LINE;
            else if (end == blocks)
                ahead = next ? group_data(next) : group_data(&group[g]) + group[g].w->group_bytes;
            products->multiply_block4(x, rows, group_data(&group[g]), at, end, ahead, work->expanded,
                                      work->sums + g * rows * GROUP);
        }
    apply_factors(group, groups, rows, work->sums);
    return work->sums;
}
