/* Files: read-only maps and whole-file reads, with errors that name the file. */
#ifndef HAYATE_BASE_FILE_H
#define HAYATE_BASE_FILE_H

#include "hayate.h"

typedef struct file_map {
    const uint8_t *data; /* [size], NULL for an empty file */
    size_t size;
} file_map;

/* Maps a regular file. HY_FAILED with the system's reason if it cannot be opened. */
hy_status file_map_open(const char *path, file_map *map, hy_error *err);
void file_map_close(file_map *map);
/*
 * For programs, once, at their start: a file that is truncated while it is mapped ends the process with the line
 * "NAME: FILE was truncated while it was in use" on stderr and `exit_code`, where it would die of SIGBUS as soon as it
 * touches what is gone. Other bus errors go to who had the signal before. The library never calls this: a program that
 * embeds it has its own mind about signals.
 */
void file_map_guard(const char *name, int exit_code);
/* Lets go of the pages that hold a part of an open map: they leave the process's memory and are read again when they are
 * touched. Only for bytes of a map; elsewhere the contents would be lost. */
void file_map_drop(const void *part, size_t bytes);
/* Bytes of a map that will be read soon begin to be read from the disk, all at once instead of page by page. A wish only. */
void file_map_want(const void *part, size_t bytes);
/* The share of a map's pages that are in memory, 0 to 1, from a sample of them; 1 where the system does not tell. */
double file_map_resident(const file_map *map);
/* Whether a map will be read here and there, a few bytes at a time: then nothing is read ahead. */
void file_map_random(const file_map *map, bool random);

/* Reads a whole file of at most `limit` bytes; NUL added; free() it. HY_BAD_MODEL when it is larger. */
hy_status file_read(const char *path, size_t limit, char **data, size_t *size, hy_error *err);

bool file_exists(const char *path); /* a regular file, links followed */
/* Anything of this name, a link that leads nowhere too: what a folder has is read or refused, never passed over. */
bool file_present(const char *path);
bool file_is_folder(const char *path);

/* "folder/name" into out[size]; HY_USAGE when it is too long. */
hy_status file_join(const char *folder, const char *name, char *out, size_t size, hy_error *err);

#endif
