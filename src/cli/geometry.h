/* The CONFIG argument of `synth` and `plan`: a known geometry by name, a config.json, or a folder that holds one. */
#ifndef HAYATE_CLI_GEOMETRY_H
#define HAYATE_CLI_GEOMETRY_H

#include "checkpoint/layout.h"

typedef struct geometry {
    const char *known; /* the name, NULL when it came from a file */
    config config;
    layout_scheme scheme; /* of the known name, or as the file's quantization_config says */
    bool drafter;         /* the scheme comes with one: M3.1 */
} geometry;

/* HY_USAGE: neither a known name nor a file. */
hy_status geometry_load(const char *argument, geometry *out, hy_error *err);

/* The scheme of a config's quantization_config; bf16 when it has none. */
layout_scheme geometry_scheme(const config *c);

#endif
