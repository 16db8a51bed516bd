/*
 * Where blocks go that leave the cache: a tier in memory and one on disk behind it, or either alone.
 *
 * A block is one contiguous row of the cache (backend/ops.h) under a key of 32 bytes, which covers all that its contents
 * depend on: the tokens up to its end, the salt, and the numerics id (model/identity.h). So a key has one right content
 * for good, whoever wrote it, and nothing is ever written over. Rows are kept least recently used.
 *
 * The disk tier is one file a block, FOLDER/<first 16 hex digits of the identity>/<2 digits>/<key>.block: a header
 * (magic, version, identity, key, row bytes, checksum) and the row. It is written under another name and renamed, so that a
 * kill leaves whole files or leftovers that the next start removes; a file with a wrong header, length or checksum is
 * removed with one log line when it is met, and its block counts as absent. The folder of an identity is locked: a second
 * process that would use it is refused. At start names are listed and nothing is read.
 *
 * Writing is behind: store_put copies into a slot of memory and returns; a thread writes. Reading is asynchronous, by
 * threads. Without a memory tier there are a few slots for blocks that wait to be written. When no slot is clean a put is
 * dropped and counted: it is a cache. So is a block that the disk does not take; the log says so once in a minute, and
 * nothing else comes of it. A block that is read from the disk goes into the memory tier as well. Functions may be called
 * from any thread; nothing is allocated after store_open but for the index of the disk tier and the queues of reads, which
 * grow.
 */
#ifndef HAYATE_CACHE_STORE_H
#define HAYATE_CACHE_STORE_H

#include "hayate.h"

enum { STORE_KEY = 32 };

/* Bytes of memory that a store takes: slots of the memory tier, or the few through which blocks are written, and the
 * buffers of the readers of a disk. */
uint64_t store_memory(size_t row_bytes, uint64_t memory_bytes, bool disk);

typedef struct store_options {
    size_t row_bytes;
    uint64_t memory_bytes;       /* of the memory tier; 0: none */
    const char *folder;          /* of the disk tier; NULL: none. It is made if it is missing */
    uint64_t disk_bytes;         /* most bytes of this identity's folder; 0: half of what is free, with these blocks */
    uint8_t identity[STORE_KEY]; /* of numerics and layout */
} store_options;

typedef enum store_place { STORE_NOWHERE, STORE_MEMORY, STORE_DISK } store_place;

typedef struct store_stats {
    uint64_t memory_blocks, memory_slots;                       /* there, room for */
    uint64_t disk_blocks, disk_bytes;                           /* there */
    uint64_t puts, dropped, written, read_memory, read_disk;    /* blocks since the start */
    uint64_t removed, damaged;                                  /* files: to make room; damaged, foreign or gone */
    uint64_t unwritten;                                         /* blocks that the disk did not take */
} store_stats;

typedef struct store store;

/* HY_USAGE: the folder cannot be made or written, or is in use by another process; sizes below one row. HY_NO_FIT: less memory
 * or disk is free. Says in one log line what was found. Files beyond a limit that has become smaller are removed later. */
hy_status store_open(const store_options *options, store **out, hy_error *err);
/* Writes what waits to be written, then lets go. Reads that have been asked for are finished first. NULL does nothing. No
 * other call may run or follow; not from a callback. */
void store_close(store *s);

/* Waits until everything that was put has been written, for so many seconds at most; what still waits then is not written any
 * more. Returns how many blocks that are. For a close that has to end: no other call may run meanwhile. */
uint32_t store_finish(store *s, double seconds);

store_place store_find(store *s, const uint8_t key[STORE_KEY]);

/* A slot of row_bytes for a block to be put, NULL: it is there already or is being put, or no slot is clean (counted as
 * dropped). Fill it and call store_put_end; with `keep` false it is given back. Until then the key is not found. */
void *store_put_begin(store *s, const uint8_t key[STORE_KEY]);
void store_put_end(store *s, void *slot, bool keep);

/* `row`: row_bytes, borrowed during the call; NULL: the block was gone or damaged. `from`: where it was. On a thread of the
 * store, with no lock held. */
typedef void (*store_read_fn)(void *user, const void *row, store_place from);

/* Asks for a block; `fn` is called once, later. False: there is none, and fn will not be called. */
bool store_read(store *s, const uint8_t key[STORE_KEY], store_read_fn fn, void *user);

void store_describe(store *s, store_stats *stats);

#endif
