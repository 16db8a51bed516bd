/*
 * The numerics id of an open model: a SHA-256 over everything that the contents of a cache block depend on beside the
 * tokens: the weights, the formats of the cache and its layout, read-back, activations, the backend, its instruction set and
 * the revision of its sums. Blocks of another id never match (src/cache).
 *
 * Weights are covered by config.json, every file's tensor table, size and time of change, and their bytes: all of them up to
 * 512 MB in all, beyond that 64 KB out of every piece of 16 MB.
 */
#ifndef HAYATE_MODEL_IDENTITY_H
#define HAYATE_MODEL_IDENTITY_H

#include "model/model.h"

/* HY_FAILED: a file could not be read. */
hy_status model_identity(const hy_model *model, uint8_t id[32], hy_error *err);

#endif
