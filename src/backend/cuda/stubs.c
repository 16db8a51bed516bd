/* What is not there yet. */
#include "backend/cuda/cuda.h"

#include "base/error.h"

static void missing(ops_step *s, const char *what)
{
    if (s->error.status == HY_OK) error_set(&s->error, HY_UNSUPPORTED, "the cuda backend has no %s yet", what);
    s->rows.count = s->logit_rows = 0;
}

/* draft */
void cuda_draft_tap(ops_step *s, int tap)
{
    (void)tap, missing(s, "draft_tap");
}
void cuda_draft_context(ops_step *s)
{
    missing(s, "draft_context");
}
void cuda_draft(ops_step *s, const ops_draft *sequences, int32_t count)
{
    (void)sequences, (void)count;
    missing(s, "draft");
}
hy_status cuda_draft_open(ops_step *s, hy_error *err)
{
    return (void)s, (void)err, HY_OK;
}
void cuda_draft_close(ops_step *s)
{
    (void)s;
}
void cuda_draft_read(ops_step *s, ops_tensor which, int32_t first, int32_t rows, float *out)
{
    (void)which, (void)first, (void)rows, (void)out;
    missing(s, "drafter");
}

/* sample_rows */
hy_status cuda_sampling_open(ops_step *s, hy_error *err)
{
    return (void)s, (void)err, HY_OK;
}
void cuda_sampling_close(ops_step *s)
{
    (void)s;
}
bool cuda_sample_on_gpu(const ops_step *s, const ops_sample *row)
{
    return (void)s, (void)row, false;
}
void cuda_sample_rows(ops_step *s, const ops_sample *const *rows, int32_t count, int32_t *ids)
{
    (void)s, (void)rows, (void)count, (void)ids;
}
