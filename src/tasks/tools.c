/*
 * Tool calls: which of the given tools, with which arguments, and what to tell of the result.
 *
 * Part of the conversations rename all tools and arguments, so that their schemas have to be read. A turn is a request
 * with its call, result and answer; two requests with two calls at once; one that lacks an argument, which the model
 * asks for; one that no tool serves; one that needs none. A result may be an error.
 */
#include "tasks/tools.h"

#include <stdlib.h>
#include <string.h>

#include "tasks/tools_request.h"
#include "tasks/words.h"
#include "text/tool_calls.h"

enum { CALL, TWO, FAILED, MISSING, NO_TOOL, PLAIN };

static const char *const families[] = {"call", "two calls", "failed", "missing", "no tool", "plain", NULL};

typedef struct talk {
    task *t;
    task_split split;
    draw *d;
    offer offers[OFFERS];
    int count;
    bool renamed;
} talk;

/* ---- Messages -------------------------------------------------------------------------------------------------- */

/* About what text adds to the tokens of a conversation. */
static void count_text(talk *k, size_t length)
{
    k->t->tokens += length * 10 / 36 + 6;
}

static json_t *expect(const char *what, json_t *value)
{
    return task_json(json_pack("{s:o}", what, value));
}

static bool mode(const talk *k, const char *name)
{
    return !strcmp(k->t->thinking, name);
}

/* A thought: `always` is worth it when the model may choose, `enabled` is for when it must have one. */
static const char *thought(const talk *k, const char *always, const char *enabled)
{
    if (mode(k, "disabled")) return NULL;
    return always ? always : mode(k, "enabled") ? enabled : NULL;
}

static void say(talk *k, const char *reasoning, const char *content, json_t *expected)
{
    task_answer(k->t, reasoning, content);
    task_ask(k->t, 0, expected);
}

static void call(talk *k, const char *reasoning, json_t *calls)
{
    json_t *message = task_json(json_pack("{s:s, s:s}", "role", "assistant", "content", "")),
           *list = task_json(json_array()), *one;
    size_t i;
    if (reasoning) json_object_set_new(message, "reasoning", task_string(reasoning));
    json_array_foreach(calls, i, one)
    {
        json_array_append_new(list, task_json(json_pack("{s:s, s:O}", "type", "function", "function", one)));
        count_text(k, 120);
    }
    json_object_set_new(message, "tool_calls", list);
    task_append(k->t, message);
    task_ask(k->t, 0, expect("calls", calls));
}

static void result(talk *k, const char *text)
{
    task_append(k->t, task_json(json_pack("{s:s, s:s}", "role", "tool", "content", text)));
    count_text(k, strlen(text));
}

/* ---- Turns ----------------------------------------------------------------------------------------------------- */

static const char *const errors[] = {
    "not found",         "timed out",     "access denied", "no connection", "not available",
    "too many requests", "server error",  "bad request",   "no permission", "out of memory",
    "try again later",   "unknown value", "limit reached", "busy",
};

/* The result of a request and what is told of it; an error sometimes. */
static void tell(talk *k, const request *r, double failure, buffer *answer, json_t *values)
{
    if (answer->length) buffer_char(answer, ' ');
    if (draw_chance(k->d, failure)) {
        const char *error = DRAW(k->d, errors);
        buffer text = {0};
        if (draw_chance(k->d, 0.5))
            buffer_printf(&text, "{\"error\": \"%s\"}", error);
        else
            buffer_printf(&text, "Error: %s", error);
        result(k, text_of(&text));
        buffer_free(&text);
        buffer_printf(answer, "That failed: %s.", error);
        json_array_append_new(values, task_string(error));
        return;
    }
    result(k, text_of(&r->result));
    buffer_string(answer, text_of(&r->answer));
    for (int i = 0; i < TOOL_RESULTS; i++)
        if (*r->told[i]) json_array_append_new(values, task_string(r->told[i]));
}

/* Call, result and answer of one or two requests. */
static void serve(talk *k, const request *requests, int count, double failure)
{
    buffer answer = {0}, line = {0};
    json_t *calls = task_json(json_array()), *values = task_json(json_array());
    for (int i = 0; i < count; i++) json_array_append_new(calls, request_call(&requests[i]));
    buffer_printf(&line, "I call %s%s%s.", requests[0].offer->name, count > 1 ? " and " : "",
                  count > 1 ? requests[1].offer->name : "");
    call(k, thought(k, count > 1 ? text_of(&line) : NULL, text_of(&line)), calls);
    for (int i = 0; i < count; i++) tell(k, &requests[i], failure, &answer, values);
    say(k, thought(k, NULL, "I have the result."), text_of(&answer), expect("values", values));
    buffer_free(&answer);
    buffer_free(&line);
}

static const offer *any_offer(talk *k)
{
    return &k->offers[draw_between(k->d, 0, k->count - 1)];
}

static bool single(talk *k, double failure)
{
    request r;
    bool found = request_draw(&r, any_offer(k), k->split, false, k->d);
    if (found) {
        task_user(k->t, text_of(&r.ask));
        serve(k, &r, 1, failure);
    }
    request_free(&r);
    return found;
}

static bool two(talk *k)
{
    static const char *const joints[] = {" ", " Also: ", " And then: ", "\n", " "};
    request r[2] = {{0}};
    bool found = request_draw(&r[0], any_offer(k), k->split, false, k->d);
    if (found && !(draw_chance(k->d, 0.5) && request_double(&r[0], &r[1], k->split, k->d))) {
        request_free(&r[1]);
        found = request_draw(&r[1], any_offer(k), k->split, false, k->d);
        /* Without a full stop nobody could tell where a text ends. */
        char last = r[0].ask.data[r[0].ask.length - 1];
        buffer_string(&r[0].ask, strchr(".?!", last) ? DRAW(k->d, joints) : "\n");
        buffer_string(&r[0].ask, text_of(&r[1].ask));
    }
    if (found) {
        task_user(k->t, text_of(&r[0].ask));
        serve(k, r, 2, 0.06);
    }
    request_free(&r[0]);
    request_free(&r[1]);
    return found;
}

/* No other tool of its kind is there, so that it is clear which one is meant. */
static bool alone(const talk *k, tool_group group, const offer *but)
{
    for (int i = 0; i < k->count; i++)
        if (&k->offers[i] != but && k->offers[i].tool->group == group) return false;
    return true;
}

static bool missing(talk *k)
{
    static const char *const gives[] = {"{v}", "It is {v}.", "{v}, please."};
    const offer *o = any_offer(k);
    if (!o->tool->vague || !alone(k, o->tool->group, o)) return false;
    request r;
    buffer line = {0}, question = {0}, given = {0};
    slots s;
    const char *noun = o->tool->arguments[0].noun;
    if (!request_draw(&r, o, k->split, true, k->d)) {
        request_free(&r);
        return false;
    }
    buffer_printf(&line, "The %s is missing.", noun);
    buffer_printf(&question, "Please tell me the %s.", noun);
    task_user(k->t, text_of(&r.ask));
    say(k, thought(k, text_of(&line), NULL), text_of(&question), expect("missing", task_string(noun)));
    slots_clear(&s);
    slots_text(&s, 'v', r.values[0].text);
    fill(&given, DRAW(k->d, gives), &s);
    task_user(k->t, text_of(&given));
    serve(k, &r, 1, 0);
    request_free(&r);
    buffer_free(&line);
    buffer_free(&question);
    buffer_free(&given);
    return true;
}

static bool no_tool(talk *k)
{
    const tool *t = &tool_table[draw_between(k->d, 0, tool_count - 1)];
    /* What searches the web is good for much. */
    if (!alone(k, GROUP_SEARCH, NULL) || !alone(k, t->group, NULL)) return false;
    offer o;
    request r;
    offer_make(&o, t, false, k->d);
    bool found = request_draw(&r, &o, k->split, false, k->d);
    if (found) {
        task_user(k->t, text_of(&r.ask));
        say(k, thought(k, "No tool does that.", NULL), "I have no tool for that.",
            expect("no tool", task_json(json_true())));
    }
    request_free(&r);
    return found;
}

/* {n} a person, {w} a word; the answer has what is asked for. */
static const struct {
    const char *question, *answer;
} plain[] = {
    {"My name is {n}.", "Hello, {n}!"},
    {"I am {n} from {c}.", "Hello, {n}!"},
    {"Say {w}.", "{w}"},
    {"Repeat: {w} {v}", "{w} {v}"},
    {"Please write the word {w}.", "{w}"},
    {"Say hello to {n}.", "Hello, {n}!"},
    {"Thank you, {w} is all I need.", "You are welcome."},
    {"I like {t}.", "That is good to hear."},
    {"I was in {c} with {n}.", "That is good to hear."},
    {"Do not do anything yet, {n}.", "All right."},
    {"Wait, I have to think about the {w}.", "All right."},
};

static void no_call(talk *k)
{
    char word[16], other[16], title[32];
    buffer question = {0}, answer = {0};
    size_t i = 0;
    slots s;
    do {
        buffer_clear(&question);
        i = (size_t)draw_between(k->d, 0, (int64_t)(sizeof plain / sizeof *plain) - 1);
        slots_clear(&s);
        slots_text(&s, 'n', draw_chance(k->d, 0.5) ? word_name(k->d) : word_title(word_made_up(k->d, word), title));
        slots_text(&s, 'w', draw_chance(k->d, 0.5) ? word_plain(k->d) : word_made_up(k->d, other));
        slots_text(&s, 'v', word_plain(k->d));
        slots_text(&s, 't', word_thing(k->d));
        slots_text(&s, 'c', word_plain(k->d));
        fill(&question, plain[i].question, &s);
    } while (draw_held_out(draw_hash(question.data, question.length)) != (k->split == TASK_HELD_OUT));
    fill(&answer, plain[i].answer, &s);
    task_user(k->t, text_of(&question));
    say(k, thought(k, NULL, "No tool is needed."), text_of(&answer), expect("say", task_string(text_of(&answer))));
    buffer_free(&question);
    buffer_free(&answer);
}

static bool turn(talk *k, int family)
{
    switch (family) {
    case CALL: return single(k, 0);
    case TWO: return two(k);
    case FAILED: return single(k, 1);
    case MISSING: return missing(k);
    case NO_TOOL: return no_tool(k);
    default: no_call(k); return true;
    }
}

/* ---- Conversations ---------------------------------------------------------------------------------------------- */

static bool offered(const talk *k, const tool *t)
{
    for (int i = 0; i < k->count; i++)
        if (k->offers[i].tool == t) return true;
    return false;
}

static bool named(const talk *k, const char *name)
{
    for (int i = 0; i < k->count; i++)
        if (!strcmp(k->offers[i].name, name)) return true;
    return false;
}

static void offer_tools(talk *k)
{
    static const int counts[] = {20, 28, 26, 16, 10};
    int count = 1 + (int)draw_weighted(k->d, counts, OFFERS);
    const tool *first = &tool_table[draw_between(k->d, 0, tool_count - 1)], *t = first;
    k->t->tools = task_json(json_array());
    while (k->count < count) {
        do offer_make(&k->offers[k->count], t, k->renamed, k->d);
        while (named(k, k->offers[k->count].name));
        k->count++;
        /* Half of the others are of its kind, as far as there are any. */
        bool alike = draw_chance(k->d, 0.5);
        for (int tries = 0; offered(k, t) || (alike && t->group != first->group && tries < 60); tries++)
            t = &tool_table[draw_between(k->d, 0, tool_count - 1)];
    }
    for (int i = count - 1; i > 0; i--) {
        int other = (int)draw_between(k->d, 0, i);
        offer swap = k->offers[i];
        k->offers[i] = k->offers[other];
        k->offers[other] = swap;
    }
    for (int i = 0; i < count; i++) {
        json_t *schema = offer_schema(&k->offers[i], k->d);
        char *text = json_dumps(schema, 0);
        count_text(k, text ? strlen(text) : 0);
        free(text);
        json_array_append_new(k->t->tools, schema);
    }
    count_text(k, 600); /* how to call them */
}

static void make(task_split split, draw *d, int length, task *t)
{
    static const char *const modes[] = {"adaptive", "disabled", "enabled"};
    static const int mode_weights[] = {70, 15, 15}, weights[] = {48, 17, 7, 24, 9, 7};
    talk k = {.t = t, .split = split, .d = d, .renamed = draw_chance(d, split == TASK_TRAIN ? 0.6 : 0.35)};
    const char *thinking = modes[draw_weighted(d, mode_weights, 3)];
    task_start(t, 0, thinking, draw_chance(d, 0.15) ? word_system(d) : NULL);
    offer_tools(&k);
    bool first = true;
    while (task_wants(t, length)) {
        int family = (int)draw_weighted(d, weights, sizeof weights / sizeof *weights);
        if (!turn(&k, family)) continue;
        if (first) t->family = family;
        first = false;
    }
}

/* ---- Marks ----------------------------------------------------------------------------------------------------- */

static const json_t *schema_of(const task *t, const char *name)
{
    size_t i;
    json_t *one;
    json_array_foreach(t->tools, i, one)
    {
        const json_t *function = json_object_get(one, "function");
        if (!strcmp(json_string_value(json_object_get(function, "name")), name))
            return json_object_get(function, "parameters");
    }
    return NULL;
}

static bool calls_fit(const task *t, const text_tool_calls *read)
{
    size_t i;
    json_t *one;
    if (read->repairs || !json_array_size(read->calls)) return false;
    json_array_foreach(read->calls, i, one)
    {
        const json_t *schema = schema_of(t, json_string_value(json_object_get(one, "name")));
        if (!schema || !schema_fits(schema, json_object_get(one, "arguments"))) return false;
    }
    return true;
}

/* The same calls in any order. */
static bool same_calls(const json_t *have, const json_t *want)
{
    bool used[8] = {false};
    size_t count = json_array_size(want), i;
    json_t *one;
    if (json_array_size(have) != count || count > 8) return false;
    json_array_foreach(have, i, one)
    {
        size_t k = 0;
        while (k < count && (used[k] || !values_equal(one, json_array_get(want, k)))) k++;
        if (k == count) return false;
        used[k] = true;
    }
    return true;
}

/* Every value, and no number that neither the question nor the reference has. */
static bool tells(const task *t, const task_turn *at, const char *content, const json_t *values)
{
    size_t i, first = at->message;
    json_t *one;
    json_array_foreach(values, i, one) if (!has_word(content, json_string_value(one))) return false;
    while (first > 0 && strcmp(task_text(t, first, "role"), "user") != 0) first--;
    const char *asked = task_text(t, first, "content"), *reference = task_text(t, at->message, "content");
    for (const char *c = content; *c;) {
        char word[64];
        size_t n = strspn(c, "0123456789");
        if (n && n < sizeof word) {
            memcpy(word, c, n);
            word[n] = 0;
            if (!strstr(asked, word) && !strstr(reference, word)) return false;
        }
        c += n ? n : 1;
    }
    return true;
}

static bool refuses(const char *content)
{
    return has_word(content, "no") || has_word(content, "not") || has_word(content, "cannot");
}

static bool mark(const task *t, size_t index, const char *reasoning, const char *content, bool *valid)
{
    const task_turn *at = &t->turns[index];
    const json_t *calls = json_object_get(at->expect, "calls"), *values = json_object_get(at->expect, "values"),
                 *missing_one = json_object_get(at->expect, "missing"), *words = json_object_get(at->expect, "say");
    text_tool_calls read;
    hy_error err = {0};
    bool right = false;
    (void)reasoning;
    hy_status s = text_tool_calls_read(content, strlen(content), t->tools, &read, &err);
    if (s == HY_OK && read.block) {
        *valid = calls_fit(t, &read);
        right = calls && same_calls(read.calls, calls);
    } else if (s == HY_OK) {
        *valid = *content && !strstr(content, TEXT_TOOL_NAMESPACE);
        if (json_array_size(values)) right = tells(t, at, content, values);
        if (missing_one) right = has_word(content, json_string_value(missing_one)) && strlen(content) < 200;
        if (words) right = strstr(content, json_string_value(words)) && strlen(content) < 200;
        if (json_object_get(at->expect, "no tool")) right = refuses(content) && has_word(content, "tool");
    }
    text_tool_calls_free(&read);
    return right;
}

const task_kind tasks_tools = {"tools", families, make, mark};
