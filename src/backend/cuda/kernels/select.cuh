/*
 * The best blocks of a row by a total order: score descending (-0 equals 0, NaN counts as -inf), block number ascending, forced
 * blocks first. A block is a 64-bit key whose order as a number is that order: the score made to sort as an unsigned number above
 * the complement of the block; 0 is no block. No two keys are equal, so lists may be merged in any order.
 *
 * A warp keeps its best in its lanes, sorted; a key enters where it is above the last, which is rare.
 */
#ifndef HAYATE_BACKEND_CUDA_SELECT_CUH
#define HAYATE_BACKEND_CUDA_SELECT_CUH

#include "backend/cuda/kernels/kernel.cuh"

DEVICE uint64_t key_of(float score, int block, bool forced)
{
    uint32_t u = float_bits(score != score ? -INFINITY : score + 0.0f); /* -0 + 0 is 0 */
    uint32_t high = forced ? 0xFFFFFFFFu : u & 0x80000000u ? ~u : u | 0x80000000u;
    return (uint64_t)high << 32 | (0xFFFFFFFFu - (uint32_t)block);
}
DEVICE int block_of(uint64_t key)
{
    return (int)(0xFFFFFFFFu - (uint32_t)key);
}
DEVICE uint64_t get_key(uint64_t key, int lane)
{
    return (uint64_t)lane_get((uint32_t)(key >> 32), lane) << 32 | lane_get((uint32_t)key, lane);
}

/* Lane i has the i-th best key so far, 0 from `top` on. Takes the key of every lane, 0 for none. */
DEVICE uint64_t keep_best(uint64_t list, int top, uint64_t key)
{
    int lane = threadIdx.x % CUDA_WARP;
    uint64_t least = get_key(list, top - 1);
    uint32_t left = lane_ballot(key > least);
    while (left) {
        int source = count_bits((left & (0u - left)) - 1);
        uint64_t next = get_key(key, source), before = get_key(list, max(lane - 1, 0));
        int place = count_bits(lane_ballot(list > next));
        list = lane < place ? list : lane == place ? next : before;
        if (lane >= top) list = 0;
        least = get_key(list, top - 1);
        left &= left - 1;
        left &= lane_ballot(key > least);
    }
    return list;
}

/* The place of every lane's key among the 32: lanes without one (0) come last. */
DEVICE int place_among(uint64_t key)
{
    int lane = threadIdx.x % CUDA_WARP, place = 0;
    UNROLL for (int i = 0; i < CUDA_WARP; i++) {
        uint64_t other = get_key(key, i);
        place += other > key || (other == key && i < lane);
    }
    return place;
}

/*
 * What keep_best gives for N keys of every lane one after the other. All at once, where few of them are among the best: those
 * above the list's last one, and of an empty list those that are not below the `top`-th of the lanes' own maxima, since
 * so many keys are there already (of 512 keys 22 are to be expected for 16). Up to 32 of them are brought together through
 * `room` [32], shared memory of the warp alone.
 */
template <int N> DEVICE uint64_t keep_best_of(uint64_t list, int top, const uint64_t key[N], uint64_t *room)
{
    int lane = threadIdx.x % CUDA_WARP, count = 0, turns = N;
    uint64_t bar = get_key(list, top - 1) + 1, own = 0;
    bool empty = get_key(list, 0) == 0;
    if (empty) {
        uint64_t most = 0;
        UNROLL for (int i = 0; i < N; i++) most = key[i] > most ? key[i] : most;
        uint32_t last = lane_ballot(place_among(most) == top - 1);
        most = get_key(most, count_bits(last - 1));
        bar = most > bar ? most : bar;
    }
    UNROLL for (int i = 0; i < N; i++) count += count_bits(lane_ballot(key[i] >= bar));
    if (count <= CUDA_WARP) {
        room[lane] = 0;
        WARP_SYNC();
        int at = 0;
        UNROLL for (int i = 0; i < N; i++) {
            uint32_t good = lane_ballot(key[i] >= bar);
            if (key[i] >= bar) room[at + count_bits(good & ((1u << lane) - 1))] = key[i];
            at += count_bits(good);
        }
        WARP_SYNC();
        own = room[lane];
        turns = count > 0;
    }
    if (empty && turns == 1) {
        int place = place_among(own);
        WARP_SYNC(); /* all have read */
        room[place] = own;
        WARP_SYNC();
        list = lane < top ? room[lane] : 0;
        turns = 0;
    }
    for (int i = 0; i < turns; i++) {
        uint64_t next = own;
        if (turns > 1)
            UNROLL for (int n = 0; n < N; n++) next = i == n ? key[n] : next;
        list = keep_best(list, top, next);
    }
    WARP_SYNC(); /* the room is free again */
    return list;
}

/* The list's blocks in ascending number, -1 last. */
DEVICE void list_blocks(uint64_t list, int top, int32_t *out)
{
    int lane = threadIdx.x % CUDA_WARP;
    int block = list ? block_of(list) : INT32_MAX, place = 0;
    for (int i = 0; i < top; i++) {
        int other = lane_get(block, i);
        place += other < block || (other == block && i < lane);
    }
    if (lane < top) out[place] = list ? block : -1;
}

#endif
