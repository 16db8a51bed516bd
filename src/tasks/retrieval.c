/*
 * Values of names in a long text, asked one after the other.
 *
 * In training many questions follow one text, so that a row of 16,384 tokens teaches more than one lookup; each asks
 * for another record. An evaluation has a record at every tenth of the text, and each of its questions makes sense
 * directly behind the text. An answer repeats the question's words up to the value: whoever finds the record has to
 * copy.
 */
#include "tasks/retrieval.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tasks/make.h"

enum {
    RECORDS, /* questions after the text has been acknowledged */
    LIST,    /* lines of names and values instead of sentences */
    BEHIND,  /* the first question stands behind the text in the same message */
    BEFORE,  /* in front of it */
    SEVERAL, /* several things are said of each name, in different places */
    TWO_HOPS,
    CHAIN,
};

static const char *const families[] = {"records", "list", "behind", "before", "several", "two hops", "chain", NULL};

enum { HEAD_TOKENS = 270, QUESTION_TOKENS = 38, RECORD_TOKENS = 16, TENTHS = 11 };

/* What is asked for: record `first`, and from there `hops` links on. */
typedef struct question {
    int first, last;
    bool known, brief, links;
    buffer text, thought, answer;
} question;

/* ---- Questions and answers -------------------------------------------------------------------------------------- */

static const char *const asking[] = {
    "What is the {a} of {n}?",     "What is the {a} of {n}?",
    "What is the {a} of {n}?",     "What is {n}'s {a}?",
    "Tell me the {a} of {n}.",     "And the {a} of {n}?",
    "Which {a} does {n} have?",    "Give me the {a} of {n}.",
    "I need the {a} of {n}.",      "Please find the {a} of {n}.",
    "Look up the {a} of {n}.",     "what is the {a} of {n}",
    "Do you know the {a} of {n}?", "According to the text, what is the {a} of {n}?",
};

static const char *const briefly[] = {" Only the {a}, please.", " Answer with the {a} only.", " Just the {a}."};

static void put_question(question *q, const char *attribute, const char *name, draw *d)
{
    slots s;
    slots_clear(&s);
    slots_text(&s, 'a', attribute);
    slots_text(&s, 'n', name);
    fill(&q->text, DRAW(d, asking), &s);
    if (q->brief) fill(&q->text, DRAW(d, briefly), &s);
}

/* "The code of bamiro is 4821." */
static void put_answer(question *q, const char *attribute, const char *name, const char *value, buffer *out)
{
    if (q->brief && value) {
        buffer_string(out, value);
        return;
    }
    buffer_printf(out, "The %s of %s is %s.", attribute, name, value ? value : "not in the text");
}

static void put_link(const haystack *h, const record *r, buffer *out)
{
    if (out->length) buffer_char(out, ' ');
    if (h->form == HAYSTACK_CHAIN)
        buffer_printf(out, r->leads_to >= 0 ? "%s equals %s." : "%s is %s.", r->name, r->value);
    else
        buffer_printf(out, "The %s of %s is %s.", r->attribute, r->name, r->value);
}

static void ask_record(const haystack *h, int which, draw *d, question *q)
{
    const record *r = &h->records[which];
    q->first = q->last = which;
    q->known = true;
    q->brief = draw_chance(d, 0.12);
    put_question(q, r->attribute, r->name, d);
    put_answer(q, r->attribute, r->name, r->value, &q->answer);
    buffer_printf(&q->thought, "I look for the %s of %s.", r->attribute, r->name);
}

/* A name that the text does not have, or something that it does not say of a name that it has. */
static void ask_unknown(const haystack *h, draw *d, question *q)
{
    char name[NAME_SIZE];
    const record *r = &h->records[draw_between(d, 0, h->count - 1)];
    const char *attribute = h->form == HAYSTACK_TEXT ? haystack_new_attribute(d) : h->records[0].attribute;
    bool other = h->form == HAYSTACK_TEXT && draw_chance(d, 0.25);
    snprintf(name, sizeof name, "%s", r->name);
    for (int i = 0; i < h->count; i++)
        if (!strcmp(h->records[i].name, name) && !strcmp(h->records[i].attribute, attribute)) other = false;
    if (!other) haystack_new_name(h, d, name);
    q->known = false;
    put_question(q, attribute, name, d);
    put_answer(q, attribute, name, NULL, &q->answer);
    buffer_printf(&q->thought, "I look for the %s of %s.", attribute, name);
}

/* The value at the end of the links that start with record `which`, links spelled out before it. */
static void ask_links(const haystack *h, int which, draw *d, question *q)
{
    const record *first = &h->records[which], *last = first;
    slots s;
    q->first = which;
    q->known = q->links = true;
    put_link(h, first, &q->thought);
    while (last->leads_to >= 0) {
        last = &h->records[last->leads_to];
        put_link(h, last, &q->thought);
    }
    q->last = (int)(last - h->records);
    slots_clear(&s);
    slots_text(&s, 'n', first->name);
    slots_text(&s, 'a', last->attribute);
    slots_text(&s, 'b', first->attribute);
    if (h->form == HAYSTACK_CHAIN) {
        static const char *const values[] = {"What is the value of {n}?", "What is {n}?", "Which value does {n} have?"};
        fill(&q->text, DRAW(d, values), &s);
        put_answer(q, "value", first->name, last->value, &q->answer);
    } else {
        static const char *const hops[] = {"What is the {a} of the {b} of {n}?", "What is the {a} of {n}'s {b}?",
                                           "Tell me the {a} of the {b} of {n}."};
        fill(&q->text, DRAW(d, hops), &s);
        put_answer(q, last->attribute, last->name, last->value, &q->answer);
    }
}

/* ---- Texts ----------------------------------------------------------------------------------------------------- */

/* The value of a record is the name of another. */
static void lead_to(haystack *h, int from, int to)
{
    memcpy(h->records[from].value, h->records[to].name, NAME_SIZE);
    h->records[from].leads_to = to;
}

static void make_records(haystack *h, int family, int count, draw *d)
{
    for (int i = 0; i < count; i++) haystack_add(h, d);
    if (family == SEVERAL) {
        /* Every other record speaks of the name before it, of something else. */
        for (int i = 1; i < count; i += 2) {
            record *r = &h->records[i], *other = &h->records[i - 1];
            memcpy(r->name, other->name, sizeof r->name);
            while (!strcmp(r->attribute, other->attribute)) r->attribute = haystack_new_attribute(d);
            haystack_new_value(h, r->attribute, d, r->value);
        }
    }
    if (family == TWO_HOPS) {
        static const char *const relations[] = {"owner", "friend", "partner", "boss", "neighbour"};
        for (int i = 1; i < count; i += 2) {
            record *r = &h->records[i];
            r->attribute = DRAW(d, relations);
            lead_to(h, i, i - 1);
        }
    }
    if (family == CHAIN) {
        /* Runs of two to four: each name but the first is that of the one before. */
        for (int i = 0; i < count;) {
            int run = (int)draw_between(d, 2, 4);
            for (int k = 1; k < run && i + k < count; k++) lead_to(h, i + k, i + k - 1);
            i += run;
        }
    }
}

static void shuffle(int *order, int count, draw *d)
{
    for (int i = count - 1; i > 0; i--) {
        int k = (int)draw_between(d, 0, i), other = order[k];
        order[k] = order[i];
        order[i] = other;
    }
}

/* ---- Conversations ---------------------------------------------------------------------------------------------- */

static const char *const intros[] =
    {
        "Read this text. I will ask you about it.\n\n", "Here is a text:\n\n",
        "Please read the following notes.\n\n",         "Text:\n",
        "Remember what stands in this text.\n\n",       "Read this:\n\n",
},
                         *const list_intros[] = {"Here is a list of every {a}:\n", "List ({a}):\n",
                                                 "Read this list. Each line has a name and its {a}.\n\n"},
                         *const chain_intros[] = {"Read this. Each name has a value.\n\n",
                                                  "Here are some names and their values:\n\n"};

static void put_intro(const haystack *h, draw *d, buffer *out)
{
    slots s;
    slots_clear(&s);
    slots_text(&s, 'a', h->records[0].attribute);
    if (h->form == HAYSTACK_TEXT) buffer_string(out, DRAW(d, intros));
    if (h->form == HAYSTACK_LIST) fill(out, DRAW(d, list_intros), &s);
    if (h->form == HAYSTACK_CHAIN) buffer_string(out, DRAW(d, chain_intros));
}

static void begin_question(question *q)
{
    *q = (question){.first = -1, .last = -1};
}

static void end_question(question *q)
{
    buffer_free(&q->text);
    buffer_free(&q->thought);
    buffer_free(&q->answer);
}

/* The answer, its thought where there is one, and what the marker wants to know: the value or null. */
static void answer(task *t, const haystack *h, question *q)
{
    bool links = q->links, thinks = !strcmp(t->thinking, "enabled");
    buffer whole = {0};
    if (links && !strcmp(t->thinking, "adaptive")) thinks = true;
    /* Without thinking the links are part of the answer. */
    if (links && !thinks) {
        buffer_string(&whole, text_of(&q->thought));
        buffer_char(&whole, ' ');
        if (h->form == HAYSTACK_TEXT) buffer_clear(&q->answer);
    }
    buffer_string(&whole, text_of(&q->answer));
    while (whole.length && whole.data[whole.length - 1] == ' ') whole.data[--whole.length] = 0;
    task_answer(t, thinks ? text_of(&q->thought) : NULL, text_of(&whole));
    task_ask(t, q->known ? h->records[q->first].depth : 0,
             q->known ? task_string(h->records[q->last].value) : task_json(json_null()));
    buffer_free(&whole);
}

static void choose(const haystack *h, int family, int which, double unknown, draw *d, question *q)
{
    if (draw_chance(d, unknown))
        ask_unknown(h, d, q);
    else if (h->records[which].leads_to >= 0)
        ask_links(h, which, d, q);
    else if (family == CHAIN)
        ask_links(h, which, d, q);
    else
        ask_record(h, which, d, q);
}

static const char *thinking_of(draw *d)
{
    static const char *const modes[] = {"adaptive", "disabled", "enabled"};
    static const int weights[] = {80, 14, 6};
    return modes[draw_weighted(d, weights, 3)];
}

static int clamp(int x, int low, int high)
{
    return x < low ? low : x > high ? high : x;
}

/* How many records: dense texts and sparse ones, whatever the length. */
static int record_count(int family, int tokens, draw *d)
{
    int most = tokens / RECORD_TOKENS, every = (int)draw_between(d, 0, 3) * 60 + (int)draw_between(d, 18, 80);
    if (family == LIST) return clamp(tokens / 10, 2, RECORDS_MAX);
    return clamp(tokens / every, 2, clamp(most, 2, RECORDS_MAX));
}

static void make_training(task_split split, draw *d, int length, task *t)
{
    static const int weights[] = {52, 14, 11, 7, 6, 5, 5};
    int family = (int)draw_weighted(d, weights, sizeof weights / sizeof *weights);
    haystack h;
    haystack_begin(&h, family == LIST ? HAYSTACK_LIST : family == CHAIN ? HAYSTACK_CHAIN : HAYSTACK_TEXT, split, d);
    int questions = (int)(length >= 8192 ? draw_between(d, 24, 64) : draw_between(d, 12, 40));
    questions = clamp(questions, 1, (length - HEAD_TOKENS) / 2 / QUESTION_TOKENS);
    if (questions < 1) questions = 1;
    int tokens = clamp(length - HEAD_TOKENS - questions * QUESTION_TOKENS, 48, 1 << 20);
    int count = record_count(family, tokens, d);
    if (count < questions) count = clamp(questions, 2, clamp(tokens / RECORD_TOKENS, 2, RECORDS_MAX));
    if (count < questions) questions = count;
    make_records(&h, family, count, d);
    int order[RECORDS_MAX];
    for (int i = 0; i < count; i++) order[i] = i;
    shuffle(order, count, d);

    /* Two-hop texts are asked for what leads on; a name of several records is asked for all. */
    buffer text = {0}, hay = {0};
    haystack_write(&h, d, tokens, &hay);
    task_start(t, family, thinking_of(d), NULL);
    question q;
    double unknown = family == TWO_HOPS || family == CHAIN ? 0 : 0.07;
    int next = 0;
    if (family == BEFORE || family == BEHIND) {
        begin_question(&q);
        choose(&h, family, order[next++], unknown, d, &q);
        if (family == BEFORE) buffer_printf(&text, "%s\n\n%s", text_of(&q.text), text_of(&hay));
        if (family == BEHIND) {
            if (draw_chance(d, 0.5)) put_intro(&h, d, &text);
            buffer_printf(&text, "%s\n\n%s", text_of(&hay), text_of(&q.text));
        }
        task_user(t, text_of(&text));
        answer(t, &h, &q);
        end_question(&q);
    } else {
        put_intro(&h, d, &text);
        buffer_string(&text, text_of(&hay));
        task_user(t, text_of(&text));
        task_answer(t, !strcmp(t->thinking, "enabled") ? "I read the text." : NULL, "I have read it.");
    }
    for (; next < questions; next++) {
        begin_question(&q);
        choose(&h, family, order[next], unknown, d, &q);
        task_user(t, text_of(&q.text));
        answer(t, &h, &q);
        end_question(&q);
    }
    buffer_free(&text);
    buffer_free(&hay);
    haystack_free(&h);
}

/* One text, a record at every tenth, other records between. */
static void make_evaluation(task_split split, draw *d, int length, task *t)
{
    haystack h;
    haystack_begin(&h, HAYSTACK_TEXT, split, d);
    int tokens = clamp(length - HEAD_TOKENS - QUESTION_TOKENS, 48, 1 << 20);
    make_records(&h, RECORDS, clamp(TENTHS + tokens / 160, TENTHS, RECORDS_MAX), d);
    for (int i = 0; i < TENTHS; i++) h.records[i].at = i / (double)(TENTHS - 1);
    buffer text = {0};
    put_intro(&h, d, &text);
    haystack_write(&h, d, tokens, &text);
    task_start(t, RECORDS, "adaptive", NULL);
    task_user(t, text_of(&text));
    task_answer(t, NULL, "I have read it.");
    for (int i = 0; i < TENTHS; i++) {
        question q;
        begin_question(&q);
        ask_record(&h, i, d, &q);
        h.records[i].depth = i * 10;
        task_user(t, text_of(&q.text));
        answer(t, &h, &q);
        end_question(&q);
    }
    buffer_free(&text);
    haystack_free(&h);
}

static void make(task_split split, draw *d, int length, task *t)
{
    if (split == TASK_HELD_OUT)
        make_evaluation(split, d, length, t);
    else
        make_training(split, d, length, t);
}

/* ---- Marks ----------------------------------------------------------------------------------------------------- */

static bool word_char(char c)
{
    return isalnum((unsigned char)c) || (unsigned char)c >= 128;
}

/* Whether all words of the answer are the question's, the reference's or words without a meaning: no other value. */
static bool nothing_else(const char *content, const char *question_text, const char *reference)
{
    static const char *const empty[] = {"a",   "an",   "the",   "of",     "is",   "it",   "its",
                                        "in",  "text", "has",   "and",    "to",   "that", "as",
                                        "for", "here", "value", "answer", "with", "this", "not"};
    char word[64];
    for (const char *c = content; *c;) {
        size_t n = 0;
        while (word_char(c[n])) n++;
        if (n >= sizeof word) return false;
        if (n) {
            memcpy(word, c, n);
            word[n] = 0;
            bool fine = has_word(question_text, word) || has_word(reference, word);
            for (size_t i = 0; !fine && i < sizeof empty / sizeof *empty; i++) fine = !strcasecmp(word, empty[i]);
            if (!fine) return false;
        }
        c += n ? n : 1;
    }
    return true;
}

static bool mark(const task *t, size_t turn, const char *reasoning, const char *content, bool *valid)
{
    const task_turn *at = &t->turns[turn];
    const char *reference = task_text(t, at->message, "content"), *asked = task_text(t, at->message - 1, "content");
    const char *value = json_string_value(at->expect);
    (void)reasoning;
    *valid = *content != 0 && strlen(content) < 1000;
    if (!*valid) return false;
    /* Before or behind a text the question is all of the text: then the reference alone says what belongs in. */
    if (strlen(asked) > 200) asked = "";
    bool denies = has_word(content, "not") || has_word(content, "no");
    if (!value) return denies && nothing_else(content, asked, reference);
    return !denies && has_word(content, value) && nothing_else(content, asked, reference);
}

const task_kind tasks_retrieval = {"retrieval", families, make, mark};
