#include "number/e2m1.h"
#include "number/e4m3.h"

#include <math.h>

const float e2m1_table[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

/* In units of 2^-10: (8 + m) * 2^e, or 2m for subnormals. */
#define UNITS(e, m) ((e) ? (8 + (m)) * (1 << (e)) : 2 * (m))
#define VALUE(sign, e, m) (sign(float) UNITS(e, m) / 1024)
#define SEVEN(sign, e)                                                                                                 \
    VALUE(sign, e, 0), VALUE(sign, e, 1), VALUE(sign, e, 2), VALUE(sign, e, 3), VALUE(sign, e, 4), VALUE(sign, e, 5),  \
        VALUE(sign, e, 6)
#define EIGHT(sign, e) SEVEN(sign, e), VALUE(sign, e, 7)
#define HALF(sign)                                                                                                     \
    EIGHT(sign, 0), EIGHT(sign, 1), EIGHT(sign, 2), EIGHT(sign, 3), EIGHT(sign, 4), EIGHT(sign, 5), EIGHT(sign, 6),    \
        EIGHT(sign, 7), EIGHT(sign, 8), EIGHT(sign, 9), EIGHT(sign, 10), EIGHT(sign, 11), EIGHT(sign, 12),             \
        EIGHT(sign, 13), EIGHT(sign, 14), SEVEN(sign, 15), sign NAN

const float e4m3_table[256] = {HALF(+), HALF(-)};
