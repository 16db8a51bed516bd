/* Projections of at most eight rows with bf16 weights: project_few.cuh. */
#include "backend/cuda/kernels/project_few.cuh"

PROJECT_FEW(bf16_24, KERNEL_BF16, 2, 4)
PROJECT_FEW(bf16_23, KERNEL_BF16, 2, 3)
PROJECT_FEW(bf16_14, KERNEL_BF16, 1, 4)
