#include "model/model_parts.h"

#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "checkpoint/source.h"

#include <stdlib.h>
#include <string.h>

/* ---- Opening -------------------------------------------------------------------------------------------------- */

/* A model of files has the name of their folder. */
static hy_status copy_names(hy_model *m, const char *path, hy_error *err)
{
    const char *named = source_is_files(path) ? checkpoint_folder(m->files) : path;
    size_t length = strlen(path), end = strlen(named);
    while (length > 1 && path[length - 1] == '/') length--;
    while (end > 1 && named[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && named[begin - 1] != '/') begin--;
    m->path = memory_string(path, length);
    m->name = memory_string(named + begin, end - begin);
    return m->path && m->name ? HY_OK : error_memory(err, "a path", end);
}

static hy_status resolve_length(hy_model *m, int wanted, hy_error *err)
{
    int most = m->weights.shape.max_positions;
    if (wanted < 0 || wanted > most)
        return error_at(err, HY_USAGE, "--max-model-len",
                        "--max-model-len %d is outside 1..%d, the positions of this model", wanted, most);
    m->max_len = wanted ? wanted : most;
    return HY_OK;
}

static hy_status list_maps(hy_model *m, hy_error *err)
{
    size_t main = checkpoint_shard_count(m->files, false);
    m->map_count = main + (m->drafts ? checkpoint_shard_count(m->files, true) : 0);
    m->maps = memory_zeroed(m->map_count, sizeof *m->maps);
    if (!m->maps) return error_memory(err, "the list of files", m->map_count * sizeof *m->maps);
    for (size_t i = 0; i < m->map_count; i++)
        m->maps[i] =
            i < main ? checkpoint_shard_file(m->files, i, false) : checkpoint_shard_file(m->files, i - main, true);
    return HY_OK;
}

static hy_status open_pool(hy_model *m, const hy_model_options *o, hy_error *err)
{
    static const char *const names[] = {
        [THREADS_PIN_AUTO] = "auto", [THREADS_PIN_ON] = "on", [THREADS_PIN_OFF] = "off"};
    const char *name = o->cpu_pin && *o->cpu_pin ? o->cpu_pin : "auto";
    for (int pin = THREADS_PIN_AUTO; pin <= THREADS_PIN_OFF; pin++)
        if (strcmp(name, names[pin]) == 0) return threads_open_pinned(o->threads, (threads_pin)pin, &m->pool, err);
    return error_at(err, HY_USAGE, "--cpu-pin", "--cpu-pin '%.40s': choose auto, on or off", name);
}

static bool is_streamed(const hy_model_options *o)
{
    return o->weights && strcmp(o->weights, "stream") == 0;
}

static dummy_options dummy_of(const hy_model *m, const hy_model_options *o)
{
    return (dummy_options){.seed = o->dummy_seed,
                           .copies = is_streamed(o) ? 1 : 2,
                           .layers = o->dummy_layers,
                           .with_experts = o->dummy_expert_layers,
                           .elsewhere = m->ops->makes_weights,
                           .on_progress = o->on_progress,
                           .user = o->user};
}

static model_scales scales_of(const hy_model *m, const hy_model_options *o)
{
    if (m->ops->checks_scales) return MODEL_SCALES_BACKEND;
    return is_streamed(o) ? MODEL_SCALES_STREAMED : MODEL_SCALES_HERE;
}

/* The checkpoint's own drafter or another one's. Behind the main weights, whose embedding and head it uses. */
static hy_status open_drafter(hy_model *m, const hy_model_options *o, hy_error *err)
{
    const char *name = o->drafter && *o->drafter ? o->drafter : "off";
    hy_status status = HY_OK;
    m->drafts = strcmp(name, "off") != 0;
    if (!m->drafts) {
        checkpoint_warn_draft(m->files);
        return HY_OK;
    }
    if (!m->ops->draft_tap || !m->ops->draft_context || !m->ops->draft)
        return error_at(err, HY_UNSUPPORTED, "--drafter", "the %s backend has no drafter", m->ops->name);
    bool own = strcmp(name, "on") == 0;
    if (o->load_format && strcmp(o->load_format, "dummy") == 0) {
        dummy_options made = dummy_of(m, o);
        status = checkpoint_open_dummy_draft(m->files, own ? NULL : name, &made, err);
    } else if (!own) {
        status = checkpoint_open_draft(m->files, name, err);
    }
    if (status != HY_OK) return status;
    return model_drafter_open(m->files, scales_of(m, o), m->formats.draft, o->on_progress, o->user, &m->weights, err);
}

static hy_status open_backend(hy_model *m, const hy_model_options *o, hy_error *err)
{
    hy_status status = model_formats_resolve(&m->weights.shape, o, m->ops == &ops_reference, &m->formats, err);
    if (status == HY_OK) status = open_drafter(m, o, err);
    if (status == HY_OK)
        status = cache_layout_make(&m->weights.shape, m->formats.main, m->formats.index, &m->layout, err);
    if (status == HY_OK) status = open_pool(m, o, err);
    if (status == HY_OK) status = list_maps(m, err);
    uint64_t seed;
    if (status != HY_OK) return status;
    if (o->gpu_wgmma_rows < -1)
        return error_at(err, HY_USAGE, "--gpu-wgmma-rows", "--gpu-wgmma-rows cannot be %d", o->gpu_wgmma_rows);
    m->gpu_wgmma_rows = o->gpu_wgmma_rows;
    ops_options options = {
        .read = m->formats.read,
        .activation = m->formats.activation,
        .pool = m->pool,
        .files = m->maps,
        .file_count = m->map_count,
        .made = checkpoint_made(m->files, &seed),
        .shard = {.ranks = 1, .head_end = m->weights.shape.kv_heads, .expert_end = m->weights.shape.experts},
        .gpu_wgmma_rows = m->gpu_wgmma_rows,
        .on_progress = o->on_progress,
        .user = o->user,
    };
    status = model_memory_resolve(m, o, &options, err);
    if (status == HY_OK) status = model_memory_check(m, o, &options, err);
    if (status == HY_OK) status = m->ops->open(&m->weights.shape, &options, &m->backend, err);
    if (status == HY_OK) status = model_memory_take(m, 0, err);
    return status;
}

/* Without the index branch a sparse layer is a dense one. */
static hy_status resolve_attention(hy_model *m, const char *wanted, hy_error *err)
{
    bool dense = wanted && strcmp(wanted, "dense") == 0;
    if (wanted && *wanted && !dense && strcmp(wanted, "sparse") != 0)
        return error_at(err, HY_USAGE, "--attention", "--attention '%.40s': choose sparse or dense", wanted);
    for (int i = 0; i < m->weights.shape.layers && dense; i++) m->weights.shape.layer[i].sparse = false;
    return HY_OK;
}

/* A tokenizer may have fewer ids than the embedding has rows (padding), never more. */
static hy_status open_text(hy_model *m, const hy_model_options *o, hy_error *err)
{
    const char *folder = checkpoint_folder(m->files), *listed = checkpoint_tokenizer(m->files);
    const char *source = o->tokenizer ? o->tokenizer : listed ? listed : folder;
    hy_status status = HY_OK;
    if (source != folder || text_tokenizer_present(folder)) status = text_tokenizer_open(source, &m->tokenizer, err);
    if (status == HY_OK && m->tokenizer && text_tokenizer_vocab_size(m->tokenizer) > m->weights.shape.vocab)
        status = error_at(err, HY_BAD_MODEL, source, "the tokenizer in %s has %d ids but the model's vocabulary has %d",
                          source, text_tokenizer_vocab_size(m->tokenizer), m->weights.shape.vocab);
    if (status == HY_OK) status = text_template_detect(folder, o->chat_template, &m->chat, err);
    return status;
}

static hy_status open_checkpoint(hy_model *m, const char *path, const hy_model_options *o, hy_error *err)
{
    const char *format = o->load_format && *o->load_format ? o->load_format : "auto";
    if (strcmp(format, "dummy") == 0) {
        dummy_options made = dummy_of(m, o);
        return checkpoint_open_dummy(path, &made, &m->files, err);
    }
    if (o->dummy_layers != 0 || o->dummy_expert_layers != 0)
        return error_at(err, HY_USAGE, "--layers",
                        "only random weights come with some of a model's layers: --load-format dummy");
    if (strcmp(format, "auto") != 0 && strcmp(format, "safetensors") != 0)
        return error_at(err, HY_USAGE, "--load-format", "--load-format '%.40s': choose auto, safetensors or dummy",
                        format);
    return checkpoint_open(path, &m->files, err);
}

static hy_status open_parts(hy_model *m, const char *path, const hy_model_options *o, hy_error *err)
{
    const char *backend = o->backend && *o->backend && strcmp(o->backend, "auto") != 0 ? o->backend : "cpu";
    if (o->threads < 0) return error_at(err, HY_USAGE, "--threads", "--threads cannot be %d", o->threads);
    m->ops = ops_find(backend);
    if (!m->ops)
        return error_at(err, HY_USAGE, "--backend", "there is no backend '%.40s': choose one of %s", backend,
                        ops_names);
    hy_status status = open_checkpoint(m, path, o, err);
    if (status == HY_OK) status = copy_names(m, path, err);
    if (status == HY_OK)
        status = model_weights_open(m->files, scales_of(m, o), o->on_progress, o->user, &m->weights, err);
    if (status == HY_OK) status = resolve_attention(m, o->attention, err);
    if (status == HY_OK) status = resolve_length(m, o->max_model_len, err);
    if (status == HY_OK)
        status = model_generation_load(checkpoint_folder(m->files), checkpoint_config(m->files), &m->generation, err);
    if (status == HY_OK) status = open_text(m, o, err);
    if (status == HY_OK) status = open_backend(m, o, err);
    return status;
}

hy_status hy_model_open(const char *path, const hy_model_options *options, hy_model **model, hy_error *err)
{
    static const hy_model_options defaults;
    if (!path || !*path) return error_set(err, HY_USAGE, "the path of a model is missing");
    hy_model *m = memory_zeroed(1, sizeof *m);
    if (!m) return error_memory(err, "a model", sizeof *m);
    hy_status status = open_parts(m, path, options ? options : &defaults, err);
    if (status != HY_OK) {
        hy_model_close(m);
        return status;
    }
    hy_model_info info;
    hy_model_describe(m, &info);
    log_line(HY_LOG_INFO,
             "model %s: %d layers, backend %s, cache %s, index cache %s, read-back %s, expert activations %s",
             info.name, info.layers, info.backend, info.kv_cache_dtype, info.indexer_kv_dtype, info.readback,
             info.moe_activation);
    if (info.drafter)
        log_line(HY_LOG_INFO, "drafter %s: %d layers, up to %d drafts a round, cache %s, %llu bytes a token of its own",
                 info.drafter, m->weights.shape.drafter->layers, info.draft_block, info.draft_cache_dtype,
                 (unsigned long long)info.draft_cache_bytes_per_token);
    *model = m;
    return HY_OK;
}

void hy_model_close(hy_model *model)
{
    if (!model) return;
    if (model->backend) model->ops->close(model->backend);
    cache_layout_free(&model->layout);
    threads_close(model->pool);
    text_tokenizer_close(model->tokenizer);
    text_template_free(&model->chat);
    model_weights_close(&model->weights);
    memory_free(model->maps);
    checkpoint_close(model->files);
    free(model->path);
    free(model->name);
    memory_free(model);
}

static void describe_drafter(const hy_model *m, hy_model_info *info)
{
    const ops_drafter *d = m->weights.shape.drafter;
    if (!d) return;
    info->drafter = m->files ? checkpoint_draft_folder(m->files) : "";
    info->draft_cache_dtype = cache_format_name(d->cache);
    info->draft_block = d->block;
    info->draft_parameters = m->weights.draft_parameters;
    for (size_t i = 0; m->files && i < checkpoint_tensor_count(m->files, true); i++)
        info->draft_weight_bytes += checkpoint_tensor_at(m->files, i, true)->bytes;
    uint64_t vectors = 2 * (uint64_t)d->layers * (uint64_t)d->kv_heads; /* K and V of every head */
    info->draft_cache_bytes_per_token = vectors * cache_vector_bytes(d->cache, d->head_dim);
    info->cache_bytes_per_token += info->draft_cache_bytes_per_token;
}

void hy_model_describe(const hy_model *model, hy_model_info *info)
{
    const ops_model *s = &model->weights.shape;
    const cache_layout *l = &model->layout;
    *info = (hy_model_info){
        .path = model->path,
        .name = model->name,
        .backend = model->ops->name,
        .kv_cache_dtype = cache_format_name(l->main),
        .indexer_kv_dtype = cache_format_name(l->index),
        .readback = model->formats.read == READBACK_E4M3 ? "e4m3" : "exact",
        .moe_activation = model->formats.activation == MOE_ACTIVATION_NVFP4 ? "nvfp4" : "none",
        .layers = s->layers,
        .hidden = s->hidden,
        .vocab = s->vocab,
        .max_model_len = model->max_len,
        .parameters = model->weights.parameters,
        .has_tokenizer = model->tokenizer != NULL,
    };
    size_t tensors =
        model->files ? checkpoint_tensor_count(model->files, false) : 0; /* none: a stand-in of the tests */
    for (size_t i = 0; i < tensors; i++) info->weight_bytes += checkpoint_tensor_at(model->files, i, false)->bytes;
    describe_drafter(model, info);
    ops_loaded loaded = {0};
    if (model->ops->loaded) model->ops->loaded(model->backend, &loaded);
    info->load_bytes = loaded.bytes, info->load_seconds = loaded.seconds, info->load_way = loaded.way;
    for (int i = 0; i < s->layers; i++) {
        info->cache_bytes_per_token += 2 * (uint64_t)s->kv_heads * cache_vector_bytes(l->main, s->head_dim);
        if (s->layer[i].sparse) info->cache_bytes_per_token += cache_vector_bytes(l->index, s->index_dim);
    }
}

/* ---- Parts ---------------------------------------------------------------------------------------------------- */

const checkpoint *model_checkpoint(const hy_model *model)
{
    return model->files;
}

const config *model_config(const hy_model *model)
{
    return checkpoint_config(model->files);
}

const ops_model *model_ops_model(const hy_model *model)
{
    return &model->weights.shape;
}

const hy_ops *model_ops(const hy_model *model)
{
    return model->ops;
}

ops_backend *model_backend(const hy_model *model)
{
    return model->backend;
}

threads *model_pool(const hy_model *model)
{
    return model->pool;
}

const cache_layout *model_cache_layout(const hy_model *model)
{
    return &model->layout;
}

const model_generation *model_generation_config(const hy_model *model)
{
    return &model->generation;
}

const text_tokenizer *model_tokenizer(const hy_model *model)
{
    return model->tokenizer;
}

int model_max_len(const hy_model *model)
{
    return model->max_len;
}
