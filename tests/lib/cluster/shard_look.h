/*
 * How far one shard of a running job is, as it reports. Its address comes from etcd, anew after a
 * restart.
 */
#ifndef KELP_TESTS_LIB_CLUSTER_SHARD_LOOK_H
#define KELP_TESTS_LIB_CLUSTER_SHARD_LOOK_H

#include "cli/cluster/job_client.h"
#include "common/tls/credentials.h"

struct kelp_shard_look {
    struct kelp_credentials *credentials; /* NULL: sockets, or ports without certificates */
    struct kelp_rpc_loop *loop;
    struct kelp_rpc_channel *channel; /* to the shard at `address`; NULL: none */
    char address[KELP_JOB_CLIENT_ADDRESS_MAX + 1];
};

struct kelp_shard_look_at {
    uint64_t generation;
    uint64_t step;
};

/* certs: the folder of an operator's certificate; "": none. Fails the test on an error. */
void kelp_shard_look_init(struct kelp_shard_look *look, const char *certs);
void kelp_shard_look_fini(struct kelp_shard_look *look);

/* Read the shard's present address from etcd; it stays unchanged if etcd does not answer. */
void kelp_shard_look_find(struct kelp_shard_look *look, struct kelp_job_client *client,
                          const char *id);
/* False: no answer within 200 ms. */
bool kelp_shard_look(struct kelp_shard_look *look, struct kelp_shard_look_at *ret_at);

#endif
