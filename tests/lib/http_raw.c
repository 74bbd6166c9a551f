#include "tests/lib/http_raw.h"

#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"

#define READ_MS 20000

static int connect_unix(const char *path)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(fd, 0);
    ck_assert_uint_lt(strlen(path), sizeof(name.sun_path));
    memcpy(name.sun_path, path, strlen(path) + 1);
    if (connect(fd, (const struct sockaddr *)&name, sizeof(name)) != 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

static int connect_port(const char *address)
{
    const char *port = strrchr(address, ':');
    struct sockaddr_in name = {.sin_family = AF_INET,
                               .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(fd, 0);
    ck_assert_ptr_nonnull(port);
    name.sin_port = htons((uint16_t)strtoul(port + 1, NULL, 10));
    if (connect(fd, (const struct sockaddr *)&name, sizeof(name)) != 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

int kelp_test_http_connect(const char *address)
{
    return strncmp(address, "unix:", 5) == 0 ? connect_unix(address + 5) : connect_port(address);
}

void kelp_test_http_send(int fd, const char *bytes, size_t count)
{
    while (count > 0) {
        const ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL);
        if (sent <= 0) {
            return;
        }
        bytes += sent;
        count -= (size_t)sent;
    }
}

const char *kelp_test_http_read(int fd, uint32_t timeout_ms)
{
    static char response[KELP_TEST_HTTP_MAX];
    const uint64_t until_ms = kelp_clock_ms() + timeout_ms;
    size_t used = 0;

    for (;;) {
        const uint64_t now_ms = kelp_clock_ms();
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        ck_assert_msg(now_ms < until_ms && poll(&wait, 1, (int)(until_ms - now_ms)) > 0,
                      "the server keeps the connection open");
        ck_assert_uint_lt(used, sizeof(response) - 1);
        const ssize_t got = recv(fd, response + used, sizeof(response) - 1 - used, 0);
        if (got <= 0) { /* closed, or reset with unread bytes */
            break;
        }
        used += (size_t)got;
    }
    (void)close(fd);
    response[used] = '\0';
    return response;
}

const char *kelp_test_http_ask(const char *address, const char *method, const char *path)
{
    char request[512];
    int fd = kelp_test_http_connect(address);

    if (fd < 0) {
        return "";
    }
    const int count =
        snprintf(request, sizeof(request),
                 "%s %s HTTP/1.1\r\nHost: watched\r\nUser-Agent: test\r\n\r\n", method, path);
    kelp_test_http_send(fd, request, (size_t)count);
    return kelp_test_http_read(fd, READ_MS);
}

int kelp_test_http_status(const char *response)
{
    return strncmp(response, "HTTP/1.1 ", 9) == 0 ? (int)strtol(response + 9, NULL, 10) : 0;
}

const char *kelp_test_http_body(const char *response)
{
    const char *end = strstr(response, "\r\n\r\n");

    return end ? end + 4 : "";
}

double kelp_test_http_sample(const char *body, const char *name)
{
    const size_t length = strlen(name);

    for (const char *line = body; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n' ? 1 : 0;
        if (strncmp(line, name, length) == 0 && line[length] == ' ') {
            return strtod(line + length + 1, NULL);
        }
        if (*line == '\0') {
            break;
        }
    }
    return -1.0;
}
