#include "coordinator/files/record_files.h"

#include <stdlib.h>
#include <string.h>

#include "common/log/log.h"
#include "common/program/run_next.h"
#include "coordinator/common/term_now.h"

enum kind { FILE_RECORDS, TAKE_HOLD, SYNC, CLOSE };

/* A task for the disk's thread. */
struct kelp_record_task {
    struct kelp_task task;
    enum kind kind;
    struct kelp_record_files *files;
    struct kelp_journal *journal;
    const char *run_folder;
    /* FILE_RECORDS */
    bool sync;
    bool synced;
    size_t count;
    size_t filed;
    /* TAKE_HOLD */
    struct kelp_hold hold;
    struct kelp_plan plan; /* hold's plan without tensors: a copy, as the term's may be replaced */
    const struct kelp_job *job;

    kelp_status status;
    struct kelp_error error;
    struct kelp_record records[]; /* FILE_RECORDS */
};

/* ---- on the disk's thread ---- */

static bool sync_journal(struct kelp_record_task *task)
{
    struct kelp_error error;
    const bool synced = kelp_journal_sync(task->journal, &error) == KELP_OK;
    if (!synced) {
        kelp_log_error("records may not survive a crash error=\"%s\"", error.text);
    }
    return synced;
}

static void file_records(struct kelp_record_task *task)
{
    while (task->filed < task->count && task->status == KELP_OK) {
        task->status =
            kelp_journal_append(task->journal, &task->records[task->filed], &task->error);
        task->filed += task->status == KELP_OK ? 1 : 0;
    }
    task->synced = task->sync && task->filed > 0 && sync_journal(task);
}

static kelp_status cut_lines(const char *keep, struct kelp_error *reterr, void *user)
{
    const struct kelp_record_task *task = user;
    const struct kelp_hold *hold = &task->hold;
    kelp_status status = kelp_journal_lengthen(task->journal, task->job, hold->plan, keep, reterr);
    if (status == KELP_OK && hold->force && (hold->opened || keep)) {
        status = kelp_journal_truncate(task->journal, hold->restored, keep, reterr);
    }
    return status;
}

static void run(struct kelp_task *base)
{
    struct kelp_record_task *task = KELP_CONTAINER_OF(base, struct kelp_record_task, task);
    switch (task->kind) {
    case FILE_RECORDS:
        file_records(task);
        break;
    case TAKE_HOLD:
        task->status = kelp_run_next_take(task->run_folder, cut_lines, task, &task->error);
        break;
    case SYNC:
    case CLOSE:
        (void)sync_journal(task); /* it has reported an error itself */
        break;
    }
}

/* ---- on the loop ---- */

static void tell(struct kelp_term *term, const struct kelp_record_task *task)
{
    const struct kelp_filed filed = {.count = task->filed,
                                     .synced = task->synced,
                                     .status = task->status,
                                     .text = task->error.text};
    switch (task->kind) {
    case FILE_RECORDS:
        kelp_term_filed(term, &filed);
        break;
    case TAKE_HOLD:
        kelp_term_held(term, task->hold.generation, task->status, task->error.text);
        break;
    case SYNC:
    case CLOSE:
        break;
    }
}

static void done(struct kelp_task *base)
{
    struct kelp_record_task *task = KELP_CONTAINER_OF(base, struct kelp_record_task, task);
    struct kelp_record_files *files = task->files;
    if (files->journal == task->journal && !base->cancelled) {
        struct kelp_term *term = kelp_term_now(files->leadership);
        if (term) {
            tell(term, task);
        }
    }
    if (task->kind == CLOSE) {
        kelp_journal_close(task->journal);
    }
    free(task);
}

/* NULL: out of memory. */
static struct kelp_record_task *make(struct kelp_record_files *files, enum kind kind,
                                     const struct kelp_record *records, size_t count)
{
    struct kelp_record_task *task = calloc(1, sizeof(*task) + count * sizeof(*records));
    if (!task) {
        return NULL;
    }
    task->task.run = run;
    task->task.done = done;
    task->kind = kind;
    task->files = files;
    task->journal = files->journal;
    task->run_folder = files->run_folder;
    task->count = count;
    if (count > 0) {
        memcpy(task->records, records, count * sizeof(*records));
    }
    return task;
}

/* The task is transferred, also on an error; NULL: out of memory. */
static bool submit(struct kelp_record_files *files, struct kelp_record_task *task)
{
    kelp_status status =
        task ? kelp_task_thread_submit(files->disk, &task->task) : KELP_ERR_NO_MEMORY;
    if (status != KELP_OK) {
        kelp_log_error("the run's records wait error=\"%s\"", kelp_status_text(status));
        free(task);
    }
    return status == KELP_OK;
}

kelp_status kelp_record_files_open(struct kelp_record_files *files, struct kelp_error *reterr)
{
    kelp_status status = kelp_journal_open(files->run_folder, files->job, &files->journal, reterr);
    if (status != KELP_OK) {
        return status;
    }
    files->last = make(files, CLOSE, NULL, 0);
    if (!files->last) {
        kelp_journal_close(files->journal);
        files->journal = NULL;
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the journal");
    }
    return KELP_OK;
}

bool kelp_record_files_hold(struct kelp_record_files *files, const struct kelp_hold *hold,
                            const struct kelp_job *job)
{
    struct kelp_record_task *task = make(files, TAKE_HOLD, NULL, 0);
    if (task) {
        task->hold = *hold;
        task->plan = *hold->plan;
        task->plan.tensors = NULL;
        task->plan.tensor_count = 0;
        task->hold.plan = &task->plan;
        task->job = job;
    }
    return submit(files, task);
}

bool kelp_record_files_file(struct kelp_record_files *files, const struct kelp_record *records,
                            size_t count, bool sync)
{
    struct kelp_record_task *task = make(files, FILE_RECORDS, records, count);
    if (task) {
        task->sync = sync;
    }
    return submit(files, task);
}

bool kelp_record_files_sync(struct kelp_record_files *files)
{
    return submit(files, make(files, SYNC, NULL, 0));
}

void kelp_record_files_close(struct kelp_record_files *files)
{
    struct kelp_record_task *last = files->last;
    files->journal = NULL;
    files->last = NULL;
    if (kelp_task_thread_submit_last(files->disk, &last->task) != KELP_OK) { /* it has stopped */
        done(&last->task);
    }
}

void kelp_record_files_recall(const struct kelp_record_files *files, struct kelp_progress *progress)
{
    struct kelp_record record;
    for (uint32_t split = 0; split < KELP_SPLIT_COUNT; split++) {
        if (!progress->known[split] && kelp_journal_latest(files->journal, split, &record)) {
            kelp_progress_note(progress, &record, split);
        }
    }
    char digest[sizeof(progress->digest)];
    uint64_t step = 0;
    if (kelp_journal_digest(files->journal, digest, &step)) {
        kelp_progress_recall(progress, digest, step);
    }
}
