/* Further uses of chats and completions: several conversations in one call, prompts without an answer, and one route for all
 * (POST /v1/chat/completions/batch, .../render, /v1/completions/render, /invocations). Private to the room. */
#ifndef HAYATE_SERVER_CHAT_MORE_H
#define HAYATE_SERVER_CHAT_MORE_H

#include "server/generation.h"

void chat_more_routes(generation_room *room);

#endif
