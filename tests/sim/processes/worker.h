/*
 * A simulated kelp-worker around the cores of worker/core that ship: kelp_joining and kelp_stepper
 * decide, this shell carries out what they say on simulated streams and a virtual clock.
 *
 * While lanes are computed, the coordinator is answered. What shards send, and news of the
 * coordinator, wait for the end, or are taken at once when that takes long (profile.turning), or as
 * long as weights of what is computed are still coming (profile.ahead).
 */
#ifndef KELP_TESTS_SIM_PROCESSES_WORKER_H
#define KELP_TESTS_SIM_PROCESSES_WORKER_H

#include "tests/sim/outside/etcd.h"
#include "tests/sim/outside/network.h"
#include "worker/core/joining.h"
#include "worker/core/stepper.h"

/* What a shard sent while lanes were computed. */
struct sim_inbox {
    uint64_t stream;
    struct sim_message *message; /* NULL: the stream ended */
};

#define SIM_WORKER_LINKS_MAX 48 /* transport.streams of each shard, and of those before */

struct sim_worker_link {
    struct sim_process *shard;
    uint64_t stream; /* 0: none */
    uint64_t generation;
    bool heard;    /* something came on the stream */
    uint64_t life; /* counts its ends: timers of an older one mean nothing */
};

/* A push that a partition refused and that was not sent again yet. */
struct sim_refused {
    uint64_t number; /* counts them; 0: none */
    uint64_t generation;
    uint64_t version;
};

struct sim_worker {
    struct sim *sim;
    struct sim_process *process;
    struct kelp_joining joining; /* its maps are struct sim_map: references */
    uint64_t join;               /* stream; 0: none */
    uint32_t beat_ms;            /* between two reports; 0: none go out */
    uint64_t beats;              /* intervals that were told: a timer of an earlier one is none */

    struct kelp_stepper *stepper; /* its contents are struct sim_node: references */
    struct kelp_stepper_actions actions;
    struct sim_worker_link links[SIM_WORKER_LINKS_MAX]; /* by their numbers */
    float weights[2][SIM_FLAT_MAX];
    unsigned current;
    bool computing;
    uint64_t handed_out_us; /* when that began */
    struct kelp_joining_progress progress;
    bool asked;                      /* to end */
    struct kelp_stepper_action work; /* COMPUTE under way */
    uint64_t work_count;             /* counts them */
    bool ahead;                      /* weights of it are still coming */
    bool given_up;                   /* they are not to come */
    bool awaits;                     /* it cannot go on without them */
    const struct sim_answer *answer; /* of the event under way */
    struct sim_node *last_node;      /* of it, once that is computed, and not given; a reference */
    uint32_t partly_first;           /* partitions from there on are complete */
    struct sim_inbox *inbox;
    size_t inbox_count;
    size_t inbox_capacity;
    struct sim_refused refused[SIM_PARTITIONS_MAX];
    uint64_t refused_count;
};

void sim_worker_start(struct sim *sim, struct sim_process *process);
void sim_worker_forget(struct sim_process *process);
/* As SIGTERM does: it finishes what it has begun, within a grace period. */
void sim_worker_ask_to_end(struct sim_process *process);
struct sim_worker *sim_worker_of(const struct sim_process *process);

/* ---- between the files of the worker --------------------------------------------------------- */

/* The data loop goes round: takes news, works, asks for what comes next. */
void sim_worker_turn(struct sim_worker *worker);
/* Encode and send one message. */
void sim_worker_send(struct sim_worker *worker, const struct kelp_stepper_message *message);
/* The shard that it takes for the partition's primary has refused a push: it is sent again soon, or
 * is not needed any more. */
void sim_worker_refused(struct sim_worker *worker, const struct sim_reply *reply,
                        const struct sim_refusal *refusal);
/* It begins this version: perhaps it lies about it, besides (struct sim_lie). */
void sim_worker_lie(struct sim_worker *worker, const struct kelp_control_word *word);
void sim_worker_join_cluster(struct sim_worker *worker);

#endif
