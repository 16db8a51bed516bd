/*
 * Text goes through the splitter of reasoning, what it takes for content through the machine of calls, and their
 * elements through the writer of arguments. Parts gather in `pending` until another kind comes or the piece ends, so
 * that one piece makes few of them.
 */
#include "text/answer.h"

#include <stdlib.h>

#include "text/call_arguments.h"

struct text_answer {
    text_answer_options options;
    text_reasoning reasoning;
    call_machine machine;
    call_arguments arguments; /* written to `pending` */
    buffer pending;
    text_part_kind kind; /* of what is pending */
    text_part_fn fn;     /* of the feed that is going on */
    void *user;
    int calls, repairs, faults;
    bool in_call, dropping, cut, lost;
};

/* ---- Passing on ---------------------------------------------------------------------------------------------------
 */

static void flush(text_answer *a)
{
    if (!buffer_ok(&a->pending)) a->lost = true;
    if (a->pending.length && !a->dropping)
        a->fn(a->user, a->kind, a->kind == TEXT_PART_ARGUMENTS ? a->calls - 1 : -1, a->pending.data, a->pending.length);
    buffer_clear(&a->pending);
}

static void put(text_answer *a, text_part_kind kind, const char *text, size_t length)
{
    if (a->kind != kind) flush(a);
    a->kind = kind;
    buffer_append(&a->pending, text, length);
}

/* ---- Calls --------------------------------------------------------------------------------------------------------
 */

static void begin_call(text_answer *a, const char *name, size_t length)
{
    flush(a);
    a->in_call = true;
    a->dropping = a->options.max_calls > 0 && a->calls >= a->options.max_calls;
    a->kind = TEXT_PART_ARGUMENTS;
    if (!a->dropping) a->fn(a->user, TEXT_PART_CALL, a->calls++, name, length);
    call_arguments_begin(&a->arguments, name, length);
}

/* After the arguments have got their end. */
static void end_call(text_answer *a)
{
    flush(a);
    if (!a->dropping) a->fn(a->user, TEXT_PART_CALL_END, a->calls - 1, "", 0);
    a->in_call = a->dropping = false;
}

static call_answer take_event(void *user, call_event event, const char *text, size_t length)
{
    text_answer *a = user;
    bool literal = false;
    switch (event) {
    case CALL_CONTENT: put(a, TEXT_PART_CONTENT, text, length); break;
    case CALL_BLOCK: text_reasoning_settle(&a->reasoning); break;
    case CALL_BEGIN: begin_call(a, text, length); break;
    case CALL_OPEN: literal = call_arguments_open(&a->arguments, text, length); break;
    case CALL_TEXT: literal = call_arguments_text(&a->arguments, text, length); break;
    case CALL_CLOSE: call_arguments_close(&a->arguments); break;
    case CALL_END:
        call_arguments_end(&a->arguments);
        end_call(a);
        break;
    case CALL_BLOCK_END: break;
    case CALL_REPAIR: a->repairs++; break;
    case CALL_FAULT:
    case CALL_CUT:
        if (event == CALL_CUT)
            a->cut = true;
        else
            a->faults++;
        if (!a->in_call) break;
        call_arguments_break(&a->arguments, event == CALL_CUT);
        end_call(a);
        break;
    }
    if (a->dropping) buffer_clear(&a->pending);
    return literal ? CALL_LITERAL : CALL_GO_ON;
}

/* ---- Text ---------------------------------------------------------------------------------------------------------
 */

static void take_content(text_answer *a, const char *text, size_t length)
{
    if (a->options.split_calls)
        call_machine_feed(&a->machine, text, length);
    else
        put(a, TEXT_PART_CONTENT, text, length);
}

static void take_piece(void *user, text_kind kind, const char *text, size_t length)
{
    if (kind == TEXT_REASONING)
        put(user, TEXT_PART_REASONING, text, length);
    else
        take_content(user, text, length);
}

void text_answer_feed(text_answer *a, const char *text, size_t length, text_part_fn fn, void *user)
{
    a->fn = fn, a->user = user;
    if (a->options.split_reasoning)
        text_reasoning_feed(&a->reasoning, text, length, take_piece, a);
    else
        take_content(a, text, length);
    flush(a);
}

void text_answer_finish(text_answer *a, text_part_fn fn, void *user)
{
    a->fn = fn, a->user = user;
    if (a->options.split_reasoning) text_reasoning_finish(&a->reasoning, take_piece, a);
    call_machine_finish(&a->machine);
    flush(a);
}

/* ---- The rest ------------------------------------------------------------------------------------------------------
 */

text_answer *text_answer_open(const text_answer_options *options)
{
    text_answer *a = calloc(1, sizeof *a);
    if (!a) return NULL;
    a->options = *options;
    a->arguments.tools = options->tools;
    a->arguments.out = &a->pending;
    text_reasoning_begin(&a->reasoning, options->start);
    call_machine_begin(&a->machine, take_event, a);
    return a;
}

void text_answer_close(text_answer *a)
{
    if (!a) return;
    call_arguments_free(&a->arguments);
    call_machine_free(&a->machine);
    buffer_free(&a->pending);
    free(a);
}

bool text_answer_thinking(const text_answer *a)
{
    return a->options.split_reasoning && text_reasoning_active(&a->reasoning);
}

bool text_answer_inside(const text_answer *a)
{
    return a->options.split_reasoning && text_reasoning_inside(&a->reasoning);
}

int text_answer_calls(const text_answer *a)
{
    return a->calls;
}

int text_answer_repairs(const text_answer *a)
{
    return a->repairs;
}

int text_answer_faults(const text_answer *a)
{
    return a->faults;
}

bool text_answer_cut(const text_answer *a)
{
    return a->cut;
}

bool text_answer_ok(const text_answer *a)
{
    return !a->lost && !a->arguments.failed && call_machine_ok(&a->machine);
}
