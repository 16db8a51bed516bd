/*
 * config.json of MiniMax-M3 and M3.1, in the published spelling and in that of transformers 5, as one struct.
 *
 * Which layers are sparse and which have experts comes from two separate per-layer lists; nothing is inferred from a
 * layer's number. What the engine does not do is refused here by name: a rope type other than default, a block size
 * other than 128, init blocks, output gates, a score type other than max, a scoring function other than sigmoid, ...
 */
#ifndef HAYATE_CHECKPOINT_CONFIG_H
#define HAYATE_CHECKPOINT_CONFIG_H

#include "hayate.h"

enum { CONFIG_MAX_LAYERS = 512, CONFIG_MAX_TAPS = 8, CONFIG_MAX_EOS = 8 };

typedef struct config {
    int layers, hidden, vocab, max_positions;
    int heads, kv_heads, head_dim, rotary_dim;
    float rope_theta, norm_eps;
    int experts, experts_per_token, expert_width, shared_width, dense_width; /* widths: intermediate sizes */
    bool shared_expert;
    float routed_scaling, swiglu_alpha, swiglu_limit;
    int index_heads, index_dim, index_block, index_top, index_local; /* 0 when no layer is sparse */
    bool tied_head;
    int mtp_modules;
    uint8_t sparse[CONFIG_MAX_LAYERS]; /* [layers] 1: block-sparse attention with an indexer */
    uint8_t moe[CONFIG_MAX_LAYERS];    /* [layers] 1: routed experts, 0: dense feed-forward */
    int bos, eos;                      /* -1 when the file has none */
    int image_token, video_token;      /* -1 when the file has none */
    /* quantization_config, for display and checks; formats are decided tensor by tensor */
    char quant_method[32], moe_quant[32], moe_quant_format[48]; /* "" when absent */
    bool transformers_spelling;
    /* vision_config, for `synth` and `inspect`; vision_layers 0: none */
    int vision_layers, vision_hidden, vision_heads, vision_width, vision_patch, vision_temporal, vision_merge;
    int projector_hidden;
    char model_type[32];
} config;

/* Families of drafters: names of fields and tensors, and what their networks are fixed to. */
typedef enum draft_family {
    DRAFT_RELEASED, /* DSparkMiniMaxDraftModel, beside M3.1: MXFP8 linears, norms with 1 + gain, SwiGLU-OAI */
    DRAFT_QWEN3,    /* Qwen3DSparkModel of DeepSpec and of NVIDIA, DSparkSpeculator: plain linears, norms and SwiGLU */
} draft_family;

/*
 * The drafter's config (dspark/config.json). NVIDIA's spelling has a dflash_config. That of speculators counts its taps from the
 * embedding, 1 being the first layer's output; here they are layers. What none of our drafters does is refused by name: other
 * families, causal blocks, windows in some layers only, other Markov heads, a vocabulary of its own.
 */
typedef struct draft_config {
    draft_family family;
    int layers, hidden, vocab, heads, kv_heads, head_dim, dense_width, block, noise_token, markov_rank;
    int window; /* keys that a row sees, itself counted; 0: all */
    int taps[CONFIG_MAX_TAPS], tap_count;
    bool confidence_head, confidence_with_markov;
    /* 0: the file does not say; draft_config_fit takes the target's. */
    int rotary_dim;
    float rope_theta, norm_eps, swiglu_alpha, swiglu_limit;
    bool own_embed, own_head; /* its files hold them: known when they are opened */
} draft_config;

/* Parses the text of a config.json. `name` stands for the path in messages. HY_BAD_MODEL or HY_UNSUPPORTED. */
hy_status config_parse(const char *name, const char *json, size_t length, config *out, hy_error *err);
hy_status config_load(const char *path, config *out, hy_error *err);
hy_status draft_config_parse(const char *name, const char *json, size_t length, draft_config *out, hy_error *err);
/* Whether the drafter belongs to the target: it reads its embedding, head and layer outputs. Fills what its file left to the
 * target. HY_BAD_MODEL; `path` is the file's in messages. */
hy_status draft_config_fit(const char *path, draft_config *d, const config *target, hy_error *err);

/* The released geometries by name: "m3.1-flash", "m3", "m3-mxfp8". False: unknown name. */
bool config_known(const char *name, config *out);
extern const char config_known_names[]; /* "m3.1-flash, m3, m3-mxfp8" */
/* The drafter that belongs to a target geometry: 5 layers, widths as published, taps max(0, floor((i+1)N/5) - 1); with
 * 60 layers the taps of the release, 3, 17, 31, 45, 59. */
draft_config config_drafter(const config *target);
/* The first `layers` layers of the geometry, `dense_layers` of them with dense feed-forward (negative: as many as
 * the first `layers` layers have). Of each kind the first ones are kept. HY_USAGE if not possible. */
hy_status config_slice(config *c, int layers, int dense_layers, hy_error *err);
/* Writes a config.json in the published spelling (free() the string). scheme: see checkpoint/layout.h. */
char *config_write(const config *c, int scheme, size_t *length);
char *draft_config_write(const draft_config *d, size_t *length);

#endif
