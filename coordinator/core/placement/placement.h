/*
 * Decides what happens to the partition map: wait, open a generation, load it, run. Pure: events in
 * (with the time), actions out.
 *
 *               everything is there            written             all loaded
 *     WAITING ----------------------> OPENING ---------> LOADING -------------> RUNNING ---> DONE
 *        ^ ^      write failed           |                  |                      |
 *        | +-----------------------------+                  |                      |
 *        +-------------------- a shard of the map is lost --+----------------------+
 *     FAILED is entered from all states but DONE and PAUSED, PAUSED from RUNNING; both are final.
 *     DONE is left if a shard is lost and there is a checkpoint of the final state: it is loaded
 *     again, so that the whole model can be fetched.
 *
 * In LOADING, RUNNING and DONE the map may change within its generation (placement_changes.c):
 *
 *           an entry is to change                written
 *     NONE ----------------------> WRITING ------------------> NONE, the map's serial is one higher
 *       ^                            |   |
 *       |         not written        |   | the answer was lost
 *       +----------------------------+   v
 *       +---------------------------- READING
 *               what is in etcd
 *
 * Shards get a change first. Workers get it when every primary that we hear has applied it; a
 * primary that has not tells workers to retry.
 *
 * If a shard is lost and all its partitions have another replica in sync, map entries change
 * (failover.h), and training continues. Otherwise another generation is opened, from a checkpoint.
 * A failover needs only one witness, since a wrong guess costs a copy and no step. Each of these is
 * one: a new incarnation under its name; its stream, broken off by its end; silence to us and to a
 * peer; silence for shard_wait_ms while training does not progress. A follower that is silent only
 * to its primary blocks its partitions, and is removed from their entries (doubts.h).
 *
 * A generation starts from the newest checkpoint that is not known to be damaged, or from version
 * 0. Storage that is not yet visible is waited for by name. If a shard finds the checkpoint
 * damaged, or reading it fails repeatedly, it is marked, and another generation starts from the one
 * before.
 *
 * A shard that received different control words of one step is blocked, and can continue only with
 * the next generation. So are partitions that a worker has driven apart (apart.h). From RUNNING and
 * LOADING that leads to WAITING, as a loss does.
 *
 * DONE means that the whole final model is present, so it requires the FINISH record of the running
 * generation. The record may come early (a new leader receives it while LOADING) or too late (a
 * shard was lost while the records were synced): it is remembered with its generation until that
 * one runs, and is void once a newer one is open, which trains to its own FINISH.
 *
 * Opening, restoring after a loss, and taking over from a dead leader are one state machine: a new
 * leader starts in WAITING with the map that it read, goes to LOADING with it, and finds its shards
 * already loaded.
 *
 * For a generation, a shard of the map is lost when another incarnation of it has registered, or
 * when two witnesses say so: we have not heard it for shard_wait_ms, *and* either its end of the
 * stream was broken off (the process ended) or its lease in etcd is gone. Silence alone is only a
 * reason to reconnect, since workers may still reach the shard; its process may still exist
 * (kelp_placement_silent()), and the launcher may kill and restart it.
 *
 * Progress proves all shards alive, since each step needs each of them: while training progresses,
 * none is lost or hanging, however slow its answers to us are. Without progress, silence that lasts
 * longer than a lease means that a process hangs.
 *
 * If no shard of the map is heard although all their leases are alive, we are cut off: RESIGN.
 *
 * A shard is drained when it is named (`kelp drain`) or reports that it was told to end: it gets no
 * partition, and those that it has move away. Then it may leave (kelp_placement_leave()). If no
 * other shard can take them, names are ignored, and a shard that was told to end leaves anyway,
 * which is a loss.
 */
#ifndef KELP_COORDINATOR_CORE_PLACEMENT_PLACEMENT_H
#define KELP_COORDINATOR_CORE_PLACEMENT_PLACEMENT_H

#include "coordinator/core/placement/apart.h"
#include "coordinator/core/placement/doubts.h"
#include "coordinator/core/placement/replicas.h"
#include "coordinator/core/targets.h"

enum kelp_placement_state {
    KELP_PLACEMENT_WAITING,
    KELP_PLACEMENT_OPENING,
    KELP_PLACEMENT_LOADING,
    KELP_PLACEMENT_RUNNING,
    KELP_PLACEMENT_DONE,
    KELP_PLACEMENT_PAUSED,
    KELP_PLACEMENT_FAILED,
    KELP_PLACEMENT_STATE_COUNT
};

enum kelp_placement_event_kind {
    KELP_PLACEMENT_MAP_READ,     /* what etcd has */
    KELP_PLACEMENT_PLAN,         /* the job's plan is in etcd */
    KELP_PLACEMENT_WORKERS,      /* the number of workers has changed */
    KELP_PLACEMENT_SIZE,         /* the wanted size of the cluster has changed */
    KELP_PLACEMENT_REGISTERED,   /* a shard's key is in etcd */
    KELP_PLACEMENT_UNREGISTERED, /* the key is gone */
    KELP_PLACEMENT_CONNECTED,    /* its stream answered */
    KELP_PLACEMENT_DISCONNECTED, /* its stream has ended */
    KELP_PLACEMENT_STORAGE,      /* what its loading waits for has changed */
    KELP_PLACEMENT_LOADED,       /* it has loaded a generation */
    KELP_PLACEMENT_TAKEN,        /* it has applied a map */
    KELP_PLACEMENT_REPLICAS,     /* it has reported the state of its followers */
    KELP_PLACEMENT_STANDS,       /* it has reported the steps of its partitions */
    KELP_PLACEMENT_DOUBTED,      /* a peer does not hear it */
    KELP_PLACEMENT_LEAVING,      /* it was told to end, and wants to be drained first */
    KELP_PLACEMENT_LOAD_FAILED,  /* it could not load a generation */
    KELP_PLACEMENT_BLOCKED,      /* it can continue only with the next generation */
    KELP_PLACEMENT_MISSING,      /* before MAP_READ: choosing a checkpoint waits for something */
    KELP_PLACEMENT_RESTORE,      /* where the next generation starts */
    KELP_PLACEMENT_WRITTEN,      /* the result of writing the next map */
    KELP_PLACEMENT_FINISHED,     /* a generation completed the schedule, and that is on record */
    KELP_PLACEMENT_PAUSE,        /* a checkpoint was committed, and the job pauses */
    KELP_PLACEMENT_STOPPED,      /* the job has failed */
    KELP_PLACEMENT_TICK,
    KELP_PLACEMENT_EVENT_COUNT
};

enum kelp_placement_written {
    KELP_WRITTEN_OK,
    KELP_WRITTEN_NOT,     /* certainly not: try again */
    KELP_WRITTEN_UNKNOWN, /* lost answer or a compare that failed: read the map first */
};

/* Texts, ids and shards are borrowed. */
struct kelp_placement_event {
    enum kelp_placement_event_kind kind;
    uint64_t now_ms;
    const char *hint; /* for the reason of a failure: where the job stood, how to go on; or NULL */
    const bool *owes; /* per partition: its primary must still save it; NULL: none must */
    bool still;       /* do not attach joiners */
    union {
        struct kelp_map *map_read; /* generation 0: none; transferred */
        uint32_t partition_count;  /* PLAN */
        uint32_t worker_count;     /* WORKERS: there now */
        struct {
            uint32_t workers_min;   /* before the first generation opens */
            uint32_t workers_least; /* training rests with fewer */
            uint32_t shards;
            const struct kelp_drain *drains; /* processes that are to leave */
            uint32_t drain_count;
        } size;
        const struct kelp_map_shard *registered;
        const char *unregistered; /* id */
        struct {
            const char *id;
            uint64_t incarnation;
            uint64_t generation; /* that it has loaded; 0: none */
        } connected;
        struct {
            const char *id;
            bool broken; /* the shard's side ended the stream */
        } disconnected;
        struct {
            const char *id;
            uint64_t incarnation;
            const char *text; /* "": nothing any more */
        } storage;
        struct {
            const char *id;
            uint64_t incarnation;
            uint64_t generation;
        } loaded;
        struct {
            const char *id;
            uint64_t incarnation;
            uint64_t generation;
            uint64_t serial;
        } taken;
        struct {
            const char *id;
            uint64_t incarnation;
            uint64_t generation; /* of the map that it goes by */
            const struct kelp_replica_report *reports;
            size_t count;
        } replicas;
        struct {
            const char *id;
            uint64_t incarnation;
            struct kelp_apart_said said;
        } stands;
        struct {
            const char *id; /* of the one that is not heard */
            uint64_t incarnation;
            uint64_t by; /* incarnation of the one that says so */
            bool silent; /* it has not heard it for long; else its stream was broken off just now */
        } doubted;
        struct {
            const char *id;
            uint64_t incarnation;
        } leaving;
        struct {
            const char *id;
            uint64_t incarnation;
            kelp_status status;
            const char *text;
        } load_failed;       /* BLOCKED too */
        const char *missing; /* what it waits for */
        struct {
            uint64_t version;    /* 0: none */
            uint64_t generation; /* newest that made any checkpoint */
            bool final;          /* of the final state: nothing is computed after it */
            bool undecided;      /* a commit is in progress whose outcome is not known */
        } restore;
        enum kelp_placement_written written;
        uint64_t finished;   /* generation */
        const char *pause;   /* why */
        const char *stopped; /* why */
    };
};

/* What is done after an event, in this order. */
enum kelp_placement_action_kind {
    KELP_PLACEMENT_DO_COUNT_LOSS,        /* a shard of the map was lost */
    KELP_PLACEMENT_DO_MAP_TO_SHARDS,     /* another generation: to all shards */
    KELP_PLACEMENT_DO_CHANGE_TO_SHARDS,  /* the map changed within its generation: to all shards */
    KELP_PLACEMENT_DO_MAP_TO_WORKERS,    /* map is loaded: to all workers */
    KELP_PLACEMENT_DO_CHANGE_TO_WORKERS, /* a change has been taken: to all workers */
    KELP_PLACEMENT_DO_STATE,             /* state or reason changed */
    KELP_PLACEMENT_DO_READ_MAP,          /* answer with MAP_READ */
    KELP_PLACEMENT_DO_WRITE_MAP,         /* next, a generation; answer with WRITTEN */
    KELP_PLACEMENT_DO_WRITE_CHANGE,      /* next, within the generation; answer with WRITTEN */
    KELP_PLACEMENT_DO_DAMAGED,           /* a version cannot be restored: RESTORE another */
    KELP_PLACEMENT_DO_RESIGN, /* we are the one that is cut off: let somebody else lead */
    KELP_PLACEMENT_ACTION_COUNT
};

struct kelp_placement_action {
    enum kelp_placement_action_kind kind;
    union {
        const char *lost; /* COUNT_LOSS: the shard's id; borrowed from the placement */
        struct {
            bool loses;      /* CHANGE_TO_SHARDS: a shard was lost */
            bool fails_over; /* and with it a primary */
        } change;
        uint64_t damaged; /* version */
    };
};

/* At most one of each kind, in their order. */
struct kelp_placement_actions {
    struct kelp_placement_action items[KELP_PLACEMENT_ACTION_COUNT];
    uint32_t count;
};

struct kelp_placement_shard {
    struct kelp_map_shard at; /* as registered; the id alone when it never was */
    bool registered;
    bool connected;
    uint64_t connected_incarnation;
    uint64_t changed_ms;  /* when it was connected or disconnected last */
    bool broken;          /* its side ended the stream */
    bool silent;          /* lost, and its process may still be there */
    uint64_t leaving;     /* incarnation that was told to end; 0: none */
    bool draining;        /* it is to end with nothing */
    uint64_t draining_ms; /* since when */
    uint64_t let_go;      /* incarnation that was told that it may leave; 0: none */
    uint64_t loaded_generation;
    uint64_t taken_generation; /* of the newest map that it has */
    uint64_t taken_serial;
    uint64_t dropped;             /* incarnation that a failover took out of the map; 0: none */
    uint64_t doubted_incarnation; /* whom a peer did not hear */
    uint64_t doubted_ms;          /* when it said so last */
    struct kelp_apart_behind behind;
    char waiting[KELP_COORDINATOR_WAITING_MAX + 1]; /* what loading waits for */
    uint64_t waiting_ms;                            /* since when */
};

/* Of the map within its generation. */
enum kelp_placement_change {
    KELP_CHANGE_NONE,
    KELP_CHANGE_WRITING,
    KELP_CHANGE_READING, /* it may be in etcd */
};

struct kelp_placement_options {
    char
        program[KELP_COORDINATOR_PROGRAM_MAX + 1]; /* that workers run, for people; "": their own */
    uint32_t shards;                               /* wanted */
    uint32_t replicas;                             /* of each partition, likewise */
    uint32_t workers_min;                          /* before the first generation opens */
    uint32_t shard_wait_ms;
    uint32_t detect_ms;       /* silence that is a loss: failure.detect */
    uint32_t storage_wait_ms; /* 0: without limit */
    uint64_t writer;          /* unique to this leadership, for nonces */
};

struct kelp_placement {
    struct kelp_placement_options options;
    enum kelp_placement_state state;
    char reason[KELP_COORDINATOR_REASON_MAX + 1]; /* for people; empty: nothing to say */
    char loss[KELP_COORDINATOR_ID_MAX + 1];       /* the shard that was lost last */
    bool map_read;
    char missing[KELP_COORDINATOR_WAITING_MAX + 1]; /* what reading waits for; "": etcd alone */
    uint64_t missing_ms;                            /* since when */
    uint32_t partition_count;                       /* 0: no plan yet */
    uint32_t worker_count;
    uint32_t workers_least; /* with fewer training rests */
    uint64_t writes;        /* counts nonces */
    uint64_t not_before_ms; /* no new generation earlier */
    uint64_t growth_ms;     /* since when it waits for more shards than it had; 0: it does not */
    uint64_t finished_generation; /* newest that completed the schedule; 0: none */
    uint64_t restore_version;     /* where the next generation starts */
    uint64_t restore_generation;  /* newest that made any checkpoint: the next one is above it */
    uint64_t served_generation;   /* newest that any shard has: the next one is above it too */
    bool undecided;               /* a commit's outcome is not known yet */
    uint32_t load_failures;       /* in a row, of failed_version, that may pass */
    uint64_t failed_version;
    uint32_t blocks;      /* generations that were given up because shards were blocked */
    bool choosing;        /* which one it is: RESTORE will say */
    bool restore_final;   /* it is the final state */
    uint64_t progress_ms; /* training went on last; 0: never */
    uint64_t cut_off_ms;  /* since when no shard is heard; 0: one is */
    struct kelp_map map;  /* as written; generation 0: none */
    struct kelp_map next; /* being written */
    struct kelp_replicas replicas;
    struct kelp_doubts doubts;
    struct kelp_apart apart;
    enum kelp_placement_change change;
    bool loses;                                    /* the change: a shard was lost */
    bool fails_over;                               /* and it was a primary */
    char because[KELP_COORDINATOR_REASON_MAX + 1]; /* the change, for people */
    bool unarranged;                               /* partitions may have to be moved */
    uint64_t look_ms;      /* not all of it could be done: look again then; 0: no need to */
    bool promotion_waits;  /* for a snapshot that its primary owes: order no other one */
    uint64_t change_at_ms; /* no attempt earlier */
    uint64_t move_at_ms;   /* no move earlier */
    uint64_t gather_ms;    /* nor before this while joiners catch up */
    bool told;             /* workers may know the map as it is */
    uint64_t tell_ms;      /* and do from then on in any case */
    struct kelp_drain drains[KELP_COORDINATOR_DRAINS_MAX]; /* who is to go; workers too */
    uint32_t drain_count;
    uint32_t shard_count;
    struct kelp_placement_shard *shards; /* owned */
};

kelp_status kelp_placement_init(struct kelp_placement *placement,
                                const struct kelp_placement_options *options,
                                struct kelp_error *reterr) KELP_MUST_USE;
void kelp_placement_fini(struct kelp_placement *placement);

/* Take in one event. Errors: KELP_ERR_LIMIT (too many shards), KELP_ERR_NO_MEMORY: the event was
 * not taken. */
kelp_status kelp_placement_apply(struct kelp_placement *placement,
                                 const struct kelp_placement_event *event,
                                 struct kelp_placement_actions *ret_actions,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* Training has gone on. */
void kelp_placement_progressed(struct kelp_placement *placement, uint64_t now_ms);

/* Is the job over, for this leader: done, paused or failed? */
bool kelp_placement_settled(const struct kelp_placement *placement);

/* Is it lost, or about to be, though its process may still be there (stopped, cut off)? */
bool kelp_placement_silent(const struct kelp_placement *placement,
                           const struct kelp_placement_shard *shard, uint64_t now_ms);

/* What people see: starting, running, done, paused, failed. */
const char *kelp_placement_state_text(enum kelp_placement_state state);

/* Is an entry changing, or about to? Then no snapshot is ordered, which would be one of whoever
 * leads before it. */
bool kelp_placement_changes(const struct kelp_placement *placement);

/* That process was told that it may leave: it is of no use any more. */
void kelp_placement_let_go(struct kelp_placement *placement, const char *id, uint64_t incarnation);

/* May a shard end now? */
enum kelp_placement_leave {
    KELP_LEAVE_NOT,
    KELP_LEAVE_EMPTY, /* its partitions are elsewhere */
    KELP_LEAVE_LAST,  /* they have nowhere to go */
    KELP_LEAVE_OVER,  /* nobody needs them any more */
};
enum kelp_placement_leave kelp_placement_leave(const struct kelp_placement *placement,
                                               const struct kelp_placement_shard *shard);

/* The map that workers may use now, or NULL: none, or a change that no primary has taken yet. */
const struct kelp_map *kelp_placement_loaded_map(const struct kelp_placement *placement);

/* NULL when nothing is known of it. Borrowed until the next event. */
const struct kelp_placement_shard *kelp_placement_find(const struct kelp_placement *placement,
                                                       const char *id);

#endif
