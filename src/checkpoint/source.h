/*
 * Where the parts of a model are. A user names a folder (checkpoint/hub.h), or files of a model, separated by commas:
 *
 *     x/model-00001-of-00002.safetensors,y/model-00002-of-00002.safetensors      weights, in files that may be anywhere
 *     x/model.safetensors.index.json                                            those that the index names, beside it
 *     weights.safetensors,other/config.json,vocabulary/tokenizer.json           and what belongs to them
 *
 * config.json is the one that is listed, else that beside the first weights; the folder that it is in has everything else that
 * a model may have, a tokenizer that is not listed included. One numbered shard alone stands for the model of its folder. What
 * is there as a path is that path, whatever commas it has.
 */
#ifndef HAYATE_CHECKPOINT_SOURCE_H
#define HAYATE_CHECKPOINT_SOURCE_H

#include "hayate.h"

enum { SOURCE_PATH = 4096 };

typedef struct model_source {
    char folder[SOURCE_PATH];    /* of config.json and what is beside it */
    char tokenizer[SOURCE_PATH]; /* a tokenizer's file that is listed; "": that of the folder */
    char index[SOURCE_PATH];     /* an index that is listed; "": none */
    char **files;                /* [count] owned: weights that are listed; none, nor an index: those of the folder */
    size_t count;
} model_source;

/* Whether a name is one of files of weights, or a list. */
bool source_is_files(const char *name);
/* HY_BAD_MODEL: something that is not there, twice, or no part of a model, by its name. */
hy_status source_open(const char *name, model_source *out, hy_error *err);
void source_close(model_source *s);

#endif
