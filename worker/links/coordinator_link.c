/* Watches the leader's key in etcd (on_leader_key()) and holds the stream to the leader; what
 * follows from a change is decided in core/joining.c. */
#include "worker/links/coordinator_link.h"

#include <cjson/cJSON.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/address.h"
#include "common/base/limits.h"
#include "common/log/log.h"
#include "common/rpc/rpc.h"
#include "common/training/plan.h"
#include "proto/kelp.pb-c.h"
#include "proto/wire.h"
#include "worker/links/wire_map.h"

#define COMMAND_MAX (1u << 20) /* bytes: a map of 1024 partitions is under 32 KiB */
#define JOIN_PATH   "/kelp.v1.Coordinator/Join"

struct kelp_coordinator_link {
    struct kelp_coordinator_link_options options;
    struct kelp_rpc_loop *loop;
    struct kelp_etcd_watch *watch;
    struct kelp_rpc_timer *timer; /* of the next attempt */
    struct kelp_rpc_timer *beat;  /* of reports */
    struct kelp_rpc_channel *channel;
    char channel_to[KELP_WORKER_ADDRESS_MAX + 1]; /* address of channel */
    struct kelp_rpc_stream *stream;
    bool told;     /* the reason why there is no stream has been logged */
    bool unopened; /* the stream could not be opened */
    pthread_t thread;
    bool thread_started;

    pthread_mutex_t mutex;                    /* guards everything below */
    char leader[KELP_WORKER_ADDRESS_MAX + 1]; /* what the key says */
    bool stop;
    struct kelp_joining joining;
};

/* ---- the stream ------------------------------------------------------------------------------ */

static void fill_times(const struct kelp_joining_times *from, Kelp__V1__WorkerTimes *times)
{
    kelp__v1__worker_times__init(times);
    times->serial = from->window.serial;
    times->steps = from->window.steps;
    times->lanes = from->window.lanes;
    times->length_us = from->window.length_us;
    times->read_us = from->window.read_us;
    times->compute_us = from->window.compute_us;
    times->push_us = from->window.push_us;
    times->wait_us = from->window.wait_us;
    times->alone_us = from->window.alone_us;
    times->shard = (char *)(uintptr_t)from->shard; /* only read */
}

static void send_report(struct kelp_coordinator_link *m, const struct kelp_joining_report *from)
{
    struct kelp_error error;
    struct kelp_rpc_message *message = NULL;
    Kelp__V1__WorkerReport report = KELP__V1__WORKER_REPORT__INIT;
    Kelp__V1__WorkerTimes times;

    if (!m->stream) {
        return;
    }
    if (from->hello) {
        report.hello = (Kelp__V1__Hello *)(uintptr_t)m->options.hello; /* only read */
        report.plan = (char *)(uintptr_t)m->options.plan;
    }
    report.news = !from->same;
    report.assignment_epoch = from->assignment_epoch;
    report.lanes_computed = from->progress.lanes_computed;
    report.busy_us = from->progress.busy_us;
    report.version = from->progress.version;
    report.generation = from->progress.generation;
    report.trouble = (char *)(uintptr_t)from->trouble; /* only read */
    fill_times(&from->times, &times);
    report.times = from->times.window.serial > 0 ? &times : NULL;
    if (kelp_wire_encode(&report.base, &message, &error) != KELP_OK) {
        kelp_log_warn("report not sent error=\"%s\"", error.text);
        return;
    }
    kelp_status status = kelp_rpc_stream_send(m->stream, message);
    if (status != KELP_OK) {
        kelp_log_debug("report not sent status=%s",
                       kelp_status_name(status)); /* closed() follows */
    }
}

static void on_timer(void *user);

static void start_timer(struct kelp_coordinator_link *m, uint32_t after_ms)
{
    if (kelp_rpc_timer_start(m->loop, after_ms, on_timer, m, &m->timer) != KELP_OK) {
        kelp_log_error("no memory for a timer: the worker will not look for a coordinator again");
    }
}

static void on_beat(void *user);

/* 0: never. All workers of a host report at the same moments. Without memory the coordinator hears
 * nothing, ends the stream, and it is tried again. */
static void beat_every(struct kelp_coordinator_link *m, uint32_t period_ms)
{
    kelp_rpc_timer_stop(m->beat);
    m->beat = NULL;
    if (period_ms > 0 &&
        kelp_rpc_timer_start_together(m->loop, period_ms, on_beat, m, &m->beat) != KELP_OK) {
        kelp_log_error("no memory for a timer: the coordinator gets no reports");
    }
}

static const struct kelp_rpc_stream_events stream_events;

/* Nobody but the membership's thread writes joining.connected_to: no lock. */
static void connect_stream(struct kelp_coordinator_link *m)
{
    const char *leader = m->joining.connected_to;
    struct kelp_error error;
    kelp_status status = KELP_OK;

    if (m->channel && strcmp(leader, m->channel_to) != 0) {
        kelp_rpc_channel_close(m->channel);
        m->channel = NULL;
    }
    memcpy(m->channel_to, leader, sizeof(m->channel_to));
    if (!m->channel) {
        status = kelp_rpc_channel_open(m->loop, leader, KELP_ROLE_COORDINATOR, COMMAND_MAX,
                                       &m->channel, &error);
    }
    if (status == KELP_OK) {
        status = kelp_rpc_stream_open(
            m->channel,
            &(struct kelp_rpc_stream_options){.path = JOIN_PATH,
                                              .first_message_ms = m->options.connect_timeout_ms,
                                              .hello = true,
                                              .events = &stream_events,
                                              .user = m},
            &m->stream, &error);
    }
    if (status != KELP_OK) {
        m->stream = NULL;
        m->unopened = true;
        kelp_log_warn("coordinator cannot be reached address=%s error=\"%s\"", leader, error.text);
    }
}

static void carry_out(struct kelp_coordinator_link *m, const struct kelp_joining_action *action)
{
    switch (action->kind) {
    case KELP_JOINING_CONNECT:
        connect_stream(m);
        break;
    case KELP_JOINING_CLOSE:
        kelp_rpc_stream_close(m->stream, m->joining.over ? KELP_OK : KELP_ERR_NOT_LEADER,
                              m->joining.over ? "leaving" : "another coordinator leads");
        break;
    case KELP_JOINING_REPORT:
        send_report(m, &action->report);
        break;
    case KELP_JOINING_RETRY_LATER:
        start_timer(m, action->after_ms);
        break;
    case KELP_JOINING_BEAT_EVERY:
        beat_every(m, action->after_ms);
        break;
    case KELP_JOINING_TELL:
        m->options.changed(m->options.user);
        break;
    case KELP_JOINING_DROP_MAP:
        kelp_worker_map_free(action->map);
        break;
    }
}

static void handle_event(struct kelp_coordinator_link *m, const struct kelp_joining_event *event)
{
    struct kelp_joining_actions actions;

    pthread_mutex_lock(&m->mutex);
    kelp_joining_event(&m->joining, event, &actions);
    pthread_mutex_unlock(&m->mutex);
    for (size_t i = 0; i < actions.count; i++) {
        carry_out(m, &actions.items[i]);
    }
    if (m->unopened) {
        m->unopened = false;
        handle_event(m, &(struct kelp_joining_event){.kind = KELP_JOINING_CLOSED});
    }
}

static void on_timer(void *user)
{
    struct kelp_coordinator_link *m = user;
    kelp_rpc_timer_stop(m->timer);
    m->timer = NULL;
    handle_event(m, &(struct kelp_joining_event){.kind = KELP_JOINING_RETRY});
}

static void on_beat(void *user)
{
    handle_event(user, &(struct kelp_joining_event){.kind = KELP_JOINING_BEAT});
}

static void hear_command(struct kelp_coordinator_link *m, const Kelp__V1__WorkerCommand *command)
{
    struct kelp_joining_event event;
    struct kelp_error error;

    if (kelp_worker_command_decode(command, &event, &error) != KELP_OK) {
        kelp_log_warn("part of a command is not used error=\"%s\"", error.text);
    }
    if (command->status == KELP_OK && command->error[0] != '\0') {
        kelp_log_warn("waits for its place in the job reason=\"%s\"", command->error);
    }
    handle_event(m, &event);
}

static void on_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user)
{
    struct kelp_coordinator_link *m = user;
    struct kelp_error error;
    ProtobufCMessage *fields = NULL;
    struct kelp_wire_payload payload;

    kelp_status status = kelp_wire_decode(message, &kelp__v1__worker_command__descriptor,
                                          COMMAND_MAX, &fields, &payload, &error);
    if (status != KELP_OK) {
        kelp_log_warn("coordinator sent a message that cannot be read error=\"%s\"", error.text);
        kelp_rpc_stream_close(stream, status, error.text);
        return;
    }
    m->told = false;
    hear_command(m, (const Kelp__V1__WorkerCommand *)(const void *)fields);
    protobuf_c_message_free_unpacked(fields, NULL);
}

static void on_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                      void *user)
{
    struct kelp_coordinator_link *m = user;
    (void)stream;
    if (!m->told) {
        kelp_log_info("coordinator stream ended address=%s status=%s reason=\"%s\"", m->channel_to,
                      kelp_status_name(status), text);
        m->told = true; /* once until one is heard again */
    }
    m->stream = NULL;
    handle_event(m, &(struct kelp_joining_event){.kind = KELP_JOINING_CLOSED});
}

static const struct kelp_rpc_stream_events stream_events = {.message = on_message,
                                                            .closed = on_closed};

static void leader_changed(void *user)
{
    struct kelp_coordinator_link *m = user;
    char leader[sizeof(m->leader)];

    pthread_mutex_lock(&m->mutex);
    memcpy(leader, m->leader, sizeof(leader));
    pthread_mutex_unlock(&m->mutex);
    handle_event(m, &(struct kelp_joining_event){.kind = KELP_JOINING_LEADER, .leader = leader});
}

/* ---- etcd: on the client's thread ------------------------------------------------------------ */

static void on_leader_key(const struct kelp_etcd_pair *pair, void *user)
{
    struct kelp_coordinator_link *m = user;
    cJSON *root = cJSON_ParseWithLength(pair->value, pair->value_bytes);
    const cJSON *address = cJSON_GetObjectItemCaseSensitive(root, "address");

    if (cJSON_IsString(address) && strlen(address->valuestring) < sizeof(m->leader) &&
        kelp_address_is_target(address->valuestring)) {
        pthread_mutex_lock(&m->mutex);
        (void)snprintf(m->leader, sizeof(m->leader), "%s", address->valuestring);
        pthread_mutex_unlock(&m->mutex);
        if (kelp_rpc_loop_post(m->loop, leader_changed, m) != KELP_OK) {
            kelp_log_error("no memory to follow a new coordinator address=%s",
                           address->valuestring);
        }
    } else {
        kelp_log_warn("coordinator's key is malformed: HOST:PORT in numbers, or unix:/PATH, is "
                      "expected key=%s address=%.255s",
                      pair->key, cJSON_IsString(address) ? address->valuestring : "");
    }
    cJSON_Delete(root);
}

static void on_leader_gone(const char *key, void *user)
{
    (void)user;
    kelp_log_info("no coordinator leads key=%s",
                  key); /* its stream breaks by itself if it is dead */
}

static const struct kelp_etcd_watch_events watch_events = {
    .changed = on_leader_key,
    .removed = on_leader_gone,
};

/* ---- life ------------------------------------------------------------------------------------ */

static void *run(void *user)
{
    struct kelp_coordinator_link *m = user;
    bool stopping = false;
    while (!stopping || m->stream) {
        pthread_mutex_lock(&m->mutex);
        bool stop = m->stop;
        pthread_mutex_unlock(&m->mutex);
        if (stop && !stopping) {
            stopping = true;
            handle_event(m, &(struct kelp_joining_event){.kind = KELP_JOINING_STOP});
        } else {
            (void)kelp_rpc_loop_run(m->loop, -1);
        }
    }
    kelp_rpc_timer_stop(m->timer);
    kelp_rpc_timer_stop(m->beat);
    m->timer = NULL;
    m->beat = NULL;
    if (m->channel) {
        kelp_rpc_channel_close(m->channel);
        m->channel = NULL;
    }
    return NULL;
}

kelp_status kelp_coordinator_link_open(const struct kelp_coordinator_link_options *options,
                                       struct kelp_coordinator_link **ret_link,
                                       struct kelp_error *reterr)
{
    char key[sizeof("/kelp//coordinator") + KELP_JOB_NAME_MAX];
    struct kelp_coordinator_link *m = calloc(1, sizeof(*m));
    if (!m) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "coordinator link: out of memory");
    }
    m->options = *options;
    pthread_mutex_init(&m->mutex, NULL);
    (void)snprintf(key, sizeof(key), "/kelp/%s/coordinator", options->hello->job);
    kelp_status status = kelp_rpc_loop_create(&m->loop, reterr);
    if (status == KELP_OK) {
        kelp_rpc_loop_credentials(m->loop, options->credentials);
        kelp_rpc_loop_keepalive(m->loop, KELP_RPC_KEEPALIVE_MANY_MS, KELP_RPC_KEEPALIVE_TIMEOUT_MS);
        status = kelp_etcd_watch_open(options->etcd, key, &watch_events, m, &m->watch, reterr);
    }
    if (status == KELP_OK && pthread_create(&m->thread, NULL, run, m) != 0) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "coordinator link: no thread");
    }
    if (status != KELP_OK) {
        kelp_coordinator_link_close(m);
        return status;
    }
    m->thread_started = true;
    *ret_link = m;
    return KELP_OK;
}

void kelp_coordinator_link_close(struct kelp_coordinator_link *m)
{
    if (!m) {
        return;
    }
    if (m->watch) {
        kelp_etcd_watch_close(m->watch);
    }
    if (m->thread_started) {
        pthread_mutex_lock(&m->mutex);
        m->stop = true;
        pthread_mutex_unlock(&m->mutex);
        kelp_rpc_loop_wake(m->loop);
        pthread_join(m->thread, NULL);
    }
    if (m->loop) {
        kelp_rpc_loop_destroy(m->loop);
    }
    kelp_worker_map_free(m->joining.news.map);
    pthread_mutex_destroy(&m->mutex);
    free(m);
}

bool kelp_coordinator_link_joined(struct kelp_coordinator_link *m)
{
    pthread_mutex_lock(&m->mutex);
    bool joined = m->joining.joined;
    pthread_mutex_unlock(&m->mutex);
    return joined;
}

bool kelp_coordinator_link_take_news(struct kelp_coordinator_link *m, struct kelp_news *ret_news)
{
    pthread_mutex_lock(&m->mutex);
    bool any = kelp_joining_take_news(&m->joining, ret_news);
    pthread_mutex_unlock(&m->mutex);
    return any;
}

void kelp_coordinator_link_progress(struct kelp_coordinator_link *m,
                                    const struct kelp_joining_progress *progress)
{
    pthread_mutex_lock(&m->mutex);
    kelp_joining_progress(&m->joining, progress);
    pthread_mutex_unlock(&m->mutex);
}

void kelp_coordinator_link_report(struct kelp_coordinator_link *m)
{
    if (kelp_rpc_loop_post(m->loop, on_beat, m) != KELP_OK) {
        kelp_log_warn("no memory to report before it is time");
    }
}

void kelp_coordinator_link_times(struct kelp_coordinator_link *m,
                                 const struct kelp_joining_times *times)
{
    pthread_mutex_lock(&m->mutex);
    kelp_joining_times(&m->joining, times);
    pthread_mutex_unlock(&m->mutex);
}

void kelp_coordinator_link_trouble(struct kelp_coordinator_link *m, const char *text)
{
    pthread_mutex_lock(&m->mutex);
    kelp_joining_trouble(&m->joining, text);
    pthread_mutex_unlock(&m->mutex);
}

void kelp_coordinator_link_leave(struct kelp_coordinator_link *m)
{
    pthread_mutex_lock(&m->mutex);
    kelp_joining_leave(&m->joining);
    pthread_mutex_unlock(&m->mutex);
}
