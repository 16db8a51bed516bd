#include "text/pretokenize.h"

#include <stdint.h>
#include <string.h>
#include <utf8proc.h>

/*
 * The pattern, alternatives in order, with P = [^\r\n\p{L}\p{N}]? and C = (?i:'s|'t|'re|'ve|'m|'ll|'d)? :
 *
 *   P [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]* [\p{Ll}\p{Lm}\p{Lo}\p{M}]+ C
 *   P [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+ [\p{Ll}\p{Lm}\p{Lo}\p{M}]* C
 *   \p{N}{1,3}
 *   " "? [^\s\p{L}\p{N}]+ [\r\n/]*
 *   \s*[\r\n]+
 *   \s+(?!\S)
 *   \s+
 *
 * Source: the `o200k_base` encoding of https://github.com/openai/tiktoken (tiktoken_ext/openai_public.py).
 */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define PREFIX "[^\\r\\n\\p{L}\\p{N}]?"
#define FOLDED "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define SPELT "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"
#define WORDS(contraction) PREFIX UPPER "*" LOWER "+" contraction "|" PREFIX UPPER "+" LOWER "*" contraction
#define REST(after) "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+" after "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

const pretokenize_rules pretokenize_m3 = {.slash_after_punctuation = true, .long_s = true};

bool pretokenize_find(const char *pattern, pretokenize_rules *rules)
{
    static const struct {
        const char *pattern;
        pretokenize_rules rules;
    } known[] = {
        {WORDS(FOLDED) REST("[\\r\\n/]*"), {true, true}},
        {WORDS(FOLDED) REST("[\\r\\n]*"), {false, true}},
        {WORDS(SPELT) REST("[\\r\\n/]*"), {true, false}},
        {WORDS(SPELT) REST("[\\r\\n]*"), {false, false}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(pattern, known[i].pattern) == 0) {
            *rules = known[i].rules;
            return true;
        }
    }
    return false;
}

/* What the pattern tells apart. MARK is part of words and of punctuation, OTHER_LETTER of both cases of letters. */
enum { UPPER_LETTER, LOWER_LETTER, OTHER_LETTER, MARK, NUMBER, SPACE, OTHER };

/* Unicode White_Space above ASCII. */
static bool is_wide_space(uint32_t c)
{
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

static int class_of(uint32_t c)
{
    if (c < 0x80) {
        if (c >= 'a' && c <= 'z') return LOWER_LETTER;
        if (c >= 'A' && c <= 'Z') return UPPER_LETTER;
        if (c >= '0' && c <= '9') return NUMBER;
        if (c == ' ' || (c >= 9 && c <= 13)) return SPACE;
        return OTHER;
    }
    if (is_wide_space(c)) return SPACE;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT: return UPPER_LETTER;
    case UTF8PROC_CATEGORY_LL: return LOWER_LETTER;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return OTHER_LETTER;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: return MARK;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return NUMBER;
    default: return OTHER;
    }
}

typedef struct scan {
    const char *s;
    size_t length;
} scan;

/* The class of the character at `at` and its size; the text is known to be valid. -1 at the end. */
static int class_at(scan t, size_t at, size_t *size)
{
    if (at >= t.length) return -1;
    const unsigned char *u = (const unsigned char *)t.s + at;
    if (u[0] < 0x80) {
        *size = 1;
        return class_of(u[0]);
    }
    if (u[0] < 0xE0) {
        *size = 2;
        return class_of((uint32_t)(u[0] & 0x1F) << 6 | (u[1] & 0x3F));
    }
    if (u[0] < 0xF0) {
        *size = 3;
        return class_of((uint32_t)(u[0] & 0x0F) << 12 | (uint32_t)(u[1] & 0x3F) << 6 | (u[2] & 0x3F));
    }
    *size = 4;
    return class_of((uint32_t)(u[0] & 0x07) << 18 | (uint32_t)(u[1] & 0x3F) << 12 | (uint32_t)(u[2] & 0x3F) << 6 |
                    (u[3] & 0x3F));
}

/*
 * The first alternative without its prefix, from q: capitals, then at least one small letter, where marks and letters
 * without case count as both. 0 when it does not match. *upper_end is the end of the run of capitals and letters
 * without case, which is what the second alternative takes when the first fails.
 *
 * No backtracking: the run of "upper" characters is as long as it can be. If a small letter follows, it and its
 * successors are the lower part. If none does, the lower part is the last of the run that counts as small.
 */
static size_t word(scan t, size_t q, size_t *upper_end)
{
    size_t end = q, last_both = 0, size = 0;
    int c;
    while ((c = class_at(t, end, &size)) == UPPER_LETTER || c == OTHER_LETTER || c == MARK) {
        end += size;
        if (c != UPPER_LETTER) last_both = end;
    }
    *upper_end = end;
    if (c != LOWER_LETTER) return last_both;
    while ((c = class_at(t, end, &size)) == LOWER_LETTER || c == OTHER_LETTER || c == MARK) end += size;
    return end;
}

/* The first two alternatives from p, whose class is `c`: 0 when neither matches. */
static size_t word_with_prefix(scan t, size_t p, int c, size_t size)
{
    size_t upper_end = 0, end;
    bool prefix = (c == MARK || c == SPACE || c == OTHER) && t.s[p] != '\r' && t.s[p] != '\n';
    if (prefix) {
        end = word(t, p + size, &upper_end);
        if (end) return end;
        size_t capitals = upper_end > p + size ? upper_end : 0, ignored;
        if (c == MARK && (end = word(t, p, &ignored))) return end;
        return capitals;
    }
    if (c == NUMBER || c == SPACE) return 0;
    end = word(t, p, &upper_end);
    return end ? end : upper_end;
}

/* The end of a contraction at `at`, or `at`. */
static size_t contraction(const pretokenize_rules *rules, scan t, size_t at)
{
    if (at + 1 >= t.length || t.s[at] != '\'') return at;
    unsigned char a = (unsigned char)t.s[at + 1];
    unsigned char b = at + 2 < t.length ? (unsigned char)t.s[at + 2] : 0;
    if (rules->long_s && a == 0xC5 && b == 0xBF) return at + 3;
    if (a >= 'A' && a <= 'Z') a |= 0x20;
    if (b >= 'A' && b <= 'Z') b |= 0x20;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return at + 3;
    return at;
}

/* " "? [^\s\p{L}\p{N}]+ [\r\n/]* from p, or 0. */
static size_t punctuation(const pretokenize_rules *rules, scan t, size_t p)
{
    size_t at = p, size = 0;
    if (t.s[at] == ' ') at++;
    size_t start = at;
    for (int c; (c = class_at(t, at, &size)) == OTHER || c == MARK;) at += size;
    if (at == start) return 0;
    while (at < t.length && (t.s[at] == '\r' || t.s[at] == '\n' || (t.s[at] == '/' && rules->slash_after_punctuation)))
        at++;
    return at;
}

/* The last three alternatives from p: up to the last line end of the run, else all but its last character when
 * something follows. */
static size_t white_space(scan t, size_t p)
{
    size_t at = p, last = p, line_end = 0, size = 0;
    while (class_at(t, at, &size) == SPACE) {
        if (t.s[at] == '\r' || t.s[at] == '\n') line_end = at + 1;
        last = at;
        at += size;
    }
    if (line_end) return line_end;
    return at == t.length || last == p ? at : last;
}

size_t pretokenize_next(const pretokenize_rules *rules, const char *s, size_t length, size_t at)
{
    scan t = {s, length};
    size_t size = 0, end;
    int c = class_at(t, at, &size);
    if ((end = word_with_prefix(t, at, c, size))) return contraction(rules, t, end);
    if (c == NUMBER) {
        end = at + size;
        for (int i = 1; i < 3 && class_at(t, end, &size) == NUMBER; i++) end += size;
        return end;
    }
    if ((end = punctuation(rules, t, at))) return end;
    return white_space(t, at);
}
