/*
 * The head of a request and the framing of its body, by RFC 9112 read strictly: what two programs could understand in
 * two ways is refused. No sockets, no limits on time.
 */
#ifndef HAYATE_SERVER_HTTP_HEAD_H
#define HAYATE_SERVER_HTTP_HEAD_H

#include <stdint.h>

#include "base/buffer.h"

typedef struct http_field {
    const char *name, *value; /* value without space around it */
} http_field;

typedef struct http_head {
    char *text; /* owned; what the pointers point into */
    size_t length;
    const char *method, *target; /* target as it came: visible ASCII without "#" */
    const char *path;            /* [path_length] of the target, still encoded; "*" for OPTIONS * */
    size_t path_length;
    const char *query;  /* encoded, without '?'; NULL: none */
    int minor;          /* of HTTP/1.minor, 0 or 1 */
    http_field *fields; /* [field_count] owned */
    size_t field_count, field_capacity;
    bool keep_alive; /* the client would send another request */
    bool chunked;
    bool expects_continue, expects_other;
    uint64_t content_length; /* 0: none given */
} http_head;

/*
 * Takes in bytes of a head, at most to its end, and says how many. *status stays 0 while nothing is wrong; else it is
 * that of the refusal and *why its reason. The head is complete once `done`.
 */
typedef struct http_head_reader {
    buffer text;
    size_t lines, line_start;
    bool done;
} http_head_reader;
size_t http_head_feed(http_head_reader *r, const char *bytes, size_t count, size_t max_bytes, size_t max_fields,
                      int *status, const char **why);

/* Parses a complete head out of the reader, which is empty afterwards. Returns 0, or the status of the refusal. */
int http_head_parse(http_head *head, http_head_reader *reader, const char **why);
void http_head_free(http_head *head);
/* NULL if absent. */
const char *http_head_field(const http_head *head, const char *name);

/* A body in chunks: decodes into `body`; extensions and trailers are read over. */
typedef struct http_chunks {
    int state;
    uint64_t left; /* of the chunk */
    size_t line;   /* bytes of the line so far */
    size_t trailer;
    bool any, cr, extension;
} http_chunks;
typedef enum http_chunks_state {
    HTTP_CHUNKS_MORE,
    HTTP_CHUNKS_DONE,
    HTTP_CHUNKS_BAD,
    HTTP_CHUNKS_LARGE
} http_chunks_state;
/* Takes bytes in, at most to the body's end, and says how many. LARGE: the body is, or says it will be, over `limit`.
 */
http_chunks_state http_chunks_feed(http_chunks *c, const char *bytes, size_t count, uint64_t limit, buffer *body,
                                   size_t *used);

#endif
