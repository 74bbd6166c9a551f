/*
 * Models from shared libraries (include/kelp/model.h). Private to the worker.
 */
#ifndef KELP_WORKER_MODEL_PLUGIN_H
#define KELP_WORKER_MODEL_PLUGIN_H

#include "kelp/model.h"
#include "worker/model/graph/layers.h"
#include "worker/model/model_build.h"

/*
 * XXH3-64 of the library's file, for the plan: all workers must have the same one. Errors:
 * KELP_ERR_NOT_FOUND, KELP_ERR_IO, KELP_ERR_LIMIT (no library is so large); the text begins with
 * model.plugin.
 */
kelp_status kelp__plugin_digest(const char *path, uint64_t *ret_digest,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* Builds the graph by the job's library (kelp__model_build). Everything wrong with the library
 * stays in the graph as the failure of building: not there or no library, the symbol missing,
 * another ABI, a param that it did not ask for. */
kelp__model_build kelp__plugin_build;

/* What the functions of the table get. */
#define KELP__PLUGIN_PARAMS_MAX 64
struct kelp_model_builder {
    struct kelp_graph *graph;
    const struct kelp_sample_shape *shape;
    struct kelp_model_tensor inputs[KELP_SAMPLE_INPUTS_MAX], target;
    /* The job's model.params, each ended by NUL; values point into the same text. */
    char text[KELP_JOB_TEXTS_MAX + 1];
    struct kelp__plugin_param {
        const char *name, *value;
        bool asked_for;
    } params[KELP__PLUGIN_PARAMS_MAX];
    uint32_t param_count;
};

extern const struct kelp_model_api kelp__plugin_api;

#endif
