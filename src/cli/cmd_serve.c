/* hayate serve: an engine behind HTTP, with the flags of `vllm serve`. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/source.h"
#include "cli/cli.h"
#include "cli/find_model.h"
#include "hub/fetch.h"
#include "cli/flags.h"
#include "cli/serve_log.h"
#include "cli/serve_setup.h"
#include "model/model.h"
#include "text/tokenizer.h"

/* Every client is a descriptor, and the usual soft limit of 1,024 is there for programs that use select(). */
static void allow_many_clients(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* What is left can take a while and nothing is lost without it but time: a further signal ends the process. */
static void let_signals_end(void)
{
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    log_line(HY_LOG_INFO, "Writing cache blocks to the folder; a further Ctrl-C or SIGTERM ends it.");
}

static int serve(serve_setup *setup, hy_model *model)
{
    hy_error err = {0};
    hy_engine *engine = NULL;
    server *s = NULL;
    hy_model_info info;
    hy_model_describe(model, &info);
    if (setup->cache_blocks)
        setup->engine.cache_bytes = (uint64_t)setup->cache_blocks * CACHE_BLOCK * info.cache_bytes_per_token;
    hy_status status = model_can_chat(model, &err);
    if (status == HY_OK) status = setup_sampling(setup, model, &err);
    speculation_settle(&setup->drafts, model, setup->engine.max_num_seqs, &setup->engine);
    serve_log_drafts(&setup->engine.speculation);
    double begin = clock_seconds();
    if (status == HY_OK) status = hy_engine_open(model, &setup->engine, &engine, &err);
    if (status == HY_OK) serve_log_engine(clock_seconds() - begin);
    if (status == HY_OK) {
        status = server_open(model, engine, &setup->server, &s, &err);
        setup->server.waiting = NULL; /* moved, whatever came of it */
    }
    if (status == HY_OK) {
        serve_log_started(s);
        server_run(s);
        if (setup->engine.offload_disk) let_signals_end();
    } else {
        cli_error(&err);
    }
    /* The engine first: its last events go to the server's queue. */
    hy_engine_close(engine);
    server_close(s);
    return cli_exit(status);
}

/* A tokenizer by a name of the hub. */
static hy_status find_tokenizer(serve_setup *setup, char path[FIND_PATH_SIZE], hy_error *err)
{
    const char *name = setup->model.tokenizer;
    if (!name || file_present(name)) return HY_OK;
    const find_options find = {.revision = setup->tokenizer_revision,
                               .token = setup->token,
                               .download_dir = setup->download_dir,
                               .no_token = setup->no_token,
                               .text_only = true};
    hy_status status = find_model(name, &find, path, err);
    if (status == HY_OK) setup->model.tokenizer = path;
    return status;
}

/* A path that leads to no model at all is told before anybody can connect; what else is wrong with it comes later. */
static hy_status check_path(const char *name, hy_error *err)
{
    char path[FIND_PATH_SIZE];
    model_source source = {0};
    if (!find_is_path(name)) return HY_OK;
    hy_status status = find_model(name, NULL, path, err);
    if (status == HY_OK) status = source_open(path, &source, err);
    source_close(&source);
    return status;
}

/* Whether the drafter's folder can be read, or is known not to be there, before anything is asked of the hub. */
static bool drafts_are_here(const serve_args *args, const serve_setup *setup)
{
    const char *drafter = setup->drafts.model;
    return setup->drafts.given && find_is_path(args->model) &&
           (strcmp(drafter, "on") == 0 || find_is_path(drafter) || !hub_is_name(drafter));
}

/* Drafts that the drafter cannot make are a slip of the hand too. */
static hy_status find_drafts_here(const serve_args *args, serve_setup *setup, hy_error *err)
{
    char path[FIND_PATH_SIZE];
    if (find_model(args->model, NULL, path, NULL) != HY_OK) return HY_OK; /* opening the model will tell */
    return speculation_find(&setup->drafts, path, &setup->model, &setup->engine, err);
}

/* So is a folder without a tokenizer: its weights would be read for minutes before. */
static hy_status check_tokenizer(const serve_setup *setup, const char *folder, hy_error *err)
{
    if (setup->model.tokenizer || !file_is_folder(folder) || text_tokenizer_present(folder)) return HY_OK;
    return error_at(err, HY_USAGE, folder,
                    "%s has no tokenizer: put its tokenizer.json there or name one with --tokenizer", folder);
}

/* A taken port or a missing certificate is told before minutes are spent on a download or on weights, and until there
 * is something to serve the address answers 503. */
static hy_status take_address(serve_setup *setup, hy_error *err)
{
    allow_many_clients();
    hy_status status = http_open(&setup->server.http, &setup->server.waiting, err);
    if (status == HY_OK)
        status =
            http_wait(setup->server.waiting, "The model is being loaded: come again when GET /health answers 200", err);
    if (status == HY_OK)
        log_line(HY_LOG_INFO, "Listening on %s, which answers 503 until the model is there.",
                 http_address(setup->server.waiting));
    return status;
}

static int open_and_serve(const serve_args *args, serve_setup *setup)
{
    hy_error err = {0};
    hy_model *model = NULL;
    char folder[FIND_PATH_SIZE], tokenizer[FIND_PATH_SIZE];
    setup->model.engine = &setup->engine;
    if (setup->server.served_name_count == 0) setup->server.given_name = args->model;
    /* The folder of a hub model has a commit's name. */
    if (setup->server.served_name_count == 0 && !find_is_path(args->model)) {
        snprintf(setup->hub_name, sizeof setup->hub_name, "%.*s", (int)strcspn(args->model, "@"), args->model);
        setup->names[0] = setup->hub_name, setup->server.served_name_count = 1;
    }
    const find_options find = {.revision = setup->revision,
                               .token = setup->token,
                               .download_dir = setup->download_dir,
                               .no_token = setup->no_token,
                               .dummy = !strcmp(setup->model.load_format, "dummy")};
    bool geometry = find.dummy && find_is_geometry(args->model);
    /* What is neither there nor a name is a slip of the hand: nothing but that is said. */
    if (!find_is_path(args->model) && !hub_is_name(args->model) && !geometry) {
        find_model(args->model, NULL, folder, &err);
        cli_error(&err);
        return cli_exit(err.status);
    }
    bool drafts_here = drafts_are_here(args, setup);
    hy_status status = drafts_here ? find_drafts_here(args, setup, &err) : HY_OK;
    if (status == HY_OK) {
        serve_log_flags(args, &setup->drafts);
        status = check_path(args->model, &err);
    }
    if (status == HY_OK) status = take_address(setup, &err);
    if (status == HY_OK) status = find_model(args->model, &find, folder, &err);
    if (status == HY_OK) status = find_tokenizer(setup, tokenizer, &err);
    if (status == HY_OK) status = check_tokenizer(setup, folder, &err);
    if (status == HY_OK && !drafts_here)
        status = speculation_find(&setup->drafts, folder, &setup->model, &setup->engine, &err);
    double begin = clock_seconds();
    if (status == HY_OK) status = hy_model_open(folder, &setup->model, &model, &err);
    if (status == HY_OK) serve_log_model(model, &setup->engine, clock_seconds() - begin);
    int code = cli_exit(status);
    if (status == HY_OK)
        code = serve(setup, model);
    else
        cli_error(&err);
    http_close(setup->server.waiting);
    hy_model_close(model);
    return code;
}

int cmd_serve(int argc, char **argv)
{
    serve_args args;
    serve_setup setup = {0};
    int code = serve_parse(argc, argv, &args);
    if (code < 0) code = setup_read(&args, &setup);
    if (code < 0) {
        flags_log_start(setup.log_level);
        code = open_and_serve(&args, &setup);
    }
    setup_free(&setup);
    serve_args_free(&args);
    return code;
}
