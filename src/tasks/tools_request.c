#include "tasks/tools_request.h"

#include <stdio.h>
#include <string.h>

#include "tasks/words.h"

/* ---- Offers ---------------------------------------------------------------------------------------------------- */

static int arguments_of(const tool *t)
{
    int n = 0;
    while (n < TOOL_ARGUMENTS && t->arguments[n].letter) n++;
    return n;
}

/* A made-up name unlike the `count` ones before it; short, since a call writes it twice. */
static void new_name(char (*names)[TOOL_NAME], int count, draw *d)
{
    char word[16];
    for (bool taken = true; taken;) {
        while (strlen(word_made_up(d, word)) > 6) continue;
        snprintf(names[count], TOOL_NAME, "%s", word);
        taken = false;
        for (int i = 0; i < count; i++) taken = taken || !strcmp(names[i], names[count]);
    }
}

void offer_make(offer *o, const tool *t, bool renamed, draw *d)
{
    *o = (offer){.tool = t, .described = renamed || draw_chance(d, 0.15)};
    snprintf(o->name, TOOL_NAME, "%s", t->name);
    if (renamed) new_name(&o->name, 0, d);
    for (int i = 0; i < arguments_of(t); i++) {
        const tool_argument *members = t->arguments[i].members;
        if (renamed)
            new_name(o->arguments, i, d);
        else
            snprintf(o->arguments[i], TOOL_NAME, "%s", t->arguments[i].name);
        for (int k = 0; members && members[k].letter; k++) {
            if (renamed)
                new_name(o->members[i], k, d);
            else
                snprintf(o->members[i][k], TOOL_NAME, "%s", members[k].name);
        }
    }
}

json_t *offer_schema(const offer *o, draw *d)
{
    json_t *properties = task_json(json_object()), *required = task_json(json_array());
    for (int i = 0; i < arguments_of(o->tool); i++) {
        const tool_argument *a = &o->tool->arguments[i];
        bool nullable = a->phrase && draw_chance(d, 0.3);
        json_object_set_new(properties, o->arguments[i],
                            tool_argument_schema(a, (char(*)[TOOL_NAME])o->members[i], o->described, nullable));
        if (!a->phrase) json_array_append_new(required, task_string(o->arguments[i]));
    }
    return task_json(json_pack("{s:s, s:{s:s, s:s, s:{s:s, s:o, s:o}}}", "type", "function", "function", "name",
                               o->name, "description", o->tool->about, "parameters", "type", "object", "properties",
                               properties, "required", required));
}

/* ---- Requests -------------------------------------------------------------------------------------------------- */

static bool of_split(const request *r, int from, task_split split)
{
    buffer text = {0};
    buffer_string(&text, r->offer->tool->name);
    for (int i = from; i < arguments_of(r->offer->tool); i++)
        if (r->given[i]) buffer_printf(&text, "\n%d %s", i, r->values[i].text);
    bool held_out = draw_held_out(draw_hash(text_of(&text), text.length));
    buffer_free(&text);
    return held_out == (split == TASK_HELD_OUT);
}

static void draw_value(request *r, int i, draw *d)
{
    json_decref(r->values[i].json);
    r->values[i] =
        tool_value_draw(&r->offer->tool->arguments[i], (char(*)[TOOL_NAME])r->offer->members[i], &r->computed, d);
}

/* From a unit to itself is no request. */
static bool sensible(const request *r)
{
    const tool_argument *a = r->offer->tool->arguments;
    for (int i = 1; i < arguments_of(r->offer->tool); i++)
        if (a[i].options && a[i].options == a[i - 1].options && !strcmp(r->values[i].text, r->values[i - 1].text))
            return false;
    return true;
}

static void spell_values(const request *r, slots *s)
{
    slots_clear(s);
    for (int i = 0; i < arguments_of(r->offer->tool); i++)
        if (r->given[i]) slots_text(s, r->offer->tool->arguments[i].letter, r->values[i].text);
}

/* The sentence, with those for optional arguments behind it. */
static void spell_ask(request *r, const char *pattern, const slots *s)
{
    const tool *t = r->offer->tool;
    fill(&r->ask, pattern, s);
    for (int i = 0; i < arguments_of(t); i++) {
        if (!t->arguments[i].phrase || !r->given[i]) continue;
        buffer_char(&r->ask, ' ');
        fill(&r->ask, t->arguments[i].phrase, s);
    }
}

static void spell_result(request *r, draw *d)
{
    const tool *t = r->offer->tool;
    slots s;
    spell_values(r, &s);
    for (int i = 0; i < TOOL_RESULTS && t->results[i].letter; i++) {
        char letter[4] = {'{', t->results[i].letter, '}', 0};
        tool_value v = tool_value_draw(&t->results[i], NULL, &r->computed, d);
        slots_copy(&s, t->results[i].letter, v.text);
        if (strstr(t->answer, letter)) memcpy(r->told[i], v.text, TOOL_TEXT);
        json_decref(v.json);
    }
    fill(&r->result, t->result, &s);
    fill(&r->answer, t->answer, &s);
}

enum { TRIES = 2000 }; /* one in 256 is held out with and without its first argument; some tools have few requests */

bool request_draw(request *r, const offer *o, task_split split, bool vague, draw *d)
{
    const tool *t = o->tool;
    int tries = 0;
    *r = (request){.offer = o};
    do {
        if (++tries > (arguments_of(t) == 1 && vague ? 1 : TRIES)) return false;
        for (int i = 0; i < arguments_of(t); i++) {
            r->given[i] = !t->arguments[i].phrase || (!vague && draw_chance(d, 0.35));
            draw_value(r, i, d);
        }
    } while (!sensible(r) || !of_split(r, 0, split) || (vague && !of_split(r, 1, split)));
    slots s;
    spell_values(r, &s);
    spell_ask(r, vague ? t->vague : DRAW(d, t->asks), &s);
    spell_result(r, d);
    return true;
}

bool request_double(request *first, request *second, task_split split, draw *d)
{
    *second = (request){.offer = first->offer};
    static const value_domain fine[] = {V_CITY, V_THING, V_TICKER, V_LARGE, V_WORD, V_PATH};
    const tool *t = first->offer->tool;
    bool can = false;
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) can = can || t->arguments[0].domain == fine[i];
    if (!can) return false;
    for (int i = 1; i < arguments_of(t); i++) {
        second->given[i] = first->given[i];
        second->values[i] = first->values[i];
        json_incref(second->values[i].json);
    }
    second->given[0] = true;
    int tries = 0;
    do {
        if (++tries > TRIES) return false;
        draw_value(second, 0, d);
    } while (!of_split(second, 0, split) || !strcmp(second->values[0].text, first->values[0].text));
    char both[2 * TOOL_TEXT + 8];
    slots s;
    spell_values(first, &s);
    snprintf(both, sizeof both, "%s and %s", first->values[0].text, second->values[0].text);
    slots_text(&s, t->arguments[0].letter, both);
    buffer_clear(&first->ask);
    spell_ask(first, DRAW(d, t->asks), &s);
    spell_result(second, d);
    return true;
}

json_t *request_call(const request *r)
{
    json_t *arguments = task_json(json_object());
    for (int i = 0; i < arguments_of(r->offer->tool); i++)
        if (r->given[i]) json_object_set(arguments, r->offer->arguments[i], r->values[i].json);
    return task_json(json_pack("{s:s, s:o}", "name", r->offer->name, "arguments", arguments));
}

void request_free(request *r)
{
    for (int i = 0; i < TOOL_ARGUMENTS; i++) json_decref(r->values[i].json);
    buffer_free(&r->ask);
    buffer_free(&r->result);
    buffer_free(&r->answer);
}
