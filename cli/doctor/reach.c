#include "cli/doctor/reach.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/address.h"

/* Numbers and a port, or a socket: nobody is asked for a name. False: it is neither. */
static bool resolve(const char *address, struct sockaddr_storage *ret_to, socklen_t *ret_length)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                             .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char host[64];
    const char *colon = strrchr(address, ':');
    const bool brackets = address[0] == '[';

    if (kelp_address_kind(address) == KELP_ADDRESS_SOCKET) {
        struct sockaddr_un local = {.sun_family = AF_UNIX};
        (void)snprintf(local.sun_path, sizeof(local.sun_path), "%s", address + strlen("unix:"));
        memcpy(ret_to, &local, sizeof(local));
        *ret_length = sizeof(local);
        return true;
    }
    (void)snprintf(host, sizeof(host), "%.*s", (int)(colon - address) - (brackets ? 2 : 0),
                   address + (brackets ? 1 : 0));
    if (getaddrinfo(host, colon + 1, &hints, &found) != 0) {
        return false;
    }
    memcpy(ret_to, found->ai_addr, found->ai_addrlen);
    *ret_length = found->ai_addrlen;
    freeaddrinfo(found);
    return true;
}

/* 0: connected; else errno, ETIMEDOUT also when nothing came within the time. */
static int await_connection(int fd, uint32_t within_ms)
{
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    int error = 0;
    socklen_t length = sizeof(error);

    if (poll(&wait, 1, (int)within_ms) != 1) {
        return ETIMEDOUT;
    }
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

/* Whoever is reached at an address that we have ourselves is on this host. */
static bool is_own(int fd, const struct sockaddr_storage *to)
{
    struct sockaddr_storage from = {.ss_family = AF_UNSPEC};
    socklen_t length = sizeof(from);

    if (to->ss_family == AF_UNIX) {
        return true;
    }
    if (getsockname(fd, (struct sockaddr *)&from, &length) != 0 ||
        from.ss_family != to->ss_family) {
        return false;
    }
    if (to->ss_family == AF_INET) {
        return ((const struct sockaddr_in *)&from)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)to)->sin_addr.s_addr;
    }
    return memcmp(&((const struct sockaddr_in6 *)&from)->sin6_addr,
                  &((const struct sockaddr_in6 *)to)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

int kelp_reach(const char *address, uint32_t within_ms, bool *ret_here)
{
    struct sockaddr_storage to = {.ss_family = AF_UNSPEC};
    socklen_t length = 0;

    if (!resolve(address, &to, &length)) {
        return EINVAL;
    }
    int fd = socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return errno;
    }
    int error = connect(fd, (const struct sockaddr *)&to, length) == 0 ? 0 : errno;
    /* EAGAIN: a socket in the file system whose owner takes no connections. */
    error = error == EAGAIN ? ETIMEDOUT : error;
    error = error == EINPROGRESS ? await_connection(fd, within_ms) : error;
    *ret_here = error == 0 && is_own(fd, &to);
    (void)close(fd);
    return error;
}
