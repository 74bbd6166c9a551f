#include "cli/checkpoint/checkpoint_read.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/verb/job_load.h"
#include "common/base/files.h"
#include "common/base/text.h"
#include "ps/storage/snapshot_store.h"

#define CHECKPOINTS_MAX 65536 /* folders of one run; retention keeps far fewer */

/* ---- one checkpoint ------------------------------------------------------------------------ */

/* "<checkpoint>/<name>". */
static kelp_status path_of(const struct kelp_checkpoint *checkpoint, const char *name, char *path,
                           size_t path_bytes, struct kelp_error *reterr)
{
    int length = snprintf(path, path_bytes, "%s/%s", checkpoint->path, name);

    if (length < 0 || (size_t)length >= path_bytes) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the path of checkpoint %s is too long",
                         checkpoint->name);
    }
    return KELP_OK;
}

static kelp_status read_file(const struct kelp_checkpoint *checkpoint, const char *name,
                             size_t bytes_max, char **ret_text, size_t *ret_bytes,
                             struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 256];

    kelp_status status = path_of(checkpoint, name, path, sizeof(path), reterr);
    return status != KELP_OK ? status
                             : kelp_files_read(path, bytes_max, ret_text, ret_bytes, reterr);
}

static kelp_status read_manifest(struct kelp_checkpoint *checkpoint, struct kelp_error *reterr)
{
    char *text = NULL;
    size_t text_bytes = 0;

    kelp_status status =
        read_file(checkpoint, "manifest.json", KELP_MANIFEST_BYTES_MAX, &text, &text_bytes, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_manifest_parse(text, text_bytes, &checkpoint->manifest, reterr);
    free(text);
    if (status == KELP_ERR_FORMAT) {
        kelp_error_prefix(reterr, "%s/manifest.json", checkpoint->path);
        return KELP_ERR_CORRUPT;
    }
    if (status == KELP_OK && strcmp(checkpoint->manifest.folder, checkpoint->name) != 0) {
        status =
            kelp_fail(reterr, KELP_ERR_CORRUPT,
                      "%s/manifest.json is of checkpoint %s: a checkpoint's folder keeps its "
                      "name; rename it to %s",
                      checkpoint->path, checkpoint->manifest.folder, checkpoint->manifest.folder);
        kelp_manifest_fini(&checkpoint->manifest);
    }
    return status;
}

/* Path and name of a checkpoint that may exist. */
static kelp_status set_path(struct kelp_checkpoint *checkpoint, const char *path,
                            struct kelp_error *reterr)
{
    size_t length = strlen(path);

    memset(checkpoint, 0, sizeof(*checkpoint));
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    if (length >= sizeof(checkpoint->path)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the path '%.40s…' is too long", path);
    }
    memcpy(checkpoint->path, path, length);
    const char *slash = strrchr(checkpoint->path, '/');
    const char *name = slash ? slash + 1 : checkpoint->path;
    if (!kelp_folder_name_valid(name)) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "'%s' is not a checkpoint's folder", path);
    }
    memcpy(checkpoint->name, name, strlen(name) + 1); /* a valid name fits */
    return KELP_OK;
}

kelp_status kelp_checkpoint_open(const char *path, struct kelp_checkpoint *ret_checkpoint,
                                 struct kelp_error *reterr)
{
    struct kelp_checkpoint checkpoint;

    kelp_status status = set_path(&checkpoint, path, reterr);
    if (status == KELP_OK) {
        status = read_manifest(&checkpoint, reterr);
    }
    if (status == KELP_OK) {
        *ret_checkpoint = checkpoint;
    }
    return status;
}

void kelp_checkpoint_fini(struct kelp_checkpoint *checkpoint)
{
    kelp_manifest_fini(&checkpoint->manifest);
}

uint64_t kelp_checkpoint_bytes(const struct kelp_checkpoint *checkpoint)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < checkpoint->manifest.part_count; i++) {
        bytes += checkpoint->manifest.parts[i].bytes;
    }
    return bytes;
}

static kelp_status read_job(const struct kelp_checkpoint *checkpoint,
                            struct kelp_job_file **ret_file, struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 256];
    struct kelp_job_file *file = NULL;

    kelp_status status = path_of(checkpoint, "job.yaml", path, sizeof(path), reterr);
    if (status == KELP_OK) {
        status = kelp_job_load(&(struct kelp_job_source){.path = path}, &file, reterr);
    }
    if (status == KELP_OK && kelp_job_file_digest(file) != checkpoint->manifest.spec_digest) {
        kelp_job_file_destroy(file);
        return kelp_fail(reterr, KELP_ERR_CORRUPT, "%s is not the job of its manifest", path);
    }
    if (status == KELP_OK) {
        *ret_file = file;
    }
    return status;
}

static kelp_status read_plan(const struct kelp_checkpoint *checkpoint, struct kelp_plan *ret_plan,
                             struct kelp_error *reterr)
{
    char *text = NULL;
    size_t text_bytes = 0;

    kelp_status status =
        read_file(checkpoint, "plan.json", KELP_PLAN_TEXT_MAX, &text, &text_bytes, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_plan_parse(text, text_bytes, ret_plan, reterr);
    free(text);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "%s/plan.json", checkpoint->path);
        return status;
    }
    if (ret_plan->partition_count != checkpoint->manifest.part_count) {
        status =
            kelp_fail(reterr, KELP_ERR_CORRUPT, "%s/plan.json has %u partitions, its manifest %u",
                      checkpoint->path, ret_plan->partition_count, checkpoint->manifest.part_count);
        kelp_plan_fini(ret_plan);
    }
    return status;
}

kelp_status kelp_checkpoint_job(const struct kelp_checkpoint *checkpoint,
                                struct kelp_job_file **ret_file, struct kelp_plan *ret_plan,
                                struct kelp_error *reterr)
{
    struct kelp_job_file *file = NULL;

    kelp_status status = read_job(checkpoint, &file, reterr);
    if (status == KELP_OK) {
        status = read_plan(checkpoint, ret_plan, reterr);
    }
    if (status != KELP_OK) {
        kelp_job_file_destroy(file);
        return status;
    }
    *ret_file = file;
    return KELP_OK;
}

/* ---- all of a run -------------------------------------------------------------------------- */

static int by_step(const void *left, const void *right)
{
    const struct kelp_checkpoint *a = left;
    const struct kelp_checkpoint *b = right;

    if (a->manifest.step != b->manifest.step) {
        return a->manifest.step < b->manifest.step ? -1 : 1;
    }
    if (a->manifest.version != b->manifest.version) {
        return a->manifest.version < b->manifest.version ? -1 : 1;
    }
    return strcmp(a->name, b->name);
}

static kelp_status add(struct kelp_checkpoints *list, size_t *capacity, const char *path,
                       struct kelp_error *reterr)
{
    struct kelp_checkpoint checkpoint;

    kelp_status status = set_path(&checkpoint, path, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = read_manifest(&checkpoint, &checkpoint.fault);
    if (status == KELP_ERR_NOT_FOUND) {
        return KELP_OK; /* not committed, or just removed */
    }
    checkpoint.fault.status = status;
    if (status == KELP_ERR_NO_MEMORY || list->count == CHECKPOINTS_MAX) {
        kelp_checkpoint_fini(&checkpoint);
        return kelp_fail(reterr, status != KELP_OK ? status : KELP_ERR_LIMIT,
                         "too many checkpoints: %s", path);
    }
    if (list->count == *capacity) {
        size_t wanted = *capacity == 0 ? 16 : 2 * *capacity;
        struct kelp_checkpoint *items = realloc(list->items, wanted * sizeof(*items));
        if (!items) {
            kelp_checkpoint_fini(&checkpoint);
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
        }
        list->items = items;
        *capacity = wanted;
    }
    list->items[list->count++] = checkpoint;
    return KELP_OK;
}

static kelp_status add_all(struct kelp_checkpoints *list, DIR *folder, const char *folder_path,
                           struct kelp_error *reterr)
{
    size_t capacity = 0;
    const struct dirent *entry;

    while ((errno = 0, entry = readdir(folder)) != NULL) {
        char path[KELP_RUN_PATH_MAX + 512];
        if (!kelp_folder_name_valid(entry->d_name)) {
            continue;
        }
        (void)snprintf(path, sizeof(path), "%s/%s", folder_path, entry->d_name);
        kelp_status status = add(list, &capacity, path, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    return errno == 0 ? KELP_OK : kelp_files_error(errno, "read", folder_path, reterr);
}

kelp_status kelp_checkpoints_list(const char *run_path, struct kelp_checkpoints *ret_list,
                                  struct kelp_error *reterr)
{
    struct kelp_checkpoints list = {.count = 0};
    char path[KELP_RUN_PATH_MAX + 64];

    kelp_status status =
        kelp_run_dir_path(run_path, KELP_CHECKPOINTS_FOLDER, path, sizeof(path), reterr);
    if (status != KELP_OK) {
        return status;
    }
    DIR *folder = opendir(path);
    if (!folder && errno != ENOENT) {
        return kelp_files_error(errno, "open", path, reterr);
    }
    if (folder) {
        status = add_all(&list, folder, path, reterr);
        (void)closedir(folder);
    }
    if (status != KELP_OK) {
        kelp_checkpoints_fini(&list);
        return status;
    }
    if (list.count > 0) {
        qsort(list.items, list.count, sizeof(*list.items), by_step);
    }
    *ret_list = list;
    return KELP_OK;
}

void kelp_checkpoints_fini(struct kelp_checkpoints *list)
{
    for (size_t i = 0; i < list->count; i++) {
        kelp_checkpoint_fini(&list->items[i]);
    }
    free(list->items);
    memset(list, 0, sizeof(*list));
}

kelp_status kelp_checkpoints_find(const struct kelp_checkpoints *list, const char *name,
                                  const struct kelp_checkpoint **ret_checkpoint,
                                  struct kelp_error *reterr)
{
    char names[256] = "";

    if (strcmp(name, "best") == 0) {
        return kelp_checkpoints_best(list, ret_checkpoint, reterr);
    }
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->items[i].name, name) == 0) {
            *ret_checkpoint = &list->items[i];
            return KELP_OK;
        }
        kelp_text_list_add(names, sizeof(names), list->items[i].name);
    }
    return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "there is no checkpoint '%s'; the run has %s",
                     name, list->count == 0 ? "none" : names);
}

const struct kelp_checkpoint *kelp_checkpoints_before(const struct kelp_checkpoints *list,
                                                      uint64_t step)
{
    for (size_t i = list->count; i > 0; i--) {
        const struct kelp_checkpoint *checkpoint = &list->items[i - 1];
        if (checkpoint->fault.status == KELP_OK && checkpoint->manifest.step <= step) {
            return checkpoint;
        }
    }
    return NULL;
}

/* ---- its parts ----------------------------------------------------------------------------- */

/* Reading one checkpoint into a state. */
struct loading {
    const struct kelp_checkpoint *checkpoint;
    struct kelp_model_state *state;
    /* Called for each fault; NULL: the first one ends the reading. */
    void (*found)(const struct kelp_checkpoint_fault *fault, void *user);
    void *user;
    uint32_t faults;
};

/* The bytes are intact: check whether they mean a state of this version. */
static kelp_status unpack_control(struct loading *loading, const unsigned char *bytes,
                                  struct kelp_error *reterr)
{
    const struct kelp_manifest *manifest = &loading->checkpoint->manifest;
    struct kelp_model_state *state = loading->state;

    kelp_status status =
        kelp_control_unpack(bytes, state->job, state->plan, &state->control, reterr);
    if (status == KELP_OK && !kelp_control_packed_at(bytes, manifest->version, manifest->step)) {
        status = kelp_fail(reterr, KELP_ERR_CORRUPT,
                           "its control state is of version %" PRIu64 ", step %" PRIu64
                           "; the manifest says version %" PRIu64 ", step %" PRIu64,
                           state->control.version, state->control.step, manifest->version,
                           manifest->step);
    }
    return status;
}

static kelp_status read_part(struct kelp_snapshot_reader *reader, struct loading *loading,
                             uint32_t partition, struct kelp_error *reterr)
{
    struct kelp_model_state *state = loading->state;
    struct kelp_slice_range range = kelp_plan_partition(state->plan, partition);
    size_t bytes = (size_t)range.count * sizeof(float);
    unsigned char control[KELP_CONTROL_BYTES];

    kelp_status status = kelp_snapshot_reader_part(reader, partition, reterr);
    if (status == KELP_OK && partition == 0) {
        status = kelp_snapshot_reader_item(reader, KELP_SNAPSHOT_CONTROL, control, sizeof(control),
                                           reterr);
    }
    if (status == KELP_OK) {
        status = kelp_snapshot_reader_item(reader, KELP_SNAPSHOT_WEIGHTS,
                                           state->weights + range.first, bytes, reterr);
    }
    for (uint32_t i = 0; status == KELP_OK && i < state->slot_count; i++) {
        status = kelp_snapshot_reader_item(reader, KELP_SNAPSHOT_SLOT + i,
                                           state->slots[i] + range.first, bytes, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_snapshot_reader_check(
            reader, loading->checkpoint->manifest.parts[partition].digest, reterr);
    }
    if (status == KELP_OK && partition == 0) {
        status = unpack_control(loading, control, reterr);
    }
    return status;
}

/* Whether the run removed the checkpoint while it was read. A removal renames it first. */
static bool gone(const struct kelp_checkpoint *checkpoint)
{
    char path[KELP_RUN_PATH_MAX + 256];

    return path_of(checkpoint, "manifest.json", path, sizeof(path), NULL) == KELP_OK &&
           access(path, F_OK) != 0 && errno == ENOENT;
}

/* A fault of a storage, or of one partition in it. Reading continues where found() is set. */
static kelp_status fault(struct loading *loading, uint32_t storage, const uint32_t *partition,
                         kelp_status status, struct kelp_error *error, struct kelp_error *reterr)
{
    const char *folder = loading->checkpoint->manifest.storages[storage];
    struct kelp_checkpoint_fault told = {.storage = folder,
                                         .has_partition = partition != NULL,
                                         .partition = partition ? *partition : 0,
                                         .text = error->text};

    if (gone(loading->checkpoint)) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "checkpoint %s has just been removed",
                         loading->checkpoint->name);
    }
    if (status == KELP_ERR_NO_MEMORY || !loading->found) {
        if (partition) {
            return kelp_fail(reterr, status, "checkpoint %s, storage %s, partition %u: %s",
                             loading->checkpoint->name, folder, *partition, error->text);
        }
        return kelp_fail(reterr, status, "checkpoint %s, storage %s: %s", loading->checkpoint->name,
                         folder, error->text);
    }
    loading->found(&told, loading->user);
    loading->faults++;
    return KELP_OK;
}

static kelp_status read_storage(struct loading *loading, uint32_t storage,
                                struct kelp_error *reterr)
{
    const struct kelp_manifest *manifest = &loading->checkpoint->manifest;
    const struct kelp_snapshot_id id = {.generation = manifest->generation, .step = manifest->step};
    struct kelp_snapshot_reader *reader = NULL;
    struct kelp_error error = {.status = KELP_OK};
    char path[KELP_RUN_PATH_MAX + 256];

    kelp_status status =
        path_of(loading->checkpoint, manifest->storages[storage], path, sizeof(path), reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_snapshot_reader_open(path, &id, &reader, &error);
    if (status != KELP_OK) {
        return fault(loading, storage, NULL, status, &error, reterr);
    }
    for (uint32_t i = 0; status == KELP_OK && i < manifest->part_count; i++) {
        if (manifest->parts[i].storage != storage) {
            continue;
        }
        status = read_part(reader, loading, i, &error);
        if (status != KELP_OK) {
            status = fault(loading, storage, &i, status, &error, reterr);
        }
    }
    kelp_snapshot_reader_close(reader);
    return status;
}

static kelp_status read_all(struct loading *loading, struct kelp_error *reterr)
{
    const struct kelp_manifest *manifest = &loading->checkpoint->manifest;
    kelp_status status = KELP_OK;

    for (uint32_t i = 0; status == KELP_OK && i < manifest->storage_count; i++) {
        status = read_storage(loading, i, reterr);
    }
    return status;
}

kelp_status kelp_checkpoint_load(const struct kelp_checkpoint *checkpoint,
                                 struct kelp_model_state *state, struct kelp_error *reterr)
{
    struct loading loading = {.checkpoint = checkpoint, .state = state};

    if (checkpoint->fault.status != KELP_OK) {
        return kelp_fail(reterr, checkpoint->fault.status, "%s", checkpoint->fault.text);
    }
    if (checkpoint->manifest.part_count != state->plan->partition_count) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH,
                         "checkpoint %s has %u partitions, the job's model %u", checkpoint->name,
                         checkpoint->manifest.part_count, state->plan->partition_count);
    }
    return read_all(&loading, reterr);
}

/* ---- verify -------------------------------------------------------------------------------- */

static void whole_fault(struct loading *loading, const char *text)
{
    struct kelp_checkpoint_fault told = {.storage = "", .text = text};

    loading->found(&told, loading->user);
    loading->faults++;
}

kelp_status kelp_checkpoint_verify(
    const struct kelp_checkpoint *checkpoint, uint32_t *ret_faults, struct kelp_error *reterr,
    void (*found)(const struct kelp_checkpoint_fault *fault, void *user), void *user)
{
    struct loading loading = {.checkpoint = checkpoint, .found = found, .user = user};
    struct kelp_error error = checkpoint->fault;
    struct kelp_job_file *file = NULL;
    struct kelp_plan plan = {.tensor_count = 0};
    struct kelp_model_state state = {.slot_count = 0};
    kelp_status status = error.status;

    if (status == KELP_OK) {
        status = kelp_checkpoint_job(checkpoint, &file, &plan, &error);
    }
    if (status == KELP_OK) {
        status = kelp_model_state_init(&state, kelp_job_file_job(file), &plan, &error);
    }
    if (status != KELP_OK && gone(checkpoint)) {
        status = kelp_fail(&error, KELP_ERR_NOT_FOUND, "checkpoint %s has just been removed",
                           checkpoint->name);
    } else if (status != KELP_OK && status != KELP_ERR_NO_MEMORY) {
        whole_fault(&loading, error.text);
        status = KELP_OK;
    } else if (status == KELP_OK) {
        loading.state = &state;
        status = read_all(&loading, &error);
    }
    kelp_model_state_fini(&state);
    kelp_plan_fini(&plan);
    kelp_job_file_destroy(file);
    if (status != KELP_OK) {
        return kelp_fail(reterr, status, "%s", error.text);
    }
    *ret_faults = loading.faults;
    return KELP_OK;
}
