/*
 * Sequences of a model that can be wound back: many questions after one long text, and the probability of given text.
 *
 * The engine serves requests and never looks back. An evaluation reads a long text once, then asks question after
 * question behind it, each as if it were the first: rows after the text are written anew every time. It drives the forward
 * pass itself, a step at a time, from one thread; no engine of the same model may run meanwhile.
 */
#ifndef HAYATE_CLI_EVAL_SESSION_H
#define HAYATE_CLI_EVAL_SESSION_H

#include "model/model.h"

typedef struct session session;

/* `sequences` empty sequences of at most `positions` tokens each. With `random` the sparse layers of every row take the
 * blocks of a generator (the newest among them) instead of those that the index branch selects. */
hy_status session_open(const hy_model *model, int sequences, int positions, bool random, session **out, hy_error *err);
void session_close(session *s);

/* Rows computed so far: what progress counts. */
uint64_t session_rows(const session *s);

/* Appends tokens. With `logprobs` [count]: the log-probability of each, given all before it; the first one of a call has
 * none and gets 0. */
hy_status session_feed(session *s, int sequence, const int32_t *ids, size_t count, float *logprobs, hy_error *err);
size_t session_length(const session *s, int sequence);
/* Forgets what lies behind the first `length` tokens. */
void session_rewind(session *s, int sequence, size_t length);

/* What stands behind a sequence: `prompt` is read, then at most `limit` tokens are made greedily, up to one of the
 * model's end tokens, which is not among `ids`. Afterwards the sequence is as long as before. */
typedef struct session_answer {
    int sequence;
    const int32_t *prompt;
    size_t prompt_count;
    int32_t *ids; /* [limit], the caller's */
    size_t count;
} session_answer;

/* One answer in each of up to `sequences` different sequences, side by side. */
hy_status session_ask(session *s, session_answer *answers, int count, size_t limit, hy_error *err);

#endif
