/*
 * Bytes of a connection: heads, bodies in chunks, what follows. The first two bytes of the input say in which pieces
 * they come; what is read must be the same as from one piece. (Which of several faults is told may depend on it, that
 * there is one may not.)
 */
#include <stdlib.h>
#include <string.h>

#include "server/http_head.h"
#include "server/http_target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_BYTES = 2048, MAX_FIELDS = 12, LIMIT = 4096 };

static void check(bool ok)
{
    if (!ok) abort();
}

/* Pieces of 1 to `most` bytes, 0: one piece. */
typedef struct pieces {
    const char *data;
    size_t size, at, most;
    uint32_t seed;
} pieces;

static size_t next(pieces *p, const char **bytes)
{
    size_t left = p->size - p->at, n = left;
    if (p->most) {
        p->seed = p->seed * 1664525u + 1013904223u;
        n = 1 + (p->seed >> 16) % p->most;
    }
    *bytes = p->data + p->at;
    return n < left ? n : left;
}

static void check_target(const http_head *h)
{
    static const char *const patterns[] = {"/", "/health", "/v1/responses/{id}", "/v1/responses/{id}/cancel"};
    check(h->path_length > 0 && (*h->path == '/' || strcmp(h->target, "*") == 0 || h->path == h->target));
    char *path = malloc(h->path_length + 1);
    check(path != NULL);
    memcpy(path, h->path, h->path_length), path[h->path_length] = 0;
    size_t length = http_target_decode(path, h->path_length, false), part;
    if (length != SIZE_MAX) check(length <= h->path_length && strlen(path) == length);
    for (size_t i = 0; i < 4; i++) {
        if (!http_target_matches(patterns[i], h->path, h->path_length)) continue;
        if (i < 2) check(strcmp(path, patterns[i]) == 0); /* who looks at the decoded path sees the same one */
        const char *id = http_target_part(patterns[i], h->path, h->path_length, "id", &part);
        check(i < 2
                  ? !id
                  : id && part > 0 && id >= h->path && id + part <= h->path + h->path_length && !memchr(id, '/', part));
    }
    free(path);
    if (!h->query) return;
    size_t n = strlen(h->query);
    char *query = strdup(h->query);
    length = http_target_decode(query, n, true);
    check(length == SIZE_MAX || (length <= n && !memchr(query, 0, length)));
    free(query);
}

static void tell_head(const http_head *h, buffer *out)
{
    check(*h->method && h->minor >= 0 && h->minor <= 1 && h->field_count <= MAX_FIELDS);
    check(!h->chunked || (h->content_length == 0 && h->minor == 1));
    check_target(h);
    buffer_printf(out, "%s %s %d%d%d%d%d %llu\n", h->method, h->target, h->minor, h->keep_alive, h->chunked,
                  h->expects_continue, h->expects_other, (unsigned long long)h->content_length);
    for (size_t i = 0; i < h->field_count; i++) {
        check(*h->fields[i].name && !strpbrk(h->fields[i].name, " \t\r\n:") && !strpbrk(h->fields[i].value, "\r\n"));
        buffer_printf(out, "%s=%s\n", h->fields[i].name, h->fields[i].value);
    }
}

static bool read_chunks(pieces *p, buffer *out)
{
    http_chunks c = {0};
    buffer body = {0};
    http_chunks_state s = HTTP_CHUNKS_MORE;
    while (s == HTTP_CHUNKS_MORE && p->at < p->size) {
        const char *bytes;
        size_t n = next(p, &bytes), used = 0;
        s = http_chunks_feed(&c, bytes, n, LIMIT, &body, &used);
        check(used <= n && (s != HTTP_CHUNKS_MORE || used == n) && body.length <= LIMIT);
        p->at += used;
    }
    buffer_printf(out, "chunks %d, %zu: ", (int)s, body.length);
    if (body.length) buffer_append(out, body.data, body.length);
    buffer_free(&body);
    return s == HTTP_CHUNKS_DONE;
}

/* Reads requests until one is refused or the bytes end. */
static void read_all(pieces *p, buffer *out)
{
    for (bool more = true; more && p->at < p->size;) {
        http_head_reader r = {0};
        http_head h = {0};
        int status = 0;
        const char *why = NULL;
        while (!status && !r.done && p->at < p->size) {
            const char *bytes;
            size_t n = next(p, &bytes), used = http_head_feed(&r, bytes, n, MAX_BYTES, MAX_FIELDS, &status, &why);
            check(used > 0 && used <= n && (status || r.done || used == n));
            p->at += used;
        }
        bool whole = r.done;
        if (whole) {
            check(!status && r.text.length <= MAX_BYTES);
            status = http_head_parse(&h, &r, &why);
        }
        check(!status || (status >= 400 && status < 600 && why && *why));
        more = whole && !status;
        buffer_string(out, status ? "refused\n" : whole ? "" : "not whole\n");
        if (more) tell_head(&h, out);
        if (more && h.chunked) {
            more = read_chunks(p, out);
        } else if (more) {
            size_t left = p->size - p->at, n = h.content_length < left ? (size_t)h.content_length : left;
            p->at += n;
        }
        http_head_free(&h);
        buffer_free(&r.text);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    const char *text = (const char *)data + 2;
    pieces one = {text, size - 2, 0, 0, 0}, many = {text, size - 2, 0, 1u + data[0] % 64u, data[1]};
    buffer a = {0}, b = {0};
    read_all(&one, &a);
    read_all(&many, &b);
    check(a.length == b.length && (a.length == 0 || memcmp(a.data, b.data, a.length) == 0));
    buffer_free(&a);
    buffer_free(&b);
    return 0;
}
