/*
 * Everything about a job that can be found wrong before a process is started: its data is read and
 * its model is built once, as the workers will do.
 */
#ifndef KELP_CLI_LAUNCH_PREFLIGHT_H
#define KELP_CLI_LAUNCH_PREFLIGHT_H

#include "common/base/status.h"
#include "common/job/job.h"

/* Errors: those of kelp_dataset_open(), kelp_model_create() and kelp_derive_plan(). */
kelp_status kelp_preflight(const struct kelp_job *job, struct kelp_error *reterr) KELP_MUST_USE;

/* The folder of this program's file, where its companions are. Errors: KELP_ERR_IO, KELP_ERR_LIMIT.
 */
kelp_status kelp_preflight_bin_folder(char *ret_path, size_t path_bytes,
                                      struct kelp_error *reterr) KELP_MUST_USE;

#endif
