/* What ps/shard/shard*.c share; nobody else includes it. */
#ifndef KELP_PS_SHARD_SHARD_INTERNAL_H
#define KELP_PS_SHARD_SHARD_INTERNAL_H

#include "ps/core/lanes/spares.h"
#include "ps/shard/hosting_internal.h"
#include "ps/shard/shard.h"

struct kelp_shard {
    const struct kelp_job *job;
    const struct kelp_shard_events *events;
    void *user;
    struct kelp_trace *trace; /* NULL: none */
    /* Held while what is hosted changes; taken before all other locks of the shard. */
    pthread_mutex_t change_lock;
    /* Guards hosting and its list of partitions: read to use them, written (inside change_lock) to
     * replace the one or change the other. A partition's own lock is taken inside it. */
    pthread_rwlock_t lock;
    struct kelp_hosting *hosting;
    struct kelp_shard_counts gone; /* of partitions that have left */
    struct kelp_shard_link *links; /* change_lock; those that are up */
    size_t link_count;
    struct kelp_capture_pool *pool; /* of snapshots */
    pthread_mutex_t left_lock;      /* guards left; a leaf */
    struct left_capture *left;      /* captures of partitions that have left */
    pthread_mutex_t spares_lock;    /* guards spares; taken outside partitions' locks */
    struct kelp_spares spares;
};

/* What a snapshot wants of a partition that is not hosted any more. */
struct left_capture {
    uint32_t partition;
    struct kelp_capture capture;
    struct left_capture *next;
};

/* Everything that one event on one partition needs; the partition is locked. */
struct scene {
    struct kelp_shard *shard;
    struct kelp_hosting *hosting;
    struct hosted *hosted;
    struct kelp_shard_turn *turn;
};

/* Lock the partition, and what is hosted; false: it is not hosted, and nothing is locked. The shard
 * and the turn of the scene are set. */
bool kelp__shard_lock(struct scene *scene, uint32_t partition);
void kelp__shard_unlock(const struct scene *scene);
/* An event went in: carry out what it asked for, or report that there was no memory for it. */
void kelp__shard_follow(const struct scene *scene, kelp_status status);

/* shard_replicas.c: tell a partition whose life begins of the links that are up; change_lock and
 * the partition are locked. */
void kelp__shard_tell_links(const struct scene *scene);

/* shard_trace.c. The partition did this since begin_ns. */
void kelp__shard_trace_did(const struct scene *scene, uint64_t begin_ns, const char *what);
/* A step of the partition begins, by a push that came at since_us; and it is complete. */
void kelp__shard_trace_open(const struct scene *scene);
void kelp__shard_trace_made(const struct scene *scene);

/* Carry out what the partition asked for, and what comes of that, in order. */
void kelp__shard_run_actions(const struct scene *scene);
/* The partition cannot go on. */
void kelp__shard_report_failure(const struct scene *scene, kelp_status status, const char *text);
/* A snapshot that cannot be kept is given up; training goes on. */
void kelp__shard_give_up_snapshot(const struct scene *scene, uint64_t ticket);
/* Optimizer slots are about to be overwritten. */
void kelp__shard_keep_for_snapshot(const struct scene *scene);
/* shard_replicas.c: carry out an action of replication. */
kelp_status kelp__shard_replicate(const struct scene *scene,
                                  const struct kelp_action *action) KELP_MUST_USE;
/* shard_snapshot.c: the partition leaves; what it keeps stays until it is written or discarded. */
void kelp__shard_leave_capture(const struct scene *scene);
/* Let go of what partitions left for this ticket and those before it. */
void kelp__shard_discard_left(struct kelp_shard *shard, uint64_t ticket);

#endif
