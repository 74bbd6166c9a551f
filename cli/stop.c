#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/checkpoint/checkpoint_request.h"
#include "cli/cluster/job_ask.h"
#include "cli/cluster/run_client.h"
#include "cli/cluster/run_home.h"
#include "cli/runs/run_holder.h"
#include "cli/runs/run_info.h"
#include "cli/verbs.h"

#define ASK_MS 1000

static const struct kelp_option options[] = {
    KELP_VERB_FLAG(
        "now", NULL,
        "do not wait for a checkpoint; a resume recomputes the steps since the last one"),
    KELP_JOB_ASK_OPTIONS("5m", "how long to wait for the run's end"),
};

static const struct kelp_program program = {
    .name = "kelp stop",
    .summary = "pauses a run: it writes a checkpoint, then ends",
    .positional = "[RUN|JOB]",
    .positional_max = 1,
    .examples = "  kelp stop\n"
                "  kelp stop runs/etth1-dlinear-20260131-120000 --now\n"
                "  kelp stop fare --etcd https://10.0.0.5:2379 --certs operator\n",
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

/* ---- a job of a cluster -------------------------------------------------------------------- */

struct pause {
    struct kelp_request request;
    struct kelp_result result;
};

/* kelp train goes on after a pause that it did not ask for. */
static kelp_status refuse_train(struct kelp_job_client *client, uint32_t left_ms,
                                struct kelp_error *reterr)
{
    static struct kelp_run_home home; /* large */

    kelp_status status = kelp_run_home_get(client, left_ms, &home, reterr);
    return status == KELP_ERR_NOT_FOUND
               ? kelp_fail(reterr, KELP_ERR_INVALID,
                           "etcd has no job '%s' that kelp node runs; a run of kelp train is "
                           "stopped on its machine, by kelp stop RUN",
                           kelp_job_client_job(client))
               : status;
}

static bool ask_for_pause(struct kelp_job_client *client, uint32_t left_ms, void *user,
                          struct kelp_job_look *look)
{
    struct pause *pause = user;
    Kelp__V1__StatusReply *reply = NULL;
    uint64_t serial = 0;

    /* Its hosts may have ended already: then the result is all there is. */
    look->error.status = kelp_run_result_get(client, left_ms, NULL, &pause->result, &look->error);
    if (look->error.status == KELP_OK || look->error.status == KELP_ERR_UNREACHABLE) {
        return look->error.status == KELP_OK;
    }
    look->error.status = refuse_train(client, left_ms, &look->error);
    if (look->error.status != KELP_OK) {
        return false;
    }
    look->error.status = kelp_job_client_status(client, left_ms, &reply, &look->error);
    if (look->error.status != KELP_OK) {
        return false;
    }
    enum kelp_request_news news = kelp_request_read(&pause->request, reply);
    (void)snprintf(look->waits, sizeof(look->waits), "%.16s at step %" PRIu64 "%s%.200s",
                   reply->state, reply->word ? reply->word->step : 0,
                   news == KELP_REQUEST_REFUSED ? ": no checkpoint: " : "",
                   news == KELP_REQUEST_REFUSED ? reply->checkpoint->error : "");
    kelp_job_client_status_free(reply);
    if (news != KELP_REQUEST_ASK && news != KELP_REQUEST_REFUSED) {
        return false;
    }
    look->error.status = kelp_job_client_checkpoint(client, true, left_ms, &serial, &look->error);
    if (look->error.status == KELP_OK) {
        kelp_request_made(&pause->request, serial);
    }
    return false;
}

static void tell_pause(const void *user, double seconds)
{
    const struct pause *pause = user;

    (void)seconds;
    (void)printf("job        %s\nstate      %s at step %" PRIu64 "%s%s\n", pause->result.job,
                 pause->result.status, pause->result.step, pause->result.reason[0] ? ": " : "",
                 pause->result.reason);
    if (strcmp(pause->result.status, "paused") == 0) {
        (void)printf("continue   the same kelp node on each host\n");
    }
}

static int late(const struct kelp_job_client *client, const char *why, const void *user)
{
    (void)user;
    return kelp_complain(KELP_EXIT_UNREACHABLE, "job '%s' has not ended in time: %s",
                         kelp_job_client_job(client), why);
}

static int stop_in_etcd(const struct kelp_options *given)
{
    static struct pause pause; /* large */

    if (kelp_options_flag(given, "now")) {
        return kelp_complain(
            KELP_EXIT_USAGE,
            "--now is for runs on this machine; send SIGQUIT to each kelp node instead");
    }
    int exit_status =
        kelp_job_ask(given, kelp_verb_typed(given),
                     &(struct kelp_job_ask){
                         .look = ask_for_pause, .tell = tell_pause, .late = late, .user = &pause});
    return exit_status == KELP_EXIT_OK && strcmp(pause.result.status, "failed") == 0
               ? KELP_EXIT_JOB_FAILED
               : exit_status;
}

static bool is_of_cluster(const char *run_path, struct kelp_run_cluster *cluster)
{
    return kelp_run_dir_running(run_path) &&
           kelp_run_cluster_read(run_path, cluster, NULL) == KELP_OK && cluster->node[0] != '\0';
}

static int stop(const struct kelp_options *given)
{
    char run_path[KELP_RUN_PATH_MAX + 1];
    struct kelp_run_cluster cluster;
    struct kelp_run_holder holder;
    struct kelp_error error;

    if (kelp_options_text(given, "etcd")) {
        return stop_in_etcd(given);
    }
    kelp_status status = kelp_run_choose(kelp_verb_typed(given), run_path, &error);
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    if (is_of_cluster(run_path, &cluster)) {
        return kelp_complain(
            KELP_EXIT_USAGE, "run '%s' is on the hosts of a cluster: kelp stop %s --etcd %s%s",
            run_path, cluster.job, cluster.etcd, cluster.certs[0] ? " --certs FOLDER" : "");
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

const struct kelp_verb kelp_verb_stop = {"stop", "pause a run: it writes a checkpoint, then ends",
                                         &program, stop, NULL};
