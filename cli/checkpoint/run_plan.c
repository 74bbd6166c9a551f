#include "cli/checkpoint/run_plan.h"

#include <stdio.h>
#include <stdlib.h>

#include "cli/checkpoint/checkpoint_read.h"
#include "cli/run/run_dir.h"
#include "common/base/files.h"

/* *ret_found is false, and nothing else happens, where the run has no checkpoint. */
static kelp_status of_newest(const char *run_path, struct kelp_plan *ret_plan, bool *ret_found,
                             struct kelp_error *reterr)
{
    struct kelp_checkpoints list;
    struct kelp_job_file *file = NULL;

    kelp_status status = kelp_checkpoints_list(run_path, &list, reterr);
    if (status != KELP_OK) {
        return status;
    }
    const struct kelp_checkpoint *newest = kelp_checkpoints_before(&list, UINT64_MAX);
    *ret_found = newest != NULL;
    if (newest) {
        status = kelp_checkpoint_job(newest, &file, ret_plan, reterr);
    }
    if (newest && status == KELP_OK) {
        kelp_job_file_destroy(file);
    }
    kelp_checkpoints_fini(&list);
    return status;
}

static kelp_status of_end(const char *run_path, struct kelp_plan *ret_plan,
                          struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 64];
    char *text = NULL;
    size_t bytes = 0;

    kelp_status status = kelp_run_dir_path(run_path, KELP_RUN_PLAN, path, sizeof(path), reterr);
    if (status == KELP_OK) {
        status = kelp_files_read(path, KELP_PLAN_TEXT_MAX, &text, &bytes, reterr);
    }
    if (status == KELP_ERR_NOT_FOUND) {
        return kelp_fail(reterr, status,
                         "run '%s' has neither a checkpoint nor a " KELP_RUN_PLAN
                         " yet: the tensors of its program are not known",
                         run_path);
    }
    if (status == KELP_OK) {
        status = kelp_plan_parse(text, bytes, ret_plan, reterr);
        if (status != KELP_OK) {
            kelp_error_prefix(reterr, "%s", path);
        }
    }
    free(text);
    return status;
}

kelp_status kelp_run_plan(const char *run_path, struct kelp_plan *ret_plan,
                          struct kelp_error *reterr)
{
    bool found = false;

    kelp_status status = of_newest(run_path, ret_plan, &found, reterr);
    return status == KELP_OK && !found ? of_end(run_path, ret_plan, reterr) : status;
}
