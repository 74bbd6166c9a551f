/*
 * Runs a job on several hosts, by `kelp submit` and a `kelp node` on each, and does faults to whole
 * hosts: one at a time, each once all is well again after the one before, and each seen to be real.
 *
 * Threads: one, which lives as long as the process (common/process/process.h).
 */
#ifndef KELP_CLI_CHAOS_CHAOS_RUN_HOSTS_H
#define KELP_CLI_CHAOS_CHAOS_RUN_HOSTS_H

#include "cli/chaos/chaos_run.h"
#include "cli/chaos/network/network.h"

/*
 * The job in <folder>/job.yaml with its faults on these hosts, in <folder>/chaos. Errors: those of
 * kelp_chaos_run(), and KELP_ERR_MISMATCH when a fault was not real, or a host did not come back as
 * it was to.
 */
kelp_status kelp_chaos_run_hosts(const struct kelp_chaos_options *options,
                                 struct kelp_network *network, struct kelp_chaos_report *report,
                                 struct kelp_result *ret_result,
                                 struct kelp_error *reterr) KELP_MUST_USE;

#endif
