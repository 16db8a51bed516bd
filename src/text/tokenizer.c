#include "text/tokenizer.h"

#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/bpe.h"
#include "text/detokenizer.h"
#include "text/normalize.h"
#include "text/tokenizer_file.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_LIMIT = 256 << 20 }; /* bytes of a vocabulary file; published ones have some 10 MB */

struct text_tokenizer {
    vocabulary v;
    pthread_mutex_t trie_lock; /* while `trie` is made */
    _Atomic(token_trie *) trie;
};

/* ---- Opening -------------------------------------------------------------------------------------------------- */

hy_status text_tokenizer_read(const char *data, size_t size, const char *name, text_tokenizer **out, hy_error *err)
{
    if (size > FILE_LIMIT)
        return error_at(err, HY_BAD_MODEL, name, "%zu bytes are no vocabulary: at most %d are read", size, FILE_LIMIT);
    text_tokenizer *tok = calloc(1, sizeof *tok);
    if (!tok) return error_memory(err, "the tokenizer", sizeof *tok);
    pthread_mutex_init(&tok->trie_lock, NULL);
    size_t at = 0;
    while (at < size && (data[at] == ' ' || data[at] == '\n' || data[at] == '\r' || data[at] == '\t')) at++;
    hy_status s;
    if (at == size)
        s = error_at(err, HY_BAD_MODEL, name, "the file is empty: a tokenizer.json or a rank file is needed");
    else if (data[at] == '{')
        s = tokenizer_file_json(data, size, name, &tok->v, err);
    else
        s = tokenizer_file_ranks(data, size, name, &tok->v, err);
    if (s) {
        text_tokenizer_close(tok);
        return err && s == HY_BAD_MODEL ? error_at(err, s, name, "%.200s: %s", name, err->message) : s;
    }
    *out = tok;
    return HY_OK;
}

/* The file of a folder; false when there is none. */
static bool find_in_folder(const char *folder, char *path, size_t size)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer.tiktoken"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (file_join(folder, names[i], path, size, NULL) == HY_OK && file_present(path)) return true;
    return false;
}

bool text_tokenizer_present(const char *folder)
{
    char path[PATH_MAX];
    return find_in_folder(folder, path, sizeof path);
}

hy_status text_tokenizer_open(const char *path, text_tokenizer **out, hy_error *err)
{
    char found[PATH_MAX];
    if (file_is_folder(path)) {
        if (!find_in_folder(path, found, sizeof found))
            return error_at(err, HY_FAILED, path,
                            "no tokenizer.json and no tokenizer.tiktoken here: name the file with --tokenizer");
        path = found;
    }
    file_map map;
    hy_status s = file_map_open(path, &map, err);
    if (s) return s;
    s = text_tokenizer_read((const char *)map.data, map.size, path, out, err);
    file_map_close(&map);
    return s;
}

void text_tokenizer_close(text_tokenizer *tok)
{
    if (!tok) return;
    vocabulary_free(&tok->v);
    token_trie_free(atomic_load(&tok->trie));
    pthread_mutex_destroy(&tok->trie_lock);
    free(tok);
}

/* ---- Encoding ------------------------------------------------------------------------------------------------- */

typedef struct encoder {
    vocabulary *v;
    bpe_workspace work;
    buffer normal; /* a piece in form C */
    int32_t *ids;  /* [count] the result */
    size_t count, capacity;
    bool failed; /* no memory */
} encoder;

static void emit(encoder *e, const int32_t *ids, size_t count)
{
    if (!memory_reserve((void **)&e->ids, &e->capacity, e->count + count, sizeof *e->ids)) {
        e->failed = true;
        return;
    }
    memcpy(e->ids + e->count, ids, count * sizeof *ids);
    e->count += count;
}

/*
 * One pre-token. Most are tokens themselves; then the merges need not be run if they are known to give that token,
 * which is found out once and kept. Threads may find it out at the same time: they write the same answer.
 */
static void encode_pretoken(encoder *e, const char *s, size_t length)
{
    const int32_t *ids;
    size_t count;
    int32_t id = vocabulary_find(e->v, s, length);
    if (id != VOCABULARY_NONE) {
        if (e->v->ignore_merges || atomic_load_explicit(&e->v->whole[id], memory_order_relaxed) == 1) {
            emit(e, &id, 1);
            return;
        }
    }
    if (!bpe_merge(e->v, &e->work, (const unsigned char *)s, length, &ids, &count)) {
        e->failed = true;
        return;
    }
    if (id != VOCABULARY_NONE)
        atomic_store_explicit(&e->v->whole[id], count == 1 && ids[0] == id ? 1 : 2, memory_order_relaxed);
    emit(e, ids, count);
}

static void encode_pretokens(encoder *e, const char *s, size_t length)
{
    for (size_t at = 0; at < length && !e->failed;) {
        size_t end = pretokenize_next(&e->v->rules, s, length, at);
        encode_pretoken(e, s + at, end - at);
        at = end;
    }
}

/* Text without raw added tokens: normalise, cut out those that are matched in normalised text, encode the rest. */
static void encode_ordinary(encoder *e, const char *s, size_t length, bool parse_added)
{
    if (e->v->nfc && !normalize_is_plain(s, length)) {
        buffer_clear(&e->normal);
        normalize_nfc(s, length, &e->normal);
        if (!buffer_ok(&e->normal)) {
            e->failed = true;
            return;
        }
        s = e->normal.data, length = e->normal.length;
    }
    for (size_t at = 0; at < length && !e->failed;) {
        size_t start = length, size = 0;
        int32_t id = parse_added ? vocabulary_match(e->v, &e->v->normalized, s, length, at, &start) : VOCABULARY_NONE;
        encode_pretokens(e, s + at, start - at);
        if (id == VOCABULARY_NONE) return;
        emit(e, &id, 1);
        vocabulary_bytes(e->v, id, &size);
        at = start + size;
    }
}

static void encode_text(encoder *e, const char *s, size_t length, bool parse_added)
{
    for (size_t at = 0; at < length && !e->failed;) {
        size_t start = length, size = 0;
        int32_t id = parse_added ? vocabulary_match(e->v, &e->v->raw, s, length, at, &start) : VOCABULARY_NONE;
        encode_ordinary(e, s + at, start - at, parse_added);
        if (id == VOCABULARY_NONE) return;
        emit(e, &id, 1);
        vocabulary_bytes(e->v, id, &size);
        at = start + size;
    }
}

hy_status text_tokenizer_encode(const text_tokenizer *tok, const char *text, size_t length, bool parse_added,
                                hy_ids *out, hy_error *err)
{
    if (length > INT32_MAX)
        return error_set(err, HY_BAD_INPUT, "a text of %zu bytes is too long: at most %d are encoded", length,
                         INT32_MAX);
    for (size_t at = 0; at < length;) {
        size_t n = (unsigned char)text[at] < 0x80 ? 1 : utf8_valid(text + at, length - at);
        if (!n)
            return error_set(err, HY_BAD_INPUT, "the text is not UTF-8: byte 0x%02X at offset %zu",
                             (unsigned char)text[at], at);
        at += n;
    }
    encoder e = {.v = (vocabulary *)&tok->v};
    encode_text(&e, text, length, parse_added);
    bpe_free(&e.work);
    buffer_free(&e.normal);
    if (e.failed) {
        free(e.ids);
        return error_memory(err, "the tokens of a text", length);
    }
    hy_ids_free(out);
    out->data = e.ids, out->count = e.count;
    return HY_OK;
}

void hy_ids_free(hy_ids *ids)
{
    if (!ids) return;
    free(ids->data);
    *ids = (hy_ids){0};
}

/* ---- Tokens --------------------------------------------------------------------------------------------------- */

int32_t text_tokenizer_vocab_size(const text_tokenizer *tok)
{
    return tok->v.size;
}

static uint32_t flags_of(const text_tokenizer *tok, int32_t id)
{
    return id >= 0 && id < tok->v.size ? tok->v.tokens[id].flags : 0;
}

const char *text_tokenizer_bytes(const text_tokenizer *tok, int32_t id, size_t *length)
{
    if (flags_of(tok, id)) return vocabulary_bytes(&tok->v, id, length);
    *length = 0;
    return "";
}

bool text_tokenizer_is_added(const text_tokenizer *tok, int32_t id)
{
    return flags_of(tok, id) & TOKEN_ADDED;
}

bool text_tokenizer_is_special(const text_tokenizer *tok, int32_t id)
{
    return flags_of(tok, id) & TOKEN_SPECIAL;
}

int32_t text_tokenizer_find(const text_tokenizer *tok, const char *text)
{
    const vocabulary_added *sets[] = {&tok->v.raw, &tok->v.normalized};
    size_t length = strlen(text), start, size;
    for (int i = 0; i < 2 && length; i++) {
        int32_t id = vocabulary_match(&tok->v, sets[i], text, length, 0, &start);
        if (id == VOCABULARY_NONE || start) continue;
        vocabulary_bytes(&tok->v, id, &size);
        if (size == length) return id;
    }
    return length ? vocabulary_find(&tok->v, text, length) : VOCABULARY_NONE;
}

static token_trie *make_trie(const text_tokenizer *tok)
{
    size_t count = 0;
    trie_entry *entry = malloc(((size_t)tok->v.size + 1) * sizeof *entry);
    for (int32_t id = 0; entry && id < tok->v.size; id++) {
        size_t length;
        const char *bytes = text_tokenizer_bytes(tok, id, &length);
        if (length && !text_tokenizer_is_special(tok, id)) entry[count++] = (trie_entry){bytes, (uint32_t)length, id};
    }
    token_trie *t = entry ? token_trie_make(entry, count, true) : NULL;
    free(entry);
    return t;
}

const token_trie *text_tokenizer_trie(const text_tokenizer *tok)
{
    text_tokenizer *own = (text_tokenizer *)tok;
    token_trie *t = atomic_load_explicit(&own->trie, memory_order_acquire);
    if (t) return t;
    pthread_mutex_lock(&own->trie_lock);
    t = atomic_load(&own->trie);
    if (!t) {
        t = make_trie(tok);
        atomic_store_explicit(&own->trie, t, memory_order_release);
    }
    pthread_mutex_unlock(&own->trie_lock);
    return t;
}

void text_tokenizer_spell(const text_tokenizer *tok, int32_t id, buffer *out)
{
    size_t length;
    const char *bytes = text_tokenizer_bytes(tok, id, &length);
    if (text_tokenizer_is_added(tok, id)) {
        buffer_append(out, bytes, length);
        return;
    }
    for (size_t i = 0; i < length; i++) {
        char letter[4];
        buffer_append(out, letter, utf8_encode(tokenizer_file_letter((unsigned char)bytes[i]), letter));
    }
}

hy_status text_decode(const text_tokenizer *tok, const int32_t *ids, size_t count, bool skip_special, buffer *out,
                      hy_error *err)
{
    text_detokenizer d;
    text_detokenizer_start(&d, tok, skip_special);
    text_detokenizer_feed(&d, ids, count, out);
    text_detokenizer_finish(&d, out);
    return buffer_ok(out) ? HY_OK : error_memory(err, "the text of tokens", out->length);
}
