#include "server/derender.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/model.h"
#include "server/chat.h"
#include "server/completions.h"

enum { MOST_ANSWERS = 16384 };

struct read {
    json_t *response, *responses, *chat, *completion, *prompt_tokens;
    const char *model;
    bool stream;
};

#define AT(member) offsetof(struct read, member)

const request_field derender_fields[] = {
    {"model", REQUEST_STRING, AT(model), 0, 0, "a served name; required"},
    {"generate_response", REQUEST_OBJECT, AT(response), 0, 0, "of chats: what /inference/v1/generate answered"},
    {"generate_responses", REQUEST_LIST, AT(responses), 0, 0, "of completions: the same, one for each prompt"},
    {"prompt_tokens", REQUEST_ANY, AT(prompt_tokens), 0, 0, "for usage: a number, of completions a list of them"},
    {"chat_request", REQUEST_OBJECT, AT(chat), 0, 0, "the request that was rendered: how the answer is split"},
    {"completion_request", REQUEST_OBJECT, AT(completion), 0, 0, "the same of completions"},
    {"stream", REQUEST_BOOL, AT(stream), 0, 0, "false: whole answers only"},
};
const size_t derender_field_count = sizeof derender_fields / sizeof *derender_fields;

/* ---- An answer -------------------------------------------------------------------------------------------------- */

static bool no_memory(request_fault *fault)
{
    return request_failed(fault, NULL, &(hy_error){.status = HY_FAILED, .message = "out of memory"});
}

static int vocabulary(const generation *g)
{
    hy_model_info info;
    hy_model_describe(g->room->model, &info);
    return info.vocab;
}

static bool read_ids(const generation *g, const json_t *list, hy_ids *ids, request_fault *fault)
{
    size_t n = json_array_size(list);
    int64_t most = model_max_len(g->room->model), vocab = vocabulary(g);
    if (!json_is_array(list) || n == 0)
        return request_refuse(fault, "token_ids", "each choice needs token_ids, a list of at least one");
    if ((int64_t)n > most)
        return request_refuse(fault, "token_ids", "token_ids has %zu ids, and an answer of this model at most %lld", n,
                              (long long)most);
    if (!(ids->data = malloc(n * sizeof *ids->data))) return no_memory(fault);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(list, i);
        json_int_t x = json_is_integer(id) ? json_integer_value(id) : -1;
        if (x < 0 || x >= vocab)
            return request_refuse(fault, "token_ids",
                                  "token_ids[%zu] is no token of this model, whose ids are 0 .. %lld", i,
                                  (long long)vocab - 1);
        ids->data[i] = (int32_t)x;
    }
    ids->count = n;
    return true;
}

/* {"token": "token_id:N", "logprob": x}, as generate names tokens. */
static bool read_logprob(const json_t *entry, int vocab, hy_logprob *out, request_fault *fault)
{
    const char *name = json_string_value(json_object_get(entry, "token"));
    const json_t *value = json_object_get(entry, "logprob");
    char *end = NULL;
    long id = name && strncmp(name, "token_id:", 9) == 0 ? strtol(name + 9, &end, 10) : -1;
    if (id < 0 || id >= vocab || end == name + 9 || *end || !json_is_number(value))
        return request_refuse(
            fault, "logprobs",
            "log-probabilities must be as /inference/v1/generate tells them: a token \"token_id:N\" and a "
            "logprob");
    *out = (hy_logprob){(int32_t)id, (float)json_number_value(value)};
    return true;
}

static bool read_logprobs(const generation *g, const json_t *logprobs, generation_answer *a, request_fault *fault)
{
    const json_t *content = json_object_get(logprobs, "content");
    int32_t most;
    size_t n = json_array_size(content), best = 0;
    if (!logprobs || json_is_null(logprobs) || !content || json_is_null(content)) return true;
    if (n != a->ids.count)
        return request_refuse(fault, "logprobs", "logprobs.content has %zu entries for %zu token_ids", n, a->ids.count);
    for (size_t i = 0; i < n; i++) {
        size_t k = json_array_size(json_object_get(json_array_get(content, i), "top_logprobs"));
        if (k > best) best = k;
    }
    /* Behind the best may stand those of logprob_token_ids. */
    if (best > 128 && !openai_logprobs(g, "logprobs", (int64_t)best - 128, &most, fault)) return false;
    if (n * (1 + best) > 4 << 20)
        return request_refuse(fault, "logprobs", "more than %d log-probabilities in one answer", 4 << 20);
    a->stride = 1 + best;
    if (!(a->logprobs = malloc(n * a->stride * sizeof *a->logprobs))) return no_memory(fault);
    for (size_t i = 0; i < n; i++) {
        const json_t *entry = json_array_get(content, i), *top = json_object_get(entry, "top_logprobs");
        hy_logprob *to = a->logprobs + i * a->stride;
        if (!read_logprob(entry, vocabulary(g), to, fault)) return false;
        for (size_t k = 0; k < best; k++) {
            to[1 + k] = (hy_logprob){-1, -9999};
            if (k < json_array_size(top) && !read_logprob(json_array_get(top, k), vocabulary(g), &to[1 + k], fault))
                return false;
        }
    }
    return true;
}

static bool read_finish(const json_t *choice, hy_finish *finish, request_fault *fault)
{
    static const struct {
        const char *name;
        hy_finish finish;
    } known[] = {{"stop", HY_FINISH_STOP},
                 {"tool_calls", HY_FINISH_STOP},
                 {"length", HY_FINISH_LENGTH},
                 {"abort", HY_FINISH_CANCEL},
                 {"repetition", HY_FINISH_REPETITION}};
    const json_t *value = request_value(choice, "finish_reason");
    const char *name = value ? json_string_value(value) : "stop";
    for (size_t i = 0; name && i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0) {
            *finish = known[i].finish;
            return true;
        }
    return request_refuse(fault, "finish_reason",
                          "finish_reason must be stop, length, tool_calls, abort or repetition");
}

/* ---- Answers ---------------------------------------------------------------------------------------------------- */

/* Of one prompt, behind those that the plan has; all prompts have as many. */
static bool read_response(generation *g, const json_t *response, size_t prompt, size_t prompts, int64_t tokens,
                          request_fault *fault)
{
    generation_plan *p = &g->plan;
    const json_t *choices = request_value(response, "choices");
    size_t n = json_array_size(choices);
    if (!json_is_object(response) || !json_is_array(choices) || n == 0)
        return request_refuse(fault, "choices", "a response of generate has a list of at least one choice");
    if (prompt > 0 && n != (size_t)p->n)
        return request_refuse(fault, "choices",
                              "all responses need as many choices: the first one has %d, another one %zu", p->n, n);
    if (n > MOST_ANSWERS / prompts)
        return request_refuse(fault, "choices", "%zu responses with %zu choices each are more than %d answers", prompts,
                              n, MOST_ANSWERS);
    if (prompt == 0) {
        p->n = (int32_t)n;
        if (!(p->given = calloc(n * prompts, sizeof *p->given))) return no_memory(fault);
        p->given_count = n * prompts;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *c = json_array_get(choices, i);
        generation_answer *a = &p->given[prompt * n + i];
        a->prompt_tokens = (size_t)tokens;
        if (!read_ids(g, request_value(c, "token_ids"), &a->ids, fault) || !read_finish(c, &a->finish, fault) ||
            !read_logprobs(g, request_value(c, "logprobs"), a, fault))
            return false;
    }
    json_t *scores = json_object_get(response, "prompt_logprobs"),
           *transfer = json_object_get(response, "kv_transfer_params");
    if (!p->given_prompt_logprobs) p->given_prompt_logprobs = json_array();
    json_array_append(p->given_prompt_logprobs, scores ? scores : json_null());
    if (transfer && !p->given_transfer) p->given_transfer = json_incref(transfer);
    const char *id = json_string_value(json_object_get(response, "request_id"));
    if (prompt == 0 && id && *id) snprintf(g->id, sizeof g->id, "%.80s", id);
    return true;
}

static bool read_count(const json_t *value, int64_t *count, request_fault *fault)
{
    *count = 0;
    if (!value || json_is_null(value)) return true;
    if (!json_is_integer(value))
        return request_schema(fault, "body", "prompt_tokens", "int_type", "Input should be a valid integer");
    *count = json_integer_value(value);
    return (*count >= 0 && *count <= INT32_MAX) ||
           request_refuse(fault, "prompt_tokens", "prompt_tokens must be 0 or more, got %lld", (long long)*count);
}

/* The request that was rendered, without what is another's matter: how tokens were chosen, and what was streamed. */
static json_t *own_request(const json_t *request)
{
    static const char *const kept[] = {"messages",
                                       "tools",
                                       "tool_choice",
                                       "parallel_tool_calls",
                                       "include_reasoning",
                                       "reasoning_effort",
                                       "chat_template",
                                       "chat_template_kwargs",
                                       "add_generation_prompt",
                                       "continue_final_message",
                                       "documents",
                                       "echo",
                                       "return_token_ids",
                                       "return_tokens_as_token_ids",
                                       "skip_special_tokens"};
    json_t *own = json_object();
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        json_t *v = request_value(request, kept[i]);
        if (v) json_object_set(own, kept[i], v);
    }
    return own;
}

static bool any_logprobs(const generation_plan *p, size_t *best)
{
    bool any = false;
    *best = 0;
    for (size_t i = 0; i < p->given_count; i++) {
        any |= p->given[i].logprobs != NULL;
        if (p->given[i].stride > *best + 1) *best = p->given[i].stride - 1;
    }
    return any;
}

static bool read_common(generation *g, json_t *body, struct read *f, request_fault *fault)
{
    if (!request_read(body, "body", derender_fields, derender_field_count, f, fault)) return false;
    if (!f->model) return request_schema(fault, "body", "model", "missing", "Field required");
    const char *served;
    if (!generation_check_model(g->room, f->model, &served, fault)) return false;
    return !f->stream ||
           request_refuse(fault, "stream", "streams are not derendered by this server: send the whole response");
}

/* What the dialect's reading put into the plan that answers which are there already have no use for. */
static bool keep_given(generation *g, const char *model, int32_t n)
{
    generation_plan *p = &g->plan;
    p->n = n, p->stream = false, p->model = memory_string(model, strlen(model));
    p->sampling.s.logprobs = -1;
    return p->model != NULL;
}

static bool read_chat(generation *g, json_t *body, request_fault *fault)
{
    struct read f = {0};
    int64_t tokens;
    size_t best;
    generation_plan *p = &g->plan;
    if (!read_common(g, body, &f, fault)) return false;
    if (!f.response) return request_schema(fault, "body", "generate_response", "missing", "Field required");
    if (!read_count(f.prompt_tokens, &tokens, fault) || !read_response(g, f.response, 0, 1, tokens, fault))
        return false;
    int32_t n = p->n;
    json_t *own = own_request(f.chat);
    if (any_logprobs(p, &best)) json_object_set_new(own, "logprobs", json_true());
    if (!f.chat) json_object_set_new(own, "messages", json_pack("[{ssss}]", "role", "user", "content", ""));
    bool ok = chat_read(g, own, fault);
    json_decref(own);
    if (ok && !f.chat) p->parse = false; /* nothing says what to look for: all of it is content */
    return ok && (keep_given(g, f.model, n) || no_memory(fault));
}

static bool read_completions(generation *g, json_t *body, request_fault *fault)
{
    struct read f = {0};
    generation_plan *p = &g->plan;
    if (!read_common(g, body, &f, fault)) return false;
    size_t count = json_array_size(f.responses), best;
    if (!f.responses) return request_schema(fault, "body", "generate_responses", "missing", "Field required");
    if (count == 0) return request_refuse(fault, "generate_responses", "generate_responses must not be empty");
    if (count > MOST_ANSWERS)
        return request_refuse(fault, "generate_responses", "generate_responses has %zu, at most %d are allowed", count,
                              MOST_ANSWERS);
    if (f.prompt_tokens && !json_is_array(f.prompt_tokens))
        return request_schema(fault, "body", "prompt_tokens", "list_type", "Input should be a valid list");
    if (f.prompt_tokens && json_array_size(f.prompt_tokens) != count)
        return request_refuse(fault, "prompt_tokens",
                              "prompt_tokens length (%zu) must equal generate_responses length (%zu)",
                              json_array_size(f.prompt_tokens), count);
    json_t *prompts = json_array();
    bool ok = true;
    for (size_t i = 0; ok && i < count; i++) {
        int64_t tokens;
        ok = read_count(json_array_get(f.prompt_tokens, i), &tokens, fault) &&
             read_response(g, json_array_get(f.responses, i), i, count, tokens, fault);
        json_array_append_new(prompts, json_pack("[i]", 0)); /* stands for the prompt, which nobody needs any more */
    }
    int32_t n = p->n;
    json_t *own = own_request(f.completion);
    json_object_del(own, "echo");
    json_object_set_new(own, "prompt", prompts);
    ok = ok && completion_dialect.read(g, own, fault);
    json_decref(own);
    if (ok && any_logprobs(p, &best)) completions_show_logprobs(g, best < INT32_MAX ? (int32_t)best : INT32_MAX);
    return ok && (keep_given(g, f.model, n) || no_memory(fault));
}

/* ---- Routes ----------------------------------------------------------------------------------------------------- */

static generation_dialect whole_chat,
    whole_completions; /* the usual ones, which read differently; filled before the first request */

static void post_chat(void *user, http_exchange *x)
{
    generation_start(user, &whole_chat, x);
}

static void post_completions(void *user, http_exchange *x)
{
    generation_start(user, &whole_completions, x);
}

void derender_routes(generation_room *room)
{
    whole_chat = chat_dialect, whole_chat.read = read_chat;
    whole_completions = completion_dialect, whole_completions.read = read_completions;
    http_route(room->http, "POST", "/v1/chat/completions/derender", post_chat, room);
    http_route(room->http, "POST", "/v1/completions/derender", post_completions, room);
}
