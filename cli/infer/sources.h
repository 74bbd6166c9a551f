/*
 * Where the job and the weights of `kelp predict` and `kelp evaluate` come from: a run's folder, a
 * job file, a safetensors file that carries its job, or the folder of a checkpoint.
 */
#ifndef KELP_CLI_INFER_SOURCES_H
#define KELP_CLI_INFER_SOURCES_H

#include <limits.h>

#include "cli/checkpoint/checkpoint_verbs.h"
#include "cli/run/run_dir.h"
#include "common/base/status.h"
#include "common/job/job.h"
#include "common/program/options/options.h"

/* The name of weights that were copied into the folder of the run that uses them. */
#define KELP_SOURCES_WEIGHTS "weights.safetensors"

/* Empty at first; kelp_checkpoint_source_fini() of checkpoints at the end. */
struct kelp_sources {
    char run_path[KELP_RUN_PATH_MAX + 1]; /* of the run that was trained; "": there is none */
    char job_path[KELP_RUN_PATH_MAX + 64];
    char weights_path[PATH_MAX]; /* safetensors file, absolute; "": a checkpoint */
    bool alone;                  /* that file has the job, too */
    bool own_job;                /* a job file was typed */
    struct kelp_checkpoint_source checkpoints;
    const struct kelp_checkpoint *checkpoint; /* of checkpoints */
};

/*
 * By what was typed, and by --weights and --checkpoint: where the job is, the job (its environment
 * laid over it, unfinished; owned), and the weights, in this order. Errors: KELP_ERR_NOT_FOUND,
 * KELP_ERR_INVALID, KELP_ERR_LIMIT, …: the text is one line for people.
 */
kelp_status kelp_sources_find_job(struct kelp_sources *sources, const struct kelp_options *given,
                                  struct kelp_error *reterr) KELP_MUST_USE;
kelp_status kelp_sources_load_job(const struct kelp_sources *sources,
                                  const struct kelp_options *given, struct kelp_job_file **ret_file,
                                  struct kelp_error *reterr) KELP_MUST_USE;
/* Not where the job came with them. */
kelp_status kelp_sources_find_weights(struct kelp_sources *sources,
                                      const struct kelp_options *given, const struct kelp_job *job,
                                      struct kelp_error *reterr) KELP_MUST_USE;

/*
 * A safetensors file with the weights, and with what the model carries (worker/data/model_card.h):
 * what was found, or a copy in the folder. *ret_carries is false where nobody knows that. Errors:
 * those of reading and writing.
 */
kelp_status kelp_sources_place(const struct kelp_sources *sources, const char *folder,
                               char ret_path[PATH_MAX], bool *ret_carries,
                               struct kelp_error *reterr) KELP_MUST_USE;

#endif
