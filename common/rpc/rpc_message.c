#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/rpc/rpc_internal.h"

/* ---- borrowed memory ---- */

static atomic_size_t borrowed;  /* segments not released yet */
static pthread_cond_t *awaited; /* a thread waits for zero; guarded by awaited_lock */
static pthread_mutex_t awaited_lock = PTHREAD_MUTEX_INITIALIZER;

static void count_given_back(void)
{
    if (atomic_fetch_sub(&borrowed, 1) > 1) {
        return;
    }
    (void)pthread_mutex_lock(&awaited_lock);
    if (awaited) {
        (void)pthread_cond_broadcast(awaited);
    }
    (void)pthread_mutex_unlock(&awaited_lock);
}

size_t kelp__rpc_borrowed_await(uint32_t timeout_ms)
{
    pthread_cond_t none = PTHREAD_COND_INITIALIZER;
    const uint64_t end_ms = kelp_clock_ms() + timeout_ms;

    (void)pthread_mutex_lock(&awaited_lock);
    awaited = &none;
    while (atomic_load(&borrowed) > 0 && kelp_clock_wait(&none, &awaited_lock, end_ms)) {
    }
    awaited = NULL;
    (void)pthread_mutex_unlock(&awaited_lock);
    (void)pthread_cond_destroy(&none);
    return atomic_load(&borrowed);
}

/* release must call count_given_back(). */
static kelp_status add_borrowed(struct kelp_rpc_message *message, const void *bytes, size_t length,
                                kelp_rpc_release release, void *user)
{
    if (length > KELP_RPC_MESSAGE_BYTES_MAX - message->slices.length) {
        return KELP_ERR_LIMIT;
    }
    atomic_fetch_add(&borrowed, 1);
    /* gRPC takes the memory as writable but only reads it. */
    grpc_slice slice = grpc_slice_new_with_user_data((void *)bytes, length, release, user);
    (void)grpc_slice_buffer_add_indexed(&message->slices, slice);
    message->borrowed += length;
    return KELP_OK;
}

/* ---- messages ---- */

struct kelp_rpc_message *kelp_rpc_message_create(void)
{
    struct kelp_rpc_message *message = malloc(sizeof(*message));

    if (message) {
        atomic_init(&message->refs, 1);
        message->borrowed = 0;
        message->lent = NULL;
        grpc_slice_buffer_init(&message->slices);
    }
    return message;
}

void *kelp_rpc_message_extend(struct kelp_rpc_message *message, size_t length)
{
    if (length > KELP_RPC_MESSAGE_BYTES_MAX - message->slices.length) {
        return NULL;
    }
    size_t index = grpc_slice_buffer_add_indexed(&message->slices, grpc_slice_malloc(length));
    return GRPC_SLICE_START_PTR(message->slices.slices[index]);
}

kelp_status kelp_rpc_message_copy(struct kelp_rpc_message *message, const void *bytes,
                                  size_t length)
{
    if (length == 0) {
        return KELP_OK;
    }
    void *to = kelp_rpc_message_extend(message, length);
    if (!to) {
        return KELP_ERR_LIMIT;
    }
    memcpy(to, bytes, length);
    return KELP_OK;
}

struct release {
    kelp_rpc_release function;
    void *user;
};

static void give_back(void *user)
{
    const struct release release = *(struct release *)user;

    free(user);
    release.function(release.user);
    count_given_back();
}

kelp_status kelp_rpc_message_borrow(struct kelp_rpc_message *message, const void *bytes,
                                    size_t length, kelp_rpc_release release, void *user)
{
    struct release *own = malloc(sizeof(*own));

    if (!own) {
        return KELP_ERR_NO_MEMORY;
    }
    *own = (struct release){release, user};
    const kelp_status status = add_borrowed(message, bytes, length, give_back, own);
    if (status != KELP_OK) {
        free(own);
    }
    return status;
}

/* A separate allocation: gRPC may release the slice on any of its threads. gRPC's reference
 * count orders the two threads; `handed` expresses that order in C11. */
struct kelp__rpc_lent {
    struct kelp__rpc_lent *next;
    struct kelp_rpc_loan loan;
    size_t index; /* of its segment in the message */
    atomic_bool handed;
    atomic_bool unread;
};

static void return_loan(void *user)
{
    struct kelp__rpc_lent *lent = user;

    (void)atomic_load_explicit(&lent->handed, memory_order_acquire);
    lent->loan.returned(lent->loan.user, !atomic_load(&lent->unread));
    free(lent);
    count_given_back();
}

kelp_status kelp_rpc_message_lend(struct kelp_rpc_message *message,
                                  const struct kelp_rpc_loan *loan)
{
    struct kelp__rpc_lent *lent = malloc(sizeof(*lent));

    if (!lent) {
        return KELP_ERR_NO_MEMORY;
    }
    lent->next = message->lent;
    lent->loan = *loan;
    lent->index = message->slices.count;
    atomic_init(&lent->unread, false);
    atomic_store_explicit(&lent->handed, true, memory_order_release);
    kelp_status status = add_borrowed(message, loan->bytes, loan->length, return_loan, lent);
    if (status == KELP_OK) {
        message->lent = lent;
    } else {
        free(lent);
    }
    return status;
}

struct kelp_shm_area *kelp__rpc_message_area(const struct kelp_rpc_message *message, size_t index)
{
    const struct kelp__rpc_lent *lent = message->lent;

    while (lent && lent->index != index) {
        lent = lent->next;
    }
    return lent ? lent->loan.area : NULL;
}

void kelp__rpc_message_unread(struct kelp_rpc_message *message)
{
    for (struct kelp__rpc_lent *lent = message->lent; lent; lent = lent->next) {
        atomic_store(&lent->unread, true);
    }
}

void kelp_rpc_message_ref(struct kelp_rpc_message *message)
{
    atomic_fetch_add_explicit(&message->refs, 1, memory_order_relaxed);
}

void kelp_rpc_message_unref(struct kelp_rpc_message *message)
{
    if (!message) {
        return;
    }
    unsigned before = atomic_fetch_sub_explicit(&message->refs, 1, memory_order_acq_rel);
    assert(before > 0);
    if (before == 1) {
        grpc_slice_buffer_destroy(&message->slices);
        free(message);
    }
}

size_t kelp_rpc_message_length(const struct kelp_rpc_message *message)
{
    return message->slices.length;
}

size_t kelp__rpc_message_weight(const struct kelp_rpc_message *message)
{
    return message->slices.length - message->borrowed + KELP_RPC_QUEUED_BYTES +
           message->slices.count * KELP_RPC_QUEUED_SEGMENT_BYTES;
}

size_t kelp_rpc_message_segment_count(const struct kelp_rpc_message *message)
{
    return message->slices.count;
}

struct kelp_rpc_segment kelp_rpc_message_segment(const struct kelp_rpc_message *message,
                                                 size_t index)
{
    assert(index < message->slices.count);
    const grpc_slice *slice = &message->slices.slices[index];
    return (struct kelp_rpc_segment){.bytes = GRPC_SLICE_START_PTR(*slice),
                                     .length = GRPC_SLICE_LENGTH(*slice)};
}

grpc_byte_buffer *kelp__rpc_message_to_buffer(const struct kelp_rpc_message *message)
{
    return grpc_raw_byte_buffer_create(message->slices.slices, message->slices.count);
}

struct kelp_rpc_message *kelp__rpc_message_from_buffer(grpc_byte_buffer *buffer)
{
    struct kelp_rpc_message *message = NULL;

    if (buffer->type == GRPC_BB_RAW && buffer->data.raw.compression == GRPC_COMPRESS_NONE) {
        message = kelp_rpc_message_create();
    }
    if (message) {
        grpc_slice_buffer_swap(&message->slices, &buffer->data.raw.slice_buffer);
    }
    grpc_byte_buffer_destroy(buffer);
    return message;
}
