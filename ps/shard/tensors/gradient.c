#include "ps/shard/tensors/gradient.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/bfloat16.h"
#include "ps/core/partition/partition.h"
#include "ps/shard/tensors/extent.h"

/* Offsets of dense buffers within a page, after those of weights and optimizer slots. */
#define STAGGER_FIRST 16
#define STAGGER_COUNT 16

/* A handle keeps room for this many pieces: gRPC reads up to 64 KiB at a time, TLS 16 KiB. */
#define PIECES_KEPT 1024

/* The buffer that a handle has. */
enum kind {
    PLAIN,    /* none */
    BUFFERED, /* for elements as they travel */
    WIDE,     /* for floats, where others travel */
    KINDS
};

struct gradient {
    struct gradient *next; /* in the free list */
    enum kind kind;        /* in which of them */
    atomic_uint refs;      /* the handle's own, and one for each loan */
    uint64_t count;
    size_t bytes;                     /* of so many elements as they travel */
    struct kelp_wire_payload payload; /* when dense is NULL; the message is referenced */
    size_t offset;
    struct kelp_gradient_piece
        *pieces;        /* further segments of the message; the list stays with the handle */
    size_t piece_count; /* 0: they are not listed */
    size_t piece_capacity;
    struct gradient *left; /* terms of a sum that is still to be computed; otherwise NULL */
    struct gradient *right;
    void *dense;  /* the buffer, while it holds the values */
    void *buffer; /* stays with the handle in the free list, so that warm-up ends */
    struct gradient
        *wide; /* the values as floats, if another type travels; set once they were asked for */
    void *base;
};

struct kelp_gradients {
    pthread_mutex_t lock; /* guards the free lists and the counters; a leaf */
    uint64_t count_max;
    enum kelp_precision precision;
    struct gradient *free[KINDS];
    uint32_t buffer_count;
    uint32_t live;
    bool ended; /* released by its owner: freed with the last loan */
};

static size_t bytes_of(const struct kelp_gradients *gradients, uint64_t count)
{
    return (size_t)count * kelp_precision_bytes(gradients->precision);
}

kelp_status kelp_gradients_create(uint64_t count_max, enum kelp_precision precision,
                                  struct kelp_gradients **ret_gradients, struct kelp_error *reterr)
{
    struct kelp_gradients *gradients = calloc(1, sizeof(*gradients));

    if (!gradients) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for gradients");
    }
    (void)pthread_mutex_init(&gradients->lock, NULL);
    gradients->count_max = count_max;
    gradients->precision = precision;
    *ret_gradients = gradients;
    return KELP_OK;
}

static void free_list(struct gradient *list)
{
    while (list) {
        struct gradient *next = list->next;
        free(list->base);
        free(list->pieces);
        free(list);
        list = next;
    }
}

static void free_all(struct kelp_gradients *gradients)
{
    for (int kind = 0; kind < KINDS; kind++) {
        free_list(gradients->free[kind]);
    }
    (void)pthread_mutex_destroy(&gradients->lock);
    free(gradients);
}

void kelp_gradients_destroy(struct kelp_gradients *gradients)
{
    if (!gradients) {
        return;
    }
    (void)pthread_mutex_lock(&gradients->lock);
    gradients->ended = true;
    bool last = gradients->live == 0;
    (void)pthread_mutex_unlock(&gradients->lock);
    if (last) {
        free_all(gradients);
    }
}

static struct gradient *to_gradient(uint64_t handle)
{
    assert(handle != KELP_HANDLE_NONE);
    return (struct gradient *)(uintptr_t)handle;
}

static uint64_t to_handle(struct gradient *gradient)
{
    return (uint64_t)(uintptr_t)gradient;
}

/* False: out of memory. */
static bool make_buffer(const struct kelp_gradients *gradients, struct gradient *gradient,
                        uint32_t index)
{
    const size_t bytes = gradient->kind == WIDE ? (size_t)gradients->count_max * sizeof(float)
                                                : bytes_of(gradients, gradients->count_max);

    gradient->buffer =
        kelp__extent_alloc_staggered(bytes, STAGGER_FIRST + index % STAGGER_COUNT, &gradient->base);
    return gradient->buffer != NULL;
}

static struct gradient *take(struct kelp_gradients *gradients, enum kind kind)
{
    (void)pthread_mutex_lock(&gradients->lock);
    struct gradient *gradient = gradients->free[kind];
    uint32_t index = gradients->buffer_count;
    if (gradient) {
        gradients->free[kind] = gradient->next;
    } else if (kind != PLAIN) {
        gradients->buffer_count++;
    }
    gradients->live++;
    (void)pthread_mutex_unlock(&gradients->lock);
    if (gradient) {
        atomic_store_explicit(&gradient->refs, 1, memory_order_relaxed);
        return gradient;
    }
    gradient = calloc(1, sizeof(*gradient));
    if (gradient) {
        gradient->kind = kind;
    }
    if (!gradient || (kind != PLAIN && !make_buffer(gradients, gradient, index))) {
        free(gradient);
        (void)pthread_mutex_lock(&gradients->lock);
        gradients->live--;
        (void)pthread_mutex_unlock(&gradients->lock);
        return NULL;
    }
    atomic_init(&gradient->refs, 1);
    return gradient;
}

static void drop_message(struct gradient *gradient)
{
    gradient->piece_count = 0;
    if (gradient->piece_capacity > PIECES_KEPT) {
        free(gradient->pieces);
        gradient->pieces = NULL;
        gradient->piece_capacity = 0;
    }
    if (gradient->payload.message) {
        kelp_rpc_message_unref(gradient->payload.message);
        gradient->payload.message = NULL;
    }
}

static void drop_terms(struct kelp_gradients *gradients, struct gradient *sum)
{
    if (sum->left) {
        kelp_gradients_release(gradients, to_handle(sum->left));
        kelp_gradients_release(gradients, to_handle(sum->right));
        sum->left = NULL;
        sum->right = NULL;
    }
}

/* The free lists are locked. */
static void put_back(struct kelp_gradients *gradients, struct gradient *gradient)
{
    gradient->next = gradients->free[gradient->kind];
    gradients->free[gradient->kind] = gradient;
    assert(gradients->live > 0);
    gradients->live--;
}

void kelp_gradients_release(struct kelp_gradients *gradients, uint64_t handle)
{
    struct gradient *gradient = to_gradient(handle);

    if (atomic_fetch_sub_explicit(&gradient->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    struct gradient *wide = gradient->wide;
    drop_terms(gradients, gradient);
    drop_message(gradient);
    gradient->dense = NULL;
    gradient->wide = NULL;
    (void)pthread_mutex_lock(&gradients->lock);
    if (wide) {
        put_back(gradients, wide);
    }
    put_back(gradients, gradient);
    bool last = gradients->live == 0 && gradients->ended;
    (void)pthread_mutex_unlock(&gradients->lock);
    if (last) {
        free_all(gradients);
    }
}

uint64_t kelp_gradients_receive(struct kelp_gradients *gradients,
                                const struct kelp_wire_payload *payload, size_t offset,
                                uint64_t count)
{
    assert(count <= gradients->count_max);
    assert(offset + bytes_of(gradients, count) <= payload->length);
    struct gradient *gradient = take(gradients, PLAIN);

    if (!gradient) {
        return KELP_HANDLE_NONE;
    }
    gradient->count = count;
    gradient->bytes = bytes_of(gradients, count);
    gradient->payload = *payload;
    gradient->offset = offset;
    kelp_rpc_message_ref(payload->message);
    return to_handle(gradient);
}

/* The segment of the message in which the values begin, and the bytes before them in it. */
static size_t first_segment(const struct gradient *gradient, size_t *ret_skip)
{
    size_t index = gradient->payload.segment;
    size_t skip = gradient->payload.segment_offset + gradient->offset;

    for (;; index++) {
        const size_t length = kelp_rpc_message_segment(gradient->payload.message, index).length;
        if (skip < length) {
            *ret_skip = skip;
            return index;
        }
        skip -= length;
    }
}

/* The address of the values if they are contiguous, at any alignment; NULL if not. */
static const void *one_piece(const struct gradient *gradient)
{
    size_t skip;

    if (gradient->dense || gradient->left || gradient->bytes == 0) {
        return gradient->dense;
    }
    const size_t first = first_segment(gradient, &skip);
    const struct kelp_rpc_segment segment =
        kelp_rpc_message_segment(gradient->payload.message, first);
    return segment.length - skip >= gradient->bytes ? segment.bytes + skip : NULL;
}

/* False: out of memory. */
static bool make_list(struct gradient *gradient, size_t count)
{
    if (count <= gradient->piece_capacity) {
        return true;
    }
    const size_t capacity = count > PIECES_KEPT / 2 ? count : 2 * count;
    void *moved = realloc(gradient->pieces, capacity * sizeof(*gradient->pieces));
    if (!moved) {
        return false;
    }
    gradient->pieces = moved;
    gradient->piece_capacity = capacity;
    return true;
}

/* List the segments behind the first that the values lie in, of which it holds `here` bytes. */
static bool list_pieces(struct gradient *gradient, size_t first, size_t here)
{
    const struct kelp_rpc_message *message = gradient->payload.message;
    const size_t left = gradient->bytes - here;
    size_t count = 0;

    for (size_t covered = 0; covered < left; count++) {
        covered += kelp_rpc_message_segment(message, first + 1 + count).length;
    }
    if (!make_list(gradient, count)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        const struct kelp_rpc_segment segment = kelp_rpc_message_segment(message, first + 1 + i);
        gradient->pieces[i] =
            (struct kelp_gradient_piece){.bytes = segment.bytes, .length = segment.length};
    }
    gradient->piece_count = count;
    return true;
}

/* The floats as a term of a pass, in a buffer or in the message; not for a sum that is still to be
 * computed. NULL: out of memory. */
static const void *as_term(struct gradient *gradient, struct kelp_gradient_rest *ret_rest)
{
    const void *whole = one_piece(gradient);
    size_t skip;

    assert(gradient->count > 0);
    *ret_rest = (struct kelp_gradient_rest){.next = NULL};
    if (whole) {
        return whole;
    }
    const size_t first = first_segment(gradient, &skip);
    const struct kelp_rpc_segment segment =
        kelp_rpc_message_segment(gradient->payload.message, first);
    if (gradient->piece_count == 0 && !list_pieces(gradient, first, segment.length - skip)) {
        return NULL;
    }
    *ret_rest =
        (struct kelp_gradient_rest){.next = gradient->pieces, .here = segment.length - skip};
    return segment.bytes + skip;
}

static bool add_up(struct kelp_gradients *gradients, struct gradient *sum);
static uint64_t add_both(struct kelp_gradients *gradients, uint64_t left, uint64_t right);

/* Up to this many bytes in several pieces are copied first: a digest of one piece needs no
 * state. */
#define HASH_COPY_MAX 16384

struct hasher {
    size_t length;
    uint64_t words[2];
    struct kelp_vector_digest digest;
};

static void hash_piece(const uint8_t *bytes, size_t length, size_t at, void *user)
{
    struct hasher *hasher = user;

    if (at == 0) {
        kelp_vector_digest_begin(&hasher->digest);
    }
    kelp_vector_digest_add(&hasher->digest, bytes, length);
    if (at + length == hasher->length) {
        kelp_vector_digest_end(&hasher->digest, hasher->words);
    }
}

bool kelp_gradients_content(struct kelp_gradients *gradients, uint64_t handle,
                            struct kelp_content *ret_content)
{
    struct gradient *gradient = to_gradient(handle);
    struct hasher hasher; /* not cleared: its state is large, and mostly not needed */

    if (gradient->left && !add_up(gradients, gradient)) {
        return false;
    }
    const void *piece = one_piece(gradient);
    hasher.length = gradient->bytes;
    if (piece) {
        kelp_vector_digest(piece, hasher.length, hasher.words);
    } else if (hasher.length <= HASH_COPY_MAX) {
        uint8_t bytes[HASH_COPY_MAX];
        kelp_wire_payload_copy(&gradient->payload, gradient->offset, hasher.length, bytes);
        kelp_vector_digest(bytes, hasher.length, hasher.words);
    } else {
        kelp_wire_payload_pieces(&gradient->payload, gradient->offset, hasher.length, hash_piece,
                                 &hasher);
    }
    *ret_content = (struct kelp_content){.low = hasher.words[0], .high = hasher.words[1]};
    return true;
}

/* sum[i] = sum[i] + other[i], as the precision says. */
static void add_elements(enum kelp_precision precision, void *sum, const void *other, size_t count)
{
    if (precision == KELP_PRECISION_BFLOAT16) {
        kelp_bfloat16_add_packed(sum, other, count);
    } else {
        kelp_vector_add(sum, other, count);
    }
}

/* Adding bytes that arrive in pieces which may split an element. */
struct adder {
    enum kelp_precision precision;
    char *sum;
    uint8_t carry[sizeof(float)];
};

static void add_piece(const uint8_t *bytes, size_t length, size_t at, void *user)
{
    struct adder *adder = user;
    const size_t size = kelp_precision_bytes(adder->precision);
    size_t have = at % size; /* bytes of an element that began in the piece before */

    if (have > 0) {
        size_t more = size - have < length ? size - have : length;
        memcpy(adder->carry + have, bytes, more);
        if (have + more == size) {
            add_elements(adder->precision, adder->sum + at / size * size, adder->carry, 1);
        }
        bytes += more;
        length -= more;
        at += more;
    }
    size_t whole = length / size;
    if (whole > 0) {
        add_elements(adder->precision, adder->sum + at, bytes, whole);
    }
    memcpy(adder->carry, bytes + whole * size, length % size);
}

static void add_to(const struct kelp_gradients *gradients, void *sum,
                   const struct gradient *gradient)
{
    if (gradient->dense) {
        add_elements(gradients->precision, sum, gradient->dense, (size_t)gradient->count);
        return;
    }
    struct adder adder = {.precision = gradients->precision, .sum = sum};
    kelp_wire_payload_pieces(&gradient->payload, gradient->offset, gradient->bytes, add_piece,
                             &adder);
}

/* Make a handle with a buffer that holds the message's values; the plain handle is used up. NULL:
 * out of memory, and it is not. */
static struct gradient *make_dense(struct kelp_gradients *gradients, struct gradient *plain)
{
    struct gradient *dense = take(gradients, BUFFERED);

    if (!dense) {
        return NULL;
    }
    dense->count = plain->count;
    dense->bytes = plain->bytes;
    dense->dense = dense->buffer;
    kelp_wire_payload_copy(&plain->payload, plain->offset, plain->bytes, dense->dense);
    return dense;
}

/* Whether both can be read at once, in a sum that is not rounded. */
static bool adds_terms(const struct kelp_gradients *gradients, const struct gradient *left,
                       const struct gradient *right)
{
    return gradients->precision == KELP_PRECISION_FLOAT32 && one_piece(left) && one_piece(right);
}

/*
 * The sum of two floats does not depend on their order, so a sum in right's buffer has the bits of
 * left + right. (Two NaNs are the exception; a gradient with one is never applied.)
 */
uint64_t kelp_gradients_merge(struct kelp_gradients *gradients, uint64_t left_handle,
                              uint64_t right_handle)
{
    struct gradient *left = to_gradient(left_handle);
    struct gradient *right = to_gradient(right_handle);
    struct gradient *sum = left->dense ? left : right->dense ? right : NULL;
    struct gradient *other = sum == right ? left : right;

    assert(left != right);
    assert(left->count == right->count);
    assert(!left->left && !right->left);
    assert(!left->wide && !right->wide); /* only roots are asked for their values */
    if (!sum && adds_terms(gradients, left, right)) {
        return add_both(gradients, left_handle, right_handle);
    }
    if (!sum) {
        sum = make_dense(gradients, left);
        kelp_gradients_release(gradients, left_handle);
        if (!sum) {
            kelp_gradients_release(gradients, right_handle);
            return KELP_HANDLE_NONE;
        }
    }
    add_to(gradients, sum->dense, other);
    kelp_gradients_release(gradients, to_handle(other));
    return to_handle(sum);
}

static void move_buffer(struct gradient *to, struct gradient *from)
{
    assert(to->kind == PLAIN);
    to->kind = from->kind;
    from->kind = PLAIN;
    to->buffer = from->buffer;
    to->base = from->base;
    from->buffer = NULL;
    from->base = NULL;
}

/* A buffer from the pool, which stays with the handle from here on. False: out of memory. */
static bool take_buffer(struct kelp_gradients *gradients, struct gradient *gradient)
{
    if (gradient->buffer) {
        return true;
    }
    struct gradient *spare = take(gradients, BUFFERED);
    if (!spare) {
        return false;
    }
    move_buffer(gradient, spare);
    kelp_gradients_release(gradients, to_handle(spare));
    return true;
}

/* A term whose buffer can take the sum; NULL: neither has one. */
static struct gradient *summand(const struct gradient *sum)
{
    return sum->left->dense ? sum->left : sum->right->dense ? sum->right : NULL;
}

/* The sum was computed: it is in the buffer of a term, if one had a buffer. */
static void put_sum(struct kelp_gradients *gradients, struct gradient *sum)
{
    struct gradient *into = summand(sum);

    if (into) {
        into->dense = NULL;
        move_buffer(sum, into);
    }
    drop_terms(gradients, sum);
    sum->dense = sum->buffer;
}

/* Both terms are floats in messages. */
static void add_messages(float *to, const struct gradient *left, const struct gradient *right)
{
    const void *left_whole = one_piece(left), *right_whole = one_piece(right);

    if (left_whole && right_whole) {
        kelp_vector_sum(to, left_whole, right_whole, left->count);
        return;
    }
    kelp_wire_payload_copy(&left->payload, left->offset, left->bytes, to);
    struct adder adder = {.precision = KELP_PRECISION_FLOAT32, .sum = (char *)to};
    kelp_wire_payload_pieces(&right->payload, right->offset, right->bytes, add_piece, &adder);
}

/* False: out of memory; the terms still exist. */
static bool add_up(struct kelp_gradients *gradients, struct gradient *sum)
{
    struct gradient *into = summand(sum);

    if (into) {
        add_to(gradients, into->dense, into == sum->left ? sum->right : sum->left);
    } else if (take_buffer(gradients, sum)) {
        add_messages(sum->buffer, sum->left, sum->right);
    } else {
        return false;
    }
    put_sum(gradients, sum);
    return true;
}

uint64_t kelp_gradients_join(struct kelp_gradients *gradients, uint64_t left_handle,
                             uint64_t right_handle)
{
    struct gradient *left = to_gradient(left_handle);
    struct gradient *right = to_gradient(right_handle);

    assert(left != right);
    assert(left->count == right->count);
    if (gradients->precision != KELP_PRECISION_FLOAT32) {
        return kelp_gradients_merge(gradients, left_handle, right_handle);
    }
    struct gradient *sum = take(gradients, PLAIN);
    if (!sum) {
        kelp_gradients_release(gradients, left_handle);
        kelp_gradients_release(gradients, right_handle);
        return KELP_HANDLE_NONE;
    }
    sum->count = left->count;
    sum->bytes = left->bytes;
    sum->left = left;
    sum->right = right;
    return to_handle(sum);
}

static uint64_t add_both(struct kelp_gradients *gradients, uint64_t left, uint64_t right)
{
    const uint64_t sum = kelp_gradients_join(gradients, left, right);

    if (sum != KELP_HANDLE_NONE && !add_up(gradients, to_gradient(sum))) {
        kelp_gradients_release(gradients, sum);
        return KELP_HANDLE_NONE;
    }
    return sum;
}

/* False: out of memory. */
static bool find_terms(struct gradient *gradient, struct kelp_gradient_terms *terms)
{
    struct gradient *left = gradient, *right = NULL;

    if (gradient->left) { /* the sum goes to the term on the left, if one takes it */
        left = summand(gradient) == gradient->right ? gradient->right : gradient->left;
        right = left == gradient->right ? gradient->left : gradient->right;
    }
    *terms = (struct kelp_gradient_terms){.left = NULL};
    terms->left = as_term(left, &terms->left_rest);
    terms->right = right ? as_term(right, &terms->right_rest) : NULL;
    return terms->left && (terms->right || !right);
}

bool kelp_gradients_read(struct kelp_gradients *gradients, uint64_t handle, bool keeps,
                         struct kelp_optimizer_buffers *buffers)
{
    struct gradient *gradient = to_gradient(handle);
    struct kelp_gradient_terms terms;

    buffers->gradient = NULL;
    buffers->terms = (struct kelp_gradient_terms){.left = NULL};
    if (gradients->precision != KELP_PRECISION_FLOAT32 || gradient->dense) {
        buffers->gradient = kelp_gradients_values(gradients, handle);
        return buffers->gradient != NULL;
    }
    struct gradient *into = gradient->left ? summand(gradient) : NULL;
    if (!find_terms(gradient, &terms) || (keeps && !into && !take_buffer(gradients, gradient))) {
        return false;
    }
    terms.sum = !keeps ? NULL : into ? into->dense : gradient->buffer;
    buffers->terms = terms;
    return true;
}

void kelp_gradients_was_read(struct kelp_gradients *gradients, uint64_t handle)
{
    struct gradient *gradient = to_gradient(handle);

    if (gradient->left) {
        put_sum(gradients, gradient);
    } else if (!gradient->dense) {
        assert(gradient->buffer);
        gradient->dense = gradient->buffer;
        drop_message(gradient);
    }
}

/* The elements in the format in which they travel, in one piece; NULL: out of memory. */
static const void *in_memory(struct kelp_gradients *gradients, struct gradient *gradient)
{
    if (gradient->left) {
        return add_up(gradients, gradient) ? gradient->dense : NULL;
    }
    if (!gradient->dense) {
        /* One worker sent all lanes. The handle keeps its name and takes over a buffer. */
        if (!take_buffer(gradients, gradient)) {
            return NULL;
        }
        kelp_wire_payload_copy(&gradient->payload, gradient->offset, gradient->bytes,
                               gradient->buffer);
        gradient->dense = gradient->buffer;
        drop_message(gradient);
    }
    return gradient->dense;
}

const float *kelp_gradients_values(struct kelp_gradients *gradients, uint64_t handle)
{
    struct gradient *gradient = to_gradient(handle);
    const void *elements = in_memory(gradients, gradient);

    if (!elements || gradients->precision == KELP_PRECISION_FLOAT32) {
        return elements;
    }
    if (!gradient->wide) {
        gradient->wide = take(gradients, WIDE);
        if (!gradient->wide) {
            return NULL;
        }
        kelp_bfloat16_unpack(elements, gradient->count, gradient->wide->buffer);
    }
    return gradient->wide->buffer;
}

kelp_status kelp_gradients_lend(struct kelp_gradients *gradients, uint64_t handle,
                                struct kelp_gradients_loan *ret_loan)
{
    struct gradient *gradient = to_gradient(handle);
    const void *elements = in_memory(gradients, gradient);

    if (!elements) {
        return KELP_ERR_NO_MEMORY;
    }
    atomic_fetch_add_explicit(&gradient->refs, 1, memory_order_relaxed);
    *ret_loan = (struct kelp_gradients_loan){
        .gradients = gradients, .handle = handle, .values = elements, .bytes = gradient->bytes};
    return KELP_OK;
}

void kelp_gradients_return(const struct kelp_gradients_loan *loan)
{
    kelp_gradients_release(loan->gradients, loan->handle);
}
