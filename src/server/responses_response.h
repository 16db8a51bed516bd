/*
 * The JSON of the Responses protocol: response objects and the events of streams. Private to the room.
 *
 *     created in_progress  (output_item.added ... output_item.done)*  completed | incomplete | failed
 *
 *     reasoning   reasoning_part.added reasoning_text.delta* reasoning_text.done reasoning_part.done
 *     text        content_part.added output_text.delta* output_text.done content_part.done
 *     a call      function_call_arguments.delta* function_call_arguments.done
 *
 * Every event has the next sequence_number. The extra of a text block is what its log-probabilities are: JSON objects with
 * commas between them.
 */
#ifndef HAYATE_SERVER_RESPONSES_RESPONSE_H
#define HAYATE_SERVER_RESPONSES_RESPONSE_H

#include <jansson.h>

#include "server/answer_blocks.h"
#include "text/tokenizer.h"

/* What every object of one response repeats; borrowed. */
typedef struct responses_head {
    const char *id, *model;
    int64_t created;
    double temperature, top_p;
    const json_t *echo; /* parameters, in the order in which they are written */
} responses_head;

typedef struct responses_state {
    const char *status; /* "queued", "in_progress", "completed", "incomplete", "failed", "cancelled" */
    const char *error;  /* of a failed one: its message */
    bool has_usage;
    size_t prompt, cached, output, reasoning; /* tokens */
    int64_t draft_rounds, drafts, drafts_accepted;
} responses_state;

void responses_write(buffer *out, const responses_head *head, const responses_state *state, const answer_blocks *blocks);

/* Where events go, and how many there were. */
typedef struct responses_events {
    void (*emit)(void *user, const char *name, const buffer *data);
    void *user;
    int64_t sequence;
    buffer logprobs; /* of tokens whose text has not come yet: the next delta of text takes them */
    answer_blocks *blocks;
} responses_events;

/* response.created and the like: `name` is the event's. */
void responses_emit_response(responses_events *to, const char *name, const responses_head *head,
                             const responses_state *state);
/* A block_fn; `to` is a responses_events. Takes log-probabilities to blocks without events too, if `emit` is NULL. */
void responses_emit_block(void *to, block_change change, const answer_block *block, size_t index, const char *text,
                          size_t length);

/* Adds the log-probability of a token, [stride] with the best ones behind its own, as the objects of `extra`. */
void responses_write_logprob(buffer *out, const text_tokenizer *tok, const hy_logprob *p, size_t stride);

/* The blocks as one turn of the assistant in a chat; owned by the caller. */
json_t *responses_turn(const answer_blocks *blocks);

#endif
