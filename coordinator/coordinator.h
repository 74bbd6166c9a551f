/*
 * The coordinator process: what its shell's files share. coordinator.c ties the pure parts to the
 * outside: leader.h (etcd), service.h (workers), shard_link.h (shards), records.h (files).
 *
 * Threads: everything belongs to the one thread that runs the loop.
 */
#ifndef KELP_COORDINATOR_COORDINATOR_H
#define KELP_COORDINATOR_COORDINATOR_H

#include "common/job/job.h"
#include "common/rpc/rpc.h"
#include "common/training/plan.h"
#include "coordinator/core/checkpoints.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/placement.h"
#include "coordinator/core/progress.h"
#include "coordinator/etcd/leader.h"
#include "coordinator/etcd/task_thread.h"
#include "coordinator/journal.h"
#include "proto/kelp.pb-c.h"

struct kelp_session;
struct kelp_link;

struct kelp_coordinator_options {
    const char *etcd; /* endpoints */
    const char *job;
    const char *id;
    const char *run_folder;
    const char *listen; /* host:port */
    bool force;         /* take checkpoints of a job that kelp_job_compare() refuses */
    uint64_t incarnation;
};

enum kelp_plan_state {
    KELP_PLAN_NONE,    /* no worker proposed one */
    KELP_PLAN_OFFERED, /* taken from the first worker, not in etcd yet */
    KELP_PLAN_WRITTEN
};

struct kelp_coordinator {
    struct kelp_coordinator_options options;
    char address[KELP_COORDINATOR_ADDRESS_MAX + 1]; /* where workers reach us */
    uint64_t now_ms;                                /* of the event being handled */
    bool stopping;
    int exit_code;
    char trouble[256]; /* with etcd, as logged last */

    struct kelp_rpc_loop *loop;
    struct kelp_rpc_server *server;
    struct kelp_rpc_timer *timer;
    struct kelp_task_thread *tasks; /* for etcd */
    struct kelp_task_thread *disk;  /* for files: a slow disk holds up nothing else */
    struct kelp_leader *leader;

    /* From the spec; set once. */
    struct kelp_job_file *job_file; /* NULL: no spec yet */
    const struct kelp_job *job;
    char *spec;
    uint64_t spec_digest;

    /* While leading. */
    uint64_t terms; /* times that we began to lead */
    bool leading;
    bool read;                /* what etcd held has been taken over */
    bool reread;              /* and has to be compared with what we have, after etcd was away */
    bool reading;             /* an answer is on its way */
    int64_t elected_revision; /* of the newest election that we won */
    bool elected; /* we may write to etcd; a leader may be without that while etcd is away */
    bool ended;   /* done or failed, and that is on record in etcd: workers leave */
    /* An end that a leader before us wrote. It is final once the shards of its generation turn out
     * to be alive; if they are gone, so is the model, and the job is computed again. */
    struct kelp_job_state found_end; /* state "": none */
    uint64_t found_generation;
    bool map_wanted;            /* to be read again */
    uint64_t finish_generation; /* newest that a FINISH record came from; 0: none */
    bool finish_on_file;        /* a FINISH record is; those of all generations are the same */
    uint64_t read_at_ms;        /* next attempts */
    uint64_t plan_at_ms;
    uint64_t map_at_ms;
    uint64_t append_at_ms;
    uint64_t heartbeat;
    uint64_t shard_losses;
    bool resigning;       /* at the next tick */
    bool opened;          /* the map that the placement takes next was written by us just now */
    uint64_t stand_at_ms; /* after resigning: stand for election again; 0: not */

    /* Checkpoints. */
    struct kelp_checkpointer checkpointer;
    uint64_t last_generation;         /* newest that made any of them */
    char *manifest;                   /* of the order that is being committed */
    int64_t order_election;           /* by which the order under way was placed */
    uint64_t manifest_serial;         /* of that order */
    struct kelp_committed committing; /* what the manifest says */
    bool described;                   /* job.yaml and plan.json lie beside the data */
    uint64_t committed_ms;            /* of the newest commit that we made */
    uint64_t restore_step;            /* where the current generation began */
    uint64_t found_step;              /* where training was, as the leader before us left it */
    bool step_known;                  /* where training is, in the current generation */
    uint64_t known_step;
    uint64_t steps_recomputed;
    enum kelp_plan_state plan_state;
    bool plan_in_flight;
    struct kelp_plan plan;
    char *plan_text; /* canonical */
    struct kelp_membership membership;
    struct kelp_placement placement;
    struct kelp_journal *journal;
    struct kelp_progress progress;

    struct kelp_session *sessions; /* streams of workers, those not identified yet included */
    uint32_t session_count;
    struct kelp_link *links; /* to shards, by id */
};

/* Only the loop, so that kelp_coordinator_stop() may be called from now on. options is copied, its
 * texts are borrowed. */
kelp_status kelp_coordinator_create(const struct kelp_coordinator_options *options,
                                    struct kelp_coordinator **ret_coordinator,
                                    struct kelp_error *reterr) KELP_MUST_USE;
/* Bind the address and start waiting for the spec. Errors: as kelp_rpc_server_open(), and
 * KELP_ERR_INVALID. */
kelp_status kelp_coordinator_open(struct kelp_coordinator *coordinator,
                                  struct kelp_error *reterr) KELP_MUST_USE;
/* Returns when kelp_coordinator_stop() was called, or something is wrong that waiting cannot mend;
 * gives the process's exit code. */
int kelp_coordinator_run(struct kelp_coordinator *coordinator);
/* Ask run() to return. Any thread. */
void kelp_coordinator_stop(struct kelp_coordinator *coordinator);
/* Closes everything. NULL does nothing. */
void kelp_coordinator_destroy(struct kelp_coordinator *coordinator);

/* ---- for the shell's files --------------------------------------------------------------------
 */

/* Read the clock: first thing in each callback. */
void kelp_coordinator_touch(struct kelp_coordinator *coordinator);

/* Hand an event to the placement machine and do what it says. now_ms is filled in. */
void kelp_coordinator_place(struct kelp_coordinator *coordinator,
                            struct kelp_placement_event event);
/* The number of workers changed. */
void kelp_coordinator_count_workers(struct kelp_coordinator *coordinator);
/* Put the placement's state and reason into the log and into etcd. */
void kelp_coordinator_report_state(struct kelp_coordinator *coordinator);
/* Something is wrong that neither waiting nor another process can mend: end with exit code 2. */
void kelp_coordinator_give_up(struct kelp_coordinator *coordinator, const char *text);
/* The job cannot go on. */
void kelp_coordinator_fail_job(struct kelp_coordinator *coordinator, const char *reason);

/* Our hello, borrowed from the coordinator. */
void kelp_coordinator_hello(struct kelp_coordinator *coordinator, Kelp__V1__Hello *ret_hello);
/* Is this hello for our job? Says what differs. */
kelp_status kelp_coordinator_check_hello(const struct kelp_coordinator *coordinator,
                                         const Kelp__V1__Hello *hello,
                                         struct kelp_error *reterr) KELP_MUST_USE;

#endif
