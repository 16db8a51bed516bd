/* hayate tokenize: text to token ids and back. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/source.h"
#include "cli/cli.h"
#include "cli/find_model.h"
#include "cli/flags.h"
#include "text/tokenizer.h"

static const char about[] =
    "Shows the tokens of a text, one a line with its id, or decodes ids with --decode. MODEL is a model's folder, a "
    "tokenizer.json or a rank file; weights are not read.\n\n"
    "examples:\n  hayate tokenize models/m3-nano 'Hello!'\n"
    "  hayate tokenize models/m3-nano --ids --file text | hayate tokenize models/m3-nano --decode -";

typedef struct tokenize_flags {
    const char *file, *decode;
    bool ids, json, added, skip_special;
} tokenize_flags;

/* A token as it can be shown in a line: its text in JSON's spelling, bytes that are no character as U+FFFD. */
static void print_tokens(const text_tokenizer *tok, const hy_ids *ids)
{
    buffer line = {0};
    for (size_t i = 0; i < ids->count; i++) {
        size_t length;
        const char *bytes = text_tokenizer_bytes(tok, ids->data[i], &length);
        json_writer w = {.out = &line};
        buffer_clear(&line);
        writer_string(&w, bytes, length);
        printf("%7d  %s\n", ids->data[i], line.data ? line.data : "");
    }
    buffer_free(&line);
}

static void print_json(const text_tokenizer *tok, const hy_ids *ids, const char *text, size_t length)
{
    buffer b = {0};
    json_writer w = {.out = &b};
    writer_object(&w);
    writer_key(&w, "count"), writer_unsigned(&w, ids->count);
    writer_key(&w, "ids"), writer_array(&w);
    for (size_t i = 0; i < ids->count; i++) writer_integer(&w, ids->data[i]);
    writer_end(&w);
    writer_key(&w, "tokens"), writer_array(&w);
    for (size_t i = 0; i < ids->count; i++) {
        size_t n;
        const char *bytes = text_tokenizer_bytes(tok, ids->data[i], &n);
        writer_string(&w, bytes, n);
    }
    writer_end(&w);
    writer_key(&w, "text"), writer_string(&w, text, length);
    writer_end(&w);
    printf("%s\n", b.data ? b.data : "");
    buffer_free(&b);
}

static void print_ids(const hy_ids *ids)
{
    for (size_t i = 0; i < ids->count; i++) printf(i ? " %d" : "%d", ids->data[i]);
    printf("\n");
}

static hy_status decode(const text_tokenizer *tok, const tokenize_flags *f, hy_error *err)
{
    hy_ids ids = {0};
    buffer text = {0};
    hy_status status = flags_read_ids(f->decode, &ids, err);
    for (size_t i = 0; i < ids.count && status == HY_OK; i++)
        if (ids.data[i] < 0 || ids.data[i] >= text_tokenizer_vocab_size(tok))
            status = error_set(err, HY_BAD_INPUT, "token id %d at place %zu is outside 0 .. %d", ids.data[i], i,
                               text_tokenizer_vocab_size(tok) - 1);
    if (status == HY_OK) status = text_decode(tok, ids.data, ids.count, f->skip_special, &text, err);
    if (status == HY_OK && f->json)
        print_json(tok, &ids, text.data ? text.data : "", text.length);
    else if (status == HY_OK) {
        fwrite(text.data ? text.data : "", 1, text.length, stdout);
        printf("\n");
    }
    buffer_free(&text);
    hy_ids_free(&ids);
    return status;
}

static hy_status encode(const text_tokenizer *tok, const tokenize_flags *f, const char *given, hy_error *err)
{
    char *owned = NULL;
    size_t length = 0;
    hy_ids ids = {0};
    hy_status status = HY_OK;
    if (f->file)
        status = flags_read_text(f->file, &owned, &length, err);
    else
        length = strlen(given);
    const char *text = owned ? owned : given;
    if (status == HY_OK) status = text_tokenizer_encode(tok, text, length, f->added, &ids, err);
    if (status == HY_OK && f->json)
        print_json(tok, &ids, text, length);
    else if (status == HY_OK && f->ids)
        print_ids(&ids);
    else if (status == HY_OK)
        print_tokens(tok, &ids);
    hy_ids_free(&ids);
    free(owned);
    return status;
}

/* The tokenizer that --tokenizer names, or that of the model's folder (which may be in a hub cache). */
static hy_status open_tokenizer(const char *model, const model_flags *f, text_tokenizer **tok, hy_error *err)
{
    if (f->model.tokenizer) return text_tokenizer_open(f->model.tokenizer, tok, err);
    hy_error first = {0};
    char folder[FIND_PATH_SIZE];
    if (!find_is_path(model)) { /* a name of the hub; no weights are needed */
        hy_status found = find_model(model, &(find_options){.text_only = true}, folder, err);
        return found == HY_OK ? text_tokenizer_open(folder, tok, err) : found;
    }
    bool weights = source_is_files(model);
    hy_status status = weights ? HY_FAILED : text_tokenizer_open(model, tok, &first);
    if (status != HY_FAILED) {
        if (err) *err = first;
        return status;
    }
    checkpoint *files = NULL;
    status = checkpoint_open(model, &files, weights ? &first : NULL);
    if (status == HY_OK) {
        if (checkpoint_tokenizer(files)) {
            status = text_tokenizer_open(checkpoint_tokenizer(files), tok, err);
        } else if (text_tokenizer_present(checkpoint_folder(files))) {
            status = text_tokenizer_open(checkpoint_folder(files), tok, err);
        } else {
            status = error_at(err, HY_USAGE, model,
                              "%s has no tokenizer: put its tokenizer.json there or name one with --tokenizer", model);
        }
        checkpoint_close(files);
        return status;
    }
    if (err) *err = first;
    return weights ? status : HY_FAILED;
}

int cmd_tokenize(int argc, char **argv)
{
    model_flags shared = flags_model();
    tokenize_flags f = {.added = true};
    cli_option table[FLAGS_MAX] = {
        {"file,f", "FILE", "a file with the text; - is standard input", &f.file, CLI_STRING},
        {"decode,d", "FILE|LIST", "decode ids, such as 1,2,3, instead", &f.decode, CLI_STRING},
        {"ids", NULL, "only the ids, on one line", &f.ids, CLI_FLAG},
        {"json", NULL, "one JSON object: count, ids, tokens, text", &f.json, CLI_FLAG},
        {"added", NULL, "read added tokens such as <mm:think> in the text as such (default; --no-added: as plain text)",
         &f.added, CLI_FLAG},
        {"skip-special", NULL, "with --decode: leave special tokens out", &f.skip_special, CLI_FLAG},
    };
    int lines = 0;
    while (table[lines].name) lines++;
    lines = flags_text_table(&shared, table, lines);
    const char *places[2];
    int count = 2;
    int code =
        cli_parse("tokenize", "tokenize MODEL [TEXT | -] [flags]", about, table, lines, argc, argv, places, &count);
    if (code >= 0) return code;
    if (count < 1) return cli_usage_error("tokenize", "name the folder of a model");
    if (count > 1 && !strcmp(places[1], "-") && !f.file) f.file = "-", count = 1;
    if ((count > 1) + (f.file != NULL) + (f.decode != NULL) != 1)
        return cli_usage_error("tokenize", "give one text: as an argument, --file FILE or '-'; or ids with --decode");
    if (shared.verbose) flags_log_start(HY_LOG_INFO);
    text_tokenizer *tok = NULL;
    hy_error err = {0};
    hy_status status = open_tokenizer(places[0], &shared, &tok, &err);
    if (status == HY_OK) status = f.decode ? decode(tok, &f, &err) : encode(tok, &f, places[1], &err);
    if (status == HY_OK && (fflush(stdout) != 0 || ferror(stdout)))
        status = error_set(&err, HY_FAILED, "cannot write to standard output: %s", strerror(errno));
    if (status != HY_OK) cli_error(&err);
    text_tokenizer_close(tok);
    return cli_exit(status);
}
