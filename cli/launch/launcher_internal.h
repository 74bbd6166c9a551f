/*
 * What the launcher's files share: launcher.c runs the cluster, launch_submit.c puts the job into
 * etcd before anything reads it, launch_hold.c keeps the run as it was until a resume has taken
 * hold, launch_end.c says what came of it. Private to them.
 */
#ifndef KELP_CLI_LAUNCH_LAUNCHER_INTERNAL_H
#define KELP_CLI_LAUNCH_LAUNCHER_INTERNAL_H

#include <poll.h>

#include "cli/host/hosts.h"
#include "cli/launch/children/children.h"
#include "cli/launch/children/ledger.h"
#include "cli/launch/damage.h"
#include "cli/launch/launcher.h"
#include "cli/launch/watch/monitor.h"
#include "cli/run/event_file.h"
#include "common/program/etcd_server.h"
#include "common/program/run_certs.h"
#include "common/program/socket_folder.h"

#define KELP_LAUNCH_POLL_ROOM (KELP_CHILDREN_MAX + 3)

/* What of the job's size is a host's, as the list of hosts and the newest status have it. */
struct kelp_launch_share {
    uint32_t shards;
    uint32_t workers;
    uint64_t since_ms; /* it has been so */
    bool taken;        /* processes are started and ended by it */
};

/* Of a host of a cluster (launch_node.c). */
struct kelp_node_state {
    struct kelp_launch_share share;
    struct kelp_run_dir
        held; /* the run's folder, while the leader is on this host; else lock_fd -1 */
    uint64_t hold_retry_ms;
    bool hold_told;    /* that it cannot be held */
    uint64_t over_ms;  /* the job is over since; 0: it is not */
    uint64_t asked_ms; /* etcd, for the result */
    char *result;      /* its text, owned; NULL: it is not there yet */
    bool leaving;
    bool coordinators_leave;
};

struct kelp_launcher {
    const struct kelp_launch *launch;
    struct kelp_guard *guard;
    struct kelp_display *display;
    struct kelp_result *result;
    struct kelp_etcd_server *etcd; /* NULL: an etcd that is not ours, or one that is down */
    char etcd_url[128]; /* of ours, also while it is down; else launch->etcd_url counts */
    uint16_t etcd_port;
    char sockets[KELP_SOCKET_FOLDER_MAX + 1];  /* private folder of the run; "": not made yet */
    int sockets_held;                          /* kelp_socket_folder_make() */
    char roles[KELP_CREDENTIALS_PATH_MAX + 1]; /* folder with certificates by role; "": none */
    char certs[KELP_CREDENTIALS_PATH_MAX + 1]; /* the operator's; "": there is none */
    char spec_sha256[KELP_SHA256_HEX_BYTES];   /* of launch->spec */
    uint64_t etcd_start_ms;                    /* started, or to be started when etcd is NULL */
    struct kelp_supervise_child etcd_supervise;
    struct kelp_monitor *monitor;
    struct kelp_job_client *client; /* of a shared etcd; NULL: the etcd is ours */
    struct kelp_hosts *hosts;       /* NULL: it is not in the list of hosts */
    struct kelp_children children;
    Kelp__V1__Targets size;    /* as the coordinator wants it, without its drains */
    struct kelp_trials trials; /* with what has happened already */
    struct kelp_rate rate;
    struct kelp_ledger ledger;
    struct kelp_damage damage;
    uint64_t generation;           /* whose checkpoint was looked at */
    Kelp__V1__StatusReply *status; /* newest, or NULL */
    uint64_t status_ms;
    uint64_t status_asked_ms;
    uint64_t signal_ms;          /* when it was asked to wind down; 0: not yet */
    uint64_t checkpoints_failed; /* as told to people, of the leader below */
    char leader[64];
    struct kelp_event_file events; /* fd -1: none are written */
    bool training;                 /* steps are being made, or were, of a run that took hold */
    bool pausing;
    /* A pause that was not asked for here (launch_again.c). */
    uint64_t again_ms;       /* coordinators were told to end then; 0: nothing is in progress */
    uint64_t again_retry_ms; /* etcd is not asked before */
    uint64_t again_done_ms;  /* they were started again; a status of before is out of date */
    bool gave_up;            /* restarts are used up */
    /* What a resume that does not take hold puts back, owned; NULL: there was none. */
    char *cluster_before;
    char *spec_before;
    char *state_before;
    bool submitted;              /* etcd may hold our job */
    struct kelp_node_state node; /* all zero but for lock_fd where launch->node is NULL */
    struct pollfd items[KELP_LAUNCH_POLL_ROOM];
};

/* Is that the state by the newest answer of the coordinator? */
bool kelp__launch_state_is(const struct kelp_launcher *launcher, const char *state);
/* Whichever etcd the run uses. */
const char *kelp__launch_etcd_url(const struct kelp_launcher *launcher);
/* The folder of the operator's certificate; NULL: there is none. */
const char *kelp__launch_certs(const struct kelp_launcher *launcher);
/* Do the run's ports have certificates of its own? */
bool kelp__launch_own_certs(const struct kelp_launch *launch);
/* Make those in the private folder, which is there, or take what --certs names. */
kelp_status kelp__launch_make_certs(struct kelp_launcher *launcher,
                                    struct kelp_error *reterr) KELP_MUST_USE;
/* Tell by cluster.json how the run is reached. */
kelp_status kelp__launch_write_cluster(const struct kelp_launcher *launcher,
                                       struct kelp_error *reterr) KELP_MUST_USE;
/* A client of the run, with the operator's certificate if there is one. */
kelp_status kelp__launch_client(const struct kelp_launcher *launcher,
                                struct kelp_job_client **ret_client,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* The job's text into /kelp/<job>/spec, and its plan beside it, so that no worker's counts; a job
 * that goes on forgets how it ended before, and what dead processes left in an etcd of our own. */
kelp_status kelp__launch_submit(struct kelp_launcher *launcher,
                                struct kelp_error *reterr) KELP_MUST_USE;
/* Write into etcd that the launcher gave the job up. The coordinators are stopped. */
void kelp__launch_put_failure(struct kelp_launcher *launcher, const char *reason);

/* The job's state, as etcd has it, with another word and reason; owned (free()). */
kelp_status kelp__launch_print_state(const char *before, const char *state, const char *reason,
                                     char **ret_text, struct kelp_error *reterr) KELP_MUST_USE;
/* The job's state in etcd is "starting" from now on. */
kelp_status kelp__launch_put_starting(struct kelp_job_client *client,
                                      struct kelp_error *reterr) KELP_MUST_USE;
/* A pause that this command did not ask for does not end the run. */
void kelp__launch_go_on(struct kelp_launcher *launcher, uint64_t now);

/* A job that was paused begins, if it still is so when that is written, and the pause is no result
 * any more. */
kelp_status kelp__launch_take_up(struct kelp_job_client *client,
                                 struct kelp_error *reterr) KELP_MUST_USE;

/* Stand in the list of hosts of a shared etcd, if that is for us to write. Errors: KELP_ERR_EXISTS,
 * KELP_ERR_BUSY (somebody else runs it under this name, or beside us), those of etcd. */
kelp_status kelp__launch_join(struct kelp_launcher *launcher,
                              struct kelp_error *reterr) KELP_MUST_USE;

/* Of a host of a cluster: before its processes start. */
kelp_status kelp__launch_node_begin(struct kelp_launcher *launcher,
                                    struct kelp_error *reterr) KELP_MUST_USE;
/* Hold the run's folder while the leader is on this host. */
void kelp__launch_node_hold(struct kelp_launcher *launcher, uint64_t now);
/* Is the job over, and its result in etcd or ours to write? */
bool kelp__launch_node_ended(struct kelp_launcher *launcher, uint64_t now);
/* Is the result ours to write? */
bool kelp__launch_node_writes(const struct kelp_launcher *launcher);
/* Have the processes leave if a signal asks for it. False: all have left. */
bool kelp__launch_node_leaves(struct kelp_launcher *launcher);
/* As kelp__launch_conclude(); writes the result if it is ours to write. */
int kelp__launch_node_conclude(struct kelp_launcher *launcher, kelp_status status,
                               struct kelp_error *error);
void kelp__launch_node_fini(struct kelp_launcher *launcher);

/* Tell people what the newest answer of the coordinator has. */
void kelp__launch_tell_news(struct kelp_launcher *launcher);
/* Training goes on from a checkpoint that need not be the newest. */
void kelp__launch_tell_damage(struct kelp_launcher *launcher);

/* Put the size that the run had into a private etcd. */
kelp_status kelp__launch_put_size(const struct kelp_launcher *launcher,
                                  struct kelp_job_client *client,
                                  struct kelp_error *reterr) KELP_MUST_USE;
/* Start or end processes as the newest status wants it. */
kelp_status kelp__launch_follow_size(struct kelp_launcher *launcher, uint64_t now,
                                     struct kelp_error *reterr) KELP_MUST_USE;

/* Before anything of a resume is written. */
kelp_status kelp__launch_remember(struct kelp_launcher *launcher,
                                  struct kelp_error *reterr) KELP_MUST_USE;
/* Is this a resume that has not taken hold? */
bool kelp__launch_unheld(const struct kelp_launcher *launcher);
/* Put back what was remembered. The children are stopped, etcd is not. */
void kelp__launch_undo(struct kelp_launcher *launcher);
/* May the data of our etcd go with it? All that a later resume needs is in the run's folder. */
bool kelp__launch_etcd_spare(struct kelp_launcher *launcher);
void kelp__launch_remove_etcd(struct kelp_launcher *launcher);

/* What the run came to, which ended with status: fills the result, returns the exit status. */
int kelp__launch_conclude(struct kelp_launcher *launcher, kelp_status status,
                          struct kelp_error *error);
void kelp__launch_write_result(struct kelp_launcher *launcher);

/* An empty folder for the parts of a trace. Nothing, where none is asked for. */
kelp_status kelp__launch_begin_trace(const struct kelp_launcher *launcher,
                                     struct kelp_error *reterr) KELP_MUST_USE;
/* The children are stopped: make the trace of what they left, and say what it has. */
void kelp__launch_write_trace(struct kelp_launcher *launcher);

#endif
