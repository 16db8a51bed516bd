/* Writing safetensors: the header from the declared tensors, then their data in the same order, without gaps. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/error.h"
#include "base/json.h"
#include "base/memory.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_table.h"

enum { PIECE = 1 << 20, HEADER_LIMIT = 100 * 1000 * 1000 };

struct safetensors_writer {
    char *path, *temporary;
    int fd;
    bool holes, borrowed;         /* borrowed: the file is the caller's */
    uint64_t data_bytes, written; /* of the data, without the header */
    uint8_t *pending;             /* [PIECE]: small tensors leave in large writes */
    size_t pending_bytes;
};

static hy_status system_error(const safetensors_writer *w, const char *what, hy_error *err)
{
    return error_at(err, HY_FAILED, w->path, "cannot %s %s: %s", what, w->temporary, strerror(errno));
}

static hy_status write_all(const safetensors_writer *w, const void *data, size_t bytes, hy_error *err)
{
    const uint8_t *p = data;
    while (bytes) {
        ssize_t n = write(w->fd, p, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return system_error(w, "write", err);
        p += n, bytes -= (size_t)n;
    }
    return HY_OK;
}

/* Bytes of a declared tensor; false when the shape is no shape or too large. */
static bool entry_bytes(const safetensors_entry *e, size_t *bytes)
{
    if (e->dims < 0 || e->dims > TENSOR_MAX_DIMS) return false;
    *bytes = tensor_dtype_bytes(e->dtype);
    for (int i = 0; i < e->dims; i++)
        if (e->shape[i] < 0 || !size_mul(*bytes, (size_t)e->shape[i], bytes)) return false;
    return true;
}

static hy_status check_names(const safetensors_entry *entries, size_t count, hy_error *err)
{
    tensor_table table = {0};
    tensor *names = memory_zeroed(count, sizeof *names); /* the table knows tensors; only the names matter here */
    hy_status status = HY_OK;
    if (!names || !tensor_table_open(&table, count)) status = error_memory(err, "tensor names", count * sizeof *names);
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        names[i].name = entries[i].name;
        if (strcmp(entries[i].name, "__metadata__") == 0 || tensor_table_add(&table, &names[i]))
            status = error_at(err, HY_USAGE, entries[i].name, "two tensors of a file cannot both be named %.200s",
                              entries[i].name);
    }
    tensor_table_close(&table);
    memory_free(names);
    return status;
}

/* The header's JSON into `out`, padded with spaces so that the data begins at a multiple of 8. */
static hy_status build_header(buffer *out, const safetensors_entry *entries, size_t count, const char *const *metadata,
                              size_t pairs, uint64_t *data_bytes, hy_error *err)
{
    json_writer w = {.out = out};
    uint64_t at = 0;
    writer_object(&w);
    if (pairs) {
        writer_key(&w, "__metadata__");
        writer_object(&w);
        for (size_t i = 0; i < pairs; i++) {
            writer_key(&w, metadata[i * 2]);
            writer_text(&w, metadata[i * 2 + 1]);
        }
        writer_end(&w);
    }
    for (size_t i = 0; i < count; i++) {
        const safetensors_entry *e = &entries[i];
        size_t bytes;
        if (!entry_bytes(e, &bytes) || __builtin_add_overflow(at, bytes, &at) || at > INT64_MAX - HEADER_LIMIT)
            return error_at(err, HY_USAGE, e->name, "tensor %.200s is too large for a file", e->name);
        writer_key(&w, e->name);
        writer_object(&w);
        writer_key(&w, "dtype");
        writer_text(&w, tensor_dtype_name(e->dtype));
        writer_key(&w, "shape");
        writer_array(&w);
        for (int d = 0; d < e->dims; d++) writer_integer(&w, e->shape[d]);
        writer_end(&w);
        writer_key(&w, "data_offsets");
        writer_array(&w);
        writer_unsigned(&w, at - bytes);
        writer_unsigned(&w, at);
        writer_end(&w);
        writer_end(&w);
    }
    writer_end(&w);
    while (out->length % 8 && buffer_ok(out)) buffer_char(out, ' ');
    if (!buffer_ok(out)) return error_memory(err, "a safetensors header", out->length);
    if (out->length > HEADER_LIMIT)
        return error_set(err, HY_USAGE, "%zu tensors make a header of %zu bytes, more than the %d that a file may have",
                         count, out->length, HEADER_LIMIT);
    *data_bytes = at;
    return HY_OK;
}

/* The finished file takes the place of what has its name, which must not be a device, a pipe or a link to one. */
static hy_status check_target(const char *path, hy_error *err)
{
    struct stat s;
    if (lstat(path, &s) != 0 || S_ISREG(s.st_mode)) return HY_OK; /* what cannot be looked at fails when it is made */
    return error_at(err, HY_USAGE, path, "%s is there and is not a regular file: name another file to write", path);
}

static hy_status writer_new(const char *path, bool holes, safetensors_writer **out, hy_error *err)
{
    static const char suffix[] = ".part";
    safetensors_writer *w = calloc(1, sizeof *w);
    if (!w) return error_memory(err, path, sizeof *w);
    size_t n = strlen(path);
    w->fd = -1;
    w->holes = holes;
    w->path = memory_string(path, n);
    w->temporary = calloc(1, n + sizeof suffix);
    w->pending = malloc(PIECE);
    if (!w->path || !w->temporary || !w->pending) {
        safetensors_abort(w);
        return error_memory(err, path, PIECE);
    }
    memcpy(w->temporary, path, n);
    memcpy(w->temporary + n, suffix, sizeof suffix);
    *out = w;
    return HY_OK;
}

static hy_status write_header(const safetensors_writer *w, const buffer *header, hy_error *err)
{
    uint8_t prefix[8];
    for (int i = 0; i < 8; i++) prefix[i] = (uint8_t)((uint64_t)header->length >> 8 * i);
    hy_status status = write_all(w, prefix, sizeof prefix, err);
    if (status == HY_OK) status = write_all(w, header->data, header->length, err);
    if (status == HY_OK && w->holes && ftruncate(w->fd, (off_t)(sizeof prefix + header->length + w->data_bytes)) != 0)
        status = system_error(w, "extend", err);
    return status;
}

hy_status safetensors_create_in(int fd, const char *name, const safetensors_entry *entries, size_t count,
                                safetensors_writer **writer, hy_error *err)
{
    safetensors_writer *w = NULL;
    buffer header = {0};
    hy_status status = check_names(entries, count, err);
    if (status == HY_OK) status = writer_new(name, false, &w, err);
    if (status != HY_OK) return status;
    w->borrowed = true;
    w->fd = fd;
    strcpy(w->temporary, name);
    status = build_header(&header, entries, count, NULL, 0, &w->data_bytes, err);
    if (status == HY_OK) status = write_header(w, &header, err);
    buffer_free(&header);
    if (status == HY_OK)
        *writer = w;
    else
        safetensors_abort(w);
    return status;
}

hy_status safetensors_create(const char *path, const safetensors_entry *entries, size_t count,
                             const char *const *metadata, size_t metadata_pairs, bool holes,
                             safetensors_writer **writer, hy_error *err)
{
    safetensors_writer *w = NULL;
    buffer header = {0};
    hy_status status = check_names(entries, count, err);
    if (status == HY_OK) status = check_target(path, err);
    if (status == HY_OK) status = writer_new(path, holes, &w, err);
    if (status != HY_OK) return status;
    status = build_header(&header, entries, count, metadata, metadata_pairs, &w->data_bytes, err);
    if (status == HY_OK) {
        w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (w->fd < 0) status = system_error(w, "create", err);
    }
    if (status == HY_OK) status = write_header(w, &header, err);
    buffer_free(&header);
    if (status == HY_OK)
        *writer = w;
    else
        safetensors_abort(w);
    return status;
}

static hy_status flush(safetensors_writer *w, hy_error *err)
{
    size_t n = w->pending_bytes;
    w->pending_bytes = 0;
    return write_all(w, w->pending, n, err);
}

hy_status safetensors_write(safetensors_writer *w, const void *data, size_t bytes, hy_error *err)
{
    if (w->holes) return error_at(err, HY_USAGE, w->path, "%s was created with holes and takes no data", w->path);
    if (bytes > w->data_bytes - w->written)
        return error_at(err, HY_USAGE, w->path, "%s gets more data than its %llu declared bytes", w->path,
                        (unsigned long long)w->data_bytes);
    hy_status status = HY_OK;
    w->written += bytes;
    if (bytes > PIECE - w->pending_bytes) status = flush(w, err);
    if (status != HY_OK || bytes >= PIECE) return status == HY_OK ? write_all(w, data, bytes, err) : status;
    if (bytes) memcpy(w->pending + w->pending_bytes, data, bytes);
    w->pending_bytes += bytes;
    return HY_OK;
}

hy_status safetensors_skip(safetensors_writer *w, uint64_t bytes, hy_error *err)
{
    if (bytes > w->data_bytes - w->written)
        return error_at(err, HY_USAGE, w->path, "%s gets more data than its %llu declared bytes", w->path,
                        (unsigned long long)w->data_bytes);
    hy_status status = flush(w, err);
    if (status != HY_OK) return status;
    off_t end = lseek(w->fd, (off_t)bytes, SEEK_CUR);
    if (end < 0 || (w->written + bytes == w->data_bytes && ftruncate(w->fd, end) != 0))
        return system_error(w, "extend", err);
    w->written += bytes;
    return HY_OK;
}

hy_status safetensors_finish(safetensors_writer *w, hy_error *err)
{
    hy_status status = HY_OK;
    if (!w->holes && w->written != w->data_bytes)
        status = error_at(err, HY_USAGE, w->path, "%s got %llu of its %llu declared bytes", w->path,
                          (unsigned long long)w->written, (unsigned long long)w->data_bytes);
    if (status == HY_OK) status = flush(w, err);
    if (status == HY_OK && !w->borrowed && fsync(w->fd) != 0) status = system_error(w, "write", err);
    if (status == HY_OK && !w->borrowed) {
        int fd = w->fd;
        w->fd = -1;
        if (close(fd) != 0)
            status = system_error(w, "write", err);
        else if (rename(w->temporary, w->path) != 0)
            status = system_error(w, "rename", err);
    }
    if (status == HY_OK) w->temporary[0] = 0; /* nothing is left to remove */
    safetensors_abort(w);
    return status;
}

void safetensors_abort(safetensors_writer *w)
{
    if (!w) return;
    if (w->fd >= 0 && !w->borrowed) close(w->fd);
    /* An empty name: renamed already, or never filled in. */
    if (!w->borrowed && w->path && w->temporary && w->temporary[0]) unlink(w->temporary);
    free(w->pending);
    free(w->temporary);
    free(w->path);
    free(w);
}
