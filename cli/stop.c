#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

#include "cli/run/run_client.h"
#include "cli/runs/run_holder.h"
#include "cli/runs/run_info.h"
#include "cli/verbs.h"

#define ASK_MS 1000

static const struct kelp_option options[] = {
    KELP_VERB_FLAG("now", NULL,
                   "do not wait for a checkpoint: what is newer than the newest one "
                   "is computed again later"),
    KELP_VERB_NUMBER("timeout", DURATION, 100, 86400000, "5m", NULL,
                     "how long to wait for the run's end"),
};

static const struct kelp_program program = {
    .name = "kelp stop",
    .summary = "ends a run that goes on: it writes a checkpoint and pauses",
    .positional = "[RUN]",
    .positional_max = 1,
    .examples = "  kelp stop\n"
                "  kelp stop runs/etth1-dlinear-20260131-120000 --now\n",
    KELP_VERB_OPTIONS(options),
};

static int exit_status_of(enum kelp_run_state state)
{
    switch (state) {
    case KELP_RUN_STATE_FAILED:
        return KELP_EXIT_JOB_FAILED;
    case KELP_RUN_STATE_BROKEN:
        return KELP_EXIT_FAILED;
    case KELP_RUN_STATE_RUNNING: /* somebody resumed it meanwhile */
    case KELP_RUN_STATE_DONE:
    case KELP_RUN_STATE_PAUSED:
    case KELP_RUN_STATE_STOPPED:
    case KELP_RUN_STATE_COUNT:
        break;
    }
    return KELP_EXIT_OK;
}

/* What it came to, and how to go on. */
static int tell(const char *run_path)
{
    static struct kelp_run_info info; /* large */
    struct kelp_run_look look = {.now = time(NULL), .timeout_ms = ASK_MS};

    kelp_run_info_read(run_path, &look, &info);
    (void)printf("run        %s\nstate      %s", run_path, kelp_run_state_name(info.state));
    if (!info.inference) {
        (void)printf(" at step %" PRIu64, info.step);
    }
    (void)printf("%s%s\n", info.reason[0] ? ": " : "", info.reason);
    if (info.state != KELP_RUN_STATE_DONE && info.state != KELP_RUN_STATE_RUNNING &&
        !info.inference) {
        (void)printf("continue   kelp train --resume --run %s\n", run_path);
    }
    return exit_status_of(info.state);
}

static int end(const char *run_path, const struct kelp_run_holder *holder,
               const struct kelp_options *given)
{
    bool now = kelp_options_flag(given, "now");
    uint32_t timeout_ms = (uint32_t)kelp_options_duration_ms(given, "timeout");
    struct kelp_error error;

    kelp_status status = kelp_run_holder_signal(holder, now ? SIGQUIT : SIGTERM, &error);
    if (status == KELP_OK) {
        (void)kelp_complain(KELP_EXIT_OK, "%s (process %ld) %s", run_path, (long)holder->pid,
                            now ? "is stopping" : "ends once a checkpoint is written");
        status = kelp_run_holder_wait(holder, timeout_ms, &error);
    }
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_UNREACHABLE, "%s%s", error.text,
                             now ? "" : "; kelp stop --now does not wait for a checkpoint");
    }
    return tell(run_path);
}

static int stop(const struct kelp_options *given)
{
    char run_path[KELP_RUN_PATH_MAX + 1];
    struct kelp_run_holder holder;
    struct kelp_error error;

    kelp_status status = kelp_run_choose(kelp_verb_typed(given), run_path, &error);
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    status = kelp_run_holder_open(run_path, &holder, &error);
    if (status == KELP_ERR_NOT_FOUND) {
        (void)kelp_complain(KELP_EXIT_OK, "%s; there is nothing to stop", error.text);
        return tell(run_path);
    }
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_UNREACHABLE, "%s", error.text);
    }
    int exit_status = end(run_path, &holder, given);
    kelp_run_holder_close(&holder);
    return exit_status;
}

const struct kelp_verb kelp_verb_stop = {
    "stop", "end a run that goes on: it writes a checkpoint and pauses", &program, stop, NULL};
