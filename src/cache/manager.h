/*
 * The cache of an engine: which blocks a sequence holds, what it finds there when it comes, and what leaves.
 *
 * Ties together the blocks' book-keeping (blocks.h), the index of their contents (prefix.h), the backend's memory and the
 * tiers (store.h). One thread, the engine's planner, calls everything here; reads from the tiers arrive on the store's
 * threads and wait in a list until cache_poll.
 *
 * A sequence comes with its tokens: cache_admit gives it the full blocks that are there and starts to read those that the
 * tiers have behind them. When nothing is being read any more, cache_tail looks for a block that continues with some of its
 * tokens; it takes that block where it ends there and nobody holds it, else it says which row to copy. At least one token is
 * always left to compute, since its logits are wanted. What a sequence has computed is noted (cache_wrote), then others
 * can find it, while it runs and after it.
 *
 * Blocks are promised before they are taken: admission promises what a prompt needs, so that a long prompt that is being
 * computed never finds the cache full.
 *
 * The planner runs while a step computes. It may take blocks of the step that runs only when nothing writes them before the
 * step has ended: copies and rows are the next step's, a block that is read from a tier or saved to one is in no step.
 */
#ifndef HAYATE_CACHE_MANAGER_H
#define HAYATE_CACHE_MANAGER_H

#include "cache/blocks.h"
#include "cache/prefix.h"
#include "cache/store.h"

typedef struct cache_manager cache_manager;

typedef struct cache_options {
    int32_t blocks;
    uint8_t identity[STORE_KEY];
    bool prefix; /* false: nothing is found and nothing noted */
    const hy_ops *ops;
    ops_cache *cache; /* borrowed */
    size_t row_bytes;
    store *tiers;     /* borrowed; NULL: none */
    bool save_idle;   /* blocks that nobody holds go to the tiers before they must: there is a disk */
    void (*wake)(void *user); /* a read has arrived, on a thread of the store */
    void *user;
} cache_options;

hy_status cache_open(const cache_options *options, cache_manager **out, hy_error *err);
/* No sequence holds anything. */
void cache_close(cache_manager *m);

/* The cache's side of a sequence. Zeroed but for table.block and table.capacity it holds nothing. */
typedef struct cache_sequence {
    block_table table;
    const int32_t *ids; /* its tokens; borrowed from admission until it leaves */
    const char *salt;   /* borrowed; NULL: "" */
    bool apart;         /* looks for nothing; others may find what it computes */

    int32_t written; /* tokens whose rows are there */
    hy_reuse reuse;  /* of the last admission; all of it once the tail was looked at. reuse.miss is not filled */
    hy_miss miss;

    uint8_t key[PREFIX_KEY]; /* after the first `keyed` blocks */
    int32_t keyed;           /* full blocks of the table that the key covers */
    int32_t promised;        /* blocks promised and not yet taken */
    int32_t loading;         /* blocks that are being read */
    int32_t loading_from;    /* the first of them in the table */
    bool tail_looked;
} cache_sequence;

/* A row copy for the next step to begin with; `from` is held until cache_copied. */
typedef struct cache_copy {
    int32_t from, to;
} cache_copy;

int32_t cache_blocks(const cache_manager *m);
/* Blocks that are held. */
int32_t cache_used(const cache_manager *m);

/*
 * Admission. Gives the sequence the full blocks that are there of ids[0, count), asks the tiers for those behind them, and
 * promises the rest of what `count` tokens need, if after that `spare` blocks would still be free; else false, and it
 * holds nothing.
 */
bool cache_admit(cache_manager *m, cache_sequence *s, const int32_t *ids, int32_t count, int32_t spare);
/* Once, when nothing is being read: looks for a row that begins what is left of ids[0, count). True: *copy comes first in
 * the next step. Then s->written tokens are there, at most count - 1: that is where computing starts. */
bool cache_tail(cache_manager *m, cache_sequence *s, int32_t count, cache_copy *copy);
void cache_copied(cache_manager *m, const cache_copy *copy);
/* Tokens that would be found in the cache now, without taking anything; -1: nothing is ever found. */
int32_t cache_peek(cache_manager *m, const char *salt, const int32_t *ids, int32_t count);

/* Makes room for `tokens` in all. False, with nothing taken: the free blocks that are not promised to others are too few. */
bool cache_grow(cache_manager *m, cache_sequence *s, int32_t tokens);
/* The slot to write for a position with room, -1: its row is there in a block that is shared. */
int64_t cache_slot(const cache_manager *m, const cache_sequence *s, int32_t position);
/* The rows of ids[0, tokens) are written. */
void cache_wrote(cache_manager *m, cache_sequence *s, int32_t tokens);
/* Lets go of everything. Not while it is loading. */
void cache_leave(cache_manager *m, cache_sequence *s);

/* Takes in reads that have arrived; sequences whose last one it was have loading == 0 afterwards. `damaged` counts blocks
 * that did not come. */
void cache_poll(cache_manager *m, uint64_t *damaged);
/* Saves one idle block to the tiers if some wait for it. False: nothing to do, or no room there now. */
bool cache_save_one(cache_manager *m);
int32_t cache_unsaved(const cache_manager *m); /* blocks that wait for it */
/* Before the end: saves what waits, for at most `seconds`. Returns blocks left. */
int32_t cache_save_all(cache_manager *m, double seconds);

#endif
