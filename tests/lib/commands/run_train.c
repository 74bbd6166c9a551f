#include "tests/lib/commands/run_train.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/files.h"
#include "tests/lib/commands/json_fields.h"

#define OUTPUT_MAX (8u << 20)

/* Check limits messages, so only the end of the output is shown. */
#define SAID_MAX 2000

static const char *last_words(const char *text)
{
    size_t length = strlen(text);
    return length > SAID_MAX ? text + length - SAID_MAX : text;
}

void kelp_run_prepare(struct kelp_run *run)
{
    struct kelp_test_folder folder;
    memset(run, 0, sizeof(*run));
    kelp_test_folder_init(&folder);
    (void)snprintf(run->folder, sizeof(run->folder), "%s", folder.path);
    (void)snprintf(run->run_folder, sizeof(run->run_folder), "%s/run", run->folder);
}

void kelp_run_prepare_job(struct kelp_run *run, const char *job_text)
{
    kelp_run_prepare(run);
    (void)kelp_test_write(run->folder, "job.yaml", job_text);
}

/* Forget the command before; its files stay. */
static void forget(struct kelp_run *run)
{
    kelp_test_command_fini(&run->command);
    free(run->output);
    cJSON_Delete(run->result);
    run->output = NULL;
    run->result = NULL;
}

void kelp_run_fini(struct kelp_run *run)
{
    forget(run);
    if (run->folder[0] && !getenv("KELP_KEEP_RUNS")) {
        (void)kelp_files_remove(run->folder, NULL); /* leftovers stay in TMPDIR */
    }
    memset(run, 0, sizeof(*run));
}

/* ---- running ----------------------------------------------------------------------------------
 */

void kelp_run_start(struct kelp_run *run, const char *first, const char *const *args)
{
    const char *all[KELP_TEST_ARGS_MAX + 5] = {"train", first, "--run",
                                               run->run_folder + strlen(run->folder) + 1};
    size_t count = 4;
    for (size_t i = 0; args && args[i]; i++) {
        ck_assert_uint_lt(i, KELP_TEST_ARGS_MAX);
        all[count++] = args[i];
    }
    forget(run);
    kelp_test_command_start(&run->command, run->folder, all);
}

static void wait_for_end(struct kelp_run *run, uint32_t timeout_ms)
{
    char path[320];
    char *text = NULL;
    size_t bytes = 0;
    (void)kelp_test_command_wait(&run->command, timeout_ms);
    run->exit_code = run->command.exit_code;
    bytes = strlen(run->command.out) + strlen(run->command.err) + 1;
    run->output = malloc(bytes);
    ck_assert_ptr_nonnull(run->output);
    (void)snprintf(run->output, bytes, "%s%s", run->command.out, run->command.err);
    (void)snprintf(path, sizeof(path), "%s/result.json", run->run_folder);
    if (kelp_files_read(path, OUTPUT_MAX, &text, &bytes, NULL) == KELP_OK) {
        run->result = cJSON_Parse(text);
        free(text);
    }
}

void kelp_run_train(struct kelp_run *run, const char *job_path, const char *const *args,
                    unsigned timeout_s)
{
    kelp_run_start(run, job_path, args);
    wait_for_end(run, timeout_s * 1000);
}

void kelp_run_finish(struct kelp_run *run, int exit_code)
{
    kelp_run_finish_within(run, exit_code, KELP_TEST_HANG_MS);
}

void kelp_run_finish_within(struct kelp_run *run, int exit_code, uint32_t timeout_ms)
{
    wait_for_end(run, timeout_ms);
    ck_assert_msg(run->exit_code == exit_code, "exit %d, not %d; it said:\n%s", run->exit_code,
                  exit_code, last_words(run->output));
}

void kelp_run_resume(struct kelp_run *run, const char *const *args, int exit_code)
{
    kelp_run_start(run, "--resume", args);
    kelp_run_finish(run, exit_code);
}

/* ---- what it left -----------------------------------------------------------------------------
 */

double kelp_run_number(const struct kelp_run *run, const char *name)
{
    return kelp_test_number(run->result, name);
}

const char *kelp_run_text(const struct kelp_run *run, const char *name)
{
    return kelp_test_text(run->result, name);
}

double kelp_run_metric(const struct kelp_run *run, const char *name)
{
    return kelp_test_number(kelp_test_member(run->result, "metrics"), name);
}

const char *kelp_run_digest(const struct kelp_run *run)
{
    ck_assert_msg(run->result != NULL, "no result.json; exit %d, output:\n%s", run->exit_code,
                  run->output);
    return kelp_run_text(run, "digest");
}

void kelp_run_expect_digest(const struct kelp_run *run, const char *what, char digest[33])
{
    if (digest[0] == '\0') {
        (void)snprintf(digest, 33, "%s", kelp_run_digest(run));
    }
    (void)printf("%-50s %s\n", what, kelp_run_digest(run));
    (void)fflush(stdout);
    ck_assert_str_eq(kelp_run_digest(run), digest);
}

double kelp_run_line_number(const struct kelp_run *run, const char *file, const char *key,
                            double number, const char *field)
{
    char path[400];
    char line[4096];
    double found = NAN;
    (void)snprintf(path, sizeof(path), "%s/%s", run->run_folder, file);
    FILE *stream = fopen(path, "r");
    ck_assert_msg(stream != NULL, "%s is missing", path);
    while (fgets(line, sizeof(line), stream)) {
        cJSON *object = cJSON_Parse(line);
        const cJSON *where = cJSON_GetObjectItemCaseSensitive(object, key);
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, field);
        if (cJSON_IsNumber(where) && where->valuedouble == number && cJSON_IsNumber(value)) {
            found = value->valuedouble;
        }
        cJSON_Delete(object);
    }
    (void)fclose(stream);
    ck_assert_msg(!isnan(found), "%s has no line with %s=%g and %s", path, key, number, field);
    return found;
}
