#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/checkpoint/checkpoint_request.h"
#include "cli/checkpoint/checkpoint_verbs.h"
#include "cli/cluster/job_ask.h"
#include "cli/run/run_dir.h"
#include "cli/verbs.h"

#define VERBS_MAX 16

static const struct kelp_option options[] = {
    KELP_VERB_OUTPUT("a line for people, or one JSON object"),
    KELP_JOB_ASK_OPTIONS("60s", "how long to wait for the checkpoint"),
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

struct wanted {
    struct kelp_request request;
    uint64_t version; /* of the one that answers it */
    uint64_t step;
    uint64_t generation;
    bool json;
};

static void tell(const void *user, double seconds)
{
    const struct wanted *wanted = user;

    (void)seconds; /* the leader's log has how long it took */
    if (wanted->json) {
        (void)printf("{\"version\":%" PRIu64 ",\"step\":%" PRIu64 ",\"generation\":%" PRIu64 "}\n",
                     wanted->version, wanted->step, wanted->generation);
    } else {
        (void)printf("checkpoint at step %" PRIu64 ": version %" PRIu64 ", generation %" PRIu64
                     "\n",
                     wanted->step, wanted->version, wanted->generation);
    }
}

/* What one answer says; true when the matter is settled. */
static bool take(struct wanted *wanted, const Kelp__V1__StatusReply *reply,
                 enum kelp_request_news news, struct kelp_job_look *look)
{
    const Kelp__V1__CheckpointStatus *checkpoint = reply->checkpoint;

    if (news == KELP_REQUEST_DONE) {
        wanted->version = checkpoint->version;
        wanted->step = checkpoint->step;
        wanted->generation = checkpoint->generation;
        return true;
    }
    if (news == KELP_REQUEST_REFUSED) {
        look->exit_status = KELP_EXIT_FAILED;
        (void)kelp_fail(&look->error, KELP_ERR_INVALID, "no checkpoint: %s", checkpoint->error);
    } else if (strcmp(reply->state, "failed") == 0) {
        look->exit_status = KELP_EXIT_JOB_FAILED;
        (void)kelp_fail(&look->error, KELP_ERR_INVALID, "job '%s' has failed: %s", reply->job,
                        reply->reason);
    }
    return false;
}

static bool look_and_ask(struct kelp_job_client *client, uint32_t left_ms, void *user,
                         struct kelp_job_look *look)
{
    struct wanted *wanted = user;
    Kelp__V1__StatusReply *reply = NULL;
    uint64_t serial = 0;

    look->error.status = kelp_job_client_status(client, left_ms, &reply, &look->error);
    if (look->error.status != KELP_OK) {
        return false;
    }
    enum kelp_request_news news = kelp_request_read(&wanted->request, reply);
    bool done = take(wanted, reply, news, look);
    kelp_job_client_status_free(reply);
    if (news == KELP_REQUEST_ASK && look->error.status == KELP_OK) {
        look->error.status =
            kelp_job_client_checkpoint(client, false, left_ms, &serial, &look->error);
        if (look->error.status == KELP_OK) {
            kelp_request_made(&wanted->request, serial);
        }
    }
    return done;
}

static int late(const struct kelp_job_client *client, const char *why, const void *user)
{
    (void)user;
    return kelp_complain(KELP_EXIT_UNREACHABLE, "no checkpoint of job '%s' in time: %s",
                         kelp_job_client_job(client), why);
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
    struct wanted wanted = {.json = kelp_verb_json(given)};
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
    return kelp_job_ask(given, typed,
                        &(struct kelp_job_ask){.look = look_and_ask,
                                               .tell = tell,
                                               .late = late,
                                               .user = &wanted,
                                               .quiet = wanted.json});
}

const struct kelp_verb kelp_verb_checkpoint = {
    "checkpoint", "ask for a checkpoint; ls, show, verify, export, import, rm", &program,
    ask_for_one, kelp_checkpoint_verbs};
