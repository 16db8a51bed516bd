#include "checkpoint/output.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"

enum { PATH_SIZE = 4096, COPY_BYTES = 1 << 20 };

struct output {
    char folder[PATH_SIZE];
    bool made; /* the folder was made here */
    output *sub;
    char **files; /* [file_count] paths written, owned */
    size_t file_count, file_room;

    const safetensors_entry *entries; /* [count] */
    size_t count;
    size_t *first;                    /* [shards + 1] first entry of every shard */
    size_t shards, shard_room, shard; /* `shard`: the one being written */
    bool holes;
    safetensors_writer *writer; /* NULL between shards */
    uint64_t left;              /* bytes that the open shard waits for */
};

/* ---- The folder -------------------------------------------------------------------------------------------------- */

static bool folder_empty(const char *path)
{
    DIR *d = opendir(path);
    if (!d) return false;
    bool empty = true;
    for (struct dirent *e; empty && (e = readdir(d));) empty = !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..");
    closedir(d);
    return empty;
}

hy_status output_open(const char *folder, output **out, hy_error *err)
{
    if (strlen(folder) >= PATH_SIZE - 256 || !*folder)
        return error_set(err, HY_USAGE,
                         "the path of the new folder has %zu characters: give a shorter one, at least one",
                         strlen(folder));
    output *o = calloc(1, sizeof *o);
    if (!o) return error_memory(err, "a new folder", sizeof *o);
    strcpy(o->folder, folder);
    if (mkdir(folder, 0777) == 0) {
        o->made = true;
    } else {
        int e = errno;
        hy_status s = HY_OK;
        bool refused = e == EROFS || e == ENOSPC || e == EACCES || e == EPERM || e == EDQUOT || e == EIO;
        if (e != EEXIST)
            s = error_at(err, refused ? HY_FAILED : HY_USAGE, folder, "cannot make the folder %s: %s", folder,
                         strerror(e));
        else if (!file_is_folder(folder))
            s = error_at(err, HY_USAGE, folder, "%s exists and is not a folder", folder);
        else if (!folder_empty(folder))
            s = error_at(err, HY_USAGE, folder, "%s is not empty: name a new or empty folder", folder);
        if (s != HY_OK) {
            free(o);
            return s;
        }
    }
    *out = o;
    return HY_OK;
}

hy_status output_subfolder(output *o, const char *name, output **sub, hy_error *err)
{
    char path[PATH_SIZE];
    assert(!o->sub);
    hy_status s = file_join(o->folder, name, path, sizeof path, err);
    if (s == HY_OK) s = output_open(path, &o->sub, err);
    if (s == HY_OK) *sub = o->sub;
    return s;
}

hy_status output_check_space(const output *o, uint64_t bytes, hy_error *err)
{
    struct statvfs fs;
    if (statvfs(o->folder, &fs) != 0) return HY_OK; /* unknown: the writes will tell */
    uint64_t free_bytes;
    if (__builtin_mul_overflow((uint64_t)fs.f_bavail, (uint64_t)fs.f_frsize, &free_bytes) || free_bytes >= bytes)
        return HY_OK;
    bool large = bytes >= 1000000000; /* below that in MB, so that small disks do not read as 0.00 GB */
    return error_at(err, HY_NO_FIT, o->folder, "%s needs %.2f %s, but its file system has only %.2f %s free", o->folder,
                    (double)bytes / (large ? 1e9 : 1e6), large ? "GB" : "MB", (double)free_bytes / (large ? 1e9 : 1e6),
                    large ? "GB" : "MB");
}

/* Joins a name to the folder and remembers the path for output_abort. */
static hy_status new_path(output *o, const char *name, char path[PATH_SIZE], hy_error *err)
{
    hy_status s = file_join(o->folder, name, path, PATH_SIZE, err);
    if (s != HY_OK) return s;
    char *copy = memory_string(path, strlen(path));
    if (!copy || !memory_reserve((void **)&o->files, &o->file_room, o->file_count + 1, sizeof *o->files)) {
        free(copy);
        return error_memory(err, "a list of files", strlen(path));
    }
    o->files[o->file_count++] = copy;
    return HY_OK;
}

static hy_status cannot_write(hy_error *err, const char *path, int reason)
{
    return error_at(err, HY_FAILED, path, "cannot write %s: %s", path, strerror(reason));
}

static bool write_all(int fd, const char *data, size_t bytes)
{
    while (bytes) {
        ssize_t n = write(fd, data, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        data += n, bytes -= (size_t)n;
    }
    return true;
}

hy_status output_file(output *o, const char *name, const char *text, size_t length, hy_error *err)
{
    char path[PATH_SIZE];
    hy_status s = new_path(o, name, path, err);
    if (s != HY_OK) return s;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return cannot_write(err, path, errno);
    int reason = write_all(fd, text, length) ? 0 : errno;
    if (close(fd) != 0 && !reason) reason = errno;
    return reason ? cannot_write(err, path, reason) : HY_OK;
}

hy_status output_copy(output *o, const char *source, const char *name, hy_error *err)
{
    char path[PATH_SIZE];
    hy_status s = new_path(o, name, path, err);
    if (s != HY_OK) return s;
    /* O_NONBLOCK: a pipe in the source's folder must not be waited for. */
    int in = open(source, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (in < 0) return error_at(err, HY_FAILED, source, "cannot open %s: %s", source, strerror(errno));
    struct stat st;
    if (fstat(in, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(in);
        return error_at(err, HY_FAILED, source, "%s is not a regular file", source);
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    char *piece = malloc(COPY_BYTES);
    if (fd < 0)
        s = cannot_write(err, path, errno);
    else if (!piece)
        s = error_memory(err, "copying a file", COPY_BYTES);
    while (s == HY_OK) {
        ssize_t n = read(in, piece, COPY_BYTES);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) s = error_at(err, HY_FAILED, source, "cannot read %s: %s", source, strerror(errno));
        if (n <= 0) break;
        if (!write_all(fd, piece, (size_t)n)) s = cannot_write(err, path, errno);
    }
    free(piece);
    close(in);
    if (fd >= 0 && close(fd) != 0 && s == HY_OK) s = cannot_write(err, path, errno);
    return s;
}

/* ---- Shards ------------------------------------------------------------------------------------------------------ */

static size_t entry_bytes(const safetensors_entry *e)
{
    size_t n = tensor_dtype_bytes(e->dtype);
    for (int i = 0; i < e->dims; i++) n *= (size_t)e->shape[i];
    return n;
}

/* Fills first[]: in order, a shard ends where the next tensor would pass the limit. */
static hy_status cut(output *o, uint64_t limit, hy_error *err)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < o->count; i++) {
        uint64_t next = entry_bytes(&o->entries[i]);
        if (i == 0 || bytes + next > limit) {
            if (!memory_reserve((void **)&o->first, &o->shard_room, o->shards + 2, sizeof *o->first))
                return error_memory(err, "a list of shards", (o->shards + 2) * sizeof *o->first);
            o->first[o->shards++] = i;
            bytes = 0;
        }
        bytes += next;
    }
    o->first[o->shards] = o->count;
    return HY_OK;
}

static void shard_name(const output *o, size_t shard, char out[64])
{
    if (o->shards == 1)
        snprintf(out, 64, "model.safetensors");
    else
        snprintf(out, 64, "model-%05zu-of-%05zu.safetensors", shard + 1, o->shards);
}

static hy_status open_shard(output *o, hy_error *err)
{
    static const char *const metadata[] = {"format", "pt"};
    char path[PATH_SIZE], name[64];
    size_t first = o->first[o->shard], count = o->first[o->shard + 1] - first;
    shard_name(o, o->shard, name);
    hy_status s = new_path(o, name, path, err);
    if (s != HY_OK) return s;
    o->left = 0;
    if (!o->holes)
        for (size_t i = 0; i < count; i++) o->left += entry_bytes(&o->entries[first + i]);
    return safetensors_create(path, o->entries + first, count, metadata, 1, o->holes, &o->writer, err);
}

static hy_status close_shard(output *o, hy_error *err)
{
    safetensors_writer *w = o->writer;
    o->writer = NULL, o->shard++;
    return safetensors_finish(w, err);
}

hy_status output_begin(output *o, const safetensors_entry *entries, size_t count, int64_t limit, bool holes,
                       hy_error *err)
{
    assert(count > 0);
    o->entries = entries, o->count = count, o->holes = holes, o->shards = o->shard = 0;
    return cut(o, limit > 0 ? (uint64_t)limit : (uint64_t)OUTPUT_SHARD_BYTES, err);
}

hy_status output_write(output *o, const void *data, size_t bytes, hy_error *err)
{
    const char *p = data;
    hy_status s = HY_OK;
    while (bytes && s == HY_OK) {
        assert(o->shard < o->shards && !o->holes); /* more data than the entries have */
        if (!o->writer && (s = open_shard(o, err)) != HY_OK) break;
        size_t n = o->left < bytes ? (size_t)o->left : bytes;
        if (n) s = safetensors_write(o->writer, p, n, err);
        p += n, bytes -= n, o->left -= n;
        if (s == HY_OK && !o->left) s = close_shard(o, err);
    }
    return s;
}

static hy_status write_index(output *o, hy_error *err)
{
    buffer b = {0};
    json_writer w = {.out = &b};
    uint64_t total = 0;
    char name[64];
    for (size_t i = 0; i < o->count; i++) total += entry_bytes(&o->entries[i]);
    writer_object(&w);
    writer_key(&w, "metadata");
    writer_object(&w);
    writer_key(&w, "total_size");
    writer_unsigned(&w, total);
    writer_end(&w);
    writer_key(&w, "weight_map");
    writer_object(&w);
    for (size_t s = 0; s < o->shards; s++) {
        shard_name(o, s, name);
        for (size_t i = o->first[s]; i < o->first[s + 1]; i++) {
            writer_key(&w, o->entries[i].name);
            writer_text(&w, name);
        }
    }
    writer_end(&w);
    writer_end(&w);
    hy_status s = buffer_ok(&b) ? output_file(o, "model.safetensors.index.json", b.data, b.length, err)
                                : error_memory(err, "the index of the shards", o->count * 160);
    buffer_free(&b);
    return s;
}

hy_status output_end(output *o, hy_error *err)
{
    hy_status s = HY_OK;
    while (s == HY_OK && o->shard < o->shards) { /* shards of holes, or without a byte */
        if (!o->writer) s = open_shard(o, err);
        if (s == HY_OK) s = close_shard(o, err);
    }
    if (s == HY_OK && o->shards > 1) s = write_index(o, err);
    return s;
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

void output_close(output *o)
{
    if (!o) return;
    output_close(o->sub);
    if (o->writer) safetensors_abort(o->writer);
    for (size_t i = 0; i < o->file_count; i++) free(o->files[i]);
    free(o->files);
    free(o->first);
    free(o);
}

void output_abort(output *o)
{
    if (!o) return;
    output_abort(o->sub);
    o->sub = NULL;
    if (o->writer) safetensors_abort(o->writer);
    o->writer = NULL;
    for (size_t i = 0; i < o->file_count; i++) unlink(o->files[i]);
    if (o->made) rmdir(o->folder);
    output_close(o);
}

/* ---- Lists of entries -------------------------------------------------------------------------------------------- */

bool layout_list_add(void *user, const layout_entry *e)
{
    layout_list *list = user;
    if (!memory_reserve((void **)&list->entries, &list->capacity, list->count + 1, sizeof *e)) {
        list->failed = true;
        return false;
    }
    list->entries[list->count++] = *e;
    return true;
}

hy_status layout_list_finish(layout_list *list, hy_error *err)
{
    free(list->files);
    list->files = calloc(list->count + 1, sizeof *list->files);
    if (list->failed || !list->files) return error_memory(err, "a list of tensors", list->count * sizeof *list->files);
    for (size_t i = 0; i < list->count; i++) {
        const layout_entry *e = &list->entries[i];
        safetensors_entry *f = &list->files[i];
        f->name = e->name, f->dtype = e->dtype, f->dims = e->dims;
        memcpy(f->shape, e->shape, sizeof f->shape);
    }
    return HY_OK;
}

void layout_list_free(layout_list *list)
{
    free(list->entries);
    free(list->files);
    *list = (layout_list){0};
}
