/*
 * RMSNorm with a gain stored around zero, and rotary embedding of the first dims of a head.
 * Formulas: transformers, models/minimax_m3_vl (MiniMaxM3VLRMSNorm, apply_rotary_pos_emb).
 */
#include "backend/reference/reference.h"

#include <math.h>

/* The squares are summed in sixteen interleaved chains, folded pairwise: one chain would lose a bit more than the whole
 * rest of the layer, and a shared error of a row is what tips values over the borders of a quantiser. */
static void rms_norm(const float *x, const float *gain, float base, int n, float eps, float *out)
{
    float lane[REFERENCE_TILE] = {0};
    for (int i = 0; i < n; i++) lane[i % REFERENCE_TILE] += x[i] * x[i];
    for (int step = 1; step < REFERENCE_TILE; step *= 2)
        for (int i = 0; i < REFERENCE_TILE; i += 2 * step) lane[i] += lane[i + step];
    float inverse = 1 / sqrtf(lane[0] / (float)n + eps);
    for (int i = 0; i < n; i++) out[i] = x[i] * inverse * (base + gain[i]);
}

void reference_rms_norm(const float *x, const float *gain, int n, float eps, float *out)
{
    rms_norm(x, gain, 1, n, eps, out);
}

void reference_rms_norm_plain(const float *x, const float *gain, int n, float eps, float *out)
{
    rms_norm(x, gain, 0, n, eps, out);
}

typedef struct norm_work {
    const ops_step *step;
    const float *x; /* [T, hidden] */
    const weight *gain;
    float *out; /* [T, hidden] */
} norm_work;

static void norm_rows(void *arg, int64_t first, int64_t last, int worker)
{
    const norm_work *work = arg;
    const ops_model *m = work->step->backend->model;
    float *gain = reference_scratch(work->step, worker); /* [hidden] */
    weight_row(work->gain, 0, gain);
    for (int64_t t = first; t < last; t++)
        reference_rms_norm(work->x + t * m->hidden, gain, m->hidden, m->norm_eps, work->out + t * m->hidden);
}

void reference_rms_norm_rows(const ops_step *step, const float *x, const weight *gain, float *out)
{
    norm_work work = {step, x, gain, out};
    reference_parallel(step, step->rows.count, norm_rows, &work);
}

/* The power is formed in double and rounded, then divided in fp32: the table of the fp32 formula, correctly rounded. */
void reference_rotary_frequencies(float theta, int rotary_dim, float *frequency)
{
    for (int j = 0; j < rotary_dim / 2; j++)
        frequency[j] = 1.0f / (float)pow((double)theta, (double)((float)(2 * j) / (float)rotary_dim));
}

/* The angle is an fp32 product: at positions of a million a double one gives visibly different low pairs. */
void reference_rotary_tables(ops_step *step)
{
    int pairs = step->backend->model->rotary_dim / 2;
    for (int64_t t = 0; t < step->rows.count; t++)
        for (int j = 0; j < pairs; j++) {
            float angle = (float)step->rows.position[t] * step->backend->frequency[j];
            step->cosine[t * pairs + j] = (float)cos((double)angle);
            step->sine[t * pairs + j] = (float)sin((double)angle);
        }
}

void reference_rotate(float *x, const float *cosine, const float *sine, int rotary_dim)
{
    int half = rotary_dim / 2;
    for (int j = 0; j < half; j++) {
        float a = x[j], b = x[j + half];
        x[j] = a * cosine[j] - b * sine[j];
        x[j + half] = b * cosine[j] + a * sine[j];
    }
}
