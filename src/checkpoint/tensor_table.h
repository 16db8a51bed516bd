/* A hash table from names to tensors; it borrows both. */
#ifndef HAYATE_CHECKPOINT_TENSOR_TABLE_H
#define HAYATE_CHECKPOINT_TENSOR_TABLE_H

#include "checkpoint/tensor.h"

typedef struct tensor_table {
    const tensor **slots; /* [mask + 1], open addressing, at most half full */
    size_t mask;
} tensor_table;

/* Room for `count` tensors. False: no memory. */
bool tensor_table_open(tensor_table *t, size_t count);
void tensor_table_close(tensor_table *t);

/* Adds a tensor; returns the one of the same name that was there already (nothing is added then), or NULL. */
const tensor *tensor_table_add(tensor_table *t, const tensor *entry);
const tensor *tensor_table_find(const tensor_table *t, const char *name);

#endif
