/* Checked arithmetic, allocation, and the growing byte string. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/memory.h"

static void checked_arithmetic(void **state)
{
    (void)state;
    size_t out = 7;
    static const size_t big = SIZE_MAX / 2 + 1; /* 2^63 */
    static const struct {
        size_t a, b;
        bool product, sum;
    } cases[] = {
        {0, 0, true, true},
        {0, SIZE_MAX, true, true},
        {1, SIZE_MAX, true, false},
        {SIZE_MAX, SIZE_MAX, false, false},
        {2, big, false, true},
        {2, big - 1, true, true},
        {big, big, false, false},
        {big, big - 1, false, true},
        {(size_t)1 << 32, ((size_t)1 << 32) - 1, true, true},
        {(size_t)1 << 32, (size_t)1 << 32, false, true},
        {3, SIZE_MAX / 3, true, true},
        {3, SIZE_MAX / 3 + 1, false, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int swap = 0; swap < 2; swap++) {
            size_t a = swap ? cases[i].b : cases[i].a, b = swap ? cases[i].a : cases[i].b;
            out = 7;
            assert_int_equal(size_mul(a, b, &out), cases[i].product);
            assert_true(out == (cases[i].product ? a * b : 7));
            out = 7;
            assert_int_equal(size_add(a, b, &out), cases[i].sum);
            assert_true(out == (cases[i].sum ? a + b : 7));
        }
    }
}

static void allocation(void **state)
{
    (void)state;
    for (size_t count = 0; count < 300; count += 7) {
        unsigned char *p = memory_zeroed(count, 3), *q = memory_alloc(count, 3);
        assert_non_null(p);
        assert_non_null(q);
        assert_int_equal((uintptr_t)p % 64, 0);
        assert_int_equal((uintptr_t)q % 64, 0);
        for (size_t i = 0; i < count * 3; i++) assert_int_equal(p[i], 0);
        if (count) memset(q, 1, count * 3);
        memory_free(p);
        memory_free(q);
    }
    memory_free(NULL);
    /* Products and roundings that do not fit. */
    assert_null(memory_zeroed(SIZE_MAX, 2));
    assert_null(memory_alloc((size_t)1 << 33, (size_t)1 << 31));
    assert_null(memory_alloc(SIZE_MAX, 1));
    assert_null(memory_alloc(SIZE_MAX - 62, 1));
    assert_true(memory_available() > 0);
}

static void growing_arrays(void **state)
{
    (void)state;
    void *array = NULL;
    size_t capacity = 0;
    assert_true(memory_reserve(&array, &capacity, 0, 8));
    assert_null(array);
    for (size_t i = 0; i < 5000; i++) {
        assert_true(memory_reserve(&array, &capacity, i + 1, sizeof(uint64_t)));
        assert_true(capacity > i && capacity <= (i < 16 ? 16 : 2 * i));
        ((uint64_t *)array)[i] = i * i;
    }
    for (size_t i = 0; i < 5000; i++) assert_true(((uint64_t *)array)[i] == i * i);
    void *before = array;
    size_t kept = capacity;
    assert_false(memory_reserve(&array, &capacity, SIZE_MAX, 1));
    assert_false(memory_reserve(&array, &capacity, SIZE_MAX / 4, 8));
    assert_ptr_equal(array, before);
    assert_int_equal(capacity, kept);
    assert_true(((uint64_t *)array)[4999] == 4999 * 4999);
    free(array);
}

static void string_copies(void **state)
{
    (void)state;
    char *s = memory_string("ab\0cd", 5);
    assert_memory_equal(s, "ab\0cd", 6);
    free(s);
    s = memory_string("x", 0);
    assert_string_equal(s, "");
    free(s);
    assert_null(memory_string("x", SIZE_MAX));
}

static void appending(void **state)
{
    (void)state;
    buffer b = {0};
    assert_null(b.data);
    buffer_append(&b, "", 0);
    assert_string_equal(b.data, "");
    for (int i = 0; i < 3000; i++) {
        buffer_char(&b, (char)('a' + i % 26));
        assert_int_equal(b.length, i + 1);
        assert_int_equal(b.data[b.length], 0);
    }
    for (int i = 0; i < 3000; i++) assert_int_equal(b.data[i], 'a' + i % 26);
    buffer_drop(&b, 2990);
    assert_string_equal(b.data, "abcdefghij");
    buffer_drop(&b, 0);
    buffer_drop(&b, 3);
    assert_string_equal(b.data, "defghij");
    buffer_drop(&b, 100);
    assert_int_equal(b.length, 0);
    assert_string_equal(b.data, "");
    buffer_append(&b, "x\0y", 3);
    assert_int_equal(b.length, 3);
    assert_memory_equal(b.data, "x\0y", 4);
    buffer_clear(&b);
    buffer_string(&b, "again");
    assert_string_equal(b.data, "again");
    assert_true(buffer_ok(&b));
    buffer_free(&b);
    assert_null(b.data);
    buffer_drop(&b, 5);
    buffer_clear(&b);
    buffer_free(&b);
}

static void formatting(void **state)
{
    (void)state;
    buffer b = {0};
    char word[400];
    memset(word, 'w', sizeof word - 1);
    word[sizeof word - 1] = 0;
    for (int i = 0; i < 40; i++) {
        buffer_printf(&b, "%d:%.*s;", i, i * 10, word);
        buffer_printf(&b, "%s", "");
    }
    char *at = b.data;
    for (int i = 0; i < 40; i++) {
        char head[16];
        int n = snprintf(head, sizeof head, "%d:", i);
        assert_memory_equal(at, head, (size_t)n);
        at += n;
        for (int k = 0; k < i * 10; k++) assert_int_equal(*at++, 'w');
        assert_int_equal(*at++, ';');
    }
    assert_int_equal(at - b.data, b.length);
    assert_int_equal(*at, 0);
    buffer_free(&b);
}

static void taking(void **state)
{
    (void)state;
    buffer b = {0};
    size_t length = 9;
    char *s = buffer_take(&b, &length);
    assert_string_equal(s, "");
    assert_int_equal(length, 0);
    free(s);
    buffer_string(&b, "hello");
    s = buffer_take(&b, &length);
    assert_string_equal(s, "hello");
    assert_int_equal(length, 5);
    assert_null(b.data);
    assert_int_equal(b.length + b.capacity, 0);
    free(s);
}

/* A failed append is remembered until the end, and nothing is written meanwhile. */
static void failing(void **state)
{
    (void)state;
    buffer b = {0};
    buffer_string(&b, "kept");
    buffer_append(&b, "x", SIZE_MAX);
    assert_false(buffer_ok(&b));
    assert_int_equal(b.length, 4);
    buffer_string(&b, "more");
    buffer_printf(&b, "%d", 5);
    assert_int_equal(b.length, 4);
    assert_string_equal(b.data, "kept");
    size_t length;
    assert_null(buffer_take(&b, &length));
    assert_null(b.data);
    assert_true(buffer_ok(&b));
    buffer_append(&b, "x", SIZE_MAX - 1);
    assert_false(buffer_ok(&b));
    buffer_clear(&b);
    assert_true(buffer_ok(&b));
    buffer_string(&b, "fresh");
    assert_string_equal(b.data, "fresh");
    buffer_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checked_arithmetic),
        cmocka_unit_test(allocation),
        cmocka_unit_test(growing_arrays),
        cmocka_unit_test(string_copies),
        cmocka_unit_test(appending),
        cmocka_unit_test(formatting),
        cmocka_unit_test(taking),
        cmocka_unit_test(failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
