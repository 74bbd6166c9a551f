/*
 * What may be cleared away: runs that ended long ago, data caches that nobody used, and what is
 * left of commands that were killed. Finding is apart from removing, so that people can say no.
 */
#ifndef KELP_CLI_RUNS_RUN_SWEEP_H
#define KELP_CLI_RUNS_RUN_SWEEP_H

#include <stdint.h>

#include "cli/runs/run_list.h"

struct kelp_sweep_rule {
    bool by_count;  /* keep is set */
    uint32_t keep;  /* newest runs that stay, those that go on not counted */
    bool by_age;    /* older_s is set */
    double older_s; /* since the run ended */
    bool newest;    /* the newest done training may go too */
};

/*
 * Mark which runs of the list may go: beyond the newest `keep` of those that ended, or older than
 * older_s; with both, what either says. Never one that goes on, and never the newest that is done
 * unless rule->newest. ret_marks has list->count members. Pure.
 */
void kelp_sweep_mark_runs(const struct kelp_run_list *list, const struct kelp_sweep_rule *rule,
                          bool *ret_marks);

enum kelp_sweep_kind {
    KELP_SWEEP_RUN,
    KELP_SWEEP_REPLACED, /* previous/N of a run */
    KELP_SWEEP_LEFTOVER, /* cli/cluster/leftovers.h */
    KELP_SWEEP_CACHE,
    KELP_SWEEP_SCRATCH, /* half a cache */
};

struct kelp_sweep_item {
    enum kelp_sweep_kind kind;
    char path[KELP_RUN_PATH_MAX + 1];
    size_t run_bytes; /* of a run's parts: where in path the run's folder ends; else 0 */
    uint64_t bytes;
    double age_s;
    bool removed;
};

struct kelp_sweep {
    struct kelp_sweep_item *items; /* owned */
    size_t count, capacity;
};

/* "leftover". */
const char *kelp_sweep_kind_name(enum kelp_sweep_kind kind);

/* Errors of all: KELP_ERR_NO_MEMORY, and those of reading the folders. */
kelp_status kelp_sweep_add_runs(struct kelp_sweep *sweep, const struct kelp_run_list *list,
                                const bool *marks, struct kelp_error *reterr) KELP_MUST_USE;
/* Of the runs that stay and do not go on: what commands that were killed left in their folders;
 * what resumes replaced that took hold longer ago. */
kelp_status kelp_sweep_add_leftovers(struct kelp_sweep *sweep, const struct kelp_run_list *list,
                                     const bool *marks, time_t now,
                                     struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_sweep_add_replaced(struct kelp_sweep *sweep, const struct kelp_run_list *list,
                                    const bool *marks, double older_s, time_t now,
                                    struct kelp_error *reterr) KELP_MUST_USE;
/* Prepared data in a folder that nobody has read or written for older_s, and what a killed command
 * left half written of it. A folder that is not there holds none; one that was added before is
 * passed over. */
kelp_status kelp_sweep_add_caches(struct kelp_sweep *sweep, const char *folder, double older_s,
                                  time_t now, struct kelp_error *reterr) KELP_MUST_USE;
void kelp_sweep_fini(struct kelp_sweep *sweep); /* all zero is fine */

/* Remove an item, and say so in it. Its run is held meanwhile: one that somebody resumes at that
 * moment is KELP_ERR_BUSY and stays. Errors: also KELP_ERR_IO. */
kelp_status kelp_sweep_remove(struct kelp_sweep_item *item,
                              struct kelp_error *reterr) KELP_MUST_USE;

#endif
