/*
 * A checkpoint: a folder with config.json and safetensors shards, a hub cache folder that leads to one, or a list of files
 * (checkpoint/source.h).
 *
 * Weights are asked for by what they are (role, layer, expert); the checkpoint knows the four spellings of their
 * names (published, without prefix, compressed-tensors, transformers-native with fused matrices) and the quantisation
 * scheme of each tensor, which is decided tensor by tensor:
 *   weight_packed -> NVFP4, global scale divides;  weight_scale_2 -> NVFP4 ModelOpt, global scale multiplies;
 *   weight_scale_inv (U8 or F8_E8M0 [out, in/32]) -> MXFP8;  weight BF16/F16/F32 -> plain. Anything else is refused.
 */
#ifndef HAYATE_CHECKPOINT_CHECKPOINT_H
#define HAYATE_CHECKPOINT_CHECKPOINT_H

#include "checkpoint/config.h"
#include "checkpoint/tensor.h"

typedef enum weight_role {
    ROLE_EMBED, ROLE_HEAD, ROLE_FINAL_NORM,                         /* layer -1 */
    ROLE_INPUT_NORM, ROLE_POST_NORM,                                /* [1, hidden] */
    ROLE_Q, ROLE_K, ROLE_V, ROLE_O, ROLE_Q_NORM, ROLE_K_NORM,
    ROLE_INDEX_Q, ROLE_INDEX_K, ROLE_INDEX_Q_NORM, ROLE_INDEX_K_NORM, /* sparse layers */
    ROLE_DENSE_GATE, ROLE_DENSE_UP, ROLE_DENSE_DOWN,                /* layers without experts */
    ROLE_ROUTER, ROLE_ROUTER_BIAS,                                  /* [experts, hidden], [1, experts] */
    ROLE_EXPERT_GATE, ROLE_EXPERT_UP, ROLE_EXPERT_DOWN,             /* w1, w3, w2 of one expert */
    ROLE_SHARED_GATE, ROLE_SHARED_UP, ROLE_SHARED_DOWN,
    ROLE_COUNT,
} weight_role;

typedef enum draft_role {
    DRAFT_FC, DRAFT_HIDDEN_NORM, DRAFT_FINAL_NORM, DRAFT_MARKOV_IN, DRAFT_MARKOV_OUT, DRAFT_CONFIDENCE,
    DRAFT_CONFIDENCE_BIAS, DRAFT_EMBED, DRAFT_HEAD,                 /* layer -1 */
    DRAFT_INPUT_NORM, DRAFT_POST_NORM, DRAFT_Q, DRAFT_K, DRAFT_V, DRAFT_O, DRAFT_Q_NORM, DRAFT_K_NORM, DRAFT_GATE,
    DRAFT_UP, DRAFT_DOWN,
    DRAFT_ROLE_COUNT,
} draft_role;

typedef struct checkpoint checkpoint;

/* Opens what a user names (checkpoint/source.h): config, index, headers of all shards. Data pages are not touched.
 * HY_BAD_MODEL names what is wrong: a missing shard, a tensor that the index puts elsewhere, ... */
hy_status checkpoint_open(const char *path, checkpoint **out, hy_error *err);
void checkpoint_close(checkpoint *c);

typedef struct dummy_options {
    uint64_t seed;
    int copies;    /* of the weights that must fit into memory: 2 where a backend prepares them into its own layout */
    int layers;    /* only so many of the geometry; 0: all */
    int with_experts; /* of these, so many, the last ones, with experts; 0: as the first `layers` have them */
    bool elsewhere; /* the backend makes them: what checkpoint_made describes is a hole, and no memory is asked for */
    hy_progress_fn on_progress;
    void *user;
} dummy_options;

/* The same without reading weights, which need not be there: random ones of the config's shape, made in memory, no drafter. The
 * name of a released geometry (checkpoint/config.h) stands for its config where nothing is there of that name. The same seed
 * gives the same bytes. HY_NO_FIT before they are made; HY_USAGE: such layers are not possible; HY_CANCELLED. */
hy_status checkpoint_open_dummy(const char *path, const dummy_options *options, checkpoint **out, hy_error *err);
/* A drafter of random weights behind it, as the config.json in `folder`, or in the folder dspark beside it, says; NULL: the
 * checkpoint's own, of a geometry by name the one that belongs to it. */
hy_status checkpoint_open_dummy_draft(checkpoint *c, const char *folder, const dummy_options *options, hy_error *err);
/* What `elsewhere` left to be made, drafter included; NULL: nothing. */
struct synth_made;
const struct synth_made *checkpoint_made(const checkpoint *c, uint64_t *seed);
bool checkpoint_has_config(const checkpoint *c); /* false: it is a geometry by name, and its folder none */

const char *checkpoint_folder(const checkpoint *c); /* the folder that holds config.json, links of a hub cache resolved */
const char *checkpoint_tokenizer(const checkpoint *c); /* a file that was listed; NULL: that of the folder, if any */
const config *checkpoint_config(const checkpoint *c);
const draft_config *checkpoint_draft(const checkpoint *c); /* NULL: no dspark folder, or none that can be read */
const char *checkpoint_draft_folder(const checkpoint *c);  /* NULL likewise */

/* A drafter in a folder of its own (config.json and safetensors), or the one beside a model, in place of the checkpoint's.
 * HY_BAD_MODEL: none is there, or it does not belong to this target. */
hy_status checkpoint_open_draft(checkpoint *c, const char *folder, hy_error *err);
/* Holds the drafter's tensors against the layout that its config implies (checkpoint/layout.h): one that is missing, of another
 * type or shape, or not in the layout is HY_BAD_MODEL with its name. What is plain in the Qwen3 family may be BF16, F16 or
 * F32. */
hy_status checkpoint_check_draft(const checkpoint *c, hy_error *err);
/* Warns of a folder dspark that is left out since it cannot be read: for who goes on without. Who wants the drafter gets the
 * same as an error of checkpoint_check_draft. */
void checkpoint_warn_draft(const checkpoint *c);
/* The weight of a drafter that checkpoint_check_draft has passed. */
hy_status checkpoint_draft_weight(const checkpoint *c, draft_role role, int layer, weight *out, hy_error *err);

/* All tensors of the main files (and of the drafter's folder), in the order of shards and offsets. */
size_t checkpoint_tensor_count(const checkpoint *c, bool draft);
const tensor *checkpoint_tensor_at(const checkpoint *c, size_t i, bool draft);
const tensor *checkpoint_find(const checkpoint *c, const char *name); /* main files; NULL: not there */
size_t checkpoint_shard_count(const checkpoint *c, bool draft);
const char *checkpoint_shard_path(const checkpoint *c, size_t i, bool draft);
weight_file checkpoint_shard_file(const checkpoint *c, size_t i, bool draft); /* as it is mapped */

/*
 * The weight of a role with shape and dtype checked against the config. HY_BAD_MODEL: missing, wrong shape, wrong
 * dtype, unknown quantisation, with the tensor's name. Vectors are plain. For expert roles `expert` counts from 0;
 * elsewhere it is ignored, as is `layer` for the first three roles. Tied heads return the embedding.
 */
hy_status checkpoint_weight(const checkpoint *c, weight_role role, int layer, int expert, weight *out, hy_error *err);
const char *weight_role_name(weight_role role);

/*
 * Reads every scale of a weight once: NaN scale bytes (E4M3 0x7F/0xFF, E8M0 255), negative block scales, and global
 * scales that are zero, negative or not finite are HY_BAD_MODEL with the tensor's name and the place.
 */
hy_status checkpoint_check_scales(const weight *w, const char *name, hy_error *err);
/* The global scale alone. */
hy_status checkpoint_check_global(const weight *w, const char *name, hy_error *err);

/* Reads every value of a weight of a plain format once: one that is NaN or infinite is HY_BAD_MODEL with the name and the
 * place. For those that are small or that no backend looks at: large ones are checked as they are prepared. */
hy_status checkpoint_check_values(const weight *w, const char *name, hy_error *err);

/* k_scale / v_scale scalars of other exports (multipliers); 1 when absent. */
hy_status checkpoint_kv_scales(const checkpoint *c, int layer, float *k_scale, float *v_scale, hy_error *err);

#endif
