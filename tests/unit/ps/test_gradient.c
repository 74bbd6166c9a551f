#include <stdlib.h>
#include <string.h>

#include "common/tensors/digest.h"
#include "kernels/bfloat16.h"
#include "ps/core/partition/partition.h"
#include "ps/shard/tensors/gradient.h"
#include "tests/lib/suite.h"

#define COUNT 300
#define LARGE 5000 /* elements, more than are copied to be digested */

static struct kelp_gradients *gradients;
static enum kelp_precision precision;
static int messages_alive;

static void begin(enum kelp_precision elements)
{
    kelp_rpc_global_init();
    precision = elements;
    ck_assert_int_eq(kelp_gradients_create(LARGE, precision, &gradients, NULL), KELP_OK);
    messages_alive = 0;
}

static void set_up(void)
{
    begin(KELP_PRECISION_FLOAT32);
}

static void set_up_bfloat16(void)
{
    begin(KELP_PRECISION_BFLOAT16);
}

static void tear_down(void)
{
    ck_assert_int_eq(messages_alive, 0); /* no message is kept longer than it is needed */
    kelp_gradients_destroy(gradients);
    kelp_rpc_global_fini();
}

static void message_gone(void *user)
{
    free(user);
    messages_alive--;
}

/* As an element that travels has it. */
static float rounded(float value)
{
    if (precision == KELP_PRECISION_BFLOAT16) {
        kelp_bfloat16_round(&value, 1);
    }
    return value;
}

static float value_at(unsigned which, unsigned i)
{
    return rounded((float)((i * 7919 + which * 104729) % 1000) / 999.0f - 0.3f);
}

static void put_element(uint8_t *bytes, float value)
{
    if (precision == KELP_PRECISION_BFLOAT16) {
        kelp_bfloat16_pack(&value, 1, bytes);
    } else {
        memcpy(bytes, &value, sizeof(value));
    }
}

/*
 * Values of gradient `which` as they come in: behind `offset` bytes of something else, in segments
 * of `piece` bytes, so that elements are unaligned and straddle segments.
 */
static uint64_t receive_some(unsigned count, unsigned which, size_t offset, size_t piece)
{
    const size_t size = kelp_precision_bytes(precision);
    size_t length = offset + count * size;
    uint8_t *bytes = malloc(length);
    struct kelp_rpc_message *message = kelp_rpc_message_create();

    ck_assert_ptr_nonnull(bytes);
    memset(bytes, 0xee, offset);
    for (unsigned i = 0; i < count; i++) {
        put_element(bytes + offset + i * size, value_at(which, i));
    }
    for (size_t at = 0; at < length; at += piece) {
        size_t part = length - at < piece ? length - at : piece;
        uint8_t *copy = malloc(part);
        ck_assert_ptr_nonnull(copy);
        memcpy(copy, bytes + at, part);
        messages_alive++;
        ck_assert_int_eq(kelp_rpc_message_borrow(message, copy, part, message_gone, copy), KELP_OK);
    }
    free(bytes);
    struct kelp_wire_payload payload = {.message = message, .length = length};
    uint64_t handle = kelp_gradients_receive(gradients, &payload, offset, count);
    ck_assert_uint_ne(handle, KELP_HANDLE_NONE);
    kelp_rpc_message_unref(message);
    return handle;
}

static uint64_t receive(unsigned which, size_t offset, size_t piece)
{
    return receive_some(COUNT, which, offset, piece);
}

/* Odd pieces: 1 to 7 bytes, around cache lines, and everything at once. */
static const struct {
    size_t offset, piece;
} shapes[] = {{0, 1},  {1, 3},  {2, 5},   {3, 7},   {0, 13},   {5, 64},  {0, 64},
              {0, 65}, {4, 97}, {0, 255}, {1, 256}, {0, 5000}, {3, 5000}};

KELP_CASE("all", .setup = set_up, .teardown = tear_down)

/* One gradient alone comes out as it went in. */
KELP_LOOP_TEST(values, 0, KELP_ARRAY_COUNT(shapes))
{
    uint64_t handle = receive(1, shapes[_i].offset, shapes[_i].piece);
    const float *result = kelp_gradients_values(gradients, handle);

    ck_assert_ptr_nonnull(result);
    ck_assert_int_eq(messages_alive, 0);
    for (unsigned i = 0; i < COUNT; i++) {
        ck_assert_float_eq(result[i], value_at(1, i));
    }
    kelp_gradients_release(gradients, handle);
}

static struct kelp_content content_of(uint64_t handle)
{
    struct kelp_content content;

    ck_assert(kelp_gradients_content(gradients, handle, &content));
    return content;
}

/* The digest is that of the values, in whatever pieces they came, and once they lie in a buffer. */
KELP_LOOP_TEST(contents, 0, 2 * KELP_ARRAY_COUNT(shapes))
{
    const unsigned count = _i % 2 == 0 ? COUNT : LARGE;
    const size_t offset = shapes[_i / 2].offset;
    const size_t piece = shapes[_i / 2].piece * (_i % 2 == 0 ? 1 : 16);
    uint64_t handle = receive_some(count, 1, offset, piece);
    const struct kelp_content received = content_of(handle);
    struct kelp_gradients_loan loan;
    uint64_t words[2];

    ck_assert_int_eq(kelp_gradients_lend(gradients, handle, &loan), KELP_OK);
    ck_assert_uint_eq(loan.bytes, count * kelp_precision_bytes(precision));
    kelp_digest_bytes_words(loan.values, loan.bytes, words);
    kelp_gradients_return(&loan);
    ck_assert_uint_eq(received.low, words[0]);
    ck_assert_uint_eq(received.high, words[1]);
    const struct kelp_content dense = content_of(handle);
    ck_assert_uint_eq(dense.low, words[0]);
    ck_assert_uint_eq(dense.high, words[1]);
    kelp_gradients_release(gradients, handle);
}

/* left + right, whichever of them is a message or a sum already. */
KELP_LOOP_TEST(merges, 0, KELP_ARRAY_COUNT(shapes))
{
    size_t offset = shapes[_i].offset, piece = shapes[_i].piece;
    uint64_t left = kelp_gradients_merge(gradients, receive(1, offset, piece),
                                         receive(2, offset + 1, piece + 2)); /* message, message */
    left = kelp_gradients_merge(gradients, left, receive(3, offset, piece)); /* sum, message */
    left = kelp_gradients_merge(gradients, receive(4, offset, piece), left); /* message, sum */
    uint64_t right = kelp_gradients_merge(gradients, receive(5, 0, piece), receive(6, 2, piece));
    uint64_t root = kelp_gradients_merge(gradients, left, right); /* sum, sum */
    const float *result = kelp_gradients_values(gradients, root);

    ck_assert_int_eq(messages_alive, 0);
    for (unsigned i = 0; i < COUNT; i++) {
        float first = rounded(value_at(1, i) + value_at(2, i));
        first = rounded(first + value_at(3, i));
        first = rounded(value_at(4, i) + first);
        float second = rounded(value_at(5, i) + value_at(6, i));
        ck_assert_float_eq(result[i], rounded(first + second));
    }
    kelp_gradients_release(gradients, root);
}

static bool is_in_memory; /* what was read last: not as terms */

/* All of a term, of which no more is read than it has. */
static void gather(const void *at, struct kelp_gradient_rest rest, float *ret_values)
{
    const size_t bytes = COUNT * sizeof(float);
    size_t filled = 0;

    while (rest.next && filled + rest.here < bytes) {
        memcpy((char *)ret_values + filled, at, rest.here);
        filled += rest.here;
        at = rest.next->bytes;
        rest.here = rest.next->length;
        rest.next++;
    }
    memcpy((char *)ret_values + filled, at, bytes - filled);
}

/* What an update would make of what it is given: the values, and where they are kept. */
static void read_through(uint64_t handle, bool keeps, float *ret_values)
{
    struct kelp_optimizer_buffers buffers;
    float left[COUNT], right[COUNT];

    ck_assert(kelp_gradients_read(gradients, handle, keeps, &buffers));
    if (!buffers.gradient) {
        gather(buffers.terms.left, buffers.terms.left_rest, left);
    }
    if (buffers.terms.right) {
        gather(buffers.terms.right, buffers.terms.right_rest, right);
    }
    for (unsigned i = 0; i < COUNT; i++) {
        if (buffers.gradient) {
            ret_values[i] = buffers.gradient[i];
            continue;
        }
        ret_values[i] = buffers.terms.right ? left[i] + right[i] : left[i];
        if (keeps) {
            buffers.terms.sum[i] = ret_values[i];
        }
    }
    ck_assert(buffers.gradient || keeps == (buffers.terms.sum != NULL));
    is_in_memory = buffers.gradient != NULL;
    if (keeps) {
        kelp_gradients_was_read(gradients, handle);
    }
}

/* A tree of up to four gradients, of which the last sum is only joined. */
static uint64_t join(unsigned messages, size_t offset, size_t piece)
{
    uint64_t left = receive(1, offset, piece);
    uint64_t right = messages > 1 ? receive(2, offset + 1, piece + 2) : KELP_HANDLE_NONE;

    if (messages == 3) {
        left = kelp_gradients_merge(gradients, left, receive(3, offset, piece));
    }
    if (messages == 4) {
        right = kelp_gradients_merge(gradients, right, receive(3, offset, piece));
    }
    return right == KELP_HANDLE_NONE ? left : kelp_gradients_join(gradients, left, right);
}

static float joined_at(unsigned messages, unsigned i)
{
    float left = value_at(1, i);
    float right = value_at(2, i);

    if (messages == 1) {
        return left;
    }
    left = messages == 3 ? rounded(left + value_at(3, i)) : left;
    right = messages == 4 ? rounded(right + value_at(3, i)) : right;
    return rounded(left + right);
}

/* All elements of such a sum, as they travel. */
static size_t put_joined(unsigned messages, uint8_t *bytes)
{
    const size_t size = kelp_precision_bytes(precision);

    for (unsigned i = 0; i < COUNT; i++) {
        put_element(bytes + i * size, joined_at(messages, i));
    }
    return COUNT * size;
}

/* A sum that has yet to be made is read as if it had been, again and again, and is made where it is
 * kept; then no message is held any more. One that is rounded is never read as terms. */
KELP_LOOP_TEST(joined_sums_are_read, 0, 4 * KELP_ARRAY_COUNT(shapes))
{
    const unsigned messages = (unsigned)_i % 4 + 1;
    const size_t offset = shapes[_i / 4].offset, piece = shapes[_i / 4].piece;

    for (int last = 0; last < 4; last++) {
        float values[COUNT];
        uint64_t handle = join(messages, offset, piece);
        for (int turn = 0; turn < 3; turn++) {
            read_through(handle, false, values);
            ck_assert(is_in_memory == (precision == KELP_PRECISION_BFLOAT16)); /* not copied */
            for (unsigned i = 0; i < COUNT; i++) {
                ck_assert_float_eq(values[i], joined_at(messages, i));
            }
        }
        if (last == 1) {
            read_through(handle, true, values);
            ck_assert_int_eq(messages_alive, 0);
        } else if (last == 2) {
            uint8_t bytes[COUNT * sizeof(float)];
            uint64_t words[2];
            kelp_digest_bytes_words(bytes, put_joined(messages, bytes), words);
            const struct kelp_content content = content_of(handle);
            ck_assert_uint_eq(content.low, words[0]);
            ck_assert_uint_eq(content.high, words[1]);
        } else if (last == 3) {
            struct kelp_gradients_loan loan;
            ck_assert_int_eq(kelp_gradients_lend(gradients, handle, &loan), KELP_OK);
            ck_assert_int_eq(messages_alive, 0);
            uint8_t bytes[COUNT * sizeof(float)];
            ck_assert_uint_eq(loan.bytes, put_joined(messages, bytes));
            ck_assert_mem_eq(loan.values, bytes, loan.bytes);
            kelp_gradients_return(&loan);
        }
        if (last > 0) {
            const float *result = kelp_gradients_values(gradients, handle);
            ck_assert_ptr_nonnull(result);
            for (unsigned i = 0; i < COUNT; i++) {
                ck_assert_float_eq(result[i], joined_at(messages, i));
            }
        }
        kelp_gradients_release(gradients, handle);
        ck_assert_int_eq(messages_alive, 0);
    }
}

/* Buffers are used again: the same ones, step after step. */
KELP_TEST(buffers_are_reused)
{
    const float *first = NULL;

    for (int step = 0; step < 50; step++) {
        uint64_t root = step % 2 == 0
                            ? receive(1, 0, 5000)
                            : kelp_gradients_merge(gradients, receive(1, 0, 64), receive(2, 0, 64));
        const float *result = kelp_gradients_values(gradients, root);
        first = first ? first : result;
        ck_assert_ptr_eq(result, first);
        kelp_gradients_release(gradients, root);
    }
}

/* What is lent stays where it is, whatever becomes of the handle, and even of all of them. */
KELP_TEST(lent_values_outlive_the_handle)
{
    struct kelp_gradients_loan loan;
    uint64_t handle = receive(0, 3, 64);

    ck_assert_int_eq(kelp_gradients_lend(gradients, handle, &loan), KELP_OK);
    ck_assert_uint_eq(loan.bytes, COUNT * kelp_precision_bytes(precision));
    if (precision == KELP_PRECISION_FLOAT32) {
        ck_assert_ptr_eq(kelp_gradients_values(gradients, handle), loan.values);
    }
    kelp_gradients_release(gradients, handle);
    handle = receive(1, 0, 64); /* takes another place */
    ck_assert_ptr_nonnull(kelp_gradients_values(gradients, handle));
    kelp_gradients_release(gradients, handle);
    kelp_gradients_destroy(gradients);
    gradients = NULL;
    for (unsigned i = 0; i < COUNT; i++) {
        uint8_t element[sizeof(float)];
        const size_t size = kelp_precision_bytes(precision);
        put_element(element, value_at(0, i));
        ck_assert_mem_eq((const uint8_t *)loan.values + i * size, element, size);
    }
    kelp_gradients_return(&loan);
}

KELP_CASE("bfloat16", .setup = set_up_bfloat16, .teardown = tear_down)

KELP_TEST_AGAIN(values)
KELP_TEST_AGAIN(contents)
KELP_TEST_AGAIN(merges)
KELP_TEST_AGAIN(joined_sums_are_read)
KELP_TEST_AGAIN(buffers_are_reused)
KELP_TEST_AGAIN(lent_values_outlive_the_handle)

/* A sum has the digest of the same values in one message: what workers pushed is compared so. */
KELP_TEST(a_sum_has_the_digest_of_its_values)
{
    const uint64_t sum = kelp_gradients_merge(gradients, receive(1, 1, 7), receive(2, 0, 64));
    const struct kelp_content content = content_of(sum);
    uint8_t bytes[2 * COUNT];
    uint64_t words[2];

    for (unsigned i = 0; i < COUNT; i++) {
        put_element(bytes + 2 * i, rounded(value_at(1, i) + value_at(2, i)));
    }
    kelp_digest_bytes_words(bytes, sizeof(bytes), words);
    ck_assert_uint_eq(content.low, words[0]);
    ck_assert_uint_eq(content.high, words[1]);
    kelp_gradients_release(gradients, sum);
}
