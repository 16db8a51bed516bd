/* Targets of requests: decoding, which route a path belongs to, the parts that stand for names. */
#include "server_helpers.h"

#include "server/http_target.h"

static void decodes(const char *text, bool form, const char *want)
{
    size_t length = strlen(text);
    char *copy = malloc(length ? length : 1); /* exactly as long: a byte behind it is an error under a sanitizer */
    memcpy(copy, text, length);
    size_t n = http_target_decode(copy, length, form);
    if (!want) {
        if (n != SIZE_MAX) fail_msg("%s is taken as %.*s", text, (int)n, copy);
    } else {
        if (n != strlen(want) || memcmp(copy, want, n) != 0) fail_msg("%s: %.*s, want %s", text, (int)n, copy, want);
    }
    free(copy);
}

static void decoding(void **state)
{
    (void)state;
    decodes("", false, "");
    decodes("/a/b", false, "/a/b");
    decodes("%41%7a%7A%2f%2F", false, "Azz//");
    decodes("a%20b+c", false, "a b+c");
    decodes("a%20b+c", true, "a b c");
    decodes("%2b+%2B", true, "+ +");
    decodes("%C3%A9%ff%01%7f", false, "\xc3\xa9\xff\x01\x7f");
    decodes("%2541", false, "%41"); /* once */
    decodes("%25", false, "%");
    static const char *const bad[] = {"%",   "a%",  "%4", "%4g", "%g4",   "%%41",   "%-1",
                                      "% 1", "%+1", "%0", "%00", "a%00b", "%u0041", "%\xc3\xa9"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        decodes(bad[i], false, NULL);
        decodes(bad[i], true, NULL);
    }
}

/* Every byte but 0 has a spelling, in both cases of the digits, and what is shorter ends in NUL. */
static void every_byte(void **state)
{
    (void)state;
    for (unsigned value = 1; value < 256; value++) {
        for (int upper = 0; upper < 2; upper++) {
            char text[4];
            snprintf(text, sizeof text, upper ? "%%%02X" : "%%%02x", value);
            assert_int_equal(http_target_decode(text, 3, upper != 0), 1);
            assert_int_equal((unsigned char)text[0], value);
            assert_int_equal(text[1], 0);
        }
    }
}

static bool fits(const char *pattern, const char *path)
{
    size_t length = strlen(path);
    char *copy = malloc(length ? length : 1);
    memcpy(copy, path, length);
    bool yes = http_target_matches(pattern, copy, length);
    free(copy);
    return yes;
}

static void routes(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *path;
        bool fits;
    } all[] = {{"/", "/", true},
               {"/", "", false},
               {"/", "//", false},
               {"/health", "/health", true},
               {"/health", "/%68ealt%68", true},
               {"/health", "/Health", false},
               {"/health", "/health/", false},
               {"/health", "//health", false},
               {"/health", "/healt", false},
               {"/health", "/healthy", false},
               {"/health", "health", false},
               {"/health", "/health%", false},
               {"/health", "/health%00", false},
               {"/health", "/healt%6", false},
               {"/health", "%2fhealth", false}, /* an encoded slash is no border */
               {"/v1/models", "/v1/models", true},
               {"/v1/models", "/v1%2fmodels", false},
               {"/v1/models", "/v1/./models", false}, /* nothing is resolved */
               {"/v1/models", "/x/../v1/models", false},
               {"/v1/models", "/v1", false},
               {"/v1/models", "/v1/models/x", false},
               {"/v1/r/{id}", "/v1/r/a", true},
               {"/v1/r/{id}", "/v1/r/a%2Fb", true},
               {"/v1/r/{id}", "/v1/r/{id}", true},
               {"/v1/r/{id}", "/v1/r/", false},
               {"/v1/r/{id}", "/v1/r", false},
               {"/v1/r/{id}", "/v1/r/a/", false},
               {"/v1/r/{id}", "/v1/r/a/b", false},
               {"/v1/r/{id}/cancel", "/v1/r/a/cancel", true},
               {"/v1/r/{id}/cancel", "/v1/r/a/cancelled", false},
               {"/v1/r/{id}/cancel", "/v1/r//cancel", false},
               {"/{a}/{b}", "/x/y", true},
               {"/{a}/{b}", "/x", false}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (fits(all[i].pattern, all[i].path) != all[i].fits) fail_msg("%s and %s", all[i].pattern, all[i].path);
}

static void part_is(const char *pattern, const char *path, const char *name, const char *want)
{
    size_t length = 0;
    const char *part = http_target_part(pattern, path, strlen(path), name, &length);
    if (!want) {
        if (part) fail_msg("%s in %s: %.*s", name, path, (int)length, part);
        return;
    }
    if (!part || length != strlen(want) || memcmp(part, want, length) != 0) fail_msg("%s in %s", name, path);
    assert_true(part >= path && part + length <= path + strlen(path));
}

static void parts(void **state)
{
    (void)state;
    part_is("/v1/r/{id}", "/v1/r/abc", "id", "abc");
    part_is("/v1/r/{id}", "/v1/r/a%2fb%20", "id", "a%2fb%20"); /* raw */
    part_is("/v1/r/{id}/cancel", "/v1/r/abc/cancel", "id", "abc");
    part_is("/{a}/x/{b}", "/1/x/22", "a", "1");
    part_is("/{a}/x/{b}", "/1/x/22", "b", "22");
    part_is("/{a}/x/{b}", "/1/x/22", "c", NULL);
    part_is("/{ab}", "/1", "a", NULL);
    part_is("/{a}", "/1", "ab", NULL);
    part_is("/v1/r", "/v1/r", "id", NULL);
    part_is("/v1/r", "/v1/r", "r", NULL);
    part_is("/v1/r/{id}", "/v1/x/abc", "id", NULL);
    part_is("/v1/r/{id}", "/v1/r/", "id", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding),
        cmocka_unit_test(every_byte),
        cmocka_unit_test(routes),
        cmocka_unit_test(parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
