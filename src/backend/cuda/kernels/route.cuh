/* A warp chooses a row's experts: route.cu says how. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_ROUTE_CUH
#define HAYATE_BACKEND_CUDA_KERNELS_ROUTE_CUH

#include "backend/cuda/kernels/kernel.cuh"
#include "backend/cuda/kernels/route.h"

/* Does (a, e) come before (b, f)? Number -1 is nothing. */
DEVICE bool route_before(float a, int32_t e, float b, int32_t f)
{
    if (e < 0 || f < 0) return e >= 0;
    return a > b || (a == b && e < f);
}

DEVICE bool route_taken(const int32_t *routes, int count, int32_t e)
{
    bool taken = false;
    for (int i = 0; i < count; i++) taken |= routes[i] == e;
    return taken;
}

/* The best expert that is not in routes [count]. */
DEVICE int32_t route_best(const float *s, const float *bias, int32_t experts, const int32_t *routes, int count, int lane)
{
    int32_t best = -1;
    float best_score = 0;
    for (int32_t e = lane; e < experts; e += CUDA_WARP) {
        float score = s[e] + bias[e];
        if (score != score) score = bits_float(0xFF800000u); /* minus infinity */
        if (route_before(score, e, best_score, best) && !route_taken(routes, count, e)) best = e, best_score = score;
    }
    for (int mask = 1; mask < CUDA_WARP; mask *= 2) {
        float score = lane_xor(best_score, mask);
        int32_t e = lane_xor(best, mask);
        if (route_before(score, e, best_score, best)) best = e, best_score = score;
    }
    return best;
}

DEVICE void route_row(const route_choose_args &a, int32_t row, int lane)
{
    float *s = a.scores + (int64_t)row * a.experts, *weights = a.weights + (int64_t)row * a.per_token;
    int32_t *routes = a.routes + (int64_t)row * a.per_token;
    for (int32_t e = lane; e < a.experts; e += CUDA_WARP) s[e] = 1 / (1 + expf(-s[e]));
    WARP_SYNC();
    bool replayed = a.replay && (a.flags[row] & a.replay_flag);
    for (int n = 0; n < a.per_token; n++) {
        int32_t e = replayed ? a.replay[(int64_t)row * a.per_token + n] : route_best(s, a.bias, a.experts, routes, n, lane);
        WARP_SYNC(); /* all have read routes */
        if (lane == 0) {
            int at = n;
            for (; at > 0 && routes[at - 1] > e; at--) routes[at] = routes[at - 1];
            routes[at] = e;
        }
        WARP_SYNC();
    }
    float sum = 0;
    for (int i = 0; i < a.per_token; i++) sum += s[routes[i]];
    for (int i = lane; i < a.per_token; i += CUDA_WARP) weights[i] = s[routes[i]] / sum;
}

#endif
