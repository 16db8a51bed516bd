/* Quantising: what comes out decodes to what went in, and what cannot be quantised is refused whole. The exact bytes
 * are held against a twin in test_quantize_twin.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/quantize.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/synth.h"

static char work[64];

static const char *path(const char *name)
{
    static char out[4][160];
    static int next;
    char *p = out[next++ % 4];
    snprintf(p, sizeof out[0], "%s/%s", work, name);
    return p;
}

static int run(const char *command)
{
    return system(command);
}

/* A small bf16 checkpoint in work/source with tokenizer files and a drafter. */
static int set_up(void **state)
{
    (void)state;
    config c;
    hy_error err = {0};
    strcpy(work, "/tmp/hayate-quantize-XXXXXX");
    if (!mkdtemp(work) || !config_known("m3", &c) || config_slice(&c, 2, 1, &err) != HY_OK) return -1;
    c.bos = 1, c.eos = 2, c.image_token = 3, c.video_token = 4;
    c.hidden = 128, c.vocab = 300, c.heads = 16, c.kv_heads = 1, c.index_heads = c.index_heads ? 1 : 0;
    c.experts = 4, c.expert_width = 96, c.shared_width = 64, c.dense_width = 160;
    c.vision_layers = 1, c.vision_hidden = 64, c.vision_heads = 2, c.vision_width = 128, c.projector_hidden = 96;
    synth_options o = {.scheme = SCHEME_BF16, .seed = 3, .drafter = true};
    if (synth_write(&c, path("source"), &o, &err) != HY_OK) {
        print_error("%s\n", err.message);
        return -1;
    }
    static const char *const files[] = {"tokenizer.json", "chat_template.jinja", "LICENSE", "README.md", "model.bin"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "source/%s", files[i]);
        FILE *f = fopen(path(name), "w");
        fprintf(f, "{} %s", files[i]);
        fclose(f);
    }
    return 0;
}

static int tear_down(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", work);
    return run(command);
}

static checkpoint *open_folder(const char *name)
{
    checkpoint *c = NULL;
    hy_error err = {0};
    if (checkpoint_open(path(name), &c, &err) != HY_OK) fail_msg("%s", err.message);
    return c;
}

static checkpoint *quantised(const char *name, layout_scheme scheme)
{
    hy_error err = {0};
    checkpoint *source = open_folder("source");
    if (quantize_run(source, path(name), &(quantize_options){.scheme = scheme}, &err) != HY_OK)
        fail_msg("%s", err.message);
    checkpoint_close(source);
    return open_folder(name);
}

/* Relative root mean square error of a role's weight against the source's. */
static double error_of(const checkpoint *a, const checkpoint *b, weight_role role, int layer, int expert,
                       weight_format want)
{
    weight x, y;
    hy_error err = {0};
    assert_int_equal(checkpoint_weight(a, role, layer, expert, &x, &err), HY_OK);
    if (checkpoint_weight(b, role, layer, expert, &y, &err) != HY_OK) fail_msg("%s", err.message);
    assert_int_equal(y.format, want);
    assert_int_equal(x.rows, y.rows);
    assert_int_equal(x.cols, y.cols);
    double error = 0, size = 0;
    float *p = malloc(2 * (size_t)x.cols * sizeof *p), *q = p + x.cols;
    for (int64_t r = 0; r < x.rows; r++) {
        weight_row(&x, r, p);
        weight_row(&y, r, q);
        for (int64_t i = 0; i < x.cols; i++) error += pow((double)p[i] - q[i], 2), size += pow(p[i], 2);
    }
    free(p);
    return sqrt(error / size);
}

/* Gaussian data: MXFP8 with ceil scales has 2.65 % of error, NVFP4 9.5 %; bf16 and fp32 are copied. */
static void weights_come_back(void **state)
{
    (void)state;
    static const layout_scheme schemes[] = {SCHEME_M31, SCHEME_MXFP8, SCHEME_MODELOPT};
    static const char *const names[] = {"m31", "mxfp8", "modelopt"};
    checkpoint *source = open_folder("source");
    for (int i = 0; i < 3; i++) {
        checkpoint *c = quantised(names[i], schemes[i]);
        weight_format expert = schemes[i] == SCHEME_MXFP8 ? WEIGHT_MXFP8 : WEIGHT_NVFP4;
        static const weight_role linears[] = {ROLE_Q, ROLE_K, ROLE_V, ROLE_O};
        for (int r = 0; r < 4; r++)
            assert_true(fabs(error_of(source, c, linears[r], 0, 0, WEIGHT_MXFP8) - 0.0265) < 0.001);
        assert_true(fabs(error_of(source, c, ROLE_DENSE_DOWN, 0, 0, WEIGHT_MXFP8) - 0.0265) < 0.001);
        assert_true(fabs(error_of(source, c, ROLE_SHARED_UP, 1, 0, WEIGHT_MXFP8) - 0.0265) < 0.001);
        for (weight_role r = ROLE_EXPERT_GATE; r <= ROLE_EXPERT_DOWN; r++)
            for (int e = 0; e < 4; e++) {
                double error = error_of(source, c, r, 1, e, expert);
                assert_true(fabs(error - (expert == WEIGHT_NVFP4 ? 0.095 : 0.0265)) <
                            (expert == WEIGHT_NVFP4 ? 0.004 : 0.001));
            }
        assert_true(error_of(source, c, ROLE_EMBED, -1, 0, WEIGHT_BF16) == 0);
        assert_true(error_of(source, c, ROLE_HEAD, -1, 0, WEIGHT_BF16) == 0);
        assert_true(error_of(source, c, ROLE_INPUT_NORM, 1, 0, WEIGHT_BF16) == 0);
        assert_true(error_of(source, c, ROLE_ROUTER, 1, 0, WEIGHT_F32) == 0);
        assert_true(error_of(source, c, ROLE_ROUTER_BIAS, 1, 0, WEIGHT_F32) == 0);
        checkpoint_close(c);
    }
    checkpoint_close(source);
}

/* Vision tensors and the drafter's folder go over byte for byte, tokenizer files too; what speaks of weights does not.
 */
static void the_rest_is_copied(void **state)
{
    (void)state;
    checkpoint *source = open_folder("source"), *c = quantised("copied", SCHEME_M31);
    size_t vision = 0;
    for (size_t i = 0; i < checkpoint_tensor_count(source, false); i++) {
        const tensor *t = checkpoint_tensor_at(source, i, false);
        if (!strncmp(t->name, "language_model.", 15)) continue;
        const tensor *u = checkpoint_find(c, t->name);
        assert_non_null(u);
        assert_int_equal(t->dtype, u->dtype);
        assert_int_equal(t->bytes, u->bytes);
        assert_memory_equal(t->data, u->data, t->bytes);
        vision++;
    }
    assert_int_equal(vision, 1 + 2 + 16 + 8);
    assert_int_equal(checkpoint_tensor_count(c, true), 97);
    for (size_t i = 0; i < 97; i++) {
        const tensor *t = checkpoint_tensor_at(source, i, true), *u = checkpoint_tensor_at(c, i, true);
        assert_string_equal(t->name, u->name);
        assert_memory_equal(t->data, u->data, t->bytes);
    }
    assert_true(file_exists(path("copied/tokenizer.json")));
    assert_true(file_exists(path("copied/chat_template.jinja")));
    assert_true(file_exists(path("copied/generation_config.json")));
    assert_true(file_exists(path("copied/LICENSE")));
    assert_false(file_exists(path("copied/README.md")));
    assert_false(file_exists(path("copied/model.bin")));
    assert_string_equal(checkpoint_config(c)->quant_method, "mxfp8");
    assert_string_equal(checkpoint_config(c)->moe_quant, "NVFP4");
    checkpoint_close(source);
    checkpoint_close(c);
}

/* A copy of the source whose bytes of one tensor are overwritten. */
static void damage(const char *name, const char *tensor_name, size_t at, const void *bytes, size_t count)
{
    char command[256];
    snprintf(command, sizeof command, "cp -r %s %s", path("source"), path(name));
    assert_int_equal(run(command), 0);
    checkpoint *c = open_folder(name);
    const tensor *t = checkpoint_find(c, tensor_name);
    assert_non_null(t);
    char file[160];
    snprintf(file, sizeof file, "%s", checkpoint_shard_path(c, 0, false));
    safetensors *f = NULL;
    hy_error err = {0};
    assert_int_equal(safetensors_open(file, &f, &err), HY_OK);
    const tensor *first = safetensors_at(f, 0), *own = safetensors_find(f, tensor_name);
    struct stat st;
    assert_int_equal(stat(file, &st), 0);
    size_t data = 0;
    for (size_t i = 0; i < safetensors_count(f); i++) data += safetensors_at(f, i)->bytes;
    off_t place = st.st_size - (off_t)data + ((const char *)own->data - (const char *)first->data) + (off_t)at;
    safetensors_close(f);
    checkpoint_close(c);
    int fd = open(file, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, count, place), (ssize_t)count);
    close(fd);
}

static void refuse(const char *name, hy_status status, const char *word)
{
    hy_error err = {0};
    checkpoint *source = open_folder(name);
    hy_status s = quantize_run(source, path("refused"), NULL, &err);
    checkpoint_close(source);
    if (s != status || !strstr(err.message, word)) fail_msg("%s: %s", hy_status_name(s), err.message);
    assert_null(strchr(err.message, '\n'));
    assert_false(file_is_folder(path("refused")));
}

static void values_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    const uint16_t nan_bits = 0x7FC0, infinity = 0xFF80;
    damage("nan", "language_model.model.layers.0.self_attn.k_proj.weight", 1000, &nan_bits, 2);
    refuse("nan", HY_BAD_MODEL, "self_attn.k_proj.weight has a value that is NaN");
    damage("infinite", "language_model.model.layers.1.block_sparse_moe.experts.2.w3.weight", 64, &infinity, 2);
    refuse("infinite", HY_BAD_MODEL, "experts.2.w");
}

static void quantised_sources_are_refused(void **state)
{
    (void)state;
    checkpoint_close(quantised("again", SCHEME_M31));
    refuse("again", HY_USAGE, "already");
    hy_error err = {0};
    checkpoint *source = open_folder("source");
    assert_int_equal(quantize_run(source, path("refused"), &(quantize_options){.scheme = SCHEME_BF16}, &err), HY_USAGE);
    assert_int_equal(quantize_run(source, path("source"), NULL, &err), HY_USAGE);
    assert_non_null(strstr(err.message, "not empty"));
    checkpoint_close(source);
}

static bool stop_at_once(void *user, const char *what, uint64_t done, uint64_t total, const char *unit)
{
    (void)user, (void)what, (void)done, (void)total, (void)unit;
    return false;
}

static void a_stopped_run_leaves_nothing(void **state)
{
    (void)state;
    hy_error err = {0};
    checkpoint *source = open_folder("source");
    quantize_options o = {.scheme = SCHEME_M31, .on_progress = stop_at_once};
    assert_int_equal(quantize_run(source, path("refused"), &o, &err), HY_CANCELLED);
    assert_false(file_is_folder(path("refused")));
    checkpoint_close(source);
}

typedef struct seen {
    uint64_t done, total;
} seen;

static bool remember(void *user, const char *what, uint64_t done, uint64_t total, const char *unit)
{
    seen *s = user;
    assert_string_equal(unit, "bytes");
    assert_non_null(what);
    assert_true(done >= s->done && done <= total);
    s->done = done, s->total = total;
    return true;
}

static void progress_reaches_its_total(void **state)
{
    (void)state;
    hy_error err = {0};
    seen s = {0};
    checkpoint *source = open_folder("source");
    quantize_options o = {.scheme = SCHEME_M31, .on_progress = remember, .user = &s};
    assert_int_equal(quantize_run(source, path("progress"), &o, &err), HY_OK);
    checkpoint_close(source);
    assert_true(s.total > 0 && s.done == s.total);
    config c = *checkpoint_config(source = open_folder("progress"));
    checkpoint_close(source);
    s = (seen){0};
    synth_options again = {.scheme = SCHEME_M31, .on_progress = remember, .user = &s, .drafter = true};
    assert_int_equal(synth_write(&c, path("progress-synth"), &again, &err), HY_OK);
    assert_true(s.total > 0 && s.done == s.total);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_come_back),
        cmocka_unit_test(the_rest_is_copied),
        cmocka_unit_test(values_that_are_not_finite_are_refused),
        cmocka_unit_test(quantised_sources_are_refused),
        cmocka_unit_test(a_stopped_run_leaves_nothing),
        cmocka_unit_test(progress_reaches_its_total),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
