#include "cache/store_keys.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"

static size_t place(const store_keys *k, const uint8_t key[STORE_KEY])
{
    uint64_t hash = k->seed, word;
    for (int i = 0; i < STORE_KEY; i += 8) {
        memcpy(&word, key + i, sizeof word);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    return (size_t)(hash ^ hash >> 32) & k->mask;
}

/* Room in the table for `count` keys. */
static bool widen(store_keys *k, uint32_t count)
{
    size_t size = k->table ? k->mask + 1 : 16;
    while (size / 2 < count) size *= 2;
    if (k->table && size == k->mask + 1) return true;
    uint32_t *old = k->table, *table = memory_zeroed(size, sizeof *table);
    if (!table) return false;
    size_t old_size = old ? k->mask + 1 : 0;
    k->table = table, k->mask = size - 1;
    for (size_t i = 0; i < old_size; i++) {
        if (!old[i]) continue;
        size_t at = place(k, k->node[old[i]].key);
        while (table[at]) at = (at + 1) & k->mask;
        table[at] = old[i];
    }
    memory_free(old);
    return true;
}

bool store_keys_open(store_keys *k, uint32_t most, uint32_t room)
{
    *k = (store_keys){.most = most, .used = KEYS_FIRST, .seed = (uint64_t)random_seed() * 2 + 1};
    assert(most < UINT32_MAX - KEYS_FIRST && room <= most);
    void *node = NULL;
    bool ok = memory_reserve(&node, &k->capacity, (size_t)room + KEYS_FIRST, sizeof *k->node);
    k->node = node;
    if (!ok || !widen(k, room)) {
        store_keys_close(k);
        return false;
    }
    for (uint32_t i = 0; i < KEYS_FIRST; i++) k->node[i] = (store_node){.before = i, .after = i};
    return true;
}

void store_keys_close(store_keys *k)
{
    free(k->node);
    memory_free(k->table);
    *k = (store_keys){0};
}

uint32_t store_keys_find(const store_keys *k, const uint8_t key[STORE_KEY])
{
    for (size_t at = place(k, key); k->table[at]; at = (at + 1) & k->mask)
        if (memcmp(k->node[k->table[at]].key, key, STORE_KEY) == 0) return k->table[at];
    return 0;
}

uint32_t store_keys_add(store_keys *k, const uint8_t key[STORE_KEY])
{
    uint32_t id = k->free;
    if ((!id && k->used - KEYS_FIRST >= k->most) || !widen(k, k->count + 1)) return 0;
    if (id) {
        k->free = k->node[id].after;
    } else {
        void *node = k->node;
        bool ok = memory_reserve(&node, &k->capacity, (size_t)k->used + 1, sizeof *k->node);
        k->node = node;
        if (!ok) return 0;
        id = k->used++;
    }
    k->node[id] = (store_node){.before = id, .after = id};
    memcpy(k->node[id].key, key, STORE_KEY);
    size_t at = place(k, key);
    while (k->table[at]) at = (at + 1) & k->mask;
    k->table[at] = id;
    k->count++;
    return id;
}

/* Those that follow move up, as far as their own places allow, so that no probe ends early. */
void store_keys_forget(store_keys *k, uint32_t id)
{
    size_t hole = place(k, k->node[id].key);
    while (k->table[hole] != id) {
        assert(k->table[hole]);
        hole = (hole + 1) & k->mask;
    }
    for (size_t at = (hole + 1) & k->mask; k->table[at]; at = (at + 1) & k->mask) {
        size_t home = place(k, k->node[k->table[at]].key);
        if (((at - home) & k->mask) < ((at - hole) & k->mask)) continue;
        k->table[hole] = k->table[at];
        hole = at;
    }
    k->table[hole] = 0;
    k->count--;
}

void store_keys_free(store_keys *k, uint32_t id)
{
    assert(id >= KEYS_FIRST && id < k->used && k->node[id].after == id);
    k->node[id].after = k->free;
    k->free = id;
}

uint32_t store_keys_next(const store_keys *k, uint32_t list, uint32_t id)
{
    uint32_t next = k->node[id].after;
    return next == list ? 0 : next;
}

uint32_t store_keys_first(const store_keys *k, uint32_t list)
{
    return store_keys_next(k, list, list);
}

void store_keys_remove(store_keys *k, uint32_t id)
{
    store_node *n = k->node;
    n[n[id].before].after = n[id].after;
    n[n[id].after].before = n[id].before;
    n[id].before = n[id].after = id;
}

void store_keys_append(store_keys *k, uint32_t list, uint32_t id)
{
    store_node *n = k->node;
    store_keys_remove(k, id);
    uint32_t last = n[list].before;
    n[id].before = last, n[id].after = list;
    n[last].after = id, n[list].before = id;
}
