/*
 * From flags to options: what `hayate serve` tells the model, the engine and the server. Everything that can be told
 * wrong before a model is read is told here, with exit code 2.
 */
#ifndef HAYATE_CLI_SERVE_SETUP_H
#define HAYATE_CLI_SERVE_SETUP_H

#include "cli/find_model.h"
#include "cli/serve_flags.h"
#include "cli/speculation.h"
#include "server/server.h"

enum { SETUP_TEXTS = 64, SETUP_CORS = 3 };

/* Borrows from the arguments. */
typedef struct serve_setup {
    hy_model_options model;
    hy_engine_options engine;
    server_options server;
    speculation drafts;              /* what model and engine have of it, once the model's folder is known */
    int64_t cache_blocks;            /* --num-gpu-blocks-override; 0: not given */
    bool fit_length;                 /* --max-model-len auto */
    bool vllm_sampling;              /* --generation-config vllm: nothing of the model's */
    const char *generation_folder;   /* --generation-config FOLDER, or NULL */
    const json_t *generation;        /* --override-generation-config, or NULL */
    const char *revision, *token, *download_dir, *tokenizer_revision;
    bool no_token;                   /* --hf-token is not to be looked for */
    hy_log_level log_level;
    int64_t log_most; /* --max-log-len */

    const char *names[SETUP_TEXTS], *keys[SETUP_TEXTS], *quiet[SETUP_TEXTS], *cors[SETUP_CORS][SETUP_TEXTS];
    char hub_name[FIND_PATH_SIZE];   /* what a model of the hub is called if no name was given */
    json_t *config;                  /* owned: what was given */
    char *quiet_text;                /* owned: what quiet points into */
    hy_sampling sampling;            /* once the model is there: setup_sampling */
} serve_setup;

/* -1, or the exit code after an error, which is printed. Warnings go to the log. What it filled must be freed. */
int setup_read(const serve_args *args, serve_setup *out);
void setup_free(serve_setup *s);
/* Says once what has no effect here and what is not yet done. */
void setup_say(const serve_args *args, const speculation *drafts);
/* Sampling for requests that do not say, from the model's or what --generation-config names, and the overrides. */
hy_status setup_sampling(serve_setup *s, const hy_model *model, hy_error *err);

/* The JSON flags, checked and put into `out`; -1 or 2. cli/serve_json.c. */
int setup_attention(const serve_args *args, serve_setup *out);
int setup_speculation(const serve_args *args, serve_setup *out);
int setup_structured(const serve_args *args, serve_setup *out, const char **reasoning);
int setup_rest(const serve_args *args);

#endif
