/* `kelp predict`: the model's output for each sample of a split, as one file. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/infer/inference.h"
#include "cli/infer/prediction_table.h"
#include "cli/verb/out_file.h"
#include "cli/verbs.h"
#include "common/base/files.h"
#include "common/log/log.h"
#include "worker/compute/predictions.h"

static const char *const splits[] = {"train", "val", "test", NULL};
static const char *const split_names[] = {"training", "validation", "test"};

static const struct kelp_option options[] = {
    KELP_VERB_REQUIRED(
        "out", "FILE",
        "where to write: FILE.csv, or FILE.npy for a NumPy array; an existing file is "
        "replaced atomically"),
    {.name = "part",
     .type = KELP_OPTION_CHOICE,
     .choices = splits,
     .default_text = "test",
     .help = "the split to predict; for other data use --data"},
    KELP_VERB_FLAG("targets", NULL, "CSV: add the true values"),
    KELP_VERB_FLAG("normalized", NULL, "write numbers in the model's scale instead of the data's"),
    KELP_INFERENCE_OPTIONS,
};

static const struct kelp_program program = {
    .name = "kelp predict",
    .summary = "writes the model's output for each sample, in order",
    .positional = "[RUN|MODEL.safetensors|JOB.yaml]",
    .positional_max = 1,
    .examples = "  kelp predict --out forecast.csv --targets\n"
                "  kelp predict model.safetensors --data new.csv --out forecast.csv\n"
                "  kelp predict runs/fare-20260131 --data new.csv --out new.npy\n"
                "  kelp predict job.yaml --weights m.safetensors --part val --out val.csv\n",
    KELP_VERB_OPTIONS(options),
};

static bool ends_with(const char *text, const char *ending)
{
    size_t length = strlen(text), ending_length = strlen(ending);
    return length > ending_length && strcmp(text + length - ending_length, ending) == 0;
}

/* What the name of --out asks for; false: neither. */
static bool choose_format(const char *out, enum kelp_prediction_format *ret_format)
{
    *ret_format = ends_with(out, ".npy") ? KELP_PREDICTION_NPY : KELP_PREDICTION_CSV;
    return ends_with(out, ".npy") || ends_with(out, ".csv");
}

static int write_table(const struct kelp_inference *inference, const struct kelp_options *given,
                       enum kelp_prediction_format format)
{
    char folder[KELP_RUN_PATH_MAX + 64];
    struct kelp_error error;
    struct kelp_prediction_table table = {
        .job = kelp_job_file_job(inference->file),
        .plan = &inference->plan,
        .dataset = inference->dataset,
        .folder = folder,
        .path = kelp_options_text(given, "out"),
        .format = format,
        .targets = kelp_options_flag(given, "targets"),
        .normalized = kelp_options_flag(given, "normalized"),
    };

    kelp_status status = kelp_run_dir_path(inference->run.path, KELP_PREDICTIONS_FOLDER, folder,
                                           sizeof(folder), &error);
    if (status == KELP_OK) {
        status = kelp_prediction_table_write(&table, &error);
    }
    if (status == KELP_OK) { /* empty, but for what a killed worker left half done */
        status = kelp_files_remove(folder, &error);
    }
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
    const char *data = kelp_options_text(given, "data");
    (void)printf("%s: %" PRIu64 " samples of %s%s%s, weights %s\n", table.path,
                 inference->plan.samples[inference->split], data ? "" : "the ",
                 data ? data : split_names[inference->split], data ? "" : " split",
                 inference->weights);
    return KELP_EXIT_OK;
}

static int predict(const struct kelp_options *given)
{
    const char *out = kelp_options_text(given, "out");
    enum kelp_prediction_format format;
    struct kelp_error error;

    if (!choose_format(out, &format)) {
        return kelp_complain(KELP_EXIT_USAGE, "--out '%s': must end in .csv or .npy", out);
    }
    if (format == KELP_PREDICTION_NPY && kelp_options_flag(given, "targets")) {
        return kelp_complain(KELP_EXIT_USAGE, "--targets is for .csv files only");
    }
    if (kelp_out_file_check("--out", out, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    struct kelp_inference *inference = kelp_inference_create(given, KELP_RUN_PREDICT);
    if (!inference) {
        return KELP_EXIT_FAILED;
    }
    inference->split = (enum kelp_run_part)kelp_options_choice(given, "part");
    inference->targets = kelp_options_flag(given, "targets");
    int exit_status = kelp_inference_run(inference);
    if (exit_status == KELP_EXIT_OK) {
        exit_status = write_table(inference, given, format);
    }
    kelp_inference_destroy(inference);
    return exit_status;
}

const struct kelp_verb kelp_verb_predict = {
    "predict", "write the model's output for each sample as CSV or NPY", &program, predict, NULL};
