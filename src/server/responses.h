/*
 * POST /v1/responses, GET /v1/responses/{id}, POST /v1/responses/{id}/cancel, as OpenAI's clients speak them:
 * server/responses_request.h says what is read, server/responses_response.h what is written. Private to the room.
 *
 * Responses are kept if the server says so (server_options.store_responses) and the request does not say `store: false`:
 * in memory, and no longer than the server runs. Only then can an answer go on from one by its id, or be made in the
 * background.
 */
#ifndef HAYATE_SERVER_RESPONSES_H
#define HAYATE_SERVER_RESPONSES_H

#include "server/generation.h"

/* Adds the routes, and room->responses if they are to be kept. `room` is borrowed for the server's life. */
void responses_routes(generation_room *room);
void responses_close(generation_room *room);

#endif
