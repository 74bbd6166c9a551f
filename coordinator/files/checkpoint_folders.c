#include "coordinator/files/checkpoint_folders.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log/log.h"
#include "coordinator/common/term_now.h"
#include "coordinator/etcd/checkpoint_files.h"
#include "coordinator/etcd/leader.h"

/* ---- files, on the disk's thread ---- */

enum file_kind { FILE_DESCRIBE, FILE_MANIFEST, FILE_REMOVE, FILE_SET_ASIDE };

struct file_task {
    struct kelp_task task;
    struct kelp_checkpoint_folders *folders;
    enum file_kind kind;
    uint64_t term;
    uint64_t serial; /* DESCRIBE: of the order */
    char folder[KELP_FOLDER_NAME_MAX + 1];
    char *spec; /* DESCRIBE, owned */
    char *text; /* DESCRIBE: the plan; MANIFEST; owned */
    kelp_status status;
    struct kelp_error error;
};

static void run_file(struct kelp_task *base)
{
    struct file_task *task = KELP_CONTAINER_OF(base, struct file_task, task);
    const char *run = task->folders->run_folder;
    switch (task->kind) {
    case FILE_DESCRIBE:
        task->status =
            kelp_checkpoint_files_describe(run, task->folder, task->spec, task->text, &task->error);
        break;
    case FILE_MANIFEST:
        task->status = kelp_checkpoint_files_manifest(run, task->folder, task->text, &task->error);
        break;
    case FILE_REMOVE:
        task->status = kelp_checkpoint_files_remove(run, task->folder, &task->error);
        break;
    case FILE_SET_ASIDE:
        task->status = kelp_checkpoint_files_set_aside(run, task->folder, &task->error);
        break;
    }
}

static void free_task(struct file_task *task)
{
    free(task->spec);
    free(task->text);
    free(task);
}

static void file_done(struct kelp_task *base)
{
    struct file_task *task = KELP_CONTAINER_OF(base, struct file_task, task);
    struct kelp_leadership *leadership = task->folders->leadership;
    if (!base->cancelled && task->status != KELP_OK && task->kind != FILE_DESCRIBE) {
        kelp_log_error("checkpoint folder=%s error=\"%s\"", task->folder, task->error.text);
    }
    struct kelp_term *term = kelp_term_now(leadership);
    if (!base->cancelled && term && task->term == leadership->terms &&
        task->kind == FILE_DESCRIBE) {
        kelp_term_described(term, task->serial, task->status, task->error.text);
    }
    free_task(task);
}

/* Copies text and the specification. */
static struct file_task *make_task(struct kelp_checkpoint_folders *folders, enum file_kind kind,
                                   const char *folder, const char *text)
{
    struct file_task *task = calloc(1, sizeof(*task));
    if (!task) {
        return NULL;
    }
    task->task.run = run_file;
    task->task.done = file_done;
    task->folders = folders;
    task->kind = kind;
    task->term = folders->leadership->terms;
    (void)snprintf(task->folder, sizeof(task->folder), "%s", folder);
    task->text = text ? strdup(text) : NULL;
    task->spec = kind == FILE_DESCRIBE ? strdup(folders->identity->spec) : NULL;
    bool whole = (!text || task->text) && (kind != FILE_DESCRIBE || task->spec);
    if (!whole) {
        free_task(task);
        return NULL;
    }
    return task;
}

static bool submit(struct kelp_checkpoint_folders *folders, struct file_task *task)
{
    if (!task) {
        return false;
    }
    if (kelp_task_thread_submit(folders->disk, &task->task) != KELP_OK) {
        free_task(task);
        return false;
    }
    return true;
}

bool kelp_checkpoint_folders_describe(struct kelp_checkpoint_folders *folders, const char *folder,
                                      const char *plan, uint64_t serial)
{
    struct file_task *task = make_task(folders, FILE_DESCRIBE, folder, plan);
    if (task) {
        task->serial = serial;
    }
    return submit(folders, task);
}

bool kelp_checkpoint_folders_manifest(struct kelp_checkpoint_folders *folders, const char *folder,
                                      const char *text)
{
    return submit(folders, make_task(folders, FILE_MANIFEST, folder, text));
}

bool kelp_checkpoint_folders_remove(struct kelp_checkpoint_folders *folders, const char *folder)
{
    return submit(folders, make_task(folders, FILE_REMOVE, folder, NULL));
}

bool kelp_checkpoint_folders_set_aside(struct kelp_checkpoint_folders *folders, const char *folder)
{
    return submit(folders, make_task(folders, FILE_SET_ASIDE, folder, NULL));
}

/* ---- manifests ---- */

static void fill_parts(const struct kelp_checkpointer *from, const uint32_t *places,
                       struct kelp_manifest *manifest)
{
    for (uint32_t i = 0; i < from->map.shard_count; i++) {
        if (places[i] != KELP_MAP_NOBODY) {
            memcpy(manifest->storages[places[i]], from->shards[i].storage,
                   sizeof(manifest->storages[places[i]]));
        }
    }
    for (uint32_t i = 0; i < from->map.partition_count; i++) {
        manifest->parts[i].storage = places[from->parts[i].shard];
        manifest->parts[i].bytes = from->parts[i].bytes;
        memcpy(manifest->parts[i].digest, from->parts[i].digest, sizeof(manifest->parts[i].digest));
    }
}

static void fill(const struct kelp_checkpoint_folders *folders,
                 const struct kelp_checkpointer *from, const uint32_t *places,
                 struct kelp_manifest *manifest)
{
    const struct kelp_identity *identity = folders->identity;
    (void)snprintf(manifest->job, sizeof(manifest->job), "%s", identity->job_name);
    manifest->spec_digest = identity->spec_digest;
    manifest->version = from->saved.version;
    manifest->step = from->saved.step;
    manifest->epochs = kelp_control_word_epochs(&from->saved);
    manifest->generation = from->order.generation;
    manifest->unix_ms = kelp_unix_ms();
    const double *metric = kelp_checkpointer_metric(from, from->saved.step);
    manifest->has_metric = metric != NULL;
    if (manifest->has_metric) {
        memcpy(manifest->metric, metric, sizeof(manifest->metric));
    }
    (void)snprintf(manifest->nonce, sizeof(manifest->nonce), "%" PRIx64 "-%" PRIx64,
                   identity->incarnation, from->order.serial);
    memcpy(manifest->folder, from->order.folder, sizeof(manifest->folder));
    fill_parts(from, places, manifest);
}

kelp_status kelp_checkpoint_folders_make(const struct kelp_checkpoint_folders *folders,
                                         const struct kelp_checkpointer *from,
                                         struct kelp_committed *ret_committed,
                                         struct kelp_error *reterr)
{
    struct kelp_manifest manifest;
    char *text = NULL;
    uint32_t places[KELP_COORDINATOR_SHARDS_MAX];
    uint32_t storages = kelp_checkpointer_storages(from, places);
    kelp_status status = kelp_manifest_init(&manifest, storages, from->map.partition_count, reterr);
    if (status != KELP_OK) {
        return status;
    }
    fill(folders, from, places, &manifest);
    status = kelp_manifest_print(&manifest, &text, reterr);
    if (status == KELP_OK) {
        kelp_committed_of(&manifest, ret_committed);
        ret_committed->manifest = text;
    }
    kelp_manifest_fini(&manifest);
    return status;
}
