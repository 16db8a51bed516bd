/* driver.c over the libcuda.so.1 of fake_cuda.c, which CTest puts into LD_LIBRARY_PATH. */
#include "backend/random_model.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include "base/file.h"

#include "backend/cuda/fatbins.h"
#include "backend/cuda/gpu.h"
#include "backend/cuda/upload.h"
#include "backend/fake_cuda.h"

static fake_cuda_state *fake;

static gpu *open_gpu(void)
{
    gpu *g = NULL;
    hy_error err = {0};
    *fake = (fake_cuda_state){.devices = 1, .memory = 64 << 20};
    check(gpu_driver_open(&g, &err), &err);
    return g;
}

static void close_gpu(gpu *g)
{
    g->calls->close(g);
    assert_int_equal(fake->allocations, 0);
    assert_int_equal(fake->modules, 0);
}

static void refused(hy_status as, const char *part)
{
    gpu *g = NULL;
    hy_error err = {0};
    assert_int_equal(gpu_driver_open(&g, &err), as);
    assert_non_null(strstr(err.message, part));
    assert_null(g);
}

static void test_what_is_refused(void **state)
{
    (void)state;
    *fake = (fake_cuda_state){.devices = 0};
    refused(HY_FAILED, "no GPU");
    *fake = (fake_cuda_state){.devices = 1, .other_gpu = true};
    refused(HY_UNSUPPORTED, "the GPU a fake is sm_90");
}

static void *take(gpu *g, size_t bytes)
{
    void *device = NULL;
    hy_error err = {0};
    check(g->calls->alloc(g, bytes, "a test", &device, &err), &err);
    return device;
}

static uint8_t *random_bytes(size_t n)
{
    uint8_t *x = malloc(n);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = (uint8_t)random_bits();
    return x;
}

static void test_memory(void **state)
{
    (void)state;
    gpu *g = open_gpu();
    gpu_info info;
    g->calls->info(g, &info);
    assert_string_equal(info.name, "a fake");
    assert_int_equal(info.processors, 132);
    assert_int_equal(info.memory, 64 << 20);
    /* More than all pinned slots hold, so that each is used several times. */
    size_t bytes = (45 << 20) + 13;
    uint8_t *host = random_bytes(bytes), *back = malloc(bytes);
    uint8_t *a = take(g, bytes), *b = take(g, bytes);
    g->calls->read(g, a, back, bytes);
    for (size_t i = 0; i < bytes; i += 4093) assert_int_equal(back[i], 0);
    g->calls->write(g, a, host, bytes);
    g->calls->copy(g, b, a, bytes);
    g->calls->fill(g, a, 7, 5);
    g->calls->read(g, b, back, bytes);
    assert_memory_equal(back, host, bytes);
    g->calls->read(g, a, back, 6);
    assert_memory_equal(back, "\7\7\7\7\7", 5);
    assert_int_equal(back[5], host[5]);
    /* The host's memory is free again at once. */
    uint8_t small[3] = {1, 2, 3};
    g->calls->write(g, a, small, 3);
    memset(small, 9, 3);
    g->calls->read(g, a, back, 3);
    assert_memory_equal(back, "\1\2\3", 3);

    void *none = NULL;
    hy_error err = {0};
    assert_int_equal(g->calls->alloc(g, 65 << 20, "the cache", &none, &err), HY_NO_FIT);
    assert_string_equal(err.message, "the cache takes 68.2 MB of the GPU's memory, which has 67.1 MB free");
    check(g->calls->wait(g, &err), &err); /* that was no error of the GPU */
    g->calls->free(g, a);
    g->calls->free(g, b);
    free(host);
    free(back);
    close_gpu(g);
}

typedef struct visitor {
    gpu *g;
    uint8_t *device;
    uint8_t seen[64];
} visitor;

static void *visit(void *arg)
{
    visitor *v = arg;
    v->g->calls->read_beside(v->g, v->device, v->seen, sizeof v->seen);
    v->g->calls->write_beside(v->g, v->device, "beside", 6);
    return NULL;
}

/* Another thread sees what was written before, and what it writes is there when it returns. */
static void test_beside(void **state)
{
    (void)state;
    gpu *g = open_gpu();
    visitor v = {.g = g, .device = take(g, 64)};
    uint8_t *from = take(g, 64), back[64];
    pthread_t thread;
    g->calls->fill(g, from, 42, 64);
    g->calls->copy(g, v.device, from, 64);
    assert_int_equal(pthread_create(&thread, NULL, visit, &v), 0);
    pthread_join(thread, NULL);
    for (int i = 0; i < 64; i++) assert_int_equal(v.seen[i], 42);
    g->calls->read(g, v.device, back, 64);
    assert_memory_equal(back, "beside*", 7);
    g->calls->free(g, v.device);
    g->calls->free(g, from);
    close_gpu(g);
}

static void test_launches(void **state)
{
    (void)state;
    gpu *g = open_gpu();
    hy_error err = {0};
    const gpu_kernel *k = g->calls->kernel(g, "hy_one"), *two = g->calls->kernel(g, "hy_two");
    assert_non_null(k);
    assert_ptr_equal(g->calls->kernel(g, "hy_one"), k);
    assert_ptr_not_equal(two, k);
    uint64_t args[3] = {1, 2, 3};
    for (int i = 0; i < 3; i++) {
        args[2] = (uint64_t)i;
        g->calls->launch(g, k, (const int[3]){3, 2, 1}, 64, i == 1 ? 100000 : 1000, args, sizeof args);
        check(g->calls->wait(g, &err), &err);
        assert_int_equal(fake->launches, i + 1);
        assert_int_equal(fake->threads, 3 * 2 * 64);
        assert_memory_equal(fake->parameters, args, sizeof args);
    }
    assert_int_equal(fake->shared, 100000);
    assert_null(g->calls->kernel(g, "other"));
    assert_int_equal(g->calls->wait(g, &err), HY_FAILED);
    assert_string_equal(err.message, "this program carries no kernel other");
    close_gpu(g);
}

/* `count` launches, one of which has `differs` for a parameter. */
static void launch_some(gpu *g, int count, int differs)
{
    hy_error err = {0};
    const gpu_kernel *k = g->calls->kernel(g, "hy_one");
    for (int i = 0; i < count; i++) {
        int args[3] = {1, 2, i == 5 ? differs : 0};
        g->calls->launch(g, k, (const int[3]){i + 1, 1, 1}, 32, 0, args, sizeof args);
    }
    check(g->calls->wait(g, &err), &err);
}

/* A list of launches that comes for the third time is a graph, and another one is not taken for it. */
static void test_graphs(void **state)
{
    (void)state;
    gpu *g = open_gpu();
    for (int i = 0; i < 6; i++) launch_some(g, 20, 0);
    assert_int_equal(fake->launches, 120);
    assert_int_equal(fake->graph_launches, 4);
    launch_some(g, 20, 1);
    launch_some(g, 19, 0);
    assert_int_equal(fake->launches, 159);
    assert_int_equal(fake->graph_launches, 4);
    launch_some(g, 20, 0);
    assert_int_equal(fake->graph_launches, 5);
    for (int i = 0; i < 9; i++) launch_some(g, 3, 0); /* too few */
    assert_int_equal(fake->graphs, 1);
    for (int i = 0; i < 300; i++) launch_some(g, 20, i / 3); /* more than are remembered */
    assert_int_equal(fake->launches, 159 + 20 + 27 + 6000);
    assert_true(fake->graphs <= 32);
    fake->no_graphs = true;
    for (int i = 0; i < 5; i++) launch_some(g, 20, 1000);
    assert_int_equal(fake->launches, 159 + 20 + 27 + 6100);
    close_gpu(g);
    assert_int_equal(fake->graphs, 0);
}

/* Launches that are recorded happen, and again at every replay, as a graph with its marks if there can be one. */
static void test_records(void **state)
{
    (void)state;
    gpu *g = open_gpu();
    hy_error err = {0};
    for (int run = 0; run < 3; run++) {
        int count = 0, before = fake->launches;
        bool graph = false, all = run == 0;
        fake->no_events = run == 2;
        g->calls->record(g, run == 1 ? "hy_one" : NULL, false);
        if (!all) g->calls->mark(g, 3);
        const gpu_kernel *one = g->calls->kernel(g, "hy_one"), *two = g->calls->kernel(g, "hy_two");
        g->calls->launch(g, one, (const int[3]){1, 1, 1}, 32, 0, &run, sizeof run);
        g->calls->launch(g, two, (const int[3]){1, 1, 1}, 64, 0, &run, sizeof run);
        if (!all) g->calls->mark(g, 5);
        gpu_record *record = g->calls->recorded(g, &count, &graph);
        check(g->calls->wait(g, &err), &err);
        assert_int_equal(fake->launches - before, 2);
        assert_non_null(record);
        assert_int_equal(count, run == 1 ? 1 : 2);
        assert_int_equal(graph, run != 2);
        int graphs = fake->graph_launches, events = fake->events;
        for (int i = 0; i < 4; i++) g->calls->replay(g, record);
        check(g->calls->wait(g, &err), &err);
        assert_int_equal(fake->launches - before, 2 + 4 * count);
        assert_int_equal(fake->graph_launches - graphs, run == 2 ? 0 : 4);
        assert_int_equal(fake->events - events, all ? 0 : 8);
        if (!all) assert_float_equal(g->calls->between(g, 3, 5), 1e-3 * count, 1e-9);
        g->calls->forget(g, record);
        g->calls->forget(g, NULL);
    }
    assert_int_equal(fake->graphs, 0);
    int count = 0, i = 7;
    bool graph = false;
    fake->no_events = false;
    g->calls->record(g, NULL, true);
    const gpu_kernel *two = g->calls->kernel(g, "hy_two");
    for (int n = 0; n < 3; n++) g->calls->launch(g, two, (const int[3]){1, 1, 1}, 64, 0, &i, sizeof i);
    gpu_record *record = g->calls->recorded(g, &count, &graph);
    int events = fake->events;
    g->calls->replay(g, record);
    check(g->calls->wait(g, &err), &err);
    assert_true(count == 3 && graph);
    assert_int_equal(fake->events - events, 4);
    assert_string_equal(g->calls->launched(record, 2), "hy_two");
    assert_true(g->calls->between(g, 0, 3) > 0);
    g->calls->forget(g, record);
    uint8_t *to = take(g, 20 << 20);
    g->calls->link(g, to, 20 << 20);
    check(g->calls->wait(g, &err), &err);
    g->calls->free(g, to);
    gpu_info info;
    g->calls->info(g, &info);
    assert_int_equal(info.cache, 60 << 20);
    assert_float_equal(info.clock, 1.98e9, 1);
    assert_string_equal(info.cuda, "13.1");
    assert_non_null(info.archs);
    close_gpu(g);
}

/* The first error stays, and nothing is done from then on. */
static void test_fault(void **state)
{
    (void)state;
    gpu *g = open_gpu();
    hy_error err = {0};
    uint8_t *a = take(g, 64), host[64] = {5};
    const gpu_kernel *k = g->calls->kernel(g, "hy_one");
    fake->fault_at_launch = 700;
    g->calls->launch(g, k, (const int[3]){1, 1, 1}, 32, 0, host, 8);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(g->calls->wait(g, &err), HY_FAILED);
        assert_string_equal(err.message,
                            "a step on the GPU failed: CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was "
                            "encountered); the last kernel launched was hy_one");
    }
    fake->fault = 0;
    fake->fault_at_launch = 0;
    g->calls->read(g, a, host, 64);
    assert_int_equal(host[0], 5);
    g->calls->launch(g, k, (const int[3]){1, 1, 1}, 32, 0, host, 8);
    assert_int_equal(fake->launches, 1);
    void *none = NULL;
    assert_int_equal(g->calls->alloc(g, 64, "a test", &none, &err), HY_FAILED);
    g->calls->free(g, a);
    close_gpu(g);
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

/* Both halves of two lanes in turn, read behind all of it. */
static void test_lanes(void **state)
{
    (void)state;
    enum { PIECES = 24, BYTES = 100003 };
    gpu *g = open_gpu();
    uint8_t *device = take(g, PIECES * BYTES), *host = random_bytes(PIECES * BYTES), *back = malloc(PIECES * BYTES);
    hy_error err = {0};
    check(g->calls->lanes_open(g, 2, &err), &err);
    for (int i = 0; i < PIECES; i++) {
        uint8_t *half = g->calls->lane_take(g, i % 2);
        assert_int_equal((uintptr_t)half % 4096, 0);
        memcpy(half + 5, host + i * BYTES, BYTES);
        g->calls->lane_send(g, i % 2, device + i * BYTES, half + 5, BYTES);
    }
    g->calls->lanes_join(g);
    g->calls->read(g, device, back, PIECES * BYTES);
    assert_memory_equal(back, host, PIECES * BYTES);
    g->calls->lanes_close(g);
    check(g->calls->lanes_open(g, 1, &err), &err); /* what is left open is closed with the GPU */
    fake->fault = 700;
    assert_null(g->calls->lane_take(g, 0));
    fake->fault = 0;
    g->calls->free(g, device);
    free(host), free(back);
    close_gpu(g);
}

/* Pieces of a file and of memory, of all sizes, with several threads; then a file that ends too early, and a wish to stop. */
static bool stop(void *user, const char *what, uint64_t done, uint64_t total, const char *unit)
{
    (void)what, (void)done, (void)total, (void)unit;
    *(int *)user += 1;
    return false;
}

static void test_upload(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 16, 4095, 4096, 4097, 70001, (4 << 20) - 8192, (4 << 20) + 1, (9 << 20) + 77};
    enum { SIZES = sizeof sizes / sizeof *sizes, BYTES = 24 << 20 };
    gpu *g = open_gpu();
    char name[] = "/tmp/hayate-upload-XXXXXX";
    uint8_t *host = random_bytes(BYTES);
    int fd = mkstemp(name), asked = 0;
    assert_int_equal(write(fd, host, BYTES), BYTES);
    file_map map;
    hy_error err = {0};
    check(file_map_open(name, &map, &err), &err);
    weight_file file = {name, map.data, map.size};
    ops_options options = {.files = &file, .file_count = 1};
    check(threads_open(3, &options.pool, &err), &err);
    progress report = {.total = 1};
    upload *u = NULL;
    for (int memory = 0; memory < 2; memory++) {
        const uint8_t *from = memory ? host : map.data;
        uint8_t *device[SIZES], *back = malloc(BYTES);
        size_t all = 0;
        check(upload_open(g, &options, &report, &u, &err), &err);
        for (int i = 0; i < SIZES; i++) device[i] = take(g, sizes[i] + 16);
        for (int i = 0; i < SIZES; i++, all += sizes[i - 1])
            check(upload_add(u, device[i], from + all + (size_t)i, sizes[i], &err), &err);
        check(upload_run(u, &err), &err);
        check(upload_run(u, &err), &err); /* nothing is left */
        assert_int_equal(upload_bytes(u), all);
        assert_non_null(upload_way(u));
        all = 0;
        for (int i = 0; i < SIZES; i++, all += sizes[i - 1]) {
            g->calls->read(g, device[i], back, sizes[i] + 16);
            assert_memory_equal(back, host + all + i, sizes[i]);
            for (size_t n = 0; n < 16; n++) assert_int_equal(back[sizes[i] + n], 0);
            g->calls->free(g, device[i]);
        }
        upload_close(u);
        free(back);
    }
    uint8_t *device = take(g, BYTES);
    report = (progress){.fn = stop, .user = &asked, .total = BYTES};
    check(upload_open(g, &options, &report, &u, &err), &err);
    check(upload_add(u, device, map.data, BYTES, &err), &err);
    assert_int_equal(upload_run(u, &err), HY_CANCELLED);
    assert_true(asked > 0);
    upload_close(u);
    report = (progress){.total = 1};
    check(upload_open(g, &options, &report, &u, &err), &err);
    assert_int_equal(ftruncate(fd, 8 << 20), 0);
    check(upload_add(u, device, map.data, BYTES, &err), &err);
    assert_int_equal(upload_run(u, &err), HY_FAILED);
    assert_non_null(strstr(err.message, "it was cut while in use"));
    upload_close(u);
    g->calls->free(g, device);
    threads_close(options.pool);
    file_map_close(&map);
    close(fd), unlink(name);
    free(host);
    close_gpu(g);
}

int main(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    fake = library ? dlsym(library, "fake_cuda") : NULL;
    if (!fake || !cuda_fatbins[0].name) {
        printf("skipped: %s\n", fake ? "the program carries no kernels" : "the library is not that of fake_cuda.c");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_refused), cmocka_unit_test(test_memory), cmocka_unit_test(test_beside),
        cmocka_unit_test(test_launches),        cmocka_unit_test(test_graphs), cmocka_unit_test(test_records),
        cmocka_unit_test(test_fault),           cmocka_unit_test(test_lanes),  cmocka_unit_test(test_upload),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
