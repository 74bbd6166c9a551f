/* `kelp evaluate`: the metrics of weights on the validation and test split. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/infer/inference.h"
#include "cli/verbs.h"

static const struct kelp_option options[] = {
    KELP_INFERENCE_OPTIONS,
    KELP_VERB_OUTPUT("a table for people, or result.json"),
};

static const struct kelp_program program = {
    .name = "kelp evaluate",
    .summary = "measures weights on the validation and test split",
    .positional = "[RUN|MODEL.safetensors|JOB.yaml]",
    .positional_max = 1,
    .examples = "  kelp evaluate runs/etth1-dlinear-20260131-120000\n"
                "  kelp evaluate model.safetensors --data labelled.csv\n"
                "  kelp evaluate --checkpoint step-1500.g2 -o json\n"
                "  kelp evaluate job.yaml --weights model.safetensors --workers 4\n",
    KELP_VERB_OPTIONS(options),
};

static int evaluate(const struct kelp_options *given)
{
    struct kelp_inference *inference = kelp_inference_create(given, KELP_RUN_EVALUATE);

    if (!inference) {
        return KELP_EXIT_FAILED;
    }
    int exit_status = kelp_inference_run(inference);
    if (exit_status == KELP_EXIT_OK && kelp_verb_json(given)) {
        kelp_result_print(&inference->result, stdout);
    } else if (exit_status == KELP_EXIT_OK) {
        kelp_result_table(stdout, &inference->result);
        (void)printf("weights    %s\nrun        %s\n", inference->weights, inference->run.path);
    }
    kelp_inference_destroy(inference);
    return exit_status;
}

const struct kelp_verb kelp_verb_evaluate = {
    "evaluate", "measure a run's weights on its validation and test split", &program, evaluate,
    NULL};
