#include "cache/prefix.h"

#include <assert.h>
#include <openssl/sha.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"

enum {
    NONE = -1,
    MOST_VISITED = 4096, /* continuations of one beginning that are looked at, the newest first */
    SALT_TOKENS = 16,    /* so many equal tokens are not a coincidence */
};

/* A block's contents; `count` 0: nothing is known. Linked under the key before it. */
struct entry {
    uint8_t before[PREFIX_KEY], after[PREFIX_KEY];
    int32_t ids[PREFIX_BLOCK];
    int32_t count;
    bool first;
    int32_t newer, older; /* in the bucket */
};

struct prefix {
    int32_t blocks;
    uint8_t identity[PREFIX_KEY];
    struct entry *entry; /* [blocks] */
    int32_t *bucket;     /* [buckets] the newest entry */
    uint32_t buckets;    /* a power of two */
    uint64_t *evicted;   /* [evicted_size] fingerprints */
    uint32_t evicted_size;
    bool salted; /* someone has used a salt */
};

/* ---- Opening and keys ------------------------------------------------------------------------------------------- */

hy_status prefix_open(int32_t blocks, const uint8_t identity[PREFIX_KEY], prefix **out, hy_error *err)
{
    prefix *p = memory_zeroed(1, sizeof *p);
    if (!p) return error_memory(err, "the prefix index", sizeof *p);
    p->blocks = blocks;
    p->buckets = 16;
    while (p->buckets < (uint32_t)blocks * 2 && p->buckets < 1u << 30) p->buckets *= 2;
    p->evicted_size = p->buckets * 2;
    p->entry = memory_zeroed((size_t)blocks, sizeof *p->entry);
    p->bucket = memory_alloc(p->buckets, sizeof *p->bucket);
    p->evicted = memory_zeroed(p->evicted_size, sizeof *p->evicted);
    if (!p->entry || !p->bucket || !p->evicted) {
        prefix_close(p);
        return error_memory(err, "the prefix index", (size_t)blocks * sizeof *p->entry);
    }
    memcpy(p->identity, identity, PREFIX_KEY);
    for (uint32_t i = 0; i < p->buckets; i++) p->bucket[i] = NONE;
    *out = p;
    return HY_OK;
}

void prefix_close(prefix *p)
{
    if (!p) return;
    memory_free(p->entry);
    memory_free(p->bucket);
    memory_free(p->evicted);
    memory_free(p);
}

/* SHA-256(SHA-256(salt), identity): the inner hash makes the outer input one length. */
void prefix_root(prefix *p, const char *salt, uint8_t key[PREFIX_KEY])
{
    uint8_t both[2 * PREFIX_KEY];
    if (!salt) salt = "";
    p->salted |= *salt != 0;
    SHA256((const uint8_t *)salt, strlen(salt), both);
    memcpy(both + PREFIX_KEY, p->identity, PREFIX_KEY);
    SHA256(both, sizeof both, key);
}

void prefix_next(const uint8_t before[PREFIX_KEY], const int32_t ids[PREFIX_BLOCK], uint8_t after[PREFIX_KEY])
{
    uint8_t text[PREFIX_KEY + PREFIX_BLOCK * 4];
    memcpy(text, before, PREFIX_KEY);
    for (int i = 0; i < PREFIX_BLOCK; i++)
        for (int byte = 0; byte < 4; byte++)
            text[PREFIX_KEY + i * 4 + byte] = (uint8_t)((uint32_t)ids[i] >> (8 * byte));
    SHA256(text, sizeof text, after);
}

static uint64_t word(const uint8_t key[PREFIX_KEY])
{
    uint64_t w;
    memcpy(&w, key, sizeof w);
    return w;
}

static int32_t *bucket_of(const prefix *p, const uint8_t before[PREFIX_KEY])
{
    return &p->bucket[word(before) & (p->buckets - 1)];
}

/* ---- Listing ---------------------------------------------------------------------------------------------------- */

static struct entry *at(const prefix *p, int32_t block)
{
    assert(block >= 0 && block < p->blocks);
    return &p->entry[block];
}

static void link_entry(prefix *p, int32_t block)
{
    int32_t *bucket = bucket_of(p, p->entry[block].before);
    p->entry[block].newer = NONE, p->entry[block].older = *bucket;
    if (*bucket != NONE) p->entry[*bucket].newer = block;
    *bucket = block;
}

static void unlink_entry(prefix *p, int32_t block)
{
    struct entry *e = &p->entry[block];
    if (e->older != NONE) p->entry[e->older].newer = e->newer;
    if (e->newer != NONE)
        p->entry[e->newer].older = e->older;
    else
        *bucket_of(p, e->before) = e->older;
}

void prefix_note(prefix *p, int32_t block, const uint8_t before[PREFIX_KEY], bool first, const int32_t *ids,
                 int32_t count)
{
    struct entry *e = at(p, block);
    assert(count > 0 && count <= PREFIX_BLOCK && count >= e->count);
    bool known = e->count > 0;
    assert(!known || memcmp(e->before, before, PREFIX_KEY) == 0);
    memcpy(e->ids + e->count, ids + e->count, (size_t)(count - e->count) * sizeof *ids);
    if (count == PREFIX_BLOCK && e->count < PREFIX_BLOCK) prefix_next(before, e->ids, e->after);
    e->count = count;
    if (known) return;
    memcpy(e->before, before, PREFIX_KEY);
    e->first = first;
    link_entry(p, block);
}

/* Two fingerprints stand for evicted contents: of the whole block, and of the key before it with its first token. */
static uint64_t mark_of(const uint8_t before[PREFIX_KEY], int32_t id)
{
    return (word(before) ^ ((uint64_t)(uint32_t)id + 1) * 0x9E3779B97F4A7C15u) | 1;
}

static void remember(prefix *p, uint64_t mark)
{
    p->evicted[(mark >> 8) & (p->evicted_size - 1)] = mark;
}

static bool remembers(const prefix *p, uint64_t mark)
{
    return p->evicted[(mark >> 8) & (p->evicted_size - 1)] == mark;
}

void prefix_forget(prefix *p, int32_t block, bool evicted)
{
    struct entry *e = at(p, block);
    if (e->count == 0) return;
    if (evicted) {
        if (e->count == PREFIX_BLOCK) remember(p, word(e->after) | 1);
        remember(p, mark_of(e->before, e->ids[0]));
    }
    unlink_entry(p, block);
    e->count = 0;
}

const uint8_t *prefix_key(const prefix *p, int32_t block)
{
    const struct entry *e = at(p, block);
    return e->count == PREFIX_BLOCK ? e->after : NULL;
}

int32_t prefix_tokens(const prefix *p, int32_t block)
{
    return at(p, block)->count;
}

/* ---- Finding ---------------------------------------------------------------------------------------------------- */

static int32_t common(const int32_t *a, const int32_t *b, int32_t count)
{
    int32_t i = 0;
    while (i < count && a[i] == b[i]) i++;
    return i;
}

int32_t prefix_find(const prefix *p, const uint8_t before[PREFIX_KEY], const int32_t *ids, int32_t count,
                    int32_t *tokens)
{
    int32_t best = NONE, most = 0, visited = 0;
    for (int32_t b = *bucket_of(p, before); b != NONE && visited < MOST_VISITED && most < count;
         b = p->entry[b].older) {
        const struct entry *e = &p->entry[b];
        if (memcmp(e->before, before, PREFIX_KEY) != 0) continue;
        visited++;
        int32_t same = common(e->ids, ids, e->count < count ? e->count : count);
        if (same > most) most = same, best = b;
    }
    *tokens = most;
    return best;
}

/* The same beginning under another root. */
static bool elsewhere(const prefix *p, const uint8_t root[PREFIX_KEY], const int32_t *ids, int32_t count)
{
    int32_t want = count < SALT_TOKENS ? count : SALT_TOKENS;
    for (int32_t b = 0; b < p->blocks; b++) {
        const struct entry *e = &p->entry[b];
        if (e->count >= want && e->first && memcmp(e->before, root, PREFIX_KEY) != 0 &&
            common(e->ids, ids, want) == want)
            return true;
    }
    return false;
}

hy_miss prefix_why(const prefix *p, const uint8_t before[PREFIX_KEY], bool first, const int32_t *ids, int32_t count,
                   int32_t found)
{
    if (count >= PREFIX_BLOCK) {
        uint8_t after[PREFIX_KEY];
        prefix_next(before, ids, after);
        if (remembers(p, word(after) | 1)) return HY_MISS_EVICTED;
    }
    if (found == 0 && count > 0 && remembers(p, mark_of(before, ids[0]))) return HY_MISS_EVICTED;
    if (first && found == 0 && p->salted && elsewhere(p, before, ids, count)) return HY_MISS_SALT;
    return HY_MISS_NEW;
}
