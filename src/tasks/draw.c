#include "tasks/draw.h"

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#define GOLDEN 0x9e3779b97f4a7c15u

draw draw_begin(uint64_t seed, uint64_t number)
{
    /* Mixed apart, so that neighbouring seeds and numbers share nothing. */
    return (draw){mix(mix(seed + GOLDEN) + number * 0xd1342543de82ef95u)};
}

uint64_t draw_bits(draw *d)
{
    return mix(d->state += GOLDEN);
}

int64_t draw_between(draw *d, int64_t low, int64_t high)
{
    /* The high half of a product: even to 2^-64 of the range. */
    uint64_t range = (uint64_t)high - (uint64_t)low + 1;
    return (int64_t)((uint64_t)low + (uint64_t)(((unsigned __int128)draw_bits(d) * range) >> 64));
}

bool draw_chance(draw *d, double p)
{
    return (double)(draw_bits(d) >> 11) < p * 0x1p53;
}

const char *draw_one(draw *d, const char *const *from, size_t n)
{
    return from[draw_between(d, 0, (int64_t)n - 1)];
}

size_t draw_weighted(draw *d, const int *weights, size_t n)
{
    int64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += weights[i];
    int64_t at = draw_between(d, 0, sum - 1);
    size_t i = 0;
    while (at >= weights[i]) at -= weights[i++];
    return i;
}

uint64_t draw_hash(const void *data, size_t size)
{
    const unsigned char *p = data;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++) h = (h ^ p[i]) * 0x100000001b3u;
    return mix(h);
}

bool draw_held_out(uint64_t hash)
{
    return (hash & 15) == 0;
}
