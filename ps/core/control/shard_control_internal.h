/* Between the files of shard_control: its state, and what they need of one another. */
#ifndef KELP_PS_CORE_CONTROL_SHARD_CONTROL_INTERNAL_H
#define KELP_PS_CORE_CONTROL_SHARD_CONTROL_INTERNAL_H

#include "ps/core/control/shard_control.h"

/* A coordinator's stream. */
struct kelp__control_stream {
    uint64_t id;
    char proof[KELP_SHARD_PROOF_MAX + 1]; /* digest; "": none shown yet */
    bool greeted;                         /* its first command came */
    bool has_hello;                       /* its first report left */
    uint64_t heartbeat;
    size_t cursor; /* records before it have been handed out */
};

struct kelp_shard_control {
    struct kelp_shard_control_config config;
    char leader[KELP_SHARD_PROOF_MAX + 1]; /* digest of its proof; "": not known */
    struct kelp__control_stream streams[KELP_PS_CONTROL_STREAMS_MAX]; /* the oldest first */
    uint32_t stream_count;

    uint64_t generation;     /* served; 0: none */
    uint64_t serial;         /* of the newest map taken, of the newest generation */
    uint64_t map_generation; /* of the newest map that is carried out; 0: none */
    uint64_t map_serial;
    uint64_t loading; /* generation; 0: none */
    bool cancelled;   /* the load: a newer map came, or the process ends */
    bool missing;     /* the load waits for storage */
    uint64_t missing_since_ms;
    uint64_t wanted; /* generation of the newest map, once the load is over; 0: none */
    struct kelp_snapshot *snapshot;

    kelp_status status;
    char error[512];
    char waiting[256];
    bool has_word; /* partition 0 is led here */
    struct kelp_control_word word;
    struct kelp_best best; /* when known */
    bool has_train;
    struct kelp_record latest_train;
    struct kelp_record *records;
    size_t record_count;
    size_t record_capacity;

    bool dirty;  /* there is something that coordinators have not been told */
    bool timing; /* the timer runs */
};

/* ---- shard_control.c ---- */

struct kelp_shard_action *kelp__shard_control_add(struct kelp_shard_actions *actions,
                                                  enum kelp_shard_action_kind kind);
void kelp__shard_control_tell(struct kelp_shard_actions *actions, enum kelp_shard_news news);
/* The first failure stays. */
void kelp__shard_control_fail(struct kelp_shard_control *control, kelp_status status,
                              const char *text, struct kelp_shard_actions *actions);
/* What the snapshot is to do, and reports that speak of it. */
void kelp__shard_control_snapshot(struct kelp_shard_control *control,
                                  const struct kelp_snapshot_actions *snapshot,
                                  struct kelp_shard_actions *actions);
/* A report on each stream that was greeted. */
void kelp__shard_control_report(struct kelp_shard_control *control,
                                struct kelp_shard_actions *actions);

/* ---- shard_control_maps.c: maps, and what they load ---- */

void kelp__shard_control_on_map(struct kelp_shard_control *control,
                                const struct kelp_shard_command *command,
                                struct kelp_shard_actions *actions);
void kelp__shard_control_cancel_load(struct kelp_shard_control *control,
                                     struct kelp_shard_actions *actions);
/* NOT_FOUND: it has waited long enough; OLD_GENERATION: nobody wants this load any more. */
kelp_status kelp__shard_control_on_missing(struct kelp_shard_control *control, const char *text,
                                           uint64_t now_ms, struct kelp_shard_actions *actions);
void kelp__shard_control_on_loaded(struct kelp_shard_control *control,
                                   const struct kelp_shard_loaded *loaded,
                                   struct kelp_shard_actions *actions);
void kelp__shard_control_on_entered(struct kelp_shard_control *control,
                                    const struct kelp_shard_event *event,
                                    struct kelp_shard_actions *actions);

#endif
