/*
 * The chain of backend/sample.c on rows that have no bias or penalties: masks, temperature, min-p, top-k, top-p, argmax of
 * what is left + Gumbel noise. The same choice to the bit: the same fp32 steps, masses as sums of whole numbers, cuts at a
 * place in the order (logit descending, id ascending).
 *
 * sample_scan reads a row once. Without cuts it finds the best of each part, and sample_cut the best of these. With cuts it
 * leaves the maximum of every group of at most 128 neighbours: scaling keeps their order, so it is the group's maximum
 * afterwards too. The k-th largest of the maxima is a threshold that at least k entries reach and few more do, all in groups
 * whose maximum does. sample_cut, one block a row, takes a threshold at or a little below that one, reads these groups alone,
 * sorts what reaches it, makes the cut there and draws of what is left. Where the list does not hold the cut (a flat row and
 * top-p, equal logits by the thousand) the row is refused and the host's definition takes it. Min-p alone is a bound, under
 * which sample_pick draws.
 *
 * Bytes: 4 * vocab once, and vocab / 8 of a mask, which rows share and the second-level cache holds: 51 MB for 64 rows of
 * 200,064 ids, 12 us at 4.2 TB/s. Noise is ten rounds of Philox for four ids, some 130 instructions with what is around them, 3.2
 * million times for 64 rows: 14 us of all issue slots. A row alone is latency: two launches and the dozen barriers of sample_cut.
 *
 * H200, 2026-12-01, 1, 8 and 64 rows of 200,064 ids: greedy 6.8, 9.3, 18.9 us; temperature 1 10.7, 18.8, 46.9; top-k 40 and top-p
 * 0.95 18.5, 21, 36.
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

DEVICE bool cut_by_count(const sample_args &a, const sample_row_args &how) { return how.top_k > 0 && how.top_k < a.vocab; }

/* Keys below it are not left by min-p; with the row's largest logit. */
DEVICE uint32_t floor_of(const sample_row_args &how, float top)
{
    if (!(how.min_p > 0)) return draw_key(DRAW_NONE) + 1;
    const float least = bits_float(0x00800000u); /* the smallest normal number */
    return draw_key(top + draw_log(how.min_p > least ? how.min_p : least) + 0.0f);
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

/* ---- The whole row ----------------------------------------------------------------------------------------------- */

/* Fours [begin, end) of a block's part of a row. */
struct scan_share {
    int begin, end;
};
DEVICE scan_share share_of(const sample_args &a)
{
    const int threads = SAMPLE_PICK_THREADS;
    int fours = (a.vocab + 3) / 4, of_block = (fours + a.chunks * threads - 1) / (a.chunks * threads) * threads;
    int begin = min((int)blockIdx.x * of_block, fours);
    return {begin, min(begin + of_block, fours)};
}

/* Logits of this thread's fours base, base + SAMPLE_PICK_THREADS, ..; -inf from `end` on. */
DEVICE void load_fours(const sample_args &a, const sample_row_args &how, int base, int end, float (&z)[SAMPLE_PICK_FOURS][4])
{
    const float *row = a.logits + (int64_t)how.logit_row * a.vocab;
    if (a.vocab % 4 == 0 && base + (SAMPLE_PICK_FOURS - 1) * SAMPLE_PICK_THREADS < end) {
        quad q[SAMPLE_PICK_FOURS];
        UNROLL for (int n = 0; n < SAMPLE_PICK_FOURS; n++) q[n] = ((const quad *)row)[base + n * SAMPLE_PICK_THREADS];
        UNROLL for (int n = 0; n < SAMPLE_PICK_FOURS; n++)
            UNROLL for (int i = 0; i < 4; i++) z[n][i] = bits_float(q[n].w[i]);
    } else {
        UNROLL for (int n = 0; n < SAMPLE_PICK_FOURS; n++) {
            int four = base + n * SAMPLE_PICK_THREADS;
            UNROLL for (int i = 0; i < 4; i++) z[n][i] = DRAW_NONE;
            if (four < end) draw_four(row, 4 * four, a.vocab, z[n]);
        }
    }
    if (!how.mask) return;
    UNROLL for (int n = 0; n < SAMPLE_PICK_FOURS; n++) draw_mask(how.mask, 4 * (base + n * SAMPLE_PICK_THREADS), a.vocab, z[n]);
}

/* The best of a block's part, of keys from `floor` on. */
DEVICE uint64_t best_of_share(const sample_args &a, const sample_row_args &how, uint32_t floor)
{
    const int step = SAMPLE_PICK_THREADS * SAMPLE_PICK_FOURS;
    SHARED(uint64_t, part, SAMPLE_PICK_THREADS / CUDA_WARP);
    scan_share share = share_of(a);
    draw_best best = {DRAW_NONE, -1};
    float bound = DRAW_NONE;
    draw_scaling scaling = draw_scaling_of(how.stream);
    for (int base = share.begin; base < share.end; base += step) {
        int four = base + (int)threadIdx.x;
        float z[SAMPLE_PICK_FOURS][4];
        load_fours(a, how, four, share.end, z);
        if (how.stream.greedy) {
            UNROLL for (int n = 0; n < SAMPLE_PICK_FOURS; n++)
                UNROLL for (int i = 0; i < 4; i++)
                    draw_take(best, draw_clean(z[n][i]), 4 * (four + n * SAMPLE_PICK_THREADS) + i);
            continue;
        }
        UNROLL for (int n = 0; n < SAMPLE_PICK_FOURS; n++) draw_scale_four(scaling, z[n]);
        if (floor)
            UNROLL for (int n = 0; n < SAMPLE_PICK_FOURS; n++)
                UNROLL for (int i = 0; i < 4; i++)
                    if (draw_key(z[n][i]) < floor) z[n][i] = DRAW_NONE;
        draw_noisy(best, bound, how.stream, z, 4 * four, 4 * SAMPLE_PICK_THREADS);
    }
    uint64_t place = draw_best_of_warp(draw_place(best));
    if (threadIdx.x % CUDA_WARP == 0) part[threadIdx.x / CUDA_WARP] = place;
    BLOCK_SYNC();
    for (int i = 0; i < SAMPLE_PICK_THREADS / CUDA_WARP; i++)
        if (part[i] > place) place = part[i];
    return place;
}

DEVICE void maxima_of_share(const sample_args &a, const sample_row_args &how)
{
    scan_share share = share_of(a);
    float *maxima = a.maxima + (int64_t)blockIdx.y * SAMPLE_GROUPS;
    for (int base = share.begin; base < share.end; base += SAMPLE_PICK_THREADS * SAMPLE_PICK_FOURS) {
        int four = base + (int)threadIdx.x;
        float z[SAMPLE_PICK_FOURS][4], most[SAMPLE_PICK_FOURS];
        load_fours(a, how, four, share.end, z);
        UNROLL for (int n = 0; n < SAMPLE_PICK_FOURS; n++) {
            most[n] = DRAW_NONE; /* a NaN is not above it */
            UNROLL for (int i = 0; i < 4; i++) most[n] = fmaxf(most[n], z[n][i]);
        }
        for (int mask = 1; mask < a.fours; mask *= 2)
            UNROLL for (int n = 0; n < SAMPLE_PICK_FOURS; n++) most[n] = fmaxf(most[n], lane_xor(most[n], mask));
        UNROLL for (int n = 0; n < SAMPLE_PICK_FOURS; n++) {
            int at = four + n * SAMPLE_PICK_THREADS;
            if (at < share.end && at % a.fours == 0) maxima[at / a.fours] = most[n];
        }
    }
}

KERNEL(sample_scan, sample_args)
{
    const sample_row_args how = a.row[blockIdx.y];
    if (how.kind != SAMPLE_ALL) {
        maxima_of_share(a, how);
        return;
    }
    uint64_t place = best_of_share(a, how, 0);
    if (threadIdx.x == 0) a.best[(int64_t)blockIdx.y * a.chunks + blockIdx.x] = place;
}

/* The largest of a block, in all threads; `part` has a number a warp. */
template <int THREADS> DEVICE float most_of_block(float x, float *part)
{
    UNROLL for (int mask = 16; mask > 0; mask /= 2) x = fmaxf(x, lane_xor(x, mask));
    if (threadIdx.x % CUDA_WARP == 0) part[threadIdx.x / CUDA_WARP] = x;
    BLOCK_SYNC();
    UNROLL for (int i = 0; i < THREADS / CUDA_WARP / 4; i++) {
        quad q = ((const quad *)part)[i];
        UNROLL for (int j = 0; j < 4; j++) x = fmaxf(x, bits_float(q.w[j]));
    }
    return x;
}
DEVICE int groups_of(const sample_args &a) { return (a.vocab + 4 * a.fours - 1) / (4 * a.fours); }

KERNEL(sample_mass, sample_args)
{
    SHARED(float, most_part, SAMPLE_PICK_THREADS / CUDA_WARP);
    SHARED(uint64_t, part, SAMPLE_PICK_THREADS / CUDA_WARP);
    const sample_row_args how = a.row[blockIdx.y];
    if (how.kind != SAMPLE_LISTED || cut_by_count(a, how)) return;
    const float *maxima = a.maxima + (int64_t)blockIdx.y * SAMPLE_GROUPS;
    float most = DRAW_NONE;
    for (int i = threadIdx.x; i < groups_of(a); i += SAMPLE_PICK_THREADS) most = fmaxf(most, maxima[i]);
    float top = draw_scale(most_of_block<SAMPLE_PICK_THREADS>(most, most_part), how.stream.temperature);
    uint32_t floor = floor_of(how, top);
    scan_share share = share_of(a);
    draw_scaling scaling = draw_scaling_of(how.stream);
    uint64_t sum = 0;
    for (int base = share.begin; base < share.end; base += SAMPLE_PICK_THREADS * SAMPLE_PICK_FOURS) {
        float z[SAMPLE_PICK_FOURS][4];
        load_fours(a, how, base + (int)threadIdx.x, share.end, z);
        UNROLL for (int n = 0; n < SAMPLE_PICK_FOURS; n++) draw_scale_four(scaling, z[n]);
        UNROLL for (int n = 0; n < SAMPLE_PICK_FOURS; n++)
            UNROLL for (int i = 0; i < 4; i++)
                if (draw_key(z[n][i]) >= floor) sum += weight_of(z[n][i] - top);
    }
    UNROLL for (int mask = 16; mask > 0; mask /= 2) sum += lane_xor(sum, mask);
    if (threadIdx.x % CUDA_WARP == 0) part[threadIdx.x / CUDA_WARP] = sum;
    BLOCK_SYNC();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < SAMPLE_PICK_THREADS / CUDA_WARP; i++) sum += part[i];
    a.best[(int64_t)blockIdx.y * a.chunks + blockIdx.x] = sum;
}

/* ---- Cuts -------------------------------------------------------------------------------------------------------- */

enum {
    CUT_WARPS = SAMPLE_THREADS / CUDA_WARP,
    OWN_GROUPS = SAMPLE_GROUPS / SAMPLE_THREADS,
    OWN_ENTRIES = SAMPLE_LIST / SAMPLE_THREADS,
};

struct cut_memory {
    uint64_t list[SAMPLE_LIST], sorted[SAMPLE_LIST]; /* places */
    uint64_t part[CUT_WARPS];
    uint32_t counts[2][CUT_WARPS];
    int32_t group[SAMPLE_GROUPS];
    uint32_t groups, listed, kept;
};

/* Sum of what the warps bring, in all threads; the barrier is between two of them as `place` alternates. */
DEVICE int sum_of_warps(cut_memory &m, int place, int of_warp)
{
    if (threadIdx.x % CUDA_WARP == 0) m.counts[place][threadIdx.x / CUDA_WARP] = (uint32_t)of_warp;
    BLOCK_SYNC();
    int sum = 0;
    UNROLL for (int i = 0; i < CUT_WARPS / 4; i++) {
        quad q = ((const quad *)m.counts[place])[i];
        sum += (int)(q.w[0] + q.w[1] + q.w[2] + q.w[3]);
    }
    return sum;
}

/* A key that at least `least` of the threads' own keys reach and at most `most`, or a few more that are equal; 0: there are fewer
 * than `least`. None is above `top`. */
DEVICE uint32_t find_threshold(cut_memory &m, const uint32_t (&own)[OWN_GROUPS], uint32_t top, int least, int most)
{
    uint32_t low = 0, high = top; /* count(low) >= least, count(high + 1) < least */
    for (int turn = 0; low < high; turn ^= 1) {
        uint32_t middle = low + (high - low) / 2 + 1;
        int count = 0;
        UNROLL for (int i = 0; i < OWN_GROUPS; i++) count += count_bits(lane_ballot(own[i] >= middle));
        count = sum_of_warps(m, turn, count);
        if (count >= least)
            low = middle;
        else
            high = middle - 1;
        if (count >= least && count <= most) break;
    }
    return low;
}

/* list in descending order into `sorted`, where it has `count` entries, all different. */
DEVICE void sort_list(cut_memory &m, int count)
{
    enum { RANKED = 256, EACH = SAMPLE_THREADS / RANKED }; /* so many threads look how many are above one */
    if (count > RANKED) {
        int padded = RANKED;
        while (padded < count) padded *= 2;
        for (int i = threadIdx.x; i < padded; i += SAMPLE_THREADS) m.sorted[i] = i < count ? m.list[i] : 0;
        BLOCK_SYNC();
        sort_down(m.sorted, padded);
        return;
    }
    int entry = (int)threadIdx.x / EACH, rank = 0;
    uint64_t own = entry < count ? m.list[entry] : 0;
    if (entry - entry % (CUDA_WARP / EACH) < count) { /* whole warps */
        _Pragma("unroll 4") for (int i = threadIdx.x % EACH; i < count; i += EACH) rank += m.list[i] > own;
        UNROLL for (int mask = 1; mask < EACH; mask *= 2) rank += lane_xor(rank, mask);
        if (entry < count && threadIdx.x % EACH == 0) m.sorted[rank] = own;
    }
    BLOCK_SYNC();
}

DEVICE uint64_t lane_before(uint64_t x, int step)
{
    int lane = threadIdx.x % CUDA_WARP;
    uint32_t low = lane_get((uint32_t)x, max(lane - step, 0)), high = lane_get((uint32_t)(x >> 32), max(lane - step, 0));
    return lane >= step ? (uint64_t)high << 32 | low : 0;
}

/* How many of the first `kept` entries top-p leaves; 0: more than there are. all: the mass of the row, 0: that of these. */
DEVICE int cut_by_mass(cut_memory &m, int kept, float top_p, float top, uint64_t all)
{
    uint64_t own[OWN_ENTRIES], sum = 0; /* masses of the first so many entries: neighbours are one thread's */
    int first = (int)threadIdx.x * OWN_ENTRIES;
    UNROLL for (int i = 0; i < OWN_ENTRIES; i++) {
        if (first + i < kept) sum += weight_of(of_key((uint32_t)(m.sorted[first + i] >> 32)) - top);
        own[i] = sum;
    }
    uint64_t warp = sum;
    UNROLL for (int step = 1; step < CUDA_WARP; step *= 2) warp += lane_before(warp, step);
    if (threadIdx.x % CUDA_WARP == CUDA_WARP - 1) m.part[threadIdx.x / CUDA_WARP] = warp;
    if (threadIdx.x == 0) m.kept = 0;
    BLOCK_SYNC();
    uint64_t before = warp - sum, whole = 0;
    UNROLL for (int i = 0; i < CUT_WARPS; i++) {
        uint64_t part = m.part[i];
        whole += part;
        if (i < (int)threadIdx.x / CUDA_WARP) before += part;
    }
    double target = ceil((double)top_p * (double)(all ? all : whole));
    uint64_t least = target > 1 ? (uint64_t)target : 1;
    /* The entry that reaches it is the last: exactly one has it, or none. */
    UNROLL for (int i = 0; i < OWN_ENTRIES; i++)
        if (first + i < kept && before + own[i] >= least && (i ? before + own[i - 1] : before) < least)
            m.kept = (uint32_t)(first + i) + 1;
    BLOCK_SYNC();
    int left = (int)m.kept;
    return left || all ? left : kept;
}

/* Mass of the whole row, in all threads. */
DEVICE uint64_t mass_of_row(const sample_args &a, cut_memory &m)
{
    uint64_t sum = 0;
    for (int i = threadIdx.x; i < a.chunks; i += SAMPLE_THREADS) sum += a.best[(int64_t)blockIdx.x * a.chunks + i];
    UNROLL for (int mask = 16; mask > 0; mask /= 2) sum += lane_xor(sum, mask);
    if (threadIdx.x % CUDA_WARP == 0) m.part[threadIdx.x / CUDA_WARP] = sum;
    BLOCK_SYNC();
    sum = 0;
    UNROLL for (int i = 0; i < CUT_WARPS; i++) sum += m.part[i];
    BLOCK_SYNC();
    return sum;
}

/* The best of what the threads bring, in all of them. */
DEVICE uint64_t best_of_block(cut_memory &m, uint64_t place)
{
    place = draw_best_of_warp(place);
    BLOCK_SYNC(); /* `part` has been read */
    if (threadIdx.x % CUDA_WARP == 0) m.part[threadIdx.x / CUDA_WARP] = place;
    BLOCK_SYNC();
    UNROLL for (int i = 0; i < CUT_WARPS; i++)
        if (m.part[i] > place) place = m.part[i];
    return place;
}

/* The id, -1 for none and where the list does not hold the cut. */
DEVICE int32_t cut_and_draw(const sample_args &a, const sample_row_args &how, cut_memory &m)
{
    const float *row = a.logits + (int64_t)how.logit_row * a.vocab, *maxima = a.maxima + (int64_t)blockIdx.x * SAMPLE_GROUPS;
    float temperature = how.stream.temperature, most = DRAW_NONE, value[OWN_GROUPS];
    int groups = groups_of(a);
    uint32_t own[OWN_GROUPS];
    UNROLL for (int i = 0; i < OWN_GROUPS; i++) {
        int group = (int)threadIdx.x + i * SAMPLE_THREADS;
        value[i] = group < groups ? draw_scale(maxima[group], temperature) : DRAW_NONE;
        own[i] = group < groups ? draw_key(value[i]) : 0;
        most = fmaxf(most, value[i]);
    }
    if (threadIdx.x == 0) m.groups = m.listed = 0;
    float top = most_of_block<SAMPLE_THREADS>(most, (float *)m.part);
    if (!(top > DRAW_NONE)) return -1;
    uint32_t floor = floor_of(how, top);
    if (how.kind == SAMPLE_BOUNDED) {
        if (threadIdx.x == 0) a.bound[blockIdx.x] = {floor};
        return -1;
    }

    bool by_count = cut_by_count(a, how);
    int least = by_count ? how.top_k : 640; /* without top-k as many as the list has room for */
    uint32_t threshold = find_threshold(m, own, draw_key(top), least, by_count ? least + least / 2 + 16 : 800);
    if (threshold < floor) threshold = floor;
    UNROLL for (int i = 0; i < OWN_GROUPS; i++)
        if (own[i] >= threshold && own[i]) m.group[count_up(&m.groups, 1)] = (int)threadIdx.x + i * SAMPLE_THREADS;
    BLOCK_SYNC();
    for (int i = threadIdx.x, end = (int)m.groups * a.fours; i < end; i += SAMPLE_THREADS) {
        int first = 4 * (m.group[i / a.fours] * a.fours + i % a.fours);
        if (first >= a.vocab) continue;
        float z[4];
        draw_four(row, first, a.vocab, z);
        draw_mask(how.mask, first, a.vocab, z);
        UNROLL for (int j = 0; j < 4; j++) {
            z[j] = draw_scale(z[j], temperature);
            if (first + j >= a.vocab || draw_key(z[j]) < threshold) continue;
            uint32_t at = count_up(&m.listed, 1);
            if (at < SAMPLE_LIST) m.list[at] = draw_place(z[j], first + j);
        }
    }
    BLOCK_SYNC();
    int count = (int)m.listed;
    if (count == 0 || count > SAMPLE_LIST) return -1; /* none: min-p above 1 */
    sort_list(m, count);
    int kept = by_count && how.top_k < count ? how.top_k : count;
    if (how.top_p < 1) {
        kept = cut_by_mass(m, kept, how.top_p, top, by_count ? 0 : mass_of_row(a, m));
        if (kept == 0) return -1;
    }
    uint64_t place = 0;
    for (int i = threadIdx.x; i < kept; i += SAMPLE_THREADS) {
        uint32_t x[4];
        int32_t id = draw_id(m.sorted[i]);
        draw_quad(how.stream, (uint32_t)id / 4, x);
        uint32_t low = id & 1 ? x[1] : x[0], high = id & 1 ? x[3] : x[2];
        uint64_t drawn = draw_place(of_key((uint32_t)(m.sorted[i] >> 32)) + draw_noise(id & 2 ? high : low), id);
        if (drawn > place) place = drawn;
    }
    return draw_id(best_of_block(m, place));
}

/* The best of a row's parts, by one warp. */
DEVICE int32_t best_of_parts(const sample_args &a)
{
    uint64_t place = 0;
    for (int i = threadIdx.x % CUDA_WARP; i < a.chunks; i += CUDA_WARP) {
        uint64_t other = a.best[(int64_t)blockIdx.x * a.chunks + i];
        if (other > place) place = other;
    }
    return draw_id(draw_best_of_warp(place));
}

KERNEL(sample_cut, sample_args)
{
    SHARED(cut_memory, memory, 1);
    const sample_row_args how = a.row[blockIdx.x];
    int32_t id;
    if (how.kind == SAMPLE_ALL) {
        if (threadIdx.x >= CUDA_WARP) return;
        id = best_of_parts(a);
    } else {
        id = cut_and_draw(a, how, memory[0]);
    }
    if (threadIdx.x == 0) a.id[blockIdx.x] = id;
}

/* ---- Min-p alone ------------------------------------------------------------------------------------------------- */

KERNEL(sample_pick, sample_args)
{
    const sample_row_args how = a.row[blockIdx.y];
    if (how.kind != SAMPLE_BOUNDED) return;
    uint64_t place = best_of_share(a, how, a.bound[blockIdx.y].key);
    if (threadIdx.x == 0) a.best[(int64_t)blockIdx.y * a.chunks + blockIdx.x] = place;
}

/* One warp a row. */
KERNEL(sample_take, sample_args)
{
    if (a.row[blockIdx.x].kind != SAMPLE_BOUNDED) return;
    int32_t id = best_of_parts(a);
    if (threadIdx.x == 0) a.id[blockIdx.x] = id;
}
