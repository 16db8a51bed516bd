#include "server/grammars.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/error.h"

typedef struct kept {
    struct kept *next; /* most recently used first */
    char *key;
    size_t length;
    hy_grammar *grammar;
    int users;
} kept;

struct grammars {
    const hy_model *model;
    int most;
    pthread_mutex_t lock;
    kept *first;
};

grammars *grammars_open(const hy_model *model, int most)
{
    grammars *g = calloc(1, sizeof *g);
    if (!g) return NULL;
    g->model = model, g->most = most;
    pthread_mutex_init(&g->lock, NULL);
    return g;
}

static void free_kept(kept *k)
{
    hy_grammar_close(k->grammar);
    free(k->key);
    free(k);
}

void grammars_close(grammars *g)
{
    if (!g) return;
    for (kept *k = g->first, *next; k; k = next) {
        next = k->next;
        free_kept(k);
    }
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static void make_key(const request_grammar *w, buffer *key)
{
    buffer_printf(key, "%d %d %d ", w->kind, w->options.compact, w->options.closed);
    buffer_string(key, w->options.whitespace ? w->options.whitespace : "");
    buffer_char(key, 0);
    if (w->source) buffer_append(key, w->source, w->length);
}

/* Under the lock: the one with this key, moved to the front. */
static kept *find(grammars *g, const buffer *key)
{
    kept **at = &g->first;
    while (*at && ((*at)->length != key->length || memcmp((*at)->key, key->data, key->length) != 0)) at = &(*at)->next;
    kept *k = *at;
    if (!k) return NULL;
    *at = k->next;
    k->next = g->first, g->first = k;
    return k;
}

/* Under the lock: the last ones that nobody uses go, when there are too many. */
static void trim(grammars *g)
{
    int count = 0;
    for (const kept *k = g->first; k; k = k->next) count++;
    while (count-- > g->most) {
        kept **last = NULL;
        for (kept **at = &g->first; *at; at = &(*at)->next)
            if ((*at)->users == 0) last = at;
        if (!last) return;
        kept *k = *last;
        *last = k->next;
        free_kept(k);
    }
}

static kept *keep(grammars *g, buffer *key, hy_grammar *grammar)
{
    kept *k = calloc(1, sizeof *k);
    if (!k) return NULL;
    k->length = key->length, k->key = buffer_take(key, NULL), k->grammar = grammar;
    k->next = g->first, g->first = k;
    return k;
}

bool grammars_keeps(grammars *g, const request_grammar *what)
{
    buffer key = {0};
    make_key(what, &key);
    pthread_mutex_lock(&g->lock);
    bool keeps = buffer_ok(&key) && find(g, &key);
    pthread_mutex_unlock(&g->lock);
    buffer_free(&key);
    return keeps;
}

hy_status grammars_take(grammars *g, const request_grammar *what, const hy_grammar **out, hy_error *err)
{
    buffer key = {0};
    make_key(what, &key);
    if (!buffer_ok(&key)) {
        buffer_free(&key);
        return error_memory(err, "a grammar", what->length);
    }
    pthread_mutex_lock(&g->lock);
    kept *k = find(g, &key);
    if (k) k->users++;
    pthread_mutex_unlock(&g->lock);
    hy_status status = HY_OK;
    if (!k) { /* two may compile the same at once: both are right */
        hy_grammar *grammar = NULL;
        status = hy_grammar_compile(g->model, what->kind, what->source, what->length, &what->options, &grammar, err);
        pthread_mutex_lock(&g->lock);
        if (status == HY_OK && (k = keep(g, &key, grammar))) k->users++, trim(g);
        pthread_mutex_unlock(&g->lock);
        if (status == HY_OK && !k) {
            hy_grammar_close(grammar);
            status = error_memory(err, "a grammar", what->length);
        }
    }
    buffer_free(&key);
    if (status == HY_OK) *out = k->grammar;
    return status;
}

void grammars_give(grammars *g, const hy_grammar *grammar)
{
    if (!grammar) return;
    pthread_mutex_lock(&g->lock);
    for (kept *k = g->first; k; k = k->next) {
        if (k->grammar != grammar) continue;
        k->users--;
        break;
    }
    trim(g);
    pthread_mutex_unlock(&g->lock);
}
