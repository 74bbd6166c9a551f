#include "cli/replay/recompute.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cluster/run_client.h"
#include "cli/replay/replay.h"
#include "cli/run/plugin_consent.h"
#include "cli/run/worker_program.h"

struct work {
    const struct kelp_recompute *what;
    struct kelp_job_file *file;
    bool has_plan;
    struct kelp_plan plan; /* of the checkpoint at the end, or at the beginning */
    struct kelp_digest_log log;
    struct kelp_replay *replay;
    uint64_t end_version;
    uint64_t first_step;
    uint64_t failed_steps; /* of a run that failed: steps up to the one that it failed at; else 0 */
    bool failing;          /* what is computed now is not on record */
    struct kelp_recomputed *result;
};

/* The job as it was when the end was made; the run's, when there is no such checkpoint. */
static kelp_status read_job(struct work *work, struct kelp_error *reterr)
{
    const struct kelp_checkpoint *checkpoint = work->what->to ? work->what->to : work->what->from;
    kelp_status status;

    if (!checkpoint) {
        return kelp_run_job_read(work->what->run_path, &work->file, reterr);
    }
    status = kelp_checkpoint_job(checkpoint, &work->file, &work->plan, reterr);
    work->has_plan = status == KELP_OK;
    if (status == KELP_OK && !work->what->to) {
        kelp_job_file_destroy(work->file);
        work->file = NULL;
        status = kelp_run_job_read(work->what->run_path, &work->file, reterr);
    }
    return status;
}

static kelp_status check_plan(struct work *work, struct kelp_error *reterr)
{
    const struct kelp_plan *ours = kelp_replay_plan(work->replay);
    char text[sizeof(work->result->compute)];

    if (!work->has_plan) {
        return KELP_OK;
    }
    if (kelp_plan_difference(ours, &work->plan, true, text, sizeof(text))) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH,
                         "cannot recompute: the data or the model has changed: %s", text);
    }
    if (kelp_plan_difference(ours, &work->plan, false, text, sizeof(text))) {
        (void)snprintf(work->result->compute, sizeof(work->result->compute), "%s", text);
    }
    return KELP_OK;
}

/* Without a result, or with one of another attempt, the run counts as not failed. */
static uint64_t failed_steps(const struct kelp_recompute *what)
{
    struct kelp_result *result = calloc(1, sizeof(*result));
    uint64_t steps = 0;

    if (result && !what->to && kelp_run_result_read(what->run_path, result, NULL) == KELP_OK &&
        strcmp(result->status, "failed") == 0) {
        steps = result->step + 1;
    }
    free(result);
    return steps;
}

static kelp_status begin(struct work *work, struct kelp_error *reterr)
{
    const struct kelp_recompute *what = work->what;

    kelp_status status = read_job(work, reterr);
    if (status == KELP_OK) {
        status = kelp_worker_program_refuse(kelp_job_file_job(work->file), "kelp verify --replay",
                                            reterr);
    }
    if (status == KELP_OK) {
        status = kelp_digest_log_read(what->run_path, &work->log, reterr);
    }
    if (status == KELP_ERR_NOT_FOUND && what->to) {
        status = KELP_OK; /* the state at the end is what counts */
    }
    if (status == KELP_OK) {
        status = kelp_plugin_consent(
            work->file, &(struct kelp_plugin_consent){.allowed = what->allow_plugin}, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_replay_create(kelp_job_file_job(work->file), &work->replay, reterr);
    }
    if (status == KELP_OK) {
        status = check_plan(work, reterr);
    }
    if (status == KELP_OK && what->from) {
        status = kelp_checkpoint_load(what->from, kelp_replay_state(work->replay), reterr);
    }
    if (status == KELP_OK) {
        const struct kelp_digest_log *log = &work->log;
        work->failed_steps = failed_steps(what);
        work->first_step = kelp_replay_state(work->replay)->control.step;
        /* The record of a version's digest comes with the entry that begins at it. */
        work->end_version = what->to         ? what->to->manifest.version
                            : log->count > 0 ? log->lines[log->count - 1].version + 1
                                             : 0;
    }
    return status;
}

/* One record against the run's; false when they differ. */
static bool record_equal(struct work *work, const struct kelp_record *record)
{
    const struct kelp_digest_log_line *line =
        kelp_digest_log_find(&work->log, record->word.step, record->word.version);

    if (record->digest[0] == '\0' || !line || line->version != record->word.version) {
        return true;
    }
    work->result->digests++;
    if (strcmp(line->digest, record->digest) == 0) {
        return true;
    }
    work->result->equal = false;
    (void)snprintf(work->result->text, sizeof(work->result->text),
                   "version %" PRIu64 ", step %" PRIu64
                   ": the digest on record is %s; computed again it is %s",
                   line->version, line->step, line->digest, record->digest);
    return false;
}

/* One entry. A gradient that is not finite, where the run has gone further, is a difference. */
static kelp_status compute_entry(struct work *work, bool *ret_go_on, struct kelp_error *reterr)
{
    struct kelp_record record;

    kelp_status status = kelp_replay_entry(work->replay, &record, reterr);
    if (status == KELP_OK) {
        *ret_go_on = record_equal(work, &record);
    } else if (status == KELP_ERR_INVALID && reterr) {
        work->result->equal = work->failing;
        (void)snprintf(work->result->text, sizeof(work->result->text), "%s", reterr->text);
        *ret_go_on = false;
        status = KELP_OK;
    }
    return status;
}

/* Up to the end, and beyond it as far as a run came that failed: the step at which it failed is not
 * on record. */
static kelp_status compute(struct work *work, struct kelp_error *reterr)
{
    const struct kelp_control_state *control = &kelp_replay_state(work->replay)->control;
    kelp_status status = KELP_OK;
    bool go_on = true;

    while (status == KELP_OK && go_on && control->kind != KELP_STEP_DONE) {
        work->failing = control->version >= work->end_version;
        if (work->failing && control->step >= work->failed_steps) {
            break;
        }
        if (control->kind == KELP_STEP_TRAIN &&
            control->step - work->first_step >= work->what->steps_max) {
            return KELP_OK;
        }
        status = compute_entry(work, &go_on, reterr);
    }
    work->result->whole = status == KELP_OK && work->result->equal;
    return status;
}

/* Say in which tensors the state at the end differs. */
static kelp_status tell_tensors(struct work *work, struct kelp_error *reterr)
{
    const struct kelp_model_state *ours = kelp_replay_state(work->replay);
    struct kelp_recomputed *result = work->result;
    struct kelp_model_state theirs;
    struct kelp_model_state_tensor at = {.tensor = 0};

    kelp_status status = kelp_model_state_init(&theirs, ours->job, ours->plan, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_checkpoint_load(work->what->to, &theirs, reterr);
    if (status == KELP_OK && kelp_model_state_difference(ours, &theirs, &at)) {
        char name[KELP_TENSOR_NAME_MAX + 32];
        size_t used = strlen(result->text);
        kelp_model_state_tensor_name(ours, &at, name, sizeof(name));
        (void)snprintf(result->text + used, sizeof(result->text) - used,
                       "; the first tensor that differs is %s", name);
    }
    kelp_model_state_fini(&theirs);
    return status;
}

static kelp_status compare_state(struct work *work, struct kelp_error *reterr)
{
    const struct kelp_checkpoint *to = work->what->to;
    struct kelp_recomputed *result = work->result;
    char stored[KELP_DIGEST_HEX_BYTES];
    char ours[KELP_DIGEST_HEX_BYTES];

    kelp_manifest_state_digest(&to->manifest, stored);
    kelp_status status = kelp_model_state_digest(kelp_replay_state(work->replay), ours, reterr);
    if (status != KELP_OK || strcmp(stored, ours) == 0) {
        return status;
    }
    result->equal = false;
    (void)snprintf(result->text, sizeof(result->text),
                   "the state of checkpoint %s has digest %s; computed again it is %s", to->name,
                   stored, ours);
    return tell_tensors(work, reterr);
}

kelp_status kelp_recompute(const struct kelp_recompute *what, struct kelp_recomputed *ret_result,
                           struct kelp_error *reterr)
{
    struct work work = {.what = what, .result = ret_result};

    memset(ret_result, 0, sizeof(*ret_result));
    ret_result->equal = true;
    kelp_status status = begin(&work, reterr);
    if (status == KELP_OK) {
        status = compute(&work, reterr);
    }
    if (status == KELP_OK && what->to && ret_result->whole) {
        status = compare_state(&work, reterr);
    }
    if (status == KELP_OK) {
        ret_result->step = kelp_replay_state(work.replay)->control.step;
        ret_result->steps = ret_result->step - work.first_step;
    }
    kelp_replay_destroy(work.replay);
    kelp_digest_log_fini(&work.log);
    if (work.has_plan) {
        kelp_plan_fini(&work.plan);
    }
    kelp_job_file_destroy(work.file);
    return status;
}
