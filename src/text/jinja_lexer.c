/*
 * From the text of a template to tokens: what stands between tags, with white space as trim_blocks and lstrip_blocks
 * have it, and the words inside tags.
 */
#include "text/jinja_parts.h"

#include "base/memory.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { NESTED_BRACKETS = 200 };

typedef struct lexer {
    jinja_parser *p;
    const char *s;
    size_t length, at;
    int line;
    size_t counted; /* bytes whose line ends are in `line` */
} lexer;

static int line_at(lexer *l, size_t at)
{
    for (; l->counted < at; l->counted++) l->line += l->s[l->counted] == '\n';
    return l->line;
}

static jinja_token *add(lexer *l, jinja_token_type type, size_t start, size_t length)
{
    jinja_parser *p = l->p;
    if (!memory_reserve((void **)&p->tokens, &p->capacity, p->count + 1, sizeof *p->tokens)) {
        jinja_syntax(p, 0, "out of memory");
        return NULL;
    }
    jinja_token *t = &p->tokens[p->count++];
    *t = (jinja_token){.type = type, .line = line_at(l, start), .text = l->s + start, .length = length};
    return t;
}

static size_t space_at(const lexer *l, size_t at)
{
    uint32_t code;
    size_t n = at < l->length ? utf8_decode(l->s + at, l->length - at, &code) : 0;
    return n && jinja_is_space(code) ? n : 0;
}

static size_t skip_space(const lexer *l, size_t at)
{
    for (size_t n; (n = space_at(l, at));) at += n;
    return at;
}

static bool here(const lexer *l, size_t at, const char *what)
{
    size_t n = strlen(what);
    return l->length - at >= n && memcmp(l->s + at, what, n) == 0;
}

/* ---- Between tags --------------------------------------------------------------------------------------------- */

/* The text before a tag whose sign is `sign`; lstrip: white space alone before it on its line goes. */
static bool add_data(lexer *l, size_t start, size_t end, char sign, bool lstrip)
{
    const char *s = l->s + start;
    size_t length = end - start;
    if (sign == '-') {
        jinja_strip(&s, &length, NULL, false, true);
    } else if (sign != '+' && lstrip) {
        size_t line = length;
        while (line && s[line - 1] != '\n') line--;
        const char *rest = s + line;
        size_t left = length - line;
        jinja_strip(&rest, &left, NULL, true, false);
        if (!left && (line || start == 0 || l->s[start - 1] == '\n')) length = line;
    }
    return !length || add(l, JINJA_T_DATA, start, length);
}

/* Behind the end of a tag at `at`: "-" takes all white space, a block or comment one line end unless "+" stands there.
 */
static size_t after_tag(const lexer *l, size_t at, char sign, bool trim)
{
    if (sign == '-') return skip_space(l, at);
    return trim && sign != '+' && at < l->length && l->s[at] == '\n' ? at + 1 : at;
}

static char sign_at(const lexer *l, size_t at)
{
    return at < l->length && (l->s[at] == '-' || l->s[at] == '+') ? l->s[at] : 0;
}

static bool skip_comment(lexer *l, size_t start)
{
    for (size_t at = start; at + 1 < l->length; at++) {
        if (l->s[at] != '#' || l->s[at + 1] != '}') continue;
        char sign = at > start && (l->s[at - 1] == '-' || l->s[at - 1] == '+') ? l->s[at - 1] : 0;
        l->at = after_tag(l, at + 2, sign, true);
        return true;
    }
    return jinja_syntax(l->p, line_at(l, start), "a comment has no end");
}

/* "raw %}" or "-%}" at `at`: where the text after it starts; 0 when it is another tag. */
static size_t named_tag(const lexer *l, size_t at, const char *name, bool trim)
{
    at = skip_space(l, at);
    if (!here(l, at, name)) return 0;
    at = skip_space(l, at + strlen(name));
    char sign = sign_at(l, at);
    if (!here(l, at + (sign != 0), "%}")) return 0;
    return after_tag(l, at + (sign != 0) + 2, sign, trim);
}

static bool take_raw(lexer *l, size_t start)
{
    for (size_t at = start; at + 1 < l->length; at++) {
        if (l->s[at] != '{' || l->s[at + 1] != '%') continue;
        char sign = sign_at(l, at + 2);
        size_t after = named_tag(l, at + 2 + (sign != 0), "endraw", true);
        if (!after) continue;
        l->at = after;
        return add_data(l, start, at, sign, true);
    }
    return jinja_syntax(l->p, line_at(l, start), "{%% raw %%} has no end");
}

/* ---- Inside tags ---------------------------------------------------------------------------------------------- */

static bool name_char(unsigned char c, bool first)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= 0x80 ||
           (!first && c >= '0' && c <= '9');
}

static int hex(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Digits of \x, \u, \U behind the letter at *at. */
static bool escape_digits(const lexer *l, size_t *at, size_t end, int count, buffer *out)
{
    uint32_t code = 0;
    char bytes[4];
    for (int i = 0; i < count; i++) {
        int digit = *at + 1 < end ? hex(l->s[++*at]) : -1;
        if (digit < 0) return false;
        code = code << 4 | (uint32_t)digit;
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
    buffer_append(out, bytes, utf8_encode(code, bytes));
    return true;
}

static bool octal(const lexer *l, size_t *at, size_t end, buffer *out)
{
    uint32_t code = 0;
    char bytes[4];
    size_t i = *at;
    for (; i < end && i < *at + 3 && l->s[i] >= '0' && l->s[i] <= '7'; i++) code = code * 8 + (uint32_t)(l->s[i] - '0');
    *at = i - 1;
    buffer_append(out, bytes, utf8_encode(code, bytes));
    return true;
}

/* The escape at *at, behind its backslash; leaves *at on its last byte. */
static bool unescape(const lexer *l, size_t *at, size_t end, buffer *out)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    char c = l->s[*at];
    const char *found = c ? strchr(from, c) : NULL;
    if (found) {
        buffer_char(out, to[found - from]);
        return true;
    }
    if (c == '\n') return true;
    if (c >= '0' && c <= '7') return octal(l, at, end, out);
    if (c == 'x') return escape_digits(l, at, end, 2, out);
    if (c == 'u') return escape_digits(l, at, end, 4, out);
    if (c == 'U') return escape_digits(l, at, end, 8, out);
    buffer_char(out, '\\');
    buffer_char(out, c);
    return true;
}

static bool lex_string(lexer *l)
{
    size_t start = l->at + 1, end = start;
    char quote = l->s[l->at];
    bool escapes = false;
    while (end < l->length && l->s[end] != quote) {
        escapes |= l->s[end] == '\\';
        end += 1 + (l->s[end] == '\\' && end + 1 < l->length);
    }
    if (end >= l->length) return jinja_syntax(l->p, line_at(l, l->at), "a string has no end");
    jinja_token *t = add(l, JINJA_T_STRING, start, end - start);
    l->at = end + 1;
    if (!t || !escapes) return t != NULL;
    buffer out = {0};
    bool ok = true;
    for (size_t i = start; ok && i < end; i++) {
        if (l->s[i] == '\\' && i + 1 < end)
            i++, ok = unescape(l, &i, end, &out);
        else
            buffer_char(&out, l->s[i]);
    }
    char *kept = ok && buffer_ok(&out) ? jinja_take(&l->p->t->arena, out.length + 1, 1) : NULL;
    if (kept && out.length) memcpy(kept, out.data, out.length);
    t->text = kept, t->length = out.length;
    buffer_free(&out);
    if (!ok) return jinja_syntax(l->p, t->line, "an escape in a string is not complete");
    return kept || jinja_syntax(l->p, t->line, "out of memory");
}

/* Digits with single underscores between them. */
static size_t digits(const lexer *l, size_t at, bool hexadecimal, buffer *out)
{
    for (; at < l->length; at++) {
        char c = l->s[at];
        if (c == '_' && at + 1 < l->length && hex(l->s[at + 1]) >= 0) continue;
        if (hexadecimal ? hex(c) < 0 : c < '0' || c > '9') break;
        buffer_char(out, c);
    }
    return at;
}

static bool read_number(lexer *l, size_t *end, jinja_value *value)
{
    buffer text = {0};
    size_t at = l->at;
    int base = 10;
    bool real = false;
    if (l->s[at] == '0' && at + 1 < l->length) {
        char c = l->s[at + 1] | 0x20;
        base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
        if (base != 10) at += 2;
    }
    at = digits(l, at, base == 16, &text);
    if (base == 10 && at + 1 < l->length && l->s[at] == '.' && l->s[at + 1] >= '0' && l->s[at + 1] <= '9') {
        real = true;
        buffer_char(&text, '.');
        at = digits(l, at + 1, false, &text);
    }
    if (base == 10 && at + 1 < l->length && (l->s[at] | 0x20) == 'e') {
        size_t sign = l->s[at + 1] == '-' || l->s[at + 1] == '+';
        if (at + 1 + sign < l->length && l->s[at + 1 + sign] >= '0' && l->s[at + 1 + sign] <= '9') {
            real = true;
            buffer_append(&text, l->s + at, 1 + sign);
            at = digits(l, at + 1 + sign, false, &text);
        }
    }
    char *rest = NULL;
    bool ok = text.length && text.length < 400 && buffer_ok(&text);
    if (ok && real) *value = jinja_float(strtod(text.data, &rest));
    if (ok && !real) {
        unsigned long long whole = strtoull(text.data, &rest, base);
        ok = text.length < 65 && whole <= INT64_MAX;
        *value = jinja_int((int64_t)whole);
    }
    ok = ok && rest && !*rest;
    buffer_free(&text);
    *end = at;
    return ok;
}

static bool lex_number(lexer *l)
{
    size_t end;
    jinja_value value;
    if (!read_number(l, &end, &value)) return jinja_syntax(l->p, line_at(l, l->at), "a number is too large or not one");
    jinja_token *t = add(l, JINJA_T_NUMBER, l->at, end - l->at);
    l->at = end;
    if (t) t->value = value;
    return t != NULL;
}

static bool lex_operator(lexer *l, char *open, size_t *depth)
{
    static const char *const operators[] = {"**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "(",
                                            ")",  "[",  "]",  "{",  "}",  "<",  ">", "=", ".", ":", "|", ",", ";"};
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        if (!here(l, l->at, operators[i])) continue;
        char c = *operators[i];
        const char *closer = strchr("([{", c) ? c == '(' ? ")" : c == '[' ? "]" : "}" : NULL;
        if (closer && *depth == NESTED_BRACKETS) return jinja_syntax(l->p, line_at(l, l->at), "brackets nest too deep");
        if (closer) open[(*depth)++] = *closer;
        if (strchr(")]}", c) && (!*depth || open[--*depth] != c))
            return jinja_syntax(l->p, line_at(l, l->at), "unexpected '%c'", c);
        if (!add(l, JINJA_T_OPERATOR, l->at, strlen(operators[i]))) return false;
        l->at += strlen(operators[i]);
        return true;
    }
    unsigned char c = (unsigned char)l->s[l->at];
    if (c > 0x20 && c < 0x7F) return jinja_syntax(l->p, line_at(l, l->at), "unexpected '%c'", c);
    return jinja_syntax(l->p, line_at(l, l->at), "unexpected byte 0x%02x in a tag", c);
}

/* Words up to the end of a tag, which `end` ("}}" or "%}") is once all brackets are closed. */
static bool lex_tag(lexer *l, const char *end, jinja_token_type end_type)
{
    char open[NESTED_BRACKETS];
    size_t depth = 0, start = l->at;
    for (;;) {
        l->at = skip_space(l, l->at);
        if (l->at >= l->length) return jinja_syntax(l->p, line_at(l, start), "a tag has no end");
        char sign = sign_at(l, l->at);
        if (*end == '}' && sign == '+') sign = 0;
        if (!depth && here(l, l->at + (sign != 0), end)) {
            if (!add(l, end_type, l->at, 2)) return false;
            l->at = after_tag(l, l->at + (sign != 0) + 2, sign, *end == '%');
            return true;
        }
        char c = l->s[l->at];
        bool ok;
        if (c == '"' || c == '\'') {
            ok = lex_string(l);
        } else if (c >= '0' && c <= '9') {
            ok = lex_number(l);
        } else if (name_char((unsigned char)c, true)) {
            size_t stop = l->at;
            while (stop < l->length && name_char((unsigned char)l->s[stop], false)) stop++;
            ok = add(l, JINJA_T_NAME, l->at, stop - l->at) != NULL;
            l->at = stop;
        } else {
            ok = lex_operator(l, open, &depth);
        }
        if (!ok) return false;
    }
}

/* ---- The whole ------------------------------------------------------------------------------------------------ */

static bool lex_from(lexer *l, size_t found)
{
    char kind = l->s[found + 1], sign = sign_at(l, found + 2);
    size_t inside = found + 2 + (sign != 0);
    if (!add_data(l, l->at, found, sign, kind != '{')) return false;
    l->at = inside;
    if (kind == '#') return skip_comment(l, inside);
    size_t raw = kind == '%' ? named_tag(l, inside, "raw", false) : 0;
    if (raw) return take_raw(l, raw);
    if (!add(l, kind == '{' ? JINJA_T_OUTPUT : JINJA_T_BLOCK, found, 2)) return false;
    return kind == '{' ? lex_tag(l, "}}", JINJA_T_OUTPUT_END) : lex_tag(l, "%}", JINJA_T_BLOCK_END);
}

bool jinja_lex(jinja_parser *p)
{
    lexer l = {.p = p, .s = p->t->text, .length = p->t->length, .line = 1};
    while (l.at < l.length) {
        size_t found = l.at;
        while (found < l.length &&
               !(l.s[found] == '{' && found + 1 < l.length && strchr("{%#", l.s[found + 1]) && l.s[found + 1]))
            found++;
        if (found < l.length) {
            if (!lex_from(&l, found)) return false;
            continue;
        }
        if (!add(&l, JINJA_T_DATA, l.at, l.length - l.at)) return false;
        l.at = l.length;
    }
    return add(&l, JINJA_T_END, l.length, 0) != NULL;
}
