/*
 * The renderer of M3's prompts in C against tests/data/text/m3.jinja, interpreted: many generated conversations give the
 * same text, or are both refused. With the argument "time": how long both take for a conversation of a megabyte.
 */
#include "text_helpers.h"

#include <time.h>

#include "text/chat_template.h"

static text_template interpreted;
static const text_template builtin = {.kind = TEXT_TEMPLATE_MINIMAX_M3};

static uint64_t state = 20260101;

static unsigned below(unsigned n)
{
    return draw(&state) % n;
}

static bool often(void)
{
    return below(3) != 0;
}

static const char *some_text(void)
{
    static const char *const texts[] = {
        "", "Hi", " two words ", "line\nline\n", "\n", "<mm:think>\nplan\n</mm:think>\nanswer\n", "a</mm:think>b</mm:think>c",
        "<mm:think>open", "\xE4\xBD\xA0\xE5\xA5\xBD \"quoted\" 'single' \\ back\tslash", "{% raw %}{{ x }}", "]~b]user\nfake[e~[\n",
        "</mm:think>", "\n</mm:think>\n\n", "x<mm:think>y<mm:think>z</mm:think>w", "\xF0\x9F\x91\x8B \xC3\x9F", "tail \t\n ",
    };
    return texts[below(sizeof texts / sizeof *texts)];
}

static json_t *some_value(int depth)
{
    switch (below(depth ? 9 : 7)) {
    case 0: return json_string(some_text());
    case 1: return json_integer((json_int_t)below(100000) - 50000);
    case 2: {
        static const double reals[] = {0, 1, -2.5, 1e20, 1e-7, 0.1, 123456.789, 1e16, 9007199254740993.0};
        return json_real(reals[below(9)]);
    }
    case 3: return json_boolean(below(2));
    case 4: return json_null();
    case 5: return json_string("v");
    case 6: return json_integer(7);
    case 7: {
        json_t *list = json_array();
        for (unsigned n = below(4); n; n--) json_array_append_new(list, some_value(depth - 1));
        return list;
    }
    default: {
        json_t *object = json_object();
        static const char *const keys[] = {"city", "days", "ключ", "items", "a-b", "get", "keys"};
        for (unsigned n = below(4); n; n--) json_object_set_new(object, keys[below(7)], some_value(depth - 1));
        return object;
    }
    }
}

static json_t *some_object(int depth)
{
    json_t *object = json_object();
    static const char *const keys[] = {"city", "days", "q", "items", "nested", "values"};
    for (unsigned n = below(5); n; n--) json_object_set_new(object, keys[below(6)], some_value(depth));
    return object;
}

static json_t *some_content(bool tool)
{
    static const char *const types[] = {"image", "video", "text", "text", "audio"};
    if (below(8) == 0) return json_null();
    if (often()) return json_string(some_text());
    json_t *parts = json_array();
    for (unsigned n = below(4); n; n--) {
        const char *type = types[below(tool ? 4 : 5)];
        if (below(5) == 0) {
            json_array_append_new(parts, json_string(some_text()));
            continue;
        }
        json_t *part = json_object();
        json_object_set_new(part, "type", json_string(type));
        if (strcmp(type, "text") == 0) json_object_set_new(part, "text", json_string(some_text()));
        json_array_append_new(parts, part);
    }
    return parts;
}

static json_t *some_calls(void)
{
    json_t *calls = json_array();
    for (unsigned n = below(3) + (below(4) != 0); n; n--) {
        json_t *function = json_object(), *arguments = some_object(3);
        json_object_set_new(function, "name", json_string(below(2) ? "get_weather" : "search"));
        if (below(3) == 0) {
            char *text = json_dumps(arguments, 0);
            json_decref(arguments);
            arguments = json_string(text);
            free(text);
        }
        if (below(12))
            json_object_set_new(function, "arguments", arguments);
        else
            json_decref(arguments);
        if (below(10) == 0) {
            json_array_append_new(calls, function); /* without a wrapper */
            continue;
        }
        json_t *call = json_object();
        json_object_set_new(call, "type", json_string("function"));
        json_object_set_new(call, "function", function);
        json_array_append_new(calls, call);
    }
    return calls;
}

static json_t *some_message(size_t i)
{
    static const char *const roles[] = {"user", "assistant", "tool", "user", "assistant", "tool", "system", "developer", "other"};
    static const char *const first[] = {"root", "system", "developer", "user", "user", "user"};
    const char *role = i == 0 ? first[below(6)] : i == 1 && below(3) == 0 ? first[1 + below(2)] : roles[below(9)];
    json_t *m = json_object();
    json_object_set_new(m, "role", json_string(role));
    if (below(12)) json_object_set_new(m, "content", some_content(strcmp(role, "tool") == 0));
    if (strcmp(role, "assistant") != 0) return m;
    if (below(3) == 0) json_object_set_new(m, below(2) ? "reasoning" : "reasoning_content", json_string(some_text()));
    if (below(10) == 0) json_object_set_new(m, "reasoning", json_null());
    if (often()) json_object_set_new(m, "tool_calls", below(10) ? some_calls() : json_null());
    return m;
}

static json_t *some_tools(void)
{
    if (below(3) == 0) return NULL;
    json_t *tools = json_array();
    for (unsigned n = below(3); n; n--) {
        json_t *tool = json_object(), *function = json_object();
        if (below(2)) json_object_set_new(function, "parameters", below(5) ? some_object(3) : json_null());
        json_object_set_new(function, "name", json_string("get_weather"));
        if (often()) json_object_set_new(function, "description", below(5) ? json_string(some_text()) : json_null());
        if (below(4) == 0) json_object_set_new(function, "strict", some_value(0));
        if (below(6) == 0) json_object_set_new(function, "defer_loading", json_true());
        if (below(6) == 0) json_object_set_new(function, "unknown", json_true());
        json_object_set_new(tool, "type", json_string("function"));
        json_object_set_new(tool, "function", function);
        json_array_append_new(tools, tool);
    }
    return tools;
}

static json_t *some_kwargs(void)
{
    static const char *const modes[] = {"enabled", "disabled", "adaptive", "else"};
    if (below(4) == 0) return NULL;
    json_t *kwargs = json_object();
    if (often()) json_object_set_new(kwargs, "thinking_mode", below(9) ? json_string(modes[below(4)]) : json_null());
    if (below(4) == 0) json_object_set_new(kwargs, "model_identity", json_string(some_text()));
    if (below(4) == 0) json_object_set_new(kwargs, "add_generation_prompt", json_boolean(below(2)));
    if (below(4) == 0) json_object_set_new(kwargs, "reasoning_effort", json_string("high"));
    if (below(4) == 0) json_object_set_new(kwargs, "continue_final_message", json_boolean(below(4)));
    return kwargs;
}

static void same(const json_t *messages, const json_t *tools, const json_t *kwargs, int *made, int *refused)
{
    buffer a = {0}, b = {0};
    hy_error x = {0}, y = {0};
    hy_status s = text_template_render(&builtin, messages, tools, kwargs, &a, &x);
    hy_status t = text_template_render(&interpreted, messages, tools, kwargs, &b, &y);
    bool equal = s == t && (s || (a.length == b.length && memcmp(a.data, b.data, a.length) == 0));
    bool said = s == HY_OK || strstr(x.message, "continue_final_message") || strcmp(x.message, y.message) == 0;
    if (!equal || !said) {
        char *shown = json_dumps(messages, 0), *with = kwargs ? json_dumps(kwargs, 0) : NULL;
        fail_msg("%s\nkwargs %s\nbuilt in (%s %s):\n%s\ninterpreted (%s %s):\n%s", shown, with ? with : "none", hy_status_name(s),
                 x.message, a.data ? a.data : "", hy_status_name(t), y.message, b.data ? b.data : "");
    }
    ++*(s ? refused : made);
    buffer_free(&a);
    buffer_free(&b);
}

/* A message is continued behind its content as it was given. What has none, or loses some on the way to the prompt, has no
 * such place: the two find different ones there. */
static bool comparable(const json_t *messages, const json_t *kwargs)
{
    if (!json_is_true(json_object_get(kwargs, "continue_final_message"))) return true;
    const char *text = json_string_value(json_object_get(json_array_get(messages, json_array_size(messages) - 1), "content"));
    return text && *text && !strstr(text, "/mm:think>");
}

static void test_conversations(void **unused)
{
    (void)unused;
    int made = 0, refused = 0;
    for (int i = 0; i < 3000; i++) {
        json_t *messages = json_array(), *tools = some_tools(), *kwargs = some_kwargs();
        for (size_t n = 1 + below(7), k = 0; k < n; k++) json_array_append_new(messages, some_message(k));
        if (comparable(messages, kwargs)) same(messages, tools, kwargs, &made, &refused);
        json_decref(messages);
        json_decref(tools);
        json_decref(kwargs);
    }
    assert_true(made > 1000);
    assert_true(refused > 200);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void time_both(void)
{
    json_t *messages = json_array();
    size_t bytes = 0;
    while (bytes < 1000000) {
        json_t *m = some_message(3);
        if (strcmp(json_string_value(json_object_get(m, "role")), "tool") == 0) json_object_set_new(m, "role", json_string("user"));
        char text[1200];
        memset(text, 'a' + (int)below(26), sizeof text);
        if (below(2)) json_object_set_new(m, "content", json_stringn(text, sizeof text));
        char *shown = json_dumps(m, 0);
        bytes += strlen(shown);
        free(shown);
        json_array_append_new(messages, m);
    }
    for (int which = 0; which < 2; which++) {
        double best = 1e9;
        size_t length = 0;
        for (int i = 0; i < 20; i++) {
            buffer out = {0};
            hy_error err = {0};
            double start = seconds();
            if (text_template_render(which ? &interpreted : &builtin, messages, NULL, NULL, &out, &err)) puts(err.message);
            double took = seconds() - start;
            if (took < best) best = took;
            length = out.length;
            buffer_free(&out);
        }
        printf("%s: %zu messages, %zu bytes of JSON, %zu of prompt, best of 20: %.3f ms\n", which ? "interpreted" : "built in",
               json_array_size(messages), bytes, length, best * 1e3);
    }
    json_decref(messages);
}

int main(int argc, char **argv)
{
    hy_error err = {0};
    if (text_template_detect(NULL, TEXT_DATA "m3.jinja", &interpreted, &err)) {
        fprintf(stderr, "%s: %s\n", err.where, err.message);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_conversations)};
    int failed = 0;
    if (argc > 1 && strcmp(argv[1], "time") == 0)
        time_both();
    else
        failed = cmocka_run_group_tests(tests, NULL, NULL);
    text_template_free(&interpreted);
    return failed;
}
