/* Blocks with contents that follow from their keys, a folder to keep them in, and reads that are waited for. */
#ifndef HAYATE_TESTS_CACHE_STORE_CHECK_H
#define HAYATE_TESTS_CACHE_STORE_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <unistd.h>

#include "cache/store.h"

static hy_error err;
#define OK(call)                                                                                                       \
    do {                                                                                                               \
        hy_status status_ = (call);                                                                                    \
        if (status_ != HY_OK) fail_msg("%s: %s", hy_status_name(status_), err.message);                                \
    } while (0)

static char folder[512];

static inline void shell(const char *format, const char *argument)
{
    char command[1200];
    snprintf(command, sizeof command, format, argument); /* NOLINT */
    assert_int_equal(system(command), 0);
}

static inline int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/test-store-XXXXXX", TEST_BINARY);
    return mkdtemp(folder) ? 0 : -1;
}

static inline int remove_folder(void **state)
{
    (void)state;
    shell("rm -rf '%s'", folder);
    return 0;
}

static inline void make_key(uint64_t number, uint8_t key[STORE_KEY])
{
    assert_int_equal(EVP_Digest(&number, sizeof number, key, NULL, EVP_sha256(), NULL), 1);
}

/* Every byte depends on the key and on where it is. */
static inline void fill_row(const uint8_t key[STORE_KEY], uint8_t *row, size_t bytes)
{
    uint64_t x;
    memcpy(&x, key, sizeof x);
    for (size_t i = 0; i < bytes; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        row[i] = (uint8_t)(x >> 56);
    }
}

static inline bool row_is_right(const uint8_t key[STORE_KEY], const uint8_t *row, size_t bytes)
{
    uint8_t *right = malloc(bytes);
    fill_row(key, right, bytes);
    bool same = memcmp(right, row, bytes) == 0;
    free(right);
    return same;
}

/* False: it was not taken. */
static inline bool put(store *s, uint64_t number, size_t bytes)
{
    uint8_t key[STORE_KEY];
    make_key(number, key);
    void *slot = store_put_begin(s, key);
    if (!slot) return false;
    fill_row(key, slot, bytes);
    store_put_end(s, slot, true);
    return true;
}

static inline store_place where(store *s, uint64_t number)
{
    uint8_t key[STORE_KEY];
    make_key(number, key);
    return store_find(s, key);
}

static inline store_stats stats(store *s)
{
    store_stats st;
    store_describe(s, &st);
    return st;
}

/* Until the writer has nothing to do. */
static inline void wait_written(store *s)
{
    for (int i = 0; i < 20000; i++) {
        store_stats st = stats(s);
        if (st.written + st.unwritten == st.puts) return;
        usleep(500);
    }
    fail_msg("blocks are not written");
}

enum { READ_NONE, READ_MEMORY, READ_DISK, READ_GONE, READ_WRONG };

typedef struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    uint8_t key[STORE_KEY];
    size_t bytes;
    int result; /* -1: not yet */
} waiter;

static inline void on_read(void *user, const void *row, store_place from)
{
    waiter *w = user;
    int result = !row                                   ? READ_GONE
                 : !row_is_right(w->key, row, w->bytes) ? READ_WRONG
                 : from == STORE_MEMORY                 ? READ_MEMORY
                                                        : READ_DISK;
    pthread_mutex_lock(&w->lock);
    if (w->result != -1) abort(); /* twice */
    w->result = result;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

static inline int read_block(store *s, uint64_t number, size_t bytes)
{
    waiter w = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER, .bytes = bytes, .result = -1};
    make_key(number, w.key);
    if (!store_read(s, w.key, on_read, &w)) return READ_NONE;
    pthread_mutex_lock(&w.lock);
    while (w.result == -1) pthread_cond_wait(&w.wake, &w.lock);
    pthread_mutex_unlock(&w.lock);
    return w.result;
}

static inline void identity_name(const uint8_t *identity, char out[17])
{
    for (int i = 0; i < 8; i++) snprintf(out + 2 * i, 3, "%02x", identity[i]);
}

/* The path of a block's file, or of its unfinished one. */
static inline const char *block_path(const store_options *o, uint64_t number, const char *suffix)
{
    static char path[1000];
    uint8_t key[STORE_KEY];
    char name[2 * STORE_KEY + 1], id[17];
    make_key(number, key);
    identity_name(o->identity, id);
    for (int i = 0; i < STORE_KEY; i++) snprintf(name + 2 * i, 3, "%02x", key[i]);
    snprintf(path, sizeof path, "%s/%s/%.2s/%s%s", o->folder, id, name, name, suffix);
    return path;
}

#endif
