/*
 * One GET over libcurl: redirects are followed here, so that a token never leaves the host that it is for; a stop flag ends
 * it; answers other than 200 and 206 have no body for the caller.
 */
#ifndef HAYATE_HUB_GET_H
#define HAYATE_HUB_GET_H

#include <stdatomic.h>

#include "hayate.h"

typedef struct get_reply {
    long status;             /* of the last hop */
    int64_t length;          /* Content-Length; -1: not said */
    int64_t range_from, range_total; /* of Content-Range; -1: not said */
    double retry_after;      /* seconds; 0: not said */
    char etag[80];           /* of the first hop that names a hash (X-Linked-ETag, ETag): without quotes; "" */
    char error_code[64];     /* X-Error-Code */
} get_reply;

typedef struct get_request {
    const char *url, *token; /* token may be NULL */
    int64_t from;            /* > 0: the part from there on */
    /* Before the first byte of a body; then its pieces. False ends the transfer, which is then HY_OK: the sink knows why. */
    bool (*begin)(void *user, const get_reply *reply);
    bool (*piece)(void *user, const void *data, size_t size);
    void *user;
    const atomic_bool *stop; /* may be NULL */
} get_request;

typedef struct get_handle get_handle;

get_handle *get_open(void); /* NULL: out of memory. For one thread */
void get_close(get_handle *handle);
/* HY_OK: an answer came, whatever its status. HY_FAILED: none came, or not all of it. HY_CANCELLED: the stop flag. */
hy_status get_run(get_handle *handle, const get_request *request, get_reply *reply, hy_error *err);
/* One part of a URL with what means something there escaped; free() it. */
char *get_escape(const char *text);

#endif
