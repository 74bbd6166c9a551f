/*
 * The daemons of a run as child processes: started, watched, started again, stopped.
 *
 * Threads: one, which lives as long as the process (common/process/process.h).
 */
#ifndef KELP_CLI_LAUNCH_CHILDREN_CHILDREN_H
#define KELP_CLI_LAUNCH_CHILDREN_CHILDREN_H

#include <poll.h>
#include <stdint.h>

#include "cli/host/gpus.h"
#include "cli/launch/children/supervise.h"
#include "cli/launch/children/trial.h"
#include "cli/run/run_dir.h"
#include "cli/run/worker_program.h"
#include "cli/verb/display.h"
#include "common/base/status.h"
#include "common/job/path_map.h"
#include "common/process/process.h"

#define KELP_CHILDREN_TRACE_PATH_MAX (KELP_RUN_PATH_MAX + 64)
#define KELP_CHILDREN_MAX            4096 /* of one run: more do not fit one machine */

enum kelp_child_kind { KELP_CHILD_COORDINATOR, KELP_CHILD_SHARD, KELP_CHILD_WORKER };

struct kelp_child {
    enum kelp_child_kind kind;
    uint32_t number; /* of its kind, from 0 */
    char id[KELP_TRIAL_ID_MAX + 1];
    struct kelp_process *process; /* NULL: not running */
    bool start_due;               /* at start_ms */
    bool fenced;                  /* killed because it hung; its end is on its way */
    bool down;                    /* taken down: not started again by itself */
    bool left;                    /* it ended gracefully, and stays away */
    bool retired;                 /* it was told to leave, and is not started again */
    uint64_t start_ms;            /* started, or to be started */
    uint32_t starts;
    long log_first;        /* bytes of its log before the first start */
    long log_from;         /* and before this one */
    uint64_t memory_kills; /* kelp_memory_kills() at this start */
    struct kelp_supervise_child supervise;
};

/* All text is borrowed for the life of the children. */
struct kelp_children_options {
    const char *bin_folder;                           /* where kelp-ps and the others are */
    const struct kelp_worker_program *worker_program; /* instead of kelp-worker */
    const char *run_path;
    const char *etcd_url;
    const char *job;
    const char *log_level;
    const char *listen;     /* HOST at whose ports they serve; NULL: unix sockets in: */
    const char *sockets;    /* a private folder (common/program/socket_folder.h); "": they choose */
    const char *shm_folder; /* in which those with ports meet for shared memory; NULL: nowhere */
    const char *host;       /* stands before their ids, with a dot; NULL: nothing does */
    const char *zone;       /* of shards; NULL: none is named */
    const char *certs;      /* has a folder ROLE with certificates for each kind; NULL: none */
    const char *metrics_host; /* at which they can be watched; NULL: nowhere */
    uint16_t metrics_port;    /* of the first child, the next one's is the next; 0: free ones */
    const char *spec_sha256;  /* of the job's text: they refuse another one */
    const struct kelp_path_map *paths; /* passed on to those that read files; NULL: none */
    const struct kelp_gpus *gpus;      /* of which each worker sees one; NULL, or none: all */
    bool force;                        /* passed on to coordinators */
    bool apart;                        /* hosts share no folder: no checkpoints */
    const struct kelp_trials *trials;
    uint32_t trace_steps; /* that the first worker and the first shard trace; 0: they do not */
    struct kelp_display *display;
    uint32_t workers_min; /* workers that leave gracefully are replaced below this number */
    struct kelp_supervise_policy policy;
};

struct kelp_children {
    struct kelp_children_options options;
    struct kelp_child *items;
    uint32_t count;
    uint32_t next_number[3];       /* of each kind */
    struct kelp_failures failures; /* restarts so far */
    char *run_folder;              /* run_path, absolute; owned */
    bool begun;                    /* the run has trained: the launcher sets it */
    /* Of a program that failed once the job was over for it: "worker-0: why"; "": none did. */
    char after[512];
    bool after_failed; /* it ended by itself, with another status than 0 */
};

/* The programs that a run needs, checked before anything is started.
 * Errors: KELP_ERR_NOT_FOUND, KELP_ERR_LIMIT. */
kelp_status kelp_children_check_programs(const char *bin_folder,
                                         struct kelp_error *reterr) KELP_MUST_USE;

/* Errors: KELP_ERR_IO (the run's folder is gone), KELP_ERR_NO_MEMORY. */
kelp_status kelp_children_init(struct kelp_children *children,
                               const struct kelp_children_options *options,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* Where the child of that id leaves its part of a trace; "": the folder of all parts. */
void kelp_children_trace_path(const char *run, const char *id,
                              char path[KELP_CHILDREN_TRACE_PATH_MAX]);

/* Start one more of a kind; its id is the next of its kind. */
kelp_status kelp_children_add(struct kelp_children *children, enum kelp_child_kind kind,
                              struct kelp_error *reterr) KELP_MUST_USE;

/* Those of a kind that run, or will be started again. */
uint32_t kelp_children_wanted(const struct kelp_children *children, enum kelp_child_kind kind);
/* Start some up to this number, those first that were told to leave before. */
kelp_status kelp_children_grow(struct kelp_children *children, enum kelp_child_kind kind,
                               uint32_t count, struct kelp_error *reterr) KELP_MUST_USE;
/* Tell the last one that may go (may_go NULL: any) to leave for good. False: there is none. */
bool kelp_children_retire(struct kelp_children *children, enum kelp_child_kind kind,
                          bool (*may_go)(const char *id, void *user), void *user);
/* Below this number workers that leave gracefully are replaced. */
void kelp_children_need(struct kelp_children *children, uint32_t least);

/* Has the child failed as asked? It says so in the log of its first start. */
bool kelp_children_faulted(const struct kelp_children *children, const struct kelp_fault *fault);

/* SIGKILL to the child of that id; false when none of that id runs. */
bool kelp_children_kill(struct kelp_children *children, const char *id);

/*
 * Kill a child that hangs: somebody, asked at asked_ms, had not heard it for silent_ms. A start
 * younger than that silence is another process than the one that fell silent, and left alone. True
 * when it was killed.
 */
bool kelp_children_fence(struct kelp_children *children, const char *id, uint64_t asked_ms,
                         uint64_t silent_ms);

/* End all of a kind, as no failure of theirs: SIGTERM, or SIGKILL with hard. They stay down until
 * kelp_children_bring_up(). */
void kelp_children_take_down(struct kelp_children *children, enum kelp_child_kind kind, bool hard);
/* Does any of that kind run? */
bool kelp_children_any(const struct kelp_children *children, enum kelp_child_kind kind);
/* Start what was taken down, and workers that had left in order. */
void kelp_children_bring_up(struct kelp_children *children, uint64_t now_ms);

/* Descriptors to poll for ends: at most `room`; returns how many. */
uint32_t kelp_children_poll(const struct kelp_children *children, struct pollfd *items,
                            uint32_t room);

/* Milliseconds until a restart is due, -1 when none is. */
int kelp_children_wait_ms(const struct kelp_children *children, uint64_t now_ms);

/*
 * Take in what ended and start what is due. An error ends the run: KELP_ERR_INVALID when a child
 * refused its input (the text is its reason), KELP_ERR_LIMIT when failure.max_failures is passed,
 * and *ret_gave_up is set.
 */
kelp_status kelp_children_tend(struct kelp_children *children, uint64_t now_ms, bool *ret_gave_up,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* SIGTERM to workers, SIGINT to the others, and SIGKILL to those left after grace_ms; frees. Safe
 * on all zero. */
void kelp_children_stop(struct kelp_children *children, uint32_t grace_ms);

#endif
