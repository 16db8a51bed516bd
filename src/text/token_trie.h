/*
 * Byte strings as a prefix tree in preorder, made for walking with an automaton: where a byte is refused, the whole
 * subtree is skipped by one jump.
 *
 * The strings are sorted, so that those of a subtree are a range of `value`.
 */
#ifndef HAYATE_TEXT_TOKEN_TRIE_H
#define HAYATE_TEXT_TOKEN_TRIE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct trie_entry {
    const char *bytes;
    uint32_t length; /* at least 1 */
    int32_t value;
} trie_entry;

typedef struct trie_node {
    uint32_t end; /* the first node behind the subtree */
    uint32_t
        first; /* its strings are value[first ..] up to the `first` of node `end`; those that end here come first */
    uint16_t depth; /* bytes up to and with this one: 1 at the top */
    uint8_t byte;
} trie_node;

typedef struct token_trie {
    trie_node *node;   /* [count + 1], the last one a guard with first = values */
    int32_t *value;    /* [values] */
    trie_entry *entry; /* [values] as given, sorted; NULL: not kept */
    uint32_t count, values;
    uint32_t longest; /* bytes */
} token_trie;

/* Sorts `entry` [count]; the bytes stay borrowed if it is kept. Strings longer than 65,535 bytes are left out. NULL: no
 * memory. */
token_trie *token_trie_make(trie_entry *entry, size_t count, bool keep);
void token_trie_free(token_trie *t);

/* The strings that end at node i are value[first .. ends). */
static inline uint32_t token_trie_ends(const token_trie *t, uint32_t i)
{
    return i + 1 < t->node[i].end ? t->node[i + 1].first : t->node[t->node[i].end].first;
}

static inline uint32_t token_trie_below(const token_trie *t, uint32_t i)
{
    return t->node[t->node[i].end].first;
}

#endif
