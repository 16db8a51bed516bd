/*
 * No request can tell who else was served.
 *
 *     independence [--gpu] short|long [SEED [REQUESTS [TOKENS [STORMS]]]]
 *
 * Requests with random lengths, parameters and seeds run alone: one at a time, in chunks of one size, without prefix
 * cache. Then they run in storms: they arrive at random from two threads, some are cancelled or late, the cache is so
 * small that running ones lose theirs, chunks, limits and policies are drawn, prefixes are shared, come back from
 * memory and disk, drafts are verified by steps of up to seven, and the engine is closed and opened again in the middle. Every token id and every log-probability
 * must be what it was alone, up to where a cancelled request ended. A line for each half of a storm says what happened
 * in it, so that one sees that it stormed. With --gpu all of it is on the cuda backend.
 */
#include <pthread.h>

#include "engine/storm.h"

enum { MAX_NEW = 64, LISTS = 3, WORD = 3, ALLOWED = 48, BIASES = 6 };

/* One request, and what it answers when it is alone. */
typedef struct subject {
    int32_t *prompt; /* [count] owned */
    int32_t count, choice;
    int32_t group; /* forks of one prompt share it, and are submitted one after the other */
    hy_sampling sampling;
    int32_t stop_ids[LISTS], allowed[ALLOWED], words[LISTS][WORD];
    const int32_t *word[LISTS];
    size_t word_length[LISTS];
    hy_token_bias bias[BIASES];
    storm_answer alone;
} subject;

/* The same request in a storm. */
typedef struct run {
    const subject *subject;
    hy_request_options options;
    storm_answer got;
    double wait;   /* seconds before it is submitted, after the one before it */
    double cancel; /* seconds after the submission; below 0: never */
    double submitted;
    bool may_end;                  /* early: it is cancelled or has a deadline */
    _Atomic(hy_request *) request; /* NULL until submitted */
} run;

typedef struct half {
    hy_engine *engine;
    run *runs; /* [count] in the order of arrival */
    int count;
    atomic_int next;
    pthread_mutex_t order; /* forks arrive together */
} half;

/* What all storms saw together. */
static struct totals {
    uint64_t preemptions, cache, memory, disk, drafts;
} total;

/* ---- Requests ------------------------------------------------------------------------------------------------- */

static void draw_lists(uint64_t *state, subject *s)
{
    hy_sampling *p = &s->sampling;
    if (storm_chance(state, 30)) {
        for (int i = 0; i < LISTS; i++) s->stop_ids[i] = storm_between(state, 0, STORM_VOCAB - 1);
        p->stop_ids = s->stop_ids, p->stop_id_count = (size_t)storm_between(state, 1, LISTS);
    }
    if (storm_chance(state, 15)) {
        for (int i = 0; i < ALLOWED; i++) s->allowed[i] = 3 + i * 7 + storm_between(state, 0, 6);
        p->allowed_ids = s->allowed, p->allowed_count = ALLOWED;
    }
    if (storm_chance(state, 25)) {
        for (int i = 0; i < BIASES; i++)
            s->bias[i] = (hy_token_bias){storm_between(state, 0, STORM_VOCAB - 1), (float)storm_between(state, -8, 4)};
        p->bias = s->bias, p->bias_count = (size_t)storm_between(state, 1, BIASES);
    }
    if (storm_chance(state, 25)) {
        for (int i = 0; i < LISTS; i++) {
            /* Of the prompt's last tokens too, so that words of several ids begin there. */
            storm_tokens(state, s->words[i], WORD);
            if (storm_chance(state, 50)) s->words[i][0] = s->prompt[s->count - 1];
            s->word[i] = s->words[i], s->word_length[i] = (size_t)storm_between(state, 1, WORD);
        }
        p->bad_words = s->word, p->bad_word_lengths = s->word_length, p->bad_word_count = LISTS;
    }
}

static void draw_sampling(uint64_t *state, const hy_model *model, subject *s)
{
    static const float temperatures[] = {0, 0.7f, 1};
    hy_sampling *p = &s->sampling;
    *p = hy_sampling_defaults(model);
    p->temperature = temperatures[storm_between(state, 0, 2)];
    p->top_k = storm_chance(state, 40) ? storm_between(state, 1, 60) : 0;
    p->top_p = storm_chance(state, 40) ? (float)storm_between(state, 30, 100) / 100 : 1;
    p->min_p = storm_chance(state, 25) ? (float)storm_between(state, 0, 20) / 100 : 0;
    p->repetition_penalty = storm_chance(state, 30) ? (float)storm_between(state, 80, 140) / 100 : 1;
    p->frequency_penalty = storm_chance(state, 25) ? (float)storm_between(state, -100, 100) / 100 : 0;
    p->presence_penalty = storm_chance(state, 25) ? (float)storm_between(state, -100, 100) / 100 : 0;
    p->seed = (int64_t)(storm_bits(state) >> 1);
    p->max_tokens = storm_chance(state, 50) ? MAX_NEW : storm_between(state, 1, MAX_NEW);
    p->min_tokens = storm_chance(state, 20) ? storm_between(state, 1, p->max_tokens) : 0;
    p->logprobs = storm_chance(state, 50) ? storm_between(state, 0, STORM_LOGPROBS) : -1;
    p->ignore_eos = storm_chance(state, 50);
    draw_lists(state, s);
}

/* Lengths around the ends of blocks are the ones where prefixes go wrong; those a little below them need another block
 * for their answer, which in a full cache costs somebody his. */
static int32_t draw_length(uint64_t *state, int32_t most)
{
    int32_t n = storm_chance(state, 50) ? storm_between(state, 1, most) : storm_spread(state, 1, most);
    int kind = storm_between(state, 1, 10);
    if (kind <= 3) n = (n + 64) / 128 * 128 + storm_between(state, -1, 1);
    if (kind >= 8) n = (n + 127) / 128 * 128 - storm_between(state, 0, 24);
    return n < 1 ? 1 : n > most ? most : n;
}

/* A prompt of at most `most` tokens: new, or one that shares with those before it. */
static void draw_prompt(uint64_t *state, const subject *all, int made, int32_t most, subject *s)
{
    int32_t shared = 0, kind = made ? storm_between(state, 1, 100) : 100;
    const subject *other = made ? &all[storm_between(state, 0, made - 1)] : NULL;
    s->count = draw_length(state, most);
    s->prompt = calloc((size_t)most, sizeof *s->prompt);
    if (!s->prompt) storm_fail("no memory");
    if (kind <= 15) { /* the same prompt */
        shared = s->count = other->count;
    } else if (kind <= 60) { /* a prefix of one, and then other tokens or none */
        shared = draw_length(state, other->count);
        if (s->count < shared) s->count = shared;
    } else if (kind <= 80) { /* a conversation goes on */
        shared = other->count;
        int32_t answer = (int32_t)other->alone.count, left = most - shared - answer;
        if (left > 0) {
            memcpy(s->prompt + shared, other->alone.ids, (size_t)answer * sizeof *s->prompt);
            s->count = shared + answer + storm_spread(state, 1, left < 200 ? left : 200);
            storm_tokens(state, s->prompt + shared + answer, s->count - shared - answer);
            memcpy(s->prompt, other->prompt, (size_t)shared * sizeof *s->prompt);
            return;
        }
        s->count = shared;
    }
    if (shared) memcpy(s->prompt, other->prompt, (size_t)shared * sizeof *s->prompt);
    storm_tokens(state, s->prompt + shared, s->count - shared);
}

/* Another answer to the same prompt. */
static void fork_subject(const subject *of, int32_t choice, subject *s)
{
    *s = *of;
    s->choice = choice;
    s->prompt = calloc((size_t)of->count, sizeof *s->prompt);
    if (!s->prompt) storm_fail("no memory");
    memcpy(s->prompt, of->prompt, (size_t)of->count * sizeof *s->prompt);
    if (s->sampling.stop_ids) s->sampling.stop_ids = s->stop_ids;
    if (s->sampling.allowed_ids) s->sampling.allowed_ids = s->allowed;
    if (s->sampling.bias) s->sampling.bias = s->bias;
    for (int i = 0; i < LISTS; i++) s->word[i] = s->words[i];
    if (s->sampling.bad_words) s->sampling.bad_words = s->word, s->sampling.bad_word_lengths = s->word_length;
}

static hy_request_options options_of(const hy_model *model, const subject *s)
{
    hy_request_options o = hy_request_defaults(model);
    o.prompt_ids = s->prompt, o.prompt_count = (size_t)s->count;
    o.sampling = s->sampling, o.choice = s->choice;
    return o;
}

/* Draws all requests and runs each by itself. */
static void run_alone(uint64_t *state, hy_model *model, subject *all, int count, int32_t tokens)
{
    hy_engine *engine = NULL;
    hy_engine_options alone = {.max_num_seqs = 1, .prefix_caching = "off", .log_seconds = -1};
    alone.cache_bytes = (uint64_t)(tokens + MAX_NEW + 127) / 128 * storm_block_bytes(model);
    STORM_OK(hy_engine_open(model, &alone, &engine, &storm_error));
    int forks = 0;
    size_t made = 0, prompts = 0;
    for (int i = 0; i < count; i++) {
        subject *s = &all[i];
        if (forks > 0) {
            fork_subject(&all[i - 1], all[i - 1].choice + 1, s);
            forks--;
        } else {
            draw_prompt(state, all, i, tokens, s);
            draw_sampling(state, model, s);
            s->group = i;
            if (storm_chance(state, 15)) forks = storm_between(state, 1, 4);
        }
        storm_answer_open(&s->alone, (size_t)s->sampling.max_tokens);
        hy_request_options o = options_of(model, s);
        storm_finish(storm_submit(engine, o, &s->alone), &o, &s->alone);
        made += s->alone.count, prompts += (size_t)s->count;
    }
    hy_engine_close(engine);
    printf("alone: %d requests, %zu prompt tokens, %zu answered\n", count, prompts, made);
    fflush(stdout);
}

/* ---- Storms --------------------------------------------------------------------------------------------------- */

static void draw_run(uint64_t *state, const hy_model *model, const subject *s, run *r)
{
    static const char *const salts[] = {"a", "b", ""};
    *r = (run){.subject = s, .options = options_of(model, s), .cancel = -1};
    storm_answer_open(&r->got, (size_t)s->sampling.max_tokens);
    r->options.priority = storm_between(state, -3, 3);
    if (storm_chance(state, 25)) r->options.cache_salt = salts[storm_between(state, 0, 2)];
    r->options.no_prefix_cache = storm_chance(state, 10);
    r->wait = storm_chance(state, 60) ? 0 : storm_spread(state, 10, 20000) * 1e-6;
    int fate = storm_between(state, 1, 100);
    if (fate <= 8) r->got.stop_after = storm_between(state, 1, s->sampling.max_tokens);
    if (fate > 8 && fate <= 20) r->cancel = storm_spread(state, 10, 300000) * 1e-6;
    if (fate > 20 && fate <= 24) r->options.deadline_s = storm_spread(state, 1000, 300000) * 1e-6;
    r->may_end = fate <= 24;
}

/* The order of arrival: groups of forks stay together. */
static void shuffle(uint64_t *state, run *runs, int count)
{
    run *from = malloc((size_t)count * sizeof *from);
    int *start = malloc(((size_t)count + 1) * sizeof *start), groups = 0, at = 0;
    if (!from || !start) storm_fail("no memory");
    memcpy(from, runs, (size_t)count * sizeof *from);
    for (int i = 0; i < count; i++)
        if (i == 0 || from[i].subject->group != from[i - 1].subject->group) start[groups++] = i;
    for (; groups > 0; groups--) {
        int pick = storm_between(state, 0, groups - 1), i = start[pick];
        do {
            runs[at++] = from[i++];
        } while (i < count && from[i].subject->group == from[i - 1].subject->group);
        start[pick] = start[groups - 1];
    }
    free(from);
    free(start);
}

static void *arrivals(void *arg)
{
    half *h = arg;
    for (;;) {
        pthread_mutex_lock(&h->order);
        int first = atomic_load(&h->next), end = first + 1;
        while (end < h->count && h->runs[end].subject->group == h->runs[first].subject->group) end++;
        if (first < h->count) atomic_store(&h->next, end);
        pthread_mutex_unlock(&h->order);
        if (first >= h->count) return NULL;
        storm_sleep(h->runs[first].wait);
        for (int i = first; i < end; i++) {
            run *r = &h->runs[i];
            r->submitted = clock_seconds();
            atomic_store(&r->request, storm_submit(h->engine, r->options, &r->got));
        }
    }
}

/* Cancels whose time has come, until the others are all submitted and no cancellation is left. */
static void cancel_some(half *h)
{
    for (bool left = true; left; storm_sleep(0.0005)) {
        left = false;
        for (int i = 0; i < h->count; i++) {
            run *r = &h->runs[i];
            if (r->cancel < 0) continue;
            hy_request *request = atomic_load(&r->request);
            if (request && clock_seconds() >= r->submitted + r->cancel) {
                hy_request_cancel(request);
                r->cancel = -1;
            }
            left |= r->cancel >= 0;
        }
    }
}

static void compare(const run *r, const char *where)
{
    const storm_answer *a = &r->subject->alone, *b = &r->got;
    static const char *const finish[] = {"running", "stop", "length", "cancel", "error"};
    const char *what;
    bool cut = b->finish == HY_FINISH_CANCEL || b->status == HY_LATE;
    what = storm_differs(a, b, a->count < b->count ? a->count : b->count);
    if (!what && (b->count > a->count || (!cut && b->count != a->count))) what = "it has another number of tokens";
    if (!what && !cut && (a->finish != b->finish || a->stop_id != b->stop_id || a->status != b->status))
        what = "it ended another way";
    if (!what && cut && !r->may_end) what = "nobody cancelled it and it was cancelled";
    if (what)
        storm_fail("%s: a request of %d prompt tokens (choice %d, %d reused, %d preemptions) gave %zu tokens "
                   "(%s%s%s) and alone %zu: %s",
                   where, r->subject->count, r->subject->choice, b->reuse.tokens, b->preemptions, b->count,
                   finish[b->finish], *b->error ? ": " : "", b->error, a->count, what);
}

static void report(const half *h, const hy_engine_options *o, uint64_t blocks, const char *where)
{

    hy_engine_stats s;
    int cancelled = 0, late = 0;
    hy_engine_describe(h->engine, &s);
    for (int i = 0; i < h->count; i++) {
        cancelled += h->runs[i].got.finish == HY_FINISH_CANCEL;
        late += h->runs[i].got.status == HY_LATE;
    }
    printf("%s: %d requests, %d cancelled, %d late; %llu steps of up to %d rows, %d sequences, %llu blocks, %s, %llu drafts "
           "(%llu accepted): %llu preemptions; tokens from cache %llu, memory %llu, disk %llu; misses",
           where, h->count, cancelled, late, (unsigned long long)s.steps, o->max_num_batched_tokens, o->max_num_seqs,
           (unsigned long long)blocks, o->scheduling_policy, (unsigned long long)s.drafts,
           (unsigned long long)s.drafts_accepted, (unsigned long long)s.preemptions,
           (unsigned long long)s.prefix_hits, (unsigned long long)s.memory_hits, (unsigned long long)s.disk_hits);
    for (int i = 0; i < HY_MISS_REASONS; i++)
        if (s.misses[i]) printf(" %s %llu", hy_miss_name((hy_miss)i), (unsigned long long)s.misses[i]);
    printf("\n");
    fflush(stdout);
    if (s.running || s.waiting) storm_fail("%s: all have ended and %d run, %d wait", where, s.running, s.waiting);
    total.preemptions += s.preemptions, total.drafts += s.drafts;
    total.cache += s.prefix_hits, total.memory += s.memory_hits, total.disk += s.disk_hits;
}

/* One engine from its opening to its end. */
static void run_half(uint64_t *state, hy_model *model, run *runs, int count, const hy_engine_options *o,
                     uint64_t blocks, const char *where)
{
    half h = {.runs = runs, .count = count};
    pthread_t thread[2];
    shuffle(state, runs, count);
    pthread_mutex_init(&h.order, NULL);
    STORM_OK(hy_engine_open(model, o, &h.engine, &storm_error));
    for (int i = 0; i < 2; i++)
        if (pthread_create(&thread[i], NULL, arrivals, &h) != 0) storm_fail("could not start a thread");
    cancel_some(&h);
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < count; i++) {
        storm_finish(atomic_load(&runs[i].request), &runs[i].options, &runs[i].got);
        compare(&runs[i], where);
    }
    report(&h, o, blocks, where);
    hy_engine_close(h.engine);
    pthread_mutex_destroy(&h.order);
}

/* `kind`: 0 tiers in memory and on disk, 1 memory, 2 disk, 3 no tier, 4 no prefix cache. */
static hy_engine_options draw_engine(uint64_t *state, uint64_t row, uint64_t blocks, int kind, const char *disk)
{
    hy_engine_options o = {.log_seconds = -1};
    o.max_num_batched_tokens = storm_spread(state, 7, 512);
    o.max_num_seqs = storm_spread(state, 12, 64);
    o.long_prefill_token_threshold = storm_chance(state, 50) ? storm_spread(state, 1, 300) : 0;
    o.scheduling_policy = storm_chance(state, 50) ? "fcfs" : "priority";
    o.watermark = storm_chance(state, 70) ? 0 : storm_between(state, 0, 15) / 100.0;
    o.speculation.drafts = storm_chance(state, 50) ? storm_between(state, 1, 7) : 0;
    o.cache_bytes = blocks * row;
    o.prefix_caching = kind == 4 ? "off" : "on";
    if (kind <= 1) o.offload_memory = (uint64_t)storm_between(state, 2, 40) * row;
    if (kind == 0 || kind == 2) {
        o.offload_disk = disk;
        o.offload_disk_bytes = (uint64_t)storm_between(state, 100, 2000) * row;
    }
    return o;
}

static void run_storm(uint64_t *state, hy_model *model, const subject *all, int count, int32_t tokens, int number)
{
    static const int kinds[] = {0, 2, 4, 1}; /* of the first halves; later ones are drawn */
    uint64_t row = storm_block_bytes(model), longest = (uint64_t)(tokens + MAX_NEW + 127) / 128;
    char disk[96], where[48];
    int first = 0;
    snprintf(disk, sizeof disk, "%s/blocks", storm_folder);
    run *runs = calloc((size_t)count, sizeof *runs);
    if (!runs) storm_fail("no memory");
    /* Forks are in one half. */
    for (int i = 0; i < count; i++) draw_run(state, model, &all[i], &runs[i]);
    first = count / 2;
    while (first < count && all[first].group == all[first - 1].group) first++;
    for (int i = 0; i < 2; i++) {
        int kind = number < 2 ? kinds[2 * number + i] : storm_between(state, 0, 4);
        uint64_t blocks = longest + (uint64_t)storm_between(state, 1, 1 + (int32_t)longest / 2);
        hy_engine_options o = draw_engine(state, row, blocks, kind, disk);
        snprintf(where, sizeof where, "storm %d, %s half", number + 1, i ? "second" : "first");
        run_half(state, model, runs + (i ? first : 0), i ? count - first : first, &o, blocks, where);
    }
    for (int i = 0; i < count; i++) storm_answer_close(&runs[i].got);
    free(runs);
}

/* ---- The program ---------------------------------------------------------------------------------------------- */

static int32_t number_of(int argc, char **argv, int at, int32_t otherwise)
{
    return argc > at && atoi(argv[at]) > 0 ? atoi(argv[at]) : otherwise;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--gpu") == 0) {
        storm_backend = "cuda";
        argv++, argc--;
    }
    bool is_long = argc > 1 && strcmp(argv[1], "long") == 0;
    if (argc < 2 || (!is_long && strcmp(argv[1], "short") != 0)) {
        fprintf(stderr, "usage: independence [--gpu] short|long [SEED [REQUESTS [TOKENS [STORMS]]]]\n");
        return 2;
    }
    storm_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : is_long ? (uint64_t)time(NULL) : 1;
    int count = number_of(argc, argv, 3, is_long ? 200 : 60), storms = number_of(argc, argv, 5, is_long ? 10 : 2);
    int32_t tokens = number_of(argc, argv, 4, is_long ? 6000 : 1500);
    if (tokens + MAX_NEW > STORM_LENGTH) tokens = STORM_LENGTH - MAX_NEW;
    printf("seed %llu: %d requests of up to %d tokens, %d storms\n", (unsigned long long)storm_seed, count, tokens,
           storms);
    uint64_t state = storm_seed;
    subject *all = calloc((size_t)count, sizeof *all);
    if (!all) storm_fail("no memory");
    storm_make();
    hy_model *one = storm_open(1), *two = storm_open(2); /* the number of threads is no part of an answer either */
    run_alone(&state, one, all, count, tokens);
    for (int i = 0; i < storms; i++) run_storm(&state, i % 2 ? one : two, all, count, tokens, i);
    hy_model_close(one);
    hy_model_close(two);
    storm_remove();
    for (int i = 0; i < count; i++) {
        free(all[i].prompt);
        storm_answer_close(&all[i].alone);
    }
    free(all);
    if (storms > 1 && !(total.preemptions && total.cache && total.disk && total.drafts))
        storm_fail("nothing stormed: %llu preemptions, tokens from cache %llu, disk %llu, drafts %llu",
                   (unsigned long long)total.preemptions, (unsigned long long)total.cache,
                   (unsigned long long)total.disk, (unsigned long long)total.drafts);
    printf("every token and every log-probability was the same: %llu preemptions, tokens from cache %llu, memory %llu, "
           "disk %llu\n",
           (unsigned long long)total.preemptions, (unsigned long long)total.cache, (unsigned long long)total.memory,
           (unsigned long long)total.disk);
    return 0;
}
