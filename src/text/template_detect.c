/* Which chat template a folder has: text_template_detect of text/chat_template.h. */
#include "text/chat_template.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
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
    out->kind = strcmp(out->sha256, m3_sha256) == 0 ? TEXT_TEMPLATE_MINIMAX_M3 : TEXT_TEMPLATE_UNKNOWN;
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
    if (text) {
        snprintf(out->source, sizeof out->source, "%s", name);
        s = hash_template(json_string_value(text), json_string_length(text), out, err);
    } else if (json_object_get(config, "chat_template")) {
        s = error_at(err, HY_BAD_MODEL, path, "chat_template is neither a string nor a list with an entry \"default\"");
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
        s = hash_template(data, size, out, err);
        free(data);
    }
    return s;
}

hy_status text_template_detect(const char *folder, const char *option, text_template *out, hy_error *err)
{
    text_template found = {.kind = TEXT_TEMPLATE_NONE};
    if (option && strcmp(option, "minimax-m3") == 0) {
        *out = (text_template){.kind = TEXT_TEMPLATE_MINIMAX_M3};
        return HY_OK;
    }
    if (option && strcmp(option, "auto") != 0)
        return error_at(err, HY_USAGE, "--chat-template", "\"%.60s\" is not a chat template: auto or minimax-m3",
                        option);
    hy_status s = folder ? detect_in_folder(folder, &found, err) : HY_OK;
    if (s) return s;
    if (found.kind == TEXT_TEMPLATE_NONE)
        log_line(HY_LOG_DEBUG, "no chat template in the model's folder: MiniMax-M3's is used");
    if (found.kind == TEXT_TEMPLATE_UNKNOWN)
        log_line(HY_LOG_WARNING,
                 "%s is not a chat template that is known (SHA-256 %.16s...): no chat until --chat-template "
                 "minimax-m3 forces the built-in renderer",
                 found.source, found.sha256);
    *out = found;
    return HY_OK;
}
