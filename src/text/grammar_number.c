/*
 * Numbers within bounds, as digits: which decimal numbers are at least, or at most, a given one can be told while they
 * are read, once it is known how many digits stand before the point. Bounds and multiples are automata each, and their
 * conjunction is one.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/grammar_parts.h"
#include "text/python_text.h"

enum {
    DIGITS = 18,   /* before the point */
    FRACTION = 17, /* behind it */
    STEPS = 4096,  /* of a multiple: states */
};

enum { LESS = 0, EQUAL = 1, MORE = 2 };

/* A bound that is not negative: digits before and behind the point, none of them superfluous. */
typedef struct decimal {
    char whole[DIGITS + 2], fraction[FRACTION + 2];
} decimal;

typedef struct magnitude {
    bool has_low, has_high, low_open, high_open;
    decimal low, high;
} magnitude;

/* ---- Decimals ------------------------------------------------------------------------------------------------- */

static bool decimal_of(double value, decimal *out)
{
    char text[400];
    if (!(value < 1e18)) return false;
    if (value == 0) value = 0; /* without a sign */
    /* The shortest digits that read back equal, without an exponent. */
    int places = 0;
    for (; places <= FRACTION; places++) {
        snprintf(text, sizeof text, "%.*f", places, value);
        if (strtod(text, NULL) == value) break;
    }
    if (places > FRACTION) return false;
    char *point = strchr(text, '.');
    size_t whole = point ? (size_t)(point - text) : strlen(text);
    if (whole > DIGITS) return false;
    memcpy(out->whole, text, whole);
    out->whole[whole] = 0;
    snprintf(out->fraction, sizeof out->fraction, "%s", point ? point + 1 : "");
    for (size_t n = strlen(out->fraction); n > 0 && out->fraction[n - 1] == '0'; n--) out->fraction[n - 1] = 0;
    return true;
}

static void decimal_of_whole(uint64_t value, decimal *out)
{
    snprintf(out->whole, sizeof out->whole, "%" PRIu64, value);
    out->fraction[0] = 0;
}

/* ---- Comparing ------------------------------------------------------------------------------------------------- */

static int after_digit(int state, int digit, int bound)
{
    if (state != EQUAL || digit == bound) return state;
    return digit < bound ? LESS : MORE;
}

/* A digit's edges, bundled where neighbours go the same way. */
static void put_digits(builder *b, int32_t from, int state, int least, int bound, const int32_t to[3])
{
    for (int d = least, last; d <= 9; d = last + 1) {
        int next = after_digit(state, d, bound);
        for (last = d; last < 9 && after_digit(state, last + 1, bound) == next; last++) continue;
        build_bytes(b, from, '0' + d, '0' + last, to[next]);
    }
}

/* Digits behind the point, from `from` with what is known of the number so far. */
static void put_fraction(builder *b, const int32_t from[3], const char *bound, const bool wanted[3], bool integer,
                         int32_t to)
{
    size_t length = strlen(bound);
    int32_t at[3] = {from[0], from[1], from[2]};
    for (int places = 0; places <= FRACTION; places++) {
        bool rest = (size_t)places < length; /* the bound goes on: what ends here is less */
        for (int state = 0; state < 3; state++)
            if (wanted[state == EQUAL && rest ? LESS : state]) build_join(b, at[state], to);
        if (places == FRACTION || integer) return;
        int32_t next[3];
        for (int state = 0; state < 3; state++) next[state] = build_node(b);
        for (int state = 0; state < 3; state++) {
            int32_t digit = places ? at[state] : build_string(b, at[state], ".");
            put_digits(b, digit, state, 0, rest ? bound[places] - '0' : 0, next);
        }
        memcpy(at, next, sizeof at);
    }
}

/* Decimal numbers that compare with the bound as wanted. */
static fsm compared(builder *b, const decimal *bound, const bool wanted[3], bool integer)
{
    int32_t start = build_node(b), end = build_node(b), behind[3];
    int length = (int)strlen(bound->whole);
    for (int i = 0; i < 3; i++) behind[i] = build_node(b);
    for (int n = 1; n <= DIGITS; n++) {
        int state = n < length ? LESS : n > length ? MORE : EQUAL;
        int32_t at[3] = {-1, -1, -1};
        at[state] = start;
        for (int i = 0; i < n; i++) {
            int32_t next[3];
            for (int k = 0; k < 3; k++) next[k] = i + 1 < n ? build_node(b) : behind[k];
            for (int k = 0; k < 3; k++)
                if (at[k] >= 0)
                    put_digits(b, at[k], k, i == 0 && n > 1, state == EQUAL ? bound->whole[i] - '0' : 0, next);
            memcpy(at, next, sizeof at);
        }
    }
    put_fraction(b, behind, bound->fraction, wanted, integer, end);
    return fsm_of(b, start, end);
}

/* ---- Multiples -------------------------------------------------------------------------------------------------- */

/* `multiple` as whole / 10^places. */
static bool scaled(double multiple, int64_t *whole, int *places)
{
    double scale = 1;
    for (*places = 0; *places <= 9; ++*places, scale *= 10) {
        double value = multiple * scale, near = floor(value + 0.5);
        if (near >= 1 && fabs(value - near) < 1e-9 * near && near < 9e15) {
            *whole = (int64_t)near;
            return true;
        }
    }
    return false;
}

static int64_t divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

/* Numbers, without superfluous zeros in front, that a multiple divides: the remainder so far is the state. Digits
 * behind the point are as many as the multiple has, at most. */
static fsm multiples(builder *b, int64_t whole, int places, const char *where)
{
    fsm none = {0};
    int64_t nodes = whole * (places + 1);
    if (whole > STEPS || nodes > 4 * STEPS) {
        build_fail(b, HY_BAD_INPUT, "%s: `multipleOf` of more than %d steps is not supported", where, STEPS);
        return none;
    }
    int32_t start = build_node(b), end = build_node(b), zero = build_node(b), base = (int32_t)b->nodes;
    for (int64_t i = 0; i < nodes; i++) build_node(b);
    if (b->status != HY_OK) return none;
    int64_t power = 1;
    for (int place = places; place >= 0; place--, power *= 10)
        for (int64_t rest = 0; rest < whole; rest++) {
            int32_t at = base + (int32_t)(place * whole + rest);
            if (rest * (power % whole) % whole == 0) build_join(b, at, end);
            for (int d = 0; d <= 9; d++) {
                int32_t to = base + (int32_t)(place * whole + (rest * 10 + d) % whole);
                if (place == 0) {
                    build_bytes(b, at, '0' + d, '0' + d, to);
                    if (rest == 0 && d > 0) build_bytes(b, start, '0' + d, '0' + d, base + (int32_t)(d % whole));
                } else if (place < places) {
                    build_bytes(b, at, '0' + d, '0' + d, to + (int32_t)whole);
                }
            }
            if (place == 0 && places > 0) {
                int32_t point = build_string(b, at, ".");
                for (int d = 0; d <= 9; d++)
                    build_bytes(b, point, '0' + d, '0' + d, base + (int32_t)(whole + (rest * 10 + d) % whole));
            }
        }
    build_bytes(b, start, '0', '0', zero);
    build_join(b, zero, end);
    if (places > 0) {
        int32_t point = build_string(b, zero, ".");
        for (int d = 0; d <= 9; d++) build_bytes(b, point, '0' + d, '0' + d, base + (int32_t)(whole + d % whole));
    }
    return fsm_of(b, start, end);
}

/* ---- Numbers ---------------------------------------------------------------------------------------------------- */

static int32_t put_magnitude(builder *b, int32_t from, const magnitude *m, const number_bounds *n, const char *where)
{
    static const bool all[3] = {true, true, true};
    decimal zero = {"0", ""};
    bool low[3] = {false, !m->low_open, true}, high[3] = {true, !m->high_open, false};
    int64_t whole = 1;
    int places = 0;
    if (n->multiple > 0 && !scaled(n->multiple, &whole, &places)) {
        build_fail(b, HY_BAD_INPUT, "%s: `multipleOf` %g is not supported", where, n->multiple);
        return from;
    }
    if (n->integer && places > 0) {
        int64_t power = 1;
        for (int i = 0; i < places; i++) power *= 10;
        whole /= divisor(whole, power), places = 0;
    }
    fsm f = compared(b, m->has_low ? &m->low : &zero, m->has_low ? low : all, n->integer);
    if (m->has_high) fsm_narrow(b, &f, compared(b, &m->high, high, n->integer), false);
    if (n->multiple > 0 && (whole > 1 || !n->integer)) fsm_narrow(b, &f, multiples(b, whole, places, where), false);
    int32_t to = fsm_put(b, from, &f);
    fsm_free(&f);
    return to;
}

static void fail_bound(builder *b, const char *where)
{
    build_fail(b, HY_BAD_INPUT,
               "%s: a bound with more than %d digits before the point or %d behind it is not supported", where, DIGITS,
               FRACTION);
}

/* The part on one side of zero: sign 1, or -1 with the bounds mirrored. False: nothing is there. */
static bool side_of(builder *b, const number_bounds *n, int sign, magnitude *m, const char *where)
{
    bool has_near = sign > 0 ? n->has_low : n->has_high, has_far = sign > 0 ? n->has_high : n->has_low;
    double near = sign > 0 ? n->low : -n->high, far = sign > 0 ? n->high : -n->low;
    *m = (magnitude){0};
    if (has_far && far < 0) return false;
    if (has_near && near >= 0) {
        m->has_low = true, m->low_open = sign > 0 ? n->low_open : n->high_open;
        if (!decimal_of(near, &m->low)) fail_bound(b, where);
    }
    if (has_far && far < 1e18) {
        m->has_high = true, m->high_open = sign > 0 ? n->high_open : n->low_open;
        if (!decimal_of(far, &m->high)) fail_bound(b, where);
    }
    return true;
}

/* The same for integers, whose bounds are whole and closed. */
static bool whole_side_of(const number_bounds *n, int sign, magnitude *m)
{
    bool has_near = sign > 0 ? n->has_low : n->has_high, has_far = sign > 0 ? n->has_high : n->has_low;
    const int64_t limit = 999999999999999999;
    int64_t near = sign > 0 ? n->low_whole : -n->high_whole, far = sign > 0 ? n->high_whole : -n->low_whole;
    *m = (magnitude){.has_low = has_near && near > 0, .has_high = has_far && far < limit};
    if (has_far && far < (sign > 0 ? 0 : 1)) return false; /* -0 is not offered */
    if (sign < 0 && !m->has_low) m->has_low = true, near = 1;
    decimal_of_whole(m->has_low ? (uint64_t)near : 0, &m->low);
    if (m->has_high) decimal_of_whole((uint64_t)far, &m->high);
    return !m->has_low || near <= limit;
}

int32_t grammar_number(builder *b, int32_t from, const number_bounds *n, const char *where)
{
    int32_t to = build_node(b);
    for (int sign = 1; sign >= -1; sign -= 2) {
        magnitude m;
        if (!(n->integer ? whole_side_of(n, sign, &m) : side_of(b, n, sign, &m, where))) continue;
        int32_t at = sign < 0 ? build_string(b, from, "-") : from;
        build_join(b, put_magnitude(b, at, &m, n, where), to);
    }
    return to;
}
