/*
 * The language of chat templates: the part of Jinja that published templates use, run in a sandbox.
 *
 * Compile once, render from any thread. A template sees the values of its context and nothing else: no files, no
 * attributes of the host, no clock but strftime_now. White space follows trim_blocks and lstrip_blocks, as the `transformers`
 * library sets them; autoescape is off. Values are JSON values with Python's rules for truth, comparison, printing (True,
 * None, 1.0) and slices; lists and dicts cannot be changed, as in its immutable sandbox.
 *
 *   statements  if, elif, else; for with else, a filter, `loop` and recursion; set, also as a block and of a namespace's
 *               attribute; macro, call, filter, with, do, raw, generation, break, continue
 *   functions   range, dict, namespace, raise_exception, strftime_now
 *   filters     those of Jinja but groupby, pprint, random, striptags, urlize, wordwrap, xmlattr, filesizeformat; tojson as
 *               `transformers` has it (nothing escaped for HTML, indent, separators, sort_keys, ensure_ascii)
 *   tests       all of Jinja's
 *   methods     of strings, dicts and lists those that look and do not change; str.format and % with their usual forms
 *   not there   include, import, extends, block; *args and **kwargs in calls; integers beyond 64 bits
 *
 * Errors name the template and the line: "chat_template.jinja:12: ...". What raise_exception(text) says is HY_BAD_INPUT with
 * just that text, since it is meant for the client.
 */
#ifndef HAYATE_TEXT_JINJA_H
#define HAYATE_TEXT_JINJA_H

#include <jansson.h>

#include "base/buffer.h"
#include "hayate.h"

typedef struct jinja jinja;

/* HY_BAD_MODEL: not a template, or it uses what is not supported, with line and name. *out is owned by the caller. */
hy_status jinja_compile(const char *text, size_t length, const char *name, jinja **out, hy_error *err);
void jinja_free(jinja *t);

typedef struct jinja_limits {
    size_t output_bytes; /* 0: 256 MiB */
    size_t memory_bytes; /* of values that are made on the way; 0: 1 GiB */
    uint64_t steps;      /* nodes evaluated, work inside filters counted too; 0: 2e8, a few seconds */
    int depth;           /* of macros that call each other; 0: 200 */
    int64_t now;         /* seconds since 1970 for strftime_now, in local time; 0: the clock */
} jinja_limits;

/*
 * Renders onto the end of `out`. `context` is an object, borrowed. HY_BAD_INPUT: raise_exception, or the context does not
 * fit the template (an undefined value is used, a type is wrong); HY_NO_FIT: a limit was met. `limits` may be NULL. On
 * failure `out` may hold a part.
 */
hy_status jinja_render(const jinja *t, const json_t *context, const jinja_limits *limits, buffer *out, hy_error *err);

/* True when the template names the variable anywhere: what a request sets and no template reads has no effect. */
bool jinja_mentions(const jinja *t, const char *variable);

/* True when a test of that name is used: `is NAME`. */
bool jinja_tests(const jinja *t, const char *name);

/* True when a loop of the template runs over the content of a message: it knows contents that are lists of parts. Others
 * want each content as one string. */
bool jinja_reads_parts(const jinja *t);

#endif
