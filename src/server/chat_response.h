/* The JSON of chat completions: whole answers and stream chunks, keys in the protocol's order. Private to the room. */
#ifndef HAYATE_SERVER_CHAT_RESPONSE_H
#define HAYATE_SERVER_CHAT_RESPONSE_H

#include "base/buffer.h"
#include "hayate.h"
#include "text/tokenizer.h"

typedef struct chat_usage {
    size_t prompt_tokens, completion_tokens;
} chat_usage;

/* What every object of one answer repeats. */
typedef struct chat_head {
    char id[64];
    int64_t created; /* seconds since 1970 */
    const char *model, *fingerprint;
    const text_tokenizer *tok; /* for the texts of log-probabilities */
} chat_head;

/* Log-probabilities of `count` tokens, `stride` a token: itself, then the best ones. NULL data: none. */
typedef struct chat_logprobs {
    const hy_logprob *data;
    size_t count, stride;
} chat_logprobs;

typedef struct chat_piece {
    const char *text;
    size_t length;
} chat_piece; /* text NULL: null */

typedef struct chat_ending {
    hy_finish finish; /* HY_RUNNING: not the last chunk */
    const char *stop_string;
    int32_t stop_id;
} chat_ending;

const char *chat_finish_name(hy_finish finish); /* "stop", "length", "abort" */

void chat_write_whole(buffer *out, const chat_head *head, chat_piece content, chat_piece reasoning, chat_logprobs logprobs,
                      const chat_ending *end, chat_usage usage, const int32_t *ids, size_t id_count);
/* The first chunk of a stream. */
void chat_write_role(buffer *out, const chat_head *head, const chat_usage *usage);
/* A delta. `both`: name reasoning and content both. With end->finish set the chunk is the last of its choice;
 * `fingerprint` says that no usage chunk will carry it. */
void chat_write_delta(buffer *out, const chat_head *head, chat_piece content, chat_piece reasoning, bool both,
                      chat_logprobs logprobs, const chat_ending *end, bool fingerprint, const chat_usage *usage,
                      const int32_t *ids, size_t id_count);
void chat_write_usage(buffer *out, const chat_head *head, chat_usage usage);

#endif
