/*
 * The operations of hopper.cuh: known matrices through every form of wgmma, a ring of asynchronous copies, and the bits of
 * dot products by mma.sync and by wgmma, which are printed and not asserted on a GPU. `--gpu` is for compute capability 9.0.
 */
#include "backend/cuda_test.h"

#include "backend/cuda/kernels/probe.h"

static uint16_t half_from_small(int x)
{
    /* Whole numbers -64 .. 64, exact. */
    uint16_t sign = x < 0 ? 0x8000 : 0;
    int m = x < 0 ? -x : x, e = 0;
    if (!m) return sign;
    while (m >> (e + 1)) e++;
    return (uint16_t)(sign | (e + 15) << 10 | ((m << (10 - e)) & 1023));
}

static uint16_t number(int x, int form)
{
    return form & PROBE_HALF ? half_from_small(x) : bf16_from_float((float)x);
}

/* Small whole numbers: every order of sums is exact. */
static void forms(void **state)
{
    (void)state;
    static const int columns[] = {8, 16, 32, 64, 128, 256};
    gpu *g = device_open();
    for (int c = 0; c < 6; c++)
        for (int form = 0; form < PROBE_FORMS; form++) {
            int n = columns[c];
            if ((form & PROBE_A_MN && !(form & PROBE_A_SHARED)) || (form & PROBE_B_MN && n < 64)) continue;
            if (!cuda_test_on_gpu && n > 64 && form % 3) continue; /* the rest is the same code */
            int a[64][PROBE_K], b[256][PROBE_K];
            uint16_t a16[64][PROBE_K], b16[256][PROBE_K];
            for (int i = 0; i < 64; i++)
                for (int k = 0; k < PROBE_K; k++) a[i][k] = random_below(127) - 63;
            for (int j = 0; j < n; j++)
                for (int k = 0; k < PROBE_K; k++) b[j][k] = random_below(127) - 63;
            for (int i = 0; i < 64; i++)
                for (int k = 0; k < PROBE_K; k++) a16[i][k] = number(a[i][k], form);
            for (int j = 0; j < n; j++)
                for (int k = 0; k < PROBE_K; k++) b16[j][k] = number(b[j][k], form);
            probe_args args = {.a = device_put(g, a16, sizeof a16),
                               .b = device_put(g, b16, (size_t)n * PROBE_K * 2),
                               .out = device_take(g, (size_t)n * 64 * 4),
                               .k = PROBE_K,
                               .form = form};
            char name[32];
            snprintf(name, sizeof name, "probe_wgmma_%d", n);
            device_run(g, name, 1, 1, 1, 128, PROBE_SHARED, &args, sizeof args);
            float *out = device_get(g, args.out, (size_t)n * 64 * 4);
            int wrong = 0;
            for (int i = 0; i < 64; i++)
                for (int j = 0; j < n; j++) {
                    int sum = 0;
                    for (int k = 0; k < PROBE_K; k++) sum += a[i][k] * b[j][k];
                    wrong += out[i * n + j] != (float)sum;
                }
            if (wrong) printf("# %s, form %d: %d of %d wrong\n", name, form, wrong, 64 * n);
            assert_int_equal(wrong, 0);
            free(out);
            g->calls->free(g, (void *)args.a);
            g->calls->free(g, (void *)args.b);
            g->calls->free(g, args.out);
        }
    g->calls->close(g);
}

static void ring(void **state)
{
    (void)state;
    gpu *g = device_open();
    for (int slabs = 1; slabs < (cuda_test_on_gpu ? 1000 : 12); slabs += slabs < 8 ? 1 : 97) {
        size_t bytes = (size_t)slabs * 4096;
        uint32_t *words = malloc(bytes), sums[256] = {0};
        for (size_t i = 0; i < bytes / 4; i++) sums[i % 256] += words[i] = (uint32_t)i * 2654435761u;
        probe_args args = {.a = device_put(g, words, bytes), .out = device_take(g, 1024), .k = slabs};
        device_run(g, "probe_ring", 2, 1, 1, PROBE_RING_BLOCK, PROBE_SHARED, &args, sizeof args);
        uint32_t *out = device_get(g, args.out, 1024);
        for (int i = 0; i < 256; i++) assert_int_equal(out[i], sums[i] + sums[i ^ 128]);
        free(words);
        free(out);
        g->calls->free(g, (void *)args.a);
        g->calls->free(g, args.out);
    }
    g->calls->close(g);
}

/* The probe. On the emulated GPU an instruction rounds once, so all chains are equal; on an H200 they are too. */
static void chains(void **state)
{
    (void)state;
    static const char *const names[] = {"mma.sync", "mma.sync, k of each 16 swapped", "wgmma n8, A in registers",
                                        "wgmma n128, A in registers", "wgmma n128, A in shared memory"};
    gpu *g = device_open();
    int k = cuda_test_on_gpu ? 6144 : 128;
    for (int wide = 0; wide < 2; wide++) {
        uint16_t *a = malloc((size_t)64 * k * 2), *b = malloc((size_t)PROBE_COLUMNS * k * 2);
        /* `wide`: magnitudes over many powers of two, where what is cut off shows most. */
        for (int i = 0; i < 64 * k; i++)
            a[i] = bf16_from_float(random_normal() * (wide ? exp2f((float)(random_below(24) - 12)) : 1));
        for (int i = 0; i < PROBE_COLUMNS * k; i++) b[i] = bf16_from_float(random_normal());
        probe_args args = {.a = device_put(g, a, (size_t)64 * k * 2),
                           .b = device_put(g, b, (size_t)PROBE_COLUMNS * k * 2),
                           .out = device_take(g, 64 * PROBE_COLUMNS * 4),
                           .k = k};
        uint32_t *out[PROBE_CHAINS];
        for (int form = 0; form < PROBE_CHAINS; form++) {
            args.form = form;
            device_run(g, "probe_chain", PROBE_COLUMNS / 8, 1, 1, 128, PROBE_SHARED, &args, sizeof args);
            out[form] = device_get(g, args.out, 64 * PROBE_COLUMNS * 4);
            int equal = 0, largest = 0;
            double worst = 0;
            for (int i = 0; i < 64 * PROBE_COLUMNS; i++) {
                int32_t ulps = abs((int32_t)(out[form][i] - out[0][i]));
                equal += out[form][i] == out[0][i];
                if (ulps > largest) largest = ulps;
                double exact = 0, size = 0;
                for (int j = 0; j < k; j++) {
                    double x = (double)bf16_to_float(a[i / PROBE_COLUMNS * k + j]) * bf16_to_float(b[i % PROBE_COLUMNS * k + j]);
                    exact += x, size += fabs(x);
                }
                float y;
                memcpy(&y, &out[form][i], 4);
                worst = fmax(worst, fabs((double)y - exact) / size);
            }
            printf("# %s values, k %d: %s: %d of %d bits equal mma.sync's, at most %d ulps off; error %.1e of the sum of "
                   "magnitudes\n",
                   wide ? "wide" : "normal", k, names[form], equal, 64 * PROBE_COLUMNS, largest, worst);
            assert_true(worst < 1e-4);
            if (!cuda_test_on_gpu) assert_int_equal(equal, 64 * PROBE_COLUMNS);
        }
        for (int form = 0; form < PROBE_CHAINS; form++) free(out[form]);
        g->calls->free(g, (void *)args.a);
        g->calls->free(g, (void *)args.b);
        g->calls->free(g, args.out);
        free(a);
        free(b);
    }
    g->calls->close(g);
}

int main(int argc, char **argv)
{
    if (!cuda_test_begin(&argc, &argv)) return CUDA_TEST_SKIPPED;
    if (cuda_test_on_gpu) {
        gpu *g = device_open();
        gpu_info info;
        g->calls->info(g, &info);
        g->calls->close(g);
        if (info.major != 9) {
            printf("skipped: %s is not of compute capability 9.0\n", info.name);
            return CUDA_TEST_SKIPPED;
        }
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(forms), cmocka_unit_test(ring), cmocka_unit_test(chains)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
