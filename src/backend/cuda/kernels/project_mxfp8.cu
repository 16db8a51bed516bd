/* Projections with mxfp8 weights: project.cuh. */
#include "backend/cuda/kernels/project.cuh"

PROJECT(mxfp8_8, KERNEL_MXFP8, 1, 1, 3)
PROJECT(mxfp8_16, KERNEL_MXFP8, 2, 2, 1)
PROJECT(mxfp8_32, KERNEL_MXFP8, 2, 4, 1)
PROJECT(mxfp8_64, KERNEL_MXFP8, 2, 8, 1)
