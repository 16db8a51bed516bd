/*
 * Models of a hub, by name: found in the hub's cache on this machine, or downloaded into it once.
 *
 * The cache has the layout that the hub's own tools keep, so that either finds what the other has downloaded:
 *
 *     CACHE/models--OWNER--NAME/blobs/HASH                 contents, by SHA-256 (large files) or git's SHA-1 (small ones)
 *                              /blobs/HASH.incomplete      what has arrived of one
 *                              /snapshots/COMMIT/FILE      links into blobs/
 *                              /refs/REVISION              the commit that a branch or tag meant
 *     CACHE/.locks/models--OWNER--NAME/HASH.lock           who downloads a blob holds its lock
 *
 * A snapshot with all its weights is used as it is, without asking the network. What arrives is checked against the hash that
 * the hub names before it gets its name. Broken connections are taken up where they broke, in this run and in the next.
 */
#ifndef HAYATE_HUB_FETCH_H
#define HAYATE_HUB_FETCH_H

#include <stdatomic.h>

#include "hayate.h"

typedef struct hub_options {
    const char *endpoint; /* NULL: https://huggingface.co */
    const char *cache;    /* folder of all models; it is made */
    const char *revision; /* branch, tag or commit, over one in the name; NULL: main */
    const char *token;    /* NULL: none. It goes to the endpoint's own host alone, whatever that redirects to */
    bool offline;         /* only the cache is looked into */
    bool text_only;       /* configuration and tokenizer, no weights */
    hy_progress_fn on_progress;
    void *user;
    const atomic_bool *stop; /* ends the work with HY_CANCELLED; may be NULL */
} hub_options;

/* Whether a text has the form OWNER/NAME or OWNER/NAME@REVISION. */
bool hub_is_name(const char *text);

/*
 * The folder of a model's snapshot into out[size]. HY_BAD_MODEL: the hub has no such model or revision, or it is offline and
 * not in the cache; HY_NO_FIT: the disk is too small; HY_CANCELLED: what has arrived stays for the next time; HY_FAILED: the
 * hub refuses, or cannot be reached, or what came is not what it announced.
 */
hy_status hub_fetch(const char *name, const hub_options *options, char *out, size_t size, hy_error *err);

#endif
