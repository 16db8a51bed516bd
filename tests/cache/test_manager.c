/*
 * The cache of an engine over a fake backend: its row of a token is a hash of the salt and all tokens up to there, so
 * that a block in the wrong place, a row that was overwritten or one that was never written shows. The tiers are a fake
 * too: reads arrive when the test says so, and can fail. Everything that the engine promises the manager is kept here:
 * copies run before the rows of their step, and nobody leaves before.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cache/fake_store.h"
#include "cache/manager.h"

enum { BLOCK = CACHE_BLOCK, ROW_BYTES = STORED_BYTES, MOST_BLOCKS = 64, MOST_TOKENS = 24 * BLOCK };

/* ---- A fake backend ------------------------------------------------------------------------------------------- */

struct ops_cache {
    uint32_t row[MOST_BLOCKS][BLOCK];
};

static ops_cache memory;

static void fake_read(ops_cache *c, int32_t block, size_t offset, size_t bytes, void *out)
{
    memcpy(out, (uint8_t *)c->row[block] + offset, bytes);
}

static void fake_write(ops_cache *c, int32_t block, size_t offset, size_t bytes, const void *in)
{
    memcpy((uint8_t *)c->row[block] + offset, in, bytes);
}

static void fake_copy(ops_cache *c, int32_t from, int32_t to)
{
    memcpy(c->row[to], c->row[from], sizeof c->row[to]);
}

static const hy_ops ops = {.cache_read = fake_read, .cache_write = fake_write, .cache_copy = fake_copy};

/* ---- Sequences ------------------------------------------------------------------------------------------------ */

struct sequence {
    cache_sequence c;
    int32_t table[MOST_TOKENS / BLOCK];
    int32_t ids[MOST_TOKENS];
    int32_t count;
    cache_copy copy;
    bool copying; /* its copy has not been made */
};

static cache_manager *manager;
static int woken;

static void wake(void *user)
{
    (void)user;
    woken++;
}

static void open_with(cache_options o)
{
    memset(&memory, 0xEE, sizeof memory);
    memset(&tiers, 0, sizeof tiers);
    tiers.room = STORED;
    woken = 0;
    o.ops = &ops, o.cache = &memory, o.row_bytes = ROW_BYTES, o.wake = wake;
    assert_int_equal(cache_open(&o, &manager, NULL), HY_OK);
}

static void open_manager(int32_t size)
{
    open_with((cache_options){.blocks = size, .prefix = true});
}

static void open_with_tiers(int32_t size, bool save_idle)
{
    open_with((cache_options){.blocks = size, .prefix = true, .tiers = &tiers, .save_idle = save_idle});
}

static void close_manager(void)
{
    assert_int_equal(cache_used(manager), 0);
    cache_close(manager);
}

static uint32_t row_of(const struct sequence *s, int32_t position)
{
    uint32_t hash = 2166136261u;
    for (const char *c = s->c.salt; c && *c; c++) hash = (hash ^ (uint8_t)*c) * 16777619u;
    for (int32_t i = 0; i <= position; i++) hash = (hash ^ (uint32_t)s->ids[i]) * 16777619u;
    return hash;
}

static uint32_t hash_on(uint32_t hash, int32_t id)
{
    return (hash ^ (uint32_t)id) * 16777619u;
}

/* All rows that a sequence says it has are there. */
static void check_rows(const struct sequence *s)
{
    uint32_t hash = 2166136261u;
    for (const char *c = s->c.salt; c && *c; c++) hash = (hash ^ (uint8_t)*c) * 16777619u;
    for (int32_t i = 0; i < s->c.written; i++) {
        hash = hash_on(hash, s->ids[i]);
        assert_true(i / BLOCK < s->c.table.count);
        if (memory.row[s->table[i / BLOCK]][i % BLOCK] != hash)
            fail_msg("the row of position %d is not there; %d are said to be", i, s->c.written);
    }
}

/* `count` tokens, of which the first `same` are those of `begin` and the others depend on `mark`. */
static void tokens(struct sequence *s, const struct sequence *begin, int32_t same, int32_t count, int32_t mark)
{
    for (int32_t i = 0; i < count; i++)
        s->ids[i] = i < same ? begin->ids[i] : (mark * 7919 + i * 31) % 1000 + 1000 * mark;
    s->count = count;
}

static bool admit_with(struct sequence *s, int32_t spare)
{
    s->c.table = (block_table){.block = s->table, .capacity = MOST_TOKENS / BLOCK};
    return cache_admit(manager, &s->c, s->ids, s->count, spare);
}

static bool admit(struct sequence *s)
{
    return admit_with(s, 0);
}

static void run_copy(struct sequence *s)
{
    if (!s->copying) return;
    fake_copy(&memory, s->copy.from, s->copy.to);
    cache_copied(manager, &s->copy);
    s->copying = false;
}

static void tail(struct sequence *s)
{
    s->copying = cache_tail(manager, &s->c, s->count, &s->copy);
}

/* Computes up to `end` tokens, whose blocks are there. */
static void compute_to(struct sequence *s, int32_t end)
{
    run_copy(s);
    for (int32_t i = s->c.written; i < end; i++) {
        int64_t slot = cache_slot(manager, &s->c, i);
        uint32_t row = row_of(s, i);
        if (slot < 0)
            assert_int_equal(memory.row[s->table[i / BLOCK]][i % BLOCK], row);
        else
            memory.row[slot / BLOCK][slot % BLOCK] = row;
    }
    cache_wrote(manager, &s->c, end);
    check_rows(s);
}

/* Everything for a sequence that need not wait: returns how many tokens were found. */
static int32_t serve(struct sequence *s)
{
    assert_true(admit(s));
    assert_int_equal(s->c.loading, 0);
    tail(s);
    int32_t found = s->c.written;
    run_copy(s);
    check_rows(s);
    assert_true(cache_grow(manager, &s->c, s->count));
    compute_to(s, s->count);
    return found;
}

static void leave(struct sequence *s)
{
    cache_leave(manager, &s->c);
}

/* ---- What is found -------------------------------------------------------------------------------------------- */

static struct sequence a, b, c, d;

static int fresh(void **state)
{
    (void)state;
    a = b = c = d = (struct sequence){0};
    return 0;
}

/* Found to the token, but for the last one. */
static void test_found_to_the_token(void **state)
{
    (void)state;
    const struct {
        int32_t first, same, second, found;
    } cases[] = {
        {300, 300, 300, 299}, {300, 300, 301, 300}, {300, 200, 300, 200}, {256, 256, 256, 255},
        {256, 256, 400, 256}, {300, 128, 300, 128}, {300, 129, 300, 129}, {300, 127, 300, 127},
        {300, 1, 300, 1},     {300, 0, 300, 0},     {300, 300, 900, 300}, {300, 100, 101, 100},
        {300, 100, 100, 99},  {1, 1, 1, 0},         {128, 128, 128, 127}, {129, 129, 129, 128},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int running = 0; running < 2; running++) {
            fresh(NULL);
            open_manager(20);
            tokens(&a, &a, 0, cases[i].first, 1);
            tokens(&b, &a, cases[i].same, cases[i].second, 2);
            serve(&a);
            if (!running) leave(&a);
            assert_int_equal(serve(&b), cases[i].found);
            assert_int_equal(b.c.reuse.tokens, cases[i].found);
            assert_int_equal(b.c.reuse.cache, cases[i].found);
            assert_int_equal(b.c.miss, cases[i].found == cases[i].second - 1 ? HY_MISS_NONE : HY_MISS_NEW);
            if (running) {
                check_rows(&a); /* untouched by who shares it */
                tokens(&a, &a, a.count, a.count + 200, 3);
                assert_true(cache_grow(manager, &a.c, a.count));
                compute_to(&a, a.count);
                check_rows(&b);
                leave(&a);
            }
            leave(&b);
            close_manager();
        }
}

static void test_salt_and_apart(void **state)
{
    (void)state;
    open_manager(20);
    tokens(&a, &a, 0, 300, 1);
    tokens(&b, &a, 300, 300, 1);
    tokens(&c, &a, 300, 300, 1);
    tokens(&d, &a, 300, 300, 1);
    a.c.salt = "one", b.c.salt = "two", c.c.salt = "one", d.c.salt = "one", d.c.apart = true;
    serve(&a);
    assert_int_equal(serve(&b), 0);
    assert_int_equal(b.c.miss, HY_MISS_SALT);
    assert_int_equal(serve(&c), 299);
    assert_int_equal(serve(&d), 0);
    assert_int_equal(d.c.miss, HY_MISS_OFF);
    assert_int_equal(cache_peek(manager, "one", a.ids, 300), 300);
    assert_int_equal(cache_peek(manager, "three", a.ids, 300), 0);
    leave(&a), leave(&b), leave(&c), leave(&d);
    close_manager();
    /* What one that looks for nothing has computed is found by others. */
    fresh(NULL);
    open_manager(20);
    tokens(&a, &a, 0, 300, 1);
    tokens(&b, &a, 300, 300, 1);
    a.c.apart = true;
    serve(&a);
    assert_int_equal(serve(&b), 299);
    leave(&a), leave(&b);
    close_manager();
    /* Without an index. */
    fresh(NULL);
    open_with((cache_options){.blocks = 20});
    tokens(&a, &a, 0, 300, 1);
    tokens(&b, &a, 300, 300, 1);
    serve(&a);
    assert_int_equal(serve(&b), 0);
    assert_int_equal(b.c.miss, HY_MISS_OFF);
    assert_int_equal(cache_peek(manager, NULL, a.ids, 300), -1);
    leave(&a), leave(&b);
    close_manager();
}

/* A beginning with several continuations: each finds its own, to the token. */
static void test_several_continuations(void **state)
{
    (void)state;
    static struct sequence s[6];
    memset(s, 0, sizeof s);
    open_manager(40);
    for (int i = 0; i < 6; i++) {
        tokens(&s[i], &s[0], i == 0 ? 0 : 150, 230, i + 1);
        assert_int_equal(serve(&s[i]), i == 0 ? 0 : 150);
    }
    for (int i = 0; i < 6; i++) leave(&s[i]);
    for (int i = 0; i < 6; i++) {
        tokens(&a, &s[i], 200 + i, 230, 9);
        assert_int_equal(serve(&a), 200 + i);
        leave(&a);
    }
    close_manager();
}

/* Blocks that are evicted are told from those that were never there. */
static void test_evicted(void **state)
{
    (void)state;
    open_manager(4);
    tokens(&a, &a, 0, 300, 1);
    tokens(&b, &b, 0, 500, 2);
    tokens(&c, &a, 300, 300, 1);
    serve(&a), leave(&a);
    serve(&b), leave(&b);
    assert_int_equal(serve(&c), 0);
    assert_int_equal(c.c.miss, HY_MISS_EVICTED);
    leave(&c);
    close_manager();
}

/* ---- Room ----------------------------------------------------------------------------------------------------- */

/* Every free block is promised, the one with the tail is among them. It is taken, with what fits. */
static void test_tail_in_the_last_block(void **state)
{
    (void)state;
    const struct {
        int32_t same, second, found;
    } cases[] = {{200, 220, 200}, {200, 200, 199}, {180, 256, 180}, {129, 140, 129}, {150, 150, 149}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fresh(NULL);
        open_manager(2);
        tokens(&a, &a, 0, 200, 1);
        tokens(&b, &a, cases[i].same, cases[i].second, 2);
        serve(&a), leave(&a);
        assert_int_equal(serve(&b), cases[i].found);
        assert_false(cache_grow(manager, &b.c, 257));
        leave(&b);
        /* The next one finds what the last one has left. */
        tokens(&c, &b, b.count, b.count, 2);
        assert_int_equal(serve(&c), b.count - 1);
        leave(&c);
        close_manager();
    }
}

static void test_promises(void **state)
{
    (void)state;
    open_manager(10);
    tokens(&a, &a, 0, 5 * BLOCK, 1);
    tokens(&b, &b, 0, 4 * BLOCK + 1, 2);
    tokens(&c, &c, 0, 1, 3);
    tokens(&d, &b, 2 * BLOCK, 3 * BLOCK, 4);
    assert_true(admit(&a));
    assert_int_equal(cache_used(manager), 0); /* promised, not taken */
    assert_false(admit_with(&b, 1));
    assert_true(admit(&b));
    assert_false(admit(&c));
    tail(&a), tail(&b);
    assert_true(cache_grow(manager, &a.c, 3 * BLOCK));
    compute_to(&a, 3 * BLOCK);
    assert_true(cache_grow(manager, &b.c, b.count));
    compute_to(&b, b.count);
    assert_false(cache_grow(manager, &b.c, 5 * BLOCK + 1)); /* the two that are left are not its */
    assert_int_equal(b.c.table.count, 5);
    assert_false(admit(&d)); /* two of its three are there, the third is not */
    assert_int_equal(cache_used(manager), 8);
    assert_true(cache_grow(manager, &a.c, a.count));
    compute_to(&a, a.count);
    leave(&a);
    assert_int_equal(serve(&d), 2 * BLOCK);
    leave(&b), leave(&d);
    /* One that leaves early gives its promise back. */
    tokens(&a, &a, 0, 10 * BLOCK, 5);
    assert_true(admit(&a));
    leave(&a);
    assert_true(admit(&a));
    leave(&a);
    close_manager();
}

/* ---- Tiers ---------------------------------------------------------------------------------------------------- */

/* Fills the cache with something else, so that what it held goes to the tiers. */
static void push_out(struct sequence *by, int32_t mark)
{
    *by = (struct sequence){0};
    tokens(by, by, 0, cache_blocks(manager) * BLOCK, mark);
    serve(by), leave(by);
}

static void test_back_from_the_tiers(void **state)
{
    (void)state;
    open_with_tiers(6, false);
    tokens(&a, &a, 0, 4 * BLOCK + 50, 1);
    serve(&a), leave(&a);
    assert_int_equal(tiers.puts, 0);
    push_out(&b, 2);
    assert_int_equal(tiers.puts, 4); /* full blocks; the fifth was not */
    tokens(&c, &a, a.count, a.count, 1);
    assert_true(admit(&c));
    assert_int_equal(c.c.loading, 4);
    assert_int_equal(tiers.reads, 4);
    while (tiers.reads > 0) deliver(tiers.reads / 2, true);
    assert_int_equal(woken, 4);
    uint64_t damaged = 0;
    cache_poll(manager, &damaged);
    assert_int_equal(damaged, 0);
    assert_int_equal(c.c.loading, 0);
    check_rows(&c);
    tail(&c);
    assert_int_equal(c.c.written, 4 * BLOCK);
    assert_int_equal(c.c.reuse.memory, 4 * BLOCK);
    assert_int_equal(c.c.reuse.tokens, 4 * BLOCK);
    assert_int_equal(c.c.reuse.cache + c.c.reuse.disk, 0);
    assert_true(cache_grow(manager, &c.c, c.count));
    compute_to(&c, c.count);
    leave(&c);
    close_manager();
}

/* All of a prompt comes back: its last token is computed all the same. */
static void test_all_from_the_tiers(void **state)
{
    (void)state;
    open_with_tiers(6, false);
    tokens(&a, &a, 0, 3 * BLOCK, 1);
    serve(&a), leave(&a);
    push_out(&b, 2);
    for (int i = 0; i < STORED; i++)
        if (tiers.stored[i].place == STORE_MEMORY) tiers.stored[i].place = STORE_DISK;
    tokens(&c, &a, a.count, a.count, 1);
    assert_true(admit(&c));
    uint64_t damaged = 0;
    while (tiers.reads > 0) {
        assert_true(c.c.loading > 0);
        deliver(0, true);
        cache_poll(manager, &damaged); /* one by one */
    }
    assert_int_equal(c.c.loading, 0);
    tail(&c);
    assert_int_equal(c.c.written, 3 * BLOCK - 1);
    assert_int_equal(c.c.reuse.disk, 3 * BLOCK - 1);
    assert_int_equal(c.c.reuse.cache, 0);
    assert_int_equal(c.c.miss, HY_MISS_NONE);
    assert_int_equal(cache_slot(manager, &c.c, 3 * BLOCK - 1), -1);
    compute_to(&c, c.count);
    leave(&c);
    close_manager();
}

/* The second of four blocks does not come: what came behind it is of no use. */
static void test_a_damaged_block(void **state)
{
    (void)state;
    for (int missing = 0; missing < 4; missing++) {
        fresh(NULL);
        open_with_tiers(6, false);
        tokens(&a, &a, 0, 4 * BLOCK + 9, 1);
        serve(&a), leave(&a);
        push_out(&b, 2);
        tokens(&c, &a, a.count, a.count, 1);
        assert_true(admit(&c));
        assert_int_equal(tiers.reads, 4);
        uint64_t damaged = 0;
        for (int i = 0; i < 4; i++) {
            struct waiting_read *r = &tiers.read[0];
            /* Reads were asked for in order; deliver() moves the last one to the front. */
            uint32_t last = row_of(&a, (missing + 1) * BLOCK - 1);
            deliver(0, memcmp(r->of->row + ROW_BYTES - sizeof last, &last, sizeof last) != 0);
        }
        cache_poll(manager, &damaged);
        assert_int_equal(damaged, 1);
        assert_int_equal(c.c.loading, 0);
        assert_int_equal(c.c.written, missing * BLOCK);
        assert_int_equal(cache_used(manager), missing);
        check_rows(&c);
        tail(&c);
        assert_int_equal(c.c.miss, HY_MISS_DAMAGED);
        assert_int_equal(c.c.reuse.memory, missing * BLOCK);
        assert_true(cache_grow(manager, &c.c, c.count)); /* promised again */
        compute_to(&c, c.count);
        leave(&c);
        push_out(&b, 3); /* and nothing is promised to anyone */
        close_manager();
    }
}

/* A block that is gone when it is asked for ends the reads there. */
static void test_gone_before_it_is_read(void **state)
{
    (void)state;
    open_with_tiers(6, false);
    tokens(&a, &a, 0, 4 * BLOCK + 9, 1);
    serve(&a), leave(&a);
    push_out(&b, 2);
    tokens(&c, &a, a.count, a.count, 1);
    tiers.refused_reads = 1;
    assert_true(admit(&c));
    assert_int_equal(c.c.loading, 0);
    tail(&c);
    assert_int_equal(c.c.written, 0);
    assert_true(cache_grow(manager, &c.c, c.count));
    compute_to(&c, c.count);
    leave(&c);
    push_out(&b, 3);
    close_manager();
}

static void test_idle_blocks_are_saved(void **state)
{
    (void)state;
    open_with_tiers(8, true);
    tokens(&a, &a, 0, 3 * BLOCK + 5, 1);
    serve(&a);
    assert_int_equal(cache_unsaved(manager), 0); /* held */
    leave(&a);
    assert_int_equal(cache_unsaved(manager), 3);
    tiers.room = 0;
    assert_false(cache_save_one(manager));
    assert_int_equal(cache_save_all(manager, 0.01), 3);
    tiers.room = STORED;
    assert_true(cache_save_one(manager));
    assert_int_equal(tiers.puts, 1);
    /* Those that are held again meanwhile are passed, and come back. */
    tokens(&b, &a, a.count, a.count, 1);
    serve(&b);
    assert_int_equal(cache_save_all(manager, 10), 0);
    assert_int_equal(tiers.puts, 1);
    leave(&b);
    assert_int_equal(cache_save_all(manager, 10), 0);
    assert_int_equal(tiers.puts, 3);
    assert_false(cache_save_one(manager));
    /* What the tiers hold is what was computed. */
    for (int i = 0; i < 3; i++) {
        uint32_t last = row_of(&a, (i + 1) * BLOCK - 1);
        int there = 0;
        for (int k = 0; k < STORED; k++)
            there += tiers.stored[k].place != STORE_NOWHERE &&
                     memcmp(tiers.stored[k].row + ROW_BYTES - sizeof last, &last, sizeof last) == 0;
        assert_int_equal(there, 1);
    }
    close_manager();
}

/* ---- A storm -------------------------------------------------------------------------------------------------- */

enum { CROWD = 12 };

static struct sequence crowd[CROWD];
static bool inside[CROWD];
static uint32_t dice;

static uint32_t roll(uint32_t sides)
{
    dice = dice * 1664525u + 1013904223u;
    return (dice >> 8) % sides;
}

/* Every block that is held is held by those who say so, and nothing else is. */
static void check_blocks(void)
{
    int held[MOST_BLOCKS] = {0}, used = 0;
    for (int i = 0; i < CROWD; i++) {
        if (!inside[i]) continue;
        for (int32_t k = 0; k < crowd[i].c.table.count; k++) held[crowd[i].table[k]]++;
        if (crowd[i].copying) held[crowd[i].copy.from]++;
        /* Nothing is copied yet: what it says it has is there when its copy is made. */
        if (!crowd[i].copying) check_rows(&crowd[i]);
    }
    for (int i = 0; i < MOST_BLOCKS; i++) used += held[i] > 0;
    assert_int_equal(cache_used(manager), used);
}

/* Tokens that begin as someone else's do. */
static void draw_tokens(struct sequence *s, int32_t most)
{
    static struct sequence roots[3];
    if (roots[0].count == 0)
        for (int i = 0; i < 3; i++) tokens(&roots[i], &roots[i], 0, MOST_TOKENS, i + 1);
    const struct sequence *other = roll(3) ? &roots[roll(3)] : &crowd[roll(CROWD)];
    if (other == s || other->count == 0) other = &roots[0];
    int32_t count = 1 + (int32_t)roll((uint32_t)most), same = (int32_t)roll((uint32_t)count + 1);
    if (roll(4) == 0) same = count;
    if (roll(4) == 0) same -= same % BLOCK;
    if (roll(6) == 0) count = (count + BLOCK - 1) / BLOCK * BLOCK;
    if (other->count < same) same = other->count;
    tokens(s, other, same, count, 4 + (int32_t)roll(50));
}

/* A step begins with the copies that were asked for, in their order: one may copy what the one before has copied. */
static struct sequence *waiting_copy[CROWD];
static int waiting_copies, chained, loads, lost;

static void begin_step(void)
{
    for (int i = 0; i < waiting_copies; i++) run_copy(waiting_copy[i]);
    waiting_copies = 0;
}

static void storm(int32_t size, bool with_tiers, int rounds)
{
    static const char *const salts[] = {NULL, "", "x"};
    int admitted = 0, refused = 0, copies = 0, found = 0;
    memset(crowd, 0, sizeof crowd);
    memset(inside, 0, sizeof inside);
    if (with_tiers)
        open_with_tiers(size, true);
    else
        open_manager(size);
    for (int round = 0; round < rounds; round++) {
        struct sequence *s = &crowd[roll(CROWD)];
        bool *in = &inside[s - crowd];
        uint64_t damaged = 0;
        if (s->copying || roll(3) == 0) begin_step();
        if (!*in) {
            *s = (struct sequence){0};
            draw_tokens(s, size * BLOCK / 2);
            s->c.salt = salts[roll(3)], s->c.apart = roll(10) == 0;
            *in = admit_with(s, (int32_t)roll(3));
            admitted += *in, refused += !*in;
            loads += s->c.loading;
            if (!*in) assert_int_equal(s->c.table.count + s->c.promised, 0);
        } else if (s->c.loading > 0) {
            while (tiers.reads > 0 && roll(4)) {
                bool comes = roll(20) > 0;
                lost += !comes;
                deliver((int)roll((uint32_t)tiers.reads), comes);
            }
            cache_poll(manager, &damaged);
        } else if (!s->c.tail_looked) {
            int32_t peek = cache_peek(manager, s->c.salt, s->ids, s->count);
            tail(s);
            copies += s->copying;
            for (int i = 0; i < waiting_copies && s->copying; i++) chained += waiting_copy[i]->copy.to == s->copy.from;
            found += s->c.written;
            assert_int_equal(s->c.written, peek < s->count ? peek : s->count - 1);
            if (s->copying) waiting_copy[waiting_copies++] = s;
        } else if (s->c.written < s->count) {
            int32_t end = s->c.written + 1 + (int32_t)roll((uint32_t)(s->count - s->c.written));
            begin_step();
            bool room = cache_grow(manager, &s->c, end);
            assert_true(room); /* promised */
            compute_to(s, end);
        } else if (roll(3) && s->count + 200 < MOST_TOKENS) {
            begin_step();
            int32_t count = s->count, more = 1 + (int32_t)roll(150);
            for (int32_t i = 0; i < more; i++) s->ids[count + i] = (int32_t)roll(900);
            if (cache_grow(manager, &s->c, count + more)) {
                s->count += more;
                compute_to(s, s->count);
            }
        } else {
            leave(s);
            *in = false;
        }
        /* Some leave before they are done. */
        if (*in && s->c.loading == 0 && !s->copying && roll(30) == 0) {
            leave(s);
            *in = false;
        }
        if (with_tiers && roll(5) == 0) cache_save_one(manager);
        if (with_tiers && roll(40) == 0) { /* the tiers forget */
            struct stored *e = &tiers.stored[roll(STORED)];
            bool read = false;
            for (int i = 0; i < tiers.reads; i++) read |= tiers.read[i].of == e;
            if (!read && e->place != STORE_NOWHERE) e->place = STORE_NOWHERE, tiers.room++;
        }
        check_blocks();
    }
    uint64_t damaged = 0;
    while (tiers.reads > 0) deliver(0, true);
    cache_poll(manager, &damaged);
    begin_step();
    for (int i = 0; i < CROWD; i++)
        if (inside[i]) leave(&crowd[i]);
    assert_true(admitted > rounds / 50);
    assert_true(refused > 0 && copies > 0 && found > 0);
    /* Nothing is promised to anyone: a sequence of all blocks is served. */
    a = (struct sequence){0};
    tokens(&a, &a, 0, (size < MOST_TOKENS / BLOCK ? size : MOST_TOKENS / BLOCK) * BLOCK, 99);
    serve(&a), leave(&a);
    if (with_tiers) cache_save_all(manager, 1);
    close_manager();
}

static void test_storm(void **state)
{
    (void)state;
    dice = 1;
    storm(12, false, 6000);
    storm(24, false, 6000);
    storm(5, false, 6000);
}

static void test_storm_with_tiers(void **state)
{
    (void)state;
    dice = 2;
    storm(10, true, 6000);
    storm(24, true, 6000);
    storm(6, true, 6000);
    assert_true(loads > 100 && lost > 5 && chained > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_found_to_the_token, fresh),
        cmocka_unit_test_setup(test_salt_and_apart, fresh),
        cmocka_unit_test_setup(test_several_continuations, fresh),
        cmocka_unit_test_setup(test_evicted, fresh),
        cmocka_unit_test_setup(test_tail_in_the_last_block, fresh),
        cmocka_unit_test_setup(test_promises, fresh),
        cmocka_unit_test_setup(test_back_from_the_tiers, fresh),
        cmocka_unit_test_setup(test_all_from_the_tiers, fresh),
        cmocka_unit_test_setup(test_a_damaged_block, fresh),
        cmocka_unit_test_setup(test_gone_before_it_is_read, fresh),
        cmocka_unit_test_setup(test_idle_blocks_are_saved, fresh),
        cmocka_unit_test_setup(test_storm, fresh),
        cmocka_unit_test_setup(test_storm_with_tiers, fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
