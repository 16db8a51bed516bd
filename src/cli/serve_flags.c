#include "cli/serve_flags.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "cli/cli.h"
#include "cli/serve_config.h"
#include "cli/serve_values.h"

enum { SHOWN_SIZE = 320, PATH_SIZE = 200, DOTTED_MAX = 256 };

typedef enum source { SOURCE_NONE, SOURCE_FILE, SOURCE_COMMAND } source;

typedef struct dotted {
    const arg_spec *spec;
    char path[PATH_SIZE];
    const char *text;
    bool file;
    char shown[SHOWN_SIZE];
} dotted;

typedef struct parser {
    serve_args *args;
    source from[SERVE_TABLE_MAX]; /* by place in the table */
    dotted *members;              /* set once all whole values are there; [member_count] */
    int member_count;
} parser;

static source *source_of(parser *p, const arg_spec *spec)
{
    size_t count;
    return &p->from[spec - serve_table(&count)];
}

/* ---- One value ------------------------------------------------------------------------------------------------ */

/* An error about a flag as it was written. Returns NULL. */
static json_t *refuse(const char *shown, const char *format, ...) __attribute__((format(printf, 2, 3)));
static json_t *refuse(const char *shown, const char *format, ...)
{
    char what[512];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    cli_usage_error("serve", "%s %s", shown, what);
    return NULL;
}

static json_t *read_number(const arg_spec *spec, const char *shown, const char *text)
{
    char *end;
    errno = 0;
    if (spec->kind == ARG_FLOAT) {
        double number = strtod(text, &end);
        if (end == text || *end || number - number != 0) return refuse(shown, "takes a number, not '%.60s'", text);
        return json_real(number);
    }
    if (spec->kind == ARG_INT) {
        long long whole = strtoll(text, &end, 10);
        if (end == text || *end || errno) return refuse(shown, "takes a whole number, not '%.60s'", text);
        return json_integer(whole);
    }
    int64_t value;
    if (!values_human(text, spec->kind == ARG_BYTES, &value) || (value < 0 && spec->kind != ARG_AUTO)) {
        if (cli_is_fraction(text)) return refuse(shown, "must be a whole number, not '%.60s'", text);
        return refuse(shown, "takes a number such as 4096, 25.6k, 256K or 4GiB%s, not '%.60s'",
                      spec->kind == ARG_AUTO ? ", or auto" : "", text);
    }
    return json_integer(value);
}

static json_t *read_choice(const arg_spec *spec, const char *shown, const char *text)
{
    size_t n = strlen(text);
    for (const char *c = spec->choices; *c; c += strcspn(c, "|"), c += *c == '|')
        if (n == strcspn(c, "|") && !strncmp(c, text, n)) return json_string(text);
    buffer list = {0};
    for (const char *c = spec->choices; *c; c++)
        *c != '|' ? buffer_char(&list, *c) : buffer_string(&list, strchr(c + 1, '|') ? ", " : " or ");
    refuse(shown, "%.60s is unknown; choose %s", text, list.data ? list.data : "");
    buffer_free(&list);
    return NULL;
}

static json_t *read_json(const arg_spec *spec, const char *shown, const char *text)
{
    json_error_t e;
    json_t *value = json_loads(text, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    if (!value && spec->kind == ARG_EITHER && text[strspn(text, " \t\n")] != '{') value = json_string(text);
    if (!value) return refuse(shown, "takes JSON; at character %d: %.120s", e.position, e.text);
    bool fits = spec->kind == ARG_LIST ? json_is_array(value) : json_is_object(value) || spec->kind == ARG_EITHER;
    if (fits) return value;
    json_decref(value);
    return spec->kind == ARG_LIST
               ? refuse(shown, "takes a JSON list such as '[\"a\", \"b\"]'")
               : refuse(shown, "takes a JSON object such as '{\"a\": 1}', or its members: --%s.a 1", spec->name);
}

/* The value that one word means; NULL: it was refused. */
static json_t *read_word(const arg_spec *spec, const char *shown, const char *text)
{
    if (!strcmp(text, "None") && spec->kind != ARG_TEXTS && spec->kind != ARG_MAYBE && spec->kind != ARG_LIST)
        return json_null();
    json_t *value = NULL;
    switch (spec->kind) {
    case ARG_INT:
    case ARG_HUMAN:
    case ARG_BYTES:
    case ARG_AUTO:
    case ARG_FLOAT: return read_number(spec, shown, text);
    case ARG_CHOICE: return read_choice(spec, shown, text);
    case ARG_JSON:
    case ARG_LIST:
    case ARG_EITHER: return read_json(spec, shown, text);
    case ARG_BOOL: assert(!"a switch has no word");
    /* fall through */
    case ARG_TEXT:
    case ARG_TEXTS:
    case ARG_MAYBE: value = json_string(text); break;
    }
    return value ? value : refuse(shown, "is not UTF-8");
}

/* Takes `value` over; -1, or 2 where it is NULL. */
static int set(parser *p, const arg_spec *spec, source from, json_t *value)
{
    if (!value) return 2;
    source *known = source_of(p, spec);
    if (spec->kind == ARG_TEXTS && *known == from) {
        json_t *list = json_object_get(p->args->values, spec->name);
        json_array_extend(list, value);
        json_decref(value);
        return -1;
    }
    if (*known == from && !json_equal(json_object_get(p->args->values, spec->name), value))
        fprintf(stderr, "hayate serve: --%s was given twice; the last one counts\n", spec->name);
    *known = from;
    json_object_set_new(p->args->values, spec->name, value);
    return -1;
}

/* What to write in place of a flag that upstream once had and has removed; NULL: it is none. */
static const char *removed(const char *name)
{
    static const char leave[] = "leave it out, nothing needs it any more";
    static const char *const flags[][2] = {
        {"disable-log-requests", "leave it out, requests are logged with --enable-log-requests only"},
        {"enable-reasoning", "leave it out, --reasoning-parser alone does it"},
        {"guided-decoding-backend", "leave it out, there is one backend"},
        {"max-seq-len-to-capture", leave},
        {"num-scheduler-steps", leave},
        {"num-speculative-tokens", "write it into --speculative-config"},
        {"preemption-mode", leave},
        {"rope-scaling", "edit config.json in a copy of the model's folder"},
        {"rope-theta", "edit config.json in a copy of the model's folder"},
        {"speculative-model", "write it into --speculative-config"},
        {"swap-space", "leave it out; --kv-offload-memory keeps blocks that leave the cache"},
        {"task", "leave it out, or write --runner generate"},
        {"use-v2-block-manager", leave},
        {"worker-use-ray", leave},
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (strcmp(name, flags[i][0]) == 0) return flags[i][1];
    return NULL;
}

static int unknown(const char *shown, const char *name)
{
    char plain[64];
    snprintf(plain, sizeof plain, "%s", name);
    plain[strcspn(plain, "=.")] = 0;
    for (char *c = plain; *c; c++) *c = *c == '_' ? '-' : (char)tolower((unsigned char)*c);
    const char *instead = removed(plain), *near = serve_nearest(plain);
    if (instead) return cli_usage_error("serve", "%.80s is a flag of older versions of vllm: %s", shown, instead);
    if (near) return cli_usage_error("serve", "unknown flag %.80s; did you mean --%s?", shown, near);
    return cli_usage_error("serve", "unknown flag %.80s", shown);
}

static int member(parser *p, const arg_spec *spec, const char *shown, const char *path, size_t length, const char *text,
                  bool file)
{
    if (spec->kind != ARG_JSON && spec->kind != ARG_EITHER)
        return cli_usage_error("serve", "%s: --%s is no JSON object and has no members", shown, spec->name);
    if (length >= PATH_SIZE) return cli_usage_error("serve", "%s: the path of a member is too long", shown);
    if (p->member_count == DOTTED_MAX) return cli_usage_error("serve", "more than %d members were given", DOTTED_MAX);
    dotted *d = &p->members[p->member_count++];
    *d = (dotted){.spec = spec, .text = text, .file = file};
    memcpy(d->path, path, length);
    snprintf(d->shown, sizeof d->shown, "%s", shown);
    return -1;
}

/* Members over whole values: those of the file first, since they came before the command line. */
static int set_members(parser *p, bool file)
{
    for (int i = 0; i < p->member_count; i++) {
        dotted *d = &p->members[i];
        if (d->file != file) continue;
        json_t *object = json_object_get(p->args->values, d->spec->name);
        if (!json_is_object(object)) {
            object = json_object();
            json_object_set_new(p->args->values, d->spec->name, object);
        }
        char why[160];
        if (!values_set(object, d->path, d->text, why, sizeof why))
            return cli_usage_error("serve", "%s: %s", d->shown, why);
        if (*source_of(p, d->spec) == SOURCE_NONE) *source_of(p, d->spec) = SOURCE_COMMAND;
    }
    return -1;
}

/* ---- The file ------------------------------------------------------------------------------------------------- */

static json_t *file_switch(const char *shown, const json_t *value)
{
    if (!json_is_boolean(value)) return refuse(shown, "is true or false");
    return json_incref((json_t *)value);
}

static json_t *file_texts(const char *shown, const json_t *value)
{
    json_t *list = json_array(), *v;
    size_t i;
    json_array_foreach(value, i, v)
    {
        char *text = json_is_string(v) ? NULL : json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        json_array_append_new(list, text ? json_string(text) : json_incref(v));
        free(text);
    }
    if (json_array_size(list) > 0) return list;
    json_decref(list);
    return refuse(shown, "has an empty list");
}

static json_t *file_value(const arg_spec *spec, const char *shown, const json_t *entry)
{
    const json_t *value = json_object_get(entry, "value");
    const char *text = json_string_value(json_object_get(entry, "text"));
    if (spec->kind == ARG_BOOL) return file_switch(shown, value);
    if (json_is_null(value)) return json_null();
    if (json_is_array(value) && spec->kind == ARG_TEXTS) return file_texts(shown, value);
    if (json_is_array(value) && spec->kind == ARG_LIST) return json_incref((json_t *)value);
    if (json_is_object(value) && (spec->kind == ARG_JSON || spec->kind == ARG_EITHER))
        return json_incref((json_t *)value);
    if (spec->kind == ARG_MAYBE && json_is_boolean(value)) return json_incref((json_t *)value);
    if (!text)
        return refuse(shown, "has a value of the wrong kind: %s is wanted",
                      spec->kind == ARG_JSON ? "a mapping" : "one word");
    json_t *word = read_word(spec, shown, text);
    if (!word || spec->kind != ARG_TEXTS) return word;
    json_t *list = json_array();
    json_array_append_new(list, word);
    return list;
}

static int file_entry(parser *p, const char *path, const char *key, const json_t *entry)
{
    char shown[SHOWN_SIZE];
    snprintf(shown, sizeof shown, "%.160s line %d: %.100s", path,
             (int)json_integer_value(json_object_get(entry, "line")), key);
    size_t n = strcspn(key, ".");
    const arg_spec *spec = serve_find(key, n);
    if (!spec && (!strncmp(key, "no-", 3) || !strncmp(key, "no_", 3)) && !key[n]) {
        spec = serve_find(key + 3, n - 3);
        const json_t *on = json_object_get(entry, "value");
        if (spec && spec->kind == ARG_BOOL) {
            if (!json_is_boolean(on)) return refuse(shown, "is true or false"), 2;
            return set(p, spec, SOURCE_FILE, json_boolean(json_is_false(on)));
        }
        spec = NULL;
    }
    if (!spec) return unknown(shown, key);
    if (spec->group == GROUP_OPTIONS && strcmp(spec->name, "headless") && strcmp(spec->name, "grpc") &&
        strcmp(spec->name, "api-server-count"))
        return cli_usage_error("serve", "%s belongs on the command line", shown);
    if (key[n]) {
        const char *text = json_string_value(json_object_get(entry, "text"));
        if (!text) return cli_usage_error("serve", "%s: the value of a member must be one word", shown);
        return member(p, spec, shown, key + n + 1, strlen(key + n + 1), text, true);
    }
    return set(p, spec, SOURCE_FILE, file_value(spec, shown, entry));
}

/* The word after --config, or "" at the end of the line; NULL: there is no --config. */
static const char *config_path(int argc, char **argv, int *code)
{
    const char *path = NULL;
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++) {
        if (strncmp(argv[i], "--config", 8) || (argv[i][8] && argv[i][8] != '=')) continue;
        if (path) *code = cli_usage_error("serve", "--config was given twice");
        path = argv[i][8] ? argv[i] + 9 : i + 1 < argc ? argv[i + 1] : "";
    }
    if (path && (!*path || *path == '-') && *code < 0)
        *code = cli_usage_error("serve", "--config needs a value: --config FILE");
    return path;
}

/* `entries` keeps the texts of members alive. */
static int read_config(parser *p, int argc, char **argv, json_t **entries)
{
    int code = -1;
    hy_error err = {0};
    const char *path = config_path(argc, argv, &code);
    if (!path || code >= 0) return code;
    if (config_file_read(path, entries, &err) != HY_OK) return cli_usage_error("serve", "%s", err.message);
    const char *key;
    json_t *entry;
    json_object_foreach(*entries, key, entry)
    {
        code = file_entry(p, path, key, entry);
        if (code >= 0) return code;
    }
    return set_members(p, true);
}

/* ---- The command line ----------------------------------------------------------------------------------------- */

/* Whether a word can be a value: it is no flag. */
static bool is_value(const char *word)
{
    return word[0] != '-' || !word[1] || isdigit((unsigned char)word[1]) ||
           (word[1] == '.' && isdigit((unsigned char)word[2]));
}

/* All words up to the next flag. */
static json_t *take_words(parser *p, const arg_spec *spec, const char *value, int *i)
{
    json_t *list = json_array();
    serve_args *a = p->args;
    if (value) {
        json_array_append_new(list, json_string(value));
        return list;
    }
    while (*i + 1 < a->argc && is_value(a->argv[*i + 1])) {
        a->owner[++*i] = spec;
        json_array_append_new(list, json_string(a->argv[*i]));
    }
    return list;
}

static int take(parser *p, const arg_spec *spec, const char *shown, const char *value, bool negated, int *i)
{
    serve_args *a = p->args;
    if (spec->kind == ARG_BOOL) {
        if (value) return cli_usage_error("serve", "%s takes no value; --no-%s is off", shown, spec->name);
        return set(p, spec, SOURCE_COMMAND, json_boolean(!negated));
    }
    if (spec->kind == ARG_TEXTS) {
        json_t *list = take_words(p, spec, value, i);
        if (json_array_size(list) > 0) return set(p, spec, SOURCE_COMMAND, list);
        json_decref(list);
        return cli_usage_error("serve", "%s needs one or more values", shown);
    }
    if (!value && *i + 1 < a->argc && is_value(a->argv[*i + 1])) {
        value = a->argv[++*i];
        a->owner[*i] = spec;
    }
    if (!value && spec->kind == ARG_MAYBE) return set(p, spec, SOURCE_COMMAND, json_true());
    if (!value) return cli_usage_error("serve", "%s needs a value", shown);
    return set(p, spec, SOURCE_COMMAND, read_word(spec, shown, value));
}

static int take_flag(parser *p, int *i)
{
    serve_args *a = p->args;
    const char *arg = a->argv[*i], *body = arg + (arg[1] == '-' ? 2 : 1), *value = NULL;
    size_t n = strcspn(body, "=.");
    bool negated = false;
    const arg_spec *spec = arg[1] == '-' ? serve_find(body, n) : serve_find_letters(body, n);
    if (!spec && arg[1] == '-' && (!strncmp(body, "no-", 3) || !strncmp(body, "no_", 3)) && n > 3) {
        spec = serve_find(body + 3, n - 3);
        if (spec && spec->kind != ARG_BOOL) spec = NULL;
        negated = spec != NULL;
    }
    if (!spec && arg[1] != '-' && (body[0] == 'O' || isdigit((unsigned char)body[1]))) {
        spec = serve_find_letters(body, 1); /* -O3, -n2 */
        value = body + 1, n = strlen(body);
    }
    if (!spec) return unknown(arg, body);
    char shown[SHOWN_SIZE];
    snprintf(shown, sizeof shown, "%.*s", (int)(strcspn(arg, "=") < 200 ? strcspn(arg, "=") : 200), arg);
    a->owner[*i] = spec;
    if (body[n] == '=') value = body + n + 1;
    if (body[n] != '.') return take(p, spec, shown, value, negated, i);
    const char *path = body + n + 1, *equal = strchr(path, '=');
    if (equal) return member(p, spec, shown, path, (size_t)(equal - path), equal + 1, false);
    if (*i + 1 >= a->argc || !is_value(a->argv[*i + 1])) return cli_usage_error("serve", "%s needs a value", shown);
    a->owner[++*i] = spec;
    return member(p, spec, shown, path, strlen(path), a->argv[*i], false);
}

static int read_command(parser *p)
{
    serve_args *a = p->args;
    bool flags = true;
    for (int i = 1; i < a->argc; i++) {
        if (flags && !strcmp(a->argv[i], "--")) {
            flags = false;
        } else if (flags && !is_value(a->argv[i])) {
            int code = take_flag(p, &i);
            if (code >= 0) return code;
        } else if (!a->model) {
            a->model = a->argv[i];
        } else {
            return cli_usage_error("serve", "unexpected argument '%.80s': the model is %.80s", a->argv[i], a->model);
        }
    }
    return set_members(p, false);
}

/* --help and --version come before everything else. */
static int first_of_all(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return serve_help("");
        if (!strncmp(argv[i], "--help=", 7)) return serve_help(argv[i] + 7);
        if (!strcmp(argv[i], "--version") || !strcmp(argv[i], "-v")) {
            printf("hayate %s\n", HY_VERSION);
            return 0;
        }
    }
    return -1;
}

int serve_parse(int argc, char **argv, serve_args *out)
{
    *out = (serve_args){.argc = argc, .argv = argv};
    int code = first_of_all(argc, argv);
    if (code >= 0) return code;
    parser p = {.args = out};
    json_t *entries = NULL;
    out->values = json_object();
    out->owner = calloc((size_t)argc, sizeof *out->owner);
    p.members = calloc(DOTTED_MAX, sizeof *p.members);
    if (!out->values || !out->owner || !p.members) {
        fprintf(stderr, "hayate serve: out of memory\n");
        code = 4;
    }
    if (code < 0) code = read_config(&p, argc, argv, &entries);
    p.member_count = 0;
    if (code < 0) code = read_command(&p);
    free(p.members);
    json_decref(entries);
    if (code < 0 && !out->model && serve_given(out, "model")) {
        out->model = serve_text(out, "model");
        const arg_spec *spec = serve_find("model", 5);
        for (int i = 1; i < argc; i++) out->model_flag = out->model_flag || out->owner[i] == spec;
    }
    return code;
}

void serve_args_free(serve_args *args)
{
    json_decref(args->values);
    free(args->owner);
    *args = (serve_args){0};
}
