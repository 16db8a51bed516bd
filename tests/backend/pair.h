/*
 * A backend beside the reference, over one model and with the same bytes in their caches: what the tests of operations
 * (operations.h, test_cuda_sweep.c) share. The including file defines TESTED, the backend, and includes random_model.h.
 *
 * Values differ by the roundings to bf16 that the reference does not make, and by the order of some sums: BOUND holds the
 * largest difference of a row against its largest value. The largest that was met is kept, and `report` prints it.
 */
#ifndef TESTS_BACKEND_PAIR_H
#define TESTS_BACKEND_PAIR_H

#include "backend/random_model.h"

#define BOUND 1e-2f
/* Experts that quantise their activations, root mean square: the rounding of z to bf16 sends about one of a hundred
 * values to the other neighbour of its 4-bit code, up to a third away. See quantised_activations for equal codes. */
#define BOUND_W4A4 8e-2f

/* Both backends over one model, with the same bytes in their caches. */
typedef struct pair {
    random_model model;
    bench reference, tested;
} pair;

static float worst[OPS_LOGITS + 1], worst_w4a4, worst_codes;

static inline void pair_open(pair *p, const model_kind *kind, cache_format main, cache_format index, ops_options options)
{
    random_state = 11;
    random_model_make(&p->model, kind);
    bench_open(&p->reference, &ops_reference, &p->model, main, index, options, 1);
    bench_open(&p->tested, &TESTED, &p->model, main, index, options, 2);
}

static inline void pair_close(pair *p)
{
    bench_close(&p->reference);
    bench_close(&p->tested);
    random_model_free(&p->model);
}

static inline void pair_begin(const pair *p, const step_rows *rows)
{
    p->reference.ops->begin(p->reference.step, p->reference.cache, &rows->ops);
    p->tested.ops->begin(p->tested.step, p->tested.cache, &rows->ops);
}

static inline void pair_finish(const pair *p)
{
    hy_error err = {0};
    check(p->reference.ops->finish(p->reference.step, &err), &err);
    check(p->tested.ops->finish(p->tested.step, &err), &err);
}

static inline void pair_write(const pair *p, ops_tensor which, int32_t rows, const void *values)
{
    p->reference.ops->tensor_write(p->reference.step, which, 0, rows, values);
    p->tested.ops->tensor_write(p->tested.step, which, 0, rows, values);
}

/* Random values into a tensor of both; bf16 values, which both take as they are. */
static inline void pair_random(const pair *p, ops_tensor which, int32_t rows, size_t columns, float scale)
{
    float *values = random_floats((size_t)rows * columns, scale, true);
    pair_write(p, which, rows, values);
    free(values);
}

static inline float expect_within(const pair *p, ops_tensor which, int32_t rows, size_t columns, float bound)
{
    float *a = bench_read(&p->reference, which, rows, columns), *b = bench_read(&p->tested, which, rows, columns);
    float error = row_error(a, b, rows, columns);
    if (!(error <= bound))
        fail_msg("tensor %d differs by %g of its largest value, bound %g", (int)which, (double)error, (double)bound);
    free(a);
    free(b);
    return error;
}

static inline void expect_close(const pair *p, ops_tensor which, int32_t rows, size_t columns)
{
    worst[which] = fmaxf(worst[which], expect_within(p, which, rows, columns, BOUND));
}

static inline void expect_equal(const pair *p, ops_tensor which, int32_t rows, size_t columns)
{
    float *a = bench_read(&p->reference, which, rows, columns), *b = bench_read(&p->tested, which, rows, columns);
    assert_memory_equal(a, b, (size_t)rows * columns * sizeof *a);
    free(a);
    free(b);
}

/* Bytes that read as numbers in every format, the same in both caches; scales of moderate size. */
static inline void pair_random_cache(const pair *p)
{
    const cache_layout *l = &p->tested.layout;
    enum { DISTINCT = 11 };
    uint8_t *rows = malloc(DISTINCT * l->row_bytes);
    for (int32_t block = 0; block < CACHE_BLOCKS; block++) {
        uint8_t *row = rows + (size_t)(block % DISTINCT) * l->row_bytes;
        for (size_t i = 0; i < l->row_bytes && block < DISTINCT; i++) row[i] = (uint8_t)random_bits();
        for (int layer = 0; layer < l->layers && block < DISTINCT; layer++) {
            size_t at[2] = {l->main_offset[layer], l->index_offset[layer]};
            size_t bytes[2] = {l->head_bytes * (size_t)l->kv_heads,
                               CACHE_BLOCK * cache_vector_bytes(l->index, l->index_dim)};
            cache_format format[2] = {l->main, l->index};
            for (int part = 0; part < 2; part++) {
                if (at[part] == CACHE_NO_OFFSET) continue;
                for (size_t i = 0; i < bytes[part]; i++) {
                    size_t inside = part ? i : i % (l->head_bytes / 2), data = part ? l->index_scales : l->k_scales;
                    uint8_t *x = &row[at[part] + i];
                    if (format[part] == CACHE_BF16 && i % 2) *x = (uint8_t)(0x3E | (*x & 0x81)); /* 1/8 to 1/2 */
                    if (format[part] == CACHE_FP8) *x = (uint8_t)(0x20 + (*x & 0x9F) % 0x98);
                    if (format[part] == CACHE_FP8 && (*x & 0x7F) == 0x7F) *x = 0x30;
                    if (format[part] == CACHE_NVFP4 && inside >= data) *x = (uint8_t)(0x18 + *x % 0x18);
                }
            }
        }
        p->reference.ops->cache_write(p->reference.cache, block, 0, l->row_bytes, row);
        p->tested.ops->cache_write(p->tested.cache, block, 0, l->row_bytes, row);
    }
    free(rows);
}

/* The blocks of the rows' sequences in the tested backend's cache become copies of the reference's, but for NaN in
 * every format (0xFFFF, 0x7F) behind the ends of the rows' sequences. */
static inline void plant_garbage(const pair *p, const step_rows *rows)
{
    const cache_layout *l = &p->tested.layout;
    uint8_t *row = malloc(l->row_bytes);
    int garbage = l->main == CACHE_BF16 ? 0xFF : 0x7F, index_garbage = l->index == CACHE_BF16 ? 0xFF : 0x7F;
    for (int s = 0; s < MAX_SEQUENCES; s++) {
        int last = -1;
        for (int32_t t = 0; t < rows->ops.count; t++)
            if (rows->sequence[t] == s && rows->position[t] > last) last = rows->position[t];
        if (last < 0) continue;
        for (int b = 0; b <= last / CACHE_BLOCK; b++) {
            p->reference.ops->cache_read(p->reference.cache, rows->table[s * TABLE + b], 0, l->row_bytes, row);
            p->tested.ops->cache_write(p->tested.cache, rows->table[s * TABLE + b], 0, l->row_bytes, row);
        }
        int32_t block = rows->table[s * TABLE + last / CACHE_BLOCK];
        p->tested.ops->cache_read(p->tested.cache, block, 0, l->row_bytes, row);
        for (int layer = 0; layer < l->layers; layer++) {
            size_t vector = l->k_scales / CACHE_BLOCK, groups = l->main == CACHE_NVFP4 ? (size_t)l->head_dim / 16 : 0;
            size_t index_vector = l->index_scales / CACHE_BLOCK,
                   index_groups = l->index == CACHE_NVFP4 ? (size_t)l->index_dim / 16 : 0;
            for (size_t t = (size_t)last % CACHE_BLOCK + 1; t < CACHE_BLOCK; t++) {
                for (int head = 0; head < l->kv_heads; head++) {
                    uint8_t *at = row + l->main_offset[layer] + (size_t)head * l->head_bytes;
                    memset(at + t * vector, garbage, vector);
                    memset(at + l->v_data + t * vector, garbage, vector);
                    for (size_t g = 0; g < groups; g++)
                        at[l->k_scales + t * groups + g] = at[l->v_scales + t / 4 * 4 * groups + g * 4 + t % 4] = 0x7F;
                }
                if (l->index_offset[layer] == CACHE_NO_OFFSET) continue;
                uint8_t *at = row + l->index_offset[layer];
                memset(at + t * index_vector, index_garbage, index_vector);
                memset(at + l->index_scales + t * index_groups, 0x7F, index_groups);
            }
        }
        p->tested.ops->cache_write(p->tested.cache, block, 0, l->row_bytes, row);
    }
    free(row);
}

/* Routes of rows: 0 as they fall, 1 all rows to the first experts, 2 the last experts only. */
static inline void some_routes(const ops_model *m, int kind, int32_t rows, int32_t *routes, float *weights)
{
    for (int t = 0; t < rows; t++, routes += m->experts_per_token, weights += m->experts_per_token) {
        int left = m->experts_per_token;
        float sum = 0;
        for (int e = 0; e < m->experts && left; e++) {
            bool take = kind == 0 ? random_below(m->experts - e) < left : kind == 1 || m->experts - e <= left;
            if (take) routes[m->experts_per_token - left--] = e;
        }
        for (int i = 0; i < m->experts_per_token; i++) sum += weights[i] = 0.1f + (float)random_below(100) / 100;
        for (int i = 0; i < m->experts_per_token; i++) weights[i] /= sum;
    }
}

static inline void expect_w4a4(const pair *p, int32_t rows, size_t columns)
{
    float *a = bench_read(&p->reference, OPS_X, rows, columns), *b = bench_read(&p->tested, OPS_X, rows, columns);
    double squares = 0, difference = 0;
    for (size_t i = 0; i < (size_t)rows * columns; i++) {
        squares += (double)a[i] * a[i];
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    }
    float error = (float)sqrt(difference / squares);
    worst_w4a4 = fmaxf(worst_w4a4, error);
    assert_true(error <= BOUND_W4A4);
    free(a);
    free(b);
}

static inline int report(void **state)
{
    (void)state;
    static const struct {
        ops_tensor which;
        const char *name;
    } names[] = {{OPS_Q, "q"},           {OPS_INDEX_Q, "index q"},
                 {OPS_SCORES, "scores"}, {OPS_ATTENTION, "attention"},
                 {OPS_H, "h"},           {OPS_ROUTE_WEIGHTS, "route weights"},
                 {OPS_X, "x"},           {OPS_LOGITS, "logits"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        printf("# largest difference of %s: %.2e\n", names[i].name, (double)worst[names[i].which]);
    printf("# x after W4A4 experts, root mean square: %.2e\n", (double)worst_w4a4);
    printf("# the same with equal codes: %.2e\n", (double)worst_codes);
    return 0;
}

#endif
