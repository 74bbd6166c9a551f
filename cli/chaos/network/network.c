#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli/chaos/network/netlink.h"
#include "cli/chaos/network/network_internal.h"

#define OWN_NAMESPACE "/proc/thread-self/ns/net"
#define BRIDGE        "bridge"
#define LINK          "eth0" /* of a host */
#define PREFIX_BITS   16
#define OPERATOR      "10.77.0.254" /* of this process on the bridge */
#define MOVED_EACH    250           /* addresses 10.77.X.1 to 10.77.X.250 for each X */

/* ---- links, addresses, routes: each is 0 or an errno ---------------------------------------- */

static int link_up(int netlink_fd, int link, bool up)
{
    const struct ifinfomsg fields = {
        .ifi_index = link, .ifi_flags = up ? IFF_UP : 0, .ifi_change = IFF_UP};
    struct kelp_netlink message;

    kelp_netlink_begin(&message, RTM_NEWLINK, 0, &fields, sizeof(fields));
    return kelp_netlink_tell(netlink_fd, &message);
}

static int add_bridge(int netlink_fd)
{
    const struct ifinfomsg fields = {.ifi_family = AF_UNSPEC};
    struct kelp_netlink message;

    kelp_netlink_begin(&message, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &fields, sizeof(fields));
    kelp_netlink_add_text(&message, IFLA_IFNAME, BRIDGE);
    size_t nest = kelp_netlink_nest(&message, IFLA_LINKINFO);
    kelp_netlink_add_text(&message, IFLA_INFO_KIND, "bridge");
    kelp_netlink_nest_end(&message, nest);
    return kelp_netlink_tell(netlink_fd, &message);
}

/* A cable: one end is a port of the bridge, the other is in the host's namespace. */
static int add_cable(const struct kelp_network *network, const struct host *host, const char *port)
{
    const struct ifinfomsg fields = {.ifi_family = AF_UNSPEC};
    const uint32_t bridge = (uint32_t)network->bridge;
    const uint32_t namespace_fd = (uint32_t)host->namespace_fd;
    struct kelp_netlink message;

    kelp_netlink_begin(&message, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &fields, sizeof(fields));
    kelp_netlink_add_text(&message, IFLA_IFNAME, port);
    kelp_netlink_add(&message, IFLA_MASTER, &bridge, sizeof(bridge));
    size_t info = kelp_netlink_nest(&message, IFLA_LINKINFO);
    kelp_netlink_add_text(&message, IFLA_INFO_KIND, "veth");
    size_t data = kelp_netlink_nest(&message, IFLA_INFO_DATA);
    size_t peer = kelp_netlink_nest(&message, VETH_INFO_PEER);
    kelp_netlink_put(&message, &fields, sizeof(fields));
    kelp_netlink_add_text(&message, IFLA_IFNAME, LINK);
    kelp_netlink_add(&message, IFLA_NET_NS_FD, &namespace_fd, sizeof(namespace_fd));
    kelp_netlink_nest_end(&message, peer);
    kelp_netlink_nest_end(&message, data);
    kelp_netlink_nest_end(&message, info);
    return kelp_netlink_tell(network->netlink_fd, &message);
}

static int change_address(int netlink_fd, int link, const char *address, bool add)
{
    const struct ifaddrmsg fields = {
        .ifa_family = AF_INET, .ifa_prefixlen = PREFIX_BITS, .ifa_index = (uint32_t)link};
    struct kelp_netlink message;
    struct in_addr bits;

    if (inet_pton(AF_INET, address, &bits) != 1) {
        return EINVAL;
    }
    kelp_netlink_begin(&message, add ? RTM_NEWADDR : RTM_DELADDR,
                       add ? NLM_F_CREATE | NLM_F_EXCL : 0, &fields, sizeof(fields));
    kelp_netlink_add(&message, IFA_LOCAL, &bits, sizeof(bits));
    kelp_netlink_add(&message, IFA_ADDRESS, &bits, sizeof(bits));
    return kelp_netlink_tell(netlink_fd, &message);
}

/* What is sent to that address is dropped without a word. */
static int blackhole(int netlink_fd, const char *address, bool add)
{
    const struct rtmsg fields = {.rtm_family = AF_INET,
                                 .rtm_dst_len = 32,
                                 .rtm_table = RT_TABLE_MAIN,
                                 .rtm_protocol = RTPROT_STATIC,
                                 .rtm_type = RTN_BLACKHOLE};
    struct kelp_netlink message;
    struct in_addr bits;

    if (inet_pton(AF_INET, address, &bits) != 1) {
        return EINVAL;
    }
    kelp_netlink_begin(&message, add ? RTM_NEWROUTE : RTM_DELROUTE,
                       add ? NLM_F_CREATE | NLM_F_EXCL : 0, &fields, sizeof(fields));
    kelp_netlink_add(&message, RTA_DST, &bits, sizeof(bits));
    return kelp_netlink_tell(netlink_fd, &message);
}

/* ---- namespaces ---------------------------------------------------------------------------- */

static int open_own_namespace(void)
{
    return open(OWN_NAMESPACE, O_RDONLY | O_CLOEXEC);
}

kelp_status kelp_network_enter(const struct kelp_network *network, uint32_t host,
                               struct kelp_error *reterr)
{
    return setns(network->list[host].namespace_fd, CLONE_NEWNET) == 0
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_IO, "cannot enter host-%" PRIu32 ": %s", host,
                           strerror(errno));
}

kelp_status kelp_network_return(const struct kelp_network *network, struct kelp_error *reterr)
{
    return setns(network->namespace_fd, CLONE_NEWNET) == 0
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_IO, "cannot leave a host: %s", strerror(errno));
}

/* ---- making -------------------------------------------------------------------------------- */

/* Datagrams to any address of the host, by this thread, which is on it. */
static int open_probe(void)
{
    const struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(NETWORK_PROBE_PORT)};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd >= 0 && bind(fd, (const struct sockaddr *)&any, sizeof(any)) < 0) {
        int error = errno;
        (void)close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static int loopback_up(int netlink_fd)
{
    int loopback = (int)if_nametoindex("lo");

    return loopback > 0 ? link_up(netlink_fd, loopback, true) : errno;
}

/* A namespace with loopback, this thread in it. */
static int make_namespace(struct host *host)
{
    if (unshare(CLONE_NEWNET) < 0) {
        return errno;
    }
    host->namespace_fd = open_own_namespace();
    host->netlink_fd = kelp_netlink_open();
    host->probe_fd = open_probe();
    if (host->namespace_fd < 0 || host->netlink_fd < 0 || host->probe_fd < 0) {
        return errno;
    }
    return loopback_up(host->netlink_fd);
}

/* Its end of the cable, this thread being on it. */
static int set_link(struct host *host)
{
    host->link = (int)if_nametoindex(LINK);
    int error = host->link > 0 ? 0 : errno;

    if (error == 0) {
        error = change_address(host->netlink_fd, host->link, host->first, true);
    }
    return error == 0 ? link_up(host->netlink_fd, host->link, true) : error;
}

static kelp_status make_host(struct kelp_network *network, uint32_t index,
                             struct kelp_error *reterr)
{
    struct host *host = &network->list[index];
    char port[IFNAMSIZ];

    (void)snprintf(port, sizeof(port), "port-%" PRIu32, index);
    (void)snprintf(host->first, sizeof(host->first), "10.77.0.%" PRIu32, index + 1);
    int error = make_namespace(host);
    if (error != 0) {
        return kelp__network_refused("a host's namespace", error, reterr);
    }
    error = add_cable(network, host, port);
    if (error == 0) {
        error = set_link(host);
    }
    if (error != 0) {
        return kelp__network_refused("a pair of virtual links", error, reterr);
    }
    kelp_status status = kelp_network_return(network, reterr);
    if (status == KELP_OK) {
        host->port = (int)if_nametoindex(port);
        error = host->port > 0 ? link_up(network->netlink_fd, host->port, true) : errno;
        status = error == 0 ? KELP_OK : kelp__network_refused("a port of a bridge", error, reterr);
    }
    return status;
}

/* The bridge, at which this process has an address. */
static kelp_status make_switch(struct kelp_network *network, struct kelp_error *reterr)
{
    network->namespace_fd = open_own_namespace();
    network->netlink_fd = kelp_netlink_open();
    if (network->namespace_fd < 0 || network->netlink_fd < 0) {
        return kelp__network_refused("the kernel's tables", errno, reterr);
    }
    int error = loopback_up(network->netlink_fd);
    if (error == 0) {
        error = add_bridge(network->netlink_fd);
    }
    if (error == 0) {
        network->bridge = (int)if_nametoindex(BRIDGE);
        error = change_address(network->netlink_fd, network->bridge, OPERATOR, true);
    }
    if (error == 0) {
        error = link_up(network->netlink_fd, network->bridge, true);
    }
    return error == 0 ? KELP_OK : kelp__network_refused("a bridge", error, reterr);
}

kelp_status kelp_network_make(uint32_t count, struct kelp_network **ret_network,
                              struct kelp_error *reterr)
{
    struct kelp_network *network = calloc(1, sizeof(*network));

    if (!network) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    network->count = count < KELP_NETWORK_HOSTS_MAX ? count : KELP_NETWORK_HOSTS_MAX;
    network->namespace_fd = -1;
    network->netlink_fd = -1;
    for (uint32_t i = 0; i < KELP_NETWORK_HOSTS_MAX; i++) {
        network->list[i] = (struct host){.namespace_fd = -1, .netlink_fd = -1, .probe_fd = -1};
    }
    kelp_status status = kelp__network_leave_network(reterr);
    if (status == KELP_OK) {
        status = make_switch(network, reterr);
    }
    for (uint32_t i = 0; status == KELP_OK && i < network->count; i++) {
        status = make_host(network, i, reterr);
    }
    if (status != KELP_OK) {
        kelp_network_close(network);
        return status;
    }
    *ret_network = network;
    return KELP_OK;
}

static void close_fd(int fd)
{
    if (fd >= 0) {
        (void)close(fd);
    }
}

void kelp_network_close(struct kelp_network *network)
{
    if (!network) {
        return;
    }
    for (uint32_t i = 0; i < KELP_NETWORK_HOSTS_MAX; i++) {
        close_fd(network->list[i].namespace_fd);
        close_fd(network->list[i].netlink_fd);
        close_fd(network->list[i].probe_fd);
    }
    close_fd(network->namespace_fd);
    close_fd(network->netlink_fd);
    free(network);
}

uint32_t kelp_network_count(const struct kelp_network *network)
{
    return network->count;
}

const char *kelp_network_first_address(const struct kelp_network *network, uint32_t host)
{
    return network->list[host].first;
}

const char *kelp_network_address(const struct kelp_network *network, uint32_t host)
{
    const struct host *one = &network->list[host];
    return one->moved[0] != '\0' ? one->moved : one->first;
}

/* ---- faults -------------------------------------------------------------------------------- */

kelp_status kelp_network_cut(struct kelp_network *network, uint32_t host, bool cut,
                             struct kelp_error *reterr)
{
    int error = link_up(network->netlink_fd, network->list[host].port, !cut);

    if (error != 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "cannot %s host-%" PRIu32 ": %s",
                         cut ? "cut off" : "join", host, strerror(error));
    }
    network->list[host].cut = cut;
    return KELP_OK;
}

kelp_status kelp_network_lose(struct kelp_network *network, uint32_t from, uint32_t to, bool lose,
                              struct kelp_error *reterr)
{
    struct host *sender = &network->list[from];
    const struct host *receiver = &network->list[to];
    int error = blackhole(sender->netlink_fd, receiver->first, lose);

    if (error == 0 && receiver->moved[0] != '\0') {
        error = blackhole(sender->netlink_fd, receiver->moved, lose);
    }
    if (error != 0) {
        return kelp_fail(reterr, KELP_ERR_IO,
                         "cannot %s what host-%" PRIu32 " sends to host-%" PRIu32 ": %s",
                         lose ? "lose" : "let through", from, to, strerror(error));
    }
    sender->lost[to] = lose;
    return KELP_OK;
}

kelp_status kelp_network_move(struct kelp_network *network, uint32_t host,
                              struct kelp_error *reterr)
{
    struct host *one = &network->list[host];
    char next[32];
    int error = 0;

    (void)snprintf(next, sizeof(next), "10.77.%u.%u",
                   1 + (network->moves / MOVED_EACH) % MOVED_EACH, 1 + network->moves % MOVED_EACH);
    if (one->moved[0] != '\0') {
        error = change_address(one->netlink_fd, one->link, one->moved, false);
    }
    if (error == 0) {
        error = change_address(one->netlink_fd, one->link, next, true);
    }
    if (error != 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "cannot give host-%" PRIu32 " address %s: %s", host,
                         next, strerror(error));
    }
    network->moves++;
    (void)snprintf(one->moved, sizeof(one->moved), "%.*s", KELP_NETWORK_ADDRESS_MAX, next);
    return KELP_OK;
}
