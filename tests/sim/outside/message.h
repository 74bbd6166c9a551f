/*
 * What processes send one another: the messages of proto/kelp.proto as structs. A message does not
 * change once it is sent, and is counted, so that a doubled one is the same memory twice.
 */
#ifndef KELP_TESTS_SIM_OUTSIDE_MESSAGE_H
#define KELP_TESTS_SIM_OUTSIDE_MESSAGE_H

#include "coordinator/core/placement/replicas.h"
#include "ps/core/partition/partition.h"
#include "ps/core/partition/standing.h"
#include "ps/core/snapshot/snapshot.h"
#include "tests/sim/model.h"
#include "tests/sim/outside/disk.h"
#include "worker/core/joining.h"
#include "worker/core/sync.h"

enum sim_message_kind {
    SIM_REQUEST,        /* worker to shard: ExchangeRequest */
    SIM_REPLY,          /* shard to worker: ExchangeReply */
    SIM_SHARD_COMMAND,  /* coordinator to shard */
    SIM_SHARD_REPORT,   /* shard to coordinator */
    SIM_WORKER_COMMAND, /* coordinator to worker */
    SIM_WORKER_REPORT,  /* worker to coordinator */
    SIM_LEADER_BEAT,    /* coordinator that leads to one that stands by: FollowReply */
    SIM_REPLICA,        /* between shards: ReplicateRequest and ReplicateReply */
};

struct sim_message {
    enum sim_message_kind kind;
    uint32_t refs;
    void (*destroy)(struct sim_message *message); /* frees what it owns besides itself */
};

/* bytes: of the whole struct, whose first member is the message. */
void *sim_message_create(enum sim_message_kind kind, size_t bytes);
void sim_message_ref(struct sim_message *message);
void sim_message_unref(void *message);

/* A map that several messages carry. */
struct sim_map {
    uint32_t refs;
    uint64_t asked_us; /* of the one in etcd: when its coordinator asked for it */
    struct kelp_map map;
};
struct sim_map *sim_map_create(const struct kelp_map *map); /* a copy */
struct sim_map *sim_map_ref(struct sim_map *map);
void sim_map_unref(struct sim_map *map);

/* common/training/manifest.h, with what the simulation needs of it. */
struct sim_manifest_part {
    uint32_t storage; /* index into storages */
    char digest[33];
};
struct sim_manifest {
    uint32_t refs;
    uint32_t number;       /* in sim->manifests */
    uint64_t committed_us; /* when etcd took it */
    uint64_t version;
    uint64_t step;
    uint64_t generation;
    char folder[SIM_NAME_MAX + 1];
    uint32_t storage_count;
    char storages[SIM_SHARDS_MAX][SIM_NAME_MAX + 1];
    struct sim_manifest_part parts[SIM_PARTITIONS_MAX];
};
/* Empty, and in the world's register, which holds a reference until the end. */
struct sim_manifest *sim_manifest_create(struct sim *sim);
uint64_t sim_manifest_digest(const struct sim *sim, const struct sim_manifest *manifest);
/* That of the register whose number this is. */
struct sim_manifest *sim_manifest_find(const struct sim *sim, const char *number);
struct sim_manifest *sim_manifest_ref(struct sim_manifest *manifest);
void sim_manifest_unref(struct sim_manifest *manifest); /* NULL does nothing */

struct sim_snapshot_report {
    uint64_t serial;
    enum kelp_snapshot_state state;
    uint64_t step;
    uint64_t current_step;
    char error[160];
    char storage[SIM_NAME_MAX + 1];
    uint32_t part_count;
    struct kelp_snapshot_part parts[SIM_PARTITIONS_MAX];
    bool has_word;
    struct kelp_control_word word;
};

struct sim_push {
    uint32_t partition;
    uint64_t map_epoch;
    struct sim_node *node; /* a reference */
};

struct sim_pull {
    uint64_t map_epoch;
    struct kelp_sync_pull pull;
};

/* The share of another partition, for partition 0's decision. */
struct sim_share_push {
    uint32_t partition;
    uint64_t map_epoch;
    struct kelp_decision_share share;
};

/* Numbers that come with an answer or a word: a share, or a decision. */
#define SIM_VALUES_MAX 8
struct sim_values {
    uint32_t count;
    double values[SIM_VALUES_MAX];
};

struct sim_request {
    struct sim_message base;
    uint64_t generation;
    bool has_word;
    struct kelp_control_word word;
    struct sim_values decision; /* goes with the word */
    size_t push_count;
    struct sim_push *pushes; /* owned */
    size_t share_count;
    struct sim_share_push *shares; /* owned */
    size_t pull_count;
    struct sim_pull *pulls; /* owned */
    bool helps;
    uint64_t rank;   /* of the worker: the program's shards hash its name */
    uint32_t author; /* likewise; they number it */
};

/* The primary of a partition, with a refusal. */
struct sim_told {
    char shard[KELP_PLACE_SHARD_MAX + 1]; /* "": not told */
    uint64_t incarnation;
};

struct sim_answer {
    uint32_t partition;
    uint64_t map_epoch;
    struct sim_told told;
    struct kelp_answer core; /* its values lie in `values` */
    struct sim_values values;
    bool has_weights;
    float weights[SIM_SLICE_MAX];
};

struct sim_refusal {
    uint32_t partition;
    struct sim_told told;
    struct kelp_refusal core;
};

struct sim_offer {
    uint32_t partition;
    struct kelp_offer core;
};

struct sim_reply {
    struct sim_message base;
    uint64_t generation;
    size_t answer_count;
    size_t answer_capacity;
    struct sim_answer *answers; /* owned */
    size_t refusal_count;
    size_t refusal_capacity;
    struct sim_refusal *refusals; /* owned */
    size_t offer_count;
    size_t offer_capacity;
    struct sim_offer *offers; /* owned */
};

/* Of a primary to a follower, and back: one thing at a time. */
enum sim_replica_kind {
    SIM_REPLICA_HELLO, /* of the follower: the stream is up */
    SIM_REPLICA_FORWARD,
    SIM_REPLICA_ASK,
    SIM_REPLICA_STATE, /* of the follower: what it has */
    SIM_REPLICA_PIECE, /* the first half of a copy */
    SIM_REPLICA_COPY,  /* the rest */
};

/* Who pushed what of an entry. */
struct sim_known {
    struct kelp_control_word word;
    uint32_t claim_count;
    struct kelp_node_claim claims[KELP_PS_EVIDENCE_TOLD_MAX];
};

struct sim_replica_message {
    struct sim_message base;
    enum sim_replica_kind kind;
    uint64_t process; /* whose it is: its incarnation */
    uint32_t partition;
    uint64_t generation;
    uint64_t map_epoch;
    struct kelp_forward forward; /* its pointers are set when it arrives */
    double sums[KELP_METRIC_SUM_SCALARS];
    char digest[33];
    struct kelp_node_claim claims[KELP_PS_EVIDENCE_TOLD_MAX];
    uint32_t claim_count;
    struct sim_values values; /* of the decision */
    bool has_root;
    uint32_t lanes;
    float root[SIM_SLICE_MAX];
    struct kelp_acknowledgement said;
    struct kelp_replica_state state;
    uint64_t step;                   /* of the copied weights */
    float weights[2][SIM_SLICE_MAX]; /* current and older */
    float momentum[SIM_SLICE_MAX];
    size_t record_count;         /* of this generation, with partition 0 */
    struct kelp_record *records; /* owned */
    struct sim_known *known;     /* of a copy: KELP_PS_EVIDENCE_ENTRIES; owned, or NULL */
};

struct sim_shard_command {
    struct sim_message base;
    bool hello;
    uint64_t proof; /* with hello: the coordinator's incarnation, as etcd names it */
    bool plan;
    struct sim_map *map;           /* a reference, or NULL */
    struct sim_manifest *manifest; /* a reference, or NULL; goes with the map */
    bool has_order;
    bool give_up; /* the order */
    struct kelp_snapshot_order order;
    uint32_t order_count;
    uint32_t order_partitions[SIM_PARTITIONS_MAX];
    uint64_t order_incarnation; /* of the process that is to capture them */
    char folder[SIM_NAME_MAX + 1];
    uint64_t records_after;
    char leave[80]; /* it may end: why; "": it stays */
    uint64_t heartbeat;
};

/* Another shard of which something is wrong, as the one that reports finds. */
struct sim_peer_report {
    unsigned place;
    uint64_t incarnation;
    uint64_t silent_ms;
    bool broken;
};

struct sim_shard_report {
    struct sim_message base;
    uint64_t incarnation; /* 0: no hello */
    uint64_t heartbeat;
    uint64_t loaded_generation;
    kelp_status status;
    char error[160];
    bool has_word;
    struct kelp_control_word word;
    size_t record_count;
    struct kelp_record *records; /* owned */
    char waiting[80];            /* what loading waits for */
    uint64_t map_generation;     /* of the newest map that is carried out */
    uint64_t map_serial;
    size_t replica_count;
    struct kelp_replica_report replicas[SIM_PARTITIONS_MAX];
    size_t peer_count;
    struct sim_peer_report peers[SIM_SHARDS_MAX];
    struct kelp_standing standing;
    bool leaving;     /* it was told to end */
    uint32_t workers; /* that partition 0 took lanes of: a bit for each number */
    struct sim_snapshot_report snapshot;
};

struct sim_worker_command {
    struct sim_message base;
    kelp_status status;
    struct sim_map *map; /* a reference, or NULL */
    bool has_assignment;
    uint64_t assignment_epoch;
    uint32_t lane_first;
    uint32_t lane_count;
    bool rests;
    bool leave;
    bool drain;
    uint32_t beat_ms;
};

struct sim_worker_report {
    struct sim_message base;
    uint64_t incarnation; /* 0: no hello */
    bool same;
    uint64_t assignment_epoch;
    struct kelp_joining_progress progress;
    bool trouble;
};

#endif
