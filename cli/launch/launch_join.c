/*
 * The list of hosts in a shared etcd, which also locks the job there: a host of a cluster stands in
 * it among others, and `kelp train`, which runs all of a job, alone.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/launch/launcher_internal.h"
#include "common/base/clock.h"

#define ALONE         "train" /* the name of a machine that runs all of it */
#define JOIN_MS       10000   /* for the lease of somebody who was lost to run out */
#define ASK_PERIOD_MS 200
#define NAMES_MAX     200 /* bytes of names in an error */

static kelp_status join_once(struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    const struct kelp_launch *launch = launcher->launch;
    struct kelp_hosts_entry host = {.pid = 0};

    if (launch->node) {
        host.shards = launch->node->shards;
        host.workers = launch->node->workers;
    }
    (void)snprintf(host.host, sizeof(host.host), "%s", launch->node ? launch->node->host : ALONE);
    return kelp_hosts_join(kelp_job_client_etcd(launcher->client), launch->job->name, &host,
                           &launcher->hosts, reterr);
}

static kelp_status refuse_others(struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    const char *job = launcher->launch->job->name;
    struct kelp_hosts_list list;
    char names[NAMES_MAX];

    kelp_status status = kelp_hosts_list(kelp_job_client_etcd(launcher->client), job,
                                         KELP_LAUNCH_ETCD_MS, &list, reterr);
    if (status == KELP_OK && list.count > 1) { /* we are one */
        kelp_hosts_names(&list, names, sizeof(names));
        status = kelp_fail(reterr, KELP_ERR_EXISTS,
                           "job '%s' is already run by %s: end that run first, with kelp stop %s "
                           "--etcd %.200s",
                           job, names, job, kelp__launch_etcd_url(launcher));
    }
    free(list.hosts);
    return status;
}

kelp_status kelp__launch_join(struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    const struct kelp_launch *launch = launcher->launch;
    struct pollfd signal = {.fd = kelp_guard_fd(launcher->guard), .events = POLLIN};
    const uint64_t until_ms = kelp_clock_ms() + JOIN_MS;
    kelp_status status;

    if (!launch->etcd_url || (launch->node && !launch->node->steers)) {
        return KELP_OK;
    }
    do {
        status = join_once(launcher, reterr);
        if (status != KELP_ERR_BUSY) {
            break;
        }
        kelp_display_wait(launcher->display, reterr->text, kelp_clock_ms());
        if (launch->manager) {
            kelp_manager_alive(launch->manager, kelp_clock_ms(), reterr->text);
        }
        (void)poll(&signal, 1, ASK_PERIOD_MS);
    } while (kelp_clock_ms() < until_ms && kelp_guard_stage(launcher->guard) == KELP_GUARD_RUN);
    kelp_display_clear(launcher->display);
    return status == KELP_OK && !launch->node ? refuse_others(launcher, reterr) : status;
}
