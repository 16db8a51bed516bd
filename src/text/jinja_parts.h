/*
 * What the files of the template language share: memory, values, nodes and the state of a rendering. Private to jinja*.c.
 *
 *     jinja_lexer.c   text -> tokens              jinja_value.c    values: truth, equality, order, from JSON
 *     jinja_parser.c  tokens -> statements        jinja_print.c    str(), repr(), json.dumps()
 *     jinja_expr.c    tokens -> expressions       jinja_format.c   "%d" % x, "{}".format(x)
 *     jinja_exec.c    runs statements             jinja_filters.c, jinja_sequences.c, jinja_tests.c
 *     jinja_eval.c    values of expressions       jinja_methods.c  of strings, dicts and lists
 *
 * All memory of a template, and all of a rendering, lies in an arena and goes with it. Functions that can fail return
 * false with the error filled in by jinja_fail.
 */
#ifndef HAYATE_TEXT_JINJA_PARTS_H
#define HAYATE_TEXT_JINJA_PARTS_H

#include "text/jinja.h"

/* ---- Memory --------------------------------------------------------------------------------------------------- */

typedef struct jinja_chunk jinja_chunk;
typedef struct jinja_arena {
    jinja_chunk *first;
    size_t taken, limit; /* bytes */
} jinja_arena;

/* 16-byte aligned, not cleared; NULL: the limit was met or there is no memory. */
void *jinja_take(jinja_arena *arena, size_t count, size_t size);
void jinja_arena_free(jinja_arena *arena);

/* ---- Values --------------------------------------------------------------------------------------------------- */

typedef enum jinja_type {
    JINJA_MISSING, /* an argument that was not given; never seen by a template */
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_FLOAT,
    JINJA_STRING,
    JINJA_LIST,
    JINJA_DICT,
    JINJA_NAMESPACE,
    JINJA_MACRO,
    JINJA_FUNCTION,
    JINJA_METHOD,
    JINJA_LOOP,
} jinja_type;

/* Why something is undefined: the text of the error when it is used. */
typedef enum jinja_why {
    JINJA_NO_NAME,      /* no variable of that name */
    JINJA_NO_ATTRIBUTE, /* `of` has none of that name */
    JINJA_NO_ELEMENT,   /* `of` has no such element */
    JINJA_NOT_GIVEN,    /* a macro's parameter */
    JINJA_UNSAFE,       /* an attribute that changes things or leads out of the sandbox */
    JINJA_SAID,         /* the text itself */
} jinja_why;

/* What Python would have here: lists are printed, compared and asked for their truth by it. */
typedef enum jinja_style {
    JINJA_PLAIN,
    JINJA_TUPLE,
    JINJA_GENERATOR, /* true even when empty, has no length, can be walked once */
    JINJA_KEYS,
    JINJA_VALUES,
    JINJA_ITEMS,
    JINJA_RANGE,
} jinja_style;

/* Room behind a string that was joined: the next join appends in place, so that a text that grows turn by turn costs its
 * length and not its square. */
typedef struct jinja_room {
    char *data;
    size_t used, capacity;
} jinja_room;

typedef struct jinja_list jinja_list;
typedef struct jinja_dict jinja_dict;

typedef struct jinja_value {
    uint8_t type;
    uint8_t why, of; /* of something undefined: a jinja_why, and the jinja_type of what lacks an attribute */
    bool markup;     /* of a string: it came out of safe or escape, so that what is added to it with + is escaped */
    union {
        bool truth;
        int64_t integer;
        double real;
        const char *text; /* [length] UTF-8; of a method or function its name */
        jinja_list *list;
        jinja_dict *dict; /* also of a namespace */
        const struct jinja_macro *macro;
        struct jinja_loop *loop;
    };
    size_t length;
    union {
        jinja_room *room;                 /* of a string, may be NULL */
        const struct jinja_value *object; /* of a method */
    };
} jinja_value;

struct jinja_list {
    jinja_value *items; /* [count] */
    size_t count;
    jinja_style style;
    bool spent; /* a generator that was walked */
};

struct jinja_dict {
    jinja_value *keys, *values; /* [count] */
    size_t count, capacity;
    uint32_t *index; /* [index_size] positions + 1 by the hash of string keys; NULL while small */
    size_t index_size;
};

/* ---- Nodes ---------------------------------------------------------------------------------------------------- */

typedef enum jinja_kind {
    /* statements */
    JINJA_N_TEXT,         /* value */
    JINJA_N_OUTPUT,       /* a */
    JINJA_N_IF,           /* if a: body, else: other */
    JINJA_N_FOR,          /* for a in b if c: body, else: other; flag: recursive */
    JINJA_N_SET,          /* a = b */
    JINJA_N_SET_BLOCK,    /* a = body through the filters b */
    JINJA_N_MACRO,        /* name, args (parameters with a default in a), body */
    JINJA_N_CALL_BLOCK,   /* a, its `caller` is b */
    JINJA_N_FILTER_BLOCK, /* b, body */
    JINJA_N_WITH,         /* args: pairs of target and value, body */
    JINJA_N_SCOPE,        /* body */
    JINJA_N_BREAK,
    JINJA_N_CONTINUE,
    JINJA_N_DO, /* a */
    /* expressions */
    JINJA_E_CONST, /* value */
    JINJA_E_NAME,  /* name */
    JINJA_E_LIST,  /* args */
    JINJA_E_TUPLE, /* args */
    JINJA_E_DICT,  /* args: key, value, key, value ... */
    JINJA_E_ATTRIBUTE, /* a.name */
    JINJA_E_ITEM,      /* a[b] */
    JINJA_E_SLICE,     /* a[b:c:other] */
    JINJA_E_CALL,      /* a(args) */
    JINJA_E_FILTER,    /* a | name(args) */
    JINJA_E_TEST,      /* a is name(args); flag: not */
    JINJA_E_IF,        /* b if a else c */
    JINJA_E_AND,
    JINJA_E_OR,
    JINJA_E_NOT,
    JINJA_E_NEGATE,
    JINJA_E_PLUS,
    JINJA_E_BINARY,  /* a op b */
    JINJA_E_JOIN,    /* args with ~ between */
    JINJA_E_COMPARE, /* a, args: operands with their op */
    JINJA_E_CAPTURED, /* what the block before its filters gave */
} jinja_kind;

typedef enum jinja_op {
    JINJA_OP_NONE,
    JINJA_ADD,
    JINJA_SUB,
    JINJA_MUL,
    JINJA_DIV,
    JINJA_FLOORDIV,
    JINJA_MOD,
    JINJA_POW,
    JINJA_EQ,
    JINJA_NE,
    JINJA_LT,
    JINJA_LE,
    JINJA_GT,
    JINJA_GE,
    JINJA_IN,
    JINJA_NOT_IN,
} jinja_op;

typedef struct jinja_node {
    uint8_t kind, op;
    bool flag;
    int line;
    const char *name; /* of one spelling there is one pointer */
    jinja_value value;
    struct jinja_node *a, *b, *c, *other, *body;
    struct jinja_node *args; /* a list through `next`; a keyword argument has its name in `keyword` */
    const char *keyword;
    uint8_t compare; /* the jinja_op before an operand of a comparison */
    struct jinja_node *next;
    const void *what; /* the filter or test of that name; NULL: there is none */
} jinja_node;

/* A spelling and what it is used for. */
typedef struct jinja_name {
    const char *text;
    bool variable, test;
} jinja_name;

struct jinja {
    jinja_arena arena;
    char *name;
    const char *text; /* line ends are line feeds */
    size_t length;
    jinja_node *body;
    jinja_name *names;
    size_t name_count, name_capacity;
    bool reads_parts;
};

/* ---- Compiling ------------------------------------------------------------------------------------------------ */

typedef enum jinja_token_type {
    JINJA_T_END,
    JINJA_T_DATA,
    JINJA_T_OUTPUT, /* {{ */
    JINJA_T_OUTPUT_END,
    JINJA_T_BLOCK, /* {% */
    JINJA_T_BLOCK_END,
    JINJA_T_NAME,
    JINJA_T_STRING,
    JINJA_T_NUMBER,
    JINJA_T_OPERATOR,
} jinja_token_type;

typedef struct jinja_token {
    jinja_token_type type;
    int line;
    const char *text; /* [length]; of a string what it means */
    size_t length;
    jinja_value value; /* of a number */
} jinja_token;

typedef struct jinja_parser {
    jinja *t;
    jinja_token *tokens;
    size_t count, capacity, at;
    int depth;
    int conditions, loops; /* inside which the parser is */
    hy_error *err;
} jinja_parser;

bool jinja_lex(jinja_parser *p);
bool jinja_parse(jinja_parser *p, jinja_node **body);
bool jinja_parse_expression(jinja_parser *p, bool with_condition, jinja_node **out);
/* A list with commas, a tuple if there is a comma; without_in: a loop's targets. */
bool jinja_parse_tuple(jinja_parser *p, bool with_condition, jinja_node **out);
bool jinja_parse_targets(jinja_parser *p, jinja_node **out);
bool jinja_parse_filters(jinja_parser *p, jinja_node *of, jinja_node **out); /* "| f | g", perhaps none */
bool jinja_parse_filter_names(jinja_parser *p, jinja_node *of, jinja_node **out); /* "f | g" */
bool jinja_parse_arguments(jinja_parser *p, jinja_node **out); /* after "(" */

bool jinja_syntax(jinja_parser *p, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
jinja_node *jinja_make(jinja_parser *p, jinja_kind kind, int line); /* NULL: no memory, said */
const char *jinja_intern(jinja_parser *p, const char *text, size_t length, bool variable);
const jinja_token *jinja_peek(const jinja_parser *p);
bool jinja_is(const jinja_parser *p, jinja_token_type type, const char *text); /* the next token; text NULL: any */
bool jinja_accept(jinja_parser *p, jinja_token_type type, const char *text);
bool jinja_expect(jinja_parser *p, jinja_token_type type, const char *text);
bool jinja_deeper(jinja_parser *p); /* one level; p->depth-- leaves it */

/* ---- Rendering ------------------------------------------------------------------------------------------------ */

typedef struct jinja_variable {
    const char *name;
    jinja_value value;
} jinja_variable;

typedef struct jinja_frame {
    struct jinja_frame *parent;
    jinja_variable *variables;
    size_t count, capacity;
} jinja_frame;

typedef struct jinja_macro {
    const jinja_node *node;
    jinja_frame *frame; /* where it was defined */
} jinja_macro;

typedef struct jinja_loop {
    const jinja_list *items;
    const jinja_node *node;
    jinja_frame *frame;
    size_t index;
    int level;
    jinja_value changed;
} jinja_loop;

typedef struct jinja_run {
    const jinja *t;
    jinja_arena arena;
    const json_t *context;
    uint64_t steps;
    size_t output_limit;
    int macros, macro_limit, level;
    int line;
    int64_t now;
    buffer *out;
    jinja_frame *frame;
    jinja_value captured;
    uint8_t jump; /* JINJA_N_BREAK or JINJA_N_CONTINUE on its way out of a loop's body */
    const char *loop, *caller, *varargs, *kwargs; /* the names as the template spells them; NULL: it does not */
    hy_error *err;
    hy_status status;
} jinja_run;

typedef struct jinja_argument {
    const char *name; /* NULL: by position */
    jinja_value value;
} jinja_argument;

typedef struct jinja_args {
    jinja_argument *at; /* [count] positional ones first */
    size_t count, positional;
    jinja_value caller; /* MISSING without a call block */
} jinja_args;

/* Always false. The first error stays. */
bool jinja_fail(jinja_run *r, hy_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
bool jinja_fail_undefined(jinja_run *r, const jinja_value *v);
bool jinja_work(jinja_run *r, size_t steps); /* false: too many */
bool jinja_enter(jinja_run *r);              /* one level deeper; r->level-- leaves it */
bool jinja_check_output(jinja_run *r);       /* r->out is within its limit and has memory */

jinja_value jinja_none(void);
jinja_value jinja_bool(bool truth);
jinja_value jinja_int(int64_t i);
jinja_value jinja_float(double d);
jinja_value jinja_string(const char *text, size_t length); /* borrowed */
jinja_value jinja_literal(const char *text);
jinja_value jinja_undefined(jinja_why why, jinja_type of, const char *name, size_t length);
bool jinja_copy(jinja_run *r, const char *text, size_t length, jinja_value *out);
/* What a buffer holds as a value; frees the buffer. */
bool jinja_finish(jinja_run *r, buffer *b, jinja_value *out);
bool jinja_list_make(jinja_run *r, size_t capacity, jinja_style style, jinja_value *out); /* count 0 */
bool jinja_dict_make(jinja_run *r, size_t capacity, jinja_value *out);
bool jinja_dict_put(jinja_run *r, jinja_dict *d, const jinja_value *key, const jinja_value *value);
bool jinja_dict_find(jinja_run *r, jinja_dict *d, const jinja_value *key, const jinja_value **found); /* NULL: not there */
bool jinja_from_json(jinja_run *r, const json_t *json, jinja_value *out);

bool jinja_truth(const jinja_value *v);
bool jinja_is_number(const jinja_value *v); /* int, float or bool */
double jinja_real(const jinja_value *v);
int64_t jinja_whole(const jinja_value *v); /* of an int or bool */
bool jinja_is_whole(const jinja_value *v);
bool jinja_is_plain_list(const jinja_value *v); /* a list or a tuple: has positions */
bool jinja_same(const jinja_value *v, const char *text);
bool jinja_equal(jinja_run *r, const jinja_value *a, const jinja_value *b, bool *out);
/* *out below, at or above 0; false with an error when there is no order. */
bool jinja_order(jinja_run *r, const jinja_value *a, const jinja_value *b, const char *op, int *out);
bool jinja_contains(jinja_run *r, const jinja_value *in, const jinja_value *what, bool *out);
bool jinja_compare(jinja_run *r, jinja_op op, const jinja_value *a, const jinja_value *b, bool *out);
/* What a loop over it gives. */
bool jinja_iterate(jinja_run *r, const jinja_value *v, const jinja_list **out);
/* Of a sized value; false with an error for others. */
bool jinja_length(jinja_run *r, const jinja_value *v, size_t *out);
const char *jinja_type_name(const jinja_value *v); /* as Python calls it */

size_t jinja_characters(const char *s, size_t length);
size_t jinja_character_bytes(const char *s, size_t length); /* of the first one, at least 1 */
const char *jinja_at_character(const char *s, size_t length, size_t index);
bool jinja_is_space(uint32_t code);
void jinja_strip(const char **s, size_t *length, const jinja_value *chars, bool left, bool right); /* chars: white space */

bool jinja_print(jinja_run *r, const jinja_value *v, buffer *out); /* str() */
bool jinja_repr(jinja_run *r, const jinja_value *v, buffer *out);
bool jinja_text(jinja_run *r, const jinja_value *v, jinja_value *out); /* str() as a value; strings as they are */
typedef struct jinja_json_style {
    const char *item, *key;  /* separators */
    const char *indent;      /* NULL: one line */
    bool ascii, sort;
} jinja_json_style;
bool jinja_json(jinja_run *r, const jinja_value *v, const jinja_json_style *style, buffer *out);

bool jinja_percent(jinja_run *r, const jinja_value *format, const jinja_value *args, jinja_value *out);
bool jinja_format(jinja_run *r, const jinja_value *format, const jinja_args *args, jinja_value *out);

/* Sorts arguments into slots, MISSING where not given. `names` lists the parameters, the first `required` must be there. */
bool jinja_bind(jinja_run *r, const char *what, const jinja_args *args, const char *const *names, size_t count,
                size_t required, jinja_value *slots);
bool jinja_want_int(jinja_run *r, const jinja_value *v, int64_t missing, int64_t *out);
bool jinja_want_string(jinja_run *r, const jinja_value *v, const char *what, jinja_value *out);

typedef bool (*jinja_filter_fn)(jinja_run *r, const jinja_value *in, const jinja_args *args, jinja_value *out);
typedef bool (*jinja_test_fn)(jinja_run *r, const jinja_value *in, const jinja_args *args, bool *out);
typedef struct jinja_filter {
    const char *name;
    jinja_filter_fn run;
} jinja_filter;
typedef struct jinja_test {
    const char *name;
    jinja_test_fn run;
} jinja_test;
extern const jinja_filter jinja_sequence_filters[]; /* the end has no name */
const jinja_filter *jinja_find_filter(const char *name);
const jinja_test *jinja_find_test(const char *name);

/* What a name after a dot is on a string, list or dict. */
typedef enum jinja_access { JINJA_NO_METHOD, JINJA_HAS_METHOD, JINJA_FORBIDDEN } jinja_access;
jinja_access jinja_method_access(const jinja_value *v, const char *name);
bool jinja_call_method(jinja_run *r, const jinja_value *object, const char *name, const jinja_args *args, jinja_value *out);
bool jinja_title(jinja_run *r, const char *s, size_t length, bool words_by_jinja, jinja_value *out);
typedef enum jinja_case { JINJA_LOWER, JINJA_UPPER, JINJA_CAPITALIZE, JINJA_SWAP } jinja_case;
bool jinja_escape(jinja_run *r, const jinja_value *s, jinja_value *out); /* for HTML; what is markup stays */
bool jinja_change_case(jinja_run *r, const char *s, size_t length, jinja_case how, jinja_value *out);
bool jinja_replace(jinja_run *r, const jinja_value *s, const jinja_value *old, const jinja_value *new, int64_t most,
                   jinja_value *out);
bool jinja_split_lines(jinja_run *r, const jinja_value *s, bool keep_ends, jinja_value *out);

/* `name` ends in NUL and outlives the rendering's use of it. */
bool jinja_attribute(jinja_run *r, const jinja_value *of, const char *name, size_t length, jinja_value *out);
bool jinja_item(jinja_run *r, const jinja_value *of, const jinja_value *key, jinja_value *out);
bool jinja_eval(jinja_run *r, const jinja_node *n, jinja_value *out);
bool jinja_eval_args(jinja_run *r, const jinja_node *n, jinja_args *out);
bool jinja_call(jinja_run *r, const jinja_value *callee, const jinja_args *args, jinja_value *out);
bool jinja_call_macro(jinja_run *r, const jinja_macro *m, const jinja_args *args, jinja_value *out);
bool jinja_call_loop(jinja_run *r, const jinja_loop *l, const jinja_value *items, jinja_value *out);
bool jinja_loop_attribute(jinja_run *r, const jinja_loop *l, const char *name, size_t length, jinja_value *out);
bool jinja_assign(jinja_run *r, const char *name, const jinja_value *value); /* in the innermost frame */
bool jinja_lookup(jinja_run *r, const char *name, jinja_value *out);
bool jinja_run_body(jinja_run *r, const jinja_node *body);

#endif
