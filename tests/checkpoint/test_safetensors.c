/* safetensors files: what is read, what is refused and with which words, and what the writer makes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/safetensors.h"

static char folder[64], path[128], part[160];

static int setup(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/hayate-test-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/x.safetensors", folder);
    snprintf(part, sizeof part, "%s.part", path);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

/* A file in memory, in a block of exactly its size so that a sanitizer sees a read beyond its end. */
static uint8_t *make(uint64_t length, const char *header, size_t header_bytes, size_t data_bytes, size_t *size)
{
    *size = 8 + header_bytes + data_bytes;
    uint8_t *file = malloc(*size);
    assert_non_null(file);
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)(length >> 8 * i);
    memcpy(file + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++) file[8 + header_bytes + i] = (uint8_t)i;
    return file;
}

static void refused_bytes(const uint8_t *file, size_t size, const char *words)
{
    safetensors *st = NULL;
    hy_error err = {0};
    assert_int_equal(safetensors_parse("dir/f.safetensors", file, size, &st, &err), HY_BAD_MODEL);
    assert_null(st);
    if (!strstr(err.message, words)) fail_msg("\"%s\" does not say \"%s\"", err.message, words);
    assert_null(strchr(err.message, '\n'));
}

static void refused(const char *header, size_t data_bytes, const char *words)
{
    size_t size;
    uint8_t *file = make(strlen(header), header, strlen(header), data_bytes, &size);
    refused_bytes(file, size, words);
    free(file);
}

#define ONE(name, rest) "{\"" name "\":{" rest "}}"
#define F32_2 "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"

static void reads(void **state)
{
    (void)state;
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\",\"\\u00e9\":\"\\ud83d\\ude00\\n\"},"
                                 "\"late\":{\"data_offsets\":[8,14],\"shape\":[1,3],\"dtype\":\"BF16\"},"
                                 "\"a\\\"\\u0041/\":{ \"dtype\" : \"F32\", \"shape\":[2], \"data_offsets\":[0,8] },"
                                 "\"empty\":{\"dtype\":\"I64\",\"shape\":[3,0],\"data_offsets\":[8,8]},"
                                 "\"scalar\":{\"dtype\":\"F8_E8M0\",\"shape\":[],\"data_offsets\":[14,15]}}   \n";
    size_t size;
    uint8_t *file = make(strlen(header), header, strlen(header), 15, &size);
    safetensors *st = NULL;
    assert_int_equal(safetensors_parse("f", file, size, &st, NULL), HY_OK);
    assert_int_equal(safetensors_count(st), 4);
    assert_int_equal(safetensors_header_bytes(st), strlen(header));
    static const char *const order[] = {"a\"A/", "empty", "late", "scalar"};
    for (size_t i = 0; i < 4; i++) assert_string_equal(safetensors_at(st, i)->name, order[i]);
    assert_null(safetensors_at(st, 4));
    const tensor *t = safetensors_find(st, "late");
    assert_non_null(t);
    assert_int_equal(t->dtype, TENSOR_BF16);
    assert_int_equal(t->dims, 2);
    assert_int_equal(t->shape[0], 1);
    assert_int_equal(t->shape[1], 3);
    assert_int_equal(t->bytes, 6);
    assert_int_equal(((const uint8_t *)t->data)[0], 8);
    assert_int_equal(safetensors_find(st, "scalar")->dims, 0);
    assert_null(safetensors_find(st, "nothing"));
    assert_null(safetensors_find(st, "__metadata__"));
    assert_string_equal(safetensors_metadata(st, "format"), "pt");
    assert_string_equal(safetensors_metadata(st, "\xC3\xA9"), "\xF0\x9F\x98\x80\n");
    assert_null(safetensors_metadata(st, "none"));
    safetensors_close(st);
    free(file);
}

static void every_dtype(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t bytes;
    } list[] = {{"BOOL", 1}, {"U8", 1},      {"I8", 1},      {"I16", 2},    {"U16", 2}, {"F16", 2},
                {"BF16", 2}, {"I32", 4},     {"U32", 4},     {"F32", 4},    {"F64", 8}, {"I64", 8},
                {"U64", 8},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        tensor_dtype d;
        assert_true(tensor_dtype_parse(list[i].name, strlen(list[i].name), &d));
        assert_int_equal(tensor_dtype_bytes(d), list[i].bytes);
        assert_string_equal(tensor_dtype_name(d), list[i].name);
    }
    tensor_dtype d;
    assert_false(tensor_dtype_parse("F8_E4M3FN", 9, &d));
    assert_false(tensor_dtype_parse("F3", 2, &d));
    assert_false(tensor_dtype_parse("", 0, &d));
}

static void bad_lengths(void **state)
{
    (void)state;
    static const char header[] = ONE("t", F32_2);
    const size_t n = sizeof header - 1;
    size_t size;
    uint8_t *file = make(n, header, n, 8, &size);
    for (size_t cut = 0; cut < 8; cut++) refused_bytes(file, cut, "truncated");
    for (size_t cut = 8; cut < 8 + n; cut++) refused_bytes(file, cut, "larger than the file");
    for (size_t cut = 8 + n; cut < size; cut++) refused_bytes(file, cut, "out of range");
    free(file);
    static const struct {
        uint64_t length;
        const char *words;
    } list[] = {{n + 9, "header length"},      {100000001, "more than"}, {UINT64_MAX, "more than"},
                {UINT64_MAX - 7, "more than"}, {INT64_MAX, "more than"}, {0, "does not begin"}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        file = make(list[i].length, header, n, 8, &size);
        refused_bytes(file, size, list[i].words);
        free(file);
    }
}

static void bad_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        const char *words;
    } list[] = {
        /* offsets */
        {ONE("t", "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,9]"), 9,
         "tensor t of f.safetensors needs 8 bytes"},
        {ONE("t", F32_2), 7, "tensor t lies out of range"},
        {ONE("t", "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]"), 8, "tensor t lies out of range"},
        {ONE("t", "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[18446744073709551608,18446744073709551615]"), 8,
         "out of range"},
        {ONE("t", "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,18446744073709551616]"), 8, "too large"},
        {ONE("t", "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]"), 8, "whole number"},
        {"{\"a\":{" F32_2 "},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12, "a and b"},
        {"{\"a\":{" F32_2 "},\"b\":{" F32_2 "}}", 8, "overlap"},
        {"{\"a\":{" F32_2 "},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]}}", 20,
         "4 bytes before tensor b"},
        {ONE("t", F32_2), 9, "1 bytes at the end"},
        {"{}", 3, "3 bytes at the end"},
        /* shapes and dtypes */
        {ONE("t", "\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]"), 8,
         "tensor t of f.safetensors has the unknown dtype F33"},
        {ONE("t", "\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]"), 0, "overflows"},
        {ONE("t", "\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]"), 0, "overflows"},
        {ONE("t", "\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[0,0]"), 0, "too large"},
        {ONE("t", "\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]"), 8, "whole number"},
        {ONE("t", "\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]"), 8, "whole number"},
        {ONE("t", "\"dtype\":\"F32\",\"shape\":[02],\"data_offsets\":[0,8]"), 8, "begins with 0"},
        {ONE("t", "\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]"), 8, "a list was expected"},
        {ONE("t", "\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]"), 1,
         "more than 8 dimensions"},
        /* fields */
        {ONE("t", "\"shape\":[2],\"data_offsets\":[0,8]"), 8, "tensor t of f.safetensors has no dtype"},
        {ONE("t", "\"dtype\":\"F32\",\"data_offsets\":[0,8]"), 8, "has no shape"},
        {ONE("t", "\"dtype\":\"F32\",\"shape\":[2]"), 8, "has no data_offsets"},
        {ONE("t", F32_2 ",\"shape\":[2]"), 8, "shape twice"},
        {ONE("t", F32_2 ",\"strides\":[1]"), 8, "unknown field strides"},
        {ONE("t", "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]"), 8, "damaged"},
        /* names */
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[1],"
         "\"data_offsets\":[1,2]}}",
         2, "two tensors named a"},
        {ONE("a\\u0000b", F32_2), 8, "NUL"},
        {ONE("\xFF", F32_2), 8, "UTF-8"},
        {ONE("\xC3", F32_2), 8, "UTF-8"},
        {ONE("\\ud800", F32_2), 8, "surrogate"},
        {ONE("\\udc00", F32_2), 8, "surrogate"},
        {ONE("\\x", F32_2), 8, "escape"},
        {ONE("a\nb", F32_2), 8, "control character"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "a string was expected"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice"},
        /* JSON */
        {"[]", 0, "begin"},
        {" {}", 0, "begin"},
        {"{", 0, "damaged"},
        {"{}x", 0, "follows the end"},
        {"{\"a\"", 0, "colon"},
        {"{\"a\":{}", 0, "has no dtype"},
        {"{\"a\":{" F32_2 "}", 8, "comma"},
        {"{\"a\":{" F32_2 "},}", 8, "string was expected"},
        {"{\"a\":{" F32_2 "} \"b\"", 8, "comma"},
        {"{\"a\":{\"dtype\":\"a very long name of a dtype that is none\"}}", 0, "too long"},
        {"{\"abc", 0, "does not end"},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) refused(list[i].header, list[i].data, list[i].words);
}

/* Every byte of a good header replaced by every value: nothing crashes, and what is accepted tiles its data. */
static void every_byte_flipped(void **state)
{
    (void)state;
    static const char header[] =
        "{\"__metadata__\":{\"k\":\"v\"},\"a\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
        "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[8,12]}}";
    const size_t n = sizeof header - 1;
    size_t size;
    uint8_t *file = make(n, header, n, 12, &size);
    for (size_t at = 0; at < 8 + n; at++) {
        uint8_t was = file[at];
        for (int v = 0; v < 256; v++) {
            safetensors *st = NULL;
            hy_error err = {0};
            file[at] = (uint8_t)v;
            hy_status status = safetensors_parse("f", file, size, &st, &err);
            assert_true(status == HY_OK || (status == HY_BAD_MODEL && err.message[0]));
            size_t sum = 0;
            for (size_t i = 0; status == HY_OK && i < safetensors_count(st); i++) sum += safetensors_at(st, i)->bytes;
            if (status == HY_OK) assert_int_equal(sum, 12);
            safetensors_close(st);
        }
        file[at] = was;
    }
    free(file);
}

static void write_and_read(void **state)
{
    (void)state;
    static const safetensors_entry entries[] = {
        {"w \"q\" \xC3\xA9", TENSOR_BF16, 2, {3, 5}},
        {"s", TENSOR_F32, 0, {0}},
        {"none", TENSOR_U8, 2, {0, 7}},
        {"big", TENSOR_F32, 1, {700000}},
    };
    static const char *const metadata[] = {"format", "pt", "quote", "\"\n"};
    const size_t total = 30 + 4 + 2800000;
    uint8_t *data = malloc(total);
    for (size_t i = 0; i < total; i++) data[i] = (uint8_t)(i * 7 + i / 251);
    safetensors_writer *w = NULL;
    hy_error err = {0};
    assert_int_equal(safetensors_create(path, entries, 4, metadata, 2, false, &w, &err), HY_OK);
    assert_false(file_exists(path)); /* only a finished file has its name */
    for (size_t at = 0, piece = 1; at < total; at += piece, piece = piece * 3 % 1500007) {
        if (piece > total - at) piece = total - at;
        assert_int_equal(safetensors_write(w, data + at, piece, &err), HY_OK);
    }
    assert_int_equal(safetensors_finish(w, &err), HY_OK);
    assert_false(file_exists(part));

    safetensors *st = NULL;
    assert_int_equal(safetensors_open(path, &st, &err), HY_OK);
    assert_int_equal(safetensors_header_bytes(st) % 8, 0);
    assert_string_equal(safetensors_path(st), path);
    assert_string_equal(safetensors_metadata(st, "quote"), "\"\n");
    assert_int_equal(safetensors_count(st), 4);
    for (size_t i = 0; i < 4; i++) {
        const tensor *t = safetensors_find(st, entries[i].name);
        assert_non_null(t);
        assert_int_equal(t->dtype, entries[i].dtype);
        assert_int_equal(t->dims, entries[i].dims);
        for (int d = 0; d < t->dims; d++) assert_int_equal(t->shape[d], entries[i].shape[d]);
    }
    assert_memory_equal(safetensors_find(st, entries[0].name)->data, data, 30);
    assert_memory_equal(safetensors_find(st, "s")->data, data + 30, 4);
    assert_memory_equal(safetensors_find(st, "big")->data, data + 34, 2800000);
    safetensors_close(st);
    free(data);
}

static void writer_refusals(void **state)
{
    (void)state;
    static const safetensors_entry twice[] = {{"a", TENSOR_U8, 1, {1}}, {"a", TENSOR_U8, 1, {1}}};
    static const safetensors_entry huge[] = {{"a", TENSOR_F32, 2, {1LL << 32, 1LL << 31}}};
    static const safetensors_entry negative[] = {{"a", TENSOR_F32, 1, {-1}}};
    static const safetensors_entry good[] = {{"a", TENSOR_U8, 1, {4}}};
    safetensors_writer *w = NULL;
    hy_error err = {0};
    assert_int_equal(safetensors_create(path, twice, 2, NULL, 0, false, &w, &err), HY_USAGE);
    assert_int_equal(safetensors_create(path, huge, 1, NULL, 0, false, &w, &err), HY_USAGE);
    assert_int_equal(safetensors_create(path, negative, 1, NULL, 0, false, &w, &err), HY_USAGE);
    assert_int_equal(safetensors_create("/nowhere/at/all/x", good, 1, NULL, 0, false, &w, &err), HY_FAILED);
    assert_non_null(strstr(err.message, "/nowhere/at/all/x"));
    assert_null(w);

    assert_int_equal(safetensors_create(path, good, 1, NULL, 0, false, &w, &err), HY_OK);
    assert_int_equal(safetensors_write(w, "abc", 3, &err), HY_OK);
    assert_int_equal(safetensors_write(w, "de", 2, &err), HY_USAGE); /* one too many */
    assert_int_equal(safetensors_finish(w, &err), HY_USAGE);         /* one too few */
    assert_non_null(strstr(err.message, "3 of its 4"));
    assert_false(file_exists(path) || file_exists(part));

    assert_int_equal(safetensors_create(path, good, 1, NULL, 0, false, &w, &err), HY_OK);
    assert_true(file_exists(part));
    safetensors_abort(w);
    assert_false(file_exists(path) || file_exists(part));

    struct stat st;
    assert_int_equal(mkfifo(path, 0600), 0); /* as for any device: a file must not take its place */
    assert_int_equal(safetensors_create(path, good, 1, NULL, 0, false, &w, &err), HY_USAGE);
    assert_non_null(strstr(err.message, "not a regular file"));
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_false(file_exists(part));
    assert_int_equal(unlink(path), 0);
}

static void holes(void **state)
{
    (void)state;
    static const safetensors_entry entries[] = {{"a", TENSOR_U8, 2, {1 << 20, 1 << 12}}};
    safetensors_writer *w = NULL;
    hy_error err = {0};
    assert_int_equal(safetensors_create(path, entries, 1, NULL, 0, true, &w, &err), HY_OK);
    assert_int_equal(safetensors_write(w, "x", 1, &err), HY_USAGE);
    assert_int_equal(safetensors_finish(w, &err), HY_OK);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > (off_t)1 << 32);
    assert_true(st.st_blocks * 512LL < 1 << 20); /* the size is there, the data is not */
    safetensors *f = NULL;
    assert_int_equal(safetensors_open(path, &f, &err), HY_OK);
    assert_int_equal(safetensors_at(f, 0)->bytes, 1LL << 32);
    assert_int_equal(((const uint8_t *)safetensors_at(f, 0)->data)[(1LL << 32) - 1], 0);
    safetensors_close(f);
}

static void missing_file(void **state)
{
    (void)state;
    safetensors *st = NULL;
    hy_error err = {0};
    assert_int_equal(safetensors_open(path, &st, &err), HY_FAILED);
    assert_non_null(strstr(err.message, path));
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(safetensors_open(path, &st, &err), HY_BAD_MODEL); /* empty */
    assert_non_null(strstr(err.message, "truncated"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads),
        cmocka_unit_test(every_dtype),
        cmocka_unit_test(bad_lengths),
        cmocka_unit_test(bad_headers),
        cmocka_unit_test(every_byte_flipped),
        cmocka_unit_test_setup_teardown(write_and_read, setup, teardown),
        cmocka_unit_test_setup_teardown(writer_refusals, setup, teardown),
        cmocka_unit_test_setup_teardown(holes, setup, teardown),
        cmocka_unit_test_setup_teardown(missing_file, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
