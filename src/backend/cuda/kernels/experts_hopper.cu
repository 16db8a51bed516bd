/* The routed experts of many rows on Hopper: experts_hopper.cuh. */
#include "backend/cuda/kernels/experts_hopper.cuh"

KERNEL_CLUSTER(experts_glu_hopper, experts_glu_args, EXPERTS_HOPPER_BLOCK, EXPERTS_HOPPER_TOGETHER) { wide_glu<wide_many>(a); }
KERNEL_OF(experts_glu_hopper_few, experts_glu_args, EXPERTS_HOPPER_BLOCK, 1) { wide_glu<wide_few>(a); }
KERNEL_CLUSTER(experts_down_hopper, experts_down_args, EXPERTS_HOPPER_BLOCK, EXPERTS_HOPPER_TOGETHER) { wide_down<wide_many>(a); }
KERNEL_OF(experts_down_hopper_few, experts_down_args, EXPERTS_HOPPER_BLOCK, 1) { wide_down<wide_few>(a); }

KERNEL(experts_spread, experts_spread_args)
{
    wide_spread(a, a.sparse ? (int32_t)wide_few::MOST : (int32_t)wide_many::MOST);
}
