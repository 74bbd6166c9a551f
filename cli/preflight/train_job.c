#include "cli/preflight/train_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cluster/run_client.h"
#include "cli/run/run_dir.h"
#include "cli/verb/job_load.h"
#include "common/base/json.h"

/* The run to go on with: its folder, or its name in runs/, as other verbs take it. */
static kelp_status choose_resumed(const char *typed, char path[KELP_RUN_PATH_MAX + 1],
                                  struct kelp_error *reterr)
{
    kelp_status status = kelp_run_choose(typed, path, reterr);
    if (status == KELP_OK || status == KELP_ERR_DENIED) {
        return status;
    }
    return kelp_fail(
        reterr, KELP_ERR_NOT_FOUND,
        "nothing to resume in '%s': there is no job.yaml of a run; kelp ls shows the runs", typed);
}

/* Which file to read. */
static kelp_status choose_file(const struct kelp_options *given, char *path, size_t path_bytes,
                               struct kelp_error *reterr)
{
    const char *run = kelp_options_text(given, "run");
    char folder[KELP_RUN_PATH_MAX + 1];

    if (kelp_options_positional_count(given) > 0) {
        const char *typed = kelp_options_positional(given, 0);
        char job[KELP_RUN_PATH_MAX + 64];
        if (kelp_run_dir_path(typed, "job.yaml", job, sizeof(job), NULL) == KELP_OK &&
            access(job, F_OK) == 0) {
            return kelp_fail(
                reterr, KELP_ERR_INVALID,
                "%s is a run's folder, not a job; kelp train --resume --run %s continues it", typed,
                typed);
        }
        int length = snprintf(path, path_bytes, "%s", typed);
        return length >= 0 && (size_t)length < path_bytes
                   ? KELP_OK
                   : kelp_fail(reterr, KELP_ERR_LIMIT, "the job file's path is too long");
    }
    if (!kelp_options_flag(given, "resume")) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "kelp train needs a job file, for example kelp train "
                         "examples/etth1-dlinear.yaml; see kelp train --help");
    }
    kelp_status status = choose_resumed(run ? run : KELP_RUN_LATEST, folder, reterr);
    return status == KELP_OK ? kelp_run_dir_path(folder, "job.yaml", path, path_bytes, reterr)
                             : status;
}

kelp_status kelp_train_job_lay(struct kelp_job_file *file, const struct kelp_options *given,
                               struct kelp_error *reterr)
{
    const char *run = kelp_options_text(given, "run");
    char folder[KELP_RUN_PATH_MAX + 1];

    kelp_status status = kelp_job_set_options(file, given, reterr);
    if (status != KELP_OK || !run || !kelp_options_flag(given, "resume")) {
        return status;
    }
    status = choose_resumed(run, folder, reterr);
    return status == KELP_OK
               ? kelp_job_set(file, &(struct kelp_job_setting){"run.dir", folder}, 1, reterr)
               : status;
}

static kelp_status lay_options(struct kelp_job_file *file, const void *user,
                               struct kelp_error *reterr)
{
    return kelp_train_job_lay(file, user, reterr);
}

kelp_status kelp_train_job_read(const struct kelp_options *given, struct kelp_job_file **ret_file,
                                struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 64];
    const struct kelp_job_source source = {
        .path = path, .environment = true, .lay = lay_options, .user = given};

    kelp_status status = choose_file(given, path, sizeof(path), reterr);
    return status == KELP_OK ? kelp_job_load(&source, ret_file, reterr) : status;
}

static kelp_status refuse(const char *name, const struct kelp_job_differences *differences,
                          struct kelp_error *reterr)
{
    char text[320];

    kelp_job_differences_text(differences, false, text, sizeof(text));
    return kelp_fail(reterr, KELP_ERR_MISMATCH,
                     "%s differs in keys that shape the result: %s; resume with the old values, "
                     "or use kelp train --resume --force",
                     name, text);
}

kelp_status kelp_train_job_may_follow(const char *name, const char *before, const char *now,
                                      struct kelp_error *reterr)
{
    struct kelp_job_file *files[2] = {NULL, NULL};
    struct kelp_job_differences differences = {.count = 0};

    kelp_status status = kelp_job_load_text(name, before, &files[0], reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_job_load_text("the job", now, &files[1], reterr);
    if (status != KELP_OK) {
        goto destroy_files;
    }
    status = kelp_job_compare(files[0], files[1], &differences, reterr);
    if (status == KELP_OK && differences.refused > 0) {
        status = refuse(name, &differences, reterr);
    }
    kelp_job_differences_fini(&differences);
destroy_files:
    kelp_job_file_destroy(files[0]);
    kelp_job_file_destroy(files[1]);
    return status;
}

static void describe(const struct kelp_job_differences *differences,
                     struct kelp_train_changes *ret_changes)
{
    struct kelp_train_changes changes = {.longer = differences->refused > 0};
    size_t half = sizeof(changes.text) / 2;

    kelp_job_differences_text(differences, false, changes.text, half);
    size_t used = strlen(changes.text);
    if (used > 0 && differences->count > differences->refused) {
        used += (size_t)snprintf(changes.text + used, sizeof(changes.text) - used, ", ");
    }
    kelp_job_differences_text(differences, true, changes.text + used, sizeof(changes.text) - used);
    for (size_t i = 0; i < differences->count; i++) {
        changes.longer |= strcmp(differences->items[i].key, "train.epochs") == 0;
    }
    *ret_changes = changes;
}

/* Checkpoints of another name would be left alone, and training begin anew. */
static kelp_status same_name(const struct kelp_job_file *before, const struct kelp_job_file *now,
                             struct kelp_error *reterr)
{
    const char *name = kelp_job_file_job(before)->name;

    return strcmp(name, kelp_job_file_job(now)->name) == 0
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_MISMATCH,
                           "name: a run and its checkpoints keep their name, also with --force: "
                           "resume with name: %s",
                           name);
}

kelp_status kelp_train_job_follows(const struct kelp_job_file *file, const char *run_path,
                                   bool force, struct kelp_train_changes *ret_changes,
                                   struct kelp_error *reterr)
{
    struct kelp_job_differences differences = {.count = 0};
    struct kelp_job_file *before = NULL;
    char path[KELP_RUN_PATH_MAX + 64];
    const struct kelp_job_source source = {.path = path, .unfinished = true};

    kelp_status status = kelp_run_dir_path(run_path, "job.yaml", path, sizeof(path), reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (!kelp_run_dir_is_run(run_path)) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                         "nothing to resume in '%s': there is no job.yaml of a run; kelp ls shows "
                         "the runs",
                         run_path);
    }
    status = kelp_job_load(&source, &before, reterr);
    if (status != KELP_OK) {
        return status;
    }
    /* Where the folder is now says nothing about the job. */
    status = kelp_job_file_set(before, "run.dir", kelp_job_file_job(file)->run.dir,
                               KELP_ORIGIN_FLAG, reterr);
    if (status != KELP_OK) {
        goto destroy_before;
    }
    status = kelp_job_compare(before, file, &differences, reterr);
    if (status == KELP_OK && differences.refused > 0 && !force) {
        status = refuse(path, &differences, reterr);
    }
    if (status == KELP_OK) {
        status = same_name(before, file, reterr);
    }
    if (status == KELP_OK) {
        describe(&differences, ret_changes);
    }
    kelp_job_differences_fini(&differences);
destroy_before:
    kelp_job_file_destroy(before);
    return status;
}

kelp_status kelp_train_job_same_compute(const struct kelp_plan *before, const char *now,
                                        const char *run_path, struct kelp_error *reterr)
{
    struct kelp_plan plan;
    char text[sizeof(reterr->text)];

    kelp_status status = kelp_plan_parse(now, strlen(now), &plan, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (kelp_plan_computes_otherwise(before, &plan, text, sizeof(text))) {
        status = kelp_fail(reterr, KELP_ERR_MISMATCH,
                           "run '%.80s' began on a machine that computes otherwise: %.280s; resume "
                           "it on one of that kind, or with --set cluster.mixed=true --force",
                           run_path, text);
    }
    kelp_plan_fini(&plan);
    return status;
}

/* The fingerprint that a model's card names; "" where it names none. */
static void fingerprint_of(const char *card, char text[17])
{
    cJSON *json = NULL;

    text[0] = '\0';
    if (kelp_json_parse(card, strlen(card), &json, NULL) == KELP_OK &&
        kelp_json_string(json, "fingerprint", text, 17, NULL) != KELP_OK) {
        text[0] = '\0';
    }
    cJSON_Delete(json);
}

kelp_status kelp_train_job_same_data(const struct kelp_job *job, const char *run_path,
                                     const char *card, struct kelp_error *reterr)
{
    char before[17], now[17];
    char *text = NULL;

    if (!card || kelp_run_dir_read(run_path, "model.json", &text, NULL) != KELP_OK) {
        return KELP_OK; /* nothing is known of the data then; shards and workers compare again */
    }
    fingerprint_of(text, before);
    fingerprint_of(card, now);
    free(text);
    if (before[0] == '\0' || now[0] == '\0' || strcmp(before, now) == 0) {
        return KELP_OK;
    }
    return kelp_fail(reterr, KELP_ERR_MISMATCH,
                     "data.path: '%.200s' is not what the run '%.100s' began with (fingerprint %s, "
                     "not %s); bring the file back, start a new run, or use --force",
                     job->data.path, run_path, now, before);
}
