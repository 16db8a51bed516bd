/* The splitter against the rule for whole texts, for every way to cut a text in two, in three and into bytes. */
#include "text_helpers.h"

#include "text/reasoning.h"

#define O TEXT_THINK_OPEN
#define C TEXT_THINK_CLOSE

typedef struct parts {
    buffer text[2]; /* by text_kind */
} parts;

static void collect(void *user, text_kind kind, const char *text, size_t length)
{
    parts *p = user;
    assert_true(length > 0);
    buffer_append(&p->text[kind], text, length);
}

static void free_parts(parts *p)
{
    buffer_free(&p->text[0]);
    buffer_free(&p->text[1]);
}

/* The rule for a whole text, by searching it. */
static void whole(const char *s, text_reasoning_start start, parts *out)
{
    if (start != TEXT_START_INSIDE && strncmp(s, C, strlen(C)) == 0) {
        buffer_string(&out->text[TEXT_CONTENT], s + strlen(C));
        return;
    }
    const char *from = s;
    if (start != TEXT_START_INSIDE) {
        const char *open = strstr(s, O);
        if (!open) {
            buffer_string(&out->text[TEXT_CONTENT], s);
            return;
        }
        buffer_append(&out->text[TEXT_CONTENT], s, (size_t)(open - s));
        from = open + strlen(O);
    } else if (strncmp(s, O, strlen(O)) == 0) {
        from = s + strlen(O);
    }
    const char *close = strstr(from, C);
    if (!close) {
        buffer_string(&out->text[TEXT_REASONING], from);
        return;
    }
    buffer_append(&out->text[TEXT_REASONING], from, (size_t)(close - from));
    buffer_string(&out->text[TEXT_CONTENT], close + strlen(C));
}

static void check_cut(const char *s, text_reasoning_start start, const size_t *ends, size_t count, const parts *want)
{
    text_reasoning r;
    parts got = {0};
    size_t at = 0;
    text_reasoning_begin(&r, start);
    for (size_t i = 0; i < count; i++) {
        text_reasoning_feed(&r, s + at, ends[i] - at, collect, &got);
        at = ends[i];
    }
    text_reasoning_finish(&r, collect, &got);
    for (int k = 0; k < 2; k++)
        assert_buffer(&got.text[k], want->text[k].data ? want->text[k].data : "", want->text[k].length);
    free_parts(&got);
}

static void check_text(const char *s)
{
    size_t n = strlen(s), ends[400];
    assert_true(n < 400);
    for (int start = TEXT_START_OPEN; start <= TEXT_START_CLOSED; start++) {
        parts want = {0};
        whole(s, (text_reasoning_start)start, &want);
        for (size_t a = 0; a <= n; a++)
            for (size_t b = a; b <= n; b++) check_cut(s, (text_reasoning_start)start, (size_t[]){a, b, n}, 3, &want);
        for (size_t i = 0; i < n; i++) ends[i] = i + 1;
        check_cut(s, (text_reasoning_start)start, ends, n, &want);
        free_parts(&want);
    }
}

static void test_every_cut(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "x",
        "hello",
        O,
        C,
        O C,
        C O,
        O "a" C "b",
        "a" C "b",
        "pre" O "mid" C "post",
        C "visible",
        C C "x",
        O O "x" C "y",
        O "x",
        "\n" O "x" C "\ny",
        "a<b",
        "<",
        "</",
        "<mm",
        "</mm:think",
        "<mm:think",
        "<mm:thin" O "q" C,
        "<<mm:think>x</</mm:think>y",
        "a" O "b" C "c" O "d" C "e",
        "x</mm:thin",
        O "x</mm:thinkk" C "z",
        C "a" O "b",
        "use " C " literally",
        O "\xE4\xBD\xA0" C "\xF0\x9F\x98\x80",
        "a < b </ c <m d",
        C "<mm:think",
        "<mm:think<mm:think>q",
        O C "answer",
        O "think" C C "answer",
        "</mm:think<",
        "<mm:think></mm:think></mm:think><mm:think>",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) check_text(texts[i]);
}

/* Texts made of markers, their parts and other characters. */
static void test_random(void **state)
{
    (void)state;
    static const char *const bits[] = {O,   C,    "<",  "</", "<mm:", "think>",    "mm:think>",
                                       "a", "b ", "\n", "/",  ">",    "</mm:think"};
    uint64_t seed = 11;
    for (int i = 0; i < 300; i++) {
        buffer text = {0};
        buffer_string(&text, "");
        for (uint32_t n = draw(&seed) % 7; n; n--) buffer_string(&text, bits[draw(&seed) % 13]);
        check_text(text.data ? text.data : "");
        buffer_free(&text);
    }
}

/* A text appears as soon as it is certain. */
static void test_nothing_held_without_need(void **state)
{
    (void)state;
    text_reasoning r;
    parts p = {0};
    text_reasoning_begin(&r, TEXT_START_INSIDE);
    text_reasoning_feed(&r, "abc<", 4, collect, &p);
    assert_buffer(&p.text[TEXT_REASONING], "abc", 3);
    text_reasoning_feed(&r, "m", 1, collect, &p); /* no opener is looked for inside */
    assert_buffer(&p.text[TEXT_REASONING], "abc<m", 5);
    text_reasoning_feed(&r, C "d<", strlen(C "d<"), collect, &p);
    assert_buffer(&p.text[TEXT_CONTENT], "d<", 2);
    free_parts(&p);
}

static void test_phase(void **state)
{
    (void)state;
    text_reasoning r;
    parts p = {0};
    text_reasoning_begin(&r, TEXT_START_OPEN);
    assert_true(text_reasoning_active(&r) && !text_reasoning_inside(&r));
    text_reasoning_feed(&r, "<mm", 3, collect, &p);
    assert_true(text_reasoning_active(&r) && !text_reasoning_inside(&r));
    text_reasoning_feed(&r, ":think>x", 8, collect, &p);
    assert_true(text_reasoning_active(&r) && text_reasoning_inside(&r));
    text_reasoning_feed(&r, C, strlen(C), collect, &p);
    assert_true(!text_reasoning_active(&r) && !text_reasoning_inside(&r));
    text_reasoning_begin(&r, TEXT_START_OPEN);
    text_reasoning_feed(&r, "x", 1, collect, &p);
    assert_false(text_reasoning_active(&r));
    text_reasoning_begin(&r, TEXT_START_CLOSED);
    assert_false(text_reasoning_active(&r));
    text_reasoning_begin(&r, TEXT_START_INSIDE);
    assert_true(text_reasoning_active(&r) && text_reasoning_inside(&r));
    free_parts(&p);
}

static void test_start_of_prompt(void **state)
{
    (void)state;
    text_tokenizer *tok = open_data("m3-small.json"), *tiny = open_data("m3-tiny.json");
    assert_int_equal(text_reasoning_start_of(tok, text_tokenizer_find(tok, O)), TEXT_START_INSIDE);
    assert_int_equal(text_reasoning_start_of(tok, text_tokenizer_find(tok, C)), TEXT_START_CLOSED);
    assert_int_equal(text_reasoning_start_of(tok, text_tokenizer_find(tok, "\n")), TEXT_START_OPEN);
    assert_int_equal(text_reasoning_start_of(tok, -1), TEXT_START_OPEN);
    assert_int_equal(text_reasoning_start_of(tiny, text_tokenizer_find(tiny, "<")),
                     TEXT_START_OPEN); /* has no closer */
    text_tokenizer_close(tok);
    text_tokenizer_close(tiny);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_nothing_held_without_need),
        cmocka_unit_test(test_phase),
        cmocka_unit_test(test_start_of_prompt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
