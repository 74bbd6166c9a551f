#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/checkpoint/checkpoint_read.h"
#include "cli/checkpoint/run_plan.h"
#include "cli/cluster/model_file.h"
#include "cli/cluster/status_view.h"
#include "cli/launch/launcher_internal.h"
#include "common/base/clock.h"
#include "common/program/options/options.h"
#include "common/program/options/version.h"
#include "common/program/run_next.h"

#define LEADER_POLL_MS 100

/* The leader may be lost between the job's end and this: another one is waited for. */
static kelp_status fetch_model(struct kelp_job_client *client, uint64_t spec_digest,
                               struct kelp_model_copy *ret_copy, struct kelp_error *reterr)
{
    const uint64_t end_ms = kelp_clock_ms() + KELP_LAUNCH_PULL_MS;
    kelp_status status;

    do {
        const uint64_t now = kelp_clock_ms();
        status = kelp_model_fetch(client, spec_digest, now < end_ms ? (uint32_t)(end_ms - now) : 1,
                                  ret_copy, reterr);
    } while (status == KELP_ERR_NOT_FOUND && kelp_clock_ms() + LEADER_POLL_MS < end_ms &&
             usleep(LEADER_POLL_MS * 1000) == 0);
    return status;
}

/* The model as the shards have it must be the one that the workers reported the digest of. */
static kelp_status save_model(struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    const struct kelp_launch *launch = launcher->launch;
    struct kelp_job_client *client = NULL;
    struct kelp_model_copy copy;
    char path[KELP_RUN_PATH_MAX + 64];
    char digest[KELP_DIGEST_HEX_BYTES];
    char *card = NULL;

    kelp_status status = kelp__launch_client(launcher, &client, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = fetch_model(client, launch->spec_digest, &copy, reterr);
    kelp_job_client_close(client);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "cannot fetch the model");
        return status;
    }
    kelp_plan_digest(&copy.plan, copy.flat, digest);
    if (strcmp(digest, launcher->status->digest) != 0) {
        status = kelp_fail(reterr, KELP_ERR_CORRUPT,
                           "the shards' weights have digest %s, the workers reported %s", digest,
                           launcher->status->digest);
        goto free_copy;
    }
    status = kelp_run_dir_path(launch->run->path, "model.safetensors", path, sizeof(path), reterr);
    if (status == KELP_OK) {
        status = kelp_model_card_read(launch->run->path, &card, reterr);
    }
    if (status != KELP_OK) {
        goto free_copy;
    }
    const struct kelp_model_about about = {launch->job->name, copy.step, card};
    status = kelp_model_write(path, &copy.plan, copy.flat, &about, reterr);
free_copy:
    free(card);
    kelp_model_copy_fini(&copy);
    return status;
}

/* What only its workers know of a job of a program. */
static kelp_status save_plan(struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    struct kelp_job_client *client = NULL;
    char *text = NULL;

    kelp_status status = kelp__launch_client(launcher, &client, reterr);
    if (status == KELP_OK) {
        status = kelp_job_client_get(client, "plan", KELP_LAUNCH_ETCD_MS, &text, reterr);
        kelp_job_client_close(client);
    }
    if (status == KELP_OK) {
        status = kelp_run_dir_write(launcher->launch->run, KELP_RUN_PLAN, text, reterr);
    }
    free(text);
    return status;
}

/* When and where each command ran on this run: beside the exact records, and no part of them. */
static void write_history(const struct kelp_launcher *launcher)
{
    char path[KELP_RUN_PATH_MAX + 64];
    struct kelp_error error;

    kelp_status status =
        kelp_run_dir_path(launcher->launch->run->path, "history.jsonl", path, sizeof(path), &error);
    FILE *out = status == KELP_OK ? fopen(path, "ae") : NULL;
    if (out) {
        kelp_result_print_history(launcher->result, out);
    }
    if (!out || fclose(out) != 0) {
        kelp_display_say(launcher->display, "%s: cannot write: %s", path, strerror(errno));
    }
}

static void print_result(const void *result, FILE *out)
{
    kelp_result_print(result, out);
}

void kelp__launch_write_result(struct kelp_launcher *launcher)
{
    struct kelp_result *result = launcher->result;
    struct kelp_error error;

    result->wall_s = (double)(kelp_clock_ms() - launcher->launch->start_ms) / 1000;
    kelp_result_stamp(result, time(NULL), result->wall_s);
    (void)snprintf(result->version, sizeof(result->version), "%s (%s)", kelp_version(),
                   kelp_version_commit());
    if (gethostname(result->host, sizeof(result->host) - 1) != 0) {
        result->host[0] = '\0';
    }
    if (kelp_run_dir_print(launcher->launch->run, "result.json", print_result, result, &error) !=
        KELP_OK) {
        kelp_display_say(launcher->display, "%s", error.text);
    }
    write_history(launcher);
}

static int exit_status_of(const struct kelp_launcher *launcher, kelp_status status)
{
    if (launcher->gave_up) {
        return KELP_EXIT_JOB_FAILED;
    }
    switch (status) {
    case KELP_ERR_INVALID:
    case KELP_ERR_MISMATCH:
    case KELP_ERR_EXISTS:
    case KELP_ERR_BUSY:
        return KELP_EXIT_USAGE;
    case KELP_ERR_UNREACHABLE:
    case KELP_ERR_TIMEOUT:
    case KELP_ERR_NOT_FOUND:
        return KELP_EXIT_UNREACHABLE;
    default:
        return KELP_EXIT_FAILED;
    }
}

static int set_outcome(struct kelp_result *result, int exit_status, const char *status,
                       const char *reason)
{
    (void)snprintf(result->status, sizeof(result->status), "%s", status);
    (void)snprintf(result->reason, sizeof(result->reason), "%s", reason);
    return exit_status;
}

/* As a shell says of a command that a signal ended: nobody takes it for one that is done. */
static int signal_status(const struct kelp_launcher *launcher)
{
    return 128 + kelp_guard_signal(launcher->guard);
}

static int stopped(struct kelp_launcher *launcher)
{
    const Kelp__V1__CheckpointStatus *checkpoint =
        launcher->status ? launcher->status->checkpoint : NULL;
    char reason[128] = "";

    if (launcher->launch->job->run.mode != KELP_RUN_TRAIN) {
        return set_outcome(launcher->result, signal_status(launcher), "stopped", reason);
    }
    if (checkpoint && checkpoint->version > 0) {
        (void)snprintf(reason, sizeof(reason), "the newest checkpoint is of step %" PRIu64,
                       checkpoint->step);
    } else {
        (void)snprintf(reason, sizeof(reason),
                       "there is no checkpoint yet, so it begins again at step 0");
    }
    return set_outcome(launcher->result, signal_status(launcher), "stopped", reason);
}

/* Which of the checkpoints that were kept has the best weights. */
static void find_best_checkpoint(const struct kelp_launcher *launcher, struct kelp_result *result)
{
    struct kelp_checkpoints list;

    result->best_checkpoint[0] = '\0';
    if (!result->best_known ||
        kelp_checkpoints_list(launcher->launch->run->path, &list, NULL) != KELP_OK) {
        return; /* then it is not told */
    }
    const struct kelp_checkpoint *best = kelp_checkpoints_at(&list, result->best_step);
    if (best) {
        (void)snprintf(result->best_checkpoint, sizeof(result->best_checkpoint), "%s", best->name);
    }
    kelp_checkpoints_fini(&list);
}

static void fill_result(struct kelp_launcher *launcher)
{
    struct kelp_result *result = launcher->result;

    if (launcher->status) {
        kelp_status_result(launcher->status, result);
    }
    find_best_checkpoint(launcher, result);
    kelp_result_unit(launcher->launch->job, result);
    result->restarts = launcher->children.failures.total;
    result->steps_per_s = launcher->launch->entries == 0 ? kelp_rate_whole(&launcher->rate) : 0;
    kelp_ledger_result(&launcher->ledger, result);
}

/* Somebody may have removed the run's folder, or put another one in its place: what the run had
 * written there is lost, and what is there now has no job. */
static kelp_status check_folder(const struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    const struct kelp_run_dir *run = launcher->launch->run;

    return kelp_run_dir_is_held(run) && kelp_run_dir_is_held(&launcher->node.held)
               ? KELP_OK
               : kelp_fail(
                     reterr, KELP_ERR_IO,
                     "run folder '%s' was removed or replaced while the run went on; its job file, "
                     "metrics and records are lost, and it now holds only the end of the run",
                     run->path);
}

/* What failed, when, and how to continue: etcd and result.json hold this text. */
static void describe_giving_up(const struct kelp_launcher *launcher, struct kelp_error *error)
{
    char text[sizeof(error->text)];
    char when[32] = "";
    time_t now = time(NULL);
    struct tm utc;

    if (gmtime_r(&now, &utc)) {
        (void)strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &utc);
    }
    memcpy(text, error->text, sizeof(text));
    (void)kelp_fail(error, error->status,
                    "%.256s (%s, step %" PRIu64 "); continue with kelp train --resume --run %.160s",
                    text, when, launcher->result->step, launcher->launch->run->path);
}

int kelp__launch_conclude(struct kelp_launcher *launcher, kelp_status status,
                          struct kelp_error *error)
{
    struct kelp_result *result = launcher->result;

    fill_result(launcher);
    if (kelp_guard_stage(launcher->guard) == KELP_GUARD_STOP) {
        return stopped(launcher);
    }
    if (status == KELP_OK && launcher->pausing && kelp__launch_state_is(launcher, "paused")) {
        if (launcher->status->checkpoint) { /* training may have been further: that is lost */
            result->step = launcher->status->checkpoint->step;
        }
        return set_outcome(result, signal_status(launcher), "paused", "");
    }
    if (status == KELP_OK && kelp__launch_state_is(launcher, "failed")) {
        return set_outcome(result, KELP_EXIT_JOB_FAILED, "failed", launcher->status->reason);
    }
    if (status == KELP_OK && launcher->pausing && !kelp__launch_state_is(launcher, "done")) {
        return stopped(launcher); /* nothing there yet that a checkpoint could hold */
    }
    if (status == KELP_OK) {
        assert(launcher->status); /* run() ends in order when the state says done, or on a stop */
        /* There was nothing to train. */
        status = kelp__launch_unheld(launcher)
                     ? kelp_run_next_take(launcher->launch->run->path, NULL, NULL, error)
                     : KELP_OK;
        if (status == KELP_OK && launcher->launch->job->run.mode == KELP_RUN_TRAIN) {
            status = save_model(launcher, error);
        }
        if (status == KELP_OK && launcher->launch->job->model.kind == KELP_MODEL_PROGRAM) {
            status = save_plan(launcher, error);
        }
        if (status == KELP_OK) {
            status = check_folder(launcher, error);
        }
    }
    if (status != KELP_OK && kelp_guard_stage(launcher->guard) == KELP_GUARD_STOP) {
        return stopped(launcher);
    }
    if (launcher->gave_up) {
        describe_giving_up(launcher, error);
    }
    if (status != KELP_OK) {
        return set_outcome(result, exit_status_of(launcher, status), "failed", error->text);
    }
    return set_outcome(result, KELP_EXIT_OK, "done", "");
}
