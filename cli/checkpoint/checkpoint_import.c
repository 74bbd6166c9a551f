/* `kelp checkpoint import`. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/checkpoint/checkpoint_copy.h"
#include "cli/checkpoint/checkpoint_verbs.h"
#include "cli/checkpoint/run_etcd.h"
#include "cli/cluster/run_client.h"
#include "coordinator/etcd/checkpoint_files.h"

static const struct kelp_option options[] = {
    KELP_VERB_REQUIRED("run", "DIR",
                       "folder of the run; created with the checkpoint's job if missing"),
    KELP_VERB_FLAG("force", NULL,
                   "import although the run's job differs in keys that shape the result"),
};

static const struct kelp_program program = {
    .name = "kelp checkpoint import",
    .summary = "copies a checkpoint's folder into a run",
    .positional = "FOLDER",
    .positional_min = 1,
    .positional_max = 1,
    .examples = "  kelp checkpoint import backup/step-1500.g2 --run runs/restored\n"
                "  kelp train --resume --run runs/restored\n",
    KELP_VERB_OPTIONS(options),
};

/* What people may give instead of a checkpoint's folder. */
static kelp_status open_source(const char *path, struct kelp_checkpoint *ret_checkpoint,
                               struct kelp_error *reterr)
{
    struct stat info;

    if (stat(path, &info) < 0) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "cannot open '%s': %s", path, strerror(errno));
    }
    if (!S_ISDIR(info.st_mode)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "'%s' is not a folder: a checkpoint is a folder such as "
                         "checkpoints/step-1500.g2 (unpack an archive first); with weights alone, "
                         "kelp train JOB --set model.init=FILE begins a run",
                         path);
    }
    kelp_status status = kelp_checkpoint_open(path, ret_checkpoint, reterr);
    if (status != KELP_ERR_NOT_FOUND) {
        return status;
    }
    if (kelp_run_dir_is_run(path)) {
        return kelp_fail(reterr, status,
                         "'%s' is the folder of a run; name one of its checkpoints, such as "
                         "%s/checkpoints/step-1500.g2",
                         path, path);
    }
    return kelp_fail(
        reterr, status,
        "'%s' is not a checkpoint, which is a folder such as step-1500.g2 with a manifest.json",
        path);
}

static void tell(const struct kelp_checkpoint_fault *fault, void *user)
{
    const struct kelp_checkpoint *checkpoint = user;

    (void)kelp_complain(KELP_EXIT_FAILED, "%s: %s%s%s", checkpoint->name, fault->storage,
                        fault->storage[0] ? ": " : "", fault->text);
}

/* Nothing that is damaged gets into a run. */
static kelp_status check_source(struct kelp_checkpoint *checkpoint, struct kelp_error *reterr)
{
    uint32_t faults = 0;

    kelp_status status = kelp_checkpoint_verify(checkpoint, &faults, reterr, tell, checkpoint);
    if (status == KELP_OK && faults > 0) {
        return kelp_fail(reterr, KELP_ERR_CORRUPT, "checkpoint '%s' is damaged: it is not imported",
                         checkpoint->path);
    }
    return status;
}

/* ---- the run ------------------------------------------------------------------------------- */

static kelp_status check_job(const struct kelp_job_file *theirs, const char *run_path, bool force,
                             struct kelp_error *reterr)
{
    struct kelp_job_differences differences;
    struct kelp_job_file *ours = NULL;
    char text[256];

    kelp_status status = kelp_run_job_read(run_path, &ours, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (strcmp(kelp_job_file_job(ours)->name, kelp_job_file_job(theirs)->name) != 0) {
        status = kelp_fail(reterr, KELP_ERR_MISMATCH,
                           "the checkpoint is of job '%s', but the run is of '%s'",
                           kelp_job_file_job(theirs)->name, kelp_job_file_job(ours)->name);
        goto destroy_ours;
    }
    status = kelp_job_compare(theirs, ours, &differences, reterr);
    if (status != KELP_OK) {
        goto destroy_ours;
    }
    if (differences.refused > 0 && !force) {
        kelp_job_differences_text(&differences, false, text, sizeof(text));
        status = kelp_fail(
            reterr, KELP_ERR_MISMATCH,
            "the run's job differs from the checkpoint's: %s; --force imports it anyway", text);
    }
    kelp_job_differences_fini(&differences);
destroy_ours:
    kelp_job_file_destroy(ours);
    return status;
}

/* A run that has nothing but its job. */
static kelp_status make_run(struct kelp_job_file *file, const char *path,
                            struct kelp_run_dir *ret_run, struct kelp_error *reterr)
{
    char *text = NULL;

    kelp_status status = kelp_run_dir_create(path, false, ret_run, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_run_dir_protect(ret_run, kelp_job_file_job(file)->run.closed, reterr);
    if (status == KELP_OK) {
        status = kelp_job_file_set(file, "run.dir", path, KELP_ORIGIN_FLAG, reterr);
    }
    if (status != KELP_OK) {
        goto close_run;
    }
    status = kelp_job_file_print(file, false, &text, reterr);
    if (status != KELP_OK) {
        goto close_run;
    }
    status = kelp_run_dir_write(ret_run, "job.yaml", text, reterr);
    free(text);
    if (status == KELP_OK) {
        return KELP_OK;
    }
close_run:
    kelp_run_dir_close(ret_run);
    return status;
}

static kelp_status open_run(struct kelp_job_file *file, const char *path, bool force,
                            struct kelp_run_dir *ret_run, struct kelp_error *reterr)
{
    if (!kelp_run_dir_is_run(path)) {
        return make_run(file, path, ret_run, reterr);
    }
    kelp_status status = kelp_run_dir_resume(path, ret_run, reterr);
    if (status == KELP_OK) {
        status = check_job(file, path, force, reterr);
        if (status != KELP_OK) {
            kelp_run_dir_close(ret_run);
        }
    }
    return status;
}

/* ---- bringing it in ------------------------------------------------------------------------ */

/* Remove what was copied when no manifest names it for certain; after a lost answer one may. */
static void undo(const struct kelp_checkpoint *checkpoint, const struct kelp_run_dir *run,
                 kelp_status status)
{
    struct kelp_error error;

    if ((status == KELP_ERR_EXISTS || status == KELP_ERR_BUSY) &&
        kelp_checkpoint_files_remove(run->path, checkpoint->name, &error) != KELP_OK) {
        (void)kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
}

/* The data first, the manifest after. */
static kelp_status bring_in(const struct kelp_checkpoint *checkpoint,
                            const struct kelp_run_dir *run, struct kelp_error *reterr)
{
    struct kelp_run_etcd *etcd = NULL;
    char *text = NULL;

    kelp_status status = kelp_run_etcd_open(run, &etcd, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_checkpoint_copy(checkpoint, run->path, reterr);
    if (status != KELP_OK || !etcd) {
        goto close_etcd;
    }
    status = kelp_manifest_print(&checkpoint->manifest, &text, reterr);
    if (status == KELP_OK) {
        status = kelp_run_etcd_add(etcd, checkpoint->manifest.version, text, reterr);
        free(text);
    }
    undo(checkpoint, run, status);
close_etcd:
    kelp_run_etcd_close(etcd);
    return status;
}

static void report(const struct kelp_checkpoint *checkpoint, const struct kelp_run_dir *run)
{
    struct kelp_checkpoints list;

    (void)printf("%s: imported into %s\n", checkpoint->name, run->path);
    if (kelp_checkpoints_list(run->path, &list, NULL) != KELP_OK) {
        return;
    }
    const struct kelp_checkpoint *newest = kelp_checkpoints_before(&list, UINT64_MAX);
    if (newest && newest->manifest.version > checkpoint->manifest.version) {
        (void)printf(
            "the run continues from its newest checkpoint, %s; kelp checkpoint rm --force removes "
            "that one\n",
            newest->name);
    } else {
        (void)printf("continue with kelp train --resume --run %s\n", run->path);
    }
    kelp_checkpoints_fini(&list);
}

static kelp_status import(struct kelp_checkpoint *checkpoint, const struct kelp_options *given,
                          struct kelp_error *reterr)
{
    struct kelp_job_file *file = NULL;
    struct kelp_plan plan;
    struct kelp_run_dir run;

    kelp_status status = check_source(checkpoint, reterr);
    if (status == KELP_OK) {
        status = kelp_checkpoint_job(checkpoint, &file, &plan, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    kelp_plan_fini(&plan);
    status = open_run(file, kelp_options_text(given, "run"), kelp_options_flag(given, "force"),
                      &run, reterr);
    if (status == KELP_OK) {
        status = bring_in(checkpoint, &run, reterr);
        if (status == KELP_OK) {
            report(checkpoint, &run);
        }
        kelp_run_dir_close(&run);
    }
    kelp_job_file_destroy(file);
    return status;
}

static int exit_status_of(kelp_status status)
{
    switch (status) {
    case KELP_ERR_UNREACHABLE:
    case KELP_ERR_TIMEOUT:
        return KELP_EXIT_UNREACHABLE;
    case KELP_ERR_NOT_FOUND:
    case KELP_ERR_INVALID:
    case KELP_ERR_EXISTS:
    case KELP_ERR_MISMATCH:
    case KELP_ERR_BUSY:
    case KELP_ERR_LIMIT:
        return KELP_EXIT_USAGE;
    default:
        return KELP_EXIT_FAILED;
    }
}

static int import_folder(const struct kelp_options *given)
{
    struct kelp_checkpoint checkpoint;
    struct kelp_error error;

    kelp_status status = open_source(kelp_options_positional(given, 0), &checkpoint, &error);
    if (status == KELP_OK) {
        status = import(&checkpoint, given, &error);
        kelp_checkpoint_fini(&checkpoint);
    }
    return status == KELP_OK ? KELP_EXIT_OK
                             : kelp_complain(exit_status_of(status), "%s", error.text);
}

const struct kelp_verb kelp_checkpoint_verb_import = {
    "import", "bring in a checkpoint's folder from elsewhere", &program, import_folder, NULL};
