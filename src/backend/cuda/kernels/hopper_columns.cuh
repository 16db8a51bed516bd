/* wgmma of hopper.cuh for 96 and 144 columns. */
#ifndef HAYATE_BACKEND_CUDA_HOPPER_COLUMNS_CUH
#define HAYATE_BACKEND_CUDA_HOPPER_COLUMNS_CUH

#include "backend/cuda/kernels/hopper.cuh"

#ifndef HAYATE_EMULATED
#define WGMMA_D48 WGMMA_D32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define WGMMA_F48(d, i) WGMMA_F32(d, i), WGMMA_F16(d, i + 32)
#define WGMMA_D72 WGMMA_D64 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define WGMMA_F72(d, i) WGMMA_F64(d, i), WGMMA_F8(d, i + 64)
WGMMA_FORM(96, 48, 48, 49, 50, 51, 52, 53, 54)
WGMMA_FORM(144, 72, 72, 73, 74, 75, 76, 77, 78)
#endif

#endif
