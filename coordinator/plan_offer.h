/*
 * The job's plan: the first worker offers it, etcd keeps it, everybody else must have the same.
 */
#ifndef KELP_COORDINATOR_PLAN_OFFER_H
#define KELP_COORDINATOR_PLAN_OFFER_H

#include "coordinator/coordinator.h"

/* The first worker's plan: check it, keep it, and write it to etcd. text is copied. Errors: those
 * of kelp_plan_parse(). */
kelp_status kelp_offer_plan(struct kelp_coordinator *coordinator, const char *text,
                            struct kelp_error *reterr) KELP_MUST_USE;
/* The plan is now this one. text is copied. */
kelp_status kelp_offer_keep(struct kelp_coordinator *coordinator, const char *text,
                            enum kelp_plan_state state, struct kelp_error *reterr) KELP_MUST_USE;
/* The plan stands in etcd: tell whoever waits for it. */
void kelp_offer_settled(struct kelp_coordinator *coordinator);
/* Answer to writing it (leader.h). */
void kelp_offer_written(kelp_status status, const char *plan, const char *text, void *user);
/* Try to write it again. */
void kelp_offer_tick(struct kelp_coordinator *coordinator);
void kelp_offer_forget(struct kelp_coordinator *coordinator);

#endif
