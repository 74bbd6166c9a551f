/*
 * Packets that two processes do not get from one another, also one way alone, in the network
 * namespace that kelp_chaos_net_enter() made. Fails the running test when it cannot.
 */
#ifndef KELP_TESTS_LIB_CLUSTER_NET_SPLIT_H
#define KELP_TESTS_LIB_CLUSTER_NET_SPLIT_H

#include "cli/chaos/chaos_net.h"

/* Drop what goes from one process to the other, over the connections that they have now. Call it
 * again and again for those that they open later. */
void kelp_net_split_way(struct kelp_chaos_split *split, pid_t from, pid_t to);

#endif
