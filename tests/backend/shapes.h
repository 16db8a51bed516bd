/* Shapes of random models that several tests take; a test names what the macro leaves open. */
#ifndef TESTS_BACKEND_SHAPES_H
#define TESTS_BACKEND_SHAPES_H

/* Sparse attention with four heads to a KV head, bf16 throughout; .vocab is open. */
#define SHAPE_PLAIN                                                                                                    \
    .layers = 4, .hidden = 96, .heads = 8, .kv_heads = 2, .head_dim = 32, .index_dim = 32, .index_top = 3,             \
    .rotary_dim = 16, .experts = 8, .per_token = 3, .expert_width = 48, .shared_width = 80, .dense_width = 112,        \
    .linear = WEIGHT_BF16, .expert = WEIGHT_BF16
/* Twenty heads to one KV head, F32 and NVFP4 experts; .shared_width and .dense_width are open. */
#define SHAPE_MANY_HEADS                                                                                               \
    .layers = 3, .hidden = 80, .heads = 20, .kv_heads = 1, .head_dim = 16, .index_dim = 16, .index_top = 2,            \
    .rotary_dim = 8, .experts = 5, .per_token = 2, .expert_width = 32, .vocab = 33, .linear = WEIGHT_F32,              \
    .expert = WEIGHT_NVFP4, .divides = false

#endif
