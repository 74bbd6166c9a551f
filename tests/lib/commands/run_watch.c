#include "tests/lib/commands/run_watch.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/files.h"

#define FILE_MAX (64u << 20)

/* ---- steps ------------------------------------------------------------------------------------
 */

double kelp_run_step_in(const char *digests)
{
    char line[512];
    double step = 0;
    FILE *file = fopen(digests, "r");
    while (file && fgets(line, sizeof(line), file)) {
        cJSON *object = cJSON_Parse(line);
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, "step");
        step = cJSON_IsNumber(value) ? value->valuedouble : step;
        cJSON_Delete(object);
    }
    if (file) {
        (void)fclose(file);
    }
    return step;
}

double kelp_run_step(const struct kelp_run *run)
{
    char path[400];
    (void)snprintf(path, sizeof(path), "%s/digests.jsonl", run->run_folder);
    return kelp_run_step_in(path);
}

void kelp_run_await_step(const struct kelp_run *run, double step)
{
    KELP_TEST_AWAIT_FROM(&run->command, kelp_run_step(run) >= step,
                         "step %g was not reached; it said:\n%s", step,
                         kelp_test_command_peek(&run->command));
}

void kelp_run_go_on(const struct kelp_run *run, double steps)
{
    kelp_run_await_step(run, kelp_run_step(run) + steps);
}

char *kelp_run_kill(struct kelp_run *run)
{
    kelp_test_command_kill_all(&run->command);
    return kelp_test_read(run->run_folder, "digests.jsonl", NULL);
}

void kelp_run_expect_quiet(struct kelp_run *run, const char *job_text, const char *const *args)
{
    const double step = kelp_run_step(run);
    char *ours = kelp_run_kill(run);
    struct kelp_run quiet;

    kelp_run_prepare_job(&quiet, job_text);
    kelp_run_start(&quiet, "job.yaml", args);
    kelp_run_await_step(&quiet, step);
    char *theirs = kelp_run_kill(&quiet);
    kelp_run_expect_same(ours, theirs);
    free(ours);
    free(theirs);
    kelp_run_fini(&quiet);
}

/* ---- checkpoints ------------------------------------------------------------------------------
 */

static bool holds_file(const char *folder, const char *pattern)
{
    bool there = false;
    DIR *files = opendir(folder);
    for (const struct dirent *file; files && !there && (file = readdir(files));) {
        there = fnmatch(pattern, file->d_name, 0) == 0;
    }
    if (files) {
        (void)closedir(files);
    }
    return there;
}

static struct kelp_run_checkpoint describe(const char *parent, const char *name)
{
    struct kelp_run_checkpoint found = {.step = -1};
    int length = 0;
    /* NOLINTNEXTLINE(cert-err34-c): the count is checked */
    if (sscanf(name, "step-%ld.g%u%n", &found.step, &found.generation, &length) != 2 ||
        (name[length] != '\0' && name[length] != '-')) {
        found.step = -1;
    }
    (void)snprintf(found.name, sizeof(found.name), "%.*s", (int)sizeof(found.name) - 1, name);
    (void)snprintf(found.path, sizeof(found.path), "%s/%s", parent, found.name);
    return found;
}

struct kelp_run_checkpoint kelp_run_newest(const struct kelp_run *run,
                                           struct kelp_run_wanted wanted)
{
    struct kelp_run_checkpoint newest = {.step = -1};
    char parent[320];
    (void)snprintf(parent, sizeof(parent), "%s/checkpoints", run->run_folder);
    DIR *entries = opendir(parent);
    for (const struct dirent *entry; entries && (entry = readdir(entries));) {
        struct kelp_run_checkpoint found = describe(parent, entry->d_name);
        if (found.step > newest.step && found.step >= wanted.step &&
            found.generation >= wanted.generation &&
            holds_file(found.path, wanted.file ? wanted.file : "manifest.json")) {
            newest = found;
        }
    }
    if (entries) {
        (void)closedir(entries);
    }
    return newest;
}

struct kelp_run_checkpoint kelp_run_await_checkpoint(const struct kelp_run *run,
                                                     struct kelp_run_wanted wanted)
{
    struct kelp_run_checkpoint found;
    KELP_TEST_AWAIT_FROM(&run->command, (found = kelp_run_newest(run, wanted)).step >= 0,
                         "no checkpoint of step %ld, generation %u; it said:\n%s", wanted.step,
                         wanted.generation, kelp_test_command_peek(&run->command));
    return found;
}

/* ---- logs -------------------------------------------------------------------------------------
 */

static char *log_of(const struct kelp_run *run, const char *id)
{
    char path[400];
    char *text = NULL;
    size_t bytes = 0;
    (void)snprintf(path, sizeof(path), "%s/logs/%s.log", run->run_folder, id);
    if (kelp_files_read(path, FILE_MAX, &text, &bytes, NULL) != KELP_OK) {
        text = strdup("");
    }
    ck_assert_ptr_nonnull(text);
    return text;
}

static char *coordinator_log(const struct kelp_run *run)
{
    return log_of(run, "coordinator-0");
}

unsigned kelp_run_count_logged(const struct kelp_run *run, const char *id, const char *text)
{
    char *log = log_of(run, id);
    unsigned count = 0;
    for (const char *at = log; (at = strstr(at, text)) != NULL; at++) {
        count++;
    }
    free(log);
    return count;
}

void kelp_run_await_logged(const struct kelp_run *run, const char *id, const char *text)
{
    KELP_TEST_AWAIT_FROM(&run->command, kelp_run_count_logged(run, id, text) > 0,
                         "%s never said: %s", id, text);
}

bool kelp_run_logged(const struct kelp_run *run, const char *text)
{
    return kelp_run_count_logged(run, "coordinator-0", text) > 0;
}

void kelp_run_await_log(const struct kelp_run *run, const char *text)
{
    kelp_run_await_logged(run, "coordinator-0", text);
}

double kelp_run_logged_number(const struct kelp_run *run, const char *until, const char *text,
                              const char *name)
{
    char *log = coordinator_log(run);
    char *end = until == NULL ? NULL : strstr(log, until);
    const char *line = NULL;
    if (end != NULL) {
        *end = '\0';
    }
    for (const char *at = strstr(log, text); at != NULL; at = strstr(at + 1, text)) {
        line = at;
    }
    const char *number = line == NULL ? NULL : strstr(line, name);
    double value = number == NULL ? -1 : strtod(number + strlen(name), NULL);
    free(log);
    return value;
}

void kelp_run_expect_same(const char *ours, const char *quiet)
{
    const size_t bytes = strlen(ours) < strlen(quiet) ? strlen(ours) : strlen(quiet);

    ck_assert_uint_gt(bytes, 0);
    for (size_t i = 0; i < bytes; i++) {
        ck_assert_msg(ours[i] == quiet[i], "digests differ at byte %zu:\n%.200s\n%.200s", i,
                      ours + i, quiet + i);
    }
}
