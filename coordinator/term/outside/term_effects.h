/*
 * The effects of a leader's term (term.h): one table, which the coordinator's process carries out
 * over rpc, etcd and its threads, and the simulator over virtual ones.
 *
 * No effect calls back into the term before it returns. A request that returns true is answered
 * exactly once, later, by the function named in its comment; one that returns false is not
 * answered.
 */
#ifndef KELP_COORDINATOR_TERM_OUTSIDE_TERM_EFFECTS_H
#define KELP_COORDINATOR_TERM_OUTSIDE_TERM_EFFECTS_H

#include "common/log/log.h"
#include "common/training/control.h"
#include "coordinator/core/checkpoints/checkpoints.h"
#include "coordinator/core/membership/assignment.h"
#include "coordinator/core/placement/placement.h"
#include "coordinator/core/progress.h"
#include "coordinator/term/outside/found.h"

#define KELP_OPENING_GONE_MAX 100 /* etcd takes 128 operations in one transaction */

/* Opens a generation, in one transaction. */
struct kelp_opening {
    const struct kelp_map *map;
    int64_t restored_revision;            /* of the manifest of map->restore_version */
    uint64_t gone[KELP_OPENING_GONE_MAX]; /* versions above it, whose manifests are removed */
    uint32_t gone_count;
};

struct kelp_commit {
    uint64_t version;
    uint64_t generation;  /* that made the checkpoint: refused once another one is open */
    int64_t election;     /* by which it was ordered: refused after another one, since the leader in
                             between has removed data without a manifest */
    uint64_t serial;      /* of the order; repeated in the answer */
    const char *manifest; /* its text */
};

struct kelp_commit_answer {
    uint64_t serial; /* of the order; may be a much older one */
    enum kelp_checkpointer_result result;
    int64_t revision; /* of the manifest's key */
    const char *text;
};

/* News for a shard. Borrowed. */
struct kelp_link_news {
    bool hello;                 /* the first message of a stream: hello and specification */
    bool plan;                  /* the job's plan */
    const struct kelp_map *map; /* NULL: none */
    const char *manifest;       /* of what the map restores; "": none */
    bool has_order;             /* a snapshot order, or its end (give_up) */
    bool give_up;
    struct kelp_checkpointer_order order;
    const struct kelp_map *order_map; /* of the order: the shard captures what it leads there */
    uint32_t order_shard;             /* the shard's index there */
    uint64_t records_after; /* with hello: on record; else earlier ones may be dropped; 0: none */
    const char *leave;      /* it may end, for this reason; NULL: it stays */
    uint64_t heartbeat;     /* 0: none */
};

/* News for a worker. Borrowed. */
struct kelp_session_news {
    bool hello;
    const struct kelp_map *map; /* NULL: none */
    bool has_lanes;
    bool rests; /* with them: compute nothing */
    uint64_t assignment_epoch;
    struct kelp_lane_range lanes;
    const char *waits; /* why it is not a member yet; NULL: nothing new */
    bool leave;
    bool drain;       /* finish, send what is computed, then end */
    uint32_t beat_ms; /* interval between reports; 0: as before */
};

/* Training continues with this job: put in place what a resume prepared in the run's folder, and
 * drop records that are not this job's. */
struct kelp_hold {
    uint64_t generation;          /* repeated in the answer */
    const struct kelp_plan *plan; /* borrowed; a longer job than before drops its old end */
    bool force;                   /* the job may be a different one */
    bool opened;                  /* its generation is ours */
    uint64_t restored;            /* version that it began with */
};

/* How far records came that were handed out to be filed. */
struct kelp_filed {
    size_t count;       /* of the first ones, which are on file */
    bool synced;        /* and outlive a loss of power, with all before them */
    kelp_status status; /* of the next one; KELP_OK: there is none */
    const char *text;
};

/* What people want to know afterwards (kelp events): what changed, why, how long it took. */
enum kelp_event_kind {
    KELP_EVENT_LEADS,         /* a term began; took: since nobody led */
    KELP_EVENT_LEADS_NO_MORE, /* it ended */
    KELP_EVENT_WORKER_JOINED, /* who */
    KELP_EVENT_WORKER_LEFT,   /* who */
    KELP_EVENT_WORKER_LOST,   /* who */
    KELP_EVENT_SHARD_JOINED,  /* who */
    KELP_EVENT_SHARD_LOST,    /* who */
    KELP_EVENT_DRAINING,      /* who is to go; why */
    KELP_EVENT_DRAINED,       /* who: a shard has left, with nothing; took: since it was to go */
    KELP_EVENT_GENERATION,    /* one was opened: from step; recomputed */
    KELP_EVENT_PROMOTED,      /* backups replaced primaries; took: since the loss */
    KELP_EVENT_MOVED,         /* partitions move, within the generation */
    KELP_EVENT_LOADED,        /* all shards have the generation; took: since the loss */
    KELP_EVENT_CHECKPOINT,    /* one was committed: of step; took: since it was ordered */
    KELP_EVENT_CHECKPOINT_FAILED, /* of step */
    KELP_EVENT_STATE,             /* the job's: who is the state */
    KELP_EVENT_KIND_COUNT
};

/* Texts are borrowed. */
struct kelp_event {
    enum kelp_event_kind kind;
    const char *who;     /* NULL: nobody in particular */
    const char *why;     /* NULL or "": nothing to say */
    uint64_t generation; /* 0: none yet */
    uint64_t serial;     /* of the map in it; 0: none */
    bool has_step;
    uint64_t step;
    uint64_t recomputed; /* steps; 0: none */
    bool timed;
    uint64_t took_ms;
};

struct kelp_link;
struct kelp_session;

struct kelp_term_effects {
    /* NULL: nobody listens. peer: who caused the line, and may do so as often as it likes; NULL:
     * nobody in particular. */
    void (*log)(enum kelp_log_level level, const char *peer, const char *text, void *user);
    /* Keep it for people, if that can be done. NULL: nobody does. */
    void (*tell)(const struct kelp_event *event, void *user);
    /* Something is wrong that neither waiting nor another process can mend. */
    void (*give_up)(const char *text, void *user);

    /* etcd */
    kelp_status (*watch_shards)(struct kelp_error *reterr,
                                void *user); /* kelp_term_shard_registered(), _gone() */
    bool (*read)(void *user);                /* kelp_term_read() */
    bool (*read_map)(void *user);            /* kelp_term_map_read(): map and checkpoints alone */
    bool (*write_plan)(void *user);          /* the kept one; kelp_term_plan_written() */
    bool (*write_map)(const struct kelp_opening *opening, void *user); /* kelp_term_map_written() */
    bool (*change_map)(const struct kelp_map *map, void *user);        /* likewise; the map alone */
    bool (*write_state)(const struct kelp_job_state *state,
                        void *user);                                 /* kelp_term_state_written() */
    bool (*write_scale)(const struct kelp_scale *scale, void *user); /* kelp_term_scale_written() */
    bool (*commit)(const struct kelp_commit *commit, void *user);    /* kelp_term_committed() */
    bool (*remove)(uint64_t version, void *user);                    /* kelp_term_removed() */

    /* The plan: the process keeps its text. keep: it is this one from now on; *ret_plan is borrowed
     * until the next one or the term's end. Errors: those of kelp_plan_parse(). compare: is it the
     * kept one, as far as workers must agree? KELP_ERR_MISMATCH says in what it is not. */
    kelp_status (*keep_plan)(const char *text, const struct kelp_plan **ret_plan,
                             struct kelp_error *reterr, void *user);
    kelp_status (*compare_plan)(const char *text, struct kelp_error *reterr, void *user);

    /* Records on file (coordinator/files/journal.h), in the order of the calls. file:
     * kelp_term_filed(); sync: after what can be done that they survive a crash. take_hold:
     * kelp_term_held(). */
    bool (*file)(const struct kelp_record *records, size_t count, bool sync, void *user);
    bool (*take_hold)(const struct kelp_hold *hold, void *user);
    uint64_t (*recorded_step)(void *user);
    bool (*recorded_metric)(uint64_t step, double ret_metric[KELP_CHECKPOINT_METRICS], void *user);
    void (*recall)(struct kelp_progress *progress, void *user); /* what the files say of the end */

    /* Checkpoints' folders. describe: kelp_term_described(); the others are done or logged. */
    kelp_status (*make_manifest)(const struct kelp_checkpointer *from,
                                 struct kelp_committed *ret_committed, struct kelp_error *reterr,
                                 void *user); /* with its text */
    bool (*describe)(const char *folder, uint64_t serial, void *user);
    bool (*write_manifest)(const char *folder, const char *text, void *user);
    bool (*remove_folder)(const char *folder, void *user);
    bool (*set_aside)(const char *folder, void *user);

    /* Shards. end: the process's side of a link; NULL: no memory. A stream that is opened ends with
     * kelp_term_shard_closed(), unless the term closed it. open: KELP_ERR_BUSY while one that was
     * closed has not ended yet. */
    void *(*link_create)(struct kelp_link *link, void *user);
    void (*link_destroy)(void *end, void *user);
    kelp_status (*link_open)(void *end, const struct kelp_map_shard *shard,
                             const struct kelp_link_news *hello, struct kelp_error *reterr,
                             void *user);
    bool (*link_full)(void *end, void *user); /* it does not read */
    void (*link_send)(void *end, const struct kelp_link_news *news, void *user);
    void (*link_close)(void *end, kelp_status status, const char *text, void *user);

    /* Workers. end: the process's side of a session. refuse: say why, then close: the worker gives
     * up for good. After close and refuse the session is gone. */
    bool (*session_full)(void *end, void *user);
    void (*session_send)(void *end, const struct kelp_session_news *news, void *user);
    void (*session_refuse)(void *end, bool hello, kelp_status status, const char *text, void *user);
    void (*session_close)(void *end, kelp_status status, const char *text, void *user);
};

/* The table with its user, as a term's parts are given it. */
struct kelp_outside {
    const struct kelp_term_effects *effects; /* borrowed */
    void *user;
};

/* What the outcome of a transaction means; applied: with KELP_OK. */
enum kelp_placement_written kelp_written_of(kelp_status status, bool applied);
enum kelp_checkpointer_result kelp_checkpointer_result_of(kelp_status status, bool applied);

void kelp_outside_tell(const struct kelp_outside *outside, const struct kelp_event *event);
void kelp_outside_log(const struct kelp_outside *outside, enum kelp_log_level level,
                      const char *format, ...) KELP_PRINTF(3, 4);
/* A line that a peer causes. */
void kelp_outside_log_of(const struct kelp_outside *outside, const char *peer,
                         enum kelp_log_level level, const char *format, ...) KELP_PRINTF(4, 5);

#endif
