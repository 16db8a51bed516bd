/*
 * The grammar of tool calls as a machine over characters (text/tool_calls.h says what it accepts): text goes in, in
 * pieces cut anywhere, and comes out as events whose order and joined text do not depend on the cuts. The machine knows
 * tags and nesting; what an element is worth, and whether it is a string in which no tag but its own end counts, its
 * user says.
 *
 * Held back is what may be a namespace mark or the tag behind one (at most CALL_TAG_LIMIT bytes), the value of a
 * parameter whose opening tag is missing, white space behind a block, and stray text in a call (at most
 * CALL_STRAY_LIMIT bytes). Every byte is looked at once, and plain text is passed on in runs that lie in the caller's
 * memory.
 */
#ifndef HAYATE_TEXT_CALL_MACHINE_H
#define HAYATE_TEXT_CALL_MACHINE_H

#include "base/buffer.h"

enum {
    CALL_NESTING_LIMIT = 200, /* the call itself counts */
    CALL_TAG_LIMIT = 1024,    /* a longer tag is none */
    CALL_STRAY_LIMIT = 1024,  /* that much text between parameters is overlooked; more is a fault */
};

typedef enum call_event {
    CALL_CONTENT,   /* text outside of calls, of damaged blocks too; without namespace marks */
    CALL_BLOCK,     /* a block begins */
    CALL_BEGIN,     /* a call begins; the text is its name */
    CALL_OPEN,      /* an element begins; the text is its name */
    CALL_TEXT,      /* text of the innermost element */
    CALL_CLOSE,     /* the innermost element ends */
    CALL_END,       /* the call ends, after all its elements */
    CALL_BLOCK_END, /* the block ends in order */
    CALL_REPAIR,    /* something is missing, but it is plain what is meant */
    CALL_FAULT, /* no list of calls; the text is a message. Open elements and the call end here, the block goes on */
    CALL_CUT,   /* the text ends inside a block; the text is a message. All that is open ends here */
} call_event;

typedef enum call_answer {
    CALL_GO_ON,
    CALL_LITERAL, /* to CALL_OPEN and CALL_TEXT: until its end the element is text, and tags are part of it */
    CALL_STOP,    /* no event follows */
} call_answer;

/* The text is borrowed for the call; it is empty for events that have none. */
typedef call_answer (*call_event_fn)(void *user, call_event event, const char *text, size_t length);

typedef struct call_machine {
    call_event_fn fn;
    void *user;
    size_t taken; /* bytes of the text that have been judged */
    unsigned char state, mark;
    bool literal, behind_block, behind_child, stopped;
    size_t beside; /* bytes of text behind a child */
    bool tagging;  /* a namespace mark has been seen, and what stands behind it gathers in `tag` */
    unsigned char head, wanted;
    char quote;
    size_t name_at, name_end; /* of the name in `tag` */
    buffer tag;
    buffer held;  /* text that waits for what follows it */
    buffer names; /* of the open elements, one behind the other */
    size_t starts[CALL_NESTING_LIMIT];
    int depth; /* open elements */
} call_machine;

void call_machine_begin(call_machine *m, call_event_fn fn, void *user);
void call_machine_free(call_machine *m);

void call_machine_feed(call_machine *m, const char *text, size_t length);
void call_machine_finish(call_machine *m); /* the end of the text */

/* At CALL_BLOCK: the bytes of text that stand before the block. */
size_t call_machine_before_block(const call_machine *m);

/* Between CALL_BLOCK and the end of the block. */
bool call_machine_in_block(const call_machine *m);

/* False when memory ran out: text was lost. */
bool call_machine_ok(const call_machine *m);

#endif
