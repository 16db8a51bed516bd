#include "text/grammar_subset.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"

static bool no_memory(subset *s)
{
    build_fail(s->b, HY_NO_FIT, "there is no memory for the states of a grammar");
    return false;
}

bool subset_open(subset *s, builder *b, const bool *nullable)
{
    *s = (subset){.b = b, .nullable = nullable, .slots = 1024};
    s->mark = calloc(b->nodes + 1, sizeof *s->mark);
    s->slot = malloc(s->slots * sizeof *s->slot);
    if (!s->mark || !s->slot || !memory_reserve((void **)&s->at, &s->at_capacity, 1, sizeof *s->at))
        return no_memory(s);
    memset(s->slot, 0xFF, s->slots * sizeof *s->slot);
    s->at[0] = 0;
    return true;
}

void subset_close(subset *s)
{
    free(s->mark);
    free(s->list);
    free(s->pool);
    free(s->at);
    free(s->slot);
}

void subset_clear(subset *s)
{
    s->count = 0;
    s->stamp++;
}

void subset_add(subset *s, int32_t node)
{
    if (s->mark[node] == s->stamp) return;
    s->mark[node] = s->stamp;
    if (!memory_reserve((void **)&s->list, &s->capacity, s->count + 1, sizeof *s->list)) {
        no_memory(s);
        return;
    }
    s->list[s->count++] = node;
}

static bool passes(const subset *s, const build_edge *e, bool begin, bool end)
{
    switch (e->kind) {
    case EDGE_EMPTY: return true;
    case EDGE_BEGIN: return begin;
    case EDGE_END: return end;
    case EDGE_CALL: return s->nullable && s->nullable[e->rule];
    }
    return false;
}

static void spread(subset *s, bool begin, bool end)
{
    const builder *b = s->b;
    for (size_t i = 0; i < s->count && build_work(s->b, 1); i++)
        for (int32_t e = b->first[s->list[i]]; e >= 0; e = b->edge[e].next)
            if (passes(s, &b->edge[e], begin, end)) subset_add(s, b->edge[e].to);
}

static bool matters(const builder *b, int32_t node)
{
    for (int32_t e = b->first[node]; e >= 0; e = b->edge[e].next) {
        int kind = b->edge[e].kind;
        if (kind == EDGE_BYTES || kind == EDGE_CALL || kind == EDGE_END) return true;
    }
    return false;
}

static int compare(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

void subset_complete(subset *s, int32_t end, bool begin)
{
    size_t n = 0;
    spread(s, begin, false);
    for (size_t i = 0; i < s->count; i++)
        if (s->list[i] == end || matters(s->b, s->list[i])) s->list[n++] = s->list[i];
    s->count = n;
    if (n > 1) qsort(s->list, n, sizeof *s->list, compare);
}

static size_t hash_of(const int32_t *list, size_t count)
{
    uint64_t h = 0x9E3779B97F4A7C15u ^ count;
    for (size_t i = 0; i < count; i++) h = (h ^ (uint32_t)list[i]) * 0xD6E8FEB86659FD93u, h ^= h >> 32;
    return (size_t)h;
}

static bool grow(subset *s)
{
    size_t slots = s->slots * 2;
    int32_t *slot = malloc(slots * sizeof *slot);
    if (!slot) return no_memory(s);
    memset(slot, 0xFF, slots * sizeof *slot);
    for (size_t i = 0; i < s->slots; i++) {
        if (s->slot[i] < 0) continue;
        size_t begin = s->at[s->slot[i]], at = hash_of(s->pool + begin, s->at[s->slot[i] + 1] - begin);
        while (slot[at & (slots - 1)] >= 0) at++;
        slot[at & (slots - 1)] = s->slot[i];
    }
    free(s->slot);
    s->slot = slot, s->slots = slots;
    return true;
}

int32_t subset_state(subset *s, bool apart, bool *made)
{
    *made = false;
    if (s->b->status != HY_OK || (s->states * 2 >= s->slots && !grow(s))) return -1;
    size_t at = hash_of(s->list, s->count);
    for (; !apart; at++) {
        int32_t have = s->slot[at & (s->slots - 1)];
        if (have < 0) break;
        size_t begin = s->at[have];
        if (s->at[have + 1] - begin == s->count &&
            (!s->count || memcmp(s->pool + begin, s->list, s->count * sizeof *s->list) == 0))
            return have;
    }
    if (!memory_reserve((void **)&s->pool, &s->pool_capacity, s->pooled + s->count + 1, sizeof *s->pool) ||
        !memory_reserve((void **)&s->at, &s->at_capacity, s->states + 2, sizeof *s->at)) {
        no_memory(s);
        return -1;
    }
    if (s->count) memcpy(s->pool + s->pooled, s->list, s->count * sizeof *s->list);
    s->pooled += s->count;
    int32_t state = (int32_t)s->states++;
    s->at[s->states] = s->pooled;
    if (!apart) s->slot[at & (s->slots - 1)] = state;
    *made = true;
    return state;
}

bool subset_accepts(subset *s, int32_t state, int32_t end)
{
    subset_clear(s);
    for (size_t i = s->at[state]; i < s->at[state + 1]; i++) subset_add(s, s->pool[i]);
    spread(s, false, true);
    for (size_t i = 0; i < s->count; i++)
        if (s->list[i] == end) return true;
    return false;
}
