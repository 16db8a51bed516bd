/* The arithmetic of a plan against figures worked out by hand from the published shapes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "model/plan.h"

#define GB UINT64_C(1000000000)

typedef struct machine {
    config c;
    draft_config d;
    plan_input in;
    plan_result out;
} machine;

/* Four GPUs of 288 GB at dep4 and 256K, formats automatic. */
static void four_gpus(machine *m, const char *name)
{
    *m = (machine){0};
    assert_true(config_known(name, &m->c));
    m->d = config_drafter(&m->c);
    m->in = (plan_input){.model = &m->c,
                         .scheme = layout_known_scheme(name),
                         .parallel = PLAN_DEP,
                         .ranks = 4,
                         .memory = 288 * GB,
                         .utilisation = PLAN_UTILISATION,
                         .max_model_len = 262144,
                         .draft = CACHE_FP8};
    m->in.main = m->in.index = plan_auto_format(m->in.scheme);
}

static void compute(machine *m)
{
    hy_error err = {0};
    if (plan_compute(&m->in, &m->out, &err) != HY_OK) fail_msg("%s", err.message);
}

static void bytes_of_a_token(void **state)
{
    (void)state;
    machine m;
    four_gpus(&m, "m3.1-flash");
    m.in.drafter = &m.d;
    compute(&m);
    assert_int_equal(m.out.kv_bytes_per_token, 34560);   /* 60 layers * K, V * 4 heads * (64 + 8) */
    assert_int_equal(m.out.index_bytes_per_token, 4320); /* 60 * 72 */
    assert_int_equal(m.out.draft_bytes_per_token, 5120); /* 5 * 2 * 4 * 128 */
    four_gpus(&m, "m3-mxfp8");
    compute(&m);
    assert_int_equal(m.out.kv_bytes_per_token, 61440);
    assert_int_equal(m.out.index_bytes_per_token, 57 * 128);
    assert_int_equal(m.out.draft_bytes_per_token, 0);
    four_gpus(&m, "m3");
    m.in.index = CACHE_FP8;
    compute(&m);
    assert_int_equal(m.out.kv_bytes_per_token, 122880);
    assert_int_equal(m.out.index_bytes_per_token, 57 * 128);
}

static void weights_under_dep(void **state)
{
    (void)state;
    machine m;
    four_gpus(&m, "m3.1-flash");
    compute(&m);
    /* 57 layers * 128 experts * 3 matrices of 3072 * 6144 at 9/16 byte, and two 4-byte scalars */
    uint64_t experts = 57 * 128 * 3 * (UINT64_C(3072) * 6144 / 16 * 9 + 8), rest = UINT64_C(250103411200) - experts;
    assert_int_equal(m.out.divided_bytes, experts);
    assert_int_equal(m.out.replicated_bytes, rest);
    assert_int_equal(m.out.rank_weight_bytes, rest + experts / 4);
    assert_int_equal(m.out.weight_bytes, 4 * rest + experts);
    assert_int_equal(m.out.parameters, layout_count(&m.c, SCHEME_M31).parameters);
    /* three ranks: one has 43 of the 128 experts */
    m.in.ranks = 3;
    compute(&m);
    assert_int_equal(m.out.rank_weight_bytes, rest + experts / 128 * 43);
    assert_int_equal(m.out.weight_bytes, 3 * rest + experts);
    m.in.drafter = &m.d;
    compute(&m);
    assert_int_equal(m.out.drafter_bytes, 2301852674);
    assert_int_equal(m.out.weight_bytes, 3 * (rest + UINT64_C(2301852674)) + experts);
}

static void sequences_follow_from_bytes(void **state)
{
    (void)state;
    machine m;
    for (int i = 0; i < 2; i++) {
        four_gpus(&m, i ? "m3-mxfp8" : "m3.1-flash");
        if (!i) m.in.drafter = &m.d;
        compute(&m);
        const plan_result *r = &m.out;
        uint64_t token = r->kv_bytes_per_token + r->index_bytes_per_token + r->draft_bytes_per_token;
        assert_int_equal(r->token_bytes_per_rank, token);
        assert_int_equal(r->usable_bytes, 264960000000);
        assert_int_equal(r->rank_cache_bytes, r->usable_bytes - r->rank_weight_bytes - r->workspace_bytes);
        assert_int_equal(r->cache_bytes, 4 * r->rank_cache_bytes);
        assert_int_equal(r->sequences, r->cache_bytes / 4 / (262144 * token) * 4);
        assert_int_equal(r->missing_bytes, 0);
        assert_int_equal(r->longest, r->rank_cache_bytes / token / 128 * 128);
    }
}

/* The published 28 follows from the shapes; the published 76 does not without giving the model more of the memory. */
static void announced_figures(void **state)
{
    (void)state;
    machine m;
    four_gpus(&m, "m3-mxfp8");
    compute(&m);
    assert_int_equal(m.out.sequences, 28);
    assert_int_equal(plan_find_announced("m3-mxfp8", &m.in)->sequences, 28);
    four_gpus(&m, "m3.1-flash");
    compute(&m);
    const plan_announced *a = plan_find_announced("m3.1-flash", &m.in);
    assert_int_equal(a->sequences, 76);
    assert_int_equal(m.out.sequences, 72);
    /* exactly at the needed memory there are 76, one byte below not */
    uint64_t need = plan_needed(&m.in, &m.out, 76);
    m.in.utilisation = 1, m.in.memory = need;
    compute(&m);
    assert_int_equal(m.out.sequences, 76);
    m.in.memory = need - 1;
    compute(&m);
    assert_int_equal(m.out.sequences, 72);
    assert_null(plan_find_announced("m3.1-flash", &m.in)); /* another machine */
    four_gpus(&m, "m3.1-flash");
    m.in.main = CACHE_FP8;
    assert_null(plan_find_announced("m3.1-flash", &m.in));
}

static void tensor_parallel(void **state)
{
    (void)state;
    machine m;
    four_gpus(&m, "m3.1-flash");
    m.in.parallel = PLAN_TP;
    m.in.drafter = &m.d;
    compute(&m);
    assert_int_equal(m.out.kv_bytes_per_token, 34560);
    assert_int_equal(m.out.index_bytes_per_token, 4 * 4320); /* on every rank */
    assert_int_equal(m.out.draft_bytes_per_token, 5120);
    assert_int_equal(m.out.token_bytes_per_rank * 128, 1822720); /* the published row of a block at TP4 */
    assert_int_equal(m.out.sequences, m.out.rank_cache_bytes / (262144 * m.out.token_bytes_per_rank));
    /* nothing is lost or counted twice: divided once, replicated four times */
    assert_int_equal(m.out.divided_bytes + m.out.replicated_bytes, UINT64_C(250103411200) + 2301852674);
    assert_int_equal(m.out.weight_bytes, m.out.divided_bytes + 4 * m.out.replicated_bytes);
    /* eight ranks share four KV heads: each head is there twice */
    uint64_t one = m.out.kv_bytes_per_token;
    m.in.ranks = 8;
    compute(&m);
    assert_int_equal(m.out.kv_bytes_per_token, 2 * one);
    assert_true(m.out.weight_bytes > m.out.divided_bytes + 8 * m.out.replicated_bytes);
}

static void lengths_are_whole_blocks(void **state)
{
    (void)state;
    machine m;
    four_gpus(&m, "m3.1-flash");
    m.in.max_model_len = 129;
    compute(&m);
    assert_int_equal(m.out.tokens, 256);
    m.in.max_model_len = 0;
    compute(&m);
    assert_int_equal(m.out.tokens, 1048576);
}

static void what_does_not_fit_says_by_how_much(void **state)
{
    (void)state;
    machine m;
    four_gpus(&m, "m3.1-flash");
    m.in.parallel = PLAN_SINGLE, m.in.ranks = 1, m.in.memory = 141 * GB, m.in.utilisation = 1;
    compute(&m);
    assert_int_equal(m.out.sequences, 0);
    assert_int_equal(m.out.cache_bytes, 0);
    assert_int_equal(m.out.longest, 0);
    m.in.memory += m.out.missing_bytes; /* with just that it fits once */
    compute(&m);
    assert_int_equal(m.out.sequences, 1);
    assert_int_equal(m.out.missing_bytes, 0);
    m.in.memory--;
    compute(&m);
    assert_int_equal(m.out.missing_bytes, 1);
    assert_int_equal(m.out.longest, 262144 - 128);
}

static void own_workspace_and_extra_tensors(void **state)
{
    (void)state;
    machine m;
    four_gpus(&m, "m3.1-flash");
    compute(&m);
    uint64_t weights = m.out.rank_weight_bytes, computed = m.out.workspace_bytes;
    assert_int_equal(computed, plan_workspace(&m.in));
    m.in.step_rows = 2 * PLAN_STEP_ROWS;
    uint64_t logits = UINT64_C(256) * 200064 * 4;
    assert_int_equal(plan_workspace(&m.in) - logits, 2 * (computed - logits));
    m.in.workspace = 3 * GB, m.in.extra_bytes = 1000;
    compute(&m);
    assert_int_equal(m.out.workspace_bytes, 3 * GB);
    assert_int_equal(m.out.rank_weight_bytes, weights + 1000);
    m.in.extra_bytes = -1000;
    compute(&m);
    assert_int_equal(m.out.rank_weight_bytes, weights - 1000);
}

static void nonsense_is_refused(void **state)
{
    (void)state;
    machine m;
    hy_error err = {0};
    static const struct {
        plan_parallel parallel;
        int ranks;
        double utilisation;
        const char *word;
    } bad[] = {
        {PLAN_DEP, 0, 0.9, "GPUs"},         {PLAN_DEP, 200, 0.9, "128 experts"},
        {PLAN_SINGLE, 2, 0.9, "single"},    {PLAN_TP, 3, 0.9, "tp3"},
        {PLAN_TP, 6, 0.9, "tp6"},           {PLAN_DEP, 4, 0, "utilisation"},
        {PLAN_DEP, 4, 1.01, "utilisation"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        four_gpus(&m, "m3.1-flash");
        m.in.parallel = bad[i].parallel, m.in.ranks = bad[i].ranks, m.in.utilisation = bad[i].utilisation;
        assert_int_equal(plan_compute(&m.in, &m.out, &err), HY_USAGE);
        if (!strstr(err.message, bad[i].word)) fail_msg("%s", err.message);
    }
    four_gpus(&m, "m3.1-flash");
    m.in.memory = UINT64_MAX;
    assert_int_equal(plan_compute(&m.in, &m.out, &err), HY_USAGE);
    four_gpus(&m, "m3.1-flash");
    m.c.head_dim = 72;
    assert_int_equal(plan_compute(&m.in, &m.out, &err), HY_USAGE);
}

static void formats_of_schemes(void **state)
{
    (void)state;
    assert_int_equal(plan_auto_format(SCHEME_M31), CACHE_NVFP4);
    assert_int_equal(plan_auto_format(SCHEME_MXFP8), CACHE_FP8);
    assert_int_equal(plan_auto_format(SCHEME_MODELOPT), CACHE_FP8);
    assert_int_equal(plan_auto_format(SCHEME_BF16), CACHE_BF16);
}

/* M3.1 on a machine of 24 GB: what stays, what the cache of experts gets, how much is lacking, and the engine's length.
 */
static void streamed(void **state)
{
    (void)state;
    machine m;
    four_gpus(&m, "m3.1-flash");
    m.in.parallel = PLAN_SINGLE, m.in.ranks = 1, m.in.stream = true;
    m.in.memory = 24 * GB, m.in.utilisation = 1, m.in.max_model_len = 16384, m.in.program = 10000000;
    compute(&m);
    uint64_t expert = 3 * UINT64_C(3072) * 6144 * 9 / 16; /* at 4.5 bits; in the files, eight bytes more a matrix */
    assert_int_equal(m.out.expert_bytes, expert);
    assert_int_equal(m.out.experts, 57 * 128);
    assert_int_equal(m.out.streamed_bytes, 57 * 128 * (expert + 24));
    assert_int_equal(m.out.token_expert_bytes, 57 * 4 * expert);
    assert_int_equal(m.out.rank_cache_bytes, 16384 * (34560 + 4320));
    assert_int_equal(m.out.sequences, 1);
    assert_int_equal(m.out.program_bytes, 10000000 + (32 << 20));
    assert_true(m.out.rank_weight_bytes > 8 * GB && m.out.rank_weight_bytes < 14 * GB);
    uint64_t fixed = m.out.program_bytes + m.out.rank_weight_bytes + m.out.workspace_bytes + m.out.reader_bytes;
    assert_int_equal(m.out.expert_slots, (24 * GB - fixed - m.out.rank_cache_bytes) / expert);
    uint64_t least = fixed + m.out.rank_cache_bytes + 8 * expert + 1; /* the engine wants one byte more, too */
    m.in.memory = least;
    compute(&m);
    assert_int_equal(m.out.expert_slots, 8);
    m.in.memory = least - 1;
    compute(&m);
    assert_int_equal(m.out.sequences, 0);
    assert_int_equal(m.out.missing_bytes, 1);
    assert_int_equal(m.out.longest, 16384 - 128);
    m.in.memory = 24 * GB, m.in.max_model_len = 0; /* a million tokens do not fit: an eighth of what is left */
    compute(&m);
    assert_int_equal(m.out.sequences, 1);
    assert_true(m.out.rank_cache_bytes <= (24 * GB - fixed) / 8 && m.out.rank_cache_bytes > (24 * GB - fixed) / 9);
    assert_int_equal(m.out.tokens * (34560 + 4320), m.out.rank_cache_bytes);
    m.in.memory = 4000 * GB;
    compute(&m);
    assert_int_equal(m.out.expert_slots, 57 * 128);
    m.in.parallel = PLAN_DEP, m.in.ranks = 4;
    hy_error err = {0};
    assert_int_equal(plan_compute(&m.in, &m.out, &err), HY_USAGE);
}

/* With its drafter: 2 GB of weights that stay, its rows in the cache, its tensors in a step. */
static void streamed_with_drafter(void **state)
{
    (void)state;
    machine m;
    four_gpus(&m, "m3.1-flash");
    m.in.parallel = PLAN_SINGLE, m.in.ranks = 1, m.in.stream = true, m.in.drafter = NULL;
    m.in.memory = 32 * GB, m.in.utilisation = 1, m.in.max_model_len = 16384, m.in.program = 10000000;
    compute(&m);
    plan_result bare = m.out;
    draft_config d = config_drafter(m.in.model);
    m.in.drafter = &d, m.in.draft = CACHE_FP8;
    compute(&m);
    assert_int_equal(m.out.draft_bytes_per_token, 5120);
    assert_int_equal(m.out.rank_cache_bytes, bare.rank_cache_bytes + 16384 * 5120);
    assert_int_equal(m.out.drafter_bytes, 2301852674);
    assert_true(m.out.rank_weight_bytes > bare.rank_weight_bytes + 2100000000);
    assert_true(m.out.rank_weight_bytes < bare.rank_weight_bytes + 4100000000);
    assert_true(m.out.workspace_bytes > bare.workspace_bytes);
    m.in.draft = CACHE_NVFP4;
    hy_error err = {0};
    assert_int_equal(plan_compute(&m.in, &m.out, &err), HY_USAGE);
    assert_non_null(strstr(err.message, "drafter"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_of_a_token),
        cmocka_unit_test(streamed), cmocka_unit_test(streamed_with_drafter),
        cmocka_unit_test(weights_under_dep),
        cmocka_unit_test(sequences_follow_from_bytes),
        cmocka_unit_test(announced_figures),
        cmocka_unit_test(tensor_parallel),
        cmocka_unit_test(lengths_are_whole_blocks),
        cmocka_unit_test(what_does_not_fit_says_by_how_much),
        cmocka_unit_test(own_workspace_and_extra_tensors),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(formats_of_schemes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
