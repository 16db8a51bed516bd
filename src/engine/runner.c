#include "engine/runner.h"

#include <assert.h>
#include <time.h>

#include "base/error.h"
#include "base/memory.h"
#include "model/forward.h"

enum { EXPECT_NS = 5000000 }; /* that the runner waits for a plan before it counts as idle */

struct runner {
    runner_options o;
    const hy_ops *ops;
    ops_step *step;
    int layers;
    size_t words;              /* of a mask: room for the ids of the model and of the tokenizer */
    size_t known;              /* of the model's */
    uint32_t *masks;           /* [limits.logit_rows, words] of the rows that have a grammar */
    const text_tokenizer *tok; /* NULL: none */
    step *running;             /* being computed */
    bool routes;               /* somebody in it wants to know the experts */
    int32_t *route_rows;       /* [limits.rows, experts_per_token]; owned */
    ops_verify *group;         /* [limits.logit_rows] what is sampled together; owned, as the next three */
    int32_t *came;             /* [limits.logit_rows] tokens of each group */
    int32_t group_count;
    ops_draft *draft; /* [sequences] NULL: no drafts */
    bool laws;        /* those of drafts are kept */
    pthread_t thread;
    pthread_cond_t wake; /* with o.lock: a step, or the end */

    /* Under o.lock. */
    step *given[2];  /* the oldest first */
    int count, over; /* given; of them over: 0 or 1 at their front, or 2 */
    bool near_end;   /* the one after those that are over */
    bool stop;
};

/* ---- Computing -------------------------------------------------------------------------------------------------- */

static void come_near(runner *r)
{
    pthread_mutex_lock(r->o.lock);
    r->near_end = true;
    pthread_cond_signal(r->o.changed);
    pthread_mutex_unlock(r->o.lock);
}

/* ---- Routes ----------------------------------------------------------------------------------------------------- */

static bool wants_routes(const step *s)
{
    for (int32_t m = 0; m < s->member_count; m++)
        if (s->member[m].request->routes && !s->member[m].dropped) return true;
    return false;
}

/* The experts of this layer, out of the backend before the next layer's take their place. */
static void keep_routes(runner *r, int layer, ops_step *running)
{
    const step *s = r->running;
    r->ops->tensor_read(running, OPS_ROUTES, 0, s->rows.count, r->route_rows);
    for (int32_t t = 0; t < s->rows.count; t++) {
        const hy_request *q = s->member[s->owner[t]].request;
        if (!q->routes) continue;
        int64_t at = ((int64_t)s->rows.position[t] * q->route_layers + layer) * q->route_experts;
        for (int32_t k = 0; k < q->route_experts; k++)
            q->routes[at + k] = (uint16_t)r->route_rows[t * q->route_experts + k];
    }
}

/* Layers from the end at which the planner is woken: one step of planning is short beside two layers. */
static void observe(void *user, forward_stage stage, int layer, ops_step *running)
{
    runner *r = user;
    if (stage == FORWARD_ROUTED && r->routes) keep_routes(r, layer, running);
    if (stage != FORWARD_EMBEDDED && stage != FORWARD_LAYER_DONE) return;
    watch_enter(r->o.watch, WATCH_RUNNER, WATCH_FORWARD, layer + 1);
    if (layer + 1 != (r->layers > 2 ? r->layers - 2 : 0)) return;
    if (r->ops->settle) r->ops->settle(running);
    come_near(r);
}

/* ---- Choosing --------------------------------------------------------------------------------------------------- */

/* What is sampled together: a row alone, or those of a last token and its drafts. */
static void make_groups(runner *r, step *s)
{
    r->group_count = 0;
    for (int32_t i = 0; i < s->pick_count; i++) {
        if (s->follows[i]) {
            r->group[r->group_count - 1].drafts++;
            continue;
        }
        const hy_request *q = s->pick[i];
        const step_member *m = &s->member[s->pick_member[i]];
        r->came[r->group_count] = 1;
        r->group[r->group_count] =
            (ops_verify){.row = &s->sample[i],
                         .draft = q->ids + s->sample[i].position, /* of the first draft, if any */
                         .method = s->score[i] ? VERIFY_COUPLED : q->method,
                         .law = r->o.greedy_drafts || !r->laws ? -1 : m->slot,
                         .rates = r->o.rates,
                         .anchor = (uint32_t)m->begin,
                         .out = &s->sampled[i],
                         .count = &r->came[r->group_count]};
        r->group_count++;
    }
}

/*
 * What each row may choose: of tokens that exist, those that its grammar allows. The grammar has seen all tokens of the
 * steps before, which are over, so that steps may overlap as they like; and it has seen each once, since a request that
 * loses its cache computes its tokens again but does not choose them again. For the rows of drafts it looks ahead;
 * behind a draft that it forbids nothing is ever chosen.
 */
static void mask_group(runner *r, step *s, const ops_verify *g)
{
    int32_t first = (int32_t)(g->out - s->sampled);
    hy_request *q = s->pick[first];
    text_reasoning reasoning = q->reasoning;
    int32_t thought = q->thought;
    bool thinks = q->params.s.limit_thinking, possible = true;
    bool ahead = q->matcher && g->drafts > 0;
    if (ahead) text_matcher_mark(q->matcher);
    for (int32_t j = 0; j <= g->drafts; j++) {
        ops_sample *row = &s->sample[first + j];
        if (j > 0 && thinks) request_think_ahead(&reasoning, &thought, r->tok, g->draft[j - 1]);
        if (j > 0 && ahead && possible) possible = text_matcher_accept(q->matcher, g->draft[j - 1]);
        if (thinks && thought >= q->params.s.thinking_tokens && text_reasoning_inside(&reasoning))
            row->allowed = &q->closer, row->allowed_count = 1;
        row->mask = r->o.mask;
        if (!q->matcher || !possible) continue;
        uint32_t *mask = r->masks + (size_t)(first + j) * r->words;
        if (!text_matcher_mask(q->matcher, mask)) continue;
        for (size_t w = 0; w < r->known && r->o.mask; w++) mask[w] &= r->o.mask[w];
        row->mask = mask;
    }
    if (ahead) text_matcher_back(q->matcher);
}

static void make_masks(runner *r, step *s)
{
    for (int32_t g = 0; g < r->group_count; g++)
        if (!s->score[r->group[g].out - s->sampled])
            mask_group(r, s, &r->group[g]); /* a token of a prompt may be any */
}

static void choose(runner *r, step *s)
{
    bool drafts = false;
    for (int32_t g = 0; g < r->group_count; g++) drafts |= r->group[g].drafts > 0;
    if (drafts)
        r->ops->verify(r->step, r->group, r->group_count);
    else if (s->pick_count > 0)
        r->ops->sample(r->step, s->sample, s->pick_count, s->sampled);
}

/* Asks for the drafts of the next step. */
static void make_drafts(runner *r, step *s)
{
    int32_t n = 0;
    for (int32_t g = 0; g < r->group_count; g++) {
        const ops_verify *v = &r->group[g];
        int32_t first = (int32_t)(v->out - s->sampled);
        const hy_request *q = s->pick[first];
        step_member *m = &s->member[s->pick_member[first]];
        if (s->score[first] || m->wanted == 0) continue;
        m->draft_count = 0;
        r->draft[n++] = (ops_draft){.sequence = m->slot,
                                    .after = v->out,
                                    .after_count = v->count,
                                    .position = (int32_t)v->row->position,
                                    .rows = m->wanted,
                                    .end = q->limit - 1,
                                    .seed = v->row->seed,
                                    .choice = v->row->choice,
                                    .temperature = v->row->temperature,
                                    .method = r->o.greedy_drafts            ? DRAFT_GREEDY
                                              : q->method == VERIFY_COUPLED ? DRAFT_COUPLED
                                                                            : DRAFT_PROBABILISTIC,
                                    .law = r->laws ? m->slot : -1,
                                    .threshold = r->o.confidence,
                                    .draft = m->draft,
                                    .count = &m->draft_count};
    }
    if (n > 0) r->ops->draft(r->step, r->draft, n);
}

/* Sampled tokens go where the next step and the planner read them. What was accepted behind an end does not come. */
static void keep_group(const runner *run, step *s, int32_t group)
{
    const ops_verify *g = &run->group[group];
    int32_t first = (int32_t)(g->out - s->sampled), came = 0;
    hy_request *r = s->pick[first];
    if (s->score[first]) return;
    int32_t *accepted = &s->member[s->pick_member[first]].accepted;
    while (came < run->came[group] && !r->over) {
        int32_t i = first + came++, id = s->sampled[i].id;
        if (id >= 0 && r->params.s.limit_thinking) request_think(r, run->tok, id);
        if (id >= 0) r->ids[s->sample[i].position] = id;
        if (id >= 0 && r->matcher && !text_matcher_accept(r->matcher, id)) s->sampled[i].id = id = SAMPLED_NONE;
        s->final[i] = id >= 0 && r->matcher && text_matcher_over(r->matcher);
        r->over = id < 0 || s->final[i] || params_ends(&r->params, id);
    }
    s->member[s->pick_member[first]].came = came;
    *accepted = came < run->came[group] ? came : came - 1;
}

static void run(runner *r, step *s)
{
    for (int32_t i = 0; i < s->copy_count; i++) r->ops->cache_copy(r->o.cache, s->copy[i].from, s->copy[i].to);
    if (s->rows.count == 0) return;
    r->running = s, r->routes = wants_routes(s);
    const forward_observer observer = {observe, r};
    watch_enter(r->o.watch, WATCH_RUNNER, WATCH_FORWARD, -1);
    forward_run(r->o.model, r->step, r->o.cache, &s->rows, r->draft != NULL, &observer);
    make_groups(r, s);
    make_masks(r, s); /* while a device still computes */
    if (r->ops->settle) r->ops->settle(r->step);
    watch_enter(r->o.watch, WATCH_RUNNER, WATCH_SAMPLE, 0);
    choose(r, s);
    if (r->draft) {
        if (r->ops->settle) r->ops->settle(r->step);
        watch_enter(r->o.watch, WATCH_RUNNER, WATCH_DRAFT, 0);
        make_drafts(r, s);
    }
    s->status = r->ops->finish(r->step, &s->error);
    if (s->status == HY_OK)
        for (int32_t g = 0; g < r->group_count; g++) keep_group(r, s, g);
    else
        for (int32_t m = 0; m < s->member_count; m++) s->member[m].request->lost |= !s->member[m].dropped;
}

/* With the lock: until there is a step. After one step the next is expected: only a longer pause is called idle. */
static void wait_for_step(runner *r, bool expected)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += EXPECT_NS;
    if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
    watch_enter(r->o.watch, WATCH_RUNNER, expected ? WATCH_WAIT : WATCH_IDLE, 0);
    while (!r->stop && r->over == r->count) {
        if (!expected) {
            pthread_cond_wait(&r->wake, r->o.lock);
        } else if (pthread_cond_timedwait(&r->wake, r->o.lock, &until) != 0) {
            expected = false;
            watch_enter(r->o.watch, WATCH_RUNNER, WATCH_IDLE, 0);
        }
    }
}

static void *runner_main(void *arg)
{
    runner *r = arg;
    pthread_mutex_lock(r->o.lock);
    for (bool ran = false;; ran = true) {
        if (r->over == r->count) wait_for_step(r, ran);
        if (r->stop) break;
        step *s = r->given[r->over];
        pthread_mutex_unlock(r->o.lock);
        watch_enter(r->o.watch, WATCH_RUNNER, WATCH_TURN, 0);
        turn_take(r->o.turn);
        step_resolve(s);
        run(r, s);
        turn_leave(r->o.turn);
        pthread_mutex_lock(r->o.lock);
        r->over++;
        r->near_end = false;
        pthread_cond_signal(r->o.changed);
    }
    pthread_mutex_unlock(r->o.lock);
    return NULL;
}

/* ---- Opening and closing ---------------------------------------------------------------------------------------- */

static void free_runner(runner *r)
{
    if (r->step) r->ops->step_close(r->step);
    memory_free(r->route_rows);
    memory_free(r->group);
    memory_free(r->came);
    memory_free(r->draft);
    pthread_cond_destroy(&r->wake);
    memory_free(r->masks);
    memory_free(r);
}

hy_status runner_open(const runner_options *o, runner **out, hy_error *err)
{
    runner *r = memory_zeroed(1, sizeof *r);
    if (!r) return error_memory(err, "the engine", sizeof *r);
    r->o = *o;
    r->o.limits = NULL; /* the caller's, for now only */
    r->ops = model_ops(o->model);
    r->layers = model_ops_model(o->model)->layers;
    r->tok = model_tokenizer(o->model);
    r->laws = o->limits->draft_laws;
    size_t routes = (size_t)o->limits->rows * (size_t)model_ops_model(o->model)->experts_per_token;
    size_t groups = (size_t)o->limits->logit_rows + 1, drafting = (size_t)o->limits->drafts;
    pthread_cond_init(&r->wake, NULL);
    r->route_rows = memory_zeroed(routes + 1, sizeof *r->route_rows);
    r->group = memory_zeroed(groups, sizeof *r->group);
    r->came = memory_zeroed(groups, sizeof *r->came);
    r->draft = drafting > 0 ? memory_zeroed(drafting, sizeof *r->draft) : NULL;
    if (!r->route_rows || !r->group || !r->came || (drafting > 0 && !r->draft)) {
        free_runner(r);
        return error_memory(err, "the engine", routes * sizeof *r->route_rows + groups * sizeof *r->group);
    }
    /* A tokenizer may have more ids than the model: a mask must have room for them. */
    const text_tokenizer *tok = model_tokenizer(o->model);
    int32_t ids = tok ? text_tokenizer_vocab_size(tok) : 0, vocab = model_ops_model(o->model)->vocab;
    r->words = ((size_t)(ids > vocab ? ids : vocab) + 31) / 32, r->known = ((size_t)vocab + 31) / 32;
    r->masks = tok ? memory_zeroed((size_t)o->limits->logit_rows * r->words, sizeof *r->masks) : NULL;
    hy_status status = HY_OK;
    if (tok && !r->masks) status = error_memory(err, "the masks of grammars", r->words * sizeof *r->masks);
    if (status == HY_OK) status = r->ops->step_open(model_backend(o->model), o->limits, &r->step, err);
    if (status == HY_OK && pthread_create(&r->thread, NULL, runner_main, r) != 0)
        status =
            error_set(err, HY_FAILED, "could not start the engine's thread: the system has no room for another one");
    if (status != HY_OK) {
        free_runner(r);
        return status;
    }
    *out = r;
    return HY_OK;
}

void runner_close(runner *r)
{
    if (!r) return;
    pthread_mutex_lock(r->o.lock);
    r->stop = true;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(r->o.lock);
    pthread_join(r->thread, NULL);
    turn *t = r->o.turn;
    turn_take(t);
    free_runner(r);
    turn_leave(t);
}

/* ---- Steps ------------------------------------------------------------------------------------------------------ */

void runner_submit(runner *r, step *s)
{
    assert(r->count < 2);
    r->given[r->count++] = s;
    pthread_cond_signal(&r->wake);
}

int runner_pending(const runner *r)
{
    return r->count;
}

bool runner_over(const runner *r)
{
    return r->over > 0;
}

bool runner_near_end(const runner *r)
{
    return r->near_end;
}

step *runner_take(runner *r)
{
    assert(r->over > 0);
    step *s = r->given[0];
    r->given[0] = r->given[1];
    r->count--, r->over--;
    return s;
}
