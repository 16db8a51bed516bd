#include "engine/request.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/random.h"

enum { TEXT_START = 1024 }; /* bytes of text that are there before the first token */

hy_request_options hy_request_defaults(const hy_model *model)
{
    return (hy_request_options){.sampling = hy_sampling_defaults(model)};
}

/* ---- Opening and closing -------------------------------------------------------------------------------------- */

static void request_free(hy_request *r)
{
    text_matcher_close(r->matcher);
    params_free(&r->params);
    memory_free(r->ids);
    memory_free(r->salt);
    buffer_free(&r->text);
    memory_free(r->logprobs);
    memory_free(r->scores);
    memory_free(r->best);
    memory_free(r->prompt_logprobs);
    memory_free(r->prompt_ranks);
    memory_free(r->routes);
    memory_free(r->runs);
    pthread_cond_destroy(&r->ended);
    pthread_mutex_destroy(&r->lock);
    memory_free(r);
}

/* Reasoning, where it may come first, is told by the prompt's last token, as text/reasoning.h has it. */
static hy_status open_matcher(hy_request *r, const int32_t *prompt, int32_t count, const text_tokenizer *tok,
                              hy_error *err)
{
    const params *p = &r->params;
    if (!p->grammar) return HY_OK;
    int32_t own = p->s.ignore_eos ? p->eos_count : 0; /* ends that do not end */
    r->matcher = text_matcher_open(p->grammar, !p->s.grammar_at_once, text_reasoning_start_of(tok, prompt[count - 1]),
                                   p->end_ids + own, (size_t)(p->end_count - own));
    return r->matcher ? HY_OK : error_memory(err, "a request's grammar", 0);
}

/* Places for the log-probabilities of one token, and for what steps under way find. */
static hy_status open_logprobs(const hy_sampling *s, hy_request *r, hy_error *err)
{
    if (s->logprobs < 0) return HY_OK;
    size_t n = (size_t)s->logprobs, ids = s->logprob_id_count, best = n > SAMPLE_MAX_LOGPROBS ? n : 0;
    size_t places = r->drafts > 1 ? 1 + (size_t)r->drafts : 2;
    r->logprobs = memory_zeroed(1 + n + ids, sizeof *r->logprobs);
    if (ids > 0) r->scores = memory_zeroed(places * ids, sizeof *r->scores);
    if (best > 0) r->best = memory_zeroed(places * best, sizeof *r->best);
    if (r->logprobs && (r->scores || ids == 0) && (r->best || best == 0)) return HY_OK;
    return error_memory(err, "a request's log-probabilities", (1 + n + ids + places * best) * sizeof *r->logprobs);
}

/* Places for what a request wants to know beside its tokens. */
static hy_status open_records(const hy_request_options *o, int32_t layers, int32_t experts, hy_request *r,
                              hy_error *err)
{
    hy_status status = open_logprobs(&o->sampling, r, err);
    if (status != HY_OK) return status;
    size_t prompt = (size_t)r->prompt_count, each = 1 + (size_t)o->sampling.prompt_logprobs;
    size_t route = (size_t)layers * (size_t)experts, sizes = (size_t)o->sampling.repeat_most;
    if (sizes > 0 && !(r->runs = memory_zeroed(sizes, sizeof *r->runs)))
        return error_memory(err, "a request's repetitions", sizes * sizeof *r->runs);
    if (o->sampling.score_prompt) {
        r->prompt_logprobs = memory_zeroed(prompt * each, sizeof *r->prompt_logprobs);
        r->prompt_ranks = memory_zeroed(prompt, sizeof *r->prompt_ranks);
        if (!r->prompt_logprobs || !r->prompt_ranks)
            return error_memory(err, "log-probabilities of a prompt", prompt * each * sizeof *r->prompt_logprobs);
    }
    if (!o->routes) return HY_OK;
    r->route_layers = layers, r->route_experts = experts;
    r->routes = memory_zeroed((size_t)r->limit * route, sizeof *r->routes);
    return r->routes ? HY_OK : error_memory(err, "a request's routes", (size_t)r->limit * route * sizeof *r->routes);
}

/* When the budget is spent the marker is the only choice: what forbids it would leave none. */
static hy_status check_closer(const params *p, int32_t closer, hy_error *err)
{
    for (size_t i = 0; i < p->s.bad_word_count; i++)
        if (p->s.bad_words[i][p->s.bad_word_lengths[i] - 1] == closer)
            return error_at(err, HY_BAD_INPUT, "bad_words",
                            "bad_words forbids " TEXT_THINK_CLOSE
                            ", which must be written when the thinking budget of %d "
                            "tokens is spent: leave one of them out",
                            p->s.thinking_tokens);
    for (size_t i = 0; i < p->s.stop_id_count && p->s.min_tokens > p->s.thinking_tokens; i++)
        if (p->s.stop_ids[i] == closer)
            return error_at(err, HY_BAD_INPUT, "stop_ids",
                            TEXT_THINK_CLOSE
                            " is a stop token, which min_tokens forbids, and must be written when the thinking "
                            "budget of %d tokens is spent: leave one of them out",
                            p->s.thinking_tokens);
    if (p->grammar && p->s.grammar_at_once)
        return error_at(
            err, HY_BAD_INPUT, "thinking_tokens",
            "a thinking budget needs reasoning, and the grammar of this request holds from the first token: "
            "leave one of them out");
    return HY_OK;
}

/* A tokenizer without the marker as one token cannot close what it has opened. */
static hy_status open_thinking(const hy_request_options *o, const text_tokenizer *tok, hy_request *r, hy_error *err)
{
    if (!o->sampling.limit_thinking) return HY_OK;
    r->closer = tok ? text_tokenizer_find(tok, TEXT_THINK_CLOSE) : -1;
    if (r->closer < 0)
        return error_at(err, HY_UNSUPPORTED, "thinking_tokens",
                        "thinking_tokens needs a tokenizer that has " TEXT_THINK_CLOSE " as a token");
    text_reasoning_begin(&r->reasoning, text_reasoning_start_of(tok, r->ids[r->prompt_count - 1]));
    return check_closer(&r->params, r->closer, err);
}

hy_status request_open(const hy_request_options *options, const int32_t *prompt, int32_t count,
                       const text_tokenizer *tok, const model_generation *generation, const ops_model *shape,
                       int32_t limit, int32_t drafts, hy_request **out, hy_error *err)
{
    static const char blank[TEXT_START];
    hy_request *r = memory_zeroed(1, sizeof *r);
    if (!r) return error_memory(err, "a request", sizeof *r);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->ended, NULL);
    atomic_init(&r->cancel, false);
    r->on_event = options->on_event, r->user = options->user;
    r->limit = limit, r->drafts = drafts, r->slot = -1, r->prompt_count = count, r->changed = -1;
    r->choice = options->choice, r->priority = options->priority, r->rendered = options->rendered;
    r->ids = memory_alloc((size_t)limit, sizeof *r->ids);
    hy_status status = HY_OK;
    if (!r->ids) status = error_memory(err, "a request's tokens", (size_t)limit * sizeof *r->ids);
    const char *salt = options->cache_salt;
    if (status == HY_OK && salt && *salt) {
        size_t size = strlen(salt) + 1;
        r->salt = memory_alloc(size, 1);
        if (r->salt)
            memcpy(r->salt, salt, size);
        else
            status = error_memory(err, "a request's cache salt", size);
    }
    /* What is to be known of every token of the prompt is known of those only that are computed. */
    r->cache.salt = r->salt;
    r->cache.apart = options->no_prefix_cache || options->sampling.score_prompt || options->routes;
    if (status == HY_OK)
        status = params_copy(&options->sampling, generation->eos, generation->eos_count, &r->params, err);
    if (status == HY_OK) status = open_matcher(r, prompt, count, tok, err);
    if (status == HY_OK && tok) {
        r->has_text = true;
        text_detokenizer_start(&r->detokenizer, tok, !options->keep_special);
        buffer_append(&r->text, blank, sizeof blank);
        if (!buffer_ok(&r->text)) status = error_memory(err, "a request's text", sizeof blank);
        buffer_clear(&r->text);
    }
    if (status == HY_OK) memcpy(r->ids, prompt, (size_t)count * sizeof *r->ids);
    if (status == HY_OK) status = open_records(options, shape->layers, shape->experts_per_token, r, err);
    if (status == HY_OK) status = open_thinking(options, tok, r, err);
    if (status != HY_OK) {
        request_free(r);
        return status;
    }
    r->seed = r->params.s.seed == -1 ? random_seed() : r->params.s.seed;
    r->submitted = clock_seconds();
    r->asked = r->submitted - options->waited_s;
    if (options->deadline_s > 0) r->deadline = r->asked + options->deadline_s;
    *out = r;
    return HY_OK;
}

void hy_request_cancel(hy_request *request)
{
    if (request) atomic_store_explicit(&request->cancel, true, memory_order_relaxed);
}

hy_status hy_request_wait(hy_request *r)
{
    pthread_mutex_lock(&r->lock);
    while (!r->done) pthread_cond_wait(&r->ended, &r->lock);
    pthread_mutex_unlock(&r->lock);
    return r->finish == HY_FINISH_ERROR ? r->error.status : r->finish == HY_FINISH_CANCEL ? HY_CANCELLED : HY_OK;
}

void hy_request_close(hy_request *request)
{
    if (!request) return;
    hy_request_cancel(request);
    hy_request_wait(request);
    request_free(request);
}

void request_done(hy_request *r)
{
    pthread_mutex_lock(&r->lock);
    r->done = true;
    pthread_cond_broadcast(&r->ended);
    pthread_mutex_unlock(&r->lock);
}

void hy_request_result(const hy_request *r, hy_result *result)
{
    double end = r->last_token;
    *result = (hy_result){
        .ids = r->ids + r->prompt_count,
        .id_count = (size_t)r->output_count,
        .text = r->text.length ? r->text.data : "",
        .text_length = r->text.length,
        .prompt_ids = r->ids,
        .prompt_count = (size_t)r->prompt_count,
        .reuse = r->reuse,
        .preemptions = r->preemptions,
        .draft_rounds = r->draft_rounds,
        .drafts = r->drafts_verified,
        .drafts_accepted = r->drafts_accepted,
        .finish = r->finish,
        .prompt_logprobs = r->prompt_logprobs,
        .prompt_logprobs_per_token = 1 + (size_t)r->params.s.prompt_logprobs,
        .prompt_ranks = r->prompt_ranks,
        .routes = r->routes,
        .route_layers = r->route_layers,
        .route_experts = r->route_experts,
        .seed = r->seed,
        .queue_s = r->admitted > 0 ? r->admitted - r->submitted : 0,
        .prefill_s = r->first_token > 0 ? r->first_token - r->admitted : 0,
        .decode_s = r->first_token > 0 ? end - r->first_token : 0,
    };
}

/* ---- Events --------------------------------------------------------------------------------------------------- */

/* Bytes of the text that may be shown: all at the end, before that what cannot become a stop string. */
static size_t showable(const hy_request *r)
{
    if (r->finish != HY_RUNNING) return r->text.length;
    return r->text.length - stop_hold(&r->params.stop, r->text.data ? r->text.data : "", r->text.length);
}

/* Its text starts where the last event's ended. */
void request_tell(hy_request *r, hy_event *event)
{
    size_t end = showable(r);
    assert(end >= r->shown);
    event->text = r->text.data ? r->text.data + r->shown : "";
    event->text_length = end - r->shown;
    event->finish = r->finish;
    r->shown = end;
    if (r->on_event && !r->on_event(r->user, event)) hy_request_cancel(r);
}

hy_event request_end(hy_request *r, hy_finish finish, const hy_error *error)
{
    assert(r->finish == HY_RUNNING && (finish == HY_FINISH_CANCEL || finish == HY_FINISH_ERROR));
    r->finish = finish;
    hy_event event = {.stop_id = -1};
    if (finish == HY_FINISH_ERROR) {
        r->error = *error;
        event.error = &r->error;
    } else if (r->has_text) {
        text_detokenizer_finish(&r->detokenizer, &r->text);
    }
    return event;
}

/* ---- Tokens --------------------------------------------------------------------------------------------------- */

/* The token's own and the n best, which may be in their places already; places without a token (fewer than n have a
 * probability) are -1. */
static void put_best(hy_logprob *to, int32_t n, const ops_sampled *sampled)
{
    to[0] = (hy_logprob){sampled->id, sampled->logprob};
    if (n <= SAMPLE_MAX_LOGPROBS)
        for (int32_t i = 0; i < sampled->top_count; i++)
            to[1 + i] = (hy_logprob){sampled->top_ids[i], sampled->top_logprobs[i]};
    for (int32_t i = sampled->top_count; i < n; i++) to[1 + i] = (hy_logprob){-1, -INFINITY};
}

static void fill_logprobs(hy_request *r, const ops_sampled *sampled)
{
    int32_t n = r->params.s.logprobs;
    size_t place = request_place(r, request_known(r)), ids = r->params.s.logprob_id_count;
    if (r->best) memcpy(r->logprobs + 1, r->best + place * (size_t)n, (size_t)sampled->top_count * sizeof *r->best);
    put_best(r->logprobs, n, sampled);
    for (size_t i = 0; i < ids; i++)
        r->logprobs[1 + (size_t)n + i] = (hy_logprob){r->params.s.logprob_ids[i], r->scores[place * ids + i]};
}

void request_score(hy_request *r, int32_t position, const ops_sampled *sampled)
{
    int32_t n = r->params.s.prompt_logprobs;
    /* After a preemption the prompt is computed again, while the owner may read what the first time said. */
    if (r->prompt_ranks[position - 1] > 0) return;
    hy_logprob *to = r->prompt_logprobs + (size_t)(position - 1) * (1 + (size_t)n);
    put_best(to, n, sampled);
    r->prompt_ranks[position - 1] = sampled->rank;
}

static void ignore_piece(void *user, text_kind kind, const char *text, size_t length)
{
    (void)user, (void)kind, (void)text, (void)length;
}

void request_think_ahead(text_reasoning *reasoning, int32_t *thought, const text_tokenizer *tok, int32_t id)
{
    size_t length;
    const char *bytes = text_tokenizer_bytes(tok, id, &length);
    bool inside = text_reasoning_inside(reasoning);
    if (length) text_reasoning_feed(reasoning, bytes, length, ignore_piece, NULL);
    *thought += inside && text_reasoning_inside(reasoning);
}

void request_think(hy_request *r, const text_tokenizer *tok, int32_t id)
{
    request_think_ahead(&r->reasoning, &r->thought, tok, id);
}

/*
 * The last tokens are one pattern, often enough in a row. Of each size of pattern it is known how many of the last
 * tokens are those that stand a pattern before them, so that a token costs one look a size, whatever was written.
 */
static bool repeats(hy_request *r)
{
    const hy_sampling *s = &r->params.s;
    const int32_t *last = r->ids + request_known(r) - 1;
    bool found = false;
    for (int32_t size = s->repeat_least; size <= s->repeat_most && size < r->output_count; size++) {
        int32_t *run = &r->runs[size - s->repeat_least];
        *run = last[0] == last[-size] ? *run + 1 : 0;
        found |= *run >= (int64_t)size * (s->repeat_count - 1);
    }
    return found;
}

/* Looks for a stop string in what is new and cuts the text at it. Text of the first min_tokens is not looked at. */
static bool cut_at_stop(hy_request *r, stop_match *match)
{
    size_t from = r->searched;
    r->searched = r->text.length;
    if (r->output_count <= r->params.s.min_tokens) return false;
    if (!stop_find(&r->params.stop, r->text.data, from, r->text.length, match)) return false;
    r->text.length = r->params.s.include_stop ? match->end : match->begin;
    r->text.data[r->text.length] = 0;
    return true;
}

hy_event request_token(hy_request *r, const ops_sampled *sampled, bool final)
{
    const params *p = &r->params;
    int32_t id = sampled->id;
    assert(r->finish == HY_RUNNING && request_known(r) < r->limit && id >= 0 && r->ids[request_known(r)] == id);
    r->last_token = clock_seconds();
    if (r->first_token == 0) r->first_token = r->last_token;
    hy_event event = {.ids = &r->ids[request_known(r)], .id_count = 1, .stop_id = -1};
    if (p->s.logprobs >= 0) fill_logprobs(r, sampled);
    r->output_count++;

    /* Before min_tokens end ids cannot be drawn, so that no count is needed here. */
    bool ends = params_ends(p, id), repeated = p->s.repeat_most > 0 && repeats(r);
    if (ends)
        r->finish = HY_FINISH_STOP, event.stop_id = id;
    else if (final)
        r->finish = HY_FINISH_STOP;
    else if (request_known(r) == r->limit)
        r->finish = HY_FINISH_LENGTH;
    else if (repeated && r->output_count > p->s.min_tokens)
        r->finish = HY_FINISH_REPETITION;

    stop_match match;
    if (r->has_text && (!ends || p->s.include_stop)) text_detokenizer_feed(&r->detokenizer, &id, 1, &r->text);
    if (r->has_text && !ends && cut_at_stop(r, &match)) {
        r->finish = HY_FINISH_STOP;
        event.stop_string = p->stop.string[match.index];
    } else if (r->has_text && r->finish != HY_RUNNING) {
        text_detokenizer_finish(&r->detokenizer, &r->text);
    }
    if (!buffer_ok(&r->text)) {
        r->finish = HY_FINISH_ERROR, event.stop_id = -1, event.stop_string = NULL;
        error_memory(&r->error, "a request's text", r->text.length);
        event.error = &r->error;
    }
    if (p->s.logprobs >= 0) {
        event.logprobs = r->logprobs;
        event.logprobs_per_token = 1 + (size_t)p->s.logprobs + p->s.logprob_id_count;
    }
    return event;
}
