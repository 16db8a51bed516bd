/*
 * Scores and attention of many rows on warpgroups (backend/cuda/prefill.c) against the reference, and bit for bit against
 * the kernels that other steps take.
 *
 * On a GPU the last is counted and printed, not asked: whether wgmma and mma.sync give the same bits is the tensor cores'
 * business. There a row must be the same among other rows of the same kernels.
 *
 * hayate-test: slow
 */
#include "backend/cuda_test.h"

#include <math.h>

#include "backend/cuda/kernels/prefill.h"

static const struct {
    cache_format main;
    readback read;
    int per_group, top, kv_heads;
} kinds[] = {{CACHE_NVFP4, READBACK_EXACT, 16, 3, 2},
             {CACHE_NVFP4, READBACK_E4M3, 5, 2, 1},
             {CACHE_FP8, READBACK_EXACT, 20, 2, 1},
             {CACHE_BF16, READBACK_EXACT, 16, 16, 1}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void random_blocks(const bench *b)
{
    const cache_layout *l = &b->layout;
    uint8_t *row = malloc(l->row_bytes);
    for (int32_t block = 0; block < CACHE_BLOCKS; block++) {
        for (size_t i = 0; i < l->row_bytes; i++) {
            row[i] = (uint8_t)random_bits();
            if (l->main == CACHE_BF16 && i % 2) row[i] = (uint8_t)(0x3E | (row[i] & 0x81));
            if (l->main == CACHE_FP8 && (row[i] & 0x7F) >= 0x48) row[i] = (uint8_t)(row[i] & 0xBF);
        }
        for (int part = 0; part < 2 * l->kv_heads && l->main == CACHE_NVFP4; part++)
            for (int layer = 0; layer < l->layers; layer++) {
                uint8_t *scales = row + l->main_offset[layer] + (size_t)part * l->head_bytes / 2 + l->k_scales;
                for (size_t i = 0; i < l->head_bytes / 2 - l->k_scales; i++) scales[i] = (uint8_t)(0x20 + scales[i] % 24);
                if (part || l->index_offset[layer] == CACHE_NO_OFFSET) continue;
                scales = row + l->index_offset[layer] + l->index_scales;
                for (int i = 0; i < 128 * l->index_dim / 16; i++) scales[i] = (uint8_t)(0x20 + scales[i] % 24);
            }
        b->ops->cache_write(b->cache, block, 0, l->row_bytes, row);
    }
    free(row);
}

/* Keys and values of a position are NaN, or the rest of its block too: no row before it may notice. */
static void plant_nan(const bench *b, const step_rows *rows, int sequence, int position, bool rest)
{
    const cache_layout *l = &b->layout;
    int32_t block = rows->table[sequence * TABLE + position / CACHE_BLOCK];
    size_t vector = l->k_scales / CACHE_BLOCK, groups = (size_t)l->head_dim / 16;
    int code = l->main == CACHE_BF16 ? 0xFF : 0x7F;
    uint8_t *row = malloc(l->row_bytes);
    b->ops->cache_read(b->cache, block, 0, l->row_bytes, row);
    for (size_t t = (size_t)position % CACHE_BLOCK; t < CACHE_BLOCK; t++) {
        for (int layer = 0; layer < l->layers; layer++) {
            for (int head = 0; head < l->kv_heads; head++) {
                uint8_t *at = row + l->main_offset[layer] + (size_t)head * l->head_bytes;
                memset(at + t * vector, code, vector);
                memset(at + l->v_data + t * vector, code, vector);
                for (size_t g = 0; g < groups && l->main == CACHE_NVFP4; g++)
                    at[l->k_scales + t * groups + g] = at[l->v_scales + t / 4 * 4 * groups + g * 4 + t % 4] = 0x7F;
            }
            if (l->index_offset[layer] == CACHE_NO_OFFSET) continue;
            uint8_t *at = row + l->index_offset[layer];
            memset(at + t * vector, code, vector);
            for (size_t g = 0; g < groups && l->main == CACHE_NVFP4; g++) at[l->index_scales + t * groups + g] = 0x7F;
        }
        if (!rest) break;
    }
    b->ops->cache_write(b->cache, block, 0, l->row_bytes, row);
    free(row);
}

typedef struct outcome {
    float *scores, *attention, *dense;
    int32_t *blocks;
} outcome;

static void free_outcome(outcome *o)
{
    free(o->scores), free(o->blocks), free(o->attention), free(o->dense);
}

typedef enum form { OTHERS, ROWS_STAY, BLOCKS_STAY, PACKED } form; /* which kernels */

/* Scores, choice and attention of layer 1, and attention of layer 0, which is dense, from values that depend on
 * sequence and position alone. */
static outcome run_rows(const bench *b, const step_rows *rows, form which)
{
    const ops_model *m = b->model;
    int32_t n = rows->ops.count;
    size_t q = (size_t)(m->heads * m->head_dim), index_q = (size_t)(m->index_heads * m->index_dim);
    float *queries = malloc((size_t)n * q * sizeof *queries), *index = malloc((size_t)n * index_q * sizeof *index);
    hy_error err = {0};
    for (int t = 0; t < n; t++) {
        random_state = (uint64_t)(rows->sequence[t] * 100000 + rows->position[t]);
        for (size_t i = 0; i < q; i++) queries[(size_t)t * q + i] = bf16_round(random_normal() * 1.5f);
        for (size_t i = 0; i < index_q; i++) index[(size_t)t * index_q + i] = bf16_round(random_normal());
    }
    if (b->ops == &ops_cuda) {
        b->backend->options.gpu_wgmma_rows = which == ROWS_STAY || which == BLOCKS_STAY;
        b->backend->prefill_pairs_units = which == PACKED ? 1 : INT32_MAX;
        b->backend->prefill_alike = which == ROWS_STAY;
    }
    b->ops->begin(b->step, b->cache, &rows->ops);
    b->ops->tensor_write(b->step, OPS_Q, 0, n, queries);
    b->ops->tensor_write(b->step, OPS_INDEX_Q, 0, n, index);
    outcome out = {0};
    b->ops->index_score(b->step, 1, 0, TABLE);
    out.scores = bench_read(b, OPS_SCORES, n, (size_t)(m->index_heads * TABLE));
    b->ops->index_select(b->step, 1);
    out.blocks = (int32_t *)bench_read(b, OPS_BLOCKS, n, (size_t)(m->index_heads * m->index_top));
    b->ops->attend(b->step, 1);
    out.attention = bench_read(b, OPS_ATTENTION, n, q);
    b->ops->attend(b->step, 0);
    check(b->ops->finish(b->step, &err), &err);
    out.dense = bench_read(b, OPS_ATTENTION, n, q);
    free(queries), free(index);
    return out;
}

/* Chunks of prompts, decoding rows, padding; tiles that several sequences share, and ends inside of a block. */
static void mixed_rows(step_rows *rows)
{
    rows_open(rows);
    rows_add(rows, 0, 700, 17, 9);
    rows_add(rows, -1, 0, 2, 9);
    rows_add(rows, 1, 0, 3, 9);
    rows_add(rows, 2, 126, 4, 9);
    rows_add(rows, 3, 511, 1, 9);
}

static int64_t differing(const float *a, const float *b, size_t count)
{
    int64_t n = 0;
    for (size_t i = 0; i < count; i++) n += memcmp(a + i, b + i, sizeof *a) != 0;
    return n;
}

static void same_as_others(void **state)
{
    (void)state;
    float worst_attention = 0, worst_scores = 0;
    int64_t other_bits = 0, all_bits = 0;
    for (int k = 0; k < KINDS; k++) {
        model_kind kind = {.layers = 2, .hidden = 32, .heads = kinds[k].kv_heads * kinds[k].per_group,
                           .kv_heads = kinds[k].kv_heads, .head_dim = 128, .index_dim = 128, .index_top = kinds[k].top,
                           .rotary_dim = 8, .experts = 2, .per_token = 1, .expert_width = 32, .shared_width = 16,
                           .dense_width = 16, .vocab = 9, .linear = WEIGHT_BF16, .expert = WEIGHT_BF16};
        random_model m;
        bench cuda, reference;
        ops_options options = {.read = kinds[k].read, .gpu_wgmma_rows = 1};
        step_rows rows, some;
        random_state = 7;
        random_model_make(&m, &kind);
        bench_open(&cuda, &ops_cuda, &m, kinds[k].main, kinds[k].main, options, 1);
        bench_open(&reference, &ops_reference, &m, kinds[k].main, kinds[k].main, options, 1);
        mixed_rows(&rows);
        for (int i = 0; i < 2; i++) {
            const bench *b = i ? &reference : &cuda;
            random_state = 8;
            random_blocks(b);
            plant_nan(b, &rows, 0, 705, false); /* some rows of a tile see it */
            plant_nan(b, &rows, 0, 717, true);  /* nobody does */
            plant_nan(b, &rows, 3, 0, false);   /* everybody does */
        }
        size_t q = (size_t)(kind.heads * kind.head_dim), columns = (size_t)(kind.kv_heads * TABLE);
        size_t top = (size_t)(kind.kv_heads * kind.index_top);
        size_t n = (size_t)rows.ops.count;
        outcome all = run_rows(&cuda, &rows, ROWS_STAY), other = run_rows(&cuda, &rows, OTHERS);
        outcome expected = run_rows(&reference, &rows, OTHERS), blocks = run_rows(&cuda, &rows, BLOCKS_STAY);
        assert_memory_equal(blocks.attention, all.attention, n * q * sizeof(float));
        for (size_t t = 0; t < n; t++) {
            if (rows.sequence[t] < 0) {
                for (size_t i = 0; i < q; i++) assert_true(all.attention[t * q + i] == 0 && all.dense[t * q + i] == 0);
                continue;
            }
            other_bits += differing(all.attention + t * q, other.attention + t * q, q);
            other_bits += differing(all.scores + t * columns, other.scores + t * columns, columns);
            other_bits += differing(all.dense + t * q, other.dense + t * q, q);
            all_bits += (int64_t)(2 * q + columns);
            assert_memory_equal(all.blocks + t * top, expected.blocks + t * top, top * sizeof(int32_t));
            worst_attention = fmaxf(worst_attention, row_error(expected.attention + t * q, all.attention + t * q, 1, q));
            worst_attention = fmaxf(worst_attention, row_error(expected.dense + t * q, all.dense + t * q, 1, q));
            worst_scores = fmaxf(worst_scores, row_error(expected.scores + t * columns, all.scores + t * columns,
                                                         kind.kv_heads, TABLE));
        }
        rows_open(&some); /* another tile and chunk */
        rows_add(&some, 2, 127, 2, 9);
        rows_add(&some, 0, 703, 10, 9);
        outcome few = run_rows(&cuda, &some, BLOCKS_STAY);
        for (size_t t = 0; t < 12; t++) {
            size_t from = t < 2 ? 23 + t : t + 1;
            assert_int_equal(some.position[t], rows.position[from]);
            assert_memory_equal(few.attention + t * q, all.attention + from * q, q * sizeof(float));
            assert_memory_equal(few.dense + t * q, all.dense + from * q, q * sizeof(float));
            assert_memory_equal(few.scores + t * columns, all.scores + from * columns, columns * sizeof(float));
        }
        free_outcome(&all), free_outcome(&other), free_outcome(&expected), free_outcome(&few);
        free_outcome(&blocks);
        bench_close(&cuda), bench_close(&reference);
        random_model_free(&m);
    }
    printf("# largest difference of attention %.2e, of scores %.2e; %lld of %lld values have other bits than one row's\n",
           (double)worst_attention, (double)worst_scores, (long long)other_bits, (long long)all_bits);
    assert_true(worst_attention <= 1e-2f);
    assert_true(worst_scores <= 1e-5f);
    if (cuda_test_on_gpu) return;
    assert_int_equal(other_bits, 0);
    static const char *const ours[] = {"rows", "blocks", "index"};
    static const char *const formats[] = {"nvfp4", "nvfp4_e4m3", "fp8", "bf16"};
    for (int i = 0; i < 3 * 4; i++) {
        char name[64];
        snprintf(name, sizeof name, "hy_prefill_%s_%s", ours[i / 4], formats[i % 4]);
        if (!cuda_emulated_launches(name) && strcmp(name, "hy_prefill_blocks_fp8")) fail_msg("%s was not launched", name);
    }
}

/* Steps of one chunk: its last row ends at each context, and rows of sizes that fill no tile. */
static void odd_sizes(void **state)
{
    (void)state;
    static const struct {
        int rows, context;
    } chunks[] = {{1, 1}, {1, 2049}, {2, 127}, {3, 128}, {7, 129}, {16, 2047}, {17, 2049}, {64, 128}, {129, 129}};
    model_kind kind = {.layers = 2, .hidden = 32, .heads = 16, .kv_heads = 1, .head_dim = 128, .index_dim = 128,
                       .index_top = 16, .rotary_dim = 8, .experts = 2, .per_token = 1, .expert_width = 32,
                       .shared_width = 16, .dense_width = 16, .vocab = 9, .linear = WEIGHT_BF16, .expert = WEIGHT_BF16};
    random_model m;
    bench cuda, reference;
    float worst_attention = 0, worst_scores = 0;
    random_state = 9;
    random_model_make(&m, &kind);
    bench_open(&cuda, &ops_cuda, &m, CACHE_NVFP4, CACHE_NVFP4, (ops_options){.gpu_wgmma_rows = 1}, 1);
    bench_open(&reference, &ops_reference, &m, CACHE_NVFP4, CACHE_NVFP4, (ops_options){0}, 1);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        step_rows rows;
        size_t n = (size_t)chunks[i].rows, q = 16 * 128;
        rows_open(&rows);
        rows_add(&rows, (int)i % MAX_SEQUENCES, chunks[i].context - chunks[i].rows, chunks[i].rows, 9);
        for (int side = 0; side < 2; side++) {
            const bench *b = side ? &reference : &cuda;
            random_state = 10 + i;
            random_blocks(b);
            if (chunks[i].context % CACHE_BLOCK) plant_nan(b, &rows, (int)i % MAX_SEQUENCES, chunks[i].context, true);
        }
        outcome all = run_rows(&cuda, &rows, BLOCKS_STAY), expected = run_rows(&reference, &rows, OTHERS);
        outcome other = run_rows(&cuda, &rows, ROWS_STAY);
        assert_memory_equal(other.attention, all.attention, n * q * sizeof(float));
        assert_memory_equal(all.blocks, expected.blocks, n * 16 * sizeof(int32_t));
        worst_attention = fmaxf(worst_attention, row_error(expected.attention, all.attention, (int32_t)n, q));
        worst_attention = fmaxf(worst_attention, row_error(expected.dense, all.dense, (int32_t)n, q));
        worst_scores = fmaxf(worst_scores, row_error(expected.scores, all.scores, (int32_t)n, TABLE));
        free_outcome(&all), free_outcome(&expected), free_outcome(&other);
    }
    bench_close(&cuda), bench_close(&reference);
    random_model_free(&m);
    printf("# largest difference of attention %.2e, of scores %.2e\n", (double)worst_attention, (double)worst_scores);
    assert_true(worst_attention <= 1e-2f);
    assert_true(worst_scores <= 1e-5f);
}

/* Packed blocks give the bits of a row at a time: of rows of several sequences and chunks, with padding, values that some
 * rows do not see, scales of all kinds, and more blocks than there is room for at once. */
static void packed(void **state)
{
    (void)state;
    static const struct {
        int per_group, kv_heads, top;
    } models[] = {{16, 2, 16}, {5, 1, 15}};
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        model_kind kind = {.layers = 2, .hidden = 32, .heads = models[k].kv_heads * models[k].per_group,
                           .kv_heads = models[k].kv_heads, .head_dim = 128, .index_dim = 128, .index_top = models[k].top,
                           .rotary_dim = 8, .experts = 2, .per_token = 1, .expert_width = 32, .shared_width = 16,
                           .dense_width = 16, .vocab = 9, .linear = WEIGHT_BF16, .expert = WEIGHT_BF16};
        random_model m;
        bench b;
        step_rows rows;
        hy_error err = {0};
        ops_limits limits = {.rows = MAX_ROWS, .logit_rows = MAX_ROWS, .positions = TABLE * CACHE_BLOCK};
        random_state = 21 + k;
        random_model_make(&m, &kind);
        bench_open(&b, &ops_cuda, &m, CACHE_NVFP4, CACHE_NVFP4, (ops_options){0}, 1);
        b.backend->prefill_pairs_units = 1;
        b.ops->step_close(b.step);
        check(b.ops->step_open(b.backend, &limits, &b.step, &err), &err);
        rows_open(&rows);
        rows_add(&rows, 0, 20 * CACHE_BLOCK - 7, 40, 9);
        rows_add(&rows, -1, 0, 2, 9);
        rows_add(&rows, 1, 0, 10, 9);
        rows_add(&rows, 2, 15 * CACHE_BLOCK + 60, 12, 9);
        random_blocks(&b);
        plant_nan(&b, &rows, 0, 20 * CACHE_BLOCK + 3, false);
        plant_nan(&b, &rows, 0, 20 * CACHE_BLOCK + 33, true);
        plant_nan(&b, &rows, 2, 15 * CACHE_BLOCK + 72, true);
        const cache_layout *l = &b.layout; /* negative scales, the least and the largest */
        uint8_t *row = malloc(l->row_bytes), *layer = row + l->main_offset[1];
        b.ops->cache_read(b.cache, rows.table[5], 0, l->row_bytes, row);
        for (size_t i = 0; i < 1024; i++)
            layer[l->k_scales + i] = layer[l->v_scales + i] = (uint8_t)(i * 37 % 0x7F | (i % 11 ? 0 : 0x80));
        b.ops->cache_write(b.cache, rows.table[5], 0, l->row_bytes, row);
        free(row);
        outcome other = run_rows(&b, &rows, OTHERS), ours = run_rows(&b, &rows, PACKED);
        size_t n = (size_t)rows.ops.count * (size_t)(kind.heads * kind.head_dim);
        int64_t bits = differing(ours.attention, other.attention, n);
        printf("# %lld of %zu values have other bits than one row's\n", (long long)bits, n);
        assert_int_equal(bits, 0);
        free_outcome(&other), free_outcome(&ours);
        bench_close(&b);
        random_model_free(&m);
    }
    if (cuda_test_on_gpu) return;
    assert_true(cuda_emulated_launches("hy_prefill_pairs"));
}

/* ---- Lists the other way round ----------------------------------------------------------------------------------- */

/* Which rows take a block, bits and counts and the work list, beside loops over the lists. */
static void inversion(void **state)
{
    (void)state;
    enum { ROWS = PREFILL_WAVE + 77, HEADS = 2, TOP = 5, SEQUENCES = 3, LENGTH = 700, WORDS = PREFILL_WAVE / 32, WAVES = 2 };
    static int32_t sequence[ROWS], position[ROWS], blocks[ROWS][HEADS][TOP], table[SEQUENCES][LENGTH];
    gpu *g = device_open();
    prefill_lists l = {.heads = HEADS, .top = TOP, .waves = WAVES, .first = 3, .count = ROWS - 3};
    random_state = 12;
    for (int t = 0; t < ROWS; t++) {
        int run = t < 10 ? 0 : t < 14 ? 1 : t < 200 ? 2 : 3; /* the second one is padding */
        int span = t < 300 && t >= 200 ? 3 : run == 2 ? 5 : LENGTH;
        sequence[t] = run == 1 ? -1 : run == 2 ? 2 : run / 3;
        position[t] = LENGTH * CACHE_BLOCK - ROWS + t;
        for (int h = 0; h < HEADS; h++)
            for (int i = 0, next = 0; i < TOP; i++) { /* ascending, the last ones none */
                next += (int)random_below((unsigned)span / 3 + 1);
                blocks[t][h][i] = next < span && (i == 0 || blocks[t][h][i - 1] >= 0) ? next : -1;
                next += random_below(9) != 0; /* seldom twice */
            }
    }
    for (int i = 0; i < SEQUENCES * LENGTH; i++) table[i / LENGTH][i % LENGTH] = i * 7 + 1;
    static const int first[] = {3, 10, 14, 200}, length[] = {LENGTH, 0, 5, LENGTH};
    for (int i = 0; i < 4; i++) l.run_row[i] = first[i], l.run_key[i] = l.keys, l.keys += length[i];
    l.runs = 4;
    size_t lists = WAVES * HEADS, words = lists * (size_t)l.keys;
    l.rows = (kernel_rows){.count = ROWS, .sequence = device_put(g, sequence, sizeof sequence),
                           .position = device_put(g, position, sizeof position),
                           .block_table = device_put(g, table, sizeof table), .block_table_stride = LENGTH};
    l.blocks = device_put(g, blocks, sizeof blocks);
    size_t zeros = words * (WORDS + 1) + 2 * lists + 2, places = lists * PREFILL_WAVE * TOP;
    l.takes = device_take(g, (zeros + words) * 4 + 16);
    l.counts = l.takes + words * WORDS;
    l.progress = l.counts + words;
    l.starts = l.takes + zeros;
    l.items = device_take(g, places * sizeof *l.items);
    l.takers = device_take(g, places * sizeof *l.takers);
    l.totals = device_take(g, 2 * lists * sizeof *l.totals);
    g->calls->fill(g, l.takes, 0xA5, zeros * 4);
    device_run(g, "prefill_clear", 3, 1, 1, 64, 0, &l, sizeof l);
    device_run(g, "prefill_mark", (l.count * HEADS * TOP + 63) / 64, 1, 1, 64, 0, &l, sizeof l);
    device_run(g, "prefill_list", WAVES * HEADS, 1, 1, PREFILL_LIST_THREADS, 0, &l, sizeof l);
    device_run(g, "prefill_takers", (l.count * HEADS * TOP + 63) / 64, 1, 1, 64, 0, &l, sizeof l);
    uint32_t *takes = device_get(g, l.takes, zeros * 4), *takers = device_get(g, l.takers, places * sizeof *takers);
    prefill_item *items = device_get(g, l.items, places * sizeof *items);
    int32_t *totals = device_get(g, l.totals, 2 * lists * sizeof *totals);
    int longest = 0;
    for (int wave = 0; wave < WAVES; wave++)
        for (int h = 0; h < HEADS; h++) {
            int list = h * WAVES + wave, at = 0, taken = 0;
            const prefill_item *item = items + (size_t)list * PREFILL_WAVE * TOP;
            const uint32_t *taker = takers + (size_t)list * PREFILL_WAVE * TOP;
            for (int key = 0; key < l.keys; key++) {
                int run = 0, count = 0;
                while (run + 1 < l.runs && l.run_key[run + 1] <= key) run++;
                int block = key - l.run_key[run];
                uint32_t expected[WORDS] = {0};
                for (int r = 0; r < PREFILL_WAVE && wave * PREFILL_WAVE + r < l.count; r++) {
                    int t = l.first + wave * PREFILL_WAVE + r, end = run + 1 < l.runs ? l.run_row[run + 1] : ROWS;
                    int place = -1, tokens = position[t] + 1 - block * CACHE_BLOCK;
                    for (int i = TOP - 1; i >= 0 && t >= l.run_row[run] && t < end && sequence[t] >= 0; i--)
                        if (blocks[t][h][i] == block) place = i;
                    if (place < 0) continue;
                    if (tokens > CACHE_BLOCK) tokens = CACHE_BLOCK;
                    assert_int_equal(taker[taken + count], PREFILL_TAKER(r, place, tokens));
                    expected[r / 32] |= 1u << r % 32;
                    count++;
                }
                size_t place = (size_t)list * (size_t)l.keys + (size_t)key;
                assert_memory_equal(takes + place * WORDS, expected, sizeof expected);
                assert_int_equal(takes[words * WORDS + place], count);
                for (int from = 0; from < count; from += PREFILL_ITEM, at++) {
                    int part = count - from < PREFILL_ITEM ? count - from : PREFILL_ITEM;
                    assert_int_equal(item[at].block, block);
                    assert_int_equal(item[at].cached, table[sequence[l.run_row[run]]][block]);
                    assert_int_equal(item[at].first, taken + from);
                    assert_int_equal(item[at].count, part);
                }
                taken += count;
                longest = count > longest ? count : longest;
            }
            assert_int_equal(totals[2 * list], at);
            assert_int_equal(totals[2 * list + 1], taken);
        }
    for (size_t i = 0; i < 2 * lists + 2; i++) assert_int_equal(takes[words * (WORDS + 1) + i], 0);
    assert_true(longest > PREFILL_ITEM);
    free(takes), free(takers), free(items), free(totals);
    void *device[] = {(void *)l.rows.sequence, (void *)l.rows.position, (void *)l.rows.block_table, (void *)l.blocks,
                      l.takes, l.items, l.takers, l.totals};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) g->calls->free(g, device[i]);
    g->calls->close(g);
}

/* The form of a step follows what the one before chose. */
static void follows_the_rows(void **state)
{
    (void)state;
    model_kind kind = {.layers = 2, .hidden = 32, .heads = 2, .kv_heads = 1, .head_dim = 128, .index_dim = 128,
                       .index_top = 3, .rotary_dim = 8, .experts = 2, .per_token = 1, .expert_width = 32,
                       .shared_width = 16, .dense_width = 16, .vocab = 9, .linear = WEIGHT_BF16, .expert = WEIGHT_BF16};
    random_model m;
    bench b;
    step_rows rows;
    random_state = 13;
    random_model_make(&m, &kind);
    bench_open(&b, &ops_cuda, &m, CACHE_NVFP4, CACHE_NVFP4, (ops_options){.gpu_wgmma_rows = 1}, 1);
    rows_open(&rows);
    rows_add(&rows, 0, 2000, 8, 9);
    for (int alike = 1; alike >= 0; alike--) {
        int32_t lists[8][3];
        hy_error err = {0};
        for (int t = 0; t < 8; t++)
            for (int i = 0; i < 3; i++) lists[t][i] = i == 2 ? 15 : i * 7 + (alike ? 0 : t % 7);
        b.ops->begin(b.step, b.cache, &rows.ops);
        b.ops->tensor_write(b.step, OPS_BLOCKS, 0, 8, lists);
        b.ops->attend(b.step, 1);
        check(b.ops->finish(b.step, &err), &err);
        assert_int_equal(b.backend->prefill_alike, alike);
    }
    bench_close(&b);
    random_model_free(&m);
}

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_others),
        cmocka_unit_test(odd_sizes),
        cmocka_unit_test(packed),
        cmocka_unit_test(inversion),
        cmocka_unit_test(follows_the_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
