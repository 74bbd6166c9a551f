#include "cli/chaos/chaos_job.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/run/run_dir.h"
#include "worker/data/dataset.h"

static kelp_status set_u64(struct kelp_job_file *file, const char *key, uint64_t value,
                           struct kelp_error *reterr)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%" PRIu64, value);
    return kelp_job_file_set(file, key, text, KELP_ORIGIN_FLAG, reterr);
}

/* --set KEY=VALUE */
static kelp_status set_pair(struct kelp_job_file *file, const char *pair, struct kelp_error *reterr)
{
    const char *equals = strchr(pair, '=');
    char key[128];
    size_t length = equals ? (size_t)(equals - pair) : 0;

    if (!equals || length == 0 || length >= sizeof(key)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--set '%s': expected KEY=VALUE, for example train.lr=0.01", pair);
    }
    memcpy(key, pair, length);
    key[length] = '\0';
    return kelp_job_file_set(file, key, equals + 1, KELP_ORIGIN_FLAG, reterr);
}

/* Over the file and the environment, below what is asked for by options. */
static kelp_status set_defaults(struct kelp_job_file *file, struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(file);
    kelp_status status = kelp_job_file_set(file, "run.dir", "", KELP_ORIGIN_FLAG, reterr);

    if (status == KELP_OK) {
        status = kelp_job_file_set(file, "failure.max_failures", "-1", KELP_ORIGIN_FLAG, reterr);
    }
    if (status == KELP_OK) {
        status =
            kelp_job_file_set(file, "failure.restart_backoff", "10ms", KELP_ORIGIN_FLAG, reterr);
    }
    if (status == KELP_OK && job->checkpoint.steps == 0) {
        status = set_u64(file, "checkpoint.steps", KELP_CHAOS_CHECKPOINT_STEPS, reterr);
    }
    if (status == KELP_OK && job->cluster.shards < 2) {
        status = set_u64(file, "cluster.shards", 2, reterr);
    }
    if (status == KELP_OK && job->cluster.workers.max < 2) {
        status = set_u64(file, "cluster.workers", 2, reterr);
    }
    return status;
}

/* A worker that leaves in order is replaced only while fewer than MIN are there: MIN is MAX here.
 */
static kelp_status set_options(struct kelp_job_file *file, const struct kelp_options *given,
                               struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    for (size_t i = 0; status == KELP_OK && i < kelp_options_repeat_count(given, "set"); i++) {
        status = set_pair(file, kelp_options_repeat(given, "set", i), reterr);
    }
    if (status == KELP_OK && kelp_options_given(given, "workers")) {
        status = set_u64(file, "cluster.workers", kelp_options_integer(given, "workers"), reterr);
    }
    if (status == KELP_OK) {
        status =
            set_u64(file, "cluster.workers", kelp_job_file_job(file)->cluster.workers.max, reterr);
    }
    if (status == KELP_OK && kelp_options_given(given, "shards")) {
        status = set_u64(file, "cluster.shards", kelp_options_integer(given, "shards"), reterr);
    }
    if (status == KELP_OK && kelp_options_given(given, "epochs")) {
        status = set_u64(file, "train.epochs", kelp_options_integer(given, "epochs"), reterr);
    }
    return status;
}

kelp_status kelp_chaos_job_read(const struct kelp_options *given, struct kelp_job_file **ret_file,
                                struct kelp_error *reterr)
{
    struct kelp_job_file *file = kelp_job_file_create();

    if (!file) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_status status = kelp_job_file_read(file, kelp_options_positional(given, 0), reterr);
    if (status == KELP_OK) {
        status = kelp_job_file_environment(file, reterr);
    }
    if (status == KELP_OK) {
        status = set_defaults(file, reterr);
    }
    if (status == KELP_OK) {
        status = set_options(file, given, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_job_file_finish(file, reterr);
    }
    if (status != KELP_OK) {
        kelp_job_file_destroy(file);
        return status;
    }
    *ret_file = file;
    return KELP_OK;
}

kelp_status kelp_chaos_job_epoch_steps(const struct kelp_job *job, uint64_t *ret_steps,
                                       struct kelp_error *reterr)
{
    struct kelp_dataset *dataset = NULL;

    kelp_status status = kelp_dataset_open(job, &dataset, reterr);
    if (status != KELP_OK) {
        return status;
    }
    uint64_t samples = kelp_dataset_info(dataset)->samples[KELP_SPLIT_TRAIN];
    uint64_t batch = job->train.batch_size;
    kelp_dataset_close(dataset);
    *ret_steps = samples / batch + (samples % batch > 0 && !job->train.drop_last);
    if (*ret_steps == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "an epoch of the job has no step");
    }
    return KELP_OK;
}

kelp_status kelp_chaos_job_lengthen(struct kelp_job_file *file, uint64_t epoch_steps,
                                    uint32_t last_step, bool fixed, struct kelp_error *reterr)
{
    uint64_t epochs = kelp_job_file_job(file)->train.epochs;
    uint64_t wanted = KELP_CHAOS_LENGTH * (uint64_t)last_step + KELP_CHAOS_SLACK_STEPS;

    if (fixed && last_step >= epochs * epoch_steps) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "the plan's last fault is at step %" PRIu32 ", and the job has %" PRIu64
                         " steps: %" PRIu64 " epochs would outlast it",
                         last_step, epochs * epoch_steps, wanted / epoch_steps + 1);
    }
    if (fixed || epochs * epoch_steps >= wanted) {
        return KELP_OK;
    }
    return set_u64(file, "train.epochs", wanted / epoch_steps + 1, reterr);
}

static kelp_status read_job_of(const char *run_path, struct kelp_job_file **ret_file,
                               struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 64];
    struct kelp_job_file *file = kelp_job_file_create();

    kelp_status status = file ? KELP_OK : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    if (status == KELP_OK) {
        status = kelp_run_dir_path(run_path, "job.yaml", path, sizeof(path), reterr);
    }
    if (status == KELP_OK) {
        status = kelp_job_file_read(file, path, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_job_file_finish(file, reterr);
    }
    if (status != KELP_OK) {
        kelp_job_file_destroy(file);
        return status;
    }
    *ret_file = file;
    return KELP_OK;
}

kelp_status kelp_chaos_job_same(const struct kelp_job_file *file, const char *run_path,
                                struct kelp_error *reterr)
{
    struct kelp_job_file *quiet = NULL;
    struct kelp_job_differences differences = {.count = 0};
    char text[256];

    kelp_status status = read_job_of(run_path, &quiet, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_job_compare(quiet, file, &differences, reterr);
    bool longer = kelp_job_file_job(quiet)->train.epochs != kelp_job_file_job(file)->train.epochs;
    if (status == KELP_OK && (differences.refused > 0 || longer)) {
        kelp_job_differences_text(&differences, differences.refused == 0, text, sizeof(text));
        status = kelp_fail(reterr, KELP_ERR_MISMATCH, "the run in '%s' is of another job: %s",
                           run_path, text);
    }
    kelp_job_differences_fini(&differences);
    kelp_job_file_destroy(quiet);
    return status;
}

kelp_status kelp_chaos_job_epochs_of(const char *run_path, uint32_t *ret_epochs,
                                     struct kelp_error *reterr)
{
    struct kelp_job_file *quiet = NULL;

    kelp_status status = read_job_of(run_path, &quiet, reterr);
    if (status == KELP_OK) {
        *ret_epochs = kelp_job_file_job(quiet)->train.epochs;
        kelp_job_file_destroy(quiet);
    }
    return status;
}
