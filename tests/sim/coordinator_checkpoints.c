/* The checkpoints of a simulated coordinator (coordinator/checkpointing.c): the real
 * kelp_checkpointer decides. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/coordinator.h"
#include "tests/sim/invariants.h"

/* ---- life --------------------------------------------------------------------------------------
 */

static uint64_t first_serial(const struct sim_coordinator *coordinator)
{
    return (uint64_t)coordinator->last_revision << 16;
}

void sim_checkpoints_init(struct sim_coordinator *coordinator)
{
    const struct kelp_job *job = &coordinator->sim->job;
    const struct kelp_checkpointer_options options =
        kelp_checkpointer_options_of(job, first_serial(coordinator));
    if (kelp_checkpointer_init(&coordinator->checkpointer, &options, NULL) != KELP_OK) {
        abort();
    }
}

void sim_checkpoints_fini(struct sim_coordinator *coordinator)
{
    kelp_checkpointer_fini(&coordinator->checkpointer);
    sim_manifest_unref(coordinator->manifest);
    coordinator->manifest = NULL;
    coordinator->manifest_serial = 0;
    coordinator->described = false;
}

/* The list carries manifests as texts; here they are numbers in the world's register. */
static void to_committed(struct sim *sim, struct sim_manifest *manifest,
                         struct kelp_committed *ret_committed)
{
    char number[24];
    *ret_committed = (struct kelp_committed){
        .version = manifest->version, .step = manifest->step, .generation = manifest->generation};
    (void)snprintf(ret_committed->state_digest, sizeof(ret_committed->state_digest), "%032llx",
                   (unsigned long long)sim_manifest_digest(sim, manifest));
    (void)snprintf(ret_committed->folder, sizeof(ret_committed->folder), "%s", manifest->folder);
    (void)snprintf(number, sizeof(number), "%u", manifest->number);
    ret_committed->manifest = strdup(number);
    if (!ret_committed->manifest) {
        abort();
    }
}

static struct sim_manifest *manifest_of(const struct sim *sim, const struct kelp_committed *from)
{
    return from ? sim->manifests[strtoul(from->manifest, NULL, 10)] : NULL;
}

/* ---- commit ------------------------------------------------------------------------------------
 */

static void make_manifest(struct sim_coordinator *coordinator)
{
    const struct kelp_checkpointer *from = &coordinator->checkpointer;
    struct sim_manifest *manifest = sim_manifest_create(coordinator->sim);
    manifest->version = from->saved.version;
    manifest->step = from->saved.step;
    manifest->generation = from->order.generation;
    manifest->storage_count = from->map.shard_count;
    (void)snprintf(manifest->folder, sizeof(manifest->folder), "%s", from->order.folder);
    for (uint32_t i = 0; i < from->map.shard_count; i++) {
        (void)snprintf(manifest->storages[i], sizeof(manifest->storages[i]), "%s",
                       from->shards[i].storage);
    }
    for (uint32_t i = 0; i < from->map.partition_count; i++) {
        manifest->parts[i].storage = from->parts[i].shard;
        memcpy(manifest->parts[i].digest, from->parts[i].digest, sizeof(manifest->parts[i].digest));
    }
    sim_manifest_unref(coordinator->manifest);
    coordinator->manifest = manifest;
    coordinator->manifest_serial = from->order.serial;
    coordinator->described = false;
}

static void commit(struct sim_coordinator *coordinator)
{
    if (coordinator->manifest_serial != coordinator->checkpointer.order.serial) {
        make_manifest(coordinator);
    }
    if (!coordinator->described) {
        sim_disk_describe(coordinator);
        return;
    }
    sim_leader_commit(coordinator);
    sim_checkpoints_apply(coordinator,
                          (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_SENT});
}

void sim_checkpoints_described(struct sim_coordinator *coordinator, uint64_t serial)
{
    if (serial == coordinator->checkpointer.order.serial) {
        coordinator->described = true;
        commit(coordinator);
    }
}

static void read_again(struct sim_coordinator *coordinator)
{
    coordinator->map_wanted = true;
    coordinator->map_at_ms = coordinator->now_ms;
}

static enum kelp_checkpointer_result result_of(const struct sim_task *task)
{
    if (task->status == KELP_OK) {
        return task->succeeded ? KELP_CHECKPOINTER_OK : KELP_CHECKPOINTER_REFUSED;
    }
    bool never = task->status == KELP_ERR_UNREACHABLE || task->status == KELP_ERR_NOT_LEADER;
    return never ? KELP_CHECKPOINTER_AWAY : KELP_CHECKPOINTER_UNKNOWN;
}

void sim_checkpoints_committed(struct sim_coordinator *coordinator, const struct sim_task *task)
{
    struct kelp_checkpointer_event event = {.kind = KELP_CHECKPOINTER_COMMITTED,
                                            .serial = task->serial,
                                            .result = result_of(task),
                                            .text = "as etcd says"};
    struct kelp_committed committed = {.version = 0};
    if (!kelp_checkpointer_awaits(&coordinator->checkpointer, task->serial)) {
        return; /* a generation was opened meanwhile, which decided it */
    }
    if (event.result == KELP_CHECKPOINTER_OK) {
        to_committed(coordinator->sim, coordinator->manifest, &committed);
        committed.revision = task->key_revision;
        event.checkpoint = &committed;
        coordinator->sim->counts[SIM_COUNT_CHECKPOINT]++;
    } else {
        sim_say(coordinator->sim, coordinator->process, "checkpoint not committed: %s",
                event.result == KELP_CHECKPOINTER_UNKNOWN ? "perhaps it is"
                : event.result == KELP_CHECKPOINTER_AWAY  ? "etcd did not get it"
                                                          : "refused");
    }
    if (event.result == KELP_CHECKPOINTER_REFUSED) {
        read_again(coordinator);
    }
    sim_checkpoints_apply(coordinator, event);
    free(committed.manifest);
}

void sim_checkpoints_removed(struct sim_coordinator *coordinator, const struct sim_task *task)
{
    enum kelp_checkpointer_result result = result_of(task);
    char folder[KELP_FOLDER_NAME_MAX + 1];
    memcpy(folder, coordinator->checkpointer.removing_folder, sizeof(folder));
    if (result == KELP_CHECKPOINTER_OK) {
        coordinator->sim->counts[SIM_COUNT_CHECKPOINT_REMOVED]++;
        sim_disk_remove(coordinator, folder);
    }
    if (result == KELP_CHECKPOINTER_REFUSED) {
        read_again(coordinator);
    }
    sim_checkpoints_apply(coordinator, (struct kelp_checkpointer_event){
                                           .kind = KELP_CHECKPOINTER_REMOVED, .result = result});
}

/* ---- actions -----------------------------------------------------------------------------------
 */

static void tell_restore(struct sim_coordinator *coordinator)
{
    const struct kelp_checkpointer *checkpointer = &coordinator->checkpointer;
    const struct kelp_committed *newest = kelp_committed_list_newest(&checkpointer->list);
    const struct kelp_placement *placement = &coordinator->placement;
    struct kelp_placement_event event = {
        .kind = KELP_PLACEMENT_RESTORE,
        .version = newest ? newest->version : 0,
        .generation = coordinator->last_generation,
        .undecided = kelp_checkpointer_undecided(checkpointer),
    };
    if (event.version != placement->restore_version || event.undecided != placement->undecided ||
        event.generation != placement->restore_generation) {
        sim_coordinator_place(coordinator, event);
    }
}

static void carry_out(struct sim_coordinator *coordinator, uint32_t actions)
{
    struct kelp_checkpointer *checkpointer = &coordinator->checkpointer;
    if ((actions & KELP_CHECKPOINTER_DO_SAY) != 0) {
        sim_say(coordinator->sim, coordinator->process, "%s", checkpointer->trouble);
    }
    if ((actions & KELP_CHECKPOINTER_DO_DISCARD) != 0) {
        coordinator->sim->counts[SIM_COUNT_CHECKPOINT_ABANDONED]++;
        sim_disk_remove(coordinator, checkpointer->discarded);
    }
    if ((actions & KELP_CHECKPOINTER_DO_ORDER) != 0) {
        coordinator->order_election = coordinator->last_revision;
        if (checkpointer->order.serial != 0) {
            sim_say(coordinator->sim, coordinator->process,
                    "orders a checkpoint of step %llu in %s",
                    (unsigned long long)checkpointer->order.step, checkpointer->order.folder);
        }
        sim_links_update(coordinator);
    }
    if ((actions & KELP_CHECKPOINTER_DO_RESTORE) != 0) {
        tell_restore(coordinator);
    }
    if ((actions & KELP_CHECKPOINTER_DO_REMOVE) != 0) {
        sim_leader_remove(coordinator, checkpointer->removing);
    }
    if ((actions & KELP_CHECKPOINTER_DO_FAIL) != 0) {
        sim_coordinator_fail_job(coordinator, checkpointer->trouble);
    } else if ((actions & KELP_CHECKPOINTER_DO_END) != 0) {
        sim_coordinator_place(
            coordinator, (struct kelp_placement_event){.kind = KELP_PLACEMENT_FINISHED,
                                                       .generation = checkpointer->map.generation});
    } else if ((actions & KELP_CHECKPOINTER_DO_PAUSE) != 0) {
        sim_coordinator_place(coordinator, (struct kelp_placement_event){
                                               .kind = KELP_PLACEMENT_PAUSE, .text = "paused"});
    }
    if ((actions & KELP_CHECKPOINTER_DO_COMMIT) != 0) {
        commit(coordinator);
    }
}

void sim_checkpoints_apply(struct sim_coordinator *coordinator,
                           struct kelp_checkpointer_event event)
{
    uint32_t actions = 0;
    struct kelp_error error;
    bool held = kelp_checkpointer_holds(&coordinator->checkpointer);
    event.now_ms = coordinator->now_ms;
    if (kelp_checkpointer_apply(&coordinator->checkpointer, &event, &actions, &error) != KELP_OK) {
        sim_fail(coordinator->sim, "the checkpointer takes every event", "%s", error.text);
    }
    carry_out(coordinator, actions);
    if (!held && kelp_checkpointer_holds(&coordinator->checkpointer)) {
        sim_sessions_update(coordinator, false);
    }
}

/* ---- events ------------------------------------------------------------------------------------
 */

static bool named(const struct kelp_checkpointer *checkpointer, const char *folder)
{
    for (uint32_t i = 0; i < checkpointer->list.count; i++) {
        if (strcmp(checkpointer->list.entries[i].folder, folder) == 0) {
            return true;
        }
    }
    return false;
}

static void remove_gone(struct sim_coordinator *coordinator, const struct kelp_committed *now,
                        uint32_t now_count)
{
    const struct kelp_committed_list *list = &coordinator->checkpointer.list;
    for (uint32_t i = 0; i < list->count; i++) {
        if (kelp_committed_gone(&list->entries[i], now, now_count)) {
            sim_disk_remove(coordinator, list->entries[i].folder);
        }
    }
}

void sim_checkpoints_found(struct sim_coordinator *coordinator, const struct sim_found *found,
                           bool begin)
{
    struct kelp_committed list[SIM_MANIFESTS_MAX];
    for (uint32_t i = 0; i < found->manifest_count; i++) {
        to_committed(coordinator->sim, found->manifests[i], &list[i]);
        list[i].revision = found->manifest_revisions[i];
        if (list[i].generation > coordinator->last_generation) {
            coordinator->last_generation = list[i].generation;
        }
    }
    remove_gone(coordinator, list, found->manifest_count);
    sim_checkpoints_apply(
        coordinator, (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_LISTED,
                                                      .list = list,
                                                      .list_count = found->manifest_count,
                                                      .first_serial = first_serial(coordinator)});
    for (uint32_t i = 0; i < found->manifest_count; i++) {
        free(list[i].manifest);
    }
    for (uint32_t i = 0; begin && i < found->folder_count; i++) {
        if (!named(&coordinator->checkpointer, found->folders[i])) {
            sim_disk_remove(coordinator, found->folders[i]);
        }
    }
}

void sim_checkpoints_generation(struct sim_coordinator *coordinator, bool opened)
{
    struct sim *sim = coordinator->sim;
    const struct kelp_map *map = &coordinator->placement.map;
    const struct kelp_committed_list *list = &coordinator->checkpointer.list;
    for (uint32_t i = 0; opened && i < list->count; i++) {
        if (list->entries[i].version > map->restore_version) {
            sim_disk_remove(coordinator, list->entries[i].folder);
        }
    }
    sim->counts[SIM_COUNT_RESTORE] += opened && map->restore_version > 0 ? 1 : 0;
    sim_checkpoints_apply(coordinator,
                          (struct kelp_checkpointer_event){
                              .kind = KELP_CHECKPOINTER_GENERATION,
                              .map = map,
                              .opened = opened,
                              .schedule = kelp_checkpointer_schedule_of(&sim->job, &sim->plan)});
}

struct sim_manifest *sim_checkpoints_manifest(const struct sim_coordinator *coordinator)
{
    return manifest_of(coordinator->sim,
                       kelp_committed_list_find(&coordinator->checkpointer.list,
                                                coordinator->placement.map.restore_version));
}

void sim_checkpoints_open(struct sim_coordinator *coordinator)
{
    const struct kelp_checkpointer *checkpointer = &coordinator->checkpointer;
    const struct kelp_map *next = &coordinator->placement.next;
    const struct kelp_committed *from =
        kelp_committed_list_find(&checkpointer->list, next->restore_version);
    uint64_t gone[SIM_MANIFESTS_MAX];
    uint32_t gone_count = 0;
    for (uint32_t i = 0; i < checkpointer->list.count; i++) {
        uint64_t version = checkpointer->list.entries[i].version;
        if (version > next->restore_version && gone_count < SIM_MANIFESTS_MAX - 1) {
            gone[gone_count++] = version;
        }
    }
    if (checkpointer->state == KELP_CHECKPOINTER_WRITING &&
        checkpointer->saved.version > next->restore_version) {
        gone[gone_count++] = checkpointer->saved.version;
    }
    sim_leader_write_map(coordinator, next, from ? from->revision : 0, gone, gone_count);
}

void sim_checkpoints_report(struct sim_coordinator *coordinator, const struct kelp_map_shard *shard,
                            const struct sim_snapshot_report *report)
{
    static const enum kelp_checkpointer_answer answers[KELP_SNAPSHOT_STATE_COUNT] = {
        [KELP_SNAPSHOT_NONE] = KELP_CHECKPOINTER_ANSWER_NONE,
        [KELP_SNAPSHOT_TAKING] = KELP_CHECKPOINTER_ANSWER_TAKING,
        [KELP_SNAPSHOT_DURABLE] = KELP_CHECKPOINTER_ANSWER_DURABLE,
        [KELP_SNAPSHOT_FAILED] = KELP_CHECKPOINTER_ANSWER_FAILED,
        [KELP_SNAPSHOT_PAST] = KELP_CHECKPOINTER_ANSWER_PAST,
    };
    const struct kelp_checkpointer *checkpointer = &coordinator->checkpointer;
    struct kelp_checkpointer_part parts[SIM_PARTITIONS_MAX];
    if (checkpointer->state != KELP_CHECKPOINTER_ORDERED ||
        report->serial < checkpointer->order.serial) {
        return;
    }
    for (uint32_t i = 0; i < report->part_count; i++) {
        parts[i] = (struct kelp_checkpointer_part){.partition = report->parts[i].partition,
                                                   .bytes = report->parts[i].bytes,
                                                   .digest = report->parts[i].digest};
    }
    struct kelp_checkpointer_report taken = {.shard = shard->id,
                                             .incarnation = shard->incarnation,
                                             .serial = report->serial,
                                             .answer = answers[report->state],
                                             .error = report->error,
                                             .storage = report->storage,
                                             .parts = parts,
                                             .part_count = report->part_count,
                                             .word = report->has_word ? &report->word : NULL,
                                             .current_step = report->current_step};
    sim_checkpoints_apply(coordinator, (struct kelp_checkpointer_event){
                                           .kind = KELP_CHECKPOINTER_REPORT, .report = &taken});
}
