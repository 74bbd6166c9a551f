/* Messages to a follower: roots, questions and copies. Tensor bytes are lent to the message. */
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "ps/service/service_exchange_internal.h"
#include "ps/service/service_links_internal.h"

static bool room(void **items, size_t *capacity, size_t count, size_t size)
{
    if (count < *capacity) {
        return true;
    }
    const size_t larger = *capacity ? *capacity * 2 : 16;
    if (!kelp__service_resize(items, larger, size)) {
        return false;
    }
    *capacity = larger;
    return true;
}

/* It lost something, so that the follower has to say again what it has. */
static void break_off(struct kelp__service_link *link, kelp_status status)
{
    if (link->stream) {
        kelp_rpc_stream_close(link->stream, status, "a message could not be sent");
    }
}

/* ---- what is to be sent ---- */

static bool keep_values(struct kept_root *kept)
{
    const struct kelp_forward *forward = &kept->forward;
    const size_t count = forward->sum_count + forward->decision.count;

    if (count == 0) {
        return true;
    }
    kept->values = malloc(count * sizeof(*kept->values));
    if (!kept->values) {
        return false;
    }
    if (forward->sum_count > 0) {
        memcpy(kept->values, forward->sums, forward->sum_count * sizeof(*kept->values));
    }
    if (forward->decision.count > 0) {
        memcpy(kept->values + forward->sum_count, forward->decision.values,
               forward->decision.count * sizeof(*kept->values));
    }
    return true;
}

bool kelp__service_link_add_root(struct kelp__service_link *link,
                                 const struct kelp_shard_root *root)
{
    struct kept_root kept = {.partition = root->partition,
                             .forward = *root->forward,
                             .lent = root->lent,
                             .loan = root->loan};
    const char *digest = root->forward->digest ? root->forward->digest : "";

    memcpy(kept.digest, digest, strnlen(digest, sizeof(kept.digest) - 1));
    if (!room((void **)&link->roots, &link->root_capacity, link->root_count,
              sizeof(*link->roots)) ||
        !keep_values(&kept)) {
        break_off(link, KELP_ERR_NO_MEMORY);
        return false;
    }
    link->roots[link->root_count++] = kept;
    link->root_bytes += root->lent ? root->loan.bytes : 0;
    return true;
}

bool kelp__service_link_add_question(struct kelp__service_link *link,
                                     const struct kelp_shard_question *question)
{
    if (!room((void **)&link->questions, &link->question_capacity, link->question_count,
              sizeof(*link->questions))) {
        break_off(link, KELP_ERR_NO_MEMORY);
        return false;
    }
    link->questions[link->question_count++] = *question;
    return true;
}

void kelp__service_link_discard(struct kelp__service_link *link)
{
    for (size_t i = 0; i < link->root_count; i++) {
        free(link->roots[i].values);
        if (link->roots[i].lent) {
            kelp_gradients_return(&link->roots[i].loan);
        }
    }
    link->root_count = 0;
    link->root_bytes = 0;
    link->question_count = 0;
}

/* ---- lent bytes ---- */

/* Bytes on their way through gRPC, which may give them back on any of its threads. Its own
 * reference count orders the two; `handed` says so in terms of the language. */
struct lent_root {
    struct kelp_gradients_loan loan;
    atomic_bool handed;
};

static void release_root(void *user)
{
    struct lent_root *lent = user;

    (void)atomic_load_explicit(&lent->handed, memory_order_acquire);
    kelp_gradients_return(&lent->loan);
    free(lent);
}

/* The root's loan goes to the message, or stays. */
static kelp_status lend_root(struct kelp__service_link *link, struct kelp_rpc_message *message,
                             struct kept_root *kept)
{
    struct lent_root *lent = malloc(sizeof(*lent));

    if (!lent) {
        return KELP_ERR_NO_MEMORY;
    }
    lent->loan = kept->loan;
    atomic_store_explicit(&lent->handed, true, memory_order_release);
    kelp_status status =
        kelp_rpc_message_borrow(message, lent->loan.values, lent->loan.bytes, release_root, lent);
    if (status == KELP_OK) {
        kept->lent = false;
        link->sent_values += kept->loan.bytes;
    } else {
        free(lent);
    }
    return status;
}

/* ---- roots and questions ---- */

static bool scratch_ready(struct kelp__service_link *link)
{
    struct link_scratch *scratch = &link->scratch;

    if (link->root_count > scratch->forward_capacity) {
        const size_t count = link->root_capacity;
        if (!kelp__service_resize((void **)&scratch->forwards, count, sizeof(*scratch->forwards)) ||
            !kelp__service_resize((void **)&scratch->forward_pointers, count,
                                  sizeof(*scratch->forward_pointers)) ||
            !kelp__service_resize((void **)&scratch->words, count, sizeof(*scratch->words))) {
            return false;
        }
        scratch->forward_capacity = count;
    }
    if (link->question_count > scratch->question_capacity) {
        const size_t count = link->question_capacity;
        if (!kelp__service_resize((void **)&scratch->questions, count,
                                  sizeof(*scratch->questions)) ||
            !kelp__service_resize((void **)&scratch->question_pointers, count,
                                  sizeof(*scratch->question_pointers))) {
            return false;
        }
        scratch->question_capacity = count;
    }
    return true;
}

/* The newest generation of them: what is older is of no use to anybody. */
static uint64_t generation_of(const struct kelp__service_link *link)
{
    uint64_t generation = 0;

    for (size_t i = 0; i < link->root_count; i++) {
        const uint64_t of_root = link->roots[i].forward.generation;
        generation = of_root > generation ? of_root : generation;
    }
    for (size_t i = 0; i < link->question_count; i++) {
        const uint64_t of_question = link->questions[i].generation;
        generation = of_question > generation ? of_question : generation;
    }
    return generation > 0 ? generation : atomic_load(&link->service->generation);
}

static void put_root(struct kelp__service_link *link, struct kept_root *kept, uint64_t offset,
                     Kelp__V1__ReplicateRequest *request)
{
    const size_t index = request->n_forward++;
    const struct kelp_forward *forward = &kept->forward;
    Kelp__V1__Forward *item = &link->scratch.forwards[index];

    kelp__v1__forward__init(item);
    item->partition = kept->partition;
    item->map_epoch = forward->map_epoch;
    kelp_wire_put_word(&forward->word, &link->scratch.words[index]);
    item->word = &link->scratch.words[index];
    item->offset = offset;
    item->length = kept->lent ? kept->loan.bytes : 0;
    item->n_sums = forward->sum_count;
    item->sums = kept->values;
    item->digest = kept->digest;
    item->skipped = forward->skipped;
    item->n_decided = forward->decision.count;
    item->decided = kept->values ? kept->values + forward->sum_count : NULL;
    link->scratch.forward_pointers[index] = item;
}

static void put_questions(struct kelp__service_link *link, Kelp__V1__ReplicateRequest *request)
{
    for (size_t i = 0; i < link->question_count; i++) {
        Kelp__V1__Question *item = &link->scratch.questions[request->n_question];
        if (link->questions[i].generation != request->generation) {
            continue;
        }
        kelp__v1__question__init(item);
        item->partition = link->questions[i].partition;
        item->map_epoch = link->questions[i].map_epoch;
        link->scratch.question_pointers[request->n_question++] = item;
    }
    request->question = link->scratch.question_pointers;
}

/* The message's fields, and the roots' bytes lent to it. */
static kelp_status build(struct kelp__service_link *link, struct kelp_rpc_message **ret_message)
{
    Kelp__V1__ReplicateRequest request = KELP__V1__REPLICATE_REQUEST__INIT;
    size_t bytes = 0;

    if (!scratch_ready(link)) {
        return KELP_ERR_NO_MEMORY;
    }
    request.generation = generation_of(link);
    for (size_t i = 0; i < link->root_count; i++) {
        if (link->roots[i].forward.generation == request.generation) {
            put_root(link, &link->roots[i], bytes, &request);
            bytes += link->roots[i].lent ? link->roots[i].loan.bytes : 0;
        }
    }
    request.forward = link->scratch.forward_pointers;
    put_questions(link, &request);
    kelp_status status = kelp_wire_encode_payload(&request.base, bytes, ret_message, NULL);
    for (size_t i = 0; status == KELP_OK && i < link->root_count; i++) {
        struct kept_root *kept = &link->roots[i];
        if (kept->forward.generation == request.generation && kept->lent) {
            status = lend_root(link, *ret_message, kept);
        }
    }
    return status;
}

/* The message is transferred. */
static void send_message(struct kelp__service_link *link, struct kelp_rpc_message *message)
{
    struct kelp_service *service = link->service;

    atomic_fetch_add_explicit(&service->bytes_out, kelp_rpc_message_length(message),
                              memory_order_relaxed);
    link->sent_us = kelp_clock_us();
    const kelp_status status = kelp_rpc_stream_send(link->stream, message);
    if (status != KELP_OK && status != KELP_ERR_CLOSED) { /* CLOSED: closed() follows */
        break_off(link, status);
    }
}

void kelp__service_link_send(struct kelp__service_link *link, bool empty)
{
    struct kelp_rpc_message *message = NULL;

    if (link->is_up && (empty || link->root_count > 0 || link->question_count > 0)) {
        const kelp_status status = build(link, &message);
        if (status == KELP_OK) {
            link->sent_bytes += kelp_rpc_message_length(message);
            send_message(link, message);
        } else {
            kelp_rpc_message_unref(message);
            break_off(link, status);
        }
    }
    kelp__service_link_discard(link);
}

/* ---- copies ---- */

/* A piece of a copy that a message holds. */
struct lent_piece {
    struct service_copying *copying;
    uint32_t partition;
    struct kelp_replica_copy *copy;
    size_t bytes;
    atomic_bool handed;
};

static void release_piece(void *user)
{
    struct lent_piece *lent = user;

    (void)atomic_load_explicit(&lent->handed, memory_order_acquire);
    atomic_fetch_add(&lent->copying->partitions[lent->partition].sent, lent->bytes);
    atomic_fetch_sub(&lent->copying->bytes, lent->bytes);
    kelp__service_copying_unref(lent->copying);
    kelp_replica_copy_unref(lent->copy);
    free(lent);
}

/* What a piece's message says. */
struct piece {
    const struct kelp_replica_copy_view *view;
    uint32_t kind;
    const char *bytes;
    size_t position;
    size_t length;
    Kelp__V1__CopyState *state; /* with the last piece; else NULL */
};

static kelp_status lend_piece(struct kelp__service_link *link, struct kelp_rpc_message *message,
                              struct kelp_replica_copy *copy, const struct piece *piece)
{
    struct service_copying *copying = link->service->replicas->copying;
    struct lent_piece *lent = malloc(sizeof(*lent));

    if (!lent) {
        return KELP_ERR_NO_MEMORY;
    }
    *lent = (struct lent_piece){.copying = copying,
                                .partition = piece->view->partition,
                                .copy = copy,
                                .bytes = piece->length};
    kelp_replica_copy_ref(copy);
    atomic_fetch_add(&copying->refs, 1);
    atomic_fetch_add(&copying->bytes, piece->length);
    atomic_store_explicit(&lent->handed, true, memory_order_release);
    kelp_status status = kelp_rpc_message_borrow(message, piece->bytes + piece->position,
                                                 piece->length, release_piece, lent);
    if (status != KELP_OK) {
        release_piece(lent);
    }
    return status;
}

static kelp_status send_piece(struct kelp__service_link *link, struct kelp_replica_copy *copy,
                              const struct piece *piece)
{
    Kelp__V1__ReplicateRequest request = KELP__V1__REPLICATE_REQUEST__INIT;
    Kelp__V1__CopyPiece item = KELP__V1__COPY_PIECE__INIT;
    Kelp__V1__CopyPiece *items[] = {&item};
    struct kelp_rpc_message *message = NULL;

    request.generation = piece->view->generation;
    request.n_copy = 1;
    request.copy = items;
    item.partition = piece->view->partition;
    item.map_epoch = piece->view->map_epoch;
    item.held = piece->view->state->held;
    item.kind = piece->kind;
    item.position = piece->position;
    item.length = piece->length;
    item.state = piece->state;
    kelp_status status = kelp_wire_encode_payload(&request.base, piece->length, &message, NULL);
    if (status == KELP_OK && piece->length > 0) {
        status = lend_piece(link, message, copy, piece);
    }
    if (status != KELP_OK) {
        kelp_rpc_message_unref(message);
        return status;
    }
    link->sent_copies += piece->length;
    send_message(link, message);
    return KELP_OK;
}

/* The state as it goes out; it borrows from the copy. */
struct state_out {
    Kelp__V1__CopyState state;
    Kelp__V1__ControlWord older_word;
    unsigned char control[KELP_CONTROL_BYTES];
};

bool kelp__service_copied_records(struct kelp_service *service, struct copied_records *ret_records)
{
    struct kelp_shard_control_view view;
    struct copied_records records = {.count = 0};
    bool room = true;

    (void)pthread_mutex_lock(&service->control_lock);
    kelp_shard_control_view(service->control, &view);
    const size_t count =
        view.record_count < KELP_PS_COPY_RECORDS_MAX ? view.record_count : KELP_PS_COPY_RECORDS_MAX;
    if (count > 0) {
        records.items = malloc(count * sizeof(*records.items));
        records.pointers = malloc(count * sizeof(Kelp__V1__Record *));
        room = records.items && records.pointers;
    }
    for (size_t i = 0; room && i < count; i++) {
        kelp_wire_put_record(&view.records[view.record_count - count + i], &records.items[i]);
        records.pointers[records.count++] = &records.items[i].message;
    }
    (void)pthread_mutex_unlock(&service->control_lock);
    *ret_records = records;
    return room;
}

void kelp__service_copied_records_free(struct copied_records *records)
{
    free(records->items);
    free(records->pointers);
}

static void put_state(const struct kelp_replica_copy_view *view,
                      const struct copied_records *records, struct state_out *out)
{
    const struct kelp_replica_state *state = view->state;

    kelp__v1__copy_state__init(&out->state);
    out->state.step = state->step;
    out->state.version = state->version;
    out->state.has_older = state->has_older;
    if (view->partition != 0) {
        return;
    }
    kelp_control_pack(&state->control, out->control);
    out->state.control = (ProtobufCBinaryData){.len = sizeof(out->control), .data = out->control};
    if (state->has_older) {
        kelp_wire_put_word(&state->older_word, &out->older_word);
        out->state.older_word = &out->older_word;
    }
    out->state.n_decided = state->decided.count;
    out->state.decided = (double *)(uintptr_t)state->decided.values; /* only read */
    out->state.n_records = records->count;
    out->state.records = records->pointers;
}

void kelp__service_link_send_copy(struct kelp__service_link *link, struct kelp_replica_copy *copy,
                                  const struct copied_records *records)
{
    const size_t piece_max = link->service->options.job->transport.piece_bytes;
    const size_t step = piece_max < KELP_PS_COPY_PIECE_BYTES ? piece_max : KELP_PS_COPY_PIECE_BYTES;
    struct kelp_replica_copy_view view;
    struct state_out out;
    kelp_status status = KELP_OK;

    kelp_replica_copy_view(copy, &view);
    put_state(&view, records, &out);
    for (uint32_t i = 0; i < view.item_count; i++) {
        for (size_t at = 0; status == KELP_OK && at < view.item_bytes; at += step) {
            const size_t left = view.item_bytes - at;
            const struct piece piece = {.view = &view,
                                        .kind = view.items[i].kind,
                                        .bytes = view.items[i].values,
                                        .position = at,
                                        .length = left < step ? left : step};
            status = send_piece(link, copy, &piece);
        }
    }
    if (status == KELP_OK) {
        status = send_piece(
            link, copy,
            &(struct piece){.view = &view, .kind = KELP_REPLICA_WEIGHTS, .state = &out.state});
    }
    if (status != KELP_OK) {
        break_off(link, status);
    }
}
