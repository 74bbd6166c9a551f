/*
 * What `kelp chaos` asks the leading coordinator for, as `kelp drain` and `kelp scale` do.
 *
 * Threads: one. A call blocks for KELP_CHAOS_ASK_MS at most.
 */
#ifndef KELP_CLI_CHAOS_CHAOS_ASK_H
#define KELP_CLI_CHAOS_CHAOS_ASK_H

#include "cli/chaos/plan/chaos_plan.h"

#define KELP_CHAOS_ASK_MS 1000

/* How the leader is found; all borrowed. */
struct kelp_chaos_asks {
    const char *etcd;
    const char *job;
    const char *certs; /* the operator's; NULL: none */
};

/* The process of that name is to go. Errors: KELP_ERR_INVALID (it cannot be spared now), those of
 * kelp_job_client_drain(). */
kelp_status kelp_chaos_ask_drain(const struct kelp_chaos_asks *asks, const char *name,
                                 struct kelp_error *reterr) KELP_MUST_USE;
/* A SCALE. Errors: those of kelp_job_client_scale(). */
kelp_status kelp_chaos_ask_scale(const struct kelp_chaos_asks *asks,
                                 const struct kelp_chaos_fault *fault,
                                 struct kelp_error *reterr) KELP_MUST_USE;

#endif
