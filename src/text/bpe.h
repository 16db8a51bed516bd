/* Merging the bytes of one pre-token into tokens. */
#ifndef HAYATE_TEXT_BPE_H
#define HAYATE_TEXT_BPE_H

#include "text/vocabulary.h"

/* Memory that grows with the longest pre-token and is used again; a zeroed struct is empty. */
typedef struct bpe_workspace {
    int32_t *symbols; /* [3, symbol_capacity]: id, next, previous */
    size_t symbol_capacity;
    uint64_t *heap;
    size_t heap_count, heap_capacity;
} bpe_workspace;

void bpe_free(bpe_workspace *w);

/*
 * The tokens of `length` > 0 bytes: starting from single bytes, the adjacent pair with the lowest merge rank is joined,
 * the leftmost of equals, until no pair has a merge. O(n log n). *ids is borrowed from the workspace; *count is how
 * many. False: no memory.
 */
bool bpe_merge(const vocabulary *v, bpe_workspace *w, const unsigned char *bytes, size_t length, const int32_t **ids,
               size_t *count);

#endif
