/*
 * Beam search on the engine: a round is a request of one token for each live beam, whose prompt is the call's with the
 * beam's tokens behind it. The prefix cache finds all but the last of them, so that a round costs about what a step of
 * so many sequences does.
 *
 *     worker: start a round ──► engine ──► planner: the likeliest tokens into slots; the last one gives the next turn
 *     worker: offers, next round, or at the end whole answers into the mailboxes
 *
 * A search belongs to its call, whose memory is freed after `done`, the last thing that a worker touches.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"
#include "model/model.h"
#include "server/beams.h"
#include "server/generation_given.h"

typedef struct search search;

/* A live beam's request. */
typedef struct slot {
    search *of;
    hy_request *request; /* under the lock */
    hy_logprob *best;    /* [wanted] */
    size_t count;
    hy_error error; /* HY_OK: none */
} slot;

struct search {
    generation *g;
    size_t prompt; /* of the call's */
    beams *beams;
    slot *slots; /* [n] */
    int32_t wanted;
    int32_t *ids;      /* [prompt's and max_tokens] of a beam */
    char *salt;        /* owned, as the next */
    int32_t *stop_ids; /* of the request's parameters, which are gone by now */
    size_t stop_id_count;
    int32_t kept; /* log-probabilities that are told of each token beside its own; -1: none */
    bool ignore_eos, include_stop;
    hy_result result; /* of the first round's request: numbers */
    double first;     /* clock_seconds at its end, 0: not yet */
    hy_error error;
    atomic_int pending; /* requests of the round that have not ended, and the one who starts them */
    atomic_bool cancelled;

    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done;
};

/* ---- The end ---------------------------------------------------------------------------------------------------- */

static void tell(search *s, int32_t rank, hy_finish cut)
{
    generation *g = s->g;
    choice *c = &g->inside->choice[s->prompt * (size_t)g->plan.n + (size_t)rank];
    generation_whole whole = {.finish = cut, .stop_id = -1, .result = s->result};
    whole.result.prompt_ids = g->prompts[s->prompt].data, whole.result.prompt_count = g->prompts[s->prompt].count;
    whole.error = cut == HY_FINISH_ERROR ? &s->error : NULL;
    const hy_error memory = {.status = HY_FAILED, .message = "out of memory"};
    int32_t *ids = NULL;
    hy_logprob *logprobs = NULL;
    if (cut != HY_FINISH_ERROR && rank < beams_answers(s->beams)) {
        beams_answer a = beams_best(s->beams, rank);
        size_t count = (size_t)a.count;
        whole.stride = s->kept >= 0 ? 1 + (size_t)s->kept : 0;
        ids = malloc((count + 1) * sizeof *ids);
        logprobs = malloc((count * whole.stride + 1) * sizeof *logprobs);
        if (ids && logprobs) {
            beams_tell(s->beams, rank, ids, logprobs);
            whole.ids = ids, whole.id_count = count, whole.logprobs = whole.stride ? logprobs : NULL;
            whole.shown = count - (a.ended && !s->include_stop);
            if (a.ended) whole.stop_id = ids[count - 1];
            whole.finish = a.ended ? HY_FINISH_STOP : cut;
        } else {
            whole.finish = HY_FINISH_ERROR, whole.error = &memory, whole.stride = 0;
        }
    }
    whole.result.decode_s = s->first > 0 ? clock_seconds() - s->first : 0;
    whole.result.finish = whole.finish;
    generation_bring(c, &whole);
    free(ids), free(logprobs);
}

static void end(search *s, hy_finish cut)
{
    if (!beams_ok(s->beams) && cut != HY_FINISH_ERROR) {
        cut = HY_FINISH_ERROR;
        s->error = (hy_error){.status = HY_FAILED, .message = "out of memory"};
    }
    beams_stop(s->beams);
    int32_t n = s->g->plan.n;
    for (int32_t i = 0; i < n; i++) tell(s, i, cut);
    /* The closer may free it from here on. */
    pthread_mutex_lock(&s->lock);
    s->done = true;
    pthread_cond_broadcast(&s->ended);
    pthread_mutex_unlock(&s->lock);
}

/* ---- Rounds ----------------------------------------------------------------------------------------------------- */

static void round_over(void *search);

static void one_less(search *s)
{
    /* Without memory for the turn there is nobody else who could end the search; a few bytes are there sooner or later.
     */
    if (atomic_fetch_sub(&s->pending, 1) == 1)
        while (!work_give(s->g->room->work, round_over, s)) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

static bool on_event(void *user, const hy_event *event)
{
    slot *b = user;
    if (event->logprobs && event->id_count) {
        b->count = (size_t)b->of->wanted;
        memcpy(b->best, event->logprobs + 1, b->count * sizeof *b->best);
    }
    if (event->finish == HY_RUNNING) return true;
    if (event->error) b->error = *event->error;
    one_less(b->of);
    return true;
}

static hy_request_options options_of(search *s, int32_t made)
{
    generation *g = s->g;
    const generation_plan *p = &g->plan;
    hy_request_options o = hy_request_defaults(g->room->model);
    o.prompt_ids = s->ids, o.prompt_count = g->prompts[s->prompt].count + (size_t)made;
    o.sampling = (hy_sampling){.top_p = 1, .repetition_penalty = 1, .seed = 0, .max_tokens = 1, .logprobs = s->wanted};
    o.priority = p->priority, o.deadline_s = p->deadline_s;
    o.waited_s = clock_seconds() - g->inside->arrived;
    o.cache_salt = s->salt;
    o.on_event = on_event;
    return o;
}

static void start_round(search *s)
{
    generation *g = s->g;
    const hy_ids *prompt = &g->prompts[s->prompt];
    int32_t live = beams_live(s->beams), made = beams_made(s->beams);
    hy_request_options o = options_of(s, made);
    memcpy(s->ids, prompt->data, prompt->count * sizeof *s->ids);
    atomic_store(&s->pending, live + 1);
    int32_t i = 0;
    for (; i < live; i++) {
        slot *b = &s->slots[i];
        hy_request *request = NULL;
        b->count = 0, b->error.status = HY_OK, o.user = b;
        beams_tokens(s->beams, i, s->ids + prompt->count);
        if (hy_engine_submit(g->room->engine, &o, &request, &b->error) != HY_OK) break;
        pthread_mutex_lock(&s->lock);
        b->request = request;
        if (atomic_load(&s->cancelled)) hy_request_cancel(request);
        pthread_mutex_unlock(&s->lock);
    }
    for (; i < live; i++) one_less(s);
    one_less(s);
}

static void close_requests(search *s, int32_t live)
{
    for (int32_t i = 0; i < live; i++) {
        slot *b = &s->slots[i];
        pthread_mutex_lock(&s->lock);
        hy_request *request = b->request;
        b->request = NULL;
        pthread_mutex_unlock(&s->lock);
        if (request) hy_request_wait(request);
        if (request && s->first == 0) {
            hy_request_result(request, &s->result);
            s->result.ids = NULL, s->result.text = NULL, s->result.prompt_ids = NULL, s->result.routes = NULL;
            s->result.prompt_logprobs = NULL, s->result.prompt_ranks = NULL;
            s->first = clock_seconds();
        }
        hy_request_close(request);
        if (b->error.status != HY_OK && s->error.status == HY_OK) s->error = b->error;
    }
}

static void round_over(void *user)
{
    search *s = user;
    int32_t live = beams_live(s->beams);
    close_requests(s, live);
    if (s->error.status != HY_OK) {
        end(s, HY_FINISH_ERROR);
    } else if (atomic_load(&s->cancelled)) {
        end(s, HY_FINISH_CANCEL);
    } else {
        for (int32_t i = 0; i < live; i++) beams_offer(s->beams, i, s->slots[i].best, s->slots[i].count);
        if (beams_advance(s->beams))
            start_round(s);
        else
            end(s, HY_FINISH_LENGTH);
    }
}

/* ---- Opening and closing ---------------------------------------------------------------------------------------- */

static bool ends(void *user, int32_t token)
{
    const search *s = user;
    for (size_t i = 0; i < s->stop_id_count; i++)
        if (s->stop_ids[i] == token) return true;
    return !s->ignore_eos && generation_is_eos(s->g->room, token);
}

static search *open_search(generation *g, size_t prompt, const char *salt)
{
    const generation_plan *p = &g->plan;
    hy_model_info info;
    hy_model_describe(g->room->model, &info);
    int64_t usual = g->room->options->max_new_tokens, length = (int64_t)g->prompts[prompt].count;
    int64_t most = p->sampling.s.max_tokens, room = model_max_len(g->room->model) - length;
    if (most == 0) most = usual > 0 && usual < room ? usual : room;
    search *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->ended, NULL);
    atomic_init(&s->pending, 0), atomic_init(&s->cancelled, false);
    s->g = g, s->prompt = prompt, s->done = true;
    s->kept = p->sampling.s.logprobs;
    s->ignore_eos = p->sampling.s.ignore_eos, s->include_stop = p->sampling.s.include_stop;
    s->stop_id_count = p->sampling.s.stop_id_count;
    s->wanted = 2 * p->n > s->kept ? 2 * p->n : s->kept;
    if (s->wanted > info.vocab) s->wanted = info.vocab;
    s->beams = beams_open(&(beams_options){.width = p->n,
                                           .prompt_count = (int32_t)length,
                                           .max_tokens = (int32_t)most,
                                           .length_penalty = p->length_penalty,
                                           .kept = s->kept,
                                           .ends = ends,
                                           .user = s});
    s->ids = malloc(((size_t)length + (size_t)most) * sizeof *s->ids);
    s->stop_ids = malloc((s->stop_id_count + 1) * sizeof *s->stop_ids);
    if (s->stop_ids && s->stop_id_count)
        memcpy(s->stop_ids, p->sampling.s.stop_ids, s->stop_id_count * sizeof *s->stop_ids);
    s->slots = calloc((size_t)p->n, sizeof *s->slots);
    s->salt = salt ? memory_string(salt, strlen(salt)) : NULL;
    bool ok = s->beams && s->ids && s->stop_ids && s->slots && (s->salt || !salt);
    for (int32_t i = 0; ok && i < p->n; i++) {
        s->slots[i].of = s;
        ok = (s->slots[i].best = malloc(((size_t)s->wanted + 1) * sizeof *s->slots[i].best)) != NULL;
    }
    if (ok) return s;
    s->error.status = HY_FAILED;
    return s;
}

bool generation_search(generation *g, const char *salt, request_fault *fault)
{
    generation_inside *in = g->inside;
    in->searches = calloc(g->prompt_count, sizeof *in->searches);
    bool ok = in->searches != NULL;
    for (size_t i = 0; ok && i < g->prompt_count; i++) {
        search *s = open_search(g, i, salt);
        in->searches[i] = s;
        ok = s && s->error.status == HY_OK;
    }
    if (!ok) return request_failed(fault, NULL, &(hy_error){.status = HY_FAILED, .message = "out of memory"});
    in->submitted = g->choices;
    for (size_t i = 0; i < g->prompt_count; i++) {
        search *s = in->searches[i];
        s->done = false;
        start_round(s);
    }
    return true;
}

void generation_search_cancel(generation *g)
{
    for (size_t i = 0; g->inside->searches && i < g->prompt_count; i++) {
        search *s = g->inside->searches[i];
        if (!s) continue;
        pthread_mutex_lock(&s->lock);
        atomic_store(&s->cancelled, true);
        for (int32_t k = 0; s->slots && k < g->plan.n; k++) hy_request_cancel(s->slots[k].request);
        pthread_mutex_unlock(&s->lock);
    }
}

void generation_search_close(generation *g)
{
    for (size_t i = 0; g->inside->searches && i < g->prompt_count; i++) {
        search *s = g->inside->searches[i];
        if (!s) continue;
        pthread_mutex_lock(&s->lock);
        while (!s->done) pthread_cond_wait(&s->ended, &s->lock);
        pthread_mutex_unlock(&s->lock);
        for (int32_t k = 0; s->slots && k < g->plan.n; k++) free(s->slots[k].best);
        free(s->slots), free(s->ids), free(s->stop_ids), free(s->salt);
        beams_close(s->beams);
        pthread_cond_destroy(&s->ended);
        pthread_mutex_destroy(&s->lock);
        free(s);
    }
    free(g->inside->searches);
    g->inside->searches = NULL;
}
