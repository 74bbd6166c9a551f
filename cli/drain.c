#include <stdio.h>
#include <string.h>

#include "cli/cluster/job_ask.h"
#include "cli/verbs.h"

static const struct kelp_option options[] = {
    KELP_VERB_OUTPUT("progress and a final line, or one JSON object at the end"),
    KELP_VERB_FLAG(
        "no-wait", NULL,
        "return once the leader has recorded the request; kelp status shows the progress"),
    KELP_JOB_ASK_OPTIONS("10m", "how long to wait; draining goes on after that"),
};

static const struct kelp_program program = {
    .name = "kelp drain",
    .summary = "ends a shard or worker once others have taken over its work",
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
    bool json;
    uint64_t incarnation; /* 0: not known yet */
    bool asked;
    bool recorded;
};

/* The incarnation of that name, and what it waits for; 0: there is none. */
static uint64_t find_process(const Kelp__V1__StatusReply *status, const char *id,
                             struct kelp_job_look *look)
{
    for (size_t i = 0; i < status->n_shards; i++) {
        const Kelp__V1__ShardInfo *shard = status->shards[i];
        if (strcmp(shard->shard, id) == 0) {
            (void)snprintf(look->waits, sizeof(look->waits), "%s: %s", id, shard->waits);
            return shard->incarnation;
        }
    }
    for (size_t i = 0; i < status->n_workers; i++) {
        if (strcmp(status->workers[i]->id, id) == 0) {
            (void)snprintf(look->waits, sizeof(look->waits), "%s: finishes what it computes", id);
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
static bool take(struct drain *drain, const Kelp__V1__StatusReply *status,
                 struct kelp_job_look *look)
{
    uint64_t there = find_process(status, drain->id, look);

    if (drain->incarnation == 0) {
        drain->incarnation = there;
    }
    drain->recorded = on_record(drain, status->targets);
    if (!drain->recorded) {
        look->waits[0] = '\0';
    }
    return (drain->asked && there != drain->incarnation) || (drain->recorded && drain->no_wait);
}

/* The job's end, of which nobody is drained. */
static void refuse_end(const struct drain *drain, const Kelp__V1__StatusReply *status,
                       struct kelp_job_look *look)
{
    static const char *const ends[] = {"done", "failed", "paused"};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(ends); i++) {
        if (strcmp(status->state, ends[i]) == 0) {
            look->exit_status = drain->recorded ? KELP_EXIT_FAILED : KELP_EXIT_USAGE;
            (void)kelp_fail(&look->error, KELP_ERR_INVALID,
                            "the job is %s: there is nothing to drain", ends[i]);
        }
    }
}

static bool look_and_ask(struct kelp_job_client *client, uint32_t left_ms, void *user,
                         struct kelp_job_look *look)
{
    struct drain *drain = user;
    Kelp__V1__StatusReply *reply = NULL;

    look->error.status = kelp_job_client_status(client, left_ms, &reply, &look->error);
    if (look->error.status != KELP_OK) {
        drain->asked = drain->asked && drain->recorded; /* perhaps it was lost with the leader */
        return false;
    }
    bool done = take(drain, reply, look);
    if (!done) {
        refuse_end(drain, reply, look);
    }
    kelp_job_client_status_free(reply);
    if (!done && look->error.status == KELP_OK && !drain->asked && !drain->recorded) {
        look->error.status = kelp_job_client_drain(client, drain->id, left_ms, &look->error);
    }
    drain->asked = drain->asked || drain->recorded || (!done && look->error.status == KELP_OK);
    return done;
}

static void tell(const void *user, double seconds)
{
    const struct drain *drain = user;
    char took[32];

    kelp_meter_duration(seconds, took, sizeof(took));
    if (drain->json) {
        (void)printf("{\"id\":\"%s\",\"state\":\"%s\",\"seconds\":%.3f}\n", drain->id,
                     drain->no_wait ? "draining" : "drained", seconds);
    } else if (drain->no_wait) {
        (void)printf("%-10s draining\n", drain->id);
    } else {
        (void)printf("%-10s drained in %s\n", drain->id, took);
    }
}

static int late(const struct kelp_job_client *client, const char *why, const void *user)
{
    const struct drain *drain = user;

    if (drain->recorded) {
        return kelp_complain(KELP_EXIT_FAILED, "%s is not drained yet, but draining continues: %s",
                             drain->id, why);
    }
    return kelp_complain(KELP_EXIT_UNREACHABLE, "job '%s' did not accept the drain in time: %s",
                         kelp_job_client_job(client), why);
}

static int drain(const struct kelp_options *given)
{
    struct drain wanted = {.id = kelp_options_positional(given, 0),
                           .no_wait = kelp_options_flag(given, "no-wait"),
                           .json = kelp_verb_json(given)};
    const char *job =
        kelp_options_positional_count(given) > 1 ? kelp_options_positional(given, 1) : NULL;

    return kelp_job_ask(given, job,
                        &(struct kelp_job_ask){.look = look_and_ask,
                                               .tell = tell,
                                               .late = late,
                                               .user = &wanted,
                                               .quiet = wanted.json});
}

const struct kelp_verb kelp_verb_drain = {
    "drain", "end a shard or worker once others have its work", &program, drain, NULL};
