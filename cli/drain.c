#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/run/run_client.h"
#include "cli/verbs.h"
#include "common/base/clock.h"

#define POLL_US  50000 /* between questions */
#define LEFT_MAX 96    /* bytes of what a process still has, for people */

static const struct kelp_option options[] = {
    KELP_VERB_FLAG("no-wait", NULL,
                   "return once the leader has it on record; kelp status shows how far it is"),
    KELP_VERB_NUMBER("timeout", DURATION, 100, 86400000, "10m", NULL,
                     "how long to wait; it is drained all the same when that is over"),
    KELP_VERB_ETCD(
        NULL, "find the job in this etcd; the argument is then a job's name, not a run's folder"),
    KELP_VERB_CERTS(NULL, "with --etcd: an operator's ca.pem, cert.pem and key.pem"),
};

static const struct kelp_program program = {
    .name = "kelp drain",
    .summary = "lets a shard or a worker end without a loss: its work goes to others first",
    .positional = "NAME [RUN|JOB]",
    .positional_min = 1,
    .positional_max = 2,
    .examples = "  kelp drain shard-1\n"
                "  kelp drain worker-0 runs/etth1-dlinear-20260131-120000 --no-wait\n"
                "  kelp drain shard-3 etth1 --etcd https://10.0.0.1:2379 --certs operator\n",
    KELP_VERB_OPTIONS(options),
};

/* What is to go, as the newest answer has it. */
struct drain {
    const char *id;
    bool no_wait;
    uint64_t incarnation; /* 0: not known yet */
    bool asked;
    bool recorded;
    char left[LEFT_MAX + 1];
};

/* The incarnation of that name, and what it has; 0: there is none. */
static uint64_t find_process(const Kelp__V1__StatusReply *status, const char *id,
                             char left[LEFT_MAX + 1])
{
    for (size_t i = 0; i < status->n_shards; i++) {
        const Kelp__V1__ShardInfo *shard = status->shards[i];
        if (strcmp(shard->shard, id) == 0) {
            (void)snprintf(left, LEFT_MAX + 1, "%u partitions and %u backups are still there",
                           shard->partitions, shard->backups + shard->joining);
            return shard->incarnation;
        }
    }
    for (size_t i = 0; i < status->n_workers; i++) {
        if (strcmp(status->workers[i]->id, id) == 0) {
            (void)snprintf(left, LEFT_MAX + 1, "it still computes");
            return status->workers[i]->incarnation;
        }
    }
    return 0;
}

static bool on_record(const struct drain *drain, const Kelp__V1__Targets *targets)
{
    for (size_t i = 0; targets && i < targets->n_drains; i++) {
        if (targets->drains[i]->incarnation == drain->incarnation &&
            strcmp(targets->drains[i]->id, drain->id) == 0) {
            return true;
        }
    }
    return false;
}

/* True: there is nothing to wait for any more. */
static bool take(struct drain *drain, const Kelp__V1__StatusReply *status)
{
    uint64_t there = find_process(status, drain->id, drain->left);

    if (drain->incarnation == 0) {
        drain->incarnation = there;
    }
    drain->recorded = on_record(drain, status->targets);
    return (drain->asked && there != drain->incarnation) || (drain->recorded && drain->no_wait);
}

/* The job's end, of which nobody is drained. */
static bool is_over(const Kelp__V1__StatusReply *status, struct kelp_error *error)
{
    static const char *const ends[] = {"done", "failed", "paused"};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(ends); i++) {
        if (strcmp(status->state, ends[i]) == 0) {
            (void)kelp_fail(error, KELP_ERR_INVALID, "the job is %s: nothing is to be drained",
                            ends[i]);
            return true;
        }
    }
    return false;
}

/* One question, and the request unless it is on record. True: it is over. */
static bool settle(struct kelp_job_client *client, struct drain *drain, uint32_t left_ms,
                   struct kelp_error *error)
{
    Kelp__V1__StatusReply *reply = NULL;

    error->status = kelp_job_client_status(client, left_ms, &reply, error);
    if (error->status != KELP_OK) {
        drain->asked = drain->asked && drain->recorded; /* perhaps it was lost with the leader */
        return false;
    }
    bool done = take(drain, reply);
    bool over = !done && is_over(reply, error);
    kelp_job_client_status_free(reply);
    if (!done && !over && !drain->asked && !drain->recorded) {
        error->status = kelp_job_client_drain(client, drain->id, left_ms, error);
    }
    drain->asked = drain->asked || drain->recorded || (!done && error->status == KELP_OK);
    return done;
}

static int give_up(const struct kelp_job_client *client, const struct drain *drain,
                   const struct kelp_error *error)
{
    if (drain->recorded) {
        return kelp_complain(KELP_EXIT_FAILED, "%s is not drained yet, and goes on: %s", drain->id,
                             error->status == KELP_OK ? drain->left : error->text);
    }
    return kelp_complain(KELP_EXIT_UNREACHABLE, "job '%s' has not taken it in time: %s",
                         kelp_job_client_job(client),
                         error->status == KELP_OK ? "it is being written" : error->text);
}

static int request(struct kelp_job_client *client, struct drain *drain, uint32_t timeout_ms)
{
    struct kelp_error error = {.status = KELP_OK};
    uint64_t begin_ms = kelp_clock_ms();
    uint64_t end_ms = begin_ms + timeout_ms;

    for (uint64_t now = begin_ms; now < end_ms; now = kelp_clock_ms()) {
        if (settle(client, drain, (uint32_t)(end_ms - now), &error)) {
            (void)printf("%-10s %s\n", drain->id, drain->no_wait ? "draining" : "drained");
            return KELP_EXIT_OK;
        }
        if (error.status == KELP_ERR_MISMATCH || error.status == KELP_ERR_UNSUPPORTED ||
            error.status == KELP_ERR_INVALID || error.status == KELP_ERR_LIMIT) {
            return kelp_complain(drain->recorded ? KELP_EXIT_FAILED : KELP_EXIT_USAGE, "%s",
                                 error.text);
        }
        (void)usleep(POLL_US);
    }
    return give_up(client, drain, &error);
}

static int drain(const struct kelp_options *given)
{
    struct drain wanted = {.id = kelp_options_positional(given, 0),
                           .no_wait = kelp_options_flag(given, "no-wait")};
    struct kelp_job_client *client = NULL;
    struct kelp_error error;
    const char *job =
        kelp_options_positional_count(given) > 1 ? kelp_options_positional(given, 1) : NULL;

    if (kelp_run_client_choose(job, kelp_options_text(given, "etcd"),
                               kelp_options_text(given, "certs"), &client, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    int exit_status =
        request(client, &wanted, (uint32_t)kelp_options_duration_ms(given, "timeout"));
    kelp_job_client_close(client);
    return exit_status;
}

const struct kelp_verb kelp_verb_drain = {"drain", "let a shard or worker end without a loss",
                                          &program, drain, NULL};
