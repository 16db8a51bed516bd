#include "tasks/write_set.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/threads.h"

enum {
    BATCH_TOKENS = 1 << 21, /* made before they are written: some 6 MB */
    ATTEMPTS = 200,         /* tasks drawn for a row until one fits */
};

/* What a batch of rows is made into, and from what. */
typedef struct batch {
    const write_set_options *options;
    const row_tokens *tokens;
    const double *mix;
    int length;
    uint64_t first;    /* number of its first row */
    uint16_t *ids;     /* [rows, length] */
    uint8_t *weights;  /* [rows, length] */
    buffer *lines;     /* [rows], JSON lines instead; NULL: ids and weights */
    uint8_t *set;      /* [rows] */
    uint32_t *used;    /* [rows] */
    uint32_t *written; /* [rows] */
    row *scratch;      /* [threads] */
    hy_error *errors;  /* [threads] */
    atomic_int status; /* the first failure */
} batch;

typedef struct writer {
    const write_set_options *options;
    write_set_report *report;
    row_tokens tokens;
    threads *pool;
    FILE *ids, *weights, *lines;
    char ids_path[PATH_MAX], weights_path[PATH_MAX];
    uint64_t done, total; /* tokens */
    hy_error *err;
} writer;

/* ---- One row -------------------------------------------------------------------------------------------------- */

static task_set choose(const double *mix, draw *d)
{
    double at = (double)(draw_bits(d) >> 11) * 0x1p-53;
    int last = 0;
    for (int set = 0; set < TASK_SETS; set++) {
        if (mix[set] <= 0) continue;
        last = set;
        if (at < mix[set]) break;
        at -= mix[set];
    }
    return (task_set)last;
}

static void put_line(buffer *out, const task *t, const buffer *rendered)
{
    json_writer w = {.out = out};
    writer_object(&w);
    writer_key(&w, "set"), writer_text(&w, task_set_name(t->set));
    writer_key(&w, "family"), writer_text(&w, task_family_name(t->set, t->family));
    writer_key(&w, "thinking_mode"), writer_text(&w, t->thinking);
    const json_t *parts[] = {t->messages, t->tools};
    for (int i = 0; i < 2; i++) {
        char *text = parts[i] ? json_dumps(parts[i], JSON_COMPACT) : NULL;
        if (!text) continue;
        writer_key(&w, i ? "tools" : "messages"), writer_raw(&w, text, strlen(text));
        free(text);
    }
    writer_key(&w, "text"), writer_string(&w, rendered->data, rendered->length);
    writer_end(&w);
    buffer_char(out, '\n');
}

static void put_row(batch *b, int64_t i, const row *r)
{
    size_t length = (size_t)b->length, at = (size_t)i * length;
    for (size_t k = 0; k < r->fits; k++) b->ids[at + k] = (uint16_t)r->ids[k];
    for (size_t k = r->fits; k < length; k++) b->ids[at + k] = (uint16_t)b->tokens->pad;
    memcpy(b->weights + at, r->weights, r->fits);
    memset(b->weights + at + r->fits, ROW_PADDING, length - r->fits);
}

static hy_status make_row(batch *b, int64_t i, row *r, hy_error *err)
{
    const write_set_options *o = b->options;
    /* The length in the number: rows of several lengths share nothing. */
    draw d = draw_begin(o->seed ^ (o->split == TASK_HELD_OUT ? UINT64_C(1) << 63 : 0),
                        (uint64_t)b->length << 40 | (b->first + (uint64_t)i));
    task_set set = choose(b->mix, &d);
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        task t;
        task_make(set, o->split, &d, b->length, &t);
        hy_status s = row_encode(r, b->tokens, &t, (size_t)b->length, err);
        bool fits = s == HY_OK && r->fits;
        if (fits && b->lines) put_line(&b->lines[i], &t, &r->text);
        task_free(&t);
        if (s != HY_OK) return s;
        if (!fits) continue;
        if (b->ids) put_row(b, i, r);
        b->set[i] = (uint8_t)set, b->used[i] = (uint32_t)r->fits, b->written[i] = (uint32_t)r->written;
        return HY_OK;
    }
    return error_set(err, HY_USAGE, "of %d tasks of set %s none fits into a row of %d tokens: take it out of the mix",
                     ATTEMPTS, task_set_name(set), b->length);
}

static void make_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    batch *b = arg;
    for (int64_t i = begin; i < end && !atomic_load_explicit(&b->status, memory_order_relaxed); i++) {
        hy_status s = make_row(b, i, &b->scratch[worker], &b->errors[worker]);
        int none = HY_OK;
        if (s != HY_OK) atomic_compare_exchange_strong(&b->status, &none, (int)s);
    }
}

/* ---- Batches -------------------------------------------------------------------------------------------------- */

static bool batch_open(batch *b, const writer *w, size_t rows)
{
    size_t tokens = rows * (size_t)b->length, workers = (size_t)threads_count(w->pool);
    if (w->lines) {
        b->lines = calloc(rows, sizeof *b->lines);
    } else {
        b->ids = malloc(tokens * sizeof *b->ids);
        b->weights = malloc(tokens);
    }
    b->set = malloc(rows);
    b->used = malloc(rows * sizeof *b->used);
    b->written = malloc(rows * sizeof *b->written);
    b->scratch = calloc(workers, sizeof *b->scratch);
    b->errors = calloc(workers, sizeof *b->errors);
    return (b->lines || (b->ids && b->weights)) && b->set && b->used && b->written && b->scratch && b->errors;
}

static void batch_close(batch *b, const writer *w, size_t rows)
{
    for (size_t i = 0; b->lines && i < rows; i++) buffer_free(&b->lines[i]);
    for (int i = 0; b->scratch && i < threads_count(w->pool); i++) row_free(&b->scratch[i]);
    free(b->lines), free(b->ids), free(b->weights), free(b->set), free(b->used), free(b->written);
    free(b->scratch), free(b->errors);
}

static hy_status put(FILE *file, const void *data, size_t size, const char *path, hy_error *err)
{
    if (fwrite(data, 1, size, file) == size) return HY_OK;
    return error_at(err, HY_FAILED, path, "cannot write: %s", strerror(errno));
}

/* uint16 in the file is little endian whatever the machine is. */
static void to_little_endian(uint16_t *ids, size_t count)
{
    if (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__) return;
    for (size_t i = 0; i < count; i++) ids[i] = (uint16_t)(ids[i] << 8 | ids[i] >> 8);
}

static hy_status batch_write(batch *b, writer *w, size_t rows)
{
    size_t tokens = rows * (size_t)b->length;
    hy_status s = HY_OK;
    if (w->lines) {
        for (size_t i = 0; i < rows && s == HY_OK; i++) {
            if (!buffer_ok(&b->lines[i])) return error_memory(w->err, "a conversation", b->lines[i].length);
            s = put(w->lines, b->lines[i].data, b->lines[i].length, w->options->path, w->err);
            buffer_clear(&b->lines[i]);
        }
        return s;
    }
    to_little_endian(b->ids, tokens);
    s = put(w->ids, b->ids, tokens * sizeof *b->ids, w->ids_path, w->err);
    if (s == HY_OK) s = put(w->weights, b->weights, tokens, w->weights_path, w->err);
    return s;
}

static hy_status batch_failed(const batch *b, const writer *w)
{
    hy_status s = (hy_status)atomic_load(&b->status);
    for (int i = 0; i < threads_count(w->pool); i++)
        if (b->errors[i].status == s && w->err) *w->err = b->errors[i];
    return s;
}

static hy_status progress(writer *w)
{
    const write_set_options *o = w->options;
    if (!o->on_progress || o->on_progress(o->user, "making", w->done, w->total, "tokens")) return HY_OK;
    return error_set(w->err, HY_FAILED, "interrupted: nothing was written");
}

static hy_status write_length(writer *w, int index)
{
    const write_set_options *o = w->options;
    int length = o->lengths[index].length;
    uint64_t rows = w->report->rows[index];
    size_t room = BATCH_TOKENS / (size_t)length + 1;
    batch b = {.options = o, .tokens = &w->tokens, .mix = w->report->mix[index], .length = length};
    hy_status s = batch_open(&b, w, room) ? HY_OK : error_memory(w->err, "a batch of rows", room * (size_t)length * 3);
    for (; b.first < rows && s == HY_OK; b.first += room) {
        size_t count = rows - b.first < room ? (size_t)(rows - b.first) : room;
        threads_run(w->pool, (int64_t)count, 1, make_rows, &b);
        s = atomic_load(&b.status) ? batch_failed(&b, w) : batch_write(&b, w, count);
        for (size_t i = 0; i < count && s == HY_OK; i++) {
            write_set_count *c = &w->report->by_set[index][b.set[i]];
            c->rows++, c->used += b.used[i], c->written += b.written[i];
        }
        w->done += count * (uint64_t)length;
        if (s == HY_OK) s = progress(w);
    }
    batch_close(&b, w, room);
    return s;
}

/* ---- Plans ---------------------------------------------------------------------------------------------------- */

/* By task_set: short rows have little room beside the description of tools, long ones are for what needs them. */
static const struct mix {
    int longest;
    double shares[TASK_SETS];
} mixes[] = {
    {640, {.32, .17, .06, .11, .20, .14}},
    {2048, {.21, .11, .16, .28, .13, .11}},
    {INT_MAX, {.05, .02, .66, .15, .06, .06}},
};

static const double *mix_for(int length)
{
    size_t i = 0;
    while (length > mixes[i].longest) i++;
    return mixes[i].shares;
}

static hy_status plan(const write_set_options *o, write_set_report *report, hy_error *err)
{
    double shares = 0, given = 0;
    *report = (write_set_report){0};
    if (o->length_count < 1) return error_set(err, HY_USAGE, "no length of rows was given");
    for (int set = 0; set < TASK_SETS; set++) {
        given += o->mix[set];
        if (o->mix[set] > 0 && !task_set_present((task_set)set))
            return error_set(err, HY_USAGE, "set %s cannot be made yet: take it out of the mix",
                             task_set_name((task_set)set));
    }
    for (int i = 0; i < o->length_count; i++) {
        if (o->lengths[i].length < WRITE_SET_SHORTEST || o->lengths[i].length > WRITE_SET_LONGEST)
            return error_set(err, HY_USAGE, "rows of %d tokens: they have %d to %d, since the prompt's head has 250",
                             o->lengths[i].length, WRITE_SET_SHORTEST, WRITE_SET_LONGEST);
        for (int k = 0; k < i; k++)
            if (o->lengths[k].length == o->lengths[i].length)
                return error_set(err, HY_USAGE, "the length %d is given twice", o->lengths[i].length);
        shares += o->lengths[i].share;
    }
    for (int i = 0; i < o->length_count; i++) {
        const double *mix = given > 0 ? o->mix : mix_for(o->lengths[i].length);
        double sum = 0;
        for (int set = 0; set < TASK_SETS; set++) sum += task_set_present((task_set)set) ? mix[set] : 0;
        for (int set = 0; set < TASK_SETS; set++)
            report->mix[i][set] = task_set_present((task_set)set) ? mix[set] / sum : 0;
        double rows = (double)o->tokens * o->lengths[i].share / shares / o->lengths[i].length;
        report->rows[i] = (uint64_t)rows < 1 ? 1 : (uint64_t)rows;
    }
    return HY_OK;
}

/* ---- Files ---------------------------------------------------------------------------------------------------- */

static bool is_lines(const char *path)
{
    size_t n = strlen(path);
    return n > 6 && strcmp(path + n - 6, ".jsonl") == 0;
}

static hy_status open_file(const char *path, FILE **out, hy_error *err)
{
    *out = fopen(path, "wb");
    return *out ? HY_OK : error_at(err, HY_FAILED, path, "cannot create the file: %s", strerror(errno));
}

static hy_status close_file(FILE **file, const char *path, hy_error *err)
{
    FILE *f = *file;
    *file = NULL;
    if (!f || fclose(f) == 0) return HY_OK;
    return error_at(err, HY_FAILED, path, "cannot write: %s", strerror(errno));
}

static hy_status rows_path(const char *folder, int length, const char *what, char out[PATH_MAX], hy_error *err)
{
    char name[64];
    snprintf(name, sizeof name, "rows-%d.%s", length, what);
    return file_join(folder, name, out, PATH_MAX, err);
}

static hy_status write_rows(writer *w)
{
    const write_set_options *o = w->options;
    hy_status s = HY_OK;
    for (int i = 0; i < o->length_count && s == HY_OK; i++) {
        s = rows_path(o->path, o->lengths[i].length, "ids", w->ids_path, w->err);
        if (s == HY_OK) s = rows_path(o->path, o->lengths[i].length, "weights", w->weights_path, w->err);
        if (s == HY_OK) s = open_file(w->ids_path, &w->ids, w->err);
        if (s == HY_OK) s = open_file(w->weights_path, &w->weights, w->err);
        if (s == HY_OK) s = write_length(w, i);
        hy_status closed = close_file(&w->ids, w->ids_path, s == HY_OK ? w->err : NULL);
        if (s == HY_OK) s = closed;
        closed = close_file(&w->weights, w->weights_path, s == HY_OK ? w->err : NULL);
        if (s == HY_OK) s = closed;
    }
    return s;
}

static void put_counts(json_writer *j, const write_set_report *r, int index)
{
    writer_key(j, "sets"), writer_object(j);
    for (int set = 0; set < TASK_SETS; set++) {
        const write_set_count *c = &r->by_set[index][set];
        if (!c->rows) continue;
        writer_key(j, task_set_name((task_set)set)), writer_object(j);
        writer_key(j, "share"), writer_number(j, r->mix[index][set]);
        writer_key(j, "rows"), writer_unsigned(j, c->rows);
        writer_key(j, "tokens"), writer_unsigned(j, c->used);
        writer_key(j, "written"), writer_unsigned(j, c->written);
        writer_end(j);
    }
    writer_end(j);
}

static hy_status write_description(const writer *w)
{
    const write_set_options *o = w->options;
    char path[PATH_MAX], name[64];
    buffer text = {0};
    json_writer j = {.out = &text};
    writer_object(&j);
    writer_key(&j, "seed"), writer_unsigned(&j, o->seed);
    writer_key(&j, "split"), writer_text(&j, o->split == TASK_HELD_OUT ? "held-out" : "train");
    writer_key(&j, "tokenizer_sha256"), writer_text(&j, o->tokenizer_sha256);
    writer_key(&j, "vocab_size"), writer_integer(&j, text_tokenizer_vocab_size(w->tokens.tokenizer));
    writer_key(&j, "pad"), writer_integer(&j, w->tokens.pad);
    writer_key(&j, "rows"), writer_array(&j);
    for (int i = 0; i < o->length_count; i++) {
        writer_object(&j);
        writer_key(&j, "length"), writer_integer(&j, o->lengths[i].length);
        writer_key(&j, "rows"), writer_unsigned(&j, w->report->rows[i]);
        snprintf(name, sizeof name, "rows-%d.ids", o->lengths[i].length);
        writer_key(&j, "ids"), writer_text(&j, name);
        snprintf(name, sizeof name, "rows-%d.weights", o->lengths[i].length);
        writer_key(&j, "weights"), writer_text(&j, name);
        put_counts(&j, w->report, i);
        writer_end(&j);
    }
    writer_end(&j), writer_end(&j);
    buffer_char(&text, '\n');
    FILE *file = NULL;
    hy_status s = buffer_ok(&text) ? HY_OK : error_memory(w->err, "set.json", 0);
    if (s == HY_OK) s = file_join(o->path, "set.json", path, sizeof path, w->err);
    if (s == HY_OK) s = open_file(path, &file, w->err);
    if (s == HY_OK) s = put(file, text.data, text.length, path, w->err);
    hy_status closed = close_file(&file, path, s == HY_OK ? w->err : NULL);
    buffer_free(&text);
    return s == HY_OK ? closed : s;
}

static void remove_files(const write_set_options *o)
{
    static const char *const kinds[] = {"ids", "weights"};
    char path[PATH_MAX];
    for (int i = 0; i < o->length_count; i++)
        for (int k = 0; k < 2; k++)
            if (rows_path(o->path, o->lengths[i].length, kinds[k], path, NULL) == HY_OK) unlink(path);
    if (file_join(o->path, "set.json", path, sizeof path, NULL) == HY_OK) unlink(path);
}

static hy_status write_folder(writer *w)
{
    char path[PATH_MAX];
    const char *folder = w->options->path;
    bool made = mkdir(folder, 0777) == 0;
    if (!made && errno != EEXIST)
        return error_at(w->err, HY_FAILED, folder, "cannot make the folder: %s", strerror(errno));
    hy_status s = file_join(folder, "set.json", path, sizeof path, w->err);
    if (s == HY_OK && file_present(path))
        return error_at(w->err, HY_USAGE, folder, "there is a set already: name another folder, or remove that one");
    if (s == HY_OK) s = write_rows(w);
    if (s == HY_OK) s = write_description(w);
    if (s == HY_OK) return s;
    remove_files(w->options);
    if (made) rmdir(folder);
    return s;
}

static hy_status write_lines(writer *w)
{
    const write_set_options *o = w->options;
    hy_status s = open_file(o->path, &w->lines, w->err);
    if (s != HY_OK) return s;
    for (int i = 0; i < o->length_count && s == HY_OK; i++) s = write_length(w, i);
    hy_status closed = close_file(&w->lines, o->path, s == HY_OK ? w->err : NULL);
    if (s == HY_OK) s = closed;
    if (s != HY_OK) unlink(o->path);
    return s;
}

hy_status write_set(const text_tokenizer *tokenizer, const write_set_options *options, write_set_report *report,
                    hy_error *err)
{
    writer w = {.options = options, .report = report, .err = err};
    hy_status s = plan(options, report, err);
    if (s == HY_OK) s = row_tokens_find(tokenizer, &w.tokens, err);
    if (s == HY_OK) s = threads_open(options->threads, &w.pool, err);
    if (s != HY_OK) return s;
    for (int i = 0; i < options->length_count; i++) w.total += report->rows[i] * (uint64_t)options->lengths[i].length;
    s = is_lines(options->path) ? write_lines(&w) : write_folder(&w);
    threads_close(w.pool);
    return s;
}
