/* Rank files: the format of https://github.com/openai/tiktoken, one token a line as "base64 rank". */
#include "text/tokenizer_file.h"

#include "base/error.h"
#include "base/memory.h"
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>

enum {
    TOKEN_LIMIT = 1024,  /* bytes of a token; the merge that makes a token is searched, so the length must be bounded */
    M3_RANKS = 200000,   /* ids below are the rank file's, its added tokens follow */
    M3_FIRST_SHOWN = 50, /* added tokens from this one on are not special: parsers and users read them */
};

/* MiniMax-M3's added tokens, from id 200000 on. */
/* clang-format off */
static const char *const m3_added[] = {
    "]!p~[", "<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<reponame>", "<filename>", "<gh_stars>",
    "<issue_start>", "<issue_comment>", "<issue_closed>", "<jupyter_start>", "<jupyter_text>", "<jupyter_code>",
    "<jupyter_output>", "<empty_output>", "<commit_before>", "<commit_msg>", "<commit_after>", "]~b]", "[e~[", "]!d~[",
    "<function_call>", "<code_interpreter>", "]<]speech[>[", "]<]image[>[", "]<]video[>[", "]<]start of speech[>[",
    "]<]end of speech[>[", "]<]start of image[>[", "]<]end of image[>[", "]<]start of video[>[", "]<]end of video[>[",
    "]<]vision pad[>[", "]~!b[", "<jupyter_error>", "<add_file>", "<delete_file>", "<rename_file>", "<edit_file>",
    "<commit_message>", "<empty_source_file>", "<repo_struct>", "<code_context>", "<file_content>", "<source_files>",
    "<pr_start>", "<review_comment>", "<filepath>", "<file_sep>", "<think>", "</think>", "<tool_call>", "</tool_call>",
    "]<]frame[>[", "]<]start of frame[>[", "]<]end of frame[>[", "<|content_altered_placeholder|>", "]<]minimax[>[",
    "<mm:think>", "</mm:think>",
};
/* clang-format on */

/* The six bits of a base64 digit, -1 for anything else. */
static int digit(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decodes base64 with its padding; false when it is not that, or longer than a token may be. */
static bool decode(const char *s, size_t length, unsigned char *out, size_t *count)
{
    if (length == 0 || length % 4 || length / 4 * 3 > TOKEN_LIMIT) return false;
    size_t padding = (s[length - 1] == '=') + (s[length - 1] == '=' && s[length - 2] == '=');
    uint32_t bits = 0;
    *count = 0;
    for (size_t i = 0; i < length; i++) {
        int d = i < length - padding ? digit(s[i]) : 0;
        if (d < 0) return false;
        bits = bits << 6 | (uint32_t)d;
        if (i % 4 == 3) {
            out[(*count)++] = (unsigned char)(bits >> 16);
            out[(*count)++] = (unsigned char)(bits >> 8);
            out[(*count)++] = (unsigned char)bits;
            bits = 0;
        }
    }
    *count -= padding;
    return true;
}

static hy_status read_line(vocabulary *v, const char *line, size_t length, size_t number, const char *what,
                           hy_error *err)
{
    unsigned char bytes[TOKEN_LIMIT + 3];
    const char *space = memchr(line, ' ', length);
    size_t count = 0, digits = space ? (size_t)(line + length - space - 1) : 0;
    int64_t rank = 0;
    bool good = space && digits > 0 && digits < 9 && decode(line, (size_t)(space - line), bytes, &count);
    for (size_t i = 0; good && i < digits; i++) {
        good = space[1 + i] >= '0' && space[1 + i] <= '9';
        rank = rank * 10 + (space[1 + i] - '0');
    }
    if (!good)
        return error_at(err, HY_BAD_MODEL, what,
                        "line %zu is not \"base64 rank\": neither a rank file nor a tokenizer.json", number);
    return vocabulary_add(v, rank, bytes, count, TOKEN_MODEL, what, err);
}

static hy_status read_lines(vocabulary *v, const char *data, size_t size, const char *what, hy_error *err)
{
    size_t number = 0;
    for (size_t at = 0; at < size;) {
        const char *end = memchr(data + at, '\n', size - at);
        size_t length = end ? (size_t)(end - data) - at : size - at;
        number++;
        size_t kept = length && data[at + length - 1] == '\r' ? length - 1 : length;
        if (kept) {
            hy_status s = read_line(v, data + at, kept, number, what, err);
            if (s) return s;
        }
        at += length + 1;
    }
    return HY_OK;
}

/*
 * The merges behind the ranks. A token was made from the two pieces into which merging by the lower ranks alone brings
 * its bytes; so they come out in the order of the ranks. A token that is left in more pieces was never merged: it is
 * reached as a whole pre-token only.
 */
static hy_status derive_merges(vocabulary *v, hy_error *err)
{
    bpe_workspace w = {0};
    bool ok = true;
    for (int32_t id = 0; ok && id < v->size; id++) {
        size_t length, count;
        const int32_t *ids;
        const char *bytes = vocabulary_bytes(v, id, &length);
        if (length < 2 || !(v->tokens[id].flags & TOKEN_MODEL)) continue;
        ok = bpe_merge(v, &w, (const unsigned char *)bytes, length, &ids, &count);
        if (ok && count == 2) ok = vocabulary_add_merge(v, ids[0], ids[1], id, (uint32_t)id);
    }
    bpe_free(&w);
    return ok ? HY_OK : error_memory(err, "the merges", v->merge_count * sizeof *v->merges);
}

static hy_status add_m3_tokens(vocabulary *v, const char *what, hy_error *err)
{
    for (size_t i = 0; i < sizeof m3_added / sizeof *m3_added; i++) {
        uint32_t flags = TOKEN_ADDED | (i < M3_FIRST_SHOWN ? TOKEN_SPECIAL : 0);
        hy_status s = vocabulary_add(v, (int64_t)(M3_RANKS + i), m3_added[i], strlen(m3_added[i]), flags, what, err);
        if (s) return s;
        if (!vocabulary_add_match(&v->raw, (int32_t)(M3_RANKS + i)))
            return error_memory(err, "the added tokens", sizeof m3_added);
    }
    return HY_OK;
}

hy_status tokenizer_file_ranks(const char *data, size_t size, const char *what, vocabulary *v, hy_error *err)
{
    hy_status s = read_lines(v, data, size, what, err);
    if (s) return s;
    if (v->slot_count != (size_t)v->size)
        return error_at(err, HY_BAD_MODEL, what, "%zu ranks, but the largest is %d: ranks must run from 0 without gaps",
                        v->slot_count, v->size - 1);
    v->rules = pretokenize_m3;
    v->nfc = v->ignore_merges = true;
    if (v->size == M3_RANKS && (s = add_m3_tokens(v, what, err))) return s;
    if ((s = vocabulary_finish(v, what, err))) return s;
    return derive_merges(v, err);
}
