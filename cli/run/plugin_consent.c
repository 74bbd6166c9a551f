#include "cli/run/plugin_consent.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/environment.h"
#include "common/base/files.h"
#include "common/base/sha256.h"

#define LIBRARY_BYTES_MAX (1u << 30) /* as KELP_PLUGIN_BYTES_MAX of worker/model/limits.h */

/* ---- what is known ------------------------------------------------------------------------- */

static bool name_folder(char path[PATH_MAX])
{
    char state[PATH_MAX - 16];

    return kelp_environment_state(state, sizeof(state)) &&
           snprintf(path, PATH_MAX, "%s/plugins", state) < PATH_MAX;
}

static bool name_entry(const char *sha256, char path[PATH_MAX])
{
    char folder[PATH_MAX];
    int length = name_folder(folder) ? snprintf(path, PATH_MAX, "%s/%s", folder, sha256) : -1;

    return length > 0 && length < PATH_MAX;
}

/* Written by this user, where nobody else writes? */
bool kelp_plugin_is_known(const char *sha256)
{
    char folder[PATH_MAX], entry[PATH_MAX];
    struct stat about;

    if (!name_folder(folder) || !name_entry(sha256, entry) || stat(folder, &about) != 0 ||
        about.st_uid != geteuid() || (about.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        return false;
    }
    return lstat(entry, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == geteuid();
}

/* Where it cannot be written, the next command asks. */
static void remember(const char *sha256)
{
    char folder[PATH_MAX], entry[PATH_MAX];
    struct stat about;

    if (kelp_plugin_is_known(sha256) || !name_folder(folder) || !name_entry(sha256, entry) ||
        kelp_files_make_folder(folder, NULL) != KELP_OK || stat(folder, &about) != 0 ||
        about.st_uid != geteuid() || chmod(folder, 0700) != 0) {
        return;
    }
    int fd = open(entry, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) {
        (void)close(fd); /* it has no contents */
    }
}

/* ---- the job ------------------------------------------------------------------------------- */

static bool is_said(const struct kelp_job_file *file, const char *key)
{
    enum kelp_origin_kind origin = kelp_job_file_origin(file, key);

    return origin == KELP_ORIGIN_ENVIRONMENT || origin == KELP_ORIGIN_FLAG;
}

/* What the job says of the library holds, but for what an older job said of another one. */
static kelp_status check_said(const struct kelp_job_file *file, const char *sha256,
                              struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(file);
    const char *said = job->model.plugin_sha256;

    if (said[0] == '\0' || strcmp(said, sha256) == 0 ||
        (is_said(file, "model.plugin") && !is_said(file, "model.plugin_sha256"))) {
        return KELP_OK;
    }
    return kelp_fail(reterr, KELP_ERR_MISMATCH,
                     "model.plugin: %.200s has the SHA-256 %s, but model.plugin_sha256 is %s",
                     job->model.plugin, sha256, said);
}

static kelp_status digest_library(const char *path, char sha256[KELP_SHA256_HEX_BYTES],
                                  struct kelp_error *reterr)
{
    char *bytes = NULL;
    size_t count = 0;

    kelp_status status = kelp_files_read(path, LIBRARY_BYTES_MAX, &bytes, &count, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "model.plugin");
        return status;
    }
    status = kelp_sha256(bytes, count, sha256, reterr);
    free(bytes);
    return status;
}

static const char *program_of(const struct kelp_job *job)
{
    return job->model.python[0] != '\0' ? job->model.python : job->model.program;
}

/* Of its path and its arguments. */
static kelp_status digest_program(const struct kelp_job *job, char sha256[KELP_SHA256_HEX_BYTES],
                                  struct kelp_error *reterr)
{
    char text[KELP_JOB_PATH_MAX + KELP_JOB_TEXTS_MAX + 16];
    const int length =
        snprintf(text, sizeof(text), "program\n%s\n%s", program_of(job), job->model.arguments);

    return kelp_sha256(text, (size_t)length, sha256, reterr);
}

bool kelp_program_is_known(const struct kelp_job *job)
{
    char sha256[KELP_SHA256_HEX_BYTES];

    return digest_program(job, sha256, NULL) == KELP_OK && kelp_plugin_is_known(sha256);
}

static kelp_status consent_program(const struct kelp_job_file *file,
                                   const struct kelp_plugin_consent *consent,
                                   struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(file);
    const char *key = job->model.python[0] != '\0' ? "model.python" : "model.program";
    char sha256[KELP_SHA256_HEX_BYTES], arguments[KELP_JOB_TEXTS_MAX + 1];

    kelp_status status = digest_program(job, sha256, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (!consent->own_job && !consent->allowed && !is_said(file, key) &&
        !kelp_plugin_is_known(sha256)) {
        (void)snprintf(arguments, sizeof(arguments), "%s", job->model.arguments);
        for (char *feed = strchr(arguments, '\n'); feed; feed = strchr(feed, '\n')) {
            *feed = ' ';
        }
        return kelp_fail(reterr, KELP_ERR_DENIED,
                         "%s: %.200s%s%.120s is a program that would run as you, and you have not "
                         "allowed it here before; --allow-plugin allows it",
                         key, program_of(job), arguments[0] ? " " : "", arguments);
    }
    remember(sha256);
    return KELP_OK;
}

kelp_status kelp_plugin_consent(struct kelp_job_file *file,
                                const struct kelp_plugin_consent *consent,
                                struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(file);
    char sha256[KELP_SHA256_HEX_BYTES];

    if (job->model.kind == KELP_MODEL_PROGRAM) {
        return consent_program(file, consent, reterr);
    }
    if (job->model.kind != KELP_MODEL_PLUGIN) {
        return KELP_OK;
    }
    bool meant = consent->own_job || consent->allowed || is_said(file, "model.plugin");
    kelp_status status = digest_library(job->model.plugin, sha256, reterr);
    if (status == KELP_OK) {
        status = check_said(file, sha256, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    if (!meant && !kelp_plugin_is_known(sha256)) {
        return kelp_fail(reterr, KELP_ERR_DENIED,
                         "model.plugin: %.200s (SHA-256 %s) is code that would run as you, and you "
                         "have not allowed it here before; --allow-plugin allows it",
                         job->model.plugin, sha256);
    }
    remember(sha256);
    return kelp_job_file_set(file, "model.plugin_sha256", sha256, KELP_ORIGIN_FLAG, reterr);
}
