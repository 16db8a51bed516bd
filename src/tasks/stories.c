#include "tasks/stories.h"

#include <stdlib.h>
#include <string.h>

#include "tasks/sums.h"
#include "tasks/words.h"

static const char *const towns[] = {"Oslo", "Rome",  "Lima",  "Kyoto",  "Porto", "Riga",   "Bonn",   "Graz",
                                    "Cork", "Turin", "Malmo", "Geneva", "Leeds", "Austin", "Quebec", "Osaka",
                                    "Pune", "Perth", "Hanoi", "Bergen", "Ghent", "Lyon",   "Sofia",  "Tampa"};

int story_steps(const story *s)
{
    int n = 0;
    for (const char *p = s->steps; *p; p++) n += *p == '=';
    return n;
}

/* ---- The notation --------------------------------------------------------------------------------------------- */

/* A letter's value or a number. */
static int64_t operand(const char **p, const int64_t n[128])
{
    if (**p >= '0' && **p <= '9') return strtol(*p, (char **)p, 10);
    return n[(unsigned char)*(*p)++ & 127];
}

/* One "x=a*b" at *p; *step tells what it was, with operator in *sign. False: no whole or no positive number. */
static bool equation(const char **p, int64_t n[128], sum *step, char *sign)
{
    char letter = *(*p);
    *p += 2;
    int64_t a = operand(p, n);
    *sign = *(*p)++;
    int64_t b = operand(p, n), value;
    static const char signs[] = "+-+*/";
    const char *at = *sign == ':' || *sign == '%' ? "/" : strchr(signs, *sign);
    size_t kind = *at == '/' ? SUM_DIVIDE : (size_t)(at - signs);
    *step = (sum){.kind = (sum_kind)kind, .x = {a, b, 0}};
    if (*at == '/' && (!b || (*sign == '/' && a % b))) return false;
    value = *sign == '%' ? a % b : sum_result(step);
    n[(unsigned char)letter & 127] = value;
    while (**p == ' ') (*p)++;
    return value > 0 || (*sign == '%' && value == 0);
}

static bool draw_given(const char *p, draw *d, int64_t n[128])
{
    while (*p) {
        char letter = *p, *end;
        const char *dots = strstr(p, "..");
        const char *space = strchr(p, ' ');
        if (dots && (!space || dots < space)) {
            int64_t low = strtol(p + 2, &end, 10), high = strtol(end + 2, &end, 10);
            n[(unsigned char)letter & 127] = draw_between(d, low, high);
            p = end;
            while (*p == ' ') p++;
        } else {
            sum step;
            char sign;
            if (!equation(&p, n, &step, &sign)) return false;
        }
    }
    return true;
}

static bool steps_work(const char *p, int64_t n[128])
{
    sum step;
    char sign;
    bool ok = true;
    while (ok && *p) ok = equation(&p, n, &step, &sign);
    return ok;
}

/* Every letter of the given numbers and of the steps. */
static void number_slots(const char *p, const int64_t n[128], slots *v)
{
    for (; *p; p++)
        if (p[1] == '=') slots_number(v, *p, n[(unsigned char)*p & 127]);
}

bool story_try(const story *s, draw *d, slots *v, int64_t n[128])
{
    if (!draw_given(s->given, d, n) || !steps_work(s->steps, n)) return false;
    slots_clear(v);
    const char *people[3], *things[2];
    for (int i = 0; i < 3; i++) do
            people[i] = word_name(d);
        while ((i > 0 && people[i] == people[0]) || (i > 1 && people[i] == people[1]));
    do things[0] = word_thing(d), things[1] = word_thing(d);
    while (things[0] == things[1]);
    for (int i = 0; i < 3; i++) slots_text(v, "NMK"[i], people[i]);
    for (int i = 0; i < 2; i++) slots_text(v, "TU"[i], things[i]);
    slots_text(v, 'P', DRAW(d, towns));
    number_slots(s->given, n, v);
    number_slots(s->steps, n, v);
    return true;
}

/* ---- A story told --------------------------------------------------------------------------------------------- */

/* What the text shows decides the split: the same numbers with other names are the same problem. */
static bool is_held_out(const story *s, const slots *v)
{
    buffer key = {0};
    put_number(&key, s - stories);
    for (const char *p = s->text; *p; p++)
        if (*p == '{' && p[1] >= 'a' && p[1] <= 'z') buffer_char(&key, ' '), buffer_string(&key, v->of[(int)p[1]]);
    bool out = draw_held_out(draw_hash(text_of(&key), key.length));
    buffer_free(&key);
    return out;
}

static void put_thought(buffer *out, const story *s, const slots *v, int64_t n[128])
{
    const char *p = s->steps, *why = s->why;
    buffer reason = {0};
    while (*p) {
        sum step;
        char sign;
        size_t length = strcspn(why, "|");
        equation(&p, n, &step, &sign);
        buffer_clear(&reason);
        buffer_append(&reason, why, length);
        fill(out, text_of(&reason), v);
        buffer_string(out, ": ");
        if (sign == ':' || sign == '%')
            sum_inline_rest(out, step.x[0], step.x[1]);
        else
            sum_inline(out, &step);
        buffer_char(out, '.');
        if (*p) buffer_char(out, '\n');
        why += length + (why[length] == '|');
    }
    buffer_free(&reason);
}

void story_make(draw *d, task_split split, int steps, buffer *question, buffer *thought, buffer *answer,
                int64_t *result)
{
    slots v;
    int64_t n[128] = {0};
    const story *s;
    do {
        do s = &stories[draw_between(d, 0, (int64_t)story_count - 1)];
        while (steps < 4 ? story_steps(s) != steps : story_steps(s) < 4);
    } while (!story_try(s, d, &v, n) || is_held_out(s, &v) != (split == TASK_HELD_OUT));
    *result = n['r'];
    fill(question, s->text, &v);
    put_thought(thought, s, &v, n);
    fill(answer, s->answer, &v);
}
