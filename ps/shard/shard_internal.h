/* What ps/shard/shard.c and ps/shard/shard_actions.c share; nobody else includes it. */
#ifndef KELP_PS_SHARD_SHARD_INTERNAL_H
#define KELP_PS_SHARD_SHARD_INTERNAL_H

#include "ps/core/spares.h"
#include "ps/shard/hosting_internal.h"
#include "ps/shard/shard.h"

struct kelp_shard {
    const struct kelp_job *job;
    const struct kelp_shard_events *events;
    void *user;
    pthread_rwlock_t lock; /* guards hosting: read to use it, written to replace it */
    struct kelp_hosting *hosting;
    struct kelp_capture_pool *pool; /* of snapshots */
    pthread_mutex_t spares_lock;    /* guards spares; taken outside partitions' locks */
    struct kelp_spares spares;
};

/* Everything that one event on one partition needs; the partition is locked. */
struct scene {
    struct kelp_shard *shard;
    struct kelp_hosting *hosting;
    struct hosted *hosted;
    struct kelp_shard_turn *turn;
};

/* Carry out what the partition asked for, and what comes of that, in order. */
void kelp__shard_run_actions(const struct scene *scene);
/* The partition cannot go on. */
void kelp__shard_report_failure(const struct scene *scene, kelp_status status, const char *text);
/* A snapshot that cannot be kept is given up; training goes on. */
void kelp__shard_give_up_snapshot(const struct scene *scene, uint64_t ticket);

#endif
