/*
 * Everything about a job that can be found wrong before a process is started: its data is read and
 * its model is built once, as the workers will do.
 */
#ifndef KELP_CLI_PREFLIGHT_PREFLIGHT_H
#define KELP_CLI_PREFLIGHT_PREFLIGHT_H

#include "common/base/status.h"
#include "common/job/job.h"
#include "common/training/plan.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"

/* What a job means for its data: what a worker derives before it joins. */
struct kelp_derived {
    struct kelp_dataset *dataset;
    struct kelp_model *model;
    struct kelp_plan plan;
};

/* The model of samples of this shape; one of a library is built in a child process first
 * (cli/preflight/model_probe.h). Errors: those of both. */
kelp_status kelp_model_build(const struct kelp_job *job, const struct kelp_sample_shape *shape,
                             struct kelp_model **ret_model,
                             struct kelp_error *reterr) KELP_MUST_USE;

/* watch: of kelp_dataset_open_watched(), or NULL. Errors: those of kelp_dataset_open(),
 * kelp_model_build() and kelp_derive_plan(). */
kelp_status kelp_derived_open(const struct kelp_job *job, const struct kelp_dataset_watch *watch,
                              struct kelp_derived *ret_derived,
                              struct kelp_error *reterr) KELP_MUST_USE;
void kelp_derived_close(struct kelp_derived *derived); /* all zero is fine */

/* Do `sharing` workers fit their GPU, which has so much memory (0: not known)? Errors:
 * KELP_ERR_LIMIT. */
kelp_status kelp_derived_check_device(const struct kelp_job *job,
                                      const struct kelp_derived *derived, uint32_t sharing,
                                      uint64_t memory_bytes,
                                      struct kelp_error *reterr) KELP_MUST_USE;

/* Does the job fit this machine's memory and its GPUs', each of which `sharing` workers have, and
 * the file of model.init the model? Errors: KELP_ERR_LIMIT, and those of kelp_safetensors_open()
 * and kelp_plan_check_init(). */
kelp_status kelp_derived_check(const struct kelp_job *job, const struct kelp_derived *derived,
                               uint32_t sharing, struct kelp_error *reterr) KELP_MUST_USE;

#define KELP_CARRIED_CLASSES_BYTES 400

/* What the model that is trained will carry (worker/data/model_card.h), how much there is to train,
 * and the job's plan. */
struct kelp_carried {
    char *card;            /* owned (free()); NULL: nothing, or the job does not train */
    char *plan;            /* owned (free()): what every worker must derive */
    struct kelp_error why; /* it carries nothing: it would be too much */
    uint64_t samples;      /* of the training split */
    uint64_t steps;        /* of the whole job */
    /* "0 a, 1 b": classes with names, as many as fit; "": there are none. */
    char classes[KELP_CARRIED_CLASSES_BYTES];
    char untrained[KELP_CARRIED_CLASSES_BYTES]; /* names that no training sample has */
};

/* Errors: those of kelp_derived_open() and kelp_derived_check(). */
kelp_status kelp_preflight(const struct kelp_job_file *file, const struct kelp_dataset_watch *watch,
                           uint32_t sharing, struct kelp_carried *ret_carried,
                           struct kelp_error *reterr) KELP_MUST_USE;

/* The same of a job of a program (model.program), which says what it means by itself: is there the
 * file of model.init? ret_carried has samples and steps without end. Errors: those of
 * kelp_safetensors_open(). */
kelp_status kelp_preflight_program(const struct kelp_job *job, struct kelp_carried *ret_carried,
                                   struct kelp_error *reterr) KELP_MUST_USE;

/* The folder of this program's file, where its companions are. Errors: KELP_ERR_IO, KELP_ERR_LIMIT.
 */
kelp_status kelp_preflight_bin_folder(char *ret_path, size_t path_bytes,
                                      struct kelp_error *reterr) KELP_MUST_USE;

#endif
