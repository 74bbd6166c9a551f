/* What the files of the service share; nobody else includes it. */
#ifndef KELP_PS_SERVICE_SHARD_SERVICE_INTERNAL_H
#define KELP_PS_SERVICE_SHARD_SERVICE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/log/log_gate.h"
#include "common/tls/spiffe.h"
#include "proto/convert.h"
#include "proto/hello.h"
#include "proto/wire.h"
#include "ps/core/control/shard_control.h"
#include "ps/core/evidence/roster.h"
#include "ps/core/lanes/ticker.h"
#include "ps/core/limits.h"
#include "ps/service/shard_service.h"
#include "ps/service/told.h"
#include "ps/shard/shard.h"

struct kelp__service_peer;   /* one Exchange stream */
struct kelp__service_leader; /* one Control stream */
struct kelp__service_load;   /* a generation that is being prepared */
struct kelp__service_turn;   /* scratch memory of one message */
struct kelp__service_snapshots;
struct kelp__service_replicas;
struct service_map;

struct kelp_service {
    struct kelp_service_options options;
    struct kelp_rpc_server *server;
    struct kelp_shard *shard;
    struct kelp__service_replicas *replicas;
    struct kelp_hello self; /* who we are, what every hello is checked against */
    Kelp__V1__Hello hello;  /* the same as a message */

    pthread_mutex_t turns_lock;       /* guards turns; a leaf */
    struct kelp__service_turn *turns; /* free ones */

    pthread_mutex_t names_lock; /* guards names and conflicts; a leaf */
    struct kelp_roster *roster; /* names of workers; owned */
    uint64_t warn_after_ms;
    unsigned warnings_held;
    uint64_t conflicts; /* that did not end the job, since the start */
    char conflict[480]; /* the newest */

    pthread_mutex_t told_lock; /* guards told; a leaf */
    struct service_map *told;  /* the newest map that was taken, a reference; NULL: none */

    struct kelp_log_gate refusals;     /* lines about streams that are ended, ... */
    struct kelp_log_gate waits;        /* ... about those that wait to be the leader's, ... */
    struct kelp_log_gate leader_lines; /* ... and about leaders that come and go */

    atomic_bool leaving;             /* it was told to end */
    atomic_uint_fast64_t generation; /* served */
    atomic_uint_fast64_t bytes_in;
    atomic_uint_fast64_t bytes_out;
    atomic_uint_fast64_t bytes_copied; /* of partitions, to shards that get them */

    /* The look at what is late. */
    atomic_bool ticking;       /* ticker.soon, to be read without the lock */
    pthread_mutex_t tick_lock; /* guards what follows; a leaf */
    struct kelp_ticker ticker;
    struct kelp_rpc_timer *tick_timer;

    /* Held while an order or a map goes to the partitions, so that they hear them in the order in
     * which they were taken. Taken before control_lock and before any partition's lock. */
    pthread_mutex_t orders_lock;

    /*
     * Guards everything below. Taken inside a partition's lock (records, failures), so nothing that
     * locks a partition is called under it.
     */
    pthread_mutex_t control_lock;
    struct kelp_shard_control *control;   /* decides what is loaded, reported and saved */
    struct kelp__service_leader *leaders; /* Control streams */
    struct kelp_rpc_timer *timer;         /* of its reports */
    struct kelp__service_snapshots *snapshots;
    struct kelp_plan *plan; /* once known, for good */
    char *plan_text;
    struct kelp__service_load *loading; /* at most one at a time */
    struct kelp__service_load *wanted;  /* of the newest map that was taken */
    bool map_due;                       /* what is told is to be carried out */
    pthread_cond_t load_cancelled;
};

/* Whoever is at the other end of a stream, in lines of the log. */
struct service_speaker {
    enum kelp_role role;
    const char *id; /* NULL: it has not said, or is not believed */
};
/* shard_service.c: one line about a stream that is ended, and no more than one a second of a
 * host, role and status. what: "stream refused". */
void kelp__service_log_end(struct kelp_service *service, struct kelp_rpc_stream *stream,
                           const struct service_speaker *speaker, const char *what,
                           kelp_status status, const char *text);
/* Send what says why, and end the stream. reply: has status and text, too. */
void kelp__service_refuse(struct kelp_rpc_stream *stream, const ProtobufCMessage *reply,
                          kelp_status status, const char *text);
/* The largest message of a stream between a shard and whoever pushes to it: its primary too. */
size_t kelp__service_message_bytes_max(const struct kelp_job *job);

/* exchange.c */
extern const struct kelp_shard_events kelp__service_shard_events;
const struct kelp_rpc_stream_events *
kelp__service_exchange_accept(struct kelp_rpc_stream *stream, void *server_user, void **ret_user);
struct kelp__service_turn *
kelp__service_turn_take(struct kelp_service *service); /* NULL: out of memory */
struct kelp_shard_turn *kelp__service_turn_shard(struct kelp__service_turn *turn);
/* Send what the turn's events produced: one message for each stream, in pieces when large; then the
 * turn is free again. */
void kelp__service_turn_finish(struct kelp_service *service, struct kelp__service_turn *turn);
void kelp__service_turns_free(struct kelp_service *service);
/* A message came: look soon for what is late. */
void kelp__service_keep_ticking(struct kelp_service *service);
void kelp__service_ticks_stop(struct kelp_service *service);

/* conflict.c: the number that stands for the worker of a stream in events of the shard; 0:
 * there are too many. Each stream that came in ends by leave. */
uint32_t kelp__service_author(struct kelp_service *service, const char *id, const char *peer);
/* Another shard knows that worker by this name; its number here. shard: of the stream. */
uint32_t kelp__service_author_told(struct kelp_service *service, const char *id, const char *shard);
/* False: nobody known. */
bool kelp__service_author_name(struct kelp_service *service, uint32_t author,
                               char ret_id[KELP_JOB_NAME_MAX + 1]);
void kelp__service_author_leaves(struct kelp_service *service, uint32_t author);
/* How often workers differed; text is the newest. */
uint64_t kelp__service_conflicts(struct kelp_service *service, char *text, size_t bytes);
/* An event of the shard. */
void kelp__service_worked(const struct kelp_shard_work *work, void *user);
/* Who has shown work since the last call: at most max of them. */
size_t kelp__service_take_work(struct kelp_service *service, struct kelp_roster_work *ret_work,
                               size_t max);
void kelp__service_conflict(uint32_t partition, const struct kelp_conflict *conflict, void *user);

/* control.c */
const struct kelp_rpc_stream_events *
kelp__service_control_accept(struct kelp_rpc_stream *stream, void *server_user, void **ret_user);
/* Something happened: carry out what follows. control_lock is held. The result is the event's
 * (ps/core/control/shard_control.h). */
kelp_status kelp__service_control_apply(struct kelp_service *service,
                                        const struct kelp_shard_event *event);
/* The same, and control_lock is not held. */
kelp_status kelp__service_control_apply_locked(struct kelp_service *service,
                                               const struct kelp_shard_event *event);
void kelp__service_control_record(const struct kelp_record *record,
                                  const struct kelp_control_word *word,
                                  const struct kelp_best *best, void *user);
void kelp__service_control_failed(uint32_t partition, kelp_status status, const char *text,
                                  void *user);
kelp_status kelp__service_control_open(struct kelp_service *service,
                                       struct kelp_error *reterr) KELP_MUST_USE;
/* Free what belongs to the control side. */
void kelp__service_control_close(struct kelp_service *service);

/* map.c. control_lock is held: take a map, and say in the command which; a known or older
 * one is ignored. manifest: of the checkpoint that it restores, or "". */
kelp_status kelp__service_map_take(struct kelp_service *service, const Kelp__V1__Map *map,
                                   const char *manifest, struct kelp_shard_command *command,
                                   struct kelp_error *reterr) KELP_MUST_USE;
/* No lock is held: carry out what was taken, as far as its generation is served. */
void kelp__service_map_carry_out(struct kelp_service *service);
/* Borrows from the view. */
struct kelp_shard_led kelp__service_led(const struct kelp_shard_view *view);
void kelp__service_map_unref(struct service_map *map);
/* The newest map that was taken, referenced; NULL: none. Any thread, whatever it has locked. */
struct service_map *kelp__service_told(struct kelp_service *service);

/* load.c; control_lock is held but for init and stop */
void kelp__service_load_init(struct kelp_service *service);
kelp_status kelp__service_load_plan(struct kelp_service *service, const char *text,
                                    struct kelp_error *reterr) KELP_MUST_USE;
void kelp__service_load_start(struct kelp_service *service, uint64_t generation);
void kelp__service_load_cancel(struct kelp_service *service);
/* Wait for a generation that is being prepared; none is any more. */
void kelp__service_load_stop(struct kelp_service *service);

/* snapshot.c */
kelp_status kelp__service_snapshots_open(struct kelp_service *service,
                                         struct kelp_error *reterr) KELP_MUST_USE;
/* No event of a snapshot comes any more. */
void kelp__service_snapshots_stop(struct kelp_service *service);
void kelp__service_snapshots_close(struct kelp_service *service);
/* control_lock is held for all that follow. The next order goes into this folder. */
void kelp__service_snapshots_set_folder(struct kelp_service *service, const char *folder);
void kelp__service_snapshots_act(struct kelp_service *service,
                                 const struct kelp_snapshot_action *action);
/* The order that the partitions are to hear once control_lock is released; serial 0: none. */
struct kelp_snapshot_order kelp__service_snapshots_pop_order(struct kelp_service *service);
/* NULL: none was ordered. Borrowed until the lock is released. */
Kelp__V1__SnapshotReport *kelp__service_snapshots_report(struct kelp_service *service,
                                                         const struct kelp_snapshot_view *view);
void kelp__service_snapshots_log(const struct kelp_snapshot_view *view);
/* Events of the shard. */
bool kelp__service_snapshot_taken(uint64_t ticket, uint32_t partition,
                                  const struct kelp_control_word *word, void *user);
void kelp__service_snapshot_past(uint64_t ticket, uint64_t step, void *user);
void kelp__service_snapshot_failed(uint64_t ticket, kelp_status status, const char *text,
                                   void *user);

/* replicas/replicas.c */
kelp_status kelp__service_replicas_open(struct kelp_service *service,
                                        struct kelp_error *reterr) KELP_MUST_USE;
/* No link and no timer is left; the loop runs meanwhile. The server is closed. */
void kelp__service_replicas_stop(struct kelp_service *service);
void kelp__service_replicas_close(struct kelp_service *service);
/* What a report says of followers that its receiver was not told yet. Owned array: free(). NULL:
 * there are none. control_lock is held. */
Kelp__V1__ReplicaReport **kelp__service_replicas_report(struct kelp_service *service,
                                                        struct kelp__service_told *told,
                                                        size_t *ret_count);
/* Likewise the shards of which something is wrong. */
Kelp__V1__PeerReport **kelp__service_peer_reports(struct kelp_service *service, size_t *ret_count);
/* Events of the shard. */
void kelp__service_in_sync(uint32_t partition, void *user);

/* replicas/links.c: have links to the followers of this map, and no others. */
void kelp__service_links_follow(struct kelp_service *service, const struct service_map *map);
/* Send what the turn's events left. */
void kelp__service_links_flush(struct kelp__service_turn *turn);
/* Events of the shard. */
void kelp__service_forward(const struct kelp_shard_root *root, void *turn, void *user);
void kelp__service_ask(const struct kelp_shard_question *question, void *turn, void *user);

/* replicas/follow.c */
const struct kelp_rpc_stream_events *
kelp__service_follow_accept(struct kelp_rpc_stream *stream, void *server_user, void **ret_user);
void kelp__service_followings_flush(struct kelp__service_turn *turn);
void kelp__service_acknowledge(uint32_t partition, uint64_t process,
                               const struct kelp_acknowledgement *said, void *turn, void *user);
void kelp__service_copied(uint32_t partition, const void *records, void *user);

/* replicas/copies.c: events of the shard. */
void kelp__service_want_copy(uint32_t partition, uint64_t process, size_t bytes, void *user);
void kelp__service_copy(struct kelp_replica_copy *copy, uint64_t process, void *user);

/* replicas/differs.c: an event of the shard. */
void kelp__service_differs(uint32_t partition, const struct kelp_difference *difference,
                           void *user);

#endif
