/* Projections with nvfp4 weights: project.cuh. */
#include "backend/cuda/kernels/project.cuh"

PROJECT(nvfp4_8, KERNEL_NVFP4, 1, 1, 2)
PROJECT(nvfp4_16, KERNEL_NVFP4, 2, 2, 1)
PROJECT(nvfp4_32, KERNEL_NVFP4, 2, 4, 1)
PROJECT(nvfp4_64, KERNEL_NVFP4, 2, 8, 1)
KERNEL_AHEAD(project_nvfp4_odd, project_args) { project<KERNEL_NVFP4, 1, 1, true, false>(a); }
