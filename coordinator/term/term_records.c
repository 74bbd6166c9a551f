/*
 * Reports of partition 0's shard, on their way to the run's files and to the checkpointer.
 */
#include <inttypes.h>
#include <stdio.h>

#include "coordinator/term/term_internal.h"

bool kelp__term_finished(const struct kelp_term *term)
{
    const struct kelp_map *map = &term->placement.map;
    return term->records.finish_on_file && map->generation > 0 &&
           term->records.finish_generation == map->generation;
}

/* The generation counts as finished once the last record is safe; a checkpoint of the final
 * state comes before the end. */
static void tell_finish(struct kelp_term *term)
{
    const struct kelp_checkpointer *checkpointer = &term->keeper.machine;
    kelp__term_judge_end(term);
    if (term->records.finish_on_file && !checkpointer->finished &&
        checkpointer->map.generation > 0 &&
        term->records.finish_generation == checkpointer->map.generation) {
        kelp__term_checkpoint(term,
                              (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_FINISHED});
    }
}

/* If the checkpoint of the final state was restored, nothing is computed any more and no record
 * comes. The last record was on file before that checkpoint was made. */
static void notice_end(struct kelp_term *term, uint64_t generation)
{
    const struct kelp_control_word *word = &term->progress.word;
    const struct kelp_map *map = &term->placement.map;
    if (word->kind == KELP_STEP_DONE && map->restore_version > 0 &&
        word->version == map->restore_version && generation == map->generation &&
        generation > term->records.finish_generation) {
        term->records.finish_generation = generation;
        term->records.finish_on_file = true;
        term->outside.effects->recall(&term->progress, term->outside.user);
    }
}

/* Make the run's folder this job's before any record of this job is written. Records of another
 * job are cut, since this job may compute something else (--force). So are records that are
 * computed again after workers differed. False: not yet, because the disk has not taken it or
 * the generation is not known. */
static bool take_hold(struct kelp_term *term)
{
    const struct kelp_outside *outside = &term->outside;
    const struct kelp_map *map = &term->placement.map;
    struct kelp_term_hold *hold = &term->hold;
    if (hold->taken || hold->asked || map->generation == 0 || !term->offer.plan ||
        term->now_ms < hold->retry_ms) {
        return hold->taken;
    }
    const struct kelp_hold wanted = {.generation = map->generation,
                                     .plan = term->offer.plan,
                                     .force = term->options.force || hold->forgets,
                                     .opened = hold->opened,
                                     .restored = map->restore_version};
    hold->asked = outside->effects->take_hold(&wanted, outside->user);
    if (hold->asked && hold->forgets) {
        kelp_outside_log(
            outside, KELP_LOG_WARN,
            "workers differed: lines of what is computed again are forgotten version=%" PRIu64,
            wanted.restored);
    }
    hold->retry_ms = term->now_ms + KELP_COORDINATOR_APPEND_MS;
    return false;
}

/* Note trouble with the run's files, for which the job may wait at its end. */
static void note_trouble(struct kelp_term *term, kelp_status status, const char *text)
{
    (void)snprintf(term->records.trouble, sizeof(term->records.trouble), "%s",
                   status == KELP_OK ? "" : text);
}

void kelp_term_held(struct kelp_term *term, uint64_t generation, kelp_status status,
                    const char *text)
{
    struct kelp_term_hold *hold = &term->hold;
    if (generation != term->placement.map.generation) {
        return;
    }
    hold->asked = false;
    hold->taken = status == KELP_OK;
    note_trouble(term, status, text);
    if (!hold->taken) {
        kelp_outside_log(&term->outside, KELP_LOG_ERROR,
                         "the run stays as it was for now error=\"%s\"", text);
        hold->retry_ms = term->now_ms + KELP_COORDINATOR_APPEND_MS;
    }
    kelp__term_file_records(term);
}

/* Checkpoints follow the progress of the current generation only. */
static void tell_progress(struct kelp_term *term, uint64_t generation)
{
    if (generation == 0 || generation != term->keeper.machine.map.generation) {
        return;
    }
    if (term->progress.word.version > term->placement.map.restore_version) {
        (void)take_hold(term); /* otherwise tried with the next report */
    }
    kelp_step_count_progress(&term->steps, term->progress.word.step);
    notice_end(term, generation);
    kelp__term_checkpoint(term, (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_PROGRESS,
                                                                 .progress = &term->progress.word});
}

static void tell_evaluated(struct kelp_term *term, const struct kelp_record *record)
{
    struct kelp_checkpointer_event event = {.kind = KELP_CHECKPOINTER_EVALUATED,
                                            .evaluated = {.step = record->word.step}};
    kelp_metrics_for_checkpoint(term->options.job, &record->metrics, event.evaluated.metric);
    kelp__term_checkpoint(term, event);
}

/* " loss=0.16 mse=0.16 …" */
static void print_measures(const struct kelp_job *job, const struct kelp_metrics *metrics,
                           char *text, size_t text_bytes)
{
    char name[KELP_JOB_SUM_NAME_MAX + 1];
    size_t used = 0;
    text[0] = '\0';
    for (enum kelp_metric i = 0; i < KELP_METRIC_COUNT && used < text_bytes; i++) {
        if (kelp_metrics_have(metrics, i)) {
            kelp_metric_name_in(job, i, name);
            used +=
                (size_t)snprintf(text + used, text_bytes - used, " %s=%.9g", name, metrics->of[i]);
        }
    }
}

static void log_record(const struct kelp_term *term, const struct kelp_record *record)
{
    if (record->word.kind == KELP_STEP_EVALUATE_VAL ||
        record->word.kind == KELP_STEP_EVALUATE_TEST) {
        char measures[512];
        print_measures(term->options.job, &record->metrics, measures, sizeof(measures));
        kelp_outside_log(&term->outside, KELP_LOG_INFO, "evaluated split=%s epoch=%u step=%llu%s",
                         record->word.kind == KELP_STEP_EVALUATE_VAL ? "val" : "test",
                         record->word.epoch + 1, (unsigned long long)record->word.step, measures);
    }
    if (record->word.kind == KELP_STEP_TRAIN && record->epoch_end) {
        kelp_outside_log(&term->outside, KELP_LOG_INFO,
                         "epoch completed epoch=%u step=%llu loss=%.9g", record->word.epoch + 1,
                         (unsigned long long)record->word.step + 1, record->epoch_loss);
    }
}

/* File all waiting records in one batch; one batch is under way at a time. */
void kelp__term_file_records(struct kelp_term *term)
{
    struct kelp_term_records *records = &term->records;
    size_t count = 0;
    const struct kelp_record *first = kelp_progress_waiting(&term->progress, &count);
    /* Records from before a checkpoint must be durable before it is committed. */
    bool sync = term->keeper.machine.state == KELP_CHECKPOINTER_WRITING;
    if (count == 0) {
        records->moved_ms = term->now_ms;
    }
    if (count > 0 && records->filing == 0 && term->now_ms >= records->file_at_ms &&
        take_hold(term)) {
        count = count > KELP_COORDINATOR_FILE_MAX ? KELP_COORDINATOR_FILE_MAX : count;
        for (size_t i = 0; i < count; i++) {
            sync = sync || first[i].epoch_end || first[i].word.kind != KELP_STEP_TRAIN;
        }
        records->unsynced += count;
        sync = sync || records->unsynced >= KELP_COORDINATOR_SYNC_RECORDS;
        bool asked = term->outside.effects->file(first, count, sync, term->outside.user);
        records->filing = asked ? count : 0;
        records->filing_generation = term->progress.generation;
        records->unsynced = sync ? 0 : records->unsynced;
        records->file_at_ms = asked ? 0 : term->now_ms + KELP_COORDINATOR_APPEND_MS;
    }
    tell_finish(term);
}

/* Remove the first waiting record: it is on file, or never will be. */
static void pop_record(struct kelp_term *term)
{
    const struct kelp_record *record = kelp_progress_peek(&term->progress);
    log_record(term, record);
    term->records.finish_on_file =
        term->records.finish_on_file || record->word.kind == KELP_STEP_FINISH;
    term->records.moved_ms = term->now_ms;
    kelp_progress_pop(&term->progress);
}

static void note_safe(struct kelp_term *term, const struct kelp_record *record)
{
    struct kelp_term_records *records = &term->records;
    if (records->filing_generation == term->progress.generation) {
        records->safe_generation = records->filing_generation;
        records->safe_version = record->word.version;
    }
}

uint64_t kelp__term_safe_version(const struct kelp_term *term)
{
    const bool known = term->records.safe_generation == term->placement.map.generation;
    return known && !term->options.no_checkpoints ? term->records.safe_version : 0;
}

void kelp_term_filed(struct kelp_term *term, const struct kelp_filed *filed)
{
    const struct kelp_outside *outside = &term->outside;
    for (size_t i = 0; i < filed->count; i++) {
        if (filed->synced) {
            note_safe(term, kelp_progress_peek(&term->progress));
        }
        pop_record(term);
    }
    term->records.filing = 0;
    note_trouble(term, filed->status, filed->text);
    if (filed->status == KELP_ERR_MISMATCH) {
        kelp_outside_log(outside, KELP_LOG_ERROR, "%s", filed->text);
        pop_record(term);
        kelp__term_fail_job(term, filed->text);
    } else if (filed->status != KELP_OK) {
        kelp_outside_log(outside, KELP_LOG_ERROR, "records wait waiting=%zu error=\"%s\"",
                         term->progress.queue_count, filed->text);
        term->records.file_at_ms = term->now_ms + KELP_COORDINATOR_APPEND_MS;
    }
    kelp__term_file_records(term);
}

uint64_t kelp__term_filed_version(const struct kelp_term *term)
{
    const struct kelp_record *first = kelp_progress_peek(&term->progress);
    bool stuck = term->now_ms - term->records.moved_ms >= KELP_COORDINATOR_FILING_MS;
    return first && !stuck ? first->word.version : UINT64_MAX;
}

static void explain_untaken(const struct kelp_term *term, kelp_status status,
                            char reason[KELP_COORDINATOR_REASON_MAX + 1])
{
    const char *trouble = term->records.trouble;

    if (status == KELP_ERR_LIMIT) {
        (void)snprintf(reason, KELP_COORDINATOR_REASON_MAX + 1,
                       "%d records wait for the disk, and no more are kept: %.400s",
                       KELP_COORDINATOR_RECORDS_MAX,
                       trouble[0] != '\0' ? trouble : "it has not taken any for a while");
    } else {
        (void)snprintf(reason, KELP_COORDINATOR_REASON_MAX + 1,
                       "a record of a completed step was not taken: %s", kelp_status_text(status));
    }
}

/* False: the record was refused, and the job has failed. */
static bool apply_record(struct kelp_term *term, const struct kelp_link_report *report,
                         size_t index, uint64_t generation)
{
    struct kelp_record record;
    kelp_status status =
        report->record(report->records, index, &record) ? KELP_OK : KELP_ERR_FORMAT;
    if (status == KELP_OK) {
        status = kelp_progress_record(&term->progress, &record);
    }
    if (status != KELP_OK) {
        char reason[KELP_COORDINATOR_REASON_MAX + 1];
        explain_untaken(term, status, reason);
        kelp__term_fail_job(term, reason);
        return false;
    }
    if (record.word.kind == KELP_STEP_FINISH && generation > term->records.finish_generation) {
        term->records.finish_generation = generation;
    }
    if (record.word.kind == KELP_STEP_EVALUATE_VAL) {
        tell_evaluated(term, &record);
    }
    return true;
}

void kelp__term_apply_records(struct kelp_term *term, const struct kelp_link_report *report,
                              uint64_t generation)
{
    struct kelp_progress *progress = &term->progress;
    if (report->word && progress->word_known && report->word->version > progress->word.version) {
        kelp_placement_progressed(&term->placement, term->now_ms);
    }
    if (report->word && kelp_progress_stand(progress, generation, report->word, report->best)) {
        tell_progress(term, generation);
    }
    for (size_t i = 0; i < report->record_count; i++) {
        if (!apply_record(term, report, i, generation)) {
            break;
        }
    }
    if (report->latest_train) {
        kelp_progress_latest(progress, report->latest_train);
    }
    kelp__term_file_records(term);
}
