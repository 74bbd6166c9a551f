/*
 * The run's journal (journal.h) while a term lasts. Everything that touches its files, but for
 * opening them, is done on the disk's thread, one after the other: a disk that hangs holds up
 * nothing else.
 */
#ifndef KELP_COORDINATOR_FILES_RECORD_FILES_H
#define KELP_COORDINATOR_FILES_RECORD_FILES_H

#include "coordinator/etcd/task_thread.h"
#include "coordinator/files/journal.h"
#include "coordinator/term/leadership.h"

struct kelp_record_task;

struct kelp_record_files {
    const char *run_folder;             /* borrowed */
    struct kelp_task_thread *disk;      /* borrowed */
    struct kelp_leadership *leadership; /* borrowed; hears of what was done */
    const struct kelp_job *job;         /* borrowed */
    struct kelp_journal *journal;       /* NULL: no term */
    struct kelp_record_task *last; /* closes it; made with it, so that nothing stands against */
};

/* Errors: as kelp_journal_open(). */
kelp_status kelp_record_files_open(struct kelp_record_files *files,
                                   struct kelp_error *reterr) KELP_MUST_USE;
/* Sync, then close. */
void kelp_record_files_close(struct kelp_record_files *files);

/* Effects of a term (coordinator/term/outside/term_effects.h). False: it will not be done. */

/* The run is this job's from now on: what a resume has laid ready is put in place
 * (common/program/run_next.h), and lines that are not this job's are forgotten. job is borrowed for
 * the life of the process. */
bool kelp_record_files_hold(struct kelp_record_files *files, const struct kelp_hold *hold,
                            const struct kelp_job *job) KELP_MUST_USE;
bool kelp_record_files_file(struct kelp_record_files *files, const struct kelp_record *records,
                            size_t count, bool sync) KELP_MUST_USE;
/* What was filed so far outlives a loss of power before what the disk's thread is asked for next.
 */
bool kelp_record_files_sync(struct kelp_record_files *files) KELP_MUST_USE;
/* What the job came to, from the files: no record will say it again. */
void kelp_record_files_recall(const struct kelp_record_files *files,
                              struct kelp_progress *progress);

#endif
