/*
 * Snapshots: carries out the actions of ps/core/snapshot/snapshot.h. Partitions are asked after
 * control_lock is released; a separate thread does the disk's work.
 */
#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/log/log.h"
#include "common/training/manifest.h"
#include "ps/core/snapshot/snapshot.h"
#include "ps/service/shard_service_internal.h"
#include "ps/shard/snapshot_thread.h"

_Static_assert((int)KELP_SNAPSHOT_NONE == KELP__V1__SNAPSHOT_STATE__SNAPSHOT_NONE &&
                   (int)KELP_SNAPSHOT_TAKING == KELP__V1__SNAPSHOT_STATE__SNAPSHOT_TAKING &&
                   (int)KELP_SNAPSHOT_DURABLE == KELP__V1__SNAPSHOT_STATE__SNAPSHOT_DURABLE &&
                   (int)KELP_SNAPSHOT_FAILED == KELP__V1__SNAPSHOT_STATE__SNAPSHOT_FAILED &&
                   (int)KELP_SNAPSHOT_PAST == KELP__V1__SNAPSHOT_STATE__SNAPSHOT_PAST &&
                   (int)KELP_SNAPSHOT_CAPTURED == KELP__V1__SNAPSHOT_STATE__SNAPSHOT_CAPTURED,
               "states on the wire");

/* Guarded by control_lock. */
struct kelp__service_snapshots {
    struct kelp_snapshot_thread *thread;
    char checkpoints[PATH_MAX];
    char storage[KELP_FOLDER_NAME_MAX + 1];
    char folder[KELP_FOLDER_NAME_MAX + 2]; /* of the newest order; one byte more: too long */
    struct kelp_snapshot_order order;      /* not yet given to the partitions; serial 0: none */
    /* The latest report: */
    Kelp__V1__SnapshotReport report;
    Kelp__V1__ControlWord word;
    Kelp__V1__SnapshotPart parts[KELP_PARTITIONS_MAX];
    Kelp__V1__SnapshotPart *part_pointers[KELP_PARTITIONS_MAX];
};

void kelp__service_snapshots_log(const struct kelp_snapshot_view *view)
{
    switch (view->state) {
    case KELP_SNAPSHOT_NONE:
    case KELP_SNAPSHOT_TAKING:
    case KELP_SNAPSHOT_STATE_COUNT:
        break;
    case KELP_SNAPSHOT_CAPTURED:
        kelp_log_debug("snapshot captured step=%" PRIu64 " generation=%" PRIu64, view->order.step,
                       view->order.generation);
        break;
    case KELP_SNAPSHOT_DURABLE:
        kelp_log_info("snapshot durable step=%" PRIu64 " generation=%" PRIu64 " partitions=%u",
                      view->order.step, view->order.generation, view->part_count);
        break;
    case KELP_SNAPSHOT_FAILED:
        kelp_log_warn(
            "snapshot failed step=%" PRIu64 " generation=%" PRIu64 " status=%s error=\"%s\"",
            view->order.step, view->order.generation, kelp_status_name(view->status), view->error);
        break;
    case KELP_SNAPSHOT_PAST:
        kelp_log_info("snapshot came too late step=%" PRIu64 " at=%" PRIu64, view->order.step,
                      view->step);
        break;
    }
}

/* ---- orders ---- */

void kelp__service_snapshots_set_folder(struct kelp_service *service, const char *folder)
{
    struct kelp__service_snapshots *snapshots = service->snapshots;

    (void)snprintf(snapshots->folder, sizeof(snapshots->folder), "%s", folder);
}

static kelp_status make_path(const struct kelp_service *service, const char *folder,
                             char path[PATH_MAX], struct kelp_error *reterr)
{
    const struct kelp__service_snapshots *snapshots = service->snapshots;

    if (!kelp_folder_name_valid(folder)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "'%.100s' is not the name of a checkpoint's folder", folder);
    }
    if (snapshots->checkpoints[0] == '\0') {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                         "%s was started without --run: it has no place for checkpoints",
                         service->options.id);
    }
    if (snprintf(path, PATH_MAX, "%s/%s/%s", snapshots->checkpoints, folder, snapshots->storage) >=
        PATH_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the path of the checkpoint is too long");
    }
    return KELP_OK;
}

static struct kelp_shard_event failure(uint64_t ticket, kelp_status status, const char *text)
{
    return (struct kelp_shard_event){
        .kind = KELP_SHARD_ON_SNAPSHOT_FAILED,
        .snapshot = {.ticket = ticket, .status = status, .text = text}};
}

/* Begin an order: the partitions will be told, unless there is no place to write to. */
static void begin(struct kelp_service *service, const struct kelp_snapshot_order *order)
{
    struct kelp__service_snapshots *snapshots = service->snapshots;
    struct kelp_snapshot_id id = {.generation = order->generation, .step = order->step};
    struct kelp_error error;
    char path[PATH_MAX];

    kelp_status status = make_path(service, snapshots->folder, path, &error);
    if (status != KELP_OK) {
        struct kelp_shard_event event = failure(order->serial, status, error.text);
        (void)kelp__service_control_apply(service, &event); /* cannot fail */
        return;
    }
    kelp_snapshot_thread_begin(snapshots->thread, order->serial, path, &id);
    snapshots->order = *order;
}

void kelp__service_snapshots_act(struct kelp_service *service,
                                 const struct kelp_snapshot_action *action)
{
    struct kelp__service_snapshots *snapshots = service->snapshots;

    switch (action->kind) {
    case KELP_SNAPSHOT_DO_DISCARD:
        kelp_snapshot_thread_discard(snapshots->thread, action->ticket);
        break;
    case KELP_SNAPSHOT_DO_ORDER:
        begin(service, &action->order);
        break;
    case KELP_SNAPSHOT_DO_WRITE:
        kelp_snapshot_thread_write(snapshots->thread, action->ticket, action->partition);
        break;
    case KELP_SNAPSHOT_DO_SYNC:
        kelp_snapshot_thread_sync(snapshots->thread, action->ticket);
        break;
    case KELP_SNAPSHOT_DO_REPORT: /* became KELP_SHARD_DO_REPORT */
        break;
    }
}

struct kelp_snapshot_order kelp__service_snapshots_pop_order(struct kelp_service *service)
{
    struct kelp_snapshot_order order = service->snapshots->order;

    service->snapshots->order.serial = 0;
    return order;
}

/* ---- events ---- */

bool kelp__service_snapshot_taken(uint64_t ticket, uint32_t partition,
                                  const struct kelp_control_word *word, void *user)
{
    struct kelp_shard_event event = {
        .kind = KELP_SHARD_ON_SNAPSHOT_TAKEN,
        .snapshot = {.ticket = ticket, .partition = partition, .word = word}};

    return kelp__service_control_apply_locked(user, &event) == KELP_OK;
}

void kelp__service_snapshot_past(uint64_t ticket, uint64_t step, void *user)
{
    struct kelp_shard_event event = {.kind = KELP_SHARD_ON_SNAPSHOT_PAST,
                                     .snapshot = {.ticket = ticket, .step = step}};

    (void)kelp__service_control_apply_locked(user, &event); /* cannot fail */
}

void kelp__service_snapshot_failed(uint64_t ticket, kelp_status status, const char *text,
                                   void *user)
{
    struct kelp_shard_event event = failure(ticket, status, text);

    (void)kelp__service_control_apply_locked(user, &event); /* cannot fail */
}

static void on_written(uint64_t ticket, uint32_t partition, const char *digest, uint64_t bytes,
                       void *user)
{
    struct kelp_shard_event event = {
        .kind = KELP_SHARD_ON_SNAPSHOT_WRITTEN,
        .snapshot = {.ticket = ticket, .partition = partition, .digest = digest, .bytes = bytes}};

    (void)kelp__service_control_apply_locked(user, &event); /* cannot fail */
}

static bool on_synced(uint64_t ticket, void *user)
{
    struct kelp_shard_event event = {.kind = KELP_SHARD_ON_SNAPSHOT_SYNCED,
                                     .snapshot = {.ticket = ticket}};

    return kelp__service_control_apply_locked(user, &event) == KELP_OK;
}

static const struct kelp_snapshot_thread_events thread_events = {
    .written = on_written, .synced = on_synced, .failed = kelp__service_snapshot_failed};

/* ---- reports ---- */

Kelp__V1__SnapshotReport *kelp__service_snapshots_report(struct kelp_service *service,
                                                         const struct kelp_snapshot_view *view)
{
    struct kelp__service_snapshots *snapshots = service->snapshots;
    Kelp__V1__SnapshotReport *report = &snapshots->report;

    if (view->state == KELP_SNAPSHOT_NONE) {
        return NULL;
    }
    kelp__v1__snapshot_report__init(report);
    report->serial = view->order.serial;
    report->generation = view->order.generation;
    report->step = view->order.step;
    report->state = (Kelp__V1__SnapshotState)view->state;
    report->status = view->status;
    report->error = (char *)(uintptr_t)view->error; /* only read */
    report->current_step = view->step;
    if (view->part_count > 0) {
        report->storage = snapshots->storage;
    }
    for (uint32_t i = 0; i < view->part_count; i++) {
        kelp__v1__snapshot_part__init(&snapshots->parts[i]);
        snapshots->parts[i].partition = view->parts[i].partition;
        snapshots->parts[i].digest = (char *)(uintptr_t)view->parts[i].digest; /* only read */
        snapshots->parts[i].bytes = view->parts[i].bytes;
        snapshots->part_pointers[i] = &snapshots->parts[i];
    }
    report->n_part = view->part_count;
    report->part = snapshots->part_pointers;
    if (view->has_word) {
        kelp_wire_put_word(&view->word, &snapshots->word);
        report->word = &snapshots->word;
    }
    return report;
}

/* ---- life ---- */

static kelp_status name_folders(const struct kelp_service_options *options,
                                struct kelp__service_snapshots *snapshots,
                                struct kelp_error *reterr)
{
    int length = snprintf(snapshots->storage, sizeof(snapshots->storage), "%s.%016" PRIx64,
                          options->id, options->incarnation);

    if (length >= (int)sizeof(snapshots->storage) || !kelp_folder_name_valid(snapshots->storage)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "'%s' cannot name a folder: letters, digits, '-', '_', '.'", options->id);
    }
    if (options->run[0] == '\0') {
        return KELP_OK;
    }
    if (options->run[0] != '/') {
        return kelp_fail(reterr, KELP_ERR_INVALID, "the run's folder '%s' must be an absolute path",
                         options->run);
    }
    if (snprintf(snapshots->checkpoints, PATH_MAX, "%s/%s", options->run,
                 KELP_CHECKPOINTS_FOLDER) >= PATH_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the path of the run's folder is too long");
    }
    return KELP_OK;
}

kelp_status kelp__service_snapshots_open(struct kelp_service *service, struct kelp_error *reterr)
{
    struct kelp__service_snapshots *snapshots = calloc(1, sizeof(*snapshots));

    if (!snapshots) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for snapshots");
    }
    service->snapshots = snapshots;
    kelp_status status = name_folders(&service->options, snapshots, reterr);
    if (status != KELP_OK) {
        return status;
    }
    struct kelp_snapshot_thread_options options = {.shard = service->shard,
                                                   .checkpoints = snapshots->checkpoints,
                                                   .shard_id = service->options.id,
                                                   .events = &thread_events,
                                                   .user = service};
    return kelp_snapshot_thread_start(&options, &snapshots->thread, reterr);
}

void kelp__service_snapshots_stop(struct kelp_service *service)
{
    if (service->snapshots) {
        kelp_snapshot_thread_stop(service->snapshots->thread);
        service->snapshots->thread = NULL;
    }
}

void kelp__service_snapshots_close(struct kelp_service *service)
{
    free(service->snapshots);
}
