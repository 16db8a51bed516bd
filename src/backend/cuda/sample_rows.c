/*
 * The chain of sampling on the GPU (kernels/sample.cu) for rows that ask for nothing but masks, temperature and cuts.
 * What it picks is what sample_row picks; a row that it cannot do comes back as -1, as one of which nothing is left,
 * and goes to sample_row.
 *
 * Nearly all rows have one and the same mask, the ids that stand for text, in step after step. So masks of a call have
 * slots, a pointer that came before has its own again, and a slot goes to the GPU when its bits have changed.
 */
#include "backend/cuda/cuda.h"

#include <assert.h>
#include <string.h>

#include "backend/cuda/kernels/draft.h"
#include "backend/cuda/kernels/sample.h"
#include "backend/sample.h"
#include "base/error.h"
#include "base/memory.h"

enum {
    PICK_CHUNKS = 256,      /* most blocks that look through a row */
    PICKS_OF_PROCESSOR = 6, /* blocks that look through rows at once */
};

/* R = limits.logit_rows, at least 1. */
typedef struct cuda_sampling {
    sample_row_args *row; /* device, as the next four, [R] */
    sample_bound *bound;
    uint64_t *best;            /* [R, chunks] */
    float *maxima;             /* [R, SAMPLE_GROUPS] */
    uint8_t *answer;           /* ids [R], then states of drafts [limits.drafts] */
    uint32_t *mask;            /* [R, words] slots */
    sample_row_args *host_row; /* host, [R] */
    uint32_t *host_mask;       /* host, [R, words] as the slots are; of those from `known` on nothing is known */
    uint8_t *host_answer;      /* host */
    size_t id_bytes, answer_bytes;
    int32_t chunks, rows, known; /* chunks: most of a row */
    size_t words;                /* of a mask */
} cuda_sampling;

hy_status cuda_sampling_open(ops_step *step, hy_error *err)
{
    int32_t vocab = step->backend->model->vocab;
    cuda_sampling *s = step->sampling = memory_zeroed(1, sizeof *s);
    if (!s) return error_memory(err, "sampling", sizeof *s);
    s->rows = step->limits.logit_rows > 0 ? step->limits.logit_rows : 1;
    s->chunks = (vocab + 4 * SAMPLE_PICK_THREADS - 1) / (4 * SAMPLE_PICK_THREADS);
    if (s->chunks > PICK_CHUNKS) s->chunks = PICK_CHUNKS;
    size_t rows = (size_t)s->rows;
    s->words = ((size_t)vocab + 31) / 32;
    s->id_bytes = (rows * sizeof(int32_t) + 15) / 16 * 16;
    s->answer_bytes = s->id_bytes + (size_t)step->limits.drafts * sizeof(draft_state);
    s->host_answer = memory_zeroed(s->answer_bytes, 1);
    s->host_row = memory_zeroed(rows, sizeof *s->host_row);
    s->host_mask = memory_alloc(rows, s->words * sizeof *s->host_mask);
    if (!s->host_row || !s->host_mask || !s->host_answer)
        return error_memory(err, "sampling", rows * (sizeof *s->host_row + s->words * sizeof *s->host_mask));
    hy_status status = cuda_step_alloc(step, rows, sizeof *s->row, "sampling", &s->row, err);
    if (status == HY_OK) status = cuda_step_alloc(step, rows, sizeof *s->bound, "sampling", &s->bound, err);
    if (status == HY_OK)
        status = cuda_step_alloc(step, rows * (size_t)s->chunks, sizeof *s->best, "sampling", &s->best, err);
    if (status == HY_OK)
        status = cuda_step_alloc(step, rows * SAMPLE_GROUPS, sizeof *s->maxima, "sampling", &s->maxima, err);
    if (status == HY_OK) status = cuda_step_alloc(step, s->answer_bytes, 1, "sampling", &s->answer, err);
    if (status == HY_OK)
        status = cuda_step_alloc(step, rows * s->words, sizeof *s->mask, "masks of the vocabulary", &s->mask, err);
    return status;
}

void cuda_sampling_close(ops_step *step)
{
    if (!step->sampling) return;
    memory_free(step->sampling->host_row);
    memory_free(step->sampling->host_mask);
    memory_free(step->sampling->host_answer);
    memory_free(step->sampling);
    step->sampling = NULL;
}

static int32_t kind_of(const ops_sample *how, int32_t vocab)
{
    if (sample_is_greedy(how->temperature)) return SAMPLE_ALL;
    if ((how->top_k > 0 && how->top_k < vocab) || how->top_p < 1) return SAMPLE_LISTED;
    return how->min_p > 0 ? SAMPLE_BOUNDED : SAMPLE_ALL;
}

bool cuda_sample_on_gpu(const ops_step *step, const ops_sample *row)
{
    bool penalties = row->repetition_penalty != 1 || row->frequency_penalty != 0 || row->presence_penalty != 0;
    int32_t vocab = step->backend->model->vocab, kind = kind_of(row, vocab);
    bool cut = kind == SAMPLE_LISTED && row->top_k > 0 && row->top_k < vocab;
    return row->bias_count == 0 && !penalties && row->logprobs < 0 && !(cut && row->top_k > SAMPLE_MOST) &&
           !(kind != SAMPLE_ALL && vocab > SAMPLE_VOCAB) && row->logit_row < step->logit_rows &&
           step->error.status == HY_OK;
}

/* The slots of a call: [0, used), of which [first, last) are to be sent. */
typedef struct mask_slots {
    int32_t used, first, last;
    const uint32_t *bits[2]; /* of which rows before had slot 0, and the last slot */
} mask_slots;

/* The slot of a row's mask, -1 for none. */
static int32_t mask_slot(const ops_step *step, mask_slots *slots, const ops_sample *how)
{
    cuda_sampling *s = step->sampling;
    size_t bytes = s->words * sizeof *s->host_mask;
    sample_masking masking = sample_masks(how);
    if (masking == SAMPLE_MASK_NONE) return -1;
    bool given = masking == SAMPLE_MASK_GIVEN;
    for (int i = 0; i < 2 && given; i++)
        if (slots->used > 0 && slots->bits[i] == how->mask) return i ? slots->used - 1 : 0;
    int32_t slot = slots->used++;
    uint32_t *bits = s->host_mask + (size_t)slot * s->words;
    slots->bits[1] = given ? how->mask : NULL;
    if (slot == 0) slots->bits[0] = slots->bits[1];
    if (given && slot < s->known && memcmp(bits, how->mask, bytes) == 0) return slot;
    if (given)
        memcpy(bits, how->mask, bytes);
    else
        sample_mask_bits(how, step->backend->model->vocab, bits);
    if (slots->first == slots->last) slots->first = slot;
    slots->last = slot + 1;
    return slot;
}

static void send_masks(const ops_step *step, const mask_slots *slots)
{
    cuda_sampling *s = step->sampling;
    gpu *g = step->backend->gpu;
    size_t first = (size_t)slots->first * s->words, count = (size_t)(slots->last - slots->first) * s->words;
    if (count) g->calls->write(g, s->mask + first, s->host_mask + first, count * sizeof *s->mask);
    if (slots->last > s->known) s->known = slots->last;
}

int32_t cuda_sample_room(const ops_step *step)
{
    return step->sampling->rows;
}

void cuda_sample_start(ops_step *step, const ops_sample *const *rows, int32_t count)
{
    cuda_sampling *s = step->sampling;
    gpu *g = step->backend->gpu;
    int32_t vocab = step->backend->model->vocab;
    mask_slots slots = {0};
    bool masses = false, bounds = false;
    assert(count <= s->rows);
    for (int32_t i = 0; i < count; i++) {
        const ops_sample *how = rows[i];
        int32_t slot = mask_slot(step, &slots, how);
        s->host_row[i] = (sample_row_args){
            .logit_row = how->logit_row, .top_k = how->top_k, .top_p = how->top_p, .min_p = how->min_p};
        s->host_row[i].kind = kind_of(how, vocab);
        masses |= s->host_row[i].kind == SAMPLE_LISTED && !(how->top_k > 0 && how->top_k < vocab);
        bounds |= s->host_row[i].kind == SAMPLE_BOUNDED;
        s->host_row[i].stream = (draw_stream){.seed = how->seed,
                                              .position = how->position,
                                              .choice = how->choice,
                                              .purpose = RANDOM_PICK,
                                              .temperature = how->temperature,
                                              .greedy = sample_is_greedy(how->temperature)};
        if (slot >= 0) s->host_row[i].mask = s->mask + (size_t)slot * s->words;
    }
    int32_t chunks = (PICKS_OF_PROCESSOR * step->backend->info.processors + count - 1) / count;
    if (chunks > s->chunks) chunks = s->chunks;
    int32_t fours = 1;
    while ((vocab + 4 * fours - 1) / (4 * fours) > SAMPLE_GROUPS && fours < SAMPLE_GROUP_FOURS) fours *= 2;
    sample_args args = {.logits = step->logits,
                        .row = s->row,
                        .bound = s->bound,
                        .best = s->best,
                        .maxima = s->maxima,
                        .id = cuda_answer_ids(step, false),
                        .vocab = vocab,
                        .chunks = chunks,
                        .fours = fours};
    send_masks(step, &slots);
    g->calls->write(g, s->row, s->host_row, (size_t)count * sizeof *s->row);
    cuda_launch(step, "sample_scan", chunks, count, 1, SAMPLE_PICK_THREADS, 0, &args, sizeof args);
    if (masses) cuda_launch(step, "sample_mass", chunks, count, 1, SAMPLE_PICK_THREADS, 0, &args, sizeof args);
    cuda_launch(step, "sample_cut", count, 1, 1, SAMPLE_THREADS, 0, &args, sizeof args);
    if (!bounds) return;
    cuda_launch(step, "sample_pick", chunks, count, 1, SAMPLE_PICK_THREADS, 0, &args, sizeof args);
    cuda_launch(step, "sample_take", count, 1, 1, CUDA_WARP, 0, &args, sizeof args);
}

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

int32_t *cuda_answer_ids(const ops_step *step, bool host)
{
    const cuda_sampling *s = step->sampling;
    return (int32_t *)(void *)(host ? s->host_answer : s->answer);
}

struct draft_state *cuda_answer_drafts(const ops_step *step, bool host)
{
    const cuda_sampling *s = step->sampling;
    return (draft_state *)(void *)((host ? s->host_answer : s->answer) + s->id_bytes);
}

bool cuda_answer_read(ops_step *step, int32_t ids, int32_t drafts)
{
    cuda_sampling *s = step->sampling;
    gpu *g = step->backend->gpu;
    size_t bytes = drafts ? s->id_bytes + (size_t)drafts * sizeof(draft_state) : (size_t)ids * sizeof(int32_t);
    if (step->error.status != HY_OK) return false;
    g->calls->read(g, s->answer, s->host_answer, bytes);
    return g->calls->wait(g, NULL) == HY_OK;
}

void cuda_sample_rows(ops_step *step, const ops_sample *const *rows, int32_t count, int32_t *ids)
{
    for (int32_t first = 0, some; first < count; first += some) {
        some = count - first < step->sampling->rows ? count - first : step->sampling->rows;
        cuda_sample_start(step, rows + first, some);
        bool came = cuda_answer_read(step, some, 0);
        for (int32_t i = 0; i < some; i++) ids[first + i] = came ? cuda_answer_ids(step, true)[i] : -1;
    }
}
