#include "worker/coordinator_link.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/rpc/rpc.h"
#include "common/training/plan.h"
#include "proto/kelp.pb-c.h"
#include "proto/wire.h"

#define RETRY_MS    100u
#define COMMAND_MAX (1u << 20) /* bytes: a map of 1024 partitions is under 32 KiB */
#define SHARDS_MAX  1024u
#define PROTOCOL    1u
#define JOIN_PATH   "/kelp.v1.Coordinator/Join"

struct kelp_membership {
    struct kelp_membership_options options;
    struct kelp_rpc_loop *loop;
    struct kelp_etcd_watch *watch;
    struct kelp_rpc_timer *timer; /* retries; only while there is no stream */
    struct kelp_rpc_channel *channel;
    struct kelp_rpc_stream *stream;
    char connected_to[KELP_WORKER_ADDRESS_MAX + 1];
    pthread_t thread;
    bool thread_started;

    pthread_mutex_t mutex; /* guards everything below */
    char leader[KELP_WORKER_ADDRESS_MAX + 1];
    bool stop;
    struct kelp_membership_news news;
    uint64_t generation;
    uint64_t version;
    uint64_t lanes_computed;
};

void kelp_worker_map_free(struct kelp_worker_map *map)
{
    if (map) {
        free(map->shards);
        free(map->primary);
        free(map->map_epoch);
        free(map);
    }
}

/* ---- decoding ----------------------------------------------------------------------------------
 */

static kelp_status fill_shards(struct kelp_worker_map *map, const Kelp__V1__Map *wire,
                               struct kelp_error *reterr)
{
    for (size_t i = 0; i < wire->n_shards; i++) {
        const Kelp__V1__ShardPlace *from = wire->shards[i];
        struct kelp_worker_shard *to = &map->shards[i];
        if (strlen(from->shard) >= sizeof(to->name) ||
            strlen(from->address) >= sizeof(to->address)) {
            return kelp_fail(reterr, KELP_ERR_LIMIT,
                             "map: name or address of shard %zu is too long", i);
        }
        memcpy(to->name, from->shard, strlen(from->shard) + 1);
        memcpy(to->address, from->address, strlen(from->address) + 1);
        to->incarnation = from->incarnation;
    }
    return KELP_OK;
}

static kelp_status fill_partitions(struct kelp_worker_map *map, const Kelp__V1__Map *wire,
                                   struct kelp_error *reterr)
{
    for (size_t i = 0; i < wire->n_partitions; i++) {
        const Kelp__V1__PartitionPlace *from = wire->partitions[i];
        if (from->partition != i || from->primary >= wire->n_shards) {
            return kelp_fail(reterr, KELP_ERR_FORMAT,
                             "map: entry %zu is partition %u on shard %u of %zu", i,
                             from->partition, from->primary, wire->n_shards);
        }
        map->primary[i] = from->primary;
        map->map_epoch[i] = from->map_epoch;
    }
    return KELP_OK;
}

static kelp_status map_decode(const Kelp__V1__Map *wire, struct kelp_worker_map **ret_map,
                              struct kelp_error *reterr)
{
    if (wire->n_shards == 0 || wire->n_shards > SHARDS_MAX || wire->n_partitions == 0 ||
        wire->n_partitions > KELP_PARTITIONS_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT,
                         "map: %zu shards and %zu partitions are out of range", wire->n_shards,
                         wire->n_partitions);
    }
    struct kelp_worker_map *map = calloc(1, sizeof(*map));
    if (!map) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "map: out of memory");
    }
    map->generation = wire->generation;
    map->shard_count = (uint32_t)wire->n_shards;
    map->partition_count = (uint32_t)wire->n_partitions;
    map->shards = calloc(wire->n_shards, sizeof(*map->shards));
    map->primary = calloc(wire->n_partitions, sizeof(*map->primary));
    map->map_epoch = calloc(wire->n_partitions, sizeof(*map->map_epoch));
    kelp_status status = KELP_OK;
    if (!map->shards || !map->primary || !map->map_epoch) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "map: out of memory");
    }
    if (status == KELP_OK) {
        status = fill_shards(map, wire, reterr);
    }
    if (status == KELP_OK) {
        status = fill_partitions(map, wire, reterr);
    }
    if (status != KELP_OK) {
        kelp_worker_map_free(map);
        return status;
    }
    *ret_map = map;
    return KELP_OK;
}

/* ---- the stream --------------------------------------------------------------------------------
 */

static void send_report(struct kelp_membership *m, Kelp__V1__WorkerReport *report)
{
    struct kelp_error error;
    struct kelp_rpc_message *message = NULL;

    pthread_mutex_lock(&m->mutex);
    report->assignment_epoch = m->news.assignment_epoch;
    report->lanes_computed = m->lanes_computed;
    report->version = m->version;
    report->generation = m->generation;
    pthread_mutex_unlock(&m->mutex);
    if (kelp_wire_encode(&report->base, &message, &error) != KELP_OK) {
        kelp_log_warn("report not sent error=\"%s\"", error.text);
        return;
    }
    kelp_status status = kelp_rpc_stream_send(m->stream, message);
    if (status != KELP_OK) {
        kelp_log_debug("report not sent status=%s",
                       kelp_status_name(status)); /* closed() follows */
    }
}

static void send_hello(struct kelp_membership *m)
{
    Kelp__V1__WorkerReport report = KELP__V1__WORKER_REPORT__INIT;
    Kelp__V1__Hello hello = KELP__V1__HELLO__INIT;

    hello.job = (char *)(uintptr_t)m->options.job;
    hello.spec_digest = m->options.spec_digest;
    hello.id = (char *)(uintptr_t)m->options.id;
    hello.incarnation = m->options.incarnation;
    hello.protocol = PROTOCOL;
    report.hello = &hello;
    report.plan = (char *)(uintptr_t)m->options.plan;
    send_report(m, &report);
}

static void take_command(struct kelp_membership *m, const Kelp__V1__WorkerCommand *command)
{
    struct kelp_error error;
    struct kelp_worker_map *map = NULL;
    bool changed = command->map || command->has_assignment || command->leave || command->status;

    if (command->map && map_decode(command->map, &map, &error) != KELP_OK) {
        kelp_log_warn("map not taken error=\"%s\"", error.text);
    }
    pthread_mutex_lock(&m->mutex);
    if (map) {
        kelp_worker_map_free(m->news.map);
        m->news.map = map;
    }
    if (command->has_assignment) {
        m->news.has_assignment = true;
        m->news.assignment_epoch = command->assignment_epoch;
        m->news.lane_first = command->lane_first;
        m->news.lane_count = command->lane_count;
    }
    m->news.leave = m->news.leave || command->leave;
    if (command->status != KELP_OK) {
        (void)kelp_fail(&m->news.refused, (kelp_status)command->status, "%s", command->error);
    }
    pthread_mutex_unlock(&m->mutex);
    if (changed) {
        m->options.changed(m->options.user);
    }
}

static void on_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user)
{
    struct kelp_membership *m = user;
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
    const Kelp__V1__WorkerCommand *command = (const Kelp__V1__WorkerCommand *)(const void *)fields;
    take_command(m, command);
    if (command->heartbeat > 0) {
        Kelp__V1__WorkerReport report = KELP__V1__WORKER_REPORT__INIT;
        report.heartbeat = command->heartbeat;
        send_report(m, &report);
    }
    protobuf_c_message_free_unpacked(fields, NULL);
}

static void retry(void *user);

static void start_retrying(struct kelp_membership *m)
{
    pthread_mutex_lock(&m->mutex);
    bool stop = m->stop;
    pthread_mutex_unlock(&m->mutex);
    if (stop) {
        return; /* a change of leader may still be handled while the loop ends */
    }
    if (!m->timer && kelp_rpc_timer_start(m->loop, RETRY_MS, retry, m, &m->timer) != KELP_OK) {
        kelp_log_error("no memory for a timer: the coordinator will not be looked for again");
    }
}

static void on_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                      void *user)
{
    struct kelp_membership *m = user;
    (void)stream;
    kelp_log_info("coordinator stream ended address=%s status=%s reason=\"%s\"", m->connected_to,
                  kelp_status_name(status), text);
    m->stream = NULL;
    start_retrying(m);
}

static const struct kelp_rpc_stream_events stream_events = {.message = on_message,
                                                            .closed = on_closed};

/* Open a stream to the leader of now, if one is known. */
static void try_connect(struct kelp_membership *m)
{
    struct kelp_error error;
    char leader[sizeof(m->leader)];

    pthread_mutex_lock(&m->mutex);
    memcpy(leader, m->leader, sizeof(leader));
    bool over = m->stop || m->news.leave || m->news.refused.status != KELP_OK;
    pthread_mutex_unlock(&m->mutex);
    if (m->stream || over || leader[0] == '\0') {
        return;
    }
    if (m->channel && strcmp(leader, m->connected_to) != 0) {
        kelp_rpc_channel_close(m->channel);
        m->channel = NULL;
    }
    memcpy(m->connected_to, leader, sizeof(leader));
    kelp_status status = KELP_OK;
    if (!m->channel) {
        status = kelp_rpc_channel_open(m->loop, leader, COMMAND_MAX, &m->channel, &error);
    }
    if (status == KELP_OK) {
        status = kelp_rpc_stream_open(m->channel, JOIN_PATH, m->options.connect_timeout_ms,
                                      &stream_events, m, &m->stream, &error);
    }
    if (status != KELP_OK) {
        m->stream = NULL;
        kelp_log_warn("coordinator cannot be reached address=%s error=\"%s\"", leader, error.text);
        return;
    }
    send_hello(m);
}

static void retry(void *user)
{
    struct kelp_membership *m = user;
    try_connect(m);
    if (m->stream) {
        kelp_rpc_timer_stop(m->timer);
        m->timer = NULL;
    }
}

/* The leader's key changed: leave the old leader's stream, the next attempt goes to the new one. */
static void leader_changed(void *user)
{
    struct kelp_membership *m = user;
    char leader[sizeof(m->leader)];

    pthread_mutex_lock(&m->mutex);
    memcpy(leader, m->leader, sizeof(leader));
    pthread_mutex_unlock(&m->mutex);
    if (m->stream && leader[0] != '\0' && strcmp(leader, m->connected_to) != 0) {
        kelp_rpc_stream_close(m->stream, KELP_ERR_NOT_LEADER, "another coordinator leads");
        return;
    }
    try_connect(m);
    if (!m->stream) {
        start_retrying(m);
    }
}

/* ---- etcd: on the client's thread
 * ---------------------------------------------------------------- */

static void on_leader_key(const struct kelp_etcd_pair *pair, void *user)
{
    struct kelp_membership *m = user;
    cJSON *root = cJSON_ParseWithLength(pair->value, pair->value_bytes);
    const cJSON *address = cJSON_GetObjectItemCaseSensitive(root, "address");

    if (cJSON_IsString(address) && strlen(address->valuestring) < sizeof(m->leader)) {
        pthread_mutex_lock(&m->mutex);
        (void)snprintf(m->leader, sizeof(m->leader), "%s", address->valuestring);
        pthread_mutex_unlock(&m->mutex);
        if (kelp_rpc_loop_post(m->loop, leader_changed, m) != KELP_OK) {
            kelp_log_error("no memory to follow a new coordinator address=%s",
                           address->valuestring);
        }
    } else {
        kelp_log_warn("coordinator's key is malformed key=%s", pair->key);
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

/* ---- life
 * ------------------------------------------------------------------------------------------ */

static void *run(void *user)
{
    struct kelp_membership *m = user;
    for (;;) {
        pthread_mutex_lock(&m->mutex);
        bool stop = m->stop;
        pthread_mutex_unlock(&m->mutex);
        if (stop && !m->stream) {
            break;
        }
        if (stop) {
            kelp_rpc_stream_close(m->stream, KELP_OK, "leaving");
        }
        (void)kelp_rpc_loop_run(m->loop, -1);
    }
    if (m->timer) {
        kelp_rpc_timer_stop(m->timer);
        m->timer = NULL;
    }
    if (m->channel) {
        kelp_rpc_channel_close(m->channel);
        m->channel = NULL;
    }
    return NULL;
}

kelp_status kelp_membership_open(const struct kelp_membership_options *options,
                                 struct kelp_membership **ret_membership, struct kelp_error *reterr)
{
    char key[sizeof("/kelp//coordinator") + KELP_JOB_NAME_MAX];
    struct kelp_membership *m = calloc(1, sizeof(*m));
    if (!m) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "membership: out of memory");
    }
    m->options = *options;
    pthread_mutex_init(&m->mutex, NULL);
    (void)snprintf(key, sizeof(key), "/kelp/%s/coordinator", options->job);
    kelp_status status = kelp_rpc_loop_create(&m->loop, reterr);
    if (status == KELP_OK) {
        status = kelp_etcd_watch_open(options->etcd, key, &watch_events, m, &m->watch, reterr);
    }
    if (status == KELP_OK && pthread_create(&m->thread, NULL, run, m) != 0) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "membership: no thread");
    }
    if (status != KELP_OK) {
        kelp_membership_close(m);
        return status;
    }
    m->thread_started = true;
    *ret_membership = m;
    return KELP_OK;
}

void kelp_membership_close(struct kelp_membership *m)
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
    kelp_worker_map_free(m->news.map);
    pthread_mutex_destroy(&m->mutex);
    free(m);
}

void kelp_membership_take(struct kelp_membership *m, struct kelp_membership_news *ret_news)
{
    pthread_mutex_lock(&m->mutex);
    *ret_news = m->news;
    m->news.map = NULL;
    pthread_mutex_unlock(&m->mutex);
}

void kelp_membership_progress(struct kelp_membership *m, uint64_t generation, uint64_t version,
                              uint64_t lanes_computed)
{
    pthread_mutex_lock(&m->mutex);
    m->generation = generation;
    m->version = version;
    m->lanes_computed = lanes_computed;
    pthread_mutex_unlock(&m->mutex);
}
