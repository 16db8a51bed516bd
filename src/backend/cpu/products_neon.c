/* Projections for every 64-bit Arm processor. */
#if defined(__aarch64__)
#define PRODUCTS cpu_products_neon
#define NAME "neon"

#include "backend/cpu/products_neon.h"

#include "backend/cpu/products_body.h"
#else
typedef int cpu_products_neon_absent;
#endif
