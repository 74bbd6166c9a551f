/*
 * Checkpoints that a restore has passed over: which one, why, and where the run goes on from, told
 * once each. The coordinator sets such a folder aside as checkpoints/.damaged-<its name>.
 */
#ifndef KELP_CLI_LAUNCH_DAMAGE_H
#define KELP_CLI_LAUNCH_DAMAGE_H

#include <stdint.h>

#include "cli/verb/display.h"

#define KELP_DAMAGE_MAX 64 /* folders of one run; beyond that they are not told */

/* Names of folders, by their digest. */
struct kelp_damage {
    uint64_t known[KELP_DAMAGE_MAX];
    uint32_t count;
};

/* What was set aside before this command. */
void kelp_damage_init(struct kelp_damage *damage, const char *run_path);

/* Tell those that were set aside since. leader: whose log says why; step: restored. */
void kelp_damage_tell(struct kelp_damage *damage, const char *run_path, const char *leader,
                      uint64_t step, struct kelp_display *display);

#endif
