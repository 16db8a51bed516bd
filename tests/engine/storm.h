/*
 * What the storms share: a small random model in the released layout, random numbers from one seed, and requests whose
 * answers are kept to the bit. A failure ends the program with the seed, from whatever thread it is found on.
 */
#ifndef TEST_STORM_H
#define TEST_STORM_H

#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "checkpoint/synth.h"
#include "model/model.h"

enum { STORM_VOCAB = 384, STORM_EOS = 2, STORM_LENGTH = 12288, STORM_LOGPROBS = 20 };

/* ---- Failing, drawing ----------------------------------------------------------------------------------------- */

static uint64_t storm_seed;
static char storm_folder[64]; /* of this program; "": none yet */

static inline void storm_remove(void)
{
    char command[128];
    if (!storm_folder[0]) return;
    snprintf(command, sizeof command, "rm -rf %s", storm_folder);
    /* After a failure an engine may still be writing there. */
    for (int i = 0; i < 5 && system(command) != 0; i++) fprintf(stderr, "could not remove %s\n", storm_folder);
    storm_folder[0] = 0;
}

static inline _Noreturn void __attribute__((format(printf, 1, 2))) storm_fail(const char *format, ...)
{
    va_list list;
    fflush(stdout);
    fprintf(stderr, "FAILED with seed %llu: ", (unsigned long long)storm_seed);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
    storm_remove();
    _exit(1);
}

static _Thread_local hy_error storm_error; /* of the call in STORM_OK */
#define STORM_OK(call)                                                                                                 \
    do {                                                                                                               \
        if ((call) != HY_OK) storm_fail("%s: %s", #call, storm_error.message);                                         \
    } while (0)

static inline uint64_t storm_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15; /* SplitMix64 */
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

/* low .. high, both included. */
static inline int32_t storm_between(uint64_t *state, int32_t low, int32_t high)
{
    return low + (int32_t)(storm_bits(state) % (uint64_t)(high - low + 1));
}

static inline bool storm_chance(uint64_t *state, int percent)
{
    return storm_between(state, 1, 100) <= percent;
}

/* low .. high, small ones as likely as large ones: uniform in the logarithm. */
static inline int32_t storm_spread(uint64_t *state, int32_t low, int32_t high)
{
    double u = (double)(storm_bits(state) >> 11) * 0x1p-53;
    int32_t value = (int32_t)(low * exp(u * log((double)high / low)));
    return value < low ? low : value > high ? high : value;
}

static inline void storm_tokens(uint64_t *state, int32_t *out, int32_t count)
{
    for (int32_t i = 0; i < count; i++) out[i] = storm_between(state, 3, STORM_VOCAB - 1);
}

static inline void storm_sleep(double seconds)
{
    struct timespec t = {.tv_sec = (time_t)seconds};
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    nanosleep(&t, NULL);
}

/* ---- The model ------------------------------------------------------------------------------------------------ */

/* A dense layer with full attention, then a sparse one with experts: the formats and the head size of the release, and
 * so few blocks to select that prompts of some hundred tokens choose among them. */
static inline void storm_make(void)
{
    config c;
    strcpy(storm_folder, "/tmp/hayate-storm-XXXXXX");
    if (!mkdtemp(storm_folder)) storm_fail("there is no room for a folder in /tmp");
    if (!config_known("m3.1-flash", &c)) storm_fail("the released geometry has another name");
    STORM_OK(config_slice(&c, 2, 1, &storm_error));
    c.sparse[0] = 0;
    c.hidden = 64, c.vocab = STORM_VOCAB, c.max_positions = STORM_LENGTH;
    c.heads = 4, c.kv_heads = 2, c.index_heads = 2, c.index_top = 4;
    c.experts = 8, c.experts_per_token = 2;
    c.expert_width = 64, c.shared_width = 64, c.dense_width = 64;
    c.vision_layers = 0, c.bos = 1, c.eos = STORM_EOS, c.image_token = c.video_token = -1;
    synth_options o = {.scheme = SCHEME_M31, .seed = 7, .drafter = true};
    char path[96];
    snprintf(path, sizeof path, "%s/model", storm_folder);
    STORM_OK(synth_write(&c, path, &o, &storm_error));
}

/* What backend models are opened with, NULL: the one that the library takes. */
static const char *storm_backend;

/* A machine without that backend's GPU skips: the reason is printed, and the program ends with 77. */
static inline hy_model *storm_open(int workers)
{
    char path[96];
    hy_model *model = NULL;
    hy_model_options options = {.backend = storm_backend, .threads = workers, .kv_cache_dtype = "nvfp4", .drafter = "on"};
    snprintf(path, sizeof path, "%s/model", storm_folder);
    hy_status status = hy_model_open(path, &options, &model, &storm_error);
    if (status != HY_OK && storm_backend) {
        printf("skipped: %s\n", storm_error.message);
        storm_remove();
        exit(77);
    }
    STORM_OK(status);
    return model;
}

static inline uint64_t storm_block_bytes(const hy_model *model)
{
    return model_cache_layout(model)->row_bytes;
}

/* ---- Answers -------------------------------------------------------------------------------------------------- */

/* What the events of one request brought. The arrays hold what its max_tokens may bring. */
typedef struct storm_answer {
    int32_t *ids;         /* [max_tokens] */
    hy_logprob *logprobs; /* [max_tokens, 1 + STORM_LOGPROBS], rows of `per_token` */
    size_t count, room, per_token;
    int32_t stop_after; /* the callback answers false with this many tokens; 0: never */
    int32_t stop_id;
    hy_finish finish;
    hy_status status;
    hy_reuse reuse;
    int32_t preemptions;
    char error[512]; /* with HY_FINISH_ERROR */
} storm_answer;

static inline void storm_answer_open(storm_answer *a, size_t max_tokens)
{
    *a = (storm_answer){.room = max_tokens};
    a->ids = calloc(max_tokens, sizeof *a->ids);
    a->logprobs = calloc(max_tokens * (1 + STORM_LOGPROBS), sizeof *a->logprobs);
    if (!a->ids || !a->logprobs) storm_fail("no memory");
}

static inline void storm_answer_close(storm_answer *a)
{
    free(a->ids);
    free(a->logprobs);
}

static inline bool storm_event(void *user, const hy_event *e)
{
    storm_answer *a = user;
    if (a->finish != HY_RUNNING) storm_fail("an event came after the last one");
    if (a->count + e->id_count > a->room)
        storm_fail("%zu tokens came, max_tokens is %zu", a->count + e->id_count, a->room);
    if (e->logprobs) {
        a->per_token = e->logprobs_per_token;
        memcpy(a->logprobs + a->count * a->per_token, e->logprobs, e->id_count * a->per_token * sizeof *e->logprobs);
    }
    if (e->id_count) memcpy(a->ids + a->count, e->ids, e->id_count * sizeof *e->ids);
    a->count += e->id_count;
    a->finish = e->finish, a->stop_id = e->stop_id;
    if (e->error) snprintf(a->error, sizeof a->error, "%s", e->error->message);
    return a->stop_after == 0 || a->count < (size_t)a->stop_after;
}

/* Waits for the end, holds the result against the events, closes. */
static inline void storm_finish(hy_request *request, const hy_request_options *o, storm_answer *a)
{
    hy_result r;
    a->status = hy_request_wait(request);
    hy_request_result(request, &r);
    if (r.finish != a->finish) storm_fail("the result ends with %d, the last event with %d", r.finish, a->finish);
    if (r.id_count != a->count || (a->count && memcmp(r.ids, a->ids, a->count * sizeof *a->ids) != 0))
        storm_fail("the result's %zu tokens are not the %zu of the events", r.id_count, a->count);
    if (r.prompt_count != o->prompt_count || memcmp(r.prompt_ids, o->prompt_ids, r.prompt_count * sizeof *r.ids) != 0)
        storm_fail("the result has another prompt");
    a->reuse = r.reuse, a->preemptions = r.preemptions;
    if (r.reuse.tokens != r.reuse.cache + r.reuse.memory + r.reuse.disk || r.reuse.tokens < 0 ||
        r.reuse.tokens >= (int32_t)o->prompt_count)
        storm_fail("of %zu tokens %d were reused: %d, %d and %d by tier", o->prompt_count, r.reuse.tokens,
                   r.reuse.cache, r.reuse.memory, r.reuse.disk);
    hy_request_close(request);
}

static inline hy_request *storm_submit(hy_engine *engine, hy_request_options o, storm_answer *a)
{
    hy_request *request = NULL;
    o.on_event = storm_event, o.user = a;
    STORM_OK(hy_engine_submit(engine, &o, &request, &storm_error));
    return request;
}

/* The first `count` tokens of both are the same, with their log-probabilities to the bit. NULL, or what differs. */
static inline const char *storm_differs(const storm_answer *a, const storm_answer *b, size_t count)
{
    static _Thread_local char text[160];
    for (size_t i = 0; i < count; i++) {
        if (a->ids[i] != b->ids[i]) {
            snprintf(text, sizeof text, "token %zu is %d and was %d", i, b->ids[i], a->ids[i]);
            return text;
        }
        for (size_t k = 0; k < a->per_token; k++) {
            const hy_logprob *x = &a->logprobs[i * a->per_token + k], *y = &b->logprobs[i * a->per_token + k];
            if (memcmp(x, y, sizeof *x) == 0) continue;
            snprintf(text, sizeof text, "log-probability %zu of token %zu is %d %.9g and was %d %.9g", k, i, y->token,
                     (double)y->logprob, x->token, (double)x->logprob);
            return text;
        }
    }
    if (count && a->per_token != b->per_token) return "log-probabilities came for one of them only";
    return NULL;
}

#endif
