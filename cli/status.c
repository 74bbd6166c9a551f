#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cluster/job_find.h"
#include "cli/cluster/run_client.h"
#include "cli/cluster/run_home.h"
#include "cli/cluster/status_view.h"
#include "cli/runs/live_view.h"
#include "cli/runs/run_watch.h"
#include "cli/verbs.h"
#include "common/base/clock.h"
#include "common/base/json.h"

#define LEAST_MS 100

static const struct kelp_option options[] = {
    KELP_VERB_OUTPUT("a table for people, or one JSON object"),
    KELP_VERB_NUMBER("timeout", DURATION, 100, 600000, "5s", NULL,
                     "how long to try to reach the run's coordinator"),
    KELP_VERB_ETCD(NULL,
                   "find the job in this etcd; the argument is then a job's name, not a run's "
                   "folder"),
    KELP_VERB_CERTS(NULL, "with --etcd: an operator's or reader's ca.pem, cert.pem and key.pem"),
    KELP_VERB_FLAG("watch", NULL, "keep showing it, with rate and time left, until the run ends"),
};

static const struct kelp_program program = {
    .name = "kelp status",
    .summary = "shows a run: its cluster while it runs, its result afterwards",
    .positional = "[RUN|JOB]",
    .positional_max = 1,
    .examples = "  kelp status\n"
                "  kelp status --watch\n"
                "  kelp status fare --etcd https://10.0.0.5:2379 --certs reader\n"
                "  kelp status runs/etth1-dlinear-20260131-120000 -o json\n",
    KELP_VERB_OPTIONS(options),
};

/* What is tried is tried for a moment at least, so that there is an error to show. */
static uint32_t left(uint64_t end_ms)
{
    const uint64_t now_ms = kelp_clock_ms();

    return now_ms + LEAST_MS < end_ms ? (uint32_t)(end_ms - now_ms) : LEAST_MS;
}

/* The coordinator may be restarting: try until the deadline. */
static kelp_status ask(struct kelp_job_client *client, uint64_t end_ms,
                       Kelp__V1__StatusReply **ret_reply, struct kelp_error *reterr)
{
    kelp_status status;

    do {
        status = kelp_job_client_status(client, left(end_ms), ret_reply, reterr);
        if (status == KELP_OK || status == KELP_ERR_MISMATCH || status == KELP_ERR_TIMEOUT) {
            return status;
        }
        (void)usleep(100000);
    } while (kelp_clock_ms() < end_ms);
    return status;
}

static int show_live(const char *run_path, uint32_t timeout_ms, bool json)
{
    struct kelp_job_client *client = NULL;
    Kelp__V1__StatusReply *reply = NULL;
    struct kelp_error error;

    kelp_status status = kelp_run_client_open(run_path, &client, &error);
    if (status == KELP_OK) {
        status = ask(client, kelp_clock_ms() + timeout_ms, &reply, &error);
    }
    kelp_job_client_close(client);
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_UNREACHABLE, "the run in '%s' cannot be reached: %s",
                             run_path, error.text);
    }
    (json ? kelp_status_json : kelp_status_table)(reply, run_path, stdout);
    kelp_job_client_status_free(reply);
    return KELP_EXIT_OK;
}

/* A job of a cluster, which leads or has come to its end. */
static int show_job(struct kelp_job_client *client, uint32_t timeout_ms, bool json)
{
    static struct kelp_result result;            /* large */
    struct kelp_run_home place = {.folder = ""}; /* daemons that are started by hand have none */
    char where[KELP_RUN_HOME_TEXT_MAX + 1];
    Kelp__V1__StatusReply *reply = NULL;
    struct kelp_error error;
    char *text = NULL;
    const uint64_t end_ms = kelp_clock_ms() + timeout_ms;

    (void)!kelp_run_home_get(client, left(end_ms), &place, NULL);
    kelp_run_home_text(&place, where);
    if (kelp_run_result_get(client, left(end_ms), &text, &result, NULL) == KELP_OK) {
        if (json) {
            (void)fputs(text, stdout);
        } else {
            kelp_result_summary(&result, where, stdout);
        }
        free(text);
        return KELP_EXIT_OK;
    }
    if (kelp_job_find(client, left(end_ms), &error) != KELP_OK) {
        return kelp_complain(error.status == KELP_ERR_NOT_FOUND ? KELP_EXIT_USAGE
                                                                : KELP_EXIT_UNREACHABLE,
                             "%s", error.text);
    }
    if (ask(client, end_ms, &reply, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_UNREACHABLE, "job '%s' cannot be reached: %s",
                             kelp_job_client_job(client), error.text);
    }
    (json ? kelp_status_json : kelp_status_table)(reply, where, stdout);
    kelp_job_client_status_free(reply);
    return KELP_EXIT_OK;
}

static int show_in_etcd(const struct kelp_options *given)
{
    struct kelp_job_client *client = NULL;
    struct kelp_error error;

    if (kelp_options_flag(given, "watch")) {
        return kelp_complain(
            KELP_EXIT_USAGE,
            "--watch is for runs in a folder; for a job in etcd, kelp wait shows the progress");
    }
    if (kelp_run_client_choose(kelp_verb_typed(given), kelp_options_text(given, "etcd"),
                               kelp_options_text(given, "certs"), &client, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    int exit_status = show_job(client, (uint32_t)kelp_options_duration_ms(given, "timeout"),
                               kelp_verb_json(given));
    kelp_job_client_close(client);
    return exit_status;
}

static void print_continue(const char *run_path)
{
    if (!kelp_run_is_inference(run_path)) {
        (void)printf("continue   kelp train --resume --run %s\n", run_path);
    }
}

static int show_result(const char *run_path, bool json, const struct kelp_result *result)
{
    struct kelp_error error;
    char *text = NULL;

    if (json) {
        kelp_status status = kelp_run_dir_read(run_path, "result.json", &text, &error);
        return kelp_verb_print(status, text, &error);
    }
    kelp_result_summary(result, run_path, stdout);
    if (strcmp(result->status, "stopped") == 0 || strcmp(result->status, "paused") == 0) {
        print_continue(run_path);
    }
    return KELP_EXIT_OK;
}

static int show_unfinished(const char *run_path, bool json)
{
    if (json) {
        (void)printf("{\"status\":\"not running\",\"run\":");
        kelp_json_print_string(stdout, run_path);
        (void)printf("}\n");
    } else {
        (void)printf("run        %s\nstate      not running, and not finished\n", run_path);
        print_continue(run_path);
    }
    return KELP_EXIT_OK;
}

/* Until the run ends; what it came to is shown afterwards. */
static int watch(const char *run_path, uint32_t timeout_ms, bool json)
{
    struct kelp_live_view view;
    struct kelp_run_watch end;
    struct kelp_error error;

    kelp_status status = kelp_live_view_open(run_path, json, &view, &error);
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    kelp_run_watch_open(&end, run_path, false);
    while (kelp_run_dir_running(run_path) && kelp_live_view_show(&view, timeout_ms)) {
        kelp_run_watch_wait(&end, KELP_RUN_WATCH_MS);
    }
    kelp_run_watch_close(&end);
    kelp_live_view_close(&view);
    return KELP_EXIT_OK;
}

static int show_ended(const char *run_path, bool json)
{
    static struct kelp_result result; /* large */
    struct kelp_error error;

    kelp_status status = kelp_run_result_read(run_path, &result, &error);
    if (status == KELP_ERR_NOT_FOUND) {
        return show_unfinished(run_path, json);
    }
    return status == KELP_OK ? show_result(run_path, json, &result)
                             : kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
}

static int show(const struct kelp_options *given)
{
    bool json = kelp_verb_json(given);
    uint32_t timeout_ms = (uint32_t)kelp_options_duration_ms(given, "timeout");
    struct kelp_error error;
    char run_path[KELP_RUN_PATH_MAX + 1];

    if (kelp_options_text(given, "etcd")) {
        return show_in_etcd(given);
    }
    kelp_status status = kelp_run_choose(kelp_verb_typed(given), run_path, &error);
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    if (kelp_run_dir_running(run_path) && !kelp_options_flag(given, "watch")) {
        return show_live(run_path, timeout_ms, json);
    }
    int exit_status =
        kelp_run_dir_running(run_path) ? watch(run_path, timeout_ms, json) : KELP_EXIT_OK;
    return exit_status == KELP_EXIT_OK ? show_ended(run_path, json) : exit_status;
}

const struct kelp_verb kelp_verb_status = {
    "status", "show a run: live while it runs, its result afterwards", &program, show, NULL};
