/* Expressions: from tokens to nodes, by the precedence that Jinja has. */
#include "text/jinja_parts.h"

#include <string.h>

static bool parse_unary(jinja_parser *p, bool with_filter, jinja_node **out);
static bool parse_or(jinja_parser *p, jinja_node **out);

static bool is_name(const jinja_parser *p, const char *name)
{
    return jinja_is(p, JINJA_T_NAME, name);
}

static bool is_operator(const jinja_parser *p, const char *op)
{
    return jinja_is(p, JINJA_T_OPERATOR, op);
}

static bool accept_operator(jinja_parser *p, const char *op)
{
    return jinja_accept(p, JINJA_T_OPERATOR, op);
}

static void append(jinja_node ***end, jinja_node *n)
{
    **end = n;
    *end = &n->next;
}

static bool binary(jinja_parser *p, jinja_kind kind, jinja_op op, jinja_node *a, jinja_node *b, int line,
                   jinja_node **out)
{
    jinja_node *n = jinja_make(p, kind, line);
    if (!n) return false;
    n->op = (uint8_t)op, n->a = a, n->b = b;
    *out = n;
    return true;
}

/* ---- Primary expressions --------------------------------------------------------------------------------------- */

static bool constant(jinja_parser *p, jinja_value value, int line, jinja_node **out)
{
    *out = jinja_make(p, JINJA_E_CONST, line);
    if (*out) (*out)->value = value;
    return *out != NULL;
}

static bool parse_name(jinja_parser *p, jinja_node **out)
{
    static const struct {
        const char *name;
        int8_t truth; /* -1: none */
    } constants[] = {{"true", 1}, {"True", 1}, {"false", 0}, {"False", 0}, {"none", -1}, {"None", -1}};
    const jinja_token *t = jinja_peek(p);
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        if (!jinja_accept(p, JINJA_T_NAME, constants[i].name)) continue;
        return constant(p, constants[i].truth < 0 ? jinja_none() : jinja_bool(constants[i].truth), t->line, out);
    }
    *out = jinja_make(p, JINJA_E_NAME, t->line);
    if (!*out) return false;
    (*out)->name = jinja_intern(p, t->text, t->length, true);
    p->at++;
    return (*out)->name != NULL;
}

/* Strings that follow each other are one. */
static bool parse_string(jinja_parser *p, jinja_node **out)
{
    const jinja_token *first = jinja_peek(p);
    size_t length = 0, end = p->at;
    for (; p->tokens[end].type == JINJA_T_STRING; end++) length += p->tokens[end].length;
    if (end == p->at + 1) {
        p->at++;
        return constant(p, jinja_string(first->text, length), first->line, out);
    }
    char *joined = jinja_take(&p->t->arena, length + 1, 1);
    if (!joined) return jinja_syntax(p, first->line, "out of memory");
    size_t used = 0;
    for (; p->at < end; p->at++) {
        memcpy(joined + used, p->tokens[p->at].text, p->tokens[p->at].length);
        used += p->tokens[p->at].length;
    }
    return constant(p, jinja_string(joined, length), first->line, out);
}

/* Elements up to `closer`, a comma after the last one allowed; pairs: KEY ":" VALUE. */
static bool parse_elements(jinja_parser *p, const char *closer, bool pairs, jinja_node **first)
{
    jinja_node **end = first, *n;
    while (!accept_operator(p, closer)) {
        if (end != first && !jinja_expect(p, JINJA_T_OPERATOR, ",")) return false;
        if (accept_operator(p, closer)) return true;
        if (!jinja_parse_expression(p, true, &n)) return false;
        append(&end, n);
        if (!pairs) continue;
        if (!jinja_expect(p, JINJA_T_OPERATOR, ":") || !jinja_parse_expression(p, true, &n)) return false;
        append(&end, n);
    }
    return true;
}

static bool parse_bracketed(jinja_parser *p, jinja_node **out)
{
    int line = jinja_peek(p)->line;
    if (accept_operator(p, "(")) {
        if (accept_operator(p, ")")) return (*out = jinja_make(p, JINJA_E_TUPLE, line)) != NULL;
        return jinja_parse_tuple(p, true, out) && jinja_expect(p, JINJA_T_OPERATOR, ")");
    }
    bool pairs = is_operator(p, "{");
    p->at++;
    *out = jinja_make(p, pairs ? JINJA_E_DICT : JINJA_E_LIST, line);
    return *out && parse_elements(p, pairs ? "}" : "]", pairs, &(*out)->args);
}

static bool parse_primary(jinja_parser *p, jinja_node **out)
{
    const jinja_token *t = jinja_peek(p);
    switch (t->type) {
    case JINJA_T_NAME: return parse_name(p, out);
    case JINJA_T_STRING: return parse_string(p, out);
    case JINJA_T_NUMBER: p->at++; return constant(p, t->value, t->line, out);
    case JINJA_T_OPERATOR:
        if (is_operator(p, "(") || is_operator(p, "[") || is_operator(p, "{")) return parse_bracketed(p, out);
        return jinja_syntax(p, t->line, "unexpected '%.*s'", (int)t->length, t->text);
    default: return jinja_syntax(p, t->line, "an expression is missing");
    }
}

/* ---- What follows a primary: .a [i] (x) | f is t ---------------------------------------------------------------- */

bool jinja_parse_arguments(jinja_parser *p, jinja_node **out)
{
    jinja_node **end = out, *n;
    bool named = false;
    *out = NULL;
    while (!accept_operator(p, ")")) {
        if (end != out && !jinja_expect(p, JINJA_T_OPERATOR, ",")) return false;
        if (accept_operator(p, ")")) return true;
        const jinja_token *t = jinja_peek(p);
        if (is_operator(p, "*") || is_operator(p, "**"))
            return jinja_syntax(p, t->line, "* and ** in calls are not supported");
        const char *keyword = NULL;
        if (t->type == JINJA_T_NAME && p->tokens[p->at + 1].type == JINJA_T_OPERATOR &&
            p->tokens[p->at + 1].length == 1 && *p->tokens[p->at + 1].text == '=') {
            if (!(keyword = jinja_intern(p, t->text, t->length, false))) return false;
            p->at += 2;
            named = true;
        } else if (named) {
            return jinja_syntax(p, t->line, "an argument without a name follows one with a name");
        }
        if (!jinja_parse_expression(p, true, &n)) return false;
        n->keyword = keyword;
        append(&end, n);
    }
    return true;
}

static bool parse_attribute(jinja_parser *p, jinja_node *of, jinja_node **out)
{
    const jinja_token *t = jinja_peek(p);
    if (t->type == JINJA_T_NUMBER && t->value.type == JINJA_INT) {
        p->at++;
        jinja_node *key;
        return constant(p, t->value, t->line, &key) && binary(p, JINJA_E_ITEM, JINJA_OP_NONE, of, key, t->line, out);
    }
    if (t->type != JINJA_T_NAME) return jinja_syntax(p, t->line, "a name is missing after '.'");
    p->at++;
    if (!binary(p, JINJA_E_ATTRIBUTE, JINJA_OP_NONE, of, NULL, t->line, out)) return false;
    (*out)->name = jinja_intern(p, t->text, t->length, false);
    return (*out)->name != NULL;
}

static bool parse_slice_part(jinja_parser *p, jinja_node **out)
{
    if (is_operator(p, ":") || is_operator(p, "]")) return true;
    return jinja_parse_expression(p, true, out);
}

static bool parse_item(jinja_parser *p, jinja_node *of, jinja_node **out)
{
    int line = jinja_peek(p)->line;
    jinja_node *part[3] = {0};
    bool slice = false;
    if (!parse_slice_part(p, &part[0])) return false;
    for (int i = 1; i < 3 && accept_operator(p, ":"); i++) {
        slice = true;
        if (!parse_slice_part(p, &part[i])) return false;
    }
    if (is_operator(p, ",")) return jinja_syntax(p, line, "several indexes are not supported");
    if (!slice && !part[0]) return jinja_syntax(p, line, "an index is missing");
    if (!jinja_expect(p, JINJA_T_OPERATOR, "]")) return false;
    if (!binary(p, slice ? JINJA_E_SLICE : JINJA_E_ITEM, JINJA_OP_NONE, of, part[0], line, out)) return false;
    (*out)->c = part[1], (*out)->other = part[2];
    return true;
}

static bool parse_call(jinja_parser *p, jinja_node *of, jinja_node **out)
{
    int line = p->tokens[p->at - 1].line;
    return binary(p, JINJA_E_CALL, JINJA_OP_NONE, of, NULL, line, out) && jinja_parse_arguments(p, &(*out)->args);
}

static bool parse_postfix(jinja_parser *p, jinja_node **n)
{
    for (;;) {
        bool ok;
        if (accept_operator(p, "."))
            ok = parse_attribute(p, *n, n);
        else if (accept_operator(p, "["))
            ok = parse_item(p, *n, n);
        else if (accept_operator(p, "("))
            ok = parse_call(p, *n, n);
        else
            return true;
        if (!ok) return false;
    }
}

/* A dotted name; what there is no filter or test of is an error now, unless a condition may keep it from being used. */
static bool parse_what(jinja_parser *p, jinja_kind kind, jinja_node *of, jinja_node **out)
{
    const jinja_token *t = jinja_peek(p);
    bool is_filter = kind == JINJA_E_FILTER;
    if (t->type != JINJA_T_NAME)
        return jinja_syntax(p, t->line, "the name of a %s is missing", is_filter ? "filter" : "test");
    p->at++;
    if (!binary(p, kind, JINJA_OP_NONE, of, NULL, t->line, out)) return false;
    jinja_node *n = *out;
    if (!(n->name = jinja_intern(p, t->text, t->length, false))) return false;
    if (is_filter)
        n->what = jinja_find_filter(n->name);
    else
        n->what = jinja_find_test(n->name);
    for (size_t i = 0; !is_filter && i < p->t->name_count; i++)
        if (p->t->names[i].text == n->name) p->t->names[i].test = true;
    if (!n->what && !p->conditions)
        return jinja_syntax(p, t->line, "there is no %s \"%.60s\"", is_filter ? "filter" : "test", n->name);
    return true;
}

bool jinja_parse_filter_names(jinja_parser *p, jinja_node *of, jinja_node **out)
{
    do {
        if (!parse_what(p, JINJA_E_FILTER, of, &of)) return false;
        if (accept_operator(p, "(") && !jinja_parse_arguments(p, &of->args)) return false;
    } while (accept_operator(p, "|"));
    *out = of;
    return true;
}

bool jinja_parse_filters(jinja_parser *p, jinja_node *of, jinja_node **out)
{
    *out = of;
    return !accept_operator(p, "|") || jinja_parse_filter_names(p, of, out);
}

/* "is" is behind. An argument may follow without brackets. */
static bool parse_test(jinja_parser *p, jinja_node **n)
{
    bool negate = jinja_accept(p, JINJA_T_NAME, "not");
    if (!parse_what(p, JINJA_E_TEST, *n, n)) return false;
    jinja_node *test = *n;
    test->flag = negate;
    const jinja_token *t = jinja_peek(p);
    if (accept_operator(p, "(")) return jinja_parse_arguments(p, &test->args);
    bool bare = t->type == JINJA_T_STRING || t->type == JINJA_T_NUMBER || is_operator(p, "[") || is_operator(p, "{") ||
                (t->type == JINJA_T_NAME && !is_name(p, "else") && !is_name(p, "or") && !is_name(p, "and"));
    if (!bare) return true;
    if (is_name(p, "is")) return jinja_syntax(p, t->line, "tests cannot be chained with \"is\"");
    /* "x is defined if y" and "x is in y": the words of a condition are no argument. */
    if (is_name(p, "if") || is_name(p, "not") || is_name(p, "in")) return true;
    return parse_primary(p, &test->args) && parse_postfix(p, &test->args);
}

static bool parse_filters_and_tests(jinja_parser *p, jinja_node **n)
{
    for (;;) {
        bool ok;
        if (is_operator(p, "|"))
            ok = jinja_parse_filters(p, *n, n);
        else if (jinja_accept(p, JINJA_T_NAME, "is"))
            ok = parse_test(p, n);
        else if (accept_operator(p, "("))
            ok = parse_call(p, *n, n) && parse_postfix(p, n);
        else
            return true;
        if (!ok) return false;
    }
}

/* ---- Operators ------------------------------------------------------------------------------------------------- */

static bool parse_unary(jinja_parser *p, bool with_filter, jinja_node **out)
{
    int line = jinja_peek(p)->line;
    jinja_node *inner;
    if (is_operator(p, "-") || is_operator(p, "+")) {
        jinja_kind kind = is_operator(p, "-") ? JINJA_E_NEGATE : JINJA_E_PLUS;
        p->at++;
        if (!jinja_deeper(p) || !parse_unary(p, false, &inner)) return false;
        p->depth--;
        if (!binary(p, kind, JINJA_OP_NONE, inner, NULL, line, out)) return false;
    } else if (!parse_primary(p, out)) {
        return false;
    }
    return parse_postfix(p, out) && (!with_filter || parse_filters_and_tests(p, out));
}

typedef struct level {
    const char *text;
    jinja_op op;
} level;

static const level powers[] = {{"**", JINJA_POW}, {NULL, JINJA_OP_NONE}};
static const level products[] = {
    {"*", JINJA_MUL}, {"/", JINJA_DIV}, {"//", JINJA_FLOORDIV}, {"%", JINJA_MOD}, {NULL, JINJA_OP_NONE}};
static const level sums[] = {{"+", JINJA_ADD}, {"-", JINJA_SUB}, {NULL, JINJA_OP_NONE}};

static jinja_op accept_one(jinja_parser *p, const level *ops)
{
    for (; ops->text; ops++)
        if (accept_operator(p, ops->text)) return ops->op;
    return JINJA_OP_NONE;
}

static bool parse_power(jinja_parser *p, jinja_node **out)
{
    jinja_node *right;
    if (!parse_unary(p, true, out)) return false;
    for (jinja_op op; (op = accept_one(p, powers));) {
        int line = jinja_peek(p)->line;
        if (!parse_unary(p, true, &right) || !binary(p, JINJA_E_BINARY, op, *out, right, line, out)) return false;
    }
    return true;
}

static bool parse_product(jinja_parser *p, jinja_node **out)
{
    jinja_node *right;
    if (!parse_power(p, out)) return false;
    for (jinja_op op; (op = accept_one(p, products));) {
        int line = jinja_peek(p)->line;
        if (!parse_power(p, &right) || !binary(p, JINJA_E_BINARY, op, *out, right, line, out)) return false;
    }
    return true;
}

static bool parse_join(jinja_parser *p, jinja_node **out)
{
    jinja_node *n, *part;
    if (!parse_product(p, out)) return false;
    if (!is_operator(p, "~")) return true;
    if (!(n = jinja_make(p, JINJA_E_JOIN, jinja_peek(p)->line))) return false;
    jinja_node **end = &n->args;
    append(&end, *out);
    while (accept_operator(p, "~")) {
        if (!parse_product(p, &part)) return false;
        append(&end, part);
    }
    *out = n;
    return true;
}

static bool parse_sum(jinja_parser *p, jinja_node **out)
{
    jinja_node *right;
    if (!parse_join(p, out)) return false;
    for (jinja_op op; (op = accept_one(p, sums));) {
        int line = jinja_peek(p)->line;
        if (!parse_join(p, &right) || !binary(p, JINJA_E_BINARY, op, *out, right, line, out)) return false;
    }
    return true;
}

static jinja_op accept_comparison(jinja_parser *p)
{
    static const level ops[] = {{"==", JINJA_EQ}, {"!=", JINJA_NE}, {"<=", JINJA_LE},     {">=", JINJA_GE},
                                {"<", JINJA_LT},  {">", JINJA_GT},  {NULL, JINJA_OP_NONE}};
    jinja_op op = accept_one(p, ops);
    if (op) return op;
    if (jinja_accept(p, JINJA_T_NAME, "in")) return JINJA_IN;
    if (!is_name(p, "not") || p->tokens[p->at + 1].type != JINJA_T_NAME) return JINJA_OP_NONE;
    p->at++;
    if (jinja_accept(p, JINJA_T_NAME, "in")) return JINJA_NOT_IN;
    p->at--;
    return JINJA_OP_NONE;
}

static bool parse_comparison(jinja_parser *p, jinja_node **out)
{
    jinja_node *right, *n = NULL, **end = NULL;
    if (!parse_sum(p, out)) return false;
    for (;;) {
        int line = jinja_peek(p)->line;
        jinja_op op = accept_comparison(p);
        if (!op) return true;
        if (!n) {
            if (!(n = jinja_make(p, JINJA_E_COMPARE, line))) return false;
            n->a = *out, end = &n->args;
            *out = n;
        }
        if (!parse_sum(p, &right)) return false;
        right->compare = (uint8_t)op;
        append(&end, right);
    }
}

static bool parse_not(jinja_parser *p, jinja_node **out)
{
    int line = jinja_peek(p)->line;
    if (!jinja_accept(p, JINJA_T_NAME, "not")) return parse_comparison(p, out);
    jinja_node *inner;
    if (!jinja_deeper(p) || !parse_not(p, &inner)) return false;
    p->depth--;
    return binary(p, JINJA_E_NOT, JINJA_OP_NONE, inner, NULL, line, out);
}

static bool parse_and(jinja_parser *p, jinja_node **out)
{
    jinja_node *right;
    if (!parse_not(p, out)) return false;
    for (int line = jinja_peek(p)->line; jinja_accept(p, JINJA_T_NAME, "and");)
        if (!parse_not(p, &right) || !binary(p, JINJA_E_AND, JINJA_OP_NONE, *out, right, line, out)) return false;
    return true;
}

static bool parse_or(jinja_parser *p, jinja_node **out)
{
    jinja_node *right;
    if (!parse_and(p, out)) return false;
    for (int line = jinja_peek(p)->line; jinja_accept(p, JINJA_T_NAME, "or");)
        if (!parse_and(p, &right) || !binary(p, JINJA_E_OR, JINJA_OP_NONE, *out, right, line, out)) return false;
    return true;
}

/* THEN if CONDITION else ELSE: the condition stands behind, so what it guards is known only afterwards. */
static bool guarded(const jinja_parser *p)
{
    int brackets = 0;
    for (size_t i = p->at; i < p->count; i++) {
        const jinja_token *t = &p->tokens[i];
        if (t->type == JINJA_T_OUTPUT_END || t->type == JINJA_T_BLOCK_END || t->type == JINJA_T_END) return false;
        if (t->type == JINJA_T_NAME && !brackets && t->length == 2 && memcmp(t->text, "if", 2) == 0) return true;
        if (t->type != JINJA_T_OPERATOR) continue;
        brackets += strchr("([{", *t->text) != NULL;
        if (strchr(")]}", *t->text) && --brackets < 0) return false;
        if (!brackets && strchr(",:", *t->text)) return false;
    }
    return false;
}

static bool parse_conditional(jinja_parser *p, bool is_guarded, jinja_node **out)
{
    if (!parse_or(p, out)) return false;
    while (is_guarded && is_name(p, "if")) {
        jinja_node *n = jinja_make(p, JINJA_E_IF, jinja_peek(p)->line);
        p->at++;
        if (!n || !parse_or(p, &n->a)) return false;
        n->b = *out;
        if (jinja_accept(p, JINJA_T_NAME, "else") && !jinja_parse_expression(p, true, &n->c)) return false;
        *out = n;
    }
    return true;
}

bool jinja_parse_expression(jinja_parser *p, bool with_condition, jinja_node **out)
{
    if (!jinja_deeper(p)) return false;
    bool is_guarded = with_condition && guarded(p);
    p->conditions += is_guarded;
    bool ok = parse_conditional(p, is_guarded, out);
    p->conditions -= is_guarded;
    p->depth--;
    return ok;
}

/* ---- Tuples ---------------------------------------------------------------------------------------------------- */

static bool ends_tuple(const jinja_parser *p)
{
    jinja_token_type type = jinja_peek(p)->type;
    return type == JINJA_T_OUTPUT_END || type == JINJA_T_BLOCK_END || is_operator(p, ")") || is_name(p, "if") ||
           is_name(p, "recursive");
}

bool jinja_parse_tuple(jinja_parser *p, bool with_condition, jinja_node **out)
{
    int line = jinja_peek(p)->line;
    if (!jinja_parse_expression(p, with_condition, out)) return false;
    if (!is_operator(p, ",")) return true;
    jinja_node *n = jinja_make(p, JINJA_E_TUPLE, line), **end, *item;
    if (!n) return false;
    end = &n->args;
    append(&end, *out);
    *out = n;
    while (accept_operator(p, ",") && !ends_tuple(p)) {
        if (!jinja_parse_expression(p, with_condition, &item)) return false;
        append(&end, item);
    }
    return true;
}

static bool parse_target(jinja_parser *p, jinja_node **out)
{
    const jinja_token *t = jinja_peek(p);
    if (accept_operator(p, "(")) return jinja_parse_targets(p, out) && jinja_expect(p, JINJA_T_OPERATOR, ")");
    if (t->type != JINJA_T_NAME) return jinja_syntax(p, t->line, "the name of a variable is missing");
    if (!parse_name(p, out)) return false;
    if ((*out)->kind != JINJA_E_NAME)
        return jinja_syntax(p, t->line, "%.*s cannot be assigned", (int)t->length, t->text);
    return true;
}

bool jinja_parse_targets(jinja_parser *p, jinja_node **out)
{
    int line = jinja_peek(p)->line;
    if (!jinja_deeper(p) || !parse_target(p, out)) return false;
    p->depth--;
    if (!is_operator(p, ",")) return true;
    jinja_node *n = jinja_make(p, JINJA_E_TUPLE, line), **end, *item;
    if (!n) return false;
    end = &n->args;
    append(&end, *out);
    *out = n;
    while (accept_operator(p, ",") && (jinja_peek(p)->type == JINJA_T_NAME || is_operator(p, "(")) &&
           !is_name(p, "in")) {
        if (!parse_target(p, &item)) return false;
        append(&end, item);
    }
    return true;
}
