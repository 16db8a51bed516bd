/* Exact replay: sampled tokens in place of encoded ones, and never another text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "base/clock.h"
#include "base/random.h"
#include "engine/replay.h"
#include "text/chat_template.h"
#include "text/reasoning.h"
#include "text/tool_calls.h"

#define TURN "]~b]"
#define END "[e~["

static text_tokenizer *tok;
static int32_t byte_id[256], end_id;
static struct piece {
    const char *bytes;
    size_t length;
    int32_t id;
} * pieces; /* ordinary tokens in the order of their bytes */
static size_t piece_count;

/* Philox as a plain generator: the tests are the same everywhere. */
static uint32_t next_random(uint64_t *state)
{
    uint32_t out[4];
    uint64_t at = (*state)++;
    random_quad(1, (uint32_t)(at >> 32), RANDOM_PICK, 0, (uint32_t)at, 0, out);
    return out[0];
}

static uint32_t below(uint64_t *state, uint32_t n)
{
    return next_random(state) % n;
}

/* ---- Texts and tokens ------------------------------------------------------------------------------------------ */

typedef struct tokens {
    int32_t *data;
    size_t count, capacity;
} tokens;

static void push(tokens *t, const int32_t *ids, size_t count)
{
    if (t->count + count > t->capacity) {
        t->capacity = 2 * (t->count + count);
        t->data = realloc(t->data, t->capacity * sizeof *t->data);
        assert_non_null(t->data);
    }
    if (count) memcpy(t->data + t->count, ids, count * sizeof *ids);
    t->count += count;
}

static void release(tokens *t)
{
    free(t->data);
    *t = (tokens){0};
}

static hy_ids encoded(const char *text)
{
    hy_ids ids = {0};
    hy_error err = {0};
    if (text_tokenizer_encode(tok, text, strlen(text), true, &ids, &err) != HY_OK) fail_msg("%s", err.message);
    return ids;
}

static int compare_pieces(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    size_t n = x->length < y->length ? x->length : y->length;
    int c = memcmp(x->bytes, y->bytes, n);
    return c ? c : (x->length > y->length) - (x->length < y->length);
}

static int32_t find_piece(const char *bytes, size_t length)
{
    struct piece key = {bytes, length, -1};
    struct piece *p = bsearch(&key, pieces, piece_count, sizeof *pieces, compare_pieces);
    return p ? p->id : -1;
}

/* Appends the tokens with some of them split in two: the same text as another sampling might have it. */
static void push_split(tokens *t, const int32_t *ids, size_t count, uint32_t in, uint64_t *rng)
{
    for (size_t i = 0; i < count; i++) {
        size_t length, cut;
        const char *bytes = text_tokenizer_bytes(tok, ids[i], &length);
        int32_t left = -1, right = -1;
        if (!text_tokenizer_is_added(tok, ids[i]) && length > 1 && below(rng, in) == 0) {
            cut = 1 + below(rng, (uint32_t)length - 1);
            left = find_piece(bytes, cut), right = find_piece(bytes + cut, length - cut);
        }
        if (left >= 0 && right >= 0)
            push(t, (int32_t[]){left, right}, 2);
        else
            push(t, &ids[i], 1);
    }
}

/* The text with every other token split where that can be done. */
static tokens sampled(const char *text, uint64_t seed)
{
    tokens t = {0};
    hy_ids ids = encoded(text);
    push_split(&t, ids.data, ids.count, 2, &seed);
    hy_ids_free(&ids);
    return t;
}

static void append_bytes(buffer *b, const int32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t length;
        const char *bytes = text_tokenizer_bytes(tok, ids[i], &length);
        buffer_append(b, bytes, length);
    }
}

static void assert_same_text(const int32_t *a, size_t a_count, const int32_t *b, size_t b_count)
{
    buffer x = {0}, y = {0};
    append_bytes(&x, a, a_count), append_bytes(&y, b, b_count);
    assert_int_equal(x.length, y.length);
    if (x.length) assert_memory_equal(x.data, y.data, x.length);
    buffer_free(&x), buffer_free(&y);
}

static void assert_tokens(const int32_t *got, size_t got_count, const int32_t *want, size_t count)
{
    for (size_t i = 0; i < count && i < got_count; i++)
        if (got[i] != want[i]) fail_msg("token %zu of %zu is %d, want %d", i, count, got[i], want[i]);
    assert_int_equal(got_count, count);
}

/* Applies to ids and holds the text against them. */
static hy_ids applied(replay *r, const int32_t *ids, size_t count, int32_t *changed)
{
    hy_ids out = {0};
    hy_error err = {0};
    if (replay_apply(r, NULL, ids, count, &out, changed, &err) != HY_OK) fail_msg("%s", err.message);
    assert_same_text(ids, count, out.data, out.count);
    assert_in_range(*changed + 1, 0, out.count);
    return out;
}

static hy_ids applied_text(replay *r, const char *text, int32_t *changed)
{
    hy_ids ids = encoded(text), out = applied(r, ids.data, ids.count, changed);
    hy_ids_free(&ids);
    return out;
}

static replay *opened(uint64_t bytes)
{
    replay *r = NULL;
    hy_error err = {0};
    if (replay_open(tok, bytes, &r, &err) != HY_OK) fail_msg("%s", err.message);
    return r;
}

/* An answer to a prompt of canonical tokens, with or without its end token. Returns the whole sequence. */
static tokens answer(replay *r, const char *prompt, const tokens *sample, bool ended)
{
    tokens t = {0};
    hy_ids ids = encoded(prompt);
    push(&t, ids.data, ids.count);
    push(&t, sample->data, sample->count);
    if (ended) push(&t, &end_id, 1);
    replay_record(r, NULL, t.data, (int32_t)ids.count, (int32_t)t.count);
    hy_ids_free(&ids);
    return t;
}

/* `text` applied is these tokens, then the canonical ones of `rest`. */
static void assert_applied(replay *r, const char *text, const int32_t *want, size_t count, const char *rest,
                           int32_t changed)
{
    int32_t got_changed;
    hy_ids out = applied_text(r, text, &got_changed), more = encoded(rest);
    tokens all = {0};
    push(&all, want, count);
    push(&all, more.data, more.count);
    assert_tokens(out.data, out.count, all.data, all.count);
    assert_int_equal(got_changed, changed);
    hy_ids_free(&out), hy_ids_free(&more);
    release(&all);
}

static void assert_canonical(replay *r, const char *text, int32_t changed)
{
    assert_applied(r, text, NULL, 0, text, changed);
}

/* ---- One answer ------------------------------------------------------------------------------------------------- */

#define FRONT TURN "user\nTell me about the harbour." END "\n" TURN "ai\n"
#define ANSWER "The harbour is quiet in the evening; three ships came in, and nobody was there to see them."
#define NEXT END "\n" TURN "user\nAnd then?" END "\n" TURN "ai\n"

static void test_whole(void **state)
{
    (void)state;
    replay *r = opened(1 << 20);
    tokens s = sampled(ANSWER, 7), all = answer(r, FRONT, &s, true);
    hy_ids canonical = encoded(ANSWER);
    assert_true(s.count > canonical.count + 5); /* else nothing is tested */
    assert_applied(r, FRONT ANSWER NEXT, all.data, all.count - 1, NEXT, -1);
    assert_applied(r, FRONT ANSWER END, all.data, all.count, "", -1);
    assert_applied(r, FRONT ANSWER, all.data, all.count - 1, "", -1);
    assert_canonical(r, FRONT, -1);
    assert_canonical(r, "", -1);
    /* Other tokens in front, though the turn and the answer are the same. */
    assert_canonical(r, TURN "user\nTell me about a harbour." END "\n" TURN "ai\n" ANSWER NEXT, -1);
    /* Another speaker says the same. */
    assert_canonical(r, TURN "user\nTell me about the harbour." END "\n" TURN "user\n" ANSWER NEXT, -1);
    /* Without the end token in the ids: the end was cut off, or there was none. */
    replay *cut = opened(1 << 20);
    tokens same = answer(cut, FRONT, &s, false);
    assert_applied(cut, FRONT ANSWER NEXT, same.data, same.count, NEXT, -1);
    replay_close(cut), replay_close(r);
    hy_ids_free(&canonical);
    release(&s), release(&all), release(&same);
}

/* The first byte of an answer and the last one of its prompt are one token when they come back, where an answer
 * goes on with a message that had begun. */
static void test_boundary(void **state)
{
    (void)state;
    static const char *const prompts[] = {FRONT TEXT_THINK_CLOSE "Yes.", FRONT TEXT_THINK_CLOSE "The even"};
    static const char *const texts[] = {"\nA line down.", "ing is quiet."};
    for (int i = 0; i < 2; i++) {
        replay *r = opened(1 << 20);
        tokens s = sampled(texts[i], 4), all = answer(r, prompts[i], &s, true);
        char text[512];
        snprintf(text, sizeof text, "%s%s" NEXT, prompts[i], texts[i]);
        hy_ids whole = encoded(text), front = encoded(prompts[i]);
        assert_int_not_equal(whole.data[front.count - 1], front.data[front.count - 1]);
        assert_applied(r, text, all.data, all.count - 1, NEXT, -1);
        hy_ids_free(&whole), hy_ids_free(&front);
        release(&s), release(&all);
        replay_close(r);
    }
}

/* A client edits an answer: what stands before the edit is still known. */
static void test_edited(void **state)
{
    (void)state;
    replay *r = opened(1 << 20);
    /* Tokens by hand: every byte its own, so that places are known. */
    tokens s = {0};
    for (const char *c = ANSWER; *c; c++) push(&s, &byte_id[(unsigned char)*c], 1);
    tokens all = answer(r, FRONT, &s, true);
    hy_ids front = encoded(FRONT);
    const char *edited = FRONT "The harbour is quiet in the morning; three ships came in." NEXT;
    hy_ids out = {0}, canonical = encoded(edited);
    int32_t changed;
    out = applied_text(r, edited, &changed);
    /* All bytes are tokens of the record: it is left where a token of the prompt ends, at "the" or " the". */
    size_t same = strlen("The harbour is quiet in the");
    assert_int_equal(changed, front.count + same);
    assert_tokens(out.data, (size_t)changed, all.data, (size_t)changed);
    size_t rest = out.count - (size_t)changed;
    assert_tokens(out.data + changed, rest, canonical.data + canonical.count - rest, rest);
    hy_ids_free(&out);
    /* From the first byte, and all of it gone. */
    assert_canonical(r, FRONT "Quite another answer." NEXT, (int32_t)front.count);
    assert_canonical(r, FRONT NEXT, (int32_t)front.count);
    /* Nothing was taken away: text behind all of an answer is not a change. */
    out = applied_text(r, FRONT ANSWER " More." NEXT, &changed);
    assert_int_equal(changed, -1);
    assert_tokens(out.data, all.count - 1, all.data, all.count - 1);
    hy_ids_free(&out), hy_ids_free(&canonical), hy_ids_free(&front);
    release(&s), release(&all);
    replay_close(r);
}

/* A prompt that ends inside an answer, at every byte; then an answer of which the client saw only the start. */
static void test_parts(void **state)
{
    (void)state;
    const char answer_text[] = ANSWER;
    for (int ended = 0; ended < 2; ended++) {
        replay *r = opened(1 << 20);
        tokens s = sampled(ANSWER, 3), all = answer(r, FRONT, &s, ended);
        hy_ids front = encoded(FRONT);
        for (size_t n = 1; n < strlen(answer_text); n++) {
            for (int closed = 0; closed < 2; closed++) {
                char text[1024];
                snprintf(text, sizeof text, FRONT "%.*s%s", (int)n, answer_text, closed ? NEXT : "");
                hy_ids canonical = encoded(text);
                int32_t changed;
                hy_ids out = applied_text(r, text, &changed);
                /* Where the first n bytes are whole tokens of the answer, they are the answer's. */
                size_t bytes = 0, k = 0;
                while (bytes < n) {
                    size_t length;
                    text_tokenizer_bytes(tok, s.data[k++], &length);
                    bytes += length;
                }
                if (bytes == n) assert_tokens(out.data, front.count + k, all.data, front.count + k);
                /* Ended by the model, less of it is another text; else it was cut where nobody saw it. */
                if (closed && ended && bytes == n) assert_int_equal(changed, front.count + k);
                if (!closed || !ended) assert_int_equal(changed, -1);
                if (closed && ended) assert_true(changed >= (int32_t)front.count);
                hy_ids_free(&out), hy_ids_free(&canonical);
            }
        }
        hy_ids_free(&front);
        release(&s), release(&all);
        replay_close(r);
    }
}

/* Answers are known under their salt alone: not even that there is one is told to others. */
static void test_salt(void **state)
{
    (void)state;
    static const char *const salts[] = {NULL, "a", "b", "ab", "ba"};
    replay *r = opened(1 << 20);
    tokens s = sampled(ANSWER, 7), all = {0};
    hy_ids front = encoded(FRONT), back = encoded(FRONT ANSWER NEXT), edited = encoded(FRONT "No." NEXT), out = {0};
    push(&all, front.data, front.count);
    push(&all, s.data, s.count);
    replay_record(r, "ab", all.data, (int32_t)front.count, (int32_t)all.count);
    for (int i = 0; i < 5; i++) {
        int32_t changed;
        assert_int_equal(replay_apply(r, salts[i], back.data, back.count, &out, &changed, NULL), HY_OK);
        if (i == 3)
            assert_tokens(out.data, all.count, all.data, all.count);
        else
            assert_tokens(out.data, out.count, back.data, back.count);
        assert_int_equal(replay_apply(r, salts[i], edited.data, edited.count, &out, &changed, NULL), HY_OK);
        assert_int_equal(changed, i == 3 ? (int32_t)front.count : -1);
    }
    replay_record(r, NULL, all.data, (int32_t)front.count, (int32_t)all.count);
    assert_applied(r, FRONT ANSWER NEXT, all.data, all.count, NEXT, -1);
    assert_int_equal(replay_apply(r, "", back.data, back.count, &out, &(int32_t){0}, NULL), HY_OK);
    assert_tokens(out.data, all.count, all.data, all.count);
    hy_ids_free(&front), hy_ids_free(&back), hy_ids_free(&edited), hy_ids_free(&out);
    release(&s), release(&all);
    replay_close(r);
}

/* ---- Several answers --------------------------------------------------------------------------------------------- */

static void test_several(void **state)
{
    (void)state;
    replay *r = opened(1 << 22);
    tokens first = sampled(ANSWER, 1), second = sampled(ANSWER, 2), other = sampled("Something else.", 3);
    tokens a = answer(r, FRONT, &first, true), b = answer(r, FRONT, &second, true), c = answer(r, FRONT, &other, true);
    assert_true(first.count != second.count || memcmp(first.data, second.data, first.count * sizeof(int32_t)) != 0);
    assert_applied(r, FRONT ANSWER NEXT, b.data, b.count - 1, NEXT, -1); /* the most recent of equals */
    assert_applied(r, FRONT "Something else." NEXT, c.data, c.count - 1, NEXT, -1);
    uint64_t before = replay_bytes(r);
    tokens again = answer(r, FRONT, &first, true); /* known: now the most recent, and no more memory */
    assert_int_equal(replay_bytes(r), before);
    assert_applied(r, FRONT ANSWER NEXT, a.data, a.count - 1, NEXT, -1);
    /* An older answer that goes on wins over a newer one that ends before. */
    tokens part = sampled("The harbour is quiet", 9), p = answer(r, FRONT, &part, false);
    assert_applied(r, FRONT ANSWER NEXT, a.data, a.count - 1, NEXT, -1);
    /* One that says all of the text and one that says more: nothing was changed. */
    const char *old = TURN "ai\n";
    tokens more = answer(r, old, &first, true), less = answer(r, old, &part, false);
    release(&more), more = answer(r, old, &first, true);
    assert_applied(r, TURN "ai\nThe harbour is quiet" NEXT, less.data, less.count, NEXT, -1);
    /* Many answers to one prompt: the last ones are kept. */
    tokens made[REPLAY_SAME + 8];
    char text[64];
    for (int i = 0; i < REPLAY_SAME + 8; i++) {
        snprintf(text, sizeof text, "Answer number %d of many, %d.", i, i * i);
        tokens s = {0};
        for (char *k = text; *k; k++) push(&s, &byte_id[(unsigned char)*k], 1);
        made[i] = answer(r, FRONT, &s, true);
        release(&s);
    }
    for (int i = 0; i < REPLAY_SAME + 8; i++) {
        char prompt[256];
        snprintf(prompt, sizeof prompt, FRONT "Answer number %d of many, %d." NEXT, i, i * i);
        int32_t changed;
        hy_ids out = applied_text(r, prompt, &changed);
        bool kept = i >= 8;
        assert_int_equal(changed == -1, kept);
        if (kept) assert_tokens(out.data, made[i].count, made[i].data, made[i].count);
        hy_ids_free(&out);
        release(&made[i]);
    }
    release(&first), release(&second), release(&other), release(&a), release(&b), release(&c);
    release(&again), release(&part), release(&p), release(&more), release(&less);
    replay_close(r);
}

/* ---- Markers ---------------------------------------------------------------------------------------------------- */

#define CALL                                                                                                           \
    TEXT_TOOL_OPEN "\n" TEXT_TOOL_NAMESPACE "<invoke name=\"look\">" TEXT_TOOL_NAMESPACE "<place>harbour"              \
                   "" TEXT_TOOL_NAMESPACE "</place>" TEXT_TOOL_NAMESPACE "</invoke>\n" TEXT_TOOL_CLOSE

static void test_markers(void **state)
{
    (void)state;
    static const char thought[] = "Which harbour is meant? Probably the nearest one.", content[] = "Let me look.";
    char text[1024], want[2048];
    hy_ids front = encoded(FRONT);
    for (int enabled = 0; enabled < 2; enabled++) {
        replay *r = opened(1 << 20);
        const char *prompt = enabled ? FRONT TEXT_THINK_OPEN : FRONT;
        snprintf(text, sizeof text, "%s%s" TEXT_THINK_CLOSE "%s" CALL, enabled ? "" : TEXT_THINK_OPEN, thought,
                 content);
        tokens s = sampled(text, 11), all = answer(r, prompt, &s, true);
        hy_ids canonical = encoded(text);
        assert_true(s.count > canonical.count + 5);
        snprintf(want, sizeof want, "%s%s" NEXT, prompt, text);
        assert_applied(r, want, all.data, all.count - 1, NEXT, -1);
        /* The template dropped the reasoning: nothing of the answer fits, and the place is named in both modes. */
        snprintf(want, sizeof want, FRONT TEXT_THINK_CLOSE "%s" CALL NEXT, content);
        assert_canonical(r, want, (int32_t)front.count);
        /* The call is another one: all before it is the answer's. */
        snprintf(want, sizeof want, "%s%s%s" TEXT_THINK_CLOSE "%s" NEXT, FRONT, TEXT_THINK_OPEN, thought, content);
        int32_t changed;
        hy_ids out = applied_text(r, want, &changed);
        assert_true(changed > (int32_t)front.count);
        assert_tokens(out.data, (size_t)changed, all.data, (size_t)changed);
        assert_int_equal(out.data[changed], end_id);
        assert_int_equal(all.data[changed], text_tokenizer_find(tok, TEXT_TOOL_NAMESPACE));
        hy_ids_free(&out), hy_ids_free(&canonical);
        release(&s), release(&all);
        replay_close(r);
    }
    hy_ids_free(&front);
}

/* A marker that was sampled letter by letter is not the marker, nor the other way round. */
static void test_spelt_marker(void **state)
{
    (void)state;
    replay *r = opened(1 << 20);
    const char *text = "Done" TEXT_THINK_CLOSE "Yes";
    tokens s = {0};
    for (const char *c = text; *c; c++) push(&s, &byte_id[(unsigned char)*c], 1);
    tokens all = answer(r, FRONT, &s, true);
    hy_ids front = encoded(FRONT);
    int32_t changed;
    hy_ids out = applied_text(r, FRONT "Done" TEXT_THINK_CLOSE "Yes" NEXT, &changed);
    assert_int_equal(changed, front.count + 4);
    assert_int_equal(out.data[changed], text_tokenizer_find(tok, TEXT_THINK_CLOSE));
    hy_ids_free(&out);
    replay *other = opened(1 << 20);
    hy_ids marked = encoded("Done" TEXT_THINK_CLOSE "Yes");
    tokens m = {marked.data, marked.count, marked.count}, with = answer(other, FRONT, &m, true);
    out = applied(other, all.data, all.count, &changed);
    hy_ids done = encoded(FRONT "Done");
    assert_int_equal(changed, done.count);
    assert_tokens(out.data, done.count, done.data, done.count);
    assert_tokens(out.data + done.count, out.count - done.count, all.data + front.count + 4,
                  all.count - front.count - 4);
    hy_ids_free(&out), hy_ids_free(&front), hy_ids_free(&marked), hy_ids_free(&done);
    release(&s), release(&all), release(&with);
    replay_close(other), replay_close(r);
}

/* ---- Conversations ----------------------------------------------------------------------------------------------- */

static hy_ids render(const json_t *messages, const json_t *kwargs)
{
    text_template chat = {.kind = TEXT_TEMPLATE_MINIMAX_M3};
    buffer text = {0};
    hy_error err = {0};
    hy_ids ids = {0};
    if (text_template_render(&chat, messages, NULL, kwargs, &text, &err) != HY_OK) fail_msg("%s", err.message);
    if (text_tokenizer_encode(tok, text.data, text.length, true, &ids, &err) != HY_OK) fail_msg("%s", err.message);
    buffer_free(&text);
    return ids;
}

static void words(char *out, size_t size, uint32_t count, uint64_t *rng)
{
    static const char *const word[] = {"harbour", " light", "ning", "\n",  "  ",  "evening's", " 4837",
                                       ", and",   "ü",      " 船",  "...", "\t{", "}",         " Nobody",
                                       "\n\n",    "x",      "'ll",  " — ", "=="};
    size_t at = 0;
    for (uint32_t i = 0; i < count; i++)
        at += (size_t)snprintf(out + at, size - at, "%s", word[below(rng, sizeof word / sizeof *word)]);
}

/* An agent's conversation of 30 turns as its client sends it back: every prompt begins with all tokens of the turn
 * before. */
static void conversation(const char *mode, uint64_t seed)
{
    replay *r = opened(1 << 22);
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "Look at the harbour.");
    json_t *kwargs = json_pack("{s:s}", "thinking_mode", mode);
    tokens before = {0};
    size_t reusable = 0, hit = 0, canonical_hit = 0;
    for (int turn = 0; turn < 30; turn++) {
        int32_t changed;
        hy_ids canonical = render(messages, kwargs), prompt = applied(r, canonical.data, canonical.count, &changed);
        assert_int_equal(changed, -1);
        reusable += before.count;
        for (size_t i = 0; i < before.count && i < prompt.count && prompt.data[i] == before.data[i]; i++) hit++;
        for (size_t i = 0; i < before.count && i < canonical.count && canonical.data[i] == before.data[i]; i++)
            canonical_hit++;
        char thought[512], content[512], place[512], text[4096];
        words(thought, sizeof thought, 1 + below(&seed, 30), &seed);
        words(content, sizeof content, below(&seed, 20), &seed);
        words(place, sizeof place, 1 + below(&seed, 6), &seed);
        bool calls = below(&seed, 3) > 0, enabled = strcmp(mode, "enabled") == 0;
        snprintf(text, sizeof text, "%s%s" TEXT_THINK_CLOSE "%s", enabled ? "" : TEXT_THINK_OPEN, thought, content);
        if (calls) {
            size_t at = strlen(text);
            snprintf(text + at, sizeof text - at,
                     TEXT_TOOL_OPEN "\n" TEXT_TOOL_NAMESPACE "<invoke name=\"look\">" TEXT_TOOL_NAMESPACE
                                    "<place>%s" TEXT_TOOL_NAMESPACE "</place>" TEXT_TOOL_NAMESPACE
                                    "</invoke>\n" TEXT_TOOL_CLOSE,
                     place);
        }
        hy_ids answer_ids = encoded(text);
        release(&before);
        push(&before, prompt.data, prompt.count);
        push_split(&before, answer_ids.data, answer_ids.count, 3, &seed);
        push(&before, &end_id, 1);
        replay_record(r, NULL, before.data, (int32_t)prompt.count, (int32_t)before.count);
        json_t *said = json_pack("{s:s, s:s, s:s}", "role", "assistant", "reasoning", thought, "content", content);
        if (calls)
            json_object_set_new(said, "tool_calls",
                                json_pack("[{s:s, s:{s:s, s:{s:s}}}]", "type", "function", "function", "name", "look",
                                          "arguments", "place", place));
        json_array_append_new(messages, said);
        words(content, sizeof content, 1 + below(&seed, 20), &seed);
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", calls ? "tool" : "user", "content", content));
        hy_ids_free(&canonical), hy_ids_free(&prompt), hy_ids_free(&answer_ids);
    }
    assert_int_equal(hit, reusable);
    assert_true(canonical_hit < reusable / 2); /* else replay was not needed */
    release(&before);
    json_decref(messages), json_decref(kwargs);
    replay_close(r);
}

static void test_conversations(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        conversation("enabled", seed << 32);
        conversation("adaptive", (seed + 10) << 32);
    }
}

/* ---- Bounds ------------------------------------------------------------------------------------------------------ */

static void numbered(char *out, size_t size, int i)
{
    snprintf(out, size, TURN "user\nQuestion %d" END "\n" TURN "ai\n", i);
}

/* The least recently used go first; one in use stays. */
static void test_memory(void **state)
{
    (void)state;
    enum { LIMIT = 64 << 10, MANY = 2000 };
    replay *r = opened(LIMIT);
    tokens s = sampled(ANSWER, 5), kept = {0}, last = {0};
    char prompt[256], back[512];
    for (int i = 0; i < MANY; i++) {
        numbered(prompt, sizeof prompt, i);
        tokens t = answer(r, prompt, &s, true);
        assert_true(replay_bytes(r) <= LIMIT);
        if (i == 0) push(&kept, t.data, t.count);
        if (i == MANY - 1) push(&last, t.data, t.count);
        release(&t);
        if (i % 20 == 0) {
            numbered(prompt, sizeof prompt, 0);
            snprintf(back, sizeof back, "%s" ANSWER END, prompt);
            assert_applied(r, back, kept.data, kept.count, "", -1);
        }
    }
    assert_true(replay_bytes(r) > LIMIT / 2);
    numbered(prompt, sizeof prompt, MANY - 1);
    snprintf(back, sizeof back, "%s" ANSWER END, prompt);
    assert_applied(r, back, last.data, last.count, "", -1);
    numbered(prompt, sizeof prompt, 1);
    snprintf(back, sizeof back, "%s" ANSWER END, prompt);
    assert_canonical(r, back, -1);
    /* One that is larger than all room leaves the others where they are. */
    uint64_t before = replay_bytes(r);
    tokens huge = {0};
    for (int i = 0; i < LIMIT; i++) push(&huge, s.data, 1);
    tokens t = answer(r, FRONT, &huge, true);
    assert_int_equal(replay_bytes(r), before);
    release(&t), release(&huge), release(&s), release(&kept), release(&last);
    replay_close(r);
    /* Hardly any room, and none. */
    for (uint64_t limit = 0; limit < 300; limit += 50) {
        r = opened(limit);
        s = sampled("Yes.", 5), t = answer(r, FRONT, &s, true);
        hy_ids out = applied_text(r, FRONT "Yes." NEXT, &(int32_t){0});
        hy_ids_free(&out);
        release(&s), release(&t);
        replay_close(r);
    }
}

/* A million tokens: of one turn, of as many turns, and of answers that part at their last byte. */
static void test_long(void **state)
{
    (void)state;
    enum { LONG = 1000000 };
    replay *r = opened((uint64_t)1 << 30);
    hy_ids front = encoded(FRONT);
    tokens ids = {0}, sequence = {0};
    push(&ids, front.data, front.count);
    for (int i = 0; i < LONG; i++) push(&ids, (int32_t[]){find_piece("the", 3)}, 1);
    assert_true(ids.data[front.count] >= 0);
    /* Bytes against tokens of three, so that there are few places in common; the last byte is another one. */
    for (int k = 0; k < REPLAY_SAME; k++) {
        sequence.count = 0;
        push(&sequence, front.data, front.count);
        for (int i = 0; i < LONG; i++) push(&sequence, (int32_t[]){byte_id['t'], byte_id['h'], byte_id['e']}, 3);
        sequence.data[sequence.count - 1] = byte_id[k];
        double start = clock_seconds();
        replay_record(r, NULL, sequence.data, (int32_t)front.count, (int32_t)sequence.count);
        assert_true(clock_seconds() - start < 50);
    }
    int32_t changed;
    double start = clock_seconds();
    hy_ids out = applied(r, ids.data, ids.count, &changed);
    double alike = clock_seconds() - start;
    assert_int_equal(changed, front.count + 3 * (LONG - 1));
    hy_ids_free(&out);
    /* Special tokens alone: every place is looked up. */
    for (size_t i = 0; i < ids.count; i++) ids.data[i] = end_id;
    start = clock_seconds();
    out = applied(r, ids.data, ids.count, &changed);
    double turns = clock_seconds() - start;
    assert_tokens(out.data, out.count, ids.data, ids.count);
    hy_ids_free(&out);
    print_message("a million tokens: %.3f s beside %d answers, %.3f s of turns\n", alike, REPLAY_SAME, turns);
    assert_true(alike < 100 && turns < 100); /* quadratic would be hours */
    hy_ids_free(&front);
    release(&ids), release(&sequence);
    replay_close(r);
}

/* ---- Anything ---------------------------------------------------------------------------------------------------- */

/* Short random texts of few words, so that much is alike; with few bits of the hash, so that unlike prompts meet. */
static void test_random(void **state)
{
    (void)state;
    static const char *const word[] = {TURN "ai\n", TURN "user\n", END "\n", TEXT_THINK_OPEN, TEXT_THINK_CLOSE,
                                       "the",       " the",        "rein",   "ing",           "\n",
                                       "ä",         "1234",        "x",      TEXT_TOOL_OPEN,  " ",
                                       "\n\n"};
    static const uint64_t masks[] = {UINT64_MAX, 3, 0};
    uint64_t rng = (uint64_t)77 << 32;
    for (size_t m = 0; m < 3; m++) {
        replay *r = opened(m == 1 ? 8 << 10 : 1 << 20);
        replay_weaken(r, masks[m]);
        size_t replaced = 0, changes = 0;
        for (int round = 0; round < 3000; round++) {
            char text[1024] = "";
            size_t at = 0;
            for (uint32_t i = 0, n = below(&rng, 24); i < n; i++)
                at +=
                    (size_t)snprintf(text + at, sizeof text - at, "%s", word[below(&rng, sizeof word / sizeof *word)]);
            int32_t changed;
            hy_ids canonical = encoded(text), out = applied(r, canonical.data, canonical.count, &changed);
            replaced += out.count != canonical.count;
            changes += changed >= 0;
            size_t prompt = out.count ? below(&rng, (uint32_t)out.count + 1) : 0;
            tokens t = {0};
            push(&t, out.data, prompt);
            if (out.count > prompt) push_split(&t, out.data + prompt, out.count - prompt, 2, &rng);
            replay_record(r, NULL, t.data, (int32_t)prompt, (int32_t)t.count);
            hy_ids_free(&canonical), hy_ids_free(&out);
            release(&t);
        }
        assert_true(replaced > 100 && changes > 100);
        replay_close(r);
    }
}

static void *work(void *arg)
{
    replay *r = arg;
    uint64_t rng = (uint64_t)(uintptr_t)&rng;
    static const char *const ends[] = {ANSWER NEXT, "The harbour is quiet.", ANSWER};
    for (int i = 0; i < 400; i++) {
        char prompt[256], text[1024];
        numbered(prompt, sizeof prompt, (int)below(&rng, 12));
        tokens s = sampled(ANSWER, below(&rng, 50)), t = answer(r, prompt, &s, i % 2);
        snprintf(text, sizeof text, "%s%s", prompt, ends[i % 3]);
        hy_ids out = applied_text(r, text, &(int32_t){0});
        hy_ids_free(&out);
        release(&s), release(&t);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    replay *r = opened(6 << 10); /* a few records: they are dropped while others read them */
    pthread_t thread[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&thread[i], NULL, work, r), 0);
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
    assert_true(replay_bytes(r) <= 6 << 10);
    replay_close(r);
}

static int open_tokenizer(void **state)
{
    (void)state;
    hy_error err = {0};
    if (text_tokenizer_open(TEST_SOURCE "/models/m3-nano", &tok, &err) != HY_OK) return -1;
    int32_t size = text_tokenizer_vocab_size(tok);
    pieces = calloc((size_t)size, sizeof *pieces);
    for (int32_t i = 0; i < size; i++) {
        size_t length;
        const char *bytes = text_tokenizer_bytes(tok, i, &length);
        if (length == 0 || text_tokenizer_is_added(tok, i)) continue;
        if (length == 1) byte_id[(unsigned char)*bytes] = i;
        pieces[piece_count++] = (struct piece){bytes, length, i};
    }
    qsort(pieces, piece_count, sizeof *pieces, compare_pieces);
    end_id = text_tokenizer_find(tok, END);
    return 0;
}

static int close_tokenizer(void **state)
{
    (void)state;
    free(pieces);
    text_tokenizer_close(tok);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),   cmocka_unit_test(test_boundary),     cmocka_unit_test(test_edited),
        cmocka_unit_test(test_parts),   cmocka_unit_test(test_salt),         cmocka_unit_test(test_several),
        cmocka_unit_test(test_markers), cmocka_unit_test(test_spelt_marker), cmocka_unit_test(test_conversations),
        cmocka_unit_test(test_memory),  cmocka_unit_test(test_long),         cmocka_unit_test(test_random),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
