#include "server/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Pieces ----------------------------------------------------------------------------------------------------- */

static void write_logprobs(json_writer *w, const generation *g, const generation_step *step)
{
    const chat *c = g->state;
    bool show = step->logprobs && c->logprobs && c->include_reasoning;
    openai_write_logprobs(w, g, show ? step : NULL, c->asked.tokens_as_ids);
}

/* The text of all parts of one kind; false: there is none. */
static bool gather(const generation_step *step, text_part_kind kind, buffer *out)
{
    bool any = false;
    for (size_t i = 0; i < step->part_count; i++) {
        if (step->part[i].kind != kind) continue;
        buffer_append(out, step->part[i].text, step->part[i].length);
        any = true;
    }
    return any;
}

static void write_piece(json_writer *w, const char *key, bool any, const buffer *text)
{
    writer_key(w, key);
    if (any)
        writer_string(w, text->data ? text->data : "", text->length);
    else
        writer_null(w);
}

/* Under the name that clients look for: "reasoning", the older "reasoning_content", or both. */
static void write_reasoning(json_writer *w, const generation *g, bool any, const buffer *text)
{
    const char *field = g->room->options->reasoning_field;
    bool older = field && strcmp(field, "reasoning_content") == 0, both = field && strcmp(field, "both") == 0;
    if (!older) write_piece(w, "reasoning", any, text);
    if (older || both) write_piece(w, "reasoning_content", any, text);
}

static void write_call_id(json_writer *w)
{
    char random[33], id[64];
    generation_random_id(random);
    snprintf(id, sizeof id, "chatcmpl-tool-%s", random);
    writer_key(w, "id"), writer_text(w, id);
}

/* Calls of a step: those that begin with id and name, further arguments by index alone. Whole answers have no index. */
static void write_calls(json_writer *w, const generation_step *step, bool index)
{
    writer_key(w, "tool_calls");
    writer_array(w);
    for (size_t i = 0; i < step->part_count;) {
        const generation_part *p = &step->part[i];
        if (p->call < 0 || p->kind == TEXT_PART_CALL_END) {
            i++;
            continue;
        }
        writer_object(w);
        if (p->kind == TEXT_PART_CALL) write_call_id(w), writer_key(w, "type"), writer_text(w, "function");
        if (index) writer_key(w, "index"), writer_integer(w, p->call);
        writer_key(w, "function");
        writer_object(w);
        if (p->kind == TEXT_PART_CALL) writer_key(w, "name"), writer_string(w, p->text, p->length), i++;
        writer_key(w, "arguments");
        buffer arguments = {0};
        for (; i < step->part_count && step->part[i].kind == TEXT_PART_ARGUMENTS && step->part[i].call == p->call; i++)
            buffer_append(&arguments, step->part[i].text, step->part[i].length);
        writer_string(w, arguments.data ? arguments.data : "", arguments.length);
        buffer_free(&arguments);
        writer_end(w);
        writer_end(w);
    }
    writer_end(w);
}

static bool has_calls(const generation_step *step)
{
    for (size_t i = 0; i < step->part_count; i++)
        if (step->part[i].kind == TEXT_PART_CALL || step->part[i].kind == TEXT_PART_ARGUMENTS) return true;
    return false;
}

static void write_prompt(json_writer *w, const generation *g)
{
    const chat *c = g->state;
    size_t count = 0;
    const int32_t *ids = generation_prompt_ids(g, 0, &count);
    char *text = NULL;
    openai_write_ids(w, "prompt_token_ids", c->asked.return_token_ids ? ids : NULL, count);
    if (c->prompt_text && ids) hy_detokenize(g->room->model, ids, count, false, &text, NULL);
    writer_key(w, "prompt_text"), writer_text(w, text);
    free(text);
}

/* ---- Whole answers ---------------------------------------------------------------------------------------------- */

static bool blank(const buffer *text)
{
    for (size_t i = 0; i < text->length; i++)
        if (!strchr(" \t\r\n", text->data[i])) return false;
    return true;
}

static void write_message(json_writer *w, const generation *g, const generation_step *step)
{
    const chat *c = g->state;
    buffer content = {0}, reasoning = {0};
    bool calls = has_calls(step), forced = g->plan.tools.mode > REQUEST_TOOLS_AUTO;
    if (c->echoed) buffer_string(&content, c->echoed);
    bool text = gather(step, TEXT_PART_CONTENT, &content) || c->echoed;
    bool thought = gather(step, TEXT_PART_REASONING, &reasoning);
    /* White space beside calls says nothing. Without anything at all the answer is empty text, not none. */
    if (calls && !c->echoed && blank(&content)) text = forced, buffer_clear(&content);
    if (!calls && !thought) text = true;
    writer_key(w, "message");
    writer_object(w);
    writer_key(w, "role"), writer_text(w, c->role);
    write_piece(w, "content", text, &content);
    static const char *const empty[] = {"refusal", "annotations", "audio", "function_call"};
    for (size_t i = 0; i < 4; i++) writer_key(w, empty[i]), writer_null(w);
    if (calls) write_calls(w, step, false);
    write_reasoning(w, g, thought && c->include_reasoning, &reasoning);
    writer_end(w);
    buffer_free(&content), buffer_free(&reasoning);
}

static void write_choice(json_writer *w, const generation *g, const generation_step *step)
{
    const chat *c = g->state;
    bool ids = c->asked.return_token_ids && c->include_reasoning;
    writer_object(w);
    writer_key(w, "index"), writer_integer(w, step->choice);
    write_message(w, g, step);
    write_logprobs(w, g, step);
    writer_key(w, "finish_reason"), writer_text(w, step->finish_name);
    openai_write_stop_reason(w, step);
    openai_write_ids(w, "token_ids", ids ? step->ids : NULL, step->id_count);
    openai_write_routes(w, g, step);
    writer_end(w);
}

static void end_whole(generation *g)
{
    chat *c = g->state;
    json_writer *w = &c->w;
    writer_end(w);
    writer_key(w, "service_tier"), writer_null(w);
    openai_write_fingerprint(w, g);
    openai_write_usage(w, g, -1, true);
    openai_write_prompt_logprobs(w, g, 0);
    write_prompt(w, g);
    openai_write_transfer(w, g);
    writer_key(w, "ec_transfer_params"), writer_null(w);
    openai_write_metrics(w, g);
    writer_end(w);
    openai_load_header(g);
    if (g->x) http_reply_json(g->x, 200, &c->out);
    g->x = NULL;
}

/* ---- Streams ---------------------------------------------------------------------------------------------------- */

static const char chunk_object[] = "chat.completion.chunk";

static void write_usage_so_far(json_writer *w, const generation *g, int choice)
{
    const chat *c = g->state;
    if (c->asked.continuous_usage) openai_write_usage(w, g, choice, false);
}

/* A new chunk, up to its list of choices. */
static json_writer open_chunk(generation *g)
{
    chat *c = g->state;
    if (!c->head.length) {
        c->head_writer = (json_writer){.out = &c->head};
        openai_write_head(&c->head_writer, g, chunk_object);
    }
    json_writer w;
    buffer_clear(&c->event);
    writer_resume(&w, &c->head_writer, &c->event);
    c->event.failed |= c->head.failed;
    return w;
}

static void send_event(generation *g)
{
    enum { KEPT = 16 << 10 };
    chat *c = g->state;
    if (g->x && buffer_ok(&c->event)) http_stream_event(g->x, c->event.data, c->event.length);
    if (c->event.capacity > KEPT) buffer_free(&c->event);
}

/* The first chunk of a choice: its role; with echo another one with the text that it goes on from. */
static void send_opening(generation *g, int choice, const char *content, bool role)
{
    chat *c = g->state;
    json_writer w = open_chunk(g);
    writer_object(&w);
    writer_key(&w, "index"), writer_integer(&w, choice);
    writer_key(&w, "delta");
    writer_object(&w);
    if (role) writer_key(&w, "role"), writer_text(&w, c->role);
    writer_key(&w, "content"), writer_text(&w, content);
    writer_end(&w);
    writer_key(&w, "logprobs"), writer_null(&w);
    writer_key(&w, "finish_reason"), writer_null(&w);
    writer_end(&w);
    writer_end(&w);
    if (role) write_prompt(&w, g);
    write_usage_so_far(&w, g, choice);
    writer_end(&w);
    send_event(g);
}

/* Each choice's may hold the whole prompt: many choices with a long one are more than anybody can be meant to read. */
static void send_openings(generation *g, const char *content, bool role)
{
    for (int i = 0; i < g->choices; i++) {
        if (generation_unread(g)) {
            generation_cancel(g);
            return;
        }
        send_opening(g, i, content, role);
    }
}

static void write_delta(json_writer *w, const generation *g, const generation_step *step)
{
    chat *c = g->state;
    buffer_clear(&c->content), buffer_clear(&c->reasoning);
    bool text = gather(step, TEXT_PART_CONTENT, &c->content);
    bool thought = gather(step, TEXT_PART_REASONING, &c->reasoning) && c->include_reasoning;
    /* While reasoning may come both fields are named, later only what is there. */
    bool both = step->thinking && (text || thought) && c->include_reasoning && g->room->options->split_reasoning;
    writer_key(w, "delta");
    writer_object(w);
    if (both || text) write_piece(w, "content", text, &c->content);
    if (both || thought) write_reasoning(w, g, thought, &c->reasoning);
    if (has_calls(step)) write_calls(w, step, true);
    writer_end(w);
}

/* Reasoning that nobody wants to see makes no chunks. */
static bool silent(const chat *c, const generation_step *step)
{
    if (step->finish != HY_RUNNING || c->asked.return_token_ids || c->include_reasoning) return false;
    for (size_t i = 0; i < step->part_count; i++)
        if (step->part[i].kind != TEXT_PART_REASONING) return false;
    return true;
}

static void send_chunk(generation *g, const generation_step *step)
{
    chat *c = g->state;
    if (silent(c, step)) return;
    json_writer w = open_chunk(g);
    bool ids = c->asked.return_token_ids && c->include_reasoning && step->id_count;
    writer_object(&w);
    writer_key(&w, "index"), writer_integer(&w, step->choice);
    write_delta(&w, g, step);
    write_logprobs(&w, g, step);
    writer_key(&w, "finish_reason"), writer_text(&w, step->finish_name);
    if (step->finish != HY_RUNNING) openai_write_stop_reason(&w, step);
    openai_write_ids(&w, "token_ids", ids ? step->ids : NULL, step->id_count);
    writer_end(&w);
    writer_end(&w);
    if (step->finish != HY_RUNNING && !c->asked.include_usage) openai_write_fingerprint(&w, g);
    write_usage_so_far(&w, g, step->choice);
    writer_end(&w);
    send_event(g);
}

/* ---- The dialect ------------------------------------------------------------------------------------------------ */

static void begin(generation *g)
{
    chat *c = g->state;
    if (!g->plan.stream) {
        c->w = (json_writer){.out = &c->out};
        openai_write_head(&c->w, g, "chat.completion");
        return;
    }
    if (g->x) http_stream_begin(g->x);
    send_openings(g, "", true);
    if (c->echoed) send_openings(g, c->echoed, false);
}

static void step(generation *g, const generation_step *s)
{
    chat *c = g->state;
    if (g->plan.stream)
        send_chunk(g, s);
    else
        write_choice(&c->w, g, s);
}

static void end(generation *g)
{
    const chat *c = g->state;
    if (g->plan.stream)
        openai_end_stream(g, chunk_object, c->asked.include_usage);
    else
        end_whole(g);
}

static void release(generation *g)
{
    chat *c = g->state;
    free(c->echoed);
    buffer *all[] = {&c->out, &c->event, &c->head, &c->content, &c->reasoning};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) buffer_free(all[i]);
}

const generation_dialect chat_dialect = {.prefix = "chatcmpl-",
                                         .state_size = sizeof(chat),
                                         .read = chat_read,
                                         .begin = begin,
                                         .step = step,
                                         .end = end,
                                         .fail = generation_fail,
                                         .release = release};

void chat_handle(void *user, http_exchange *x)
{
    generation_start(user, &chat_dialect, x);
}
