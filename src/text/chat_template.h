/*
 * From a conversation to the text of a prompt.
 *
 * The renderer here is that of MiniMax-M3's chat template, written out in C. A checkpoint may carry another template;
 * rendering it with M3's text would make wrong prompts in silence, so a template is known by its SHA-256 and an unknown
 * one is refused until the caller forces the built-in renderer by name.
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
 */
#ifndef HAYATE_TEXT_CHAT_TEMPLATE_H
#define HAYATE_TEXT_CHAT_TEMPLATE_H

#include "base/buffer.h"
#include "hayate.h"

#include <jansson.h>

typedef enum text_template_kind {
    TEXT_TEMPLATE_NONE,       /* the folder has none: the built-in renderer is used, with a log line */
    TEXT_TEMPLATE_MINIMAX_M3, /* M3's own, or forced */
    TEXT_TEMPLATE_UNKNOWN,    /* another one: no chat until the built-in renderer is forced */
} text_template_kind;

typedef struct text_template {
    text_template_kind kind;
    char source[64]; /* the file's name; "" without one, and when forced */
    char sha256[65]; /* of its text with "\n" line ends and without the last one, in hex; "" likewise */
} text_template;

/*
 * Which template a folder has: chat_template.jinja, else `chat_template` in chat_template.json, else the same in
 * tokenizer_config.json (a string, or the entry "default" of a list). `option` is NULL, "auto" or "minimax-m3", which
 * forces the built-in renderer whatever the folder has; anything else is HY_USAGE. `folder` may be NULL: none. An
 * unknown template is not an error here, so that the model opens. HY_BAD_MODEL: a file that cannot be understood.
 */
hy_status text_template_detect(const char *folder, const char *option, text_template *out, hy_error *err);

/*
 * Renders a conversation and appends it to `out`, which on failure may hold a part of it.
 *
 * messages  array of {"role", "content", ...} as in the chat completions protocol. Content is a string, null or a list
 *           of parts: a string or {"type": "text", "text"} is its text, {"type": "image"} and {"type": "video"} their
 *           markers, any other part nothing (so a caller turns image_url and video_url into these, or refuses them).
 *           Assistant: "reasoning" or "reasoning_content" (string), "tool_calls" with arguments as an object or as JSON
 *           text of one. Tool: a list of texts is joined by newlines.
 * tools     array of {"type": "function", "function": {name, description, parameters, strict, defer_loading}}, or NULL.
 * kwargs    object of template variables, or NULL: thinking_mode ("enabled", "disabled", "adaptive"; missing reads as
 *           adaptive), model_identity (text that stands in for a missing developer message), add_generation_prompt
 *           (default true, but false with the next), continue_final_message (default false: when true the prompt ends
 *           with the last message's content, trailing white space removed). Others are ignored.
 *
 * HY_BAD_INPUT with one line for what the template or the protocol refuses, HY_UNSUPPORTED for an unknown template.
 */
hy_status text_template_render(const text_template *chat, const json_t *messages, const json_t *tools,
                               const json_t *kwargs, buffer *out, hy_error *err);

#endif
