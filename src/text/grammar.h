/*
 * Structured output: from a description of the allowed texts to the tokens that may come next.
 *
 * A grammar is compiled once per description and tokenizer and may be shared by requests and threads; a matcher walks through
 * it for one request. The mask of a state has a bit for every token that keeps the text so far a prefix of an allowed one,
 * tokens that end the text only where it is complete. Tokens are judged by their bytes, so a character may come in several
 * tokens, and a token may span several values.
 */
#ifndef HAYATE_TEXT_GRAMMAR_H
#define HAYATE_TEXT_GRAMMAR_H

#include <jansson.h>

#include "text/reasoning.h"

typedef enum text_grammar_kind {
    TEXT_GRAMMAR_JSON_SCHEMA, /* the schema as JSON text */
    TEXT_GRAMMAR_JSON_OBJECT, /* any JSON object; no source */
    TEXT_GRAMMAR_REGEX,       /* the whole text matches */
    TEXT_GRAMMAR_CHOICE,      /* a JSON array of strings */
    TEXT_GRAMMAR_EBNF,        /* GBNF, or the Lark-like form that `vllm serve` accepts where it differs */
    TEXT_GRAMMAR_TOOLS,       /* a JSON object {"tools": [...], "name": string or null, "parallel": bool}: at least one call, in
                               * the model's form, of one of the tools or of the named one, arguments as their schemas say */
    TEXT_GRAMMAR_TAGS,        /* structural_tag: free text in which given beginnings are followed by given schemas */
} text_grammar_kind;

typedef struct text_grammar_options {
    bool any_whitespace;        /* JSON: white space between tokens as the model likes, bounded; otherwise compact with ": " and
                                 * ", " as json.dumps writes */
    bool additional_properties; /* where a schema does not say */
    const char *whitespace_pattern; /* a regex in place of the bounded white space; NULL */
} text_grammar_options;

typedef struct text_grammar text_grammar;

/*
 * HY_BAD_INPUT: malformed, or a keyword that is not supported, by name and place ("$.properties.a: `if` is not supported"),
 * or nothing can match. HY_NO_FIT: too large. *out has one reference.
 */
hy_status text_grammar_compile(const text_tokenizer *tok, text_grammar_kind kind, const char *source, size_t length,
                               const text_grammar_options *options, text_grammar **out, hy_error *err);
text_grammar *text_grammar_share(const text_grammar *g); /* one reference more */
void text_grammar_release(text_grammar *g);
const text_tokenizer *text_grammar_tokenizer(const text_grammar *g); /* whose tokens it knows */

typedef struct text_matcher text_matcher;

/* `after_reasoning`: everything may be said until reasoning is over; `start` tells whether it has begun (text/reasoning.h):
 * closed: the grammar holds from the first token; inside: after </mm:think>; open: the first token may begin the grammar, or
 * be a marker that opens or skips reasoning. `ends` [end_count] are the tokens that end the text. NULL without memory. */
text_matcher *text_matcher_open(const text_grammar *g, bool after_reasoning, text_reasoning_start start,
                                const int32_t *ends, size_t end_count);
void text_matcher_close(text_matcher *m);
/* Looks ahead, for drafts: what is accepted from text_matcher_mark on is taken back by text_matcher_back. Not nested. */
void text_matcher_mark(text_matcher *m);
void text_matcher_back(text_matcher *m);
/* Bits of the tokens that may come: mask [ceil(vocab / 32)], vocab the tokenizer's, as ops_sampling takes it. False: everything
 * may. While reasoning lasts that is everything but the end. Never leaves nothing, unless there is no memory: where only the end
 * is possible, the end ids are set. Special tokens are never text. */
bool text_matcher_mask(text_matcher *m, uint32_t *mask);
/* The token came. False: it was not allowed (the matcher stays). */
bool text_matcher_accept(text_matcher *m, int32_t token);
bool text_matcher_complete(const text_matcher *m); /* the text may end here */
bool text_matcher_over(const text_matcher *m);     /* and cannot go on */
size_t text_matcher_places(const text_matcher *m); /* in which the text can be at once, for tests and displays */
size_t text_matcher_remembered(const text_matcher *m); /* positions that take memory, likewise */

#endif
