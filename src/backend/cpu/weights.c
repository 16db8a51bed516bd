/* Packs a model's weights at open and gives them back at close. */
#include "backend/cpu/cpu.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"

typedef struct loading {
    ops_backend *backend;
    hy_error *err;
    hy_status status;  /* of the first failure; what follows it does nothing */
    int layer, expert; /* whose weights come; -1: none */
    bool drafter;
    progress report;
} loading;

enum { NAME = 96 };

/* "drafter, layer 3, expert 4, gate". */
static void full_name(const loading *l, const char *what, char out[NAME])
{
    int n = l->drafter ? snprintf(out, NAME, "drafter, ") : 0;
    if (l->layer >= 0) n += snprintf(out + n, NAME - (size_t)n, "layer %d, ", l->layer);
    if (l->expert >= 0) n += snprintf(out + n, NAME - (size_t)n, "expert %d, ", l->expert);
    snprintf(out + n, NAME - (size_t)n, "%s", what);
}

static void report(loading *l, uint64_t bytes)
{
    if (l->status == HY_OK && !progress_add(&l->report, bytes))
        l->status = error_set(l->err, HY_CANCELLED, "preparing the weights was stopped");
}

static void load(loading *l, const weight *w, const char *what, cpu_linear *out)
{
    if (l->status != HY_OK) return;
    const ops_options *o = &l->backend->options;
    char name[NAME];
    full_name(l, what, name);
    l->status = cpu_linear_pack(w, name, l->backend->pool, o->files, o->file_count, out, l->err);
    report(l, weight_bytes(w));
}

/* gate and up. */
static void load_pair(loading *l, const weight *const w[2], const char *const what[2], cpu_linear *const out[2])
{
    if (l->status != HY_OK) return;
    const ops_options *o = &l->backend->options;
    char name[2][NAME];
    for (int i = 0; i < 2; i++) full_name(l, what[i], name[i]);
    const char *const names[2] = {name[0], name[1]};
    l->status = cpu_linear_pack_pair(w, names, l->backend->pool, o->files, o->file_count, out, l->err);
    report(l, weight_bytes(w[0]) + weight_bytes(w[1]));
}

/* A vector as fp32, `plus` added: 1 for the gains of norms. An absent one is all `plus`. */
static void load_vector(loading *l, const weight *w, int64_t n, float plus, float **out)
{
    if (l->status != HY_OK) return;
    *out = memory_zeroed((size_t)n, sizeof **out);
    if (!*out) {
        l->status = error_memory(l->err, "a norm", (size_t)n * sizeof **out);
        return;
    }
    if (w->format != WEIGHT_NONE) weight_row(w, 0, *out);
    for (int64_t i = 0; i < n; i++) (*out)[i] += plus;
}

static void load_experts(loading *l, const ops_layer *from, cpu_layer *to)
{
    if (l->status != HY_OK) return;
    static const char *const what[3] = {"gate", "up", "down"};
    const weight *const w[3] = {from->expert_gate, from->expert_up, from->expert_down};
    cpu_linear **const out[3] = {&to->expert_gate, &to->expert_up, &to->expert_down};
    int experts = l->backend->model->experts;
    for (int p = 0; p < 3; p++) {
        *out[p] = memory_zeroed((size_t)experts, sizeof **out[p]);
        if (!*out[p]) l->status = error_memory(l->err, "the experts", (size_t)experts * sizeof **out[p]);
    }
    for (int e = 0; e < experts && l->status == HY_OK; e++) {
        l->expert = e;
        if (l->backend->options.weights != OPS_WEIGHTS_STREAM) {
            load_pair(l, (const weight *const[]){&w[0][e], &w[1][e]}, what,
                      (cpu_linear *const[]){&(*out[0])[e], &(*out[1])[e]});
            load(l, &w[2][e], what[2], &(*out[2])[e]);
        }
        for (int p = 0; p < 3 && l->status == HY_OK && l->backend->options.weights == OPS_WEIGHTS_STREAM; p++)
            l->status = cpu_linear_shape(&w[p][e], what[p], &(*out[p])[e], l->err);
    }
    l->expert = -1;
}

static void load_layer(loading *l, const ops_layer *from, cpu_layer *to)
{
    const ops_model *m = l->backend->model;
    load_vector(l, &from->input_norm, m->hidden, 1, &to->input_gain);
    load_vector(l, &from->post_norm, m->hidden, 1, &to->post_gain);
    load_vector(l, &from->q_norm, m->head_dim, 1, &to->q_gain);
    load_vector(l, &from->k_norm, m->head_dim, 1, &to->k_gain);
    load(l, &from->q, "q_proj", &to->q);
    load(l, &from->k, "k_proj", &to->k);
    load(l, &from->v, "v_proj", &to->v);
    load(l, &from->o, "o_proj", &to->o);
    if (from->sparse) {
        load_vector(l, &from->index_q_norm, m->index_dim, 1, &to->index_q_gain);
        load_vector(l, &from->index_k_norm, m->index_dim, 1, &to->index_k_gain);
        load(l, &from->index_q, "index_q_proj", &to->index_q);
        load(l, &from->index_k, "index_k_proj", &to->index_k);
    }
    if (from->moe) {
        load(l, &from->router, "router", &to->router);
        load_vector(l, &from->router_bias, m->experts, 0, &to->router_bias);
        load_experts(l, from, to);
        load_pair(l, (const weight *const[]){&from->shared_gate, &from->shared_up},
                  (const char *const[]){"shared expert, gate", "shared expert, up"},
                  (cpu_linear *const[]){&to->shared_gate, &to->shared_up});
        load(l, &from->shared_down, "shared expert, down", &to->shared_down);
    } else {
        load_pair(l, (const weight *const[]){&from->dense_gate, &from->dense_up},
                  (const char *const[]){"gate_proj", "up_proj"}, (cpu_linear *const[]){&to->dense_gate, &to->dense_up});
        load(l, &from->dense_down, "down_proj", &to->dense_down);
    }
}

static void load_draft_layer(loading *l, const ops_drafter *d, const ops_draft_layer *from, cpu_draft_layer *to)
{
    int hidden = l->backend->model->hidden;
    float plus = d->plain_norm ? 0 : 1;
    load_vector(l, &from->input_norm, hidden, plus, &to->input_gain);
    load_vector(l, &from->post_norm, hidden, plus, &to->post_gain);
    load_vector(l, &from->q_norm, d->head_dim, plus, &to->q_gain);
    load_vector(l, &from->k_norm, d->head_dim, plus, &to->k_gain);
    load(l, &from->q, "q_proj", &to->q);
    load(l, &from->k, "k_proj", &to->k);
    load(l, &from->v, "v_proj", &to->v);
    load(l, &from->o, "o_proj", &to->o);
    load_pair(l, (const weight *const[]){&from->gate, &from->up}, (const char *const[]){"gate_proj", "up_proj"},
              (cpu_linear *const[]){&to->gate, &to->up});
    load(l, &from->down, "down_proj", &to->down);
}

/* A drafter that brings no head has the target's. */
static bool has_head(const ops_model *m)
{
    return m->drafter->head.data != m->head.data;
}

static void load_drafter(loading *l)
{
    ops_backend *b = l->backend;
    const ops_model *m = b->model;
    const ops_drafter *d = m->drafter;
    if (!d || l->status != HY_OK) return;
    float plus = d->plain_norm ? 0 : 1;
    l->drafter = true;
    cpu_drafter *to = b->drafter = memory_zeroed(1, sizeof *to);
    if (to) to->layer = memory_zeroed((size_t)d->layers, sizeof *to->layer);
    if (to) to->frequency = memory_zeroed((size_t)d->rotary_dim / 2 + 1, sizeof *to->frequency);
    if (!to || !to->layer || !to->frequency) {
        l->status = error_memory(l->err, "the drafter", (size_t)d->layers * sizeof *to->layer);
        return;
    }
    cpu_frequencies(d->rope_theta, d->rotary_dim, to->frequency);
    load(l, &d->fc, "fc", &to->fc);
    load_vector(l, &d->hidden_norm, m->hidden, plus, &to->hidden_gain);
    load_vector(l, &d->final_norm, m->hidden, plus, &to->final_gain);
    if (has_head(m)) load(l, &d->head, "lm_head", &to->own_head);
    to->head = has_head(m) ? &to->own_head : &b->head;
    if (d->markov_rank > 0) load(l, &d->markov_out, "markov_w2", &to->markov_out);
    if (d->confidence.format != WEIGHT_NONE) {
        load_vector(l, &d->confidence, d->confidence.cols, 0, &to->confidence);
        load_vector(l, &d->confidence_bias, 1, 0, &to->confidence_bias);
    }
    for (int i = 0; i < d->layers; i++) {
        l->layer = i;
        load_draft_layer(l, d, &d->layer[i], &to->layer[i]);
    }
}

/* A page that is touched brings its neighbours in, which belong to other weights and stay when those were packed. */
static void drop_pages(const ops_options *o)
{
    for (size_t i = 0; i < o->file_count; i++) file_map_drop(o->files[i].data, o->files[i].bytes);
}

static uint64_t layer_bytes(const ops_model *m, const ops_layer *l, bool experts)
{
    const weight *all[] = {&l->q, &l->k, &l->v, &l->o};
    const weight *index[] = {&l->index_q, &l->index_k};
    const weight *dense[] = {&l->dense_gate, &l->dense_up, &l->dense_down};
    const weight *moe[] = {&l->router, &l->shared_gate, &l->shared_up, &l->shared_down};
    uint64_t bytes = 0;
    for (int i = 0; i < 4; i++) bytes += weight_bytes(all[i]);
    for (int i = 0; i < 2 && l->sparse; i++) bytes += weight_bytes(index[i]);
    for (int i = 0; i < 3 && !l->moe; i++) bytes += weight_bytes(dense[i]);
    for (int i = 0; i < 4 && l->moe; i++) bytes += weight_bytes(moe[i]);
    for (int e = 0; e < m->experts && l->moe && experts; e++)
        bytes += weight_bytes(&l->expert_gate[e]) + weight_bytes(&l->expert_up[e]) + weight_bytes(&l->expert_down[e]);
    return bytes;
}

/* The drafter's matrices; returns how many. */
static int draft_layer_weights(const ops_draft_layer *l, const weight *all[7])
{
    const weight *list[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
    for (int i = 0; i < 7; i++) all[i] = list[i];
    return 7;
}

/* The sum of `bytes` over what is packed of the drafter. */
static uint64_t drafter_bytes(const ops_model *m, uint64_t (*bytes)(const weight *w))
{
    const ops_drafter *d = m->drafter;
    const weight *all[7];
    if (!d) return 0;
    uint64_t sum = bytes(&d->fc);
    if (has_head(m)) sum += bytes(&d->head);
    if (d->markov_rank > 0) sum += bytes(&d->markov_out);
    for (int i = 0; i < d->layers; i++)
        for (int n = draft_layer_weights(&d->layer[i], all); n-- > 0;) sum += bytes(all[n]);
    return sum;
}

static uint64_t file_bytes(const weight *w)
{
    return weight_bytes(w);
}

hy_status cpu_weights_open(ops_backend *backend, hy_error *err)
{
    const ops_model *m = backend->model;
    loading l = {.backend = backend, .err = err, .layer = -1, .expert = -1};
    l.report = (progress){.fn = backend->options.on_progress,
                          .user = backend->options.user,
                          .what = "preparing weights",
                          .unit = "bytes",
                          .total = weight_bytes(&m->head)};
    bool stream = backend->options.weights == OPS_WEIGHTS_STREAM;
    for (int i = 0; i < m->layers; i++) l.report.total += layer_bytes(m, &m->layer[i], !stream);
    l.report.total += drafter_bytes(m, file_bytes);
    backend->layer = memory_zeroed((size_t)m->layers, sizeof *backend->layer);
    if (!backend->layer) return error_memory(err, "the layers", (size_t)m->layers * sizeof *backend->layer);
    load_vector(&l, &m->final_norm, m->hidden, 1, &backend->final_gain);
    load(&l, &m->head, "lm_head", &backend->head);
    for (int i = 0; i < m->layers; i++) {
        l.layer = i;
        load_layer(&l, &m->layer[i], &backend->layer[i]);
        drop_pages(&backend->options);
    }
    load_drafter(&l);
    if (m->drafter) drop_pages(&backend->options);
    if (l.status == HY_OK) progress_end(&l.report);
    if (l.status == HY_OK && stream) l.status = cpu_stream_open(backend, err);
    return l.status;
}

static void free_experts(cpu_linear *linear, int experts)
{
    for (int e = 0; e < experts && linear; e++) cpu_linear_free(&linear[e]);
    memory_free(linear);
}

static void close_drafter(ops_backend *b)
{
    cpu_drafter *d = b->drafter;
    if (!d) return;
    for (int i = 0; i < b->model->drafter->layers && d->layer; i++) {
        cpu_draft_layer *l = &d->layer[i];
        float *vectors[] = {l->input_gain, l->post_gain, l->q_gain, l->k_gain};
        cpu_linear *linears[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t j = 0; j < sizeof vectors / sizeof *vectors; j++) memory_free(vectors[j]);
        for (size_t j = 0; j < sizeof linears / sizeof *linears; j++) cpu_linear_free(linears[j]);
    }
    cpu_linear_free(&d->fc);
    cpu_linear_free(&d->markov_out);
    cpu_linear_free(&d->own_head);
    void *arrays[] = {d->layer, d->hidden_gain, d->final_gain, d->confidence, d->frequency, d->confidence_bias, d};
    for (size_t j = 0; j < sizeof arrays / sizeof *arrays; j++) memory_free(arrays[j]);
    b->drafter = NULL;
}

void cpu_weights_close(ops_backend *backend)
{
    const ops_model *m = backend->model;
    expert_store_close(backend->store); /* takes its memory from the experts' linears */
    for (int i = 0; i < m->layers && backend->layer; i++) {
        cpu_layer *l = &backend->layer[i];
        float *vectors[] = {l->input_gain,   l->post_gain,    l->q_gain,     l->k_gain,
                            l->index_q_gain, l->index_k_gain, l->router_bias};
        cpu_linear *linears[] = {&l->q,           &l->k,          &l->v,          &l->o,          &l->index_q,
                                 &l->index_k,     &l->dense_gate, &l->dense_up,   &l->dense_down, &l->router,
                                 &l->shared_gate, &l->shared_up,  &l->shared_down};
        for (size_t j = 0; j < sizeof vectors / sizeof *vectors; j++) memory_free(vectors[j]);
        for (size_t j = 0; j < sizeof linears / sizeof *linears; j++) cpu_linear_free(linears[j]);
        free_experts(l->expert_gate, m->experts);
        free_experts(l->expert_up, m->experts);
        free_experts(l->expert_down, m->experts);
    }
    memory_free(backend->layer);
    memory_free(backend->final_gain);
    cpu_linear_free(&backend->head);
    close_drafter(backend);
}

static uint64_t packed(const weight *w)
{
    cpu_linear l;
    return cpu_linear_shape(w, "", &l, NULL) == HY_OK ? cpu_linear_bytes(&l) : 0;
}

static uint64_t packed_experts(const ops_model *m, const ops_layer *l, ops_memory *out)
{
    uint64_t all = 0;
    for (int e = 0; e < m->experts && l->moe; e++) {
        uint64_t one = packed(&l->expert_gate[e]) + packed(&l->expert_up[e]) + packed(&l->expert_down[e]);
        if (one > out->expert) out->expert = one;
        all += one;
    }
    return all;
}

void cpu_weights_measure(const ops_model *m, bool stream, ops_memory *out)
{
    out->weights = packed(&m->head) + drafter_bytes(m, packed);
    for (int i = 0; i < m->layers; i++) {
        const ops_layer *l = &m->layer[i];
        const weight *all[] = {&l->q,           &l->k,          &l->v,          &l->o,          &l->index_q,
                               &l->index_k,     &l->dense_gate, &l->dense_up,   &l->dense_down, &l->router,
                               &l->shared_gate, &l->shared_up,  &l->shared_down};
        for (size_t n = 0; n < sizeof all / sizeof *all; n++) out->weights += packed(all[n]);
        out->all_experts += packed_experts(m, l, out);
    }
    out->expert_least = 2 * (uint64_t)m->experts_per_token * out->expert;
    if (stream) {
        out->readers = EXPERT_STORE_OWN;
        return;
    }
    out->weights += out->all_experts;
    out->expert = out->expert_least = out->all_experts = 0;
}
