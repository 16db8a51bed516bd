/*
 * The folder of the store's disk tier: one file a block, under FOLDER/<16 hex digits of the identity>/. Private to src/cache.
 *
 *     lock                     held by the process that uses the folder
 *     ab/<64 hex digits>.block the block of a key that begins with ab
 *     ab/<64 hex digits>.part  a file that is being written
 *
 * A file is a header and the row, integers little-endian:
 *
 *     0   "HYBLOCK\n"          32  identity
 *     8   u32 version, 1       64  key
 *     12  u32 bytes before     96  SHA-256 over everything else: bytes [0, 96) and the row
 *         the row, 128         128 the row
 *     16  u64 bytes of the row
 *     24  8 bytes of 0
 *
 * Whatever lies in the folder is taken for what it is: links are not followed, what is no regular file is left alone, and
 * opening never waits. There is no sync: after a loss of power a file may be torn, which its checksum tells.
 */
#ifndef HAYATE_CACHE_STORE_DISK_H
#define HAYATE_CACHE_STORE_DISK_H

#include <sys/types.h>

#include "cache/store.h"

enum { DISK_HEADER = 128 };

typedef struct store_disk {
    char *path; /* of the identity's folder, for messages */
    int folder, lock;
    size_t row_bytes;
    uint64_t file_bytes;
    uint8_t identity[STORE_KEY];
} store_disk;

/* A block that lies there and when it was last used. */
typedef struct store_file {
    int64_t seconds, nanoseconds;
    uint8_t key[STORE_KEY];
} store_file;

typedef struct store_listing {
    store_file *file; /* [count], the longest unused first; free() it */
    size_t count;
    uint64_t leftovers, damaged; /* removed: unfinished files; files of a wrong length */
} store_listing;

/* Makes what is missing and takes the lock. HY_USAGE as store_open. */
hy_status store_disk_open(const store_options *options, store_disk *disk, hy_error *err);
void store_disk_close(store_disk *disk); /* a zeroed one, too, but for its descriptors, which are then -1 */

hy_status store_disk_list(const store_disk *disk, store_listing *listing, hy_error *err);
uint64_t store_disk_free(const store_disk *disk); /* bytes that can be had on its file system */

typedef enum store_read_result {
    DISK_READ,
    DISK_DAMAGED, /* it will not be better the next time */
    DISK_BUSY,    /* the process or the system ran short of something */
} store_read_result;

/* `digest`: an EVP_MD_CTX, of the caller's thread. `why`: of a failure, static or from strerror. On DISK_READ the file is
 * marked as used. */
store_read_result store_disk_read(const store_disk *disk, void *digest, const uint8_t key[STORE_KEY], void *row,
                                  const char **why);
/* 0, or an errno; then nothing new is there. One thread at a time. */
int store_disk_write(const store_disk *disk, void *digest, const uint8_t key[STORE_KEY], const void *row);
/* 0, also where there is none; or an errno. */
int store_disk_remove(const store_disk *disk, const uint8_t key[STORE_KEY]);
void store_disk_touch(const store_disk *disk, const uint8_t key[STORE_KEY]);

#endif
