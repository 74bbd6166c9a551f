#include "tests/lib/etcd/tcp_double.h"

#include <arpa/inet.h>
#include <check.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"

struct connection {
    struct tcp_double *server;
    int fd;
};

static int bind_loopback(uint16_t *ret_port)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(fd, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    *ret_port = ntohs(address.sin_port);
    return fd;
}

uint16_t tcp_double_closed_port(void)
{
    uint16_t port;

    (void)close(bind_loopback(&port));
    return port;
}

bool tcp_double_readable(struct tcp_double *server, int fd, int wait_ms)
{
    struct pollfd items[2] = {{.fd = fd, .events = POLLIN},
                              {.fd = server->stop_fd, .events = POLLIN}};

    return poll(items, 2, wait_ms) > 0 && items[1].revents == 0;
}

bool tcp_double_stopping(struct tcp_double *server)
{
    struct pollfd item = {.fd = server->stop_fd, .events = POLLIN};

    return poll(&item, 1, 0) > 0;
}

bool tcp_double_write(int fd, const void *bytes, size_t count)
{
    const char *from = bytes;

    while (count > 0) {
        ssize_t sent = send(fd, from, count, MSG_NOSIGNAL);
        if (sent <= 0) {
            return false;
        }
        from += sent;
        count -= (size_t)sent;
    }
    return true;
}

/* Bytes of the request with its body; 0: its headers are incomplete. */
static size_t request_bytes(const char *text)
{
    const char *end = strstr(text, "\r\n\r\n");
    const char *length = strcasestr(text, "\r\ncontent-length:");

    if (!end) {
        return 0;
    }
    size_t head = (size_t)(end - text) + 4;
    return head + (length && length < end ? (size_t)strtoul(length + 17, NULL, 10) : 0);
}

bool tcp_double_read_request(struct tcp_double *server, int fd, char *text, size_t text_bytes)
{
    size_t used = 0;
    size_t wanted = 0;

    text[0] = '\0';
    while (wanted == 0 || used < wanted) {
        if (used + 1 >= text_bytes || !tcp_double_readable(server, fd, -1)) {
            return false;
        }
        ssize_t got = recv(fd, text + used, text_bytes - 1 - used, 0);
        if (got <= 0) {
            return false;
        }
        used += (size_t)got;
        text[used] = '\0';
        wanted = request_bytes(text);
    }
    return true;
}

static void *serve_connection(void *user)
{
    struct connection *connection = user;

    connection->server->serve(connection->server, connection->fd, connection->server->user);
    (void)close(connection->fd);
    free(connection);
    return NULL;
}

static void *accept_connections(void *user)
{
    struct tcp_double *server = user;

    while (tcp_double_readable(server, server->listen_fd, -1)) {
        int fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC);
        struct connection *connection = malloc(sizeof(*connection));
        if (fd < 0 || !connection || server->connection_count == TCP_DOUBLE_CONNECTIONS_MAX) {
            (void)close(fd);
            free(connection);
            continue;
        }
        *connection = (struct connection){.server = server, .fd = fd};
        if (pthread_create(&server->connections[server->connection_count], NULL, serve_connection,
                           connection) == 0) {
            server->connection_count++;
        }
    }
    return NULL;
}

void tcp_double_start(struct tcp_double *server,
                      void (*serve)(struct tcp_double *server, int fd, void *user), void *user)
{
    memset(server, 0, sizeof(*server));
    server->serve = serve;
    server->user = user;
    server->stop_fd = eventfd(0, EFD_CLOEXEC);
    server->listen_fd = bind_loopback(&server->port);
    ck_assert_int_eq(listen(server->listen_fd, 64), 0);
    (void)snprintf(server->url, sizeof(server->url), "http://127.0.0.1:%u", server->port);
    ck_assert_int_eq(pthread_create(&server->thread, NULL, accept_connections, server), 0);
}

void tcp_double_stop(struct tcp_double *server)
{
    ck_assert_int_eq(eventfd_write(server->stop_fd, 1), 0);
    ck_assert_int_eq(pthread_join(server->thread, NULL), 0);
    for (size_t i = 0; i < server->connection_count; i++) {
        ck_assert_int_eq(pthread_join(server->connections[i], NULL), 0);
    }
    (void)close(server->listen_fd);
    (void)close(server->stop_fd);
}

/* ---- the proxy --------------------------------------------------------------------------------
 */

enum fate { FATE_PASS, FATE_LOSE_ANSWER, FATE_LOSE_REQUEST };

static enum fate decide(struct tcp_proxy *proxy, const char *bytes, size_t count)
{
    enum fate fate = FATE_PASS;
    size_t length = strlen(proxy->path);

    if (count < 5 + length || memcmp(bytes, "POST ", 5) != 0 ||
        memcmp(bytes + 5, proxy->path, length) != 0) {
        return FATE_PASS;
    }
    (void)pthread_mutex_lock(&proxy->lock);
    proxy->seen++;
    proxy->held++;
    (void)pthread_cond_broadcast(&proxy->changed);
    const bool passes = proxy->pass > 0;
    proxy->pass -= passes ? 1 : 0;
    while (proxy->hold && !passes) {
        (void)pthread_cond_wait(&proxy->changed, &proxy->lock);
    }
    proxy->held--;
    if (proxy->lose_requests > 0) {
        proxy->lose_requests--;
        fate = FATE_LOSE_REQUEST;
    } else if (proxy->lose_answers > 0) {
        proxy->lose_answers--;
        fate = FATE_LOSE_ANSWER;
    }
    (void)pthread_mutex_unlock(&proxy->lock);
    return fate;
}

static bool frozen(struct tcp_proxy *proxy, int number)
{
    (void)pthread_mutex_lock(&proxy->lock);
    bool is = number < proxy->frozen_below;
    (void)pthread_mutex_unlock(&proxy->lock);
    return is;
}

static int delay_ms(struct tcp_proxy *proxy)
{
    (void)pthread_mutex_lock(&proxy->lock);
    int delay = proxy->delay_ms;
    (void)pthread_mutex_unlock(&proxy->lock);
    return delay;
}

static int connect_to(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

/* Delayed bytes of the server. */
struct underway {
    struct underway *next;
    uint64_t due_ms;
    size_t count;
    char bytes[];
};

/* One connection through the proxy. */
struct passage {
    struct tcp_proxy *proxy;
    int number;
    int client, server;
    bool lose_answer;
    struct underway *first, **last; /* in the order of arrival */
};

static bool send_later(struct passage *passage, const char *bytes, size_t count, int delay)
{
    struct underway *item = malloc(sizeof(*item) + count);

    if (!item) {
        return false;
    }
    item->next = NULL;
    item->due_ms = kelp_clock_ms() + (uint64_t)delay;
    item->count = count;
    memcpy(item->bytes, bytes, count);
    *passage->last = item;
    passage->last = &item->next;
    return true;
}

/* Milliseconds until the next delayed bytes are due; -1: there are none. */
static int due_in(const struct passage *passage)
{
    const uint64_t now = kelp_clock_ms();

    if (!passage->first) {
        return -1;
    }
    return passage->first->due_ms > now ? (int)(passage->first->due_ms - now) : 0;
}

/* Write the bytes that are due; all: drop them instead. */
static bool arrive(struct passage *passage, bool all)
{
    bool going = true;

    while (passage->first && (all || (going && due_in(passage) == 0))) {
        struct underway *item = passage->first;
        going = all || tcp_double_write(passage->client, item->bytes, item->count);
        passage->first = item->next;
        free(item);
    }
    if (!passage->first) {
        passage->last = &passage->first;
    }
    return going;
}

/* Pass on bytes of the client or the server; false: the connection must end. */
static bool pass(struct passage *passage, bool to_server)
{
    static _Thread_local char bytes[65536];
    struct tcp_proxy *proxy = passage->proxy;
    ssize_t got = recv(to_server ? passage->client : passage->server, bytes, sizeof(bytes), 0);

    if (got <= 0) {
        return false;
    }
    if (frozen(proxy, passage->number)) {
        return true; /* dropped */
    }
    if (to_server) {
        enum fate fate = decide(proxy, bytes, (size_t)got);
        passage->lose_answer = passage->lose_answer || fate == FATE_LOSE_ANSWER;
        return fate != FATE_LOSE_REQUEST && tcp_double_write(passage->server, bytes, (size_t)got);
    }
    return !passage->lose_answer && send_later(passage, bytes, (size_t)got, delay_ms(proxy));
}

static void serve_proxy(struct tcp_double *server, int fd, void *user)
{
    struct tcp_proxy *proxy = user;
    struct passage passage = {.proxy = proxy, .client = fd};

    passage.last = &passage.first;
    (void)pthread_mutex_lock(&proxy->lock);
    passage.number = proxy->connections++;
    uint16_t to_port = proxy->to_port;
    (void)pthread_mutex_unlock(&proxy->lock);
    passage.server = connect_to(to_port);
    bool going = passage.server >= 0;
    while (going) {
        struct pollfd items[3] = {{.fd = passage.client, .events = POLLIN},
                                  {.fd = passage.server, .events = POLLIN},
                                  {.fd = server->stop_fd, .events = POLLIN}};
        going = poll(items, 3, due_in(&passage)) >= 0 && items[2].revents == 0;
        if (going && items[0].revents) {
            going = pass(&passage, true);
        }
        if (going && items[1].revents) {
            going = pass(&passage, false);
        }
        going = going && arrive(&passage, false);
    }
    (void)arrive(&passage, true);
    (void)close(passage.server);
}

void tcp_proxy_start(struct tcp_proxy *proxy, uint16_t to_port, const char *path)
{
    memset(proxy, 0, sizeof(*proxy));
    proxy->to_port = to_port;
    proxy->path = path;
    (void)pthread_mutex_init(&proxy->lock, NULL);
    (void)pthread_cond_init(&proxy->changed, NULL);
    tcp_double_start(&proxy->server, serve_proxy, proxy);
}

void tcp_proxy_stop(struct tcp_proxy *proxy)
{
    tcp_proxy_hold(proxy, false);
    tcp_double_stop(&proxy->server);
}

void tcp_proxy_hold(struct tcp_proxy *proxy, bool hold)
{
    (void)pthread_mutex_lock(&proxy->lock);
    proxy->hold = hold;
    (void)pthread_cond_broadcast(&proxy->changed);
    (void)pthread_mutex_unlock(&proxy->lock);
}

void tcp_proxy_hold_after(struct tcp_proxy *proxy, int pass)
{
    (void)pthread_mutex_lock(&proxy->lock);
    proxy->hold = true;
    proxy->pass = pass;
    (void)pthread_mutex_unlock(&proxy->lock);
}

void tcp_proxy_wait_held(struct tcp_proxy *proxy, int count)
{
    (void)pthread_mutex_lock(&proxy->lock);
    while (proxy->held < count) { /* bounded by the test's time limit */
        (void)pthread_cond_wait(&proxy->changed, &proxy->lock);
    }
    (void)pthread_mutex_unlock(&proxy->lock);
}

void tcp_proxy_lose(struct tcp_proxy *proxy, int answers, int requests)
{
    (void)pthread_mutex_lock(&proxy->lock);
    proxy->lose_answers = answers;
    proxy->lose_requests = requests;
    (void)pthread_mutex_unlock(&proxy->lock);
}

int tcp_proxy_seen(struct tcp_proxy *proxy)
{
    (void)pthread_mutex_lock(&proxy->lock);
    int seen = proxy->seen;
    (void)pthread_mutex_unlock(&proxy->lock);
    return seen;
}

void tcp_proxy_freeze(struct tcp_proxy *proxy)
{
    (void)pthread_mutex_lock(&proxy->lock);
    proxy->frozen_below = proxy->connections;
    (void)pthread_mutex_unlock(&proxy->lock);
}

void tcp_proxy_delay(struct tcp_proxy *proxy, int delay_ms)
{
    (void)pthread_mutex_lock(&proxy->lock);
    proxy->delay_ms = delay_ms;
    (void)pthread_mutex_unlock(&proxy->lock);
}

void tcp_proxy_lead_to(struct tcp_proxy *proxy, uint16_t to_port)
{
    (void)pthread_mutex_lock(&proxy->lock);
    proxy->to_port = to_port;
    (void)pthread_mutex_unlock(&proxy->lock);
}
