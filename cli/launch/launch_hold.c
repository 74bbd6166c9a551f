/*
 * A resume takes hold when training goes on with its job. Until then the run is as it was: what the
 * resume will put in place waits in next/ (common/program/run_next.h), and when it ends before,
 * what it has written elsewhere is put back.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/checkpoint/checkpoint_read.h"
#include "cli/cluster/leftovers.h"
#include "cli/cluster/run_client.h"
#include "cli/launch/launcher_internal.h"
#include "common/base/files.h"
#include "common/base/json.h"
#include "common/program/run_next.h"

/* In next/: the job as etcd has it, where job.yaml names what is in the run's folder from there. */
#define SPEC KELP_RUN_NEXT "/.spec"

/* A copy of job.yaml, as long as that is a job that was forced on checkpoints of another one: one
 * that is killed before it has a checkpoint of its own goes on from those. */
#define FORCED "forced.yaml"

static bool is_there(const char *run, const char *name)
{
    char path[KELP_RUN_PATH_MAX + 64];

    return kelp_run_dir_path(run, name, path, sizeof(path), NULL) == KELP_OK &&
           access(path, F_OK) == 0;
}

static kelp_status remove_etcd(const char *run, struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 64];

    kelp_status status = kelp_run_dir_path(run, "etcd", path, sizeof(path), reterr);
    return status == KELP_OK ? kelp_files_remove(path, reterr) : status;
}

/* What an earlier resume has left that was killed before it took hold. */
static kelp_status clear_abandoned(const struct kelp_run_dir *run, char **ret_abandoned,
                                   struct kelp_error *reterr)
{
    kelp_status status = kelp_run_dir_read(run->path, SPEC, ret_abandoned, reterr);

    if (status == KELP_ERR_NOT_FOUND) {
        *ret_abandoned = NULL;
        return KELP_OK;
    }
    if (status == KELP_OK && is_there(run->path, KELP_LEFTOVERS_NEW_ETCD)) {
        status = remove_etcd(run->path, reterr);
    }
    return status;
}

kelp_status kelp_launcher_clear(const struct kelp_run_dir *run, struct kelp_error *reterr)
{
    char *abandoned = NULL;

    kelp_status status = clear_abandoned(run, &abandoned, reterr);
    free(abandoned);
    return status == KELP_OK ? kelp_run_next_drop(run->path, reterr) : status;
}

kelp_status kelp_launcher_lay_ready(const struct kelp_run_dir *run, const char *spec,
                                    const char *job_text, bool forced, char **ret_abandoned,
                                    struct kelp_error *reterr)
{
    char *abandoned = NULL;

    kelp_status status = clear_abandoned(run, &abandoned, reterr);
    if (status == KELP_OK) {
        status = kelp_run_next_make(run->path, reterr);
    }
    if (status == KELP_OK && !is_there(run->path, "etcd")) {
        status = kelp_run_dir_write(run, KELP_LEFTOVERS_NEW_ETCD, "", reterr);
    }
    if (status == KELP_OK) {
        status = kelp_run_dir_write(run, SPEC, spec, reterr);
    }
    if (status == KELP_OK && forced) {
        status = kelp_run_dir_write(run, KELP_RUN_NEXT "/" FORCED, job_text, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_run_dir_write(run, KELP_RUN_NEXT "/job.yaml", job_text, reterr);
    }
    if (status != KELP_OK) {
        free(abandoned);
        return status;
    }
    *ret_abandoned = abandoned;
    return KELP_OK;
}

/* Is job.yaml the job that was forced? */
static bool is_forced_job(const char *run_path)
{
    char *forced = NULL;
    char *job = NULL;

    bool same = kelp_run_dir_read(run_path, FORCED, &forced, NULL) == KELP_OK &&
                kelp_run_dir_read(run_path, "job.yaml", &job, NULL) == KELP_OK &&
                strcmp(forced, job) == 0;
    free(forced);
    free(job);
    return same;
}

/* Was the newest checkpoint made by the run's job? */
static bool newest_is_own(const char *run_path)
{
    struct kelp_checkpoints list;
    struct kelp_job_file *file = NULL;

    if (kelp_run_job_read(run_path, &file, NULL) != KELP_OK) {
        return false;
    }
    uint64_t digest = kelp_job_file_digest(file);
    kelp_job_file_destroy(file);
    if (kelp_checkpoints_list(run_path, &list, NULL) != KELP_OK) {
        return false;
    }
    bool own = list.count > 0 && list.items[list.count - 1].fault.status == KELP_OK &&
               list.items[list.count - 1].manifest.spec_digest == digest;
    kelp_checkpoints_fini(&list);
    return own;
}

bool kelp_launcher_forced(const char *run_path)
{
    return is_forced_job(run_path) && !newest_is_own(run_path);
}

kelp_status kelp__launch_remember(struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    const struct kelp_launch *launch = launcher->launch;

    if (!launch->resume) {
        return KELP_OK;
    }
    kelp_status status =
        kelp_run_dir_read(launch->run->path, "cluster.json", &launcher->cluster_before, reterr);
    if (status == KELP_ERR_NOT_FOUND) {
        launcher->cluster_before = NULL;
        return KELP_OK;
    }
    return status;
}

bool kelp__launch_unheld(const struct kelp_launcher *launcher)
{
    const struct kelp_launch *launch = launcher->launch;

    return (launch->resume || launch->node) && kelp_run_next_waits(launch->run->path);
}

/* ---- putting back -------------------------------------------------------------------------- */

static kelp_status put_back_key(struct kelp_job_client *client, const char *name, const char *text,
                                struct kelp_error *reterr)
{
    char key[KELP_JOB_CLIENT_KEY_MAX + 1];

    if (!text) {
        return kelp_job_client_forget(client, name, KELP_LAUNCH_FAILURE_MS, reterr);
    }
    kelp_job_client_key(client, name, key);
    return kelp_etcd_put(kelp_job_client_etcd(client), key, text, 0, KELP_LAUNCH_FAILURE_MS,
                         reterr);
}

/* Our own etcd is of no interest to others; the next resume overwrites both. */
static kelp_status put_back_etcd(const struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    struct kelp_job_client *client = NULL;

    if (!launcher->launch->etcd_url || !launcher->submitted) {
        return KELP_OK;
    }
    kelp_status status = kelp__launch_client(launcher, &client, reterr);
    if (status == KELP_OK) {
        status = put_back_key(client, "spec", launcher->spec_before, reterr);
    }
    if (status == KELP_OK) {
        status = put_back_key(client, "state", launcher->state_before, reterr);
    }
    kelp_job_client_close(client);
    return status;
}

void kelp__launch_undo(struct kelp_launcher *launcher)
{
    const struct kelp_run_dir *run = launcher->launch->run;
    struct kelp_error error;

    kelp_status status = put_back_etcd(launcher, &error);
    if (status == KELP_OK) {
        status = launcher->cluster_before
                     ? kelp_run_dir_write(run, "cluster.json", launcher->cluster_before, &error)
                     : kelp_run_dir_remove(run, "cluster.json", &error);
    }
    if (status == KELP_OK) {
        status = kelp_run_next_drop(run->path, &error);
    }
    if (status != KELP_OK) { /* the next resume clears the rest */
        kelp_display_say(launcher->display, "%s", error.text);
    }
}

/* ---- etcd's data --------------------------------------------------------------------------- */

#define FOLDER_BYTES 256 /* of a checkpoint's folder in its manifest */

static bool read_folder(const char *manifest, char folder[FOLDER_BYTES])
{
    cJSON *json = NULL;

    bool known = kelp_json_parse(manifest, strlen(manifest), &json, NULL) == KELP_OK &&
                 kelp_json_string(json, "folder", folder, FOLDER_BYTES, NULL) == KELP_OK;
    cJSON_Delete(json);
    return known;
}

static bool on_file(const char *run, const char *manifest)
{
    char name[FOLDER_BYTES + 64];
    char folder[FOLDER_BYTES];

    if (!read_folder(manifest, folder)) {
        return false;
    }
    (void)snprintf(name, sizeof(name), "checkpoints/%s/manifest.json", folder);
    return is_there(run, name);
}

/* The one of the highest version; NULL: none. */
static const struct kelp_etcd_pair *newest_manifest(const struct kelp_etcd_range *range,
                                                    size_t prefix_bytes)
{
    const struct kelp_etcd_pair *newest = NULL;
    unsigned long long highest = 0;

    for (size_t i = 0; i < range->count; i++) {
        const unsigned long long version = strtoull(range->pairs[i].key + prefix_bytes, NULL, 10);
        if (version > highest) {
            highest = version;
            newest = &range->pairs[i];
        }
    }
    return newest;
}

/* Has the run's folder checkpoints of its own, and not this one? */
static bool is_elsewhere(const char *run, const char *folder)
{
    struct kelp_checkpoints list;
    char name[FOLDER_BYTES + 16];
    bool other = false;

    (void)snprintf(name, sizeof(name), "checkpoints/%s", folder);
    if (is_there(run, name) || kelp_checkpoints_list(run, &list, NULL) != KELP_OK) {
        return false;
    }
    for (size_t i = 0; i < list.count && !other; i++) {
        other = list.items[i].fault.status == KELP_OK;
    }
    kelp_checkpoints_fini(&list);
    return other;
}

kelp_status kelp_launcher_check_checkpoints(struct kelp_job_client *client, const char *run,
                                            struct kelp_error *reterr)
{
    char prefix[KELP_JOB_CLIENT_KEY_MAX + 1];
    char folder[FOLDER_BYTES];
    struct kelp_etcd_range range = {0};

    kelp_job_client_key(client, "checkpoint/", prefix);
    kelp_status status = kelp_etcd_get_prefix(kelp_job_client_etcd(client), prefix,
                                              KELP_LAUNCH_ETCD_MS, &range, reterr);
    const struct kelp_etcd_pair *newest =
        status == KELP_OK ? newest_manifest(&range, strlen(prefix)) : NULL;
    if (newest && read_folder(newest->value, folder) && is_elsewhere(run, folder)) {
        status =
            kelp_fail(reterr, KELP_ERR_MISMATCH,
                      "the newest checkpoint of job '%s' in etcd is %s, and '%s' has checkpoints, "
                      "but not that one: etcd knows another run, or an earlier state of this one; "
                      "remove the job from etcd with kelp free, then resume",
                      kelp_job_client_job(client), folder, run);
    }
    kelp_etcd_range_fini(&range);
    return status;
}

bool kelp__launch_etcd_spare(struct kelp_launcher *launcher)
{
    const struct kelp_launch *launch = launcher->launch;
    struct kelp_job_client *client = NULL;
    struct kelp_etcd_range range = {0};
    char prefix[KELP_JOB_CLIENT_KEY_MAX + 1];

    if (launch->job->run.mode != KELP_RUN_TRAIN) {
        return true;
    }
    if (!launcher->etcd || kelp__launch_client(launcher, &client, NULL) != KELP_OK) {
        return false;
    }
    kelp_job_client_key(client, "checkpoint/", prefix);
    bool spare = kelp_etcd_get_prefix(kelp_job_client_etcd(client), prefix, KELP_LAUNCH_FAILURE_MS,
                                      &range, NULL) == KELP_OK;
    for (size_t i = 0; i < range.count && spare; i++) {
        spare = on_file(launch->run->path, range.pairs[i].value);
    }
    kelp_etcd_range_fini(&range);
    kelp_job_client_close(client);
    return spare;
}

void kelp__launch_remove_etcd(struct kelp_launcher *launcher)
{
    struct kelp_error error;

    if (remove_etcd(launcher->launch->run->path, &error) != KELP_OK) {
        kelp_display_say(launcher->display, "%s", error.text);
    }
}
