/* hayate bench: what this machine can do, and how much of it the engine reaches. */
#include "cli/bench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cli/cli.h"

static const struct {
    const char *name, *about;
    int (*run)(int argc, char **argv);
} parts[] = {
    {"memory", "bytes a second by number of threads, and what the cores multiply", bench_memory},
    {"kernels", "every operation alone, on random weights: time, bound, error", bench_kernels},
    {"decode", "tokens a second by context and batch, beside the bytes that they must read", bench_decode},
    {"prefill", "the same for steps of many rows, beside the multiplications that they need", bench_prefill},
    {"engine", "tokens a second with requests in flight, beside the model alone over the same rows", bench_engine},
    {"speculation", "tokens a second with drafts and without, by drafts and batch, beside what they must do",
     bench_speculation},
};

enum { PARTS = sizeof parts / sizeof parts[0] };

static void usage(FILE *out)
{
    fprintf(out, "usage: hayate bench PART [arguments]\n\n"
                 "Measures, and sets every figure beside a bound that is measured in the same moment: a pass that only "
                 "reads\nmemory, and loops that only multiply.\n\nparts:\n");
    for (int i = 0; i < PARTS; i++) fprintf(out, "  %-11s %s\n", parts[i].name, parts[i].about);
    fprintf(out, "\n'hayate bench PART --help' tells more.\n");
}

int cmd_bench(int argc, char **argv)
{
    if (argc >= 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
        usage(stdout);
        return 0;
    }
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    for (int i = 0; i < PARTS; i++)
        if (!strcmp(argv[1], parts[i].name)) return parts[i].run(argc - 1, argv + 1);
    return cli_usage_error("bench", "there is no part '%.60s'", argv[1]);
}

hy_status bench_parse_list(const char *flag, const char *text, int64_t low, int64_t high, int32_t out[BENCH_MAX_LIST],
                           int *count, hy_error *err)
{
    *count = 0;
    for (const char *p = text;; p++) {
        char item[24];
        size_t n = strcspn(p, ",");
        uint64_t value = 0;
        snprintf(item, sizeof item, "%.*s", n < sizeof item ? (int)n : 0, p);
        if (cli_is_fraction(item))
            return error_at(err, HY_USAGE, flag, "%s takes whole numbers, not '%.40s'", flag, text);
        if (!cli_parse_count(item, &value) || value > (uint64_t)high || (int64_t)value < low)
            return error_at(err, HY_USAGE, flag, "%s takes numbers of %lld to %lld such as %s, not '%.40s'", flag,
                            (long long)low, (long long)high, high < 65536 ? "1,16" : "4096,64K", text);
        if (*count == BENCH_MAX_LIST)
            return error_at(err, HY_USAGE, flag, "%s takes at most %d numbers", flag, BENCH_MAX_LIST);
        out[(*count)++] = (int32_t)value;
        p += n;
        if (!*p) return HY_OK;
    }
}

bool bench_in_list(const char *list, const char *name)
{
    for (size_t n; list; list = list[n] ? list + n + 1 : NULL) {
        n = strcspn(list, ",");
        if (n == strlen(name) && !strncmp(list, name, n)) return true;
    }
    return false;
}

const char *bench_digits(double value, char out[24])
{
    int decimals = value > 0 ? 2 - (int)floor(log10(value)) : 0;
    if (decimals < 0) decimals = 0;
    if (decimals > 7) decimals = 7;
    snprintf(out, 24, "%.*f", decimals, value < 1e15 ? value : 1e15);
    return out;
}

void bench_note_above(void)
{
    printf("    above 100 %%: part of the bytes came from the caches, or the machine was faster than beside the run\n");
}
