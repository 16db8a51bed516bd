/* The emulated GPU itself: what it computes, in every order, and that it sees what a kernel or a host does wrong. */
#include "backend/random_model.h"
#include "backend/cuda_emulated.h"
#include "backend/cuda_emulated_test.h"

static const cuda_emulated_order orders[] = {CUDA_EMULATED_FORWARD, CUDA_EMULATED_REVERSE, CUDA_EMULATED_RANDOM};
enum { ORDERS = sizeof orders / sizeof *orders };

static gpu *open_gpu(void)
{
    gpu *g;
    hy_error err = {0};
    check(cuda_emulated_open(&g, &err), &err);
    return g;
}

static void *take(gpu *g, size_t bytes)
{
    void *p;
    hy_error err = {0};
    check(g->calls->alloc(g, bytes, "test memory", &p, &err), &err);
    return p;
}

static void start(gpu *g, const char *name, int blocks, int threads_of, size_t shared, const emulated_test_args *args)
{
    const gpu_kernel *k = g->calls->kernel(g, name);
    assert_non_null(k);
    int grid[3] = {blocks, 1, 1};
    g->calls->launch(g, k, grid, threads_of, shared, args, sizeof *args);
}

static void finish(gpu *g)
{
    hy_error err = {0};
    check(g->calls->wait(g, &err), &err);
}

static void sums(void **state)
{
    (void)state;
    enum { BLOCKS = 5, THREADS = 160 };
    float in[BLOCKS * THREADS], out[BLOCKS * THREADS];
    for (int i = 0; i < BLOCKS * THREADS; i++) in[i] = (float)(i % 97);
    for (int o = 0; o < ORDERS; o++)
        for (int kind = 0; kind < 2; kind++) {
            cuda_emulated.order = orders[o];
            gpu *g = open_gpu();
            emulated_test_args args = {take(g, sizeof out), take(g, sizeof in), 0, kind};
            g->calls->write(g, (void *)args.in, in, sizeof in);
            start(g, "hy_test_sum", BLOCKS, THREADS, 0, &args);
            finish(g);
            g->calls->read(g, args.out, out, sizeof out);
            int wrong = 0;
            for (int b = 0; b < BLOCKS; b++) {
                float sum = 0;
                for (int i = 0; i < THREADS; i++) sum += in[b * THREADS + i];
                for (int i = 0; i < THREADS; i++) wrong += out[b * THREADS + i] != sum;
            }
            if (kind == 0)
                assert_int_equal(wrong, 0);
            else
                assert_true(wrong > 0); /* the barriers are missed */
            g->calls->free(g, args.out);
            g->calls->free(g, (void *)args.in);
            g->calls->close(g);
        }
    assert_true(cuda_emulated_launches("hy_test_sum") == 2 * ORDERS);
}

static void lanes(void **state)
{
    (void)state;
    float out[64][8];
    for (int o = 0; o < ORDERS; o++) {
        cuda_emulated.order = orders[o];
        gpu *g = open_gpu();
        emulated_test_args args = {.out = take(g, sizeof out)};
        start(g, "hy_test_lanes", 1, 64, 0, &args);
        finish(g);
        g->calls->read(g, args.out, out, sizeof out);
        for (int i = 0; i < 64; i++) {
            int lane = i % 32;
            assert_true(out[i][0] == 10);
            assert_true(out[i][1] == (float)((lane + 1) % 32 + 100));
            assert_true(out[i][2] == 16 && out[i][3] == (float)(lane & 1));
            assert_true(out[i][4] == (float)(lane ^ 3));
            assert_true(out[i][5] == (float)i);
            assert_true(out[i][6] == 0x1p-11f + 0x1p-24f);
            assert_true(out[i][7] > 0.5f && out[i][7] < 0.5001f);
        }
        g->calls->free(g, args.out);
        g->calls->close(g);
    }
}

static void tensor_cores(void **state)
{
    (void)state;
    for (int o = 0; o < ORDERS; o++) {
        cuda_emulated.order = orders[o];
        gpu *g = open_gpu();
        uint16_t in[256 + 128];
        float d[128], got[128];
        for (int i = 0; i < 256 + 128; i++) in[i] = bf16_from_float(random_normal());
        for (int i = 0; i < 128; i++) d[i] = random_normal();
        emulated_test_args args = {take(g, sizeof d), take(g, sizeof in), 0, 0};
        g->calls->write(g, (void *)args.in, in, sizeof in);
        g->calls->write(g, args.out, d, sizeof d);
        start(g, "hy_test_mma", 1, 32, 0, &args);
        finish(g);
        g->calls->read(g, args.out, got, sizeof got);
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 8; j++) {
                double sum = d[i * 8 + j]; /* rounded once */
                for (int k = 0; k < 16; k++)
                    sum += (double)bf16_to_float(in[i * 16 + k]) * (double)bf16_to_float(in[256 + k * 8 + j]);
                assert_true((float)sum == got[i * 8 + j]);
            }
        g->calls->free(g, args.out);
        g->calls->free(g, (void *)args.in);
        g->calls->close(g);
    }
}

static void copies(void **state)
{
    (void)state;
    enum { THREADS = 64, WORDS = 2 * THREADS * 4 };
    uint32_t in[WORDS], out[WORDS];
    for (int i = 0; i < WORDS; i++) in[i] = (uint32_t)i + 1;
    for (int kind = 0; kind < 3; kind++) {
        cuda_emulated.order = orders[kind];
        gpu *g = open_gpu();
        emulated_test_args args = {take(g, sizeof out), take(g, sizeof in), 0, kind};
        g->calls->write(g, (void *)args.in, in, sizeof in);
        start(g, "hy_test_copies", 1, THREADS, sizeof in, &args);
        finish(g);
        g->calls->read(g, args.out, out, sizeof out);
        for (int i = 0; i < WORDS; i++) {
            bool second = i >= WORDS / 2, there = !second || i / 4 % 2 == 0;
            uint32_t expected = there ? in[i] : 0;
            if (kind > (second ? 0 : 1)) expected = ~0u; /* not yet there */
            assert_int_equal(out[i], expected);
        }
        g->calls->free(g, args.out);
        g->calls->free(g, (void *)args.in);
        g->calls->close(g);
    }
}

static void early_returns(void **state)
{
    (void)state;
    cuda_emulated.order = CUDA_EMULATED_RANDOM;
    for (int count = 1; count <= 96; count += 19) {
        float out[96];
        gpu *g = open_gpu();
        emulated_test_args args = {.out = take(g, sizeof out), .count = count};
        start(g, "hy_test_early", 1, 96, 0, &args);
        finish(g);
        g->calls->read(g, args.out, out, sizeof out);
        for (int i = 0; i < count; i++) assert_true(out[i] == (float)((i + 1) % count));
        g->calls->free(g, args.out);
        g->calls->close(g);
    }
}

static void expect_error(gpu *g, const char *text)
{
    hy_error err = {0};
    assert_int_equal(g->calls->wait(g, &err), HY_FAILED);
    if (!strstr(err.message, text)) fail_msg("\"%s\" does not say \"%s\"", err.message, text);
}

static void wrong_kernels(void **state)
{
    (void)state;
    static const char *const text[] = {
        "while other lanes of the warp are at lane_xor",
        "lane_xor of 16 lanes, the others have returned",
        "BLOCK_SYNC, while other threads are at that of line",
        "while others of the warp wait at the barrier",
        "test memory of 100 bytes was written at byte 100",
        "access outside of device memory: byte 356 of test memory",
        "test memory was written 4 bytes before its start",
        "1 bytes behind the end of the shared array part",
        "byte 128 of 128 of dynamic shared memory",
        "copy_async at 8 bytes off",
        "copy_async at 4 bytes off",
        "copy_async of memory that is not the device's",
        "load_matrices outside of shared memory",
        "load_once at 8 bytes off",
    };
    for (int o = 0; o < ORDERS; o++)
        for (int kind = 0; kind < (int)(sizeof text / sizeof *text); kind++) {
            cuda_emulated.order = orders[o];
            gpu *g = open_gpu();
            emulated_test_args args = {take(g, 100), take(g, 64), kind == 8 ? 32 : 25, kind};
            start(g, "hy_test_wrong", 2, 64, 128, &args);
            expect_error(g, text[kind]);
            expect_error(g, "hy_test_wrong, block "); /* it stays */
            float x = 7;
            g->calls->read(g, args.out, &x, sizeof x); /* and nothing is done any more */
            assert_true(x == 7);
            g->calls->free(g, args.out);
            g->calls->free(g, (void *)args.in);
            g->calls->close(g);
        }
}

static void wrong_hopper(void **state)
{
    (void)state;
    static const char *const text[] = {
        "wgmma without wgmma_fence since the last commit",
        "a wgmma that nobody waited for",
        "wgmma without wgmma_fence since the last commit",
        "wgmma_fence that nothing ends",
        "wgmma for which lanes bring different matrices",
        "arrivals_wait that nothing ends",
        "an arrival of a barrier that arrivals_init did not make",
        "more arrivals than the 1 of a phase",
        "a copy that has not arrived when the block ends",
        "copy_bulk of 24 bytes",
        "barrier 1 of",
        "warpgroups take 256 registers in all",
        NULL,
    };
    for (int o = 0; o < ORDERS; o++)
        for (int kind = 0; kind < (int)(sizeof text / sizeof *text); kind++) {
            cuda_emulated.order = orders[o];
            gpu *g = open_gpu();
            emulated_test_args args = {take(g, 100), take(g, 64), 25, kind};
            start(g, "hy_test_wrong_hopper", 2, 128, 16384, &args);
            if (text[kind]) {
                expect_error(g, text[kind]);
            } else {
                float x[2]; /* columns 0 and 2, two rows each: two numbers of column 0 are 2 when it is waited for */
                finish(g);
                g->calls->read(g, args.out, x, sizeof x);
                assert_true(x[0] == 36 && x[1] == 32);
            }
            g->calls->free(g, args.out);
            g->calls->free(g, (void *)args.in);
            g->calls->close(g);
        }
}

/* Blocks that wait for each other; that wait for one that has gone; that bring a shared array. */
static void together(void **state)
{
    (void)state;
    enum { BLOCKS = 5, THREADS = 64, ROUNDS = 6, WIDTH = BLOCKS * THREADS };
    static const char *const text[] = {
        NULL,
        "waits for all blocks of a round, which nobody brings: there are 4 of 5",
        "the shared array part, of a kernel whose blocks are there together",
    };
    for (int o = 0; o < ORDERS; o++)
        for (int kind = 0; kind < 3; kind++) {
            static float out[ROUNDS + 1][WIDTH];
            cuda_emulated.order = orders[o];
            gpu *g = open_gpu();
            emulated_test_args args = {take(g, sizeof out), take(g, ROUNDS * sizeof(uint32_t)), ROUNDS, kind};
            for (int i = 0; i < WIDTH; i++) out[0][i] = (float)(i * i % 31);
            g->calls->write(g, args.out, out[0], sizeof out[0]);
            start(g, "hy_test_together", BLOCKS, THREADS, THREADS * sizeof(uint32_t), &args);
            if (text[kind]) {
                expect_error(g, text[kind]);
            } else {
                finish(g);
                g->calls->read(g, args.out, out, sizeof out);
                for (int r = 0; r < ROUNDS; r++)
                    for (int i = 0; i < WIDTH; i++)
                        assert_true(out[r + 1][i] == out[r][i] + out[r][(i + THREADS) % WIDTH]);
            }
            g->calls->free(g, args.out);
            g->calls->free(g, (void *)args.in);
            g->calls->close(g);
        }
}

/* Clusters that read each other's shared memory; one that a block has left; a place that is not there; reading too early. */
static void clusters(void **state)
{
    (void)state;
    enum { BLOCKS = 8, THREADS = 64, SIZE = 4 };
    static const char *const text[] = {NULL, "neighbours_meet that nothing ends", "neighbour_shared of rank 0, byte ", NULL};
    for (int o = 0; o < ORDERS; o++)
        for (int kind = 0; kind < 4; kind++) {
            float out[BLOCKS * THREADS];
            cuda_emulated.order = orders[o];
            gpu *g = open_gpu();
            emulated_test_args args = {take(g, sizeof out), NULL, 0, kind};
            start(g, "hy_test_cluster", BLOCKS, THREADS, THREADS * sizeof(float), &args);
            if (text[kind]) {
                expect_error(g, text[kind]);
            } else {
                int wrong = 0;
                finish(g);
                g->calls->read(g, args.out, out, sizeof out);
                for (int i = 0; i < BLOCKS * THREADS; i++) {
                    int first = i / (SIZE * THREADS) * SIZE * THREADS + i % THREADS;
                    wrong += !(out[i] == (float)(SIZE * first + 6 * THREADS + i / THREADS % SIZE));
                }
                if (kind == 0)
                    assert_int_equal(wrong, 0);
                else
                    assert_true(wrong > 0);
            }
            g->calls->free(g, args.out);
            g->calls->close(g);
        }
}

static void wrong_calls(void **state)
{
    (void)state;
    static const char *const text[] = {
        "no kernel hy_nothing",
        "with 33 threads",
        "grid of 0",
        "bytes of shared memory",
        "its parameter has 24",
        "byte 8 of its parameter is an address of the host",
        "write of 5 bytes at byte 96",
        "read of 64 bytes at byte 101",
    };
    /* What is taken for a number is no address: the lower half of this one is none below 2^24. */
    enum { NUMBERS = 1 << 24 };
    char *host = malloc(2 * NUMBERS), *address = host;
    assert_non_null(host);
    if ((uint32_t)(uintptr_t)address < NUMBERS) address += NUMBERS;
    for (int kind = 0; kind < 8; kind++) {
        gpu *g = open_gpu();
        emulated_test_args args = {.out = take(g, 100)};
        char *there = (char *)args.out, bytes[64];
        const gpu_kernel *k = g->calls->kernel(g, kind == 0 ? "hy_nothing" : "hy_test_lanes");
        int grid[3] = {kind == 2 ? 0 : 1, 1, 1};
        if (kind == 0) assert_null(k);
        if (kind == 5) args.in = address;
        if (kind >= 1 && kind < 6)
            g->calls->launch(g, k, grid, kind == 1 ? 33 : 32, kind == 3 ? 1 << 20 : 0, &args,
                             sizeof args - (kind == 4 ? 8 : 0));
        if (kind == 6) g->calls->write(g, there + 96, bytes, 5);
        if (kind == 7) g->calls->read(g, there + 101, bytes, 64);
        expect_error(g, text[kind]);
        g->calls->free(g, there);
        g->calls->close(g);
    }
    free(host);
}

static void memory(void **state)
{
    (void)state;
    size_t most = cuda_emulated.memory;
    cuda_emulated.memory = 1000;
    cuda_emulated.host_guard = true;
    gpu *g = open_gpu();
    char *a = take(g, 600), *b, out[600];
    assert_int_equal((uintptr_t)a % 256, 0);
    hy_error err = {0};
    void *none;
    assert_int_equal(g->calls->alloc(g, 401, "too much", &none, &err), HY_NO_FIT);
    assert_non_null(strstr(err.message, "too much: 401 bytes do not fit into 400"));
    b = take(g, 400);
    gpu_info info;
    g->calls->info(g, &info);
    assert_true(info.free == 0 && info.memory == 1000);
    g->calls->read(g, a, out, 600);
    for (int i = 0; i < 600; i++) assert_int_equal(out[i], 0);
    g->calls->fill(g, b, 3, 400);
    g->calls->copy(g, a + 200, b, 400);
    g->calls->read(g, a, out, 600);
    for (int i = 0; i < 600; i++) assert_int_equal(out[i], i < 200 ? 0 : 3);
    finish(g);
    g->calls->free(g, a);
    g->calls->free(g, b);
    g->calls->close(g);
    cuda_emulated.memory = most;
    cuda_emulated.host_guard = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums),        cmocka_unit_test(lanes),         cmocka_unit_test(tensor_cores),
        cmocka_unit_test(copies),      cmocka_unit_test(early_returns), cmocka_unit_test(wrong_kernels),
        cmocka_unit_test(wrong_hopper), cmocka_unit_test(wrong_calls), cmocka_unit_test(memory),
        cmocka_unit_test(together),    cmocka_unit_test(clusters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
