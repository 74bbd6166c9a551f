#include <stdio.h>
#include <stdlib.h>

#include "cli/cluster/job_find.h"
#include "cli/cluster/run_client.h"
#include "cli/cluster/run_home.h"
#include "cli/runs/run_logs.h"
#include "cli/runs/run_watch.h"
#include "cli/verbs.h"

#define PROCESSES_MAX   64
#define ASK_DEADLINE_MS 5000

static const struct kelp_option options[] = {
    {.name = "follow",
     .letter = 'f',
     .type = KELP_OPTION_FLAG,
     .help = "keep printing new lines until the run ends"},
    KELP_VERB_NUMBER("lines", INTEGER, 0, KELP_RUN_LOGS_LAST_MAX, "0", NULL,
                     "begin with the newest N lines; 0: with the first line"),
    KELP_VERB_RUN(NULL, "folder of the run (default: runs/latest; with --etcd: the path that kelp "
                        "submit printed)"),
    KELP_VERB_ETCD("Cluster", "find the run of --job in this etcd"),
    KELP_VERB_TEXT("job", "NAME", "Cluster", "with --etcd: a job that kelp node runs"),
    KELP_VERB_CERTS("Cluster", "with --etcd: an operator's or reader's ca.pem, cert.pem and "
                               "key.pem"),
};

static const struct kelp_program program = {
    .name = "kelp logs",
    .summary = "prints the logs of a run's processes, merged by time",
    .positional = "[PROCESS]...",
    .positional_max = PROCESSES_MAX,
    .examples = "  kelp logs\n"
                "  kelp logs -f worker-0\n"
                "  kelp logs --run runs/etth1-dlinear-20260131-120000 coordinator shard-0\n"
                "  kelp logs -f --job fare --etcd https://10.0.0.5:2379 --certs reader\n",
    KELP_VERB_OPTIONS(options),
};

static kelp_status print_first(struct kelp_run_logs *logs, uint32_t lines, bool last,
                               struct kelp_error *reterr)
{
    return lines > 0 ? kelp_run_logs_print_last(logs, lines, last, stdout, reterr)
                     : kelp_run_logs_print(logs, last, stdout, reterr);
}

/* The run whose logs are shown. */
struct source {
    char run_path[KELP_RUN_PATH_MAX + 1];
    struct kelp_job_client *client; /* NULL: it is on this machine */
};

/* On hosts of a cluster a run is over when its result is in etcd; an etcd that does not answer says
 * nothing. */
static bool goes_on(const struct source *source)
{
    static struct kelp_result result; /* large */

    return source->client ? kelp_run_result_get(source->client, ASK_DEADLINE_MS, NULL, &result,
                                                NULL) != KELP_OK
                          : kelp_run_dir_running(source->run_path);
}

/* Whether the run goes on is asked before the logs are read: what it wrote last is printed too. */
static kelp_status follow(struct kelp_run_logs *logs, const struct source *source, uint32_t lines,
                          struct kelp_error *reterr)
{
    struct kelp_run_watch watch;

    kelp_run_watch_open(&watch, source->run_path, true);
    bool running = goes_on(source);
    kelp_status status = print_first(logs, lines, !running, reterr);
    while (status == KELP_OK && running) {
        kelp_run_watch_wait(&watch, KELP_RUN_WATCH_MS);
        running = goes_on(source);
        status = kelp_run_logs_print(logs, !running, stdout, reterr);
    }
    kelp_run_watch_close(&watch);
    return status;
}

static kelp_status find(const struct kelp_options *given, struct source *source,
                        struct kelp_error *reterr)
{
    const char *etcd = kelp_options_text(given, "etcd"), *job = kelp_options_text(given, "job");

    if (!etcd && !job) {
        return kelp_run_choose(kelp_options_text(given, "run"), source->run_path, reterr);
    }
    if (!etcd || !job) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "--etcd URL and --job NAME go together");
    }
    kelp_status status =
        kelp_job_client_open(etcd, job, kelp_options_text(given, "certs"), &source->client, reterr);
    if (status == KELP_OK) {
        status = kelp_job_find(source->client, ASK_DEADLINE_MS, reterr);
    }
    return status == KELP_OK ? kelp_run_home_find(source->client, kelp_options_text(given, "run"),
                                                  ASK_DEADLINE_MS, source->run_path, reterr)
                             : status;
}

static int show(const struct kelp_options *given, struct source *source)
{
    const char *names[PROCESSES_MAX];
    size_t count = kelp_options_positional_count(given);
    uint32_t lines = (uint32_t)kelp_options_integer(given, "lines");
    struct kelp_run_logs *logs = NULL;
    struct kelp_error error;

    for (size_t i = 0; i < count; i++) {
        names[i] = kelp_options_positional(given, i);
    }
    kelp_status status = find(given, source, &error);
    if (status == KELP_OK) {
        status = kelp_run_logs_open(source->run_path, names, count, &logs, &error);
    }
    if (status != KELP_OK) {
        return kelp_complain(source->client ? kelp_verb_exit_status(status) : KELP_EXIT_USAGE, "%s",
                             error.text);
    }
    status = kelp_options_flag(given, "follow") ? follow(logs, source, lines, &error)
                                                : print_first(logs, lines, true, &error);
    kelp_run_logs_close(logs);
    return status == KELP_OK ? KELP_EXIT_OK : kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
}

static int logs(const struct kelp_options *given)
{
    struct source source = {.client = NULL};

    int exit_status = show(given, &source);
    kelp_job_client_close(source.client);
    return exit_status;
}

const struct kelp_verb kelp_verb_logs = {
    "logs", "print the logs of a run's processes, merged by time", &program, logs, NULL};
