/* Statements: from tokens to a tree. Compiling a template, and what can be said of it without running it. */
#include "text/jinja_parts.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NESTING = 100,        /* of brackets and statements */
    TEXT_BYTES = 4 << 20, /* of a template */
    TREE_BYTES = 512 << 20,
};

/* ---- Tokens ---------------------------------------------------------------------------------------------------- */

bool jinja_syntax(jinja_parser *p, int line, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    utf8_one_line(text, ' ');
    error_set(p->err, HY_BAD_MODEL, "%s:%d: %s", p->t->name, line ? line : 1, text);
    return false;
}

jinja_node *jinja_make(jinja_parser *p, jinja_kind kind, int line)
{
    jinja_node *n = jinja_take(&p->t->arena, 1, sizeof *n);
    if (n)
        *n = (jinja_node){.kind = (uint8_t)kind, .line = line};
    else
        jinja_syntax(p, line, "the template is too large");
    return n;
}

/* Spellings are few: a template of 500 lines has some 200. */
const char *jinja_intern(jinja_parser *p, const char *text, size_t length, bool variable)
{
    jinja *t = p->t;
    for (size_t i = 0; i < t->name_count; i++) {
        if (strncmp(t->names[i].text, text, length) != 0 || t->names[i].text[length]) continue;
        t->names[i].variable |= variable;
        return t->names[i].text;
    }
    char *kept = jinja_take(&t->arena, length + 1, 1);
    if (!kept || t->name_count > 4000 ||
        !memory_reserve((void **)&t->names, &t->name_capacity, t->name_count + 1, sizeof *t->names)) {
        jinja_syntax(p, jinja_peek(p)->line, "the template has too many names");
        return NULL;
    }
    memcpy(kept, text, length);
    kept[length] = 0;
    t->names[t->name_count++] = (jinja_name){kept, variable, false};
    return kept;
}

const jinja_token *jinja_peek(const jinja_parser *p)
{
    return &p->tokens[p->at < p->count ? p->at : p->count - 1];
}

bool jinja_is(const jinja_parser *p, jinja_token_type type, const char *text)
{
    const jinja_token *t = jinja_peek(p);
    return t->type == type && (!text || (t->length == strlen(text) && memcmp(t->text, text, t->length) == 0));
}

bool jinja_accept(jinja_parser *p, jinja_token_type type, const char *text)
{
    bool is = jinja_is(p, type, text);
    p->at += is;
    return is;
}

bool jinja_expect(jinja_parser *p, jinja_token_type type, const char *text)
{
    const jinja_token *t = jinja_peek(p);
    if (jinja_accept(p, type, text)) return true;
    if (!text) text = type == JINJA_T_BLOCK_END ? "%}" : type == JINJA_T_OUTPUT_END ? "}}" : "a name";
    if (t->type == JINJA_T_END || t->type == JINJA_T_DATA) return jinja_syntax(p, t->line, "'%s' is missing", text);
    return jinja_syntax(p, t->line, "'%s' is missing before '%.*s'", text, t->length < 40 ? (int)t->length : 40,
                        t->text);
}

bool jinja_deeper(jinja_parser *p)
{
    return ++p->depth <= NESTING || jinja_syntax(p, jinja_peek(p)->line, "more than %d levels of nesting", NESTING);
}

static bool is_name(const jinja_parser *p, const char *name)
{
    return jinja_is(p, JINJA_T_NAME, name);
}

static bool block_end(jinja_parser *p)
{
    return jinja_expect(p, JINJA_T_BLOCK_END, NULL);
}

/* ---- Statements ------------------------------------------------------------------------------------------------ */

static bool parse_statement(jinja_parser *p, jinja_node **out);

static bool ends_here(const jinja_parser *p, const char *const *ends)
{
    for (; *ends; ends++)
        if (is_name(p, *ends)) return true;
    return false;
}

static bool parse_piece(jinja_parser *p, jinja_node **out)
{
    const jinja_token *t = jinja_peek(p);
    p->at++;
    if (t->type == JINJA_T_DATA) {
        if (!(*out = jinja_make(p, JINJA_N_TEXT, t->line))) return false;
        (*out)->value = jinja_string(t->text, t->length);
        return true;
    }
    if (t->type == JINJA_T_OUTPUT) {
        if (!(*out = jinja_make(p, JINJA_N_OUTPUT, t->line))) return false;
        return jinja_parse_tuple(p, true, &(*out)->a) && jinja_expect(p, JINJA_T_OUTPUT_END, NULL);
    }
    return parse_statement(p, out);
}

/* Up to a tag with one of the names in `ends`, which is left with its name next; NULL: to the end of the text. */
static bool parse_body(jinja_parser *p, const char *const *ends, int line, jinja_node **first)
{
    jinja_node **end = first;
    if (!jinja_deeper(p)) return false;
    for (;;) {
        if (jinja_is(p, JINJA_T_END, NULL)) {
            if (!ends) break;
            return jinja_syntax(p, line, "'%s' is missing for the tag in this line", ends[0]);
        }
        if (ends && jinja_is(p, JINJA_T_BLOCK, NULL)) {
            p->at++;
            if (ends_here(p, ends)) break;
            p->at--;
        }
        if (!parse_piece(p, end)) return false;
        end = &(*end)->next;
    }
    p->depth--;
    return true;
}

/* BODY {% end %} */
static bool parse_block(jinja_parser *p, const char *name, int line, jinja_node **body)
{
    const char *const ends[] = {name, NULL};
    if (!parse_body(p, ends, line, body)) return false;
    p->at++;
    return block_end(p);
}

static bool parse_if(jinja_parser *p, jinja_node *n)
{
    static const char *const ends[] = {"endif", "else", "elif", NULL};
    p->conditions++;
    for (;;) {
        if (!jinja_parse_tuple(p, true, &n->a) || !block_end(p) || !parse_body(p, ends, n->line, &n->body))
            return false;
        if (!jinja_accept(p, JINJA_T_NAME, "elif")) break;
        if (!(n->other = jinja_make(p, JINJA_N_IF, jinja_peek(p)->line))) return false;
        n = n->other;
    }
    bool ok = true;
    if (jinja_accept(p, JINJA_T_NAME, "else")) {
        ok = block_end(p) && parse_block(p, "endif", n->line, &n->other);
    } else {
        p->at++;
        ok = block_end(p);
    }
    p->conditions--;
    return ok;
}

static bool parse_for(jinja_parser *p, jinja_node *n)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    if (!jinja_parse_targets(p, &n->a) || !jinja_expect(p, JINJA_T_NAME, "in")) return false;
    if (!jinja_parse_tuple(p, false, &n->b)) return false;
    if (jinja_accept(p, JINJA_T_NAME, "if") && !jinja_parse_expression(p, true, &n->c)) return false;
    n->flag = jinja_accept(p, JINJA_T_NAME, "recursive");
    p->loops++;
    bool ok = block_end(p) && parse_body(p, ends, n->line, &n->body);
    p->loops--;
    if (!ok) return false;
    if (jinja_accept(p, JINJA_T_NAME, "else")) return block_end(p) && parse_block(p, "endfor", n->line, &n->other);
    p->at++;
    return block_end(p);
}

static bool parse_set_target(jinja_parser *p, jinja_node **out)
{
    if (!jinja_parse_targets(p, out)) return false;
    if (!jinja_accept(p, JINJA_T_OPERATOR, ".")) return true;
    const jinja_token *t = jinja_peek(p);
    if ((*out)->kind != JINJA_E_NAME || t->type != JINJA_T_NAME)
        return jinja_syntax(p, t->line, "only NAME, NAME.ATTRIBUTE and NAME, NAME can be set");
    jinja_node *n = jinja_make(p, JINJA_E_ATTRIBUTE, t->line);
    if (!n || !(n->name = jinja_intern(p, t->text, t->length, false))) return false;
    p->at++;
    n->a = *out;
    *out = n;
    return true;
}

static bool parse_set(jinja_parser *p, jinja_node *n)
{
    if (!parse_set_target(p, &n->a)) return false;
    if (jinja_accept(p, JINJA_T_OPERATOR, "=")) return jinja_parse_tuple(p, true, &n->b) && block_end(p);
    n->kind = JINJA_N_SET_BLOCK;
    jinja_node *captured = jinja_make(p, JINJA_E_CAPTURED, n->line);
    return captured && jinja_parse_filters(p, captured, &n->b) && block_end(p) &&
           parse_block(p, "endset", n->line, &n->body);
}

/* "(a, b=1)" of a macro or a call block; nodes are names with the default in `a`. */
static bool parse_parameters(jinja_parser *p, jinja_node **first)
{
    jinja_node **end = first;
    while (!jinja_accept(p, JINJA_T_OPERATOR, ")")) {
        if (end != first && !jinja_expect(p, JINJA_T_OPERATOR, ",")) return false;
        if (jinja_accept(p, JINJA_T_OPERATOR, ")")) break;
        const jinja_token *t = jinja_peek(p);
        jinja_node *n = jinja_make(p, JINJA_E_NAME, t->line);
        if (!n || !jinja_expect(p, JINJA_T_NAME, NULL)) return false;
        if (!(n->name = jinja_intern(p, t->text, t->length, true))) return false;
        if (jinja_accept(p, JINJA_T_OPERATOR, "=") && !jinja_parse_expression(p, true, &n->a)) return false;
        *end = n, end = &n->next;
    }
    return true;
}

/* A body of its own: what stands outside does not reach into it with break. */
static bool parse_callable_body(jinja_parser *p, const char *name, jinja_node *n)
{
    int loops = p->loops;
    p->loops = 0;
    bool ok = block_end(p) && parse_block(p, name, n->line, &n->body);
    p->loops = loops;
    return ok;
}

static bool parse_macro(jinja_parser *p, jinja_node *n)
{
    const jinja_token *t = jinja_peek(p);
    if (!jinja_expect(p, JINJA_T_NAME, NULL) || !(n->name = jinja_intern(p, t->text, t->length, true))) return false;
    return jinja_expect(p, JINJA_T_OPERATOR, "(") && parse_parameters(p, &n->args) &&
           parse_callable_body(p, "endmacro", n);
}

static bool parse_call_block(jinja_parser *p, jinja_node *n)
{
    jinja_node *caller = n->b = jinja_make(p, JINJA_N_MACRO, n->line);
    if (!caller || !(caller->name = jinja_intern(p, "caller", 6, true))) return false;
    if (jinja_accept(p, JINJA_T_OPERATOR, "(") && !parse_parameters(p, &caller->args)) return false;
    if (!jinja_parse_expression(p, true, &n->a)) return false;
    if (n->a->kind != JINJA_E_CALL) return jinja_syntax(p, n->line, "a call block wants a call");
    return parse_callable_body(p, "endcall", caller);
}

static bool parse_filter_block(jinja_parser *p, jinja_node *n)
{
    jinja_node *captured = jinja_make(p, JINJA_E_CAPTURED, n->line);
    return captured && jinja_parse_filter_names(p, captured, &n->b) && block_end(p) &&
           parse_block(p, "endfilter", n->line, &n->body);
}

static bool parse_with(jinja_parser *p, jinja_node *n)
{
    jinja_node **end = &n->args;
    while (!jinja_is(p, JINJA_T_BLOCK_END, NULL)) {
        if (end != &n->args && !jinja_expect(p, JINJA_T_OPERATOR, ",")) return false;
        jinja_node *pair = jinja_make(p, JINJA_N_SET, n->line);
        if (!pair || !jinja_parse_targets(p, &pair->a) || !jinja_expect(p, JINJA_T_OPERATOR, "=")) return false;
        if (!jinja_parse_expression(p, true, &pair->b)) return false;
        *end = pair, end = &pair->next;
    }
    return block_end(p) && parse_block(p, "endwith", n->line, &n->body);
}

static bool parse_scope(jinja_parser *p, jinja_node *n)
{
    return parse_callable_body(p, "endgeneration", n);
}

static bool parse_jump(jinja_parser *p, jinja_node *n)
{
    if (!p->loops)
        return jinja_syntax(p, n->line, "'%s' stands outside of a loop",
                            n->kind == JINJA_N_BREAK ? "break" : "continue");
    return block_end(p);
}

static bool parse_do(jinja_parser *p, jinja_node *n)
{
    return jinja_parse_tuple(p, true, &n->a) && block_end(p);
}

static bool parse_statement(jinja_parser *p, jinja_node **out)
{
    static const struct {
        const char *name;
        jinja_kind kind;
        bool (*parse)(jinja_parser *p, jinja_node *n);
    } statements[] = {
        {"if", JINJA_N_IF, parse_if},
        {"set", JINJA_N_SET, parse_set},
        {"for", JINJA_N_FOR, parse_for},
        {"macro", JINJA_N_MACRO, parse_macro},
        {"generation", JINJA_N_SCOPE, parse_scope},
        {"break", JINJA_N_BREAK, parse_jump},
        {"continue", JINJA_N_CONTINUE, parse_jump},
        {"call", JINJA_N_CALL_BLOCK, parse_call_block},
        {"filter", JINJA_N_FILTER_BLOCK, parse_filter_block},
        {"with", JINJA_N_WITH, parse_with},
        {"do", JINJA_N_DO, parse_do},
    };
    const jinja_token *t = jinja_peek(p);
    if (t->type != JINJA_T_NAME) return jinja_syntax(p, t->line, "the name of a tag is missing");
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!jinja_accept(p, JINJA_T_NAME, statements[i].name)) continue;
        *out = jinja_make(p, statements[i].kind, t->line);
        return *out && statements[i].parse(p, *out);
    }
    bool stray = t->length > 3 && memcmp(t->text, "end", 3) == 0;
    return jinja_syntax(p, t->line, "the tag '%.*s' %s", t->length < 60 ? (int)t->length : 60, t->text,
                        stray || is_name(p, "else") || is_name(p, "elif") ? "closes nothing" : "is not supported");
}

bool jinja_parse(jinja_parser *p, jinja_node **body)
{
    return parse_body(p, NULL, 1, body);
}

/* ---- Compiling ------------------------------------------------------------------------------------------------- */

/* Line ends become line feeds, the last one goes. */
static bool keep_text(jinja *t, const char *text, size_t length)
{
    char *kept = jinja_take(&t->arena, length + 1, 1);
    if (!kept) return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\r' && i + 1 < length && text[i + 1] == '\n') continue;
        kept[t->length++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (t->length && kept[t->length - 1] == '\n') t->length--;
    kept[t->length] = 0;
    t->text = kept;
    return true;
}

static bool valid_utf8(const char *s, size_t length)
{
    for (size_t at = 0, n; at < length; at += n)
        if (!(n = utf8_valid(s + at, length - at))) return false;
    return true;
}

static bool find_parts(const jinja_node *body);

hy_status jinja_compile(const char *text, size_t length, const char *name, jinja **out, hy_error *err)
{
    if (length > TEXT_BYTES)
        return error_set(err, HY_BAD_MODEL, "%s:1: the template has more than %d bytes", name, TEXT_BYTES);
    if (!valid_utf8(text, length)) return error_set(err, HY_BAD_MODEL, "%s:1: the template is not UTF-8", name);
    jinja *t = calloc(1, sizeof *t);
    if (!t) return error_memory(err, "a template", sizeof *t);
    t->arena.limit = TREE_BYTES;
    t->name = memory_string(name, strlen(name));
    jinja_parser p = {.t = t, .err = err};
    if (!t->name || !keep_text(t, text, length)) {
        jinja_free(t);
        return error_memory(err, "a template", length);
    }
    bool ok = jinja_lex(&p) && jinja_parse(&p, &t->body);
    free(p.tokens);
    if (!ok) {
        jinja_free(t);
        return HY_BAD_MODEL;
    }
    t->reads_parts = find_parts(t->body);
    *out = t;
    return HY_OK;
}

void jinja_free(jinja *t)
{
    if (!t) return;
    jinja_arena_free(&t->arena);
    free(t->names);
    free(t->name);
    free(t);
}

bool jinja_mentions(const jinja *t, const char *variable)
{
    for (size_t i = 0; i < t->name_count; i++)
        if (t->names[i].variable && strcmp(t->names[i].text, variable) == 0) return true;
    return false;
}

bool jinja_tests(const jinja *t, const char *name)
{
    for (size_t i = 0; i < t->name_count; i++)
        if (t->names[i].test && strcmp(t->names[i].text, name) == 0) return true;
    return false;
}

/* ---- Loops over the parts of a content -------------------------------------------------------------------------- */

/*
 * A template reads parts when it has a loop over X.content (or X["content"], filtered or sliced), X being what a loop
 * over the messages gives. Names that are set from `messages`, or a slice or filter of it, are the messages too. Scopes
 * are not looked at: names in templates mean one thing.
 */
enum { KNOWN = 16 };
typedef struct known {
    const char *names[KNOWN];
    int count;
} known;

static bool knows(const known *k, const char *name)
{
    for (int i = 0; i < k->count; i++)
        if (strcmp(k->names[i], name) == 0) return true;
    return false;
}

static bool learn(known *k, const char *name)
{
    if (knows(k, name) || k->count == KNOWN) return false;
    k->names[k->count++] = name;
    return true;
}

/* Filters, tests and slices of a thing are about the thing. */
static const jinja_node *core(const jinja_node *n)
{
    while (n->kind == JINJA_E_FILTER || n->kind == JINJA_E_TEST || n->kind == JINJA_E_SLICE) n = n->a;
    return n;
}

static bool is_known(const known *k, const jinja_node *n)
{
    return core(n)->kind == JINJA_E_NAME && knows(k, core(n)->name);
}

static bool is_content(const known *k, const jinja_node *n)
{
    n = core(n);
    if (n->kind == JINJA_E_ATTRIBUTE)
        return strcmp(n->name, "content") == 0 && n->a->kind == JINJA_E_NAME && knows(k, n->a->name);
    return n->kind == JINJA_E_ITEM && n->b->kind == JINJA_E_CONST && jinja_same(&n->b->value, "content") &&
           n->a->kind == JINJA_E_NAME && knows(k, n->a->name);
}

static bool walk(const jinja_node *n, known *messages, known *message, bool *learned);

/* One statement; *rest is the next of a chain of conditions, which can be longer than a stack is deep. */
static bool walk_one(const jinja_node *n, known *messages, known *message, bool *learned, const jinja_node **rest)
{
    bool named = n->a && n->a->kind == JINJA_E_NAME;
    if (n->kind == JINJA_N_SET && named && is_known(messages, n->b)) *learned |= learn(messages, n->a->name);
    if (n->kind == JINJA_N_FOR && named && is_known(messages, n->b)) *learned |= learn(message, n->a->name);
    if (n->kind == JINJA_N_FOR && is_content(message, n->b)) return true;
    if (n->body && walk(n->body, messages, message, learned)) return true;
    if (n->kind == JINJA_N_CALL_BLOCK && walk(n->b->body, messages, message, learned)) return true;
    *rest = NULL;
    if (!n->other) return false;
    if (n->kind != JINJA_N_IF || n->other->next) return walk(n->other, messages, message, learned);
    *rest = n->other;
    return false;
}

/* Learns names; true once a loop over a content was seen. */
static bool walk(const jinja_node *n, known *messages, known *message, bool *learned)
{
    for (; n; n = n->next)
        for (const jinja_node *part = n, *rest; part; part = rest)
            if (walk_one(part, messages, message, learned, &rest)) return true;
    return false;
}

static bool find_parts(const jinja_node *body)
{
    known messages = {{"messages"}, 1}, message = {{NULL}, 0};
    bool learned = true;
    while (learned) {
        learned = false;
        if (walk(body, &messages, &message, &learned)) return true;
    }
    return false;
}

bool jinja_reads_parts(const jinja *t)
{
    return t->reads_parts;
}
