/* Text in and out of a model: the public functions over its tokenizer, chat template and grammars. */
#include "base/error.h"
#include "model/model_parts.h"
#include "text/grammar.h"
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
    for (size_t i = 0; i < count && status == HY_OK; i++)
        if (ids[i] < 0 || ids[i] >= model->weights.shape.vocab)
            status = error_at(err, HY_BAD_INPUT, "ids", "token id %d at place %zu is outside 0 .. %d", ids[i], i,
                              model->weights.shape.vocab - 1);
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
    return status != HY_OK ? status : text_template_usable(&model->chat, err);
}

/* Optional JSON text: NULL stays NULL. */
static hy_status parse(const char *what, const char *text, json_t **out, hy_error *err)
{
    if (!text) return HY_OK;
    /* A model may write a NUL, and its answer must be able to come back. */
    *out = json_read(text, strlen(text), JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, HY_BAD_INPUT, what, err);
    return *out ? HY_OK : HY_BAD_INPUT;
}

bool model_template_reads(const hy_model *model, const char *variable)
{
    return text_template_reads(&model->chat, variable);
}

bool model_template_known(const hy_model *model)
{
    return model->chat.kind == TEXT_TEMPLATE_NONE || model->chat.kind == TEXT_TEMPLATE_MINIMAX_M3;
}

hy_status model_render(const hy_model *model, const char *chat_template, const json_t *messages, const json_t *tools,
                       const json_t *kwargs, hy_ids *ids, hy_error *err)
{
    text_template own = {.kind = TEXT_TEMPLATE_NONE};
    const text_template *chat = chat_template ? &own : &model->chat;
    buffer prompt = {0};
    hy_status status = chat_template ? need_tokenizer(model, err) : model_can_chat(model, err);
    if (status == HY_OK && chat_template)
        status = text_template_compile(&model->chat, chat_template, strlen(chat_template), &own, err);
    if (status == HY_OK) status = text_template_render(chat, messages, tools, kwargs, &prompt, err);
    if (status == HY_OK && !buffer_ok(&prompt)) status = error_memory(err, "a rendered prompt", prompt.length);
    if (status == HY_OK) status = hy_tokenize(model, prompt.data ? prompt.data : "", prompt.length, ids, err);
    buffer_free(&prompt);
    text_template_free(&own);
    return status;
}

hy_status hy_render_chat(const hy_model *model, const char *messages_json, const char *tools_json,
                         const char *kwargs_json, hy_ids *ids, hy_error *err)
{
    json_t *messages = NULL, *tools = NULL, *kwargs = NULL;
    hy_status status = model_can_chat(model, err);
    if (status == HY_OK && !messages_json) status = error_set(err, HY_BAD_INPUT, "there are no messages to render");
    if (status == HY_OK) status = parse("messages", messages_json, &messages, err);
    if (status == HY_OK) status = parse("tools", tools_json, &tools, err);
    if (status == HY_OK) status = parse("chat_template_kwargs", kwargs_json, &kwargs, err);
    if (status == HY_OK) status = model_render(model, NULL, messages, tools, kwargs, ids, err);
    json_decref(messages);
    json_decref(tools);
    json_decref(kwargs);
    return status;
}

/* ---- Structured output ------------------------------------------------------------------------------------------ */

hy_status hy_grammar_compile(const hy_model *model, hy_grammar_kind kind, const char *source, size_t length,
                             const hy_grammar_options *options, hy_grammar **grammar, hy_error *err)
{
    static const text_grammar_kind kinds[] = {
        [HY_GRAMMAR_JSON_SCHEMA] = TEXT_GRAMMAR_JSON_SCHEMA,
        [HY_GRAMMAR_JSON_OBJECT] = TEXT_GRAMMAR_JSON_OBJECT,
        [HY_GRAMMAR_REGEX] = TEXT_GRAMMAR_REGEX,
        [HY_GRAMMAR_CHOICE] = TEXT_GRAMMAR_CHOICE,
        [HY_GRAMMAR_EBNF] = TEXT_GRAMMAR_EBNF,
        [HY_GRAMMAR_TOOLS] = TEXT_GRAMMAR_TOOLS,
        [HY_GRAMMAR_TAGS] = TEXT_GRAMMAR_TAGS,
    };
    static const hy_grammar_options defaults;
    const hy_grammar_options *o = options ? options : &defaults;
    text_grammar_options how = {
        .any_whitespace = !o->compact, .additional_properties = !o->closed, .whitespace_pattern = o->whitespace};
    text_grammar *made = NULL;
    if ((int)kind < 0 || (size_t)kind >= sizeof kinds / sizeof *kinds)
        return error_set(err, HY_USAGE, "%d is no kind of grammar", (int)kind);
    hy_status status = need_tokenizer(model, err);
    if (status == HY_OK) status = text_grammar_compile(model->tokenizer, kinds[kind], source, length, &how, &made, err);
    if (status == HY_OK) *grammar = (hy_grammar *)made;
    return status;
}

void hy_grammar_close(hy_grammar *grammar)
{
    text_grammar_release((text_grammar *)grammar);
}
