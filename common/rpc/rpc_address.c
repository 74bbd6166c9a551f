/*
 * Addresses: what a server listens on, what clients are told, and what gRPC dials.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/address.h"
#include "common/rpc/rpc_internal.h"

#define UNIX_SCHEME "unix:"

/* The path of "unix:/PATH", or NULL. */
static const char *unix_path(const char *address)
{
    size_t scheme = strlen(UNIX_SCHEME);

    return strncmp(address, UNIX_SCHEME, scheme) == 0 ? address + scheme : NULL;
}

/* ---- sockets in the file system ---- */

/* A socket without a server was left by a killed process; gRPC replaces it. */
static kelp_status try_unix(const char *path, struct kelp_error *reterr)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    if (path[0] != '/' || strlen(path) >= sizeof(address.sun_path)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "cannot listen on 'unix:%.300s': an absolute path of at most %zu bytes "
                         "is expected",
                         path, sizeof(address.sun_path) - 1);
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int error = probe < 0 ? errno : 0;
    bool served = false;
    if (probe >= 0) {
        served = connect(probe, (struct sockaddr *)&address, sizeof(address)) == 0;
        error = served || errno == ENOENT || errno == ECONNREFUSED ? 0 : errno;
        (void)close(probe);
    }
    if (served) {
        return kelp_fail(reterr, KELP_ERR_EXISTS,
                         "cannot listen on unix:%s: it is in use by another program", path);
    }
    return error == 0 ? KELP_OK
                      : kelp_fail(reterr, KELP_ERR_INVALID, "cannot listen on unix:%s: %s", path,
                                  strerror(error));
}

/* ---- hosts and ports ---- */

/* Split HOST:PORT; an IPv6 host is in brackets. */
static bool split_address(const char *address, char *host, size_t host_size, const char **ret_port)
{
    const char *colon = strrchr(address, ':');
    size_t length = colon ? (size_t)(colon - address) : 0;

    if (length >= 2 && address[0] == '[' && address[length - 1] == ']') {
        address++;
        length -= 2;
    }
    if (!colon || length == 0 || length >= host_size) {
        return false;
    }
    (void)snprintf(host, host_size, "%.*s", (int)length, address);
    char *end = NULL;
    unsigned long port = strtoul(colon + 1, &end, 10);
    *ret_port = colon + 1;
    return colon[1] >= '0' && colon[1] <= '9' && *end == '\0' && port <= UINT16_MAX;
}

static int try_bind(const struct addrinfo *found)
{
    int probe = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1;
    int error = 0;

    if (probe < 0) {
        return errno;
    }
    (void)setsockopt(probe, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)); /* as gRPC does */
    if (bind(probe, found->ai_addr, found->ai_addrlen) != 0 || listen(probe, 1) != 0) {
        error = errno;
    }
    (void)close(probe);
    return error;
}

static bool is_any(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)address;
        return IN6_IS_ADDR_UNSPECIFIED(&in6->sin6_addr);
    }
    const struct sockaddr_in *in4 = (const struct sockaddr_in *)(const void *)address;
    return in4->sin_addr.s_addr == htonl(INADDR_ANY);
}

/* Print the host in numbers, IPv6 in brackets. */
static void print_host(const struct sockaddr *address, char dial[KELP_RPC_ADDRESS_MAX + 1])
{
    char text[INET6_ADDRSTRLEN] = "";

    if (address->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)address;
        (void)inet_ntop(AF_INET6, &in6->sin6_addr, text, sizeof(text));
        (void)snprintf(dial, KELP_RPC_ADDRESS_MAX + 1, "[%s]", text);
        return;
    }
    const struct sockaddr_in *in4 = (const struct sockaddr_in *)(const void *)address;
    (void)inet_ntop(AF_INET, &in4->sin_addr, text, sizeof(text));
    (void)snprintf(dial, KELP_RPC_ADDRESS_MAX + 1, "%s", text);
}

/* A server on every interface is reached at the first one that leads out of this machine, or at
 * loopback if there is none. IPv6 link-local addresses are skipped, since they need a scope. */
static void print_first_interface(const struct sockaddr *any, char dial[KELP_RPC_ADDRESS_MAX + 1])
{
    struct ifaddrs *interfaces = NULL;
    bool found = false;

    if (getifaddrs(&interfaces) == 0) {
        for (const struct ifaddrs *at = interfaces; at && !found; at = at->ifa_next) {
            const struct sockaddr *own = at->ifa_addr;
            if (!own || own->sa_family != any->sa_family || !(at->ifa_flags & IFF_UP) ||
                (at->ifa_flags & IFF_LOOPBACK) ||
                (own->sa_family == AF_INET6 &&
                 IN6_IS_ADDR_LINKLOCAL(
                     &((const struct sockaddr_in6 *)(const void *)own)->sin6_addr))) {
                continue;
            }
            print_host(own, dial);
            found = true;
        }
        freeifaddrs(interfaces);
    }
    if (!found) {
        (void)snprintf(dial, KELP_RPC_ADDRESS_MAX + 1, "%s",
                       any->sa_family == AF_INET6 ? "[::1]" : "127.0.0.1");
    }
}

static kelp_status not_bound(const char *address, int error, struct kelp_error *reterr)
{
    switch (error) {
    case 0:
        return KELP_OK;
    case EADDRINUSE:
        return kelp_fail(reterr, KELP_ERR_EXISTS,
                         "cannot listen on %s: the address is in use by another program", address);
    case EADDRNOTAVAIL: /* may appear later */
        return kelp_fail(reterr, KELP_ERR_UNREACHABLE,
                         "cannot listen on %s: this host has no such address", address);
    default:
        return kelp_fail(reterr, KELP_ERR_INVALID, "cannot listen on %s: %s", address,
                         strerror(error));
    }
}

static kelp_status try_host(const char *address, char bound[KELP_RPC_ADDRESS_MAX + 1],
                            char dial[KELP_RPC_ADDRESS_MAX + 1], struct kelp_error *reterr)
{
    char host[KELP_RPC_ADDRESS_MAX + 1];
    const char *port = NULL;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;

    if (!split_address(address, host, sizeof(host), &port)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "cannot listen on '%.300s': HOST:PORT is expected, such as 127.0.0.1:0",
                         address);
    }
    int code = getaddrinfo(host, port, &hints, &found);
    if (code != 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "cannot listen on '%s': %s", address,
                         gai_strerror(code));
    }
    int error = try_bind(found);
    print_host(found->ai_addr, bound);
    memcpy(dial, bound, KELP_RPC_ADDRESS_MAX + 1);
    if (is_any(found->ai_addr)) {
        print_first_interface(found->ai_addr, dial);
    }
    freeaddrinfo(found);
    size_t length = strlen(bound);
    (void)snprintf(bound + length, KELP_RPC_ADDRESS_MAX + 1 - length, ":%s", port);
    return not_bound(address, error, reterr);
}

/* ---- used by the rest of common/rpc ---- */

kelp_status kelp__rpc_address_try(const char *address, char bound[KELP_RPC_ADDRESS_MAX + 1],
                                  char dial[KELP_RPC_ADDRESS_MAX + 1], struct kelp_error *reterr)
{
    const char *path = unix_path(address);

    if (!path) {
        return try_host(address, bound, dial, reterr);
    }
    kelp_status status = try_unix(path, reterr);
    if (status == KELP_OK) {
        (void)snprintf(bound, KELP_RPC_ADDRESS_MAX + 1, "%s", address);
        (void)snprintf(dial, KELP_RPC_ADDRESS_MAX + 1, "%s", address);
    }
    return status;
}

bool kelp__rpc_address_is_local(const char *address)
{
    return unix_path(address) != NULL;
}

void kelp__rpc_address_add_port(char dial[KELP_RPC_ADDRESS_MAX + 1], uint16_t port)
{
    size_t length = strlen(dial);

    if (!unix_path(dial)) {
        (void)snprintf(dial + length, KELP_RPC_ADDRESS_MAX + 1 - length, ":%u", port);
    }
}

void kelp__rpc_address_advertise(char dial[KELP_RPC_ADDRESS_MAX + 1], const char *advertise,
                                 uint16_t port)
{
    bool has_port = false;

    if (advertise && kelp_address_is_dialled(advertise, &has_port)) {
        (void)snprintf(dial, KELP_RPC_ADDRESS_MAX + 1, "%s", advertise);
    }
    if (!has_port) {
        kelp__rpc_address_add_port(dial, port);
    }
}

char *kelp__rpc_address_target(const char *address)
{
    size_t size = strlen(address) + sizeof("ipv4:");
    char *target = malloc(size);
    const char *scheme = unix_path(address) ? "" : address[0] == '[' ? "ipv6:" : "ipv4:";

    if (target) {
        (void)snprintf(target, size, "%s%s", scheme, address);
    }
    return target;
}
