#include "server/exposition.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Numbers ---------------------------------------------------------------------------------------------------- */

/* The fewest digits that read back as `value`: their count, and the exponent of the first. */
static int digits_of(double value, char digits[24], int *exponent)
{
    char text[40];
    for (int precision = 14; precision <= 16; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, value);
        if (strtod(text, NULL) == value) break;
    }
    int n = 0;
    const char *at = text;
    for (; *at != 'e'; at++)
        if (*at >= '0' && *at <= '9') digits[n++] = *at;
    *exponent = (int)strtol(at + 1, NULL, 10);
    while (n > 1 && digits[n - 1] == '0') n--;
    return n;
}

void exposition_number(double value, char out[32])
{
    if (isnan(value) || isinf(value)) {
        snprintf(out, 32, "%s", isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf");
        return;
    }
    if (value == floor(value) && fabs(value) < 1e6) {
        snprintf(out, 32, "%.1f", value);
        return;
    }
    char digits[24];
    int exponent, n = digits_of(fabs(value), digits, &exponent);
    const char *minus = value < 0 ? "-" : "";
    /* Positive numbers of seven digits and more have an exponent, negative ones from 1e16 on. */
    if (exponent < -4 || exponent >= 16 || (value > 0 && exponent >= 6))
        snprintf(out, 32, "%s%c%s%.*se%c%02d", minus, digits[0], n > 1 ? "." : "", n - 1, digits + 1,
                 exponent < 0 ? '-' : '+', abs(exponent));
    else if (exponent < 0)
        snprintf(out, 32, "%s0.%.*s%.*s", minus, -exponent - 1, "0000", n, digits);
    else if (n <= exponent + 1)
        snprintf(out, 32, "%s%.*s%.*s.0", minus, n, digits, exponent + 1 - n, "0000000000000000");
    else
        snprintf(out, 32, "%s%.*s.%.*s", minus, exponent + 1, digits, n - exponent - 1, digits + exponent + 1);
}

/* ---- Lines ------------------------------------------------------------------------------------------------------ */

/* `quotes`: of a label, where they end the value. */
static void escape(buffer *out, const char *text, bool quotes)
{
    for (; *text; text++) {
        if (*text == '\\')
            buffer_string(out, "\\\\");
        else if (*text == '\n')
            buffer_string(out, "\\n");
        else if (*text == '"' && quotes)
            buffer_string(out, "\\\"");
        else
            buffer_char(out, *text);
    }
}

static bool is_wanted(const exposition *e, const char *suffix)
{
    size_t length = strlen(e->name), more = strlen(suffix);
    for (size_t i = 0; i < e->wanted_count; i++)
        for (const char *at = e->wanted[i], *end; at; at = *end ? end + 1 : NULL) {
            end = at + strcspn(at, ",");
            if ((size_t)(end - at) == length + more && memcmp(at, e->name, length) == 0 &&
                memcmp(at + length, suffix, more) == 0)
                return true;
        }
    return e->wanted_count == 0;
}

static const char *kind_name(exposition_kind kind)
{
    static const char *const names[] = {"gauge", "counter", "histogram", "summary"};
    return names[kind];
}

static void write_head(const exposition *e, buffer *out, const char *suffix, exposition_kind kind)
{
    buffer_printf(out, "# HELP %s%s ", e->name, suffix);
    escape(out, e->help, e->open);
    buffer_printf(out, "\n# TYPE %s%s %s\n", e->name, suffix, kind_name(kind));
}

/* In the text format a counter's family has the name of its samples. */
static void head(exposition *e)
{
    if (!e->headed) write_head(e, e->out, e->kind == EXPOSITION_COUNTER && !e->open ? "_total" : "", e->kind);
    e->headed = true;
}

/* Puts the labels, the common ones and `le` in order. */
static int gather(const exposition *e, const exposition_label *labels, int count, const char *le, exposition_label *all)
{
    int n = 0;
    const exposition_label bucket = {"le", le};
    for (int i = 0; i < e->common_count + count + (le != NULL); i++) {
        const exposition_label *l = i < e->common_count           ? &e->common[i]
                                    : i < e->common_count + count ? &labels[i - e->common_count]
                                                                  : &bucket;
        int at = n++;
        assert(n <= EXPOSITION_LABELS);
        for (; at > 0 && strcmp(all[at - 1].name, l->name) > 0; at--) all[at] = all[at - 1];
        all[at] = *l;
    }
    return n;
}

static void line(exposition *e, buffer *out, const char *suffix, const exposition_label *labels, int count,
                 const char *le, double value)
{
    exposition_label all[EXPOSITION_LABELS];
    char number[32];
    int n = gather(e, labels, count, le, all);
    buffer_printf(out, "%s%s", e->name, suffix);
    for (int i = 0; i < n; i++) {
        buffer_printf(out, "%c%s=\"", i ? ',' : '{', all[i].name);
        escape(out, all[i].value, true);
        buffer_char(out, '"');
    }
    exposition_number(value, number);
    buffer_printf(out, "%s %s\n", n ? "}" : "", number);
}

static void sample(exposition *e, const char *suffix, const exposition_label *labels, int count, const char *le,
                   double value)
{
    if (!is_wanted(e, suffix)) return;
    head(e);
    line(e, e->out, suffix, labels, count, le, value);
}

static void born(exposition *e, const exposition_label *labels, int count)
{
    if (e->created <= 0 || !is_wanted(e, "_created")) return;
    if (e->open) {
        head(e);
    } else if (e->born.length == 0) {
        write_head(e, &e->born, "_created", EXPOSITION_GAUGE);
    }
    line(e, e->open ? e->out : &e->born, "_created", labels, count, NULL, e->created);
}

static void close_family(exposition *e)
{
    if (e->born.length > 0) buffer_append(e->out, e->born.data, e->born.length);
    if (!buffer_ok(&e->born)) e->out->failed = true;
    buffer_clear(&e->born);
}

/* ---- The parts -------------------------------------------------------------------------------------------------- */

void exposition_common(exposition *e, const char *name, const char *value)
{
    if (value) {
        assert(e->common_count < EXPOSITION_COMMON);
        e->common[e->common_count++] = (exposition_label){name, value};
    } else {
        e->common_count = 0;
    }
}

void exposition_family(exposition *e, exposition_kind kind, const char *name, const char *help)
{
    close_family(e);
    e->kind = kind, e->name = name, e->help = help, e->headed = false;
}

void exposition_labelled(exposition *e, double value, const exposition_label *labels, int count)
{
    bool counter = e->kind == EXPOSITION_COUNTER;
    sample(e, counter ? "_total" : "", labels, count, NULL, value);
    if (counter) born(e, labels, count);
}

void exposition_sample(exposition *e, double value, ...)
{
    exposition_label labels[EXPOSITION_LABELS];
    int count = 0;
    va_list args;
    va_start(args, value);
    for (const char *name; (name = va_arg(args, const char *)); count++) {
        assert(count < EXPOSITION_LABELS);
        labels[count] = (exposition_label){name, va_arg(args, const char *)};
    }
    va_end(args);
    exposition_labelled(e, value, labels, count);
}

void exposition_histogram(exposition *e, const hy_histogram *h, const exposition_label *labels, int count)
{
    uint64_t below = 0;
    for (size_t i = 0; i <= h->bound_count; i++) {
        char le[32];
        exposition_number(i < h->bound_count ? h->bounds[i] : INFINITY, le);
        below += h->counts[i];
        sample(e, "_bucket", labels, count, le, (double)below);
    }
    sample(e, "_count", labels, count, NULL, (double)below);
    sample(e, "_sum", labels, count, NULL, h->sum);
    born(e, labels, count);
}

void exposition_summary(exposition *e, double observations, double sum, const exposition_label *labels, int count)
{
    sample(e, "_count", labels, count, NULL, observations);
    sample(e, "_sum", labels, count, NULL, sum);
    born(e, labels, count);
}

void exposition_end(exposition *e)
{
    close_family(e);
    if (e->open) buffer_string(e->out, "# EOF\n");
    buffer_free(&e->born);
}

const char *exposition_type(bool open)
{
    return open ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                : "text/plain; version=0.0.4; charset=utf-8";
}
