/*
 * The same answer with drafts and without.
 *
 *     speculation short|long [DRAFTS [BATCH [THREADS [PROMPTS [FIRST]]]]]
 *
 * The bundled model answers conversations one at a time without drafts; then with 1, 3 and 7 of them, alone and in
 * batches of 4 and 16, at temperatures 0, 0.7 and 1, with its own drafter and with a random one that is hardly ever
 * right: every token and every log-probability must be the same. Then again where the beginnings are found in the
 * cache, where the cache is so small that answers lose theirs on the way, and where blocks come back from disk. `long`
 * takes 200 prompts of 256 tokens for each; `short` a few. A line for each case says how many drafts were accepted and
 * how many tokens came a step. DRAFTS and BATCH leave out the others (0: all), and PROMPTS from number FIRST on are asked,
 * so that the long form can run in parts; the caches of the end go with all of them or with 7 and 16.
 */
#include "engine/storm.h"

enum { PROMPTS = 200, BATCH = 16, LOGPROBS = 3 };

static int prompts, tokens, first_prompt;
static hy_ids asked[PROMPTS];
static storm_answer plain[3][PROMPTS]; /* by temperature */
static const float temperatures[3] = {0, 0.7f, 1};

/* ---- Prompts -------------------------------------------------------------------------------------------------- */

static void render(const hy_model *model)
{
    static const char *const openings[] = {
        "What is %d + %d?",
        "Tom has %d apples and buys %d more. How many has he now?",
        "Add %d and %d, then say the result twice.",
        "Who are you? Answer in %d words, or in %d.",
        "Compute %d * %d step by step.",
    };
    for (int i = 0; i < prompts; i++) {
        int n = first_prompt + i;
        char text[160], message[256];
        snprintf(text, sizeof text, openings[n % 5], 11 + 37 * n % 83, 5 + 23 * n % 71);
        snprintf(message, sizeof message, "[{\"role\":\"user\",\"content\":\"%s\"}]", text);
        STORM_OK(hy_render_chat(model, message, NULL, NULL, &asked[i], &storm_error));
    }
}

static hy_request_options options_of(const hy_model *model, int i, int t)
{
    hy_request_options o = hy_request_defaults(model);
    int n = first_prompt + i;
    o.prompt_ids = asked[i].data, o.prompt_count = asked[i].count;
    o.sampling.temperature = temperatures[t], o.sampling.seed = 1000 + n;
    o.sampling.max_tokens = tokens, o.sampling.ignore_eos = true;
    /* Every chain is met: most are plain, as answers are. */
    if (n % 8 == 3) o.sampling.top_k = 20, o.sampling.top_p = 0.9f;
    if (n % 8 == 5) o.sampling.repetition_penalty = 1.1f, o.sampling.presence_penalty = 0.3f;
    if (n % 8 == 6) o.sampling.logprobs = LOGPROBS;
    return o;
}

/* ---- Running -------------------------------------------------------------------------------------------------- */

/* Answers all prompts, `batch` at a time; twice[i]: finds its prompt in the cache if there is one. */
static void answer_all(const hy_model *model, hy_engine *engine, int t, int batch, storm_answer *out)
{
    hy_request *request[BATCH];
    hy_request_options o[BATCH];
    for (int first = 0; first < prompts; first += batch) {
        int n = prompts - first < batch ? prompts - first : batch;
        for (int k = 0; k < n; k++) {
            o[k] = options_of(model, first + k, t);
            storm_answer_open(&out[first + k], (size_t)tokens);
            request[k] = storm_submit(engine, o[k], &out[first + k]);
        }
        for (int k = 0; k < n; k++) storm_finish(request[k], &o[k], &out[first + k]);
    }
}

static void compare_all(int t, const storm_answer *got, const char *where)
{
    for (int i = 0; i < prompts; i++) {
        const storm_answer *a = &plain[t][i], *b = &got[i];
        const char *what = a->count == b->count ? storm_differs(a, b, a->count) : "it has another number of tokens";
        if (what) storm_fail("%s, prompt %d, temperature %g: %s", where, i, (double)temperatures[t], what);
    }
}

static hy_engine *start(hy_model *model, hy_engine_options o)
{
    hy_engine *engine = NULL;
    o.log_seconds = -1;
    STORM_OK(hy_engine_open(model, &o, &engine, &storm_error));
    return engine;
}

static double since(const hy_engine_stats *a, const hy_engine_stats *b, bool rounds)
{
    double n = (double)(b->draft_rounds - a->draft_rounds);
    if (n == 0) return 0;
    return rounds ? 1 + (double)(b->drafts_accepted - a->drafts_accepted) / n
                  : (double)(b->drafts_accepted - a->drafts_accepted) / (double)(b->drafts - a->drafts);
}

/* All temperatures in one engine. Returns the preemptions. */
static uint64_t run_case(hy_model *model, hy_engine_options o, int batch, const char *where)
{
    static storm_answer got[PROMPTS];
    hy_engine *engine = start(model, o);
    for (int t = 0; t < 3; t++) {
        hy_engine_stats before, after;
        hy_engine_describe(engine, &before);
        answer_all(model, engine, t, batch, got);
        hy_engine_describe(engine, &after);
        compare_all(t, got, where);
        for (int i = 0; i < prompts; i++) storm_answer_close(&got[i]);
        if (after.drafts == before.drafts) storm_fail("%s: nothing was drafted", where);
        printf("%s, %d drafts, batch %2d, temperature %3.1f: %5.1f %% accepted, %.2f tokens a round; found %llu, "
               "preempted %llu\n",
               where, o.speculation.drafts, batch, (double)temperatures[t], 100 * since(&before, &after, false),
               since(&before, &after, true), (unsigned long long)(after.prefix_hits - before.prefix_hits),
               (unsigned long long)(after.preemptions - before.preemptions));
        fflush(stdout);
    }
    hy_engine_stats s;
    hy_engine_describe(engine, &s);
    hy_engine_close(engine);
    return s.preemptions;
}

/* ---- The program ---------------------------------------------------------------------------------------------- */

/* A drafter of the right shapes with random weights, in the folder of this program. */
static void make_random_drafter(char *path, size_t size)
{
    config c;
    char whole[96];
    strcpy(storm_folder, "/tmp/hayate-speculation-XXXXXX");
    if (!mkdtemp(storm_folder)) storm_fail("there is no room for a folder in /tmp");
    STORM_OK(config_load(TEST_SOURCE "/models/m3-nano/config.json", &c, &storm_error));
    synth_options o = {.scheme = SCHEME_M31, .seed = 3, .drafter = true};
    snprintf(whole, sizeof whole, "%s/random", storm_folder);
    STORM_OK(synth_write(&c, whole, &o, &storm_error));
    snprintf(path, size, "%s/dspark", whole);
}

static hy_model *open_with(const char *drafter, int workers)
{
    hy_model *model = NULL;
    hy_model_options o = {.drafter = drafter, .threads = workers};
    STORM_OK(hy_model_open(TEST_SOURCE "/models/m3-nano", &o, &model, &storm_error));
    return model;
}

static const int drafts[] = {1, 3, 7}, batches[] = {1, 4, 16};

/* Every number of drafts with every batch that is asked for; of the short form three of the nine. */
static void run_grid(hy_model *model, bool is_long, int only_drafts, int only_batch, bool last_only, const char *where)
{
    for (int d = 0; d < 3; d++)
        for (int b = 0; b < 3; b++) {
            if ((only_drafts && drafts[d] != only_drafts) || (only_batch && batches[b] != only_batch)) continue;
            if (!is_long && (d != b || (last_only && d != 2))) continue;
            hy_engine_options o = {.speculation.drafts = drafts[d], .max_num_seqs = BATCH};
            run_case(model, o, batches[b], where);
        }
}

static void run_caches(hy_model *model, bool is_long)
{
    char disk[96];
    snprintf(disk, sizeof disk, "%s/blocks", storm_folder);
    uint64_t row = storm_block_bytes(model), longest = 0;
    for (int i = 0; i < prompts; i++) longest = asked[i].count > longest ? asked[i].count : longest;
    uint64_t blocks = (longest + (uint64_t)tokens + 127) / 128;
    hy_engine_options full = {.speculation.drafts = 7, .max_num_seqs = BATCH, .cache_bytes = (blocks + 2) * row};
    uint64_t preempted = run_case(model, full, BATCH, "full cache");
    hy_engine_options tiers = full;
    tiers.offload_disk = disk, tiers.offload_disk_bytes = 4000 * row;
    run_case(model, tiers, 4, "small cache and disk");
    run_case(model, tiers, 4, "back from disk");
    if (is_long && preempted == 0) storm_fail("a full cache preempted nobody");
}

int main(int argc, char **argv)
{
    bool is_long = argc > 1 && strcmp(argv[1], "long") == 0;
    if (argc < 2 || (!is_long && strcmp(argv[1], "short") != 0)) {
        fprintf(stderr, "usage: speculation short|long [DRAFTS [BATCH [THREADS [PROMPTS [FIRST]]]]]\n");
        return 2;
    }
    int only_drafts = argc > 2 ? atoi(argv[2]) : 0, only_batch = argc > 3 ? atoi(argv[3]) : 0;
    int workers = argc > 4 ? atoi(argv[4]) : 0;
    char random[128];
    int most = argc > 5 ? atoi(argv[5]) : 0;
    first_prompt = argc > 6 ? atoi(argv[6]) : 0;
    prompts = most > 0 && most < PROMPTS ? most : is_long ? PROMPTS : 6, tokens = is_long ? 256 : 24;
    make_random_drafter(random, sizeof random);
    hy_model *model = open_with("on", workers), *other = open_with(random, workers);
    render(model);
    hy_engine *engine = start(model, (hy_engine_options){.max_num_seqs = 1, .prefix_caching = "off"});
    for (int t = 0; t < 3; t++) answer_all(model, engine, t, 1, plain[t]);
    hy_engine_close(engine);

    run_grid(model, is_long, only_drafts, only_batch, false, "own drafter");
    if (!only_drafts == !only_batch && only_drafts % 7 == 0 && only_batch % 16 == 0) run_caches(model, is_long);
    run_grid(other, is_long, only_drafts, only_batch, true, "random drafter");

    for (int t = 0; t < 3; t++)
        for (int i = 0; i < prompts; i++) storm_answer_close(&plain[t][i]);
    for (int i = 0; i < prompts; i++) hy_ids_free(&asked[i]);
    hy_model_close(model);
    hy_model_close(other);
    storm_remove();
    printf("every token and every log-probability was the same\n");
    return 0;
}
