/* The inside of hy_model, for the files of this room that fill it. */
#ifndef HAYATE_MODEL_PARTS_H
#define HAYATE_MODEL_PARTS_H

#include "checkpoint/layout.h"
#include "model/model.h"

/* Owned arrays behind an ops_model, and its drafter. */
typedef struct model_weights {
    ops_model shape;     /* borrowed by the backend */
    float *confidence;   /* a drafter's confidence head where it had to be widened; NULL elsewhere */
    uint64_t draft_parameters;
    weight *experts;     /* [moe layers, 3, experts]: what expert_gate, expert_up, expert_down point into */
    uint64_t parameters; /* logical weights */
} model_weights;

/* Who looks at block scales before they are used: model_weights_open, but for routed experts those who stream them, or the
 * backend at its opening. */
typedef enum model_scales { MODEL_SCALES_HERE, MODEL_SCALES_STREAMED, MODEL_SCALES_BACKEND } model_scales;

/*
 * Collects the weights of every layer by role, checks their scales and counts them. What a backend makes (checkpoint_made) is
 * not looked at. on_progress counts tensors. HY_BAD_MODEL with the tensor's name; on failure nothing is left allocated.
 */
hy_status model_weights_open(const checkpoint *c, model_scales scales, hy_progress_fn on_progress, void *user,
                             model_weights *out, hy_error *err);
/* The same without data, from the published layout of a scheme: formats and shapes. */
hy_status model_weights_shape(const config *c, layout_scheme scheme, model_weights *out, hy_error *err);
void model_weights_close(model_weights *w);

/* The drafter's part (drafter.c): `w` gets one, with its context in `cache`; model_weights_close frees it. Of a checkpoint, whose
 * tensors must be those that its config implies (HY_BAD_MODEL names the first that is not) ... */
hy_status model_drafter_open(const checkpoint *c, model_scales scales, cache_format cache, hy_progress_fn on_progress, void *user,
                             model_weights *w, hy_error *err);
/* ... or of shapes without data. `target` and `d` belong together. */
hy_status model_drafter_shape(const config *target, const draft_config *d, cache_format cache, model_weights *w,
                              hy_error *err);
void model_drafter_close(model_weights *w);

/* Options of a model as resolved against its checkpoint and backend. */
typedef struct model_formats {
    cache_format main, index, draft; /* draft: what a drafter would have */
    readback read;
    moe_activation activation;
} model_formats;

/*
 * "auto" caches are nvfp4 where the experts are NVFP4 with a dividing global scale (M3.1), fp8 where they are MXFP8,
 * bf16 elsewhere; "auto" activations nvfp4 in the first case, none elsewhere. A drafter's "auto" is fp8 beside nvfp4 and fp8, and
 * the main cache's elsewhere. An fp32 cache off the reference becomes bf16 with a log line. HY_USAGE names the choices.
 */
hy_status model_formats_resolve(const ops_model *shape, const hy_model_options *options, bool reference,
                                model_formats *out, hy_error *err);

/* generation_config.json of the folder; without one, defaults and the config's end token. */
hy_status model_generation_load(const char *folder, const config *c, model_generation *out, hy_error *err);

struct hy_model {
    char *path, *name;
    checkpoint *files;
    bool drafts;       /* opened with its drafter */
    int gpu_wgmma_rows;
    weight_file *maps; /* [map_count] the files of the weights */
    size_t map_count;
    model_weights weights;
    threads *pool;
    const hy_ops *ops;
    ops_backend *backend;
    model_formats formats;
    cache_layout layout;
    model_generation generation;
    text_tokenizer *tokenizer; /* NULL: none */
    text_template chat;
    int max_len;
    ops_weights kind;
    uint64_t limit;        /* bytes of the process; 0: none */
    uint64_t expert_least; /* bytes of the smallest expert cache; 0: weights are loaded */
    uint64_t engine_cache; /* bytes of the engines' caches */
};

/* hy_model_options.weights and .memory into the model and `options`. HY_USAGE. */
hy_status model_memory_resolve(hy_model *m, const hy_model_options *o, ops_options *options, hy_error *err);
/* HY_NO_FIT with what is needed, before weights are read. */
hy_status model_memory_check(hy_model *m, const hy_model_options *o, const ops_options *options, hy_error *err);

#endif
