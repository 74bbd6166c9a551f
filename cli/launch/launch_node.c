/*
 * One host of a cluster (struct kelp_launch_node).
 *
 * It begins: a job that was paused goes on, before a coordinator of this host could lead it.
 *
 * It holds the run's folder as long as the leading coordinator is one of this host.
 *
 * It ends when the job is over. The host that holds the folder writes the model and the result, and
 * puts the result into etcd; shards of the others are needed until it is there. It ends last: a
 * coordinator elsewhere would lead then, and go on with a job that is paused.
 *
 * It leaves when a signal comes: shards are drained, workers send what they have, coordinators go
 * last.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cluster/run_client.h"
#include "cli/launch/launcher_internal.h"
#include "common/base/clock.h"

#define RESULT_MAX      (1 << 20) /* bytes; etcd takes requests of 1.5 MB */
#define ASK_PERIOD_MS   200
#define ASK_DEADLINE_MS 1000
#define SILENT_MS       3000   /* without a coordinator's answer until etcd is asked instead */
#define OVER_MS         120000 /* for the model to be written, wherever that is done */
#define HOLD_RETRY_MS   1000
#define OTHERS_MS       10000   /* for other hosts to end */
#define WRITE_MS        3600000 /* a large model on a slow disk */
#define LEAVE_EXTRA_MS  5000    /* beyond the grace period, to end what is left */

/* Is the leading coordinator one of this host? */
static bool leads(const struct kelp_launcher *launcher)
{
    const char *host = launcher->launch->node->host;
    size_t length = strlen(host);

    return launcher->status && strncmp(launcher->status->leader, host, length) == 0 &&
           launcher->status->leader[length] == '.';
}

static bool is_over(const struct kelp_launcher *launcher)
{
    return kelp__launch_state_is(launcher, "done") || kelp__launch_state_is(launcher, "failed") ||
           kelp__launch_state_is(launcher, "paused");
}

kelp_status kelp__launch_node_begin(struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    return launcher->launch->coordinators > 0 ? kelp__launch_take_up(launcher->client, reterr)
                                              : KELP_OK;
}

/* ---- the run's folder ---------------------------------------------------------------------- */

/* Where hosts share none, others learn where the leader's is. */
static kelp_status tell_place(struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    struct kelp_run_home *place = launcher->launch->node->apart;
    char key[KELP_JOB_CLIENT_KEY_MAX + 1];
    char *text = NULL;

    if (!place) {
        return KELP_OK;
    }
    (void)snprintf(place->folder, sizeof(place->folder), "%.*s", KELP_RUN_PATH_MAX,
                   launcher->children.run_folder);
    (void)snprintf(place->host, sizeof(place->host), "%s", launcher->launch->node->host);
    kelp_status status = kelp_run_home_print(place, &text, reterr);
    if (status == KELP_OK) {
        kelp_job_client_key(launcher->client, KELP_RUN_HOME_KEY, key);
        status = kelp_etcd_put(kelp_job_client_etcd(launcher->client), key, text, 0,
                               ASK_DEADLINE_MS, reterr);
    }
    free(text);
    return status;
}

void kelp__launch_node_hold(struct kelp_launcher *launcher, uint64_t now)
{
    struct kelp_node_state *node = &launcher->node;
    struct kelp_error error;

    if (!leads(launcher)) {
        kelp_run_dir_close(&node->held);
        return;
    }
    if (node->held.lock_fd >= 0 || now < node->hold_retry_ms) {
        return;
    }
    kelp_status status = kelp_run_dir_resume(launcher->launch->run->path, &node->held, &error);
    if (status == KELP_OK) {
        status = kelp__launch_write_cluster(launcher, &error);
    }
    if (status == KELP_OK) {
        status = tell_place(launcher, &error);
    }
    if (status == KELP_OK) {
        node->hold_told = false;
        return;
    }
    kelp_run_dir_close(&node->held);
    node->hold_retry_ms = now + HOLD_RETRY_MS;
    if (!node->hold_told) {
        kelp_display_say(launcher->display, "cannot lock the run's folder yet: %s", error.text);
        node->hold_told = true;
    }
}

/* ---- the end ------------------------------------------------------------------------------- */

static void ask_for_result(struct kelp_launcher *launcher, uint64_t now)
{
    struct kelp_node_state *node = &launcher->node;

    if (node->result || now < node->asked_ms + ASK_PERIOD_MS) {
        return;
    }
    node->asked_ms = now;
    /* An etcd that does not answer is asked again: is_late() bounds that. */
    if (kelp_job_client_get(launcher->client, KELP_RUN_RESULT_KEY, ASK_DEADLINE_MS, &node->result,
                            NULL) != KELP_OK) {
        node->result = NULL;
    }
}

bool kelp__launch_node_writes(const struct kelp_launcher *launcher)
{
    return is_over(launcher) && leads(launcher) && launcher->node.held.lock_fd >= 0;
}

static bool is_late(const struct kelp_node_state *node, uint64_t now)
{
    return node->over_ms > 0 && now - node->over_ms > OVER_MS;
}

bool kelp__launch_node_ended(struct kelp_launcher *launcher, uint64_t now)
{
    struct kelp_node_state *node = &launcher->node;

    if (!launcher->status) {
        return false; /* a result in etcd may be of an earlier time */
    }
    if (is_over(launcher) && node->over_ms == 0) {
        node->over_ms = now;
    }
    if (kelp__launch_node_writes(launcher)) {
        return true;
    }
    if (node->over_ms > 0 || now - launcher->status_ms > SILENT_MS) {
        ask_for_result(launcher, now);
    }
    if (!is_over(launcher) && !node->result) {
        node->over_ms = 0; /* it goes on: others were started again */
    }
    return node->result || is_late(node, now);
}

/* Leave the result where the other hosts, and kelp wait, find it. */
static kelp_status publish(struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    char key[KELP_JOB_CLIENT_KEY_MAX + 1];
    char *text = NULL;

    kelp_status status =
        kelp_run_dir_read(launcher->launch->run->path, "result.json", &text, reterr);
    if (status == KELP_OK && strlen(text) > RESULT_MAX) {
        status = kelp_fail(reterr, KELP_ERR_LIMIT, "the result has more than %d bytes", RESULT_MAX);
    }
    if (status == KELP_OK) {
        kelp_job_client_key(launcher->client, KELP_RUN_RESULT_KEY, key);
        status = kelp_etcd_put(kelp_job_client_etcd(launcher->client), key, text, 0,
                               KELP_LAUNCH_ETCD_MS, reterr);
    }
    free(text);
    return status;
}

static bool is_foreign(const struct kelp_launcher *launcher, const char *id)
{
    size_t length = strlen(launcher->launch->node->host);

    return strncmp(id, launcher->launch->node->host, length) != 0 || id[length] != '.';
}

/* Are there shards or workers of other hosts, as the newest status says? The lease of a shard that
 * has ended may last longer. */
static bool others_are_there(const struct kelp_launcher *launcher)
{
    const Kelp__V1__StatusReply *status = launcher->status;
    bool there = false;

    for (size_t i = 0; i < status->n_shards; i++) {
        const Kelp__V1__ShardInfo *shard = status->shards[i];
        there = there || (shard->connected && is_foreign(launcher, shard->shard));
    }
    for (size_t i = 0; i < status->n_workers; i++) {
        there = there || is_foreign(launcher, status->workers[i]->id);
    }
    return there;
}

/* The others end once they have read the result. */
static void wait_for_others(struct kelp_launcher *launcher)
{
    struct pollfd items[] = {{.fd = kelp_monitor_fd(launcher->monitor), .events = POLLIN},
                             {.fd = kelp_guard_fd(launcher->guard), .events = POLLIN}};
    const uint64_t until_ms = kelp_clock_ms() + OTHERS_MS;
    uint64_t asked_ms;

    for (uint64_t now = kelp_clock_ms(); others_are_there(launcher) && now < until_ms &&
                                         kelp_guard_stage(launcher->guard) == KELP_GUARD_RUN;
         now = kelp_clock_ms()) {
        (void)poll(items, KELP_ARRAY_COUNT(items), (int)(until_ms - now));
        Kelp__V1__StatusReply *status = kelp_monitor_read(launcher->monitor, &asked_ms);
        if (status) {
            kelp_job_client_status_free(launcher->status);
            launcher->status = status;
        }
    }
}

/* As the launcher of a whole cluster does. */
static void write_end(struct kelp_launcher *launcher, struct kelp_error *error)
{
    struct kelp_error failed;

    kelp_manager_busy(launcher->launch->manager, WRITE_MS, "the job's result is being written");
    launcher->pausing = kelp__launch_state_is(launcher, "paused");
    (void)kelp__launch_conclude(launcher, KELP_OK, error); /* the result has the outcome */
    kelp__launch_write_result(launcher);
    if (publish(launcher, &failed) != KELP_OK) {
        kelp_display_say(launcher->display,
                         "%s; the other hosts cannot know the result, and end in %d s", failed.text,
                         OVER_MS / 1000);
        return;
    }
    wait_for_others(launcher);
}

static int exit_status_of(const char *status)
{
    static const struct {
        const char *status;
        int exit_status;
    } known[] = {
        {"done", KELP_EXIT_OK}, {"paused", KELP_EXIT_PAUSED}, {"failed", KELP_EXIT_JOB_FAILED}};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(known); i++) {
        if (strcmp(status, known[i].status) == 0) {
            return known[i].exit_status;
        }
    }
    return KELP_EXIT_FAILED;
}

int kelp_launch_result_exit_status(const struct kelp_result *result)
{
    return exit_status_of(result->status);
}

static int set_outcome(struct kelp_result *result, int exit_status, const char *status,
                       const char *reason)
{
    (void)snprintf(result->status, sizeof(result->status), "%s", status);
    (void)snprintf(result->reason, sizeof(result->reason), "%s", reason);
    return exit_status;
}

/* A signal came. */
static int left(struct kelp_launcher *launcher)
{
    bool gave_up = kelp_guard_stage(launcher->guard) == KELP_GUARD_STOP;

    return gave_up ? set_outcome(launcher->result, KELP_EXIT_FAILED, "stopped",
                                 "its grace period ended before all of its processes had left")
                   : set_outcome(launcher->result, KELP_EXIT_OK, "left", "");
}

int kelp__launch_node_conclude(struct kelp_launcher *launcher, kelp_status status,
                               struct kelp_error *error)
{
    struct kelp_node_state *node = &launcher->node;
    struct kelp_result *result = launcher->result;

    if (status == KELP_OK && kelp__launch_node_writes(launcher)) {
        write_end(launcher, error);
        return exit_status_of(result->status);
    }
    if (status == KELP_OK && node->result) {
        status = kelp_result_parse(node->result, strlen(node->result), result, error);
        if (status == KELP_OK) {
            return exit_status_of(result->status);
        }
        kelp_error_prefix(error, "the job's result in etcd");
    }
    if (status == KELP_OK && (node->leaving || kelp_guard_signal(launcher->guard) != 0)) {
        return left(launcher);
    }
    if (status == KELP_OK) { /* is_late() */
        status = kelp_fail(error, KELP_ERR_TIMEOUT,
                           "the job is %.16s, and no host has written its result for %d s: is the "
                           "host of the leading coordinator gone, or its run folder full?",
                           launcher->status ? launcher->status->state : "over", OVER_MS / 1000);
    }
    bool refused = status == KELP_ERR_INVALID || status == KELP_ERR_MISMATCH ||
                   status == KELP_ERR_EXISTS || status == KELP_ERR_BUSY;
    return set_outcome(result, refused ? KELP_EXIT_USAGE : KELP_EXIT_FAILED, "stopped",
                       error->text);
}

void kelp__launch_node_fini(struct kelp_launcher *launcher)
{
    kelp_run_dir_close(&launcher->node.held);
    free(launcher->node.result);
}

/* ---- leaving ------------------------------------------------------------------------------- */

/* Its shards have ended. What goes with the last host that had some is in no checkpoint. */
static void tell_loss(struct kelp_launcher *launcher)
{
    const Kelp__V1__StatusReply *status = launcher->status;
    bool others = false;

    for (size_t i = 0; status && i < status->n_shards; i++) {
        others = others ||
                 (status->shards[i]->connected && is_foreign(launcher, status->shards[i]->shard));
    }
    if (launcher->launch->node->apart && launcher->launch->node->shards.most > 0 && status &&
        !others && !is_over(launcher)) {
        kelp_display_say(launcher->display,
                         "no other host has shards, and there are no checkpoints: the job begins "
                         "again once hosts are back");
    }
}

bool kelp__launch_node_leaves(struct kelp_launcher *launcher)
{
    struct kelp_children *children = &launcher->children;
    struct kelp_node_state *node = &launcher->node;

    if (kelp_guard_stage(launcher->guard) != KELP_GUARD_WIND_DOWN) {
        return true;
    }
    if (!node->leaving) {
        node->leaving = true;
        kelp_display_say(launcher->display,
                         "leaving the job: partitions move to other hosts, at most %u s; a second "
                         "signal ends all processes here at once",
                         launcher->launch->pause_ms / 1000);
        kelp_manager_stopping(launcher->launch->manager,
                              launcher->launch->pause_ms + LEAVE_EXTRA_MS);
        kelp_children_take_down(children, KELP_CHILD_WORKER, false);
        kelp_children_take_down(children, KELP_CHILD_SHARD, false);
    }
    if (kelp_children_any(children, KELP_CHILD_WORKER) ||
        kelp_children_any(children, KELP_CHILD_SHARD)) {
        return true;
    }
    if (!node->coordinators_leave) {
        node->coordinators_leave = true;
        tell_loss(launcher);
        kelp_children_take_down(children, KELP_CHILD_COORDINATOR, false);
    }
    return kelp_children_any(children, KELP_CHILD_COORDINATOR);
}
