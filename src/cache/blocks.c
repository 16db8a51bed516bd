#include "cache/blocks.h"

#include <assert.h>

#include "base/error.h"
#include "base/memory.h"

/* The free list is a ring through a sentinel at index `count`: taking any block out of its middle is O(1), as finding
 * a block again by its contents needs. */
struct entry {
    int32_t before, after;
    int32_t holders;
    block_state state;
};

struct blocks {
    int32_t count, free;
    struct entry *entry; /* [count + 1] */
};

static void list_append(blocks *b, int32_t block)
{
    struct entry *e = b->entry;
    int32_t last = e[b->count].before;
    e[block].before = last, e[block].after = b->count;
    e[last].after = block, e[b->count].before = block;
    b->free++;
}

static void list_remove(blocks *b, int32_t block)
{
    struct entry *e = b->entry;
    e[e[block].before].after = e[block].after;
    e[e[block].after].before = e[block].before;
    b->free--;
}

hy_status blocks_open(int32_t count, blocks **out, hy_error *err)
{
    if (count < 1) return error_set(err, HY_USAGE, "a cache needs at least 1 block, not %d", count);
    blocks *b = memory_zeroed(1, sizeof *b);
    if (b) b->entry = memory_zeroed((size_t)count + 1, sizeof *b->entry);
    if (!b || !b->entry) {
        memory_free(b);
        return error_memory(err, "the cache's block list", ((size_t)count + 1) * sizeof(struct entry));
    }
    b->count = count;
    b->entry[count].before = b->entry[count].after = count;
    for (int32_t i = 0; i < count; i++) list_append(b, i);
    *out = b;
    return HY_OK;
}

void blocks_close(blocks *b)
{
    if (!b) return;
    memory_free(b->entry);
    memory_free(b);
}

int32_t blocks_count(const blocks *b)
{
    return b->count;
}

int32_t blocks_free_count(const blocks *b)
{
    return b->free;
}

static struct entry *at(const blocks *b, int32_t block)
{
    assert(block >= 0 && block < b->count);
    return &b->entry[block];
}

block_state blocks_state(const blocks *b, int32_t block)
{
    return at(b, block)->state;
}

int32_t blocks_holders(const blocks *b, int32_t block)
{
    return at(b, block)->holders;
}

int32_t blocks_oldest(const blocks *b)
{
    return b->free > 0 ? b->entry[b->count].after : -1;
}

int32_t blocks_take(blocks *b)
{
    int32_t block = blocks_oldest(b);
    if (block < 0) return -1;
    list_remove(b, block);
    b->entry[block].state = BLOCK_FILLING;
    b->entry[block].holders = 1;
    return block;
}

void blocks_adopt(blocks *b, int32_t block)
{
    struct entry *e = at(b, block);
    assert(e->state == BLOCK_FREE);
    list_remove(b, block);
    e->state = BLOCK_FILLING, e->holders = 1;
}

void blocks_set_loading(blocks *b, int32_t block)
{
    struct entry *e = at(b, block);
    assert(e->state == BLOCK_FILLING && e->holders == 1);
    e->state = BLOCK_LOADING;
}

void blocks_set_full(blocks *b, int32_t block)
{
    struct entry *e = at(b, block);
    assert((e->state == BLOCK_FILLING || e->state == BLOCK_LOADING) && e->holders > 0);
    e->state = BLOCK_FULL;
}

void blocks_hold(blocks *b, int32_t block)
{
    struct entry *e = at(b, block);
    if (e->state == BLOCK_FREE) {
        list_remove(b, block);
        e->state = BLOCK_FULL;
    }
    e->holders++;
}

void blocks_release(blocks *b, int32_t block)
{
    struct entry *e = at(b, block);
    assert(e->holders > 0);
    if (--e->holders > 0) return;
    e->state = BLOCK_FREE;
    list_append(b, block);
}

int64_t block_table_slot(const block_table *t, int32_t position)
{
    assert(position >= 0 && position / CACHE_BLOCK < t->count);
    return (int64_t)t->block[position / CACHE_BLOCK] * CACHE_BLOCK + position % CACHE_BLOCK;
}
