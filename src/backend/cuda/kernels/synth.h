/* Parameters of kernels/synth.cu. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_SYNTH_H
#define HAYATE_BACKEND_CUDA_KERNELS_SYNTH_H

#include <stdint.h>

enum {
    SYNTH_THREADS = 256,
    SYNTH_NORMALS = 4096, /* SYNTH_QUANTILES */
    SYNTH_PAIRS = 256,
    SYNTH_PIECE = 16,     /* bytes that a thread makes at once: four draws, of fp32 two */
};

/* As synth_kind has them. */
enum { SYNTH_OF_F32, SYNTH_OF_BF16, SYNTH_OF_E4M3, SYNTH_OF_E2M1, SYNTH_OF_E8M0, SYNTH_OF_E4M3_SCALE };

/* In device memory, as synth_tables begins. */
typedef struct synth_lookup {
    float normal[SYNTH_NORMALS];
    uint8_t e4m3[SYNTH_NORMALS];
    uint8_t e2m1[SYNTH_PAIRS];
} synth_lookup;

/* All of a tensor into `out`, aligned to 16 bytes; what lies behind its last byte is not touched. Grid: any number. */
typedef struct synth_args {
    const synth_lookup *tables;
    uint8_t *out;
    uint64_t key, bytes;
    int32_t kind;
    float mean, deviation;
    uint32_t scale_low, scale_up;
    int32_t gap;
} synth_args;

#endif
