/* Methods of strings, dicts and lists, as far as they only look. Those that change things are forbidden by name. */
#define _GNU_SOURCE /* memmem */
#include "text/jinja_parts.h"

#include "base/utf8.h"

#include <string.h>
#include <utf8proc.h>

typedef bool (*method_fn)(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out);
typedef struct method {
    const char *name;
    method_fn run; /* NULL: forbidden */
} method;

static bool plain(jinja_run *r, const char *what, const jinja_args *args, size_t count, size_t required,
                  jinja_value *slots)
{
    static const char *const names[] = {"1", "2", "3", "4"};
    return jinja_bind(r, what, args, names, count, required, slots);
}

/* ---- Strings: edges -------------------------------------------------------------------------------------------- */

static bool strip(jinja_run *r, const jinja_value *of, const jinja_args *args, bool left, bool right, jinja_value *out)
{
    jinja_value chars;
    if (!plain(r, "strip", args, 1, 0, &chars)) return false;
    bool given = chars.type && chars.type != JINJA_NONE;
    if (given && !jinja_want_string(r, &chars, "strip", &chars)) return false;
    const char *s = of->text;
    size_t length = of->length;
    jinja_strip(&s, &length, given ? &chars : NULL, left, right);
    *out = jinja_string(s, length);
    out->markup = of->markup;
    return jinja_work(r, (of->length - length) / 4);
}

static bool do_strip(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return strip(r, of, args, true, true, out);
}

static bool do_lstrip(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return strip(r, of, args, true, false, out);
}

static bool do_rstrip(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return strip(r, of, args, false, true, out);
}

static bool at_edge(const jinja_value *s, const jinja_value *part, bool end)
{
    if (part->type != JINJA_STRING || part->length > s->length) return false;
    return memcmp(end ? s->text + s->length - part->length : s->text, part->text, part->length) == 0;
}

/* The part of a string from start to stop, in characters as slices count them. */
static bool cut(jinja_run *r, const jinja_value *s, const jinja_value *start, const jinja_value *stop, jinja_value *out)
{
    int64_t count = (int64_t)jinja_characters(s->text, s->length), from = 0, to = count;
    if (start->type && start->type != JINJA_NONE && !jinja_want_int(r, start, 0, &from)) return false;
    if (stop->type && stop->type != JINJA_NONE && !jinja_want_int(r, stop, count, &to)) return false;
    if (from < 0) from = from + count < 0 ? 0 : from + count;
    if (to < 0) to = to + count < 0 ? 0 : to + count;
    if (to > count) to = count;
    *out = (jinja_value){.type = JINJA_UNDEFINED};
    if (from > count || from > to) return true;
    const char *a = jinja_at_character(s->text, s->length, (size_t)from);
    const char *b = jinja_at_character(a, s->length - (size_t)(a - s->text), (size_t)(to - from));
    *out = jinja_string(a, (size_t)(b - a));
    return jinja_work(r, s->length / 16);
}

static bool edge(jinja_run *r, const jinja_value *of, const jinja_args *args, bool end, jinja_value *out)
{
    jinja_value slots[3], part = *of;
    bool yes = false;
    if (!plain(r, end ? "endswith" : "startswith", args, 3, 1, slots)) return false;
    if ((slots[1].type || slots[2].type) && !cut(r, of, &slots[1], &slots[2], &part)) return false;
    bool several = slots[0].type == JINJA_LIST && slots[0].list->style == JINJA_TUPLE;
    if (slots[0].type == JINJA_UNDEFINED) return jinja_fail_undefined(r, &slots[0]);
    if (!several && slots[0].type != JINJA_STRING)
        return jinja_fail(r, HY_BAD_INPUT, "%s first arg must be str or a tuple of str, not %s",
                          end ? "endswith" : "startswith", jinja_type_name(&slots[0]));
    if (part.type == JINJA_STRING && several)
        for (size_t i = 0; i < slots[0].list->count; i++) yes |= at_edge(&part, &slots[0].list->items[i], end);
    else if (part.type == JINJA_STRING)
        yes = at_edge(&part, &slots[0], end);
    *out = jinja_bool(yes);
    return true;
}

static bool do_startswith(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return edge(r, of, args, false, out);
}

static bool do_endswith(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return edge(r, of, args, true, out);
}

static bool remove_edge(jinja_run *r, const jinja_value *of, const jinja_args *args, bool end, jinja_value *out)
{
    jinja_value part;
    if (!plain(r, "removeprefix", args, 1, 1, &part) || !jinja_want_string(r, &part, "removeprefix", &part))
        return false;
    *out = *of;
    if (at_edge(of, &part, end)) *out = jinja_string(of->text + (end ? 0 : part.length), of->length - part.length);
    return true;
}

static bool do_removeprefix(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return remove_edge(r, of, args, false, out);
}

static bool do_removesuffix(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return remove_edge(r, of, args, true, out);
}

/* ---- Strings: splitting ---------------------------------------------------------------------------------------- */

static void put(const jinja_value *list, const char *s, size_t length)
{
    list->list->items[list->list->count++] = jinja_string(s, length);
}

/* memmem() from the right. Where both ends fit, whoever chooses the texts can make the comparison a long one: that
 * counts as work, and without steps left nothing is found. */
static const char *find_last(jinja_run *r, const char *s, size_t length, const jinja_value *what)
{
    size_t n = what->length;
    if (!n) return s + length;
    for (size_t at = length; at >= n; at--) {
        const char *here = s + at - n;
        if (here[n - 1] != what->text[n - 1] || *here != *what->text) continue;
        if (memcmp(here, what->text, n) == 0) return here;
        if (n > 2 && !jinja_work(r, n / 64 + 1)) break;
    }
    return NULL;
}

static size_t occurrences(const jinja_value *s, const jinja_value *what)
{
    size_t count = 0;
    const char *at = s->text, *end = s->text + s->length, *found;
    for (; (found = memmem(at, (size_t)(end - at), what->text, what->length)); at = found + what->length) count++;
    return count;
}

static size_t space_bytes(const char *s, size_t length)
{
    uint32_t code;
    size_t n = length ? utf8_decode(s, length, &code) : 0;
    return n && jinja_is_space(code) ? n : 0;
}

/* At runs of white space, from the left. */
static bool split_words(jinja_run *r, const jinja_value *of, int64_t most, jinja_value *out)
{
    const char *s = of->text;
    size_t left = of->length, n;
    if (!jinja_list_make(r, of->length / 2 + 1, JINJA_PLAIN, out)) return false;
    for (;; most--) {
        jinja_strip(&s, &left, NULL, true, false);
        if (!left) break;
        if (most == 0) {
            jinja_strip(&s, &left, NULL, false, true);
            put(out, s, left);
            break;
        }
        const char *start = s;
        while (left && !space_bytes(s, left)) n = jinja_character_bytes(s, left), s += n, left -= n;
        put(out, start, (size_t)(s - start));
    }
    return jinja_work(r, of->length / 4);
}

static void reverse(jinja_list *l)
{
    for (size_t i = 0; i < l->count / 2; i++) {
        jinja_value v = l->items[i];
        l->items[i] = l->items[l->count - 1 - i];
        l->items[l->count - 1 - i] = v;
    }
}

/* The same from the right. */
static bool split_words_back(jinja_run *r, const jinja_value *of, int64_t most, jinja_value *out)
{
    const char *s = of->text;
    size_t left = of->length;
    if (!jinja_list_make(r, of->length / 2 + 1, JINJA_PLAIN, out)) return false;
    for (;; most--) {
        jinja_strip(&s, &left, NULL, false, true);
        if (!left) break;
        if (most == 0) {
            jinja_strip(&s, &left, NULL, true, false);
            put(out, s, left);
            break;
        }
        size_t start = left;
        for (size_t n; start; start -= n) {
            n = 1;
            while (n < start && ((unsigned char)s[start - n] & 0xC0) == 0x80) n++;
            if (space_bytes(s + start - n, n)) break;
        }
        put(out, s + start, left - start);
        left = start;
    }
    reverse(out->list);
    return jinja_work(r, of->length / 4);
}

static bool split_at(jinja_run *r, const jinja_value *of, const jinja_value *by, int64_t most, bool back,
                     jinja_value *out)
{
    if (!by->length) return jinja_fail(r, HY_BAD_INPUT, "empty separator");
    size_t count = occurrences(of, by);
    if (most >= 0 && count > (size_t)most) count = (size_t)most;
    if (!jinja_list_make(r, count + 1, JINJA_PLAIN, out)) return false;
    const char *s = of->text;
    size_t left = of->length;
    for (; count; count--) {
        const char *found = back ? find_last(r, s, left, by) : memmem(s, left, by->text, by->length);
        if (!found) break;
        if (back) {
            put(out, found + by->length, left - (size_t)(found - s) - by->length);
            left = (size_t)(found - s);
        } else {
            put(out, s, (size_t)(found - s));
            left -= (size_t)(found - s) + by->length;
            s = found + by->length;
        }
    }
    put(out, s, left);
    if (back) reverse(out->list);
    return jinja_work(r, of->length / 8);
}

static bool split(jinja_run *r, const jinja_value *of, const jinja_args *args, bool back, jinja_value *out)
{
    static const char *const names[] = {"sep", "maxsplit"};
    jinja_value slots[2];
    int64_t most;
    if (!jinja_bind(r, "split", args, names, 2, 0, slots) || !jinja_want_int(r, &slots[1], -1, &most)) return false;
    if (!slots[0].type || slots[0].type == JINJA_NONE)
        return back ? split_words_back(r, of, most, out) : split_words(r, of, most, out);
    return jinja_want_string(r, &slots[0], "split", &slots[0]) && split_at(r, of, &slots[0], most, back, out);
}

static bool do_split(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return split(r, of, args, false, out);
}

static bool do_rsplit(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return split(r, of, args, true, out);
}

static bool do_splitlines(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    static const char *const names[] = {"keepends"};
    jinja_value keep;
    return jinja_bind(r, "splitlines", args, names, 1, 0, &keep) && jinja_split_lines(r, of, jinja_truth(&keep), out);
}

static bool partition(jinja_run *r, const jinja_value *of, const jinja_args *args, bool back, jinja_value *out)
{
    jinja_value by;
    if (!plain(r, "partition", args, 1, 1, &by) || !jinja_want_string(r, &by, "partition", &by)) return false;
    if (!by.length) return jinja_fail(r, HY_BAD_INPUT, "empty separator");
    const char *found =
        back ? find_last(r, of->text, of->length, &by) : memmem(of->text, of->length, by.text, by.length);
    if (!jinja_list_make(r, 3, JINJA_TUPLE, out)) return false;
    size_t before = found ? (size_t)(found - of->text) : back ? 0 : of->length;
    put(out, of->text, before);
    put(out, by.text, found ? by.length : 0);
    if (found)
        put(out, found + by.length, of->length - before - by.length);
    else
        put(out, of->text, back ? of->length : 0);
    return jinja_work(r, of->length / 8);
}

static bool do_partition(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return partition(r, of, args, false, out);
}

static bool do_rpartition(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return partition(r, of, args, true, out);
}

/* ---- Strings: looking ------------------------------------------------------------------------------------------ */

static bool find(jinja_run *r, const jinja_value *of, const jinja_args *args, bool back, bool must, jinja_value *out)
{
    jinja_value slots[3], part;
    if (!plain(r, "find", args, 3, 1, slots) || !jinja_want_string(r, &slots[0], "find", &slots[0])) return false;
    if (!cut(r, of, &slots[1], &slots[2], &part)) return false;
    const char *found = NULL;
    if (part.type == JINJA_STRING)
        found = back              ? find_last(r, part.text, part.length, &slots[0])
                : slots[0].length ? memmem(part.text, part.length, slots[0].text, slots[0].length)
                                  : part.text;
    if (!found && must) return jinja_fail(r, HY_BAD_INPUT, "substring not found");
    *out = jinja_int(found ? (int64_t)jinja_characters(of->text, (size_t)(found - of->text)) : -1);
    return jinja_work(r, of->length / 8);
}

static bool do_find(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return find(r, of, args, false, false, out);
}

static bool do_rfind(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return find(r, of, args, true, false, out);
}

static bool do_index(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return find(r, of, args, false, true, out);
}

static bool do_count(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    jinja_value slots[3], part;
    if (!plain(r, "count", args, 3, 1, slots) || !jinja_want_string(r, &slots[0], "count", &slots[0])) return false;
    if (!cut(r, of, &slots[1], &slots[2], &part)) return false;
    size_t count = 0;
    if (part.type == JINJA_STRING)
        count = slots[0].length ? occurrences(&part, &slots[0]) : jinja_characters(part.text, part.length) + 1;
    *out = jinja_int((int64_t)count);
    return jinja_work(r, of->length / 8);
}

/* Whether all characters are of a class, and there is one. */
static bool all_of(jinja_run *r, const jinja_value *of, const jinja_args *args, bool (*is)(uint32_t code),
                   jinja_value *out)
{
    bool yes = of->length > 0;
    if (!plain(r, "this method", args, 0, 0, NULL)) return false;
    for (size_t at = 0, n; yes && at < of->length; at += n) {
        uint32_t code = 0;
        if (!(n = utf8_decode(of->text + at, of->length - at, &code))) n = 1;
        yes = is(code);
    }
    *out = jinja_bool(yes);
    return jinja_work(r, of->length / 4);
}

static utf8proc_category_t category(uint32_t code)
{
    return utf8proc_category((utf8proc_int32_t)code);
}

static bool is_letter(uint32_t code)
{
    return category(code) >= UTF8PROC_CATEGORY_LU && category(code) <= UTF8PROC_CATEGORY_LO;
}

static bool is_decimal(uint32_t code)
{
    return category(code) == UTF8PROC_CATEGORY_ND;
}

static bool is_numeric(uint32_t code)
{
    return category(code) >= UTF8PROC_CATEGORY_ND && category(code) <= UTF8PROC_CATEGORY_NO;
}

static bool is_letter_or_number(uint32_t code)
{
    return is_letter(code) || is_numeric(code);
}

#define ALL_OF(name, is)                                                                                               \
    static bool name(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)                    \
    {                                                                                                                  \
        return all_of(r, of, args, is, out);                                                                           \
    }

ALL_OF(do_isalpha, is_letter)
ALL_OF(do_isdigit, is_decimal)
ALL_OF(do_isnumeric, is_numeric)
ALL_OF(do_isalnum, is_letter_or_number)
ALL_OF(do_isspace, jinja_is_space)

static bool by_test(jinja_run *r, const jinja_value *of, const jinja_args *args, const char *test, jinja_value *out)
{
    bool yes;
    if (!jinja_find_test(test)->run(r, of, args, &yes)) return false;
    *out = jinja_bool(yes);
    return true;
}

static bool do_isupper(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return by_test(r, of, args, "upper", out);
}

static bool do_islower(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return by_test(r, of, args, "lower", out);
}

/* ---- Strings: making others ------------------------------------------------------------------------------------- */

#define CHANGE_CASE(name, how)                                                                                         \
    static bool name(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)                    \
    {                                                                                                                  \
        return plain(r, #how, args, 0, 0, NULL) && jinja_change_case(r, of->text, of->length, how, out);               \
    }

CHANGE_CASE(do_upper, JINJA_UPPER)
CHANGE_CASE(do_lower, JINJA_LOWER)
CHANGE_CASE(do_capitalize, JINJA_CAPITALIZE)
CHANGE_CASE(do_swapcase, JINJA_SWAP)

static bool do_title(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return plain(r, "title", args, 0, 0, NULL) && jinja_title(r, of->text, of->length, false, out);
}

static bool do_replace(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    static const char *const names[] = {"old", "new", "count"};
    jinja_value slots[3];
    int64_t most;
    return jinja_bind(r, "replace", args, names, 3, 2, slots) && jinja_want_int(r, &slots[2], -1, &most) &&
           jinja_want_string(r, &slots[0], "replace", &slots[0]) &&
           jinja_want_string(r, &slots[1], "replace", &slots[1]) &&
           jinja_replace(r, of, &slots[0], &slots[1], most, out);
}

static bool do_join(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    jinja_value over;
    const jinja_list *items;
    if (!plain(r, "join", args, 1, 1, &over) || !jinja_iterate(r, &over, &items)) return false;
    for (size_t i = 0; i < items->count; i++)
        if (items->items[i].type != JINJA_STRING)
            return jinja_fail(r, HY_BAD_INPUT, "sequence item %zu: expected str instance, %s found", i,
                              jinja_type_name(&items->items[i]));
    jinja_argument by = {NULL, *of};
    jinja_args one = {.at = &by, .count = 1, .positional = 1};
    jinja_value list = {.type = JINJA_LIST, .list = (jinja_list *)items};
    jinja_list again = *items;
    again.spent = false, list.list = &again;
    return jinja_find_filter("join")->run(r, &list, &one, out);
}

/* Filled up to a width; where: -1 on the right, 1 on the left, 0 on both sides. */
static bool pad(jinja_run *r, const jinja_value *of, const jinja_args *args, int where, const char *with,
                jinja_value *out)
{
    jinja_value slots[2], fill = jinja_literal(with);
    int64_t width, have = (int64_t)jinja_characters(of->text, of->length);
    if (!plain(r, "this method", args, 2, 1, slots) || !jinja_want_int(r, &slots[0], 0, &width)) return false;
    if (slots[1].type && !jinja_want_string(r, &slots[1], "this method", &fill)) return false;
    if (jinja_characters(fill.text, fill.length) != 1)
        return jinja_fail(r, HY_BAD_INPUT, "The fill character must be exactly one character long");
    *out = *of;
    if (width <= have) return true;
    if (width > 1 << 20) return jinja_fail(r, HY_NO_FIT, "a width of more than a million characters");
    int64_t more = width - have, left = where > 0 ? more : where < 0 ? 0 : more / 2 + (more & width & 1);
    buffer b = {0};
    bool sign = *with == '0' && of->length && (*of->text == '-' || *of->text == '+');
    if (sign) buffer_char(&b, *of->text);
    for (int64_t i = 0; i < left; i++) buffer_append(&b, fill.text, fill.length);
    buffer_append(&b, of->text + sign, of->length - sign);
    for (int64_t i = left; i < more; i++) buffer_append(&b, fill.text, fill.length);
    return jinja_work(r, (size_t)width) && jinja_finish(r, &b, out);
}

static bool do_ljust(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return pad(r, of, args, -1, " ", out);
}

static bool do_rjust(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return pad(r, of, args, 1, " ", out);
}

static bool do_center(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return pad(r, of, args, 0, " ", out);
}

static bool do_zfill(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return pad(r, of, args, 1, "0", out);
}

/* ---- Dicts and lists ------------------------------------------------------------------------------------------- */

static bool view(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_style style, jinja_value *out)
{
    const jinja_dict *d = of->dict;
    if (!plain(r, "this method", args, 0, 0, NULL) || !jinja_work(r, d->count) ||
        !jinja_list_make(r, d->count, style, out))
        return false;
    for (size_t i = 0; i < d->count; i++) {
        jinja_value *item = &out->list->items[out->list->count++];
        if (style == JINJA_KEYS) *item = d->keys[i];
        if (style == JINJA_VALUES) *item = d->values[i];
        if (style != JINJA_ITEMS) continue;
        if (!jinja_list_make(r, 2, JINJA_TUPLE, item)) return false;
        item->list->items[0] = d->keys[i], item->list->items[1] = d->values[i];
        item->list->count = 2;
    }
    return true;
}

static bool do_keys(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return view(r, of, args, JINJA_KEYS, out);
}

static bool do_values(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return view(r, of, args, JINJA_VALUES, out);
}

static bool do_items(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    return view(r, of, args, JINJA_ITEMS, out);
}

static bool do_get(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    jinja_value slots[2];
    const jinja_value *found;
    if (!plain(r, "get", args, 2, 1, slots) || !jinja_dict_find(r, of->dict, &slots[0], &found)) return false;
    *out = found ? *found : slots[1].type ? slots[1] : jinja_none();
    return true;
}

static bool do_copy(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    *out = *of; /* what cannot change can be shared */
    return plain(r, "copy", args, 0, 0, NULL);
}

static bool do_list_index(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    jinja_value what;
    bool equal = false;
    if (!plain(r, "index", args, 1, 1, &what)) return false;
    for (size_t i = 0; i < of->list->count; i++) {
        if (!jinja_equal(r, &of->list->items[i], &what, &equal)) return false;
        if (!equal) continue;
        *out = jinja_int((int64_t)i);
        return true;
    }
    return jinja_fail(r, HY_BAD_INPUT, "the list has no such item");
}

static bool do_list_count(jinja_run *r, const jinja_value *of, const jinja_args *args, jinja_value *out)
{
    jinja_value what;
    int64_t count = 0;
    if (!plain(r, "count", args, 1, 1, &what)) return false;
    for (size_t i = 0; i < of->list->count; i++) {
        bool equal;
        if (!jinja_equal(r, &of->list->items[i], &what, &equal)) return false;
        count += equal;
    }
    *out = jinja_int(count);
    return true;
}

/* ---- By name --------------------------------------------------------------------------------------------------- */

static const method of_strings[] = {
    {"capitalize", do_capitalize},
    {"casefold", do_lower},
    {"center", do_center},
    {"count", do_count},
    {"endswith", do_endswith},
    {"find", do_find},
    {"format", jinja_format},
    {"index", do_index},
    {"isalnum", do_isalnum},
    {"isalpha", do_isalpha},
    {"isdecimal", do_isdigit},
    {"isdigit", do_isdigit},
    {"islower", do_islower},
    {"isnumeric", do_isnumeric},
    {"isspace", do_isspace},
    {"isupper", do_isupper},
    {"join", do_join},
    {"ljust", do_ljust},
    {"lower", do_lower},
    {"lstrip", do_lstrip},
    {"partition", do_partition},
    {"removeprefix", do_removeprefix},
    {"removesuffix", do_removesuffix},
    {"replace", do_replace},
    {"rfind", do_rfind},
    {"rjust", do_rjust},
    {"rpartition", do_rpartition},
    {"rsplit", do_rsplit},
    {"rstrip", do_rstrip},
    {"split", do_split},
    {"splitlines", do_splitlines},
    {"startswith", do_startswith},
    {"strip", do_strip},
    {"swapcase", do_swapcase},
    {"title", do_title},
    {"upper", do_upper},
    {"zfill", do_zfill},
    {NULL, NULL},
};
static const method of_dicts[] = {
    {"items", do_items}, {"get", do_get},      {"keys", do_keys},  {"values", do_values},
    {"copy", do_copy},   {"clear", NULL},      {"pop", NULL},      {"popitem", NULL},
    {"update", NULL},    {"setdefault", NULL}, {"fromkeys", NULL}, {NULL, NULL},
};
static const method of_lists[] = {
    {"append", NULL},  {"extend", NULL},         {"insert", NULL},         {"pop", NULL},
    {"remove", NULL},  {"reverse", NULL},        {"sort", NULL},           {"clear", NULL},
    {"copy", do_copy}, {"index", do_list_index}, {"count", do_list_count}, {NULL, NULL},
};

static const method *methods_of(const jinja_value *v)
{
    if (v->type == JINJA_STRING) return of_strings;
    if (v->type == JINJA_DICT) return of_dicts;
    return jinja_is_plain_list(v) && v->list->style != JINJA_RANGE ? of_lists : NULL;
}

jinja_access jinja_method_access(const jinja_value *v, const char *name)
{
    const method *m = methods_of(v);
    if (!m) return JINJA_NO_METHOD;
    if (name[0] == '_' && name[1] == '_') return JINJA_FORBIDDEN;
    for (; m->name; m++)
        if (m->name[0] == name[0] && strcmp(m->name, name) == 0) return m->run ? JINJA_HAS_METHOD : JINJA_FORBIDDEN;
    return JINJA_NO_METHOD;
}

bool jinja_call_method(jinja_run *r, const jinja_value *object, const char *name, const jinja_args *args,
                       jinja_value *out)
{
    for (const method *m = methods_of(object); m->name; m++)
        if (strcmp(m->name, name) == 0) return m->run(r, object, args, out);
    return jinja_fail(r, HY_BAD_INPUT, "there is no method '%.60s'", name);
}
