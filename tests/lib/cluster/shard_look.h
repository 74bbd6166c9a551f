/*
 * How far one shard of a running job is, by its own word. It is found through etcd, again after it
 * was started anew.
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

/* certs: the folder of an operator's certificate; "": none. Fails the test when it cannot. */
void kelp_shard_look_init(struct kelp_shard_look *look, const char *certs);
void kelp_shard_look_fini(struct kelp_shard_look *look);

/* Where etcd says that the shard is now; as before when etcd does not answer. */
void kelp_shard_look_find(struct kelp_shard_look *look, struct kelp_job_client *client,
                          const char *id);
/* False: it does not answer within 200 ms. */
bool kelp_shard_look(struct kelp_shard_look *look, struct kelp_shard_look_at *ret_at);

#endif
