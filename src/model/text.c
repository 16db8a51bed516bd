/* Text in and out of a model: the public functions over its tokenizer and chat template. */
#include "base/error.h"
#include "model/model_parts.h"
#include "text/json_read.h"

#include <string.h>

static hy_status need_tokenizer(const hy_model *model, hy_error *err)
{
    if (model->tokenizer) return HY_OK;
    return error_at(err, HY_USAGE, model->path,
                    "%s has no tokenizer: put its tokenizer.json there or name one with --tokenizer", model->path);
}

hy_status hy_tokenize(const hy_model *model, const char *text, size_t length, hy_ids *ids, hy_error *err)
{
    hy_status status = need_tokenizer(model, err);
    return status != HY_OK ? status : text_tokenizer_encode(model->tokenizer, text, length, true, ids, err);
}

hy_status hy_detokenize(const hy_model *model, const int32_t *ids, size_t count, bool skip_special, char **text,
                        hy_error *err)
{
    hy_status status = need_tokenizer(model, err);
    if (status != HY_OK) return status;
    buffer out = {0};
    status = text_decode(model->tokenizer, ids, count, skip_special, &out, err);
    char *made = status == HY_OK ? buffer_take(&out, NULL) : NULL;
    if (status == HY_OK && !made) status = error_memory(err, "decoded text", out.length);
    buffer_free(&out);
    if (status == HY_OK) *text = made;
    return status;
}

hy_status model_can_chat(const hy_model *model, hy_error *err)
{
    hy_status status = need_tokenizer(model, err);
    if (status != HY_OK || model->chat.kind != TEXT_TEMPLATE_UNKNOWN) return status;
    return error_at(
        err, HY_UNSUPPORTED, model->path,
        "the chat template in %s of %s is not MiniMax-M3's (sha256 %.16s...): force the built-in renderer with "
        "--chat-template minimax-m3",
        model->chat.source, model->path, model->chat.sha256);
}

/* Optional JSON text: NULL stays NULL. */
static hy_status parse(const char *what, const char *text, json_t **out, hy_error *err)
{
    if (!text) return HY_OK;
    /* A model may write a NUL, and its answer must be able to come back. */
    *out = json_read(text, strlen(text), JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, HY_BAD_INPUT, what, err);
    return *out ? HY_OK : HY_BAD_INPUT;
}

hy_status hy_render_chat(const hy_model *model, const char *messages_json, const char *tools_json,
                         const char *kwargs_json, hy_ids *ids, hy_error *err)
{
    json_t *messages = NULL, *tools = NULL, *kwargs = NULL;
    buffer prompt = {0};
    hy_status status = model_can_chat(model, err);
    if (status == HY_OK && !messages_json) status = error_set(err, HY_BAD_INPUT, "there are no messages to render");
    if (status == HY_OK) status = parse("messages", messages_json, &messages, err);
    if (status == HY_OK) status = parse("tools", tools_json, &tools, err);
    if (status == HY_OK) status = parse("chat_template_kwargs", kwargs_json, &kwargs, err);
    if (status == HY_OK) status = text_template_render(&model->chat, messages, tools, kwargs, &prompt, err);
    if (status == HY_OK && !buffer_ok(&prompt)) status = error_memory(err, "a rendered prompt", prompt.length);
    if (status == HY_OK) status = hy_tokenize(model, prompt.data ? prompt.data : "", prompt.length, ids, err);
    buffer_free(&prompt);
    json_decref(messages);
    json_decref(tools);
    json_decref(kwargs);
    return status;
}
