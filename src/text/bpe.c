#include "text/bpe.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* Below this many bytes looking at every pair is faster than keeping a heap. */
enum { SHORT = 48 };

void bpe_free(bpe_workspace *w)
{
    free(w->symbols);
    free(w->heap);
    *w = (bpe_workspace){0};
}

static uint32_t pair_rank(const vocabulary *v, int32_t left, int32_t right, int32_t *id)
{
    const vocabulary_merge *m = vocabulary_find_merge(v, left, right);
    if (!m) return UINT32_MAX;
    *id = m->id;
    return m->rank;
}

/* ids[count] in place, with the rank and the token of each pair beside it. Returns the new count. */
static size_t merge_short(const vocabulary *v, int32_t *ids, size_t count)
{
    uint32_t rank[SHORT];
    int32_t merged[SHORT];
    for (size_t i = 0; i + 1 < count; i++) rank[i] = pair_rank(v, ids[i], ids[i + 1], &merged[i]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == UINT32_MAX) break;
        ids[best] = merged[best];
        count--;
        memmove(ids + best + 1, ids + best + 2, (count - best - 1) * sizeof *ids);
        if (best + 1 < count) {
            memmove(rank + best, rank + best + 1, (count - best - 1) * sizeof *rank);
            memmove(merged + best, merged + best + 1, (count - best - 1) * sizeof *merged);
            rank[best] = pair_rank(v, ids[best], ids[best + 1], &merged[best]);
        }
        if (best) rank[best - 1] = pair_rank(v, ids[best - 1], ids[best], &merged[best - 1]);
    }
    return count;
}

/* ---- Long pre-tokens: a list of symbols and a heap of pairs, keyed by rank, then position ---- */

static bool heap_push(bpe_workspace *w, uint64_t key)
{
    if (!memory_reserve((void **)&w->heap, &w->heap_capacity, w->heap_count + 1, sizeof *w->heap)) return false;
    size_t at = w->heap_count++;
    while (at && w->heap[(at - 1) / 2] > key) {
        w->heap[at] = w->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    w->heap[at] = key;
    return true;
}

static uint64_t heap_pop(bpe_workspace *w)
{
    uint64_t top = w->heap[0], key = w->heap[--w->heap_count];
    size_t at = 0, count = w->heap_count;
    for (size_t child; (child = at * 2 + 1) < count; at = child) {
        if (child + 1 < count && w->heap[child + 1] < w->heap[child]) child++;
        if (w->heap[child] >= key) break;
        w->heap[at] = w->heap[child];
    }
    w->heap[at] = key;
    return top;
}

static bool push_pair(const vocabulary *v, bpe_workspace *w, const int32_t *ids, int32_t left, int32_t right)
{
    int32_t id;
    uint32_t rank = pair_rank(v, ids[left], ids[right], &id);
    return rank == UINT32_MAX || heap_push(w, (uint64_t)rank << 32 | (uint32_t)left);
}

/* Pairs whose symbols changed since they were pushed are told by their rank and skipped. Returns the new count, 0: no
 * memory. */
static size_t merge_long(const vocabulary *v, bpe_workspace *w, int32_t *ids, size_t count)
{
    int32_t *next = ids + count, *previous = next + count;
    w->heap_count = 0;
    for (size_t i = 0; i < count; i++) next[i] = i + 1 < count ? (int32_t)i + 1 : -1, previous[i] = (int32_t)i - 1;
    for (size_t i = 0; i + 1 < count; i++)
        if (!push_pair(v, w, ids, (int32_t)i, (int32_t)i + 1)) return 0;
    while (w->heap_count) {
        uint64_t key = heap_pop(w);
        int32_t at = (int32_t)(uint32_t)key, right, id = 0;
        if (ids[at] < 0 || (right = next[at]) < 0) continue;
        if (pair_rank(v, ids[at], ids[right], &id) != (uint32_t)(key >> 32)) continue;
        ids[at] = id, ids[right] = -1;
        next[at] = next[right];
        if (next[at] >= 0) previous[next[at]] = at;
        if (next[at] >= 0 && !push_pair(v, w, ids, at, next[at])) return 0;
        if (previous[at] >= 0 && !push_pair(v, w, ids, previous[at], at)) return 0;
    }
    size_t kept = 0;
    for (int32_t i = 0; i >= 0; i = next[i]) ids[kept++] = ids[i];
    return kept;
}

bool bpe_merge(const vocabulary *v, bpe_workspace *w, const unsigned char *bytes, size_t length, const int32_t **ids,
               size_t *count)
{
    size_t need;
    if (length > INT32_MAX || !size_mul(length, length <= SHORT ? 1 : 3, &need) ||
        !memory_reserve((void **)&w->symbols, &w->symbol_capacity, need, sizeof *w->symbols))
        return false;
    for (size_t i = 0; i < length; i++) w->symbols[i] = v->byte_id[bytes[i]];
    *ids = w->symbols;
    *count = length <= SHORT ? merge_short(v, w->symbols, length) : merge_long(v, w, w->symbols, length);
    return *count != 0;
}
