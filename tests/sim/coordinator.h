/*
 * A simulated kelp-coordinator: the shells of coordinator/ around real kelp_membership,
 * kelp_placement, kelp_checkpointer and kelp_progress objects. coordinator.c is what coordinator.c
 * and leading.c are, coordinator_records.c what records.c is; coordinator_etcd.c what leader.c,
 * helper.c and the election of common/ are; coordinator_workers.c and coordinator_shards.c what
 * service.c and shard_link.c are.
 */
#ifndef KELP_TESTS_SIM_COORDINATOR_H
#define KELP_TESTS_SIM_COORDINATOR_H

#include "coordinator/core/checkpoints.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/placement.h"
#include "coordinator/core/progress.h"
#include "tests/sim/etcd.h"
#include "tests/sim/message.h"
#include "tests/sim/network.h"

#define SIM_SESSIONS_MAX  64
#define SIM_MANIFESTS_MAX 20 /* in etcd at a time */
#define SIM_FOLDERS_MAX   64

enum sim_session_state { SIM_SESSION_FREE, SIM_SESSION_NEW, SIM_SESSION_HELD, SIM_SESSION_MEMBER };

/* A worker's stream. */
struct sim_session {
    enum sim_session_state state;
    uint64_t stream;
    unsigned place; /* of the worker */
    uint64_t incarnation;
    uint64_t key; /* of the membership */
    uint64_t generation_sent;
    bool lanes_sent;
    struct kelp_lane_range lanes;
    bool leave_sent;
};

/* A stream to a shard. */
struct sim_link {
    bool used;
    struct kelp_map_shard shard; /* as registered */
    uint64_t stream;             /* 0: none */
    bool greeted;
    uint64_t key;
    bool plan_sent;
    uint64_t generation_sent;
    uint64_t map_heartbeat; /* reports that repeat this one know of that map */
    uint64_t order_sent;    /* serial */
};

enum sim_plan_state { SIM_PLAN_NONE, SIM_PLAN_OFFERED, SIM_PLAN_WRITTEN };

/* What the two helper threads do, each one after the other: one asks etcd, one the disk. */
enum sim_task_kind {
    SIM_TASK_READ,
    SIM_TASK_READ_MAP,
    SIM_TASK_PLAN,
    SIM_TASK_MAP,
    SIM_TASK_STATE,
    SIM_TASK_COMMIT,
    SIM_TASK_REMOVE,
    SIM_TASK_SYNC,     /* the journal; the first of the disk's */
    SIM_TASK_DESCRIBE, /* job and plan beside the checkpoint, before it is committed */
    SIM_TASK_REMOVE_FOLDER
};

/* What etcd held when it was read. */
struct sim_found {
    bool plan;
    struct kelp_map map; /* owned; generation 0: none */
    char state[16];      /* empty: none */
    uint32_t manifest_count;
    struct sim_manifest *manifests[SIM_MANIFESTS_MAX]; /* references */
    int64_t manifest_revisions[SIM_MANIFESTS_MAX];
    uint32_t folder_count; /* of checkpoints, on disk */
    char folders[SIM_FOLDERS_MAX][SIM_NAME_MAX + 1];
};

struct sim_task {
    enum sim_task_kind kind;
    uint64_t term;
    int64_t revision;     /* of the election key, to be compared; 0: not elected */
    struct kelp_map map;  /* MAP: to write; owned */
    uint64_t version;     /* COMMIT, REMOVE; MAP: restored, 0: none */
    int64_t key_revision; /* MAP: of the restored manifest, to be compared; COMMIT: as written */
    uint64_t gone[SIM_MANIFESTS_MAX]; /* MAP: manifests that go */
    uint32_t gone_count;
    struct sim_manifest *manifest; /* COMMIT: to write; a reference */
    uint64_t nonce;
    char state[16];
    bool finish;      /* SYNC: the job's last record is on file with this */
    int64_t election; /* COMMIT: by which it was ordered */
    uint64_t serial;  /* COMMIT, DESCRIBE: of the order */
    char folder[SIM_NAME_MAX + 1];
    unsigned stage;
    kelp_status status;
    bool succeeded;
    struct sim_found found;
};

enum sim_election { SIM_ELECTION_WAITING, SIM_ELECTION_CAMPAIGNING, SIM_ELECTION_LEADING };

struct sim_helper {
    struct sim_task *tasks; /* a queue; the first one is being carried out */
    size_t count;
    size_t capacity;
    bool busy;
};

struct sim_coordinator {
    struct sim *sim;
    struct sim_process *process;
    uint64_t now_ms;
    uint64_t heartbeat;
    uint64_t terms;

    /* election */
    enum sim_election election;
    bool synced;
    bool taken;
    uint64_t lease; /* 0: none */
    uint64_t kept_us;
    int64_t revision; /* of our key; 0: we hold none */
    int64_t last_revision;

    /* etcd, by way of the helper */
    uint64_t term;
    struct sim_helper helper; /* asks etcd */
    struct sim_helper disk;
    uint64_t map_generation;
    int64_t map_revision;   /* as read or written last; 0: there was none */
    int64_t fence_revision; /* likewise */
    int64_t state_revision; /* likewise */
    bool state_dirty;
    bool state_in_flight;
    uint64_t state_retry_ms;
    char state[16];
    uint64_t shard_watch;
    uint64_t election_watch;
    uint64_t stand_at_ms; /* stand for election again; 0: we do */

    /* leading */
    bool opened;    /* the map that is taken next was written by us */
    bool resigning; /* at the next tick */
    uint64_t last_generation;
    struct kelp_checkpointer checkpointer;
    struct sim_manifest *manifest; /* of the order under way; a reference */
    uint64_t manifest_serial;
    int64_t order_election;
    bool described;
    bool leading;
    bool read;
    bool reread;
    bool reading;
    uint64_t read_at_ms;
    bool map_wanted;
    uint64_t map_at_ms;
    bool ended;
    char found_end[16];
    uint64_t found_generation;
    enum sim_plan_state plan;
    bool plan_in_flight;
    uint64_t plan_at_ms;
    uint64_t finish_generation;
    bool finish_on_file;
    struct kelp_membership membership;
    struct kelp_placement placement;
    struct kelp_progress progress;
    struct sim_session sessions[SIM_SESSIONS_MAX];
    struct sim_link links[SIM_SHARDS_MAX];
};

void sim_coordinator_start(struct sim *sim, struct sim_process *process);
void sim_coordinator_forget(struct sim_process *process);
struct sim_coordinator *sim_coordinator_of(const struct sim_process *process);
/* Somebody asks for a checkpoint; nothing happens when it does not lead. */
void sim_coordinator_request(const struct sim_process *process, bool pause);
/* Why it waits, for people: its placement's reason. */
const char *sim_coordinator_reason(const struct sim_process *process);

/* ---- coordinator.c -----------------------------------------------------------------------------
 */

void sim_coordinator_touch(struct sim_coordinator *coordinator);
void sim_coordinator_place(struct sim_coordinator *coordinator, struct kelp_placement_event event);
void sim_coordinator_count_workers(struct sim_coordinator *coordinator);
void sim_coordinator_report_state(struct sim_coordinator *coordinator);
void sim_coordinator_fail_job(struct sim_coordinator *coordinator, const char *reason);
/* What etcd says. */
void sim_leading_elected(struct sim_coordinator *coordinator);
void sim_leading_resign(struct sim_coordinator *coordinator);
void sim_leading_superseded(struct sim_coordinator *coordinator, const char *by);
void sim_leading_end(struct sim_coordinator *coordinator, const char *why);
void sim_leading_task_done(struct sim_coordinator *coordinator, struct sim_task *task);
void sim_leading_state_written(struct sim_coordinator *coordinator, const char *state);
/* ---- coordinator_records.c ---------------------------------------------------------------------
 */

void sim_records_take(struct sim_coordinator *coordinator, const struct sim_shard_report *report,
                      uint64_t generation);
/* Put what waits on file. */
void sim_records_tick(struct sim_coordinator *coordinator);
void sim_records_tell_finish(struct sim_coordinator *coordinator);

/* ---- coordinator_etcd.c ------------------------------------------------------------------------
 */

void sim_leader_open(struct sim_coordinator *coordinator);
void sim_leader_watch_shards(struct sim_coordinator *coordinator);
void sim_leader_step_down(struct sim_coordinator *coordinator);
void sim_leader_tick(struct sim_coordinator *coordinator);
void sim_leader_submit(struct sim_coordinator *coordinator, enum sim_task_kind kind);
void sim_leader_write_map(struct sim_coordinator *coordinator, const struct kelp_map *map,
                          int64_t restored_revision, const uint64_t *gone, uint32_t gone_count);
void sim_leader_commit(struct sim_coordinator *coordinator);
void sim_leader_remove(struct sim_coordinator *coordinator, uint64_t version);
void sim_leader_resign(struct sim_coordinator *coordinator);
void sim_leader_write_state(struct sim_coordinator *coordinator, const char *state);
void sim_disk_sync_journal(struct sim_coordinator *coordinator, bool finish);
void sim_disk_describe(struct sim_coordinator *coordinator);
void sim_disk_remove(struct sim_coordinator *coordinator, const char *folder);
void sim_leader_forget_tasks(struct sim_coordinator *coordinator);

/* ---- coordinator_checkpoints.c -----------------------------------------------------------------
 */

void sim_checkpoints_init(struct sim_coordinator *coordinator);
void sim_checkpoints_fini(struct sim_coordinator *coordinator);
void sim_checkpoints_apply(struct sim_coordinator *coordinator,
                           struct kelp_checkpointer_event event);
void sim_checkpoints_found(struct sim_coordinator *coordinator, const struct sim_found *found,
                           bool begin);
void sim_checkpoints_generation(struct sim_coordinator *coordinator, bool opened);
struct sim_manifest *sim_checkpoints_manifest(const struct sim_coordinator *coordinator);
void sim_checkpoints_open(struct sim_coordinator *coordinator);
void sim_checkpoints_report(struct sim_coordinator *coordinator, const struct kelp_map_shard *shard,
                            const struct sim_snapshot_report *report);
void sim_checkpoints_described(struct sim_coordinator *coordinator, uint64_t serial);
void sim_checkpoints_committed(struct sim_coordinator *coordinator, const struct sim_task *task);
void sim_checkpoints_removed(struct sim_coordinator *coordinator, const struct sim_task *task);

/* ---- coordinator_workers.c, coordinator_shards.c
 * -----------------------------------------------------------------------
 */

void sim_sessions_update(struct sim_coordinator *coordinator, bool beat);
void sim_sessions_map_changed(struct sim_coordinator *coordinator);
void sim_sessions_review(struct sim_coordinator *coordinator);
void sim_sessions_lose(struct sim_coordinator *coordinator, uint64_t key);
void sim_sessions_close_all(struct sim_coordinator *coordinator);
void sim_links_set(struct sim_coordinator *coordinator, const struct kelp_map_shard *shard);
void sim_links_update(struct sim_coordinator *coordinator);
void sim_links_tick(struct sim_coordinator *coordinator);
void sim_links_lose(struct sim_coordinator *coordinator, uint64_t key);
void sim_links_close_all(struct sim_coordinator *coordinator);

#endif
