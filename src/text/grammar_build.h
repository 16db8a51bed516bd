/*
 * Writing down a grammar: rules whose bodies are graphs of nodes, with edges that take a byte or call a rule. A text of
 * a rule is the bytes of a way from its start to its end.
 *
 * Functions that continue a graph take the node to start from and return the one they lead to. The first failure stays
 * in `status`; after it everything is a harmless nothing, so that callers need to look once, at their end.
 */
#ifndef HAYATE_TEXT_GRAMMAR_BUILD_H
#define HAYATE_TEXT_GRAMMAR_BUILD_H

#include "hayate.h"

enum {
    BUILD_NODES = 1 << 20, /* most of a grammar */
    BUILD_RULES = 1 << 16,
    BUILD_ENDLESS = INT32_MAX, /* the `max` of a repetition without an end */
};

typedef enum build_kind {
    EDGE_BYTES, /* one byte of low .. high */
    EDGE_EMPTY,
    EDGE_CALL,  /* a text of `rule` */
    EDGE_BEGIN, /* only where nothing of the rule's text has come yet: ^ */
    EDGE_END,   /* only where nothing of it comes any more: $ */
} build_kind;

typedef struct build_edge {
    int32_t next; /* of the same node; -1: none */
    int32_t to, rule;
    uint8_t kind, low, high;
} build_edge;

/* A plain rule has nodes; a counted one is `min` to `max` texts of its body, which is a rule for this purpose alone. */
typedef struct build_rule {
    int32_t start, end;
    int32_t body, min, max; /* body -1: a plain rule */
    bool is_body;
    char name[48];
} build_rule;

typedef struct builder {
    int32_t *first; /* [nodes] edge, or -1 */
    build_edge *edge;
    build_rule *rule;
    size_t nodes, node_capacity, edges, edge_capacity, rules, rule_capacity;
    uint64_t work; /* left; what takes long takes from it */
    hy_status status;
    hy_error *err;
} builder;

void build_open(builder *b, hy_error *err);
void build_close(builder *b);
hy_status build_fail(builder *b, hy_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* False, and HY_NO_FIT: more work than a grammar may make. */
bool build_work(builder *b, uint64_t amount);

int32_t build_rule_add(builder *b, const char *name);
/* The rule of `min` to `max` texts of `body`. */
int32_t build_counted(builder *b, int32_t body, int32_t min, int32_t max);
int32_t build_node(builder *b);
void build_bytes(builder *b, int32_t from, int low, int high, int32_t to);
void build_edge_to(builder *b, int32_t from, build_kind kind, int32_t to);
void build_join(builder *b, int32_t from, int32_t to); /* nothing between them */
void build_call_to(builder *b, int32_t from, int32_t rule, int32_t to);
int32_t build_call(builder *b, int32_t from, int32_t rule);
int32_t build_text(builder *b, int32_t from, const char *text, size_t length);
int32_t build_string(builder *b, int32_t from, const char *text);

/* ---- Sets of characters --------------------------------------------------------------------------------------- */

typedef struct char_set {
    uint32_t (*range)[2]; /* [count] first and last */
    size_t count, capacity;
    bool failed;
} char_set;

void char_set_add(char_set *s, uint32_t low, uint32_t high);
void char_set_join(char_set *s, const char_set *other);
void char_set_sort(char_set *s);   /* ascending, apart from each other, without surrogates */
void char_set_negate(char_set *s); /* sorts */
bool char_set_has(const char_set *s, uint32_t code);
void char_set_free(char_set *s);

typedef enum char_form {
    FORM_PLAIN, /* UTF-8 */
    FORM_JSON,  /* inside a JSON string: quote, backslash and control characters escaped, the rest as it is */
} char_form;

/* One character of the sorted set. */
void build_chars(builder *b, int32_t from, const char_set *s, char_form form, int32_t to);
/* Text as it stands in a JSON string, without the quotes. */
int32_t build_escaped(builder *b, int32_t from, const char *text, size_t length);

#endif
