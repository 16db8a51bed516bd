#include "text/grammar_build.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"

enum { WORK = 40 << 20 }; /* steps of compiling: well below a second */

void build_open(builder *b, hy_error *err)
{
    *b = (builder){.work = WORK, .err = err};
    build_node(b); /* 0: where everything leads after a failure */
}

void build_close(builder *b)
{
    free(b->first);
    free(b->edge);
    free(b->rule);
}

hy_status build_fail(builder *b, hy_status status, const char *format, ...)
{
    char text[480];
    va_list args;
    if (b->status != HY_OK) return b->status;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    utf8_one_line(text, '?');
    return b->status = error_set(b->err, status, "%s", text);
}

bool build_work(builder *b, uint64_t amount)
{
    if (b->status != HY_OK) return false;
    if (b->work < amount) {
        build_fail(b, HY_NO_FIT,
                   "the grammar takes too long to compile: fewer alternatives and smaller repetitions fit");
        return false;
    }
    b->work -= amount;
    return true;
}

/* ---- Rules and nodes ------------------------------------------------------------------------------------------ */

int32_t build_node(builder *b)
{
    if (b->status != HY_OK) return 0;
    if (b->nodes == BUILD_NODES) {
        build_fail(b, HY_NO_FIT, "the grammar is too large: it has more than %d places", BUILD_NODES);
        return 0;
    }
    if (!memory_reserve((void **)&b->first, &b->node_capacity, b->nodes + 1, sizeof *b->first)) {
        b->status = error_memory(b->err, "a grammar", b->nodes * sizeof *b->first);
        return 0;
    }
    b->first[b->nodes] = -1;
    return (int32_t)b->nodes++;
}

static void add_edge(builder *b, int32_t from, build_edge e)
{
    if (b->status != HY_OK) return;
    if (!memory_reserve((void **)&b->edge, &b->edge_capacity, b->edges + 1, sizeof *b->edge)) {
        b->status = error_memory(b->err, "a grammar", b->edges * sizeof *b->edge);
        return;
    }
    e.next = b->first[from];
    b->edge[b->edges] = e;
    b->first[from] = (int32_t)b->edges++;
}

int32_t build_rule_add(builder *b, const char *name)
{
    int32_t start = build_node(b), end = build_node(b);
    if (b->status != HY_OK) return 0;
    if (b->rules == BUILD_RULES) {
        build_fail(b, HY_NO_FIT, "the grammar is too large: it has more than %d rules", BUILD_RULES);
        return 0;
    }
    if (!memory_reserve((void **)&b->rule, &b->rule_capacity, b->rules + 1, sizeof *b->rule)) {
        b->status = error_memory(b->err, "a grammar", b->rules * sizeof *b->rule);
        return 0;
    }
    build_rule *r = &b->rule[b->rules];
    *r = (build_rule){.start = start, .end = end, .body = -1};
    snprintf(r->name, sizeof r->name, "%s", name);
    return (int32_t)b->rules++;
}

int32_t build_counted(builder *b, int32_t body, int32_t min, int32_t max)
{
    int32_t rule = build_rule_add(b, "a repetition");
    if (b->status != HY_OK) return 0;
    b->rule[rule].body = body, b->rule[rule].min = min, b->rule[rule].max = max;
    b->rule[body].is_body = true;
    return rule;
}

void build_bytes(builder *b, int32_t from, int low, int high, int32_t to)
{
    add_edge(b, from, (build_edge){.to = to, .kind = EDGE_BYTES, .low = (uint8_t)low, .high = (uint8_t)high});
}

void build_edge_to(builder *b, int32_t from, build_kind kind, int32_t to)
{
    add_edge(b, from, (build_edge){.to = to, .kind = (uint8_t)kind});
}

void build_join(builder *b, int32_t from, int32_t to)
{
    build_edge_to(b, from, EDGE_EMPTY, to);
}

void build_call_to(builder *b, int32_t from, int32_t rule, int32_t to)
{
    add_edge(b, from, (build_edge){.to = to, .rule = rule, .kind = EDGE_CALL});
}

int32_t build_call(builder *b, int32_t from, int32_t rule)
{
    int32_t to = build_node(b);
    build_call_to(b, from, rule, to);
    return to;
}

int32_t build_text(builder *b, int32_t from, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        int32_t to = build_node(b);
        build_bytes(b, from, (unsigned char)text[i], (unsigned char)text[i], to);
        from = to;
    }
    return from;
}

int32_t build_string(builder *b, int32_t from, const char *text)
{
    return build_text(b, from, text, strlen(text));
}

/* ---- Sets of characters --------------------------------------------------------------------------------------- */

enum { LAST_CODE = 0x10FFFF, SURROGATES = 0xD800, SURROGATES_END = 0xDFFF };

void char_set_add(char_set *s, uint32_t low, uint32_t high)
{
    if (low > high) return;
    if (!memory_reserve((void **)&s->range, &s->capacity, s->count + 1, sizeof *s->range)) {
        s->failed = true;
        return;
    }
    s->range[s->count][0] = low, s->range[s->count][1] = high;
    s->count++;
}

void char_set_join(char_set *s, const char_set *other)
{
    for (size_t i = 0; i < other->count; i++) char_set_add(s, other->range[i][0], other->range[i][1]);
    s->failed |= other->failed;
}

static int compare_ranges(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return (x[0] > y[0]) - (x[0] < y[0]);
}

static void merge_ranges(char_set *s)
{
    size_t n = 0;
    if (s->count) qsort(s->range, s->count, sizeof *s->range, compare_ranges);
    for (size_t i = 0; i < s->count; i++) {
        uint32_t low = s->range[i][0], high = s->range[i][1];
        if (n && low <= s->range[n - 1][1] + 1) {
            if (high > s->range[n - 1][1]) s->range[n - 1][1] = high;
        } else {
            s->range[n][0] = low, s->range[n][1] = high;
            n++;
        }
    }
    s->count = n;
}

static void complement(char_set *s)
{
    char_set rest = {.failed = s->failed};
    uint32_t from = 0;
    for (size_t i = 0; i < s->count; i++) {
        if (s->range[i][0] > from) char_set_add(&rest, from, s->range[i][0] - 1);
        from = s->range[i][1] + 1;
    }
    if (from <= LAST_CODE) char_set_add(&rest, from, LAST_CODE);
    free(s->range);
    *s = rest;
}

void char_set_sort(char_set *s)
{
    merge_ranges(s);
    complement(s);
    char_set_add(s, SURROGATES, SURROGATES_END);
    merge_ranges(s);
    complement(s);
}

void char_set_negate(char_set *s)
{
    merge_ranges(s);
    complement(s);
    char_set_sort(s);
}

bool char_set_has(const char_set *s, uint32_t code)
{
    for (size_t i = 0; i < s->count; i++)
        if (code >= s->range[i][0] && code <= s->range[i][1]) return true;
    return false;
}

void char_set_free(char_set *s)
{
    free(s->range);
    *s = (char_set){0};
}

/* ---- Characters as bytes -------------------------------------------------------------------------------------- */

/* Nodes from which one, two or three bytes 80 .. BF lead to the same place: most of a large set shares them. */
typedef struct tails {
    int32_t node[4]; /* [n] n bytes from the end; 0: not made yet */
} tails;

static int32_t tail(builder *b, tails *t, int n)
{
    if (n == 0 || t->node[n]) return t->node[n];
    int32_t to = tail(b, t, n - 1), node = build_node(b);
    build_bytes(b, node, 0x80, 0xBF, to);
    return t->node[n] = node;
}

/* Characters of equal length whose encodings are between `low` and `high`, byte by byte: split until all bytes but the
 * first differing one span everything. */
static void put_range(builder *b, int32_t from, const unsigned char *low, const unsigned char *high, int n, tails *t)
{
    if (n == 1) {
        build_bytes(b, from, low[0], high[0], t->node[0]);
        return;
    }
    static const unsigned char least[3] = {0x80, 0x80, 0x80}, most[3] = {0xBF, 0xBF, 0xBF};
    bool from_least = memcmp(low + 1, least, (size_t)n - 1) == 0, to_most = memcmp(high + 1, most, (size_t)n - 1) == 0;
    int first = low[0], last = high[0];
    if (first == last && !(from_least && to_most)) {
        int32_t node = build_node(b);
        build_bytes(b, from, first, first, node);
        put_range(b, node, low + 1, high + 1, n - 1, t);
        return;
    }
    if (!from_least) {
        int32_t node = build_node(b);
        build_bytes(b, from, first, first, node);
        put_range(b, node, low + 1, most, n - 1, t);
        first++;
    }
    if (!to_most) {
        int32_t node = build_node(b);
        build_bytes(b, from, last, last, node);
        put_range(b, node, least, high + 1, n - 1, t);
        last--;
    }
    if (first <= last) build_bytes(b, from, first, last, tail(b, t, n - 1));
}

static void put_codes(builder *b, int32_t from, uint32_t low, uint32_t high, tails *t)
{
    static const uint32_t longest[] = {0x7F, 0x7FF, 0xFFFF, LAST_CODE};
    for (int n = 1; n <= 4 && low <= high; n++) {
        uint32_t last = high < longest[n - 1] ? high : longest[n - 1];
        if (low > last) continue;
        char a[4], z[4];
        utf8_encode(low, a);
        utf8_encode(last, z);
        put_range(b, from, (unsigned char *)a, (unsigned char *)z, n, t);
        low = last + 1;
    }
}

/* How a character of a JSON string is escaped: NULL where it stands for itself. */
static const char *escape(uint32_t code, char out[8])
{
    switch (code) {
    case '"': return "\\\"";
    case '\\': return "\\\\";
    case '\b': return "\\b";
    case '\f': return "\\f";
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    }
    if (code >= 0x20) return NULL;
    snprintf(out, 8, "\\u%04x", (unsigned)code);
    return out;
}

void build_chars(builder *b, int32_t from, const char_set *s, char_form form, int32_t to)
{
    tails t = {.node = {to}};
    char text[8];
    if (s->failed) build_fail(b, HY_NO_FIT, "there is no memory for a set of characters");
    if (!build_work(b, s->count)) return;
    for (size_t i = 0; i < s->count; i++) {
        uint32_t low = s->range[i][0], high = s->range[i][1];
        while (form == FORM_JSON && low <= high && low <= '\\') {
            const char *escaped = escape(low, text);
            uint32_t plain = low < '"' ? '"' : '\\'; /* the next that is escaped */
            if (escaped) {
                build_join(b, build_string(b, from, escaped), to);
                low++;
            } else {
                uint32_t last = high < plain ? high : plain - 1;
                put_codes(b, from, low, last, &t);
                low = last + 1;
            }
        }
        if (low <= high) put_codes(b, from, low, high, &t);
    }
}

int32_t build_escaped(builder *b, int32_t from, const char *text, size_t length)
{
    char out[8];
    for (size_t i = 0; i < length; i++) {
        const char *escaped = (unsigned char)text[i] < 0x80 ? escape((unsigned char)text[i], out) : NULL;
        from = escaped ? build_string(b, from, escaped) : build_text(b, from, text + i, 1);
    }
    return from;
}
