#include "cli/cluster/run_own.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/training/manifest.h"

kelp_status kelp_run_own_path(const struct kelp_run_own *own, const char *typed, const char *host,
                              const struct kelp_path_map *paths,
                              char ret_path[KELP_RUN_PATH_MAX + 1], struct kelp_error *reterr)
{
    const char *dir = kelp_job_file_job(own->file)->run.dir;
    char path[KELP_RUN_PATH_MAX + 1];

    if (typed) {
        return kelp_run_dir_resolve(typed, ret_path, reterr);
    }
    if (dir[0] != '\0') {
        kelp_status status = kelp_path_map_apply(paths, dir, path, reterr);
        return status == KELP_OK ? kelp_run_dir_resolve(path, ret_path, reterr) : status;
    }
    int length = snprintf(path, sizeof(path), "%s-%s", own->place->name, host);
    return length > 0 && (size_t)length < sizeof(path)
               ? kelp_run_dir_resolve(path, ret_path, reterr)
               : kelp_fail(reterr, KELP_ERR_LIMIT, "the name of this host's folder is too long");
}

static kelp_status write_files(const struct kelp_run_own *own, const struct kelp_run_dir *run,
                               struct kelp_error *reterr)
{
    char folder[PATH_MAX];
    char *text = NULL;

    if (!realpath(run->path, folder)) {
        return kelp_fail(reterr, KELP_ERR_IO, "cannot resolve '%s'", run->path);
    }
    kelp_status status = kelp_job_file_print_in(own->file, folder, &text, reterr);
    if (status == KELP_OK) {
        status = kelp_run_dir_write(run, "job.yaml", text, reterr);
    }
    free(text);
    if (status == KELP_OK && own->card) {
        status = kelp_run_dir_write(run, KELP_MODEL_CARD_FILE, own->card, reterr);
    }
    return status;
}

/* The token first: from then on the folder is known as this run's. */
static kelp_status begin(const struct kelp_run_own *own, const struct kelp_run_dir *run,
                         struct kelp_error *reterr)
{
    kelp_status status =
        kelp_run_dir_protect(run, kelp_job_file_job(own->file)->run.closed, reterr);

    if (status == KELP_OK) {
        status = kelp_run_dir_write(run, KELP_RUN_TOKEN_FILE, own->place->token, reterr);
    }
    return status == KELP_OK ? write_files(own, run, reterr) : status;
}

kelp_status kelp_run_own_make(const struct kelp_run_own *own, const char *path,
                              struct kelp_error *reterr)
{
    struct kelp_run_dir run = {.lock_fd = -1};
    char token[KELP_RUN_PATH_MAX + 64];

    kelp_status status = kelp_run_dir_path(path, KELP_RUN_TOKEN_FILE, token, sizeof(token), reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (access(token, F_OK) == 0) {
        (void)snprintf(run.path, sizeof(run.path), "%s", path);
        status = kelp_run_home_check(own->place, path, reterr);
        return status == KELP_OK ? write_files(own, &run, reterr) : status;
    }
    status = kelp_run_dir_create(path, false, &run, reterr);
    if (status == KELP_OK) {
        status = begin(own, &run, reterr);
    }
    kelp_run_dir_close(&run);
    return status;
}
