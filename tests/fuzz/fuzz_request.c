/*
 * Any body of a request: read as a chat, as Messages and as Responses. What is accepted is a plan within its bounds,
 * what is not has one fault that can be told. The bundled model stands behind it, for what needs a tokenizer; nothing
 * is generated.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/chat.h"
#include "server/messages_request.h"
#include "server/responses_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static server_options options = {.split_reasoning = true};
static generation_room room = {.options = &options,
                               .defaults = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = -1}};

static void check(bool ok)
{
    if (!ok) abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    hy_error err;
    (void)argc, (void)argv;
    check(hy_model_open("models/m3-nano", NULL, &room.model, &err) == HY_OK); /* run from the source's folder */
    return 0;
}

static void check_fault(const request_fault *f)
{
    check(f->status == 400 || f->status == 404 || f->status == 501);
    check(f->type && *f->type && f->message[0]);
    check(memchr(f->message, 0, sizeof f->message) && memchr(f->param, 0, sizeof f->param));
}

static void check_plan(const generation_plan *p)
{
    const hy_sampling *s = &p->sampling.s;
    check(json_is_array(p->messages) && p->n >= 1 && p->interval >= 1);
    check(isfinite(s->temperature) && s->temperature >= 0 && s->top_p > 0 && s->top_p <= 1 &&
          s->repetition_penalty > 0);
    check(s->max_tokens >= 0 && s->min_tokens >= 0 && p->sampling.max_tokens >= 0);
    check(!p->grammar.source || (p->grammar.any && strlen(p->grammar.source) == p->grammar.length));
    check(p->tools.mode == REQUEST_TOOLS_NONE || json_array_size(p->tools.list) > 0);
    check(p->tools.mode != REQUEST_TOOLS_NAMED || p->tools.name[0]);
    check(!p->effort || json_is_string(p->effort));
    check(!p->kwargs || json_is_object(p->kwargs));
}

static void drop(generation_plan *p)
{
    json_decref(p->messages), json_decref(p->kwargs), json_decref(p->effort), json_decref(p->tools.list);
    for (size_t i = 0; i < p->prompt_count; i++) hy_ids_free(&p->prompts[i]);
    free(p->prompts), free(p->chat_template), free(p->salt), free((void *)p->model);
    request_sampling_free(&p->sampling);
    request_grammar_free(&p->grammar);
}

static generation begin(void)
{
    generation g = {.room = &room};
    g.plan.n = g.plan.interval = 1, g.plan.prompt_logprobs = -1;
    return g;
}

static void end(generation *g, bool ok, const request_fault *fault)
{
    if (ok)
        check_plan(&g->plan);
    else
        check_fault(fault);
    drop(&g->plan);
}

static void read_chat(json_t *body)
{
    generation g = begin();
    chat c = {0};
    request_fault fault = {0};
    g.state = &c;
    bool ok = chat_read(&g, body, &fault);
    end(&g, ok, &fault);
    free(c.echoed);
}

static void read_messages(json_t *body, messages_options how)
{
    generation g = begin();
    messages_asked asked = {0};
    openai_request common;
    request_fault fault = {0};
    bool ok =
        messages_request_read(body, how, &g.plan, &asked, &fault) && openai_read(&g, asked.fields, &common, &fault);
    if (ok) check(how.count || asked.max_tokens > 0);
    end(&g, ok, &fault);
    json_decref(asked.fields);
}

static void read_response(json_t *body, bool storing)
{
    generation g = begin();
    responses_asked asked = {0};
    openai_request common;
    request_fault fault = {0};
    bool ok = responses_request_read(body, storing, &g.plan, &asked, &fault) &&
              responses_request_turns(body, NULL, &g.plan, &asked, &fault) &&
              openai_read(&g, asked.fields, &common, &fault);
    if (ok) check(json_is_object(asked.echo) && asked.max_tokens >= 0 && (storing || !asked.store));
    end(&g, ok, &fault);
    responses_asked_free(&asked);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    request_fault fault = {0};
    json_t *body = request_parse((const char *)data, size, &fault);
    if (!body) {
        check_fault(&fault);
        return 0;
    }
    char *before = json_dumps(body, JSON_COMPACT);
    read_chat(body);
    read_messages(body, (messages_options){0});
    read_messages(body, (messages_options){.count = true, .always_thinks = true});
    read_response(body, false);
    read_response(body, true);
    char *after = json_dumps(body, JSON_COMPACT); /* none of them changes what it reads */
    check(before && after && strcmp(before, after) == 0);
    free(before), free(after);
    json_decref(body);
    return 0;
}
