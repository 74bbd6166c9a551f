/* What the files of the service share; nobody else includes it. */
#ifndef KELP_PS_SERVICE_SERVICE_INTERNAL_H
#define KELP_PS_SERVICE_SERVICE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "proto/convert.h"
#include "proto/wire.h"
#include "ps/core/limits.h"
#include "ps/service/shard_service.h"
#include "ps/shard/shard.h"

#define KELP__PROTOCOL 1

struct kelp__service_peer; /* one Exchange stream */
struct kelp__leader;       /* one Control stream */
struct kelp__service_load; /* a generation that is being prepared */
struct kelp__service_turn; /* scratch memory of one message */
struct kelp__service_snapshots;

struct kelp_service {
    struct kelp_service_options options;
    struct kelp_rpc_server *server;
    struct kelp_shard *shard;
    Kelp__V1__Hello hello; /* ours */

    pthread_mutex_t turns_lock;       /* guards turns; a leaf */
    struct kelp__service_turn *turns; /* free ones */

    atomic_uint_fast64_t generation; /* served */
    atomic_uint_fast64_t bytes_in;
    atomic_uint_fast64_t bytes_out;

    /* The look at what is late: when the first entry may be; never while nothing happens. */
    atomic_bool ticking;       /* the next one is soon */
    pthread_mutex_t tick_lock; /* guards what follows; a leaf */
    struct kelp_rpc_timer *tick_timer;
    uint32_t tick_ms; /* its period; 0: there is none */

    /*
     * Guards everything below. Taken inside a partition's lock (records, failures), so nothing that
     * locks a partition is called under it.
     */
    pthread_mutex_t control_lock;
    struct kelp__service_snapshots *snapshots;
    struct kelp__leader *leaders;
    uint32_t leader_count;
    struct kelp_plan *plan; /* once known, for good */
    char *plan_text;
    struct kelp__service_load *loading; /* at most one at a time */
    struct kelp__service_load *wanted;  /* the newest map that came meanwhile */
    pthread_cond_t load_changed;        /* a load that waits is to look: another map, the end */
    char waiting[256];                  /* what it waits for; "": for nothing */
    kelp_status status; /* loading or training failed: what the coordinator is told */
    char error[512];
    struct kelp_record *records; /* of this generation, that are for the files */
    size_t record_count;
    size_t record_capacity;
    bool has_word; /* partition 0 is here */
    struct kelp_control_word word;
    struct kelp_best best; /* when known */
    bool has_train;
    struct kelp_record latest_train;
    bool dirty;                   /* there is something that leaders have not been told */
    struct kelp_rpc_timer *timer; /* while there is */
};

/* service.c: does the first message of a stream belong to us? KELP_ERR_MISMATCH. */
kelp_status kelp__service_check_hello(const struct kelp_service *service,
                                      const Kelp__V1__Hello *hello, struct kelp_error *reterr);

/* service_exchange.c */
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
void kelp__service_ticks_stop(struct kelp_service *service);

/* service_control.c */
const struct kelp_rpc_stream_events *
kelp__service_control_accept(struct kelp_rpc_stream *stream, void *server_user, void **ret_user);
void kelp__service_control_record(const struct kelp_record *record,
                                  const struct kelp_control_word *word,
                                  const struct kelp_best *best, void *user);
void kelp__service_control_failed(uint32_t partition, kelp_status status, const char *text,
                                  void *user);
/* With control_lock held: tell all leaders at once; it cannot go on; a generation is served. */
void kelp__service_control_report(struct kelp_service *service);
void kelp__service_control_fail(struct kelp_service *service, kelp_status status, const char *text);
void kelp__service_control_generation(struct kelp_service *service,
                                      const struct kelp_shard_view *view);
/* Free what belongs to the control side. */
void kelp__service_control_free(struct kelp_service *service);

/* service_load.c; control_lock is held for plan and map */
void kelp__service_load_init(struct kelp_service *service);
kelp_status kelp__service_load_plan(struct kelp_service *service, const char *text,
                                    struct kelp_error *reterr) KELP_MUST_USE;
/* manifest: of the checkpoint that the map restores, or "". A known or older generation is ignored.
 */
kelp_status kelp__service_load_map(struct kelp_service *service, const Kelp__V1__Map *map,
                                   const char *manifest, struct kelp_error *reterr) KELP_MUST_USE;
/* Wait for a generation that is being prepared; none is any more. */
void kelp__service_load_stop(struct kelp_service *service);

/* service_snapshot.c */
kelp_status kelp__service_snapshots_open(struct kelp_service *service,
                                         struct kelp_error *reterr) KELP_MUST_USE;
/* No event of a snapshot comes any more. */
void kelp__service_snapshots_stop(struct kelp_service *service);
void kelp__service_snapshots_close(struct kelp_service *service);
/* control_lock is not held. */
void kelp__service_snapshots_order(struct kelp_service *service,
                                   const Kelp__V1__SnapshotOrder *order);
/* control_lock is held: a newer generation is about to be loaded; it is served. */
void kelp__service_snapshots_cancel(struct kelp_service *service);
void kelp__service_snapshots_generation(struct kelp_service *service, uint64_t generation,
                                        const uint32_t *partitions, uint32_t count);
/* control_lock is held. NULL: none was ordered. Borrowed until the lock is released. */
Kelp__V1__SnapshotReport *kelp__service_snapshots_report(struct kelp_service *service);
bool kelp__service_snapshot_taken(uint64_t ticket, uint32_t partition,
                                  const struct kelp_control_word *word, void *user);
void kelp__service_snapshot_past(uint64_t ticket, uint64_t step, void *user);
void kelp__service_snapshot_failed(uint64_t ticket, kelp_status status, const char *text,
                                   void *user);

#endif
