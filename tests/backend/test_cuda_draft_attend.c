/*
 * Kernels of the drafter's attention on sequences of many cache blocks: close to an exact softmax, and the same bits
 * whether a thread block takes a block of keys, a run of them or all, and whatever lies in the cache where no row sees
 * it.
 */
#include "backend/cuda_test.h"

#include <math.h>

#include "backend/cuda/kernels/draft.h"
#include "backend/cuda/kernels/draft_fp8.h"
#include "number/bf16.h"
#include "number/e4m3.h"

enum {
    DIM = 128,
    KV_HEADS = 2,
    HEADS = 20,
    PER_HEAD = HEADS / KV_HEADS,
    STRIDE = 8,
    SEQUENCES = 6,
    BLOCKS = 14, /* most of a sequence, with its own rows */
    CACHED = 32,
    WINDOW = 1400,
    HEAD_BYTES = 2 * CUDA_BLOCK_TOKENS * DIM * 2,
    ROW_BYTES = KV_HEADS * HEAD_BYTES + 256,
    QUERIES = STRIDE * PER_HEAD, /* whole tiles of 16 */
    OUT = SEQUENCES * STRIDE * HEADS * DIM,
};

/* Without a context, short, one block, some, and longer than the window. */
static const int positions[SEQUENCES] = {0, 5, 128, 700, 1401, 1999}, lines[SEQUENCES] = {8, 7, 1, 8, 7, 8};

typedef struct attention {
    bool fp8;
    float q[OUT], own_k[SEQUENCES * STRIDE * KV_HEADS * DIM], own_v[SEQUENCES * STRIDE * KV_HEADS * DIM];
    int32_t table[SEQUENCES * BLOCKS];
    draft_sequence sequence[SEQUENCES];
    uint8_t cache[CACHED * ROW_BYTES];
} attention;

static float cached(const attention *a, const uint8_t *head, bool value, int token, int i)
{
    size_t at = (size_t)token * DIM + (size_t)i, bytes = a->fp8 ? 1 : 2;
    at = (at + (value ? (size_t)CUDA_BLOCK_TOKENS * DIM : 0)) * bytes;
    uint16_t half;
    memcpy(&half, head + at / 2 * 2, 2);
    return a->fp8 ? e4m3_to_float(head[at]) : bf16_to_float(half);
}
static void put(const attention *a, uint8_t *head, bool value, int token, int i, float x)
{
    size_t at = (size_t)token * DIM + (size_t)i, bytes = a->fp8 ? 1 : 2;
    at = (at + (value ? (size_t)CUDA_BLOCK_TOKENS * DIM : 0)) * bytes;
    uint16_t half = bf16_from_float(x);
    if (a->fp8)
        head[at] = e4m3_from_float(x);
    else
        memcpy(head + at, &half, 2);
}
static const uint8_t *head_at(const attention *a, int s, int b, int group)
{
    return a->cache + (size_t)a->table[s * BLOCKS + b] * ROW_BYTES + 256 + (size_t)group * HEAD_BYTES;
}

static int least_position(int s)
{
    return positions[s] - WINDOW + 1 > 0 ? positions[s] - WINDOW + 1 : 0;
}

/* Some keys stand out, some of them so far that their weights pass fp16, and what no row sees is NaN. */
static void make_attention(attention *a, bool fp8)
{
    random_state = 9;
    a->fp8 = fp8;
    for (int i = 0; i < OUT; i++) a->q[i] = bf16_round(random_normal() * (i / DIM % 3 ? 1 : 1e-3f));
    for (int i = 0; i < SEQUENCES * STRIDE * KV_HEADS * DIM; i++)
        a->own_k[i] = bf16_round(random_normal()), a->own_v[i] = bf16_round(random_normal());
    memset(a->cache, fp8 ? 0x7F : 0xFF, sizeof a->cache);
    for (int s = 0, next = CACHED; s < SEQUENCES; s++) {
        int low = least_position(s), first = low / CUDA_BLOCK_TOKENS;
        int end = (positions[s] + CUDA_BLOCK_TOKENS - 1) / CUDA_BLOCK_TOKENS;
        a->sequence[s] = (draft_sequence){.position = positions[s],
                                          .first_block = first,
                                          .blocks = end - first + 1,
                                          .rows = lines[s],
                                          .wanted = lines[s]};
        assert_true(end - first + 1 <= BLOCKS);
        for (int b = 0; b < end - first; b++) {
            a->table[s * BLOCKS + b] = --next;
            assert_true(next >= 0);
            for (int group = 0; group < KV_HEADS; group++)
                for (int t = 0; t < CUDA_BLOCK_TOKENS; t++) {
                    int position = (first + b) * CUDA_BLOCK_TOKENS + t;
                    if (position < low || position >= positions[s]) continue;
                    float size = random_below(50) ? 1 : random_below(8) ? 3 : 30;
                    for (int i = 0; i < DIM; i++) {
                        put(a, (uint8_t *)head_at(a, s, b, group), false, t, i, random_normal() * size);
                        put(a, (uint8_t *)head_at(a, s, b, group), true, t, i, random_normal());
                    }
                }
        }
    }
}

static void exact_row(const attention *a, int s, int k, int head, double out[DIM])
{
    const draft_sequence *of = &a->sequence[s];
    int group = head / PER_HEAD, context = positions[s], low = context + k - WINDOW + 1;
    const float *q = a->q + ((size_t)(s * STRIDE + k) * HEADS + (size_t)head) * DIM;
    double *score = malloc((size_t)(context + STRIDE) * sizeof *score), most = -INFINITY, sum = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int j = low > 0 ? low : 0; j < context + of->rows; j++) {
            int b = j / CUDA_BLOCK_TOKENS - of->first_block, t = j % CUDA_BLOCK_TOKENS;
            const uint8_t *from = j < context ? head_at(a, s, b, group) : NULL;
            size_t own = ((size_t)(s * STRIDE + j - context) * KV_HEADS + (size_t)group) * DIM;
            if (pass == 0) {
                score[j] = 0;
                for (int i = 0; i < DIM; i++)
                    score[j] += q[i] * (double)(from ? cached(a, from, false, t, i) : a->own_k[own + (size_t)i]);
                score[j] /= sqrt(DIM);
                most = fmax(most, score[j]);
                continue;
            }
            double p = exp(score[j] - most);
            sum += p;
            for (int i = 0; i < DIM; i++)
                out[i] += p * (double)(from ? cached(a, from, true, t, i) : a->own_v[own + (size_t)i]);
        }
    for (int i = 0; i < DIM; i++) out[i] /= sum;
    free(score);
}

static uint16_t *halves_of(gpu *g, const float *x, int count)
{
    uint16_t *half = malloc((size_t)count * 2);
    for (int i = 0; i < count; i++) half[i] = bf16_from_float(x[i]);
    uint16_t *device = device_put(g, half, (size_t)count * 2);
    free(half);
    return device;
}

/* mode -1: the kernel of all GPUs. */
static uint16_t *run(gpu *g, const attention *a, int mode)
{
    size_t parts = (size_t)SEQUENCES * KV_HEADS * BLOCKS * QUERIES;
    draft_attend_args args = {.sequence = device_put(g, a->sequence, sizeof a->sequence),
                              .cache = {.base = device_put(g, a->cache, sizeof a->cache),
                                        .row_bytes = ROW_BYTES,
                                        .draft = a->fp8 ? KERNEL_CACHE_FP8 : KERNEL_CACHE_BF16,
                                        .draft_head_bytes = HEAD_BYTES,
                                        .draft_v_data = CUDA_BLOCK_TOKENS * DIM * (a->fp8 ? 1 : 2)},
                              .at = 256,
                              .table = device_put(g, a->table, sizeof a->table),
                              .stride = STRIDE,
                              .heads = HEADS,
                              .kv_heads = KV_HEADS,
                              .dim = DIM,
                              .window = WINDOW,
                              .scale = 1.44269504f / sqrtf(DIM),
                              .q = halves_of(g, a->q, OUT),
                              .own_k = halves_of(g, a->own_k, SEQUENCES * STRIDE * KV_HEADS * DIM),
                              .own_v = halves_of(g, a->own_v, SEQUENCES * STRIDE * KV_HEADS * DIM),
                              .blocks = BLOCKS,
                              .places = mode <= DRAFT_BLOCKS ? (int)BLOCKS : DRAFT_RUNS + 1,
                              .queries = QUERIES,
                              .part_state = device_take(g, parts * DRAFT_PART_STATE * sizeof(float)),
                              .part_out = device_take(g, parts * DIM * sizeof(float)),
                              .attention = device_take(g, OUT * sizeof(uint16_t)),
                              .mode = mode < 0 ? 0 : mode,
                              .tiles = (QUERIES + DRAFT_HOPPER_QUERIES - 1) / DRAFT_HOPPER_QUERIES};
    static const char *const names[] = {"draft_attend_fp8_whole", "draft_attend_fp8_half", "draft_attend_fp8_eighth"};
    static const int clusters[] = {1, 2, 8};
    int fp8_tile = mode > 0 ? DRAFT_FP8_NARROW : DRAFT_FP8_WIDE;
    if (a->fp8 && mode >= 0) args.tiles = (QUERIES + fp8_tile - 1) / fp8_tile;
    int across = mode == DRAFT_WHOLE ? 1 : mode == DRAFT_BY_RUNS ? (int)DRAFT_RUNS : (int)BLOCKS;
    if (mode < 0)
        device_run(g, "draft_attend_128", BLOCKS, KV_HEADS, SEQUENCES, DRAFT_ATTEND_THREADS,
                   (size_t)(2 * CUDA_BLOCK_TOKENS * (DIM + DRAFT_PAD)) * sizeof(uint16_t), &args, sizeof args);
    else if (a->fp8)
        device_run(g, names[mode], clusters[mode], KV_HEADS * args.tiles, SEQUENCES, DRAFT_FP8_THREADS,
                   DRAFT_FP8_SHARED, &args, sizeof args);
    else
        device_run(g, "draft_attend_bf16", across, KV_HEADS * args.tiles, SEQUENCES, DRAFT_HOPPER_THREADS,
                   (size_t)DRAFT_HOPPER_SHARED + (mode == DRAFT_WHOLE ? DRAFT_HOPPER_TOTAL : DRAFT_HOPPER_OWN), &args,
                   sizeof args);
    int tiles = QUERIES / 16, warps = DRAFT_FOLD_THREADS / CUDA_WARP;
    if (a->fp8 && mode >= 0)
        ;
    else if (mode <= DRAFT_BLOCKS)
        device_run(g, "draft_fold", tiles * DIM / 8, KV_HEADS, SEQUENCES, DRAFT_RUNS * CUDA_WARP, 0, &args,
                   sizeof args);
    else if (mode == DRAFT_BY_RUNS)
        device_run(g, "draft_fold_runs", tiles * DIM / 8 / warps, KV_HEADS, SEQUENCES, DRAFT_FOLD_THREADS, 0, &args,
                   sizeof args);
    uint16_t *got = device_get(g, args.attention, OUT * sizeof(uint16_t));
    const void *const taken[] = {args.sequence, args.cache.base, args.table,    args.q,        args.own_k,
                                 args.own_v,    args.part_state, args.part_out, args.attention};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) g->calls->free(g, (void *)taken[i]);
    return got;
}

static void attends_of(bool fp8)
{
    gpu *g = device_open();
    gpu_info info;
    g->calls->info(g, &info);
    attention *a = malloc(sizeof *a);
    uint16_t *got[4];
    make_attention(a, fp8);
    int forms = info.major == 9 ? 4 : 1;
    for (int i = 0; i < forms; i++) got[i] = run(g, a, i - 1);
    double worst = 0;
    for (int s = 0; s < SEQUENCES; s++)
        for (int k = 0; k < lines[s]; k++)
            for (int head = 0; head < HEADS; head++) {
                size_t at = ((size_t)(s * STRIDE + k) * HEADS + (size_t)head) * DIM;
                double out[DIM] = {0}, squares = 0;
                exact_row(a, s, k, head, out);
                for (int i = 0; i < DIM; i++) squares += out[i] * out[i];
                for (int n = 0; n < forms; n++) {
                    double differences = 0;
                    for (int i = 0; i < DIM; i++) {
                        double d = (double)bf16_to_float(got[n][at + (size_t)i]) - out[i];
                        differences += d * d;
                    }
                    double error = sqrt(differences / squares);
                    if (!(error < 5e-3))
                        fail_msg("form %d, sequence %d, row %d, head %d: differs by %g", n, s, k, head, error);
                    worst = fmax(worst, error);
                }
                for (int n = 2; n < forms; n++)
                    for (int i = 0; i < DIM; i++) assert_int_equal(got[n][at + (size_t)i], got[1][at + (size_t)i]);
            }
    printf("%s: differs by %.2g at most\n", fp8 ? "fp8" : "bf16", worst);
    for (int i = 0; i < forms; i++) free(got[i]);
    free(a);
    g->calls->close(g);
}

static void attends_fp8(void **state)
{
    (void)state;
    attends_of(true);
}
static void attends_bf16(void **state)
{
    (void)state;
    attends_of(false);
}

/* Launches of every mode at the released sizes, for a profiler: 32 sequences behind full windows, and one. */
static void launch_released(void)
{
    enum {
        COUNT = 32,
        OF = 33,
        GROUPS = 4,
        ROWS = 7,
        ALL = 64,
        BYTES = 2 * CUDA_BLOCK_TOKENS * DIM,
        PAGE = GROUPS * BYTES
    };
    gpu *g = device_open();
    size_t bytes = (size_t)COUNT * (OF - 1) * PAGE, halves = (size_t)COUNT * ROWS * ALL * DIM;
    uint8_t *cache = malloc(bytes);
    float *q = malloc(halves * sizeof *q);
    int32_t table[COUNT * OF];
    draft_sequence sequence[COUNT];
    for (size_t i = 0; i < bytes; i += 4) {
        uint32_t codes = random_bits() & 0xBFBFBFBFu;
        memcpy(cache + i, &codes, 4);
    }
    for (size_t i = 0; i < halves; i++) q[i] = random_normal();
    for (int i = 0; i < COUNT * OF; i++) table[i] = (i / OF * (OF - 1) + i % OF) % (COUNT * (OF - 1));
    for (int s = 0; s < COUNT; s++)
        sequence[s] = (draft_sequence){.position = 4096, .blocks = OF, .rows = ROWS, .wanted = ROWS};
    draft_attend_args args = {.sequence = device_put(g, sequence, sizeof sequence),
                              .cache = {.base = device_put(g, cache, bytes),
                                        .row_bytes = PAGE,
                                        .draft = KERNEL_CACHE_FP8,
                                        .draft_head_bytes = BYTES,
                                        .draft_v_data = CUDA_BLOCK_TOKENS * DIM},
                              .table = device_put(g, table, sizeof table),
                              .stride = ROWS,
                              .heads = ALL,
                              .kv_heads = GROUPS,
                              .dim = DIM,
                              .window = 4096,
                              .scale = 1.44269504f / sqrtf(DIM),
                              .q = halves_of(g, q, (int)halves),
                              .own_k = halves_of(g, q, COUNT * ROWS * GROUPS * DIM),
                              .own_v = halves_of(g, q, COUNT * ROWS * GROUPS * DIM),
                              .blocks = OF,
                              .places = OF,
                              .queries = ROWS * ALL / GROUPS,
                              .part_state = device_take(g, (size_t)COUNT * GROUPS * OF * 112 * DRAFT_PART_STATE * 4),
                              .part_out = device_take(g, (size_t)COUNT * GROUPS * OF * 112 * DIM * 4),
                              .attention = device_take(g, halves * 2),
                              .tiles = 1};
    static const struct {
        const char *name;
        int cluster, queries;
    } forms[] = {{"draft_attend_fp8_whole", 1, DRAFT_FP8_WIDE},
                 {"draft_attend_fp8_half", 2, DRAFT_FP8_NARROW},
                 {"draft_attend_fp8_eighth", 8, DRAFT_FP8_NARROW}};
    static const int counts[] = {1, 4, 8, 16, 32};
    for (int i = 0; i < 30; i++) {
        int n = i / 5 % 3;
        args.tiles = (args.queries + forms[n].queries - 1) / forms[n].queries;
        device_run(g, forms[n].name, forms[n].cluster, GROUPS * args.tiles, counts[i % 5], DRAFT_FP8_THREADS,
                   DRAFT_FP8_SHARED, &args, sizeof args);
    }
    free(device_get(g, args.attention, 2));
}

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    if (argc > 1 && !strcmp(argv[1], "launch")) return launch_released(), 0;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(attends_fp8), cmocka_unit_test(attends_bf16)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
