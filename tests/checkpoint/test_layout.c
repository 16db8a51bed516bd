/* The published layout against the published sizes and against a list of names made by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/output.h"

static config known(const char *name)
{
    config c;
    assert_true(config_known(name, &c));
    return c;
}

/* Tensor counts and bytes of the released repositories; parameters from their safetensors metadata. */
static void released_totals(void **state)
{
    (void)state;
    config m31 = known("m3.1-flash"), m3 = known("m3"), mx = known("m3-mxfp8");
    layout_totals t = layout_count(&m31, SCHEME_M31);
    assert_int_equal(t.tensors, 89632);
    assert_int_equal(t.bytes, 250103411200);
    assert_int_equal(t.expert_bytes, 57LL * 128 * 3 * (3072LL * 6144 * 9 / 16 + 8));
    t = layout_count(&mx, SCHEME_MXFP8);
    assert_int_equal(t.tensors, 45838);
    assert_int_equal(t.bytes, 443742085120);
    t = layout_count(&m3, SCHEME_BF16);
    assert_int_equal(t.bytes, 854172958720);
    assert_int_equal(t.parameters, 427040140160);
    t = layout_count(&m3, SCHEME_MODELOPT);
    assert_int_equal(t.tensors, 89614);
    assert_int_equal(t.bytes, 250091244544);
    /* quantising changes bytes, never the number of weights */
    assert_int_equal(layout_count(&m31, SCHEME_M31).parameters, layout_count(&m31, SCHEME_BF16).parameters);
    assert_int_equal(layout_count(&m3, SCHEME_MXFP8).parameters, 427040140160);
}

static void drafter_totals(void **state)
{
    (void)state;
    config c = known("m3.1-flash");
    draft_config d = config_drafter(&c);
    layout_totals t = layout_count_draft(&c, &d);
    assert_int_equal(t.tensors, 97);
    assert_int_equal(t.bytes, 2301852674);
}

static config tiny(void)
{
    config c = {.layers = 2,
                .hidden = 64,
                .vocab = 100,
                .heads = 4,
                .kv_heads = 2,
                .head_dim = 32,
                .experts = 2,
                .experts_per_token = 1,
                .expert_width = 96,
                .shared_width = 32,
                .dense_width = 128,
                .shared_expert = true,
                .index_heads = 2,
                .index_dim = 32,
                .bos = -1,
                .eos = -1};
    c.sparse[1] = 1, c.moe[1] = 1;
    return c;
}

typedef struct listing {
    char text[16384];
    size_t length;
} listing;

static bool print(void *user, const layout_entry *e)
{
    listing *l = user;
    l->length += (size_t)snprintf(l->text + l->length, sizeof l->text - l->length, "%s %s", e->name,
                                  tensor_dtype_name(e->dtype));
    for (int i = 0; i < e->dims; i++)
        l->length += (size_t)snprintf(l->text + l->length, sizeof l->text - l->length, " %lld", (long long)e->shape[i]);
    l->length += (size_t)snprintf(l->text + l->length, sizeof l->text - l->length, "\n");
    return true;
}

#define L "language_model.model.layers."
static void names_of_m31(void **state)
{
    (void)state;
    static const char expected[] =
        "language_model.model.embed_tokens.weight BF16 100 64\n" L "0.input_layernorm.weight BF16 64\n" L
        "0.self_attn.q_proj.weight F8_E4M3 128 64\n" L "0.self_attn.q_proj.weight_scale_inv U8 128 2\n" L
        "0.self_attn.k_proj.weight F8_E4M3 64 64\n" L "0.self_attn.k_proj.weight_scale_inv U8 64 2\n" L
        "0.self_attn.v_proj.weight F8_E4M3 64 64\n" L "0.self_attn.v_proj.weight_scale_inv U8 64 2\n" L
        "0.self_attn.o_proj.weight F8_E4M3 64 128\n" L "0.self_attn.o_proj.weight_scale_inv U8 64 4\n" L
        "0.self_attn.q_norm.weight BF16 32\n" L "0.self_attn.k_norm.weight BF16 32\n" L
        "0.post_attention_layernorm.weight BF16 64\n" L "0.mlp.gate_proj.weight F8_E4M3 128 64\n" L
        "0.mlp.gate_proj.weight_scale_inv U8 128 2\n" L "0.mlp.up_proj.weight F8_E4M3 128 64\n" L
        "0.mlp.up_proj.weight_scale_inv U8 128 2\n" L "0.mlp.down_proj.weight F8_E4M3 64 128\n" L
        "0.mlp.down_proj.weight_scale_inv U8 64 4\n" L "1.input_layernorm.weight BF16 64\n";
    static const char *const later[] = {
        L "1.self_attn.index_q_proj.weight F8_E4M3 64 64\n",
        L "1.self_attn.index_k_proj.weight_scale_inv U8 32 2\n",
        L "1.self_attn.index_q_norm.weight BF16 32\n",
        L "1.self_attn.index_k_norm.weight BF16 32\n",
        L "1.block_sparse_moe.gate.weight F32 2 64\n" L "1.block_sparse_moe.e_score_correction_bias F32 2\n",
        L "1.block_sparse_moe.shared_experts.gate_proj.weight F8_E4M3 32 64\n",
        L "1.block_sparse_moe.shared_experts.down_proj.weight F8_E4M3 64 32\n",
        L "1.block_sparse_moe.experts.1.w1.weight_packed U8 96 32\n" L
          "1.block_sparse_moe.experts.1.w1.weight_scale F8_E4M3 96 4\n" L
          "1.block_sparse_moe.experts.1.w1.weight_global_scale F32 1\n" L
          "1.block_sparse_moe.experts.1.w1.input_global_scale F32 1\n",
        L "1.block_sparse_moe.experts.1.w2.weight_packed U8 64 48\n" L
          "1.block_sparse_moe.experts.1.w2.weight_scale F8_E4M3 64 6\n",
        L "1.block_sparse_moe.experts.1.w3.weight_packed U8 96 32\n",
        "language_model.model.norm.weight BF16 64\nlanguage_model.lm_head.weight BF16 100 64\n",
    };
    config c = tiny();
    listing *l = calloc(1, sizeof *l);
    assert_true(layout_walk(&c, SCHEME_M31, print, l));
    assert_memory_equal(l->text, expected, strlen(expected));
    for (size_t i = 0; i < sizeof later / sizeof later[0]; i++)
        if (!strstr(l->text, later[i])) fail_msg("missing: %s", later[i]);
    assert_null(strstr(l->text, "0.self_attn.index"));
    free(l);
}

static void names_of_modelopt_and_tied(void **state)
{
    (void)state;
    config c = tiny();
    c.tied_head = true, c.shared_expert = false;
    listing *l = calloc(1, sizeof *l);
    assert_true(layout_walk(&c, SCHEME_MODELOPT, print, l));
    /* scalars have no dimension there */
    assert_non_null(strstr(l->text, "experts.0.w2.weight U8 64 48\n"));
    assert_non_null(strstr(l->text, "experts.0.w2.weight_scale_2 F32\n"));
    assert_non_null(strstr(l->text, "experts.0.w2.input_scale F32\n"));
    assert_null(strstr(l->text, "lm_head"));
    assert_null(strstr(l->text, "shared_experts"));
    assert_null(strstr(l->text, "vision"));
    free(l);
}

static bool stop_at_three(void *user, const layout_entry *e)
{
    (void)e;
    return ++*(int *)user < 3;
}

static void a_walk_stops(void **state)
{
    (void)state;
    config c = tiny();
    int seen = 0;
    assert_false(layout_walk(&c, SCHEME_M31, stop_at_three, &seen));
    assert_int_equal(seen, 3);
    seen = 0;
    draft_config d = config_drafter(&c);
    assert_false(layout_walk_draft(&c, &d, stop_at_three, &seen));
    assert_int_equal(seen, 3);
}

static bool check_entry(void *user, const layout_entry *e)
{
    uint64_t *hash = user;
    uint64_t h = 1469598103934665603u;
    for (const char *p = e->name; *p; p++) h = (h ^ (uint8_t)*p) * 1099511628211u;
    *hash += h;
    assert_true(e->fan_in > 0);
    assert_true(strlen(e->name) < sizeof e->name - 1);
    if (strstr(e->name, ".experts.")) assert_true(e->expert >= 0 && e->layer >= 0);
    if (strstr(e->name, ".layers.") && strstr(e->name, "language_model")) assert_true(e->layer >= 0);
    if (!strncmp(e->name, "language_model", 14))
        assert_true(e->role < ROLE_COUNT);
    else
        assert_true(e->role == ROLE_COUNT);
    return true;
}

static void entries_say_what_they_are(void **state)
{
    (void)state;
    config c = known("m3.1-flash");
    uint64_t first = 0, second = 0;
    layout_walk(&c, SCHEME_M31, check_entry, &first);
    layout_walk(&c, SCHEME_M31, check_entry, &second);
    assert_true(first == second);
}

static void schemes_by_name(void **state)
{
    (void)state;
    layout_scheme s = SCHEME_BF16;
    assert_true(layout_parse_scheme("modelopt", &s));
    assert_int_equal(s, SCHEME_MODELOPT);
    assert_true(layout_parse_scheme("m31", &s));
    assert_int_equal(s, SCHEME_M31);
    assert_string_equal(layout_scheme_name(s), "m31");
    assert_false(layout_parse_scheme("int4", &s));
    assert_int_equal(layout_known_scheme("m3"), SCHEME_BF16);
    assert_int_equal(layout_known_scheme("m3-mxfp8"), SCHEME_MXFP8);
    assert_int_equal(layout_known_scheme("m3.1-flash"), SCHEME_M31);
}

static void widths_that_do_not_divide_are_refused(void **state)
{
    (void)state;
    hy_error err = {0};
    config c = tiny();
    assert_int_equal(layout_check(&c, SCHEME_M31, &err), HY_OK);
    c.expert_width = 80;
    assert_int_equal(layout_check(&c, SCHEME_BF16, &err), HY_OK);
    assert_int_equal(layout_check(&c, SCHEME_MXFP8, &err), HY_USAGE);
    assert_non_null(strstr(err.message, "intermediate_size is 80"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_totals), cmocka_unit_test(drafter_totals),
        cmocka_unit_test(names_of_m31),    cmocka_unit_test(names_of_modelopt_and_tied),
        cmocka_unit_test(a_walk_stops),    cmocka_unit_test(entries_say_what_they_are),
        cmocka_unit_test(schemes_by_name), cmocka_unit_test(widths_that_do_not_divide_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
