/* What a repository of the hub holds at a commit, and which of it a model needs. */
#ifndef HAYATE_HUB_LISTING_H
#define HAYATE_HUB_LISTING_H

#include "hub/names.h"

typedef struct hub_file {
    char path[HUB_NAME];
    char hash[HUB_HASH]; /* SHA-256 of the contents (64 digits), or SHA-1 of git's blob (40) */
    int64_t size;
    hub_part part;
} hub_file;

typedef struct hub_listing {
    char commit[41];
    hub_file *files; /* owned, [count]: those that are needed, configuration and tokenizer first */
    size_t count;
} hub_listing;

/* Reads the hub's answer about a model. HY_FAILED: it is not what hubs answer, or names a file that cannot be. */
hy_status listing_read(const char *json, size_t length, hub_listing *out, hy_error *err);
/*
 * Drops weights that no index names: `index` is the text of `folder`model.safetensors.index.json ("" or "dspark/"), NULL: there
 * is none; then model.safetensors alone stays if it is there. HY_BAD_MODEL: the index names a file that is not in the listing.
 */
hy_status listing_keep(hub_listing *listing, const char *folder, const char *index, hy_error *err);
void listing_free(hub_listing *listing);

#endif
