#include "common/rpc/rpc_trust.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/log/log.h"
#include "common/log/log_gate.h"

#define SERVERS_MAX 8 /* of one process: normally one, more in tests */
#define PEER_MAX    80

struct connection {
    atomic_bool watched;
    atomic_bool trusted;
    atomic_bool cut;
    atomic_size_t bytes; /* read: by a stranger in all, by a trusted peer since its last message */
    atomic_uint_fast64_t cookie;
    size_t trusted_max; /* limit of bytes once trusted; written before `watched` */
    uint64_t calls_ms;  /* when its calls are paid for, at KELP_RPC_CALL_MS each; locked */
    char peer[PEER_MAX];
};

struct server {
    uint16_t port; /* 0: free */
    size_t trusted_max;
};

#define CONNECTIONS (KELP_RPC_CONNECTIONS_MAX + KELP_RPC_DESCRIPTORS_SPARE)

static struct connection connections[CONNECTIONS]; /* by descriptor */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the rest, and peer names */
static struct server servers[SERVERS_MAX];
static int by_port[UINT16_MAX + 1]; /* the last descriptor with this peer port */
static size_t shared_left = KELP_RPC_STRANGERS_BYTES;
static uint64_t shared_at_ms;

static struct kelp_log_gate cuts = KELP_LOG_GATE_INIT;

/* ---- servers ---- */

void kelp__rpc_trust_add_server(uint16_t port, size_t message_bytes_max)
{
    (void)pthread_mutex_lock(&lock);
    for (size_t i = 0; i < SERVERS_MAX; i++) {
        if (servers[i].port == 0) {
            servers[i].port = port;
            servers[i].trusted_max =
                KELP_RPC_UNHEARD_MESSAGES * (message_bytes_max + KELP_RPC_LOOKAHEAD_BYTES);
            break;
        }
    }
    (void)pthread_mutex_unlock(&lock);
}

void kelp__rpc_trust_remove_server(uint16_t port)
{
    (void)pthread_mutex_lock(&lock);
    for (size_t i = 0; i < SERVERS_MAX; i++) {
        servers[i].port = servers[i].port == port ? 0 : servers[i].port;
    }
    (void)pthread_mutex_unlock(&lock);
}

/* ---- connections ---- */

static uint64_t cookie_of(int fd)
{
    uint64_t cookie = 0;
    socklen_t length = sizeof(cookie);

    return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &length) == 0 ? cookie : 0;
}

static struct connection *at_descriptor(int fd)
{
    return fd >= 0 && fd < CONNECTIONS ? &connections[fd] : NULL;
}

static bool same_cookie(const struct connection *connection, uint64_t cookie)
{
    return atomic_load(&connection->cookie) == cookie;
}

/* The peer as gRPC names it, without escapes. Returns the port; 0: a unix socket. */
static uint16_t print_peer(const struct sockaddr *address, char text[PEER_MAX])
{
    const struct sockaddr_in *in4 = (const struct sockaddr_in *)(const void *)address;
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)address;
    char host[INET6_ADDRSTRLEN] = "";
    bool mapped = address->sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr);

    if (address->sa_family == AF_INET || mapped) {
        const void *four = mapped ? (const void *)&in6->sin6_addr.s6_addr[12] : &in4->sin_addr;
        uint16_t port = ntohs(mapped ? in6->sin6_port : in4->sin_port);
        (void)inet_ntop(AF_INET, four, host, sizeof(host));
        (void)snprintf(text, PEER_MAX, "ipv4:%s:%u", host, port);
        return port;
    }
    if (address->sa_family != AF_INET6) {
        return 0;
    }
    (void)inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
    (void)snprintf(text, PEER_MAX, "ipv6:[%s]:%u", host, ntohs(in6->sin6_port));
    return ntohs(in6->sin6_port);
}

/* The limit for trusted peers of the connection's server; 0: not watched. Locked. */
static size_t trusted_max_of(int fd)
{
    struct sockaddr_storage own;
    socklen_t length = sizeof(own);
    char text[PEER_MAX];

    if (getsockname(fd, (struct sockaddr *)&own, &length) != 0) {
        return 0;
    }
    uint16_t port = print_peer((const struct sockaddr *)&own, text);
    for (size_t i = 0; i < SERVERS_MAX && port != 0; i++) {
        if (servers[i].port == port) {
            return servers[i].trusted_max;
        }
    }
    return 0;
}

void kelp__rpc_trust_begin(int fd, const struct sockaddr *peer)
{
    if (fd >= CONNECTIONS) {
        return;
    }
    struct connection *connection = &connections[fd];
    atomic_store(&connection->watched, false);
    (void)pthread_mutex_lock(&lock);
    uint16_t port = print_peer(peer, connection->peer);
    size_t trusted_max = port != 0 ? trusted_max_of(fd) : 0;
    if (trusted_max > 0) {
        by_port[port] = fd;
    }
    connection->trusted_max = trusted_max;
    connection->calls_ms = 0;
    (void)pthread_mutex_unlock(&lock);
    atomic_store(&connection->cookie, cookie_of(fd));
    atomic_store(&connection->bytes, 0);
    atomic_store(&connection->trusted, false);
    atomic_store(&connection->cut, false);
    atomic_store(&connection->watched, trusted_max > 0);
}

/* ---- bytes ---- */

/* Locked. */
static size_t shared_now(void)
{
    uint64_t now_ms = kelp_clock_ms();
    uint64_t grown = (now_ms - shared_at_ms) * (KELP_RPC_STRANGERS_BYTES / KELP_RPC_STRANGERS_MS);
    uint64_t left = shared_left + grown;

    shared_at_ms = now_ms;
    shared_left = left < KELP_RPC_STRANGERS_BYTES ? (size_t)left : KELP_RPC_STRANGERS_BYTES;
    return shared_left;
}

static size_t room_of_stranger(const struct connection *connection)
{
    size_t bytes = atomic_load(&connection->bytes);

    if (bytes < KELP_RPC_STRANGER_BYTES) {
        return KELP_RPC_STRANGER_BYTES - bytes;
    }
    (void)pthread_mutex_lock(&lock);
    size_t left = shared_now();
    (void)pthread_mutex_unlock(&lock);
    return left < KELP_RPC_STRANGER_BYTES ? left : KELP_RPC_STRANGER_BYTES;
}

/* Cut the connection: its next read fails. */
static void cut(struct connection *connection, const char *why)
{
    unsigned held = 0;

    if (!atomic_exchange(&connection->cut, true) &&
        kelp_log_gate_pass(&cuts, connection->peer, 0, &held)) {
        kelp_log_warn("connection closed: too many %s bytes=%zu peer=%s more_before=%u", why,
                      atomic_load(&connection->bytes), connection->peer, held);
    }
}

size_t kelp__rpc_trust_room(int fd)
{
    struct connection *connection = at_descriptor(fd);

    if (!connection || !atomic_load_explicit(&connection->watched, memory_order_acquire)) {
        return KELP__RPC_ALL;
    }
    bool trusted = atomic_load_explicit(&connection->trusted, memory_order_relaxed);
    if (trusted &&
        atomic_load_explicit(&connection->bytes, memory_order_relaxed) <= connection->trusted_max) {
        return KELP__RPC_ALL;
    }
    if (!same_cookie(connection, cookie_of(fd))) {
        atomic_store(&connection->watched, false); /* another socket uses the descriptor now */
        return KELP__RPC_ALL;
    }
    size_t room = trusted || atomic_load(&connection->cut) ? 0 : room_of_stranger(connection);
    if (room == 0) {
        cut(connection, trusted ? "bytes without a message" : "bytes before a hello");
    }
    return room;
}

void kelp__rpc_trust_read(int fd, size_t bytes)
{
    struct connection *connection = at_descriptor(fd);

    if (!connection || !atomic_load_explicit(&connection->watched, memory_order_relaxed)) {
        return;
    }
    size_t before = atomic_fetch_add_explicit(&connection->bytes, bytes, memory_order_relaxed);
    if (atomic_load_explicit(&connection->trusted, memory_order_relaxed) ||
        before + bytes <= KELP_RPC_STRANGER_BYTES) {
        return;
    }
    size_t own = before < KELP_RPC_STRANGER_BYTES ? KELP_RPC_STRANGER_BYTES - before : 0;
    (void)pthread_mutex_lock(&lock);
    size_t left = shared_now();
    shared_left = left > bytes - own ? left - (bytes - own) : 0;
    (void)pthread_mutex_unlock(&lock);
}

/* ---- trust ---- */

/* gRPC writes the brackets of IPv6 as %5B and %5D and may add a scope, so only the host must
 * occur in the text. Locked. */
static bool is_peer(const struct connection *connection, const char *peer)
{
    char host[PEER_MAX];

    if (!atomic_load(&connection->watched)) {
        return false;
    }
    if (strncmp(connection->peer, "ipv6:", 5) != 0) {
        return strcmp(connection->peer, peer) == 0;
    }
    const char *colon = strrchr(connection->peer, ':');
    (void)snprintf(host, sizeof(host), "%.*s", (int)(strcspn(connection->peer, "]") - 6),
                   connection->peer + 6);
    const char *port = strrchr(peer, ':');
    return port && strcmp(colon, port) == 0 && strstr(peer, host) != NULL;
}

struct kelp__rpc_connection kelp__rpc_trust_find(const char *peer)
{
    const char *colon = strrchr(peer, ':');
    unsigned long port = colon ? strtoul(colon + 1, NULL, 10) : 0;
    int found = -1;

    (void)pthread_mutex_lock(&lock);
    int likely = port <= UINT16_MAX ? by_port[port] : 0;
    if (port != 0 && is_peer(&connections[likely], peer)) {
        found = likely;
    }
    for (int fd = 0; found < 0 && fd < CONNECTIONS && port != 0; fd++) {
        found = is_peer(&connections[fd], peer) ? fd : -1;
    }
    uint64_t cookie = found >= 0 ? atomic_load(&connections[found].cookie) : 0;
    (void)pthread_mutex_unlock(&lock);
    return (struct kelp__rpc_connection){.fd = found, .cookie = cookie};
}

void kelp__rpc_trust_grant(const struct kelp__rpc_connection *connection)
{
    if (connection->fd >= 0 && same_cookie(&connections[connection->fd], connection->cookie) &&
        !atomic_load(&connections[connection->fd].cut)) {
        atomic_store(&connections[connection->fd].trusted, true);
        atomic_store(&connections[connection->fd].bytes, 0);
    }
}

void kelp__rpc_trust_heard(const struct kelp__rpc_connection *connection)
{
    if (connection->fd < 0) {
        return;
    }
    struct connection *at = &connections[connection->fd];
    if (atomic_load_explicit(&at->trusted, memory_order_relaxed) &&
        same_cookie(at, connection->cookie)) {
        atomic_store_explicit(&at->bytes, 0, memory_order_relaxed);
    }
}

void kelp__rpc_trust_called(const struct kelp__rpc_connection *connection)
{
    const uint64_t now_ms = kelp_clock_ms();

    if (connection->fd < 0) {
        return;
    }
    struct connection *at = &connections[connection->fd];
    (void)pthread_mutex_lock(&lock);
    at->calls_ms = (at->calls_ms > now_ms ? at->calls_ms : now_ms) + KELP_RPC_CALL_MS;
    bool ends = at->calls_ms > now_ms + (uint64_t)KELP_RPC_CALLS * KELP_RPC_CALL_MS &&
                same_cookie(at, connection->cookie);
    (void)pthread_mutex_unlock(&lock);
    if (ends) {
        atomic_store(&at->trusted, false);
        cut(at, "calls");
    }
}
