/* GET /health of a server whose engine's steps fail, over a model without weights. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/fake_engine.h"
#include "server/server.h"

static server *s;

static void *run(void *user)
{
    server_run(user);
    return NULL;
}

/* The status of a GET, from the first line of its answer. */
static int get(const char *path)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)server_port(s))};
    char text[256];
    int fd = socket(AF_INET, SOCK_STREAM, 0), status = 0;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    int length = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path);
    assert_int_equal(write(fd, text, (size_t)length), length);
    ssize_t n = read(fd, text, sizeof text - 1);
    assert_true(n > 0);
    text[n] = 0;
    assert_int_equal(sscanf(text, "HTTP/1.1 %d", &status), 1);
    close(fd);
    return status;
}

static hy_status ask(void)
{
    int32_t ids[] = {2, 3, 4};
    hy_request_options o = hy_request_defaults(model);
    o.prompt_ids = ids, o.prompt_count = 3, o.sampling.max_tokens = 2, o.sampling.ignore_eos = true;
    hy_request *r = NULL;
    assert_int_equal(hy_engine_submit(engine, &o, &r, NULL), HY_OK);
    hy_status status = hy_request_wait(r);
    hy_request_close(r);
    return status;
}

static void steps_that_fail(void **state)
{
    (void)state;
    pthread_t loop;
    server_options options = {.http = {.host = "127.0.0.1"}};
    hy_error err = {0};
    model = fake_model_open(true);
    model->path = model->name = (char *)"fake";
    engine_start((hy_engine_options){0});
    if (server_open(model, engine, &options, &s, &err) != HY_OK) fail_msg("%s", err.message);
    assert_int_equal(pthread_create(&loop, NULL, run, s), 0);
    assert_int_equal(get("/health"), 200);
    for (int i = 1; i <= 3; i++) { /* one failure is a request's trouble, three in a row are the engine's */
        atomic_store(&fake.fail_steps, 1);
        assert_int_equal(ask(), HY_FAILED);
        assert_int_equal(stats().failing_steps, i);
        assert_int_equal(get("/health"), i < 3 ? 200 : 503);
    }
    assert_int_equal(get("/ping"), 503);
    assert_int_equal(get("/version"), 200);
    assert_int_equal(ask(), HY_OK); /* it lives again */
    assert_int_equal(get("/health"), 200);
    raise(SIGTERM);
    pthread_join(loop, NULL);
    close_engine();
    server_close(s);
    fake_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_that_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
