#include "engine/meters.h"

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

/* The bounds of the neighbours' metrics of the same meaning, so that their dashboards fit. */
static const double first_token[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                     1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
static const double between[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                 0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
static const double request[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
static const double step_rows[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

void meters_init(meters *m, int32_t longest)
{
    histogram *of_requests[] = {&m->whole_s, &m->queue_s, &m->inference_s, &m->prefill_s, &m->decode_s};
    histogram *of_tokens[] = {&m->prompt_tokens, &m->generated_tokens, &m->max_tokens, &m->prefill_tokens};
    for (int i = 0; i < COUNT(of_requests); i++) histogram_init(of_requests[i], request, COUNT(request));
    for (int i = 0; i < COUNT(of_tokens); i++) histogram_init_125(of_tokens[i], longest);
    histogram_init(&m->first_token_s, first_token, COUNT(first_token));
    histogram_init(&m->between_tokens_s, between, COUNT(between));
    histogram_init(&m->per_token_s, between, COUNT(between));
    histogram_init(&m->step_rows, step_rows, COUNT(step_rows));
}

void meters_token(meters *m, const hy_request *r, double before)
{
    if (before > 0)
        histogram_observe(&m->between_tokens_s, r->last_token - before);
    else
        histogram_observe(&m->first_token_s, r->last_token - r->asked);
}

void meters_step(meters *m, int32_t rows)
{
    histogram_observe(&m->step_rows, rows);
}

void meters_end(meters *m, const hy_request *r, double now)
{
    atomic_fetch_add(&m->ended[r->finish], 1);
    histogram_observe(&m->whole_s, now - r->asked);
    histogram_observe(&m->queue_s, (r->admitted > 0 ? r->admitted : now) - r->submitted);
    histogram_observe(&m->prompt_tokens, r->prompt_count);
    histogram_observe(&m->generated_tokens, r->output_count);
    histogram_observe(&m->max_tokens, r->limit - r->prompt_count);
    if (r->output_count == 0) return;
    histogram_observe(&m->prefill_tokens, r->prompt_count - r->reuse.tokens);
    histogram_observe(&m->inference_s, r->last_token - r->admitted);
    histogram_observe(&m->prefill_s, r->first_token - r->admitted);
    histogram_observe(&m->decode_s, r->last_token - r->first_token);
    if (r->output_count > 1)
        histogram_observe(&m->per_token_s, (r->last_token - r->first_token) / (r->output_count - 1));
}

void meters_read(const meters *m, hy_engine_measures *out)
{
    const struct {
        const histogram *from;
        hy_histogram *to;
    } all[] = {{&m->first_token_s, &out->first_token_s},
               {&m->between_tokens_s, &out->between_tokens_s},
               {&m->per_token_s, &out->per_token_s},
               {&m->whole_s, &out->whole_s},
               {&m->queue_s, &out->queue_s},
               {&m->inference_s, &out->inference_s},
               {&m->prefill_s, &out->prefill_s},
               {&m->decode_s, &out->decode_s},
               {&m->prompt_tokens, &out->prompt_tokens},
               {&m->generated_tokens, &out->generated_tokens},
               {&m->max_tokens, &out->max_tokens},
               {&m->prefill_tokens, &out->prefill_tokens},
               {&m->step_rows, &out->step_rows}};
    for (int i = 0; i < COUNT(all); i++) histogram_read(all[i].from, all[i].to);
    for (int i = 0; i < HY_FINISH_REASONS; i++)
        out->ended[i] = atomic_load(&((meters *)m)->ended[i]); /* atomic_load takes no const in C17 */
}
