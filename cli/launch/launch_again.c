/*
 * A pause that this command did not ask for: somebody else's request reached the coordinator. The
 * run says so and goes on. A leader that has paused never leads on, so the coordinators are started
 * again, and find in etcd that the job begins; shards keep the model meanwhile.
 */
#include <stdlib.h>

#include "cli/launch/launcher_internal.h"
#include "common/base/clock.h"

#define HARD_MS  3000 /* to the end of a coordinator that does not end in order */
#define RETRY_MS 500

static void take_down(struct kelp_launcher *launcher, uint64_t now)
{
    kelp_display_say(launcher->display,
                     "paused at step %llu by a request that did not come from this command: the "
                     "run goes on; kelp stop ends it",
                     (unsigned long long)(launcher->status->checkpoint
                                              ? launcher->status->checkpoint->step
                                              : 0));
    launcher->again_ms = now;
    kelp_children_take_down(&launcher->children, KELP_CHILD_COORDINATOR, false);
}

/* True: etcd says so. */
static bool put_starting(struct kelp_launcher *launcher)
{
    struct kelp_job_client *client = NULL;
    struct kelp_error error;

    kelp_status status = kelp__launch_client(launcher, &client, &error);
    if (status == KELP_OK) {
        status = kelp__launch_put_starting(client, &error);
        kelp_job_client_close(client);
    }
    if (status != KELP_OK && launcher->again_retry_ms == 0) {
        kelp_display_say(launcher->display, "cannot tell etcd yet that the run continues: %s",
                         error.text);
    }
    return status == KELP_OK;
}

static void bring_up(struct kelp_launcher *launcher, uint64_t now)
{
    uint64_t asked_ms;

    if (now < launcher->again_retry_ms) {
        return;
    }
    if (!put_starting(launcher)) {
        launcher->again_retry_ms = now + RETRY_MS;
        return;
    }
    kelp_job_client_status_free(kelp_monitor_read(launcher->monitor, &asked_ms)); /* of before */
    kelp_children_bring_up(&launcher->children, now);
    launcher->again_ms = 0;
    launcher->again_retry_ms = 0;
    launcher->again_done_ms = now;
}

void kelp__launch_go_on(struct kelp_launcher *launcher, uint64_t now)
{
    struct kelp_children *children = &launcher->children;
    bool paused = !launcher->pausing && launcher->status_ms > launcher->again_done_ms &&
                  kelp__launch_state_is(launcher, "paused");

    if (launcher->again_ms == 0 && !paused) {
        return;
    }
    if (launcher->again_ms == 0) {
        take_down(launcher, now);
    } else if (!kelp_children_any(children, KELP_CHILD_COORDINATOR)) {
        bring_up(launcher, now);
    } else if (now - launcher->again_ms > HARD_MS) {
        kelp_children_take_down(children, KELP_CHILD_COORDINATOR, true);
    }
}
