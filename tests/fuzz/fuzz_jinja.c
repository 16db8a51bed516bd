/*
 * Any bytes as a template: refused with one line, or compiled and run over a small conversation within small limits, where it
 * ends with a text, a refusal or a limit.
 */
#include <stdlib.h>
#include <string.h>

#include "text/json_read.h"
#include "text/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok)
{
    if (!ok) abort();
}

static const char conversation[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a<b\"}]},"
    " {\"role\": \"assistant\", \"content\": \" \\u00fc\\n\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": [1, 2.5, null, true]}}}]}],"
    " \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"d\", \"parameters\": {}}}],"
    " \"add_generation_prompt\": true, \"n\": 3, \"s\": \"text\", \"l\": [3, 1, 2]}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static json_t *context;
    hy_error err = {0};
    jinja *t = NULL;
    if (!context) context = json_read(conversation, sizeof conversation - 1, 0, HY_BAD_INPUT, "fuzz", &err);
    check(context != NULL);
    hy_status s = jinja_compile((const char *)data, size, "fuzz", &t, &err);
    if (s) {
        check(s == HY_BAD_MODEL && *err.message && !strchr(err.message, '\n'));
        return 0;
    }
    buffer out = {0};
    jinja_limits limits = {.output_bytes = 1 << 20, .memory_bytes = 8 << 20, .steps = 200000, .depth = 50, .now = 1};
    s = jinja_render(t, context, &limits, &out, &err);
    check(s == HY_OK || s == HY_BAD_INPUT || s == HY_NO_FIT);
    check(s == HY_OK || !strchr(err.message, '\n'));
    check(out.length <= (2 << 20));
    buffer_free(&out);
    jinja_free(t);
    return 0;
}
