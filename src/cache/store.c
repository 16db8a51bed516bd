/*
 * Slots of memory, files, and the threads between them. One lock guards everything but the contents of rows; it is
 * never held over a call of the system or of the owner.
 *
 * A slot is filling (its key is taken, but not found), dirty (waits to be written or is being written, in the order in
 * which they came) or clean. Clean slots without pins are in the list by use, and are the only ones that make room; who
 * reads a slot pins it. Without a tier in memory a slot that has become clean is given up.
 *
 * A file in the index is whole, as far as is known. Its pins are the reads that have been asked for; files with pins
 * are not removed to make room. A file that is about to be removed is leaving: it is not found any more, but its key
 * stays taken until the file has gone, so that nobody writes it anew in the meantime. Only the writer makes files and
 * makes room; readers remove damaged ones.
 */
#include "cache/store.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "cache/store_disk.h"
#include "cache/store_keys.h"

enum { READERS = 2, WAITING_SLOTS = 16, MAX_BLOCKS = INT32_MAX, ROW_ALIGN = 64 };
static const double SAY_SECONDS = 60;

enum { SLOT_FILLING, SLOT_DIRTY, SLOT_CLEAN };
enum { FILE_THERE, FILE_LEAVING, FILE_GONE };

/* A block that is asked for: in a slot, or in a file. */
typedef struct read_request {
    uint32_t id;
    store_read_fn fn;
    void *user;
} read_request;

typedef struct read_queue {
    read_request *item; /* [capacity], a ring */
    size_t capacity, first, count;
} read_queue;

/* Lines of one kind: so many in a minute, then the number of those that were left out. */
typedef struct speaker {
    double until;
    unsigned said, most;
    uint64_t held;
} speaker;

typedef struct store_thread {
    store *store;
    pthread_t thread;
    EVP_MD_CTX *digest;
    uint8_t *row; /* of a reader: for blocks that find no slot */
} store_thread;

struct store {
    pthread_mutex_t lock;
    pthread_cond_t to_write, to_read;
    size_t row_bytes, stride;
    bool retain, on_disk; /* there is a tier in memory; on disk */
    bool closing, trim;   /* more files than allowed are being removed */
    uint8_t *rows;        /* [slots.most, stride] */
    store_keys slots, files;
    uint32_t filling; /* slots */
    uint64_t most_files;
    store_disk disk;
    read_queue hits, fetches; /* of slots, which go first; of files */
    store_stats stats;
    speaker write_faults, read_faults, damage;
    store_thread writer, reader[READERS];
    int readers;
    bool writing; /* the writer runs */
};

static uint8_t *row_of(const store *s, uint32_t slot)
{
    return s->rows + (size_t)(slot - KEYS_FIRST) * s->stride;
}

/* ---- What is said ------------------------------------------------------------------------------------------------ */

/* With the lock: whether a line may be said now, and how many were not since the last one. */
static bool may_say(speaker *p, uint64_t *held)
{
    double now = clock_seconds();
    if (now >= p->until) p->until = now + SAY_SECONDS, p->said = 0;
    if (p->said >= p->most) {
        p->held++;
        return false;
    }
    p->said++;
    *held = p->held;
    p->held = 0;
    return true;
}

static void say(store *s, speaker *p, const uint8_t key[STORE_KEY], const char *what, const char *why)
{
    uint64_t held = 0, name = 0;
    pthread_mutex_lock(&s->lock);
    bool may = may_say(p, &held);
    pthread_mutex_unlock(&s->lock);
    if (!may) return;
    char more[64] = "";
    for (int i = 0; i < 8; i++) name = name << 8 | key[i];
    if (held) snprintf(more, sizeof more, "; %" PRIu64 " more like this", held);
    log_line(HY_LOG_WARNING, "cache folder %s: block %016" PRIx64 " %s: %s%s", s->disk.path, name, what, why, more);
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

static bool queue_push(read_queue *q, read_request request)
{
    if (q->count == q->capacity) {
        size_t capacity = q->capacity ? 2 * q->capacity : 64;
        read_request *item = memory_alloc(capacity, sizeof *item);
        if (!item) return false;
        for (size_t i = 0; i < q->count; i++) item[i] = q->item[(q->first + i) % q->capacity];
        memory_free(q->item);
        q->item = item, q->capacity = capacity, q->first = 0;
    }
    q->item[(q->first + q->count++) % q->capacity] = request;
    return true;
}

static bool queue_pop(read_queue *q, read_request *request)
{
    if (!q->count) return false;
    *request = q->item[q->first];
    q->first = (q->first + 1) % q->capacity;
    q->count--;
    return true;
}

/* ---- Slots, with the lock ---------------------------------------------------------------------------------------- */

static void give_up(store *s, uint32_t slot)
{
    store_keys_remove(&s->slots, slot);
    store_keys_forget(&s->slots, slot);
    store_keys_free(&s->slots, slot);
}

/* A slot for a key that has none, being filled; the least recently used clean one makes room. 0: none is clean. */
static uint32_t take_slot(store *s, const uint8_t key[STORE_KEY])
{
    uint32_t slot = store_keys_add(&s->slots, key), oldest = store_keys_first(&s->slots, KEYS_BY_USE);
    if (!slot && oldest) {
        give_up(s, oldest);
        slot = store_keys_add(&s->slots, key);
    }
    if (slot) s->filling++;
    return slot;
}

/* A clean slot that nobody reads. */
static void settle(store *s, uint32_t slot)
{
    const store_node *n = &s->slots.node[slot];
    if (n->state != SLOT_CLEAN || n->pins) return;
    if (s->retain)
        store_keys_append(&s->slots, KEYS_BY_USE, slot);
    else
        give_up(s, slot);
}

static void unpin_slot(store *s, uint32_t slot)
{
    s->slots.node[slot].pins--;
    settle(s, slot);
}

static void unpin_file(store *s, uint32_t file)
{
    store_node *n = &s->files.node[file];
    if (--n->pins == 0 && n->state == FILE_GONE) store_keys_free(&s->files, file);
}

static uint32_t find_slot(const store *s, const uint8_t key[STORE_KEY])
{
    uint32_t slot = store_keys_find(&s->slots, key);
    return slot && s->slots.node[slot].state != SLOT_FILLING ? slot : 0;
}

static uint32_t find_file(const store *s, const uint8_t key[STORE_KEY])
{
    uint32_t file = s->on_disk ? store_keys_find(&s->files, key) : 0;
    return file && s->files.node[file].state == FILE_THERE ? file : 0;
}

/* It was used: slots with pins and files that leave are in no list and come by their place another way. */
static void touch(store *s, uint32_t slot, uint32_t file)
{
    if (slot) settle(s, slot);
    if (file) store_keys_append(&s->files, KEYS_BY_USE, file);
}

/* ---- The owner's calls ------------------------------------------------------------------------------------------- */

store_place store_find(store *s, const uint8_t key[STORE_KEY])
{
    pthread_mutex_lock(&s->lock);
    store_place place = find_slot(s, key) ? STORE_MEMORY : find_file(s, key) ? STORE_DISK : STORE_NOWHERE;
    pthread_mutex_unlock(&s->lock);
    return place;
}

void *store_put_begin(store *s, const uint8_t key[STORE_KEY])
{
    pthread_mutex_lock(&s->lock);
    uint32_t slot = store_keys_find(&s->slots, key), file = find_file(s, key), taken = 0;
    if (slot || file) {
        touch(s, find_slot(s, key), file);
    } else {
        bool leaving = s->on_disk && store_keys_find(&s->files, key);
        taken = leaving ? 0 : take_slot(s, key);
        if (!taken) s->stats.dropped++;
    }
    pthread_mutex_unlock(&s->lock);
    return taken ? row_of(s, taken) : NULL;
}

void store_put_end(store *s, void *row, bool keep)
{
    size_t offset = (size_t)((uint8_t *)row - s->rows);
    assert(offset % s->stride == 0 && offset / s->stride < s->slots.most);
    uint32_t slot = (uint32_t)(offset / s->stride) + KEYS_FIRST;
    pthread_mutex_lock(&s->lock);
    assert(s->slots.node[slot].state == SLOT_FILLING);
    s->filling--;
    if (!keep) {
        give_up(s, slot);
    } else {
        s->stats.puts++;
        s->slots.node[slot].state = s->on_disk ? SLOT_DIRTY : SLOT_CLEAN;
        if (s->on_disk) {
            store_keys_append(&s->slots, KEYS_QUEUE, slot);
            pthread_cond_signal(&s->to_write);
        }
        settle(s, slot);
    }
    pthread_mutex_unlock(&s->lock);
}

bool store_read(store *s, const uint8_t key[STORE_KEY], store_read_fn fn, void *user)
{
    pthread_mutex_lock(&s->lock);
    uint32_t slot = find_slot(s, key), file = find_file(s, key);
    bool asked =
        (slot || file) && queue_push(slot ? &s->hits : &s->fetches, (read_request){slot ? slot : file, fn, user});
    if (asked) {
        touch(s, 0, file);
        if (slot && s->slots.node[slot].state == SLOT_CLEAN) store_keys_remove(&s->slots, slot);
        if (slot) s->slots.node[slot].pins++;
        if (!slot) s->files.node[file].pins++;
        pthread_cond_signal(&s->to_read);
    }
    pthread_mutex_unlock(&s->lock);
    return asked;
}

void store_describe(store *s, store_stats *stats)
{
    pthread_mutex_lock(&s->lock);
    *stats = s->stats;
    stats->memory_blocks = s->slots.count - s->filling;
    stats->memory_slots = s->retain ? s->slots.most : 0;
    stats->disk_blocks = s->on_disk ? s->files.count : 0;
    stats->disk_bytes = stats->disk_blocks * s->disk.file_bytes;
    pthread_mutex_unlock(&s->lock);
}

/* ---- Readers ----------------------------------------------------------------------------------------------------- */

/* With the lock, which is let go of in between, as in the next ones. */
static void serve_slot(store *s, const read_request *r)
{
    uint8_t key[STORE_KEY];
    memcpy(key, s->slots.node[r->id].key, STORE_KEY);
    bool file = find_file(s, key) != 0;
    s->stats.read_memory++;
    pthread_mutex_unlock(&s->lock);
    r->fn(r->user, row_of(s, r->id), STORE_MEMORY);
    if (file) store_disk_touch(&s->disk, key); /* the next start has only the file's time to go by */
    pthread_mutex_lock(&s->lock);
    unpin_slot(s, r->id);
}

/* The reader who finds a file damaged removes it; whoever read it at the same time leaves it alone. */
static void remove_damaged(store *s, uint32_t file, const uint8_t key[STORE_KEY], const char *why)
{
    store_node *n = &s->files.node[file];
    if (n->state != FILE_THERE) return;
    n->state = FILE_LEAVING;
    store_keys_remove(&s->files, file);
    s->stats.damaged++;
    pthread_mutex_unlock(&s->lock);
    int fault = store_disk_remove(&s->disk, key);
    say(s, &s->damage, key, fault ? "is left out" : "is removed", why);
    pthread_mutex_lock(&s->lock);
    store_keys_forget(&s->files, file);
    s->files.node[file].state = FILE_GONE;
}

static void serve_file(store *s, store_thread *t, const read_request *r)
{
    uint8_t key[STORE_KEY];
    const char *why = "it has gone";
    memcpy(key, s->files.node[r->id].key, STORE_KEY);
    store_read_result result = DISK_DAMAGED;
    uint32_t slot = 0;
    uint8_t *row = NULL;
    if (s->files.node[r->id].state == FILE_THERE) {
        if (s->retain && !store_keys_find(&s->slots, key)) slot = take_slot(s, key);
        row = slot ? row_of(s, slot) : t->row;
        pthread_mutex_unlock(&s->lock);
        result = store_disk_read(&s->disk, t->digest, key, row, &why);
        if (result == DISK_BUSY) say(s, &s->read_faults, key, "could not be read", why);
        pthread_mutex_lock(&s->lock);
    }
    if (slot) s->filling--;
    if (result == DISK_READ) {
        s->stats.read_disk++;
        if (slot) s->slots.node[slot].state = SLOT_CLEAN, s->slots.node[slot].pins++;
    } else {
        if (slot) give_up(s, slot);
        slot = 0, row = NULL;
        if (result == DISK_DAMAGED) remove_damaged(s, r->id, key, why);
    }
    pthread_mutex_unlock(&s->lock);
    r->fn(r->user, row, STORE_DISK);
    pthread_mutex_lock(&s->lock);
    if (slot) unpin_slot(s, slot);
    unpin_file(s, r->id);
}

static void *reader_main(void *arg)
{
    store_thread *t = arg;
    store *s = t->store;
    read_request r;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        if (queue_pop(&s->hits, &r))
            serve_slot(s, &r);
        else if (queue_pop(&s->fetches, &r))
            serve_file(s, t, &r);
        else if (s->closing)
            break;
        else
            pthread_cond_wait(&s->to_read, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- The writer -------------------------------------------------------------------------------------------------- */

/* Removes the file that was not used for the longest time. False: there is none that may go, or it cannot be removed;
 * then it counts as used, and another one is next. */
static bool remove_oldest(store *s)
{
    uint8_t key[STORE_KEY];
    uint32_t file = store_keys_first(&s->files, KEYS_BY_USE);
    while (file && s->files.node[file].pins) file = store_keys_next(&s->files, KEYS_BY_USE, file);
    if (!file) return false;
    memcpy(key, s->files.node[file].key, STORE_KEY);
    s->files.node[file].state = FILE_LEAVING;
    store_keys_remove(&s->files, file);
    pthread_mutex_unlock(&s->lock);
    int fault = store_disk_remove(&s->disk, key);
    if (fault) say(s, &s->write_faults, key, "cannot be removed to make room", strerror(fault));
    pthread_mutex_lock(&s->lock);
    if (fault) {
        s->files.node[file].state = FILE_THERE;
        store_keys_append(&s->files, KEYS_BY_USE, file);
        return false;
    }
    store_keys_forget(&s->files, file);
    store_keys_free(&s->files, file);
    s->stats.removed++;
    return true;
}

/* 0, an errno, or -1: there is no room, and nothing that may be removed. */
static int write_file(store *s, uint32_t slot, const uint8_t key[STORE_KEY])
{
    if (s->files.count >= s->most_files) {
        bool removed = remove_oldest(s);
        if (s->files.count >= s->most_files) {
            s->trim = removed;
            return -1;
        }
    }
    int fault = 0;
    for (int attempt = 0; attempt < 2; attempt++) {
        pthread_mutex_unlock(&s->lock);
        fault = store_disk_write(&s->disk, s->writer.digest, key, row_of(s, slot));
        pthread_mutex_lock(&s->lock);
        /* Others have filled the disk: the new for the old. */
        if ((fault != ENOSPC && fault != EDQUOT) || attempt > 0 || !remove_oldest(s)) break;
    }
    if (fault) return fault;
    uint32_t file = store_keys_add(&s->files, key);
    if (file) {
        store_keys_append(&s->files, KEYS_BY_USE, file);
        return 0;
    }
    pthread_mutex_unlock(&s->lock);
    store_disk_remove(&s->disk, key);
    pthread_mutex_lock(&s->lock);
    return ENOMEM;
}

static void write_slot(store *s, uint32_t slot)
{
    uint8_t key[STORE_KEY];
    memcpy(key, s->slots.node[slot].key, STORE_KEY);
    store_keys_remove(&s->slots, slot);
    int fault = write_file(s, slot, key);
    if (fault) {
        pthread_mutex_unlock(&s->lock);
        say(s, &s->write_faults, key, "could not be written",
            fault < 0 ? "no older block can be removed" : strerror(fault));
        pthread_mutex_lock(&s->lock);
    }
    if (fault)
        s->stats.unwritten++;
    else
        s->stats.written++;
    s->slots.node[slot].state = SLOT_CLEAN;
    settle(s, slot);
}

static void *writer_main(void *arg)
{
    store *s = ((store_thread *)arg)->store;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        uint32_t slot = store_keys_first(&s->slots, KEYS_QUEUE);
        if (s->trim && !s->closing)
            s->trim = s->files.count > s->most_files && remove_oldest(s);
        else if (slot)
            write_slot(s, slot);
        else if (s->closing)
            break;
        else
            pthread_cond_wait(&s->to_write, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

static hy_status open_slots(store *s, const store_options *o, hy_error *err)
{
    size_t bytes;
    char text[32], row[32];
    if (o->row_bytes > SIZE_MAX - ROW_ALIGN)
        return error_set(err, HY_NO_FIT, "a cache block of %zu bytes is too large", o->row_bytes);
    s->stride = (o->row_bytes + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
    uint64_t slots = s->retain ? o->memory_bytes / s->stride : WAITING_SLOTS;
    if (slots == 0)
        return error_at(err, HY_USAGE, "--kv-offload-memory",
                        "%s of memory for cache blocks hold none, since one has %s: give more, or 0 for none",
                        memory_text(o->memory_bytes, text), memory_text(o->row_bytes, row));
    if (slots > MAX_BLOCKS) slots = MAX_BLOCKS;
    if (!size_mul((size_t)slots, s->stride, &bytes) || bytes > memory_available())
        return error_at(err, HY_NO_FIT, s->retain ? "--kv-offload-memory" : "--kv-offload-disk",
                        "%s of memory for cache blocks are more than is free: give less",
                        memory_text(s->retain ? o->memory_bytes : slots * (uint64_t)o->row_bytes, text));
    s->rows = memory_alloc((size_t)slots, s->stride);
    if (!s->rows || !store_keys_open(&s->slots, (uint32_t)slots, (uint32_t)slots))
        return error_memory(err, "cache blocks that have left the cache", bytes);
    return HY_OK;
}

/* How many files there may be, of which `there` are there. */
static hy_status limit_files(store *s, const store_options *o, uint64_t there, hy_error *err)
{
    uint64_t bytes =
        o->disk_bytes ? o->disk_bytes : bytes_sum(store_disk_free(&s->disk), there * s->disk.file_bytes) / 2;
    char text[32], row[32];
    s->most_files = bytes / s->disk.file_bytes;
    if (s->most_files > MAX_BLOCKS) s->most_files = MAX_BLOCKS;
    if (s->most_files > 0) return HY_OK;
    return error_at(err, o->disk_bytes ? HY_USAGE : HY_NO_FIT, "--kv-offload-disk",
                    "%s in %s for cache blocks hold none, since one has %s: give more", memory_text(bytes, text),
                    s->disk.path, memory_text(s->disk.file_bytes, row));
}

static hy_status open_files(store *s, const store_options *o, store_listing *l, hy_error *err)
{
    hy_status status = store_disk_open(o, &s->disk, err);
    if (status != HY_OK) return status;
    s->on_disk = true;
    status = store_disk_list(&s->disk, l, err);
    if (status != HY_OK) return status;
    status = limit_files(s, o, l->count, err);
    /* What is beyond the numbers stays where it is. */
    size_t first = l->count > MAX_BLOCKS ? l->count - MAX_BLOCKS : 0, count = l->count - first;
    bool ok = status == HY_OK && store_keys_open(&s->files, MAX_BLOCKS + 1u, (uint32_t)count);
    for (size_t i = first; i < l->count && ok; i++) {
        uint32_t file = store_keys_add(&s->files, l->file[i].key);
        ok = file != 0;
        if (ok) store_keys_append(&s->files, KEYS_BY_USE, file);
    }
    free(l->file);
    l->file = NULL;
    s->stats.damaged = l->damaged;
    s->trim = s->files.count > s->most_files;
    if (status != HY_OK || ok) return status;
    return error_memory(err, "the index of the cache blocks on disk", count * sizeof(store_node));
}

static hy_status start_thread(store *s, store_thread *t, void *(*run)(void *), bool reads, hy_error *err)
{
    t->store = s;
    t->digest = s->on_disk ? EVP_MD_CTX_new() : NULL;
    if (reads && s->on_disk) t->row = memory_alloc(1, s->row_bytes);
    if (s->on_disk && (!t->digest || (reads && !t->row)))
        return error_memory(err, "a thread that moves cache blocks", s->row_bytes);
    if (pthread_create(&t->thread, NULL, run, t) == 0) return HY_OK;
    return error_set(err, HY_FAILED, "a thread that moves cache blocks could not be started");
}

static hy_status start_threads(store *s, hy_error *err)
{
    hy_status status = s->on_disk ? start_thread(s, &s->writer, writer_main, false, err) : HY_OK;
    s->writing = s->on_disk && status == HY_OK;
    for (; status == HY_OK && s->readers < READERS; s->readers += status == HY_OK)
        status = start_thread(s, &s->reader[s->readers], reader_main, true, err);
    return status;
}

static void say_opened(const store *s, const store_listing *l)
{
    char row[32], there[32], most[32], memory[96] = "none in memory", disk[4096] = "none on disk";
    if (s->retain) snprintf(memory, sizeof memory, "%" PRIu32 " in memory", s->slots.most);
    if (s->on_disk)
        snprintf(disk, sizeof disk, "%" PRIu64 " on disk (%s), of which %zu (%s) are there in %.512s", s->most_files,
                 memory_text(s->most_files * s->disk.file_bytes, most), l->count,
                 memory_text(l->count * s->disk.file_bytes, there), s->disk.path);
    char removed[128] = "";
    if (l->leftovers || l->damaged)
        snprintf(removed, sizeof removed, "; removed %" PRIu64 " unfinished files and %" PRIu64 " of a wrong length",
                 l->leftovers, l->damaged);
    log_line(HY_LOG_INFO, "blocks of %s that leave the cache: room for %s, %s%s", memory_text(s->row_bytes, row),
             memory, disk, removed);
}

uint64_t store_memory(size_t row_bytes, uint64_t memory_bytes, bool disk)
{
    uint64_t slots = memory_bytes > 0 || !disk ? memory_bytes : (uint64_t)WAITING_SLOTS * row_bytes;
    return slots + (disk ? (uint64_t)READERS * row_bytes : 0);
}

hy_status store_open(const store_options *o, store **out, hy_error *err)
{
    if (o->row_bytes == 0 || (o->memory_bytes == 0 && !o->folder))
        return error_set(err, HY_USAGE, "blocks that leave the cache need a row, and a place in memory or on disk");
    store *s = memory_zeroed(1, sizeof *s);
    if (!s) return error_memory(err, "the store of cache blocks", sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->to_write, NULL);
    pthread_cond_init(&s->to_read, NULL);
    s->row_bytes = o->row_bytes;
    s->retain = o->memory_bytes > 0;
    s->disk.folder = s->disk.lock = -1;
    s->write_faults.most = s->read_faults.most = 1, s->damage.most = 20;
    store_listing l = {0};
    hy_status status = open_slots(s, o, err);
    if (status == HY_OK && o->folder) status = open_files(s, o, &l, err);
    if (status == HY_OK) status = start_threads(s, err);
    if (status != HY_OK) {
        store_close(s);
        return status;
    }
    say_opened(s, &l);
    *out = s;
    return HY_OK;
}

uint32_t store_finish(store *s, double seconds)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    double end = clock_seconds() + seconds;
    uint32_t slot, left = 0;
    pthread_mutex_lock(&s->lock);
    while (store_keys_first(&s->slots, KEYS_QUEUE) && clock_seconds() < end) {
        pthread_mutex_unlock(&s->lock);
        nanosleep(&moment, NULL);
        pthread_mutex_lock(&s->lock);
    }
    for (; (slot = store_keys_first(&s->slots, KEYS_QUEUE)); left++) {
        store_keys_remove(&s->slots, slot);
        s->slots.node[slot].state = SLOT_CLEAN;
        s->stats.unwritten++;
        settle(s, slot);
    }
    pthread_mutex_unlock(&s->lock);
    return left;
}

static void free_thread(store_thread *t)
{
    EVP_MD_CTX_free(t->digest);
    memory_free(t->row);
}

void store_close(store *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_broadcast(&s->to_write);
    pthread_cond_broadcast(&s->to_read);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->readers; i++) pthread_join(s->reader[i].thread, NULL);
    if (s->writing) pthread_join(s->writer.thread, NULL);
    free_thread(&s->writer);
    for (int i = 0; i < READERS; i++) free_thread(&s->reader[i]);
    store_disk_close(&s->disk);
    store_keys_close(&s->files);
    store_keys_close(&s->slots);
    memory_free(s->hits.item);
    memory_free(s->fetches.item);
    memory_free(s->rows);
    pthread_cond_destroy(&s->to_write);
    pthread_cond_destroy(&s->to_read);
    pthread_mutex_destroy(&s->lock);
    memory_free(s);
}
