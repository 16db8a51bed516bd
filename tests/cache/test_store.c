/* The tiers for blocks that leave the cache: what comes back, what makes room, what damage and strange folders do. */
#include "store_check.h"

#include "base/clock.h"
#include "cache/store_keys.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { ROW = 5000, HEADER = 128, FILE_BYTES = ROW + HEADER, SLOT = 5056 /* rounded up to lines */ };

static store_options options(int slots, bool disk, uint64_t files)
{
    return (store_options){.row_bytes = ROW,
                           .memory_bytes = (uint64_t)slots * SLOT,
                           .folder = disk ? folder : NULL,
                           .disk_bytes = files * FILE_BYTES,
                           .identity = {1, 2, 3, 4, 5, 6, 7, 8, 9}};
}

static store *open_store(store_options o)
{
    store *s = NULL;
    OK(store_open(&o, &s, &err));
    return s;
}

/* ---- Lines ------------------------------------------------------------------------------------------------------- */

static atomic_int warnings;
static char last_warning[512];
static pthread_mutex_t line_lock = PTHREAD_MUTEX_INITIALIZER;

static void on_line(void *user, hy_log_level level, const char *line)
{
    (void)user;
    if (level < HY_LOG_WARNING) return;
    pthread_mutex_lock(&line_lock);
    snprintf(last_warning, sizeof last_warning, "%s", line);
    pthread_mutex_unlock(&line_lock);
    warnings++;
}

static int setup(void **state)
{
    warnings = 0;
    hy_log_set(on_line, NULL, HY_LOG_INFO);
    return make_folder(state);
}

/* ---- What comes back --------------------------------------------------------------------------------------------- */

static void test_memory(void **state)
{
    (void)state;
    store *s = open_store(options(4, false, 0));
    uint8_t key[STORE_KEY];
    make_key(1, key);
    assert_int_equal(read_block(s, 1, ROW), READ_NONE);
    void *slot = store_put_begin(s, key);
    assert_non_null(slot);
    assert_int_equal(store_find(s, key), STORE_NOWHERE); /* not yet */
    assert_null(store_put_begin(s, key));
    store_put_end(s, slot, false);
    assert_int_equal(store_find(s, key), STORE_NOWHERE);
    assert_true(put(s, 1, ROW));
    assert_false(put(s, 1, ROW)); /* it is there */
    assert_int_equal(where(s, 1), STORE_MEMORY);
    assert_int_equal(read_block(s, 1, ROW), READ_MEMORY);
    store_stats st = stats(s);
    assert_int_equal(st.puts, 1);
    assert_int_equal(st.dropped, 0);
    assert_int_equal(st.read_memory, 1);
    assert_int_equal(st.memory_blocks, 1);
    assert_int_equal(st.memory_slots, 4);
    assert_int_equal(st.disk_blocks, 0);
    store_close(s);
}

static void test_least_recently_used(void **state)
{
    (void)state;
    store *s = open_store(options(4, false, 0));
    for (uint64_t i = 0; i < 4; i++) assert_true(put(s, i, ROW));
    assert_int_equal(read_block(s, 0, ROW), READ_MEMORY);
    assert_false(put(s, 2, ROW)); /* there, and used */
    /* The callback may come before the slot is unpinned: a slot that is being read cannot be taken, so wait for it. */
    for (int i = 0; i < 2000 && where(s, 1) != STORE_NOWHERE; i++) {
        usleep(1000);
        put(s, 10, ROW);
    }
    assert_int_equal(where(s, 1), STORE_NOWHERE);
    assert_true(put(s, 11, ROW));
    assert_int_equal(where(s, 3), STORE_NOWHERE);
    assert_int_equal(where(s, 0), STORE_MEMORY);
    assert_int_equal(where(s, 2), STORE_MEMORY);
    for (uint64_t i = 100; i < 200; i++) {
        assert_true(put(s, i, ROW));
        assert_int_equal(read_block(s, i, ROW), READ_MEMORY);
    }
    assert_int_equal(stats(s).memory_blocks, 4);
    store_close(s);
}

static void test_disk_alone(void **state)
{
    (void)state;
    store_options o = options(0, true, 100);
    store *s = open_store(o);
    for (uint64_t i = 0; i < 10; i++) {
        assert_true(put(s, i, ROW));
        assert_false(put(s, i, ROW)); /* waiting to be written, or written */
    }
    wait_written(s);
    struct stat info;
    assert_int_equal(stat(block_path(&o, 3, ".block"), &info), 0);
    assert_int_equal(info.st_size, FILE_BYTES);
    assert_int_equal(info.st_mode & 0777, 0600);
    for (uint64_t i = 0; i < 10; i++) {
        assert_int_equal(where(s, i), STORE_DISK);
        assert_int_equal(read_block(s, i, ROW), READ_DISK);
        assert_int_equal(read_block(s, i, ROW), READ_DISK);
    }
    store_stats st = stats(s);
    assert_int_equal(st.written, 10);
    assert_int_equal(st.disk_blocks, 10);
    assert_int_equal(st.disk_bytes, 10 * FILE_BYTES);
    assert_int_equal(st.memory_blocks, 0);
    assert_int_equal(st.memory_slots, 0);
    assert_int_equal(st.read_disk, 20);
    store_close(s);
    s = open_store(o);
    for (uint64_t i = 0; i < 10; i++) assert_int_equal(read_block(s, i, ROW), READ_DISK);
    assert_int_equal(read_block(s, 10, ROW), READ_NONE);
    assert_int_equal(warnings, 0);
    store_close(s);
}

/* Memory in front: what it has lost the disk still has, and reading brings it back into memory. */
static void test_both(void **state)
{
    (void)state;
    store_options o = options(4, true, 100);
    store *s = open_store(o);
    for (uint64_t i = 0; i < 20; i++) {
        assert_true(put(s, i, ROW));
        wait_written(s);
    }
    assert_int_equal(where(s, 19), STORE_MEMORY);
    assert_int_equal(where(s, 0), STORE_DISK);
    assert_false(put(s, 0, ROW));
    assert_int_equal(read_block(s, 0, ROW), READ_DISK);
    assert_int_equal(where(s, 0), STORE_MEMORY);
    assert_int_equal(read_block(s, 0, ROW), READ_MEMORY);
    for (uint64_t i = 0; i < 20; i++) assert_true(read_block(s, i, ROW) <= READ_DISK);
    assert_int_equal(stats(s).memory_blocks, 4);
    store_close(s); /* and what waits is written */
    s = open_store(o);
    for (uint64_t i = 0; i < 4; i++) assert_true(put(s, 50 + i, ROW));
    store_close(s);
    s = open_store(o);
    for (uint64_t i = 0; i < 4; i++) assert_int_equal(read_block(s, 50 + i, ROW), READ_DISK);
    assert_int_equal(stats(s).disk_blocks, 24);
    assert_int_equal(warnings, 0);
    store_close(s);
}

/* A close that must end: what has not been written in time is left out, and nothing else is. */
static void test_finish(void **state)
{
    (void)state;
    enum { BLOCKS = 64, BYTES = 4 << 20 };
    for (int hurry = 0; hurry < 2; hurry++) {
        store_options o = options(1, true, 100);
        o.row_bytes = BYTES, o.memory_bytes = (uint64_t)BLOCKS * BYTES;
        o.disk_bytes = (uint64_t)(BLOCKS + 1) * (BYTES + HEADER);
        store *s = open_store(o);
        void *slot[BLOCKS];
        uint8_t key[STORE_KEY];
        for (uint64_t i = 0; i < BLOCKS; i++) {
            make_key(i, key);
            assert_non_null(slot[i] = store_put_begin(s, key));
            fill_row(key, slot[i], BYTES);
        }
        for (int i = 0; i < BLOCKS; i++) store_put_end(s, slot[i], true);
        uint32_t left = store_finish(s, hurry ? 0 : 60);
        assert_true(hurry ? left > BLOCKS / 2 : left == 0);
        assert_int_equal(stats(s).unwritten, left);
        assert_int_equal(where(s, BLOCKS - 1), STORE_MEMORY);
        store_close(s);
        s = open_store(o);
        assert_int_equal(stats(s).disk_blocks, BLOCKS - left);
        for (uint64_t i = 0; i < BLOCKS; i++)
            if (where(s, i) != STORE_NOWHERE) assert_int_equal(read_block(s, i, BYTES), READ_DISK), left++;
        assert_int_equal(left, BLOCKS);
        store_close(s);
        remove_folder(state), make_folder(state);
    }
}

static void wait_for_blocks(store *s, uint64_t count)
{
    for (int i = 0; i < 120000 && stats(s).disk_blocks != count; i++) usleep(500);
    assert_int_equal(stats(s).disk_blocks, count);
}

/* The oldest files make room, those that were used are young, also for the next start, also with a smaller limit. */
static void test_limit(void **state)
{
    (void)state;
    store_options o = options(0, true, 6);
    store *s = open_store(o);
    for (uint64_t i = 0; i < 6; i++) {
        assert_true(put(s, i, ROW));
        wait_written(s);
        usleep(12000); /* the times of files are those of the system's ticks */
    }
    assert_int_equal(read_block(s, 0, ROW), READ_DISK);
    usleep(12000);
    assert_true(put(s, 6, ROW));
    wait_written(s);
    assert_int_equal(where(s, 1), STORE_NOWHERE);
    assert_int_equal(access(block_path(&o, 1, ".block"), F_OK), -1);
    assert_int_equal(where(s, 0), STORE_DISK);
    assert_int_equal(stats(s).removed, 1);
    assert_int_equal(stats(s).disk_blocks, 6);
    store_close(s);
    o.disk_bytes = 2 * FILE_BYTES;
    s = open_store(o);
    wait_for_blocks(s, 2);
    assert_int_equal(where(s, 0), STORE_DISK); /* it was read last but for the one that was written then */
    assert_int_equal(where(s, 6), STORE_DISK);
    assert_int_equal(stats(s).removed, 4);
    for (uint64_t i = 20; i < 60; i++) {
        assert_true(put(s, i, ROW));
        wait_written(s);
        assert_true(stats(s).disk_blocks <= 2);
    }
    store_close(s);
    assert_int_equal(warnings, 0);
}

static void test_no_slot_is_clean(void **state)
{
    (void)state;
    store *s = open_store(options(3, true, 100));
    uint8_t key[STORE_KEY];
    void *slot[3];
    for (uint64_t i = 0; i < 3; i++) {
        make_key(i, key);
        slot[i] = store_put_begin(s, key);
        assert_non_null(slot[i]);
    }
    assert_false(put(s, 3, ROW));
    assert_int_equal(stats(s).dropped, 1);
    store_put_end(s, slot[1], false);
    assert_true(put(s, 3, ROW));
    make_key(0, key);
    fill_row(key, slot[0], ROW);
    store_put_end(s, slot[0], true);
    store_put_end(s, slot[2], false);
    assert_true(read_block(s, 0, ROW) == READ_MEMORY);
    assert_int_equal(where(s, 2), STORE_NOWHERE);
    store_close(s);
}

/* Slots that are being read stay. */
typedef struct gate {
    pthread_mutex_t lock;
    atomic_int inside;
    uint8_t key[2][STORE_KEY];
    atomic_bool right;
} gate;

static void hold_row(void *user, const void *row, store_place from)
{
    gate *g = user;
    (void)from;
    g->inside++;
    pthread_mutex_lock(&g->lock);
    if (!row || (!row_is_right(g->key[0], row, ROW) && !row_is_right(g->key[1], row, ROW))) g->right = false;
    pthread_mutex_unlock(&g->lock);
    g->inside--;
}

static void test_pinned(void **state)
{
    (void)state;
    store *s = open_store(options(2, false, 0));
    gate g = {.lock = PTHREAD_MUTEX_INITIALIZER, .right = true};
    for (uint64_t i = 0; i < 2; i++) assert_true(put(s, i, ROW)), make_key(i, g.key[i]);
    pthread_mutex_lock(&g.lock);
    for (int i = 0; i < 2; i++) assert_true(store_read(s, g.key[i], hold_row, &g));
    assert_false(put(s, 5, ROW)); /* asked for is enough */
    while (g.inside < 2) usleep(100);
    assert_false(put(s, 6, ROW));
    assert_int_equal(stats(s).dropped, 2);
    assert_int_equal(where(s, 0), STORE_MEMORY); /* no lock is held over the callback */
    pthread_mutex_unlock(&g.lock);
    for (int i = 0; i < 60000 && !put(s, 5, ROW); i++) usleep(1000);
    assert_int_equal(where(s, 5), STORE_MEMORY);
    store_close(s);
    assert_true(g.right);
}

/* So do files that are asked for, also when there is no room for others then. */
static void test_pinned_files(void **state)
{
    (void)state;
    store *s = open_store(options(0, true, 2));
    gate g = {.lock = PTHREAD_MUTEX_INITIALIZER, .right = true};
    for (uint64_t i = 0; i < 2; i++) assert_true(put(s, i, ROW)), make_key(i, g.key[i]);
    wait_written(s);
    pthread_mutex_lock(&g.lock);
    for (int i = 0; i < 3; i++) assert_true(store_read(s, g.key[0], hold_row, &g));
    while (g.inside < 2) usleep(100);
    assert_true(store_read(s, g.key[1], hold_row, &g)); /* behind those */
    assert_true(put(s, 2, ROW));
    wait_written(s);
    assert_int_equal(stats(s).unwritten, 1);
    assert_int_equal(where(s, 0), STORE_DISK);
    assert_int_equal(where(s, 1), STORE_DISK);
    pthread_mutex_unlock(&g.lock);
    for (int i = 0; i < 60000 && stats(s).read_disk < 4; i++) usleep(1000);
    assert_int_equal(stats(s).read_disk, 4);
    for (int i = 0; i < 60000 && where(s, 2) != STORE_DISK; i++) {
        put(s, 2, ROW);
        wait_written(s);
    }
    assert_int_equal(where(s, 2), STORE_DISK);
    store_close(s);
    assert_true(g.right);
    assert_int_equal(warnings, 1);
}

/* Closing finishes what was asked for, each once. */
static void count_rows(void *user, const void *row, store_place from)
{
    (void)from;
    if (row) atomic_fetch_add((atomic_int *)user, 1);
}

static void test_close_finishes(void **state)
{
    (void)state;
    store_options o = options(0, true, 1000);
    store *s = open_store(o);
    atomic_int rows = 0;
    uint8_t key[STORE_KEY];
    for (uint64_t i = 0; i < 10; i++) {
        while (!put(s, i, ROW)) usleep(100);
        wait_written(s);
    }
    for (uint64_t i = 0; i < 300; i++) {
        make_key(i % 10, key);
        assert_true(store_read(s, key, count_rows, &rows));
    }
    store_close(s);
    assert_int_equal(rows, 300);
}

/* ---- Identity and lock ------------------------------------------------------------------------------------------- */

static void test_identity(void **state)
{
    (void)state;
    store_options o = options(0, true, 100), other = o;
    other.identity[31] = 1; /* the same folder */
    store *s = open_store(o);
    assert_true(put(s, 1, ROW));
    store_close(s);
    s = open_store(other);
    assert_int_equal(where(s, 1), STORE_DISK); /* by its name */
    assert_int_equal(read_block(s, 1, ROW), READ_GONE);
    assert_int_equal(where(s, 1), STORE_NOWHERE);
    assert_int_equal(access(block_path(&o, 1, ".block"), F_OK), -1);
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(last_warning, "its header"));
    assert_true(put(s, 1, ROW));
    wait_written(s);
    assert_int_equal(read_block(s, 1, ROW), READ_DISK);
    store_close(s);
    other.identity[0] = 77; /* another folder */
    s = open_store(other);
    assert_int_equal(where(s, 1), STORE_NOWHERE);
    store_close(s);
}

static void test_lock(void **state)
{
    (void)state;
    store_options o = options(0, true, 100), other = o;
    store *s = open_store(o), *t = NULL;
    assert_int_equal(store_open(&o, &t, &err), HY_USAGE);
    assert_non_null(strstr(err.message, "in use"));
    assert_null(t);
    other.identity[0] = 2;
    OK(store_open(&other, &t, &err));
    store_close(t);
    store_close(s);
    store_close(open_store(o));
}

static void refused(store_options o, hy_status status, const char *words)
{
    store *s = NULL;
    assert_int_equal(store_open(&o, &s, &err), status);
    assert_null(s);
    if (!strstr(err.message, words)) fail_msg("no '%s' in: %s", words, err.message);
}

static void test_refused(void **state)
{
    (void)state;
    char file[600];
    store_options o = options(0, true, 1);
    o.disk_bytes = FILE_BYTES - 1;
    refused(o, HY_USAGE, "hold none");
    o = options(1, false, 0), o.memory_bytes--;
    refused(o, HY_USAGE, "hold none");
    o = options(0, false, 0);
    refused(o, HY_USAGE, "memory or on disk");
    o = options(1, false, 0), o.memory_bytes = UINT64_MAX / 4;
    refused(o, HY_NO_FIT, "more than is free");
    snprintf(file, sizeof file, "%s/file", folder);
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    fclose(f);
    o = options(0, true, 1), o.folder = file;
    refused(o, HY_USAGE, "cannot be opened");
    snprintf(file, sizeof file, "%s/file/more", folder);
    refused(o, HY_USAGE, "cannot be made");
    o.folder = "";
    refused(o, HY_USAGE, "no name");
    snprintf(file, sizeof file, "%s/a//b/c/", folder); /* made, all of it */
    o.folder = file;
    store_close(open_store(o));
    assert_int_equal(access(file, F_OK), 0);
    if (geteuid() != 0) {
        assert_int_equal(chmod(file, 0500), 0);
        o.identity[0] = 99;
        refused(o, HY_USAGE, "cannot be made");
        assert_int_equal(chmod(file, 0700), 0);
    }
    store_close(NULL);
}

static void test_default_limit(void **state)
{
    (void)state;
    store_options o = options(0, true, 0);
    store *s = open_store(o);
    assert_true(put(s, 1, ROW));
    wait_written(s);
    assert_int_equal(stats(s).written, 1);
    store_close(s);
}

/* ---- Damage ------------------------------------------------------------------------------------------------------ */

/* One damaged file among others: it goes, with one line; the others are read, and its key can be put again. */
static void check_damage(void (*damage)(const char *path, long where), long place, bool at_open)
{
    store_options o = options(2, true, 100);
    store *s = open_store(o);
    warnings = 0;
    for (uint64_t i = 0; i < 3; i++) {
        while (!put(s, i, ROW)) usleep(100);
        wait_written(s);
    }
    store_close(s);
    damage(block_path(&o, 1, ".block"), place);
    s = open_store(o);
    int expected = at_open ? READ_NONE : READ_GONE, got = read_block(s, 1, ROW);
    if (got != expected) fail_msg("byte %ld: %d instead of %d", place, got, expected);
    assert_int_equal(read_block(s, 1, ROW), READ_NONE);
    assert_int_equal(stats(s).damaged, 1);
    assert_int_equal(stats(s).disk_blocks, 2);
    assert_int_equal(warnings, at_open ? 0 : 1);
    assert_int_equal(access(block_path(&o, 1, ".block"), F_OK), -1);
    assert_int_equal(read_block(s, 0, ROW), READ_DISK);
    assert_int_equal(read_block(s, 2, ROW), READ_DISK);
    while (!put(s, 1, ROW)) usleep(100); /* a slot is free soon after the callback */
    store_close(s);
    s = open_store(o);
    assert_int_equal(read_block(s, 1, ROW), READ_DISK);
    store_close(s);
    shell("rm -rf '%s'/*", folder);
}

static void flip(const char *path, long where)
{
    int fd = open(path, O_RDWR);
    uint8_t byte = 0;
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, where), 1);
    byte ^= (uint8_t)(1 << where % 8);
    assert_int_equal(pwrite(fd, &byte, 1, where), 1);
    close(fd);
}

static void cut(const char *path, long where)
{
    assert_int_equal(truncate(path, where), 0);
}

static void test_flipped_bits(void **state)
{
    (void)state;
    /* Magic, version, sizes, zeros, identity, key, checksum, row. */
    const long places[] = {0, 7, 8, 12, 16, 23, 24, 31, 32, 63, 64, 95, 96, 127, 128, 129, 2500, FILE_BYTES - 1};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) check_damage(flip, places[i], false);
}

static void test_lengths(void **state)
{
    (void)state;
    const long lengths[] = {0, 1, HEADER - 1, HEADER, FILE_BYTES - 1, FILE_BYTES + 1};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) check_damage(cut, lengths[i], true);
}

/* Damage while the folder is open: a file that is cut, that has gone, that became a link, a pipe, a folder. */
static void test_damage_while_open(void **state)
{
    (void)state;
    store_options o = options(0, true, 100);
    store *s = open_store(o);
    char path[1000], command[2400];
    const char *acts[] = {
        "truncate -s 100 '%s'",     "truncate -s 0 '%s'",     "rm '%s'", "mv '%1$s' '%1$s.x'; ln -s '%1$s.x' '%1$s'",
        "rm '%1$s'; mkfifo '%1$s'", "rm '%1$s'; mkdir '%1$s'"};
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) {
        assert_true(put(s, i, ROW));
        wait_written(s);
        snprintf(path, sizeof path, "%s", block_path(&o, i, ".block"));
        snprintf(command, sizeof command, acts[i], path); /* NOLINT */
        assert_int_equal(system(command), 0);
        warnings = 0;
        assert_int_equal(read_block(s, i, ROW), READ_GONE);
        assert_int_equal(where(s, i), STORE_NOWHERE);
        assert_int_equal(warnings, 1);
        assert_int_equal(stats(s).damaged, i + 1);
        assert_true(put(s, i, ROW)); /* again; not where a folder has the name */
        wait_written(s);
        assert_int_equal(read_block(s, i, ROW), i == 5 ? READ_NONE : READ_DISK);
    }
    assert_int_equal(stats(s).unwritten, 1);
    store_close(s);
}

/* Many reads of one damaged file: all get nothing, it counts once. */
static void count_null(void *user, const void *row, store_place from)
{
    (void)from;
    if (!row) atomic_fetch_add((atomic_int *)user, 1);
}

static void test_damage_read_by_many(void **state)
{
    (void)state;
    store_options o = options(0, true, 100);
    store *s = open_store(o);
    uint8_t key[STORE_KEY];
    atomic_int nulls = 0;
    int asked = 0;
    make_key(1, key);
    assert_true(put(s, 1, ROW));
    wait_written(s);
    flip(block_path(&o, 1, ".block"), 200);
    for (int i = 0; i < 100; i++) asked += store_read(s, key, count_null, &nulls);
    store_close(s);
    assert_true(asked > 0);
    assert_int_equal(nulls, asked);
    assert_int_equal(warnings, 1);
}

/* ---- Strange folders --------------------------------------------------------------------------------------------- */

static void test_leftovers(void **state)
{
    (void)state;
    store_options o = options(0, true, 100);
    store *s = open_store(o);
    assert_true(put(s, 1, ROW));
    store_close(s);
    char part[1000];
    snprintf(part, sizeof part, "%s", block_path(&o, 1, ".part"));
    FILE *f = fopen(part, "w");
    assert_non_null(f);
    fputs("half a block", f);
    fclose(f);
    s = open_store(o);
    assert_int_equal(access(part, F_OK), -1);
    assert_int_equal(read_block(s, 1, ROW), READ_DISK);
    assert_int_equal(stats(s).damaged, 0);
    store_close(s);
}

static void test_hostile_folder(void **state)
{
    (void)state;
    store_options o = options(0, true, 100);
    store *s = open_store(o);
    for (uint64_t i = 0; i < 8; i++) assert_true(put(s, i, ROW));
    store_close(s);
    /* Names like blocks that are folders, links and pipes; names that are not quite; a file and a link where the
     * folders of keys go; a block in the wrong folder. */
    char path[2][1000], command[4000];
    snprintf(path[0], sizeof path[0], "%s", block_path(&o, 20, ".block"));
    snprintf(path[1], sizeof path[1], "%s", block_path(&o, 0, ".block"));
    char *end = strrchr(path[0], '/');
    snprintf(command, sizeof command,
             "set -e; A='%s'; B='%s'; D=${A%%/*}; U=${D%%/*}; mkdir -p $D; mkdir $A; cd $D; H=%s; "
             "ln -s $B ${H%%?}.block; touch short.block .block .part $H $H.blocks $H.bloc ${H}0.block; "
             "touch $(echo $H | tr a-f A-F).block \"$(printf 'odd\\nname\\033.block')\" x$H.part; cp $B .; cd $U; "
             "for h in 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f; do "
             "[ -e $h ] || { touch $h; break; }; done; "
             "for h in f0 f1 f2 f3 f4 f5 f6 f7 f8 f9; do [ -e $h ] || { ln -s /tmp $h; break; }; done; "
             "for h in e0 e1 e2 e3 e4 e5 e6 e7 e8 e9; do [ -e $h ] || { mkfifo $h; break; }; done; mkdir zz 0 000",
             path[0], path[1], block_path(&o, 20, "") + (end - path[0]) + 1);
    assert_int_equal(system(command), 0);
    s = open_store(o);
    assert_int_equal(stats(s).disk_blocks, 8);
    for (uint64_t i = 0; i < 8; i++) assert_int_equal(read_block(s, i, ROW), READ_DISK);
    assert_int_equal(warnings, 0);
    assert_int_equal(where(s, 20), STORE_NOWHERE);
    assert_true(put(s, 20, ROW)); /* a folder has its name */
    wait_written(s);
    assert_int_equal(stats(s).unwritten, 1);
    assert_int_equal(warnings, 1);
    for (uint64_t i = 100; i < 190; i++) { /* some of them in places that are taken */
        while (!put(s, i, ROW)) usleep(100);
        wait_written(s);
    }
    for (uint64_t i = 100; i < 190; i++) assert_true(read_block(s, i, ROW) != READ_WRONG);
    assert_true(stats(s).unwritten <= 6);
    assert_int_equal(warnings, 1); /* one a minute */
    store_close(s);
}

static void test_lock_is_a_link(void **state)
{
    (void)state;
    store_options o = options(0, true, 100);
    char id[17], command[2400];
    identity_name(o.identity, id);
    snprintf(command, sizeof command, "mkdir '%s/%s' && ln -s /tmp/nowhere '%s/%s/lock'", folder, id, folder, id);
    assert_int_equal(system(command), 0);
    refused(o, HY_USAGE, "cannot be locked");
    snprintf(command, sizeof command, "rm -rf '%s/%s' && mkdir '%s/real' && ln -s real '%s/%s'", folder, id, folder,
             folder, id);
    assert_int_equal(system(command), 0);
    refused(o, HY_USAGE, "cannot be opened");
}

/* ---- Disks that fail --------------------------------------------------------------------------------------------- */

/* Writes that fail midway, as on a full disk: nothing is left behind, nobody is disturbed, and it goes on afterwards.
 */
static void check_failing_writes(int slots)
{
    store_options o = options(slots, true, 100);
    store *s = open_store(o);
    struct rlimit old, small;
    warnings = 0;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){.rlim_cur = 3000, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (uint64_t i = 0; i < 40; i++) {
        while (!put(s, i, ROW)) usleep(100);
        wait_written(s);
        assert_int_equal(read_block(s, i, ROW), slots ? READ_MEMORY : READ_NONE);
        assert_int_equal(access(block_path(&o, i, ".part"), F_OK), -1);
        assert_int_equal(access(block_path(&o, i, ".block"), F_OK), -1);
    }
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(stats(s).unwritten, 40);
    assert_int_equal(stats(s).written, 0);
    assert_int_equal(warnings, 1);
    assert_non_null(strstr(last_warning, "could not be written"));
    assert_true(put(s, 100, ROW));
    wait_written(s);
    assert_int_equal(stats(s).written, 1);
    store_close(s);
    s = open_store(o);
    assert_int_equal(read_block(s, 100, ROW), READ_DISK);
    store_close(s);
    shell("rm -rf '%s'/*", folder);
}

static void test_failing_writes(void **state)
{
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    check_failing_writes(0);
    check_failing_writes(4);
    signal(SIGXFSZ, SIG_DFL);
}

static void test_deleted_folder(void **state)
{
    (void)state;
    store_options o = options(2, true, 100);
    store *s = open_store(o);
    for (uint64_t i = 0; i < 10; i++) {
        while (!put(s, i, ROW)) usleep(100);
        wait_written(s);
    }
    shell("rm -rf '%s'/*", folder);
    for (uint64_t i = 0; i < 8; i++) assert_int_equal(read_block(s, i, ROW), READ_GONE);
    assert_int_equal(stats(s).damaged, 8);
    for (uint64_t i = 20; i < 30; i++) {
        while (!put(s, i, ROW)) usleep(100);
        wait_written(s);
        assert_int_equal(read_block(s, i, ROW), READ_MEMORY);
    }
    assert_int_equal(stats(s).unwritten, 10);
    assert_int_equal(warnings, 9);
    store_close(s);
}

static void test_read_only_folder(void **state)
{
    (void)state;
    if (geteuid() == 0) skip(); /* whom nothing is forbidden */
    store_options o = options(2, true, 2);
    store *s = open_store(o);
    for (uint64_t i = 0; i < 2; i++) assert_true(put(s, i, ROW));
    wait_written(s);
    shell("chmod -R a-w '%s'", folder);
    for (uint64_t i = 10; i < 20; i++) {
        while (!put(s, i, ROW)) usleep(100);
        wait_written(s);
    }
    assert_int_equal(read_block(s, 0, ROW), READ_DISK);
    assert_int_equal(stats(s).unwritten, 10);
    assert_int_equal(stats(s).disk_blocks, 2);
    assert_int_equal(warnings, 1);
    store_close(s);
    shell("chmod -R u+w '%s'", folder);
}

/* ---- Many threads ------------------------------------------------------------------------------------------------ */

/* With fewer reads at once than files there is always one that can make room: a slow reader must cause no warning. */
enum { STORM_THREADS = 4, STORM_KEYS = 60, STORM_ROUNDS = 1500, STORM_FILES = 20, STORM_READS = 12 };

typedef struct storm {
    store *s;
    uint32_t seed;
    atomic_int *pending, *wrong, *asked;
} storm;

typedef struct storm_read {
    storm *owner;
    uint8_t key[STORE_KEY];
} storm_read;

static void on_storm_read(void *user, const void *row, store_place from)
{
    storm_read *r = user;
    storm *o = r->owner;
    if (row && !row_is_right(r->key, row, ROW)) atomic_fetch_add(o->wrong, 1);
    if (from == STORE_DISK) store_find(o->s, r->key); /* calls are allowed here */
    free(r);
    atomic_fetch_sub(o->pending, 1);
}

static void *storm_main(void *arg)
{
    storm *w = arg;
    uint32_t x = w->seed;
    for (int i = 0; i < STORM_ROUNDS; i++) {
        x = x * 1664525u + 1013904223u;
        uint64_t number = (x >> 8) % STORM_KEYS;
        if ((x >> 24) % 3 == 0) {
            put(w->s, number, ROW);
        } else if ((x >> 24) % 97 == 1) {
            uint8_t key[STORE_KEY];
            make_key(number, key);
            void *slot = store_put_begin(w->s, key);
            if (slot) memset(slot, 0xAA, ROW), store_put_end(w->s, slot, false);
        } else {
            while (atomic_load(w->pending) >= STORM_READS) usleep(20);
            storm_read *r = malloc(sizeof *r);
            r->owner = w;
            make_key(number, r->key);
            atomic_fetch_add(w->pending, 1);
            if (store_read(w->s, r->key, on_storm_read, r)) {
                atomic_fetch_add(w->asked, 1);
            } else {
                atomic_fetch_sub(w->pending, 1);
                free(r);
            }
        }
    }
    return NULL;
}

static void check_storm(int slots, bool disk, uint64_t files)
{
    store *s = open_store(options(slots, disk, files));
    atomic_int pending = 0, wrong = 0, asked = 0;
    pthread_t thread[STORM_THREADS];
    storm w[STORM_THREADS];
    for (uint32_t i = 0; i < STORM_THREADS; i++) {
        w[i] = (storm){s, i + 1, &pending, &wrong, &asked};
        assert_int_equal(pthread_create(&thread[i], NULL, storm_main, &w[i]), 0);
    }
    for (int i = 0; i < STORM_THREADS; i++) pthread_join(thread[i], NULL);
    store_stats st = stats(s);
    assert_true(st.memory_blocks <= (slots ? (uint64_t)slots : 16));
    assert_true(st.disk_blocks <= files);
    assert_int_equal(st.damaged, 0);
    store_close(s);
    assert_int_equal(pending, 0);
    assert_int_equal(wrong, 0);
    assert_true(asked > 100);
    assert_int_equal(warnings, 0);
    shell("rm -rf '%s'/*", folder);
}

static void test_storm(void **state)
{
    (void)state;
    check_storm(8, false, 0);
    check_storm(0, true, STORM_FILES);
    check_storm(5, true, STORM_FILES);
    check_storm(5, true, 1000);
}

/* Nobody can name files so that looking them up takes long. With a known hash this would take minutes. */
static void test_like_keys(void **state)
{
    (void)state;
    enum { KEYS = 200000 };
    store_keys k;
    uint8_t key[STORE_KEY] = {0};
    double begin = clock_seconds();
    assert_true(store_keys_open(&k, KEYS, 0));
    for (uint32_t i = 0; i < KEYS; i++) {
        memcpy(key + STORE_KEY - 4, &i, 4);
        assert_int_equal(store_keys_find(&k, key), 0);
        assert_int_equal(store_keys_add(&k, key), KEYS_FIRST + i);
    }
    assert_int_equal(store_keys_add(&k, (const uint8_t[STORE_KEY]){1}), 0); /* as many as may be */
    /* Every third goes, and only those. */
    for (uint32_t i = 0; i < KEYS; i += 3) {
        store_keys_forget(&k, KEYS_FIRST + i);
        store_keys_free(&k, KEYS_FIRST + i);
    }
    for (uint32_t i = 0; i < KEYS; i++) {
        memcpy(key + STORE_KEY - 4, &i, 4);
        assert_int_equal(store_keys_find(&k, key), i % 3 ? KEYS_FIRST + i : 0);
    }
    assert_true(store_keys_add(&k, (const uint8_t[STORE_KEY]){1}) != 0);
    assert_true(clock_seconds() - begin < 20);
    store_keys_close(&k);
}

/* A folder with many files, all of them empty inside; the lines that are said of them have an end. */
static void test_many_damaged(void **state)
{
    (void)state;
    enum { NAMES = 3000, READS = 200 };
    store_options o = options(0, true, NAMES);
    o.row_bytes = 1;
    o.disk_bytes = NAMES * (HEADER + 1);
    char id[17], path[1000];
    identity_name(o.identity, id);
    snprintf(path, sizeof path, "%s/%s", folder, id);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/%s/aa", folder, id);
    assert_int_equal(mkdir(path, 0700), 0);
    for (int i = 0; i < NAMES; i++) {
        snprintf(path, sizeof path, "%s/%s/aa/aa%054d%08x.block", folder, id, 0, i);
        int fd = open(path, O_WRONLY | O_CREAT, 0600);
        assert_true(fd >= 0);
        assert_int_equal(ftruncate(fd, HEADER + 1), 0);
        close(fd);
    }
    store *s = open_store(o);
    assert_int_equal(stats(s).disk_blocks, NAMES);
    uint8_t key[STORE_KEY] = {0xaa};
    atomic_int nulls = 0;
    for (int i = 0; i < READS; i++) {
        key[31] = (uint8_t)i;
        assert_true(store_read(s, key, count_null, &nulls));
    }
    store_close(s);
    assert_int_equal(nulls, READS);
    assert_int_equal(warnings, 20); /* of a minute */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_memory, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_least_recently_used, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_disk_alone, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_both, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_finish, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_limit, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_no_slot_is_clean, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_pinned, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_pinned_files, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_close_finishes, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_identity, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_lock, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_refused, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_default_limit, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_flipped_bits, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_lengths, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_damage_while_open, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_damage_read_by_many, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_leftovers, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_hostile_folder, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_lock_is_a_link, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_failing_writes, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_deleted_folder, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_read_only_folder, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_storm, setup, remove_folder),
        cmocka_unit_test(test_like_keys),
        cmocka_unit_test_setup_teardown(test_many_damaged, setup, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
