/*
 * Random weights that are made where they are wanted instead of being read: on a GPU, whose memory they fill without
 * passing through the host's.
 *
 * The values of synth.c depend on the seed, the tensor's name and the place in it alone. So a tensor is described by a key
 * and a few numbers, and whoever has the tables can make any part of it: byte for byte what a file of it would hold. With
 * the 64 bits of place n of a stream, draw(n) = mix(key + (n + 1) * 0x9E3779B97F4A7C15) (SplitMix64's finaliser), and z(b) =
 * mean + deviation * (normal[b % 4096] + normal[b / 4096 % 4096]) in fp32 steps:
 *
 *     F32         value i: z of the lower (i even) or upper half of draw(i / 2)
 *     BF16        the same, rounded to nearest, ties to even
 *     others      byte i: b = bits 16 (i % 4) and up of draw(i / 4), 16 of them:
 *     E4M3        e4m3[b % 4096]
 *     E2M1        e2m1[b % 256] | e2m1[b / 256] << 4
 *     E8M0        scale_low + (b < scale_up)
 *     E4M3_SCALE  0x70 + b % 8
 */
#ifndef HAYATE_CHECKPOINT_SYNTH_MADE_H
#define HAYATE_CHECKPOINT_SYNTH_MADE_H

#include "checkpoint/tensor.h"

enum {
    SYNTH_QUANTILES = 4096,
    SYNTH_MADE_HERE = 64 << 10, /* bytes of a tensor up to which the host makes it, whoever makes it too */
};

typedef struct synth_tables {
    float normal[SYNTH_QUANTILES]; /* quantiles of a normal distribution whose pairs sum to variance 1 */
    uint8_t e4m3[SYNTH_QUANTILES]; /* codes of N(0, 1) in units */
    uint8_t e2m1[256];
    double e4m3_rms, e2m1_rms; /* of the decoded codes; the latter with its block scales */
} synth_tables;

typedef enum synth_kind { SYNTH_F32, SYNTH_BF16, SYNTH_E4M3, SYNTH_E2M1, SYNTH_E8M0, SYNTH_E4M3_SCALE } synth_kind;

typedef struct synth_stream {
    uint64_t key;
    synth_kind kind;
    bool constant;         /* all of it `mean`: the host makes these */
    float mean, deviation; /* of plain values */
    uint8_t scale_low;     /* E8M0: this byte or the next one, ... */
    uint32_t scale_up;     /* ... the next one where a 16-bit draw is below this */
} synth_stream;

/* A tensor by its place in the map of the file that stands for it, where it is a hole unless the host made it too. */
typedef struct synth_piece {
    const void *data;
    uint64_t bytes;
    synth_stream stream;
} synth_piece;

typedef struct synth_made {
    synth_tables tables;
    synth_piece *piece; /* [count] ascending in `data`; owned */
    size_t count, room;
} synth_made;

/* The tensor that begins at `data`; NULL: none, as without a list. */
const synth_piece *synth_made_find(const synth_made *made, const void *data);
void synth_made_free(synth_made *made);

#endif
