/*
 * Sampling parameters of a request: their ranges, and a copy that lives as long as the request.
 *
 * hy_sampling_defaults (include/hayate.h) is defined here as well.
 */
#ifndef HAYATE_ENGINE_PARAMS_H
#define HAYATE_ENGINE_PARAMS_H

#include "engine/stop.h"
#include "model/model.h"
#include "text/grammar.h"

enum { PARAMS_MAX_LIST = 1 << 20 }; /* entries of any list of a request */
enum { PARAMS_MAX_SCORES = 128, PARAMS_MAX_PATTERN = 4096 };

typedef struct params {
    hy_sampling s;          /* every pointer leads into `memory` */
    stop_strings stop;      /* s.stop with lengths */
    const int32_t *end_ids; /* [end_count] the model's own, then s.stop_ids: masked before min_tokens */
    int32_t end_count;
    int32_t eos_count; /* how many of them are the model's own */
    text_grammar *grammar; /* a reference of its own; NULL: any text */
    void *memory;          /* owned */
} params;

/*
 * HY_BAD_INPUT with the parameter's name, its value and the range. `vocab` bounds the ids of lists that choose tokens
 * (allowed_ids, bias, bad_words); stop ids outside it are harmless and allowed. Without `tok` stop strings are
 * refused, and without `tok`, whose tokens a grammar must know, grammars. max_tokens against lengths is the engine's business.
 */
hy_status params_check(const hy_sampling *s, int32_t vocab, const text_tokenizer *tok, hy_error *err);

/* Copies checked parameters; release with params_free. */
hy_status params_copy(const hy_sampling *s, const int32_t *eos, int eos_count, params *out, hy_error *err);
void params_free(params *p);

/* A token that ends the text: the model's own unless ignore_eos, or one of stop_ids. */
bool params_ends(const params *p, int32_t token);

#endif
