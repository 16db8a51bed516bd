/*
 * The chain of backend/sample.c on rows that have no bias or penalties: masks, temperature, min-p, top-k, top-p, argmax of
 * what is left + Gumbel noise. The same choice to the bit: the same fp32 steps, masses as sums of whole numbers, cuts at a
 * place in the order (logit descending, id ascending).
 *
 * A cut keeps a prefix of that order, so all three are one bound (key, last id). sample_cut, one block a row, finds it without
 * sorting the row: the k-th largest of the threads' own maxima is a threshold that at least k entries reach and few more do;
 * these are sorted in shared memory and the cut is made there. Where they do not hold it (a flat row and top-p, equal
 * logits by the thousand) the row is refused and the host's definition takes it. sample_pick draws over the whole row.
 *
 * Bytes: 4 * vocab a pass, and vocab / 8 of a mask, which rows share and the second-level cache holds; three passes a row
 * with cuts and one without. Rows are the parallelism of sample_cut, parts of the vocabulary that of sample_pick. The bound
 * is one multiprocessor's reading of two passes.
 */
#include "backend/cuda/kernels/draw.cuh"

/* e^x, x <= 0, in units of 2^-42. */
DEVICE uint64_t weight_of(float x)
{
    if (!(x > -30.0f)) return 0;
    int32_t k = (int32_t)(x * 1.44269502f - 0.5f);
    float r = (x - (float)k * 0.693359375f) - (float)k * -2.12194442e-4f;
    float p = 1.98412701e-4f;
    p = p * r + 1.38888892e-3f;
    p = p * r + 8.33333377e-3f;
    p = p * r + 4.16666679e-2f;
    p = p * r + 0.166666672f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return (uint64_t)(p * bits_float((uint32_t)(127 + 42 + k) << 23));
}

DEVICE float of_key(uint32_t key) { return bits_float(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key); }

DEVICE bool inside(const sample_bound &bound, uint32_t key, int32_t id)
{
    return key > bound.key || (key == bound.key && id <= bound.last);
}

/* Descending, all `count` of them, a power of two; the block's threads all come. */
template <typename type> DEVICE void sort_down(type *values, int count)
{
    for (int size = 2; size <= count; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            for (int i = threadIdx.x; i < count; i += SAMPLE_THREADS) {
                int other = i ^ step;
                if (other <= i) continue;
                type a = values[i], b = values[other];
                if ((a < b) == ((i & size) == 0)) values[i] = b, values[other] = a;
            }
            BLOCK_SYNC();
        }
}

/* A thread's share of a row, so much at once that a block has enough loads on their way; -inf behind the last. */
enum { FOURS = 2 };
DEVICE void load_fours(const float *row, const uint32_t *mask, int base, int vocab, float z[FOURS][4])
{
    UNROLL
    for (int n = 0; n < FOURS; n++) {
        int first = base + n * 4 * SAMPLE_THREADS;
        if (first < vocab) {
            draw_four(row, first, vocab, z[n]);
        } else {
            UNROLL
            for (int i = 0; i < 4; i++) z[n][i] = DRAW_NONE;
        }
    }
    UNROLL
    for (int n = 0; n < FOURS; n++) draw_mask(mask, base + n * 4 * SAMPLE_THREADS, vocab, z[n]);
}

/* Sum over the block, in all threads; `part` holds a number a warp. */
DEVICE uint64_t sum_of_block(uint64_t x, uint64_t *part)
{
    for (int mask = 16; mask > 0; mask /= 2) x += lane_xor(x, mask);
    if (threadIdx.x % CUDA_WARP == 0) part[threadIdx.x / CUDA_WARP] = x;
    BLOCK_SYNC();
    x = 0;
    for (int i = 0; i < SAMPLE_THREADS / CUDA_WARP; i++) x += part[i];
    BLOCK_SYNC();
    return x;
}

KERNEL(sample_cut, sample_args)
{
    SHARED(uint64_t, list, SAMPLE_LIST);
    SHARED(uint64_t, mass, SAMPLE_LIST);
    SHARED(uint32_t, maxima, SAMPLE_THREADS);
    SHARED(uint64_t, part, SAMPLE_THREADS / CUDA_WARP);
    SHARED(uint32_t, listed, 1);
    const sample_row_args &how = a.row[blockIdx.x];
    const float *row = a.logits + (int64_t)how.logit_row * a.vocab;
    float temperature = how.stream.temperature;
    bool by_count = how.top_k > 0 && how.top_k < a.vocab, by_mass = how.top_p < 1;
    sample_bound bound = {draw_key(DRAW_NONE), -1, 0};
    if (how.stream.greedy || !(by_count || by_mass || how.min_p > 0)) {
        if (threadIdx.x == 0) a.bound[blockIdx.x] = bound;
        return;
    }

    uint32_t most = 0;
    for (int base = 4 * threadIdx.x; base < a.vocab; base += FOURS * 4 * SAMPLE_THREADS) {
        float z[FOURS][4];
        load_fours(row, how.mask, base, a.vocab, z);
        UNROLL
        for (int n = 0; n < FOURS; n++)
            UNROLL for (int i = 0; i < 4; i++) {
                uint32_t key = draw_key(draw_scale(z[n][i], temperature));
                if (key > most) most = key;
            }
    }
    maxima[threadIdx.x] = most;
    if (threadIdx.x == 0) listed[0] = 0;
    BLOCK_SYNC();
    sort_down(maxima, SAMPLE_THREADS);
    float top = of_key(maxima[0]);
    if (how.min_p > 0 && top > DRAW_NONE) {
        const float least = bits_float(0x00800000u); /* the smallest normal number */
        float floor = top + draw_log(how.min_p > least ? how.min_p : least);
        bound = {draw_key(floor + 0.0f), 0x7FFFFFFF, 0};
    }
    if (!(by_count || by_mass) || !(top > DRAW_NONE)) {
        if (threadIdx.x == 0) a.bound[blockIdx.x] = bound;
        return;
    }

    /* What may be in the list, and without top-k the mass of all. */
    uint32_t threshold = maxima[(by_count ? how.top_k : SAMPLE_MOST) - 1];
    uint64_t sum = 0;
    for (int base = 4 * threadIdx.x; base < a.vocab; base += FOURS * 4 * SAMPLE_THREADS) {
        float fours[FOURS][4];
        load_fours(row, how.mask, base, a.vocab, fours);
        UNROLL
        for (int n = 0; n < FOURS; n++)
            UNROLL for (int i = 0; i < 4; i++) {
                int id = base + n * 4 * SAMPLE_THREADS + i;
                float z = draw_scale(fours[n][i], temperature);
                uint32_t key = draw_key(z);
                if (id >= a.vocab || !inside(bound, key, id)) continue;
                if (!by_count) sum += weight_of(z - top);
                if (key < threshold) continue;
                uint32_t at = count_up(listed, 1);
                if (at < SAMPLE_LIST) list[at] = draw_place(z, id);
            }
    }
    if (!by_count) sum = sum_of_block(sum, part);
    BLOCK_SYNC();
    int count = (int)listed[0], padded = 2;
    if (count == 0 || count > SAMPLE_LIST) { /* none: min-p above 1 */
        bound.refused = 1;
        if (threadIdx.x == 0) a.bound[blockIdx.x] = bound;
        return;
    }
    while (padded < count) padded *= 2;
    for (int i = count + threadIdx.x; i < padded; i += SAMPLE_THREADS) list[i] = 0;
    BLOCK_SYNC();
    sort_down(list, padded);
    int kept = by_count && how.top_k < count ? how.top_k : count;
    if (by_mass) {
        /* Masses of the first i + 1 entries: pairs, fours, ... of them added up in place. */
        for (int i = threadIdx.x; i < padded; i += SAMPLE_THREADS)
            mass[i] = i < kept ? weight_of(of_key((uint32_t)(list[i] >> 32)) - top) : 0;
        BLOCK_SYNC();
        for (int step = 1; step < padded; step *= 2) {
            uint64_t before[SAMPLE_LIST / SAMPLE_THREADS];
            for (int i = threadIdx.x, n = 0; i < padded; i += SAMPLE_THREADS, n++) before[n] = i >= step ? mass[i - step] : 0;
            BLOCK_SYNC();
            for (int i = threadIdx.x, n = 0; i < padded; i += SAMPLE_THREADS, n++) mass[i] += before[n];
            BLOCK_SYNC();
        }
        if (by_count) sum = mass[kept - 1];
        double target = ceil((double)how.top_p * (double)sum);
        uint64_t least = target > 1 ? (uint64_t)target : 1;
        if (mass[kept - 1] < least && !by_count) {
            bound.refused = 1;
            if (threadIdx.x == 0) a.bound[blockIdx.x] = bound;
            return;
        }
        /* The entry that reaches it is the last: exactly one thread has it, or none and all are kept. */
        BLOCK_SYNC();
        if (threadIdx.x == 0) listed[0] = (uint32_t)kept;
        BLOCK_SYNC();
        for (int i = threadIdx.x; i < kept; i += SAMPLE_THREADS)
            if (mass[i] >= least && (i == 0 || mass[i - 1] < least)) listed[0] = (uint32_t)i + 1;
        BLOCK_SYNC();
        kept = (int)listed[0];
    }
    if (threadIdx.x > 0) return;
    uint64_t last = list[kept - 1];
    a.bound[blockIdx.x] = {(uint32_t)(last >> 32), draw_id(last), 0};
}

KERNEL(sample_pick, sample_args)
{
    SHARED(uint64_t, part, SAMPLE_PICK_THREADS / CUDA_WARP);
    const sample_row_args &how = a.row[blockIdx.y];
    const float *row = a.logits + (int64_t)how.logit_row * a.vocab;
    sample_bound bound = a.bound[blockIdx.y];
    if (bound.refused) return;
    draw_best best = {DRAW_NONE, -1};
    int step = 4 * gridDim.x * SAMPLE_PICK_THREADS;
    for (int first = 4 * (blockIdx.x * SAMPLE_PICK_THREADS + threadIdx.x); first < a.vocab; first += step) {
        float z[4];
        draw_four(row, first, a.vocab, z);
        draw_mask(how.mask, first, a.vocab, z);
        UNROLL
        for (int i = 0; i < 4; i++) {
            z[i] = how.stream.greedy ? draw_clean(z[i]) : draw_scale(z[i], how.stream.temperature);
            if (!how.stream.greedy && !inside(bound, draw_key(z[i]), first + i)) z[i] = DRAW_NONE;
        }
        if (!how.stream.greedy)
            draw_noisy(best, how.stream, z, first);
        else
            UNROLL for (int i = 0; i < 4; i++) draw_take(best, z[i], first + i);
    }
    uint64_t place = draw_best_of_warp(draw_place(best));
    if (threadIdx.x % CUDA_WARP == 0) part[threadIdx.x / CUDA_WARP] = place;
    BLOCK_SYNC();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < SAMPLE_PICK_THREADS / CUDA_WARP; i++)
        if (part[i] > place) place = part[i];
    a.best[(int64_t)blockIdx.y * a.chunks + blockIdx.x] = place;
}

/* One warp a row. */
KERNEL(sample_take, sample_args)
{
    uint64_t place = 0;
    for (int i = threadIdx.x; i < a.chunks; i += CUDA_WARP) {
        uint64_t other = a.best[(int64_t)blockIdx.x * a.chunks + i];
        if (other > place) place = other;
    }
    place = draw_best_of_warp(place);
    if (threadIdx.x == 0) a.id[blockIdx.x] = a.bound[blockIdx.x].refused ? -1 : draw_id(place);
}
