#include "checkpoint/checkpoint.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/opened.h"

enum { PATH_SIZE = 4096 };

hy_status checkpoint_open(const char *path, checkpoint **out, hy_error *err)
{
    char config_path[PATH_SIZE + 16];
    checkpoint *c = calloc(1, sizeof *c);
    if (!c) return error_memory(err, path, sizeof *c);
    model_source *from = &c->source;
    hy_status status = source_open(path, from, err);
    if (status == HY_OK) status = file_join(c->source.folder, "config.json", config_path, sizeof config_path, err);
    if (status == HY_OK) status = config_load(config_path, &c->config, err);
    if (status == HY_OK && (from->count || from->index[0]))
        status = shards_open_files(from->files, from->count, from->index[0] ? from->index : NULL, &c->main, err);
    else if (status == HY_OK)
        status = shards_open(from->folder, &c->main, err);
    if (status == HY_OK) status = draft_open_own(c, err);
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
    source_close(&c->source);
    synth_made_free(&c->made);
    if (c->memory) close(c->memory - 1);
    if (c->draft_memory) close(c->draft_memory - 1);
    free(c);
}

const char *checkpoint_folder(const checkpoint *c)
{
    return c->source.folder;
}

const char *checkpoint_tokenizer(const checkpoint *c)
{
    return c->source.tokenizer[0] ? c->source.tokenizer : NULL;
}

const synth_made *checkpoint_made(const checkpoint *c, uint64_t *seed)
{
    *seed = c->seed;
    return c->elsewhere ? &c->made : NULL;
}

bool checkpoint_has_config(const checkpoint *c)
{
    return !c->known;
}

const config *checkpoint_config(const checkpoint *c)
{
    return &c->config;
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
