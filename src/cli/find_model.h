/*
 * MODEL of the commands: a folder, a file in it, files of weights separated by commas (checkpoint/source.h), or a name of the
 * hub, OWNER/NAME or OWNER/NAME@REVISION.
 *
 * What is there as a path is that path. A name of the hub is looked for in the hub's cache and downloaded into it if it is not
 * there whole. The usual variables of the hub are read here: HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH,
 * HF_HUB_OFFLINE.
 */
#ifndef HAYATE_CLI_FIND_MODEL_H
#define HAYATE_CLI_FIND_MODEL_H

#include "hayate.h"

enum { FIND_PATH_SIZE = 32768 }; /* of lists too */

typedef struct find_options {
    const char *revision;     /* NULL: the name's, or main */
    const char *token;        /* NULL: HF_TOKEN, or the one that the hub's login has saved */
    const char *download_dir; /* NULL: the hub's cache */
    bool no_token, text_only; /* text_only: configuration and tokenizer, no weights */
    bool dummy;               /* no weights either, and the name of a released geometry stands for itself */
} find_options;

/* Whether it is taken for a path, because something of that name is there. */
bool find_is_path(const char *name);

/* Whether it is the name of a released geometry ("m3.1-flash"), and nothing of that name is there. */
bool find_is_geometry(const char *name);

/* The folder, or the files as they were named, into out[FIND_PATH_SIZE]; `options` may be NULL. HY_BAD_MODEL: there is nothing
 * of that name. Shows progress; Ctrl-C ends a download, of which the next one takes up the rest. */
hy_status find_model(const char *name, const find_options *options, char *out, hy_error *err);

#endif
