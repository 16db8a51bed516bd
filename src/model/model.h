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
ops_model model_shape(const config *c); /* the sizes of a config, with neither layers nor weights */
const hy_ops *model_ops(const hy_model *model);
ops_backend *model_backend(const hy_model *model);
threads *model_pool(const hy_model *model); /* the backend's; free between its steps */
const cache_layout *model_cache_layout(const hy_model *model);
const model_generation *model_generation_config(const hy_model *model);
const text_tokenizer *model_tokenizer(const hy_model *model); /* NULL: the folder has none */
/* HY_OK when the model can render chats; else the reason (no tokenizer, a template that cannot be compiled). */
hy_status model_can_chat(const hy_model *model, hy_error *err);
/* The chat template reads this variable: what a request sets and no template reads has no effect. */
bool model_template_reads(const hy_model *model, const char *variable);
/* It is M3's, whose roles and ways to think are known. */
bool model_template_known(const hy_model *model);
/* hy_render_chat for values that are parsed; `chat_template` is a request's own template in place of the model's, or NULL. */
hy_status model_render(const hy_model *model, const char *chat_template, const json_t *messages, const json_t *tools,
                       const json_t *kwargs, hy_ids *ids, hy_error *err);
int model_max_len(const hy_model *model);

/* ---- Memory (memory.c) ----------------------------------------------------------------------------------------------
 * With hy_model_options.memory the process has a limit, and so it has with streamed weights:
 *
 *     limit = resident now + margin + caches of engines + expert cache
 *
 * where resident now includes weights and steps, which are touched when they are made; a cache is counted whole, touched
 * or not; the expert cache is what remains. */

enum { MODEL_DEFAULT_ROWS = 512, MODEL_DEFAULT_SEQUENCES = 256 }; /* of an engine */
/* For what is not counted: stacks, requests and their texts, buffers of the server, what the allocator keeps. */
enum { MODEL_MEMORY_MARGIN = 32 << 20 };

/* What an engine's cache with streamed experts is planned within, of `room` bytes for both: most of them are better spent
 * on experts, and two blocks are the least. */
uint64_t model_memory_for_cache(uint64_t room, uint64_t row_bytes);

/* What is free where the backend keeps caches and steps: the GPU's memory, or memory_available(). */
uint64_t model_memory_free(const hy_model *model);
/* Whether that is memory of its own, which nothing else of this process takes. */
bool model_memory_own(const hy_model *model);
/* What the plan of an engine's cache may take as free: of own memory what a step leaves, else memory_available(), within the
 * limit. */
uint64_t model_memory_available(const hy_model *model, const ops_limits *limits);
/* Before an engine allocates: the expert cache is given up. Between steps. */
void model_memory_begin(hy_model *model);
/* After it has: the expert cache takes what is left. HY_NO_FIT: less than the experts of a step. */
hy_status model_memory_take(hy_model *model, uint64_t cache_bytes, hy_error *err);
/* The engine has gone. */
void model_memory_give(hy_model *model, uint64_t cache_bytes);
/* False: the weights are not streamed. From any thread. */
bool model_expert_stats(const hy_model *model, hy_expert_stats *out);
/* What happened between two readings, `since` NULL: since the model was opened, in one line. Returns `out`. */
enum { MODEL_EXPERT_TEXT = 320 };
const char *model_expert_text(const hy_expert_stats *now, const hy_expert_stats *since, char out[MODEL_EXPERT_TEXT]);

#endif
