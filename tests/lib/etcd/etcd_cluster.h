/*
 * An etcd of three members on loopback, for what one member cannot show: a change of leader, a
 * member that is gone or stopped, a lost quorum. On an error these functions fail the running test;
 * call etcd_fixture_require() first.
 */
#ifndef KELP_TESTS_LIB_ETCD_ETCD_CLUSTER_H
#define KELP_TESTS_LIB_ETCD_ETCD_CLUSTER_H

#include <stdint.h>

#include "common/etcd/etcd.h"
#include "common/process/process.h"

enum { ETCD_CLUSTER_MEMBERS = 3 };

struct etcd_cluster {
    char folder[64];
    char urls[256]; /* of all members, separated by commas */
    struct {
        uint16_t client_port;
        uint16_t peer_port;
        char url[64];
        struct kelp_process *process; /* NULL: killed */
    } members[ETCD_CLUSTER_MEMBERS];
};

/* Start all members with an empty store and wait until they have a leader. */
void etcd_cluster_start(struct etcd_cluster *cluster);
void etcd_cluster_stop(struct etcd_cluster *cluster);

/* Index of the leader; waits for one. */
int etcd_cluster_leader(struct etcd_cluster *cluster);
/* Transfer leadership to another member. */
void etcd_cluster_move_leader(struct etcd_cluster *cluster, int to);

/* Add a member to the cluster that does not start. */
void etcd_cluster_expect_member(struct etcd_cluster *cluster);
/* Kill a member with SIGKILL; restart it with its data on the same ports. */
void etcd_cluster_kill(struct etcd_cluster *cluster, int member);
void etcd_cluster_restart(struct etcd_cluster *cluster, int member);
/* SIGSTOP, SIGCONT: connections stay open, nothing is answered. */
void etcd_cluster_pause(struct etcd_cluster *cluster, int member);
void etcd_cluster_resume(struct etcd_cluster *cluster, int member);

#endif
