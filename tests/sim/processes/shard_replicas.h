/* Streams between simulated shards: what ps/service/replicas/links.c, follow.c and
 * copies.c do. */
#ifndef KELP_TESTS_SIM_PROCESSES_SHARD_REPLICAS_H
#define KELP_TESTS_SIM_PROCESSES_SHARD_REPLICAS_H

#include "tests/sim/processes/shard.h"

/* One of the partition's actions of replication. */
void sim_replicas_act(struct sim_hosting *hosting, struct sim_hosted *hosted,
                      const struct kelp_action *action);
/* The partition has just come: which links are up. */
void sim_replicas_name_links(struct sim_hosting *hosting, struct sim_hosted *hosted);
/* The map that is carried out says whom to send to. */
void sim_replicas_connect(struct sim_shard *shard);
void sim_replicas_stop_copy(struct sim_hosted *hosted);
/* Of which other shards something is wrong; likewise. */
size_t sim_replicas_peers(struct sim_shard *shard,
                          struct sim_peer_report ret_peers[SIM_SHARDS_MAX]);
/* What the leader is told; returns how many. */
size_t sim_replicas_report(const struct sim_shard *shard,
                           struct kelp_replica_report ret_reports[SIM_PARTITIONS_MAX]);

#endif
