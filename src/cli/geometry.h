/*
 * The CONFIG argument of `synth` and `plan`: a known geometry by name, a config.json, or what leads to one as MODEL of other
 * commands does (cli/find_model.h): a folder, files of weights, a name of the hub, of which no weights are downloaded.
 */
#ifndef HAYATE_CLI_GEOMETRY_H
#define HAYATE_CLI_GEOMETRY_H

#include "checkpoint/layout.h"
#include "checkpoint/source.h"

typedef struct geometry {
    const char *known; /* the name, NULL when it came from a file */
    config config;
    layout_scheme scheme; /* of the known name, or as the file's quantization_config says */
    bool drafter;         /* the scheme comes with one: M3.1 */
    char folder[SOURCE_PATH]; /* that the config is in; "": a known name, or a file alone */
    bool hub;             /* it is a name of the hub */
} geometry;

/* HY_USAGE: neither a known name nor a file. What find_model says of names of the hub. */
hy_status geometry_load(const char *argument, geometry *out, hy_error *err);

#endif
