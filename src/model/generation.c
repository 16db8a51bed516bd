/* generation_config.json: the parameters that a checkpoint recommends, and which tokens end a text. */
#include "base/error.h"
#include "base/file.h"
#include "model/model_parts.h"
#include "text/json_read.h"

#include <math.h>
#include <stdlib.h>

enum { FILE_LIMIT = 1 << 20, PATH_LIMIT = 4096 };

typedef struct reader {
    const json_t *root;
    const char *path;
    hy_error *err;
    hy_status status;
} reader;

/* A number within [low, high] if the file has the key; null counts as absent. */
static double number(reader *r, const char *key, double low, double high, double otherwise)
{
    const json_t *value = json_object_get(r->root, key);
    if (!value || json_is_null(value) || r->status != HY_OK) return otherwise;
    double x = json_is_number(value) ? json_number_value(value) : NAN;
    if (x >= low && x <= high) return x;
    r->status =
        error_at(r->err, HY_BAD_MODEL, r->path, "%s: %s must be a number from %g to %g", r->path, key, low, high);
    return otherwise;
}

/* The same of a number that counts. */
static int whole(reader *r, const char *key, int low, int high, int otherwise)
{
    double x = number(r, key, low, high, otherwise);
    if (r->status == HY_OK && x != floor(x))
        r->status = error_at(r->err, HY_BAD_MODEL, r->path, "%s: %s must be a whole number, not %g", r->path, key, x);
    return (int)x;
}

static void end_token(reader *r, const json_t *value, int vocab, model_generation *out)
{
    if (r->status != HY_OK) return;
    json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    if (id < 0 || id >= vocab)
        r->status = error_at(r->err, HY_BAD_MODEL, r->path, "%s: eos_token_id must be ids of the vocabulary 0..%d",
                             r->path, vocab - 1);
    else if (out->eos_count == CONFIG_MAX_EOS)
        r->status =
            error_at(r->err, HY_BAD_MODEL, r->path, "%s: eos_token_id lists more than %d ids", r->path, CONFIG_MAX_EOS);
    else
        out->eos[out->eos_count++] = (int32_t)id;
}

static void read_fields(reader *r, const config *c, model_generation *out)
{
    out->temperature = (float)number(r, "temperature", 0, 2, out->temperature);
    out->top_p = (float)number(r, "top_p", 0x1p-20, 1, out->top_p);
    out->min_p = (float)number(r, "min_p", 0, 1, out->min_p);
    out->repetition_penalty = (float)number(r, "repetition_penalty", 0x1p-20, 1000, out->repetition_penalty);
    out->top_k = whole(r, "top_k", -1, 1 << 30, out->top_k);
    const json_t *eos = json_object_get(r->root, "eos_token_id");
    for (size_t i = 0; json_is_array(eos) && i < json_array_size(eos); i++)
        end_token(r, json_array_get(eos, i), c->vocab, out);
    if (eos && !json_is_array(eos) && !json_is_null(eos)) end_token(r, eos, c->vocab, out);
}

hy_status model_generation_load(const char *folder, const config *c, model_generation *out, hy_error *err)
{
    model_generation g = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    char path[PATH_LIMIT];
    hy_status status = file_join(folder, "generation_config.json", path, sizeof path, err);
    if (status != HY_OK) return status;
    if (file_present(path)) {
        char *text = NULL;
        size_t size = 0;
        status = file_read(path, FILE_LIMIT, &text, &size, err);
        if (status != HY_OK) return status;
        json_t *root = json_read(text, size, JSON_REJECT_DUPLICATES, HY_BAD_MODEL, path, err);
        free(text);
        if (!root) return HY_BAD_MODEL;
        reader r = {.root = root, .path = path, .err = err};
        if (json_is_object(root))
            read_fields(&r, c, &g);
        else
            r.status = error_at(err, HY_BAD_MODEL, path, "%s must hold a JSON object", path);
        json_decref(root);
        if (r.status != HY_OK) return r.status;
    }
    if (!g.eos_count && c->eos >= 0) g.eos[g.eos_count++] = c->eos;
    *out = g;
    return HY_OK;
}
