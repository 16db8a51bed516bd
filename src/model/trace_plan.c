/* What a trace runs: from an oracle file, or from a list of ids. */
#include "base/error.h"
#include "base/memory.h"
#include "model/trace.h"

#include <stdlib.h>
#include <string.h>

void trace_plan_free(trace_plan *plan)
{
    memory_free(plan->ids);
    memory_free(plan->logit_rows);
    memory_free(plan->hidden_rows);
    memory_free(plan->feed);
    *plan = (trace_plan){0};
}

/* A list of int32 from an oracle; an absent one that is not needed gives none. */
static hy_status read_list(const safetensors *oracle, const char *name, bool needed, int32_t **out, size_t *count,
                           hy_error *err)
{
    const tensor *t = safetensors_find(oracle, name);
    if (!t && !needed) return HY_OK;
    if (!t) return error_at(err, HY_BAD_MODEL, name, "%s has no tensor %s", safetensors_path(oracle), name);
    if (t->dtype != TENSOR_I32 || t->dims != 1)
        return error_at(err, HY_BAD_MODEL, name, "%s in %s is not a list of I32", name, safetensors_path(oracle));
    size_t n = (size_t)t->shape[0];
    int32_t *list = memory_alloc(n ? n : 1, sizeof *list);
    if (!list) return error_memory(err, name, n * sizeof *list);
    if (n) memcpy(list, t->data, n * sizeof *list);
    *out = list;
    *count = n;
    return HY_OK;
}

static hy_status check_rows(const safetensors *oracle, const char *name, const int32_t *rows, size_t count,
                            size_t prompt, hy_error *err)
{
    for (size_t i = 0; i < count; i++)
        if (rows[i] < 0 || (size_t)rows[i] >= prompt || (i && rows[i] <= rows[i - 1]))
            return error_at(err, HY_BAD_MODEL, name, "%s in %s must be ascending rows of the prompt, not %d", name,
                            safetensors_path(oracle), rows[i]);
    return HY_OK;
}

hy_status trace_plan_like(const safetensors *oracle, trace_plan *plan, hy_error *err)
{
    trace_plan p = {0};
    hy_status status = read_list(oracle, "input_ids", true, &p.ids, &p.id_count, err);
    if (status == HY_OK) status = read_list(oracle, "logit_rows", true, &p.logit_rows, &p.logit_row_count, err);
    if (status == HY_OK) status = read_list(oracle, "hidden_rows", false, &p.hidden_rows, &p.hidden_row_count, err);
    if (status == HY_OK) status = read_list(oracle, "greedy_ids", false, &p.feed, &p.feed_count, err);
    if (status == HY_OK) status = check_rows(oracle, "logit_rows", p.logit_rows, p.logit_row_count, p.id_count, err);
    if (status == HY_OK) status = check_rows(oracle, "hidden_rows", p.hidden_rows, p.hidden_row_count, p.id_count, err);
    if (status == HY_OK)
        *plan = p;
    else
        trace_plan_free(&p);
    return status;
}

hy_status trace_plan_ids(const int32_t *ids, size_t count, bool last_only, trace_plan *plan, hy_error *err)
{
    size_t rows = last_only && count ? 1 : count;
    trace_plan p = {.id_count = count, .logit_row_count = rows};
    p.ids = memory_alloc(count ? count : 1, sizeof *p.ids);
    p.logit_rows = memory_alloc(rows ? rows : 1, sizeof *p.logit_rows);
    if (!p.ids || !p.logit_rows) {
        trace_plan_free(&p);
        return error_memory(err, "the ids of a trace", count * sizeof *ids);
    }
    if (count) memcpy(p.ids, ids, count * sizeof *ids);
    for (size_t i = 0; i < rows; i++) p.logit_rows[i] = (int32_t)(count - rows + i);
    *plan = p;
    return HY_OK;
}

/* ---- Ids from text -------------------------------------------------------------------------------------------- */

static bool is_gap(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == ',';
}

/* One decimal number with an optional sign (so that -1 is refused as an id and not as a letter). 0: there is none. */
static size_t read_number(const char *s, size_t length, int64_t *out)
{
    size_t i = length && *s == '-';
    int64_t value = 0;
    size_t first = i;
    for (; i < length && s[i] >= '0' && s[i] <= '9'; i++)
        if (value <= INT32_MAX) value = value * 10 + (s[i] - '0');
    if (i == first) return 0;
    *out = *s == '-' ? -value : value;
    return i;
}

hy_status trace_parse_ids(const char *text, size_t length, hy_ids *ids, hy_error *err)
{
    int32_t *list = NULL;
    size_t count = 0, capacity = 0, i = 0;
    while (i < length && is_gap(text[i])) i++;
    bool bracket = i < length && text[i] == '[', closed = false;
    if (bracket) i++;
    hy_status status = HY_OK;
    while (status == HY_OK && i < length) {
        int64_t value = 0;
        size_t used = is_gap(text[i]) ? 1 : closed ? 0 : read_number(text + i, length - i, &value);
        if (is_gap(text[i])) {
            i += used;
        } else if (bracket && !closed && text[i] == ']') {
            closed = true;
            i++;
        } else if (!used) {
            status =
                error_set(err, HY_BAD_INPUT, "the list of token ids has something else at byte %zu: give numbers", i);
        } else if (value > INT32_MAX || value < INT32_MIN) {
            status = error_set(err, HY_BAD_INPUT, "the number at byte %zu is too large for a token id", i);
        } else if (!memory_reserve((void **)&list, &capacity, count + 1, sizeof *list)) {
            status = error_memory(err, "a list of ids", count * sizeof *list);
        } else {
            list[count++] = (int32_t)value;
            i += used;
        }
    }
    if (status == HY_OK && bracket && !closed)
        status = error_set(err, HY_BAD_INPUT, "the list of token ids has no closing ]");
    if (status != HY_OK) {
        free(list);
        return status;
    }
    hy_ids_free(ids);
    *ids = (hy_ids){list, count};
    return HY_OK;
}
