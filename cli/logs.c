#include <stdio.h>
#include <stdlib.h>

#include "cli/run/run_client.h"
#include "cli/runs/run_logs.h"
#include "cli/runs/run_watch.h"
#include "cli/verbs.h"

#define PROCESSES_MAX 64

static const struct kelp_option options[] = {
    {.name = "follow",
     .letter = 'f',
     .type = KELP_OPTION_FLAG,
     .help = "go on with new lines until the run ends"},
    KELP_VERB_NUMBER("lines", INTEGER, 0, KELP_RUN_LOGS_LAST_MAX, "0", NULL,
                     "begin with the newest N lines; 0: with the first one"),
    KELP_VERB_RUN(NULL, "folder of the run; else runs/latest"),
};

static const struct kelp_program program = {
    .name = "kelp logs",
    .summary = "prints the logs of a run's processes, their lines by time",
    .positional = "[PROCESS]...",
    .positional_max = PROCESSES_MAX,
    .examples = "  kelp logs\n"
                "  kelp logs -f worker-0\n"
                "  kelp logs --run runs/etth1-dlinear-20260131-120000 coordinator shard-0\n",
    KELP_VERB_OPTIONS(options),
};

static kelp_status print_first(struct kelp_run_logs *logs, uint32_t lines, bool last,
                               struct kelp_error *reterr)
{
    return lines > 0 ? kelp_run_logs_print_last(logs, lines, last, stdout, reterr)
                     : kelp_run_logs_print(logs, last, stdout, reterr);
}

/* Whether the run goes on is asked before the logs are read: what it wrote last is printed too. */
static kelp_status follow(struct kelp_run_logs *logs, const char *run_path, uint32_t lines,
                          struct kelp_error *reterr)
{
    struct kelp_run_watch watch;

    kelp_run_watch_open(&watch, run_path, true);
    bool running = kelp_run_dir_running(run_path);
    kelp_status status = print_first(logs, lines, !running, reterr);
    while (status == KELP_OK && running) {
        kelp_run_watch_wait(&watch, KELP_RUN_WATCH_MS);
        running = kelp_run_dir_running(run_path);
        status = kelp_run_logs_print(logs, !running, stdout, reterr);
    }
    kelp_run_watch_close(&watch);
    return status;
}

static int show(const struct kelp_options *given)
{
    const char *names[PROCESSES_MAX];
    size_t count = kelp_options_positional_count(given);
    uint32_t lines = (uint32_t)kelp_options_integer(given, "lines");
    char run_path[KELP_RUN_PATH_MAX + 1];
    struct kelp_run_logs *logs = NULL;
    struct kelp_error error;

    for (size_t i = 0; i < count; i++) {
        names[i] = kelp_options_positional(given, i);
    }
    kelp_status status = kelp_run_choose(kelp_options_text(given, "run"), run_path, &error);
    if (status == KELP_OK) {
        status = kelp_run_logs_open(run_path, names, count, &logs, &error);
    }
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    status = kelp_options_flag(given, "follow") ? follow(logs, run_path, lines, &error)
                                                : print_first(logs, lines, true, &error);
    kelp_run_logs_close(logs);
    return status == KELP_OK ? KELP_EXIT_OK : kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
}

const struct kelp_verb kelp_verb_logs = {
    "logs", "print the logs of a run's processes by time, also while it runs", &program, show,
    NULL};
