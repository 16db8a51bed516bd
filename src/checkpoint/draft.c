/* The drafter of a checkpoint: its folder, its tensors held against the layout, its weights. */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "checkpoint/hub.h"
#include "checkpoint/layout.h"
#include "checkpoint/opened.h"

enum { PATH_SIZE = 4096, CONFIG_LIMIT = 1 << 20 };

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static hy_status read_config(const checkpoint *c, const char *folder, draft_config *d, hy_error *err)
{
    char path[PATH_SIZE + 32], *json = NULL;
    size_t length;
    hy_status status = file_join(folder, "config.json", path, sizeof path, err);
    if (status == HY_OK && !file_exists(path))
        status =
            error_at(err, HY_BAD_MODEL, folder, "%.200s has no config.json; complete or remove the folder", folder);
    if (status == HY_OK) status = file_read(path, CONFIG_LIMIT, &json, &length, err);
    if (status == HY_OK) status = draft_config_parse(path, json, length, d, err);
    free(json);
    return status == HY_OK ? draft_config_fit(path, d, &c->config, err) : status;
}

static hy_status open_folder(checkpoint *c, const char *folder, hy_error *err)
{
    draft_config d;
    shards files = {0};
    hy_status status = read_config(c, folder, &d, err);
    if (status == HY_OK) status = shards_open(folder, &files, err);
    if (status != HY_OK) return status;
    if (d.family == DRAFT_QWEN3) {
        d.own_embed = tensor_table_find(&files.table, "embed_tokens.weight") != NULL;
        d.own_head = tensor_table_find(&files.table, "lm_head.weight") != NULL;
    }
    shards_close(&c->drafter);
    c->drafter = files, c->draft = d, c->has_draft = true;
    snprintf(c->draft_folder, sizeof c->draft_folder, "%s", folder);
    return HY_OK;
}

static hy_status open_own(checkpoint *c, const char *folder, hy_error *err)
{
    if (file_is_folder(folder)) return open_folder(c, folder, err);
    return error_at(err, HY_BAD_MODEL, folder, "%.200s should be the drafter's folder and is none: remove it", folder);
}

hy_status draft_open_own(checkpoint *c, hy_error *err)
{
    char folder[PATH_SIZE + 16];
    hy_error why = {0};
    hy_status status = file_join(c->source.folder, "dspark", folder, sizeof folder, err);
    if (status != HY_OK || !file_present(folder)) return status;
    status = open_own(c, folder, &why);
    if (status == HY_NO_FIT) return *err = why, status;
    if (status == HY_OK) return HY_OK;
    c->draft_error = why;
    return HY_OK;
}

void checkpoint_warn_draft(const checkpoint *c)
{
    if (!c->has_draft && c->draft_error.status != HY_OK)
        log_line(HY_LOG_WARNING, "the drafter in %.200s/dspark is left out: %s", c->source.folder,
                 c->draft_error.message);
}

/* A folder, or the folder dspark in it. */
static hy_status find_folder(const char *folder, char out[PATH_SIZE + 16], hy_error *err)
{
    char resolved[PATH_SIZE];
    hy_status status = hub_resolve(folder, resolved, sizeof resolved, err);
    if (status == HY_OK) status = file_join(resolved, "dspark", out, PATH_SIZE + 16, err);
    if (status == HY_OK && !file_is_folder(out)) snprintf(out, PATH_SIZE + 16, "%s", resolved);
    return status;
}

hy_status checkpoint_open_draft(checkpoint *c, const char *folder, hy_error *err)
{
    char place[PATH_SIZE + 16];
    hy_status status = find_folder(folder, place, err);
    return status == HY_OK ? open_folder(c, place, err) : status;
}

hy_status draft_find_config(const checkpoint *c, const char *folder, char out[PATH_SIZE + 16], draft_config *d,
                            hy_error *err)
{
    hy_status status = find_folder(folder, out, err);
    return status == HY_OK ? read_config(c, out, d, err) : status;
}

const draft_config *checkpoint_draft(const checkpoint *c)
{
    return c->has_draft ? &c->draft : NULL;
}

const char *checkpoint_draft_folder(const checkpoint *c)
{
    return c->has_draft ? c->draft_folder : NULL;
}

/* ---- Schema ------------------------------------------------------------------------------------------------------ */

typedef struct schema {
    const checkpoint *c;
    uint8_t *known; /* [count] tensors that belong to the layout */
    hy_error *err;
    hy_status status;
} schema;

/* The scales of MXFP8 are bytes; files may say what is in them. */
static bool type_fits(const draft_config *d, const layout_entry *e, const tensor *t)
{
    if (t->dtype == e->dtype || (e->dtype == TENSOR_U8 && t->dtype == TENSOR_F8_E8M0)) return true;
    return d->family == DRAFT_QWEN3 && (t->dtype == TENSOR_F32 || t->dtype == TENSOR_F16);
}

static hy_status check_tensor(const draft_config *d, const layout_entry *e, const tensor *t, hy_error *err)
{
    if (!type_fits(d, e, t))
        return error_at(err, HY_BAD_MODEL, t->name, "tensor %.160s has dtype %s; %s belongs there", t->name,
                        tensor_dtype_name(t->dtype), tensor_dtype_name(e->dtype));
    return naming_check_shape(t, e->dims, e->shape, err);
}

static bool check_entry(void *user, const layout_entry *e)
{
    schema *s = user;
    const shards *files = &s->c->drafter;
    const tensor *t = tensor_table_find(&files->table, e->name);
    if (t)
        s->status = check_tensor(&s->c->draft, e, t, s->err);
    else
        s->status = error_at(s->err, HY_BAD_MODEL, e->name, "tensor %s of the drafter is missing", e->name);
    for (size_t i = 0; i < files->count; i++) s->known[i] |= files->tensors[i] == t;
    return s->status == HY_OK;
}

hy_status checkpoint_check_draft(const checkpoint *c, hy_error *err)
{
    if (!c->has_draft && c->draft_error.status != HY_OK)
        return error_at(err, c->draft_error.status, c->source.folder, "the drafter in %.200s/dspark cannot be used: %s",
                        c->source.folder, c->draft_error.message);
    if (!c->has_draft)
        return error_at(err, HY_BAD_MODEL, c->source.folder, "%.200s has no drafter: there is no folder dspark in it",
                        c->source.folder);
    schema s = {.c = c, .err = err, .known = memory_zeroed(c->drafter.count, 1)};
    if (!s.known) return error_memory(err, "a list of tensors", c->drafter.count);
    layout_walk_draft(&c->config, &c->draft, check_entry, &s);
    for (size_t i = 0; i < c->drafter.count && s.status == HY_OK; i++) {
        const char *name = c->drafter.tensors[i]->name;
        if (!s.known[i])
            s.status = error_at(err, HY_BAD_MODEL, name, "tensor %.160s is none of a drafter with this config", name);
    }
    memory_free(s.known);
    return s.status;
}

/* ---- Weights ----------------------------------------------------------------------------------------------------- */

typedef struct wanted {
    const checkpoint *c;
    draft_role role;
    int layer;
    weight out;
    bool found;
} wanted;

static weight_format format_of(tensor_dtype dtype)
{
    switch (dtype) {
    case TENSOR_F32: return WEIGHT_F32;
    case TENSOR_F16: return WEIGHT_F16;
    case TENSOR_F8_E4M3: return WEIGHT_MXFP8;
    default: return WEIGHT_BF16;
    }
}

static bool take_entry(void *user, const layout_entry *e)
{
    wanted *w = user;
    if (e->draft != w->role || e->layer != w->layer) return true;
    const tensor *t = tensor_table_find(&w->c->drafter.table, e->name);
    if (!t) return false;
    if (e->fill == FILL_E8M0) {
        w->out.scales = t->data;
        return false;
    }
    w->out = (weight){.format = format_of(t->dtype),
                      .rows = e->dims > 1 ? e->shape[0] : 1,
                      .cols = e->shape[e->dims - 1],
                      .data = t->data};
    w->found = true;
    return w->out.format == WEIGHT_MXFP8; /* its scales come next */
}

hy_status checkpoint_draft_weight(const checkpoint *c, draft_role role, int layer, weight *out, hy_error *err)
{
    wanted w = {.c = c, .role = role, .layer = layer};
    layout_walk_draft(&c->config, &c->draft, take_entry, &w);
    if (!w.found || (w.out.format == WEIGHT_MXFP8 && !w.out.scales))
        return error_set(err, HY_BAD_MODEL, "the drafter lacks a tensor (role %d, layer %d)", (int)role, layer);
    *out = w.out;
    return HY_OK;
}
