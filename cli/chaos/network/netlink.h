/*
 * Messages to the kernel's tables of links, addresses, routes and rules (rtnetlink), and its
 * answers. A socket speaks for the network namespace in which its thread was when it was opened.
 */
#ifndef KELP_CLI_CHAOS_NETWORK_NETLINK_H
#define KELP_CLI_CHAOS_NETWORK_NETLINK_H

#include <linux/netlink.h>
#include <stddef.h>
#include <stdint.h>

#define KELP_NETLINK_BYTES_MAX 512 /* of a message behind its header; ours have some 100 */

struct kelp_netlink {
    struct nlmsghdr header;
    char rest[KELP_NETLINK_BYTES_MAX];
};

/* An empty message: its type (RTM_…), flags besides REQUEST and ACK, and the fields of the type. */
void kelp_netlink_begin(struct kelp_netlink *message, uint16_t type, uint16_t flags,
                        const void *fields, size_t bytes);
void kelp_netlink_add(struct kelp_netlink *message, uint16_t type, const void *value, size_t bytes);
void kelp_netlink_add_text(struct kelp_netlink *message, uint16_t type, const char *text);
/* Bytes that are no attribute. */
void kelp_netlink_put(struct kelp_netlink *message, const void *bytes, size_t count);
/* What is added until the end is in an attribute of that type. */
size_t kelp_netlink_nest(struct kelp_netlink *message, uint16_t type);
void kelp_netlink_nest_end(struct kelp_netlink *message, size_t nest);

/* Owned; -1 and errno when there is none. */
int kelp_netlink_open(void);
/* Send it and wait for the kernel's answer: 0 or an errno. */
int kelp_netlink_tell(int fd, const struct kelp_netlink *message);

#endif
