/*
 * The control side: commands in, reports out. More than one coordinator may be connected for a
 * moment; maps are fenced by their generation, so that a deposed leader can do no harm.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "ps/service/service_internal.h"

struct kelp__leader {
    struct kelp_service *service;
    struct kelp_rpc_stream *stream;
    struct kelp__leader *next;
    bool greeted;
    char id[KELP_JOB_NAME_MAX + 1];
    uint64_t heartbeat;
    size_t cursor; /* records before it have been sent */
};

/* ---- reports -----------------------------------------------------------------------------------
 */

/* The lock is held. */
static void send_report(struct kelp__leader *leader, bool with_hello)
{
    struct kelp_service *service = leader->service;
    Kelp__V1__ShardReport report = KELP__V1__SHARD_REPORT__INIT;
    struct kelp_wire_record wires[KELP_PS_REPORT_RECORDS_MAX];
    Kelp__V1__Record *pointers[KELP_PS_REPORT_RECORDS_MAX];
    struct kelp_wire_record latest;
    struct kelp_wire_best best;
    Kelp__V1__ControlWord word;
    struct kelp_rpc_message *message = NULL;
    struct kelp_error error;
    size_t end = leader->cursor;

    report.hello = with_hello ? &service->hello : NULL;
    report.heartbeat = leader->heartbeat;
    report.loaded_generation = atomic_load(&service->generation);
    report.status = service->status;
    report.error = service->error;
    report.waiting = service->waiting;
    for (; end < service->record_count && report.n_records < KELP_PS_REPORT_RECORDS_MAX; end++) {
        kelp_wire_put_record(&service->records[end], &wires[report.n_records]);
        pointers[report.n_records] = &wires[report.n_records].message;
        report.n_records++;
    }
    report.records = pointers;
    if (service->has_word) {
        kelp_wire_put_word(&service->word, &word);
        report.word = &word;
    }
    if (service->has_word && service->best.known) {
        kelp_wire_put_best(&service->best, &best);
        report.best = &best.message;
    }
    if (service->has_train) {
        kelp_wire_put_record(&service->latest_train, &latest);
        report.latest_train = &latest.message;
    }
    report.snapshot = kelp__service_snapshots_report(service);
    if (kelp_wire_encode(&report.base, &message, &error) == KELP_OK &&
        kelp_rpc_stream_send(leader->stream, message) == KELP_OK) {
        leader->cursor = end;
    } /* otherwise the stream is ending, and the next leader asks for what is missing */
}

void kelp__service_control_report(struct kelp_service *service)
{
    for (struct kelp__leader *leader = service->leaders; leader; leader = leader->next) {
        if (leader->greeted) {
            send_report(leader, false);
        }
    }
}

static void report_due(void *user)
{
    struct kelp_service *service = user;

    (void)pthread_mutex_lock(&service->control_lock);
    if (service->dirty) {
        service->dirty = false;
        for (struct kelp__leader *leader = service->leaders; leader; leader = leader->next) {
            if (leader->greeted) {
                send_report(leader, false);
                service->dirty = service->dirty || leader->cursor < service->record_count;
            }
        }
    } else {
        /* Nothing since the last time: no timer runs while nothing happens. */
        kelp_rpc_timer_stop(service->timer);
        service->timer = NULL;
    }
    (void)pthread_mutex_unlock(&service->control_lock);
}

/* Leaders are to hear of it within KELP_PS_REPORT_MS. The lock is held. */
static void mark_dirty(struct kelp_service *service)
{
    service->dirty = true;
    if (!service->timer && kelp_rpc_timer_start(service->options.loop, KELP_PS_REPORT_MS,
                                                report_due, service, &service->timer) != KELP_OK) {
        service->timer = NULL; /* the next heartbeat's answer carries it */
    }
}

void kelp__service_control_fail(struct kelp_service *service, kelp_status status, const char *text)
{
    if (service->status == KELP_OK) { /* the first one is the cause */
        service->status = status;
        (void)snprintf(service->error, sizeof(service->error), "%s", text);
        kelp_log_error("shard cannot go on status=%s error=\"%s\"", kelp_status_name(status), text);
    }
    mark_dirty(service);
}

void kelp__service_control_failed(uint32_t partition, kelp_status status, const char *text,
                                  void *user)
{
    struct kelp_service *service = user;

    (void)partition; /* the text names it */
    (void)pthread_mutex_lock(&service->control_lock);
    if (service->loading) {
        /* Reports speak of the generation that is being loaded; this one is about to end. */
        kelp_log_warn("failure of a generation that ends error=\"%s\"", text);
    } else {
        kelp__service_control_fail(service, status, text);
    }
    (void)pthread_mutex_unlock(&service->control_lock);
}

static bool is_for_the_files(const struct kelp_record *record)
{
    return record->epoch_end || record->digest[0] != '\0' ||
           record->word.kind == KELP_STEP_EVALUATE_VAL ||
           record->word.kind == KELP_STEP_EVALUATE_TEST;
}

/* The lock is held. */
static void keep_record(struct kelp_service *service, const struct kelp_record *record)
{
    if (service->record_count == service->record_capacity) {
        size_t capacity = service->record_capacity ? 2 * service->record_capacity : 64;
        struct kelp_record *records =
            capacity > KELP_PS_RECORDS_MAX
                ? NULL
                : realloc(service->records, capacity * sizeof(*service->records));
        if (!records) {
            kelp__service_control_fail(service, KELP_ERR_LIMIT,
                                       "too many records: make checkpoint.digest_steps larger");
            return;
        }
        service->records = records;
        service->record_capacity = capacity;
    }
    service->records[service->record_count++] = *record;
}

void kelp__service_control_record(const struct kelp_record *record,
                                  const struct kelp_control_word *word,
                                  const struct kelp_best *best, void *user)
{
    struct kelp_service *service = user;

    (void)pthread_mutex_lock(&service->control_lock);
    if (is_for_the_files(record)) {
        keep_record(service, record);
    }
    if (record->word.kind == KELP_STEP_TRAIN) {
        service->has_train = true;
        service->latest_train = *record;
    } else if (best) {
        service->best = *best;
    }
    service->has_word = true;
    service->word = *word;
    mark_dirty(service);
    (void)pthread_mutex_unlock(&service->control_lock);
}

/* ---- generations -------------------------------------------------------------------------------
 */

void kelp__service_control_generation(struct kelp_service *service,
                                      const struct kelp_shard_view *view)
{
    service->record_count = 0;
    service->has_word = view->has_word;
    service->word = view->word;
    service->best = view->best;
    service->has_train = false;
    service->status = KELP_OK;
    service->error[0] = '\0';
    for (struct kelp__leader *leader = service->leaders; leader; leader = leader->next) {
        leader->cursor = 0;
    }
    atomic_store(&service->generation, view->generation);
    kelp__service_snapshots_generation(service, view->generation, view->partitions,
                                       view->partition_count);
    kelp_log_info("generation loaded generation=%" PRIu64 " partitions=%u", view->generation,
                  view->partition_count);
}

/* ---- streams -----------------------------------------------------------------------------------
 */

/* The lock is held. */
static kelp_status greet(struct kelp__leader *leader, const Kelp__V1__ShardCommand *command,
                         struct kelp_error *reterr)
{
    struct kelp_service *service = leader->service;
    kelp_status status = kelp__service_check_hello(service, command->hello, reterr);

    if (status != KELP_OK) {
        return status;
    }
    (void)snprintf(leader->id, sizeof(leader->id), "%s", command->hello->id); /* log: may be cut */
    leader->greeted = true;
    while (leader->cursor < service->record_count &&
           service->records[leader->cursor].word.version < command->records_after) {
        leader->cursor++;
    }
    kelp_log_info("coordinator connected coordinator=%s peer=%s", leader->id,
                  kelp_rpc_stream_peer(leader->stream));
    return KELP_OK;
}

static kelp_status take_command(struct kelp__leader *leader, const Kelp__V1__ShardCommand *command,
                                struct kelp_error *reterr)
{
    struct kelp_service *service = leader->service;
    bool first = !leader->greeted;
    kelp_status status = first ? greet(leader, command, reterr) : KELP_OK;

    if (status == KELP_OK && command->plan[0] != '\0') {
        status = kelp__service_load_plan(service, command->plan, reterr);
    }
    if (status == KELP_OK && command->map) {
        status = kelp__service_load_map(service, command->map, command->manifest, reterr);
    }
    if (status == KELP_OK) {
        leader->heartbeat = command->heartbeat;
        send_report(leader, first);
    }
    return status;
}

static void on_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user)
{
    struct kelp__leader *leader = user;
    struct kelp_service *service = leader->service;
    struct kelp_error error = {.text = ""};
    ProtobufCMessage *fields = NULL;
    struct kelp_wire_payload payload;

    kelp_status status = kelp_wire_decode(message, &kelp__v1__shard_command__descriptor,
                                          KELP_PS_COMMAND_BYTES_MAX, &fields, &payload, &error);
    if (status == KELP_OK) {
        (void)pthread_mutex_lock(&service->control_lock);
        const Kelp__V1__ShardCommand *command = (const void *)fields;
        status = take_command(leader, command, &error);
        (void)pthread_mutex_unlock(&service->control_lock);
        if (status == KELP_OK && command->snapshot) {
            kelp__service_snapshots_order(service, command->snapshot);
        }
        protobuf_c_message_free_unpacked(fields, NULL);
    }
    if (status != KELP_OK) {
        Kelp__V1__ShardReport report = KELP__V1__SHARD_REPORT__INIT;
        struct kelp_rpc_message *answer = NULL;
        kelp_log_warn("control stream refused coordinator=%s peer=%s status=%s error=\"%s\"",
                      leader->greeted ? leader->id : "?", kelp_rpc_stream_peer(stream),
                      kelp_status_name(status), error.text);
        report.hello = &service->hello;
        report.status = status;
        report.error = error.text;
        if (kelp_wire_encode(&report.base, &answer, NULL) == KELP_OK &&
            kelp_rpc_stream_send(stream, answer) != KELP_OK) {
            kelp_log_debug("refusal not sent"); /* the close says it too */
        }
        kelp_rpc_stream_close(stream, status, error.text);
    }
}

static void on_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                      void *user)
{
    struct kelp__leader *leader = user;
    struct kelp_service *service = leader->service;

    (void)stream;
    (void)pthread_mutex_lock(&service->control_lock);
    struct kelp__leader **link = &service->leaders;
    while (*link != leader) {
        link = &(*link)->next;
    }
    *link = leader->next;
    service->leader_count--;
    (void)pthread_mutex_unlock(&service->control_lock);
    if (leader->greeted) {
        kelp_log_info("coordinator's stream ended coordinator=%s status=%s text=\"%s\"", leader->id,
                      kelp_status_name(status), text ? text : "");
    }
    free(leader);
}

static const struct kelp_rpc_stream_events control_events = {.message = on_message,
                                                             .closed = on_closed};

const struct kelp_rpc_stream_events *
kelp__service_control_accept(struct kelp_rpc_stream *stream, void *server_user, void **ret_user)
{
    struct kelp_service *service = server_user;
    struct kelp__leader *leader = calloc(1, sizeof(*leader));

    if (!leader) {
        return NULL;
    }
    leader->service = service;
    leader->stream = stream;
    (void)pthread_mutex_lock(&service->control_lock);
    bool room = service->leader_count < KELP_PS_CONTROL_STREAMS_MAX;
    if (room) {
        leader->next = service->leaders;
        service->leaders = leader;
        service->leader_count++;
    }
    (void)pthread_mutex_unlock(&service->control_lock);
    if (!room) {
        kelp_log_warn("control stream refused: there are %d already", KELP_PS_CONTROL_STREAMS_MAX);
        free(leader);
        return NULL;
    }
    *ret_user = leader;
    return &control_events;
}

/* ---- the end -----------------------------------------------------------------------------------
 */

void kelp__service_control_free(struct kelp_service *service)
{
    assert(!service->leaders);
    kelp_rpc_timer_stop(service->timer);
    service->timer = NULL;
    if (service->plan) {
        kelp_plan_fini(service->plan);
        free(service->plan);
    }
    free(service->plan_text);
    free(service->records);
}
