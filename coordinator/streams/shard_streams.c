#include "coordinator/streams/shard_streams.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/log/log.h"
#include "coordinator/common/term_now.h"
#include "coordinator/streams/wire_map.h"
#include "proto/convert.h"
#include "proto/wire.h"

#define CONTROL_PATH "/kelp.v1.ParameterServer/Control"

/* How a stream came to end. */
enum ending {
    ENDING_BROKEN, /* ended by the shard's side, unless one of the next two says otherwise */
    ENDING_FAILED, /* ended by us, since something could not be sent; the term does not know yet */
    ENDING_CLOSED  /* by the term */
};

struct kelp_shard_stream {
    struct kelp_shard_streams *streams;
    struct kelp_shard_stream *next;
    struct kelp_link *link;      /* of the term; NULL: no longer wanted */
    struct kelp_map_shard shard; /* that the channel goes to */
    struct kelp_rpc_channel *channel;
    struct kelp_rpc_stream *stream; /* NULL: none, or its end was reported */
    enum ending ending;
    bool greeted; /* its first message was good */
};

/* ---- sending ---- */

static void send(struct kelp_shard_stream *stream, const Kelp__V1__ShardCommand *command)
{
    struct kelp_rpc_message *message = NULL;
    struct kelp_error error;
    kelp_status status = kelp_wire_encode(&command->base, &message, &error);
    if (status == KELP_OK) {
        status = kelp_rpc_stream_send(stream->stream, message);
    }
    if (status != KELP_OK && status != KELP_ERR_CLOSED) {
        kelp_log_warn("command not sent shard=%s error=%s", stream->shard.id,
                      kelp_status_text(status));
        stream->ending = ENDING_FAILED;
        kelp_rpc_stream_close(stream->stream, status, kelp_status_text(status));
    }
}

bool kelp_shard_stream_full(const struct kelp_shard_stream *stream)
{
    return stream->ending != ENDING_BROKEN ||
           kelp_rpc_stream_queued(stream->stream) > KELP_COORDINATOR_QUEUED_MAX;
}

/* partitions: room for all of them, used by the message. */
static void fill_order(const struct kelp_link_news *news, uint32_t *partitions,
                       Kelp__V1__SnapshotOrder *ret_order)
{
    const struct kelp_map *map = news->order_map;
    kelp__v1__snapshot_order__init(ret_order);
    ret_order->serial = news->order.serial;
    ret_order->give_up = news->give_up;
    ret_order->generation = news->order.generation;
    ret_order->step = news->order.step;
    ret_order->folder = (char *)news->order.folder; /* only read by the encoder */
    if (news->give_up) {
        return;
    }
    ret_order->shard = (char *)map->shards[news->order_shard].id; /* likewise */
    ret_order->incarnation = map->shards[news->order_shard].incarnation;
    ret_order->partition = partitions;
    for (uint32_t i = 0; i < map->partition_count; i++) {
        if (map->partitions[i].primary == news->order_shard) {
            partitions[ret_order->n_partition++] = i;
        }
    }
}

void kelp_shard_stream_send(struct kelp_shard_stream *stream, const struct kelp_link_news *news)
{
    const struct kelp_shard_streams *streams = stream->streams;
    Kelp__V1__ShardCommand command = KELP__V1__SHARD_COMMAND__INIT;
    Kelp__V1__Hello hello;
    Kelp__V1__SnapshotOrder order;
    uint32_t partitions[KELP_PARTITIONS_MAX];
    struct kelp_wire_map map = {.shards = NULL};
    if (news->hello) {
        kelp_identity_hello(streams->identity, &hello);
        command.hello = &hello;
        command.proof = (char *)(uintptr_t)streams->identity->proof; /* only read */
        command.spec = streams->identity->spec;
    }
    if (news->plan) {
        command.plan = streams->plan->text;
    }
    if (news->map) {
        kelp_status status = kelp_wire_map_init(&map, news->map);
        if (status != KELP_OK) {
            stream->ending = ENDING_FAILED;
            kelp_rpc_stream_close(stream->stream, status, kelp_status_text(status));
            return;
        }
        command.map = &map.message;
        command.manifest = (char *)news->manifest; /* only read by the encoder */
    }
    if (news->has_order) {
        fill_order(news, partitions, &order);
        command.snapshot = &order;
    }
    if (news->leave) {
        command.leave = (char *)(uintptr_t)news->leave; /* only read by the encoder */
    }
    command.records_after = news->records_after;
    command.heartbeat = news->heartbeat;
    send(stream, &command);
    kelp_wire_map_fini(&map);
}

/* ---- reports ---- */

static kelp_status check_hello(const struct kelp_shard_stream *stream, const Kelp__V1__Hello *hello,
                               struct kelp_error *reterr)
{
    const struct kelp_map_shard *shard = &stream->shard;
    kelp_status status = kelp_identity_check(stream->streams->identity, hello, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (strcmp(hello->id, shard->id) != 0 || hello->incarnation != shard->incarnation) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH,
                         "%s of incarnation %" PRIu64 " answers at %s, not %s of %" PRIu64,
                         hello->id, hello->incarnation, shard->address, shard->id,
                         shard->incarnation);
    }
    return KELP_OK;
}

static void greet(struct kelp_shard_stream *stream, struct kelp_term *term,
                  const Kelp__V1__ShardReport *report)
{
    struct kelp_error error = {.text = ""};
    struct kelp_link_hello hello = {.loaded_generation = report->loaded_generation};
    hello.status = check_hello(stream, report->hello, &error);
    hello.text = error.text;
    stream->greeted = kelp_term_shard_hello(term, stream->link, &hello);
}

static bool record_at(const void *records, size_t index, struct kelp_record *ret_record)
{
    const Kelp__V1__ShardReport *report = records;
    return kelp_wire_get_record(report->records[index], ret_record);
}

static enum kelp_checkpointer_answer answer_of(Kelp__V1__SnapshotState state)
{
    switch (state) {
    case KELP__V1__SNAPSHOT_STATE__SNAPSHOT_TAKING:
        return KELP_CHECKPOINTER_ANSWER_TAKING;
    case KELP__V1__SNAPSHOT_STATE__SNAPSHOT_CAPTURED:
        return KELP_CHECKPOINTER_ANSWER_CAPTURED;
    case KELP__V1__SNAPSHOT_STATE__SNAPSHOT_DURABLE:
        return KELP_CHECKPOINTER_ANSWER_DURABLE;
    case KELP__V1__SNAPSHOT_STATE__SNAPSHOT_FAILED:
        return KELP_CHECKPOINTER_ANSWER_FAILED;
    case KELP__V1__SNAPSHOT_STATE__SNAPSHOT_PAST:
        return KELP_CHECKPOINTER_ANSWER_PAST;
    default: /* NONE, and what a newer shard may say */
        return KELP_CHECKPOINTER_ANSWER_NONE;
    }
}

/* What a report says of replicas and peers. */
struct followers {
    struct kelp_replica_report replicas[KELP_PARTITIONS_MAX];
    struct kelp_link_peer peers[KELP_COORDINATOR_SHARDS_MAX];
};

static void add_followers(const Kelp__V1__ShardReport *from, struct followers *followers,
                          struct kelp_link_report *report)
{
    if (from->n_replica > KELP_PARTITIONS_MAX || from->n_peer > KELP_COORDINATOR_SHARDS_MAX) {
        return; /* there is no map with so many */
    }
    for (size_t i = 0; i < from->n_replica; i++) {
        const Kelp__V1__ReplicaReport *replica = from->replica[i];
        followers->replicas[i] =
            (struct kelp_replica_report){.partition = replica->partition,
                                         .map_epoch = replica->map_epoch,
                                         .backup_in_sync = replica->backup_in_sync,
                                         .joiner_in_sync = replica->joiner_in_sync,
                                         .lag = replica->lag,
                                         .copied = replica->copied,
                                         .to_copy = replica->to_copy};
    }
    for (size_t i = 0; i < from->n_peer; i++) {
        const Kelp__V1__PeerReport *peer = from->peer[i];
        followers->peers[i] = (struct kelp_link_peer){.id = peer->shard,
                                                      .incarnation = peer->incarnation,
                                                      .silent_ms = peer->silent_ms,
                                                      .broken = peer->broken};
    }
    report->replicas = followers->replicas;
    report->replica_count = from->n_replica;
    report->peers = followers->peers;
    report->peer_count = from->n_peer;
}

/* Convert a snapshot's report with all that it points to. */
struct snapshot {
    struct kelp_checkpointer_report report;
    struct kelp_checkpointer_part parts[KELP_PARTITIONS_MAX];
    struct kelp_control_word word;
};

/* NULL: there is none, or it cannot be taken. */
static const struct kelp_checkpointer_report *snapshot_of(const struct kelp_shard_stream *stream,
                                                          const Kelp__V1__SnapshotReport *from,
                                                          struct snapshot *snapshot)
{
    if (!from || from->n_part > KELP_PARTITIONS_MAX) {
        return NULL;
    }
    for (size_t i = 0; i < from->n_part; i++) {
        snapshot->parts[i] = (struct kelp_checkpointer_part){.partition = from->part[i]->partition,
                                                             .bytes = from->part[i]->bytes,
                                                             .digest = from->part[i]->digest};
    }
    bool has_word = from->word && kelp_wire_get_word(from->word, &snapshot->word);
    snapshot->report = (struct kelp_checkpointer_report){
        .shard = stream->shard.id,
        .incarnation = stream->shard.incarnation,
        .serial = from->serial,
        .answer = answer_of(from->state),
        .error = from->error,
        .storage = from->storage,
        .parts = snapshot->parts,
        .part_count = (uint32_t)from->n_part,
        .word = has_word ? &snapshot->word : NULL,
        .current_step = from->current_step,
    };
    return &snapshot->report;
}

static struct kelp_apart_step step_of(const Kelp__V1__PartitionStep *from)
{
    return (struct kelp_apart_step){
        .partition = from->partition, .map_epoch = from->map_epoch, .step = from->step};
}

static void on_report(struct kelp_shard_stream *stream, struct kelp_term *term,
                      const Kelp__V1__ShardReport *from)
{
    struct snapshot snapshot;
    struct followers followers;
    struct kelp_control_word word;
    struct kelp_best best;
    struct kelp_record latest;
    struct kelp_apart_step lowest;
    struct kelp_apart_step highest;
    bool known = kelp_status_known(from->status);
    bool has_word = from->word && kelp_wire_get_word(from->word, &word);
    bool has_best = from->best && kelp_wire_get_best(from->best, &best);
    bool has_latest = from->latest_train && kelp_wire_get_record(from->latest_train, &latest);
    struct kelp_link_report report = {
        .heartbeat = from->heartbeat,
        .loaded_generation = from->loaded_generation,
        .map_generation = from->map_generation,
        .map_serial = from->map_serial,
        .status = known ? (kelp_status)from->status : KELP_ERR_FORMAT,
        .error = from->error,
        .waiting = from->waiting,
        .snapshot = snapshot_of(stream, from->snapshot, &snapshot),
        .word = has_word ? &word : NULL,
        .best = has_best ? &best : NULL,
        .record_count = from->n_records,
        .record = record_at,
        .records = from,
        .latest_train = has_latest ? &latest : NULL,
        .conflicts = from->conflicts,
        .conflict = from->conflict,
        .leaving = from->leaving,
    };
    add_followers(from, &followers, &report);
    if (from->lowest && from->highest) {
        lowest = step_of(from->lowest);
        highest = step_of(from->highest);
        report.lowest = &lowest;
        report.highest = &highest;
    }
    for (size_t i = 0; i < from->n_work; i++) {
        const Kelp__V1__WorkerWork *work = from->work[i];
        if (work->lanes > 0) {
            kelp_term_worker_worked(term, work->id);
        }
        kelp_term_worker_pushed(term, work->id, work->steps, work->behind_us);
    }
    kelp_term_shard_report(term, stream->link, &report);
}

/* ---- stream events ---- */

static void on_message(struct kelp_rpc_stream *rpc, struct kelp_rpc_message *message, void *user)
{
    struct kelp_shard_stream *stream = user;
    struct kelp_term *term = kelp_term_now(stream->streams->leadership);
    ProtobufCMessage *fields = NULL;
    struct kelp_wire_payload payload;
    struct kelp_error error;
    (void)rpc;
    if (stream->ending != ENDING_BROKEN) {
        return;
    }
    kelp_status status =
        kelp_wire_decode(message, &kelp__v1__shard_report__descriptor,
                         KELP_COORDINATOR_MESSAGE_BYTES, &fields, &payload, &error);
    if (status != KELP_OK) {
        kelp_term_shard_unreadable(term, stream->link, status, error.text);
        return;
    }
    Kelp__V1__ShardReport *report = (Kelp__V1__ShardReport *)(void *)fields;
    if (!stream->greeted) {
        greet(stream, term, report);
    }
    if (stream->greeted && stream->ending == ENDING_BROKEN) {
        on_report(stream, term, report);
    }
    kelp__v1__shard_report__free_unpacked(report, NULL);
}

static void on_closed(struct kelp_rpc_stream *rpc, kelp_status status, const char *text, void *user)
{
    struct kelp_shard_stream *stream = user;
    struct kelp_term *term = kelp_term_now(stream->streams->leadership);
    enum ending ending = stream->ending;
    (void)rpc;
    stream->stream = NULL;
    if (ending != ENDING_CLOSED) {
        kelp_term_shard_closed(term, stream->link, ending == ENDING_BROKEN, status, text);
    }
}

static const struct kelp_rpc_stream_events stream_events = {.message = on_message,
                                                            .closed = on_closed};

/* ---- life ---- */

struct kelp_shard_stream *kelp_shard_streams_add(struct kelp_shard_streams *streams,
                                                 struct kelp_link *link)
{
    struct kelp_shard_stream *stream = calloc(1, sizeof(*stream));
    if (stream) {
        stream->streams = streams;
        stream->link = link;
        stream->next = streams->first;
        streams->first = stream;
    }
    return stream;
}

void kelp_shard_stream_abandon(struct kelp_shard_stream *stream)
{
    stream->link = NULL;
}

bool kelp_shard_streams_sweep(struct kelp_shard_streams *streams)
{
    struct kelp_shard_stream **at = &streams->first;
    while (*at) {
        struct kelp_shard_stream *stream = *at;
        if (stream->link || stream->stream) {
            at = &stream->next;
            continue;
        }
        *at = stream->next;
        kelp_rpc_channel_close(stream->channel);
        free(stream);
    }
    return !streams->first;
}

/* A channel to where the shard is now. */
static kelp_status connect(struct kelp_shard_stream *stream, const struct kelp_map_shard *shard,
                           struct kelp_error *reterr)
{
    bool same = stream->shard.incarnation == shard->incarnation &&
                strcmp(stream->shard.address, shard->address) == 0;
    if (stream->channel && !same) {
        kelp_rpc_channel_close(stream->channel);
        stream->channel = NULL;
    }
    stream->shard = *shard;
    return stream->channel != NULL
               ? KELP_OK
               : kelp_rpc_channel_open(stream->streams->loop, shard->address, KELP_ROLE_SHARD,
                                       KELP_COORDINATOR_MESSAGE_BYTES, &stream->channel, reterr);
}

kelp_status kelp_shard_stream_open(struct kelp_shard_stream *stream,
                                   const struct kelp_map_shard *shard,
                                   const struct kelp_link_news *hello, struct kelp_error *reterr)
{
    if (stream->stream) {
        return kelp_fail(reterr, KELP_ERR_BUSY, "the stream before has not ended yet");
    }
    kelp_status status = connect(stream, shard, reterr);
    if (status == KELP_OK) {
        status = kelp_rpc_stream_open(
            stream->channel,
            &(struct kelp_rpc_stream_options){.path = CONTROL_PATH,
                                              .first_message_ms = KELP_COORDINATOR_FIRST_MS,
                                              .hello = true,
                                              .events = &stream_events,
                                              .user = stream},
            &stream->stream, reterr);
    }
    if (status != KELP_OK) {
        stream->stream = NULL;
        return status;
    }
    stream->ending = ENDING_BROKEN;
    stream->greeted = false;
    kelp_shard_stream_send(stream, hello);
    return KELP_OK;
}

void kelp_shard_stream_close(struct kelp_shard_stream *stream, kelp_status status, const char *text)
{
    assert(stream->stream); /* the term knows whether it is open */
    stream->ending = ENDING_CLOSED;
    kelp_rpc_stream_close(stream->stream, status, text);
}
