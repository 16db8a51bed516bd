/* The shared reading of flags, sizes and exit codes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

static void sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t value;
    } good[] = {
        {"0", 0},
        {"4096", 4096},
        {"256K", 262144},
        {"256k", 256000},
        {"1m", 1000000},
        {"1M", 1048576},
        {"2g", 2000000000},
        {"288GB", 288000000000},
        {"288GiB", 309237645312},
        {"80 GB", 80000000000},
        {"1kB", 1000},
        {"1KB", 1000},
        {"1KiB", 1024},
        {"512B", 512},
        {"25.6k", 25600},
        {"0.5K", 512},
        {"1.5TiB", 1649267441664},
        {"1.5K", 1536},
        {"1.0", 1},
        {"0.1K", 102}, /* bytes are rounded down */
        {"18446744073709551615", UINT64_MAX},
    };
    static const char *const bad[] = {
        "",           "K",    "-1",  "1.",  ".5", "1x", "1KBB", "1 K B", "18446744073709551616", "99999999999T",
        "1.1234567G", "1.9", "0.5", "1.5B", "0x10", "1e9", "1ki", " 1"};
    uint64_t v;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        if (!cli_parse_size(good[i].text, &v)) fail_msg("%s", good[i].text);
        assert_true(v == good[i].value);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (cli_parse_size(bad[i], &v)) fail_msg("'%s' was taken for %llu", bad[i], (unsigned long long)v);
}

static void counts(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t value;
    } good[] = {{"0", 0}, {"7", 7}, {"1.0", 1}, {"1.5K", 1536}, {"25.6k", 25600}, {"1.25K", 1280}, {"2M", 2097152}};
    static const char *const bad[] = {"1.9", "0.1K", "1.0001k", "1.1M", "1.5B", "0.000001"};
    uint64_t v;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        if (!cli_parse_count(good[i].text, &v)) fail_msg("%s", good[i].text);
        assert_true(v == good[i].value && !cli_is_fraction(good[i].text));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        v = 12;
        if (cli_parse_count(bad[i], &v)) fail_msg("'%s' was taken for %llu", bad[i], (unsigned long long)v);
        assert_true(v == 12 && cli_is_fraction(bad[i]));
    }
    assert_false(cli_parse_count("x", &v) || cli_is_fraction("x") || cli_is_fraction("1.x"));
}

static void numbers_for_people(void **state)
{
    (void)state;
    char out[32];
    assert_string_equal(cli_format_count(0, out), "0");
    assert_string_equal(cli_format_count(999, out), "999");
    assert_string_equal(cli_format_count(1000, out), "1,000");
    assert_string_equal(cli_format_count(250103411200, out), "250,103,411,200");
    assert_string_equal(cli_format_count(UINT64_MAX, out), "18,446,744,073,709,551,615");
    assert_string_equal(cli_format_bytes(999, out), "999 B");
    assert_string_equal(cli_format_bytes(1000, out), "1.00 kB");
    assert_string_equal(cli_format_bytes(250103411200, out), "250.1 GB");
    assert_string_equal(cli_format_bytes(999999, out), "1.00 MB");
}

static void exit_codes(void **state)
{
    (void)state;
    assert_int_equal(cli_exit(HY_OK), 0);
    assert_int_equal(cli_exit(HY_FAILED), 1);
    assert_int_equal(cli_exit(HY_CANCELLED), 1);
    assert_int_equal(cli_exit(HY_USAGE), 2);
    assert_int_equal(cli_exit(HY_BAD_INPUT), 2);
    assert_int_equal(cli_exit(HY_BAD_MODEL), 3);
    assert_int_equal(cli_exit(HY_UNSUPPORTED), 3);
    assert_int_equal(cli_exit(HY_NO_FIT), 4);
}

typedef struct values {
    bool flag;
    int gate, count;
    int64_t seed;
    uint64_t size;
    float heat;
    double share;
    const char *name;
    cli_strings stops;
    const char *places[2];
    int found;
} values;

/* Runs the parser on up to eight arguments; what it prints goes to `said`. */
static int parse(values *v, char said[2048], const char *const *args)
{
    char *argv[10] = {(char *)"test"};
    int argc = 1;
    while (args[argc - 1]) argv[argc] = (char *)(uintptr_t)args[argc - 1], argc++;
    *v = (values){.gate = -1, .found = 2};
    const cli_option options[] = {
        {"flag", NULL, "a flag", &v->flag, CLI_FLAG},       {"gate", NULL, "a switch", &v->gate, CLI_SWITCH},
        {"count,c", "N", "an int", &v->count, CLI_INT},     {"seed", "N", "a long", &v->seed, CLI_LONG},
        {"max-size", "SIZE", "a size", &v->size, CLI_SIZE}, {"heat", "F", "a float", &v->heat, CLI_FLOAT},
        {"share", "F", "a double", &v->share, CLI_DOUBLE},  {"name,n", "TEXT", "a text", &v->name, CLI_STRING},
        {"stop", "TEXT", "texts", &v->stops, CLI_STRINGS},  {"undocumented", NULL, NULL, &v->flag, CLI_FLAG},
    };
    char path[] = "/tmp/hayate-flags-XXXXXX";
    int fd = mkstemp(path), out, err;
    assert_true(fd >= 0);
    unlink(path);
    fflush(stdout), fflush(stderr);
    out = dup(1), err = dup(2);
    dup2(fd, 1), dup2(fd, 2);
    int code = cli_parse("test", "test A B [flags]", "About it.", options, sizeof options / sizeof options[0], argc,
                         argv, v->places, &v->found);
    fflush(stdout), fflush(stderr);
    dup2(out, 1), dup2(err, 2);
    close(out), close(err);
    ssize_t n = pread(fd, said, 2047, 0);
    said[n > 0 ? n : 0] = 0;
    close(fd);
    return code;
}
#define PARSE(...) parse(&v, said, (const char *const[]){__VA_ARGS__, NULL})

static void flags_of_every_kind(void **state)
{
    (void)state;
    values v;
    char said[2048];
    assert_int_equal(PARSE("one", "--flag", "--count=3", "--seed", "-7", "two"), -1);
    assert_int_equal(v.found, 2);
    assert_string_equal(v.places[0], "one");
    assert_string_equal(v.places[1], "two");
    assert_true(v.flag);
    assert_int_equal(v.count, 3);
    assert_int_equal(v.seed, -7);
    assert_int_equal(v.gate, -1);
    assert_int_equal(PARSE("--max_size", "256K", "--max-size=1GB", "--heat", "0.5", "--share=0.92"), -1);
    assert_int_equal(v.size, 1000000000);
    assert_true(v.heat == 0.5f && v.share == 0.92);
    assert_int_equal(v.found, 0);
    assert_int_equal(PARSE("--flag", "--no-flag", "--no-gate", "-c", "5", "-n", "x=y"), -1);
    assert_false(v.flag);
    assert_int_equal(v.gate, 0);
    assert_int_equal(v.count, 5);
    assert_string_equal(v.name, "x=y");
    assert_int_equal(PARSE("--gate", "--stop", "a", "--stop=", "-c7", "--", "--flag", "-"), -1);
    assert_int_equal(v.gate, 1);
    assert_int_equal(v.stops.count, 2);
    assert_string_equal(v.stops.items[1], "");
    assert_int_equal(v.count, 7);
    assert_string_equal(v.places[0], "--flag");
    assert_string_equal(v.places[1], "-");
    assert_string_equal(said, "");
}

static void wrong_flags(void **state)
{
    (void)state;
    values v;
    char said[2048];
    static const struct {
        const char *args[4];
        const char *word;
    } bad[] = {
        {{"--cuont", "3"}, "unknown flag --cuont; did you mean --count?"},
        {{"--zzzzzzzzzz"}, "unknown flag --zzzzzzzzzz\n"},
        {{"--undocumentde"}, "unknown flag --undocumentde\n"}, /* hidden flags are not proposed */
        {{"--no-count"}, "unknown flag --no-count"},
        {{"--count"}, "--count needs a value: --count N"},
        {{"--count", "--flag"}, "--count needs a value"},
        {{"--count", "3x"}, "--count takes a whole number, not '3x'"},
        {{"--count", "99999999999"}, "whole number"},
        {{"--seed", "9223372036854775808"}, "whole number"},
        {{"--max-size", "big"}, "--max-size takes a number such as"},
        {{"--heat", "warm"}, "--heat takes a number"},
        {{"--heat", "nan"}, "--heat takes a number"},
        {{"--share", "inf"}, "--share takes a number"},
        {{"--flag=1"}, "--flag takes no value"},
        {{"-x"}, "unknown flag -x"},
        {{"a", "b", "c"}, "unexpected argument 'c'"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(parse(&v, said, bad[i].args), 2);
        if (!strstr(said, bad[i].word)) fail_msg("%s: %s", bad[i].args[0], said);
        assert_non_null(strstr(said, "hayate test: "));
        assert_non_null(strstr(said, "hayate test --help"));
    }
    char name[256];
    memset(name, 'a', sizeof name);
    memcpy(name, "--", 2);
    name[255] = 0;
    assert_int_equal(PARSE(name), 2);
}

static void help(void **state)
{
    (void)state;
    values v;
    char said[2048];
    assert_int_equal(PARSE("--cuont", "--help"), 0);
    assert_non_null(strstr(said, "usage: hayate test A B [flags]\n"));
    assert_non_null(strstr(said, "About it."));
    assert_non_null(strstr(said, "--count, -c N"));
    assert_null(strstr(said, "undocumented"));
    assert_int_equal(PARSE("--", "--help"), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes), cmocka_unit_test(counts),       cmocka_unit_test(numbers_for_people),
        cmocka_unit_test(exit_codes),  cmocka_unit_test(flags_of_every_kind),
        cmocka_unit_test(wrong_flags), cmocka_unit_test(help),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
