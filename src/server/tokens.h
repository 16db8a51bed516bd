/* POST /tokenize, /detokenize; GET /tokenizer_info. Private to the room. */
#ifndef HAYATE_SERVER_TOKENS_H
#define HAYATE_SERVER_TOKENS_H

#include "server/generation.h"

/* For /openapi.json. */
extern const request_field tokenize_fields[], detokenize_fields[];
extern const size_t tokenize_field_count, detokenize_field_count;

void tokens_routes(generation_room *room);

#endif
