/*
 * The shard's side of coordinators' streams, as a pure state machine: events in, actions out. It
 * decides which map is loaded, what is reported to whom and when, and which snapshot is taken
 * (ps/core/snapshot/snapshot.h is part of it). The shell (ps/service) and the simulator carry out
 * its actions.
 *
 *             map                    map: CANCEL_LOAD
 *    IDLE ----------> LOADING ---------------------------> CANCELLED
 *     ^                  |                                     |
 *     | loaded or failed |                                     | loaded or failed: LOAD the newest
 *     --------------------                LOADING <-------------
 *
 * Only the leader is obeyed. Its key in etcd holds the digest of its proof, and a stream shows its
 * proof with the hello. So maps, orders and serials of others are ignored, however large their
 * numbers, and a new leader is obeyed at once. While etcd is unreachable the last known leader is
 * obeyed. Streams without the proof are closed if there are too many. Maps are also fenced by their
 * generation, so that a leader deposed meanwhile can do no harm.
 *
 * Records are kept until the leader says that they are on disk, or another generation is served.
 * They are sent to each stream once, in order, while partition 0 is led here; a follower keeps them
 * in case it is promoted. A coordinator that connects says which records it already has.
 *
 * Threads: one caller at a time. No I/O, no clock, never blocks.
 */
#ifndef KELP_PS_CORE_CONTROL_SHARD_CONTROL_H
#define KELP_PS_CORE_CONTROL_SHARD_CONTROL_H

#include "ps/core/limits.h"
#include "ps/core/partition/standing.h"
#include "ps/core/snapshot/snapshot.h"

struct kelp_shard_control;

/* ---- events ---- */

enum kelp_shard_event_kind {
    KELP_SHARD_ON_LEADER,          /* the content of the leader's key in etcd */
    KELP_SHARD_ON_CONNECT,         /* a coordinator's stream */
    KELP_SHARD_ON_HELLO,           /* its first message. KELP_ERR_NOT_LEADER: it must wait */
    KELP_SHARD_ON_CLOSE,           /* a stream ended; one that never connected is ignored */
    KELP_SHARD_ON_COMMAND,         /* KELP_ERR_NOT_LEADER: nothing of it is done */
    KELP_SHARD_ON_ORDER,           /* of a snapshot, once the map that came with it is entered.
                                      KELP_ERR_OLD_GENERATION: it is out of date; NOT_LEADER too */
    KELP_SHARD_ON_UNSENT,          /* a REPORT was not sent: send its records again */
    KELP_SHARD_ON_STORAGE_MISSING, /* the load waits. KELP_OK: check again later; else: give up */
    KELP_SHARD_ON_LOADED,          /* the load is over: the generation is served, or it failed */
    KELP_SHARD_ON_ENTERED,         /* a map within the served generation has been applied */
    KELP_SHARD_ON_REPLICAS,        /* there is news of followers */
    KELP_SHARD_ON_COPIED_RECORD,   /* with a copy of partition 0: a record that its primary kept */
    KELP_SHARD_ON_RECORD,          /* partition 0 completed an entry */
    KELP_SHARD_ON_FAILURE,  /* a partition cannot continue. KELP_ERR_OLD_GENERATION: not reported */
    KELP_SHARD_ON_TIMER,    /* KELP_PS_REPORT_MS have passed */
    KELP_SHARD_ON_NO_TIMER, /* START_TIMER failed */
    KELP_SHARD_ON_SNAPSHOT_TAKEN,   /* KELP_ERR_CLOSED: it is no longer wanted */
    KELP_SHARD_ON_SNAPSHOT_PAST,    /* a partition is past the step */
    KELP_SHARD_ON_SNAPSHOT_WRITTEN, /* a partition is written, but not synced */
    KELP_SHARD_ON_SNAPSHOT_SYNCED,  /* all is durable. KELP_ERR_CLOSED: it is no longer wanted */
    KELP_SHARD_ON_SNAPSHOT_FAILED,
    KELP_SHARD_ON_STOP, /* the process ends: no further map is loaded */
};

/* What a coordinator's message asks for, but for its order. */
struct kelp_shard_command {
    uint64_t stream;
    uint64_t heartbeat;
    uint64_t records_after;  /* first command of a stream: records before this version are known.
                                Later ones: they need not be kept. 0: all */
    uint64_t map_generation; /* of a map that kelp_shard_control_judge() accepts; 0: none */
    uint64_t map_serial;     /* of that map */
    bool map_reads;          /* it names this shard as a primary or a backup */
    struct kelp_standing standing; /* looked at since the message came; for its answer */
};

/* It goes with its serial. */
struct kelp_shard_order {
    uint64_t stream;
    const struct kelp_snapshot_order *order;
    struct kelp_snapshot_share share;
    bool give_up; /* the one of this generation and serial */
};

/* What this shard is the primary of. */
struct kelp_shard_led {
    const uint32_t *partitions; /* ascending */
    uint32_t partition_count;
    const struct kelp_control_word *word; /* partition 0 is among them; NULL: it is not */
    const struct kelp_best *best;         /* likewise; NULL: none */
};

struct kelp_shard_loaded {
    kelp_status status;
    const char *text; /* unless status is KELP_OK */
    /* With KELP_OK: */
    struct kelp_shard_led led;
};

struct kelp_shard_event {
    enum kelp_shard_event_kind kind;
    union {
        uint64_t stream;    /* CONNECT, CLOSE */
        const char *leader; /* LEADER: digest of its proof */
        struct {
            uint64_t stream;
            const char *proof; /* digest of what it showed */
        } hello;
        struct kelp_shard_command command;
        struct kelp_shard_order order;
        struct {
            uint64_t stream;
            size_t record_first;
        } unsent;
        struct {
            const char *text;
            uint64_t now_ms; /* of any monotonic clock */
        } missing;
        struct kelp_shard_loaded loaded;
        struct {
            uint64_t generation;
            uint64_t serial;
            struct kelp_shard_led led;
        } entered;
        struct {
            const struct kelp_record *record;
            const struct kelp_control_word *word; /* of the next entry */
            const struct kelp_best *best;         /* NULL: none */
        } record;                                 /* COPIED_RECORD: the record only */
        struct {
            kelp_status status;
            const char *text;
        } failure;
        struct {
            uint64_t ticket;
            uint32_t partition;                   /* TAKEN, WRITTEN */
            const struct kelp_control_word *word; /* TAKEN, from partition 0; else NULL */
            uint64_t step;                        /* PAST */
            const char *digest;                   /* WRITTEN */
            uint64_t bytes;                       /* WRITTEN */
            kelp_status status;                   /* FAILED */
            const char *text;                     /* FAILED */
        } snapshot;
    };
};

/* ---- actions: to be carried out in this order ---- */

enum kelp_shard_action_kind {
    KELP_SHARD_DO_REPORT,      /* tell one coordinator; UNSENT if that fails */
    KELP_SHARD_DO_LOAD,        /* load the map of `generation`, the newest taken; then LOADED */
    KELP_SHARD_DO_CANCEL_LOAD, /* let the load end soon; LOADED comes all the same */
    KELP_SHARD_DO_START_TIMER, /* TIMER every KELP_PS_REPORT_MS */
    KELP_SHARD_DO_STOP_TIMER,
    KELP_SHARD_DO_SNAPSHOT, /* any action of ps/core/snapshot/snapshot.h but KELP_SNAPSHOT_DO_REPORT
                             */
    KELP_SHARD_DO_LOG,      /* a line about `news`; the view says the rest */
    KELP_SHARD_DO_GIVE_WAY, /* end this stream: it has shown no proof, and a newer one wants in */
};

enum kelp_shard_news {
    KELP_SHARD_NEWS_FAILED,   /* it cannot go on */
    KELP_SHARD_NEWS_MISSING,  /* a load waits for other storage than before */
    KELP_SHARD_NEWS_SNAPSHOT, /* its state changed */
};

struct kelp_shard_action {
    enum kelp_shard_action_kind kind;
    union {
        struct {
            uint64_t stream;
            bool hello; /* the first report of the stream */
            uint64_t heartbeat;
            size_t record_first; /* index into the view's records */
            size_t record_count;
            struct kelp_standing standing; /* of the generation that is served, or not known */
        } report;
        uint64_t generation;
        struct kelp_snapshot_action snapshot;
        enum kelp_shard_news news;
        uint64_t stream; /* GIVE_WAY */
    };
};

/* Each event reports to each stream at most four times, and does little else. */
#define KELP_SHARD_PROOF_MAX   64 /* bytes of a proof's digest */
#define KELP_SHARD_ACTIONS_MAX (4 * KELP_PS_CONTROL_STREAMS_MAX + 2 * KELP_SNAPSHOT_ACTIONS_MAX + 8)

/* The caller's; events append to it. */
struct kelp_shard_actions {
    struct kelp_shard_action items[KELP_SHARD_ACTIONS_MAX];
    uint32_t count;
};

/* ---- the machine ---- */

struct kelp_shard_control_config {
    uint32_t report_records_max; /* records in one report */
    uint32_t storage_wait_ms;    /* for storage that is missing; 0: for ever */
};

kelp_status kelp_shard_control_create(const struct kelp_shard_control_config *config,
                                      struct kelp_shard_control **ret_control,
                                      struct kelp_error *reterr) KELP_MUST_USE;
/* NULL does nothing. */
void kelp_shard_control_destroy(struct kelp_shard_control *control);

/* Does this stream belong to who leads? */
bool kelp_shard_control_obeys(const struct kelp_shard_control *control, uint64_t stream);

/* Is this map to be taken? KELP_ERR_MISMATCH: it names another incarnation of this shard, and the
 * leader will find the present one. KELP_ERR_OLD_GENERATION: known, or of a deposed leader. */
kelp_status kelp_shard_control_judge(const struct kelp_shard_control *control, uint64_t generation,
                                     uint64_t serial, bool names_another_incarnation) KELP_MUST_USE;
/* Of a map that is to be taken: is it a change within the generation that is served or loaded? Then
 * nothing is loaded; ENTERED follows once it is carried out. One that leaves this shard nothing to
 * read, while it loads an older map, is none: what that load finds does not matter any more.
 *
 * reads  as in kelp_shard_command */
bool kelp_shard_control_changes(const struct kelp_shard_control *control, uint64_t generation,
                                bool reads);

/* The result says what became of the event, by its kind (above); the caller passes it on. */
kelp_status kelp_shard_control_apply(struct kelp_shard_control *control,
                                     const struct kelp_shard_event *event,
                                     struct kelp_shard_actions *actions) KELP_MUST_USE;

/* What reports say. Everything is borrowed until the next event. */
struct kelp_shard_control_view {
    uint64_t generation;     /* served; 0: none */
    uint64_t map_generation; /* of the newest map that is carried out; 0: none */
    uint64_t map_serial;
    uint64_t loading;                       /* generation that is being loaded; 0: none */
    kelp_status status;                     /* loading or training failed */
    const char *error;                      /* why; "" */
    const char *waiting;                    /* what a load waits for; "": for nothing */
    const struct kelp_control_word *word;   /* NULL: partition 0 is not led here */
    const struct kelp_best *best;           /* NULL: none is known */
    const struct kelp_record *latest_train; /* NULL: none yet in this generation */
    const struct kelp_record *records;      /* that belong into the result files */
    size_t record_count;
    struct kelp_snapshot_view snapshot;
};
void kelp_shard_control_view(const struct kelp_shard_control *control,
                             struct kelp_shard_control_view *ret_view);

#endif
