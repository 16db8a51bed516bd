#include "backend/cuda/gpu.h"

#include "base/error.h"

hy_status gpu_driver_open(gpu **g, hy_error *err)
{
    (void)g;
    return error_set(err, HY_UNSUPPORTED, "this program was built without CUDA kernels");
}
