#include "cli/eval_run.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "cli/cli.h"
#include "cli/eval_session.h"
#include "tasks/rows.h"
#include "text/reasoning.h"

/* ---- Marks ------------------------------------------------------------------------------------------------------- */

static bool add_mark(eval_marks *m, const eval_mark *mark)
{
    if (m->count == m->capacity) {
        size_t capacity = m->capacity ? 2 * m->capacity : 64;
        eval_mark *more = realloc(m->mark, capacity * sizeof *more);
        if (!more) return false;
        m->mark = more, m->capacity = capacity;
    }
    m->mark[m->count++] = *mark;
    return true;
}

void eval_marks_free(eval_marks *m)
{
    free(m->mark);
    *m = (eval_marks){0};
}

/* Mean and standard error of score(i) over tasks, of the marks that are wanted. */
typedef struct sums {
    double sum, squares; /* of task means */
    size_t tasks, marks, valid;
    double task_sum; /* of the running task */
    size_t task_marks;
    int32_t task;
} sums;

static void end_task(sums *s)
{
    if (!s->task_marks) return;
    double mean = s->task_sum / (double)s->task_marks;
    s->sum += mean, s->squares += mean * mean, s->tasks++;
    s->task_sum = 0, s->task_marks = 0;
}

static void add_score(sums *s, const eval_mark *m, double score)
{
    if (m->task != s->task) end_task(s);
    s->task = m->task;
    s->task_sum += score, s->task_marks++;
    s->marks++, s->valid += m->valid;
}

static eval_score finish_sums(sums *s)
{
    end_task(s);
    double n = (double)s->tasks;
    eval_score out = {.n = s->marks};
    if (!s->tasks) return out;
    out.score = s->sum / n;
    double variance = s->tasks > 1 ? (s->squares - s->sum * s->sum / n) / (n - 1) : 0;
    out.stderr_ = sqrt((variance > 0 ? variance : 0) / n);
    out.valid = (double)s->valid / (double)s->marks;
    return out;
}

eval_score eval_score_of(const eval_marks *m, int group, int depth)
{
    sums s = {.task = -1};
    for (size_t i = 0; i < m->count; i++)
        if ((group < 0 || m->mark[i].group == group) && (depth < 0 || m->mark[i].depth == depth))
            add_score(&s, &m->mark[i], (double)m->mark[i].score);
    return finish_sums(&s);
}

eval_score eval_difference(const eval_marks *a, const eval_marks *b)
{
    sums s = {.task = -1};
    for (size_t i = 0; i < a->count && i < b->count; i++)
        add_score(&s, &b->mark[i], (double)b->mark[i].score - (double)a->mark[i].score);
    return finish_sums(&s);
}

/* ---- Prompts ----------------------------------------------------------------------------------------------------- */

/* The prompt of messages [0, count) and then, unless it is SIZE_MAX, message `last`. */
static hy_status render_prompt(const hy_model *model, const task *t, size_t count, size_t last, hy_ids *ids,
                               hy_error *err)
{
    json_t *messages = json_array();
    for (size_t i = 0; i < count; i++) json_array_append(messages, json_array_get(t->messages, i));
    if (last != SIZE_MAX) json_array_append(messages, json_array_get(t->messages, last));
    char *text = json_dumps(messages, JSON_COMPACT), *tools = t->tools ? json_dumps(t->tools, JSON_COMPACT) : NULL;
    char kwargs[64];
    snprintf(kwargs, sizeof kwargs, "{\"thinking_mode\":\"%s\"}", t->thinking);
    hy_status status = text && (tools || !t->tools) ? hy_render_chat(model, text, tools, kwargs, ids, err)
                                                    : error_memory(err, "a prompt", 0);
    json_decref(messages);
    free(text), free(tools);
    return status;
}

static void split(void *user, text_kind kind, const char *text, size_t length)
{
    buffer *parts = user;
    buffer_append(&parts[kind == TEXT_CONTENT], text, length);
}

/* Marks a text that was written after a prompt which ends with `last_id`. */
static bool mark_text(const hy_model *model, const task *t, size_t turn, int32_t last_id, const char *text,
                      size_t length, const char *show, bool *valid)
{
    buffer parts[2] = {{0}, {0}};
    text_reasoning r;
    text_reasoning_begin(&r, text_reasoning_start_of(model_tokenizer(model), last_id));
    text_reasoning_feed(&r, text, length, split, parts);
    text_reasoning_finish(&r, split, parts);
    for (int i = 0; i < 2; i++) buffer_char(&parts[i], 0); /* a NUL behind it */
    bool right = false;
    *valid = false;
    if (buffer_ok(&parts[0]) && buffer_ok(&parts[1])) right = task_mark(t, turn, parts[0].data, parts[1].data, valid);
    if (show && (!right || strcmp(show, "all") == 0)) {
        size_t asked = t->turns[turn].message;
        const char *question = json_string_value(json_object_get(json_array_get(t->messages, asked - 1), "content"));
        const char *answer = json_string_value(json_object_get(json_array_get(t->messages, asked), "content"));
        printf("\n[%s, %s, %s, %s] %.300s\n  right: %s\n  wrote: %.*s\n", task_set_name(t->set),
               task_family_name(t->set, t->family), t->thinking,
               right    ? "right"
               : *valid ? "wrong"
                        : "not understood",
               question ? question : "", answer ? answer : "", (int)length, text);
    }
    buffer_free(&parts[0]), buffer_free(&parts[1]);
    return right;
}

/* ---- Sets that the engine answers ----------------------------------------------------------------------------------
 */

/* A question on its way. */
typedef struct asked {
    hy_request *request;
    int32_t task, turn, last_id;
} asked;

typedef struct engine_run {
    hy_model *model;
    const eval_options *o;
    task *tasks; /* [count] */
    asked *asked;
    size_t count, capacity;
} engine_run;

static hy_status ask(engine_run *r, hy_engine *engine, int32_t i, int32_t turn, int sample, hy_error *err)
{
    const task *t = &r->tasks[i];
    if (r->count == r->capacity) {
        size_t capacity = r->capacity ? 2 * r->capacity : 256;
        asked *more = realloc(r->asked, capacity * sizeof *more);
        if (!more) return error_memory(err, "the questions", capacity * sizeof *more);
        r->asked = more, r->capacity = capacity;
    }
    hy_ids ids = {0};
    hy_status status = render_prompt(r->model, t, t->turns[turn].message, SIZE_MAX, &ids, err);
    if (status != HY_OK) return status;
    hy_request_options options = hy_request_defaults(r->model);
    options.prompt_ids = ids.data, options.prompt_count = ids.count;
    hy_sampling *s = &options.sampling;
    s->temperature = r->o->temperature, s->top_p = 1, s->top_k = 0, s->min_p = 0;
    s->seed = (int64_t)((r->o->seed * 1000003 + (uint64_t)i) * 1009 + (uint64_t)sample) & INT64_MAX;
    int room = model_max_len(r->model) - (int)ids.count;
    s->max_tokens = r->o->limit < room ? r->o->limit : room;
    asked *a = &r->asked[r->count];
    *a = (asked){NULL, i, turn, ids.data[ids.count - 1]};
    status = hy_engine_submit(engine, &options, &a->request, err);
    if (status == HY_OK) r->count++;
    hy_ids_free(&ids);
    return status;
}

static bool answered(const hy_request *request)
{
    hy_result result;
    hy_request_result(request, &result);
    return result.finish != HY_RUNNING;
}

/* Waits for the questions in order, so that marks come in order whatever finishes first. */
static hy_status collect(engine_run *r, const char *what, eval_marks *out, hy_error *err)
{
    progress p = {.fn = cli_progress, .what = what, .unit = "answers", .total = r->count};
    hy_status status = HY_OK;
    for (size_t i = 0; i < r->count && status == HY_OK; i++) {
        asked *a = &r->asked[i];
        status = hy_request_wait(a->request);
        hy_result result;
        hy_request_result(a->request, &result);
        if (status != HY_OK) {
            status = error_set(err, status, "an answer of %s was not finished", what);
            break;
        }
        const task *t = &r->tasks[a->task];
        eval_mark m = {.task = a->task, .group = t->family, .tokens = (int32_t)result.id_count};
        bool whole = result.finish == HY_FINISH_STOP, valid = false;
        bool right =
            mark_text(r->model, t, (size_t)a->turn, a->last_id, result.text, result.text_length, r->o->show, &valid);
        m.score = whole && right ? 1 : 0, m.valid = whole && valid;
        if (!add_mark(out, &m)) status = error_memory(err, "the marks", out->count * sizeof m);
        if (!progress_add(&p, 1)) status = error_set(err, HY_CANCELLED, "the evaluation was stopped");
    }
    if (status == HY_OK) progress_end(&p);
    return status;
}

static hy_status by_engine(hy_model *model, task_set set, const eval_options *o, const char *what, eval_marks *out,
                           hy_error *err)
{
    engine_run r = {.model = model, .o = o};
    hy_engine *engine = NULL;
    hy_engine_options options = {.max_num_seqs = EVAL_SEQUENCES, .max_waiting = 1 << 20};
    if (o->drafts) options.speculation = *o->drafts;
    r.tasks = memory_zeroed((size_t)o->count, sizeof *r.tasks);
    if (!r.tasks) return error_memory(err, "the tasks", (size_t)o->count * sizeof *r.tasks);
    hy_status status = hy_engine_open(model, &options, &engine, err);
    int made = 0;
    for (; made < o->count && status == HY_OK; made++) {
        draw d = draw_begin(o->seed, (uint64_t)made);
        task_make(set, TASK_HELD_OUT, &d, 0, &r.tasks[made]);
        for (size_t turn = 0; turn < r.tasks[made].turn_count; turn++)
            for (int i = 0; i < o->samples && status == HY_OK; i++)
                status = ask(&r, engine, made, (int32_t)turn, i, err);
    }
    if (status == HY_OK) status = collect(&r, what, out, err);
    for (size_t i = 0; i < r.count && status != HY_OK; i++)
        if (!answered(r.asked[i].request)) hy_request_cancel(r.asked[i].request);
    for (size_t i = 0; i < r.count; i++) hy_request_close(r.asked[i].request);
    hy_engine_close(engine);
    for (int i = 0; i < made; i++) task_free(&r.tasks[i]);
    memory_free(r.tasks);
    free(r.asked);
    return status;
}

/* ---- Retrieval ----------------------------------------------------------------------------------------------------
 */

/* One haystack: its questions, and how many tokens all their prompts share. */
typedef struct haystack {
    task t;
    hy_ids *prompt; /* [turn_count] */
    size_t shared;
} haystack;

static void free_haystack(haystack *h)
{
    for (size_t i = 0; h->prompt && i < h->t.turn_count; i++) hy_ids_free(&h->prompt[i]);
    memory_free(h->prompt);
    if (h->t.messages) task_free(&h->t);
    *h = (haystack){0};
}

/* Every question directly after the text: what stands before the first question, and the question. The text is about
 * `tokens` long. */
static hy_status try_haystack(const hy_model *model, const eval_options *o, int length, int number, int tokens,
                              haystack *h, hy_error *err)
{
    draw d = draw_begin(o->seed, (uint64_t)length << 32 | (uint64_t)number);
    *h = (haystack){0};
    task_make(TASK_RETRIEVAL, TASK_HELD_OUT, &d, tokens, &h->t);
    h->prompt = memory_zeroed(h->t.turn_count, sizeof *h->prompt);
    if (!h->prompt) return error_memory(err, "the questions", h->t.turn_count * sizeof *h->prompt);
    size_t base = h->t.turns[0].message - 1;
    hy_status status = HY_OK;
    for (size_t i = 0; i < h->t.turn_count && status == HY_OK; i++) {
        status = render_prompt(model, &h->t, base, h->t.turns[i].message - 1, &h->prompt[i], err);
        if (status != HY_OK) break;
        size_t same = 0, most = i ? h->shared : h->prompt[0].count - 1;
        while (same < most && same + 1 < h->prompt[i].count && h->prompt[i].data[same] == h->prompt[0].data[same])
            same++;
        h->shared = same;
    }
    return status;
}

/* Tokenizers differ: a text that comes out too long is made again, with less asked for. */
static hy_status make_haystack(const hy_model *model, const eval_options *o, int length, int number, haystack *h,
                               hy_error *err)
{
    int tokens = length;
    for (int tries = 0;; tries++) {
        hy_status status = try_haystack(model, o, length, number, tokens, h, err);
        int64_t got = (int64_t)h->shared;
        if (status != HY_OK || tries == 4 || !got || got <= length + length / 16) return status;
        tokens = (int)(tokens * (int64_t)length / got);
        free_haystack(h);
    }
}

enum { ANSWER_TOKENS = 64 };

/* Question `turn` of all haystacks that have one. */
static hy_status ask_all(const hy_model *model, session *s, const eval_options *o, haystack *h, size_t turn, int number,
                         eval_marks *out, hy_error *err)
{
    session_answer answers[16];
    int32_t ids[16][ANSWER_TOKENS];
    int length_of[16], count = 0;
    for (int i = 0; i < o->length_count; i++) {
        if (turn >= h[i].t.turn_count) continue;
        const hy_ids *p = &h[i].prompt[turn];
        answers[count] = (session_answer){i, p->data + h[i].shared, p->count - h[i].shared, ids[count], 0};
        length_of[count++] = i;
    }
    hy_status status = session_ask(s, answers, count, ANSWER_TOKENS, err);
    for (int i = 0; i < count && status == HY_OK; i++) {
        haystack *one = &h[length_of[i]];
        const hy_ids *p = &one->prompt[turn];
        buffer text = {0};
        status = text_decode(model_tokenizer(model), ids[i], answers[i].count, true, &text, err);
        eval_mark m = {.task = number * o->length_count + length_of[i],
                       .group = length_of[i],
                       .depth = one->t.turns[turn].depth,
                       .tokens = (int32_t)answers[i].count};
        if (status == HY_OK)
            m.score = mark_text(model, &one->t, turn, p->data[p->count - 1], text.data ? text.data : "", text.length,
                                o->show, &m.valid);
        buffer_free(&text);
        if (status == HY_OK && !add_mark(out, &m)) status = error_memory(err, "the marks", out->count * sizeof m);
    }
    return status;
}

static hy_status stopped(hy_error *err)
{
    return error_set(err, HY_CANCELLED, "the evaluation was stopped");
}

/* One haystack of every length: read once, then all questions. */
static hy_status one_round(hy_model *model, session *s, const eval_options *o, int number, progress *p, eval_marks *out,
                           hy_error *err)
{
    haystack h[16] = {{.shared = 0}};
    hy_status status = HY_OK;
    size_t turns = 0;
    for (int i = 0; i < o->length_count && status == HY_OK; i++) {
        session_rewind(s, i, 0);
        status = make_haystack(model, o, o->lengths[i], number, &h[i], err);
        for (size_t at = 0; at < h[i].shared && status == HY_OK; at += 512) {
            size_t rows = h[i].shared - at < 512 ? h[i].shared - at : 512;
            status = session_feed(s, i, h[i].prompt[0].data + at, rows, NULL, err);
            if (status == HY_OK && !progress_add(p, rows)) status = stopped(err);
        }
        if (h[i].t.turn_count > turns) turns = h[i].t.turn_count;
    }
    for (size_t turn = 0; turn < turns && status == HY_OK; turn++) {
        status = ask_all(model, s, o, h, turn, number, out, err);
        if (status == HY_OK && !progress_add(p, 0)) status = stopped(err);
    }
    for (int i = 0; i < o->length_count; i++) free_haystack(&h[i]);
    return status;
}

static int by_task(const void *a, const void *b)
{
    const eval_mark *x = a, *y = b;
    if (x->task != y->task) return x->task < y->task ? -1 : 1;
    return (x->depth > y->depth) - (x->depth < y->depth);
}

static hy_status by_session(hy_model *model, const eval_options *o, const char *what, eval_marks *out, hy_error *err)
{
    session *s = NULL;
    int longest = o->lengths[o->length_count - 1];
    hy_status status = session_open(model, o->length_count, longest + 1024, o->random, &s, err);
    progress p = {.fn = cli_progress, .what = what, .unit = "tokens"};
    for (int i = 0; i < o->length_count; i++) p.total += (uint64_t)o->lengths[i] * (uint64_t)o->count;
    for (int i = 0; i < o->count && status == HY_OK; i++) status = one_round(model, s, o, i, &p, out, err);
    if (status == HY_OK) progress_end(&p);
    session_close(s);
    qsort(out->mark, out->count, sizeof *out->mark, by_task);
    return status;
}

hy_status eval_set(hy_model *model, task_set set, const eval_options *o, const char *what, eval_marks *out,
                   hy_error *err)
{
    if (set == TASK_RETRIEVAL) return by_session(model, o, what, out, err);
    return by_engine(model, set, o, what, out, err);
}

/* ---- Perplexity ----------------------------------------------------------------------------------------------------
 */

/* The mean of what the model gives to the tokens that it should write. */
static hy_status score_row(session *s, const row *r, int32_t number, const task *t, float *logprobs, eval_marks *out,
                           hy_error *err)
{
    session_rewind(s, 0, 0);
    hy_status status = session_feed(s, 0, r->ids, r->fits, logprobs, err);
    double sum = 0;
    int32_t written = 0;
    for (size_t i = 1; i < r->fits && status == HY_OK; i++)
        if (r->weights[i] == ROW_WRITTEN) sum -= (double)logprobs[i], written++;
    if (status != HY_OK || !written) return status;
    eval_mark m = {(float)(sum / written), true, number, (int32_t)t->set, 0, written};
    return add_mark(out, &m) ? HY_OK : error_memory(err, "the marks", out->count * sizeof m);
}

hy_status eval_perplexity(hy_model *model, const eval_options *o, const char *what, eval_marks *out, hy_error *err)
{
    enum { LENGTH = 1024 };
    session *s = NULL;
    row_tokens tokens;
    row r = {0};
    float *logprobs = memory_zeroed(LENGTH, sizeof *logprobs);
    hy_status status = logprobs ? row_tokens_find(model_tokenizer(model), &tokens, err)
                                : error_memory(err, "a row", LENGTH * sizeof *logprobs);
    if (status == HY_OK) status = session_open(model, 1, LENGTH, false, &s, err);
    progress p = {.fn = cli_progress, .what = what, .unit = "conversations", .total = (uint64_t)o->count};
    for (int i = 0; i < o->count && status == HY_OK; i++) {
        task t;
        draw d = draw_begin(o->seed ^ 0x70657270, (uint64_t)i);
        if (!task_set_present((task_set)(i % TASK_SETS))) continue;
        task_make((task_set)(i % TASK_SETS), TASK_HELD_OUT, &d, LENGTH, &t);
        status = row_encode(&r, &tokens, &t, LENGTH, err);
        if (status == HY_OK && r.fits) status = score_row(s, &r, i, &t, logprobs, out, err);
        task_free(&t);
        if (status == HY_OK && !progress_add(&p, 1)) status = stopped(err);
    }
    if (status == HY_OK) progress_end(&p);
    row_free(&r);
    session_close(s);
    memory_free(logprobs);
    return status;
}
