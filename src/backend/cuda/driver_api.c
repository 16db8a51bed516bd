#include "backend/cuda/driver_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "base/error.h"

static driver_api loaded;
static hy_error failure;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
    /* The names with a number are those that a current toolkit's header gives the plain ones. */
    const struct {
        const char *name;
        void *at;
    } functions[] = {
        {"cuInit", &loaded.init},
        {"cuGetErrorName", &loaded.error_name},
        {"cuGetErrorString", &loaded.error_text},
        {"cuDeviceGetCount", &loaded.device_count},
        {"cuDeviceGet", &loaded.device_get},
        {"cuDeviceGetName", &loaded.device_name},
        {"cuDeviceGetAttribute", &loaded.device_attribute},
        {"cuDevicePrimaryCtxRetain", &loaded.context_retain},
        {"cuDevicePrimaryCtxRelease_v2", &loaded.context_release},
        {"cuCtxSetCurrent", &loaded.context_set},
        {"cuMemGetInfo_v2", &loaded.memory_info},
        {"cuMemAlloc_v2", &loaded.alloc},
        {"cuMemFree_v2", &loaded.free},
        {"cuMemAllocHost_v2", &loaded.alloc_host},
        {"cuMemFreeHost", &loaded.free_host},
        {"cuMemcpyHtoDAsync_v2", &loaded.to_device},
        {"cuMemcpyDtoHAsync_v2", &loaded.to_host},
        {"cuMemcpyDtoDAsync_v2", &loaded.copy},
        {"cuMemsetD8Async", &loaded.fill},
        {"cuStreamCreate", &loaded.stream_create},
        {"cuStreamDestroy_v2", &loaded.stream_destroy},
        {"cuStreamWaitEvent", &loaded.stream_wait_event},
        {"cuEventCreate", &loaded.event_create},
        {"cuEventDestroy_v2", &loaded.event_destroy},
        {"cuEventRecord", &loaded.event_record},
        {"cuEventQuery", &loaded.event_query},
        {"cuModuleLoadData", &loaded.module_load},
        {"cuModuleUnload", &loaded.module_unload},
        {"cuModuleGetFunction", &loaded.module_function},
        {"cuFuncSetAttribute", &loaded.function_set},
        {"cuLaunchKernel", &loaded.launch},
        {"cuLaunchKernelEx", &loaded.launch_with},
        {"cuStreamBeginCapture_v2", &loaded.capture_begin},
        {"cuStreamEndCapture", &loaded.capture_end},
        {"cuGraphInstantiateWithFlags", &loaded.graph_instantiate},
        {"cuGraphLaunch", &loaded.graph_launch},
        {"cuGraphDestroy", &loaded.graph_destroy},
        {"cuGraphExecDestroy", &loaded.exec_destroy},
        {"cuEventRecordWithFlags", &loaded.event_record_with},
        {"cuEventElapsedTime", &loaded.event_elapsed},
        {"cuDriverGetVersion", &loaded.version},
    };
    enum { OPTIONAL = 10 }; /* the last ones */
    size_t count = sizeof functions / sizeof *functions;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); /* never closed: its threads live on */
    if (!library) {
        error_set(&failure, HY_FAILED,
                  "there is no NVIDIA driver: libcuda.so.1 cannot be loaded; install one, or give --device cpu");
        return;
    }
    for (size_t i = 0; i < count; i++) {
        void *function = dlsym(library, functions[i].name);
        memcpy(functions[i].at, &function, sizeof function);
        if (function || i >= count - OPTIONAL) continue;
        error_set(&failure, HY_FAILED, "the NVIDIA driver is too old: libcuda.so.1 has no %s", functions[i].name);
        return;
    }
}

hy_status driver_api_load(const driver_api **api, hy_error *err)
{
    pthread_once(&once, load);
    if (failure.status != HY_OK) {
        if (err) *err = failure;
        return failure.status;
    }
    *api = &loaded;
    return HY_OK;
}
