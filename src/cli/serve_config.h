/* --config: a YAML file whose keys are names of flags. */
#ifndef HAYATE_CLI_SERVE_CONFIG_H
#define HAYATE_CLI_SERVE_CONFIG_H

#include <jansson.h>

#include "hayate.h"

/*
 * Reads a file into an object in the file's order: key -> {"line": N, "value": the value, "text": its text if it is one
 * word}. Words mean what they mean in YAML 1.1 (yes and off are true and false, ~ is null); quoted ones are texts. The
 * caller owns *out. HY_USAGE with file and line: not YAML, no mapping, a key twice, a reference to itself, nested more than
 * 16 deep, larger than 256 KiB.
 */
hy_status config_file_read(const char *path, json_t **out, hy_error *err);
/* The same from memory; `path` is for messages. */
hy_status config_text_read(const char *path, const unsigned char *text, size_t size, json_t **out, hy_error *err);

#endif
