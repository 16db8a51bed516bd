#include "cli/eval_write.h"

#include <limits.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/source.h"
#include "cli/find_model.h"
#include "tasks/write_set.h"

eval_write_flags eval_write_defaults(void)
{
    return (eval_write_flags){.rows = "512,1024", .split = "train", .tokens = 1000000};
}

int eval_write_table(eval_write_flags *f, cli_option *table, int count)
{
    const cli_option own[] = {
        {"write-set", "DIR", "write a training set into a new folder, or as JSON lines into FILE.jsonl, and end",
         &f->path, CLI_STRING},
        {"tokens", "N", "with --write-set: about how many tokens, padding included (default 1m)", &f->tokens,
         CLI_COUNT},
        {"rows", "L[=SHARE],...", "with --write-set: tokens of a row, and shares of the tokens (default 512,1024)",
         &f->rows, CLI_STRING},
        {"mix", "SET=SHARE,...", "with --write-set: sets and their shares of the rows (default: all, by length)",
         &f->mix, CLI_STRING},
        {"split", "NAME", "with --write-set: train or held-out (default train)", &f->split, CLI_STRING},
    };
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) table[count++] = own[i];
    return count;
}

/* The next item of "a=1,b=2" into name[64]; *share is 1 without one. False at the end; *bad when it is none. */
static bool next_item(const char **text, char name[64], double *share, bool *bad)
{
    const char *start = *text;
    if (!*start) return false;
    size_t whole = strcspn(start, ","), length = strcspn(start, ",=");
    *text = start + whole + (start[whole] == ',');
    *share = 1;
    *bad = !length || length >= 64;
    if (*bad) return true;
    memcpy(name, start, length);
    name[length] = 0;
    if (start[length] != '=') return true;
    char *end;
    *share = strtod(start + length + 1, &end);
    *bad = end != start + whole || end == start + length + 1 || !(*share >= 0) || *share > 1e9;
    return true;
}

static hy_status read_lengths(const char *text, write_set_options *o, hy_error *err)
{
    const char *all = text;
    char name[64], *end;
    double share;
    bool bad;
    while (next_item(&text, name, &share, &bad)) {
        long length = bad ? 0 : strtol(name, &end, 10);
        if (bad || *end || length < 1 || length > INT_MAX || !(share > 0))
            return error_set(err, HY_USAGE, "--rows '%s': give lengths such as 512,1024 or 512=0.7,1024=0.3", all);
        if (o->length_count == WRITE_SET_LENGTHS)
            return error_set(err, HY_USAGE, "--rows takes at most %d lengths", WRITE_SET_LENGTHS);
        o->lengths[o->length_count++] = (write_set_length){(int)length, share};
    }
    return HY_OK;
}

static hy_status read_mix(const char *text, write_set_options *o, hy_error *err)
{
    const char *all = text;
    char name[64];
    double share, sum = 0;
    bool bad;
    while (text && next_item(&text, name, &share, &bad)) {
        if (bad) return error_set(err, HY_USAGE, "--mix '%s': give shares such as arithmetic=2,talk=1", all);
        task_set set = task_set_find(name);
        if (set == TASK_SETS)
            return error_set(
                err, HY_USAGE,
                "--mix: there is no set '%s': arithmetic, synthaime, retrieval, tools, form and talk are known", name);
        o->mix[set] += share;
        sum += share;
    }
    return !all || sum > 0 ? HY_OK : error_set(err, HY_USAGE, "--mix '%s' has no share above zero", all);
}

/* The tokenizer's file: `model` itself, or in that folder, or in the folder that a hub cache's name leads to. */
static hy_status find_tokenizer(const char *model, char path[PATH_MAX], hy_error *err)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer.tiktoken"};
    char folder[FIND_PATH_SIZE];
    if (!find_is_path(model)) { /* a name of the hub; no weights are needed */
        hy_status status = find_model(model, &(find_options){.text_only = true}, folder, err);
        if (status != HY_OK) return status;
        model = folder;
    }
    if (source_is_files(model)) {
        model_source s;
        hy_status status = source_open(model, &s, err);
        if (status != HY_OK) return status;
        snprintf(path, PATH_MAX, "%s", s.tokenizer);
        snprintf(folder, sizeof folder, "%s", s.folder);
        bool listed = s.tokenizer[0] != 0;
        source_close(&s);
        if (listed) return HY_OK;
        model = folder;
    }
    if (!file_is_folder(model)) {
        snprintf(path, PATH_MAX, "%.4000s", model);
        return HY_OK;
    }
    for (int i = 0; i < 2; i++)
        if (file_join(model, names[i], path, PATH_MAX, NULL) == HY_OK && file_present(path)) return HY_OK;
    checkpoint *files = NULL;
    bool found = false;
    if (checkpoint_open(model, &files, NULL) == HY_OK)
        for (int i = 0; i < 2 && !found; i++)
            found = file_join(checkpoint_folder(files), names[i], path, PATH_MAX, NULL) == HY_OK && file_present(path);
    checkpoint_close(files);
    return found ? HY_OK : error_at(err, HY_FAILED, model, "no tokenizer.json here: a training set needs one");
}

static hy_status sha256_of(const char *path, char out[65], hy_error *err)
{
    file_map map;
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    hy_status s = file_map_open(path, &map, err);
    if (s != HY_OK) return s;
    if (EVP_Digest(map.data, map.size, digest, &size, EVP_sha256(), NULL) != 1 || size != 32)
        s = error_at(err, HY_FAILED, path, "no SHA-256 in the crypto library");
    for (unsigned i = 0; i < size && s == HY_OK; i++) sprintf(out + 2 * i, "%02x", digest[i]);
    file_map_close(&map);
    return s;
}

static void print_report(const write_set_options *o, const write_set_report *r, double seconds)
{
    char text[3][32];
    uint64_t all = 0;
    printf("%-12s %8s %12s %14s %9s %9s\n", "set", "length", "rows", "tokens", "written", "padding");
    for (int i = 0; i < o->length_count; i++) {
        for (int set = 0; set < TASK_SETS; set++) {
            const write_set_count *c = &r->by_set[i][set];
            uint64_t places = c->rows * (uint64_t)o->lengths[i].length;
            if (!c->rows) continue;
            printf("%-12s %8d %12s %14s %8.1f%% %8.1f%%\n", task_set_name((task_set)set), o->lengths[i].length,
                   cli_format_count(c->rows, text[0]), cli_format_count(c->used, text[1]),
                   100.0 * (double)c->written / (double)c->used, 100.0 - 100.0 * (double)c->used / (double)places);
            all += c->used;
        }
    }
    printf("%s: %s tokens in %.1f s, %.2f million a second\n", o->path, cli_format_count(all, text[2]), seconds,
           (double)all / seconds / 1e6);
}

int eval_write(const char *model, const eval_write_flags *f)
{
    char path[PATH_MAX], sha256[65];
    hy_error err = {0};
    write_set_report report;
    text_tokenizer *tokenizer = NULL;
    bool held_out = !strcmp(f->split, "held-out");
    if (!held_out && strcmp(f->split, "train") != 0)
        return cli_usage_error("eval", "--split is train or held-out, not '%s'", f->split);
    write_set_options o = {.path = f->path,
                           .tokens = f->tokens,
                           .split = held_out ? TASK_HELD_OUT : TASK_TRAIN,
                           .seed = (uint64_t)f->seed,
                           .threads = f->threads,
                           .tokenizer_sha256 = sha256,
                           .on_progress = cli_progress};
    hy_status s = read_lengths(f->rows, &o, &err);
    if (s == HY_OK) s = read_mix(f->mix, &o, &err);
    if (s == HY_OK) s = find_tokenizer(model, path, &err);
    if (s == HY_OK) s = sha256_of(path, sha256, &err);
    if (s == HY_OK) s = text_tokenizer_open(path, &tokenizer, &err);
    double start = clock_seconds();
    cli_catch_interrupt();
    if (s == HY_OK) s = write_set(tokenizer, &o, &report, &err);
    if (s == HY_OK)
        print_report(&o, &report, clock_seconds() - start);
    else
        cli_error(&err);
    text_tokenizer_close(tokenizer);
    return cli_exit(s);
}
