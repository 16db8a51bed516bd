/* The loops over cache blocks for what every processor of a target has. */
#include <math.h>

#define BLOCKS cpu_blocks_portable
#define NAME "portable"
#define TARGET
#define WIDTH 4
#define ROWS 1
#define ROWS_C 1
#define SINGLE_C 1
#define KEYS_C 1
#define ROWS_D 2
#define SINGLE_D 2
#define MULTIPLY_ADD(acc, a, b) ((acc) += (a) * (b))
#define MAXIMUM(x, m) SELECT((x) > (m), x, m)
#define FUSED(acc, a, b)                                                                                               \
    do {                                                                                                               \
        for (int lane = 0; lane < WIDTH; lane++) (acc)[lane] = fmaf((a)[lane], (b)[lane], (acc)[lane]);                \
    } while (0)
#define DOT_PAIRS(acc, a, b)                                                                                           \
    ((acc) += (SHIFT_LEFT(a, 16) >> 16) * (SHIFT_LEFT(b, 16) >> 16) + ((a) >> 16) * ((b) >> 16))
#define EXPAND(line, s) expand_pairs((line), (s))

#include "backend/cpu/lanes.h"

/* Twice the E2M1 number of a code: the digits of a constant. What lies behind the end of a sequence comes here too: no
 * decision depends on it. */
static inline uint32_t twice_e2m1(uint32_t code)
{
    uint32_t magnitude = 0xC8643210u >> (code & 7) * 4 & 15, sign = 0u - (code >> 3 & 1);
    return (magnitude ^ sign) - sign;
}

static inline vec_int expand_pairs(vec_int line, int s)
{
    vec_int pairs;
    for (int lane = 0; lane < WIDTH; lane++) {
        uint32_t word = (uint32_t)line[lane] >> 4 * s;
        pairs[lane] = (int32_t)((twice_e2m1(word) & 0xFFFF) | twice_e2m1(word >> 16) << 16);
    }
    return pairs;
}

#include "backend/cpu/blocks_body.h"
