/*
 * What the files of the etcd side share. Each calls those behind it alone: leader.c (events, life),
 * leader_tasks.c (blocking calls), leader_checkpoints.c (those about checkpoints), leader_folders.c
 * (what is in the run's folder), leader_keys.c (keys, and reading one).
 */
#ifndef KELP_COORDINATOR_ETCD_LEADER_INTERNAL_H
#define KELP_COORDINATOR_ETCD_LEADER_INTERNAL_H

#include <stdatomic.h>

#include "common/tls/proof.h"
#include "coordinator/etcd/leader.h"

#define KELP__KEY_MAX 160 /* bytes: "/kelp/", a job's name, "/ps/", a shard's name */

#define KELP__HOLDER_MAX                                                                           \
    (KELP_COORDINATOR_ADDRESS_MAX + KELP_COORDINATOR_ID_MAX + KELP_PROOF_HEX + 128)

/* An event of etcd on its way to the loop. */
struct kelp__leader_post {
    struct kelp_leader *leader;
    int kind;
    int64_t revision;
    size_t text_bytes;
    char key[KELP__KEY_MAX];
    char text[]; /* value or reason, NUL-terminated */
};

struct kelp_leader {
    struct kelp_leader_options options;
    const struct kelp_leader_events *events;
    void *user;
    struct kelp_etcd *etcd;
    struct kelp_etcd_watch *spec_watch;
    struct kelp_etcd_watch *election_watch;
    struct kelp_etcd_watch *shard_watch;
    struct kelp_etcd_election *election;
    char address[KELP_COORDINATOR_ADDRESS_MAX + 1]; /* the etcd client's thread, once we stand */
    char holder[KELP__HOLDER_MAX + 1];              /* likewise: what our key is to hold */
    bool closed;
    atomic_bool lost_event; /* there was no memory for one */
    uint64_t term;          /* results of an older one are dropped */
    int64_t revision;       /* of our election key; 0: we hold none */
    int64_t last_revision;  /* of the one that we held last */
    /* Of map and fence as read or written last; 0: there was none. The tasks's thread alone. */
    int64_t map_revision;
    uint64_t map_generation; /* of that map */
    int64_t state_revision;
    char *plan; /* that we have seen, which is the job's for good; owned; NULL: none */
    int64_t scale_revision;
    int64_t fence_revision;
    const struct kelp_job_file *job_file; /* borrowed; NULL until kelp_leader_stand() */
    const char *spec;                     /* likewise */
    bool spec_gone;                       /* as etcd says */
    bool spec_under_way;                  /* to be put again */
    uint32_t spec_wait;                   /* ticks until it is tried again */
    uint64_t spec_digest;
    bool force;
    uint64_t fences; /* counts values of the fence */
    char spec_key[KELP__KEY_MAX];
    char plan_key[KELP__KEY_MAX];
    char map_key[KELP__KEY_MAX];
    char state_key[KELP__KEY_MAX];
    char scale_key[KELP__KEY_MAX];
    char election_key[KELP__KEY_MAX];
    char shard_prefix[KELP__KEY_MAX];
    char fence_key[KELP__KEY_MAX];
    char checkpoint_prefix[KELP__KEY_MAX];
};

enum kelp__leader_task_kind {
    KELP__TASK_READ,
    KELP__TASK_READ_MAP,
    KELP__TASK_SPEC,
    KELP__TASK_PLAN,
    KELP__TASK_MAP,
    KELP__TASK_CHANGE,
    KELP__TASK_STATE,
    KELP__TASK_SCALE,
    KELP__TASK_COMMIT,
    KELP__TASK_REMOVE
};

/* One blocking piece of work. What it needs of the leader's changing state is copied into it by the
 * loop's thread; keys, client, job and options do not change. */
struct kelp__leader_task {
    struct kelp_task task;
    struct kelp_leader *leader;
    enum kelp__leader_task_kind kind;
    uint64_t term;
    int64_t revision;        /* of the election key, to be compared */
    char *text;              /* to write; owned */
    char fence[64];          /* value of the fence, when it is written */
    char key[KELP__KEY_MAX]; /* COMMIT, REMOVE: of the manifest; MAP: of the restored one, or "" */
    int64_t key_revision;    /* MAP: of the restored one. COMMIT, out: of the manifest */
    uint64_t generation;     /* MAP: that it opens. COMMIT: that made the checkpoint */
    int64_t election;        /* COMMIT: by which it was ordered */
    uint64_t serial;         /* COMMIT: of the order */
    uint64_t *gone;          /* MAP: versions whose manifests go; owned */
    uint32_t gone_count;
    kelp_status status;
    struct kelp_error error;
    bool succeeded; /* the transaction was applied */
    struct kelp_found found;
};

kelp_status kelp__leader_get(struct kelp__leader_task *task, const char *key,
                             struct kelp_etcd_range *ret_range);
/* "/kelp/<job>/checkpoint/<version>" */
void kelp__manifest_key(const struct kelp_leader *leader, uint64_t version,
                        char key[KELP__KEY_MAX]);

/* No generation was ever opened in this etcd: the run's folder says what there is. */
kelp_status kelp__leader_import(struct kelp__leader_task *task);
/* Of the folders found, those stay in the list that no checkpoint has and that may be removed. */
void kelp__leader_sift_folders(struct kelp__leader_task *task);

/* The list of checkpoints into task->found; the folder's are put into an empty etcd. */
kelp_status kelp__leader_get_checkpoints(struct kelp__leader_task *task);
kelp_status kelp__leader_commit(struct kelp__leader_task *task);
kelp_status kelp__leader_remove(struct kelp__leader_task *task);
/* Open a generation. */
kelp_status kelp__leader_open_map(struct kelp__leader_task *task);
/* Change the map within its generation. */
kelp_status kelp__leader_change_map(struct kelp__leader_task *task);

#endif
