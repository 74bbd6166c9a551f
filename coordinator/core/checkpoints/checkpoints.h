/*
 * Decides about checkpoints: when to order one and at which step, which shards have answered,
 * commit or abandon, what to remove. Pure: events in (with the time), actions out.
 *
 *              due              all durable           etcd has it
 *     IDLE ----------> ORDERED -------------> WRITING ------------> IDLE
 *      ^                  |                      |
 *      +------------------+----------------------+
 *        failed, late, a shard lost, no answer; etcd did not accept it
 *
 * One at a time. A snapshot is identified by its training step, which must be ahead of every
 * partition when the order arrives: the margin follows from the measured step rate, and is doubled
 * each time a partition was past it.
 *
 * A commit whose answer was lost is sent again unchanged until the answer is definite; its data may
 * not be touched before that. While one is undecided no generation should be opened
 * (kelp_checkpointer_restores()); opening one decides it, since that transaction removes every
 * manifest above the restored version and fences later commits.
 */
#ifndef KELP_COORDINATOR_CORE_CHECKPOINTS_CHECKPOINTS_H
#define KELP_COORDINATOR_CORE_CHECKPOINTS_CHECKPOINTS_H

#include "common/training/control.h"
#include "common/training/plan.h"
#include "coordinator/core/checkpoints/committed_list.h"
#include "coordinator/core/map.h"

enum kelp_checkpointer_state {
    KELP_CHECKPOINTER_IDLE,
    KELP_CHECKPOINTER_ORDERED,
    KELP_CHECKPOINTER_WRITING,
    KELP_CHECKPOINTER_STATE_COUNT
};

enum kelp_checkpointer_event_kind {
    KELP_CHECKPOINTER_LISTED,     /* all that etcd has */
    KELP_CHECKPOINTER_GENERATION, /* this map is in etcd */
    KELP_CHECKPOINTER_CHANGED,    /* the map changed within its generation */
    KELP_CHECKPOINTER_GONE,       /* a shard's process, perhaps no longer in the map, has ended */
    KELP_CHECKPOINTER_RUNNING,    /* the generation is loaded everywhere: orders may be sent */
    KELP_CHECKPOINTER_STOPPED,    /* it no longer runs (a shard is lost, the job failed) */
    KELP_CHECKPOINTER_PROGRESS,   /* partition 0's current word */
    KELP_CHECKPOINTER_EVALUATED,  /* a step was evaluated on the validation split */
    KELP_CHECKPOINTER_REQUEST,    /* a checkpoint was requested; its serial is then `requested` */
    KELP_CHECKPOINTER_REPORT,     /* from a shard */
    KELP_CHECKPOINTER_SENT,       /* the transaction of COMMIT has been sent */
    KELP_CHECKPOINTER_COMMITTED,  /* answer to COMMIT */
    KELP_CHECKPOINTER_REMOVED,    /* answer to REMOVE */
    KELP_CHECKPOINTER_DAMAGED,    /* a version cannot be restored */
    KELP_CHECKPOINTER_FINISHED,   /* the schedule is complete, and that is on record */
    KELP_CHECKPOINTER_TICK,
    KELP_CHECKPOINTER_EVENT_COUNT
};

/* The result of a transaction. */
enum kelp_checkpointer_result {
    KELP_CHECKPOINTER_OK,
    KELP_CHECKPOINTER_AWAY,    /* certainly not: etcd did not get it, or we are not elected now */
    KELP_CHECKPOINTER_REFUSED, /* certainly not, and never: something it compares has changed */
    KELP_CHECKPOINTER_UNKNOWN  /* the answer was lost: send it again */
};

/* As SnapshotState of kelp.proto. */
enum kelp_checkpointer_answer {
    KELP_CHECKPOINTER_ANSWER_NONE,
    KELP_CHECKPOINTER_ANSWER_TAKING,
    KELP_CHECKPOINTER_ANSWER_DURABLE,
    KELP_CHECKPOINTER_ANSWER_FAILED,
    KELP_CHECKPOINTER_ANSWER_PAST,
    KELP_CHECKPOINTER_ANSWER_CAPTURED
};

struct kelp_checkpointer_part {
    uint32_t partition;
    uint64_t bytes;
    const char *digest;
};

/* All borrowed, and unchecked external input. */
struct kelp_checkpointer_report {
    const char *shard;
    uint64_t incarnation;
    uint64_t serial;
    enum kelp_checkpointer_answer answer;
    const char *error;   /* FAILED */
    const char *storage; /* DURABLE: its folder's name */
    const struct kelp_checkpointer_part *parts;
    uint32_t part_count;
    const struct kelp_control_word *word; /* DURABLE, host of partition 0: what was saved */
    uint64_t current_step;                /* PAST */
};

/* Of the job, once its plan is known. */
struct kelp_checkpointer_schedule {
    uint64_t steps_per_epoch;
    uint64_t total_steps;
    /* Intervals, in training steps, of evaluations of the validation split; 0: none. */
    uint64_t evaluate_steps[2];
};

/* Pointers are borrowed. */
struct kelp_checkpointer_event {
    enum kelp_checkpointer_event_kind kind;
    uint64_t now_ms;
    bool changes; /* map entries are changing or about to: do not order */
    union {
        struct {
            struct kelp_committed *entries; /* texts that were taken are NULL afterwards */
            uint32_t count;
            uint64_t first_serial; /* another leader may have ordered meanwhile: start above it */
        } listed;
        struct {
            const struct kelp_map *map;
            bool opened; /* just now, by us: no earlier leader ordered anything in it */
            struct kelp_checkpointer_schedule schedule;
        } generation;
        struct {
            const struct kelp_map *map;
            bool loses;      /* shards that are no longer in it were lost */
            bool fails_over; /* and with them a primary */
        } changed;
        struct {
            const char *id;
            uint64_t incarnation;
        } gone;
        const char *stopped; /* why */
        const struct kelp_control_word *progress;
        struct {
            uint64_t step;
            double metric[KELP_CHECKPOINT_METRICS];
        } evaluated;
        struct {
            bool pause;
        } request;
        const struct kelp_checkpointer_report *report;
        struct {
            uint64_t serial; /* of the order whose commit was answered */
            enum kelp_checkpointer_result result;
            const char *text;
            /* OK: unix_ms, state_digest, revision, manifest, the rest is filled in here. The text
             * is NULL afterwards when it was taken. */
            struct kelp_committed *checkpoint;
        } committed;
        enum kelp_checkpointer_result removed;
        uint64_t damaged; /* version */
    };
};

/* What is done after an event, in this order. */
enum kelp_checkpointer_action_kind {
    KELP_CHECKPOINTER_DO_SAY,     /* an error line: text */
    KELP_CHECKPOINTER_DO_DISCARD, /* no manifest names this folder or ever will */
    KELP_CHECKPOINTER_DO_ORDER,   /* the order has changed: to every shard of the map */
    KELP_CHECKPOINTER_DO_RESTORE, /* what kelp_checkpointer_restores() says may have changed */
    KELP_CHECKPOINTER_DO_REMOVE,  /* the manifest of a version, then its folder (removing_folder).
                                     Answer with REMOVED */
    KELP_CHECKPOINTER_DO_FAIL,    /* two of one version differ (text): the promise is broken */
    KELP_CHECKPOINTER_DO_END,     /* the final state is committed, or will not be: done */
    KELP_CHECKPOINTER_DO_PAUSE,   /* a request with pause has been answered, at a step */
    KELP_CHECKPOINTER_DO_COMMIT,  /* the order, as one transaction; the same one as before when its
                                     serial is the same. SENT when the files it needs are written
                                     and it goes out; answer with COMMITTED */
    KELP_CHECKPOINTER_ACTION_COUNT
};

/* Texts are borrowed from the checkpointer until its next event. */
struct kelp_checkpointer_action {
    enum kelp_checkpointer_action_kind kind;
    union {
        const char *text;   /* SAY, FAIL */
        const char *folder; /* DISCARD */
        uint64_t version;   /* REMOVE */
        uint64_t step;      /* PAUSE */
    };
};

/* At most one of each kind, in their order; of FAIL, END and PAUSE the first one alone. */
struct kelp_checkpointer_actions {
    struct kelp_checkpointer_action items[KELP_CHECKPOINTER_ACTION_COUNT];
    uint32_t count;
};

/* What the next generation is to restore. */
struct kelp_checkpointer_restore {
    uint64_t version; /* 0: nothing */
    bool final;       /* it is the final state */
    bool undecided;   /* a commit was sent whose outcome is not known: wait with opening one */
};

struct kelp_checkpointer_order {
    uint64_t serial; /* 0: none; what is in progress is given up */
    uint64_t generation;
    uint64_t step;
    char folder[KELP_FOLDER_NAME_MAX + 1];
};

/* Of a shard of the map, by its index there. One that leads no partition saves nothing. */
struct kelp_checkpointer_shard {
    bool heard;    /* it knows of the order */
    bool captured; /* what it is to save is in its memory: it may lead it no more */
    bool durable;
    char storage[KELP_FOLDER_NAME_MAX + 1];
};

struct kelp_checkpointer_pending_part {
    bool there;
    uint32_t shard;
    uint64_t bytes;
    char digest[KELP_DIGEST_HEX_BYTES];
};

struct kelp_checkpointer_evaluation {
    uint64_t step;
    double metric[KELP_CHECKPOINT_METRICS];
};

struct kelp_checkpointer_options {
    uint32_t steps;
    uint32_t interval_ms;
    uint32_t epochs;
    bool at_end;
    struct kelp_retention policy;
    uint64_t
        first_serial; /* above those of every leader before: reports of its orders are not ours */
};

struct kelp_checkpointer {
    struct kelp_checkpointer_options options;
    struct kelp_checkpointer_schedule schedule;
    struct kelp_committed_list list;
    enum kelp_checkpointer_state state;

    /* The generation. */
    struct kelp_map map;   /* own copy, as when the order was made; generation 0: none */
    struct kelp_map newer; /* as it is now; generation 0: it has not changed since */
    bool listed;
    bool running;
    bool names_free; /* nobody before us used folder names of this generation */
    bool finished;   /* the schedule is complete */
    bool ended;      /* DO_END was said */
    uint32_t end_tries;
    uint64_t restored_step;

    /* Progress. */
    bool word_known;
    struct kelp_control_word word;
    uint64_t step_ms;   /* when its step was seen to grow */
    double rate;        /* steps a millisecond */
    uint64_t rate_step; /* where its measurement began */
    uint64_t rate_ms;
    uint64_t margin;    /* factor */
    uint64_t past_step; /* a partition stands there, or further */
    /* The newest evaluations, a ring: a fast job is epochs ahead when a snapshot is durable. */
    struct kelp_checkpointer_evaluation evaluations[KELP_COORDINATOR_EVALUATIONS_MAX];
    uint32_t evaluation_count;
    uint32_t evaluation_next;

    /* The one in progress. */
    bool changes; /* as the newest event said */
    struct kelp_checkpointer_order order;
    uint64_t given_up; /* serial of the newest order that came to nothing: shards may stop */
    bool for_request;  /* answers requests up to for_serial */
    bool for_end;
    uint64_t for_serial;
    bool reached; /* training has come to its step */
    uint64_t reached_ms;
    uint64_t commit_ms;                           /* of the next attempt */
    bool committing;                              /* COMMIT was said: an answer will come */
    bool unknown;                                 /* the answer to an earlier attempt was lost */
    bool undecided;                               /* it was sent and may be in etcd */
    uint64_t evaluation_ms;                       /* the metric is waited for until then; 0: not */
    struct kelp_control_word saved;               /* of partition 0, as reported */
    struct kelp_checkpointer_shard *shards;       /* owned; room for any map's */
    struct kelp_checkpointer_pending_part *parts; /* owned; of map.partitions */

    /* The schedule. */
    uint64_t serial;    /* newest order */
    uint64_t overtaken; /* newest order of another leader that a shard reported */
    uint64_t attempts;  /* orders in this generation */
    uint64_t last_step; /* newest step that was ordered: scheduled ones are later */
    uint64_t last_ms;   /* when the interval began */
    uint64_t not_before_ms;
    uint64_t pause_ms; /* before the next try, after failures in a row */
    bool again;        /* what a loss or a standstill took is ordered again, as soon as it can be */

    /* Requests. */
    uint64_t requested;
    uint64_t requested_step; /* where partition 0 stood at the newest one */
    uint64_t answered;
    uint64_t refused;
    uint64_t pause_serial; /* newest one with pause; 0: none */
    bool paused;           /* DO_PAUSE was said */
    uint64_t paused_step;

    /* Removal. */
    bool removing_now; /* an answer is on its way */
    uint64_t removing;
    char removing_folder[KELP_FOLDER_NAME_MAX + 1];
    uint64_t remove_ms;
    char discarded[KELP_FOLDER_NAME_MAX + 1];

    /* For people. */
    uint64_t committed;
    uint64_t failed;
    char trouble[KELP_COORDINATOR_REASON_MAX + 1]; /* empty once one succeeded */
};

/* By the job: checkpoints on a schedule are for training only, others change no weights. */
struct kelp_checkpointer_options kelp_checkpointer_options_of(const struct kelp_job *job,
                                                              uint64_t first_serial);
struct kelp_checkpointer_schedule kelp_checkpointer_schedule_of(const struct kelp_job *job,
                                                                const struct kelp_plan *plan);

/* Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_checkpointer_init(struct kelp_checkpointer *checkpoints,
                                   const struct kelp_checkpointer_options *options,
                                   struct kelp_error *reterr) KELP_MUST_USE;
void kelp_checkpointer_fini(struct kelp_checkpointer *checkpoints);

/* Take in one event. Errors: KELP_ERR_NO_MEMORY, KELP_ERR_LIMIT: the event was not taken (a list:
 * not all of it). */
kelp_status kelp_checkpointer_apply(struct kelp_checkpointer *checkpoints,
                                    const struct kelp_checkpointer_event *event,
                                    struct kelp_checkpointer_actions *ret_actions,
                                    struct kelp_error *reterr) KELP_MUST_USE;

struct kelp_checkpointer_restore
kelp_checkpointer_restores(const struct kelp_checkpointer *checkpoints);

/*
 * What a pause asked for is in the shards' memory and being written: steps that are made now would
 * be made again, so workers may leave. They are needed again when the checkpoint fails.
 */
bool kelp_checkpointer_holds(const struct kelp_checkpointer *checkpoints);

/* Of the validation split at this step, by enum kelp_checkpoint_metric; NULL when it is not known.
 * Borrowed until the next event. */
const double *kelp_checkpointer_metric(const struct kelp_checkpointer *checkpoints, uint64_t step);

/* Which partitions are still to be captured by their primaries, which are to lead them until then?
 * What is captured is written whoever leads. False: none. ret_owes: of each partition of the map.
 */
bool kelp_checkpointer_owes(const struct kelp_checkpointer *checkpoints,
                            bool ret_owes[KELP_PARTITIONS_MAX]);
/* Has this process still to capture or to write something for the order in progress? */
bool kelp_checkpointer_needs(const struct kelp_checkpointer *checkpoints, const char *id,
                             uint64_t incarnation);
/* Is the job to rest? */
bool kelp_checkpointer_pauses(const struct kelp_checkpointer *checkpoints);

/* The storages of a manifest: of the shards that lead partitions, in the order of the map. Their
 * number; ret_places[i] is that of the map's shard i, KELP_MAP_NOBODY when it saved nothing. */
uint32_t kelp_checkpointer_storages(const struct kelp_checkpointer *checkpoints,
                                    uint32_t ret_places[KELP_COORDINATOR_SHARDS_MAX]);

/* Does the order in progress wait for the answer to its commit, and is it this one? A commit of an
 * order before may be answered late: that says nothing about ours. */
bool kelp_checkpointer_awaits(const struct kelp_checkpointer *checkpoints, uint64_t serial);

#endif
