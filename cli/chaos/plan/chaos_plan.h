/*
 * What `kelp chaos` does to a run: faults, each with a kind, a target, the training step at which
 * it happens, and how long it lasts. Pure: text and seed in, faults out.
 *
 *     # plan.yaml
 *     faults:
 *       - {kind: kill, target: worker-1, step: 120}
 *       - {kind: pause, target: shard, step: 200:400, for: 1s:2s}
 *       - {kind: scale, target: worker, to: 1:4, step: 450}
 *     draw:
 *       count: 20
 *       first: 100
 *       every: 60:140
 *       mix:
 *         - {kind: kill, target: worker, weight: 3}
 *         - {kind: kill, target: etcd, for: 2s}
 *     if_possible: true
 *
 * Ranges MIN:MAX, and targets without a number, are drawn from the seed: the same plan, seed and
 * size of the cluster give the same faults at the same steps.
 */
#ifndef KELP_CLI_CHAOS_PLAN_CHAOS_PLAN_H
#define KELP_CLI_CHAOS_PLAN_CHAOS_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/job/job.h"

#define KELP_CHAOS_FAULTS_MAX     1000        /* of one plan, drawn ones included */
#define KELP_CHAOS_ENTRIES_MAX    128         /* in each of the two lists */
#define KELP_CHAOS_STEP_MAX       1000000000u /* training steps */
#define KELP_CHAOS_FOR_MAX_MS     600000      /* of one fault */
#define KELP_CHAOS_TO_MAX         1024        /* workers or shards of a scale */
#define KELP_CHAOS_WEIGHT_MAX     1000        /* of one entry of the mix */
#define KELP_CHAOS_PLAN_BYTES_MAX 65536u      /* of a plan's file */
#define KELP_CHAOS_TEXT_MAX       64          /* bytes of "restart coordinator-1 1500 ms" */

enum kelp_chaos_kind {
    KELP_CHAOS_KILL,    /* SIGKILL; etcd stays away for as long as the fault lasts */
    KELP_CHAOS_PAUSE,   /* SIGSTOP, and SIGCONT when the fault is over */
    KELP_CHAOS_RESTART, /* SIGTERM, and started again */
    KELP_CHAOS_SLOW,    /* the disk: each write and sync takes long */
    KELP_CHAOS_FULL,    /* the disk: no space */
    KELP_CHAOS_SPLIT,   /* nothing of the network reaches the process or host, nothing leaves it */
    KELP_CHAOS_LOSS,    /* the network comes and goes, several times a second */
    KELP_CHAOS_DRAIN,   /* as by `kelp drain` */
    KELP_CHAOS_SCALE,   /* as by `kelp scale` */
    KELP_CHAOS_ONE_WAY, /* what a host sends to another one is lost; the way back stays open */
    KELP_CHAOS_LEAVE,   /* SIGTERM to `kelp node`: the host leaves gracefully, and comes back */
    KELP_CHAOS_MOVE,    /* as KILL of a host, which comes back under another address */
    KELP_CHAOS_KIND_COUNT
};

enum kelp_chaos_role {
    KELP_CHAOS_WORKER,
    KELP_CHAOS_SHARD,
    KELP_CHAOS_COORDINATOR, /* by number; without one the seed takes the leader or a standby */
    KELP_CHAOS_LEADER,      /* the coordinator that leads when the fault happens */
    KELP_CHAOS_STANDBY,     /* one that does not */
    KELP_CHAOS_PRIMARY,     /* the shard that leads partition 0 */
    KELP_CHAOS_BACKUP,      /* the one that follows it */
    KELP_CHAOS_BOTH,        /* both at once */
    KELP_CHAOS_ETCD,
    KELP_CHAOS_DISK,       /* on which the run's checkpoints are written */
    KELP_CHAOS_EVERYTHING, /* all processes of the run at once, or `kelp train` asked to pause; the
                            * run is resumed */
    KELP_CHAOS_HOST,       /* with --hosts, where it is the only one */
    KELP_CHAOS_ROLE_COUNT
};

/* One fault, drawn. */
struct kelp_chaos_fault {
    enum kelp_chaos_kind kind;
    enum kelp_chaos_role role;
    uint32_t index; /* WORKER, SHARD, COORDINATOR, HOST: which one */
    bool drawn; /* index is by the seed: a shard that has lost its partitions stands for the next */
    uint32_t step; /* training steps completed */
    uint32_t for_ms;
    uint32_t to; /* SCALE: so many; ONE_WAY: the other host */
};

/* One entry of a plan. */
struct kelp_chaos_entry {
    enum kelp_chaos_kind kind;
    enum kelp_chaos_role role;
    bool numbered; /* index is given; otherwise it is drawn */
    uint32_t index;
    struct kelp_range step; /* `faults` alone */
    struct kelp_range for_ms;
    struct kelp_range to; /* SCALE */
    uint32_t weight;      /* `mix` alone */
    uint32_t line;        /* of the file, for errors */
};

struct kelp_chaos_plan {
    char name[128];
    struct kelp_chaos_entry faults[KELP_CHAOS_ENTRIES_MAX];
    uint32_t fault_count;
    struct kelp_chaos_entry mix[KELP_CHAOS_ENTRIES_MAX];
    uint32_t mix_count;
    uint32_t draw_count;
    struct kelp_range first; /* step of the first drawn fault */
    struct kelp_range every; /* steps between two drawn ones */
    bool if_possible;        /* leave out what this machine cannot do, instead of refusing */
};

/* How many processes the plan's targets are drawn from. */
struct kelp_chaos_size {
    uint32_t workers;
    uint32_t shards;
    uint32_t coordinators;
    uint32_t replicas; /* of each partition */
    uint32_t lanes;
    uint32_t hosts; /* 0: all processes are on this machine, and none is a target */
};

/*
 * Read a plan. name stands for the file in errors, which are one line: "FILE:LINE: key: what is
 * wrong". Errors: KELP_ERR_INVALID, KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_chaos_plan_parse(const char *name, const char *text, size_t text_bytes,
                                  struct kelp_chaos_plan *ret_plan,
                                  struct kelp_error *reterr) KELP_MUST_USE;

/* The text of a plan that is built in ("quick", "all", "hosts"), or NULL when there is none of that
 * name. */
const char *kelp_chaos_plan_builtin(const char *name);

/*
 * Draw the faults, by ascending step, into ret_faults[KELP_CHAOS_FAULTS_MAX].
 * Errors: KELP_ERR_INVALID when a target has a number that the cluster does not have, a standby or
 * a backup is to be hit where there is none, or nobody can be spared to be drained, or the cluster
 * cannot have that size, or hosts and processes are mixed up (with if_possible these three are left
 * out); KELP_ERR_LIMIT (more than fit,
 * or a step too high), KELP_ERR_UNSUPPORTED (none is left).
 */
kelp_status kelp_chaos_plan_draw(const struct kelp_chaos_plan *plan,
                                 const struct kelp_chaos_size *size, uint64_t seed,
                                 struct kelp_chaos_fault *ret_faults, uint32_t *ret_count,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* Drop those for which drop[kind] is set; returns how many are left. */
uint32_t kelp_chaos_faults_drop(struct kelp_chaos_fault *faults, uint32_t count,
                                const bool drop[KELP_CHAOS_KIND_COUNT]);

/* "pause", "worker". */
const char *kelp_chaos_kind_name(enum kelp_chaos_kind kind);
const char *kelp_chaos_role_name(enum kelp_chaos_role role);
/* "worker-1", "leader". */
void kelp_chaos_target_print(const struct kelp_chaos_fault *fault, char text[KELP_CHAOS_TEXT_MAX]);
/* "pause shard-0 1500 ms". */
void kelp_chaos_fault_print(const struct kelp_chaos_fault *fault, char text[KELP_CHAOS_TEXT_MAX]);

/* Draw so many, instead of what the plan says. Errors: KELP_ERR_INVALID (it draws none). */
kelp_status kelp_chaos_plan_set_count(struct kelp_chaos_plan *plan, uint32_t count,
                                      struct kelp_error *reterr) KELP_MUST_USE;

/* For the parser: may this kind be done to that role, and for how long? for_ms {0, 0}: not given.
 * Errors: KELP_ERR_INVALID. */
kelp_status kelp__chaos_entry_check(const struct kelp_chaos_entry *entry,
                                    struct kelp_error *reterr) KELP_MUST_USE;

#endif
