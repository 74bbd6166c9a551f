/*
 * What lies in the run's folder. Checkpoints that an empty etcd does not know are added to it, and
 * folders that no manifest names are found, so that they can be removed.
 *
 * Only folders that a leader of this job certainly left behind are removed. Copies, checkpoints of
 * another job in the same folder, and everything that could not be added to an empty etcd stay.
 */
#include "coordinator/etcd/leader_internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/log/log.h"
#include "coordinator/etcd/checkpoint_files.h"

/* ---- an empty etcd ---- */

static kelp_status import(struct kelp__leader_task *task, const char *folder, const char *text,
                          uint64_t version)
{
    struct kelp_leader *leader = task->leader;
    char key[KELP__KEY_MAX];
    bool succeeded = false;
    kelp__manifest_key(leader, version, key);
    struct kelp_etcd_compare compares[2] = {
        {.key = leader->election_key,
         .what = KELP_ETCD_CREATE_REVISION,
         .revision = task->revision},
        {.key = key, .what = KELP_ETCD_CREATE_REVISION, .revision = 0},
    };
    struct kelp_etcd_operation operation = {.key = key, .value = text};
    kelp_status status = kelp_etcd_transaction(
        leader->etcd,
        &(struct kelp_etcd_transaction){.compares = compares,
                                        .compare_count = 2,
                                        .operations = &operation,
                                        .operation_count = 1,
                                        .deadline_ms = KELP_COORDINATOR_ETCD_MS},
        &succeeded, NULL, &task->error);
    if (status != KELP_OK) {
        kelp_error_prefix(&task->error, "importing checkpoint %s", folder);
    }
    task->found.imported += succeeded ? 1 : 0;
    return status;
}

/* Is this the manifest of a checkpoint of our job in that folder? */
static kelp_status read_manifest(const struct kelp__leader_task *task, const char *folder,
                                 char **ret_text, struct kelp_manifest *ret_manifest,
                                 struct kelp_error *reterr)
{
    size_t bytes = 0;
    kelp_status status = kelp_checkpoint_files_read(task->leader->options.run_folder, folder,
                                                    "manifest.json", ret_text, &bytes, reterr);
    if (status == KELP_OK) {
        status = kelp_manifest_parse(*ret_text, bytes, ret_manifest, reterr);
    }
    if (status == KELP_OK && strcmp(ret_manifest->job, task->leader->options.job) != 0) {
        status = kelp_fail(reterr, KELP_ERR_MISMATCH, "manifest.json is of job %s, this is job %s",
                           ret_manifest->job, task->leader->options.job);
    }
    if (status == KELP_OK && strcmp(ret_manifest->folder, folder) != 0) {
        status = kelp_fail(reterr, KELP_ERR_FORMAT, "manifest.json is of folder %s",
                           ret_manifest->folder);
    }
    if (status == KELP_OK && ret_manifest->version == 0) {
        status = kelp_fail(reterr, KELP_ERR_FORMAT, "manifest.json has version 0");
    }
    return status;
}

/* A folder that is not a complete checkpoint of this job is skipped and stays. */
static kelp_status import_folder(struct kelp__leader_task *task, const char *folder)
{
    struct kelp_manifest manifest = {.version = 0};
    struct kelp_error error = {.text = ""};
    char *text = NULL;
    kelp_status status = read_manifest(task, folder, &text, &manifest, &error);
    if (status == KELP_OK) {
        status = import(task, folder, text, manifest.version);
    } else if (status == KELP_ERR_IO || status == KELP_ERR_NO_MEMORY) {
        task->error = error; /* the read is repeated later */
    } else {
        kelp_log_error("not taken from the run's folder, and left there folder=%s reason=\"%s\"",
                       folder, error.text);
        status = KELP_OK;
    }
    kelp_manifest_fini(&manifest);
    free(text);
    return status;
}

kelp_status kelp__leader_import(struct kelp__leader_task *task)
{
    kelp_status status = KELP_OK;
    if (task->revision == 0) {
        return kelp_fail(&task->error, KELP_ERR_NOT_LEADER, "not elected now");
    }
    for (size_t i = 0; i < task->found.folders.count && status == KELP_OK; i++) {
        const char *folder = task->found.folders.names[i];
        uint64_t generation = 0;
        if (kelp_checkpoint_folder_parse(folder, &generation) &&
            generation > task->found.last_generation) {
            task->found.last_generation = generation; /* its names are in use */
        }
        status = import_folder(task, folder);
    }
    return status;
}

/* ---- what may be removed ---- */

static bool named(const struct kelp_found *found, const char *folder)
{
    for (uint32_t i = 0; i < found->checkpoint_count; i++) {
        if (strcmp(found->checkpoints[i].folder, folder) == 0) {
            return true;
        }
    }
    return false;
}

/* Does its job.yaml name our job? */
static kelp_status check_spec(const struct kelp__leader_task *task, const char *folder,
                              struct kelp_error *reterr)
{
    struct kelp_job_file *file = kelp_job_file_create();
    char *text = NULL;
    size_t bytes = 0;
    if (!file) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a job");
    }
    kelp_status status = kelp_checkpoint_files_read(task->leader->options.run_folder, folder,
                                                    "job.yaml", &text, &bytes, reterr);
    if (status == KELP_OK) {
        status = kelp_job_file_parse(file, "job.yaml", text, bytes, reterr);
    }
    if (status == KELP_OK &&
        strcmp(kelp_job_file_job(file)->name, task->leader->options.job) != 0) {
        status = kelp_fail(reterr, KELP_ERR_MISMATCH, "job.yaml is of job %s, this is job %s",
                           kelp_job_file_job(file)->name, task->leader->options.job);
    }
    free(text);
    kelp_job_file_destroy(file);
    return status;
}

/* Do those of its files that exist name our job? */
static bool left_by_us(const struct kelp__leader_task *task, const char *folder)
{
    struct kelp_manifest manifest = {.version = 0};
    struct kelp_error error = {.text = ""};
    char *text = NULL;
    uint64_t generation = 0;
    kelp_status status = kelp_checkpoint_folder_parse(folder, &generation)
                             ? KELP_OK
                             : kelp_fail(&error, KELP_ERR_FORMAT, "its name is not step-<n>.g<n>");
    if (status == KELP_OK) {
        status = read_manifest(task, folder, &text, &manifest, &error);
        kelp_manifest_fini(&manifest);
        free(text);
    }
    if (status == KELP_OK || status == KELP_ERR_NOT_FOUND) {
        status = check_spec(task, folder, &error);
    }
    if (status == KELP_OK || status == KELP_ERR_NOT_FOUND) {
        return true;
    }
    kelp_log_warn("a folder that no checkpoint has is left alone folder=%s reason=\"%s\"", folder,
                  error.text);
    return false;
}

void kelp__leader_sift_folders(struct kelp__leader_task *task)
{
    struct kelp_checkpoint_names *folders = &task->found.folders;
    size_t kept = 0;
    for (size_t i = 0; i < folders->count; i++) {
        const char *folder = folders->names[i];
        if (!task->found.empty && !named(&task->found, folder) && left_by_us(task, folder)) {
            memmove(folders->names[kept++], folder, strlen(folder) + 1);
        }
    }
    folders->count = kept;
}
