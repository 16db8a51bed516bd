#include "server/generation_given.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/model.h"
#include "text/detokenizer.h"

void generation_bring(choice *c, const generation_whole *whole)
{
    const generation *g = c->g;
    const text_tokenizer *tok = model_tokenizer(g->room->model);
    buffer text = {0};
    if (tok && whole->shown) {
        text_detokenizer d;
        text_detokenizer_start(&d, tok, !g->plan.keep_special);
        text_detokenizer_feed(&d, whole->ids, whole->shown, &text);
        text_detokenizer_finish(&d, &text);
    }
    hy_error memory = {.status = HY_FAILED, .message = "out of memory"};
    bool ok = buffer_ok(&text);
    hy_event event = {.ids = whole->ids,
                      .id_count = whole->id_count,
                      .text = text.data,
                      .text_length = text.length,
                      .logprobs = whole->logprobs,
                      .logprobs_per_token = whole->stride,
                      .finish = ok ? whole->finish : HY_FINISH_ERROR,
                      .stop_id = whole->stop_id,
                      .error = ok ? whole->error : &memory};
    generation_post(c, &whole->result, &event);
    buffer_free(&text);
}

void generation_give(generation *g)
{
    const generation_answer *given = g->plan.given;
    for (int i = 0; i < g->choices; i++) {
        const generation_answer *a = &given[i];
        choice *c = &g->inside->choice[i];
        c->result = (hy_result){.prompt_count = a->prompt_tokens, .finish = a->finish};
        generation_bring(c, &(generation_whole){.ids = a->ids.data,
                                                .id_count = a->ids.count,
                                                .shown = a->ids.count,
                                                .logprobs = a->logprobs,
                                                .stride = a->stride,
                                                .finish = a->finish,
                                                .stop_id = -1,
                                                .result = c->result});
        g->inside->submitted = i + 1;
    }
}
