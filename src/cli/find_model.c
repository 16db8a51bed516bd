#include "cli/find_model.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/config.h"
#include "checkpoint/source.h"
#include "cli/cli.h"
#include "hub/fetch.h"

enum { TOKEN_SIZE = 4096 };

/* A folder is what it is, and so are files of weights; another file stands for the folder that it is in. */
static hy_status local(const char *name, char *out, hy_error *err)
{
    size_t n = strlen(name);
    if (n >= FIND_PATH_SIZE) return error_set(err, HY_USAGE, "a model path of %zu bytes is not possible", n);
    memcpy(out, name, n + 1);
    if (!file_exists(name) || source_is_files(name)) return HY_OK;
    char *slash = strrchr(out, '/');
    if (slash)
        slash[slash == out] = 0;
    else
        strcpy(out, ".");
    return HY_OK;
}

bool find_is_path(const char *name)
{
    return file_present(name) || source_is_files(name);
}

bool find_is_geometry(const char *name)
{
    config c;
    return !find_is_path(name) && config_known(name, &c);
}

static const char *variable(const char *name)
{
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

static bool variable_on(const char *name)
{
    static const char *const on[] = {"1", "true", "yes", "on"};
    const char *text = variable(name);
    for (int i = 0; text && i < 4; i++)
        if (!strcasecmp(text, on[i])) return true;
    return false;
}

/* The folder of the hub's things: HF_HOME, or huggingface in the user's cache. */
static void hub_home(char out[FIND_PATH_SIZE])
{
    const char *home = variable("HF_HOME"), *cache = variable("XDG_CACHE_HOME"), *user = variable("HOME");
    if (home)
        snprintf(out, FIND_PATH_SIZE, "%.3800s", home);
    else if (cache)
        snprintf(out, FIND_PATH_SIZE, "%.3800s/huggingface", cache);
    else
        snprintf(out, FIND_PATH_SIZE, "%.3800s/.cache/huggingface", user ? user : ".");
}

static void hub_cache(const find_options *o, char out[FIND_PATH_SIZE])
{
    const char *cache = o->download_dir ? o->download_dir : variable("HF_HUB_CACHE");
    if (!cache) cache = variable("HUGGINGFACE_HUB_CACHE");
    if (cache) {
        snprintf(out, FIND_PATH_SIZE, "%.3800s", cache);
        return;
    }
    hub_home(out);
    strcat(out, "/hub");
}

/* The token that is to be sent, or NULL. */
static const char *hub_token(const find_options *o, char room[TOKEN_SIZE])
{
    char path[FIND_PATH_SIZE], *text = NULL;
    size_t size;
    if (o->no_token) return NULL;
    if (o->token) return o->token;
    const char *token = variable("HF_TOKEN");
    if (!token) token = variable("HUGGING_FACE_HUB_TOKEN");
    if (token) return token;
    if (variable_on("HF_HUB_DISABLE_IMPLICIT_TOKEN")) return NULL;
    const char *saved = variable("HF_TOKEN_PATH");
    hub_home(path);
    strcat(path, "/token");
    if (!saved) saved = path;
    if (!file_exists(saved) || file_read(saved, TOKEN_SIZE - 1, &text, &size, NULL) != HY_OK) return NULL;
    text[strcspn(text, " \t\r\n")] = 0;
    strcpy(room, text);
    free(text);
    return *room ? room : NULL;
}

/* Signals end the download while it runs; afterwards they do what they did before. */
static hy_status download(const char *name, const hub_options *options, char *out, hy_error *err)
{
    struct sigaction interrupt, term;
    sigaction(SIGINT, NULL, &interrupt);
    sigaction(SIGTERM, NULL, &term);
    cli_catch_interrupt();
    hy_status status = hub_fetch(name, options, out, FIND_PATH_SIZE, err);
    sigaction(SIGINT, &interrupt, NULL);
    sigaction(SIGTERM, &term, NULL);
    return status;
}

hy_status find_model(const char *name, const find_options *options, char *out, hy_error *err)
{
    static const find_options none;
    const find_options *o = options ? options : &none;
    char cache[FIND_PATH_SIZE], room[TOKEN_SIZE];
    if (find_is_path(name)) return local(name, out, err);
    if (o->dummy && find_is_geometry(name)) return strcpy(out, name), HY_OK;
    if (find_is_geometry(name))
        return error_at(err, HY_BAD_MODEL, name,
                        "%.200s is the name of a shape, not a folder; give the folder of its checkpoint, or to bench "
                        "--load-format dummy "
                        "for random weights",
                        name);
    if (!hub_is_name(name))
        return error_at(err, HY_BAD_MODEL, name,
                        "%.200s is not a folder; give the folder of a checkpoint, its files, or owner/name of the hub",
                        name);
    hub_cache(o, cache);
    hub_options hub = {.endpoint = variable("HF_ENDPOINT"),
                       .cache = cache,
                       .revision = o->revision,
                       .token = hub_token(o, room),
                       .offline = variable_on("HF_HUB_OFFLINE") || variable_on("TRANSFORMERS_OFFLINE"),
                       .text_only = o->text_only || o->dummy,
                       .on_progress = cli_progress,
                       .stop = cli_interrupted()};
    hy_error why = {0};
    hy_status status = download(name, &hub, out, &why);
    if (status == HY_OK) return HY_OK;
    if (status == HY_CANCELLED || status == HY_NO_FIT) return error_at(err, status, name, "%s", why.message);
    return error_at(err, status, name, "%.150s is not a folder here, and as a name of the hub: %.340s", name,
                    why.message);
}
