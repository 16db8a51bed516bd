#include "checkpoint/tensor_table.h"

#include <string.h>

#include "base/memory.h"

/* FNV-1a with the finaliser of MurmurHash3 (both in the public domain): names differ mostly in a few digits. */
static uint64_t hash(const char *name)
{
    uint64_t h = 0xCBF29CE484222325;
    for (const char *p = name; *p; p++) h = (h ^ (unsigned char)*p) * 0x100000001B3;
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD;
    h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53;
    return h ^ h >> 33;
}

bool tensor_table_open(tensor_table *t, size_t count)
{
    size_t size = 16;
    while (size / 2 < count)
        if (!size_mul(size, 2, &size)) return false;
    t->slots = memory_zeroed(size, sizeof *t->slots);
    t->mask = size - 1;
    return t->slots != NULL;
}

void tensor_table_close(tensor_table *t)
{
    memory_free(t->slots);
    *t = (tensor_table){0};
}

/* The slot that holds the name, or the empty one where it would go. */
static const tensor **place(const tensor_table *t, const char *name)
{
    size_t i = hash(name) & t->mask;
    while (t->slots[i] && strcmp(t->slots[i]->name, name) != 0) i = (i + 1) & t->mask;
    return &t->slots[i];
}

const tensor *tensor_table_add(tensor_table *t, const tensor *entry)
{
    const tensor **slot = place(t, entry->name);
    if (*slot) return *slot;
    *slot = entry;
    return NULL;
}

const tensor *tensor_table_find(const tensor_table *t, const char *name)
{
    return t->slots ? *place(t, name) : NULL;
}
