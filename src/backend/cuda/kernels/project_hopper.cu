/* Projections of many rows on Hopper in every format of the tensor cores: project_hopper.cuh. */
#include "backend/cuda/kernels/project_hopper.cuh"

KERNEL_OF(pack_bf16, pack_args, PACK_BLOCK, 4) { pack_rows<KERNEL_BF16>(a); }
KERNEL_OF(pack_mxfp8, pack_args, PACK_BLOCK, 4) { pack_rows<KERNEL_MXFP8>(a); }
KERNEL_OF(pack_nvfp4, pack_args, PACK_BLOCK, 4) { pack_rows<KERNEL_NVFP4>(a); }

#define PROJECT_HOPPER(name, format, mode)                                                                            \
    KERNEL_CLUSTER(name, project_hopper_args, HOPPER_BLOCK, HOPPER_CLUSTER) { project_hopper<format, mode>(a); }

PROJECT_HOPPER(project_bf16_hopper, KERNEL_BF16, HOPPER_STORED)
PROJECT_HOPPER(glu_bf16_hopper, KERNEL_BF16, HOPPER_GLU)
PROJECT_HOPPER(project_mxfp8_hopper, KERNEL_MXFP8, HOPPER_STORED)
PROJECT_HOPPER(glu_mxfp8_hopper, KERNEL_MXFP8, HOPPER_GLU)
PROJECT_HOPPER(project_nvfp4_hopper, KERNEL_NVFP4, HOPPER_STORED)
PROJECT_HOPPER(glu_nvfp4_hopper, KERNEL_NVFP4, HOPPER_GLU)
