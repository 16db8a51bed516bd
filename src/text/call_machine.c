/*
 * Two layers. The lower one finds namespace marks and gives text and marks to the upper one; a mark is never cut for
 * it. In the upper one a mark begins a tag, which is gathered until it is known what it is, and then the state decides.
 */
#include "text/call_machine.h"

#include "base/utf8.h"
#include "text/tool_calls.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define NS TEXT_TOOL_NAMESPACE

enum { NS_LENGTH = sizeof NS - 1 };

enum {
    CONTENT, /* outside of blocks */
    BLOCK,   /* between calls */
    DAMAGED, /* the same after a fault: text is content */
    CALL,    /* between the parameters of a call */
    STRAY,   /* behind text that stood there: what remains of the call is overlooked */
    BARE,    /* in the value of a parameter without its opening tag */
    ELEMENT,
};

/* What a tag turns out to be. NONE: no tag of this grammar. END: that of an element which is text. */
typedef enum verdict { PENDING, NONE, OPEN, CLOSE, INVOKE, END } verdict;

/* How much of `<invoke name=` a tag begins with. */
enum { HEAD_SPACE = 7, HEAD_DONE = 12, HEAD_LOST = 255 };

/* Ends that a tag in a literal element may become. */
enum { WANT_OWN = 1, WANT_INVOKE = 2, WANT_BLOCK = 4, WANT_ALL = 7 };

static bool space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static size_t span_space(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && space(s[i])) i++;
    return i;
}

static call_answer tell(call_machine *m, call_event event, const char *text, size_t length)
{
    if (m->stopped) return CALL_STOP;
    call_answer a = m->fn(m->user, event, text, length);
    if (a == CALL_STOP) m->stopped = true;
    return a;
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

/* A string that may be part of a message: printable, short. */
static const char *shown(const char *s, size_t length, char out[48])
{
    size_t n = 0;
    for (; n < length && n < 44; n++) out[n] = s[n] >= 0x20 && s[n] < 0x7F ? s[n] : '?';
    out[n] = 0;
    if (n < length) strcpy(out + n, "...");
    return out;
}

static __attribute__((format(printf, 3, 4))) void complain(call_machine *m, call_event event, const char *format, ...)
{
    char text[240];
    va_list list;
    va_start(list, format);
    int n = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    m->depth = 0, m->names.length = 0, m->literal = false;
    tell(m, event, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
}

/* ---- Names of open elements ---------------------------------------------------------------------------------------
 */

static const char *own_name(const call_machine *m, size_t *length)
{
    size_t start = m->starts[m->depth - 1];
    *length = m->names.length - start;
    return m->names.data ? m->names.data + start : "";
}

static void open_element(call_machine *m, const char *name, size_t length)
{
    m->starts[m->depth++] = m->names.length;
    buffer_append(&m->names, name, length);
    m->state = ELEMENT;
    m->behind_child = false;
    m->literal = tell(m, CALL_OPEN, name, length) == CALL_LITERAL;
}

static void close_element(call_machine *m)
{
    m->names.length = m->starts[--m->depth];
    m->literal = false;
    m->behind_child = true;
    m->beside = 0;
    if (!m->depth) m->state = CALL;
    tell(m, CALL_CLOSE, "", 0);
}

static void element_text(call_machine *m, const char *s, size_t n)
{
    if (n && tell(m, CALL_TEXT, s, n) == CALL_LITERAL) m->literal = true;
}

/* In a literal element: what could have been the end of the whole answer is text after all. */
static void release_held(call_machine *m)
{
    if (m->held.length) element_text(m, m->held.data, m->held.length);
    buffer_clear(&m->held);
}

/* ---- Text by state ------------------------------------------------------------------------------------------------
 */

/* White space behind a block belongs to it unless more follows. */
static size_t content_text(call_machine *m, const char *s, size_t n)
{
    if (m->behind_block) {
        size_t white = span_space(s, n);
        buffer_append(&m->held, s, white);
        if (white == n) return n;
        m->behind_block = false;
        if (m->held.length) tell(m, CALL_CONTENT, m->held.data, m->held.length);
        buffer_clear(&m->held);
        s += white, n -= white;
        tell(m, CALL_CONTENT, s, n);
        return white + n;
    }
    tell(m, CALL_CONTENT, s, n);
    return n;
}

static size_t block_text(call_machine *m, const char *s, size_t n)
{
    char text[48];
    size_t white = span_space(s, n);
    if (white < n) {
        complain(m, CALL_FAULT, "a block of tool calls has something else than an invoke: %s",
                 shown(s + white, n - white, text));
        m->state = DAMAGED;
    }
    return white;
}

static size_t call_text(call_machine *m, const char *s, size_t n)
{
    size_t white = span_space(s, n);
    if (white < n) {
        tell(m, CALL_REPAIR, "", 0);
        buffer_clear(&m->held);
        m->state = STRAY;
    }
    return white;
}

/* A stream must not fall silent: when the end of the call does not come, it is over. */
static size_t stray_text(call_machine *m, const char *s, size_t n)
{
    size_t room = CALL_STRAY_LIMIT - m->held.length;
    if (n > room) n = room;
    buffer_append(&m->held, s, n);
    if (m->held.length < CALL_STRAY_LIMIT) return n;
    complain(m, CALL_FAULT, "a tool call goes on with text where an argument or its end should stand");
    m->state = DAMAGED;
    tell(m, CALL_CONTENT, m->held.data, m->held.length);
    buffer_clear(&m->held);
    return n;
}

/* Ends of a call and of a block in a string may be the true ones, that of the string being missing. They are as long as
 * nothing but white space follows. */
static size_t string_text(call_machine *m, const char *s, size_t n)
{
    if (m->held.length) {
        size_t white = span_space(s, n);
        buffer_append(&m->held, s, white);
        if (white) return white;
        release_held(m);
    }
    element_text(m, s, n);
    return n;
}

/* Text between the elements of an element has its place, but not much of it. */
static size_t text_behind_child(call_machine *m, const char *s, size_t n)
{
    size_t room = CALL_STRAY_LIMIT - m->beside;
    bool most = n > room;
    if (most) n = room;
    m->beside += n;
    element_text(m, s, n);
    if (!most) return n;
    complain(m, CALL_FAULT, "a tool call goes on with text between the elements of an argument");
    m->state = DAMAGED;
    return n;
}

static size_t state_text(call_machine *m, const char *s, size_t n)
{
    switch (m->state) {
    case CONTENT: return content_text(m, s, n);
    case BLOCK: return block_text(m, s, n);
    case DAMAGED: tell(m, CALL_CONTENT, s, n); return n;
    case CALL: return call_text(m, s, n);
    case STRAY: return stray_text(m, s, n);
    case BARE: buffer_append(&m->held, s, n); return n;
    default: break;
    }
    if (m->literal) return string_text(m, s, n);
    if (m->behind_child) return text_behind_child(m, s, n);
    element_text(m, s, n);
    return n;
}

static void put_text(call_machine *m, const char *s, size_t n)
{
    while (n && !m->stopped) {
        size_t used = state_text(m, s, n);
        s += used, n -= used;
    }
}

/* ---- What a tag is ------------------------------------------------------------------------------------------------
 */

static bool name_valid(const call_machine *m)
{
    const char *s = m->tag.data + m->name_at;
    size_t left = m->name_end - m->name_at;
    while (left) {
        size_t n = utf8_valid(s, left);
        if (!n) return false;
        s += n, left -= n;
    }
    return m->name_end > m->name_at;
}

static bool named(const call_machine *m, const char *name)
{
    size_t n = m->name_end - m->name_at;
    return n == strlen(name) && memcmp(m->tag.data + m->name_at, name, n) == 0;
}

/* Behind `<invoke name=`: the name in either quotes or none, and `>`. */
static verdict judge_name(call_machine *m, char c)
{
    size_t n = m->tag.length;
    if (!m->name_at) {
        bool quoted = c == '"' || c == '\'';
        m->quote = quoted ? c : '>';
        m->name_at = quoted ? n : n - 1;
        if (quoted) return PENDING;
    }
    if (m->name_end) return c == '>' ? INVOKE : NONE;
    if (c != m->quote) return PENDING;
    m->name_end = n - 1;
    if (!name_valid(m)) return NONE;
    return m->quote == '>' ? INVOKE : PENDING;
}

/* In a literal element: its own end, or one of those that could end the whole answer. */
static verdict judge_literal(call_machine *m, char c)
{
    static const char invoke[] = "</invoke>", block[] = "</tool_call>";
    size_t length, i = m->tag.length - 1;
    const char *own = own_name(m, &length);
    char want = '>';
    if (i < 2)
        want = "</"[i];
    else if (i - 2 < length)
        want = own[i - 2];
    if (c != want) m->wanted &= (unsigned char)~WANT_OWN;
    if (i >= sizeof invoke || c != invoke[i]) m->wanted &= (unsigned char)~WANT_INVOKE;
    if (i >= sizeof block || c != block[i]) m->wanted &= (unsigned char)~WANT_BLOCK;
    if (!m->wanted) return NONE;
    if (c != '>') return PENDING;
    return m->wanted & WANT_OWN ? END : CLOSE;
}

/* Follows `<invoke name=`, whose first character may be missing. */
static void follow_head(call_machine *m, char c)
{
    static const char head[] = "<invokename=";
    if (m->head == HEAD_LOST) return;
    if (m->tag.length == 1 && c == 'i') m->head = 1;
    if (c == head[m->head])
        m->head++;
    else if (m->head != HEAD_SPACE || !space(c))
        m->head = HEAD_LOST;
}

/* The tag has got its character c. */
static verdict judge(call_machine *m, char c)
{
    static const char block[] = "<tool_call>";
    const char *t = m->tag.data;
    size_t n = m->tag.length;
    if (m->literal) return judge_literal(m, c);
    if (!c || n > CALL_TAG_LIMIT) return NONE;
    if (m->head == HEAD_DONE) return judge_name(m, c);
    follow_head(m, c);
    if (t[0] != '<') return m->state <= DAMAGED && m->head != HEAD_LOST ? PENDING : NONE;
    if (m->state == CONTENT && m->head == HEAD_LOST && (n >= sizeof block || memcmp(t, block, n) != 0)) return NONE;
    if (c != '>') return PENDING;
    bool close = t[1] == '/';
    m->name_at = close ? 2 : 1, m->name_end = n - 1;
    if (!name_valid(m) || t[m->name_at] == '/') return NONE;
    return close ? CLOSE : OPEN;
}

/* ---- What a tag does ----------------------------------------------------------------------------------------------
 */

static void put_tag(call_machine *m)
{
    put_text(m, m->tag.data, m->tag.length);
}

static void begin_call(call_machine *m)
{
    if (m->tag.data[0] != '<') tell(m, CALL_REPAIR, "", 0);
    m->state = CALL;
    tell(m, CALL_BEGIN, m->tag.data + m->name_at, m->name_end - m->name_at);
}

static void begin_block(call_machine *m)
{
    buffer_clear(&m->held);
    m->behind_block = false;
    m->state = BLOCK;
    tell(m, CALL_BLOCK, "", 0);
}

static void end_block(call_machine *m)
{
    m->state = CONTENT;
    m->behind_block = true;
    tell(m, CALL_BLOCK_END, "", 0);
}

static void tag_in_content(call_machine *m, verdict v)
{
    if (v == OPEN) { /* no other than that of a block: see judge */
        begin_block(m);
    } else if (v == INVOKE) { /* without a block: what is meant is plain */
        begin_block(m);
        tell(m, CALL_REPAIR, "", 0);
        begin_call(m);
    } else {
        put_tag(m);
    }
}

static void tag_in_damaged(call_machine *m, verdict v)
{
    if (v == INVOKE)
        begin_call(m);
    else if (v == CLOSE && named(m, "tool_call"))
        end_block(m);
    else if ((v == CLOSE && named(m, "invoke")) || (v == OPEN && named(m, "tool_call")))
        m->state = BLOCK;
    else
        put_tag(m);
}

/* The tag goes on as one behind a fault. */
static void damage(call_machine *m, verdict v)
{
    m->state = DAMAGED;
    tag_in_damaged(m, v);
}

static void tag_in_block(call_machine *m, verdict v)
{
    char text[48];
    if (v == INVOKE) {
        begin_call(m);
    } else if (v == CLOSE && named(m, "tool_call")) {
        end_block(m);
    } else {
        bool invoke = m->tag.length >= 7 && memcmp(m->tag.data, "<invoke", 7) == 0;
        if (invoke)
            complain(m, CALL_FAULT, "an invoke of a tool call has no name");
        else
            complain(m, CALL_FAULT, "a block of tool calls has something else than an invoke: %s",
                     shown(m->tag.data, m->tag.length, text));
        damage(m, v);
    }
}

static void end_call(call_machine *m)
{
    m->state = BLOCK;
    tell(m, CALL_END, "", 0);
}

static void tag_in_call(call_machine *m, verdict v)
{
    char text[48];
    if (v == OPEN) {
        open_element(m, m->tag.data + m->name_at, m->name_end - m->name_at);
    } else if (v == CLOSE && named(m, "invoke")) {
        end_call(m);
    } else if (v == NONE && (!m->tag.length || m->tag.data[0] != '<')) {
        buffer_clear(&m->held);
        m->state = BARE;
        put_tag(m);
    } else {
        complain(m, CALL_FAULT, "a tool call goes on with neither an argument nor its end: %s",
                 shown(m->tag.data, m->tag.length, text));
        damage(m, v);
    }
}

static void tag_in_stray(call_machine *m, verdict v)
{
    if (v == CLOSE && named(m, "invoke")) {
        buffer_clear(&m->held);
        end_call(m);
    } else if (v == INVOKE || (v == CLOSE && named(m, "tool_call"))) {
        complain(m, CALL_FAULT, "a tool call with text between its arguments has no end");
        buffer_clear(&m->held);
        damage(m, v);
    } else {
        put_tag(m);
    }
}

/* The value is known now, and its name. */
static void tag_behind_bare(call_machine *m, verdict v)
{
    char text[48];
    if (v == CLOSE && !named(m, "invoke") && !named(m, "tool_call")) {
        tell(m, CALL_REPAIR, "", 0);
        open_element(m, m->tag.data + m->name_at, m->name_end - m->name_at);
        element_text(m, m->held.data, m->held.length);
        close_element(m);
    } else {
        complain(m, CALL_FAULT, "a tool call goes on with neither an argument nor its end: %s",
                 shown(m->held.data, m->held.length, text));
        m->state = DAMAGED;
        put_text(m, m->held.data, m->held.length);
        tag_in_damaged(m, v);
    }
    buffer_clear(&m->held);
}

static void tag_in_string(call_machine *m, verdict v)
{
    if (v == CLOSE) {
        buffer_append(&m->held, NS, NS_LENGTH);
        buffer_append(&m->held, m->tag.data, m->tag.length);
        return;
    }
    release_held(m);
    if (v == END) {
        close_element(m);
    } else {
        element_text(m, NS, NS_LENGTH);
        element_text(m, m->tag.data, m->tag.length);
    }
}

static void tag_in_element(call_machine *m, verdict v)
{
    char want[48], text[48];
    size_t length;
    const char *own = own_name(m, &length);
    if (v == OPEN && m->depth < CALL_NESTING_LIMIT - 1) {
        open_element(m, m->tag.data + m->name_at, m->name_end - m->name_at);
    } else if (v == CLOSE && m->name_end - m->name_at == length && memcmp(m->tag.data + 2, own, length) == 0) {
        close_element(m);
    } else {
        if (v == OPEN)
            complain(m, CALL_FAULT, "arguments of a tool call are nested deeper than %d levels", CALL_NESTING_LIMIT);
        else
            complain(m, CALL_FAULT, "in a tool call </%s> is expected, not %s", shown(own, length, want),
                     shown(m->tag.data, m->tag.length, text));
        damage(m, v);
    }
}

static void act(call_machine *m, verdict v)
{
    m->tagging = false;
    switch (m->state) {
    case CONTENT: tag_in_content(m, v); break;
    case BLOCK: tag_in_block(m, v); break;
    case DAMAGED: tag_in_damaged(m, v); break;
    case CALL: tag_in_call(m, v); break;
    case STRAY: tag_in_stray(m, v); break;
    case BARE: tag_behind_bare(m, v); break;
    default: m->literal ? tag_in_string(m, v) : tag_in_element(m, v); break;
    }
}

/* ---- Text and marks ------------------------------------------------------------------------------------------------
 */

static size_t tag_text(call_machine *m, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        buffer_char(&m->tag, s[i]);
        if (!buffer_ok(&m->tag)) m->stopped = true;
        if (m->stopped) return n;
        verdict v = judge(m, s[i]);
        if (v == PENDING) continue;
        m->taken += i + 1;
        act(m, v);
        return i + 1;
    }
    m->taken += n;
    return n;
}

static void on_text(call_machine *m, const char *s, size_t n)
{
    while (n && !m->stopped) {
        size_t used;
        if (m->tagging) {
            used = tag_text(m, s, n);
        } else {
            used = state_text(m, s, n);
            m->taken += used;
        }
        s += used, n -= used;
    }
}

static void on_mark(call_machine *m)
{
    if (m->tagging) act(m, NONE);
    m->taken += NS_LENGTH;
    buffer_clear(&m->tag);
    m->tagging = true;
    m->head = 0, m->quote = 0, m->wanted = WANT_ALL;
    m->name_at = m->name_end = 0;
}

/* Where a mark begins that is whole or that the end of the text cuts; `end` if nowhere. */
static const char *find_mark(const char *at, const char *end)
{
    while ((at = memchr(at, NS[0], (size_t)(end - at)))) {
        size_t n = (size_t)(end - at) < NS_LENGTH ? (size_t)(end - at) : NS_LENGTH;
        if (memcmp(at, NS, n) == 0) return at;
        at++;
    }
    return end;
}

/* A mark that an earlier piece began goes on with c, or is text: then c is to be looked at again. Of what a mark begins
 * with only its third character can begin one too. */
static bool go_on_with_mark(call_machine *m, char c)
{
    if (c == NS[m->mark]) {
        if (++m->mark == NS_LENGTH) m->mark = 0, on_mark(m);
        return true;
    }
    size_t text = m->mark == 3 ? 2 : m->mark;
    m->mark -= (unsigned char)text;
    on_text(m, NS, text);
    return false;
}

void call_machine_feed(call_machine *m, const char *text, size_t length)
{
    const char *at = text, *end = text + length;
    while (at < end && !m->stopped) {
        if (m->mark) {
            at += go_on_with_mark(m, *at);
            continue;
        }
        const char *mark = find_mark(at, end);
        on_text(m, at, (size_t)(mark - at));
        size_t left = (size_t)(end - mark);
        at = mark + (left < NS_LENGTH ? left : NS_LENGTH);
        if (left >= NS_LENGTH)
            on_mark(m);
        else
            m->mark = (unsigned char)left;
    }
}

void call_machine_finish(call_machine *m)
{
    char text[48];
    size_t mark = m->mark, length = 0;
    m->mark = 0;
    on_text(m, NS, mark);
    /* An end that is cut ends what it stands behind; what begins is no text. */
    bool ends = m->tagging && m->tag.length > 1 && m->tag.data[1] == '/';
    if (ends && m->state == ELEMENT && !m->literal) close_element(m);
    m->tagging = false;
    if (m->state == BLOCK || m->state == DAMAGED) {
        complain(m, CALL_CUT, "the block of tool calls has no end");
    } else if (m->state == ELEMENT) {
        const char *own = own_name(m, &length);
        complain(m, CALL_CUT, "the text ends inside the argument %s of a tool call", shown(own, length, text));
    } else if (m->state != CONTENT) {
        bool held = m->state != CALL && m->held.length;
        complain(m, CALL_CUT, "the text ends inside a tool call");
        if (held) tell(m, CALL_CONTENT, m->held.data, m->held.length);
    }
    buffer_clear(&m->held);
    m->behind_block = false;
    m->state = CONTENT;
}

/* ---- The rest ------------------------------------------------------------------------------------------------------
 */

void call_machine_begin(call_machine *m, call_event_fn fn, void *user)
{
    *m = (call_machine){.fn = fn, .user = user};
}

void call_machine_free(call_machine *m)
{
    buffer_free(&m->tag);
    buffer_free(&m->held);
    buffer_free(&m->names);
}

size_t call_machine_before_block(const call_machine *m)
{
    return m->taken - m->tag.length - NS_LENGTH;
}

bool call_machine_in_block(const call_machine *m)
{
    return m->state != CONTENT;
}

bool call_machine_ok(const call_machine *m)
{
    return buffer_ok(&m->tag) && buffer_ok(&m->held) && buffer_ok(&m->names);
}
