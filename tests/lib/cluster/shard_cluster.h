/*
 * Real kelp-ps processes that host one job, with a scripted coordinator and a scripted worker. On
 * an error these functions fail the running test.
 */
#ifndef KELP_TESTS_LIB_CLUSTER_SHARD_CLUSTER_H
#define KELP_TESTS_LIB_CLUSTER_SHARD_CLUSTER_H

#include "tests/lib/cluster/shard_client.h"
#include "tests/lib/commands/run_command.h"

#define SHARD_CLUSTER_MAX 3 /* shards of one cluster */

/* Shared by all clusters of a test. */
struct shard_bench {
    struct kelp_test_folder folder;
    char run[160];              /* the run's folder, in it */
    struct shard_fixture first; /* owns etcd and the job */
    struct shard_fixture joined[2 * SHARD_CLUSTER_MAX];
    uint32_t joined_count;
};
extern struct shard_bench shard_bench;

/* Shards that host one generation, and a worker. */
struct shard_cluster {
    struct shard_fixture *shards[SHARD_CLUSTER_MAX];
    uint32_t count;
    uint64_t generation;
    struct shard_stream control[SHARD_CLUSTER_MAX];
    struct shard_stream worker[SHARD_CLUSTER_MAX];
    struct kelp_control_word word;
    float *weights; /* the newest */
    bool elsewhere; /* maps name a shard of another cluster */
};

/* Start etcd with a job of two tensors, and shard-0. momentum: NULL for none. */
void shard_cluster_set_up(const char *optimizer, const char *momentum, const char *epochs);
/* The same with SGD, momentum and two epochs; for KELP_CASE(). */
void shard_cluster_set_up_momentum(void);
void shard_cluster_tear_down(void);

/* Start new processes; the first cluster of a test may use shard-0, too. */
void shard_cluster_gather(struct shard_cluster *cluster, uint32_t count, bool with_first);
/* Load generation `generation` from S_0, and open the worker's streams. */
void shard_cluster_begin(struct shard_cluster *cluster, uint64_t generation);
/* Close its streams and free. */
void shard_cluster_end(struct shard_cluster *cluster);

/* The steps of shard_cluster_begin(), one by one. manifest: text of what to restore, or NULL. */
void shard_cluster_open_control(struct shard_cluster *cluster);
void shard_cluster_send_map(struct shard_cluster *cluster, uint32_t to, bool with_hello,
                            const char *manifest, uint64_t restore_version);
void shard_cluster_await_loaded(struct shard_cluster *cluster);
void shard_cluster_open_worker(struct shard_cluster *cluster, uint64_t step);

/* Train until `version` entries are complete. */
void shard_cluster_train_to(struct shard_cluster *cluster, uint64_t version);
/* Index in the cluster of the shard that hosts a partition. */
uint32_t shard_cluster_host_of(const struct shard_cluster *cluster, uint32_t partition);
void shard_cluster_expect_weights(const struct shard_cluster *a, const struct shard_cluster *b);

#endif
