/* Messages to a follower: roots and questions. Tensor bytes are lent to the message. */
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "ps/service/exchange_internal.h"
#include "ps/service/replicas/links_internal.h"

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

void kelp__service_link_break_off(struct kelp__service_link *link, kelp_status status)
{
    if (link->stream) {
        kelp_rpc_stream_close(link->stream, status, "a message could not be sent");
    }
}

/* ---- what has to be sent ---- */

/* Copy everything that goes with the root, except its gradient, into one block of memory. */
static bool keep_values(struct kept_root *kept)
{
    const struct kelp_forward *forward = &kept->forward;
    const size_t values = forward->sum_count + forward->decision.count;
    const size_t claims = forward->claim_count;
    const size_t sums = kept->partition == 0 ? claims : 0;
    const size_t bytes =
        values * sizeof(double) + sums * sizeof(uint64_t) + 3 * claims * sizeof(uint32_t);

    if (bytes == 0) {
        return true;
    }
    kept->values = malloc(bytes);
    if (!kept->values) {
        return false;
    }
    kept->claim_sums = (uint64_t *)(void *)(kept->values + values);
    kept->claim_contents = (uint32_t *)(void *)(kept->claim_sums + sums);
    kept->claim_nodes = kept->claim_contents + claims;
    kept->claim_authors = kept->claim_nodes + claims;
    if (forward->sum_count > 0) {
        memcpy(kept->values, forward->sums, forward->sum_count * sizeof(*kept->values));
    }
    if (forward->decision.count > 0) {
        memcpy(kept->values + forward->sum_count, forward->decision.values,
               forward->decision.count * sizeof(*kept->values));
    }
    for (size_t i = 0; i < claims; i++) {
        const struct kelp_node_claim *claim = &forward->claims[i];
        kept->claim_nodes[i] =
            4 * claim->node + (claim->is_taken ? 2 : 0) + (claim->is_sum ? 1 : 0);
        kept->claim_authors[i] = claim->author;
        kept->claim_contents[i] = claim->content;
        if (sums > 0) {
            kept->claim_sums[i] = claim->sums;
        }
    }
    return true;
}

void kelp__service_link_name_author(struct kelp__service_link *link, uint32_t author)
{
    if (!link->told_authors) {
        link->told_authors = calloc(KELP_PS_AUTHORS_MAX, sizeof(*link->told_authors));
    }
    if (!link->told_authors || author == 0 ||
        link->told_authors[author % KELP_PS_AUTHORS_MAX] == author) {
        return;
    }
    if (room((void **)&link->new_authors, &link->new_author_capacity, link->new_author_count,
             sizeof(*link->new_authors))) {
        struct new_author *named = &link->new_authors[link->new_author_count];
        named->number = author;
        if (kelp__service_author_name(link->service, author, named->id)) {
            link->new_author_count++;
            link->told_authors[author % KELP_PS_AUTHORS_MAX] = author;
        }
    }
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
        kelp__service_link_break_off(link, KELP_ERR_NO_MEMORY);
        return false;
    }
    for (uint32_t i = 0; i < root->forward->claim_count; i++) {
        kelp__service_link_name_author(link, root->forward->claims[i].author);
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
        kelp__service_link_break_off(link, KELP_ERR_NO_MEMORY);
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
    link->new_author_count = 0;
}

/* ---- lent bytes ---- */

/* Bytes lent to gRPC, which may give them back on any of its threads. gRPC's own reference count
 * orders the two threads; `handed` expresses that order in C11. */
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

/* On success the message owns the root's loan; otherwise the loan stays with the root. */
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
    if (link->new_author_count > scratch->author_capacity) {
        const size_t count = link->new_author_capacity;
        if (!kelp__service_resize((void **)&scratch->authors, count, sizeof(*scratch->authors)) ||
            !kelp__service_resize((void **)&scratch->author_pointers, count,
                                  sizeof(*scratch->author_pointers))) {
            return false;
        }
        scratch->author_capacity = count;
    }
    return true;
}

/* The newest generation of the roots; older roots are useless. */
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

/* Usually all roots of a message belong to one entry. */
static bool same_as_before(const Kelp__V1__ReplicateRequest *request,
                           const struct kept_root *before, const struct kept_root *kept)
{
    return request->n_forward > 1 &&
           kelp_control_word_equal(&before->forward.word, &kept->forward.word);
}

static void put_claims(const struct kept_root *kept, Kelp__V1__Forward *item)
{
    const size_t count = kept->forward.claim_count;

    item->n_claim_node = count;
    item->claim_node = kept->claim_nodes;
    item->n_claim_author = count;
    item->claim_author = kept->claim_authors;
    item->n_claim_content = count;
    item->claim_content = kept->claim_contents;
    item->n_claim_sums = kept->partition == 0 ? count : 0;
    item->claim_sums = kept->claim_sums;
}

/* before: the previous root of the message, or NULL. */
static void put_root(struct kelp__service_link *link, struct kept_root *kept,
                     const struct kept_root *before, uint64_t offset,
                     Kelp__V1__ReplicateRequest *request)
{
    const size_t index = request->n_forward++;
    const struct kelp_forward *forward = &kept->forward;
    Kelp__V1__Forward *item = &link->scratch.forwards[index];

    kelp__v1__forward__init(item);
    item->partition = kept->partition;
    item->map_epoch = forward->map_epoch;
    if (!same_as_before(request, before, kept)) {
        kelp_wire_put_word(&forward->word, &link->scratch.words[index]);
        item->word = &link->scratch.words[index];
    }
    item->offset = offset;
    item->length = kept->lent ? kept->loan.bytes : 0;
    item->n_sums = forward->sum_count;
    item->sums = kept->values;
    item->digest = kept->digest;
    item->skipped = forward->skipped;
    item->n_decided = forward->decision.count;
    item->decided = kept->values ? kept->values + forward->sum_count : NULL;
    put_claims(kept, item);
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

static void put_authors(struct kelp__service_link *link, Kelp__V1__ReplicateRequest *request)
{
    for (size_t i = 0; i < link->new_author_count; i++) {
        Kelp__V1__Author *item = &link->scratch.authors[i];
        kelp__v1__author__init(item);
        item->number = link->new_authors[i].number;
        item->id = link->new_authors[i].id;
        link->scratch.author_pointers[request->n_author++] = item;
    }
    request->author = link->scratch.author_pointers;
}

/* Build the message: its fields, then the bytes of the roots, lent. */
static kelp_status build(struct kelp__service_link *link, struct kelp_rpc_message **ret_message)
{
    Kelp__V1__ReplicateRequest request = KELP__V1__REPLICATE_REQUEST__INIT;
    size_t bytes = 0;

    if (!scratch_ready(link)) {
        return KELP_ERR_NO_MEMORY;
    }
    const struct kept_root *before = NULL;
    request.generation = generation_of(link);
    for (size_t i = 0; i < link->root_count; i++) {
        if (link->roots[i].forward.generation == request.generation) {
            put_root(link, &link->roots[i], before, bytes, &request);
            before = &link->roots[i];
            bytes += before->lent ? before->loan.bytes : 0;
        }
    }
    request.forward = link->scratch.forward_pointers;
    put_questions(link, &request);
    put_authors(link, &request);
    kelp_status status = kelp_wire_encode_payload(&request.base, bytes, ret_message, NULL);
    for (size_t i = 0; status == KELP_OK && i < link->root_count; i++) {
        struct kept_root *kept = &link->roots[i];
        if (kept->forward.generation == request.generation && kept->lent) {
            status = lend_root(link, *ret_message, kept);
        }
    }
    return status;
}

void kelp__service_link_send_message(struct kelp__service_link *link,
                                     struct kelp_rpc_message *message)
{
    struct kelp_service *service = link->service;

    atomic_fetch_add_explicit(&service->bytes_out, kelp_rpc_message_length(message),
                              memory_order_relaxed);
    link->sent_us = kelp_clock_us();
    const kelp_status status = kelp_rpc_stream_send(link->stream, message);
    if (status != KELP_OK && status != KELP_ERR_CLOSED) { /* CLOSED: closed() follows */
        kelp__service_link_break_off(link, status);
    }
}

void kelp__service_link_send(struct kelp__service_link *link, bool empty)
{
    struct kelp_rpc_message *message = NULL;

    if (link->is_up && (empty || link->root_count > 0 || link->question_count > 0)) {
        const kelp_status status = build(link, &message);
        if (status == KELP_OK) {
            link->sent_bytes += kelp_rpc_message_length(message);
            kelp__service_link_send_message(link, message);
        } else {
            kelp_rpc_message_unref(message);
            kelp__service_link_break_off(link, status);
        }
    }
    kelp__service_link_discard(link);
}
