/* A process that writes blocks is killed at any moment, fifty times over one folder: every block that is read
 * afterwards is whole and the right one. */
#include "store_check.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

enum { KILLS = 50, KEYS = 400, FILES = 60, ROW = 64 * 1024, FILE_BYTES = ROW + 128 };

static store_options options(void)
{
    return (store_options){.row_bytes = ROW,
                           .memory_bytes = 4 * ROW,
                           .folder = folder,
                           .disk_bytes = (uint64_t)FILES * FILE_BYTES,
                           .identity = {9, 8, 7}};
}

static void ignore_row(void *user, const void *row, store_place from)
{
    (void)user, (void)row, (void)from;
}

/* Puts and reads for ever: the limit is met, so that files are also removed. */
static void write_for_ever(uint32_t x)
{
    store_options o = options();
    store *s = NULL;
    if (store_open(&o, &s, NULL) != HY_OK) _exit(9);
    for (;;) {
        uint8_t key[STORE_KEY];
        x = x * 1664525u + 1013904223u;
        put(s, (x >> 8) % KEYS, ROW);
        make_key((x >> 12) % KEYS, key);
        if ((x >> 28) == 0) store_read(s, key, ignore_row, NULL);
    }
}

static void test_kill(void **state)
{
    (void)state;
    store_options o = options();
    uint64_t blocks = 0;
    uint32_t x = 12345;
    int leftovers = 0;
    for (int round = 0; round < KILLS; round++) {
        x = x * 1664525u + 1013904223u;
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) write_for_ever(x);
        usleep(2000 + (x >> 8) % 40000);
        assert_int_equal(kill(child, SIGKILL), 0);
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status)); /* it had not ended by itself */
        char command[1200];
        snprintf(command, sizeof command, "find '%s' -name '*.part' | grep -q .", folder);
        leftovers += system(command) == 0;

        store *s = NULL;
        OK(store_open(&o, &s, &err)); /* nobody holds the lock */
        assert_true(system(command) != 0);
        for (uint64_t i = 0; i < KEYS; i++) {
            int got = read_block(s, i, ROW);
            if (got == READ_WRONG || got == READ_GONE) fail_msg("round %d, block %d: %d", round, (int)i, got);
            blocks += got == READ_DISK;
        }
        assert_int_equal(stats(s).damaged, 0);
        assert_true(stats(s).disk_blocks <= FILES);
        store_close(s);
    }
    print_message("%d kills, %d with an unfinished file, %d blocks read\n", KILLS, leftovers, (int)blocks);
    assert_true(blocks > KILLS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_kill, make_folder, remove_folder)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
