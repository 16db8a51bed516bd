#include "engine/step.h"

#include <assert.h>

#include "base/error.h"
#include "base/memory.h"

/* ops_rows is const for its readers; here the arrays are written. */
static int32_t *sequence_of(step *s)
{
    return (int32_t *)s->rows.sequence;
}

int32_t step_picks(int32_t max_sequences, int32_t max_rows, int32_t drafts)
{
    int64_t picks = (int64_t)max_sequences * (1 + drafts) + STEP_SCORES;
    return picks < max_rows ? (int32_t)picks : max_rows;
}

hy_status step_open(int32_t max_sequences, int32_t max_rows, int32_t drafts, step *s, hy_error *err)
{
    size_t n = (size_t)max_sequences, t = (size_t)max_rows;
    size_t picks = (size_t)step_picks(max_sequences, max_rows, drafts);
    *s = (step){.max_picks = (int32_t)picks, .drafts = drafts};
    s->rows.sequence = memory_zeroed(t, sizeof *s->rows.sequence);
    s->rows.position = memory_zeroed(t, sizeof *s->rows.position);
    s->rows.token = memory_zeroed(t, sizeof *s->rows.token);
    s->rows.slot = memory_zeroed(t, sizeof *s->rows.slot);
    s->rows.flags = memory_zeroed(t, sizeof *s->rows.flags);
    s->pending = memory_zeroed(t, sizeof *s->pending);
    s->owner = memory_zeroed(t, sizeof *s->owner);
    s->member = memory_zeroed(n, sizeof *s->member);
    s->pick = memory_zeroed(picks, sizeof *s->pick);
    s->sample = memory_zeroed(picks, sizeof *s->sample);
    s->sampled = memory_zeroed(picks, sizeof *s->sampled);
    s->score = memory_zeroed(picks, sizeof *s->score);
    s->final = memory_zeroed(picks, sizeof *s->final);
    s->follows = memory_zeroed(picks, sizeof *s->follows);
    s->pick_member = memory_zeroed(picks, sizeof *s->pick_member);
    s->draft = memory_zeroed(n * (size_t)drafts + 1, sizeof *s->draft);
    s->copy = memory_zeroed(n, sizeof *s->copy);
    s->copier = memory_zeroed(n, sizeof *s->copier);
    if (!s->rows.sequence || !s->rows.position || !s->rows.token || !s->rows.slot || !s->rows.flags || !s->pending ||
        !s->owner || !s->member || !s->pick || !s->sample || !s->sampled || !s->score || !s->final || !s->follows ||
        !s->pick_member || !s->draft || !s->copy || !s->copier)
        return error_memory(err, "the rows of a step", t * 32 + n * (sizeof *s->sample + sizeof *s->sampled));
    return HY_OK;
}

void step_close(step *s)
{
    memory_free((void *)s->rows.sequence);
    memory_free((void *)s->rows.position);
    memory_free((void *)s->rows.token);
    memory_free((void *)s->rows.slot);
    memory_free((void *)s->rows.flags);
    memory_free(s->pending);
    memory_free(s->owner);
    memory_free(s->member);
    memory_free(s->pick);
    memory_free(s->sample);
    memory_free(s->sampled);
    memory_free(s->final);
    memory_free(s->follows);
    memory_free(s->pick_member);
    memory_free(s->draft);
    memory_free(s->score);
    memory_free(s->copy);
    memory_free(s->copier);
}

void step_clear(step *s)
{
    s->rows.count = s->member_count = s->pick_count = s->score_count = s->copy_count = 0;
    s->status = HY_OK;
}

void step_add_row(step *s, int32_t member, int32_t slot, int32_t position, int32_t token, int64_t cache_slot,
                  bool logits)
{
    int32_t at = s->rows.count++;
    sequence_of(s)[at] = slot;
    ((int32_t *)s->rows.position)[at] = position;
    ((int32_t *)s->rows.token)[at] = token;
    ((int64_t *)s->rows.slot)[at] = cache_slot;
    ((uint8_t *)s->rows.flags)[at] = logits ? ROW_LOGITS : 0;
    s->pending[at] = token < 0;
    s->owner[at] = member;
}

static void drop(step *s)
{
    int32_t rows = 0, picks = 0, logits = 0;
    for (int32_t i = 0; i < s->rows.count; i++) {
        bool dropped = s->member[s->owner[i]].dropped, wants = s->rows.flags[i] & ROW_LOGITS;
        if (wants && !dropped) {
            s->pick[picks] = s->pick[logits];
            s->sample[picks] = s->sample[logits];
            s->score[picks] = s->score[logits];
            s->follows[picks] = s->follows[logits];
            s->pick_member[picks] = s->pick_member[logits];
            s->sample[picks].logit_row = picks;
            picks++;
        }
        logits += wants;
        if (dropped) continue;
        sequence_of(s)[rows] = s->rows.sequence[i];
        ((int32_t *)s->rows.position)[rows] = s->rows.position[i];
        ((int32_t *)s->rows.token)[rows] = s->rows.token[i];
        ((int64_t *)s->rows.slot)[rows] = s->rows.slot[i];
        ((uint8_t *)s->rows.flags)[rows] = s->rows.flags[i];
        s->owner[rows] = s->owner[i];
        rows++;
    }
    assert(logits == s->pick_count);
    s->rows.count = rows, s->pick_count = picks;
}

void step_resolve(step *s)
{
    bool any = false;
    for (int32_t m = 0; m < s->member_count; m++) s->member[m].dropped = s->member[m].request->lost;
    for (int32_t i = 0; i < s->rows.count; i++) {
        step_member *m = &s->member[s->owner[i]];
        if (s->pending[i] && m->request->over) m->dropped = true;
        any |= m->dropped;
        if (s->pending[i] && !m->dropped) ((int32_t *)s->rows.token)[i] = m->request->ids[s->rows.position[i]];
    }
    if (any) drop(s);
}
