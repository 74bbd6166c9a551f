#include "cli/infer/inference.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/checkpoint/run_plan.h"
#include "cli/cluster/leftovers.h"
#include "cli/cluster/run_client.h"
#include "cli/infer/sources.h"
#include "cli/launch/children/children.h"
#include "cli/preflight/limits.h"
#include "cli/preflight/preflight.h"
#include "cli/verb/job_load.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/etcd/etcd.h"
#include "worker/model/model.h"

/* Samples of a lane in one block: enough that the overhead of a block is small, few enough that a
 * lost lane is quickly recomputed. */
#define LANE_SAMPLES 1024u

static const char *mode_name(const struct kelp_inference *inference)
{
    return inference->mode == KELP_RUN_PREDICT ? "predict" : "evaluate";
}

static int exit_status_of(kelp_status status)
{
    switch (kelp_status_group(status)) {
    case KELP_GROUP_CALLER:
    case KELP_GROUP_DATA:
        return KELP_EXIT_USAGE;
    case KELP_GROUP_PEER:
    case KELP_GROUP_RETRY:
        return KELP_EXIT_UNREACHABLE;
    default:
        return KELP_EXIT_FAILED;
    }
}

/* ---- job and weights ----------------------------------------------------------------------- */

/* Settings that must not come from the training job. They are applied before the command line, so
 * that --set wins. */
static kelp_status set_defaults(struct kelp_inference *inference, struct kelp_error *reterr)
{
    static const char *const splits[] = {"train", "val", "test"};
    const struct kelp_job *job = kelp_job_file_job(inference->file);
    uint64_t batch = (uint64_t)job->cluster.lanes * LANE_SAMPLES;
    char batch_text[32], name[KELP_JOB_NAME_MAX + 1];

    (void)snprintf(batch_text, sizeof(batch_text), "%" PRIu64, batch);
    (void)snprintf(name, sizeof(name), "%.50s-%s", job->name, mode_name(inference));
    const struct kelp_job_setting both[] = {
        {"name", name},
        {"run.mode", mode_name(inference)},
        {"run.dir", ""},
        {"model.init_prefix", ""},
        {"model.init_map", "[]"},
        {"train.evaluate", "true"},
        {"checkpoint.at_end", "false"},
        {"checkpoint.steps", "0"},
        {"checkpoint.epochs", "0"},
        {"checkpoint.keep_best", "0"},
    };
    const struct kelp_job_setting predict[] = {
        {"run.part", splits[inference->split]},
        {"train.batch_size", batch_text},
        {"train.drop_last", "false"},
        {"train.accumulate", "1"},
    };
    kelp_status status = kelp_job_set(inference->file, both, KELP_ARRAY_COUNT(both), reterr);
    if (status == KELP_OK && inference->mode == KELP_RUN_PREDICT) {
        status = kelp_job_set(inference->file, predict, KELP_ARRAY_COUNT(predict), reterr);
    }
    return status;
}

/* The run's folder, absolute: workers write into it. */
static kelp_status choose_folder(struct kelp_inference *inference, char path[KELP_RUN_PATH_MAX + 1],
                                 bool *ret_numbered, struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(inference->file);
    char folder[PATH_MAX] = "", named[KELP_RUN_PATH_MAX + 1];

    *ret_numbered = job->run.dir[0] == '\0';
    kelp_status status = *ret_numbered ? kelp_run_dir_default(job->name, time(NULL), named, reterr)
                                       : kelp_run_dir_resolve(job->run.dir, named, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (named[0] != '/' && !getcwd(folder, sizeof(folder))) {
        return kelp_fail(reterr, KELP_ERR_IO, "the current folder has no name: %s",
                         strerror(errno));
    }
    int length =
        snprintf(path, KELP_RUN_PATH_MAX + 1, "%s%s%s", folder, folder[0] ? "/" : "", named);
    return length > 0 && length <= KELP_RUN_PATH_MAX
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_LIMIT, "the run folder's name is too long");
}

/* Apply --set, which wins over everything but the keys that this command must set. */
static kelp_status set_given(struct kelp_inference *inference, struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(inference->file);
    char init[sizeof(job->model.init)];

    memcpy(init, job->model.init, sizeof(init));
    kelp_status status = kelp_job_set_options(inference->file, inference->given, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (job->run.mode != inference->mode) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "--set run.mode: kelp %s sets it",
                         mode_name(inference));
    }
    if (inference->mode == KELP_RUN_PREDICT && job->run.part != inference->split) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "--set run.part: give --part instead");
    }
    if (strcmp(job->model.init, init) != 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "--set model.init: give --weights instead");
    }
    return KELP_OK;
}

/* The job may be unfinished. */
static bool is_program(const struct kelp_job *job)
{
    return job->model.program[0] != '\0' || job->model.python[0] != '\0';
}

/* What reaches Kelp's own models alone. */
static kelp_status check_program(const struct kelp_inference *inference, struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(inference->file);

    if (!is_program(job)) {
        return KELP_OK;
    }
    if (inference->targets) {
        return kelp_fail(
            reterr, KELP_ERR_INVALID,
            "--targets: the job's program has the data itself, and gives only predictions");
    }
    if (kelp_options_text(inference->given, "data")) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--data: the job's program has the data itself (%.300s); give it "
                         "arguments with --set 'model.arguments=[...]'",
                         job->model.python[0] ? job->model.python : job->model.program);
    }
    return inference->trials.fault_count > 0
               ? kelp_fail(reterr, KELP_ERR_INVALID,
                           "--fault is for kelp-worker, and the job has a program instead")
               : KELP_OK;
}

/* --data: use these rows, and no others of the job. */
static kelp_status set_data(struct kelp_inference *inference, struct kelp_error *reterr)
{
    const char *path = kelp_options_text(inference->given, "data");
    enum kelp_data_kind kind = kelp_job_file_job(inference->file)->data.kind;
    const struct kelp_job_setting test = {"data.test_path", path};
    static const struct kelp_job_setting none = {"data.path", ""};
    static const struct kelp_job_setting rows = {"data.val_path", ""};
    static const struct kelp_job_setting arrays[] = {{"data.target_path", ""},
                                                     {"data.val_target_path", ""}};

    if (!path) {
        return KELP_OK;
    }
    if (inference->mode == KELP_RUN_PREDICT && inference->split != KELP_RUN_PART_TEST) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--data: all of its rows are predicted; leave out --part");
    }
    kelp_status status = kelp_job_set(inference->file, &test, 1, reterr);
    if (status == KELP_OK && kind != KELP_DATA_SYNTHETIC) { /* that has no path to unset */
        status = kelp_job_set(inference->file, &none, 1, reterr);
    }
    if (status == KELP_OK &&
        (kind == KELP_DATA_TABLE || kind == KELP_DATA_NPY || kind == KELP_DATA_BINARY)) {
        status = kelp_job_set(inference->file, &rows, 1, reterr);
    }
    if (status == KELP_OK && kind == KELP_DATA_NPY) {
        status = kelp_job_set(inference->file, arrays, KELP_ARRAY_COUNT(arrays), reterr);
    }
    if (status == KELP_OK && kind == KELP_DATA_BINARY && inference->mode == KELP_RUN_PREDICT) {
        const struct kelp_job_setting kept = {"data.test_rows",
                                              inference->targets ? "labelled" : "either"};
        status = kelp_job_set(inference->file, &kept, 1, reterr);
    }
    return status;
}

/* A model alone does not say which rows. */
static kelp_status check_data(const struct kelp_inference *inference,
                              const struct kelp_sources *sources, struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(inference->file);

    if (sources->alone && !is_program(job) && job->data.kind != KELP_DATA_SYNTHETIC &&
        job->data.path[0] == '\0' && job->data.val_path[0] == '\0' &&
        job->data.test_path[0] == '\0') {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s does not name its data: give the rows to %s with --data PATH",
                         kelp_verb_typed(inference->given), mode_name(inference));
    }
    return KELP_OK;
}

static kelp_status read_job(struct kelp_inference *inference, struct kelp_sources *sources,
                            struct kelp_error *reterr)
{
    kelp_status status = kelp_sources_find_job(sources, inference->given, reterr);
    if (status == KELP_OK) {
        status = kelp_sources_load_job(sources, inference->given, &inference->file, reterr);
    }
    if (status == KELP_OK) {
        status = check_program(inference, reterr);
    }
    if (status == KELP_OK && !sources->alone) {
        status = kelp_sources_find_weights(sources, inference->given,
                                           kelp_job_file_job(inference->file), reterr);
    }
    if (status == KELP_OK) {
        status = set_defaults(inference, reterr);
    }
    if (status == KELP_OK) {
        status = set_data(inference, reterr);
    }
    if (status == KELP_OK) {
        status = set_given(inference, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_job_begin_portable(kelp_job_file_job(inference->file), NULL, reterr);
    }
    return status == KELP_OK ? check_data(inference, sources, reterr) : status;
}

/* ---- before anything starts ---------------------------------------------------------------- */

static kelp_status check_targets(const struct kelp_inference *inference, struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(inference->file);
    const struct kelp_dataset_info *info = kelp_dataset_info(inference->dataset);

    if (inference->targets && info->no_targets[job->run.part]) {
        return kelp_fail(
            reterr, KELP_ERR_INVALID,
            "--targets: the rows to predict have none; omit it, or give data with targets%s",
            job->data.kind == KELP_DATA_NPY ? " (data.test_target_path)" : "");
    }
    return KELP_OK;
}

static uint64_t entries_of(const struct kelp_job *job, const struct kelp_plan *plan)
{
    return job->run.mode == KELP_RUN_PREDICT ? kelp_control_predict_blocks(job, plan)
                                             : (plan->samples[KELP_SPLIT_VAL] > 0) +
                                                   (uint64_t)(plan->samples[KELP_SPLIT_TEST] > 0);
}

/* Open the data and build the model, as the workers will do, so that a model that does not fit the
 * machine, or weights that do not fit the model, are reported here and not by the processes. */
static kelp_status open_data(struct kelp_inference *inference, struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(inference->file);
    struct kelp_derived derived = {.dataset = NULL};

    kelp_status status = kelp_derived_open(job, NULL, &derived, reterr);
    if (status == KELP_OK) {
        status = kelp_derived_check(
            job, &derived, kelp_gpus_sharing(&inference->gpus, job->cluster.workers.max), reterr);
        kelp_model_leave(derived.model);
        inference->dataset = derived.dataset;
        inference->plan = derived.plan;
        inference->entries = entries_of(job, &inference->plan);
    }
    if (status == KELP_OK) {
        status = kelp_plan_print(&inference->plan, &inference->plan_text, reterr);
    }
    return status == KELP_OK ? check_targets(inference, reterr) : status;
}

/* The user's program tells what the job means. */
static kelp_status open_program(struct kelp_inference *inference, const char *run_path,
                                struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(inference->file);
    struct kelp_plan plan;

    kelp_status status = kelp_worker_program_find(job, NULL, &inference->program, reterr);
    if (status == KELP_OK && run_path[0] != '\0' &&
        kelp_run_plan(run_path, &plan, NULL) == KELP_OK) { /* of the training: to show how far */
        inference->entries = entries_of(job, &plan);
        kelp_plan_fini(&plan);
    }
    return status;
}

/* Set the weights, and the job as it will run, once the folder has its name. */
static kelp_status settle(struct kelp_inference *inference, const struct kelp_sources *sources,
                          struct kelp_error *reterr)
{
    char weights[PATH_MAX];
    bool carries = false;

    kelp_status status =
        kelp_sources_place(sources, inference->run.path, weights, &carries, reterr);
    if (status != KELP_OK) {
        return status;
    }
    const struct kelp_job_setting settings[] = {{"run.dir", inference->run.path},
                                                {"model.init", weights}};
    if (status == KELP_OK) {
        status = kelp_job_set(inference->file, settings, KELP_ARRAY_COUNT(settings), reterr);
    }
    if (status == KELP_OK) {
        status = kelp_job_file_finish(inference->file, reterr);
    }
    if (status == KELP_OK) {
        const struct kelp_plugin_consent consent = {
            .own_job = sources->own_job,
            .allowed = kelp_options_flag(inference->given, "allow-plugin")};
        status = kelp_plugin_consent(inference->file, &consent, reterr);
    }
    const bool program =
        status == KELP_OK && kelp_job_file_job(inference->file)->model.kind == KELP_MODEL_PROGRAM;
    if (status == KELP_OK) {
        status = program ? open_program(inference, sources->run_path, reterr)
                         : open_data(inference, reterr);
    }
    if (status == KELP_OK && !carries && !program) {
        kelp_display_say(&inference->display,
                         "%s does not carry its scales (it has no " KELP_MODEL_CARD_KEY
                         "): they are fitted again on the training split of data.path",
                         inference->weights);
    }
    if (status == KELP_OK) {
        status = kelp_job_file_print(inference->file, false, &inference->spec, reterr);
    }
    return status == KELP_OK
               ? kelp_run_dir_write(&inference->run, "job.yaml", inference->spec, reterr)
               : status;
}

static kelp_status find_certs(struct kelp_inference *inference, struct kelp_error *reterr)
{
    const char *folder = kelp_options_text(inference->given, "certs");

    if (!folder) {
        return KELP_OK;
    }
    kelp_status status = kelp_launcher_find_certs(folder, kelp_job_file_job(inference->file)->name,
                                                  &kelp_launch_all_roles, inference->certs, reterr);
    if (status == KELP_OK) {
        (void)snprintf(inference->operator_certs, sizeof(inference->operator_certs), "%s/%s",
                       inference->certs, kelp_role_names[KELP_ROLE_OPERATOR]);
    }
    return status;
}

/* Everything that can be checked without creating anything. */
static kelp_status prepare(struct kelp_inference *inference, struct kelp_sources *sources,
                           struct kelp_error *reterr)
{
    kelp_status status = kelp_trials_add_faults(&inference->trials, inference->given, reterr);

    if (status == KELP_OK) {
        status = read_job(inference, sources, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_gpus_find(
            NULL, kelp_job_file_job(inference->file)->cluster.device == KELP_DEVICE_CUDA,
            &inference->gpus, reterr);
    }
    if (status == KELP_OK) {
        status = find_certs(inference, reterr);
    }
    if (status == KELP_OK) {
        status =
            kelp_preflight_bin_folder(inference->bin_folder, sizeof(inference->bin_folder), reterr);
    }
    if (status == KELP_OK) {
        status = kelp_children_check_programs(inference->bin_folder, reterr);
    }
    if (status == KELP_OK) {
        (void)snprintf(inference->weights, sizeof(inference->weights), "%s",
                       sources->checkpoint ? sources->checkpoint->name : sources->weights_path);
    }
    return status;
}

/* Remove what killed commands left near our run and nobody will resume. */
static void clear_beside(const char *run_path)
{
    char folder[KELP_RUN_PATH_MAX + 1];
    const char *slash = strrchr(run_path, '/');

    assert(slash); /* the path is absolute */
    (void)snprintf(folder, sizeof(folder), "%.*s", slash == run_path ? 1 : (int)(slash - run_path),
                   run_path);
    kelp_leftovers_clear_inferences(folder);
}

static kelp_status make_run(struct kelp_inference *inference, const struct kelp_sources *sources,
                            struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 1];
    bool numbered = false;

    kelp_status status = choose_folder(inference, path, &numbered, reterr);
    if (status == KELP_OK) {
        status = kelp_run_dir_create(path, numbered, &inference->run, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    clear_beside(inference->run.path);
    status = kelp_run_dir_protect(&inference->run, kelp_job_file_job(inference->file)->run.closed,
                                  reterr);
    if (status == KELP_OK) {
        status = settle(inference, sources, reterr);
    }
    if (status != KELP_OK) { /* nothing has run: nothing is left behind */
        kelp_run_dir_close(&inference->run);
        (void)kelp_files_remove(inference->run.path, NULL);
    }
    return status;
}

/* ---- running ------------------------------------------------------------------------------- */

static int work(struct kelp_guard *guard, void *user)
{
    struct kelp_inference *inference = user;
    const struct kelp_launch launch = {
        .job = kelp_job_file_job(inference->file),
        .spec = inference->spec,
        .spec_digest = kelp_job_file_digest(inference->file),
        .plan = inference->plan_text,
        .run = &inference->run,
        .worker_program = &inference->program,
        .bin_folder = inference->bin_folder,
        .etcd_url = kelp_options_text(inference->given, "etcd"),
        .etcd_program = kelp_options_text(inference->given, "etcd-program"),
        .log_level = kelp_log_level_names[kelp_options_choice(inference->given, "log-level")],
        .certs = inference->certs[0] ? inference->certs : NULL,
        .trials = &inference->trials,
        .gpus = &inference->gpus,
        .coordinators = 1,
        .entries = inference->entries,
        .entry_name = inference->mode == KELP_RUN_PREDICT ? "block" : "split",
        .start_ms = inference->start_ms,
    };

    return kelp_launcher_run(&launch, guard, &inference->display, &inference->result);
}

/* The certificate of the user who gives the command; NULL: none. */
static const char *own_certs(const struct kelp_inference *inference)
{
    return inference->certs[0] ? inference->operator_certs : NULL;
}

/* Remove the job from an etcd that is not ours: no command continues it, and the next job may have
 * the same name. */
static void forget_job(struct kelp_inference *inference)
{
    const char *url = kelp_options_text(inference->given, "etcd");
    char prefix[KELP_JOB_NAME_MAX + 16];
    struct kelp_etcd *etcd = NULL;
    struct kelp_error error;

    if (!url) {
        return;
    }
    (void)snprintf(prefix, sizeof(prefix), "/kelp/%s/", kelp_job_file_job(inference->file)->name);
    kelp_status status = kelp_etcd_open_certified(url, own_certs(inference), &etcd, &error);
    if (status == KELP_OK) {
        status = kelp_etcd_delete_prefix(etcd, prefix, KELP_LAUNCH_ETCD_MS, &error);
        kelp_etcd_close(etcd);
    }
    if (status != KELP_OK) {
        kelp_display_say(&inference->display, "etcd still has %s: %s", prefix, error.text);
    }
}

static int launch(struct kelp_inference *inference)
{
    const struct kelp_result *result = &inference->result;
    struct kelp_error error;
    char exported[KELP_RUN_PATH_MAX + 64];
    int exit_status = KELP_EXIT_FAILED;

    if (kelp_guard_run(work, inference, &exit_status, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
    forget_job(inference);
    if (strcmp(result->status, "done") != 0) {
        return kelp_complain(exit_status != KELP_EXIT_OK ? exit_status : KELP_EXIT_FAILED,
                             "%s%s%s; see %s/logs", result->status, result->reason[0] ? ": " : "",
                             result->reason, inference->run.path);
    }
    if (result->after[0] != '\0') { /* it has no part in what was asked for */
        kelp_display_say(&inference->display, "%s", result->after);
    }
    if (kelp_worker_program_is(&inference->program) &&
        kelp_run_plan(inference->run.path, &inference->plan, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
    if (kelp_run_dir_path(inference->run.path, KELP_SOURCES_WEIGHTS, exported, sizeof(exported),
                          NULL) == KELP_OK) {
        (void)kelp_files_remove(exported, NULL); /* a copy of what the checkpoint has */
    }
    return KELP_EXIT_OK;
}

/* If --data set the key, an error about the key is about --data. */
static void name_option(const struct kelp_inference *inference, struct kelp_error *error)
{
    static const char key[] = "data.test_path:", option[] = "--data:";
    size_t more = sizeof(key) - sizeof(option);

    if (kelp_options_text(inference->given, "data") &&
        strncmp(error->text, key, sizeof(key) - 1) == 0) {
        memmove(error->text, error->text + more, strlen(error->text + more) + 1);
        memcpy(error->text, option, sizeof(option) - 1);
    }
}

static int start(struct kelp_inference *inference, struct kelp_sources *sources)
{
    struct kelp_error error = {.status = KELP_OK};

    kelp_status status = prepare(inference, sources, &error);
    if (status == KELP_OK) {
        status = kelp_limits_allow(kelp_job_file_job(inference->file),
                                   !kelp_options_text(inference->given, "etcd"), &error);
    }
    if (status != KELP_OK) {
        name_option(inference, &error);
        return kelp_complain(exit_status_of(status), "%s", error.text);
    }
    int exit_status = kelp_launcher_find_etcd(inference->given, own_certs(inference),
                                              kelp_job_file_job(inference->file)->name, false);
    if (exit_status != KELP_EXIT_OK) {
        return exit_status;
    }
    status = make_run(inference, sources, &error);
    if (status != KELP_OK) {
        name_option(inference, &error);
        return kelp_complain(exit_status_of(status), "%s", error.text);
    }
    return KELP_EXIT_OK;
}

int kelp_inference_run(struct kelp_inference *inference)
{
    struct kelp_sources *sources = calloc(1, sizeof(*sources));

    if (!sources) {
        return kelp_complain(KELP_EXIT_FAILED, "out of memory");
    }
    int exit_status = start(inference, sources);
    kelp_checkpoint_source_fini(&sources->checkpoints);
    free(sources);
    if (exit_status != KELP_EXIT_OK) {
        return exit_status;
    }
    kelp_display_say(&inference->display, "run %s", inference->run.path);
    kelp_limits_say(&inference->display);
    return launch(inference);
}

struct kelp_inference *kelp_inference_create(const struct kelp_options *given,
                                             enum kelp_run_mode mode)
{
    struct kelp_inference *inference = calloc(1, sizeof(*inference));

    if (!inference) {
        (void)kelp_complain(KELP_EXIT_FAILED, "out of memory");
        return NULL;
    }
    inference->given = given;
    inference->mode = mode;
    inference->run.lock_fd = -1;
    inference->start_ms = kelp_clock_ms();
    kelp_display_init(&inference->display, STDERR_FILENO);
    return inference;
}

void kelp_inference_destroy(struct kelp_inference *inference)
{
    kelp_run_dir_close(&inference->run);
    kelp_dataset_close(inference->dataset);
    kelp_plan_fini(&inference->plan);
    kelp_job_file_destroy(inference->file);
    free(inference->spec);
    free(inference->plan_text);
    free(inference);
}
