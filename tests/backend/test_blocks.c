/*
 * The loops over cache blocks: every variant that this machine runs gives the bits of a scalar twin of what blocks.h
 * defines, for odd sizes and every format, and what is decoded and encoded is that of src/number.
 */
#include "backend/random_model.h"

#include "backend/cpu/blocks.h"
#include "base/memory.h"
#include "number/bits.h"
#include "number/e2m1.h"
#include "number/nvfp4.h"

#include <float.h>

static const cpu_blocks *all[4];
static int count;

static int setup(void **state)
{
    (void)state;
    count = cpu_blocks_all(all);
    for (int i = 0; i < count; i++) printf("# variant %s\n", all[i]->name);
    return 0;
}

static void *lines(size_t floats)
{
    float *at = memory_zeroed(floats, sizeof *at);
    assert_non_null(at);
    return at;
}

static void expect_bits(const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(isnan(got[i]) && isnan(want[i]))) assert_int_equal(bits_of_float(got[i]), bits_of_float(want[i]));
}

/* ---- A block of some format -------------------------------------------------------------------------------------- */

typedef struct coded {
    cache_format format;
    bool quads;
    int dim;
    uint8_t *data, *scales;
    float *values; /* [128][dim] exact */
} coded;

static coded coded_make(cache_format format, bool quads, int dim, bool round, bool nan)
{
    coded c = {format,
               quads,
               dim,
               calloc(128, (size_t)dim * 2),
               calloc(128, (size_t)dim / 16 + 1),
               malloc(128 * (size_t)dim * sizeof(float))};
    int groups = dim / 16;
    for (int t = 0; t < 128; t++)
        for (int d = 0; d < dim; d++) {
            float *v = &c.values[t * dim + d];
            if (format == CACHE_BF16) {
                uint16_t half = bf16_from_float(random_normal());
                if (nan && random_below(999) == 0) half = 0x7FC0;
                memcpy(c.data + 2 * (t * dim + d), &half, sizeof half);
                *v = bf16_to_float(half);
            } else if (format == CACHE_FP8) {
                uint8_t code = (uint8_t)random_below(256);
                if (!nan && (code & 0x7F) == 0x7F) code = 0;
                c.data[t * dim + d] = code;
                *v = e4m3_to_float(code);
            } else {
                int at = quads ? t / 4 * 4 * groups + d / 16 * 4 + t % 4 : t * groups + d / 16;
                if (d % 16 == 0) {
                    c.scales[at] = (uint8_t)(nan ? random_below(256) : 0x18 + random_below(0x20));
                    if (!nan && random_below(50) == 0) c.scales[at] = (uint8_t)random_below(9); /* subnormal */
                }
                uint8_t code = (uint8_t)random_below(16);
                c.data[(t * dim + d) / 2] |= (uint8_t)(code << (d % 2 * 4));
                *v = e2m1_to_float(code) * e4m3_to_float(c.scales[at]);
                if (round) *v = e4m3_round(*v);
            }
        }
    return c;
}

static void coded_free(coded *c)
{
    free(c->data), free(c->scales), free(c->values);
}

static const int dims[] = {16, 48, 64, 128, 144};
enum { DIMS = sizeof dims / sizeof *dims, MAX_DIM = 144 };
static const int token_counts[] = {1, 2, 15, 16, 17, 31, 100, 127, 128};
enum { COUNTS = sizeof token_counts / sizeof *token_counts };
static const cache_format formats[] = {CACHE_BF16, CACHE_FP8, CACHE_NVFP4};

/* ---- Coding ------------------------------------------------------------------------------------------------------ */

static void decoding(void **state)
{
    (void)state;
    float *out = lines((MAX_DIM + 15) * 128);
    for (int f = 0; f < 3; f++)
        for (int i = 0; i < DIMS + 1; i++)
            for (int kind = 0; kind < 4; kind++) {
                int dim = i < DIMS ? dims[i] : 37;
                bool quads = kind & 1, round = kind & 2;
                if (dim % 16 && formats[f] == CACHE_NVFP4) continue;
                coded c = coded_make(formats[f], quads, dim, round, true);
                for (int v = 0; v < count; v++)
                    for (int n = 0; n < COUNTS; n++) {
                        int tokens = token_counts[n];
                        for (int k = 0; k < (dim + 15) / 16 * 16 * 128; k++) out[k] = 77;
                        all[v]->decode(c.format, c.data, c.scales, quads, round, tokens, dim, out);
                        for (int t = 0; t < 128; t++)
                            for (int d = 0; d < (dim + 15) / 16 * 16; d++) {
                                float want = t >= tokens ? 77 : d < dim ? c.values[t * dim + d] : 0;
                                expect_bits(&out[d / 16 * 2048 + t * 16 + d % 16], &want, 1);
                            }
                    }
                coded_free(&c);
            }
    memory_free(out);
}

static int32_t pair_at(const int32_t *pairs, size_t stride, int dim, int k)
{
    int32_t pair = pairs[(size_t)(k % 4 * (dim / 8) + k / 8) * stride];
    return k / 4 % 2 ? pair >> 16 : (int16_t)pair;
}

static void integer_keys(void **state)
{
    (void)state;
    int32_t *pairs = lines(128 * MAX_DIM / 2);
    float *scales = lines(128 * MAX_DIM / 16);
    for (int i = 0; i < DIMS; i++) {
        int dim = dims[i];
        coded c = coded_make(CACHE_NVFP4, false, dim, false, true);
        for (int v = 0; v < count; v++)
            for (int n = 0; n < COUNTS; n++) {
                all[v]->decode_pairs(c.data, c.scales, token_counts[n], dim, pairs, scales);
                for (int t = 0; t < token_counts[n]; t++)
                    for (int d = 0; d < dim; d++) {
                        float scale = scales[t * (dim / 16) + d / 16], want = c.values[t * dim + d];
                        float got = 0.5f * (float)pair_at(pairs + t * dim / 2, 1, dim, d) * scale;
                        assert_true(isnan(want) ? isnan(scale) : got == want);
                    }
            }
        coded_free(&c);
    }
    memory_free(pairs);
    memory_free(scales);
}

static void encoding(void **state)
{
    (void)state;
    enum { DIM = 64 };
    for (int i = 0; i < 20000; i++) {
        float x[DIM], spread = ldexpf(1, random_below(60) - 40);
        for (int d = 0; d < DIM; d++) x[d] = random_normal() * spread * (float)(d / 16 + 1);
        if (i % 7 == 0) x[random_below(DIM)] = i % 2 ? NAN : -INFINITY;
        if (i % 11 == 0) memset(x, 0, 20 * sizeof *x);
        if (i % 13 == 0) x[3] = -0.0f;
        /* Quotients that lie between two codes. */
        for (int d = 16; d < 32 && i % 3 == 0; d++) x[d] = (float)random_below(49) * 0.125f * (d % 2 ? 1 : -1);
        uint8_t data[DIM / 2], scales[4], got[DIM / 2], got_scales[16];
        for (int d = 0; d < DIM; d++) x[d] = d < 48 ? bf16_round(x[d]) : x[d];
        float rounded[DIM];
        for (int d = 0; d < DIM; d++) rounded[d] = bf16_round(x[d]);
        nvfp4_cache_quantise_row(rounded, 4, data, scales);
        for (int v = 0; v < count; v++)
            for (int stride = 1; stride <= 4; stride += 3) {
                all[v]->encode_nvfp4(x, DIM, got, got_scales, stride);
                assert_memory_equal(got, data, sizeof data);
                for (int g = 0; g < 4; g++) assert_int_equal(got_scales[g * stride], scales[g]);
            }
    }
}

/* Every bf16 number, as it is and over a scale, and numbers that rounding to bf16 moves. */
static void encoding_e4m3(void **state)
{
    (void)state;
    enum { DIM = 72 }; /* whole lanes and a rest */
    static const float scales[] = {1, 0.37f, 3};
    for (uint32_t first = 0; first < 1u << 16; first += DIM)
        for (int s = 0; s < 3; s++) {
            float x[DIM];
            uint8_t want[DIM], got[DIM];
            for (uint32_t d = 0; d < DIM; d++) {
                uint32_t bits = (first + d) << 16 | (d % 3 == 2 ? (uint32_t)random_below(1 << 16) : 0);
                memcpy(&x[d], &bits, sizeof bits);
                want[d] = e4m3_from_float(bf16_round(x[d]) / scales[s]);
            }
            for (int v = 0; v < count; v++) {
                all[v]->encode_e4m3(x, DIM, scales[s], got);
                assert_memory_equal(got, want, DIM);
            }
        }
}

/* ---- Queries ----------------------------------------------------------------------------------------------------- */

/* I and 2^-s / 2 of one query. */
static float fixed_point(const float *q, int dim, int32_t *fixed)
{
    float largest = 0;
    bool wrong = false;
    for (int d = 0; d < dim; d++) {
        largest = fmaxf(largest, fabsf(q[d]));
        wrong |= !isfinite(q[d]);
    }
    int exponent = -112;
    if (!wrong && largest >= 0x1p-112f) exponent = ilogbf(largest);
    for (int d = 0; d < dim; d++) fixed[d] = wrong ? 0 : (int32_t)nearbyint(ldexp((double)q[d], 14 - exponent));
    return wrong ? NAN : ldexpf(0.5f, exponent - 14);
}

static float *random_queries(int n, int dim)
{
    float *q = random_floats((size_t)(n * dim), 1, true);
    for (int i = 0; i < n; i++) {
        float spread = ldexpf(1, random_below(20) - 10);
        for (int d = 0; d < dim; d++)
            q[i * dim + d] = bf16_round(q[i * dim + d] * spread * ldexpf(1, -random_below(12)));
    }
    return q;
}

static void queries(void **state)
{
    (void)state;
    int32_t *pairs = lines(MAX_DIM * 8), fixed[MAX_DIM];
    float *lanes = lines(MAX_DIM * 16), unscale[LANES];
    for (int i = 0; i < DIMS; i++)
        for (int heads = 1; heads <= LANES; heads++) {
            int dim = dims[i];
            float *q = random_queries(heads, dim);
            if (heads > 3) q[2 * dim + 5] = NAN, q[3 * dim] = -INFINITY, memset(q, 0, (size_t)dim * sizeof *q);
            if (heads > 4)
                for (int d = 0; d < dim; d++) q[4 * dim + d] = ldexpf((float)(d % 7 - 3), d % 3 ? -118 : -130);
            for (int v = 0; v < count; v++) {
                all[v]->query_pairs(q, (size_t)dim, heads, dim, pairs, unscale);
                all[v]->query_lanes(q, (size_t)dim, heads, dim, lanes);
                for (int h = 0; h < LANES; h++) {
                    float want = h < heads ? fixed_point(q + h * dim, dim, fixed) : 0;
                    if (h < heads) expect_bits(&unscale[h], &want, 1);
                    for (int d = 0; d < dim; d++) {
                        float value = h < heads ? q[h * dim + d] : 0;
                        expect_bits(&lanes[d * LANES + h], &value, 1);
                        if (!isnan(want)) assert_int_equal(pair_at(pairs + h, LANES, dim, d), h < heads ? fixed[d] : 0);
                    }
                }
            }
            free(q);
        }
    memory_free(pairs);
    memory_free(lanes);
}

/* q . k as blocks.h defines it: NVFP4 that is read exactly by integers, without 2^-s / 2. */
static float dot(const coded *c, bool integers, const float *q, const int32_t *fixed, int t)
{
    float sum = 0;
    if (!integers) {
        for (int d = 0; d < c->dim; d++) sum = fmaf(q[d], c->values[t * c->dim + d], sum);
        return sum;
    }
    for (int g = 0; g < c->dim / 16; g++) {
        int32_t whole = 0;
        for (int d = 16 * g; d < 16 * g + 16; d++) {
            uint8_t code = e2m1_code(c->data, (uint64_t)(t * c->dim + d));
            whole += fixed[d] * (int32_t)(2 * e2m1_to_float(code));
        }
        sum = fmaf((float)whole, e4m3_to_float(c->scales[t * (c->dim / 16) + g]), sum);
    }
    return sum;
}

/* ---- Index scores ------------------------------------------------------------------------------------------------ */

static void scores(void **state)
{
    (void)state;
    enum { COLUMNS = 11 };
    float *keys = lines((MAX_DIM + 15) * 128), *scratch = lines(SCORE_SCRATCH(MAX_DIM, COLUMNS));
    int32_t *pairs = lines(COLUMNS * MAX_DIM / 2), fixed[COLUMNS][MAX_DIM], *lanes = lines(MAX_DIM * 8);
    for (int f = 0; f < 3; f++)
        for (int i = 0; i < DIMS; i++)
            for (int kind = 0; kind < 3; kind++) {
                int dim = dims[i];
                coded c = coded_make(formats[f], false, dim, kind == 2, kind == 1);
                bool integers = formats[f] == CACHE_NVFP4 && kind < 2;
                float *q = random_queries(COLUMNS, dim), unscale[LANES];
                for (int n = 0; n < COLUMNS; n++) fixed_point(q + n * dim, dim, fixed[n]);
                for (int first = -3; first <= 128; first += first % 5 == 2 ? 1 : 7)
                    for (int v = 0; v < count; v++) {
                        int32_t visible[COLUMNS];
                        float best[COLUMNS], want[COLUMNS];
                        int columns = 1 + (first + 3) % COLUMNS;
                        for (int n = 0; n < columns; n++) {
                            visible[n] = first + n * 3 < 128 ? first + n * 3 : 128;
                            want[n] = -INFINITY;
                            for (int t = 0; t < visible[n]; t++) {
                                float s = dot(&c, integers, q + n * dim, fixed[n], t);
                                if (s > want[n]) want[n] = s;
                            }
                            want[n] += 0.0f;
                        }
                        if (integers) {
                            all[v]->query_pairs(q, (size_t)dim, columns, dim, lanes, unscale);
                            for (int n = 0; n < columns; n++)
                                for (int p = 0; p < dim / 2; p++) pairs[n * dim / 2 + p] = lanes[p * LANES + n];
                            all[v]->score_pairs(c.data, c.scales, dim, pairs, columns, visible, c.data, best, scratch);
                        } else {
                            all[v]->decode(c.format, c.data, c.scales, false, kind == 2, 128, dim, keys);
                            all[v]->score_keys(keys, dim, q, columns, visible, best, scratch);
                        }
                        for (int n = 0; n < columns; n++)
                            assert_int_equal(bits_of_float(best[n]), bits_of_float(want[n]));
                    }
                free(q);
                coded_free(&c);
            }
    memory_free(keys);
    memory_free(scratch);
    memory_free(pairs);
    memory_free(lanes);
}

/* A token whose scale is NaN is left out, however large the others of its scales are; all of them NaN: -inf. */
static void not_a_number(void **state)
{
    (void)state;
    enum { DIM = 128 };
    uint8_t data[128 * DIM / 2], scales[128 * 8];
    float *scratch = lines(SCORE_SCRATCH(DIM, 1)), best;
    int32_t query[DIM / 2], visible = 128;
    memset(data, 0x22, sizeof data); /* ones: 2 C = 2 */
    memset(scales, 0x38, sizeof scales);
    for (int p = 0; p < DIM / 2; p++) query[p] = 1 | 1 << 16;
    memset(scales + 5 * 8, 0x70, 8), scales[5 * 8 + 3] = 0x7F;
    for (int v = 0; v < count; v++) {
        all[v]->score_pairs(data, scales, DIM, query, 1, &visible, NULL, &best, scratch);
        assert_true(best == 2 * DIM);
    }
    memset(scales, 0xFF, sizeof scales);
    for (int v = 0; v < count; v++) {
        all[v]->score_pairs(data, scales, DIM, query, 1, &visible, NULL, &best, scratch);
        assert_true(best == -INFINITY);
    }
    memory_free(scratch);
}

/* ---- Attention --------------------------------------------------------------------------------------------------- */

/* 2^x, x <= 0, in the steps of blocks_body.h. */
static float power_of_two(float x)
{
    float t = x + 0x1.8p23f, r = x - (t - 0x1.8p23f), y = r * 0x1.5bba0ep-10f + 0x1.3cea88p-7f;
    y = y * r + 0x1.c6b752p-5f;
    y = y * r + 0x1.ebf9bcp-3f;
    y = y * r + 0x1.62e42ap-1f;
    y = y * r + 1.0f;
    if (isnan(x)) return NAN;
    return x < -62.0f ? 0 : float_of_bits(bits_of_float(y) + (bits_of_float(t) << 23));
}

typedef struct twin_state {
    float max, sum, out[MAX_DIM];
} twin_state;

/* One block of one head. */
static void twin(const coded *k, const coded *v, bool integers, const float *q, float factor, int tokens, bool first,
                 twin_state *s)
{
    int32_t fixed[MAX_DIM];
    float unscale = fixed_point(q, k->dim, fixed), x[128], most = -INFINITY, sum = 0, out[MAX_DIM] = {0};
    if (integers) factor = factor * unscale;
    for (int t = 0; t < tokens; t++) {
        x[t] = dot(k, integers, q, fixed, t) * factor;
        if (x[t] > most) most = x[t];
    }
    for (int t = 0; t < tokens; t++) {
        float e = power_of_two(x[t] - most);
        sum += e;
        e = bf16_round(e);
        for (int d = 0; d < k->dim; d++) out[d] = fmaf(e, v->values[t * k->dim + d], out[d]);
    }
    if (first) {
        s->max = most, s->sum = sum;
        memcpy(s->out, out, sizeof out);
        return;
    }
    float m = most > s->max ? most : s->max, keep = power_of_two(s->max - m), add = power_of_two(most - m);
    s->sum = s->sum * keep + sum * add;
    for (int d = 0; d < k->dim; d++) s->out[d] = s->out[d] * keep + out[d] * add;
    s->max = m;
}

enum { ROWS_TESTED = 5, BLOCKS_TESTED = 3 };

typedef struct attention_case {
    coded keys[BLOCKS_TESTED], values[BLOCKS_TESTED];
    bool integers, round;
    int dim, heads, tokens[BLOCKS_TESTED][ROWS_TESTED]; /* 0: not taken */
    float *q;                                           /* [rows][heads][dim] */
} attention_case;

/* Every row against the twin. With `apart` each block goes into a state of its own and is folded afterwards. */
static void attend_case(const attention_case *a, const cpu_blocks *blocks, bool apart)
{
    static cpu_softmax states[ROWS_TESTED], lone;
    int dim = a->dim;
    size_t row = (size_t)dim * LANES;
    float *query = lines(ROWS_TESTED * row), *out = lines(ROWS_TESTED * row), *alone = lines(row);
    float *scratch = lines(ATTEND_SCRATCH(dim, ROWS_TESTED));
    float factor[ROWS_TESTED][LANES], scale = 0.3f;
    twin_state *want = calloc(ROWS_TESTED * LANES, sizeof *want);
    bool seen[ROWS_TESTED] = {false};
    for (int r = 0; r < ROWS_TESTED; r++) {
        const float *q = a->q + r * a->heads * dim;
        for (int n = 0; n < LANES; n++) factor[r][n] = 1;
        if (a->integers)
            blocks->query_pairs(q, (size_t)dim, a->heads, dim, (int32_t *)(query + (size_t)r * row), factor[r]);
        else
            blocks->query_lanes(q, (size_t)dim, a->heads, dim, query + (size_t)r * row);
        for (int n = 0; n < LANES; n++) factor[r][n] *= scale;
    }
    for (int b = 0; b < BLOCKS_TESTED; b++) {
        cpu_block block = {.dim = dim,
                           .format = a->keys[b].format,
                           .integers = a->integers,
                           .round = a->round,
                           .keys = a->keys[b].data,
                           .key_scales = a->keys[b].scales,
                           .values = a->values[b].data,
                           .value_scales = a->values[b].scales};
        if (b + 1 < BLOCKS_TESTED) block.next = a->keys[b + 1].data, block.next_bytes = 999;
        cpu_query_row rows[ROWS_TESTED];
        int n = 0;
        for (int r = 0; r < ROWS_TESTED; r++) {
            int tokens = a->tokens[b][r];
            if (tokens == 0) continue;
            for (int h = 0; h < a->heads; h++)
                twin(&a->keys[b], &a->values[b], a->integers, a->q + (r * a->heads + h) * dim, scale, tokens, !seen[r],
                     &want[r * LANES + h]);
            rows[n] = (cpu_query_row){.query = query + (size_t)r * row,
                                      .factor = factor[r],
                                      .tokens = tokens,
                                      .first = !seen[r],
                                      .state = &states[r],
                                      .out = out + (size_t)r * row};
            if (apart && seen[r]) {
                rows[n].first = true, rows[n].state = &lone, rows[n].out = alone;
                blocks->attend(&block, &rows[n], 1, scratch);
                blocks->fold(&states[r], out + (size_t)r * row, &lone, alone, dim);
            } else if (apart) {
                blocks->attend(&block, &rows[n], 1, scratch);
            } else {
                n++;
            }
            seen[r] = true;
        }
        blocks->attend(&block, rows, n, scratch);
    }
    for (int r = 0; r < ROWS_TESTED; r++) {
        float *to = malloc(LANES * (size_t)dim * sizeof *to);
        blocks->finish(&states[r], out + (size_t)r * row, 1.5f, dim, a->heads, to, (size_t)dim);
        for (int h = 0; h < a->heads && seen[r]; h++) {
            const twin_state *w = &want[r * LANES + h];
            expect_bits(&states[r].max[h], &w->max, 1);
            expect_bits(&states[r].sum[h], &w->sum, 1);
            for (int d = 0; d < dim; d++) {
                float end = bf16_round(w->out[d] * (1.5f / w->sum));
                expect_bits(&out[(size_t)r * row + (size_t)(d * LANES + h)], &w->out[d], 1);
                expect_bits(&to[h * dim + d], &end, 1);
            }
        }
        free(to);
    }
    float *scratches[] = {query, out, alone, scratch};
    for (size_t i = 0; i < sizeof scratches / sizeof *scratches; i++) memory_free(scratches[i]);
    free(want);
}

/* Rows that take different blocks and see different tokens of them, alone and together. */
static void attention(void **state)
{
    (void)state;
    for (int f = 0; f < 3; f++)
        for (int i = 0; i < DIMS; i++)
            for (int kind = 0; kind < 6; kind++) {
                attention_case a = {.dim = dims[i], .round = kind % 3 == 2, .heads = 1 + (kind * 5 + i) % LANES};
                if (kind == 0) a.heads = LANES;
                a.integers = formats[f] == CACHE_NVFP4 && !a.round;
                a.q = random_queries(ROWS_TESTED * a.heads, a.dim);
                if (kind == 3) a.q[a.dim / 2] = NAN;
                for (int b = 0; b < BLOCKS_TESTED; b++) {
                    a.keys[b] = coded_make(formats[f], false, a.dim, a.round, kind == 1);
                    a.values[b] = coded_make(formats[f], true, a.dim, a.round, kind == 1);
                    for (int r = 0; r < ROWS_TESTED; r++)
                        a.tokens[b][r] = kind == 0         ? 128
                                         : random_below(4) ? token_counts[random_below(COUNTS)]
                                         : random_below(2) ? 128
                                                           : 0;
                }
                for (int v = 0; v < count; v++)
                    for (int apart = 0; apart < 2; apart++) attend_case(&a, all[v], apart);
                for (int b = 0; b < BLOCKS_TESTED; b++) coded_free(&a.keys[b]), coded_free(&a.values[b]);
                free(a.q);
            }
}

/* Rows side by side in the lanes, each with its own number of tokens of every block, against each row by itself. */
static void abreast_case(const attention_case *a, const cpu_blocks *blocks)
{
    int dim = a->dim, heads = a->heads, rows = LANES / heads < ROWS_TESTED ? LANES / heads : ROWS_TESTED;
    size_t floats = (size_t)dim * LANES;
    float *query = lines(floats), *out = lines((ROWS_TESTED + 1) * floats), *scratch = lines(ATTEND_SCRATCH(dim, 1));
    float *all_out = out + ROWS_TESTED * floats, factor[LANES];
    cpu_softmax states[ROWS_TESTED], together;
    bool seen[ROWS_TESTED] = {false};
    for (int n = 0; n < LANES; n++) together.max[n] = -FLT_MAX, together.sum[n] = 0;
    for (int r = 0; r <= rows; r++) { /* the last: all of them */
        const float *q = r < rows ? a->q + r * heads * dim : a->q;
        int n = r < rows ? heads : rows * heads;
        for (int i = 0; i < LANES; i++) factor[i] = 1;
        if (a->integers)
            blocks->query_pairs(q, (size_t)dim, n, dim, (int32_t *)query, factor);
        else
            blocks->query_lanes(q, (size_t)dim, n, dim, query);
        for (int b = 0; b < BLOCKS_TESTED; b++) {
            cpu_block block = {.dim = dim,
                               .format = a->keys[b].format,
                               .integers = a->integers,
                               .round = a->round,
                               .keys = a->keys[b].data,
                               .key_scales = a->keys[b].scales,
                               .values = a->values[b].data,
                               .value_scales = a->values[b].scales};
            cpu_query_row row = {.query = query, .factor = factor};
            int32_t visible[LANES] = {0};
            for (int i = 0; i < rows; i++) {
                int tokens = a->tokens[b][i];
                for (int h = 0; h < heads; h++) visible[i * heads + h] = tokens;
                if ((i == r || r == rows) && tokens > row.tokens) row.tokens = tokens;
            }
            if (row.tokens == 0) continue;
            if (r < rows) {
                row.first = !seen[r], row.state = &states[r], row.out = out + (size_t)r * floats;
                seen[r] = true;
            } else {
                row.visible = visible, row.state = &together, row.out = all_out;
            }
            blocks->attend(&block, &row, 1, scratch);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < heads && seen[r]; h++) {
            int lane = r * heads + h;
            expect_bits(&together.max[lane], &states[r].max[h], 1);
            expect_bits(&together.sum[lane], &states[r].sum[h], 1);
            for (int d = 0; d < dim; d++)
                expect_bits(&all_out[d * LANES + lane], &out[(size_t)r * floats + (size_t)(d * LANES + h)], 1);
        }
    float *scratches[] = {query, out, scratch};
    for (size_t i = 0; i < sizeof scratches / sizeof *scratches; i++) memory_free(scratches[i]);
}

static void rows_abreast(void **state)
{
    (void)state;
    for (int f = 0; f < 3; f++)
        for (int i = 0; i < DIMS; i++)
            for (int kind = 0; kind < 8; kind++) {
                attention_case a = {.dim = dims[i], .round = kind == 7, .heads = 1 + kind};
                a.integers = formats[f] == CACHE_NVFP4 && !a.round;
                a.q = random_queries(ROWS_TESTED * a.heads, a.dim);
                for (int b = 0; b < BLOCKS_TESTED; b++) {
                    a.keys[b] = coded_make(formats[f], false, a.dim, a.round, kind == 1);
                    a.values[b] = coded_make(formats[f], true, a.dim, a.round, false);
                    for (int r = 0; r < ROWS_TESTED; r++)
                        a.tokens[b][r] = random_below(3)   ? token_counts[random_below(COUNTS)]
                                         : random_below(2) ? 128
                                                           : 0;
                }
                for (int v = 0; v < count; v++) abreast_case(&a, all[v]);
                for (int b = 0; b < BLOCKS_TESTED; b++) coded_free(&a.keys[b]), coded_free(&a.values[b]);
                free(a.q);
            }
}

/* Softmax over blocks of 1 to 128 tokens against double arithmetic. */
static void softmax(void **state)
{
    (void)state;
    enum { DIM = 48, BLOCKS = 4 };
    static const int tokens[BLOCKS] = {128, 1, 77, 128};
    coded k[BLOCKS], v[BLOCKS];
    float *q = random_floats(DIM, 1, true);
    for (int b = 0; b < BLOCKS; b++)
        k[b] = coded_make(CACHE_BF16, false, DIM, false, false), v[b] = coded_make(CACHE_BF16, true, DIM, false, false);
    twin_state s;
    double sum = 0, want[DIM] = {0};
    for (int b = 0; b < BLOCKS; b++) {
        twin(&k[b], &v[b], false, q, 0.3f * 1.44269504f, tokens[b], b == 0, &s);
        for (int t = 0; t < tokens[b]; t++) {
            double product = 0;
            for (int d = 0; d < DIM; d++) product += (double)q[d] * k[b].values[t * DIM + d];
            double e = exp(product * (double)0.3f);
            sum += e;
            for (int d = 0; d < DIM; d++) want[d] += e * v[b].values[t * DIM + d];
        }
        coded_free(&k[b]), coded_free(&v[b]);
    }
    for (int d = 0; d < DIM; d++) assert_true(fabs(s.out[d] / s.sum - want[d] / sum) < 5e-3);
    for (int i = 0; i < 620000; i++) {
        float x = (float)i * -1e-4f;
        assert_true(fabs((double)power_of_two(x) / exp2((double)x) - 1) < 3e-7);
    }
    assert_true(power_of_two(0) == 1 && power_of_two(-INFINITY) == 0);
    free(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding),      cmocka_unit_test(integer_keys), cmocka_unit_test(encoding),
        cmocka_unit_test(encoding_e4m3), cmocka_unit_test(queries),      cmocka_unit_test(scores),
        cmocka_unit_test(not_a_number),  cmocka_unit_test(attention),    cmocka_unit_test(rows_abreast),
        cmocka_unit_test(softmax),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
