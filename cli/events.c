#include <stdio.h>

#include "cli/cluster/run_client.h"
#include "cli/runs/run_events.h"
#include "cli/runs/run_watch.h"
#include "cli/verbs.h"

static const struct kelp_option options[] = {
    {.name = "follow",
     .letter = 'f',
     .type = KELP_OPTION_FLAG,
     .help = "keep printing new events until the run ends"},
    KELP_VERB_NUMBER("lines", INTEGER, 0, KELP_RUN_EVENTS_LAST, "0", NULL,
                     "begin with the newest N events; 0: with the first event"),
    KELP_VERB_OUTPUT("lines for people, or one JSON object in each line"),
};

static const struct kelp_program program = {
    .name = "kelp events",
    .summary = "tells what changed in a run, why, and how long it took",
    .positional = "[RUN]",
    .positional_max = 1,
    .examples = "  kelp events\n"
                "  kelp events -f --lines 10\n"
                "  kelp events runs/etth1-dlinear-20260131-120000 -o json\n",
    KELP_VERB_OPTIONS(options),
};

/* Whether the run goes on is asked before its events are read: the last ones are printed too. */
static kelp_status follow(struct kelp_run_events *events, const char *run_path,
                          struct kelp_error *reterr)
{
    struct kelp_run_watch watch;
    kelp_status status = KELP_OK;

    kelp_run_watch_open(&watch, run_path, true);
    for (bool running = true; status == KELP_OK && running;) {
        running = kelp_run_dir_running(run_path);
        status = kelp_run_events_more(events, stdout, reterr);
        if (status == KELP_OK && running) {
            kelp_run_watch_wait(&watch, KELP_RUN_WATCH_MS);
        }
    }
    kelp_run_watch_close(&watch);
    return status;
}

static int show(const struct kelp_options *given)
{
    char run_path[KELP_RUN_PATH_MAX + 1];
    struct kelp_run_events events;
    struct kelp_error error;
    uint32_t lines = (uint32_t)kelp_options_integer(given, "lines");

    kelp_status status = kelp_run_choose(kelp_verb_typed(given), run_path, &error);
    if (status == KELP_OK) {
        status = kelp_run_events_open(&events, run_path, kelp_verb_json(given), &error);
    }
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    status = kelp_run_events_print(&events, lines, stdout, &error);
    if (status == KELP_OK && kelp_options_flag(given, "follow")) {
        status = follow(&events, run_path, &error);
    }
    return status == KELP_OK ? KELP_EXIT_OK : kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
}

const struct kelp_verb kelp_verb_events = {
    "events", "tell what changed in a run, why, and how long it took", &program, show, NULL};
