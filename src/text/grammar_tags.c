/*
 * structural_tag: free text in which given beginnings are followed by what their schema says. Two forms are in use:
 *
 *     {"structures": [{"begin", "schema", "end"}], "triggers": [...]}
 *     {"format": F}, F of "type" any_text, const_string, json_schema, regex, grammar, sequence, or, tag, triggered_tags
 *
 * Free text goes on until a trigger is complete; from there one of the structures that begin with it must follow.
 */
#include <stdlib.h>
#include <string.h>

#include "text/grammar_schema.h"

enum { NESTING = 32, TRIGGERS = 64 };

typedef struct tags {
    builder *b;
    const text_grammar_options *o;
    int depth;
} tags;

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* ---- Free text ------------------------------------------------------------------------------------------------ */

static fsm plain_fsm(builder *b, const buffer *pattern)
{
    fsm none = {0};
    if (!buffer_ok(pattern)) build_fail(b, HY_NO_FIT, "there is no memory for a structural tag");
    if (b->status != HY_OK) return none;
    return grammar_regex_fsm(b, pattern->data, pattern->length, (regex_use){.form = FORM_PLAIN});
}

static void quote(buffer *out, const char *text)
{
    for (; *text; text++) {
        if ((unsigned char)*text < 0x80 && strchr("\\^$.|?*+()[]{}/-", *text)) buffer_char(out, '\\');
        buffer_char(out, *text);
    }
}

/* Any text, then one of `stops` (all if `which` is below 0), none of them complete before; or, without `to_stop`, any
 * text without them. */
static int32_t put_text(tags *t, int32_t from, const char *const *stops, int count, int which, bool to_stop)
{
    builder *b = t->b;
    buffer at = {0}, before = {0};
    buffer_string(&at, "[\\s\\S]*");
    buffer_string(&before, "[\\s\\S]*(");
    for (int i = 0; i < count; i++) {
        if (i) buffer_char(&before, '|');
        quote(&before, stops[i]);
    }
    if (to_stop) quote(&at, stops[which]);
    buffer_string(&before, to_stop ? ")[\\s\\S]+" : ")[\\s\\S]*");
    fsm all = plain_fsm(b, &at), some = {0}, rest = {0};
    if (count) some = plain_fsm(b, &before), rest = fsm_without(b, &all, &some);
    int32_t to = fsm_put(b, from, count ? &rest : &all);
    fsm_free(&all), fsm_free(&some), fsm_free(&rest);
    buffer_free(&at);
    buffer_free(&before);
    return to;
}

/* ---- Formats -------------------------------------------------------------------------------------------------- */

static int32_t put_format(tags *t, const json_t *format, int32_t from, const char *until);

static int32_t put_schema(tags *t, const json_t *schema, int32_t from)
{
    int32_t rule = grammar_schema(t->b, schema ? schema : json_true(), t->o);
    return t->b->status == HY_OK ? build_call(t->b, from, rule) : from;
}

/* Content that stands before the text `until`, with it: free text ends at the first one. */
static int32_t put_until(tags *t, const json_t *content, int32_t from, const char *until)
{
    if (content && strcmp(text_of(content, "type"), "any_text") == 0 && *until)
        return put_text(t, from, &until, 1, 0, true);
    return build_string(t->b, content ? put_format(t, content, from, until) : from, until);
}

/* One tag behind the first `skip` bytes of its beginning. */
static int32_t put_tag(tags *t, const json_t *tag, size_t skip, int32_t from)
{
    const json_t *content = json_object_get(tag, "content"), *schema = json_object_get(tag, "schema");
    from = build_string(t->b, from, text_of(tag, "begin") + skip);
    if (!content) return build_string(t->b, put_schema(t, schema, from), text_of(tag, "end"));
    if (json_is_array(json_object_get(tag, "end")))
        build_fail(t->b, HY_BAD_INPUT, "structural_tag: several texts as `end` are not supported");
    return put_until(t, content, from, text_of(tag, "end"));
}

static int32_t put_triggered(tags *t, const json_t *triggers, const json_t *list, const json_t *options, int32_t from)
{
    builder *b = t->b;
    const char *stops[TRIGGERS];
    int count = 0;
    size_t i;
    json_t *one;
    json_array_foreach((json_t *)triggers, i, one)
    {
        if (!json_string_length(one) || count == TRIGGERS) {
            build_fail(b, HY_BAD_INPUT, "structural_tag: `triggers` are at most %d texts, none of them empty",
                       TRIGGERS);
            return from;
        }
        stops[count++] = json_string_value(one);
    }
    if (!count) {
        build_fail(b, HY_BAD_INPUT, "structural_tag: `triggers` must be a list of texts");
        return from;
    }
    int32_t loop = build_node(b), behind = build_node(b), to = build_node(b);
    build_join(b, from, loop);
    for (int k = 0; k < count && b->status == HY_OK; k++) {
        int32_t at = put_text(t, loop, stops, count, k, true);
        bool any = false;
        json_array_foreach((json_t *)list, i, one)
        {
            if (strncmp(text_of(one, "begin"), stops[k], strlen(stops[k])) != 0) continue;
            build_join(b, put_tag(t, one, strlen(stops[k]), at), behind);
            any = true;
        }
        if (!any) build_fail(b, HY_BAD_INPUT, "structural_tag: no tag begins with the trigger \"%.40s\"", stops[k]);
    }
    if (!json_is_true(json_object_get(options, "at_least_one")))
        build_join(b, put_text(t, loop, stops, count, 0, false), to);
    if (json_is_true(json_object_get(options, "stop_after_first"))) {
        build_join(b, behind, to);
    } else {
        build_join(b, put_text(t, behind, stops, count, 0, false), to);
        build_join(b, behind, loop);
    }
    return to;
}

static int32_t put_sequence(tags *t, const json_t *list, int32_t from, const char *until)
{
    size_t i, count = json_array_size(list);
    json_t *one;
    json_array_foreach((json_t *)list, i, one)
    {
        /* Free text that a fixed one follows ends at it. */
        const json_t *next = i + 1 < count ? json_array_get(list, i + 1) : NULL;
        const char *stop = next ? text_of(next, strcmp(text_of(next, "type"), "tag") == 0 ? "begin" : "value") : until;
        from = put_format(t, one, from, stop);
    }
    return from;
}

static int32_t put_choice(tags *t, const json_t *list, int32_t from, const char *until)
{
    int32_t to = build_node(t->b);
    size_t i;
    json_t *one;
    json_array_foreach((json_t *)list, i, one) build_join(t->b, put_format(t, one, from, until), to);
    return to;
}

static int32_t put_pattern(tags *t, const json_t *format, int32_t from)
{
    builder *b = t->b;
    const char *pattern = text_of(format, "pattern");
    int32_t rule = build_rule_add(b, "a pattern"), start;
    regex_use use = {.form = FORM_PLAIN, .where = "structural_tag"};
    int32_t end = grammar_regex(b, pattern, strlen(pattern), use, &start);
    if (b->status != HY_OK) return from;
    build_join(b, b->rule[rule].start, start);
    build_join(b, end, b->rule[rule].end);
    return build_call(b, from, rule);
}

static int32_t put_kind(tags *t, const json_t *format, int32_t from, const char *until)
{
    builder *b = t->b;
    const char *type = text_of(format, "type");
    if (strcmp(type, "const_string") == 0) return build_string(b, from, text_of(format, "value"));
    if (strcmp(type, "any_text") == 0) return put_text(t, from, &until, *until ? 1 : 0, 0, false);
    if (strcmp(type, "json_schema") == 0) return put_schema(t, json_object_get(format, "json_schema"), from);
    if (strcmp(type, "regex") == 0) return put_pattern(t, format, from);
    if (strcmp(type, "sequence") == 0) return put_sequence(t, json_object_get(format, "elements"), from, until);
    if (strcmp(type, "or") == 0) return put_choice(t, json_object_get(format, "elements"), from, until);
    if (strcmp(type, "tag") == 0) return put_tag(t, format, 0, from);
    if (strcmp(type, "triggered_tags") == 0)
        return put_triggered(t, json_object_get(format, "triggers"), json_object_get(format, "tags"), format, from);
    if (strcmp(type, "grammar") == 0) {
        const char *text = text_of(format, "grammar");
        int32_t rule = grammar_ebnf(b, text, strlen(text));
        return b->status == HY_OK ? build_call(b, from, rule) : from;
    }
    build_fail(b, HY_BAD_INPUT, "structural_tag: the format \"%.40s\" is not supported", type);
    return from;
}

static int32_t put_format(tags *t, const json_t *format, int32_t from, const char *until)
{
    if (t->b->status != HY_OK) return from;
    if (t->depth == NESTING) {
        build_fail(t->b, HY_NO_FIT, "structural_tag: formats are nested deeper than %d levels", NESTING);
        return from;
    }
    t->depth++;
    from = put_kind(t, format, from, until);
    t->depth--;
    return from;
}

int32_t grammar_tags(builder *b, const json_t *tag, const text_grammar_options *o)
{
    tags t = {.b = b, .o = o};
    int32_t root = build_rule_add(b, "the structural tag"), to = 0;
    if (b->status != HY_OK) return 0;
    const json_t *format = json_object_get(tag, "format"), *list = json_object_get(tag, "structures");
    int32_t from = b->rule[root].start;
    if (format)
        to = put_format(&t, format, from, "");
    else if (json_is_array(list))
        to = put_triggered(&t, json_object_get(tag, "triggers"), list, NULL, from);
    else
        build_fail(b, HY_BAD_INPUT, "structural_tag: it has neither `format` nor `structures`");
    if (b->status == HY_OK) build_join(b, to, b->rule[root].end);
    return root;
}
