/*
 * Keys of blocks in a hash table and in lists: the index of one tier of the store. Private to src/cache.
 *
 * A node is a key with the counters of its owner; its number stays as long as the node. It is found by its key from
 * store_keys_add to store_keys_forget, and its number is used again after store_keys_free. Beside that it may be in one of
 * two lists.
 */
#ifndef HAYATE_CACHE_STORE_KEYS_H
#define HAYATE_CACHE_STORE_KEYS_H

#include "cache/store.h"

/* The lists, which are also the numbers of their ends, and the first number of a node. */
enum { KEYS_BY_USE = 0, KEYS_QUEUE = 1, KEYS_FIRST = 2 };

typedef struct store_node {
    uint8_t key[STORE_KEY];
    uint32_t before, after; /* of the list; itself: in none */
    uint32_t pins;          /* of the owner, as `state`; both 0 in a new node */
    int state;
} store_node;

typedef struct store_keys {
    store_node *node; /* [capacity] */
    size_t capacity;
    uint32_t used, most; /* numbers given out so far; below this they stay */
    uint32_t free;       /* the first of those to be used again, through `after`; 0: none */
    uint32_t *table;     /* [mask + 1] numbers by hash, 0: empty; linear probing, at most half full */
    size_t mask;
    uint32_t count; /* found by their keys */
    uint64_t seed;  /* of the hash: names in a folder can be made to collide under a known one */
} store_keys;

/* Never more than `most` nodes; memory for the first `room` of them. False: no memory. */
bool store_keys_open(store_keys *k, uint32_t most, uint32_t room);
void store_keys_close(store_keys *k);

uint32_t store_keys_find(const store_keys *k, const uint8_t key[STORE_KEY]); /* 0: not there */
/* A node for a key that is not there, in no list; 0: `most` are in use, or no memory. Moves `node`. */
uint32_t store_keys_add(store_keys *k, const uint8_t key[STORE_KEY]);
void store_keys_forget(store_keys *k, uint32_t id); /* it is not found any more */
void store_keys_free(store_keys *k, uint32_t id);   /* a forgotten one, in no list */

uint32_t store_keys_first(const store_keys *k, uint32_t list); /* 0: empty */
/* The one after `id`; 0: it was the last. */
uint32_t store_keys_next(const store_keys *k, uint32_t list, uint32_t id);
void store_keys_append(store_keys *k, uint32_t list, uint32_t id); /* from where it was */
void store_keys_remove(store_keys *k, uint32_t id);                /* from its list, if it is in one */

#endif
