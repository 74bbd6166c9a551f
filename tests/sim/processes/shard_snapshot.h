/* The snapshots of a simulated shard: orders in, parts on the virtual disk, reports out. */
#ifndef KELP_TESTS_SIM_PROCESSES_SHARD_SNAPSHOT_H
#define KELP_TESTS_SIM_PROCESSES_SHARD_SNAPSHOT_H

#include "tests/sim/processes/shard.h"

void sim_snapshot_act(struct sim_shard *shard, const struct kelp_snapshot_action *action);
/* These partitions hear the order that was taken, if one was. */
void sim_snapshot_hand_out(struct sim_shard *shard, const uint32_t *partitions, uint32_t count);
void sim_snapshot_say(struct sim_shard *shard, const struct kelp_snapshot_view *view);
/* False: nobody wants it any more. */
bool sim_snapshot_taken(struct sim_shard *shard, uint64_t ticket, uint32_t partition,
                        const struct kelp_control_word *word);
void sim_snapshot_past(struct sim_shard *shard, uint64_t ticket, uint64_t step);
void sim_snapshot_report(const struct sim_shard *shard, const struct kelp_snapshot_view *view,
                         struct sim_snapshot_report *ret_report);

#endif
