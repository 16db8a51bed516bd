/*
 * Reading safetensors. The format: https://github.com/huggingface/safetensors, section "Format".
 *
 * The header is scanned once, without a tree. All its strings go into one block of memory as large as the header, which
 * is enough because a string never grows when its escapes are undone and its two quotes leave room for the NUL.
 */
#include "checkpoint/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "checkpoint/scan.h"
#include "checkpoint/tensor_table.h"

enum { HEADER_LIMIT = 100 * 1000 * 1000, PREFIX = 8 };

struct safetensors {
    char *path;
    const char *label; /* last part of path, for messages */
    file_map map;      /* empty when the bytes are borrowed */
    size_t header_bytes, data_bytes;
    const uint8_t *data;
    char *strings; /* [header_bytes + 1] */
    size_t strings_used;
    tensor *tensors; /* [count], in file order once checked */
    size_t count, capacity;
    const char **metadata; /* [metadata_count * 2], names and values */
    size_t metadata_count, metadata_capacity;
    bool has_metadata;
    tensor_table table;
};

#define BAD(where, ...) error_at(err, HY_BAD_MODEL, where, __VA_ARGS__)

static uint64_t load64(const uint8_t *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

/* Takes the next string of the header into the block; NULL with a problem. */
static const char *take_string(safetensors *f, scan *s, size_t *length)
{
    char *at = f->strings + f->strings_used;
    size_t n;
    if (!scan_string(s, at, f->header_bytes + 1 - f->strings_used, &n)) return NULL;
    f->strings_used += n + 1;
    if (length) *length = n;
    return at;
}

static hy_status bad_json(const safetensors *f, const scan *s, hy_error *err)
{
    return BAD(f->path, "the header of %.200s is damaged at byte %zu: %s", f->label, PREFIX + scan_offset(s),
               s->problem);
}

static hy_status read_metadata(safetensors *f, scan *s, hy_error *err)
{
    if (f->has_metadata) return BAD(f->path, "%.200s has __metadata__ twice", f->label);
    f->has_metadata = true;
    if (!scan_expect(s, '{')) return bad_json(f, s, err);
    for (bool first = true; scan_more(s, '}', &first);) {
        if (!memory_reserve((void **)&f->metadata, &f->metadata_capacity, f->metadata_count * 2 + 2,
                            sizeof *f->metadata))
            return error_memory(err, f->path, f->metadata_count);
        const char *key = take_string(f, s, NULL);
        const char *value = key && scan_expect(s, ':') ? take_string(f, s, NULL) : NULL;
        if (!value) return bad_json(f, s, err);
        f->metadata[f->metadata_count * 2] = key;
        f->metadata[f->metadata_count * 2 + 1] = value;
        f->metadata_count++;
    }
    return s->problem ? bad_json(f, s, err) : HY_OK;
}

static hy_status read_shape(const safetensors *f, scan *s, tensor *t, hy_error *err)
{
    if (!scan_expect(s, '[')) return bad_json(f, s, err);
    for (bool first = true; scan_more(s, ']', &first);) {
        uint64_t n;
        if (!scan_unsigned(s, &n)) return bad_json(f, s, err);
        if (t->dims == TENSOR_MAX_DIMS)
            return BAD(t->name, "tensor %.200s of %.120s has more than %d dimensions", t->name, f->label,
                       TENSOR_MAX_DIMS);
        if (n > INT64_MAX) return BAD(t->name, "tensor %.200s of %.120s is too large", t->name, f->label);
        t->shape[t->dims++] = (int64_t)n;
    }
    return s->problem ? bad_json(f, s, err) : HY_OK;
}

/* {"dtype": ..., "shape": [...], "data_offsets": [begin, end]} in any order. */
static hy_status read_entry(safetensors *f, scan *s, tensor *t, uint64_t offsets[2], hy_error *err)
{
    bool dtype = false, shape = false, place = false;
    if (!scan_expect(s, '{')) return bad_json(f, s, err);
    for (bool first = true; scan_more(s, '}', &first);) {
        char key[24], word[24];
        size_t n;
        if (!scan_string(s, key, sizeof key, NULL) || !scan_expect(s, ':')) return bad_json(f, s, err);
        bool *seen = strcmp(key, "dtype") == 0          ? &dtype
                     : strcmp(key, "shape") == 0        ? &shape
                     : strcmp(key, "data_offsets") == 0 ? &place
                                                        : NULL;
        if (!seen)
            return BAD(t->name, "tensor %.200s of %.120s has an unknown field %s in its header", t->name, f->label,
                       key);
        if (*seen) return BAD(t->name, "tensor %.200s of %.120s has %s twice in its header", t->name, f->label, key);
        *seen = true;
        if (seen == &dtype) {
            if (!scan_string(s, word, sizeof word, &n)) return bad_json(f, s, err);
            if (!tensor_dtype_parse(word, n, &t->dtype))
                return BAD(t->name, "tensor %.200s of %.120s has the unknown dtype %s", t->name, f->label, word);
        } else if (seen == &shape) {
            hy_status status = read_shape(f, s, t, err);
            if (status != HY_OK) return status;
        } else if (!scan_expect(s, '[') || !scan_unsigned(s, &offsets[0]) || !scan_expect(s, ',') ||
                   !scan_unsigned(s, &offsets[1]) || !scan_expect(s, ']')) {
            return bad_json(f, s, err);
        }
    }
    if (s->problem) return bad_json(f, s, err);
    if (!dtype || !shape || !place)
        return BAD(t->name, "tensor %.200s of %.120s has no %s in its header", t->name, f->label,
                   !dtype   ? "dtype"
                   : !shape ? "shape"
                            : "data_offsets");
    return HY_OK;
}

/* Offsets inside the data, and as many bytes as shape and dtype need. */
static hy_status check_entry(const safetensors *f, tensor *t, const uint64_t offsets[2], hy_error *err)
{
    size_t bytes = tensor_dtype_bytes(t->dtype);
    for (int i = 0; i < t->dims; i++)
        if (!size_mul(bytes, (size_t)t->shape[i], &bytes))
            return BAD(t->name, "tensor %.200s of %.120s is too large: the product of its shape overflows", t->name,
                       f->label);
    if (offsets[0] > offsets[1] || offsets[1] > f->data_bytes)
        return BAD(
            t->name,
            "tensor %.200s lies out of range: bytes %llu to %llu of the data of %.120s, which has %zu; the file is "
            "truncated or damaged, download it again",
            t->name, (unsigned long long)offsets[0], (unsigned long long)offsets[1], f->label, f->data_bytes);
    if (offsets[1] - offsets[0] != bytes)
        return BAD(t->name, "tensor %.200s of %.120s needs %zu bytes by its shape but has %llu", t->name, f->label,
                   bytes, (unsigned long long)(offsets[1] - offsets[0]));
    t->bytes = bytes;
    t->data = f->data + offsets[0];
    return HY_OK;
}

static hy_status read_header(safetensors *f, scan *s, hy_error *err)
{
    if (!scan_expect(s, '{')) return bad_json(f, s, err);
    for (bool first = true; scan_more(s, '}', &first);) {
        const char *name = take_string(f, s, NULL);
        if (!name || !scan_expect(s, ':')) return bad_json(f, s, err);
        hy_status status;
        if (strcmp(name, "__metadata__") == 0) {
            if ((status = read_metadata(f, s, err)) != HY_OK) return status;
            continue;
        }
        if (!memory_reserve((void **)&f->tensors, &f->capacity, f->count + 1, sizeof *f->tensors))
            return error_memory(err, f->path, f->count * sizeof *f->tensors);
        tensor *t = &f->tensors[f->count++];
        *t = (tensor){.name = name};
        uint64_t offsets[2] = {0, 0};
        if ((status = read_entry(f, s, t, offsets, err)) != HY_OK) return status;
        if ((status = check_entry(f, t, offsets, err)) != HY_OK) return status;
    }
    if (!scan_finish(s)) return bad_json(f, s, err);
    return HY_OK;
}

/* File order. Empty tensors come before the one that begins where they lie; equals keep a fixed order by name. */
static int by_place(const void *a, const void *b)
{
    const tensor *x = a, *y = b;
    const uint8_t *p = x->data, *q = y->data;
    if (p != q) return p < q ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* The tensors must tile the data without gaps and overlaps, and no name may come twice. */
static hy_status check_tiling(safetensors *f, hy_error *err)
{
    bool sorted = true;
    for (size_t i = 1; i < f->count && sorted; i++) sorted = by_place(&f->tensors[i - 1], &f->tensors[i]) < 0;
    if (!sorted) qsort(f->tensors, f->count, sizeof *f->tensors, by_place);
    size_t at = 0;
    for (size_t i = 0; i < f->count; i++) {
        const tensor *t = &f->tensors[i];
        size_t begin = (size_t)((const uint8_t *)t->data - f->data);
        if (begin < at)
            return BAD(t->name, "tensors %.160s and %.160s of %.120s overlap", f->tensors[i - 1].name, t->name,
                       f->label);
        if (begin > at)
            return BAD(t->name, "%zu bytes before tensor %.200s of %.120s belong to no tensor", begin - at, t->name,
                       f->label);
        at = begin + t->bytes;
    }
    if (at != f->data_bytes)
        return BAD(f->path, "%zu bytes at the end of %.200s belong to no tensor", f->data_bytes - at, f->label);
    if (!tensor_table_open(&f->table, f->count)) return error_memory(err, f->path, f->count * sizeof(void *));
    for (size_t i = 0; i < f->count; i++)
        if (tensor_table_add(&f->table, &f->tensors[i]))
            return BAD(f->tensors[i].name, "%.120s has two tensors named %.200s", f->label, f->tensors[i].name);
    return HY_OK;
}

static hy_status check_file(safetensors *f, const uint8_t *bytes, size_t size, hy_error *err)
{
    if (size < PREFIX)
        return BAD(f->path, "%.200s is truncated: %zu bytes are no safetensors file, download it again", f->label,
                   size);
    uint64_t n = load64(bytes);
    if (n > HEADER_LIMIT)
        return BAD(f->path,
                   "%.200s is no safetensors file: its header length is %llu, more than the %d that are allowed",
                   f->label, (unsigned long long)n, HEADER_LIMIT);
    if (n > size - PREFIX)
        return BAD(f->path, "%.200s is truncated: its header length %llu is larger than the file of %zu bytes",
                   f->label, (unsigned long long)n, size);
    if (n == 0 || bytes[PREFIX] != '{')
        return BAD(f->path, "%.200s is no safetensors file: its header does not begin with '{'", f->label);
    f->header_bytes = (size_t)n;
    f->data = bytes + PREFIX + n;
    f->data_bytes = size - PREFIX - (size_t)n;
    f->strings = memory_alloc(f->header_bytes + 1, 1);
    if (!f->strings) return error_memory(err, f->path, f->header_bytes);
    scan s = scan_begin((const char *)bytes + PREFIX, f->header_bytes);
    hy_status status = read_header(f, &s, err);
    if (status == HY_OK) status = check_tiling(f, err);
    return status;
}

static hy_status file_new(const char *path, safetensors **out, hy_error *err)
{
    safetensors *f = calloc(1, sizeof *f);
    if (!f || !(f->path = memory_string(path, strlen(path)))) {
        free(f);
        return error_memory(err, path, sizeof *f);
    }
    const char *slash = strrchr(f->path, '/');
    f->label = slash ? slash + 1 : f->path;
    *out = f;
    return HY_OK;
}

hy_status safetensors_parse(const char *name, const void *bytes, size_t size, safetensors **file, hy_error *err)
{
    safetensors *f = NULL;
    hy_status status = file_new(name, &f, err);
    if (status == HY_OK && (status = check_file(f, bytes, size, err)) != HY_OK) safetensors_close(f);
    if (status == HY_OK) *file = f;
    return status;
}

hy_status safetensors_open(const char *path, safetensors **file, hy_error *err)
{
    safetensors *f = NULL;
    hy_status status = file_new(path, &f, err);
    if (status != HY_OK) return status;
    status = file_map_open(path, &f->map, err);
    if (status == HY_OK) status = check_file(f, f->map.data, f->map.size, err);
    if (status == HY_OK) file_map_drop(f->map.data, PREFIX + f->header_bytes); /* names and shapes have been copied */
    if (status == HY_OK)
        *file = f;
    else
        safetensors_close(f);
    return status;
}

void safetensors_close(safetensors *f)
{
    if (!f) return;
    tensor_table_close(&f->table);
    free(f->tensors);
    free(f->metadata);
    memory_free(f->strings);
    file_map_close(&f->map);
    free(f->path);
    free(f);
}

size_t safetensors_count(const safetensors *file)
{
    return file->count;
}

const tensor *safetensors_at(const safetensors *file, size_t i)
{
    return i < file->count ? &file->tensors[i] : NULL;
}

const tensor *safetensors_find(const safetensors *file, const char *name)
{
    return tensor_table_find(&file->table, name);
}

const char *safetensors_metadata(const safetensors *file, const char *key)
{
    for (size_t i = 0; i < file->metadata_count; i++)
        if (strcmp(file->metadata[i * 2], key) == 0) return file->metadata[i * 2 + 1];
    return NULL;
}

const char *safetensors_path(const safetensors *file)
{
    return file->path;
}

size_t safetensors_header_bytes(const safetensors *file)
{
    return file->header_bytes;
}

weight_file safetensors_file(const safetensors *file)
{
    return (weight_file){.path = file->path, .data = file->map.data, .bytes = file->map.size};
}
