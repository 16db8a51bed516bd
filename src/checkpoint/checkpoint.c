#include "checkpoint/checkpoint.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/hub.h"
#include "checkpoint/opened.h"

enum { PATH_SIZE = 4096, CONFIG_LIMIT = 1 << 20 };

/* The drafter reads the target's embedding, head and layer outputs, so the sizes of the two must match. */
static hy_status check_draft(const checkpoint *c, const char *path, hy_error *err)
{
    const draft_config *d = &c->draft;
    if (d->hidden != c->config.hidden || d->vocab != c->config.vocab)
        return error_at(
            err, HY_BAD_MODEL, path,
            "the drafter has hidden size %d and vocabulary %d, the target %d and %d; they do not belong together",
            d->hidden, d->vocab, c->config.hidden, c->config.vocab);
    if (d->taps[d->tap_count - 1] >= c->config.layers)
        return error_at(err, HY_BAD_MODEL, path, "the drafter reads layer %d of a target with %d layers",
                        d->taps[d->tap_count - 1], c->config.layers);
    return HY_OK;
}

static hy_status open_draft(checkpoint *c, hy_error *err)
{
    char folder[PATH_SIZE + 16], path[PATH_SIZE + 32], *json = NULL;
    size_t length;
    hy_status status = file_join(c->folder, "dspark", folder, sizeof folder, err);
    if (status != HY_OK || !file_present(folder)) return status;
    if (!file_is_folder(folder))
        return error_at(err, HY_FAILED, folder, "%.200s should be the drafter's folder and is none: remove it", folder);
    status = file_join(folder, "config.json", path, sizeof path, err);
    if (status == HY_OK && !file_exists(path))
        status =
            error_at(err, HY_BAD_MODEL, folder, "%.200s has no config.json; complete or remove the folder", folder);
    if (status == HY_OK) status = file_read(path, CONFIG_LIMIT, &json, &length, err);
    if (status == HY_OK) status = draft_config_parse(path, json, length, &c->draft, err);
    free(json);
    if (status == HY_OK) status = check_draft(c, path, err);
    if (status == HY_OK) status = shards_open(folder, &c->drafter, err);
    c->has_draft = status == HY_OK;
    return status;
}

hy_status checkpoint_open(const char *path, checkpoint **out, hy_error *err)
{
    char config_path[PATH_SIZE + 16];
    checkpoint *c = calloc(1, sizeof *c);
    if (!c) return error_memory(err, path, sizeof *c);
    hy_status status = hub_resolve(path, c->folder, sizeof c->folder, err);
    if (status == HY_OK) status = file_join(c->folder, "config.json", config_path, sizeof config_path, err);
    if (status == HY_OK) status = config_load(config_path, &c->config, err);
    if (status == HY_OK) status = shards_open(c->folder, &c->main, err);
    if (status == HY_OK) status = open_draft(c, err);
    if (status != HY_OK) {
        checkpoint_close(c);
        return status;
    }
    c->prefix = naming_prefix(&c->main);
    *out = c;
    return HY_OK;
}

void checkpoint_close(checkpoint *c)
{
    if (!c) return;
    shards_close(&c->drafter);
    shards_close(&c->main);
    free(c);
}

const char *checkpoint_folder(const checkpoint *c)
{
    return c->folder;
}

const config *checkpoint_config(const checkpoint *c)
{
    return &c->config;
}

const draft_config *checkpoint_draft(const checkpoint *c)
{
    return c->has_draft ? &c->draft : NULL;
}

static const shards *part(const checkpoint *c, bool draft)
{
    return draft ? &c->drafter : &c->main;
}

size_t checkpoint_tensor_count(const checkpoint *c, bool draft)
{
    return part(c, draft)->count;
}

const tensor *checkpoint_tensor_at(const checkpoint *c, size_t i, bool draft)
{
    return i < part(c, draft)->count ? part(c, draft)->tensors[i] : NULL;
}

const tensor *checkpoint_find(const checkpoint *c, const char *name)
{
    return tensor_table_find(&c->main.table, name);
}

size_t checkpoint_shard_count(const checkpoint *c, bool draft)
{
    return part(c, draft)->file_count;
}

const char *checkpoint_shard_path(const checkpoint *c, size_t i, bool draft)
{
    return i < part(c, draft)->file_count ? safetensors_path(part(c, draft)->files[i]) : NULL;
}

weight_file checkpoint_shard_file(const checkpoint *c, size_t i, bool draft)
{
    return i < part(c, draft)->file_count ? safetensors_file(part(c, draft)->files[i]) : (weight_file){0};
}
