/* TLS 1.2 and later in front of the same connections, by OpenSSL under libevent's bufferevents. */
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "server/http_parts.h"

enum { FILES = 3 };

struct http_tls {
    SSL_CTX *context;
    char *files[FILES]; /* certificate, key, authorities; NULL: not given */
    struct timespec changed[FILES];
    http_cert_reqs reqs;
    bool refresh;
    double looked;
};

static const char *const flags[FILES] = {"--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certs"};

/* A key with a passphrase would ask for it on the terminal. */
static int no_passphrase(char *out, int size, int writing, void *user)
{
    (void)out, (void)size, (void)writing, (void)user;
    return -1;
}

static hy_status bad_file(const http_tls *t, int file, hy_error *err)
{
    unsigned long first = ERR_peek_error(), code = ERR_peek_last_error();
    const char *reason = code ? ERR_reason_error_string(code) : NULL;
    if (ERR_SYSTEM_ERROR(first)) reason = strerror(ERR_GET_REASON(first)); /* else "system lib" is all it says */
    ERR_clear_error();
    if (!reason) reason = "it is not what it should be";
    if (!t->files[file])
        return error_at(err, HY_USAGE, flags[file], "%s %s has no private key that can be used (%s): name it with %s",
                        flags[0], t->files[0], reason, flags[file]);
    return error_at(err, HY_USAGE, flags[file], "%s %s cannot be used: %s", flags[file], t->files[file], reason);
}

static hy_status read_files(const http_tls *t, SSL_CTX *ctx, hy_error *err)
{
    ERR_clear_error();
    if (SSL_CTX_use_certificate_chain_file(ctx, t->files[0]) != 1) return bad_file(t, 0, err);
    const char *key = t->files[1] ? t->files[1] : t->files[0];
    if (SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1) return bad_file(t, 1, err);
    if (!t->files[2]) return HY_OK;
    if (SSL_CTX_load_verify_locations(ctx, t->files[2], NULL) != 1) return bad_file(t, 2, err);
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(t->files[2]);
    if (names) SSL_CTX_set_client_CA_list(ctx, names);
    return HY_OK;
}

static hy_status new_context(const http_tls *t, SSL_CTX **out, hy_error *err)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx) return error_memory(err, "TLS", 0);
    static const unsigned char id[] = "hayate";
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_id_context(ctx, id, sizeof id - 1);
    SSL_CTX_set_default_passwd_cb(ctx, no_passphrase);
    int verify = t->reqs == HTTP_CERT_NONE ? SSL_VERIFY_NONE : SSL_VERIFY_PEER;
    if (t->reqs == HTTP_CERT_REQUIRED) verify |= SSL_VERIFY_FAIL_IF_NO_PEER_CERT;
    SSL_CTX_set_verify(ctx, verify, NULL);
    hy_status status = read_files(t, ctx, err);
    if (status == HY_OK)
        *out = ctx;
    else
        SSL_CTX_free(ctx);
    return status;
}

/* True if a file is another one than at the last look. */
static bool look(http_tls *t)
{
    bool other = false;
    for (int i = 0; i < FILES; i++) {
        struct stat st;
        if (!t->files[i] || stat(t->files[i], &st) != 0) continue;
        other |= st.st_mtim.tv_sec != t->changed[i].tv_sec || st.st_mtim.tv_nsec != t->changed[i].tv_nsec;
        t->changed[i] = st.st_mtim;
    }
    return other;
}

hy_status tls_open(const http_options *o, http_tls **out, hy_error *err)
{
    const char *given[FILES] = {o->ssl_certfile, o->ssl_keyfile, o->ssl_ca_certs};
    *out = NULL;
    if (!given[0] && (given[1] || given[2] || o->ssl_cert_reqs != HTTP_CERT_NONE))
        return error_at(err, HY_USAGE, flags[0], "TLS needs --ssl-certfile, a certificate in PEM form");
    if (!given[0]) return HY_OK;
    if (o->ssl_cert_reqs != HTTP_CERT_NONE && !given[2])
        return error_at(err, HY_USAGE, flags[2],
                        "--ssl-cert-reqs asks clients for certificates: --ssl-ca-certs must say whose count");
    http_tls *t = calloc(1, sizeof *t);
    if (!t) return error_memory(err, "TLS", sizeof *t);
    t->reqs = o->ssl_cert_reqs, t->refresh = o->ssl_refresh;
    bool ok = true;
    for (int i = 0; i < FILES; i++)
        if (given[i]) ok &= (t->files[i] = memory_string(given[i], strlen(given[i]))) != NULL;
    look(t);
    hy_status status = ok ? new_context(t, &t->context, err) : error_memory(err, "TLS", 0);
    if (status != HY_OK) {
        tls_close(t);
        return status;
    }
    *out = t;
    return HY_OK;
}

/* Certificates are renewed while a server runs: at most once a second, a connection looks whether they were. */
static void refresh(http_tls *t)
{
    double now = clock_seconds();
    if (!t->refresh || now < t->looked + 1) return;
    t->looked = now;
    if (!look(t)) return;
    hy_error err = {0};
    SSL_CTX *fresh = NULL;
    if (new_context(t, &fresh, &err) != HY_OK) {
        log_line(HY_LOG_WARNING, "the certificates have changed and are not used: %s", err.message);
        return;
    }
    SSL_CTX_free(t->context); /* connections hold their own reference */
    t->context = fresh;
    log_line(HY_LOG_INFO, "The certificates have changed and were read again.");
}

struct bufferevent *tls_accept(http_tls *t, struct event_base *base, int fd)
{
    refresh(t);
    SSL *ssl = SSL_new(t->context);
    if (!ssl) return NULL;
    struct bufferevent *bev =
        bufferevent_openssl_socket_new(base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING, BEV_OPT_CLOSE_ON_FREE);
    if (!bev) SSL_free(ssl);
    if (bev) bufferevent_openssl_set_allow_dirty_shutdown(bev, 1); /* lengths say where requests end */
    return bev;
}

void tls_shutdown(struct bufferevent *bev)
{
    SSL *ssl = bufferevent_openssl_get_ssl(bev);
    if (ssl) SSL_shutdown(ssl);
    ERR_clear_error();
}

void tls_close(http_tls *t)
{
    if (!t) return;
    SSL_CTX_free(t->context);
    for (int i = 0; i < FILES; i++) free(t->files[i]);
    free(t);
}
