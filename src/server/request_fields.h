/*
 * Reading the JSON bodies of requests: fields by table, the sampling fields that every dialect has, and what to answer
 * when something is wrong.
 *
 * Wrong types and missing fields are schema errors (type "Bad Request", param "body.FIELD"); values out of range and
 * combinations that make no sense are semantic errors (type "BadRequestError", param FIELD). Fields that the protocol
 * knows and this server cannot do are refused by name, so that nothing asked for is left undone in silence; fields that
 * nobody knows are ignored. A field that is null counts as absent. The tables also make /openapi.json.
 */
#ifndef HAYATE_SERVER_REQUEST_FIELDS_H
#define HAYATE_SERVER_REQUEST_FIELDS_H

#include <jansson.h>

#include "hayate.h"

/* What to answer when a request is refused, or fails. */
typedef struct request_fault {
    int status;       /* HTTP */
    const char *type; /* "Bad Request", "BadRequestError", "NotFoundError", ... */
    char param[96];   /* "" is null */
    bool suffix;      /* the message gets " (parameter=...)" */
    int retry_after;  /* seconds after which it may go better; 0: not said */
    bool no_retry;    /* 5xx that a client need not repeat */
    char message[640];
} request_fault;

/* Both return false, so that checks can `return` them. */
/* Semantic, 400; `param` may be NULL. What the protocol knows and this server does not do is refused so too: the client
 * can do something about a field, and a 5xx would have it send the same again. 501 is for whole routes. */
bool request_refuse(request_fault *fault, const char *param, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Schema, 400: `place` is "body" or "body.stream_options", `field` may be "" for the place itself; `kind` and `message`
 * are pydantic's ("int_type", "Input should be a valid integer"). */
bool request_schema(request_fault *fault, const char *place, const char *field, const char *kind, const char *message);
/* From an error of the engine or the library: HY_BAD_INPUT, HY_USAGE, HY_NO_FIT and HY_UNSUPPORTED are 400,
 * HY_BUSY 503, HY_LATE 504, others 500 without the names of files. `param` may be NULL. */
bool request_failed(request_fault *fault, const char *param, const hy_error *error);

/* ---- Fields by table -------------------------------------------------------------------------------------------- */

typedef enum request_kind {
    REQUEST_BOOL,    /* bool */
    REQUEST_INTEGER, /* int64_t; 3.0 is one */
    REQUEST_NUMBER,  /* double, finite */
    REQUEST_STRING,  /* const char *, borrowed from the body */
    REQUEST_OBJECT,  /* json_t *, borrowed */
    REQUEST_LIST,    /* json_t *, borrowed */
    REQUEST_ANY,     /* json_t *, borrowed: read by hand */
    REQUEST_IGNORED, /* known, without effect here: nothing is read */
    REQUEST_REFUSED, /* known and not done: refused unless absent, null, false or empty */
} request_kind;

typedef struct request_field {
    const char *name;
    request_kind kind;
    size_t offset;     /* in the struct that is filled; a field that is absent leaves it as it is */
    double low, high;  /* of numbers; both 0: any */
    const char *about; /* one line for /openapi.json; NULL: none */
} request_field;

/* Reads what `object` has of the table into `out`. */
bool request_read(const json_t *object, const char *place, const request_field *fields, size_t count, void *out,
                  request_fault *fault);
/* The value of a field, NULL when it is absent or null. */
json_t *request_value(const json_t *object, const char *name);

/* Fields of older protocols (guided_json, ...) are ignored like unknown ones, but whoever sends them expects something: the
 * log warns of each name once. */
void request_warn_of_removed(const json_t *body);

/* Parses a body to an object: too many values and broken JSON are faults. NULL fills `fault`; owned. */
json_t *request_parse(const char *text, size_t length, request_fault *fault);

/* ---- Sampling --------------------------------------------------------------------------------------------------- */

/* The sampling fields of a request, as the engine takes them. */
typedef struct request_sampling {
    hy_sampling s;      /* pointers into what follows, and into the body for nothing */
    int64_t max_tokens; /* 0: not given */
    char **stop;        /* owned, as the rest */
    int32_t *stop_ids, *allowed_ids, *logprob_ids;
    hy_token_bias *bias;
    hy_ids *bad_words;
    const int32_t **bad_word_ids;
    size_t *bad_word_lengths;
} request_sampling;

/*
 * Reads temperature, top_p, top_k, min_p, seed, the penalties, min_tokens, stop, stop_token_ids,
 * include_stop_str_in_output, ignore_eos, logit_bias, allowed_token_ids and bad_words of `body` over `defaults`.
 * Lengths and log-probabilities, whose names differ, are the dialect's. May be called twice on one struct (defaults,
 * then a request within a request). Worker threads: bad words are encoded.
 */
bool request_sampling_read(const json_t *body, const hy_model *model, const hy_sampling *defaults,
                           request_sampling *out, request_fault *fault);
/* min_tokens against max_tokens (0: none given). */
bool request_lengths_check(request_sampling *r, const char *name, bool given, int64_t max_tokens, request_fault *fault);
void request_sampling_free(request_sampling *r);
extern const request_field request_sampling_fields[]; /* for /openapi.json */
extern const size_t request_sampling_field_count;

/* ---- Structured output ------------------------------------------------------------------------------------------ */

/* What a grammar is compiled from. Owned. */
typedef struct request_grammar {
    bool any;
    hy_grammar_kind kind;
    char *source; /* NULL: none */
    size_t length;
    hy_grammar_options options;
    char *whitespace; /* of options */
    bool outputs; /* from structured_outputs, not response_format */
} request_grammar;

/* `response_format` of chats ({"type": "text" | "json_object" | "json_schema" | "structural_tag"}) and
 * `structured_outputs` ({"json" | "regex" | "choice" | "grammar" | "json_object" | "structural_tag": ...}), either may
 * be NULL. `param` names them in faults. */
bool request_response_format(const json_t *format, request_grammar *out, request_fault *fault);
bool request_structured_outputs(const json_t *outputs, request_grammar *out, request_fault *fault);
void request_grammar_free(request_grammar *g);

/* ---- Tools ------------------------------------------------------------------------------------------------------ */

typedef enum request_tool_mode {
    REQUEST_TOOLS_NONE, /* no tools, or "none": calls are text */
    REQUEST_TOOLS_AUTO,
    REQUEST_TOOLS_REQUIRED, /* a call must come: forced by a grammar, after reasoning */
    REQUEST_TOOLS_NAMED,    /* one of the named tool must come */
} request_tool_mode;

typedef struct request_tools {
    json_t *list; /* owned: as the chat protocol has it ({"type": "function", "function": {...}}), NULL: none */
    request_tool_mode mode;
    char name[128]; /* of NAMED */
    bool parallel;  /* false: at most one call */
} request_tools;

/* From `tools`, `tool_choice` and `parallel_tool_calls` of a chat. Other dialects fill the struct from their own forms.
 */
bool request_tools_read(const json_t *body, request_tools *out, request_fault *fault);

#endif
