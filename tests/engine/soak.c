/*
 * A tiny model under 200 requests a second: aborts, deadlines, forks, a full cache and a full queue.
 *
 *     soak [SECONDS [SEED]]     ten minutes and another seed each time otherwise
 *
 * Every answer must be what the request answers alone, up to where it was ended. No request may be stuck: each ends
 * within a bound. At the end nothing runs, waits or holds a block, the counters are those of the results to the token,
 * and the memory is what it was after the warm-up. Then a calm minute at the same engine, without anything that ends a
 * request early, shows that every row was accounted for.
 */
#include "base/memory.h"
#include "engine/storm.h"

enum { SUBJECTS = 96, MAX_PROMPT = 700, MAX_NEW = 24, SLOTS = 512, RATE = 200 };
enum { BLOCKS = 12, QUEUE = 96, BURST = 150, BURST_SECONDS = 2, CALM = 40, STUCK_SECONDS = 60, GROWTH = 24 << 20 };
enum { LONGEST_BLOCKS = (MAX_PROMPT + MAX_NEW + 127) / 128 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

typedef struct subject {
    int32_t prompt[MAX_PROMPT];
    int32_t count, choice;
    hy_sampling sampling;
    storm_answer alone;
} subject;

#define MEAN_SPREAD 52.4 /* of storm_spread(1, 300): 299 / ln 300 */

/* A request on its way. Slots are used again. */
typedef struct slot {
    const subject *subject;
    hy_request *request; /* NULL: the slot is free */
    hy_request_options options;
    storm_answer got;
    double submitted, cancel; /* clock_seconds; cancel 0: never */
    bool may_end;
    atomic_bool ended;
} slot;

/* What the results add up to. */
typedef struct sums {
    uint64_t submitted, refused, finished, cancelled, late, failed;
    uint64_t generated, prompts, begun; /* begun: prompts of those that made a token, so that all of it was seen */
    uint64_t computed, cache, memory, disk, preemptions;
    double slowest;
} sums;

static subject subjects[SUBJECTS];
static slot slots[SLOTS];

/* ---- Requests ------------------------------------------------------------------------------------------------- */

static void draw_subject(uint64_t *state, const hy_model *model, int at)
{
    subject *s = &subjects[at];
    if (at % 4 != 0 && at % 3 == 0) { /* a fork of the one before it */
        const subject *of = &subjects[at - 1];
        memcpy(s->prompt, of->prompt, sizeof s->prompt);
        s->count = of->count, s->choice = of->choice + 1, s->sampling = of->sampling;
        return;
    }
    s->count = storm_spread(state, 1, MAX_PROMPT);
    /* Answers that need another block: in a full cache that costs somebody his. */
    if (storm_chance(state, 50)) s->count = (s->count + 127) / 128 * 128 - storm_between(state, 0, 12);
    if (s->count > MAX_PROMPT) s->count = MAX_PROMPT;
    storm_tokens(state, s->prompt, s->count);
    if (at > 0 && storm_chance(state, 70)) {
        const subject *other = &subjects[storm_between(state, 0, at - 1)];
        int32_t shared = storm_between(state, 1, other->count < s->count ? other->count : s->count);
        memcpy(s->prompt, other->prompt, (size_t)shared * sizeof *s->prompt);
    }
    s->sampling = hy_sampling_defaults(model);
    s->sampling.temperature = storm_chance(state, 30) ? 0 : 1;
    s->sampling.top_k = storm_chance(state, 50) ? 40 : 0;
    s->sampling.repetition_penalty = storm_chance(state, 30) ? 1.1f : 1;
    s->sampling.seed = at;
    s->sampling.max_tokens = storm_chance(state, 50) ? MAX_NEW : storm_between(state, 1, MAX_NEW);
    s->sampling.logprobs = storm_chance(state, 30) ? 3 : -1;
    s->sampling.ignore_eos = storm_chance(state, 50);
}

static hy_request_options options_of(const hy_model *model, const subject *s)
{
    hy_request_options o = hy_request_defaults(model);
    o.prompt_ids = s->prompt, o.prompt_count = (size_t)s->count;
    o.sampling = s->sampling, o.choice = s->choice;
    return o;
}

static void run_alone(uint64_t *state, hy_model *model)
{
    hy_engine *engine = NULL;
    hy_engine_options alone = {.max_num_seqs = 1, .prefix_caching = "off", .log_seconds = -1};
    alone.cache_bytes = LONGEST_BLOCKS * storm_block_bytes(model);
    STORM_OK(hy_engine_open(model, &alone, &engine, &storm_error));
    for (int i = 0; i < SUBJECTS; i++) {
        draw_subject(state, model, i);
        storm_answer_open(&subjects[i].alone, MAX_NEW);
        hy_request_options o = options_of(model, &subjects[i]);
        storm_finish(storm_submit(engine, o, &subjects[i].alone), &o, &subjects[i].alone);
    }
    hy_engine_close(engine);
}

static bool on_event(void *user, const hy_event *e)
{
    slot *s = user;
    bool go_on = storm_event(&s->got, e);
    if (e->finish != HY_RUNNING) atomic_store(&s->ended, true);
    return go_on;
}

static slot *free_slot(void)
{
    for (int i = 0; i < SLOTS; i++)
        if (!slots[i].request) return &slots[i];
    return NULL;
}

/* `rough`: it may be cancelled or late. False: it was refused, or there is no slot. */
static bool submit(uint64_t *state, const hy_model *model, hy_engine *engine, const subject *of, bool rough, sums *sum)
{
    slot *s = free_slot();
    if (!s) return false;
    s->subject = of, s->options = options_of(model, of);
    s->options.on_event = on_event, s->options.user = s;
    s->options.no_prefix_cache = storm_chance(state, 5);
    if (storm_chance(state, 10)) s->options.cache_salt = "salt";
    s->got.count = s->got.per_token = 0, s->got.stop_after = 0, s->got.finish = HY_RUNNING;
    s->cancel = 0;
    atomic_store(&s->ended, false);
    s->submitted = clock_seconds();
    int fate = rough ? storm_between(state, 1, 100) : 100;
    s->may_end = fate <= 25;
    if (fate <= 10) s->cancel = s->submitted + storm_spread(state, 100, 500000) * 1e-6;
    if (fate > 10 && fate <= 17) s->got.stop_after = storm_between(state, 1, of->sampling.max_tokens);
    if (fate > 17 && fate <= 25) s->options.deadline_s = storm_spread(state, 1000, 2000000) * 1e-6;
    hy_status status = hy_engine_submit(engine, &s->options, &s->request, &storm_error);
    if (status == HY_OK) {
        sum->submitted++;
        return true;
    }
    s->request = NULL;
    if (status != HY_BUSY) storm_fail("submit: %s", storm_error.message);
    sum->refused++;
    return false;
}

static void end_slot(slot *s, sums *sum)
{
    const storm_answer *a = &s->subject->alone, *b = &s->got;
    double took = clock_seconds() - s->submitted;
    storm_finish(s->request, &s->options, &s->got);
    s->request = NULL;
    bool late = b->status == HY_LATE, cut = late || b->finish == HY_FINISH_CANCEL;
    const char *what = storm_differs(a, b, a->count < b->count ? a->count : b->count);
    if (!what && (b->count > a->count || (!cut && b->count != a->count))) what = "it has another number of tokens";
    if (!what && !cut && (b->finish != a->finish || b->status != a->status)) what = "it ended another way";
    if (!what && cut && !s->may_end) what = "nobody ended it and it was ended";
    if (what)
        storm_fail("a request of %d prompt tokens (%d reused, %d preemptions) gave %zu tokens and alone %zu: %s",
                   s->subject->count, b->reuse.tokens, b->preemptions, b->count, a->count, what);
    sum->finished++;
    sum->cancelled += b->finish == HY_FINISH_CANCEL, sum->late += late;
    sum->failed += b->finish == HY_FINISH_ERROR && !late;
    sum->generated += b->count, sum->prompts += (uint64_t)s->subject->count;
    if (b->count > 0) sum->begun += (uint64_t)s->subject->count;
    sum->computed += (uint64_t)(s->subject->count - b->reuse.tokens);
    sum->cache += (uint64_t)b->reuse.cache, sum->memory += (uint64_t)b->reuse.memory,
        sum->disk += (uint64_t)b->reuse.disk;
    sum->preemptions += (uint64_t)b->preemptions;
    if (took > sum->slowest) sum->slowest = took;
}

/* Cancels what is due, takes in what has ended. Returns how many are left. */
static int look_after(sums *sum)
{
    int left = 0;
    double now = clock_seconds();
    for (int i = 0; i < SLOTS; i++) {
        slot *s = &slots[i];
        if (!s->request) continue;
        if (s->cancel > 0 && now >= s->cancel) {
            hy_request_cancel(s->request);
            s->cancel = 0;
        }
        if (atomic_load(&s->ended))
            end_slot(s, sum);
        else if (now - s->submitted > STUCK_SECONDS)
            storm_fail("a request of %d prompt tokens has not ended in %d seconds", s->subject->count, STUCK_SECONDS);
        else
            left++;
    }
    return left;
}

/* ---- Counting ------------------------------------------------------------------------------------------------- */

static void same(const char *what, uint64_t engine, uint64_t results)
{
    if (engine != results)
        storm_fail("%s: the engine counts %llu and the results add up to %llu", what, (unsigned long long)engine,
                   (unsigned long long)results);
}

static void between(const char *what, uint64_t engine, uint64_t least, uint64_t most)
{
    if (engine < least || engine > most)
        storm_fail("%s: the engine counts %llu, and by the results it is %llu to %llu", what,
                   (unsigned long long)engine, (unsigned long long)least, (unsigned long long)most);
}

/* The engine lets go of what ended a step later. */
static hy_engine_stats settle(hy_engine *engine)
{
    hy_engine_stats s;
    for (double end = clock_seconds() + STUCK_SECONDS; clock_seconds() < end; storm_sleep(0.001)) {
        hy_engine_describe(engine, &s);
        if (s.running == 0 && s.waiting == 0 && s.cache_usage == 0) return s;
    }
    storm_fail("all have ended, and %d run, %d wait, %.3f of the blocks are in use", s.running, s.waiting,
               s.cache_usage);
}

static void check_counters(const hy_engine_stats *s, const sums *sum)
{
    same("requests", s->requests_finished, sum->finished);
    same("submitted", sum->submitted, sum->finished);
    same("generated tokens", s->generated_tokens, sum->generated);
    same("cancelled", s->cancelled, sum->cancelled);
    same("refused", s->refused, sum->refused);
    between("failed", s->failed, sum->failed, sum->failed + sum->late);
    same("preemptions", s->preemptions, sum->preemptions);
    same("tokens from the cache", s->prefix_hits, sum->cache);
    same("tokens from memory", s->memory_hits, sum->memory);
    same("tokens from disk", s->disk_hits, sum->disk);
    between("prompt tokens", s->prompt_tokens, sum->begun, sum->prompts);
    uint64_t asked = 0; /* admissions by why not more was reused */
    for (int i = 0; i < HY_MISS_REASONS; i++) asked += s->misses[i];
    between("admissions", asked, 1, sum->finished);
    between("tokens of admitted prompts", s->prefix_queries, sum->begun, sum->prompts);
}

/* As many at a time as the cache has room for, none ended early: each row is a prompt token that was not reused or a
 * token fed back. */
static void calm(uint64_t *state, const hy_model *model, hy_engine *engine)
{
    hy_engine_stats before, after;
    sums sum = {0};
    uint64_t rows = 0;
    hy_engine_describe(engine, &before);
    for (int i = 0; i < CALM; i++) {
        const subject *s = &subjects[storm_between(state, 0, SUBJECTS - 1)];
        rows += s->alone.count - 1;
        while (!submit(state, model, engine, s, false, &sum)) look_after(&sum);
        while (look_after(&sum) >= BLOCKS / LONGEST_BLOCKS) storm_sleep(0.0005);
    }
    while (look_after(&sum)) storm_sleep(0.0005);
    after = settle(engine);
    same("preemptions of calm requests", after.preemptions, before.preemptions);
    same("prompt tokens of calm requests", after.prompt_tokens - before.prompt_tokens, sum.prompts);
    same("prompt tokens asked for", after.prefix_queries - before.prefix_queries, sum.prompts);
    /* A request that a stop token ends may have had a row in the step that ran meanwhile. */
    between("rows of calm requests", after.rows - before.rows, sum.computed + rows, sum.computed + rows + CALM);
}

/* ---- The program ---------------------------------------------------------------------------------------------- */

static void soak(uint64_t *state, const hy_model *model, hy_engine *engine, double seconds, sums *sum)
{
    double start = clock_seconds(), due = start, said = start, burst = start + 1;
    uint64_t warm = 0;
    for (double now = start; now < start + seconds; now = clock_seconds()) {
        for (; due <= now; due += storm_spread(state, 1, 300) / MEAN_SPREAD / RATE) {
            int at = storm_between(state, 0, SUBJECTS - 1);
            submit(state, model, engine, &subjects[at], true, sum);
            /* Forks come together. */
            for (; at + 1 < SUBJECTS && subjects[at + 1].choice == subjects[at].choice + 1; at++)
                submit(state, model, engine, &subjects[at + 1], true, sum);
        }
        if (now >= burst) { /* more at once than the queue takes */
            for (int i = 0; i < BURST; i++)
                submit(state, model, engine, &subjects[storm_between(state, 0, SUBJECTS - 1)], true, sum);
            burst = now + BURST_SECONDS;
        }
        look_after(sum);
        if (!warm && now > start + (seconds < 100 ? seconds * 0.4 : 40)) warm = memory_resident();
        if (now > said + 30) {
            printf("%.0f s: %llu submitted, %llu refused, slowest %.2f s, %.1f MB\n", now - start,
                   (unsigned long long)sum->submitted, (unsigned long long)sum->refused, sum->slowest,
                   (double)memory_resident() * 1e-6);
            fflush(stdout);
            said = now;
        }
        storm_sleep(0.0005);
    }
    while (look_after(sum)) storm_sleep(0.0005);
    if (!warm) warm = memory_resident(); /* the machine stood still meanwhile */
    uint64_t end = memory_resident();
    printf("memory: %.1f MB after the warm-up, %.1f MB at the end\n", (double)warm * 1e-6, (double)end * 1e-6);
#ifndef SANITIZED
    if (end > warm + GROWTH)
        storm_fail("memory grew from %llu to %llu bytes", (unsigned long long)warm, (unsigned long long)end);
#endif
}

static void report(const hy_engine_stats *s, const sums *sum, double seconds)
{
    printf(
        "%llu requests in %.0f s (%.0f a second), %llu refused; %llu cancelled, %llu late, slowest %.2f s; %llu steps, "
        "%llu rows, %llu preemptions; tokens from cache %llu, memory %llu, disk %llu\n",
        (unsigned long long)sum->submitted, seconds, (double)(sum->submitted + sum->refused) / seconds,
        (unsigned long long)sum->refused, (unsigned long long)sum->cancelled, (unsigned long long)sum->late,
        sum->slowest, (unsigned long long)s->steps, (unsigned long long)s->rows, (unsigned long long)s->preemptions,
        (unsigned long long)s->prefix_hits, (unsigned long long)s->memory_hits, (unsigned long long)s->disk_hits);
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 600;
    if (seconds <= 0) {
        fprintf(stderr, "usage: soak [SECONDS [SEED]]\n");
        return 2;
    }
    storm_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL);
    uint64_t state = storm_seed;
    sums sum = {0};
    hy_engine *engine = NULL;
    printf("seed %llu, %.0f seconds\n", (unsigned long long)storm_seed, seconds);
    storm_make();
    hy_model *model = storm_open(2);
    run_alone(&state, model);
    for (int i = 0; i < SLOTS; i++) storm_answer_open(&slots[i].got, MAX_NEW);
    uint64_t row = storm_block_bytes(model);
    char disk[96];
    snprintf(disk, sizeof disk, "%s/blocks", storm_folder);
    hy_engine_options o = {
        .max_num_seqs = 48,
        .max_num_batched_tokens = 256,
        .max_waiting = QUEUE,
        .cache_bytes = BLOCKS * row,
        .offload_memory = 16 * row,
        .offload_disk = disk,
        .offload_disk_bytes = 64 * row,
        .log_seconds = -1,
        .long_prefill_token_threshold = 128,
    };
    STORM_OK(hy_engine_open(model, &o, &engine, &storm_error));
    soak(&state, model, engine, seconds, &sum);
    hy_engine_stats stats = settle(engine);
    report(&stats, &sum, seconds);
    check_counters(&stats, &sum);
    if (!sum.refused) storm_fail("the queue was never full: nothing was refused");
    if (!stats.preemptions) storm_fail("the cache was never full: nothing was preempted");
    calm(&state, model, engine);
    hy_engine_close(engine);
    hy_model_close(model);
    storm_remove();
    for (int i = 0; i < SLOTS; i++) storm_answer_close(&slots[i].got);
    for (int i = 0; i < SUBJECTS; i++) storm_answer_close(&subjects[i].alone);
    printf("nothing was stuck, and the counters add up\n");
    return 0;
}
