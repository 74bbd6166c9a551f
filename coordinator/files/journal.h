/*
 * metrics.jsonl and digests.jsonl of the run's folder: one line per completed entry that tells
 * people something, in version order, each version once.
 *
 * Training is a pure function, so after a restore the same records come again: a version that is on
 * file is skipped, and a digest that differs from the one on file is reported, because then
 * training was not what it has to be. A last line that a crash cut off is removed, and so is all
 * from a line on that holds NUL, as pages have that a loss of power left empty; any other damage is
 * an error.
 *
 * Two leaders may append to one folder for a while (one that lost its lease advises on), so each
 * append locks the file and reads what others appended first. A file that holds a version twice
 * with one digest, as written without the lock, is read all the same.
 *
 * Threads: one at a time, which a disk that hangs may hold up; kelp_journal_latest(), _digest(),
 * _step() and _evaluated() from any, and never for long.
 */
#ifndef KELP_COORDINATOR_FILES_JOURNAL_H
#define KELP_COORDINATOR_FILES_JOURNAL_H

#include "common/base/status.h"
#include "common/training/control.h"

struct kelp_journal;

/* folder exists. job is borrowed as long as the journal: it names what its metrics are. Errors:
 * KELP_ERR_IO, KELP_ERR_NOT_FOUND, KELP_ERR_CORRUPT (FILE:LINE: what), KELP_ERR_MISMATCH (a version
 * is there with two digests), KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY. */
kelp_status kelp_journal_open(const char *folder, const struct kelp_job *job,
                              struct kelp_journal **ret_journal,
                              struct kelp_error *reterr) KELP_MUST_USE;
void kelp_journal_close(struct kelp_journal *journal); /* NULL does nothing */

/*
 * Put a record on file unless its version is there.
 * Errors: KELP_ERR_MISMATCH (the digest differs from the one on file; the text shows both),
 *         KELP_ERR_NO_SPACE, KELP_ERR_IO: nothing of it is on file, and it can be tried again;
 *         as kelp_journal_open() about lines that others appended.
 */
kelp_status kelp_journal_append(struct kelp_journal *journal, const struct kelp_record *record,
                                struct kelp_error *reterr) KELP_MUST_USE;

/*
 * Forget the lines of `version` and of all after it: another job than the one that wrote them goes
 * on from there. keep: a folder into which a file is copied before it loses lines; or NULL.
 * Errors: KELP_ERR_IO, and as kelp_journal_open() about lines that others appended.
 */
kelp_status kelp_journal_truncate(struct kelp_journal *journal, uint64_t version, const char *keep,
                                  struct kelp_error *reterr) KELP_MUST_USE;

/*
 * The job goes on for more epochs than the one that wrote the lines: the digest with which that one
 * ended is forgotten where this one records none, so that the files are those of a run that had
 * all of its epochs from the beginning. Errors: as kelp_journal_truncate().
 */
kelp_status kelp_journal_lengthen(struct kelp_journal *journal, const struct kelp_job *job,
                                  const struct kelp_plan *plan, const char *keep,
                                  struct kelp_error *reterr) KELP_MUST_USE;

/* What stands in the newest lines: of the training split epoch_loss, of the others the measures,
 * and the digest. False: there is none. */
bool kelp_journal_latest(struct kelp_journal *journal, enum kelp_split part,
                         struct kelp_record *ret_record);
bool kelp_journal_digest(struct kelp_journal *journal, char ret_digest[33], uint64_t *ret_step);

/* How far training is known to have been: completed training steps of the newest lines. */
uint64_t kelp_journal_step(struct kelp_journal *journal);

/* Loss, mse and mae of the validation split at this step, of the lines that were there when the
 * journal was opened or that others appended; false: it is not known from those. */
bool kelp_journal_evaluated(struct kelp_journal *journal, uint64_t step,
                            double ret_metric[KELP_CHECKPOINT_METRICS]);

/* Make what was appended last. Errors: KELP_ERR_IO. */
kelp_status kelp_journal_sync(struct kelp_journal *journal,
                              struct kelp_error *reterr) KELP_MUST_USE;

#endif
