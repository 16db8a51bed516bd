/* The language of chat templates: every part of it against what jinja2 makes (tests/data/text/make_jinja_cases.py), errors with
 * their lines, limits, and templates that want to take all there is. */
#include "text_helpers.h"

#include "text/jinja.h"

static jinja *compiled(const char *text, size_t length)
{
    jinja *t = NULL;
    hy_error err = {0};
    if (jinja_compile(text, length, "t", &t, &err)) fail_msg("%s: %s", text, err.message);
    return t;
}

static void check_case(const json_t *c, const json_t *context, int64_t now)
{
    const char *text = json_string_value(json_object_get(c, "template")), *result = json_string_value(json_object_get(c, "result"));
    const json_t *want = json_object_get(c, "text");
    size_t length = json_string_length(json_object_get(c, "template"));
    jinja *t = NULL;
    hy_error err = {0};
    buffer out = {0};
    jinja_limits limits = {.now = now};
    hy_status s = jinja_compile(text, length, "t", &t, &err);
    if (strcmp(result, "syntax") == 0 ? s != HY_BAD_MODEL : s != HY_OK) fail_msg("%s: %s, but %s: %s", text, result, hy_status_name(s), err.message);
    if (s) {
        assert_one_line(&err);
        return;
    }
    s = jinja_render(t, context, &limits, &out, &err);
    if (strcmp(result, "text") == 0) {
        if (s) fail_msg("%s: %s", text, err.message);
        if (out.length != json_string_length(want) || memcmp(out.data ? out.data : "", json_string_value(want), out.length) != 0)
            fail_msg("%s gives \"%.*s\", want \"%s\"", text, (int)out.length, out.data ? out.data : "", json_string_value(want));
    } else {
        if (!s) fail_msg("%s gives \"%s\", want an error", text, out.data ? out.data : "");
        if (strcmp(result, "raised") == 0) assert_string_equal(err.message, json_string_value(want));
        for (const char *p = err.message; *p; p++) assert_true((unsigned char)*p >= 0x20);
        assert_true(*err.message);
    }
    buffer_free(&out);
    jinja_free(t);
}

static void test_cases(void **state)
{
    (void)state;
    json_t *all = load_data("jinja_cases.json"), *c;
    size_t i;
    setenv("TZ", "UTC", 1);
    json_array_foreach(json_object_get(all, "cases"), i, c)
    {
        check_case(c, json_object_get(all, "context"), json_integer_value(json_object_get(all, "now")));
    }
    assert_true(i > 450);
    json_decref(all);
}

static void refuses(const char *text, const char *want)
{
    jinja *t = NULL;
    hy_error err = {0};
    buffer out = {0};
    hy_status s = jinja_compile(text, strlen(text), "name.jinja", &t, &err);
    if (!s) s = jinja_render(t, NULL, NULL, &out, &err);
    assert_int_not_equal(s, HY_OK);
    if (!strstr(err.message, want)) fail_msg("%s: \"%s\", want \"%s\"", text, err.message, want);
    buffer_free(&out);
    jinja_free(t);
}

static void renders(const char *text, const char *want)
{
    jinja *t = NULL;
    hy_error err = {0};
    buffer out = {0};
    hy_status s = jinja_compile(text, strlen(text), "name.jinja", &t, &err);
    if (!s) s = jinja_render(t, NULL, NULL, &out, &err);
    if (s) fail_msg("%s: %s", text, err.message);
    assert_string_equal(out.data, want);
    buffer_free(&out);
    jinja_free(t);
}

/* FNV-1a, folded: as the index of a dict has it. */
static uint64_t slot_of(const char *s)
{
    uint64_t h = 14695981039346656037u;
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 1099511628211u;
    return h ^ h >> 29;
}

/* Renders "{{ d.x }}" with a dict of 4000 keys, all of which would begin within the first `slots` of 8192 places. */
static hy_status with_keys(uint64_t slots, hy_error *err)
{
    jinja *t = NULL;
    buffer out = {0};
    json_t *d = json_object(), *context = json_pack("{s:o}", "d", d);
    for (int i = 0; json_object_size(d) < 4000; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        if (slot_of(key) % 8192 < slots) json_object_set_new(d, key, json_null());
    }
    jinja_limits limits = {.steps = 100000};
    assert_int_equal(jinja_compile("{{ d.x }}", 9, "name.jinja", &t, err), HY_OK);
    hy_status s = jinja_render(t, context, &limits, &out, err);
    buffer_free(&out);
    json_decref(context);
    jinja_free(t);
    return s;
}

static void test_keys_that_fall_together(void **state)
{
    (void)state;
    hy_error err = {0};
    assert_int_equal(with_keys(8192, &err), HY_OK);
    assert_int_equal(with_keys(64, &err), HY_NO_FIT);
    assert_non_null(strstr(err.message, "more steps"));
}

/* Looking from the right for what begins and ends like everything and is nowhere. */
static void test_hostile_search_from_the_right(void **state)
{
    (void)state;
    static const char *const asks[] = {"{{ text.rfind(part) }}", "{{ text.rsplit(part)|length }}", "{{ text.rpartition(part)[0] }}"};
    enum { TEXT = 400000, PART = 100000 };
    char *text = malloc(TEXT + 1), *part = malloc(PART + 1);
    assert_true(text && part);
    memset(text, 'a', TEXT), memset(part, 'a', PART);
    text[TEXT] = part[PART] = 0, part[PART / 2] = 'b', text[7] = 'b';
    json_t *context = json_pack("{s:s, s:s}", "text", text, "part", part);
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        jinja *t = NULL;
        buffer out = {0};
        hy_error err = {0};
        assert_int_equal(jinja_compile(asks[i], strlen(asks[i]), "name.jinja", &t, &err), HY_OK);
        hy_status s = jinja_render(t, context, &(jinja_limits){.steps = 10000000}, &out, &err);
        if (i != 1) assert_int_equal(s, HY_NO_FIT); /* where nothing is found, rsplit does not look from the right */
        if (s) assert_non_null(strstr(err.message, "more steps"));
        buffer_free(&out);
        jinja_free(t);
    }
    json_decref(context);
    free(text), free(part);
}

static void test_whole_numbers_at_their_end(void **state)
{
    (void)state;
    refuses("{{ 9223372036854775807|round(-19) }}", "outside of 64 bits");
    refuses("{{ (-9223372036854775807 - 1)|abs }}", "abs: a whole number is outside of 64 bits");
    static const char *const large[] = {"'9' * 400", "'-' ~ '9' * 400", "'9223372036854775808'", "' -9223372036854775809 '", "1e300", "-1e19",
                                        "'1e300'", "'1_' * 40 ~ '1'", "9223372036854775808.0"};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        char text[80];
        snprintf(text, sizeof text, "{{ (%s)|int }}", large[i]);
        refuses(text, "int: a whole number is outside of 64 bits");
    }
    refuses("{{ ('f' * 100)|int(0, 16) }}", "outside of 64 bits");
    refuses("{{ ('0x' ~ 'f' * 100)|int(0, 16) }}", "outside of 64 bits");
    refuses("{{ ('-0x' ~ 'f' * 100)|int(0, 0) }}", "outside of 64 bits");
    refuses("{{ ('0b' ~ '1' * 100)|int(0, 2) }}", "outside of 64 bits");
    refuses("{{ ('1' * 64)|int(0, 2) }}", "outside of 64 bits");
    renders("{{ ('0' * 400 ~ '7')|int }} {{ ('-' ~ '0' * 90 ~ '12')|int }} {{ ('x' * 400)|int(3) }} {{ ('9' * 400 ~ 'x')|int }} {{ ('x' ~ '9' * 400)|int }} "
            "{{ ('0x' ~ '9' * 400)|int }}", "7 -12 3 0 0 0");
    renders("{{ '-9223372036854775808'|int }} {{ '9223372036854775807'|int }} {{ 'inf'|int }} {{ '0'|int }} {{ '00'|int }} {{ '-0'|int }} "
            "{{ '0x1f'|int(base=16) }} {{ '0b101'|int(base=2) }} {{ '0x'|int(8) }} {{ ''|int(9) }} {{ '4.7'|int }} {{ '0_1'|int }}",
            "-9223372036854775808 9223372036854775807 0 0 0 0 31 5 8 9 4 1");
    refuses("{% if 'abcdefghijkl'|truncate(9223372036854775807) == 'abcdefghijkl' %}{{ whole.x }}{% endif %}", "'whole' is undefined");
}

static void test_lines(void **state)
{
    (void)state;
    refuses("a\n{{ 1 }}\n{{ x.y }}", "name.jinja:3: 'x' is undefined");
    refuses("{#\n\n#}{% if 1 %}\n", "name.jinja:3: 'endif' is missing");
    refuses("\n\n{% include 'x' %}", "name.jinja:3: the tag 'include' is not supported");
    refuses("{{\n1 | nothing }}", "name.jinja:2: there is no filter \"nothing\"");
    refuses("{% macro m() %}\n{{ [] + 1 }}{% endmacro %}\n{{ m() }}", "name.jinja:2: unsupported operand");
    refuses("{{ f(*x) }}", "* and ** in calls are not supported");
    refuses("{{ 9223372036854775807 + 1 }}", "outside of 64 bits");
    refuses("{{ '\xFF' }}", "not UTF-8");
    refuses("{{ raise_exception('two\nlines') }}", "two lines");
}

/* Each ends with a limit and not with the memory or the patience of the machine. */
static void test_hostile(void **state)
{
    (void)state;
    static const char *const templates[] = {
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{{ f(n + 1) ~ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}{% endfor %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(1000) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(1000) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(1000) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l | tojson }}",
        "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% set ns.m = [ns.m] %}{% endfor %}{{ ns.l == ns.m }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
        "{% for i in range(100000) %}{{ 'x' * 100000 }}{% endfor %}",
        "{{ 'x' * 9999999999999 }}",
        "{{ [1] * 9999999999999 }}",
        "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
        "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
        "{{ range(100000) | join('x' * 100000) }}",
        "{{ ('a\n' * 100000) | indent(1000) }}",
        "{{ range(1000000) }}",
        "{% for a in range(100000) %}{% set x = range(100000) | sort %}{% endfor %}",
        "{% for a in range(100000) %}{{ 'x' in 'y' * 100000 }}{% endfor %}",
        "{{ '%99999s' % 'x' * 100000 }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% set x %}{% for a in range(100000) %}{% for b in range(1000) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}{% endset %}",
        "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}",
        "{% for a in range(100000) %}{% for k in ('a b ' * 100000).split() %}{% endfor %}{% endfor %}",
    };
    jinja_limits limits = {.output_bytes = 4 << 20, .memory_bytes = 64 << 20, .steps = 2000000};
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        jinja *t = compiled(templates[i], strlen(templates[i]));
        buffer out = {0};
        hy_error err = {0};
        hy_status s = jinja_render(t, NULL, &limits, &out, &err);
        if (s != HY_NO_FIT) fail_msg("%s: %s %s", templates[i], hy_status_name(s), err.message);
        assert_one_line(&err);
        assert_true(out.length < 5 << 20);
        buffer_free(&out);
        jinja_free(t);
    }
}

/* A text, a piece many times, a text: nesting that ends with an error. */
static void nested(const char *before, const char *piece, size_t count, const char *after)
{
    buffer text = {0};
    jinja *t = NULL;
    hy_error err = {0};
    buffer_string(&text, before);
    for (size_t i = 0; i < count; i++) buffer_string(&text, piece);
    buffer_string(&text, after);
    hy_status s = jinja_compile(text.data, text.length, "t", &t, &err);
    buffer out = {0};
    jinja_limits limits = {.steps = 10000000};
    if (!s) s = jinja_render(t, NULL, &limits, &out, &err);
    if (s) assert_one_line(&err);
    buffer_free(&out);
    buffer_free(&text);
    jinja_free(t);
}

static void test_nesting(void **state)
{
    (void)state;
    nested("{{ ", "(", 100000, "1");
    nested("{{ ", "[", 100000, "1");
    nested("{{ ", "{'a':", 100000, "1");
    nested("{{ ", "not ", 100000, "1 }}");
    nested("{{ ", "- ", 100000, "1 }}");
    nested("{{ 1", " + 1", 100000, " }}");
    nested("{{ 1", " ~ 1", 100000, " }}");
    nested("{{ 1", " < 1", 100000, " }}");
    nested("{{ x", ".x", 100000, " }}");
    nested("{{ x", "[0]", 100000, " }}");
    nested("{{ x", "(0)", 100000, " }}");
    nested("{{ 'x'", "|trim", 100000, " }}");
    nested("{{ x", " if x else x", 100000, " }}");
    nested("{{ x", " and x", 100000, " }}");
    nested("{% if x %}", "{% elif x %}", 100000, "{% endif %}");
    nested("", "{% if x %}", 100000, "");
    nested("", "{% for x in y %}", 100000, "");
    nested("", "{% macro m() %}", 100000, "");
    nested("{% set x = [", "1,", 100000, "] %}");
    nested("{{ f(", "x=1,", 100000, ") }}");
    nested("", "{{ x }}", 100000, "");
    nested("{% for (", "(", 100000, "x");
}

static void test_limits(void **state)
{
    (void)state;
    jinja *t = compiled("{{ 'x' * 100 }}", strlen("{{ 'x' * 100 }}"));
    buffer out = {0};
    hy_error err = {0};
    buffer_string(&out, "before");
    assert_int_equal(jinja_render(t, NULL, &(jinja_limits){.output_bytes = 100}, &out, &err), HY_OK);
    assert_int_equal(out.length, 106);
    assert_int_equal(jinja_render(t, NULL, &(jinja_limits){.output_bytes = 99}, &out, &err), HY_NO_FIT);
    assert_int_equal(jinja_render(t, NULL, &(jinja_limits){.steps = 3}, &out, &err), HY_NO_FIT);
    assert_int_equal(jinja_render(t, NULL, &(jinja_limits){.memory_bytes = 64}, &out, &err), HY_NO_FIT);
    jinja_free(t);
    static const char deep[] = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(9) }}";
    t = compiled(deep, sizeof deep - 1);
    assert_int_equal(jinja_render(t, NULL, &(jinja_limits){.depth = 10}, &out, &err), HY_OK);
    assert_int_equal(jinja_render(t, NULL, &(jinja_limits){.depth = 9}, &out, &err), HY_NO_FIT);
    jinja_free(t);
    buffer_free(&out);
}

/* A text that grows turn by turn costs its length: 20,000 turns of 50 bytes within a few MB. */
static void test_growing_text(void **state)
{
    (void)state;
    static const char text[] = "{% set ns = namespace(s='') %}{% for i in range(20000) %}{% set ns.s = ns.s ~ 'x' * 40 ~ loop.index %}"
                               "{% endfor %}{{ ns.s | length }}";
    jinja *t = compiled(text, sizeof text - 1);
    buffer out = {0};
    hy_error err = {0};
    jinja_limits limits = {.memory_bytes = 48 << 20};
    if (jinja_render(t, NULL, &limits, &out, &err)) fail_msg("%s", err.message);
    assert_string_equal(out.data, "888894");
    buffer_free(&out);
    jinja_free(t);
}

static void test_questions(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool parts;
    } loops[] = {
        {"{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}", true},
        {"{% for m in messages[1:] %}{% if x %}{% for p in m['content'] | list %}{% endfor %}{% endif %}{% endfor %}", true},
        {"{% set l = messages %}{% set k = l[1:] %}{% for m in k %}{% for p in m.content %}{% endfor %}{% endfor %}", true},
        {"{% for m in messages %}{{ m.content }}{% for p in m.tool_calls %}{% endfor %}{% endfor %}", false},
        {"{% for m in other %}{% for p in m.content %}{% endfor %}{% endfor %}", false},
        {"{% for p in messages.content %}{% endfor %}", false},
    };
    for (size_t i = 0; i < sizeof loops / sizeof *loops; i++) {
        jinja *t = compiled(loops[i].text, strlen(loops[i].text));
        if (jinja_reads_parts(t) != loops[i].parts) fail_msg("%s", loops[i].text);
        jinja_free(t);
    }
    static const char text[] = "{% set a = b.c(d=e) | default(g) if x is in h %}{% for i in j %}{% endfor %}";
    jinja *t = compiled(text, sizeof text - 1);
    static const char *const read[] = {"a", "b", "e", "g", "x", "h", "i", "j"}, *const not[] = {"c", "d", "default", "in", "zz"};
    for (size_t i = 0; i < 8; i++) assert_true(jinja_mentions(t, read[i]));
    for (size_t i = 0; i < 5; i++) assert_false(jinja_mentions(t, not[i]));
    assert_true(jinja_tests(t, "in"));
    assert_false(jinja_tests(t, "string"));
    jinja_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),   cmocka_unit_test(test_lines), cmocka_unit_test(test_keys_that_fall_together),
        cmocka_unit_test(test_hostile_search_from_the_right),
                                       cmocka_unit_test(test_whole_numbers_at_their_end),  cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_nesting), cmocka_unit_test(test_limits), cmocka_unit_test(test_growing_text),
        cmocka_unit_test(test_questions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
