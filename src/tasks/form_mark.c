/*
 * Whether an answer has the form that was asked, to the letter, and says what it should. `valid` is the form alone
 * where that can be told apart: JSON that parses, a list of lines, a number.
 */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "tasks/facts.h"
#include "tasks/form.h"

/* A piece of text. */
typedef struct span {
    const char *at;
    size_t length;
} span;

static span trimmed(const char *s, size_t length)
{
    while (length && isspace((unsigned char)s[0])) s++, length--;
    while (length && isspace((unsigned char)s[length - 1])) length--;
    return (span){s, length};
}

/* Without one full stop at the end. */
static span without_stop(span s)
{
    if (s.length && s.at[s.length - 1] == '.') s.length--;
    return s;
}

static bool equal(span s, const char *text)
{
    return s.length == strlen(text) && !strncasecmp(s.at, text, s.length);
}

static bool has_any(span s, int (*kind)(int))
{
    for (size_t i = 0; i < s.length; i++)
        if (kind((unsigned char)s.at[i])) return true;
    return false;
}

/* The next word after *at; false at the end. */
static bool next_word(span s, size_t *at, span *word)
{
    while (*at < s.length && isspace((unsigned char)s.at[*at])) (*at)++;
    size_t start = *at;
    while (*at < s.length && !isspace((unsigned char)s.at[*at])) (*at)++;
    *word = (span){s.at + start, *at - start};
    return *at > start;
}

static int count_words(span s)
{
    span word;
    size_t at = 0;
    int n = 0;
    while (next_word(s, &at, &word)) n++;
    return n;
}

/* A word without the marks around it. */
static span bare(span w)
{
    while (w.length && ispunct((unsigned char)w.at[0])) w.at++, w.length--;
    while (w.length && ispunct((unsigned char)w.at[w.length - 1])) w.length--;
    return w;
}

/* ---- Lists ---------------------------------------------------------------------------------------------------- */

/* Which of the list's items have come; false for another word or one that came already. */
static bool take(unsigned *seen, size_t list, span item)
{
    for (size_t i = 0; i < LIST_LONGEST; i++) {
        if (!equal(item, list_item(list, i))) continue;
        if (*seen >> i & 1) return false;
        *seen |= 1u << i;
        return true;
    }
    return false;
}

/* So many lines, each with its number or a dash before the item. */
static bool lines(span s, size_t list, int count, bool numbered, bool *valid)
{
    unsigned seen = 0;
    bool right = true;
    int n = 0;
    for (size_t at = 0; at < s.length; n++) {
        const char *end = memchr(s.at + at, '\n', s.length - at);
        size_t length = end ? (size_t)(end - s.at) - at : s.length - at;
        char mark[16];
        int size = numbered ? snprintf(mark, sizeof mark, "%d. ", n + 1) : snprintf(mark, sizeof mark, "- ");
        if (length <= (size_t)size || memcmp(s.at + at, mark, (size_t)size) != 0) return false;
        right = take(&seen, list, trimmed(s.at + at + size, length - (size_t)size)) && right;
        at += length + 1;
    }
    *valid = true;
    return right && n == count;
}

static bool separated(span s, size_t list, int count, char by, bool *valid)
{
    unsigned seen = 0;
    int n = 0;
    bool right = true;
    for (size_t at = 0; at <= s.length; n++) {
        const char *end = memchr(s.at + at, by, s.length - at);
        size_t length = end ? (size_t)(end - s.at) - at : s.length - at;
        right = take(&seen, list, trimmed(s.at + at, length)) && right;
        at += length + 1;
    }
    *valid = n > 1;
    return right && n == count;
}

static bool words_of_list(span s, size_t list, int count, bool *valid)
{
    unsigned seen = 0;
    span word;
    size_t at = 0;
    int n = 0;
    bool right = true;
    for (; next_word(s, &at, &word); n++) right = take(&seen, list, bare(word)) && right;
    *valid = n == count;
    return right && *valid;
}

/* ---- JSON ----------------------------------------------------------------------------------------------------- */

/* Numbers as numbers, texts in any case. */
static bool same_value(const json_t *have, const json_t *want)
{
    if (json_is_integer(want)) return json_is_number(have) && json_number_value(have) == json_number_value(want);
    const char *a = json_string_value(have), *b = json_string_value(want);
    return a && b && !strcasecmp(a, b);
}

static bool fields(span s, const json_t *want, bool *valid)
{
    const char *key;
    json_t *value, *have = json_loadb(s.at, s.length, JSON_REJECT_DUPLICATES, NULL);
    *valid = json_is_object(have);
    bool right = *valid && json_object_size(have) == json_object_size(want);
    json_object_foreach((json_t *)want, key, value) right = right && same_value(json_object_get(have, key), value);
    json_decref(have);
    return right;
}

/* One key; a number may be written as one or as text. */
static bool one_key(span s, const char *key, const char *brief, bool *valid)
{
    json_t *have = json_loadb(s.at, s.length, JSON_REJECT_DUPLICATES, NULL), *value = json_object_get(have, key);
    char number[32] = "";
    *valid = json_is_object(have) && value && json_object_size(have) == 1;
    if (json_is_integer(value)) snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
    const char *said = json_is_string(value) ? json_string_value(value) : number;
    bool right = *valid && !strcasecmp(said, brief);
    json_decref(have);
    return right;
}

/* "" where there is none: of a form that needs none. */
static const char *text_in(const json_t *expect, const char *field)
{
    const char *s = json_string_value(json_object_get(expect, field));
    return s ? s : "";
}

/* ---- All ------------------------------------------------------------------------------------------------------ */

static bool starts_with(span s, const char *word)
{
    span first;
    size_t at = 0;
    return next_word(s, &at, &first) && equal(bare(first), word);
}

static bool ends_with(span s, const char *word)
{
    span w, last = {s.at, 0};
    size_t at = 0;
    while (next_word(s, &at, &w)) last = w;
    return equal(bare(last), word);
}

static bool in_number_words(span s, const char *brief)
{
    buffer want = {0};
    number_words(&want, strtol(brief, NULL, 10));
    bool right = equal(s, text_of(&want));
    for (size_t i = 0; i < want.length; i++)
        if (want.data[i] == '-') want.data[i] = ' ';
    right = right || equal(s, text_of(&want));
    buffer_free(&want);
    return right;
}

bool form_mark(const task *t, size_t turn, const char *reasoning, const char *content, bool *valid)
{
    const json_t *expect = t->turns[turn].expect;
    const char *brief = text_in(expect, "brief"), *word = text_in(expect, "word");
    size_t list = (size_t)json_integer_value(json_object_get(expect, "list"));
    int count = (int)json_integer_value(json_object_get(expect, "count"));
    span s = trimmed(content, strlen(content));
    bool says = *brief && has_word(content, brief);
    (void)reasoning;
    switch ((form_kind)json_integer_value(json_object_get(expect, "form"))) {
    case FORM_ONE_WORD:
    case FORM_YES_NO: *valid = count_words(s) == 1; return *valid && equal(without_stop(s), brief);
    case FORM_START: *valid = starts_with(s, word); return *valid && says;
    case FORM_END: *valid = ends_with(s, word); return *valid && says;
    case FORM_CAPITALS: *valid = s.length && !has_any(s, islower); return *valid && says;
    case FORM_LOWER: *valid = s.length && !has_any(s, isupper); return *valid && says;
    case FORM_WORDS: return words_of_list(s, list, count, valid);
    case FORM_AT_MOST: *valid = s.length && count_words(s) <= count; return *valid && says;
    case FORM_JSON: return one_key(s, text_in(expect, "key"), brief, valid);
    case FORM_FIELDS: return fields(s, json_object_get(expect, "fields"), valid);
    case FORM_NUMBERED: return lines(s, list, count, true, valid);
    case FORM_BULLETS: return lines(s, list, count, false, valid);
    case FORM_COMMAS: return separated(without_stop(s), list, count, ',', valid);
    case FORM_QUOTES:
        *valid = s.length > 2 && s.at[0] == '"' && s.at[s.length - 1] == '"';
        return *valid && says && !memchr(s.at + 1, '"', s.length - 2);
    case FORM_DIGITS:
        s = without_stop(s);
        *valid = s.length && strspn(s.at, "0123456789") >= s.length;
        return *valid && equal(s, brief);
    case FORM_NUMBER_WORDS:
        *valid = s.length && !has_any(s, isdigit);
        return *valid && in_number_words(without_stop(s), brief);
    case FORM_NO_PUNCTUATION: *valid = s.length && !has_any(s, ispunct); return *valid && says;
    default: *valid = s.length > 0; return says && !has_word(content, "m3-nano");
    }
}
