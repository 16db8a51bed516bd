/*
 * A model: a checkpoint's shapes and weights handed to one backend, the tokenizer and template beside it.
 *
 * Defines the public hy_model (include/hayate.h). Other rooms reach the parts through the accessors here.
 */
#ifndef HAYATE_MODEL_MODEL_H
#define HAYATE_MODEL_MODEL_H

#include "backend/ops.h"
#include "checkpoint/checkpoint.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

/* generation_config.json and what the config adds. */
typedef struct model_generation {
    float temperature, top_p, min_p, repetition_penalty; /* 1, 1, 0, 1 when absent */
    int top_k;                                           /* 0 when absent */
    int32_t eos[CONFIG_MAX_EOS];
    int eos_count; /* from generation_config.json, else config.json */
} model_generation;

const checkpoint *model_checkpoint(const hy_model *model);
const config *model_config(const hy_model *model);
const ops_model *model_ops_model(const hy_model *model);
const hy_ops *model_ops(const hy_model *model);
ops_backend *model_backend(const hy_model *model);
threads *model_pool(const hy_model *model); /* the backend's; free between its steps */
const cache_layout *model_cache_layout(const hy_model *model);
const model_generation *model_generation_config(const hy_model *model);
const text_tokenizer *model_tokenizer(const hy_model *model); /* NULL: the folder has none */
/* HY_OK when the model can render chats; else the reason (no tokenizer, unknown template). */
hy_status model_can_chat(const hy_model *model, hy_error *err);
int model_max_len(const hy_model *model);

#endif
