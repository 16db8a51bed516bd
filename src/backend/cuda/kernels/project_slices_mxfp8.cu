/* Slices of projections of at most 64 rows with mxfp8 weights: project_slices.cuh. */
#include "backend/cuda/kernels/project_slices.cuh"

PROJECT_SLICED(mxfp8, KERNEL_MXFP8, 8)
PROJECT_SLICED(mxfp8, KERNEL_MXFP8, 16)
PROJECT_SLICED(mxfp8, KERNEL_MXFP8, 32)
PROJECT_SLICED(mxfp8, KERNEL_MXFP8, 64)
