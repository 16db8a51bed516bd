/* Projections of very many rows on Hopper, from weights of every format of the tensor cores: project_wide.cuh. */
#include "backend/cuda/kernels/project_wide.cuh"

KERNEL_OF(wide_rows_bf16, wide_rows_args, WIDE_EXPAND_BLOCK, 4) { wide_rows<KERNEL_BF16>(a); }
KERNEL_OF(wide_rows_mxfp8, wide_rows_args, WIDE_EXPAND_BLOCK, 4) { wide_rows<KERNEL_MXFP8>(a); }
KERNEL_OF(wide_rows_nvfp4, wide_rows_args, WIDE_EXPAND_BLOCK, 4) { wide_rows<KERNEL_NVFP4>(a); }

KERNEL_OF(wide_expand_bf16, wide_expand_args, WIDE_EXPAND_BLOCK, 4) { wide_expand<KERNEL_BF16>(a); }
KERNEL_OF(wide_expand_mxfp8, wide_expand_args, WIDE_EXPAND_BLOCK, 4) { wide_expand<KERNEL_MXFP8>(a); }
KERNEL_OF(wide_expand_nvfp4, wide_expand_args, WIDE_EXPAND_BLOCK, 4) { wide_expand<KERNEL_NVFP4>(a); }

KERNEL_CLUSTER(project_wide, wide_args, WIDE_BLOCK, WIDE_CLUSTER) { project_wide<WIDE_STORED>(a, a); }
KERNEL_CLUSTER(glu_wide, wide_args, WIDE_BLOCK, WIDE_CLUSTER) { project_wide<WIDE_GLU>(a, a); }
