/*
 * POST /v1/chat/completions: chat_read.c reads the request, chat.c writes the answer. Private to the room.
 */
#ifndef HAYATE_SERVER_CHAT_H
#define HAYATE_SERVER_CHAT_H

#include "server/openai.h"

/* A chat's own part of a call. */
typedef struct chat {
    openai_request asked; /* its strings and trees are gone once the request is submitted */
    bool include_reasoning, logprobs, prompt_text;
    int32_t top_logprobs;
    char role[32]; /* of the answer */
    char *echoed;  /* text that the answer begins with; owned, NULL: none */
    buffer out;    /* the whole answer */
    json_writer w; /* into it */
    /* Streams: the chunk that is being made, and what all of them begin with. */
    buffer event, head, content, reasoning;
    json_writer head_writer;
} chat;

extern const generation_dialect chat_dialect;
/* The handler; `user` is the generation_room. */
void chat_handle(void *user, http_exchange *x);

/* chat_read.c. generation_dialect.read: for the state of a chat. */
bool chat_read(generation *g, json_t *body, request_fault *fault);
/* Fields beside the common ones, for /openapi.json. */
extern const request_field chat_fields[];
extern const size_t chat_field_count;

/* The request's own template, which the server must have been told to trust; NULL: none. */
bool chat_own_template(generation *g, const char *text, request_fault *fault);

/* Messages of the chat protocol, as templates take them: parts of text become {"type": "text"}, other parts are
 * refused. A new reference; NULL fills `fault`. */
json_t *chat_messages(json_t *messages, request_fault *fault);

#endif
