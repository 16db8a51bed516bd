/*
 * What a system text asks of the form of an answer, put together with questions that the model can answer. What is
 * marked is in form_mark.c; a turn's expectations are an object: "form", "word", "count", "list", "brief", "key",
 * "fields".
 */
#include "tasks/form.h"

#include <ctype.h>
#include <string.h>

#include "tasks/facts.h"
#include "tasks/repeat.h"
#include "tasks/words.h"

static const char *const families[] = {
    "one word",     "start",          "end",      "capitals",  "lower case", "words",  "at most",
    "json",         "fields",         "numbered", "bullets",   "commas",     "quotes", "digits",
    "number words", "no punctuation", "persona",  "yes or no", NULL,
};

/* {w} is a word, {n} a count as a word, {k} a key. A thought of mode enabled follows the bar. */
static const char *const instructions[FORM_KINDS][9] = {
    [FORM_ONE_WORD] = {"Answer in one word.", "Answer with one word.", "Always answer in one word.",
                       "Reply with a single word.", "One word answers only.", "You answer in one word.",
                       "Answer with one word only.", "Give only the result.",
                       "Reply with just the answer, nothing else."},
    [FORM_START] = {"Start every answer with the word {w}.", "Always start your answer with {w}.",
                    "Start each reply with {w}.", "Begin every answer with {w}.",
                    "Your answers begin with the word {w}.", "The first word of your answer is {w}.",
                    "Put the word {w} in front of every answer.", "Each answer starts with {w}.", "Begin with {w}."},
    [FORM_END] = {"End every answer with the word {w}.", "Always end your answer with {w}.", "End each reply with {w}.",
                  "The last word of your answer is {w}.", "Your answers end with {w}.", "Finish every answer with {w}.",
                  "Put the word {w} at the end of every answer.", "Each answer ends with {w}.", "Close with {w}."},
    [FORM_CAPITALS] = {"Answer in capital letters.", "Write in capital letters only.", "ANSWER IN UPPER CASE.",
                       "Use upper case only.", "Always write in upper case.", "Your answers are in capitals.",
                       "No lower case letters, please.", "Shout: write everything in capitals.", "Answer in all caps."},
    [FORM_LOWER] = {"Answer in lower case.", "Write in lower case only.", "Use lower case letters only.",
                    "No capital letters, please.", "Always write in lower case.", "Do not use capital letters.",
                    "Your answers are in lower case.", "answer in lower case", "Only small letters."},
    [FORM_WORDS] = {"Answer with exactly {n} words.", "Your answer has exactly {n} words.", "Use exactly {n} words.",
                    "Every answer has {n} words.", "Write exactly {n} words, no more and no less.",
                    "Reply in exactly {n} words.", "Answer in {n} words.", "Exactly {n} words an answer.",
                    "Give {n} words."},
    [FORM_AT_MOST] = {"Answer in at most {n} words.", "Use no more than {n} words.", "At most {n} words an answer.",
                      "Your answers have {n} words or fewer.", "Never use more than {n} words.",
                      "Keep it to {n} words at most.", "The limit is {n} words.", "Reply with up to {n} words.",
                      "Not more than {n} words."},
    [FORM_JSON] = {"Answer with a JSON object with the key {k}.", "Reply with a JSON object whose only key is {k}.",
                   "Your answer is a JSON object with one key, {k}.", "Return JSON with the key {k}.",
                   "Respond in JSON: one object with the key {k}.",
                   "Output a JSON object with the key {k} and nothing else.",
                   "Give the answer as JSON, under the key {k}.", "Always answer in JSON with the key {k}.",
                   "Write JSON. The key is {k}."},
    [FORM_FIELDS] = {"Answer with a JSON object with the keys {k}.", "Read the text and return JSON with the keys {k}.",
                     "Extract {k} as a JSON object.", "Return a JSON object with {k}.",
                     "For every message write a JSON object with the keys {k}.", "Turn each text into JSON with {k}.",
                     "Output JSON only, with the keys {k}.", "Find {k} in the text and answer in JSON.",
                     "Your answer is a JSON object with the keys {k}."},
    [FORM_NUMBERED] = {"Answer with a numbered list.", "Write numbered lists.", "Use a numbered list.",
                       "Your answer is a numbered list.", "Number the items of your answer.",
                       "Lists are numbered, one item a line.", "Give every answer as a numbered list.",
                       "Answer as a numbered list, nothing else.", "Format: a numbered list."},
    [FORM_BULLETS] = {"Answer with a bulleted list.", "Use bullet points.", "Write a list with dashes.",
                      "Your answer is a bulleted list.", "Give every answer as bullet points.",
                      "One item a line, each after a dash.", "Answer as a bulleted list, nothing else.",
                      "Format: bullet points.", "Lists have a dash before each item."},
    [FORM_COMMAS] = {"Separate items with commas.", "Answer with a comma-separated list.",
                     "Use commas between the items.", "Your answer is a comma-separated list.",
                     "Give lists on one line, with commas.", "Write items separated by commas, nothing else.",
                     "Format: items with commas between them.", "All items on one line, with commas.",
                     "Answer with comma-separated values."},
    [FORM_QUOTES] = {"Put your answer in double quotes.", "Answer in quotation marks.", "Quote every answer.",
                     "Your answer stands in double quotes.", "Write every answer between double quotes.",
                     "Use double quotes around your answer.", "Wrap the answer in double quotes.",
                     "Always answer in double quotes.", "Answers go in quotes."},
    [FORM_DIGITS] = {"Answer with digits only.", "Write numbers as digits and nothing else.", "Only digits, please.",
                     "Reply with the number in digits.", "Answer with the number only.",
                     "Your answer is a number in digits.", "Give just the number.", "No words, only digits.",
                     "Digits only."},
    [FORM_NUMBER_WORDS] = {"Write numbers as words.", "Answer with the number as a word.",
                           "Use words instead of digits.", "No digits: write the number in words.",
                           "Spell the number out.", "Your answer is a number in words.",
                           "Reply with the number in words only.", "Write out the number.",
                           "Numbers are written as words."},
    [FORM_NO_PUNCTUATION] = {"Do not use punctuation.", "No punctuation marks.", "Write without punctuation.",
                             "Leave out all punctuation.", "Answer without any punctuation.", "Never use punctuation.",
                             "Your answers have no punctuation.", "No full stops, no commas.",
                             "Use letters, digits and spaces only."},
    [FORM_PERSONA] = {"You are {w}.", "Your name is {w}.", "You are {w}, a friendly assistant.",
                      "You are {w}, a helpful robot.", "You are called {w}.", "You are an assistant called {w}.",
                      "You are an assistant named {w}.", "Your name is {w}. You help the user.",
                      "You are a bot with the name {w}."},
    [FORM_YES_NO] = {"Answer with yes or no.", "Only answer yes or no.", "Reply yes or no, nothing else.",
                     "Yes or no only.", "Your answer is yes or no.", "Say yes or no.", "Just yes or no, please.",
                     "Answer every question with yes or no.", "One word: yes or no."},
};

static const char *const remarks[FORM_KINDS] = {
    "One word is wanted.",  "It starts with {w}.",  "It ends with {w}.",  "In capitals.",        "In lower case.",
    "Exactly {n} words.",   "At most {n} words.",   "JSON with the key.", "JSON with the keys.", "A numbered list.",
    "A list with dashes.",  "With commas.",         "In double quotes.",  "Digits only.",        "The number in words.",
    "Without punctuation.", "My name here is {w}.", "Yes or no.",
};

/* ---- A form --------------------------------------------------------------------------------------------------- */

/* What one system text asks. */
typedef struct form {
    form_kind kind;
    buffer instruction;
    slots v;
    char word[32];
    int count;
    int sentence; /* of form_fields.c */
    json_t *keys; /* of FORM_FIELDS and FORM_JSON */
} form;

typedef struct exchange {
    buffer question, answer;
    json_t *expect;
} exchange;

static bool is_list(form_kind kind)
{
    return kind == FORM_NUMBERED || kind == FORM_BULLETS || kind == FORM_COMMAS || kind == FORM_WORDS;
}

static void form_begin(form *f, draw *d)
{
    static const int shares[FORM_KINDS] = {9, 7, 6, 6, 5, 6, 4, 6, 9, 6, 5, 5, 4, 4, 5, 4, 6, 3};
    static const char *const bots[] = {"Robo",   "Hal",      "Nova",  "Atlas",  "Pixel", "Echo", "Luna",  "Orion",
                                       "Sparky", "Bolt",     "Ada",   "Turing", "Gizmo", "Zen",  "Kaze",  "Hikari",
                                       "Momo",   "Astro",    "Clara", "Otto",   "Max",   "Bob",  "Alice", "Jarvis",
                                       "Marvin", "Hayabusa", "Piko",  "Rex",    "Titan", "Vega"};
    static const char *const keys[] = {"answer", "result", "value",    "reply",   "output",  "response",
                                       "data",   "text",   "solution", "content", "message", "final"};
    char made_up[16];
    *f = (form){.kind = (form_kind)draw_weighted(d, shares, FORM_KINDS)};
    slots_clear(&f->v);
    bool own = draw_chance(d, 0.35);
    if (f->kind == FORM_PERSONA)
        word_title(own ? word_made_up(d, made_up) : DRAW(d, bots), f->word);
    else
        word_title(own ? word_made_up(d, made_up) : word_plain(d), f->word);
    f->count = (int)(f->kind == FORM_AT_MOST ? draw_between(d, 3, 12) : draw_between(d, LIST_SHORTEST, LIST_LONGEST));
    slots_text(&f->v, 'w', f->word);
    slots_text(&f->v, 'n', number_word(f->count));
    if (draw_chance(d, 0.25)) slots_number(&f->v, 'n', f->count);
    if (f->kind == FORM_JSON) {
        f->keys = task_json(json_pack("[s]", draw_chance(d, 0.75) ? DRAW(d, keys) : word_plain(d)));
        form_name_keys(&f->v, f->keys, d);
    } else if (f->kind == FORM_FIELDS) {
        f->keys = form_fields_draw(&f->sentence, d);
        form_name_keys(&f->v, f->keys, d);
    }
    fill(&f->instruction, draw_one(d, instructions[f->kind], 9), &f->v);
}

static void form_end(form *f)
{
    buffer_free(&f->instruction);
    json_decref(f->keys);
}

/* ---- Turns ---------------------------------------------------------------------------------------------------- */

static void put_upper(buffer *out, const char *s)
{
    for (; *s; s++) buffer_char(out, (char)toupper((unsigned char)*s));
}

static void put_lower(buffer *out, const char *s)
{
    for (; *s; s++) buffer_char(out, (char)tolower((unsigned char)*s));
}

static bool only_digits(const char *s)
{
    return *s && s[strspn(s, "0123456789")] == 0;
}

static int words_of(const char *s)
{
    int n = 0;
    for (bool inside = false; *s; s++) {
        bool space = *s == ' ' || *s == '\n';
        n += !space && !inside;
        inside = !space;
    }
    return n;
}

static void put_without_punctuation(buffer *out, const fact *f)
{
    if (f->sum) {
        buffer_string(out, "The result is "), buffer_string(out, f->brief);
        return;
    }
    for (const char *s = text_of(&f->answer); *s; s++)
        if (!ispunct((unsigned char)*s)) buffer_char(out, *s);
}

/* The fact's answer in the form that is asked. */
static void put_answer(buffer *out, const form *f, const fact *given)
{
    const char *sentence = text_of(&given->answer);
    switch (f->kind) {
    case FORM_ONE_WORD:
    case FORM_DIGITS: buffer_string(out, given->brief); break;
    case FORM_YES_NO: buffer_string(out, given->brief), buffer_char(out, '.'); break;
    case FORM_START: fill(out, "{w}: ", &f->v), buffer_string(out, sentence); break;
    case FORM_END: buffer_string(out, sentence), fill(out, " {w}.", &f->v); break;
    case FORM_CAPITALS: put_upper(out, sentence); break;
    case FORM_LOWER: put_lower(out, sentence); break;
    case FORM_AT_MOST: buffer_string(out, words_of(sentence) <= f->count ? sentence : given->brief); break;
    case FORM_QUOTES: buffer_char(out, '"'), buffer_string(out, sentence), buffer_char(out, '"'); break;
    case FORM_NUMBER_WORDS: number_words(out, strtol(given->brief, NULL, 10)); break;
    case FORM_NO_PUNCTUATION: put_without_punctuation(out, given); break;
    case FORM_JSON: {
        const char *key = json_string_value(json_array_get(f->keys, 0));
        bool number = only_digits(given->brief);
        buffer_printf(out, number ? "{\"%s\": %s}" : "{\"%s\": \"%s\"}", key, given->brief);
        break;
    }
    default: buffer_string(out, sentence); break;
    }
}

static void fact_turn(exchange *e, const form *f, draw *d)
{
    fact given;
    do {
        if (f->kind == FORM_YES_NO)
            fact_yes_no(d, &given);
        else if (f->kind == FORM_DIGITS || f->kind == FORM_NUMBER_WORDS)
            fact_number(d, &given);
        else
            fact_make(d, &given);
        if (f->kind != FORM_ONE_WORD || !strchr(given.brief, ' ')) break;
        fact_free(&given);
    } while (true);
    buffer_string(&e->question, text_of(&given.question));
    put_answer(&e->answer, f, &given);
    e->expect = task_json(json_pack("{s:s}", "brief", given.brief));
    fact_free(&given);
}

static void put_list(buffer *out, const form *f, size_t list, int count)
{
    for (int i = 0; i < count; i++) {
        const char *item = list_item(list, (size_t)i);
        if (f->kind == FORM_NUMBERED) buffer_printf(out, "%s%d. %s", i ? "\n" : "", i + 1, item);
        if (f->kind == FORM_BULLETS) buffer_printf(out, "%s- %s", i ? "\n" : "", item);
        if (f->kind == FORM_COMMAS) buffer_printf(out, "%s%s", i ? ", " : "", item);
        if (f->kind == FORM_WORDS) buffer_printf(out, "%s%s", i ? " " : "", item);
    }
}

/* "Name four fruits."; where the form itself says how many words there are, the question does not. */
static void list_turn(exchange *e, const form *f, draw *d)
{
    static const char *const counted[] = {
        "Name {n} {l}.",    "List {n} {l}.",   "Give me {n} {l}.",    "Tell me {n} {l}.",
        "{n} {l}, please.", "I need {n} {l}.", "Write down {n} {l}.", "Which {n} {l} do you know?"};
    static const char *const open[] = {"Name some {l}.",         "List {l}.",         "Give me {l}.",
                                       "Which {l} do you know?", "Tell me some {l}.", "Some {l}, please."};
    size_t list = (size_t)draw_between(d, 0, (int64_t)list_count() - 1);
    int count = f->kind == FORM_WORDS ? f->count : (int)draw_between(d, LIST_SHORTEST, LIST_LONGEST);
    slots v;
    slots_clear(&v);
    slots_text(&v, 'l', list_name(list));
    slots_text(&v, 'n', number_word(count));
    if (draw_chance(d, 0.3)) slots_number(&v, 'n', count);
    fill(&e->question, f->kind == FORM_WORDS ? DRAW(d, open) : DRAW(d, counted), &v);
    if (f->kind != FORM_WORDS) e->question.data[0] = (char)toupper((unsigned char)e->question.data[0]);
    put_list(&e->answer, f, list, count);
    e->expect = task_json(json_pack("{s:i, s:i}", "list", (int)list, "count", count));
}

static void persona_turn(exchange *e, const form *f, draw *d)
{
    static const char *const asks[] = {
        "What is your name?|What's your name?|Your name?|How are you called?|Do you have a name?",
        "Who are you?|Introduce yourself.|Who am I talking to?|What are you?",
        "Hello!|Hi|Hello|Hey|Hi there!|Good morning!"};
    static const char *const answers[] = {"My name is {w}.", "I am {w}. How can I help you?",
                                          "Hello! I am {w}. How can I help you?"};
    int64_t i = draw_between(d, 0, 2);
    const char *p = asks[i];
    int64_t count = 1;
    for (const char *c = p; *c; c++) count += *c == '|';
    for (int64_t skip = draw_between(d, 0, count - 1); skip > 0; skip--) p = strchr(p, '|') + 1;
    buffer_append(&e->question, p, strcspn(p, "|"));
    fill(&e->answer, answers[i], &f->v);
    e->expect = task_json(json_pack("{s:s}", "brief", f->word));
}

static void any_turn(exchange *e, const form *f, draw *d)
{
    if (f->kind == FORM_FIELDS)
        form_fields_turn(f->sentence, f->keys, d, &e->question, &e->answer, &e->expect);
    else if (is_list(f->kind))
        list_turn(e, f, d);
    else if (f->kind == FORM_PERSONA && draw_chance(d, 0.7))
        persona_turn(e, f, d);
    else
        fact_turn(e, f, d);
    json_object_set_new(e->expect, "form", json_integer(f->kind));
    if (f->kind == FORM_START || f->kind == FORM_END) json_object_set_new(e->expect, "word", task_string(f->word));
    if (f->kind == FORM_AT_MOST) json_object_set_new(e->expect, "count", json_integer(f->count));
    if (f->kind == FORM_JSON) json_object_set(e->expect, "key", json_array_get(f->keys, 0));
}

static void exchange_free(exchange *e)
{
    buffer_free(&e->question), buffer_free(&e->answer);
    json_decref(e->expect);
    *e = (exchange){0};
}

/* The instruction and what is to be said in its form decide the split, not how the question is put. */
static bool is_held_out(const form *f, const exchange *e)
{
    buffer key = {0};
    buffer_string(&key, text_of(&f->instruction)), buffer_string(&key, text_of(&e->answer));
    bool out = draw_held_out(draw_hash(text_of(&key), key.length));
    buffer_free(&key);
    return out;
}

static void make(task_split split, draw *d, int length, task *out)
{
    static const char *const modes[] = {"adaptive", "disabled", "enabled"};
    static const int shares[] = {70, 17, 13};
    size_t mode = draw_weighted(d, shares, 3);
    form f;
    exchange e = {0};
    buffer system = {0}, thought = {0};
    bool found = false;
    /* A form whose combinations with short answers are few may have none in the split. */
    do {
        form_begin(&f, d);
        for (int i = 0; i < 200 && !found; i++) {
            exchange_free(&e);
            any_turn(&e, &f, d);
            found = is_held_out(&f, &e) == (split == TASK_HELD_OUT);
        }
        if (!found) form_end(&f);
    } while (!found);
    bool in_system = draw_chance(d, 0.85) || f.kind == FORM_PERSONA;
    if (in_system && draw_chance(d, 0.2)) buffer_string(&system, word_system(d)), buffer_char(&system, ' ');
    if (in_system) buffer_string(&system, text_of(&f.instruction));
    fill(&thought, remarks[f.kind], &f.v);
    task_start(out, (int)f.kind, modes[mode], in_system ? text_of(&system) : NULL);
    while (true) {
        if (f.kind != FORM_FIELDS) vary_typing(&e.question, d); /* names are copied as they are written */
        if (!in_system) buffer_char(&e.question, ' '), buffer_string(&e.question, text_of(&f.instruction));
        task_user(out, text_of(&e.question));
        task_answer(out, mode == 2 ? text_of(&thought) : NULL, text_of(&e.answer));
        task_ask(out, 0, json_incref(e.expect));
        if (!task_wants(out, length)) break;
        for (int i = 0; i < 200; i++) {
            exchange_free(&e);
            any_turn(&e, &f, d);
            if (is_held_out(&f, &e) == (split == TASK_HELD_OUT)) break;
        }
        if (is_held_out(&f, &e) != (split == TASK_HELD_OUT)) break;
    }
    exchange_free(&e);
    form_end(&f);
    buffer_free(&system), buffer_free(&thought);
}

const task_kind tasks_form = {"form", families, make, form_mark};
