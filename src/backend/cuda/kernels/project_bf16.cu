/* Projections with bf16 weights: project.cuh. */
#include "backend/cuda/kernels/project.cuh"

PROJECT(bf16_8, KERNEL_BF16, 1, 1, 3)
PROJECT(bf16_16, KERNEL_BF16, 2, 2, 1)
PROJECT(bf16_32, KERNEL_BF16, 2, 4, 1)
PROJECT(bf16_64, KERNEL_BF16, 2, 8, 1)
