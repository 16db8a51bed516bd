/* POST /inference/v1/generate: ids in, ids out, for rollouts and for front ends that keep the text to themselves. Private to the
 * room. */
#ifndef HAYATE_SERVER_GENERATE_H
#define HAYATE_SERVER_GENERATE_H

#include "server/generation.h"

/* The handler; `user` is the generation_room. */
void generate_handle(void *user, http_exchange *x);

extern const request_field generate_fields[]; /* for /openapi.json */
extern const size_t generate_field_count;

#endif
