#include "cli/preflight/run_plugin.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/files.h"
#include "common/tensors/digest.h"
#include "worker/model/limits.h"

/* The library that the job names, and its copy in a run. */
struct copy {
    char folder[PATH_MAX]; /* "/…/run/plugin" */
    char path[KELP_JOB_PATH_MAX + 1];
    char *bytes;
    size_t count;
    bool own; /* the job names a copy of this run */
};

static void close_copy(struct copy *copy)
{
    free(copy->bytes);
}

/* "/…/run/plugin/0123456789abcdef/model.so" */
static kelp_status name_copy(const char *plugin, struct copy *copy, struct kelp_error *reterr)
{
    const char *slash = strrchr(plugin, '/');
    int length = snprintf(copy->path, sizeof(copy->path), "%s/%016" PRIx64 "/%s", copy->folder,
                          kelp_digest_bytes(copy->bytes, copy->count), slash ? slash + 1 : plugin);

    return length > 0 && (size_t)length < sizeof(copy->path)
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_LIMIT, "model.plugin: its path in '%s' is too long",
                           copy->folder);
}

/* close_copy() in every case. */
static kelp_status open_copy(const char *plugin, const char *run_path, struct copy *copy,
                             struct kelp_error *reterr)
{
    char run[PATH_MAX];

    *copy = (struct copy){.bytes = NULL};
    if (!realpath(run_path, run)) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "run folder '%s' is not there", run_path);
    }
    int length = snprintf(copy->folder, sizeof(copy->folder), "%s/" KELP_RUN_PLUGIN_FOLDER, run);
    if (length < 0 || (size_t)length >= sizeof(copy->folder)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "run folder '%s': its path is too long", run_path);
    }
    copy->own = strncmp(plugin, copy->folder, (size_t)length) == 0 && plugin[length] == '/';
    kelp_status status =
        kelp_files_read(plugin, KELP_PLUGIN_BYTES_MAX, &copy->bytes, &copy->count, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "model.plugin");
        return status;
    }
    return name_copy(plugin, copy, reterr);
}

/* Of a library that is none of the run's copies: see to its copy. *ret_there: there is one now. */
typedef kelp_status see_to_copy(const struct copy *copy, const char *plugin, bool *ret_there,
                                struct kelp_error *reterr);

/* The job names the run's copy from now on, where there is one. */
static kelp_status use_copy(struct kelp_job_file *file, const char *run_path, see_to_copy *see_to,
                            struct kelp_error *reterr)
{
    const char *plugin = kelp_job_file_job(file)->model.plugin;
    struct copy copy;
    bool there = false;

    if (plugin[0] == '\0') {
        return KELP_OK;
    }
    kelp_status status = open_copy(plugin, run_path, &copy, reterr);
    if (status == KELP_OK && !copy.own) {
        status = see_to(&copy, plugin, &there, reterr);
    }
    if (status == KELP_OK && there) {
        status = kelp_job_file_set(file, "model.plugin", copy.path, KELP_ORIGIN_FLAG, reterr);
    }
    close_copy(&copy);
    return status;
}

static kelp_status look_for_copy(const struct copy *copy, const char *plugin, bool *ret_there,
                                 struct kelp_error *reterr)
{
    (void)plugin;
    (void)reterr;
    *ret_there = access(copy->path, F_OK) == 0;
    return KELP_OK;
}

static kelp_status find_copy(const struct copy *copy, const char *plugin, bool *ret_there,
                             struct kelp_error *reterr)
{
    *ret_there = access(copy->path, F_OK) == 0;
    if (*ret_there || access(copy->folder, F_OK) != 0) {
        return KELP_OK;
    }
    return kelp_fail(
        reterr, KELP_ERR_MISMATCH,
        "model.plugin: %s is not the library that the run was made with, of which %s holds a copy; "
        "resume without setting model.plugin, or use --force",
        plugin, copy->folder);
}

kelp_status kelp_run_plugin_find(struct kelp_job_file *file, const char *run_path, bool force,
                                 struct kelp_error *reterr)
{
    return use_copy(file, run_path, force ? look_for_copy : find_copy, reterr);
}

static kelp_status write_copy(const struct copy *copy, const char *plugin, bool *ret_there,
                              struct kelp_error *reterr)
{
    char folder[KELP_JOB_PATH_MAX + 1];

    (void)plugin; /* its bytes are in copy */
    (void)snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(copy->path, '/') - copy->path),
                   copy->path);
    kelp_status status = kelp_files_make_folder(folder, reterr);
    if (status == KELP_OK) {
        status = kelp_files_write(copy->path, copy->bytes, copy->count, reterr);
    }
    *ret_there = status == KELP_OK;
    return status == KELP_OK ? kelp_files_sync_above(folder, 2, reterr) : status;
}

kelp_status kelp_run_plugin_keep(struct kelp_job_file *file, const char *run_path,
                                 struct kelp_error *reterr)
{
    return use_copy(file, run_path, write_copy, reterr);
}
