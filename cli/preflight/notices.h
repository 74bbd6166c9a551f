/*
 * What of a job is allowed and hardly meant, said once when a run starts.
 */
#ifndef KELP_CLI_PREFLIGHT_NOTICES_H
#define KELP_CLI_PREFLIGHT_NOTICES_H

#include "cli/preflight/preflight.h"
#include "cli/verb/display.h"
#include "common/job/job.h"
#include "common/program/options/options.h"

/* program: the verb, whose options may be variables too. */
void kelp_notices_say(const struct kelp_program *program, const struct kelp_job *job,
                      const struct kelp_carried *carried, struct kelp_display *display);

#endif
