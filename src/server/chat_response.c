#include "server/chat_response.h"

#include <math.h>
#include <string.h>

#include "base/json.h"

const char *chat_finish_name(hy_finish finish)
{
    switch (finish) {
    case HY_FINISH_STOP: return "stop";
    case HY_FINISH_LENGTH: return "length";
    case HY_FINISH_CANCEL: return "abort";
    case HY_FINISH_ERROR: return "error";
    case HY_RUNNING: break;
    }
    return NULL;
}

static void write_piece(json_writer *w, const char *key, chat_piece piece)
{
    writer_key(w, key);
    if (piece.text)
        writer_string(w, piece.text, piece.length);
    else
        writer_null(w);
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

static void write_logprobs(json_writer *w, const text_tokenizer *tok, chat_logprobs l)
{
    writer_key(w, "logprobs");
    if (!l.data) {
        writer_null(w);
        return;
    }
    writer_object(w);
    writer_key(w, "content");
    writer_array(w);
    for (size_t i = 0; i < l.count; i++) {
        const hy_logprob *p = l.data + i * l.stride;
        writer_object(w);
        write_token(w, tok, p[0]);
        writer_key(w, "top_logprobs");
        writer_array(w);
        for (size_t j = 1; j < l.stride; j++) {
            if (p[j].token < 0) continue;
            writer_object(w);
            write_token(w, tok, p[j]);
            writer_end(w);
        }
        writer_end(w);
        writer_end(w);
    }
    writer_end(w);
    writer_end(w);
}

static void write_ids(json_writer *w, const int32_t *ids, size_t count)
{
    writer_key(w, "token_ids");
    if (!ids) {
        writer_null(w);
        return;
    }
    writer_array(w);
    for (size_t i = 0; i < count; i++) writer_integer(w, ids[i]);
    writer_end(w);
}

static void write_usage(json_writer *w, chat_usage usage, bool details)
{
    writer_key(w, "usage");
    writer_object(w);
    writer_key(w, "prompt_tokens"), writer_unsigned(w, usage.prompt_tokens);
    writer_key(w, "total_tokens"), writer_unsigned(w, usage.prompt_tokens + usage.completion_tokens);
    writer_key(w, "completion_tokens"), writer_unsigned(w, usage.completion_tokens);
    if (details) writer_key(w, "prompt_tokens_details"), writer_null(w);
    writer_end(w);
}

static void write_stop_reason(json_writer *w, const chat_ending *end)
{
    writer_key(w, "stop_reason");
    if (end->stop_string)
        writer_text(w, end->stop_string);
    else if (end->stop_id >= 0)
        writer_integer(w, end->stop_id);
    else
        writer_null(w);
}

static void begin(json_writer *w, const chat_head *head, const char *object)
{
    writer_object(w);
    writer_key(w, "id"), writer_text(w, head->id);
    writer_key(w, "object"), writer_text(w, object);
    writer_key(w, "created"), writer_integer(w, head->created);
    writer_key(w, "model"), writer_text(w, head->model);
    writer_key(w, "choices");
    writer_array(w);
}

void chat_write_whole(buffer *out, const chat_head *head, chat_piece content, chat_piece reasoning,
                      chat_logprobs logprobs, const chat_ending *end, chat_usage usage, const int32_t *ids,
                      size_t id_count)
{
    json_writer w = {.out = out};
    begin(&w, head, "chat.completion");
    writer_object(&w);
    writer_key(&w, "index"), writer_integer(&w, 0);
    writer_key(&w, "message");
    writer_object(&w);
    writer_key(&w, "role"), writer_text(&w, "assistant");
    write_piece(&w, "content", content);
    static const char *const empty[] = {"refusal", "annotations", "audio", "function_call"};
    for (size_t i = 0; i < 4; i++) writer_key(&w, empty[i]), writer_null(&w);
    write_piece(&w, "reasoning", reasoning);
    writer_end(&w);
    write_logprobs(&w, head->tok, logprobs);
    writer_key(&w, "finish_reason"), writer_text(&w, chat_finish_name(end->finish));
    write_stop_reason(&w, end);
    write_ids(&w, ids, id_count);
    writer_key(&w, "routed_experts"), writer_null(&w);
    writer_end(&w);
    writer_end(&w);
    writer_key(&w, "service_tier"), writer_null(&w);
    writer_key(&w, "system_fingerprint"), writer_text(&w, head->fingerprint);
    write_usage(&w, usage, true);
    static const char *const nulls[] = {"prompt_logprobs",    "prompt_token_ids",   "prompt_text",
                                        "kv_transfer_params", "ec_transfer_params", "metrics"};
    for (size_t i = 0; i < sizeof nulls / sizeof *nulls; i++) writer_key(&w, nulls[i]), writer_null(&w);
    writer_end(&w);
}

void chat_write_role(buffer *out, const chat_head *head, const chat_usage *usage)
{
    json_writer w = {.out = out};
    begin(&w, head, "chat.completion.chunk");
    writer_object(&w);
    writer_key(&w, "index"), writer_integer(&w, 0);
    writer_key(&w, "delta");
    writer_object(&w);
    writer_key(&w, "role"), writer_text(&w, "assistant");
    writer_key(&w, "content"), writer_text(&w, "");
    writer_end(&w);
    writer_key(&w, "logprobs"), writer_null(&w);
    writer_key(&w, "finish_reason"), writer_null(&w);
    writer_end(&w);
    writer_end(&w);
    writer_key(&w, "prompt_token_ids"), writer_null(&w);
    writer_key(&w, "prompt_text"), writer_null(&w);
    if (usage) write_usage(&w, *usage, false);
    writer_end(&w);
}

void chat_write_delta(buffer *out, const chat_head *head, chat_piece content, chat_piece reasoning, bool both,
                      chat_logprobs logprobs, const chat_ending *end, bool fingerprint, const chat_usage *usage,
                      const int32_t *ids, size_t id_count)
{
    json_writer w = {.out = out};
    begin(&w, head, "chat.completion.chunk");
    writer_object(&w);
    writer_key(&w, "index"), writer_integer(&w, 0);
    writer_key(&w, "delta");
    writer_object(&w);
    if (both || content.text) write_piece(&w, "content", content);
    if (both || reasoning.text) write_piece(&w, "reasoning", reasoning);
    writer_end(&w);
    write_logprobs(&w, head->tok, logprobs);
    writer_key(&w, "finish_reason"), writer_text(&w, chat_finish_name(end->finish));
    if (end->finish != HY_RUNNING) write_stop_reason(&w, end);
    write_ids(&w, ids, id_count);
    writer_end(&w);
    writer_end(&w);
    if (end->finish != HY_RUNNING && fingerprint) {
        writer_key(&w, "system_fingerprint"), writer_text(&w, head->fingerprint);
    }
    if (usage) write_usage(&w, *usage, false);
    writer_end(&w);
}

void chat_write_usage(buffer *out, const chat_head *head, chat_usage usage)
{
    json_writer w = {.out = out};
    begin(&w, head, "chat.completion.chunk");
    writer_end(&w);
    writer_key(&w, "system_fingerprint"), writer_text(&w, head->fingerprint);
    write_usage(&w, usage, false);
    writer_end(&w);
}
