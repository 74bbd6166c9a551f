/*
 * What must hold after every event; see the list in invariants.c. Whatever is broken ends the run
 * by sim_fail().
 */
#ifndef KELP_TESTS_SIM_INVARIANTS_H
#define KELP_TESTS_SIM_INVARIANTS_H

#include "coordinator/term/term.h"
#include "tests/sim/processes/shard.h"

struct sim_invariants *sim_invariants_create(void);
void sim_invariants_destroy(struct sim_invariants *invariants);

/* ---- shards ------------------------------------------------------------------------------------
 */

/* The process serves these partitions from now on. */
void sim_invariants_loaded(const struct sim_process *process, const struct sim_hosting *hosting);
/* The partition has done something, and perhaps shows more than before. */
void sim_invariants_seen(const struct sim_process *process, const struct sim_hosting *hosting,
                         const struct sim_hosted *hosted);
/* It has got a copy; partition 0 with this control state. */
void sim_invariants_filled(const struct sim_process *process, const struct sim_hosted *hosted,
                           const struct kelp_control_state *control);
/* hosted->step counts a step more, and its weights are the new ones. */
void sim_invariants_applied(const struct sim_process *process, const struct sim_hosting *hosting,
                            const struct sim_hosted *hosted);
void sim_invariants_record(const struct sim_process *process, const struct kelp_record *record);
/* Two gradients, of these lanes (bit masks), are added: left + right. */
void sim_invariants_merged(const struct sim_process *process, uint32_t partition, uint32_t left,
                           uint32_t right);
/* A step is applied from these lanes; these have samples. */
void sim_invariants_root(const struct sim_process *process, uint32_t partition,
                         const struct kelp_control_word *word, uint32_t lanes, uint32_t wanted);

/* It may end, says the leader, for this reason. */
void sim_invariants_leaves(const struct sim_process *process, const char *why);

/* hosted->capture is what a snapshot of this step keeps. */
void sim_invariants_captured(const struct sim_process *process, const struct sim_hosted *hosted,
                             uint64_t step);

/* ---- checkpoints -------------------------------------------------------------------------------
 */

/* A leader tells of this order, and that the process is to capture the partition. */
void sim_invariants_named(struct sim *sim, const struct kelp_snapshot_order *order,
                          uint32_t partition, uint64_t process);
/* The process has captured the partition for it, and keeps that. */
void sim_invariants_kept(const struct sim_process *process, const struct kelp_snapshot_order *order,
                         uint32_t partition);
/* The leader of this order, which is under way, changes entries by plan. */
void sim_invariants_moving(struct sim *sim, const struct kelp_snapshot_order *order,
                           const struct kelp_map *before, const struct kelp_map *after);
/* Its manifest says that the partition is in this storage. */
void sim_invariants_stored(struct sim *sim, const struct kelp_snapshot_order *order,
                           uint32_t partition, const char *storage);
/* A shard hears of this order. */
void sim_invariants_ordered(const struct sim_process *process,
                            const struct kelp_snapshot_order *order, const char *folder);
/* etcd has the manifest now. */
void sim_invariants_committed(struct sim *sim, struct sim_manifest *manifest);
/* What is committed must have survived. */
void sim_invariants_power_lost(struct sim *sim);
/* etcd has this map now: a generation is opened, manifests above what it restores are still there;
 * or entries of the one before have changed. */
void sim_invariants_opened(struct sim *sim, struct sim_map *opened);
/* Somebody removes what is left of this storage. */
void sim_invariants_removing(struct sim *sim, const struct sim_storage *storage);

/* ---- workers -----------------------------------------------------------------------------------
 */

/* The worker holds what it takes for w_v of this word. */
void sim_invariants_held(const struct sim_process *process, const struct kelp_control_word *word,
                         const float flat[SIM_FLAT_MAX]);

/* ---- the job -----------------------------------------------------------------------------------
 */

/* A leader answers Status. */
void sim_invariants_told(const struct sim_process *process, const struct kelp_term *term);
/* May a lie be in the result, although workers differ? What would show it never came, or is gone.
 */
bool sim_invariants_may_miss_lie(const struct sim *sim);
/* A record goes on file. */
void sim_invariants_filed(struct sim *sim, const struct kelp_record *record);
/* Now and then: what lasts too long. */
void sim_invariants_look(struct sim *sim);
/* etcd says that the job is done. */
void sim_invariants_done(struct sim *sim);

#endif
