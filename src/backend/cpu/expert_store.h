/*
 * Routed experts of a model whose weights are larger than memory: a cache of packed experts, filled from the checkpoint's
 * files by threads of its own.
 *
 * A slot holds the three packed matrices of one expert; while an expert is in a slot, the `data` of its cpu_linear points
 * there. One thread drives a step and goes, layer by layer in ascending order, through
 *
 *     expert_store_want    the experts of a layer, ascending; what is missing begins to be read in that order
 *     expert_store_ahead   a guess at the next layer's, read when nothing that is wanted waits
 *     expert_store_take    waits for the next wanted expert and pins it with those after it that are there already
 *     expert_store_release lets go of them, until all have been taken
 *
 * so that experts are computed while the following ones are read, and a layer may want more of them than the cache holds.
 *
 * Reading: an expert is cut into chunks of about 1 MiB of rows, the queue of a reader keeps several under way, and the
 * reader packs what has arrived (cpu_linear_pack_rows). Chunks are handed out in the order of need, so that one expert is
 * complete before the bandwidth goes to the next. The block scales of an expert are checked while it is packed: with loaded
 * weights that is done when the model is opened, and streamed experts are not read then.
 *
 * Eviction: the expert whose uses, each of which counts half as much after 64 steps, weigh least; between equals the one
 * whose layer was passed last, which is the one that comes again last. Experts that are wanted, or guessed for a layer
 * that is still to come, stay.
 */
#ifndef HAYATE_BACKEND_CPU_EXPERT_STORE_H
#define HAYATE_BACKEND_CPU_EXPERT_STORE_H

#include "backend/cpu/linear.h"
#include "backend/ops.h"

typedef struct expert_store expert_store;

enum {
    EXPERT_PARTS = 3,            /* gate, up, down */
    EXPERT_STORE_OWN = 12 << 20, /* bytes that a store with default options takes beside its slots, at most */
};

/* The experts of one layer, borrowed. */
typedef struct expert_layer {
    const weight *w[EXPERT_PARTS];    /* [experts]; NULL: a layer without experts */
    cpu_linear *linear[EXPERT_PARTS]; /* [experts] shapes; `data` is the store's */
} expert_layer;

typedef enum expert_io { EXPERT_IO_AUTO, EXPERT_IO_URING, EXPERT_IO_PREAD } expert_io;

typedef struct expert_store_options {
    expert_io io;
    bool cached;  /* through the page cache instead of direct reads */
    int readers;  /* threads; 0: the store's choice */
    size_t chunk; /* bytes of a chunk; 0: the store's choice */
} expert_store_options;

/*
 * Opens the files and the reader threads, without slots. The layers are copied, what they point to is borrowed. HY_FAILED:
 * a file cannot be opened, EXPERT_IO_URING is not to be had. HY_UNSUPPORTED: weights that are in none of the files.
 */
hy_status expert_store_open(const expert_layer *layers, int count, int experts, const weight_file *files, size_t file_count,
                            const expert_store_options *options, expert_store **out, hy_error *err);
void expert_store_close(expert_store *store);

size_t expert_store_slot_bytes(const expert_store *store);
size_t expert_store_own_bytes(const expert_store *store); /* that it takes beside its slots */

/* Forgets all experts and makes as many slots as fit `bytes`, 0 as well. HY_NO_FIT: no memory. Not within a layer. */
hy_status expert_store_resize(expert_store *store, uint64_t bytes, hy_error *err);

/* Needs at least one slot. `wanted` [count] ascending, copied. */
void expert_store_want(expert_store *store, int layer, const int32_t *wanted, int count);
void expert_store_ahead(expert_store *store, int layer, const int32_t *guess, int count);
/*
 * Pins the wanted experts [from, *end), at least one. After HY_FAILED (a read failed) or HY_BAD_MODEL (a damaged scale)
 * nothing is pinned or wanted any more; experts that were taken and released before remain in the cache.
 */
hy_status expert_store_take(expert_store *store, int from, int *end, hy_error *err);
void expert_store_release(expert_store *store, int from, int end);

/* Counters since the store was opened. From any thread. */
void expert_store_stats(expert_store *store, hy_expert_stats *stats);

#endif
