#ifndef KELP_CLI_CHAOS_NETWORK_NETWORK_INTERNAL_H
#define KELP_CLI_CHAOS_NETWORK_NETWORK_INTERNAL_H

#include <stdbool.h>

#include "cli/chaos/network/network.h"

struct host {
    int namespace_fd; /* each -1: none */
    int netlink_fd;
    int probe_fd; /* datagrams, at NETWORK_PROBE_PORT */
    int port;     /* index of its port of the bridge */
    int link;     /* and of its own end */
    char first[KELP_NETWORK_ADDRESS_MAX + 1];
    char moved[KELP_NETWORK_ADDRESS_MAX + 1]; /* "": it never has */
    bool cut;
    bool lost[KELP_NETWORK_HOSTS_MAX]; /* what it sends there */
};

struct kelp_network {
    uint32_t count;
    uint32_t moves; /* addresses given besides the first ones */
    int namespace_fd;
    int netlink_fd;
    int bridge;
    uint64_t probe; /* number of the newest check */
    struct host list[KELP_NETWORK_HOSTS_MAX];
};

#define NETWORK_PROBE_PORT 4747

/* "hosts are … not permitted: WHAT: ERROR": KELP_ERR_UNSUPPORTED. */
kelp_status kelp__network_refused(const char *what, int error, struct kelp_error *reterr);

/* A network of its own for this process, with nothing in it. Where that takes rights that it has
 * not, the program begins again in a user namespace of its own, and does not return. */
kelp_status kelp__network_leave_network(struct kelp_error *reterr) KELP_MUST_USE;

#endif
