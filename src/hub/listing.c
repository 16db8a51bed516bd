#include "hub/listing.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { MOST_FILES = 100000 };

static hy_status no_answer(hy_error *err, const char *what)
{
    return error_set(err, HY_FAILED, "the hub's answer about the model is not understood: %s", what);
}

static hy_status read_file(const json_t *entry, hub_listing *out, hy_error *err)
{
    const char *path = json_string_value(json_object_get(entry, "rfilename"));
    if (!path) return no_answer(err, "a file without a name");
    hub_part part = hub_part_of(path);
    if (part == HUB_NOT_NEEDED) return HY_OK;
    if (!hub_path_valid(path)) return no_answer(err, "a file name that is none");
    const json_t *lfs = json_object_get(entry, "lfs"), *size = json_object_get(lfs ? lfs : entry, "size");
    const char *hash = json_string_value(json_object_get(lfs ? lfs : entry, lfs ? "sha256" : "blobId"));
    if (!hash && lfs) hash = json_string_value(json_object_get(lfs, "oid"));
    if (!hash || !hub_is_hash(hash) || strlen(hash) != (lfs ? 64 : 40) || !json_is_integer(size) ||
        json_integer_value(size) < 0)
        return error_set(err, HY_FAILED, "the hub does not say size and hash of %.200s", path);
    hub_file *f = &out->files[out->count++];
    snprintf(f->path, sizeof f->path, "%s", path);
    snprintf(f->hash, sizeof f->hash, "%s", hash);
    f->size = json_integer_value(size), f->part = part;
    return HY_OK;
}

static int by_part(const void *a, const void *b)
{
    const hub_file *x = a, *y = b;
    bool u = x->part == HUB_WEIGHTS, v = y->part == HUB_WEIGHTS;
    return u != v ? (u ? 1 : -1) : strcmp(x->path, y->path);
}

hy_status listing_read(const char *json, size_t length, hub_listing *out, hy_error *err)
{
    json_error_t e;
    json_t *root = json_loadb(json, length, 0, &e), *files = json_object_get(root, "siblings"), *entry;
    const char *commit = json_string_value(json_object_get(root, "sha"));
    hy_status status = HY_OK;
    size_t i;
    *out = (hub_listing){0};
    if (!commit || !hub_is_commit(commit))
        status = no_answer(err, "no commit in it");
    else if (!json_is_array(files) || json_array_size(files) > MOST_FILES)
        status = no_answer(err, "no list of files in it");
    if (status == HY_OK) {
        snprintf(out->commit, sizeof out->commit, "%s", commit);
        out->files = calloc(json_array_size(files) + 1, sizeof *out->files);
        if (!out->files) status = error_memory(err, "a list of files", json_array_size(files) * sizeof *out->files);
        json_array_foreach(files, i, entry)
        {
            if (status == HY_OK) status = read_file(entry, out, err);
        }
    }
    json_decref(root);
    if (status != HY_OK) {
        listing_free(out);
        return status;
    }
    qsort(out->files, out->count, sizeof *out->files, by_part);
    return HY_OK;
}

static bool in_folder(const hub_file *f, const char *folder)
{
    size_t n = strlen(folder);
    return f->part == HUB_WEIGHTS && !strncmp(f->path, folder, n) && !strchr(f->path + n, '/');
}

/* Names of files in an index's weight_map as an object name -> true; NULL: it is no index. */
static json_t *indexed(const char *index)
{
    json_t *root = json_loads(index, 0, NULL), *map = json_object_get(root, "weight_map"), *names = NULL, *value;
    const char *key;
    if (json_is_object(map)) names = json_object();
    json_object_foreach(map, key, value)
    {
        if (json_is_string(value)) json_object_set_new(names, json_string_value(value), json_true());
    }
    json_decref(root);
    return names;
}

hy_status listing_keep(hub_listing *l, const char *folder, const char *index, hy_error *err)
{
    json_t *names = index ? indexed(index) : NULL, *value;
    size_t kept = 0, n = strlen(folder);
    const char *key;
    if (index && !names) return error_set(err, HY_BAD_MODEL, "%smodel.safetensors.index.json is no index", folder);
    bool whole = false;
    for (size_t i = 0; i < l->count; i++)
        whole = whole || (in_folder(&l->files[i], folder) && !strcmp(l->files[i].path + n, "model.safetensors"));
    for (size_t i = 0; i < l->count; i++) {
        hub_file *f = &l->files[i];
        bool keep = !in_folder(f, folder) || (names ? json_object_del(names, f->path + n) == 0
                                                    : !whole || !strcmp(f->path + n, "model.safetensors"));
        if (keep && kept != i) l->files[kept] = *f;
        kept += keep;
    }
    l->count = kept;
    hy_status status = HY_OK;
    json_object_foreach(names, key, value)
    {
        status = error_set(err, HY_BAD_MODEL,
                           "%smodel.safetensors.index.json names %.100s, which the hub does not have", folder, key);
        break;
    }
    json_decref(names);
    return status;
}

void listing_free(hub_listing *listing)
{
    free(listing->files);
    *listing = (hub_listing){0};
}
