/*
 * A server on a free loopback port that does to its connections what a test wants: for faults that
 * a real server cannot show. And one such: a proxy in front of a real server that loses, holds,
 * freezes or delays what passes through it.
 */
#ifndef KELP_TESTS_LIB_ETCD_TCP_DOUBLE_H
#define KELP_TESTS_LIB_ETCD_TCP_DOUBLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TCP_DOUBLE_CONNECTIONS_MAX = 512 };

struct tcp_double {
    /* Serve one connection, in a thread of its own; the descriptor is closed when it returns. */
    void (*serve)(struct tcp_double *server, int fd, void *user);
    void *user;
    int listen_fd;
    int stop_fd; /* an eventfd, readable once all has to end */
    uint16_t port;
    char url[64];
    pthread_t thread;
    pthread_t connections[TCP_DOUBLE_CONNECTIONS_MAX];
    size_t connection_count;
};

void tcp_double_start(struct tcp_double *server,
                      void (*serve)(struct tcp_double *server, int fd, void *user), void *user);
void tcp_double_stop(struct tcp_double *server);

/* Wait until the descriptor can be read; false when wait_ms is over or the server is to stop. */
bool tcp_double_readable(struct tcp_double *server, int fd, int wait_ms);
bool tcp_double_stopping(struct tcp_double *server);
/* All of it, or false. */
bool tcp_double_write(int fd, const void *bytes, size_t count);
/* Read one HTTP request (headers, and the body that content-length announces) as a text; false when
 * the peer went, or the server is to stop. A chunked body is not waited for. */
bool tcp_double_read_request(struct tcp_double *server, int fd, char *text, size_t text_bytes);

/* A port on which nobody listens. */
uint16_t tcp_double_closed_port(void);

struct tcp_proxy {
    struct tcp_double server;

    pthread_mutex_t lock; /* all below */
    pthread_cond_t changed;
    uint16_t to_port;
    const char *path;  /* requests whose first line begins with "POST <path>" are counted */
    int lose_answers;  /* of as many of them, the answers; the connection is then closed */
    int lose_requests; /* of as many, the requests themselves */
    bool hold;         /* they wait until it is false ... */
    int pass;          /* ... but for as many */
    int held;          /* how many wait */
    int seen;          /* how many came */
    int frozen_below;  /* connections numbered lower pass nothing on, and stay open */
    int connections;   /* numbers given so far */
    int delay_ms;      /* of what the server sends */
};

void tcp_proxy_start(struct tcp_proxy *proxy, uint16_t to_port, const char *path);
void tcp_proxy_stop(struct tcp_proxy *proxy);
void tcp_proxy_hold(struct tcp_proxy *proxy, bool hold);
/* But for the next `pass` of them. */
void tcp_proxy_hold_after(struct tcp_proxy *proxy, int pass);
void tcp_proxy_wait_held(struct tcp_proxy *proxy, int count);
void tcp_proxy_lose(struct tcp_proxy *proxy, int answers, int requests);
int tcp_proxy_seen(struct tcp_proxy *proxy);
/* Everything that the server sends from now on comes so much later: a link over a long way. */
void tcp_proxy_delay(struct tcp_proxy *proxy, int delay_ms);
/* Where connections to come lead to. */
void tcp_proxy_lead_to(struct tcp_proxy *proxy, uint16_t to_port);
/* All connections that are open now stay open and pass nothing on any more. */
void tcp_proxy_freeze(struct tcp_proxy *proxy);

#endif
