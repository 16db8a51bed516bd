/*
 * A model without weights, for tests of the engine: its cache holds the token of every slot, and the logits of a row
 * are a hash of all tokens of its sequence, read back through the block table. A wrong slot, position, block or row
 * order changes the answer; the batch cannot.
 *
 * It can also be told what to say (`script`), to damage logits, to fail a step, and to stand still after some steps (fake_let):
 * what a test does in the middle of an answer is then in its middle, however late the test comes to it.
 *
 * Its drafter knows the tokens that are in the cache and guesses the next ones as the network would pick them, with no regard to
 * masks and penalties, and every so often something else (`wrong`).
 */
#ifndef TEST_FAKE_MODEL_H
#define TEST_FAKE_MODEL_H

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "model/model_parts.h"

enum { FAKE_VOCAB = 300, FAKE_IDS = 256, FAKE_EOS = 1, FAKE_MAX_LEN = 2000 };

static struct fake {
    const int32_t *script; /* after a prompt of one token: the answer's tokens; NULL: a hash decides */
    int32_t script_count;
    int32_t nan_after;     /* the row of this token has no finite logit; -1: none */
    atomic_int fail_steps; /* this many steps fail */
    atomic_int most_rows;  /* of a step, as seen */
    atomic_int bad_rows;   /* rows that broke the contract */
    atomic_int delay_us;   /* a step takes this long */
    atomic_int let;        /* so many steps may end; negative: all */
    int wrong;             /* every so many a draft is wrong, by its position; 0: none */
    atomic_int most_drafts; /* of a step, as seen */
} fake = {.nan_after = -1, .let = -1};

/* Lets so many steps end and holds the next one; negative: holds none. */
static inline void fake_let(int steps)
{
    atomic_store(&fake.let, steps);
}

struct ops_cache {
    int32_t *token; /* [blocks * 128] */
    int32_t blocks;
};

struct ops_step {
    ops_limits limits;
    ops_cache *cache;
    const ops_rows *rows;
    float *logits; /* [limits.logit_rows, FAKE_VOCAB] */
    void *scratch;
};

static hy_status fake_cache_open(ops_backend *b, const cache_layout *layout, int32_t blocks, ops_cache **out,
                                 hy_error *err)
{
    (void)b, (void)layout, (void)err;
    ops_cache *c = calloc(1, sizeof *c);
    c->token = malloc((size_t)blocks * CACHE_BLOCK * sizeof *c->token);
    memset(c->token, 0xEE, (size_t)blocks * CACHE_BLOCK * sizeof *c->token);
    c->blocks = blocks;
    *out = c;
    return HY_OK;
}

static void fake_cache_close(ops_cache *c)
{
    free(c->token);
    free(c);
}

static void fake_cache_read(ops_cache *c, int32_t block, size_t offset, size_t bytes, void *out)
{
    memcpy(out, (const uint8_t *)(c->token + (int64_t)block * CACHE_BLOCK) + offset, bytes);
}

static void fake_cache_write(ops_cache *c, int32_t block, size_t offset, size_t bytes, const void *in)
{
    memcpy((uint8_t *)(c->token + (int64_t)block * CACHE_BLOCK) + offset, in, bytes);
}

static void fake_cache_copy(ops_cache *c, int32_t from, int32_t to)
{
    memcpy(c->token + (int64_t)to * CACHE_BLOCK, c->token + (int64_t)from * CACHE_BLOCK, CACHE_BLOCK * sizeof *c->token);
}

static hy_status fake_step_open(ops_backend *b, const ops_limits *limits, ops_step **out, hy_error *err)
{
    (void)b, (void)err;
    ops_step *s = calloc(1, sizeof *s);
    s->limits = *limits;
    s->logits = malloc((size_t)limits->logit_rows * FAKE_VOCAB * sizeof *s->logits);
    s->scratch = malloc(sample_scratch_bytes(FAKE_VOCAB));
    *out = s;
    return HY_OK;
}

static void fake_step_close(ops_step *s)
{
    free(s->logits);
    free(s->scratch);
    free(s);
}

/* The contract of rows: within limits, each sequence ascending and contiguous, slots inside the cache. */
static void fake_check(const ops_step *s, const ops_rows *r)
{
    int logits = 0;
    if (r->count < 1 || r->count > s->limits.rows) atomic_fetch_add(&fake.bad_rows, 1);
    if (r->count > atomic_load(&fake.most_rows)) atomic_store(&fake.most_rows, r->count);
    for (int32_t i = 0; i < r->count; i++) {
        bool bad = r->sequence[i] < 0 || r->sequence[i] >= r->sequences || r->position[i] >= s->limits.positions ||
                   r->slot[i] >= (int64_t)s->cache->blocks * CACHE_BLOCK;
        /* A row that is not written is there already. */
        const int32_t *table = r->block_table + (int64_t)r->sequence[i] * r->block_table_stride;
        int64_t own = (int64_t)table[r->position[i] / CACHE_BLOCK] * CACHE_BLOCK + r->position[i] % CACHE_BLOCK;
        bad |= r->slot[i] < 0 ? s->cache->token[own] != r->token[i] : r->slot[i] != own;
        for (int32_t j = 0; j < i; j++)
            bad |= r->sequence[j] == r->sequence[i] && j != i - 1 && r->sequence[i - 1] != r->sequence[i];
        if (i > 0 && r->sequence[i - 1] == r->sequence[i]) bad |= r->position[i] != r->position[i - 1] + 1;
        if (bad) atomic_fetch_add(&fake.bad_rows, 1);
        logits += r->flags[i] & ROW_LOGITS;
    }
    if (logits > s->limits.logit_rows) atomic_fetch_add(&fake.bad_rows, 1);
}

static void fake_begin(ops_step *s, ops_cache *cache, const ops_rows *rows)
{
    s->cache = cache, s->rows = rows;
    fake_check(s, rows);
}

static void fake_embed(ops_step *s)
{
    for (int32_t i = 0; i < s->rows->count; i++)
        if (s->rows->slot[i] >= 0) s->cache->token[s->rows->slot[i]] = s->rows->token[i];
}

static void fake_logits(const ops_step *s, int32_t row, float *out)
{
    const ops_rows *r = s->rows;
    const int32_t *table = r->block_table + (int64_t)r->sequence[row] * r->block_table_stride;
    uint32_t hash = 2166136261u;
    for (int32_t p = 0; p <= r->position[row]; p++)
        hash = (hash ^ (uint32_t)s->cache->token[table[p / CACHE_BLOCK] * CACHE_BLOCK + p % CACHE_BLOCK]) * 16777619u;
    for (int32_t i = 0; i < FAKE_VOCAB; i++) {
        hash = hash * 1664525u + 1013904223u;
        out[i] = (float)(hash >> 8) * 0x1p-22f; /* 0 .. 4 */
        if (i >= FAKE_IDS) out[i] += 10;        /* padding rows look attractive */
    }
    if (fake.script && r->position[row] < fake.script_count) {
        for (int32_t i = 0; i < FAKE_VOCAB; i++) out[i] = -50;
        out[fake.script[r->position[row]]] = 50;
    }
    if (r->token[row] == fake.nan_after)
        for (int32_t i = 0; i < FAKE_VOCAB; i++) out[i] = NAN;
}

static void fake_head(ops_step *s)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->rows->count; i++)
        if (s->rows->flags[i] & ROW_LOGITS) fake_logits(s, i, s->logits + (int64_t)n++ * FAKE_VOCAB);
}

static void fake_sample(ops_step *s, const ops_sample *rows, int32_t count, ops_sampled *out)
{
    for (int32_t i = 0; i < count; i++)
        sample_row(s->logits + (int64_t)rows[i].logit_row * FAKE_VOCAB, FAKE_VOCAB, &rows[i], s->scratch, &out[i]);
}

static void fake_verify(ops_step *s, const ops_verify *v, int32_t count)
{
    int drafts = 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t n = 0;
        drafts += v[i].drafts;
        do {
            fake_sample(s, &v[i].row[n], 1, &v[i].out[n]);
            n++;
        } while (n <= v[i].drafts && v[i].out[n - 1].id >= 0 && v[i].out[n - 1].id == v[i].draft[n - 1]);
        *v[i].count = n;
    }
    if (drafts > atomic_load(&fake.most_drafts)) atomic_store(&fake.most_drafts, drafts);
}

/* The network's hash of a sequence goes on behind what is in the cache. */
static void fake_draft(ops_step *s, const ops_draft *d, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        const int32_t *table = s->rows->block_table + (int64_t)d[i].sequence * s->rows->block_table_stride;
        int32_t anchor = d[i].position + *d[i].after_count - 1, n = 0;
        uint32_t hash = 2166136261u;
        float logits[FAKE_VOCAB];
        *d[i].count = 0;
        if (d[i].after[*d[i].after_count - 1].id < 0) continue;
        for (int32_t p = 0; p < anchor; p++) {
            int32_t token = s->cache->token[table[p / CACHE_BLOCK] * CACHE_BLOCK + p % CACHE_BLOCK];
            hash = (hash ^ (uint32_t)token) * 16777619u;
        }
        hash = (hash ^ (uint32_t)d[i].after[*d[i].after_count - 1].id) * 16777619u;
        for (int32_t at = anchor + 1; n < d[i].rows && at < d[i].end; at++, n++) {
            uint32_t h = hash;
            for (int32_t k = 0; k < FAKE_VOCAB; k++) {
                h = h * 1664525u + 1013904223u;
                logits[k] = k < FAKE_IDS ? (float)(h >> 8) * 0x1p-22f : -50;
            }
            if (fake.script && at - 1 < fake.script_count) logits[fake.script[at - 1]] = 50;
            ops_sample how = {.position = (uint32_t)at, .seed = d[i].seed, .choice = d[i].choice, .temperature = d[i].temperature,
                              .top_p = 1, .repetition_penalty = 1, .logprobs = -1};
            ops_sampled out;
            sample_row(logits, FAKE_VOCAB, &how, s->scratch, &out);
            d[i].draft[n] = fake.wrong && at % fake.wrong == 0 ? (out.id + 1) % FAKE_IDS : out.id;
            hash = (hash ^ (uint32_t)d[i].draft[n]) * 16777619u;
        }
        *d[i].count = n;
    }
}

static void fake_nothing(ops_step *s)
{
    (void)s;
}

static void fake_tap(ops_step *s, int tap)
{
    (void)s, (void)tap;
}

static hy_status fake_finish(ops_step *s, hy_error *err)
{
    (void)s;
    int delay = atomic_load(&fake.delay_us);
    if (delay > 0) nanosleep(&(struct timespec){.tv_nsec = delay * 1000L}, NULL);
    while (atomic_load(&fake.let) == 0) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    if (atomic_load(&fake.let) > 0) atomic_fetch_sub(&fake.let, 1);
    if (atomic_load(&fake.fail_steps) <= 0) return HY_OK;
    atomic_fetch_sub(&fake.fail_steps, 1);
    return error_set(err, HY_FAILED, "the fake device is gone");
}

static const hy_ops fake_ops = {
    .name = "fake",
    .cache_open = fake_cache_open,
    .cache_close = fake_cache_close,
    .cache_read = fake_cache_read,
    .cache_write = fake_cache_write,
    .cache_copy = fake_cache_copy,
    .step_open = fake_step_open,
    .step_close = fake_step_close,
    .begin = fake_begin,
    .finish = fake_finish,
    .embed = fake_embed,
    .head = fake_head,
    .sample = fake_sample,
    .verify = fake_verify,
    .draft_tap = fake_tap,
    .draft_context = fake_nothing,
    .draft = fake_draft,
};

static ops_drafter fake_drafter = {.block = 8, .window = 64};

/* With `text`: a tokenizer of 256 single bytes, id = byte. Rows 256 .. 299 of the vocabulary are then padding. */
static hy_model *fake_model_open(bool text)
{
    hy_model *m = calloc(1, sizeof *m);
    m->ops = &fake_ops;
    m->backend = (ops_backend *)m;
    m->weights.shape.vocab = FAKE_VOCAB;
    m->weights.shape.drafter = &fake_drafter;
    m->weights.shape.max_positions = m->max_len = FAKE_MAX_LEN;
    m->layout.row_bytes = CACHE_BLOCK * sizeof(int32_t);
    m->generation =
        (model_generation){.temperature = 1, .top_p = 1, .repetition_penalty = 1, .eos = {FAKE_EOS}, .eos_count = 1};
    if (text) {
        static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        char ranks[FAKE_IDS * 12];
        size_t n = 0;
        for (int i = 0; i < FAKE_IDS; i++)
            n += (size_t)snprintf(ranks + n, sizeof ranks - n, "%c%c== %d\n", digits[i >> 2], digits[(i & 3) << 4], i);
        hy_error err;
        if (text_tokenizer_read(ranks, n, "ranks", &m->tokenizer, &err) != HY_OK) {
            fprintf(stderr, "%s\n", err.message);
            abort();
        }
    }
    return m;
}

static void fake_model_close(hy_model *m)
{
    text_tokenizer_close(m->tokenizer);
    free(m);
}

#endif
