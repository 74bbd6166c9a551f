#include "cli/chaos/network/netlink.h"

#include <assert.h>
#include <errno.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/socket.h>

#define ANSWER_BYTES 1024

/* Room for so many bytes at the end, zeroed. */
static char *extend(struct kelp_netlink *message, size_t bytes)
{
    size_t at = NLMSG_ALIGN(message->header.nlmsg_len);

    assert(at + bytes <= sizeof(*message));
    message->header.nlmsg_len = (uint32_t)(at + bytes);
    return (char *)message + at;
}

void kelp_netlink_put(struct kelp_netlink *message, const void *bytes, size_t count)
{
    memcpy(extend(message, count), bytes, count);
}

void kelp_netlink_begin(struct kelp_netlink *message, uint16_t type, uint16_t flags,
                        const void *fields, size_t bytes)
{
    memset(message, 0, sizeof(*message));
    message->header.nlmsg_len = NLMSG_HDRLEN;
    message->header.nlmsg_type = type;
    message->header.nlmsg_flags = (uint16_t)(NLM_F_REQUEST | NLM_F_ACK | flags);
    kelp_netlink_put(message, fields, bytes);
}

void kelp_netlink_add(struct kelp_netlink *message, uint16_t type, const void *value, size_t bytes)
{
    struct rtattr attribute = {.rta_len = (uint16_t)RTA_LENGTH(bytes), .rta_type = type};
    char *at = extend(message, RTA_LENGTH(bytes));

    memcpy(at, &attribute, sizeof(attribute));
    if (bytes > 0) {
        memcpy(at + RTA_LENGTH(0), value, bytes);
    }
}

void kelp_netlink_add_text(struct kelp_netlink *message, uint16_t type, const char *text)
{
    kelp_netlink_add(message, type, text, strlen(text) + 1);
}

size_t kelp_netlink_nest(struct kelp_netlink *message, uint16_t type)
{
    size_t nest = NLMSG_ALIGN(message->header.nlmsg_len);

    kelp_netlink_add(message, type, NULL, 0);
    return nest;
}

void kelp_netlink_nest_end(struct kelp_netlink *message, size_t nest)
{
    struct rtattr attribute;

    memcpy(&attribute, (char *)message + nest, sizeof(attribute));
    attribute.rta_len = (uint16_t)(message->header.nlmsg_len - nest);
    memcpy((char *)message + nest, &attribute, sizeof(attribute));
}

int kelp_netlink_open(void)
{
    return socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
}

int kelp_netlink_tell(int fd, const struct kelp_netlink *message)
{
    char answer[ANSWER_BYTES];
    struct nlmsgerr verdict;

    if (send(fd, message, message->header.nlmsg_len, 0) < 0) {
        return errno;
    }
    ssize_t got = recv(fd, answer, sizeof(answer), 0);
    if (got < 0) {
        return errno;
    }
    if (got < (ssize_t)(NLMSG_HDRLEN + sizeof(verdict))) {
        return EIO;
    }
    memcpy(&verdict, answer + NLMSG_HDRLEN, sizeof(verdict));
    return -verdict.error;
}
