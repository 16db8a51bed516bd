/* Projections of many rows in every format of the tensor cores: project_many.cuh. */
#include "backend/cuda/kernels/project_many.cuh"

KERNEL(project_bf16_many, project_args) { project_many<KERNEL_BF16, false>(a); }
KERNEL(glu_bf16_many, project_args) { project_many<KERNEL_BF16, true>(a); }
KERNEL(project_mxfp8_many, project_args) { project_many<KERNEL_MXFP8, false>(a); }
KERNEL(glu_mxfp8_many, project_args) { project_many<KERNEL_MXFP8, true>(a); }
KERNEL(project_nvfp4_many, project_args) { project_many<KERNEL_NVFP4, false>(a); }
KERNEL(glu_nvfp4_many, project_args) { project_many<KERNEL_NVFP4, true>(a); }
