/*
 * Reads of pieces of files into aligned buffers, several under way at once.
 *
 * Files are opened for direct reads (O_DIRECT), which leave the page cache alone and return errors where a map would end
 * the process; where a file system refuses that, they are read through the page cache. A `read_queue` belongs to one
 * thread. It goes through io_uring where the program was built with liburing and the kernel permits it; otherwise a read
 * is a pread in the thread that waits for it, and there are more threads.
 */
#ifndef HAYATE_BACKEND_FILE_READS_H
#define HAYATE_BACKEND_FILE_READS_H

#include "checkpoint/tensor.h"

typedef struct read_files read_files;

/* Opens files by their paths. HY_FAILED: one cannot be opened, or has another size than its map. */
hy_status read_files_open(const weight_file *files, size_t count, bool direct, read_files **out, hy_error *err);
void read_files_close(read_files *files);
bool read_files_direct(const read_files *files); /* false: through the page cache */

/* Bytes [offset, offset + bytes) of file number `file`. No bytes: nothing. */
typedef struct read_piece {
    size_t file;
    uint64_t offset;
    size_t bytes;
} read_piece;

enum { READ_ALIGN = 4096 }; /* what direct reads are aligned to: a multiple of the logical block of every common device */

/* Reads a piece and waits, into memory of its bytes and 2 * READ_ALIGN more, aligned to READ_ALIGN; the piece begins at
 * out + *lead. From any thread. Errors as the next. */
hy_status read_files_into(const read_files *files, const read_piece *piece, uint8_t *out, size_t *lead, hy_error *err);
/* Reads a piece and waits. HY_FAILED with the file's name and the reason; also where the file ends too early. */
hy_status read_files_piece(const read_files *files, const read_piece *piece, void *out, hy_error *err);

enum { READ_PIECES = 2 }; /* of one buffer */

typedef struct read_queue read_queue;

/* Whether io_uring can be used: built in and permitted. */
bool read_queue_uring_works(void);

/* `depth` buffers, each for pieces of up to room[] bytes. Without `uring`, or where the kernel gives no more rings, a read
 * is a pread. */
hy_status read_queue_open(const read_files *files, bool uring, int depth, const size_t room[READ_PIECES], read_queue **out,
                          hy_error *err);
bool read_queue_uring(const read_queue *queue); /* what it came to */
void read_queue_close(read_queue *queue); /* with nothing under way */
size_t read_queue_bytes(int depth, const size_t room[READ_PIECES]); /* that the buffers of a queue take */

/* Starts reading pieces into a buffer that is not under way. */
void read_queue_start(read_queue *queue, int buffer, const read_piece pieces[READ_PIECES]);
/* Waits until a buffer that was started is there and returns its number. HY_FAILED as read_files_piece. */
int read_queue_wait(read_queue *queue, hy_status *status, hy_error *err);
/* Where the bytes of a piece are; valid until the buffer is started again. */
const uint8_t *read_queue_data(const read_queue *queue, int buffer, int piece);

#endif
