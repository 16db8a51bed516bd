/* Texts whose fields are to be written as a JSON object. */
#include <string.h>

#include "tasks/form.h"
#include "tasks/words.h"

enum { FIELD_NAME, FIELD_AGE, FIELD_CITY, FIELD_COUNT, FIELD_ITEM, FIELD_DAY, FIELD_COLOR, FIELD_PRICE, FIELDS };

/* What a field may be called. */
static const char *const names[FIELDS][4] = {
    {"name", "person", "user", "customer"},     {"age", "years", "age_years", "old"},
    {"city", "place", "town", "location"},      {"count", "amount", "number", "quantity"},
    {"item", "product", "thing", "article"},    {"day", "weekday", "date", "when"},
    {"color", "colour", "paint", "color_name"}, {"price", "cost", "dollars", "total"},
};

static const struct sentence {
    const char *patterns[3];
    int fields[5]; /* -1 after the last */
} sentences[] = {
    {{"{N} is {a} years old and lives in {C}.", "{N}, {a}, from {C}.", "In {C} lives {N}, who is {a} years old."},
     {FIELD_NAME, FIELD_AGE, FIELD_CITY, -1}},
    {{"{N} bought {c} {I} on {D}.", "On {D}, {N} bought {c} {I}.", "{N} will bring {c} {I} on {D}."},
     {FIELD_NAME, FIELD_COUNT, FIELD_ITEM, FIELD_DAY, -1}},
    {{"{N} from {C} ordered {c} {I} for {p} dollars.", "Order: {c} {I}, {p} dollars, for {N} in {C}.",
      "{N} paid {p} dollars for {c} {I} in {C}."},
     {FIELD_NAME, FIELD_CITY, FIELD_COUNT, FIELD_ITEM, FIELD_PRICE}},
    {{"On {D}, {N} will travel to {C}.", "{N} goes to {C} on {D}.", "The train to {C} takes {N} along on {D}."},
     {FIELD_NAME, FIELD_CITY, FIELD_DAY, -1}},
    {{"My name is {N}, I am {a}, and I like {R}.", "I am {N}, {a} years old, and my favorite color is {R}.",
      "{N} is {a} years old and wears {R}."},
     {FIELD_NAME, FIELD_AGE, FIELD_COLOR, -1}},
    {{"The {R} {I} cost {p} dollars in {C}.", "In {C}, {I} in {R} are {p} dollars.",
      "For {p} dollars I got {R} {I} in {C}."},
     {FIELD_COLOR, FIELD_ITEM, FIELD_PRICE, FIELD_CITY, -1}},
    {{"Please send {c} {R} {I} to {C} by {D}.", "{C} needs {c} {R} {I} on {D}.", "By {D}, {c} {R} {I} must be in {C}."},
     {FIELD_COUNT, FIELD_COLOR, FIELD_ITEM, FIELD_CITY, FIELD_DAY}},
    {{"{I} are {p} dollars on {D}.", "On {D} the price of {I} is {p} dollars.",
      "The shop sells {I} for {p} dollars on {D}."},
     {FIELD_ITEM, FIELD_PRICE, FIELD_DAY, -1}},
};

json_t *form_fields_draw(int *which, draw *d)
{
    *which = (int)draw_between(d, 0, sizeof sentences / sizeof *sentences - 1);
    const struct sentence *s = &sentences[*which];
    int order[5] = {0}, count = 0;
    while (count < 5 && s->fields[count] >= 0) order[count] = s->fields[count], count++;
    for (int i = 0; i < count; i++) {
        int k = (int)draw_between(d, i, count - 1), t = order[i];
        order[i] = order[k], order[k] = t;
    }
    json_t *keys = task_json(json_array());
    for (int n = (int)draw_between(d, count > 2 ? 2 : 1, count), i = 0; i < n; i++)
        json_array_append_new(keys, task_string(names[order[i]][draw_chance(d, 0.55) ? 0 : draw_between(d, 1, 3)]));
    return keys;
}

void form_name_keys(slots *v, const json_t *keys, draw *d)
{
    buffer text = {0};
    const char *quote = draw_chance(d, 0.6) ? "\"" : "";
    size_t n = json_array_size(keys);
    for (size_t i = 0; i < n; i++)
        buffer_printf(&text, "%s%s%s%s", i ? i + 1 < n ? ", " : " and " : "", quote,
                      json_string_value(json_array_get(keys, i)), quote);
    slots_copy(v, 'k', text_of(&text));
    buffer_free(&text);
}

/* The field that a key names. */
static int field_of(const char *key)
{
    for (int f = 0; f < FIELDS; f++)
        for (int i = 0; i < 4; i++)
            if (!strcmp(names[f][i], key)) return f;
    return 0;
}

void form_fields_turn(int which, const json_t *keys, draw *d, buffer *question, buffer *answer, json_t **expect)
{
    static const char letters[] = "NaCcIDRp";
    static const char *const cities[] = {"Oslo",  "Rome",   "Lima",   "Kyoto",  "Porto",  "Riga",   "Bonn",
                                         "Graz",  "Cork",   "Turin",  "Paris",  "Berlin", "Madrid", "London",
                                         "Tokyo", "Cairo",  "Bern",   "Vienna", "Dublin", "Athens", "Geneva",
                                         "Leeds", "Austin", "Quebec", "Osaka"};
    static const char *const days[] = {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"};
    static const char *const colors[] = {"red",   "blue",  "green",  "yellow", "white",
                                         "black", "brown", "purple", "orange"};
    slots v;
    char made_up[16], name[32];
    slots_clear(&v);
    slots_copy(&v, 'N', word_title(draw_chance(d, 0.75) ? word_name(d) : word_made_up(d, made_up), name));
    slots_number(&v, 'a', draw_between(d, 3, 98));
    slots_copy(&v, 'C', draw_chance(d, 0.75) ? DRAW(d, cities) : word_title(word_made_up(d, made_up), name));
    slots_number(&v, 'c', draw_between(d, 2, draw_chance(d, 0.3) ? 500 : 20));
    slots_text(&v, 'I', word_thing(d));
    slots_text(&v, 'D', DRAW(d, days));
    slots_text(&v, 'R', DRAW(d, colors));
    slots_number(&v, 'p', draw_between(d, 2, draw_chance(d, 0.3) ? 2000 : 60));
    fill(question, DRAW(d, sentences[which].patterns), &v);
    json_t *fields = task_json(json_object());
    for (size_t i = 0; i < json_array_size(keys); i++) {
        const char *key = json_string_value(json_array_get(keys, i));
        const char letter = letters[field_of(key)], *value = v.of[(int)letter];
        bool number = strchr("acp", letter) != NULL;
        buffer_printf(answer, number ? "%s\"%s\": %s" : "%s\"%s\": \"%s\"", i ? ", " : "{", key, value);
        json_object_set_new(fields, key, number ? json_integer(strtol(value, NULL, 10)) : task_string(value));
    }
    buffer_char(answer, '}');
    *expect = task_json(json_pack("{s:o}", "fields", fields));
}
