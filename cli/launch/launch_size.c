/*
 * The size that `kelp scale` asks for: processes are started or told to leave. Where all of the job
 * is on this machine, the size is kept in the run's folder, since a private etcd goes with the
 * command. A host of a cluster runs its share of it (cli/host/share.h).
 */
#include <stdlib.h>
#include <string.h>

#include "cli/launch/launcher_internal.h"

#define SIZE_FILE "scale.json" /* what stands in etcd */
#define SETTLE_MS 1000         /* hosts come one by one: a share counts once it has stood so long */

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

/* Have so many of a kind: those that are too many are told to leave. */
static kelp_status resize(struct kelp_children *children, enum kelp_child_kind kind, uint32_t count,
                          struct kelp_error *reterr)
{
    while (kelp_children_wanted(children, kind) > count &&
           kelp_children_retire(children, kind, NULL, NULL)) {
    }
    return kelp_children_grow(children, kind, count, reterr);
}

static kelp_status follow_workers(struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    kelp_children_need(&launcher->children, launcher->size.workers_min);
    return resize(&launcher->children, KELP_CHILD_WORKER, launcher->size.workers_max, reterr);
}

/* Its partitions are elsewhere, as the newest status says. */
static bool is_empty(const char *id, void *user)
{
    const struct kelp_launcher *launcher = user;

    for (size_t i = 0; i < launcher->status->n_shards; i++) {
        const Kelp__V1__ShardInfo *shard = launcher->status->shards[i];
        if (strcmp(shard->shard, id) == 0) {
            return shard->partitions == 0 && shard->backups == 0 && shard->joining == 0;
        }
    }
    return false;
}

/* Shards whose partitions go elsewhere: somebody must be there to get them. */
static uint32_t count_draining(const struct kelp_launcher *launcher)
{
    uint32_t count = 0;

    for (size_t i = 0; i < launcher->status->n_shards; i++) {
        count += launcher->status->shards[i]->draining ? 1 : 0;
    }
    return count;
}

/* A shard goes once it is empty. */
static void end_empty_shards(struct kelp_launcher *launcher)
{
    struct kelp_children *children = &launcher->children;
    const uint32_t most = launcher->size.shards + count_draining(launcher);

    while (kelp__launch_state_is(launcher, "running") &&
           kelp_children_wanted(children, KELP_CHILD_SHARD) > most &&
           kelp_children_retire(children, KELP_CHILD_SHARD, is_empty, launcher)) {
    }
}

static void tell(struct kelp_launcher *launcher)
{
    struct kelp_error error;

    kelp_display_say(launcher->display, "from now on %u:%u workers and %u shards are wanted",
                     launcher->size.workers_min, launcher->size.workers_max, launcher->size.shards);
    if (keep(launcher, &error) != KELP_OK) {
        kelp_display_say(launcher->display, "%s; a resume will not know this size", error.text);
    }
}

/* ---- a host of several ---------------------------------------------------------------------- */

static bool is_fixed(const struct kelp_room *room)
{
    return room->least == room->most;
}

/* Processes that move partitions need a cluster that runs. */
static kelp_status take_share(struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    struct kelp_launch_share *share = &launcher->node.share;

    share->taken = true;
    kelp_display_say(launcher->display,
                     "from now on this host runs %u workers and %u shards of the job",
                     share->workers, share->shards);
    kelp_status status = resize(&launcher->children, KELP_CHILD_WORKER, share->workers, reterr);
    return status == KELP_OK ? resize(&launcher->children, KELP_CHILD_SHARD, share->shards, reterr)
                             : status;
}

static kelp_status follow_share(struct kelp_launcher *launcher, const Kelp__V1__Targets *wanted,
                                uint64_t now, struct kelp_error *reterr)
{
    const struct kelp_launch_node *host = launcher->launch->node;
    struct kelp_launch_share *share = &launcher->node.share;
    struct kelp_hosts *hosts = launcher->hosts;

    if (!hosts || launcher->node.leaving || (is_fixed(&host->shards) && is_fixed(&host->workers))) {
        return KELP_OK;
    }
    uint32_t shards = kelp_hosts_share(hosts, KELP_HOSTS_SHARDS, wanted->shards);
    uint32_t workers = kelp_hosts_share(hosts, KELP_HOSTS_WORKERS, wanted->workers_max);
    if (share->since_ms == 0 || shards != share->shards || workers != share->workers) {
        *share = (struct kelp_launch_share){.shards = shards, .workers = workers, .since_ms = now};
    }
    return !share->taken && now - share->since_ms >= SETTLE_MS ? take_share(launcher, reterr)
                                                               : KELP_OK;
}

/* ---- all of it ------------------------------------------------------------------------------ */

static kelp_status follow_all(struct kelp_launcher *launcher, const Kelp__V1__Targets *wanted,
                              struct kelp_error *reterr)
{
    Kelp__V1__Targets *size = &launcher->size;
    kelp_status status = KELP_OK;

    bool workers =
        wanted->workers_min != size->workers_min || wanted->workers_max != size->workers_max;
    bool shards = wanted->shards != size->shards;
    size->workers_min = wanted->workers_min;
    size->workers_max = wanted->workers_max;
    size->shards = wanted->shards;
    if (workers || shards) {
        tell(launcher);
    }
    if (workers) {
        status = follow_workers(launcher, reterr);
    }
    if (status == KELP_OK && shards) {
        status = kelp_children_grow(&launcher->children, KELP_CHILD_SHARD, size->shards, reterr);
    }
    if (status == KELP_OK) {
        end_empty_shards(launcher);
    }
    return status;
}

kelp_status kelp__launch_follow_size(struct kelp_launcher *launcher, uint64_t now,
                                     struct kelp_error *reterr)
{
    const Kelp__V1__Targets *wanted = launcher->status->targets;

    if (!wanted || wanted->shards == 0) {
        return KELP_OK; /* the leader does not know it yet */
    }
    return launcher->launch->node ? follow_share(launcher, wanted, now, reterr)
                                  : follow_all(launcher, wanted, reterr);
}
