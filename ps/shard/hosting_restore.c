/*
 * Restores a generation's state from a checkpoint. Each storage that the manifest names is opened
 * once, and the partitions hosted here are read from it, whichever shard wrote them. Missing files
 * are waited for; files that are wrong are damage.
 */
#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

#include "ps/shard/hosting_internal.h"
#include "ps/storage/snapshot_store.h"

struct restoring {
    struct kelp_hosting *hosting;
    const struct kelp_hosting_restore *restore;
    struct kelp_control_state control; /* valid once partition 0 was read */
};

static const struct kelp_manifest_part *part_of(const struct restoring *restoring,
                                                const struct hosted *hosted)
{
    return &restoring->restore->manifest->parts[hosted->index];
}

static kelp_status read_control(struct restoring *restoring, const unsigned char *bytes,
                                struct kelp_error *reterr)
{
    const struct kelp_manifest *manifest = restoring->restore->manifest;
    struct kelp_control_state *control = &restoring->control;
    kelp_status status = kelp_control_unpack(bytes, restoring->hosting->job,
                                             restoring->hosting->plan, control, reterr);

    if (status != KELP_OK) {
        return status;
    }
    if (!kelp_control_packed_at(bytes, manifest->version, manifest->step)) {
        return kelp_fail(reterr, KELP_ERR_CORRUPT,
                         "the state is of version %" PRIu64 ", step %" PRIu64
                         "; the manifest says version %" PRIu64 ", step %" PRIu64,
                         control->version, control->step, manifest->version, manifest->step);
    }
    return KELP_OK;
}

static kelp_status read_items(struct restoring *restoring, struct kelp_snapshot_reader *reader,
                              const struct hosted *hosted, struct kelp_error *reterr)
{
    const bool holds_control = hosted->index == 0;
    const size_t bytes = kelp_extent_bytes(hosted->extent);
    unsigned char control[KELP_CONTROL_BYTES];
    kelp_status status = kelp_snapshot_reader_part(reader, hosted->index, reterr);

    if (status == KELP_OK && holds_control) {
        status = kelp_snapshot_reader_item(reader, KELP_SNAPSHOT_CONTROL, control, sizeof(control),
                                           reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_snapshot_reader_item(reader, KELP_SNAPSHOT_WEIGHTS,
                                       kelp_extent_current(hosted->extent), bytes, reterr);
    for (uint32_t i = 0; status == KELP_OK && i < kelp_extent_slot_count(hosted->extent); i++) {
        status = kelp_snapshot_reader_item(reader, KELP_SNAPSHOT_SLOT + i,
                                           kelp_extent_slot(hosted->extent, i), bytes, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_snapshot_reader_check(reader, part_of(restoring, hosted)->digest, reterr);
    return status == KELP_OK && holds_control ? read_control(restoring, control, reterr) : status;
}

static kelp_status read_part(struct restoring *restoring, struct kelp_snapshot_reader *reader,
                             const struct hosted *hosted, struct kelp_error *reterr)
{
    kelp_status status = read_items(restoring, reader, hosted, reterr);

    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "partition %u", hosted->index);
    }
    return status;
}

/* Joiners are not read: they get a copy from their primary. */
static bool is_read(const struct restoring *restoring, const struct hosted *hosted,
                    uint32_t storage)
{
    return hosted->entry.place != KELP_REPLICA_JOINER &&
           part_of(restoring, hosted)->storage == storage;
}

static kelp_status read_storage(struct restoring *restoring, uint32_t storage,
                                struct kelp_error *reterr)
{
    const struct kelp_manifest *manifest = restoring->restore->manifest;
    struct kelp_snapshot_id id = {.generation = manifest->generation, .step = manifest->step};
    struct kelp_snapshot_reader *reader = NULL;
    const struct hosted *hosted;
    uint32_t at = 0;
    char path[PATH_MAX];

    if (snprintf(path, sizeof(path), "%s/%s/%s/%s", restoring->restore->run,
                 KELP_CHECKPOINTS_FOLDER, manifest->folder,
                 manifest->storages[storage]) >= (int)sizeof(path)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the path of the run's folder is too long");
    }
    kelp_status status = kelp_snapshot_reader_open(path, &id, &reader, reterr);
    while (status == KELP_OK && (hosted = kelp__hosting_next(restoring->hosting, &at)) != NULL) {
        if (is_read(restoring, hosted, storage)) {
            status = read_part(restoring, reader, hosted, reterr);
        }
    }
    kelp_snapshot_reader_close(reader);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "checkpoint %s, storage %s", manifest->folder,
                          manifest->storages[storage]);
    }
    return status;
}

/* Parts whose sizes do not fit this job are not damage: no other checkpoint would fit either, so
 * none may be given up for it. */
static kelp_status check_sizes(const struct restoring *restoring, struct kelp_error *reterr)
{
    const struct hosted *hosted;
    uint32_t at = 0;

    while ((hosted = kelp__hosting_next(restoring->hosting, &at)) != NULL) {
        uint64_t arrays = 1 + (uint64_t)kelp_extent_slot_count(hosted->extent);
        uint64_t bytes = hosted->range.count * sizeof(float) * arrays +
                         (hosted->index == 0 ? KELP_CONTROL_BYTES : 0);
        if (part_of(restoring, hosted)->bytes != bytes) {
            return kelp_fail(reterr, KELP_ERR_MISMATCH,
                             "checkpoint %s has %" PRIu64 " bytes of partition %u, this job's "
                             "model and optimizer have %" PRIu64 ": it belongs to another job",
                             restoring->restore->manifest->folder,
                             part_of(restoring, hosted)->bytes, hosted->index, bytes);
        }
    }
    return KELP_OK;
}

static bool needs_storage(const struct restoring *restoring, uint32_t storage)
{
    const struct hosted *hosted;
    uint32_t at = 0;

    while ((hosted = kelp__hosting_next(restoring->hosting, &at)) != NULL) {
        if (is_read(restoring, hosted, storage)) {
            return true;
        }
    }
    return false;
}

static kelp_status read_storages(struct restoring *restoring, struct kelp_error *reterr)
{
    const struct kelp_hosting_restore *restore = restoring->restore;
    kelp_status status = KELP_OK;

    for (uint32_t i = 0; status == KELP_OK && i < restore->manifest->storage_count; i++) {
        if (!needs_storage(restoring, i)) {
            continue;
        }
        struct kelp_error error = {.text = ""};
        do {
            status = read_storage(restoring, i, &error);
        } while (status == KELP_ERR_NOT_FOUND && restore->wait(error.text, restore->user));
        if (status != KELP_OK && reterr) {
            *reterr = error;
        }
    }
    return status;
}

static void load(struct restoring *restoring)
{
    struct kelp_hosting *hosting = restoring->hosting;
    const struct kelp_manifest *manifest = restoring->restore->manifest;

    /* Partitions other than 0 learn versions from words, and must not start at too late a
     * version: if the job was made longer, there are fewer entries at its former end. */
    uint64_t next = kelp_control_version_after(hosting->job, hosting->plan, manifest->step);
    uint64_t version = manifest->version < next ? manifest->version : next;
    const struct hosted *hosted;
    uint32_t at = 0;

    while ((hosted = kelp__hosting_next(hosting, &at)) != NULL) {
        struct kelp_partition_start start = {.step = manifest->step, .version = version};
        if (hosted->entry.place == KELP_REPLICA_JOINER) {
            start = (struct kelp_partition_start){.step = 0};
        } else if (hosted->index == 0) {
            start.version = restoring->control.version;
            start.control = &restoring->control;
        }
        kelp__hosted_load(hosting, hosted, &start);
    }
}

kelp_status kelp__hosting_restore(struct kelp_hosting *hosting,
                                  const struct kelp_hosting_restore *restore,
                                  struct kelp_error *reterr)
{
    struct restoring restoring = {.hosting = hosting, .restore = restore};
    const struct kelp_manifest *manifest = restore->manifest;

    if (restore->run[0] == '\0') {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                         "checkpoint %s: no place for checkpoints: start with --run",
                         manifest->folder);
    }
    if (manifest->part_count != hosting->partition_count) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH,
                         "checkpoint %s has %u partitions, this job's model %u", manifest->folder,
                         manifest->part_count, hosting->partition_count);
    }
    kelp_status status = check_sizes(&restoring, reterr);
    if (status == KELP_OK) {
        status = read_storages(&restoring, reterr);
    }
    if (status == KELP_OK) {
        load(&restoring);
    }
    return status;
}
