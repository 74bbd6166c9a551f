#include "coordinator/leader.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/job.h"
#include "common/json.h"

#define KEY_MAX 160 /* bytes: "/kelp/", a job's name, "/ps/", a shard's name */

struct kelp_leader {
    struct kelp_leader_options options;
    const struct kelp_leader_events *events;
    void *user;
    struct kelp_etcd *etcd;
    struct kelp_etcd_watch *spec_watch;
    struct kelp_etcd_watch *election_watch;
    struct kelp_etcd_watch *shard_watch;
    struct kelp_etcd_election *election;
    bool closed;
    uint64_t term;         /* results of an older one are dropped */
    int64_t revision;      /* of our election key; 0: we hold none */
    int64_t last_revision; /* of the one that we held last */
    int64_t map_revision;  /* of the map as read or written last; 0: there was none */
    struct kelp_job_state state;
    bool state_dirty;
    bool state_in_flight;
    uint64_t state_retry_ms;
    uint64_t now_ms;
    char spec_key[KEY_MAX];
    char plan_key[KEY_MAX];
    char map_key[KEY_MAX];
    char state_key[KEY_MAX];
    char election_key[KEY_MAX];
    char shard_prefix[KEY_MAX];
};

/* ---- from the etcd client's thread to the loop ------------------------------------------------
 */

enum post_kind {
    POST_SPEC,
    POST_ELECTED,
    POST_DEPOSED,
    POST_LEADER,
    POST_SHARD,
    POST_SHARD_GONE,
    POST_TROUBLE
};

struct post {
    struct kelp_leader *leader;
    enum post_kind kind;
    int64_t revision;
    size_t text_bytes;
    char key[KEY_MAX];
    char text[]; /* value or reason, NUL-terminated */
};

static void take_post(void *user);

static void post(struct kelp_leader *leader, enum post_kind kind, const char *key, const char *text,
                 size_t text_bytes, int64_t revision)
{
    struct post *event = malloc(sizeof(*event) + text_bytes + 1);
    if (event == NULL) {
        abort(); /* an event of etcd that is lost would never be noticed again */
    }
    event->leader = leader;
    event->kind = kind;
    event->revision = revision;
    event->text_bytes = text_bytes;
    (void)snprintf(event->key, sizeof(event->key), "%s", key);
    memcpy(event->text, text, text_bytes);
    event->text[text_bytes] = '\0';
    if (kelp_rpc_loop_post(leader->options.loop, take_post, event) != KELP_OK) {
        abort(); /* as above */
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
    if (strlen(pair->key) >= KEY_MAX) {
        return; /* none of ours */
    }
    if (strcmp(pair->key, leader->spec_key) == 0) {
        kind = POST_SPEC;
    } else if (strcmp(pair->key, leader->election_key) == 0) {
        kind = POST_LEADER;
    } else if (strncmp(pair->key, leader->shard_prefix, strlen(leader->shard_prefix)) != 0) {
        return; /* another key that begins alike */
    }
    post(leader, kind, pair->key, pair->value, pair->value_bytes, pair->mod_revision);
}

static void on_removed(const char *key, void *user)
{
    struct kelp_leader *leader = user;
    if (strlen(key) < KEY_MAX &&
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

static void on_elected(int64_t create_revision, void *user)
{
    post(user, POST_ELECTED, "", "", 0, create_revision);
}

static void on_deposed(const char *why, void *user)
{
    post_text(user, POST_DEPOSED, why);
}

static const struct kelp_etcd_election_events election_events = {.elected = on_elected,
                                                                 .deposed = on_deposed};

static void take_shard(struct kelp_leader *leader, const struct post *event)
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

/* Who holds the election key? {"id","address","incarnation"} */
static void take_leader(struct kelp_leader *leader, const struct post *event)
{
    struct kelp_map_shard holder = {.incarnation = 0};
    struct kelp_error error;
    if (kelp_registration_parse(event->text, event->text_bytes, &holder, &error) != KELP_OK) {
        kelp_error_prefix(&error, "%s", event->key);
        leader->events->trouble(error.text, leader->user);
    } else if (holder.incarnation != leader->options.incarnation &&
               event->revision > leader->last_revision) { /* not an older event that came late */
        leader->events->superseded(event->text, leader->user);
    }
}

static void take_post(void *user)
{
    struct post *event = user;
    struct kelp_leader *leader = event->leader;
    if (leader->closed) {
        free(event);
        return;
    }
    switch (event->kind) {
    case POST_SPEC:
        leader->events->spec(event->text, event->text_bytes, leader->user);
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
        take_leader(leader, event);
        break;
    case POST_SHARD:
        take_shard(leader, event);
        break;
    case POST_SHARD_GONE:
        leader->events->shard_gone(event->key + strlen(leader->shard_prefix), leader->user);
        break;
    case POST_TROUBLE:
        leader->events->trouble(event->text, leader->user);
        break;
    }
    free(event);
}

/* ---- life -------------------------------------------------------------------------------------
 */

static void set_keys(struct kelp_leader *leader)
{
    const char *job = leader->options.job;
    (void)snprintf(leader->spec_key, KEY_MAX, "/kelp/%s/spec", job);
    (void)snprintf(leader->plan_key, KEY_MAX, "/kelp/%s/plan", job);
    (void)snprintf(leader->map_key, KEY_MAX, "/kelp/%s/map", job);
    (void)snprintf(leader->state_key, KEY_MAX, "/kelp/%s/state", job);
    (void)snprintf(leader->election_key, KEY_MAX, "/kelp/%s/coordinator", job);
    (void)snprintf(leader->shard_prefix, KEY_MAX, "/kelp/%s/ps/", job);
}

kelp_status kelp_leader_open(const struct kelp_leader_options *options,
                             const struct kelp_leader_events *events, void *user,
                             struct kelp_leader **ret_leader, struct kelp_error *reterr)
{
    struct kelp_leader *leader = calloc(1, sizeof(*leader));
    if (leader == NULL) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the etcd side");
    }
    assert(strlen(options->job) <= KELP_JOB_NAME_MAX);
    leader->options = *options;
    leader->events = events;
    leader->user = user;
    leader->term = 1;
    set_keys(leader);
    kelp_status status = kelp_etcd_open(options->endpoints, &leader->etcd, reterr);
    if (status == KELP_OK) {
        status = kelp_etcd_watch_open(leader->etcd, leader->spec_key, &watch_events, leader,
                                      &leader->spec_watch, reterr);
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
    if (leader->spec_watch != NULL) {
        kelp_etcd_watch_close(leader->spec_watch);
        leader->spec_watch = NULL;
    }
    if (leader->shard_watch != NULL) {
        kelp_etcd_watch_close(leader->shard_watch);
        leader->shard_watch = NULL;
    }
    if (leader->election_watch != NULL) {
        kelp_etcd_watch_close(leader->election_watch);
        leader->election_watch = NULL;
    }
    if (leader->election != NULL) {
        kelp_etcd_election_close(leader->election);
        leader->election = NULL;
    }
    if (leader->etcd != NULL) {
        kelp_etcd_close(leader->etcd);
        leader->etcd = NULL;
    }
    leader->closed = true;
}

void kelp_leader_destroy(struct kelp_leader *leader)
{
    free(leader);
}

kelp_status kelp_leader_stand(struct kelp_leader *leader, const char *address,
                              struct kelp_error *reterr)
{
    char value[KELP_COORDINATOR_ADDRESS_MAX + KELP_COORDINATOR_ID_MAX + 96];
    int length = snprintf(value, sizeof(value),
                          "{\"id\":\"%s\",\"address\":\"%s\",\"incarnation\":\"%" PRIu64 "\"}",
                          leader->options.id, address, leader->options.incarnation);
    assert(length > 0 && (size_t)length < sizeof(value));
    kelp_status status = kelp_etcd_watch_open(leader->etcd, leader->election_key, &watch_events,
                                              leader, &leader->election_watch, reterr);
    if (status != KELP_OK) {
        return status;
    }
    return kelp_etcd_election_open(leader->etcd, leader->election_key, value,
                                   KELP_COORDINATOR_LEASE_S, &election_events, leader,
                                   &leader->election, reterr);
}

kelp_status kelp_leader_watch_shards(struct kelp_leader *leader, struct kelp_error *reterr)
{
    assert(leader->shard_watch == NULL);
    return kelp_etcd_watch_open(leader->etcd, leader->shard_prefix, &watch_events, leader,
                                &leader->shard_watch, reterr);
}

void kelp_leader_step_down(struct kelp_leader *leader)
{
    leader->term++;
    leader->state_dirty = false;
    leader->state_in_flight = false;
    if (leader->shard_watch != NULL) {
        kelp_etcd_watch_close(leader->shard_watch);
        leader->shard_watch = NULL;
    }
}

/* ---- tasks ------------------------------------------------------------------------------------
 */

enum task_kind { TASK_READ, TASK_READ_MAP, TASK_PLAN, TASK_MAP, TASK_STATE };

struct leader_task {
    struct kelp_task task;
    struct kelp_leader *leader;
    enum task_kind kind;
    uint64_t term;
    int64_t revision;     /* of the election key, to be compared */
    int64_t map_revision; /* in: to be compared; out: as read or written */
    char *text;           /* to write; owned */
    struct kelp_job_state state;
    kelp_status status;
    struct kelp_error error;
    bool succeeded; /* the transaction was applied */
    struct kelp_leader_found found;
};

static void found_fini(struct kelp_leader_found *found)
{
    free(found->plan);
    kelp_map_fini(&found->map);
    *found = (struct kelp_leader_found){0};
}

static kelp_status get(struct leader_task *task, const char *key, struct kelp_etcd_range *range)
{
    kelp_status status =
        kelp_etcd_get(task->leader->etcd, key, KELP_COORDINATOR_ETCD_MS, range, &task->error);
    if (status != KELP_OK) {
        kelp_error_prefix(&task->error, "reading %s", key);
    }
    return status;
}

static kelp_status get_plan(struct leader_task *task)
{
    struct kelp_etcd_range range = {0};
    kelp_status status = get(task, task->leader->plan_key, &range);
    if (status != KELP_OK) {
        return status;
    }
    if (range.count > 0) {
        task->found.plan = strdup(range.pairs[0].value);
        if (task->found.plan == NULL) {
            status = kelp_fail(&task->error, KELP_ERR_NO_MEMORY, "no memory for the plan");
        }
    }
    kelp_etcd_range_fini(&range);
    return status;
}

static kelp_status get_map(struct leader_task *task)
{
    struct kelp_etcd_range range = {0};
    kelp_status status = get(task, task->leader->map_key, &range);
    if (status != KELP_OK) {
        return status;
    }
    task->map_revision = 0;
    if (range.count > 0) {
        task->map_revision = range.pairs[0].mod_revision;
        status = kelp_map_parse(range.pairs[0].value, range.pairs[0].value_bytes, &task->found.map,
                                &task->error);
        if (status != KELP_OK) {
            kelp_error_prefix(&task->error, "%s", task->leader->map_key);
        }
    }
    kelp_etcd_range_fini(&range);
    return status;
}

static kelp_status get_state(struct leader_task *task)
{
    struct kelp_etcd_range range = {0};
    kelp_status status = get(task, task->leader->state_key, &range);
    if (status != KELP_OK) {
        return status;
    }
    if (range.count > 0) {
        task->found.has_state = true;
        status = kelp_job_state_parse(range.pairs[0].value, range.pairs[0].value_bytes,
                                      &task->found.state, &task->error);
        if (status != KELP_OK) {
            kelp_error_prefix(&task->error, "%s", task->leader->state_key);
        }
    }
    kelp_etcd_range_fini(&range);
    return status;
}

/* Put key = task->text if our election key still stands and, with key_revision from 0 on, if the
 * key itself is unchanged (mod revision; 0: not there). */
static kelp_status put_if_leading(struct leader_task *task, const char *key, int64_t key_revision,
                                  const char *nonce_key)
{
    struct kelp_etcd_compare compares[2] = {
        {.key = task->leader->election_key,
         .what = KELP_ETCD_CREATE_REVISION,
         .revision = task->revision},
        {.key = key, .what = KELP_ETCD_MOD_REVISION, .revision = key_revision},
    };
    struct kelp_etcd_operation operation = {.key = key, .value = task->text};
    int64_t revision = 0;
    if (task->revision == 0) {
        return kelp_fail(&task->error, KELP_ERR_NOT_LEADER, "not elected now");
    }
    kelp_status status = kelp_etcd_transaction(
        task->leader->etcd, compares, key_revision < 0 ? 1 : 2, &operation, 1, nonce_key,
        KELP_COORDINATOR_ETCD_MS, &task->succeeded, &revision, &task->error);
    if (status != KELP_OK) {
        kelp_error_prefix(&task->error, "writing %s", key);
    } else if (task->succeeded) {
        task->map_revision = revision;
    }
    return status;
}

static void run_task(struct kelp_task *base)
{
    struct leader_task *task = KELP_CONTAINER_OF(base, struct leader_task, task);
    struct kelp_leader *leader = task->leader;
    switch (task->kind) {
    case TASK_READ:
        task->status = get_plan(task);
        if (task->status == KELP_OK) {
            task->status = get_map(task);
        }
        if (task->status == KELP_OK) {
            task->status = get_state(task);
        }
        break;
    case TASK_READ_MAP:
        task->status = get_map(task);
        break;
    case TASK_PLAN:
        task->status = put_if_leading(task, leader->plan_key, 0, NULL);
        /* Written, there already, or unknown: what counts is what stands there. */
        if (task->status == KELP_OK || task->status == KELP_ERR_TIMEOUT) {
            task->status = get_plan(task);
        }
        break;
    case TASK_MAP:
        task->status = put_if_leading(task, leader->map_key, task->map_revision, leader->map_key);
        break;
    case TASK_STATE:
        task->status = put_if_leading(task, leader->state_key, -1, NULL);
        break;
    }
}

static kelp_status submit(struct kelp_leader *leader, enum task_kind kind, char *text);

static void try_state(struct kelp_leader *leader)
{
    char *text = NULL;
    if (!leader->state_dirty || leader->state_in_flight || leader->revision == 0 ||
        leader->now_ms < leader->state_retry_ms) {
        return;
    }
    kelp_status status = kelp_job_state_print(&leader->state, &text, NULL);
    if (status == KELP_OK) {
        status = submit(leader, TASK_STATE, text);
    }
    leader->state_dirty = status != KELP_OK;
    leader->state_in_flight = status == KELP_OK;
}

static void report_map(struct kelp_leader *leader, struct leader_task *task)
{
    enum kelp_placement_written result = KELP_WRITTEN_UNKNOWN;
    const char *text = task->error.text;
    if (task->status == KELP_OK && task->succeeded) {
        result = KELP_WRITTEN_OK;
        leader->map_revision = task->map_revision;
    } else if (task->status == KELP_OK) {
        text = "the election key or the map has changed";
    } else if (task->status == KELP_ERR_UNREACHABLE || task->status == KELP_ERR_NOT_LEADER) {
        result = KELP_WRITTEN_NOT;
    }
    leader->events->map_written(result, text, leader->user);
}

static void report_state(struct kelp_leader *leader, struct leader_task *task)
{
    leader->state_in_flight = false;
    if (task->status == KELP_OK && task->succeeded) {
        leader->events->state_written(&task->state, leader->user);
        try_state(leader); /* one that came meanwhile */
        return;
    }
    leader->state_dirty = true;
    leader->state_retry_ms = leader->now_ms + KELP_COORDINATOR_RETRY_MS;
}

static void report(struct kelp_leader *leader, struct leader_task *task)
{
    const char *text = task->error.text;
    switch (task->kind) {
    case TASK_READ:
        if (task->status == KELP_OK) {
            leader->map_revision = task->map_revision;
        }
        leader->events->read(task->status, &task->found, text, leader->user);
        break;
    case TASK_READ_MAP:
        if (task->status == KELP_OK) {
            leader->map_revision = task->map_revision;
        }
        leader->events->map_read(task->status, &task->found.map, text, leader->user);
        break;
    case TASK_PLAN:
        if (task->status == KELP_OK && task->found.plan == NULL) {
            task->status = KELP_ERR_NOT_LEADER;
            text = "the election key has changed";
        }
        leader->events->plan_written(task->status, task->found.plan, text, leader->user);
        break;
    case TASK_MAP:
        report_map(leader, task);
        break;
    case TASK_STATE:
        report_state(leader, task);
        break;
    }
}

static void task_done(struct kelp_task *base)
{
    struct leader_task *task = KELP_CONTAINER_OF(base, struct leader_task, task);
    struct kelp_leader *leader = task->leader;
    if (!base->cancelled && !leader->closed && task->term == leader->term) {
        report(leader, task);
    }
    found_fini(&task->found);
    free(task->text);
    free(task);
}

/* text is transferred, even on an error. */
static kelp_status submit(struct kelp_leader *leader, enum task_kind kind, char *text)
{
    struct leader_task *task = calloc(1, sizeof(*task));
    if (task == NULL) {
        free(text);
        return KELP_ERR_NO_MEMORY;
    }
    task->task.run = run_task;
    task->task.done = task_done;
    task->leader = leader;
    task->kind = kind;
    task->term = leader->term;
    task->revision = leader->revision;
    task->map_revision = leader->map_revision;
    task->text = text;
    task->state = leader->state;
    kelp_status status = kelp_helper_submit(leader->options.helper, &task->task);
    if (status != KELP_OK) {
        free(text);
        free(task);
    }
    return status;
}

kelp_status kelp_leader_read(struct kelp_leader *leader)
{
    return submit(leader, TASK_READ, NULL);
}

kelp_status kelp_leader_read_map(struct kelp_leader *leader)
{
    return submit(leader, TASK_READ_MAP, NULL);
}

kelp_status kelp_leader_write_plan(struct kelp_leader *leader, const char *plan)
{
    char *text = strdup(plan);
    return text == NULL ? KELP_ERR_NO_MEMORY : submit(leader, TASK_PLAN, text);
}

kelp_status kelp_leader_write_map(struct kelp_leader *leader, const struct kelp_map *map)
{
    char *text = NULL;
    kelp_status status = kelp_map_print(map, &text, NULL);
    return status == KELP_OK ? submit(leader, TASK_MAP, text) : status;
}

void kelp_leader_write_state(struct kelp_leader *leader, const struct kelp_job_state *state)
{
    leader->state = *state;
    leader->state_dirty = true;
    try_state(leader);
}

void kelp_leader_tick(struct kelp_leader *leader, uint64_t now_ms)
{
    leader->now_ms = now_ms;
    try_state(leader);
}
