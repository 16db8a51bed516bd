/*
 * GET /: the page, web/page.html, which is built into the program. One file that asks nobody but this server: its policy
 * allows its own script and style by their hashes, requests to the server it came from, and nothing else.
 */
#ifndef HAYATE_SERVER_PAGE_H
#define HAYATE_SERVER_PAGE_H

#include "server/http.h"

typedef struct page_policy {
    char text[512]; /* of the header Content-Security-Policy */
} page_policy;

void page_policy_make(page_policy *policy);
/* An http_handler; `user` is the policy. */
void page_handle(void *user, http_exchange *x);

#endif
