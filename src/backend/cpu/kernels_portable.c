/* The inner loops for what every processor of a target has: 4 lanes, in 32 registers on AArch64, in 16 elsewhere. */
#define KERNELS cpu_kernels_portable
#define NAME "portable"
#define TARGET
#define WIDTH 4
#include "backend/cpu/kernels_body.h"
