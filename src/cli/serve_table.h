/*
 * The flags of `hayate serve`: every one that `vllm serve` knows, and a few of our own, as data.
 *
 * The parser, --help, docs/flags.md and the checks of defaults are made from this table; what a flag does is in
 * cli/serve_setup.c, which asks for values by name.
 */
#ifndef HAYATE_CLI_SERVE_TABLE_H
#define HAYATE_CLI_SERVE_TABLE_H

#include "hayate.h"

/* What a value is, and so how it is read. */
typedef enum arg_kind {
    ARG_BOOL,   /* --x, --no-x */
    ARG_INT,    /* a whole number */
    ARG_HUMAN,  /* a whole number as people write it: 25.6k, 1K = 1024, 1.5K */
    ARG_BYTES,  /* bytes as people write them: 4GiB, 1.1GiB */
    ARG_AUTO,   /* as ARG_HUMAN, or auto, which is -1 */
    ARG_FLOAT,  /* a finite number */
    ARG_TEXT,   /* one word */
    ARG_CHOICE, /* one of `choices` */
    ARG_TEXTS,  /* one or more words, up to the next flag; may come several times */
    ARG_JSON,   /* a JSON object, or its members: --x.a.b value, --x.list+ a,b */
    ARG_LIST,   /* a JSON array */
    ARG_EITHER, /* a JSON object, its members, or a text */
    ARG_MAYBE,  /* a word or nothing */
} arg_kind;

/* What becomes of it. */
typedef enum arg_fate {
    FATE_DONE,   /* does what it says */
    FATE_MAPPED, /* does something else that comes to the same: `note` says what */
    FATE_NONE,   /* has no effect here, which is said once: `note` says why */
    FATE_LATER,  /* is checked, and this version serves without it: `note` says what that means */
    FATE_ONLY,   /* only the default is possible, anything else is refused: `note` says why */
    FATE_RANKS,  /* a number of ranks: more than there are is refused after everything else was checked */
} arg_fate;

typedef enum arg_group {
    GROUP_OPTIONS,
    GROUP_FRONTEND,
    GROUP_HAYATE,
    GROUP_MODEL,
    GROUP_LOAD,
    GROUP_ATTENTION,
    GROUP_STRUCTURED,
    GROUP_CACHE,
    GROUP_OFFLOAD,
    GROUP_SCHEDULER,
    GROUP_PARALLEL,
    GROUP_MULTIMODAL,
    GROUP_LORA,
    GROUP_OBSERVABILITY,
    GROUP_COMPILATION,
    GROUP_KERNEL,
    GROUP_MAMBA,
    GROUP_VLLM,
    GROUP_COUNT,
} arg_group;

typedef struct arg_spec {
    const char *name;    /* without dashes */
    const char *letters; /* the short form without its dash; "": none */
    arg_kind kind;
    arg_group group;
    arg_fate fate;
    const char *value;   /* the default as text; "": none, off */
    const char *choices; /* of ARG_CHOICE, with | between */
    const char *help;    /* what it is, one line */
    const char *note;    /* see arg_fate; "" for FATE_DONE and FATE_RANKS */
} arg_spec;

typedef struct arg_group_spec {
    const char *title, *about;
} arg_group_spec;

enum { SERVE_FRONT_MAX = 128, SERVE_ENGINE_MAX = 256, SERVE_TABLE_MAX = SERVE_FRONT_MAX + SERVE_ENGINE_MAX };

/* All flags, in the order of the groups' parts; *count of them. */
const arg_spec *serve_table(size_t *count);
const arg_group_spec *serve_group(arg_group group);
/* By the long name, where _ is -. NULL: there is none. */
const arg_spec *serve_find(const char *name, size_t length);
/* By the short form. */
const arg_spec *serve_find_letters(const char *letters, size_t length);
/* The name that was probably meant; NULL: none is near. */
const char *serve_nearest(const char *name);

/* The two parts of the table: cli/serve_table_front.c and cli/serve_table_engine.c. */
extern const arg_spec serve_front[], serve_engine[];
extern const size_t serve_front_count, serve_engine_count;

#endif
