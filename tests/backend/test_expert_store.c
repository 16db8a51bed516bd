/* The cache of streamed experts: what it holds, what it lets go, what it reads ahead, and what it says when it cannot. */
#include "random_model.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "backend/cpu/expert_store.h"
#include "backend/file_reads.h"
#include "base/file.h"

enum { LAYERS = 4, EXPERTS = 8 }; /* layer 0 has no experts */

/* Experts in a file of their own, mapped. */
typedef struct fixture {
    char path[64];
    uint8_t *image;
    size_t bytes;
    file_map map;
    weight_file file;
    arena memory;
    weight w[LAYERS][EXPERT_PARTS][EXPERTS];
    cpu_linear linear[LAYERS][EXPERT_PARTS][EXPERTS], packed[LAYERS][EXPERT_PARTS][EXPERTS];
    expert_layer layer[LAYERS];
    expert_store *store;
} fixture;

static size_t append(fixture *f, const void *data, size_t bytes)
{
    size_t at = f->bytes;
    f->image = realloc(f->image, at + bytes + 1);
    assert_non_null(f->image);
    if (bytes) memcpy(f->image + at, data, bytes);
    f->bytes += bytes;
    return at;
}

static void write_image(const fixture *f, size_t bytes)
{
    FILE *out = fopen(f->path, "r+b");
    assert_non_null(out);
    assert_int_equal(ftruncate(fileno(out), 0), 0);
    assert_int_equal(fwrite(f->image, 1, bytes, out), bytes);
    assert_int_equal(fclose(out), 0);
}

/* Three formats; 72 rows are no whole number of packed groups, and nothing in the file is aligned. */
static void fixture_make(fixture *f)
{
    *f = (fixture){.path = "/tmp/hayate-test-XXXXXX"};
    int fd = mkstemp(f->path);
    assert_true(fd >= 0);
    close(fd);
    append(f, "some bytes in front", 19);
    size_t data[LAYERS][EXPERT_PARTS][EXPERTS], scales[LAYERS][EXPERT_PARTS][EXPERTS];
    const weight_format formats[LAYERS] = {WEIGHT_NONE, WEIGHT_NVFP4, WEIGHT_MXFP8, WEIGHT_BF16};
    for (int l = 1; l < LAYERS; l++)
        for (int e = 0; e < EXPERTS; e++)
            for (int p = 0; p < EXPERT_PARTS; p++) {
                weight w = random_weight(&f->memory, formats[l], p == 2 ? 128 : 72, p == 2 ? 96 : 128, 0.1f, true);
                data[l][p][e] = append(f, w.data, (size_t)w.rows * weight_row_data(&w));
                scales[l][p][e] = append(f, w.scales, (size_t)w.rows * weight_row_scales(&w));
                f->w[l][p][e] = w;
            }
    write_image(f, f->bytes);
    hy_error err = {0};
    check(file_map_open(f->path, &f->map, &err), &err);
    f->file = (weight_file){f->path, f->map.data, f->map.size};
    threads *pool = NULL;
    check(threads_open(1, &pool, &err), &err);
    for (int l = 1; l < LAYERS; l++)
        for (int p = 0; p < EXPERT_PARTS; p++) {
            for (int e = 0; e < EXPERTS; e++) {
                weight *w = &f->w[l][p][e];
                check(cpu_linear_pack(w, "a test", pool, NULL, 0, &f->packed[l][p][e], &err), &err);
                check(cpu_linear_shape(w, "a test", &f->linear[l][p][e], &err), &err);
                w->data = f->map.data + data[l][p][e];
                if (w->scales) w->scales = f->map.data + scales[l][p][e];
            }
            f->layer[l].w[p] = f->w[l][p];
            f->layer[l].linear[p] = f->linear[l][p];
        }
    threads_close(pool);
}

static void fixture_free(fixture *f)
{
    expert_store_close(f->store);
    for (int l = 1; l < LAYERS; l++)
        for (int p = 0; p < EXPERT_PARTS; p++)
            for (int e = 0; e < EXPERTS; e++) {
                assert_null(f->linear[l][p][e].data);
                cpu_linear_free(&f->packed[l][p][e]);
            }
    file_map_close(&f->map);
    unlink(f->path);
    free(f->image);
    arena_free(&f->memory);
}

static const expert_store_options usual = {.chunk = 4000};

static void store_open(fixture *f, const expert_store_options *options, int slots)
{
    hy_error err = {0};
    fixture_make(f);
    check(expert_store_open(f->layer, LAYERS, EXPERTS, &f->file, 1, options, &f->store, &err), &err);
    check(expert_store_resize(f->store, (uint64_t)slots * expert_store_slot_bytes(f->store), &err), &err);
}

static hy_expert_stats stats(const fixture *f)
{
    hy_expert_stats s;
    expert_store_stats(f->store, &s);
    return s;
}

/* What an expert's linears point to is what packing the whole weight gives. */
static void check_expert(const fixture *f, int l, int e)
{
    for (int p = 0; p < EXPERT_PARTS; p++) {
        assert_non_null(f->linear[l][p][e].data);
        assert_memory_equal(f->linear[l][p][e].data, f->packed[l][p][e].data, cpu_linear_bytes(&f->packed[l][p][e]));
    }
}

/* A layer from want to the last release. */
static void walk(const fixture *f, int l, const int32_t *wanted, int count)
{
    hy_error err = {0};
    expert_store_want(f->store, l, wanted, count);
    for (int from = 0, end; from < count; from = end) {
        check(expert_store_take(f->store, from, &end, &err), &err);
        assert_true(end > from && end <= count);
        for (int i = from; i < end; i++) check_expert(f, l, wanted[i]);
        expert_store_release(f->store, from, end);
    }
}

#define WALK(f, l, ...) \
    walk(f, l, (const int32_t[]){__VA_ARGS__}, (int)(sizeof(int32_t[]){__VA_ARGS__} / sizeof(int32_t)))

static void wait_loaded(const fixture *f, uint64_t count)
{
    for (int i = 0; i < 60000 && stats(f).loaded < count; i++) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    assert_int_equal(stats(f).loaded, count);
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* What the kernel refuses in this process; NULL: nothing. */
static const char *refused;

static void every_path(void **state)
{
    (void)state;
    for (int io = EXPERT_IO_AUTO; io <= EXPERT_IO_PREAD; io++)
        for (int cached = 0; cached < 2; cached++)
            for (int readers = 0; readers < 2; readers++) {
                fixture f;
                expert_store_options o = {.io = (expert_io)io, .cached = cached, .readers = readers, .chunk = 4000};
                if (io == EXPERT_IO_URING && !read_queue_uring_works()) continue;
                store_open(&f, &o, 3 * EXPERTS);
                for (int l = 1; l < LAYERS; l++) WALK(&f, l, 0, 1, 2, 3, 4, 5, 6, 7);
                for (int l = 1; l < LAYERS; l++) WALK(&f, l, 1, 7);
                hy_expert_stats s = stats(&f);
                assert_int_equal(s.misses, 3 * EXPERTS);
                assert_int_equal(s.hits, 6);
                assert_int_equal(s.loaded, 3 * EXPERTS);
                assert_int_equal(s.experts, 3 * EXPERTS);
                assert_int_equal(s.evicted, 0);
                assert_int_equal(s.bytes_read, f.bytes - 19);
                assert_true(cached ? !strstr(s.io, "direct") : 1);
                assert_true(io == EXPERT_IO_PREAD ? !strstr(s.io, "uring") : 1);
                assert_true(io == EXPERT_IO_URING ? strstr(s.io, "uring") != NULL : 1);
                if (io == EXPERT_IO_AUTO) assert_true((strstr(s.io, "uring") != NULL) == read_queue_uring_works());
                assert_true(refused ? !strstr(s.io, "uring") : 1);
                fixture_free(&f);
            }
}

static void pieces(void **state)
{
    (void)state;
    fixture f;
    hy_error err = {0};
    read_files *files = NULL;
    fixture_make(&f);
    uint8_t *out = malloc(f.bytes);
    for (int direct = 0; direct < 2; direct++) {
        check(read_files_open(&f.file, 1, direct, &files, &err), &err);
        read_piece whole = {.bytes = f.bytes}, part = {.offset = 4095, .bytes = 2}, beyond = {.offset = 1, .bytes = f.bytes};
        check(read_files_piece(files, &whole, out, &err), &err);
        assert_memory_equal(out, f.image, f.bytes);
        check(read_files_piece(files, &part, out, &err), &err);
        assert_memory_equal(out, f.image + 4095, 2);
        assert_int_equal(read_files_piece(files, &beyond, out, &err), HY_FAILED);
        assert_non_null(strstr(err.message, "was cut"));
        read_files_close(files);
    }
    /* The end that is told is the file's own, not that of the last whole block. */
    for (int direct = 0; direct < 2; direct++) {
        read_piece far = {.offset = 3 * 4096 + 5, .bytes = 2};
        write_image(&f, f.bytes);
        check(read_files_open(&f.file, 1, direct, &files, &err), &err);
        write_image(&f, 1000);
        assert_int_equal(read_files_piece(files, &far, out, &err), HY_FAILED);
        if (!strstr(err.message, "ends at byte 1000, before the weights at 12295")) fail_msg("%s", err.message);
        read_files_close(files);
        write_image(&f, f.bytes);
    }
    f.file.bytes++;
    assert_int_equal(read_files_open(&f.file, 1, true, &files, &err), HY_FAILED);
    assert_non_null(strstr(err.message, "changed"));
    free(out);
    fixture_free(&f);
}

/* A file that was cut fails what lies behind the cut, says so, and works again when it is whole again. */
static void cut_file(void **state)
{
    (void)state;
    for (int io = EXPERT_IO_AUTO; io <= EXPERT_IO_PREAD; io += EXPERT_IO_PREAD) {
        fixture f;
        hy_error err = {0};
        int end = -1;
        store_open(&f, &(expert_store_options){.io = (expert_io)io, .chunk = 4000}, 6);
        write_image(&f, f.bytes / 2);
        WALK(&f, 1, 0, 1);
        expert_store_want(f.store, 3, (int32_t[]){5, 6, 7}, 3);
        assert_int_equal(expert_store_take(f.store, 0, &end, &err), HY_FAILED);
        assert_non_null(strstr(err.message, f.path));
        assert_non_null(strstr(err.message, "was cut"));
        expert_store_ahead(f.store, 3, (int32_t[]){4}, 1);
        WALK(&f, 1, 0, 1);
        write_image(&f, f.bytes);
        bool works = false; /* reads of the failure may still be under way for a moment */
        for (int i = 0; i < 60000 && !works; i++) {
            expert_store_want(f.store, 3, (int32_t[]){5, 6, 7}, 3);
            works = expert_store_take(f.store, 0, &end, &err) == HY_OK;
            if (works) expert_store_release(f.store, 0, end);
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
        assert_true(works);
        WALK(&f, 3, 4, 5, 6, 7);
        fixture_free(&f);
    }
}

static void damaged_scale(void **state)
{
    (void)state;
    fixture f;
    hy_error err = {0};
    int end;
    store_open(&f, &usual, 4);
    size_t at = (size_t)(f.w[1][1][3].scales - f.map.data) + 5;
    f.image[at] = 0x7F;
    write_image(&f, f.bytes);
    WALK(&f, 1, 2);
    expert_store_want(f.store, 1, (int32_t[]){2, 3}, 2);
    hy_status status = expert_store_take(f.store, 0, &end, &err);
    if (status == HY_OK) { /* expert 2 was there alone */
        assert_int_equal(end, 1);
        expert_store_release(f.store, 0, end);
        status = expert_store_take(f.store, 1, &end, &err);
    }
    assert_int_equal(status, HY_BAD_MODEL);
    assert_non_null(strstr(err.message, "layer 1, expert 3"));
    fixture_free(&f);
}

static void refusals(void **state)
{
    (void)state;
    fixture f;
    hy_error err = {0};
    expert_store *store = NULL;
    fixture_make(&f);
    weight_file other = {f.path, f.map.data, 100};
    assert_int_equal(expert_store_open(f.layer, LAYERS, EXPERTS, &other, 1, &usual, &store, &err), HY_UNSUPPORTED);
    f.file.path = "/nowhere/at/all";
    assert_int_equal(expert_store_open(f.layer, LAYERS, EXPERTS, &f.file, 1, &usual, &store, &err), HY_FAILED);
    assert_non_null(strstr(err.message, "/nowhere/at/all"));
    assert_null(store);
    fixture_free(&f);
}

/* ---- Slots ------------------------------------------------------------------------------------------------------- */

/* More are wanted than there are slots: they come in ascending groups. */
static void few_slots(void **state)
{
    (void)state;
    for (int slots = 1; slots < 5; slots++) {
        fixture f;
        store_open(&f, &usual, slots);
        for (int i = 0; i < 3; i++)
            for (int l = 1; l < LAYERS; l++) WALK(&f, l, 0, 1, 2, 3, 4, 5, 6, 7);
        assert_int_equal(stats(&f).slots, slots);
        assert_true(stats(&f).evicted > 0);
        fixture_free(&f);
    }
}

static void pins(void **state)
{
    (void)state;
    fixture f;
    hy_error err = {0};
    int end, second;
    store_open(&f, &usual, 2);
    expert_store_want(f.store, 1, (int32_t[]){1, 3, 5, 7}, 4);
    check(expert_store_take(f.store, 0, &end, &err), &err);
    assert_true(end <= 2);
    if (end < 2) {
        check(expert_store_take(f.store, end, &second, &err), &err);
        assert_int_equal(second, 2);
    }
    /* Both slots are pinned: nothing can come in, whoever asks. */
    uint64_t loaded = stats(&f).loaded;
    expert_store_ahead(f.store, 2, (int32_t[]){0, 1, 2}, 3);
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    assert_int_equal(stats(&f).loaded, loaded);
    check_expert(&f, 1, 1);
    check_expert(&f, 1, 3);
    expert_store_release(f.store, 0, 2);
    for (int from = 2; from < 4; from = end) {
        check(expert_store_take(f.store, from, &end, &err), &err);
        for (int i = from; i < end; i++) check_expert(&f, 1, 1 + 2 * i);
        expert_store_release(f.store, from, end);
    }
    fixture_free(&f);
}

/* What is used often stays; among the others the layer that was just passed goes first. */
static void eviction(void **state)
{
    (void)state;
    fixture f;
    store_open(&f, &usual, 4);
    for (int i = 0; i < 5; i++) WALK(&f, 1, 0, 1);
    WALK(&f, 1, 2);
    WALK(&f, 1, 3);
    uint64_t misses = stats(&f).misses;
    assert_int_equal(misses, 4);
    WALK(&f, 1, 4); /* 2 was used before 3 */
    WALK(&f, 1, 0, 1);
    WALK(&f, 1, 3);
    assert_int_equal(stats(&f).misses, misses + 1);
    WALK(&f, 1, 2);
    assert_int_equal(stats(&f).misses, misses + 2);
    assert_int_equal(stats(&f).evicted, 2);
    hy_error err = {0};
    check(expert_store_resize(f.store, 3 * expert_store_slot_bytes(f.store), &err), &err);
    misses = stats(&f).misses;
    WALK(&f, 1, 5);
    WALK(&f, 2, 5);
    WALK(&f, 3, 5); /* equal uses in one step: layer 3 comes last from layer 1 on, but 2 has been passed from 3 on */
    WALK(&f, 1, 5);
    WALK(&f, 2, 5);
    assert_int_equal(stats(&f).misses, misses + 3);
    fixture_free(&f);
}

static void look_ahead(void **state)
{
    (void)state;
    fixture f;
    store_open(&f, &usual, 4);
    WALK(&f, 1, 0);
    expert_store_ahead(f.store, 2, (int32_t[]){1, 2, 3}, 3);
    wait_loaded(&f, 4);
    WALK(&f, 2, 2, 3, 4); /* 1 was a wrong guess, 4 was not guessed */
    hy_expert_stats s = stats(&f);
    assert_int_equal(s.ahead_reads, 3);
    assert_int_equal(s.ahead_hits, 2);
    assert_int_equal(s.hits, 2);
    assert_int_equal(s.misses, 2);
    WALK(&f, 2, 2, 3); /* counted once: now they are there by use */
    assert_int_equal(stats(&f).ahead_hits, 2);
    /* Guesses for another layer give way to what is wanted, however many there are. */
    expert_store_ahead(f.store, 3, (int32_t[]){0, 1, 2, 3, 4, 5, 6, 7}, 8);
    WALK(&f, 2, 0, 1, 2, 3, 4, 5, 6, 7);
    WALK(&f, 3, 0, 7);
    fixture_free(&f);
}

/* Random wishes and guesses on few slots, pinned experts checked byte by byte. */
static void at_random(void **state)
{
    (void)state;
    for (int round = 0; round < 4; round++) {
        fixture f;
        expert_store_options o = {.io = round % 2 ? EXPERT_IO_PREAD : EXPERT_IO_AUTO, .chunk = 3000};
        store_open(&f, &o, 1 + round * 4);
        for (int i = 0; i < 200; i++) {
            int32_t wanted[EXPERTS], guess[EXPERTS];
            int l = 1 + i % 3, n = 0, guesses = 0;
            for (int e = 0; e < EXPERTS; e++) {
                if (random_below(3) == 0) wanted[n++] = e;
                if (random_below(3) == 0) guess[guesses++] = e;
            }
            hy_error err = {0};
            if (!n) continue;
            expert_store_want(f.store, l, wanted, n);
            if (l < 3) expert_store_ahead(f.store, l + 1, guess, guesses);
            for (int from = 0, end; from < n; from = end) {
                check(expert_store_take(f.store, from, &end, &err), &err);
                for (int k = from; k < end; k++) check_expert(&f, l, wanted[k]);
                expert_store_release(f.store, from, end);
            }
        }
        hy_error err = {0};
        expert_store_ahead(f.store, 3, (int32_t[]){0, 1}, 2); /* closing and resizing wait for what is under way */
        if (round == 1) check(expert_store_resize(f.store, 0, &err), &err);
        fixture_free(&f);
    }
}

/* ---- A kernel that refuses ---------------------------------------------------------------------------------------- */

enum { URING_SETUP = 425, URING_ENTER = 426, URING_LAST = 427 };

/* From now on io_uring's calls from number `first` on fail with `error` in all threads, as in a container whose filter
 * leaves them out, or with kernel.io_uring_disabled. False: this kernel has no filters for us. */
static bool refuse(unsigned first, unsigned error)
{
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, first, 0, 2),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, URING_LAST, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof program / sizeof *program, program};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0;
}

/* Rings that work when the store opens and are refused later: what was asked for comes by plain reads. */
static void refused_while_open(void **state)
{
    (void)state;
    fixture f;
    store_open(&f, &(expert_store_options){.chunk = 4000}, 5);
    for (int l = 1; l < LAYERS; l++) WALK(&f, l, 0, 1, 2);
    if (!strstr(stats(&f).io, "uring"))
        print_message("nothing to refuse: this store reads without io_uring\n");
    else if (!refuse(URING_ENTER, EPERM))
        print_message("not refused: no filters for system calls here (%s)\n", strerror(errno));
    for (int i = 0; i < 2; i++)
        for (int l = 1; l < LAYERS; l++) WALK(&f, l, 0, 1, 2, 3, 4, 5, 6, 7);
    fixture_free(&f);
}

static int run_all(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_path), cmocka_unit_test(pieces),     cmocka_unit_test(cut_file),
        cmocka_unit_test(damaged_scale), cmocka_unit_test(refusals), cmocka_unit_test(few_slots),
        cmocka_unit_test(pins),       cmocka_unit_test(eviction),   cmocka_unit_test(look_ahead),
        cmocka_unit_test(at_random),
        };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The same in a process of its own, since a filter stays. */
static int run_refused(const char *what, unsigned first, unsigned error)
{
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        const struct CMUnitTest later[] = {cmocka_unit_test(refused_while_open)};
        if (!what) exit(cmocka_run_group_tests(later, NULL, NULL));
        if (!refuse(first, error)) {
            printf("skipped: %s, no filters for system calls here (%s)\n", what, strerror(errno));
            exit(0);
        }
        printf("refused: %s\n", what);
        refused = what;
        exit(run_all());
    }
    return pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status);
}

int main(void)
{
    int failed = run_all();
    failed += run_refused("setting up a ring, not permitted", URING_SETUP, EPERM);
    failed += run_refused("setting up a ring, unknown", URING_SETUP, ENOSYS);
    failed += run_refused("using a ring", URING_ENTER, EPERM);
    failed += run_refused(NULL, 0, 0);
    return failed;
}
