/*
 * Projections of the cpu backend.
 *
 * At open a weight [N, K] is copied into panels of 16 outputs with K outside (see kernels.h), in the bytes of its own
 * format, so that the packed weights take what the file takes (K is padded to whole units); f16 becomes f32. A product
 * decodes K_CHUNK columns of up to MAX_PANELS panels into a buffer that stays in the first-level cache and uses it for
 * up to TILE_ROWS rows.
 *
 * Numerics: inputs are bf16 values (or exact 4-bit products), decoded weights are exact, so but for f32 weights every
 * product is exact in fp32. One output is one chain in ascending K from 0; with eight slices the slices of K are chains
 * of their own, folded ((0+1)+(2+3))+((4+5)+(6+7)). The outer factor of NVFP4 multiplies (or divides) the finished sum,
 * where weight_row applies it to every weight: the two differ by rounding alone.
 */
#ifndef HAYATE_BACKEND_CPU_LINEAR_H
#define HAYATE_BACKEND_CPU_LINEAR_H

#include "backend/cpu/kernels.h"
#include "checkpoint/tensor.h"
#include "base/threads.h"

enum {
    K_CHUNK = 64,   /* columns decoded at a time; a multiple of 32 */
    TILE_ROWS = 64, /* rows that share a decoded chunk */
    K_SLICES = 8,
    PACK_ROWS = LANES, /* rows that are packed together */
};

typedef struct cpu_linear {
    weight_format format;
    int64_t rows, cols;
    int64_t panels;     /* ceil(rows / 16); missing rows are zeros */
    size_t panel_bytes;
    uint8_t *data;      /* [panels, panel_bytes], owned; lines are aligned */
    float factor;       /* NVFP4: the finished sum is multiplied with it, or ... */
    bool divides;       /* ... divided by it */
} cpu_linear;

/* Everything of a packed weight but its memory. WEIGHT_NONE gives an empty struct. HY_UNSUPPORTED: columns that the format
 * cannot hold, named by `what`. */
hy_status cpu_linear_shape(const weight *w, const char *what, cpu_linear *linear, hy_error *err);
size_t cpu_linear_bytes(const cpu_linear *linear); /* that `data` must have */
/* Packs rows [first, first + part->rows) of a weight, which `part` holds alone; first is a multiple of PACK_ROWS, and so is
 * their number but at the end of the weight. */
void cpu_linear_pack_rows(const weight *part, int64_t first, cpu_linear *linear);
/* Shape, memory and all rows, on the pool. Pages of the maps `files` are let go as they have been packed. */
hy_status cpu_linear_pack(const weight *w, const char *what, threads *pool, const weight_file *files, size_t file_count,
                          cpu_linear *linear, hy_error *err);
void cpu_linear_free(cpu_linear *linear);

/* One panel of a weight, as an operand of a product. */
typedef struct cpu_panel {
    const cpu_linear *w;
    int64_t panel;
} cpu_panel;

/* What one worker needs for a product. */
typedef struct cpu_product {
    float *decoded; /* [MAX_PANELS][K_CHUNK][16] */
    float *sums;    /* [K_SLICES][TILE_ROWS][MAX_PANELS][16] */
} cpu_product;

enum {
    PRODUCT_DECODED = MAX_PANELS * K_CHUNK * LANES,              /* floats */
    PRODUCT_SUMS = K_SLICES * TILE_ROWS * MAX_PANELS * LANES,
};

/*
 * The products of `rows` (up to TILE_ROWS) inputs x[r] [K] with up to MAX_PANELS panels of the same K, into
 * work->sums [rows][panels][16], which is also returned.
 */
const float *cpu_multiply(const cpu_kernels *kernels, const cpu_product *work, const cpu_panel *panel, int panels,
                          const float *const *x, int rows, bool sliced);

#endif
