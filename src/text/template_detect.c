/* Which chat template a folder has, and its compiled form: see text/chat_template.h. */
#include "text/template_parts.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "text/json_read.h"

#include <limits.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEMPLATE_LIMIT = 4 << 20, CONFIG_LIMIT = 64 << 20 }; /* bytes */

/* SHA-256 of MiniMax-M3's template in the form that hash_template takes it. */
static const char m3_sha256[] = "c56d1f3ab70881b0e2ed8f51fa6de435d37b84d6c804ebb19a0ec4986fa5ffa9";

/*
 * Hashes the template as its reader would see it: line ends are line feeds and the last one does not count. The same
 * template is found with and without them, as text editors and archives leave it.
 */
static hy_status hash_template(const char *text, size_t length, text_template *out, hy_error *err)
{
    buffer clean = {0};
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\r' && i + 1 < length && text[i + 1] == '\n') continue;
        buffer_char(&clean, text[i] == '\r' ? '\n' : text[i]);
    }
    if (clean.length && clean.data[clean.length - 1] == '\n') clean.length--;
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned size = 0;
    bool ok = buffer_ok(&clean) &&
              EVP_Digest(clean.data ? clean.data : "", clean.length, digest, &size, EVP_sha256(), NULL) == 1;
    buffer_free(&clean);
    if (!ok) return error_at(err, HY_FAILED, out->source, "the chat template could not be hashed: out of memory");
    for (unsigned i = 0; i < 32; i++) snprintf(out->sha256 + 2 * i, 3, "%02x", digest[i]);
    return HY_OK;
}

/* By its hash the built-in one, else compiled; what cannot be compiled is kept as the reason. */
static hy_status take_text(const char *text, size_t length, text_template *out, hy_error *err)
{
    hy_error why = {0};
    hy_status s = hash_template(text, length, out, err);
    if (s) return s;
    out->kind = TEXT_TEMPLATE_MINIMAX_M3;
    if (strcmp(out->sha256, m3_sha256) == 0) return HY_OK;
    s = jinja_compile(text, length, out->source, &out->program, &why);
    out->kind = s ? TEXT_TEMPLATE_BROKEN : TEXT_TEMPLATE_INTERPRETED;
    if (s == HY_BAD_MODEL) {
        snprintf(out->problem, sizeof out->problem, "%.*s", (int)sizeof out->problem - 1, why.message);
        out->problem[sizeof out->problem - 1 - utf8_incomplete_tail(out->problem, strlen(out->problem))] = 0;
        return HY_OK;
    }
    if (s) return error_set(err, s, "%s", why.message);
    char *searched = memory_string(text, length);
    out->thinks = (searched && strstr(searched, "think")) || jinja_mentions(out->program, "reasoning_effort") ||
                  jinja_mentions(out->program, "effort");
    free(searched);
    return HY_OK;
}

/* The template of a configuration: a string, or the entry "default" of a list of named ones; NULL without one. */
static const json_t *configured(const json_t *config)
{
    const json_t *chat = json_object_get(config, "chat_template"), *entry;
    size_t i;
    if (json_is_string(chat)) return chat;
    json_array_foreach(chat, i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        const json_t *text = json_object_get(entry, "template");
        if (name && strcmp(name, "default") == 0 && json_is_string(text)) return text;
    }
    return NULL;
}

/* Looks into one JSON file; `kind` stays TEXT_TEMPLATE_NONE when there is no template in it. */
static hy_status detect_in_config(const char *path, const char *name, text_template *out, hy_error *err)
{
    char *data = NULL;
    size_t size = 0;
    hy_status s = file_read(path, CONFIG_LIMIT, &data, &size, err);
    if (s) return s;
    json_t *config = json_read(data, size, JSON_REJECT_DUPLICATES, HY_BAD_MODEL, path, err);
    free(data);
    if (!config) return HY_BAD_MODEL;
    const json_t *text = configured(config);
    if (!json_is_object(config)) {
        s = error_at(err, HY_BAD_MODEL, path, "%.200s must hold a JSON object", path);
    } else if (text) {
        snprintf(out->source, sizeof out->source, "%s", name);
        s = take_text(json_string_value(text), json_string_length(text), out, err);
    } else if (json_object_get(config, "chat_template")) {
        s = error_at(err, HY_BAD_MODEL, path,
                     "%.200s: chat_template is neither a string nor a list with an entry \"default\"", path);
    }
    json_decref(config);
    return s;
}

static hy_status detect_in_folder(const char *folder, text_template *out, hy_error *err)
{
    static const char *const names[] = {"chat_template.jinja", "chat_template.json", "tokenizer_config.json"};
    char path[PATH_MAX];
    hy_status s = HY_OK;
    for (int i = 0; !s && i < 3 && out->kind == TEXT_TEMPLATE_NONE; i++) {
        if ((s = file_join(folder, names[i], path, sizeof path, err))) return s;
        if (!file_present(path)) continue;
        if (i) {
            s = detect_in_config(path, names[i], out, err);
            continue;
        }
        char *data = NULL;
        size_t size = 0;
        if ((s = file_read(path, TEMPLATE_LIMIT, &data, &size, err))) return s;
        snprintf(out->source, sizeof out->source, "%s", names[i]);
        s = take_text(data, size, out, err);
        free(data);
    }
    return s;
}

/* ---- Tokens for templates ---------------------------------------------------------------------------------------- */

/* The tokens that one file names, where an earlier one did not. They are strings, or objects with a content. */
static hy_status take_tokens(const char *folder, const char *name, json_t *variables, hy_error *err)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    char path[PATH_MAX], *data = NULL;
    size_t size = 0;
    hy_status s = file_join(folder, name, path, sizeof path, err);
    if (s || !file_present(path)) return s;
    if ((s = file_read(path, CONFIG_LIMIT, &data, &size, err))) return s;
    json_t *config = json_read(data, size, JSON_REJECT_DUPLICATES, HY_BAD_MODEL, path, err);
    free(data);
    if (!config) return HY_BAD_MODEL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *token = json_object_get(config, names[i]);
        if (json_is_object(token)) token = json_object_get(token, "content");
        if (json_is_string(token) && !json_object_get(variables, names[i])) json_object_set(variables, names[i], token);
    }
    json_decref(config);
    return HY_OK;
}

/* Only interpreted templates have a use for them: a folder of M3's is not read for nothing. */
static hy_status find_tokens(const char *folder, text_template *out, hy_error *err)
{
    if (!folder || out->kind != TEXT_TEMPLATE_INTERPRETED) return HY_OK;
    if (!(out->variables = json_object())) return error_memory(err, "tokens of a template", 0);
    hy_status s = take_tokens(folder, "tokenizer_config.json", out->variables, err);
    return s ? s : take_tokens(folder, "special_tokens_map.json", out->variables, err);
}

/* ---- By name ----------------------------------------------------------------------------------------------------- */

/* What --chat-template gives: a file, or the text of a template. */
static hy_status take_option(const char *option, text_template *out, hy_error *err)
{
    char *data = NULL;
    size_t size = 0;
    hy_status s;
    if (file_exists(option)) {
        const char *name = strrchr(option, '/');
        snprintf(out->source, sizeof out->source, "%s", name ? name + 1 : option);
        if ((s = file_read(option, TEMPLATE_LIMIT, &data, &size, err))) return s;
        s = take_text(data, size, out, err);
        free(data);
    } else if (strpbrk(option, "{}\n")) {
        snprintf(out->source, sizeof out->source, "--chat-template");
        s = take_text(option, strlen(option), out, err);
    } else {
        return error_at(
            err, HY_USAGE, "--chat-template",
            "\"%.60s\" is not a chat template: auto, minimax-m3, a file that exists, or the text of a template",
            option);
    }
    if (s || out->kind != TEXT_TEMPLATE_BROKEN) return s;
    return error_at(err, HY_USAGE, "--chat-template", "%s", out->problem);
}

static void log_found(const text_template *found)
{
    if (found->kind == TEXT_TEMPLATE_NONE)
        log_line(HY_LOG_DEBUG, "no chat template in the model's folder: MiniMax-M3's is used");
    if (found->kind == TEXT_TEMPLATE_INTERPRETED)
        log_line(HY_LOG_INFO, "%s (SHA-256 %.16s...) is interpreted", found->source, found->sha256);
    if (found->kind == TEXT_TEMPLATE_BROKEN)
        log_line(HY_LOG_WARNING, "no chat: %s. --chat-template names another template, or minimax-m3", found->problem);
}

hy_status text_template_detect(const char *folder, const char *option, text_template *out, hy_error *err)
{
    text_template found = {.kind = TEXT_TEMPLATE_NONE};
    hy_status s = HY_OK;
    if (option && strcmp(option, "minimax-m3") == 0)
        found.kind = TEXT_TEMPLATE_MINIMAX_M3;
    else if (option && strcmp(option, "auto") != 0)
        s = take_option(option, &found, err);
    else if (folder)
        s = detect_in_folder(folder, &found, err);
    if (!s) s = find_tokens(folder, &found, err);
    if (s) {
        text_template_free(&found);
        return s;
    }
    log_found(&found);
    *out = found;
    return HY_OK;
}

hy_status text_template_compile(const text_template *base, const char *text, size_t length, text_template *out,
                                hy_error *err)
{
    text_template made = {.source = "chat_template"};
    hy_status s = take_text(text, length, &made, err);
    if (!s && made.kind == TEXT_TEMPLATE_BROKEN) s = error_set(err, HY_BAD_INPUT, "%s", made.problem);
    if (s) {
        text_template_free(&made);
        return s;
    }
    made.variables = json_incref(base->variables);
    *out = made;
    return HY_OK;
}

void text_template_free(text_template *chat)
{
    jinja_free(chat->program);
    json_decref(chat->variables);
    *chat = (text_template){.kind = TEXT_TEMPLATE_NONE};
}

hy_status text_template_usable(const text_template *chat, hy_error *err)
{
    if (chat->kind != TEXT_TEMPLATE_BROKEN) return HY_OK;
    return error_at(err, HY_BAD_MODEL, chat->source,
                    "this model's chat template cannot be used: %s. --chat-template names another one, or minimax-m3",
                    chat->problem);
}

bool text_template_reads(const text_template *chat, const char *variable)
{
    static const char *const builtin[] = {"messages", "tools", "add_generation_prompt", "thinking_mode",
                                          "model_identity"};
    if (chat->kind == TEXT_TEMPLATE_INTERPRETED) return jinja_mentions(chat->program, variable);
    for (size_t i = 0; chat->kind != TEXT_TEMPLATE_BROKEN && i < sizeof builtin / sizeof *builtin; i++)
        if (strcmp(builtin[i], variable) == 0) return true;
    return false;
}
