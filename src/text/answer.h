/*
 * What a model writes, split while it arrives: reasoning, content, tool calls with their arguments as JSON.
 *
 *     reasoning </mm:think> content NS<tool_call> NS<invoke name="N"> NS<k>value NS</k> NS</invoke> NS</tool_call>
 *
 * A state machine over characters (text/reasoning.h for the first split, text/tool_calls.h for the grammar of calls,
 * its rules and its repairs): what it passes on, joined, does not depend on where the pieces end, and is the same for a
 * stream and for a whole text. A call's name comes first, then its arguments as they are written: fragments of compact
 * JSON that are never taken back. Strings flow, and the items of a list one by one; what can only be known at its end
 * (numbers, objects, several types: text/call_arguments.h) comes then. On an end in the middle (`text_answer_finish`)
 * strings, lists and objects that are open are closed, so that the arguments of every call are one valid JSON object; a
 * number that may have gone on is left out. A parameter that the model writes twice is there twice, and counts as
 * readers of JSON do: last.
 *
 * Text that is no list of calls where one should stand is content, with the namespace markers left out, and parsing
 * goes on: a stream never falls silent, and what comes after a damaged call still counts, as do calls in further
 * blocks. A call that is damaged ends there, with the arguments that it has.
 *
 * Every byte is looked at once, whatever waits: on one core of a shared AMD EPYC 40 ns a piece of four bytes (98 MB/s) for
 * arguments of 1 MB and of 16 MB alike, 450 MB/s for a whole text. Nothing is allocated by the piece.
 *
 * A `</mm:think>` at the very start is swallowed however the prompt ended. Once a block of calls has begun, markers of
 * reasoning are text: files that an argument holds may have them.
 */
#ifndef HAYATE_TEXT_ANSWER_H
#define HAYATE_TEXT_ANSWER_H

#include <jansson.h>

#include "text/reasoning.h"

typedef enum text_part_kind {
    TEXT_PART_REASONING,
    TEXT_PART_CONTENT,
    TEXT_PART_CALL,      /* a call begins; the text is its name */
    TEXT_PART_ARGUMENTS, /* the next characters of its arguments; whole characters, whole escapes */
    TEXT_PART_CALL_END,  /* no text: the arguments are complete */
} text_part_kind;

/* `call` counts from 0; -1 outside of calls. Borrowed for the call; text is empty for TEXT_PART_CALL_END only. */
typedef void (*text_part_fn)(void *user, text_part_kind kind, int call, const char *text, size_t length);

typedef struct text_answer_options {
    text_reasoning_start start; /* how the prompt ended */
    bool split_reasoning;       /* otherwise markers of reasoning are text */
    bool split_calls;           /* otherwise calls are text */
    const json_t *tools;        /* as the chat template takes them, for the types of arguments; may be NULL; borrowed */
    int max_calls;              /* further ones are dropped; 0: no limit (parallel_tool_calls false: 1) */
} text_answer_options;

typedef struct text_answer text_answer;

/* NULL without memory. */
text_answer *text_answer_open(const text_answer_options *options);
void text_answer_close(text_answer *a);

/* Takes the next piece and passes on what is certain: neighbours of one kind come as one part. */
void text_answer_feed(text_answer *a, const char *text, size_t length, text_part_fn fn, void *user);
/* The end of the text: what was held back goes out, what is open is closed. Nothing may be fed after it. */
void text_answer_finish(text_answer *a, text_part_fn fn, void *user);

bool text_answer_thinking(const text_answer *a); /* text_reasoning_active: streamed chunks name both fields */
bool text_answer_inside(const text_answer *a);   /* text_reasoning_inside: what comes next would be reasoning */
int text_answer_calls(const text_answer *a);     /* calls that have begun, without dropped ones */
int text_answer_repairs(const text_answer *a);   /* see text/tool_calls.h */
int text_answer_faults(const text_answer *a);    /* places where a block was no list of calls */
bool text_answer_cut(const text_answer *a);      /* the text ended inside a block of calls */
bool text_answer_ok(const text_answer *a);       /* false: memory ran out, and text was lost */

#endif
