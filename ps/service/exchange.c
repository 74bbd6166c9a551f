/*
 * The data path. One incoming message is one turn: its pushes and pulls run through the shard; what
 * that causes, for the sender and for others whose pulls waited, is collected by stream and leaves
 * as one message for each when the turn ends.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "ps/service/exchange_internal.h"

bool kelp__service_resize(void **items, size_t count, size_t size)
{
    void *moved = realloc(*items, count * size);

    if (moved) {
        *items = moved;
    }
    return moved != NULL;
}

/* Room for one more item; false: out of memory. */
static bool grow(void **items, size_t *capacity, size_t count, size_t size)
{
    if (count < *capacity) {
        return true;
    }
    size_t larger = *capacity ? *capacity * 2 : 16;
    if (!kelp__service_resize(items, larger, size)) {
        return false;
    }
    *capacity = larger;
    return true;
}

/* ---- peers ---- */

void kelp__service_peer_unref(struct kelp__service_peer *peer)
{
    if (atomic_fetch_sub(&peer->refs, 1) != 1) {
        return;
    }
    for (size_t i = 0; i < peer->outgoing_count; i++) {
        kelp__service_outgoing_discard(&peer->outgoing[i]);
    }
    free(peer->outgoing);
    free(peer->refused);
    free(peer->offered);
    (void)pthread_mutex_destroy(&peer->lock);
    free(peer);
}

/* The peer is locked. */
static void list_peer(struct kelp__service_turn *turn, struct kelp__service_peer *peer)
{
    if (!peer->listed) {
        peer->listed = true;
        atomic_fetch_add(&peer->refs, 1);
        peer->next = turn->touched;
        turn->touched = peer;
    }
}

/* The peer is locked. */
void kelp__service_peer_break_off(struct kelp__service_peer *peer, kelp_status status,
                                  const char *text)
{
    if (peer->stream) {
        kelp_rpc_stream_close(peer->stream, status, text);
    }
}

void kelp__service_peer_log(struct kelp__service_peer *peer, const char *what, kelp_status status,
                            const char *text)
{
    const struct service_speaker speaker = {.role = KELP_ROLE_WORKER,
                                            .id = peer->greeted ? peer->id : NULL};

    kelp__service_log_end(peer->service, peer->stream, &speaker, what, status, text);
}

/* Copy what the answer borrows until the event returns; false: out of memory. */
static bool keep_answer(struct outgoing *outgoing, const struct kelp_shard_answer *answer)
{
    const size_t value_bytes = answer->core.value_count * sizeof(*answer->core.values);

    if (answer->lent) {
        outgoing->loan = answer->loan;
    } else if (answer->bytes > 0) {
        outgoing->copy = malloc(answer->bytes);
        if (!outgoing->copy) {
            outgoing->bytes = 0;
            return false;
        }
        memcpy(outgoing->copy, answer->weights, answer->bytes);
    }
    if (value_bytes > 0) {
        outgoing->values = malloc(value_bytes);
        if (!outgoing->values) {
            return false;
        }
        memcpy(outgoing->values, answer->core.values, value_bytes);
    }
    return true;
}

static void on_answer(const struct kelp_shard_answer *answer, void *turn, void *user)
{
    struct kelp__service_peer *peer =
        (struct kelp__service_peer *)(uintptr_t)answer->core.requester;
    struct outgoing outgoing = {.partition = answer->partition,
                                .map_epoch = answer->map_epoch,
                                .core = answer->core,
                                .bytes = answer->bytes};
    bool room = keep_answer(&outgoing, answer);

    (void)user;
    (void)pthread_mutex_lock(&peer->lock);
    room = room && grow((void **)&peer->outgoing, &peer->outgoing_capacity, peer->outgoing_count,
                        sizeof(*peer->outgoing));
    if (room) {
        peer->outgoing[peer->outgoing_count++] = outgoing;
        list_peer(turn, peer);
    } else {
        kelp__service_peer_break_off(peer, KELP_ERR_NO_MEMORY, "no memory for an answer");
    }
    (void)pthread_mutex_unlock(&peer->lock);
    if (!room) {
        kelp__service_outgoing_discard(&outgoing);
    }
}

static void on_refused(uint32_t partition, const struct kelp_refusal *refusal, void *turn,
                       void *user)
{
    struct kelp__service_peer *peer = (struct kelp__service_peer *)(uintptr_t)refusal->requester;

    (void)user;
    kelp_log_debug("push refused worker=%s partition=%u version=%" PRIu64 " status=%s why=\"%s\"",
                   peer->id, partition, refusal->version, kelp_status_name(refusal->status),
                   refusal->why);
    (void)pthread_mutex_lock(&peer->lock);
    if (grow((void **)&peer->refused, &peer->refused_capacity, peer->refused_count,
             sizeof(*peer->refused))) {
        peer->refused[peer->refused_count++] =
            (struct refused){.partition = partition, .core = *refusal};
        list_peer(turn, peer);
    } else {
        kelp__service_peer_break_off(peer, KELP_ERR_NO_MEMORY, "no memory for a refusal");
    }
    (void)pthread_mutex_unlock(&peer->lock);
}

static void on_offer(uint32_t partition, uint64_t map_epoch, const struct kelp_offer *offer,
                     void *turn, void *user)
{
    struct kelp__service_peer *peer = (struct kelp__service_peer *)(uintptr_t)offer->requester;

    (void)user;
    kelp_log_debug("lanes offered worker=%s partition=%u version=%" PRIu64 " lanes=%u+%u", peer->id,
                   partition, offer->word.version, offer->lane_first, offer->lane_count);
    (void)pthread_mutex_lock(&peer->lock);
    if (grow((void **)&peer->offered, &peer->offered_capacity, peer->offered_count,
             sizeof(*peer->offered))) {
        peer->offered[peer->offered_count++] =
            (struct offered){.partition = partition, .map_epoch = map_epoch, .core = *offer};
        list_peer(turn, peer);
    } /* otherwise it expires, and is made again */
    (void)pthread_mutex_unlock(&peer->lock);
}

/* The clock is read only if something is measured. */
static void on_stepped(uint32_t partition, uint64_t since_us, void *user)
{
    const struct kelp_service *service = user;

    (void)partition;
    if (service->options.figures) {
        const uint64_t until_us = kelp_clock_us();
        kelp_figures_observe(service->options.figures, KELP_HISTOGRAM_SHARD_STEP,
                             until_us > since_us ? until_us - since_us : 0);
    }
}

const struct kelp_shard_events kelp__service_shard_events = {
    .answer = on_answer,
    .refused = on_refused,
    .offer = on_offer,
    .conflict = kelp__service_conflict,
    .worked = kelp__service_worked,
    .stepped = on_stepped,
    .record = kelp__service_control_record,
    .forward = kelp__service_forward,
    .ask = kelp__service_ask,
    .acknowledge = kelp__service_acknowledge,
    .want_copy = kelp__service_want_copy,
    .differs = kelp__service_differs,
    .copied = kelp__service_copied,
    .copy = kelp__service_copy,
    .in_sync = kelp__service_in_sync,
    .snapshot_taken = kelp__service_snapshot_taken,
    .snapshot_past = kelp__service_snapshot_past,
    .snapshot_failed = kelp__service_snapshot_failed,
    .failed = kelp__service_control_failed};

/* ---- turns ---- */

struct kelp__service_turn *kelp__service_turn_take(struct kelp_service *service)
{
    (void)pthread_mutex_lock(&service->turns_lock);
    struct kelp__service_turn *turn = service->turns;
    if (turn) {
        service->turns = turn->next;
    }
    (void)pthread_mutex_unlock(&service->turns_lock);
    if (!turn) {
        turn = calloc(1, sizeof(*turn));
        if (turn) {
            turn->service = service;
            turn->shard.user = turn;
        }
    }
    if (turn) {
        turn->shard.now_us = kelp_clock_us();
        turn->shard.step = KELP_TRACE_NO_STEP;
    }
    return turn;
}

struct kelp_shard_turn *kelp__service_turn_shard(struct kelp__service_turn *turn)
{
    return &turn->shard;
}

void kelp__service_turns_free(struct kelp_service *service)
{
    while (service->turns) {
        struct kelp__service_turn *turn = service->turns;
        service->turns = turn->next;
        kelp_shard_turn_fini(&turn->shard);
        free(turn->sent.outgoing);
        free(turn->answers);
        free(turn->answer_pointers);
        free(turn->words);
        free(turn->refusals);
        free(turn->refusal_pointers);
        free(turn->offers);
        free(turn->offer_pointers);
        free(turn->offer_words);
        free(turn);
    }
}

/* ---- requests ---- */

/* A worker's message while it is handled. */
struct request {
    struct kelp__service_peer *peer;
    struct kelp__service_turn *turn;
    const Kelp__V1__ExchangeRequest *fields;
    struct kelp_control_word word_read;
    const struct kelp_control_word *word; /* NULL: none came */
    struct kelp_wire_payload payload;
};

static kelp_status push_item(const struct request *request, const Kelp__V1__PushItem *item,
                             struct kelp_error *reterr)
{
    const enum kelp_precision precision = request->peer->service->options.job->transport.precision;

    if (item->table != 0 || item->kind != precision) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                         "push to table %u, kind %u: there is only the flat vector (0, %u)",
                         item->table, item->kind, precision);
    }
    if (!request->word) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "pushes without a control word");
    }
    if (item->offset > request->payload.length ||
        item->length > request->payload.length - item->offset) {
        return kelp_fail(
            reterr, KELP_ERR_FORMAT,
            "push to partition %u names bytes %" PRIu64 " to %" PRIu64 " of a payload of %zu",
            item->partition, item->offset, item->offset + item->length, request->payload.length);
    }
    if (item->n_sums > KELP_METRIC_SUM_COUNT) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "push to partition %u has %zu sums, over %d",
                         item->partition, item->n_sums, KELP_METRIC_SUM_COUNT);
    }
    struct kelp_shard_push push = {.partition = item->partition,
                                   .push = {.requester = (uint64_t)(uintptr_t)request->peer,
                                            .author = request->peer->author,
                                            .generation = request->fields->generation,
                                            .map_epoch = item->map_epoch,
                                            .word = request->word,
                                            .lane_first = item->lane_first,
                                            .lane_count = item->lane_count,
                                            .sums = item->sums,
                                            .sum_count = (uint32_t)item->n_sums,
                                            .digest = item->digest},
                                   .payload = &request->payload,
                                   .offset = item->offset,
                                   .length = item->length};
    struct kelp_trace *trace = request->peer->service->options.trace;
    const uint64_t begin_ns = kelp_trace_begin(trace);
    const kelp_status status =
        kelp_shard_push(request->peer->service->shard, &push, &request->turn->shard, reterr);
    kelp_trace_end(trace, begin_ns,
                   &(struct kelp_trace_span){.name = "push",
                                             .step = request->word->step,
                                             .arguments = {{"partition", item->partition},
                                                           {"lane", item->lane_first},
                                                           {"lanes", item->lane_count}}});
    return status;
}

static kelp_status push_share(const struct request *request, const Kelp__V1__StepPart *item,
                              struct kelp_error *reterr)
{
    if (!request->word) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "a share of a decision without a control word");
    }
    if (item->n_values > KELP_DECISION_SHARE_VALUES_MAX) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "partition %u's share has %zu values, at most %d",
                         item->partition, item->n_values, KELP_DECISION_SHARE_VALUES_MAX);
    }
    struct kelp_share_push push = {.requester = (uint64_t)(uintptr_t)request->peer,
                                   .author = request->peer->author,
                                   .generation = request->fields->generation,
                                   .map_epoch = item->map_epoch,
                                   .word = request->word,
                                   .partition = item->partition,
                                   .share = {.count = (uint32_t)item->n_values}};
    if (item->n_values > 0) { /* an array without elements has no address */
        memcpy(push.share.values, item->values, item->n_values * sizeof(item->values[0]));
    }
    return kelp_shard_share(request->peer->service->shard, &push, &request->turn->shard, reterr);
}

static kelp_status pull_item(const struct request *request, const Kelp__V1__PullItem *item,
                             struct kelp_error *reterr)
{
    if (item->table != 0 || item->kind != 0) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                         "pull of table %u, kind %u: there is only the flat vector (0, 0)",
                         item->table, item->kind);
    }
    struct kelp_pull pull = {.requester = (uint64_t)(uintptr_t)request->peer,
                             .author = request->peer->author,
                             .generation = request->fields->generation,
                             .map_epoch = item->map_epoch,
                             .word = request->word,
                             .decision = {.count = (uint32_t)request->fields->n_decision,
                                          .values = request->fields->decision},
                             .mode = (enum kelp_pull_mode)item->mode,
                             .step = item->step,
                             .version = item->version,
                             .holds = item->holds,
                             .held_step = item->held_step,
                             .rank = request->peer->rank};
    return kelp_shard_pull(request->peer->service->shard, item->partition, &pull,
                           &request->turn->shard, reterr);
}

static kelp_status greet(struct kelp__service_peer *peer, struct kelp__service_turn *turn,
                         const Kelp__V1__ExchangeRequest *request, struct kelp_error *reterr)
{
    kelp_status status = kelp_hello_check(request->hello, &peer->service->self, reterr);
    const struct kelp_spiffe *name = kelp_rpc_stream_name(peer->stream);

    peer->only_looks = name && name->role != KELP_ROLE_WORKER;
    if (status == KELP_OK && !peer->only_looks) {
        status = kelp_rpc_stream_check_id(peer->stream, request->hello->id, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    (void)snprintf(peer->id, sizeof(peer->id), "%s", request->hello->id); /* for the log: cut */
    peer->rank = XXH3_64bits(request->hello->id, strlen(request->hello->id));
    if (!peer->only_looks) {
        peer->author =
            kelp__service_author(peer->service, peer->id, kelp_rpc_stream_peer(peer->stream));
    }
    peer->greeted = true;
    kelp_rpc_stream_trust(peer->stream);
    kelp_log_debug("worker connected worker=%s peer=%s", peer->id,
                   kelp_rpc_stream_peer(peer->stream));
    /* The first message is always answered, so that the worker knows that it was heard. */
    (void)pthread_mutex_lock(&peer->lock);
    peer->owes_greeting = true;
    list_peer(turn, peer);
    (void)pthread_mutex_unlock(&peer->lock);
    return KELP_OK;
}

/* Only pulls of existing weights are allowed: everything else in a request moves the job. */
static bool is_look(const Kelp__V1__ExchangeRequest *request)
{
    bool moves = request->n_push > 0 || request->n_part > 0 || request->n_decision > 0 ||
                 request->word || request->helps;

    for (size_t i = 0; i < request->n_pull; i++) {
        moves = moves || (request->pull[i]->mode != KELP__V1__PULL_MODE__PULL_CURRENT &&
                          request->pull[i]->mode != KELP__V1__PULL_MODE__PULL_STEP);
    }
    return !moves;
}

static kelp_status set_spare(struct kelp__service_peer *peer, bool is_spare,
                             struct kelp_error *reterr)
{
    struct kelp_cover_candidate spare = {.requester = (uint64_t)(uintptr_t)peer,
                                         .rank = peer->rank};

    peer->helps = is_spare;
    return kelp_shard_spare(peer->service->shard, &spare, is_spare) == KELP_OK
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a spare worker");
}

static kelp_status read_word(struct request *request, struct kelp_error *reterr)
{
    const Kelp__V1__ExchangeRequest *fields = request->fields;
    const size_t decision_max = fields->word ? KELP_STEP_DECISION_MAX : 0;

    if (fields->word && !kelp_wire_get_word(fields->word, &request->word_read)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "control word of kind %u", fields->word->kind);
    }
    if (fields->n_decision > decision_max) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "a decision of %zu values, at most %zu",
                         fields->n_decision, decision_max);
    }
    request->word = fields->word ? &request->word_read : NULL;
    if (request->word && request->word->kind == KELP_STEP_TRAIN) {
        kelp_trace_step(request->peer->service->options.trace, request->word->step);
    }
    request->turn->shard.step = request->word ? request->word->step : KELP_TRACE_NO_STEP;
    return KELP_OK;
}

static kelp_status handle_request(struct request *request, struct kelp_error *reterr)
{
    const Kelp__V1__ExchangeRequest *fields = request->fields;
    struct kelp__service_peer *peer = request->peer;
    kelp_status status = peer->greeted ? KELP_OK : greet(peer, request->turn, fields, reterr);

    if (status != KELP_OK) {
        return status;
    }
    if (peer->only_looks && !is_look(fields)) {
        return kelp_fail(reterr, KELP_ERR_DENIED,
                         "%s may only pull what is there: the role of its certificate is not "
                         "worker",
                         peer->id);
    }
    status = read_word(request, reterr);
    for (size_t i = 0; status == KELP_OK && i < fields->n_push; i++) {
        status = push_item(request, fields->push[i], reterr);
    }
    for (size_t i = 0; status == KELP_OK && i < fields->n_part; i++) {
        status = push_share(request, fields->part[i], reterr);
    }
    for (size_t i = 0; status == KELP_OK && i < fields->n_pull; i++) {
        status = pull_item(request, fields->pull[i], reterr);
    }
    if (status == KELP_OK && (fields->helps != 0) != peer->helps) {
        status = set_spare(peer, fields->helps != 0, reterr);
    }
    return status;
}

/* ---- what is late ---- */

static void on_tick(void *user);

/* tick_lock is taken here. changed: the timer must be set again. */
static void follow_ticker(struct kelp_service *service, bool changed)
{
    if (changed) {
        kelp_rpc_timer_stop(service->tick_timer);
        service->tick_timer = NULL;
    }
    if (changed && service->ticker.period_ms > 0 &&
        kelp_rpc_timer_start(service->options.loop, service->ticker.period_ms, on_tick, service,
                             &service->tick_timer) != KELP_OK) {
        kelp_ticker_stopped(
            &service->ticker); /* no memory for the timer: the next message tries again */
    }
    atomic_store(&service->ticking, service->ticker.soon);
}

static void on_tick(void *user)
{
    struct kelp_service *service = user;
    struct kelp__service_turn *turn = kelp__service_turn_take(service);
    uint64_t began_us = kelp_clock_us();
    uint64_t next_us = began_us;

    (void)pthread_mutex_lock(&service->tick_lock);
    kelp_ticker_look(&service->ticker);
    atomic_store(&service->ticking, false); /* a message that is missed below sets it again */
    (void)pthread_mutex_unlock(&service->tick_lock);
    if (turn) {
        kelp_shard_tick(service->shard, &turn->shard, &next_us);
        kelp__service_turn_finish(service, turn);
    }
    (void)pthread_mutex_lock(&service->tick_lock);
    follow_ticker(service, kelp_ticker_looked(&service->ticker, began_us, next_us));
    (void)pthread_mutex_unlock(&service->tick_lock);
}

/* A message came; usually the next check is soon anyway. */
void kelp__service_keep_ticking(struct kelp_service *service)
{
    if (atomic_load(&service->ticking) || atomic_exchange(&service->ticking, true)) {
        return;
    }
    (void)pthread_mutex_lock(&service->tick_lock);
    follow_ticker(service, kelp_ticker_heard(&service->ticker));
    (void)pthread_mutex_unlock(&service->tick_lock);
}

void kelp__service_ticks_stop(struct kelp_service *service)
{
    kelp_rpc_timer_stop(service->tick_timer);
    service->tick_timer = NULL;
}

/* Say why, and end the stream. */
static void refuse_stream(struct kelp__service_peer *peer, kelp_status status, const char *text)
{
    Kelp__V1__ExchangeReply reply = KELP__V1__EXCHANGE_REPLY__INIT;

    kelp__service_peer_log(peer, "stream refused", status, text);
    reply.status = status;
    reply.error = (char *)(uintptr_t)text; /* only read */
    reply.generation = atomic_load(&peer->service->generation);
    (void)pthread_mutex_lock(&peer->lock);
    kelp__service_refuse(peer->stream, &reply.base, status, text);
    (void)pthread_mutex_unlock(&peer->lock);
}

static void on_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user)
{
    struct kelp__service_peer *peer = user;
    struct kelp_service *service = peer->service;
    struct kelp__service_turn *turn = kelp__service_turn_take(service);
    struct request request = {.peer = peer, .turn = turn};
    struct kelp_error error = {.text = "no memory for a message"};
    ProtobufCMessage *fields = NULL;
    kelp_status status = KELP_ERR_NO_MEMORY;

    (void)stream;
    kelp_trace_gap(service->options.trace,
                   &(struct kelp_trace_span){.name = "wait", .step = KELP_TRACE_NO_STEP});
    const uint64_t begin_ns = kelp_trace_begin(service->options.trace);
    atomic_fetch_add_explicit(&service->bytes_in, kelp_rpc_message_length(message),
                              memory_order_relaxed);
    if (turn) {
        status = kelp_wire_decode(message, &kelp__v1__exchange_request__descriptor,
                                  KELP_PS_FIELDS_BYTES_MAX, &fields, &request.payload, &error);
    }
    if (status == KELP_OK) {
        request.fields = (const void *)fields;
        status = handle_request(&request, &error);
        protobuf_c_message_free_unpacked(fields, NULL);
    }
    if (turn) {
        kelp__service_turn_finish(service,
                                  turn); /* even after an error: others may have been answered */
        kelp__service_keep_ticking(service);
    }
    kelp_trace_end(
        service->options.trace, begin_ns,
        &(struct kelp_trace_span){.name = "message",
                                  .step = request.word ? request.word->step : KELP_TRACE_NO_STEP});
    if (status != KELP_OK) {
        refuse_stream(peer, status, error.text);
    }
}

static void on_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                      void *user)
{
    struct kelp__service_peer *peer = user;

    (void)stream;
    kelp_log_debug("worker's stream ended worker=%s status=%s text=\"%s\"", peer->id,
                   kelp_status_name(status), text ? text : "");
    (void)pthread_mutex_lock(&peer->lock);
    peer->stream = NULL;
    (void)pthread_mutex_unlock(&peer->lock);
    kelp_shard_drop(peer->service->shard, (uint64_t)(uintptr_t)peer);
    kelp__service_author_leaves(peer->service, peer->author);
    kelp__service_peer_unref(peer);
}

static const struct kelp_rpc_stream_events exchange_events = {.message = on_message,
                                                              .closed = on_closed};

const struct kelp_rpc_stream_events *
kelp__service_exchange_accept(struct kelp_rpc_stream *stream, void *server_user, void **ret_user)
{
    struct kelp__service_peer *peer = calloc(1, sizeof(*peer));

    if (!peer) {
        return NULL;
    }
    peer->service = server_user;
    peer->stream = stream;
    atomic_init(&peer->refs, 1);
    (void)pthread_mutex_init(&peer->lock, NULL);
    *ret_user = peer;
    return &exchange_events;
}
