#include "cli/replay/compare.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/cluster/run_client.h"
#include "cli/run/plugin_consent.h"
#include "cli/run/worker_program.h"

/* ---- what is on record --------------------------------------------------------------------- */

/* A run's checkpoints say on what it was computed; without any that can be read nothing does. */
static void read_compute_kind(struct kelp_compare_run *run)
{
    const struct kelp_checkpoint *newest = kelp_checkpoints_before(&run->checkpoints, UINT64_MAX);
    struct kelp_job_file *file = NULL;
    struct kelp_plan plan;

    if (newest && kelp_checkpoint_job(newest, &file, &plan, NULL) == KELP_OK) {
        (void)snprintf(run->compute_kind, sizeof(run->compute_kind), "%s", plan.compute_kind);
        kelp_plan_fini(&plan);
        kelp_job_file_destroy(file);
    }
}

static kelp_status open_run(struct kelp_compare_run *run, struct kelp_error *reterr)
{
    kelp_status status = kelp_run_job_read(run->path, &run->file, reterr);

    if (status == KELP_OK) {
        status = kelp_digest_log_read(run->path, &run->log, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_checkpoints_list(run->path, &run->checkpoints, reterr);
    }
    if (status == KELP_OK) {
        read_compute_kind(run);
    }
    return status;
}

kelp_status kelp_compare_records(const char *path_a, const char *path_b,
                                 struct kelp_compare *ret_compare, struct kelp_error *reterr)
{
    struct kelp_compare *compare = ret_compare;
    struct kelp_compare_run *runs = compare->runs;

    memset(compare, 0, sizeof(*compare));
    runs[0].path = path_a;
    runs[1].path = path_b;
    kelp_status status = open_run(&runs[0], reterr);
    if (status == KELP_OK) {
        status = open_run(&runs[1], reterr);
    }
    if (status == KELP_OK) {
        status = kelp_job_compare(runs[0].file, runs[1].file, &compare->keys, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    kelp_digest_log_compare(&runs[0].log, &runs[1].log, &compare->records);
    if (compare->records.common == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s and %s have no recorded step in common; a smaller "
                         "checkpoint.digest_steps in the job records digests more often",
                         path_a, path_b);
    }
    compare->outcome = compare->records.a ? KELP_COMPARE_RECORDS : KELP_COMPARE_SAME;
    return KELP_OK;
}

void kelp_compare_fini(struct kelp_compare *compare)
{
    for (int i = 0; i < 2; i++) {
        struct kelp_compare_run *run = &compare->runs[i];
        kelp_replay_destroy(run->replay);
        kelp_checkpoints_fini(&run->checkpoints);
        kelp_digest_log_fini(&run->log);
        kelp_job_file_destroy(run->file);
    }
    kelp_job_differences_fini(&compare->keys);
    memset(compare, 0, sizeof(*compare));
}

/* ---- where a replay begins ----------------------------------------------------------------- */

/* Load a checkpoint into the run's replay, if the data is still what it was made from. */
static kelp_status load(struct kelp_compare_run *run, const struct kelp_checkpoint *checkpoint,
                        struct kelp_error *reterr)
{
    struct kelp_job_file *file = NULL;
    struct kelp_plan plan;
    char text[256];

    kelp_status status = kelp_checkpoint_job(checkpoint, &file, &plan, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (kelp_plan_difference(kelp_replay_plan(run->replay), &plan, true, text, sizeof(text))) {
        status = kelp_fail(reterr, KELP_ERR_MISMATCH,
                           "the data or the model has changed since checkpoint %s was made: %s",
                           checkpoint->name, text);
    }
    if (status == KELP_OK) {
        status = kelp_checkpoint_load(checkpoint, kelp_replay_state(run->replay), reterr);
    }
    kelp_plan_fini(&plan);
    kelp_job_file_destroy(file);
    return status;
}

static kelp_status begin_at_0(struct kelp_compare_run *run, struct kelp_error *reterr)
{
    run->from[0] = '\0';
    run->from_step = 0;
    return kelp_model_state_begin(kelp_replay_state(run->replay), reterr);
}

/* The newest checkpoint at or below the step that can be used, else version 0. */
static kelp_status begin(struct kelp_compare_run *run, uint64_t step, struct kelp_error *reterr,
                         void (*warn)(const char *text))
{
    for (;;) {
        const struct kelp_checkpoint *checkpoint = kelp_checkpoints_before(&run->checkpoints, step);
        if (!checkpoint) {
            return begin_at_0(run, reterr);
        }
        kelp_status status = load(run, checkpoint, reterr);
        if (status == KELP_OK) {
            memcpy(run->from, checkpoint->name, sizeof(run->from));
            run->from_step = checkpoint->manifest.step;
            return KELP_OK;
        }
        if (status == KELP_ERR_MISMATCH || status == KELP_ERR_NO_MEMORY) {
            return status;
        }
        warn(reterr->text);
        if (checkpoint->manifest.step == 0) {
            return begin_at_0(run, reterr);
        }
        step = checkpoint->manifest.step - 1;
    }
}

/* ---- the first states that differ ---------------------------------------------------------- */

static uint64_t step_of(const struct kelp_compare_run *run)
{
    return kelp_replay_state(run->replay)->control.step;
}

static kelp_status both_to(struct kelp_compare *compare, uint64_t step, struct kelp_error *reterr)
{
    kelp_status status = kelp_replay_to_step(compare->runs[0].replay, step, reterr);

    return status != KELP_OK ? status : kelp_replay_to_step(compare->runs[1].replay, step, reterr);
}

/* Name what differs between the states now. */
static void name_tensors(struct kelp_compare *compare)
{
    const struct kelp_model_state *a = kelp_replay_state(compare->runs[0].replay);
    const struct kelp_model_state *b = kelp_replay_state(compare->runs[1].replay);
    struct kelp_model_state_tensor at = {.tensor = 0};

    while (kelp_model_state_difference(a, b, &at)) {
        uint32_t index = compare->tensor_count++;
        if (index < KELP_COMPARE_TENSORS_MAX) {
            compare->tensors[index] = at;
            kelp_model_state_tensor_name(a, &at, compare->named[index].name,
                                         sizeof(compare->named[index].name));
            kelp_model_state_tensor_digest(a, &at, compare->named[index].digests[0]);
            kelp_model_state_tensor_digest(b, &at, compare->named[index].digests[1]);
        }
        kelp_model_state_next(a, &at);
    }
}

static bool states_differ(const struct kelp_compare *compare)
{
    struct kelp_model_state_tensor at = {.tensor = 0};

    return kelp_model_state_difference(kelp_replay_state(compare->runs[0].replay),
                                       kelp_replay_state(compare->runs[1].replay), &at);
}

/* Both from their newest checkpoints at or below the bound, at the later one's step. */
static kelp_status align(struct kelp_compare *compare, uint64_t bound, struct kelp_error *reterr,
                         void (*warn)(const char *text))
{
    struct kelp_compare_run *runs = compare->runs;
    kelp_status status = KELP_OK;

    for (int i = 0; status == KELP_OK && i < 2; i++) {
        status = begin(&runs[i], bound, reterr, warn);
    }
    if (status != KELP_OK) {
        return status;
    }
    return both_to(compare,
                   runs[0].from_step > runs[1].from_step ? runs[0].from_step : runs[1].from_step,
                   reterr);
}

/* States that differ where both begin say nothing of when: both begin earlier then, where the
 * records are alike, and at last at version 0. */
static kelp_status align_alike(struct kelp_compare *compare, struct kelp_error *reterr,
                               void (*warn)(const char *text))
{
    const struct kelp_digest_log_comparison *records = &compare->records;
    uint64_t last = records->a->step;
    uint64_t bounds[2] = {last > 0 ? last - 1 : 0, records->any_equal ? records->equal_step : 0};

    for (int i = 0; i < 2; i++) {
        kelp_status status = align(compare, bounds[i], reterr, warn);
        if (status != KELP_OK || !states_differ(compare)) {
            return status;
        }
    }
    kelp_status status = begin_at_0(&compare->runs[0], reterr);
    return status != KELP_OK ? status : begin_at_0(&compare->runs[1], reterr);
}

/* Up to `last`, where the records differ. */
static kelp_status search(struct kelp_compare *compare, uint64_t last, struct kelp_error *reterr)
{
    uint64_t step = step_of(&compare->runs[0]);
    kelp_status status = KELP_OK;

    while (status == KELP_OK && step < last && !states_differ(compare)) {
        status = both_to(compare, ++step, reterr);
    }
    if (status == KELP_OK && states_differ(compare)) {
        compare->outcome = KELP_COMPARE_FOUND;
        compare->step = step;
        name_tensors(compare);
    } else if (status == KELP_OK) {
        compare->outcome = KELP_COMPARE_JOBS_SAME;
    }
    return status;
}

/* Does each job give what its run has on record? */
static kelp_status judge(struct kelp_compare *compare, struct kelp_error *reterr)
{
    const struct kelp_digest_log_line *lines[2] = {compare->records.a, compare->records.b};

    kelp_status status = both_to(compare, lines[0]->step, reterr);
    for (int i = 0; status == KELP_OK && i < 2; i++) {
        struct kelp_compare_run *run = &compare->runs[i];
        if (step_of(run) == lines[i]->step) {
            kelp_replay_digest(run->replay, run->digest);
            run->reproduced = strcmp(run->digest, lines[i]->digest) == 0;
        }
    }
    return status;
}

/* ---- two models ---------------------------------------------------------------------------- */

static bool layouts_differ(const struct kelp_plan *a, const struct kelp_plan *b, char *text,
                           size_t text_bytes)
{
    if (a->tensor_count != b->tensor_count) {
        (void)snprintf(text, text_bytes, "one model has %u tensors, the other %u", a->tensor_count,
                       b->tensor_count);
        return true;
    }
    for (uint32_t i = 0; i < a->tensor_count; i++) {
        const struct kelp_tensor *left = &a->tensors[i];
        const struct kelp_tensor *right = &b->tensors[i];
        if (strcmp(left->name, right->name) != 0) {
            (void)snprintf(text, text_bytes, "tensor %u is %s in one model, %s in the other", i,
                           left->name, right->name);
            return true;
        }
        if (left->rank != right->rank ||
            memcmp(left->shape, right->shape, left->rank * sizeof(left->shape[0])) != 0) {
            (void)snprintf(text, text_bytes, "tensor %s has another shape in the other model",
                           left->name);
            return true;
        }
    }
    return false;
}

static kelp_status replay_both(struct kelp_compare *compare, struct kelp_error *reterr,
                               void (*warn)(const char *text))
{
    struct kelp_compare_run *runs = compare->runs;
    kelp_status status = KELP_OK;

    for (int i = 0; status == KELP_OK && i < 2; i++) {
        status = kelp_worker_program_refuse(kelp_job_file_job(runs[i].file), "kelp diff", reterr);
        if (status == KELP_OK) {
            status = kelp_plugin_consent(
                runs[i].file, &(struct kelp_plugin_consent){.allowed = compare->allow_plugin},
                reterr);
        }
        if (status == KELP_OK) {
            status = kelp_replay_create(kelp_job_file_job(runs[i].file), &runs[i].replay, reterr);
        }
        if (status != KELP_OK) {
            kelp_error_prefix(reterr, "%s", runs[i].path);
        }
    }
    if (status != KELP_OK) {
        return status;
    }
    if (layouts_differ(kelp_replay_plan(runs[0].replay), kelp_replay_plan(runs[1].replay),
                       compare->text, sizeof(compare->text))) {
        compare->outcome = KELP_COMPARE_MODELS;
        return KELP_OK;
    }
    status = align_alike(compare, reterr, warn);
    if (status == KELP_OK) {
        status = search(compare, compare->records.a->step, reterr);
    }
    return status != KELP_OK ? status : judge(compare, reterr);
}

kelp_status kelp_compare_replay(struct kelp_compare *compare, struct kelp_error *reterr,
                                void (*warn)(const char *text))
{
    struct kelp_error error = {.status = KELP_OK};

    assert(compare->outcome == KELP_COMPARE_RECORDS);
    kelp_status status = replay_both(compare, &error, warn);
    if (status == KELP_ERR_NO_MEMORY) {
        return kelp_fail(reterr, status, "%s", error.text);
    }
    if (status != KELP_OK) {
        compare->outcome = KELP_COMPARE_RECORDS;
        (void)snprintf(compare->text, sizeof(compare->text), "%s", error.text);
    }
    return KELP_OK;
}
