/* The inner loops for what every processor of a target has: 4 lanes, in 32 registers on AArch64, in 16 elsewhere. */
#define KERNELS cpu_kernels_portable
#define NAME "portable"
#define TARGET
#define WIDTH 4
#if defined(__aarch64__)
#define TILE_R 4
#define NARROW_R 4
#else
#define TILE_R 2
#define NARROW_R 2
#endif
#define TILE_C 4
#define SINGLE_C 8
#include "backend/cpu/kernels_body.h"
