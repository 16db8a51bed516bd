#include "model/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/memory.h"
#include "model/model_parts.h"

/* To be raised with every change to a backend after which any block of any model may hold other bits: roundings, the
 * order of sums, which kernel serves which shape, the layout of a row. */
enum { NUMERICS_REVISION = 1 };

enum {
    BUFFER = 1 << 20,
    PIECE = 16 << 20,  /* of files that are not read whole ... */
    SAMPLE = 64 << 10, /* ... its part that is read */
    CONFIG_LIMIT = 1 << 20,
};
static const uint64_t WHOLE = 512u << 20; /* bytes of all files up to which they are read whole */

typedef struct hasher {
    EVP_MD_CTX *digest;
    uint8_t *buffer; /* [BUFFER] */
    bool failed;
} hasher;

static void add(hasher *h, const void *bytes, size_t count)
{
    if (EVP_DigestUpdate(h->digest, bytes, count) != 1) h->failed = true;
}

static void add_number(hasher *h, uint64_t number)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(number >> 8 * i);
    add(h, bytes, sizeof bytes);
}

/* With its length, so that neighbours keep their ends. */
static void add_bytes(hasher *h, const void *bytes, size_t count)
{
    add_number(h, count);
    add(h, bytes, count);
}

static void add_text(hasher *h, const char *text)
{
    add_bytes(h, text, strlen(text));
}

static void add_float(hasher *h, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_number(h, bits);
}

/* ---- What is computed, and how ----------------------------------------------------------------------------------- */

static void add_backend(hasher *h, const hy_model *m)
{
    char variant[OPS_VARIANT] = "";
    if (m->ops->variant) m->ops->variant(m->backend, variant);
    add_text(h, "hayate numerics");
    add_number(h, NUMERICS_REVISION);
    add_text(h, m->ops->name);
    add_text(h, variant);
    add_number(h, m->formats.read);
    add_number(h, m->formats.activation);
}

static void add_layout(hasher *h, const cache_layout *l)
{
    add_text(h, cache_format_name(l->main));
    add_text(h, cache_format_name(l->index));
    const uint64_t sizes[] = {CACHE_BLOCK,
                              (uint64_t)l->layers,
                              (uint64_t)l->kv_heads,
                              (uint64_t)l->head_dim,
                              (uint64_t)l->index_dim,
                              l->head_bytes,
                              l->k_scales,
                              l->v_data,
                              l->v_scales,
                              l->index_scales,
                              l->row_bytes};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) add_number(h, sizes[i]);
    for (int i = 0; i < l->layers; i++) {
        add_number(h, l->main_offset[i]);
        add_number(h, l->index_offset[i]);
    }
}

/* The config says most of it once more; this is how it was understood, and what options have changed. */
static void add_shape(hasher *h, const ops_model *s)
{
    const int numbers[] = {s->layers,       s->hidden,       s->vocab,       s->max_positions, s->heads,
                           s->kv_heads,     s->head_dim,     s->rotary_dim,  s->experts,       s->experts_per_token,
                           s->expert_width, s->shared_width, s->dense_width, s->index_heads,   s->index_dim,
                           s->index_top,    s->index_local};
    const float reals[] = {s->rope_theta, s->norm_eps, s->routed_scaling, s->swiglu_alpha, s->swiglu_limit};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) add_number(h, (uint64_t)numbers[i]);
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) add_float(h, reals[i]);
    for (int i = 0; i < s->layers; i++) {
        add_number(h, (uint64_t)s->layer[i].sparse << 1 | (uint64_t)s->layer[i].moe);
        add_float(h, s->layer[i].k_scale);
        add_float(h, s->layer[i].v_scale);
    }
}

/* A drafter changes no token of "coupled" drafts, but blocks of other drafters hold another's context. */
static void add_drafter(hasher *h, const ops_drafter *d, const cache_layout *l)
{
    const int numbers[] = {d->layers,       d->heads,          d->kv_heads,      d->head_dim,   d->rotary_dim,
                           d->width,        d->window,         d->tap_count,     d->plain_norm, d->plain_swiglu,
                           l->draft_layers, l->draft_kv_heads, l->draft_head_dim};
    const float reals[] = {d->rope_theta, d->norm_eps, d->swiglu_alpha, d->swiglu_limit};
    add_text(h, "drafter");
    add_text(h, cache_format_name(l->draft));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) add_number(h, (uint64_t)numbers[i]);
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) add_float(h, reals[i]);
    for (int i = 0; i < d->tap_count; i++) add_number(h, (uint64_t)d->tap[i]);
    add_number(h, l->draft_offset);
    add_number(h, l->draft_head_bytes);
    add_number(h, l->draft_v_data);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static hy_status add_config(hasher *h, const char *folder, hy_error *err)
{
    char path[4096 + 16], *json = NULL;
    size_t length = 0;
    hy_status status = file_join(folder, "config.json", path, sizeof path, err);
    if (status == HY_OK) status = file_read(path, CONFIG_LIMIT, &json, &length, err);
    if (status != HY_OK) return status;
    add_bytes(h, json, length);
    free(json);
    return HY_OK;
}

static void add_tensors(hasher *h, const checkpoint *c, bool draft)
{
    size_t files = checkpoint_shard_count(c, draft), count = checkpoint_tensor_count(c, draft), file = 0;
    weight_file map = {0};
    add_number(h, count);
    for (size_t i = 0; i < count; i++) { /* they come in the order of the files */
        const tensor *t = checkpoint_tensor_at(c, i, draft);
        const uint8_t *data = t->data;
        while (file < files && (!map.data || data < map.data || data > map.data + map.bytes))
            map = checkpoint_shard_file(c, file++, draft);
        add_text(h, t->name);
        add_text(h, tensor_dtype_name(t->dtype));
        add_number(h, file);
        add_number(h, map.data ? (uint64_t)(data - map.data) : 0);
        add_number(h, t->bytes);
        add_number(h, (uint64_t)t->dims);
        for (int d = 0; d < t->dims; d++) add_number(h, (uint64_t)t->shape[d]);
    }
}

/* Bytes [begin, end) of an open file: read, since pages of the map would stay in the process. */
static hy_status add_range(hasher *h, int fd, const char *path, uint64_t begin, uint64_t end, hy_error *err)
{
    while (begin < end) {
        size_t want = end - begin < BUFFER ? (size_t)(end - begin) : BUFFER;
        ssize_t n = pread(fd, h->buffer, want, (off_t)begin);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return error_at(err, HY_FAILED, path, "%s could not be read: %s", path, strerror(errno));
        if (n == 0) return error_at(err, HY_FAILED, path, "%s was truncated while it was in use", path);
        add(h, h->buffer, (size_t)n);
        begin += (uint64_t)n;
    }
    return HY_OK;
}

static hy_status add_file(hasher *h, const weight_file *file, bool whole, hy_error *err)
{
    struct stat st;
    int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return error_at(err, HY_FAILED, file->path, "cannot open %s: %s", file->path, strerror(errno));
    hy_status status = HY_OK;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != file->bytes)
        status = error_at(err, HY_FAILED, file->path, "%s was changed while it was in use: open the model again",
                          file->path);
    if (status == HY_OK) {
        add_number(h, file->bytes);
        add_number(h, (uint64_t)st.st_mtim.tv_sec);
        add_number(h, (uint64_t)st.st_mtim.tv_nsec);
    }
    uint64_t step = whole ? (uint64_t)PIECE : (uint64_t)SAMPLE;
    for (uint64_t begin = 0; begin < file->bytes && status == HY_OK; begin += PIECE)
        status = add_range(h, fd, file->path, begin, begin + step < file->bytes ? begin + step : file->bytes, err);
    close(fd);
    return status;
}

static hy_status add_files(hasher *h, const checkpoint *c, bool draft, hy_error *err)
{
    uint64_t bytes = 0, seed;
    size_t count = checkpoint_shard_count(c, draft);
    hy_status status = HY_OK;
    if (checkpoint_has_config(c))
        status = add_config(h, draft ? checkpoint_draft_folder(c) : checkpoint_folder(c), err);
    if (status == HY_OK) add_tensors(h, c, draft);
    if (checkpoint_made(c, &seed)) { /* there is nothing in the file that says more */
        add_text(h, "random weights");
        add_number(h, seed);
        return status;
    }
    for (size_t i = 0; i < count; i++) bytes += checkpoint_shard_file(c, i, draft).bytes;
    add_number(h, count);
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        weight_file file = checkpoint_shard_file(c, i, draft);
        status = add_file(h, &file, bytes <= WHOLE, err);
    }
    return status;
}

hy_status model_identity(const hy_model *m, uint8_t id[32], hy_error *err)
{
    hasher h = {.digest = EVP_MD_CTX_new(), .buffer = memory_alloc(1, BUFFER)};
    hy_status status = h.digest && h.buffer ? HY_OK : error_memory(err, "the numerics id of a model", BUFFER);
    if (status == HY_OK) {
        h.failed = EVP_DigestInit_ex(h.digest, EVP_sha256(), NULL) != 1;
        add_backend(&h, m);
        add_layout(&h, &m->layout);
        add_shape(&h, &m->weights.shape);
        if (m->files) status = add_files(&h, m->files, false, err); /* a model of a test may have none */
        if (m->weights.shape.drafter) add_drafter(&h, m->weights.shape.drafter, &m->layout);
        if (m->drafts && m->files && status == HY_OK) status = add_files(&h, m->files, true, err);
    }
    uint8_t sum[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    if (status == HY_OK && (h.failed || EVP_DigestFinal_ex(h.digest, sum, &size) != 1 || size != 32))
        status = error_set(err, HY_FAILED, "the numerics id of the model could not be computed");
    if (status == HY_OK) memcpy(id, sum, 32);
    EVP_MD_CTX_free(h.digest);
    memory_free(h.buffer);
    return status;
}
