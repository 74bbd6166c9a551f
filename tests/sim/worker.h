/*
 * A simulated kelp-worker: the shells of worker/ (client.c, shard_link.c, membership.c, trainer.c)
 * around a real kelp_sync and kelp_schedule.
 *
 * The program has two threads: while lanes are computed, the coordinator is still answered, but
 * what shards send waits. So does it here.
 */
#ifndef KELP_TESTS_SIM_WORKER_H
#define KELP_TESTS_SIM_WORKER_H

#include "tests/sim/etcd.h"
#include "tests/sim/network.h"
#include "worker/core/offers.h"

/* What a shard sent while lanes were computed. */
struct sim_inbox {
    uint64_t stream;
    struct sim_message *message; /* NULL: the stream ended */
};

struct sim_worker_link {
    struct sim_process *shard;
    uint64_t stream; /* 0: none */
    bool waiting;    /* to open another */
    bool helps;      /* what the shard was told on this stream */
};

/* What the membership has for the data loop. */
struct sim_worker_news {
    bool any;
    struct sim_map *map; /* a reference */
    bool has_assignment;
    uint64_t assignment_epoch;
    uint32_t lane_first;
    uint32_t lane_count;
    bool leave;
};

struct sim_worker {
    struct sim *sim;
    struct sim_process *process;

    /* membership */
    int leader;       /* place of the process that leads; -1: not known */
    int connected_to; /* likewise */
    uint64_t join;    /* stream; 0: none */
    bool retrying;
    struct sim_worker_news news;

    /* the data loop */
    struct sim_map *map; /* a reference */
    uint64_t links_life; /* counts openings of links: timers of older ones mean nothing */
    struct sim_worker_link links[SIM_SHARDS_MAX];
    uint32_t link_count;
    bool assigned;
    uint32_t lane_first;
    uint32_t lane_count;
    bool spare;
    bool fetching; /* no lanes, but an offer: gets the weights of now */
    struct kelp_offers offers;
    struct kelp_sync *sync;
    float weights[2][SIM_FLAT_MAX];
    unsigned current;
    bool working;
    struct kelp_control_word word;
    uint8_t computed[KELP_JOB_LANES_MAX];
    struct sim_node *pushed[SIM_LANES_MAX]; /* references */
    size_t pushed_count;
    bool asking_again;
    bool computing;
    bool covering; /* what is computed was offered */
    uint32_t work_first;
    uint32_t work_count;
    struct sim_inbox *inbox;
    size_t inbox_count;
    size_t inbox_capacity;
};

void sim_worker_start(struct sim *sim, struct sim_process *process);
void sim_worker_forget(struct sim_process *process);
struct sim_worker *sim_worker_of(const struct sim_process *process);

/* ---- between the files of the worker ------------------------------------------------------
 */

/* The data loop goes round: takes news, works, asks for what comes next. */
void sim_worker_turn(struct sim_worker *worker);
/* Everything that was pushed since the last time (resend: all of it), and every pull that is
 * wanted. */
void sim_worker_send(struct sim_worker *worker, struct sim_worker_link *link, bool resend);
void sim_worker_send_all(struct sim_worker *worker);
void sim_worker_join_cluster(struct sim_worker *worker);

#endif
