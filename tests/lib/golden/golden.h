/*
 * Reference fixtures made with PyTorch (see the README.md of their folder): what a file holds,
 * which model and optimizer its names mean, and comparison with the tolerances given there. Nothing
 * here is specific to a file: model, loss, shapes and optimizers come from metadata and tensors.
 */
#ifndef KELP_TESTS_LIB_GOLDEN_GOLDEN_H
#define KELP_TESTS_LIB_GOLDEN_GOLDEN_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/job/job.h"
#include "common/tensors/safetensors.h"
#include "common/training/plan.h"
#include "tests/lib/shared_files.h"
#include "worker/data/sample.h"

#define KELP_GOLDEN_TEXT_SIZE 256
#define KELP_GOLDEN_NAME_SIZE 160
#define KELP_GOLDEN_CASES_MAX 64

/* The folder: KELP_REFERENCE, by default ../shared/reference. */
struct kelp_golden_set {
    char folder[KELP_TEST_PATH_MAX];
    char (*names)[KELP_GOLDEN_NAME_SIZE]; /* of the *.safetensors files, sorted */
    uint32_t count;
};
/* False, with the folder filled in: it does not exist or has no such file. */
bool kelp_golden_set_open(struct kelp_golden_set *set);
void kelp_golden_set_close(struct kelp_golden_set *set);

struct kelp_golden_file {
    const struct kelp_golden_set *set;
    const char *name; /* "tiny_mlp.safetensors"; borrowed from the set */
    char path[KELP_TEST_PATH_MAX];
    const char *model; /* from the metadata; "": none */
    const char *loss;
    struct kelp_safetensors *tensors;
    bool *read; /* for each tensor: its values were requested */
};
kelp_status kelp_golden_file_open(const struct kelp_golden_set *set, uint32_t index,
                                  struct kelp_golden_file *file,
                                  struct kelp_error *reterr) KELP_MUST_USE;
void kelp_golden_file_close(struct kelp_golden_file *file);

/* Parse a JSON file of the folder; KELP_ERR_NOT_FOUND: it does not exist. The caller deletes it. */
kelp_status kelp_golden_json(const char *name, cJSON **ret_json,
                             struct kelp_error *reterr) KELP_MUST_USE;

/* The number after a word ("channels 7" has 7 after "channels"); false: there is none. */
bool kelp_golden_number(const char *text, const char *word, uint32_t *ret_value);
double kelp_golden_real(const char *text, const char *word, double otherwise);

/* What a file of a model says about the job. job has the fields of model, loss and one lane
 * thread; kelp_golden_optimizer() sets optimizers. */
struct kelp_golden_model {
    struct kelp_job job;
    struct kelp_sample_shape shape;
    uint32_t samples;
    bool statistics; /* batch norm: statistics belong to a lane, so only one lane matches PyTorch */
};
/* The batch as from a data set: each sample's inputs concatenated, whole numbers as float32. The
 * caller frees it. NULL: a tensor does not fit. */
float *kelp_golden_inputs(const struct kelp_golden_file *file,
                          const struct kelp_golden_model *model);
/* Does the file have a tensor whose name begins like this? */
bool kelp_golden_has_any(const struct kelp_golden_file *file, const char *prefix);
/* The rows of each shard of the batch. Returns how many shards; 0: the batch is not divided. */
uint32_t kelp_golden_shards(const struct kelp_golden_file *file,
                            uint32_t rows[KELP_GOLDEN_CASES_MAX]);
/* Does the file have parameters and a batch? */
bool kelp_golden_is_model(const struct kelp_golden_file *file);
/* False, with the reason: not a model that Kelp can build. */
bool kelp_golden_model_read(const struct kelp_golden_file *file, struct kelp_golden_model *ret,
                            char reason[KELP_GOLDEN_TEXT_SIZE]);

/* What a word of a name sets: the whole number after the word ("step3"; with count, the next of
 * a list), or, without a number, a flag. */
struct kelp_golden_setting {
    const char *word;
    double *number;
    uint32_t *whole, *count;
    bool *flag;
};
/* Apply the words, which '_' separates. False: a word is not a setting. */
bool kelp_golden_settings(const char *words, const struct kelp_golden_setting *settings,
                          size_t count);
/* Convert "sgd_lr0.1_momentum0.9_nesterov" to fields of job->train, with PyTorch's defaults for
 * the rest. False: Kelp lacks the optimizer or a setting. */
bool kelp_golden_optimizer(const char *name, struct kelp_job *job);

/* Distinct words between prefix and the next '/' of tensor names, in the file's order: "opt/"
 * gives the optimizers. Returns how many, at most KELP_GOLDEN_CASES_MAX. */
uint32_t kelp_golden_cases(const struct kelp_golden_file *file, const char *prefix,
                           char cases[KELP_GOLDEN_CASES_MAX][KELP_GOLDEN_NAME_SIZE]);

/* All elements of a tensor as float32, also whole numbers (exact below 2^24); the caller frees
 * them. NULL: the tensor is absent or incomplete. */
float *kelp_golden_floats(const struct kelp_golden_file *file, const char *name,
                          uint64_t *ret_count);
/* The initial values of a tensor of the plan. A parameter's are in this file, in the file that
 * claims "full initial parameters of" it, or follow the rule that the file names; a running
 * statistic's come from a buffer or are its start values. parameter counts the parameters so
 * far. */
bool kelp_golden_initial(const struct kelp_golden_file *file, const struct kelp_tensor *tensor,
                         uint32_t *parameter, float *values);

/*
 * |a - b| <= atol + rtol |b|, where atol is at least atol_of_max times the largest |b|, and at
 * least noise if that is below 1e-7, where everything is rounding. If share is not 0, only that
 * share of the elements must agree, and no element may differ by more than limit.
 */
struct kelp_golden_tolerance {
    double rtol, atol, atol_of_max, noise;
    double share, limit;
};
/* Single operations, losses, outputs. */
extern const struct kelp_golden_tolerance kelp_golden_values;
/* Outputs and statistics of a model: wider for FarePredictor and ResNet18. */
extern const struct kelp_golden_tolerance kelp_golden_deep_values;
const struct kelp_golden_tolerance *kelp_golden_outputs(const struct kelp_job *job);
extern const struct kelp_golden_tolerance kelp_golden_gradients;
/* An optimizer with given gradients. */
extern const struct kelp_golden_tolerance kelp_golden_updates;
/* Parameters and running statistics after `steps` steps of the job's optimizer, and the losses
 * before each of them. */
struct kelp_golden_tolerance kelp_golden_after_steps(const struct kelp_job *job, uint32_t steps);
struct kelp_golden_tolerance kelp_golden_statistics_after(const struct kelp_job *job,
                                                          uint32_t steps);
struct kelp_golden_tolerance kelp_golden_losses(const struct kelp_job *job, uint32_t steps);
/*
 * All three for one optimizer of a file. If PyTorch's own float32 run differs from float64
 * (float64_check.json says by how much: rounding decides an activation or a pooled value), a result
 * may be as far from PyTorch's as float64 is.
 */
struct kelp_golden_tolerances {
    struct kelp_golden_tolerance parameters, statistics, losses;
};
struct kelp_golden_tolerances kelp_golden_after(const struct kelp_golden_file *file,
                                                const struct kelp_job *job, const char *optimizer,
                                                uint32_t steps);

/*
 * Compare with a tensor of the file, or with its samples in the file (@head64, @stride997, @norm2,
 * @sum).
 */
enum kelp_golden_result { KELP_GOLDEN_EQUAL, KELP_GOLDEN_ABSENT, KELP_GOLDEN_DIFFERS };
enum kelp_golden_result kelp_golden_compare(const struct kelp_golden_file *file, const char *name,
                                            const float *values, uint64_t count,
                                            const struct kelp_golden_tolerance *tolerance,
                                            char text[KELP_GOLDEN_TEXT_SIZE]);

#endif
