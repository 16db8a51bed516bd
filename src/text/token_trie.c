#include "text/token_trie.h"

#include <stdlib.h>
#include <string.h>

enum { LONGEST = 65535 };

static int compare(const void *a, const void *b)
{
    const trie_entry *x = a, *y = b;
    uint32_t n = x->length < y->length ? x->length : y->length;
    int order = memcmp(x->bytes, y->bytes, n);
    if (!order) order = (x->length > y->length) - (x->length < y->length);
    return order ? order : (x->value > y->value) - (x->value < y->value);
}

static uint32_t shared(const trie_entry *a, const trie_entry *b)
{
    uint32_t i = 0;
    while (i < a->length && i < b->length && a->bytes[i] == b->bytes[i]) i++;
    return i;
}

/* The nodes of a string beyond what it shares with the one before it; those that it leaves get their end. */
static void add(token_trie *t, const trie_entry *e, uint32_t from, uint32_t *open)
{
    for (uint32_t depth = from; depth < e->length; depth++) {
        open[depth] = t->count;
        t->node[t->count++] =
            (trie_node){.first = t->values, .depth = (uint16_t)(depth + 1), .byte = (uint8_t)e->bytes[depth]};
    }
    if (t->entry) t->entry[t->values] = *e;
    t->value[t->values++] = e->value;
    if (e->length > t->longest) t->longest = e->length;
}

static void fill(token_trie *t, const trie_entry *entry, size_t count, uint32_t *open)
{
    uint32_t depth = 0;
    const trie_entry *last = NULL;
    for (size_t i = 0; i <= count; i++) {
        const trie_entry *e = i < count ? &entry[i] : NULL;
        if (e && e->length > LONGEST) continue;
        uint32_t same = e && last ? shared(last, e) : 0;
        while (depth > same) t->node[open[--depth]].end = t->count;
        if (e) add(t, e, same, open), depth = e->length, last = e;
    }
    t->node[t->count] = (trie_node){.first = t->values};
}

token_trie *token_trie_make(trie_entry *entry, size_t count, bool keep)
{
    size_t nodes = 1;
    const trie_entry *last = NULL;
    qsort(entry, count, sizeof *entry, compare);
    for (size_t i = 0; i < count; i++) {
        if (entry[i].length > LONGEST) continue;
        nodes += entry[i].length - (last ? shared(last, &entry[i]) : 0);
        last = &entry[i];
    }
    token_trie *t = calloc(1, sizeof *t);
    uint32_t *open = malloc(LONGEST * sizeof *open);
    if (t) t->node = malloc(nodes * sizeof *t->node), t->value = malloc((count + 1) * sizeof *t->value);
    if (t && keep) t->entry = malloc((count + 1) * sizeof *t->entry);
    bool ok = t && open && t->node && t->value && (!keep || t->entry) && nodes < UINT32_MAX;
    if (ok) fill(t, entry, count, open);
    free(open);
    if (ok) return t;
    token_trie_free(t);
    return NULL;
}

void token_trie_free(token_trie *t)
{
    if (!t) return;
    free(t->node);
    free(t->value);
    free(t->entry);
    free(t);
}
