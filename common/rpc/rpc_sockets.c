/* How libgrpc gets new connections, and their limit (rpc_sockets.h). */
#include "common/rpc/rpc_sockets.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/limits.h"
#include "common/log/log.h"
#include "common/log/log_gate.h"
#include "common/rpc/rpc_trust.h"

/* Segments of a read from a stranger; libgrpc uses up to 64. */
#define SEGMENTS_MAX 64

/* The system returns the lowest free descriptor, so one at or above this limit means that as
 * many are in use. 0: no server, no limit. */
static atomic_int descriptors_max;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the rest */
static unsigned servers;
static int spare = -1; /* closed for a moment if no other descriptor is left */

/* Local sockets get a larger send buffer. */
static atomic_bool local_large;

static struct kelp_log_gate refusals = KELP_LOG_GATE_INIT;

/* ---- the limit ---- */

static int find_descriptors_max(void)
{
    struct rlimit limit = {.rlim_cur = 0};
    const rlim_t most = KELP_RPC_CONNECTIONS_MAX + KELP_RPC_DESCRIPTORS_SPARE;

    (void)getrlimit(RLIMIT_NOFILE, &limit); /* cannot fail for this resource */
    rlim_t kept = limit.rlim_cur / KELP_RPC_DESCRIPTORS_SPARE_PART;
    kept = kept > KELP_RPC_DESCRIPTORS_SPARE ? kept : KELP_RPC_DESCRIPTORS_SPARE;
    rlim_t max = limit.rlim_cur > 2 * kept ? limit.rlim_cur - kept : limit.rlim_cur / 2;
    return (int)(max < most ? max : most);
}

static int open_spare(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

void kelp__rpc_sockets_open(void)
{
    (void)pthread_mutex_lock(&lock);
    if (servers++ == 0) {
        spare = open_spare();
        atomic_store(&descriptors_max, find_descriptors_max());
    }
    (void)pthread_mutex_unlock(&lock);
}

void kelp__rpc_sockets_close(void)
{
    (void)pthread_mutex_lock(&lock);
    if (--servers == 0) {
        atomic_store(&descriptors_max, 0);
        if (spare >= 0) {
            (void)close(spare);
        }
        spare = -1;
    }
    (void)pthread_mutex_unlock(&lock);
}

/* ---- local sockets ---- */

void kelp__rpc_sockets_local(size_t message_bytes_max)
{
    if (message_bytes_max > KELP_RPC_LOCAL_LARGE_BYTES) {
        atomic_store(&local_large, true);
    }
}

/* If the system refuses, the socket keeps its size. */
static void widen(int fd)
{
    const int bytes = KELP_RPC_LOCAL_SEND_BYTES;

    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

static bool is_wide(sa_family_t family)
{
    return family == AF_UNIX && atomic_load_explicit(&local_large, memory_order_relaxed);
}

static void log_refusal(const char *why)
{
    unsigned held = 0;

    if (kelp_log_gate_pass(&refusals, why, 0, &held)) {
        kelp_log_warn("connection refused: %s max=%d more_before=%u", why,
                      atomic_load(&descriptors_max), held);
    }
}

/* ---- libgrpc calls this ---- */

static void *c_library(const char *name)
{
    void *symbol = dlsym(RTLD_NEXT, name);

    if (!symbol) {
        abort(); /* Kelp's programs always have a C library */
    }
    return symbol;
}

/* The C library's own function of this name, looked up once. */
#define NEXT(name)                                                                                 \
    static _Atomic(void *) found;                                                                  \
    void *symbol = atomic_load_explicit(&found, memory_order_acquire);                             \
    if (!symbol) {                                                                                 \
        symbol = c_library(#name);                                                                 \
        atomic_store_explicit(&found, symbol, memory_order_release);                               \
    }                                                                                              \
    __typeof__(name) *next;                                                                        \
    memcpy(&next, &symbol, sizeof(next))

static int next_accept4(int listener, struct sockaddr *address, socklen_t *length, int flags)
{
    NEXT(accept4);
    return next(listener, address, length, flags);
}

static ssize_t next_recvmsg(int fd, struct msghdr *message, int flags)
{
    NEXT(recvmsg);
    return next(fd, message, flags);
}

/* No descriptor is left: accept one connection in place of the spare descriptor and close it, so
 * that the peer sees an end. False: none waits, or none can be accepted. */
static bool drop_one(int listener)
{
    (void)pthread_mutex_lock(&lock);
    if (spare >= 0) {
        (void)close(spare);
    }
    int fd = next_accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        (void)close(fd);
    }
    spare = open_spare();
    (void)pthread_mutex_unlock(&lock);
    return fd >= 0;
}

/* Errors that accept(2) lists for a connection which ended before it was accepted: try the next
 * one. */
static bool is_of_one_connection(int error)
{
    switch (error) {
    case ECONNABORTED:
    case EINTR:
    case ENETDOWN:
    case EPROTO:
    case ENOPROTOOPT:
    case EHOSTDOWN:
    case ENONET:
    case EHOSTUNREACH:
    case ENETUNREACH:
        return true;
    default:
        return false;
    }
}

static bool is_lack(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

/* ---- replacements of C library functions, for the whole process ---- */

__attribute__((visibility("default"))) int accept4(int listener, struct sockaddr *address,
                                                   socklen_t *length, int flags)
{
    const int max = atomic_load(&descriptors_max);
    const socklen_t room = length ? *length : 0;

    for (;;) {
        int fd = next_accept4(listener, address, length, flags);
        if (fd >= 0 && fd < max && address) {
            kelp__rpc_trust_begin(fd, address);
        }
        if (fd >= 0 && address && is_wide(address->sa_family)) {
            widen(fd);
        }
        if (max == 0 || (fd >= 0 && fd < max)) {
            return fd;
        }
        if (fd >= 0) {
            (void)close(fd);
            log_refusal("too many descriptors are in use");
        } else if (is_lack(errno) && drop_one(listener)) {
            log_refusal("the system has no descriptor or memory for it");
        } else if (is_lack(errno)) {
            errno = EAGAIN; /* libgrpc calls again at the next connection */
            return -1;
        } else if (!is_of_one_connection(errno)) {
            return -1;
        }
        if (length) {
            *length = room;
        }
    }
}

__attribute__((visibility("default"))) int connect(int fd, const struct sockaddr *address,
                                                   socklen_t length)
{
    NEXT(connect);
    if (length >= sizeof(address->sa_family) && is_wide(address->sa_family)) {
        widen(fd);
    }
    return next(fd, address, length);
}

/* Receive at most `room` bytes of what the caller asked for. */
static ssize_t receive_some(int fd, struct msghdr *message, int flags, size_t room)
{
    struct iovec segments[SEGMENTS_MAX];
    struct msghdr less = *message;

    less.msg_iov = segments;
    less.msg_iovlen = 0;
    for (size_t i = 0; i < message->msg_iovlen && i < SEGMENTS_MAX && room > 0; i++) {
        segments[i] = message->msg_iov[i];
        segments[i].iov_len = segments[i].iov_len < room ? segments[i].iov_len : room;
        room -= segments[i].iov_len;
        less.msg_iovlen++;
    }
    ssize_t count = next_recvmsg(fd, &less, flags);
    message->msg_namelen = less.msg_namelen;
    message->msg_controllen = less.msg_controllen;
    message->msg_flags = less.msg_flags;
    return count;
}

__attribute__((visibility("default"))) ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    const size_t room = kelp__rpc_trust_room(fd);

    if (room == 0) {
        errno = ECONNRESET;
        return -1;
    }
    ssize_t count = room == KELP__RPC_ALL ? next_recvmsg(fd, message, flags)
                                          : receive_some(fd, message, flags, room);
    if (count > 0) {
        kelp__rpc_trust_read(fd, (size_t)count);
    }
    return count;
}
