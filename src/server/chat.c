#include "server/chat.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "model/model.h"
#include "server/chat_request.h"
#include "server/chat_response.h"
#include "text/reasoning.h"

enum { MAX_BACKLOG = 4 << 20, MAX_BAD_WORDS = 256 };

/*
 * One request on its way. The engine's thread fills the mailbox under the lock and posts `deliver` unless it is posted
 * already; the HTTP thread owns everything else. A chat ends in `deliver` when the last event has been read, so the
 * engine never calls into a freed one.
 */
struct chat {
    chat_room *room;
    chat *next, *previous;
    http_exchange *x; /* NULL once answered (refused or cut off before the engine was done) */
    hy_request *request;
    chat_request asked;
    chat_head head;
    size_t prompt_count;
    size_t logprob_stride;
    hy_ids bad_words[2 * MAX_BAD_WORDS];
    const int32_t *bad_word_ids[2 * MAX_BAD_WORDS];
    size_t bad_word_lengths[2 * MAX_BAD_WORDS], bad_word_count;
    text_reasoning reasoning;

    pthread_mutex_t lock; /* guards the mailbox */
    struct mailbox {
        bool posted;
        buffer text;     /* characters */
        buffer ids;      /* int32_t */
        buffer logprobs; /* hy_logprob, logprob_stride a token */
        hy_finish finish;
        char *stop_string;
        int32_t stop_id;
        hy_error error;
    } mail;

    /* Since the last chunk (streams) or from the start (whole answers). */
    buffer content, thought, all_ids, all_logprobs;
    bool any_content, any_thought, started;
    size_t completion_tokens;
};

void chat_random_id(char out[33])
{
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)random_seed(), (unsigned long long)random_seed());
}

static void chat_free(chat *c)
{
    chat_room *room = c->room;
    if (c->previous)
        c->previous->next = c->next;
    else if (room->first == c)
        room->first = c->next;
    if (c->next) c->next->previous = c->previous;
    hy_request_close(c->request);
    for (size_t i = 0; i < c->bad_word_count; i++) hy_ids_free(&c->bad_words[i]);
    chat_request_free(&c->asked);
    buffer *all[] = {&c->mail.text, &c->mail.ids, &c->mail.logprobs, &c->content,
                     &c->thought,   &c->all_ids,  &c->all_logprobs};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) buffer_free(all[i]);
    free(c->mail.stop_string);
    pthread_mutex_destroy(&c->lock);
    free(c);
    if (room->stopping && !room->first) http_stop(room->http);
}

static void client_gone(void *user)
{
    chat *c = user;
    if (c->request) hy_request_cancel(c->request);
}

void chat_cancel_all(chat_room *room)
{
    for (chat *c = room->first; c; c = c->next)
        if (c->request) hy_request_cancel(c->request);
}

/* ---- From the engine ------------------------------------------------------------------------------------------ */

static void deliver(void *user);

static bool on_event(void *user, const hy_event *event)
{
    chat *c = user;
    pthread_mutex_lock(&c->lock);
    struct mailbox *m = &c->mail;
    if (event->text_length) buffer_append(&m->text, event->text, event->text_length);
    if (event->id_count) buffer_append(&m->ids, event->ids, event->id_count * sizeof *event->ids);
    if (event->logprobs) {
        buffer_append(&m->logprobs, event->logprobs,
                      event->id_count * event->logprobs_per_token * sizeof *event->logprobs);
    }
    m->finish = event->finish;
    if (event->finish != HY_RUNNING) {
        m->stop_id = event->stop_id;
        if (event->stop_string) m->stop_string = memory_string(event->stop_string, strlen(event->stop_string));
        if (event->error) m->error = *event->error;
    }
    bool post = !m->posted;
    m->posted = true;
    pthread_mutex_unlock(&c->lock);
    if (post) http_post(c->room->http, deliver, c);
    return true;
}

/* ---- To the client -------------------------------------------------------------------------------------------- */

static void take_piece(void *user, text_kind kind, const char *text, size_t length)
{
    chat *c = user;
    if (kind == TEXT_REASONING) {
        c->any_thought = true;
        if (c->asked.include_reasoning) buffer_append(&c->thought, text, length);
    } else {
        c->any_content = true;
        buffer_append(&c->content, text, length);
    }
}

static void send(chat *c, buffer *event)
{
    if (buffer_ok(event)) http_stream_event(c->x, event->data, event->length);
    buffer_free(event);
}

static chat_piece piece_of(const buffer *b)
{
    return b->length ? (chat_piece){b->data, b->length} : (chat_piece){0};
}

static chat_logprobs logprobs_of(const chat *c)
{
    bool show = c->asked.logprobs && c->asked.include_reasoning && c->logprob_stride;
    if (!show) return (chat_logprobs){0};
    return (chat_logprobs){(const hy_logprob *)(const void *)c->all_logprobs.data,
                           c->all_logprobs.length / (c->logprob_stride * sizeof(hy_logprob)), c->logprob_stride};
}

static void stream_chunk(chat *c, const chat_ending *end, bool phase_before)
{
    chat_usage usage = {c->prompt_count, c->completion_tokens};
    const chat_usage *running = c->asked.continuous_usage ? &usage : NULL;
    if (!c->started) {
        c->started = true;
        http_stream_begin(c->x);
        buffer first = {0};
        chat_write_role(&first, &c->head, running);
        send(c, &first);
    }
    bool ids = c->asked.return_token_ids && c->all_ids.length;
    if (!c->content.length && !c->thought.length && !ids && end->finish == HY_RUNNING) return;
    buffer chunk = {0};
    bool both = phase_before && c->room->options->split_reasoning && (c->content.length || c->thought.length);
    chat_write_delta(&chunk, &c->head, piece_of(&c->content), piece_of(&c->thought), both, logprobs_of(c), end,
                     !c->asked.include_usage, running, ids ? (const int32_t *)(const void *)c->all_ids.data : NULL,
                     c->all_ids.length / sizeof(int32_t));
    send(c, &chunk);
    buffer_clear(&c->content), buffer_clear(&c->thought), buffer_clear(&c->all_ids), buffer_clear(&c->all_logprobs);
}

/* The model's own end is no stop that anybody asked for: its stop_reason is null. */
static int32_t asked_stop_id(const chat *c, int32_t id)
{
    const model_generation *g = model_generation_config(c->room->model);
    for (int i = 0; i < g->eos_count; i++)
        if (g->eos[i] == id) return -1;
    return id;
}

static int error_status(hy_status status)
{
    return status == HY_BAD_INPUT || status == HY_USAGE || status == HY_NO_FIT ? 400 : 500;
}

/* What is the server's fault may name its files: the engine has logged it, clients are told where to look. */
static const char *error_text(const hy_error *error)
{
    if (error_status(error->status) != 500 || !strchr(error->message, '/')) return error->message;
    return "the server could not compute this answer; its log says why";
}

static void finish_stream(chat *c, const chat_ending *end, const hy_error *error)
{
    if (end->finish == HY_FINISH_ERROR) {
        http_stream_begin(c->x);
        buffer event = {0};
        http_write_error(&event, error_status(error->status), "InternalServerError", NULL, false, error_text(error));
        send(c, &event);
    } else if (c->asked.include_usage) {
        buffer event = {0};
        chat_write_usage(&event, &c->head, (chat_usage){c->prompt_count, c->completion_tokens});
        send(c, &event);
    }
    http_stream_event(c->x, "[DONE]", 6);
    http_stream_end(c->x);
    c->x = NULL;
}

static void finish_whole(chat *c, const chat_ending *end, const hy_error *error)
{
    if (end->finish == HY_FINISH_ERROR) {
        http_reply_error(c->x, error_status(error->status), "InternalServerError", NULL, false, error_text(error));
        c->x = NULL;
        return;
    }
    buffer body = {0};
    /* Text that the parser left empty is null; without a parser it is the text, if empty too. */
    chat_piece content = piece_of(&c->content);
    if (!content.text && !c->any_thought) content = (chat_piece){"", 0};
    bool ids = c->asked.return_token_ids;
    chat_write_whole(&body, &c->head, content, piece_of(&c->thought), logprobs_of(c), end,
                     (chat_usage){c->prompt_count, c->completion_tokens},
                     ids ? (const int32_t *)(const void *)c->all_ids.data : NULL, c->all_ids.length / sizeof(int32_t));
    http_reply_json(c->x, 200, &body);
    c->x = NULL;
    buffer_free(&body);
}

/* Empties the mailbox into the answer; runs on the HTTP thread. */
static void deliver(void *user)
{
    chat *c = user;
    pthread_mutex_lock(&c->lock);
    struct mailbox mail = c->mail;
    c->mail = (struct mailbox){.stop_id = -1};
    pthread_mutex_unlock(&c->lock);

    bool phase = text_reasoning_active(&c->reasoning);
    if (c->room->options->split_reasoning) {
        if (mail.text.length) text_reasoning_feed(&c->reasoning, mail.text.data, mail.text.length, take_piece, c);
        if (mail.finish != HY_RUNNING) text_reasoning_finish(&c->reasoning, take_piece, c);
    } else if (mail.text.length) {
        take_piece(c, TEXT_CONTENT, mail.text.data, mail.text.length);
    }
    buffer_append(&c->all_ids, mail.ids.data, mail.ids.length);
    buffer_append(&c->all_logprobs, mail.logprobs.data, mail.logprobs.length);
    c->completion_tokens += mail.ids.length / sizeof(int32_t);

    chat_ending end = {mail.finish, mail.stop_string, mail.finish == HY_RUNNING ? -1 : asked_stop_id(c, mail.stop_id)};
    if (c->asked.stream && mail.finish != HY_FINISH_ERROR) {
        stream_chunk(c, &end, phase);
        if (mail.finish == HY_RUNNING && http_stream_backlog(c->x) > MAX_BACKLOG) {
            log_line(HY_LOG_WARNING, "%s: the client does not read its stream, the request is cancelled", c->head.id);
            hy_request_cancel(c->request);
        }
    }
    bool last = mail.finish != HY_RUNNING;
    if (last) (c->asked.stream ? finish_stream : finish_whole)(c, &end, &mail.error);
    buffer_free(&mail.text), buffer_free(&mail.ids), buffer_free(&mail.logprobs);
    free(mail.stop_string);
    if (!last) return;
    log_line(HY_LOG_INFO, "%s: %zu prompt tokens, %zu generated, %s", c->head.id, c->prompt_count, c->completion_tokens,
             chat_finish_name(mail.finish));
    chat_free(c);
}

/* ---- The request ---------------------------------------------------------------------------------------------- */

/* Each word is forbidden at the start of a text and after a space. */
static bool encode_bad_words(chat *c, request_fault *fault)
{
    size_t n = json_array_size(c->asked.bad_words);
    if (n > MAX_BAD_WORDS) {
        return request_refuse(fault, "bad_words", "bad_words has %zu words, at most %d are allowed", n, MAX_BAD_WORDS);
    }
    for (size_t i = 0; i < 2 * n; i++) {
        const char *word = json_string_value(json_array_get(c->asked.bad_words, i / 2));
        if (!word || !*word) return request_refuse(fault, "bad_words", "bad_words must hold non-empty strings");
        buffer text = {0};
        buffer_printf(&text, "%s%s", i % 2 ? " " : "", word);
        hy_error err = {0};
        hy_ids *ids = &c->bad_words[c->bad_word_count];
        hy_status s = hy_tokenize(c->room->model, text.data, text.length, ids, &err);
        buffer_free(&text);
        if (s != HY_OK) return request_refuse(fault, "bad_words", "%s", err.message);
        c->bad_word_ids[c->bad_word_count] = ids->data;
        c->bad_word_lengths[c->bad_word_count++] = ids->count;
    }
    c->asked.sampling.bad_words = c->bad_word_ids;
    c->asked.sampling.bad_word_lengths = c->bad_word_lengths;
    c->asked.sampling.bad_word_count = c->bad_word_count;
    return true;
}

static bool check_model(chat *c, request_fault *fault)
{
    const chat_room *room = c->room;
    c->head.model = room->names[0];
    if (!c->asked.model) return true;
    for (size_t i = 0; i < room->name_count; i++)
        if (strcmp(room->names[i], c->asked.model) == 0) return true;
    *fault = (request_fault){.status = 404, .type = "NotFoundError", .param = "model"};
    snprintf(fault->message, sizeof fault->message, "The model `%.200s` does not exist.", c->asked.model);
    return false;
}

static bool check_length(chat *c, request_fault *fault)
{
    long long limit = model_max_len(c->room->model), prompt = (long long)c->prompt_count, want = c->asked.max_tokens;
    if (prompt + (want ? want : 1) <= limit) return true;
    return request_refuse(
        fault, "input_tokens",
        "This model's maximum context length is %lld tokens. However, you requested %lld output tokens "
        "and your prompt contains %lld input tokens, for a total of %lld tokens. Please reduce the length "
        "of the input prompt or the number of requested output tokens.",
        limit, want ? want : 1, prompt, prompt + (want ? want : 1));
}

static bool render(chat *c, hy_ids *ids, request_fault *fault)
{
    char *messages = json_dumps(c->asked.messages, JSON_COMPACT), *tools = NULL, *kwargs = NULL;
    if (c->asked.tools) tools = json_dumps(c->asked.tools, JSON_COMPACT);
    kwargs = json_dumps(c->asked.template_kwargs, JSON_COMPACT);
    hy_error err = {0};
    hy_status s = HY_NO_FIT;
    if (messages && kwargs && (tools || !c->asked.tools)) {
        s = hy_render_chat(c->room->model, messages, tools, kwargs, ids, &err);
    }
    free(messages), free(tools), free(kwargs);
    if (s == HY_OK) return true;
    request_refuse(fault, NULL, "%s", err.message);
    if (s != HY_BAD_INPUT) fault->status = s == HY_NO_FIT ? 500 : 400;
    return false;
}

static bool submit(chat *c, request_fault *fault)
{
    hy_ids ids = {0};
    if (!check_model(c, fault) || !encode_bad_words(c, fault) || !render(c, &ids, fault)) return false;
    c->prompt_count = ids.count;
    hy_request_options options = hy_request_defaults(c->room->model);
    options.prompt_ids = ids.data, options.prompt_count = ids.count;
    options.sampling = c->asked.sampling;
    options.keep_special = c->asked.keep_special;
    options.on_event = on_event, options.user = c;
    int32_t last = ids.count ? ids.data[ids.count - 1] : -1;
    text_reasoning_begin(&c->reasoning, text_reasoning_start_of(model_tokenizer(c->room->model), last));
    bool ok = check_length(c, fault);
    hy_error err = {0};
    hy_status s = ok ? hy_engine_submit(c->room->engine, &options, &c->request, &err) : HY_BAD_INPUT;
    hy_ids_free(&ids);
    if (ok && s != HY_OK) {
        request_refuse(fault, NULL, "%s", err.message);
        if (s == HY_FAILED) fault->status = 503, fault->type = "ServiceUnavailableError";
    }
    return s == HY_OK;
}

static void refuse(http_exchange *x, const request_fault *f)
{
    http_reply_error(x, f->status, f->type, f->param[0] ? f->param : NULL, f->suffix, f->message);
}

static bool json_content(http_exchange *x)
{
    const char *type = http_header(x, "Content-Type");
    return type && strncasecmp(type, "application/json", 16) == 0;
}

static void name_answer(chat *c, http_exchange *x)
{
    const char *given = http_header(x, "X-Request-Id");
    char random[33];
    chat_random_id(random);
    snprintf(c->head.id, sizeof c->head.id, "chatcmpl-%.50s", given && *given ? given : random);
    c->head.created = (int64_t)time(NULL);
    c->head.fingerprint = c->room->fingerprint;
    c->head.tok = model_tokenizer(c->room->model);
}

void chat_handle(void *user, http_exchange *x)
{
    chat_room *room = user;
    request_fault fault = {.status = 400,
                           .type = "Bad Request",
                           .param = "body",
                           .message = "1 validation error:\n  {'type': 'model_attributes_type', 'loc': ('body',), "
                                      "'msg': 'The body must be JSON with Content-Type application/json'}"};
    if (room->stopping) {
        http_reply_error(x, 503, "ServiceUnavailableError", NULL, false, "The server is shutting down");
        return;
    }
    chat *c = json_content(x) ? calloc(1, sizeof *c) : NULL;
    if (!c) {
        refuse(x, &fault);
        return;
    }
    c->room = room, c->x = x, c->mail.stop_id = -1;
    pthread_mutex_init(&c->lock, NULL);
    name_answer(c, x);
    hy_sampling defaults = hy_sampling_defaults(room->model);
    hy_model_info info;
    hy_model_describe(room->model, &info);
    size_t length;
    const char *body = http_body(x, &length);
    bool ok =
        chat_request_parse(body, length, &defaults, room->options->template_kwargs, info.vocab, &c->asked, &fault);
    if (ok) c->logprob_stride = c->asked.logprobs ? (size_t)c->asked.top_logprobs + 1 : 0;
    /* The engine may call back before submit returns; the exchange is complete by then. */
    c->next = room->first;
    if (room->first) room->first->previous = c;
    room->first = c;
    http_on_gone(x, client_gone, c);
    if (ok) ok = submit(c, &fault);
    if (!ok) {
        log_line(HY_LOG_INFO, "%s: refused with %d: %s", c->head.id, fault.status, fault.message);
        http_on_gone(x, NULL, NULL);
        refuse(x, &fault);
        chat_free(c);
    }
}
