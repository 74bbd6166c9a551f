#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/checkpoint/run_plan.h"
#include "cli/cluster/run_client.h"
#include "cli/launch/children/children.h"
#include "cli/launch/detach.h"
#include "cli/launch/launcher.h"
#include "cli/plot/plot_run.h"
#include "cli/preflight/limits.h"
#include "cli/preflight/notices.h"
#include "cli/preflight/preflight.h"
#include "cli/preflight/run_plugin.h"
#include "cli/preflight/script.h"
#include "cli/preflight/train_job.h"
#include "cli/run/plugin_consent.h"
#include "cli/run/worker_program.h"
#include "cli/verb/job_load.h"
#include "cli/verb/out_file.h"
#include "cli/verbs.h"
#include "common/base/clock.h"
#include "common/program/options/trace_option.h"
#include "common/program/portable.h"
#include "common/program/run_next.h"
#include "common/training/control.h"
#include "common/training/manifest.h"

static const struct kelp_option options[] = {
    KELP_VERB_NUMBER("workers", RANGE, 1, 1024, NULL, NULL,
                     "N or MIN:MAX workers (job key cluster.workers): MAX are started, and "
                     "training begins once MIN have joined"),
    KELP_VERB_SHARDS(NULL, "parameter-server shards (job key cluster.shards)"),
    KELP_VERB_FLAG("no-plots", NULL,
                   "do not draw the run's pictures at its end; kelp plot can do it later"),
    KELP_VERB_SET(NULL, "set a job key, such as train.lr=0.01"),
    KELP_VERB_RUN(NULL, "folder of the run (job key run.dir; default: runs/NAME-TIME)"),
    KELP_VERB_FLAG(
        "resume", NULL,
        "continue the run in that folder from its newest checkpoint; the job may differ where "
        "docs/JOB.md allows it"),
    KELP_VERB_ALLOW_PLUGIN,
    KELP_VERB_FLAG("force", NULL, "resume although the job differs in keys that shape the result"),
    KELP_VERB_NUMBER(
        "pause-timeout", DURATION, 0, 86400000, "25s", NULL,
        "how long Ctrl-C, SIGTERM and SIGHUP wait for a checkpoint before the run ends; with 0s "
        "it ends at once"),
    KELP_VERB_FLAG("detach", NULL,
                   "run the job in the background: print the run's folder once training has "
                   "started, or why it did not start"),
    KELP_VERB_FLAG("print-config", NULL,
                   "print the job in effect and where each value comes from; start nothing"),
    KELP_VERB_ETCD("Cluster", "use this etcd instead of a private one in the run's folder"),
    KELP_VERB_ETCD_PROGRAM("Cluster"),
    KELP_VERB_TEXT("worker-program", "FILE", "Cluster",
                   "a program linked with libkelp-worker.so; it defines model and data, and "
                   "computes instead of kelp-worker or the job's program (job key model.program)"),
    KELP_VERB_TEXT("listen", "HOST", "Cluster",
                   "listen on ports of this loopback address, such as 127.0.0.1, with "
                   "certificates made for this run unless --certs is given (default: unix sockets "
                   "that only this user can open)"),
    KELP_VERB_JOB_CERTS("Cluster",
                        "use mutual TLS on all ports and to etcd; the folder has coordinator/, "
                        "shard/, worker/ and operator/, made by kelp certs for the job"),
    KELP_VERB_TEXT("gpus", "LIST", "Cluster",
                   "with cluster.device: cuda, the GPUs to use, such as 0,1; each worker here gets "
                   "one of them, in turn (default: those in CUDA_VISIBLE_DEVICES, or all)"),
    KELP_VERB_COORDINATORS("Cluster", "1", "coordinators to start: one leads, the others stand by"),
    KELP_VERB_LOG_LEVEL("Cluster", "lowest level that is written to the run's logs/"),
    KELP_VERB_FAULT("make the first start of a process fail, such as worker-1:kill@step=120"),
    KELP_VERB_TEXTS("at", "step=N:DO", "Testing",
                    "what to do when step N is reached: add-worker, or kill=ID"),
    KELP_VERB_TEXT(
        "trace", "FILE", "Testing",
        "trace some steps of worker-0 and shard-0 to FILE, for Perfetto or chrome://tracing"),
    KELP_VERB_NUMBER("trace-steps", INTEGER, 1, KELP_TRACE_STEPS_MAX, KELP_TRACE_STEPS_DEFAULT,
                     "Testing", "how many steps --trace covers, from the eleventh on"),
    KELP_VERB_FLAG("no-restart", "Testing", "do not restart processes that die"),
};

static const struct kelp_program program = {
    .name = "kelp train",
    .summary = "runs a job on this machine, from the first process to the summary",
    .positional = "JOB.yaml",
    .positional_max = 1,
    .examples = "  kelp train examples/etth1-dlinear.yaml --workers 2:4 --set train.lr=0.01\n"
                "  kelp train --resume --run runs/etth1-dlinear-20260131-120000\n"
                "  kelp train --resume --set train.epochs=20 --workers 4\n"
                "  kelp train --detach - <job.yaml\n",
    KELP_VERB_OPTIONS(options),
};

static const struct kelp_program run_program = {
    .name = "kelp run",
    .summary = "trains the model of a Python script that describes its own job",
    .positional = "SCRIPT [ARGUMENT...]",
    .positional_min = 1,
    .positional_max = 1 + KELP_WORKER_ARGUMENTS_MAX,
    .positional_ends = true,
    .examples = "  kelp run train.py\n"
                "  kelp run --workers 3 --set train.epochs=5 train.py --hidden 64\n"
                "  kelp run --resume --run runs/train-20260131-120000 train.py\n",
    KELP_VERB_OPTIONS(options),
};

/* The state of one `kelp train`; a field is empty until its stage has run. */
struct train {
    const struct kelp_options *given;
    const struct kelp_program *program;
    struct kelp_script script; /* kelp run: describes the job; otherwise its folder is "" */
    uint64_t start_ms;
    struct kelp_gpus gpus;
    struct kelp_trials trials;
    struct kelp_job_file *file;
    char *spec;
    char *abandoned;             /* job of an earlier resume that did not take hold; NULL: none */
    struct kelp_carried carried; /* what the model will carry */
    struct kelp_train_changes changes; /* resumed: since the earlier job */
    struct kelp_run_dir run;
    char bin_folder[KELP_PROCESS_PATH_MAX];
    struct kelp_worker_program worker_program;
    char certs[KELP_LAUNCH_CERTS_MAX + 1]; /* "": none */
    struct kelp_display display;
    bool force;    /* the job continues from checkpoints of another job */
    bool linked;   /* runs/latest stands for this run */
    int report_fd; /* pipe to the command that waits for the start of training; -1: none waits */
    struct kelp_result result;
    char run_path[KELP_RUN_PATH_MAX + 1];
};

static kelp_status read_trials(struct train *train, struct kelp_error *reterr)
{
    kelp_status status = kelp_trials_add_faults(&train->trials, train->given, reterr);

    for (size_t i = 0; status == KELP_OK && i < kelp_options_repeat_count(train->given, "at");
         i++) {
        status = kelp_trials_add_timed(&train->trials, kelp_options_repeat(train->given, "at", i),
                                       reterr);
    }
    return status;
}

/* Check that --fault and --at name processes and steps of this run. */
static kelp_status check_trials(const struct train *train, struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(train->file);
    uint32_t later = kelp_trials_added_workers(&train->trials);
    uint32_t most = job->cluster.workers.max, least = job->cluster.workers.min + later;
    const struct kelp_trials_run run = {
        .workers = most > least ? most : least,
        .shards = job->cluster.shards,
        .coordinators = (uint32_t)kelp_options_integer(train->given, "coordinators"),
        .steps = train->carried.steps};

    return kelp_trials_check(&train->trials, &run, reterr);
}

/* The run's folder: --run or run.dir; otherwise runs/latest for a resume, and a new name for a new
 * run. The run's own job file, when it is resumed without another one, does not say where the
 * folder is: it may have moved since. */
static kelp_status choose_run(struct train *train, struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(train->file);
    bool own_job = kelp_options_positional_count(train->given) == 0;

    if (job->run.dir[0] && (!own_job || kelp_options_given(train->given, "run"))) {
        return kelp_run_dir_resolve(job->run.dir, train->run_path, reterr);
    }
    if (kelp_options_flag(train->given, "resume")) {
        return kelp_run_dir_resolve(KELP_RUN_LATEST, train->run_path, reterr);
    }
    return kelp_run_dir_default(job->name, time(NULL), train->run_path, reterr);
}

/* A finished run needs nothing more; true if this is one. */
static bool done_already(struct train *train)
{
    return kelp_options_flag(train->given, "resume") && !train->changes.longer &&
           kelp_run_result_read(train->run.path, &train->result, NULL) == KELP_OK &&
           strcmp(train->result.status, "done") == 0;
}

/* Prepare early what the model will carry, since checkpoints include it. In a resume it waits, like
 * the job. */
static kelp_status write_card(const struct train *train, struct kelp_error *reterr)
{
    const char *name = kelp_options_flag(train->given, "resume") ? KELP_RUN_NEXT
                           "/" KELP_MODEL_CARD_FILE
                                                                 : KELP_MODEL_CARD_FILE;

    return train->carried.card ? kelp_run_dir_write(&train->run, name, train->carried.card, reterr)
                               : KELP_OK;
}

/* The job as it runs: with its own copy of the model's library, and with paths below the run's
 * folder relative to it in job.yaml. */
static kelp_status write_job(struct train *train, struct kelp_error *reterr)
{
    char folder[PATH_MAX];
    char *text = NULL;

    kelp_status status = kelp_run_plugin_keep(train->file, train->run.path, reterr);
    if (status == KELP_OK && train->script.folder[0] != '\0') {
        status = kelp_script_init_keep(&train->script, train->file, train->run.path, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_job_file_print(train->file, false, &train->spec, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    if (!realpath(train->run.path, folder)) {
        return kelp_fail(reterr, KELP_ERR_IO, "cannot resolve '%s': %s", train->run.path,
                         strerror(errno));
    }
    status = kelp_job_file_print_in(train->file, folder, &text, reterr);
    if (status == KELP_OK) {
        status = kelp_options_flag(train->given, "resume")
                     ? kelp_launcher_lay_ready(&train->run, train->spec, text, train->force,
                                               &train->abandoned, reterr)
                     : kelp_run_dir_write(&train->run, "job.yaml", text, reterr);
        free(text);
    }
    return status;
}

/* The run itself does not need the link. */
static void link_latest(struct train *train)
{
    struct kelp_error error;

    if (!train->linked && kelp_run_dir_link_latest(&train->run, &error) != KELP_OK) {
        kelp_display_say(&train->display, "%s", error.text);
    }
    train->linked = true;
}

/* Take the folder. *ret_done is set if there is nothing left to do in it. */
static kelp_status open_run(struct train *train, bool *ret_done, struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(train->file);
    kelp_status status;

    if (kelp_options_flag(train->given, "resume")) {
        status = kelp_run_dir_resume(train->run_path, &train->run, reterr);
    } else {
        status = kelp_run_dir_create(train->run_path, job->run.dir[0] == '\0', &train->run, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_run_dir_protect(&train->run, job->run.closed, reterr);
    }
    if (status == KELP_OK && done_already(train)) {
        *ret_done = true;
        return kelp_launcher_clear(&train->run, reterr);
    }
    if (status == KELP_OK) {
        train->force =
            kelp_options_flag(train->given, "force") ||
            (kelp_options_flag(train->given, "resume") && kelp_launcher_forced(train->run.path));
        memset(&train->result, 0, sizeof(train->result));
        status = write_job(train, reterr);
    }
    if (status == KELP_OK) {
        status = write_card(train, reterr);
    }
    if (status == KELP_OK && !kelp_options_flag(train->given, "resume")) {
        link_latest(train);
    }
    return status;
}

static int print_config(const struct train *train)
{
    struct kelp_error error;
    char *text = NULL;

    kelp_status status = kelp_job_file_print(train->file, true, &text, &error);
    return kelp_verb_print(status, text, &error);
}

static int print_summary(const struct train *train)
{
    kelp_result_summary(&train->result, train->run.path, stdout);
    return KELP_EXIT_OK;
}

static void report_training(void *user)
{
    struct train *train = user;

    link_latest(train);
    if (train->report_fd >= 0) {
        kelp_detach_report_started(train->report_fd);
        train->report_fd = -1;
    }
}

static int work(struct kelp_guard *guard, void *user)
{
    struct train *train = user;
    struct kelp_launch launch = {
        .job = kelp_job_file_job(train->file),
        .spec = train->spec,
        .spec_digest = kelp_job_file_digest(train->file),
        .plan = train->carried.plan,
        .run = &train->run,
        .bin_folder = train->bin_folder,
        .worker_program = &train->worker_program,
        .etcd_url = kelp_options_text(train->given, "etcd"),
        .etcd_program = kelp_options_text(train->given, "etcd-program"),
        .log_level = kelp_log_level_names[kelp_options_choice(train->given, "log-level")],
        .listen = kelp_options_text(train->given, "listen"),
        .certs = train->certs[0] ? train->certs : NULL,
        .trials = &train->trials,
        .trace = kelp_options_text(train->given, "trace"),
        .trace_steps = (uint32_t)kelp_options_integer(train->given, "trace-steps"),
        .gpus = &train->gpus,
        .coordinators = (uint32_t)kelp_options_integer(train->given, "coordinators"),
        .no_restart = kelp_options_flag(train->given, "no-restart"),
        .resume = kelp_options_flag(train->given, "resume"),
        .abandoned = train->abandoned,
        .force = train->force,
        .pause_ms = (uint32_t)kelp_options_duration_ms(train->given, "pause-timeout"),
        .start_ms = train->start_ms,
        .on_training = report_training,
        .user = train,
    };

    return kelp_launcher_run(&launch, guard, &train->display, &train->result);
}

static int say_outcome(const struct train *train, int exit_status)
{
    const struct kelp_result *result = &train->result;
    const char *path = train->run.path;

    if (strcmp(result->status, "done") == 0) {
        (void)print_summary(train);
        if (result->after[0] == '\0') {
            return KELP_EXIT_OK;
        }
        (void)fflush(stdout); /* the summary comes first */
        return kelp_complain(exit_status, "%s", result->after);
    }
    if (result->unheld) {
        const char *changes = train->changes.text;
        const bool refused = strcmp(result->status, "failed") == 0;
        return kelp_complain(
            exit_status,
            "%s before training went on%s%s; the run is unchanged%s%s%s%s%s; see "
            "%s/logs",
            result->status, result->reason[0] ? ": " : "", result->reason,
            refused ? "" : ", and kelp train --resume --run ", refused ? "" : path,
            refused ? "" : " continues it",
            refused && changes[0] ? ", and goes on as the job that it has, without " : "",
            refused ? changes : "", path);
    }
    if (strcmp(result->status, "failed") == 0) {
        return kelp_complain(exit_status, "%s; see %s/logs", result->reason, path);
    }
    return kelp_complain(
        exit_status, "%s at step %" PRIu64 "%s%s; continue with kelp train --resume --run %s",
        result->status, result->step, result->reason[0] ? ": " : "", result->reason, path);
}

/* Draw the run, for people: nothing depends on the pictures, and a run without epochs or
 * evaluations has none. */
static void draw(struct train *train)
{
    struct kelp_error error;

    if (strcmp(train->result.status, "done") != 0 || kelp_options_flag(train->given, "no-plots")) {
        return;
    }
    kelp_status status = kelp_plot_run(
        train->run.path, &(struct kelp_plot_what){.job = kelp_job_file_job(train->file)}, &error);
    if (status != KELP_OK && status != KELP_ERR_NOT_FOUND) {
        kelp_display_say(&train->display, "cannot draw the run's pictures: %s", error.text);
    }
}

/* In the background: from here on there is a log to write to. */
static kelp_status report_run(struct train *train, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    if (train->report_fd >= 0) {
        status = kelp_detach_report_run(train->report_fd, train->run.path, reterr);
        kelp_display_init(&train->display, STDERR_FILENO);
    }
    return status;
}

/* Start, run, and say what came of it. */
static int run(struct train *train)
{
    struct kelp_error error;
    int exit_status = KELP_EXIT_FAILED;

    if (report_run(train, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
    kelp_display_say(&train->display, "run %s", train->run.path);
    kelp_limits_say(&train->display);
    if (!kelp_options_given(train->given, "worker-program")) {
        kelp_notices_say(train->program, kelp_job_file_job(train->file), &train->carried,
                         &train->display);
    }
    if (train->changes.text[0]) {
        kelp_display_say(&train->display, "the job has changed: %s", train->changes.text);
    }
    if (train->carried.why.status != KELP_OK) {
        kelp_display_say(&train->display,
                         "the model will not carry its fitted scales and categories, so using it "
                         "will need the training data: %s",
                         train->carried.why.text);
    }
    if (kelp_guard_run(work, train, &exit_status, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
    if (!train->result.unheld) { /* it may have ended before anybody looked */
        link_latest(train);
    }
    draw(train);
    return say_outcome(train, exit_status);
}

static void tell_rows(void *user, const char *path, uint64_t rows)
{
    kelp_display_prepare(user, path, rows, kelp_clock_ms());
}

/* Ports are for watching or disturbing the network of one machine. An authority of the run is only
 * for an etcd of the run. */
static kelp_status check_listen(const struct train *train, struct kelp_error *reterr)
{
    const char *host = kelp_options_text(train->given, "listen");
    struct in_addr address;

    if (host && strcmp(host, "[::1]") != 0 &&
        (inet_pton(AF_INET, host, &address) != 1 || ntohl(address.s_addr) >> 24 != 127)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--listen %.100s: not a loopback address, such as 127.0.0.1 or [::1]",
                         host);
    }
    if (host && kelp_job_file_job(train->file)->transport.kind == KELP_TRANSPORT_SHM) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--listen %.100s: processes that listen on ports do not share memory, but "
                         "transport.kind is shm; omit one of the two",
                         host);
    }
    return !host || !kelp_options_text(train->given, "etcd") ||
                   kelp_options_text(train->given, "certs")
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_INVALID,
                           "--listen with --etcd needs --certs FOLDER: certificates of the "
                           "authority that this etcd has");
}

static kelp_status check_trace(const struct train *train, struct kelp_error *reterr)
{
    const char *path = kelp_options_text(train->given, "trace");

    if (!path) {
        return kelp_options_given(train->given, "trace-steps")
                   ? kelp_fail(reterr, KELP_ERR_INVALID,
                               "--trace-steps: there is no --trace FILE to write them to")
                   : KELP_OK;
    }
    return kelp_out_file_check("--trace", path, reterr);
}

/* Faults and traces are kelp-worker's own. */
static kelp_status find_worker_program(struct train *train, struct kelp_error *reterr)
{
    const char *instead = kelp_options_text(train->given, "worker-program");
    const char *who = instead ? "--worker-program names another" : "the job has a program instead";

    kelp_status status = kelp_worker_program_find(kelp_job_file_job(train->file), instead,
                                                  &train->worker_program, reterr);
    if (status != KELP_OK || !kelp_worker_program_is(&train->worker_program)) {
        return status;
    }
    if (train->trials.fault_count > 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--fault is for kelp-worker, and %s; --at step=N:kill=%s kills that one",
                         who, train->trials.faults[0].id);
    }
    return kelp_options_text(train->given, "trace")
               ? kelp_fail(reterr, KELP_ERR_INVALID, "--trace is for kelp-worker, and %s", who)
               : KELP_OK;
}

/* The user's program tells what the job means: there is nothing to derive here. */
static kelp_status derive(struct train *train, struct kelp_error *reterr)
{
    const struct kelp_dataset_watch watch = {.rows = tell_rows, .user = &train->display};
    const uint32_t sharing =
        kelp_gpus_sharing(&train->gpus, kelp_job_file_job(train->file)->cluster.workers.max);

    if (kelp_worker_program_is(&train->worker_program)) {
        return kelp_preflight_program(kelp_job_file_job(train->file), &train->carried, reterr);
    }
    kelp_status status = kelp_preflight(train->file, &watch, sharing, &train->carried, reterr);
    kelp_display_clear(&train->display);
    return status;
}

/* Do this before looking for anything: what such a run worked with may be gone. */
static kelp_status check_mode(const struct train *train, struct kelp_error *reterr)
{
    enum kelp_run_mode mode = kelp_job_file_job(train->file)->run.mode;

    if (mode == KELP_RUN_TRAIN || !kelp_options_flag(train->given, "resume")) {
        return KELP_OK;
    }
    return kelp_fail(reterr, KELP_ERR_INVALID,
                     "'%s' is a run of kelp %s, which is not resumed: give that command again",
                     train->run_path, mode == KELP_RUN_PREDICT ? "predict" : "evaluate");
}

/* For a program's job: facts that only its workers know, and the run too since they told them. */
static void count_steps(struct train *train)
{
    struct kelp_plan plan;

    if (kelp_worker_program_is(&train->worker_program) &&
        kelp_run_plan(train->run_path, &plan, NULL) == KELP_OK) {
        train->carried.steps = kelp_control_total_steps(kelp_job_file_job(train->file), &plan);
        kelp_plan_fini(&plan);
    }
}

/* Its etcd, which has the plan, may be gone: a checkpoint has it too. */
static kelp_status check_compute(const struct train *train, struct kelp_error *reterr)
{
    struct kelp_plan before;

    if (kelp_job_file_job(train->file)->cluster.mixed || !train->carried.plan ||
        kelp_run_plan(train->run_path, &before, NULL) != KELP_OK) {
        return KELP_OK;
    }
    kelp_status status =
        kelp_train_job_same_compute(&before, train->carried.plan, train->run_path, reterr);
    kelp_plan_fini(&before);
    return status;
}

/* May the job go on with the run? */
static kelp_status check_resume(struct train *train, struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(train->file);
    bool force = kelp_options_flag(train->given, "force");

    kelp_status status = kelp_run_plugin_find(train->file, train->run_path, force, reterr);
    if (status == KELP_OK && train->script.folder[0] != '\0') {
        status = kelp_script_init_find(&train->script, train->file, train->run_path, reterr);
    }
    if (status == KELP_OK) {
        status =
            kelp_train_job_follows(train->file, train->run_path, force, &train->changes, reterr);
    }
    if (status == KELP_OK) {
        count_steps(train);
    }
    if (status == KELP_OK && !force) {
        status = kelp_train_job_same_data(job, train->run_path, train->carried.card, reterr);
    }
    return status == KELP_OK && !force ? check_compute(train, reterr) : status;
}

/* Returns if the process computes as the job says; otherwise it starts itself again. */
static kelp_status begin_portable(const struct train *train, struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(train->file);

    if (train->report_fd >= 0 && kelp_portable_needs_again(job)) {
        kelp_detach_leave(train->report_fd);
    }
    return kelp_job_begin_portable(job, kelp_verb_typed(train->given), reterr);
}

static kelp_status prepare(struct train *train, struct kelp_error *reterr)
{
    kelp_status status = find_worker_program(train, reterr);
    if (status == KELP_OK) {
        status = begin_portable(train, reterr);
    }
    if (status == KELP_OK) {
        status = choose_run(train, reterr);
    }
    if (status == KELP_OK) {
        status = check_mode(train, reterr);
    }
    if (status == KELP_OK) {
        const struct kelp_plugin_consent consent = {
            .own_job = kelp_options_positional_count(train->given) > 0,
            .allowed = kelp_options_flag(train->given, "allow-plugin") ||
                       kelp_options_given(train->given, "worker-program")};
        status = kelp_plugin_consent(train->file, &consent, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_gpus_find(kelp_options_text(train->given, "gpus"),
                                kelp_job_file_job(train->file)->cluster.device == KELP_DEVICE_CUDA,
                                &train->gpus, reterr);
    }
    if (status == KELP_OK) {
        status = derive(train, reterr);
    }
    if (status == KELP_OK) {
        status = check_trials(train, reterr);
    }
    if (status == KELP_OK) {
        status = check_listen(train, reterr);
    }
    if (status == KELP_OK) {
        status = check_trace(train, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_limits_allow(kelp_job_file_job(train->file),
                                   !kelp_options_text(train->given, "etcd"), reterr);
    }
    if (status == KELP_OK && kelp_options_text(train->given, "certs")) {
        status = kelp_launcher_find_certs(kelp_options_text(train->given, "certs"),
                                          kelp_job_file_job(train->file)->name,
                                          &kelp_launch_all_roles, train->certs, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_preflight_bin_folder(train->bin_folder, sizeof(train->bin_folder), reterr);
    }
    if (status == KELP_OK) {
        status = kelp_children_check_programs(train->bin_folder, reterr);
    }
    return status == KELP_OK && kelp_options_flag(train->given, "resume")
               ? check_resume(train, reterr)
               : status;
}

/* The job file, or what the script says. */
static kelp_status read_job(struct train *train, struct kelp_error *reterr)
{
    if (train->program != &run_program) {
        return kelp_train_job_read(train->given, &train->file, reterr);
    }
    if (kelp_options_text(train->given, "worker-program")) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--worker-program: with kelp run the script computes; kelp train JOB.yaml "
                         "takes another program");
    }
    kelp_status status = kelp_script_describe(train->given, &train->script, reterr);
    return status == KELP_OK ? kelp_script_job(&train->script, &train->file, reterr) : status;
}

static int train_job(struct train *train)
{
    struct kelp_error error = {.status = KELP_OK};

    kelp_status status = read_trials(train, &error);
    if (status == KELP_OK) {
        status = read_job(train, &error);
    }
    if (status != KELP_OK && train->script.told) {
        return KELP_EXIT_USAGE;
    }
    if (status != KELP_OK) {
        const int number = train->script.signal;
        return kelp_complain(number != 0 ? 128 + number : KELP_EXIT_USAGE, "%s", error.text);
    }
    if (kelp_options_flag(train->given, "print-config")) {
        return print_config(train);
    }
    status = prepare(train, &error);
    if (status != KELP_OK) {
        return kelp_complain(kelp_verb_exit_status(status), "%s", error.text);
    }
    char operator_certs[KELP_CREDENTIALS_PATH_MAX + 1];
    (void)snprintf(operator_certs, sizeof(operator_certs), "%s/%s", train->certs,
                   kelp_role_names[KELP_ROLE_OPERATOR]);
    int exit_status = kelp_launcher_find_etcd(train->given, train->certs[0] ? operator_certs : NULL,
                                              kelp_job_file_job(train->file)->name,
                                              kelp_options_flag(train->given, "resume"));
    if (exit_status != KELP_EXIT_OK) {
        return exit_status;
    }
    bool done = false;
    status = open_run(train, &done, &error);
    if (status != KELP_OK) {
        return kelp_complain(kelp_verb_exit_status(status), "%s", error.text);
    }
    kelp_script_fini(&train->script); /* the run has what it needs of it */
    return done ? print_summary(train) : run(train);
}

static bool job_is_input(const struct kelp_options *given)
{
    const char *typed = kelp_verb_typed(given);

    return typed && strcmp(typed, KELP_JOB_SOURCE_INPUT) == 0;
}

static int train_as(const struct kelp_program *as, const struct kelp_options *given)
{
    int report_fd = kelp_detach_take();

    if (report_fd < 0 && kelp_options_flag(given, "detach")) {
        return kelp_detach_start(job_is_input(given));
    }
    struct train *train = calloc(1, sizeof(*train));
    if (!train) {
        return kelp_complain(KELP_EXIT_FAILED, "out of memory");
    }
    train->given = given;
    train->program = as;
    train->start_ms = kelp_clock_ms();
    train->run.lock_fd = -1;
    train->report_fd = report_fd;
    kelp_display_init(&train->display, STDERR_FILENO);
    int exit_status = train_job(train);
    kelp_run_dir_close(&train->run);
    kelp_job_file_destroy(train->file);
    kelp_script_fini(&train->script);
    free(train->spec);
    free(train->abandoned);
    free(train->carried.card);
    free(train->carried.plan);
    free(train);
    return exit_status;
}

static int train(const struct kelp_options *given)
{
    return train_as(&program, given);
}

static int run_script(const struct kelp_options *given)
{
    return train_as(&run_program, given);
}

const struct kelp_verb kelp_verb_run_script = {
    "run", "train the model of a Python script that describes its own job", &run_program,
    run_script, NULL};

const struct kelp_verb kelp_verb_train = {
    "train", "run a job: a whole cluster on this machine, from start to end", &program, train,
    NULL};
