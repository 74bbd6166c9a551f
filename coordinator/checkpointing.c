#include "coordinator/checkpointing.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/log.h"
#include "coordinator/etcd/checkpoint_files.h"
#include "coordinator/shard_link.h"
#include "coordinator/worker_sessions.h"
#include "proto/convert.h"

/* ---- life -------------------------------------------------------------------------------------
 */

/* Revisions of etcd only grow, and an order takes longer than a write. */
static uint64_t first_serial(const struct kelp_coordinator *coordinator)
{
    return (uint64_t)coordinator->elected_revision << 16;
}

kelp_status kelp_checkpointing_init(struct kelp_coordinator *coordinator, struct kelp_error *reterr)
{
    const struct kelp_job *job = coordinator->job;
    const struct kelp_checkpointer_options options =
        kelp_checkpointer_options_of(job, first_serial(coordinator));
    return kelp_checkpointer_init(&coordinator->checkpointer, &options, reterr);
}

void kelp_checkpointing_fini(struct kelp_coordinator *coordinator)
{
    kelp_checkpointer_fini(&coordinator->checkpointer);
    free(coordinator->manifest);
    coordinator->manifest = NULL;
    coordinator->manifest_serial = 0;
    coordinator->described = false;
}

/* ---- files, on the disk's thread --------------------------------------------------------------
 */

enum file_kind { FILE_DESCRIBE, FILE_MANIFEST, FILE_REMOVE, FILE_SET_ASIDE };

struct file_task {
    struct kelp_task task;
    struct kelp_coordinator *coordinator;
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
    const char *run = task->coordinator->options.run_folder;
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

static void commit(struct kelp_coordinator *coordinator);

static void refuse_commit(struct kelp_coordinator *coordinator, const char *text)
{
    kelp_checkpointing_apply(coordinator, (struct kelp_checkpointer_event){
                                              .kind = KELP_CHECKPOINTER_COMMITTED,
                                              .serial = coordinator->checkpointer.order.serial,
                                              .result = KELP_CHECKPOINTER_REFUSED,
                                              .text = text});
}

static void file_done(struct kelp_task *base)
{
    struct file_task *task = KELP_CONTAINER_OF(base, struct file_task, task);
    struct kelp_coordinator *coordinator = task->coordinator;
    bool ours = !base->cancelled && coordinator->leading && task->term == coordinator->terms;
    if (!base->cancelled && task->status != KELP_OK && task->kind != FILE_DESCRIBE) {
        kelp_log_error("checkpoint folder=%s error=\"%s\"", task->folder, task->error.text);
    }
    if (ours && task->kind == FILE_DESCRIBE &&
        task->serial == coordinator->checkpointer.order.serial) {
        kelp_coordinator_touch(coordinator);
        if (task->status == KELP_OK) {
            coordinator->described = true;
            commit(coordinator);
        } else {
            refuse_commit(coordinator, task->error.text);
        }
    }
    free(task->spec);
    free(task->text);
    free(task);
}

/* text is copied. False: it will not be done. */
static bool submit_file(struct kelp_coordinator *coordinator, enum file_kind kind,
                        const char *folder, const char *text)
{
    struct file_task *task = calloc(1, sizeof(*task));
    if (task == NULL) {
        return false;
    }
    task->task.run = run_file;
    task->task.done = file_done;
    task->coordinator = coordinator;
    task->kind = kind;
    task->term = coordinator->terms;
    task->serial = coordinator->checkpointer.order.serial;
    (void)snprintf(task->folder, sizeof(task->folder), "%s", folder);
    task->text = text == NULL ? NULL : strdup(text);
    task->spec = kind == FILE_DESCRIBE ? strdup(coordinator->spec) : NULL;
    bool whole =
        (text == NULL || task->text != NULL) && (kind != FILE_DESCRIBE || task->spec != NULL);
    if (!whole || kelp_task_thread_submit(coordinator->disk, &task->task) != KELP_OK) {
        free(task->spec);
        free(task->text);
        free(task);
        return false;
    }
    return true;
}

static void remove_folder(struct kelp_coordinator *coordinator, const char *folder)
{
    if (folder[0] != '\0' && !submit_file(coordinator, FILE_REMOVE, folder, NULL)) {
        kelp_log_error("checkpoint not removed, the next leader will folder=%s", folder);
    }
}

/* No manifest names it any more: its data goes, or, when it could not be restored, is kept for
 * people under another name. */
static void drop_folder(struct kelp_coordinator *coordinator, const char *folder, bool damaged)
{
    if (!damaged || folder[0] == '\0') {
        remove_folder(coordinator, folder);
        return;
    }
    kelp_log_error("the checkpoint that could not be restored is kept as "
                   "checkpoints/.damaged-%s; remove it by hand",
                   folder);
    if (!submit_file(coordinator, FILE_SET_ASIDE, folder, NULL)) {
        kelp_log_error("damaged checkpoint not set aside folder=%s", folder);
    }
}

/* ---- commit -----------------------------------------------------------------------------------
 */

/* What was reported, as a manifest; storages in the order of the map's shards. */
static kelp_status make_manifest(struct kelp_coordinator *coordinator,
                                 struct kelp_manifest *ret_manifest, struct kelp_error *reterr)
{
    const struct kelp_checkpointer *from = &coordinator->checkpointer;
    struct timespec now;
    struct kelp_manifest manifest;
    kelp_status status =
        kelp_manifest_init(&manifest, from->map.shard_count, from->map.partition_count, reterr);
    if (status != KELP_OK) {
        return status;
    }
    (void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail with this clock */
    (void)snprintf(manifest.job, sizeof(manifest.job), "%s", coordinator->options.job);
    manifest.spec_digest = coordinator->spec_digest;
    manifest.version = from->saved.version;
    manifest.step = from->saved.step;
    manifest.epochs = kelp_control_word_epochs(&from->saved);
    manifest.generation = from->order.generation;
    manifest.unix_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
    const double *metric = kelp_checkpointer_metric(from, from->saved.step);
    manifest.has_metric = metric != NULL;
    if (manifest.has_metric) {
        memcpy(manifest.metric, metric, sizeof(manifest.metric));
    }
    (void)snprintf(manifest.nonce, sizeof(manifest.nonce), "%" PRIx64 "-%" PRIx64,
                   coordinator->options.incarnation, from->order.serial);
    memcpy(manifest.folder, from->order.folder, sizeof(manifest.folder));
    for (uint32_t i = 0; i < from->map.shard_count; i++) {
        memcpy(manifest.storages[i], from->shards[i].storage, sizeof(manifest.storages[i]));
    }
    for (uint32_t i = 0; i < from->map.partition_count; i++) {
        manifest.parts[i].storage = from->parts[i].shard;
        manifest.parts[i].bytes = from->parts[i].bytes;
        memcpy(manifest.parts[i].digest, from->parts[i].digest, sizeof(manifest.parts[i].digest));
    }
    *ret_manifest = manifest;
    return KELP_OK;
}

/* The same text for each attempt at one order. */
static kelp_status keep_manifest(struct kelp_coordinator *coordinator, struct kelp_error *reterr)
{
    struct kelp_manifest manifest;
    char *text = NULL;
    if (coordinator->manifest_serial == coordinator->checkpointer.order.serial) {
        return KELP_OK;
    }
    kelp_status status = make_manifest(coordinator, &manifest, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_manifest_print(&manifest, &text, reterr);
    if (status == KELP_OK) {
        free(coordinator->manifest);
        coordinator->manifest = text;
        coordinator->manifest_serial = coordinator->checkpointer.order.serial;
        coordinator->described = false;
        kelp_committed_of(&manifest, &coordinator->committing);
    }
    kelp_manifest_fini(&manifest);
    return status;
}

static void commit(struct kelp_coordinator *coordinator)
{
    const struct kelp_checkpointer *checkpointer = &coordinator->checkpointer;
    struct kelp_error error = {.text = "no memory for a manifest"};
    if (keep_manifest(coordinator, &error) != KELP_OK) {
        refuse_commit(coordinator, error.text);
        return;
    }
    if (!coordinator->described) {
        if (!submit_file(coordinator, FILE_DESCRIBE, checkpointer->order.folder,
                         coordinator->plan_text)) {
            refuse_commit(coordinator, "out of memory, or too much waits for the disk");
        }
        return;
    }
    struct kelp_leader_commit wanted = {.version = checkpointer->saved.version,
                                        .generation = checkpointer->order.generation,
                                        .election = coordinator->order_election,
                                        .serial = checkpointer->order.serial,
                                        .manifest = coordinator->manifest};
    struct kelp_checkpointer_event event = {.kind = KELP_CHECKPOINTER_SENT};
    if (kelp_leader_commit(coordinator->leader, &wanted) != KELP_OK) {
        event.kind = KELP_CHECKPOINTER_COMMITTED;
        event.serial = wanted.serial;
        event.result = KELP_CHECKPOINTER_AWAY;
    }
    kelp_checkpointing_apply(coordinator, event);
}

/* etcd holds something else than we think: learn what. */
static void read_again(struct kelp_coordinator *coordinator)
{
    coordinator->map_wanted = true;
    coordinator->map_at_ms = coordinator->now_ms;
}

static void tell_committed(struct kelp_coordinator *coordinator,
                           const struct kelp_committed *committed)
{
    kelp_log_info("checkpoint committed step=%" PRIu64 " version=%" PRIu64 " at_step=%" PRIu64
                  " folder=%s state_digest=%s",
                  committed->step, committed->version, coordinator->checkpointer.word.step,
                  committed->folder, committed->state_digest);
    if (!submit_file(coordinator, FILE_MANIFEST, committed->folder, coordinator->manifest)) {
        kelp_log_error("manifest.json not written folder=%s", committed->folder);
    }
    coordinator->committed_ms = coordinator->now_ms;
}

void kelp_checkpointing_committed(uint64_t serial, enum kelp_checkpointer_result result,
                                  int64_t revision, const char *text, void *user)
{
    struct kelp_coordinator *coordinator = user;
    struct kelp_checkpointer_event event = {
        .kind = KELP_CHECKPOINTER_COMMITTED, .serial = serial, .result = result, .text = text};
    struct kelp_committed committed = coordinator->committing;
    kelp_coordinator_touch(coordinator);
    if (!coordinator->leading || !kelp_checkpointer_awaits(&coordinator->checkpointer, serial)) {
        return; /* a generation was opened meanwhile, which decided it */
    }
    if (result == KELP_CHECKPOINTER_OK) {
        committed.revision = revision;
        committed.manifest = strdup(coordinator->manifest);
        event.checkpoint = &committed;
        if (committed.manifest == NULL) { /* what etcd has can be read again */
            kelp_log_error("out of memory: reading the checkpoint from etcd");
            event.result = KELP_CHECKPOINTER_UNKNOWN;
        } else {
            tell_committed(coordinator, &committed);
        }
    } else {
        kelp_log_warn("checkpoint not committed step=%" PRIu64 " reason=\"%s\"", committed.step,
                      text);
    }
    if (result == KELP_CHECKPOINTER_REFUSED) {
        read_again(coordinator);
    }
    kelp_checkpointing_apply(coordinator, event);
    free(committed.manifest);
}

void kelp_checkpointing_removed(enum kelp_checkpointer_result result, const char *text, void *user)
{
    struct kelp_coordinator *coordinator = user;
    char folder[KELP_FOLDER_NAME_MAX + 1];
    kelp_coordinator_touch(coordinator);
    if (!coordinator->leading) {
        return;
    }
    memcpy(folder, coordinator->checkpointer.removing_folder, sizeof(folder));
    if (result == KELP_CHECKPOINTER_OK) {
        const struct kelp_committed *entry = kelp_committed_list_find(
            &coordinator->checkpointer.list, coordinator->checkpointer.removing);
        kelp_log_info("checkpoint removed folder=%s", folder);
        drop_folder(coordinator, folder, entry != NULL && entry->damaged);
    } else {
        kelp_log_warn("checkpoint not removed yet folder=%s reason=\"%s\"", folder, text);
    }
    if (result == KELP_CHECKPOINTER_REFUSED) {
        read_again(coordinator);
    }
    kelp_checkpointing_apply(coordinator, (struct kelp_checkpointer_event){
                                              .kind = KELP_CHECKPOINTER_REMOVED, .result = result});
}

/* ---- actions ----------------------------------------------------------------------------------
 */

static void log_order(const struct kelp_checkpointer *checkpointer)
{
    const struct kelp_checkpointer_order *order = &checkpointer->order;
    if (order->serial != 0) {
        kelp_log_info("checkpoint ordered step=%" PRIu64 " at_step=%" PRIu64 " folder=%s",
                      order->step, checkpointer->word.step, order->folder);
    }
}

/* Where the next generation starts. */
static void tell_restore(struct kelp_coordinator *coordinator)
{
    const struct kelp_checkpointer *checkpointer = &coordinator->checkpointer;
    const struct kelp_committed *newest = kelp_committed_list_newest(&checkpointer->list);
    struct kelp_placement_event event = {
        .kind = KELP_PLACEMENT_RESTORE,
        .version = newest == NULL ? 0 : newest->version,
        .generation = coordinator->last_generation,
        .final =
            checkpointer->ended && newest != NULL && newest->version == checkpointer->word.version,
        .undecided = kelp_checkpointer_undecided(checkpointer),
    };
    const struct kelp_placement *placement = &coordinator->placement;
    if (event.version != placement->restore_version || event.undecided != placement->undecided ||
        event.generation != placement->restore_generation || placement->choosing ||
        event.final != placement->restore_final) {
        kelp_coordinator_place(coordinator, event);
    }
}

static void tell_end(struct kelp_coordinator *coordinator)
{
    const struct kelp_checkpointer *checkpointer = &coordinator->checkpointer;
    tell_restore(coordinator); /* the newest one is of the final state */
    if (checkpointer->trouble[0] != '\0') {
        kelp_log_error("the job is done without a checkpoint of its final state reason=\"%s\"",
                       checkpointer->trouble);
    }
    kelp_coordinator_place(coordinator, (struct kelp_placement_event){
                                            .kind = KELP_PLACEMENT_FINISHED,
                                            .generation = checkpointer->map.generation,
                                        });
}

static void tell_pause(struct kelp_coordinator *coordinator)
{
    char text[128];
    (void)snprintf(text, sizeof(text), "paused at step %" PRIu64,
                   coordinator->checkpointer.paused_step);
    kelp_coordinator_place(
        coordinator, (struct kelp_placement_event){.kind = KELP_PLACEMENT_PAUSE, .text = text});
}

static void carry_out(struct kelp_coordinator *coordinator, uint32_t actions)
{
    struct kelp_checkpointer *checkpointer = &coordinator->checkpointer;
    if ((actions & KELP_CHECKPOINTER_DO_SAY) != 0) {
        kelp_log_error("%s", checkpointer->trouble);
    }
    if ((actions & KELP_CHECKPOINTER_DO_DISCARD) != 0) {
        remove_folder(coordinator, checkpointer->discarded);
    }
    if ((actions & KELP_CHECKPOINTER_DO_ORDER) != 0) {
        coordinator->order_election = coordinator->elected_revision;
        log_order(checkpointer);
        kelp_link_order(coordinator);
    }
    if ((actions & KELP_CHECKPOINTER_DO_RESTORE) != 0) {
        tell_restore(coordinator);
    }
    if ((actions & KELP_CHECKPOINTER_DO_REMOVE) != 0 &&
        kelp_leader_remove(coordinator->leader, checkpointer->removing) != KELP_OK) {
        kelp_checkpointing_removed(KELP_CHECKPOINTER_AWAY, "out of memory", coordinator);
    }
    if ((actions & KELP_CHECKPOINTER_DO_FAIL) != 0) {
        kelp_coordinator_fail_job(coordinator, checkpointer->trouble);
    } else if ((actions & KELP_CHECKPOINTER_DO_END) != 0) {
        tell_end(coordinator);
    } else if ((actions & KELP_CHECKPOINTER_DO_PAUSE) != 0) {
        tell_pause(coordinator);
    }
    if ((actions & KELP_CHECKPOINTER_DO_COMMIT) != 0) {
        commit(coordinator);
    }
}

void kelp_checkpointing_apply(struct kelp_coordinator *coordinator,
                              struct kelp_checkpointer_event event)
{
    struct kelp_error error = {.text = ""};
    uint32_t actions = 0;
    bool held = kelp_checkpointer_holds(&coordinator->checkpointer);
    event.now_ms = coordinator->now_ms;
    kelp_status status =
        kelp_checkpointer_apply(&coordinator->checkpointer, &event, &actions, &error);
    if (status != KELP_OK) {
        kelp_log_error("checkpoints refused an event error=\"%s\"", error.text);
    }
    carry_out(coordinator, actions);
    if (!held && kelp_checkpointer_holds(&coordinator->checkpointer)) {
        kelp_service_update(coordinator, false);
    }
}

/* ---- events -----------------------------------------------------------------------------------
 */

/* What the checkpoints of before are worth, where their manifests were too early to say. */
static void tell_evaluations(struct kelp_coordinator *coordinator)
{
    const struct kelp_committed_list *list = &coordinator->checkpointer.list;
    for (uint32_t i = 0; i < list->count; i++) {
        struct kelp_checkpointer_event event = {.kind = KELP_CHECKPOINTER_EVALUATED,
                                                .step = list->entries[i].step};
        if (!list->entries[i].has_metric &&
            kelp_journal_evaluated(coordinator->journal, event.step, event.metric)) {
            kelp_checkpointing_apply(coordinator, event);
        }
    }
}

/* A leader that died between a commit and manifest.json has left the folder without it. */
static void write_manifests(struct kelp_coordinator *coordinator)
{
    const struct kelp_committed_list *list = &coordinator->checkpointer.list;
    uint32_t first =
        list->count > KELP_COORDINATOR_AGAIN_MAX ? list->count - KELP_COORDINATOR_AGAIN_MAX : 0;
    for (uint32_t i = first; i < list->count; i++) {
        const struct kelp_committed *entry = &list->entries[i];
        if (!entry->damaged && entry->folder[0] != '\0' && entry->manifest != NULL &&
            !submit_file(coordinator, FILE_MANIFEST, entry->folder, entry->manifest)) {
            kelp_log_error("manifest.json not written folder=%s", entry->folder);
        }
    }
}

/* A manifest that we knew is gone since a transaction of ours whose answer was lost took it out,
 * which was not to be told then: so may the data be. An etcd that lost everything took nothing out,
 * and the next leader imports what the folders hold. */
static void remove_gone(struct kelp_coordinator *coordinator, const struct kelp_leader_found *found)
{
    const struct kelp_committed_list *list = &coordinator->checkpointer.list;
    for (uint32_t i = 0; i < list->count && found->map.generation > 0; i++) {
        if (kelp_committed_gone(&list->entries[i], found->checkpoints, found->checkpoint_count)) {
            kelp_log_info("checkpoint is out of etcd folder=%s", list->entries[i].folder);
            drop_folder(coordinator, list->entries[i].folder, list->entries[i].damaged);
        }
    }
}

void kelp_checkpointing_found(struct kelp_coordinator *coordinator, struct kelp_leader_found *found,
                              bool begin)
{
    if (found->imported > 0) {
        kelp_log_info("checkpoints taken from the run's folder count=%u", found->imported);
    }
    if (found->last_generation > coordinator->last_generation) {
        coordinator->last_generation = found->last_generation;
    }
    for (uint32_t i = 0; i < found->checkpoint_count; i++) {
        if (found->checkpoints[i].damaged) {
            kelp_log_error("checkpoint in etcd cannot be used version=%" PRIu64,
                           found->checkpoints[i].version);
        }
    }
    remove_gone(coordinator, found);
    kelp_checkpointing_apply(
        coordinator, (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_LISTED,
                                                      .list = found->checkpoints,
                                                      .list_count = found->checkpoint_count,
                                                      .first_serial = first_serial(coordinator)});
    if (begin) {
        tell_evaluations(coordinator);
        write_manifests(coordinator);
    }
    for (size_t i = 0; begin && i < found->folders.count; i++) {
        kelp_log_info("removing a folder that no checkpoint has folder=%s",
                      found->folders.names[i]);
        remove_folder(coordinator, found->folders.names[i]);
    }
}

/* The manifests above the restored version are out of etcd: so may the data be. What was damaged is
 * not deleted: one host that reads it wrongly would take all checkpoints away, one by one. */
static void remove_above(struct kelp_coordinator *coordinator, uint64_t version)
{
    const struct kelp_committed_list *list = &coordinator->checkpointer.list;
    for (uint32_t i = 0; i < list->count; i++) {
        if (list->entries[i].version > version) {
            drop_folder(coordinator, list->entries[i].folder, list->entries[i].damaged);
        }
    }
}

/* Steps that are computed a second time, as far as we know how far training was: from the shards,
 * or from what was on file when nobody was left to say. */
static void count_recomputed(struct kelp_coordinator *coordinator)
{
    uint64_t recorded = kelp_journal_step(coordinator->journal);
    uint64_t known = coordinator->found_step > recorded ? coordinator->found_step : recorded;
    known = coordinator->step_known ? coordinator->known_step : known;
    /* A generation that is lost before it reports anything was not further than its beginning. */
    coordinator->step_known = true;
    coordinator->known_step = coordinator->restore_step;
    if (known > coordinator->restore_step) {
        coordinator->steps_recomputed += known - coordinator->restore_step;
        kelp_log_warn("going back from_step=%" PRIu64 " to_step=%" PRIu64, known,
                      coordinator->restore_step);
    }
}

/* A job that was forced on another one's checkpoints need not come to what that one recorded. */
static void forget_records(struct kelp_coordinator *coordinator, uint64_t version)
{
    struct kelp_error error;
    if (coordinator->options.force &&
        kelp_journal_truncate(coordinator->journal, version, &error) != KELP_OK) {
        kelp_log_error("records of the job before stay on file error=\"%s\"", error.text);
    }
}

void kelp_checkpointing_generation(struct kelp_coordinator *coordinator, bool opened)
{
    const struct kelp_map *map = &coordinator->placement.map;
    const struct kelp_committed *from =
        kelp_committed_list_find(&coordinator->checkpointer.list, map->restore_version);
    coordinator->restore_step = from == NULL ? 0 : from->step;
    if (from != NULL) {
        kelp_log_info("restoring step=%" PRIu64 " version=%" PRIu64
                      " folder=%s generation=%" PRIu64,
                      from->step, from->version, from->folder, map->generation);
    }
    if (opened) {
        remove_above(coordinator, map->restore_version);
        count_recomputed(coordinator);
        forget_records(coordinator, map->restore_version);
    }
    kelp_checkpointing_apply(
        coordinator, (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_GENERATION,
                                                      .map = map,
                                                      .opened = opened,
                                                      .schedule = kelp_checkpointer_schedule_of(
                                                          coordinator->job, &coordinator->plan)});
}

const char *kelp_checkpointing_manifest(const struct kelp_coordinator *coordinator)
{
    const struct kelp_committed *from = kelp_committed_list_find(
        &coordinator->checkpointer.list, coordinator->placement.map.restore_version);
    return from == NULL ? "" : from->manifest;
}

kelp_status kelp_checkpointing_open(struct kelp_coordinator *coordinator)
{
    const struct kelp_checkpointer *checkpointer = &coordinator->checkpointer;
    const struct kelp_map *next = &coordinator->placement.next;
    const struct kelp_committed *from =
        kelp_committed_list_find(&checkpointer->list, next->restore_version);
    uint64_t gone[KELP_LEADER_GONE_MAX];
    struct kelp_leader_opening opening = {
        .map = next, .restored_revision = from == NULL ? 0 : from->revision, .gone = gone};
    for (uint32_t i = 0; i < checkpointer->list.count; i++) {
        uint64_t version = checkpointer->list.entries[i].version;
        /* One is left for a commit whose answer never came. More than fit are damaged ones, which
         * retention removes. */
        if (version > next->restore_version && opening.gone_count < KELP_LEADER_GONE_MAX - 1) {
            gone[opening.gone_count++] = version;
        }
    }
    if (checkpointer->state == KELP_CHECKPOINTER_WRITING &&
        checkpointer->saved.version > next->restore_version) {
        gone[opening.gone_count++] = checkpointer->saved.version;
    }
    return kelp_leader_write_map(coordinator->leader, &opening);
}

void kelp_checkpointing_report(struct kelp_coordinator *coordinator,
                               const struct kelp_map_shard *shard,
                               const Kelp__V1__SnapshotReport *report)
{
    struct kelp_checkpointer *checkpointer = &coordinator->checkpointer;
    struct kelp_checkpointer_part parts[KELP_PARTITIONS_MAX];
    struct kelp_control_word word;
    if (checkpointer->state != KELP_CHECKPOINTER_ORDERED ||
        report->serial < checkpointer->order.serial || report->n_part > KELP_PARTITIONS_MAX) {
        return; /* each report repeats the newest one */
    }
    for (size_t i = 0; i < report->n_part; i++) {
        parts[i] = (struct kelp_checkpointer_part){.partition = report->part[i]->partition,
                                                   .bytes = report->part[i]->bytes,
                                                   .digest = report->part[i]->digest};
    }
    bool has_word = report->word != NULL && kelp_wire_take_word(report->word, &word);
    struct kelp_checkpointer_report taken = {
        .shard = shard->id,
        .incarnation = shard->incarnation,
        .serial = report->serial,
        .error = report->error,
        .storage = report->storage,
        .parts = parts,
        .part_count = (uint32_t)report->n_part,
        .word = has_word ? &word : NULL,
        .current_step = report->current_step,
    };
    switch (report->state) {
    case KELP__V1__SNAPSHOT_STATE__SNAPSHOT_TAKING:
        taken.answer = KELP_CHECKPOINTER_ANSWER_TAKING;
        break;
    case KELP__V1__SNAPSHOT_STATE__SNAPSHOT_DURABLE:
        taken.answer = KELP_CHECKPOINTER_ANSWER_DURABLE;
        break;
    case KELP__V1__SNAPSHOT_STATE__SNAPSHOT_FAILED:
        taken.answer = KELP_CHECKPOINTER_ANSWER_FAILED;
        break;
    case KELP__V1__SNAPSHOT_STATE__SNAPSHOT_PAST:
        taken.answer = KELP_CHECKPOINTER_ANSWER_PAST;
        break;
    default: /* NONE, and what a newer shard may say */
        taken.answer = KELP_CHECKPOINTER_ANSWER_NONE;
        break;
    }
    kelp_checkpointing_apply(coordinator, (struct kelp_checkpointer_event){
                                              .kind = KELP_CHECKPOINTER_REPORT, .report = &taken});
}
