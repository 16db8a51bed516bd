/* Sockets that connections come from: addresses of both families, or a unix socket; and the limit of connections. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "server/http_parts.h"

enum {
    BACKLOG = 2048,
    ACCEPT_PAUSE_S = 1,  /* no connections are taken for so long after one could not be */
    RESERVED_FILES = 128 /* descriptors that are not for connections */
};

/* ---- Accepting ------------------------------------------------------------------------------------------------- */

static bool may_say(http_server *s)
{
    double now = clock_seconds();
    if (s->said_full && now < s->said_full + 1) return false;
    s->said_full = now;
    return true;
}

static void accept_again(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    http_server *s = arg;
    s->listening_again = false;
    for (int i = 0; i < s->listener_count; i++) evconnlistener_enable(s->listeners[i]);
}

/*
 * Without a free descriptor accept fails at once and the listener stays readable: the loop would spin, with a message
 * each time. So it looks away for a moment; the waiting clients stay in the system's queue.
 */
static void accept_failed(struct evconnlistener *listener, void *arg)
{
    (void)listener;
    http_server *s = arg;
    struct timeval pause = {.tv_sec = ACCEPT_PAUSE_S};
    if (may_say(s))
        log_line(HY_LOG_WARNING, "cannot take a connection: %s; clients wait until others leave (see ulimit -n)",
                 strerror(errno));
    if (s->listening_again || event_base_once(s->base, -1, EV_TIMEOUT, accept_again, s, &pause) != 0) return;
    s->listening_again = true;
    for (int i = 0; i < s->listener_count; i++) evconnlistener_disable(s->listeners[i]);
}

/* "127.0.0.1:5000", also for an IPv4 client of an IPv6 socket; "" for a unix socket. */
static void name_peer(const struct sockaddr *addr, char out[64])
{
    char text[INET6_ADDRSTRLEN] = "";
    out[0] = 0;
    if (addr->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)addr;
        inet_ntop(AF_INET, &in->sin_addr, text, sizeof text);
        snprintf(out, 64, "%s:%d", text, ntohs(in->sin_port));
    } else if (addr->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)(const void *)addr;
        bool mapped = IN6_IS_ADDR_V4MAPPED(&in->sin6_addr);
        inet_ntop(mapped ? AF_INET : AF_INET6, in->sin6_addr.s6_addr + (mapped ? 12 : 0), text, sizeof text);
        snprintf(out, 64, "%s:%d", text, ntohs(in->sin6_port));
    }
}

static void accepted(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *addr, int length, void *arg)
{
    (void)listener, (void)length;
    http_server *s = arg;
    char peer[64];
    name_peer(addr, peer);
    bool surplus = s->totals.connections - s->surplus >= s->limits.max_connections;
    if (surplus) {
        s->totals.turned_away++;
        if (may_say(s))
            log_line(HY_LOG_WARNING,
                     "cannot take a connection: %zu are open, the most that --max-connections and ulimit -n allow",
                     s->totals.connections - s->surplus);
        if (s->surplus >= MAX_SURPLUS) {
            evutil_closesocket(fd);
            return;
        }
    }
    connection_new(s, fd, peer, surplus);
}

static hy_status add_listener(http_server *s, int fd, hy_error *err)
{
    struct evconnlistener *l =
        evconnlistener_new(s->base, accepted, s, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, BACKLOG, fd);
    if (!l) {
        int why = errno;
        close(fd);
        return error_set(err, HY_FAILED, "cannot listen on %s: %s", s->address, strerror(why));
    }
    evconnlistener_set_error_cb(l, accept_failed);
    s->listeners[s->listener_count++] = l;
    return HY_OK;
}

/* ---- Addresses ------------------------------------------------------------------------------------------------- */

static void set(int fd, int level, int name, int value)
{
    setsockopt(fd, level, name, &value, sizeof value);
}

/* Accepted sockets have the options of the one that they come from. */
static void set_options(http_server *s, int fd, int family, bool both)
{
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (family == AF_INET6) set(fd, IPPROTO_IPV6, IPV6_V6ONLY, !both);
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    /* Clients whose machine has gone are told from silent ones in a minute, with data on the way or without. */
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(s->limits.write_s * 1000));
}

static int bound_port(int fd)
{
    struct sockaddr_storage addr;
    socklen_t length = sizeof addr;
    if (getsockname(fd, (struct sockaddr *)&addr, &length) != 0) return 0;
    if (addr.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)&addr)->sin6_port);
    return ntohs(((struct sockaddr_in *)&addr)->sin_port);
}

/* A socket bound to the address, -1 with errno set. */
static int bind_address(http_server *s, struct sockaddr *addr, socklen_t length, int port, bool both)
{
    int fd = socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    set_options(s, fd, addr->sa_family, both);
    if (addr->sa_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)addr)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)(void *)addr)->sin_port = htons((uint16_t)port);
    if (bind(fd, addr, length) == 0) return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static hy_status taken(const char *host, int port, hy_error *err)
{
    return error_set(err, HY_FAILED, "cannot listen on %s port %d: %s; choose another --port or --host", host, port,
                     strerror(errno));
}

/* One socket for both families where the system has IPv6, else one for IPv4. */
static hy_status listen_everywhere(http_server *s, int port, hy_error *err)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    struct sockaddr_in four = {.sin_family = AF_INET};
    int fd = bind_address(s, (struct sockaddr *)&six, sizeof six, port, true);
    if (fd < 0 && errno != EADDRINUSE && errno != EACCES)
        fd = bind_address(s, (struct sockaddr *)&four, sizeof four, port, false);
    if (fd < 0) return taken("0.0.0.0", port, err);
    s->port = bound_port(fd);
    return add_listener(s, fd, err);
}

/* Every address that the name has, on one port: "localhost" is often two. */
static hy_status listen_host(http_server *s, const char *host, int port, hy_error *err)
{
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    int missing = getaddrinfo(host, NULL, &hints, &found);
    if (missing)
        return error_set(err, HY_USAGE, "--host %.200s is no address: %s; give one of this machine, or 0.0.0.0 for all",
                         host, gai_strerror(missing));
    hy_status status = HY_OK;
    for (struct addrinfo *a = found; a && status == HY_OK && s->listener_count < MAX_LISTENERS; a = a->ai_next) {
        if (a->ai_family != AF_INET && a->ai_family != AF_INET6) continue;
        int fd = bind_address(s, a->ai_addr, a->ai_addrlen, s->port ? s->port : port, true);
        bool absent = fd < 0 && (errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT);
        if (absent && (a->ai_next || s->listener_count))
            continue; /* a name may have an address of a family that is off */
        if (fd < 0) {
            status = taken(host, port, err);
            break;
        }
        s->port = bound_port(fd);
        status = add_listener(s, fd, err);
    }
    freeaddrinfo(found);
    if (status == HY_OK && !s->listener_count) errno = EADDRNOTAVAIL, status = taken(host, port, err);
    return status;
}

/* ---- Unix sockets ---------------------------------------------------------------------------------------------- */

/* A socket file that nobody listens on was left by a server that did not end well. */
static hy_status clear_path(const char *path, const struct sockaddr_un *addr, hy_error *err)
{
    struct stat st;
    if (lstat(path, &st) != 0) return HY_OK;
    if (!S_ISSOCK(st.st_mode))
        return error_set(err, HY_USAGE, "--uds %s is a file that is no socket; choose another path", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool used = fd >= 0 && connect(fd, (const struct sockaddr *)addr, sizeof *addr) == 0;
    if (fd >= 0) close(fd);
    if (used) return error_set(err, HY_FAILED, "--uds %s: another process listens there", path);
    unlink(path);
    return HY_OK;
}

static hy_status listen_unix(http_server *s, const char *path, hy_error *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    if (!*path || strlen(path) >= sizeof addr.sun_path)
        return error_set(err, HY_USAGE, "--uds needs a path of 1 to %zu bytes", sizeof addr.sun_path - 1);
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s", path);
    hy_status status = clear_path(path, &addr, err);
    if (status != HY_OK) return status;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof addr) != 0) {
        status = error_set(err, HY_FAILED, "cannot listen on --uds %s: %s", path, strerror(errno));
        if (fd >= 0) close(fd);
        return status;
    }
    snprintf(s->uds, sizeof s->uds, "%s", path);
    return add_listener(s, fd, err);
}

/* ---- Life ------------------------------------------------------------------------------------------------------ */

static size_t default_connections(void)
{
    enum { MOST = 65536 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > MOST + RESERVED_FILES) return MOST;
    size_t files = (size_t)limit.rlim_cur;
    return files > 2 * RESERVED_FILES ? files - RESERVED_FILES : files / 2 + 1;
}

hy_status listen_open(http_server *s, const http_options *o, hy_error *err)
{
    if (!s->limits.max_connections) s->limits.max_connections = default_connections();
    const char *host = o->host && *o->host ? o->host : NULL, *scheme = s->tls ? "https" : "http";
    if (o->uds) {
        snprintf(s->address, sizeof s->address, "unix:%s", o->uds);
        return listen_unix(s, o->uds, err);
    }
    hy_status status = host ? listen_host(s, host, o->port, err) : listen_everywhere(s, o->port, err);
    bool six = host && strchr(host, ':');
    snprintf(s->address, sizeof s->address, "%s://%s%.100s%s:%d", scheme, six ? "[" : "", host ? host : "0.0.0.0",
             six ? "]" : "", s->port);
    return status;
}

void listen_close(http_server *s)
{
    for (int i = 0; i < s->listener_count; i++) evconnlistener_free(s->listeners[i]);
    s->listener_count = 0;
    if (s->uds[0]) unlink(s->uds);
    s->uds[0] = 0;
}
