#include "hub/get.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"

enum { MOST_HOPS = 8, CONNECT_SECONDS = 20, SILENT_SECONDS = 60, URL_SIZE = 8192 };

struct get_handle {
    CURL *curl;
};

/* One hop. */
typedef struct transfer {
    const get_request *request;
    get_reply *reply;
    CURL *curl;
    bool begun, refused;
} transfer;

get_handle *get_open(void)
{
    get_handle *h = calloc(1, sizeof *h);
    if (h) h->curl = curl_easy_init();
    if (h && h->curl) return h;
    free(h);
    return NULL;
}

void get_close(get_handle *handle)
{
    if (!handle) return;
    curl_easy_cleanup(handle->curl);
    free(handle);
}

char *get_escape(const char *text)
{
    char *escaped = curl_easy_escape(NULL, text, 0), *copy = escaped ? strdup(escaped) : NULL;
    curl_free(escaped);
    return copy;
}

/* The value of a header line if it has this name; without white space around it. */
static bool header(const char *line, size_t length, const char *name, char *out, size_t size)
{
    size_t n = strlen(name);
    if (length <= n || line[n] != ':' || strncasecmp(line, name, n)) return false;
    line += n + 1, length -= n + 1;
    while (length && (*line == ' ' || *line == '\t')) line++, length--;
    while (length && strchr(" \t\r\n", line[length - 1])) length--;
    snprintf(out, size, "%.*s", (int)(length < size ? length : size - 1), line);
    return true;
}

/* W/"abc" and "abc" are abc. */
static void take_etag(const char *value, char out[80])
{
    if (!strncmp(value, "W/", 2)) value += 2;
    if (*value == '"') value++;
    snprintf(out, 80, "%s", value);
    out[strcspn(out, "\"")] = 0;
}

/* "bytes 10-99/100" */
static void take_range(const char *value, get_reply *r)
{
    char *end;
    if (strncmp(value, "bytes ", 6)) return;
    long long from = strtoll(value + 6, &end, 10);
    const char *slash = *end == '-' ? strchr(end, '/') : NULL;
    long long total = slash ? strtoll(slash + 1, &end, 10) : -1;
    if (slash && end != slash + 1 && !*end) r->range_from = from, r->range_total = total;
}

static size_t on_header(char *line, size_t one, size_t count, void *user)
{
    transfer *t = user;
    get_reply *r = t->reply;
    size_t length = one * count;
    char value[256];
    if (header(line, length, "Content-Length", value, sizeof value)) r->length = strtoll(value, NULL, 10);
    if (header(line, length, "Retry-After", value, sizeof value))
        r->retry_after = strtod(value, NULL); /* a date is 0 days */
    if (header(line, length, "X-Error-Code", value, sizeof value))
        snprintf(r->error_code, sizeof r->error_code, "%.60s", value);
    if (header(line, length, "X-Linked-ETag", value, sizeof value)) take_etag(value, r->etag);
    if (!r->etag[0] && header(line, length, "ETag", value, sizeof value)) take_etag(value, r->etag);
    if (header(line, length, "Content-Range", value, sizeof value)) take_range(value, r);
    return length;
}

static size_t on_body(char *data, size_t one, size_t count, void *user)
{
    transfer *t = user;
    size_t length = one * count;
    if (!t->begun) {
        t->begun = true;
        curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &t->reply->status);
        if ((t->reply->status == 200 || t->reply->status == 206) && !t->request->begin(t->request->user, t->reply))
            t->refused = true;
    }
    if (t->refused) return 0;
    if (t->reply->status != 200 && t->reply->status != 206) return length; /* pages about errors */
    if (t->request->piece(t->request->user, data, length)) return length;
    t->refused = true;
    return 0;
}

static int on_tick(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    transfer *t = user;
    (void)a, (void)b, (void)c, (void)d;
    return t->request->stop && atomic_load(t->request->stop);
}

/* Whether two URLs have one scheme, host and port. */
static bool same_origin(const char *a, const char *b)
{
    static const CURLUPart parts[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
    CURLU *x = curl_url(), *y = curl_url();
    bool same = x && y && !curl_url_set(x, CURLUPART_URL, a, 0) && !curl_url_set(y, CURLUPART_URL, b, 0);
    for (int i = 0; same && i < 3; i++) {
        char *p = NULL, *q = NULL;
        same = !curl_url_get(x, parts[i], &p, CURLU_DEFAULT_PORT) &&
               !curl_url_get(y, parts[i], &q, CURLU_DEFAULT_PORT) && !strcasecmp(p, q);
        curl_free(p), curl_free(q);
    }
    curl_url_cleanup(x), curl_url_cleanup(y);
    return same;
}

static CURLcode hop(transfer *t, const char *url, const char *token, char *reason)
{
    CURL *c = t->curl;
    char range[48], *auth = NULL;
    struct curl_slist *headers = NULL;
    curl_easy_reset(c); /* connections stay */
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_USERAGENT, "hayate/" HY_VERSION);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, reason);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)SILENT_SECONDS);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_tick);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, t);
    if (t->request->from > 0) {
        snprintf(range, sizeof range, "%lld-", (long long)t->request->from);
        curl_easy_setopt(c, CURLOPT_RANGE, range);
    }
    if (token) {
        size_t size = strlen(token) + 32;
        auth = malloc(size);
        if (auth) snprintf(auth, size, "Authorization: Bearer %s", token);
        if (auth) headers = curl_slist_append(NULL, auth);
        curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    }
    CURLcode code = token && !headers ? CURLE_OUT_OF_MEMORY : curl_easy_perform(c);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, NULL);
    curl_slist_free_all(headers);
    free(auth);
    return code;
}

static bool is_redirect(long status)
{
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

/* How much of a URL is shown: what stands behind its ? can be a key. */
static int shown(const char *url)
{
    size_t n = strcspn(url, "?");
    return n < 300 ? (int)n : 300;
}

hy_status get_run(get_handle *handle, const get_request *request, get_reply *reply, hy_error *err)
{
    char url[URL_SIZE], reason[CURL_ERROR_SIZE];
    const char *token = request->token && *request->token ? request->token : NULL;
    *reply = (get_reply){0};
    if (strlen(request->url) >= sizeof url) return error_set(err, HY_FAILED, "a URL is too long");
    strcpy(url, request->url);
    for (int i = 0; i < MOST_HOPS; i++) {
        char *next = NULL;
        transfer t = {.request = request, .reply = reply, .curl = handle->curl};
        reply->length = reply->range_from = reply->range_total = -1;
        reply->retry_after = 0, reason[0] = 0;
        CURLcode code = hop(&t, url, token, reason);
        curl_easy_getinfo(handle->curl, CURLINFO_RESPONSE_CODE, &reply->status);
        if (code == CURLE_ABORTED_BY_CALLBACK) return error_set(err, HY_CANCELLED, "the download was stopped");
        if (t.refused) return HY_OK;
        if (code != CURLE_OK)
            return error_set(err, HY_FAILED, "%.*s: %.120s", shown(url), url,
                             reason[0] ? reason : curl_easy_strerror(code));
        if (!is_redirect(reply->status)) {
            /* A file of no bytes has no body to begin with. */
            if (!t.begun && (reply->status == 200 || reply->status == 206)) request->begin(request->user, reply);
            return HY_OK;
        }
        curl_easy_getinfo(handle->curl, CURLINFO_REDIRECT_URL, &next);
        if (!next || strlen(next) >= sizeof url)
            return error_set(err, HY_FAILED, "%.*s redirects to nowhere", shown(url), url);
        if (!strncasecmp(url, "https:", 6) && strncasecmp(next, "https:", 6))
            return error_set(err, HY_FAILED, "%.*s redirects to a URL that is not encrypted", shown(url), url);
        if (!same_origin(url, next)) token = NULL; /* for good: whoever comes behind may say anything */
        memmove(url, next, strlen(next) + 1);
    }
    return error_set(err, HY_FAILED, "%.*s redirects without end", shown(request->url), request->url);
}
