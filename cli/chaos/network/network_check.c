/* Datagrams from each host to each other one, by sockets that only this process reads. */
#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "cli/chaos/network/network_internal.h"
#include "common/base/clock.h"

#define AGAIN_MS 20 /* until all are sent once more: one may be lost to a busy machine */

struct datagram {
    uint64_t probe;
    uint32_t from;
    uint32_t unused;
};

struct heard {
    bool from[KELP_NETWORK_HOSTS_MAX][KELP_NETWORK_HOSTS_MAX]; /* [from][to] */
};

static bool must_be_lost(const struct kelp_network *network, uint32_t from, uint32_t to)
{
    return network->list[from].cut || network->list[to].cut || network->list[from].lost[to];
}

static void send_all(const struct kelp_network *network)
{
    for (uint32_t from = 0; from < network->count; from++) {
        const struct datagram datagram = {.probe = network->probe, .from = from};
        for (uint32_t to = 0; to < network->count; to++) {
            struct sockaddr_in address = {.sin_family = AF_INET,
                                          .sin_port = htons(NETWORK_PROBE_PORT)};
            if (from == to || inet_pton(AF_INET, network->list[to].first, &address.sin_addr) != 1) {
                continue;
            }
            /* Refused or not: what counts is whether it arrives. */
            ssize_t sent = sendto(network->list[from].probe_fd, &datagram, sizeof(datagram),
                                  MSG_NOSIGNAL, (const struct sockaddr *)&address, sizeof(address));
            (void)sent;
        }
    }
}

static void receive(const struct kelp_network *network, uint32_t to, struct heard *heard)
{
    struct datagram datagram;

    while (recv(network->list[to].probe_fd, &datagram, sizeof(datagram), 0) ==
           (ssize_t)sizeof(datagram)) {
        if (datagram.probe == network->probe && datagram.from < network->count) {
            heard->from[datagram.from][to] = true;
        }
    }
}

static void listen_all(const struct kelp_network *network, int wait_ms, struct heard *heard)
{
    struct pollfd items[KELP_NETWORK_HOSTS_MAX];

    for (uint32_t i = 0; i < network->count; i++) {
        items[i] = (struct pollfd){.fd = network->list[i].probe_fd, .events = POLLIN};
    }
    if (poll(items, network->count, wait_ms) <= 0) {
        return;
    }
    for (uint32_t i = 0; i < network->count; i++) {
        receive(network, i, heard);
    }
}

/* The first pair for which it is not as it must be; false: there is none. */
static bool find_wrong(const struct kelp_network *network, const struct heard *heard, bool arrived,
                       uint32_t pair[2])
{
    for (uint32_t from = 0; from < network->count; from++) {
        for (uint32_t to = 0; to < network->count; to++) {
            if (from != to && heard->from[from][to] == arrived &&
                must_be_lost(network, from, to) == arrived) {
                pair[0] = from;
                pair[1] = to;
                return true;
            }
        }
    }
    return false;
}

static bool any_lost(const struct kelp_network *network)
{
    for (uint32_t from = 0; from < network->count; from++) {
        for (uint32_t to = 0; to < network->count; to++) {
            if (must_be_lost(network, from, to)) {
                return true;
            }
        }
    }
    return false;
}

/* Send once and listen for a while: to the end where something must be lost, else until all is
 * heard. */
static void look(const struct kelp_network *network, bool to_the_end, struct heard *heard)
{
    uint64_t end_ms = kelp_clock_ms() + AGAIN_MS;
    uint32_t pair[2];

    send_all(network);
    for (uint64_t now = kelp_clock_ms();
         now < end_ms && (to_the_end || find_wrong(network, heard, false, pair));
         now = kelp_clock_ms()) {
        listen_all(network, (int)(end_ms - now), heard);
    }
}

kelp_status kelp_network_check(struct kelp_network *network, struct kelp_error *reterr)
{
    struct heard heard = {.from = {{false}}};
    uint64_t start_ms = kelp_clock_ms();
    uint64_t age_ms = 0;
    uint32_t pair[2] = {0, 0};
    bool lost = any_lost(network);
    bool missing = true;

    network->probe++;
    while (age_ms < KELP_NETWORK_HEARD_MS && (missing || (lost && age_ms < KELP_NETWORK_LOST_MS))) {
        look(network, lost, &heard);
        missing = find_wrong(network, &heard, false, pair);
        age_ms = kelp_clock_ms() - start_ms;
    }
    if (missing) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH,
                         "nothing that host-%" PRIu32 " sends arrives at host-%" PRIu32
                         ", though no fault lies between them",
                         pair[0], pair[1]);
    }
    return find_wrong(network, &heard, true, pair)
               ? kelp_fail(reterr, KELP_ERR_MISMATCH,
                           "what host-%" PRIu32 " sends arrives at host-%" PRIu32
                           ", though the fault that lies between them loses it",
                           pair[0], pair[1])
               : KELP_OK;
}
