#include "coordinator/record_files.h"

#include <stdlib.h>

#include "common/base/log.h"
#include "common/program/run_next.h"
#include "coordinator/term_now.h"

struct sync_task {
    struct kelp_task task;
    struct kelp_record_files *files;
    struct kelp_journal *journal;
    bool finish; /* the job's last record is on file with this */
    bool close;  /* the journal is not needed any more */
    kelp_status status;
    struct kelp_error error;
};

static void run_sync(struct kelp_task *base)
{
    struct sync_task *task = KELP_CONTAINER_OF(base, struct sync_task, task);
    task->status = kelp_journal_sync(task->journal, &task->error);
}

static void sync_done(struct kelp_task *base)
{
    struct sync_task *task = KELP_CONTAINER_OF(base, struct sync_task, task);
    struct kelp_record_files *files = task->files;
    if (!base->cancelled && task->status != KELP_OK) {
        kelp_log_error("records may not survive a crash error=\"%s\"", task->error.text);
    }
    if (files->journal == task->journal) {
        struct kelp_term *term = kelp_term_now(files->leadership);
        if (term) {
            kelp_term_synced(term, task->finish);
        }
    }
    if (task->close) {
        kelp_journal_close(task->journal);
    }
    free(task);
}

/* The task is transferred on success alone. */
static bool submit(struct kelp_record_files *files, struct sync_task *task)
{
    task->task.run = run_sync;
    task->task.done = sync_done;
    task->files = files;
    task->journal = files->journal;
    kelp_status status = kelp_task_thread_submit(files->disk, &task->task);
    if (status != KELP_OK) {
        kelp_log_error("records not synced error=\"%s\"", kelp_status_text(status));
    }
    return status == KELP_OK;
}

bool kelp_record_files_sync(struct kelp_record_files *files, bool finish)
{
    struct sync_task *task = calloc(1, sizeof(*task));
    if (!task) {
        kelp_log_error("records not synced: out of memory");
        return false;
    }
    task->finish = finish;
    if (!submit(files, task)) {
        free(task);
        return false;
    }
    return true;
}

kelp_status kelp_record_files_open(struct kelp_record_files *files, struct kelp_error *reterr)
{
    return kelp_journal_open(files->run_folder, &files->journal, reterr);
}

/* What the lines of another job are cut by. */
struct cut {
    struct kelp_journal *journal;
    const struct kelp_hold *hold;
    const struct kelp_job *job;
};

static kelp_status cut_lines(const char *keep, struct kelp_error *reterr, void *user)
{
    const struct cut *cut = user;
    const struct kelp_hold *hold = cut->hold;
    kelp_status status = kelp_journal_lengthen(cut->journal, cut->job, hold->plan, keep, reterr);
    if (status == KELP_OK && hold->force && (hold->opened || keep)) {
        status = kelp_journal_truncate(cut->journal, hold->restored, keep, reterr);
    }
    return status;
}

kelp_status kelp_record_files_hold(struct kelp_record_files *files, const struct kelp_hold *hold,
                                   const struct kelp_job *job, struct kelp_error *reterr)
{
    struct cut cut = {.journal = files->journal, .hold = hold, .job = job};
    return kelp_run_next_take(files->run_folder, cut_lines, &cut, reterr);
}

void kelp_record_files_close(struct kelp_record_files *files)
{
    struct sync_task *task = calloc(1, sizeof(*task));
    if (task) {
        task->close = true;
    }
    if (!task || !submit(files, task)) {
        kelp_journal_close(files->journal);
        free(task);
    }
    files->journal = NULL;
}

void kelp_record_files_recall(const struct kelp_record_files *files, struct kelp_progress *progress)
{
    struct kelp_record record;
    for (uint32_t split = 0; split < KELP_SPLIT_COUNT; split++) {
        if (!progress->known[split] && kelp_journal_latest(files->journal, split, &record)) {
            kelp_progress_note(progress, &record, split);
        }
    }
    if (progress->digest[0] == '\0') {
        (void)kelp_journal_digest(files->journal, progress->digest,
                                  &progress->digest_step); /* none: "" */
    }
}
