/*
 * Generated answers: what went in comes out, in every cut; damaged ones give in every cut what they give whole; both
 * are held against the rules that other servers of this model publish, written here for whole texts; and the way
 * through the chat template and back.
 */
#include "answer_helpers.h"

#include "text/chat_template.h"
#include "text/call_arguments.h"
#include "text/python_text.h"
#include "text/tool_schema.h"

enum { ANSWERS = 10000, SHORT = 160 };

/* ---- Values under schemas ------------------------------------------------------------------------------------------
 */

static const char *const words[] = {
    "a",  " two words", "\n",      "7",   "true", "null", "]",           "<",        ">",
    "[",  "]<]",        "]<]mini", "[>[", "{}",   "</s>", "<tool_call>", "\xC3\xA9", "\xF0\x9F\x98\x80",
    "\"", "\\n",        "\t",
};
enum { WORDS = sizeof words / sizeof *words };

/* What only a value that its schema calls text can have. */
static const char *const marks[] = {NS, NS "<i>", NS "</i>", NS "</invoke>\n", NS "</tool_call>", NS "<tool_call>",
                                    O,  C};

static void add_words(buffer *out, uint64_t *seed, uint32_t count, bool marked)
{
    for (; count; count--) {
        if (marked && draw(seed) % 8 == 0)
            buffer_string(out, marks[draw(seed) % 8]);
        else
            buffer_string(out, words[draw(seed) % WORDS]);
    }
}

/* How many words a text has: now and then many. */
static uint32_t some(uint64_t *seed)
{
    return draw(seed) % 40 == 0 ? draw(seed) % 400 : draw(seed) % 5;
}

static json_t *random_schema(uint64_t *seed, int depth)
{
    switch (draw(seed) % (depth < 3 ? 9 : 7)) {
    case 0: return json_pack("{s:s}", "type", "integer");
    case 1: return json_pack("{s:s}", "type", "number");
    case 2: return json_pack("{s:[s,s]}", "type", "boolean", "null");
    case 3: return json_pack("{s:[{s:s},{s:s}]}", "anyOf", "type", "string", "type", "null");
    case 4: return json_object();
    case 5:
    case 6: return json_pack("{s:s}", "type", "string");
    case 7: return json_pack("{s:s,s:o}", "type", "array", "items", random_schema(seed, depth + 1));
    default: break;
    }
    json_t *properties = json_object();
    for (uint32_t n = draw(seed) % 4, i = 0; i < n; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%u", i);
        json_object_set_new(properties, key, random_schema(seed, depth + 1));
    }
    return json_pack("{s:s,s:o}", "type", "object", "properties", properties);
}

static json_t *random_text(uint64_t *seed, const char *before, bool marked)
{
    buffer b = {0};
    buffer_string(&b, before);
    add_words(&b, seed, some(seed), marked);
    json_t *value = json_string(b.data ? b.data : "");
    buffer_free(&b);
    return value;
}

static json_t *random_value(uint64_t *seed, const json_t *schema)
{
    const json_t *properties = json_object_get(schema, "properties"), *items = json_object_get(schema, "items");
    const char *type = json_string_value(json_object_get(schema, "type")), *key;
    json_t *child;
    if (json_object_get(schema, "anyOf"))
        return draw(seed) % 4 ? random_text(seed, "v", true) : json_string(draw(seed) % 2 ? "nul" : "");
    if (json_is_array(json_object_get(schema, "type"))) return json_boolean(draw(seed) % 2);
    if (!type) return random_text(seed, "", false);
    if (!strcmp(type, "integer")) return json_integer((int)draw(seed) - (1 << 29));
    if (!strcmp(type, "number")) return json_real((draw(seed) % 100000) / 64.0);
    if (!strcmp(type, "string")) return random_text(seed, "", true);
    if (items) {
        json_t *list = json_array();
        for (uint32_t n = draw(seed) % 4; n; n--) json_array_append_new(list, random_value(seed, items));
        return list;
    }
    json_t *object = json_object();
    json_object_foreach((json_t *)properties, key, child) if (draw(seed) % 4)
        json_object_set_new(object, key, random_value(seed, child));
    return object;
}

/* ---- Answers --------------------------------------------------------------------------------------------------------
 */

static void write_element(buffer *out, const char *name, const json_t *value)
{
    const char *key;
    json_t *child;
    size_t i;
    buffer_printf(out, NS "<%s>", name);
    json_array_foreach(value, i, child) write_element(out, "item", child);
    json_object_foreach((json_t *)value, key, child) write_element(out, key, child);
    if (json_is_string(value)) buffer_string(out, json_string_value(value));
    if (json_is_integer(value)) buffer_printf(out, "%lld", (long long)json_integer_value(value));
    if (json_is_real(value)) python_float(json_real_value(value), out);
    if (json_is_boolean(value)) buffer_string(out, json_is_true(value) ? "true" : "false");
    buffer_printf(out, NS "</%s>", name);
}

typedef struct made {
    text_answer_options options;
    buffer text, reasoning, content;
    json_t *tools, *calls; /* calls: [{"name", "arguments"}] */
} made;

static void made_free(made *m)
{
    buffer_free(&m->text);
    buffer_free(&m->reasoning);
    buffer_free(&m->content);
    json_decref(m->tools);
    json_decref(m->calls);
}

static void make_call(made *m, uint64_t *seed, const json_t *schema)
{
    json_t *arguments = random_value(seed, schema), *value;
    const char *key;
    buffer_string(&m->text, NS "<invoke name=\"f\">");
    json_object_foreach(arguments, key, value)
    {
        if (draw(seed) % 8 == 0) buffer_string(&m->text, "\n");
        write_element(&m->text, key, value);
    }
    buffer_string(&m->text, draw(seed) % 4 ? NS "</invoke>\n" : NS "</invoke>");
    json_array_append_new(m->calls, json_pack("{s:s,s:o}", "name", "f", "arguments", arguments));
}

static made make_answer(uint64_t *seed)
{
    made m = {.calls = json_array()};
    json_t *properties = json_object();
    for (uint32_t n = draw(seed) % 4, i = 0; i < n; i++) {
        char key[16];
        snprintf(key, sizeof key, "p%u", i);
        json_object_set_new(properties, key, random_schema(seed, 0));
    }
    json_t *schema = json_pack("{s:s,s:o}", "type", "object", "properties", properties);
    m.tools = json_pack("[{s:{s:s,s:o}}]", "function", "name", "f", "parameters", schema);
    m.options = (text_answer_options){.start = (text_reasoning_start)(draw(seed) % 3),
                                      .split_reasoning = true,
                                      .split_calls = true,
                                      .tools = m.tools};
    if (m.options.start == TEXT_START_INSIDE || draw(seed) % 3 == 0) {
        buffer_string(&m.reasoning, "r");
        add_words(&m.reasoning, seed, some(seed), false);
        if (m.options.start != TEXT_START_INSIDE || draw(seed) % 4 == 0) buffer_string(&m.text, O);
        buffer_append(&m.text, m.reasoning.data, m.reasoning.length);
        buffer_string(&m.text, C);
    } else if (draw(seed) % 4 == 0) {
        buffer_string(&m.text, C);
    }
    add_words(&m.content, seed, some(seed), false);
    buffer_append(&m.text, m.content.data, m.content.length);
    for (uint32_t blocks = draw(seed) % 8 ? draw(seed) % 2 : 2; blocks; blocks--) {
        buffer_string(&m.text, draw(seed) % 4 ? NS "<tool_call>\n" : NS "<tool_call>");
        for (uint32_t n = draw(seed) % 3 + 1; n; n--) make_call(&m, seed, schema);
        buffer_string(&m.text, NS "</tool_call>");
        if (draw(seed) % 6 == 0) buffer_string(&m.text, "\nand"), buffer_string(&m.content, "\nand");
    }
    return m;
}

/* One or more accidents. */
static void damage(buffer *text, uint64_t *seed)
{
    static const char *const bits[] = {NS,
                                       NS "<",
                                       NS "</invoke>",
                                       NS "</tool_call>",
                                       NS "<tool_call>",
                                       NS "<p0>",
                                       NS "</p0>",
                                       NS "<invoke name=\"g\">",
                                       NS "invoke name=\"f\">",
                                       "<",
                                       "]",
                                       "x",
                                       "\n",
                                       "\"",
                                       O,
                                       C,
                                       "\xFF",
                                       NS "</item>",
                                       "</invoke>",
                                       "]<]"};
    for (uint32_t n = 1 + draw(seed) % 3; n && text->length; n--) {
        size_t at = draw(seed) % text->length, count = 1 + draw(seed) % 12;
        buffer rest = {0};
        if (count > text->length - at) count = text->length - at;
        uint32_t how = draw(seed) % 6;
        const char *mark = strstr(text->data + at, NS);
        if (how >= 4 && mark) at = (size_t)(mark - text->data) + (how == 4 ? 0 : sizeof NS - 1); /* where tags are */
        if (how == 4) count = sizeof NS - 1 + draw(seed) % 6;
        if (count > text->length - at) count = text->length - at;
        bool insert = how == 0 || how == 3;
        buffer_append(&rest, text->data + at + (insert ? 0 : count), text->length - at - (insert ? 0 : count));
        text->length = at;
        if (how != 1) buffer_string(text, how == 4 || how == 5 ? "" : bits[draw(seed) % (sizeof bits / sizeof *bits)]);
        if (rest.length && draw(seed) % 16) buffer_append(text, rest.data, rest.length); /* else it ends there */
        buffer_string(text, "");
        buffer_free(&rest);
    }
}

/* ---- The rules of other servers, for whole texts
 * --------------------------------------------------------------------- */

/* Reasoning and content by searching the text. */
static void whole_reasoning(const char *s, text_reasoning_start start, buffer *reasoning, buffer *content)
{
    const char *open = strstr(s, O), *from = s;
    if (start != TEXT_START_INSIDE) {
        if (strncmp(s, C, strlen(C)) == 0) {
            buffer_string(content, s + strlen(C));
            return;
        }
        buffer_append(content, s, open ? (size_t)(open - s) : strlen(s));
        if (!open) return;
        from = open + strlen(O);
    } else if (open == s) {
        from = s + strlen(O);
    }
    const char *close = strstr(from, C);
    buffer_append(reasoning, from, close ? (size_t)(close - from) : strlen(from));
    if (close) buffer_string(content, close + strlen(C));
}

typedef struct strict {
    const char *at;
    bool malformed, marks; /* marks: tags in a value that is text, where we differ on purpose */
} strict;

static bool eat(strict *p, const char *what)
{
    if (strncmp(p->at, what, strlen(what)) != 0) return false;
    p->at += strlen(what);
    return true;
}

static void eat_space(strict *p)
{
    p->at += strspn(p->at, " \n\t\r");
}

/* The name of a tag at p->at; "" if there is none. */
static void tag_name(strict *p, const char *before, char name[64])
{
    const char *from = p->at + strlen(before), *end;
    name[0] = 0;
    if (strncmp(p->at, before, strlen(before)) != 0 || *from == '/' || !(end = strchr(from, '>')) || end - from > 60)
        return;
    snprintf(name, 64, "%.*s", (int)(end - from), from);
    p->at = end + 1;
}

/* From behind an opening tag to behind its end. NULL: malformed. */
static json_t *strict_value(strict *p, const json_t *schema, const char *name)
{
    buffer text = {0};
    char end[80], child[64];
    bool nullable, any = false;
    json_t *members = json_object(), *items = json_array();
    snprintf(end, sizeof end, NS "</%s>", name);
    while (!eat(p, end) && !p->malformed) {
        const char *mark = strstr(p->at, NS);
        if (!mark) mark = p->at, p->malformed = true;
        buffer_append(&text, p->at, (size_t)(mark - p->at));
        p->at = mark;
        if (p->malformed || strncmp(mark, end, strlen(end)) == 0) continue;
        p->marks = p->marks || text_schema_is_text(schema, &nullable);
        tag_name(p, NS "<", child);
        if (strstr(child, NS)) p->marks = true;
        if (!*child) p->malformed = true;
        if (p->malformed) continue;
        json_t *value = strict_value(p, text_schema_of_child(schema, child, strlen(child)), child);
        any = true;
        if (json_object_get(members, child)) p->marks = true; /* a member that comes twice is for another test */
        if (json_object_set(members, child, value) != 0) p->marks = true;
        json_array_append_new(items, value);
    }
    json_t *value;
    bool blank = strspn(text.data ? text.data : "", " \n\t\r") == text.length;
    if (any && !blank) p->marks = true; /* and so is text beside elements */
    if (!any)
        value = text_tool_value(schema, text.data ? text.data : "", text.length);
    else
        value = json_incref(text_schema_of_elements(schema) == TEXT_SCHEMA_ARRAY ? items : members);
    json_decref(members);
    json_decref(items);
    buffer_free(&text);
    if (!value) p->marks = true; /* not UTF-8: others lose the text, we say so in it */
    return value ? value : json_null();
}

/* The calls of the first block, or p->malformed. */
static json_t *strict_calls(strict *p, const json_t *offered)
{
    json_t *calls = json_array();
    char name[64];
    while (!p->malformed) {
        eat_space(p);
        if (eat(p, NS "</tool_call>")) break;
        if (!eat(p, NS "<invoke name=\"") || !strchr(p->at, '"')) return p->malformed = true, calls;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(p->at, "\""), p->at);
        p->at += strcspn(p->at, "\"");
        if (strstr(name, NS)) p->marks = true; /* no tag goes over a mark: ours ends there */
        if (!*name || strlen(name) > 60 || !eat(p, "\">")) return p->malformed = true, calls;
        json_t *arguments = json_object(), *schema = (json_t *)text_schema_of_tool(offered, name, strlen(name));
        for (;;) {
            char key[64];
            eat_space(p);
            if (p->malformed || eat(p, NS "</invoke>")) break;
            tag_name(p, NS "<", key);
            if (strstr(key, NS)) p->marks = true;
            if (!*key || strncmp(key, "invoke ", 7) == 0) p->malformed = true;
            if (p->malformed) break;
            json_t *value = strict_value(p, text_schema_of_child(schema, key, strlen(key)), key);
            if (json_object_set_new(arguments, key, value) != 0) p->marks = true;
        }
        json_t *call = json_pack("{s:s,s:o}", "name", name, "arguments", arguments);
        if (!call || json_array_append_new(calls, call) != 0) p->marks = true;
    }
    return calls;
}

/* ---- Checks
 * ---------------------------------------------------------------------------------------------------------- */

/* The calls of a log as [{"name", "arguments"}]. */
static json_t *calls_of(const answer_log *log)
{
    json_t *calls = json_array();
    const char *s = log->text.data ? log->text.data : "", *end = s + log->text.length, *name = NULL;
    while (s < end) {
        const char *from = ++s;
        char kind = from[-1];
        while (s < end && (*s < 1 || *s > 5)) s++;
        if (kind == 3) name = from;
        if (kind != 4) continue;
        json_t *arguments = json_loadb(from, (size_t)(s - from), JSON_ALLOW_NUL, NULL);
        json_array_append_new(calls,
                              json_pack("{s:s#,s:o}", "name", name, (int)(from - 1 - name), "arguments", arguments));
    }
    return calls;
}

/* Whether the first calls of `got` are these. */
static bool begins_with(const json_t *got, const json_t *want)
{
    size_t i;
    json_t *call;
    json_array_foreach(want, i, call) if (!json_equal(json_array_get(got, i), call)) return false;
    return true;
}

static void fail_calls(const made *m, const json_t *got, const json_t *want)
{
    char *g = json_dumps(got, 0), *w = json_dumps(want, 0), *t = json_dumps(m->tools, 0);
    fail_msg("%s\nof %s\ngot:  %s\nwant: %s", t, m->text.data, g, w);
}

static void test_generated(void **state)
{
    (void)state;
    uint64_t seed = 2024;
    size_t short_ones = 0, calls = 0;
    for (int i = 0; i < ANSWERS / 2; i++) {
        made m = make_answer(&seed);
        answer_log log = {0};
        buffer got = {0};
        answer_all_cuts(m.text.data ? m.text.data : "", m.text.length, &m.options, SHORT, &seed, 6, &log);
        answer_pick(&log, "\1", &got);
        assert_buffer(&got, m.reasoning.data ? m.reasoning.data : "", m.reasoning.length);
        buffer_free(&got);
        answer_pick(&log, "\2", &got);
        assert_buffer(&got, m.content.data ? m.content.data : "", m.content.length);
        buffer_free(&got);
        json_t *have = calls_of(&log);
        if (!json_equal(have, m.calls)) fail_calls(&m, have, m.calls);
        assert_int_equal(log.repairs + log.faults + log.cut, 0);
        short_ones += m.text.length <= SHORT, calls += json_array_size(m.calls);
        json_decref(have);
        answer_log_free(&log);
        made_free(&m);
    }
    assert_true(short_ones > ANSWERS / 10 && calls > ANSWERS / 4);
}

/* The same answer read whole: its calls are the first of ours; all of the block when it is in order. */
static void check_collector(const made *m, const char *content, const json_t *ours)
{
    text_tool_calls read;
    hy_error err = {0};
    hy_status s = text_tool_calls_read(content, strlen(content), m->tools, &read, &err);
    if (s) assert_int_equal(s, HY_BAD_INPUT);
    if (!begins_with(ours, read.calls)) fail_calls(m, ours, read.calls);
    text_tool_calls_free(&read);
}

/* How the rules of other servers read it, where they do. Returns whether they could be asked. */
static bool check_strict(const made *m, const char *content, const answer_log *log, const json_t *ours)
{
    const char *block = strstr(content, TEXT_TOOL_OPEN);
    strict p = {.at = block ? block + strlen(TEXT_TOOL_OPEN) : ""};
    json_t *calls = block ? strict_calls(&p, m->tools) : json_array();
    size_t before = block ? (size_t)(block - content) : strlen(content);
    const char *stray = strstr(content, NS);
    bool asked = !p.malformed && !p.marks && (!stray || stray == block);
    if (asked) {
        if (!begins_with(ours, calls)) fail_calls(m, ours, calls);
        if (!block) assert_int_equal(json_array_size(ours), 0);
        buffer got = {0};
        answer_pick(log, "\2", &got);
        /* A mark at the end of the text may be cut. */
        assert_true(got.length + sizeof NS >= before);
        assert_memory_equal(got.data, content, before < got.length ? before : got.length);
        buffer_free(&got);
    }
    json_decref(calls);
    return asked;
}

/* Whether a piece of content has a namespace mark. */
static bool shows_mark(const answer_log *log)
{
    const char *s = log->text.data ? log->text.data : "", *end = s + log->text.length, *mark = s;
    while (s < end && (mark = strstr(mark, NS))) {
        for (s = mark; *s < 1 || *s > 5; s--) continue;
        if (*s == 2) return true;
        mark++;
    }
    return false;
}

/* A mark within a mark: with the inner one left out the pieces of the other are one. That is not looked for. */
static bool nested_mark(const char *text)
{
    for (const char *mark = text; (mark = strstr(mark, NS)); mark++)
        for (size_t n = 1; n < sizeof NS - 1 && n <= (size_t)(mark - text); n++)
            if (memcmp(mark - n, NS, n) == 0) return true;
    return false;
}

static void test_damaged(void **state)
{
    (void)state;
    uint64_t seed = 77;
    size_t asked = 0, faults = 0, repairs = 0, cuts = 0, calls = 0;
    for (int i = 0; i < ANSWERS / 2; i++) {
        made m = make_answer(&seed);
        damage(&m.text, &seed);
        buffer_string(&m.text, "");
        const char *text = m.text.data ? m.text.data : "";
        answer_log log = {0};
        buffer content = {0}, reasoning = {0};
        answer_all_cuts(text, m.text.length, &m.options, SHORT, &seed, 6, &log);
        faults += log.faults > 0, repairs += log.repairs > 0, cuts += log.cut;
        json_t *ours = calls_of(&log);
        calls += json_array_size(ours);
        whole_reasoning(text, m.options.start, &reasoning, &content);
        buffer_string(&content, "");
        const char *rest = content.data ? content.data : "", *block = strstr(text, NS);
        /* Within a block we take markers of reasoning for text, on purpose. */
        bool late = m.options.start != TEXT_START_INSIDE && block && strstr(text, O) > block &&
                    strncmp(text, C, strlen(C)) != 0;
        if (!late) {
            buffer got = {0};
            answer_pick(&log, "\1", &got);
            assert_buffer(&got, reasoning.data ? reasoning.data : "", reasoning.length);
            buffer_free(&got);
            check_collector(&m, rest, ours);
            asked += check_strict(&m, rest, &log, ours);
        }
        if (shows_mark(&log) && !nested_mark(text)) fail_msg("%s", text);
        json_decref(ours);
        buffer_free(&content);
        buffer_free(&reasoning);
        answer_log_free(&log);
        made_free(&m);
    }
    /* The accidents are of every sort, and the rules of others could be asked often. */
    assert_true(asked > ANSWERS / 8 && faults > ANSWERS / 20 && repairs > ANSWERS / 50 && cuts > ANSWERS / 20);
    assert_true(calls > ANSWERS / 8);
}

/* A stream never falls silent: what follows an accident is seen. */
static void test_never_silent(void **state)
{
    (void)state;
    uint64_t seed = 4;
    size_t silent = 0;
    for (int i = 0; i < 2000; i++) {
        made m = make_answer(&seed);
        damage(&m.text, &seed);
        for (int k = 0; k < CALL_TEXT_LIMIT; k++) buffer_string(&m.text, "qqqq qqq");
        answer_log log = {.last = -1};
        text_answer *a = text_answer_open(&m.options);
        text_answer_feed(a, m.text.data, m.text.length, answer_take, &log);
        size_t seen = 0;
        for (size_t k = 0; k < log.text.length; k++) seen += log.text.data[k] == 'q';
        if (seen < 7 * CALL_TEXT_LIMIT - CALL_STRAY_LIMIT) silent++;
        text_answer_close(a);
        answer_log_free(&log);
        made_free(&m);
    }
    /* Two things wait for their end: a value whose opening tag is missing, and what begins like the JSON of a list or
     * an object. They are rare. */
    if (silent > 40) fail_msg("%zu of 2000", silent);
}

/* ---- Through the chat template and back
 * ------------------------------------------------------------------------------ */

/* What the template makes of an assistant turn with these calls, as the model would write it. */
static void render_calls(const json_t *calls, const json_t *tools_of, const char *reasoning, buffer *out)
{
    static const text_template m3 = {.kind = TEXT_TEMPLATE_MINIMAX_M3};
    json_t *messages = json_pack("[{s:s, s:s, s:s, s:O}]", "role", "assistant", "content", "Now.", "reasoning",
                                 reasoning, "tool_calls", calls);
    buffer text = {0};
    hy_error err = {0};
    assert_int_equal(text_template_render(&m3, messages, tools_of, NULL, &text, &err), HY_OK);
    const char *from = strstr(text.data, "]~b]ai\n<mm:think>");
    assert_non_null(from);
    from += strlen("]~b]ai\n");
    /* The turn ends with the last [e~[, and the prompt goes on with the next. */
    const char *end = text.data + text.length - strlen("[e~[\n]~b]ai\n");
    assert_memory_equal(end, "[e~[", 4);
    buffer_append(out, from, (size_t)(end - from));
    buffer_free(&text);
    json_decref(messages);
}

static void test_template_and_back(void **state)
{
    (void)state;
    uint64_t seed = 99;
    for (int i = 0; i < 2000; i++) {
        made m = make_answer(&seed);
        answer_log log = {0};
        buffer text = {0}, got = {0};
        while (!json_array_size(m.calls)) made_free(&m), m = make_answer(&seed);
        m.options.start = TEXT_START_OPEN;
        render_calls(m.calls, m.tools, "Why.", &text);
        answer_all_cuts(text.data, text.length, &m.options, 0, &seed, 1, &log);
        json_t *have = calls_of(&log);
        if (!json_equal(have, m.calls)) fail_calls(&m, have, m.calls);
        assert_int_equal(log.repairs + log.faults + log.cut, 0);
        answer_pick(&log, "\1\2", &got);
        assert_string_equal(got.data, "Why.Now.");
        json_decref(have);
        buffer_free(&text);
        buffer_free(&got);
        answer_log_free(&log);
        made_free(&m);
    }
}

/* What does not come back as it went, and what it comes back as: the format has no escapes and no types. */
static void test_not_invertible(void **state)
{
    (void)state;
    static const struct {
        const char *went, *came;
    } cases[] = {
        /* a string with its own end in it */
        {"{\"s\":\"a" NS "</s>b\"}", "f{\"s\":\"a\"}"},
        /* without a type, tags count */
        {"{\"any\":\"a" NS "b\"}", "f{\"any\":\"a\"}"},
        {"{\"any\":\"" E("x", "1") "\"}", "f{\"any\":{\"x\":\"1\"}}"},
        /* without a type, all is text and lists are objects */
        {"{\"any\":5}", "f{\"any\":\"5\"}"},
        {"{\"any\":[1,2]}", "f{\"any\":{\"item\":[\"1\",\"2\"]}}"},
        {"{\"any\":[]}", "f{\"any\":\"\"}"},
        /* null is not written, in a list as an empty item */
        {"{\"s\":null,\"i\":1}", "f{\"i\":1}"},
        {"{\"ls\":[null]}", "f{\"ls\":[\"\"]}"},
        {"{\"li\":[null]}", "f{\"li\":[\"\"]}"},
        /* a string that says null where null may be */
        {"{\"sn\":\"null\"}", "f{\"sn\":null}"},
        /* a string that reads as a value of a type that is allowed too */
        {"{\"z\":\"5\"}", "f{\"z\":5}"},
        /* names that make no tag */
        {"{\"\":\"a\"}", "f{}"},
        {"{\"a>b\":\"c\"}", "f{\"a\":\"b>c\"}"},
        {"{\"/a\":\"b\"}", "f{}"},
        {"{\"a" NS "b\":\"c\"}", "f{}"},
    };
    json_error_t e;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *value = json_loads(cases[i].went, 0, &e);
        json_t *calls = json_pack("[{s:s,s:o}]", "name", "f", "arguments", value);
        buffer text = {0};
        answer_log log = {0};
        text_answer_options options = options_of(TEXT_START_OPEN);
        uint64_t seed = 1;
        render_calls(calls, NULL, "Why.", &text);
        answer_all_cuts(text.data, text.length, &options, 0, &seed, 1, &log);
        check_picked(&log, "\3\4", cases[i].came, text.data);
        answer_log_free(&log);
        buffer_free(&text);
        json_decref(calls);
    }
}

/* ---- Work
 * ------------------------------------------------------------------------------------------------------------ */

static void count_bytes(void *user, text_part_kind kind, int call, const char *text, size_t length)
{
    (void)kind, (void)call, (void)text;
    *(size_t *)user += length;
}

/* A megabyte in pieces of three bytes, wherever text can stand and wait: were one of them gone over again with every
 * piece, this would not end. */
static void test_long_texts(void **state)
{
    (void)state;
    static const struct {
        const char *before, *line, *after;
    } places[] = {
        {"", "<x ]<]", ""},
        {O, "<x ]<]", C},
        {NS "<tool_call>" NS "<invoke name=\"f\">" NS "<s>", "x</s> ]<]\n", NS "</s>" NS "</invoke>" NS "</tool_call>"},
        {NS "<tool_call>" NS "<invoke name=\"f\">" NS "<s>" NS "</invoke>", " \n", "x"},
        {NS "<tool_call>" NS "<invoke name=\"f\">" NS "<s>", NS "</invoke>\n", "x"},
        {NS "<tool_call>" NS "<invoke name=\"f\">" NS "<s>", NS "<", NS "</s>"},
        {NS "<tool_call>" NS "<invoke name=\"f\">" NS "<any>", "x", NS "</any>"},
        {NS "<tool_call>" NS "<invoke name=\"f\">" NS "<any>", " ", NS "</any>"},
        {NS "<tool_call>" NS "<invoke name=\"f\">" NS "<li>[0", ",12345", "]" NS "</li>"},
        {NS "<tool_call>" NS "<invoke name=\"f\">" NS "<li>", E("i", "1"), NS "</li>"},
        {NS "<tool_call>" NS "<invoke name=\"f\">" NS "<o>", E("x", "1"), NS "</o>"},
        {NS "<tool_call>" NS "<invoke name=\"f\">", NS "4" NS "</i>", NS "</invoke>"},
        {NS "<tool_call>" NS "<invoke name=\"f\">" NS, "x ", NS "</s>"},
        {NS "<tool_call>" NS "<invoke name=\"f\">", "and ", NS "</invoke>"},
        {NS "<tool_call>", NS "<invoke name=\"\">>", ""},
        {NS "<tool_call>", NS "<x", ""},
        {NS "<tool_call>", INVOKE("f", ""), ""},
        {NS "<tool_call>" NS "</tool_call>", " \n", "x"},
    };
    text_answer_options options = options_of(TEXT_START_OPEN);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        buffer text = {0};
        size_t out = 0;
        buffer_string(&text, places[i].before);
        while (text.length < 1 << 20) buffer_string(&text, places[i].line);
        buffer_string(&text, places[i].after);
        text_answer *a = text_answer_open(&options);
        for (size_t at = 0; at < text.length; at += 3)
            text_answer_feed(a, text.data + at, text.length - at < 3 ? text.length - at : 3, count_bytes, &out);
        text_answer_finish(a, count_bytes, &out);
        assert_true(text_answer_ok(a) && out > 0);
        text_answer_close(a);
        buffer_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generated),      cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_never_silent),   cmocka_unit_test(test_template_and_back),
        cmocka_unit_test(test_not_invertible), cmocka_unit_test(test_long_texts),
    };
    return cmocka_run_group_tests(tests, answer_set_up, answer_tear_down);
}
