/*
 * Snapshots: orders in, reports out. What is to be done follows from ps/core/snapshot.h, which is
 * asked under control_lock; the partitions are asked without it, and the disk by a thread of its
 * own.
 */
#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/training/manifest.h"
#include "ps/core/snapshot.h"
#include "ps/service/service_internal.h"
#include "ps/shard/snapshot_thread.h"

_Static_assert((int)KELP_SNAPSHOT_NONE == KELP__V1__SNAPSHOT_STATE__SNAPSHOT_NONE &&
                   (int)KELP_SNAPSHOT_TAKING == KELP__V1__SNAPSHOT_STATE__SNAPSHOT_TAKING &&
                   (int)KELP_SNAPSHOT_DURABLE == KELP__V1__SNAPSHOT_STATE__SNAPSHOT_DURABLE &&
                   (int)KELP_SNAPSHOT_FAILED == KELP__V1__SNAPSHOT_STATE__SNAPSHOT_FAILED &&
                   (int)KELP_SNAPSHOT_PAST == KELP__V1__SNAPSHOT_STATE__SNAPSHOT_PAST,
               "states on the wire");

struct kelp__service_snapshots {
    /* Held while an order goes to the partitions, so that they hear orders in the order in which
     * they were taken. Taken before control_lock and before any partition's lock. */
    pthread_mutex_t orders_lock;
    struct kelp_snapshot *core; /* control_lock guards it, and everything below */
    struct kelp_snapshot_thread *thread;
    char checkpoints[PATH_MAX];
    char storage[KELP_FOLDER_NAME_MAX + 1];
    /* Of the latest report: */
    Kelp__V1__SnapshotReport report;
    Kelp__V1__ControlWord word;
    Kelp__V1__SnapshotPart parts[KELP_PARTITIONS_MAX];
    Kelp__V1__SnapshotPart *part_pointers[KELP_PARTITIONS_MAX];
};

/* ---- what follows ------------------------------------------------------------------------------
 */

static void log_state(const struct kelp__service_snapshots *snapshots)
{
    struct kelp_snapshot_view view;

    kelp_snapshot_view(snapshots->core, &view);
    switch (view.state) {
    case KELP_SNAPSHOT_NONE:
    case KELP_SNAPSHOT_TAKING:
    case KELP_SNAPSHOT_STATE_COUNT:
        break;
    case KELP_SNAPSHOT_DURABLE:
        kelp_log_info("snapshot durable step=%" PRIu64 " generation=%" PRIu64 " partitions=%u",
                      view.order.step, view.order.generation, view.part_count);
        break;
    case KELP_SNAPSHOT_FAILED:
        kelp_log_warn(
            "snapshot failed step=%" PRIu64 " generation=%" PRIu64 " status=%s error=\"%s\"",
            view.order.step, view.order.generation, kelp_status_name(view.status), view.error);
        break;
    case KELP_SNAPSHOT_PAST:
        kelp_log_info("snapshot came too late step=%" PRIu64 " at=%" PRIu64, view.order.step,
                      view.step);
        break;
    }
}

/* The lock is held. *ret_order gets what is to be handed to the partitions, if anything is. */
static void carry_out(struct kelp_service *service, const struct kelp_snapshot_actions *actions,
                      struct kelp_snapshot_order *ret_order)
{
    struct kelp__service_snapshots *snapshots = service->snapshots;

    for (uint32_t i = 0; i < actions->count; i++) {
        const struct kelp_snapshot_action *action = &actions->items[i];
        switch (action->kind) {
        case KELP_SNAPSHOT_DO_DISCARD:
            kelp_snapshot_thread_discard(snapshots->thread, action->ticket);
            break;
        case KELP_SNAPSHOT_DO_ORDER:
            assert(ret_order); /* by an order alone */
            *ret_order = action->order;
            break;
        case KELP_SNAPSHOT_DO_WRITE:
            kelp_snapshot_thread_write(snapshots->thread, action->ticket, action->partition);
            break;
        case KELP_SNAPSHOT_DO_SYNC:
            kelp_snapshot_thread_sync(snapshots->thread, action->ticket);
            break;
        case KELP_SNAPSHOT_DO_REPORT:
            log_state(snapshots);
            kelp__service_control_report(service);
            break;
        }
    }
}

/* ---- orders ------------------------------------------------------------------------------------
 */

static kelp_status make_path(const struct kelp_service *service, const char *folder,
                             char path[PATH_MAX], struct kelp_error *reterr)
{
    const struct kelp__service_snapshots *snapshots = service->snapshots;

    if (!kelp_folder_name_valid(folder)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "'%.100s' is no name of a checkpoint's folder",
                         folder);
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

static void give_up(struct kelp_service *service, const Kelp__V1__SnapshotOrder *order)
{
    struct kelp_snapshot_actions actions = {.count = 0};

    (void)pthread_mutex_lock(&service->control_lock);
    kelp_snapshot_give_up(service->snapshots->core, order->generation, order->serial, &actions);
    carry_out(service, &actions, NULL);
    (void)pthread_mutex_unlock(&service->control_lock);
}

/* The lock is held. serial 0: nothing is to be handed to the partitions. */
static struct kelp_snapshot_order take_order(struct kelp_service *service,
                                             const struct kelp_snapshot_order *order,
                                             const char *folder)
{
    struct kelp__service_snapshots *snapshots = service->snapshots;
    struct kelp_snapshot_actions actions = {.count = 0};
    struct kelp_snapshot_order hand_out = {.serial = 0};
    struct kelp_snapshot_id id = {.generation = order->generation, .step = order->step};
    struct kelp_error error;
    char path[PATH_MAX];

    if (kelp_snapshot_order(snapshots->core, order, &actions) != KELP_OK) {
        kelp_log_debug("snapshot order of an older generation ignored generation=%" PRIu64,
                       order->generation);
        return hand_out;
    }
    carry_out(service, &actions, &hand_out);
    if (hand_out.serial == 0) {
        return hand_out;
    }
    uint64_t ticket = hand_out.serial;
    kelp_status status = make_path(service, folder, path, &error);
    if (status == KELP_OK) {
        kelp_snapshot_thread_begin(snapshots->thread, ticket, path, &id);
    } else {
        actions.count = 0;
        kelp_snapshot_failed(snapshots->core, ticket, status, error.text, &actions);
        carry_out(service, &actions, NULL);
        hand_out.serial = 0;
    }
    return hand_out;
}

void kelp__service_snapshots_order(struct kelp_service *service,
                                   const Kelp__V1__SnapshotOrder *order)
{
    struct kelp_snapshot_order wanted = {
        .serial = order->serial, .generation = order->generation, .step = order->step};

    if (order->give_up) {
        give_up(service, order);
        return;
    }
    struct kelp__service_turn *turn = kelp__service_turn_take(service);
    if (!turn) {
        kelp_log_warn("snapshot order not taken: out of memory"); /* the leader sees no report */
        return;
    }
    (void)pthread_mutex_lock(&service->snapshots->orders_lock);
    (void)pthread_mutex_lock(&service->control_lock);
    struct kelp_snapshot_order hand_out = take_order(service, &wanted, order->folder);
    (void)pthread_mutex_unlock(&service->control_lock);
    if (hand_out.serial != 0) {
        kelp_shard_snapshot(service->shard, &hand_out, kelp__service_turn_shard(turn));
    }
    (void)pthread_mutex_unlock(&service->snapshots->orders_lock);
    kelp__service_turn_finish(service, turn);
}

void kelp__service_snapshots_cancel(struct kelp_service *service)
{
    struct kelp_snapshot_actions actions = {.count = 0};

    kelp_snapshot_cancel(service->snapshots->core, KELP_ERR_OLD_GENERATION,
                         "a newer generation is being loaded", &actions);
    carry_out(service, &actions, NULL);
}

void kelp__service_snapshots_generation(struct kelp_service *service, uint64_t generation,
                                        const uint32_t *partitions, uint32_t count)
{
    struct kelp_snapshot_actions actions = {.count = 0};

    kelp_snapshot_generation(service->snapshots->core, generation, partitions, count, &actions);
    carry_out(service, &actions, NULL);
}

/* ---- events ------------------------------------------------------------------------------------
 */

bool kelp__service_snapshot_taken(uint64_t ticket, uint32_t partition,
                                  const struct kelp_control_word *word, void *user)
{
    struct kelp_service *service = user;
    struct kelp_snapshot_actions actions = {.count = 0};

    (void)pthread_mutex_lock(&service->control_lock);
    bool wanted = kelp_snapshot_taken(service->snapshots->core, ticket, partition, word, &actions);
    carry_out(service, &actions, NULL);
    (void)pthread_mutex_unlock(&service->control_lock);
    return wanted;
}

void kelp__service_snapshot_past(uint64_t ticket, uint64_t step, void *user)
{
    struct kelp_service *service = user;
    struct kelp_snapshot_actions actions = {.count = 0};

    (void)pthread_mutex_lock(&service->control_lock);
    kelp_snapshot_past(service->snapshots->core, ticket, step, &actions);
    carry_out(service, &actions, NULL);
    (void)pthread_mutex_unlock(&service->control_lock);
}

void kelp__service_snapshot_failed(uint64_t ticket, kelp_status status, const char *text,
                                   void *user)
{
    struct kelp_service *service = user;
    struct kelp_snapshot_actions actions = {.count = 0};

    (void)pthread_mutex_lock(&service->control_lock);
    kelp_snapshot_failed(service->snapshots->core, ticket, status, text, &actions);
    carry_out(service, &actions, NULL);
    (void)pthread_mutex_unlock(&service->control_lock);
}

static void on_written(uint64_t ticket, uint32_t partition, const char *digest, uint64_t bytes,
                       void *user)
{
    struct kelp_service *service = user;
    struct kelp_snapshot_actions actions = {.count = 0};

    (void)pthread_mutex_lock(&service->control_lock);
    kelp_snapshot_written(service->snapshots->core, ticket, partition, digest, bytes, &actions);
    carry_out(service, &actions, NULL);
    (void)pthread_mutex_unlock(&service->control_lock);
}

static bool on_synced(uint64_t ticket, void *user)
{
    struct kelp_service *service = user;
    struct kelp_snapshot_actions actions = {.count = 0};

    (void)pthread_mutex_lock(&service->control_lock);
    bool wanted = kelp_snapshot_synced(service->snapshots->core, ticket, &actions);
    carry_out(service, &actions, NULL);
    (void)pthread_mutex_unlock(&service->control_lock);
    return wanted;
}

static const struct kelp_snapshot_thread_events thread_events = {
    .written = on_written, .synced = on_synced, .failed = kelp__service_snapshot_failed};

/* ---- reports -----------------------------------------------------------------------------------
 */

Kelp__V1__SnapshotReport *kelp__service_snapshots_report(struct kelp_service *service)
{
    struct kelp__service_snapshots *snapshots = service->snapshots;
    Kelp__V1__SnapshotReport *report = &snapshots->report;
    struct kelp_snapshot_view view;

    kelp_snapshot_view(snapshots->core, &view);
    if (view.state == KELP_SNAPSHOT_NONE) {
        return NULL;
    }
    kelp__v1__snapshot_report__init(report);
    report->serial = view.order.serial;
    report->generation = view.order.generation;
    report->step = view.order.step;
    report->state = (Kelp__V1__SnapshotState)view.state;
    report->status = view.status;
    report->error = (char *)(uintptr_t)view.error; /* only read */
    report->current_step = view.step;
    if (view.part_count > 0) {
        report->storage = snapshots->storage;
    }
    for (uint32_t i = 0; i < view.part_count; i++) {
        kelp__v1__snapshot_part__init(&snapshots->parts[i]);
        snapshots->parts[i].partition = view.parts[i].partition;
        snapshots->parts[i].digest = (char *)(uintptr_t)view.parts[i].digest; /* only read */
        snapshots->parts[i].bytes = view.parts[i].bytes;
        snapshots->part_pointers[i] = &snapshots->parts[i];
    }
    report->n_part = view.part_count;
    report->part = snapshots->part_pointers;
    if (view.has_word) {
        kelp_wire_put_word(&view.word, &snapshots->word);
        report->word = &snapshots->word;
    }
    return report;
}

/* ---- life --------------------------------------------------------------------------------------
 */

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
    (void)pthread_mutex_init(&snapshots->orders_lock, NULL);
    service->snapshots = snapshots;
    kelp_status status = name_folders(&service->options, snapshots, reterr);
    if (status == KELP_OK) {
        status = kelp_snapshot_create(&snapshots->core, reterr);
    }
    if (status == KELP_OK) {
        struct kelp_snapshot_thread_options options = {.shard = service->shard,
                                                       .checkpoints = snapshots->checkpoints,
                                                       .shard_id = service->options.id,
                                                       .events = &thread_events,
                                                       .user = service};
        status = kelp_snapshot_thread_start(&options, &snapshots->thread, reterr);
    }
    return status;
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
    if (service->snapshots) {
        kelp_snapshot_destroy(service->snapshots->core);
        (void)pthread_mutex_destroy(&service->snapshots->orders_lock);
        free(service->snapshots);
    }
}
