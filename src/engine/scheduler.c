#include "engine/scheduler.h"

#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

enum { EFFORT = 1 << 18 }; /* of looking for requests to admit, in a step: below a millisecond */

static int32_t fewest(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* ---- Queues --------------------------------------------------------------------------------------------------- */

/* `after` NULL: at the front. */
static void queue_insert(request_queue *q, hy_request *after, hy_request *r)
{
    r->before = after;
    r->next = after ? after->next : q->first;
    *(after ? &after->next : &q->first) = r;
    *(r->next ? &r->next->before : &q->last) = r;
    q->count++;
}

void queue_append(request_queue *q, hy_request *r)
{
    queue_insert(q, q->last, r);
}

void queue_remove(request_queue *q, hy_request *r)
{
    *(r->before ? &r->before->next : &q->first) = r->next;
    *(r->next ? &r->next->before : &q->last) = r->before;
    r->next = r->before = NULL;
    q->count--;
}

/* ---- Opening and closing -------------------------------------------------------------------------------------- */

hy_status scheduler_open(const scheduler_options *o, cache_manager *cache, scheduler *s, hy_error *err)
{
    size_t n = (size_t)o->max_sequences;
    s->o = *o;
    s->cache = cache;
    s->stride = blocks_for_tokens(o->max_len);
    s->running = memory_zeroed(n, sizeof *s->running);
    s->filling = memory_zeroed(n, sizeof *s->filling);
    s->free_slot = memory_zeroed(n, sizeof *s->free_slot);
    s->block_table = memory_zeroed(n * (size_t)s->stride, sizeof *s->block_table);
    if (!s->running || !s->filling || !s->free_slot || !s->block_table)
        return error_memory(err, "the scheduler", n * (size_t)s->stride * sizeof *s->block_table);
    while (s->free_slots < o->max_sequences)
        s->free_slot[s->free_slots] = o->max_sequences - 1 - s->free_slots, s->free_slots++;
    return HY_OK;
}

void scheduler_close(scheduler *s)
{
    memory_free(s->running);
    memory_free(s->filling);
    memory_free(s->free_slot);
    memory_free(s->block_table);
}

/* ---- Rank ------------------------------------------------------------------------------------------------------- */

static bool before(const scheduler *s, const hy_request *a, const hy_request *b)
{
    if (s->o.by_priority && a->priority != b->priority) return a->priority < b->priority;
    return a->number < b->number;
}

void scheduler_add(scheduler *s, hy_request *r)
{
    hy_request *after = s->waiting.last;
    while (after && before(s, r, after)) after = after->before;
    queue_insert(&s->waiting, after, r);
    r->waiting = true;
}

static void running_insert(scheduler *s, hy_request *r)
{
    int32_t i = s->running_count++;
    for (; i > 0 && before(s, r, s->running[i - 1]); i--) s->running[i] = s->running[i - 1];
    s->running[i] = r;
}

static void running_remove(scheduler *s, hy_request *r)
{
    int32_t i = 0;
    while (s->running[i] != r) i++;
    for (s->running_count--; i < s->running_count; i++) s->running[i] = s->running[i + 1];
}

/* ---- Rows ----------------------------------------------------------------------------------------------------- */

/* Tokens that will be there when the steps under way are over. */
static int32_t expected(const hy_request *r)
{
    return request_known(r) + r->pending;
}

/* Rows that it could have now, without drafts. The last token of all is never computed: nothing follows it. */
static int32_t wanted(const hy_request *r)
{
    return r->cache.loading > 0 || r->awaits || expected(r) == r->limit ? 0 : expected(r) - r->computed;
}

/* The choice of the token at `position`; those before it stand in the request's ids by then. */
static void describe_sample(const hy_request *r, int32_t row, int32_t position, ops_sample *out)
{
    const hy_sampling *s = &r->params.s;
    const size_t place = request_place(r, position);
    *out = (ops_sample){
        .logit_row = row,
        .seed = (uint64_t)r->seed,
        .position = (uint32_t)position,
        .choice = (uint32_t)r->choice,
        .temperature = s->temperature,
        .top_p = s->top_p,
        .min_p = s->min_p,
        .top_k = s->top_k,
        .repetition_penalty = s->repetition_penalty,
        .frequency_penalty = s->frequency_penalty,
        .presence_penalty = s->presence_penalty,
        .prompt = r->ids,
        .prompt_count = r->prompt_count,
        .output = r->ids + r->prompt_count,
        .output_count = position - r->prompt_count,
        .allowed = s->allowed_ids,
        .allowed_count = (int32_t)s->allowed_count,
        .min_tokens = s->min_tokens,
        .end_ids = r->params.end_ids,
        .end_id_count = r->params.end_count,
        .bias = s->bias,
        .bias_count = (int32_t)s->bias_count,
        .bad_words = s->bad_words,
        .bad_word_lengths = s->bad_word_lengths,
        .bad_word_count = (int32_t)s->bad_word_count,
        .logprobs = s->logprobs,
        .best = r->best ? r->best + place * (size_t)s->logprobs : NULL,
        .logprobs_mode = s->logprobs_mode,
        .score_ids = s->logprob_ids,
        .score_count = (int32_t)s->logprob_id_count,
        .scores = r->scores ? r->scores + place * s->logprob_id_count : NULL,
    };
}

/* The token behind `position` of a prompt is known: it is the one that may be chosen, so that what a choice is told
 * with is told of it. Many best go where they stay at once, but for those that the owner may be reading already. */
static void describe_score(const hy_request *r, int32_t row, int32_t position, ops_sample *out)
{
    int32_t n = r->params.s.prompt_logprobs;
    *out = (ops_sample){
        .logit_row = row,
        .position = (uint32_t)position + 1,
        .top_p = 1,
        .repetition_penalty = 1,
        .allowed = r->ids + position + 1,
        .allowed_count = 1,
        .logprobs = r->prompt_ranks[position] > 0 ? -1 : n,
        .best = r->prompt_logprobs + (size_t)position * (1 + (size_t)n) + 1,
    };
}

/* Whether the row at `position` says how likely the prompt's next token was. */
static bool scores(const hy_request *r, int32_t position)
{
    return r->prompt_logprobs && position + 1 < r->prompt_count;
}

static void put_pick(step *p, hy_request *r, int32_t member, bool score, bool follows)
{
    p->score[p->pick_count] = score;
    p->follows[p->pick_count] = follows;
    p->pick_member[p->pick_count] = member;
    p->pick[p->pick_count++] = r;
}

static int32_t new_member(step *p, hy_request *r, int32_t rows)
{
    int32_t m = p->member_count++;
    p->member[m] = (step_member){.request = r,
                                 .epoch = r->epoch,
                                 .slot = r->slot,
                                 .begin = r->computed,
                                 .rows = rows,
                                 .draft = p->draft + (int64_t)m * p->drafts};
    r->steps++, r->planned = p->serial;
    r->draft_count = 0; /* drafts are for its next rows only */
    return m;
}

/* The last token's row and those of `drafts` of its drafts, whose blocks are there. */
static void put_verified(scheduler *s, step *p, hy_request *r, int32_t drafts)
{
    int32_t m = new_member(p, r, 1 + drafts), known = request_known(r);
    p->member[m].picks = true, p->member[m].verified = drafts;
    for (int32_t j = 0; j <= drafts; j++) {
        int32_t at = known - 1 + j;
        if (j > 0) r->ids[at] = r->draft[j - 1];
        step_add_row(p, m, r->slot, at, r->ids[at], cache_slot(s->cache, &r->cache, at), true);
        describe_sample(r, p->pick_count, at + 1, &p->sample[p->pick_count]);
        put_pick(p, r, m, false, j > 0);
    }
    r->computed = known + drafts;
    r->pending++;
}

/* The next `count` rows of a request, whose blocks are there. */
static void put_rows(scheduler *s, step *p, hy_request *r, int32_t count)
{
    int32_t m = new_member(p, r, count), end = expected(r);
    for (int32_t at = r->computed; at < r->computed + count; at++) {
        bool here = at < request_known(r);
        bool scored = scores(r, at);
        step_add_row(p, m, r->slot, at, here ? r->ids[at] : -1, cache_slot(s->cache, &r->cache, at),
                     at + 1 == end || scored);
        if (!scored) continue;
        describe_score(r, p->pick_count, at, &p->sample[p->pick_count]);
        put_pick(p, r, m, true, false);
        p->score_count++;
    }
    r->computed += count;
    if (r->computed < end) return;
    describe_sample(r, p->pick_count, end, &p->sample[p->pick_count]);
    p->member[m].picks = true;
    put_pick(p, r, m, false, false);
    r->pending++;
}

/* ---- Preemption ------------------------------------------------------------------------------------------------- */

static void preempt(scheduler *s, hy_request *r)
{
    running_remove(s, r);
    cache_leave(s->cache, &r->cache);
    s->free_slot[s->free_slots++] = r->slot;
    r->slot = -1, r->computed = 0, r->draft_count = 0;
    r->epoch++, r->preemptions++;
    s->preemptions++;
    scheduler_add(s, r);
}

/* Room for `count` more rows of a request, if need be at the cost of those of lower rank, the lowest first. False: it
 * must wait, or was itself the lowest and has lost its cache. */
static bool make_room(scheduler *s, const step *p, hy_request *r, int32_t count, bool *preempted)
{
    while (!cache_grow(s->cache, &r->cache, r->computed + count)) {
        hy_request *victim = NULL;
        for (int32_t i = s->running_count - 1; i >= 0 && !victim; i--) {
            hy_request *v = s->running[i];
            if (v == r || !before(s, r, v)) break;
            if (v->cache.loading == 0 && v->planned != p->serial) victim = v;
        }
        if (!victim && r != s->running[s->running_count - 1]) return false;
        *preempted = true;
        preempt(s, victim ? victim : r);
        if (!victim) return false;
    }
    return true;
}

/* ---- Admission -------------------------------------------------------------------------------------------------- */

/* Equal tokens at the beginning, at most `most`. */
static int32_t common(const hy_request *a, const hy_request *b, int32_t most)
{
    int32_t i = 0;
    while (i + CACHE_BLOCK <= most && memcmp(a->ids + i, b->ids + i, CACHE_BLOCK * sizeof *a->ids) == 0)
        i += CACHE_BLOCK;
    while (i < most && a->ids[i] == b->ids[i]) i++;
    return i;
}

static bool same_salt(const hy_request *a, const hy_request *b)
{
    const char *x = a->salt ? a->salt : "", *y = b->salt ? b->salt : "";
    while (*x && *x == *y) x++, y++;
    return *x == *y;
}

static bool fills(const hy_request *r)
{
    return r->cache.written < r->prompt_count;
}

static bool has_leader(const scheduler *s, const hy_request *r)
{
    for (int32_t i = 0; r->leader && i < s->filling_count; i++)
        if (s->filling[i] == r->leader && r->leader->number == r->leader_number)
            return r->leader->cache.written < r->leader_tokens;
    return false;
}

/* Whether a running request is computing much of what this one needs: at least a block, or half of it. `effort` goes
 * down by about the tokens that were looked at. */
static bool follows(scheduler *s, hy_request *r, int64_t *effort)
{
    *effort -= 1 + s->filling_count;
    if (r->cache.apart) return false;
    if (has_leader(s, r)) return true;
    r->leader = NULL;
    int32_t there = -1, most = 0, need = request_known(r);
    for (int32_t i = 0; i < s->filling_count; i++) {
        const hy_request *q = s->filling[i];
        int32_t written = q->cache.written, limit = fewest(fewest(q->prompt_count, r->prompt_count), need - 1);
        if (limit <= written || limit <= most || q->ids[written] != r->ids[written] || !same_salt(q, r)) continue;
        int32_t same = common(q, r, limit);
        *effort -= same / 8; /* many at a time */
        if (same <= written || same <= most) continue;
        if (there < 0) {
            there = cache_peek(s->cache, r->salt, r->ids, need);
            *effort -= there;
        }
        if (there < 0) return false; /* nothing is ever found */
        int32_t gain = same - there;
        if (gain < CACHE_BLOCK && gain * 2 < need - there) continue;
        most = same;
        r->leader = q, r->leader_number = q->number, r->leader_tokens = same;
    }
    return r->leader != NULL;
}

/* The first waiting request that can start, if any. Those that follow another are passed; one that does not fit is not.
 * Looking through a long queue ends with the effort for one step. */
static hy_request *admit(scheduler *s, int64_t *effort)
{
    if (s->free_slots == 0) return NULL;
    hy_request *r = s->waiting.first;
    while (r && follows(s, r, effort)) r = *effort > 0 ? r->next : NULL;
    if (!r) return NULL;
    int32_t slot = s->free_slot[s->free_slots - 1];
    r->cache.table = (block_table){.block = s->block_table + (int64_t)slot * s->stride, .capacity = s->stride};
    if (!cache_admit(s->cache, &r->cache, r->ids, request_known(r), s->running_count > 0 ? s->o.spare : 0)) return NULL;
    queue_remove(&s->waiting, r);
    r->waiting = false;
    s->free_slots--;
    r->slot = slot;
    if (r->admitted == 0) r->admitted = clock_seconds();
    running_insert(s, r);
    if (fills(r)) s->filling[s->filling_count++] = r;
    return r;
}

/* Once its blocks are there: where it starts. */
static void start(scheduler *s, step *p, hy_request *r)
{
    if (r->cache.loading > 0 || r->cache.tail_looked) return;
    if (cache_tail(s->cache, &r->cache, request_known(r), &p->copy[p->copy_count])) {
        p->copier[p->copy_count++] = r;
        r->steps++; /* with or without rows: what is copied to stays its own until then */
    }
    r->computed = r->cache.written;
}

static void report(scheduler *s, hy_request *r)
{
    if (r->reused || r->cache.loading > 0) return;
    r->reused = true;
    r->reuse = r->cache.reuse, r->miss = r->cache.miss;
    if (s->admitted) s->admitted(s->user, r);
}

/* ---- Planning --------------------------------------------------------------------------------------------------- */

/* At most `most` more rows of a request. */
static void put_some(scheduler *s, step *p, hy_request *r, int32_t most, bool *preempted)
{
    int32_t count = fewest(wanted(r), fewest(most, s->o.max_rows - p->rows.count));
    if (s->o.threshold > 0) count = fewest(count, s->o.threshold);
    if (scores(r, r->computed)) count = fewest(count, STEP_SCORES - p->score_count);
    if (count > 0 && make_room(s, p, r, count, preempted)) put_rows(s, p, r, count);
}

/* The last token's row, and its drafts as far as there are rows and blocks that nobody needs more. */
static void put_decoding(scheduler *s, step *p, hy_request *r, int32_t most_drafts, bool *preempted)
{
    int32_t drafts = fewest(fewest(r->draft_count, most_drafts), s->o.max_rows - p->rows.count - 1);
    if (s->o.threshold > 0) drafts = fewest(drafts, s->o.threshold - 1);
    if (drafts > 0 && cache_grow(s->cache, &r->cache, r->computed + 1 + drafts))
        put_verified(s, p, r, drafts);
    else
        put_some(s, p, r, 1, preempted);
}

/* Drafts that each request may have verified: the same for all, of the rows that are left when all that decode have
 * one; half of them while prompts are to be computed. */
static int32_t share_of_drafts(const scheduler *s)
{
    int32_t decoding = 0;
    bool prompts = s->waiting.first != NULL;
    for (int32_t i = 0; i < s->running_count && s->o.drafts > 0; i++) {
        const hy_request *r = s->running[i];
        decoding += wanted(r) == 1;
        prompts |= wanted(r) > 1 || !r->cache.tail_looked;
    }
    int32_t left = s->o.max_rows - decoding;
    return decoding == 0 || left <= 0 ? 0 : (prompts ? left / 2 : left) / decoding;
}

/* Requests that decode, and those whose blocks have come. A preempted one shifts those behind it: the index stays when
 * the place has another one. */
static void plan_decoding(scheduler *s, step *p, bool *preempted)
{
    int32_t drafts = share_of_drafts(s);
    for (int32_t i = 0; i < s->running_count && p->rows.count < s->o.max_rows;) {
        hy_request *r = s->running[i];
        start(s, p, r);
        if (wanted(r) == 1) put_decoding(s, p, r, drafts, preempted);
        report(s, r);
        i += i < s->running_count && s->running[i] == r;
    }
}

/* How many drafts are made behind each pick. Who has any, or verifies some, is not planned until the step is over. */
static void want_drafts(const scheduler *s, step *p)
{
    int32_t picking = 0, most = s->o.drafts;
    for (int32_t m = 0; m < p->member_count; m++) picking += p->member[m].picks;
    if (s->o.by_batch && picking > 0) most = fewest(most, s->o.by_batch[fewest(picking, s->o.by_batch_count) - 1]);
    for (int32_t m = 0; m < p->member_count; m++) {
        step_member *x = &p->member[m];
        hy_request *r = x->request;
        /* Of what may still come the last one is picked, not drafted; without verification one token comes. */
        if (x->picks && request_known(r) + r->pending < r->limit - 1) x->wanted = fewest(most, r->drafts);
        r->awaits |= x->verified > 0 || x->wanted > 0;
    }
}

/* Requests that compute their prompts; returns how many want to. With `count_only` they get nothing. */
static int32_t plan_prompts(scheduler *s, step *p, bool count_only, bool *preempted)
{
    int32_t found = 0;
    for (int32_t i = 0; i < s->running_count && p->rows.count < s->o.max_rows;) {
        hy_request *r = s->running[i];
        bool wants = r->planned != p->serial && wanted(r) > 0;
        found += wants;
        if (wants && !count_only) put_some(s, p, r, s->o.max_rows, preempted);
        i += i < s->running_count && s->running[i] == r;
    }
    return found;
}

static void plan_admissions(scheduler *s, step *p, int32_t most, bool *preempted)
{
    int64_t effort = EFFORT;
    int32_t end = p->rows.count + most;
    s->filling_count = 0;
    for (int32_t i = 0; i < s->running_count && s->waiting.first; i++)
        if (fills(s->running[i])) s->filling[s->filling_count++] = s->running[i];
    while (!*preempted && p->rows.count < end) {
        hy_request *r = admit(s, &effort);
        if (!r) break;
        start(s, p, r);
        report(s, r);
        put_some(s, p, r, end - p->rows.count, preempted);
    }
}

int32_t scheduler_plan(scheduler *s, step *p)
{
    bool preempted = false;
    step_clear(p);
    p->serial = ++s->steps;
    p->rows.sequences = s->o.max_sequences, p->rows.block_table = s->block_table,
    p->rows.block_table_stride = s->stride;
    plan_decoding(s, p, &preempted);
    /* Who has just come need not wait for the end of a long prompt: half of what is left is for them. */
    int32_t left = s->o.max_rows - p->rows.count;
    plan_admissions(s, p, plan_prompts(s, p, true, &preempted) > 0 ? left / 2 : left, &preempted);
    plan_prompts(s, p, false, &preempted);
    if (s->o.drafts > 0) want_drafts(s, p);
    return p->rows.count;
}

/* ---- After a step ----------------------------------------------------------------------------------------------- */

/* Tokens of the prompt up to `end` are done, what was reused as well. */
static void count_prompt(hy_request *r, int32_t end, scheduler_prompts *prompts)
{
    int32_t seen = fewest(end, r->prompt_count), before = r->prompt_seen;
    if (seen <= before) return;
    int32_t cached = fewest(seen, r->reuse.cache), reused = fewest(seen, r->reuse.tokens);
    int32_t cached_before = fewest(before, r->reuse.cache), reused_before = fewest(before, r->reuse.tokens);
    prompts->tokens += seen - before;
    prompts->cached += cached - cached_before;
    prompts->loaded += reused - cached - (reused_before - cached_before);
    r->prompt_seen = seen;
}

scheduler_prompts scheduler_finished(scheduler *s, step *p)
{
    scheduler_prompts prompts = {0};
    for (int32_t i = 0; i < p->copy_count; i++) {
        cache_copied(s->cache, &p->copy[i]);
        p->copier[i]->steps--;
    }
    for (int32_t i = 0; i < p->member_count; i++) {
        step_member *m = &p->member[i];
        hy_request *r = m->request;
        r->steps--;
        r->pending -= m->picks;
        if (m->verified > 0 || m->wanted > 0) r->awaits = false;
        if (p->status != HY_OK || m->dropped) continue;
        count_prompt(r, m->begin + m->rows, &prompts);
        if (m->epoch != r->epoch || r->gone) continue;
        /* Rows of drafts that were not accepted are written again. */
        int32_t rows = m->verified > 0 ? m->came : m->rows;
        if (m->verified > 0) r->computed = m->begin + rows;
        cache_wrote(s->cache, &r->cache, m->begin + rows);
        r->draft_count = m->draft_count;
        for (int32_t k = 0; k < m->draft_count; k++) r->draft[k] = m->draft[k];
    }
    return prompts;
}

void scheduler_end(scheduler *s, hy_request *r)
{
    assert(!r->gone);
    if (r->waiting)
        queue_remove(&s->waiting, r);
    else
        running_remove(s, r);
    r->waiting = false, r->gone = true;
    queue_append(&s->leaving, r);
}

hy_request *scheduler_release(scheduler *s)
{
    hy_request *r = s->leaving.first;
    while (r && (r->steps > 0 || r->cache.loading > 0)) r = r->next;
    if (!r) return NULL;
    queue_remove(&s->leaving, r);
    if (r->slot >= 0) {
        cache_leave(s->cache, &r->cache);
        s->free_slot[s->free_slots++] = r->slot;
        r->slot = -1;
    }
    return r;
}
