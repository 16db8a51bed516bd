#include "cli/bench_questions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/memory.h"
#include "cli/flags.h"
#include "model/trace.h"
#include "tasks/tasks.h"

static hy_status open_prompts(int count, bench_questions *out, hy_error *err)
{
    *out = (bench_questions){.prompt = memory_zeroed((size_t)count, sizeof *out->prompt), .count = count};
    return out->prompt ? HY_OK : error_memory(err, "the questions", (size_t)count * sizeof *out->prompt);
}

void bench_questions_free(bench_questions *q)
{
    for (int i = 0; q->prompt && i < q->count; i++) hy_ids_free(&q->prompt[i]);
    memory_free(q->prompt);
    *q = (bench_questions){0};
}

double bench_questions_length(const bench_questions *q)
{
    double sum = 0;
    for (int i = 0; i < q->count; i++) sum += (double)q->prompt[i].count;
    return sum / q->count;
}

/* ---- Tasks ------------------------------------------------------------------------------------------------------ */

static hy_status render(const hy_model *model, const task *t, hy_ids *ids, hy_error *err)
{
    json_t *messages = json_array();
    for (size_t i = 0; i < t->turns[0].message; i++) json_array_append(messages, json_array_get(t->messages, i));
    char *text = json_dumps(messages, JSON_COMPACT), *tools = t->tools ? json_dumps(t->tools, JSON_COMPACT) : NULL;
    char kwargs[64];
    snprintf(kwargs, sizeof kwargs, "{\"thinking_mode\":\"%s\"}", t->thinking);
    hy_status status = text ? hy_render_chat(model, text, tools, kwargs, ids, err) : error_memory(err, "a prompt", 0);
    json_decref(messages);
    free(text), free(tools);
    return status;
}

hy_status bench_questions_make(const hy_model *model, int count, uint64_t seed, bench_questions *out, hy_error *err)
{
    static const task_set sets[] = {TASK_ARITHMETIC, TASK_TALK, TASK_FORM, TASK_TOOLS};
    hy_model_info info;
    hy_model_describe(model, &info);
    hy_status status = open_prompts(count, out, err);
    uint64_t number = 0;
    for (int i = 0; i < count && status == HY_OK; number++) {
        task t;
        draw d = draw_begin(seed, number);
        task_make(sets[number % 4], TASK_HELD_OUT, &d, 0, &t);
        hy_ids *ids = &out->prompt[i];
        if (t.turn_count > 0) { /* some have nothing to mark */
            status = render(model, &t, ids, err);
            for (size_t k = 0; k < ids->count; k++) ids->data[k] %= info.vocab;
            i++;
        }
        task_free(&t);
    }
    return status;
}

/* ---- A file ----------------------------------------------------------------------------------------------------- */

static hy_status read_line(const hy_model *model, const char *path, int number, const char *line, size_t length,
                           hy_ids *ids, hy_error *err)
{
    hy_model_info info;
    hy_error why = {0};
    hy_model_describe(model, &info);
    hy_status status = trace_parse_ids(line, length, ids, &why);
    if (status != HY_OK) return error_at(err, HY_BAD_INPUT, path, "%.200s, line %d: %.200s", path, number, why.message);
    if (ids->count == 0) return error_at(err, HY_BAD_INPUT, path, "%.200s, line %d has no token ids", path, number);
    for (size_t i = 0; i < ids->count; i++)
        if (ids->data[i] < 0 || ids->data[i] >= info.vocab)
            return error_at(err, HY_BAD_INPUT, path, "%.200s, line %d: the model has no token %d", path, number,
                            ids->data[i]);
    return HY_OK;
}

hy_status bench_questions_read(const hy_model *model, const char *path, int count, bench_questions *out, hy_error *err)
{
    char *text = NULL;
    size_t length = 0;
    int lines = 0;
    hy_status status = flags_read_text(path, &text, &length, err);
    if (status != HY_OK) return status;
    for (size_t i = 0; i < length; i++) lines += text[i] == '\n' || i + 1 == length;
    if (count == 0) count = lines < BENCH_MAX_QUESTIONS ? lines : BENCH_MAX_QUESTIONS;
    if (lines < count || count == 0)
        status = error_at(err, HY_BAD_INPUT, path, "%.200s has %d lines of token ids, not %d", path, lines, count);
    if (status == HY_OK) status = open_prompts(count, out, err);
    const char *at = text;
    for (int i = 0; i < count && status == HY_OK; i++) {
        size_t n = strcspn(at, "\n");
        status = read_line(model, path, i + 1, at, n, &out->prompt[i], err);
        at += n + (at[n] == '\n');
    }
    free(text);
    return status;
}
