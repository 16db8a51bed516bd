/*
 * The JSON of the Messages protocol: whole answers, the events of streams, errors. Keys that have nothing to say are left
 * out, as the protocol does. Private to the room.
 *
 *     message_start   (content_block_start content_block_delta* content_block_stop)*   message_delta   message_stop
 */
#ifndef HAYATE_SERVER_MESSAGES_RESPONSE_H
#define HAYATE_SERVER_MESSAGES_RESPONSE_H

#include "server/answer_blocks.h"

typedef struct messages_usage {
    size_t prompt, cached, output, thinking; /* tokens; cached are part of the prompt, thinking of the output */
    int64_t draft_rounds, drafts, drafts_accepted;
} messages_usage;

typedef struct messages_ending {
    hy_finish finish;
    const char *stop_string; /* the stop sequence that was met, else NULL */
    bool calls;              /* there are some */
} messages_ending;

/* `hide`: blocks of thinking are empty, but for the signature. */
void messages_write_whole(buffer *out, const char *id, const char *model, const answer_blocks *blocks, bool hide,
                          const messages_ending *ending, messages_usage usage);

/* Where events go. */
typedef struct messages_events {
    void (*emit)(void *user, const char *name, const buffer *data);
    void *user;
    bool hide; /* as above */
} messages_events;

void messages_emit_start(const messages_events *to, const char *id, const char *model, messages_usage usage);
/* A block_fn; `to` is a messages_events. */
void messages_emit_block(void *to, block_change change, const answer_block *block, size_t index, const char *text,
                         size_t length);
void messages_emit_end(const messages_events *to, const messages_ending *ending, messages_usage usage);

/* {"type":"error","error":{"type","message"}} with the type that the protocol has for a status. */
void messages_write_error(buffer *out, int status, const char *message);

void messages_write_count(buffer *out, size_t tokens);

#endif
