#include "hub/fetch.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "hub/blob.h"
#include "hub/get.h"

enum { LISTING_LIMIT = 64 << 20, INDEX_LIMIT = 256 << 20, LISTING_TRIES = 4 };

static const char hub_address[] = "https://huggingface.co";

/* ---- What is in the cache -----------------------------------------------------------------------------------------
 */

static bool has_file(const char *folder, const char *name)
{
    char path[HUB_PATH];
    return file_join(folder, name, path, sizeof path, NULL) == HY_OK && file_exists(path);
}

/* Whether all files that an index of the folder names are there; without an index, whether model.safetensors is. */
static bool weights_complete(const char *folder, const char *inner)
{
    char path[HUB_PATH];
    snprintf(path, sizeof path, "%.3800s/%smodel.safetensors.index.json", folder, inner);
    if (!file_exists(path)) {
        char name[64];
        snprintf(name, sizeof name, "%smodel.safetensors", inner);
        return has_file(folder, name);
    }
    json_t *root = json_load_file(path, 0, NULL), *map = json_object_get(root, "weight_map"), *value;
    const char *key;
    bool complete = json_is_object(map);
    json_object_foreach(map, key, value)
    {
        char name[HUB_NAME + 16];
        const char *file = json_string_value(value);
        snprintf(name, sizeof name, "%s%.250s", inner, file ? file : "");
        if (complete && (!file || !has_file(folder, name))) complete = false;
    }
    json_decref(root);
    return complete;
}

static bool snapshot_complete(const char *folder, bool text_only)
{
    if (!has_file(folder, "config.json")) return false;
    if (text_only) return has_file(folder, "tokenizer.json") || has_file(folder, "tokenizer.tiktoken");
    if (has_file(folder, "dspark/config.json") && !weights_complete(folder, "dspark/")) return false;
    return weights_complete(folder, "");
}

/* The commit that the cache has under a revision; false: none. */
static bool known_commit(const char *cache, const hub_name *name, char commit[41])
{
    char path[HUB_PATH], part[HUB_NAME + 8], *text = NULL;
    size_t size;
    if (hub_is_commit(name->revision)) {
        strcpy(commit, name->revision);
        return true;
    }
    snprintf(part, sizeof part, "refs/%s", name->revision);
    if (!hub_folder(cache, name, part, path) || !file_exists(path) ||
        file_read(path, 4096, &text, &size, NULL) != HY_OK)
        return false;
    text[strcspn(text, " \t\r\n")] = 0;
    bool valid = hub_is_commit(text);
    if (valid) strcpy(commit, text);
    free(text);
    return valid;
}

static bool snapshot_folder(const char *cache, const hub_name *name, const char *commit, char out[HUB_PATH])
{
    char part[64];
    snprintf(part, sizeof part, "snapshots/%s", commit);
    return hub_folder(cache, name, part, out);
}

/* ---- What the hub says ------------------------------------------------------------------------------------------- */

static bool any_answer(void *user, const get_reply *reply)
{
    (void)user, (void)reply;
    return true;
}

static bool to_buffer(void *user, const void *data, size_t size)
{
    buffer *b = user;
    if (b->length + size > LISTING_LIMIT) return false;
    buffer_append(b, data, size);
    return buffer_ok(b);
}

static hy_status ask(const blob_place *place, const char *url, buffer *body, hy_error *err)
{
    get_handle *handle = get_open();
    get_request request = {.url = url,
                           .token = place->options->token,
                           .begin = any_answer,
                           .piece = to_buffer,
                           .user = body,
                           .stop = place->options->stop};
    hy_status status = handle ? HY_OK : error_memory(err, "a connection", 1);
    for (int tries = 1; handle; tries++) {
        get_reply reply;
        buffer_clear(body);
        status = get_run(handle, &request, &reply, err);
        bool again = status == HY_FAILED || (status == HY_OK && blob_again(reply.status));
        if (again && tries < LISTING_TRIES && blob_pause(tries, reply.retry_after, request.stop)) continue;
        if (status == HY_OK && reply.status != 200) status = blob_refused(place, reply.status, reply.error_code, err);
        break;
    }
    get_close(handle);
    return status;
}

static hy_status list(const blob_place *place, hub_listing *listing, hy_error *err)
{
    char url[HUB_PATH], *revision = get_escape(place->name->revision);
    buffer body = {0};
    int n = revision ? snprintf(url, sizeof url, "%s/api/models/%s/revision/%s?blobs=true", place->endpoint,
                                place->name->model, revision)
                     : -1;
    hy_status status = n > 0 && n < (int)sizeof url ? ask(place, url, &body, err)
                                                    : error_set(err, HY_USAGE, "the hub's address is too long");
    if (status == HY_OK) status = listing_read(body.data ? body.data : "", body.length, listing, err);
    buffer_free(&body);
    free(revision);
    return status;
}

/* ---- Download ---------------------------------------------------------------------------------------------------- */

/* Room on the disk for what is missing, before anything is written. */
static hy_status check_room(const blob_place *place, const hub_file *files, size_t count, hy_error *err)
{
    struct statvfs disk;
    uint64_t missing = 0;
    char need[32], free_text[32];
    for (size_t i = 0; i < count; i++) missing += (uint64_t)blob_missing(place, &files[i]);
    if (missing == 0 || statvfs(place->options->cache, &disk) != 0) return HY_OK;
    uint64_t room = (uint64_t)disk.f_bavail * disk.f_frsize;
    if (missing <= room) return HY_OK;
    return error_at(err, HY_NO_FIT, place->options->cache, "%s needs %s more on the disk of %.200s, where %s are free",
                    place->name->model, memory_text(missing, need), place->options->cache,
                    memory_text(room, free_text));
}

/* The text of an index among the first `count` files, which have come; NULL: there is none. free() it. */
static hy_status index_text(const blob_place *place, const hub_listing *l, const char *folder, char **text,
                            hy_error *err)
{
    char name[64], path[HUB_PATH];
    size_t size;
    snprintf(name, sizeof name, "%smodel.safetensors.index.json", folder);
    for (size_t i = 0; i < l->count; i++)
        if (!strcmp(l->files[i].path, name) && blob_path(place, &l->files[i], path))
            return file_read(path, INDEX_LIMIT, text, &size, err);
    return HY_OK;
}

static hy_status keep_needed(const blob_place *place, hub_listing *l, hy_error *err)
{
    static const char *const folders[] = {"", "dspark/"};
    hy_status status = HY_OK;
    for (int i = 0; i < 2 && status == HY_OK; i++) {
        char *text = NULL;
        status = index_text(place, l, folders[i], &text, err);
        if (status == HY_OK) status = listing_keep(l, folders[i], text, err);
        free(text);
    }
    return status;
}

/* A link SNAPSHOT/path -> ../../blobs/HASH, which replaces what was there. */
static hy_status link_file(const char *snapshot, const hub_file *file, hy_error *err)
{
    char path[HUB_PATH + HUB_NAME], made[HUB_PATH + HUB_NAME + 32], target[HUB_PATH] = "../../";
    for (const char *p = file->path; (p = strchr(p, '/')); p++)
        strcat(target, "../"); /* HUB_NAME / 2 of them at most */
    strcat(target, "blobs/");
    strcat(target, file->hash);
    snprintf(path, sizeof path, "%s/%s", snapshot, file->path);
    snprintf(made, sizeof made, "%s.%ld", path, (long)getpid());
    hy_status status = hub_make_folders(path, err);
    if (status != HY_OK) return status;
    unlink(made);
    if (symlink(target, made) == 0 && rename(made, path) == 0) return HY_OK;
    int why = errno;
    unlink(made);
    return error_at(err, why == ENOSPC ? HY_NO_FIT : HY_FAILED, path, "cannot link %.300s: %s", path, strerror(why));
}

static hy_status write_ref(const blob_place *place, hy_error *err)
{
    char path[HUB_PATH], made[HUB_PATH + 32], part[HUB_NAME + 8];
    if (hub_is_commit(place->name->revision)) return HY_OK;
    snprintf(part, sizeof part, "refs/%s", place->name->revision);
    if (!hub_folder(place->options->cache, place->name, part, path)) return HY_OK;
    hy_status status = hub_make_folders(path, err);
    if (status != HY_OK) return status;
    snprintf(made, sizeof made, "%s.%ld", path, (long)getpid());
    FILE *out = fopen(made, "w");
    bool right = out && fputs(place->commit, out) >= 0;
    if (out && fclose(out) != 0) right = false;
    if (right && rename(made, path) == 0) return HY_OK;
    return error_at(err, HY_FAILED, path, "cannot write %.300s: %s", path, strerror(errno));
}

/* config.json comes last: a snapshot without it counts as not there. */
static hy_status link_all(const blob_place *place, const hub_listing *l, const char *snapshot, hy_error *err)
{
    hy_status status = HY_OK;
    for (int last = 0; last < 2; last++) /* false, then true */
        for (size_t i = 0; i < l->count && status == HY_OK; i++)
            if ((strcmp(l->files[i].path, "config.json") == 0) == last) status = link_file(snapshot, &l->files[i], err);
    return status == HY_OK ? write_ref(place, err) : status;
}

static hy_status download(const blob_place *place, hub_listing *l, char *out, size_t size, hy_error *err)
{
    char folder[HUB_PATH], bytes[32];
    size_t small = 0, config = 0;
    for (size_t i = 0; i < l->count; i++)
        small += l->files[i].part != HUB_WEIGHTS, config += !strcmp(l->files[i].path, "config.json");
    if (!config)
        return error_at(err, HY_BAD_MODEL, place->name->model, "%s has no config.json: it is no model",
                        place->name->model);
    if (!hub_folder(place->options->cache, place->name, "blobs/x", folder))
        return error_set(err, HY_USAGE, "the path of the cache is too long");
    hy_status status = hub_make_folders(folder, err);
    if (status == HY_OK) status = check_room(place, l->files, small, err);
    if (status == HY_OK) status = blobs_fetch(place, l->files, small, err);
    if (status == HY_OK) status = place->options->text_only ? (l->count = small, HY_OK) : keep_needed(place, l, err);
    if (status != HY_OK) return status;
    if (!place->options->text_only && l->count == small)
        return error_at(err, HY_BAD_MODEL, place->name->model, "%s has no safetensors files", place->name->model);
    uint64_t missing = 0;
    for (size_t i = small; i < l->count; i++) missing += (uint64_t)blob_missing(place, &l->files[i]);
    if (missing)
        log_line(HY_LOG_INFO, "downloading %s of %s at %.12s into %s", memory_text(missing, bytes), place->name->model,
                 place->commit, place->options->cache);
    status = check_room(place, l->files + small, l->count - small, err);
    if (status == HY_OK) status = blobs_fetch(place, l->files + small, l->count - small, err);
    if (status == HY_OK && !snapshot_folder(place->options->cache, place->name, l->commit, folder))
        status = error_set(err, HY_USAGE, "the path of the cache is too long");
    if (status == HY_OK) status = link_all(place, l, folder, err);
    if (status == HY_OK && strlen(folder) >= size)
        status = error_set(err, HY_USAGE, "the path of the cache is too long");
    if (status == HY_OK) strcpy(out, folder);
    return status;
}

hy_status hub_fetch(const char *name, const hub_options *o, char *out, size_t size, hy_error *err)
{
    hub_name n;
    char commit[41], folder[HUB_PATH], endpoint[HUB_NAME], what[HUB_NAME + 16];
    hy_status status = hub_name_read(name, o->revision, &n, err);
    if (status != HY_OK) return status;
    if (known_commit(o->cache, &n, commit) && snapshot_folder(o->cache, &n, commit, folder) &&
        snapshot_complete(folder, o->text_only)) {
        log_line(HY_LOG_INFO, "%s at %.12s is in the cache: %s", n.model, commit, folder);
        if (strlen(folder) >= size) return error_set(err, HY_USAGE, "the path of the cache is too long");
        strcpy(out, folder);
        return HY_OK;
    }
    if (o->offline)
        return error_at(err, HY_BAD_MODEL, n.model,
                        "%s at %s is not whole in %.200s, and HF_HUB_OFFLINE forbids to ask the hub", n.model,
                        n.revision, o->cache);
    snprintf(endpoint, sizeof endpoint, "%s", o->endpoint && *o->endpoint ? o->endpoint : hub_address);
    while (strlen(endpoint) > 1 && endpoint[strlen(endpoint) - 1] == '/') endpoint[strlen(endpoint) - 1] = 0;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) return error_set(err, HY_FAILED, "libcurl cannot start");
    snprintf(what, sizeof what, "downloading %s", n.model);
    blob_place place = {.options = o, .endpoint = endpoint, .name = &n, .what = what};
    hub_listing listing = {0};
    status = list(&place, &listing, err);
    place.commit = listing.commit;
    if (status == HY_OK) status = download(&place, &listing, out, size, err);
    listing_free(&listing);
    return status;
}
