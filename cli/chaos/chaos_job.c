#include "cli/chaos/chaos_job.h"

#include <inttypes.h>
#include <stdio.h>

#include "cli/cluster/run_client.h"
#include "cli/verb/job_load.h"
#include "worker/data/dataset.h"

#define FEWEST 2 /* shards and workers, where there are no hosts */

/* Over the file and the environment, below what is asked for by options. */
static kelp_status set_defaults(struct kelp_job_file *file, const struct kelp_options *given,
                                struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(file);
    uint64_t fewest =
        kelp_options_given(given, "hosts") ? kelp_options_integer(given, "hosts") : FEWEST;
    char number[24];
    struct kelp_job_setting settings[6] = {
        {"run.dir", ""}, {"failure.max_failures", "-1"}, {"failure.restart_backoff", "10ms"}};
    size_t count = 3;

    (void)snprintf(number, sizeof(number), "%" PRIu64, fewest);
    if (job->checkpoint.steps == 0) {
        settings[count++] =
            (struct kelp_job_setting){"checkpoint.steps", KELP_CHAOS_CHECKPOINT_STEPS};
    }
    if (job->cluster.shards < fewest) {
        settings[count++] = (struct kelp_job_setting){"cluster.shards", number};
    }
    if (job->cluster.workers.max < fewest) {
        settings[count++] = (struct kelp_job_setting){"cluster.workers", number};
    }
    return kelp_job_set(file, settings, count, reterr);
}

/* A worker that leaves in order is replaced only while fewer than MIN are there: MIN is MAX here.
 */
static kelp_status lay_options(struct kelp_job_file *file, const void *user,
                               struct kelp_error *reterr)
{
    static const struct {
        const char *option, *key;
    } numbers[] = {
        {"workers", "cluster.workers"}, {"shards", "cluster.shards"}, {"epochs", "train.epochs"}};
    const struct kelp_options *given = user;

    kelp_status status = set_defaults(file, given, reterr);
    if (status == KELP_OK) {
        status = kelp_job_set_pairs(file, given, reterr);
    }
    for (size_t i = 0; status == KELP_OK && i < KELP_ARRAY_COUNT(numbers); i++) {
        if (kelp_options_given(given, numbers[i].option)) {
            status = kelp_job_set_u64(file, numbers[i].key,
                                      kelp_options_integer(given, numbers[i].option), reterr);
        }
    }
    return status == KELP_OK
               ? kelp_job_set_u64(file, "cluster.workers",
                                  kelp_job_file_job(file)->cluster.workers.max, reterr)
               : status;
}

kelp_status kelp_chaos_job_read(const struct kelp_options *given, struct kelp_job_file **ret_file,
                                struct kelp_error *reterr)
{
    const struct kelp_job_source source = {.path = kelp_options_positional(given, 0),
                                           .environment = true,
                                           .lay = lay_options,
                                           .user = given};

    return kelp_job_load(&source, ret_file, reterr);
}

kelp_status kelp_chaos_job_epoch_steps(const struct kelp_job *job, uint64_t *ret_steps,
                                       struct kelp_error *reterr)
{
    struct kelp_dataset *dataset = NULL;

    if (job->data.kind == KELP_DATA_PROGRAM) {
        *ret_steps = 0;
        return KELP_OK;
    }
    kelp_status status = kelp_dataset_open(job, &dataset, reterr);
    if (status != KELP_OK) {
        return status;
    }
    uint64_t samples = kelp_dataset_info(dataset)->samples[KELP_SPLIT_TRAIN];
    uint64_t batch = job->train.batch_size;
    kelp_dataset_close(dataset);
    *ret_steps = samples / batch + (samples % batch > 0 && !job->train.drop_last);
    if (*ret_steps == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "an epoch of the job has no steps");
    }
    return KELP_OK;
}

kelp_status kelp_chaos_job_lengthen(struct kelp_job_file *file, uint64_t epoch_steps,
                                    uint32_t last_step, uint32_t host_faults, bool fixed,
                                    struct kelp_error *reterr)
{
    uint64_t epochs = kelp_job_file_job(file)->train.epochs;
    uint64_t wanted = KELP_CHAOS_SLACK_STEPS +
                      (host_faults > 0 ? last_step + KELP_CHAOS_HOST_STEPS * (uint64_t)host_faults
                                       : KELP_CHAOS_LENGTH * (uint64_t)last_step);

    if (epoch_steps == 0) {
        return fixed ? KELP_OK
                     : kelp_fail(reterr, KELP_ERR_INVALID,
                                 "only the job's program knows how long an epoch is: give "
                                 "--epochs N for more than %" PRIu32 " steps, where the plan's "
                                 "last fault is",
                                 last_step);
    }
    if (fixed && last_step >= epochs * epoch_steps) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "the plan's last fault is at step %" PRIu32 ", and the job has %" PRIu64
                         " steps: %" PRIu64 " epochs would outlast it",
                         last_step, epochs * epoch_steps, wanted / epoch_steps + 1);
    }
    if (fixed || epochs * epoch_steps >= wanted) {
        return KELP_OK;
    }
    return kelp_job_set_u64(file, "train.epochs", wanted / epoch_steps + 1, reterr);
}

kelp_status kelp_chaos_job_same(const struct kelp_job_file *file, const char *run_path,
                                struct kelp_error *reterr)
{
    struct kelp_job_file *quiet = NULL;
    struct kelp_job_differences differences = {.count = 0};
    char text[256];

    kelp_status status = kelp_run_job_read(run_path, &quiet, reterr);
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

    kelp_status status = kelp_run_job_read(run_path, &quiet, reterr);
    if (status == KELP_OK) {
        *ret_epochs = kelp_job_file_job(quiet)->train.epochs;
        kelp_job_file_destroy(quiet);
    }
    return status;
}
