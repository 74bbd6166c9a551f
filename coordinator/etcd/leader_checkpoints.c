/*
 * What etcd holds about checkpoints: a manifest under each /kelp/<job>/checkpoint/<version>, and
 * /kelp/<job>/checkpoint_fence. Every transaction that removes a manifest writes the fence, and
 * every commit compares it. So a commit that was sent before and arrives later cannot bring back a
 * manifest whose data is gone.
 */
#include "coordinator/etcd/leader_internal.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/log/log.h"
#include "coordinator/etcd/checkpoint_files.h"

/* ---- reading ---- */

static kelp_status get_fence(struct kelp__leader_task *task)
{
    struct kelp_etcd_range range = {0};
    kelp_status status = kelp__leader_get(task, task->leader->fence_key, &range);
    if (status == KELP_OK) {
        task->leader->fence_revision = range.count > 0 ? range.pairs[0].mod_revision : 0;
        kelp_etcd_range_fini(&range);
    }
    return status;
}

void kelp_committed_of(const struct kelp_manifest *manifest, struct kelp_committed *ret_committed)
{
    *ret_committed = (struct kelp_committed){
        .version = manifest->version,
        .step = manifest->step,
        .epochs = manifest->epochs,
        .generation = manifest->generation,
        .unix_ms = manifest->unix_ms,
        .spec_digest = manifest->spec_digest,
        .has_metric = manifest->has_metric,
    };
    memcpy(ret_committed->metric, manifest->metric, sizeof(ret_committed->metric));
    memcpy(ret_committed->folder, manifest->folder, sizeof(ret_committed->folder));
    kelp_manifest_state_digest(manifest, ret_committed->state_digest);
}

/* "1500" at the end of a key; 0: no version. */
static uint64_t version_of(const struct kelp_leader *leader, const char *key)
{
    const char *text = key + strlen(leader->checkpoint_prefix);
    char *end = NULL;
    errno = 0;
    unsigned long long version = strtoull(text, &end, 10);
    bool good = errno == 0 && text[0] >= '1' && text[0] <= '9' && *end == '\0';
    return good && version <= KELP_JSON_INTEGER_MAX ? version : 0;
}

/* A manifest that cannot be read counts as damaged; its key is kept, so that it can be removed. */
static kelp_status add_manifest(struct kelp__leader_task *task, uint64_t version,
                                const struct kelp_etcd_pair *pair)
{
    struct kelp_committed *committed = &task->found.checkpoints[task->found.checkpoint_count];
    struct kelp_manifest manifest = {.version = 0};
    kelp_status status =
        kelp_manifest_parse(pair->value, pair->value_bytes, &manifest, &task->error);
    if (status == KELP_ERR_NO_MEMORY) {
        return status;
    }
    if (status == KELP_OK && manifest.version == version) {
        kelp_committed_of(&manifest, committed);
    } else {
        *committed = (struct kelp_committed){.version = version, .damaged = true};
    }
    kelp_manifest_fini(&manifest);
    committed->revision = pair->mod_revision;
    committed->manifest = strdup(pair->value);
    if (!committed->manifest) {
        return kelp_fail(&task->error, KELP_ERR_NO_MEMORY, "no memory for a manifest");
    }
    task->found.checkpoint_count++;
    if (committed->generation > task->found.last_generation) {
        task->found.last_generation = committed->generation;
    }
    return KELP_OK;
}

/* ---- another job? ---- */

static kelp_status compare_jobs(struct kelp__leader_task *task, const struct kelp_job_file *before,
                                const char *folder)
{
    struct kelp_job_differences differences;
    char text[KELP_COORDINATOR_REASON_MAX / 2];
    kelp_status status =
        kelp_job_compare(before, task->leader->job_file, &differences, &task->error);
    if (status == KELP_OK && differences.refused > 0) {
        kelp_job_differences_text(&differences, false, text, sizeof(text));
        (void)snprintf(task->found.foreign, sizeof(task->found.foreign),
                       "checkpoint %s was made by another job: %s; go on with the job as it was, "
                       "or take it with --force",
                       folder, text);
    }
    if (status == KELP_OK) {
        kelp_job_differences_fini(&differences);
    }
    return status;
}

/* The checkpoint's job.yaml cannot be read, so it is unknown which text of the job made it. */
static void leave_unreadable(struct kelp__leader_task *task, struct kelp_committed *committed)
{
    kelp_log_error("checkpoint not used: its job cannot be read folder=%s error=\"%s\"",
                   committed->folder, task->error.text);
    committed->damaged = true;
    task->error.text[0] = '\0';
}

/* Another text of the job made this checkpoint: can our job continue from it? If its job.yaml is
 * missing, as storage may be, the read is repeated later. */
static kelp_status check_job(struct kelp__leader_task *task, struct kelp_committed *committed)
{
    struct kelp_job_file *file = kelp_job_file_create();
    char *text = NULL;
    size_t bytes = 0;
    if (!file) {
        return kelp_fail(&task->error, KELP_ERR_NO_MEMORY, "no memory for a job");
    }
    kelp_status status =
        kelp_checkpoint_files_read(task->leader->options.run_folder, committed->folder, "job.yaml",
                                   &text, &bytes, &task->error);
    if (status == KELP_ERR_NOT_FOUND) {
        (void)snprintf(task->found.missing, sizeof(task->found.missing),
                       "storage " KELP_CHECKPOINTS_FOLDER "/%s/job.yaml", committed->folder);
    }
    if (status == KELP_OK) {
        status = kelp_job_file_parse(file, "job.yaml", text, bytes, &task->error);
    }
    if (status == KELP_OK) {
        status = kelp_job_file_finish(file, &task->error);
    }
    if (status == KELP_OK) {
        status = compare_jobs(task, file, committed->folder);
    } else if (status == KELP_ERR_INVALID || status == KELP_ERR_LIMIT ||
               kelp_status_group(status) == KELP_GROUP_DATA) {
        leave_unreadable(task, committed);
        status = KELP_OK;
    }
    free(text);
    kelp_job_file_destroy(file);
    return status;
}

/* Check that the checkpoint to restore is one of our job. */
static kelp_status check_jobs(struct kelp__leader_task *task)
{
    for (uint32_t i = task->found.checkpoint_count; i-- > 0;) {
        struct kelp_committed *committed = &task->found.checkpoints[i];
        if (committed->damaged) {
            continue;
        }
        kelp_status status = committed->spec_digest == task->leader->spec_digest
                                 ? KELP_OK
                                 : check_job(task, committed);
        if (status != KELP_OK || !committed->damaged) {
            return status;
        }
    }
    return KELP_OK;
}

/* ---- the list ---- */

static int compare_versions(const void *a, const void *b)
{
    const struct kelp_committed *left = a;
    const struct kelp_committed *right = b;
    return left->version < right->version ? -1 : left->version > right->version;
}

static kelp_status read_range(struct kelp__leader_task *task, const struct kelp_etcd_range *range)
{
    const struct kelp_leader *leader = task->leader;
    task->found.checkpoints = calloc(range->count + 1, sizeof(*task->found.checkpoints));
    if (!task->found.checkpoints) {
        return kelp_fail(&task->error, KELP_ERR_NO_MEMORY, "no memory for the checkpoints");
    }
    for (size_t i = 0; i < range->count; i++) {
        uint64_t version = version_of(leader, range->pairs[i].key);
        if (version == 0) {
            continue; /* not one of ours */
        }
        kelp_status status = add_manifest(task, version, &range->pairs[i]);
        if (status != KELP_OK) {
            return status;
        }
    }
    qsort(task->found.checkpoints, task->found.checkpoint_count, sizeof(*task->found.checkpoints),
          compare_versions);
    return check_jobs(task);
}

/* Folders and manifests were listed before this check: are we still the leader, who may remove
 * folders that no manifest names? A successor may have ordered a checkpoint there and commit it. */
static kelp_status check_elected(struct kelp__leader_task *task)
{
    struct kelp_etcd_range range = {0};
    kelp_status status = kelp__leader_get(task, task->leader->election_key, &range);
    if (status != KELP_OK) {
        return status;
    }
    if (task->revision == 0 || range.count == 0 ||
        range.pairs[0].create_revision != task->revision) {
        status = kelp_fail(&task->error, KELP_ERR_NOT_LEADER, "not elected now");
    }
    kelp_etcd_range_fini(&range);
    return status;
}

kelp_status kelp__leader_get_checkpoints(struct kelp__leader_task *task)
{
    struct kelp_etcd_range range = {0};
    kelp_status status = get_fence(task);
    if (status == KELP_OK && task->kind == KELP__TASK_READ) {
        /* Listed before we order anything: folders that no manifest names are left from others. */
        status = kelp_checkpoint_files_list(task->leader->options.run_folder, &task->found.folders,
                                            &task->error);
    }
    if (status == KELP_OK && task->found.map.generation == 0 && task->leader->fence_revision == 0) {
        task->found.empty = true;
        status = kelp__leader_import(task);
    }
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_etcd_get_prefix(task->leader->etcd, task->leader->checkpoint_prefix,
                                  KELP_COORDINATOR_ETCD_MS, &range, &task->error);
    if (status != KELP_OK) {
        kelp_error_prefix(&task->error, "reading %s", task->leader->checkpoint_prefix);
        return status;
    }
    if (range.count > KELP_COORDINATOR_CHECKPOINTS_MAX) {
        status = kelp_fail(&task->error, KELP_ERR_LIMIT, "%s: more than %d checkpoints",
                           task->leader->checkpoint_prefix, KELP_COORDINATOR_CHECKPOINTS_MAX);
    } else {
        status = read_range(task, &range);
    }
    kelp_etcd_range_fini(&range);
    if (status != KELP_OK || task->kind != KELP__TASK_READ) {
        return status;
    }
    kelp__leader_sift_folders(task);
    return check_elected(task);
}

/* ---- transactions ---- */

/* Each transaction compares a prefix of these. */
enum { COMPARE_ELECTION, COMPARE_MAP, COMPARE_FENCE, COMPARE_MANIFEST, COMPARE_COUNT };

static kelp_status check_revision(struct kelp__leader_task *task)
{
    return task->revision == 0 ? kelp_fail(&task->error, KELP_ERR_NOT_LEADER, "not elected now")
                               : KELP_OK;
}

/* Run one transaction with the first compare_count comparisons. The first operation puts a value
 * that no other put has used, which tells a lost answer from a failure. *ret_revision is set
 * with task->succeeded. */
static kelp_status transact(struct kelp__leader_task *task, size_t compare_count,
                            const struct kelp_etcd_operation *operations, size_t operation_count,
                            int64_t *ret_revision)
{
    const struct kelp_leader *leader = task->leader;
    const struct kelp_etcd_compare compares[COMPARE_COUNT] = {
        [COMPARE_ELECTION] = {.key = leader->election_key,
                              .what = KELP_ETCD_CREATE_REVISION,
                              .revision = task->revision},
        [COMPARE_MAP] = {.key = leader->map_key,
                         .what = KELP_ETCD_MOD_REVISION,
                         .revision = leader->map_revision},
        [COMPARE_FENCE] = {.key = leader->fence_key,
                           .what = KELP_ETCD_MOD_REVISION,
                           .revision = leader->fence_revision},
        [COMPARE_MANIFEST] = {.key = task->key,
                              .what = KELP_ETCD_MOD_REVISION,
                              .revision = task->key_revision},
    };
    const struct kelp_etcd_transaction transaction = {.compares = compares,
                                                      .compare_count = compare_count,
                                                      .operations = operations,
                                                      .operation_count = operation_count,
                                                      .nonce_key = operations[0].key,
                                                      .deadline_ms = KELP_COORDINATOR_ETCD_MS};
    kelp_status status = kelp_etcd_transaction(leader->etcd, &transaction, &task->succeeded,
                                               ret_revision, &task->error);
    if (status != KELP_OK) {
        kelp_error_prefix(&task->error, "writing %s", operations[0].key);
    }
    return status;
}

/* Look for our own value: an earlier attempt may have written it although its answer was lost. */
static kelp_status look_for_ours(struct kelp__leader_task *task)
{
    struct kelp_etcd_range range = {0};
    kelp_status status = kelp__leader_get(task, task->key, &range);
    if (status != KELP_OK) {
        return KELP_ERR_TIMEOUT; /* unknown yet */
    }
    if (range.count > 0 && strcmp(range.pairs[0].value, task->text) == 0) {
        task->succeeded = true;
        task->key_revision = range.pairs[0].mod_revision;
    }
    kelp_etcd_range_fini(&range);
    return KELP_OK;
}

kelp_status kelp__leader_commit(struct kelp__leader_task *task)
{
    const struct kelp_etcd_operation operation = {.key = task->key, .value = task->text};
    kelp_status status = check_revision(task);
    if (status != KELP_OK || task->generation != task->leader->map_generation) {
        return status; /* a generation opened meanwhile has settled it */
    }
    if (task->election != task->revision) {
        return look_for_ours(task);
    }
    int64_t revision = 0;
    status = transact(task, COMPARE_COUNT, &operation, 1, &revision);
    if (status != KELP_OK) {
        return status;
    }
    task->key_revision = revision;
    return task->succeeded ? KELP_OK : look_for_ours(task);
}

kelp_status kelp__leader_remove(struct kelp__leader_task *task)
{
    struct kelp_leader *leader = task->leader;
    const struct kelp_etcd_operation operations[2] = {
        {.key = leader->fence_key, .value = task->fence}, {.key = task->key}};
    int64_t revision = 0;
    kelp_status status = check_revision(task);
    if (status != KELP_OK) {
        return status;
    }
    status = transact(task, COMPARE_FENCE + 1, operations, 2, &revision);
    if (status != KELP_OK) {
        kelp_error_prefix(&task->error, "removing %s", task->key);
    } else if (task->succeeded) {
        leader->fence_revision = revision;
    }
    return status;
}

kelp_status kelp__leader_open_map(struct kelp__leader_task *task)
{
    struct kelp_leader *leader = task->leader;
    struct kelp_etcd_operation operations[KELP_OPENING_GONE_MAX + 2] = {
        {.key = leader->map_key, .value = task->text},
        {.key = leader->fence_key, .value = task->fence},
    };
    char gone[KELP_OPENING_GONE_MAX][KELP__KEY_MAX];
    int64_t revision = 0;
    assert(task->gone_count <= KELP_OPENING_GONE_MAX);
    for (uint32_t i = 0; i < task->gone_count; i++) {
        kelp__manifest_key(leader, task->gone[i], gone[i]);
        operations[i + 2] = (struct kelp_etcd_operation){.key = gone[i]};
    }
    kelp_status status = check_revision(task);
    if (status != KELP_OK || (task->key[0] != '\0' && task->key_revision == 0)) {
        return status; /* the checkpoint to restore is unknown: read the list again */
    }
    status = transact(task, task->key[0] == '\0' ? COMPARE_MANIFEST : COMPARE_COUNT, operations,
                      task->gone_count + 2, &revision);
    if (status == KELP_OK && task->succeeded) {
        leader->map_revision = revision;
        leader->map_generation = task->generation;
        leader->fence_revision = revision;
    }
    return status;
}

/* The generation's commits go on, so the fence is not written. */
kelp_status kelp__leader_change_map(struct kelp__leader_task *task)
{
    struct kelp_leader *leader = task->leader;
    const struct kelp_etcd_operation operation = {.key = leader->map_key, .value = task->text};
    int64_t revision = 0;
    kelp_status status = check_revision(task);
    if (status == KELP_OK) {
        status = transact(task, COMPARE_MAP + 1, &operation, 1, &revision);
    }
    if (status == KELP_OK && task->succeeded) {
        leader->map_revision = revision;
    }
    return status;
}
