/* What a simulated coordinator makes of the records of completed entries (coordinator/records.c).
 */
#include "tests/sim/coordinator.h"
#include "tests/sim/disk.h"

void sim_records_tell_finish(struct sim_coordinator *coordinator)
{
    const struct kelp_checkpointer *checkpointer = &coordinator->checkpointer;
    if (coordinator->finish_on_file && !checkpointer->finished &&
        checkpointer->map.generation > 0 &&
        coordinator->finish_generation == checkpointer->map.generation) {
        sim_checkpoints_apply(coordinator,
                              (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_FINISHED});
    }
}

/* Restored from the checkpoint of the final state: nothing is computed any more, and no record
 * comes. The last one was on file before that checkpoint was made. */
static void notice_end(struct sim_coordinator *coordinator, uint64_t generation)
{
    const struct kelp_control_word *word = &coordinator->progress.word;
    const struct kelp_map *map = &coordinator->placement.map;
    if (word->kind == KELP_STEP_DONE && map->restore_version > 0 &&
        word->version == map->restore_version && generation == map->generation &&
        generation > coordinator->finish_generation) {
        coordinator->finish_generation = generation;
        coordinator->finish_on_file = true;
    }
}

static void tell_progress(struct sim_coordinator *coordinator, uint64_t generation)
{
    if (generation == 0 || generation != coordinator->checkpointer.map.generation) {
        return;
    }
    notice_end(coordinator, generation);
    sim_checkpoints_apply(coordinator,
                          (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_PROGRESS,
                                                           .word = &coordinator->progress.word});
}

static void tell_evaluated(struct sim_coordinator *coordinator, const struct kelp_record *record)
{
    struct kelp_checkpointer_event event = {.kind = KELP_CHECKPOINTER_EVALUATED,
                                            .step = record->word.step};
    kelp_metrics_for_checkpoint(&record->metrics, event.metric);
    sim_checkpoints_apply(coordinator, event);
}

void sim_records_tick(struct sim_coordinator *coordinator)
{
    const struct kelp_record *record = NULL;
    bool sync = false;
    bool finish = false;
    while ((record = kelp_progress_peek(&coordinator->progress)) != NULL) {
        sim_journal_append(coordinator->sim, record);
        sync = sync || record->epoch_end || record->word.kind != KELP_STEP_TRAIN;
        finish = finish || record->word.kind == KELP_STEP_FINISH;
        kelp_progress_pop(&coordinator->progress);
    }
    if (sync) {
        sim_disk_sync_journal(coordinator, finish);
    }
    sim_records_tell_finish(coordinator);
}

void sim_records_take(struct sim_coordinator *coordinator, const struct sim_shard_report *report,
                      uint64_t generation)
{
    struct kelp_progress *progress = &coordinator->progress;
    if (report->has_word) {
        progress->word_known = true;
        progress->word = report->word;
        tell_progress(coordinator, generation);
    }
    for (size_t i = 0; i < report->record_count; i++) {
        if (kelp_progress_record(progress, &report->records[i]) != KELP_OK) {
            sim_fail(coordinator->sim, "records", "a record was not taken");
        }
        if (report->records[i].word.kind == KELP_STEP_FINISH &&
            generation > coordinator->finish_generation) {
            coordinator->finish_generation = generation;
        }
        if (report->records[i].word.kind == KELP_STEP_EVALUATE_VAL) {
            tell_evaluated(coordinator, &report->records[i]);
        }
    }
    sim_records_tick(coordinator);
}
