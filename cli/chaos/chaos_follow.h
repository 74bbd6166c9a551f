/*
 * What every run under faults has, whatever its faults are done to: the job's steps and status are
 * followed, the report takes them in, and each fault gets its line once it is known what it cost.
 *
 * Threads: one caller; watch and monitor have theirs.
 */
#ifndef KELP_CLI_CHAOS_CHAOS_FOLLOW_H
#define KELP_CLI_CHAOS_CHAOS_FOLLOW_H

#include <sys/types.h>

#include "cli/chaos/chaos_watch.h"
#include "cli/chaos/report/chaos_report.h"
#include "cli/launch/watch/monitor.h"
#include "cli/verb/display.h"

#define KELP_CHAOS_SAY_MS 400 /* after a recovery: until the coordinator says what was lost */
#define KELP_CHAOS_STILL_MS                                                                        \
    500 /* without a step, until it is looked at why, and between two looks */
#define KELP_CHAOS_STILL_MOST_MS 2000 /* of a longer time between looks: it did not run itself */

struct kelp_chaos_follow {
    struct kelp_chaos_report *report; /* borrowed, as is the next */
    struct kelp_display *display;
    struct kelp_chaos_watch *watch; /* owned, as are the next two */
    struct kelp_monitor *monitor;
    Kelp__V1__StatusReply *status; /* the newest; NULL: none yet */
    uint64_t status_ms;            /* when it was asked for, by CLOCK_MONOTONIC */
    uint64_t progress_ms;          /* of the last step seen */
    uint64_t alive_ms;             /* last step, or end of a fault: what a stall is counted from */
    uint64_t still_from_ms;        /* the alive_ms of the next two */
    uint64_t still_until_ms;       /* counted until then */
    uint64_t still_ms;             /* how long nothing has happened that could lead to a step */
    bool said[KELP_CHAOS_FAULTS_MAX]; /* by index of the event: its line is printed */
    struct kelp_chaos_look looks[KELP_CHAOS_LOOKS_MAX];
};

/* The run begins now. certs: the operator's, NULL: none. Errors: those of kelp_chaos_watch_start()
 * and kelp_monitor_start(). */
kelp_status kelp_chaos_follow_start(struct kelp_chaos_follow *follow, const char *etcd,
                                    const char *job, const char *certs,
                                    struct kelp_error *reterr) KELP_MUST_USE;
/* Also of one that has not started. */
void kelp_chaos_follow_stop(struct kelp_chaos_follow *follow);

/* Take in what is new, and print the lines of faults that are known by now. */
void kelp_chaos_follow_read(struct kelp_chaos_follow *follow);
/* Print the lines of all faults that have none yet. */
void kelp_chaos_follow_finish(struct kelp_chaos_follow *follow);

/* Is there work that a fault could hit? */
bool kelp_chaos_follow_unfinished(const struct kelp_chaos_follow *follow);

/* What a run is that hangs. */
struct kelp_chaos_stall {
    uint32_t limit_ms;
    const char *run_path;
    const pid_t *parents; /* of its workers */
    uint32_t parent_count;
};

/*
 * Has it hung for so long? Time in which workers start does not count: too few have joined for
 * training to go on, and the process of one that has not computes (it imports a framework, reads
 * its data). One that waits does count, so that a worker that cannot join is found. To be called
 * several times a second.
 * Errors: KELP_ERR_TIMEOUT; the text names the run's logs.
 */
kelp_status kelp_chaos_follow_stall(struct kelp_chaos_follow *follow,
                                    const struct kelp_chaos_stall *stall,
                                    struct kelp_error *reterr) KELP_MUST_USE;

#endif
