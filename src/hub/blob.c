#include "hub/blob.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "hub/get.h"

enum { THREADS = 4, MOST_TRIES = 7, PIECE = 1 << 20 };

/* What the threads share. */
typedef struct crew {
    const blob_place *place;
    const hub_file *files;
    bool *again; /* [count] an earlier file has the same content: they are one blob */
    size_t count;
    atomic_size_t next;
    atomic_llong done;  /* bytes that are there */
    atomic_int running; /* threads */
    atomic_bool stop;   /* also when one has failed */
    pthread_mutex_t mutex;
    hy_status status; /* under the mutex: the first error */
    hy_error err;
} crew;

/* One file on its way. */
typedef struct work {
    crew *crew;
    const hub_file *file;
    int f;        /* the part's descriptor */
    int64_t have; /* bytes in it, hashed */
    EVP_MD_CTX *hash;
    hy_status status; /* why the sink ended a transfer */
    hy_error err;
} work;

bool blob_path(const blob_place *place, const hub_file *file, char out[HUB_PATH])
{
    char part[HUB_HASH + 8];
    snprintf(part, sizeof part, "blobs/%s", file->hash);
    return hub_folder(place->options->cache, place->name, part, out);
}

static int64_t size_of(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISREG(s.st_mode) ? (int64_t)s.st_size : -1;
}

bool blob_there(const blob_place *place, const hub_file *file)
{
    char path[HUB_PATH];
    return blob_path(place, file, path) && size_of(path) == file->size;
}

int64_t blob_missing(const blob_place *place, const hub_file *file)
{
    char path[HUB_PATH];
    if (!blob_path(place, file, path) || size_of(path) == file->size) return 0;
    strcat(path, ".incomplete"); /* hub_folder left room */
    int64_t have = size_of(path);
    return have > 0 && have <= file->size ? file->size - have : file->size;
}

hy_status blob_refused(const blob_place *place, long status, const char *code, hy_error *err)
{
    const char *model = place->name->model;
    bool token = place->options->token && *place->options->token;
    if (status == 404 && strstr(code, "Revision"))
        return error_at(err, HY_BAD_MODEL, model, "%s has no revision %s at %s", model, place->name->revision,
                        place->endpoint);
    if (status == 404) return error_at(err, HY_BAD_MODEL, model, "there is no model %s at %s", model, place->endpoint);
    if (status == 403 || strstr(code, "Gated"))
        return error_at(err, HY_FAILED, model, "%s is not open to %s: ask for access at %s/%s", model,
                        token ? "the account of this token"
                              : "everybody, and no token was given (HF_TOKEN or --hf-token)",
                        place->endpoint, model);
    if (status == 401)
        return error_at(err, HY_FAILED, model, "the hub wants another key for %s (401): %s", model,
                        token ? "it does not accept this token, or the model is private"
                              : "the model is private or is not there; give a token with HF_TOKEN or --hf-token");
    if (status == 429)
        return error_at(err, HY_FAILED, model, "the hub says too many requests (429), again and again; try later");
    return error_at(err, HY_FAILED, model, "the hub answers %ld for %s%s", status, model,
                    status >= 500 ? "; try later" : "");
}

bool blob_again(long status)
{
    return status == 408 || status == 429 || status >= 500;
}

static bool stopped(const atomic_bool *stop)
{
    return stop && atomic_load(stop);
}

static void nap(void)
{
    struct timespec t = {.tv_nsec = 50000000};
    nanosleep(&t, NULL);
}

bool blob_pause(int count, double least, const atomic_bool *stop)
{
    double seconds = 0.25 * (double)(1 << (count < 7 ? count - 1 : 6));
    if (least > seconds) seconds = least < 120 ? least : 120;
    for (double t = 0; t < seconds && !stopped(stop); t += 0.05) nap();
    return !stopped(stop);
}

/* ---- The part --------------------------------------------------------------------------------------------------- */

static bool hash_start(work *w)
{
    bool large = strlen(w->file->hash) == 64;
    if (EVP_DigestInit_ex(w->hash, large ? EVP_sha256() : EVP_sha1(), NULL) != 1) return false;
    char head[48];
    int n = snprintf(head, sizeof head, "blob %lld", (long long)w->file->size);
    return large || EVP_DigestUpdate(w->hash, head, (size_t)n + 1) == 1; /* git hashes the NUL too */
}

static bool hash_right(work *w)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    char text[2 * EVP_MAX_MD_SIZE + 1];
    unsigned n = 0;
    if (EVP_DigestFinal_ex(w->hash, digest, &n) != 1) return false;
    for (unsigned i = 0; i < n; i++) snprintf(text + 2 * i, 3, "%02x", digest[i]);
    return !strcmp(text, w->file->hash);
}

static hy_status disk_failed(work *w, const char *what)
{
    int why = errno;
    return error_at(&w->err, why == ENOSPC || why == EDQUOT ? HY_NO_FIT : HY_FAILED, w->file->path, "cannot %s %s: %s",
                    what, w->file->path, strerror(why));
}

/* From the beginning. */
static hy_status part_empty(work *w)
{
    if (ftruncate(w->f, 0) != 0 || lseek(w->f, 0, SEEK_SET) < 0) return disk_failed(w, "write");
    atomic_fetch_sub(&w->crew->done, w->have);
    w->have = 0;
    return hash_start(w) ? HY_OK : error_memory(&w->err, "a hash", 1);
}

/* Takes up what an earlier run has left. */
static hy_status part_resume(work *w)
{
    char *piece = malloc(PIECE);
    ssize_t n = 0;
    if (!piece || !hash_start(w)) {
        free(piece);
        return error_memory(&w->err, "a file's part", PIECE);
    }
    while (!atomic_load(&w->crew->stop) && (n = read(w->f, piece, PIECE)) > 0) {
        EVP_DigestUpdate(w->hash, piece, (size_t)n);
        w->have += n;
        atomic_fetch_add(&w->crew->done, n);
    }
    free(piece);
    if (n < 0) return disk_failed(w, "read");
    return w->have > w->file->size ? part_empty(w) : HY_OK;
}

/* ---- The transfer ----------------------------------------------------------------------------------------------- */

static bool changed(work *w)
{
    w->status = error_at(&w->err, HY_FAILED, w->file->path,
                         "%s at the hub is no longer what it was listed as; start again", w->file->path);
    return false;
}

static bool on_begin(void *user, const get_reply *reply)
{
    work *w = user;
    if (hub_is_hash(reply->etag) && strlen(reply->etag) == strlen(w->file->hash) && strcmp(reply->etag, w->file->hash))
        return changed(w);
    if (reply->status == 206)
        return reply->range_from == w->have && reply->range_total == w->file->size ? true : changed(w);
    if (reply->length >= 0 && reply->length != w->file->size) return changed(w);
    if (w->have > 0) w->status = part_empty(w); /* the whole comes, although a part was asked for */
    return w->status == HY_OK;
}

static bool on_piece(void *user, const void *data, size_t size)
{
    work *w = user;
    if ((int64_t)size > w->file->size - w->have) return changed(w);
    for (size_t written = 0; written < size;) {
        ssize_t n = write(w->f, (const char *)data + written, size - written);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            w->status = disk_failed(w, "write");
            return false;
        }
        written += (size_t)n;
    }
    EVP_DigestUpdate(w->hash, data, size);
    w->have += (int64_t)size;
    atomic_fetch_add(&w->crew->done, (long long)size);
    return true;
}

/* "ENDPOINT/owner/name/resolve/COMMIT/path". free() it. */
static char *url_of(const blob_place *place, const char *path)
{
    char *url = malloc(HUB_PATH);
    int n = url ? snprintf(url, HUB_PATH, "%s/%s/resolve/%s", place->endpoint, place->name->model, place->commit) : -1;
    for (const char *p = path; n > 0 && n < HUB_PATH && *p; p += strcspn(p, "/"), p += *p == '/') {
        char part[HUB_NAME];
        snprintf(part, sizeof part, "%.*s", (int)strcspn(p, "/"), p);
        char *escaped = get_escape(part);
        n = escaped ? n + snprintf(url + n, (size_t)(HUB_PATH - n), "/%s", escaped) : -1;
        free(escaped);
    }
    if (n > 0 && n < HUB_PATH) return url;
    free(url);
    return NULL;
}

/* What an attempt's end means: HY_OK to try again or to be done. */
static hy_status judge(work *w, hy_status status, const get_reply *reply, bool progress, int *tries)
{
    const blob_place *place = w->crew->place;
    if (w->status != HY_OK) return w->status;
    if (status == HY_CANCELLED || w->have == w->file->size) return status == HY_CANCELLED ? status : HY_OK;
    bool answered = status == HY_OK, beyond = answered && reply->status == 416;
    if (answered && reply->status != 200 && reply->status != 206 && !beyond && !blob_again(reply->status))
        return blob_refused(place, reply->status, reply->error_code, &w->err);
    if (progress) *tries = 0;
    if (++*tries == MOST_TRIES)
        return answered ? blob_refused(place, reply->status, reply->error_code, &w->err) : status;
    if (beyond && part_empty(w) != HY_OK) return w->err.status;
    if (blob_pause(*tries, reply->retry_after, &w->crew->stop)) return HY_OK;
    return error_set(&w->err, HY_CANCELLED, "the download was stopped");
}

/* Until the part is as long as the file. Tries without progress are counted. */
static hy_status transfer(work *w, get_handle *handle)
{
    const blob_place *place = w->crew->place;
    char *url = url_of(place, w->file->path);
    if (!url) return error_memory(&w->err, "a URL", HUB_PATH);
    get_request request = {.url = url,
                           .token = place->options->token,
                           .begin = on_begin,
                           .piece = on_piece,
                           .user = w,
                           .stop = &w->crew->stop};
    hy_status status = HY_OK;
    for (int tries = 0; status == HY_OK && w->have < w->file->size;) {
        get_reply reply = {0};
        int64_t before = w->have;
        request.from = before;
        status = get_run(handle, &request, &reply, &w->err);
        status = judge(w, status, &reply, w->have > before, &tries);
    }
    free(url);
    return status;
}

/* ---- One blob --------------------------------------------------------------------------------------------------- */

/* The lock of a blob, which another process may hold for long. -1: stopped, or an error. */
static int lock(work *w)
{
    char path[HUB_PATH];
    const char *cache = w->crew->place->options->cache, *model = w->crew->place->name->model;
    size_t owner = strcspn(model, "/");
    int n = snprintf(path, sizeof path, "%s/.locks/models--%.*s--%s/%s.lock", cache, (int)owner, model,
                     model + owner + 1, w->file->hash);
    if (n < 0 || n >= (int)sizeof path || hub_make_folders(path, &w->err) != HY_OK) return -1;
    int f = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    bool said = false;
    if (f < 0) disk_failed(w, "lock");
    while (f >= 0 && flock(f, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK && !atomic_load(&w->crew->stop)) {
            if (!said) log_line(HY_LOG_INFO, "waiting for another process that downloads %s", w->file->path);
            said = true;
            nap();
            continue;
        }
        if (errno == EWOULDBLOCK)
            error_set(&w->err, HY_CANCELLED, "the download was stopped");
        else
            disk_failed(w, "lock");
        close(f);
        f = -1;
    }
    return f;
}

/* The whole of a file, right; twice, since one wrong byte on the way is no reason to give up. */
static hy_status contents(work *w, get_handle *handle)
{
    hy_status status = part_resume(w);
    for (int round = 0; status == HY_OK; round++) {
        status = transfer(w, handle);
        if (status != HY_OK || hash_right(w)) return status;
        status = part_empty(w);
        if (status != HY_OK) return status;
        log_line(HY_LOG_WARNING, "%s arrived with a wrong hash", w->file->path);
        if (round == 1)
            return error_at(&w->err, HY_FAILED, w->file->path,
                            "%s has a wrong hash, twice: the hub or the way to it is broken", w->file->path);
    }
    return status;
}

static hy_status blob_locked(work *w, get_handle *handle, const char *path)
{
    char part[HUB_PATH + 16];
    snprintf(part, sizeof part, "%s.incomplete", path);
    w->f = open(part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    w->hash = EVP_MD_CTX_new();
    hy_status status = HY_OK;
    if (w->f < 0)
        status = disk_failed(w, "write");
    else if (!w->hash)
        status = error_memory(&w->err, "a hash", 1);
    if (status == HY_OK) status = contents(w, handle);
    if (status == HY_OK && fsync(w->f) != 0) status = disk_failed(w, "write");
    if (status == HY_OK && rename(part, path) != 0) status = disk_failed(w, "name");
    if (w->f >= 0) close(w->f);
    EVP_MD_CTX_free(w->hash);
    return status;
}

static hy_status blob_fetch(crew *c, get_handle *handle, const hub_file *file, hy_error *err)
{
    char path[HUB_PATH];
    work w = {.crew = c, .file = file, .f = -1};
    hy_status status = HY_OK;
    if (!blob_path(c->place, file, path)) return error_set(err, HY_USAGE, "the path of the hub's cache is too long");
    bool there = size_of(path) == file->size;
    int f = there ? -1 : lock(&w);
    if (!there && f < 0) status = w.err.status;
    /* While this process waited, another one may have brought it. */
    else if (!there && size_of(path) != file->size)
        status = blob_locked(&w, handle, path);
    else
        atomic_fetch_add(&c->done, file->size);
    if (f >= 0) close(f);
    if (status != HY_OK) *err = w.err;
    return status;
}

static void *worker(void *user)
{
    crew *c = user;
    get_handle *handle = get_open();
    hy_error err = {0};
    hy_status status = handle ? HY_OK : error_memory(&err, "a connection", 1);
    while (status == HY_OK && !atomic_load(&c->stop)) {
        size_t i = atomic_fetch_add(&c->next, 1);
        if (i >= c->count) break;
        if (!c->again[i])
            status = blob_fetch(c, handle, &c->files[i], &err);
        else
            atomic_fetch_add(&c->done, c->files[i].size);
    }
    get_close(handle);
    if (status != HY_OK) {
        pthread_mutex_lock(&c->mutex);
        if (c->status == HY_OK || c->status == HY_CANCELLED) c->status = status, c->err = err;
        pthread_mutex_unlock(&c->mutex);
        atomic_store(&c->stop, true);
    }
    atomic_fetch_sub(&c->running, 1);
    return NULL;
}

/* Shows how far it is until the threads have ended. */
static void watch(crew *c, int64_t total)
{
    const hub_options *o = c->place->options;
    while (atomic_load(&c->running) > 0) {
        nap();
        bool go_on = !o->on_progress ||
                     o->on_progress(o->user, c->place->what, (uint64_t)atomic_load(&c->done), (uint64_t)total, "bytes");
        if (go_on && !stopped(o->stop)) continue;
        pthread_mutex_lock(&c->mutex);
        if (c->status == HY_OK) c->status = HY_CANCELLED;
        pthread_mutex_unlock(&c->mutex);
        atomic_store(&c->stop, true);
    }
    if (c->status == HY_OK && o->on_progress)
        o->on_progress(o->user, c->place->what, (uint64_t)total, (uint64_t)total, "bytes");
}

/* By content, files of one content in their order. */
static int by_hash(const void *a, const void *b)
{
    const hub_file *x = *(const hub_file *const *)a, *y = *(const hub_file *const *)b;
    int order = strcmp(x->hash, y->hash);
    return order ? order : (x > y) - (x < y);
}

bool *blobs_again(const hub_file *files, size_t count)
{
    const hub_file **sorted = malloc((count + 1) * sizeof *sorted);
    bool *again = calloc(count + 1, sizeof *again);
    if (sorted && again) {
        for (size_t i = 0; i < count; i++) sorted[i] = &files[i];
        qsort(sorted, count, sizeof *sorted, by_hash);
        for (size_t i = 1; i < count; i++) again[sorted[i] - files] = !strcmp(sorted[i]->hash, sorted[i - 1]->hash);
    } else {
        free(again);
        again = NULL;
    }
    free(sorted);
    return again;
}

hy_status blobs_fetch(const blob_place *place, const hub_file *files, size_t count, hy_error *err)
{
    pthread_t threads[THREADS];
    crew c = {.place = place, .files = files, .count = count, .mutex = PTHREAD_MUTEX_INITIALIZER};
    int64_t total = 0;
    size_t started = 0;
    if (!(c.again = blobs_again(files, count))) return error_memory(err, "a list of files", count * sizeof *files);
    for (size_t i = 0; i < count; i++) total += files[i].size;
    for (; started < THREADS && started < count; started++) {
        atomic_fetch_add(&c.running, 1);
        if (pthread_create(&threads[started], NULL, worker, &c) == 0) continue;
        atomic_fetch_sub(&c.running, 1);
        break;
    }
    if (count > 0 && started == 0)
        c.status = error_set(&c.err, HY_FAILED, "cannot start a thread");
    else
        watch(&c, total);
    for (size_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
    free(c.again);
    pthread_mutex_destroy(&c.mutex);
    if (c.status == HY_CANCELLED)
        error_set(&c.err, HY_CANCELLED, "the download of %s was stopped; what has arrived stays for the next time",
                  place->name->model);
    if (c.status != HY_OK && err) *err = c.err;
    return c.status;
}
