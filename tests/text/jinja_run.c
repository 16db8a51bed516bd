/*
 * Runs a template for compare_templates.py: `jinja_run TEMPLATE NOW` reads one context (a JSON object) a line and
 * writes one line for each: {"text": ...} or {"error": ..., "status": ...}. With `--time N` the last one is rendered N
 * times and the best time goes to stderr.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "text/jinja.h"

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void answer(const jinja *t, const json_t *context, int64_t now, int times)
{
    double best = 1e9;
    json_t *said = NULL;
    for (int i = 0; i < times; i++) {
        buffer out = {0};
        hy_error err = {0};
        jinja_limits limits = {.now = now};
        double start = seconds();
        hy_status s = jinja_render(t, context, &limits, &out, &err);
        double took = seconds() - start;
        if (took < best) best = took;
        json_decref(said);
        if (s)
            said = json_pack("{s:s, s:s}", "error", err.message, "status", hy_status_name(s));
        else
            said = json_pack("{s:s#}", "text", out.data ? out.data : "", (int)out.length);
        buffer_free(&out);
    }
    char *line = said ? json_dumps(said, JSON_COMPACT) : NULL;
    puts(line ? line : "{\"error\": \"the result is not JSON\"}");
    fflush(stdout);
    if (times > 1) fprintf(stderr, "best of %d: %.6f s\n", times, best);
    free(line);
    json_decref(said);
}

int main(int argc, char **argv)
{
    char *text = NULL, *line = NULL;
    size_t size = 0, capacity = 0;
    hy_error err = {0};
    jinja *t = NULL;
    int times = argc == 5 && strcmp(argv[3], "--time") == 0 ? (int)strtol(argv[4], NULL, 10) : 1;
    if (argc < 3 || times < 1) {
        fprintf(stderr, "usage: jinja_run TEMPLATE NOW [--time N] < CONTEXTS\n");
        return 2;
    }
    const char *name = strrchr(argv[1], '/') ? strrchr(argv[1], '/') + 1 : argv[1];
    hy_status s = file_read(argv[1], 16 << 20, &text, &size, &err);
    if (!s) s = jinja_compile(text, size, name, &t, &err);
    free(text);
    if (s) {
        printf("{\"refused\": true}\n");
        fprintf(stderr, "%s\n", err.message);
        return 3;
    }
    while (getline(&line, &capacity, stdin) > 0) {
        json_error_t e;
        json_t *context = json_loads(line, JSON_ALLOW_NUL, &e);
        if (!context) fprintf(stderr, "%s\n", e.text);
        answer(t, context, strtoll(argv[2], NULL, 10), times);
        json_decref(context);
    }
    free(line);
    jinja_free(t);
    return 0;
}
