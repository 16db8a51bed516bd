/*
 * The published layout of a checkpoint: every tensor's name, type and shape for a geometry and a scheme, in file
 * order with the shard it goes to. `synth` fills it, `quantize` converts into it, `plan` adds it up.
 */
#ifndef HAYATE_CHECKPOINT_LAYOUT_H
#define HAYATE_CHECKPOINT_LAYOUT_H

#include "checkpoint/checkpoint.h"

typedef enum layout_scheme {
    SCHEME_BF16,  /* the bf16 M3: everything plain */
    SCHEME_MXFP8, /* M3-MXFP8: every linear MXFP8, experts too */
    SCHEME_M31,   /* M3.1: routed experts NVFP4 pack-quantised, other linears MXFP8, the rest bf16 and fp32 */
    SCHEME_MODELOPT, /* NVFP4 experts in ModelOpt's names with a multiplying global scale */
} layout_scheme;

typedef enum layout_fill { /* what a tensor holds, so that random files are sane */
    FILL_LINEAR, FILL_NORM, FILL_EMBED, FILL_ROUTER, FILL_ROUTER_BIAS, FILL_E4M3, FILL_E8M0, FILL_E2M1, FILL_E4M3_SCALE,
    FILL_GLOBAL, FILL_ONE, FILL_BIAS,
} layout_fill;

typedef struct layout_entry {
    char name[192];
    tensor_dtype dtype;
    int dims;
    int64_t shape[TENSOR_MAX_DIMS];
    layout_fill fill;
    int64_t fan_in;    /* columns of the matrix that it belongs to */
    weight_role role;  /* ROLE_COUNT for vision and drafter tensors */
    draft_role draft;  /* of a drafter's tensor, scales included; DRAFT_ROLE_COUNT elsewhere */
    int layer, expert; /* -1 where there is none; the drafter's layers are its own */
} layout_entry;

/* Called once per tensor in file order; return false to stop. */
typedef bool (*layout_fn)(void *user, const layout_entry *entry);

/* All tensors of the main files. Vision tensors are there when c->vision_layers > 0. False: fn stopped. */
bool layout_walk(const config *c, layout_scheme scheme, layout_fn fn, void *user);
/* The drafter's tensors (dspark/); linears of the released family are MXFP8, others plain. */
bool layout_walk_draft(const config *target, const draft_config *d, layout_fn fn, void *user);

size_t layout_entry_bytes(const layout_entry *e);
typedef struct layout_totals {
    uint64_t tensors, bytes, parameters; /* parameters: logical weights, without scales */
    uint64_t expert_bytes;               /* of `bytes`: routed experts, which expert parallelism divides */
} layout_totals;
layout_totals layout_count(const config *c, layout_scheme scheme);
layout_totals layout_count_draft(const config *target, const draft_config *d);
/* The scheme that a known name has: m3.1-flash -> M31, m3 -> BF16, m3-mxfp8 -> MXFP8. */
layout_scheme layout_known_scheme(const char *name);
layout_scheme layout_scheme_of(const config *c); /* that its quantization_config means; bf16 when it has none */
bool layout_parse_scheme(const char *name, layout_scheme *scheme); /* "bf16", "mxfp8", "m31", "modelopt" */
const char *layout_scheme_name(layout_scheme scheme);
/* Whether every linear's inputs can be cut into blocks of 32, as the quantised schemes need. HY_USAGE says which not. */
hy_status layout_check(const config *c, layout_scheme scheme, hy_error *err);

#endif
