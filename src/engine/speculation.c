/* What an engine is told about drafts, against what its model and backend can do. */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "engine/engine_parts.h"

static const char *const methods[] = {"coupled", "standard", "block", "synthetic"}; /* as ops_verify_method */

static bool method_of(const char *name, ops_verify_method *out)
{
    *out = VERIFY_COUPLED;
    if (!name) return true;
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        if (strcmp(name, methods[i]) != 0) continue;
        *out = (ops_verify_method)i;
        return true;
    }
    return false;
}

static hy_status check(const hy_engine *e, const hy_speculation *s, hy_error *err)
{
    const ops_drafter *d = model_ops_model(e->model)->drafter;
    if (s->drafts < 0 || s->drafts > HY_MAX_DRAFTS)
        return error_at(err, HY_USAGE, "drafts", "drafts must be 0 .. %d, not %d", HY_MAX_DRAFTS, s->drafts);
    if (!d) return error_at(err, HY_USAGE, "drafts", "drafts need a drafter, and the model was opened without one");
    if (!e->ops->draft)
        return error_at(err, HY_UNSUPPORTED, "drafts", "the backend %s cannot make drafts", e->ops->name);
    if (s->drafts > d->block)
        return error_at(err, HY_USAGE, "drafts",
                        "this drafter was made for blocks of %d: drafts must be at most that, not %d", d->block,
                        s->drafts);
    if (!(s->confidence >= 0 && s->confidence < 1))
        return error_at(err, HY_USAGE, "confidence", "confidence must be 0 .. 1, not %g", (double)s->confidence);
    if (s->confidence > 0 && d->confidence.format == WEIGHT_NONE)
        return error_at(err, HY_USAGE, "confidence", "this drafter has no confidence head");
    for (size_t i = 0; i < s->by_batch_count; i++)
        if (s->by_batch[i] < 0 || s->by_batch[i] > s->drafts)
            return error_at(err, HY_USAGE, "by_batch", "drafts by batch must be 0 .. %d, not %d", s->drafts,
                            s->by_batch[i]);
    return HY_OK;
}

/* Unconditional rates into those that hold once the drafts before were accepted. */
static hy_status take_rates(hy_engine *e, const hy_speculation *s, hy_error *err)
{
    if (!s->rates)
        return error_at(err, HY_USAGE, "rates", "synthetic acceptance needs the rates of %d drafts", s->drafts);
    float before = 1;
    for (int i = 0; i < s->drafts; i++) {
        float rate = s->rates[i];
        if (!(rate >= 0 && rate <= before))
            return error_at(err, HY_USAGE, "rates", "rates must be 0 .. 1 and not rise: rate %d is %g behind %g", i + 1,
                            (double)rate, (double)before);
        e->rates[i] = before > 0 ? rate / before : 0;
        before = rate;
    }
    return HY_OK;
}

hy_status speculation_open(hy_engine *e, const hy_speculation *s, hy_error *err)
{
    ops_verify_method method;
    if (!method_of(s->method, &method))
        return error_at(err, HY_USAGE, "method", "the method is coupled, standard, block or synthetic, not \"%s\"",
                        s->method);
    if (s->drafts == 0) return HY_OK;
    e->method = method;
    hy_status status = check(e, s, err);
    if (status == HY_OK && e->method == VERIFY_SYNTHETIC) status = take_rates(e, s, err);
    if (status != HY_OK) return status;
    e->drafts_most = s->drafts, e->greedy_drafts = s->greedy_drafts, e->confidence = s->confidence;
    if (!s->by_batch || s->by_batch_count == 0) return HY_OK;
    e->by_batch = memory_zeroed(s->by_batch_count, sizeof *e->by_batch);
    if (!e->by_batch) return error_memory(err, "drafts by batch", s->by_batch_count * sizeof *e->by_batch);
    e->by_batch_count = (int32_t)s->by_batch_count;
    memcpy(e->by_batch, s->by_batch, s->by_batch_count * sizeof *e->by_batch);
    return HY_OK;
}

hy_status speculation_choose(const hy_engine *e, const hy_request_options *o, int32_t *drafts,
                             ops_verify_method *method, hy_error *err)
{
    *drafts = o->drafts < 0 ? 0 : o->drafts == 0 || o->drafts > e->drafts_most ? e->drafts_most : o->drafts;
    *method = e->method;
    if (e->method == VERIFY_SYNTHETIC && o->sampling.grammar) *drafts = 0; /* what is accepted need not be allowed */
    if (!o->draft_method) return HY_OK;
    if (!method_of(o->draft_method, method))
        return error_at(err, HY_BAD_INPUT, "draft_method",
                        "the method is coupled, standard, block or synthetic, not \"%s\"", o->draft_method);
    if (*method == VERIFY_COUPLED || *method == e->method) return HY_OK;
    if (e->drafts_most == 0)
        return error_at(err, HY_BAD_INPUT, "draft_method",
                        "%s is for engines that were opened with drafts, and this one was not", methods[*method]);
    if (*method == VERIFY_SYNTHETIC)
        return error_at(err, HY_BAD_INPUT, "draft_method",
                        "synthetic acceptance is for engines that were opened with it");
    if (e->method == VERIFY_COUPLED && !e->greedy_drafts)
        return error_at(err, HY_BAD_INPUT, "draft_method",
                        "%s needs the laws of drafts, which this engine does not keep: it was opened with coupled",
                        methods[*method]);
    return HY_OK;
}
