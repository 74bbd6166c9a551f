/*
 * The control side: coordinators' commands in, reports out. ps/core/control/shard_control.h decides
 * what follows from them; this file and load.c and snapshot.c carry it out.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log/log.h"
#include "common/tls/proof.h"
#include "ps/service/shard_service_internal.h"

/* A coordinator's stream; its address is the stream's number for ps/core/control/shard_control.h.
 */
struct kelp__service_leader {
    struct kelp_service *service;
    struct kelp__service_leader *next; /* of the service; control_lock */
    struct kelp_rpc_stream *stream;
    bool greeted;
    char id[KELP_JOB_NAME_MAX + 1];
    /* The first message of a coordinator that does not lead as far as we know; etcd may tell
     * otherwise any moment. NULL: none. */
    Kelp__V1__ShardCommand *held;
    struct kelp__service_told told; /* control_lock */
};

/* ---- reports ---- */

static void put_end(const struct kelp_standing_end *end, Kelp__V1__PartitionStep *ret_step)
{
    kelp__v1__partition_step__init(ret_step);
    ret_step->partition = end->partition;
    ret_step->map_epoch = end->map_epoch;
    ret_step->step = end->step;
}

static kelp_status send_report(struct kelp_service *service, const struct kelp_shard_action *action)
{
    struct kelp__service_leader *leader =
        (struct kelp__service_leader *)(uintptr_t)action->report.stream;
    const size_t record_count = action->report.record_count;
    Kelp__V1__ShardReport report = KELP__V1__SHARD_REPORT__INIT;
    struct kelp_wire_record wires[KELP_PS_REPORT_RECORDS_MAX];
    Kelp__V1__Record *pointers[KELP_PS_REPORT_RECORDS_MAX];
    struct kelp_roster_work worked[KELP_PS_REPORT_WORK_MAX];
    Kelp__V1__WorkerWork work[KELP_PS_REPORT_WORK_MAX];
    Kelp__V1__WorkerWork *workers[KELP_PS_REPORT_WORK_MAX];
    struct kelp_wire_record latest;
    struct kelp_wire_best best;
    Kelp__V1__ControlWord word;
    struct kelp_shard_control_view view;
    Kelp__V1__PartitionStep lowest;
    Kelp__V1__PartitionStep highest;
    struct kelp_rpc_message *message = NULL;
    char conflict[sizeof(service->conflict)];

    assert(record_count <= KELP_PS_REPORT_RECORDS_MAX);
    kelp_shard_control_view(service->control, &view);
    report.hello = action->report.hello ? &service->hello : NULL;
    report.heartbeat = action->report.heartbeat;
    report.loaded_generation = view.generation;
    report.map_generation = view.map_generation;
    report.map_serial = view.map_serial;
    report.status = view.status;
    report.error = (char *)(uintptr_t)view.error;     /* only read */
    report.waiting = (char *)(uintptr_t)view.waiting; /* only read */
    for (size_t i = 0; i < record_count; i++) {
        kelp_wire_put_record(&view.records[action->report.record_first + i], &wires[i]);
        pointers[i] = &wires[i].message;
    }
    report.conflicts = kelp__service_conflicts(service, conflict, sizeof(conflict));
    report.conflict = conflict;
    report.n_work = kelp__service_take_work(service, worked, KELP_ARRAY_COUNT(worked));
    for (size_t i = 0; i < report.n_work; i++) {
        kelp__v1__worker_work__init(&work[i]);
        work[i].id = worked[i].id;
        work[i].lanes = worked[i].lanes;
        work[i].steps = worked[i].steps;
        work[i].behind_us = worked[i].behind_us;
        workers[i] = &work[i];
    }
    report.work = workers;
    report.n_records = record_count;
    report.records = pointers;
    if (view.word) {
        kelp_wire_put_word(view.word, &word);
        report.word = &word;
    }
    if (view.best) {
        kelp_wire_put_best(view.best, &best);
        report.best = &best.message;
    }
    if (view.latest_train) {
        kelp_wire_put_record(view.latest_train, &latest);
        report.latest_train = &latest.message;
    }
    if (action->report.standing.known) {
        put_end(&action->report.standing.lowest, &lowest);
        put_end(&action->report.standing.highest, &highest);
        report.lowest = &lowest;
        report.highest = &highest;
    }
    report.leaving = atomic_load(&service->leaving);
    report.snapshot = kelp__service_snapshots_report(service, &view.snapshot);
    kelp__service_told_map(&leader->told, view.map_generation, view.map_serial);
    report.replica = kelp__service_replicas_report(service, &leader->told, &report.n_replica);
    report.peer = kelp__service_peer_reports(service, &report.n_peer);
    kelp_status status = kelp_wire_encode(&report.base, &message, NULL);
    free(report.replica);
    free(report.peer);
    if (status == KELP_OK) {
        status = kelp_rpc_stream_send(leader->stream, message);
    }
    if (status != KELP_OK) {
        kelp__service_told_forget(&leader->told);
    }
    return status;
}

static void report_due(void *user)
{
    (void)kelp__service_control_apply_locked(
        user, &(struct kelp_shard_event){.kind = KELP_SHARD_ON_TIMER}); /* cannot fail */
}

/* ---- what follows ---- */

static void log_news(const struct kelp_service *service, enum kelp_shard_news news)
{
    struct kelp_shard_control_view view;

    kelp_shard_control_view(service->control, &view);
    switch (news) {
    case KELP_SHARD_NEWS_FAILED:
        kelp_log_error("shard cannot go on status=%s error=\"%s\"", kelp_status_name(view.status),
                       view.error);
        break;
    case KELP_SHARD_NEWS_MISSING:
        kelp_log_warn("waiting for storage generation=%" PRIu64 " missing=\"%s\"", view.loading,
                      view.waiting);
        break;
    case KELP_SHARD_NEWS_SNAPSHOT:
        kelp__service_snapshots_log(&view.snapshot);
        break;
    }
}

static void carry_out(struct kelp_service *service, const struct kelp_shard_action *action)
{
    struct kelp_shard_event event;

    switch (action->kind) {
    case KELP_SHARD_DO_REPORT:
        if (send_report(service, action) != KELP_OK) {
            event = (struct kelp_shard_event){
                .kind = KELP_SHARD_ON_UNSENT,
                .unsent = {action->report.stream, action->report.record_first}};
            (void)kelp__service_control_apply(service, &event); /* cannot fail */
        }
        break;
    case KELP_SHARD_DO_LOAD:
        kelp__service_load_start(service, action->generation);
        break;
    case KELP_SHARD_DO_CANCEL_LOAD:
        kelp__service_load_cancel(service);
        break;
    case KELP_SHARD_DO_START_TIMER:
        if (kelp_rpc_timer_start(service->options.loop, KELP_PS_REPORT_MS, report_due, service,
                                 &service->timer) != KELP_OK) {
            service->timer = NULL;
            event = (struct kelp_shard_event){.kind = KELP_SHARD_ON_NO_TIMER};
            (void)kelp__service_control_apply(service, &event); /* cannot fail */
        }
        break;
    case KELP_SHARD_DO_STOP_TIMER:
        kelp_rpc_timer_stop(service->timer);
        service->timer = NULL;
        break;
    case KELP_SHARD_DO_SNAPSHOT:
        kelp__service_snapshots_act(service, &action->snapshot);
        break;
    case KELP_SHARD_DO_LOG:
        log_news(service, action->news);
        break;
    case KELP_SHARD_DO_GIVE_WAY:
        kelp_rpc_stream_close(((struct kelp__service_leader *)(uintptr_t)action->stream)->stream,
                              KELP_ERR_LIMIT, "gives way: it has not shown that it leads");
        break;
    }
}

kelp_status kelp__service_control_apply(struct kelp_service *service,
                                        const struct kelp_shard_event *event)
{
    struct kelp_shard_actions actions;

    actions.count = 0; /* the rest is large, and not read */
    kelp_status status = kelp_shard_control_apply(service->control, event, &actions);
    for (uint32_t i = 0; i < actions.count; i++) {
        carry_out(service, &actions.items[i]);
    }
    return status;
}

kelp_status kelp__service_control_apply_locked(struct kelp_service *service,
                                               const struct kelp_shard_event *event)
{
    (void)pthread_mutex_lock(&service->control_lock);
    kelp_status status = kelp__service_control_apply(service, event);
    (void)pthread_mutex_unlock(&service->control_lock);
    return status;
}

/* ---- events of the shard ---- */

void kelp__service_control_record(const struct kelp_record *record,
                                  const struct kelp_control_word *word,
                                  const struct kelp_best *best, void *user)
{
    struct kelp_shard_event event = {.kind = KELP_SHARD_ON_RECORD, .record = {record, word, best}};

    (void)kelp__service_control_apply_locked(user, &event); /* reports say when it cannot go on */
}

void kelp__service_control_failed(uint32_t partition, kelp_status status, const char *text,
                                  void *user)
{
    struct kelp_shard_event event = {.kind = KELP_SHARD_ON_FAILURE, .failure = {status, text}};

    (void)partition; /* the text names it */
    if (kelp__service_control_apply_locked(user, &event) != KELP_OK) {
        kelp_log_warn("failure of a generation that ends error=\"%s\"", text);
    }
}

/* ---- streams ---- */

/* KELP_ERR_NOT_LEADER: it does not lead, as far as this shard knows. */
static kelp_status prove(struct kelp__service_leader *leader, const Kelp__V1__ShardCommand *command,
                         struct kelp_error *reterr)
{
    char digest[KELP_PROOF_HEX + 1];
    kelp_status status = kelp_proof_digest(command->proof, digest, reterr);

    if (status != KELP_OK) {
        return status;
    }
    status = kelp__service_control_apply(
        leader->service,
        &(struct kelp_shard_event){.kind = KELP_SHARD_ON_HELLO,
                                   .hello = {(uint64_t)(uintptr_t)leader, digest}});
    return status == KELP_OK ? status : kelp_fail(reterr, status, "etcd names another leader");
}

/* A leader may connect as often as it likes. */
static bool may_log(struct kelp__service_leader *leader, unsigned *ret_held)
{
    return kelp_log_gate_pass(&leader->service->leader_lines, kelp_rpc_stream_peer(leader->stream),
                              0, ret_held);
}

static kelp_status greet(struct kelp__service_leader *leader, const Kelp__V1__ShardCommand *command,
                         struct kelp_error *reterr)
{
    kelp_status status = kelp_hello_check(command->hello, &leader->service->self, reterr);
    unsigned held = 0;

    if (status == KELP_OK) {
        status = kelp_rpc_stream_check_id(leader->stream, command->hello->id, reterr);
    }
    if (status == KELP_OK) {
        status = prove(leader, command, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    (void)snprintf(leader->id, sizeof(leader->id), "%s", command->hello->id); /* log: may be cut */
    leader->greeted = true;
    kelp_rpc_stream_trust(leader->stream);
    if (may_log(leader, &held)) {
        kelp_log_info("coordinator connected coordinator=%s peer=%s more_before=%u", leader->id,
                      kelp_rpc_stream_peer(leader->stream), held);
    }
    return KELP_OK;
}

/* All but the command's snapshot order; control_lock is held.
 *
 * standing  looked at since the command came; NULL: nobody has */
static kelp_status obey(struct kelp__service_leader *leader, const Kelp__V1__ShardCommand *command,
                        const struct kelp_standing *standing, struct kelp_error *reterr)
{
    struct kelp_service *service = leader->service;
    struct kelp_shard_event event = {.kind = KELP_SHARD_ON_COMMAND,
                                     .command = {.stream = (uint64_t)(uintptr_t)leader,
                                                 .heartbeat = command->heartbeat,
                                                 .records_after = command->records_after}};
    event.command.standing = standing ? *standing : (struct kelp_standing){.known = false};
    kelp_status status = leader->greeted ? KELP_OK : greet(leader, command, reterr);

    if (status == KELP_OK && !kelp_shard_control_obeys(service->control, event.command.stream)) {
        status = kelp_fail(reterr, KELP_ERR_NOT_LEADER, "etcd names another leader");
    }
    if (status == KELP_OK && command->plan[0] != '\0') {
        status = kelp__service_load_plan(service, command->plan, reterr);
    }
    if (status == KELP_OK && command->map) {
        kelp__service_told_forget(&leader->told); /* it did not accept what came before its map */
        status = kelp__service_map_take(service, command->map, command->manifest, &event.command,
                                        reterr);
    }
    if (status == KELP_OK && command->leave[0] != '\0') {
        service->options.may_leave(command->leave, service->options.user);
    }
    if (status != KELP_OK) {
        return status;
    }
    (void)kelp__service_control_apply(service, &event); /* it is obeyed: cannot fail */
    return KELP_OK;
}

/* Ascending, and none beyond the plan; control_lock is held. */
static kelp_status check_order(const struct kelp_service *service,
                               const Kelp__V1__SnapshotOrder *from, struct kelp_error *reterr)
{
    const uint32_t count = service->plan ? service->plan->partition_count : 0;

    for (size_t i = 0; i < from->n_partition; i++) {
        if (from->partition[i] >= count ||
            (i > 0 && from->partition[i] <= from->partition[i - 1])) {
            return kelp_fail(reterr, KELP_ERR_FORMAT,
                             "snapshot order names partition %u, which is out of order or beyond "
                             "the plan's %u",
                             from->partition[i], count);
        }
    }
    return KELP_OK;
}

/* control_lock is held. */
static kelp_status obey_order(struct kelp__service_leader *leader,
                              const Kelp__V1__SnapshotOrder *from, struct kelp_error *reterr)
{
    struct kelp_service *service = leader->service;
    const struct kelp_snapshot_order order = {
        .serial = from->serial, .generation = from->generation, .step = from->step};
    const struct kelp_shard_event event = {
        .kind = KELP_SHARD_ON_ORDER,
        .order = {.stream = (uint64_t)(uintptr_t)leader,
                  .order = &order,
                  .share = {.partitions = from->partition,
                            .count = (uint32_t)from->n_partition,
                            .elsewhere = strcmp(from->shard, service->options.id) != 0 ||
                                         from->incarnation != service->options.incarnation},
                  .give_up = from->give_up}};
    kelp_status status = check_order(service, from, reterr);

    if (status != KELP_OK) {
        return status;
    }
    kelp__service_snapshots_set_folder(service, from->folder);
    status = kelp__service_control_apply(service, &event);
    if (status == KELP_ERR_OLD_GENERATION) {
        kelp_log_debug("snapshot order ignored: it is late generation=%" PRIu64 " serial=%" PRIu64,
                       order.generation, order.serial);
        status = KELP_OK;
    }
    return status;
}

/* Carry out a command's snapshot order, once its map is carried out. Partitions hear of it before
 * the next order. */
static kelp_status follow_order(struct kelp__service_leader *leader,
                                const Kelp__V1__SnapshotOrder *from, struct kelp_error *reterr)
{
    struct kelp_service *service = leader->service;
    struct kelp__service_turn *turn = kelp__service_turn_take(service);

    if (!turn) {
        kelp_log_warn("snapshot order not taken: out of memory"); /* the leader sees no report */
        return KELP_OK;
    }
    (void)pthread_mutex_lock(&service->orders_lock);
    (void)pthread_mutex_lock(&service->control_lock);
    kelp_status status = obey_order(leader, from, reterr);
    struct kelp_snapshot_order order = kelp__service_snapshots_pop_order(service);
    (void)pthread_mutex_unlock(&service->control_lock);
    if (order.serial != 0) {
        kelp_shard_snapshot(service->shard, &order, from->partition, from->n_partition,
                            kelp__service_turn_shard(turn));
    }
    (void)pthread_mutex_unlock(&service->orders_lock);
    kelp__service_turn_finish(service, turn);
    return status;
}

static void refuse_stream(struct kelp__service_leader *leader, kelp_status status, char *text)
{
    Kelp__V1__ShardReport report = KELP__V1__SHARD_REPORT__INIT;
    const struct service_speaker speaker = {.role = KELP_ROLE_COORDINATOR,
                                            .id = leader->greeted ? leader->id : NULL};

    kelp__service_log_end(leader->service, leader->stream, &speaker, "control stream refused",
                          status, text);
    report.hello = &leader->service->hello;
    report.status = status;
    report.error = text;
    kelp__service_refuse(leader->stream, &report.base, status, text);
}

/* The command waits until its sender leads; control_lock is held. */
static void hold(struct kelp__service_leader *leader, Kelp__V1__ShardCommand *command)
{
    const char *peer = kelp_rpc_stream_peer(leader->stream);
    unsigned held = 0;

    if (kelp_log_gate_pass(&leader->service->waits, peer, 0, &held)) {
        kelp_log_info("coordinator waits coordinator=%.63s peer=%s reason=\"etcd names another "
                      "leader\" more_before=%u",
                      command->hello->id, peer, held);
    }
    leader->held = command;
    leader->service->options.doubt_leader(leader->service->options.user);
}

/* As obey(); true: the command is kept. */
static bool obey_or_hold(struct kelp__service_leader *leader, Kelp__V1__ShardCommand *command,
                         kelp_status *ret_status, struct kelp_error *reterr)
{
    struct kelp_standing standing = {.known = false};

    if (command->heartbeat != 0) { /* first: partitions take control_lock inside their own */
        kelp_shard_standing(leader->service->shard, &standing);
    }
    (void)pthread_mutex_lock(&leader->service->control_lock);
    *ret_status = obey(leader, command, &standing, reterr);
    bool kept = *ret_status == KELP_ERR_NOT_LEADER && !leader->greeted && !leader->held;
    if (kept) {
        hold(leader, command);
    }
    (void)pthread_mutex_unlock(&leader->service->control_lock);
    return kept;
}

/* Takes the command. */
static void follow(struct kelp__service_leader *leader, Kelp__V1__ShardCommand *command)
{
    struct kelp_error error = {.text = ""};
    kelp_status status = KELP_OK;

    if (obey_or_hold(leader, command, &status, &error)) {
        return;
    }
    kelp__service_map_carry_out(leader->service);
    if (status == KELP_OK && command->snapshot) {
        status = follow_order(leader, command->snapshot, &error);
    }
    if (status != KELP_OK) {
        refuse_stream(leader, status, error.text);
    }
    kelp__v1__shard_command__free_unpacked(command, NULL);
}

static void on_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user)
{
    struct kelp__service_leader *leader = user;
    struct kelp_error error = {.text = ""};
    ProtobufCMessage *fields = NULL;
    struct kelp_wire_payload payload;

    (void)stream;
    kelp_status status = kelp_wire_decode(message, &kelp__v1__shard_command__descriptor,
                                          KELP_PS_COMMAND_BYTES_MAX, &fields, &payload, &error);
    if (status == KELP_OK) {
        follow(leader, (Kelp__V1__ShardCommand *)(void *)fields);
    } else {
        refuse_stream(leader, status, error.text);
    }
}

/* The next stream whose first message waits for its sender to be the leader; control_lock is
 * held. */
static struct kelp__service_leader *find_held(struct kelp_service *service)
{
    struct kelp_error error;

    for (struct kelp__service_leader *leader = service->leaders; leader; leader = leader->next) {
        if (leader->held && prove(leader, leader->held, &error) == KELP_OK) {
            return leader;
        }
    }
    return NULL;
}

void kelp_service_leader(struct kelp_service *service, const char *proof_digest)
{
    struct kelp__service_leader *leader;

    (void)pthread_mutex_lock(&service->control_lock);
    (void)kelp__service_control_apply(
        service, &(struct kelp_shard_event){.kind = KELP_SHARD_ON_LEADER, .leader = proof_digest});
    while ((leader = find_held(service)) != NULL) {
        struct kelp_error error = {.text = ""};
        Kelp__V1__ShardCommand *command = leader->held;
        leader->held = NULL;
        kelp_status status = obey(leader, command, NULL, &error); /* a first one has no order */
        if (status != KELP_OK) {
            refuse_stream(leader, status, error.text);
        }
        kelp__v1__shard_command__free_unpacked(command, NULL);
    }
    (void)pthread_mutex_unlock(&service->control_lock);
    kelp__service_map_carry_out(service);
}

static void unlink_leader(struct kelp__service_leader *leader)
{
    struct kelp__service_leader **at = &leader->service->leaders;

    while (*at != leader) {
        at = &(*at)->next;
    }
    *at = leader->next;
}

static void on_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                      void *user)
{
    struct kelp__service_leader *leader = user;
    struct kelp_service *service = leader->service;
    struct kelp_shard_event event = {.kind = KELP_SHARD_ON_CLOSE,
                                     .stream = (uint64_t)(uintptr_t)leader};
    unsigned held = 0;

    (void)stream;
    (void)pthread_mutex_lock(&service->control_lock);
    unlink_leader(leader);
    (void)kelp__service_control_apply(service, &event); /* cannot fail */
    (void)pthread_mutex_unlock(&service->control_lock);
    if (leader->greeted && may_log(leader, &held)) {
        kelp_log_info("coordinator's stream ended coordinator=%s status=%s text=\"%s\" "
                      "more_before=%u",
                      leader->id, kelp_status_name(status), text ? text : "", held);
    }
    if (leader->held) {
        kelp__v1__shard_command__free_unpacked(leader->held, NULL);
    }
    free(leader);
}

static const struct kelp_rpc_stream_events control_events = {.message = on_message,
                                                             .closed = on_closed};

const struct kelp_rpc_stream_events *
kelp__service_control_accept(struct kelp_rpc_stream *stream, void *server_user, void **ret_user)
{
    struct kelp__service_leader *leader = calloc(1, sizeof(*leader));
    struct kelp_shard_event event = {.kind = KELP_SHARD_ON_CONNECT,
                                     .stream = (uint64_t)(uintptr_t)leader};

    if (!leader) {
        return NULL;
    }
    struct kelp_service *service = server_user;
    leader->service = service;
    leader->stream = stream;
    (void)pthread_mutex_lock(&service->control_lock);
    leader->next = service->leaders;
    service->leaders = leader;
    (void)kelp__service_control_apply(service, &event); /* cannot fail */
    (void)pthread_mutex_unlock(&service->control_lock);
    *ret_user = leader;
    return &control_events;
}

/* ---- life ---- */

kelp_status kelp__service_control_open(struct kelp_service *service, struct kelp_error *reterr)
{
    const struct kelp_shard_control_config config = {
        .report_records_max = KELP_PS_REPORT_RECORDS_MAX,
        .storage_wait_ms = service->options.job->failure.storage_wait_ms};

    return kelp_shard_control_create(&config, &service->control, reterr);
}

void kelp__service_control_close(struct kelp_service *service)
{
    kelp_rpc_timer_stop(service->timer);
    service->timer = NULL;
    if (service->plan) {
        kelp_plan_fini(service->plan);
        free(service->plan);
    }
    free(service->plan_text);
    kelp__service_map_unref(service->told);
    kelp_shard_control_destroy(service->control);
}
