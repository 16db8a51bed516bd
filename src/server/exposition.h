/*
 * Writing metrics in Prometheus' text format 0.0.4 or in OpenMetrics 1.0, straight into a buffer.
 *
 *     exposition e = {.out = &b, .created = started};
 *     exposition_common(&e, "model_name", "m3");
 *     exposition_family(&e, EXPOSITION_COUNTER, "vllm:prompt_tokens", "Tokens of prompts.");
 *     exposition_sample(&e, 12, NULL);                           vllm:prompt_tokens_total{model_name="m3"} 12.0
 *     exposition_end(&e);
 *
 * Names are those without a suffix: `_total`, `_bucket`, `_sum`, `_count` and `_created` come by themselves. Labels are
 * sorted and numbers are written as Python's client does, which the neighbours' scripts were written against. Strings
 * are borrowed until exposition_end.
 */
#ifndef HAYATE_SERVER_EXPOSITION_H
#define HAYATE_SERVER_EXPOSITION_H

#include "base/buffer.h"
#include "hayate.h"

typedef enum exposition_kind {
    EXPOSITION_GAUGE,
    EXPOSITION_COUNTER,
    EXPOSITION_HISTOGRAM,
    EXPOSITION_SUMMARY
} exposition_kind;

enum { EXPOSITION_LABELS = 40, EXPOSITION_COMMON = 4 };

typedef struct exposition_label {
    const char *name, *value;
} exposition_label;

typedef struct exposition {
    buffer *out;
    bool open;                 /* OpenMetrics */
    double created;            /* when counters began, seconds since 1970; 0: not said */
    const char *const *wanted; /* [wanted_count] names of samples, or several with commas; none: all */
    size_t wanted_count;
    exposition_label common[EXPOSITION_COMMON]; /* that every sample has */
    int common_count;

    /* Of the family that is being written. */
    exposition_kind kind;
    const char *name, *help;
    bool headed;
    buffer born; /* lines of `_created`, which are a family of their own in the text format */
} exposition;

/* From here on every sample has this label; value NULL: none has any of them. */
void exposition_common(exposition *e, const char *name, const char *value);
void exposition_family(exposition *e, exposition_kind kind, const char *name, const char *help);
/* A gauge or a counter, with labels as name, value, ..., NULL. */
void exposition_sample(exposition *e, double value, ...) __attribute__((sentinel));
void exposition_labelled(exposition *e, double value, const exposition_label *labels, int count);
void exposition_histogram(exposition *e, const hy_histogram *h, const exposition_label *labels, int count);
/* `count` observations that make `sum`. */
void exposition_summary(exposition *e, double count, double sum, const exposition_label *labels, int count_of_labels);
void exposition_end(exposition *e);

/* The media type of what is written. */
const char *exposition_type(bool open);
/* As Python's client writes numbers: "12.0", "0.025", "1.5e+06", "+Inf". */
void exposition_number(double value, char out[32]);

#endif
