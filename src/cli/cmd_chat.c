/* hayate chat: a conversation in the terminal. */
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
#include "cli/line.h"
#include "engine/params.h"
#include "model/model.h"
#include "text/reasoning.h"

static const char about[] =
    "A conversation with a model. Every line is a message; a line that ends in \\ goes on, pasted lines stay together. "
    "Ctrl-C stops the answer, Ctrl-D or /quit leaves; /help lists the rest. Each turn sends the whole conversation, "
    "with the model's reasoning. When standard input is not a terminal, its lines are the messages and the answers are "
    "written plain.\n\n"
    "example:\n  hayate chat models/m3-nano --temperature 0";

static const char help_text[] = "/reset          forget the conversation\n"
                                "/system [TEXT]  tell the model this first; without a text, nothing\n"
                                "/think MODE     enabled, disabled, adaptive, or default: as the template says\n"
                                "/quit           leave (or Ctrl-D)\n"
                                "//...           a message that begins with /\n"
                                "Ctrl-C stops an answer. A line that ends in \\ goes on in the next one.\n";

typedef struct chat {
    hy_model *model;
    hy_engine *engine;
    hy_sampling sampling;
    line_reader *lines;
    buffer messages;         /* JSON objects with commas between; without the system message */
    char *system, *thinking; /* owned; NULL: none */
    bool show_reasoning, colour;
    bool failed; /* an answer could not be given */
    bool broken; /* standard output cannot be written */
    /* The answer on its way. */
    text_reasoning split;
    buffer reasoning, content;
    bool dim, at_line_start;
    char error[sizeof((hy_error *)0)->message];
} chat;

/* ---- Showing an answer: on the planner's thread ---------------------------------------------------------------- */

static void set_dim(chat *c, bool dim)
{
    if (dim == c->dim) return;
    c->dim = dim;
    if (c->colour) fputs(dim ? "\033[2m" : "\033[0m", stdout);
}

static void show(chat *c, const char *text, size_t length)
{
    fwrite(text, 1, length, stdout);
    c->at_line_start = text[length - 1] == '\n';
}

static void on_piece(void *user, text_kind kind, const char *text, size_t length)
{
    chat *c = user;
    buffer_append(kind == TEXT_REASONING ? &c->reasoning : &c->content, text, length);
    if (kind == TEXT_REASONING) {
        if (!c->show_reasoning) return;
        set_dim(c, true);
        show(c, text, length);
        return;
    }
    bool after_reasoning = c->show_reasoning && c->reasoning.length > 0 && c->content.length == length;
    set_dim(c, false);
    if (after_reasoning && !c->at_line_start) fputs("\n", stdout);
    show(c, text, length);
}

static bool on_event(void *user, const hy_event *e)
{
    chat *c = user;
    text_reasoning_feed(&c->split, e->text, e->text_length, on_piece, c);
    if (e->finish != HY_RUNNING) text_reasoning_finish(&c->split, on_piece, c);
    if (e->error) snprintf(c->error, sizeof c->error, "%s", e->error->message);
    if (fflush(stdout) != 0 || ferror(stdout)) c->broken = true;
    return !c->broken;
}

static void show_end(chat *c, const hy_result *r, bool interrupted)
{
    set_dim(c, false);
    if (!c->at_line_start) putchar('\n');
    if (c->colour && r->decode_s > 0 && r->id_count > 1)
        printf("\033[2m[%zu of %zu tokens read in %.1f s, %zu made, %.1f/s%s]\033[0m\n",
               r->prompt_count - (size_t)r->reuse.tokens, r->prompt_count, r->prefill_s, r->id_count,
               (double)(r->id_count - 1) / r->decode_s,
               interrupted                     ? ", stopped"
               : r->finish == HY_FINISH_LENGTH ? ", ended by length"
                                               : "");
    fflush(stdout);
}

/* ---- The conversation ----------------------------------------------------------------------------------------- */

static void add_message(chat *c, const char *role, const buffer *content, const buffer *reasoning)
{
    json_writer w = {.out = &c->messages};
    if (c->messages.length) buffer_char(&c->messages, ',');
    writer_object(&w);
    writer_key(&w, "role"), writer_text(&w, role);
    if (reasoning && reasoning->length)
        writer_key(&w, "reasoning_content"), writer_string(&w, reasoning->data, reasoning->length);
    writer_key(&w, "content"), writer_string(&w, content->data ? content->data : "", content->length);
    writer_end(&w);
}

static hy_status render(const chat *c, hy_ids *ids, hy_error *err)
{
    buffer all = {0}, kwargs = {0};
    json_writer w = {.out = &all}, k = {.out = &kwargs};
    buffer_char(&all, '[');
    if (c->system) {
        writer_object(&w);
        writer_key(&w, "role"), writer_text(&w, "system");
        writer_key(&w, "content"), writer_text(&w, c->system);
        writer_end(&w);
        buffer_char(&all, ',');
    }
    buffer_append(&all, c->messages.data, c->messages.length);
    buffer_char(&all, ']');
    writer_object(&k);
    if (c->thinking) writer_key(&k, "thinking_mode"), writer_text(&k, c->thinking);
    writer_end(&k);
    hy_status status = buffer_ok(&all) && buffer_ok(&kwargs)
                           ? hy_render_chat(c->model, all.data, NULL, kwargs.data, ids, err)
                           : error_memory(err, "the conversation", all.length);
    buffer_free(&all);
    buffer_free(&kwargs);
    return status;
}

static hy_status run_request(chat *c, const hy_ids *prompt, hy_error *err)
{
    hy_request_options options = hy_request_defaults(c->model);
    hy_request *request = NULL;
    options.prompt_ids = prompt->data, options.prompt_count = prompt->count;
    options.sampling = c->sampling, options.on_event = on_event, options.user = c;
    options.rendered = true;
    int32_t last = prompt->data ? prompt->data[prompt->count - 1] : -1;
    text_reasoning_begin(&c->split, text_reasoning_start_of(model_tokenizer(c->model), last));
    buffer_clear(&c->reasoning);
    buffer_clear(&c->content);
    c->at_line_start = true, c->error[0] = 0;
    interrupt_expect();
    hy_status status = hy_engine_submit(c->engine, &options, &request, err);
    if (status != HY_OK) return status;
    interrupt_watch(request);
    status = hy_request_wait(request);
    bool interrupted = interrupt_unwatch();
    hy_result result;
    hy_request_result(request, &result);
    show_end(c, &result, interrupted);
    hy_request_close(request);
    if (status == HY_CANCELLED) return HY_OK; /* what was said stays said */
    return status == HY_OK ? HY_OK : error_set(err, status, "%s", c->error);
}

/* One turn. A message that cannot be answered leaves the conversation as it was. */
static void turn(chat *c, const buffer *message)
{
    hy_error err = {0};
    hy_ids prompt = {0};
    size_t before = c->messages.length;
    add_message(c, "user", message, NULL);
    hy_status status = render(c, &prompt, &err);
    if (status == HY_OK) status = run_request(c, &prompt, &err);
    hy_ids_free(&prompt);
    if (status == HY_OK) {
        add_message(c, "assistant", &c->content, &c->reasoning);
        return;
    }
    c->messages.length = before;
    if (c->messages.data) c->messages.data[before] = 0;
    c->failed = true;
    cli_error(&err);
    if (status == HY_NO_FIT && before > 0) fprintf(stderr, "hayate: /reset starts a new conversation\n");
}

/* ---- Commands ------------------------------------------------------------------------------------------------- */

static void replace(char **to, const char *text)
{
    free(*to);
    *to = text ? strdup(text) : NULL;
}

/* A line that begins with a slash. False: leave. */
static bool command(chat *c, const char *line)
{
    size_t n = strcspn(line, " ");
    const char *rest = line + n + strspn(line + n, " ");
    if (!strncmp(line, "/quit", n) && n == 5) return false;
    if (!strncmp(line, "/exit", n) && n == 5) return false;
    if (!strncmp(line, "/help", n) && n == 5) {
        fputs(help_text, stdout);
    } else if (!strncmp(line, "/reset", n) && n == 6) {
        buffer_clear(&c->messages);
    } else if (!strncmp(line, "/system", n) && n == 7) {
        replace(&c->system, *rest ? rest : NULL);
    } else if (!strncmp(line, "/think", n) && n == 6) {
        if (flags_thinking_mode(rest))
            replace(&c->thinking, rest);
        else if (!strcmp(rest, "default"))
            replace(&c->thinking, NULL);
        else
            fprintf(stderr, "/think takes enabled, disabled, adaptive or default\n");
    } else {
        fprintf(stderr, "there is no %.*s: /help lists what there is; // sends a message that begins with /\n", (int)n,
                line);
    }
    fflush(stdout);
    return true;
}

static void converse(chat *c)
{
    buffer text = {0};
    for (;;) {
        line_result got = line_read(c->lines, "> ", &text);
        if (got == LINE_END || c->broken) break;
        if (got == LINE_DROPPED || text.length == 0) continue;
        if (text.data[0] == '/' && text.data[1] != '/') {
            if (!command(c, text.data)) break;
            continue;
        }
        if (text.data[0] == '/') buffer_drop(&text, 1);
        turn(c, &text);
    }
    if (line_is_terminal(c->lines)) putchar('\n');
    buffer_free(&text);
}

static void greet(const chat *c)
{
    if (!line_is_terminal(c->lines)) return;
    hy_model_info info;
    hy_model_describe(c->model, &info);
    printf("%s on %s, up to %d tokens. /help for help, Ctrl-C stops an answer, Ctrl-D leaves.\n", info.name,
           info.backend, info.max_model_len);
}

static hy_status chat_open(chat *c, const char *path, const model_flags *model, sampling_flags *sampling, hy_error *err)
{
    char history[4096];
    const char *home = getenv("HOME");
    bool remember =
        home && *home && snprintf(history, sizeof history, "%s/.hayate_history", home) < (int)sizeof history;
    hy_status status = flags_open(path, model, &c->model, &c->engine, err);
    if (status == HY_OK) status = model_can_chat(c->model, err);
    if (status == HY_OK) status = flags_sampling_apply(sampling, c->model, &c->sampling, err);
    if (status == HY_OK) {
        hy_model_info info; /* now, and not of every message */
        hy_model_describe(c->model, &info);
        status = params_check(&c->sampling, info.vocab, model_tokenizer(c->model), err);
    }
    if (status == HY_OK) status = line_open(remember ? history : NULL, &c->lines, err);
    return status;
}

static void chat_close(chat *c)
{
    line_close(c->lines);
    hy_engine_close(c->engine);
    hy_model_close(c->model);
    buffer_free(&c->messages);
    buffer_free(&c->reasoning);
    buffer_free(&c->content);
    free(c->system);
    free(c->thinking);
}

int cmd_chat(int argc, char **argv)
{
    model_flags model = flags_model();
    sampling_flags sampling = flags_sampling();
    const char *system = NULL, *thinking = NULL;
    bool terminal = isatty(STDOUT_FILENO) != 0, reasoning = terminal;
    cli_option table[FLAGS_MAX] = {
        {"system", "TEXT", "what the model is told first", &system, CLI_STRING},
        {"thinking-mode", "MODE", "enabled, disabled or adaptive (default: the template's)", &thinking, CLI_STRING},
        {"reasoning", NULL, "show the reasoning (default on a terminal; --no-reasoning hides it)", &reasoning,
         CLI_FLAG},
    };
    int lines = 0;
    while (table[lines].name) lines++;
    lines = flags_sampling_table(&sampling, table, lines);
    lines = flags_model_table(&model, table, lines);
    const char *places[1];
    int count = 1;
    int code = cli_parse("chat", "chat MODEL [flags]", about, table, lines, argc, argv, places, &count);
    if (code >= 0) return code;
    if (count < 1) return cli_usage_error("chat", "name the folder of a model");
    if (thinking && !flags_thinking_mode(thinking))
        return cli_usage_error("chat", "--thinking-mode is enabled, disabled or adaptive, not '%.40s'", thinking);
    code = flags_check("chat", &model);
    if (code >= 0) return code;
    chat c = {.show_reasoning = reasoning, .colour = terminal};
    hy_error err = {0};
    cli_catch_interrupt();
    hy_status status = chat_open(&c, places[0], &model, &sampling, &err);
    if (status == HY_OK) {
        replace(&c.system, system);
        replace(&c.thinking, thinking);
        if (!model.verbose) flags_log_no_errors();
        interrupt_start(false);
        greet(&c);
        converse(&c);
        if (c.failed || c.broken) status = HY_FAILED;
    } else {
        cli_error(&err);
    }
    chat_close(&c);
    flags_sampling_free(&sampling);
    return cli_exit(status);
}
