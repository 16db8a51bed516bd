/*
 * What users of other servers of this model reported about its answers, each with its whole kind. The numbers are those
 * of the list of reports; the addresses say where.
 */
#include "answer_helpers.h"

#include "text/chat_template.h"

static const text_reasoning_start starts[] = {TEXT_START_OPEN, TEXT_START_INSIDE, TEXT_START_CLOSED};

/* 1. https://github.com/vllm-project/vllm/issues/45687: markers that come in pieces are markers. */
static void test_report_1_markers_in_pieces(void **state)
{
    (void)state;
    expect(TEXT_START_OPEN, O "why" C "so", "why", "so", "");
    expect(TEXT_START_INSIDE, "why" C "so", "why", "so", "");
    expect(TEXT_START_INSIDE, O "why" C "so", "why", "so", "");
    expect(TEXT_START_CLOSED, "so", "", "so", "");
    expect(TEXT_START_OPEN, "<mm:" O "<mm:thin" C "</mm:think", "<mm:thin", "<mm:</mm:think", "");
    expect(TEXT_START_INSIDE, "</mm:" C "<", "</mm:", "<", "");
    for (size_t i = 0; i < 3; i++) {
        bool inside = starts[i] == TEXT_START_INSIDE;
        expect(starts[i], inside ? "w" C "a" BLOCK(INVOKE("f", E("s", "b"))) : "a" BLOCK(INVOKE("f", E("s", "b"))),
               inside ? "w" : "", "a", "f{\"s\":\"b\"}");
    }
}

/* The answer of the last token of the prompt that these messages make. */
static text_reasoning_start start_of(const text_tokenizer *tok, const json_t *messages, const char *mode)
{
    static const text_template m3 = {.kind = TEXT_TEMPLATE_MINIMAX_M3};
    json_t *kwargs = mode ? json_pack("{s:s}", "thinking_mode", mode) : NULL;
    buffer prompt = {0};
    hy_error err = {0};
    hy_ids ids = {0};
    assert_int_equal(text_template_render(&m3, messages, NULL, kwargs, &prompt, &err), HY_OK);
    /* Its last line is enough for the last token, and the small vocabulary has all of that. */
    assert_int_equal(text_tokenizer_encode(tok, prompt.data, prompt.length, true, &ids, &err), HY_OK);
    assert_true(ids.count > 0);
    text_reasoning_start start = text_reasoning_start_of(tok, ids.data[ids.count - 1]);
    hy_ids_free(&ids);
    buffer_free(&prompt);
    json_decref(kwargs);
    return start;
}

static json_t *conversation(bool system, int turns, bool reasoning)
{
    json_t *messages = json_array();
    if (system) json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "system", "content", "Be brief."));
    for (int i = 0; i < turns; i++) {
        json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "user", "content", "1+1?"));
        if (i == turns - 1) break;
        json_t *turn = json_pack("{s:s,s:s}", "role", "assistant", "content", "2");
        if (reasoning && i % 2 == 0) json_object_set_new(turn, "reasoning", json_string("easy"));
        json_array_append_new(messages, turn);
    }
    return messages;
}

/*
 * 2. https://github.com/vllm-project/vllm/issues/46042 and 4. https://github.com/sgl-project/sglang/pull/28715:
 * whatever the markers of the system text and of earlier turns, only how the prompt ends counts, and no marker is
 * content.
 */
static void test_report_2_4_prompts_with_markers(void **state)
{
    (void)state;
    text_tokenizer *tok = open_data("m3-small.json");
    static const struct {
        const char *mode;
        text_reasoning_start start;
    } modes[] = {{NULL, TEXT_START_OPEN},
                 {"adaptive", TEXT_START_OPEN},
                 {"enabled", TEXT_START_INSIDE},
                 {"disabled", TEXT_START_CLOSED}};
    for (int turns = 1; turns <= 4; turns++)
        for (int kind = 0; kind < 4; kind++) {
            json_t *messages = conversation(kind & 1, turns, kind & 2);
            for (size_t i = 0; i < 4; i++) {
                text_reasoning_start start = start_of(tok, messages, modes[i].mode);
                assert_int_equal(start, modes[i].start);
                bool inside = start == TEXT_START_INSIDE;
                expect(start, inside ? "easy" C "2" : O "easy" C "2", "easy", "2", "");
                if (!inside) expect(start, C "2", "", "2", "");
                if (!inside) expect(start, "2", "", "2", "");
            }
            json_decref(messages);
        }
    text_tokenizer_close(tok);
}

/* 3. https://github.com/vllm-project/vllm/issues/50549: a stray closing marker at the start, in every mode. */
static void test_report_3_stray_closer(void **state)
{
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        expect(starts[i], C, "", "", "");
        expect(starts[i], C "42", "", "42", "");
        expect(starts[i], C BLOCK(INVOKE("f", E("i", "1"))), "", "", "f{\"i\":1}");
    }
}

/* 5. https://github.com/vllm-project/vllm/pull/51075: one odd call, and all later ones are lost. */
static void test_report_5_odd_call_then_good_ones(void **state)
{
    (void)state;
    static const char *const odd[][3] = {
        /* text, content, call: the opening tag of the first, the second and the only parameter missing */
        {NS "Paris" NS "</s>" E("i", "2"), "", "f{\"s\":\"Paris\",\"i\":2}"},
        {E("i", "2") NS "Paris" NS "</s>", "", "f{\"i\":2,\"s\":\"Paris\"}"},
        {NS "2" NS "</i>", "", "f{\"i\":2}"},
        {NS "[\"a\"]" NS "</ls>", "", "f{\"ls\":[\"a\"]}"},
        {NS "x" NS "</unknown>", "", "f{\"unknown\":\"x\"}"},
        /* and what no one can mend */
        {NS "Paris", "Paris", "f{}"},
        {NS "</s>", "</s>", "f{}"},
        {NS "<i>2" NS "</s>", "</s>", "f{\"i\":2}"},
        {NS "<i>2", "", "f{\"i\":2}"},
        {NS "<i", "<i", "f{}"},
        {"Paris", "", "f{}"},
    };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        for (int blocks = 0; blocks < 2; blocks++) {
            buffer text = {0}, calls = {0};
            const char *between = blocks ? NS "</tool_call>\n" NS "<tool_call>\n" : "";
            buffer_printf(&text,
                          NS "<tool_call>\n" INVOKE("f", E("s", "a")) "%s" NS "<invoke name=\"f\">%s" NS
                                                                      "</invoke>\n%s" INVOKE("g", E("x", "1"))
                                                                          INVOKE("f", E("i", "3")) NS "</tool_call>",
                          between, odd[i][0], between);
            buffer_printf(&calls, "f{\"s\":\"a\"}%sg{\"x\":\"1\"}f{\"i\":3}", odd[i][2]);
            expect(TEXT_START_OPEN, text.data, "", odd[i][1], calls.data);
            buffer_free(&text);
            buffer_free(&calls);
        }
}

/* 6. https://github.com/vllm-project/vllm-gaudi/issues/1724: the `<` of invoke is dropped. */
static void test_report_6_dropped_bracket(void **state)
{
    (void)state;
    static const char *const quotes[] = {"\"", "'", ""};
    for (int mask = 0; mask < 8; mask++)
        for (int q = 0; q < 3; q++) {
            buffer text = {0};
            buffer_string(&text, "Now." NS "<tool_call>\n");
            for (int i = 0; i < 3; i++)
                buffer_printf(&text, NS "%sinvoke name=%sf%s>" E("i", "%d") NS "</invoke>\n", mask & 1 << i ? "" : "<",
                              quotes[q], quotes[q], i);
            buffer_string(&text, NS "</tool_call>");
            answer_log log = expect(TEXT_START_OPEN, text.data, "", "Now.", "f{\"i\":0}f{\"i\":1}f{\"i\":2}");
            assert_int_equal(log.repairs, (mask & 1) + (mask >> 1 & 1) + (mask >> 2));
            assert_int_equal(log.faults, 0);
            buffer_free(&text);
        }
}

/*
 * 7. https://github.com/vllm-project/vllm-gaudi/issues/1655 and /1639: a call that max_tokens cuts. The name is out
 * before its arguments, they flow as they are written, and wherever the text ends they are JSON.
 */
static void test_report_7_cut_file_argument(void **state)
{
    (void)state;
    static const char head[] = "I write it." NS "<tool_call>\n" NS "<invoke name=\"f\">" E("i", "7") NS "<s>";
    buffer text = {0};
    buffer_string(&text, head);
    size_t file = text.length;
    for (int line = 0; text.length < 100 * 1024; line++)
        buffer_printf(&text, "%d\tif (a[%d] < b->c) { puts(\"x\\n\"); } /* \xC3\xA9 </s> ]<] */\n", line, line);
    size_t end = text.length;
    buffer_string(&text, NS "</s>" E("n", "1.5") NS "</invoke>\n" NS "</tool_call>");

    text_answer_options options = options_of(TEXT_START_OPEN);
    uint64_t seed = 7;
    for (int i = 0; i < 40; i++) {
        size_t length = i < 36 ? draw(&seed) % text.length : text.length - 9 * (size_t)(i - 36);
        text_answer *a = text_answer_open(&options);
        answer_log log = {0};
        for (size_t at = 0, n; at < length; at += n) {
            n = 1 + draw(&seed) % 300;
            if (n > length - at) n = length - at;
            log.last = -1;
            text_answer_feed(a, text.data + at, n, answer_take, &log);
            /* All of the file that has come is out, but for what may be the end of it. */
            size_t out = log.arguments.length, come = at + n;
            if (come > file && come < end) assert_true(out + sizeof NS + 4 > come - file);
            if (come > file) assert_int_equal(log.calls, 1);
        }
        log.last = -1;
        text_answer_finish(a, answer_take, &log);
        assert_false(log.open);
        assert_int_equal(text_answer_cut(a), length < text.length);
        if (log.calls) {
            json_t *value = json_loadb(log.arguments.data, log.arguments.length, 0, NULL);
            const char *s = json_string_value(json_object_get(value, "s"));
            size_t come = s ? strlen(s) : 0;
            assert_true(come <= end - file && (!s || memcmp(s, text.data + file, come - (come > 2 ? 3 : come)) == 0));
            if (length > file && length < end) assert_true(come + sizeof NS + 4 > length - file);
            if (length == text.length) assert_int_equal(come, end - file);
            json_decref(value);
        }
        text_answer_close(a);
        answer_log_free(&log);
    }
    buffer_free(&text);
}

/* 8. https://github.com/MiniMax-AI/MiniMax-M3/issues/31: no namespace mark in content, whole or at its end. */
static void test_report_8_marks_in_content(void **state)
{
    (void)state;
    expect(TEXT_START_OPEN, "a" NS "b", "", "ab", "");
    expect(TEXT_START_OPEN, NS NS NS, "", "", "");
    expect(TEXT_START_OPEN, "a" NS, "", "a", "");
    expect(TEXT_START_OPEN, "a" NS "<tool", "", "a", "");
    expect(TEXT_START_OPEN, "a" NS "</tool_call>b", "", "a</tool_call>b", "");
    expect(TEXT_START_OPEN, "a" NS "<tool_cal>b" NS "<s>c", "", "a<tool_cal>b<s>c", "");
    expect(TEXT_START_OPEN, BLOCK(INVOKE("f", "")) NS "a" NS, "", "a", "f{}");
    /* What is none stays. */
    expect(TEXT_START_OPEN, "a]<]minimax[>b ]<]minimax[", "", "a]<]minimax[>b ]<]minimax[", "");
    expect(TEXT_START_OPEN, "]<]<]minimax[>[<tool_call>" NS "</tool_call>", "", "]<", "");
    expect(TEXT_START_OPEN, "]<]<]<]minimax[>]<]minimax[>[x", "", "]<]<]<]minimax[>x", "");
}

/* 9. https://github.com/NousResearch/hermes-agent/issues/44976: a list of one is a list. */
static void test_report_9_lists_of_one(void **state)
{
    (void)state;
    static const char *const values[][3] = {
        {E("ls", ""), "\"ls\":[]", "\"ls\":\"\""},
        {E("ls", E("item", "a")), "\"ls\":[\"a\"]", "\"ls\":{\"item\":\"a\"}"},
        {E("ls", E("item", "a") E("item", "b")), "\"ls\":[\"a\",\"b\"]", "\"ls\":{\"item\":[\"a\",\"b\"]}"},
        {E("li", E("item", "1")), "\"li\":[1]", "\"li\":{\"item\":\"1\"}"},
        {E("lo", E("item", E("sku", "a") E("qty", "1"))), "\"lo\":[{\"sku\":\"a\",\"qty\":1}]",
         "\"lo\":{\"item\":{\"sku\":\"a\",\"qty\":\"1\"}}"},
        {E("ll", E("item", E("item", "a"))), "\"ll\":[[\"a\"]]", "\"ll\":{\"item\":{\"item\":\"a\"}}"},
        {E("o", E("l", E("item", "a"))), "\"o\":{\"l\":[\"a\"]}", "\"o\":{\"l\":{\"item\":\"a\"}}"},
    };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        for (int known = 0; known < 2; known++) {
            buffer text = {0}, calls = {0};
            const char *name = known ? "f" : "g";
            buffer_printf(&text, NS "<tool_call>" NS "<invoke name=\"%s\">%s" NS "</invoke>" NS "</tool_call>", name,
                          values[i][0]);
            buffer_printf(&calls, "%s{%s}", name, values[i][known ? 1 : 2]);
            expect(TEXT_START_OPEN, text.data, "", "", calls.data);
            buffer_free(&text);
            buffer_free(&calls);
        }
}

/*
 * 10. https://github.com/vllm-project/vllm/issues/44060 and /39649: what looks like a delimiter in a string. Each piece
 * alone and each pair of them, in strings that flow, in those that may be null, in lists and in members of objects.
 */
static void test_report_10_delimiters_in_strings(void **state)
{
    (void)state;
    static const char *const pieces[] = {
        "</s>",
        "</city>",
        "<tool_call>",
        "</tool_call>",
        "</invoke>",
        "<invoke name=\"f\">",
        "]<]minimax[>",
        "]<]minimax[> [",
        NS,
        NS "<i>",
        NS "</i>",
        NS "</invoke>",
        NS "<tool_call>",
        NS "</tool_call>\n",
        NS "invoke name=\"f\">",
        C,
        O,
        "]<]",
        "[e~[",
        "]~b]ai",
        "<",
        "]",
        " \n",
    };
    static const struct {
        const char *before, *after, *json_before, *json_after;
    } places[] = {
        {NS "<s>", NS "</s>", "{\"s\":\"", "\"}"},
        {NS "<sn>", NS "</sn>", "{\"sn\":\"", "\"}"},
        {NS "<ls>" NS "<item>", NS "</item>" NS "</ls>", "{\"ls\":[\"", "\"]}"},
        {NS "<o>" NS "<t>", NS "</t>" NS "</o>", "{\"o\":{\"t\":\"", "\"}}"},
        {NS "<lo>" NS "<item>" NS "<sku>", NS "</sku>" NS "</item>" NS "</lo>", "{\"lo\":[{\"sku\":\"", "\"}]}"},
    };
    size_t count = sizeof pieces / sizeof *pieces;
    text_answer_options options = options_of(TEXT_START_OPEN);
    uint64_t seed = 3;
    for (size_t p = 0; p < sizeof places / sizeof *places; p++)
        for (size_t i = 0; i < count * (count + 1); i++) {
            buffer text = {0}, want = {0}, value = {0}, got = {0};
            buffer_printf(&value, "x%s%s", pieces[i % count], i / count < count ? pieces[i / count] : "");
            if (!p && strstr(value.data, NS "</s>")) { /* the one thing that a string cannot have: its own end */
                buffer_free(&value);
                continue;
            }
            buffer_printf(&text,
                          "a" NS "<tool_call>\n" NS "<invoke name=\"f\">%s%s%s" E("i", "1") NS "</invoke>\n" NS
                                                                                               "</tool_call>",
                          places[p].before, value.data, places[p].after);
            json_t *s = json_string(value.data);
            char *escaped = json_dumps(s, JSON_ENCODE_ANY);
            buffer_printf(&want, "f%s%.*s%.*s,\"i\":1}", places[p].json_before, (int)strlen(escaped) - 2, escaped + 1,
                          (int)strlen(places[p].json_after) - 1, places[p].json_after);
            answer_log log = {0};
            answer_all_cuts(text.data, text.length, &options, i < count ? 1000 : 0, &seed, 1, &log);
            if (log.faults + log.repairs + log.cut) fail_msg("%s", text.data);
            check_picked(&log, "\2", "a", text.data);
            check_picked(&log, "\3\4", want.data, text.data);
            answer_log_free(&log);
            free(escaped);
            json_decref(s);
            buffer_free(&text), buffer_free(&want), buffer_free(&value), buffer_free(&got);
        }
}

/*
 * 11. https://github.com/ggml-org/llama.cpp/pull/24523 and /26210: the characters of the mark are characters. Every row
 * of up to five of them, in content, in a string, in a value without a type and in one that is typed.
 */
static void test_report_11_characters_of_the_mark(void **state)
{
    (void)state;
    static const char letters[] = "]<[>";
    text_answer_options options = options_of(TEXT_START_OPEN);
    for (int length = 1; length <= 5; length++)
        for (int code = 0; code < 1 << (2 * length); code++) {
            char row[8] = "";
            for (int i = 0; i < length; i++) row[i] = letters[code >> (2 * i) & 3];
            buffer text = {0}, want = {0};
            buffer_printf(&text,
                          "%s" NS "<tool_call>" NS "<invoke name=\"f\">" E("s", "%s") E("any", "%s") E("i", "%s") NS
                          "</invoke>" NS "</tool_call>%s",
                          row, row, row, row, row);
            buffer_printf(&want, "f{\"s\":\"%s\",\"any\":\"%s\",\"i\":\"%s\"}", row, row, row);
            answer_log log = {0};
            uint64_t seed = 1;
            answer_all_cuts(text.data, text.length, &options, 0, &seed, 2, &log);
            assert_int_equal(log.faults + log.repairs + log.cut, 0);
            check_picked(&log, "\3\4", want.data, text.data);
            buffer_clear(&want);
            buffer_printf(&want, "%s%s", row, row);
            check_picked(&log, "\2", want.data, text.data);
            answer_log_free(&log);
            buffer_free(&text);
            buffer_free(&want);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_report_1_markers_in_pieces),      cmocka_unit_test(test_report_2_4_prompts_with_markers),
        cmocka_unit_test(test_report_3_stray_closer),           cmocka_unit_test(test_report_5_odd_call_then_good_ones),
        cmocka_unit_test(test_report_6_dropped_bracket),        cmocka_unit_test(test_report_7_cut_file_argument),
        cmocka_unit_test(test_report_8_marks_in_content),       cmocka_unit_test(test_report_9_lists_of_one),
        cmocka_unit_test(test_report_10_delimiters_in_strings), cmocka_unit_test(test_report_11_characters_of_the_mark),
    };
    return cmocka_run_group_tests(tests, answer_set_up, answer_tear_down);
}
