/*
 * A scripted cluster around real kelp-coordinator processes: etcd, and shards and workers that
 * speak the protocol but compute nothing. On an error these functions fail the running test.
 */
#ifndef KELP_TESTS_LIB_CLUSTER_COORDINATOR_PEERS_H
#define KELP_TESTS_LIB_CLUSTER_COORDINATOR_PEERS_H

#include "common/job/job.h"
#include "common/process/process.h"
#include "common/rpc/rpc.h"
#include "common/training/plan.h"
#include "proto/kelp.pb-c.h"
#include "tests/lib/etcd/etcd_fixture.h"

#define PEERS_COORDINATORS 3
#define PEERS_HANG_MS      50000 /* ends tests that hang; nothing else takes that long */

struct peers {
    struct etcd_fixture etcd;
    struct kelp_etcd *client;
    struct kelp_rpc_loop *loop;
    char folder[64]; /* the run's folder */
    char *spec;
    uint64_t spec_digest;
    struct kelp_process *coordinators[PEERS_COORDINATORS]; /* ids coordinator-0, … */
    const char *advertise;         /* of coordinators, or NULL: where they listen */
    const char *coordinators_etcd; /* where coordinators find etcd, or NULL: directly */
};

/* Start etcd with the specification of a job "demo" with 2 workers, 2 shards and 8 lanes, and
 * make a run's folder. detect: failure.detect, such as "1s". */
void peers_start(struct peers *peers, const char *detect);
/* End everything and remove the folders. */
void peers_stop(struct peers *peers);

/* Start coordinator-<index>; its log goes to <folder>/coordinator-<index>.log. listen may be NULL.
 */
void peers_coordinator(struct peers *peers, uint32_t index, const char *listen);
/* SIGKILL, and wait for its end. */
void peers_coordinator_kill(struct peers *peers, uint32_t index);
/* The leader's address, from etcd; "": there is none. */
void peers_leader(struct peers *peers, char address[256]);
/* Whether the log of coordinator-<index> has this text. */
bool peers_logged(struct peers *peers, uint32_t index, const char *text);
/* The value of key "/kelp/demo/<name>". Owned; "": there is none. */
char *peers_get(struct peers *peers, const char *name);
/* A whole file of the run's folder. Owned; "": it does not exist. */
char *peers_file(struct peers *peers, const char *name);

/* Run the loop until done(user); after a time, fail the test with `what`. */
void peers_wait(struct peers *peers, bool (*done)(void *user), void *user, const char *what);
/* Run the loop for that long. */
void peers_run(struct peers *peers, uint32_t ms);

/* The answer of Status; owned (kelp__v1__status_reply__free_unpacked). NULL: refused. */
Kelp__V1__StatusReply *peers_status(struct peers *peers, const char *address);

/* Ask the leader for a checkpoint. Returns its serial. Fails the test if the leader refuses. */
uint64_t peers_checkpoint(struct peers *peers, bool pause);

/* A plan's text with this data fingerprint; owned. */
char *peers_plan(uint64_t fingerprint);

/* ---- workers ----------------------------------------------------------------------------------
 */

struct peer_worker {
    struct peers *peers;
    const char *id;
    const char *job;     /* NULL: demo */
    const char *plan;    /* NULL: that of fingerprint 1 */
    const char *version; /* of Kelp; NULL: none */
    uint64_t incarnation;
    uint64_t spec_digest;               /* 0: the right one */
    bool mute;                          /* sends no reports */
    const Kelp__V1__WorkerTimes *times; /* in its reports; NULL: none */
    bool stay;                          /* does not rejoin after its stream has ended */
    struct kelp_rpc_channel *channel;
    struct kelp_rpc_stream *stream;
    struct kelp_rpc_timer *timer; /* looks for the leader */
    struct kelp_rpc_timer *beat;
    char address[256];
    uint64_t reports; /* sent */
    /* What it received. */
    uint32_t beat_ms;
    uint64_t generation; /* of the newest map */
    uint32_t maps;
    uint32_t shards;
    uint64_t primary_incarnation; /* of partition 0 */
    bool assigned;
    uint32_t lane_first;
    uint32_t lane_count;
    bool leave;
    char waits[160]; /* why it is not a member yet */
    int status;      /* of a refusal */
    char error[512];
    uint32_t closes;
};
/* Fill in id and what differs from a normal worker, then start. The worker finds the leader
 * itself. */
void peer_worker_start(struct peers *peers, struct peer_worker *worker);
/* Breaks the stream, as the end of the process does, and frees. */
void peer_worker_stop(struct peer_worker *worker);

/* ---- shards -----------------------------------------------------------------------------------
 */

struct peer_shard {
    struct peers *peers;
    const char *id;
    const char *job;     /* the job it names; NULL: demo */
    const char *version; /* of Kelp; NULL: none */
    uint64_t incarnation;
    struct kelp_rpc_server *server;
    struct kelp_rpc_stream *stream; /* from the leader */
    bool slow;                      /* does not report maps as loaded */
    /* What it received. */
    uint64_t heartbeats;
    uint64_t generation;
    uint32_t hellos;
    bool plan;
    uint64_t records_after;
    uint32_t refused; /* streams that ended with MISMATCH */
    /* What its next reports contain. */
    uint64_t loaded;
    int status;
    char error[128];
    char waiting[128];
    /* Snapshots. An order is answered once its partitions have reached the step, unless `hold`
     * is set: DURABLE, with a folder that has one file, FAILED or PAST, as `answer` says (0:
     * DURABLE). */
    uint64_t stands;    /* step of its partitions; 0: any */
    uint32_t parts[64]; /* partitions that the newest map gives it */
    uint32_t part_count;
    bool hold;
    int answer;            /* SnapshotState, 0: DURABLE */
    const char *disk_says; /* FAILED: the error */
    char digest_of;        /* each part's digest is this digit 32 times; 0: '5' */
    uint32_t orders;       /* received, without cancellations */
    uint32_t given_up;
    uint64_t order_serial;
    uint64_t order_generation;
    uint64_t order_step;
    char order_folder[128];
    char manifest[8192]; /* received with the newest map */
    const char *worked;  /* worker whose lanes were taken, in each report; NULL: none */
    bool has_word;       /* each report has partition 0's current word */
    uint64_t word_version;
    uint64_t word_step;
    uint32_t word_kind;
};
/* Fill in id, then start: it serves and registers (without a lease). */
void peer_shard_start(struct peers *peers, struct peer_shard *shard);
/* Move partition 0 to this point and report it to the leader at once. */
void peer_shard_word(struct peer_shard *shard, uint64_t version, uint64_t step, uint32_t kind);
/* Write the snapshot if an order wants the step in `stands`. */
void peer_shard_snapshot(struct peer_shard *shard);
/* Send a report now, after changing its content. */
void peer_shard_report(struct peer_shard *shard);
/* Send completed entries; the word after the last one follows, or DONE after a FINISH. */
void peer_shard_records(struct peer_shard *shard, Kelp__V1__Record **records, size_t count);
/* End it; its registration stays. */
void peer_shard_stop(struct peer_shard *shard);
void peer_shard_unregister(struct peer_shard *shard);

#endif
