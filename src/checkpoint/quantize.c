/*
 * Tensors are written in the order of the published layout; each entry says which weight of the source it comes from.
 * A matrix is quantised in pieces of whole rows by all threads. The data goes out piece by piece; the scales, which
 * follow it in the file, wait in memory. Source pages are read once, for routed experts twice (the largest magnitude
 * is needed first).
 */
#include "checkpoint/quantize.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/threads.h"
#include "checkpoint/output.h"
#include "number/bf16.h"
#include "number/mxfp8.h"
#include "number/nvfp4.h"

enum { PIECE_BYTES = 8 << 20, PATH_SIZE = 4096 };

typedef struct job {
    const checkpoint *source;
    const quantize_options *options;
    threads *pool;
    output *out;
    progress progress;
    layout_list list;      /* the new tensors: text first, then those that are copied as they are */
    const tensor **copies; /* [copy_count] source tensors of the list's tail, borrowed */
    size_t copy_count, copy_room;

    weight w;      /* the matrix at work */
    uint8_t *data; /* [PIECE_BYTES] or one row if that is larger */
    size_t data_room;
    uint8_t *scales; /* of the whole matrix */
    size_t scale_room;
    float *rows; /* [workers, cols] one decoded row for each thread */
    size_t row_room;
    float global;                    /* 2688/amax of the expert matrix at work ... */
    float amax;                      /* ... and its amax, */
    float shared_amax;               /* that of w1 and w3 of one expert: */
    int shared_layer, shared_expert; /* this one */
    const layout_entry *entry;
    int64_t first_row; /* of the piece */
    bool *bad;         /* [workers] a value that is not finite was met */
} job;

/* ---- Threads' work ------------------------------------------------------------------------------------------------
 */

/* Rows of the piece into the entry's format. */
static void convert_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    job *j = arg;
    const weight *w = &j->w;
    size_t cols = (size_t)w->cols;
    float *row = j->rows + (size_t)worker * cols;
    for (int64_t r = begin; r < end; r++) {
        size_t i = (size_t)r, n = (size_t)(j->first_row + r);
        weight_row(w, j->first_row + r, row);
        switch (j->entry->fill) {
        case FILL_E4M3:
            for (size_t k = 0; k < cols; k++)
                if (!isfinite(row[k])) j->bad[worker] = true;
            mxfp8_quantise_row(row, cols / 32, j->data + i * cols, j->scales + n * (cols / 32));
            break;
        case FILL_E2M1:
            nvfp4_weight_quantise_row(row, cols / 16, j->global, j->data + i * (cols / 2), j->scales + n * (cols / 16));
            break;
        default:
            if (j->entry->dtype == TENSOR_F32) {
                memcpy(j->data + i * cols * 4, row, cols * 4);
                break;
            }
            for (size_t k = 0; k < cols; k++) {
                uint16_t h = bf16_from_float(row[k]);
                memcpy(j->data + (i * cols + k) * 2, &h, 2);
            }
        }
    }
}

/* max|w| of rows into the first element of the worker's row of a second array. */
typedef struct amax_job {
    job *j;
    float *largest; /* [workers] */
} amax_job;

static void amax_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    amax_job *a = arg;
    const weight *w = &a->j->w;
    float *row = a->j->rows + (size_t)worker * (size_t)w->cols, largest = a->largest[worker];
    for (int64_t r = begin; r < end; r++) {
        weight_row(w, r, row);
        for (int64_t k = 0; k < w->cols; k++) {
            float x = fabsf(row[k]);
            if (!isfinite(x))
                a->j->bad[worker] = true;
            else if (x > largest)
                largest = x;
        }
    }
    a->largest[worker] = largest;
}

/* ---- Matrices ------------------------------------------------------------------------------------------------------
 */

static hy_status room(void **p, size_t *have, size_t need, hy_error *err)
{
    if (need <= *have) return HY_OK;
    memory_free(*p);
    *p = memory_alloc(need, 1);
    *have = *p ? need : 0;
    return *p ? HY_OK : error_memory(err, "a piece of a matrix", need);
}

/* Takes the weight of a role as the matrix at work. */
static hy_status take(job *j, weight_role role, int layer, int expert, hy_error *err)
{
    hy_status s = checkpoint_weight(j->source, role, layer, expert, &j->w, err);
    if (s != HY_OK) return s;
    return room((void **)&j->rows, &j->row_room, (size_t)threads_count(j->pool) * (size_t)j->w.cols * sizeof(float),
                err);
}

static hy_status check_finite(job *j, const layout_entry *e, hy_error *err)
{
    for (int i = 0; i < threads_count(j->pool); i++)
        if (j->bad[i])
            return error_at(err, HY_BAD_MODEL, e->name,
                            "the source of %s has a value that is NaN or infinite: it cannot be quantised", e->name);
    return HY_OK;
}

static hy_status matrix_amax(job *j, weight_role role, const layout_entry *e, float *amax, hy_error *err)
{
    hy_status s = take(j, role, e->layer, e->expert, err);
    if (s != HY_OK) return s;
    amax_job a = {.j = j, .largest = calloc((size_t)threads_count(j->pool), sizeof(float))};
    if (!a.largest) return error_memory(err, "maxima", (size_t)threads_count(j->pool) * sizeof(float));
    threads_run(j->pool, j->w.rows, 64, amax_rows, &a);
    for (int i = 0; i < threads_count(j->pool); i++)
        if (a.largest[i] > *amax) *amax = a.largest[i];
    free(a.largest);
    return check_finite(j, e, err);
}

/* The outer scale of the expert matrix of entry e: its own for w2, one for w1 and w3 together. */
static hy_status expert_global(job *j, const layout_entry *e, hy_error *err)
{
    hy_status s = HY_OK;
    if (e->role == ROLE_EXPERT_DOWN) {
        j->amax = 0;
        s = matrix_amax(j, ROLE_EXPERT_DOWN, e, &j->amax, err);
    } else {
        if (j->shared_layer != e->layer || j->shared_expert != e->expert) {
            j->shared_amax = 0;
            s = matrix_amax(j, ROLE_EXPERT_GATE, e, &j->shared_amax, err);
            if (s == HY_OK) s = matrix_amax(j, ROLE_EXPERT_UP, e, &j->shared_amax, err);
            j->shared_layer = e->layer, j->shared_expert = e->expert;
        }
        j->amax = j->shared_amax;
    }
    j->global = nvfp4_weight_global(j->amax);
    return s;
}

/* Bytes of one row of the entry's data. */
static size_t row_bytes(const layout_entry *e, int64_t cols)
{
    if (e->fill == FILL_E2M1) return (size_t)cols / 2;
    return (size_t)cols * tensor_dtype_bytes(e->dtype);
}

/* Bytes to the files, counted as progress. */
static hy_status write_bytes(job *j, const void *data, size_t bytes, hy_error *err)
{
    hy_status s = output_write(j->out, data, bytes, err);
    if (s == HY_OK && !progress_add(&j->progress, bytes)) s = error_set(err, HY_CANCELLED, "stopped before the end");
    return s;
}

static hy_status write_matrix(job *j, const layout_entry *e, hy_error *err)
{
    hy_status s = e->fill == FILL_E2M1 ? expert_global(j, e, err) : HY_OK;
    if (s == HY_OK) s = take(j, e->role, e->layer, e->expert, err);
    if (s != HY_OK) return s;
    size_t bytes = row_bytes(e, j->w.cols), group = e->fill == FILL_E2M1 ? 16 : 32;
    int64_t step = bytes < PIECE_BYTES ? (int64_t)(PIECE_BYTES / (bytes ? bytes : 1)) : 1;
    if (step > j->w.rows) step = j->w.rows;
    s = room((void **)&j->data, &j->data_room, (size_t)step * bytes, err);
    if (s == HY_OK && (e->fill == FILL_E4M3 || e->fill == FILL_E2M1))
        s = room((void **)&j->scales, &j->scale_room, (size_t)j->w.rows * ((size_t)j->w.cols / group), err);
    j->entry = e;
    for (j->first_row = 0; s == HY_OK && j->first_row < j->w.rows; j->first_row += step) {
        int64_t rows = j->w.rows - j->first_row < step ? j->w.rows - j->first_row : step;
        threads_run(j->pool, rows, 16, convert_rows, j);
        s = check_finite(j, e, err);
        if (s == HY_OK) s = write_bytes(j, j->data, (size_t)rows * bytes, err);
    }
    return s;
}

static hy_status write_entry(job *j, const layout_entry *e, hy_error *err)
{
    float value = 1;
    switch (e->fill) {
    case FILL_E8M0:
    case FILL_E4M3_SCALE: return write_bytes(j, j->scales, layout_entry_bytes(e), err); /* of the matrix just written */
    case FILL_GLOBAL:
        value = j->options->scheme == SCHEME_MODELOPT ? nvfp4_weight_scale_2(j->amax) : j->global;
        return write_bytes(j, &value, sizeof value, err);
    case FILL_ONE: return write_bytes(j, &value, sizeof value, err);
    default: return write_matrix(j, e, err);
    }
}

/* A tensor that goes over unchanged. */
static hy_status write_copy(job *j, const tensor *t, hy_error *err)
{
    hy_status s = HY_OK;
    for (size_t at = 0; at < t->bytes && s == HY_OK; at += PIECE_BYTES)
        s = write_bytes(j, (const uint8_t *)t->data + at, t->bytes - at < PIECE_BYTES ? t->bytes - at : PIECE_BYTES,
                        err);
    return s;
}

/* ---- What goes over unchanged --------------------------------------------------------------------------------------
 */

static int by_address(const void *a, const void *b)
{
    const char *x = *(const char *const *)a, *y = *(const char *const *)b;
    return (x > y) - (x < y);
}

typedef struct used_list {
    const checkpoint *source;
    const void **data; /* addresses of the source tensors' bytes that text weights come from */
    size_t count, room;
    hy_error *err;
    hy_status status;
} used_list;

static bool add_used(void *user, const layout_entry *e)
{
    used_list *u = user;
    weight w;
    u->status = checkpoint_weight(u->source, e->role, e->layer, e->expert, &w, u->err);
    if (u->status != HY_OK) return false;
    if (w.format != WEIGHT_F32 && w.format != WEIGHT_BF16 && w.format != WEIGHT_F16) {
        u->status = error_at(u->err, HY_USAGE, e->name,
                             "%s is %s in the source already: quantize starts from a bf16, f16 or f32 checkpoint",
                             e->name, weight_format_name(w.format));
        return false;
    }
    if (!memory_reserve((void **)&u->data, &u->room, u->count + 1, sizeof *u->data)) {
        u->status = error_memory(u->err, "a list of weights", u->count * sizeof *u->data);
        return false;
    }
    u->data[u->count++] = w.data;
    return true;
}

/* Whether a weight was taken from the tensor; several come from one that holds fused matrices. */
static bool is_used(const used_list *u, const tensor *t)
{
    size_t low = 0, high = u->count;
    const char *begin = t->data, *end = begin + t->bytes;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if ((const char *)u->data[middle] < begin)
            low = middle + 1;
        else
            high = middle;
    }
    return low < u->count && (const char *)u->data[low] < end;
}

static bool is_text_name(const char *name)
{
    static const char *const others[] = {"vision_tower.", "multi_modal_projector.", "patch_merge_mlp."};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (!strncmp(name, others[i], strlen(others[i]))) return false;
    return !strstr(name, ".mtp.");
}

/* Lists the source tensors that no text weight comes from. Unknown ones are refused: they would change the model. */
static hy_status list_copies(job *j, const used_list *u, hy_error *err)
{
    for (size_t i = 0; i < checkpoint_tensor_count(j->source, false); i++) {
        const tensor *t = checkpoint_tensor_at(j->source, i, false);
        if (t->bytes == 0 || is_used(u, t)) continue;
        const char *name = t->name;
        if (!strncmp(name, "model.", 6) && !is_text_name(name + 6)) name += 6; /* as transformers spells the tower */
        layout_entry e = {.dtype = t->dtype, .dims = t->dims, .role = ROLE_COUNT, .layer = -1, .expert = -1};
        if (is_text_name(name) || strlen(name) >= sizeof e.name)
            return error_at(err, HY_UNSUPPORTED, t->name,
                            "%s has no place in the published layout: remove it from the source", t->name);
        strcpy(e.name, name);
        memcpy(e.shape, t->shape, sizeof e.shape);
        if (!layout_list_add(&j->list, &e) ||
            !memory_reserve((void **)&j->copies, &j->copy_room, j->copy_count + 1, sizeof *j->copies))
            return error_memory(err, "a list of tensors", j->list.count * sizeof e);
        j->copies[j->copy_count++] = t;
    }
    return HY_OK;
}

static hy_status list_tensors(job *j, hy_error *err)
{
    config c = *checkpoint_config(j->source);
    c.vision_layers = 0; /* the tower comes from the source as it is */
    used_list u = {.source = j->source, .err = err, .status = HY_OK};
    layout_walk(&c, SCHEME_BF16, add_used, &u);
    hy_status s = u.status;
    if (s == HY_OK) {
        qsort(u.data, u.count, sizeof *u.data, by_address);
        if (!layout_walk(&c, j->options->scheme, layout_list_add, &j->list))
            s = error_memory(err, "a list of tensors", 0);
    }
    if (s == HY_OK) s = list_copies(j, &u, err);
    if (s == HY_OK) s = layout_list_finish(&j->list, err);
    free(u.data);
    return s;
}

/* ---- The files beside the weights ----------------------------------------------------------------------------------
 */

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcasecmp(name + n - m, end);
}

/* Tokenizer, template, processor and licence files. What speaks of the weights is written anew. */
static bool is_side_file(const char *name)
{
    static const char *const ends[] = {".json", ".jinja", ".txt", ".model", ".tiktoken", ".py", "LICENSE"};
    if (name[0] == '.' || !strcmp(name, "config.json") || !strcmp(name, "hf_quant_config.json") ||
        ends_with(name, ".index.json"))
        return false;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (ends_with(name, ends[i])) return true;
    return false;
}

/* Copies the files of a folder that `wanted` accepts (NULL: all). */
static hy_status copy_files(output *o, const char *folder, bool (*wanted)(const char *name), hy_error *err)
{
    DIR *d = opendir(folder);
    if (!d) return error_at(err, HY_FAILED, folder, "cannot list %s", folder);
    hy_status s = HY_OK;
    for (struct dirent *e; s == HY_OK && (e = readdir(d));) {
        char path[PATH_SIZE];
        if (wanted ? !wanted(e->d_name) : e->d_name[0] == '.') continue;
        s = file_join(folder, e->d_name, path, sizeof path, err);
        if (s == HY_OK && !file_is_folder(path)) s = output_copy(o, path, e->d_name, err);
    }
    closedir(d);
    return s;
}

static hy_status write_files(job *j, hy_error *err)
{
    char path[PATH_SIZE];
    size_t length = 0;
    const char *folder = checkpoint_folder(j->source);
    char *text = config_write(checkpoint_config(j->source), (int)j->options->scheme, &length);
    hy_status s = text ? output_file(j->out, "config.json", text, length, err) : error_memory(err, "config.json", 4096);
    free(text);
    if (s == HY_OK) s = copy_files(j->out, folder, is_side_file, err);
    if (s != HY_OK || !checkpoint_draft(j->source)) return s;
    output *sub = NULL;
    s = output_subfolder(j->out, "dspark", &sub, err);
    if (s == HY_OK) s = file_join(folder, "dspark", path, sizeof path, err);
    return s == HY_OK ? copy_files(sub, path, NULL, err) : s;
}

/* ---- The run -------------------------------------------------------------------------------------------------------
 */

static hy_status run(job *j, const char *folder, hy_error *err)
{
    hy_status s = layout_check(checkpoint_config(j->source), j->options->scheme, err);
    if (s == HY_OK) s = threads_open(0, &j->pool, err);
    if (s != HY_OK) return s;
    j->bad = calloc((size_t)threads_count(j->pool), sizeof *j->bad);
    if (!j->bad) return error_memory(err, "flags", (size_t)threads_count(j->pool));
    s = list_tensors(j, err);
    if (s == HY_OK)
        s = take(j, ROLE_Q, 0, 0, err); /* an already quantised source is refused before anything is written */
    if (s == HY_OK) s = output_open(folder, &j->out, err);
    if (s != HY_OK) return s;
    for (size_t i = 0; i < j->list.count; i++) j->progress.total += layout_entry_bytes(&j->list.entries[i]);
    s = output_check_space(j->out, j->progress.total, err);
    if (s == HY_OK) s = write_files(j, err);
    if (s == HY_OK) s = output_begin(j->out, j->list.files, j->list.count, j->options->shard_bytes, false, err);
    size_t text = j->list.count - j->copy_count;
    for (size_t i = 0; i < text && s == HY_OK; i++) s = write_entry(j, &j->list.entries[i], err);
    for (size_t i = 0; i < j->copy_count && s == HY_OK; i++) s = write_copy(j, j->copies[i], err);
    if (s == HY_OK) s = output_end(j->out, err);
    if (s == HY_OK) progress_end(&j->progress);
    return s;
}

hy_status quantize_run(const checkpoint *source, const char *folder, const quantize_options *options, hy_error *err)
{
    static const quantize_options defaults = {.scheme = SCHEME_M31};
    if (!options) options = &defaults;
    if (options->scheme == SCHEME_BF16)
        return error_set(err, HY_USAGE, "bf16 is no quantisation: the schemes are m31, mxfp8 and modelopt");
    job j = {.source = source, .options = options, .shared_layer = -1, .shared_expert = -1};
    j.progress = (progress){.fn = options->on_progress, .user = options->user, .what = "quantising", .unit = "bytes"};
    hy_status s = run(&j, folder, err);
    if (s == HY_OK)
        output_close(j.out);
    else
        output_abort(j.out);
    threads_close(j.pool);
    layout_list_free(&j.list);
    free(j.copies);
    free(j.bad);
    memory_free(j.data);
    memory_free(j.scales);
    memory_free(j.rows);
    return s;
}
