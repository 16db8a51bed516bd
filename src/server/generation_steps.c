/* From the engine to the dialect: mailboxes, the answer parser, steps. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "model/model.h"
#include "server/generation_inside.h"
#include "server/request_log.h"

/* ---- Planner ---------------------------------------------------------------------------------------------------- */

void generation_post(choice *c, const hy_result *result, const hy_event *event)
{
    generation *g = c->g;
    generation_inside *in = g->inside;
    pthread_mutex_lock(&in->lock);
    mailbox *m = &c->box[c->filling];
    m->any = true, m->result = *result;
    if (event->text_length) buffer_append(&m->text, event->text, event->text_length);
    if (event->id_count) {
        buffer_append(&m->ids, event->ids, event->id_count * sizeof *event->ids);
        m->steps++;
        if (in->first_token == 0) in->first_token = clock_seconds();
    }
    if (event->logprobs) {
        m->stride = event->logprobs_per_token;
        buffer_append(&m->logprobs, event->logprobs, event->id_count * m->stride * sizeof *event->logprobs);
    }
    m->finish = event->finish;
    if (event->finish != HY_RUNNING) {
        m->stop_id = event->stop_id;
        if (event->stop_string) m->stop_string = memory_string(event->stop_string, strlen(event->stop_string));
        if (event->error && (m->error = malloc(sizeof *m->error))) *m->error = *event->error;
    }
    bool post = !in->posted;
    in->posted = true;
    pthread_mutex_unlock(&in->lock);
    if (post) http_post(g->room->http, generation_pump, g);
}

bool generation_on_event(void *user, const hy_event *event)
{
    choice *c = user;
    hy_result result;
    hy_request_result(c->request, &result);
    generation_post(c, &result, event);
    return true;
}

/* ---- Parts ------------------------------------------------------------------------------------------------------ */

static void take_part(void *user, text_part_kind kind, int call, const char *text, size_t length)
{
    choice *c = user;
    size_t count = c->parts.length / sizeof(generation_part);
    generation_part *last = count ? (generation_part *)(void *)c->parts.data + count - 1 : NULL;
    bool joins =
        last && last->kind == kind && last->call == call && kind != TEXT_PART_CALL && kind != TEXT_PART_CALL_END;
    if (joins)
        last->length += length;
    else
        buffer_append(&c->parts, &(generation_part){.kind = kind, .call = call, .length = length}, sizeof *last);
    if (length) buffer_append(&c->text, text, length);
}

static void ignore_piece(void *user, text_kind kind, const char *text, size_t length)
{
    (void)user, (void)kind, (void)text, (void)length;
}

/* Tokens within reasoning, without its markers: a token counts when reasoning goes on before and after it. */
static void count_reasoning(choice *c, const int32_t *ids, size_t count)
{
    const text_tokenizer *tok = model_tokenizer(c->g->room->model);
    for (size_t i = 0; i < count && tok; i++) {
        size_t length;
        const char *bytes = text_tokenizer_bytes(tok, ids[i], &length);
        bool inside = text_reasoning_inside(&c->reasoning);
        if (!inside && !text_reasoning_active(&c->reasoning)) return;
        if (length) text_reasoning_feed(&c->reasoning, bytes, length, ignore_piece, NULL);
        c->thought += inside && text_reasoning_inside(&c->reasoning) && !generation_is_eos(c->g->room, ids[i]);
    }
}

static void feed(choice *c, mailbox *m)
{
    bool parsed = c->answer != NULL;
    if (!c->parts.length && !c->ids.length) c->thinking = parsed && text_answer_thinking(c->answer);
    if (m->text.length) {
        if (parsed)
            text_answer_feed(c->answer, m->text.data, m->text.length, take_part, c);
        else
            take_part(c, TEXT_PART_CONTENT, -1, m->text.data, m->text.length);
        buffer_append(&c->plain, m->text.data, m->text.length);
    }
    if (parsed && m->finish != HY_RUNNING) text_answer_finish(c->answer, take_part, c);
    size_t count = m->ids.length / sizeof(int32_t);
    if (parsed) count_reasoning(c, (const int32_t *)(const void *)m->ids.data, count);
    buffer_append(&c->ids, m->ids.data, m->ids.length);
    buffer_append(&c->logprobs, m->logprobs.data, m->logprobs.length);
    if (m->stride) c->stride = m->stride;
    c->completion += count;
}

/* ---- Steps ------------------------------------------------------------------------------------------------------ */

static const char *finish_name(const choice *c)
{
    const request_tools *tools = &c->g->plan.tools;
    bool calls = c->answer && text_answer_calls(c->answer) > 0 && tools->mode != REQUEST_TOOLS_NAMED;
    switch (c->finish) {
    case HY_FINISH_STOP: return calls ? "tool_calls" : "stop";
    case HY_FINISH_LENGTH: return "length";
    case HY_FINISH_CANCEL: return "abort";
    case HY_FINISH_ERROR: return "error";
    case HY_FINISH_REPETITION: return "repetition";
    default: return NULL;
    }
}

static void clear(choice *c)
{
    buffer_clear(&c->text), buffer_clear(&c->parts), buffer_clear(&c->plain);
    buffer_clear(&c->ids), buffer_clear(&c->logprobs);
}

static void tell(choice *c)
{
    generation *g = c->g;
    generation_part *part = (generation_part *)(void *)c->parts.data;
    size_t count = c->parts.length / sizeof *part, at = 0;
    for (size_t i = 0; i < count; at += part[i++].length) part[i].text = c->text.data ? c->text.data + at : "";
    bool model_end = c->finish != HY_FINISH_STOP || generation_is_eos(g->room, c->stop_id);
    generation_step step = {.choice = c->index,
                            .part = part,
                            .part_count = count,
                            .text = c->plain.data ? c->plain.data : "",
                            .text_length = c->plain.length,
                            .ids = (const int32_t *)(const void *)c->ids.data,
                            .id_count = c->ids.length / sizeof(int32_t),
                            .logprobs = c->stride ? (const hy_logprob *)(const void *)c->logprobs.data : NULL,
                            .logprob_stride = c->stride,
                            .thinking = c->thinking,
                            .finish = c->finish,
                            .finish_name = finish_name(c),
                            .stop_string = c->stop_string,
                            .stop_id = model_end ? -1 : c->stop_id,
                            .calls = c->answer ? text_answer_calls(c->answer) : 0,
                            .result = c->finish == HY_RUNNING ? NULL : &c->result};
    g->dialect->step(g, &step);
    c->said = true;
    clear(c);
}

static void begin(generation *g)
{
    if (g->begun) return;
    g->begun = true;
    g->dialect->begin(g);
}

/* Something to say: text, an end, or, for who wants to see every token, tokens; no more often than every `interval`. */
static bool due(const choice *c)
{
    const generation_plan *plan = &c->g->plan;
    size_t ids = c->ids.length / sizeof(int32_t);
    if (c->finish != HY_RUNNING) return true;
    if (c->said && ids < (size_t)plan->interval) return false;
    return c->parts.length > 0 || ((plan->every_token || plan->no_text) && ids > 0);
}

bool generation_unread(const generation *g)
{
    return g->x && http_stream_backlog(g->x) > GENERATION_BACKLOG + 2 * http_stream_largest(g->x);
}

static void stream(choice *c)
{
    generation *g = c->g;
    /* The first token exists: a stream begins, whether or not it can be shown yet. */
    if (c->ids.length || c->finish != HY_RUNNING) begin(g);
    if (!due(c)) return;
    tell(c);
    if (c->finish == HY_RUNNING && generation_unread(g)) {
        log_line(HY_LOG_WARNING, "%s: the client does not read its stream, the request is cancelled", g->id);
        generation_cancel(g);
    }
}

static void report(choice *c)
{
    generation *g = c->g;
    const hy_result *r = &c->result;
    if (g->plan.given_count) return; /* made elsewhere, counted there */
    struct generation_report report = {.finish = c->finish,
                                       .prompt_tokens = r->prompt_count,
                                       .cached_tokens = (size_t)r->reuse.tokens,
                                       .generated_tokens = c->completion,
                                       .max_tokens = g->plan.sampling.max_tokens,
                                       .n = g->plan.n,
                                       .end_to_end_s = clock_seconds() - g->inside->arrived,
                                       .queue_s = r->queue_s,
                                       .prefill_s = r->prefill_s,
                                       .decode_s = r->decode_s,
                                       .calls = c->answer ? text_answer_calls(c->answer) : 0,
                                       .repairs = c->answer ? text_answer_repairs(c->answer) : 0,
                                       .faults = c->answer ? text_answer_faults(c->answer) : 0,
                                       .parsed_calls = c->answer && g->plan.tools.mode != REQUEST_TOOLS_NONE,
                                       .stream = g->plan.stream};
    /* With the first answer to its prompt: looking at all of them at each end would take n times n looks. */
    int first = c->index - c->index % g->plan.n, asked = g->inside->submitted - first;
    choice *of_prompt = &g->inside->choice[first];
    if (c->completion > of_prompt->longest) of_prompt->longest = c->completion;
    of_prompt->over++;
    report.prefix = g->dialect->prefix, report.longest = of_prompt->longest;
    report.last = of_prompt->over == (asked < g->plan.n ? asked : g->plan.n);
    if (g->room->on_end) g->room->on_end(g->room->observer, &report);
    if (g->room->options->log_outputs && c->request) request_log_answered(g, c->request, c->index, finish_name(c));
}

static void report_tokens(choice *c, int count)
{
    generation *g = c->g;
    double now = clock_seconds();
    bool first = c->last_tokens == 0;
    struct generation_tokens tokens = {count, first, now - (first ? g->inside->arrived : c->last_tokens)};
    c->last_tokens = now;
    if (g->room->on_tokens) g->room->on_tokens(g->room->observer, &tokens);
}

/* The others' answers are worth nothing without this one. */
static void fail(generation *g, const hy_error *error)
{
    if (g->inside->failed) return;
    g->inside->failed = true;
    request_failed(&g->inside->fault, NULL, error);
    generation_cancel(g);
}

/* Ended by the shutdown before anything of it was said: a client that gets 503 asks again, elsewhere. */
static bool never_began(const generation *g, const mailbox *m)
{
    if (m->finish != HY_FINISH_CANCEL || !g->room->stopping || g->plan.background || g->inside->failed) return false;
    for (int i = 0; i < g->choices; i++)
        if (g->inside->choice[i].last_tokens != 0) return false;
    return true;
}

static void turn_away(generation *g)
{
    g->inside->failed = true;
    g->inside->fault =
        (request_fault){.status = 503, .type = "ServiceUnavailableError", .message = "The server is shutting down"};
    generation_cancel(g);
}

/* Its memory stays, unless a pause of the HTTP thread let it become large. */
static void empty(mailbox *m)
{
    enum { KEPT = 4 << 10 };
    buffer *all[] = {&m->text, &m->ids, &m->logprobs};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i]->capacity > KEPT)
            buffer_free(all[i]);
        else
            buffer_clear(all[i]);
    }
    free(m->error);
    m->any = false, m->stride = 0, m->steps = 0;
    m->finish = HY_RUNNING, m->stop_string = NULL, m->stop_id = -1, m->error = NULL;
}

static void take_mail(choice *c, mailbox *m)
{
    generation *g = c->g;
    c->result = m->result;
    if (m->steps && !g->plan.given_count) report_tokens(c, (int)(m->ids.length / sizeof(int32_t)));
    if (!g->inside->failed) feed(c, m);
    c->finish = m->finish;
    c->stop_id = m->stop_id;
    if (m->stop_string) {
        free(c->stop_string);
        c->stop_string = m->stop_string;
    }
    if (m->finish == HY_FINISH_ERROR)
        fail(g, m->error ? m->error : &(hy_error){.status = HY_FAILED, .message = "out of memory"});
    if (never_began(g, m)) turn_away(g);
    if (!g->inside->failed && g->plan.stream) stream(c);
    if (m->finish != HY_RUNNING) {
        g->inside->ended++;
        report(c);
    }
    empty(m);
}

static void finish(generation *g)
{
    generation_inside *in = g->inside;
    in->finished = true;
    if (in->failed) {
        g->dialect->fail(g, &in->fault);
        return;
    }
    begin(g);
    for (int i = 0; i < g->choices && !g->plan.stream; i++) tell(&in->choice[i]);
    g->dialect->end(g);
}

void generation_pump(void *user)
{
    generation *g = user;
    generation_inside *in = g->inside;
    pthread_mutex_lock(&in->lock);
    in->posted = false;
    pthread_mutex_unlock(&in->lock);
    if (!in->ready) return; /* the worker still submits: what has come stays until it is done */
    for (int i = 0; i < in->submitted; i++) {
        choice *c = &in->choice[i];
        pthread_mutex_lock(&in->lock);
        mailbox *mail = &c->box[c->filling];
        bool any = mail->any;
        if (any) c->filling ^= 1;
        pthread_mutex_unlock(&in->lock);
        if (any) take_mail(c, mail);
    }
    if (in->ended < in->submitted || in->finished) return;
    /* The planner may have posted again between the two looks: that turn of the loop, the last one, ends the call. */
    pthread_mutex_lock(&in->lock);
    bool again = in->posted;
    pthread_mutex_unlock(&in->lock);
    if (again) return;
    finish(g);
    generation_over(g);
}
