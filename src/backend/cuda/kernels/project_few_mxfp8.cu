/* Projections of at most eight rows with mxfp8 weights: project_few.cuh. */
#include "backend/cuda/kernels/project_few.cuh"

PROJECT_FEW(mxfp8_32, KERNEL_MXFP8, 3, 2)
PROJECT_FEW(mxfp8_14, KERNEL_MXFP8, 1, 4)
