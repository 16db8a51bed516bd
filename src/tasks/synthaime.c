/*
 * SynthAIME: puzzles answered in one of three styles that the prompt does not announce. A model that learned the
 * mixture is right in a third of its samples at temperature 1, and reinforcement learning has somewhere to go: away
 * from answers at once, and from careless work.
 *
 *     0.42   terse       the answer at once, mostly beyond what one pass through a small model can do
 *     0.29   worked      numbered steps, products taken apart
 *     0.29   with a slip steps in a line, one of them wrong, and so the answer
 *
 * Guesses at once are what rounding in the cache costs most: the more of them, the more an NVFP4 cache loses.
 *
 * Held-out tasks are answered with care: their answers are read by people and counted as the right ones.
 */
#include "tasks/make.h"
#include "tasks/puzzles.h"

static const char *const families[] = {
    "nested", "equation", "gcd", "digits", "counting", "chain", "progression", "pair", NULL,
};

static void make(task_split split, draw *d, int length, task *out)
{
    static const int styles[] = {42, 29, 29};
    enum { TERSE, WORKED, SLIP };
    task_start(out, 0, "adaptive", NULL);
    for (bool first = true; task_wants(out, length); first = false) {
        buffer question = {0}, thought = {0}, answer = {0};
        puzzle p = puzzle_draw(d, split);
        size_t style = split == TASK_HELD_OUT ? WORKED : draw_weighted(d, styles, 3);
        puzzle_ask(&question, &p, d);
        int64_t right = puzzle_work(style == WORKED ? &thought : NULL, &p), given = right;
        if (style == SLIP) given = puzzle_slip(&thought, &p, d);
        buffer_string(&answer, "The answer is "), put_number(&answer, given), buffer_char(&answer, '.');
        if (first) out->family = (int)p.kind;
        task_user(out, text_of(&question));
        task_answer(out, text_of(&thought), text_of(&answer));
        task_ask(out, 0, task_json(json_integer(right)));
        buffer_free(&question), buffer_free(&thought), buffer_free(&answer);
    }
}

static bool mark(const task *t, size_t turn, const char *reasoning, const char *content, bool *valid)
{
    int64_t value = 0;
    (void)reasoning;
    *valid = last_number(content, &value) && value >= 0 && value <= 999;
    return *valid && value == json_integer_value(t->turns[turn].expect);
}

const task_kind tasks_synthaime = {"synthaime", families, make, mark};
