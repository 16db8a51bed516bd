#include "backend/cpu/expert_store.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/file_reads.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"

enum {
    CHUNK_BYTES = 1 << 20,
    URING_READERS = 2,
    URING_DEPTH = 4, /* buffers under way in each */
    PREAD_READERS = 4,
    HEAT_HALF = 64, /* steps after which a use counts half */
};

typedef enum slot_state {
    SLOT_FREE,
    SLOT_PARTIAL, /* some chunks are there, nothing is queued: a guess that was wrong, or a read that failed */
    SLOT_QUEUED,  /* being read */
    SLOT_READY,
} slot_state;

typedef struct slot {
    int32_t layer, expert;
    slot_state state;
    int32_t pins;
    int32_t next, done, under_way; /* chunks handed out, packed, and between the two */
    bool wanted;                   /* of the layer that is being taken, not released yet */
    bool guessed;                  /* for a layer to come */
    bool urgent;                   /* queued as wanted */
    bool failed;
} slot;

enum { QUEUE_WANTED, QUEUE_GUESSED, QUEUES };

typedef struct reader {
    expert_store *store;
    read_queue *queue;
    pthread_t thread;
    bool running;
    struct chunk *chunk; /* [depth] what a buffer is for */
} reader;

/* Rows of one matrix of the expert in a slot. */
typedef struct chunk {
    int32_t slot;
    int part;
    int64_t first, rows;
} chunk;

struct expert_store {
    expert_layer *layer; /* [layers] */
    int layers, experts;
    size_t chunk_bytes, slot_bytes, room[READ_PIECES]; /* of a chunk: data, scales */
    read_files *files;
    const weight_file *maps; /* [map_count], borrowed: where data begins */
    size_t map_count;
    reader *reader; /* [readers] */
    int readers, depth;
    bool uring;

    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t work;  /* for readers: something is queued, or the end */
    pthread_cond_t ready; /* for the driver: a slot is ready, failed or idle */
    bool stop;
    uint8_t *memory; /* [slots, slot_bytes] */
    size_t mapped;   /* bytes of it */
    slot *slot;      /* [slots] */
    int32_t slots;
    int32_t *queue[QUEUES], queued[QUEUES]; /* [slots] slots with chunks to hand out, in order */
    int32_t *slot_of;                       /* [layers, experts], -1: in none */
    float *heat;                            /* [layers, experts] uses, as they counted at `used` */
    int32_t *used;                          /* [layers, experts] step of the last use */
    int32_t step;                           /* passes through the layers */
    int current;                            /* layer that is wanted */
    int32_t *wanted, wants;                 /* [experts] of it */
    hy_error error;                         /* of the last read that failed */
    hy_expert_stats stats;
};

/* ---- Chunks ------------------------------------------------------------------------------------------------------ */

static int64_t chunk_rows(const expert_store *s, const weight *w)
{
    int64_t rows = (int64_t)(s->chunk_bytes / (weight_row_data(w) + weight_row_scales(w) + 1)) / PACK_ROWS * PACK_ROWS;
    int64_t all = (w->rows + PACK_ROWS - 1) / PACK_ROWS * PACK_ROWS;
    return !rows ? PACK_ROWS : rows < all ? rows : all;
}

static int32_t part_chunks(const expert_store *s, const weight *w)
{
    int64_t rows = chunk_rows(s, w);
    return (int32_t)((w->rows + rows - 1) / rows);
}

static int32_t expert_chunks(const expert_store *s, int layer, int expert)
{
    int32_t n = 0;
    for (int p = 0; p < EXPERT_PARTS; p++) n += part_chunks(s, &s->layer[layer].w[p][expert]);
    return n;
}

static chunk chunk_at(const expert_store *s, int32_t number, int32_t n)
{
    const slot *at = &s->slot[number];
    int p = 0;
    for (; n >= part_chunks(s, &s->layer[at->layer].w[p][at->expert]); p++)
        n -= part_chunks(s, &s->layer[at->layer].w[p][at->expert]);
    const weight *w = &s->layer[at->layer].w[p][at->expert];
    int64_t rows = chunk_rows(s, w), first = n * rows;
    return (chunk){number, p, first, w->rows - first < rows ? w->rows - first : rows};
}

static read_piece piece_of(const expert_store *s, const void *data, size_t bytes)
{
    read_piece p = {0};
    const weight_file *file = bytes ? weight_file_find(s->maps, s->map_count, data, &p.offset) : NULL;
    if (!file) return p;
    p.file = (size_t)(file - s->maps), p.bytes = bytes;
    return p;
}

/* ---- Readers ----------------------------------------------------------------------------------------------------- */

static void dequeue(expert_store *s, int q, int32_t place)
{
    s->queued[q]--;
    memmove(s->queue[q] + place, s->queue[q] + place + 1, (size_t)(s->queued[q] - place) * sizeof *s->queue[q]);
}

static void dequeue_slot(expert_store *s, int32_t number)
{
    for (int q = 0; q < QUEUES; q++)
        for (int32_t i = 0; i < s->queued[q]; i++)
            if (s->queue[q][i] == number) {
                dequeue(s, q, i);
                return;
            }
}

/* The next chunk in the order of need. False: nothing is queued. */
static bool next_chunk(expert_store *s, chunk *out)
{
    for (int q = 0; q < QUEUES; q++) {
        if (!s->queued[q]) continue;
        int32_t number = s->queue[q][0];
        slot *at = &s->slot[number];
        *out = chunk_at(s, number, at->next++);
        at->under_way++;
        if (at->next == expert_chunks(s, at->layer, at->expert)) dequeue(s, q, 0);
        return true;
    }
    return false;
}

static void start_chunk(reader *r, int buffer)
{
    const expert_store *s = r->store;
    const chunk *c = &r->chunk[buffer];
    const slot *at = &s->slot[c->slot];
    weight part = weight_rows(&s->layer[at->layer].w[c->part][at->expert], c->first, c->rows);
    read_piece pieces[READ_PIECES] = {piece_of(s, part.data, (size_t)part.rows * weight_row_data(&part)),
                                      piece_of(s, part.scales, (size_t)part.rows * weight_row_scales(&part))};
    read_queue_start(r->queue, buffer, pieces);
}

static hy_status pack_chunk(reader *r, int buffer, hy_error *err)
{
    const expert_store *s = r->store;
    const chunk *c = &r->chunk[buffer];
    const slot *at = &s->slot[c->slot]; /* stays this expert's while a chunk is under way */
    cpu_linear linear = s->layer[at->layer].linear[c->part][at->expert];
    uint8_t *data = s->memory + (size_t)c->slot * s->slot_bytes;
    for (int p = 0; p < c->part; p++) data += cpu_linear_bytes(&s->layer[at->layer].linear[p][at->expert]);
    linear.data = data;
    weight part = s->layer[at->layer].w[c->part][at->expert];
    part.rows = c->rows;
    part.data = read_queue_data(r->queue, buffer, 0);
    if (weight_row_scales(&part)) part.scales = read_queue_data(r->queue, buffer, 1);
    if (!cpu_linear_pack_rows(&part, c->first, &linear))
        return error_set(err, HY_BAD_MODEL, "layer %d, expert %d: its %s weights hold %s", at->layer, at->expert,
                         weight_format_name(part.format), weight_fault(part.format));
    return HY_OK;
}

/* An expert is complete: its linears point to it. */
static void publish(expert_store *s, int32_t number)
{
    slot *at = &s->slot[number];
    uint8_t *data = s->memory + (size_t)number * s->slot_bytes;
    for (int p = 0; p < EXPERT_PARTS; p++) {
        cpu_linear *l = &s->layer[at->layer].linear[p][at->expert];
        l->data = data;
        data += cpu_linear_bytes(l);
    }
    at->state = SLOT_READY;
    s->stats.loaded++;
}

static void end_chunk(reader *r, int buffer, hy_status status, const hy_error *error)
{
    expert_store *s = r->store;
    const chunk *c = &r->chunk[buffer];
    slot *at = &s->slot[c->slot];
    pthread_mutex_lock(&s->lock);
    const weight *w = &s->layer[at->layer].w[c->part][at->expert];
    s->stats.bytes_read += (uint64_t)c->rows * (weight_row_data(w) + weight_row_scales(w));
    at->under_way--;
    at->done++;
    if (status != HY_OK && !at->failed) {
        at->failed = true;
        s->error = *error;
        if (at->state == SLOT_QUEUED) dequeue_slot(s, c->slot), at->state = SLOT_PARTIAL;
    }
    if (!at->failed && at->done == expert_chunks(s, at->layer, at->expert)) publish(s, c->slot);
    if (at->failed || !at->under_way) pthread_cond_broadcast(&s->ready);
    pthread_mutex_unlock(&s->lock);
}

static void *reader_main(void *arg)
{
    reader *r = arg;
    expert_store *s = r->store;
    int started = 0;
    bool busy[URING_DEPTH] = {false};
    for (;;) {
        pthread_mutex_lock(&s->lock);
        while (!started && !s->stop && !s->queued[QUEUE_WANTED] && !s->queued[QUEUE_GUESSED])
            pthread_cond_wait(&s->work, &s->lock);
        bool stop = s->stop;
        int fresh[URING_DEPTH], count = 0;
        for (int b = 0; b < s->depth && !stop; b++)
            if (!busy[b] && next_chunk(s, &r->chunk[b])) fresh[count++] = b;
        pthread_mutex_unlock(&s->lock);
        for (int i = 0; i < count; i++) start_chunk(r, fresh[i]), busy[fresh[i]] = true, started++;
        if (!started && stop) return NULL;
        if (!started) continue;
        hy_error error = {0};
        hy_status status;
        int b = read_queue_wait(r->queue, &status, &error);
        busy[b] = false, started--;
        if (status == HY_OK) status = pack_chunk(r, b, &error);
        end_chunk(r, b, status, &error);
    }
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

/* Sizes of slots and buffers over all experts, and that all can be read. */
static hy_status measure(expert_store *s, hy_error *err)
{
    uint64_t at;
    for (int l = 0; l < s->layers; l++)
        for (int e = 0; e < s->experts && s->layer[l].w[0]; e++) {
            size_t bytes = 0;
            for (int p = 0; p < EXPERT_PARTS; p++) {
                const weight *w = &s->layer[l].w[p][e];
                size_t rows = (size_t)chunk_rows(s, w);
                size_t room[READ_PIECES] = {rows * weight_row_data(w), rows * weight_row_scales(w)};
                bytes += cpu_linear_bytes(&s->layer[l].linear[p][e]);
                for (int i = 0; i < READ_PIECES; i++)
                    if (room[i] > s->room[i]) s->room[i] = room[i];
                if (!weight_file_find(s->maps, s->map_count, w->data, &at) ||
                    (w->scales && !weight_file_find(s->maps, s->map_count, w->scales, &at)))
                    return error_set(err, HY_UNSUPPORTED, "layer %d, expert %d is in no file that could be streamed", l,
                                     e);
            }
            if (bytes > s->slot_bytes) s->slot_bytes = bytes;
        }
    s->slot_bytes = (s->slot_bytes + LINE - 1) / LINE * LINE;
    return HY_OK;
}

static hy_status make_tables(expert_store *s, const expert_layer *layers, hy_error *err)
{
    size_t count = (size_t)s->layers * (size_t)s->experts;
    s->layer = memory_zeroed((size_t)s->layers, sizeof *s->layer);
    s->slot_of = memory_zeroed(count, sizeof *s->slot_of);
    s->heat = memory_zeroed(count, sizeof *s->heat);
    s->used = memory_zeroed(count, sizeof *s->used);
    s->wanted = memory_zeroed((size_t)s->experts, sizeof *s->wanted);
    if (!s->layer || !s->slot_of || !s->heat || !s->used || !s->wanted)
        return error_memory(err, "the list of experts", count * sizeof *s->heat);
    memcpy(s->layer, layers, (size_t)s->layers * sizeof *layers);
    for (size_t i = 0; i < count; i++) s->slot_of[i] = -1;
    return HY_OK;
}

static hy_status open_readers(expert_store *s, int count, hy_error *err)
{
    s->depth = s->uring ? URING_DEPTH : 1;
    s->reader = memory_zeroed((size_t)count, sizeof *s->reader);
    if (!s->reader) return error_memory(err, "readers", (size_t)count * sizeof *s->reader);
    s->readers = count;
    for (int i = 0; i < count; i++) {
        reader *r = &s->reader[i];
        r->store = s;
        r->chunk = memory_zeroed((size_t)s->depth, sizeof *r->chunk);
        if (!r->chunk) return error_memory(err, "readers", sizeof *r->chunk);
        hy_status status = read_queue_open(s->files, s->uring, s->depth, s->room, &r->queue, err);
        if (status != HY_OK) return status;
        if (pthread_create(&r->thread, NULL, reader_main, r) != 0)
            return error_set(err, HY_FAILED, "could not start a thread that reads experts");
        r->running = true;
    }
    return HY_OK;
}

hy_status expert_store_open(const expert_layer *layers, int count, int experts, const weight_file *files,
                            size_t file_count, const expert_store_options *o, expert_store **out, hy_error *err)
{
    bool works = o->io != EXPERT_IO_PREAD && read_queue_uring_works();
    if (o->io == EXPERT_IO_URING && !works)
        return error_set(err, HY_FAILED, "io_uring is not in this build or not permitted here");
    expert_store *s = memory_zeroed(1, sizeof *s);
    if (!s) return error_memory(err, "the expert cache", sizeof *s);
    *s = (expert_store){.layers = count, .experts = experts, .maps = files, .map_count = file_count, .uring = works};
    s->chunk_bytes = o->chunk ? o->chunk : CHUNK_BYTES;
    s->current = count;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->ready, NULL);
    hy_status status = make_tables(s, layers, err);
    if (status == HY_OK) status = measure(s, err);
    if (status == HY_OK) status = read_files_open(files, file_count, !o->cached, &s->files, err);
    if (status == HY_OK) status = open_readers(s, o->readers ? o->readers : works ? URING_READERS : PREAD_READERS, err);
    if (status != HY_OK) {
        expert_store_close(s);
        return status;
    }
    for (int l = 0; l < count; l++) s->stats.experts += layers[l].w[0] ? (uint64_t)experts : 0;
    s->stats.slot_bytes = s->slot_bytes;
    bool rings = works;
    for (int i = 0; i < s->readers; i++) rings = rings && read_queue_uring(s->reader[i].queue);
    s->stats.io = rings ? (read_files_direct(s->files) ? "io_uring, direct" : "io_uring")
                        : (read_files_direct(s->files) ? "pread, direct" : "pread");
    *out = s;
    return HY_OK;
}

/* Waits until no chunk is under way; nothing may be queued. */
static void settle(expert_store *s)
{
    for (int32_t i = 0; i < s->slots; i++)
        while (s->slot[i].under_way) pthread_cond_wait(&s->ready, &s->lock);
}

static void forget(expert_store *s, int32_t number)
{
    slot *at = &s->slot[number];
    if (at->state == SLOT_FREE) return;
    s->slot_of[at->layer * s->experts + at->expert] = -1;
    for (int p = 0; p < EXPERT_PARTS; p++) s->layer[at->layer].linear[p][at->expert].data = NULL;
    *at = (slot){.state = SLOT_FREE};
}

static void free_slots(expert_store *s)
{
    s->queued[QUEUE_WANTED] = s->queued[QUEUE_GUESSED] = 0;
    settle(s);
    for (int32_t i = 0; i < s->slots; i++) forget(s, i);
    if (s->memory) munmap(s->memory, s->mapped);
    memory_free(s->slot);
    for (int q = 0; q < QUEUES; q++) memory_free(s->queue[q]), s->queue[q] = NULL;
    s->memory = NULL, s->slot = NULL, s->slots = 0, s->wants = 0;
}

void expert_store_close(expert_store *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    free_slots(s);
    s->stop = true;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->readers; i++) {
        if (s->reader[i].running) pthread_join(s->reader[i].thread, NULL);
        read_queue_close(s->reader[i].queue);
        memory_free(s->reader[i].chunk);
    }
    read_files_close(s->files);
    pthread_cond_destroy(&s->ready);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    memory_free(s->reader);
    memory_free(s->layer);
    memory_free(s->slot_of);
    memory_free(s->heat);
    memory_free(s->used);
    memory_free(s->wanted);
    memory_free(s);
}

size_t expert_store_slot_bytes(const expert_store *s)
{
    return s->slot_bytes;
}

size_t expert_store_own_bytes(const expert_store *s)
{
    return (size_t)s->readers * read_queue_bytes(s->depth, s->room);
}

static bool make_slots(expert_store *s, size_t count)
{
    s->mapped = count * s->slot_bytes;
    void *memory = mmap(NULL, s->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    s->memory = memory;
    s->slot = memory_zeroed(count, sizeof *s->slot);
    for (int q = 0; q < QUEUES; q++) s->queue[q] = memory_zeroed(count, sizeof *s->queue[q]);
    if (!s->slot || !s->queue[QUEUE_WANTED] || !s->queue[QUEUE_GUESSED]) return false;
    memory_prefer_huge(s->memory, s->mapped);
    s->slots = (int32_t)count;
    return true;
}

hy_status expert_store_resize(expert_store *s, uint64_t bytes, hy_error *err)
{
    hy_status status = HY_OK;
    uint64_t count = s->slot_bytes ? bytes / s->slot_bytes : 0;
    if (count > s->stats.experts) count = s->stats.experts;
    pthread_mutex_lock(&s->lock);
    free_slots(s);
    if (count && !make_slots(s, (size_t)count)) {
        free_slots(s);
        status = error_memory(err, "the expert cache", (size_t)count * s->slot_bytes);
    }
    s->stats.slots = (uint64_t)s->slots;
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* ---- Slots ------------------------------------------------------------------------------------------------------- */

static float heat_now(const expert_store *s, int layer, int expert)
{
    size_t i = (size_t)layer * (size_t)s->experts + (size_t)expert;
    return s->heat[i] * exp2f((float)(s->used[i] - s->step) / HEAT_HALF);
}

static void warm(expert_store *s, int layer, int expert)
{
    size_t i = (size_t)layer * (size_t)s->experts + (size_t)expert;
    s->heat[i] = heat_now(s, layer, expert) + 1;
    s->used[i] = s->step;
}

/* What a slot would cost to take, lowest first: nothing, a part of an expert, one that nobody asked for, a guess, and
 * for an expert that is wanted now (`urgent`) one that will be wanted after it. Negative: not to be taken. */
static int eviction_class(const expert_store *s, const slot *at, int expert, bool urgent)
{
    switch (at->state) {
    case SLOT_FREE: return 0;
    case SLOT_PARTIAL: return at->under_way || at->wanted ? -1 : 1;
    case SLOT_QUEUED: return urgent && at->guessed && !at->wanted && !at->under_way ? 3 : -1;
    case SLOT_READY: break;
    }
    if (at->pins) return -1;
    if (at->wanted) return urgent && at->layer == s->current && at->expert > expert ? 4 : -1;
    if (at->guessed) return urgent ? 3 : -1;
    return 2;
}

/* Layers from the current one until `layer` is walked again: those just passed are the farthest. */
static int distance(const expert_store *s, int layer)
{
    return (layer - s->current + s->layers) % s->layers;
}

static bool rather(const expert_store *s, const slot *a, const slot *b, int class)
{
    if (class < 2) return false;
    if (class == 4) return a->expert > b->expert;
    float x = heat_now(s, a->layer, a->expert), y = heat_now(s, b->layer, b->expert);
    return x < y || (!(x > y) && distance(s, a->layer) > distance(s, b->layer));
}

/* An empty slot; -1: none may be taken. */
static int32_t find_room(expert_store *s, int expert, bool urgent)
{
    int32_t best = -1;
    int best_class = 0;
    for (int32_t i = 0; i < s->slots; i++) {
        int class = eviction_class(s, &s->slot[i], expert, urgent);
        if (class < 0) continue;
        if (best < 0 || class < best_class || (class == best_class && rather(s, &s->slot[i], &s->slot[best], class)))
            best = i, best_class = class;
        if (best_class == 0 && best >= 0) break;
    }
    if (best < 0) return -1;
    if (s->slot[best].state == SLOT_QUEUED) dequeue_slot(s, best);
    if (s->slot[best].state == SLOT_READY) s->stats.evicted++;
    forget(s, best);
    return best;
}

static slot *slot_with(const expert_store *s, int layer, int expert)
{
    int32_t number = s->slot_of[layer * s->experts + expert];
    return number < 0 ? NULL : &s->slot[number];
}

static void enqueue(expert_store *s, int32_t number, int q)
{
    slot *at = &s->slot[number];
    at->state = SLOT_QUEUED;
    at->urgent = q == QUEUE_WANTED;
    s->queue[q][s->queued[q]++] = number;
}

/* Begins to read an expert, or moves its reading up. False: there is no room now. */
static bool load(expert_store *s, int layer, int expert, int q)
{
    slot *at = slot_with(s, layer, expert);
    int32_t number;
    if (at && (at->state == SLOT_READY || at->failed)) return true;
    if (at) {
        number = (int32_t)(at - s->slot);
        if (at->state == SLOT_QUEUED) {
            if (q == QUEUE_GUESSED || at->urgent || at->next == expert_chunks(s, layer, expert)) return true;
            dequeue_slot(s, number);
        }
    } else {
        number = find_room(s, expert, q == QUEUE_WANTED);
        if (number < 0) return false;
        s->slot[number] = (slot){.layer = layer, .expert = expert, .state = SLOT_PARTIAL};
        s->slot_of[layer * s->experts + expert] = number;
        at = &s->slot[number];
    }
    if (at->state == SLOT_PARTIAL && at->next == expert_chunks(s, layer, expert)) {
        at->state = SLOT_QUEUED; /* all of its chunks are under way */
        return true;
    }
    enqueue(s, number, q);
    return true;
}

/* Reads what is wanted from place `from` on, as far as there is room. */
static void fill(expert_store *s, int from)
{
    for (int i = from; i < s->wants; i++) {
        if (!load(s, s->current, s->wanted[i], QUEUE_WANTED)) break;
        slot_with(s, s->current, s->wanted[i])->wanted = true;
    }
    if (s->queued[QUEUE_WANTED] || s->queued[QUEUE_GUESSED]) pthread_cond_broadcast(&s->work);
}

/* Guesses for layers up to this one were right or wrong by now; what is wrong is not read any further. */
static void drop_guesses(expert_store *s, int layer)
{
    for (int32_t i = 0; i < s->slots; i++) {
        slot *at = &s->slot[i];
        if (!at->guessed || at->layer != layer) continue;
        at->guessed = false;
        if (at->state != SLOT_QUEUED || at->wanted) continue;
        dequeue_slot(s, i);
        at->state = SLOT_PARTIAL;
    }
}

void expert_store_want(expert_store *s, int layer, const int32_t *wanted, int count)
{
    assert(s->slots > 0 && count <= s->experts && s->layer[layer].w[0]);
    pthread_mutex_lock(&s->lock);
    if (layer <= s->current) s->step++;
    s->current = layer;
    memcpy(s->wanted, wanted, (size_t)count * sizeof *wanted);
    s->wants = count;
    for (int i = 0; i < count; i++) {
        slot *at = slot_with(s, layer, wanted[i]);
        bool there = at && at->state == SLOT_READY;
        s->stats.hits += there;
        s->stats.misses += !there;
        s->stats.ahead_hits += there && at->guessed;
        s->stats.ahead_late += at && at->state == SLOT_QUEUED && at->guessed;
        /* What failed is read again, once its other chunks are over. */
        if (at && at->failed && !at->under_way) at->failed = false, at->next = at->done = 0;
        if (at) at->wanted = true;
        warm(s, layer, wanted[i]);
    }
    drop_guesses(s, layer);
    fill(s, 0);
    pthread_mutex_unlock(&s->lock);
}

void expert_store_ahead(expert_store *s, int layer, const int32_t *guess, int count)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < count; i++) {
        slot *at = slot_with(s, layer, guess[i]);
        bool there = at && at->state == SLOT_READY;
        if (there || (at && at->failed)) continue; /* in the cache by use: it stays by use */
        if (!load(s, layer, guess[i], QUEUE_GUESSED)) break;
        at = slot_with(s, layer, guess[i]);
        if (!at->guessed) s->stats.ahead_reads++;
        at->guessed = true;
    }
    if (s->queued[QUEUE_GUESSED]) pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
}

static void give_up(expert_store *s)
{
    for (int32_t i = 0; i < s->slots; i++) {
        slot *at = &s->slot[i];
        if (!at->wanted) continue;
        at->wanted = false;
        if (at->state == SLOT_QUEUED) dequeue_slot(s, i), at->state = SLOT_PARTIAL;
    }
    s->wants = 0;
}

hy_status expert_store_take(expert_store *s, int from, int *end, hy_error *err)
{
    hy_status status = HY_OK;
    double begin = 0;
    pthread_mutex_lock(&s->lock);
    assert(from < s->wants);
    for (;;) {
        const slot *at = slot_with(s, s->current, s->wanted[from]);
        if (at && at->state == SLOT_READY) break;
        if (at && at->failed) {
            status = s->error.status;
            if (err) *err = s->error;
            give_up(s);
            break;
        }
        if (!begin) begin = clock_seconds();
        pthread_cond_wait(&s->ready, &s->lock);
        fill(s, from); /* there may be room now */
    }
    if (begin) s->stats.wait_seconds += clock_seconds() - begin;
    int n = from;
    for (; status == HY_OK && n < s->wants; n++) {
        slot *at = slot_with(s, s->current, s->wanted[n]);
        if (!at || at->state != SLOT_READY) break;
        at->pins++;
    }
    *end = n;
    pthread_mutex_unlock(&s->lock);
    return status;
}

void expert_store_release(expert_store *s, int from, int end)
{
    pthread_mutex_lock(&s->lock);
    for (int i = from; i < end; i++) {
        slot *at = slot_with(s, s->current, s->wanted[i]);
        assert(at && at->pins > 0);
        at->pins--;
        at->wanted = false;
    }
    fill(s, end);
    pthread_mutex_unlock(&s->lock);
}

void expert_store_stats(expert_store *s, hy_expert_stats *stats)
{
    pthread_mutex_lock(&s->lock);
    *stats = s->stats;
    pthread_mutex_unlock(&s->lock);
}
