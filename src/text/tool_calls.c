#include "text/tool_calls.h"

#include "base/error.h"
#include "text/call_arguments.h"

#include <string.h>

typedef struct reader {
    call_machine machine;
    call_arguments arguments;
    json_t *name; /* of the call that is open; owned */
    text_tool_calls *out;
    hy_status status;
    hy_error *err;
} reader;

static call_answer fail(reader *r, hy_status status)
{
    r->status = status;
    return CALL_STOP;
}

static call_answer end_call(reader *r)
{
    json_t *arguments = call_arguments_end(&r->arguments), *call = json_object();
    bool ok = json_object_set(call, "name", r->name) == 0;
    ok = json_object_set_new(call, "arguments", arguments) == 0 && ok;
    ok = json_array_append_new(r->out->calls, call) == 0 && ok;
    json_decref(r->name);
    r->name = NULL;
    return ok ? CALL_GO_ON : fail(r, error_memory(r->err, "tool calls", 0));
}

/* A name for a message, which is printable. */
static const char *shown(const char *s, char out[48])
{
    size_t n = 0;
    for (; s[n] && n < 44; n++) out[n] = s[n] >= 0x20 && s[n] < 0x7F ? s[n] : '?';
    strcpy(out + n, s[n] ? "..." : "");
    return out;
}

static call_answer take_element(reader *r, call_event event, const char *text, size_t length)
{
    char name[48];
    if (event == CALL_OPEN) return call_arguments_open(&r->arguments, text, length) ? CALL_LITERAL : CALL_GO_ON;
    if (event == CALL_TEXT) return call_arguments_text(&r->arguments, text, length) ? CALL_LITERAL : CALL_GO_ON;
    if (call_arguments_close(&r->arguments)) return CALL_GO_ON;
    return fail(r, error_set(r->err, HY_BAD_INPUT, "the value of %s in a tool call is not UTF-8",
                             shown(call_arguments_name(&r->arguments), name)));
}

static call_answer take_event(void *user, call_event event, const char *text, size_t length)
{
    reader *r = user;
    switch (event) {
    case CALL_CONTENT: break;
    case CALL_BLOCK:
        r->out->block = true;
        r->out->content_length = call_machine_before_block(&r->machine);
        break;
    case CALL_BEGIN:
        call_arguments_begin(&r->arguments, text, length);
        r->name = json_stringn_nocheck(text, length);
        break;
    case CALL_OPEN:
    case CALL_TEXT:
    case CALL_CLOSE: return take_element(r, event, text, length);
    case CALL_END: return end_call(r);
    case CALL_BLOCK_END: return CALL_STOP;
    case CALL_REPAIR: r->out->repairs++; break;
    case CALL_FAULT:
    case CALL_CUT: return fail(r, error_set(r->err, HY_BAD_INPUT, "%.*s", (int)length, text));
    }
    return CALL_GO_ON;
}

hy_status text_tool_calls_read(const char *text, size_t length, const json_t *tools, text_tool_calls *out,
                               hy_error *err)
{
    *out = (text_tool_calls){.content_length = length, .calls = json_array()};
    if (!out->calls) return error_memory(err, "tool calls", 0);
    reader r = {.arguments = {.tools = tools}, .out = out, .err = err};
    call_machine_begin(&r.machine, take_event, &r);
    call_machine_feed(&r.machine, text, length);
    call_machine_finish(&r.machine);
    if (r.arguments.failed || !call_machine_ok(&r.machine)) r.status = error_memory(err, "tool calls", 0);
    json_decref(r.name);
    call_arguments_free(&r.arguments);
    call_machine_free(&r.machine);
    return r.status;
}

void text_tool_calls_free(text_tool_calls *calls)
{
    json_decref(calls->calls);
    *calls = (text_tool_calls){0};
}
