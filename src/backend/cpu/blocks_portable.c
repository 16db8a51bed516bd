/* The loops over cache blocks for what every processor of a target has. */
#define BLOCKS cpu_blocks_portable
#define NAME "portable"
#define TARGET
#define WIDTH 4
#if defined(__aarch64__)
#define NARROW_R 4
#else
#define NARROW_R 2
#endif
#include "backend/cpu/blocks_body.h"
