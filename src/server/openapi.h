/* GET /openapi.json: what the routes take, made of the tables that read it; GET /docs: the same to look at. */
#ifndef HAYATE_SERVER_OPENAPI_H
#define HAYATE_SERVER_OPENAPI_H

#include "server/generation.h"

/* Adds both routes. */
void openapi_routes(generation_room *room);
/* Writes the description. */
void openapi_write(const generation_room *room, buffer *out);

#endif
