/* Contents of the hub's files: downloaded into the cache by several threads, taken up where they broke, checked. */
#ifndef HAYATE_HUB_BLOB_H
#define HAYATE_HUB_BLOB_H

#include "hub/fetch.h"
#include "hub/listing.h"

typedef struct blob_place {
    const hub_options *options;
    const char *endpoint;   /* without a slash at the end */
    const hub_name *name;
    const char *commit;
    const char *what;       /* of the progress */
} blob_place;

/* "CACHE/models--.../blobs/HASH" into out[HUB_PATH]. */
bool blob_path(const blob_place *place, const hub_file *file, char out[HUB_PATH]);
/* Whether it is there, whole. */
bool blob_there(const blob_place *place, const hub_file *file);
/* Bytes of a file that have yet to come. */
int64_t blob_missing(const blob_place *place, const hub_file *file);
/* For each of files[count] whether one before it has the same content, which is one blob; NULL: no memory. free() it. */
bool *blobs_again(const hub_file *files, size_t count);
/* Downloads what is missing of files[count]. The first error ends it; what has arrived stays. */
hy_status blobs_fetch(const blob_place *place, const hub_file *files, size_t count, hy_error *err);

/* An answer's status that is no success, as an error. HY_FAILED, or HY_BAD_MODEL for what is not there. */
hy_status blob_refused(const blob_place *place, long status, const char *code, hy_error *err);
/* Whether trying again can help. */
bool blob_again(long status);
/* Waits before try number `count` (from 1), at least `least` seconds; false: stopped. */
bool blob_pause(int count, double least, const atomic_bool *stop);

#endif
