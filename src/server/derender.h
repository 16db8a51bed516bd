/*
 * /v1/chat/completions/derender and /v1/completions/derender: what /inference/v1/generate answered to a rendered request, as the
 * answer that the request itself would have got. Nothing is computed; ids become text, reasoning and calls are split as the
 * request (chat_request, completion_request) asks.
 */
#ifndef HAYATE_SERVER_DERENDER_H
#define HAYATE_SERVER_DERENDER_H

#include "server/generation.h"

extern const request_field derender_fields[]; /* for /openapi.json: of both */
extern const size_t derender_field_count;

void derender_routes(generation_room *room);

#endif
