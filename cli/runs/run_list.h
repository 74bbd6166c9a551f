/*
 * The runs below folders, in any order that people ask for.
 */
#ifndef KELP_CLI_RUNS_RUN_LIST_H
#define KELP_CLI_RUNS_RUN_LIST_H

#include "cli/runs/run_info.h"
#include "common/base/status.h"
#include "common/program/options/options.h"

#define KELP_RUN_LIST_MAX 100000 /* runs */

struct kelp_run_list {
    struct kelp_run_info *items; /* owned */
    size_t count, capacity;
};

/*
 * Add the run in the folder, or those in its folders; links are left out, as runs/latest is one.
 * Others than runs are passed over. Errors: KELP_ERR_NOT_FOUND (no such folder), KELP_ERR_IO,
 * KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_run_list_add(struct kelp_run_list *list, const char *folder,
                              const struct kelp_run_look *look,
                              struct kelp_error *reterr) KELP_MUST_USE;
/* The same of all folders that were typed, or of runs/, which may be missing. */
kelp_status kelp_run_list_find(struct kelp_run_list *list, const struct kelp_options *given,
                               const struct kelp_run_look *look,
                               struct kelp_error *reterr) KELP_MUST_USE;
void kelp_run_list_fini(struct kelp_run_list *list); /* all zero is fine */

struct kelp_run_order {
    const char *key; /* name, status, age, step, epoch, or a metric such as val/mse */
    bool reverse;    /* largest first; runs without the metric are last all the same */
};

/* Runs that are equal by the key stand by name. Errors: KELP_ERR_INVALID (no run has such a
 * metric; the text says which there are). */
kelp_status kelp_run_list_sort(struct kelp_run_list *list, const struct kelp_run_order *order,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* How people name the run: its path, without "runs/". */
const char *kelp_run_list_name(const struct kelp_run_info *info);

#define KELP_RUN_LIST_METRICS_MAX 128

/* Names of the metrics that the runs have, newest or best, as they first come; borrowed from the
 * list. Returns how many, at most KELP_RUN_LIST_METRICS_MAX. */
uint32_t kelp_run_list_metrics(const struct kelp_run_list *list, bool best,
                               const char *ret_names[KELP_RUN_LIST_METRICS_MAX]);

#endif
