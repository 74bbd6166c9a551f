/*
 * The job's plan: etcd has it of the launcher, else the first worker offers it and etcd keeps it.
 * Everybody else must have the same. Pure; a part of a leader's term.
 */
#ifndef KELP_COORDINATOR_TERM_PARTS_PLAN_OFFER_H
#define KELP_COORDINATOR_TERM_PARTS_PLAN_OFFER_H

#include "coordinator/term/outside/term_effects.h"

enum kelp_plan_state {
    KELP_PLAN_NONE,    /* no worker proposed one */
    KELP_PLAN_OFFERED, /* taken from the first worker, not in etcd yet */
    KELP_PLAN_WRITTEN
};

struct kelp_plan_offer {
    enum kelp_plan_state state;
    const struct kelp_plan *plan; /* of the process; NULL: none */
    bool in_flight;
    uint64_t at_ms; /* next attempt to write it */
};

/* The plan is this text from now on. Errors: those of kelp_plan_parse(). */
kelp_status kelp_plan_offer_keep(struct kelp_plan_offer *offer, const struct kelp_outside *outside,
                                 const char *text, enum kelp_plan_state state,
                                 struct kelp_error *reterr) KELP_MUST_USE;
/* Is a worker's plan the job's? The first one that the job can be done with becomes it. Errors:
 * those of kelp_plan_parse() and kelp_control_check(), KELP_ERR_MISMATCH. */
kelp_status kelp_plan_offer_check(struct kelp_plan_offer *offer, const struct kelp_outside *outside,
                                  const struct kelp_job *job, const char *text,
                                  struct kelp_error *reterr) KELP_MUST_USE;
/* Try to write it, if it is time. */
void kelp_plan_offer_tick(struct kelp_plan_offer *offer, const struct kelp_outside *outside,
                          uint64_t now_ms);
/* Etcd's answer to the write. */
void kelp_plan_offer_answered(struct kelp_plan_offer *offer, bool taken, uint64_t now_ms);

#endif
