#include "hub/names.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "hub/fetch.h"

static const char word_letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.";
static const char hex[] = "0123456789abcdef";

/* A part of a name: neither hidden nor upwards, since it becomes a part of a path. */
static bool word_valid(const char *text, size_t length)
{
    if (length == 0 || length > 96 || text[0] == '.' || text[0] == '-') return false;
    for (size_t i = 0; i < length; i++)
        if (!strchr(word_letters, text[i]) || (text[i] == '.' && i + 1 < length && text[i + 1] == '.')) return false;
    return true;
}

static bool revision_valid(const char *text)
{
    if (strlen(text) >= HUB_NAME) return false;
    for (const char *p = text;; p++) {
        size_t n = strcspn(p, "/");
        if (!word_valid(p, n)) return false;
        p += n;
        if (!*p) return true;
    }
}

/* Length of OWNER/NAME in front of the end or an @; 0: it is none. */
static size_t model_length(const char *text)
{
    size_t n = strcspn(text, "@"), owner = strcspn(text, "/");
    if (owner >= n || !word_valid(text, owner) || !word_valid(text + owner + 1, n - owner - 1)) return 0;
    return n;
}

bool hub_is_name(const char *text)
{
    size_t n = model_length(text);
    return n > 0 && (!text[n] || revision_valid(text + n + 1));
}

hy_status hub_name_read(const char *text, const char *revision, hub_name *out, hy_error *err)
{
    size_t n = model_length(text);
    if (n == 0) return error_at(err, HY_USAGE, text, "'%.200s' is no name of the hub: owner/name", text);
    if (!revision) revision = text[n] ? text + n + 1 : "main";
    if (!revision_valid(revision))
        return error_at(err, HY_USAGE, text, "'%.100s' is no revision: a branch, a tag or a commit", revision);
    memcpy(out->model, text, n);
    out->model[n] = 0;
    snprintf(out->revision, sizeof out->revision, "%s", revision);
    return HY_OK;
}

bool hub_is_commit(const char *revision)
{
    return strlen(revision) == 40 && strspn(revision, hex) == 40;
}

bool hub_is_hash(const char *text)
{
    size_t n = strlen(text);
    return (n == 40 || n == 64) && strspn(text, hex) == n;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n > m && !strcmp(text + n - m, end);
}

hub_part hub_part_of(const char *path)
{
    static const char *const small[] = {".json", ".jinja", ".tiktoken", ".model"};
    const char *name = strncmp(path, "dspark/", 7) ? path : path + 7;
    if (strchr(name, '/') || name[0] == '.') return HUB_NOT_NEEDED;
    if (ends_with(name, ".safetensors")) return HUB_WEIGHTS;
    if (!strcmp(name, "model.safetensors.index.json")) return HUB_INDEX;
    if (!strcmp(name, "merges.txt") || !strcmp(name, "vocab.txt")) return HUB_SMALL;
    for (size_t i = 0; i < sizeof small / sizeof *small; i++)
        if (ends_with(name, small[i])) return HUB_SMALL;
    return HUB_NOT_NEEDED;
}

bool hub_path_valid(const char *path)
{
    if (strlen(path) >= HUB_NAME) return false;
    for (const char *p = path;; p++) {
        size_t n = strcspn(p, "/");
        if (n == 0 || p[0] == '.') return false;
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)p[i] < 32 || p[i] == 127 || p[i] == '\\') return false;
        p += n;
        if (!*p) return true;
    }
}

bool hub_folder(const char *cache, const hub_name *name, const char *part, char out[HUB_PATH])
{
    size_t owner = strcspn(name->model, "/");
    int n = snprintf(out, HUB_PATH, "%s/models--%.*s--%s%s%s", cache, (int)owner, name->model, name->model + owner + 1,
                     *part ? "/" : "", part);
    return n > 0 && n < HUB_PATH - HUB_NAME; /* room for what comes behind it */
}

hy_status hub_make_folders(char *path, hy_error *err)
{
    for (char *p = path + 1; *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        int failed = mkdir(path, 0777) != 0 && errno != EEXIST ? errno : 0;
        hy_status status = HY_OK;
        if (failed)
            status = error_at(err, HY_FAILED, path, "cannot make the folder %.300s: %s", path, strerror(failed));
        *p = '/';
        if (status != HY_OK) return status;
    }
    return HY_OK;
}
