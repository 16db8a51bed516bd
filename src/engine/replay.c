#include "engine/replay.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/random.h"

enum {
    RECORD_BYTES = 2048, /* that a record is taken to have when the table is made */
    MALLOC_BYTES = 16,   /* of the allocator's own for each record */
};

/* Who looks at a record holds it: the lock is free meanwhile, and the last holder frees what was dropped in between. */
typedef struct record record;
struct record {
    record *next;          /* in its bucket, the most recent first */
    record *newer, *older; /* by last use */
    uint64_t key;          /* hash of the tokens in front */
    int32_t place;         /* their number */
    int32_t tail;          /* ids[0, tail) is the end of the prompt, the rest the answer */
    int32_t open;          /* behind the last added token: ids[open, count) is ordinary text */
    int32_t count;
    int32_t holders;
    bool ended;   /* the answer came to an end of its own */
    bool dropped; /* out of the table */
    int32_t ids[];
};

struct replay {
    const text_tokenizer *tok;
    uint64_t limit, seed, mask;
    pthread_mutex_t lock; /* guards all below */
    uint64_t used;
    record **bucket; /* [bucket_mask + 1] */
    uint64_t bucket_mask;
    record *newest, *oldest;
};

/* ---- Opening and closing -------------------------------------------------------------------------------------- */

hy_status replay_open(const text_tokenizer *tok, uint64_t bytes, replay **out, hy_error *err)
{
    uint64_t buckets = 1;
    while (buckets < bytes / RECORD_BYTES && buckets * 2 * sizeof(record *) <= bytes / 64) buckets *= 2;
    replay *r = memory_zeroed(1, sizeof *r);
    if (r) r->bucket = memory_zeroed(buckets, sizeof *r->bucket);
    if (!r || !r->bucket) {
        memory_free(r);
        return error_memory(err, "the table of sampled answers", buckets * sizeof *r->bucket);
    }
    r->tok = tok, r->limit = bytes, r->seed = (uint64_t)random_seed(), r->mask = UINT64_MAX;
    r->bucket_mask = buckets - 1, r->used = buckets * sizeof *r->bucket;
    pthread_mutex_init(&r->lock, NULL);
    *out = r;
    return HY_OK;
}

void replay_close(replay *r)
{
    if (!r) return;
    for (record *c = r->newest, *older; c; c = older) {
        older = c->older;
        free(c);
    }
    pthread_mutex_destroy(&r->lock);
    memory_free(r->bucket);
    memory_free(r);
}

uint64_t replay_bytes(const replay *r)
{
    replay *w = (replay *)r;
    pthread_mutex_lock(&w->lock);
    uint64_t used = w->used;
    pthread_mutex_unlock(&w->lock);
    return used;
}

void replay_weaken(replay *r, uint64_t mask)
{
    r->mask = mask;
}

/* ---- Hashes --------------------------------------------------------------------------------------------------- */

/*
 * The hash of a prefix is the sum of a mixed word for each place and its token, so that the words of many tokens are
 * made side by side and a longer prefix costs only its own tokens. The mixing is splitmix64's. The seed differs from
 * engine to engine: nobody can prepare prompts that meet. Those that do meet all the same are harmless, since bytes are
 * compared.
 */
static uint64_t hash_token(const replay *r, size_t place, int32_t id)
{
    uint64_t x = r->seed + place * 0x9E3779B97F4A7C15u + (uint64_t)(uint32_t)id * 0xD1342543DE82EF95u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* The hash of nothing under a salt. */
static uint64_t hash_salt(const replay *r, const char *salt)
{
    uint64_t hash = 0;
    for (size_t i = 0; salt && salt[i]; i++) hash += hash_token(r, ~i, (unsigned char)salt[i]);
    return hash;
}

static record **bucket_of(const replay *r, uint64_t key)
{
    return &r->bucket[(key ^ key >> 32) & r->bucket_mask];
}

static bool in_front(const record *c, uint64_t key, size_t place)
{
    return c->key == key && (size_t)c->place == place;
}

/* ---- The table; under the lock --------------------------------------------------------------------------------- */

static uint64_t bytes_of(const record *c)
{
    return sizeof *c + (uint64_t)c->count * sizeof *c->ids + MALLOC_BYTES;
}

static void list_remove(replay *r, record *c)
{
    *(c->newer ? &c->newer->older : &r->newest) = c->older;
    *(c->older ? &c->older->newer : &r->oldest) = c->newer;
}

static void list_insert(replay *r, record *c)
{
    c->newer = NULL, c->older = r->newest;
    *(r->newest ? &r->newest->newer : &r->oldest) = c;
    r->newest = c;
}

static void bucket_remove(replay *r, record *c)
{
    record **at = bucket_of(r, c->key);
    while (*at != c) at = &(*at)->next;
    *at = c->next;
}

static void bucket_insert(replay *r, record *c)
{
    record **at = bucket_of(r, c->key);
    c->next = *at;
    *at = c;
}

static void drop(replay *r, record *c)
{
    bucket_remove(r, c);
    list_remove(r, c);
    r->used -= bytes_of(c);
    c->dropped = true;
    if (c->holders == 0) free(c);
}

static bool same_answer(const record *a, const record *b)
{
    return a->tail == b->tail && a->count == b->count && a->ended == b->ended &&
           memcmp(a->ids, b->ids, (size_t)a->count * sizeof *a->ids) == 0;
}

/* The record of the same answer, which then counts as the most recent one. Else room for one more is made among those
 * with the same tokens in front. */
static record *find_same(replay *r, const record *c)
{
    record *last = NULL;
    int same = 0;
    for (record *o = *bucket_of(r, c->key); o; o = o->next) {
        if (!in_front(o, c->key, (size_t)c->place)) continue;
        if (same_answer(o, c)) return o;
        last = o, same++;
    }
    if (same >= REPLAY_SAME) drop(r, last);
    return NULL;
}

static void insert(replay *r, record *c)
{
    record *same = find_same(r, c);
    if (same) {
        bucket_remove(r, same), bucket_insert(r, same);
        list_remove(r, same), list_insert(r, same);
        free(c);
        return;
    }
    uint64_t bytes = bytes_of(c);
    while (r->oldest && r->used + bytes > r->limit) {
        assert(!r->oldest->older);
        drop(r, r->oldest);
    }
    r->used += bytes;
    bucket_insert(r, c);
    list_insert(r, c);
}

/* ---- Recording ------------------------------------------------------------------------------------------------ */

void replay_record(replay *r, const char *salt, const int32_t *ids, int32_t prompt, int32_t count)
{
    int32_t place = prompt, end = count;
    while (place > 0 && !text_tokenizer_is_special(r->tok, ids[place - 1])) place--;
    while (end > prompt && text_tokenizer_is_special(r->tok, ids[end - 1])) end--;
    uint64_t bytes = sizeof(record) + (uint64_t)(end - place) * sizeof *ids + MALLOC_BYTES;
    uint64_t table = (r->bucket_mask + 1) * sizeof *r->bucket;
    if (end == prompt || table + bytes > r->limit) return;
    record *c = malloc(bytes - MALLOC_BYTES);
    if (!c) return;
    *c = (record){.place = place, .tail = prompt - place, .count = end - place, .ended = end < count};
    memcpy(c->ids, ids + place, (size_t)c->count * sizeof *ids);
    c->key = hash_salt(r, salt);
    for (int32_t i = 0; i < place; i++) c->key += hash_token(r, (size_t)i, ids[i]);
    c->key &= r->mask;
    for (int32_t i = 0; i < c->count; i++)
        if (text_tokenizer_is_added(r->tok, c->ids[i])) c->open = i + 1;
    pthread_mutex_lock(&r->lock);
    insert(r, c);
    pthread_mutex_unlock(&r->lock);
}

/* ---- Applying ------------------------------------------------------------------------------------------------- */

/* How far a record and a prompt say the same: ids[.., canonical) of the prompt and ids[0, sampled) of the record. */
typedef struct match {
    size_t canonical;
    int32_t sampled;
    bool differs; /* what comes next in the record is known and not what stands in the prompt */
} match;

/* They part where the record has come to token `next`; the prompt goes on, with an added token if `added`. */
static bool parts(const replay *r, const record *c, const match *m, int32_t next, bool added)
{
    /* Other words than the end of the record's prompt are another prompt, but for the markers in it: an assistant's
     * turn that begins with another one was rendered in another way. */
    if (m->sampled < c->tail) return m->sampled > 0 && text_tokenizer_is_added(r->tok, c->ids[m->sampled]);
    return c->ended || !added || next < c->open;
}

static match walk(const replay *r, const record *c, const int32_t *ids, size_t count, size_t at)
{
    match m = {.canonical = at};
    size_t i = at, a_left = 0, b_left = 0;
    const char *a = "", *b = ""; /* what is left of the tokens before i and j */
    for (int32_t j = 0;;) {
        if (a_left == 0 && b_left == 0) {
            m.canonical = i, m.sampled = j;
            if (i < count && j < c->count && ids[i] == c->ids[j]) {
                i++, j++;
                continue;
            }
        }
        if (a_left == 0) {
            if (i == count) return m;
            if (text_tokenizer_is_added(r->tok, ids[i])) {
                m.differs = (j < c->count || b_left > 0) && parts(r, c, &m, j, true);
                return m;
            }
            a = text_tokenizer_bytes(r->tok, ids[i++], &a_left);
        }
        if (b_left == 0) {
            if (j == c->count) return m;
            if (text_tokenizer_is_added(r->tok, c->ids[j])) break;
            b = text_tokenizer_bytes(r->tok, c->ids[j++], &b_left);
        }
        size_t n = a_left < b_left ? a_left : b_left;
        if (memcmp(a, b, n) != 0) break;
        a += n, a_left -= n;
        b += n, b_left -= n;
    }
    m.differs = parts(r, c, &m, 0, false);
    return m;
}

static bool better(const match *a, const match *b)
{
    return a->canonical != b->canonical ? a->canonical > b->canonical : b->differs && !a->differs;
}

typedef struct output {
    int32_t *ids; /* [count] */
    size_t count, capacity;
    uint64_t hash;
} output;

static bool append(const replay *r, output *o, const int32_t *ids, size_t count)
{
    if (!memory_reserve((void **)&o->ids, &o->capacity, o->count + count, sizeof *o->ids)) return false;
    for (size_t i = 0; i < count; i++) {
        o->hash += hash_token(r, o->count, ids[i]);
        o->ids[o->count++] = ids[i];
    }
    return true;
}

/* Takes what a record has for the prompt from *at on, moves *at behind it. False: no memory. */
static bool splice(replay *r, const int32_t *ids, size_t count, size_t *at, output *o, int32_t *changed)
{
    record *held[REPLAY_SAME];
    int n = 0, best = -1;
    match found = {0};
    uint64_t key = o->hash & r->mask;
    pthread_mutex_lock(&r->lock);
    for (record *c = *bucket_of(r, key); c && n < REPLAY_SAME; c = c->next)
        if (in_front(c, key, o->count)) c->holders++, held[n++] = c;
    pthread_mutex_unlock(&r->lock);
    if (n == 0) return true;
    for (int k = 0; k < n; k++) {
        match m = walk(r, held[k], ids, count, *at);
        if (best < 0 || better(&m, &found)) best = k, found = m;
    }
    bool ok = append(r, o, held[best]->ids, (size_t)found.sampled);
    pthread_mutex_lock(&r->lock);
    if (found.sampled > held[best]->tail && !held[best]->dropped)
        list_remove(r, held[best]), list_insert(r, held[best]);
    for (int k = 0; k < n; k++)
        if (--held[k]->holders == 0 && held[k]->dropped) free(held[k]);
    pthread_mutex_unlock(&r->lock);
    *at = found.canonical;
    if (found.differs && *changed < 0) *changed = (int32_t)o->count;
    return ok;
}

hy_status replay_apply(replay *r, const char *salt, const int32_t *ids, size_t count, hy_ids *out, int32_t *changed,
                       hy_error *err)
{
    output o = {.hash = hash_salt(r, salt)};
    int32_t place = -1;
    bool ok = memory_reserve((void **)&o.ids, &o.capacity, count, sizeof *o.ids), turn = true;
    for (size_t i = 0; ok && i < count;) {
        size_t before = i;
        if (turn) ok = splice(r, ids, count, &i, &o, &place);
        if (ok && i == before) ok = append(r, &o, &ids[i++], 1);
        turn = ok && text_tokenizer_is_special(r->tok, o.ids[o.count - 1]);
    }
    if (!ok) {
        free(o.ids);
        return error_memory(err, "the prompt's tokens", o.count * sizeof *o.ids);
    }
    hy_ids_free(out);
    *out = (hy_ids){o.ids, o.count};
    *changed = place;
    return HY_OK;
}
