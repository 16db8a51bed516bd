#include "cli/speculation_rate.h"

#include <string.h>

#include "backend/sample.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "cli/bench_step.h"
#include "model/forward.h"

enum { RATES = 16, RUNS = 5, DRAWS = 64, DISPATCHES = 200 };

/* Of some rows of one sequence. */
typedef struct rates {
    int32_t rows;
    double linear, head, experts; /* seconds a byte */
    double other;                 /* seconds a step: embedding, routes */
    double attend, index;         /* seconds a step */
    double draft_attend;          /* seconds a round: that a block of so many drafts attends to the context */
} rates;

struct speculation_probe {
    const hy_model *model;
    const hy_ops *ops;
    const ops_model *shape;
    threads *pool;
    ops_step *step;
    ops_cache *cache;
    bench_rows rows;
    int32_t *text; /* [length] */
    int32_t length, most;
    float *barrier;  /* [hidden] */
    int32_t *routes; /* [layers][length, experts_per_token] */
    uint8_t *seen;   /* [experts] */
    rates known[RATES];
    int known_count;
    double dispatch, pick, law, softmax; /* seconds: of an empty loop; of a row of logits on one core */
};

/* ---- Rows of the text ------------------------------------------------------------------------------------------- */

static void set_rows(speculation_probe *p, int32_t first, int32_t count, bool logits)
{
    bench_rows *r = &p->rows;
    for (int32_t i = 0; i < count; i++) {
        r->sequence[i] = 0, r->position[i] = first + i, r->token[i] = p->text[first + i];
        r->slot[i] = first + i;
        r->flags[i] = logits ? ROW_LOGITS : 0;
    }
    r->ops = (ops_rows){.count = count,
                        .sequence = r->sequence,
                        .position = r->position,
                        .token = r->token,
                        .slot = r->slot,
                        .flags = r->flags,
                        .sequences = 1,
                        .block_table = r->table,
                        .block_table_stride = r->blocks};
}

typedef struct route_reader {
    speculation_probe *p;
    int32_t first, count;
} route_reader;

static void keep_routes(void *user, forward_stage stage, int layer, ops_step *step)
{
    const route_reader *r = user;
    speculation_probe *p = r->p;
    if (stage != FORWARD_ROUTED) return;
    int32_t *to = p->routes + ((int64_t)layer * p->length + r->first) * p->shape->experts_per_token;
    p->ops->tensor_read(step, OPS_ROUTES, 0, r->count, to);
}

static hy_status compute_text(speculation_probe *p, hy_error *err)
{
    hy_status status = HY_OK;
    for (int32_t first = 0; first < p->length && status == HY_OK; first += p->most) {
        route_reader reader = {p, first, p->length - first < p->most ? p->length - first : p->most};
        const forward_observer observer = {keep_routes, &reader};
        set_rows(p, first, reader.count, false);
        forward_run(p->model, p->step, p->cache, &p->rows.ops, p->shape->drafter != NULL, &observer);
        status = p->ops->finish(p->step, err);
    }
    return status;
}

double speculation_probe_experts(const speculation_probe *p, int batch, int each)
{
    int width = p->shape->experts_per_token, layers = 0;
    uint64_t state = 7;
    double sum = 0;
    for (int l = 0; l < p->shape->layers; l++) {
        if (!p->shape->layer[l].moe) continue;
        layers++;
        for (int d = 0; d < DRAWS; d++) {
            int distinct = 0;
            memset(p->seen, 0, (size_t)p->shape->experts);
            for (int b = 0; b < batch; b++) {
                int64_t first = (int64_t)(bench_random(&state) % (uint64_t)(p->length - each + 1));
                const int32_t *route = p->routes + ((int64_t)l * p->length + first) * width;
                for (int i = 0; i < each * width; i++) distinct += !p->seen[route[i]], p->seen[route[i]] = 1;
            }
            sum += distinct;
        }
    }
    return layers ? sum / (DRAWS * layers) : 0;
}

/* ---- Rates ------------------------------------------------------------------------------------------------------ */

static double bytes_of(const weight *const *list, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++)
        if (list[i]->format != WEIGHT_NONE) sum += (double)weight_bytes(list[i]);
    return sum;
}

/* The linears of a layer, the shared expert's apart. */
static double linear_bytes(const ops_layer *l)
{
    const weight *list[] = {&l->q, &l->k,          &l->v,        &l->index_q,   &l->index_k,
                            &l->o, &l->dense_gate, &l->dense_up, &l->dense_down};
    return bytes_of(list, 9);
}

static double shared_bytes(const ops_layer *l)
{
    const weight *list[] = {&l->shared_gate, &l->shared_up, &l->shared_down};
    return bytes_of(list, 3);
}

static double expert_bytes(const ops_layer *l)
{
    const weight *list[] = {&l->expert_gate[0], &l->expert_up[0], &l->expert_down[0]};
    return bytes_of(list, 3);
}

/* Seconds of one operation; waiting for it is reading a row. */
#define TIMED(what, call)                                                                                              \
    do {                                                                                                               \
        double begin_ = clock_seconds();                                                                               \
        call;                                                                                                          \
        p->ops->tensor_read(p->step, OPS_X, 0, 1, p->barrier);                                                         \
        (what) += clock_seconds() - begin_;                                                                            \
    } while (0)

typedef struct times {
    double linear, head, experts, other, attend, index, distinct;
} times;

static hy_status run_once(speculation_probe *p, int32_t rows, times *t, hy_error *err)
{
    const ops_model *m = p->shape;
    int32_t first = p->length - p->most;
    *t = (times){0};
    set_rows(p, first, rows, true);
    p->ops->begin(p->step, p->cache, &p->rows.ops);
    TIMED(t->other, p->ops->embed(p->step));
    for (int l = 0; l < m->layers; l++) {
        TIMED(t->linear, p->ops->attend_in(p->step, l));
        if (m->layer[l].sparse) TIMED(t->index, p->ops->index_select(p->step, l));
        TIMED(t->attend, p->ops->attend(p->step, l));
        TIMED(t->linear, p->ops->attend_out(p->step, l));
        if (m->layer[l].moe) {
            TIMED(t->other, p->ops->route(p->step, l));
            TIMED(t->experts, p->ops->experts(p->step, l));
            const int32_t *routes = p->routes + ((int64_t)l * p->length + first) * m->experts_per_token;
            t->distinct += (double)bench_count_experts(m, rows, routes, p->seen) * expert_bytes(&m->layer[l]);
        } else {
            TIMED(t->linear, p->ops->feed_dense(p->step, l));
        }
    }
    TIMED(t->head, p->ops->head(p->step));
    return p->ops->finish(p->step, err);
}

/* A round of a block of drafts behind position `at`. */
static hy_status draft_round(speculation_probe *p, int32_t rows, int32_t at, double *seconds, hy_error *err)
{
    ops_sampled after = {.id = p->text[0]};
    int32_t one = 1, drafts[HY_MAX_DRAFTS], count;
    const ops_draft draft = {.after = &after,
                             .after_count = &one,
                             .position = at,
                             .rows = rows,
                             .end = INT32_MAX,
                             .method = DRAFT_GREEDY,
                             .draft = drafts,
                             .count = &count};
    set_rows(p, p->length - p->most, 1, false);
    p->ops->begin(p->step, p->cache, &p->rows.ops);
    p->ops->tensor_read(p->step, OPS_X, 0, 1, p->barrier);
    *seconds = 0;
    TIMED(*seconds, p->ops->draft(p->step, &draft, 1));
    return p->ops->finish(p->step, err);
}

/* As hayate bench kernels has it: a round less one that has no context. */
static hy_status measure_draft_attention(speculation_probe *p, int32_t rows, double *out, hy_error *err)
{
    double with[RUNS], without[RUNS];
    hy_status status = draft_round(p, rows, 0, &with[0], err);
    for (int i = 0; i < RUNS && status == HY_OK; i++) {
        status = draft_round(p, rows, p->length - p->most, &with[i], err);
        if (status == HY_OK) status = draft_round(p, rows, 0, &without[i], err);
    }
    if (status != HY_OK) return status;
    double more = bench_median(with, RUNS) - bench_median(without, RUNS);
    *out = more > 0 ? more : 0;
    return HY_OK;
}

static double median_of(const times *t, size_t offset)
{
    double values[RUNS];
    for (int i = 0; i < RUNS; i++) memcpy(&values[i], (const char *)&t[i] + offset, sizeof values[i]);
    return bench_median(values, RUNS);
}

static hy_status measure(speculation_probe *p, int32_t rows, rates *out, hy_error *err)
{
    const ops_model *m = p->shape;
    times t[RUNS], warm;
    double linear = 0, shared = 0;
    hy_status status = run_once(p, rows, &warm, err);
    for (int i = 0; i < RUNS && status == HY_OK; i++) status = run_once(p, rows, &t[i], err);
    if (status != HY_OK) return status;
    for (int l = 0; l < m->layers; l++) {
        linear += linear_bytes(&m->layer[l]);
        if (m->layer[l].moe) shared += shared_bytes(&m->layer[l]);
    }
    *out = (rates){.rows = rows};
    out->linear = median_of(t, offsetof(times, linear)) / linear;
    out->head = median_of(t, offsetof(times, head)) / (double)weight_bytes(&m->head);
    double routed = median_of(t, offsetof(times, experts)) - shared * out->linear;
    out->experts = t[0].distinct > 0 && routed > 0 ? routed / t[0].distinct : 0;
    out->other = median_of(t, offsetof(times, other));
    out->attend = median_of(t, offsetof(times, attend)), out->index = median_of(t, offsetof(times, index));
    if (!m->drafter || rows > m->drafter->block) return HY_OK;
    return measure_draft_attention(p, rows, &out->draft_attend, err);
}

static hy_status find(speculation_probe *p, int32_t rows, rates *out, hy_error *err)
{
    for (int i = 0; i < p->known_count; i++)
        if (p->known[i].rows == rows) return *out = p->known[i], HY_OK;
    if (p->known_count == RATES) p->known_count = 0;
    hy_status status = measure(p, rows, out, err);
    if (status == HY_OK) p->known[p->known_count++] = *out;
    return status;
}

static void nothing(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)arg, (void)begin, (void)end, (void)worker;
}

/* What has nothing to do with the number of rows. */
static hy_status measure_rest(speculation_probe *p, hy_error *err)
{
    int32_t vocab = p->shape->vocab;
    float *logits = memory_zeroed((size_t)vocab, sizeof *logits), *law = memory_zeroed((size_t)vocab, sizeof *law);
    void *scratch = memory_zeroed(sample_scratch_bytes(vocab), 1);
    hy_status status = logits && law && scratch ? HY_OK : error_memory(err, "a row of logits", (size_t)vocab * 8);
    double pick[RUNS], laws[RUNS], soft[RUNS], loop[RUNS];
    if (status == HY_OK) {
        set_rows(p, p->length - p->most, 1, true);
        forward_run(p->model, p->step, p->cache, &p->rows.ops, false, NULL);
        p->ops->tensor_read(p->step, OPS_LOGITS, 0, 1, logits);
        status = p->ops->finish(p->step, err);
    }
    for (int i = 0; i < RUNS && status == HY_OK; i++) {
        ops_sampled out;
        const ops_sample how = {
            .repetition_penalty = 1, .top_p = 1, .temperature = 1, .seed = (uint64_t)i, .logprobs = -1};
        double start = clock_seconds();
        sample_row(logits, vocab, &how, scratch, &out);
        double middle = clock_seconds();
        sample_law(logits, vocab, &how, scratch, law);
        double laid = clock_seconds();
        sample_softmax(logits, vocab, 1, law);
        double end = clock_seconds();
        for (int k = 0; k < DISPATCHES; k++) threads_run(p->pool, 2L * threads_count(p->pool), 1, nothing, NULL);
        pick[i] = middle - start, laws[i] = laid - middle, soft[i] = end - laid,
        loop[i] = (clock_seconds() - end) / DISPATCHES;
    }
    if (status == HY_OK)
        p->pick = bench_median(pick, RUNS), p->law = bench_median(laws, RUNS), p->softmax = bench_median(soft, RUNS),
        p->dispatch = bench_median(loop, RUNS);
    memory_free(logits);
    memory_free(law);
    memory_free(scratch);
    return status;
}

/* ---- A step ----------------------------------------------------------------------------------------------------- */

static double over_workers(const speculation_probe *p, double items, double seconds)
{
    double workers = threads_count(p->pool);
    double rounds = (double)(int64_t)((items + workers - 1) / workers);
    return rounds * seconds;
}

/* Attention to other numbers of tokens goes by the number. */
static double scaled(const speculation_probe *p, double seconds, double tokens)
{
    return seconds * tokens / (double)(p->length - p->most);
}

/* Weights of the layers but for routed experts, and those of an expert in every layer that has some. */
static void sum_layers(const ops_model *m, double *linear, double *routed)
{
    *linear = *routed = 0;
    for (int l = 0; l < m->layers; l++) {
        *linear += linear_bytes(&m->layer[l]);
        if (m->layer[l].moe) *linear += shared_bytes(&m->layer[l]), *routed += expert_bytes(&m->layer[l]);
    }
}

/* fc, and of the draft layers the first `count` of k, v, q, o, gate, up, down. */
static double draft_bytes(const ops_drafter *d, int count)
{
    double sum = 0;
    for (int i = 0; i < d->layers; i++) {
        const ops_draft_layer *l = &d->layer[i];
        const weight *list[] = {&l->k, &l->v, &l->q, &l->o, &l->gate, &l->up, &l->down};
        sum += bytes_of(list, count);
    }
    return sum;
}

static double context_seconds(const ops_drafter *d, const rates *r)
{
    return (double)weight_bytes(&d->fc) * r->head + draft_bytes(d, 2) * r->linear;
}

hy_status speculation_probe_prompt(speculation_probe *p, int32_t rows, bool drafts, double *seconds, hy_error *err)
{
    const ops_model *m = p->shape;
    double linear, routed;
    sum_layers(m, &linear, &routed);
    *seconds = 0;
    while (rows > 0) {
        int32_t piece = rows < p->most ? rows : p->most;
        rates r;
        hy_status status = find(p, piece, &r, err);
        if (status != HY_OK) return status;
        *seconds += linear * r.linear + routed * speculation_probe_experts(p, 1, piece) * r.experts + r.other +
                    r.attend + r.index;
        if (drafts) *seconds += context_seconds(m->drafter, &r);
        rows -= piece;
    }
    return HY_OK;
}

/* rate: of all rows of the step, of a sequence's, of all drafts, of a sequence's, of one row of each sequence. */
static void add_draft(const speculation_probe *p, int batch, int drafts, int32_t context, const rates rate[5],
                      speculation_seconds *out)
{
    const ops_model *m = p->shape;
    const ops_drafter *d = m->drafter;
    double seen = context < d->window ? context : d->window;
    double there = p->length - p->most < d->window ? p->length - p->most : d->window; /* in the probe's text */
    out->context = context_seconds(d, &rate[0]);
    const weight *head = d->head.format == WEIGHT_NONE ? &m->head : &d->head;
    out->draft = draft_bytes(d, 7) * rate[2].linear + (double)weight_bytes(head) * rate[2].head +
                 batch * rate[3].draft_attend * seen / there;
    double markov = d->markov_out.format == WEIGHT_NONE ? 0 : (double)weight_bytes(&d->markov_out);
    double bias = markov * (rate[4].head - 2 * p->dispatch / (double)weight_bytes(&m->head));
    out->draft += drafts * (bias + 3 * p->dispatch + over_workers(p, batch, p->pick));
}

hy_status speculation_probe_step(speculation_probe *p, const speculation_asked *asked, speculation_seconds *out,
                                 hy_error *err)
{
    const ops_model *m = p->shape;
    int batch = asked->batch, drafts = asked->drafts, each = 1 + drafts, rows = batch * each;
    int32_t context = asked->context;
    int32_t wanted[] = {rows, each, batch * drafts, drafts, batch}; /* of which the rates are needed */
    rates rate[5] = {{0}};
    for (int i = 0; i < 5; i++) {
        hy_status status = wanted[i] > 0 ? find(p, wanted[i], &rate[i], err) : HY_OK;
        if (status != HY_OK) return status;
    }
    const rates *all = &rate[0], *own = &rate[1];
    *out = (speculation_seconds){0};
    double linear, routed;
    sum_layers(m, &linear, &routed);
    out->target = linear * all->linear + routed * speculation_probe_experts(p, batch, each) * all->experts +
                  (double)weight_bytes(&m->head) * all->head + all->other + batch * scaled(p, own->attend, context) +
                  batch * own->index;
    double row = drafts > 0 && asked->laws ? p->law + p->softmax : p->pick;
    out->verify = p->dispatch + over_workers(p, batch, asked->length * row);
    if (drafts > 0) add_draft(p, batch, drafts, context, rate, out);
    return HY_OK;
}

double speculation_seconds_sum(const speculation_seconds *s)
{
    return s->target + s->context + s->verify + s->draft;
}

/* ---- Opening and closing ---------------------------------------------------------------------------------------- */

hy_status speculation_probe_open(const hy_model *model, const int32_t *text, int32_t length, int32_t rows,
                                 speculation_probe **out, hy_error *err)
{
    speculation_probe *p = memory_zeroed(1, sizeof *p);
    if (!p) return error_memory(err, "the rates", sizeof *p);
    const ops_model *m = model_ops_model(model);
    const hy_ops *ops = model_ops(model);
    *p = (speculation_probe){
        .model = model, .ops = ops, .shape = m, .pool = model_pool(model), .length = length, .most = rows};
    size_t n = (size_t)length, width = (size_t)m->experts_per_token + 1;
    p->text = memory_zeroed(n, sizeof *p->text);
    p->barrier = memory_zeroed((size_t)m->hidden, sizeof *p->barrier);
    p->routes = memory_zeroed((size_t)m->layers * n * width, sizeof *p->routes);
    p->seen = memory_zeroed((size_t)m->experts + 1, 1);
    hy_status status =
        p->text && p->barrier && p->routes && p->seen ? HY_OK : error_memory(err, "the rates", n * width * 8);
    if (status == HY_OK) memcpy(p->text, text, n * sizeof *text);
    ops_limits limits = {.rows = rows, .logit_rows = rows, .positions = length};
    if (m->drafter) limits.drafts = 1, limits.draft_rows = m->drafter->block;
    if (status == HY_OK) status = bench_rows_open(rows, 1, length, &p->rows, err);
    if (status == HY_OK)
        status = ops->cache_open(model_backend(model), model_cache_layout(model), p->rows.blocks, &p->cache, err);
    if (status == HY_OK) status = ops->step_open(model_backend(model), &limits, &p->step, err);
    if (status == HY_OK) status = compute_text(p, err);
    if (status == HY_OK) status = measure_rest(p, err);
    if (status != HY_OK) {
        speculation_probe_close(p);
        return status;
    }
    *out = p;
    return HY_OK;
}

void speculation_probe_close(speculation_probe *p)
{
    if (!p) return;
    if (p->step) p->ops->step_close(p->step);
    if (p->cache) p->ops->cache_close(p->cache);
    bench_rows_close(&p->rows);
    void *arrays[] = {p->text, p->barrier, p->routes, p->seen, p};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) memory_free(arrays[i]);
}

void speculation_probe_renew(speculation_probe *p)
{
    p->known_count = 0;
}
