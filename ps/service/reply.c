/*
 * Sends what a turn has to send: one message for each stream, or pieces of transport.piece_bytes.
 * Weights are lent to the message, except slices so small that a copy costs less.
 */
#include <stdlib.h>
#include <string.h>

#include "ps/service/exchange_internal.h"
#include "ps/service/map_internal.h"

/* Slices of at most so many bytes are copied, because lending one costs about as much. With
 * shared memory, bytes copied into a message are copied once more when it is sent. */
#define COPY_BYTES_MAX        16384
#define COPY_SHARED_BYTES_MAX 2048

void kelp__service_outgoing_discard(struct outgoing *outgoing)
{
    free(outgoing->values);
    outgoing->values = NULL;
    if (outgoing->copy) {
        free(outgoing->copy);
        outgoing->copy = NULL;
    } else if (outgoing->bytes > 0) {
        kelp_extent_return(&outgoing->loan);
    }
    outgoing->bytes = 0;
}

static size_t larger_capacity(size_t capacity, size_t needed)
{
    return capacity * 2 > needed ? capacity * 2 : needed + 16;
}

/* Grow the turn's scratch for the peer's answers. */
static bool scratch_room(struct kelp__service_turn *turn, const struct kelp__service_peer *peer)
{
    if (peer->outgoing_count > turn->answer_capacity) {
        size_t capacity = larger_capacity(turn->answer_capacity, peer->outgoing_count);
        if (!kelp__service_resize((void **)&turn->answers, capacity, sizeof(*turn->answers)) ||
            !kelp__service_resize((void **)&turn->answer_pointers, capacity,
                                  sizeof(*turn->answer_pointers)) ||
            !kelp__service_resize((void **)&turn->words, capacity, sizeof(*turn->words))) {
            return false;
        }
        turn->answer_capacity = capacity;
    }
    if (peer->refused_count > turn->refusal_capacity) {
        size_t capacity = larger_capacity(turn->refusal_capacity, peer->refused_count);
        if (!kelp__service_resize((void **)&turn->refusals, capacity, sizeof(*turn->refusals)) ||
            !kelp__service_resize((void **)&turn->refusal_pointers, capacity,
                                  sizeof(*turn->refusal_pointers))) {
            return false;
        }
        turn->refusal_capacity = capacity;
    }
    if (peer->offered_count > turn->offer_capacity) {
        size_t capacity = larger_capacity(turn->offer_capacity, peer->offered_count);
        if (!kelp__service_resize((void **)&turn->offers, capacity, sizeof(*turn->offers)) ||
            !kelp__service_resize((void **)&turn->offer_pointers, capacity,
                                  sizeof(*turn->offer_pointers)) ||
            !kelp__service_resize((void **)&turn->offer_words, capacity,
                                  sizeof(*turn->offer_words))) {
            return false;
        }
        turn->offer_capacity = capacity;
    }
    return true;
}

/* A peer that was refused for an old map may not hear the leader: tell it the partition's entry
 * if ours is newer than its own. */
static void tell_entry(struct kelp__service_turn *turn, uint32_t partition, kelp_status status,
                       uint64_t *map_epoch, Kelp__V1__ShardPlace **ret_primary)
{
    const uint64_t generation = atomic_load(&turn->service->generation);
    uint64_t epoch;

    if (status != KELP_ERR_NOT_PRIMARY && status != KELP_ERR_OLD_MAP_EPOCH) {
        return;
    }
    if (!turn->told) {
        turn->told = kelp__service_told(turn->service);
    }
    const Kelp__V1__ShardPlace *primary =
        kelp__service_map_tell(turn->told, generation, partition, &epoch);
    if (primary && epoch >= *map_epoch) {
        *map_epoch = epoch;
        *ret_primary = (Kelp__V1__ShardPlace *)(uintptr_t)primary; /* only read */
    }
}

static void put_answer(struct kelp__service_turn *turn, size_t index,
                       const struct outgoing *outgoing, size_t offset)
{
    Kelp__V1__PullAnswer *answer = &turn->answers[index];

    kelp__v1__pull_answer__init(answer);
    answer->partition = outgoing->partition;
    answer->map_epoch = outgoing->map_epoch;
    answer->status = outgoing->core.status;
    tell_entry(turn, outgoing->partition, outgoing->core.status, &answer->map_epoch,
               &answer->primary);
    answer->step = outgoing->core.step;
    answer->current_step = outgoing->core.current_step;
    if (outgoing->core.has_word) {
        kelp_wire_put_word(&outgoing->core.word, &turn->words[index]);
        answer->word = &turn->words[index];
    }
    if (outgoing->core.is_share) {
        answer->is_part = true;
        answer->n_part = outgoing->core.value_count;
        answer->part = outgoing->values;
    } else {
        answer->n_decision = outgoing->core.value_count;
        answer->decision = outgoing->values;
    }
    if (outgoing->bytes > 0) {
        answer->offset = offset;
        answer->length = outgoing->bytes;
    }
    turn->answer_pointers[index] = answer;
}

static void put_refusals(struct kelp__service_turn *turn, const struct kelp__service_peer *peer,
                         Kelp__V1__ExchangeReply *reply)
{
    for (size_t i = 0; i < peer->refused_count; i++) {
        Kelp__V1__Refusal *refusal = &turn->refusals[i];
        kelp__v1__refusal__init(refusal);
        refusal->partition = peer->refused[i].partition;
        refusal->map_epoch = peer->refused[i].core.map_epoch;
        refusal->status = peer->refused[i].core.status;
        tell_entry(turn, refusal->partition, peer->refused[i].core.status, &refusal->map_epoch,
                   &refusal->primary);
        refusal->version = peer->refused[i].core.version;
        turn->refusal_pointers[i] = refusal;
    }
    reply->n_refused = peer->refused_count;
    reply->refused = turn->refusal_pointers;
}

static void put_offers(struct kelp__service_turn *turn, const struct kelp__service_peer *peer,
                       Kelp__V1__ExchangeReply *reply)
{
    for (size_t i = 0; i < peer->offered_count; i++) {
        Kelp__V1__Offer *offer = &turn->offers[i];
        kelp__v1__offer__init(offer);
        offer->partition = peer->offered[i].partition;
        offer->map_epoch = peer->offered[i].map_epoch;
        offer->lane_first = peer->offered[i].core.lane_first;
        offer->lane_count = peer->offered[i].core.lane_count;
        kelp_wire_put_word(&peer->offered[i].core.word, &turn->offer_words[i]);
        offer->word = &turn->offer_words[i];
        turn->offer_pointers[i] = offer;
    }
    reply->n_offer = peer->offered_count;
    reply->offer = turn->offer_pointers;
}

static void loan_returned(void *user, bool read)
{
    struct kelp_extent_loan *loan = user;

    if (read) {
        kelp_extent_return(loan);
    } else {
        kelp_extent_abandon(loan);
    }
    free(loan);
}

/* Lend the weights to the message; the loan is used up. */
static kelp_status add_loan(struct kelp_rpc_message *message, const struct kelp_extent_loan *loan)
{
    struct kelp_extent_loan *kept = malloc(sizeof(*kept));
    struct kelp_rpc_loan lent = {
        .area = kelp_extent_loan_area(loan), .returned = loan_returned, .user = kept};
    kelp_status status = kept ? KELP_OK : KELP_ERR_NO_MEMORY;

    lent.bytes = kelp_extent_loan_bytes(loan, &lent.length);
    if (kept) {
        *kept = *loan;
        status = kelp_rpc_message_lend(message, &lent);
    }
    if (status != KELP_OK) {
        kelp_extent_return(loan);
        free(kept);
    }
    return status;
}

static const void *bytes_of(const struct outgoing *outgoing)
{
    size_t bytes;

    return outgoing->copy ? outgoing->copy : kelp_extent_loan_bytes(&outgoing->loan, &bytes);
}

static bool is_copied(const struct outgoing *outgoing)
{
    if (outgoing->copy || outgoing->bytes == 0) {
        return true;
    }
    return outgoing->bytes <=
           (kelp_extent_loan_area(&outgoing->loan) ? COPY_SHARED_BYTES_MAX : COPY_BYTES_MAX);
}

/* Add the leading answers that are copied, as one segment; *ret_count: how many. */
static kelp_status add_copies(struct kelp_rpc_message *message, struct outgoing *outgoing,
                              size_t count, size_t *ret_count)
{
    size_t bytes = 0;
    size_t end = 0;

    while (end < count && is_copied(&outgoing[end])) {
        bytes += outgoing[end++].bytes;
    }
    *ret_count = end;
    char *to = bytes > 0 ? kelp_rpc_message_extend(message, bytes) : NULL;
    for (size_t i = 0; i < end; i++) {
        if (to && outgoing[i].bytes > 0) {
            memcpy(to, bytes_of(&outgoing[i]), outgoing[i].bytes);
            to += outgoing[i].bytes;
        }
    }
    return to || bytes == 0 ? KELP_OK : KELP_ERR_LIMIT;
}

/* Add the tensor bytes of the answers in order; the caller discards the answers. */
static kelp_status add_payload(struct kelp_rpc_message *message, struct outgoing *outgoing,
                               size_t count)
{
    kelp_status status = KELP_OK;
    size_t i = 0;

    while (status == KELP_OK && i < count) {
        size_t used = 1;
        if (is_copied(&outgoing[i])) {
            status = add_copies(message, &outgoing[i], count - i, &used);
        } else {
            struct kelp_extent_loan loan = outgoing[i].loan;
            outgoing[i].bytes = 0;
            status = add_loan(message, &loan);
        }
        i += used;
    }
    return status;
}

/* The end of the answers from `first` on that fit into one message: at least one answer, else up
 * to piece_bytes of payload. */
static size_t piece_end(const struct kelp__service_peer *peer, size_t first, size_t piece_bytes,
                        size_t *ret_bytes)
{
    size_t bytes = 0;
    size_t end = first;

    while (end < peer->outgoing_count &&
           (end == first || bytes + peer->outgoing[end].bytes <= piece_bytes)) {
        bytes += peer->outgoing[end++].bytes;
    }
    *ret_bytes = bytes;
    return end;
}

/* Build the next piece of the peer's answers, and move *first on. The peer is locked. */
static kelp_status build_piece(struct kelp__service_turn *turn,
                               const struct kelp__service_peer *peer, uint64_t generation,
                               size_t *first, struct kelp_rpc_message **ret_message,
                               struct kelp_error *reterr)
{
    Kelp__V1__ExchangeReply reply = KELP__V1__EXCHANGE_REPLY__INIT;
    struct kelp_rpc_message *message = NULL;
    size_t bytes;
    size_t end = piece_end(peer, *first, turn->service->options.job->transport.piece_bytes, &bytes);
    size_t offset = 0;

    reply.generation = generation;
    for (size_t i = *first; i < end; i++) {
        put_answer(turn, i - *first, &peer->outgoing[i], offset);
        offset += peer->outgoing[i].bytes;
    }
    reply.n_answer = end - *first;
    reply.answer = turn->answer_pointers;
    if (*first == 0) {
        put_refusals(turn, peer, &reply);
        put_offers(turn, peer, &reply);
    }
    kelp_status status = kelp_wire_encode_payload(&reply.base, bytes, &message, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = add_payload(message, &peer->outgoing[*first], end - *first);
    if (status != KELP_OK) {
        kelp_rpc_message_unref(message);
        return kelp_fail(reterr, status, "no memory for an answer");
    }
    *first = end;
    *ret_message = message;
    return KELP_OK;
}

/* Send a piece that starts at answer *first. The peer is locked and has a stream. */
static kelp_status send_piece(struct kelp__service_turn *turn, struct kelp__service_peer *peer,
                              size_t *first, struct kelp_error *reterr)
{
    struct kelp_service *service = peer->service;
    const uint64_t generation = atomic_load(&service->generation);
    const bool begins = *first == 0;
    struct kelp_rpc_message *message = NULL;
    kelp_status status = KELP_OK;

    if (begins && kelp__service_sent_fits(&turn->sent, peer, generation)) {
        message = turn->sent.message;
        kelp_rpc_message_ref(message);
        *first = peer->outgoing_count;
    } else {
        status = build_piece(turn, peer, generation, first, &message, reterr);
        if (status != KELP_OK) {
            return status;
        }
        if (begins && *first == peer->outgoing_count && turn->touched) {
            kelp__service_sent_keep(&turn->sent, peer, generation, message);
        }
    }
    atomic_fetch_add_explicit(&service->bytes_out, kelp_rpc_message_length(message),
                              memory_order_relaxed);
    status = kelp_rpc_stream_send(peer->stream, message);
    if (status == KELP_ERR_CLOSED) {
        return KELP_OK; /* closed() follows */
    }
    return status == KELP_OK ? KELP_OK
                             : kelp_fail(reterr, status, "the stream does not take answers: %s",
                                         kelp_status_text(status));
}

static void send_replies(struct kelp__service_turn *turn, struct kelp__service_peer *peer)
{
    struct kelp_error error = {.text = "no memory for an answer"};
    kelp_status status = KELP_OK;
    size_t first = 0;

    (void)pthread_mutex_lock(&peer->lock);
    peer->listed = false;
    if (peer->stream) {
        status = scratch_room(turn, peer) ? KELP_OK : KELP_ERR_NO_MEMORY;
        bool more = peer->outgoing_count > 0 || peer->refused_count > 0 ||
                    peer->offered_count > 0 || peer->owes_greeting;
        while (status == KELP_OK && more) {
            status = send_piece(turn, peer, &first, &error);
            more = first < peer->outgoing_count;
        }
        peer->owes_greeting = false;
        if (status != KELP_OK) {
            kelp__service_peer_log(peer, "answers not sent", status, error.text);
            kelp__service_peer_break_off(peer, status, error.text);
        }
    }
    for (size_t i = 0; i < peer->outgoing_count; i++) { /* values, and answers not sent */
        kelp__service_outgoing_discard(&peer->outgoing[i]);
    }
    peer->outgoing_count = 0;
    peer->refused_count = 0;
    peer->offered_count = 0;
    (void)pthread_mutex_unlock(&peer->lock);
}

void kelp__service_turn_finish(struct kelp_service *service, struct kelp__service_turn *turn)
{
    kelp__service_links_flush(turn); /* first: versions wait for the followers */
    kelp__service_followings_flush(turn);
    while (turn->touched) {
        struct kelp__service_peer *peer = turn->touched;
        turn->touched = peer->next; /* the peer may be listed again once it is unlocked */
        const uint64_t begin_ns = kelp_trace_begin(service->options.trace);
        send_replies(turn, peer);
        kelp_trace_end(service->options.trace, begin_ns,
                       &(struct kelp_trace_span){.name = "send", .step = turn->shard.step});
        kelp__service_peer_unref(peer);
    }
    kelp__service_sent_drop(&turn->sent);
    kelp__service_map_unref(turn->told);
    turn->told = NULL;
    (void)pthread_mutex_lock(&service->turns_lock);
    turn->next = service->turns;
    service->turns = turn;
    (void)pthread_mutex_unlock(&service->turns_lock);
}
