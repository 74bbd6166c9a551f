/* `kelp evaluate`: the metrics of weights on the validation and test split. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/infer/inference.h"
#include "cli/verbs.h"
#include "common/base/log.h"

enum output { OUTPUT_TEXT, OUTPUT_JSON };
static const char *const outputs[] = {"text", "json", NULL};

static const struct kelp_option options[] = {
    KELP_INFERENCE_OPTIONS,
    {.name = "output",
     .letter = 'o',
     .type = KELP_OPTION_CHOICE,
     .choices = outputs,
     .default_text = "text",
     .help = "a table for people, or result.json"},
};

static const struct kelp_program program = {
    .name = "kelp evaluate",
    .summary = "measures weights on the validation and test split",
    .positional = "[RUN|JOB.yaml]",
    .positional_max = 1,
    .examples = "  kelp evaluate runs/etth1-dlinear-20260131-120000\n"
                "  kelp evaluate --checkpoint step-1500.g2 -o json\n"
                "  kelp evaluate job.yaml --weights model.safetensors --workers 4\n",
    .options = options,
    .option_count = KELP_ARRAY_COUNT(options),
};

static int print(const struct kelp_inference *inference, enum output output)
{
    struct kelp_error error;
    char *text = NULL;

    if (output == OUTPUT_TEXT) {
        kelp_result_table(stdout, &inference->result);
        (void)printf("weights    %s\nrun        %s\n", inference->weights, inference->run.path);
        return KELP_EXIT_OK;
    }
    if (kelp_result_print(&inference->result, &text, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
    (void)fputs(text, stdout);
    free(text);
    return KELP_EXIT_OK;
}

int kelp_verb_evaluate(int argc, char **argv)
{
    struct kelp_options *given = NULL;
    int exit_status = KELP_EXIT_FAILED;

    if (!kelp_options_read(&program, argc, argv, &given, &exit_status)) {
        return exit_status;
    }
    struct kelp_inference *inference = malloc(sizeof(*inference));
    if (!inference) {
        kelp_options_destroy(given);
        return kelp_complain(KELP_EXIT_FAILED, "out of memory");
    }
    kelp_inference_init(inference, given, KELP_RUN_EVALUATE);
    exit_status = kelp_inference_run(inference);
    if (exit_status == KELP_EXIT_OK) {
        exit_status = print(inference, (enum output)kelp_options_choice(given, "output"));
    }
    kelp_inference_fini(inference);
    free(inference);
    kelp_options_destroy(given);
    return exit_status;
}
