#include "cli/bench_against.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/utf8.h"

enum { FILE_LIMIT = 16 << 20 };

static double number_of(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key)); /* 0 where there is none */
}

static void take_row(bench_against *a, const json_t *row, const char *rate_key)
{
    bench_earlier *e = &a->rows[a->count++];
    const char *name = json_string_value(json_object_get(row, "name"));
    snprintf(e->name, sizeof e->name, "%s", name ? name : "");
    e->context = (int64_t)number_of(row, "context");
    e->batch = (int64_t)number_of(row, "batch");
    e->rate = number_of(row, rate_key);
    e->fraction = number_of(row, "bound_fraction");
}

hy_status bench_against_load(const char *path, const char *bench, const char *rate_key, bench_against *out,
                             hy_error *err)
{
    char *text = NULL;
    size_t size = 0;
    hy_status status = file_read(path, FILE_LIMIT, &text, &size, err);
    if (status != HY_OK) return status == HY_BAD_MODEL ? error_set(err, HY_BAD_INPUT, "%s is too large", path) : status;
    json_error_t where;
    json_t *root = json_loadb(text, size, 0, &where);
    free(text);
    const char *name = json_string_value(json_object_get(root, "bench"));
    const json_t *rows = json_object_get(root, "rows");
    if (!name || !json_is_array(rows) || strcmp(name, bench) != 0) {
        status = name && strcmp(name, bench) != 0
                     ? error_at(err, HY_BAD_INPUT, "--against", "%s comes from 'hayate bench %.20s', not from '%s'",
                                path, name, bench)
                     : error_at(err, HY_BAD_INPUT, "--against",
                                "%s is not what 'hayate bench %s --json' writes: give such a file", path, bench);
        json_decref(root);
        return status;
    }
    *out = (bench_against){.path = path, .root = root};
    for (size_t i = 0; i < json_array_size(rows) && out->count < AGAINST_ROWS; i++)
        take_row(out, json_array_get(rows, i), rate_key);
    return HY_OK;
}

void bench_against_close(bench_against *a)
{
    json_decref(a->root);
    a->root = NULL;
}

/* `was` is whatever the file has. */
static void note(bench_against *a, const char *key, const char *was, const char *now)
{
    char then[80];
    snprintf(then, sizeof then, "%s", was);
    utf8_one_line(then, '?');
    if (!strcmp(then, now) || a->difference_count == AGAINST_DIFFERENCES) return;
    snprintf(a->differences[a->difference_count++], sizeof a->differences[0], "%s %s then, %.60s now", key, then, now);
}

void bench_against_setting(bench_against *a, const char *group, const char *key, const char *now)
{
    const json_t *at = a->root;
    if (group) at = json_object_get(at, group);
    const json_t *value = json_object_get(at, key);
    char then[80] = "not said";
    if (json_is_string(value)) snprintf(then, sizeof then, "%s", json_string_value(value));
    if (json_is_integer(value)) snprintf(then, sizeof then, "%lld", (long long)json_integer_value(value));
    if (json_is_boolean(value)) snprintf(then, sizeof then, "%s", json_is_true(value) ? "true" : "false");
    note(a, key, then, now);
}

void bench_against_machine(bench_against *a, const bench_machine *now)
{
    char cores[16], memory[32];
    snprintf(cores, sizeof cores, "%d", now->cores);
    snprintf(memory, sizeof memory, "%llu", (unsigned long long)now->memory);
    bench_against_setting(a, "machine", "cpu", now->cpu);
    bench_against_setting(a, "machine", "cores", cores);
    bench_against_setting(a, "machine", "instructions", now->instructions);
    bench_against_setting(a, "machine", "memory_bytes", memory);
    bench_against_setting(a, "machine", "huge_pages", now->huge_pages);
    const json_t *card = json_object_get(json_object_get(a->root, "machine"), "gpu");
    if (card || now->has_gpu) {
        const char *then = json_string_value(json_object_get(card, "name"));
        note(a, "gpu", then ? then : "none", now->has_gpu ? now->gpu.name : "none");
    }
}

const bench_earlier *bench_against_find(const bench_against *a, const char *name, int64_t context, int64_t batch)
{
    for (int i = 0; i < a->count; i++)
        if (a->rows[i].context == context && a->rows[i].batch == batch && !strcmp(a->rows[i].name, name))
            return a->rows[i].rate > 0 ? &a->rows[i] : NULL;
    return NULL;
}

void bench_against_print(const bench_against *a)
{
    printf("against %s:", a->path);
    if (!a->difference_count) printf(" same machine and settings\n");
    for (int i = 0; i < a->difference_count; i++)
        printf("%s%s%s", i ? "; " : " not the same: ", a->differences[i], i + 1 == a->difference_count ? "\n" : "");
}

void bench_against_end(const bench_against *a, int compared)
{
    if (!compared)
        log_line(HY_LOG_WARNING, "--against %s: none of its rows is of the same kind and size as one of this run",
                 a->path);
}

void bench_against_write(const bench_against *a, int compared, json_writer *w)
{
    writer_object(w);
    writer_key(w, "file"), writer_text(w, a->path);
    writer_key(w, "rows_compared"), writer_integer(w, compared);
    writer_key(w, "same"), writer_bool(w, a->difference_count == 0);
    writer_key(w, "differences");
    writer_array(w);
    for (int i = 0; i < a->difference_count; i++) writer_text(w, a->differences[i]);
    writer_end(w);
    writer_end(w);
}
