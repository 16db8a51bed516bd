#include "text/vocabulary.h"

#include "base/error.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

void vocabulary_free(vocabulary *v)
{
    free(v->tokens);
    buffer_free(&v->bytes);
    memory_free(v->slots);
    memory_free(v->merges);
    memory_free((void *)v->whole);
    free(v->raw.ids);
    free(v->normalized.ids);
    *v = (vocabulary){0};
}

/* Eight bytes at a time, folded by a multiplication whose high half comes back. Keys are a vocabulary's tokens, lookups
 * are of any text; both meet tables that are at most half full. */
static uint32_t hash_bytes(const void *bytes, size_t length)
{
    const unsigned char *p = bytes;
    uint64_t h = 0x9E3779B97F4A7C15u ^ length;
    while (length >= 8) {
        uint64_t x;
        memcpy(&x, p, 8);
        h = (h ^ x) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
        p += 8, length -= 8;
    }
    uint64_t x = 0;
    memcpy(&x, p, length);
    h = (h ^ x) * 0xD6E8FEB86659FD93u;
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93u;
    return (uint32_t)(h >> 32);
}

/* The slot that holds these bytes, or the free one where they belong. */
static vocabulary_slot *find_slot(const vocabulary *v, uint32_t hash, const void *bytes, size_t length)
{
    for (size_t i = hash & v->slot_mask;; i = (i + 1) & v->slot_mask) {
        vocabulary_slot *slot = &v->slots[i];
        if (slot->id == VOCABULARY_NONE) return slot;
        if (slot->hash != hash) continue;
        const vocabulary_token *t = &v->tokens[slot->id];
        if (t->length == length && memcmp(v->bytes.data + t->offset, bytes, length) == 0) return slot;
    }
}

static bool grow_slots(vocabulary *v)
{
    size_t old = v->slots ? v->slot_mask + 1 : 0, count = old ? old * 2 : 1024;
    vocabulary_slot *slots = memory_alloc(count, sizeof *slots);
    if (!slots) return false;
    for (size_t i = 0; i < count; i++) slots[i] = (vocabulary_slot){0, VOCABULARY_NONE};
    for (size_t i = 0; i < old; i++) {
        if (v->slots[i].id == VOCABULARY_NONE) continue;
        size_t at = v->slots[i].hash & (count - 1);
        while (slots[at].id != VOCABULARY_NONE) at = (at + 1) & (count - 1);
        slots[at] = v->slots[i];
    }
    memory_free(v->slots);
    v->slots = slots, v->slot_mask = count - 1;
    return true;
}

int32_t vocabulary_find(const vocabulary *v, const void *bytes, size_t length)
{
    if (!v->slots) return VOCABULARY_NONE;
    return find_slot(v, hash_bytes(bytes, length), bytes, length)->id;
}

/* Makes room for the id; ids between are without a token. */
static bool reach(vocabulary *v, int32_t id)
{
    size_t need = (size_t)id + 1;
    if (!memory_reserve((void **)&v->tokens, &v->token_capacity, need, sizeof *v->tokens)) return false;
    for (; (size_t)v->size < need; v->size++) v->tokens[v->size] = (vocabulary_token){0};
    return true;
}

hy_status vocabulary_add(vocabulary *v, int64_t id, const void *bytes, size_t length, uint32_t flags, const char *what,
                         hy_error *err)
{
    if (id < 0 || id >= VOCABULARY_LIMIT)
        return error_at(err, HY_BAD_MODEL, what, "token id %lld is not between 0 and %d: the file is damaged",
                        (long long)id, VOCABULARY_LIMIT - 1);
    if (length == 0 || length > INT32_MAX)
        return error_at(err, HY_BAD_MODEL, what, "token %lld has a text of %zu bytes: the file is damaged",
                        (long long)id, length);
    if (!reach(v, (int32_t)id)) return error_memory(err, "the vocabulary", (size_t)id * sizeof *v->tokens);
    vocabulary_token *t = &v->tokens[id];
    if (t->flags) {
        size_t have;
        const char *text = vocabulary_bytes(v, (int32_t)id, &have);
        if ((t->flags & flags & (TOKEN_MODEL | TOKEN_ADDED)) || have != length || memcmp(text, bytes, length) != 0)
            return error_at(err, HY_BAD_MODEL, what, "token id %lld is used twice: the file is damaged", (long long)id);
    } else {
        t->offset = v->bytes.length, t->length = (uint32_t)length;
        buffer_append(&v->bytes, bytes, length);
        buffer_char(&v->bytes, 0);
        if (!buffer_ok(&v->bytes)) return error_memory(err, "the vocabulary", length);
    }
    t->flags |= flags | TOKEN_PRESENT;
    if (!(flags & TOKEN_MODEL)) return HY_OK;
    if (v->slot_count * 2 >= (v->slots ? v->slot_mask + 1 : 0) && !grow_slots(v))
        return error_memory(err, "the vocabulary", v->slot_mask * sizeof *v->slots);
    uint32_t hash = hash_bytes(bytes, length);
    vocabulary_slot *slot = find_slot(v, hash, bytes, length);
    if (slot->id != VOCABULARY_NONE)
        return error_at(err, HY_BAD_MODEL, what, "tokens %d and %lld have the same text: the file is damaged", slot->id,
                        (long long)id);
    *slot = (vocabulary_slot){hash, (int32_t)id};
    v->slot_count++;
    return HY_OK;
}

bool vocabulary_add_match(vocabulary_added *set, int32_t id)
{
    if (!memory_reserve((void **)&set->ids, &set->capacity, set->count + 1, sizeof *set->ids)) return false;
    set->ids[set->count++] = id;
    return true;
}

static bool grow_merges(vocabulary *v)
{
    size_t old = v->merges ? v->merge_mask + 1 : 0, count = old ? old * 2 : 1024;
    vocabulary_merge *from = v->merges, *merges = memory_alloc(count, sizeof *merges);
    if (!merges) return false;
    for (size_t i = 0; i < count; i++) merges[i] = (vocabulary_merge){.left = VOCABULARY_NONE};
    v->merges = merges, v->merge_mask = count - 1, v->merge_count = 0;
    for (size_t i = 0; i < old; i++)
        if (from[i].left != VOCABULARY_NONE)
            vocabulary_add_merge(v, from[i].left, from[i].right, from[i].id, from[i].rank);
    memory_free(from);
    return true;
}

bool vocabulary_add_merge(vocabulary *v, int32_t left, int32_t right, int32_t id, uint32_t rank)
{
    if (v->merge_count * 2 >= (v->merges ? v->merge_mask + 1 : 0) && !grow_merges(v)) return false;
    vocabulary_merge *m = (vocabulary_merge *)vocabulary_find_merge(v, left, right);
    if (!m) {
        /* The same walk as vocabulary_find_merge, to the free place at its end. */
        uint64_t key = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
        size_t i = (size_t)(key >> 32) & v->merge_mask;
        while (v->merges[i].left != VOCABULARY_NONE) i = (i + 1) & v->merge_mask;
        m = &v->merges[i];
        v->merge_count++;
    }
    *m = (vocabulary_merge){left, right, id, rank};
    return true;
}

/* qsort has no argument for the vocabulary, so the sets are sorted by a heap: few tokens, no globals. */
static int compare_tokens(const vocabulary *v, int32_t a, int32_t b)
{
    size_t na, nb;
    const char *x = vocabulary_bytes(v, a, &na), *y = vocabulary_bytes(v, b, &nb);
    int order = memcmp(x, y, na < nb ? na : nb);
    return order ? order : (na > nb) - (na < nb);
}

static void sift(const vocabulary *v, int32_t *ids, size_t at, size_t count)
{
    for (;;) {
        size_t child = at * 2 + 1;
        if (child >= count) return;
        if (child + 1 < count && compare_tokens(v, ids[child], ids[child + 1]) < 0) child++;
        if (compare_tokens(v, ids[at], ids[child]) >= 0) return;
        int32_t swap = ids[at];
        ids[at] = ids[child], ids[child] = swap;
        at = child;
    }
}

static void sort_set(const vocabulary *v, vocabulary_added *set)
{
    for (size_t i = set->count / 2; i-- > 0;) sift(v, set->ids, i, set->count);
    for (size_t n = set->count; n > 1;) {
        int32_t swap = set->ids[0];
        set->ids[0] = set->ids[--n], set->ids[n] = swap;
        sift(v, set->ids, 0, n);
    }
    for (size_t i = 0; i < set->count; i++) {
        size_t length;
        set->first[(unsigned char)vocabulary_bytes(v, set->ids[i], &length)[0]] = true;
    }
}

hy_status vocabulary_finish(vocabulary *v, const char *what, hy_error *err)
{
    for (int b = 0; b < 256; b++) {
        unsigned char byte = (unsigned char)b;
        v->byte_id[b] = vocabulary_find(v, &byte, 1);
        if (v->byte_id[b] == VOCABULARY_NONE)
            return error_at(err, HY_BAD_MODEL, what,
                            "the vocabulary has no token for byte 0x%02X: only byte-level vocabularies are supported",
                            b);
    }
    sort_set(v, &v->raw);
    sort_set(v, &v->normalized);
    v->whole = memory_zeroed((size_t)v->size, 1);
    if (!v->whole) return error_memory(err, "the vocabulary", (size_t)v->size);
    return HY_OK;
}

/* Narrows ids[*low, *high), which agree in their first `depth` bytes, to those whose next byte is `byte`. Strings that
 * end at `depth` come first and drop out. */
static void narrow(const vocabulary *v, const int32_t *ids, size_t depth, unsigned char byte, size_t *low, size_t *high)
{
    size_t bounds[2];
    for (int upper = 0; upper < 2; upper++) {
        size_t a = *low, b = *high;
        while (a < b) {
            size_t middle = a + (b - a) / 2, length;
            const char *text = vocabulary_bytes(v, ids[middle], &length);
            int c = length > depth ? (unsigned char)text[depth] : -1;
            if (c < (int)byte + upper)
                a = middle + 1;
            else
                b = middle;
        }
        bounds[upper] = a;
    }
    *low = bounds[0], *high = bounds[1];
}

int32_t vocabulary_match(const vocabulary *v, const vocabulary_added *set, const char *s, size_t length, size_t from,
                         size_t *start)
{
    for (size_t at = from; set->count && at < length; at++) {
        if (!set->first[(unsigned char)s[at]]) continue;
        size_t low = 0, high = set->count;
        int32_t best = VOCABULARY_NONE;
        for (size_t depth = 0; at + depth < length; depth++) {
            narrow(v, set->ids, depth, (unsigned char)s[at + depth], &low, &high);
            if (low == high) break;
            if (v->tokens[set->ids[low]].length == depth + 1) best = set->ids[low];
        }
        if (best != VOCABULARY_NONE) {
            *start = at;
            return best;
        }
    }
    *start = length;
    return VOCABULARY_NONE;
}
