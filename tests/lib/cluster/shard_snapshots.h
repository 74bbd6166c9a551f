/*
 * Snapshots of a shard cluster (tests/lib/cluster/shard_cluster.h), and restores from them, as a
 * leader orders and commits them.
 */
#ifndef KELP_TESTS_LIB_CLUSTER_SHARD_SNAPSHOTS_H
#define KELP_TESTS_LIB_CLUSTER_SHARD_SNAPSHOTS_H

#include "common/training/manifest.h"
#include "tests/lib/cluster/shard_cluster.h"

/* Order a snapshot of `step` into the folder `name` from all shards; or from one shard, possibly
 * for another generation than the cluster's. */
void shard_cluster_order(struct shard_cluster *cluster, uint64_t serial, uint64_t step,
                         const char *name);
void shard_cluster_order_from(struct shard_cluster *cluster, uint32_t shard, uint64_t serial,
                              uint64_t generation, uint64_t step, const char *name);
void shard_cluster_give_up(struct shard_cluster *cluster, uint32_t shard, uint64_t serial);

/* Wait until all parts are durable; *manifest is what a leader would commit
 * (kelp_manifest_fini()). */
void shard_cluster_commit(struct shard_cluster *cluster, uint64_t serial, const char *name,
                          struct kelp_manifest *manifest);
/* Wait until the first shard's snapshot ends like this, without parts. */
void shard_cluster_expect_end(struct shard_cluster *cluster, uint64_t serial,
                              Kelp__V1__SnapshotState state, kelp_status status);

/* Load a generation from a checkpoint, and open the worker's streams. */
void shard_cluster_restore(struct shard_cluster *cluster, uint64_t generation,
                           const struct kelp_manifest *manifest);
/* Send only the maps of a restore. */
void shard_cluster_send_restore(struct shard_cluster *cluster, const struct kelp_manifest *manifest,
                                bool with_hello);
/* Owned (free()). */
char *shard_cluster_manifest_text(const struct kelp_manifest *manifest);

void shard_cluster_expect_parts(const struct kelp_manifest *a, const struct kelp_manifest *b);
/* Number of entries in a checkpoint's folder; 0: it does not exist. */
unsigned shard_cluster_entries_of(const char *name);

#endif
