#define _GNU_SOURCE /* flock */

#include "cache/store_disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"

enum {
    VERSION = 1,
    SUM = 96, /* where the checksum lies */
    HEX = 2 * STORE_KEY,
    NAME = HEX + 8,
    FOLDER_NAME = 16,
    PIECE = 1 << 30, /* bytes of one call: more than 2 GB are cut by the system */
};
static const char MAGIC[8] = {'H', 'Y', 'B', 'L', 'O', 'C', 'K', '\n'};
static const char BLOCK[] = ".block", PART[] = ".part";

/* ---- Names ------------------------------------------------------------------------------------------------------- */

static void hex(const uint8_t *bytes, int count, char *out /* [2 * count + 1] */)
{
    static const char digit[] = "0123456789abcdef";
    for (int i = 0; i < count; i++) out[2 * i] = digit[bytes[i] >> 4], out[2 * i + 1] = digit[bytes[i] & 15];
    out[2 * count] = 0;
}

static int digit_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The key of "<64 hex digits>SUFFIX". */
static bool parse_name(const char *name, const char *suffix, uint8_t key[STORE_KEY])
{
    if (strlen(name) != HEX + strlen(suffix) || strcmp(name + HEX, suffix) != 0) return false;
    for (int i = 0; i < STORE_KEY; i++) {
        int high = digit_value(name[2 * i]), low = digit_value(name[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        key[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static void block_name(const uint8_t key[STORE_KEY], const char *suffix, char out[NAME])
{
    hex(key, STORE_KEY, out);
    memcpy(out + HEX, suffix, strlen(suffix) + 1);
}

/* The folder of the keys that begin with `first`, -1 and errno. */
static int open_part(const store_disk *disk, uint8_t first, bool make)
{
    char name[3];
    hex(&first, 1, name);
    int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, fd = openat(disk->folder, name, flags);
    if (fd >= 0 || errno != ENOENT || !make) return fd;
    if (mkdirat(disk->folder, name, 0700) != 0 && errno != EEXIST) return -1;
    return openat(disk->folder, name, flags);
}

static void close_kept(int fd)
{
    int kept = errno;
    close(fd);
    errno = kept;
}

/* ---- The folder -------------------------------------------------------------------------------------------------- */

static hy_status make_folders(const char *path, hy_error *err)
{
    char *copy = memory_string(path, strlen(path));
    if (!copy) return error_memory(err, "a path", strlen(path));
    int failed = 0;
    for (char *p = copy + 1; *copy && !failed; p++) {
        if (*p && *p != '/') continue;
        char kept = *p;
        *p = 0;
        if (mkdir(copy, 0700) != 0 && errno != EEXIST) failed = errno;
        if (failed && file_is_folder(copy)) failed = 0; /* there, on something that cannot be written */
        *p = kept;
        if (!kept) break;
    }
    free(copy);
    if (failed)
        return error_at(err, HY_USAGE, "--kv-offload-disk", "the folder %s for cache blocks cannot be made: %s", path,
                        strerror(failed));
    return HY_OK;
}

static hy_status refuse(const store_disk *disk, const char *what, hy_error *err)
{
    return error_at(err, HY_USAGE, "--kv-offload-disk", "the folder %s for cache blocks cannot be %s: %s", disk->path,
                    what, strerror(errno));
}

static hy_status open_folder(store_disk *disk, const char *path, hy_error *err)
{
    const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    const char *name = disk->path + strlen(path) + 1;
    int root = open(path, flags);
    if (root < 0) return refuse(disk, "opened", err);
    if (mkdirat(root, name, 0700) != 0 && errno != EEXIST) {
        close_kept(root);
        return refuse(disk, "made", err);
    }
    disk->folder = openat(root, name, flags | O_NOFOLLOW);
    close_kept(root);
    if (disk->folder < 0) return refuse(disk, "opened", err);
    if (faccessat(disk->folder, ".", W_OK | X_OK, 0) != 0) return refuse(disk, "written", err);
    disk->lock = openat(disk->folder, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (disk->lock < 0) return refuse(disk, "locked", err);
    if (flock(disk->lock, LOCK_EX | LOCK_NB) == 0) return HY_OK;
    if (errno != EWOULDBLOCK) return refuse(disk, "locked", err);
    return error_at(err, HY_USAGE, "--kv-offload-disk",
                    "the folder %s for cache blocks is in use by another process: end it or give another folder",
                    disk->path);
}

hy_status store_disk_open(const store_options *o, store_disk *disk, hy_error *err)
{
    char name[FOLDER_NAME + 1];
    hex(o->identity, FOLDER_NAME / 2, name);
    size_t length = strlen(o->folder) + sizeof name + 1;
    *disk = (store_disk){.folder = -1, .lock = -1, .row_bytes = o->row_bytes};
    disk->file_bytes = (uint64_t)o->row_bytes + DISK_HEADER;
    memcpy(disk->identity, o->identity, STORE_KEY);
    if (!*o->folder) return error_at(err, HY_USAGE, "--kv-offload-disk", "the folder for cache blocks has no name");
    disk->path = malloc(length);
    if (!disk->path) return error_memory(err, "a path", length);
    snprintf(disk->path, length, "%s/%s", o->folder, name);
    hy_status status = make_folders(o->folder, err);
    if (status == HY_OK) status = open_folder(disk, o->folder, err);
    if (status != HY_OK) store_disk_close(disk);
    return status;
}

void store_disk_close(store_disk *disk)
{
    if (disk->folder >= 0) close(disk->folder);
    if (disk->lock >= 0) close(disk->lock);
    free(disk->path);
    *disk = (store_disk){.folder = -1, .lock = -1};
}

uint64_t store_disk_free(const store_disk *disk)
{
    struct statvfs st;
    return fstatvfs(disk->folder, &st) == 0 ? (uint64_t)st.f_bavail * st.f_frsize : 0;
}

static int by_use(const void *a, const void *b)
{
    const store_file *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? -1 : 1;
    if (x->nanoseconds != y->nanoseconds) return x->nanoseconds < y->nanoseconds ? -1 : 1;
    return memcmp(x->key, y->key, STORE_KEY);
}

/* One name of a folder, which is open as `fd`. False: no memory. */
static bool list_name(const store_disk *disk, int fd, int first, const char *name, store_listing *l, size_t *capacity)
{
    struct stat st;
    store_file file;
    bool block = parse_name(name, BLOCK, file.key);
    if ((!block && !parse_name(name, PART, file.key)) || file.key[0] != first) return true;
    if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode)) return true;
    if (!block) {
        if (unlinkat(fd, name, 0) == 0) l->leftovers++;
        return true;
    }
    if (st.st_size < 0 || (uint64_t)st.st_size != disk->file_bytes) {
        l->damaged++;
        unlinkat(fd, name, 0);
        return true;
    }
    void *array = l->file;
    bool ok = memory_reserve(&array, capacity, l->count + 1, sizeof *l->file);
    l->file = array;
    if (!ok) return false;
    file.seconds = st.st_mtim.tv_sec, file.nanoseconds = st.st_mtim.tv_nsec;
    l->file[l->count++] = file;
    return true;
}

hy_status store_disk_list(const store_disk *disk, store_listing *l, hy_error *err)
{
    size_t capacity = 0;
    *l = (store_listing){0};
    for (int first = 0; first < 256; first++) {
        int fd = open_part(disk, (uint8_t)first, false);
        DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
        if (!folder) {
            if (fd >= 0) close(fd);
            continue;
        }
        bool ok = true;
        for (struct dirent *e; ok && (e = readdir(folder));) /* NOLINT: nobody else has this stream */
            ok = list_name(disk, fd, first, e->d_name, l, &capacity);
        closedir(folder);
        if (!ok) {
            free(l->file);
            return error_memory(err, "the list of cache blocks on disk", l->count * sizeof *l->file);
        }
    }
    if (l->count) qsort(l->file, l->count, sizeof *l->file, by_use);
    return HY_OK;
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static void put_little(uint8_t *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) out[i] = (uint8_t)(value >> 8 * i);
}

/* All but the checksum. */
static void fill_header(const store_disk *disk, const uint8_t key[STORE_KEY], uint8_t header[DISK_HEADER])
{
    memset(header, 0, DISK_HEADER);
    memcpy(header, MAGIC, sizeof MAGIC);
    put_little(header + 8, VERSION, 4);
    put_little(header + 12, DISK_HEADER, 4);
    put_little(header + 16, disk->row_bytes, 8);
    memcpy(header + 32, disk->identity, STORE_KEY);
    memcpy(header + 64, key, STORE_KEY);
}

static bool checksum(const store_disk *disk, void *digest, const uint8_t *header, const void *row, uint8_t sum[32])
{
    unsigned size = 0;
    return EVP_DigestInit_ex(digest, EVP_sha256(), NULL) == 1 && EVP_DigestUpdate(digest, header, SUM) == 1 &&
           EVP_DigestUpdate(digest, row, disk->row_bytes) == 1 && EVP_DigestFinal_ex(digest, sum, &size) == 1 &&
           size == 32;
}

/* False and errno, which is 0 where the file ends too early. */
static bool read_all(int fd, void *data, size_t bytes)
{
    for (uint8_t *p = data; bytes > 0;) {
        ssize_t n = read(fd, p, bytes < PIECE ? bytes : PIECE);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = 0;
        if (n <= 0) return false;
        p += n, bytes -= (size_t)n;
    }
    return true;
}

static bool write_all(int fd, const void *data, size_t bytes)
{
    for (const uint8_t *p = data; bytes > 0;) {
        ssize_t n = write(fd, p, bytes < PIECE ? bytes : PIECE);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = EIO;
        if (n <= 0) return false;
        p += n, bytes -= (size_t)n;
    }
    return true;
}

/* Of an error of the system, which is in errno. */
static store_read_result failed(const char **why)
{
    *why = errno == ENOENT ? "it has gone" : errno == ELOOP ? "it is a link" : strerror(errno);
    bool busy = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == EAGAIN;
    return busy ? DISK_BUSY : DISK_DAMAGED;
}

static store_read_result damaged(const char **why, const char *text)
{
    *why = text;
    return DISK_DAMAGED;
}

static store_read_result read_file(const store_disk *disk, void *digest, int fd, const uint8_t key[STORE_KEY],
                                   void *row, const char **why)
{
    struct stat st;
    uint8_t header[DISK_HEADER], right[DISK_HEADER];
    if (fstat(fd, &st) != 0) return failed(why);
    if (!S_ISREG(st.st_mode)) return damaged(why, "it is no regular file");
    if (st.st_size < 0 || (uint64_t)st.st_size != disk->file_bytes) return damaged(why, "its length is wrong");
    posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED);
    if (!read_all(fd, header, sizeof header) || !read_all(fd, row, disk->row_bytes))
        return errno ? failed(why) : damaged(why, "its length is wrong");
    fill_header(disk, key, right);
    if (memcmp(header, right, SUM) != 0) return damaged(why, "its header is that of something else");
    if (!checksum(disk, digest, right, row, right + SUM)) {
        *why = "no checksum could be made";
        return DISK_BUSY;
    }
    if (memcmp(header + SUM, right + SUM, DISK_HEADER - SUM) != 0) return damaged(why, "its checksum is wrong");
    futimens(fd, NULL);
    return DISK_READ;
}

store_read_result store_disk_read(const store_disk *disk, void *digest, const uint8_t key[STORE_KEY], void *row,
                                  const char **why)
{
    char name[NAME];
    int part = open_part(disk, key[0], false);
    if (part < 0) return failed(why);
    block_name(key, BLOCK, name);
    int fd = openat(part, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    close_kept(part);
    if (fd < 0) return failed(why);
    store_read_result result = read_file(disk, digest, fd, key, row, why);
    close(fd);
    return result;
}

/* The file under its passing name, in the open folder `part`. */
static int write_part(const store_disk *disk, int part, const char *name, const uint8_t *header, const void *row)
{
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(part, name, flags, 0600);
    if (fd < 0 && errno == EEXIST && unlinkat(part, name, 0) == 0) fd = openat(part, name, flags, 0600);
    if (fd < 0) return errno;
    int fault = write_all(fd, header, DISK_HEADER) && write_all(fd, row, disk->row_bytes) ? 0 : errno;
    if (close(fd) != 0 && !fault) fault = errno; /* file systems of other machines may say it only now */
    return fault;
}

int store_disk_write(const store_disk *disk, void *digest, const uint8_t key[STORE_KEY], const void *row)
{
    char name[NAME], passing[NAME];
    uint8_t header[DISK_HEADER];
    fill_header(disk, key, header);
    if (!checksum(disk, digest, header, row, header + SUM)) return ENOMEM;
    int part = open_part(disk, key[0], true);
    if (part < 0) return errno;
    block_name(key, BLOCK, name);
    block_name(key, PART, passing);
    int fault = write_part(disk, part, passing, header, row);
    if (!fault && renameat(part, passing, part, name) != 0) fault = errno;
    if (fault) unlinkat(part, passing, 0);
    close(part);
    return fault;
}

int store_disk_remove(const store_disk *disk, const uint8_t key[STORE_KEY])
{
    char name[NAME];
    int part = open_part(disk, key[0], false);
    if (part < 0) return errno == ENOENT ? 0 : errno;
    block_name(key, BLOCK, name);
    int fault = unlinkat(part, name, 0) == 0 || errno == ENOENT ? 0 : errno;
    close(part);
    return fault;
}

void store_disk_touch(const store_disk *disk, const uint8_t key[STORE_KEY])
{
    char name[NAME];
    int part = open_part(disk, key[0], false);
    if (part < 0) return;
    block_name(key, BLOCK, name);
    utimensat(part, name, NULL, AT_SYMLINK_NOFOLLOW);
    close(part);
}
