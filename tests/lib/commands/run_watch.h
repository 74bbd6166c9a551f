/*
 * The progress of a run of `kelp train`, from its folder: recorded steps, checkpoints, logs. No
 * process outside a job is notified of these, so waiting means checking repeatedly.
 */
#ifndef KELP_TESTS_LIB_COMMANDS_RUN_WATCH_H
#define KELP_TESTS_LIB_COMMANDS_RUN_WATCH_H

#include "tests/lib/commands/run_train.h"

/* The newest step in digests.jsonl (checkpoint.digest_steps says which steps it has); 0: none. */
double kelp_run_step(const struct kelp_run *run);
/* The same for a given digests.jsonl; 0: it does not exist. */
double kelp_run_step_in(const char *digests);
void kelp_run_await_step(const struct kelp_run *run, double step);
/* Wait for this many more steps. */
void kelp_run_go_on(const struct kelp_run *run, double steps);

/* Kill all processes. Returns digests.jsonl; the caller owns it (free()). */
char *kelp_run_kill(struct kelp_run *run);
/* Kill all processes; fails the test unless the digests are those of an undisturbed run of this
 * job with these arguments (NULL-terminated, or NULL), up to the same step. */
void kelp_run_expect_quiet(struct kelp_run *run, const char *job_text, const char *const *args);

/* Compare two texts of digests.jsonl: fails the test unless the shorter is the beginning of the
 * other. */
void kelp_run_expect_same(const char *ours, const char *quiet);

struct kelp_run_checkpoint {
    long step;
    unsigned generation;
    char name[64]; /* step-<step>.g<generation>, plus -<number> for a repeated order */
    char path[400];
};

/* Which checkpoint is wanted: with a file of this pattern (NULL: manifest.json, which exists
 * once it is committed), of at least that step and at least that generation. */
struct kelp_run_wanted {
    const char *file;
    long step;
    unsigned generation;
};

/* The wanted checkpoint of the latest step; its step is -1 if there is none. */
struct kelp_run_checkpoint kelp_run_newest(const struct kelp_run *run,
                                           struct kelp_run_wanted wanted);
struct kelp_run_checkpoint kelp_run_await_checkpoint(const struct kelp_run *run,
                                                     struct kelp_run_wanted wanted);

/* How often the log of a process (by id) contains a text; and wait until it does. */
unsigned kelp_run_count_logged(const struct kelp_run *run, const char *id, const char *text);
void kelp_run_await_logged(const struct kelp_run *run, const char *id, const char *text);
/* The same for the first coordinator's log. */
bool kelp_run_logged(const struct kelp_run *run, const char *text);
void kelp_run_await_log(const struct kelp_run *run, const char *text);
/* The number after `name` in the last line that contains text, among those before the first line
 * that contains `until` (NULL: among all); -1: there is none. */
double kelp_run_logged_number(const struct kelp_run *run, const char *until, const char *text,
                              const char *name);

#endif
