#include "server/answer_blocks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"

typedef struct listener {
    block_fn fn;
    void *user;
} listener;

static void tell(const answer_blocks *b, listener l, block_change change, const char *text, size_t length)
{
    if (l.fn) l.fn(l.user, change, &b->list[b->count - 1], b->count - 1, text, length);
}

static void close_block(answer_blocks *b, bool complete, listener l)
{
    if (!b->open) return;
    b->open = false;
    b->list[b->count - 1].complete = complete;
    tell(b, l, BLOCK_ENDS, NULL, 0);
}

static bool begin_block(answer_blocks *b, block_kind kind, const char *name, size_t length, listener l)
{
    close_block(b, true, l);
    void *list = b->list;
    bool ok = memory_reserve(&list, &b->capacity, b->count + 1, sizeof *b->list);
    b->list = list;
    char *copy = ok && name ? memory_string(name, length) : NULL;
    if (!ok || (name && !copy)) {
        b->failed = true;
        return false;
    }
    answer_block *block = &b->list[b->count++];
    *block = (answer_block){.kind = kind, .name = copy};
    snprintf(block->id, sizeof block->id, "%016llx%016llx", (unsigned long long)random_seed(),
             (unsigned long long)random_seed());
    b->open = true;
    b->calls += kind == BLOCK_CALL;
    tell(b, l, BLOCK_BEGINS, NULL, 0);
    return true;
}

static void grow(answer_blocks *b, const char *text, size_t length, listener l)
{
    if (!length) return;
    buffer_append(&b->list[b->count - 1].text, text, length);
    tell(b, l, BLOCK_GROWS, text, length);
}

static bool is_open(const answer_blocks *b, block_kind kind)
{
    return b->open && b->list[b->count - 1].kind == kind;
}

static bool blank(const buffer *b)
{
    for (size_t i = 0; i < b->length; i++)
        if (!strchr(" \t\r\n", b->data[i])) return false;
    return true;
}

/* What waits becomes a block. */
static void release_held(answer_blocks *b, listener l)
{
    if (begin_block(b, BLOCK_TEXT, NULL, 0, l)) grow(b, b->held.data, b->held.length, l);
    buffer_clear(&b->held);
}

static void add_text(answer_blocks *b, const char *text, size_t length, listener l)
{
    if (is_open(b, BLOCK_TEXT)) {
        grow(b, text, length, l);
        return;
    }
    buffer_append(&b->held, text, length);
    if (!is_open(b, BLOCK_CALL) && !blank(&b->held)) release_held(b, l);
}

static void begin_call(answer_blocks *b, const char *name, size_t length, listener l)
{
    if (!blank(&b->held)) { /* it waited for a call that never ended */
        close_block(b, true, l);
        release_held(b, l);
    }
    buffer_clear(&b->held);
    begin_block(b, BLOCK_CALL, name, length, l);
}

void answer_blocks_add(answer_blocks *b, text_part_kind kind, const char *text, size_t length, block_fn fn, void *user)
{
    listener l = {fn, user};
    switch (kind) {
    case TEXT_PART_REASONING:
        if (is_open(b, BLOCK_REASONING) || begin_block(b, BLOCK_REASONING, NULL, 0, l)) grow(b, text, length, l);
        return;
    case TEXT_PART_CONTENT: add_text(b, text, length, l); return;
    case TEXT_PART_CALL: begin_call(b, text, length, l); return;
    case TEXT_PART_ARGUMENTS:
        if (is_open(b, BLOCK_CALL)) grow(b, text, length, l);
        return;
    case TEXT_PART_CALL_END:
        if (is_open(b, BLOCK_CALL)) close_block(b, true, l);
        if (!blank(&b->held)) release_held(b, l);
        return;
    }
}

void answer_blocks_finish(answer_blocks *b, bool complete, block_fn fn, void *user)
{
    listener l = {fn, user};
    if (is_open(b, BLOCK_CALL)) close_block(b, complete, l);
    bool text = is_open(b, BLOCK_TEXT), wanted = b->calls ? !blank(&b->held) : b->held.length > 0;
    if (!text && (wanted || !b->count)) release_held(b, l);
    close_block(b, complete, l);
}

void answer_blocks_free(answer_blocks *b)
{
    for (size_t i = 0; i < b->count; i++) {
        buffer_free(&b->list[i].text), buffer_free(&b->list[i].extra);
        free(b->list[i].name);
    }
    free(b->list);
    buffer_free(&b->held);
    *b = (answer_blocks){0};
}

const char *answer_block_arguments(const answer_block *call, size_t *length)
{
    bool any = call->text.length > 0;
    *length = any ? call->text.length : 2;
    return any ? call->text.data : "{}";
}
