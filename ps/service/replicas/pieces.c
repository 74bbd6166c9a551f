/*
 * Copies sent to a follower in pieces. Each link sends one copy after the other, with no more bytes
 * in flight than a root may have to wait behind. The follower acknowledges the pieces that have
 * come.
 */
#include <stdlib.h>
#include <string.h>

#include "ps/service/exchange_internal.h"
#include "ps/service/replicas/links_internal.h"

/* ---- a copy ---- */

void kelp__service_copy_free(struct link_copy *copy)
{
    if (copy) {
        kelp_replica_copy_unref(copy->content);
        free(copy->records);
        free(copy->record_pointers);
        free(copy);
    }
}

/* Copy the newest records. False: out of memory. */
static bool keep_records(struct kelp_service *service, struct link_copy *copy)
{
    struct kelp_shard_control_view view;
    bool room = true;

    (void)pthread_mutex_lock(&service->control_lock);
    kelp_shard_control_view(service->control, &view);
    const size_t count =
        view.record_count < KELP_PS_COPY_RECORDS_MAX ? view.record_count : KELP_PS_COPY_RECORDS_MAX;
    if (count > 0) {
        copy->records = malloc(count * sizeof(*copy->records));
        copy->record_pointers = malloc(count * sizeof(Kelp__V1__Record *));
        room = copy->records && copy->record_pointers;
    }
    for (size_t i = 0; room && i < count; i++) {
        kelp_wire_put_record(&view.records[view.record_count - count + i], &copy->records[i]);
        copy->record_pointers[copy->record_count++] = &copy->records[i].message;
    }
    (void)pthread_mutex_unlock(&service->control_lock);
    return room;
}

struct link_copy *kelp__service_copy_make(struct kelp_service *service,
                                          struct kelp_replica_copy *content)
{
    struct link_copy *copy = calloc(1, sizeof(*copy));
    struct kelp_replica_copy_view view;

    if (!copy) {
        kelp_replica_copy_unref(content);
        return NULL;
    }
    copy->content = content;
    kelp_replica_copy_view(content, &view);
    copy->partition = view.partition;
    if (view.partition == 0 && !keep_records(service, copy)) {
        kelp__service_copy_free(copy);
        return NULL;
    }
    return copy;
}

/* ---- a piece ---- */

/* A piece of a copy whose bytes are lent to a message. */
struct lent_piece {
    struct kelp_replica_copy *copy;
    atomic_bool handed;
};

static void release_piece(void *user)
{
    struct lent_piece *lent = user;

    (void)atomic_load_explicit(&lent->handed, memory_order_acquire);
    kelp_replica_copy_unref(lent->copy);
    free(lent);
}

/* What a piece's message contains. */
struct piece {
    const struct kelp_replica_copy_view *view;
    uint32_t kind;
    const char *bytes;
    size_t position;
    size_t length;
    Kelp__V1__CopyState *state; /* with the last piece; else NULL */
};

static kelp_status lend_piece(struct kelp_rpc_message *message, struct kelp_replica_copy *copy,
                              const struct piece *piece)
{
    struct lent_piece *lent = malloc(sizeof(*lent));

    if (!lent) {
        return KELP_ERR_NO_MEMORY;
    }
    lent->copy = copy;
    kelp_replica_copy_ref(copy);
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
        status = lend_piece(message, copy, piece);
    }
    if (status != KELP_OK) {
        kelp_rpc_message_unref(message);
        return status;
    }
    link->copy_sent += piece->length;
    atomic_fetch_add_explicit(&link->service->bytes_copied, piece->length, memory_order_relaxed);
    kelp__service_link_send_message(link, message);
    return KELP_OK;
}

/* Messages about the entries before the copy. */
struct known_out {
    Kelp__V1__Forward *items;
    Kelp__V1__Forward **pointers;
    Kelp__V1__ControlWord *words;
    uint32_t *numbers; /* of nodes, authors and contents */
    uint64_t *sums;
};

static void known_free(struct known_out *known)
{
    free(known->items);
    free(known->pointers);
    free(known->words);
    free(known->numbers);
    free(known->sums);
}

/* False: out of memory. */
static bool known_make(const struct kelp_replica_state *state, struct known_out *ret_known)
{
    const size_t entries = state->known_count;
    size_t claims = 0;

    for (size_t i = 0; i < entries; i++) {
        claims += state->known[i].claim_count;
    }
    *ret_known = (struct known_out){.items = calloc(entries + 1, sizeof(Kelp__V1__Forward)),
                                    .pointers = calloc(entries + 1, sizeof(Kelp__V1__Forward *)),
                                    .words = calloc(entries + 1, sizeof(Kelp__V1__ControlWord)),
                                    .numbers = calloc(3 * claims + 1, sizeof(uint32_t)),
                                    .sums = calloc(claims + 1, sizeof(uint64_t))};
    return ret_known->items && ret_known->pointers && ret_known->words && ret_known->numbers &&
           ret_known->sums;
}

static void put_known(struct kelp__service_link *link, const struct kelp_replica_copy_view *view,
                      struct known_out *known)
{
    uint32_t *numbers = known->numbers;
    uint64_t *sums = known->sums;

    for (uint32_t i = 0; i < view->state->known_count; i++) {
        const struct kelp_forward *entry = &view->state->known[i];
        const uint32_t count = entry->claim_count;
        Kelp__V1__Forward *item = &known->items[i];
        kelp__v1__forward__init(item);
        kelp_wire_put_word(&entry->word, &known->words[i]);
        item->word = &known->words[i];
        item->n_claim_node = item->n_claim_author = item->n_claim_content = count;
        item->n_claim_sums = view->partition == 0 ? count : 0;
        item->claim_node = numbers;
        item->claim_author = numbers + count;
        item->claim_content = numbers + 2 * (size_t)count;
        item->claim_sums = sums;
        for (uint32_t c = 0; c < count; c++) {
            kelp__service_claim_put(&entry->claims[c], c, item);
            kelp__service_link_name_author(link, entry->claims[c].author);
        }
        numbers += 3 * (size_t)count;
        sums += count;
        known->pointers[i] = item;
    }
}

/* Send the last piece: the partition's state apart from its arrays. */
static kelp_status send_state(struct kelp__service_link *link, struct link_copy *copy,
                              const struct kelp_replica_copy_view *view)
{
    const struct kelp_replica_state *state = view->state;
    Kelp__V1__CopyState out = KELP__V1__COPY_STATE__INIT;
    Kelp__V1__ControlWord older_word;
    unsigned char control[KELP_CONTROL_BYTES];
    struct known_out known;
    kelp_status status = KELP_ERR_NO_MEMORY;

    out.step = state->step;
    out.version = state->version;
    out.has_older = state->has_older;
    out.n_median_us = KELP_PACE_KINDS;
    out.median_us = (uint64_t *)(uintptr_t)state->pace.median_us; /* only read */
    if (view->partition == 0) {
        kelp_control_pack(&state->control, control);
        out.control = (ProtobufCBinaryData){.len = sizeof(control), .data = control};
        if (state->has_older) {
            kelp_wire_put_word(&state->older_word, &older_word);
            out.older_word = &older_word;
        }
        out.n_decided = state->decided.count;
        out.decided = (double *)(uintptr_t)state->decided.values; /* only read */
        out.n_records = copy->record_count;
        out.records = copy->record_pointers;
    }
    if (known_make(state, &known)) {
        put_known(link, view, &known);
        out.n_known = state->known_count;
        out.known = known.pointers;
        kelp__service_link_send(link, true); /* names come before uses of their numbers */
        status =
            send_piece(link, copy->content,
                       &(struct piece){.view = view, .kind = KELP_REPLICA_WEIGHTS, .state = &out});
    }
    known_free(&known);
    return status;
}

/* ---- copies under way ---- */

static kelp_status send_next(struct kelp__service_link *link, struct link_copy *copy,
                             bool *ret_done)
{
    const size_t piece_max = link->service->options.job->transport.piece_bytes;
    const size_t step = piece_max < KELP_PS_COPY_PIECE_BYTES ? piece_max : KELP_PS_COPY_PIECE_BYTES;
    struct kelp_replica_copy_view view;

    kelp_replica_copy_view(copy->content, &view);
    *ret_done = copy->item == view.item_count;
    if (*ret_done) {
        return send_state(link, copy, &view);
    }
    const size_t left = view.item_bytes - copy->position;
    const struct piece piece = {.view = &view,
                                .kind = view.items[copy->item].kind,
                                .bytes = view.items[copy->item].values,
                                .position = copy->position,
                                .length = left < step ? left : step};
    copy->position += piece.length;
    if (copy->position == view.item_bytes) {
        copy->position = 0;
        copy->item++;
    }
    atomic_fetch_add(&link->service->replicas->copying[view.partition].sent, piece.length);
    return send_piece(link, copy->content, &piece);
}

void kelp__service_link_send_copies(struct kelp__service_link *link)
{
    while (link->copies && link->is_up &&
           link->copy_sent - link->copy_taken < KELP_PS_COPY_UNDER_WAY_BYTES) {
        struct link_copy *copy = link->copies;
        bool done = false;
        const kelp_status status = send_next(link, copy, &done);
        if (status != KELP_OK) {
            kelp__service_link_break_off(link, status);
            return;
        }
        if (done) {
            link->copies = copy->next;
            kelp__service_copy_free(copy);
            kelp__service_replicas_hurry(link->service); /* the next copy may begin */
        }
    }
}

/* Drop a copy of the same partition that was begun: a newer one replaces it. */
static void drop_copy_of(struct kelp__service_link *link, uint32_t partition)
{
    struct link_copy **at = &link->copies;

    while (*at) {
        struct link_copy *copy = *at;
        if (copy->partition == partition) {
            *at = copy->next;
            kelp__service_copy_free(copy);
        } else {
            at = &copy->next;
        }
    }
}

void kelp__service_link_add_copy(struct kelp__service_link *link, struct link_copy *copy)
{
    struct kelp_replica_copy_view view;

    kelp_replica_copy_view(copy->content, &view);
    atomic_store(&link->service->replicas->copying[view.partition].sent, 0);
    atomic_store(&link->service->replicas->copying[view.partition].total,
                 view.item_count * view.item_bytes);
    drop_copy_of(link, copy->partition);
    struct link_copy **at = &link->copies;
    while (*at) {
        at = &(*at)->next;
    }
    *at = copy;
    kelp__service_link_send_copies(link);
}

bool kelp__service_link_hear_copied(struct kelp__service_link *link, uint64_t bytes)
{
    if (bytes < link->copy_taken || bytes > link->copy_sent) {
        return false;
    }
    link->copy_taken = bytes;
    kelp__service_link_send_copies(link);
    return true;
}

void kelp__service_link_discard_copies(struct kelp__service_link *link)
{
    while (link->copies) {
        struct link_copy *copy = link->copies;
        link->copies = copy->next;
        kelp__service_copy_free(copy);
    }
}
