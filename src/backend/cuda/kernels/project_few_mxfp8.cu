/* Projections of at most eight rows with mxfp8 weights: project_few.cuh. */
#include "backend/cuda/kernels/project_few.cuh"

PROJECT_FEW(mxfp8_24, KERNEL_MXFP8, 2, 4)
PROJECT_FEW(mxfp8_23, KERNEL_MXFP8, 2, 3)
PROJECT_FEW(mxfp8_14, KERNEL_MXFP8, 1, 4)
