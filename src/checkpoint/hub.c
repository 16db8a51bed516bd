#include "checkpoint/hub.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"

enum { PATH_SIZE = 4096, REVISION_SIZE = 129 };

static bool has_config(const char *folder)
{
    char path[PATH_SIZE];
    return file_join(folder, "config.json", path, sizeof path, NULL) == HY_OK && file_exists(path);
}

/* A revision becomes part of a path: letters, digits, '-', '_' and '.', the last not in front. */
static bool revision_valid(const char *s)
{
    static const char allowed[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.";
    return *s && *s != '.' && strlen(s) < REVISION_SIZE && s[strspn(s, allowed)] == 0;
}

/* refs/main into out; HY_OK with "" when there is no such file. */
static hy_status read_main(const char *root, char out[REVISION_SIZE], hy_error *err)
{
    char path[PATH_SIZE], *text = NULL;
    size_t length;
    out[0] = 0;
    hy_status status = file_join(root, "refs/main", path, sizeof path, err);
    if (status != HY_OK || !file_present(path)) return status;
    status = file_read(path, 4096, &text, &length, err);
    if (status != HY_OK) return status;
    text[strcspn(text, " \t\r\n")] = 0;
    if (revision_valid(text))
        strcpy(out, text);
    else
        status = error_at(err, HY_BAD_MODEL, path, "%.200s holds no revision but \"%.80s\"", path, text);
    free(text);
    return status;
}

/* The only snapshot that holds a config. */
static hy_status only_snapshot(const char *snapshots, char out[REVISION_SIZE], hy_error *err)
{
    DIR *folder = opendir(snapshots);
    size_t found = 0;
    char path[PATH_SIZE];
    for (struct dirent *e; folder && (e = readdir(folder));) {
        if (!revision_valid(e->d_name) || file_join(snapshots, e->d_name, path, sizeof path, NULL) != HY_OK) continue;
        if (!has_config(path)) continue;
        snprintf(out, REVISION_SIZE, "%.*s", REVISION_SIZE - 1, e->d_name);
        found++;
    }
    if (folder) closedir(folder);
    if (found == 1) return HY_OK;
    return error_at(err, HY_BAD_MODEL, snapshots,
                    found ? "%.200s has %zu snapshots and refs/main names none; give the folder of one"
                          : "%.200s has no snapshot with a config.json (%zu); download the model again",
                    snapshots, found);
}

static hy_status resolve_cache(const char *root, const char *snapshots, char *out, size_t size, hy_error *err)
{
    char revision[REVISION_SIZE];
    hy_status status = read_main(root, revision, err);
    if (status == HY_OK && !revision[0]) status = only_snapshot(snapshots, revision, err);
    if (status == HY_OK) status = file_join(snapshots, revision, out, size, err);
    if (status == HY_OK && !has_config(out))
        status =
            error_at(err, HY_BAD_MODEL, snapshots,
                     "the snapshot %s of %.200s has no config.json; download the model again", revision, snapshots);
    return status;
}

hy_status hub_resolve(const char *path, char *out, size_t size, hy_error *err)
{
    char inner[PATH_SIZE];
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    if (n == 0 || n >= size || n + 16 >= sizeof inner)
        return error_set(err, HY_USAGE, "a model path of %zu bytes is not possible", n);
    char trimmed[PATH_SIZE];
    memcpy(trimmed, path, n);
    trimmed[n] = 0;
    if (!file_is_folder(trimmed))
        return error_at(err, HY_BAD_MODEL, trimmed, "%.200s is not a folder; give the folder of a checkpoint", trimmed);
    if (has_config(trimmed)) {
        memcpy(out, trimmed, n + 1);
        return HY_OK;
    }
    snprintf(inner, sizeof inner, "%.*s/snapshots", (int)n, trimmed);
    if (file_is_folder(inner)) return resolve_cache(trimmed, inner, out, size, err);
    const char *slash = strrchr(trimmed, '/');
    if (strcmp(slash ? slash + 1 : trimmed, "snapshots") == 0) {
        snprintf(inner, sizeof inner, "%.*s/..", (int)n, trimmed);
        return resolve_cache(inner, trimmed, out, size, err);
    }
    return error_at(err, HY_BAD_MODEL, trimmed, "%.200s has no config.json; give the folder of a checkpoint", trimmed);
}
