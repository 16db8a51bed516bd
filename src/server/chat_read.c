#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "server/chat.h"
#include "server/dialect_fields.h"

struct read {
    json_t *messages, *kwargs, *documents;
    int64_t max_completion_tokens, max_tokens, top_logprobs, thinking_budget;
    bool logprobs, include_reasoning, echo, add_generation_prompt, continue_final, prompt_text;
    const char *chat_template;
};

#define AT(member) offsetof(struct read, member)

const request_field chat_fields[] = {
    {"messages", REQUEST_LIST, AT(messages), 0, 0, "the conversation; required"},
    {"max_completion_tokens", REQUEST_INTEGER, AT(max_completion_tokens), 0, 0, "most tokens of the answer"},
    {"max_tokens", REQUEST_INTEGER, AT(max_tokens), 0, 0, "the same, where max_completion_tokens is not given"},
    {"logprobs", REQUEST_BOOL, AT(logprobs), 0, 0, "log-probabilities of the answer's tokens"},
    {"top_logprobs", REQUEST_INTEGER, AT(top_logprobs), 0, 0, "and of so many best tokens at each place"},
    {"tools", REQUEST_IGNORED, 0, 0, 0, "functions that may be called"},
    {"tool_choice", REQUEST_IGNORED, 0, 0, 0, "none, auto, required or a function"},
    {"parallel_tool_calls", REQUEST_IGNORED, 0, 0, 0, "false: at most one call"},
    {"reasoning_effort", REQUEST_IGNORED, 0, 0, 0, "a word that the chat template knows"},
    {"thinking_token_budget", REQUEST_INTEGER, AT(thinking_budget), -1, INT32_MAX,
     "reasoning is closed after so many tokens; -1: never"},
    {"include_reasoning", REQUEST_BOOL, AT(include_reasoning), 0, 0, "false: reasoning is left out"},
    {"chat_template", REQUEST_STRING, AT(chat_template), 0, 0, "a template in place of the model's"},
    {"chat_template_kwargs", REQUEST_OBJECT, AT(kwargs), 0, 0, "variables of the template"},
    {"add_generation_prompt", REQUEST_BOOL, AT(add_generation_prompt), 0, 0, "the prompt opens a turn (default true)"},
    {"continue_final_message", REQUEST_BOOL, AT(continue_final), 0, 0, "the last message is gone on with"},
    {"echo", REQUEST_BOOL, AT(echo), 0, 0, "the answer begins with the last message of its role"},
    {"documents", REQUEST_LIST, AT(documents), 0, 0, "a variable of the template"},
    {"return_prompt_text", REQUEST_BOOL, AT(prompt_text), 0, 0, "the rendered prompt is told"},
    {"add_special_tokens", REQUEST_IGNORED, 0, 0, 0, NULL},
    {"media_io_kwargs", REQUEST_IGNORED, 0, 0, 0, NULL},
    {"mm_processor_kwargs", REQUEST_IGNORED, 0, 0, 0, NULL},
    {"return_assistant_tokens_mask", REQUEST_REFUSED, 0, 0, 0, NULL},
    {"return_token_offsets", REQUEST_REFUSED, 0, 0, 0, NULL},
};
const size_t chat_field_count = sizeof chat_fields / sizeof *chat_fields;

/* ---- Messages --------------------------------------------------------------------------------------------------- */

static const char *text_of(const json_t *part, const char *type)
{
    if (strcmp(type, "refusal") == 0) return json_string_value(json_object_get(part, "refusal"));
    if (strcmp(type, "text") != 0 && strcmp(type, "input_text") != 0 && strcmp(type, "output_text") != 0) return NULL;
    return json_string_value(json_object_get(part, "text"));
}

/* What a part of this type would be, for the message that there may be none. */
static const char *modality(const char *type)
{
    static const struct {
        const char *type, *name;
    } known[] = {{"image_url", "image"}, {"image", "image"},        {"input_image", "image"},
                 {"image_pil", "image"}, {"image_embeds", "image"}, {"video_url", "video"},
                 {"video", "video"},     {"audio_url", "audio"},    {"input_audio", "audio"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].type, type) == 0) return known[i].name;
    return NULL;
}

/* A question about a picture must not be answered without it, which is what a template that drops the part would do. */
static json_t *read_part(const json_t *part, size_t message, request_fault *fault)
{
    if (json_is_string(part)) return json_pack("{ssso}", "type", "text", "text", json_copy((json_t *)part));
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!type && json_is_string(json_object_get(part, "text"))) type = "text";
    const char *text = type ? text_of(part, type) : NULL;
    if (text) {
        const json_t *value = json_object_get(part, strcmp(type, "refusal") == 0 ? "refusal" : "text");
        return json_pack("{ssso}", "type", "text", "text", json_copy((json_t *)value));
    }
    const char *kind = type ? modality(type) : NULL;
    if (kind)
        request_refuse(
            fault, "messages",
            "At most 0 %s(s) may be provided in one prompt: messages[%zu] has a part of type %.40s, and this "
            "server takes text only",
            kind, message, type);
    else
        request_refuse(fault, "messages", "messages[%zu] has a part of type %.40s; this server takes text only",
                       message, type ? type : "(none)");
    return NULL;
}

static json_t *read_content(const json_t *content, size_t message, request_fault *fault)
{
    json_t *parts = json_array(), *part;
    size_t i;
    json_array_foreach(content, i, part)
    {
        json_t *text = read_part(part, message, fault);
        if (!text) {
            json_decref(parts);
            return NULL;
        }
        json_array_append_new(parts, text);
    }
    return parts;
}

static json_t *read_message(json_t *message, size_t i, request_fault *fault)
{
    char place[48];
    snprintf(place, sizeof place, "body.messages.%zu", i);
    if (!json_is_object(message)) {
        request_schema(fault, "body", "messages", "dict_type", "Input should be a valid dictionary");
        return NULL;
    }
    const json_t *role = json_object_get(message, "role"), *content = json_object_get(message, "content");
    if (!json_is_string(role)) {
        request_schema(fault, place, "role", role ? "string_type" : "missing",
                       role ? "Input should be a valid string" : "Field required");
        return NULL;
    }
    if (!json_is_array(content)) {
        if (!content || json_is_null(content) || json_is_string(content)) return json_incref(message);
        request_schema(fault, place, "content", "string_type", "Input should be a valid string");
        return NULL;
    }
    json_t *parts = read_content(content, i, fault);
    json_t *copy = parts ? json_copy(message) : NULL;
    if (copy) json_object_set_new(copy, "content", parts);
    return copy;
}

json_t *chat_messages(json_t *messages, request_fault *fault)
{
    if (!json_is_array(messages)) {
        request_schema(fault, "body", "messages", messages ? "list_type" : "missing",
                       messages ? "Input should be a valid list" : "Field required");
        return NULL;
    }
    json_t *out = json_array(), *message;
    size_t i;
    json_array_foreach(messages, i, message)
    {
        json_t *read = read_message(message, i, fault);
        if (!read) {
            json_decref(out);
            return NULL;
        }
        json_array_append_new(out, read);
    }
    return out;
}

/* ---- The rest --------------------------------------------------------------------------------------------------- */

static bool read_logprobs(generation *g, chat *c, const struct read *f, request_fault *fault)
{
    if (f->top_logprobs != 0 && !f->logprobs)
        return request_refuse(fault, "top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true.");
    c->logprobs = f->logprobs;
    if (!f->logprobs) return true;
    if (!openai_logprobs(g, "top_logprobs", f->top_logprobs, &c->top_logprobs, fault)) return false;
    g->plan.sampling.s.logprobs = c->top_logprobs;
    return true;
}

static bool read_lengths(generation *g, const json_t *body, const struct read *f, request_fault *fault)
{
    bool completion = request_value(body, "max_completion_tokens") != NULL;
    const char *name = completion ? "max_completion_tokens" : "max_tokens";
    return request_lengths_check(&g->plan.sampling, name, request_value(body, name) != NULL,
                                 completion ? f->max_completion_tokens : f->max_tokens, fault);
}

bool chat_own_template(generation *g, const char *text, request_fault *fault)
{
    if (!text) return true;
    if (!g->room->options->trust_request_chat_template)
        return request_refuse(fault, NULL,
                              "Chat template is passed with request, but --trust-request-chat-template is not set. "
                              "Refused request with untrusted chat template.");
    g->plan.chat_template = memory_string(text, strlen(text));
    return g->plan.chat_template ||
           request_failed(fault, NULL, &(hy_error){.status = HY_FAILED, .message = "out of memory"});
}

static bool read_template(generation *g, const json_t *body, const struct read *f, request_fault *fault)
{
    generation_plan *p = &g->plan;
    if (!chat_own_template(g, f->chat_template, fault)) return false;
    if (f->continue_final && !request_value(body, "add_generation_prompt"))
        return request_refuse(fault, "continue_final_message",
                              "continue_final_message needs add_generation_prompt to be false");
    if (f->continue_final && f->add_generation_prompt)
        return request_refuse(fault, "continue_final_message",
                              "Cannot set both `continue_final_message` and `add_generation_prompt` to True.");
    if (!dialect_effort(body, DIALECT_CHAT, &p->effort, fault)) return false;
    p->kwargs = f->kwargs ? json_copy(f->kwargs) : json_object();
    static const char *const names[] = {"add_generation_prompt", "continue_final_message", "documents"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *v = request_value(body, names[i]);
        if (v) json_object_set(p->kwargs, names[i], v);
    }
    return dialect_can_think_so(g, fault);
}

/* The answer has the last message's role when no turn is opened; with `echo` its text too. */
static void read_role(generation *g, chat *c, const struct read *f)
{
    size_t count = json_array_size(g->plan.messages);
    const json_t *last = count ? json_array_get(g->plan.messages, count - 1) : NULL;
    const char *role = json_string_value(json_object_get(last, "role"));
    const json_t *content = json_object_get(last, "content");
    snprintf(c->role, sizeof c->role, "%s", f->add_generation_prompt || !role ? "assistant" : role);
    if (!f->echo || !role || strcmp(role, c->role) != 0 || !json_is_string(content)) return;
    if (json_string_length(content)) c->echoed = memory_string(json_string_value(content), json_string_length(content));
}

bool chat_read(generation *g, json_t *body, request_fault *fault)
{
    chat *c = g->state;
    struct read f = {.include_reasoning = true, .add_generation_prompt = true, .thinking_budget = -1};
    if (!request_read(body, "body", chat_fields, chat_field_count, &f, fault)) return false;
    if (!(g->plan.messages = chat_messages(f.messages, fault))) return false;
    if (!openai_read(g, body, &c->asked, fault) || !read_logprobs(g, c, &f, fault) ||
        !read_lengths(g, body, &f, fault) || !request_tools_read(body, &g->plan.tools, fault) ||
        !read_template(g, body, &f, fault))
        return false;
    if (!openai_thinking_budget(g, f.thinking_budget, fault)) return false;
    if (json_array_size(g->plan.messages) == 0)
        return request_refuse(fault, "messages", "messages must hold at least one message");
    read_role(g, c, &f);
    c->include_reasoning = f.include_reasoning, c->prompt_text = f.prompt_text;
    g->plan.parse = true;
    return true;
}
