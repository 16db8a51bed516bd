/*
 * An answer as a list of blocks: runs of reasoning, text and calls, in the order in which they were written. What the
 * Messages and the Responses dialect make of the parts of server/generation.h.
 *
 * One block is open at a time. Text that arrives while a call is open waits for the end of the call and is a block of its
 * own. White space alone beside calls is no block; elsewhere it stays with the text that follows. An answer that has
 * nothing in it is one empty text.
 */
#ifndef HAYATE_SERVER_ANSWER_BLOCKS_H
#define HAYATE_SERVER_ANSWER_BLOCKS_H

#include "base/buffer.h"
#include "text/answer.h"

typedef enum block_kind { BLOCK_REASONING, BLOCK_TEXT, BLOCK_CALL } block_kind;

typedef struct answer_block {
    block_kind kind;
    buffer text;   /* of a call its arguments */
    char *name;    /* of a call; owned */
    char id[33];   /* 32 hex digits, for the ids that protocols want */
    buffer extra;  /* the dialect's own; freed with the block */
    bool complete; /* it was not cut off by the end of the answer */
} answer_block;

typedef enum block_change { BLOCK_BEGINS, BLOCK_GROWS, BLOCK_ENDS } block_change;

/* What happened to the last block, which is number `index`; text is what it grows by. */
typedef void (*block_fn)(void *user, block_change change, const answer_block *block, size_t index, const char *text,
                         size_t length);

typedef struct answer_blocks {
    answer_block *list; /* [count] */
    size_t count, capacity;
    size_t calls;
    bool open;   /* the last block is */
    bool failed; /* no memory: blocks are missing */
    buffer held; /* text that waits for the end of a call, or for more than white space */
} answer_blocks;

/* Takes a part of text/answer.h. `fn` may be NULL. */
void answer_blocks_add(answer_blocks *b, text_part_kind kind, const char *text, size_t length, block_fn fn, void *user);
/* The end. `complete` is false where the answer was cut off. */
void answer_blocks_finish(answer_blocks *b, bool complete, block_fn fn, void *user);
void answer_blocks_free(answer_blocks *b);

/* The arguments of a call as JSON: "{}" for those that have none. */
const char *answer_block_arguments(const answer_block *call, size_t *length);

#endif
