/*
 * A simulated kelp-ps: shells around the product's pure cores (ps/core), which decide. hosting*.c
 * do what ps/shard/shard.c does, shard.c what ps/service/exchange.c and
 * ps/etcd_registration.c do, shard_control.c what ps/service/control.c and load.c
 * do.
 */
#ifndef KELP_TESTS_SIM_PROCESSES_SHARD_H
#define KELP_TESTS_SIM_PROCESSES_SHARD_H

#include "ps/core/control/shard_control.h"
#include "ps/core/lanes/spares.h"
#include "ps/core/lanes/ticker.h"
#include "ps/core/snapshot/snapshot_work.h"
#include "tests/sim/outside/etcd.h"
#include "tests/sim/outside/network.h"

struct sim_shard;

/* ---- hosting: the partitions of one generation ---- */

struct sim_gradient {
    bool used;
    uint32_t lanes; /* bit mask of the lanes that it sums up */
    float values[SIM_SLICE_MAX];
};

struct sim_hosted {
    struct kelp_partition *core; /* NULL: never here in this generation */
    uint64_t life;               /* counts its comings and goings: older work does nothing */
    uint64_t primary;            /* process that leads it; 0: this one */
    uint64_t filling;            /* a copy whose first half came: its state + 1; 0: none */
    struct sim_replica_message *copying; /* the rest of a copy that is on its way; owned */
    uint64_t copying_to;
    uint32_t index;
    uint64_t map_epoch;
    struct kelp_slice_range range;
    float weights[2][SIM_SLICE_MAX];
    unsigned current;
    float momentum[SIM_SLICE_MAX];
    float momentum_next[SIM_SLICE_MAX]; /* of the apply under way */
    uint64_t step;
    uint64_t capture_ticket; /* 0: none */
    struct sim_part capture; /* for a snapshot, until it is written */
};

struct sim_hosting {
    uint32_t refs; /* work under way holds it */
    bool retired;
    struct sim_shard *shard;
    uint64_t generation;
    uint32_t partition_count;
    struct sim_hosted hosted[SIM_PARTITIONS_MAX];    /* by partition */
    struct sim_hosted *by_index[SIM_PARTITIONS_MAX]; /* those that are here now; else NULL */
    struct sim_gradient *gradients;                  /* handle h is gradients[h - 1] */
    size_t gradient_count;
    size_t gradient_capacity;
    struct kelp_actions actions;
};

/* The partitions that the map puts on this process, restored from the manifest (NULL: w_0). NULL,
 * with a status and what it is about: a storage is not there (KELP_ERR_NOT_FOUND), or damaged
 * (KELP_ERR_CORRUPT). */
struct sim_hosting *sim_hosting_create(struct sim_shard *shard, const struct kelp_map *map,
                                       const struct sim_manifest *manifest, kelp_status *ret_status,
                                       char ret_text[80]);
/* End the generation: answers those who wait. The reference is given up. */
void sim_hosting_retire(struct sim_hosting *hosting);
/* Without a word: the process is dead. */
void sim_hosting_destroy(struct sim_hosting *hosting);

void sim_hosting_push(struct sim_hosting *hosting, uint64_t stream,
                      const struct sim_request *request, const struct sim_push *push);
void sim_hosting_share(struct sim_hosting *hosting, uint64_t stream,
                       const struct sim_request *request, const struct sim_share_push *share);
void sim_hosting_pull(struct sim_hosting *hosting, uint64_t stream,
                      const struct sim_request *request, const struct sim_pull *pull);
void sim_hosting_snapshot(struct sim_hosting *hosting, const struct kelp_snapshot_order *order,
                          const uint32_t *partitions, uint32_t count);
void sim_hosting_drop(struct sim_hosting *hosting, uint64_t stream);
/* Offer what is late. *ret_next_us: when to ask again; UINT64_MAX: not before something happens. */
void sim_hosting_tick(struct sim_hosting *hosting, uint64_t *ret_next_us);

/* What this process is in an entry; ret_primary: who leads it, 0: this one. */
struct kelp_replica_entry sim_hosting_entry(const struct sim_shard *shard,
                                            const struct kelp_map *map, uint32_t partition,
                                            uint64_t *ret_primary);
/* A push came to the process: perhaps it shows a lie. */
void sim_lie_pushed(const struct sim_process *process, const struct sim_request *request,
                    const struct sim_push *push, bool refused);
/* Lanes of the lie that it was not compared with, a bit each. */
uint32_t sim_lie_unseen(const struct sim_lie *lie);
/* It leads no more, or is dead: struct sim_lie. */
void sim_hosting_lose_evidence(const struct sim_hosting *hosting);
/* Carry out a map of the generation that is hosted. */
void sim_hosting_enter(struct sim_hosting *hosting, const struct kelp_map *map);
/* Partitions that are led here, ascending; partition 0's word among them. */
struct kelp_shard_led sim_hosting_led(const struct sim_hosting *hosting,
                                      uint32_t partitions[SIM_PARTITIONS_MAX],
                                      struct kelp_partition_view *ret_view);
/* How far apart the partitions are that are led here; hosting may be NULL. */
struct kelp_standing sim_hosting_standing(const struct sim_hosting *hosting);
/* Before each event: for what it starts or ends. */
void sim_hosting_tell_time(const struct sim_hosting *hosting, const struct sim_hosted *hosted);
/* Of calls that fail for lack of memory alone. */
void sim_must(kelp_status status);
void sim_hosting_unref(struct sim_hosting *hosting);
/* Run what an event of ps/core/partition/partition.h asks for. */
void sim_hosting_run(struct sim_hosting *hosting, struct sim_hosted *hosted);
uint64_t sim_hosting_gradient(struct sim_hosting *hosting, const float *values, size_t count,
                              uint32_t lanes);
const struct sim_gradient *sim_hosting_values(struct sim_hosting *hosting, uint64_t handle);

/* ---- the process ---- */

/* What one message caused for one stream, until the turn ends. */
struct sim_outbox {
    uint64_t stream;
    struct sim_reply *reply;
};

/* The first message of a coordinator's stream that does not lead, as far as the shard knows. */
struct sim_held {
    uint64_t stream; /* 0: none */
    uint64_t records_after;
    uint64_t proof;
    bool plan;
};
#define SIM_HELD_MAX 8

/* The thread that writes snapshots. */
struct sim_writer {
    struct kelp_snapshot_work work;
    struct kelp_snapshot_task task; /* under way while busy */
    bool busy;
    char folder[SIM_NAME_MAX + 1];
    uint32_t storage; /* being written; 0: none */
    uint64_t storage_ticket;
};

/* A map that is being loaded, or is to be. */
struct sim_load {
    struct sim_map *map;           /* a reference */
    struct sim_manifest *manifest; /* likewise, or NULL */
    bool cancelled;
};

/* A stream to or from another shard. */
struct sim_replica_link {
    uint64_t process; /* whose: its incarnation; 0: free */
    uint64_t stream;  /* 0: none, it is opened again soon */
    bool is_up;
    bool is_primary; /* it comes from a primary */
    uint32_t place;  /* of the process, in sim->processes */
    uint64_t heard_us;
    bool broken; /* its end broke a stream off, and nothing was heard since */
};
#define SIM_REPLICA_LINKS_MAX 64

struct sim_shard {
    struct sim *sim;
    struct sim_process *process;
    struct sim_hosting *hosting; /* NULL: none */

    struct sim_outbox *outboxes;
    size_t outbox_count;
    size_t outbox_capacity;

    struct kelp_spares spares;
    struct kelp_ticker ticker;
    uint64_t tick_timer; /* counts its settings: an older one does nothing */

    uint64_t lease; /* 0: not registered */
    uint64_t kept_us;
    bool is_replaced; /* as etcd said: another process has its entry */
    bool registered_before;
    uint64_t watch;

    bool plan;                 /* it has heard the plan */
    bool leaving;              /* it was told to end */
    uint64_t asked_generation; /* that partition 0, which it led then, was in; 0: it led it not */
    uint64_t asked_step;       /* where it stood there */
    struct kelp_shard_control *control;
    uint32_t worked; /* workers that partition 0 took lanes of: a bit for each; not reported yet */
    uint64_t leader_watch;
    struct sim_held held[SIM_HELD_MAX];
    size_t held_count; /* so far */
    struct sim_writer writer;
    struct kelp_snapshot_order
        order;                     /* for the partitions, once it was written down; serial 0: no */
    char folder[SIM_NAME_MAX + 1]; /* of the newest order */
    bool timer;                    /* of reports */
    struct sim_load *loading;      /* owned */
    struct sim_load *wanted;       /* of the newest generation that was taken; owned */
    struct sim_map *map;           /* the newest that was taken, a reference; NULL: none */
    struct sim_replica_link links[SIM_REPLICA_LINKS_MAX];
};

void sim_shard_start(struct sim *sim, struct sim_process *process);
/* Frees its state; the process is dead. */
void sim_shard_forget(struct sim_process *process);
struct sim_shard *sim_shard_of(const struct sim_process *process);
/* As SIGTERM does: it leaves once its partitions are elsewhere, or when its patience ends. */
void sim_shard_ask_to_end(struct sim_process *process);

/* ---- between the files ---- */

uint64_t sim_shard_generation(const struct sim_shard *shard); /* 0: none */
void sim_shard_answer(struct sim_shard *shard, const struct sim_answer *answer);
void sim_shard_refuse(struct sim_shard *shard, uint32_t partition,
                      const struct kelp_refusal *refusal);
void sim_shard_offer(struct sim_shard *shard, uint32_t partition, const struct kelp_offer *offer);
/* It ends by itself, in order. */
void sim_shard_leave(struct sim_shard *shard, const char *why);
/* Everything that was answered since leaves. */
void sim_shard_end_turn(struct sim_shard *shard);
/* Something came, or was completed: look soon for what is late. */
void sim_shard_heard(struct sim_shard *shard);

#endif
