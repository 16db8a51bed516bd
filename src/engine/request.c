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
    params_free(&r->params);
    memory_free(r->ids);
    buffer_free(&r->text);
    pthread_cond_destroy(&r->ended);
    pthread_mutex_destroy(&r->lock);
    memory_free(r);
}

hy_status request_open(const hy_request_options *options, const text_tokenizer *tok, const model_generation *generation,
                       int32_t limit, hy_request **out, hy_error *err)
{
    static const char blank[TEXT_START];
    hy_request *r = memory_zeroed(1, sizeof *r);
    if (!r) return error_memory(err, "a request", sizeof *r);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->ended, NULL);
    atomic_init(&r->cancel, false);
    r->on_event = options->on_event, r->user = options->user;
    r->limit = limit, r->slot = -1, r->prompt_count = (int32_t)options->prompt_count;
    r->ids = memory_alloc((size_t)limit, sizeof *r->ids);
    hy_status status = HY_OK;
    if (!r->ids) status = error_memory(err, "a request's tokens", (size_t)limit * sizeof *r->ids);
    if (status == HY_OK)
        status = params_copy(&options->sampling, generation->eos, generation->eos_count, &r->params, err);
    if (status == HY_OK && tok) {
        r->has_text = true;
        text_detokenizer_start(&r->detokenizer, tok, !options->keep_special);
        buffer_append(&r->text, blank, sizeof blank);
        if (!buffer_ok(&r->text)) status = error_memory(err, "a request's text", sizeof blank);
        buffer_clear(&r->text);
    }
    if (status != HY_OK) {
        request_free(r);
        return status;
    }
    memcpy(r->ids, options->prompt_ids, options->prompt_count * sizeof *r->ids);
    r->seed = r->params.s.seed == -1 ? random_seed() : r->params.s.seed;
    r->submitted = clock_seconds();
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
        .prompt_count = (size_t)r->prompt_count,
        .finish = r->finish,
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

/* Tells the owner what is new. Its text starts where the last event's ended. */
static void tell(hy_request *r, hy_event *event)
{
    size_t end = showable(r);
    assert(end >= r->shown);
    event->text = r->text.data ? r->text.data + r->shown : "";
    event->text_length = end - r->shown;
    event->finish = r->finish;
    r->shown = end;
    if (r->on_event && !r->on_event(r->user, event)) hy_request_cancel(r);
}

void request_end(hy_request *r, hy_finish finish, const hy_error *error)
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
    tell(r, &event);
}

/* ---- Tokens --------------------------------------------------------------------------------------------------- */

/* The token's own and the n best; places without a token (fewer than n have a probability) are -1. */
static void fill_logprobs(hy_request *r, const ops_sampled *sampled)
{
    r->logprobs[0] = (hy_logprob){sampled->id, sampled->logprob};
    for (int32_t i = 0; i < r->params.s.logprobs; i++)
        r->logprobs[1 + i] = i < sampled->top_count ? (hy_logprob){sampled->top_ids[i], sampled->top_logprobs[i]}
                                                    : (hy_logprob){-1, -INFINITY};
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

void request_token(hy_request *r, const ops_sampled *sampled)
{
    const params *p = &r->params;
    int32_t id = sampled->id;
    assert(r->finish == HY_RUNNING && request_known(r) < r->limit && id >= 0);
    r->last_token = clock_seconds();
    if (r->first_token == 0) r->first_token = r->last_token;
    hy_event event = {.ids = &r->ids[request_known(r)], .id_count = 1, .stop_id = -1};
    r->ids[request_known(r)] = id;
    r->output_count++;

    /* Before min_tokens end ids cannot be drawn, so that no count is needed here. */
    bool ends = params_ends(p, id);
    if (ends)
        r->finish = HY_FINISH_STOP, event.stop_id = id;
    else if (request_known(r) == r->limit)
        r->finish = HY_FINISH_LENGTH;

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
        fill_logprobs(r, sampled);
        event.logprobs = r->logprobs;
        event.logprobs_per_token = 1 + (size_t)p->s.logprobs;
    }
    tell(r, &event);
}
