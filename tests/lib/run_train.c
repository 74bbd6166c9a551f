#include "tests/lib/run_train.h"

#include <check.h>
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/process.h"

#define OUTPUT_MAX (8u << 20)

void kelp_test_program(const char *name, char *path, size_t path_bytes)
{
    const char *bin = getenv("KELP_BIN");
    ck_assert_msg(bin != NULL, "KELP_BIN is not set: run this test through ctest");
    ck_assert_int_lt(snprintf(path, path_bytes, "%s/%s", bin, name), (int)path_bytes);
}

const char *kelp_test_write(const char *folder, const char *name, const char *text)
{
    static char path[512];
    ck_assert_int_lt(snprintf(path, sizeof(path), "%s/%s", folder, name), (int)sizeof(path));
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
    return path;
}

void kelp_run_prepare(struct kelp_run *run)
{
    const char *base = getenv("TMPDIR");
    memset(run, 0, sizeof(*run));
    (void)snprintf(run->folder, sizeof(run->folder), "%s/kelp-test-XXXXXX", base ? base : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(run->folder));
    (void)snprintf(run->run_folder, sizeof(run->run_folder), "%s/run", run->folder);
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file) {
        return NULL;
    }
    char *text = calloc(1, OUTPUT_MAX);
    ck_assert_ptr_nonnull(text);
    size_t length = fread(text, 1, OUTPUT_MAX - 1, file);
    text[length] = '\0';
    (void)fclose(file);
    return text;
}

static void wait_for_end(struct kelp_run *run, struct kelp_process *process, unsigned timeout_s)
{
    int wait_status = 0;
    kelp_status status = kelp_process_wait(process, timeout_s * 1000, &wait_status);
    kelp_process_destroy(process);
    ck_assert_msg(status == KELP_OK, "kelp train did not end within %u s; see %s", timeout_s,
                  run->run_folder);
    run->exit_code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
}

void kelp_run_train(struct kelp_run *run, const char *job_path, const char *const *args,
                    unsigned timeout_s)
{
    char program[512];
    char output_path[320];
    char result_path[320];
    const char *argv[KELP_TEST_ARGS_MAX + 6];
    size_t count = 0;
    struct kelp_error error = {.text = ""};
    struct kelp_process *process = NULL;

    kelp_test_program("kelp", program, sizeof(program));
    (void)snprintf(output_path, sizeof(output_path), "%s/output", run->folder);
    argv[count++] = program;
    argv[count++] = "train";
    argv[count++] = job_path;
    argv[count++] = "--run";
    argv[count++] = run->run_folder;
    for (size_t i = 0; args && args[i]; i++) {
        ck_assert_uint_lt(i, KELP_TEST_ARGS_MAX);
        argv[count++] = args[i];
    }
    argv[count] = NULL;
    int fd = open(output_path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    struct kelp_process_options options = {
        .argv = argv, .folder = run->folder, .stdout_fd = fd, .stderr_fd = fd};
    kelp_status status = kelp_process_start(&options, &process, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    (void)close(fd);
    wait_for_end(run, process, timeout_s);

    run->output = read_file(output_path);
    (void)snprintf(result_path, sizeof(result_path), "%s/result.json", run->run_folder);
    char *text = read_file(result_path);
    run->result = text ? cJSON_Parse(text) : NULL;
    free(text);
}

double kelp_run_metric(const struct kelp_run *run, const char *name)
{
    const cJSON *metrics = cJSON_GetObjectItemCaseSensitive(run->result, "metrics");
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(metrics, name);
    ck_assert_msg(cJSON_IsNumber(value), "result.json has no metric %s; output:\n%s", name,
                  run->output);
    return value->valuedouble;
}

const char *kelp_run_digest(const struct kelp_run *run)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(run->result, "digest");
    ck_assert_msg(cJSON_IsString(value), "result.json has no digest; exit %d, output:\n%s",
                  run->exit_code, run->output);
    return value->valuestring;
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

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info;
    (void)type;
    (void)where;
    return remove(path);
}

void kelp_run_fini(struct kelp_run *run)
{
    if (run->folder[0] && !getenv("KELP_KEEP_RUNS")) {
        (void)nftw(run->folder, remove_entry, 16,
                   FTW_DEPTH | FTW_PHYS); /* left-overs are in TMPDIR */
    }
    free(run->output);
    cJSON_Delete(run->result);
    memset(run, 0, sizeof(*run));
}
