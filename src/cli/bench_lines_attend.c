/* Selection and attention: index, attend and prefill of bench_lines.h. */
#include "cli/bench_lines.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"

enum { NARROW = 64, CONTEXT = 128 << 10, LONG_CONTEXT = 512 << 10, PREFILL_CONTEXT = 64 << 10, PREFILL_ROWS = 8192 };

typedef struct attention {
    lines_net net;
    int kv;         /* KV heads, and index heads */
    int32_t *lists; /* [rows, kv, index_top] */
    uint8_t *seen;  /* [sequences, kv, blocks of a sequence's own] */
} attention;

static int64_t capped(const bench_lines *b, int64_t context)
{
    return lines_least(context, b->most_context) / CACHE_BLOCK * CACHE_BLOCK;
}

/* A network of the target's heads for `kv` of its KV heads and little else. */
static hy_status open_heads(const bench_lines *b, int kv, attention *a, hy_error *err)
{
    ops_model shape = model_shape(b->target);
    shape.heads = shape.heads / shape.kv_heads * kv;
    shape.kv_heads = shape.index_heads = a->kv = kv;
    shape.hidden = shape.dense_width = shape.vocab = NARROW;
    shape.shared_width = 0;
    return lines_open(b, &shape, NULL, b->layers, 0, &a->net, err);
}

static void close_heads(attention *a)
{
    lines_close(&a->net);
    memory_free(a->lists);
    memory_free(a->seen);
    a->lists = NULL, a->seen = NULL;
}

static hy_status begin(attention *a, hy_error *err)
{
    lines_net *n = &a->net;
    const ops_model *m = &n->weights.model;
    n->b->ops->begin(n->step, n->cache, &n->rows.ops);
    hy_status status = lines_random(n, OPS_Q, (size_t)m->heads * (size_t)m->head_dim, err);
    if (status != HY_OK) return status;
    return lines_random(n, OPS_INDEX_Q, (size_t)m->index_heads * (size_t)m->index_dim, err);
}

/* The work of a line, over all layers. */
static void select_blocks(void *arg)
{
    const attention *a = arg;
    for (int l = 0; l < a->net.b->layers; l++) a->net.b->ops->index_select(a->net.step, l);
}

static void score_blocks(void *arg)
{
    const attention *a = arg;
    for (int l = 0; l < a->net.b->layers; l++) a->net.b->ops->index_score(a->net.step, l, 0, a->net.rows.blocks);
}

static void attend(void *arg)
{
    const attention *a = arg;
    for (int l = 0; l < a->net.b->layers; l++) a->net.b->ops->attend(a->net.step, l);
}

static const char *heads_name(int kv, const char *what, char out[24])
{
    snprintf(out, 24, "%d %s%s", kv, what, kv == 1 ? "" : "s");
    return out;
}

/* `kv` of the two kinds of shards: one head, and all. */
static int kinds(const bench_lines *b, int out[2])
{
    out[0] = 1, out[1] = b->target->kv_heads;
    return out[1] > 1 ? 2 : 1;
}

/* ---- index ---------------------------------------------------------------------------------------------------------
 */

static bench_cost index_cost(const attention *a, int32_t sequences, int32_t each, int64_t end)
{
    bench_work work = {.rows = sequences * each, .index_tokens = sequences * end};
    bench_cost cost = {.bytes = {0}};
    for (int32_t i = 0; i < each; i++) work.scored += sequences * (end - i);
    bench_cost_add(&a->net.shape, BENCH_INDEX, 0, &work, &cost);
    return cost;
}

static hy_status index_lines(attention *a, int32_t sequences, int32_t each, int64_t end, hy_error *err)
{
    char heads[24];
    lines_net *n = &a->net;
    lines_line l = {.rows = sequences * each, .context = end, .calls = n->b->layers, .arg = a};
    l.cost = index_cost(a, sequences, each, end);
    lines_rows(n, sequences, each, end, 0, false);
    hy_status status = begin(a, err);
    heads_name(a->kv, "head", heads);
    snprintf(l.name, sizeof l.name, "index_select, %s, %d x %d", heads, sequences, each);
    l.work = select_blocks;
    if (status == HY_OK) status = lines_measure(n, &l, err);
    snprintf(l.name, sizeof l.name, "index_score, %s, %d x %d", heads, sequences, each);
    l.work = score_blocks;
    if (status == HY_OK) status = lines_measure(n, &l, err);
    return lines_finish(n, status, err);
}

hy_status bench_lines_index(const bench_lines *b, hy_error *err)
{
    static const struct {
        int32_t sequences, each;
        int64_t context;
    } sizes[] = {{8, 1, CONTEXT}, {1, 1, CONTEXT}, {1, 1, LONG_CONTEXT}, {8, 4, CONTEXT}};
    int kv[2], count = kinds(b, kv);
    hy_status status = HY_OK;
    for (int k = 0; k < count && status == HY_OK; k++) {
        attention a = {.kv = 0};
        status = open_heads(b, kv[k], &a, err);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes && status == HY_OK; i++) {
            int64_t end = capped(b, sizes[i].context);
            ops_limits limits = {.rows = sizes[i].sequences * sizes[i].each, .positions = (int32_t)end};
            if (limits.rows > b->most_rows || end == 0) continue;
            status = lines_step(&a.net, &limits, sizes[i].sequences, 0, err);
            if (status == HY_OK) status = lines_fill(&a.net, a.net.rows.blocks, true, err);
            if (status == HY_OK) status = index_lines(&a, sizes[i].sequences, sizes[i].each, end, err);
        }
        close_heads(&a);
    }
    return status;
}

/* ---- attend --------------------------------------------------------------------------------------------------------
 */

/* Rows' lists. */
typedef struct selection {
    int32_t sequences, each;
    int32_t period; /* blocks that a sequence has of its own */
    bool shared;    /* all rows of a sequence select alike */
    uint64_t state;
} selection;

/* A list for a row that sees `visible` blocks: its own and others at random, whose numbers differ modulo `period`. */
static int32_t draw_list(selection *s, int32_t visible, int32_t top, int32_t *list)
{
    int32_t period = s->period < visible ? s->period : visible, count = 0;
    uint64_t used[8] = {0}; /* residues; a period is at most 512 */
    int32_t want = top < period ? top : period;
    used[(visible - 1) % period / 64] |= (uint64_t)1 << (visible - 1) % period % 64;
    while (count < want - 1) {
        int32_t r = (int32_t)(bench_random(&s->state) % (uint64_t)period);
        if (used[r / 64] >> r % 64 & 1) continue;
        used[r / 64] |= (uint64_t)1 << r % 64;
        int32_t turns = (visible - 1 - r + period - 1) / period; /* blocks of that residue below the row's own */
        int32_t block = r + period * (int32_t)(bench_random(&s->state) % (uint64_t)turns), at = count++;
        for (; at > 0 && list[at - 1] > block; at--) list[at] = list[at - 1];
        list[at] = block;
    }
    list[count++] = visible - 1;
    for (int32_t i = count; i < top; i++) list[i] = -1;
    return count;
}

/* Draws all lists, counts what they select and what of it is distinct, and gives them to the step. */
static hy_status draw_lists(attention *a, selection *s, int64_t end, bench_cost *cost, hy_error *err)
{
    lines_net *n = &a->net;
    const ops_model *m = &n->weights.model;
    int32_t rows = s->sequences * s->each, top = m->index_top, kv = a->kv;
    size_t lists = (size_t)rows * (size_t)kv * (size_t)top, own = (size_t)s->sequences * (size_t)(kv * s->period);
    memory_free(a->lists), memory_free(a->seen);
    a->lists = memory_zeroed(lists, sizeof *a->lists), a->seen = memory_zeroed(own, 1);
    if (!a->lists || !a->seen) return error_memory(err, "the lists of blocks", lists * sizeof *a->lists);
    int64_t selected = 0, distinct = 0;
    for (int32_t t = 0; t < rows; t++)
        for (int h = 0; h < kv; h++) {
            int32_t *list = a->lists + ((int64_t)t * kv + h) * top, position = (int32_t)(end - s->each + t % s->each);
            if (s->shared && t % s->each)
                memcpy(list, list - (int64_t)kv * top, (size_t)top * sizeof *list);
            else
                draw_list(s, position / CACHE_BLOCK + 1, top, list);
            uint8_t *seen = a->seen + ((int64_t)(t / s->each) * kv + h) * s->period;
            for (int32_t i = 0; i < top && list[i] >= 0; i++) {
                selected++;
                distinct += !seen[list[i] % s->period];
                seen[list[i] % s->period] = 1;
            }
        }
    n->b->ops->tensor_write(n->step, OPS_BLOCKS, 0, rows, a->lists);
    double queries = (double)m->heads / m->kv_heads, page = 2.0 * CACHE_BLOCK;
    *cost = (bench_cost){.bytes = {0}};
    cost->bytes[BYTES_CACHE] = page * (double)distinct * (double)cache_vector_bytes(CACHE_NVFP4, m->head_dim);
    cost->operations[PEAK_BF16] = 4.0 * m->head_dim * CACHE_BLOCK * queries * (double)selected;
    return HY_OK;
}

static hy_status attend_line(attention *a, selection *s, int64_t end, const char *what, hy_error *err)
{
    char heads[24];
    lines_net *n = &a->net;
    lines_line l = {.rows = s->sequences * s->each, .context = end, .calls = n->b->layers, .work = attend, .arg = a};
    lines_rows(n, s->sequences, s->each, end, s->period, false);
    hy_status status = begin(a, err);
    if (status == HY_OK) status = draw_lists(a, s, end, &l.cost, err);
    snprintf(l.name, sizeof l.name, "attend%s, %s, %d x %d", what, heads_name(a->kv, "KV head", heads), s->sequences,
             s->each);
    if (status == HY_OK) status = lines_measure(n, &l, err);
    return lines_finish(n, status, err);
}

hy_status bench_lines_attend(const bench_lines *b, hy_error *err)
{
    enum { PERIOD = 64 };
    static const struct {
        int32_t sequences, each;
        bool shared;
        const char *what;
    } sizes[] = {{1, 1, false, ""},
                 {8, 1, false, ""},
                 {32, 1, false, ""},
                 {128, 1, false, ""},
                 {1, 4, false, " verify"},
                 {8, 4, false, " verify"},
                 {32, 4, false, " verify"},
                 {2, 4, true, " verify alike"},
                 {8, 4, true, " verify alike"},
                 {32, 4, true, " verify alike"},
                 {1, 8, false, " verify"},
                 {8, 8, false, " verify"},
                 {8, 8, true, " verify alike"}};
    int kv[2], count = kinds(b, kv);
    int64_t end = capped(b, CONTEXT);
    int32_t blocks = (int32_t)(end / CACHE_BLOCK), period = blocks < PERIOD ? blocks : PERIOD, most = 0;
    hy_status status = HY_OK;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].sequences * sizes[i].each <= b->most_rows && sizes[i].sequences > most) most = sizes[i].sequences;
    for (int k = 0; k < count && status == HY_OK && blocks > 0; k++) {
        attention a = {.kv = 0};
        ops_limits limits = {.rows = (int32_t)lines_least(b->most_rows, 128), .positions = (int32_t)end};
        status = open_heads(b, kv[k], &a, err);
        if (status == HY_OK) status = lines_step(&a.net, &limits, most, most * period, err);
        if (status == HY_OK) status = lines_fill(&a.net, 16, false, err);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes && status == HY_OK; i++) {
            selection s = {sizes[i].sequences, sizes[i].each, period, sizes[i].shared, 17};
            if (s.sequences * s.each <= limits.rows) status = attend_line(&a, &s, end, sizes[i].what, err);
        }
        close_heads(&a);
    }
    return status;
}

/* ---- prefill -------------------------------------------------------------------------------------------------------
 */

hy_status bench_lines_prefill(const bench_lines *b, hy_error *err)
{
    int kv[2], count = kinds(b, kv);
    int64_t end = capped(b, PREFILL_CONTEXT);
    int32_t rows = (int32_t)lines_least(lines_least(PREFILL_ROWS, end), b->most_rows);
    hy_status status = HY_OK;
    for (int k = 0; k < count && status == HY_OK && rows > 0; k++) {
        attention a = {.kv = 0};
        ops_limits limits = {.rows = rows, .positions = (int32_t)end};
        selection s = {1, rows, (int32_t)(end / CACHE_BLOCK), false, 19};
        status = open_heads(b, kv[k], &a, err);
        if (status == HY_OK) status = lines_step(&a.net, &limits, 1, 0, err);
        if (status == HY_OK) status = lines_fill(&a.net, a.net.blocks, false, err);
        if (status == HY_OK) status = attend_line(&a, &s, end, " prefill", err);
        if (status == HY_OK) status = index_lines(&a, 1, rows, end, err);
        close_heads(&a);
    }
    return status;
}
