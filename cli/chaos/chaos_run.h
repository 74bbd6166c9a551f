/*
 * Runs a job by `kelp train`, as a user would, and does the faults to its processes from outside:
 * what is tested is what is shipped.
 *
 * An etcd of our own stands beside it, so that it can be taken away for as long as a fault says.
 *
 * Threads: one, which lives as long as the process (common/process/process.h).
 */
#ifndef KELP_CLI_CHAOS_CHAOS_RUN_H
#define KELP_CLI_CHAOS_CHAOS_RUN_H

#include "cli/chaos/report/chaos_report.h"
#include "cli/launch/guard.h"
#include "cli/run/result.h"
#include "cli/run/run_dir.h"
#include "cli/verb/display.h"

struct kelp_chaos_options {
    const char *folder;       /* of this command: quiet/ and chaos/ are the runs in it */
    const char *bin_folder;   /* where kelp is */
    const char *job;          /* its name */
    const char *etcd_program; /* NULL: found on PATH */
    const char *log_level;
    const char *disk_library; /* kelp-faultdisk.so; NULL: the disk has no faults */
    bool ports; /* processes serve at ports of loopback, which faults of the network need */
    /* For ports: has a folder ROLE for each role of kelp certs, etcd's with the host 127.0.0.1;
     * absolute. NULL: made for the run. */
    const char *certs;
    uint32_t coordinators;
    uint32_t shards;
    uint32_t workers;
    uint32_t replicas;                     /* of each partition */
    uint32_t detect_ms;                    /* failure.detect */
    const struct kelp_chaos_fault *faults; /* by ascending step */
    uint32_t fault_count;
    uint32_t batch_size; /* train.batch_size */
    uint32_t stall_ms;   /* without a step until the run counts as hanging */
    struct kelp_guard *guard;
    struct kelp_display *display;
};

/*
 * The job in <folder>/job.yaml without faults, in <folder>/quiet; its progress is shown. Errors:
 * KELP_ERR_CLOSED when a signal asked for the end; KELP_ERR_INVALID, KELP_ERR_UNREACHABLE by its
 * exit status; the text holds its last words.
 */
kelp_status kelp_chaos_quiet(const struct kelp_chaos_options *options,
                             struct kelp_result *ret_result,
                             struct kelp_error *reterr) KELP_MUST_USE;

/*
 * The job with its faults, in <folder>/chaos; report takes what happens. Errors as above, and
 * KELP_ERR_TIMEOUT when no step was made for stall_ms.
 */
kelp_status kelp_chaos_run(const struct kelp_chaos_options *options,
                           struct kelp_chaos_report *report, struct kelp_result *ret_result,
                           struct kelp_error *reterr) KELP_MUST_USE;

#endif
