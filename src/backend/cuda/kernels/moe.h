/* Parameters of kernels/moe.cu, moe_route.cu and moe_hopper.cu: a layer's router and experts for a few rows. */
#ifndef HAYATE_BACKEND_CUDA_KERNELS_MOE_H
#define HAYATE_BACKEND_CUDA_KERNELS_MOE_H

#include "backend/cuda/kernels/experts.h"
#include "backend/cuda/kernels/linear.h"
#include "backend/cuda/kernels/route.h"

enum {
    MOE_BLOCK = 192,  /* threads */
    MOE_BLOCKS = 2,   /* of a multiprocessor */
    MOE_SHARED = MOE_BLOCK / CUDA_WARP * EXPERTS_RING_BYTES + 16, /* bytes: a ring for each warp, and a number */
    MOE_FEW = 8,      /* rows that moe_few takes */
    MOE_ROWS = 64,    /* rows that moe_many takes */
    MOE_PART = 32,    /* rows that moe_many multiplies with the shared expert at once */
    MOE_ROUTED = 8,   /* rows that the router takes at once */
    MOE_QUANTISED = 64, /* groups of 16 inputs that are quantised at once */
    /* Places in `counts`, a line of the cache for each. */
    MOE_TICKET = 0,
    MOE_ENDED = 32,
    MOE_READY = 64,
    MOE_ACTIVE = 96,
    MOE_CHOSEN = 128,
    MOE_SHARED_UP = 160,
    MOE_ROUTER = 192, /* of 8 rows each; of all in moe_route.cu */
    MOE_COUNTS = 224,
};

/* Of moe_route.cu. */
enum {
    MOE_ROUTE_TEAM = PROJECT_SLICES * CUDA_WARP, /* threads: a warp a slice of K */
    MOE_ROUTE_TEAMS = 2, /* of a block where there are more than MOE_ROUTED rows, else one */
    MOE_ROUTE_MANY = 4,  /* experts of a team where there are more than MOE_ROUTED rows, else one */
    MOE_ROUTE_COUNT = 1 << 16, /* `active` has an expert's number and so many times its rows */
    MOE_ROUTE_EXPERTS = MOE_ROUTE_TEAMS * MOE_ROUTE_MANY,
    MOE_ROUTE_PARTS = PROJECT_SLICES * MOE_ROUTE_EXPERTS * MOE_ROUTED * 4, /* bytes of sums of slices; behind them 4 an expert */
};

/* Of moe_hopper.cu. */
enum {
    MOE_HOPPER_WARPS = 12, /* that multiply; one more loads */
    MOE_HOPPER_PAIRS = MOE_HOPPER_WARPS / 2, /* of gate and up */
    MOE_HOPPER_BLOCK = (MOE_HOPPER_WARPS + 1) * CUDA_WARP,
    MOE_HOPPER_BLOCKS = 2, /* of a multiprocessor */
    MOE_HOPPER_STAGES = 3, /* of a warp's ring */
    MOE_HOPPER_STAGES_ONE = 6, /* where a multiprocessor has one block */
    MOE_HOPPER_LINES = 6, /* chunks of rows that a block holds */
    MOE_HOPPER_LINES_ONE = 2, /* of all rows, as a whole */
    MOE_HOPPER_ONE = 2, /* rows up to which one block a multiprocessor is better */
    MOE_HOPPER_ROWS = 8, /* of an expert at once */
    MOE_HOPPER_ROW = 2 * EXPERTS_CHUNK + 64, /* bytes of a row's chunk, and of what keeps the next row's off its banks */
    MOE_HOPPER_LINE = MOE_HOPPER_ROWS * MOE_HOPPER_ROW,
    MOE_HOPPER_CODES = EXPERTS_TILE * EXPERTS_CHUNK / 2, /* bytes of a chunk of a tile, and of its scales */
    MOE_HOPPER_SCALES = EXPERTS_TILE * EXPERTS_CHUNK / 16,
    MOE_HOPPER_STAGE = MOE_HOPPER_CODES + MOE_HOPPER_SCALES,
    MOE_HOPPER_HANDED = CUDA_WARP * 16, /* bytes of the sums of a tile of up */
    MOE_HOPPER_QUEUE = 4, /* items */
    MOE_HOPPER_REST = MOE_HOPPER_PAIRS * MOE_HOPPER_HANDED + 1024,
    MOE_HOPPER_WEIGHTS = MOE_HOPPER_WARPS * MOE_HOPPER_STAGE, /* of a stage of all warps */
    MOE_HOPPER_SHARED = MOE_HOPPER_STAGES * MOE_HOPPER_WEIGHTS + MOE_HOPPER_LINES * MOE_HOPPER_LINE + MOE_HOPPER_REST,
};
/* The same where a multiprocessor has one block; most: the larger one of the hidden size and the experts' width. */
#define MOE_HOPPER_ROW_ONE(most) (2 * (most) + 64)
#define MOE_HOPPER_SHARED_ONE(most)                                                                                    \
    (MOE_HOPPER_STAGES_ONE * MOE_HOPPER_WEIGHTS + MOE_HOPPER_LINES_ONE * MOE_HOPPER_ONE * MOE_HOPPER_ROW_ONE(most) +    \
     MOE_HOPPER_REST)

/* How much there is to do: items of a kind, and what divides them. */
typedef struct moe_sizes {
    int32_t routes, choices, inputs, up_slices, down_slices; /* moe_route.cu: routes are blocks */
    int32_t experts;
    int32_t pieces;       /* in which a row is quantised */
    int32_t parts;        /* in which the shared expert takes the rows */
    int32_t tiles;        /* of 16 in an expert's width, the shared expert's (0: there is none), the hidden size */
    int32_t shared_tiles, out_tiles;
} moe_sizes;

typedef struct moe_args {
    moe_sizes sizes;
    int32_t count;   /* rows, at most MOE_FEW or MOE_ROWS */
    int32_t routing; /* choose.routes and weights are made here; else they are there */
    int32_t behind_shared; /* the shared expert's gate and up come just before moe_route.cu, its down before moe_hopper.cu */
    int32_t late;    /* a warp asks for its next weights only when it is done with what it has */
    int32_t ahead;   /* bytes of the shared gate, and of up, that are asked for before the kernel before has ended */
    const float *router;      /* [experts, hidden] */
    const uint16_t *normed;   /* [count, hidden] bf16: input of router and shared expert */
    route_choose_args choose;
    experts_plan_args plan; /* the lists' counts are zero between launches; members come in any order */
    experts_in_args in;
    experts_glu_args glu;
    experts_down_args down; /* with its sum; y is [count * per_token, hidden] */
    kernel_weight shared_gate, shared_up, shared_down; /* mxfp8, or no data */
    const float *beside;    /* [count, hidden] the shared expert's outputs, where it was computed before; else NULL */
    uint16_t *shared_z;     /* [count, shared width] bf16 */
    float *router_parts;    /* [rows of 8][experts][slice][8] */
    float *gate_up;         /* [gate, up][count * per_token][width] */
    float *shared_parts;    /* [rows of a part][tile][gate, up][slice][row][16] */
    float *down_parts;      /* [rows of a part][tile][slice][row][16] */
    int32_t *active;        /* [experts] that have rows, ascending; moe_route.cu: with their rows */
    /* What all blocks count, zero between launches. */
    uint32_t *counts;      /* [MOE_COUNTS] */
    uint32_t *up_done;     /* [experts] tiles of an active expert whose z is there */
    uint32_t *pair_done;   /* [active experts][tile] warps that are through with gate or up */
    uint32_t *shared_done; /* [parts][tile] slices of the shared expert's gate and up */
    uint32_t *out_done;    /* [tile] experts and slices of the shared expert's down */
} moe_args;

#endif
