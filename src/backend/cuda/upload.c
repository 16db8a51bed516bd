#include "backend/cuda/upload.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "backend/file_reads.h"
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"

_Static_assert((size_t)GPU_LANE_BYTES > 2 * (size_t)READ_ALIGN,
               "a lane holds a piece and what a direct read has around it");

enum { PIECE = GPU_LANE_BYTES - 2 * READ_ALIGN };

typedef struct job {
    uint8_t *device;
    const uint8_t *host;
    size_t bytes;
} job;

struct upload {
    gpu *gpu;
    const ops_options *options;
    progress *report;
    read_files *files; /* NULL: everything is copied */
    bool lanes;
    job *list; /* [count] */
    size_t count, room;
    uint64_t bytes;            /* of what has gone */
    atomic_uint_fast64_t done; /* of the running list, not reported yet */
    atomic_bool stop;
    pthread_mutex_t lock;
    hy_error error; /* the first */
};

/* Direct reads would leave aside what is in memory. */
static bool is_in_memory(const ops_options *o)
{
    double pages = 0, bytes = 0;
    for (size_t i = 0; i < o->file_count; i++) {
        file_map map = {o->files[i].data, o->files[i].bytes};
        pages += file_map_resident(&map) * (double)map.size;
        bytes += (double)map.size;
    }
    return pages > bytes / 2;
}

hy_status upload_open(gpu *g, const ops_options *options, progress *report, upload **out, hy_error *err)
{
    upload *u = memory_zeroed(1, sizeof *u);
    if (!u) return error_memory(err, "loading weights", sizeof *u);
    *u = (upload){.gpu = g, .options = options, .report = report};
    pthread_mutex_init(&u->lock, NULL);
    hy_status status = HY_OK;
    bool can = g->calls->lanes_open && options->pool;
    if (can) status = g->calls->lanes_open(g, threads_count(options->pool), err);
    u->lanes = can && status == HY_OK;
    if (u->lanes && options->file_count)
        status = read_files_open(options->files, options->file_count, !is_in_memory(options), &u->files, err);
    if (status != HY_OK) {
        upload_close(u);
        return status;
    }
    *out = u;
    return HY_OK;
}

void upload_close(upload *u)
{
    if (!u) return;
    if (u->lanes) u->gpu->calls->lanes_close(u->gpu);
    read_files_close(u->files);
    pthread_mutex_destroy(&u->lock);
    free(u->list);
    memory_free(u);
}

hy_status upload_add(upload *u, void *device, const void *host, size_t bytes, hy_error *err)
{
    size_t pieces = (bytes + PIECE - 1) / PIECE;
    if (!memory_reserve((void **)&u->list, &u->room, u->count + pieces, sizeof *u->list))
        return error_memory(err, "the list of weights", pieces * sizeof *u->list);
    for (size_t at = 0; at < bytes; at += PIECE)
        u->list[u->count++] =
            (job){(uint8_t *)device + at, (const uint8_t *)host + at, bytes - at < PIECE ? bytes - at : PIECE};
    return HY_OK;
}

static void fail(upload *u, const hy_error *error)
{
    pthread_mutex_lock(&u->lock);
    if (u->error.status == HY_OK) u->error = *error;
    pthread_mutex_unlock(&u->lock);
    atomic_store(&u->stop, true);
}

/* Bytes that have gone, where the caller of the pool works: progress is one thread's. */
static void report(upload *u)
{
    uint64_t bytes = atomic_exchange(&u->done, 0);
    hy_error stopped = {0};
    u->bytes += bytes;
    if (progress_add(u->report, bytes)) return;
    error_set(&stopped, HY_CANCELLED, "loading the weights was stopped");
    fail(u, &stopped);
}

static void send(upload *u, const job *j, int lane)
{
    const gpu_calls *calls = u->gpu->calls;
    uint8_t *buffer = calls->lane_take(u->gpu, lane);
    read_piece piece = {.bytes = j->bytes};
    size_t lead = 0;
    hy_error error = {0};
    if (!buffer) return; /* the GPU keeps its error */
    const weight_file *files = u->options->files,
                      *file = u->files ? weight_file_find(files, u->options->file_count, j->host, &piece.offset) : NULL;
    if (file) {
        piece.file = (size_t)(file - files);
        if (read_files_into(u->files, &piece, buffer, &lead, &error) != HY_OK) fail(u, &error);
    } else {
        memcpy(buffer, j->host, j->bytes);
    }
    if (error.status == HY_OK) calls->lane_send(u->gpu, lane, j->device, buffer + lead, j->bytes);
}

static void send_some(void *arg, int64_t first, int64_t last, int worker)
{
    upload *u = arg;
    for (int64_t i = first; i < last && !atomic_load(&u->stop); i++) {
        send(u, &u->list[i], worker);
        atomic_fetch_add(&u->done, u->list[i].bytes);
        if (worker == 0) report(u);
    }
}

hy_status upload_run(upload *u, hy_error *err)
{
    if (u->lanes) {
        threads_run(u->options->pool, (int64_t)u->count, 1, send_some, u);
        u->gpu->calls->lanes_join(u->gpu);
    }
    for (size_t i = 0; i < u->count && !u->lanes; i++) {
        const job *j = &u->list[i];
        u->gpu->calls->write(u->gpu, j->device, j->host, j->bytes);
        atomic_fetch_add(&u->done, j->bytes);
    }
    if (u->error.status == HY_OK) report(u);
    u->count = 0;
    if (u->error.status != HY_OK && err) *err = u->error;
    return u->error.status;
}

uint64_t upload_bytes(const upload *u)
{
    return u->bytes;
}

const char *upload_way(const upload *u)
{
    if (!u->files) return "copied";
    return read_files_direct(u->files) ? "read directly" : "read through the page cache";
}
