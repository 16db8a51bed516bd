/* The loops over cache blocks: every variant that this machine runs gives the bits of the portable one. */
#include "backend/random_model.h"

#include "backend/cpu/blocks.h"

static const cpu_blocks *all[4];
static int count;

static int setup(void **state)
{
    (void)state;
    count = cpu_blocks_all(all);
    for (int i = 0; i < count; i++) printf("# variant %s\n", all[i]->name);
    return 0;
}

/* Softmax over blocks of 1 to 128 tokens against double arithmetic, and the same bits from every variant. */
static void attention(void **state)
{
    (void)state;
    enum { DIM = 48, BLOCKS = 4 };
    static const int tokens[BLOCKS] = {128, 1, 77, 128};
    float *q = random_floats(DIM * LANES, 1, true), *k = random_floats(BLOCKS * 128 * DIM, 1, true);
    float *v = random_floats(BLOCKS * 128 * DIM, 1, true), *scratch = malloc((128 + DIM) * LANES * sizeof *scratch);
    float scale = 0.3f, first[DIM * LANES];
    for (int i = 0; i < count; i++) {
        cpu_softmax s;
        float out[DIM * LANES] = {0};
        for (int n = 0; n < LANES; n++) s.max[n] = -INFINITY, s.sum[n] = 0;
        for (int b = 0; b < BLOCKS; b++)
            all[i]->attend_block(q, k + b * 128 * DIM, v + b * 128 * DIM, tokens[b], DIM, scale, &s, out, scratch);
        if (i == 0) memcpy(first, out, sizeof out);
        assert_memory_equal(first, out, sizeof out);
        for (int n = 0; n < LANES; n++) {
            double sum = 0, want[DIM] = {0};
            for (int b = 0; b < BLOCKS; b++)
                for (int t = 0; t < tokens[b]; t++) {
                    double dot = 0;
                    for (int d = 0; d < DIM; d++) dot += (double)q[d * LANES + n] * k[(b * 128 + t) * DIM + d];
                    double e = exp(dot * scale);
                    sum += e;
                    for (int d = 0; d < DIM; d++) want[d] += e * v[(b * 128 + t) * DIM + d];
                }
            for (int d = 0; d < DIM; d++) assert_true(fabs(out[d * LANES + n] / s.sum[n] - want[d] / sum) < 5e-3);
        }
    }
    free(q), free(k), free(v), free(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(attention)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
