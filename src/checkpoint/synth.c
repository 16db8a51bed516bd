/*
 * Every tensor has a random stream of its own, keyed by the seed and its name; a value depends on its place in the
 * tensor alone. So files are the same whatever the shard size, the number of threads or the layers beside it.
 *
 * Numbers come from tables of normal quantiles: a plain weight is the sum of two of 4,096 values, an E4M3 or E2M1 code
 * is looked up directly, so that quantised files are made at memory speed without quantising anything.
 */
#include "checkpoint/synth.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/threads.h"
#include "checkpoint/output.h"
#include "checkpoint/synth_made.h"
#include "number/bf16.h"
#include "number/e2m1.h"
#include "number/e4m3.h"

enum {
    PIECE_BYTES = 16 << 20, /* written at once */
    CHUNK_BYTES = 64 << 10, /* made at once by one thread; a multiple of what one draw gives */
    SCALES = 8,             /* E4M3 codes that block scales are drawn from: 0x70 .. 0x77, values 128 .. 240 */
};

/* Units in which codes hold a weight of standard deviation 1: the largest quantiles just saturate. */
#define E4M3_UNIT 128.0f
#define E2M1_UNIT 3.4f

typedef synth_tables tables;

/* One tensor being filled. */
typedef struct stream {
    const tables *tables;
    synth_stream of;
    uint8_t *out;          /* the piece */
    uint64_t begin, bytes; /* of the tensor: where the piece begins; its length */
} stream;

/* ---- Random bits ------------------------------------------------------------------------------------------------- */

/* The finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014). */
static inline uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    return x ^ x >> 31;
}

/* The 64 bits at a place of a stream. */
static inline uint64_t draw(uint64_t key, uint64_t place)
{
    return mix(key + (place + 1) * 0x9E3779B97F4A7C15);
}

static uint64_t stream_key(uint64_t seed, const char *name)
{
    uint64_t h = mix(seed ^ 0x6861796174650001);
    for (; *name; name++) h = mix(h ^ (uint8_t)*name);
    return h;
}

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

/* The x with P(N(0,1) < x) = p, by bisection on erfc. */
static double normal_quantile(double p)
{
    double low = -9, high = 9;
    for (int i = 0; i < 60; i++) {
        double middle = (low + high) / 2;
        if (0.5 * erfc(-middle / sqrt(2)) < p)
            low = middle;
        else
            high = middle;
    }
    return (low + high) / 2;
}

static void tables_make(tables *t)
{
    double squares = 0, codes = 0, scales = 0;
    for (int i = 0; i < SYNTH_QUANTILES; i++) {
        double z = normal_quantile((i + 0.5) / SYNTH_QUANTILES);
        t->normal[i] = (float)z;
        squares += z * z;
        t->e4m3[i] = e4m3_from_float((float)z * E4M3_UNIT);
        codes += pow(e4m3_to_float(t->e4m3[i]), 2);
    }
    for (int i = 0; i < SYNTH_QUANTILES; i++)
        t->normal[i] = (float)(t->normal[i] / sqrt(2 * squares / SYNTH_QUANTILES));
    t->e4m3_rms = sqrt(codes / SYNTH_QUANTILES);
    codes = 0;
    for (int i = 0; i < 256; i++) {
        t->e2m1[i] = e2m1_from_float((float)normal_quantile((i + 0.5) / 256) * E2M1_UNIT);
        codes += pow(e2m1_to_float(t->e2m1[i]), 2);
    }
    for (int i = 0; i < SCALES; i++) scales += pow(e4m3_to_float((uint8_t)(0x70 + i)), 2);
    t->e2m1_rms = sqrt(codes / 256 * scales / SCALES);
}

/* ---- Filling ----------------------------------------------------------------------------------------------------- */

/* A value from 24 of a draw's bits; `half` picks the lower or the upper 32. */
static inline float normal(const stream *s, uint64_t bits, int half)
{
    uint32_t b = (uint32_t)(bits >> (32 * half));
    return s->of.mean + s->of.deviation * (s->tables->normal[b & 4095] + s->tables->normal[b >> 12 & 4095]);
}

static void fill_f32(const stream *s, uint64_t begin, uint64_t bytes, uint8_t *out)
{
    for (uint64_t i = 0; i < bytes / 4; i++) {
        uint64_t n = begin / 4 + i;
        float x = normal(s, draw(s->of.key, n / 2), (int)(n % 2));
        memcpy(out + 4 * i, &x, 4);
    }
}

static void fill_bf16(const stream *s, uint64_t begin, uint64_t bytes, uint8_t *out)
{
    uint64_t count = bytes / 2, first = begin / 2, i = 0;
    for (; i + 1 < count; i += 2) { /* `first` is even: chunks begin on draws */
        uint64_t bits = draw(s->of.key, (first + i) / 2);
        uint16_t pair[2] = {bf16_from_float(normal(s, bits, 0)), bf16_from_float(normal(s, bits, 1))};
        memcpy(out + 2 * i, pair, 4);
    }
    if (i < count) {
        uint16_t last = bf16_from_float(normal(s, draw(s->of.key, (first + i) / 2), 0));
        memcpy(out + 2 * i, &last, 2);
    }
}

/* Bytes that each come from 16 bits of a draw. */
#define FILL_BYTES(name, expression)                                                                                   \
    static void name(const stream *s, uint64_t begin, uint64_t bytes, uint8_t *out)                                    \
    {                                                                                                                  \
        const tables *t = s->tables;                                                                                   \
        (void)t;                                                                                                       \
        for (uint64_t i = 0; i < bytes; i += 4) {                                                                      \
            uint64_t bits = draw(s->of.key, (begin + i) / 4), n = bytes - i < 4 ? bytes - i : 4;                       \
            for (uint64_t j = 0; j < n; j++, bits >>= 16) out[i + j] = (uint8_t)(expression);                          \
        }                                                                                                              \
    }
FILL_BYTES(fill_e4m3, t->e4m3[bits & 4095])
FILL_BYTES(fill_e2m1, t->e2m1[bits & 255] | t->e2m1[bits >> 8 & 255] << 4)
FILL_BYTES(fill_e8m0, s->of.scale_low + ((bits & 0xFFFF) < s->of.scale_up))
FILL_BYTES(fill_scale, 0x70 + (bits & (SCALES - 1)))

static void fill_constant(const stream *s, uint64_t bytes, uint8_t *out)
{
    uint16_t half = bf16_from_float(s->of.mean);
    if (s->of.kind == SYNTH_F32)
        for (uint64_t i = 0; i < bytes; i += 4) memcpy(out + i, &s->of.mean, 4);
    else
        for (uint64_t i = 0; i < bytes; i += 2) memcpy(out + i, &half, 2);
}

static void fill_piece(void *arg, int64_t begin, int64_t end, int worker)
{
    const stream *s = arg;
    (void)worker;
    for (int64_t chunk = begin; chunk < end; chunk++) {
        uint64_t at = (uint64_t)chunk * CHUNK_BYTES, place = s->begin + at;
        uint64_t bytes = s->bytes - at < CHUNK_BYTES ? s->bytes - at : CHUNK_BYTES;
        uint8_t *out = s->out + at;
        if (s->of.constant) {
            fill_constant(s, bytes, out);
            continue;
        }
        switch (s->of.kind) {
        case SYNTH_E4M3: fill_e4m3(s, place, bytes, out); break;
        case SYNTH_E2M1: fill_e2m1(s, place, bytes, out); break;
        case SYNTH_E8M0: fill_e8m0(s, place, bytes, out); break;
        case SYNTH_E4M3_SCALE: fill_scale(s, place, bytes, out); break;
        case SYNTH_F32: fill_f32(s, place, bytes, out); break;
        case SYNTH_BF16: fill_bf16(s, place, bytes, out); break;
        }
    }
}

/* ---- What a tensor holds ----------------------------------------------------------------------------------------- */

/* Standard deviation of a linear's weights. Outputs that are added to the residual stream are smaller by
 * sqrt(2 * layers), so that the sum of all layers is of order one. */
static double linear_deviation(const config *c, const layout_entry *e)
{
    double d = 1 / sqrt((double)e->fan_in);
    size_t n = strlen(e->name);
    bool adds =
        e->role == ROLE_O || e->role == ROLE_DENSE_DOWN || e->role == ROLE_EXPERT_DOWN || e->role == ROLE_SHARED_DOWN;
    if (e->role == ROLE_COUNT && n > 7) /* the drafter's and the vision tower's, told by their names */
        adds = strstr(e->name, ".o_proj.") || strstr(e->name, ".down_proj.") || strstr(e->name, ".out_proj.") ||
               strstr(e->name, ".fc2.");
    return adds ? d / sqrt(2.0 * c->layers) : d;
}

static synth_kind kind_of(const layout_entry *e)
{
    switch (e->fill) {
    case FILL_E4M3: return SYNTH_E4M3;
    case FILL_E2M1: return SYNTH_E2M1;
    case FILL_E8M0: return SYNTH_E8M0;
    case FILL_E4M3_SCALE: return SYNTH_E4M3_SCALE;
    default: return e->dtype == TENSOR_F32 ? SYNTH_F32 : SYNTH_BF16;
    }
}

static synth_stream stream_for(const config *c, const synth_options *options, const tables *t, const layout_entry *e)
{
    synth_stream s = {.kind = kind_of(e), .key = stream_key(options->seed, e->name)};
    double d = linear_deviation(c, e);
    s.constant = e->fill == FILL_GLOBAL || e->fill == FILL_ONE;
    switch (e->fill) {
    case FILL_LINEAR: s.deviation = (float)d; break;
    case FILL_ROUTER: s.deviation = (float)d; break;
    case FILL_EMBED: s.deviation = 1; break;
    case FILL_NORM: s.deviation = 0.1f; break; /* the gain in use is 1 + w */
    case FILL_ROUTER_BIAS: s.deviation = 0.1f; break;
    case FILL_BIAS: s.deviation = 0.02f; break;
    case FILL_ONE: s.mean = 1; break;
    case FILL_GLOBAL: /* code * scale / global has deviation d */
        s.mean = options->scheme == SCHEME_MODELOPT ? (float)(d / t->e2m1_rms) : (float)(t->e2m1_rms / d);
        break;
    case FILL_E8M0: { /* bytes b and b + 1 with 4^b, 4^(b+1) averaging to the wanted square */
        double want = log2(d / t->e4m3_rms), low = floor(want);
        double share = (pow(4, want - low) - 1) / 3;
        s.scale_low = (uint8_t)(127 + low);
        s.scale_up = (uint32_t)(share * 65536);
        break;
    }
    case FILL_E4M3:
    case FILL_E2M1:
    case FILL_E4M3_SCALE: break;
    }
    return s;
}

/* What others make where they are wanted is left out: matrices of some size. What is read here is there. */
static bool left_out(const layout_entry *e, const synth_stream *s)
{
    return !s->constant && e->dims > 1 && e->shape[0] > 1 && layout_entry_bytes(e) > SYNTH_MADE_HERE;
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

typedef struct job {
    const config *c;
    const synth_options *options;
    tables tables;
    threads *pool;
    uint8_t *piece; /* [PIECE_BYTES] */
    progress progress;
} job;

/* Into a folder's shards or into one file. */
typedef struct sink {
    output *folder;
    safetensors_writer *file;
} sink;

static hy_status write_piece(const sink *to, const void *data, size_t bytes, hy_error *err)
{
    return to->folder ? output_write(to->folder, data, bytes, err) : safetensors_write(to->file, data, bytes, err);
}

static hy_status write_tensor(job *j, const sink *to, const layout_entry *e, hy_error *err)
{
    stream s = {.tables = &j->tables, .of = stream_for(j->c, j->options, &j->tables, e)};
    uint64_t total = layout_entry_bytes(e);
    if (j->options->holes && left_out(e, &s.of)) return safetensors_skip(to->file, total, err);
    for (s.begin = 0; s.begin < total; s.begin += s.bytes) {
        s.out = j->piece;
        s.bytes = total - s.begin < PIECE_BYTES ? total - s.begin : PIECE_BYTES;
        threads_run(j->pool, (int64_t)((s.bytes + CHUNK_BYTES - 1) / CHUNK_BYTES), 1, fill_piece, &s);
        hy_status status = write_piece(to, s.out, (size_t)s.bytes, err);
        if (status != HY_OK) return status;
        if (!progress_add(&j->progress, s.bytes)) return error_set(err, HY_CANCELLED, "stopped before the end");
    }
    return HY_OK;
}

static hy_status write_tensors(job *j, output *o, const layout_list *list, hy_error *err)
{
    const synth_options *options = j->options;
    hy_status s = output_begin(o, list->files, list->count, options->shard_bytes, options->holes, err);
    if (!options->holes)
        for (size_t i = 0; i < list->count && s == HY_OK; i++)
            s = write_tensor(j, &(sink){.folder = o}, &list->entries[i], err);
    return s == HY_OK ? output_end(o, err) : s;
}

static hy_status write_config(output *o, char *text /* moved */, size_t length, hy_error *err)
{
    hy_status s = text ? output_file(o, "config.json", text, length, err) : error_memory(err, "config.json", 4096);
    free(text);
    return s;
}

static hy_status write_generation_config(output *o, const config *c, hy_error *err)
{
    buffer b = {0};
    buffer_string(&b, "{\n");
    if (c->bos >= 0) buffer_printf(&b, "  \"bos_token_id\": %d,\n", c->bos);
    if (c->eos >= 0) buffer_printf(&b, "  \"eos_token_id\": %d,\n", c->eos);
    buffer_string(&b, "  \"do_sample\": true,\n  \"temperature\": 1.0,\n  \"top_k\": 40,\n  \"top_p\": 0.95\n}\n");
    hy_status s = buffer_ok(&b) ? output_file(o, "generation_config.json", b.data, b.length, err)
                                : error_memory(err, "generation_config.json", 256);
    buffer_free(&b);
    return s;
}

static hy_status write_folder(job *j, output *o, const layout_list *main, const layout_list *draft,
                              const draft_config *d, hy_error *err)
{
    size_t length = 0;
    char *text = config_write(j->c, (int)j->options->scheme, &length);
    hy_status s = write_config(o, text, length, err);
    if (s == HY_OK) s = write_generation_config(o, j->c, err);
    if (s == HY_OK) s = write_tensors(j, o, main, err);
    if (s != HY_OK || !j->options->drafter) return s;
    output *sub = NULL;
    s = output_subfolder(o, "dspark", &sub, err);
    if (s != HY_OK) return s;
    text = draft_config_write(d, &length);
    s = write_config(sub, text, length, err);
    return s == HY_OK ? write_tensors(j, sub, draft, err) : s;
}

static uint64_t list_bytes(const layout_list *list)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < list->count; i++) bytes += layout_entry_bytes(&list->entries[i]);
    return bytes;
}

static hy_status job_open(job *j, hy_error *err)
{
    hy_status s = threads_open(0, &j->pool, err);
    if (s != HY_OK) return s;
    j->piece = memory_alloc(PIECE_BYTES, 1);
    if (!j->piece) return error_memory(err, "a piece of a tensor", PIECE_BYTES);
    tables_make(&j->tables);
    return HY_OK;
}

hy_status synth_write(const config *c, const char *folder, const synth_options *options, hy_error *err)
{
    static const synth_options defaults = {.scheme = SCHEME_M31};
    if (!options) options = &defaults;
    job j = {.c = c, .options = options};
    layout_list main = {0}, draft = {0};
    draft_config d = config_drafter(c);
    output *o = NULL;
    hy_status s = layout_check(c, options->scheme, err);
    if (s != HY_OK) return s;
    layout_walk(c, options->scheme, layout_list_add, &main);
    if (options->drafter) layout_walk_draft(c, &d, layout_list_add, &draft);
    s = layout_list_finish(&main, err);
    if (s == HY_OK) s = layout_list_finish(&draft, err);
    if (s == HY_OK && !options->holes) s = job_open(&j, err);
    if (s == HY_OK) s = output_open(folder, &o, err);
    uint64_t bytes = list_bytes(&main) + list_bytes(&draft);
    j.progress = (progress){.fn = options->on_progress, .user = options->user, .what = "writing", .unit = "bytes"};
    j.progress.total = bytes;
    if (s == HY_OK && !options->holes) s = output_check_space(o, bytes, err);
    if (s == HY_OK) s = write_folder(&j, o, &main, &draft, &d, err);
    if (s == HY_OK && !options->holes) progress_end(&j.progress);
    if (s == HY_OK)
        output_close(o);
    else
        output_abort(o);
    threads_close(j.pool);
    memory_free(j.piece);
    layout_list_free(&main);
    layout_list_free(&draft);
    return s;
}

hy_status synth_file(const config *c, const draft_config *d, int fd, const char *name, const synth_options *options,
                     hy_error *err)
{
    job j = {.c = c, .options = options};
    layout_list list = {0};
    sink to = {0};
    if (d)
        layout_walk_draft(c, d, layout_list_add, &list);
    else
        layout_walk(c, options->scheme, layout_list_add, &list);
    hy_status s = layout_list_finish(&list, err);
    if (s == HY_OK) s = job_open(&j, err);
    if (s == HY_OK) s = safetensors_create_in(fd, name, list.files, list.count, &to.file, err);
    j.progress = (progress){.fn = options->on_progress,
                            .user = options->user,
                            .what = "making",
                            .unit = "bytes",
                            .total = list_bytes(&list)};
    for (size_t i = 0; i < list.count && s == HY_OK; i++) s = write_tensor(&j, &to, &list.entries[i], err);
    if (s == HY_OK) {
        progress_end(&j.progress);
        s = safetensors_finish(to.file, err);
    } else {
        safetensors_abort(to.file);
    }
    threads_close(j.pool);
    memory_free(j.piece);
    layout_list_free(&list);
    return s;
}

/* ---- Made elsewhere ---------------------------------------------------------------------------------------------- */

static int by_address(const void *a, const void *b)
{
    uintptr_t p = (uintptr_t)((const synth_piece *)a)->data, q = (uintptr_t)((const synth_piece *)b)->data;
    return (p > q) - (p < q);
}

hy_status synth_made_add(synth_made *made, const config *c, const draft_config *d, const synth_options *options,
                         const tensor *const *tensors, size_t count, hy_error *err)
{
    layout_list list = {0};
    if (d)
        layout_walk_draft(c, d, layout_list_add, &list);
    else
        layout_walk(c, options->scheme, layout_list_add, &list);
    hy_status status = layout_list_finish(&list, err);
    if (!made->count) tables_make(&made->tables);
    if (status == HY_OK &&
        !memory_reserve((void **)&made->piece, &made->room, made->count + count, sizeof *made->piece))
        status = error_memory(err, "the list of random weights", count * sizeof *made->piece);
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        const layout_entry *e = &list.entries[i];
        assert(count == list.count && strcmp(tensors[i]->name, e->name) == 0); /* one file, in its order */
        made->piece[made->count++] =
            (synth_piece){tensors[i]->data, tensors[i]->bytes, stream_for(c, options, &made->tables, e)};
    }
    if (status == HY_OK) qsort(made->piece, made->count, sizeof *made->piece, by_address);
    layout_list_free(&list);
    return status;
}

const synth_piece *synth_made_find(const synth_made *made, const void *data)
{
    synth_piece key = {.data = data};
    if (!made || !made->count) return NULL;
    return bsearch(&key, made->piece, made->count, sizeof *made->piece, by_address);
}

void synth_made_free(synth_made *made)
{
    free(made->piece);
    *made = (synth_made){0};
}
