#include "cli/train_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/run_dir.h"

/* What may differ when a run is resumed, each with a value to compare by. */
static const struct {
    const char *key;
    const char *value;
} free_keys[] = {{"cluster.workers", "1:1"},
                 {"failure.max_failures", "0"},
                 {"failure.restart_backoff", "1s"},
                 {"failure.detect", "1s"},
                 {"failure.shard_wait", "1s"}};

/* --set KEY=VALUE */
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

static kelp_status set_options(struct kelp_job_file *file, const struct kelp_options *given,
                               struct kelp_error *reterr)
{
    char value[64];
    kelp_status status = KELP_OK;

    if (kelp_options_given(given, "workers")) {
        struct kelp_range workers = kelp_options_range(given, "workers");
        (void)snprintf(value, sizeof(value), "%u:%u", workers.min, workers.max);
        status = kelp_job_file_set(file, "cluster.workers", value, KELP_ORIGIN_FLAG, reterr);
    }
    if (status == KELP_OK && kelp_options_given(given, "shards")) {
        (void)snprintf(value, sizeof(value), "%u", (unsigned)kelp_options_integer(given, "shards"));
        status = kelp_job_file_set(file, "cluster.shards", value, KELP_ORIGIN_FLAG, reterr);
    }
    if (status == KELP_OK && kelp_options_given(given, "run")) {
        status = kelp_job_file_set(file, "run.dir", kelp_options_text(given, "run"),
                                   KELP_ORIGIN_FLAG, reterr);
    }
    for (size_t i = 0; status == KELP_OK && i < kelp_options_repeat_count(given, "set"); i++) {
        status = set_pair(file, kelp_options_repeat(given, "set", i), reterr);
    }
    return status;
}

/* Which file to read. */
static kelp_status choose_file(const struct kelp_options *given, char *path, size_t path_bytes,
                               struct kelp_error *reterr)
{
    const char *run = kelp_options_text(given, "run");

    if (kelp_options_positional_count(given) > 0) {
        int length = snprintf(path, path_bytes, "%s", kelp_options_positional(given, 0));
        return length >= 0 && (size_t)length < path_bytes
                   ? KELP_OK
                   : kelp_fail(reterr, KELP_ERR_LIMIT, "the job file's path is too long");
    }
    if (!kelp_options_flag(given, "resume")) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "kelp train needs a job file, for example kelp train "
                         "examples/etth1-dlinear.yaml; see kelp train --help");
    }
    run = run ? run : KELP_RUN_LATEST;
    if (!kelp_run_dir_is_run(run)) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                         "nothing to resume in '%s': there is no job.yaml of a run", run);
    }
    return kelp_run_dir_path(run, "job.yaml", path, path_bytes, reterr);
}

kelp_status kelp_train_job_read(const struct kelp_options *given, struct kelp_job_file **ret_file,
                                struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 64];
    struct kelp_job_file *file = NULL;

    kelp_status status = choose_file(given, path, sizeof(path), reterr);
    if (status != KELP_OK) {
        return status;
    }
    file = kelp_job_file_create();
    if (!file) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    status = kelp_job_file_read(file, path, reterr);
    if (status == KELP_OK) {
        status = kelp_job_file_environment(file, reterr);
    }
    if (status == KELP_OK) {
        status = set_options(file, given, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_job_file_finish(file, reterr);
    }
    if (status != KELP_OK) {
        kelp_job_file_destroy(file);
        return status;
    }
    *ret_file = file;
    return KELP_OK;
}

kelp_status kelp_train_job_digest(const char *name, const char *text, uint64_t *ret_digest,
                                  struct kelp_error *reterr)
{
    struct kelp_job_file *file = kelp_job_file_create();

    if (!file) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_status status = kelp_job_file_parse(file, name, text, strlen(text), reterr);
    for (size_t i = 0; status == KELP_OK && i < KELP_ARRAY_COUNT(free_keys); i++) {
        status =
            kelp_job_file_set(file, free_keys[i].key, free_keys[i].value, KELP_ORIGIN_FLAG, reterr);
    }
    if (status == KELP_OK) {
        *ret_digest = kelp_job_file_digest(file);
    }
    kelp_job_file_destroy(file);
    return status;
}

static kelp_status digest_of(const struct kelp_job_file *file, uint64_t *ret_digest,
                             struct kelp_error *reterr)
{
    char *text = NULL;

    kelp_status status = kelp_job_file_print(file, false, &text, reterr);
    if (status == KELP_OK) {
        status = kelp_train_job_digest("job", text, ret_digest, reterr);
        free(text);
    }
    return status;
}

kelp_status kelp_train_job_same(const struct kelp_job_file *file, const char *run_path,
                                struct kelp_error *reterr)
{
    char *text = NULL;
    uint64_t ours = 0;
    uint64_t theirs = 0;

    kelp_status status = kelp_run_dir_read(run_path, "job.yaml", &text, reterr);
    if (status != KELP_OK) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                         "nothing to resume in '%s': there is no job.yaml of a run", run_path);
    }
    status = kelp_train_job_digest("job.yaml", text, &theirs, reterr);
    free(text);
    if (status == KELP_OK) {
        status = digest_of(file, &ours, reterr);
    }
    if (status == KELP_OK && ours != theirs) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH,
                         "the job differs from the one of '%s'; resume without a job file and "
                         "options, or begin another run",
                         run_path);
    }
    return status;
}
