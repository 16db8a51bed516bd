#include "server/responses_response.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "server/openai.h"

enum { ID = 48 };

/* ---- Items ------------------------------------------------------------------------------------------------------ */

static const char *item_id(const answer_block *block, char out[ID])
{
    static const char *const prefix[] = {"rs_", "msg_", "fc_"};
    snprintf(out, ID, "%s%s", prefix[block->kind], block->id);
    return out;
}

static void write_buffer(json_writer *w, const char *key, const buffer *b, bool empty)
{
    writer_key(w, key), writer_string(w, empty || !b->length ? "" : b->data, empty ? 0 : b->length);
}

static void write_logprobs(json_writer *w, const buffer *objects)
{
    writer_key(w, "logprobs");
    writer_array(w);
    if (objects && objects->length) writer_raw(w, objects->data, objects->length);
    writer_end(w);
}

/* The one part of reasoning or text. */
static void write_part(json_writer *w, const answer_block *block, bool empty)
{
    writer_object(w);
    writer_key(w, "type"), writer_text(w, block->kind == BLOCK_TEXT ? "output_text" : "reasoning_text");
    write_buffer(w, "text", &block->text, empty);
    if (block->kind == BLOCK_TEXT) {
        writer_key(w, "annotations"), writer_raw(w, "[]", 2);
        write_logprobs(w, empty ? NULL : &block->extra);
    }
    writer_end(w);
}

static void write_parts(json_writer *w, const answer_block *block, bool begun)
{
    writer_key(w, "content");
    writer_array(w);
    if (!begun) write_part(w, block, false);
    writer_end(w);
}

/* `begun`: the item as it is announced, with nothing in it. */
static void write_item(json_writer *w, const answer_block *block, bool begun)
{
    static const char *const types[] = {"reasoning", "message", "function_call"};
    char id[ID], call[ID];
    size_t length;
    writer_object(w);
    writer_key(w, "id"), writer_text(w, item_id(block, id));
    writer_key(w, "type"), writer_text(w, types[block->kind]);
    writer_key(w, "status"), writer_text(w, begun ? "in_progress" : block->complete ? "completed" : "incomplete");
    switch (block->kind) {
    case BLOCK_REASONING:
        writer_key(w, "summary"), writer_raw(w, "[]", 2);
        write_parts(w, block, begun);
        writer_key(w, "encrypted_content"), writer_null(w);
        break;
    case BLOCK_TEXT:
        writer_key(w, "role"), writer_text(w, "assistant");
        write_parts(w, block, begun);
        break;
    case BLOCK_CALL:
        snprintf(call, sizeof call, "call_%s", block->id);
        writer_key(w, "call_id"), writer_text(w, call);
        writer_key(w, "name"), writer_text(w, block->name);
        const char *arguments = answer_block_arguments(block, &length);
        writer_key(w, "arguments"), writer_string(w, begun ? "" : arguments, begun ? 0 : length);
        break;
    }
    writer_end(w);
}

/* ---- Responses -------------------------------------------------------------------------------------------------- */

static void write_usage(json_writer *w, const responses_state *s)
{
    writer_key(w, "usage");
    if (!s->has_usage) {
        writer_null(w);
        return;
    }
    writer_object(w);
    writer_key(w, "input_tokens"), writer_unsigned(w, s->prompt);
    writer_key(w, "input_tokens_details");
    writer_object(w);
    writer_key(w, "cached_tokens"), writer_unsigned(w, s->cached);
    writer_end(w);
    writer_key(w, "output_tokens"), writer_unsigned(w, s->output);
    writer_key(w, "output_tokens_details");
    writer_object(w);
    writer_key(w, "reasoning_tokens"), writer_unsigned(w, s->reasoning);
    writer_end(w);
    writer_key(w, "total_tokens"), writer_unsigned(w, s->prompt + s->output);
    openai_write_drafts(w, s->draft_rounds, s->drafts, s->drafts_accepted);
    writer_end(w);
}

static void write_error(json_writer *w, const responses_state *s)
{
    writer_key(w, "error");
    if (s->error) {
        writer_object(w);
        writer_key(w, "code"), writer_text(w, "server_error");
        writer_key(w, "message"), writer_text(w, s->error);
        writer_end(w);
    } else {
        writer_null(w);
    }
    writer_key(w, "incomplete_details");
    if (strcmp(s->status, "incomplete") == 0)
        writer_raw(w, "{\"reason\":\"max_output_tokens\"}", 30);
    else
        writer_null(w);
}

static void write_echo(json_writer *w, const json_t *echo)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)echo, key, value)
    {
        char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        writer_key(w, key);
        if (text)
            writer_raw(w, text, strlen(text));
        else
            writer_null(w);
        free(text);
    }
}

static void write_response(json_writer *w, const responses_head *head, const responses_state *state,
                           const answer_blocks *blocks)
{
    writer_object(w);
    writer_key(w, "id"), writer_text(w, head->id);
    writer_key(w, "object"), writer_text(w, "response");
    writer_key(w, "created_at"), writer_integer(w, head->created);
    writer_key(w, "status"), writer_text(w, state->status);
    write_error(w, state);
    writer_key(w, "model"), writer_text(w, head->model);
    writer_key(w, "output");
    writer_array(w);
    for (size_t i = 0; blocks && i < blocks->count; i++) write_item(w, &blocks->list[i], false);
    writer_end(w);
    writer_key(w, "temperature"), writer_number(w, head->temperature);
    writer_key(w, "top_p"), writer_number(w, head->top_p);
    write_echo(w, head->echo);
    write_usage(w, state);
    writer_end(w);
}

void responses_write(buffer *out, const responses_head *head, const responses_state *state, const answer_blocks *blocks)
{
    json_writer w = {.out = out};
    write_response(&w, head, state, blocks);
}

/* ---- Events ----------------------------------------------------------------------------------------------------- */

static json_writer begin_event(responses_events *to, buffer *out, const char *name)
{
    json_writer w = {.out = out};
    writer_object(&w);
    writer_key(&w, "type"), writer_text(&w, name);
    writer_key(&w, "sequence_number"), writer_integer(&w, to->sequence++);
    return w;
}

static void emit(responses_events *to, const char *name, json_writer *w)
{
    writer_end(w);
    to->emit(to->user, name, w->out);
    buffer_free(w->out);
}

void responses_emit_response(responses_events *to, const char *name, const responses_head *head,
                             const responses_state *state)
{
    buffer out = {0};
    json_writer w = begin_event(to, &out, name);
    writer_key(&w, "response");
    write_response(&w, head, state, to->blocks);
    emit(to, name, &w);
}

static void emit_item(responses_events *to, const char *name, const answer_block *block, size_t index, bool begun)
{
    buffer out = {0};
    json_writer w = begin_event(to, &out, name);
    writer_key(&w, "output_index"), writer_unsigned(&w, index);
    writer_key(&w, "item");
    write_item(&w, block, begun);
    emit(to, name, &w);
}

/* What events inside an item begin with. */
static json_writer begin_inside(responses_events *to, buffer *out, const char *name, const answer_block *block,
                                size_t index)
{
    char id[ID];
    json_writer w = begin_event(to, out, name);
    writer_key(&w, "item_id"), writer_text(&w, item_id(block, id));
    writer_key(&w, "output_index"), writer_unsigned(&w, index);
    if (block->kind != BLOCK_CALL) writer_key(&w, "content_index"), writer_integer(&w, 0);
    return w;
}

static void emit_part(responses_events *to, bool done, const answer_block *block, size_t index)
{
    static const char *const names[2][2] = {{"response.reasoning_part.added", "response.reasoning_part.done"},
                                            {"response.content_part.added", "response.content_part.done"}};
    const char *name = names[block->kind == BLOCK_TEXT][done];
    buffer out = {0};
    json_writer w = begin_inside(to, &out, name, block, index);
    writer_key(&w, "part");
    write_part(&w, block, !done);
    emit(to, name, &w);
}

static void emit_delta(responses_events *to, const answer_block *block, size_t index, const char *text, size_t length,
                       const buffer *logprobs)
{
    static const char *const names[] = {"response.reasoning_text.delta", "response.output_text.delta",
                                        "response.function_call_arguments.delta"};
    buffer out = {0};
    json_writer w = begin_inside(to, &out, names[block->kind], block, index);
    writer_key(&w, "delta"), writer_string(&w, text, length);
    if (block->kind == BLOCK_TEXT) write_logprobs(&w, logprobs);
    emit(to, names[block->kind], &w);
}

static void emit_done(responses_events *to, const answer_block *block, size_t index)
{
    static const char *const names[] = {"response.reasoning_text.done", "response.output_text.done",
                                        "response.function_call_arguments.done"};
    buffer out = {0};
    size_t length;
    json_writer w = begin_inside(to, &out, names[block->kind], block, index);
    if (block->kind == BLOCK_CALL) {
        const char *arguments = answer_block_arguments(block, &length);
        writer_key(&w, "name"), writer_text(&w, block->name);
        writer_key(&w, "arguments"), writer_string(&w, arguments, length);
    } else {
        write_buffer(&w, "text", &block->text, false);
        if (block->kind == BLOCK_TEXT) write_logprobs(&w, &block->extra);
    }
    emit(to, names[block->kind], &w);
    if (block->kind != BLOCK_CALL) emit_part(to, true, block, index);
    emit_item(to, "response.output_item.done", block, index, false);
}

/* Log-probabilities that wait go to the text. */
static void take_logprobs(responses_events *to, size_t index)
{
    buffer *extra = &to->blocks->list[index].extra;
    if (!to->logprobs.length) return;
    if (extra->length) buffer_char(extra, ',');
    buffer_append(extra, to->logprobs.data, to->logprobs.length);
}

void responses_emit_block(void *user, block_change change, const answer_block *block, size_t index, const char *text,
                          size_t length)
{
    responses_events *to = user;
    if (block->kind == BLOCK_TEXT && change != BLOCK_BEGINS) take_logprobs(to, index);
    if (to->emit) {
        switch (change) {
        case BLOCK_BEGINS:
            emit_item(to, "response.output_item.added", block, index, true);
            if (block->kind != BLOCK_CALL) emit_part(to, false, block, index);
            break;
        case BLOCK_GROWS: emit_delta(to, block, index, text, length, &to->logprobs); break;
        case BLOCK_ENDS:
            if (block->kind == BLOCK_CALL && !block->text.length) emit_delta(to, block, index, "{}", 2, NULL);
            emit_done(to, block, index);
            break;
        }
    }
    if (block->kind == BLOCK_TEXT && change != BLOCK_BEGINS) buffer_clear(&to->logprobs);
}

static void write_token(json_writer *w, const text_tokenizer *tok, hy_logprob p)
{
    size_t length;
    const char *bytes = text_tokenizer_bytes(tok, p.token, &length);
    writer_key(w, "token"), writer_string(w, bytes, length);
    writer_key(w, "logprob"),
        writer_number(w, isfinite(p.logprob) && p.logprob > -9999.0f ? (double)p.logprob : -9999.0);
    writer_key(w, "bytes");
    writer_array(w);
    for (size_t i = 0; i < length; i++) writer_integer(w, (unsigned char)bytes[i]);
    writer_end(w);
}

void responses_write_logprob(buffer *out, const text_tokenizer *tok, const hy_logprob *p, size_t stride)
{
    if (out->length) buffer_char(out, ',');
    json_writer w = {.out = out};
    writer_object(&w);
    write_token(&w, tok, p[0]);
    writer_key(&w, "top_logprobs");
    writer_array(&w);
    for (size_t i = 1; i < stride; i++) {
        if (p[i].token < 0) continue;
        writer_object(&w);
        write_token(&w, tok, p[i]);
        writer_end(&w);
    }
    writer_end(&w);
    writer_end(&w);
}

/* ---- Going on from it ------------------------------------------------------------------------------------------- */

json_t *responses_turn(const answer_blocks *blocks)
{
    buffer text[2] = {{0}, {0}};
    json_t *turn = json_pack("{s:s}", "role", "assistant"), *calls = json_array();
    for (size_t i = 0; i < blocks->count; i++) {
        const answer_block *b = &blocks->list[i];
        if (b->kind != BLOCK_CALL) {
            buffer_append(&text[b->kind == BLOCK_TEXT], b->text.data, b->text.length);
            continue;
        }
        char id[ID];
        size_t length;
        const char *arguments = answer_block_arguments(b, &length);
        snprintf(id, sizeof id, "call_%s", b->id);
        json_array_append_new(calls, json_pack("{s:s, s:s, s:{s:s, s:s%}}", "id", id, "type", "function", "function",
                                               "name", b->name, "arguments", arguments, length));
    }
    json_object_set_new(turn, "content", json_stringn(text[1].length ? text[1].data : "", text[1].length));
    if (text[0].length) json_object_set_new(turn, "reasoning", json_stringn(text[0].data, text[0].length));
    if (json_array_size(calls)) json_object_set(turn, "tool_calls", calls);
    json_decref(calls);
    buffer_free(&text[0]), buffer_free(&text[1]);
    return turn;
}
