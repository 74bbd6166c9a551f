/*
 * Drops packets between two processes, in both directions or one, in the network namespace that
 * kelp_chaos_net_enter() made. On an error these functions fail the running test.
 */
#ifndef KELP_TESTS_LIB_CLUSTER_NET_SPLIT_H
#define KELP_TESTS_LIB_CLUSTER_NET_SPLIT_H

#include "cli/chaos/chaos_net.h"

/* Drop packets from one process to the other on their present connections. Call it repeatedly to
 * include connections that they open later. */
void kelp_net_split_way(struct kelp_chaos_split *split, pid_t from, pid_t to);

#endif
