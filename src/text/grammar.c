#include "text/grammar_parts.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "text/json_read.h"

enum { SOURCE_LIMIT = 4 << 20 }; /* bytes of a description */

static const text_grammar_options defaults = {.any_whitespace = true, .additional_properties = true};

/* A rule of one pattern that is the whole text. */
static int32_t regex_root(builder *b, const char *source, size_t length)
{
    int32_t rule = build_rule_add(b, "the pattern"), start;
    int32_t end = grammar_regex(b, source, length, (regex_use){.form = FORM_PLAIN}, &start);
    if (b->status != HY_OK) return 0;
    build_join(b, b->rule[rule].start, start);
    build_join(b, end, b->rule[rule].end);
    return rule;
}

static int32_t json_root(builder *b, text_grammar_kind kind, const char *source, size_t length,
                         const text_grammar_options *o)
{
    static const char *const names[] = {
        [TEXT_GRAMMAR_JSON_SCHEMA] = "the schema",
        [TEXT_GRAMMAR_CHOICE] = "the choices",
        [TEXT_GRAMMAR_TOOLS] = "the tools",
        [TEXT_GRAMMAR_TAGS] = "the structural tag",
    };
    size_t flags = JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL;
    json_t *value = json_read(source, length, flags, HY_BAD_INPUT, names[kind], b->err);
    int32_t root = 0;
    if (!value) {
        b->status = HY_BAD_INPUT;
        return 0;
    }
    if (kind == TEXT_GRAMMAR_JSON_SCHEMA) root = grammar_schema(b, value, o);
    if (kind == TEXT_GRAMMAR_CHOICE) root = grammar_choice(b, value);
    if (kind == TEXT_GRAMMAR_TOOLS) root = grammar_tools(b, value, o);
    if (kind == TEXT_GRAMMAR_TAGS) root = grammar_tags(b, value, o);
    json_decref(value);
    return root;
}

static int32_t build_root(builder *b, text_grammar_kind kind, const char *source, size_t length,
                          const text_grammar_options *o)
{
    json_rules j;
    if (length > SOURCE_LIMIT) {
        build_fail(b, HY_NO_FIT, "a grammar of %zu bytes is too large: at most %d are read", length, SOURCE_LIMIT);
        return 0;
    }
    switch (kind) {
    case TEXT_GRAMMAR_JSON_OBJECT: json_rules_open(&j, b, o); return json_rule_object(&j);
    case TEXT_GRAMMAR_REGEX: return regex_root(b, source, length);
    case TEXT_GRAMMAR_EBNF: return grammar_ebnf(b, source, length);
    case TEXT_GRAMMAR_JSON_SCHEMA:
    case TEXT_GRAMMAR_CHOICE:
    case TEXT_GRAMMAR_TOOLS:
    case TEXT_GRAMMAR_TAGS: return json_root(b, kind, source, length, o);
    }
    build_fail(b, HY_USAGE, "%d is no kind of grammar", (int)kind);
    return 0;
}

hy_status text_grammar_compile(const text_tokenizer *tok, text_grammar_kind kind, const char *source, size_t length,
                               const text_grammar_options *options, text_grammar **out, hy_error *err)
{
    builder b;
    const token_trie *trie = text_tokenizer_trie(tok);
    text_grammar *g = calloc(1, sizeof *g);
    if (!g || !trie) {
        free(g);
        return error_memory(err, "a grammar", sizeof *g);
    }
    atomic_init(&g->references, 1);
    g->tok = tok;
    build_open(&b, err);
    int32_t root = build_root(&b, kind, source ? source : "", source ? length : 0, options ? options : &defaults);
    hy_status status = automaton_make(&b, root, &g->a);
    if (status == HY_OK) {
        g->start = g->a.rule[root].start;
        size_t words = ((size_t)text_tokenizer_vocab_size(tok) + 31) / 32;
        if (!mask_open(&g->masks, &g->a, trie, words)) status = error_memory(err, "a grammar", words * 4);
        if (status == HY_OK) mask_warm(&g->masks);
    }
    build_close(&b);
    if (status == HY_OK)
        *out = g;
    else
        text_grammar_release(g);
    return status;
}

text_grammar *text_grammar_share(const text_grammar *g)
{
    text_grammar *own = (text_grammar *)g;
    atomic_fetch_add_explicit(&own->references, 1, memory_order_relaxed);
    return own;
}

const text_tokenizer *text_grammar_tokenizer(const text_grammar *g)
{
    return g->tok;
}

void text_grammar_release(text_grammar *g)
{
    if (!g || atomic_fetch_sub_explicit(&g->references, 1, memory_order_acq_rel) != 1) return;
    mask_close(&g->masks);
    automaton_free(&g->a);
    free(g);
}
