/*
 * Writing training sets: rows of tokens in a few lengths, and what they are made of.
 *
 *     rows-L.ids       uint16 little endian [rows, L], padded with the tokenizer's pad token
 *     rows-L.weights   uint8 [rows, L]: 1 what the model writes, its end marker included; 0 what it is given; 255
 * padding set.json         counts by length and by set, seed, split, tokenizer
 *
 * or one file of JSON lines with the conversations as people read them, and their text in the chat format. Row i of
 * length L depends on the seed, the split, the mix, L and i: neither on the other lengths nor on the number of threads.
 *
 * A row is one conversation of one set, drawn by the mix: shares are of rows, and so about of tokens.
 */
#ifndef HAYATE_TASKS_WRITE_SET_H
#define HAYATE_TASKS_WRITE_SET_H

#include "hayate.h"
#include "tasks/rows.h"
#include "tasks/tasks.h"

enum { WRITE_SET_LENGTHS = 8, WRITE_SET_SHORTEST = 320, WRITE_SET_LONGEST = 1 << 20 };

typedef struct write_set_length {
    int length;
    double share; /* of the tokens, in proportion */
} write_set_length;

typedef struct write_set_options {
    const char *path; /* a folder, made if missing; a name that ends in .jsonl: conversations */
    uint64_t tokens;  /* about, padding included */
    write_set_length lengths[WRITE_SET_LENGTHS];
    int length_count;
    double mix[TASK_SETS]; /* in proportion; all zero: the default, by length */
    task_split split;
    uint64_t seed;
    int threads;                  /* 0: one a core */
    const char *tokenizer_sha256; /* goes into set.json; may be NULL */
    hy_progress_fn on_progress;   /* false ends the writing and takes the files away; may be NULL */
    void *user;
} write_set_options;

/* Of one set in rows of one length. */
typedef struct write_set_count {
    uint64_t rows, used, written; /* used: tokens but for padding */
} write_set_count;

typedef struct write_set_report {
    uint64_t rows[WRITE_SET_LENGTHS];
    write_set_count by_set[WRITE_SET_LENGTHS][TASK_SETS];
    double mix[WRITE_SET_LENGTHS][TASK_SETS]; /* as used; sums to 1 */
} write_set_report;

/* HY_USAGE: lengths, a mix of sets that have no generator, or a folder that has a set already. HY_FAILED: files; ended
 * by on_progress. HY_UNSUPPORTED: the tokenizer. */
hy_status write_set(const text_tokenizer *tokenizer, const write_set_options *options, write_set_report *report,
                    hy_error *err);

#endif
