/* The bounds of a GPU and records of launches: that passes touch every byte once, and loops do what is counted. */
#include "backend/cuda_test.h"

#include "backend/cuda/bench.h"
#include "backend/cuda/kernels/bounds.h"

enum { BLOCKS = 3 };

static void run_pass(gpu *g, const char *name, const void *from, void *to, size_t quads, uint32_t *sums)
{
    bound_pass_args args = {from, to, (int64_t)quads, sums};
    device_run(g, name, BLOCKS, 1, 1, BOUND_THREADS, 0, &args, sizeof args);
}

/* Sizes with a rest behind the eights of a thread, and less than a grid. */
static void test_passes(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, BLOCKS * BOUND_THREADS - 5, BLOCKS * BOUND_THREADS * 8,
                                   BLOCKS * BOUND_THREADS * 19 + 77};
    gpu *g = device_open();
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t words = 4 * sizes[s], bytes = 4 * words;
        void *a = device_take(g, bytes), *b = device_take(g, bytes + 16);
        uint32_t *sums = device_take(g, BLOCKS * sizeof *sums), expected = 0, got = 0;
        run_pass(g, "bound_write", NULL, a, sizes[s], NULL);
        uint32_t *there = device_get(g, a, bytes);
        for (size_t w = 0; w < words; w++) {
            assert_int_equal(there[w], bound_word(w));
            there[w] = (uint32_t)random_bits();
            expected ^= there[w];
        }
        g->calls->write(g, a, there, bytes);
        run_pass(g, "bound_read", a, NULL, sizes[s], sums);
        uint32_t *of_block = device_get(g, sums, BLOCKS * sizeof *sums);
        for (int i = 0; i < BLOCKS; i++) got ^= of_block[i];
        assert_int_equal(got, expected);
        run_pass(g, "bound_copy", a, b, sizes[s], NULL);
        uint8_t *copied = device_get(g, b, bytes + 16);
        assert_memory_equal(copied, there, bytes);
        for (int i = 0; i < 16; i++) assert_int_equal(copied[bytes + i], 0);
        void *device[] = {a, b, sums};
        for (int i = 0; i < 3; i++) g->calls->free(g, device[i]);
        free(there), free(of_block), free(copied);
    }
    g->calls->close(g);
}

/* `sums` of a loop of so many repeats. */
static float *run_loop(gpu *g, const char *name, int32_t count)
{
    size_t bytes = BLOCKS * BOUND_THREADS * sizeof(float);
    bound_loop_args args = {count, device_take(g, bytes), device_take(g, 16)};
    size_t shared = strcmp(name, "bound_wgmma") ? 0 : BOUND_WGMMA_SHARED;
    device_run(g, name, BLOCKS, 1, 1, BOUND_THREADS, shared, &args, sizeof args);
    float *sums = device_get(g, args.sums, bytes);
    uint64_t *clocks = device_get(g, args.clocks, 16);
    assert_true(clocks[0] > 0);
    g->calls->free(g, args.sums), g->calls->free(g, args.clocks);
    free(clocks);
    return sums;
}

/* Sums of products that are exact grow with the repeats: none is left out or done twice. */
static void test_loops(void **state)
{
    (void)state;
    gpu *g = device_open();
    float *one = run_loop(g, "bound_mma", 1), *three = run_loop(g, "bound_mma", 3);
    float *fma_one = run_loop(g, "bound_fma", 1), *fma_two = run_loop(g, "bound_fma", 2);
    int other = 0;
    for (int i = 0; i < BLOCKS * BOUND_THREADS; i++) {
        assert_float_equal(three[i], 3 * one[i], 1e-2); /* the sum of all of a thread's rounds */
        assert_float_equal(one[i], one[i % BOUND_THREADS], 0);
        other += one[i] != one[0];
        /* 0 + 1 + ... + 7 and sixteen times x * y, which the next repeat takes back. */
        assert_float_equal(fma_two[i], 28, 0);
        assert_true(fabsf(fma_one[i] - 28) >= 16 && fabsf(fma_one[i] - 28) < 64);
    }
    assert_true(other > BOUND_THREADS);
    gpu_info info;
    g->calls->info(g, &info);
    if (info.major == 9) { /* 128 sums of 64 products each a repeat */
        float *two = run_loop(g, "bound_wgmma", 2), *four = run_loop(g, "bound_wgmma", 4);
        for (int i = 0; i < BLOCKS * BOUND_THREADS; i++) {
            assert_float_equal(four[i], 2 * two[i], 1e-1);
            assert_float_equal(two[i], two[i % BOUND_THREADS], 0);
        }
        free(two), free(four);
    }
    free(one), free(three), free(fma_one), free(fma_two);
    g->calls->close(g);
}

static void test_bounds(void **state)
{
    (void)state;
    cuda_bench *b = NULL;
    cuda_bounds now;
    hy_error err = {0};
    check(cuda_bench_open(NULL, cuda_test_on_gpu ? 0 : 256 << 10, &b, &err), &err);
    const gpu_info *info = cuda_bench_info(b);
    for (int i = 0; i < 2; i++) {
        check(cuda_bench_bounds(b, &now, &err), &err);
        printf("# %s, %d multiprocessors, %zu bytes of cache: read %.3g, write %.3g, copy %.3g, link %.3g bytes/s; "
               "mma %.3g, wgmma %.3g, fma %.3g operations/s; %.3g Hz\n", info->name, info->processors, info->cache, now.read, now.write,
               now.copy, now.link, now.mma, now.wgmma, now.fma, now.clock);
        double *all[] = {&now.read, &now.write, &now.copy, &now.link, &now.mma, &now.fma, &now.clock, &now.launch};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) assert_true(isfinite(*all[k]) && *all[k] > 0);
        if (cuda_test_on_gpu) { /* no known GPU does more: operations are counted right */
            assert_true(now.mma < 8192.0 * info->processors * fmax(info->clock, now.clock));
            assert_true(now.wgmma < 4096.0 * info->processors * 2.1e9);
            assert_true(now.fma < 1.05 * 256 * info->processors * fmax(info->clock, now.clock));
        }
    }
    cuda_bench_close(b);
}

/* A record runs again on what is in memory, and counts its launches; marks tell its time. */
static void test_records(void **state)
{
    (void)state;
    cuda_bench *b = NULL;
    cuda_record all, some;
    hy_error err = {0};
    check(cuda_bench_open(NULL, 64 << 10, &b, &err), &err);
    cuda_bounds now;
    check(cuda_bench_bounds(b, &now, &err), &err);
    cuda_bench_record(b, NULL);
    cuda_bench_mark(b, 0);
    check(cuda_bench_bounds(b, &(cuda_bounds){0}, &err), &err);
    cuda_bench_mark(b, 1);
    check(cuda_bench_recorded(b, &all, &err), &err);
    assert_int_equal(all.launches, now.wgmma > 0 ? 8 : 7);
    cuda_bench_record(b, "hy_bound_readable,hy_bound_rea");
    check(cuda_bench_bounds(b, &(cuda_bounds){0}, &err), &err);
    check(cuda_bench_recorded(b, &some, &err), &err);
    assert_int_equal(some.launches, 3);
    long before = cuda_emulated_launches("hy_bound_fma");
    for (int i = 0; i < 3; i++) {
        double seconds = 0, read = 0, inner;
        check(cuda_bench_replay(b, i ? &some : &all, &seconds, &read, &err), &err);
        inner = cuda_bench_between(b, 0, 1);
        assert_true(seconds > 0 && read > 0 && inner > 0);
    }
    if (!cuda_test_on_gpu) assert_int_equal(cuda_emulated_launches("hy_bound_fma") - before, 1);
    cuda_bench_forget(b, &all);
    cuda_bench_forget(b, &some);
    cuda_bench_close(b);
}

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_passes), cmocka_unit_test(test_loops),
                                       cmocka_unit_test(test_bounds), cmocka_unit_test(test_records)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
