/*
 * Who holds which block of the cache: the book-keeping beside the backend's memory (`ops_cache`), which it never
 * touches.
 *
 * A block is 128 tokens of one sequence in all layers (backend/ops.h). It is free, or held by one or more sequences; it
 * is filling while its one holder still writes into it, and full once all its rows are written: only full blocks may be
 * shared. Free blocks wait in a list, the longest unused first, so that what a block holds stays as long as possible.
 *
 * Not for several threads at once: the engine's thread owns it. Nothing is allocated after blocks_open.
 */
#ifndef HAYATE_CACHE_BLOCKS_H
#define HAYATE_CACHE_BLOCKS_H

#include "backend/ops.h"

typedef enum block_state {
    BLOCK_FREE,    /* in the free list; contents may still be good, until it is taken */
    BLOCK_FILLING, /* one holder, which writes into it */
    BLOCK_FULL,    /* all rows written, not written again while it is held */
} block_state;

typedef struct blocks blocks;

/* `count` free blocks. HY_USAGE for a count below 1; HY_NO_FIT without memory. */
hy_status blocks_open(int32_t count, blocks **out, hy_error *err);
void blocks_close(blocks *b);

int32_t blocks_count(const blocks *b);
int32_t blocks_free_count(const blocks *b);
block_state blocks_state(const blocks *b, int32_t block);
int32_t blocks_holders(const blocks *b, int32_t block);

/* Takes the free block that was unused for the longest time: state filling, one holder. -1: none is free. */
int32_t blocks_take(blocks *b);
/* All rows of a held block are written. */
void blocks_set_full(blocks *b, int32_t block);
/* One more holder of a full block; takes a free one back out of the list if nobody took it in between. */
void blocks_hold(blocks *b, int32_t block);
/* One holder less. The last one puts the block at the end of the free list. */
void blocks_release(blocks *b, int32_t block);

/* ---- Block tables --------------------------------------------------------------------------------------------- */

/* The blocks of one sequence in order. The array is the caller's: a row of ops_rows.block_table. */
typedef struct block_table {
    int32_t *block; /* [capacity] borrowed; logical block i is block[i] */
    int32_t capacity;
    int32_t count;   /* blocks held */
    int32_t written; /* tokens whose rows are written or are being written by the running step */
} block_table;

/* Blocks that `tokens` tokens need. */
static inline int32_t blocks_for_tokens(int64_t tokens)
{
    return (int32_t)((tokens + CACHE_BLOCK - 1) / CACHE_BLOCK);
}

/* Makes room for `tokens` tokens in all and takes what is missing; false, with nothing taken, if the free blocks or the
 * capacity are too few. */
bool block_table_grow(block_table *t, blocks *b, int32_t tokens);
/* The cache slot of a position that has room: block * 128 + position % 128. */
int64_t block_table_slot(const block_table *t, int32_t position);
/* Rows up to `tokens` are written: blocks that end there become full. */
void block_table_wrote(block_table *t, blocks *b, int32_t tokens);
/* Gives everything back, the last block first, so that the start of a sequence is what stays longest. */
void block_table_release(block_table *t, blocks *b);

#endif
