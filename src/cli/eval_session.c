#include "cli/eval_session.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "model/forward.h"
#include "tasks/draw.h"

enum { STEP_ROWS = 512, SCORE_ROWS = 128 };

struct session {
    const hy_model *model;
    const hy_ops *ops;
    const ops_model *shape;
    int sequences, stride; /* blocks of a sequence */
    bool random;
    uint64_t computed;
    size_t *length; /* [sequences] */
    ops_step *step;
    ops_cache *cache;
    /* The rows of a step. */
    int32_t count;
    int32_t *sequence, *position, *token; /* [STEP_ROWS] */
    int64_t *slot;
    uint8_t *flags;
    int32_t *table;  /* [sequences, stride] */
    int32_t *replay; /* [layers, rows of the step, index_heads, index_top], with `random` */
    float *logits;   /* [SCORE_ROWS or sequences, vocab] */
};

hy_status session_open(const hy_model *model, int sequences, int positions, bool random, session **out, hy_error *err)
{
    session *s = memory_zeroed(1, sizeof *s);
    if (!s) return error_memory(err, "a session", sizeof *s);
    *s = (session){.model = model,
                   .ops = model_ops(model),
                   .shape = model_ops_model(model),
                   .sequences = sequences,
                   .stride = (positions + CACHE_BLOCK - 1) / CACHE_BLOCK,
                   .random = random};
    const ops_model *m = s->shape;
    size_t blocks = (size_t)sequences * (size_t)s->stride, rows = STEP_ROWS;
    int32_t logit_rows = sequences > SCORE_ROWS ? sequences : SCORE_ROWS;
    assert(sequences <= STEP_ROWS);
    s->length = memory_zeroed((size_t)sequences, sizeof *s->length);
    s->sequence = memory_zeroed(rows, sizeof *s->sequence);
    s->position = memory_zeroed(rows, sizeof *s->position);
    s->token = memory_zeroed(rows, sizeof *s->token);
    s->slot = memory_zeroed(rows, sizeof *s->slot);
    s->flags = memory_zeroed(rows, sizeof *s->flags);
    s->table = memory_zeroed(blocks, sizeof *s->table);
    s->logits = memory_zeroed((size_t)logit_rows * (size_t)m->vocab, sizeof *s->logits);
    size_t selected = (size_t)m->layers * rows * (size_t)m->index_heads * (size_t)m->index_top;
    if (random) s->replay = memory_zeroed(selected ? selected : 1, sizeof *s->replay);
    hy_status status = HY_OK;
    if (!s->length || !s->sequence || !s->position || !s->token || !s->slot || !s->flags || !s->table || !s->logits ||
        (random && !s->replay))
        status = error_memory(err, "the rows of a session", (selected + rows) * sizeof(int32_t));
    for (size_t i = 0; i < blocks && status == HY_OK; i++) s->table[i] = (int32_t)i;
    ops_limits limits = {.rows = STEP_ROWS, .logit_rows = logit_rows, .positions = s->stride * CACHE_BLOCK};
    if (status == HY_OK) status = s->ops->step_open(model_backend(model), &limits, &s->step, err);
    if (status == HY_OK)
        status = s->ops->cache_open(model_backend(model), model_cache_layout(model), (int32_t)blocks, &s->cache, err);
    if (status != HY_OK) {
        session_close(s);
        return status;
    }
    *out = s;
    return HY_OK;
}

void session_close(session *s)
{
    if (!s) return;
    if (s->step) s->ops->step_close(s->step);
    if (s->cache) s->ops->cache_close(s->cache);
    void *arrays[] = {s->length, s->sequence, s->position, s->token, s->slot, s->flags, s->table, s->replay, s->logits};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) memory_free(arrays[i]);
    memory_free(s);
}

uint64_t session_rows(const session *s)
{
    return s->computed;
}

size_t session_length(const session *s, int sequence)
{
    return s->length[sequence];
}

void session_rewind(session *s, int sequence, size_t length)
{
    assert(length <= s->length[sequence]);
    s->length[sequence] = length;
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

/* A row behind the sequence's last one. */
static void add_row(session *s, int sequence, int32_t token, bool logits)
{
    size_t at = s->length[sequence]++;
    int32_t t = s->count++;
    s->sequence[t] = sequence;
    s->position[t] = (int32_t)at;
    s->token[t] = token;
    s->slot[t] = (int64_t)sequence * s->stride * CACHE_BLOCK + (int64_t)at;
    s->flags[t] = (uint8_t)((logits ? ROW_LOGITS : 0) | (s->random ? ROW_REPLAY_BLOCKS : 0));
}

/* `top` of the blocks 0 .. local, ascending, the last one among them; the same for the same layer, head and position.
 */
static void random_blocks(int layer, int head, int32_t position, int top, int32_t *out)
{
    int local = position / CACHE_BLOCK, wanted = local + 1 < top ? local + 1 : top, found = 0;
    draw d = draw_begin((uint64_t)layer << 32 | (uint64_t)head, (uint64_t)position);
    for (int b = 0; b <= local; b++) /* as many of what is left as are still wanted */
        if (b == local || draw_between(&d, 0, local - b - 1) < wanted - 1 - found) out[found++] = b;
    for (int i = found; i < top; i++) out[i] = -1;
}

static void fill_replay(session *s)
{
    const ops_model *m = s->shape;
    for (int l = 0; l < m->layers; l++)
        for (int32_t t = 0; t < s->count; t++)
            for (int h = 0; h < m->index_heads; h++) {
                size_t at = ((size_t)l * (size_t)s->count + (size_t)t) * (size_t)m->index_heads + (size_t)h;
                random_blocks(l, h, s->position[t], m->index_top, s->replay + at * (size_t)m->index_top);
            }
}

/* Computes the rows that were added; their logits come back in order. */
static hy_status run_step(session *s, int32_t logit_rows, hy_error *err)
{
    if (s->random) fill_replay(s);
    ops_rows rows = {.count = s->count,
                     .sequence = s->sequence,
                     .position = s->position,
                     .token = s->token,
                     .slot = s->slot,
                     .flags = s->flags,
                     .sequences = s->sequences,
                     .block_table = s->table,
                     .block_table_stride = s->stride,
                     .replay_blocks = s->replay};
    s->computed += (uint64_t)s->count;
    s->count = 0;
    forward_run(s->model, s->step, s->cache, &rows, false, NULL);
    hy_status status = s->ops->finish(s->step, err);
    if (status == HY_OK && logit_rows) s->ops->tensor_read(s->step, OPS_LOGITS, 0, logit_rows, s->logits);
    return status;
}

static hy_status check_room(const session *s, int sequence, size_t count, hy_error *err)
{
    size_t most = (size_t)s->stride * CACHE_BLOCK;
    if (s->length[sequence] + count <= most) return HY_OK;
    return error_set(err, HY_NO_FIT, "%zu tokens are more than the %zu of a session's sequence",
                     s->length[sequence] + count, most);
}

/* ---- Feeding ----------------------------------------------------------------------------------------------------- */

static float logprob(const float *logits, int vocab, int32_t token)
{
    float most = -INFINITY;
    double sum = 0;
    for (int i = 0; i < vocab; i++)
        if (logits[i] > most) most = logits[i];
    for (int i = 0; i < vocab; i++) sum += exp((double)(logits[i] - most));
    return (float)((double)(logits[token] - most) - log(sum));
}

hy_status session_feed(session *s, int sequence, const int32_t *ids, size_t count, float *logprobs, hy_error *err)
{
    hy_status status = check_room(s, sequence, count, err);
    size_t most = logprobs ? SCORE_ROWS : STEP_ROWS, vocab = (size_t)s->shape->vocab;
    if (logprobs && count) logprobs[0] = 0;
    for (size_t done = 0; done < count && status == HY_OK;) {
        size_t rows = count - done < most ? count - done : most;
        for (size_t i = 0; i < rows; i++) add_row(s, sequence, ids[done + i], logprobs != NULL);
        status = run_step(s, logprobs ? (int32_t)rows : 0, err);
        for (size_t i = 0; i < rows && logprobs && status == HY_OK && done + i + 1 < count; i++)
            logprobs[done + i + 1] = logprob(s->logits + i * vocab, s->shape->vocab, ids[done + i + 1]);
        done += rows;
    }
    return status;
}

/* ---- Asking ------------------------------------------------------------------------------------------------------ */

static bool ends(const session *s, int32_t token)
{
    const model_generation *g = model_generation_config(s->model);
    for (int i = 0; i < g->eos_count; i++)
        if (g->eos[i] == token) return true;
    return false;
}

/* The largest logit, ties to the lower id. */
static int32_t largest(const float *logits, int vocab)
{
    int32_t best = 0;
    for (int32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

hy_status session_ask(session *s, session_answer *answers, int count, size_t limit, hy_error *err)
{
    size_t before[STEP_ROWS], vocab = (size_t)s->shape->vocab;
    int32_t next[STEP_ROWS] = {0};
    bool open[STEP_ROWS] = {false};
    hy_status status = HY_OK;
    assert(count <= s->sequences);
    for (int a = 0; a < count && status == HY_OK; a++) {
        session_answer *q = &answers[a];
        before[a] = s->length[q->sequence];
        q->count = 0;
        status = check_room(s, q->sequence, q->prompt_count + limit, err);
        if (status == HY_OK && q->prompt_count > 1)
            status = session_feed(s, q->sequence, q->prompt, q->prompt_count - 1, NULL, err);
        next[a] = q->prompt[q->prompt_count - 1], open[a] = true;
    }
    for (size_t made = 0; made <= limit && status == HY_OK; made++) {
        int32_t rows = 0;
        for (int a = 0; a < count; a++)
            if (open[a]) add_row(s, answers[a].sequence, next[a], true), rows++;
        if (!rows) break;
        status = run_step(s, rows, err);
        rows = 0;
        for (int a = 0; a < count && status == HY_OK; a++) {
            if (!open[a]) continue;
            next[a] = largest(s->logits + (size_t)rows++ * vocab, s->shape->vocab);
            open[a] = !ends(s, next[a]) && answers[a].count < limit;
            if (open[a]) answers[a].ids[answers[a].count++] = next[a];
        }
    }
    for (int a = 0; a < count && status == HY_OK; a++) session_rewind(s, answers[a].sequence, before[a]);
    return status;
}
