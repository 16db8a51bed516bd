#include "server/generate.h"

#include <stddef.h>
#include <string.h>

#include "base/memory.h"
#include "server/completions.h"
#include "server/openai.h"

typedef struct generate {
    bool include_usage, continuous_usage, logprobs;
    buffer out;
    json_writer w;
} generate;

struct read {
    json_t *token_ids, *params, *stream_options, *speculation;
    const char *model, *cache_salt;
    bool stream;
    int64_t priority;
};

#define AT(member) offsetof(struct read, member)

const request_field generate_fields[] = {
    {"token_ids", REQUEST_LIST, AT(token_ids), 0, 0, "the prompt; required"},
    {"sampling_params", REQUEST_OBJECT, AT(params), 0, 0, "n, max_tokens, logprobs, temperature, ...; required"},
    {"model", REQUEST_STRING, AT(model), 0, 0, "a served name"},
    {"stream", REQUEST_BOOL, AT(stream), 0, 0, "the answer comes as server-sent events"},
    {"stream_options", REQUEST_OBJECT, AT(stream_options), 0, 0, "include_usage, continuous_usage_stats"},
    {"cache_salt", REQUEST_STRING, AT(cache_salt), 0, 0, "cached prompts are shared within one salt"},
    {"priority", REQUEST_INTEGER, AT(priority), INT32_MIN, INT32_MAX, "smaller goes first"},
    {"speculation", REQUEST_OBJECT, AT(speculation), 0, 0, "num_speculative_tokens (0: none), rejection_sample_method"},
    {"request_id", REQUEST_IGNORED, 0, 0, 0, "name of the request"},
    {"features", REQUEST_REFUSED, 0, 0, 0, NULL},
    {"kv_transfer_params", REQUEST_REFUSED, 0, 0, 0, NULL},
    {"ec_transfer_params", REQUEST_REFUSED, 0, 0, 0, NULL},
};
const size_t generate_field_count = sizeof generate_fields / sizeof *generate_fields;

struct params {
    int64_t n, max_tokens, logprobs, prompt_logprobs, routes_start, thinking_budget;
    bool skip_special, no_prefix_cache;
    json_t *structured, *repetition;
};

#define IN(member) offsetof(struct params, member)

/* What upstream's sampling parameters have beside the fields that chats have too. Those without effect here say how
 * upstream hands over text and objects, of which there are none. */
static const request_field param_fields[] = {
    {"n", REQUEST_INTEGER, IN(n), 1, 16384, NULL},
    {"max_tokens", REQUEST_INTEGER, IN(max_tokens), 0, 0, NULL},
    {"logprobs", REQUEST_INTEGER, IN(logprobs), 0, 0, NULL},
    {"prompt_logprobs", REQUEST_INTEGER, IN(prompt_logprobs), 0, 0, NULL},
    {"structured_outputs", REQUEST_OBJECT, IN(structured), 0, 0, NULL},
    {"routed_experts_prompt_start", REQUEST_INTEGER, IN(routes_start), 0, INT32_MAX, NULL},
    {"thinking_token_budget", REQUEST_INTEGER, IN(thinking_budget), -1, INT32_MAX, NULL},
    {"repetition_detection", REQUEST_OBJECT, IN(repetition), 0, 0, NULL},
    {"skip_special_tokens", REQUEST_BOOL, IN(skip_special), 0, 0, NULL},
    {"skip_reading_prefix_cache", REQUEST_BOOL, IN(no_prefix_cache), 0, 0, NULL},
    {"detokenize", REQUEST_IGNORED, 0, 0, 0, NULL},
    {"output_kind", REQUEST_IGNORED, 0, 0, 0, NULL},
    {"flat_logprobs", REQUEST_IGNORED, 0, 0, 0, NULL},
    {"skip_clone", REQUEST_IGNORED, 0, 0, 0, NULL},
    {"spaces_between_special_tokens", REQUEST_IGNORED, 0, 0, 0, NULL},
    {"extra_args", REQUEST_REFUSED, 0, 0, 0, NULL},
    {"logits_processors", REQUEST_REFUSED, 0, 0, 0, NULL},
    {"truncate_prompt_tokens", REQUEST_REFUSED, 0, 0, 0, NULL},
    {"use_beam_search", REQUEST_REFUSED, 0, 0, 0, NULL},
};

static bool read_params(generation *g, const json_t *params, request_fault *fault)
{
    hy_sampling neutral = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = -1, .logprobs = -1};
    neutral.logprobs_mode = g->room->defaults.logprobs_mode;
    generation_plan *p = &g->plan;
    generate *s = g->state;
    struct params f = {.n = 1, .thinking_budget = -1, .skip_special = true};
    bool any = request_value(params, "logprobs") != NULL;
    if (!request_read(params, "body.sampling_params", param_fields, sizeof param_fields / sizeof *param_fields, &f,
                      fault) ||
        !request_sampling_read(params, g->room->model, &neutral, &p->sampling, fault) ||
        !request_lengths_check(&p->sampling, "max_tokens", request_value(params, "max_tokens") != NULL, f.max_tokens,
                               fault) ||
        !request_structured_outputs(f.structured, &p->grammar, fault) ||
        !openai_repetition(f.repetition, "body.sampling_params.repetition_detection", &p->sampling.s, fault) ||
        !openai_thinking_budget(g, f.thinking_budget, fault))
        return false;
    p->keep_special = !f.skip_special, p->no_prefix_cache = f.no_prefix_cache;
    if (any && !openai_logprobs(g, "logprobs", f.logprobs, &p->sampling.s.logprobs, fault)) return false;
    if (request_value(params, "prompt_logprobs") &&
        !openai_logprobs(g, "prompt_logprobs", f.prompt_logprobs, &p->prompt_logprobs, fault))
        return false;
    if (p->stream && p->prompt_logprobs > 0)
        return request_refuse(fault, "prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`.");
    s->logprobs = any, p->n = (int32_t)f.n, p->routes_start = (int32_t)f.routes_start;
    return true;
}

static bool read(generation *g, json_t *body, request_fault *fault)
{
    generate *s = g->state;
    generation_plan *p = &g->plan;
    struct read f = {0};
    if (!request_read(body, "body", generate_fields, generate_field_count, &f, fault)) return false;
    if (!f.token_ids) return request_schema(fault, "body", "token_ids", "missing", "Field required");
    if (!f.params) return request_schema(fault, "body", "sampling_params", "missing", "Field required");
    if (json_array_size(f.token_ids) == 0) return request_refuse(fault, "token_ids", "token_ids must not be empty");
    if (!json_is_integer(json_array_get(f.token_ids, 0)))
        return request_schema(fault, "body", "token_ids", "int_type", "Input should be a valid integer");
    if (f.stream_options && !f.stream)
        return request_refuse(fault, "stream_options", "Stream options can only be defined when `stream=True`.");
    s->include_usage = json_is_true(json_object_get(f.stream_options, "include_usage"));
    s->continuous_usage = s->include_usage && json_is_true(json_object_get(f.stream_options, "continuous_usage_stats"));
    if (!openai_check_salt(f.cache_salt, fault) || !openai_read_speculation(f.speculation, p, fault)) return false;
    p->salt = f.cache_salt ? memory_string(f.cache_salt, strlen(f.cache_salt)) : NULL;
    p->model = f.model ? memory_string(f.model, strlen(f.model)) : NULL;
    p->stream = f.stream, p->priority = (int32_t)f.priority, p->no_text = true;
    p->grammar_at_once = false;
    return read_params(g, f.params, fault) && completions_read_prompt(g, f.token_ids, NULL, fault);
}

static void write_choice(json_writer *w, const generation *g, const generation_step *step)
{
    const generate *s = g->state;
    writer_object(w);
    writer_key(w, "index"), writer_integer(w, step->choice);
    openai_write_logprobs(w, g, s->logprobs && step->logprobs ? step : NULL, true);
    writer_key(w, "finish_reason"), writer_text(w, step->finish_name);
    openai_write_ids(w, "token_ids", step->ids, step->id_count);
    if (!g->plan.stream) openai_write_routes(w, g, step);
    writer_end(w);
}

static void write_head(json_writer *w, const generation *g)
{
    writer_object(w);
    writer_key(w, "request_id"), writer_text(w, g->id);
    writer_key(w, "model"), writer_text(w, g->model);
    writer_key(w, "created"), writer_integer(w, g->created);
    writer_key(w, "choices");
    writer_array(w);
}

static void begin(generation *g)
{
    generate *s = g->state;
    s->w = (json_writer){.out = &s->out};
    if (!g->plan.stream)
        write_head(&s->w, g);
    else if (g->x)
        http_stream_begin(g->x);
}

static void step(generation *g, const generation_step *what)
{
    generate *s = g->state;
    if (!g->plan.stream) {
        write_choice(&s->w, g, what);
        return;
    }
    buffer event = {0};
    json_writer w = {.out = &event};
    write_head(&w, g);
    write_choice(&w, g, what);
    writer_end(&w);
    if (s->continuous_usage) openai_write_usage(&w, g, what->choice, false);
    writer_end(&w);
    openai_send(g, &event);
}

static void end(generation *g)
{
    generate *s = g->state;
    json_writer *w = &s->w;
    if (g->plan.stream && s->include_usage) {
        write_head(w, g);
        writer_end(w);
        openai_write_usage(w, g, -1, true);
        writer_end(w);
        http_stream_event(g->x, s->out.data, s->out.length);
    }
    if (g->plan.stream) {
        http_stream_event(g->x, "[DONE]", 6);
        http_stream_end(g->x);
    } else {
        writer_end(w);
        openai_write_usage(w, g, -1, true);
        openai_write_prompt_logprobs(w, g, 0);
        writer_key(w, "kv_transfer_params"), writer_null(w);
        writer_end(w);
        http_reply_json(g->x, 200, &s->out);
    }
    g->x = NULL;
}

static void release(generation *g)
{
    generate *s = g->state;
    buffer_free(&s->out);
}

static const generation_dialect dialect = {.prefix = "",
                                           .state_size = sizeof(generate),
                                           .read = read,
                                           .begin = begin,
                                           .step = step,
                                           .end = end,
                                           .fail = generation_fail,
                                           .release = release};

void generate_handle(void *user, http_exchange *x)
{
    generation_start(user, &dialect, x);
}
