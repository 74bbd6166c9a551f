/* The snapshots of a simulated shard: orders in, parts on the virtual disk, reports out. */
#ifndef KELP_TESTS_SIM_SHARD_SNAPSHOT_H
#define KELP_TESTS_SIM_SHARD_SNAPSHOT_H

#include "tests/sim/shard.h"

void sim_snapshot_open(struct sim_shard *shard);
void sim_snapshot_close(struct sim_shard *shard);
void sim_snapshot_order(struct sim_shard *shard, const struct kelp_snapshot_order *order,
                        const char *folder);
void sim_snapshot_give_up(struct sim_shard *shard, const struct kelp_snapshot_order *order);
/* Another generation is about to be loaded. */
void sim_snapshot_cancel(struct sim_shard *shard);
/* shard->hosting is served from now on. */
void sim_snapshot_generation(struct sim_shard *shard);
/* False: nobody wants it any more. */
bool sim_snapshot_taken(struct sim_shard *shard, uint64_t ticket, uint32_t partition,
                        const struct kelp_control_word *word);
void sim_snapshot_past(struct sim_shard *shard, uint64_t ticket, uint64_t step);
void sim_snapshot_report(const struct sim_shard *shard, struct sim_snapshot_report *ret_report);

#endif
