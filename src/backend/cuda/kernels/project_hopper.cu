/* Projections of many rows on Hopper in every format of the tensor cores: project_hopper.cuh. */
#include "backend/cuda/kernels/project_hopper.cuh"

KERNEL_OF(pack_bf16, pack_args, PACK_BLOCK, 4) { pack_rows<KERNEL_BF16>(a); }
KERNEL_OF(pack_mxfp8, pack_args, PACK_BLOCK, 4) { pack_rows<KERNEL_MXFP8>(a); }
KERNEL_OF(pack_nvfp4, pack_args, PACK_BLOCK, 4) { pack_rows<KERNEL_NVFP4>(a); }

KERNEL_OF(project_bf16_hopper, project_hopper_args, HOPPER_BLOCK, 1) { project_hopper<KERNEL_BF16, false>(a); }
KERNEL_OF(glu_bf16_hopper, project_hopper_args, HOPPER_BLOCK, 1) { project_hopper<KERNEL_BF16, true>(a); }
KERNEL_OF(project_mxfp8_hopper, project_hopper_args, HOPPER_BLOCK, 1) { project_hopper<KERNEL_MXFP8, false>(a); }
KERNEL_OF(glu_mxfp8_hopper, project_hopper_args, HOPPER_BLOCK, 1) { project_hopper<KERNEL_MXFP8, true>(a); }
KERNEL_OF(project_nvfp4_hopper, project_hopper_args, HOPPER_BLOCK, 1) { project_hopper<KERNEL_NVFP4, false>(a); }
KERNEL_OF(glu_nvfp4_hopper, project_hopper_args, HOPPER_BLOCK, 1) { project_hopper<KERNEL_NVFP4, true>(a); }
