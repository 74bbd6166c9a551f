/*
 * `kelp bench crowd`: many workers in one process that join a job, hold a stream to the coordinator
 * and one to a shard, each over connections of its own, and compute nothing.
 */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli/bench/bench_clock.h"
#include "cli/bench/bench_crowd_report.h"
#include "cli/bench/bench_plan.h"
#include "cli/bench/bench_verbs.h"
#include "common/base/address.h"
#include "common/base/files.h"
#include "common/base/limits.h"
#include "common/base/random_id.h"
#include "common/etcd/etcd.h"
#include "common/program/daemon.h"
#include "common/rpc/rpc.h"
#include "proto/hello.h"
#include "proto/kelp.pb-c.h"
#include "proto/wire.h"
#include "worker/core/joining.h"
#include "worker/links/wire_map.h"

#define MODEL_BYTES (64u << 10)
#define MESSAGE_MAX (1u << 20)
#define ANSWER_MS   60000u
#define JOINING_AT_ONCE                                                                            \
    32u /* workers whose hello is not answered yet; a socket's queue does not hold a thousand */
#define SHARD_ADDRESS 255
#define JOIN_PATH     "/kelp.v1.Coordinator/Join"
#define EXCHANGE_PATH "/kelp.v1.ParameterServer/Exchange"

static const struct kelp_option options[] = {
    KELP_VERB_REQUIRED("etcd", "URL", "the etcd that holds the job"),
    KELP_VERB_REQUIRED("job", "NAME", "the job to join"),
    KELP_VERB_REQUIRED("id", "NAME", "prefix of the workers' names"),
    KELP_VERB_NUMBER("workers", INTEGER, 1, KELP_BENCH_CROWD_MAX, "1", NULL,
                     "how many workers to join with"),
};

static const struct kelp_program program = {
    .name = "kelp bench crowd",
    .summary = "joins a job as many idle workers; kelp bench scale starts it",
    .examples = "  kelp bench crowd --etcd http://127.0.0.1:2379 --job bench --id crowd "
                "--workers 100\n",
    KELP_VERB_OPTIONS(options),
};

struct crowd;

struct member {
    struct crowd *crowd;
    char id[64];
    Kelp__V1__Hello hello;
    struct kelp_joining joining;
    struct kelp_rpc_channel *channel; /* to the coordinator */
    struct kelp_rpc_stream *stream;
    struct kelp_rpc_timer *timer; /* of the next attempt */
    struct kelp_rpc_timer *beat;  /* of reports */
    struct kelp_rpc_channel *shard_channel;
    struct kelp_rpc_stream *shard_stream;
    bool begun, joined, reaching, reached;
    uint32_t lane_first, lane_count;
};

struct crowd {
    struct kelp_etcd *etcd;
    struct kelp_etcd_watch *watch;
    struct kelp_job_file *file;
    struct kelp_plan plan;
    char *plan_text;
    struct kelp_rpc_loop *loop;
    struct kelp_stop stop;
    struct member *members;
    uint32_t count;
    uint32_t begun; /* members whose stream was opened */
    /* The shard, and the workers that connect to it, in that order; the first ones have begun. */
    char shard[SHARD_ADDRESS + 1];
    uint64_t generation;
    struct member **reaching;
    uint32_t reaching_count, reaching_begun;
    uint16_t holders[KELP_JOB_LANES_MAX];
    struct kelp_bench_crowd_report report;
    bool changed;
    struct kelp_error failure;
    pthread_mutex_t lock; /* guards leader */
    char leader[KELP_WORKER_ADDRESS_MAX + 1];
};

static void fail(struct crowd *crowd, kelp_status status, const char *who, const char *text)
{
    if (crowd->failure.status == KELP_OK) {
        (void)kelp_fail(&crowd->failure, status, "%s: %s", who, text);
    }
}

static void note(struct crowd *crowd, bool lanes)
{
    struct kelp_bench_crowd_report *report = &crowd->report;

    report->last_us = kelp_bench_now_us();
    crowd->changed = true;
    if (lanes) {
        report->first_us = report->changes == 0 ? report->last_us : report->first_us;
        report->lanes_us = report->last_us;
        report->changes++;
    }
}

/* ---- the shard ------------------------------------------------------------------------------- */

static void reach_next(struct crowd *crowd);

static void on_shard_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message,
                             void *user)
{
    struct member *member = user;

    (void)stream;
    (void)message;
    if (!member->reached) {
        member->reached = true;
        member->crowd->report.reached++;
        note(member->crowd, false);
        reach_next(member->crowd);
    }
}

static void on_shard_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                            void *user)
{
    struct member *member = user;

    (void)stream;
    member->shard_stream = NULL;
    fail(member->crowd, status == KELP_OK ? KELP_ERR_CLOSED : status, "a shard ended a stream",
         text);
}

static const struct kelp_rpc_stream_events shard_events = {.message = on_shard_message,
                                                           .closed = on_shard_closed};

static kelp_status open_shard(struct member *member, struct kelp_error *reterr)
{
    struct crowd *crowd = member->crowd;
    const struct kelp_rpc_stream_options stream_options = {.path = EXCHANGE_PATH,
                                                           .first_message_ms = ANSWER_MS,
                                                           .hello = true,
                                                           .events = &shard_events,
                                                           .user = member};
    Kelp__V1__ExchangeRequest request = KELP__V1__EXCHANGE_REQUEST__INIT;
    struct kelp_rpc_message *message = NULL;

    kelp_status status = kelp_rpc_channel_open(crowd->loop, crowd->shard, KELP_ROLE_SHARD,
                                               MESSAGE_MAX, &member->shard_channel, reterr);
    if (status == KELP_OK) {
        status = kelp_rpc_stream_open(member->shard_channel, &stream_options, &member->shard_stream,
                                      reterr);
    }
    request.hello = &member->hello;
    request.generation = crowd->generation;
    if (status == KELP_OK) {
        status = kelp_wire_encode(&request.base, &message, reterr);
    }
    return status == KELP_OK ? kelp_rpc_stream_send(member->shard_stream, message) : status;
}

/* They come a few at a time. */
static void reach_next(struct crowd *crowd)
{
    struct kelp_error error;

    while (crowd->reaching_begun < crowd->reaching_count &&
           crowd->reaching_begun < crowd->report.reached + JOINING_AT_ONCE) {
        struct member *member = crowd->reaching[crowd->reaching_begun++];
        if (open_shard(member, &error) != KELP_OK) {
            fail(crowd, error.status, member->id, error.text);
        }
    }
}

/* All have one map, of one generation. */
static void reach(struct member *member, const struct kelp_worker_map *map)
{
    struct crowd *crowd = member->crowd;

    if (!member->reaching) {
        member->reaching = true;
        (void)snprintf(crowd->shard, sizeof(crowd->shard), "%s",
                       map->shards[map->primary[0]].address);
        crowd->generation = map->generation;
        crowd->reaching[crowd->reaching_count++] = member;
        reach_next(crowd);
    }
}

/* ---- the coordinator ------------------------------------------------------------------------- */

static void hold_lanes(struct member *member, bool hold)
{
    struct crowd *crowd = member->crowd;

    for (uint32_t i = 0; i < member->lane_count; i++) {
        uint16_t *holders = &crowd->holders[member->lane_first + i];
        const bool before = *holders > 0;
        *holders = (uint16_t)(*holders + (hold ? 1 : -1));
        if (before != (*holders > 0)) {
            crowd->report.lanes += hold ? 1 : UINT32_MAX;
        }
    }
}

/* Lanes of a job that rests are not assigned yet. */
static void take_lanes(struct member *member, const struct kelp_news *news)
{
    const uint32_t count = news->rests ? 0 : news->lane_count;

    if ((uint64_t)news->lane_first + count > KELP_JOB_LANES_MAX) {
        fail(member->crowd, KELP_ERR_FORMAT, member->id, "lanes that no job has");
        return;
    }
    if (count != member->lane_count || (count > 0 && news->lane_first != member->lane_first)) {
        hold_lanes(member, false);
        member->lane_first = news->lane_first;
        member->lane_count = count;
        hold_lanes(member, true);
        note(member->crowd, true);
    }
}

static void take_news(struct member *member)
{
    struct kelp_news news;

    if (!kelp_joining_take_news(&member->joining, &news)) {
        return;
    }
    if (news.refused.status != KELP_OK || news.leave || news.drain) {
        fail(member->crowd, KELP_ERR_CLOSED, member->id,
             news.refused.status != KELP_OK ? news.refused.text : "told to leave");
    }
    if (news.map) {
        reach(member, news.map);
    }
    if (news.has_assignment) {
        take_lanes(member, &news);
    }
    kelp_worker_map_free(news.map);
}

static void handle(struct member *member, const struct kelp_joining_event *event);

static void on_timer(void *user)
{
    struct member *member = user;

    kelp_rpc_timer_stop(member->timer);
    member->timer = NULL;
    handle(member, &(struct kelp_joining_event){.kind = KELP_JOINING_RETRY});
}

static void on_beat(void *user)
{
    handle(user, &(struct kelp_joining_event){.kind = KELP_JOINING_BEAT});
}

static void begin_next(struct crowd *crowd);

static void on_command(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user)
{
    struct member *member = user;
    struct kelp_wire_payload payload;
    struct kelp_joining_event event;
    ProtobufCMessage *fields = NULL;
    struct kelp_error error;

    (void)stream;
    kelp_status status = kelp_wire_decode(message, &kelp__v1__worker_command__descriptor,
                                          MESSAGE_MAX, &fields, &payload, &error);
    if (status != KELP_OK) {
        fail(member->crowd, status, member->id, error.text);
        return;
    }
    Kelp__V1__WorkerCommand *command = (Kelp__V1__WorkerCommand *)(void *)fields;
    if (kelp_worker_command_decode(command, &event, &error) != KELP_OK) {
        fail(member->crowd, error.status, member->id, error.text);
    }
    handle(member, &event);
    kelp__v1__worker_command__free_unpacked(command, NULL);
    if (!member->joined) {
        member->joined = true;
        member->crowd->report.joined++;
        note(member->crowd, false);
        begin_next(member->crowd);
    }
}

/* It comes again, as workers do. */
static void on_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                      void *user)
{
    struct member *member = user;
    struct kelp_bench_crowd_report *report = &member->crowd->report;

    (void)stream;
    (void)status;
    (void)text;
    member->stream = NULL;
    if (member->joined) {
        member->joined = false;
        report->joined--;
        report->dropped++;
        hold_lanes(member, false);
        member->lane_count = 0;
        note(member->crowd, true);
    }
    handle(member, &(struct kelp_joining_event){.kind = KELP_JOINING_CLOSED});
}

static const struct kelp_rpc_stream_events join_events = {.message = on_command,
                                                          .closed = on_closed};

static void connect_member(struct member *member)
{
    struct crowd *crowd = member->crowd;
    const struct kelp_rpc_stream_options stream_options = {.path = JOIN_PATH,
                                                           .first_message_ms = ANSWER_MS,
                                                           .hello = true,
                                                           .events = &join_events,
                                                           .user = member};
    struct kelp_error error;
    kelp_status status = KELP_OK;

    if (!member->channel) { /* as a worker's link does it */
        kelp_rpc_loop_keepalive(crowd->loop, KELP_RPC_KEEPALIVE_MANY_MS,
                                KELP_RPC_KEEPALIVE_TIMEOUT_MS);
        status =
            kelp_rpc_channel_open(crowd->loop, member->joining.connected_to, KELP_ROLE_COORDINATOR,
                                  MESSAGE_MAX, &member->channel, &error);
        kelp_rpc_loop_keepalive(crowd->loop, KELP_RPC_KEEPALIVE_MS, KELP_RPC_KEEPALIVE_TIMEOUT_MS);
    }
    if (status == KELP_OK) {
        status = kelp_rpc_stream_open(member->channel, &stream_options, &member->stream, &error);
    }
    if (status != KELP_OK) {
        fail(crowd, status, member->id, error.text);
    }
}

static void send_report(struct member *member, const struct kelp_joining_report *from)
{
    Kelp__V1__WorkerReport report = KELP__V1__WORKER_REPORT__INIT;
    struct kelp_rpc_message *message = NULL;
    struct kelp_error error;

    if (!member->stream) {
        return;
    }
    if (from->hello) {
        report.hello = &member->hello;
        report.plan = member->crowd->plan_text;
        member->crowd->report.hello_us = kelp_bench_now_us();
    }
    report.news = !from->same;
    report.assignment_epoch = from->assignment_epoch;
    kelp_status status = kelp_wire_encode(&report.base, &message, &error);
    if (status == KELP_OK && kelp_rpc_stream_send(member->stream, message) == KELP_ERR_LIMIT) {
        status = kelp_fail(&error, KELP_ERR_LIMIT, "the coordinator reads nothing");
    } /* a stream that has ended reports that by closed() */
    if (status != KELP_OK) {
        fail(member->crowd, status, member->id, error.text);
    }
}

static void must(struct member *member, kelp_status status)
{
    if (status != KELP_OK) {
        fail(member->crowd, status, member->id, "no memory for a timer");
    }
}

static void beat_every(struct member *member, uint32_t period_ms)
{
    kelp_rpc_timer_stop(member->beat);
    member->beat = NULL;
    if (period_ms > 0) {
        must(member, kelp_rpc_timer_start_together(member->crowd->loop, period_ms, on_beat, member,
                                                   &member->beat));
    }
}

static void carry_out(struct member *member, const struct kelp_joining_action *action)
{
    switch (action->kind) {
    case KELP_JOINING_CONNECT:
        connect_member(member);
        break;
    case KELP_JOINING_CLOSE:
        kelp_rpc_stream_close(member->stream, KELP_OK, "leaving");
        break;
    case KELP_JOINING_REPORT:
        send_report(member, &action->report);
        break;
    case KELP_JOINING_RETRY_LATER:
        must(member, kelp_rpc_timer_start(member->crowd->loop, action->after_ms, on_timer, member,
                                          &member->timer));
        break;
    case KELP_JOINING_BEAT_EVERY:
        beat_every(member, action->after_ms);
        break;
    case KELP_JOINING_TELL:
        take_news(member);
        break;
    case KELP_JOINING_DROP_MAP:
        kelp_worker_map_free(action->map);
        break;
    }
}

static void handle(struct member *member, const struct kelp_joining_event *event)
{
    struct kelp_joining_actions actions;

    kelp_joining_event(&member->joining, event, &actions);
    for (size_t i = 0; i < actions.count; i++) {
        carry_out(member, &actions.items[i]);
    }
}

/* ---- the leader ------------------------------------------------------------------------------ */

/* Members come a few at a time. */
static void begin_next(struct crowd *crowd)
{
    char leader[sizeof(crowd->leader)];

    (void)pthread_mutex_lock(&crowd->lock);
    memcpy(leader, crowd->leader, sizeof(leader));
    (void)pthread_mutex_unlock(&crowd->lock);
    while (crowd->begun < crowd->count && crowd->begun < crowd->report.joined + JOINING_AT_ONCE) {
        struct member *member = &crowd->members[crowd->begun++];
        handle(member, &(struct kelp_joining_event){.kind = KELP_JOINING_LEADER, .leader = leader});
    }
}

static void on_leader(void *user)
{
    struct crowd *crowd = user;

    if (crowd->begun == 0) {
        crowd->report.begun_us = kelp_bench_now_us();
        begin_next(crowd);
    }
}

/* On the client's thread. */
static void on_leader_key(const struct kelp_etcd_pair *pair, void *user)
{
    struct crowd *crowd = user;
    cJSON *root = cJSON_ParseWithLength(pair->value, pair->value_bytes);
    const cJSON *address = cJSON_GetObjectItemCaseSensitive(root, "address");

    if (cJSON_IsString(address) && strlen(address->valuestring) < sizeof(crowd->leader) &&
        kelp_address_is_target(address->valuestring)) {
        (void)pthread_mutex_lock(&crowd->lock);
        (void)snprintf(crowd->leader, sizeof(crowd->leader), "%s", address->valuestring);
        (void)pthread_mutex_unlock(&crowd->lock);
        if (kelp_rpc_loop_post(crowd->loop, on_leader, crowd) != KELP_OK) {
            (void)fprintf(stderr, "kelp: no memory to follow a coordinator\n");
        }
    }
    cJSON_Delete(root);
}

static void on_leader_gone(const char *key, void *user)
{
    (void)key; /* its streams end, which is told */
    (void)user;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Two connections for each worker, and the descriptors that every process has. */
static kelp_status raise_files(uint32_t workers, struct kelp_error *reterr)
{
    struct rlimit limit;

    (void)getrlimit(RLIMIT_NOFILE, &limit); /* cannot fail for this resource */
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    return kelp_bench_crowd_fits(workers, (uint64_t)limit.rlim_max, reterr);
}

static kelp_status make_members(struct crowd *crowd, const struct kelp_options *given,
                                struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(crowd->file);

    crowd->members = calloc(crowd->count, sizeof(*crowd->members));
    crowd->reaching = calloc(crowd->count, sizeof(struct member *));
    if (!crowd->members || !crowd->reaching) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < crowd->count; i++) {
        struct member *member = &crowd->members[i];
        struct kelp_hello hello = {
            .job = job->name, .spec_digest = kelp_job_file_digest(crowd->file), .id = member->id};
        member->crowd = crowd;
        (void)snprintf(member->id, sizeof(member->id), "%.40s-%" PRIu32,
                       kelp_options_text(given, "id"), i);
        kelp_status status = kelp_random_id(&hello.incarnation, reterr);
        if (status != KELP_OK) {
            return status;
        }
        kelp_hello_write(&hello, &member->hello);
    }
    return KELP_OK;
}

static kelp_status prepare(struct crowd *crowd, const struct kelp_options *given,
                           struct kelp_error *reterr)
{
    const struct kelp_daemon_job job = {.name = kelp_options_text(given, "job")};

    kelp_status status = raise_files(crowd->count, reterr);
    if (status == KELP_OK) {
        status = kelp_etcd_open(kelp_options_text(given, "etcd"), &crowd->etcd, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_daemon_read_job(crowd->etcd, &job, &crowd->stop, &crowd->file, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_bench_plan_make(
            MODEL_BYTES, kelp_job_file_job(crowd->file)->cluster.max_shards, &crowd->plan, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_plan_print(&crowd->plan, &crowd->plan_text, reterr);
    }
    if (status == KELP_OK) {
        status = make_members(crowd, given, reterr);
    }
    return status == KELP_OK ? kelp_rpc_loop_create(&crowd->loop, reterr) : status;
}

static kelp_status watch_leader(struct crowd *crowd, struct kelp_error *reterr)
{
    static const struct kelp_etcd_watch_events events = {.changed = on_leader_key,
                                                         .removed = on_leader_gone};
    char key[sizeof("/kelp//coordinator") + KELP_JOB_NAME_MAX];

    (void)snprintf(key, sizeof(key), "/kelp/%s/coordinator", kelp_job_file_job(crowd->file)->name);
    return kelp_etcd_watch_open(crowd->etcd, key, &events, crowd, &crowd->watch, reterr);
}

static bool tell(struct crowd *crowd)
{
    const bool told = kelp_files_write_all(STDOUT_FILENO, &crowd->report, sizeof(crowd->report));

    crowd->changed = false;
    crowd->report.changes = 0;
    return told;
}

/* Run until the process is killed or an error occurs. */
static kelp_status run(struct crowd *crowd, struct kelp_error *reterr)
{
    kelp_status status = watch_leader(crowd, reterr);

    while (status == KELP_OK && crowd->failure.status == KELP_OK) {
        if (!kelp_rpc_loop_run(crowd->loop, crowd->changed ? 0 : -1) && crowd->changed &&
            !tell(crowd)) {
            fail(crowd, KELP_ERR_IO, "standard output", "cannot be written to");
        }
    }
    return status == KELP_OK ? kelp_fail(reterr, crowd->failure.status, "%s", crowd->failure.text)
                             : status;
}

static int work(const struct kelp_options *given)
{
    struct crowd *crowd = calloc(1, sizeof(*crowd));
    struct kelp_error error;

    if (!crowd) {
        return kelp_complain(KELP_EXIT_FAILED, "out of memory");
    }
    crowd->count = (uint32_t)kelp_options_integer(given, "workers");
    crowd->stop = (struct kelp_stop)KELP_STOP_INIT;
    (void)pthread_mutex_init(&crowd->lock, NULL);
    kelp_status status = prepare(crowd, given, &error);
    if (status == KELP_OK) {
        status = run(crowd, &error);
    }
    /* A thousand connections need not be closed one by one: the process ends. */
    (void)kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    _exit(status == KELP_ERR_LIMIT || status == KELP_ERR_INVALID ? KELP_EXIT_USAGE
                                                                 : KELP_EXIT_FAILED);
}

const struct kelp_verb kelp_bench_verb_crowd = {
    "crowd", "join a job as many workers that do nothing (started by scale)", &program, work, NULL};
