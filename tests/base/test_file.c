/* Whole-file reads, maps, and the errors that name the file. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"

static char folder[64], path[128];

static int setup(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/hayate-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return rmdir(folder);
}

static void put(const char *name, const void *bytes, size_t count)
{
    assert_int_equal(file_join(folder, name, path, sizeof path, NULL), HY_OK);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, count, f), count);
    assert_int_equal(fclose(f), 0);
}

static void reading(void **state)
{
    (void)state;
    char bytes[100000];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)(i * 7 % 251);
    put("some", bytes, sizeof bytes);
    char *data = NULL;
    size_t size = 0;
    hy_error err = {0};
    assert_int_equal(file_read(path, sizeof bytes, &data, &size, &err), HY_OK);
    assert_int_equal(size, sizeof bytes);
    assert_memory_equal(data, bytes, sizeof bytes);
    assert_int_equal(data[size], 0);
    free(data);
    assert_int_equal(file_read(path, SIZE_MAX, &data, NULL, &err), HY_OK);
    free(data);
    data = NULL;
    assert_int_equal(file_read(path, sizeof bytes - 1, &data, &size, &err), HY_BAD_MODEL);
    assert_null(data);
    assert_non_null(strstr(err.message, "100000"));
    assert_non_null(strstr(err.message, "99999"));
    assert_string_equal(err.where, path);

    file_map map = {0};
    assert_int_equal(file_map_open(path, &map, &err), HY_OK);
    assert_int_equal(map.size, sizeof bytes);
    assert_memory_equal(map.data, bytes, sizeof bytes);
    file_map_close(&map);
    assert_null(map.data);
    assert_int_equal(map.size, 0);
    file_map_close(&map);
    unlink(path);
}

static void empty_file(void **state)
{
    (void)state;
    put("empty", "", 0);
    char *data = NULL;
    size_t size = 9;
    file_map map = {(const uint8_t *)"x", 1};
    assert_int_equal(file_read(path, 0, &data, &size, NULL), HY_OK);
    assert_int_equal(size, 0);
    assert_string_equal(data, "");
    free(data);
    assert_int_equal(file_map_open(path, &map, NULL), HY_OK);
    assert_null(map.data);
    assert_int_equal(map.size, 0);
    file_map_close(&map);
    unlink(path);
}

static void refuse(const char *what, const char *reason)
{
    char *data = NULL;
    size_t size = 5;
    file_map map = {NULL, 6};
    hy_error err = {0};
    assert_int_equal(file_read(what, SIZE_MAX, &data, &size, &err), HY_FAILED);
    assert_null(data);
    assert_int_equal(size, 5);
    assert_non_null(strstr(err.message, what));
    assert_non_null(strstr(err.message, reason));
    err = (hy_error){0};
    assert_int_equal(file_map_open(what, &map, &err), HY_FAILED);
    assert_int_equal(map.size, 6);
    assert_non_null(strstr(err.message, what));
    assert_non_null(strstr(err.message, reason));
}

static void what_is_no_file(void **state)
{
    (void)state;
    refuse("/nonexistent/file", "No such file");
    refuse(folder, "not a regular file");
    refuse("/dev/null", "not a regular file");
    assert_int_equal(file_join(folder, "pipe", path, sizeof path, NULL), HY_OK);
    assert_int_equal(mkfifo(path, 0600), 0);
    refuse(path, "not a regular file"); /* and does not wait for a writer */
    assert_false(file_exists(path));
    unlink(path);
    put("plain", "x", 1);
    char link[140], dangling[140];
    snprintf(link, sizeof link, "%s-link", path);
    snprintf(dangling, sizeof dangling, "%s-gone", path);
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(symlink("/nonexistent", dangling), 0);
    assert_true(file_exists(path) && file_exists(link));
    assert_false(file_exists(dangling) || file_exists(folder) || file_exists("/nonexistent"));
    assert_true(file_present(path) && file_present(link) && file_present(dangling) && file_present(folder));
    assert_false(file_present("/nonexistent") || file_present("/dev/null/x"));
    assert_true(file_is_folder(folder));
    assert_false(file_is_folder(path) || file_is_folder(dangling) || file_is_folder("/nonexistent"));
    unlink(link);
    unlink(dangling);
    unlink(path);
}

static void joining(void **state)
{
    (void)state;
    char out[8] = "before";
    hy_error err = {0};
    assert_int_equal(file_join("ab", "cdef", out, sizeof out, &err), HY_OK);
    assert_string_equal(out, "ab/cdef");
    assert_int_equal(file_join("ab", "cdefg", out, sizeof out, &err), HY_USAGE);
    assert_non_null(strstr(err.message, "ab/cdefg"));
}

/* Pages that were let go have left the process and come back with the same contents. */
static void dropping(void **state)
{
    (void)state;
    enum { SIZE = 64 << 20, KEPT = 32 << 20 };
    char *bytes = malloc(SIZE);
    for (size_t i = 0; i < SIZE; i++) bytes[i] = (char)(i / 4096 * 7 + i);
    put("large", bytes, SIZE);
    file_map map = {0};
    hy_error err = {0};
    assert_int_equal(file_map_open(path, &map, &err), HY_OK);
    assert_memory_equal(map.data, bytes, SIZE);
    uint64_t whole = memory_resident();
    file_map_drop(map.data + 1, SIZE - KEPT - 1);
    uint64_t part = memory_resident();
    assert_true(whole > part && whole - part > (SIZE - KEPT) / 10 * 9);
    assert_memory_equal(map.data, bytes, SIZE);
    file_map_drop(NULL, 0);
    file_map_close(&map);
    free(bytes);
    unlink(path);
}

/* What the child did: its exit code, or 1000 and the signal that ended it; `said` is its stderr. */
static int child(void (*body)(void), bool guard, char said[1024])
{
    int ends[2], status = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        signal(SIGBUS, SIG_DFL); /* a sanitizer's */
        dup2(ends[1], STDERR_FILENO);
        if (guard) file_map_guard("test", 7);
        body();
        _exit(0);
    }
    close(ends[1]);
    ssize_t n = read(ends[0], said, 1023);
    said[n > 0 ? n : 0] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void touch(const file_map *map, size_t from)
{
    volatile uint8_t sum = 0;
    for (size_t i = from; i < map->size; i += 4096) sum = (uint8_t)(sum + map->data[i]);
}

static void touch_a_cut_map(void)
{
    file_map closed, map, other;
    if (file_map_open(path, &closed, NULL) != HY_OK) _exit(99);
    file_map_close(&closed);
    if (file_map_open("/proc/self/exe", &other, NULL) != HY_OK || file_map_open(path, &map, NULL) != HY_OK) _exit(99);
    touch(&map, 0);
    if (truncate(path, 4096) != 0) _exit(99);
    touch(&other, 0);
    touch(&map, 0);
}

static void touch_a_map_of_its_own(void)
{
    int fd = open(path, O_RDONLY);
    file_map map = {mmap(NULL, 100000, PROT_READ, MAP_SHARED, fd, 0), 100000}, closed;
    if (map.data == MAP_FAILED || file_map_open("/proc/self/exe", &closed, NULL) != HY_OK) _exit(99);
    file_map_close(&closed);
    if (truncate(path, 4096) != 0) _exit(99);
    touch(&map, 0);
}

static void *touch_in_thread(void *arg)
{
    touch(arg, 8192);
    return NULL;
}

/* All threads of a program fall over the cut at once. */
static void touch_in_threads(void)
{
    static file_map map;
    pthread_t thread[8];
    if (file_map_open(path, &map, NULL) != HY_OK || truncate(path, 4096) != 0) _exit(99);
    for (int i = 0; i < 8; i++) pthread_create(&thread[i], NULL, touch_in_thread, &map);
    for (int i = 0; i < 8; i++) pthread_join(thread[i], NULL);
}

static void send_itself_a_signal(void)
{
    raise(SIGBUS);
}

/* Truncated under a map: one line and the code that was asked for, where the program wants it; every other bus error ends
 * as it would without. */
static void cut_under_a_map(void **state)
{
    (void)state;
    char bytes[100000] = {1}, said[1024], want[400];
    put("cut\x1B[2J\n", bytes, sizeof bytes);
    assert_int_equal(child(touch_a_cut_map, true, said), 7);
    snprintf(want, sizeof want, "test: %s/cut?[2J? was truncated while it was in use\n", folder);
    assert_string_equal(said, want);
    put("cut\x1B[2J\n", bytes, sizeof bytes);
    assert_int_equal(child(touch_in_threads, true, said), 7);
    assert_string_equal(said, want);
    put("cut\x1B[2J\n", bytes, sizeof bytes);
    assert_int_equal(child(touch_a_cut_map, false, said), 1000 + SIGBUS);
    put("cut\x1B[2J\n", bytes, sizeof bytes);
    assert_int_equal(child(touch_a_map_of_its_own, true, said), 1000 + SIGBUS);
    assert_string_equal(said, "");
    assert_int_equal(child(send_itself_a_signal, true, said), 1000 + SIGBUS);
    assert_string_equal(said, "");
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reading),
        cmocka_unit_test(empty_file),
        cmocka_unit_test(what_is_no_file),
        cmocka_unit_test(joining),
        cmocka_unit_test(dropping),
        cmocka_unit_test(cut_under_a_map),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
