#include "cache/manager.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

_Static_assert((int)CACHE_BLOCK == (int)PREFIX_BLOCK && (int)PREFIX_KEY == (int)STORE_KEY,
               "one size of blocks and keys");

/* A block that is being read. Written by the planner when it asks, by a thread of the store when it arrives. */
struct load {
    cache_manager *manager;
    cache_sequence *sequence;
    int32_t block, next; /* next in the list of those that have arrived */
    store_place came;    /* from where; STORE_NOWHERE: it did not */
};

struct cache_manager {
    cache_options o;
    blocks *blocks;
    prefix *index;
    int32_t promised;
    struct load *load; /* [blocks] */

    pthread_mutex_t lock;
    int32_t arrived; /* under lock: a list through load.next, -1: empty */

    /* Blocks to be saved, a ring without repeats. */
    int32_t *idle; /* [blocks] */
    bool *is_idle; /* [blocks] in the ring */
    int32_t idle_first, idle_count;
};

/* ---- Opening and closing ---------------------------------------------------------------------------------------- */

hy_status cache_open(const cache_options *o, cache_manager **out, hy_error *err)
{
    cache_manager *m = memory_zeroed(1, sizeof *m);
    if (!m) return error_memory(err, "the cache", sizeof *m);
    m->o = *o;
    m->arrived = -1;
    pthread_mutex_init(&m->lock, NULL);
    size_t n = (size_t)o->blocks;
    hy_status status = blocks_open(o->blocks, &m->blocks, err);
    if (status == HY_OK && o->prefix) status = prefix_open(o->blocks, o->identity, &m->index, err);
    if (status == HY_OK) {
        m->load = memory_zeroed(n, sizeof *m->load);
        m->idle = memory_zeroed(n, sizeof *m->idle);
        m->is_idle = memory_zeroed(n, sizeof *m->is_idle);
        if (!m->load || !m->idle || !m->is_idle) status = error_memory(err, "the cache", n * sizeof *m->load);
    }
    if (status != HY_OK) {
        cache_close(m);
        return status;
    }
    *out = m;
    return HY_OK;
}

void cache_close(cache_manager *m)
{
    if (!m) return;
    blocks_close(m->blocks);
    prefix_close(m->index);
    memory_free(m->load);
    memory_free(m->idle);
    memory_free(m->is_idle);
    pthread_mutex_destroy(&m->lock);
    memory_free(m);
}

int32_t cache_blocks(const cache_manager *m)
{
    return blocks_count(m->blocks);
}

int32_t cache_used(const cache_manager *m)
{
    return blocks_count(m->blocks) - blocks_free_count(m->blocks);
}

/* ---- Saving to the tiers ---------------------------------------------------------------------------------------- */

/* The contents of a block that nobody writes. False: the tiers have no room now. */
static bool save(cache_manager *m, int32_t block)
{
    const uint8_t *key = m->index ? prefix_key(m->index, block) : NULL;
    if (!key || !m->o.tiers || store_find(m->o.tiers, key) != STORE_NOWHERE) return true;
    void *slot = store_put_begin(m->o.tiers, key);
    if (!slot) return store_find(m->o.tiers, key) != STORE_NOWHERE;
    m->o.ops->cache_read(m->o.cache, block, 0, m->o.row_bytes, slot);
    store_put_end(m->o.tiers, slot, true);
    return true;
}

static void want_saved(cache_manager *m, int32_t block)
{
    if (!m->o.tiers || !m->o.save_idle || m->is_idle[block] || !m->index || !prefix_key(m->index, block)) return;
    m->idle[(m->idle_first + m->idle_count++) % m->o.blocks] = block;
    m->is_idle[block] = true;
}

bool cache_save_one(cache_manager *m)
{
    if (m->idle_count == 0) return false;
    int32_t block = m->idle[m->idle_first];
    /* Held again, or taken for something else: it comes back here when it is let go. */
    if (blocks_state(m->blocks, block) == BLOCK_FREE && !save(m, block)) return false;
    m->is_idle[block] = false;
    m->idle_first = (m->idle_first + 1) % m->o.blocks, m->idle_count--;
    return true;
}

int32_t cache_unsaved(const cache_manager *m)
{
    return m->idle_count;
}

int32_t cache_save_all(cache_manager *m, double seconds)
{
    double end = clock_seconds() + seconds;
    while (m->idle_count > 0 && clock_seconds() < end)
        if (!cache_save_one(m)) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return m->idle_count;
}

/* ---- Blocks ----------------------------------------------------------------------------------------------------- */

/* What the block held goes to the tiers, or is lost. */
static int32_t take(cache_manager *m)
{
    int32_t block = blocks_oldest(m->blocks);
    assert(block >= 0);
    if (m->index) {
        save(m, block);
        prefix_forget(m->index, block, true);
    }
    return blocks_take(m->blocks);
}

static void release(cache_manager *m, int32_t block)
{
    blocks_release(m->blocks, block);
    if (blocks_state(m->blocks, block) == BLOCK_FREE) want_saved(m, block);
}

/* Takes blocks for `tokens`, those that were promised to it first. */
bool cache_grow(cache_manager *m, cache_sequence *s, int32_t tokens)
{
    block_table *t = &s->table;
    int32_t more = blocks_for_tokens(tokens) - t->count;
    if (more <= 0) return true;
    int32_t own = more < s->promised ? more : s->promised;
    if (t->count + more > t->capacity || more - own > blocks_free_count(m->blocks) - m->promised) return false;
    s->promised -= own, m->promised -= own;
    while (more-- > 0) t->block[t->count++] = take(m);
    return true;
}

int64_t cache_slot(const cache_manager *m, const cache_sequence *s, int32_t position)
{
    if (blocks_state(m->blocks, s->table.block[position / CACHE_BLOCK]) == BLOCK_FULL) return -1;
    return block_table_slot(&s->table, position);
}

void cache_leave(cache_manager *m, cache_sequence *s)
{
    assert(s->loading == 0);
    while (s->table.count > 0) release(m, s->table.block[--s->table.count]);
    m->promised -= s->promised;
    s->promised = s->written = s->keyed = 0;
    s->tail_looked = false;
}

/* ---- Finding ---------------------------------------------------------------------------------------------------- */

/* Full blocks from the table's end on, without those promised for their places. */
static void match_full(cache_manager *m, cache_sequence *s, int32_t count)
{
    while ((s->keyed + 1) * CACHE_BLOCK <= count) {
        int32_t tokens, block = prefix_find(m->index, s->key, s->ids + s->keyed * CACHE_BLOCK, CACHE_BLOCK, &tokens);
        if (tokens < CACHE_BLOCK) break;
        blocks_hold(m->blocks, block);
        s->table.block[s->table.count++] = block;
        memcpy(s->key, prefix_key(m->index, block), PREFIX_KEY);
        s->keyed++;
        if (s->promised > 0) s->promised--, m->promised--;
    }
    s->written = s->keyed * CACHE_BLOCK;
}

int32_t cache_peek(cache_manager *m, const char *salt, const int32_t *ids, int32_t count)
{
    if (!m->index) return -1;
    uint8_t key[PREFIX_KEY];
    prefix_root(m->index, salt, key);
    for (int32_t at = 0;;) {
        int32_t left = count - at, tokens;
        if (left == 0) return at;
        int32_t block = prefix_find(m->index, key, ids + at, left < CACHE_BLOCK ? left : CACHE_BLOCK, &tokens);
        at += tokens;
        if (tokens < CACHE_BLOCK) return at;
        memcpy(key, prefix_key(m->index, block), PREFIX_KEY);
    }
}

static void arrive(void *user, const void *row, store_place from)
{
    struct load *l = user;
    cache_manager *m = l->manager;
    if (row) m->o.ops->cache_write(m->o.cache, l->block, 0, m->o.row_bytes, row);
    pthread_mutex_lock(&m->lock);
    l->came = row ? from : STORE_NOWHERE;
    l->next = m->arrived;
    m->arrived = l->block;
    pthread_mutex_unlock(&m->lock);
    m->o.wake(m->o.user);
}

/* Blocks that the tiers have behind the table's end. */
static int32_t find_in_tiers(cache_manager *m, const cache_sequence *s, int32_t count)
{
    int32_t found = 0;
    if (!m->o.tiers) return 0;
    uint8_t key[PREFIX_KEY];
    memcpy(key, s->key, PREFIX_KEY);
    for (int32_t i = s->keyed; (i + 1) * CACHE_BLOCK <= count; i++, found++) {
        prefix_next(key, s->ids + i * CACHE_BLOCK, key);
        if (store_find(m->o.tiers, key) == STORE_NOWHERE) break;
    }
    return found;
}

/* Asks for them; their blocks are promised ones. What is gone by now ends it. */
static void load_from_tiers(cache_manager *m, cache_sequence *s, int32_t found)
{
    uint8_t key[PREFIX_KEY];
    memcpy(key, s->key, PREFIX_KEY);
    s->loading_from = s->table.count;
    for (int32_t i = 0; i < found; i++) {
        prefix_next(key, s->ids + (s->keyed + i) * CACHE_BLOCK, key);
        int32_t block = take(m);
        store_place place =
            store_find(m->o.tiers, key); /* after the block's old contents have made room for themselves */
        blocks_set_loading(m->blocks, block);
        m->load[block] = (struct load){.manager = m, .sequence = s, .block = block};
        if (place == STORE_NOWHERE || !store_read(m->o.tiers, key, arrive, &m->load[block])) {
            blocks_release(m->blocks, block);
            return;
        }
        s->table.block[s->table.count++] = block;
        s->promised--, m->promised--;
        s->loading++;
    }
}

bool cache_admit(cache_manager *m, cache_sequence *s, const int32_t *ids, int32_t count, int32_t spare)
{
    assert(s->table.count == 0 && s->promised == 0 && s->loading == 0 && count > 0);
    s->ids = ids;
    s->reuse = (hy_reuse){0};
    s->keyed = s->written = 0;
    s->tail_looked = s->apart || !m->index;
    s->miss = s->tail_looked ? HY_MISS_OFF : HY_MISS_NONE;
    if (m->index) prefix_root(m->index, s->salt, s->key);
    if (!s->tail_looked) match_full(m, s, count);
    int32_t need = blocks_for_tokens(count) - s->table.count;
    if (need > blocks_free_count(m->blocks) - m->promised - spare) {
        while (s->table.count > 0) release(m, s->table.block[--s->table.count]);
        s->keyed = s->written = 0;
        return false;
    }
    s->promised = need, m->promised += need;
    if (!s->tail_looked) load_from_tiers(m, s, find_in_tiers(m, s, count));
    return true;
}

bool cache_tail(cache_manager *m, cache_sequence *s, int32_t count, cache_copy *copy)
{
    assert(s->loading == 0);
    if (s->tail_looked) return false;
    s->tail_looked = true;
    match_full(m, s, count); /* what others have computed since */
    const int32_t *rest = s->ids + s->written;
    int32_t left = count - s->written, tokens = 0, block = -1;
    if (left > 0) block = prefix_find(m->index, s->key, rest, left < CACHE_BLOCK ? left : CACHE_BLOCK, &tokens);
    if (tokens < left - 1 && s->miss == HY_MISS_NONE)
        s->miss = prefix_why(m->index, s->key, s->keyed == 0, rest, left, tokens);
    /* The last token is computed. Where its row is there already its block is shared, and it is not written again. */
    if (left == 0) s->written = count - 1;
    bool whole = block >= 0 && tokens == prefix_tokens(m->index, block);
    bool unused = block >= 0 && blocks_state(m->blocks, block) == BLOCK_FREE;
    int32_t fit = tokens;
    if (tokens > 0 && tokens == left) tokens--;
    bool copies = tokens > 0 && (!unused || (!whole && blocks_free_count(m->blocks) > m->promised));
    if (copies) {
        blocks_hold(m->blocks, block);
        bool room = cache_grow(m, s, s->written + tokens);
        assert(room); /* promised */
        *copy = (cache_copy){block, s->table.block[s->table.count - 1]};
        prefix_note(m->index, copy->to, s->key, s->keyed == 0, rest, tokens);
    } else if (tokens > 0) {
        /* A sequence that goes on where one has ended gets the block itself; so does one that parts from it where
         * holding an unused block would cost one that was promised. */
        if (!whole) {
            save(m, block);
            prefix_forget(m->index, block, true);
            prefix_note(m->index, block, s->key, s->keyed == 0, rest, fit);
        }
        blocks_adopt(m->blocks, block);
        s->table.block[s->table.count++] = block;
        s->promised--, m->promised--;
    }
    s->written += tokens;
    hy_reuse *reuse = &s->reuse;
    reuse->tokens = s->written;
    reuse->cache = s->written - reuse->memory - reuse->disk;
    if (reuse->cache < 0) { /* all came from the tiers, and the last token is computed all the same */
        *(reuse->disk > 0 ? &reuse->disk : &reuse->memory) += reuse->cache;
        reuse->cache = 0;
    }
    return copies;
}

void cache_copied(cache_manager *m, const cache_copy *copy)
{
    release(m, copy->from);
}

/* ---- What was computed, what was read --------------------------------------------------------------------------- */

void cache_wrote(cache_manager *m, cache_sequence *s, int32_t tokens)
{
    while (s->written < tokens) {
        int32_t i = s->written / CACHE_BLOCK, block = s->table.block[i], begin = i * CACHE_BLOCK;
        int32_t to = tokens < begin + CACHE_BLOCK ? tokens : begin + CACHE_BLOCK;
        s->written = to;
        if (blocks_state(m->blocks, block) == BLOCK_FULL) continue; /* the last token of a prompt that was there */
        if (m->index) prefix_note(m->index, block, s->key, i == 0, s->ids + begin, to - begin);
        if (to < begin + CACHE_BLOCK) break;
        if (m->index) memcpy(s->key, prefix_key(m->index, block), PREFIX_KEY);
        s->keyed++;
        blocks_set_full(m->blocks, block);
    }
}

/* All reads of a sequence have arrived: what came in a row is full and listed, the rest is given back. */
static void loaded(cache_manager *m, cache_sequence *s)
{
    int32_t good = s->loading_from;
    for (; good < s->table.count; good++) {
        int32_t block = s->table.block[good];
        const struct load *l = &m->load[block];
        if (l->came == STORE_NOWHERE) break;
        prefix_note(m->index, block, s->key, good == 0, s->ids + good * CACHE_BLOCK, CACHE_BLOCK);
        memcpy(s->key, prefix_key(m->index, block), PREFIX_KEY);
        s->keyed++, s->written += CACHE_BLOCK;
        blocks_set_full(m->blocks, block);
        *(l->came == STORE_MEMORY ? &s->reuse.memory : &s->reuse.disk) += CACHE_BLOCK;
    }
    if (good < s->table.count) s->miss = HY_MISS_DAMAGED;
    s->promised += s->table.count - good, m->promised += s->table.count - good;
    while (s->table.count > good) blocks_release(m->blocks, s->table.block[--s->table.count]);
}

void cache_poll(cache_manager *m, uint64_t *damaged)
{
    pthread_mutex_lock(&m->lock);
    int32_t block = m->arrived;
    m->arrived = -1;
    pthread_mutex_unlock(&m->lock);
    for (int32_t next; block >= 0; block = next) {
        struct load *l = &m->load[block];
        next = l->next;
        *damaged += l->came == STORE_NOWHERE;
        if (--l->sequence->loading == 0) loaded(m, l->sequence);
    }
}
