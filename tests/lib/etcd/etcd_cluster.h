/*
 * An etcd of three members on loopback, for what one member cannot show: a change of its leader, a
 * member that is gone or stopped, a lost quorum. Everything here fails the running test when it
 * cannot do its work; call etcd_fixture_require() first.
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

/* Starts all members with an empty store and waits until they have a leader. */
void etcd_cluster_start(struct etcd_cluster *cluster);
void etcd_cluster_stop(struct etcd_cluster *cluster);

/* The member that leads; waits for one. */
int etcd_cluster_leader(struct etcd_cluster *cluster);
/* Hand the lead to another member, in order. */
void etcd_cluster_move_leader(struct etcd_cluster *cluster, int to);

/* A member is to come, and has not started. */
void etcd_cluster_expect_member(struct etcd_cluster *cluster);
/* SIGKILL; and back, with its data, on the same ports. */
void etcd_cluster_kill(struct etcd_cluster *cluster, int member);
void etcd_cluster_restart(struct etcd_cluster *cluster, int member);
/* SIGSTOP, SIGCONT: connections stay open, nothing is answered. */
void etcd_cluster_pause(struct etcd_cluster *cluster, int member);
void etcd_cluster_resume(struct etcd_cluster *cluster, int member);

#endif
