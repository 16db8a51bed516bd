#include "tasks/make.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"

enum { HEAD_TOKENS = 252, TURN_TOKENS = 5 }; /* the fixed head; the marks around a message */

static void require(bool there)
{
    if (!there) abort();
}

json_t *task_json(json_t *j)
{
    require(j != NULL);
    return j;
}

json_t *task_string(const char *s)
{
    return task_json(json_string_nocheck(s));
}

/* ---- Conversations -------------------------------------------------------------------------------------------- */

/* Digits are tokens of their own; other text has some four characters a token. */
static size_t about_tokens(const char *s)
{
    size_t digits = 0, others = 0;
    for (; *s; s++) {
        if (*s >= '0' && *s <= '9')
            digits++;
        else
            others++;
    }
    return digits + others / 4 + 1;
}

static json_t *message(const char *role, const char *content)
{
    json_t *m = task_json(json_object());
    require(json_object_set_new_nocheck(m, "role", task_string(role)) == 0);
    require(json_object_set_new_nocheck(m, "content", task_string(content)) == 0);
    return m;
}

void task_append(task *t, json_t *m)
{
    require(json_array_append_new(t->messages, m) == 0);
}

static void append(task *t, const char *role, const char *content)
{
    task_append(t, message(role, content));
    t->tokens += about_tokens(content) + TURN_TOKENS;
}

void task_start(task *t, int family, const char *thinking, const char *system)
{
    t->family = family;
    t->thinking = thinking;
    t->messages = task_json(json_array());
    t->tokens = HEAD_TOKENS;
    if (system) append(t, "system", system);
}

void task_user(task *t, const char *text)
{
    append(t, "user", text);
}

void task_answer(task *t, const char *reasoning, const char *content)
{
    append(t, "assistant", content);
    if (!reasoning || !*reasoning) return;
    json_t *m = json_array_get(t->messages, json_array_size(t->messages) - 1);
    require(json_object_set_new_nocheck(m, "reasoning", task_string(reasoning)) == 0);
    t->tokens += about_tokens(reasoning) + 2;
}

void task_forget(task *t)
{
    json_t *m = json_array_get(t->messages, json_array_size(t->messages) - 1);
    size_t saved = about_tokens(task_text(t, json_array_size(t->messages) - 1, "reasoning")) + 2;
    if (json_object_del(m, "reasoning") != 0) return;
    t->tokens -= saved;
    require(json_object_set_new_nocheck(m, "weight", task_json(json_integer(0))) == 0);
}

void task_ask(task *t, int depth, json_t *expect)
{
    task_turn *grown = realloc(t->turns, (t->turn_count + 1) * sizeof *grown);
    require(grown != NULL);
    t->turns = grown;
    t->turns[t->turn_count++] =
        (task_turn){.message = json_array_size(t->messages) - 1, .depth = depth, .expect = expect};
}

bool task_wants(const task *t, int length)
{
    size_t n = json_array_size(t->messages);
    return !n || strcmp(task_text(t, n - 1, "role"), "assistant") != 0 || (length > 0 && t->tokens < (size_t)length);
}

const char *task_text(const task *t, size_t i, const char *field)
{
    const char *s = json_string_value(json_object_get(json_array_get(t->messages, i), field));
    return s ? s : "";
}

/* ---- Texts ---------------------------------------------------------------------------------------------------- */

void slots_clear(slots *s)
{
    memset(s->of, 0, sizeof s->of);
    s->used = 0;
}

void slots_text(slots *s, char letter, const char *text)
{
    s->of[(unsigned char)letter & 127] = text;
}

void slots_copy(slots *s, char letter, const char *text)
{
    size_t n = strlen(text) + 1;
    require(s->used + n <= sizeof s->store);
    memcpy(s->store + s->used, text, n);
    slots_text(s, letter, s->store + s->used);
    s->used += n;
}

/* Decimal digits at the end of text[24]. */
static const char *digits_of(int64_t value, char text[24])
{
    uint64_t rest = value < 0 ? -(uint64_t)value : (uint64_t)value;
    char *p = text + 23;
    *p = 0;
    do *--p = (char)('0' + rest % 10);
    while (rest /= 10);
    if (value < 0) *--p = '-';
    return p;
}

void slots_number(slots *s, char letter, int64_t value)
{
    char text[24];
    slots_copy(s, letter, digits_of(value, text));
}

void fill(buffer *out, const char *pattern, const slots *s)
{
    for (;;) {
        const char *open = strchr(pattern, '{');
        if (!open) break;
        buffer_append(out, pattern, (size_t)(open - pattern));
        if (open[1] && open[2] == '}') {
            const char *value = s->of[(unsigned char)open[1] & 127];
            require(value != NULL);
            buffer_string(out, value);
            pattern = open + 3;
        } else {
            buffer_char(out, '{');
            pattern = open + 1;
        }
    }
    buffer_string(out, pattern);
}

void put_number(buffer *out, int64_t value)
{
    char text[24];
    buffer_string(out, digits_of(value, text));
}

const char *text_of(const buffer *b)
{
    buffer_check(b);
    return b->data ? b->data : "";
}

void buffer_check(const buffer *b)
{
    require(buffer_ok(b));
}

static void put_front(buffer *b, const char *s)
{
    buffer copy = {0};
    buffer_string(&copy, s);
    buffer_append(&copy, text_of(b), b->length);
    buffer_free(b);
    *b = copy;
}

static bool ends_sentence(const buffer *b)
{
    return b->length && strchr(".!?", b->data[b->length - 1]);
}

void vary_typing(buffer *b, draw *d)
{
    static const char *const front[] = {"Hi, ", "Hello, ", "Hey, ", "Please: ", "Hi! ", "Hello! ", "Ok, ", "And "},
                             *const back[] = {" Thanks!", " Thank you.", " please", "\n", " "};
    if (!b->length) return;
    int64_t p = draw_between(d, 0, 99);
    if (p < 10)
        b->data[0] = (char)tolower((unsigned char)b->data[0]);
    else if (p < 18)
        for (size_t i = 0; i < b->length; i++)
            if ((unsigned char)b->data[i] < 128)
                b->data[i] = (char)(p < 16 ? tolower(b->data[i]) : toupper(b->data[i]));
    p = draw_between(d, 0, 99);
    if (p < 12 && ends_sentence(b))
        b->data[--b->length] = 0;
    else if (p >= 12 && p < 14 && !ends_sentence(b))
        buffer_char(b, '.');
    p = draw_between(d, 0, 99);
    if (p < 3)
        put_front(b, DRAW(d, front));
    else if (p < 5)
        buffer_string(b, DRAW(d, back));
}

/* ---- Marks ---------------------------------------------------------------------------------------------------- */

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool word_char(char c)
{
    return digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (unsigned char)c >= 128;
}

/* The run of digits with separators that starts at s: its end, and its value in *out; NULL when it does not fit. */
static const char *number_at(const char *s, int64_t *out)
{
    int64_t value = 0;
    const char *start = s;
    while (digit(*s) || (*s == ',' && s - start <= 3 && digit(s[1]) && digit(s[2]) && digit(s[3]) && !digit(s[4]))) {
        if (*s == ',') {
            start = s + 1; /* the next group */
        } else if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *s - '0', &value)) {
            return NULL;
        }
        s++;
    }
    *out = value;
    return s;
}

bool last_number(const char *text, int64_t *out)
{
    bool found = false;
    for (const char *s = text; *s;) {
        if (!digit(*s)) {
            s++;
            continue;
        }
        bool minus = s > text && s[-1] == '-' && (s - 1 == text || !(word_char(s[-2]) || s[-2] == ')'));
        int64_t value = 0;
        const char *end = number_at(s, &value);
        found = end != NULL;
        if (!end) end = s + strspn(s, "0123456789");
        if (end[0] == '.' && digit(end[1])) {
            end++;
            for (; digit(*end); end++) found = found && *end == '0';
        }
        *out = minus ? -value : value;
        s = end;
    }
    return found;
}

bool has_word(const char *text, const char *word)
{
    size_t n = strlen(word);
    for (const char *s = text; *s; s++) {
        if (strncasecmp(s, word, n) != 0) continue;
        if ((s == text || !word_char(s[-1]) || !word_char(*word)) && (!word_char(s[n]) || !word_char(word[n - 1])))
            return true;
    }
    return false;
}
