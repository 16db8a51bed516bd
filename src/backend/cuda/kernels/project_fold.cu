/* The fold of slices of project_slices_*.cu. */
#include "backend/cuda/kernels/project_slices.cuh"

PROJECT_FOLD(8)
PROJECT_FOLD(16)
PROJECT_FOLD(32)
PROJECT_FOLD(64)
