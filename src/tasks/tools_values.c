/* Values of arguments: in a sentence and as JSON. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tasks/tools.h"
#include "tasks/words.h"

static const char *const cities[] =
    {
        "Paris", "Oslo",   "Rome",    "Tokyo",  "Lima",   "Cairo", "Berlin", "Madrid", "London", "Vienna",
        "Delhi", "Kyoto",  "Boston",  "Dublin", "Lagos",  "Seoul", "Athens", "Prague", "Quito",  "Bern",
        "Milan", "Sydney", "Nairobi", "Lisbon", "Warsaw", "Hanoi", "Osaka",  "Denver", "Malmo",  "Turin",
},
                         *const rooms[] = {"kitchen", "bedroom", "hall",  "office", "garage", "cellar",
                                           "attic",   "garden",  "study", "bath",   "lounge", "nursery"},
                         *const skies[] = {"sunny", "cloudy", "rainy", "windy", "clear", "foggy", "snowy", "dry"},
                         *const tables[] = {"users", "orders", "books", "cars", "items", "songs", "staff", "visits"},
                         *const messages[] =
                             {
                                 "see you at the {w}",
                                 "I am late, sorry",
                                 "the {w} is ready",
                                 "call me at {k}",
                                 "bring the {w}, please",
                                 "happy birthday, {n}",
                                 "we meet in {c}",
                                 "I have {k} {t} for you",
                                 "the key is under the {w}",
                                 "no {t} today",
                                 "thank you for the {t}",
                                 "the train leaves at {k}",
                                 "please buy {k} {t}",
                                 "{n} is here",
                                 "the meeting is in room {k}",
                                 "the code is {k}",
                                 "have you seen the {w}?",
                                 "come to the {w} at {k}",
                                 "we need {k} more {t}",
                                 "good luck in {c}",
                                 "I left the {t} in the {w}",
                                 "dinner is at {k}",
                                 "{m} has won",
                                 "say hello to {n}",
},
                         *const topics[] = {"{m}",     "{w}", "{t} in {c}",  "the {w} of {c}", "{m} {w}", "{n}",
                                            "old {t}", "{c}", "{w} and {w}", "{m} in {c}",     "{n} {m}"};

static const char *city(draw *d, char made[32])
{
    char word[16];
    return draw_chance(d, 0.6) ? DRAW(d, cities) : word_title(word_made_up(d, word), made);
}

static void fill_words(const char *pattern, draw *d, char out[TOOL_TEXT])
{
    slots s;
    buffer text = {0};
    char made[16], place[32];
    slots_clear(&s);
    slots_text(&s, 'w', word_plain(d));
    slots_text(&s, 't', word_thing(d));
    slots_text(&s, 'n', word_name(d));
    slots_text(&s, 'm', word_made_up(d, made));
    slots_text(&s, 'c', city(d, place));
    slots_number(&s, 'k', draw_between(d, 2, 99));
    fill(&text, pattern, &s);
    snprintf(out, TOOL_TEXT, "%s", text_of(&text));
    buffer_free(&text);
}

/* "a", "a and b", "a, b and c" */
static void join(char *out, const char *one, size_t i, size_t count)
{
    const char *between = !i ? "" : i + 1 == count ? " and " : ", ";
    if (strlen(out) + strlen(between) + strlen(one) >= TOOL_TEXT) abort();
    strcat(strcat(out, between), one);
}

/* A sum that tools are asked for, and what it comes to. */
static void draw_sum(draw *d, int64_t *value, char out[TOOL_TEXT])
{
    int a = (int)draw_between(d, 2, 999), b = (int)draw_between(d, 2, 99), c = (int)draw_between(d, 2, 20);
    switch (draw_between(d, 0, 5)) {
    case 0: snprintf(out, TOOL_TEXT, "%d + %d", a, b), *value = a + b; break;
    case 1: snprintf(out, TOOL_TEXT, "%d * %d", a, b), *value = (int64_t)a * b; break;
    case 2: snprintf(out, TOOL_TEXT, "%d - %d", a, b), *value = a - b; break;
    case 3: snprintf(out, TOOL_TEXT, "(%d + %d) * %d", a, b, c), *value = (int64_t)(a + b) * c; break;
    case 4: snprintf(out, TOOL_TEXT, "%d * %d - %d", b, c, a), *value = (int64_t)b * c - a; break;
    default: snprintf(out, TOOL_TEXT, "%d + %d * %d", a, b, c), *value = a + (int64_t)b * c; break;
    }
}

/* A number with at most two digits behind the point: short in text and exact as text. */
static double draw_number(draw *d)
{
    static const int steps[] = {1, 2, 4, 10};
    int64_t step = steps[draw_between(d, 0, 3)];
    return (double)draw_between(d, 1, 99 * step) / (double)step;
}

static void draw_string(const tool_argument *a, int64_t *computed, draw *d, char out[TOOL_TEXT])
{
    static const char *const endings[] = {"com", "org", "net", "io"}, *const files[] = {"txt", "csv", "log", "md",
                                                                                        "json"};
    char word[16], other[16], title[32];
    size_t options = 0;
    switch (a->domain) {
    case V_CITY: snprintf(out, TOOL_TEXT, "%s", city(d, title)); break;
    case V_PERSON: snprintf(out, TOOL_TEXT, "%s", word_name(d)); break;
    case V_WORD: snprintf(out, TOOL_TEXT, "%s", draw_chance(d, 0.5) ? word_plain(d) : word_made_up(d, word)); break;
    case V_THING: snprintf(out, TOOL_TEXT, "%s", draw_chance(d, 0.75) ? word_thing(d) : word_made_up(d, word)); break;
    case V_MESSAGE: fill_words(DRAW(d, messages), d, out); break;
    case V_TOPIC: fill_words(DRAW(d, topics), d, out); break;
    case V_ROOM: snprintf(out, TOOL_TEXT, "%s", DRAW(d, rooms)); break;
    case V_SKY: snprintf(out, TOOL_TEXT, "%s", DRAW(d, skies)); break;
    case V_TABLE: snprintf(out, TOOL_TEXT, "%s", draw_chance(d, 0.6) ? DRAW(d, tables) : word_made_up(d, word)); break;
    case V_DATE:
        snprintf(out, TOOL_TEXT, "20%02d-%02d-%02d", (int)draw_between(d, 24, 31), (int)draw_between(d, 1, 12),
                 (int)draw_between(d, 1, 28));
        break;
    case V_TIME:
        snprintf(out, TOOL_TEXT, "%02d:%02d", (int)draw_between(d, 0, 23), (int)draw_between(d, 0, 11) * 5);
        break;
    case V_EMAIL:
        snprintf(out, TOOL_TEXT, "%s@%s.%s", word_made_up(d, word), word_made_up(d, other), DRAW(d, endings));
        break;
    case V_PATH:
        snprintf(out, TOOL_TEXT, "/%s/%s.%s", word_made_up(d, word), word_made_up(d, other), DRAW(d, files));
        break;
    case V_PHONE:
        snprintf(out, TOOL_TEXT, "0%d-%d", (int)draw_between(d, 11, 999), (int)draw_between(d, 1000, 99999));
        break;
    case V_CODE:
        snprintf(out, TOOL_TEXT, "%c%c-%d", (char)('A' + draw_between(d, 0, 25)), (char)('A' + draw_between(d, 0, 25)),
                 (int)draw_between(d, 10, 9999));
        break;
    case V_SUM: draw_sum(d, computed, out); break;
    case V_TICKER:
        for (int i = 0, n = (int)draw_between(d, 3, 4); i < n; i++)
            out[i] = (char)('A' + draw_between(d, 0, 25)), out[i + 1] = 0;
        break;
    case V_NAME: {
        word_title(word_made_up(d, word), title);
        if (draw_chance(d, 0.5))
            snprintf(out, TOOL_TEXT, "%s", title);
        else
            snprintf(out, TOOL_TEXT, "%s %s", title, word_plain(d));
        break;
    }
    case V_ONE_OF:
        while (a->options[options]) options++;
        snprintf(out, TOOL_TEXT, "%s", draw_one(d, a->options, options));
        break;
    default: abort();
    }
}

static tool_value whole(int64_t x)
{
    tool_value v = {.json = task_json(json_integer(x))};
    snprintf(v.text, sizeof v.text, "%lld", (long long)x);
    return v;
}

static tool_value boolean(draw *d, const char *yes, const char *no)
{
    bool x = draw_chance(d, 0.5);
    tool_value v = {.json = task_json(json_boolean(x))};
    snprintf(v.text, sizeof v.text, "%s", x ? yes : no);
    return v;
}

static tool_value list(const tool_argument *a, draw *d)
{
    tool_argument item = {.domain = a->domain == V_PEOPLE ? V_PERSON : V_WORD};
    tool_value v = {.json = task_json(json_array())};
    for (size_t i = 0, n = (size_t)draw_between(d, 1, a->domain == V_INTEGERS ? 4 : 3); i < n; i++) {
        tool_value one =
            a->domain == V_INTEGERS ? whole(draw_between(d, 1, 99)) : tool_value_draw(&item, NULL, NULL, d);
        join(v.text, one.text, i, n);
        json_array_append_new(v.json, one.json);
    }
    return v;
}

static tool_value object(const tool_argument *a, char (*names)[TOOL_NAME], draw *d)
{
    tool_value v = {.json = task_json(json_object())};
    buffer text = {0};
    slots s;
    slots_clear(&s);
    for (int i = 0; a->members[i].letter; i++) {
        tool_value one = tool_value_draw(&a->members[i], NULL, NULL, d);
        slots_copy(&s, a->members[i].letter, one.text);
        json_object_set_new(v.json, names ? names[i] : a->members[i].name, one.json);
    }
    fill(&text, a->spelled, &s);
    snprintf(v.text, sizeof v.text, "%s", text_of(&text));
    buffer_free(&text);
    return v;
}

tool_value tool_value_draw(const tool_argument *a, char (*names)[TOOL_NAME], int64_t *computed, draw *d)
{
    tool_value v = {0};
    double x;
    switch (a->domain) {
    case V_FEW: return whole(draw_between(d, 1, 12));
    case V_INTEGER: return whole(draw_between(d, 2, 999));
    case V_LARGE: return whole(draw_between(d, 1000, 99999));
    case V_DEGREES: return whole(draw_between(d, -15, 39));
    case V_COMPUTED: return whole(computed ? *computed : 0);
    case V_NUMBER:
        x = draw_number(d);
        if (x == floor(x)) return whole((int64_t)x);
        v.json = task_json(json_real(x));
        snprintf(v.text, sizeof v.text, "%g", x);
        return v;
    case V_ON: return boolean(d, "on", "off");
    case V_LOCK: return boolean(d, "lock", "unlock");
    case V_WITH: return boolean(d, "with", "without");
    case V_PEOPLE:
    case V_WORDS:
    case V_INTEGERS: return list(a, d);
    case V_OBJECT: return object(a, names, d);
    case V_OBJECTS:
        v.json = task_json(json_array());
        for (size_t i = 0, n = (size_t)draw_between(d, 1, 3); i < n; i++) {
            tool_value one = object(a, names, d);
            join(v.text, one.text, i, n);
            json_array_append_new(v.json, one.json);
        }
        return v;
    default:
        draw_string(a, computed, d, v.text);
        v.json = task_string(v.text);
        return v;
    }
}

/* ---- Schemas --------------------------------------------------------------------------------------------------- */

static const char *type_name(value_domain domain)
{
    switch (domain) {
    case V_FEW:
    case V_INTEGER:
    case V_LARGE:
    case V_DEGREES:
    case V_COMPUTED: return "integer";
    case V_NUMBER: return "number";
    case V_ON:
    case V_LOCK:
    case V_WITH: return "boolean";
    case V_PEOPLE:
    case V_WORDS:
    case V_INTEGERS:
    case V_OBJECTS: return "array";
    case V_OBJECT: return "object";
    default: return "string";
    }
}

static json_t *members_schema(const tool_argument *a, char (*names)[TOOL_NAME], bool described)
{
    json_t *properties = task_json(json_object()), *required = task_json(json_array());
    for (int i = 0; a->members[i].letter; i++) {
        const char *name = names ? names[i] : a->members[i].name;
        json_object_set_new(properties, name, tool_argument_schema(&a->members[i], NULL, described, false));
        json_array_append_new(required, task_string(name));
    }
    return task_json(json_pack("{s:s, s:o, s:o}", "type", "object", "properties", properties, "required", required));
}

json_t *tool_argument_schema(const tool_argument *a, char (*names)[TOOL_NAME], bool described, bool nullable)
{
    json_t *schema = a->domain == V_OBJECT ? members_schema(a, names, described) : task_json(json_object());
    const char *type = type_name(a->domain);
    if (nullable)
        json_object_set_new(schema, "type", task_json(json_pack("[s, s]", type, "null")));
    else
        json_object_set_new(schema, "type", task_string(type));
    if (described) json_object_set_new(schema, "description", task_string(a->noun));
    if (a->options) {
        json_t *options = task_json(json_array());
        for (int i = 0; a->options[i]; i++) json_array_append_new(options, task_string(a->options[i]));
        json_object_set_new(schema, "enum", options);
    }
    if (!strcmp(type, "array")) {
        json_t *items = a->domain == V_OBJECTS
                            ? members_schema(a, names, described)
                            : task_json(json_pack("{s:s}", "type", a->domain == V_INTEGERS ? "integer" : "string"));
        json_object_set_new(schema, "items", items);
    }
    return schema;
}
