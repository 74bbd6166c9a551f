/*
 * Where a run of `kelp train` is, by the traces that it leaves in its folder: steps on record,
 * checkpoints, logs. Nothing outside a job is told of these, so that waiting is looking again.
 */
#ifndef KELP_TESTS_LIB_COMMANDS_RUN_WATCH_H
#define KELP_TESTS_LIB_COMMANDS_RUN_WATCH_H

#include "tests/lib/commands/run_train.h"

/* The newest step in digests.jsonl (checkpoint.digest_steps says how many there are); 0: none. */
double kelp_run_step(const struct kelp_run *run);
/* The same of a digests.jsonl; 0 when it is not there. */
double kelp_run_step_in(const char *digests);
void kelp_run_await_step(const struct kelp_run *run, double step);
/* Wait for so many more. */
void kelp_run_go_on(const struct kelp_run *run, double steps);

/* Kill all of it; its digests.jsonl, owned by the caller (free()). */
char *kelp_run_kill(struct kelp_run *run);
/* Kill all of it; fails the test unless its digests are those of this job with these arguments
 * (NULL-terminated, or NULL), which nothing disturbs, up to the same step. */
void kelp_run_expect_quiet(struct kelp_run *run, const char *job_text, const char *const *args);

/* Two texts of digests.jsonl: fails the test unless one is the beginning of the other, up to the
 * last byte that both have. */
void kelp_run_expect_same(const char *ours, const char *quiet);

struct kelp_run_checkpoint {
    long step;
    unsigned generation;
    char name[64]; /* step-<step>.g<generation>, and -<number> of an order in place of another */
    char path[400];
};

/* What is asked for: a checkpoint with a file of this pattern (NULL: manifest.json, which is there
 * once it is committed), of that step or later and of that generation or later. */
struct kelp_run_wanted {
    const char *file;
    long step;
    unsigned generation;
};

/* The one of the latest step; its step is -1 when there is none. */
struct kelp_run_checkpoint kelp_run_newest(const struct kelp_run *run,
                                           struct kelp_run_wanted wanted);
struct kelp_run_checkpoint kelp_run_await_checkpoint(const struct kelp_run *run,
                                                     struct kelp_run_wanted wanted);

/* How often a text stands in the log of a process, by its id; and until it does. */
unsigned kelp_run_count_logged(const struct kelp_run *run, const char *id, const char *text);
void kelp_run_await_logged(const struct kelp_run *run, const char *id, const char *text);
/* Of the first coordinator's log. */
bool kelp_run_logged(const struct kelp_run *run, const char *text);
void kelp_run_await_log(const struct kelp_run *run, const char *text);
/* The number after `name` in the last line that holds text, of those before the first line that
 * holds `until` (NULL: of all); -1: there is none. */
double kelp_run_logged_number(const struct kelp_run *run, const char *until, const char *text,
                              const char *name);

#endif
