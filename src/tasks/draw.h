/*
 * Random choices of generators: splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
 * 2014).
 *
 * Not the random numbers of sampling (base/random.h): those are addressed by position, these are a stream.
 */
#ifndef HAYATE_TASKS_DRAW_H
#define HAYATE_TASKS_DRAW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct draw {
    uint64_t state;
} draw;

/* The generator of task `number` of a seed: independent streams. */
draw draw_begin(uint64_t seed, uint64_t number);
uint64_t draw_bits(draw *d);
/* low .. high, both included. */
int64_t draw_between(draw *d, int64_t low, int64_t high);
/* True with probability p. */
bool draw_chance(draw *d, double p);
/* One of n strings. */
const char *draw_one(draw *d, const char *const *from, size_t n);
/* An index below n, in proportion to its weight. */
size_t draw_weighted(draw *d, const int *weights, size_t n);
#define DRAW(d, array) draw_one(d, array, sizeof(array) / sizeof *(array))

/* FNV-1a with a final mix: what decides the split. */
uint64_t draw_hash(const void *data, size_t size);
/* One hash in sixteen is held out. */
bool draw_held_out(uint64_t hash);

#endif
