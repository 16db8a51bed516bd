#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/utf8.h"

static hy_status open_regular(const char *path, int *fd, size_t *size, hy_error *err)
{
    struct stat st;
    /* O_NONBLOCK: opening a pipe must not wait for its writer; regular files do not care. */
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f < 0) return error_at(err, HY_FAILED, path, "cannot open %s: %s", path, strerror(errno));
    if (fstat(f, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(f);
        return error_at(err, HY_FAILED, path, "%s is not a regular file", path);
    }
    *fd = f;
    *size = (size_t)st.st_size;
    return HY_OK;
}

/* ---- Maps -------------------------------------------------------------------------------------------------------- */

/* Open maps, for the signal handler: it goes through the list at any moment, so entries are never freed, only used
 * again. An entry is valid while `begin` is set; its other members are written before. */
typedef struct open_map {
    _Atomic uintptr_t begin;
    size_t size;
    char path[512]; /* as it is printed */
    struct open_map *next;
} open_map;

static _Atomic(open_map *) open_maps;
static pthread_mutex_t maps_lock = PTHREAD_MUTEX_INITIALIZER; /* of those who change the list */

/* Without memory for an entry the map is as good as any, but for the message. */
static void remember(const char *path, const void *data, size_t size)
{
    pthread_mutex_lock(&maps_lock);
    open_map *m = atomic_load(&open_maps);
    while (m && atomic_load(&m->begin)) m = m->next;
    open_map *entry = m ? m : calloc(1, sizeof *entry);
    if (entry) {
        snprintf(entry->path, sizeof entry->path, "%s", path);
        utf8_one_line(entry->path, '?');
        entry->size = size;
        atomic_store(&entry->begin, (uintptr_t)data);
        if (!m) entry->next = atomic_load(&open_maps);
        if (!m) atomic_store(&open_maps, entry);
    }
    pthread_mutex_unlock(&maps_lock);
}

static void forget(const void *data)
{
    pthread_mutex_lock(&maps_lock);
    for (open_map *m = atomic_load(&open_maps); m; m = m->next)
        if (atomic_load(&m->begin) == (uintptr_t)data) atomic_store(&m->begin, 0);
    pthread_mutex_unlock(&maps_lock);
}

static const char *guard_name;
static int guard_code;
static struct sigaction guard_before;

static void append(char *line, size_t size, const char *text)
{
    size_t n = strlen(line), length = strlen(text);
    if (length > size - 1 - n) length = size - 1 - n;
    memcpy(line + n, text, length);
    line[n + length] = 0;
}

/* Only calls that a handler may make. */
static void on_bus_error(int number, siginfo_t *info, void *context)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    (void)context;
    uintptr_t at = (uintptr_t)info->si_addr;
    for (open_map *m = atomic_load(&open_maps); m && info->si_code == BUS_ADRERR; m = m->next) {
        uintptr_t begin = atomic_load(&m->begin);
        if (!begin || at < begin || at - begin >= m->size) continue;
        while (atomic_flag_test_and_set(&told)) pause(); /* another thread ends the process */
        char line[700] = "";
        struct stat st;
        bool there = stat(m->path, &st) == 0 && (size_t)st.st_size >= m->size;
        append(line, sizeof line, guard_name);
        append(line, sizeof line, ": ");
        append(line, sizeof line, m->path);
        append(line, sizeof line, there ? " could not be read" : " was truncated");
        append(line, sizeof line, " while it was in use\n");
        ssize_t ignored = write(STDERR_FILENO, line, strlen(line));
        (void)ignored;
        _exit(guard_code);
    }
    sigaction(number, &guard_before, NULL);
    if (info->si_code <= 0) raise(number); /* sent by someone; a fault comes again by itself */
}

void file_map_guard(const char *name, int exit_code)
{
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    guard_name = name, guard_code = exit_code;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &guard_before);
}

hy_status file_map_open(const char *path, file_map *map, hy_error *err)
{
    int fd = -1;
    size_t size = 0;
    hy_status s = open_regular(path, &fd, &size, err);
    if (s != HY_OK) return s;
    void *p = NULL;
    if (size) {
        p = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) {
            int e = errno;
            close(fd);
            return error_at(err, HY_FAILED, path, "cannot map %s (%zu bytes): %s", path, size, strerror(e));
        }
    }
    close(fd);
    if (p) remember(path, p, size);
    *map = (file_map){p, size};
    return HY_OK;
}

void file_map_close(file_map *map)
{
    if (map->data) forget(map->data);
    if (map->data) munmap((void *)(uintptr_t)map->data, map->size);
    *map = (file_map){0};
}

void file_map_drop(const void *part, size_t bytes)
{
    long page = sysconf(_SC_PAGESIZE);
    if (!bytes || page <= 0) return;
    uintptr_t size = (uintptr_t)page, begin = (uintptr_t)part / size * size;
    uintptr_t end = ((uintptr_t)part + bytes + size - 1) / size * size;
    madvise((void *)begin, end - begin, MADV_DONTNEED);
}

void file_map_want(const void *part, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)part / page * page;
    if (bytes) posix_madvise((void *)begin, (uintptr_t)part + bytes - begin, POSIX_MADV_WILLNEED);
}

double file_map_resident(const file_map *map)
{
    enum { SAMPLES = 256 };
    size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (map->size + page - 1) / page, there = 0;
    size_t samples = pages < SAMPLES ? pages : SAMPLES;
    for (size_t i = 0; i < samples; i++) {
        unsigned char resident = 1;
        void *at = (void *)((uintptr_t)map->data / page * page + pages / samples * i * page);
        if (mincore(at, page, &resident) != 0) return 1;
        there += resident & 1;
    }
    return samples ? (double)there / (double)samples : 1;
}

void file_map_random(const file_map *map, bool random)
{
    if (map->size)
        posix_madvise((void *)(uintptr_t)map->data, map->size, random ? POSIX_MADV_RANDOM : POSIX_MADV_NORMAL);
}

hy_status file_read(const char *path, size_t limit, char **data, size_t *size, hy_error *err)
{
    int fd = -1;
    size_t n = 0;
    hy_status s = open_regular(path, &fd, &n, err);
    if (s != HY_OK) return s;
    if (n > limit) {
        close(fd);
        return error_at(err, HY_BAD_MODEL, path, "%s has %zu bytes, more than the %zu that are allowed here", path, n,
                        limit);
    }
    char *p = malloc(n + 1);
    if (!p) {
        close(fd);
        return error_memory(err, path, n);
    }
    size_t got = 0;
    while (got < n) {
        ssize_t r = read(fd, p + got, n - got);
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0) break;
        got += (size_t)r;
    }
    close(fd);
    if (got != n) {
        free(p);
        return error_at(err, HY_FAILED, path, "%s could not be read to its end", path);
    }
    p[n] = 0;
    *data = p;
    if (size) *size = n;
    return HY_OK;
}

bool file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool file_present(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 || errno == EACCES || errno == ELOOP;
}

bool file_is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

hy_status file_join(const char *folder, const char *name, char *out, size_t size, hy_error *err)
{
    int n = snprintf(out, size, "%s/%s", folder, name);
    if (n < 0 || (size_t)n >= size) return error_set(err, HY_USAGE, "the path %s/%s is too long", folder, name);
    return HY_OK;
}
