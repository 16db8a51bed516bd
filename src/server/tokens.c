/* Text to ids and back. Prompts may be long: both are made on the worker threads, as calls that generate nothing. */
#include "server/tokens.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "model/model.h"
#include "server/chat.h"
#include "server/completions.h"

/* ---- /tokenize -------------------------------------------------------------------------------------------------- */

typedef struct tokenize {
    bool strings;
} tokenize;

struct read {
    json_t *messages, *kwargs, *prompt, *tools, *effort;
    const char *model, *chat_template;
    bool strings, add_generation_prompt, continue_final;
};

#define AT(member) offsetof(struct read, member)

const request_field tokenize_fields[] = {
    {"model", REQUEST_STRING, AT(model), 0, 0, "a served name"},
    {"prompt", REQUEST_ANY, AT(prompt), 0, 0, "text"},
    {"messages", REQUEST_ANY, AT(messages), 0, 0, "or a conversation"},
    {"tools", REQUEST_LIST, AT(tools), 0, 0, "functions that the conversation knows"},
    {"chat_template_kwargs", REQUEST_OBJECT, AT(kwargs), 0, 0, "variables of the template"},
    {"chat_template", REQUEST_STRING, AT(chat_template), 0, 0, "a template in place of the model's"},
    {"reasoning_effort", REQUEST_ANY, AT(effort), 0, 0, "a word that the chat template knows"},
    {"add_generation_prompt", REQUEST_BOOL, AT(add_generation_prompt), 0, 0, "the prompt opens a turn (default true)"},
    {"continue_final_message", REQUEST_BOOL, AT(continue_final), 0, 0, "the last message is gone on with"},
    {"return_token_strs", REQUEST_BOOL, AT(strings), 0, 0, "tokens as the vocabulary spells them"},
    {"add_special_tokens", REQUEST_IGNORED, 0, 0, 0, NULL},
};
const size_t tokenize_field_count = sizeof tokenize_fields / sizeof *tokenize_fields;

const request_field detokenize_fields[] = {
    {"tokens", REQUEST_LIST, 0, 0, 0, "ids"},
    {"model", REQUEST_STRING, 0, 0, 0, "a served name"},
};
const size_t detokenize_field_count = sizeof detokenize_fields / sizeof *detokenize_fields;

static bool read_conversation(generation *g, json_t *body, const struct read *f, request_fault *fault)
{
    generation_plan *p = &g->plan;
    if (!(p->messages = chat_messages(f->messages, fault))) return false;
    if (!chat_own_template(g, f->chat_template, fault)) return false;
    if (f->continue_final && f->add_generation_prompt && request_value(body, "add_generation_prompt"))
        return request_refuse(fault, "continue_final_message",
                              "Cannot set both `continue_final_message` and `add_generation_prompt` to True.");
    if (f->effort && !json_is_string(f->effort))
        return request_schema(fault, "body", "reasoning_effort", "string_type", "Input should be a valid string");
    p->effort = json_incref(f->effort);
    p->kwargs = f->kwargs ? json_copy(f->kwargs) : json_object();
    json_object_set_new(p->kwargs, "add_generation_prompt",
                        json_boolean(f->add_generation_prompt && !f->continue_final));
    json_object_set_new(p->kwargs, "continue_final_message", json_boolean(f->continue_final));
    p->tools.list = json_incref(f->tools);
    return true;
}

static bool read_tokenize(generation *g, json_t *body, request_fault *fault)
{
    tokenize *t = g->state;
    struct read f = {.add_generation_prompt = true};
    g->plan.no_generation = g->keep_prompts = true;
    if (!request_read(body, "body", tokenize_fields, tokenize_field_count, &f, fault)) return false;
    g->plan.model = f.model ? memory_string(f.model, strlen(f.model)) : NULL;
    t->strings = f.strings;
    if (f.messages) return read_conversation(g, body, &f, fault);
    if (f.prompt && !json_is_string(f.prompt))
        return request_schema(fault, "body", "prompt", "string_type", "Input should be a valid string");
    return completions_read_prompt(g, f.prompt, NULL, fault);
}

static void send_tokens(generation *g)
{
    const tokenize *t = g->state;
    const hy_ids *ids = &g->prompts[0];
    const text_tokenizer *tok = model_tokenizer(g->room->model);
    buffer body = {0}, spelt = {0};
    json_writer w = {.out = &body};
    writer_object(&w);
    writer_key(&w, "count"), writer_unsigned(&w, ids->count);
    writer_key(&w, "max_model_len"), writer_integer(&w, model_max_len(g->room->model));
    writer_key(&w, "tokens");
    writer_array(&w);
    for (size_t i = 0; i < ids->count; i++) writer_integer(&w, ids->data[i]);
    writer_end(&w);
    writer_key(&w, "token_strs");
    if (t->strings) {
        writer_array(&w);
        for (size_t i = 0; i < ids->count; i++) {
            buffer_clear(&spelt);
            text_tokenizer_spell(tok, ids->data[i], &spelt);
            writer_string(&w, spelt.data ? spelt.data : "", spelt.length);
        }
        writer_end(&w);
    } else {
        writer_null(&w);
    }
    writer_end(&w);
    http_reply_json(g->x, 200, &body);
    g->x = NULL;
    buffer_free(&body), buffer_free(&spelt);
}

static const generation_dialect tokenize_dialect = {.prefix = "tokn-",
                                                    .state_size = sizeof(tokenize),
                                                    .read = read_tokenize,
                                                    .prepared = send_tokens,
                                                    .fail = generation_fail};

static void post_tokenize(void *user, http_exchange *x)
{
    generation_start(user, &tokenize_dialect, x);
}

/* ---- /detokenize ------------------------------------------------------------------------------------------------ */

typedef struct detokenize {
    char *text; /* owned */
} detokenize;

static bool read_detokenize(generation *g, json_t *body, request_fault *fault)
{
    detokenize *d = g->state;
    const json_t *tokens = request_value(body, "tokens"), *model = request_value(body, "model");
    g->plan.no_generation = true;
    if (model && !json_is_string(model))
        return request_schema(fault, "body", "model", "string_type", "Input should be a valid string");
    if (model) g->plan.model = memory_string(json_string_value(model), json_string_length(model));
    if (!json_is_array(tokens))
        return request_schema(fault, "body", "tokens", tokens ? "list_type" : "missing",
                              tokens ? "Input should be a valid list" : "Field required");
    if (json_array_size(tokens) && !json_is_integer(json_array_get(tokens, 0)))
        return request_schema(fault, "body", "tokens", "int_type", "Input should be a valid integer");
    if (!completions_read_prompt(g, tokens, NULL, fault)) {
        if (strcmp(fault->param, "body.prompt") == 0)
            request_schema(fault, "body", "tokens", "int_type", "Input should be a valid integer");
        else
            request_refuse(fault, "tokens", "tokens holds an id that is not in the vocabulary");
        return false;
    }
    hy_model_info info;
    hy_model_describe(g->room->model, &info);
    const hy_ids *ids = &g->plan.prompts[0];
    for (size_t i = 0; i < ids->count; i++)
        if (ids->data[i] >= info.vocab)
            return request_refuse(fault, "tokens", "Token id %d is out of vocabulary", ids->data[i]);
    hy_error err = {0};
    return hy_detokenize(g->room->model, ids->data, ids->count, false, &d->text, &err) == HY_OK ||
           request_failed(fault, "tokens", &err);
}

static void send_text(generation *g)
{
    const detokenize *d = g->state;
    buffer body = {0};
    json_writer w = {.out = &body};
    writer_object(&w);
    writer_key(&w, "prompt"), writer_text(&w, d->text);
    writer_end(&w);
    http_reply_json(g->x, 200, &body);
    g->x = NULL;
    buffer_free(&body);
}

static void free_text(generation *g)
{
    detokenize *d = g->state;
    free(d->text);
}

static const generation_dialect detokenize_dialect = {.prefix = "tokn-",
                                                      .state_size = sizeof(detokenize),
                                                      .read = read_detokenize,
                                                      .prepared = send_text,
                                                      .fail = generation_fail,
                                                      .release = free_text};

static void post_detokenize(void *user, http_exchange *x)
{
    generation_start(user, &detokenize_dialect, x);
}

/* ---- /tokenizer_info -------------------------------------------------------------------------------------------- */

static void get_info(void *user, http_exchange *x)
{
    const generation_room *room = user;
    const text_tokenizer *tok = model_tokenizer(room->model);
    int32_t size = text_tokenizer_vocab_size(tok);
    buffer body = {0};
    json_writer w = {.out = &body};
    writer_object(&w);
    writer_key(&w, "tokenizer_class"), writer_text(&w, "PreTrainedTokenizerFast");
    writer_key(&w, "vocab_size"), writer_integer(&w, size);
    writer_key(&w, "model_max_length"), writer_integer(&w, model_max_len(room->model));
    writer_key(&w, "added_tokens_decoder");
    writer_object(&w);
    for (int32_t id = 0; id < size; id++) {
        size_t length;
        char key[16];
        if (!text_tokenizer_is_added(tok, id)) continue;
        const char *text = text_tokenizer_bytes(tok, id, &length);
        int n = snprintf(key, sizeof key, "%d", id);
        writer_key_string(&w, key, (size_t)n);
        writer_object(&w);
        writer_key(&w, "content"), writer_string(&w, text, length);
        writer_key(&w, "special"), writer_bool(&w, text_tokenizer_is_special(tok, id));
        writer_end(&w);
    }
    writer_end(&w);
    writer_end(&w);
    http_reply_json(x, 200, &body);
    buffer_free(&body);
}

void tokens_routes(generation_room *room)
{
    http_route(room->http, "POST", "/tokenize", post_tokenize, room);
    http_route(room->http, "POST", "/detokenize", post_detokenize, room);
    if (room->options->tokenizer_info) http_route(room->http, "GET", "/tokenizer_info", get_info, room);
}
