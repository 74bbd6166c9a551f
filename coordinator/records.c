#include "coordinator/records.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "coordinator/checkpointing.h"
#include "proto/convert.h"

struct sync_task {
    struct kelp_task task;
    struct kelp_coordinator *coordinator;
    struct kelp_journal *journal;
    bool finish; /* the job's last record is on file with this */
    bool close;  /* the journal is not needed any more */
    kelp_status status;
    struct kelp_error error;
};

/* Once the last record is safe, its generation counts as finished; a checkpoint of the final state
 * comes before the end. */
static void tell_finish(struct kelp_coordinator *coordinator)
{
    if (coordinator->finish_on_file && !coordinator->checkpointer.finished &&
        coordinator->checkpointer.map.generation > 0 &&
        coordinator->finish_generation == coordinator->checkpointer.map.generation) {
        kelp_checkpointing_apply(
            coordinator, (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_FINISHED});
    }
}

/* What the job came to, from the files: no record will say it again. */
static void recall(struct kelp_coordinator *coordinator)
{
    struct kelp_progress *progress = &coordinator->progress;
    struct kelp_record record;
    for (uint32_t part = 0; part < KELP_SPLIT_COUNT; part++) {
        if (!progress->known[part] && kelp_journal_latest(coordinator->journal, part, &record)) {
            kelp_progress_note(progress, &record, part);
        }
    }
    if (progress->digest[0] == '\0') {
        (void)kelp_journal_digest(coordinator->journal, progress->digest,
                                  &progress->digest_step); /* none: "" */
    }
}

/* Restored from the checkpoint of the final state: nothing is computed any more, and no record
 * comes. The last one was on file before that checkpoint was made. */
static void notice_end(struct kelp_coordinator *coordinator, uint64_t generation)
{
    const struct kelp_control_word *word = &coordinator->progress.word;
    const struct kelp_map *map = &coordinator->placement.map;
    if (word->kind == KELP_STEP_DONE && map->restore_version > 0 &&
        word->version == map->restore_version && generation == map->generation &&
        generation > coordinator->finish_generation) {
        coordinator->finish_generation = generation;
        coordinator->finish_on_file = true;
        recall(coordinator);
    }
}

/* What the checkpoints go by: of the current generation alone. */
static void tell_progress(struct kelp_coordinator *coordinator, uint64_t generation)
{
    if (generation == 0 || generation != coordinator->checkpointer.map.generation) {
        return;
    }
    coordinator->step_known = true;
    coordinator->known_step = coordinator->progress.word.step;
    notice_end(coordinator, generation);
    kelp_checkpointing_apply(coordinator,
                             (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_PROGRESS,
                                                              .word = &coordinator->progress.word});
}

static void tell_evaluated(struct kelp_coordinator *coordinator, const struct kelp_record *record)
{
    struct kelp_checkpointer_event event = {.kind = KELP_CHECKPOINTER_EVALUATED,
                                            .step = record->word.step};
    kelp_metrics_for_checkpoint(&record->metrics, event.metric);
    kelp_checkpointing_apply(coordinator, event);
}

static void run_sync(struct kelp_task *base)
{
    struct sync_task *task = KELP_CONTAINER_OF(base, struct sync_task, task);
    task->status = kelp_journal_sync(task->journal, &task->error);
}

static void sync_done(struct kelp_task *base)
{
    struct sync_task *task = KELP_CONTAINER_OF(base, struct sync_task, task);
    struct kelp_coordinator *coordinator = task->coordinator;
    if (!base->cancelled && task->status != KELP_OK) {
        kelp_log_error("records may not survive a crash error=\"%s\"", task->error.text);
    }
    if (task->finish && coordinator->leading && coordinator->journal == task->journal) {
        kelp_coordinator_touch(coordinator);
        coordinator->finish_on_file = true;
        tell_finish(coordinator);
    }
    if (task->close) {
        kelp_journal_close(task->journal);
    }
    free(task);
}

/* Syncing takes as long as the disk likes: on the tasks's thread. */
static void sync_journal(struct kelp_coordinator *coordinator, bool finish, bool close)
{
    struct sync_task *task = calloc(1, sizeof(*task));
    if (task == NULL) {
        kelp_log_error("records not synced: out of memory");
        return;
    }
    task->task.run = run_sync;
    task->task.done = sync_done;
    task->coordinator = coordinator;
    task->journal = coordinator->journal;
    task->finish = finish;
    task->close = close;
    kelp_status status = kelp_task_thread_submit(coordinator->disk, &task->task);
    if (status != KELP_OK) {
        kelp_log_error("records not synced error=\"%s\"", kelp_status_text(status));
        task->task.cancelled = true;
        sync_done(&task->task);
    }
}

static void log_record(const struct kelp_record *record)
{
    if (record->word.kind == KELP_STEP_TRAIN && record->epoch_end) {
        kelp_log_info("epoch completed epoch=%u step=%" PRIu64 " loss=%.9g", record->word.epoch + 1,
                      record->word.step + 1, record->epoch_loss);
    }
}

/* Put what waits on file. */
void kelp_records_tick(struct kelp_coordinator *coordinator)
{
    struct kelp_progress *progress = &coordinator->progress;
    const struct kelp_record *record = NULL;
    bool sync = false;
    bool finish = false;
    if (coordinator->now_ms < coordinator->append_at_ms) {
        return;
    }
    while ((record = kelp_progress_peek(progress)) != NULL) {
        struct kelp_error error;
        kelp_status status = kelp_journal_append(coordinator->journal, record, &error);
        if (status == KELP_ERR_MISMATCH) {
            kelp_log_error("%s", error.text);
            kelp_coordinator_fail_job(coordinator, error.text);
        } else if (status != KELP_OK) {
            kelp_log_error("records wait waiting=%zu error=\"%s\"", progress->queue_count,
                           error.text);
            coordinator->append_at_ms = coordinator->now_ms + 1000;
            break;
        }
        log_record(record);
        sync = sync || record->epoch_end || record->word.kind != KELP_STEP_TRAIN;
        finish = finish || record->word.kind == KELP_STEP_FINISH;
        kelp_progress_pop(progress);
    }
    if (sync) {
        sync_journal(coordinator, finish, false);
    }
    tell_finish(coordinator);
}

void kelp_records_take(struct kelp_coordinator *coordinator, const Kelp__V1__ShardReport *report,
                       uint64_t generation)
{
    struct kelp_progress *progress = &coordinator->progress;
    struct kelp_record record;
    if (report->word != NULL && kelp_wire_take_word(report->word, &progress->word)) {
        progress->word_known = true;
        progress->best.known = report->best && kelp_wire_take_best(report->best, &progress->best);
        tell_progress(coordinator, generation);
    }
    for (size_t i = 0; i < report->n_records; i++) {
        kelp_status status =
            kelp_wire_take_record(report->records[i], &record) ? KELP_OK : KELP_ERR_FORMAT;
        if (status == KELP_OK) {
            status = kelp_progress_record(progress, &record);
        }
        if (status == KELP_OK && record.word.kind == KELP_STEP_FINISH &&
            generation > coordinator->finish_generation) {
            coordinator->finish_generation = generation;
        }
        if (status == KELP_OK && record.word.kind == KELP_STEP_EVALUATE_VAL) {
            tell_evaluated(coordinator, &record);
        }
        if (status != KELP_OK) {
            char reason[128];
            (void)snprintf(reason, sizeof(reason), "a record of a completed step was not taken: %s",
                           kelp_status_text(status));
            kelp_coordinator_fail_job(coordinator, reason);
            break;
        }
    }
    if (report->latest_train != NULL && kelp_wire_take_record(report->latest_train, &record)) {
        progress->latest[KELP_SPLIT_TRAIN] = record;
        progress->known[KELP_SPLIT_TRAIN] = true;
    }
    kelp_records_tick(coordinator);
}

void kelp_records_close(struct kelp_coordinator *coordinator)
{
    if (coordinator->journal != NULL) {
        sync_journal(coordinator, false, true);
        coordinator->journal = NULL;
    }
}
