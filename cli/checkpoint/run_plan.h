/*
 * The plan of a run whose job has a program: what its workers said. Kelp's own models and data are
 * looked at instead (worker/model/derive.h).
 */
#ifndef KELP_CLI_CHECKPOINT_RUN_PLAN_H
#define KELP_CLI_CHECKPOINT_RUN_PLAN_H

#include "common/base/status.h"
#include "common/training/plan.h"

#define KELP_RUN_PLAN "plan.json" /* in the folder of a run that is done, and of a checkpoint */

/* That of its newest checkpoint, else the one that it ended with; owned (kelp_plan_fini()). Errors:
 * KELP_ERR_NOT_FOUND (it has neither yet), those of reading them. */
kelp_status kelp_run_plan(const char *run_path, struct kelp_plan *ret_plan,
                          struct kelp_error *reterr) KELP_MUST_USE;

#endif
