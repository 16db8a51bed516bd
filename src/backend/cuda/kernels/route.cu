/*
 * The router's choice.
 *
 *     s = sigmoid(logits);  S = the per_token largest s + bias, ties to the lower number, NaN below everything;
 *     routes = S ascending;  weights = s_e / sum over S of s, added in ascending number
 *
 * Layout: logits and scores [rows, experts] fp32. A warp has a row; lane i looks after experts i, i + 32, ...
 * Each of the per_token rounds is a pass over the lane's experts and a butterfly of five exchanges over a total order, so
 * the result does not depend on who meets whom.
 * Bytes: 4 a score in, 4 out; the bound is the launch.
 */
#include "backend/cuda/kernels/route.cuh"

KERNEL(route_choose, route_choose_args)
{
    int lane = threadIdx.x % CUDA_WARP, warps = blockDim.x / CUDA_WARP;
    int32_t row = blockIdx.x * warps + threadIdx.x / CUDA_WARP;
    if (row >= a.count) return;
    route_row(a, row, lane);
}
