/* tokenizer.json, the format of https://github.com/huggingface/tokenizers. */
#include "text/tokenizer_file.h"

#include "base/error.h"
#include "base/log.h"
#include "base/utf8.h"
#include "text/json_read.h"
#include "text/normalize.h"

#include <string.h>

typedef struct reader {
    vocabulary *v;
    const char *what; /* the file, for messages */
    hy_error *err;
    buffer a, b; /* scratch */
} reader;

/* Printable Latin-1 stands for itself; the other 68 bytes follow from U+0100 on, in order. */
static bool stands_for_itself(unsigned c)
{
    return (c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xAC) || (c >= 0xAE && c <= 0xFF);
}

uint32_t tokenizer_file_letter(unsigned char byte)
{
    if (stands_for_itself(byte)) return byte;
    uint32_t n = 0x100;
    for (unsigned c = 0; c < byte; c++) n += !stands_for_itself(c);
    return n;
}

int tokenizer_file_byte(uint32_t code)
{
    if (code < 0x100) return stands_for_itself(code) ? (int)code : -1;
    if (code > 0x143) return -1;
    if (code <= 0x120) return (int)code - 0x100;            /* 0x00 .. 0x20 */
    return code == 0x143 ? 0xAD : (int)code - 0x121 + 0x7F; /* 0x7F .. 0xA0, then 0xAD */
}

/* A token's text into its bytes. A text with a character outside the alphabet stands for its own UTF-8, as the
 * library's decoder has it. */
static void token_bytes(const char *text, size_t length, buffer *out)
{
    buffer_clear(out);
    for (size_t at = 0; at < length;) {
        uint32_t code = 0;
        size_t n = utf8_decode(text + at, length - at, &code);
        int byte = n ? tokenizer_file_byte(code) : -1;
        if (byte < 0) {
            buffer_clear(out);
            buffer_append(out, text, length);
            return;
        }
        buffer_char(out, (char)byte);
        at += n;
    }
}

static hy_status bad(const reader *r, const char *field, const char *problem)
{
    return error_at(r->err, HY_BAD_MODEL, r->what, "%s %s", field, problem);
}

/* null, false and "" count as not set. */
static bool is_set(const json_t *j)
{
    return j && !json_is_null(j) && !json_is_false(j) && !(json_is_string(j) && json_string_length(j) == 0);
}

static const char *type_of(const json_t *j)
{
    const char *type = json_string_value(json_object_get(j, "type"));
    return type ? type : "";
}

/* ---- Normaliser, pre-tokenizer, decoder, post-processor ------------------------------------------------------- */

static hy_status read_normalizer(reader *r, const json_t *j)
{
    if (!is_set(j)) return HY_OK;
    if (strcmp(type_of(j), "NFC") == 0) {
        r->v->nfc = true;
        return HY_OK;
    }
    if (strcmp(type_of(j), "Sequence") != 0)
        return error_at(r->err, HY_BAD_MODEL, r->what, "normalizer \"%.40s\" is not supported: NFC or none",
                        type_of(j));
    size_t i;
    json_t *part, *parts = json_object_get(j, "normalizers");
    if (!json_is_array(parts)) return bad(r, "normalizer.normalizers", "is not a list");
    json_array_foreach(parts, i, part)
    {
        if (strcmp(type_of(part), "NFC") != 0)
            return error_at(r->err, HY_BAD_MODEL, r->what, "normalizer \"%.40s\" is not supported: NFC or none",
                            type_of(part));
        r->v->nfc = true;
    }
    return HY_OK;
}

/* The pattern must be one that the scanner knows. Cut pieces are the matches in both accepted ways of saying it. */
static hy_status read_split(reader *r, const json_t *j)
{
    const char *pattern = json_string_value(json_object_get(json_object_get(j, "pattern"), "Regex"));
    if (!pattern) return bad(r, "pre_tokenizer.pattern", "is not a Regex");
    if (!pretokenize_find(pattern, &r->v->rules))
        return error_at(r->err, HY_BAD_MODEL, r->what,
                        "pre_tokenizer pattern is not one that is known (those of MiniMax-M3 and o200k): %.300s",
                        pattern);
    const char *behavior = json_string_value(json_object_get(j, "behavior"));
    bool invert = json_is_true(json_object_get(j, "invert"));
    if (!behavior || strcmp(behavior, invert ? "Removed" : "Isolated") != 0)
        return bad(r, "pre_tokenizer.behavior", "must be Isolated (or Removed with invert): others are not supported");
    return HY_OK;
}

static hy_status read_byte_level(reader *r, const json_t *j)
{
    if (json_is_true(json_object_get(j, "add_prefix_space")))
        return bad(r, "pre_tokenizer.add_prefix_space", "is true, which is not supported");
    /* The library's default for use_regex is true, which would cut the pieces again by GPT-2's pattern. */
    if (!json_is_false(json_object_get(j, "use_regex")))
        return bad(r, "pre_tokenizer.use_regex", "is not false: only byte mapping after a Split is supported");
    return HY_OK;
}

static hy_status read_pre_tokenizer(reader *r, const json_t *j)
{
    const json_t *parts = json_object_get(j, "pretokenizers");
    if (strcmp(type_of(j), "Sequence") != 0 || json_array_size(parts) != 2 ||
        strcmp(type_of(json_array_get(parts, 0)), "Split") != 0 ||
        strcmp(type_of(json_array_get(parts, 1)), "ByteLevel") != 0)
        return bad(r, "pre_tokenizer", "is not a Sequence of Split and ByteLevel: others are not supported");
    hy_status s = read_split(r, json_array_get(parts, 0));
    return s ? s : read_byte_level(r, json_array_get(parts, 1));
}

/* What comes after encoding is not ours to apply: prompts carry their own markers. */
static hy_status read_rest(reader *r, const json_t *root)
{
    const json_t *decoder = json_object_get(root, "decoder"), *post = json_object_get(root, "post_processor");
    if (is_set(decoder) && strcmp(type_of(decoder), "ByteLevel") != 0)
        return error_at(r->err, HY_BAD_MODEL, r->what, "decoder \"%.40s\" is not supported: ByteLevel",
                        type_of(decoder));
    if (is_set(post) && strcmp(type_of(post), "ByteLevel") != 0)
        log_line(HY_LOG_WARNING, "%s: post_processor \"%.40s\" is not applied: no tokens are added to a text", r->what,
                 type_of(post));
    return HY_OK;
}

/* ---- The model ------------------------------------------------------------------------------------------------ */

static hy_status read_vocabulary(reader *r, json_t *vocab)
{
    if (!json_is_object(vocab)) return bad(r, "model.vocab", "is not an object");
    const char *key;
    json_t *value;
    json_object_foreach(vocab, key, value)
    {
        if (!json_is_integer(value))
            return error_at(r->err, HY_BAD_MODEL, r->what, "model.vocab: the id of \"%.60s\" is not an integer", key);
        token_bytes(key, strlen(key), &r->a);
        if (!buffer_ok(&r->a)) return error_memory(r->err, "a token", strlen(key));
        hy_status s =
            vocabulary_add(r->v, json_integer_value(value), r->a.data, r->a.length, TOKEN_MODEL, r->what, r->err);
        if (s) return s;
    }
    return HY_OK;
}

/* "a b" or ["a", "b"]. */
static bool merge_halves(const json_t *j, const char **a, size_t *na, const char **b, size_t *nb)
{
    if (json_is_array(j)) {
        const json_t *x = json_array_get(j, 0), *y = json_array_get(j, 1);
        if (json_array_size(j) != 2 || !json_is_string(x) || !json_is_string(y)) return false;
        *a = json_string_value(x), *na = json_string_length(x);
        *b = json_string_value(y), *nb = json_string_length(y);
        return true;
    }
    const char *text = json_string_value(j), *space = text ? strchr(text, ' ') : NULL;
    if (!space) return false;
    *a = text, *na = (size_t)(space - text);
    *b = space + 1, *nb = strlen(space + 1);
    return true;
}

static hy_status read_merge(reader *r, const json_t *j, size_t rank)
{
    const char *a, *b;
    size_t na, nb;
    if (!merge_halves(j, &a, &na, &b, &nb))
        return error_at(r->err, HY_BAD_MODEL, r->what, "model.merges[%zu] is neither \"a b\" nor [\"a\", \"b\"]", rank);
    token_bytes(a, na, &r->a);
    token_bytes(b, nb, &r->b);
    int32_t left = vocabulary_find(r->v, r->a.data, r->a.length), right = vocabulary_find(r->v, r->b.data, r->b.length);
    buffer_append(&r->a, r->b.data, r->b.length);
    if (!buffer_ok(&r->a) || !buffer_ok(&r->b)) return error_memory(r->err, "a merge", na + nb);
    int32_t both = vocabulary_find(r->v, r->a.data, r->a.length);
    if (left < 0 || right < 0 || both < 0)
        return error_at(r->err, HY_BAD_MODEL, r->what,
                        "model.merges[%zu]: a part or the result is not in the vocabulary", rank);
    if (!vocabulary_add_merge(r->v, left, right, both, (uint32_t)rank))
        return error_memory(r->err, "the merges", rank * sizeof(vocabulary_merge));
    return HY_OK;
}

static hy_status read_model(reader *r, const json_t *model)
{
    static const char *const refused[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix",
                                          "byte_fallback"};
    if (!json_is_object(model)) return bad(r, "model", "is missing");
    const char *type = type_of(model);
    if (*type && strcmp(type, "BPE") != 0)
        return error_at(r->err, HY_BAD_MODEL, r->what, "model \"%.40s\" is not supported: BPE", type);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (is_set(json_object_get(model, refused[i])))
            return error_at(r->err, HY_BAD_MODEL, r->what, "model.%s is set, which is not supported", refused[i]);
    hy_status s = read_vocabulary(r, json_object_get(model, "vocab"));
    if (s) return s;
    const json_t *merges = json_object_get(model, "merges"), *merge;
    if (!json_is_array(merges)) return bad(r, "model.merges", "is not a list");
    if (json_array_size(merges) >= UINT32_MAX) return bad(r, "model.merges", "is too long");
    size_t rank;
    json_array_foreach(merges, rank, merge)
    {
        if ((s = read_merge(r, merge, rank))) return s;
    }
    r->v->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    return HY_OK;
}

/* ---- Added tokens --------------------------------------------------------------------------------------------- */

static hy_status read_added_token(reader *r, const json_t *j, size_t i)
{
    static const char *const refused[] = {"single_word", "lstrip", "rstrip"};
    const json_t *id = json_object_get(j, "id"), *content = json_object_get(j, "content");
    if (!json_is_integer(id) || !json_is_string(content))
        return error_at(r->err, HY_BAD_MODEL, r->what, "added_tokens[%zu] lacks an integer id or a content", i);
    for (size_t k = 0; k < sizeof refused / sizeof *refused; k++)
        if (is_set(json_object_get(j, refused[k])))
            return error_at(r->err, HY_BAD_MODEL, r->what, "added_tokens[%zu].%s is true, which is not supported", i,
                            refused[k]);
    uint32_t flags = TOKEN_ADDED | (json_is_true(json_object_get(j, "special")) ? TOKEN_SPECIAL : 0);
    hy_status s = vocabulary_add(r->v, json_integer_value(id), json_string_value(content), json_string_length(content),
                                 flags, r->what, r->err);
    if (s) return s;
    bool normalized = json_is_true(json_object_get(j, "normalized"));
    if (normalized && r->v->nfc) {
        /* It is looked for in normalised text, where only its own form C can be met. */
        buffer_clear(&r->a);
        normalize_nfc(json_string_value(content), json_string_length(content), &r->a);
        if (r->a.length != json_string_length(content) ||
            memcmp(r->a.data, json_string_value(content), r->a.length) != 0)
            return error_at(r->err, HY_BAD_MODEL, r->what,
                            "added_tokens[%zu] is \"normalized\" but not in form C, which is not supported", i);
    }
    if (!vocabulary_add_match(normalized ? &r->v->normalized : &r->v->raw, (int32_t)json_integer_value(id)))
        return error_memory(r->err, "the added tokens", i * sizeof(int32_t));
    return HY_OK;
}

static hy_status read_added(reader *r, const json_t *added)
{
    if (!is_set(added)) return HY_OK;
    if (!json_is_array(added)) return bad(r, "added_tokens", "is not a list");
    size_t i;
    json_t *j;
    json_array_foreach(added, i, j)
    {
        hy_status s = read_added_token(r, j, i);
        if (s) return s;
    }
    return HY_OK;
}

hy_status tokenizer_file_json(const char *data, size_t size, const char *what, vocabulary *v, hy_error *err)
{
    json_t *root = json_read(data, size, JSON_REJECT_DUPLICATES, HY_BAD_MODEL, "", err);
    if (!root) return HY_BAD_MODEL;
    reader r = {.v = v, .what = what, .err = err};
    hy_status s = json_is_object(root) ? HY_OK : bad(&r, "the file", "is not a JSON object");
    if (!s) s = read_normalizer(&r, json_object_get(root, "normalizer"));
    if (!s) s = read_pre_tokenizer(&r, json_object_get(root, "pre_tokenizer"));
    if (!s) s = read_rest(&r, root);
    if (!s) s = read_model(&r, json_object_get(root, "model"));
    if (!s) s = read_added(&r, json_object_get(root, "added_tokens"));
    if (!s) s = vocabulary_finish(v, what, err);
    buffer_free(&r.a);
    buffer_free(&r.b);
    json_decref(root);
    return s;
}
