/*
 * What of a job is allowed and hardly meant, said once when a run starts.
 */
#ifndef KELP_CLI_LAUNCH_NOTICES_H
#define KELP_CLI_LAUNCH_NOTICES_H

#include <stdint.h>

#include "cli/run/display.h"
#include "common/job/job.h"
#include "common/program/options.h"

/* program: the verb, whose options may be variables too; samples: of the training split. */
void kelp_notices_say(const struct kelp_program *program, const struct kelp_job *job,
                      uint64_t samples, struct kelp_display *display);

#endif
