/* What the server tells about itself: models, health, version, load, and routes for operators. Private to the room. */
#ifndef HAYATE_SERVER_MODELS_H
#define HAYATE_SERVER_MODELS_H

#include "server/generation.h"

/* Adds the routes; `room` is borrowed for the server's life. */
void models_routes(generation_room *room);

#endif
