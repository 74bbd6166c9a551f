#include "coordinator/etcd/leader_internal.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/job/job.h"
#include "common/log/log.h"

/* ---- from the etcd client's thread to the loop ---- */

enum post_kind {
    POST_SPEC,
    POST_SPEC_GONE,
    POST_ELECTED,
    POST_DEPOSED,
    POST_LEADER,
    POST_VACANT,
    POST_SHARD,
    POST_SHARD_GONE,
    POST_TROUBLE,
    POST_STRANDED
};

static void report_event(void *user);

/* A lost event would never be noticed later; see kelp_leader_lost_event(). */
static void post(struct kelp_leader *leader, enum post_kind kind, const char *key, const char *text,
                 size_t text_bytes, int64_t revision)
{
    struct kelp__leader_post *event = malloc(sizeof(*event) + text_bytes + 1);
    if (!event) {
        atomic_store(&leader->lost_event, true);
        return;
    }
    event->leader = leader;
    event->kind = (int)kind;
    event->revision = revision;
    event->text_bytes = text_bytes;
    (void)snprintf(event->key, sizeof(event->key), "%s", key);
    memcpy(event->text, text, text_bytes);
    event->text[text_bytes] = '\0';
    if (kelp_rpc_loop_post(leader->options.loop, report_event, event) != KELP_OK) {
        atomic_store(&leader->lost_event, true);
        free(event);
    }
}

static void post_text(struct kelp_leader *leader, enum post_kind kind, const char *text)
{
    post(leader, kind, "", text, strlen(text), 0);
}

static void on_changed(const struct kelp_etcd_pair *pair, void *user)
{
    struct kelp_leader *leader = user;
    enum post_kind kind = POST_SHARD;
    if (strlen(pair->key) >= KELP__KEY_MAX) {
        return; /* not one of ours */
    }
    if (strcmp(pair->key, leader->spec_key) == 0) {
        kind = POST_SPEC;
    } else if (strcmp(pair->key, leader->election_key) == 0) {
        kind = POST_LEADER;
    } else if (strncmp(pair->key, leader->shard_prefix, strlen(leader->shard_prefix)) != 0) {
        return; /* another key with the same prefix */
    }
    post(leader, kind, pair->key, pair->value, pair->value_bytes, pair->create_revision);
}

static void on_removed(const char *key, void *user)
{
    struct kelp_leader *leader = user;
    if (strcmp(key, leader->election_key) == 0) {
        post(leader, POST_VACANT, key, "", 0, 0);
    } else if (strcmp(key, leader->spec_key) == 0) {
        post(leader, POST_SPEC_GONE, key, "", 0, 0);
    } else if (strlen(key) < KELP__KEY_MAX &&
               strncmp(key, leader->shard_prefix, strlen(leader->shard_prefix)) == 0) {
        post(leader, POST_SHARD_GONE, key, "", 0, 0);
    }
}

static void on_synced(int64_t revision, void *user)
{
    (void)revision;
    (void)user;
}

static void on_trouble(kelp_status status, const char *text, void *user)
{
    (void)status;
    post_text(user, POST_TROUBLE, text);
}

static const struct kelp_etcd_watch_events watch_events = {
    .changed = on_changed, .removed = on_removed, .synced = on_synced, .trouble = on_trouble};

static void on_deposed(const char *why, void *user)
{
    post_text(user, POST_DEPOSED, why);
}

/* ---- our key ---- */

static void print_holder(struct kelp_leader *leader)
{
    int length = snprintf(leader->holder, sizeof(leader->holder),
                          "{\"id\":\"%s\",\"address\":\"%s\",\"incarnation\":\"%" PRIu64
                          "\",\"proof\":\"%s\"}",
                          leader->options.id, leader->address, leader->options.incarnation,
                          leader->options.proof_digest);
    assert(length > 0 && (size_t)length < sizeof(leader->holder));
    (void)length;
}

/* The same port at another host. */
static void move_to(struct kelp_leader *leader, const char *host)
{
    char port[8];

    (void)snprintf(port, sizeof(port), "%s", strrchr(leader->address, ':'));
    (void)snprintf(leader->address, sizeof(leader->address), "%s%s", host, port);
    print_holder(leader);
    kelp_log_info("known by another address from now on address=%s", leader->address);
}

/* Has the address changed at which others find this process? */
static const char *on_renew(void *user)
{
    struct kelp_leader *leader = user;
    char host[KELP_SERVING_HOST_MAX + 1];
    char registered[KELP_COORDINATOR_ADDRESS_MAX + 1];
    struct kelp_error error;

    if (!leader->options.serving) {
        return leader->holder;
    }
    (void)snprintf(registered, sizeof(registered), "%.*s",
                   (int)(strrchr(leader->address, ':') - leader->address), leader->address);
    switch (kelp_serving_look(leader->options.serving, registered, host, &error)) {
    case KELP_SERVING_SAME:
        return leader->holder;
    case KELP_SERVING_MOVED:
        move_to(leader, host);
        return leader->holder;
    case KELP_SERVING_GONE:
        post_text(leader, POST_STRANDED, error.text);
        break;
    case KELP_SERVING_UNKNOWN:
        post_text(leader, POST_TROUBLE, error.text);
        break;
    }
    return NULL;
}

static void on_elected(int64_t create_revision, void *user)
{
    struct kelp_leader *leader = user;
    char host[KELP_SERVING_HOST_MAX + 1];
    struct kelp_error error;

    post(user, POST_ELECTED, "", "", 0, create_revision);
    /* The address may have gone while waiting for etcd. */
    if (leader->options.serving &&
        kelp_serving_look(leader->options.serving, leader->options.serving->source, host, &error) ==
            KELP_SERVING_GONE) {
        post_text(leader, POST_STRANDED, error.text);
    }
}

static const struct kelp_etcd_election_events election_events = {
    .elected = on_elected, .deposed = on_deposed, .renew = on_renew};

/* ---- on the loop ---- */

static void report_shard(struct kelp_leader *leader, const struct kelp__leader_post *event)
{
    struct kelp_map_shard shard = {.incarnation = 0};
    struct kelp_error error;
    const char *id = event->key + strlen(leader->shard_prefix);
    if (strlen(id) >= sizeof(shard.id)) {
        leader->events->trouble("a shard's key is too long and was ignored", leader->user);
        return;
    }
    memcpy(shard.id, id, strlen(id) + 1);
    kelp_status status = kelp_registration_parse(event->text, event->text_bytes, &shard, &error);
    if (status != KELP_OK) {
        kelp_error_prefix(&error, "%s", event->key);
        leader->events->trouble(error.text, leader->user);
        return;
    }
    leader->events->shard_registered(&shard, leader->user);
}

static void report_leader(struct kelp_leader *leader, const struct kelp__leader_post *event)
{
    struct kelp_holder holder = {.revision = event->revision};
    struct kelp_error error;
    if (kelp_holder_parse(event->text, event->text_bytes, &holder, &error) != KELP_OK) {
        kelp_error_prefix(&error, "%s", event->key);
        leader->events->trouble(error.text, leader->user);
    } else if (holder.incarnation != leader->options.incarnation &&
               event->revision > leader->last_revision) { /* not an older event that came late */
        leader->events->superseded(&holder, leader->user);
    }
}

static void report_event(void *user)
{
    struct kelp__leader_post *event = user;
    struct kelp_leader *leader = event->leader;
    if (leader->closed) {
        free(event);
        return;
    }
    switch ((enum post_kind)event->kind) {
    case POST_SPEC:
        leader->spec_gone = false;
        leader->events->spec(event->text, event->text_bytes, leader->user);
        break;
    case POST_SPEC_GONE:
        leader->spec_gone = true;
        break;
    case POST_ELECTED:
        leader->revision = event->revision;
        leader->last_revision = event->revision;
        leader->events->elected(event->revision, leader->user);
        break;
    case POST_DEPOSED:
        leader->revision = 0;
        leader->events->deposed(event->text, leader->user);
        break;
    case POST_LEADER:
        report_leader(leader, event);
        break;
    case POST_VACANT:
        leader->events->vacant(leader->user);
        break;
    case POST_SHARD:
        report_shard(leader, event);
        break;
    case POST_SHARD_GONE:
        leader->events->shard_gone(event->key + strlen(leader->shard_prefix), leader->user);
        break;
    case POST_TROUBLE:
        leader->events->trouble(event->text, leader->user);
        break;
    case POST_STRANDED:
        leader->events->stranded(event->text, leader->user);
        break;
    }
    free(event);
}

/* ---- life ---- */

static void set_keys(struct kelp_leader *leader)
{
    const char *job = leader->options.job;
    (void)snprintf(leader->spec_key, KELP__KEY_MAX, "/kelp/%s/spec", job);
    (void)snprintf(leader->plan_key, KELP__KEY_MAX, "/kelp/%s/plan", job);
    (void)snprintf(leader->map_key, KELP__KEY_MAX, "/kelp/%s/map", job);
    (void)snprintf(leader->state_key, KELP__KEY_MAX, "/kelp/%s/state", job);
    (void)snprintf(leader->scale_key, KELP__KEY_MAX, "/kelp/%s/scale", job);
    (void)snprintf(leader->election_key, KELP__KEY_MAX, "/kelp/%s/coordinator", job);
    (void)snprintf(leader->shard_prefix, KELP__KEY_MAX, "/kelp/%s/ps/", job);
    (void)snprintf(leader->fence_key, KELP__KEY_MAX, "/kelp/%s/checkpoint_fence", job);
    (void)snprintf(leader->checkpoint_prefix, KELP__KEY_MAX, "/kelp/%s/checkpoint/", job);
}

kelp_status kelp_leader_watch_spec(struct kelp_leader *leader, struct kelp_error *reterr)
{
    kelp_etcd_watch_close(leader->spec_watch);
    leader->spec_watch = NULL;
    return kelp_etcd_watch_open(leader->etcd, leader->spec_key, &watch_events, leader,
                                &leader->spec_watch, reterr);
}

bool kelp_leader_lost_event(struct kelp_leader *leader)
{
    return atomic_exchange(&leader->lost_event, false);
}

kelp_status kelp_leader_open(const struct kelp_leader_options *options,
                             const struct kelp_leader_events *events, void *user,
                             struct kelp_leader **ret_leader, struct kelp_error *reterr)
{
    struct kelp_leader *leader = calloc(1, sizeof(*leader));
    if (!leader) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the etcd side");
    }
    assert(strlen(options->job) <= KELP_JOB_NAME_MAX);
    leader->options = *options;
    leader->events = events;
    leader->user = user;
    leader->term = 1;
    set_keys(leader);
    kelp_status status =
        kelp_etcd_open_certified(options->endpoints, options->certs, &leader->etcd, reterr);
    if (status == KELP_OK) {
        status = kelp_leader_watch_spec(leader, reterr);
    }
    if (status != KELP_OK) {
        kelp_leader_close(leader);
        kelp_leader_destroy(leader);
        return status;
    }
    *ret_leader = leader;
    return KELP_OK;
}

void kelp_leader_close(struct kelp_leader *leader)
{
    if (leader->spec_watch) {
        kelp_etcd_watch_close(leader->spec_watch);
        leader->spec_watch = NULL;
    }
    if (leader->shard_watch) {
        kelp_etcd_watch_close(leader->shard_watch);
        leader->shard_watch = NULL;
    }
    if (leader->election_watch) {
        kelp_etcd_watch_close(leader->election_watch);
        leader->election_watch = NULL;
    }
    if (leader->election) {
        kelp_etcd_election_close(leader->election);
        leader->election = NULL;
    }
    if (leader->etcd) {
        kelp_etcd_close(leader->etcd);
        leader->etcd = NULL;
    }
    leader->closed = true;
}

void kelp_leader_destroy(struct kelp_leader *leader)
{
    if (leader) {
        free(leader->plan);
    }
    free(leader);
}

kelp_status kelp_leader_stand(struct kelp_leader *leader, const char *address,
                              const struct kelp_job_file *job_file, const char *spec,
                              struct kelp_error *reterr)
{
    leader->job_file = job_file;
    leader->spec = spec;
    leader->spec_digest = kelp_job_file_digest(job_file);
    assert(strlen(address) < sizeof(leader->address) && strchr(address, ':'));
    memcpy(leader->address, address, strlen(address) + 1);
    print_holder(leader);
    kelp_status status = kelp_etcd_watch_open(leader->etcd, leader->election_key, &watch_events,
                                              leader, &leader->election_watch, reterr);
    if (status != KELP_OK) {
        return status;
    }
    return kelp_etcd_election_open(
        leader->etcd,
        &(struct kelp_etcd_election_options){.key = leader->election_key,
                                             .value = leader->holder,
                                             .ttl_s = KELP_COORDINATOR_LEASE_S,
                                             .events = &election_events,
                                             .user = leader},
        &leader->election, reterr);
}

kelp_status kelp_leader_watch_shards(struct kelp_leader *leader, struct kelp_error *reterr)
{
    assert(!leader->shard_watch);
    return kelp_etcd_watch_open(leader->etcd, leader->shard_prefix, &watch_events, leader,
                                &leader->shard_watch, reterr);
}

void kelp_leader_resign(struct kelp_leader *leader)
{
    if (leader->election) {
        kelp_etcd_election_close(leader->election);
        leader->election = NULL;
    }
    if (leader->election_watch) {
        kelp_etcd_watch_close(leader->election_watch);
        leader->election_watch = NULL;
    }
    leader->revision = 0;
}

void kelp_leader_depose(struct kelp_leader *leader, int64_t revision)
{
    if (leader->election) {
        kelp_etcd_election_depose(leader->election, revision);
    }
}

void kelp_leader_step_down(struct kelp_leader *leader)
{
    leader->term++;
    if (leader->shard_watch) {
        kelp_etcd_watch_close(leader->shard_watch);
        leader->shard_watch = NULL;
    }
}
