#include "cli/verb/job_load.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/limits.h"
#include "common/program/portable.h"

/* A table that is given for the job. */
static kelp_status refuse_table(const char *path, struct kelp_error *reterr)
{
    size_t bytes = strlen(path);
    bool table = (bytes > 4 && strcmp(path + bytes - 4, ".csv") == 0) ||
                 (bytes > 7 && strcmp(path + bytes - 7, ".csv.gz") == 0);
    return table ? kelp_fail(reterr, KELP_ERR_INVALID,
                             "%s: is a table, not a job; kelp init %s writes a job for it", path,
                             path)
                 : KELP_OK;
}

static bool is_input(const char *path)
{
    return path && strcmp(path, KELP_JOB_SOURCE_INPUT) == 0;
}

/* Up to one byte more than a job may have, which its reader refuses. */
static bool copy_input(int to)
{
    char bytes[4096];
    size_t left = KELP_JOB_FILE_BYTES_MAX + 1;

    while (left > 0) {
        const ssize_t count =
            read(STDIN_FILENO, bytes, left < sizeof(bytes) ? left : sizeof(bytes));
        if (count == 0) {
            return true;
        }
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count < 0 || write(to, bytes, (size_t)count) != count) {
            return false;
        }
        left -= (size_t)count;
    }
    return true;
}

/* A pipe can be read once, memory in its place again. */
static kelp_status keep_input(struct kelp_error *reterr)
{
    const int fd = memfd_create("job", MFD_CLOEXEC);
    const bool kept = fd >= 0 && copy_input(fd) && lseek(fd, 0, SEEK_SET) == 0 &&
                      dup2(fd, STDIN_FILENO) == STDIN_FILENO;
    const int error = errno;

    if (fd >= 0) {
        (void)close(fd);
    }
    return kept ? KELP_OK
                : kelp_fail(reterr, KELP_ERR_IO, KELP_JOB_SOURCE_INPUT ": %s", strerror(error));
}

static kelp_status fill(struct kelp_job_file *file, const struct kelp_job_source *source,
                        struct kelp_error *reterr)
{
    kelp_status status = refuse_table(source->path, reterr);

    if (status == KELP_OK && is_input(source->path)) {
        status = keep_input(reterr);
    }
    if (status == KELP_OK) {
        status = kelp_job_file_read(file, source->path, reterr);
    }
    if (status == KELP_OK && source->environment) {
        status = kelp_job_file_environment(file, reterr);
    }
    if (status == KELP_OK && source->lay) {
        status = source->lay(file, source->user, reterr);
    }
    return status == KELP_OK && !source->unfinished ? kelp_job_file_finish(file, reterr) : status;
}

kelp_status kelp_job_load(const struct kelp_job_source *source, struct kelp_job_file **ret_file,
                          struct kelp_error *reterr)
{
    struct kelp_job_file *file = kelp_job_file_create();

    if (!file) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_status status = fill(file, source, reterr);
    if (status != KELP_OK) {
        kelp_job_file_destroy(file);
        return status;
    }
    *ret_file = file;
    return KELP_OK;
}

kelp_status kelp_job_load_text(const char *name, const char *text, struct kelp_job_file **ret_file,
                               struct kelp_error *reterr)
{
    struct kelp_job_file *file = kelp_job_file_create();

    if (!file) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_status status = kelp_job_file_parse(file, name, text, strlen(text), reterr);
    if (status != KELP_OK) {
        kelp_job_file_destroy(file);
        return status;
    }
    *ret_file = file;
    return KELP_OK;
}

kelp_status kelp_job_begin_portable(const struct kelp_job *job, const char *path,
                                    struct kelp_error *reterr)
{
    if (!kelp_portable_needs_again(job)) {
        return KELP_OK;
    }
    if (is_input(path)) {
        (void)lseek(STDIN_FILENO, 0, SEEK_SET); /* it is memory */
    }
    return kelp_portable_again(reterr);
}

kelp_status kelp_job_set(struct kelp_job_file *file, const struct kelp_job_setting *settings,
                         size_t count, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    for (size_t i = 0; i < count && status == KELP_OK; i++) {
        status =
            kelp_job_file_set(file, settings[i].key, settings[i].value, KELP_ORIGIN_FLAG, reterr);
    }
    return status;
}

kelp_status kelp_job_set_u64(struct kelp_job_file *file, const char *key, uint64_t value,
                             struct kelp_error *reterr)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%" PRIu64, value);
    return kelp_job_file_set(file, key, text, KELP_ORIGIN_FLAG, reterr);
}

/* KEY=VALUE */
static kelp_status set_pair(struct kelp_job_file *file, const char *pair, struct kelp_error *reterr)
{
    const char *equals = strchr(pair, '=');
    char key[128];
    size_t length = equals ? (size_t)(equals - pair) : 0;

    if (!equals || length == 0 || length >= sizeof(key)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--set '%s': expected KEY=VALUE, for example train.lr=0.01", pair);
    }
    memcpy(key, pair, length);
    key[length] = '\0';
    return kelp_job_file_set(file, key, equals + 1, KELP_ORIGIN_FLAG, reterr);
}

kelp_status kelp_job_set_pairs(struct kelp_job_file *file, const struct kelp_options *given,
                               struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    for (size_t i = 0; status == KELP_OK && i < kelp_options_repeat_count(given, "set"); i++) {
        status = set_pair(file, kelp_options_repeat(given, "set", i), reterr);
    }
    return status;
}

kelp_status kelp_job_set_options(struct kelp_job_file *file, const struct kelp_options *given,
                                 struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    if (kelp_options_given(given, "workers")) {
        char value[64];
        struct kelp_range workers = kelp_options_range(given, "workers");
        (void)snprintf(value, sizeof(value), "%" PRIu32 ":%" PRIu32, workers.min, workers.max);
        status = kelp_job_file_set(file, "cluster.workers", value, KELP_ORIGIN_FLAG, reterr);
    }
    if (status == KELP_OK && kelp_options_given(given, "shards")) {
        status =
            kelp_job_set_u64(file, "cluster.shards", kelp_options_integer(given, "shards"), reterr);
    }
    if (status == KELP_OK && kelp_options_given(given, "run")) {
        status = kelp_job_file_set(file, "run.dir", kelp_options_text(given, "run"),
                                   KELP_ORIGIN_FLAG, reterr);
    }
    return status == KELP_OK ? kelp_job_set_pairs(file, given, reterr) : status;
}
