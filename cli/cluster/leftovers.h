/*
 * What commands that were killed have left in the folder of a run, and nothing needs any more:
 *
 *     etcd/                  of the run's private etcd, when its checkpoints say all
 *     next/                  what a resume would have put in place (common/program/run_next.h)
 *     trace/                 parts of a trace that were not put together
 *     predict/               of kelp predict and kelp evaluate,
 *     weights.safetensors    which nobody resumes
 *
 * The folder of the run's sockets (common/program/socket_folder.h) lies elsewhere. It goes with the
 * first of these, or with the run.
 */
#ifndef KELP_CLI_CLUSTER_LEFTOVERS_H
#define KELP_CLI_CLUSTER_LEFTOVERS_H

#include <stddef.h>

#include "common/base/status.h"
#include "common/program/run_next.h"

/* Beside the job in next/: the run had no etcd/ when that resume began, so that all it holds is of
 * that resume. */
#define KELP_LEFTOVERS_NEW_ETCD KELP_RUN_NEXT "/.new-etcd"

#define KELP_LEFTOVERS_MAX 5

struct kelp_leftovers {
    const char *names[KELP_LEFTOVERS_MAX]; /* in the run's folder; static */
    size_t count;
};

/* Of a run that nobody runs; where that is not sure, it is no leftover. */
void kelp_leftovers_find(const char *run_path, struct kelp_leftovers *ret_leftovers);

/* Remove one, with the run's lock held. One that is needed by now stays, and is no error. Errors:
 * KELP_ERR_BUSY (somebody runs the run), those of removing. */
kelp_status kelp_leftovers_remove(const char *run_path, const char *name,
                                  struct kelp_error *reterr);

/* The run's lock is held. */
void kelp_leftovers_remove_sockets(const char *run_path);

/* Remove those of predictions and evaluations whose runs are in the folder. What cannot be removed
 * stays. */
void kelp_leftovers_clear_inferences(const char *folder);

#endif
