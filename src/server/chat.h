/* POST /v1/chat/completions: from a parsed request to its answer. Private to the room. */
#ifndef HAYATE_SERVER_CHAT_H
#define HAYATE_SERVER_CHAT_H

#include "server/http.h"
#include "server/server.h"

typedef struct chat chat;

/* What all chats of a server share; borrowed. */
typedef struct chat_room {
    http_server *http;
    hy_model *model;
    hy_engine *engine;
    const char *const *names; /* [name_count] served names, the first is echoed */
    size_t name_count;
    const server_options *options;
    chat *first;   /* the running ones */
    bool stopping; /* new requests are refused */
    char fingerprint[48];
} chat_room;

/* The handler; `user` is the chat_room. */
void chat_handle(void *user, http_exchange *x);
/* Cancels every running chat; each still answers its client. */
void chat_cancel_all(chat_room *room);

/* 32 hex digits from the system's entropy. */
void chat_random_id(char out[33]);

#endif
