/*
 * Values as Python prints them. Chat templates run in Python, so prompts carry its spelling of numbers and of JSON.
 */
#ifndef HAYATE_TEXT_PYTHON_TEXT_H
#define HAYATE_TEXT_PYTHON_TEXT_H

#include "base/buffer.h"

#include <jansson.h>

/* repr(float): the shortest digits that read back equal; an exponent below 1e-4 and from 1e16 on; always with ".0" or
 * an exponent. The value is finite. */
void python_float(double value, buffer *out);

/* json.dumps(value, ensure_ascii=False): ", " and ": " between things, order of keys kept, non-ASCII kept. */
void python_json(const json_t *value, buffer *out);

#endif
