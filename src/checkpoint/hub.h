/*
 * From what a user names to the folder that holds config.json. A hub cache keeps a model as
 *
 *     models--ORG--NAME/refs/main               the revision that "main" means, one line
 *     models--ORG--NAME/snapshots/REVISION/     the files, links into blobs/
 *
 * and any of the three levels may be given.
 */
#ifndef HAYATE_CHECKPOINT_HUB_H
#define HAYATE_CHECKPOINT_HUB_H

#include "hayate.h"

/* The folder into out[size]. HY_BAD_MODEL: there is none; the message says what was looked for. */
hy_status hub_resolve(const char *path, char *out, size_t size, hy_error *err);

#endif
