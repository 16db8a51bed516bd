/*
 * Splits generated text into reasoning and content while it arrives.
 *
 * The markers are <mm:think> and </mm:think>, matched as text: a model may write one in several tokens. The end of a
 * piece that could be the start of a marker is held back, so the result does not depend on where the pieces end.
 *
 *     started inside    reasoning up to the first </mm:think>, then content. An <mm:think> at the very start repeats
 *                       the prompt's and is dropped; further ones are part of the reasoning.
 *     started outside   a </mm:think> at the very start is dropped and all that follows is content. Otherwise the first
 *                       <mm:think> opens reasoning up to the next </mm:think>; content is what stands before and after.
 *
 * After that everything is content, as it is; markers in it are text. Nothing is trimmed.
 *
 * Where generation starts is told by the prompt's last token alone. Searching the prompt for markers would be wrong:
 * M3's system text explains them and so contains them (https://github.com/vllm-project/vllm/issues/46042).
 */
#ifndef HAYATE_TEXT_REASONING_H
#define HAYATE_TEXT_REASONING_H

#include "text/tokenizer.h"

#define TEXT_THINK_OPEN "<mm:think>"
#define TEXT_THINK_CLOSE "</mm:think>"

typedef enum text_reasoning_start {
    TEXT_START_OPEN,   /* the prompt ends with neither marker: the model decides (adaptive) */
    TEXT_START_INSIDE, /* ends with <mm:think> (enabled) */
    TEXT_START_CLOSED, /* ends with </mm:think> (disabled): outside, and no reasoning is expected */
} text_reasoning_start;

/* From the last token of the prompt; -1 (no prompt) and tokenizers without the markers give TEXT_START_OPEN. */
text_reasoning_start text_reasoning_start_of(const text_tokenizer *tok, int32_t last_id);

typedef enum text_kind { TEXT_REASONING, TEXT_CONTENT } text_kind;

/* Receives a piece, never empty, borrowed for the call. */
typedef void (*text_piece_fn)(void *user, text_kind kind, const char *text, size_t length);

/* Plain memory: start it, copy it or drop it at will. */
typedef struct text_reasoning {
    unsigned char state, held_count;
    bool phase;    /* reasoning may still come: see text_reasoning_active */
    char held[12]; /* [held_count] the start of what may become a marker */
} text_reasoning;

void text_reasoning_begin(text_reasoning *r, text_reasoning_start start);

/* Takes the next piece of generated text and passes on what is certain. */
void text_reasoning_feed(text_reasoning *r, const char *text, size_t length, text_piece_fn fn, void *user);

/* The end of the text: what was held back is passed on as text of the phase that it stood in. */
void text_reasoning_finish(text_reasoning *r, text_piece_fn fn, void *user);

/* What comes is content, as it is: a block of calls has begun, and markers in it are text. */
void text_reasoning_settle(text_reasoning *r);

/* True until the closing marker or the first visible content; from the start false after TEXT_START_CLOSED. While it
 * is true a streamed chunk names both of its fields, later only the content. */
bool text_reasoning_active(const text_reasoning *r);

/* True while text that arrives next would be reasoning. */
bool text_reasoning_inside(const text_reasoning *r);

#endif
