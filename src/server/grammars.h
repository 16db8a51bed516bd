/*
 * Compiled grammars, kept: agents send the same tools and schemas with every request, and what a grammar has worked out for
 * one answer serves the next. Any thread.
 */
#ifndef HAYATE_SERVER_GRAMMARS_H
#define HAYATE_SERVER_GRAMMARS_H

#include "server/request_fields.h"

typedef struct grammars grammars;

/* `kept` that nobody uses stay; the least recently used goes first. NULL: no memory. */
grammars *grammars_open(const hy_model *model, int kept);
void grammars_close(grammars *g);

/* As hy_grammar_compile; *out stays alive until it is given back. */
hy_status grammars_take(grammars *g, const request_grammar *what, const hy_grammar **out, hy_error *err);
bool grammars_keeps(grammars *g, const request_grammar *what); /* taking it compiles nothing */
void grammars_give(grammars *g, const hy_grammar *grammar); /* NULL: nothing */

#endif
