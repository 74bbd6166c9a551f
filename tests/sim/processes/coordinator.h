/*
 * A simulated kelp-coordinator: the leadership and the terms of coordinator/core, which decide,
 * with the effects of a simulated process. coordinator.c has life and time; coordinator_etcd.c is
 * what the election of common/etcd is; coordinator_tasks.c the threads that ask etcd and the disk,
 * coordinator_write.c what they write to etcd, coordinator_found.c what they find;
 * coordinator_streams.c the streams to shards and workers, coordinator_follow.c those among
 * coordinators.
 */
#ifndef KELP_TESTS_SIM_PROCESSES_COORDINATOR_H
#define KELP_TESTS_SIM_PROCESSES_COORDINATOR_H

#include "coordinator/term/leadership.h"
#include "tests/sim/outside/etcd.h"
#include "tests/sim/outside/message.h"
#include "tests/sim/outside/network.h"

#define SIM_SESSIONS_MAX  64
#define SIM_FOLLOWERS_MAX 16
#define SIM_MANIFESTS_MAX 20 /* in etcd at a time */

/* The process's side of a worker's stream. */
struct sim_session_end {
    uint64_t stream; /* 0: free */
    struct kelp_session *session;
    unsigned place; /* of the worker */
    bool greeted;
};

/* The process's side of a link to a shard. */
struct sim_link_end {
    bool used;
    struct kelp_link *link;
    uint64_t stream; /* 0: none */
    bool greeted;
};

/* What the two threads do, each one after the other: one asks etcd, one the disk. */
enum sim_task_kind {
    SIM_TASK_READ,
    SIM_TASK_READ_MAP,
    SIM_TASK_PLAN,
    SIM_TASK_MAP,
    SIM_TASK_CHANGE, /* of the map within its generation */
    SIM_TASK_STATE,
    SIM_TASK_SCALE,
    SIM_TASK_COMMIT,
    SIM_TASK_REMOVE,
    SIM_TASK_FILE, /* records; the first of the disk's */
    SIM_TASK_HOLD,
    SIM_TASK_DESCRIBE, /* job and plan beside the checkpoint, before it is committed */
    SIM_TASK_REMOVE_FOLDER
};

/* What a read asks for, in this order. A read of the map alone begins at the map, leaves state and
 * scale out and ends with the manifests. */
enum sim_read_stage {
    SIM_READ_PLAN,
    SIM_READ_MAP,
    SIM_READ_STATE,
    SIM_READ_SCALE,
    SIM_READ_FENCE,
    SIM_READ_MANIFESTS,
    SIM_READ_ELECTION,
    SIM_READ_STAGE_COUNT
};

struct sim_task {
    enum sim_task_kind kind;
    uint64_t term;
    int64_t revision;              /* of the election key, to be compared; 0: not elected */
    struct kelp_map map;           /* MAP: to write; owned */
    struct kelp_opening opening;   /* MAP: the rest of it */
    uint64_t version;              /* REMOVE */
    int64_t key_revision;          /* COMMIT: as written */
    struct sim_manifest *manifest; /* COMMIT: to write; a reference */
    uint64_t nonce;
    struct kelp_job_state state; /* STATE */
    struct kelp_scale scale;     /* SCALE: to write */
    struct kelp_record *records; /* FILE; owned */
    size_t record_count;
    bool sync;           /* FILE */
    uint64_t generation; /* HOLD */
    int64_t election;    /* COMMIT: by which it was ordered */
    uint64_t serial;     /* COMMIT, DESCRIBE: of the order */
    char folder[SIM_NAME_MAX + 1];
    enum sim_read_stage stage;
    bool still_elected; /* READ: at its end */
    uint64_t asked_us;
    kelp_status status;
    bool succeeded;
    bool plan_there; /* READ, PLAN: what was found */
    struct kelp_found found;
};

enum sim_election {
    SIM_ELECTION_WAITING,
    SIM_ELECTION_CAMPAIGNING,
    SIM_ELECTION_LEADING,
    SIM_ELECTION_DEPOSING
};

struct sim_thread {
    struct sim_task *tasks; /* a queue; the first one is being carried out */
    size_t count;
    size_t capacity;
    bool busy;
};

struct sim_coordinator {
    struct sim *sim;
    struct sim_process *process;
    bool dead; /* killed: it does nothing any more */
    struct kelp_leadership leadership;
    struct kelp_leadership_effects leadership_effects;
    struct kelp_term_effects term_effects;
    uint64_t given_up; /* newest order of which that was counted */

    /* The election. */
    enum sim_election election;
    bool synced;
    bool taken;
    int64_t taken_revision;  /* at which that key was created */
    int64_t depose_revision; /* delete the key of that one; 0: none */
    uint64_t stand_back_us;  /* no campaign before it */
    uint64_t lease;          /* 0: none */
    uint64_t kept_us;
    int64_t revision; /* of our key; 0: we hold none */
    int64_t last_revision;
    uint64_t election_watch;
    uint64_t shard_watch;

    /* The threads. */
    uint64_t term;          /* answers to what an older one asked are dropped */
    struct sim_thread etcd; /* asks etcd */
    struct sim_thread disk;
    uint64_t map_generation;
    int64_t map_revision;   /* as read or written last; 0: there was none */
    int64_t fence_revision; /* likewise */
    int64_t state_revision; /* likewise */
    int64_t scale_revision; /* likewise */

    struct sim_session_end sessions[SIM_SESSIONS_MAX];
    struct sim_link_end links[SIM_SHARDS_MAX];
    uint64_t followers[SIM_FOLLOWERS_MAX]; /* streams of those who listen to us; 0: free */
    uint64_t following;                    /* our stream to who leads; 0: none */
};

void sim_coordinator_start(struct sim *sim, struct sim_process *process);
void sim_coordinator_forget(struct sim_process *process);
struct sim_coordinator *sim_coordinator_of(const struct sim_process *process);
/* Somebody asks for a checkpoint; nothing happens when it does not lead. */
void sim_coordinator_request(const struct sim_process *process, bool pause);
/* Somebody asks for another size; nothing happens when it does not lead. */
void sim_coordinator_scale(const struct sim_process *process, const struct kelp_targets *targets);
/* Somebody wants that process to go; likewise. */
void sim_coordinator_drain(const struct sim_process *process, const char *id);
/* What it knows as the leader; NULL: it does not lead, or has not read yet what there is. */
const struct kelp_term *sim_coordinator_status(const struct sim_process *process);
/* Why it waits, for people: its placement's reason. */
const char *sim_coordinator_reason(const struct sim_process *process);

/* Before each event: the time. Its leadership. */
struct kelp_leadership *sim_coordinator_touch(struct sim_coordinator *coordinator);
/* Likewise; the term, or NULL. */
struct kelp_term *sim_coordinator_term(struct sim_coordinator *coordinator);

/* ---- coordinator_etcd.c ---- */

void sim_coordinator_election_effects(struct sim_coordinator *coordinator);

/* ---- coordinator_tasks.c ---- */

void sim_coordinator_task_effects(struct kelp_term_effects *effects);
void sim_coordinator_forget_tasks(struct sim_coordinator *coordinator);

/* ---- coordinator_write.c ---- */

void sim_coordinator_manifest_key(uint64_t version, char key[SIM_ETCD_KEY_MAX + 1]);
void sim_coordinator_fill(const struct sim_coordinator *coordinator, const struct sim_task *task,
                          struct sim_transaction *transaction);

/* ---- coordinator_found.c ---- */

/* The manifests in etcd, and the folders that none of them names. */
/* The read under way is at etcd: what there is at its stage. */
void sim_coordinator_read_part(struct sim *sim, struct sim_process *process);
/* Its answer has come. True: it goes on with another stage. */
bool sim_coordinator_use_part(struct sim *sim, struct sim_task *task);
void sim_coordinator_found_fini(struct kelp_found *found);
/* The effect of this name. */
kelp_status sim_coordinator_make_manifest(const struct kelp_checkpointer *from,
                                          struct kelp_committed *ret_committed,
                                          struct kelp_error *reterr, void *user);

/* ---- coordinator_streams.c ---- */

void sim_coordinator_stream_effects(struct kelp_term_effects *effects);

/* ---- coordinator_follow.c ---- */

void sim_coordinator_follow_effects(struct kelp_leadership_effects *effects);
/* A heartbeat to each that listens to us, if we lead. */
void sim_coordinator_beat(struct sim_coordinator *coordinator);
/* We lead no more. */
void sim_coordinator_leave_followers(struct sim_coordinator *coordinator);

#endif
