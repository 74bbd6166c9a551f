/*
 * The size that `kelp scale` asks for: processes are started or told to leave, and the size is kept
 * in the run's folder, since a private etcd goes with the command.
 */
#include <stdlib.h>

#include "cli/launch/launcher_internal.h"

#define SIZE_FILE "scale.json" /* what stands in etcd */

static kelp_status keep(const struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    struct kelp_job_client *client = NULL;
    char *text = NULL;

    kelp_status status = kelp__launch_client(launcher, &client, reterr);
    if (status == KELP_OK) {
        status = kelp_job_client_get(client, "scale", KELP_LAUNCH_ETCD_MS, &text, reterr);
        kelp_job_client_close(client);
    }
    if (status == KELP_OK) {
        status = kelp_run_dir_write(launcher->launch->run, SIZE_FILE, text, reterr);
    }
    free(text);
    return status;
}

kelp_status kelp__launch_put_size(const struct kelp_launcher *launcher,
                                  struct kelp_job_client *client, struct kelp_error *reterr)
{
    char key[KELP_JOB_CLIENT_KEY_MAX + 1];
    char *text = NULL;

    kelp_status status = kelp_run_dir_read(launcher->launch->run->path, SIZE_FILE, &text, reterr);
    if (status == KELP_ERR_NOT_FOUND) {
        return KELP_OK;
    }
    if (status == KELP_OK) {
        kelp_job_client_key(client, "scale", key);
        status =
            kelp_etcd_put(kelp_job_client_etcd(client), key, text, 0, KELP_LAUNCH_ETCD_MS, reterr);
    }
    free(text);
    return status;
}

kelp_status kelp__launch_follow_size(struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    const Kelp__V1__Targets *targets = launcher->status->targets;
    const struct kelp_range now = {.min = targets ? targets->workers_min : 0,
                                   .max = targets ? targets->workers_max : 0};
    struct kelp_error error;

    if (now.max == 0 || kelp__launch_state_is(launcher, "starting") ||
        (now.min == launcher->workers.min && now.max == launcher->workers.max)) {
        return KELP_OK;
    }
    kelp_display_say(launcher->display, "%u workers from now on, training needs %u", now.max,
                     now.min < now.max ? now.min : 1);
    launcher->workers = now;
    if (keep(launcher, &error) != KELP_OK) {
        kelp_display_say(launcher->display, "%s; a resume will not know this size", error.text);
    }
    return kelp_children_scale_workers(&launcher->children, now.max, now.min, reterr);
}
