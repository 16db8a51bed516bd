/*
 * Who holds which block of the cache: the book-keeping beside the backend's memory (`ops_cache`), which it never
 * touches.
 *
 * A block is 128 tokens of one sequence in all layers (backend/ops.h). It is free, or held by one or more; it is filling
 * while one of them, who took it, still writes into it; loading while its rows come from a tier (cache/store.h); full when
 * nobody writes into it any more. Sequences share full blocks; a filling one may be held beside its writer by who copies
 * what is there. Free blocks wait in a list, the longest unused first, so that what a block holds stays as long as
 * possible (cache/prefix.h says what that is).
 *
 * Not for several threads at once: the engine's planner owns it. Nothing is allocated after blocks_open.
 */
#ifndef HAYATE_CACHE_BLOCKS_H
#define HAYATE_CACHE_BLOCKS_H

#include "backend/ops.h"

typedef enum block_state {
    BLOCK_FREE,    /* in the free list; contents may still be good, until it is taken */
    BLOCK_FILLING, /* who took it writes into it */
    BLOCK_LOADING, /* its rows are being read from a tier */
    BLOCK_FULL,    /* not written while it is held */
} block_state;

typedef struct blocks blocks;

/* `count` free blocks. HY_USAGE for a count below 1; HY_NO_FIT without memory. */
hy_status blocks_open(int32_t count, blocks **out, hy_error *err);
void blocks_close(blocks *b);

int32_t blocks_count(const blocks *b);
int32_t blocks_free_count(const blocks *b);
block_state blocks_state(const blocks *b, int32_t block);
int32_t blocks_holders(const blocks *b, int32_t block);

/* The free block that was unused for the longest time, which blocks_take will take. -1: none is free. */
int32_t blocks_oldest(const blocks *b);
/* Takes it: state filling, one holder. -1: none is free. */
int32_t blocks_take(blocks *b);
/* Takes a free block with what it holds: state filling, one holder, who writes on where its rows end. */
void blocks_adopt(blocks *b, int32_t block);
/* A filling block of one holder gets its rows from a tier. */
void blocks_set_loading(blocks *b, int32_t block);
/* All rows of a filling or loading block are written. */
void blocks_set_full(blocks *b, int32_t block);
/* One more holder; a free block comes back out of the list as full. */
void blocks_hold(blocks *b, int32_t block);
/* One holder less. The last one puts the block at the end of the free list. */
void blocks_release(blocks *b, int32_t block);

/* ---- Block tables --------------------------------------------------------------------------------------------- */

/* The blocks of one sequence in order. The array is the caller's: a row of ops_rows.block_table. */
typedef struct block_table {
    int32_t *block; /* [capacity] borrowed; logical block i is block[i] */
    int32_t capacity;
    int32_t count;   /* blocks held */
} block_table;

/* Blocks that `tokens` tokens need. */
static inline int32_t blocks_for_tokens(int64_t tokens)
{
    return (int32_t)((tokens + CACHE_BLOCK - 1) / CACHE_BLOCK);
}

/* The cache slot of a position that has room: block * 128 + position % 128. */
int64_t block_table_slot(const block_table *t, int32_t position);

#endif
