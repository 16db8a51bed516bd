/* POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients speak them: server/messages_request.h says what is
 * read, server/messages_response.h what is written. Private to the room. */
#ifndef HAYATE_SERVER_MESSAGES_H
#define HAYATE_SERVER_MESSAGES_H

#include "server/generation.h"

/* Adds the routes. `room` is borrowed for the server's life. */
void messages_routes(generation_room *room);

#endif
