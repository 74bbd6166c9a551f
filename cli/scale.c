#include <stdio.h>

#include <stdlib.h>

#include "cli/cluster/job_ask.h"
#include "cli/host/hosts.h"
#include "cli/verbs.h"
#include "common/base/value.h"

static const struct kelp_option options[] = {
    KELP_VERB_NUMBER("workers", RANGE, 1, 1024, NULL, NULL,
                     "N or MIN:MAX workers: MAX are started, and training waits while fewer than "
                     "MIN have joined"),
    KELP_VERB_NUMBER("shards", INTEGER, 1, 1024, NULL, NULL,
                     "N shards: partitions move to added shards, and away from surplus ones"),
    KELP_JOB_ASK_OPTIONS("60s", "how long to try to reach the run's coordinator"),
};

static const struct kelp_program program = {
    .name = "kelp scale",
    .summary = "changes the size of a cluster while it trains",
    .positional = "[RUN|JOB]",
    .positional_max = 1,
    .examples = "  kelp scale --workers 4\n"
                "  kelp scale runs/etth1-dlinear-20260131-120000 --workers 2:6 --shards 3\n"
                "  kelp scale fare --etcd https://10.0.0.5:2379 --certs operator --workers 16\n",
    KELP_VERB_OPTIONS(options),
};

static bool stands(const Kelp__V1__Targets *now, const Kelp__V1__Targets *wanted)
{
    return now && (wanted->shards == 0 || now->shards == wanted->shards) &&
           (wanted->workers_max == 0 ||
            (now->workers_min == wanted->workers_min && now->workers_max == wanted->workers_max));
}

struct request {
    Kelp__V1__Targets wanted;
    bool asked;    /* the leader took it */
    bool on_hosts; /* kelp node runs the job, on hosts that have this room in all: */
    uint32_t shards;
    uint32_t workers;
};

/* Who starts what is wanted? */
static kelp_status find_room(struct kelp_job_client *client, uint32_t left_ms,
                             struct request *request, struct kelp_error *reterr)
{
    struct kelp_hosts_list list;

    kelp_status status = kelp_hosts_list(kelp_job_client_etcd(client), kelp_job_client_job(client),
                                         left_ms, &list, reterr);
    if (status != KELP_OK) {
        return status;
    }
    request->on_hosts = list.count > 0;
    request->shards = request->workers = 0;
    for (size_t i = 0; i < list.count; i++) {
        request->shards += list.hosts[i].shards.most;
        request->workers += list.hosts[i].workers.most;
    }
    free(list.hosts);
    return KELP_OK;
}

static bool look_and_ask(struct kelp_job_client *client, uint32_t left_ms, void *user,
                         struct kelp_job_look *look)
{
    struct request *request = user;
    Kelp__V1__StatusReply *reply = NULL;

    look->error.status = kelp_job_client_status(client, left_ms, &reply, &look->error);
    if (look->error.status != KELP_OK) {
        request->asked = false; /* perhaps it was lost with the leader that took it */
        return false;
    }
    bool done = stands(reply->targets, &request->wanted);
    kelp_job_client_status_free(reply);
    if (!done && !request->asked) {
        look->error.status = kelp_job_client_scale(client, &request->wanted, left_ms, &look->error);
        request->asked = look->error.status == KELP_OK;
    }
    if (done) {
        look->error.status = find_room(client, left_ms, request, &look->error);
    }
    return done && look->error.status == KELP_OK;
}

static void tell_room(const struct request *request, uint32_t wanted, uint32_t room)
{
    if (request->on_hosts && wanted > room) {
        (void)printf(" (the hosts have room for %u: start kelp node on more, or with a higher MAX)",
                     room);
    }
    (void)putchar('\n');
}

static void tell(const void *user, double seconds)
{
    const struct request *request = user;
    const Kelp__V1__Targets *wanted = &request->wanted;

    (void)seconds; /* processes come and go after it */
    if (wanted->workers_max > 0) {
        (void)printf("workers    %u:%u", wanted->workers_min, wanted->workers_max);
        tell_room(request, wanted->workers_max, request->workers);
    }
    if (wanted->shards > 0) {
        (void)printf("shards     %u", wanted->shards);
        tell_room(request, wanted->shards, request->shards);
    }
}

static int late(const struct kelp_job_client *client, const char *why, const void *user)
{
    (void)user;
    return kelp_complain(KELP_EXIT_UNREACHABLE, "job '%s' did not accept the size in time: %s",
                         kelp_job_client_job(client), why);
}

static int scale(const struct kelp_options *given)
{
    struct request request = {.wanted = KELP__V1__TARGETS__INIT};
    Kelp__V1__Targets *wanted = &request.wanted;

    if (!kelp_options_given(given, "workers") && !kelp_options_given(given, "shards")) {
        return kelp_complain(KELP_EXIT_USAGE,
                             "give the new number of processes with --workers or --shards");
    }
    if (kelp_options_given(given, "workers")) {
        struct kelp_range workers = kelp_options_range(given, "workers");
        wanted->workers_min = workers.min;
        wanted->workers_max = workers.max;
    }
    if (kelp_options_given(given, "shards")) {
        wanted->shards = (uint32_t)kelp_options_integer(given, "shards");
    }
    return kelp_job_ask(
        given, kelp_verb_typed(given),
        &(struct kelp_job_ask){.look = look_and_ask, .tell = tell, .late = late, .user = &request});
}

const struct kelp_verb kelp_verb_scale = {"scale", "change the size of a cluster while it trains",
                                          &program, scale, NULL};
