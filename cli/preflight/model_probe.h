/*
 * Libraries of model.plugin are code of others: what ends the process while such a model is built
 * ends a child of ours first, and is told in one line.
 */
#ifndef KELP_CLI_PREFLIGHT_MODEL_PROBE_H
#define KELP_CLI_PREFLIGHT_MODEL_PROBE_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/job/job.h"
#include "worker/data/sample.h"

#define KELP_PROBE_MS 60000 /* no library builds a model for so long */

/*
 * Build the model of a plugin job in a child process; models of other kinds are passed by. The text
 * names the library, and how it ended the process: a signal, exit(), or not within limit_ms.
 * Errors: KELP_ERR_INVALID, and those of kelp_derive_model(). Threads: none may be computing.
 */
kelp_status kelp_model_probe(const struct kelp_job *job, const struct kelp_sample_shape *shape,
                             uint32_t limit_ms, struct kelp_error *reterr) KELP_MUST_USE;

#endif
