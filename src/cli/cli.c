#include "cli/cli.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/utf8.h"

enum { NAME_MAX_LENGTH = 63, HELP_WIDTH = 100 };

/* ---- Errors -------------------------------------------------------------------------------------------------- */

void cli_error(const hy_error *err)
{
    fprintf(stderr, "hayate: %s\n", err->message[0] ? err->message : hy_status_name(err->status));
}

int cli_usage_error(const char *command, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "hayate %s: ", command);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\nTry 'hayate %s --help'.\n", command);
    return 2;
}

int cli_exit(hy_status status)
{
    switch (status) {
    case HY_OK: return 0;
    case HY_USAGE:
    case HY_BAD_INPUT: return 2;
    case HY_BAD_MODEL:
    case HY_UNSUPPORTED: return 3;
    case HY_NO_FIT: return 4;
    case HY_FAILED:
    case HY_CANCELLED:
    case HY_LATE:
    case HY_BUSY: break;
    }
    return 1;
}

/* ---- Sizes --------------------------------------------------------------------------------------------------- */

/* The factor of a suffix; 0: unknown. */
static uint64_t size_factor(const char *suffix)
{
    static const char letters[] = "kmgt";
    if (!*suffix || !strcmp(suffix, "B")) return 1;
    const char *at = strchr(letters, tolower((unsigned char)*suffix));
    if (!at) return 0;
    const char *rest = suffix + 1;
    uint64_t base;
    if (!*rest)
        base = isupper((unsigned char)*suffix) ? 1024 : 1000;
    else if (!strcmp(rest, "B"))
        base = 1000;
    else if (!strcmp(rest, "iB"))
        base = 1024;
    else
        return 0;
    uint64_t factor = 1;
    for (long i = 0; i <= at - letters; i++) factor *= base;
    return factor;
}

/* How a number was written. */
typedef enum reading {
    NOT_ONE, /* no number, or too large */
    WHOLE,
    ROUNDED,  /* a fraction of the last unit was cut off */
    FRACTION, /* as ROUNDED, and there is no suffix that would make it a fraction of something larger */
} reading;

static reading read_size(const char *text, uint64_t *out)
{
    const char *p = text;
    size_t whole = 0;
    if (!isdigit((unsigned char)*p)) return NOT_ONE;
    for (; isdigit((unsigned char)*p); p++)
        if (!size_mul(whole, 10, &whole) || !size_add(whole, (size_t)(*p - '0'), &whole)) return NOT_ONE;
    uint64_t fraction = 0, divisor = 1;
    if (*p == '.') {
        p++;
        if (!isdigit((unsigned char)*p)) return NOT_ONE;
        for (; isdigit((unsigned char)*p); p++) {
            if (divisor >= 1000000) return NOT_ONE;
            fraction = fraction * 10 + (uint64_t)(*p - '0'), divisor *= 10;
        }
    }
    if (*p == ' ') p++;
    uint64_t factor = size_factor(p);
    size_t value;
    /* fraction < 10^6 and factor <= 2^40, so their product fits */
    if (!factor || !size_mul(whole, factor, &value) || !size_add(value, fraction * factor / divisor, &value))
        return NOT_ONE;
    *out = value;
    return fraction * factor % divisor == 0 ? WHOLE : factor > 1 ? ROUNDED : FRACTION;
}

bool cli_parse_size(const char *text, uint64_t *out)
{
    uint64_t value;
    reading r = read_size(text, &value);
    if (r == NOT_ONE || r == FRACTION) return false;
    *out = value;
    return true;
}

bool cli_parse_count(const char *text, uint64_t *out)
{
    uint64_t value;
    if (read_size(text, &value) != WHOLE) return false;
    *out = value;
    return true;
}

bool cli_is_fraction(const char *text)
{
    uint64_t value;
    return read_size(text, &value) >= ROUNDED;
}

const char *cli_format_bytes(uint64_t bytes, char out[32])
{
    return memory_text(bytes, out);
}

const char *cli_format_text(const char *text, char out[CLI_TEXT])
{
    snprintf(out, CLI_TEXT, "%s", text);
    utf8_one_line(out, '?');
    return out;
}

const char *cli_format_count(uint64_t value, char out[32])
{
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)value), k = 0;
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0) out[k++] = ',';
        out[k++] = digits[i];
    }
    out[k] = 0;
    return out;
}

/* ---- Flags --------------------------------------------------------------------------------------------------- */

/* Copies a flag's name (up to `end`) with `_` as `-`. False: longer than any name. */
static bool flag_name(const char *text, size_t length, char out[NAME_MAX_LENGTH + 1])
{
    if (length > NAME_MAX_LENGTH) return false;
    for (size_t i = 0; i < length; i++) out[i] = text[i] == '_' ? '-' : text[i];
    out[length] = 0;
    return true;
}

/* The long part of "name,letter"; its letter or 0. */
static size_t option_long(const cli_option *o, char *letter)
{
    const char *comma = strchr(o->name, ',');
    *letter = comma ? comma[1] : 0;
    return comma ? (size_t)(comma - o->name) : strlen(o->name);
}

static const cli_option *find_long(const cli_option *options, int count, const char *name)
{
    for (int i = 0; i < count; i++) {
        char letter, own[NAME_MAX_LENGTH + 1];
        size_t n = option_long(&options[i], &letter);
        if (flag_name(options[i].name, n, own) && !strcmp(own, name)) return &options[i];
    }
    return NULL;
}

static const cli_option *find_letter(const cli_option *options, int count, char want)
{
    for (int i = 0; i < count; i++) {
        char letter;
        option_long(&options[i], &letter);
        if (letter == want) return &options[i];
    }
    return NULL;
}

int cli_edit_distance(const char *a, const char *b)
{
    int rows[3][NAME_MAX_LENGTH + 2];
    if (strlen(a) > NAME_MAX_LENGTH || strlen(b) > NAME_MAX_LENGTH) return NAME_MAX_LENGTH;
    int n = (int)strlen(a), m = (int)strlen(b);
    int *before = rows[0], *last = rows[1], *row = rows[2];
    for (int j = 0; j <= m; j++) last[j] = j;
    for (int i = 1; i <= n; i++) {
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best) best = last[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            row[j] = best;
        }
        int *t = before;
        before = last, last = row, row = t;
    }
    return last[m];
}

static int unknown_flag(const char *command, const cli_option *options, int count, const char *name)
{
    char best[NAME_MAX_LENGTH + 1] = "", own[NAME_MAX_LENGTH + 1];
    int distance = (int)strlen(name) / 3 + 2; /* farther names are no help */
    for (int i = 0; i < count; i++) {
        char letter;
        size_t n = option_long(&options[i], &letter);
        if (!options[i].help || !flag_name(options[i].name, n, own)) continue;
        int d = cli_edit_distance(name, own);
        if (d < distance) distance = d, memcpy(best, own, sizeof best);
    }
    if (best[0]) return cli_usage_error(command, "unknown flag --%s; did you mean --%s?", name, best);
    return cli_usage_error(command, "unknown flag --%s", name);
}

static bool parse_long(const char *text, long long low, long long high, long long *out)
{
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return end != text && !*end && errno == 0 && *out >= low && *out <= high;
}

static bool parse_double(const char *text, double *out)
{
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    return end != text && !*end && errno == 0 && *out - *out == 0; /* finite */
}

/* Stores a value; -1 or the exit code. */
static int store(const char *command, const cli_option *o, const char *shown, const char *value)
{
    long long whole;
    double number;
    switch (o->kind) {
    case CLI_FLAG:
    case CLI_SWITCH: break; /* these have no value */
    case CLI_STRING: *(const char **)o->target = value; break;
    case CLI_STRINGS: {
        cli_strings *list = o->target;
        if (list->count == CLI_MAX_STRINGS)
            return cli_usage_error(command, "%s was given more than %d times", shown, CLI_MAX_STRINGS);
        list->items[list->count++] = value;
        break;
    }
    case CLI_INT:
        if (!parse_long(value, -2147483647 - 1, 2147483647, &whole))
            return cli_usage_error(command, "%s takes a whole number, not '%s'", shown, value);
        *(int *)o->target = (int)whole;
        break;
    case CLI_LONG:
        if (!parse_long(value, INT64_MIN, INT64_MAX, &whole))
            return cli_usage_error(command, "%s takes a whole number, not '%s'", shown, value);
        *(int64_t *)o->target = whole;
        break;
    case CLI_SIZE:
    case CLI_COUNT:
        if (!(o->kind == CLI_SIZE ? cli_parse_size : cli_parse_count)(value, o->target)) {
            if (cli_is_fraction(value))
                return cli_usage_error(command, "%s must be a whole number, not '%s'", shown, value);
            return cli_usage_error(command, "%s takes a number such as 4096, 256K or 288GB, not '%s'", shown, value);
        }
        break;
    case CLI_FLOAT:
    case CLI_DOUBLE:
        if (!parse_double(value, &number)) return cli_usage_error(command, "%s takes a number, not '%s'", shown, value);
        if (o->kind == CLI_FLOAT)
            *(float *)o->target = (float)number;
        else
            *(double *)o->target = number;
        break;
    }
    return -1;
}

void cli_print_wrapped(const char *text, int indent, int column)
{
    bool fresh = true; /* no word on this line yet */
    while (*text) {
        if (fresh)
            for (; *text == ' '; text++) column += printf(" ");
        size_t n = strcspn(text, " \n");
        if (!fresh && column + (int)n + 1 > HELP_WIDTH) {
            printf("\n%*s", indent, "");
            column = indent, fresh = true;
        }
        column += printf("%s%.*s", fresh ? "" : " ", (int)n, text);
        fresh = false;
        text += n;
        if (*text == '\n') {
            printf("\n%*s", indent, "");
            column = indent, fresh = true;
        }
        if (*text) text++;
    }
    printf("\n");
}

static int option_label(const cli_option *o, char out[128])
{
    char letter;
    int n = (int)option_long(o, &letter);
    int k = snprintf(out, 128, "  --%.*s", n, o->name);
    if (letter) k += snprintf(out + k, (size_t)(128 - k), ", -%c", letter);
    if (o->value_name) k += snprintf(out + k, (size_t)(128 - k), " %s", o->value_name);
    return k;
}

static void print_help(const char *usage, const char *about, const cli_option *options, int count)
{
    char label[128];
    int width = 0;
    printf("usage: hayate %s\n\n", usage);
    cli_print_wrapped(about, 0, 0);
    printf("\nflags:\n");
    for (int i = 0; i < count; i++) {
        int n = options[i].help ? option_label(&options[i], label) : 0;
        if (n > width && n <= 36) width = n;
    }
    if (width < 8) width = 8;
    for (int i = 0; i < count; i++) {
        if (!options[i].help) continue;
        int n = option_label(&options[i], label);
        printf("%s", label);
        if (n > width)
            printf("\n%*s", width + 2, "");
        else
            printf("%*s", width + 2 - n, "");
        cli_print_wrapped(options[i].help, width + 2, width + 2);
    }
    printf("  --help%*s", width - 6, "");
    printf("this text\n");
}

/* One argument that begins with a dash, and maybe the one after it. *i moves past what was used. */
static int parse_flag(const char *command, const cli_option *options, int count, int argc, char **argv, int *i)
{
    const char *arg = argv[*i], *value = NULL;
    char name[NAME_MAX_LENGTH + 1], shown[NAME_MAX_LENGTH + 3];
    const cli_option *o = NULL;
    bool negated = false;
    if (arg[1] == '-') {
        size_t n = strcspn(arg + 2, "=");
        if (!flag_name(arg + 2, n, name)) return cli_usage_error(command, "unknown flag %.80s", arg);
        if (arg[2 + n]) value = arg + 3 + n;
        o = find_long(options, count, name);
        if (!o && !strncmp(name, "no-", 3)) {
            o = find_long(options, count, name + 3);
            if (o && o->value_name) o = NULL;
            negated = o != NULL;
        }
        if (!o) return unknown_flag(command, options, count, name);
        snprintf(shown, sizeof shown, "--%s", name);
    } else {
        o = find_letter(options, count, arg[1]);
        if (!o) return cli_usage_error(command, "unknown flag %.80s", arg);
        if (arg[2]) value = arg[2] == '=' ? arg + 3 : arg + 2;
        snprintf(shown, sizeof shown, "-%c", arg[1]);
    }
    if (!o->value_name) {
        if (value) return cli_usage_error(command, "%s takes no value", shown);
        if (o->kind == CLI_SWITCH)
            *(int *)o->target = !negated;
        else
            *(bool *)o->target = !negated;
        return -1;
    }
    if (!value) {
        if (*i + 1 >= argc || !strncmp(argv[*i + 1], "--", 2))
            return cli_usage_error(command, "%s needs a value: %s %s", shown, shown, o->value_name);
        value = argv[++*i];
    }
    return store(command, o, shown, value);
}

int cli_parse(const char *command, const char *usage, const char *about, const cli_option *options, int count, int argc,
              char **argv, const char **positional, int *positional_count)
{
    int room = *positional_count, found = 0;
    bool flags = true;
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            print_help(usage, about, options, count);
            return 0;
        }
    for (int i = 1; i < argc; i++) {
        if (flags && !strcmp(argv[i], "--")) {
            flags = false;
        } else if (flags && argv[i][0] == '-' && argv[i][1]) {
            int code = parse_flag(command, options, count, argc, argv, &i);
            if (code >= 0) return code;
        } else if (found < room) {
            positional[found++] = argv[i];
        } else {
            return cli_usage_error(command, "unexpected argument '%.80s'", argv[i]);
        }
    }
    *positional_count = found;
    return -1;
}

/* ---- Progress ------------------------------------------------------------------------------------------------ */

static atomic_bool interrupted;

static void on_interrupt(int number)
{
    (void)number;
    atomic_store(&interrupted, true); /* without a lock: safe here */
}

const atomic_bool *cli_interrupted(void)
{
    return &interrupted;
}

void cli_catch_interrupt(void)
{
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    struct sigaction term = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&term.sa_mask);
    sigaction(SIGTERM, &term, NULL);
}

/* The one piece of work that is being shown. */
static struct {
    char what[96];
    double start, next;
    uint64_t first, last; /* `done` at the start, and as seen last */
    bool shown;
} display;

static void amount(uint64_t value, const char *unit, char out[32])
{
    if (!strcmp(unit, "bytes"))
        cli_format_bytes(value, out);
    else
        cli_format_count(value, out);
}

static void duration(double seconds, char out[32])
{
    unsigned s = seconds < 359999 ? (unsigned)(seconds + 0.5) : 359999;
    if (s >= 3600)
        snprintf(out, 32, "%u:%02u:%02u", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, 32, "%u:%02u", s / 60, s % 60);
}

static void draw(double now, uint64_t done, uint64_t total, const char *unit, bool terminal, bool end)
{
    char a[32], b[32], r[32], t[32], line[256];
    double seconds = now - display.start;
    double rate = seconds > 0 ? (double)(done - display.first) / seconds : 0;
    bool bytes = !strcmp(unit, "bytes");
    amount(done, unit, a);
    if (!bytes && rate < 10)
        snprintf(r, sizeof r, "%.*f", rate < 0.1 ? 3 : rate < 1 ? 2 : 1, rate);
    else
        amount((uint64_t)rate, unit, r);
    int n = snprintf(line, sizeof line, "%s ", display.what);
    if (total) {
        amount(total, unit, b);
        n += snprintf(line + n, sizeof line - (size_t)n, "%3u %%  %s of %s",
                      (unsigned)(100.0 * (double)done / (double)total), a, b);
    } else {
        n += snprintf(line + n, sizeof line - (size_t)n, "%s", a);
    }
    n += snprintf(line + n, sizeof line - (size_t)n, "%s%s", bytes ? "" : " ", bytes ? "" : unit);
    if (rate >= 0.001) n += snprintf(line + n, sizeof line - (size_t)n, ", %s/s", r);
    if (end) {
        duration(seconds, t);
        snprintf(line + n, sizeof line - (size_t)n, ", %s", t);
    } else if (total && rate > 0) {
        duration((double)(total - done) / rate, t);
        snprintf(line + n, sizeof line - (size_t)n, ", %s left", t);
    }
    fprintf(stderr, terminal ? "\r%s\033[K%s" : "%s%s", line, end || !terminal ? "\n" : "");
    fflush(stderr);
}

bool cli_progress(void *user, const char *what, uint64_t done, uint64_t total, const char *unit)
{
    (void)user;
    double now = clock_seconds();
    bool terminal = isatty(STDERR_FILENO) != 0;
    if (total && done > total) done = total;
    if (strncmp(display.what, what, sizeof display.what - 1) || done < display.last) {
        snprintf(display.what, sizeof display.what, "%s", what);
        display.start = now, display.next = now + (terminal ? 1 : 10);
        display.first = done, display.shown = false;
    }
    display.last = done;
    bool end = total && done == total;
    if (end ? display.shown : now >= display.next) {
        draw(now, done, total, unit, terminal, end);
        display.shown = !end;
        display.next = now + (terminal ? 0.1 : 10);
    }
    if (end) display.what[0] = 0;
    bool stop = atomic_load(&interrupted);
    if (stop && terminal && display.shown) fprintf(stderr, "\n");
    return !stop;
}
