/*
 * Hosts on this machine: network namespaces that a bridge joins, in a namespace of this process,
 * which has an address on the bridge too. Host N has 10.77.0.(N + 1). Nothing outside is reached,
 * and nothing outside reaches them.
 *
 * They have no names in the file system: descriptors and processes hold them, and they go with
 * these, however they end. An ordinary user gets them in a user namespace of their own.
 *
 * Faults of the network are kept in mind, and kelp_network_check() sends datagrams to see that they
 * are real: what is cut off hears nothing, and all else hears all.
 *
 * Threads: one, after kelp_network_make().
 */
#ifndef KELP_CLI_CHAOS_NETWORK_NETWORK_H
#define KELP_CLI_CHAOS_NETWORK_NETWORK_H

#include <stdint.h>

#include "common/base/status.h"

#define KELP_NETWORK_HOSTS_MIN   3 /* a majority of etcd's members outlives one */
#define KELP_NETWORK_HOSTS_MAX   9
#define KELP_NETWORK_ADDRESS_MAX 31   /* bytes of "10.77.255.250" and more */
#define KELP_NETWORK_LOST_MS     100  /* a datagram that has not come by then is lost */
#define KELP_NETWORK_HEARD_MS    2000 /* and one that is to come may take so long */

struct kelp_network;

/*
 * Make them, and move this process in among them; once, from the main thread, before others are
 * made. Errors: KELP_ERR_UNSUPPORTED (this machine does not permit it; the text says what),
 * KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_network_make(uint32_t count, struct kelp_network **ret_network,
                              struct kelp_error *reterr) KELP_MUST_USE;
/* Lets go of them. This process stays where it is. NULL is fine. */
void kelp_network_close(struct kelp_network *network);

uint32_t kelp_network_count(const struct kelp_network *network);
/* The one that it always has, and the one that it has now; borrowed. */
const char *kelp_network_first_address(const struct kelp_network *network, uint32_t host);
const char *kelp_network_address(const struct kelp_network *network, uint32_t host);

/* This thread, and the processes that it starts, are on the host from now on; until it returns to
 * where the others are. Errors: KELP_ERR_IO. */
kelp_status kelp_network_enter(const struct kelp_network *network, uint32_t host,
                               struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_network_return(const struct kelp_network *network,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* Cut the host off from all others, or join it to them again. Errors: KELP_ERR_IO. */
kelp_status kelp_network_cut(struct kelp_network *network, uint32_t host, bool cut,
                             struct kelp_error *reterr) KELP_MUST_USE;
/* Lose what one sends to another, or let it through again; the way back stays open. While it is
 * lost, the other must not move. */
kelp_status kelp_network_lose(struct kelp_network *network, uint32_t from, uint32_t to, bool lose,
                              struct kelp_error *reterr) KELP_MUST_USE;
/* Give it an address that no host has had, besides its first one. */
kelp_status kelp_network_move(struct kelp_network *network, uint32_t host,
                              struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Is each datagram lost that must be, and does each other arrive? Takes KELP_NETWORK_LOST_MS where
 * some must be lost. Errors: KELP_ERR_MISMATCH (the text says from whom to whom).
 */
kelp_status kelp_network_check(struct kelp_network *network,
                               struct kelp_error *reterr) KELP_MUST_USE;

/*
 * SIGKILL to all processes that are on the host, as by a loss of power, and wait until they are
 * gone. *ret_count: how many there were. Errors: KELP_ERR_TIMEOUT (some stay), KELP_ERR_IO.
 */
kelp_status kelp_network_kill(const struct kelp_network *network, uint32_t host,
                              uint32_t *ret_count, struct kelp_error *reterr) KELP_MUST_USE;

#endif
