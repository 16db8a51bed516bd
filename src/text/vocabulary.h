/*
 * The tables of a byte-level BPE vocabulary, as the tokenizer's parts share them.
 *
 * Filled once while a file is read (text/tokenizer_file.h), constant afterwards but for `whole`, which caches an answer
 * that every thread would compute alike.
 */
#ifndef HAYATE_TEXT_VOCABULARY_H
#define HAYATE_TEXT_VOCABULARY_H

#include "base/buffer.h"
#include "hayate.h"
#include "text/pretokenize.h"

enum {
    VOCABULARY_LIMIT = 1 << 22, /* ids are below; a sound vocabulary has a few 100,000 */
    VOCABULARY_NONE = -1,
};

enum { TOKEN_PRESENT = 1, TOKEN_MODEL = 2, TOKEN_ADDED = 4, TOKEN_SPECIAL = 8 };

typedef struct vocabulary_token {
    size_t offset; /* in `bytes` */
    uint32_t length;
    uint32_t flags; /* TOKEN_... */
} vocabulary_token;

/* Byte strings to ids: open addressing, at most half full. */
typedef struct vocabulary_slot {
    uint32_t hash;
    int32_t id; /* VOCABULARY_NONE: free */
} vocabulary_slot;

/* Pairs of ids to what they merge into. */
typedef struct vocabulary_merge {
    int32_t left, right; /* left VOCABULARY_NONE: free */
    int32_t id;          /* the token of both */
    uint32_t rank;       /* the lowest merges first */
} vocabulary_merge;

/* Added tokens of one kind in the order of their bytes, so that the longest match is found by narrowing a range. */
typedef struct vocabulary_added {
    int32_t *ids; /* [count] */
    size_t count, capacity;
    bool first[256]; /* some token starts with this byte */
} vocabulary_added;

typedef struct vocabulary {
    vocabulary_token *tokens; /* [size] */
    size_t token_capacity;
    int32_t size;           /* largest id + 1 */
    buffer bytes;           /* each token's bytes and a NUL */
    vocabulary_slot *slots; /* [slot_mask + 1] */
    size_t slot_mask, slot_count;
    vocabulary_merge *merges; /* [merge_mask + 1] */
    size_t merge_mask, merge_count;
    int32_t byte_id[256];
    vocabulary_added raw;         /* matched before normalisation */
    vocabulary_added normalized;  /* matched after it */
    _Atomic unsigned char *whole; /* [size] 0 not known yet, 1 the token's bytes encode to it alone, 2 they do not */
    pretokenize_rules rules;
    bool nfc;
    bool ignore_merges; /* a pre-token that is a token is that token, whatever the merges say */
} vocabulary;

void vocabulary_free(vocabulary *v);

/*
 * Adds a token. HY_BAD_MODEL when the id is out of range or taken by another text; `what` names the file. An id may be
 * in the model's vocabulary and among the added tokens if the text is the same.
 */
hy_status vocabulary_add(vocabulary *v, int64_t id, const void *bytes, size_t length, uint32_t flags, const char *what,
                         hy_error *err);

/* Adds the id, already a token, to a set that is searched in text. */
bool vocabulary_add_match(vocabulary_added *set, int32_t id);

/* Adds a merge; a later one of the same pair replaces the earlier. False: no memory. */
bool vocabulary_add_merge(vocabulary *v, int32_t left, int32_t right, int32_t id, uint32_t rank);

/* Sorts the sets, checks that all 256 bytes are there. */
hy_status vocabulary_finish(vocabulary *v, const char *what, hy_error *err);

/* The model's token with these bytes, or VOCABULARY_NONE. */
int32_t vocabulary_find(const vocabulary *v, const void *bytes, size_t length);

static inline const char *vocabulary_bytes(const vocabulary *v, int32_t id, size_t *length)
{
    *length = v->tokens[id].length;
    return v->bytes.data + v->tokens[id].offset;
}

static inline const vocabulary_merge *vocabulary_find_merge(const vocabulary *v, int32_t left, int32_t right)
{
    if (!v->merges) return NULL;
    uint64_t key = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
    for (size_t i = (size_t)(key >> 32) & v->merge_mask;; i = (i + 1) & v->merge_mask) {
        const vocabulary_merge *m = &v->merges[i];
        if (m->left == left && m->right == right) return m;
        if (m->left == VOCABULARY_NONE) return NULL;
    }
}

/* The leftmost, then longest token of the set in s from `from` on: its start, and its id or VOCABULARY_NONE. */
int32_t vocabulary_match(const vocabulary *v, const vocabulary_added *set, const char *s, size_t length, size_t from,
                         size_t *start);

#endif
