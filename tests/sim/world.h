/*
 * The simulated world: one thread, a virtual clock, a queue of events, and processes that live and
 * die. Everything that happens follows from the seed: no address, no real clock and no hash order
 * has a say, so that a seed reproduces a run exactly.
 *
 * Functions that need memory abort when there is none: this is a test program.
 */
#ifndef KELP_TESTS_SIM_WORLD_H
#define KELP_TESTS_SIM_WORLD_H

#include <setjmp.h>
#include <stdio.h>

#include "common/training/control.h"

#define SIM_COORDINATORS   2
#define SIM_SHARDS_MAX     4
#define SIM_WORKERS_MAX    5
#define SIM_PROCESSES_MAX  (SIM_COORDINATORS + SIM_SHARDS_MAX + SIM_WORKERS_MAX)
#define SIM_LANES_MAX      16
#define SIM_PARTITIONS_MAX 8
#define SIM_BLOCK          16 /* elements: slices are made of these (common/training/plan.h) */
#define SIM_SLICE_MAX      (2 * SIM_BLOCK) /* of a partition */
#define SIM_FLAT_MAX       (SIM_PARTITIONS_MAX * SIM_SLICE_MAX)
#define SIM_VERSIONS_MAX   1024

#define SIM_MS     UINT64_C(1000) /* virtual microseconds */
#define SIM_SECOND UINT64_C(1000000)

enum sim_role { SIM_COORDINATOR, SIM_SHARD, SIM_WORKER };

/* What is counted over runs; sim_count_names has a text for each. */
enum sim_count {
    SIM_COUNT_CRASH_WORKER,
    SIM_COUNT_ASKED_WORKER,
    SIM_COUNT_ASKED_SHARD,
    SIM_COUNT_CRASH_SHARD,
    SIM_COUNT_CRASH_COORDINATOR,
    SIM_COUNT_PAUSE,
    SIM_COUNT_POWER_HOST,
    SIM_COUNT_POWER_ALL,
    SIM_COUNT_SPLIT,
    SIM_COUNT_CUT,
    SIM_COUNT_ETCD_DOWN,
    SIM_COUNT_STREAM_BROKEN,
    SIM_COUNT_MESSAGE_LOST,
    SIM_COUNT_MESSAGE_LATE,
    SIM_COUNT_MESSAGE_DOUBLED,
    SIM_COUNT_ETCD_REQUEST_LOST,
    SIM_COUNT_ETCD_ANSWER_LOST,
    SIM_COUNT_ETCD_REQUEST_LATE,
    SIM_COUNT_DISK_FAILED,
    SIM_COUNT_FILE_TORN,
    SIM_COUNT_BIT_FLIPPED,
    SIM_COUNT_STORAGE_AWAY,
    SIM_COUNT_LIE,
    SIM_COUNT_FAULTS, /* what is above is a fault */
    SIM_COUNT_GENERATION = SIM_COUNT_FAULTS,
    SIM_COUNT_RESTORE,
    SIM_COUNT_LEADER,
    SIM_COUNT_DEPOSED,
    SIM_COUNT_COPY,
    SIM_COUNT_STEP,
    SIM_COUNT_STEP_AGAIN,
    SIM_COUNT_SKIPPED,
    SIM_COUNT_PAUSED,
    SIM_COUNT_SCALED,
    SIM_COUNT_DRAINED,
    SIM_COUNT_LIAR_FOUND,
    SIM_COUNT_REPLICAS_DIFFER,
    SIM_COUNT_WORD_MENDED,
    SIM_COUNT_APART_MENDED,
    SIM_COUNT_CHECKPOINT,
    SIM_COUNT_CHECKPOINT_ABANDONED,
    SIM_COUNT_CHECKPOINT_REMOVED,
    SIM_COUNT_CHECKPOINT_DAMAGED,
    SIM_COUNT_OFFER,
    SIM_COUNT_COVERED,
    SIM_COUNT_AHEAD,
    SIM_COUNT_GIVEN_UP,
    SIM_COUNT_EVENT,
    SIM_COUNT_COUNT
};
extern const char *const sim_count_names[SIM_COUNT_COUNT];

struct sim;
struct sim_process;

/* Runs in `process`, which is alive, not paused, and in the life that the event was meant for; or,
 * process NULL, in nobody's. `data` and `number` are the event's. */
typedef void sim_handler(struct sim *sim, struct sim_process *process, void *data, uint64_t number);

struct sim_event {
    uint64_t at_us;
    uint64_t order; /* of equal times */
    struct sim_process *process;
    uint64_t incarnation;
    sim_handler *run;
    void *data;
    void (*drop)(void *data); /* instead of run, when the process is gone; may be NULL */
    uint64_t number;
};

struct sim_process {
    struct sim *sim;
    enum sim_role role;
    unsigned index; /* within the role */
    unsigned place; /* in sim->processes */
    char id[16];
    unsigned host;
    uint64_t incarnation; /* 0: not running */
    bool paused;
    bool over;    /* ended in order: nobody starts it again */
    bool retired; /* the job is to have fewer processes: nobody starts it */
    void *state;
    void *ended_state;      /* of a life that ended by itself, until it is freed (supervisor.c) */
    struct sim_event *held; /* while paused, in order; owned */
    size_t held_count;
    size_t held_capacity;
};

/* How a job looks and how its world is: drawn from the seed (profile.c). */
struct sim_profile {
    bool quiet; /* no faults at all, one worker */
    unsigned shards;
    unsigned workers;
    unsigned hosts;
    bool idler;           /* the last worker joins and answers, and computes nothing */
    bool turning;         /* workers look at what shards sent also between lanes */
    bool parts;           /* workers send nodes while they compute the rest of them */
    bool ahead;           /* they begin with the first weights, while the others come */
    bool deferred;        /* merges and applies take time of their own */
    unsigned zones;       /* that hosts are in; 0: not said */
    bool cuts;            /* the network is cut between processes, one way */
    bool gentle;          /* machines are replaced in order: nothing is computed again */
    bool kills;           /* processes are killed, and nothing else goes wrong */
    bool calm;            /* nothing else goes wrong: progress is soon */
    bool scales;          /* somebody asks for other sizes while the job runs */
    bool stuck;           /* the coordinators' disks take seconds, all the time */
    bool sluggish;        /* etcd and the coordinators' disks take seconds now and then */
    uint64_t lane_us;     /* to compute a lane */
    uint64_t disk_us;     /* of one operation of the disk, at most */
    uint64_t latency_us;  /* of a message, at most, when nothing is wrong */
    uint64_t faults_end;  /* virtual time */
    uint64_t fault_gap;   /* between two faults, on average */
    uint32_t late_rate;   /* messages out of 10000 */
    uint32_t lost_rate;   /* likewise */
    uint32_t double_rate; /* likewise */
    uint32_t etcd_rate;   /* requests to etcd out of 1000 that go wrong */
    uint32_t disk_rate;   /* operations of the disk out of 1000 that fail */
    uint32_t weights[16]; /* of the kinds of faults (faults.c) */
};

/* A worker that lies: once, to one partition, besides what it computes. One that rushes pushes step
 * after step of partition 0, without having the weights. */
struct sim_lie {
    bool planned;
    bool rushes;
    uint32_t pushes; /* of one that rushes, still to come */
    uint64_t gap_us; /* between them */
    bool about_word; /* else about the gradient */
    uint64_t step;
    uint32_t partition;
    uint32_t lane_first;
    uint32_t lane_count;
    uint64_t delay_us;   /* after the liar began the step */
    bool told;           /* from now on the job is not the quiet run's ... */
    bool mended;         /* it was found before it did harm; it may come a second time */
    bool found;          /* ... until a shard says so, and it fails */
    bool reported;       /* such a shard's report may still be heard, whatever comes before it */
    bool apart;          /* partitions were found apart, in a generation that was given up for it */
    bool lost;           /* the shard that would say so is no primary any more */
    uint64_t generation; /* of what follows: lanes of the step that were pushed there in honesty */
    uint32_t came;       /* they are compared, once all of them are there */
    uint32_t refused;    /* perhaps for good: the next step may begin before they are sent again */
};

struct sim_queue {
    struct sim_event *heap;
    size_t count;
    size_t capacity;
};

struct sim {
    uint64_t seed;
    uint64_t random;
    uint64_t now;
    uint64_t order;
    uint64_t incarnations;
    struct sim_queue queue;
    struct sim_profile profile;
    struct kelp_job job;
    struct kelp_plan plan;
    unsigned process_count;
    struct sim_process processes[SIM_PROCESSES_MAX];
    struct sim_network *network;
    struct sim_etcd *etcd;
    struct sim_disk *disk;
    struct sim_reference *reference;
    struct sim_invariants *invariants;
    struct sim_faults *faults;
    struct sim_lie lie;
    uint64_t healed_us;     /* nothing goes wrong any more since */
    uint64_t progressed_us; /* an entry was completed last */
    bool resuming;          /* the job rests, and will be resumed */
    uint64_t counts[SIM_COUNT_COUNT];
    struct sim_manifest **manifests; /* all that were ever made; owned */
    size_t manifest_count;
    size_t manifest_capacity;
    struct sim_story *story;
    sigjmp_buf failed; /* where sim_fail() goes */
    char failure[512];
};

/* ---- random numbers ----------------------------------------------------------------------------
 */

/* 0 to below - 1. */
uint64_t sim_draw(struct sim *sim, uint64_t below);
uint64_t sim_between(struct sim *sim, uint64_t low, uint64_t high); /* both included */
bool sim_chance(struct sim *sim, uint32_t rate, uint32_t of);
/* A hash that anything may be derived from, without drawing. */
uint64_t sim_mix(uint64_t value);

/* ---- time and events ---------------------------------------------------------------------------
 */

struct sim_call {
    struct sim_process *process; /* NULL: the world's */
    sim_handler *run;
    void *data;
    uint64_t number;
    void (*drop)(void *data);
};
/* Run it after so long, in the process's present life. */
void sim_after(struct sim *sim, uint64_t delay_us, const struct sim_call *call);
/* Carry out the next event; false: there is none. */
bool sim_next(struct sim *sim);
/* The clock as cores see it: not 0, which some take for "never". */
uint64_t sim_ms(const struct sim *sim);

/* ---- processes ---------------------------------------------------------------------------------
 */

void sim_process_begin(struct sim *sim, struct sim_process *process);
/* Dead at once: what it held is dropped, its events will be. */
void sim_process_end(struct sim *sim, struct sim_process *process);
void sim_process_pause(struct sim_process *process);
void sim_process_wake(struct sim *sim, struct sim_process *process);
struct sim_process *sim_find(struct sim *sim, enum sim_role role, unsigned index);
struct sim_process *sim_find_id(struct sim *sim, const char *id);
bool sim_lives(const struct sim_process *process, uint64_t incarnation);

/* ---- stories and failures ----------------------------------------------------------------------
 */

/* The last lines, kept while `keep` is set; printed as they come to `out` unless that is NULL. */
struct sim_story {
    FILE *out;
    bool keep;
    char (*lines)[200];
    size_t count; /* said so far */
};
#define SIM_STORY_LINES 60

/* One line of the story: who (NULL: the world) does what, in plain words. Costs nothing when nobody
 * listens. */
#define sim_say(sim, who, ...)                                                                     \
    do {                                                                                           \
        if ((sim)->story) {                                                                        \
            sim__say((sim), (who), __VA_ARGS__);                                                   \
        }                                                                                          \
    } while (0)
KELP_PRINTF(3, 4)
void sim__say(struct sim *sim, const struct sim_process *who, const char *format, ...);

/* An invariant is broken: ends the run. */
KELP_PRINTF(3, 4)
_Noreturn void sim_fail(struct sim *sim, const char *invariant, const char *format, ...);

void *sim_alloc(size_t bytes); /* zeroed */
/* Room for one more item in an array; the array may move. */
void *sim_grow(void *items, size_t count, size_t *capacity, size_t size);

void sim_world_fini(struct sim *sim);

#endif
