#include <stdlib.h>
#include <string.h>

#include "common/tensors/digest.h"
#include "ps/core/partition/partition.h"
#include "ps/shard/tensors/gradient.h"
#include "tests/lib/suite.h"

#define COUNT 300
#define LARGE 5000 /* elements, more than are copied to be digested */

static struct kelp_gradients *gradients;
static int messages_alive;

static void set_up(void)
{
    kelp_rpc_global_init();
    ck_assert_int_eq(kelp_gradients_create(LARGE, &gradients, NULL), KELP_OK);
    messages_alive = 0;
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

static float value_at(unsigned which, unsigned i)
{
    return (float)((i * 7919 + which * 104729) % 1000) / 999.0f - 0.3f;
}

/*
 * Values of gradient `which` as they come in: behind `offset` bytes of something else, in segments
 * of `piece` bytes, so that floats are unaligned and straddle segments.
 */
static uint64_t receive_some(unsigned count, unsigned which, size_t offset, size_t piece)
{
    size_t length = offset + count * sizeof(float);
    uint8_t *bytes = malloc(length);
    struct kelp_rpc_message *message = kelp_rpc_message_create();

    ck_assert_ptr_nonnull(bytes);
    memset(bytes, 0xee, offset);
    for (unsigned i = 0; i < count; i++) {
        float value = value_at(which, i);
        memcpy(bytes + offset + i * sizeof(float), &value, sizeof(value));
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
    const float *values = kelp_gradients_values(gradients, handle);
    uint64_t words[2];

    kelp_digest_bytes_words(values, count * sizeof(float), words);
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
        float first = value_at(1, i) + value_at(2, i);
        first = first + value_at(3, i);
        first = value_at(4, i) + first;
        float second = value_at(5, i) + value_at(6, i);
        ck_assert_float_eq(result[i], first + second);
    }
    kelp_gradients_release(gradients, root);
}

static bool is_in_memory; /* what was read last: not as terms */

/* What an update would make of what it is given: the values, and where they are kept. */
static void read_through(uint64_t handle, bool keeps, float *ret_values)
{
    struct kelp_optimizer_buffers buffers;

    ck_assert(kelp_gradients_read(gradients, handle, keeps, &buffers));
    for (unsigned i = 0; i < COUNT; i++) {
        float left = 0.0f, right = 0.0f;
        if (buffers.gradient) {
            ret_values[i] = buffers.gradient[i];
            continue;
        }
        memcpy(&left, (const char *)buffers.terms.left + i * sizeof(float), sizeof(left));
        if (buffers.terms.right) {
            memcpy(&right, (const char *)buffers.terms.right + i * sizeof(float), sizeof(right));
        }
        ret_values[i] = buffers.terms.right ? left + right : left;
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
    left = messages == 3 ? left + value_at(3, i) : left;
    right = messages == 4 ? right + value_at(3, i) : right;
    return left + right;
}

/* A sum that has yet to be made is read as if it had been, again and again, and is made where it is
 * kept; then no message is held any more. */
KELP_LOOP_TEST(joined_sums_are_read, 0, 4 * KELP_ARRAY_COUNT(shapes))
{
    const unsigned messages = (unsigned)_i % 4 + 1;
    const size_t offset = shapes[_i / 4].offset, piece = shapes[_i / 4].piece;

    for (int last = 0; last < 4; last++) {
        float values[COUNT];
        uint64_t handle = join(messages, offset, piece);
        for (int turn = 0; turn < 3; turn++) {
            read_through(handle, false, values);
            ck_assert(!is_in_memory || piece < COUNT * sizeof(float)); /* nothing is copied */
            for (unsigned i = 0; i < COUNT; i++) {
                ck_assert_float_eq(values[i], joined_at(messages, i));
            }
        }
        if (last == 1) {
            read_through(handle, true, values);
            ck_assert_int_eq(messages_alive, 0);
        } else if (last == 2) {
            uint64_t words[2];
            for (unsigned i = 0; i < COUNT; i++) {
                values[i] = joined_at(messages, i);
            }
            kelp_digest_bytes_words(values, sizeof(values), words);
            const struct kelp_content content = content_of(handle);
            ck_assert_uint_eq(content.low, words[0]);
            ck_assert_uint_eq(content.high, words[1]);
        } else if (last == 3) {
            struct kelp_gradients_loan loan;
            ck_assert_int_eq(kelp_gradients_lend(gradients, handle, &loan), KELP_OK);
            ck_assert_int_eq(messages_alive, 0);
            ck_assert_float_eq(loan.values[COUNT - 1], joined_at(messages, COUNT - 1));
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
    ck_assert_uint_eq(loan.bytes, COUNT * sizeof(float));
    ck_assert_ptr_eq(kelp_gradients_values(gradients, handle), loan.values);
    kelp_gradients_release(gradients, handle);
    handle = receive(1, 0, 64); /* takes another place */
    ck_assert_ptr_nonnull(kelp_gradients_values(gradients, handle));
    kelp_gradients_release(gradients, handle);
    kelp_gradients_destroy(gradients);
    gradients = NULL;
    for (unsigned i = 0; i < COUNT; i++) {
        ck_assert(loan.values[i] == value_at(0, i));
    }
    kelp_gradients_return(&loan);
}
