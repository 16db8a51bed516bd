/*
 * What every command shares: reading flags, printing errors, exit codes, progress on the terminal.
 *
 * A command is `int cmd_NAME(int argc, char **argv)` with argv[0] its own name; it returns the exit code. It describes
 * its flags as one table, from which both the parser and --help are made:
 *
 *     const char *seed = NULL, *places[2];
 *     int count = 2;
 *     const cli_option options[] = {
 *         {"seed", "N", "start of the random numbers (default 0)", &seed, CLI_STRING},
 *     };
 *     int code = cli_parse("synth", "synth CONFIG DST [flags]", "Writes ...", options, 1, argc, argv, places, &count);
 *     if (code >= 0) return code;
 *
 * In flag names `_` and `-` are the same; values come as `--name value` or `--name=value`; `--no-name` clears a flag;
 * `--` ends the flags. A name "output,o" is also accepted as `-o`.
 */
#ifndef HAYATE_CLI_CLI_H
#define HAYATE_CLI_CLI_H

#include <stdatomic.h>

#include "hayate.h"

/* What `target` points to. */
typedef enum cli_kind {
    CLI_FLAG,    /* bool */
    CLI_STRING,  /* const char *; borrowed from argv */
    CLI_INT,     /* int */
    CLI_SIZE,    /* uint64_t, bytes in the spellings of cli_parse_size */
    CLI_COUNT,   /* uint64_t, a whole number in the same spellings */
    CLI_FLOAT,   /* float */
    CLI_DOUBLE,  /* double */
    CLI_LONG,    /* int64_t */
    CLI_STRINGS, /* cli_strings: the flag may come several times */
    CLI_SWITCH,  /* int, a flag: 1, or 0 for --no-name; start with -1 to see whether it was given */
} cli_kind;

enum { CLI_MAX_STRINGS = 64, CLI_TEXT = 512 };

typedef struct cli_strings {
    const char *items[CLI_MAX_STRINGS]; /* borrowed from argv */
    int count;
} cli_strings;

typedef struct cli_option {
    const char *name;       /* without dashes; "name" or "name,letter" */
    const char *value_name; /* NULL: a flag without a value */
    const char *help;       /* one sentence, with the default; NULL hides the option from --help */
    void *target;           /* keeps its value when the flag is not given */
    cli_kind kind;
} cli_option;

/*
 * Reads argv. Returns -1 to go on, otherwise the exit code to return: 0 after printing help, 2 after a usage error
 * (printed, with the nearest name for an unknown flag). `usage` is what follows "usage: hayate ". *positional_count
 * holds the room of `positional` on entry and the number found on return.
 */
int cli_parse(const char *command, const char *usage, const char *about, const cli_option *options, int count, int argc,
              char **argv, const char **positional, int *positional_count);

/* "hayate: message" on stderr. */
void cli_error(const hy_error *err);
/* "hayate COMMAND: ..." and a line that points to --help on stderr; returns 2. */
int cli_usage_error(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Edits (insert, delete, replace, swap neighbours) that make one name of the other; many for names over 63 characters. */
int cli_edit_distance(const char *a, const char *b);
/* Text for people in lines of 100 columns, of which the first begins at `column` and others at `indent`. Line ends in the
 * text stay, and so do spaces at the beginning of its lines. */
void cli_print_wrapped(const char *text, int indent, int column);
/* Exit code of a status: 0 done, 1 failed, 2 usage or bad input, 3 bad or unsupported model, 4 does not fit. */
int cli_exit(hy_status status);

/*
 * A count or size as people write it: digits, an optional fraction and a suffix. k m g t are powers of 1000, K M G T
 * powers of 1024 (as `vllm serve` reads them); kB KB MB GB TB are powers of 1000, KiB MiB GiB TiB powers of 1024.
 * cli_parse_size is for bytes: a fraction of what the suffix says is rounded down to a whole byte. cli_parse_count is for
 * what is counted: what it comes to must be whole. False: none of these, a fraction of one, or too large.
 */
bool cli_parse_size(const char *text, uint64_t *out);
bool cli_parse_count(const char *text, uint64_t *out);
/* Whether the text is such a number, and not a whole one: to say so of what was not taken. */
bool cli_is_fraction(const char *text);

/* Bytes for people, in powers of 1000: "5.21 GB". out has room for 32 characters; returned. */
const char *cli_format_bytes(uint64_t bytes, char out[32]);
/* Text of a file as a line: what a terminal would act upon is '?', what does not fit is cut. Returns `out`. */
const char *cli_format_text(const char *text, char out[CLI_TEXT]);
/* Digits in groups of three: "250,103,411,200". */
const char *cli_format_count(uint64_t value, char out[32]);

/*
 * A hy_progress_fn: on a terminal one line on stderr, redrawn, with rate and time left; otherwise a line every ten
 * seconds. Work that ends within a second shows nothing. False once cli_catch_interrupt has seen Ctrl-C.
 */
bool cli_progress(void *user, const char *what, uint64_t done, uint64_t total, const char *unit);
/* From here the first Ctrl-C makes cli_progress answer false, so that half-written files go away; the second one kills.
 */
void cli_catch_interrupt(void);
const atomic_bool *cli_interrupted(void); /* what it sets, for threads_watch */

/* The commands, one file each. */
int cmd_bench(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_quantize(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int cmd_synth(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_trace(int argc, char **argv);

#endif
