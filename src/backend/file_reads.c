/* O_DIRECT is not in POSIX. */
#define _GNU_SOURCE
#include "backend/file_reads.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifdef HAYATE_LIBURING
#include <liburing.h>
#endif

#include "base/error.h"
#include "base/memory.h"

enum { ALIGN = READ_ALIGN };

/* ---- Files ------------------------------------------------------------------------------------------------------- */

struct read_files {
    size_t count;
    bool direct;
    int *fd;           /* [count] */
    const char **path; /* [count], borrowed */
    uint64_t *size;    /* [count] */
};

/* An aligned range that holds a piece: what a read asks for. */
typedef struct read_range {
    uint64_t offset;
    size_t bytes, need; /* asked for; of these at least, from the beginning */
    size_t lead;        /* where the piece begins */
} read_range;

static read_range range_of(const read_piece *p)
{
    uint64_t begin = p->offset / ALIGN * ALIGN, end = (p->offset + p->bytes + ALIGN - 1) / ALIGN * ALIGN;
    size_t lead = (size_t)(p->offset - begin);
    return (read_range){begin, (size_t)(end - begin), lead + p->bytes, lead};
}

static hy_status ends_early(const read_files *f, const read_piece *p, hy_error *err)
{
    const char *path = f->path[p->file];
    uint64_t wanted = p->offset + p->bytes, end = wanted;
    struct stat st;
    if (fstat(f->fd[p->file], &st) == 0) end = (uint64_t)st.st_size;
    if (end >= wanted) /* longer again since then */
        return error_at(err, HY_FAILED, path, "%.300s ended before the weights at %llu: it was cut while in use", path,
                        (unsigned long long)wanted);
    return error_at(err, HY_FAILED, path,
                    "%.300s ends at byte %llu, before the weights at %llu: it was cut while in use", path,
                    (unsigned long long)end, (unsigned long long)wanted);
}

static hy_status cannot_read(const read_files *f, const read_piece *p, int reason, hy_error *err)
{
    const char *path = f->path[p->file];
    return error_at(err, HY_FAILED, path, "cannot read %.300s at byte %llu: %s", path, (unsigned long long)p->offset,
                    strerror(reason));
}

/* Reads a range from byte `got` on, in as many calls as it takes. `out` holds range.bytes, aligned. */
static hy_status read_rest(const read_files *f, const read_piece *p, const read_range *r, uint8_t *out, size_t got,
                           hy_error *err)
{
    while (got < r->need) {
        size_t at = got / ALIGN * ALIGN; /* a direct read begins at a whole block */
        ssize_t n = pread(f->fd[p->file], out + at, r->bytes - at, (off_t)(r->offset + at));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return cannot_read(f, p, errno, err);
        if (at + (size_t)n <= got) return ends_early(f, p, err);
        got = at + (size_t)n;
    }
    return HY_OK;
}

static hy_status open_file(const weight_file *file, bool direct, int *fd, uint64_t *size, hy_error *err)
{
    struct stat st;
    *fd = open(file->path, O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0));
    if (*fd < 0 && direct && errno == EINVAL) return HY_UNSUPPORTED;
    if (*fd < 0 || fstat(*fd, &st) != 0)
        return error_at(err, HY_FAILED, file->path, "cannot open %.300s: %s", file->path, strerror(errno));
    /* Reads ask for what they need, and reading ahead of a row of the embedding can be megabytes. */
    if (!direct) posix_fadvise(*fd, 0, 0, POSIX_FADV_RANDOM);
    *size = (uint64_t)st.st_size;
    if (*size != file->bytes)
        return error_at(err, HY_FAILED, file->path, "%.300s has changed since it was opened: start again", file->path);
    return HY_OK;
}

/* Some file systems take the flag and refuse the reads. */
static bool direct_reads_work(int fd)
{
    void *block = aligned_alloc(ALIGN, ALIGN);
    if (!block) return false;
    bool works = pread(fd, block, ALIGN, 0) >= 0;
    free(block);
    return works;
}

static void close_all(read_files *f)
{
    for (size_t i = 0; i < f->count; i++) {
        if (f->fd[i] >= 0) close(f->fd[i]);
        f->fd[i] = -1;
    }
}

static hy_status open_all(read_files *f, const weight_file *files, hy_error *err)
{
    for (size_t i = 0; i < f->count; i++) {
        hy_status status = open_file(&files[i], f->direct, &f->fd[i], &f->size[i], err);
        if (status == HY_OK && f->direct && f->size[i] && !direct_reads_work(f->fd[i])) status = HY_UNSUPPORTED;
        if (status != HY_OK) return status;
        f->path[i] = files[i].path;
    }
    return HY_OK;
}

hy_status read_files_open(const weight_file *files, size_t count, bool direct, read_files **out, hy_error *err)
{
    read_files *f = memory_zeroed(1, sizeof *f);
    if (!f) return error_memory(err, "open files", sizeof *f);
    f->fd = memory_zeroed(count, sizeof *f->fd);
    f->path = memory_zeroed(count, sizeof *f->path);
    f->size = memory_zeroed(count, sizeof *f->size);
    if (!f->fd || !f->path || !f->size) {
        read_files_close(f);
        return error_memory(err, "open files", count * sizeof *f->path);
    }
    f->count = count, f->direct = direct;
    for (size_t i = 0; i < count; i++) f->fd[i] = -1;
    hy_status status = open_all(f, files, err);
    if (status == HY_UNSUPPORTED) {
        close_all(f);
        f->direct = false;
        status = open_all(f, files, err);
    }
    if (status != HY_OK) {
        read_files_close(f);
        return status;
    }
    *out = f;
    return HY_OK;
}

void read_files_close(read_files *f)
{
    if (!f) return;
    if (f->fd) close_all(f);
    memory_free(f->fd);
    memory_free(f->path);
    memory_free(f->size);
    memory_free(f);
}

bool read_files_direct(const read_files *files)
{
    return files->direct;
}

hy_status read_files_into(const read_files *f, const read_piece *p, uint8_t *out, size_t *lead, hy_error *err)
{
    read_range r = range_of(p);
    *lead = r.lead;
    return read_rest(f, p, &r, out, 0, err);
}

hy_status read_files_piece(const read_files *f, const read_piece *p, void *out, hy_error *err)
{
    read_range r = range_of(p);
    uint8_t *block = aligned_alloc(ALIGN, r.bytes);
    if (!block) return error_memory(err, "a read", r.bytes);
    hy_status status = read_rest(f, p, &r, block, 0, err);
    if (status == HY_OK) memcpy(out, block + r.lead, p->bytes);
    free(block);
    return status;
}

/* ---- Queues ------------------------------------------------------------------------------------------------------ */

typedef struct read_buffer {
    uint8_t *data[READ_PIECES];
    read_piece piece[READ_PIECES];
    ssize_t got[READ_PIECES]; /* bytes, or a negative errno */
    int under_way;            /* reads that were started and are not over */
    bool started;
} read_buffer;

struct read_queue {
    const read_files *files;
    int depth;
    uint8_t *memory;
    read_buffer *buffer; /* [depth] */
    int *order, count;   /* [depth] started buffers, oldest first */
    bool uring;
#ifdef HAYATE_LIBURING
    struct io_uring ring;
#endif
};

static size_t stride_of(size_t room)
{
    return (room + 3 * ALIGN - 1) / ALIGN * ALIGN; /* a piece may begin and end inside a block */
}

size_t read_queue_bytes(int depth, const size_t room[READ_PIECES])
{
    size_t bytes = 0;
    for (int p = 0; p < READ_PIECES; p++) bytes += (size_t)depth * stride_of(room[p]);
    return bytes;
}

bool read_queue_uring_works(void)
{
#ifdef HAYATE_LIBURING
    /* Setting a ring up may be permitted where using it is not: one operation that does nothing goes through it. */
    struct io_uring ring;
    struct io_uring_cqe *cqe = NULL;
    if (io_uring_queue_init(1, &ring, 0) != 0) return false;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
    if (sqe) io_uring_prep_nop(sqe);
    bool works = sqe && io_uring_submit(&ring) == 1 && io_uring_wait_cqe(&ring, &cqe) == 0;
    io_uring_queue_exit(&ring);
    return works;
#else
    return false;
#endif
}

hy_status read_queue_open(const read_files *files, bool uring, int depth, const size_t room[READ_PIECES],
                          read_queue **out, hy_error *err)
{
    assert(depth > 0);
    read_queue *q = memory_zeroed(1, sizeof *q);
    if (!q) return error_memory(err, "reads", sizeof *q);
    *q = (read_queue){.files = files, .depth = depth};
    size_t bytes = read_queue_bytes(depth, room);
    q->buffer = memory_zeroed((size_t)depth, sizeof *q->buffer);
    q->order = memory_zeroed((size_t)depth, sizeof *q->order);
    q->memory = aligned_alloc(ALIGN, bytes);
    if (!q->buffer || !q->order || !q->memory) {
        read_queue_close(q);
        return error_memory(err, "reads", bytes);
    }
    memset(q->memory, 0, bytes); /* counts as taken from the beginning */
    uint8_t *at = q->memory;
    for (int i = 0; i < depth; i++)
        for (int p = 0; p < READ_PIECES; at += stride_of(room[p]), p++) q->buffer[i].data[p] = at;
#ifdef HAYATE_LIBURING
    q->uring = uring && io_uring_queue_init((unsigned)(depth * READ_PIECES), &q->ring, 0) == 0;
#else
    assert(!uring);
#endif
    *out = q;
    return HY_OK;
}

bool read_queue_uring(const read_queue *q)
{
    return q->uring;
}

void read_queue_close(read_queue *q)
{
    if (!q) return;
    assert(q->count == 0);
#ifdef HAYATE_LIBURING
    if (q->uring) io_uring_queue_exit(&q->ring);
#endif
    memory_free(q->buffer);
    memory_free(q->order);
    free(q->memory);
    memory_free(q);
}

#ifdef HAYATE_LIBURING
/* The kernel refuses the ring from now on. Closing it waits for what is under way; what has not been read is read
 * without it. */
static void stop_ring(read_queue *q)
{
    io_uring_queue_exit(&q->ring);
    q->uring = false;
    for (int i = 0; i < q->depth; i++) q->buffer[i].under_way = 0;
}

static void submit(read_queue *q, int n)
{
    read_buffer *b = &q->buffer[n];
    for (int p = 0; p < READ_PIECES; p++) {
        if (!b->piece[p].bytes) continue;
        read_range r = range_of(&b->piece[p]);
        struct io_uring_sqe *sqe = io_uring_get_sqe(&q->ring);
        if (!sqe) { /* there is room for every piece of every buffer, unless the kernel takes none */
            stop_ring(q);
            return;
        }
        io_uring_prep_read(sqe, q->files->fd[b->piece[p].file], b->data[p], (unsigned)r.bytes, r.offset);
        io_uring_sqe_set_data(sqe, &b->got[p]);
        b->under_way++;
    }
    /* What the kernel does not take now stays in the ring and goes with the next call. */
    io_uring_submit(&q->ring);
}

/* Takes one completion. False: the kernel has none and will have none; it is asked again for some seconds when it says
 * that it has no room now. */
static bool complete(read_queue *q)
{
    enum { TRIES = 2000 };
    struct io_uring_cqe *cqe = NULL;
    int reason, submitted;
    for (int i = 0;; i++) {
        submitted = io_uring_submit(&q->ring);
        reason = submitted < 0 && !io_uring_cq_ready(&q->ring) ? submitted : io_uring_wait_cqe(&q->ring, &cqe);
        if (reason == 0) break;
        if ((reason != -EINTR && reason != -EAGAIN && reason != -EBUSY) || i == TRIES) return false;
        nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
    }
    ssize_t *got = io_uring_cqe_get_data(cqe);
    *got = cqe->res;
    io_uring_cqe_seen(&q->ring, cqe);
    for (int i = 0; i < q->depth; i++) {
        read_buffer *b = &q->buffer[i];
        if (got >= b->got && got < b->got + READ_PIECES) b->under_way--;
    }
    return true;
}
#endif

void read_queue_start(read_queue *q, int n, const read_piece pieces[READ_PIECES])
{
    read_buffer *b = &q->buffer[n];
    assert(!b->started && n < q->depth);
    b->started = true;
    q->order[q->count++] = n;
    for (int p = 0; p < READ_PIECES; p++) {
        b->piece[p] = pieces[p], b->got[p] = 0;
    }
#ifdef HAYATE_LIBURING
    if (q->uring) submit(q, n);
#endif
}

/* The buffer that is over; without a ring the oldest one, which is read now. */
static int finished(read_queue *q)
{
    int place = 0;
#ifdef HAYATE_LIBURING
    while (q->uring) {
        for (place = 0; place < q->count && q->buffer[q->order[place]].under_way; place++) {
        }
        if (place < q->count) break;
        place = 0;
        if (!complete(q)) stop_ring(q);
    }
#else
    (void)q;
#endif
    return place;
}

int read_queue_wait(read_queue *q, hy_status *status, hy_error *err)
{
    assert(q->count > 0);
    int place = finished(q), n = q->order[place];
    read_buffer *b = &q->buffer[n];
    memmove(q->order + place, q->order + place + 1, (size_t)(q->count - place - 1) * sizeof *q->order);
    q->count--;
    b->started = false;
    *status = HY_OK;
    for (int p = 0; p < READ_PIECES && *status == HY_OK; p++) {
        if (!b->piece[p].bytes) continue;
        read_range r = range_of(&b->piece[p]);
        ssize_t got = b->got[p];
        if (got < 0 && got != -EINTR && got != -EAGAIN)
            *status = cannot_read(q->files, &b->piece[p], (int)-got, err);
        else
            *status = read_rest(q->files, &b->piece[p], &r, b->data[p], got > 0 ? (size_t)got : 0, err);
    }
    return n;
}

const uint8_t *read_queue_data(const read_queue *q, int buffer, int piece)
{
    const read_buffer *b = &q->buffer[buffer];
    return b->data[piece] + range_of(&b->piece[piece]).lead;
}
