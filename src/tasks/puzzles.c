#include "tasks/puzzles.h"

#include <string.h>

#include "tasks/sums.h"

/* How a puzzle is worked: the steps as they are written, and at which of them the slip is. */
typedef struct work {
    buffer *out; /* NULL: nothing is written */
    int step;    /* done so far */
    int slip_at; /* 0: no slip; careful */
    int64_t slip_by;
} work;

/* ---- Steps ---------------------------------------------------------------------------------------------------- */

static void begin_step(work *w)
{
    if (!w->out) return;
    if (w->slip_at)
        buffer_string(w->out, w->step ? ", " : "");
    else
        buffer_printf(w->out, "%sStep %d: ", w->step ? "\n" : "", w->step + 1);
}

static int64_t slipped(work *w, int64_t value)
{
    if (++w->step != w->slip_at) return value;
    return value + w->slip_by < 0 ? value - w->slip_by : value + w->slip_by;
}

/* a sign b, with / and % of whole numbers. Careless work has results only. */
static int64_t step(work *w, char sign, int64_t a, int64_t b)
{
    static const char signs[] = "+-?*/";
    sum s = {.kind = (sum_kind)(sign == '%' ? 0 : strchr(signs, sign) - signs), .x = {a, b, 0}};
    int64_t exact = sign == '%' ? a % b : sum_result(&s);
    begin_step(w);
    int64_t value = slipped(w, exact);
    if (!w->out) return value;
    if (sign == '%')
        put_number(w->out, a), buffer_string(w->out, " mod "), put_number(w->out, b), buffer_char(w->out, '=');
    else if (w->slip_at)
        sum_expression(w->out, &s, false, '*'), buffer_char(w->out, '=');
    else
        sum_inline(w->out, &s);
    if (w->slip_at || sign == '%') put_number(w->out, value);
    return value;
}

/* The quotient without its rest, which is said. */
static int64_t whole(work *w, int64_t a, int64_t b)
{
    begin_step(w);
    int64_t value = slipped(w, a / b);
    if (!w->out) return value;
    if (w->slip_at) {
        put_number(w->out, a), buffer_char(w->out, '/'), put_number(w->out, b), buffer_char(w->out, '=');
        put_number(w->out, value);
    } else {
        sum_inline_rest(w->out, a, b);
    }
    return value;
}

static int64_t below_1000(work *w, int64_t a)
{
    return a >= 1000 ? step(w, '%', a, 1000) : a;
}

/* Euclid: "126=84*1+42", until nothing is left. */
static int64_t gcd(work *w, int64_t a, int64_t b)
{
    while (b > 0) {
        begin_step(w);
        int64_t rest = slipped(w, a % b);
        if (rest >= b) rest = b - 1; /* a slip must not keep it from ending */
        if (w->out) {
            put_number(w->out, a), buffer_char(w->out, '='), put_number(w->out, b), buffer_char(w->out, '*');
            put_number(w->out, a / b), buffer_char(w->out, '+'), put_number(w->out, rest);
        }
        a = b, b = rest;
    }
    return a;
}

static int64_t digit_sum(work *w, int64_t a)
{
    int64_t total = 0, place = 1;
    begin_step(w);
    while (place * 10 <= a) place *= 10;
    for (; place; place /= 10) {
        int64_t digit = a / place % 10;
        total += digit;
        if (w->out) put_number(w->out, digit), buffer_char(w->out, place > 1 ? '+' : '=');
    }
    total = slipped(w, total);
    if (w->out) put_number(w->out, total);
    return total;
}

/* ---- The kinds ------------------------------------------------------------------------------------------------ */

static int64_t nested(const puzzle *p, work *w)
{
    const int64_t *n = p->n;
    int64_t v;
    switch (p->form) {
    case 0: v = step(w, '*', step(w, '-', step(w, '*', n[0], n[1]), n[2]), n[3]); break;
    case 1: v = step(w, '*', step(w, '+', step(w, '*', n[0], n[1]), n[2]), n[3]); break;
    case 2: v = step(w, '-', step(w, '*', step(w, '+', n[0], n[2]), n[1]), n[4]); break;
    case 3: {
        int64_t a = step(w, '*', n[0], n[1]), b = step(w, '*', n[2], n[3]);
        v = step(w, '*', step(w, '+', a, b), n[5]);
        break;
    }
    case 4: {
        int64_t a = step(w, '*', n[0], n[1]), b = step(w, '*', n[2], n[3]);
        v = step(w, '+', step(w, '-', a, b), n[4]);
        break;
    }
    default: v = step(w, '*', step(w, '+', step(w, '*', step(w, '-', n[0], n[2]), n[1]), n[4]), n[3]); break;
    }
    return below_1000(w, v);
}

static const char *const nested_text[] = {
    "(({a}*{b})-{c})*{d}",   "(({a}*{b})+{c})*{d}", "({a}+{c})*{b}-{e}",
    "({a}*{b}+{c}*{d})*{f}", "{a}*{b}-{c}*{d}+{e}", "(({a}-{c})*{b}+{e})*{d}",
};

static void draw_nested(puzzle *p, draw *d)
{
    p->form = (int)draw_between(d, 0, 5);
    for (int i = 0; i < 3; i += 2) p->n[i] = draw_between(d, 11, 99);
    p->n[4] = draw_between(d, 11, 99);
    for (int i = 1; i < 6; i += 2) p->n[i] = draw_between(d, 2, 9);
}

/* n0 x + n1 = n2, asked for n3 x + n4; form: the signs. */
static int64_t equation(const puzzle *p, work *w)
{
    const int64_t *n = p->n;
    int64_t x = whole(w, step(w, p->form & 1 ? '+' : '-', n[2], n[1]), n[0]);
    return below_1000(w, step(w, p->form & 2 ? '-' : '+', step(w, '*', x, n[3]), n[4]));
}

static void draw_equation(puzzle *p, draw *d)
{
    int64_t x = draw_between(d, 6, 60);
    p->form = (int)draw_between(d, 0, 3);
    p->n[0] = draw_between(d, 2, 9), p->n[1] = draw_between(d, 3, 99);
    p->n[2] = p->n[0] * x + (p->form & 1 ? -p->n[1] : p->n[1]);
    p->n[4] = draw_between(d, 2, 99);
    do p->n[3] = draw_between(d, 2, 9);
    while (p->n[3] == p->n[0]); /* else x need not be found */
}

static void draw_gcd_numbers(int64_t n[2], draw *d)
{
    int64_t g = draw_between(d, 3, 24), a = draw_between(d, 2, 9), b = draw_between(d, 2, 9);
    n[0] = g * (a > b ? a : b), n[1] = g * (a > b ? b : a);
    if (a == b) n[0] += g;
}

static int64_t gcd_then(const puzzle *p, work *w)
{
    int64_t g = gcd(w, p->n[0], p->n[1]);
    return below_1000(w, step(w, '+', step(w, '*', g, p->n[2]), p->n[3]));
}

static int64_t digits_then(const puzzle *p, work *w)
{
    return below_1000(w, step(w, '*', digit_sum(w, step(w, '*', p->n[0], p->n[1])), p->n[2]));
}

/* Multiples of n1 or n2 up to n0. */
static int64_t counting(const puzzle *p, work *w)
{
    int64_t a = whole(w, p->n[0], p->n[1]), b = whole(w, p->n[0], p->n[2]);
    int64_t both = whole(w, p->n[0], p->n[1] * p->n[2]);
    return step(w, '-', step(w, '+', a, b), both);
}

static void draw_counting(puzzle *p, draw *d)
{
    static const int64_t pairs[][2] = {{2, 3}, {2, 5}, {2, 7}, {3, 5}, {3, 7}, {5, 7},
                                       {3, 4}, {4, 5}, {5, 6}, {3, 8}, {4, 7}};
    const int64_t *pair = pairs[draw_between(d, 0, 10)];
    p->n[0] = draw_between(d, 40, 600), p->n[1] = pair[0], p->n[2] = pair[1];
}

/*
 * A chain: v0 = n0, v1 = v0 op n1, v2 = v1 op n2, v3 = v2 op n3; what is v3? Between them stand variables that lead
 * nowhere. `form` has two bits for each operator: + - * *.
 */
static char chain_sign(const puzzle *p, int i)
{
    return "+-**"[p->form >> (2 * i) & 3];
}

static int64_t chain(const puzzle *p, work *w)
{
    int64_t v = p->n[0];
    for (int i = 1; i < 5; i++) v = step(w, chain_sign(p, i), v, p->n[i]);
    return below_1000(w, v);
}

static void draw_chain(puzzle *p, draw *d)
{
    p->form = (int)draw_between(d, 0, 1023);
    p->n[0] = draw_between(d, 3, 30);
    for (int i = 1; i < 5; i++) p->n[i] = chain_sign(p, i) == '*' ? draw_between(d, 2, 9) : draw_between(d, 2, 60);
    for (int i = 5; i < 12; i++) p->n[i] = draw_between(d, 2, 60); /* distractors and their places */
}

/* The sum of the first n2 terms, n2 even, of n0, n0 + n1, ... */
static int64_t progression(const puzzle *p, work *w)
{
    int64_t last = step(w, '+', step(w, '*', p->n[1], p->n[2] - 1), p->n[0]);
    return below_1000(w, step(w, '*', step(w, '+', p->n[0], last), p->n[2] / 2));
}

static int64_t part(const struct puzzle_part *q, work *w)
{
    switch (q->kind) {
    case PUZZLE_GCD: return gcd(w, q->n[0], q->n[1]);
    case PUZZLE_DIGITS: return digit_sum(w, step(w, '*', q->n[0], q->n[1]));
    case PUZZLE_EQUATION: return whole(w, step(w, '-', q->n[2], q->n[1]), q->n[0]);
    default: return step(w, '-', step(w, '*', q->n[0], q->n[1]), q->n[2]);
    }
}

static void draw_part(struct puzzle_part *q, draw *d)
{
    static const puzzle_kind kinds[] = {PUZZLE_GCD, PUZZLE_DIGITS, PUZZLE_EQUATION, PUZZLE_NESTED};
    q->kind = kinds[draw_between(d, 0, 3)];
    int64_t x = draw_between(d, 6, 40);
    if (q->kind == PUZZLE_GCD) {
        draw_gcd_numbers(q->n, d);
        return;
    }
    q->n[0] = q->kind == PUZZLE_EQUATION ? draw_between(d, 2, 9) : draw_between(d, 12, 99);
    q->n[1] = q->kind == PUZZLE_EQUATION ? draw_between(d, 3, 60) : draw_between(d, 2, 9);
    q->n[2] = q->kind == PUZZLE_EQUATION ? q->n[0] * x + q->n[1] : draw_between(d, 5, 20);
}

static int64_t pair(const puzzle *p, work *w)
{
    int64_t u = part(&p->part[0], w), v = part(&p->part[1], w);
    if (p->form == 0) return below_1000(w, step(w, '+', step(w, '*', u, p->n[0]), v));
    if (p->form == 1) return below_1000(w, step(w, '*', step(w, '+', u, v), p->n[0]));
    return below_1000(w, step(w, '+', step(w, '+', u, v), p->n[1]));
}

static int64_t work_on(const puzzle *p, work *w)
{
    switch (p->kind) {
    case PUZZLE_NESTED: return nested(p, w);
    case PUZZLE_EQUATION: return equation(p, w);
    case PUZZLE_GCD: return gcd_then(p, w);
    case PUZZLE_DIGITS: return digits_then(p, w);
    case PUZZLE_COUNTING: return counting(p, w);
    case PUZZLE_CHAIN: return chain(p, w);
    case PUZZLE_PROGRESSION: return progression(p, w);
    default: return pair(p, w);
    }
}

/* ---- Drawing -------------------------------------------------------------------------------------------------- */

static void draw_numbers(puzzle *p, draw *d)
{
    switch (p->kind) {
    case PUZZLE_NESTED: draw_nested(p, d); return;
    case PUZZLE_EQUATION: draw_equation(p, d); return;
    case PUZZLE_GCD:
        draw_gcd_numbers(p->n, d);
        p->n[2] = draw_between(d, 3, 19), p->n[3] = draw_between(d, 5, 99);
        return;
    case PUZZLE_DIGITS:
        p->n[0] = draw_between(d, 23, 399), p->n[1] = draw_between(d, 3, 9), p->n[2] = draw_between(d, 6, 39);
        return;
    case PUZZLE_COUNTING: draw_counting(p, d); return;
    case PUZZLE_CHAIN: draw_chain(p, d); return;
    case PUZZLE_PROGRESSION:
        p->n[0] = draw_between(d, 2, 30), p->n[1] = draw_between(d, 2, 12), p->n[2] = 2 * draw_between(d, 3, 8);
        return;
    default:
        p->form = (int)draw_between(d, 0, 2);
        for (int i = 0; i < 2; i++) draw_part(&p->part[i], d);
        p->n[0] = draw_between(d, 2, 9), p->n[1] = draw_between(d, 11, 99);
        return;
    }
}

/* A step below zero makes no number that the working could show. */
static bool comes_out(const puzzle *p)
{
    if (p->kind == PUZZLE_EQUATION && p->n[2] < 2) return false;
    if (p->kind == PUZZLE_NESTED && (p->form == 5 || p->form == 0 || p->form == 4)) {
        const int64_t *n = p->n;
        if (p->form == 0 && n[0] * n[1] <= n[2]) return false;
        if (p->form == 4 && n[0] * n[1] <= n[2] * n[3]) return false;
        if (p->form == 5 && n[0] <= n[2]) return false;
    }
    if (p->kind == PUZZLE_CHAIN) {
        int64_t v = p->n[0];
        for (int i = 1; i < 5; i++) {
            char sign = chain_sign(p, i);
            v = sign == '+' ? v + p->n[i] : sign == '-' ? v - p->n[i] : v * p->n[i];
            if (v < 1 || v > 4999) return false;
        }
    }
    int64_t answer = puzzle_work(NULL, p);
    return answer >= 0 && answer <= 999;
}

puzzle puzzle_draw(draw *d, task_split split)
{
    static const int shares[PUZZLE_KINDS] = {20, 14, 12, 12, 10, 14, 8, 10};
    for (;;) {
        puzzle p;
        memset(&p, 0, sizeof p); /* hashed as bytes */
        p.kind = (puzzle_kind)draw_weighted(d, shares, PUZZLE_KINDS);
        draw_numbers(&p, d);
        if (!comes_out(&p)) continue;
        puzzle key = p;
        if (key.kind == PUZZLE_CHAIN) memset(key.n + 5, 0, 7 * sizeof *key.n); /* what does not matter */
        if (draw_held_out(draw_hash(&key, sizeof key)) == (split == TASK_HELD_OUT)) return p;
    }
}

int64_t puzzle_work(buffer *out, const puzzle *p)
{
    work w = {.out = out};
    return work_on(p, &w);
}

int64_t puzzle_slip(buffer *out, const puzzle *p, draw *d)
{
    static const int64_t by[] = {1, -1, 2, 10, -10, 20, 100};
    work probe = {0};
    int64_t right = work_on(p, &probe);
    size_t start = out->length;
    for (;;) {
        work w = {.out = out, .slip_at = (int)draw_between(d, 1, probe.step), .slip_by = by[draw_between(d, 0, 6)]};
        int64_t answer = work_on(p, &w);
        if (answer != right && answer >= 0) return answer;
        out->length = start; /* the slip did no harm, or left the range: another one */
    }
}

/* ---- Asking --------------------------------------------------------------------------------------------------- */

static void ask_chain(buffer *out, const puzzle *p, draw *d)
{
    static const char *const ends[] = {"What is {v}?", "Find {v}.", "Give {v}.", "How much is {v}?", "Compute {v}."};
    char letters[] = "abcdefghijkmnpqrstuvwxyz";
    int at = 0;
    slots v;
    for (size_t i = 0; i < sizeof letters - 1; i++) {
        size_t k = (size_t)draw_between(d, (int64_t)i, (int64_t)sizeof letters - 2);
        char c = letters[i];
        letters[i] = letters[k], letters[k] = c;
    }
    char last = 0, stray = 0;
    for (int i = 0; i < 5; i++) {
        char name = letters[at++];
        buffer_char(out, name), buffer_string(out, " = ");
        if (i) buffer_char(out, last), buffer_char(out, ' '), buffer_char(out, chain_sign(p, i)), buffer_char(out, ' ');
        put_number(out, p->n[i]);
        buffer_string(out, ". ");
        last = name;
        if (p->n[5 + i] % 3 || i == 4) continue;
        name = letters[at++]; /* one that leads nowhere */
        buffer_char(out, name), buffer_string(out, " = ");
        if (p->n[5 + i] % 2) buffer_char(out, stray ? stray : last), buffer_string(out, " + ");
        put_number(out, p->n[5 + i]);
        buffer_string(out, ". ");
        stray = name;
    }
    slots_clear(&v);
    char name[2] = {last, 0};
    slots_text(&v, 'v', name);
    fill(out, DRAW(d, ends), &v);
    buffer_string(out, " (mod 1000)");
}

static void number_slots(slots *v, const int64_t *n, int count)
{
    slots_clear(v);
    for (int i = 0; i < count; i++) slots_number(v, (char)('a' + i), n[i]);
}

static void ask_part(buffer *out, const struct puzzle_part *q, char name)
{
    slots v;
    char letter[2] = {name, 0};
    number_slots(&v, q->n, 4);
    slots_text(&v, 'v', letter);
    switch (q->kind) {
    case PUZZLE_GCD: fill(out, "Let {v} = gcd({a}, {b}). ", &v); return;
    case PUZZLE_DIGITS: fill(out, "Let {v} be the digit sum of {a}*{b}. ", &v); return;
    case PUZZLE_EQUATION: fill(out, "Let {v} solve {a}{v} + {b} = {c}. ", &v); return;
    default: fill(out, "Let {v} = {a}*{b}-{c}. ", &v); return;
    }
}

void puzzle_ask(buffer *out, const puzzle *p, draw *d)
{
    static const char *const nested_asks[] = {"Compute {e} mod 1000.", "What is {e} mod 1000?", "{e} mod 1000",
                                              "Find {e} modulo 1000.", "Evaluate {e} mod 1000."};
    static const char *const equation_asks[] = {"If {a}x {s} {b} = {c}, what is {d}x {t} {e} mod 1000?",
                                                "Solve {a}x {s} {b} = {c} and find {d}x {t} {e} mod 1000.",
                                                "Let {a}x {s} {b} = {c}. Find {d}x {t} {e} mod 1000.",
                                                "{a}x {s} {b} = {c}. What is {d}x {t} {e} mod 1000?"};
    static const char *const gcd_asks[] = {
        "Let g = gcd({a}, {b}). Find {c}*g + {d} mod 1000.", "What is {c}*gcd({a}, {b}) + {d} mod 1000?",
        "g is the greatest common divisor of {a} and {b}. What is g*{c} + {d} mod 1000?"};
    static const char *const digits_asks[] = {"What is the digit sum of {a}*{b}, times {c}?",
                                              "Multiply the digit sum of {a}*{b} by {c}.",
                                              "Let s be the digit sum of {a}*{b}. Find {c}*s."};
    static const char *const counting_asks[] = {
        "How many whole numbers from 1 to {a} are divisible by {b} or {c}?",
        "How many of the numbers 1, 2, ..., {a} are multiples of {b} or of {c}?",
        "Count the whole numbers up to {a} that {b} or {c} divides."};
    static const char *const progression_asks[] = {
        "A sequence starts at {a} and grows by {b} each time. What is the sum of its first {c} terms mod 1000?",
        "Add the first {c} terms of the sequence that starts at {a} and grows by {b}. Give the sum mod 1000.",
        "What is the sum of {c} numbers, the first {a} and each {b} more than the one before, mod 1000?"};
    static const char *const pair_asks[] = {"Find {a}*u + v mod 1000.", "Find {a}*(u + v) mod 1000.",
                                            "Find u + v + {b} mod 1000."};
    slots v;
    buffer e = {0};
    number_slots(&v, p->n, 7);
    switch (p->kind) {
    case PUZZLE_NESTED:
        fill(&e, nested_text[p->form], &v);
        slots_text(&v, 'e', text_of(&e));
        fill(out, DRAW(d, nested_asks), &v);
        break;
    case PUZZLE_EQUATION:
        slots_text(&v, 's', p->form & 1 ? "-" : "+"), slots_text(&v, 't', p->form & 2 ? "-" : "+");
        fill(out, DRAW(d, equation_asks), &v);
        break;
    case PUZZLE_GCD: fill(out, DRAW(d, gcd_asks), &v); break;
    case PUZZLE_DIGITS: fill(out, DRAW(d, digits_asks), &v); break;
    case PUZZLE_COUNTING: fill(out, DRAW(d, counting_asks), &v); break;
    case PUZZLE_CHAIN: ask_chain(out, p, d); break;
    case PUZZLE_PROGRESSION: fill(out, DRAW(d, progression_asks), &v); break;
    default:
        ask_part(out, &p->part[0], 'u'), ask_part(out, &p->part[1], 'v');
        fill(out, pair_asks[p->form], &v);
        break;
    }
    buffer_free(&e);
}
