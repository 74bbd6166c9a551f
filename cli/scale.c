#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/run/run_client.h"
#include "cli/verbs.h"
#include "common/base/clock.h"
#include "common/base/value.h"

#define POLL_US 50000 /* between questions */

static const struct kelp_option options[] = {
    KELP_VERB_NUMBER("workers", RANGE, 1, 1024, NULL, NULL,
                     "N or MIN:MAX workers: MAX are started; with MIN below MAX training rests "
                     "while fewer than MIN are there"),
    KELP_VERB_NUMBER("shards", INTEGER, 1, 1024, NULL, NULL,
                     "N shards: partitions move to new ones, and from those that are too many"),
    KELP_VERB_NUMBER("timeout", DURATION, 100, 86400000, "60s", NULL,
                     "how long to try to reach the run's coordinator"),
    KELP_VERB_ETCD(
        NULL, "find the job in this etcd; the argument is then a job's name, not a run's folder"),
    KELP_VERB_CERTS(NULL, "with --etcd: an operator's ca.pem, cert.pem and key.pem"),
};

static const struct kelp_program program = {
    .name = "kelp scale",
    .summary = "changes the size of a cluster while it trains",
    .positional = "[RUN|JOB]",
    .positional_max = 1,
    .examples = "  kelp scale --workers 4\n"
                "  kelp scale runs/etth1-dlinear-20260131-120000 --workers 2:6 --shards 3\n",
    KELP_VERB_OPTIONS(options),
};

static bool stands(const Kelp__V1__Targets *now, const Kelp__V1__Targets *wanted)
{
    return now && (wanted->shards == 0 || now->shards == wanted->shards) &&
           (wanted->workers_max == 0 ||
            (now->workers_min == wanted->workers_min && now->workers_max == wanted->workers_max));
}

/* One question, and the request where the answer is another. True when the size stands in etcd. */
static bool settle(struct kelp_job_client *client, const Kelp__V1__Targets *wanted,
                   uint32_t left_ms, bool *asked, struct kelp_error *error)
{
    Kelp__V1__StatusReply *reply = NULL;

    error->status = kelp_job_client_status(client, left_ms, &reply, error);
    if (error->status != KELP_OK) {
        *asked = false; /* perhaps it was lost with the leader that took it */
        return false;
    }
    bool done = stands(reply->targets, wanted);
    kelp_job_client_status_free(reply);
    if (!done && !*asked) {
        error->status = kelp_job_client_scale(client, wanted, left_ms, error);
        *asked = error->status == KELP_OK;
    }
    return done;
}

static void tell(const Kelp__V1__Targets *wanted)
{
    if (wanted->workers_max > 0) {
        (void)printf("workers    %u:%u\n", wanted->workers_min, wanted->workers_max);
    }
    if (wanted->shards > 0) {
        (void)printf("shards     %u\n", wanted->shards);
    }
}

static int request(struct kelp_job_client *client, const Kelp__V1__Targets *wanted,
                   uint32_t timeout_ms)
{
    struct kelp_error error = {.status = KELP_OK};
    uint64_t end_ms = kelp_clock_ms() + timeout_ms;
    bool asked = false;

    for (;;) {
        uint64_t now = kelp_clock_ms();
        if (now >= end_ms) {
            return kelp_complain(KELP_EXIT_UNREACHABLE,
                                 "job '%s' has not taken the size in time: %s",
                                 kelp_job_client_job(client),
                                 error.status == KELP_OK ? "it is being written" : error.text);
        }
        if (settle(client, wanted, (uint32_t)(end_ms - now), &asked, &error)) {
            tell(wanted);
            return KELP_EXIT_OK;
        }
        if (error.status == KELP_ERR_MISMATCH || error.status == KELP_ERR_UNSUPPORTED ||
            error.status == KELP_ERR_INVALID) {
            return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
        }
        (void)usleep(POLL_US);
    }
}

static int scale(const struct kelp_options *given)
{
    Kelp__V1__Targets wanted = KELP__V1__TARGETS__INIT;
    struct kelp_job_client *client = NULL;
    struct kelp_error error;

    if (!kelp_options_given(given, "workers") && !kelp_options_given(given, "shards")) {
        return kelp_complain(KELP_EXIT_USAGE,
                             "--workers or --shards is needed: how many are there to be?");
    }
    if (kelp_options_given(given, "workers")) {
        struct kelp_range workers = kelp_options_range(given, "workers");
        wanted.workers_min = workers.min;
        wanted.workers_max = workers.max;
    }
    if (kelp_options_given(given, "shards")) {
        wanted.shards = (uint32_t)kelp_options_integer(given, "shards");
    }
    if (kelp_run_client_choose(kelp_verb_typed(given), kelp_options_text(given, "etcd"),
                               kelp_options_text(given, "certs"), &client, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    int exit_status =
        request(client, &wanted, (uint32_t)kelp_options_duration_ms(given, "timeout"));
    kelp_job_client_close(client);
    return exit_status;
}

const struct kelp_verb kelp_verb_scale = {"scale", "change the size of a cluster while it trains",
                                          &program, scale, NULL};
