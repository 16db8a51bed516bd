/* Projections for 64-bit Arm with dot products of bytes: Neoverse N1, Cortex-A75, Apple M1 and later. */
#if defined(__aarch64__)
#define PRODUCTS cpu_products_neon_dot
#define NAME "neondot"

#include "backend/cpu/products_neon.h"

#include "backend/cpu/products_body.h"
#else
typedef int cpu_products_neon_dot_absent;
#endif
