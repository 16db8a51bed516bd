/*
 * The command line of `hayate serve`: which flags were given, with what.
 *
 * Values come from the command line, then from the file of --config, then from the table's defaults. Flags that are asked
 * for by name must be in the table.
 */
#ifndef HAYATE_CLI_SERVE_FLAGS_H
#define HAYATE_CLI_SERVE_FLAGS_H

#include <jansson.h>

#include "cli/serve_table.h"

typedef struct serve_args {
    json_t *values;         /* owned: name -> value, null for "None"; in the order in which they were met */
    const char *model;      /* MODEL, --model or the file's; NULL: none. Borrowed from argv or values */
    bool model_flag;        /* it came by --model on the command line */
    int argc;               /* of the command line; borrowed */
    char **argv;            /* [argc] */
    const arg_spec **owner; /* owned, [argc]: the flag that a word belongs to, or NULL */
} serve_args;

/* -1 to go on; otherwise the exit code: 0 after --help or --version, 2 after an error, which is printed. What it filled
 * must be freed in every case. */
int serve_parse(int argc, char **argv, serve_args *out);
void serve_args_free(serve_args *args);

/* Given, and not as None. */
bool serve_given(const serve_args *args, const char *name);
/* The value or else the default. */
bool serve_on(const serve_args *args, const char *name);
int64_t serve_integer(const serve_args *args, const char *name);
double serve_number(const serve_args *args, const char *name);
const char *serve_text(const serve_args *args, const char *name);  /* NULL: not given, and no default */
const json_t *serve_json(const serve_args *args, const char *name); /* NULL: not given */
/* Texts of an array into list[size]; how many there are. Borrowed from args. */
size_t serve_texts(const serve_args *args, const char *name, const char **list, size_t size);

/* The command line without what belongs to `left_out` flags, quoted for a shell. free() it. */
char *serve_command(const serve_args *args, bool (*left_out)(const arg_spec *spec));
/* Not given, given as None, or with the value that it has anyway. */
bool serve_is_default(const serve_args *args, const arg_spec *spec);
/* What was given and differs from its default, names with _, keys left secret. Owned by the caller. */
json_t *serve_shown(const serve_args *args);
/* The same as Python prints it. free() it. */
char *serve_non_default(const serve_args *args);

/* --help, --help=all, --help=GROUP, --help=FLAG on standard output; an exit code. */
int serve_help(const char *what);

#endif
