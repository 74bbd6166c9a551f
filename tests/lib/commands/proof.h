/*
 * Proofs that take minutes and are run by hand (`.proof` of KELP_CASE()): one job that trains for a
 * minute or two must end with the digest of its undisturbed ("quiet") run, whatever happens
 * meanwhile.
 *
 * All proofs train this job, so they all have one digest. Its gradients are clipped, one step of
 * each epoch is skipped, each epoch ends with evaluations, and its learning rate is constant. On a
 * machine that is too fast, KELP_PROOF_EPOCHS=N prolongs it.
 */
#ifndef KELP_TESTS_LIB_COMMANDS_PROOF_H
#define KELP_TESTS_LIB_COMMANDS_PROOF_H

#include "tests/lib/commands/run_train.h"

#define KELP_PROOF_S 3600 /* limit of one proof, on a slow machine */

/* Write FOLDER/job.yaml and its data. Returns the number of epochs. */
unsigned kelp_proof_write(const char *folder);
/* Write rows of such data to FOLDER/name. with_bad: the values of one training row are too large
 * to compute with. */
void kelp_proof_rows(const char *folder, const char *name, unsigned count, bool with_bad);

/* Make a folder for the job, and train it to its end with these further arguments of kelp train
 * (NULL: none). The caller frees it with kelp_run_fini(). */
void kelp_proof_quiet(struct kelp_run *quiet, const char *const *args);
/* Start the job in the folder of a prepared run; returns once it trains. */
void kelp_proof_start(struct kelp_run *run, const char *const *args);
/* Fails the test if the run has ended: the next disturbance would have no effect. */
void kelp_proof_goes_on(const struct kelp_run *run);
/* Wait for the run's end, which must be a success. */
void kelp_proof_end(struct kelp_run *run);

/* Check that digest, digests.jsonl and metrics.jsonl are those of the quiet run, and that steps
 * were skipped. Prints them after `what`, with the run's events. */
void kelp_proof_same(const char *what, const struct kelp_run *run, const struct kelp_run *quiet);
/* The same for two folders of runs. */
void kelp_proof_same_records(const char *run_folder, const char *quiet_folder);
/* Check that the run never restored a checkpoint: no repeated step, one generation. */
void kelp_proof_never_back(const struct kelp_run *run);

/* Number of lines of events.jsonl with that event. */
unsigned kelp_proof_events(const char *run_folder, const char *event);

#endif
