/* What the files of a grammar share: each kind of description writes its rules into a builder and returns the root. */
#ifndef HAYATE_TEXT_GRAMMAR_PARTS_H
#define HAYATE_TEXT_GRAMMAR_PARTS_H

#include <stdatomic.h>

#include "text/grammar.h"
#include "text/grammar_build.h"
#include "text/grammar_fsm.h"
#include "text/grammar_mask.h"

struct text_grammar {
    atomic_size_t references;
    const text_tokenizer *tok;
    automaton a;
    int32_t start; /* state */
    mask_set masks;
};

/* ---- Reading what people write (grammar_read.c) ------------------------------------------------------------------ */

enum { GRAMMAR_REPEATS = 1000000 }; /* most of a repetition */

/* Whether `what` stands at text[at]; `at` may be anywhere, also behind the end. */
bool grammar_stands(const char *text, size_t length, size_t at, const char *what);
/* Digits from text[at] on into *count, more than GRAMMAR_REPEATS as one more. Where they end. */
size_t grammar_repeats(const char *text, size_t length, size_t at, int32_t *count);

/* ---- Regular expressions (grammar_regex.c) -------------------------------------------------------------------- */

typedef struct regex_use {
    char_form form;
    bool search;       /* somewhere in the text, not all of it: as `pattern` of a JSON Schema */
    bool flat;         /* no calls: for an fsm */
    const char *where; /* what messages begin with; NULL: nothing */
} regex_use;

/* From a new node, which is *start, to the node that it returns. The text's begin and end are those of the rule. */
int32_t grammar_regex(builder *b, const char *pattern, size_t length, regex_use use, int32_t *start);
/* The texts of a pattern as an automaton. */
fsm grammar_regex_fsm(builder *b, const char *pattern, size_t length, regex_use use);

/* ---- JSON (grammar_json.c) -------------------------------------------------------------------------------------- */

typedef struct json_rules {
    builder *b;
    const text_grammar_options *o;
    bool inside_call; /* the text stands in a tool call: no "]<" in strings */
    int32_t space, character, string, key, integer, number, value, object; /* rules, -1: not made yet */
} json_rules;

void json_rules_open(json_rules *j, builder *b, const text_grammar_options *o);
int32_t json_put_space(json_rules *j, int32_t from); /* white space between tokens */
int32_t json_put_comma(json_rules *j, int32_t from); /* with the white space behind it */
int32_t json_put_colon(json_rules *j, int32_t from);
/* Rules: a character inside a string, any string, any name without a second spelling, any number, any value. */
int32_t json_rule_character(json_rules *j);
int32_t json_rule_string(json_rules *j);
int32_t json_rule_key(json_rules *j);
int32_t json_rule_integer(json_rules *j);
int32_t json_rule_number(json_rules *j);
int32_t json_rule_value(json_rules *j);
int32_t json_rule_object(json_rules *j);
/* `item` between `min` and `max` times, with commas, in brackets. */
int32_t json_put_list(json_rules *j, int32_t from, int32_t item, int32_t min, int32_t max);
/* A value that is given, as json.dumps writes it. */
int32_t json_put_literal(json_rules *j, int32_t from, const json_t *value);

/* ---- Numbers with bounds (grammar_number.c) ------------------------------------------------------------------- */

typedef struct number_bounds {
    bool integer;
    bool has_low, has_high, low_open, high_open; /* open: the bound itself does not belong */
    double low, high;
    int64_t low_whole, high_whole; /* of integers: closed bounds */
    double multiple;               /* 0: of anything */
} number_bounds;

/* HY_BAD_INPUT in the builder, with `where`, for what is not feasible. */
int32_t grammar_number(builder *b, int32_t from, const number_bounds *n, const char *where);

/* ---- Formats of strings (grammar_format.c) ---------------------------------------------------------------------- */

/* The pattern of a format, for the whole string. NULL: not one of JSON Schema's; "": one that is not supported. */
const char *grammar_format(const char *name);

/* ---- Kinds ------------------------------------------------------------------------------------------------------ */

int32_t grammar_schema(builder *b, const json_t *schema, const text_grammar_options *o);
int32_t grammar_schema_in(json_rules *j, const json_t *root, const json_t *schema, const char *place);
int32_t grammar_ebnf(builder *b, const char *text, size_t length);
int32_t grammar_choice(builder *b, const json_t *choices);
int32_t grammar_tools(builder *b, const json_t *request, const text_grammar_options *o);
int32_t grammar_tags(builder *b, const json_t *tags, const text_grammar_options *o);

#endif
