#include "engine/scheduler.h"

#include <assert.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

/* ---- Queues --------------------------------------------------------------------------------------------------- */

void queue_append(request_queue *q, hy_request *r)
{
    r->next = NULL;
    if (q->last)
        q->last->next = r;
    else
        q->first = r;
    q->last = r;
    q->count++;
}

void queue_move(request_queue *to, request_queue *from)
{
    if (!from->first) return;
    if (to->last)
        to->last->next = from->first;
    else
        to->first = from->first;
    to->last = from->last;
    to->count += from->count;
    *from = (request_queue){0};
}

static void queue_remove(request_queue *q, hy_request *r)
{
    hy_request *before = NULL;
    for (hy_request *at = q->first; at != r; at = at->next) {
        assert(at);
        before = at;
    }
    if (before)
        before->next = r->next;
    else
        q->first = r->next;
    if (q->last == r) q->last = before;
    r->next = NULL;
    q->count--;
}

/* ---- Opening -------------------------------------------------------------------------------------------------- */

hy_status scheduler_open(int32_t max_sequences, int32_t max_rows, int32_t block_count, int32_t max_len, scheduler *s,
                         hy_error *err)
{
    size_t n = (size_t)max_sequences, rows = (size_t)max_rows, table;
    int32_t stride = blocks_for_tokens(max_len);
    if (!size_mul(n, (size_t)stride, &table))
        return error_set(err, HY_NO_FIT, "%d sequences of %d tokens are too many: give a smaller --max-num-seqs",
                         max_sequences, max_len);
    scheduler made = {.max_sequences = max_sequences, .max_rows = max_rows};
    hy_status status = blocks_open(block_count, &made.blocks, err);
    if (status != HY_OK) return status;
    made.running = memory_zeroed(n, sizeof(hy_request *));
    made.pick = memory_zeroed(n, sizeof(hy_request *));
    made.free_slot = memory_zeroed(n, sizeof(int32_t));
    made.rows.sequences = max_sequences;
    made.rows.block_table_stride = stride;
    made.rows.block_table = memory_zeroed(table, sizeof(int32_t));
    made.rows.sequence = memory_zeroed(rows, sizeof(int32_t));
    made.rows.position = memory_zeroed(rows, sizeof(int32_t));
    made.rows.token = memory_zeroed(rows, sizeof(int32_t));
    made.rows.slot = memory_zeroed(rows, sizeof(int64_t));
    made.rows.flags = memory_zeroed(rows, 1);
    if (!made.running || !made.pick || !made.free_slot || !made.rows.block_table || !made.rows.sequence ||
        !made.rows.position || !made.rows.token || !made.rows.slot || !made.rows.flags) {
        scheduler_close(&made);
        return error_memory(err, "the scheduler", table * sizeof(int32_t) + n * 20 + rows * 21);
    }
    for (int32_t i = max_sequences; i > 0; i--) made.free_slot[made.free_slots++] = i - 1;
    *s = made;
    return HY_OK;
}

void scheduler_close(scheduler *s)
{
    blocks_close(s->blocks);
    memory_free(s->running);
    memory_free(s->pick);
    memory_free(s->free_slot);
    memory_free((void *)s->rows.block_table);
    memory_free((void *)s->rows.sequence);
    memory_free((void *)s->rows.position);
    memory_free((void *)s->rows.token);
    memory_free((void *)s->rows.slot);
    memory_free((void *)s->rows.flags);
    *s = (scheduler){0};
}

/* ---- Planning ------------------------------------------------------------------------------------------------- */

/* The next `count` rows of a request. The last known token's row wants logits. */
static void put_rows(scheduler *s, hy_request *r, int32_t count)
{
    /* ops_rows is const for its readers; here the arrays are written. */
    int32_t *sequence = (int32_t *)s->rows.sequence, *position = (int32_t *)s->rows.position;
    int32_t *token = (int32_t *)s->rows.token;
    int64_t *slot = (int64_t *)s->rows.slot;
    uint8_t *flags = (uint8_t *)s->rows.flags;
    bool room = block_table_grow(&r->table, s->blocks, r->computed + count);
    assert(room); /* promised at admission */
    for (int32_t i = 0; i < count; i++) {
        int32_t at = s->rows.count++, p = r->computed + i;
        sequence[at] = r->slot, position[at] = p, token[at] = r->ids[p];
        slot[at] = block_table_slot(&r->table, p);
        flags[at] = p + 1 == request_known(r) ? ROW_LOGITS : 0;
    }
    r->scheduled = count;
    if (r->computed + count == request_known(r)) s->pick[s->pick_count++] = r;
}

static bool admit(scheduler *s)
{
    hy_request *r = s->waiting.first;
    if (!r || s->free_slots == 0) return false;
    int32_t need = blocks_for_tokens(r->limit);
    assert(need <= blocks_count(s->blocks) && need <= s->rows.block_table_stride); /* else refused at submit */
    if (need > blocks_count(s->blocks) - s->promised) return false;
    queue_remove(&s->waiting, r);
    s->promised += need;
    r->blocks = need;
    r->slot = s->free_slot[--s->free_slots];
    r->table = (block_table){.block = (int32_t *)s->rows.block_table + (int64_t)r->slot * s->rows.block_table_stride,
                             .capacity = s->rows.block_table_stride};
    r->admitted = clock_seconds();
    s->running[s->running_count++] = r;
    return true;
}

int32_t scheduler_plan(scheduler *s)
{
    s->rows.count = 0;
    s->pick_count = 0;
    for (int32_t i = 0; i < s->running_count; i++) {
        hy_request *r = s->running[i];
        r->scheduled = 0;
        if (request_known(r) - r->computed == 1 && s->rows.count < s->max_rows) put_rows(s, r, 1);
    }
    /* Admitted requests come at the end of the running ones, so that one loop serves both. */
    for (int32_t i = 0; s->rows.count < s->max_rows && (i < s->running_count || admit(s)); i++) {
        hy_request *r = s->running[i];
        int32_t need = request_known(r) - r->computed - r->scheduled, left = s->max_rows - s->rows.count;
        if (need > 0) put_rows(s, r, need < left ? need : left);
    }
    return s->rows.count;
}

int32_t scheduler_advance(scheduler *s)
{
    int32_t prompt = 0;
    for (int32_t i = 0; i < s->running_count; i++) {
        hy_request *r = s->running[i];
        int32_t end = r->computed + r->scheduled;
        if (r->computed < r->prompt_count) prompt += (end < r->prompt_count ? end : r->prompt_count) - r->computed;
        r->computed += r->scheduled;
        block_table_wrote(&r->table, s->blocks, r->computed);
        r->scheduled = 0;
    }
    return prompt;
}

void scheduler_remove(scheduler *s, hy_request *r)
{
    if (r->slot < 0) {
        queue_remove(&s->waiting, r);
        return;
    }
    int32_t i = 0;
    while (s->running[i] != r) i++;
    for (s->running_count--; i < s->running_count; i++) s->running[i] = s->running[i + 1];
    block_table_release(&r->table, s->blocks);
    s->promised -= r->blocks;
    s->free_slot[s->free_slots++] = r->slot;
    r->slot = -1;
}
