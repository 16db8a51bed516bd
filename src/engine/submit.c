/* What may become a request, and the way in. */
#include <inttypes.h>

#include "base/error.h"
#include "base/log.h"
#include "engine/engine_parts.h"

enum { CHOICES = 16384 }; /* that the counter of the random numbers has room for */

/* Most tokens that the request may have in all, or why it can never be served. */
static hy_status length_limit(const hy_engine *e, const hy_request_options *o, size_t prompt, int32_t *limit,
                              hy_error *err)
{
    int32_t longest = e->plan.longest_tokens, made = o->sampling.max_tokens, need = made > 0 ? made : 1;
    bool of_model = longest == e->model_len;
    const char *of = of_model ? "the model's length" : "what the cache holds";
    if (prompt >= (size_t)longest)
        return error_at(err, HY_NO_FIT, "prompt",
                        "the prompt has %zu tokens; %s is %d tokens, so that a prompt may have at most %d", prompt, of,
                        longest, longest - 1);
    if (need > longest - (int32_t)prompt)
        return error_at(
            err, HY_NO_FIT, "max_tokens",
            "the prompt has %zu tokens and max_tokens is %d, together more than %s of %d tokens: ask for at most %d",
            prompt, made, of, longest, longest - (int32_t)prompt);
    int32_t room = longest - (int32_t)prompt, usual = o->usual_tokens;
    if (made == 0) made = usual > 0 && usual < room ? usual : room;
    *limit = (int32_t)prompt + made;
    if (o->sampling.min_tokens > *limit - (int32_t)prompt)
        return error_at(err, HY_BAD_INPUT, "min_tokens",
                        "min_tokens must be at most %d, the room after the prompt, not %d", *limit - (int32_t)prompt,
                        o->sampling.min_tokens);
    return HY_OK;
}

static hy_status check_prompt(const hy_engine *e, const hy_request_options *o, hy_error *err)
{
    if (o->prompt_count == 0 || !o->prompt_ids)
        return error_at(err, HY_BAD_INPUT, "prompt", "the prompt is empty: it needs at least one token");
    for (size_t i = 0; i < o->prompt_count; i++)
        if (o->prompt_ids[i] < 0 || o->prompt_ids[i] >= e->vocab)
            return error_at(err, HY_BAD_INPUT, "prompt", "token id %d at place %zu of the prompt is outside 0 .. %d",
                            o->prompt_ids[i], i, e->vocab - 1);
    if (o->choice < 0 || o->choice >= CHOICES)
        return error_at(err, HY_BAD_INPUT, "choice", "choice must be 0 .. %d, not %d", CHOICES - 1, o->choice);
    if (o->usual_tokens < 0)
        return error_at(err, HY_BAD_INPUT, "usual_tokens", "usual_tokens must be 0 or more, not %d", o->usual_tokens);
    if (!(o->deadline_s >= 0))
        return error_at(err, HY_BAD_INPUT, "deadline", "a deadline must be 0 or more seconds, not %g", o->deadline_s);
    if (!(o->waited_s >= 0))
        return error_at(err, HY_BAD_INPUT, "waited_s", "waited_s must be 0 or more seconds, not %g", o->waited_s);
    return HY_OK;
}

/* The owner has the pointer before the thread can take the request: its first event may come before submit returns. */
static hy_status enqueue(hy_engine *e, hy_request *r, hy_request **request, hy_error *err)
{
    hy_status status = HY_OK;
    bool drawn = r->params.s.seed == -1 && r->params.s.temperature >= 1e-5f;
    pthread_mutex_lock(&e->lock);
    if (e->stop) {
        status = error_set(err, HY_FAILED, "the engine has stopped");
    } else if (atomic_load(&e->waiting) >= e->max_waiting) {
        atomic_fetch_add(&e->refused, 1);
        status = error_set(err, HY_BUSY, "the queue is full: %d requests wait; try again later", e->max_waiting);
    } else {
        r->number = ++e->numbers;
        /* Before the thread can take it: afterwards it may end and be closed at any moment. */
        if (drawn) log_line(HY_LOG_DEBUG, "request %" PRIu64 ": drew seed %" PRId64, r->number, r->seed);
        atomic_fetch_add(&e->waiting, 1);
        *request = r;
        queue_append(&e->intake, r);
        pthread_cond_signal(&e->changed);
    }
    pthread_mutex_unlock(&e->lock);
    return status;
}

static bool is_end(const hy_engine *e, const hy_sampling *s, int32_t id)
{
    const model_generation *g = model_generation_config(e->model);
    bool end = false;
    for (int i = 0; i < g->eos_count; i++) end |= g->eos[i] == id;
    for (size_t i = 0; i < s->stop_id_count; i++) end |= s->stop_ids[i] == id;
    return end;
}

/* An allowed list of padding alone, or before min_tokens of end ids alone, leaves nothing to choose. */
static hy_status check_allowed(const hy_engine *e, const hy_sampling *s, hy_error *err)
{
    if (s->allowed_count == 0) return HY_OK;
    for (size_t i = 0; i < s->allowed_count; i++) {
        int32_t id = s->allowed_ids[i];
        bool token = !e->has_token || (e->has_token[id / 32] >> (id % 32) & 1);
        if (token && (s->min_tokens == 0 || !is_end(e, s, id))) return HY_OK;
    }
    return error_at(err, HY_BAD_INPUT, "allowed_ids",
                    "allowed_ids leaves no token to choose: its ids stand for no text%s",
                    s->min_tokens > 0 ? ", or end the answer before min_tokens" : "");
}

/* The prompt in the tokens that were sampled, where answers of this engine are in it. */
static hy_status replayed(hy_engine *e, const hy_request_options *o, hy_ids *ids, int32_t *changed, hy_error *err)
{
    if (!o->rendered || !e->replay) return HY_OK;
    return replay_apply(e->replay, o->cache_salt, o->prompt_ids, o->prompt_count, ids, changed, err);
}

hy_status hy_engine_submit(hy_engine *e, const hy_request_options *options, hy_request **request, hy_error *err)
{
    const text_tokenizer *tok = model_tokenizer(e->model);
    hy_request *r = NULL;
    hy_ids ids = {0};
    int32_t limit = 0, changed = -1, drafts = 0;
    ops_verify_method method;
    hy_status status = check_prompt(e, options, err);
    if (status == HY_OK) status = params_check(&options->sampling, e->vocab, tok, err);
    if (status == HY_OK) status = check_allowed(e, &options->sampling, err);
    if (status == HY_OK) status = speculation_choose(e, options, &drafts, &method, err);
    if (status == HY_OK) status = replayed(e, options, &ids, &changed, err);
    const int32_t *prompt = ids.data ? ids.data : options->prompt_ids;
    size_t count = ids.data ? ids.count : options->prompt_count;
    if (status == HY_OK) status = length_limit(e, options, count, &limit, err);
    if (status == HY_OK)
        status = request_open(options, prompt, (int32_t)count, tok, model_generation_config(e->model),
                              model_ops_model(e->model), limit, drafts, &r, err);
    hy_ids_free(&ids);
    if (status != HY_OK) return status;
    r->changed = changed, r->method = method;
    status = enqueue(e, r, request, err);
    if (status != HY_OK) {
        request_done(r);
        hy_request_close(r);
    }
    return status;
}
