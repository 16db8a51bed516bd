#include "server/http_head.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"

enum { LONGEST_METHOD = 24, LONGEST_CHUNK_LINE = 1024, LONGEST_TRAILER = 64 << 10 };

static int refuse(int status, const char *text, const char **why)
{
    *why = text;
    return status;
}

static bool token_char(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

/* What no request begins with is told at once; a TLS client would wait for the answer to its hello. */
static int check_start(const buffer *text, const char **why)
{
    for (size_t i = 0; i < text->length && i <= LONGEST_METHOD; i++) {
        unsigned char c = (unsigned char)text->data[i];
        if (c == ' ' && i > 0) return 0;
        if (!token_char(c)) return refuse(400, "This is no HTTP request: it does not begin with a method", why);
        if (i == LONGEST_METHOD) return refuse(400, "This is no HTTP request: no method is so long", why);
    }
    return 0;
}

size_t http_head_feed(http_head_reader *r, const char *bytes, size_t count, size_t max_bytes, size_t max_fields,
                      int *status, const char **why)
{
    size_t used = 0;
    while (used < count && !r->done && !*status) {
        const char *newline = memchr(bytes + used, '\n', count - used);
        size_t n = newline ? (size_t)(newline - bytes) + 1 - used : count - used;
        size_t before = r->text.length;
        buffer_append(&r->text, bytes + used, n);
        used += n;
        if (!buffer_ok(&r->text))
            *status = refuse(503, "The server is out of memory", why);
        else if (r->text.length > max_bytes)
            *status = refuse(431, "The request line and its headers have too many bytes", why);
        else if (before <= LONGEST_METHOD && r->text.data[0] != '\r')
            *status = check_start(&r->text, why);
        if (!newline || *status) continue;
        size_t length = r->text.length;
        if (length - r->line_start < 2 || r->text.data[length - 2] != '\r') {
            *status = refuse(400, "A line of the head does not end in CR LF", why);
        } else if (length - r->line_start > 2) {
            r->line_start = length;
            if (++r->lines > max_fields + 1) *status = refuse(431, "The request has too many headers", why);
        } else if (r->lines > 0) {
            r->done = true;
        } else {
            buffer_clear(&r->text); /* an empty line before the request */
        }
    }
    return used;
}

/* ---- The request line ------------------------------------------------------------------------------------------ */

static int read_version(http_head *h, const char *version, const char **why)
{
    if (strcmp(version, "HTTP/1.1") == 0 || strcmp(version, "HTTP/1.0") == 0) {
        h->minor = version[7] - '0';
        return 0;
    }
    bool other = strncmp(version, "HTTP/", 5) == 0 && version[5] >= '0' && version[5] <= '9';
    if (other) return refuse(505, "This server speaks HTTP/1.1 and HTTP/1.0", why);
    return refuse(400, "The request line does not end in a version of HTTP", why);
}

static int read_target(http_head *h, const char **why)
{
    const char *t = h->target;
    for (const char *p = t; *p; p++)
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 0x7f || *p == '#')
            return refuse(400, "The request's target has bytes that must be encoded as %XX", why);
    if (strncasecmp(t, "http://", 7) == 0 || strncasecmp(t, "https://", 8) == 0) {
        t = strchr(t, ':') + 3;
        t += strcspn(t, "/?");
    } else if (*t != '/' && strcmp(t, "*") != 0) {
        return refuse(400, "The request's target is no path", why);
    }
    h->path = t, h->path_length = strcspn(t, "?");
    if (h->path_length == 0) h->path = "/", h->path_length = 1;
    const char *query = strchr(t, '?');
    h->query = query ? query + 1 : NULL;
    return 0;
}

static int read_line(http_head *h, char *line, const char **why)
{
    char *first = strchr(line, ' '), *second = first ? strchr(first + 1, ' ') : NULL;
    if (!second || strchr(second + 1, ' ') || first == line || second == first + 1)
        return refuse(400, "The request line is not METHOD TARGET HTTP/1.1", why);
    *first = *second = 0;
    h->method = line, h->target = first + 1;
    int status = read_version(h, second + 1, why);
    return status ? status : read_target(h, why);
}

/* ---- Fields ---------------------------------------------------------------------------------------------------- */

static int read_field(http_head *h, char *line, const char **why)
{
    char *colon = strchr(line, ':');
    if (*line == ' ' || *line == '\t') return refuse(400, "A header is folded over several lines", why);
    if (!colon || colon == line) return refuse(400, "A header has no name", why);
    for (char *p = line; p < colon; p++)
        if (!token_char((unsigned char)*p)) return refuse(400, "The name of a header has other characters", why);
    *colon = 0;
    char *value = colon + 1;
    value += strspn(value, " \t");
    char *end = value + strlen(value);
    while (end > value && (end[-1] == ' ' || end[-1] == '\t')) end--;
    *end = 0;
    for (char *p = value; *p; p++)
        if (((unsigned char)*p < ' ' && *p != '\t') || *p == 0x7f)
            return refuse(400, "The value of a header has control characters", why);
    void *fields = h->fields;
    if (!memory_reserve(&fields, &h->field_capacity, h->field_count + 1, sizeof *h->fields))
        return refuse(503, "The server is out of memory", why);
    h->fields = fields;
    h->fields[h->field_count++] = (http_field){line, value};
    return 0;
}

const char *http_head_field(const http_head *h, const char *name)
{
    for (size_t i = 0; i < h->field_count; i++)
        if (strcasecmp(h->fields[i].name, name) == 0) return h->fields[i].value;
    return NULL;
}

static size_t count_of(const http_head *h, const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < h->field_count; i++) n += strcasecmp(h->fields[i].name, name) == 0;
    return n;
}

/* The value is a list with `word` in it. */
static bool has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    while (list && *list) {
        list += strspn(list, " \t,");
        size_t n = strcspn(list, ",");
        const char *next = list + n;
        while (n > 0 && (list[n - 1] == ' ' || list[n - 1] == '\t')) n--;
        if (n == length && strncasecmp(list, word, n) == 0) return true;
        list = next;
    }
    return false;
}

static bool any_has_word(const http_head *h, const char *name, const char *word)
{
    for (size_t i = 0; i < h->field_count; i++)
        if (strcasecmp(h->fields[i].name, name) == 0 && has_word(h->fields[i].value, word)) return true;
    return false;
}

static int read_length(http_head *h, const char *text, const char **why)
{
    if (count_of(h, "Content-Length") > 1) return refuse(400, "Content-Length comes more than once", why);
    if (!*text) return refuse(400, "Content-Length is no number", why);
    for (; *text; text++) {
        if (*text < '0' || *text > '9') return refuse(400, "Content-Length is no number", why);
        if (h->content_length > (UINT64_MAX >> 1) / 10) return refuse(413, "The body is too large", why);
        h->content_length = h->content_length * 10 + (uint64_t)(*text - '0');
    }
    return 0;
}

/* How long the body is must be clear, or a proxy before this server could see other requests than it does. */
static int read_framing(http_head *h, const char **why)
{
    const char *coding = http_head_field(h, "Transfer-Encoding"), *length = http_head_field(h, "Content-Length");
    if (coding && length) return refuse(400, "The request has both Transfer-Encoding and Content-Length", why);
    if (coding && h->minor == 0) return refuse(400, "HTTP/1.0 has no Transfer-Encoding", why);
    if (coding) {
        if (count_of(h, "Transfer-Encoding") > 1 || strcasecmp(coding, "chunked") != 0)
            return refuse(501, "This server reads no Transfer-Encoding but chunked", why);
        h->chunked = true;
    }
    return length ? read_length(h, length, why) : 0;
}

static int read_meaning(http_head *h, const char **why)
{
    size_t hosts = count_of(h, "Host");
    if (hosts > 1 || (hosts == 0 && h->minor == 1)) return refuse(400, "The request must have one Host header", why);
    h->keep_alive =
        h->minor == 1 ? !any_has_word(h, "Connection", "close") : any_has_word(h, "Connection", "keep-alive");
    const char *expect = h->minor == 1 ? http_head_field(h, "Expect") : NULL;
    h->expects_continue = expect && strcasecmp(expect, "100-continue") == 0;
    h->expects_other = expect && !h->expects_continue;
    return read_framing(h, why);
}

int http_head_parse(http_head *h, http_head_reader *r, const char **why)
{
    *h = (http_head){.method = "", .target = "", .minor = 1};
    h->text = buffer_take(&r->text, &h->length);
    *r = (http_head_reader){0};
    if (!h->text) return refuse(503, "The server is out of memory", why);
    if (memchr(h->text, 0, h->length)) return refuse(400, "The head has a NUL byte", why);
    int status = 0;
    char *line = h->text;
    for (bool first = true; !status; first = false) {
        char *end = strstr(line, "\r\n");
        if (end == line) break;
        *end = 0;
        if (strchr(line, '\r')) return refuse(400, "The head has a CR without LF", why);
        status = first ? read_line(h, line, why) : read_field(h, line, why);
        line = end + 2;
    }
    return status ? status : read_meaning(h, why);
}

void http_head_free(http_head *h)
{
    free(h->text);
    free(h->fields);
    *h = (http_head){0};
}

/* ---- Chunks ---------------------------------------------------------------------------------------------------- */

enum { CHUNK_SIZE, CHUNK_DATA, CHUNK_BORDER, CHUNK_TRAILER };

static int digit_of(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* One character of the line with a chunk's size: digits, perhaps an extension after ';', CR LF. */
static bool size_char(http_chunks *c, char ch)
{
    if (++c->line > LONGEST_CHUNK_LINE) return false;
    if (ch == '\n') {
        if (!c->cr || !c->any) return false;
        c->state = c->left ? CHUNK_DATA : CHUNK_TRAILER;
        c->line = 0, c->cr = c->any = c->extension = false;
        return true;
    }
    if (c->cr) return false;
    if (ch == '\r') {
        c->cr = true;
        return true;
    }
    if (c->extension) return (unsigned char)ch >= ' ' || ch == '\t';
    if (ch == ';' && c->any) {
        c->extension = true;
        return true;
    }
    int digit = digit_of(ch);
    if (digit < 0 || c->left >> 56) return false;
    c->left = c->left << 4 | (uint64_t)digit;
    c->any = true;
    return true;
}

/* One character after the last chunk: trailers, which nothing here has a use for, and the empty line. */
static bool trailer_char(http_chunks *c, char ch, bool *done)
{
    if (++c->trailer > LONGEST_TRAILER || ch == 0) return false;
    if (ch == '\n') {
        if (!c->cr) return false;
        *done = c->line == 0;
        c->line = 0, c->cr = false;
        return true;
    }
    if (c->cr) return false;
    if (ch == '\r')
        c->cr = true;
    else
        c->line++;
    return true;
}

/* The bytes between two chunks must be CR LF. */
static bool border_char(http_chunks *c, char ch)
{
    if (ch != (c->cr ? '\n' : '\r')) return false;
    if (c->cr) c->state = CHUNK_SIZE;
    c->cr = !c->cr;
    return true;
}

http_chunks_state http_chunks_feed(http_chunks *c, const char *bytes, size_t count, uint64_t limit, buffer *body,
                                   size_t *used)
{
    bool ok = true, done = false;
    *used = 0;
    for (size_t i = 0; i < count && ok && !done; *used = i) {
        if (c->state == CHUNK_DATA) {
            size_t n = count - i < c->left ? count - i : (size_t)c->left;
            buffer_append(body, bytes + i, n);
            i += n, c->left -= n;
            if (c->left == 0) c->state = CHUNK_BORDER;
            continue;
        }
        char ch = bytes[i++];
        if (c->state == CHUNK_BORDER)
            ok = border_char(c, ch);
        else
            ok = c->state == CHUNK_SIZE ? size_char(c, ch) : trailer_char(c, ch, &done);
        if (c->left > limit || body->length > limit - c->left) return HTTP_CHUNKS_LARGE;
    }
    return !ok ? HTTP_CHUNKS_BAD : done ? HTTP_CHUNKS_DONE : HTTP_CHUNKS_MORE;
}
