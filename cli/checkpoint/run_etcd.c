#include "cli/checkpoint/run_etcd.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cluster/run_client.h"
#include "common/base/random_id.h"
#include "common/etcd/etcd.h"
#include "common/program/etcd_server.h"
#include "common/program/socket_folder.h"

#define DEADLINE_MS 10000
#define GRACE_MS    2000

struct kelp_run_etcd {
    struct kelp_etcd_server *server; /* the run's own; NULL: another one */
    struct kelp_etcd *etcd;
    char sockets[KELP_SOCKET_FOLDER_MAX + 1]; /* of server */
    int sockets_held;                         /* kelp_socket_folder_make() */
    char job[64];
};

static void key_of(const struct kelp_run_etcd *etcd, const char *name,
                   char key[KELP_JOB_CLIENT_KEY_MAX + 1])
{
    (void)snprintf(key, KELP_JOB_CLIENT_KEY_MAX + 1, "/kelp/%s/%s", etcd->job, name);
}

/* Revision of a key: 0 when it is not there. */
static kelp_status revision_of(struct kelp_run_etcd *etcd, const char *key, int64_t *ret_revision,
                               struct kelp_error *reterr)
{
    struct kelp_etcd_range range = {.count = 0};

    kelp_status status = kelp_etcd_get(etcd->etcd, key, DEADLINE_MS, &range, reterr);
    if (status == KELP_OK) {
        *ret_revision = range.count > 0 ? range.pairs[0].mod_revision : 0;
        kelp_etcd_range_fini(&range);
    }
    return status;
}

static kelp_status start_private(struct kelp_run_etcd *etcd, const char *run_path,
                                 struct kelp_error *reterr)
{
    char folder[KELP_RUN_PATH_MAX + 64];
    char log[KELP_RUN_PATH_MAX + 64];

    (void)snprintf(folder, sizeof(folder), "%s/etcd", run_path);
    (void)snprintf(log, sizeof(log), "%s/logs/etcd.log", run_path);
    kelp_status status = kelp_socket_folder_make(etcd->sockets, &etcd->sockets_held, reterr);
    if (status != KELP_OK) {
        return status;
    }
    const struct kelp_etcd_server_options options = {
        .data_folder = folder, .log_path = log, .socket_folder = etcd->sockets};
    return kelp_etcd_server_start(&options, &etcd->server, reterr);
}

/* In an etcd that others use too, the job may run on other machines. */
static kelp_status check_alone(struct kelp_run_etcd *etcd, struct kelp_error *reterr)
{
    char key[KELP_JOB_CLIENT_KEY_MAX + 1];
    int64_t revision = 0;

    key_of(etcd, "coordinator", key);
    kelp_status status = revision_of(etcd, key, &revision, reterr);
    if (status == KELP_OK && revision != 0) {
        return kelp_fail(reterr, KELP_ERR_BUSY,
                         "a coordinator leads job '%s' now: stop the job first", etcd->job);
    }
    return status;
}

static kelp_status connect(struct kelp_run_etcd *etcd, const struct kelp_run_dir *run,
                           const struct kelp_run_cluster *cluster, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    (void)snprintf(etcd->job, sizeof(etcd->job), "%s", cluster->job);
    if (cluster->private_etcd) {
        status = start_private(etcd, run->path, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_etcd_open_certified(
            etcd->server ? kelp_etcd_server_url(etcd->server) : cluster->etcd,
            cluster->certs[0] ? cluster->certs : NULL, &etcd->etcd, reterr);
    }
    return status == KELP_OK && !etcd->server ? check_alone(etcd, reterr) : status;
}

kelp_status kelp_run_etcd_open(const struct kelp_run_dir *run, struct kelp_run_etcd **ret_etcd,
                               struct kelp_error *reterr)
{
    struct kelp_run_cluster cluster;
    char folder[KELP_RUN_PATH_MAX + 64];

    kelp_status status = kelp_run_cluster_read(run->path, &cluster, reterr);
    if (status == KELP_ERR_NOT_FOUND) {
        *ret_etcd = NULL;
        return KELP_OK;
    }
    if (status == KELP_OK) {
        status = kelp_run_dir_path(run->path, "etcd", folder, sizeof(folder), reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    if (cluster.private_etcd && access(folder, F_OK) != 0) {
        *ret_etcd = NULL; /* copied or lost without it: the next leader reads the folder */
        return KELP_OK;
    }
    struct kelp_run_etcd *etcd = calloc(1, sizeof(*etcd));
    if (!etcd) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    etcd->sockets_held = -1;
    status = connect(etcd, run, &cluster, reterr);
    if (status != KELP_OK) {
        kelp_run_etcd_close(etcd);
        return status;
    }
    *ret_etcd = etcd;
    return KELP_OK;
}

void kelp_run_etcd_close(struct kelp_run_etcd *etcd)
{
    if (!etcd) {
        return;
    }
    kelp_etcd_close(etcd->etcd);
    kelp_etcd_server_stop(etcd->server, GRACE_MS);
    if (etcd->sockets_held >= 0) {
        (void)close(etcd->sockets_held);
    }
    kelp_socket_folder_remove(etcd->sockets);
    free(etcd);
}

/* ---- manifests ----------------------------------------------------------------------------- */

struct change {
    char manifest_key[KELP_JOB_CLIENT_KEY_MAX + 1];
    char fence_key[KELP_JOB_CLIENT_KEY_MAX + 1];
    int64_t manifest_revision;
    int64_t fence_revision;
};

static kelp_status read_state(struct kelp_run_etcd *etcd, uint64_t version, struct change *change,
                              struct kelp_error *reterr)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "checkpoint/%" PRIu64, version);
    key_of(etcd, name, change->manifest_key);
    key_of(etcd, "checkpoint_fence", change->fence_key);
    kelp_status status =
        revision_of(etcd, change->manifest_key, &change->manifest_revision, reterr);
    return status != KELP_OK
               ? status
               : revision_of(etcd, change->fence_key, &change->fence_revision, reterr);
}

static kelp_status apply(struct kelp_run_etcd *etcd, const struct change *change,
                         const struct kelp_etcd_operation *operations, size_t count,
                         const char *nonce_key, struct kelp_error *reterr)
{
    const struct kelp_etcd_compare compares[] = {
        {.key = change->manifest_key,
         .what = KELP_ETCD_MOD_REVISION,
         .revision = change->manifest_revision},
        {.key = change->fence_key,
         .what = KELP_ETCD_MOD_REVISION,
         .revision = change->fence_revision},
    };
    bool succeeded = false;

    kelp_status status = kelp_etcd_transaction(
        etcd->etcd,
        &(struct kelp_etcd_transaction){.compares = compares,
                                        .compare_count = KELP_ARRAY_COUNT(compares),
                                        .operations = operations,
                                        .operation_count = count,
                                        .nonce_key = nonce_key,
                                        .deadline_ms = DEADLINE_MS},
        &succeeded, NULL, reterr);
    if (status == KELP_OK && !succeeded) {
        return kelp_fail(reterr, KELP_ERR_BUSY,
                         "another command has changed the checkpoints of job '%s'; try again",
                         etcd->job);
    }
    return status;
}

kelp_status kelp_run_etcd_remove(struct kelp_run_etcd *etcd, uint64_t version,
                                 struct kelp_error *reterr)
{
    struct change change;
    char fence[64];
    uint64_t nonce = 0;

    kelp_status status = read_state(etcd, version, &change, reterr);
    if (status != KELP_OK || change.manifest_revision == 0) {
        return status;
    }
    status = kelp_random_id(&nonce, reterr);
    if (status != KELP_OK) {
        return status;
    }
    (void)snprintf(fence, sizeof(fence), "removed-%016" PRIx64, nonce);
    const struct kelp_etcd_operation operations[] = {
        {.key = change.manifest_key, .value = NULL},
        {.key = change.fence_key, .value = fence},
    };
    return apply(etcd, &change, operations, KELP_ARRAY_COUNT(operations), change.fence_key, reterr);
}

kelp_status kelp_run_etcd_add(struct kelp_run_etcd *etcd, uint64_t version, const char *manifest,
                              struct kelp_error *reterr)
{
    struct change change;

    kelp_status status = read_state(etcd, version, &change, reterr);
    if (status == KELP_OK && change.manifest_revision != 0) {
        return kelp_fail(reterr, KELP_ERR_EXISTS,
                         "the run has a checkpoint of version %" PRIu64 " already", version);
    }
    if (status != KELP_OK) {
        return status;
    }
    const struct kelp_etcd_operation operation = {.key = change.manifest_key, .value = manifest};
    return apply(etcd, &change, &operation, 1, change.manifest_key, reterr);
}
