#include "model/trace.h"

#include "backend/reference/reference.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 32, DEFAULT_CHUNK = 512 };

/* ---- Tensors of a trace --------------------------------------------------------------------------------------- */

struct trace {
    tensor *tensors; /* [capacity], `count` in use; data is owned */
    char (*names)[NAME_BYTES];
    size_t count, capacity;
    hy_model_info info; /* formats for the metadata; its strings for those are static */
};

size_t trace_count(const trace *t)
{
    return t->count;
}

const tensor *trace_at(const trace *t, size_t i)
{
    return &t->tensors[i];
}

const tensor *trace_find(const trace *t, const char *name)
{
    for (size_t i = 0; i < t->count; i++)
        if (strcmp(t->tensors[i].name, name) == 0) return &t->tensors[i];
    return NULL;
}

void trace_close(trace *t)
{
    if (!t) return;
    for (size_t i = 0; i < t->count; i++) memory_free((void *)t->tensors[i].data);
    memory_free(t->tensors);
    memory_free(t->names);
    memory_free(t);
}

/* A zeroed tensor of four-byte elements with the first `dims` dims of `shape`, named `kind`, or kind.layer from layer 0
 * on; NULL when there is no memory. */
static void *add_tensor(trace *t, const char *kind, int layer, tensor_dtype dtype, int dims, const size_t shape[3])
{
    size_t bytes = 4;
    for (int i = 0; i < dims; i++)
        if (!size_mul(bytes, shape[i], &bytes)) return NULL;
    void *data = memory_zeroed(bytes ? bytes : 1, 1);
    if (!data) return NULL;
    if (layer < 0)
        snprintf(t->names[t->count], NAME_BYTES, "%s", kind);
    else
        snprintf(t->names[t->count], NAME_BYTES, "%s.%d", kind, layer);
    tensor *made = &t->tensors[t->count];
    *made = (tensor){.name = t->names[t->count], .dtype = dtype, .dims = dims, .data = data, .bytes = bytes};
    for (int i = 0; i < dims; i++) made->shape[i] = (int64_t)shape[i];
    t->count++;
    return data;
}

static void *add_floats(trace *t, const char *kind, int layer, size_t rows, size_t columns)
{
    return add_tensor(t, kind, layer, TENSOR_F32, 2, (const size_t[3]){rows, columns});
}

static bool add_list(trace *t, const char *kind, const int32_t *values, size_t count)
{
    void *data = add_tensor(t, kind, -1, TENSOR_I32, 1, (const size_t[3]){count});
    if (data && count) memcpy(data, values, count * sizeof *values);
    return data != NULL;
}

hy_status trace_write(const trace *t, const char *path, hy_error *err)
{
    const char *metadata[] = {
        "kv_cache_dtype",   t->info.kv_cache_dtype,
        "indexer_kv_dtype", t->info.indexer_kv_dtype,
        "readback",         t->info.readback,
        "moe_activation",   t->info.moe_activation,
        "backend",          t->info.backend,
        "precision",        strcmp(t->info.backend, "reference") == 0 ? "fp32" : "bf16",
    };
    safetensors_entry *entries = memory_zeroed(t->count, sizeof *entries);
    if (!entries) return error_memory(err, "a list of tensors", t->count * sizeof *entries);
    for (size_t i = 0; i < t->count; i++) {
        entries[i] = (safetensors_entry){t->tensors[i].name, t->tensors[i].dtype, t->tensors[i].dims, {0}};
        memcpy(entries[i].shape, t->tensors[i].shape, sizeof entries[i].shape);
    }
    safetensors_writer *writer = NULL;
    hy_status status = safetensors_create(path, entries, t->count, metadata, sizeof metadata / sizeof *metadata / 2,
                                          false, &writer, err);
    memory_free(entries);
    if (status != HY_OK) return status;
    for (size_t i = 0; i < t->count && status == HY_OK; i++)
        status = safetensors_write(writer, t->tensors[i].data, t->tensors[i].bytes, err);
    if (status == HY_OK) return safetensors_finish(writer, err);
    safetensors_abort(writer);
    return status;
}

/* ---- A run ---------------------------------------------------------------------------------------------------- */

/* Where the parts of one layer go; NULL where the layer has no such part. */
typedef struct layer_out {
    float *hidden;    /* [N, hidden] after the layer */
    int32_t *blocks;  /* [T, index heads, k] */
    int32_t *experts; /* [T, experts_per_token] */
    float *weights;
    const tensor *replay_blocks, *replay_experts;
} layer_out;

typedef struct run {
    const hy_model *model;
    const ops_model *shape;
    const hy_ops *ops;
    const trace_plan *plan;
    const trace_options *options;
    trace *out;
    float *embedded;  /* [N, hidden] */
    layer_out *layer; /* [layers] */
    float *logits;    /* [R, vocab] */
    float *decode;    /* [S, vocab] */
    int32_t *greedy;  /* [max(S, 1)] */
    size_t greedy_count, blocks_kept, replay_rows;

    ops_step *step;
    ops_cache *cache;
    int32_t chunk_rows;
    int32_t first, count;                 /* rows of the prompt in the running step; count 0 while decoding */
    int32_t *sequence, *position, *token; /* [chunk_rows] */
    int64_t *slot;
    uint8_t *flags;
    int32_t *table;                         /* [blocks] */
    int32_t *replay_blocks, *replay_routes; /* as in ops_rows */
    int32_t *selected;                      /* [chunk_rows, index heads, top] */
    float *row;                             /* [max(hidden, vocab)] */
    float *final_gain;                      /* [hidden] */
    progress progress;
    bool stopped;
} run;

static size_t chunk_at(const trace_options *o, size_t i)
{
    if (!o->chunk_count) return DEFAULT_CHUNK;
    return (size_t)o->chunks[i < o->chunk_count ? i : o->chunk_count - 1];
}

static size_t index_width(const ops_model *m)
{
    return (size_t)m->index_heads * (size_t)m->index_top;
}

static hy_status check_ids(const ops_model *m, const char *what, const int32_t *ids, size_t count, hy_error *err)
{
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= m->vocab)
            return error_set(err, HY_BAD_INPUT, "token id %d at %s %zu is outside the vocabulary 0..%d", ids[i], what,
                             i, m->vocab - 1);
    return HY_OK;
}

static hy_status check_plan(const run *r, hy_error *err)
{
    const trace_plan *p = r->plan;
    if (!p->id_count) return error_set(err, HY_BAD_INPUT, "the prompt is empty: give at least one token id");
    for (size_t i = 0; i < r->options->chunk_count; i++)
        if (r->options->chunks[i] < 1)
            return error_set(err, HY_USAGE, "a chunk of %d rows: give sizes from 1", r->options->chunks[i]);
    if (p->id_count + p->feed_count > (size_t)model_max_len(r->model))
        return error_set(err, HY_NO_FIT, "%zu tokens are more than the model's limit of %d",
                         p->id_count + p->feed_count, model_max_len(r->model));
    hy_status status = check_ids(r->shape, "place", p->ids, p->id_count, err);
    return status == HY_OK ? check_ids(r->shape, "greedy place", p->feed, p->feed_count, err) : status;
}

/* A replayed tensor of the right shape. */
static hy_status find_replay(run *r, const char *kind, int layer, int dims, size_t columns, const tensor **out,
                             hy_error *err)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s.%d", kind, layer);
    const safetensors *file = r->options->replay;
    const tensor *t = safetensors_find(file, name);
    if (!t) return error_at(err, HY_BAD_MODEL, name, "%s has no %s to replay", safetensors_path(file), name);
    bool right =
        t->dtype == TENSOR_I32 && t->dims == dims && (!r->replay_rows || (size_t)t->shape[0] == r->replay_rows);
    if (dims == 3)
        right = right && t->shape[1] == r->shape->index_heads && (size_t)t->shape[2] <= columns;
    else
        right = right && (size_t)t->shape[1] == columns;
    if (!right || t->shape[0] < 1)
        return error_at(err, HY_BAD_MODEL, name, "%s in %s does not have the shape that this model replays", name,
                        safetensors_path(file));
    r->replay_rows = (size_t)t->shape[0];
    *out = t;
    return HY_OK;
}

static hy_status find_replays(run *r, hy_error *err)
{
    const ops_model *m = r->shape;
    hy_status status = HY_OK;
    for (int l = 0; l < m->layers && r->options->replay && status == HY_OK; l++) {
        if (m->layer[l].sparse)
            status = find_replay(r, "blocks", l, 3, (size_t)m->index_top, &r->layer[l].replay_blocks, err);
        if (status == HY_OK && m->layer[l].moe)
            status = find_replay(r, "experts", l, 2, (size_t)m->experts_per_token, &r->layer[l].replay_experts, err);
    }
    return status;
}

/* The parts of one layer. */
static bool add_layer(run *r, int l)
{
    const ops_model *m = r->shape;
    layer_out *out = &r->layer[l];
    size_t prompt = r->plan->id_count, rows = r->plan->hidden_row_count, routes = (size_t)m->experts_per_token;
    bool ok = true;
    if (rows) ok = (out->hidden = add_floats(r->out, "hidden", l + 1, rows, (size_t)m->hidden)) != NULL;
    if (ok && m->layer[l].sparse)
        ok = (out->blocks = add_tensor(r->out, "blocks", l, TENSOR_I32, 3,
                                       (const size_t[3]){prompt, (size_t)m->index_heads, r->blocks_kept})) != NULL;
    if (!ok || !m->layer[l].moe) return ok;
    out->experts = add_tensor(r->out, "experts", l, TENSOR_I32, 2, (const size_t[3]){prompt, routes});
    out->weights = add_floats(r->out, "expert_weights", l, prompt, routes);
    return out->experts && out->weights;
}

/* All tensors of the result, in their final size. */
static bool add_outputs(run *r)
{
    const trace_plan *p = r->plan;
    const ops_model *m = r->shape;
    size_t vocab = (size_t)m->vocab, rows = p->hidden_row_count, blocks = (p->id_count + CACHE_BLOCK - 1) / CACHE_BLOCK;
    r->blocks_kept = blocks < (size_t)m->index_top ? blocks : (size_t)m->index_top;
    r->greedy_count = p->feed_count ? p->feed_count : 1;
    bool ok = add_list(r->out, "input_ids", p->ids, p->id_count) &&
              add_list(r->out, "logit_rows", p->logit_rows, p->logit_row_count);
    if (rows) ok = ok && add_list(r->out, "hidden_rows", p->hidden_rows, rows);
    ok = ok && (r->logits = add_floats(r->out, "prefill_logits", -1, p->logit_row_count, vocab));
    if (rows) ok = ok && (r->embedded = add_floats(r->out, "hidden", 0, rows, (size_t)m->hidden));
    for (int l = 0; l < m->layers && ok; l++) ok = add_layer(r, l);
    ok = ok && (r->greedy = add_tensor(r->out, "greedy_ids", -1, TENSOR_I32, 1, (const size_t[3]){r->greedy_count}));
    if (p->feed_count) ok = ok && (r->decode = add_floats(r->out, "decode_logits", -1, p->feed_count, vocab));
    return ok;
}

static hy_status open_outputs(run *r, hy_error *err)
{
    size_t layers = (size_t)r->shape->layers, capacity = 7 + 4 * layers;
    r->layer = memory_zeroed(layers, sizeof *r->layer);
    r->out = memory_zeroed(1, sizeof *r->out);
    if (r->out) {
        r->out->tensors = memory_zeroed(capacity, sizeof *r->out->tensors);
        r->out->names = memory_zeroed(capacity, sizeof *r->out->names);
        r->out->capacity = capacity;
        hy_model_describe(r->model, &r->out->info);
    }
    if (!r->layer || !r->out || !r->out->tensors || !r->out->names || !add_outputs(r))
        return error_memory(err, "the tensors of a trace", r->plan->logit_row_count * (size_t)r->shape->vocab * 4);
    return HY_OK;
}

static hy_status open_rows(run *r, hy_error *err)
{
    const ops_model *m = r->shape;
    size_t done = 0, rows = 1, positions = r->plan->id_count + r->plan->feed_count;
    for (size_t i = 0; done < r->plan->id_count; i++) {
        size_t chunk = chunk_at(r->options, i), left = r->plan->id_count - done;
        if (chunk > left) chunk = left;
        if (chunk > rows) rows = chunk;
        done += chunk;
    }
    r->chunk_rows = (int32_t)rows;
    size_t layers = (size_t)m->layers, blocks = (positions + CACHE_BLOCK - 1) / CACHE_BLOCK;
    size_t widest = (size_t)(m->hidden > m->vocab ? m->hidden : m->vocab);
    r->sequence = memory_zeroed(rows, sizeof *r->sequence);
    r->position = memory_zeroed(rows, sizeof *r->position);
    r->token = memory_zeroed(rows, sizeof *r->token);
    r->slot = memory_zeroed(rows, sizeof *r->slot);
    r->flags = memory_zeroed(rows, sizeof *r->flags);
    r->table = memory_zeroed(blocks, sizeof *r->table);
    r->replay_blocks = memory_zeroed(layers * rows * (index_width(m) + 1), sizeof *r->replay_blocks);
    r->replay_routes = memory_zeroed(layers * rows * ((size_t)m->experts_per_token + 1), sizeof *r->replay_routes);
    r->selected = memory_zeroed(rows * (index_width(m) + 1), sizeof *r->selected);
    r->row = memory_zeroed(widest, sizeof *r->row);
    r->final_gain = memory_zeroed((size_t)m->hidden, sizeof *r->final_gain);
    if (!r->sequence || !r->position || !r->token || !r->slot || !r->flags || !r->table || !r->replay_blocks ||
        !r->replay_routes || !r->selected || !r->row || !r->final_gain)
        return error_memory(err, "the rows of a trace", rows * (index_width(m) + widest) * sizeof(float));
    for (size_t i = 0; i < blocks; i++) r->table[i] = (int32_t)i;
    weight_row(&m->final_norm, 0, r->final_gain);
    size_t logit_rows = r->plan->logit_row_count + 1 < rows ? r->plan->logit_row_count + 1 : rows;
    ops_limits limits = {.rows = (int32_t)rows, .logit_rows = (int32_t)logit_rows, .positions = (int32_t)positions};
    hy_status status = r->ops->step_open(model_backend(r->model), &limits, &r->step, err);
    if (status != HY_OK) return status;
    return r->ops->cache_open(model_backend(r->model), model_cache_layout(r->model), (int32_t)blocks, &r->cache, err);
}

static void close_rows(run *r)
{
    if (r->step) r->ops->step_close(r->step);
    if (r->cache) r->ops->cache_close(r->cache);
    void *arrays[] = {r->layer, r->sequence,      r->position,      r->token,    r->slot, r->flags,
                      r->table, r->replay_blocks, r->replay_routes, r->selected, r->row,  r->final_gain};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) memory_free(arrays[i]);
}

/* ---- What is seen between operations --------------------------------------------------------------------------- */

/* The residual of those rows of the step that are hidden rows of the plan. */
static void keep_hidden(run *r, float *out, bool final, ops_step *step)
{
    size_t hidden = (size_t)r->shape->hidden;
    for (size_t i = 0; i < r->plan->hidden_row_count; i++) {
        int32_t row = r->plan->hidden_rows[i] - r->first;
        if (row < 0 || row >= r->count) continue;
        r->ops->tensor_read(step, OPS_X, row, 1, out + i * hidden);
        if (final)
            reference_rms_norm(out + i * hidden, r->final_gain, r->shape->hidden, r->shape->norm_eps, out + i * hidden);
    }
}

/* Of index_top slots those that a prompt of this length can fill; what follows is -1 always. */
static void keep_blocks(run *r, int32_t *out, ops_step *step)
{
    size_t top = (size_t)r->shape->index_top, lists = (size_t)r->count * (size_t)r->shape->index_heads;
    r->ops->tensor_read(step, OPS_BLOCKS, 0, r->count, r->selected);
    out += (size_t)r->first * (size_t)r->shape->index_heads * r->blocks_kept;
    for (size_t i = 0; i < lists; i++)
        memcpy(out + i * r->blocks_kept, r->selected + i * top, r->blocks_kept * sizeof *out);
}

static void keep(run *r, forward_stage stage, int layer, ops_step *step)
{
    size_t routed = (size_t)r->first * (size_t)r->shape->experts_per_token;
    bool last = layer == r->shape->layers - 1;
    switch (stage) {
    case FORWARD_EMBEDDED:
        if (r->embedded) keep_hidden(r, r->embedded, false, step);
        break;
    case FORWARD_SELECTED: keep_blocks(r, r->layer[layer].blocks, step); break;
    case FORWARD_ROUTED:
        r->ops->tensor_read(step, OPS_ROUTES, 0, r->count, r->layer[layer].experts + routed);
        r->ops->tensor_read(step, OPS_ROUTE_WEIGHTS, 0, r->count, r->layer[layer].weights + routed);
        break;
    case FORWARD_LAYER_DONE:
        if (r->layer[layer].hidden) keep_hidden(r, r->layer[layer].hidden, last, step);
        break;
    case FORWARD_HEAD: break;
    }
}

static void observe(void *user, forward_stage stage, int layer, ops_step *step)
{
    run *r = user;
    if (stage == FORWARD_LAYER_DONE) r->stopped |= !progress_add(&r->progress, r->count ? (uint64_t)r->count : 1);
    if (r->count) keep(r, stage, layer, step);
    if (r->options->observe) r->options->observe->fn(r->options->observe->user, stage, layer, step);
}

/* ---- Steps ---------------------------------------------------------------------------------------------------- */

/* Row t of the step takes what the replay has for position `row`. */
static void fill_replay(run *r, int32_t t, size_t row, int32_t count)
{
    const ops_model *m = r->shape;
    size_t top = (size_t)m->index_top, heads = (size_t)m->index_heads, routes = (size_t)m->experts_per_token;
    for (size_t l = 0; l < (size_t)m->layers; l++) {
        size_t at = l * (size_t)count + (size_t)t;
        const tensor *b = r->layer[l].replay_blocks, *e = r->layer[l].replay_experts;
        for (size_t h = 0; h < heads && b; h++) {
            int32_t *to = r->replay_blocks + (at * heads + h) * top;
            size_t k = (size_t)b->shape[2];
            memcpy(to, (const char *)b->data + (row * heads + h) * k * sizeof *to, k * sizeof *to);
            for (size_t i = k; i < top; i++) to[i] = -1;
        }
        if (e)
            memcpy(r->replay_routes + at * routes, (const char *)e->data + row * routes * sizeof(int32_t),
                   routes * sizeof(int32_t));
    }
}

static hy_status run_step(run *r, const int32_t *tokens, size_t first, int32_t count, hy_error *err)
{
    size_t blocks = (r->plan->id_count + r->plan->feed_count + CACHE_BLOCK - 1) / CACHE_BLOCK;
    for (int32_t t = 0; t < count; t++) {
        size_t row = first + (size_t)t;
        r->position[t] = (int32_t)row;
        r->token[t] = tokens[t];
        r->slot[t] = (int64_t)row;
        if (row < r->replay_rows) {
            r->flags[t] |= ROW_REPLAY_BLOCKS | ROW_REPLAY_ROUTES;
            fill_replay(r, t, row, count);
        }
    }
    ops_rows rows = {.count = count,
                     .sequence = r->sequence,
                     .position = r->position,
                     .token = r->token,
                     .slot = r->slot,
                     .flags = r->flags,
                     .sequences = 1,
                     .block_table = r->table,
                     .block_table_stride = (int32_t)blocks,
                     .replay_blocks = r->replay_blocks,
                     .replay_routes = r->replay_routes};
    forward_observer observer = {observe, r};
    forward_run(r->model, r->step, r->cache, &rows, false, &observer);
    hy_status status = r->ops->finish(r->step, err);
    if (status == HY_OK && r->stopped) status = error_set(err, HY_CANCELLED, "the trace was stopped");
    return status;
}

/* The largest logit, ties to the lower id. */
static int32_t largest(const float *logits, int vocab)
{
    int32_t best = 0;
    for (int32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static hy_status prefill(run *r, hy_error *err)
{
    const trace_plan *p = r->plan;
    size_t wanted = 0, vocab = (size_t)r->shape->vocab;
    for (size_t i = 0, first = 0; first < p->id_count; i++) {
        size_t left = p->id_count - first, chunk = chunk_at(r->options, i);
        int32_t count = (int32_t)(chunk < left ? chunk : left);
        size_t from = wanted;
        for (int32_t t = 0; t < count; t++) {
            bool want = wanted < p->logit_row_count && (size_t)p->logit_rows[wanted] == first + (size_t)t;
            bool last = first + (size_t)t == p->id_count - 1; /* the first greedy token comes from it */
            wanted += want;
            r->flags[t] = want || last ? ROW_LOGITS : 0;
        }
        r->first = (int32_t)first, r->count = count;
        hy_status status = run_step(r, p->ids + first, first, count, err);
        if (status != HY_OK) return status;
        if (wanted > from)
            r->ops->tensor_read(r->step, OPS_LOGITS, 0, (int32_t)(wanted - from), r->logits + from * vocab);
        first += (size_t)count;
        if (first < p->id_count) continue;
        bool listed = p->logit_row_count && (size_t)p->logit_rows[p->logit_row_count - 1] == p->id_count - 1;
        r->ops->tensor_read(r->step, OPS_LOGITS, (int32_t)(wanted - from) - listed, 1, r->row);
        r->greedy[0] = largest(r->row, r->shape->vocab);
    }
    return HY_OK;
}

static hy_status decode(run *r, hy_error *err)
{
    const trace_plan *p = r->plan;
    r->first = r->count = 0;
    for (size_t i = 0; i < p->feed_count; i++) {
        r->flags[0] = ROW_LOGITS;
        hy_status status = run_step(r, p->feed + i, p->id_count + i, 1, err);
        if (status != HY_OK) return status;
        float *logits = r->decode + i * (size_t)r->shape->vocab;
        r->ops->tensor_read(r->step, OPS_LOGITS, 0, 1, logits);
        if (i + 1 < p->feed_count) r->greedy[i + 1] = largest(logits, r->shape->vocab);
    }
    return HY_OK;
}

hy_status trace_run(const hy_model *model, const trace_plan *plan, const trace_options *options, trace **out,
                    hy_error *err)
{
    static const trace_options defaults;
    if (!options) options = &defaults;
    run r = {
        .model = model, .shape = model_ops_model(model), .ops = model_ops(model), .plan = plan, .options = options};
    r.progress = (progress){.fn = options->on_progress,
                            .user = options->user,
                            .what = "running",
                            .unit = "token layers",
                            .total = (plan->id_count + plan->feed_count) * (uint64_t)r.shape->layers};
    hy_status status = check_plan(&r, err);
    if (status == HY_OK) status = open_outputs(&r, err);
    if (status == HY_OK) status = find_replays(&r, err);
    if (status == HY_OK) status = open_rows(&r, err);
    if (status == HY_OK) status = prefill(&r, err);
    if (status == HY_OK) status = decode(&r, err);
    close_rows(&r);
    if (status != HY_OK) {
        trace_close(r.out);
        return status;
    }
    progress_end(&r.progress);
    *out = r.out;
    return HY_OK;
}
