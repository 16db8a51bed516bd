#include "server/request_fields.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"

enum { MAX_VALUES = 1 << 18 };

/* ---- Faults ----------------------------------------------------------------------------------------------------- */

static bool fill(request_fault *fault, int status, const char *type, const char *param, const char *format,
                 va_list args)
{
    *fault = (request_fault){.status = status, .type = type, .suffix = param != NULL};
    vsnprintf(fault->message, sizeof fault->message, format, args);
    snprintf(fault->param, sizeof fault->param, "%s", param ? param : "");
    return false;
}

bool request_refuse(request_fault *fault, const char *param, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fill(fault, 400, "BadRequestError", param, format, args);
    va_end(args);
    return false;
}

/* In the form that pydantic prints: one line of count, one with the details. */
bool request_schema(request_fault *fault, const char *place, const char *field, const char *kind, const char *message)
{
    const char *dot = *field ? "." : "";
    *fault = (request_fault){.status = 400, .type = "Bad Request"};
    snprintf(fault->param, sizeof fault->param, "%s%s%.60s", place, dot, field);
    char loc[160];
    size_t at = (size_t)snprintf(loc, sizeof loc, "'");
    for (const char *p = fault->param; *p && at + 8 < sizeof loc; p++)
        at += (size_t)snprintf(loc + at, sizeof loc - at, *p == '.' ? "', '" : "%c", *p == '\'' ? '`' : *p);
    snprintf(loc + at, sizeof loc - at, "'");
    snprintf(fault->message, sizeof fault->message, "1 validation error:\n  {'type': '%s', 'loc': (%s%s), 'msg': '%s'}",
             kind, loc, strchr(fault->param, '.') ? "" : ",", message);
    return false;
}

bool request_failed(request_fault *fault, const char *param, const hy_error *error)
{
    static const struct {
        hy_status status;
        int code;
        const char *type;
    } known[] = {{HY_BAD_INPUT, 400, "BadRequestError"},    {HY_USAGE, 400, "BadRequestError"},
                 {HY_NO_FIT, 400, "BadRequestError"},       {HY_UNSUPPORTED, 400, "BadRequestError"},
                 {HY_BUSY, 503, "ServiceUnavailableError"}, {HY_LATE, 504, "GatewayTimeoutError"}};
    *fault = (request_fault){.status = 500, .type = "InternalServerError"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].status == error->status) fault->status = known[i].code, fault->type = known[i].type;
    fault->retry_after = error->status == HY_BUSY ? 1 : 0;
    fault->no_retry = error->status == HY_LATE; /* nobody waits for this answer any more */
    snprintf(fault->param, sizeof fault->param, "%s", param ? param : "");
    fault->suffix = param && fault->status == 400;
    /* What is the server's fault may name its files: its log has it, clients are told where to look. */
    bool hide = fault->status == 500 && strchr(error->message, '/');
    snprintf(fault->message, sizeof fault->message, "%s",
             hide ? "the server could not compute this answer; its log says why" : error->message);
    return false;
}

/* ---- Tables ----------------------------------------------------------------------------------------------------- */

json_t *request_value(const json_t *object, const char *name)
{
    json_t *v = json_object_get(object, name);
    return json_is_null(v) ? NULL : v;
}

static bool in_range(const request_field *f, double x, request_fault *fault)
{
    if ((f->low == 0 && f->high == 0) || (x >= f->low && x <= f->high)) return true;
    return request_refuse(fault, f->name, "%s must be between %.17g and %.17g, got %.17g", f->name, f->low, f->high, x);
}

/*
 * Upstream's reader takes a number or a truth value that is written as text, and 0 and 1 for truth values; clients
 * whose settings come from forms and variables of the environment send such. Text of anything else is of the wrong
 * type.
 */
static bool number_of(const json_t *v, double *out)
{
    const char *text = json_string_value(v);
    char *end;
    if (json_is_number(v)) {
        *out = json_number_value(v);
        return true;
    }
    if (!text || !*text || strlen(text) != json_string_length(v) || text[strspn(text, "+-.0123456789eE")]) return false;
    *out = strtod(text, &end);
    return !*end && isfinite(*out);
}

static bool integer_of(const json_t *v, int64_t *out)
{
    const char *text = json_string_value(v);
    char *end;
    double x;
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    if (text && *text && !text[strspn(text, "+-0123456789")]) { /* all 64 bits of it */
        errno = 0;
        *out = strtoll(text, &end, 10);
        return !*end && errno == 0 && strlen(text) == json_string_length(v);
    }
    if (!number_of(v, &x) || fabs(x) >= 9e15 || x != floor(x)) return false;
    *out = (int64_t)x;
    return true;
}

static bool truth_of(const json_t *v, bool *out)
{
    static const char *const words[] = {"false", "true", "0", "1", "off", "on", "no", "yes", "f", "t", "n", "y"};
    const char *text = json_string_value(v);
    *out = json_is_true(v) || (json_is_number(v) && json_number_value(v) == 1);
    if (json_is_boolean(v) || *out || (json_is_number(v) && json_number_value(v) == 0)) return true;
    for (size_t i = 0; text && i < sizeof words / sizeof *words; i++) {
        if (strcasecmp(text, words[i]) != 0 || strlen(text) != json_string_length(v)) continue;
        *out = i % 2 == 1;
        return true;
    }
    return false;
}

static bool read_integer(const request_field *f, const char *place, const json_t *v, void *to, request_fault *fault)
{
    int64_t x;
    if (!integer_of(v, &x)) return request_schema(fault, place, f->name, "int_type", "Input should be a valid integer");
    if (!in_range(f, (double)x, fault)) return false;
    memcpy(to, &x, sizeof x);
    return true;
}

static bool read_number(const request_field *f, const char *place, const json_t *v, void *to, request_fault *fault)
{
    double x;
    if (!number_of(v, &x)) return request_schema(fault, place, f->name, "float_type", "Input should be a valid number");
    if (!in_range(f, x, fault)) return false;
    memcpy(to, &x, sizeof x);
    return true;
}

static bool asks_nothing(const json_t *v)
{
    return json_is_false(v) || (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

static bool read_field(const request_field *f, const char *place, json_t *v, char *to, request_fault *fault)
{
    bool flag;
    const char *text = json_string_value(v);
    switch (f->kind) {
    case REQUEST_BOOL:
        if (!truth_of(v, &flag))
            return request_schema(fault, place, f->name, "bool_type", "Input should be a valid boolean");
        memcpy(to, &flag, sizeof flag);
        return true;
    case REQUEST_INTEGER: return read_integer(f, place, v, to, fault);
    case REQUEST_NUMBER: return read_number(f, place, v, to, fault);
    case REQUEST_STRING:
        if (!text) return request_schema(fault, place, f->name, "string_type", "Input should be a valid string");
        if (strlen(text) != json_string_length(v))
            return request_refuse(fault, f->name, "%s cannot contain a NUL character", f->name);
        memcpy(to, &text, sizeof text);
        return true;
    case REQUEST_OBJECT:
        if (!json_is_object(v))
            return request_schema(fault, place, f->name, "dict_type", "Input should be a valid dictionary");
        break;
    case REQUEST_LIST:
        if (!json_is_array(v))
            return request_schema(fault, place, f->name, "list_type", "Input should be a valid list");
        break;
    case REQUEST_ANY: break;
    case REQUEST_IGNORED: return true;
    case REQUEST_REFUSED:
        return asks_nothing(v) || request_refuse(fault, f->name, "%s is not supported by this server", f->name);
    }
    memcpy(to, &v, sizeof v);
    return true;
}

bool request_read(const json_t *object, const char *place, const request_field *fields, size_t count, void *out,
                  request_fault *fault)
{
    for (size_t i = 0; i < count; i++) {
        json_t *v = request_value(object, fields[i].name);
        if (v && !read_field(&fields[i], place, v, (char *)out + fields[i].offset, fault)) return false;
    }
    return true;
}

/* ---- Fields of old ---------------------------------------------------------------------------------------------- */

void request_warn_of_removed(const json_t *body)
{
    static const char *const names[][2] = {{"guided_json", "json"},
                                           {"guided_regex", "regex"},
                                           {"guided_choice", "choice"},
                                           {"guided_grammar", "grammar"},
                                           {"guided_json_object", "json_object"},
                                           {"guided_whitespace_pattern", "whitespace_pattern"},
                                           {"guided_decoding_backend", NULL}};
    enum { COUNT = sizeof names / sizeof *names };
    static atomic_bool said[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        if (!request_value(body, names[i][0]) || atomic_exchange(&said[i], true)) continue;
        if (names[i][1])
            log_line(HY_LOG_WARNING, "requests have the field %s, which is ignored: it is now structured_outputs.%s",
                     names[i][0], names[i][1]);
        else
            log_line(HY_LOG_WARNING, "requests have the field %s, which is ignored: there is one backend", names[i][0]);
    }
}

/* ---- Bodies ----------------------------------------------------------------------------------------------------- */

/*
 * Whether the body has at most MAX_VALUES values (one after each comma and each opening bracket, outside strings). As a
 * tree an empty object takes some eighty times its three bytes, so that a body within its limit could take gigabytes.
 * Numbers take eight bytes less a digit or two: a list of them, which is what long prompts of ids are, counts a fourth.
 */
static bool few_values(const char *text, size_t length)
{
    size_t quarters = 0;
    bool quoted = false, comma = false; /* the last thing that was no space is a comma outside of strings */
    for (size_t i = 0; i < length && quarters <= 4 * (size_t)MAX_VALUES; i++) {
        if (quoted && text[i] == '\\')
            i++;
        else if (quoted || strchr(" \t\r\n", text[i])) {
            if (text[i] == '"') quoted = false;
        } else {
            if (comma) quarters += text[i] >= '0' && text[i] <= '9' ? 1 : 4;
            comma = text[i] == ',', quoted = text[i] == '"';
            quarters += text[i] == '[' || text[i] == '{' ? 4 : 0;
        }
    }
    return quarters <= 4 * (size_t)MAX_VALUES;
}

json_t *request_parse(const char *text, size_t length, request_fault *fault)
{
    json_error_t e;
    if (!few_values(text, length)) {
        request_refuse(fault, NULL, "the body has more than %d JSON values; send a smaller one", MAX_VALUES);
        return NULL;
    }
    json_t *body = json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!body) {
        for (char *p = e.text; *p; p++)
            if (*p == '\'') *p = '`'; /* it stands between quotes below */
        *fault = (request_fault){.status = 400, .type = "Bad Request", .param = "body"};
        snprintf(fault->message, sizeof fault->message,
                 "1 validation error:\n  {'type': 'json_invalid', 'loc': ('body', %d), 'msg': 'JSON decode error: %s'}",
                 e.position, e.text);
    } else if (!json_is_object(body)) {
        request_schema(fault, "body", "", "model_attributes_type", "Input should be a valid dictionary");
        json_decref(body);
        return NULL;
    }
    return body;
}
