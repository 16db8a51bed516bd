/* One engine over the fake model at a time, for tests of what it does with many requests. After cmocka.h. */
#ifndef TEST_FAKE_ENGINE_H
#define TEST_FAKE_ENGINE_H

#include "engine/fake_model.h"

static hy_model *model;
static hy_engine *engine;

static void engine_start(hy_engine_options o)
{
    hy_error err = {0};
    o.log_seconds = -1, o.stall_seconds = -1;
    if (hy_engine_open(model, &o, &engine, &err) != HY_OK) fail_msg("%s", err.message);
}

/* Nothing is left, and no row broke the contract. */
static void close_engine(void)
{
    hy_engine_stats s;
    hy_engine_describe(engine, &s);
    assert_int_equal(s.running + s.waiting, 0);
    assert_true(s.cache_usage == 0);
    assert_int_equal(atomic_load(&fake.bad_rows), 0);
    hy_engine_close(engine);
    engine = NULL;
}

static hy_engine_stats stats(void)
{
    hy_engine_stats s;
    hy_engine_describe(engine, &s);
    return s;
}

#endif
