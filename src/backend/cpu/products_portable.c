/* Projections for what every processor of a target has: vectors of 4 lanes. The definition of all variants. */
#define PRODUCTS cpu_products_portable
#define NAME "portable"
#define TARGET
#define WIDTH 4
#define TILE_R 4
#define TILE_C 2
#define SINGLE_C 8
#define FMA(a, b, c) ((a) * (b) + (c))
#include "backend/cpu/products_body.h"
