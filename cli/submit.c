#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/checkpoint/run_plan.h"
#include "cli/cluster/run_client.h"
#include "cli/launch/launcher.h"
#include "cli/preflight/notices.h"
#include "cli/preflight/preflight.h"
#include "cli/preflight/run_plugin.h"
#include "cli/preflight/train_job.h"
#include "cli/run/plugin_consent.h"
#include "cli/run/worker_program.h"
#include "cli/verb/job_load.h"
#include "cli/verbs.h"
#include "common/base/clock.h"
#include "common/base/sha256.h"
#include "common/program/run_next.h"

static const struct kelp_option options[] = {
    KELP_VERB_REQUIRED("etcd", "URL", "the etcd that the job's processes use"),
    KELP_VERB_CERTS(NULL, "an operator's ca.pem, cert.pem and key.pem of the job"),
    KELP_VERB_RUN(NULL, "folder of the run, which coordinators and shards must reach (job key "
                        "run.dir; default: runs/NAME-TIME)"),
    KELP_VERB_NUMBER("workers", RANGE, 1, 1024, NULL, NULL,
                     "N or MIN:MAX workers (job key cluster.workers): training waits while fewer "
                     "than MIN have joined"),
    KELP_VERB_SHARDS(NULL, "parameter-server shards (job key cluster.shards)"),
    KELP_VERB_SET(NULL, "set a job key, such as train.lr=0.01"),
    KELP_VERB_FLAG("no-shared-folder", NULL,
                   "the hosts share no folder, and each makes its own; there are no checkpoints, "
                   "so a job that loses all copies of a partition begins again; needs "
                   "cluster.replicas: 2"),
    KELP_VERB_FLAG("resume", NULL,
                   "continue the run in that folder from its newest checkpoint, even in an etcd "
                   "that has lost the job; the job may differ where docs/JOB.md allows it"),
    KELP_VERB_ALLOW_PLUGIN,
};

static const struct kelp_program program = {
    .name = "kelp submit",
    .summary = "puts a job into etcd, for kelp node to run it on one or more hosts",
    .positional = "[JOB.yaml]",
    .positional_max = 1,
    .examples = "  kelp submit fare.yaml --etcd https://10.0.0.5:2379 --certs operator --run "
                "/shared/fare\n"
                "  kelp submit mlp.yaml --etcd http://127.0.0.1:2379 --shards 2 --workers 3\n"
                "  kelp submit --resume --run /shared/fare --etcd https://10.0.0.6:2379\n"
                "  kelp submit --resume --run runs/mlp --set train.epochs=20 --etcd "
                "http://127.0.0.1:2379\n",
    KELP_VERB_OPTIONS(options),
};

/* The state of one `kelp submit`; a field is empty until its stage has run. */
struct submit {
    const struct kelp_options *given;
    struct kelp_job_file *file;
    struct kelp_carried carried;
    struct kelp_run_dir run;
    struct kelp_run_home place;
    char *spec;
    char *abandoned; /* job of an earlier resume that did not take hold, or NULL */
    struct kelp_train_changes changes; /* resumed: since the earlier job */
    bool is_there;                     /* resumed: etcd has the job */
    char sha256[KELP_SHA256_HEX_BYTES];
    struct kelp_job_client *client;
    struct kelp_result result; /* of a run that is resumed: what it came to before */
    bool counts;               /* there is one */
    struct kelp_display display;
};

static void tell_rows(void *user, const char *path, uint64_t rows)
{
    kelp_display_prepare(user, path, rows, kelp_clock_ms());
}

static bool resumes(const struct submit *submit)
{
    return kelp_options_flag(submit->given, "resume");
}

static bool is_apart(const struct submit *submit)
{
    return kelp_options_flag(submit->given, "no-shared-folder");
}

static kelp_status check_words(const struct submit *submit, struct kelp_error *reterr)
{
    if (resumes(submit) && is_apart(submit)) {
        return kelp_fail(
            reterr, KELP_ERR_INVALID,
            "--resume with --no-shared-folder: there are no checkpoints to continue from");
    }
    if (resumes(submit)) {
        return kelp_options_given(submit->given, "run")
                   ? KELP_OK
                   : kelp_fail(reterr, KELP_ERR_INVALID,
                               "--resume needs the folder of the run: --run");
    }
    return kelp_verb_typed(submit->given)
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_INVALID,
                           "no job given: use kelp submit JOB.yaml, or --resume --run DIR");
}

/* The job: the file, or with --resume and without a file the run's own. */
static kelp_status load_job(struct submit *submit, struct kelp_error *reterr)
{
    const char *typed = kelp_verb_typed(submit->given);
    const struct kelp_plugin_consent consent = {
        .own_job = typed != NULL, .allowed = kelp_options_flag(submit->given, "allow-plugin")};

    kelp_status status = kelp_train_job_read(submit->given, &submit->file, reterr);
    if (status == KELP_OK && resumes(submit) &&
        kelp_job_file_job(submit->file)->run.mode != KELP_RUN_TRAIN) {
        status = kelp_fail(
            reterr, KELP_ERR_INVALID,
            "'%s' is a run of kelp predict or kelp evaluate, which is not resumed: give that "
            "command again",
            kelp_options_text(submit->given, "run"));
    }
    if (status == KELP_OK) {
        status = kelp_plugin_consent(submit->file, &consent, reterr);
    }
    return status == KELP_OK
               ? kelp_job_begin_portable(kelp_job_file_job(submit->file), typed, reterr)
               : status;
}

/* May the run go on as this job? */
static kelp_status check_resume(struct submit *submit, struct kelp_error *reterr)
{
    const char *run = kelp_options_text(submit->given, "run");

    kelp_status status = kelp_run_plugin_find(submit->file, run, false, reterr);
    if (status == KELP_OK) {
        status = kelp_train_job_follows(submit->file, run, false, &submit->changes, reterr);
    }
    return status == KELP_OK ? kelp_train_job_same_data(kelp_job_file_job(submit->file), run,
                                                        submit->carried.card, reterr)
                             : status;
}

/* The plan of this machine is to be the job's, as etcd has none. */
static kelp_status check_compute(const struct submit *submit, struct kelp_error *reterr)
{
    const char *run = kelp_options_text(submit->given, "run");
    struct kelp_plan before;

    if (!resumes(submit) || submit->is_there || !submit->carried.plan ||
        kelp_job_file_job(submit->file)->cluster.mixed ||
        kelp_run_plan(run, &before, NULL) != KELP_OK) {
        return KELP_OK;
    }
    kelp_status status = kelp_train_job_same_compute(&before, submit->carried.plan, run, reterr);
    kelp_plan_fini(&before);
    return status;
}

/* Check what a job without checkpoints needs. */
static kelp_status check_apart(const struct submit *submit, struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(submit->file);

    if (is_apart(submit) && job->run.mode != KELP_RUN_TRAIN) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--no-shared-folder is for jobs that train (run.mode: train)");
    }
    return is_apart(submit) && job->cluster.replicas < 2
               ? kelp_fail(reterr, KELP_ERR_INVALID,
                           "--no-shared-folder needs cluster.replicas: 2 (with cluster.shards: 2 "
                           "or more): there are no checkpoints, so a lost host would take its part "
                           "of the model with it")
               : KELP_OK;
}

/* The plan as this machine derives it from the job and its data; every worker must derive the
 * same. */
static kelp_status read_job(struct submit *submit, struct kelp_error *reterr)
{
    struct kelp_worker_program worker_program;
    const struct kelp_dataset_watch watch = {.rows = tell_rows, .user = &submit->display};

    kelp_status status = check_words(submit, reterr);
    if (status == KELP_OK) {
        status = load_job(submit, reterr);
    }
    if (status == KELP_OK) {
        status = check_apart(submit, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_worker_program_find(kelp_job_file_job(submit->file), NULL, &worker_program,
                                          reterr);
    }
    if (status == KELP_OK && kelp_worker_program_is(&worker_program)) {
        status = kelp_preflight_program(kelp_job_file_job(submit->file), &submit->carried, reterr);
    } else if (status == KELP_OK) {
        status = kelp_preflight(submit->file, &watch, 1, &submit->carried, reterr);
        kelp_display_clear(&submit->display);
    }
    return status == KELP_OK && resumes(submit) ? check_resume(submit, reterr) : status;
}

static kelp_status choose_run(const struct kelp_job *job, char path[KELP_RUN_PATH_MAX + 1],
                              struct kelp_error *reterr)
{
    return job->run.dir[0] ? kelp_run_dir_resolve(job->run.dir, path, reterr)
                           : kelp_run_dir_default(job->name, time(NULL), path, reterr);
}

/* The token that already identifies the run's folder; a run of one machine has none. */
static kelp_status take_token(struct submit *submit, struct kelp_error *reterr)
{
    struct kelp_run_home *place = &submit->place;
    char *token = NULL;

    kelp_status status = kelp_run_dir_read(submit->run.path, KELP_RUN_TOKEN_FILE, &token, reterr);
    if (status == KELP_ERR_NOT_FOUND) {
        return kelp_run_home_mark(place, reterr);
    }
    if (status == KELP_OK && (token[0] == '\0' || strlen(token) > KELP_RUN_TOKEN_MAX)) {
        status = kelp_fail(reterr, KELP_ERR_FORMAT, "%s/" KELP_RUN_TOKEN_FILE " holds no token",
                           submit->run.path);
    }
    if (status == KELP_OK) {
        (void)snprintf(place->token, sizeof(place->token), "%s", token);
    }
    free(token);
    return status;
}

/* Its absolute path, and its token. */
static kelp_status mark_place(struct submit *submit, struct kelp_error *reterr)
{
    char *real = realpath(submit->run.path, NULL);

    if (!real || strlen(real) > KELP_RUN_PATH_MAX) {
        kelp_status status = kelp_fail(reterr, KELP_ERR_IO, "cannot resolve '%s': %s",
                                       submit->run.path, strerror(real ? ENAMETOOLONG : errno));
        free(real);
        return status;
    }
    (void)snprintf(submit->place.folder, sizeof(submit->place.folder), "%s", real);
    free(real);
    return resumes(submit) ? take_token(submit, reterr)
                           : kelp_run_home_mark(&submit->place, reterr);
}

/* The job, and the facts that its model will carry. For a resumed run both wait until it
 * continues. */
static kelp_status write_job(struct submit *submit, struct kelp_error *reterr)
{
    const char *card =
        resumes(submit) ? KELP_RUN_NEXT "/" KELP_MODEL_CARD_FILE : KELP_MODEL_CARD_FILE;
    char *text = NULL;

    kelp_status status = kelp_job_file_print_in(submit->file, submit->place.folder, &text, reterr);
    if (status == KELP_OK) {
        status = resumes(submit) ? kelp_launcher_lay_ready(&submit->run, submit->spec, text, false,
                                                           &submit->abandoned, reterr)
                                 : kelp_run_dir_write(&submit->run, "job.yaml", text, reterr);
    }
    free(text);
    return status == KELP_OK && submit->carried.card
               ? kelp_run_dir_write(&submit->run, card, submit->carried.card, reterr)
               : status;
}

static kelp_status write_files(struct submit *submit, struct kelp_error *reterr)
{
    kelp_status status = write_job(submit, reterr);

    return status == KELP_OK
               ? kelp_run_dir_write(&submit->run, KELP_RUN_TOKEN_FILE, submit->place.token, reterr)
               : status;
}

/* A finished run needs no processes, unless there is more to do now. */
static kelp_status look_back(struct submit *submit, struct kelp_error *reterr)
{
    submit->counts = kelp_run_result_read(submit->run.path, &submit->result, NULL) == KELP_OK;
    return submit->counts && strcmp(submit->result.status, "done") == 0 && !submit->changes.longer
               ? kelp_fail(reterr, KELP_ERR_EXISTS,
                           "run '%s' is done; a higher train.epochs lets it go on",
                           submit->run.path)
               : KELP_OK;
}

static kelp_status take_run(struct submit *submit, struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(submit->file);
    char path[KELP_RUN_PATH_MAX + 1];
    kelp_status status;

    if (resumes(submit)) {
        status = kelp_run_dir_resolve(kelp_options_text(submit->given, "run"), path, reterr);
        if (status == KELP_OK) {
            status = kelp_run_dir_resume(path, &submit->run, reterr);
        }
        return status == KELP_OK ? look_back(submit, reterr) : status;
    }
    status = choose_run(job, path, reterr);
    return status == KELP_OK
               ? kelp_run_dir_create(path, job->run.dir[0] == '\0', &submit->run, reterr)
               : status;
}

static kelp_status print_spec(struct submit *submit, struct kelp_error *reterr)
{
    kelp_status status = kelp_job_file_print(submit->file, false, &submit->spec, reterr);

    return status == KELP_OK
               ? kelp_sha256(submit->spec, strlen(submit->spec), submit->sha256, reterr)
               : status;
}

/* Hosts make their folders themselves. */
static kelp_status make_no_run(struct submit *submit, struct kelp_error *reterr)
{
    struct kelp_run_home *place = &submit->place;
    const char *card = submit->carried.card;

    if (card && strlen(card) > KELP_RUN_CARD_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT,
                         "the model's facts about its data have more than %d bytes, too many for "
                         "etcd: submit the job with a shared folder",
                         KELP_RUN_CARD_MAX);
    }
    place->apart = true;
    kelp_status status = kelp_run_dir_default(kelp_job_file_job(submit->file)->name, time(NULL),
                                              place->name, reterr);
    if (status == KELP_OK) {
        status = kelp_run_home_mark(place, reterr);
    }
    return status == KELP_OK ? print_spec(submit, reterr) : status;
}

/* The run's folder, with all that processes expect to find in it. */
static kelp_status make_run(struct submit *submit, struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(submit->file);

    kelp_status status = take_run(submit, reterr);
    if (status == KELP_OK) {
        status = kelp_run_dir_protect(&submit->run, job->run.closed, reterr);
    }
    if (status == KELP_OK) {
        status = mark_place(submit, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_run_plugin_keep(submit->file, submit->run.path, reterr);
    }
    if (status == KELP_OK) {
        status = print_spec(submit, reterr);
    }
    return status == KELP_OK ? write_files(submit, reterr) : status;
}

static kelp_status put(const struct submit *submit, struct kelp_error *reterr)
{
    const struct kelp_launch launch = {.job = kelp_job_file_job(submit->file),
                                       .spec = submit->spec,
                                       .plan = submit->carried.plan,
                                       .abandoned = submit->abandoned,
                                       .card = is_apart(submit) ? submit->carried.card : NULL};

    kelp_status status =
        submit->is_there ? kelp_launcher_check_checkpoints(submit->client, submit->run.path, reterr)
                         : KELP_OK;
    if (status != KELP_OK) {
        return status;
    }
    return submit->is_there ? kelp_launcher_renew(submit->client, &launch, &submit->place, reterr)
                            : kelp_launcher_submit(submit->client, &launch, &submit->place,
                                                   submit->counts ? &submit->result : NULL, reterr);
}

/* The files that wait in the run's folder must go with the job that etcd has. A lost answer may
 * have been a yes. */
static void take_back(const struct submit *submit, kelp_status status)
{
    struct kelp_error error;

    if (resumes(submit) && status != KELP_OK && status != KELP_ERR_TIMEOUT &&
        kelp_run_next_drop(submit->run.path, &error) != KELP_OK) {
        (void)kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
}

/* The job has stopped, and its run has checkpoints to continue from. */
static kelp_status check_rest(struct submit *submit, struct kelp_error *reterr)
{
    static struct kelp_run_home home; /* large */

    kelp_status status = kelp_launcher_unused(submit->client, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_run_home_get(submit->client, KELP_LAUNCH_ETCD_MS, &home, reterr);
    if (status == KELP_ERR_NOT_FOUND) { /* of kelp train */
        return KELP_OK;
    }
    return status == KELP_OK && home.apart
               ? kelp_fail(reterr, KELP_ERR_INVALID,
                           "--resume: hosts of job '%s' share no folder, so there are no "
                           "checkpoints to continue from; kelp node alone goes on with it",
                           kelp_job_client_job(submit->client))
               : status;
}

/* Before making a folder, check that etcd answers, and that the name is free or the job has
 * stopped. */
static kelp_status look_at_etcd(struct submit *submit, struct kelp_error *reterr)
{
    kelp_status status = kelp_launcher_may_submit(submit->client, reterr);

    if (status != KELP_ERR_EXISTS || !resumes(submit)) {
        return status;
    }
    submit->is_there = true;
    return check_rest(submit, reterr);
}

static void tell(const struct submit *submit)
{
    const char *name = kelp_job_file_job(submit->file)->name;
    const char *dir = kelp_job_file_job(submit->file)->run.dir;
    const char *etcd = kelp_options_text(submit->given, "etcd");

    char folder[KELP_RUN_PATH_MAX + 32];

    /* Hosts without a shared folder each make one, from the job's run.dir or their names. */
    (void)snprintf(folder, sizeof(folder), "%s%s",
                   !is_apart(submit) ? submit->place.folder
                   : dir[0]          ? dir
                                     : submit->place.name,
                   !is_apart(submit) ? ""
                   : dir[0]          ? " of each host"
                                     : "-HOST of each host");
    (void)printf("job        %s\nrun        %s\nsha256     %s\n"
                 "start      kelp node --etcd %s --job %s --coordinator --shards 1 --workers 1\n"
                 "wait       kelp wait %s --etcd %s\n",
                 name, folder, submit->sha256, etcd, name, name, etcd);
}

static int submit_job(struct submit *submit)
{
    struct kelp_error error;

    kelp_status status = read_job(submit, &error);
    if (status != KELP_OK) {
        return kelp_complain(kelp_verb_exit_status(status), "%s", error.text);
    }
    kelp_notices_say(&program, kelp_job_file_job(submit->file), &submit->carried, &submit->display);
    if (submit->changes.text[0]) {
        kelp_display_say(&submit->display, "the job has changed: %s", submit->changes.text);
    }
    status = kelp_job_client_open(
        kelp_options_text(submit->given, "etcd"), kelp_job_file_job(submit->file)->name,
        kelp_options_text(submit->given, "certs"), &submit->client, &error);
    if (status == KELP_OK) {
        status = look_at_etcd(submit, &error);
        if (status == KELP_ERR_FORMAT || status == KELP_ERR_DENIED) { /* no etcd, or not for us */
            return kelp_complain(KELP_EXIT_UNREACHABLE, "%s", error.text);
        }
    }
    if (status == KELP_OK) {
        status = check_compute(submit, &error);
    }
    if (status == KELP_OK) {
        status = (is_apart(submit) ? make_no_run : make_run)(submit, &error);
    }
    if (status == KELP_OK) {
        status = put(submit, &error);
        take_back(submit, status);
    }
    if (status != KELP_OK) {
        return kelp_complain(kelp_verb_exit_status(status), "%s", error.text);
    }
    if (is_apart(submit)) {
        kelp_display_say(&submit->display,
                         "no checkpoints, since the hosts share no folder: a job that loses all "
                         "copies of a partition begins again");
    }
    tell(submit);
    return KELP_EXIT_OK;
}

static int submit(const struct kelp_options *given)
{
    static struct submit submit; /* large */

    submit = (struct submit){.given = given, .run.lock_fd = -1};
    kelp_display_init(&submit.display, STDERR_FILENO);
    int exit_status = submit_job(&submit);
    kelp_job_client_close(submit.client);
    kelp_run_dir_close(&submit.run);
    kelp_job_file_destroy(submit.file);
    free(submit.spec);
    free(submit.abandoned);
    free(submit.carried.card);
    free(submit.carried.plan);
    return exit_status;
}

const struct kelp_verb kelp_verb_submit = {"submit", "put a job into etcd, for kelp node to run it",
                                           &program, submit, NULL};
