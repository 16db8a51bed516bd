/* Names of the hub and of its cache: what is valid, where things are, which files a model needs. */
#ifndef HAYATE_HUB_NAMES_H
#define HAYATE_HUB_NAMES_H

#include "hayate.h"

enum { HUB_PATH = 4096, HUB_NAME = 256, HUB_HASH = 65 };

typedef struct hub_name {
    char model[HUB_NAME];    /* owner/name */
    char revision[HUB_NAME]; /* branch, tag or commit */
} hub_name;

typedef enum hub_part { HUB_NOT_NEEDED, HUB_SMALL, HUB_INDEX, HUB_WEIGHTS } hub_part;

/* HY_USAGE: no name, or no revision; `revision` (may be NULL) goes over the one in the text. */
hy_status hub_name_read(const char *text, const char *revision, hub_name *out, hy_error *err);
bool hub_is_commit(const char *revision); /* 40 hexadecimal digits */
bool hub_is_hash(const char *text);       /* 40 or 64 of them */

/* What a file of a repository is to us. Files in folders other than dspark/ are not needed. */
hub_part hub_part_of(const char *path);
/* Whether a path stays within its folder: parts without "..", control characters and the like. */
bool hub_path_valid(const char *path);

/* "CACHE/models--OWNER--NAME/PART" into out[HUB_PATH]; part may be "". False: too long. */
bool hub_folder(const char *cache, const hub_name *name, const char *part, char out[HUB_PATH]);
/* Makes all folders above `path`, which is changed and restored. */
hy_status hub_make_folders(char *path, hy_error *err);

#endif
