/* What the coordinator's answers have that people should know, while the run goes on. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/launch/launcher_internal.h"

/* A checkpoint that failed is said once. */
static void tell_checkpoint(struct kelp_launcher *launcher)
{
    const Kelp__V1__StatusReply *status = launcher->status;
    const Kelp__V1__CheckpointStatus *checkpoint = status->checkpoint;

    if (!checkpoint) {
        return;
    }
    if (strcmp(launcher->leader, status->leader) != 0) {
        (void)snprintf(launcher->leader, sizeof(launcher->leader), "%.63s", status->leader);
        launcher->checkpoints_failed = 0;
    }
    if (checkpoint->failed > launcher->checkpoints_failed) {
        kelp_display_say(launcher->display,
                         "a checkpoint failed: %.300s; the next one is taken when it is due",
                         checkpoint->error);
    }
    launcher->checkpoints_failed = checkpoint->failed;
}

/* Where the first one counts (failure.on_conflict), nothing else of the run shows it. */
static void tell_conflict(struct kelp_launcher *launcher)
{
    if (kelp_ledger_tells_conflict(&launcher->ledger)) {
        kelp_display_say(launcher->display, "workers differ (%" PRIu64 " so far): %.400s",
                         launcher->ledger.conflicts, launcher->ledger.conflict);
    }
}

void kelp__launch_tell_news(struct kelp_launcher *launcher)
{
    tell_checkpoint(launcher);
    tell_conflict(launcher);
}

void kelp__launch_tell_damage(struct kelp_launcher *launcher)
{
    const Kelp__V1__StatusReply *status = launcher->status;

    if (status->generation == launcher->generation || strcmp(status->state, "starting") == 0) {
        return;
    }
    const bool again = launcher->generation != 0 && launcher->launch->node &&
                       launcher->launch->node->apart && status->restore_step == 0;
    launcher->generation = status->generation;
    if (again) {
        kelp_display_say(launcher->display,
                         "there are no checkpoints: the job begins again at step 0");
    }
    kelp_damage_tell(&launcher->damage, launcher->launch->run->path, status->leader,
                     status->restore_step, launcher->display);
}
