/*
 * Reading fields of a JSON config one by one, with the first problem kept: the caller reads all it wants and asks for
 * the status at the end. A field that is null counts as absent.
 */
#ifndef HAYATE_CHECKPOINT_CONFIG_READER_H
#define HAYATE_CHECKPOINT_CONFIG_READER_H

#include <jansson.h>
#include <limits.h>

#include "hayate.h"

typedef struct config_reader {
    const char *name; /* of the file, for messages */
    hy_error *err;
    hy_status status;
} config_reader;

enum { CONFIG_REQUIRED = INT_MIN }; /* as a fallback: the field must be there */

/* Parses the whole text; NULL with a status. Duplicate keys are refused. json_decref it. */
json_t *config_reader_parse(config_reader *r, const char *json, size_t length);

/* Keeps a problem as HY_BAD_MODEL with the file's name before it and `where` = key, if it is the first one. */
void config_bad(config_reader *r, const char *key, const char *format, ...) __attribute__((format(printf, 3, 4)));

json_t *config_get(const json_t *object, const char *key); /* NULL: absent, null, or object is none */
json_t *config_object(config_reader *r, const json_t *object, const char *key); /* NULL: absent or null */
int config_int(config_reader *r, const json_t *object, const char *key, int low, int high, int fallback);
/* `fallback` NAN: required. */
float config_number(config_reader *r, const json_t *object, const char *key, double low, double high, double fallback);
bool config_bool(config_reader *r, const json_t *object, const char *key, bool fallback);
const char *config_string(config_reader *r, const json_t *object, const char *key); /* NULL: absent */

/* The field, if it is there, must be `want`. */
void config_want_bool(config_reader *r, const json_t *object, const char *key, bool want);
void config_want_int(config_reader *r, const json_t *object, const char *key, int want);
void config_want_string(config_reader *r, const json_t *object, const char *key, const char *want);

/* A list of 0 and 1 (or booleans), one a layer. False: absent. */
bool config_flags(config_reader *r, const json_t *object, const char *key, int layers, uint8_t *out /* [layers] */);
/* A list of words, one a layer: `one` gives 1, `zero` (may be NULL) gives 0, others are refused. False: absent. */
bool config_words(config_reader *r, const json_t *object, const char *key, int layers, const char *one,
                  const char *zero, uint8_t *out /* [layers] */);

#endif
