/*
 * Grammars written by people: GBNF (name ::= ...), and the simple part of Lark's form (name: ...). Both have texts in
 * quotes, alternatives, groups and repetitions; GBNF has character classes where Lark has optional parts in brackets,
 * and Lark has regular expressions between slashes. Which of the two it is, is told by the presence of "::=".
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "text/grammar_parts.h"

enum { NESTING = 200, NAME = 64 };

typedef struct named {
    char name[NAME];
    int32_t rule;
    bool defined;
} named;

/* A piece of the graph that nothing leads to yet. */
typedef struct piece {
    int32_t start, end;
} piece;

typedef struct parser {
    builder *b;
    const char *text;
    size_t length, at;
    size_t counted; /* up to where lines were counted */
    int line;       /* of that place, from 0 */
    bool lark;
    int depth;
    named *rule;
    size_t count, capacity;
} parser;

/* ---- Reading -------------------------------------------------------------------------------------------------- */

/* Where it is, for messages: a text is counted once, however often it is asked. */
static int line_here(parser *p)
{
    size_t end = p->at < p->length ? p->at : p->length;
    if (end < p->counted) p->counted = 0, p->line = 0;
    for (; p->counted < end; p->counted++) p->line += p->text[p->counted] == '\n';
    return p->line + 1;
}

static piece fail(parser *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static piece fail(parser *p, const char *format, ...)
{
    char text[300];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    build_fail(p->b, HY_BAD_INPUT, "the grammar, line %d: %s", line_here(p), text);
    return (piece){0, 0};
}

static bool failed(const parser *p)
{
    return p->b->status != HY_OK;
}

static bool looking_at(const parser *p, const char *what)
{
    return grammar_stands(p->text, p->length, p->at, what);
}

static bool take(parser *p, const char *what)
{
    if (!looking_at(p, what)) return false;
    p->at += strlen(what);
    return true;
}

/* White space and comments. */
static void skip(parser *p)
{
    while (p->at < p->length) {
        char c = p->text[p->at];
        if (c == '#' || (p->lark && looking_at(p, "//"))) {
            while (p->at < p->length && p->text[p->at] != '\n') p->at++;
        } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
            p->at++;
        } else {
            return;
        }
    }
}

static bool name_char(char c, bool first)
{
    bool letter = ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '_';
    return letter || (!first && ((c >= '0' && c <= '9') || c == '-'));
}

static bool take_name(parser *p, char name[NAME])
{
    size_t n = 0;
    while (p->at + n < p->length && name_char(p->text[p->at + n], n == 0)) n++;
    if (n == 0) return false;
    if (n >= NAME) {
        fail(p, "a name has %zu characters: at most %d are supported", n, NAME - 1);
        return false;
    }
    memcpy(name, p->text + p->at, n);
    name[n] = 0;
    p->at += n;
    return true;
}

static bool take_defines(parser *p)
{
    if (!p->lark) return take(p, "::=");
    if (take(p, ".")) /* a priority, which is for ambiguous lexers */
        while (p->at < p->length && p->text[p->at] >= '0' && p->text[p->at] <= '9') p->at++;
    while (looking_at(p, " ") || looking_at(p, "\t")) p->at++;
    return take(p, ":");
}

/* Whether a rule begins here: nothing is taken. */
static bool at_rule(parser *p)
{
    parser look = *p;
    size_t n = 0;
    if (p->lark && !take(&look, "?")) take(&look, "!");
    while (look.at + n < look.length && name_char(look.text[look.at + n], n == 0)) n++;
    if (n == 0) return false;
    look.at += n;
    while (looking_at(&look, " ") || looking_at(&look, "\t")) look.at++;
    return look.at <= look.length && take_defines(&look);
}

static named *rule_of(parser *p, const char *name)
{
    for (size_t i = 0; i < p->count; i++)
        if (strcmp(p->rule[i].name, name) == 0) return &p->rule[i];
    if (!build_work(p->b, p->count + 1)) return NULL;
    if (!memory_reserve((void **)&p->rule, &p->capacity, p->count + 1, sizeof *p->rule)) {
        build_fail(p->b, HY_NO_FIT, "there is no memory for a grammar");
        return NULL;
    }
    char shown[NAME + 8];
    named *r = &p->rule[p->count++];
    snprintf(shown, sizeof shown, "rule %s", name);
    memcpy(r->name, name, strlen(name) + 1);
    r->rule = build_rule_add(p->b, shown), r->defined = false;
    return r;
}

/* ---- Elements ------------------------------------------------------------------------------------------------- */

static piece parse_alternatives(parser *p);

static piece new_piece(parser *p)
{
    int32_t start = build_node(p->b);
    return (piece){start, start};
}

static uint32_t take_hex(parser *p, int digits)
{
    uint32_t code = 0;
    for (int i = 0; i < digits; i++) {
        const char *all = "0123456789abcdefABCDEF", *d = p->at < p->length ? strchr(all, p->text[p->at]) : NULL;
        if (!d || !*d) {
            fail(p, "%d hexadecimal digits are expected", digits);
            return 0;
        }
        int value = (int)(d - all);
        code = code * 16 + (uint32_t)(value < 16 ? value : value - 6);
        p->at++;
    }
    return code;
}

/* One character of a text in quotes, as UTF-8; the count of its bytes. */
static size_t take_char(parser *p, char out[4])
{
    if (!take(p, "\\")) {
        size_t n = utf8_valid(p->text + p->at, p->length - p->at);
        if (!n) {
            fail(p, "it is not UTF-8");
            return 0;
        }
        memcpy(out, p->text + p->at, n);
        p->at += n;
        return n;
    }
    char c = p->at < p->length ? p->text[p->at++] : 0;
    uint32_t code;
    switch (c) {
    case 'n': out[0] = '\n'; return 1;
    case 't': out[0] = '\t'; return 1;
    case 'r': out[0] = '\r'; return 1;
    case 'x': code = take_hex(p, 2); break;
    case 'u': code = take_hex(p, 4); break;
    case 'U': code = take_hex(p, 8); break;
    case '"':
    case '\'':
    case '\\':
    case '/':
    case '[':
    case ']': out[0] = c; return 1;
    default: fail(p, "\\%c is not supported in a text", c ? c : ' '); return 0;
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
        fail(p, "U+%X is no character", (unsigned)code);
        return 0;
    }
    return utf8_encode(code, out);
}

static void put_folded(builder *b, int32_t from, const char *text, size_t n, int32_t to)
{
    char other = (char)(text[0] ^ 0x20);
    bool letter = n == 1 && (text[0] | 0x20) >= 'a' && (text[0] | 0x20) <= 'z';
    build_join(b, build_text(b, from, text, n), to);
    if (letter) build_join(b, build_text(b, from, &other, 1), to);
}

/* A text in quotes; behind it Lark's i, or the end of a range. */
static piece parse_text(parser *p)
{
    char quote[2] = {p->text[p->at], 0}, bytes[4];
    piece out = new_piece(p);
    size_t from = p->at++, count = 0, first = 0;
    uint32_t low = 0, high = 0;
    while (!failed(p) && !looking_at(p, quote)) {
        if (p->at >= p->length || p->text[p->at] == '\n') return fail(p, "a text has no closing %s", quote);
        first = take_char(p, bytes);
        count++;
    }
    p->at++;
    if (!failed(p) && p->lark && count == 1 && looking_at(p, "..")) {
        utf8_decode(bytes, first, &low);
        p->at += 2;
        skip(p);
        char close[2] = {p->at < p->length ? p->text[p->at] : 0, 0};
        if (close[0] != '"' && close[0] != '\'') return fail(p, "a range ends with a character in quotes");
        p->at++;
        size_t n = take_char(p, bytes);
        utf8_decode(bytes, n, &high);
        if (!take(p, close) || high < low)
            return fail(p, "a range is two characters in quotes, the first one not above");
        char_set set = {0};
        char_set_add(&set, low, high);
        char_set_sort(&set);
        out.end = build_node(p->b);
        build_chars(p->b, out.start, &set, FORM_PLAIN, out.end);
        char_set_free(&set);
        return out;
    }
    size_t end = p->at;
    bool fold = p->lark && take(p, "i");
    size_t after = p->at;
    for (p->at = from + 1; !failed(p) && p->at + 1 < end;) {
        size_t n = take_char(p, bytes);
        int32_t to = build_node(p->b);
        if (fold)
            put_folded(p->b, out.end, bytes, n, to);
        else
            build_join(p->b, build_text(p->b, out.end, bytes, n), to);
        out.end = to;
    }
    p->at = after;
    return out;
}

/* A pattern of `count` bytes from here on. */
static piece put_pattern(parser *p, const char *pattern, size_t count)
{
    piece out = {0, 0};
    char where[48];
    snprintf(where, sizeof where, "the grammar, line %d", line_here(p));
    /* In a rule of its own, where its repetitions and anchors are at home. */
    int32_t rule = build_rule_add(p->b, "a pattern"), start;
    int32_t end = grammar_regex(p->b, pattern, count, (regex_use){.form = FORM_PLAIN, .where = where}, &start);
    if (failed(p)) return out;
    build_join(p->b, p->b->rule[rule].start, start);
    build_join(p->b, end, p->b->rule[rule].end);
    out.start = build_node(p->b);
    out.end = build_call(p->b, out.start, rule);
    return out;
}

/* From `open` to the `close` that is not escaped. */
static piece parse_pattern(parser *p, char close, bool keep)
{
    size_t from = p->at++;
    bool class = false;
    while (p->at < p->length && (p->text[p->at] != close || (class && close == '/'))) {
        if (p->text[p->at] == '[') class = true;
        if (p->text[p->at] == ']') class = false;
        p->at += p->text[p->at] == '\\' ? 2 : 1;
        if (close == ']' && p->at == from + 2 && p->text[from + 1] == '^' && looking_at(p, "]")) p->at++;
    }
    if (p->at >= p->length) return fail(p, "there is no closing %c", close);
    p->at++;
    size_t end = p->at;
    if (keep) return put_pattern(p, p->text + from, end - from);
    bool fold = false, all = false;
    while (p->at < p->length && name_char(p->text[p->at], true)) {
        fold |= p->text[p->at] == 'i', all |= p->text[p->at] == 's';
        if (!strchr("is", p->text[p->at])) return fail(p, "the flag %c of a pattern is not supported", p->text[p->at]);
        p->at++;
    }
    char *pattern = memory_string(p->text + from + 1, end - from - 2);
    if (!pattern) return fail(p, "there is no memory for a pattern");
    size_t size = strlen(pattern) + 16;
    char *flagged = malloc(size);
    piece out = {0, 0};
    if (flagged) {
        snprintf(flagged, size, "%s%s%s%s%s", fold || all ? "(?" : "", fold ? "i" : "", all ? "s" : "",
                 fold || all ? ")" : "", pattern);
        out = put_pattern(p, flagged, strlen(flagged));
    } else {
        fail(p, "there is no memory for a pattern");
    }
    free(flagged);
    free(pattern);
    return out;
}

static piece optional(parser *p, piece x)
{
    build_join(p->b, x.start, x.end);
    return x;
}

static piece parse_group(parser *p, const char *close)
{
    p->at++;
    if (++p->depth > NESTING) return fail(p, "groups are nested deeper than %d levels", NESTING);
    piece out = parse_alternatives(p);
    p->depth--;
    if (!failed(p) && !take(p, close)) return fail(p, "a group has no closing %s", close);
    return out;
}

static piece parse_reference(parser *p)
{
    char name[NAME];
    piece out = {0, 0};
    if (!take_name(p, name)) {
        if (failed(p)) return out;
        size_t left = p->length - p->at;
        return fail(p, "there is no element where one should be: %.*s", left < 10 ? (int)left : 10, p->text + p->at);
    }
    if (p->lark && looking_at(p, "{")) return fail(p, "templates (%s{...}) are not supported", name);
    named *r = rule_of(p, name);
    if (!r) return out;
    out.start = build_node(p->b);
    out.end = build_call(p->b, out.start, r->rule);
    return out;
}

static piece parse_element(parser *p)
{
    if (looking_at(p, "\"") || looking_at(p, "'")) return parse_text(p);
    if (looking_at(p, "(")) return parse_group(p, ")");
    if (looking_at(p, "[")) return p->lark ? optional(p, parse_group(p, "]")) : parse_pattern(p, ']', true);
    if (p->lark && looking_at(p, "/")) return parse_pattern(p, '/', false);
    if (take(p, ".")) return put_pattern(p, "[\\s\\S]", 6);
    return parse_reference(p);
}

static piece times(parser *p, piece x, int32_t min, int32_t max)
{
    builder *b = p->b;
    piece out = {build_node(b), 0};
    int32_t body = build_rule_add(b, "a repetition");
    if (failed(p)) return out;
    build_join(b, b->rule[body].start, x.start);
    build_join(b, x.end, b->rule[body].end);
    out.end = build_call(b, out.start, build_counted(b, body, min, max));
    return out;
}

static bool take_count(parser *p, int32_t *count)
{
    size_t from = p->at;
    p->at = grammar_repeats(p->text, p->length, p->at, count);
    if (*count > GRAMMAR_REPEATS) fail(p, "a repetition is at most %d", GRAMMAR_REPEATS);
    return p->at > from && !failed(p);
}

/* {m}, {m,}, {,n}, {m,n}; Lark: ~ m, ~ m..n. */
static piece parse_bounds(parser *p, piece x)
{
    int32_t min = 0, max;
    bool brace = take(p, "{");
    if (!brace) p->at++;
    skip(p);
    bool low = take_count(p, &min);
    max = min;
    skip(p);
    if (take(p, brace ? "," : "..")) {
        skip(p);
        if (!take_count(p, &max)) max = BUILD_ENDLESS;
        skip(p);
    } else if (!low) {
        return fail(p, "a repetition needs a number");
    }
    if (brace && !failed(p) && !take(p, "}")) return fail(p, "a repetition has no closing }");
    if (!failed(p) && min > max) return fail(p, "a repetition of at least %d and at most %d", min, max);
    return times(p, x, min, max);
}

static piece parse_repeated(parser *p)
{
    builder *b = p->b;
    piece x = parse_element(p);
    while (!failed(p)) {
        size_t was = p->at;
        if (p->lark) skip(p);
        if (p->lark && at_rule(p)) return x; /* its ? is not a mark of this one */
        if (looking_at(p, "*") || looking_at(p, "+") || looking_at(p, "?")) {
            /* Fresh ends, so that loops stay apart. */
            char mark = p->text[p->at++];
            piece out = {build_node(b), build_node(b)};
            build_join(b, out.start, x.start);
            build_join(b, x.end, out.end);
            if (mark != '?') build_join(b, x.end, x.start);
            if (mark != '+') build_join(b, out.start, out.end);
            x = out;
        } else if (p->lark ? looking_at(p, "~") : looking_at(p, "{")) {
            x = parse_bounds(p, x);
        } else {
            p->at = was;
            return x;
        }
    }
    return x;
}

static bool at_end_of_sequence(parser *p)
{
    return p->at >= p->length || looking_at(p, "|") || looking_at(p, ")") || (p->lark && looking_at(p, "]")) ||
           looking_at(p, "%") || at_rule(p);
}

static piece parse_sequence(parser *p)
{
    piece out = new_piece(p);
    for (skip(p); !failed(p) && !at_end_of_sequence(p); skip(p)) {
        if (p->lark && take(p, "->")) { /* a name for the tree, which is of no interest here */
            char name[NAME];
            skip(p);
            take_name(p, name);
            continue;
        }
        piece next = parse_repeated(p);
        build_join(p->b, out.end, next.start);
        out.end = next.end;
    }
    return out;
}

static piece parse_alternatives(parser *p)
{
    builder *b = p->b;
    piece out = {build_node(b), build_node(b)};
    do {
        piece one = parse_sequence(p);
        build_join(b, out.start, one.start);
        build_join(b, one.end, out.end);
    } while (!failed(p) && take(p, "|"));
    return out;
}

/* ---- Rules ---------------------------------------------------------------------------------------------------- */

static void parse_rule(parser *p)
{
    char name[NAME];
    if (looking_at(p, "%")) {
        size_t n = 1;
        while (p->at + n < p->length && name_char(p->text[p->at + n], true)) n++;
        fail(p, "%.*s is not supported", (int)n, p->text + p->at);
        return;
    }
    if (p->lark && (take(p, "?") || take(p, "!"))) skip(p);
    if (!take_name(p, name)) {
        fail(p, "a rule begins with its name");
        return;
    }
    if (!p->lark) skip(p);
    if (!take_defines(p)) {
        fail(p, "%s is followed by no %s", name, p->lark ? "colon" : "::=");
        return;
    }
    named *r = rule_of(p, name);
    if (r && r->defined) fail(p, "rule %s is defined twice", name);
    if (failed(p)) return;
    r->defined = true;
    int32_t rule = r->rule;
    piece body = parse_alternatives(p);
    build_join(p->b, p->b->rule[rule].start, body.start);
    build_join(p->b, body.end, p->b->rule[rule].end);
    skip(p);
    if (!failed(p) && p->at < p->length && !at_rule(p) && !looking_at(p, "%"))
        fail(p, "there is a %c too many", p->text[p->at]);
}

static int32_t find_root(parser *p)
{
    static const char *const names[] = {"root", "start"};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < p->count; i++)
            if (p->rule[i].defined && strcmp(p->rule[i].name, names[k]) == 0) return p->rule[i].rule;
    build_fail(p->b, HY_BAD_INPUT, "the grammar has no rule named %s, where it would begin",
               p->lark ? "start" : "root");
    return 0;
}

int32_t grammar_ebnf(builder *b, const char *text, size_t length)
{
    parser p = {.b = b, .text = text, .length = length, .lark = true};
    for (size_t i = 0; i + 3 <= length; i++)
        if (memcmp(text + i, "::=", 3) == 0) p.lark = false;
    for (skip(&p); !failed(&p) && p.at < p.length; skip(&p)) parse_rule(&p);
    int32_t root = failed(&p) ? 0 : find_root(&p);
    for (size_t i = 0; i < p.count && !failed(&p); i++)
        if (!p.rule[i].defined)
            build_fail(b, HY_BAD_INPUT, "the grammar: rule %s is used and not defined", p.rule[i].name);
    free(p.rule);
    return root;
}

int32_t grammar_choice(builder *b, const json_t *choices)
{
    int32_t rule = build_rule_add(b, "the choices");
    size_t i;
    json_t *one;
    if (!json_array_size(choices)) build_fail(b, HY_BAD_INPUT, "choices are a list of at least one text");
    json_array_foreach((json_t *)choices, i, one)
    {
        if (!json_is_string(one) || !json_string_length(one))
            build_fail(b, HY_BAD_INPUT, "choice %zu is no text, or an empty one", i);
        if (b->status != HY_OK) return 0;
        build_join(b, build_text(b, b->rule[rule].start, json_string_value(one), json_string_length(one)),
                   b->rule[rule].end);
    }
    return rule;
}
