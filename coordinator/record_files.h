/*
 * The run's journal (journal.h) while a term lasts; syncing it is done on the disk's thread.
 */
#ifndef KELP_COORDINATOR_RECORD_FILES_H
#define KELP_COORDINATOR_RECORD_FILES_H

#include "coordinator/etcd/task_thread.h"
#include "coordinator/journal.h"
#include "coordinator/term/leadership.h"

struct kelp_record_files {
    const char *run_folder;             /* borrowed */
    struct kelp_task_thread *disk;      /* borrowed */
    struct kelp_leadership *leadership; /* borrowed; hears of syncs */
    struct kelp_journal *journal;       /* NULL: no term */
};

/* Errors: as kelp_journal_open(). */
kelp_status kelp_record_files_open(struct kelp_record_files *files,
                                   struct kelp_error *reterr) KELP_MUST_USE;
/* Sync, then close. */
void kelp_record_files_close(struct kelp_record_files *files);
/* The run is this job's from now on: what a resume has laid ready is put in place
 * (common/program/run_next.h), and lines that are not this job's are forgotten. Errors: of files.
 */
kelp_status kelp_record_files_hold(struct kelp_record_files *files, const struct kelp_hold *hold,
                                   const struct kelp_job *job,
                                   struct kelp_error *reterr) KELP_MUST_USE;
/* Sync; then kelp_term_synced(). False: it will not be done. */
bool kelp_record_files_sync(struct kelp_record_files *files, bool finish) KELP_MUST_USE;
/* What the job came to, from the files: no record will say it again. */
void kelp_record_files_recall(const struct kelp_record_files *files,
                              struct kelp_progress *progress);

#endif
