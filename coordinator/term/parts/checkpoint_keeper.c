#include "coordinator/term/parts/checkpoint_keeper.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Revisions of etcd only grow, and an order takes longer than one write. */
static uint64_t first_serial(int64_t election)
{
    return (uint64_t)election << 16;
}

kelp_status kelp_keeper_init(struct kelp_keeper *keeper, const struct kelp_job *job,
                             int64_t election, struct kelp_error *reterr)
{
    const uint64_t serial = first_serial(election);
    const struct kelp_checkpointer_options options =
        job ? kelp_checkpointer_options_of(job, serial)
            : (struct kelp_checkpointer_options){.policy = {.keep_last = 1},
                                                 .first_serial = serial};
    *keeper = (struct kelp_keeper){.last_generation = 0};
    return kelp_checkpointer_init(&keeper->machine, &options, reterr);
}

void kelp_keeper_fini(struct kelp_keeper *keeper)
{
    kelp_checkpointer_fini(&keeper->machine);
    free(keeper->commit.manifest);
    *keeper = (struct kelp_keeper){.last_generation = 0};
}

const char *kelp_keeper_manifest(const struct kelp_keeper *keeper, const struct kelp_map *map)
{
    const struct kelp_committed *from =
        kelp_committed_list_find(&keeper->machine.list, map->restore_version);
    return from ? from->manifest : "";
}

/* ---- folders ---- */

static void remove_folder(const struct kelp_outside *outside, const char *folder)
{
    if (folder[0] != '\0' && !outside->effects->remove_folder(folder, outside->user)) {
        kelp_outside_log(outside, KELP_LOG_ERROR,
                         "checkpoint not removed, the next leader will folder=%s", folder);
    }
}

/* No manifest names the folder any more: its data is removed or, if it could not be restored, kept
 * for people under another name. */
static void drop_folder(const struct kelp_outside *outside, const char *folder, bool damaged)
{
    if (!damaged || folder[0] == '\0') {
        remove_folder(outside, folder);
        return;
    }
    kelp_outside_log(outside, KELP_LOG_ERROR,
                     "the checkpoint that could not be restored is kept as "
                     "checkpoints/.damaged-%s; remove it by hand",
                     folder);
    if (!outside->effects->set_aside(folder, outside->user)) {
        kelp_outside_log(outside, KELP_LOG_ERROR, "damaged checkpoint not set aside folder=%s",
                         folder);
    }
}

static void write_manifest(const struct kelp_outside *outside, const char *folder, const char *text)
{
    if (!outside->effects->write_manifest(folder, text, outside->user)) {
        kelp_outside_log(outside, KELP_LOG_ERROR, "manifest.json not written folder=%s", folder);
    }
}

/* ---- commit ---- */

static void refuse_commit(struct kelp_keeper *keeper, const struct kelp_keeper_call *call,
                          const char *text)
{
    kelp_keeper_apply(
        keeper, call,
        (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_COMMITTED,
                                         .committed = {.serial = keeper->machine.order.serial,
                                                       .result = KELP_CHECKPOINTER_REFUSED,
                                                       .text = text}});
}

/* The same manifest for each attempt at one order. */
static kelp_status keep_manifest(struct kelp_keeper *keeper, const struct kelp_keeper_call *call,
                                 struct kelp_error *reterr)
{
    const struct kelp_outside *outside = call->outside;
    struct kelp_committed made = {.version = 0};
    if (keeper->commit_serial == keeper->machine.order.serial) {
        return KELP_OK;
    }
    kelp_status status =
        outside->effects->make_manifest(&keeper->machine, &made, reterr, outside->user);
    if (status == KELP_OK) {
        free(keeper->commit.manifest);
        keeper->commit = made;
        keeper->commit_serial = keeper->machine.order.serial;
        keeper->described = false;
    }
    return status;
}

static void commit(struct kelp_keeper *keeper, const struct kelp_keeper_call *call)
{
    const struct kelp_outside *outside = call->outside;
    const struct kelp_checkpointer *machine = &keeper->machine;
    struct kelp_error error = {.text = "no memory for a manifest"};
    if (keep_manifest(keeper, call, &error) != KELP_OK) {
        refuse_commit(keeper, call, error.text);
        return;
    }
    if (!keeper->described) {
        if (!outside->effects->describe(machine->order.folder, machine->order.serial,
                                        outside->user)) {
            refuse_commit(keeper, call, "out of memory, or too much waits for the disk");
        }
        return;
    }
    struct kelp_commit wanted = {.version = machine->saved.version,
                                 .generation = machine->order.generation,
                                 .election = keeper->order_election,
                                 .serial = machine->order.serial,
                                 .manifest = keeper->commit.manifest};
    struct kelp_checkpointer_event event = {.kind = KELP_CHECKPOINTER_SENT};
    if (!call->settled || wanted.version > call->filed ||
        !outside->effects->commit(&wanted, outside->user)) {
        event.kind = KELP_CHECKPOINTER_COMMITTED;
        event.committed.serial = wanted.serial;
        event.committed.result = KELP_CHECKPOINTER_AWAY;
        event.committed.text = "";
    }
    kelp_keeper_apply(keeper, call, event);
}

void kelp_keeper_described(struct kelp_keeper *keeper, const struct kelp_keeper_call *call,
                           uint64_t serial, kelp_status status, const char *text)
{
    if (serial != keeper->machine.order.serial) {
        return;
    }
    if (status == KELP_OK) {
        keeper->described = true;
        commit(keeper, call);
    } else {
        refuse_commit(keeper, call, text);
    }
}

/* etcd has it. False: out of memory. */
static bool copy_commit(struct kelp_keeper *keeper, const struct kelp_keeper_call *call,
                        int64_t revision, struct kelp_committed *ret_committed)
{
    const struct kelp_outside *outside = call->outside;
    *ret_committed = keeper->commit;
    ret_committed->revision = revision;
    ret_committed->manifest = strdup(keeper->commit.manifest);
    if (!ret_committed->manifest) {
        kelp_outside_log(outside, KELP_LOG_ERROR,
                         "out of memory: reading the checkpoint from etcd");
        return false;
    }
    kelp_outside_log(outside, KELP_LOG_INFO,
                     "checkpoint committed step=%" PRIu64 " version=%" PRIu64 " at_step=%" PRIu64
                     " folder=%s state_digest=%s",
                     ret_committed->step, ret_committed->version, keeper->machine.word.step,
                     ret_committed->folder, ret_committed->state_digest);
    kelp_outside_tell(outside, &(struct kelp_event){.kind = KELP_EVENT_CHECKPOINT,
                                                    .generation = ret_committed->generation,
                                                    .has_step = true,
                                                    .step = ret_committed->step,
                                                    .timed = true,
                                                    .took_ms = call->now_ms - keeper->order_ms});
    write_manifest(outside, ret_committed->folder, ret_committed->manifest);
    return true;
}

bool kelp_keeper_committed(struct kelp_keeper *keeper, const struct kelp_keeper_call *call,
                           const struct kelp_commit_answer *answer)
{
    struct kelp_committed committed = {.manifest = NULL};
    struct kelp_checkpointer_event event = {
        .kind = KELP_CHECKPOINTER_COMMITTED,
        .committed = {.serial = answer->serial, .result = answer->result, .text = answer->text}};
    if (!kelp_checkpointer_awaits(&keeper->machine, answer->serial)) {
        return false; /* a generation was opened meanwhile, which decided it */
    }
    if (answer->result != KELP_CHECKPOINTER_OK) {
        kelp_outside_log(call->outside, KELP_LOG_WARN,
                         "checkpoint not committed step=%" PRIu64 " reason=\"%s\"",
                         keeper->commit.step, answer->text);
    } else if (copy_commit(keeper, call, answer->revision, &committed)) {
        event.committed.checkpoint = &committed;
    } else { /* what etcd has can be read again */
        event.committed.result = KELP_CHECKPOINTER_UNKNOWN;
    }
    kelp_keeper_apply(keeper, call, event);
    free(committed.manifest);
    return true;
}

void kelp_keeper_removed(struct kelp_keeper *keeper, const struct kelp_keeper_call *call,
                         enum kelp_checkpointer_result result, const char *text)
{
    const struct kelp_checkpointer *machine = &keeper->machine;
    const char *folder = machine->removing_folder;
    if (result == KELP_CHECKPOINTER_OK) {
        const struct kelp_committed *entry =
            kelp_committed_list_find(&machine->list, machine->removing);
        kelp_outside_log(call->outside, KELP_LOG_INFO, "checkpoint removed folder=%s", folder);
        drop_folder(call->outside, folder, entry && entry->damaged);
    } else {
        kelp_outside_log(call->outside, KELP_LOG_WARN,
                         "checkpoint not removed yet folder=%s reason=\"%s\"", folder, text);
    }
    kelp_keeper_apply(
        keeper, call,
        (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_REMOVED, .removed = result});
}

/* ---- actions ---- */

static void request(const struct kelp_keeper_call *call,
                    const struct kelp_checkpointer_action *action)
{
    struct kelp_keeper_requests *requests = call->requests;
    assert(requests->count < KELP_ARRAY_COUNT(requests->items));
    requests->items[requests->count++] = *action;
}

static void place_order(struct kelp_keeper *keeper, const struct kelp_keeper_call *call)
{
    const struct kelp_checkpointer_order *order = &keeper->machine.order;
    keeper->order_election = call->election;
    keeper->order_ms = call->now_ms;
    if (order->serial != 0) {
        kelp_outside_log(call->outside, KELP_LOG_INFO,
                         "checkpoint ordered step=%" PRIu64 " at_step=%" PRIu64 " folder=%s",
                         order->step, keeper->machine.word.step, order->folder);
    }
}

static void remove_version(struct kelp_keeper *keeper, const struct kelp_keeper_call *call,
                           uint64_t version)
{
    const struct kelp_outside *outside = call->outside;
    if (!call->settled) {
        kelp_keeper_removed(keeper, call, KELP_CHECKPOINTER_AWAY,
                            "what etcd holds is not compared yet");
    } else if (!outside->effects->remove(version, outside->user)) {
        kelp_keeper_removed(keeper, call, KELP_CHECKPOINTER_AWAY, "out of memory");
    }
}

static void carry_out(struct kelp_keeper *keeper, const struct kelp_keeper_call *call,
                      const struct kelp_checkpointer_action *action)
{
    const struct kelp_outside *outside = call->outside;
    switch (action->kind) {
    case KELP_CHECKPOINTER_DO_SAY:
        kelp_outside_log(outside, KELP_LOG_ERROR, "%s", action->text);
        kelp_outside_tell(outside,
                          &(struct kelp_event){.kind = KELP_EVENT_CHECKPOINT_FAILED,
                                               .generation = keeper->machine.map.generation,
                                               .why = action->text});
        break;
    case KELP_CHECKPOINTER_DO_DISCARD:
        remove_folder(outside, action->folder);
        break;
    case KELP_CHECKPOINTER_DO_ORDER:
        place_order(keeper, call);
        request(call, action);
        break;
    case KELP_CHECKPOINTER_DO_REMOVE:
        remove_version(keeper, call, action->version);
        break;
    case KELP_CHECKPOINTER_DO_COMMIT:
        commit(keeper, call);
        break;
    case KELP_CHECKPOINTER_DO_RESTORE:
    case KELP_CHECKPOINTER_DO_FAIL:
    case KELP_CHECKPOINTER_DO_END:
    case KELP_CHECKPOINTER_DO_PAUSE:
        request(call, action);
        break;
    case KELP_CHECKPOINTER_ACTION_COUNT:
        break;
    }
}

void kelp_keeper_apply(struct kelp_keeper *keeper, const struct kelp_keeper_call *call,
                       struct kelp_checkpointer_event event)
{
    struct kelp_error error = {.text = ""};
    struct kelp_checkpointer_actions actions;
    event.now_ms = call->now_ms;
    event.changes = call->changes;
    kelp_status status = kelp_checkpointer_apply(&keeper->machine, &event, &actions, &error);
    if (status != KELP_OK) {
        kelp_outside_log(call->outside, KELP_LOG_ERROR, "checkpoints refused an event error=\"%s\"",
                         error.text);
    }
    for (uint32_t i = 0; i < actions.count; i++) {
        carry_out(keeper, call, &actions.items[i]);
    }
}

/* ---- events ---- */

/* A known manifest is gone because a transaction of ours removed it whose answer was lost, which
 * could not be told at the time. So its data may be removed. An etcd that lost everything has
 * removed nothing, and the next leader imports what the folders hold. */
static void remove_gone(const struct kelp_keeper *keeper, const struct kelp_outside *outside,
                        const struct kelp_found *found)
{
    const struct kelp_committed_list *list = &keeper->machine.list;
    for (uint32_t i = 0; i < list->count && found->map.generation > 0; i++) {
        const struct kelp_committed *entry = &list->entries[i];
        if (kelp_committed_gone(entry, found->checkpoints, found->checkpoint_count)) {
            kelp_outside_log(outside, KELP_LOG_INFO, "checkpoint is out of etcd folder=%s",
                             entry->folder);
            drop_folder(outside, entry->folder, entry->damaged);
        }
    }
}

/* The metrics of earlier checkpoints whose manifests were written before their evaluation. */
static void tell_evaluations(struct kelp_keeper *keeper, const struct kelp_keeper_call *call)
{
    const struct kelp_outside *outside = call->outside;
    const struct kelp_committed_list *list = &keeper->machine.list;
    for (uint32_t i = 0; i < list->count; i++) {
        struct kelp_checkpointer_event event = {.kind = KELP_CHECKPOINTER_EVALUATED,
                                                .evaluated = {.step = list->entries[i].step}};
        if (!list->entries[i].has_metric &&
            outside->effects->recorded_metric(event.evaluated.step, event.evaluated.metric,
                                              outside->user)) {
            kelp_keeper_apply(keeper, call, event);
        }
    }
}

/* A leader that died between the commit and writing manifest.json has left the folder without
 * it. */
static void write_manifests(const struct kelp_keeper *keeper, const struct kelp_outside *outside)
{
    const struct kelp_committed_list *list = &keeper->machine.list;
    uint32_t first =
        list->count > KELP_COORDINATOR_AGAIN_MAX ? list->count - KELP_COORDINATOR_AGAIN_MAX : 0;
    for (uint32_t i = first; i < list->count; i++) {
        const struct kelp_committed *entry = &list->entries[i];
        if (!entry->damaged && entry->folder[0] != '\0' && entry->manifest) {
            write_manifest(outside, entry->folder, entry->manifest);
        }
    }
}

static void log_found(const struct kelp_found *found, const struct kelp_outside *outside)
{
    if (found->imported > 0) {
        kelp_outside_log(outside, KELP_LOG_INFO, "checkpoints taken from the run's folder count=%u",
                         found->imported);
    }
    for (uint32_t i = 0; i < found->checkpoint_count; i++) {
        if (found->checkpoints[i].damaged) {
            kelp_outside_log(outside, KELP_LOG_ERROR,
                             "checkpoint in etcd cannot be used version=%" PRIu64,
                             found->checkpoints[i].version);
        }
    }
}

void kelp_keeper_found(struct kelp_keeper *keeper, const struct kelp_keeper_call *call,
                       struct kelp_found *found, bool begin)
{
    const struct kelp_outside *outside = call->outside;
    log_found(found, outside);
    if (found->last_generation > keeper->last_generation) {
        keeper->last_generation = found->last_generation;
    }
    remove_gone(keeper, outside, found);
    kelp_keeper_apply(
        keeper, call,
        (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_LISTED,
                                         .listed = {.entries = found->checkpoints,
                                                    .count = found->checkpoint_count,
                                                    .first_serial = first_serial(call->election)}});
    if (begin) {
        tell_evaluations(keeper, call);
        write_manifests(keeper, outside);
    }
    for (size_t i = 0; begin && i < found->folders.count; i++) {
        kelp_outside_log(outside, KELP_LOG_INFO,
                         "removing a folder that no checkpoint has folder=%s",
                         found->folders.names[i]);
        remove_folder(outside, found->folders.names[i]);
    }
}

/* Damaged checkpoints are not deleted: one host that reads wrongly would remove all checkpoints,
 * one by one. */
void kelp_keeper_opened(struct kelp_keeper *keeper, const struct kelp_keeper_call *call,
                        uint64_t restore_version)
{
    const struct kelp_committed_list *list = &keeper->machine.list;
    for (uint32_t i = 0; i < list->count; i++) {
        if (list->entries[i].version > restore_version) {
            drop_folder(call->outside, list->entries[i].folder, list->entries[i].damaged);
        }
    }
}

void kelp_keeper_opening(const struct kelp_keeper *keeper, const struct kelp_map *next,
                         struct kelp_opening *ret_opening)
{
    const struct kelp_checkpointer *machine = &keeper->machine;
    const struct kelp_committed *from =
        kelp_committed_list_find(&machine->list, next->restore_version);
    struct kelp_opening opening = {.map = next, .restored_revision = from ? from->revision : 0};
    for (uint32_t i = 0; i < machine->list.count; i++) {
        uint64_t version = machine->list.entries[i].version;
        /* One place is left for a commit whose answer never came. If there are more, they are
         * damaged ones, which retention removes. */
        if (version > next->restore_version && opening.gone_count < KELP_OPENING_GONE_MAX - 1) {
            opening.gone[opening.gone_count++] = version;
        }
    }
    if (machine->state == KELP_CHECKPOINTER_WRITING &&
        machine->saved.version > next->restore_version) {
        opening.gone[opening.gone_count++] = machine->saved.version;
    }
    *ret_opening = opening;
}

void kelp_keeper_damaged(struct kelp_keeper *keeper, const struct kelp_keeper_call *call,
                         uint64_t version)
{
    kelp_keeper_apply(
        keeper, call,
        (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_DAMAGED, .damaged = version});
    if (!kelp_committed_list_newest(&keeper->machine.list)) {
        kelp_outside_log(call->outside, KELP_LOG_ERROR,
                         "no checkpoint can be restored: starting again from version 0");
    }
}
