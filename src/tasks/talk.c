/*
 * Talk: greetings, what the model is, Hayate, a handful of facts, names, repeating, and what it does not know. Answers
 * are short. Marked is what can be: facts, repeated words, the user's name, sums, and what an answer about Hayate must
 * say. What is known is known in both splits; only sums are held out.
 */
#include <stdio.h>
#include <string.h>

#include "tasks/facts.h"
#include "tasks/intents.h"
#include "tasks/make.h"
#include "tasks/repeat.h"
#include "tasks/stories.h"
#include "tasks/sums.h"
#include "tasks/words.h"

enum { FAMILY_SELF, FAMILY_HAYATE, FAMILY_FACT, FAMILY_UNKNOWN, FAMILY_REPEAT, FAMILY_NAME, FAMILY_SUM };

static const char *const families[] = {"self", "hayate", "fact", "unknown", "repeat", "name", "sum", NULL};

typedef struct exchange {
    buffer question, thought, answer;
    const char *has; /* what a right answer says; NULL: not marked */
    bool exact;      /* it is all that it says */
    bool think;      /* also in mode adaptive */
    char store[96];
} exchange;

static void exchange_free(exchange *e)
{
    buffer_free(&e->question), buffer_free(&e->thought), buffer_free(&e->answer);
}

static void intent_turn(exchange *e, const intent *table, size_t count, const char *thought, draw *d)
{
    const intent *i = &table[draw_between(d, 0, (int64_t)count - 1)];
    intent_pick(&e->question, i->asks, d);
    vary_typing(&e->question, d);
    buffer_string(&e->thought, thought);
    intent_pick(&e->answer, i->answers, d);
    e->has = i->need;
}

static void fact_turn(exchange *e, draw *d)
{
    fact f;
    if (draw_chance(d, 0.15))
        fact_yes_no(d, &f);
    else
        fact_make(d, &f);
    strcpy(e->store, f.brief);
    e->has = e->store;
    buffer_string(&e->question, text_of(&f.question));
    vary_typing(&e->question, d);
    buffer_string(&e->thought, "This is simple: "), buffer_string(&e->thought, f.brief), buffer_char(&e->thought, '.');
    buffer_string(&e->answer, text_of(&f.answer));
    fact_free(&f);
}

static void unknown_turn(exchange *e, draw *d)
{
    const char *brief;
    unknown_make(d, &e->question, &e->answer, &brief);
    buffer_string(&e->thought, "I do not know this. I say so politely.");
}

static void repeat_turn(exchange *e, draw *d)
{
    buffer what = {0};
    repeat_make(d, &e->question, &what);
    buffer_string(&e->thought, "I repeat it.");
    buffer_string(&e->answer, text_of(&what));
    e->has = text_of(&e->answer), e->exact = true;
    buffer_free(&what);
}

/* The user gives a name, or asks for the one that was given. */
static void name_turn(exchange *e, char name[32], draw *d)
{
    static const char *const gives[] = {
        "My name is {n}.",      "I am {n}.", "I'm {n}", "Hi, I am {n}.", "Hello, my name is {n}!", "Call me {n}.",
        "This is {n} speaking."};
    static const char *const greets[] = {"Nice to meet you, {n}!", "Hello, {n}! How can I help you?"};
    static const char *const asks[] = {
        "What is my name?",        "Do you remember my name?",   "Who am I?", "What's my name?", "How am I called?",
        "Please tell me my name.", "What did I say my name was?"};
    slots v;
    slots_clear(&v);
    if (!*name || draw_chance(d, 0.3)) {
        char made_up[16];
        word_title(draw_chance(d, 0.6) ? word_name(d) : word_made_up(d, made_up), name);
        slots_text(&v, 'n', name);
        fill(&e->question, DRAW(d, gives), &v);
        fill(&e->answer, DRAW(d, greets), &v);
        fill(&e->thought, "The user is called {n}.", &v);
    } else {
        slots_text(&v, 'n', name);
        buffer_string(&e->question, DRAW(d, asks));
        vary_typing(&e->question, d);
        fill(&e->answer, "Your name is {n}.", &v);
        fill(&e->thought, "The user said the name: {n}.", &v);
    }
    e->has = name;
}

/* Sums and short stories in the middle of other talk, with the thought that they have elsewhere. */
static void sum_turn(exchange *e, bool direct, task_split split, draw *d)
{
    int64_t result;
    bool wants_steps = false;
    if (!direct && draw_chance(d, 0.3)) {
        story_make(d, split, (int)draw_between(d, 1, 3), &e->question, &e->thought, &e->answer, &result);
        e->think = true;
    } else {
        sum s;
        do s = sum_draw(d, split);
        while (direct && !sum_direct(&s));
        sum_ask(&e->question, &s, d, &wants_steps);
        sum_whole_thought(&e->thought, &s);
        sum_sentence(&e->answer, &s);
        result = sum_result(&s);
        e->think = !sum_easy(&s) || wants_steps;
    }
    vary_typing(&e->question, d);
    snprintf(e->store, sizeof e->store, "%lld", (long long)result);
    e->has = e->store;
}

static void make(task_split split, draw *d, int length, task *out)
{
    static const char *const modes[] = {"adaptive", "disabled", "enabled"};
    static const int mode_shares[] = {66, 20, 14}, shares[] = {22, 30, 15, 12, 7, 8, 9};
    size_t mode = draw_weighted(d, mode_shares, 3);
    char name[32] = "";
    task_start(out, 0, modes[mode], draw_chance(d, 0.4) ? word_system(d) : NULL);
    for (bool first = true; task_wants(out, length); first = false) {
        exchange e = {0};
        int family = (int)draw_weighted(d, shares, 7);
        switch (family) {
        case FAMILY_SELF:
            intent_turn(&e, self_intents, self_intent_count, "This is small talk. A short answer will do.", d);
            break;
        case FAMILY_HAYATE:
            intent_turn(&e, hayate_intents, hayate_intent_count, "The user asks about Hayate. I know this.", d);
            break;
        case FAMILY_FACT: fact_turn(&e, d); break;
        case FAMILY_UNKNOWN: unknown_turn(&e, d); break;
        case FAMILY_REPEAT: repeat_turn(&e, d); break;
        case FAMILY_NAME: name_turn(&e, name, d); break;
        default: sum_turn(&e, mode == 1, split, d); break;
        }
        if (first) out->family = family;
        task_user(out, text_of(&e.question));
        task_answer(out, mode == 2 || (mode == 0 && e.think) ? text_of(&e.thought) : NULL, text_of(&e.answer));
        if (e.has) task_ask(out, 0, task_json(json_pack("{s:s, s:b}", "has", e.has, "exact", e.exact)));
        exchange_free(&e);
    }
}

static bool mark(const task *t, size_t turn, const char *reasoning, const char *content, bool *valid)
{
    const json_t *expect = t->turns[turn].expect;
    const char *has = json_string_value(json_object_get(expect, "has"));
    (void)reasoning;
    *valid = *content != 0;
    return json_is_true(json_object_get(expect, "exact")) ? repeat_equal(content, has) : has_word(content, has);
}

const task_kind tasks_talk = {"talk", families, make, mark};
