/*
 * The body of POST /v1/chat/completions, read and checked.
 *
 * Wrong types and missing fields are schema errors (type "Bad Request", param "body.FIELD"); values out of range and
 * combinations that make no sense are semantic errors (type "BadRequestError", param FIELD). Fields that the protocol
 * knows and this server cannot do yet are refused by name, so that nothing asked for is left undone in silence; fields
 * that nobody knows are ignored.
 */
#ifndef HAYATE_SERVER_CHAT_REQUEST_H
#define HAYATE_SERVER_CHAT_REQUEST_H

#include <jansson.h>

#include "hayate.h"

/* What to answer when a request is refused. */
typedef struct request_fault {
    int status;       /* HTTP */
    const char *type; /* "Bad Request", "BadRequestError", "NotFoundError" */
    char param[96];   /* "" is null */
    bool suffix;      /* the message gets " (parameter=...)" */
    char message[640];
} request_fault;

typedef struct chat_request {
    json_t *body;                     /* owned */
    const json_t *messages, *tools;   /* borrowed from body; tools may be NULL */
    json_t *template_kwargs;          /* owned: the request's over the server's */
    const char *model;                /* NULL: the first served name */
    hy_sampling sampling;             /* arrays owned by this struct */
    int64_t max_tokens;               /* 0: not given */
    bool stream, include_usage, continuous_usage, include_reasoning, keep_special, logprobs, return_token_ids;
    int top_logprobs;
    const char **stop;
    int32_t *stop_ids, *allowed_ids;
    hy_token_bias *bias;
    json_t *bad_words; /* borrowed from body: strings, encoded by the caller */
} chat_request;

/*
 * Parses `body`. `defaults` holds the sampling of the checkpoint; `default_kwargs` (may be NULL) the server's template
 * variables; `vocab` bounds token ids. False fills `fault`; `out` must be freed in both cases.
 */
bool chat_request_parse(const char *body, size_t length, const hy_sampling *defaults, const json_t *default_kwargs,
                        int vocab, chat_request *out, request_fault *fault);
void chat_request_free(chat_request *r);

/* Fills a semantic fault with status 400. Returns false, so that checks can `return` it. */
bool request_refuse(request_fault *fault, const char *param, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
