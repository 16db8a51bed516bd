/*
 * From a conversation to the text of a prompt.
 *
 * A checkpoint's own template makes its prompts: it is compiled once (text/jinja.h) and run for each conversation. For a
 * template with the SHA-256 of MiniMax-M3's the same text is made by a renderer in C, many times faster; so it is without
 * any template, with a log line. A template that cannot be compiled is known by its error: chat fails with it, and raw use
 * of the model goes on.
 *
 * The prompt of M3, with BOD "]~!b[", BOS "]~b]", EOS "[e~[":
 *
 *     BOD BOS "system\n"    identity, or the text of a leading `root` message; how to think EOS "\n"
 *         BOS "developer\n" the text of the leading `system` or `developer` message; tools EOS "\n"
 *         BOS "user\n"      text EOS "\n"
 *         BOS "ai\n"        <mm:think>reasoning</mm:think> or </mm:think>, content, tool calls EOS "\n"
 *         BOS "tool"        "\n<response>" text "</response>" for each of a run of results, EOS "\n"
 *         BOS "ai\n"        <mm:think> when enabled, </mm:think> when disabled: where the answer starts
 *
 * Messages with other roles are dropped, as the template does. Text is inserted as it is: markers inside a message
 * become markers of the prompt.
 *
 * What another template sees, as upstream gives it:
 *
 *     messages                content null or absent is "". A list of parts stays one when the template loops over contents
 *                             (strings are then wrapped into a part, unless it asks for `is string`); else its texts are
 *                             joined with line feeds, and so are those of tool messages. `reasoning` and `reasoning_content`
 *                             are both there when one is. Arguments of calls are objects; empty tool_calls are left out.
 *     tools                   none, or {"type", "function": {name, description, parameters}} with strict and defer_loading
 *                             when they are not null
 *     documents               none, unless a keyword gives them
 *     add_generation_prompt   true or false
 *     bos_token, eos_token, ...   of tokenizer_config.json or special_tokens_map.json
 *     the keywords            over these; they cannot name messages or tools
 *
 * Effort is `reasoning_effort` and `effort` alike: a template may read either, and one that is given stands for both. Any
 * string passes; null is as if it were not there. For a server, the field of the protocol goes over chat_template_kwargs
 * of the request, these over its
 * own defaults, and these over what the template does when nothing is said. M3's text has no effort.
 *
 * No thinking is asked for by thinking_mode "disabled", enable_thinking or thinking false, or effort "none". A template that
 * speaks of thinking and reads none of the first three has no such mode: such a request is refused by name, since it would be
 * answered with reasoning all the same. A template that does not speak of thinking has nothing to turn off.
 */
#ifndef HAYATE_TEXT_CHAT_TEMPLATE_H
#define HAYATE_TEXT_CHAT_TEMPLATE_H

#include "base/buffer.h"
#include "hayate.h"
#include "text/jinja.h"

#include <jansson.h>

typedef enum text_template_kind {
    TEXT_TEMPLATE_NONE,        /* the folder has none: the built-in renderer is used, with a log line */
    TEXT_TEMPLATE_MINIMAX_M3,  /* M3's own, or forced */
    TEXT_TEMPLATE_INTERPRETED, /* another one, compiled */
    TEXT_TEMPLATE_BROKEN,      /* another one that cannot be compiled: no chat */
} text_template_kind;

typedef struct text_template {
    text_template_kind kind;
    char source[64];   /* the file's name, "--chat-template" for a text that was given; "" without one, and when forced */
    char sha256[65];   /* of its text with "\n" line ends and without the last one, in hex; "" likewise */
    jinja *program;    /* owned; NULL unless interpreted */
    bool thinks;       /* an interpreted one speaks of thinking */
    json_t *variables; /* owned object of tokens for templates; may be NULL */
    char problem[256]; /* of a broken one */
} text_template;

/*
 * Which template a folder has: chat_template.jinja, else `chat_template` in chat_template.json, else the same in
 * tokenizer_config.json (a string, or the entry "default" of a list). `option` is NULL or "auto" for that; "minimax-m3"
 * forces the built-in renderer whatever the folder has; else it names a file, or is a template itself when it has a brace or
 * a line feed. HY_USAGE: the option is none of these, or not a template. `folder` may be NULL: none. A folder's template
 * that cannot be compiled is not an error here, so that the model opens. HY_BAD_MODEL: a file that cannot be understood.
 */
hy_status text_template_detect(const char *folder, const char *option, text_template *out, hy_error *err);

/* A template of a request's own, with the tokens of `base`. HY_BAD_INPUT: not a template, with the line. */
hy_status text_template_compile(const text_template *base, const char *text, size_t length, text_template *out,
                                hy_error *err);
void text_template_free(text_template *chat);

/* HY_OK when conversations can be rendered; else the error of a broken template. */
hy_status text_template_usable(const text_template *chat, hy_error *err);

/* Whether the prompt depends on a variable, so that setting it can have an effect. */
bool text_template_reads(const text_template *chat, const char *variable);

/*
 * Renders a conversation and appends it to `out`, which on failure may hold a part of it.
 *
 * messages  array of {"role", "content", ...} as in the chat completions protocol. Content is a string, null or a list
 *           of parts: a string or {"type": "text", "text"} is its text, {"type": "image"} and {"type": "video"} their
 *           markers, any other part nothing (so a caller turns image_url and video_url into these, or refuses them).
 *           Assistant: "reasoning" or "reasoning_content" (string), "tool_calls" with arguments as an object or as JSON
 *           text of one. Tool: a list of texts is joined by newlines.
 * tools     array of {"type": "function", "function": {name, description, parameters, strict, defer_loading}}, or NULL.
 * kwargs    object of template variables, or NULL. For M3: thinking_mode ("enabled", "disabled", "adaptive"; missing reads
 *           as adaptive), model_identity (text that stands in for a missing developer message); others are ignored. For
 *           all: add_generation_prompt (default true, but false with the next), continue_final_message (default false: when
 *           true the prompt ends with the last message's content, trailing white space removed).
 *
 * HY_BAD_INPUT with one line for what the template or the protocol refuses, HY_NO_FIT: a limit of text/jinja.h, HY_BAD_MODEL:
 * a broken template.
 */
hy_status text_template_render(const text_template *chat, const json_t *messages, const json_t *tools,
                               const json_t *kwargs, buffer *out, hy_error *err);

#endif
