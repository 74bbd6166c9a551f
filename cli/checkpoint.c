#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/checkpoint/checkpoint_request.h"
#include "cli/checkpoint/checkpoint_verbs.h"
#include "cli/run/run_client.h"
#include "cli/verbs.h"
#include "common/base/clock.h"

#define POLL_US 50000 /* between questions */

#define VERBS_MAX 16

static const struct kelp_option options[] = {
    KELP_VERB_OUTPUT("a line for people, or one JSON object"),
    KELP_VERB_NUMBER("timeout", DURATION, 100, 86400000, "60s", NULL,
                     "how long to wait for the checkpoint"),
    KELP_VERB_ETCD(
        NULL, "find the job in this etcd; the argument is then a job's name, not a run's folder"),
    KELP_VERB_CERTS(NULL, "with --etcd: an operator's ca.pem, cert.pem and key.pem"),
};

static const struct kelp_program program = {
    .name = "kelp checkpoint",
    .summary = "asks a running job for a checkpoint now and waits for it",
    .positional = "[RUN|JOB]",
    .positional_max = 1,
    .examples = "  kelp checkpoint\n"
                "  kelp checkpoint ls|show|verify|export|import|rm --help\n"
                "  kelp checkpoint runs/etth1-dlinear-20260131-120000 --timeout 10s\n"
                "  kelp checkpoint --etcd https://10.0.0.1:2379 --certs operator etth1-dlinear\n",
    KELP_VERB_OPTIONS(options),
};

static int print_commit(const Kelp__V1__CheckpointStatus *checkpoint, bool json)
{
    if (json) {
        (void)printf("{\"version\":%" PRIu64 ",\"step\":%" PRIu64 ",\"generation\":%" PRIu64 "}\n",
                     checkpoint->version, checkpoint->step, checkpoint->generation);
    } else {
        (void)printf("checkpoint at step %" PRIu64 ": version %" PRIu64 ", generation %" PRIu64
                     "\n",
                     checkpoint->step, checkpoint->version, checkpoint->generation);
    }
    return KELP_EXIT_OK;
}

/* One question; true when it settles the matter, *ret_exit_status then says how. */
static bool settle(struct kelp_job_client *client, struct kelp_request *request, uint32_t left_ms,
                   bool json, int *ret_exit_status, struct kelp_error *error)
{
    Kelp__V1__StatusReply *reply = NULL;
    uint64_t serial = 0;
    bool settled = true;

    error->status = kelp_job_client_status(client, left_ms, &reply, error);
    if (error->status != KELP_OK) {
        return false;
    }
    enum kelp_request_news news = kelp_request_read(request, reply);
    if (news == KELP_REQUEST_DONE) {
        *ret_exit_status = print_commit(reply->checkpoint, json);
    } else if (news == KELP_REQUEST_REFUSED) {
        *ret_exit_status =
            kelp_complain(KELP_EXIT_FAILED, "no checkpoint: %s", reply->checkpoint->error);
    } else if (strcmp(reply->state, "failed") == 0) {
        *ret_exit_status = kelp_complain(KELP_EXIT_JOB_FAILED, "job '%s' has failed: %s",
                                         reply->job, reply->reason);
    } else {
        settled = false;
    }
    kelp_job_client_status_free(reply);
    if (news == KELP_REQUEST_ASK && !settled) {
        error->status = kelp_job_client_checkpoint(client, false, left_ms, &serial, error);
        if (error->status == KELP_OK) {
            kelp_request_made(request, serial);
        }
    }
    return settled;
}

/* The coordinator may be restarting: it is asked until the deadline. */
static int request(struct kelp_job_client *client, uint32_t timeout_ms, bool json)
{
    struct kelp_request pending = {.serial = 0};
    struct kelp_error error = {.status = KELP_OK};
    uint64_t end_ms = kelp_clock_ms() + timeout_ms;
    int exit_status = KELP_EXIT_OK;

    for (;;) {
        uint64_t now = kelp_clock_ms();
        if (now >= end_ms) {
            return kelp_complain(KELP_EXIT_UNREACHABLE, "no checkpoint of job '%s' in time: %s",
                                 kelp_job_client_job(client),
                                 error.status == KELP_OK ? "it is being written" : error.text);
        }
        if (settle(client, &pending, (uint32_t)(end_ms - now), json, &exit_status, &error)) {
            return exit_status;
        }
        if (error.status == KELP_ERR_MISMATCH || error.status == KELP_ERR_UNSUPPORTED) {
            return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
        }
        (void)usleep(POLL_US);
    }
}

/* `kelp checkpoint lss`: the verb that is near, or NULL. */
static const char *verb_meant(const char *typed)
{
    const char *names[VERBS_MAX + 1] = {NULL};

    for (size_t i = 0; kelp_checkpoint_verbs[i] && i < VERBS_MAX; i++) {
        names[i] = kelp_checkpoint_verbs[i]->name;
    }
    return kelp_value_nearest(typed, names);
}

static int ask_for_one(const struct kelp_options *given)
{
    struct kelp_job_client *client = NULL;
    struct kelp_error error;

    const char *typed = kelp_verb_typed(given);
    const char *meant = typed && !kelp_options_given(given, "etcd") && !kelp_run_dir_is_run(typed)
                            ? verb_meant(typed)
                            : NULL;
    if (meant) {
        return kelp_complain(KELP_EXIT_USAGE,
                             "'%s' is neither a run nor a verb of kelp checkpoint; did you mean "
                             "'%s'?",
                             typed, meant);
    }
    if (kelp_run_client_choose(typed, kelp_options_text(given, "etcd"),
                               kelp_options_text(given, "certs"), &client, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    int exit_status = request(client, (uint32_t)kelp_options_duration_ms(given, "timeout"),
                              kelp_verb_json(given));
    kelp_job_client_close(client);
    return exit_status;
}

const struct kelp_verb kelp_verb_checkpoint = {
    "checkpoint", "ask for a checkpoint; ls, show, verify, export, import, rm", &program,
    ask_for_one, kelp_checkpoint_verbs};
