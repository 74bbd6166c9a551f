/*
 * What takes minutes to show, and is run by hand (`.proof` of KELP_CASE()): one job that trains for
 * a minute or two ends to the same digest as its quiet run, whatever is done to it meanwhile. All
 * proofs train this job, so that they all have one digest.
 *
 * Its gradients are clipped, one step of each epoch is skipped, each epoch ends with evaluations,
 * and its learning rate stays as it is. On a machine that trains it too fast, KELP_PROOF_EPOCHS=N
 * makes it longer.
 */
#ifndef KELP_TESTS_LIB_COMMANDS_PROOF_H
#define KELP_TESTS_LIB_COMMANDS_PROOF_H

#include "tests/lib/commands/run_train.h"

#define KELP_PROOF_S 3600 /* of one proof, on a slow machine */

/* FOLDER/job.yaml and its data; the epochs that it has. */
unsigned kelp_proof_write(const char *folder);
/* Rows of such data as FOLDER/name. with_bad: one of the training rows is too large to compute. */
void kelp_proof_rows(const char *folder, const char *name, unsigned count, bool with_bad);

/* Make a folder for it, and train it to its end with these arguments of kelp train more (NULL:
 * none). The caller ends it by kelp_run_fini(). */
void kelp_proof_quiet(struct kelp_run *quiet, const char *const *args);
/* Start it in the folder of a run that is prepared; returns once it trains. */
void kelp_proof_start(struct kelp_run *run, const char *const *args);
/* Fails the test when it has ended: what comes next would happen to nobody. */
void kelp_proof_goes_on(const struct kelp_run *run);
/* Wait for its end, which must be a good one. */
void kelp_proof_end(struct kelp_run *run);

/* Digest, digests.jsonl and metrics.jsonl are those of the quiet run, and steps were skipped.
 * Prints them after `what`, with what the run went through. */
void kelp_proof_same(const char *what, const struct kelp_run *run, const struct kelp_run *quiet);
/* The same of two folders of runs. */
void kelp_proof_same_records(const char *run_folder, const char *quiet_folder);
/* It never went back to a checkpoint: no restore, no step again, one generation. */
void kelp_proof_never_back(const struct kelp_run *run);

/* Lines of events.jsonl about that event. */
unsigned kelp_proof_events(const char *run_folder, const char *event);

#endif
