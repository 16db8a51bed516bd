#include "checkpoint/shards.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "checkpoint/scan.h"

/* Limits that no real checkpoint comes near. */
enum { PATH_SIZE = 4096, NAME_SIZE = 1024, SHARD_LIMIT = 4096, INDEX_LIMIT = 256 * 1024 * 1024 };

static const char index_name[] = "model.safetensors.index.json", extension[] = ".safetensors";

/* Names of files, owned. */
typedef struct name_list {
    char **names;
    size_t count, capacity;
} name_list;

static void names_free(name_list *l)
{
    for (size_t i = 0; i < l->count; i++) free(l->names[i]);
    free(l->names);
}

static hy_status names_add(name_list *l, const char *name, hy_error *err)
{
    char *copy = NULL;
    if (l->count == SHARD_LIMIT)
        return error_set(err, HY_BAD_MODEL, "more than %d safetensors files are not supported", SHARD_LIMIT);
    if (!memory_reserve((void **)&l->names, &l->capacity, l->count + 1, sizeof *l->names) ||
        !(copy = memory_string(name, strlen(name))))
        return error_memory(err, "file names", l->count * sizeof *l->names);
    l->names[l->count++] = copy;
    return HY_OK;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Files that are listed by their names too, wherever they are. */
static int by_name(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    int order = strcmp(base_name(x), base_name(y));
    return order ? order : strcmp(x, y);
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n > m && strcmp(s + n - m, end) == 0;
}

/* An index names files of its own folder and nothing else. */
static bool file_name_valid(const char *s)
{
    return ends_with(s, extension) && s[0] != '.' && !strpbrk(s, "/\\:");
}

/* ---- The index --------------------------------------------------------------------------------------------------- */

typedef hy_status (*entry_fn)(void *user, const char *tensor_name, const char *file, hy_error *err);

static hy_status bad_index(const scan *s, hy_error *err)
{
    return error_at(err, HY_BAD_MODEL, index_name, "%s is damaged at byte %zu: %s", index_name, scan_offset(s),
                    s->problem);
}

static hy_status walk_map(scan *s, entry_fn fn, void *user, hy_error *err)
{
    char name[NAME_SIZE], file[NAME_SIZE];
    if (!scan_expect(s, '{')) return bad_index(s, err);
    for (bool first = true; scan_more(s, '}', &first);) {
        if (!scan_string(s, name, sizeof name, NULL) || !scan_expect(s, ':') ||
            !scan_string(s, file, sizeof file, NULL))
            return bad_index(s, err);
        hy_status status = fn(user, name, file, err);
        if (status != HY_OK) return status;
    }
    return s->problem ? bad_index(s, err) : HY_OK;
}

/* Calls fn for every entry of "weight_map". */
static hy_status walk_index(const file_map *map, entry_fn fn, void *user, hy_error *err)
{
    scan s = scan_begin((const char *)map->data, map->size);
    bool seen = false;
    if (!scan_expect(&s, '{')) return bad_index(&s, err);
    for (bool first = true; scan_more(&s, '}', &first);) {
        char key[NAME_SIZE];
        if (!scan_string(&s, key, sizeof key, NULL) || !scan_expect(&s, ':')) return bad_index(&s, err);
        if (strcmp(key, "weight_map") == 0) {
            if (seen) return error_at(err, HY_BAD_MODEL, index_name, "%s has weight_map twice", index_name);
            seen = true;
            hy_status status = walk_map(&s, fn, user, err);
            if (status != HY_OK) return status;
        } else if (!scan_skip(&s)) {
            return bad_index(&s, err);
        }
    }
    if (!scan_finish(&s)) return bad_index(&s, err);
    if (!seen) return error_at(err, HY_BAD_MODEL, index_name, "%s has no weight_map", index_name);
    return HY_OK;
}

static hy_status collect_file(void *user, const char *tensor_name, const char *file, hy_error *err)
{
    name_list *l = user;
    /* Neighbours in the index mostly share a file. */
    if (l->count && strcmp(l->names[l->count - 1], file) == 0) return HY_OK;
    for (size_t i = 0; i < l->count; i++)
        if (strcmp(l->names[i], file) == 0) return HY_OK;
    if (!file_name_valid(file))
        return error_at(err, HY_BAD_MODEL, index_name,
                        "%s puts %.160s into \"%.160s\", which is not the name of a safetensors file of the folder",
                        index_name, tensor_name, file);
    return names_add(l, file, err);
}

typedef struct index_check {
    const shards *set;
    size_t entries, last;
} index_check;

static const char *file_label(const safetensors *f)
{
    return base_name(safetensors_path(f));
}

static hy_status check_entry(void *user, const char *tensor_name, const char *file, hy_error *err)
{
    index_check *c = user;
    const shards *s = c->set;
    c->entries++;
    size_t i = c->last;
    if (strcmp(file_label(s->files[i]), file) != 0)
        for (i = 0; i < s->file_count && strcmp(file_label(s->files[i]), file) != 0;) i++;
    if (i == s->file_count) /* the first walk collected these very names */
        return error_at(err, HY_BAD_MODEL, index_name, "%s changed while it was read", index_name);
    c->last = i;
    if (safetensors_find(s->files[i], tensor_name)) return HY_OK;
    for (size_t k = 0; k < s->file_count; k++)
        if (safetensors_find(s->files[k], tensor_name))
            return error_at(err, HY_BAD_MODEL, tensor_name, "%s puts tensor %.160s into %.100s but it is in %.100s",
                            index_name, tensor_name, file, file_label(s->files[k]));
    return error_at(err, HY_BAD_MODEL, tensor_name, "tensor %.160s is missing from %.160s, where %s puts it",
                    tensor_name, file, index_name);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static hy_status list_folder(const char *folder, name_list *l, hy_error *err)
{
    hy_status status = HY_OK;
    DIR *d = opendir(folder);
    for (struct dirent *e; status == HY_OK && d && (e = readdir(d));)
        if (file_name_valid(e->d_name)) status = names_add(l, e->d_name, err);
    if (d) closedir(d);
    if (status == HY_OK && l->count == 0)
        status = error_at(err, HY_BAD_MODEL, folder, "%.200s has no safetensors files", folder);
    return status;
}

static hy_status open_files(const char *folder, const name_list *l, bool indexed, shards *s, hy_error *err)
{
    s->files = calloc(l->count ? l->count : 1, sizeof *s->files);
    if (!s->files) return error_memory(err, "files", l->count * sizeof *s->files);
    for (size_t i = 0; i < l->count; i++) {
        char joined[PATH_SIZE];
        const char *path = strchr(l->names[i], '/') ? l->names[i] : joined; /* listed, or of the folder */
        hy_status status = path == joined ? file_join(folder, l->names[i], joined, sizeof joined, err) : HY_OK;
        if (status == HY_OK && indexed && !file_exists(path))
            status = error_at(err, HY_BAD_MODEL, l->names[i],
                              "the shard %.160s that %s names is missing from %.160s; download it again", l->names[i],
                              index_name, folder);
        if (status == HY_OK) status = safetensors_open(path, &s->files[s->file_count], err);
        if (status != HY_OK) return status;
        s->count += safetensors_count(s->files[s->file_count]);
        s->file_count++;
    }
    return HY_OK;
}

static hy_status gather(shards *s, hy_error *err)
{
    s->tensors = memory_alloc(s->count, sizeof *s->tensors);
    if (!s->tensors || !tensor_table_open(&s->table, s->count))
        return error_memory(err, "tensor names", s->count * sizeof *s->tensors);
    size_t n = 0;
    for (size_t f = 0; f < s->file_count; f++)
        for (size_t i = 0; i < safetensors_count(s->files[f]); i++) {
            const tensor *t = safetensors_at(s->files[f], i);
            s->tensors[n++] = t;
            if (!tensor_table_add(&s->table, t)) continue;
            size_t k = 0; /* the earlier file */
            while (!safetensors_find(s->files[k], t->name)) k++;
            bool alike = strcmp(file_label(s->files[k]), file_label(s->files[f])) == 0; /* files that are listed */
            return error_at(err, HY_BAD_MODEL, t->name, "tensor %.160s is in two files: %.120s and %.120s", t->name,
                            alike ? safetensors_path(s->files[k]) : file_label(s->files[k]),
                            alike ? safetensors_path(s->files[f]) : file_label(s->files[f]));
        }
    return HY_OK;
}

static hy_status map_index(const char *path, file_map *index, hy_error *err)
{
    hy_status status = file_map_open(path, index, err);
    if (status == HY_OK && index->size > INDEX_LIMIT)
        status = error_at(err, HY_BAD_MODEL, index_name, "%s has %zu bytes, more than the %d that are allowed",
                          index_name, index->size, INDEX_LIMIT);
    return status;
}

/* Opens the files of a list, and holds the index against them if there is one. */
static hy_status open_list(const char *folder, name_list *l, const file_map *index, shards *s, hy_error *err)
{
    if (l->count) qsort(l->names, l->count, sizeof *l->names, by_name);
    hy_status status = open_files(folder, l, index != NULL, s, err);
    if (status == HY_OK) status = gather(s, err);
    if (status != HY_OK || !index) return status;
    index_check check = {.set = s};
    status = walk_index(index, check_entry, &check, err);
    if (status == HY_OK && check.entries < s->count)
        log_line(HY_LOG_WARNING, "%s lists %zu tensors, the shards of %s hold %zu", index_name, check.entries, folder,
                 s->count);
    return status;
}

static hy_status find_files(const char *folder, name_list *l, file_map *index, bool *indexed, hy_error *err)
{
    char single[PATH_SIZE], path[PATH_SIZE];
    hy_status status = file_join(folder, "model.safetensors", single, sizeof single, err);
    if (status == HY_OK) status = file_join(folder, index_name, path, sizeof path, err);
    if (status != HY_OK) return status;
    *indexed = !file_present(single) && file_present(path);
    if (file_present(single)) return names_add(l, "model.safetensors", err);
    if (!*indexed) return list_folder(folder, l, err);
    status = map_index(path, index, err);
    return status == HY_OK ? walk_index(index, collect_file, l, err) : status;
}

/* Files of an index that are listed are those; every listed one must be such a file. */
static hy_status use_listed(name_list *l, char *const *files, size_t count, hy_error *err)
{
    for (size_t i = 0; i < count; i++) {
        size_t k = 0;
        while (k < l->count && strcmp(l->names[k], base_name(files[i])) != 0) k++;
        if (k == l->count)
            return error_at(err, HY_BAD_MODEL, files[i], "%.200s is not among the files that %s names, or twice",
                            files[i], index_name);
        char *copy = memory_string(files[i], strlen(files[i]));
        if (!copy) return error_memory(err, "file names", strlen(files[i]));
        free(l->names[k]);
        l->names[k] = copy;
    }
    return HY_OK;
}

/* What both ways of opening share: `status` is that of making the list. */
static hy_status finish(hy_status status, const char *folder, name_list *names, file_map *index, bool indexed,
                        shards *out, hy_error *err)
{
    shards s = {0};
    if (status == HY_OK) status = open_list(folder, names, indexed ? index : NULL, &s, err);
    if (status == HY_OK)
        *out = s;
    else
        shards_close(&s);
    file_map_close(index);
    names_free(names);
    return status;
}

hy_status shards_open(const char *folder, shards *out, hy_error *err)
{
    name_list names = {0};
    file_map index = {0};
    bool indexed = false;
    hy_status status = find_files(folder, &names, &index, &indexed, err);
    return finish(status, folder, &names, &index, indexed, out, err);
}

hy_status shards_open_files(char *const *files, size_t count, const char *index_path, shards *out, hy_error *err)
{
    name_list names = {0};
    file_map index = {0};
    char folder[PATH_SIZE] = ".";
    hy_status status = HY_OK;
    if (index_path) {
        snprintf(folder, sizeof folder, "%.*s", (int)(base_name(index_path) - index_path), index_path);
        status = map_index(index_path, &index, err);
        if (status == HY_OK) status = walk_index(&index, collect_file, &names, err);
        if (status == HY_OK) status = use_listed(&names, files, count, err);
    } else {
        for (size_t i = 0; i < count && status == HY_OK; i++) status = names_add(&names, files[i], err);
    }
    return finish(status, folder, &names, &index, index_path != NULL, out, err);
}

void shards_close(shards *s)
{
    for (size_t i = 0; i < s->file_count; i++) safetensors_close(s->files[i]);
    tensor_table_close(&s->table);
    memory_free(s->tensors);
    free(s->files);
    *s = (shards){0};
}
