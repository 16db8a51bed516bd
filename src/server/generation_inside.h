/* The inside of a call, shared by generation.c (its life: threads, submission, end) and generation_steps.c (what the
 * engine brings, on its way to the dialect). */
#ifndef HAYATE_SERVER_GENERATION_INSIDE_H
#define HAYATE_SERVER_GENERATION_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "server/generation.h"

/*
 * What the engine's planner has brought since the HTTP thread looked; under the call's lock. A choice has two, which
 * change places when the HTTP thread looks: their memory serves for its whole stream.
 */
typedef struct mailbox {
    bool any;
    buffer text;     /* characters */
    buffer ids;      /* int32_t */
    buffer logprobs; /* hy_logprob, `stride` a token */
    size_t stride;
    int steps; /* events with tokens */
    hy_result result;
    hy_finish finish;
    char *stop_string;
    int32_t stop_id;
    hy_error *error; /* with HY_FINISH_ERROR; owned */
} mailbox;

/* One answer. But for box[filling] it belongs to the HTTP thread once it is submitted. */
typedef struct choice {
    generation *g;
    int index;
    hy_request *request;
    text_answer *answer;      /* NULL: not parsed */
    text_reasoning reasoning; /* for counting its tokens */
    mailbox box[2];
    int filling; /* which one is the planner's, under the lock; the other one is empty or being read */

    /* Since the last step (streams) or from the start (whole answers). */
    buffer text;  /* of all parts */
    buffer parts; /* generation_part with offsets into the text in place of pointers */
    buffer plain; /* the text as it came */
    buffer ids, logprobs;
    size_t stride;
    bool thinking; /* when they began */

    size_t completion, thought; /* tokens */
    size_t longest;             /* of the prompt's first answer: the most tokens of those that are over */
    int over;                   /* the same: how many are over */
    bool said;                  /* a step was told */
    double last_tokens;         /* clock_seconds */
    hy_result result;           /* numbers only: its pointers are the engine's */
    hy_finish finish;
    char *stop_string;
    int32_t stop_id;
} choice;

typedef struct generation_inside {
    generation *next, *previous;
    char *body; /* of the request, for the worker; owned */
    size_t body_length;
    json_t *json;         /* the same as a tree, where the caller had it; owned */
    choice *choice;       /* [choices] */
    struct search **searches; /* [prompt_count] with beam search, else NULL */
    int submitted, ended; /* choices */
    bool named;           /* the client gave it its id, in a header */
    bool held; /* it waits for the end of a pause */
    bool ready;           /* the worker is done */
    bool failed;          /* `fault` says why, or a choice's error did */
    bool finished;        /* the dialect was told the end */
    int64_t seed;         /* drawn for the prompt that is being submitted */
    request_fault fault;
    atomic_bool cancelled;
    double arrived, first_token; /* clock_seconds */

    pthread_mutex_t lock; /* guards the mailboxes and `posted` */
    bool posted;
} generation_inside;

/* hy_request_options.on_event of a choice. */
bool generation_on_event(void *choice, const hy_event *event);
/* What it does with an event: into the choice's mailbox. `result` is the request's so far. From any thread. */
void generation_post(choice *c, const hy_result *result, const hy_event *event);
/* Empties the mailboxes and tells the dialect; frees the call when it is over. HTTP thread. */
void generation_pump(void *generation);
/* generation.c: the call has ended, its log line and its memory. */
void generation_over(generation *g);

/* A token that ends texts by the model's own will is no stop that anybody asked for. */
bool generation_is_eos(const generation_room *room, int32_t id);

#endif
