/*
 * A server on a free loopback port that treats its connections as a test wants, for faults that a
 * real server cannot show. One such server is a proxy in front of a real server, which loses,
 * holds, freezes or delays what passes through it.
 */
#ifndef KELP_TESTS_LIB_ETCD_TCP_DOUBLE_H
#define KELP_TESTS_LIB_ETCD_TCP_DOUBLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TCP_DOUBLE_CONNECTIONS_MAX = 512 };

struct tcp_double {
    /* Serve one connection in its own thread; the descriptor is closed on return. */
    void (*serve)(struct tcp_double *server, int fd, void *user);
    void *user;
    int listen_fd;
    int stop_fd; /* an eventfd, readable once everything must end */
    uint16_t port;
    char url[64];
    pthread_t thread;
    pthread_t connections[TCP_DOUBLE_CONNECTIONS_MAX];
    size_t connection_count;
};

void tcp_double_start(struct tcp_double *server,
                      void (*serve)(struct tcp_double *server, int fd, void *user), void *user);
void tcp_double_stop(struct tcp_double *server);

/* Wait until the descriptor is readable; false: wait_ms is over or the server must stop. */
bool tcp_double_readable(struct tcp_double *server, int fd, int wait_ms);
bool tcp_double_stopping(struct tcp_double *server);
/* Write all bytes; false: impossible. */
bool tcp_double_write(int fd, const void *bytes, size_t count);
/* Read one HTTP request (headers, and a body with content-length) as text; false: the peer has
 * gone, or the server must stop. Does not wait for a chunked body. */
bool tcp_double_read_request(struct tcp_double *server, int fd, char *text, size_t text_bytes);

/* A port on which nothing listens. */
uint16_t tcp_double_closed_port(void);

struct tcp_proxy {
    struct tcp_double server;

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    uint16_t to_port;
    const char *path;  /* only requests that begin with "POST <path>" count */
    int lose_answers;  /* lose so many answers, and close the connection */
    int lose_requests; /* lose so many requests */
    bool hold;         /* requests wait while it is true ... */
    int pass;          /* ... except so many */
    int held;          /* waiting requests */
    int seen;          /* received requests */
    int frozen_below;  /* connections with lower numbers are frozen */
    int connections;   /* numbers given so far */
    int delay_ms;      /* delay of the server's bytes */
};

void tcp_proxy_start(struct tcp_proxy *proxy, uint16_t to_port, const char *path);
void tcp_proxy_stop(struct tcp_proxy *proxy);
void tcp_proxy_hold(struct tcp_proxy *proxy, bool hold);
/* The same, except the next `pass` requests. */
void tcp_proxy_hold_after(struct tcp_proxy *proxy, int pass);
void tcp_proxy_wait_held(struct tcp_proxy *proxy, int count);
void tcp_proxy_lose(struct tcp_proxy *proxy, int answers, int requests);
int tcp_proxy_seen(struct tcp_proxy *proxy);
/* Delay everything the server sends from now on, as over a long distance. */
void tcp_proxy_delay(struct tcp_proxy *proxy, int delay_ms);
/* Lead future connections to this port. */
void tcp_proxy_lead_to(struct tcp_proxy *proxy, uint16_t to_port);
/* Freeze all open connections: they stay open but pass nothing on. */
void tcp_proxy_freeze(struct tcp_proxy *proxy);

#endif
