/* Tests: what may stand behind "is". */
#include "text/jinja_parts.h"

#include "base/utf8.h"

#include <string.h>
#include <utf8proc.h>

static bool bare(jinja_run *r, const jinja_args *args)
{
    return jinja_bind(r, "this test", args, NULL, 0, 0, NULL);
}

static bool one(jinja_run *r, const jinja_args *args, jinja_value *out)
{
    static const char *const names[] = {"other"};
    return jinja_bind(r, "this test", args, names, 1, 1, out);
}

#define TEST(name, expression)                                                                                         \
    static bool name(jinja_run *r, const jinja_value *v, const jinja_args *args, bool *out)                            \
    {                                                                                                                  \
        *out = (expression);                                                                                           \
        return bare(r, args);                                                                                          \
    }

TEST(test_defined, v->type != JINJA_UNDEFINED)
TEST(test_undefined, v->type == JINJA_UNDEFINED)
TEST(test_none, v->type == JINJA_NONE)
TEST(test_boolean, v->type == JINJA_BOOL)
TEST(test_true, v->type == JINJA_BOOL && v->truth)
TEST(test_false, v->type == JINJA_BOOL && !v->truth)
TEST(test_integer, v->type == JINJA_INT)
TEST(test_float, v->type == JINJA_FLOAT)
TEST(test_number, jinja_is_number(v))
TEST(test_string, v->type == JINJA_STRING)
TEST(test_mapping, v->type == JINJA_DICT)
TEST(test_iterable, v->type == JINJA_LIST || v->type == JINJA_DICT || v->type == JINJA_STRING ||
                        v->type == JINJA_UNDEFINED || v->type == JINJA_LOOP)
TEST(test_sequence,
     jinja_is_plain_list(v) || v->type == JINJA_DICT || v->type == JINJA_STRING || v->type == JINJA_UNDEFINED)
TEST(test_callable, v->type == JINJA_MACRO || v->type == JINJA_FUNCTION || v->type == JINJA_METHOD ||
                        v->type == JINJA_LOOP || v->type == JINJA_UNDEFINED)
TEST(test_escaped, v->type == JINJA_MISSING) /* never: autoescape is off */

static bool whole(jinja_run *r, const jinja_value *v, int64_t *out)
{
    return jinja_want_int(r, v, 0, out);
}

static bool test_odd(jinja_run *r, const jinja_value *v, const jinja_args *args, bool *out)
{
    int64_t n;
    if (!bare(r, args) || !whole(r, v, &n)) return false;
    *out = n % 2 != 0;
    return true;
}

static bool test_even(jinja_run *r, const jinja_value *v, const jinja_args *args, bool *out)
{
    int64_t n;
    if (!bare(r, args) || !whole(r, v, &n)) return false;
    *out = n % 2 == 0;
    return true;
}

static bool test_divisible(jinja_run *r, const jinja_value *v, const jinja_args *args, bool *out)
{
    jinja_value other;
    int64_t n, by;
    if (!one(r, args, &other) || !whole(r, v, &n) || !whole(r, &other, &by)) return false;
    if (!by) return jinja_fail(r, HY_BAD_INPUT, "division by zero");
    *out = by == -1 || n % by == 0;
    return true;
}

/* Whether there are letters, and all of them are small (or capital). */
static bool all_case(jinja_run *r, const jinja_value *v, bool small, bool *out)
{
    jinja_value text;
    bool cased = false;
    if (!jinja_text(r, v, &text)) return false;
    *out = true;
    for (size_t at = 0, n; at < text.length; at += n) {
        uint32_t c = 0;
        if (!(n = utf8_decode(text.text + at, text.length - at, &c))) n = 1;
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
        bool up = k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LT, low = k == UTF8PROC_CATEGORY_LL;
        cased |= up || low;
        if (small ? up : low) *out = false;
    }
    *out = *out && cased;
    return jinja_work(r, text.length / 4);
}

static bool test_lower(jinja_run *r, const jinja_value *v, const jinja_args *args, bool *out)
{
    return bare(r, args) && all_case(r, v, true, out);
}

static bool test_upper(jinja_run *r, const jinja_value *v, const jinja_args *args, bool *out)
{
    return bare(r, args) && all_case(r, v, false, out);
}

#define COMPARISON(name, op)                                                                                           \
    static bool name(jinja_run *r, const jinja_value *v, const jinja_args *args, bool *out)                            \
    {                                                                                                                  \
        jinja_value other;                                                                                             \
        return one(r, args, &other) && jinja_compare(r, op, v, &other, out);                                           \
    }

COMPARISON(test_eq, JINJA_EQ)
COMPARISON(test_ne, JINJA_NE)
COMPARISON(test_lt, JINJA_LT)
COMPARISON(test_le, JINJA_LE)
COMPARISON(test_gt, JINJA_GT)
COMPARISON(test_ge, JINJA_GE)
COMPARISON(test_in, JINJA_IN)

static bool test_same(jinja_run *r, const jinja_value *v, const jinja_args *args, bool *out)
{
    jinja_value other;
    if (!one(r, args, &other)) return false;
    *out = v->type == other.type;
    if (*out && (v->type == JINJA_LIST || v->type == JINJA_DICT || v->type == JINJA_NAMESPACE)) {
        *out = v->list == other.list;
        return true;
    }
    return !*out || jinja_equal(r, v, &other, out);
}

static bool names_one(jinja_run *r, const jinja_value *v, bool filter, bool *out)
{
    jinja_value name;
    if (!jinja_text(r, v, &name) || !jinja_copy(r, name.text, name.length, &name)) return false;
    *out = filter ? jinja_find_filter(name.text) != NULL : jinja_find_test(name.text) != NULL;
    return true;
}

static bool test_filter(jinja_run *r, const jinja_value *v, const jinja_args *args, bool *out)
{
    return bare(r, args) && names_one(r, v, true, out);
}

static bool test_test(jinja_run *r, const jinja_value *v, const jinja_args *args, bool *out)
{
    return bare(r, args) && names_one(r, v, false, out);
}

static const jinja_test tests[] = {
    {"!=", test_ne},
    {"<", test_lt},
    {"<=", test_le},
    {"==", test_eq},
    {">", test_gt},
    {">=", test_ge},
    {"boolean", test_boolean},
    {"callable", test_callable},
    {"defined", test_defined},
    {"divisibleby", test_divisible},
    {"eq", test_eq},
    {"equalto", test_eq},
    {"escaped", test_escaped},
    {"even", test_even},
    {"false", test_false},
    {"filter", test_filter},
    {"float", test_float},
    {"ge", test_ge},
    {"greaterthan", test_gt},
    {"gt", test_gt},
    {"in", test_in},
    {"integer", test_integer},
    {"iterable", test_iterable},
    {"le", test_le},
    {"lessthan", test_lt},
    {"lower", test_lower},
    {"lt", test_lt},
    {"mapping", test_mapping},
    {"ne", test_ne},
    {"none", test_none},
    {"number", test_number},
    {"odd", test_odd},
    {"sameas", test_same},
    {"sequence", test_sequence},
    {"string", test_string},
    {"test", test_test},
    {"true", test_true},
    {"undefined", test_undefined},
    {"upper", test_upper},
};

const jinja_test *jinja_find_test(const char *name)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strcmp(tests[i].name, name) == 0) return &tests[i];
    return NULL;
}
