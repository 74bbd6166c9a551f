/* Logs of several processes as one: times, order, lines that are not complete, the newest ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/runs/run_logs.h"
#include "common/base/files.h"
#include "tests/lib/suite.h"

static char folder[64];
static struct kelp_error error;
static struct kelp_run_logs *logs;

static void setup(void)
{
    char path[128];

    (void)snprintf(folder, sizeof(folder), "/tmp/kelp-run-logs-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/logs", folder);
    ck_assert_int_eq(kelp_files_make_folder(path, NULL), KELP_OK);
    logs = NULL;
}

static void teardown(void)
{
    kelp_run_logs_close(logs);
    ck_assert_int_eq(kelp_files_remove(folder, NULL), KELP_OK);
}

/* Write a line, or a part of one, behind what the log has. */
static void add(const char *process, const char *text)
{
    char path[256];

    (void)snprintf(path, sizeof(path), "%s/logs/%s.log", folder, process);
    FILE *file = fopen(path, "ae");
    ck_assert_ptr_nonnull(file);
    (void)fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
}

#define AT(second, text) "2026-01-31T12:00:" second ".000Z info  " text "\n"

static void open_logs(const char *const *names, size_t count)
{
    kelp_status status = kelp_run_logs_open(folder, names, count, &logs, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
}

static void expect(uint32_t newest, bool last, const char *expected)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    ck_assert_int_eq(newest > 0 ? kelp_run_logs_print_last(logs, newest, last, out, &error)
                                : kelp_run_logs_print(logs, last, out, &error),
                     KELP_OK);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_str_eq(text, expected);
    free(text);
}

KELP_CASE("run_logs", .setup = setup, .teardown = teardown)

KELP_TEST(times)
{
    static const struct {
        const char *line, *time;
    } cases[] = {{AT("07", "x"), "2026-01-31T12:00:07.000"},
                 {"{\"level\":\"info\",\"ts\":\"2026-01-31T12:00:07.123456Z\",\"msg\":\"x\"}",
                  "2026-01-31T12:00:07.123"},
                 {"{\"level\":\"info\"}", NULL},
                 {"goroutine 1 [running]:", NULL},
                 {"2026-01-31T12:00:07", NULL},
                 {"2026-01-31 12:00:07.000", NULL},
                 {"", NULL}};
    char time[KELP_RUN_LOG_TIME_MAX + 1];

    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        const char *line = cases[i].line;
        ck_assert_int_eq(kelp_run_log_time(line, strlen(line), time), cases[i].time != NULL);
        if (cases[i].time) {
            ck_assert_str_eq(time, cases[i].time);
        }
    }
}

/* By time; what says no time goes with the line before it; etcd and train only by name. */
KELP_TEST(merged)
{
    add("worker-0", AT("01", "a") AT("04", "d"));
    add("shard-0", AT("02", "b") "a trace\n" AT("03", "c"));
    add("etcd", "{\"ts\":\"2026-01-31T12:00:02.500Z\"}\n");
    add("train", "kelp: run\n");
    open_logs(NULL, 0);
    expect(0, true, AT("01", "a") AT("02", "b") "a trace\n" AT("03", "c") AT("04", "d"));
    kelp_run_logs_close(logs);
    open_logs((const char *const[]){"etcd", "shard"}, 2);
    expect(0, true, AT("02", "b") "a trace\n{\"ts\":\"2026-01-31T12:00:02.500Z\"}\n" AT("03", "c"));
}

/* A line is printed once it is complete, or at the end; a process that is new is taken in. */
KELP_TEST(followed)
{
    add("worker-0", AT("01", "a") "2026-01-31T12:00:02.000Z info  b");
    open_logs(NULL, 0);
    expect(0, false, AT("01", "a"));
    expect(0, false, "");
    add("worker-0", "c\n");
    add("worker-1", AT("02", "d") "cut");
    expect(0, false, AT("02", "bc") AT("02", "d"));
    expect(0, true, "cut\n");
}

/* The newest lines alone, however many there are. */
KELP_TEST(newest)
{
    add("worker-0", AT("01", "a") AT("03", "c"));
    add("worker-1", AT("02", "b"));
    open_logs(NULL, 0);
    expect(2, true, AT("02", "b") AT("03", "c"));
    kelp_run_logs_close(logs);
    open_logs(NULL, 0);
    expect(9, true, AT("01", "a") AT("02", "b") AT("03", "c"));
}

/* A line longer than any comes in pieces, and nothing of it is lost. */
KELP_TEST(long_line)
{
    size_t length = 3 * KELP_RUN_LOG_LINE_MAX / 2;
    char *line = malloc(length + 2);
    char *text = NULL;
    size_t bytes = 0;

    memset(line, 'x', length);
    memcpy(line + length, "\n", 2);
    add("worker-0", line);
    free(line);
    open_logs(NULL, 0);
    FILE *out = open_memstream(&text, &bytes);
    ck_assert_int_eq(kelp_run_logs_print(logs, true, out, &error), KELP_OK);
    ck_assert_int_eq(fclose(out), 0);
    size_t count = 0;
    for (size_t i = 0; i < bytes; i++) {
        count += text[i] == 'x';
    }
    ck_assert_uint_eq(count, length);
    free(text);
}

KELP_TEST(unknown_process)
{
    add("worker-0", "");
    add("shard-0", "");
    ck_assert_int_eq(
        kelp_run_logs_open(folder, (const char *const[]){"worker-1"}, 1, &logs, &error),
        KELP_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, "there are: shard-0, worker-0"));
    ck_assert_int_eq(kelp_run_logs_open("/nowhere", NULL, 0, &logs, &error), KELP_ERR_NOT_FOUND);
}
