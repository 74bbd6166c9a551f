/*
 * Snapshots of a shard cluster (tests/lib/cluster/shard_cluster.h) and restores from them, as a
 * leader orders and commits them.
 */
#ifndef KELP_TESTS_LIB_CLUSTER_SHARD_SNAPSHOTS_H
#define KELP_TESTS_LIB_CLUSTER_SHARD_SNAPSHOTS_H

#include "common/training/manifest.h"
#include "tests/lib/cluster/shard_cluster.h"

/* Order a snapshot of `step` into the folder `name`, of all shards; or of one, and another
 * generation than the cluster's perhaps. */
void shard_cluster_order(struct shard_cluster *cluster, uint64_t serial, uint64_t step,
                         const char *name);
void shard_cluster_order_from(struct shard_cluster *cluster, uint32_t shard, uint64_t serial,
                              uint64_t generation, uint64_t step, const char *name);
void shard_cluster_give_up(struct shard_cluster *cluster, uint32_t shard, uint64_t serial);

/* All parts become durable; *manifest is what a leader would commit (kelp_manifest_fini()). */
void shard_cluster_commit(struct shard_cluster *cluster, uint64_t serial, const char *name,
                          struct kelp_manifest *manifest);
/* The first shard's snapshot ends so, without parts. */
void shard_cluster_expect_end(struct shard_cluster *cluster, uint64_t serial,
                              Kelp__V1__SnapshotState state, kelp_status status);

/* Load a generation from a checkpoint, and open the worker's streams. */
void shard_cluster_restore(struct shard_cluster *cluster, uint64_t generation,
                           const struct kelp_manifest *manifest);
/* The maps of it alone. */
void shard_cluster_send_restore(struct shard_cluster *cluster, const struct kelp_manifest *manifest,
                                bool with_hello);
/* Owned (free()). */
char *shard_cluster_manifest_text(const struct kelp_manifest *manifest);

void shard_cluster_expect_parts(const struct kelp_manifest *a, const struct kelp_manifest *b);
/* How many entries the folder of a checkpoint has; 0 where it is missing. */
unsigned shard_cluster_entries_of(const char *name);

#endif
