#include "tasks/sums.h"

#include <string.h>

static const char *const places[] = {"ones", "tens", "hundreds", "thousands", "ten thousands", "hundred thousands"};

/* ---- Problems ------------------------------------------------------------------------------------------------- */

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t largest(const sum *s)
{
    return larger(s->x[0], larger(s->x[1], s->x[2]));
}

bool sum_held_out(const sum *s)
{
    sum key = *s;
    if (largest(s) < 10 || (s->kind == SUM_DIVIDE && s->x[1] <= 10 && s->x[0] <= 10 * s->x[1])) return false;
    for (int i = 0; i < 2; i++) /* in any order it is the same problem */
        for (int k = 0; k < 2; k++)
            if (s->kind != SUM_DIVIDE && key.x[k] < key.x[k + 1]) {
                int64_t t = key.x[k];
                key.x[k] = key.x[k + 1], key.x[k + 1] = t;
            }
    int64_t bytes[4] = {key.kind, key.x[0], key.x[1], key.x[2]};
    return draw_held_out(draw_hash(bytes, sizeof bytes));
}

int64_t sum_number(draw *d, int digits)
{
    int64_t low = 1, step = 1;
    if (digits == 1) return draw_between(d, 0, 9);
    for (int i = 1; i < digits; i++) low *= 10;
    int64_t n = draw_between(d, low, low * 10 - 1);
    if (!draw_chance(d, 0.1)) return n;
    for (int i = (int)draw_between(d, 1, digits - 1); i > 0; i--) step *= 10;
    return larger(step, n / step * step);
}

static void swap_operands(sum *s)
{
    int64_t t = s->x[0];
    s->x[0] = s->x[1], s->x[1] = t;
}

/* Two numbers, the larger one of up to five digits. */
static void draw_pair(draw *d, sum *s)
{
    static const int digits[] = {12, 30, 30, 23, 5};
    int top = (int)draw_weighted(d, digits, 5) + 1;
    s->x[0] = sum_number(d, top);
    s->x[1] = sum_number(d, draw_chance(d, 0.6) ? (int)draw_between(d, 1, top) : top);
    if (draw_chance(d, 0.5)) swap_operands(s);
    if (s->kind == SUM_SUBTRACT && s->x[0] < s->x[1] && draw_chance(d, 0.85)) swap_operands(s);
}

static bool draw_product(draw *d, sum *s)
{
    static const int shapes[] = {35, 30, 15, 20};
    static const int digits[][2] = {{1, 1}, {2, 1}, {3, 1}, {2, 2}};
    static const int popular[] = {10, 11, 12, 20};
    size_t shape = draw_weighted(d, shapes, 4);
    for (int i = 0; i < 2; i++) s->x[i] = sum_number(d, digits[shape][i]);
    if (draw_chance(d, 0.1)) s->x[draw_between(d, 0, 1)] = popular[draw_between(d, 0, 3)];
    if (smaller(s->x[0], s->x[1]) < 10 && largest(s) < 100 && draw_chance(d, 0.3)) swap_operands(s);
    return (largest(s) <= 99 || smaller(s->x[0], s->x[1]) <= 9) && s->x[1] <= 99;
}

sum sum_draw(draw *d, task_split split)
{
    static const int shares[SUM_KINDS] = {44, 24, 11, 15, 6}, digits[] = {25, 50, 25};
    for (;;) {
        sum s = {.kind = (sum_kind)draw_weighted(d, shares, SUM_KINDS)};
        if (s.kind == SUM_ADD || s.kind == SUM_SUBTRACT) {
            draw_pair(d, &s);
        } else if (s.kind == SUM_THREE) {
            int top = (int)draw_weighted(d, digits, 3) + 1;
            for (int i = 0; i < 3; i++) s.x[i] = sum_number(d, (int)draw_between(d, 1, top));
        } else if (s.kind == SUM_MULTIPLY) {
            if (!draw_product(d, &s)) continue;
        } else {
            bool table = draw_chance(d, 0.5);
            s.x[1] = draw_between(d, 1, table ? 10 : 9);
            s.x[0] = s.x[1] * (table ? draw_between(d, 0, 10) : draw_between(d, 11, 250));
        }
        if (sum_held_out(&s) == (split == TASK_HELD_OUT)) return s;
    }
}

int64_t sum_result(const sum *s)
{
    switch (s->kind) {
    case SUM_SUBTRACT: return s->x[0] - s->x[1];
    case SUM_MULTIPLY: return s->x[0] * s->x[1];
    case SUM_DIVIDE: return s->x[0] / s->x[1];
    default: return s->x[0] + s->x[1] + s->x[2];
    }
}

bool sum_easy(const sum *s)
{
    int64_t low = smaller(s->x[0], s->x[1]), high = largest(s);
    switch (s->kind) {
    case SUM_THREE: return high < 10;
    case SUM_MULTIPLY: return high <= 10;
    case SUM_DIVIDE: return s->x[0] <= 10 * s->x[1];
    case SUM_ADD: return low < 10 && high <= 20;
    default: return low < 10 && high <= 20 && s->x[0] >= s->x[1];
    }
}

bool sum_direct(const sum *s)
{
    switch (s->kind) {
    case SUM_THREE: return largest(s) < 100;
    case SUM_MULTIPLY: return largest(s) < 100 && smaller(s->x[0], s->x[1]) <= 10;
    case SUM_DIVIDE: return s->x[0] <= 12 * s->x[1];
    default: return largest(s) < 10000;
    }
}

void sum_expression(buffer *out, const sum *s, bool spaced, char times)
{
    char sign = "+-+*/"[s->kind];
    for (int i = 0; i < (s->kind == SUM_THREE ? 3 : 2); i++) {
        if (i && spaced) buffer_char(out, ' ');
        if (i) buffer_char(out, sign == '*' ? times : sign);
        if (i && spaced) buffer_char(out, ' ');
        put_number(out, s->x[i]);
    }
}

/* ---- Steps ---------------------------------------------------------------------------------------------------- */

/* Digits of a number, the ones first, with zeros above; returns how many it has without them. */
static int digits_of(int64_t n, int out[20])
{
    int count = 0;
    memset(out, 0, 20 * sizeof *out);
    do out[count++] = (int)(n % 10);
    while (n /= 10);
    return count;
}

static void put_columns(buffer *out, const int *digits, int count)
{
    for (int i = count; i-- > 0;) {
        put_number(out, digits[i]);
        if (i) buffer_char(out, ' ');
    }
}

/* The lowest `count` digits of n, zeros included. */
static void put_padded(buffer *out, int64_t n, int count)
{
    int digits[20];
    digits_of(n, digits);
    for (int i = count; i-- > 0;) put_number(out, digits[i]);
}

static void put_fact(buffer *out, int64_t a, char sign, int64_t b, int64_t result)
{
    put_number(out, a), buffer_char(out, sign), put_number(out, b), buffer_char(out, '=');
    put_number(out, result);
}

static void add_steps(buffer *out, int64_t a, int64_t b)
{
    int x[20], y[20], carry = 0;
    if (a < 10 && b < 10) {
        put_fact(out, a, '+', b, a + b);
        buffer_char(out, '.');
        return;
    }
    int n = digits_of(a, x), m = digits_of(b, y);
    if (m > n) n = m;
    buffer_string(out, "Columns: "), put_columns(out, x, n), buffer_string(out, " and "), put_columns(out, y, n);
    buffer_char(out, '.');
    for (int i = 0; i < n; i++) {
        int s = x[i] + y[i] + carry;
        carry = s / 10;
        buffer_printf(out, "\n%s: %d+%d+%d=%d, carry %d: ", places[i], x[i], y[i], s - x[i] - y[i], s, carry);
        put_padded(out, a + b, i + 1);
    }
    if (carry) buffer_string(out, "\ncarry 1 in front: "), put_number(out, a + b);
}

static void subtract_steps(buffer *out, int64_t a, int64_t b)
{
    int x[20], y[20], borrow = 0;
    if (a < b) {
        put_number(out, a), buffer_string(out, " is smaller than "), put_number(out, b);
        buffer_string(out, ", so the result is below zero.\n");
        put_number(out, b), buffer_char(out, '-'), put_number(out, a), buffer_string(out, ":\n");
        subtract_steps(out, b, a);
        buffer_string(out, "\nWith the sign: "), put_number(out, a - b);
        return;
    }
    if (a < 10) {
        put_fact(out, a, '-', b, a - b);
        buffer_char(out, '.');
        return;
    }
    int n = digits_of(a, x);
    digits_of(b, y);
    buffer_string(out, "Columns: "), put_columns(out, x, n), buffer_string(out, " minus "), put_columns(out, y, n);
    buffer_char(out, '.');
    for (int i = 0; i < n; i++) {
        int s = x[i] - y[i] - borrow;
        buffer_printf(out, "\n%s: %d-%d-%d=%d, ", places[i], x[i], y[i], borrow, s);
        borrow = s < 0;
        if (borrow) buffer_string(out, "add 10, ");
        buffer_printf(out, "borrow %d: ", borrow);
        put_padded(out, a - b, i + 1);
    }
    int z[20];
    if (digits_of(a - b, z) < n) buffer_string(out, "\nwithout leading zeros: "), put_number(out, a - b);
}

static void times_digit(buffer *out, int64_t a, int64_t digit)
{
    int x[20], carry = 0, n = digits_of(a, x);
    if (a < 10) {
        put_fact(out, a, '*', digit, a * digit);
        buffer_char(out, '.');
        return;
    }
    buffer_string(out, "Digits: "), put_columns(out, x, n), buffer_string(out, " times "), put_number(out, digit);
    buffer_char(out, '.');
    for (int i = 0; i < n; i++) {
        int p = x[i] * (int)digit + carry;
        buffer_printf(out, "\n%s: %d*%d+%d=%d, carry %d: ", places[i], x[i], (int)digit, carry, p, p / 10);
        carry = p / 10;
        put_padded(out, a * digit, i + 1);
    }
    if (carry)
        buffer_printf(out, "\ncarry %d in front: ", carry), put_number(out, a * digit);
    else if (!digit)
        buffer_string(out, "\nwithout leading zeros: 0");
}

static void multiply_steps(buffer *out, int64_t a, int64_t b)
{
    if (b >= 10 && a < 10) {
        buffer_string(out, "Turn around: "), put_number(out, b), buffer_char(out, '*'), put_number(out, a);
        buffer_string(out, ".\n");
        times_digit(out, b, a);
        return;
    }
    if (b < 10) {
        times_digit(out, a, b);
        return;
    }
    int64_t tens = b / 10, ones = b % 10;
    if (ones) {
        put_number(out, b), buffer_string(out, " is "), put_number(out, tens * 10), buffer_string(out, " and ");
        put_number(out, ones), buffer_string(out, ".\n");
        put_number(out, a), buffer_char(out, '*'), put_number(out, ones), buffer_string(out, ":\n");
        times_digit(out, a, ones);
        buffer_char(out, '\n');
    }
    put_number(out, a), buffer_char(out, '*'), put_number(out, tens), buffer_string(out, ":\n");
    times_digit(out, a, tens);
    buffer_string(out, "\nwith a zero: "), put_number(out, a * tens * 10);
    if (!ones) return;
    buffer_string(out, "\nNow "), put_number(out, a * tens * 10), buffer_char(out, '+'), put_number(out, a * ones);
    buffer_string(out, ":\n");
    add_steps(out, a * tens * 10, a * ones);
}

/* Digit after digit: "8/7=1 rest 1, 16/7=2 rest 2". */
static void long_division(buffer *out, int64_t a, int64_t b)
{
    int x[20], n = digits_of(a, x);
    int64_t rest = 0;
    bool begun = false;
    for (int i = n; i-- > 0;) {
        int64_t part = rest * 10 + x[i];
        rest = part % b;
        if (part < b && !begun && i) continue;
        if (begun) buffer_string(out, ", ");
        put_fact(out, part, '/', b, part / b);
        buffer_string(out, " rest "), put_number(out, rest);
        begun = true;
    }
}

static void divide_steps(buffer *out, int64_t a, int64_t b)
{
    if (a <= 12 * b) {
        put_fact(out, b, '*', a / b, a);
    } else {
        long_division(out, a, b);
    }
    buffer_string(out, ", so ");
    put_fact(out, a, '/', b, a / b);
    buffer_char(out, '.');
}

void sum_steps(buffer *out, const sum *s)
{
    const int64_t *x = s->x;
    switch (s->kind) {
    case SUM_ADD: add_steps(out, x[0], x[1]); return;
    case SUM_SUBTRACT: subtract_steps(out, x[0], x[1]); return;
    case SUM_MULTIPLY: multiply_steps(out, x[0], x[1]); return;
    case SUM_DIVIDE: divide_steps(out, x[0], x[1]); return;
    default: break;
    }
    buffer_string(out, "First "), put_number(out, x[0]), buffer_char(out, '+'), put_number(out, x[1]);
    buffer_string(out, ":\n");
    add_steps(out, x[0], x[1]);
    buffer_string(out, "\nThen "), put_number(out, x[0] + x[1]), buffer_char(out, '+'), put_number(out, x[2]);
    buffer_string(out, ":\n");
    add_steps(out, x[0] + x[1], x[2]);
}

void sum_whole_thought(buffer *out, const sum *s)
{
    if (!sum_easy(s) || s->x[0] >= 10 || s->x[1] >= 10) {
        sum_expression(out, s, false, '*');
        buffer_string(out, ".\n");
    }
    sum_steps(out, s);
}

void sum_sentence(buffer *out, const sum *s)
{
    sum_expression(out, s, true, '*');
    buffer_string(out, " = "), put_number(out, sum_result(s)), buffer_char(out, '.');
}

/* ---- In a line ------------------------------------------------------------------------------------------------ */

/* "200*5+30*5+4*5=1000+150+20=": the parts of a product by its first factor's digits. */
static void put_parts(buffer *out, int64_t a, int64_t b)
{
    int x[20], n = digits_of(a, x);
    for (int pass = 0; pass < 2; pass++) {
        int64_t place = 1;
        bool first = true;
        for (int i = 1; i < n; i++) place *= 10;
        for (int i = n; i-- > 0; place /= 10) {
            if (!x[i]) continue;
            if (!first) buffer_char(out, '+');
            first = false;
            put_number(out, pass ? x[i] * place * b : x[i] * place);
            if (!pass) buffer_char(out, '*'), put_number(out, b);
        }
        buffer_char(out, '=');
    }
}

static bool one_digit_only(int64_t a)
{
    while (a >= 10 && a % 10 == 0) a /= 10;
    return a < 10;
}

void sum_inline(buffer *out, const sum *s)
{
    int64_t a = s->x[0], b = s->x[1], result = sum_result(s);
    if (s->kind == SUM_DIVIDE && (a > 12 * b || a % b)) {
        sum_inline_rest(out, a, b);
        return;
    }
    sum_expression(out, s, false, '*');
    buffer_char(out, '=');
    if (s->kind == SUM_MULTIPLY && !(one_digit_only(a) && one_digit_only(b)) && largest(s) > 12 && smaller(a, b) > 1) {
        /* The factor with more digits is taken apart, by the other one; by the second one when both have two. */
        if (b >= 10 && a >= 10 && !one_digit_only(b))
            put_parts(out, b, a);
        else
            put_parts(out, one_digit_only(a) ? b : a, one_digit_only(a) ? a : b);
    }
    put_number(out, result);
}

void sum_inline_rest(buffer *out, int64_t a, int64_t b)
{
    if (a <= 12 * b) {
        put_fact(out, a, '/', b, a / b);
        buffer_string(out, " rest "), put_number(out, a % b);
        return;
    }
    put_number(out, a), buffer_char(out, '/'), put_number(out, b), buffer_string(out, ": ");
    long_division(out, a, b);
    buffer_string(out, ", so "), put_number(out, a / b), buffer_string(out, " rest "), put_number(out, a % b);
}
