/*
 * Structured output for tests/engine/test_structured.py, which checks the texts with libraries of its own. Lines of
 * JSON come in, one for each grammar, and lines with texts go out in the same order:
 *
 *     {"kind": "schema" | "object" | "regex" | "choice" | "ebnf" | "tools" | "tags", "source": text, "compact": bool,
 *      "closed": bool, "walks": N, "seed": N}
 *     {"texts": [...], "cut": N} or {"error": text}
 *
 *     structured walk MODEL      texts are drawn token by token from the masks alone, without a network
 *     structured answer MODEL    texts are answers of the network; "prompt" is the user's message
 *     structured time TOKENIZER  as walk, for the time that masks take with the vocabulary of any tokenizer; lines with
 *                                {"compile_ms": x, "masks": n, "median_us": x, "p99_us": x} go out
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/engine_parts.h"
#include "text/grammar.h"

enum { FREE = 30, CLOSING = 1500, LINE = 1 << 20, LARGEST = 1 << 16, TIMES = 1 << 20 };

typedef struct job {
    hy_grammar *grammar;
    json_t *line, *out;
    hy_request *request;
} job;

static uint64_t state;
static double times[TIMES]; /* seconds of the masks of a line, by `time` */
static size_t time_count;

static uint32_t draw(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static void stop(const char *what, const hy_error *err)
{
    fprintf(stderr, "structured: %s: %s\n", what, err ? err->message : "");
    exit(1);
}

static hy_grammar_kind kind_of(const char *name)
{
    static const char *const names[] = {"schema", "object", "regex", "choice", "ebnf", "tools", "tags"};
    for (int i = 0; i < 7; i++)
        if (strcmp(names[i], name) == 0) return (hy_grammar_kind)i;
    stop("no such kind", NULL);
    return HY_GRAMMAR_REGEX;
}

/* ---- Walks ---------------------------------------------------------------------------------------------------- */

/* One of the allowed tokens; when the text is long enough, one that closes something if there is any. */
static int32_t choose(const text_tokenizer *tok, const uint32_t *mask, int32_t vocab, bool closing)
{
    static const char closers[] = "\"}]>/,0)";
    int32_t picked = -1, closer = -1;
    uint32_t seen = 0, closed = 0;
    for (int32_t id = 0; id < vocab; id++) {
        if (!(mask[id >> 5] >> (id & 31) & 1)) continue;
        if (draw() % ++seen == 0) picked = id;
        size_t length;
        const char *bytes = text_tokenizer_bytes(tok, id, &length);
        if (length == 1 && strchr(closers, *bytes) && draw() % ++closed == 0) closer = id;
    }
    return closing && closer >= 0 && draw() % 8 ? closer : picked;
}

/* True: the text is complete. */
static bool walk(const text_tokenizer *tok, const hy_grammar *g, uint32_t *mask, buffer *text)
{
    int32_t vocab = text_tokenizer_vocab_size(tok), end = vocab - 1;
    while (!text_tokenizer_is_special(tok, end)) end--;
    text_matcher *m = text_matcher_open((const text_grammar *)g, false, TEXT_START_CLOSED, &end, 1);
    bool done = false;
    for (int i = 0; i < CLOSING && !done; i++) {
        bool complete = text_matcher_complete(m);
        double begin = clock_seconds();
        if (!text_matcher_mask(m, mask)) stop("a mask allows everything", NULL);
        if (time_count < TIMES) times[time_count++] = clock_seconds() - begin;
        if (complete != (mask[end >> 5] >> (end & 31) & 1))
            stop("the end is allowed where the text is not complete", NULL);
        int32_t id = complete && (i > FREE || draw() % 4 == 0) ? end : choose(tok, mask, vocab, i > FREE);
        if (id < 0) stop("a mask allows nothing", NULL);
        if (!text_matcher_accept(m, id)) stop("a token of the mask is not accepted", NULL);
        done = id == end;
        size_t length;
        const char *bytes = text_tokenizer_bytes(tok, id, &length);
        if (!done) buffer_append(text, bytes, length);
    }
    text_matcher_close(m);
    return done;
}

static void walks(const text_tokenizer *tok, job *j)
{
    size_t words = ((size_t)text_tokenizer_vocab_size(tok) + 31) / 32;
    uint32_t *mask = malloc(words * sizeof *mask);
    json_int_t cut = 0, count = json_integer_value(json_object_get(j->line, "walks"));
    json_t *texts = json_array();
    state = (uint64_t)json_integer_value(json_object_get(j->line, "seed"));
    for (json_int_t i = 0; i < (count ? count : 1); i++) {
        buffer text = {0};
        if (!walk(tok, j->grammar, mask, &text))
            cut++;
        else if (json_array_append_new(texts, json_stringn(text.data ? text.data : "", text.length)) != 0)
            stop("a text is not UTF-8", NULL);
        buffer_free(&text);
    }
    free(mask);
    j->out = json_pack("{s:o, s:I}", "texts", texts, "cut", cut);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A line's masks by a tokenizer alone. */
static void measure(const text_tokenizer *tok, job *j)
{
    hy_error err = {0};
    const json_t *source = json_object_get(j->line, "source");
    text_grammar_options o = {.any_whitespace = !json_is_true(json_object_get(j->line, "compact")),
                              .additional_properties = !json_is_true(json_object_get(j->line, "closed"))};
    text_grammar *g = NULL;
    text_grammar_kind kind = (text_grammar_kind)kind_of(json_string_value(json_object_get(j->line, "kind")));
    double begin = clock_seconds();
    if (text_grammar_compile(tok, kind, json_string_value(source), json_string_length(source), &o, &g, &err) != HY_OK)
        stop("a grammar", &err);
    double compiled = clock_seconds() - begin;
    j->grammar = (hy_grammar *)g, time_count = 0;
    walks(tok, j);
    json_decref(j->out);
    j->grammar = NULL;
    text_grammar_release(g);
    qsort(times, time_count, sizeof *times, compare);
    size_t last = time_count - 1; /* a text has its end at least */
    j->out = json_pack("{s:f, s:I, s:f, s:f}", "compile_ms", compiled * 1e3, "masks", (json_int_t)time_count,
                       "median_us", times[last / 2] * 1e6, "p99_us", times[last * 99 / 100] * 1e6);
}

/* ---- Answers -------------------------------------------------------------------------------------------------- */

static void begin_answer(hy_engine *engine, hy_model *model, job *j)
{
    hy_error err = {0};
    hy_ids prompt = {0};
    const char *text = json_string_value(json_object_get(j->line, "prompt"));
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", text ? text : "Hello");
    char *written = json_dumps(messages, JSON_COMPACT);
    if (hy_render_chat(model, written, NULL, "{\"thinking_mode\": \"disabled\"}", &prompt, &err) != HY_OK)
        stop("a prompt", &err);
    hy_request_options o = hy_request_defaults(model);
    o.prompt_ids = prompt.data, o.prompt_count = prompt.count;
    o.sampling.grammar = j->grammar;
    o.sampling.seed = json_integer_value(json_object_get(j->line, "seed"));
    o.sampling.max_tokens = 400;
    if (hy_engine_submit(engine, &o, &j->request, &err) != HY_OK) stop("a request", &err);
    hy_ids_free(&prompt);
    free(written);
    json_decref(messages);
}

static void end_answer(job *j)
{
    hy_result r;
    hy_status status = hy_request_wait(j->request);
    hy_request_result(j->request, &r);
    bool stopped = status == HY_OK && r.finish == HY_FINISH_STOP;
    json_t *texts = json_array();
    if (status != HY_OK) stop("an answer failed", NULL);
    if (stopped) json_array_append_new(texts, json_stringn(r.text, r.text_length));
    j->out = json_pack("{s:o, s:i}", "texts", texts, "cut", !stopped);
    hy_request_close(j->request);
}

/* ---- Lines ---------------------------------------------------------------------------------------------------- */

static void compile(hy_model *model, job *j)
{
    hy_error err = {0};
    const json_t *source = json_object_get(j->line, "source");
    hy_grammar_options o = {.compact = json_is_true(json_object_get(j->line, "compact")),
                            .closed = json_is_true(json_object_get(j->line, "closed"))};
    hy_status status = hy_grammar_compile(model, kind_of(json_string_value(json_object_get(j->line, "kind"))),
                                          json_string_value(source), json_string_length(source), &o, &j->grammar, &err);
    if (status != HY_OK) j->out = json_pack("{s:s}", "error", err.message);
}

int main(int argc, char **argv)
{
    hy_model *model = NULL;
    hy_engine *engine = NULL;
    hy_error err = {0};
    bool answers = argc == 3 && strcmp(argv[1], "answer") == 0;
    char *text = malloc(LINE);
    job *jobs = calloc(LARGEST, sizeof *jobs);
    size_t count = 0;
    if (argc != 3 || !text || !jobs) stop("walk or answer and a model, or time and a tokenizer", NULL);
    bool timed = strcmp(argv[1], "time") == 0;
    text_tokenizer *tok = NULL;
    hy_model_options options = {.max_model_len = 2048};
    if (timed && text_tokenizer_open(argv[2], &tok, &err) != HY_OK) stop("the tokenizer", &err);
    if (!timed && hy_model_open(argv[2], &options, &model, &err) != HY_OK) stop("the model", &err);
    if (answers && hy_engine_open(model, &(hy_engine_options){.log_seconds = -1}, &engine, &err) != HY_OK)
        stop("the engine", &err);
    for (; count < LARGEST && fgets(text, LINE, stdin); count++) {
        job *j = &jobs[count];
        if (!(j->line = json_loads(text, 0, NULL))) stop("a line is not JSON", NULL);
        if (timed) measure(tok, j);
        if (!timed) compile(model, j);
        if (j->grammar && answers) begin_answer(engine, model, j);
        if (j->grammar && !answers) walks(model_tokenizer(model), j);
    }
    for (size_t i = 0; i < count; i++) {
        if (jobs[i].request) end_answer(&jobs[i]);
        json_dumpf(jobs[i].out, stdout, JSON_COMPACT);
        putchar('\n');
        hy_grammar_close(jobs[i].grammar);
        json_decref(jobs[i].line);
        json_decref(jobs[i].out);
    }
    hy_engine_close(engine);
    hy_model_close(model);
    text_tokenizer_close(tok);
    free(jobs);
    free(text);
    return 0;
}
