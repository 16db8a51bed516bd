/* The life of a call: from its body over a worker thread into the engine, and its end. */
#include "server/generation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "model/model.h"
#include "server/dialect_fields.h"
#include "server/generation_given.h"
#include "server/generation_inside.h"
#include "server/request_log.h"

enum { REFUSALS_SAID = 10 /* a second */, MOST_CHOICES = 16384 /* of a call */ };

void generation_random_id(char out[33])
{
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)random_seed(), (unsigned long long)random_seed());
}

bool generation_is_eos(const generation_room *room, int32_t id)
{
    const model_generation *g = model_generation_config(room->model);
    for (int i = 0; i < g->eos_count; i++)
        if (g->eos[i] == id) return true;
    return false;
}

/* ---- Memory ----------------------------------------------------------------------------------------------------- */

static void free_prompts(generation *g)
{
    for (size_t i = 0; g->prompts && i < g->prompt_count; i++) hy_ids_free(&g->prompts[i]);
    free(g->prompts);
    g->prompts = NULL;
}

/* What is of no use once the engine has its copies: thousands may wait, each with megabytes that nobody reads again. */
static void free_input(generation *g)
{
    generation_plan *p = &g->plan;
    generation_inside *in = g->inside;
    free(in->body);
    in->body = NULL;
    json_decref(in->json);
    json_decref(p->messages);
    json_decref(p->kwargs);
    json_decref(p->effort);
    in->json = p->messages = p->kwargs = p->effort = NULL;
    free(p->chat_template);
    p->chat_template = NULL;
    for (size_t i = 0; i < p->prompt_count; i++) hy_ids_free(&p->prompts[i]);
    free(p->prompts);
    p->prompts = NULL, p->prompt_count = 0;
    int32_t max_tokens = p->sampling.s.max_tokens;
    int64_t asked = p->sampling.max_tokens;
    request_sampling_free(&p->sampling);
    p->sampling.s.max_tokens = max_tokens, p->sampling.max_tokens = asked;
    request_grammar_free(&p->grammar);
    for (size_t i = 0; i < p->given_count && p->given; i++) hy_ids_free(&p->given[i].ids), free(p->given[i].logprobs);
    free(p->given);
    p->given = NULL;
}

static void free_choice(choice *c)
{
    hy_request_close(c->request);
    text_answer_close(c->answer);
    for (mailbox *m = c->box; m < c->box + 2; m++) {
        buffer_free(&m->text), buffer_free(&m->ids), buffer_free(&m->logprobs);
        free(m->stop_string);
        free(m->error);
    }
    buffer *all[] = {&c->text, &c->parts, &c->plain, &c->ids, &c->logprobs};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) buffer_free(all[i]);
    free(c->stop_string);
}

/* On the closer's thread: the engine may need the time of a step until it lets go. */
static void free_generation(void *user)
{
    generation *g = user;
    generation_inside *in = g->inside;
    generation_search_close(g);
    for (int i = 0; in->choice && i < g->choices; i++) free_choice(&in->choice[i]);
    free(in->choice);
    free_input(g);
    free_prompts(g);
    json_decref(g->plan.tools.list);
    json_decref(g->plan.given_prompt_logprobs);
    json_decref(g->plan.given_transfer);
    free(g->plan.salt);
    free((void *)g->plan.model);
    pthread_mutex_destroy(&in->lock);
    free(in);
    free(g->state);
    free(g);
}

/* ---- Faults ----------------------------------------------------------------------------------------------------- */

void generation_reply_fault(http_exchange *x, const request_fault *f)
{
    char seconds[16];
    snprintf(seconds, sizeof seconds, "%d", f->retry_after);
    if (f->retry_after > 0) http_reply_header(x, "Retry-After", seconds);
    if (f->no_retry) http_reply_header(x, "x-should-retry", "false");
    http_reply_error(x, f->status, f->type, f->param[0] ? f->param : NULL, f->suffix, f->message);
}

void generation_fail(generation *g, const request_fault *f)
{
    if (!g->x) return;
    if (!g->begun || !g->plan.stream) {
        generation_reply_fault(g->x, f);
    } else {
        buffer event = {0};
        http_write_error(&event, f->status, f->type, f->param[0] ? f->param : NULL, f->suffix, f->message);
        if (buffer_ok(&event)) http_stream_event(g->x, event.data, event.length);
        buffer_free(&event);
        http_stream_event(g->x, "[DONE]", 6);
        http_stream_end(g->x);
    }
    g->x = NULL;
}

/* A flood of requests that are refused is no flood of lines. */
static void log_refusal(generation *g)
{
    generation_room *room = g->room;
    const request_fault *f = &g->inside->fault;
    char more[48] = "";
    double now = clock_seconds();
    if (now >= room->refusals_since + 1) room->refusals_since = now, room->refusals_said = 0;
    if (room->refusals_said == REFUSALS_SAID) {
        room->refusals_held++;
        return;
    }
    room->refusals_said++;
    if (room->refusals_held) snprintf(more, sizeof more, " (and %d more before it)", room->refusals_held);
    room->refusals_held = 0;
    log_line(HY_LOG_INFO, "%s: refused with %d%s: %s", g->id, f->status, more, f->message);
}

/* ---- The end ---------------------------------------------------------------------------------------------------- */

/* Beside the access line only where requests are logged. */
static void log_answer(const generation *g)
{
    const choice *c = g->inside->choice;
    static const char *const names[] = {"running", "stop", "length", "abort", "error", "repetition"};
    const char *miss = c->result.reuse.miss;
    hy_log_level level = g->room->options->log_requests ? HY_LOG_INFO : HY_LOG_DEBUG;
    size_t made = 0;
    if (!log_wants(level)) return;
    for (int i = 0; i < g->choices; i++) made += g->inside->choice[i].completion;
    log_line(level, "%s: %zu prompt tokens, %d of them cached%s%s%s, %zu generated, %s, seed %lld", g->id,
             c->result.prompt_count, c->result.reuse.tokens, *miss ? " (miss: " : "", miss, *miss ? ")" : "", made,
             names[c->finish], (long long)c->result.seed);
}

void generation_over(generation *g)
{
    generation_room *room = g->room;
    generation_inside *in = g->inside;
    if (in->failed && !in->submitted)
        log_refusal(g);
    else if (in->submitted)
        log_answer(g);
    if (g->dialect->release) g->dialect->release(g);
    if (in->previous)
        in->previous->inside->next = in->next;
    else
        room->first = in->next;
    if (in->next) in->next->inside->previous = in->previous;
    room->running--;
    if (!work_give(room->closer, free_generation, g)) free_generation(g);
    if (room->stopping && !room->first) http_stop(room->http);
}

static void work_on(void *generation);

static void let_go(generation *g)
{
    if (!g->inside->held) return;
    g->inside->held = false;
    g->room->held--;
    if (!work_give(g->room->work, work_on, g)) work_on(g);
}

void generation_hold(generation_room *room, bool hold)
{
    room->paused = hold;
    for (generation *g = room->first; g && !hold; g = g->inside->next) let_go(g);
}

void generation_cancel(generation *g)
{
    generation_inside *in = g->inside;
    atomic_store(&in->cancelled, true);
    let_go(g);              /* the worker answers it */
    if (!in->ready) return; /* the worker may be submitting: it, or `prepared`, sees the flag */
    for (int i = 0; i < in->submitted; i++) hy_request_cancel(in->choice[i].request);
    generation_search_cancel(g);
}

void generation_cancel_all(generation_room *room)
{
    for (generation *g = room->first; g; g = g->inside->next) generation_cancel(g);
}

bool generation_cancel_id(generation_room *room, const char *id)
{
    for (generation *g = room->first; g; g = g->inside->next) {
        size_t prefix = strlen(g->dialect->prefix);
        if (!g->inside->ready || (strcmp(g->id, id) != 0 && strcmp(g->id + prefix, id) != 0)) continue;
        generation_cancel(g);
        return true;
    }
    return false;
}

/* ---- Usage ------------------------------------------------------------------------------------------------------ */

generation_usage generation_usage_of(const generation *g, int index)
{
    generation_usage u = {0};
    const generation_inside *in = g->inside;
    if (!in->choice) return u;
    int end = index >= 0 ? index + 1 : in->submitted;
    for (int i = index >= 0 ? index : 0; i < end; i++) {
        const choice *c = &in->choice[i];
        if (index >= 0 || i % g->plan.n == 0) u.prompt_tokens += c->result.prompt_count;
        u.completion_tokens += c->completion;
        u.reasoning_tokens += c->thought;
        u.draft_rounds += c->result.draft_rounds;
        u.drafts += c->result.drafts, u.drafts_accepted += c->result.drafts_accepted;
    }
    /* A prompt of which nothing is known to have been there or not was never looked at. */
    const choice *first = &in->choice[index >= 0 ? index : 0];
    u.reuse = first->result.reuse;
    u.reuse_known = u.reuse.tokens > 0 || u.reuse.miss[0];
    return u;
}

const int32_t *generation_prompt_ids(const generation *g, size_t prompt, size_t *count)
{
    const choice *c = &g->inside->choice[prompt * (size_t)g->plan.n];
    *count = c->result.prompt_ids ? c->result.prompt_count : 0;
    return c->result.prompt_ids;
}

const hy_logprob *generation_prompt_logprobs(const generation *g, size_t prompt, size_t *stride, const int32_t **ranks)
{
    const hy_result *r = &g->inside->choice[prompt * (size_t)g->plan.n].result;
    *stride = r->prompt_logprobs_per_token;
    if (ranks) *ranks = r->prompt_ranks;
    return r->prompt_logprobs;
}

generation_times generation_times_of(const generation *g)
{
    const generation_inside *in = g->inside;
    double now = clock_seconds();
    generation_times t = {.total_s = now - in->arrived};
    if (in->choice) t.queue_s = in->choice[0].result.queue_s, t.generation_s = in->choice[0].result.decode_s;
    t.first_token_s = in->first_token > 0 ? in->first_token - in->arrived : 0;
    return t;
}

/* ---- On the worker: the prompts --------------------------------------------------------------------------------- */

bool generation_check_model(const generation_room *room, const char *model, const char **served, request_fault *fault)
{
    *served = room->names[0];
    if (!model || !*model) return true;
    for (size_t i = 0; i < room->name_count; i++) {
        if (strcmp(room->names[i], model) != 0) continue;
        *served = room->names[i];
        return true;
    }
    const char *given = room->options->given_name;
    if (given && strcmp(given, model) == 0) return true;
    *fault = (request_fault){.status = 404, .type = "NotFoundError", .param = "model"};
    snprintf(fault->message, sizeof fault->message, "The model `%.200s` does not exist.", model);
    return false;
}

static json_t *template_variables(const generation *g)
{
    const json_t *defaults = g->room->options->template_kwargs;
    json_t *kwargs = defaults ? json_deep_copy(defaults) : json_object();
    json_t *own = g->plan.kwargs ? json_copy(g->plan.kwargs) : NULL;
    if (!g->plan.chat_template)
        dialect_plain_switches(g->room->model, own), dialect_plain_switches(g->room->model, kwargs);
    json_object_update(kwargs, own);
    json_decref(own);
    if (g->plan.effort) json_object_set(kwargs, "reasoning_effort", g->plan.effort);
    return kwargs;
}

static bool render(generation *g, request_fault *fault)
{
    const generation_plan *p = &g->plan;
    json_t *variables = template_variables(g);
    const json_t *tools = p->drop_tools ? NULL : p->tools.list;
    size_t count = p->batch ? json_array_size(p->messages) : 1;
    hy_error err = {.status = HY_FAILED, .message = "out of memory"};
    g->prompts = calloc(count + 1, sizeof *g->prompts);
    bool ok = variables && g->prompts;
    if (g->prompts) g->prompt_count = count;
    for (size_t i = 0; ok && i < count; i++) {
        const json_t *messages = p->batch ? json_array_get(p->messages, i) : p->messages;
        if (!p->chat_template && !dialect_known_words(g->room->model, messages, variables, fault)) {
            json_decref(variables);
            return false;
        }
        ok = model_render(g->room->model, p->chat_template, messages, tools, variables, &g->prompts[i], &err) == HY_OK;
    }
    json_decref(variables);
    return ok || request_failed(fault, NULL, &err);
}

static void truncate_prompt(generation *g, hy_ids *ids)
{
    int64_t most = g->plan.truncate, limit = model_max_len(g->room->model);
    int64_t answer = g->plan.sampling.s.max_tokens > 0 ? g->plan.sampling.s.max_tokens : 1;
    if (most == 0) return;
    if (most < 0) most = limit > answer ? limit - answer : 1;
    if ((int64_t)ids->count <= most) return;
    size_t cut = ids->count - (size_t)most;
    if (!g->plan.truncate_right) memmove(ids->data, ids->data + cut, (size_t)most * sizeof *ids->data);
    ids->count = (size_t)most;
}

static bool check_length(generation *g, const hy_ids *ids, request_fault *fault)
{
    long long limit = model_max_len(g->room->model), prompt = (long long)ids->count;
    long long want = g->plan.sampling.s.max_tokens, made = want ? want : 1;
    if (g->plan.no_generation || g->plan.given_count) return true;
    if (prompt == 0) return request_refuse(fault, "prompt", "The decoder prompt cannot be empty");
    if (want > limit)
        return request_refuse(fault, "max_tokens",
                              "max_tokens is too large: %lld. This model's maximum context length is %lld tokens and "
                              "your request has %lld input tokens (%lld > %lld - %lld).",
                              want, limit, prompt, want, limit, prompt);
    if (prompt + made <= limit) return true;
    return request_refuse(
        fault, "input_tokens",
        "This model's maximum context length is %lld tokens. However, you requested %lld output tokens and your "
        "prompt contains %lld input tokens, for a total of %lld tokens. Please reduce the length of the input prompt "
        "or the number of requested output tokens.",
        limit, made, prompt, prompt + made);
}

static bool make_prompts(generation *g, request_fault *fault)
{
    if (g->plan.messages) {
        if (!render(g, fault)) return false;
    } else {
        g->prompts = g->plan.prompts, g->prompt_count = g->plan.prompt_count;
        g->plan.prompts = NULL, g->plan.prompt_count = 0;
    }
    for (size_t i = 0; i < g->prompt_count; i++) {
        truncate_prompt(g, &g->prompts[i]);
        if (!check_length(g, &g->prompts[i], fault)) return false;
    }
    return true;
}

/* ---- On the worker: the engine ---------------------------------------------------------------------------------- */

static bool check_plan(generation *g, request_fault *fault)
{
    const server_options *o = g->room->options;
    generation_plan *p = &g->plan;
    const request_tools *t = &p->tools;
    if (p->no_generation || p->given_count) return true;
    if (p->sampling.s.logprob_id_count > 0 && p->sampling.s.logprobs < 0)
        return request_refuse(fault, "logprob_token_ids", "when using `logprob_token_ids`, `logprobs` must be set.");
    if (p->priority != 0 && !o->priority)
        return request_refuse(fault, "priority",
                              "priority needs a server that was started with --scheduling-policy priority");
    if (t->mode == REQUEST_TOOLS_AUTO && !(o->auto_tools && o->tool_parser))
        return request_refuse(fault, NULL,
                              "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be "
                              "set");
    if ((t->mode == REQUEST_TOOLS_REQUIRED || t->mode == REQUEST_TOOLS_NAMED) && !o->tool_parser)
        return request_refuse(fault, NULL, "tool_choice=\"%s\" requires --tool-call-parser to be set",
                              t->mode == REQUEST_TOOLS_NAMED ? t->name : "required");
    if (p->n > 1 && p->sampling.s.temperature < 1e-5f && !p->beam_search)
        return request_refuse(fault, "n", "n must be 1 when using greedy sampling, got %d.", p->n);
    if ((t->mode == REQUEST_TOOLS_REQUIRED || t->mode == REQUEST_TOOLS_NAMED) && p->grammar.any)
        return request_refuse(fault, "tool_choice", "a forced tool call and a response format exclude each other");
    if (p->beam_search && (t->mode == REQUEST_TOOLS_REQUIRED || t->mode == REQUEST_TOOLS_NAMED))
        return request_refuse(fault, "tool_choice", "a forced tool call cannot be used with beam search");
    if (p->beam_search && p->sampling.s.limit_thinking)
        return request_refuse(fault, "thinking_token_budget", "thinking_token_budget cannot be used with beam search");
    if (p->beam_search && p->prompt_logprobs >= 0)
        return request_refuse(fault, "echo", "log-probabilities of the prompt cannot be told with beam search");
    if (o->exclude_tools_when_none && t->mode == REQUEST_TOOLS_NONE) p->drop_tools = true;
    return true;
}

/* A forced call is a grammar of calls. */
static bool tools_grammar(generation_plan *p, request_fault *fault)
{
    if (p->tools.mode != REQUEST_TOOLS_REQUIRED && p->tools.mode != REQUEST_TOOLS_NAMED) return true;
    bool named = p->tools.mode == REQUEST_TOOLS_NAMED;
    json_t *o = json_pack("{sOss?sb}", "tools", p->tools.list, "name", named ? p->tools.name : NULL, "parallel",
                          p->tools.parallel && !named);
    char *source = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (!source) return request_failed(fault, NULL, &(hy_error){.status = HY_FAILED, .message = "out of memory"});
    p->grammar = (request_grammar){.any = true, .kind = HY_GRAMMAR_TOOLS, .source = source, .length = strlen(source)};
    return true;
}

/* The plan's grammar is what will be compiled. */
static bool settle_grammar(generation *g, request_fault *fault)
{
    const server_options *o = g->room->options;
    request_grammar *wanted = &g->plan.grammar;
    if (!tools_grammar(&g->plan, fault)) return false;
    wanted->options.compact = wanted->options.compact || o->compact_json;
    wanted->options.closed = wanted->options.closed || o->closed_objects;
    return true;
}

static bool compile(generation *g, const hy_grammar **grammar, request_fault *fault)
{
    generation_plan *p = &g->plan;
    if (!p->grammar.any) return true;
    hy_error err = {0};
    const server_options *o = g->room->options;
    hy_status status = grammars_take(g->room->grammars, &p->grammar, grammar, &err);
    if (status == HY_OK) {
        p->sampling.s.grammar = *grammar;
        p->sampling.s.grammar_at_once = p->grammar_at_once || o->grammar_at_once || !p->parse || !o->split_reasoning;
        return true;
    }
    const char *form = p->grammar.outputs ? "structured_outputs" : "response_format";
    request_failed(fault, p->grammar.kind == HY_GRAMMAR_TOOLS ? "tools" : form, &err);
    return false;
}

static bool open_choice(choice *c, int32_t last, request_fault *fault)
{
    generation *g = c->g;
    const generation_plan *p = &g->plan;
    text_answer_options options = {.start = text_reasoning_start_of(model_tokenizer(g->room->model), last),
                                   .split_reasoning = g->room->options->split_reasoning,
                                   .split_calls = p->tools.mode != REQUEST_TOOLS_NONE,
                                   .tools = p->tools.list,
                                   .max_calls = p->tools.parallel ? 0 : 1};
    text_reasoning_begin(&c->reasoning, options.start);
    c->box[0].stop_id = c->box[1].stop_id = -1;
    if (!p->parse || p->no_text) return true;
    c->answer = text_answer_open(&options);
    return c->answer || request_failed(fault, NULL, &(hy_error){.status = HY_FAILED, .message = "out of memory"});
}

/* The engine's names of parameters in those of the protocol. */
static const char *field_of(const hy_error *err)
{
    static const char *const names[][2] = {{"allowed_ids", "allowed_token_ids"},
                                           {"stop_ids", "stop_token_ids"},
                                           {"bias", "logit_bias"},
                                           {"deadline", "hayate_deadline_s"},
                                           {"draft_method", "speculation"},
                                           {"logprob_ids", "logprob_token_ids"},
                                           {"thinking_tokens", "thinking_token_budget"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i][0], err->where) == 0) return names[i][1];
    return err->where[0] && !strchr(err->where, '/') ? err->where : NULL;
}

/* The salt of the request; behind a reset of the cache with the number of it in front, so that nothing older is found.
 */
static const char *make_salt(const generation *g, buffer *memory)
{
    int epoch = atomic_load(&g->room->cache_epoch);
    if (epoch == 0) return g->plan.salt;
    buffer_printf(memory, "%d\n%s", epoch, g->plan.salt ? g->plan.salt : "");
    return memory->data;
}

/* All answers wait in the engine's queue before the first is taken: more than it holds can never be admitted. */
static bool check_count(const generation *g, request_fault *fault)
{
    const generation_plan *p = &g->plan;
    const int waiting = g->room->options->max_waiting > 0 ? g->room->options->max_waiting : 4096;
    if (g->prompt_count == 0 || g->prompt_count > MOST_CHOICES / (size_t)p->n)
        return request_refuse(fault, "n", "%zu prompts with %d answers each are more than %d answers", g->prompt_count,
                              p->n, MOST_CHOICES);
    if (g->prompt_count * (size_t)p->n <= (size_t)waiting) return true;
    if (g->prompt_count == 1)
        return request_refuse(fault, "n", "n asks for %d answers at once, and at most %d may wait (--max-waiting)",
                              p->n, waiting);
    return request_refuse(fault, p->n > 1 ? "n" : "prompt",
                          "%zu prompts with n=%d ask for %zu answers at once, and at most %d may wait (--max-waiting)",
                          g->prompt_count, p->n, g->prompt_count * (size_t)p->n, waiting);
}

/*
 * Log-probabilities of the whole vocabulary are megabytes a token. What of them is kept until the end (all of a whole
 * answer, those of a prompt) is bounded; with the twenty that everybody may ask for the model's length bounds it.
 */
static bool check_logprobs(const generation *g, request_fault *fault)
{
    enum { USUAL = 20, MOST = 4 << 20 };
    const generation_plan *p = &g->plan;
    const int64_t room = model_max_len(g->room->model);
    int64_t best = p->sampling.s.logprobs, of_prompt = p->prompt_logprobs, sum = 0;
    if (best <= USUAL && of_prompt <= USUAL) return true;
    for (size_t i = 0; i < g->prompt_count; i++) {
        int64_t length = (int64_t)g->prompts[i].count, made = p->sampling.s.max_tokens;
        if (made == 0 || made > room - length) made = room - length;
        if (best > USUAL && !p->stream) sum += p->n * made * (1 + best);
        if (of_prompt > USUAL) sum += length * (1 + of_prompt);
        if (sum > MOST) break;
    }
    if (sum <= MOST) return true;
    return request_refuse(
        fault, best > USUAL && !p->stream ? "logprobs" : "prompt_logprobs",
        "this asks for up to %lld log-probabilities, and at most %d are kept for one answer: ask for fewer "
        "at each place, for fewer tokens (max_tokens)%s",
        (long long)sum, MOST, p->stream ? "" : ", or for a stream");
}

static bool submit_all(generation *g, const char *salt, request_fault *fault)
{
    generation_inside *in = g->inside;
    const generation_plan *p = &g->plan;
    int64_t usual = g->room->options->max_new_tokens, seed = p->sampling.s.seed;
    if (!p->given_count && (!check_count(g, fault) || !check_logprobs(g, fault))) return false;
    g->keep_prompts |= p->beam_search;
    g->choices = (int)g->prompt_count * p->n;
    in->choice = calloc((size_t)g->choices, sizeof *in->choice);
    if (!in->choice) return request_failed(fault, NULL, &(hy_error){.status = HY_FAILED, .message = "out of memory"});
    for (int i = 0; i < g->choices; i++) {
        choice *c = &in->choice[i];
        const hy_ids *ids = &g->prompts[i / p->n];
        *c = (choice){.g = g, .index = i, .stop_id = -1};
        c->result.prompt_count = ids->count;
        if (!open_choice(c, ids->data[ids->count - 1], fault)) return false;
        if (p->beam_search || p->given_count) continue;
        hy_request_options options = hy_request_defaults(g->room->model);
        options.prompt_ids = ids->data, options.prompt_count = ids->count;
        options.sampling = p->sampling.s;
        options.choice = i % p->n;
        /* Drawn here, once for each prompt: its answers differ by their number. */
        if (seed == -1 && i % p->n == 0) in->seed = random_seed() & INT64_MAX;
        options.sampling.seed = seed == -1 ? in->seed : seed;
        /* A prompt is scored once, with its first answer. */
        options.sampling.score_prompt = p->prompt_logprobs >= 0 && i % p->n == 0;
        options.sampling.prompt_logprobs = p->prompt_logprobs >= 0 ? p->prompt_logprobs : 0;
        options.routes = g->room->options->routed_experts && !p->stream;
        options.usual_tokens = usual < INT32_MAX ? (int32_t)usual : INT32_MAX;
        options.priority = p->priority, options.deadline_s = p->deadline_s;
        options.waited_s = clock_seconds() - in->arrived;
        options.drafts = p->drafts, options.draft_method = p->draft_method;
        options.cache_salt = salt;
        options.no_prefix_cache = p->no_prefix_cache;
        options.rendered = p->rendered;
        options.keep_special = p->keep_special;
        options.on_event = generation_on_event, options.user = c;
        hy_error err = {0};
        if (hy_engine_submit(g->room->engine, &options, &c->request, &err) != HY_OK) {
            request_failed(fault, err.status == HY_BAD_INPUT ? field_of(&err) : NULL, &err);
            if (err.status == HY_FAILED) fault->status = 503, fault->type = "ServiceUnavailableError";
            return false;
        }
        in->submitted = i + 1;
    }
    if (p->given_count) generation_give(g);
    return !p->beam_search || generation_search(g, salt, fault);
}

static bool submit(generation *g, request_fault *fault)
{
    buffer memory = {0};
    bool ok = submit_all(g, make_salt(g, &memory), fault);
    buffer_free(&memory);
    return ok;
}

/* What was left, by who gave up, is not worked on. */
static bool still_wanted(const generation *g, request_fault *fault)
{
    if (!atomic_load(&g->inside->cancelled)) return true;
    *fault = (request_fault){.status = 503, .type = "ServiceUnavailableError", .message = "The request was aborted"};
    return false;
}

/* What is asked for and the prompts. *more: they are to be submitted, with the plan's grammar. */
static bool read_asked(generation *g, bool *more, request_fault *fault)
{
    generation_inside *in = g->inside;
    if (!in->json && !(in->json = request_parse(in->body, in->body_length, fault))) return false;
    const char *own = json_string_value(json_object_get(in->json, "request_id"));
    if (!in->named && own && *own) snprintf(g->id, sizeof g->id, "%s%.60s", g->dialect->prefix, own);
    request_warn_of_removed(in->json);
    if (!g->dialect->read(g, in->json, fault)) return false;
    if (!generation_check_model(g->room, g->plan.model, &g->model, fault) || !check_plan(g, fault)) return false;
    if (!still_wanted(g, fault)) return false;
    g->plan.rendered = g->plan.messages != NULL;
    if (!make_prompts(g, fault)) return false;
    if (g->plan.no_generation) return true;
    if (g->plan.given_count) return submit_all(g, NULL, fault);
    *more = true;
    return settle_grammar(g, fault);
}

static bool submit_asked(generation *g, request_fault *fault)
{
    const hy_grammar *grammar = NULL;
    bool ok = still_wanted(g, fault) && compile(g, &grammar, fault) && submit(g, fault);
    grammars_give(g->room->grammars, grammar);
    return ok;
}

/* ---- On the HTTP thread ----------------------------------------------------------------------------------------- */

static void prepared(void *user)
{
    generation *g = user;
    generation_inside *in = g->inside;
    in->ready = true;
    if (in->failed || atomic_load(&in->cancelled)) generation_cancel(g);
    if (!in->failed && g->dialect->prepared) g->dialect->prepared(g);
    if (!g->keep_prompts) free_prompts(g);
    if (g->plan.no_generation && !in->failed) {
        generation_over(g);
        return;
    }
    /* Not at once: a turn that the planner has posted already must not come after the call is over. */
    pthread_mutex_lock(&in->lock);
    bool post = !in->posted;
    in->posted = true;
    pthread_mutex_unlock(&in->lock);
    if (post) http_post(g->room->http, generation_pump, g);
}

static void worked(generation *g, bool ok)
{
    generation_inside *in = g->inside;
    in->failed = !ok;
    if (in->submitted && ok && g->room->options->log_requests) request_log_asked(g);
    free_input(g);
    http_post(g->room->http, prepared, g);
}

static void compile_on(void *user)
{
    generation *g = user;
    worked(g, submit_asked(g, &g->inside->fault));
}

/* A grammar can take seconds: who asks for a new one waits behind others who do, everybody else does not. */
static void work_on(void *user)
{
    generation *g = user;
    const generation_room *room = g->room;
    request_fault *fault = &g->inside->fault;
    bool more = false, ok = read_asked(g, &more, fault);
    if (ok && more && g->plan.grammar.any && !grammars_keeps(room->grammars, &g->plan.grammar) &&
        work_give(room->compilers, compile_on, g))
        return;
    worked(g, ok && (!more || submit_asked(g, fault)));
}

static void client_gone(void *user)
{
    generation *g = user;
    if (!g->inside->ready || !g->plan.background) generation_cancel(g);
}

static bool json_content(http_exchange *x)
{
    const char *type = http_header(x, "Content-Type");
    return type && strncasecmp(type, "application/json", 16) == 0;
}

/* This server is one rank: a router that pins a request to another has the wrong address. */
static bool check_rank(http_exchange *x, request_fault *fault)
{
    const char *rank = http_header(x, "X-data-parallel-rank");
    if (!rank || strcmp(rank, "0") == 0) return true;
    return request_refuse(fault, "X-data-parallel-rank", "data_parallel_rank %.40s is out of range [0, 1).", rank);
}

static void link_in(generation *g)
{
    generation_room *room = g->room;
    g->inside->next = room->first;
    if (room->first) room->first->inside->previous = g;
    room->first = g;
    room->running++;
}

static generation *new_generation(generation_room *room, const generation_dialect *d, http_exchange *x)
{
    generation *g = calloc(1, sizeof *g);
    generation_inside *in = calloc(1, sizeof *in);
    void *state = calloc(1, d->state_size ? d->state_size : 1);
    if (!g || !in || !state) {
        free(g), free(in), free(state);
        return NULL;
    }
    const char *given = http_header(x, "X-Request-Id");
    char random[33];
    generation_random_id(random);
    *g = (generation){.room = room, .dialect = d, .state = state, .x = x, .inside = in, .model = room->names[0]};
    in->named = given && *given;
    snprintf(g->id, sizeof g->id, "%s%.60s", d->prefix, in->named ? given : random);
    g->created = (int64_t)time(NULL);
    g->plan = (generation_plan){.n = 1, .interval = 1, .prompt_logprobs = -1};
    in->arrived = clock_seconds();
    pthread_mutex_init(&in->lock, NULL);
    atomic_init(&in->cancelled, false);
    return g;
}

/* Before anything of the call exists: in the dialect's own words. */
static void refuse_early(generation_room *room, const generation_dialect *d, http_exchange *x,
                         const request_fault *fault)
{
    generation g = {.room = room, .dialect = d, .x = x};
    d->fail(&g, fault);
}

static void start(generation_room *room, const generation_dialect *d, http_exchange *x, json_t *json)
{
    request_fault fault = {.status = 503, .type = "ServiceUnavailableError", .message = "The server is shutting down"};
    bool refused = room->stopping;
    if (!refused && !json && !json_content(x))
        refused = !request_schema(&fault, "body", "", "model_attributes_type",
                                  "The body must be JSON with Content-Type application/json");
    if (!refused) refused = !check_rank(x, &fault);
    generation *g = refused ? NULL : new_generation(room, d, x);
    if (!g) {
        if (!refused) request_failed(&fault, NULL, &(hy_error){.status = HY_FAILED, .message = "out of memory"});
        json_decref(json);
        refuse_early(room, d, x, &fault);
        return;
    }
    generation_inside *in = g->inside;
    size_t length;
    const char *body = json ? "" : http_body(x, &length);
    in->json = json;
    in->body = json ? NULL : memory_string(body, length);
    in->body_length = json ? 0 : length;
    http_drop_body(x);
    link_in(g);
    http_on_gone(x, client_gone, g);
    if (room->paused && (in->body || json)) {
        in->held = true;
        room->held++;
        return;
    }
    if ((in->body || json) && work_give(room->work, work_on, g)) return;
    in->failed = true;
    request_failed(&in->fault, NULL, &(hy_error){.status = HY_FAILED, .message = "out of memory"});
    prepared(g);
}

void generation_start(generation_room *room, const generation_dialect *dialect, http_exchange *x)
{
    start(room, dialect, x, NULL);
}

void generation_start_with(generation_room *room, const generation_dialect *dialect, http_exchange *x, json_t *body)
{
    start(room, dialect, x, body);
}
