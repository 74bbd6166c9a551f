/*
 * The processes of a job that are on this machine, from the first to the last, as children that are
 * watched until the job is done, failed, or asked to stop. They are all of it, with an etcd of
 * their own, or those of one host of a cluster (launch_node.h).
 *
 *     STARTING   etcd, then the job's text and its plan into it, then the daemons
 *     RUNNING    ends are taken in, the dead start again, progress is shown; a signal asks for a
 *                checkpoint, which ends the run when it is committed
 *     ENDING     the model is pulled, checked and written, everything is stopped
 *
 * On a host of a cluster the job is in etcd before, a signal ends the processes of this host alone,
 * and the host whose coordinator leads writes the model. The others wait for that.
 */
#ifndef KELP_CLI_LAUNCH_LAUNCHER_H
#define KELP_CLI_LAUNCH_LAUNCHER_H

#include <stdint.h>

#include "cli/cluster/job_client.h"
#include "cli/cluster/run_home.h"
#include "cli/host/gpus.h"
#include "cli/host/hosts.h"
#include "cli/host/manager.h"
#include "cli/launch/children/trial.h"
#include "cli/launch/guard.h"
#include "cli/run/result.h"
#include "cli/run/run_dir.h"
#include "cli/verb/display.h"
#include "common/base/status.h"
#include "common/job/job.h"
#include "common/job/path_map.h"
#include "common/program/options/options.h"
#include "common/tls/credentials.h"

#define KELP_LAUNCH_ETCD_MS       5000  /* for questions to etcd at the start */
#define KELP_LAUNCH_PULL_MS       60000 /* for the model at the end */
#define KELP_LAUNCH_GRACE_MS      700 /* for daemons to end; the guard leaves 1800 ms for everything */
#define KELP_LAUNCH_ETCD_GRACE_MS 400
#define KELP_LAUNCH_FAILURE_MS    500 /* to put the failure into etcd */

/* A host of a cluster. */
struct kelp_launch_node {
    const char *host; /* its name, which stands before those of its processes */
    const char *zone; /* of its shards */
    struct kelp_room shards;
    struct kelp_room workers;
    /* Has an operator's certificate, where there are any: it stands in the list of hosts. A host
     * that does not runs the least that it has room for. */
    bool steers;
    const char *metrics_host;          /* where its processes can be watched; NULL: nowhere */
    uint16_t metrics_port;             /* of the first one; 0: each takes a free one */
    const struct kelp_path_map *paths; /* files of the job that lie elsewhere on this host */
    /* Hosts share no folder, and the run's is this host's own: what etcd has of it, which is told
     * where the leader's is. NULL: they share it. */
    struct kelp_run_home *apart;
};

struct kelp_launch {
    const struct kelp_launch_node *node; /* NULL: all of the job is on this machine */
    const struct kelp_job *job;
    const char *spec; /* canonical text of the job */
    uint64_t spec_digest;
    const char *plan; /* text of the job's plan; NULL on a node, and where a program says it */
    const char
        *card; /* kelp submit, where hosts share no folder: what the model carries; or NULL */
    const struct kelp_run_dir *run;
    const char *bin_folder;
    /* Computes instead of kelp-worker, and the first one to join says what the plan is; NULL, or
     * none: kelp-worker. */
    const struct kelp_worker_program *worker_program;
    const char *etcd_url;     /* NULL: a private one */
    const char *etcd_program; /* NULL: found on PATH */
    const char *log_level;
    /* HOST at whose ports everything serves. NULL: unix sockets; on a node that has certificates,
     * the address towards etcd. */
    const char *listen;
    /* Where processes of this host that have ports meet for shared memory; NULL: on a node in a
     * folder of its own, else nowhere. */
    const char *shm_folder;
    /* Has a folder ROLE for each role of kelp certs that is needed here
     * (kelp_launcher_find_certs()); absolute. NULL: ports have certificates that are made for the
     * run. */
    const char *certs;
    const struct kelp_trials *trials;
    const struct kelp_gpus *gpus; /* of which each worker gets one; NULL, or none: all it finds */
    uint32_t coordinators;
    /* For a job that does not train: how many entries of the schedule it has, and what to call one.
     */
    uint64_t entries;
    const char *entry_name;
    const char *trace;    /* a file for a trace of the first worker and shard; NULL: none is made */
    uint32_t trace_steps; /* how many steps it has */
    bool no_restart;
    bool resume;
    const char *abandoned; /* job of a resume that did not take hold, still in etcd; NULL: none */
    bool force;            /* go on although keys that shape the result differ */
    /* What a signal leaves for a checkpoint, and on a node for its processes to leave; 0: it stops
     * at once. */
    uint32_t pause_ms;
    uint64_t start_ms;            /* CLOCK_MONOTONIC when the command began */
    struct kelp_manager *manager; /* is told how far the job is; NULL: nobody is */
    /* Once, when steps are being made and a resume has taken hold; NULL: nobody asks. */
    void (*on_training)(void *user);
    void *user;
};

/*
 * Lay what a resume will put in place ready in the run's folder (common/program/run_next.h), which
 * is ours: the job's text for etcd, and that of job.yaml. forced: the job takes checkpoints of
 * another one, and the run remembers that. *ret_abandoned is owned (free()): the job of an earlier
 * resume that was killed before it took hold, or NULL. Errors: of files.
 */
kelp_status kelp_launcher_lay_ready(const struct kelp_run_dir *run, const char *spec,
                                    const char *job_text, bool forced, char **ret_abandoned,
                                    struct kelp_error *reterr) KELP_MUST_USE;

/* Was the run's job forced on checkpoints of another one, with none of its own since? Then it goes
 * on from those without being forced again. */
bool kelp_launcher_forced(const char *run_path);

/* What a run that came to this ends a command with: KELP_EXIT_OK when it is done,
 * KELP_EXIT_PAUSED, KELP_EXIT_JOB_FAILED, else KELP_EXIT_FAILED. */
int kelp_launch_result_exit_status(const struct kelp_result *result);

/* Clear what such a resume left in the folder of a run that needs no more. Errors: of files. */
kelp_status kelp_launcher_clear(const struct kelp_run_dir *run,
                                struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Run it. Returns the exit status of the command (common/program/options/options.h); result is
 * filled in every case and its JSON is in the run's folder. What went wrong is in result->reason.
 */
int kelp_launcher_run(const struct kelp_launch *launch, struct kelp_guard *guard,
                      struct kelp_display *display, struct kelp_result *result);

/*
 * Where the etcd comes from must be sure before a folder is made. One that is not ours (url): does
 * it answer, and is the job's prefix free (unless resume is set)? Else: is there a program, the one
 * that is named or one on PATH? given has the options etcd and etcd-program; certs is the
 * operator's folder, or NULL. Returns the exit status of the command; whatever is not 0 has been
 * said.
 */
int kelp_launcher_find_etcd(const struct kelp_options *given, const char *certs, const char *job,
                            bool resume);

/* Of what there are processes here. */
struct kelp_launch_roles {
    bool coordinators;
    bool shards;
    bool workers;
    bool steers; /* the launcher itself is an operator of the job, else a reader */
};
extern const struct kelp_launch_roles kelp_launch_all_roles;

/*
 * Is there a certificate for each of these in folder/ROLE, and is it the right one? path is the
 * folder, absolute.
 * Errors: KELP_ERR_NOT_FOUND, KELP_ERR_INVALID, those of
 * kelp_credentials_open().
 */
#define KELP_LAUNCH_CERTS_MAX (KELP_CREDENTIALS_PATH_MAX - 32) /* a role fits behind it */
kelp_status kelp_launcher_find_certs(const char *folder, const char *job,
                                     const struct kelp_launch_roles *roles,
                                     char path[KELP_LAUNCH_CERTS_MAX + 1],
                                     struct kelp_error *reterr) KELP_MUST_USE;

/* Is there no job of that name in etcd? Errors: KELP_ERR_EXISTS, those of etcd. */
kelp_status kelp_launcher_may_submit(struct kelp_job_client *client,
                                     struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Put a job that etcd does not have into it, for processes that somebody else starts: its text, its
 * plan, where its run is, and what that came to `before`; NULL: the run is new. Errors:
 * KELP_ERR_EXISTS (a job of that name is there), those of etcd.
 */
kelp_status kelp_launcher_submit(struct kelp_job_client *client, const struct kelp_launch *launch,
                                 const struct kelp_run_home *place,
                                 const struct kelp_result *before,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/*
 * A job that is resumed: is the checkpoint that a leader would go on from, by what etcd holds, in
 * the run's folder? One whose folder shows none at all may have its storage elsewhere, and counts
 * as in order: that is waited for.
 * Errors: KELP_ERR_MISMATCH (the folder has others), those of etcd.
 */
kelp_status kelp_launcher_check_checkpoints(struct kelp_job_client *client, const char *run,
                                            struct kelp_error *reterr) KELP_MUST_USE;

/* Does nobody run the job, as etcd says? Errors: KELP_ERR_BUSY (the text says who), those of etcd.
 */
kelp_status kelp_launcher_unused(struct kelp_job_client *client,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Let a job that etcd has go on as launch->spec, and its run be where `place` says. What a resume
 * has put there that never took hold (launch->abandoned) counts for nothing. Errors:
 * KELP_ERR_MISMATCH (it may not go on so), KELP_ERR_BUSY (somebody has begun to lead it),
 * KELP_ERR_NOT_FOUND, those of etcd.
 */
kelp_status kelp_launcher_renew(struct kelp_job_client *client, const struct kelp_launch *launch,
                                const struct kelp_run_home *place,
                                struct kelp_error *reterr) KELP_MUST_USE;

#endif
