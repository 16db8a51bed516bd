/* Heads between their projections and attention, from memory: attend_in.cuh. */
#include "backend/cuda/kernels/attend_in.cuh"

KERNEL_AHEAD(attend_in, attend_in_args)
{
    SHARED(float, shared, ATTEND_IN_WARPS * 128);
    int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
    int64_t item = (int64_t)blockIdx.x * ATTEND_IN_WARPS + warp;
    bool there = item < (int64_t)a.rows.count * a.jobs;
    int row = (int)(item / a.jobs), job = (int)(item % a.jobs);

    int kind = QUERY, counts[5] = {a.heads, a.kv_heads, a.kv_heads, a.index_heads, 1};
    UNROLL for (int i = 0; i < 4; i++)
        if (kind == i && job >= counts[i]) job -= counts[i], kind++;
    int dim = kind < INDEX_QUERY ? a.head_dim : a.index_dim;
    vector_turn turn[1];
    float gain[4];
    if (there) need_gain(a, kind, gain);
    follow();
    if (!there) return;
    int64_t at = ((int64_t)row * counts[kind] + job) * dim;
    const float *main = kind == QUERY ? a.q : kind == KEY ? a.k : a.v;
    const float *from = (kind < INDEX_QUERY ? main : kind == INDEX_QUERY ? a.index_q : a.index_k) + at;

    float x[1][4];
    UNROLL for (int p = 0; p < 4; p++) x[0][p] = dim_of(lane, p) < dim ? from[dim_of(lane, p)] : 0;
    need_turn(a, row, kind, turn);
    vector_place place = need_place(a, row);
    turn_vectors(a, kind, x, gain, turn, shared + warp * 128, 0);
    if (is_query(kind))
        store_query(a, row, kind, job, x[0]);
    else
        store_cached(a, place, kind, job, x[0]);
}
