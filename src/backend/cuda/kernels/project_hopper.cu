/* Projections of many rows on Hopper in every format of the tensor cores: project_hopper.cuh. */
#include "backend/cuda/kernels/project_hopper.cuh"

KERNEL_OF(pack_bf16, pack_args, PACK_BLOCK, 4) { pack_rows<KERNEL_BF16>(a); }
KERNEL_OF(pack_mxfp8, pack_args, PACK_BLOCK, 4) { pack_rows<KERNEL_MXFP8>(a); }
KERNEL_OF(pack_nvfp4, pack_args, PACK_BLOCK, 4) { pack_rows<KERNEL_NVFP4>(a); }

KERNEL_OF(project_bf16_hopper, project_hopper_args, HOPPER_BLOCK, 1) { project_hopper<KERNEL_BF16, HOPPER_STORED>(a, a); }
KERNEL_OF(glu_bf16_hopper, project_hopper_args, HOPPER_BLOCK, 1) { project_hopper<KERNEL_BF16, HOPPER_GLU>(a, a); }
KERNEL_OF(project_mxfp8_hopper, project_hopper_args, HOPPER_BLOCK, 1) { project_hopper<KERNEL_MXFP8, HOPPER_STORED>(a, a); }
KERNEL_OF(glu_mxfp8_hopper, project_hopper_args, HOPPER_BLOCK, 1) { project_hopper<KERNEL_MXFP8, HOPPER_GLU>(a, a); }
KERNEL_OF(project_nvfp4_hopper, project_hopper_args, HOPPER_BLOCK, 1) { project_hopper<KERNEL_NVFP4, HOPPER_STORED>(a, a); }
KERNEL_OF(glu_nvfp4_hopper, project_hopper_args, HOPPER_BLOCK, 1) { project_hopper<KERNEL_NVFP4, HOPPER_GLU>(a, a); }
