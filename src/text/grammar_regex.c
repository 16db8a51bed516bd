/*
 * Regular expressions: the common core of Python's, ECMAScript's and PCRE's. A pattern is read into a tree, and the
 * tree is written into a builder.
 *
 * What a class like \d means differs between them: ASCII or Unicode. A positive one is taken as ASCII and what a
 * negative one leaves out as Unicode, so that a text that is allowed here matches under either reading.
 */
#include "text/grammar_parts.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "base/memory.h"
#include "base/utf8.h"

enum {
    NESTING = 200,
    UNROLLED = 160, /* size of a repetition that is written out: counting costs more than that many states */
    WIDE = 3000,    /* characters of a class whose tokens are many: each place of a repetition would have them all */
};

typedef enum piece { PIECE_SEQUENCE, PIECE_CHOICE, PIECE_CLASS, PIECE_REPEAT, PIECE_BEGIN, PIECE_END } piece;

typedef struct tree_node {
    piece kind;
    int32_t child, next; /* -1: none; `next` among the children of the same node */
    int32_t min, max;
    char_set set;
} tree_node;

typedef struct parser {
    builder *b;
    const char *text;
    size_t length, at;
    regex_use use;
    bool fold, dot_all; /* (?i), (?s) */
    int depth;
    tree_node *node;
    size_t count, capacity;
} parser;

/* ---- Reading -------------------------------------------------------------------------------------------------- */

static int32_t fail(parser *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int32_t fail(parser *p, const char *format, ...)
{
    char text[300];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    build_fail(p->b, HY_BAD_INPUT, "%s%sa pattern at byte %zu: %s", p->use.where ? p->use.where : "",
               p->use.where ? ": " : "", p->at, text);
    return -1;
}

static int32_t add_node(parser *p, piece kind)
{
    if (!memory_reserve((void **)&p->node, &p->capacity, p->count + 1, sizeof *p->node)) {
        build_fail(p->b, HY_NO_FIT, "there is no memory for a pattern");
        return -1;
    }
    p->node[p->count] = (tree_node){.kind = kind, .child = -1, .next = -1};
    return (int32_t)p->count++;
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

static uint32_t take_code(parser *p)
{
    uint32_t code = 0;
    size_t n = utf8_decode(p->text + p->at, p->length - p->at, &code);
    if (!n) {
        fail(p, "it is not UTF-8");
        p->at = p->length;
        return 0;
    }
    p->at += n;
    return code;
}

static bool take_hex(parser *p, int digits, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < digits; i++) {
        const char *d = p->at < p->length ? memchr("0123456789abcdefABCDEF", p->text[p->at], 22) : NULL;
        if (!d) {
            fail(p, "%d hexadecimal digits are expected", digits);
            return false;
        }
        char one[2] = {*d, 0};
        *code = *code * 16 + (uint32_t)strtoul(one, NULL, 16);
        p->at++;
    }
    return true;
}

/* Behind \u: four digits, a pair of surrogates, or digits in braces. */
static uint32_t take_unicode(parser *p)
{
    uint32_t code = 0, second = 0;
    if (take(p, "{")) {
        while (p->at < p->length && p->text[p->at] != '}' && !failed(p) && code <= 0x10FFFF) {
            uint32_t digit;
            if (take_hex(p, 1, &digit)) code = code * 16 + digit;
        }
        if (!take(p, "}") || code > 0x10FFFF) fail(p, "\\u{...} is no character");
        return code;
    }
    if (!take_hex(p, 4, &code)) return 0;
    if (code >= 0xD800 && code < 0xDC00 && take(p, "\\u") && take_hex(p, 4, &second))
        code = 0x10000 + ((code - 0xD800) << 10) + ((second - 0xDC00) & 0x3FF);
    if (code >= 0xD800 && code < 0xE000) fail(p, "half of a surrogate pair is no character");
    return code;
}

/* ---- Classes -------------------------------------------------------------------------------------------------- */

/* What certainly belongs, and what may. */
typedef struct class
{
    char_set sure, perhaps;
} class;

static void class_add(class *c, uint32_t low, uint32_t high)
{
    char_set_add(&c->sure, low, high);
    char_set_add(&c->perhaps, low, high);
}

static void class_negate(class *c)
{
    char_set sure = c->sure;
    c->sure = c->perhaps, c->perhaps = sure;
    char_set_negate(&c->sure);
    char_set_negate(&c->perhaps);
}

static void class_free(class *c)
{
    char_set_free(&c->sure);
    char_set_free(&c->perhaps);
}

/* Characters whose general category begins with `name`; `name` "w" is what Unicode calls a word's. */
static bool add_category(parser *p, char_set *set, const char *name)
{
    bool any = false;
    uint32_t from = 0;
    bool inside = false;
    if (!build_work(p->b, 1 << 18)) return false;
    for (uint32_t code = 0; code <= 0x110000; code++) {
        const char *is = code <= 0x10FFFF ? utf8proc_category_string((utf8proc_int32_t)code) : "";
        bool word = *is == 'L' || *is == 'N' || *is == 'M' || strcmp(is, "Pc") == 0;
        bool in = code <= 0x10FFFF && (strcmp(name, "w") == 0 ? word : strncmp(is, name, strlen(name)) == 0);
        if (in && !inside) from = code;
        if (!in && inside) char_set_add(set, from, code - 1);
        inside = in, any |= in;
    }
    return any;
}

static void add_class_escape(parser *p, class *c, char letter)
{
    class own = {{0}, {0}};
    static const uint32_t spaces[][2] = {{0x09, 0x0D},     {0x1C, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                                         {0x1680, 0x1680}, {0x180E, 0x180E}, {0x2000, 0x200A}, {0x2028, 0x2029},
                                         {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    switch (letter | 0x20) {
    case 'd':
        class_add(&own, '0', '9');
        if (letter == 'D') add_category(p, &own.perhaps, "Nd");
        break;
    case 'w':
        class_add(&own, '0', '9'), class_add(&own, 'A', 'Z'), class_add(&own, 'a', 'z'), class_add(&own, '_', '_');
        if (letter == 'W') add_category(p, &own.perhaps, "w");
        break;
    default:
        char_set_add(&own.sure, 0x09, 0x0D), char_set_add(&own.sure, ' ', ' ');
        for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
            char_set_add(&own.perhaps, spaces[i][0], spaces[i][1]);
    }
    if (letter < 'a') class_negate(&own);
    char_set_join(&c->sure, &own.sure);
    char_set_join(&c->perhaps, &own.perhaps);
    class_free(&own);
}

/* Behind \p or \P. */
static void add_property(parser *p, class *c, bool negative)
{
    char name[32] = {0};
    class own = {{0}, {0}};
    const char *end = looking_at(p, "{") ? memchr(p->text + p->at, '}', p->length - p->at) : NULL;
    if (end) {
        size_t n = (size_t)(end - p->text) - p->at - 1;
        if (n < sizeof name) memcpy(name, p->text + p->at + 1, n);
        p->at += n + 2;
    } else if (p->at < p->length) {
        name[0] = p->text[p->at++];
    }
    const char *value = strchr(name, '=');
    value = value ? value + 1 : name;
    if (!*value || strlen(value) > 2 || !add_category(p, &own.sure, value))
        fail(p, "\\p{%s} is not supported: general categories are, such as \\p{L} or \\p{Lu}", name);
    char_set_join(&own.perhaps, &own.sure);
    if (negative) class_negate(&own);
    char_set_join(&c->sure, &own.sure);
    char_set_join(&c->perhaps, &own.perhaps);
    class_free(&own);
}

/* An escape that stands for one character. */
static uint32_t single_escape(parser *p, bool in_class)
{
    uint32_t code = 0;
    char letter = p->text[p->at];
    if ((unsigned char)letter >= 0x80) return take_code(p);
    p->at++;
    switch (letter) {
    case 't': return '\t';
    case 'n': return '\n';
    case 'r': return '\r';
    case 'f': return '\f';
    case 'v': return '\v';
    case '0': return 0;
    case 'x': return looking_at(p, "{") ? take_unicode(p) : (take_hex(p, 2, &code), code);
    case 'u': return take_unicode(p);
    case 'b':
        if (in_class) return '\b';
        break;
    }
    if (letter >= '1' && letter <= '9') return (uint32_t)fail(p, "\\%c: back-references are not supported", letter);
    if (letter == 'k') return (uint32_t)fail(p, "\\k: back-references are not supported");
    if (letter == 'b' || letter == 'B') return (uint32_t)fail(p, "\\%c: word boundaries are not supported", letter);
    if ((letter | 0x20) >= 'a' && (letter | 0x20) <= 'z') return (uint32_t)fail(p, "\\%c is not supported", letter);
    return (uint32_t)letter;
}

/* Behind a backslash: adds to the class. True, with the character, if it was a single one, which may begin a range. */
static bool class_escape(parser *p, class *c, bool in_class, uint32_t *code)
{
    if (p->at == p->length) return fail(p, "it ends with a backslash"), false;
    char letter = p->text[p->at];
    if (strchr("dDwWsS", letter) && letter) {
        p->at++;
        add_class_escape(p, c, letter);
        return false;
    }
    if (letter == 'p' || letter == 'P') {
        p->at++;
        add_property(p, c, letter == 'P');
        return false;
    }
    *code = single_escape(p, in_class);
    return true;
}

/* With (?i), ASCII letters come in both cases. */
static void fold(char_set *s)
{
    size_t count = s->count;
    for (size_t i = 0; i < count; i++)
        for (uint32_t c = 'A'; c <= 'Z'; c++) {
            if (s->range[i][0] <= c && c <= s->range[i][1]) char_set_add(s, c + 32, c + 32);
            if (s->range[i][0] <= c + 32 && c + 32 <= s->range[i][1]) char_set_add(s, c, c);
        }
}

static int32_t class_node(parser *p, class *c, bool negative)
{
    int32_t node = add_node(p, PIECE_CLASS);
    if (p->fold) fold(&c->sure), fold(&c->perhaps);
    if (negative) class_negate(c);
    char_set_sort(&c->sure);
    if (node >= 0) {
        p->node[node].set = c->sure;
        c->sure = (char_set){0};
    }
    class_free(c);
    return node;
}

/* Behind the opening bracket. */
static int32_t parse_class(parser *p)
{
    class c = {{0}, {0}};
    bool negative = take(p, "^"), first = true;
    for (;; first = false) {
        if (failed(p)) break;
        if (p->at == p->length) {
            fail(p, "a class has no ]");
            break;
        }
        if (!first && take(p, "]")) break;
        if (looking_at(p, "[:")) fail(p, "[: is not supported: write the class out");
        uint32_t low = 0, high;
        bool single = true;
        if (take(p, "\\"))
            single = class_escape(p, &c, true, &low);
        else
            low = take_code(p);
        if (!single) continue;
        high = low;
        if (looking_at(p, "-") && p->at + 1 < p->length && p->text[p->at + 1] != ']') {
            p->at++;
            if (take(p, "\\") ? !class_escape(p, &c, true, &high) : (high = take_code(p), false))
                fail(p, "a range ends with a class");
            if (high < low) fail(p, "a range goes backwards");
        }
        class_add(&c, low, high);
    }
    return class_node(p, &c, negative);
}

static int32_t single_node(parser *p, uint32_t low, uint32_t high)
{
    class c = {{0}, {0}};
    class_add(&c, low, high);
    return class_node(p, &c, false);
}

static int32_t dot_node(parser *p)
{
    class c = {{0}, {0}};
    if (!p->dot_all) {
        class_add(&c, '\n', '\n'), class_add(&c, '\r', '\r'), class_add(&c, 0x2028, 0x2029);
        char_set_add(&c.perhaps, 0x85, 0x85);
    }
    class_negate(&c);
    return class_node(p, &c, false);
}

/* ---- The tree ------------------------------------------------------------------------------------------------- */

static int32_t parse_choice(parser *p);

/* Behind "(?": what kind of group. False: it was flags alone, or is not supported. */
static bool group_kind(parser *p)
{
    if (take(p, ":")) return true;
    if (looking_at(p, "=") || looking_at(p, "!") || looking_at(p, "<=") || looking_at(p, "<!"))
        return fail(p, "look-around is not supported"), false;
    if (looking_at(p, ">")) return fail(p, "atomic groups are not supported"), false;
    if (looking_at(p, "P=")) return fail(p, "back-references are not supported"), false;
    if (take(p, "P<") || take(p, "<") || take(p, "'")) {
        while (p->at < p->length && p->text[p->at] != '>' && p->text[p->at] != '\'') p->at++;
        if (p->at < p->length) p->at++;
        return true;
    }
    while (looking_at(p, "i") || looking_at(p, "s")) {
        p->fold |= looking_at(p, "i"), p->dot_all |= looking_at(p, "s");
        p->at++;
    }
    if (take(p, ":")) return true;
    if (!take(p, ")")) fail(p, "(?%.1s is not supported", p->at < p->length ? p->text + p->at : "");
    return false;
}

/* Behind the opening parenthesis. */
static int32_t parse_group(parser *p)
{
    bool folding = p->fold, all = p->dot_all, global = p->at == 1;
    if (take(p, "?") && !group_kind(p)) {
        if (!failed(p) && !global) fail(p, "flags are only supported at the beginning, or as (?i:...)");
        return add_node(p, PIECE_SEQUENCE);
    }
    if (++p->depth > NESTING) return fail(p, "groups are nested deeper than %d levels", NESTING);
    int32_t node = parse_choice(p);
    p->depth--;
    if (!failed(p) && !take(p, ")")) fail(p, "a group has no )");
    p->fold = folding, p->dot_all = all;
    return node;
}

static int32_t parse_escape(parser *p)
{
    class c = {{0}, {0}};
    uint32_t code = 0;
    if (take(p, "A")) return add_node(p, PIECE_BEGIN);
    if (take(p, "Z") || take(p, "z")) return add_node(p, PIECE_END);
    if (class_escape(p, &c, false, &code)) class_add(&c, code, code);
    return class_node(p, &c, false);
}

static int32_t parse_atom(parser *p)
{
    if (take(p, "(")) return parse_group(p);
    if (take(p, "[")) return parse_class(p);
    if (take(p, ".")) return dot_node(p);
    if (take(p, "^")) return add_node(p, PIECE_BEGIN);
    if (take(p, "$")) return add_node(p, PIECE_END);
    if (take(p, "\\")) return parse_escape(p);
    if (looking_at(p, "*") || looking_at(p, "+") || looking_at(p, "?"))
        return fail(p, "there is nothing before the %c to repeat", p->text[p->at]);
    uint32_t code = take_code(p);
    return failed(p) ? -1 : single_node(p, code, code);
}

static bool take_count(parser *p, int32_t *count)
{
    size_t from = p->at;
    p->at = grammar_repeats(p->text, p->length, p->at, count);
    if (*count > GRAMMAR_REPEATS) fail(p, "a repetition is at most %d", GRAMMAR_REPEATS);
    return p->at > from && !failed(p);
}

/* A repetition, if there is one here: braces that are none are characters. */
static bool parse_bounds(parser *p, int32_t *min, int32_t *max)
{
    size_t from = p->at;
    *min = 0, *max = BUILD_ENDLESS;
    if (take(p, "*")) return true;
    if (take(p, "+")) return *min = 1, true;
    if (take(p, "?")) return *max = 1, true;
    if (take(p, "{")) {
        bool low = take_count(p, min);
        if (low && take(p, "}")) return *max = *min, true;
        if (take(p, ",") && !failed(p)) {
            bool high = take_count(p, max);
            if (!high) *max = BUILD_ENDLESS;
            if ((low || high) && take(p, "}")) return true;
        }
    }
    p->at = from;
    return false;
}

static int32_t parse_repeat(parser *p)
{
    int32_t node = parse_atom(p), min, max;
    while (!failed(p) && parse_bounds(p, &min, &max)) {
        if (looking_at(p, "+")) return fail(p, "possessive repetitions are not supported");
        take(p, "?"); /* as few as possible: the same texts */
        if (min > max) return fail(p, "a repetition of at least %d and at most %d", min, max);
        if (p->node[node].kind == PIECE_REPEAT) return fail(p, "a repetition is repeated: put it into a group");
        int32_t repeat = add_node(p, PIECE_REPEAT);
        if (repeat < 0) return -1;
        p->node[repeat].child = node, p->node[repeat].min = min, p->node[repeat].max = max;
        node = repeat;
    }
    return node;
}

static int32_t parse_sequence(parser *p)
{
    int32_t node = add_node(p, PIECE_SEQUENCE), last = -1;
    while (!failed(p) && p->at < p->length && !looking_at(p, "|") && !looking_at(p, ")")) {
        int32_t child = parse_repeat(p);
        if (failed(p)) return -1;
        *(last < 0 ? &p->node[node].child : &p->node[last].next) = child;
        last = child;
    }
    return node;
}

static int32_t parse_choice(parser *p)
{
    int32_t first = parse_sequence(p), node = -1, last = first;
    while (!failed(p) && take(p, "|")) {
        int32_t more = parse_sequence(p);
        if (node < 0 && !failed(p)) {
            node = add_node(p, PIECE_CHOICE);
            if (node >= 0) p->node[node].child = first;
        }
        if (failed(p)) return -1;
        p->node[last].next = more;
        last = more;
    }
    return node < 0 ? first : node;
}

/* ---- Writing it down ------------------------------------------------------------------------------------------ */

static int32_t put(parser *p, int32_t node, int32_t from);

/* About how many nodes a piece takes, and whether it has a class of many characters, or an anchor. */
static uint64_t size_of(const parser *p, int32_t node, bool *wide, bool *anchor)
{
    const tree_node *n = &p->node[node];
    uint64_t size = 1, characters = 0;
    if (!build_work(p->b, 1)) return size;
    if (n->kind == PIECE_BEGIN || n->kind == PIECE_END) *anchor = true;
    for (size_t i = 0; n->kind == PIECE_CLASS && i < n->set.count; i++) {
        characters += n->set.range[i][1] - n->set.range[i][0] + 1;
        size += n->set.range[i][1] >= 0x80;
    }
    *wide |= characters >= WIDE;
    for (int32_t child = n->child; child >= 0; child = p->node[child].next) size += size_of(p, child, wide, anchor);
    if (n->kind == PIECE_REPEAT) size *= (uint64_t)(n->max == BUILD_ENDLESS ? n->min + 1 : n->max);
    return size < ((uint64_t)1 << 32) ? size : (uint64_t)1 << 32;
}

static int32_t put_counted(parser *p, const tree_node *n, int32_t from)
{
    builder *b = p->b;
    int32_t body = build_rule_add(b, "a repetition in a pattern");
    if (failed(p)) return 0;
    int32_t to = put(p, n->child, b->rule[body].start);
    build_join(b, to, b->rule[body].end);
    return build_call(b, from, build_counted(b, body, n->min, n->max));
}

static int32_t put_repeat(parser *p, int32_t node, int32_t from)
{
    builder *b = p->b;
    const tree_node n = p->node[node];
    bool wide = false, anchor = false, endless = n.max == BUILD_ENDLESS;
    uint64_t size = size_of(p, node, &wide, &anchor);
    int32_t times = endless ? n.min : n.max;
    if (!p->use.flat && !anchor && times > 1 && (size > UNROLLED || (wide && times > 4)))
        return put_counted(p, &n, from);
    for (int32_t i = 0; i < n.min && !failed(p); i++) from = put(p, n.child, from);
    if (endless) {
        int32_t loop = build_node(b);
        build_join(b, from, loop);
        build_join(b, put(p, n.child, loop), loop);
        return loop;
    }
    int32_t to = build_node(b);
    build_join(b, from, to);
    for (int32_t i = n.min; i < n.max && !failed(p); i++) {
        int32_t fresh = build_node(b); /* loops of the child must not lead back to what stands before */
        build_join(b, from, fresh);
        from = put(p, n.child, fresh);
        build_join(b, from, to);
    }
    return to;
}

static int32_t put(parser *p, int32_t node, int32_t from)
{
    builder *b = p->b;
    int32_t to = 0;
    if (!build_work(b, 1)) return 0; /* a group of nothing makes no node, so that their number bounds no loop */
    switch (p->node[node].kind) {
    case PIECE_SEQUENCE:
        for (int32_t child = p->node[node].child; child >= 0; child = p->node[child].next) from = put(p, child, from);
        return from;
    case PIECE_CHOICE:
        to = build_node(b);
        for (int32_t child = p->node[node].child; child >= 0; child = p->node[child].next)
            build_join(b, put(p, child, from), to);
        return to;
    case PIECE_CLASS:
        to = build_node(b);
        build_chars(b, from, &p->node[node].set, p->use.form, to);
        return to;
    case PIECE_REPEAT: return put_repeat(p, node, from);
    case PIECE_BEGIN:
    case PIECE_END:
        to = build_node(b);
        build_edge_to(b, from, p->node[node].kind == PIECE_BEGIN ? EDGE_BEGIN : EDGE_END, to);
        return to;
    }
    return from;
}

/* Any characters before, or behind. */
static int32_t put_anything(parser *p, int32_t from)
{
    char_set all = {0};
    int32_t loop = build_node(p->b);
    char_set_add(&all, 0, 0x10FFFF);
    char_set_sort(&all);
    build_join(p->b, from, loop);
    build_chars(p->b, loop, &all, p->use.form, loop);
    char_set_free(&all);
    return loop;
}

int32_t grammar_regex(builder *b, const char *pattern, size_t length, regex_use use, int32_t *start)
{
    parser p = {.b = b, .text = pattern, .length = length, .use = use};
    int32_t root = parse_choice(&p), end = 0;
    if (!failed(&p) && p.at < p.length) fail(&p, "there is a ) without its group");
    *start = build_node(b);
    if (!failed(&p)) {
        int32_t from = use.search ? put_anything(&p, *start) : *start;
        end = put(&p, root, from);
        if (use.search) end = put_anything(&p, end);
    }
    for (size_t i = 0; i < p.count; i++) char_set_free(&p.node[i].set);
    free(p.node);
    return end;
}

fsm grammar_regex_fsm(builder *b, const char *pattern, size_t length, regex_use use)
{
    int32_t start = 0, end;
    use.flat = true;
    end = grammar_regex(b, pattern, length, use, &start);
    return fsm_of(b, start, end);
}
