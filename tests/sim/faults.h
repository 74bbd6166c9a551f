/* What goes wrong besides messages (network.h), requests to etcd (etcd.h) and the disk (disk.h). */
#ifndef KELP_TESTS_SIM_FAULTS_H
#define KELP_TESTS_SIM_FAULTS_H

#include "tests/sim/world.h"

enum sim_fault {
    SIM_FAULT_KILL_WORKER,
    SIM_FAULT_KILL_WORKERS, /* all of them */
    SIM_FAULT_KILL_SHARD,
    SIM_FAULT_KILL_COORDINATOR,
    SIM_FAULT_PAUSE,
    SIM_FAULT_POWER_HOST,
    SIM_FAULT_POWER_ALL,
    SIM_FAULT_SPLIT,
    SIM_FAULT_ETCD,
    SIM_FAULT_STREAM,
    SIM_FAULT_DAMAGE,
    SIM_FAULT_REQUEST,   /* no fault: somebody asks for a checkpoint */
    SIM_FAULT_PAUSE_JOB, /* none either: somebody lets the job rest; later it is resumed */
    SIM_FAULT_SCALE,     /* nor this: somebody asks for another size */
    SIM_FAULT_CUT,
    SIM_FAULT_DRAIN, /* no fault: a process is to go in order */
    SIM_FAULT_COUNT
};
_Static_assert(SIM_FAULT_COUNT <= KELP_ARRAY_COUNT(((struct sim_profile *)0)->weights),
               "a weight for each kind of fault");

struct sim_faults *sim_faults_create(void);
void sim_faults_destroy(struct sim_faults *faults);
/* From now on until profile.faults_end; then everything heals. */
void sim_faults_begin(struct sim *sim);
/* A shard has written its part of a checkpoint: where etcd and disks are slow, it may be lost while
 * that is being committed. */
void sim_faults_durable(struct sim *sim, struct sim_process *shard);
/* True once everything has healed and who was killed has been started again. */
bool sim_faults_over(const struct sim *sim);

#endif
