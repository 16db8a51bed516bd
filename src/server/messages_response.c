#include "server/messages_response.h"

#include <stdio.h>

#include "base/json.h"
#include "server/openai.h"

static const char *stop_reason(const messages_ending *e)
{
    if (e->finish == HY_FINISH_LENGTH) return "max_tokens";
    if (e->stop_string) return "stop_sequence";
    return e->calls ? "tool_use" : "end_turn";
}

static void write_ending(json_writer *w, const messages_ending *e)
{
    const char *reason = stop_reason(e);
    writer_key(w, "stop_reason"), writer_text(w, reason);
    if (e->finish != HY_FINISH_LENGTH && e->stop_string) writer_key(w, "stop_sequence"), writer_text(w, e->stop_string);
}

static void write_usage(json_writer *w, messages_usage u, bool last)
{
    writer_key(w, "usage");
    writer_object(w);
    writer_key(w, "input_tokens"), writer_unsigned(w, u.prompt - u.cached);
    writer_key(w, "output_tokens"), writer_unsigned(w, u.output);
    writer_key(w, "cache_read_input_tokens"), writer_unsigned(w, u.cached);
    if (last) {
        writer_key(w, "output_tokens_details");
        writer_object(w);
        writer_key(w, "thinking_tokens"), writer_unsigned(w, u.thinking);
        writer_end(w);
        openai_write_drafts(w, u.draft_rounds, u.drafts, u.drafts_accepted);
    }
    writer_end(w);
}

static void write_buffer(json_writer *w, const char *key, const buffer *b)
{
    writer_key(w, key), writer_string(w, b->length ? b->data : "", b->length);
}

/* The beginning of a block; in a stream it is still empty. */
static void write_block(json_writer *w, const answer_block *block, bool whole, bool hide)
{
    static const buffer nothing = {0};
    const buffer *text = whole && !(hide && block->kind == BLOCK_REASONING) ? &block->text : &nothing;
    char id[48];
    size_t length;
    writer_object(w);
    switch (block->kind) {
    case BLOCK_REASONING:
        writer_key(w, "type"), writer_text(w, "thinking");
        write_buffer(w, "thinking", text);
        writer_key(w, "signature"), writer_text(w, whole ? block->id : "");
        break;
    case BLOCK_TEXT:
        writer_key(w, "type"), writer_text(w, "text");
        write_buffer(w, "text", text);
        break;
    case BLOCK_CALL:
        snprintf(id, sizeof id, "toolu_%s", block->id);
        writer_key(w, "type"), writer_text(w, "tool_use");
        writer_key(w, "id"), writer_text(w, id);
        writer_key(w, "name"), writer_text(w, block->name);
        writer_key(w, "input");
        const char *arguments = answer_block_arguments(block, &length);
        writer_raw(w, whole ? arguments : "{}", whole ? length : 2);
        break;
    }
    writer_end(w);
}

static void begin_message(json_writer *w, const char *id, const char *model)
{
    writer_object(w);
    writer_key(w, "id"), writer_text(w, id);
    writer_key(w, "type"), writer_text(w, "message");
    writer_key(w, "role"), writer_text(w, "assistant");
    writer_key(w, "model"), writer_text(w, model);
    writer_key(w, "content");
    writer_array(w);
}

void messages_write_whole(buffer *out, const char *id, const char *model, const answer_blocks *blocks, bool hide,
                          const messages_ending *ending, messages_usage usage)
{
    json_writer w = {.out = out};
    begin_message(&w, id, model);
    for (size_t i = 0; i < blocks->count; i++) write_block(&w, &blocks->list[i], true, hide);
    writer_end(&w);
    write_ending(&w, ending);
    write_usage(&w, usage, true);
    writer_end(&w);
}

/* ---- Events ----------------------------------------------------------------------------------------------------- */

/* Every event is an object that begins with its own name. */
static json_writer begin_event(buffer *out, const char *name)
{
    json_writer w = {.out = out};
    writer_object(&w);
    writer_key(&w, "type"), writer_text(&w, name);
    return w;
}

static void emit(const messages_events *to, const char *name, json_writer *w)
{
    writer_end(w);
    to->emit(to->user, name, w->out);
    buffer_free(w->out);
}

void messages_emit_start(const messages_events *to, const char *id, const char *model, messages_usage usage)
{
    buffer out = {0};
    json_writer w = begin_event(&out, "message_start");
    writer_key(&w, "message");
    begin_message(&w, id, model);
    writer_end(&w);
    write_usage(&w, usage, false);
    writer_end(&w);
    emit(to, "message_start", &w);
}

static void emit_begin(const messages_events *to, const answer_block *block, size_t index)
{
    buffer out = {0};
    json_writer w = begin_event(&out, "content_block_start");
    writer_key(&w, "index"), writer_unsigned(&w, index);
    writer_key(&w, "content_block");
    write_block(&w, block, false, false);
    emit(to, "content_block_start", &w);
}

static void emit_delta(const messages_events *to, size_t index, const char *type, const char *key, const char *text,
                       size_t length)
{
    buffer out = {0};
    json_writer w = begin_event(&out, "content_block_delta");
    writer_key(&w, "index"), writer_unsigned(&w, index);
    writer_key(&w, "delta");
    writer_object(&w);
    writer_key(&w, "type"), writer_text(&w, type);
    writer_key(&w, key), writer_string(&w, text, length);
    writer_end(&w);
    emit(to, "content_block_delta", &w);
}

static void emit_stop(const messages_events *to, size_t index)
{
    buffer out = {0};
    json_writer w = begin_event(&out, "content_block_stop");
    writer_key(&w, "index"), writer_unsigned(&w, index);
    emit(to, "content_block_stop", &w);
}

void messages_emit_block(void *user, block_change change, const answer_block *block, size_t index, const char *text,
                         size_t length)
{
    const messages_events *to = user;
    static const char *const types[] = {"thinking_delta", "text_delta", "input_json_delta"};
    static const char *const keys[] = {"thinking", "text", "partial_json"};
    switch (change) {
    case BLOCK_BEGINS: emit_begin(to, block, index); return;
    case BLOCK_GROWS:
        if (to->hide && block->kind == BLOCK_REASONING) return;
        emit_delta(to, index, types[block->kind], keys[block->kind], text, length);
        return;
    case BLOCK_ENDS:
        if (block->kind == BLOCK_REASONING) emit_delta(to, index, "signature_delta", "signature", block->id, 32);
        if (block->kind == BLOCK_CALL && !block->text.length) emit_delta(to, index, types[2], keys[2], "{}", 2);
        emit_stop(to, index);
        return;
    }
}

void messages_emit_end(const messages_events *to, const messages_ending *ending, messages_usage usage)
{
    buffer out = {0};
    json_writer w = begin_event(&out, "message_delta");
    writer_key(&w, "delta");
    writer_object(&w);
    write_ending(&w, ending);
    writer_end(&w);
    write_usage(&w, usage, true);
    emit(to, "message_delta", &w);
    w = begin_event(&out, "message_stop");
    emit(to, "message_stop", &w);
}

/* ---- Errors and counts ------------------------------------------------------------------------------------------ */

static const char *error_type(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    case 504: return "timeout_error";
    default: return status < 500 || status == 501 ? "invalid_request_error" : "api_error";
    }
}

void messages_write_error(buffer *out, int status, const char *message)
{
    json_writer w = begin_event(out, "error");
    writer_key(&w, "error");
    writer_object(&w);
    writer_key(&w, "type"), writer_text(&w, error_type(status));
    writer_key(&w, "message"), writer_text(&w, message);
    writer_end(&w);
    writer_end(&w);
}

void messages_write_count(buffer *out, size_t tokens)
{
    json_writer w = {.out = out};
    writer_object(&w);
    writer_key(&w, "input_tokens"), writer_unsigned(&w, tokens);
    writer_key(&w, "context_management");
    writer_object(&w);
    writer_key(&w, "original_input_tokens"), writer_unsigned(&w, tokens);
    writer_end(&w);
    writer_end(&w);
}
