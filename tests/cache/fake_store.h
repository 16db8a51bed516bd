/*
 * Tiers for tests of what stands on them: rows of 128 numbers of 32 bits in memory. A read arrives when the test says
 * so
 * (`deliver`), and may not come. The program that includes this has no other store.
 */
#ifndef TEST_FAKE_STORE_H
#define TEST_FAKE_STORE_H

#include <stddef.h>
#include <string.h>

#include "cache/store.h"

enum { STORED = 256, STORED_BYTES = 128 * 4 };

struct stored {
    uint8_t key[STORE_KEY];
    uint8_t row[STORED_BYTES];
    store_place place; /* STORE_NOWHERE: an empty place */
    bool being_put;
};

struct waiting_read {
    struct stored *of;
    store_read_fn fn;
    void *user;
};

struct store {
    struct stored stored[STORED];
    struct waiting_read read[STORED];
    int reads;
    int room; /* puts that are still taken */
    int puts, refused_reads;
};

static store tiers;

static struct stored *stored_under(store *s, const uint8_t key[STORE_KEY])
{
    for (int i = 0; i < STORED; i++)
        if (s->stored[i].place != STORE_NOWHERE && memcmp(s->stored[i].key, key, STORE_KEY) == 0) return &s->stored[i];
    return NULL;
}

store_place store_find(store *s, const uint8_t key[STORE_KEY])
{
    const struct stored *e = stored_under(s, key);
    return e && !e->being_put ? e->place : STORE_NOWHERE;
}

void *store_put_begin(store *s, const uint8_t key[STORE_KEY])
{
    if (s->room <= 0 || stored_under(s, key)) return NULL;
    for (int i = 0; i < STORED; i++) {
        struct stored *e = &s->stored[i];
        if (e->place != STORE_NOWHERE) continue;
        memcpy(e->key, key, STORE_KEY);
        e->place = STORE_MEMORY, e->being_put = true;
        s->room--;
        return e->row;
    }
    return NULL;
}

void store_put_end(store *s, void *slot, bool keep)
{
    struct stored *e = (struct stored *)((uint8_t *)slot - offsetof(struct stored, row));
    e->being_put = false;
    if (!keep) e->place = STORE_NOWHERE;
    s->puts++;
}

bool store_read(store *s, const uint8_t key[STORE_KEY], store_read_fn fn, void *user)
{
    struct stored *e = stored_under(s, key);
    if (s->refused_reads > 0) {
        s->refused_reads--;
        return false;
    }
    if (!e) return false;
    s->read[s->reads++] = (struct waiting_read){e, fn, user};
    return true;
}

/* One of the reads that wait arrives, or does not come. */
static void deliver(int which, bool comes)
{
    struct waiting_read r = tiers.read[which];
    tiers.read[which] = tiers.read[--tiers.reads];
    r.fn(r.user, comes ? r.of->row : NULL, comes ? r.of->place : STORE_NOWHERE);
}

uint64_t store_memory(size_t row_bytes, uint64_t memory_bytes, bool disk)
{
    (void)row_bytes, (void)disk;
    return memory_bytes;
}

#endif
