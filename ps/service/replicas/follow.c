/*
 * Streams of primaries: what they forward is applied here, and what is here is said to them. Only
 * what comes from the process that the map names as a partition's primary is applied.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log/log.h"
#include "ps/service/exchange_internal.h"
#include "ps/service/replicas/replicas_internal.h"

struct said {
    uint32_t partition;
    struct kelp_acknowledgement core;
};

struct kelp__service_following {
    struct kelp_service *service;
    struct kelp__service_following
        *next;        /* held by the list; guarded by replicas->lock, like `replaced` */
    bool replaced;    /* by a newer stream of the same process */
    atomic_uint refs; /* holds: the stream's own, and one for each turn that lists it */
    bool greeted;     /* only touched by callbacks of the stream */
    uint64_t process;
    uint64_t incarnation;
    uint64_t serial; /* of the stream, once greeted */
    char id[KELP_JOB_NAME_MAX + 1];

    pthread_mutex_t lock;           /* guards what follows */
    struct kelp_rpc_stream *stream; /* NULL once it ended */
    bool listed;                    /* in some turn's list, which will send */
    bool owes;                      /* a reply, whatever there is to say */
    uint64_t copied;                /* bytes of pieces that came over it */
    bool has_greeted;               /* the hello has been answered */
    struct kelp__service_following *next_listed;
    struct said *said;
    size_t said_count;
    size_t said_capacity;
    struct service_author *authors;   /* used by callbacks only; NULL: none was named */
    Kelp__V1__Acknowledgement *items; /* scratch, said_capacity of each */
    Kelp__V1__Acknowledgement **pointers;
};

static void unref(struct kelp__service_following *following)
{
    if (atomic_fetch_sub(&following->refs, 1) != 1) {
        return;
    }
    free(following->said);
    free(following->authors);
    free(following->items);
    free(following->pointers);
    (void)pthread_mutex_destroy(&following->lock);
    free(following);
}

/* ---- what leaves ---- */

/* The following is locked. */
static void list_following(struct kelp__service_turn *turn,
                           struct kelp__service_following *following)
{
    if (!following->listed) {
        following->listed = true;
        atomic_fetch_add(&following->refs, 1);
        following->next_listed = turn->followings;
        turn->followings = following;
    }
}

/* copied: bytes of pieces that came. */
static void owe(struct kelp__service_following *following, struct kelp__service_turn *turn,
                uint64_t copied)
{
    (void)pthread_mutex_lock(&following->lock);
    following->copied += copied;
    following->owes = true;
    list_following(turn, following);
    (void)pthread_mutex_unlock(&following->lock);
}

static bool grow(struct kelp__service_following *following)
{
    if (following->said_count < following->said_capacity) {
        return true;
    }
    const size_t capacity = following->said_capacity ? 2 * following->said_capacity : 16;
    if (!kelp__service_resize((void **)&following->said, capacity, sizeof(*following->said)) ||
        !kelp__service_resize((void **)&following->items, capacity, sizeof(*following->items)) ||
        !kelp__service_resize((void **)&following->pointers, capacity,
                              sizeof(*following->pointers))) {
        return false;
    }
    following->said_capacity = capacity;
    return true;
}

void kelp__service_acknowledge(uint32_t partition, uint64_t process,
                               const struct kelp_acknowledgement *said, void *turn, void *user)
{
    struct kelp_service *service = user;
    struct kelp__service_following *following;

    (void)pthread_mutex_lock(&service->replicas->lock);
    following = service->replicas->followings;
    while (following && (following->process != process || following->replaced)) {
        following = following->next;
    }
    if (following) {
        (void)pthread_mutex_lock(&following->lock);
        if (following->stream && grow(following)) {
            following->said[following->said_count++] =
                (struct said){.partition = partition, .core = *said};
            list_following(turn, following);
        } else if (following->stream) {
            kelp_rpc_stream_close(following->stream, KELP_ERR_NO_MEMORY,
                                  "no memory for an acknowledgement");
        }
        (void)pthread_mutex_unlock(&following->lock);
    }
    (void)pthread_mutex_unlock(&service->replicas->lock);
}

/* The following is locked and has a stream. */
static void send_reply(struct kelp__service_following *following)
{
    struct kelp_service *service = following->service;
    Kelp__V1__ReplicateReply reply = KELP__V1__REPLICATE_REPLY__INIT;
    struct kelp_rpc_message *message = NULL;

    reply.hello = following->has_greeted ? NULL : &service->hello;
    reply.generation = following->said_count > 0
                           ? following->said[following->said_count - 1].core.generation
                           : atomic_load(&service->generation);
    for (size_t i = 0; i < following->said_count; i++) {
        const struct said *said = &following->said[i];
        Kelp__V1__Acknowledgement *item = &following->items[reply.n_acknowledgement];
        if (said->core.generation != reply.generation) {
            continue; /* of one that has ended */
        }
        kelp__v1__acknowledgement__init(item);
        item->partition = said->partition;
        item->map_epoch = said->core.map_epoch;
        item->held = said->core.held;
        item->holds = said->core.holds;
        item->digest_low = said->core.digest.low;
        item->digest_high = said->core.digest.high;
        following->pointers[reply.n_acknowledgement++] = item;
    }
    reply.acknowledgement = following->pointers;
    reply.copied = following->copied;
    kelp_status status = kelp_wire_encode(&reply.base, &message, NULL);
    if (status == KELP_OK) {
        following->has_greeted = true;
        atomic_fetch_add_explicit(&service->bytes_out, kelp_rpc_message_length(message),
                                  memory_order_relaxed);
        status = kelp_rpc_stream_send(following->stream, message);
    }
    if (status != KELP_OK && status != KELP_ERR_CLOSED) {
        kelp_rpc_stream_close(following->stream, status, "a reply could not be sent");
    }
}

void kelp__service_followings_flush(struct kelp__service_turn *turn)
{
    while (turn->followings) {
        struct kelp__service_following *following = turn->followings;
        turn->followings = following->next_listed; /* may be listed again once unlocked */
        (void)pthread_mutex_lock(&following->lock);
        following->listed = false;
        if (following->stream && (following->said_count > 0 || following->owes)) {
            send_reply(following);
        }
        following->said_count = 0;
        following->owes = false;
        (void)pthread_mutex_unlock(&following->lock);
        unref(following);
    }
}

/* ---- what comes in ---- */

/* A primary's message while it is handled. */
struct incoming {
    struct kelp__service_following *following;
    struct kelp_shard_turn *turn;
    const Kelp__V1__ReplicateRequest *fields;
    struct kelp_wire_payload payload;
    const Kelp__V1__ControlWord *word; /* of the root before */
};

static kelp_status check_bytes(const struct incoming *incoming, uint32_t partition, uint64_t offset,
                               uint64_t length, struct kelp_error *reterr)
{
    if (offset > incoming->payload.length || length > incoming->payload.length - offset) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "partition %u: bytes %" PRIu64 " to %" PRIu64 " of a payload of %zu",
                         partition, offset, offset + length, incoming->payload.length);
    }
    return KELP_OK;
}

static kelp_status check_forward(const struct incoming *incoming, const Kelp__V1__Forward *item,
                                 struct kelp_error *reterr)
{
    if (item->n_sums > KELP_METRIC_SUM_COUNT || item->n_decided > KELP_STEP_DECISION_MAX ||
        strlen(item->digest) > 32) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "root of partition %u has %zu sums, %zu values and a digest of %zu bytes",
                         item->partition, item->n_sums, item->n_decided, strlen(item->digest));
    }
    return check_bytes(incoming, item->partition, item->offset, item->length, reterr);
}

static kelp_status take_forward(struct incoming *incoming, const Kelp__V1__Forward *item,
                                struct kelp_error *reterr)
{
    struct kelp_node_claim claims[KELP_PS_EVIDENCE_TOLD_MAX];
    struct kelp_shard_forwarded forwarded = {
        .partition = item->partition,
        .process = incoming->following->process,
        .forward = {.generation = incoming->fields->generation,
                    .map_epoch = item->map_epoch,
                    .skipped = item->skipped,
                    .sums = item->n_sums > 0 ? item->sums : NULL,
                    .sum_count = (uint32_t)item->n_sums,
                    .digest = item->digest,
                    .decision = {.count = (uint32_t)item->n_decided, .values = item->decided},
                    .claims = claims,
                    .claim_count = (uint32_t)item->n_claim_node},
        .payload = &incoming->payload,
        .offset = item->offset,
        .length = item->length};

    incoming->word = item->word ? item->word : incoming->word;
    if (!incoming->word || !kelp_wire_get_word(incoming->word, &forwarded.forward.word)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "root of partition %u without a good word",
                         item->partition);
    }
    kelp_status status = check_forward(incoming, item, reterr);
    if (status == KELP_OK) {
        status = kelp__service_claims_read(incoming->following->authors, item, claims, reterr);
    }
    return status == KELP_OK ? kelp_shard_forwarded(incoming->following->service->shard, &forwarded,
                                                    incoming->turn, reterr)
                             : status;
}

static kelp_status read_state(const struct incoming *incoming, const Kelp__V1__CopyPiece *item,
                              struct kelp_replica_state *ret_state, struct kelp_error *reterr)
{
    const struct kelp_service *service = incoming->following->service;
    const Kelp__V1__CopyState *state = item->state;

    *ret_state = (struct kelp_replica_state){
        .held = item->held,
        .step = state->step,
        .version = state->version,
        .has_older = state->has_older,
        .decided = {.count = (uint32_t)state->n_decided, .values = state->decided}};
    for (size_t i = 0; i < state->n_median_us && i < KELP_PACE_KINDS; i++) {
        ret_state->pace.median_us[i] = state->median_us[i];
    }
    if (state->n_decided > KELP_STEP_DECISION_MAX) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "copy with a decision of %zu values",
                         state->n_decided);
    }
    if (item->partition != 0) {
        return KELP_OK;
    }
    if (state->control.len != KELP_CONTROL_BYTES ||
        (state->has_older &&
         (!state->older_word || !kelp_wire_get_word(state->older_word, &ret_state->older_word)))) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "copy of partition 0 without its control state");
    }
    return kelp_control_unpack(state->control.data, service->options.job, service->plan,
                               &ret_state->control, reterr);
}

static kelp_status check_records(const Kelp__V1__CopyState *state, struct kelp_error *reterr)
{
    struct kelp_record record;

    if (state->n_records > KELP_PS_COPY_RECORDS_MAX) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "copy with %zu records, at most %d",
                         state->n_records, KELP_PS_COPY_RECORDS_MAX);
    }
    for (size_t i = 0; i < state->n_records; i++) {
        if (!kelp_wire_get_record(state->records[i], &record)) {
            return kelp_fail(reterr, KELP_ERR_FORMAT, "copy with a bad record");
        }
    }
    return KELP_OK;
}

/* They were checked. */
void kelp__service_copied(uint32_t partition, const void *records, void *user)
{
    const Kelp__V1__CopyState *state = records;

    for (size_t i = 0; partition == 0 && i < state->n_records; i++) {
        struct kelp_record record;
        const struct kelp_shard_event event = {.kind = KELP_SHARD_ON_COPIED_RECORD,
                                               .record = {.record = &record}};
        if (kelp_wire_get_record(state->records[i], &record)) {
            (void)kelp__service_control_apply_locked(user, &event);
        }
    }
}

static kelp_status take_piece(const struct incoming *incoming, const Kelp__V1__CopyPiece *item,
                              struct kelp_error *reterr)
{
    struct kelp__service_following *following = incoming->following;
    struct kelp_forward *known = NULL;
    struct kelp_replica_state state;
    const struct kelp_shard_piece piece = {.partition = item->partition,
                                           .process = following->process,
                                           .core = {.generation = incoming->fields->generation,
                                                    .map_epoch = item->map_epoch,
                                                    .held = item->held,
                                                    .stream = following->serial},
                                           .kind = item->kind,
                                           .position = item->position,
                                           .payload = &incoming->payload,
                                           .offset = item->offset,
                                           .length = item->length,
                                           .state = item->state ? &state : NULL,
                                           .records = item->state};
    kelp_status status = check_bytes(incoming, item->partition, item->offset, item->length, reterr);

    if (atomic_load(&following->service->generation) == 0) {
        return status; /* nothing is served yet, and no plan may be known */
    }
    if (status == KELP_OK && item->state) {
        status = read_state(incoming, item, &state, reterr);
    }
    if (status == KELP_OK && item->state) {
        status = check_records(item->state, reterr);
    }
    if (status == KELP_OK && item->state) {
        status = kelp__service_known_read(following->authors, item->state, &known, reterr);
        state.known = known;
        state.known_count = (uint32_t)item->state->n_known;
    }
    if (status == KELP_OK) {
        status = kelp_shard_fill(following->service->shard, &piece, incoming->turn, reterr);
    }
    free(known);
    return status;
}

/* The newest stream of a process is the one that counts. */
static void replace_others(struct kelp__service_following *following)
{
    struct kelp__service_replicas *replicas = following->service->replicas;

    (void)pthread_mutex_lock(&replicas->lock);
    following->serial = atomic_fetch_add(&replicas->stream_serial, 1) + 1;
    for (struct kelp__service_following *other = replicas->followings; other; other = other->next) {
        if (other->process == following->process && !other->replaced) {
            other->replaced = true;
            (void)pthread_mutex_lock(&other->lock);
            if (other->stream) {
                kelp_rpc_stream_close(other->stream, KELP_ERR_CLOSED, "a newer stream came");
            }
            (void)pthread_mutex_unlock(&other->lock);
        }
    }
    following->next = replicas->followings;
    replicas->followings = following;
    (void)pthread_mutex_unlock(&replicas->lock);
}

static void tell_link(const struct kelp__service_following *following, bool is_up,
                      struct kelp_shard_turn *turn)
{
    const struct kelp_shard_link link = {.kind = KELP_REPLICA_LINK_PRIMARY,
                                         .process = following->process,
                                         .serial = following->serial};

    kelp_shard_linked(following->service->shard, &link, is_up, turn);
}

static kelp_status greet(struct incoming *incoming, struct kelp__service_turn *turn,
                         struct kelp_error *reterr)
{
    struct kelp__service_following *following = incoming->following;
    struct kelp_service *service = following->service;
    const Kelp__V1__Hello *hello = incoming->fields->hello;
    kelp_status status = kelp_hello_check(hello, &service->self, reterr);

    if (status == KELP_OK) {
        status = kelp_rpc_stream_check_id(following->stream, hello->id, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    (void)snprintf(following->id, sizeof(following->id), "%s", hello->id); /* for the log: cut */
    following->process = kelp__service_process(hello->id, hello->incarnation);
    following->incarnation = hello->incarnation;
    following->greeted = true;
    kelp_rpc_stream_trust(following->stream);
    kelp_log_info("primary connected shard=%s peer=%s", following->id,
                  kelp_rpc_stream_peer(following->stream));
    owe(following, turn, 0);
    replace_others(following);
    tell_link(following, true, incoming->turn);
    return KELP_OK;
}

static uint64_t piece_bytes(const Kelp__V1__ReplicateRequest *fields)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < fields->n_copy; i++) {
        bytes += fields->copy[i]->length;
    }
    return bytes;
}

static kelp_status take_content(struct incoming *incoming, struct kelp_error *reterr)
{
    const Kelp__V1__ReplicateRequest *fields = incoming->fields;
    struct kelp_service *service = incoming->following->service;
    struct kelp_shard *shard = service->shard;
    kelp_status status = KELP_OK;

    for (size_t i = 0; i < fields->n_question; i++) {
        kelp_shard_asked(shard, fields->question[i]->partition, fields->generation,
                         fields->question[i]->map_epoch, incoming->turn);
    }
    for (size_t i = 0; status == KELP_OK && i < fields->n_author; i++) {
        status =
            kelp__service_author_take(service, &incoming->following->authors, fields->author[i],
                                      kelp_rpc_stream_peer(incoming->following->stream), reterr);
    }
    for (size_t i = 0; status == KELP_OK && i < fields->n_forward; i++) {
        status = take_forward(incoming, fields->forward[i], reterr);
    }
    for (size_t i = 0; status == KELP_OK && i < fields->n_copy; i++) {
        status = take_piece(incoming, fields->copy[i], reterr);
    }
    return status;
}

static void refuse_stream(struct kelp__service_following *following, kelp_status status, char *text)
{
    Kelp__V1__ReplicateReply reply = KELP__V1__REPLICATE_REPLY__INIT;
    const struct service_speaker speaker = {.role = KELP_ROLE_SHARD,
                                            .id = following->greeted ? following->id : NULL};

    kelp__service_log_end(following->service, following->stream, &speaker,
                          "primary's stream refused", status, text);
    reply.status = status;
    reply.error = text;
    (void)pthread_mutex_lock(&following->lock);
    kelp__service_refuse(following->stream, &reply.base, status, text);
    (void)pthread_mutex_unlock(&following->lock);
}

static void on_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user)
{
    struct kelp__service_following *following = user;
    struct kelp_service *service = following->service;
    struct kelp__service_turn *turn = kelp__service_turn_take(service);
    struct incoming incoming = {.following = following};
    struct kelp_error error = {.text = "no memory for a message"};
    ProtobufCMessage *fields = NULL;
    kelp_status status = KELP_ERR_NO_MEMORY;

    (void)stream;
    atomic_fetch_add_explicit(&service->bytes_in, kelp_rpc_message_length(message),
                              memory_order_relaxed);
    if (turn) {
        incoming.turn = kelp__service_turn_shard(turn);
        status = kelp_wire_decode(message, &kelp__v1__replicate_request__descriptor,
                                  KELP_PS_FIELDS_BYTES_MAX, &fields, &incoming.payload, &error);
    }
    if (status == KELP_OK) {
        incoming.fields = (const void *)fields;
        status = following->greeted ? KELP_OK : greet(&incoming, turn, &error);
        if (status == KELP_OK) {
            kelp__service_peers_heard(service->replicas->peers, following->id,
                                      following->incarnation);
            status = take_content(&incoming, &error);
        }
        if (status == KELP_OK && (incoming.fields->n_forward == 0 || incoming.fields->n_copy > 0)) {
            owe(following, turn,
                piece_bytes(incoming.fields)); /* roots have answers of their own */
        }
        protobuf_c_message_free_unpacked(fields, NULL);
    }
    if (turn) {
        kelp__service_turn_finish(service, turn);
    }
    if (status != KELP_OK) {
        refuse_stream(following, status, error.text);
    }
}

/* True if a newer stream of the process has replaced it. */
static bool unlist(struct kelp__service_following *following)
{
    struct kelp__service_replicas *replicas = following->service->replicas;

    (void)pthread_mutex_lock(&replicas->lock);
    for (struct kelp__service_following **at = &replicas->followings; *at; at = &(*at)->next) {
        if (*at == following) {
            *at = following->next;
            break;
        }
    }
    const bool replaced = following->replaced;
    (void)pthread_mutex_unlock(&replicas->lock);
    return replaced;
}

/* Its hello was accepted. */
static void leave(struct kelp__service_following *following, kelp_status status, const char *text)
{
    struct kelp_service *service = following->service;
    const bool replaced = unlist(following);
    struct kelp__service_turn *turn = kelp__service_turn_take(service);

    if (!replaced) {
        kelp__service_peers_ended(service->replicas->peers, following->id, following->incarnation,
                                  status != KELP_OK);
    }
    kelp_log_info("primary's stream ended shard=%s status=%s text=\"%s\"", following->id,
                  kelp_status_name(status), text ? text : "");
    if (turn) {
        tell_link(following, false, kelp__service_turn_shard(turn));
        kelp__service_turn_finish(service, turn);
    }
}

static void on_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                      void *user)
{
    struct kelp__service_following *following = user;

    (void)stream;
    (void)pthread_mutex_lock(&following->lock);
    following->stream = NULL;
    (void)pthread_mutex_unlock(&following->lock);
    if (following->greeted) {
        leave(following, status, text);
    }
    unref(following);
}

static const struct kelp_rpc_stream_events following_events = {.message = on_message,
                                                               .closed = on_closed};

const struct kelp_rpc_stream_events *kelp__service_follow_accept(struct kelp_rpc_stream *stream,
                                                                 void *server_user, void **ret_user)
{
    struct kelp__service_following *following = calloc(1, sizeof(*following));

    if (!following) {
        return NULL;
    }
    following->service = server_user;
    following->stream = stream;
    atomic_init(&following->refs, 1);
    (void)pthread_mutex_init(&following->lock, NULL);
    *ret_user = following;
    return &following_events;
}
