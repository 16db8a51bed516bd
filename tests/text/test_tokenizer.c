/*
 * Ids against those of the `tokenizers` package (tests/data/text/make_vectors.py), rank files, added tokens, damaged
 * files. With a path to MiniMax-M3's rank file as argument its known ids are checked too.
 */
#include "text_helpers.h"

#include "base/utf8.h"

static const char *m3_ranks; /* from the command line */

static void assert_ids(const hy_ids *got, const int32_t *want, size_t count, const char *text)
{
    if (got->count != count) fail_msg("%zu ids for \"%s\", want %zu", got->count, text, count);
    for (size_t i = 0; i < count; i++)
        if (got->data[i] != want[i]) fail_msg("id %zu of \"%s\" is %d, want %d", i, text, got->data[i], want[i]);
}

static void encode(const text_tokenizer *tok, const char *text, size_t length, bool parse_added, hy_ids *ids)
{
    hy_error err = {0};
    if (text_tokenizer_encode(tok, text, length, parse_added, ids, &err) != HY_OK) fail_msg("%s", err.message);
}

/* Checks every stored vector, and that decoding gives the text back where it was in form C. */
static void check_vectors(const text_tokenizer *tok, const json_t *vectors)
{
    size_t i, k;
    const json_t *pair;
    assert_true(json_array_size(vectors) > 5);
    json_array_foreach(vectors, i, pair)
    {
        const json_t *text = json_array_get(pair, 0), *want = json_array_get(pair, 1);
        size_t count = json_array_size(want);
        int32_t *ids = malloc((count + 1) * sizeof *ids);
        for (k = 0; k < count; k++) ids[k] = (int32_t)json_integer_value(json_array_get(want, k));
        hy_ids got = {0};
        encode(tok, json_string_value(text), json_string_length(text), true, &got);
        assert_ids(&got, ids, count, json_string_value(text));
        free(ids);
        hy_ids_free(&got);
    }
}

static void test_vectors(void **state)
{
    (void)state;
    json_t *vectors = load_data("vectors.json");
    static const char *const files[] = {"m3-small.json", "m3-tiny.json"};
    for (int i = 0; i < 2; i++) {
        text_tokenizer *tok = open_data(files[i]);
        check_vectors(tok, json_object_get(vectors, files[i]));
        check_vectors(tok, json_object_get(vectors, files[i])); /* again, with what was remembered */
        text_tokenizer_close(tok);
    }
    json_decref(vectors);
}

static text_tokenizer *from_json(const json_t *j)
{
    char *text = json_dumps(j, JSON_COMPACT);
    text_tokenizer *tok = NULL;
    hy_error err = {0};
    if (text_tokenizer_read(text, strlen(text), "changed", &tok, &err) != HY_OK) fail_msg("%s", err.message);
    free(text);
    return tok;
}

/* Merges as "a b" mean the same as ["a", "b"]; so does a split by removal of the inverse; ignore_merges changes
 * nothing for a vocabulary whose every token is reached by merges. */
static void test_spellings(void **state)
{
    (void)state;
    json_t *vectors = load_data("vectors.json"), *j = load_data("m3-small.json"), *pair;
    json_t *model = json_object_get(j, "model"), *lines = json_array();
    size_t i;
    json_array_foreach(json_object_get(model, "merges"), i, pair)
    {
        json_array_append_new(lines, json_sprintf("%s %s", json_string_value(json_array_get(pair, 0)),
                                                  json_string_value(json_array_get(pair, 1))));
    }
    json_object_set_new(model, "merges", lines);
    json_t *split = json_array_get(json_object_get(json_object_get(j, "pre_tokenizer"), "pretokenizers"), 0);
    json_object_set_new(split, "behavior", json_string("Removed"));
    json_object_set_new(split, "invert", json_true());
    json_t *sequence = json_pack("{s:s,s:[{s:s}]}", "type", "Sequence", "normalizers", "type", "NFC");
    json_object_set_new(j, "normalizer", sequence);
    json_object_set_new(model, "ignore_merges", json_true());
    text_tokenizer *tok = from_json(j);
    check_vectors(tok, json_object_get(vectors, "m3-small.json"));
    text_tokenizer_close(tok);
    json_decref(j);
    json_decref(vectors);
}

/* ignore_merges decides for a token that merges do not reach. */
static void test_ignore_merges(void **state)
{
    (void)state;
    json_t *j = load_data("m3-tiny.json"), *model = json_object_get(j, "model");
    const int32_t whole = 900;
    json_object_set_new(json_object_get(model, "vocab"), "qzqz", json_integer(whole));
    hy_ids ids = {0};
    text_tokenizer *tok = from_json(j);
    for (int twice = 0; twice < 2; twice++) {
        encode(tok, "qzqz", 4, true, &ids);
        assert_true(ids.count > 1);
    }
    text_tokenizer_close(tok);
    json_object_set_new(model, "ignore_merges", json_true());
    tok = from_json(j);
    encode(tok, "qzqz", 4, true, &ids);
    assert_ids(&ids, &whole, 1, "qzqz");
    text_tokenizer_close(tok);
    hy_ids_free(&ids);
    json_decref(j);
}

/* ---- Rank files ----------------------------------------------------------------------------------------------- */

static void base64(const unsigned char *s, size_t n, buffer *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t bits = (uint32_t)s[i] << 16 | (i + 1 < n ? (uint32_t)s[i + 1] << 8 : 0) | (i + 2 < n ? s[i + 2] : 0u);
        buffer_char(out, digits[bits >> 18]);
        buffer_char(out, digits[bits >> 12 & 63]);
        buffer_char(out, i + 1 < n ? digits[bits >> 6 & 63] : '=');
        buffer_char(out, i + 2 < n ? digits[bits & 63] : '=');
    }
}

/* The model's tokens as a rank file give the same ids: the merges are found again from the ranks. */
static void test_ranks_equal_merges(void **state)
{
    (void)state;
    json_t *vectors = load_data("vectors.json"), *pair;
    text_tokenizer *from = open_data("m3-small.json"), *tok = NULL;
    buffer file = {0};
    for (int32_t id = 0; id < text_tokenizer_vocab_size(from); id++) {
        size_t n;
        const char *bytes = text_tokenizer_bytes(from, id, &n);
        if (text_tokenizer_is_added(from, id)) continue;
        base64((const unsigned char *)bytes, n, &file);
        buffer_printf(&file, " %d\n", id);
    }
    hy_error err = {0};
    if (text_tokenizer_read(file.data, file.length, "ranks", &tok, &err) != HY_OK) fail_msg("%s", err.message);
    size_t i;
    json_array_foreach(json_object_get(vectors, "m3-small.json"), i, pair)
    {
        const json_t *text = json_array_get(pair, 0);
        hy_ids a = {0}, b = {0};
        encode(from, json_string_value(text), json_string_length(text), false, &a);
        encode(tok, json_string_value(text), json_string_length(text), true, &b);
        assert_ids(&b, a.data, a.count, json_string_value(text));
        hy_ids_free(&a);
        hy_ids_free(&b);
    }
    text_tokenizer_close(from);
    text_tokenizer_close(tok);
    buffer_free(&file);
    json_decref(vectors);
}

/* 200,000 ranks: the bytes, then pairs and triples of bytes. */
static text_tokenizer *open_200000(void)
{
    buffer file = {0};
    for (int32_t id = 0; id < 200000; id++) {
        int32_t n = id < 256 ? 1 : id < 256 + 65536 ? 2 : 3, value = n == 1 ? id : n == 2 ? id - 256 : id - 256 - 65536;
        unsigned char bytes[3] = {(unsigned char)value, (unsigned char)(value >> 8), (unsigned char)(value >> 16)};
        base64(bytes, (size_t)n, &file);
        buffer_printf(&file, " %d\n", id);
    }
    text_tokenizer *tok = NULL;
    hy_error err = {0};
    if (text_tokenizer_read(file.data, file.length, "ranks", &tok, &err) != HY_OK) fail_msg("%s", err.message);
    buffer_free(&file);
    return tok;
}

static void check_m3_added(const text_tokenizer *tok)
{
    static const struct {
        const char *text;
        int32_t id;
        bool special;
    } known[] = {
        {"]!p~[", 200000, true},
        {"<gh_stars>", 200007, true},
        {"<commit_after>", 200018, true},
        {"]~b]", 200019, true},
        {"[e~[", 200020, true},
        {"]!d~[", 200021, true},
        {"]<]speech[>[", 200024, true},
        {"]<]image[>[", 200025, true},
        {"]<]video[>[", 200026, true},
        {"]<]vision pad[>[", 200033, true},
        {"]~!b[", 200034, true},
        {"<jupyter_error>", 200035, true},
        {"<file_sep>", 200049, true},
        {"<think>", 200050, false},
        {"</think>", 200051, false},
        {"<tool_call>", 200052, false},
        {"</tool_call>", 200053, false},
        {"]<]end of frame[>[", 200056, false},
        {"<|content_altered_placeholder|>", 200057, false},
        {"]<]minimax[>[", 200058, false},
        {"<mm:think>", 200059, false},
        {"</mm:think>", 200060, false},
    };
    size_t n;
    assert_int_equal(text_tokenizer_vocab_size(tok), 200061);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        hy_ids ids = {0};
        assert_int_equal(text_tokenizer_find(tok, known[i].text), known[i].id);
        assert_true(text_tokenizer_is_added(tok, known[i].id));
        assert_int_equal(text_tokenizer_is_special(tok, known[i].id), known[i].special);
        encode(tok, known[i].text, strlen(known[i].text), true, &ids);
        assert_ids(&ids, &known[i].id, 1, known[i].text);
        hy_ids_free(&ids);
    }
    for (int32_t id = 200000; id < 200061; id++) {
        text_tokenizer_bytes(tok, id, &n);
        assert_true(n >= 4);
    }
    for (int32_t id = 200061; id < 200064; id++) {
        assert_string_equal(text_tokenizer_bytes(tok, id, &n), "");
        assert_int_equal(n, 0);
    }
    assert_false(text_tokenizer_is_added(tok, 199999));
    assert_false(text_tokenizer_is_special(tok, -1));
    assert_false(text_tokenizer_is_special(tok, 200064));
}

static void test_m3_added_tokens(void **state)
{
    (void)state;
    text_tokenizer *tok = open_200000();
    check_m3_added(tok);
    text_tokenizer_close(tok);
}

/* Ids of MiniMax-M3's vocabulary, known from its rank file. */
static void test_m3_golden(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int32_t ids[16];
        size_t count;
    } golden[] = {
        {"The quick brown fox jumps over the lazy dog.",
         {758, 4729, 15801, 62222, 58841, 1049, 275, 34810, 6787, 46},
         10},
        {"function add(a, b) { return a + b; }",
         {6877, 1187, 7977, 44, 287, 41, 508, 1126, 258, 1349, 287, 59, 1174},
         13},
        {"你好世界，这是一个中文测试。", {56658, 4083, 97883, 31665, 15329, 350}, 6},
        {"cafe\xCC\x81", {103082, 337}, 2},
        {"http://a/b//c\n\nx", {4736, 1885, 97, 9996, 630, 99, 367, 120}, 8},
        {"12345 3.14", {10010, 2879, 32, 51, 46, 1340}, 6},
        {"\t\tfoo  bar\r\n", {9, 9, 17658, 32, 3304, 2535}, 6},
        {"I'm don'T WE'LL", {11928, 1278, 59982, 42510, 39, 18326}, 6},
        {"]~b]ai\n", {200019, 1361, 10}, 3},
    };
    if (!m3_ranks) {
        print_message("no rank file given: MiniMax-M3's own ids are not checked\n");
        skip();
    }
    text_tokenizer *tok = NULL;
    hy_error err = {0};
    if (text_tokenizer_open(m3_ranks, &tok, &err) != HY_OK) fail_msg("%s: %s", err.where, err.message);
    check_m3_added(tok);
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        hy_ids ids = {0};
        encode(tok, golden[i].text, strlen(golden[i].text), true, &ids);
        assert_ids(&ids, golden[i].ids, golden[i].count, golden[i].text);
        hy_ids_free(&ids);
    }
    text_tokenizer_close(tok);
}

/* ---- Tokens --------------------------------------------------------------------------------------------------- */

static void test_tokens(void **state)
{
    (void)state;
    text_tokenizer *tok = open_data("m3-small.json");
    hy_ids ids = {0};
    buffer spelt = {0};
    size_t n;
    encode(tok, " \n\xC2\xA0<mm:think>", 14, true, &ids);
    for (size_t i = 0; i < ids.count; i++) text_tokenizer_spell(tok, ids.data[i], &spelt);
    const char *want = "\xC4\xA0\xC4\x8A\xC3\x82\xC5\x82<mm:think>";
    assert_buffer(&spelt, want, strlen(want));
    /* Every token is found by its bytes, and its spelling has a character for each byte. */
    for (int32_t id = 0; id < text_tokenizer_vocab_size(tok); id++) {
        const char *bytes = text_tokenizer_bytes(tok, id, &n);
        assert_true(n > 0);
        if (memchr(bytes, 0, n)) continue;
        assert_int_equal(text_tokenizer_find(tok, bytes), id);
    }
    assert_int_equal(text_tokenizer_find(tok, ""), -1);
    assert_int_equal(text_tokenizer_find(tok, "<mm:think>x"), -1);
    assert_int_equal(text_tokenizer_find(tok, "no such token at all"), -1);
    int32_t bos = text_tokenizer_find(tok, "]~b]"), think = text_tokenizer_find(tok, "<mm:think>");
    assert_true(text_tokenizer_is_added(tok, bos) && text_tokenizer_is_special(tok, bos));
    assert_true(text_tokenizer_is_added(tok, think) && !text_tokenizer_is_special(tok, think));
    buffer_free(&spelt);
    hy_ids_free(&ids);
    text_tokenizer_close(tok);
}

/* Without parse_added a marker is ordinary text. */
static void test_plain_text(void **state)
{
    (void)state;
    text_tokenizer *tok = open_data("m3-small.json");
    hy_ids ids = {0};
    buffer text = {0};
    const char *s = "]~b]user<mm:think>";
    encode(tok, s, strlen(s), false, &ids);
    for (size_t i = 0; i < ids.count; i++) assert_false(text_tokenizer_is_added(tok, ids.data[i]));
    assert_int_equal(text_decode(tok, ids.data, ids.count, true, &text, NULL), HY_OK);
    assert_buffer(&text, s, strlen(s));
    buffer_free(&text);
    hy_ids_free(&ids);
    text_tokenizer_close(tok);
}

static void test_invalid_text(void **state)
{
    (void)state;
    static const char *const bad[] = {"\xFF", "ab\x80", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "x\xE4\xBD"};
    text_tokenizer *tok = open_data("m3-tiny.json");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        hy_error err = {0};
        hy_ids ids = {0};
        assert_int_equal(text_tokenizer_encode(tok, bad[i], strlen(bad[i]), true, &ids, &err), HY_BAD_INPUT);
        assert_one_line(&err);
        assert_null(ids.data);
    }
    text_tokenizer_close(tok);
}

/* Long pre-tokens of every kind: these would take hours if anything were quadratic. */
static void test_long_runs(void **state)
{
    (void)state;
    static const char *const units[] = {"a",   "ab", " ",   "\n", "\xCC\x81",         "1", "=", "the", "\xE4\xBD\xA0",
                                        " \n", "<",  "]<]", "A",  "\xCC\x95\xCC\x80", "'s"};
    text_tokenizer *tok = open_data("m3-small.json");
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        buffer text = {0}, back = {0};
        hy_ids ids = {0};
        while (text.length < 1000000) buffer_string(&text, units[u]);
        encode(tok, text.data, text.length, true, &ids);
        assert_int_equal(text_decode(tok, ids.data, ids.count, false, &back, NULL), HY_OK);
        assert_int_equal(back.length, text.length);
        hy_ids_free(&ids);
        buffer_free(&text);
        buffer_free(&back);
    }
    text_tokenizer_close(tok);
}

/* ---- Damaged files -------------------------------------------------------------------------------------------- */

static void assert_refused(const char *data, size_t size, const char *part)
{
    text_tokenizer *tok = NULL;
    hy_error err = {0};
    hy_status s = text_tokenizer_read(data, size, "file", &tok, &err);
    if (s != HY_BAD_MODEL) fail_msg("status %d for a file that lacks \"%s\"", s, part);
    assert_null(tok);
    assert_one_line(&err);
    assert_ptr_equal(strstr(err.message, "file: "), err.message); /* a model has several files */
    if (!strstr(err.message, part)) fail_msg("\"%s\" does not say \"%s\"", err.message, part);
}

/* Sets the value at a path of keys ("model.vocab"; numbers index lists, @ is the empty key) to JSON text, and reads the
 * file. */
static void refuse_with(const char *path, const char *value, const char *part)
{
    json_t *j = load_data("m3-tiny.json"), *at = j;
    char keys[128], *save = NULL;
    snprintf(keys, sizeof keys, "%s", path);
    char *key = strtok_r(keys, ".", &save), *next;
    for (; (next = strtok_r(NULL, ".", &save)); key = next)
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(key)) : json_object_get(at, key);
    if (strcmp(key, "@") == 0) *key = 0;
    json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
    assert_non_null(v);
    if (json_is_array(at))
        json_array_set_new(at, (size_t)atoi(key), v);
    else
        json_object_set_new(at, key, v);
    char *text = json_dumps(j, JSON_COMPACT);
    assert_refused(text, strlen(text), part);
    free(text);
    json_decref(j);
}

static void test_damaged_json(void **state)
{
    (void)state;
    refuse_with("normalizer", "{\"type\":\"NFKC\"}", "NFKC");
    refuse_with("normalizer", "{\"type\":\"Sequence\"}", "normalizers");
    refuse_with("normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Lowercase\"}]}", "Lowercase");
    refuse_with("pre_tokenizer", "null", "pre_tokenizer");
    refuse_with("pre_tokenizer", "{\"type\":\"ByteLevel\"}", "pre_tokenizer");
    refuse_with("pre_tokenizer.pretokenizers.0.pattern", "{\"String\":\" \"}", "Regex");
    refuse_with("pre_tokenizer.pretokenizers.0.pattern", "{\"Regex\":\"\\\\p{L}+\\n|x\"}", "\\p{L}+?|x");
    refuse_with("pre_tokenizer.pretokenizers.0.behavior", "\"MergedWithNext\"", "behavior");
    refuse_with("pre_tokenizer.pretokenizers.0.invert", "true", "behavior");
    refuse_with("pre_tokenizer.pretokenizers.1.add_prefix_space", "true", "add_prefix_space");
    refuse_with("pre_tokenizer.pretokenizers.1.use_regex", "true", "use_regex");
    refuse_with("decoder", "{\"type\":\"WordPiece\"}", "WordPiece");
    refuse_with("model", "[]", "model");
    refuse_with("model.type", "\"Unigram\"", "Unigram");
    refuse_with("model.dropout", "0.1", "dropout");
    refuse_with("model.byte_fallback", "true", "byte_fallback");
    refuse_with("model.continuing_subword_prefix", "\"##\"", "continuing_subword_prefix");
    refuse_with("model.vocab", "[]", "model.vocab");
    refuse_with("model.vocab", "{}", "merges[0]");
    refuse_with("model.vocab.a", "-1", "id -1");
    refuse_with("model.vocab.a", "4194304", "4194304");
    refuse_with("model.vocab.a", "9223372036854775807", "9223372036854775807");
    refuse_with("model.vocab.a", "\"x\"", "integer");
    refuse_with("model.vocab.a", "5", "twice");
    refuse_with("model.vocab.@", "7000", "0 bytes");
    refuse_with("model.merges", "{}", "model.merges");
    refuse_with("model.merges.3", "\"ab\"", "merges[3]");
    refuse_with("model.merges.3", "[\"a\"]", "merges[3]");
    refuse_with("model.merges.3", "[\"a\",1]", "merges[3]");
    refuse_with("model.merges.3", "[\"zq\",\"a\"]", "merges[3]");
    refuse_with("model.merges.3", "\"x q\"", "merges[3]");
    refuse_with("added_tokens", "3", "added_tokens");
    refuse_with("added_tokens.0", "3", "added_tokens[0]");
    refuse_with("added_tokens.0.id", "5", "twice");
    refuse_with("added_tokens.0.id", "1e9", "added_tokens[0]");
    refuse_with("added_tokens.1.content", "\"\"", "0 bytes");
    refuse_with("added_tokens.1.lstrip", "true", "lstrip");
    refuse_with("added_tokens.1.single_word", "true", "single_word");
    refuse_with("added_tokens.1.content", "\"e\\u0301\"", "normal");
}

static void test_missing_byte(void **state)
{
    (void)state;
    json_t *j = load_data("m3-tiny.json"), *model = json_object_get(j, "model");
    json_object_del(json_object_get(model, "vocab"), "\xC5\x83"); /* the letter of byte 0xAD */
    json_object_set_new(model, "merges", json_array());
    char *text = json_dumps(j, JSON_COMPACT);
    assert_refused(text, strlen(text), "0xAD");
    free(text);
    json_decref(j);
}

/* Cut anywhere, and with any one byte spoilt, a file is either refused or still a tokenizer. */
static void test_broken_bytes(void **state)
{
    (void)state;
    char *data = NULL;
    size_t size = 0;
    assert_int_equal(file_read(TEXT_DATA "m3-tiny.json", 1 << 20, &data, &size, NULL), HY_OK);
    for (size_t n = 0; n < size - 1; n += 7) {
        text_tokenizer *tok = NULL;
        hy_error err = {0};
        assert_int_equal(text_tokenizer_read(data, n, "cut", &tok, &err), HY_BAD_MODEL);
        assert_one_line(&err);
    }
    uint64_t seed = 1;
    for (int i = 0; i < 1000; i++) {
        size_t at = draw(&seed) % size;
        char kept = data[at];
        text_tokenizer *tok = NULL;
        hy_error err = {0};
        hy_ids ids = {0};
        data[at] = (char)draw(&seed);
        if (text_tokenizer_read(data, size, "spoilt", &tok, &err) == HY_OK)
            encode(tok, "Hello <mm:think> caf\xC3\xA9", 22, true, &ids);
        else
            assert_one_line(&err);
        hy_ids_free(&ids);
        text_tokenizer_close(tok);
        data[at] = kept;
    }
    free(data);
}

static void test_damaged_ranks(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"", "empty"},
        {" \n", "empty"},
        {"IQ==", "line 1"},
        {"IQ== \n", "line 1"},
        {"IQ== x\n", "line 1"},
        {"IQ 0\n", "line 1"},
        {"I=== 0\n", "line 1"},
        {"==== 0\n", "line 1"},
        {"IQ== -1\n", "line 1"},
        {"IQ== 0 \n", "line 1"},
        {"IQ== 0\nIQ== 0\n", "twice"},
        {"IQ== 0\nIQ== 1\n", "same text"},
        {"IQ== 0\nIg== 5\n", "gaps"},
        {"IQ== 0\nIg== 1\n", "0x00"},
        {"IQ== 99999999\n", "99999999"},
        {"#version: 0.2\n", "line 1"},
        {"[1]", "line 1"},
        {"IQ== 0\n!!!! 1\n", "line 2"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_refused(bad[i][0], strlen(bad[i][0]), bad[i][1]);
    buffer file = {0};
    for (int i = 0; i < 1400; i++) buffer_char(&file, 'A');
    buffer_string(&file, " 0\n");
    assert_refused(file.data, file.length, "line 1");
    buffer_free(&file);
}

static void test_open(void **state)
{
    (void)state;
    text_tokenizer *tok = NULL;
    hy_error err = {0};
    assert_int_equal(text_tokenizer_open(TEXT_DATA "no-such-file", &tok, &err), HY_FAILED);
    assert_one_line(&err);
    assert_int_equal(text_tokenizer_open(TEXT_DATA, &tok, &err), HY_FAILED); /* no file of a known name in it */
    assert_one_line(&err);
    assert_non_null(strstr(err.message, "tokenizer.json"));
    assert_false(text_tokenizer_present(TEXT_DATA));
    assert_null(tok);
    text_tokenizer_close(NULL);
}

int main(int argc, char **argv)
{
    m3_ranks = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_ignore_merges),
        cmocka_unit_test(test_ranks_equal_merges),
        cmocka_unit_test(test_m3_added_tokens),
        cmocka_unit_test(test_m3_golden),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_plain_text),
        cmocka_unit_test(test_invalid_text),
        cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_damaged_json),
        cmocka_unit_test(test_missing_byte),
        cmocka_unit_test(test_broken_bytes),
        cmocka_unit_test(test_damaged_ranks),
        cmocka_unit_test(test_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
