#include "tasks/retrieval.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tasks/make.h"
#include "tasks/words.h"

/* ---- Names and values ------------------------------------------------------------------------------------------ */

typedef enum value_kind { NUMBER, COLOUR, CITY, ANIMAL, PERSON, WORD, JOB, FRUIT, PAIR, TWO_WORDS } value_kind;

static const struct {
    const char *name;
    value_kind kind;
} attributes[] = {
    {"code", NUMBER},   {"number", NUMBER}, {"room", NUMBER},  {"key", NUMBER},      {"phone", NUMBER},
    {"pin", NUMBER},    {"price", NUMBER},  {"score", NUMBER}, {"weight", NUMBER},   {"code", NUMBER},
    {"colour", COLOUR}, {"color", COLOUR},  {"city", CITY},    {"animal", ANIMAL},   {"owner", PERSON},
    {"friend", PERSON}, {"word", WORD},     {"job", JOB},      {"fruit", FRUIT},     {"seat", PAIR},
    {"place", PAIR},    {"secret", WORD},   {"sign", WORD},    {"title", TWO_WORDS},
};
enum { ATTRIBUTES = sizeof attributes / sizeof *attributes };

static const char *const colours[] = {"red",  "blue", "green", "yellow", "black",  "white",  "brown",
                                      "gray", "pink", "gold",  "silver", "purple", "orange", "violet"},
                         *const cities[] = {"Paris",  "Oslo",   "Rome",   "Tokyo",  "Lima",  "Cairo",  "Berlin",
                                            "Madrid", "London", "Vienna", "Delhi",  "Kyoto", "Boston", "Dublin",
                                            "Lagos",  "Seoul",  "Athens", "Prague", "Quito", "Bern"},
                         *const animals[] = {"cat",  "dog",  "horse", "tiger", "lion",  "rabbit", "fox",   "wolf",
                                             "bear", "duck", "goat",  "sheep", "mouse", "eagle",  "snake", "frog"},
                         *const jobs[] = {"doctor", "teacher", "farmer", "painter", "singer", "writer", "pilot",
                                          "baker",  "sailor",  "cook",   "judge",   "nurse",  "driver", "guard"},
                         *const fruits[] = {"apple", "pear",  "plum",  "lemon", "cherry", "banana",
                                            "melon", "grape", "peach", "fig",   "mango",  "orange"};

static bool of_split(task_split split, const char *text)
{
    return draw_held_out(draw_hash(text, strlen(text))) == (split == TASK_HELD_OUT);
}

enum { STYLE_WORD, STYLE_TITLE, STYLE_TWO, STYLE_PERSON, STYLE_NUMBERED };

static void draw_name(int style, draw *d, char out[NAME_SIZE])
{
    char word[16], title[32];
    word_made_up(d, word);
    switch (style) {
    case STYLE_TITLE: snprintf(out, NAME_SIZE, "%s", word_title(word, title)); break;
    case STYLE_TWO: snprintf(out, NAME_SIZE, "%s %s", word_plain(d), word_plain(d)); break;
    case STYLE_PERSON: snprintf(out, NAME_SIZE, "%s %s", word_name(d), word_title(word, title)); break;
    case STYLE_NUMBERED: snprintf(out, NAME_SIZE, "%s %d", word_plain(d), (int)draw_between(d, 2, 99)); break;
    default: snprintf(out, NAME_SIZE, "%s", word); break;
    }
}

static bool known(const haystack *h, const char *name)
{
    for (int i = 0; i < h->count; i++)
        if (!strcmp(h->records[i].name, name)) return true;
    return false;
}

void haystack_new_name(const haystack *h, draw *d, char out[NAME_SIZE])
{
    int style = draw_chance(d, 0.8) ? h->name_style : STYLE_WORD;
    do draw_name(style, d, out);
    while (!of_split(h->split, out) || known(h, out));
}

const char *haystack_new_attribute(draw *d)
{
    return attributes[draw_between(d, 0, ATTRIBUTES - 1)].name;
}

static value_kind kind_of(const char *attribute)
{
    for (int i = 0; i < ATTRIBUTES; i++)
        if (!strcmp(attributes[i].name, attribute)) return attributes[i].kind;
    return NUMBER;
}

void haystack_new_value(const haystack *h, const char *attribute, draw *d, char out[VALUE_SIZE])
{
    static const int64_t lowest[] = {100, 1000, 10000};
    char word[16];
    int64_t low = lowest[draw_between(d, 0, 2)];
    const char *text = NULL;
    switch (kind_of(attribute)) {
    case COLOUR: text = DRAW(d, colours); break;
    case CITY: text = DRAW(d, cities); break;
    case ANIMAL: text = DRAW(d, animals); break;
    case PERSON: text = word_name(d); break;
    case JOB: text = DRAW(d, jobs); break;
    case FRUIT: text = DRAW(d, fruits); break;
    case WORD: text = draw_chance(d, 0.5) ? word_plain(d) : word_made_up(d, word); break;
    case TWO_WORDS: snprintf(out, VALUE_SIZE, "%s %s", word_plain(d), word_plain(d)); return;
    case PAIR: snprintf(out, VALUE_SIZE, "%d-%d", (int)draw_between(d, 1, 99), (int)draw_between(d, 1, 99)); return;
    case NUMBER:
        do snprintf(out, VALUE_SIZE, "%d", (int)draw_between(d, low, low * 10 - 1));
        while (!of_split(h->split, out));
        return;
    }
    snprintf(out, VALUE_SIZE, "%s", text);
}

int haystack_add(haystack *h, draw *d)
{
    if (h->count == RECORDS_MAX) return RECORDS_MAX - 1;
    record r = {.at = (double)draw_between(d, 0, 9999) / 9999, .leads_to = -1};
    haystack_new_name(h, d, r.name);
    r.attribute = h->form == HAYSTACK_TEXT || !h->count ? haystack_new_attribute(d) : h->records[0].attribute;
    if (h->form == HAYSTACK_CHAIN) r.attribute = "value";
    do haystack_new_value(h, r.attribute, d, r.value);
    while (has_word(r.name, r.value));
    h->records[h->count] = r;
    return h->count++;
}

void haystack_begin(haystack *h, haystack_form form, task_split split, draw *d)
{
    static const int styles[] = {70, 12, 8, 6, 4};
    *h = (haystack){.form = form, .split = split};
    h->records = calloc(RECORDS_MAX, sizeof *h->records);
    if (!h->records) abort();
    h->separator = (int)draw_between(d, 0, 3);
    h->name_style = (int)draw_weighted(d, styles, sizeof styles / sizeof *styles);
    h->numbers = draw_chance(d, 0.5);
    h->bland = split == TASK_TRAIN && draw_chance(d, 0.08);
}

void haystack_free(haystack *h)
{
    free(h->records);
}

/* ---- Sentences ------------------------------------------------------------------------------------------------- */

static const char *const nouns[] = {
    "river",  "stone",   "cloud",  "house",  "window",  "table",   "garden", "paper",   "flower", "mountain",
    "bridge", "castle",  "forest", "market", "letter",  "story",   "horse",  "tiger",   "rabbit", "basket",
    "candle", "mirror",  "carpet", "pillow", "blanket", "jacket",  "button", "pocket",  "ticket", "station",
    "engine", "rocket",  "planet", "valley", "desert",  "harbor",  "sailor", "captain", "doctor", "teacher",
    "farmer", "painter", "singer", "writer", "soldier", "friend",  "sister", "brother", "king",   "queen",
    "prince", "wizard",  "dragon", "ghost",  "shadow",  "circle",  "square", "corner",  "border", "road",
    "wall",   "tower",   "boat",   "lake",   "field",   "tree",    "roof",   "door",    "lamp",   "chair",
    "clock",  "bell",    "ship",   "train",  "school",  "library", "museum", "kitchen", "cellar", "well",
    "hill",   "church",  "shop",   "farm",   "beach",   "path",    "gate",   "fence",
};

/* {p} {q} nouns, {n} a person, {t} things, {k} a number. */
static const char *const plain_sentences[] = {
    "The {p} stood near the {q}.",
    "{n} looked at the {p} for a long time.",
    "It was a quiet {p}, and the {q} was cold.",
    "Nobody saw the {p} behind the {q}.",
    "In the evening {n} went home.",
    "The {p} was old, but the {q} was new.",
    "{n} bought some {t} at the market.",
    "There was a {p} on the {q}.",
    "The wind moved the {p} a little.",
    "They talked about the {p} until late.",
    "{n} likes {t} more than {n}'s brother does.",
    "A {p} is not always a {q}.",
    "The way to the {p} goes past the {q}.",
    "{n} put the {t} on the table.",
    "After the rain the {p} was wet.",
    "Some people never see a {p}.",
    "The {p} and the {q} were far away.",
    "{n} wrote a letter about the {p}.",
    "Later that day the {p} was gone.",
    "We waited for {n} by the {p}.",
    "The story of the {p} is well known here.",
    "{n} asked for a {p} and got a {q}.",
    "Every morning {n} walks to the {p}.",
    "The {t} were still on the {p}.",
    "It is said that the {p} came from the north.",
    "{n} closed the door and opened the {p}.",
    "The children played with the {t}.",
    "On Monday the {p} was closed.",
    "{n} does not remember the {p}.",
    "The light of the {p} fell on the {q}.",
    "Between the {p} and the {q} there is a small road.",
    "{n} sold the {t} and kept the {p}.",
    "The {p} made a strange sound.",
    "Summer was over, and the {p} was empty.",
    "{n} found the {p} under the {q}.",
    "Soon the {p} will be as good as new.",
};

static const char *const number_sentences[] = {
    "There were {k} {t} in the {p}.",         "The {p} was built in {y}.",        "{n} counted {k} {t}.",
    "It took {k} days to reach the {p}.",     "In {y} {n} came back to the {q}.", "The bus leaves at {k}.",
    "Page {k} of the book is about the {p}.",
};

static const char *const bland_sentences[] = {
    "The grass is green.",   "The sky is blue.", "The sun is yellow.", "Here we go.",
    "There and back again.", "The day is long.", "The night is dark.",
};

static void put_sentence(const haystack *h, draw *d, buffer *out)
{
    slots s;
    if (h->bland) {
        buffer_string(out, DRAW(d, bland_sentences));
        return;
    }
    slots_clear(&s);
    slots_text(&s, 'p', DRAW(d, nouns));
    slots_text(&s, 'q', DRAW(d, nouns));
    slots_text(&s, 'n', word_name(d));
    slots_text(&s, 't', word_thing(d));
    slots_number(&s, 'k', draw_between(d, 2, 199));
    slots_number(&s, 'y', draw_between(d, 1500, 2020));
    bool number = h->numbers && draw_chance(d, 0.15);
    fill(out, number ? DRAW(d, number_sentences) : DRAW(d, plain_sentences), &s);
}

/* {N} is the name at the start of a sentence: names keep their spelling there too. */
static const char *const record_sentences[] = {
    "The {a} of {n} is {v}.",
    "The {a} of {n} is {v}.",
    "The {a} of {n} is {v}.",
    "{n}'s {a} is {v}.",
    "Remember that the {a} of {n} is {v}.",
    "For {n} the {a} is {v}.",
    "Note: the {a} of {n} is {v}.",
    "As {a}, {n} has {v}.",
    "By the way, the {a} of {n} is {v}.",
    "{n} has the {a} {v}.",
};

static const char *const chain_values[] = {"Let {n} be {v}.", "{n} is {v}.", "Set {n} = {v}."},
                         *const chain_links[] = {"{n} equals {v}.", "Let {n} be {v}.", "Set {n} = {v}."},
                         *const separators[] = {": ", " = ", " - ", ", "};

static void put_record(const haystack *h, const record *r, draw *d, buffer *out)
{
    slots s;
    slots_clear(&s);
    slots_text(&s, 'n', r->name);
    slots_text(&s, 'a', r->attribute);
    slots_text(&s, 'v', r->value);
    if (h->form == HAYSTACK_LIST) {
        buffer_string(out, r->name);
        buffer_string(out, separators[h->separator]);
        buffer_string(out, r->value);
    } else if (h->form == HAYSTACK_CHAIN) {
        fill(out, r->leads_to >= 0 ? DRAW(d, chain_links) : DRAW(d, chain_values), &s);
    } else {
        fill(out, DRAW(d, record_sentences), &s);
    }
}

/* ---- The text -------------------------------------------------------------------------------------------------- */

/* Measured on the bundled tokenizer: each digit is a token, sentences have 3.3 to 3.5 characters a token otherwise, a
 * list of made-up names 2. */
size_t haystack_tokens(haystack_form form, const char *text, size_t length)
{
    size_t digits = 0;
    for (size_t i = 0; i < length; i++) digits += text[i] >= '0' && text[i] <= '9';
    return digits + (length - digits) * 10 / (form == HAYSTACK_LIST ? 19 : 33);
}

static int by_place(const void *a, const void *b)
{
    const record *x = *(record *const *)a, *y = *(record *const *)b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x < y ? -1 : x > y;
}

void haystack_write(haystack *h, draw *d, int tokens, buffer *out)
{
    record *order[RECORDS_MAX];
    for (int i = 0; i < h->count; i++) order[i] = &h->records[i];
    qsort(order, (size_t)h->count, sizeof *order, by_place);
    size_t start = out->length, measured = start, seen = 0;
    int next = 0, left = (int)draw_between(d, 3, 9);
    bool sentences = h->form != HAYSTACK_LIST;
    /* What the records still to come will take, so that the last ones stand at the end and not behind it. */
    for (;;) {
        seen += haystack_tokens(h->form, out->data ? out->data + measured : "", out->length - measured);
        measured = out->length;
        double at = tokens > 0 ? (double)seen / tokens : 1;
        bool full = at >= 1;
        if (next < h->count && (full || order[next]->at <= at || !sentences)) {
            if (out->length > start) buffer_char(out, sentences && left ? ' ' : '\n');
            order[next]->depth = (int)(at > 1 ? 100 : at * 100 + 0.5);
            put_record(h, order[next++], d, out);
        } else if (full || !sentences) {
            break;
        } else {
            if (out->length > start) buffer_char(out, left ? ' ' : '\n');
            put_sentence(h, d, out);
        }
        left = left ? left - 1 : (int)draw_between(d, 3, 9);
    }
    buffer_check(out);
}
