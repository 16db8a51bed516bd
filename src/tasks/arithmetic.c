/*
 * Sums and word problems, one after the other.
 *
 * Mode "enabled" writes its steps for all of them, "adaptive" for those that are not easy, "disabled" is asked only
 * what can be answered at once. Some clients do not send earlier thoughts back: in a fifth of the conversations earlier
 * answers have none, and only the last one is to be imitated.
 */
#include <string.h>

#include "tasks/make.h"
#include "tasks/stories.h"
#include "tasks/sums.h"
#include "tasks/words.h"

enum {
    FAMILY_SUM,
    FAMILY_DIFFERENCE,
    FAMILY_THREE,
    FAMILY_PRODUCT,
    FAMILY_QUOTIENT,
    FAMILY_STORY, /* of one step; those of more follow */
};

static const char *const families[] = {
    "sum",           "difference",     "three numbers",  "product",        "quotient",
    "story, 1 step", "story, 2 steps", "story, 3 steps", "story, 4 steps", NULL,
};

typedef struct exchange {
    buffer question, thought, answer;
    int64_t result;
    bool easy; /* answered at once in mode adaptive */
    int family;
} exchange;

static void turn_free(exchange *t)
{
    buffer_free(&t->question), buffer_free(&t->thought), buffer_free(&t->answer);
}

static void sum_turn(exchange *t, const sum *s, draw *d)
{
    bool wants_steps;
    sum_ask(&t->question, s, d, &wants_steps);
    sum_whole_thought(&t->thought, s);
    t->result = sum_result(s);
    sum_sentence(&t->answer, s);
    t->easy = sum_easy(s) && !wants_steps;
    t->family = FAMILY_SUM + (int)s->kind;
}

/* "Now add 5.": goes on from the last result. False when that is no number to go on from. */
static bool follow_turn(exchange *t, int64_t last, draw *d, task_split split)
{
    static const char *const more[] = {"Now add {c}.", "And plus {c}?", "Add {c} to that.",
                                       "plus {c}",     "Add {c} more.", "And {c} more?"};
    static const char *const less[] = {"Now subtract {c}.", "And minus {c}?",          "Take away {c}.",
                                       "minus {c}",         "Subtract {c} from that.", "And {c} less?"};
    sum s = {.kind = draw_chance(d, 0.5) ? SUM_ADD : SUM_SUBTRACT, .x = {last, 0, 0}};
    if (last < 0 || last >= 10000) return false;
    s.x[1] = sum_number(d, (int)draw_between(d, 1, 3));
    if ((s.kind == SUM_SUBTRACT && s.x[1] > last) || sum_held_out(&s) != (split == TASK_HELD_OUT)) return false;
    slots v;
    slots_clear(&v);
    slots_number(&v, 'c', s.x[1]);
    sum_turn(t, &s, d);
    buffer_clear(&t->question);
    fill(&t->question, s.kind == SUM_ADD ? DRAW(d, more) : DRAW(d, less), &v);
    t->easy = false;
    return true;
}

static void story_turn(exchange *t, int steps, draw *d, task_split split)
{
    story_make(d, split, steps, &t->question, &t->thought, &t->answer, &t->result);
    t->family = FAMILY_STORY + steps - 1;
    t->easy = false;
}

static void any_turn(exchange *t, bool direct, int64_t last, draw *d, task_split split)
{
    static const int lengths[] = {30, 36, 22, 12};
    if (last >= 0 && draw_chance(d, 0.12) && follow_turn(t, last, d, split)) return;
    if (draw_chance(d, direct ? 0.2 : 0.5)) {
        story_turn(t, direct ? 1 : (int)draw_weighted(d, lengths, 4) + 1, d, split);
        return;
    }
    sum s;
    do s = sum_draw(d, split);
    while (direct && !sum_direct(&s));
    sum_turn(t, &s, d);
}

static void make(task_split split, draw *d, int length, task *out)
{
    static const char *const modes[] = {"enabled", "adaptive", "disabled"};
    static const int shares[] = {30, 52, 18};
    size_t mode = draw_weighted(d, shares, 3);
    bool forgets = length > 0 && mode != 2 && draw_chance(d, 0.2);
    int64_t last = -1;
    task_start(out, 0, modes[mode], draw_chance(d, 0.3) ? word_system(d) : NULL);
    /* The last turn of a forgetful client must not be lost to a row's end. */
    int wanted = forgets ? length - length / 8 : length;
    for (bool first = true; task_wants(out, wanted); first = false) {
        exchange t = {0};
        any_turn(&t, mode == 2, last, d, split);
        vary_typing(&t.question, d);
        if (first) out->family = t.family;
        if (!first && forgets) task_forget(out);
        task_user(out, text_of(&t.question));
        bool think = mode == 0 || (mode == 1 && !t.easy);
        task_answer(out, think ? text_of(&t.thought) : NULL, text_of(&t.answer));
        task_ask(out, 0, task_json(json_integer(t.result)));
        last = t.family < FAMILY_STORY ? t.result : -1;
        turn_free(&t);
    }
}

static bool mark(const task *t, size_t turn, const char *reasoning, const char *content, bool *valid)
{
    int64_t value = 0;
    (void)reasoning;
    *valid = last_number(content, &value);
    return *valid && value == json_integer_value(t->turns[turn].expect);
}

const task_kind tasks_arithmetic = {"arithmetic", families, make, mark};
