#include "checkpoint/source.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "checkpoint/hub.h"

enum { MOST_FILES = 4096 };

typedef enum kind { WEIGHTS, INDEX, CONFIG, TOKENIZER, BESIDE, UNKNOWN } kind;

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n > m && strcmp(s + n - m, end) == 0;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static kind kind_of(const char *path)
{
    static const char *const beside[] = {"generation_config.json", "tokenizer_config.json",   "chat_template.jinja",
                                         "chat_template.json",     "special_tokens_map.json", "added_tokens.json"};
    const char *name = base_name(path);
    if (ends_with(name, ".safetensors")) return WEIGHTS;
    if (ends_with(name, ".safetensors.index.json")) return INDEX;
    if (strcmp(name, "config.json") == 0) return CONFIG;
    if (strcmp(name, "tokenizer.json") == 0 || ends_with(name, ".tiktoken")) return TOKENIZER;
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++)
        if (strcmp(name, beside[i]) == 0) return BESIDE;
    return UNKNOWN;
}

/* NAME-00002-of-00003.safetensors */
static bool is_shard(const char *path)
{
    static const char shape[] = "-#####-of-#####.safetensors";
    size_t n = strlen(path), m = sizeof shape - 1;
    if (n <= m) return false;
    for (size_t i = 0; i < m; i++) {
        char c = path[n - m + i];
        if (shape[i] == '#' ? !isdigit((unsigned char)c) : c != shape[i]) return false;
    }
    return true;
}

bool source_is_files(const char *name)
{
    if (file_is_folder(name)) return false;
    kind k = kind_of(name);
    return k == WEIGHTS || k == INDEX || (!file_present(name) && strchr(name, ','));
}

/* The folder of a file, links of the folder resolved, so that it has a name. */
static hy_status folder_of(const char *path, char out[SOURCE_PATH], hy_error *err)
{
    char parent[SOURCE_PATH];
    snprintf(parent, sizeof parent, "%.*s", (int)(base_name(path) - path), path);
    char *real = realpath(parent[0] ? parent : ".", NULL);
    hy_status status = HY_OK;
    if (!real || strlen(real) >= SOURCE_PATH)
        status = error_at(err, HY_BAD_MODEL, path, "the folder of %.200s cannot be found", path);
    else
        strcpy(out, real);
    free(real);
    return status;
}

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* A list being read. */
typedef struct reader {
    char **parts; /* [count] borrowed from the copy of the name */
    size_t count;
    const char *first, *config, *tokenizer, *index; /* among the parts; first: weights or an index */
} reader;

static hy_status take_one(const char **slot, const char *what, const char *path, hy_error *err)
{
    if (*slot) return error_at(err, HY_BAD_MODEL, path, "the list names two %s: %.160s and %.160s", what, *slot, path);
    *slot = path;
    return HY_OK;
}

static hy_status take_part(reader *r, model_source *out, char *path, hy_error *err)
{
    if (!*path) return error_at(err, HY_BAD_MODEL, "MODEL", "the list of files has an empty name between its commas");
    if (!file_exists(path)) {
        const char *why = file_is_folder(path) ? "is a folder: a list names files"
                          : file_present(path) ? "is no regular file"
                                               : "is not there";
        return error_at(err, HY_BAD_MODEL, path, "%.200s %s", path, why);
    }
    if (strlen(path) + 2 >= SOURCE_PATH)
        return error_at(err, HY_USAGE, path, "a path of %zu bytes is not possible", strlen(path));
    r->parts[r->count++] = path;
    kind k = kind_of(path);
    if ((k == WEIGHTS || k == INDEX) && !r->first) r->first = path;
    switch (k) {
    case WEIGHTS: {
        for (size_t i = 0; i < out->count; i++)
            if (same_file(out->files[i], path))
                return error_at(err, HY_BAD_MODEL, path, "%.160s is listed twice%s%.160s", path,
                                strcmp(out->files[i], path) ? ", also as " : "",
                                strcmp(out->files[i], path) ? out->files[i] : "");
        /* With a slash in it: names without one are those of a folder's files. */
        size_t n = strlen(path);
        char *copy = malloc(n + 3);
        if (!copy) return error_memory(err, "file names", n);
        snprintf(copy, n + 3, "%s%s", strchr(path, '/') ? "" : "./", path);
        out->files[out->count++] = copy;
        return HY_OK;
    }
    case INDEX: return take_one(&r->index, "indexes", path, err);
    case CONFIG: return take_one(&r->config, "config.json", path, err);
    case TOKENIZER: return take_one(&r->tokenizer, "tokenizers", path, err);
    case BESIDE: return HY_OK; /* once the folder is known */
    case UNKNOWN: break;
    }
    return error_at(err, HY_BAD_MODEL, path,
                    "%.200s is no file of a model: .safetensors files, their index, config.json and tokenizer.json are",
                    path);
}

/* What has its place beside config.json is there, and no other file of its name is meant. */
static hy_status check_beside(const reader *r, const model_source *s, hy_error *err)
{
    char expected[SOURCE_PATH];
    for (size_t i = 0; i < r->count; i++) {
        if (kind_of(r->parts[i]) != BESIDE) continue;
        hy_status status = file_join(s->folder, base_name(r->parts[i]), expected, sizeof expected, err);
        if (status != HY_OK) return status;
        if (!same_file(expected, r->parts[i]))
            return error_at(err, HY_BAD_MODEL, r->parts[i],
                            "%.200s is read beside config.json only, which is in %.200s", r->parts[i], s->folder);
    }
    return HY_OK;
}

static hy_status read_list(char *text, reader *r, model_source *out, hy_error *err)
{
    hy_status status = HY_OK;
    for (char *at = text, *next; at && status == HY_OK; at = next) {
        char *comma = strchr(at, ',');
        next = comma ? comma + 1 : NULL;
        if (comma) *comma = 0;
        while (*at == ' ') at++;
        for (char *end = at + strlen(at); end > at && end[-1] == ' ';) *--end = 0;
        status = take_part(r, out, at, err);
    }
    if (status == HY_OK && !r->first)
        status = error_at(err, HY_BAD_MODEL, "MODEL",
                          "the list of files names no weights: give .safetensors files or their index");
    return status;
}

static hy_status place(const reader *r, model_source *out, hy_error *err)
{
    const char *config = r->config ? r->config : r->first;
    hy_status status = folder_of(config, out->folder, err);
    if (r->tokenizer) snprintf(out->tokenizer, sizeof out->tokenizer, "%s", r->tokenizer);
    if (r->index) snprintf(out->index, sizeof out->index, "%s%s", strchr(r->index, '/') ? "" : "./", r->index);
    if (status == HY_OK) status = check_beside(r, out, err);
    if (status != HY_OK) return status;
    char path[SOURCE_PATH];
    status = file_join(out->folder, "config.json", path, sizeof path, err);
    if (status == HY_OK && !file_present(path))
        status = error_at(err, HY_BAD_MODEL, out->folder,
                          "there is no config.json beside %.200s: list the one that belongs to it", config);
    return status;
}

static hy_status open_files(const char *name, model_source *out, hy_error *err)
{
    size_t parts = 1;
    for (const char *c = name; *c; c++) parts += *c == ',';
    if (parts > MOST_FILES)
        return error_set(err, HY_BAD_MODEL, "more than %d files of a model are not supported", MOST_FILES);
    char *text = memory_string(name, strlen(name));
    reader r = {.parts = calloc(parts, sizeof *r.parts)};
    out->files = calloc(parts, sizeof *out->files);
    hy_status status = text && r.parts && out->files ? HY_OK : error_memory(err, "file names", parts * sizeof *r.parts);
    if (status == HY_OK && !file_present(name)) {
        status = read_list(text, &r, out, err);
    } else if (status == HY_OK) { /* one file, whose name may have commas */
        status = take_part(&r, out, text, err);
    }
    if (status == HY_OK) status = place(&r, out, err);
    free(r.parts);
    free(text);
    return status;
}

hy_status source_open(const char *name, model_source *out, hy_error *err)
{
    *out = (model_source){0};
    hy_status status;
    if (file_exists(name) && is_shard(name)) {
        char folder[SOURCE_PATH];
        status = folder_of(name, folder, err);
        if (status == HY_OK) status = hub_resolve(folder, out->folder, sizeof out->folder, err);
    } else if (source_is_files(name)) {
        status = open_files(name, out, err);
    } else {
        status = hub_resolve(name, out->folder, sizeof out->folder, err);
    }
    if (status != HY_OK) source_close(out);
    return status;
}

void source_close(model_source *s)
{
    for (size_t i = 0; i < s->count; i++) free(s->files[i]);
    free(s->files);
    s->files = NULL, s->count = 0;
}
