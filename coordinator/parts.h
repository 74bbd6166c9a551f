/*
 * What a coordinator is made of, for the four files that join its parts: coordinator.c (its life),
 * effects.c (what the core wants done), etcd_events.c (what etcd reports) and look.c (what whoever
 * watches is told). No part includes this.
 */
#ifndef KELP_COORDINATOR_PARTS_H
#define KELP_COORDINATOR_PARTS_H

#include "common/log/log_gate.h"
#include "common/rpc/rpc.h"
#include "coordinator/common/identity.h"
#include "coordinator/common/job_plan.h"
#include "coordinator/coordinator_options.h"
#include "coordinator/etcd/leader.h"
#include "coordinator/etcd/task_thread.h"
#include "coordinator/files/checkpoint_folders.h"
#include "coordinator/files/event_log.h"
#include "coordinator/files/record_files.h"
#include "coordinator/streams/follower_streams.h"
#include "coordinator/streams/leader_streams.h"
#include "coordinator/streams/shard_streams.h"
#include "coordinator/streams/worker_streams.h"
#include "coordinator/term/leadership.h"

struct kelp_coordinator {
    struct kelp_coordinator_options options;
    char address[KELP_COORDINATOR_ADDRESS_MAX + 1]; /* where workers reach us */
    bool stopping;
    uint64_t told_ms; /* when it was told to end gracefully; 0: it was not */
    int exit_code;
    char trouble[256];                /* with etcd, as logged last */
    uint64_t checkpoint_bytes;        /* of the newest manifest that was made */
    struct kelp_log_gate peers_lines; /* that workers and shards cause */

    struct kelp_rpc_loop *loop;
    struct kelp_rpc_server *server;
    struct kelp_rpc_timer *timer;
    struct kelp_task_thread *tasks; /* for etcd */
    struct kelp_task_thread *disk;  /* for files: a slow disk holds up nothing else */
    struct kelp_leader *leader;

    struct kelp_leadership leadership;
    struct kelp_identity identity;
    struct kelp_job_plan plan;
    struct kelp_record_files records;
    struct kelp_checkpoint_folders folders;
    struct kelp_event_log events;
    struct kelp_worker_streams workers;
    struct kelp_shard_streams shards;
    struct kelp_follower_streams followers;
    struct kelp_leader_streams leaders;
};

#endif
