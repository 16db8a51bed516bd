/* hayate generate: one prompt in, text out. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/error.h"
#include "base/json.h"
#include "cli/cli.h"
#include "cli/flags.h"
#include "cli/interrupt.h"
#include "model/model.h"
#include "text/reasoning.h"

static const char about[] =
    "Continues one prompt and writes the text to standard output as it is made. The prompt is the second argument, "
    "--prompt, a file, standard input ('-'), or token ids. With --chat it is a user's message in the model's chat "
    "format. Without a tokenizer in the model's folder only --input-ids works, and ids come out.\n\n"
    "examples:\n"
    "  hayate generate models/m3-nano --chat --prompt 'What is 2 + 3?' --temperature 0\n"
    "  hayate generate models/m3-nano - --chat --json --seed 1 < question.txt";

typedef struct generate_flags {
    model_flags model;
    sampling_flags sampling;
    const char *prompt, *prompt_file, *input_ids, *system, *thinking;
    bool chat, json, ids, keep_special;
    const char *schema, *regex, *grammar; /* structured output, one of these or a choice */
    cli_strings choice;
    bool compact;
} generate_flags;

/* What the callback needs; it runs on the engine's planner thread. */
typedef struct output {
    bool stream_text, stream_ids; /* else nothing is written until the end */
    bool first;
    bool broken; /* standard output cannot be written, because of: */
    int reason;  /* an errno */
    bool json;
    buffer logprobs; /* JSON objects, one per token, with commas between */
    char stop_string[256];
    int32_t stop_id;
    char error[sizeof((hy_error *)0)->message];
} output;

/* ---- The prompt ----------------------------------------------------------------------------------------------- */

static hy_status read_prompt(const generate_flags *f, char **text, size_t *length, hy_error *err)
{
    if (f->prompt_file) return flags_read_text(f->prompt_file, text, length, err);
    *length = strlen(f->prompt);
    *text = strdup(f->prompt);
    return *text ? HY_OK : error_memory(err, "the prompt", *length);
}

static hy_status render(const hy_model *model, const generate_flags *f, const char *text, size_t length, hy_ids *ids,
                        hy_error *err)
{
    buffer messages = {0}, kwargs = {0};
    json_writer m = {.out = &messages}, k = {.out = &kwargs};
    writer_array(&m);
    if (f->system) {
        writer_object(&m), writer_key(&m, "role"), writer_text(&m, "system");
        writer_key(&m, "content"), writer_text(&m, f->system), writer_end(&m);
    }
    writer_object(&m), writer_key(&m, "role"), writer_text(&m, "user");
    writer_key(&m, "content"), writer_string(&m, text, length), writer_end(&m);
    writer_end(&m);
    writer_object(&k);
    if (f->thinking) writer_key(&k, "thinking_mode"), writer_text(&k, f->thinking);
    writer_end(&k);
    hy_status status = buffer_ok(&messages) && buffer_ok(&kwargs)
                           ? hy_render_chat(model, messages.data, NULL, kwargs.data, ids, err)
                           : error_memory(err, "the prompt", length);
    buffer_free(&messages);
    buffer_free(&kwargs);
    return status;
}

static hy_status make_prompt(const hy_model *model, const generate_flags *f, hy_ids *ids, hy_error *err)
{
    if (f->input_ids) return flags_read_ids(f->input_ids, ids, err);
    hy_model_info info;
    hy_model_describe(model, &info);
    if (!info.has_tokenizer)
        return error_set(
            err, HY_USAGE,
            "%s has no tokenizer, so that text cannot be read: give --input-ids, or name one with --tokenizer",
            info.path);
    char *text = NULL;
    size_t length = 0;
    hy_status status = read_prompt(f, &text, &length, err);
    if (status == HY_OK)
        status = f->chat ? render(model, f, text, length, ids, err) : hy_tokenize(model, text, length, ids, err);
    free(text);
    return status;
}

/* ---- Output --------------------------------------------------------------------------------------------------- */

static void add_logprobs(output *o, const hy_event *e)
{
    json_writer w = {.out = &o->logprobs};
    for (size_t i = 0; i < e->id_count; i++) {
        const hy_logprob *l = e->logprobs + i * e->logprobs_per_token;
        if (o->logprobs.length) buffer_char(&o->logprobs, ',');
        w = (json_writer){.out = &o->logprobs};
        writer_object(&w);
        writer_key(&w, "id"), writer_integer(&w, l[0].token);
        writer_key(&w, "logprob"), writer_number(&w, (double)l[0].logprob);
        writer_key(&w, "top"), writer_array(&w);
        for (size_t j = 1; j < e->logprobs_per_token && l[j].token >= 0; j++) {
            writer_object(&w);
            writer_key(&w, "id"), writer_integer(&w, l[j].token);
            writer_key(&w, "logprob"), writer_number(&w, (double)l[j].logprob);
            writer_end(&w);
        }
        writer_end(&w), writer_end(&w);
    }
}

static bool on_event(void *user, const hy_event *e)
{
    output *o = user;
    if (e->logprobs) add_logprobs(o, e);
    if (e->stop_string) snprintf(o->stop_string, sizeof o->stop_string, "%s", e->stop_string);
    if (e->finish != HY_RUNNING) o->stop_id = e->stop_id;
    if (e->error) snprintf(o->error, sizeof o->error, "%s", e->error->message);
    if (o->stream_text && e->text_length) fwrite(e->text, 1, e->text_length, stdout);
    if (o->stream_ids)
        for (size_t i = 0; i < e->id_count; i++, o->first = false) printf(o->first ? "%d" : " %d", e->ids[i]);
    if (e->finish != HY_RUNNING && (o->stream_text || o->stream_ids)) putchar('\n');
    if (!o->broken && (o->stream_text || o->stream_ids) && (fflush(stdout) != 0 || ferror(stdout)))
        o->broken = true, o->reason = errno;
    return !o->broken;
}

static void split(void *user, text_kind kind, const char *text, size_t length)
{
    buffer *parts = user;
    buffer_append(&parts[kind == TEXT_CONTENT], text, length);
}

/* The answer in two parts, as a chat shows it. */
static void write_parts(json_writer *w, const hy_model *model, const hy_ids *prompt, const hy_result *r)
{
    buffer parts[2] = {{0}, {0}};
    text_reasoning state;
    int32_t last = prompt->data ? prompt->data[prompt->count - 1] : -1;
    text_reasoning_begin(&state, text_reasoning_start_of(model_tokenizer(model), last));
    text_reasoning_feed(&state, r->text, r->text_length, split, parts);
    text_reasoning_finish(&state, split, parts);
    writer_key(w, "reasoning"), writer_string(w, parts[0].data ? parts[0].data : "", parts[0].length);
    writer_key(w, "content"), writer_string(w, parts[1].data ? parts[1].data : "", parts[1].length);
    buffer_free(&parts[0]);
    buffer_free(&parts[1]);
}

static void write_experts(json_writer *w, const hy_expert_stats *s)
{
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {
        {"cache_slots", s->slots},     {"slot_bytes", s->slot_bytes},
        {"experts", s->experts},       {"hits", s->hits},
        {"misses", s->misses},         {"ahead_hits", s->ahead_hits},
        {"ahead_late", s->ahead_late}, {"ahead_reads", s->ahead_reads},
        {"loaded", s->loaded},         {"evicted", s->evicted},
        {"bytes_read", s->bytes_read},
    };
    writer_key(w, "streamed"), writer_object(w);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        writer_key(w, numbers[i].key), writer_unsigned(w, numbers[i].value);
    writer_key(w, "wait_seconds"), writer_number(w, s->wait_seconds);
    writer_key(w, "io"), writer_text(w, s->io);
    writer_end(w);
}

/* One line of JSON on standard output. False: it could not be written. */
static bool write_json(const hy_model *model, const generate_flags *f, const hy_ids *prompt, const hy_result *r,
                       output *o)
{
    buffer b = {0};
    json_writer w = {.out = &b};
    writer_object(&w);
    writer_key(&w, "text");
    if (model_tokenizer(model))
        writer_string(&w, r->text, r->text_length);
    else
        writer_null(&w);
    if (f->chat) write_parts(&w, model, prompt, r);
    writer_key(&w, "ids"), writer_array(&w);
    for (size_t i = 0; i < r->id_count; i++) writer_integer(&w, r->ids[i]);
    writer_end(&w);
    writer_key(&w, "finish_reason"), writer_text(&w, flags_finish_name(r->finish));
    writer_key(&w, "stop_reason");
    if (o->stop_string[0])
        writer_text(&w, o->stop_string);
    else if (o->stop_id >= 0)
        writer_integer(&w, o->stop_id);
    else
        writer_null(&w);
    if (o->error[0]) writer_key(&w, "error"), writer_text(&w, o->error);
    if (o->logprobs.length) {
        writer_key(&w, "logprobs"), writer_array(&w);
        writer_raw(&w, o->logprobs.data, o->logprobs.length);
        writer_end(&w);
    }
    writer_key(&w, "prompt_tokens"), writer_unsigned(&w, r->prompt_count);
    writer_key(&w, "completion_tokens"), writer_unsigned(&w, r->id_count);
    writer_key(&w, "seed"), writer_integer(&w, r->seed);
    writer_key(&w, "prefill_seconds"), writer_number(&w, r->prefill_s);
    writer_key(&w, "decode_seconds"), writer_number(&w, r->decode_s);
    if (f->model.speculative_config) {
        writer_key(&w, "draft_rounds"), writer_integer(&w, r->draft_rounds);
        writer_key(&w, "drafts"), writer_integer(&w, r->drafts);
        writer_key(&w, "drafts_accepted"), writer_integer(&w, r->drafts_accepted);
    }
    hy_expert_stats experts;
    if (model_expert_stats(model, &experts)) write_experts(&w, &experts);
    writer_end(&w);
    buffer_char(&b, '\n');
    bool written = buffer_ok(&b) && fwrite(b.data, 1, b.length, stdout) == b.length && fflush(stdout) == 0;
    buffer_free(&b);
    return written;
}

static void print_stats(const hy_result *r)
{
    double prefill = r->prefill_s > 0 ? (double)r->prompt_count / r->prefill_s : 0;
    double decode = r->decode_s > 0 && r->id_count > 1 ? (double)(r->id_count - 1) / r->decode_s : 0;
    fprintf(stderr, "%zu tokens read in %.2f s (%.1f/s), %zu made in %.2f s (%.1f/s); ended by %s; seed %lld\n",
            r->prompt_count, r->prefill_s, prefill, r->id_count, r->decode_s, decode, flags_finish_name(r->finish),
            (long long)r->seed);
    if (r->draft_rounds > 0)
        fprintf(stderr, "%d of %d drafts were accepted: %.2f tokens a round\n", r->drafts_accepted, r->drafts,
                1 + (double)r->drafts_accepted / r->draft_rounds);
}

/* ---- Structured output ------------------------------------------------------------------------------------------ */

static hy_status compile_choice(const hy_model *model, const cli_strings *choice, hy_grammar **grammar, hy_error *err)
{
    buffer list = {0};
    json_writer w = {.out = &list};
    writer_array(&w);
    for (int i = 0; i < choice->count; i++) writer_text(&w, choice->items[i]);
    writer_end(&w);
    hy_status status = buffer_ok(&list)
                           ? hy_grammar_compile(model, HY_GRAMMAR_CHOICE, list.data, list.length, NULL, grammar, err)
                           : error_memory(err, "the choices", list.length);
    buffer_free(&list);
    return status;
}

/* What the answer must be, if something: a description on the command line, or a file that has it. */
static hy_status compile_grammar(const hy_model *model, const generate_flags *f, hy_grammar **grammar, hy_error *err)
{
    hy_grammar_kind kind = f->schema ? HY_GRAMMAR_JSON_SCHEMA : f->regex ? HY_GRAMMAR_REGEX : HY_GRAMMAR_EBNF;
    const char *given = f->schema ? f->schema : f->regex ? f->regex : f->grammar;
    hy_grammar_options options = {.compact = f->compact, .closed = true};
    if (f->choice.count > 0) return compile_choice(model, &f->choice, grammar, err);
    if (!given) return HY_OK;
    const char *first = given + strspn(given, " \t\r\n");
    bool text = f->regex || (f->schema && (*first == '{' || strcmp(first, "true") == 0));
    if (text) return hy_grammar_compile(model, kind, given, strlen(given), &options, grammar, err);
    char *source = NULL;
    size_t length = 0;
    hy_status status = flags_read_text(given, &source, &length, err);
    if (status == HY_OK) status = hy_grammar_compile(model, kind, source, length, &options, grammar, err);
    free(source);
    return status;
}

/* ---- The command ---------------------------------------------------------------------------------------------- */

static hy_status generate(hy_model *model, hy_engine *engine, generate_flags *f, hy_error *err)
{
    hy_ids prompt = {0};
    hy_request *request = NULL;
    hy_grammar *grammar = NULL;
    bool text = model_tokenizer(model) != NULL;
    output out = {.stream_text = !f->json && !f->ids && text,
                  .stream_ids = !f->json && (f->ids || !text),
                  .first = true,
                  .json = f->json,
                  .stop_id = -1};
    hy_request_options options = hy_request_defaults(model);
    hy_status status = flags_sampling_apply(&f->sampling, model, &options.sampling, err);
    if (status == HY_OK) status = compile_grammar(model, f, &grammar, err);
    if (status == HY_OK) status = make_prompt(model, f, &prompt, err);
    options.sampling.grammar = grammar;
    options.prompt_ids = prompt.data, options.prompt_count = prompt.count;
    options.keep_special = f->keep_special;
    options.on_event = on_event, options.user = &out;
    interrupt_start(true);
    interrupt_expect();
    if (status == HY_OK) status = hy_engine_submit(engine, &options, &request, err);
    if (status == HY_OK) {
        interrupt_watch(request);
        status = hy_request_wait(request);
        interrupt_unwatch();
        hy_result result;
        hy_request_result(request, &result);
        if (f->json && !write_json(model, f, &prompt, &result, &out)) out.broken = true, out.reason = errno;
        if (isatty(STDERR_FILENO)) print_stats(&result);
        hy_expert_stats experts;
        char line[MODEL_EXPERT_TEXT];
        if (!f->json && model_expert_stats(model, &experts))
            fprintf(stderr, "%s\n", model_expert_text(&experts, NULL, line));
        if (out.broken)
            status = error_set(err, HY_FAILED, "cannot write to standard output: %s", strerror(out.reason));
        else if (status == HY_CANCELLED)
            error_set(err, status, "interrupted after %zu tokens", result.id_count);
        else if (status != HY_OK)
            error_set(err, status, "%s", out.error);
    }
    hy_request_close(request);
    hy_grammar_close(grammar);
    hy_ids_free(&prompt);
    buffer_free(&out.logprobs);
    return status;
}

static int check(generate_flags *f, const char *const *places, int count)
{
    if (count < 1) return cli_usage_error("generate", "name the folder of a model");
    if (count > 1 && strcmp(places[1], "-") == 0)
        f->prompt_file = f->prompt_file ? NULL : "-";
    else if (count > 1 && !f->prompt)
        f->prompt = places[1];
    else if (count > 1)
        f->prompt = NULL;
    int sources = (f->prompt != NULL) + (f->prompt_file != NULL) + (f->input_ids != NULL);
    if (sources != 1)
        return cli_usage_error("generate", "give one prompt: as text, --prompt-file FILE, '-' or --input-ids");
    if (f->chat && f->input_ids)
        return cli_usage_error("generate", "--chat makes a prompt of text; --input-ids is one already");
    if (!f->chat && (f->system || f->thinking))
        return cli_usage_error("generate", "%s is for --chat", f->system ? "--system" : "--thinking-mode");
    if (f->thinking && !flags_thinking_mode(f->thinking))
        return cli_usage_error("generate", "--thinking-mode is enabled, disabled or adaptive, not '%.40s'",
                               f->thinking);
    if (f->json && f->ids)
        return cli_usage_error("generate", "--json has the ids already: give one of --json and --ids");
    if (f->sampling.logprobs != INT_MIN && !f->json)
        return cli_usage_error("generate", "--logprobs are shown with --json");
    if (!!f->schema + !!f->regex + !!f->grammar + (f->choice.count > 0) > 1)
        return cli_usage_error("generate", "give one of --json-schema, --regex, --grammar and --choice");
    return -1;
}

int cmd_generate(int argc, char **argv)
{
    generate_flags f = {.model = flags_model(), .sampling = flags_sampling()};
    cli_option table[FLAGS_MAX] = {
        {"prompt,p", "TEXT", "the prompt", &f.prompt, CLI_STRING},
        {"prompt-file,f", "FILE", "a file with the prompt; - is standard input", &f.prompt_file, CLI_STRING},
        {"input-ids", "FILE|LIST", "token ids instead of text: a file of numbers, or 1,2,3", &f.input_ids, CLI_STRING},
        {"chat", NULL, "the prompt is a user's message in the model's chat format", &f.chat, CLI_FLAG},
        {"system", "TEXT", "with --chat: what the model is told first", &f.system, CLI_STRING},
        {"thinking-mode", "MODE", "with --chat: enabled, disabled or adaptive (default: the template's)", &f.thinking,
         CLI_STRING},
        {"json", NULL, "write one JSON object at the end instead of text", &f.json, CLI_FLAG},
        {"ids", NULL, "write token ids instead of text", &f.ids, CLI_FLAG},
        {"logprobs", "N", "with --json: log-probabilities of each token and of the N best, 0 to 20",
         &f.sampling.logprobs, CLI_INT},
        {"json-schema", "FILE|TEXT", "the answer is JSON as this JSON Schema says (docs/structured-output.md)",
         &f.schema, CLI_STRING},
        {"regex", "PATTERN", "the answer matches this as a whole", &f.regex, CLI_STRING},
        {"grammar", "FILE", "the answer is a text of this grammar, in GBNF or Lark's form", &f.grammar, CLI_STRING},
        {"choice", "TEXT", "the answer is this text; given several times, one of them", &f.choice, CLI_STRINGS},
        {"compact", NULL, "with --json-schema: no white space but one blank behind , and :", &f.compact, CLI_FLAG},
        {"keep-special", NULL, "show special tokens in the text", &f.keep_special, CLI_FLAG},
    };
    int lines = 0;
    while (table[lines].name) lines++;
    lines = flags_sampling_table(&f.sampling, table, lines);
    lines = flags_model_table(&f.model, table, lines);
    const char *places[2];
    int count = 2;
    int code =
        cli_parse("generate", "generate MODEL [PROMPT | -] [flags]", about, table, lines, argc, argv, places, &count);
    if (code < 0) code = check(&f, places, count);
    if (code < 0) code = flags_check("generate", &f.model);
    if (code >= 0) return code;
    hy_model *model = NULL;
    hy_engine *engine = NULL;
    hy_error err = {0};
    cli_catch_interrupt();
    hy_status status = flags_open(places[0], &f.model, &model, &engine, &err);
    if (!f.model.verbose) flags_log_no_errors();
    if (status == HY_OK) status = generate(model, engine, &f, &err);
    if (status != HY_OK) cli_error(&err);
    hy_engine_close(engine);
    hy_model_close(model);
    flags_sampling_free(&f.sampling);
    return cli_exit(status);
}
