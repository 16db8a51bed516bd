/* What is not there yet. */
#include "backend/cuda/cuda.h"

#include "base/error.h"

static void missing(ops_step *s, const char *what)
{
    if (s->error.status == HY_OK) error_set(&s->error, HY_UNSUPPORTED, "the cuda backend has no %s yet", what);
    s->rows.count = s->logit_rows = 0;
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
