#include "server/beams.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"

/* A token behind another: beams that begin alike share their beginning. */
typedef struct node {
    int32_t before; /* index, -1: the prompt */
    int32_t token;
    int32_t count; /* tokens up to here */
    double sum;
} node;

/* The places of one beam in one round: of all candidates that it has, whether taken or not. */
typedef struct candidate {
    int32_t beam, token;
    double sum;
    float logprob;
} candidate;

typedef struct finished {
    int32_t node;
    bool ended;
    double sum, score;
} finished;

struct beams {
    beams_options o;
    buffer nodes;     /* node */
    buffer logprobs;  /* hy_logprob [nodes, 1 + kept] */
    buffer offers;    /* candidate, of the round */
    hy_logprob *kept; /* [width, kept] best of each live beam */
    int32_t *live;    /* [width] nodes; -1: the prompt itself */
    int32_t live_count, made;
    finished *best; /* [width] in order of score */
    int32_t best_count;
    bool failed, over;
};

static node *node_of(const beams *b, int32_t i)
{
    return (node *)(void *)b->nodes.data + i;
}

beams *beams_open(const beams_options *options)
{
    beams *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    size_t width = (size_t)options->width, kept = options->kept > 0 ? (size_t)options->kept : 0;
    b->o = *options;
    b->live = malloc(width * sizeof *b->live);
    b->best = malloc(width * sizeof *b->best);
    b->kept = malloc((width * kept + 1) * sizeof *b->kept);
    if (!b->live || !b->best || !b->kept) {
        beams_close(b);
        return NULL;
    }
    b->live[0] = -1, b->live_count = 1;
    return b;
}

void beams_close(beams *b)
{
    if (!b) return;
    buffer_free(&b->nodes), buffer_free(&b->logprobs), buffer_free(&b->offers);
    free(b->live), free(b->best), free(b->kept);
    free(b);
}

int32_t beams_live(const beams *b)
{
    return b->over ? 0 : b->live_count;
}

int32_t beams_made(const beams *b)
{
    return b->made;
}

static void tokens_of(const beams *b, int32_t at, int32_t *out)
{
    for (; at >= 0; at = node_of(b, at)->before) out[node_of(b, at)->count - 1] = node_of(b, at)->token;
}

void beams_tokens(const beams *b, int32_t i, int32_t *out)
{
    tokens_of(b, b->live[i], out);
}

bool beams_ok(const beams *b)
{
    return !b->failed && buffer_ok(&b->nodes) && buffer_ok(&b->logprobs) && buffer_ok(&b->offers);
}

/* ---- Rounds ----------------------------------------------------------------------------------------------------- */

static double sum_of(const beams *b, int32_t at)
{
    return at < 0 ? 0 : node_of(b, at)->sum;
}

static double score_of(const beams *b, double sum, int32_t made)
{
    return sum / pow((double)b->o.prompt_count + (double)made, b->o.length_penalty);
}

/* A new token behind live beam `beam`; -1: no memory. */
static int32_t add_node(beams *b, const candidate *c)
{
    int32_t at = (int32_t)(b->nodes.length / sizeof(node)), kept = b->o.kept;
    node n = {.before = b->live[c->beam], .token = c->token, .count = b->made + 1, .sum = c->sum};
    buffer_append(&b->nodes, &n, sizeof n);
    if (kept >= 0) buffer_append(&b->logprobs, &(hy_logprob){c->token, c->logprob}, sizeof(hy_logprob));
    if (kept > 0)
        buffer_append(&b->logprobs, b->kept + (size_t)c->beam * (size_t)kept, (size_t)kept * sizeof(hy_logprob));
    if (at < INT32_MAX - 1 && buffer_ok(&b->nodes) && buffer_ok(&b->logprobs)) return at;
    b->failed = true;
    return -1;
}

/* Among the best, behind those that are as good. */
static void finish(beams *b, int32_t at, bool ended, double sum, double score)
{
    int32_t i = b->best_count;
    if (i == b->o.width && !(score > b->best[i - 1].score)) return;
    if (i == b->o.width)
        i--;
    else
        b->best_count++;
    for (; i > 0 && score > b->best[i - 1].score; i--) b->best[i] = b->best[i - 1];
    b->best[i] = (finished){at, ended, sum, score};
}

void beams_offer(beams *b, int32_t i, const hy_logprob *best, size_t count)
{
    double before = sum_of(b, b->live[i]);
    size_t most = 2 * (size_t)b->o.width, kept = b->o.kept > 0 ? (size_t)b->o.kept : 0;
    for (size_t k = 0; k < kept; k++) b->kept[(size_t)i * kept + k] = k < count ? best[k] : (hy_logprob){-1, -INFINITY};
    for (size_t k = 0; k < count && k < most; k++) {
        if (best[k].token < 0 || !isfinite(best[k].logprob)) continue;
        candidate c = {i, best[k].token, before + (double)best[k].logprob, best[k].logprob};
        buffer_append(&b->offers, &c, sizeof c);
    }
}

/* The largest sums, in order: each beam's offers descend, so that the next one is first among some beam's. */
static size_t take_best(const candidate *list, size_t count, size_t most, candidate *out)
{
    size_t head[BEAMS_MOST], end[BEAMS_MOST], lists = 0, taken = 0;
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || list[i].beam != list[i - 1].beam) head[lists++] = i;
        end[lists - 1] = i + 1;
    }
    for (; taken < most; taken++) {
        size_t best = lists;
        for (size_t k = 0; k < lists; k++)
            if (head[k] < end[k] && (best == lists || list[head[k]].sum > list[head[best]].sum)) best = k;
        if (best == lists) break;
        out[taken] = list[head[best]++];
    }
    return taken;
}

/* Whether a live beam, at best, comes among the answers that there are. Sums only fall; a longer answer divides them by
 * more. */
static bool hopeless(const beams *b)
{
    if (b->best_count < b->o.width) return false;
    double top = -INFINITY;
    for (int32_t i = 0; i < b->live_count; i++) top = fmax(top, sum_of(b, b->live[i]));
    int32_t length = b->o.length_penalty > 0 ? b->o.max_tokens : b->made;
    return score_of(b, top, length) <= b->best[b->o.width - 1].score;
}

bool beams_advance(beams *b)
{
    size_t count = b->offers.length / sizeof(candidate), others = 0;
    candidate *list = (candidate *)(void *)b->offers.data;
    if (!beams_ok(b) || b->over) return false;
    for (size_t i = 0; i < count; i++) {
        if (!b->o.ends(b->o.user, list[i].token)) {
            list[others++] = list[i];
            continue;
        }
        double score = score_of(b, list[i].sum, b->made);
        if (b->best_count == b->o.width && !(score > b->best[b->best_count - 1].score)) continue;
        int32_t at = add_node(b, &list[i]);
        if (at >= 0) finish(b, at, true, list[i].sum, score);
    }
    candidate best[BEAMS_MOST];
    int32_t next[BEAMS_MOST], live = 0;
    size_t taken = take_best(list, others, (size_t)b->o.width, best);
    for (size_t i = 0; i < taken; i++) {
        int32_t at = add_node(b, &best[i]);
        if (at >= 0) next[live++] = at;
    }
    if (live) memcpy(b->live, next, (size_t)live * sizeof *next);
    b->live_count = live, b->made++;
    buffer_clear(&b->offers);
    if (beams_ok(b) && live > 0 && b->made < b->o.max_tokens && !hopeless(b)) return true;
    beams_stop(b);
    return false;
}

void beams_stop(beams *b)
{
    if (b->over) return;
    for (int32_t i = 0; i < b->live_count && beams_ok(b); i++) {
        if (b->live[i] < 0) continue;
        double sum = sum_of(b, b->live[i]);
        finish(b, b->live[i], false, sum, score_of(b, sum, b->made));
    }
    b->over = true;
}

/* ---- Answers ---------------------------------------------------------------------------------------------------- */

int32_t beams_answers(const beams *b)
{
    return b->best_count;
}

beams_answer beams_best(const beams *b, int32_t rank)
{
    const finished *f = &b->best[rank];
    return (beams_answer){node_of(b, f->node)->count, f->ended, f->sum, f->score};
}

void beams_tell(const beams *b, int32_t rank, int32_t *ids, hy_logprob *logprobs)
{
    int32_t at = b->best[rank].node;
    size_t each = 1 + (size_t)(b->o.kept > 0 ? b->o.kept : 0);
    tokens_of(b, at, ids);
    for (; at >= 0 && b->o.kept >= 0; at = node_of(b, at)->before)
        memcpy(logprobs + (size_t)(node_of(b, at)->count - 1) * each,
               (const hy_logprob *)(const void *)b->logprobs.data + (size_t)at * each, each * sizeof *logprobs);
}
