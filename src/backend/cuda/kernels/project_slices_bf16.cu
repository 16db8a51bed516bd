/* Slices of projections of at most 64 rows with bf16 weights: project_slices.cuh. */
#include "backend/cuda/kernels/project_slices.cuh"

PROJECT_SLICED(bf16, KERNEL_BF16, 8)
PROJECT_SLICED(bf16, KERNEL_BF16, 16)
PROJECT_SLICED(bf16, KERNEL_BF16, 32)
PROJECT_SLICED(bf16, KERNEL_BF16, 64)
