/*
 * The part of the CUDA driver's interface that driver.c uses: types and numbers as libcuda.so.1 has them, so that the
 * program builds without a toolkit, and the functions by name, loaded at run time.
 */
#ifndef HAYATE_BACKEND_CUDA_DRIVER_API_H
#define HAYATE_BACKEND_CUDA_DRIVER_API_H

#include "hayate.h"

#include <stddef.h>
#include <stdint.h>

typedef int cu_result;
typedef int cu_device;
typedef uint64_t cu_address;
typedef struct CUctx_st *cu_context;
typedef struct CUstream_st *cu_stream;
typedef struct CUevent_st *cu_event;
typedef struct CUmod_st *cu_module;
typedef struct CUfunc_st *cu_function;
typedef struct CUgraph_st *cu_graph;
typedef struct CUgraphExec_st *cu_graph_exec;

enum {
    CU_OK = 0,
    CU_OUT_OF_MEMORY = 2,
    CU_NO_DEVICE = 100,
    CU_NO_BINARY_FOR_GPU = 209,
    CU_UNSUPPORTED_PTX_VERSION = 222,
    CU_NOT_FOUND = 500,
    CU_NOT_READY = 600,
    CU_NOT_SUPPORTED = 801,

    CU_DEVICE_CLOCK = 13, /* kHz */
    CU_DEVICE_PROCESSORS = 16,
    CU_DEVICE_MEMORY_CLOCK = 36, /* kHz */
    CU_DEVICE_CACHE = 38,
    CU_DEVICE_MAJOR = 75,
    CU_DEVICE_MINOR = 76,
    CU_DEVICE_SHARED_OPTIN = 97,
    CU_FUNCTION_DYNAMIC_SHARED = 8,
    CU_FUNCTION_ANY_CLUSTER = 14, /* also of more than eight thread blocks */
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_WITHOUT_TIME = 2,
    CU_EVENT_EXTERNAL = 1, /* a captured recording happens whenever the graph runs */
    CU_CAPTURE_RELAXED = 2,
};

/* What cuLaunchKernelEx takes. */
typedef struct cu_launch_attribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        int number;
        void *alignment;
    } value;
} cu_launch_attribute;

typedef struct cu_launch_config {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
    cu_stream stream;
    cu_launch_attribute *attributes;
    unsigned attribute_count;
} cu_launch_config;

enum { CU_LAUNCH_PROGRAMMATIC_SERIALIZATION = 6 };

/* `extra` of a launch: the parameters as bytes. */
#define CU_LAUNCH_END ((void *)0)
#define CU_LAUNCH_BUFFER ((void *)1)
#define CU_LAUNCH_BYTES ((void *)2)

typedef struct driver_api {
    cu_result (*init)(unsigned flags);
    cu_result (*error_name)(cu_result r, const char **name);
    cu_result (*error_text)(cu_result r, const char **text);
    cu_result (*device_count)(int *count);
    cu_result (*device_get)(cu_device *device, int ordinal);
    cu_result (*device_name)(char *name, int length, cu_device device);
    cu_result (*device_attribute)(int *value, int attribute, cu_device device);
    cu_result (*context_retain)(cu_context *context, cu_device device);
    cu_result (*context_release)(cu_device device);
    cu_result (*context_set)(cu_context context);
    cu_result (*memory_info)(size_t *free, size_t *total);
    cu_result (*alloc)(cu_address *address, size_t bytes);
    cu_result (*free)(cu_address address);
    cu_result (*alloc_host)(void **memory, size_t bytes);
    cu_result (*free_host)(void *memory);
    cu_result (*to_device)(cu_address to, const void *from, size_t bytes, cu_stream stream);
    cu_result (*to_host)(void *to, cu_address from, size_t bytes, cu_stream stream);
    cu_result (*copy)(cu_address to, cu_address from, size_t bytes, cu_stream stream);
    cu_result (*fill)(cu_address to, unsigned char byte, size_t bytes, cu_stream stream);
    cu_result (*stream_create)(cu_stream *stream, unsigned flags);
    cu_result (*stream_destroy)(cu_stream stream);
    cu_result (*stream_wait_event)(cu_stream stream, cu_event event, unsigned flags);
    cu_result (*event_create)(cu_event *event, unsigned flags);
    cu_result (*event_destroy)(cu_event event);
    cu_result (*event_record)(cu_event event, cu_stream stream);
    cu_result (*event_query)(cu_event event);
    cu_result (*module_load)(cu_module *module, const void *image);
    cu_result (*module_unload)(cu_module module);
    cu_result (*module_function)(cu_function *function, cu_module module, const char *name);
    cu_result (*function_set)(cu_function function, int attribute, int value);
    cu_result (*launch)(cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, cu_stream stream, void **parameters,
                        void **extra);
    /* The rest is NULL, one or all, in drivers before CUDA 11.8. */
    cu_result (*launch_with)(const cu_launch_config *config, cu_function function, void **parameters, void **extra);
    cu_result (*capture_begin)(cu_stream stream, int mode);
    cu_result (*capture_end)(cu_stream stream, cu_graph *graph);
    cu_result (*graph_instantiate)(cu_graph_exec *exec, cu_graph graph, unsigned long long flags);
    cu_result (*graph_launch)(cu_graph_exec exec, cu_stream stream);
    cu_result (*graph_destroy)(cu_graph graph);
    cu_result (*exec_destroy)(cu_graph_exec exec);
    cu_result (*event_record_with)(cu_event event, cu_stream stream, unsigned flags);
    cu_result (*event_elapsed)(float *milliseconds, cu_event from, cu_event to);
    cu_result (*version)(int *version); /* 1000 * major + 10 * minor of CUDA */
} driver_api;

/* Loads libcuda.so.1 once and for all. HY_UNSUPPORTED: it is not there, or too old. */
hy_status driver_api_load(const driver_api **api, hy_error *err);

#endif
