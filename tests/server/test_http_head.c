/* Heads of requests and bodies in chunks: what is read, what is refused and with which status, and that neither depends
 * on how the bytes come. */
#include "server_helpers.h"

#include "server/http_head.h"

enum { MAX_BYTES = 4096, MAX_FIELDS = 16, LIMIT = 1 << 16 };

/* What became of bytes that came in pieces of at most `step`; 0: all at once. */
typedef struct outcome {
    int status; /* 0: a head */
    const char *why;
    bool done;
    size_t used;
    http_head head;
} outcome;

static outcome feed_in(const char *text, size_t length, size_t first, size_t step)
{
    outcome o = {0};
    http_head_reader r = {0};
    size_t n = first;
    while (o.used < length && !r.done && !o.status) {
        size_t count = n && n < length - o.used ? n : length - o.used;
        size_t used = http_head_feed(&r, text + o.used, count, MAX_BYTES, MAX_FIELDS, &o.status, &o.why);
        if (!o.status && !r.done) assert_int_equal(used, count);
        assert_in_range(used, 1, count);
        o.used += used, n = step;
    }
    o.done = r.done;
    if (r.done) o.status = http_head_parse(&o.head, &r, &o.why);
    assert_true(!o.status || (o.why && *o.why && !strchr(o.why, '\n')));
    buffer_free(&r.text);
    return o;
}

static outcome feed(const char *text)
{
    return feed_in(text, strlen(text), 0, 0);
}

static void drop(outcome *o)
{
    http_head_free(&o->head);
}

/* The text is refused with this status, as soon as its last byte is there and however it comes. */
static void refused_bytes(const char *text, size_t length, int status, const char *why)
{
    for (size_t first = 0; first <= length; first++) {
        outcome o = feed_in(text, length, first, first == 1 ? 1 : 0);
        if (o.status != status || !strstr(o.why ? o.why : "", why))
            fail_msg("%s: split at %zu: %d %s, want %d %s", text, first, o.status, o.why ? o.why : "", status, why);
        drop(&o);
    }
}

static void refused(const char *text, int status, const char *why)
{
    refused_bytes(text, strlen(text), status, why);
}

/* The same for lines behind a request line and a Host. */
static void refused_fields(const char *lines, int status, const char *why)
{
    char text[1024];
    snprintf(text, sizeof text, "POST /a HTTP/1.1\r\nHost: x\r\n%s\r\n", lines);
    refused(text, status, why);
}

static outcome fields(const char *lines)
{
    char text[1024];
    snprintf(text, sizeof text, "POST /a HTTP/1.1\r\nHost: x\r\n%s\r\n", lines);
    outcome o = feed(text);
    if (o.status || !o.done) fail_msg("%s: %d %s", lines, o.status, o.why ? o.why : "not whole");
    return o;
}

/* ---- Heads ------------------------------------------------------------------------------------------------------ */

static const char whole[] = "\r\n\r\nPOST /v1/a%20b?x=1&y HTTP/1.1\r\nHost: example.org:80\r\nX-Empty:\r\n"
                            "X-Space: \t two words\t \r\nx-high: \xc3\xa9\r\nConnection: Keep-Alive, x\r\n"
                            "Content-Length: 0012\r\nExpect: 100-Continue\r\n\r\nNEXT";

static void check_whole(const outcome *o)
{
    const http_head *h = &o->head;
    assert_int_equal(o->status, 0);
    assert_int_equal(o->used, sizeof whole - 1 - 4); /* what follows is not taken */
    assert_string_equal(h->method, "POST");
    assert_string_equal(h->target, "/v1/a%20b?x=1&y");
    assert_int_equal(h->path_length, strlen("/v1/a%20b"));
    assert_memory_equal(h->path, "/v1/a%20b", h->path_length);
    assert_string_equal(h->query, "x=1&y");
    assert_int_equal(h->minor, 1);
    assert_int_equal(h->field_count, 7);
    assert_string_equal(http_head_field(h, "host"), "example.org:80");
    assert_string_equal(http_head_field(h, "x-empty"), "");
    assert_string_equal(http_head_field(h, "X-SPACE"), "two words");
    assert_string_equal(http_head_field(h, "X-High"), "\xc3\xa9");
    assert_null(http_head_field(h, "X-Spac"));
    assert_int_equal(h->content_length, 12);
    assert_true(h->keep_alive && h->expects_continue && !h->expects_other && !h->chunked);
}

/* At every byte, at every pair of bytes, byte by byte: the same head. */
static void split_everywhere(void **state)
{
    (void)state;
    for (size_t first = 0; first < sizeof whole; first++) {
        for (size_t step = 0; step < 4; step++) {
            outcome o = feed_in(whole, sizeof whole - 1, first, step);
            assert_true(o.done);
            check_whole(&o);
            drop(&o);
        }
    }
    for (size_t length = 0; length < sizeof whole - 1 - 4;
         length++) { /* any beginning of it is not refused and not whole */
        outcome o = feed_in(whole, length, 0, 0);
        assert_true(!o.done && !o.status);
        assert_int_equal(o.used, length);
    }
}

static void request_lines(void **state)
{
    (void)state;
    static const struct {
        const char *line, *method, *path, *query;
        int minor;
    } good[] = {{"GET / HTTP/1.1", "GET", "/", NULL, 1},
                {"get /x?y HTTP/1.0", "get", "/x", "y", 0},
                {"OPTIONS * HTTP/1.1", "OPTIONS", "*", NULL, 1},
                {"M-SEARCH /? HTTP/1.1", "M-SEARCH", "/", "", 1},
                {"GET http://h:1/p?q HTTP/1.1", "GET", "/p", "q", 1},
                {"GET HTTPS://h HTTP/1.1", "GET", "/", NULL, 1},
                {"GET http://h?a=/b HTTP/1.1", "GET", "/", "a=/b", 1},
                {"GET //a//b?c?d HTTP/1.1", "GET", "//a//b", "c?d", 1},
                {"GET /%zz HTTP/1.1", "GET", "/%zz", NULL, 1}}; /* not looked into here */
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char text[200];
        snprintf(text, sizeof text, "%s\r\nHost: x\r\n\r\n", good[i].line);
        outcome o = feed(text);
        if (o.status || !o.done) fail_msg("%s: %s", text, o.why);
        assert_string_equal(o.head.method, good[i].method);
        assert_int_equal(o.head.path_length, strlen(good[i].path));
        assert_memory_equal(o.head.path, good[i].path, o.head.path_length);
        if (good[i].query)
            assert_string_equal(o.head.query, good[i].query);
        else
            assert_null(o.head.query);
        assert_int_equal(o.head.minor, good[i].minor);
        drop(&o);
    }
    static const struct {
        const char *line;
        int status;
        const char *why;
    } bad[] = {{"GET /", 400, "METHOD TARGET"},
               {"GET / HTTP/1.1 ", 400, "METHOD TARGET"},
               {"GET  / HTTP/1.1", 400, "METHOD TARGET"},
               {"GET / x HTTP/1.1", 400, "METHOD TARGET"},
               {"GET /\tHTTP/1.1", 400, "METHOD TARGET"},
               {"GET / HTTP/2.0", 505, "HTTP/1.1"},
               {"GET / HTTP/1.2", 505, "HTTP/1.1"},
               {"GET / HTTP/1.10", 505, "HTTP/1.1"},
               {"GET / http/1.1", 400, "version"},
               {"GET / HTTP/x", 400, "version"},
               {"GET / 1.1", 400, "version"},
               {"GET x HTTP/1.1", 400, "no path"},
               {"GET ftp://h/ HTTP/1.1", 400, "no path"},
               {"CONNECT h:443 HTTP/1.1", 400, "no path"},
               {"GET ** HTTP/1.1", 400, "no path"},
               {"GET /\xc3\xa9 HTTP/1.1", 400, "encoded"},
               {"GET /\x7f HTTP/1.1", 400, "encoded"},
               {"GET /\x01 HTTP/1.1", 400, "encoded"},
               {"GET /health#x HTTP/1.1", 400, "encoded"},
               {"GET /a\rb HTTP/1.1", 400, "CR without LF"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[200];
        snprintf(text, sizeof text, "%s\r\nHost: x\r\n\r\n", bad[i].line);
        refused(text, bad[i].status, bad[i].why);
    }
}

/* What is no HTTP is told so before any line has ended. */
static void other_protocols(void **state)
{
    (void)state;
    refused("\x16\x03\x01\x02", 400, "does not begin with a method");
    refused(" GET", 400, "does not begin with a method");
    refused("{", 400, "does not begin with a method");
    refused("GET\n", 400, "does not begin with a method");
    refused("AAAAAAAAAAAAAAAAAAAAAAAAA", 400, "no method is so long"); /* 25 */
    refused_bytes("\0", 1, 400, "does not begin with a method");
    outcome o = feed("AAAAAAAAAAAAAAAAAAAAAAAA"); /* 24 */
    assert_int_equal(o.status, 0);
}

static void line_ends(void **state)
{
    (void)state;
    refused("GET / HTTP/1.1\n", 400, "CR LF");
    refused("GET / HTTP/1.1\r\nHost: x\n", 400, "CR LF");
    refused("GET / HTTP/1.1\r\nHost: x\r\n\n", 400, "CR LF");
    refused("\n", 400, "method");
    refused("GET / HTTP/1.1\r\nHost: x\r\nA: b\rC: d\r\n\r\n", 400, "CR without LF");
    refused("GET / HTTP/1.1\r\nHost: x\r\nA: b\r\r\n\r\n", 400, "CR without LF");
    refused("\rGET / HTTP/1.1\r\nHost: x\r\n\r\n", 400, "CR without LF");
    static const char nul[] = "GET / HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n";
    refused_bytes(nul, sizeof nul - 1, 400, "NUL");
}

static void field_lines(void **state)
{
    (void)state;
    refused_fields(" folded\r\n", 400, "folded");
    refused_fields("\tfolded\r\n", 400, "folded");
    refused_fields("A: b\r\n c\r\n", 400, "folded");
    refused_fields("A: b\r\n \r\n", 400, "folded");
    refused_fields("A\r\n", 400, "no name");
    refused_fields(": b\r\n", 400, "no name");
    refused_fields("A : b\r\n", 400, "other characters"); /* the space before ':' that hides a header from some */
    refused_fields("A\t: b\r\n", 400, "other characters");
    refused_fields("A(: b\r\n", 400, "other characters");
    refused_fields("\xc3\xa9: b\r\n", 400, "other characters");
    refused_fields("A: b\x01\r\n", 400, "control");
    refused_fields("A: b\x7f\r\n", 400, "control");
    refused_fields("A: b\x1b[0m\r\n", 400, "control");
    outcome o = fields("!#$%&'*+-.^_`|~09azAZ: : \"q\" \t, x:y\r\n");
    assert_string_equal(http_head_field(&o.head, "!#$%&'*+-.^_`|~09azAZ"), ": \"q\" \t, x:y");
    drop(&o);
    o = fields("A: 1\r\na: 2\r\n"); /* the first one */
    assert_string_equal(http_head_field(&o.head, "A"), "1");
    drop(&o);
}

static void hosts(void **state)
{
    (void)state;
    refused("GET / HTTP/1.1\r\n\r\n", 400, "one Host");
    refused_fields("Host: x\r\n", 400, "one Host");
    refused_fields("HOST: y\r\n", 400, "one Host");
    refused("GET / HTTP/1.0\r\nHost: x\r\nHost: x\r\n\r\n", 400, "one Host");
    outcome o = feed("GET / HTTP/1.0\r\n\r\n");
    assert_true(o.done && !o.status && !o.head.keep_alive);
    drop(&o);
}

static void connections(void **state)
{
    (void)state;
    static const struct {
        int minor;
        const char *lines;
        bool keep;
    } all[] = {{1, "", true},
               {1, "Connection: close\r\n", false},
               {1, "Connection: CLOSE\r\n", false},
               {1, "Connection: upgrade, close\r\n", false},
               {1, "Connection: ,, \t close \t,x\r\n", false},
               {1, "Connection: x\r\nConnection: close\r\n", false},
               {1, "Connection: closed\r\n", true},
               {1, "Connection: no close\r\n", true},
               {1, "Connection:\r\n", true},
               {0, "", false},
               {0, "Connection: keep-alive\r\n", true},
               {0, "Connection: Keep-Alive, x\r\n", true},
               {0, "Connection: keep-alive-not\r\n", false}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char text[200];
        snprintf(text, sizeof text, "GET / HTTP/1.%d\r\nHost: x\r\n%s\r\n", all[i].minor, all[i].lines);
        outcome o = feed(text);
        assert_int_equal(o.status, 0);
        if (o.head.keep_alive != all[i].keep) fail_msg("%s", text);
        drop(&o);
    }
    outcome o = fields("Expect: 200-ok\r\n");
    assert_true(o.head.expects_other && !o.head.expects_continue);
    drop(&o);
    o = feed("GET / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n"); /* 1.0 knows no such thing */
    assert_true(!o.status && !o.head.expects_other && !o.head.expects_continue);
    drop(&o);
}

static void lengths(void **state)
{
    (void)state;
    refused_fields("Content-Length: 5\r\nContent-Length: 6\r\n", 400, "more than once");
    refused_fields("Content-Length: 5\r\nContent-Length: 5\r\n", 400, "more than once");
    refused_fields("Content-Length: 5\r\ncontent-length:\r\n", 400, "more than once");
    static const char *const none[] = {"",    "+5",  "-5",  "-0", "5, 5",   "5,5",     "0x5",
                                       "5.0", "5e1", "5 5", "x",  "5\t\t5", "\xd9\xa5"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        char line[64];
        snprintf(line, sizeof line, "Content-Length: %s\r\n", none[i]);
        refused_fields(line, 400, "no number");
    }
    refused_fields("Content-Length: 18446744073709551615\r\n", 413, "too large");
    refused_fields("Content-Length: 18446744073709551616\r\n", 413, "too large"); /* 2^64, which must not be 0 */
    refused_fields("Content-Length: 18446744073709551621\r\n", 413, "too large");
    refused_fields("Content-Length: 99999999999999999999999999999999\r\n", 413, "too large");
    outcome o = fields("Content-Length: 9223372036854775807\r\n");
    assert_true(o.head.content_length == 9223372036854775807u);
    drop(&o);
    o = fields("Content-Length:\t 0000000000000000000000000000000000007 \t\r\n");
    assert_int_equal(o.head.content_length, 7);
    drop(&o);
}

static void codings(void **state)
{
    (void)state;
    static const char *const other[] = {"",
                                        "identity",
                                        "gzip",
                                        "gzip, chunked",
                                        "chunked, chunked",
                                        "chunked, gzip",
                                        "chunked,",
                                        "chunked;x=1",
                                        "xchunked",
                                        "chunked x",
                                        "\"chunked\"",
                                        "\013chunked"};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        char line[64];
        snprintf(line, sizeof line, "Transfer-Encoding: %s\r\n", other[i]);
        bool control = other[i][0] == 0x0b;
        refused_fields(line, control ? 400 : 501, control ? "control" : "chunked");
    }
    refused_fields("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 501, "chunked");
    refused_fields("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", 501, "chunked");
    refused_fields("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", 400, "both");
    refused_fields("Content-Length: 5\r\ntransfer-encoding: chunked\r\n", 400, "both");
    refused_fields("Content-Length: x\r\nTransfer-Encoding: gzip\r\n", 400, "both");
    refused_fields("Transfer-Encoding : chunked\r\n", 400, "other characters");
    refused_fields("A: b\r\n\tTransfer-Encoding: chunked\r\n", 400, "folded");
    refused("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "HTTP/1.0");
    outcome o = fields("Transfer-Encoding: \t CHUNKED \t\r\n");
    assert_true(o.head.chunked && o.head.content_length == 0);
    drop(&o);
}

static void limits(void **state)
{
    (void)state;
    char text[2 * MAX_BYTES];
    for (int over = 0; over < 2; over++) { /* bytes: exactly so many, and one more */
        size_t n = (size_t)snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: x\r\nA: "),
               wanted = MAX_BYTES + (size_t)over;
        memset(text + n, 'a', wanted - 4 - n);
        memcpy(text + wanted - 4, "\r\n\r\n", 5);
        if (over) refused(text, 431, "too many bytes");
        outcome o = feed(text);
        assert_int_equal(o.status, over ? 431 : 0);
        drop(&o);
    }
    memset(text, 'a', sizeof text - 1), memcpy(text, "GET /", 5), text[sizeof text - 1] = 0;
    refused(text, 431, "too many bytes"); /* a line without an end */
    for (int over = 0; over < 2; over++) {
        size_t n = (size_t)snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: x\r\n");
        for (int i = 1; i < MAX_FIELDS + over; i++) n += (size_t)snprintf(text + n, sizeof text - n, "A: %d\r\n", i);
        snprintf(text + n, sizeof text - n, "\r\n");
        if (over) refused(text, 431, "too many headers");
        outcome o = feed(text);
        assert_int_equal(o.status, over ? 431 : 0);
        if (!over) assert_int_equal(o.head.field_count, MAX_FIELDS);
        drop(&o);
    }
    http_head_reader r = {0}; /* empty lines before a request take no memory */
    int status = 0;
    const char *why = NULL;
    for (int i = 0; i < MAX_BYTES; i++) http_head_feed(&r, "\r\n", 2, MAX_BYTES, MAX_FIELDS, &status, &why);
    assert_int_equal(status, 0);
    assert_int_equal(r.text.length, 0);
    buffer_free(&r.text);
}

/* ---- Chunks ----------------------------------------------------------------------------------------------------- */

static http_chunks_state decode(const char *text, size_t length, size_t first, size_t step, uint64_t limit,
                                buffer *body, size_t *taken)
{
    http_chunks c = {0};
    http_chunks_state s = HTTP_CHUNKS_MORE;
    size_t n = first;
    *taken = 0;
    while (s == HTTP_CHUNKS_MORE && *taken < length) {
        size_t count = n && n < length - *taken ? n : length - *taken, used = 0;
        s = http_chunks_feed(&c, text + *taken, count, limit, body, &used);
        assert_true(used <= count && (s != HTTP_CHUNKS_MORE || used == count));
        *taken += used, n = step;
    }
    return s;
}

/* However the bytes come. `rest` bytes at the end belong to what follows. */
static void chunks_are_limited(const char *text, uint64_t limit, http_chunks_state want, const char *body, size_t rest)
{
    size_t length = strlen(text);
    for (size_t first = 0; first <= length; first++) {
        for (size_t step = 0; step < 3; step++) {
            buffer b = {0};
            size_t taken;
            http_chunks_state s = decode(text, length, first, step, limit, &b, &taken);
            if (s != want) fail_msg("%s: split at %zu, then %zu: %d, want %d", text, first, step, (int)s, (int)want);
            if (body) assert_string_equal(b.length ? b.data : "", body);
            if (want == HTTP_CHUNKS_DONE) assert_int_equal(taken, length - rest);
            buffer_free(&b);
        }
    }
}

static void chunks_are(const char *text, http_chunks_state want, const char *body, size_t rest)
{
    chunks_are_limited(text, LIMIT, want, body, rest);
}

static void good_chunks(void **state)
{
    (void)state;
    chunks_are("0\r\n\r\n", HTTP_CHUNKS_DONE, "", 0);
    chunks_are("5\r\nhello\r\n0\r\n\r\nGET", HTTP_CHUNKS_DONE, "hello", 3);
    chunks_are("1\r\na\r\n0000A\r\n0123456789\r\n00b\r\nabcdefghijk\r\n000\r\n\r\n", HTTP_CHUNKS_DONE,
               "a0123456789abcdefghijk", 0);
    chunks_are("4\r\n\r\n0\r\r\n0\r\n\r\n", HTTP_CHUNKS_DONE, "\r\n0\r", 0); /* its data are no lines */
    chunks_are("3;x\r\nabc\r\n3 ;x\r\n", HTTP_CHUNKS_BAD, "abc", 0); /* a space before the extension is refused */
    chunks_are("3;a=\"b;c\";d=\t\r\nabc\r\n0;last\r\n\r\n", HTTP_CHUNKS_DONE, "abc", 0);
    chunks_are("0\r\nA: b\r\nTransfer-Encoding: x\r\n\r\nX", HTTP_CHUNKS_DONE, "", 1);
    chunks_are("0\r\n: any\r\nthing\r\n\r\n\r\n", HTTP_CHUNKS_DONE, "", 2);
}

static void unfinished_chunks(void **state)
{
    (void)state;
    static const char text[] = "3;x=1\r\nabc\r\n0\r\nA: b\r\n\r\n";
    for (size_t length = 0; length < sizeof text - 1; length++) {
        buffer b = {0};
        size_t taken;
        assert_int_equal(decode(text, length, 0, 0, LIMIT, &b, &taken), HTTP_CHUNKS_MORE);
        assert_int_equal(taken, length);
        buffer_free(&b);
    }
}

static void bad_chunks(void **state)
{
    (void)state;
    static const char *const bad[] = {"\r\n",        "\n",
                                      ";x\r\n",      "g\r\n",
                                      "-1\r\n",      "+1\r\n",
                                      "0x1\r\n",     " 1\r\n",
                                      "1 \r\n",      "1\t\r\n",
                                      "1,\r\n",      "1\n",
                                      "1\r\r\n",     "1\rx",
                                      "1;x\n", /* an extension that ends for some at LF, for others not */
                                      "1;x\rabc",    "1;\x01",
                                      "1\r\naX",     "1\r\na\n",
                                      "1\r\na\rX",   "1\r\na0\r\n\r\n",
                                      "1\r\nab\r\n", "1\r\na\r\n\r\n0",
                                      "0\r\nA: b\n", "0\r\n\n",
                                      "0\r\n\rX",    "0\r\nA\rB"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) chunks_are(bad[i], HTTP_CHUNKS_BAD, NULL, 0);
    http_chunks c = {0};
    buffer b = {0};
    size_t used;
    assert_int_equal(http_chunks_feed(&c, "0\r\nA\0", 5, LIMIT, &b, &used), HTTP_CHUNKS_BAD);
    buffer_free(&b);
}

static void sizes(void **state)
{
    (void)state;
    /* A size that would wrap to a small one, at 2^64 and at every shift before it. */
    chunks_are("10000000000000005\r\nhello\r\n0\r\n\r\n", HTTP_CHUNKS_LARGE, "", 0);
    chunks_are_limited("10000000000000005\r\nhello\r\n0\r\n\r\n", UINT64_MAX, HTTP_CHUNKS_BAD, "", 0);
    chunks_are_limited("fffffffffffffffff", UINT64_MAX, HTTP_CHUNKS_BAD, "", 0);
    chunks_are("ffffffffffffffff\r\n", HTTP_CHUNKS_LARGE, "", 0);
    chunks_are_limited("3\r\nabc\r\nfffffffffffffff\r\n", UINT64_MAX >> 1, HTTP_CHUNKS_MORE, "abc", 0);
    chunks_are("00000000000000000000000000000000001\r\na\r\n0\r\n\r\n", HTTP_CHUNKS_DONE, "a", 0);
    /* The limit is on the body, over its chunks, and is told by the size alone. */
    chunks_are_limited("5\r\nhello\r\n0\r\n\r\n", 5, HTTP_CHUNKS_DONE, "hello", 0);
    chunks_are_limited("6\r\n", 5, HTTP_CHUNKS_LARGE, "", 0);
    chunks_are_limited("3\r\nabc\r\n3\r\n", 5, HTTP_CHUNKS_LARGE, "abc", 0);
    chunks_are_limited("3\r\nabc\r\n2\r\nde\r\n1\r\n", 5, HTTP_CHUNKS_LARGE, "abcde", 0);
    chunks_are_limited("0\r\n\r\n", 0, HTTP_CHUNKS_DONE, "", 0);
    chunks_are_limited("1\r\na", 0, HTTP_CHUNKS_LARGE, "", 0);
}

/* Lines and trailers without an end are cut off: they would be read for as long as they come. */
static void endless_chunks(void **state)
{
    (void)state;
    static const struct {
        const char *start;
        char more;
        size_t most;
    } all[] = {{"1;", 'x', 1024}, {"", '0', 1024}, {"0\r\nA: ", 'x', 64 << 10}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        http_chunks c = {0};
        buffer b = {0};
        size_t used, fed = 0;
        http_chunks_state s = HTTP_CHUNKS_MORE;
        if (*all[i].start) s = http_chunks_feed(&c, all[i].start, strlen(all[i].start), LIMIT, &b, &used);
        for (; s == HTTP_CHUNKS_MORE && fed <= all[i].most; fed++)
            s = http_chunks_feed(&c, &all[i].more, 1, LIMIT, &b, &used);
        assert_int_equal(s, HTTP_CHUNKS_BAD);
        assert_in_range(fed, all[i].most - 10, all[i].most + 1);
        buffer_free(&b);
    }
}

/* Nothing in: nothing taken, nothing changed. */
static void no_bytes(void **state)
{
    (void)state;
    http_chunks c = {0};
    http_head_reader r = {0};
    buffer b = {0};
    size_t used = 7;
    int status = 0;
    const char *why = NULL;
    assert_int_equal(http_chunks_feed(&c, "", 0, LIMIT, &b, &used), HTTP_CHUNKS_MORE);
    assert_int_equal(used, 0);
    assert_int_equal(http_head_feed(&r, "", 0, MAX_BYTES, MAX_FIELDS, &status, &why), 0);
    assert_true(!r.done && !status);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_everywhere), cmocka_unit_test(request_lines), cmocka_unit_test(other_protocols),
        cmocka_unit_test(line_ends),        cmocka_unit_test(field_lines),   cmocka_unit_test(hosts),
        cmocka_unit_test(connections),      cmocka_unit_test(lengths),       cmocka_unit_test(codings),
        cmocka_unit_test(limits),           cmocka_unit_test(good_chunks),   cmocka_unit_test(unfinished_chunks),
        cmocka_unit_test(bad_chunks),       cmocka_unit_test(sizes),         cmocka_unit_test(endless_chunks),
        cmocka_unit_test(no_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
