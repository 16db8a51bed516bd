/*
 * Ids to text while they are generated: only whole characters come out.
 *
 * One character may be spread over several tokens; the bytes of an unfinished one are held back until it is whole or
 * turns out to be broken (then U+FFFD, as text_decode has it). Whatever the chunks are, the pieces joined together
 * equal text_decode of all ids. The prompt's last tokens are not needed: a byte-level token stands for the same bytes
 * wherever it is, so nothing of the first generated token depends on what came before it.
 */
#ifndef HAYATE_TEXT_DETOKENIZER_H
#define HAYATE_TEXT_DETOKENIZER_H

#include "text/tokenizer.h"

/* Plain memory: start it, copy it or drop it at will. */
typedef struct text_detokenizer {
    const text_tokenizer *tok; /* borrowed */
    bool skip_special;
    unsigned char held_count;
    char held[4]; /* [held_count] the start of an unfinished character */
} text_detokenizer;

void text_detokenizer_start(text_detokenizer *d, const text_tokenizer *tok, bool skip_special);

/* Appends what the ids make visible to `out`, which may be nothing. */
void text_detokenizer_feed(text_detokenizer *d, const int32_t *ids, size_t count, buffer *out);

/* The end: what is still held back is appended as U+FFFD. */
void text_detokenizer_finish(text_detokenizer *d, buffer *out);

#endif
