/*
 * Reference fixtures made with PyTorch (README.md of their folder): what a file is, which model and
 * optimizer its names mean, and comparison by the tolerances given there. Nothing is known of
 * particular files: model, loss, shapes and optimizers come from metadata and tensors.
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
    char (*names)[KELP_GOLDEN_NAME_SIZE]; /* of its *.safetensors, sorted */
    uint32_t count;
};
/* False, with the folder filled in, when it is not there or holds no such file. */
bool kelp_golden_set_open(struct kelp_golden_set *set);
void kelp_golden_set_close(struct kelp_golden_set *set);

struct kelp_golden_file {
    const struct kelp_golden_set *set;
    const char *name; /* "tiny_mlp.safetensors"; borrowed from the set */
    char path[KELP_TEST_PATH_MAX];
    const char *model; /* metadata, "" when there is none */
    const char *loss;
    struct kelp_safetensors *tensors;
    bool *read; /* of each tensor: its values were asked for */
};
kelp_status kelp_golden_file_open(const struct kelp_golden_set *set, uint32_t index,
                                  struct kelp_golden_file *file,
                                  struct kelp_error *reterr) KELP_MUST_USE;
void kelp_golden_file_close(struct kelp_golden_file *file);

/* A JSON file of the folder; KELP_ERR_NOT_FOUND when it is not there. The caller deletes. */
kelp_status kelp_golden_json(const char *name, cJSON **ret_json,
                             struct kelp_error *reterr) KELP_MUST_USE;

/* A number behind a word in a text ("channels 7" has 7 behind "channels"); false if not there. */
bool kelp_golden_number(const char *text, const char *word, uint32_t *ret_value);
double kelp_golden_real(const char *text, const char *word, double otherwise);

/* What a file of a model says of the job. job has the fields of model, loss and one lane thread;
 * optimizers are filled in by kelp_golden_optimizer(). */
struct kelp_golden_model {
    struct kelp_job job;
    struct kelp_sample_shape shape;
    uint32_t samples;
    bool statistics; /* batch norm: statistics are of a lane, so one lane compares with PyTorch */
};
/* The batch as a data set hands it out: each sample's inputs end to end, whole numbers as float32.
 * The caller frees. NULL when a tensor does not fit. */
float *kelp_golden_inputs(const struct kelp_golden_file *file,
                          const struct kelp_golden_model *model);
/* Has it a tensor whose name begins so? */
bool kelp_golden_has_any(const struct kelp_golden_file *file, const char *prefix);
/* The rows of each shard into which the batch is divided; how many, 0 when it is not. */
uint32_t kelp_golden_shards(const struct kelp_golden_file *file,
                            uint32_t rows[KELP_GOLDEN_CASES_MAX]);
/* Does the file have parameters and a batch? */
bool kelp_golden_is_model(const struct kelp_golden_file *file);
/* False, with the reason, when the file is not a model that Kelp can build. */
bool kelp_golden_model_read(const struct kelp_golden_file *file, struct kelp_golden_model *ret,
                            char reason[KELP_GOLDEN_TEXT_SIZE]);

/* What a word of a name sets: a number behind the word, a whole one ("step3"; the next of a list
 * with count), or, standing alone, a flag. */
struct kelp_golden_setting {
    const char *word;
    double *number;
    uint32_t *whole, *count;
    bool *flag;
};
/* Each of the words, which '_' separates. False for one that is no setting. */
bool kelp_golden_settings(const char *words, const struct kelp_golden_setting *settings,
                          size_t count);
/* "sgd_lr0.1_momentum0.9_nesterov" to the fields of job->train, PyTorch's defaults where the name
 * says nothing. False for an optimizer or a setting that Kelp does not have. */
bool kelp_golden_optimizer(const char *name, struct kelp_job *job);

/* Distinct words between prefix and the next '/' of tensor names, in the order of the file:
 * "opt/" gives the optimizers. Returns how many, KELP_GOLDEN_CASES_MAX at most. */
uint32_t kelp_golden_cases(const struct kelp_golden_file *file, const char *prefix,
                           char cases[KELP_GOLDEN_CASES_MAX][KELP_GOLDEN_NAME_SIZE]);

/* All elements of a tensor as float32, whole numbers too (exact below 2^24); the caller frees. NULL
 * when it is not there in full. */
float *kelp_golden_floats(const struct kelp_golden_file *file, const char *name,
                          uint64_t *ret_count);
/* The initial values of a tensor of the plan. A parameter's are in the file, in the file that says
 * it holds "full initial parameters of" it, or follow the rule that it names; a running statistic's
 * are a buffer's or those it starts from. parameter counts the parameters so far. */
bool kelp_golden_initial(const struct kelp_golden_file *file, const struct kelp_tensor *tensor,
                         uint32_t *parameter, float *values);

/*
 * |a - b| <= atol + rtol |b|, atol being at least atol_of_max times the largest |b|, and at least
 * noise where that is below 1e-7: all is rounding then. When share is not 0, only that share of the
 * elements has to agree, and no element may be off by more than limit.
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
/* An optimizer alone, given gradients. */
extern const struct kelp_golden_tolerance kelp_golden_updates;
/* Parameters and running statistics after `steps` steps of the job's optimizer, and the losses
 * before each of them. */
struct kelp_golden_tolerance kelp_golden_after_steps(const struct kelp_job *job, uint32_t steps);
struct kelp_golden_tolerance kelp_golden_statistics_after(const struct kelp_job *job,
                                                          uint32_t steps);
struct kelp_golden_tolerance kelp_golden_losses(const struct kelp_job *job, uint32_t steps);
/*
 * All three for one optimizer of a file. Where PyTorch's own float32 run has left the one in
 * float64 (float64_check.json says by how much: an activation or a pooled value that rounding
 * decides), to be as near to it as float64 is must do.
 */
struct kelp_golden_tolerances {
    struct kelp_golden_tolerance parameters, statistics, losses;
};
struct kelp_golden_tolerances kelp_golden_after(const struct kelp_golden_file *file,
                                                const struct kelp_job *job, const char *optimizer,
                                                uint32_t steps);

/*
 * Compare with a tensor of the file, or with the samples of it that the file has (@head64,
 * @stride997, @norm2, @sum).
 */
enum kelp_golden_result { KELP_GOLDEN_EQUAL, KELP_GOLDEN_ABSENT, KELP_GOLDEN_DIFFERS };
enum kelp_golden_result kelp_golden_compare(const struct kelp_golden_file *file, const char *name,
                                            const float *values, uint64_t count,
                                            const struct kelp_golden_tolerance *tolerance,
                                            char text[KELP_GOLDEN_TEXT_SIZE]);

#endif
