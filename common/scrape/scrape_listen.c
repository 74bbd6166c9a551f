#include "common/scrape/scrape_listen.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/scrape/limits.h"

#define UNIX_SCHEME "unix:"

const char *kelp_scrape_path(const char *address)
{
    return strncmp(address, UNIX_SCHEME, strlen(UNIX_SCHEME)) == 0 ? address + strlen(UNIX_SCHEME)
                                                                   : NULL;
}

static kelp_status not_possible(const char *address, int error, struct kelp_error *reterr)
{
    if (error == EADDRINUSE) {
        return kelp_fail(reterr, KELP_ERR_EXISTS,
                         "--metrics %.255s: it is in use by another program", address);
    }
    return kelp_fail(reterr, KELP_ERR_INVALID, "--metrics %.255s: %s", address, strerror(error));
}

/* ---- sockets in the file system ---- */

/* Does a process serve the socket? If not, a killed process left it. */
static bool is_served(const struct sockaddr_un *name)
{
    int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool refused = probe >= 0 &&
                   connect(probe, (const struct sockaddr *)name, sizeof(*name)) != 0 &&
                   errno == ECONNREFUSED;

    if (probe >= 0) {
        (void)close(probe);
    }
    return !refused;
}

/* Remove a socket without a server. Anything else stays. */
static kelp_status make_way(const char *address, const struct sockaddr_un *name,
                            struct kelp_error *reterr)
{
    struct stat info;

    if (lstat(name->sun_path, &info) != 0) {
        return KELP_OK; /* bind() reports other errors */
    }
    if (!S_ISSOCK(info.st_mode)) {
        return kelp_fail(reterr, KELP_ERR_EXISTS,
                         "--metrics %.255s: a file is there that is no "
                         "socket",
                         address);
    }
    if (!is_served(name)) {
        (void)unlink(name->sun_path); /* bind() reports it */
    }
    return KELP_OK;
}

static kelp_status listen_path(const char *address, const char *path, int *ret_fd,
                               struct kelp_error *reterr)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};

    if (path[0] != '/' || strlen(path) >= sizeof(name.sun_path)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--metrics %.255s: an absolute path of at most %zu bytes is expected",
                         address, sizeof(name.sun_path) - 1);
    }
    memcpy(name.sun_path, path, strlen(path) + 1);
    kelp_status status = make_way(address, &name, reterr);
    if (status != KELP_OK) {
        return status;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* Set the mode before bind(), so that it holds from the first moment. */
    if (fd < 0 || fchmod(fd, S_IRUSR | S_IWUSR) != 0 ||
        bind(fd, (const struct sockaddr *)&name, sizeof(name)) != 0 ||
        listen(fd, KELP_SCRAPE_CONNECTIONS) != 0) {
        const int error = errno;
        if (fd >= 0) {
            (void)close(fd);
        }
        return not_possible(address, error, reterr);
    }
    *ret_fd = fd;
    return KELP_OK;
}

/* ---- ports ---- */

/* "127.0.0.1:9400", "[::1]:9400", "localhost:9400". */
static bool split(const char *address, char host[KELP_SCRAPE_ADDRESS_MAX + 1],
                  const char **ret_port)
{
    const char *colon = strrchr(address, ':');
    size_t length = colon ? (size_t)(colon - address) : 0;
    char *end = NULL;

    if (length >= 2 && address[0] == '[' && address[length - 1] == ']') {
        address++;
        length -= 2;
    }
    if (!colon || length == 0 || length > KELP_SCRAPE_ADDRESS_MAX) {
        return false;
    }
    (void)snprintf(host, KELP_SCRAPE_ADDRESS_MAX + 1, "%.*s", (int)length, address);
    const unsigned long port = strtoul(colon + 1, &end, 10);
    *ret_port = colon + 1;
    return colon[1] >= '0' && colon[1] <= '9' && *end == '\0' && port <= UINT16_MAX;
}

static int open_port(const struct addrinfo *found)
{
    const int one = 1;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0) {
        return -1;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)); /* bind() reports it */
    if (bind(fd, found->ai_addr, found->ai_addrlen) != 0 ||
        listen(fd, KELP_SCRAPE_CONNECTIONS) != 0) {
        const int error = errno;
        (void)close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static void print_address(int fd, char address[KELP_SCRAPE_ADDRESS_MAX + 1])
{
    struct sockaddr_storage name;
    socklen_t length = sizeof(name);
    char host[NI_MAXHOST] = "?";
    char port[NI_MAXSERV] = "?";

    (void)getsockname(fd, (struct sockaddr *)&name, &length); /* cannot fail for a bound socket */
    (void)getnameinfo((const struct sockaddr *)&name, length, host, sizeof(host), port,
                      sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
    const bool bare = strchr(host, ':') == NULL;
    (void)snprintf(address, KELP_SCRAPE_ADDRESS_MAX + 1, "%s%.250s%s:%.10s", bare ? "" : "[", host,
                   bare ? "" : "]", port);
}

static kelp_status listen_port(const char *address, int *ret_fd, struct kelp_error *reterr)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    char host[KELP_SCRAPE_ADDRESS_MAX + 1];
    const char *port = "";
    struct addrinfo *found = NULL;

    if (!split(address, host, &port)) {
        return kelp_fail(
            reterr, KELP_ERR_INVALID,
            "--metrics %.255s: expected HOST:PORT with a port from 0 to 65535, or unix:/PATH",
            address);
    }
    const int failed = getaddrinfo(host, port, &hints, &found);
    if (failed != 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "--metrics %.255s: %s", address,
                         gai_strerror(failed));
    }
    int fd = open_port(found);
    const int error = errno;
    freeaddrinfo(found);
    if (fd < 0) {
        return not_possible(address, error, reterr);
    }
    *ret_fd = fd;
    return KELP_OK;
}

kelp_status kelp_scrape_listen(const char *address, int *ret_fd,
                               char ret_address[KELP_SCRAPE_ADDRESS_MAX + 1],
                               struct kelp_error *reterr)
{
    const char *path = kelp_scrape_path(address);
    kelp_status status =
        path ? listen_path(address, path, ret_fd, reterr) : listen_port(address, ret_fd, reterr);

    if (status == KELP_OK && path) {
        (void)snprintf(ret_address, KELP_SCRAPE_ADDRESS_MAX + 1, "%s", address);
    } else if (status == KELP_OK) {
        print_address(*ret_fd, ret_address);
    }
    return status;
}
