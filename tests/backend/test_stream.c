/* Streamed experts give the bits of loaded ones, whatever the cache holds, the rows and the threads; and a step whose
 * experts cannot be read fails and is over. */
#include "random_model.h"

#include <unistd.h>

#include "base/file.h"

/* The experts' bytes and the embedding's, moved into a file. */
typedef struct in_file {
    char path[64];
    file_map map;
    weight_file file;
} in_file;

static void move_weight(weight *w, FILE *out, const uint8_t *map)
{
    const size_t bytes[2] = {(size_t)w->rows * weight_row_data(w), (size_t)w->rows * weight_row_scales(w)};
    if (out) {
        assert_int_equal(fwrite(w->data, 1, bytes[0], out), bytes[0]);
        if (bytes[1]) assert_int_equal(fwrite(w->scales, 1, bytes[1], out), bytes[1]);
        return;
    }
    w->data = map;
    if (bytes[1]) w->scales = map + bytes[0];
}

/* Writes with `out`, else points the weights into the map in the same order. */
static void each_weight(random_model *m, FILE *out, const uint8_t *map)
{
    weight *embed = &m->ops.embed;
    size_t at = 0;
    move_weight(embed, out, map);
    at += (size_t)embed->rows * (weight_row_data(embed) + weight_row_scales(embed));
    for (int i = 0; i < m->ops.layers; i++)
        for (int e = 0; e < m->ops.experts && m->ops.layer[i].moe; e++) {
            ops_layer *l = &m->ops.layer[i];
            weight *w[] = {&l->expert_gate[e], &l->expert_up[e], &l->expert_down[e]};
            for (int p = 0; p < 3; p++) {
                move_weight(w[p], out, out ? NULL : map + at);
                at += (size_t)w[p]->rows * (weight_row_data(w[p]) + weight_row_scales(w[p]));
            }
        }
}

static void move_to_file(random_model *m, in_file *f)
{
    hy_error err = {0};
    *f = (in_file){.path = "/tmp/hayate-test-XXXXXX"};
    FILE *out = fdopen(mkstemp(f->path), "wb");
    assert_non_null(out);
    each_weight(m, out, NULL);
    assert_int_equal(fclose(out), 0);
    check(file_map_open(f->path, &f->map, &err), &err);
    f->file = (weight_file){f->path, f->map.data, f->map.size};
    each_weight(m, NULL, f->map.data);
}

static void remove_file(in_file *f)
{
    file_map_close(&f->map);
    unlink(f->path);
}

static const model_kind kinds[] = {
    {.layers = 5, .hidden = 96, .heads = 4, .kv_heads = 2, .head_dim = 32, .index_dim = 32, .index_top = 3, .rotary_dim = 16,
     .experts = 12, .per_token = 3, .expert_width = 80, .shared_width = 64, .dense_width = 96, .vocab = 200,
     .linear = WEIGHT_MXFP8, .expert = WEIGHT_NVFP4, .divides = true},
    {.layers = 3, .hidden = 64, .heads = 4, .kv_heads = 2, .head_dim = 32, .index_dim = 32, .index_top = 3, .rotary_dim = 16,
     .experts = 20, .per_token = 2, .expert_width = 48, .shared_width = 64, .dense_width = 96, .vocab = 200,
     .linear = WEIGHT_BF16, .expert = WEIGHT_BF16},
};

/* A prefill of three sequences with padding, then steps of one row each. */
enum { PREFILL = 190, STEPS = 6, ALL = PREFILL + 3 * STEPS };

static float *run(const bench *b, int vocab)
{
    float *logits = malloc((size_t)ALL * (size_t)vocab * sizeof *logits), *at = logits;
    step_rows rows;
    rows_open(&rows);
    rows_add(&rows, 0, 0, 140, vocab);
    rows_add(&rows, -1, 0, 3, vocab);
    rows_add(&rows, 1, 0, 1, vocab);
    rows_add(&rows, 2, 0, 49, vocab);
    bench_forward(b, &rows, at);
    at += PREFILL * vocab;
    for (int i = 0; i < STEPS; i++, at += 3 * vocab) {
        rows_open(&rows);
        rows_add(&rows, 2, 49 + i, 1, vocab);
        rows_add(&rows, 0, 140 + i, 1, vocab);
        rows_add(&rows, 1, 1 + i, 1, vocab);
        bench_forward(b, &rows, at);
    }
    return logits;
}

static void same_bits(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int fp4 = 0; fp4 < 2; fp4++) {
            random_model m;
            in_file f;
            bench b;
            hy_error err = {0};
            random_model_make(&m, &kinds[k]);
            move_to_file(&m, &f);
            ops_options o = {.activation = fp4 ? MOE_ACTIVATION_NVFP4 : MOE_ACTIVATION_NONE, .files = &f.file, .file_count = 1};
            bench_open(&b, &ops_cpu, &m, CACHE_BF16, CACHE_BF16, o, 2);
            float *loaded = run(&b, kinds[k].vocab);
            hy_expert_stats stats;
            assert_false(ops_cpu.expert_stats(b.backend, &stats));
            bench_close(&b);
            o.weights = OPS_WEIGHTS_STREAM, o.bounded = true;
            for (int workers = 1; workers < 4; workers += 2) {
                bench_open(&b, &ops_cpu, &m, CACHE_BF16, CACHE_BF16, o, workers);
                const int slots[] = {1, 2, 7, 30, 1000};
                for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
                    assert_true(ops_cpu.expert_stats(b.backend, &stats));
                    check(ops_cpu.expert_memory(b.backend, (uint64_t)slots[i] * stats.slot_bytes, &err), &err);
                    float *streamed = run(&b, kinds[k].vocab);
                    assert_memory_equal(streamed, loaded, (size_t)ALL * (size_t)kinds[k].vocab * sizeof *loaded);
                    free(streamed);
                }
                assert_true(ops_cpu.expert_stats(b.backend, &stats));
                assert_true(stats.hits > 0 && stats.misses > 0 && stats.ahead_hits > 0 && stats.evicted > 0);
                bench_close(&b);
            }
            free(loaded);
            remove_file(&f);
            random_model_free(&m);
        }
}

/* What measure says before anything is read is what opening takes. */
static void measured(void **state)
{
    (void)state;
    random_model m;
    in_file f;
    random_model_make(&m, &kinds[0]);
    move_to_file(&m, &f);
    ops_limits one = {.rows = 1, .logit_rows = 1, .positions = 100}, many = {.rows = 100, .logit_rows = 100, .positions = 100};
    ops_options o = {.files = &f.file, .file_count = 1};
    ops_memory loaded, streamed, more;
    ops_cpu.measure(&m.ops, &o, &one, &loaded);
    o.weights = OPS_WEIGHTS_STREAM;
    ops_cpu.measure(&m.ops, &o, &one, &streamed);
    ops_cpu.measure(&m.ops, &o, &many, &more);
    /* NVFP4, packed in groups of 32 rows and units of 64 columns: 4.5 bits a weight. */
    uint64_t expert = 2 * 96 * 128 * 9 / 16 + 96 * 128 * 9 / 16;
    assert_int_equal(streamed.expert, expert);
    assert_int_equal(streamed.all_experts, 4 * 12 * expert);
    assert_int_equal(streamed.expert_least, 2 * 3 * expert);
    assert_int_equal(loaded.expert, 0);
    assert_true(loaded.weights > 4 * 12 * expert);
    assert_true(more.step > streamed.step && streamed.step > 0);
    remove_file(&f);
    random_model_free(&m);
}

/* The file is cut between steps: the step says so, and the next one on what is left works. */
static void failing_step(void **state)
{
    (void)state;
    random_model m;
    in_file f;
    bench b;
    hy_error err = {0};
    hy_expert_stats stats;
    random_model_make(&m, &kinds[0]);
    move_to_file(&m, &f);
    ops_options o = {.files = &f.file, .file_count = 1, .weights = OPS_WEIGHTS_STREAM, .bounded = true};
    bench_open(&b, &ops_cpu, &m, CACHE_BF16, CACHE_BF16, o, 2);
    assert_true(ops_cpu.expert_stats(b.backend, &stats));
    check(ops_cpu.expert_memory(b.backend, 6 * stats.slot_bytes, &err), &err);
    step_rows rows;
    rows_open(&rows);
    rows_add(&rows, 0, 0, 20, kinds[0].vocab);
    bench_forward(&b, &rows, NULL);
    for (int part = 0; part < 2; part++) { /* behind the embedding; nothing at all */
        assert_int_equal(truncate(f.path, part ? 10 : 200 * 96 * 2 + 100), 0);
        ops_cpu.begin(b.step, b.cache, &rows.ops);
        ops_cpu.embed(b.step);
        for (int i = 0; i < m.ops.layers; i++) {
            ops_cpu.attend_in(b.step, i);
            if (m.ops.layer[i].sparse) ops_cpu.index_select(b.step, i);
            ops_cpu.attend(b.step, i);
            ops_cpu.attend_out(b.step, i);
            if (m.ops.layer[i].moe)
                ops_cpu.route(b.step, i), ops_cpu.experts(b.step, i);
            else
                ops_cpu.feed_dense(b.step, i);
        }
        ops_cpu.head(b.step);
        ops_sample sample = {.temperature = 0, .top_p = 1, .repetition_penalty = 1, .logprobs = -1};
        ops_sampled sampled;
        ops_cpu.sample(b.step, &sample, 1, &sampled);
        assert_int_equal(ops_cpu.finish(b.step, &err), HY_FAILED);
        assert_non_null(strstr(err.message, f.path));
        assert_int_equal(sampled.id, -1);
    }
    bench_close(&b);
    remove_file(&f);
    random_model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),
        cmocka_unit_test(measured),
        cmocka_unit_test(failing_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
