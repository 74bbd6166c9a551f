/* Messages between two ends of a channel, both in this process. */
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

#include "common/tensors/philox.h"
#include "tests/lib/shm_puppet.h"
#include "tests/lib/suite.h"

#define MESSAGE_MAX (1u << 20)

static struct kelp_shm_channel *a, *b;
static struct kelp_shm_area *area; /* of a */
static uint8_t *memory;            /* in it */
static unsigned descriptors;
static unsigned done_read, done_unread;

static void on_done(void *user, bool read)
{
    (void)user;
    *(read ? &done_read : &done_unread) += 1;
}

static void expect_nothing(struct kelp_shm_channel *channel)
{
    struct kelp_shm_message *message = NULL;

    ck_assert_int_eq(kelp_shm_channel_receive(channel, &message, NULL), KELP_ERR_BUSY);
}

static void setup(void)
{
    int sockets[2];

    done_read = done_unread = 0;
    descriptors = kelp_shm_descriptor_count();
    kelp_shm_pair_of_sockets(sockets);
    ck_assert_int_eq(kelp_shm_channel_open(sockets[0], MESSAGE_MAX, &a, NULL), KELP_OK);
    ck_assert_int_eq(kelp_shm_channel_open(sockets[1], MESSAGE_MAX, &b, NULL), KELP_OK);
    expect_nothing(a); /* the hellos */
    expect_nothing(b);
    ck_assert_int_eq(kelp_shm_area_create(1 << 20, &area, NULL), KELP_OK);
    memory = kelp_shm_area_bytes(area);
}

static void teardown(void)
{
    kelp_shm_channel_close(a);
    kelp_shm_channel_close(b);
    kelp_shm_area_unref(area);
    ck_assert_uint_eq(kelp_shm_descriptor_count(), descriptors);
}

static kelp_status send_copied(struct kelp_shm_channel *channel, const void *bytes, size_t length)
{
    const struct kelp_shm_part part = {.bytes = bytes, .length = length};

    return kelp_shm_channel_send(channel, &part, 1, on_done, NULL, NULL);
}

static kelp_status send_shared(size_t offset, size_t length)
{
    const struct kelp_shm_part part = {.bytes = memory + offset, .length = length, .area = area};

    return kelp_shm_channel_send(a, &part, 1, on_done, NULL, NULL);
}

static struct kelp_shm_message *receive(struct kelp_shm_channel *channel)
{
    struct kelp_shm_message *message = NULL;

    ck_assert_int_eq(kelp_shm_channel_receive(channel, &message, NULL), KELP_OK);
    return message;
}

KELP_CASE("messages", .setup = setup, .teardown = teardown)

/* Parts arrive in their order, copied ones and those in an area, also empty ones. */
KELP_TEST(parts)
{
    const struct kelp_shm_part parts[] = {{.bytes = "head", .length = 4},
                                          {.bytes = memory + 100, .length = 3, .area = area},
                                          {.bytes = NULL, .length = 0},
                                          {.bytes = "tail!", .length = 5}};

    memcpy(memory + 100, "xyz", 3);
    ck_assert_int_eq(kelp_shm_channel_send(a, parts, 4, on_done, NULL, NULL), KELP_OK);
    struct kelp_shm_message *message = receive(b);
    ck_assert_uint_eq(kelp_shm_message_length(message), 12);
    ck_assert_uint_eq(kelp_shm_message_part_count(message), 4);
    for (size_t i = 0; i < 4; i++) {
        const struct kelp_shm_bytes part = kelp_shm_message_part(message, i);
        ck_assert_uint_eq(part.length, parts[i].length);
        ck_assert(part.length == 0 || memcmp(part.bytes, parts[i].bytes, part.length) == 0);
        ck_assert_int_eq(kelp_shm_message_part_is_shared(message, i), i == 1);
    }
    kelp_shm_message_release(message);
    expect_nothing(b);
}

/* Copied messages of all lengths come in their order, over the end of the ring many times. */
KELP_TEST(many_copied)
{
    static uint8_t bytes[KELP_SHM_COPIED_MAX];
    unsigned sent = 0, received = 0;

    while (received < 2000) {
        uint32_t words[4];
        kelp_philox(1, KELP_PHILOX_TEST, 0, sent, words);
        const size_t length = words[0] % (sent % 4 == 0 ? KELP_SHM_COPIED_MAX : 100) + 1;
        memset(bytes, (int)(sent % 251), length);
        if (sent < 2000 && send_copied(a, bytes, length) == KELP_OK) {
            sent++;
            continue;
        }
        struct kelp_shm_message *message = receive(b);
        const struct kelp_shm_bytes part = kelp_shm_message_part(message, 0);
        size_t right = 0; /* one assert: each takes a while */
        while (right < part.length && part.bytes[right] == received % 251) {
            right++;
        }
        ck_assert_uint_eq(right, part.length);
        kelp_shm_message_release(message);
        received++;
    }
    ck_assert_uint_eq(done_read + done_unread, 0); /* nothing was lent */
}

/* What lies in an area is read where it is, and is the sender's again with the release. */
KELP_TEST(lent_until_released)
{
    memory[4096] = 1;
    ck_assert_int_eq(send_shared(4096, 4096), KELP_OK);
    struct kelp_shm_message *message = receive(b);
    ck_assert_uint_eq(kelp_shm_message_part(message, 0).bytes[0], 1);
    memory[4096] = 2;
    ck_assert_uint_eq(kelp_shm_message_part(message, 0).bytes[0], 2);
    kelp_shm_channel_collect(a);
    ck_assert_uint_eq(done_read, 0);
    ck_assert_uint_eq(kelp_shm_channel_lent(a), 1);
    kelp_shm_message_release(message);
    kelp_shm_channel_collect(a);
    ck_assert_uint_eq(done_read, 1);
    ck_assert_uint_eq(kelp_shm_channel_lent(a), 0);
}

/* Released in any order. */
KELP_TEST(released_in_any_order)
{
    struct kelp_shm_message *messages[5];

    for (size_t i = 0; i < 5; i++) {
        ck_assert_int_eq(send_shared(i * 4096, 100), KELP_OK);
        messages[i] = receive(b);
    }
    for (size_t i = 0; i < 5; i++) {
        kelp_shm_message_release(messages[(i * 3 + 2) % 5]);
        kelp_shm_channel_collect(a);
        ck_assert_uint_eq(done_read, i + 1);
    }
}

/* When the channel ends first, the sender learns that somebody may read on; and the reader may. */
KELP_TEST(ended_before_the_release)
{
    ck_assert_int_eq(send_shared(0, 100), KELP_OK);
    memory[0] = 9;
    struct kelp_shm_message *message = receive(b);
    kelp_shm_channel_close(a);
    a = NULL;
    ck_assert_uint_eq(done_unread, 1);
    ck_assert_uint_eq(done_read, 0);
    ck_assert_uint_eq(kelp_shm_message_part(message, 0).bytes[0], 9);
    kelp_shm_channel_close(b);
    b = NULL;
    ck_assert_uint_eq(kelp_shm_message_part(message, 0).bytes[0], 9);
    kelp_shm_message_release(message);
}

/* What was released before the end counts as read. */
KELP_TEST(released_before_the_end)
{
    ck_assert_int_eq(send_shared(0, 100), KELP_OK);
    kelp_shm_message_release(receive(b));
    kelp_shm_channel_close(a);
    a = NULL;
    ck_assert_uint_eq(done_read, 1);
    ck_assert_uint_eq(done_unread, 0);
}

/* All that was sent before the end is received, and then the end. */
KELP_TEST(received_before_the_end)
{
    struct kelp_shm_message *message = NULL;
    struct kelp_error error;

    ck_assert_int_eq(send_shared(0, 100), KELP_OK);
    ck_assert_int_eq(send_copied(a, "x", 1), KELP_OK);
    kelp_shm_channel_close(a);
    a = NULL;
    kelp_shm_message_release(receive(b));
    kelp_shm_message_release(receive(b));
    kelp_shm_channel_wake(b);
    ck_assert_int_eq(kelp_shm_channel_receive(b, &message, &error), KELP_ERR_CLOSED);
    ck_assert_str_eq(error.text, "the other process has gone");
    ck_assert_int_eq(kelp_shm_channel_receive(b, &message, NULL), KELP_ERR_CLOSED);
    struct kelp_shm_area *own = NULL;
    ck_assert_int_eq(kelp_shm_area_create(4096, &own, NULL), KELP_OK);
    const struct kelp_shm_part part = {.bytes = kelp_shm_area_bytes(own), .length = 1, .area = own};
    ck_assert_int_eq(kelp_shm_channel_send(b, &part, 1, NULL, NULL, &error), KELP_ERR_CLOSED);
    ck_assert_str_eq(error.text, "a shared area cannot be passed: stream closed");
    kelp_shm_area_unref(own);
}

/* A message that is too large for a channel is the sender's mistake, and changes nothing. */
KELP_TEST(too_large)
{
    static uint8_t bytes[KELP_SHM_COPIED_MAX + 1];
    static struct kelp_shm_part parts[KELP_SHM_PARTS_MAX + 1];
    struct kelp_error error;

    ck_assert_int_eq(send_copied(a, bytes, sizeof(bytes)), KELP_ERR_LIMIT);
    ck_assert_int_eq(kelp_shm_channel_send(a, parts, KELP_SHM_PARTS_MAX + 1, NULL, NULL, &error),
                     KELP_ERR_LIMIT);
    ck_assert_str_eq(error.text, "a message of 1025 parts: it has 1 to 1024");
    ck_assert_int_eq(kelp_shm_channel_send(a, parts, 0, NULL, NULL, NULL), KELP_ERR_LIMIT);
    expect_nothing(b);
    ck_assert_int_eq(kelp_shm_channel_send(a, parts, KELP_SHM_PARTS_MAX, NULL, NULL, NULL),
                     KELP_OK);
    ck_assert_int_eq(send_copied(a, bytes, KELP_SHM_COPIED_MAX), KELP_OK);
    kelp_shm_message_release(receive(b));
    kelp_shm_message_release(receive(b));
}

/* The receiver's bound on a message ends the channel. */
KELP_TEST(larger_than_the_receiver_takes)
{
    struct kelp_shm_message *message = NULL;
    struct kelp_error error;
    const struct kelp_shm_part parts[] = {{.bytes = memory, .length = MESSAGE_MAX, .area = area},
                                          {.bytes = "x", .length = 1}};

    ck_assert_int_eq(kelp_shm_channel_send(a, parts, 2, on_done, NULL, NULL), KELP_OK);
    ck_assert_int_eq(kelp_shm_channel_receive(b, &message, &error), KELP_ERR_LIMIT);
    ck_assert_str_eq(error.text, "a message of more than 1048576 bytes");
    ck_assert_int_eq(send_shared(0, MESSAGE_MAX), KELP_OK);
}

/* A full ring is not an error: there is room when the other side has read. */
KELP_TEST(full_ring)
{
    static uint8_t bytes[KELP_SHM_COPIED_MAX];
    unsigned sent = 0;

    while (send_copied(a, bytes, sizeof(bytes)) == KELP_OK) {
        sent++;
    }
    ck_assert_uint_ge(sent, 3);
    ck_assert_int_eq(send_copied(a, bytes, sizeof(bytes)), KELP_ERR_BUSY);
    kelp_shm_message_release(receive(b));
    ck_assert(kelp_shm_pair_wait(a, 10000)); /* b rang */
    ck_assert_int_eq(send_copied(a, bytes, sizeof(bytes)), KELP_OK);
}

/* So many messages may be kept; the release of one makes room, and rings. */
KELP_TEST(all_slots)
{
    struct kelp_shm_message *messages[KELP_SHM_SLOTS];

    for (unsigned i = 0; i < KELP_SHM_SLOTS; i++) {
        ck_assert_int_eq(send_shared(i, 1), KELP_OK);
        messages[i] = receive(b);
    }
    ck_assert_int_eq(send_shared(0, 1), KELP_ERR_BUSY);
    ck_assert_int_eq(send_copied(a, "x", 1), KELP_OK);
    ck_assert_int_eq(send_shared(0, 1), KELP_ERR_BUSY);
    kelp_shm_message_release(messages[77]);
    ck_assert(kelp_shm_pair_wait(a, 10000));
    ck_assert_int_eq(send_shared(0, 1), KELP_OK);
    for (unsigned i = 0; i < KELP_SHM_SLOTS; i++) {
        kelp_shm_message_release(i == 77 ? NULL : messages[i]);
    }
}

/* Who wants to be told of a release is, once. */
KELP_TEST(told_of_a_release)
{

    ck_assert_int_eq(send_shared(0, 1), KELP_OK);
    struct kelp_shm_message *message = receive(b);
    ck_assert(!kelp_shm_pair_wait(a, 1));
    kelp_shm_channel_want(a);
    kelp_shm_message_release(message);
    ck_assert(kelp_shm_pair_wait(a, 10000));
    expect_nothing(a);                   /* the bell */
    ck_assert(kelp_shm_pair_wait(a, 0)); /* was it that? */
    kelp_shm_channel_collect(a);
    ck_assert_uint_eq(done_read, 1);
    ck_assert(!kelp_shm_pair_wait(a, 1));
}

/* Before the other side has said hello there is no room, and its hello rings. */
KELP_TEST(before_hello)
{
    struct kelp_shm_channel *early = NULL, *late = NULL;
    int sockets[2];

    kelp_shm_pair_of_sockets(sockets);
    ck_assert_int_eq(kelp_shm_channel_open(sockets[0], MESSAGE_MAX, &early, NULL), KELP_OK);
    ck_assert_int_eq(send_copied(early, "x", 1), KELP_ERR_BUSY);
    expect_nothing(early);
    kelp_shm_channel_sweep(early);
    kelp_shm_channel_collect(early);
    ck_assert_int_eq(kelp_shm_channel_open(sockets[1], MESSAGE_MAX, &late, NULL), KELP_OK);
    ck_assert(kelp_shm_pair_wait(early, 10000));
    expect_nothing(early);
    ck_assert_int_eq(send_copied(early, "x", 1), KELP_OK);
    kelp_shm_channel_close(early);
    kelp_shm_channel_close(late);
}

/* The bell for room is not lost when a receive has taken it. */
KELP_TEST(bell_taken_by_a_receive)
{
    static uint8_t bytes[KELP_SHM_COPIED_MAX];

    while (send_copied(a, bytes, sizeof(bytes)) == KELP_OK) {
    }
    kelp_shm_message_release(receive(b));
    kelp_shm_channel_wake(a);
    expect_nothing(a); /* the bell */
    ck_assert(kelp_shm_pair_wait(a, 10000));
    ck_assert_int_eq(send_copied(a, bytes, sizeof(bytes)), KELP_OK);
    ck_assert(!kelp_shm_pair_wait(a, 1));
}

/* Areas come and go without end when they are retired; the other side forgets them too. */
KELP_TEST(areas_come_and_go)
{
    for (unsigned i = 0; i < 5 * KELP_SHM_AREAS_MAX; i++) {
        struct kelp_shm_area *short_lived = NULL;
        ck_assert_int_eq(kelp_shm_area_create(4096, &short_lived, NULL), KELP_OK);
        const struct kelp_shm_part part = {
            .bytes = kelp_shm_area_bytes(short_lived), .length = 8, .area = short_lived};
        ck_assert_int_eq(kelp_shm_channel_send(a, &part, 1, on_done, NULL, NULL), KELP_OK);
        kelp_shm_message_release(receive(b));
        kelp_shm_area_retire(short_lived);
        kelp_shm_area_unref(short_lived);
        ck_assert_uint_le(kelp_shm_descriptor_count(), descriptors + KELP_SHM_AREAS_MAX + 10);
    }
    kelp_shm_channel_sweep(a);
    expect_nothing(b);
    ck_assert_uint_le(kelp_shm_descriptor_count(), descriptors + 10);
}

/* Too many that are in use are the sender's mistake; a few that were dropped must be heard of
 * first.
 */
KELP_TEST(too_many_areas)
{
    static struct kelp_shm_area *areas[KELP_SHM_AREAS_MAX + 2];
    kelp_status status = KELP_OK;

    for (unsigned i = 0; i < KELP_SHM_AREAS_MAX + 1; i++) {
        ck_assert_int_eq(kelp_shm_area_create(4096, &areas[i], NULL), KELP_OK);
        const struct kelp_shm_part part = {
            .bytes = kelp_shm_area_bytes(areas[i]), .length = 8, .area = areas[i]};
        status = kelp_shm_channel_send(a, &part, 1, on_done, NULL, NULL);
        ck_assert_int_eq(status, i < KELP_SHM_AREAS_MAX ? KELP_OK : KELP_ERR_LIMIT);
        if (status == KELP_OK) {
            kelp_shm_message_release(receive(b));
        }
    }
    for (unsigned i = 0; i < KELP_SHM_AREAS_MAX + 1; i++) {
        kelp_shm_area_unref(areas[i]);
    }
}

/* More areas at once than notes fit into the socket: the rest follows when the other side has read.
 */
KELP_TEST(more_notes_than_fit)
{
    enum { COUNT = 700 };
    struct kelp_shm_area *areas[COUNT];
    struct kelp_shm_part parts[COUNT];
    unsigned tries = 0;

    for (unsigned i = 0; i < COUNT; i++) {
        ck_assert_int_eq(kelp_shm_area_create(4096, &areas[i], NULL), KELP_OK);
        parts[i] = (struct kelp_shm_part){
            .bytes = kelp_shm_area_bytes(areas[i]), .length = 8, .area = areas[i]};
    }
    while (kelp_shm_channel_send(a, parts, COUNT, on_done, NULL, NULL) == KELP_ERR_BUSY) {
        ck_assert_uint_lt(tries++, 2 * COUNT);
        kelp_shm_channel_wake(b);
        expect_nothing(b); /* takes one note, and rings */
        ck_assert(kelp_shm_pair_wait(a, 10000));
        expect_nothing(a); /* the bell */
    }
    ck_assert_uint_gt(tries, 0);
    kelp_shm_message_release(receive(b));
    for (unsigned i = 0; i < COUNT; i++) {
        kelp_shm_area_unref(areas[i]);
    }
}

/* ---- waiting ---- */

static void *receive_one(void *user)
{
    struct kelp_shm_message *message = NULL;
    kelp_status status;

    (void)user;
    while ((status = kelp_shm_channel_receive(b, &message, NULL)) == KELP_ERR_BUSY) {
        if (!kelp_shm_pair_wait(b, 20000)) {
            return NULL;
        }
    }
    kelp_shm_message_release(message);
    return status == KELP_OK ? &descriptors : NULL;
}

/* Who sleeps is woken by a message, however the two are interleaved. */
KELP_LOOP_TEST(woken, 0, 100)
{
    pthread_t thread;
    void *result = NULL;

    ck_assert_int_eq(pthread_create(&thread, NULL, receive_one, NULL), 0);
    for (volatile int i = 0; i < _i * 3000; i++) {
    }
    ck_assert_int_eq(_i % 2 == 0 ? send_shared(0, 10) : send_copied(a, "x", 1), KELP_OK);
    ck_assert_int_eq(pthread_join(thread, &result), 0);
    ck_assert_ptr_nonnull(result);
}

/* Nothing comes: the wait is over when its time is. One bell is rung for a sleep, not one a
 * message.
 */
KELP_TEST(nothing_comes)
{
    uint8_t bytes[64];

    ck_assert(!kelp_shm_pair_wait(b, 1));
    ck_assert(kelp_shm_channel_rest(b));
    for (unsigned i = 0; i < 10; i++) {
        ck_assert_int_eq(send_copied(a, "x", 1), KELP_OK);
    }
    ck_assert_int_eq(recv(kelp_shm_channel_socket(b), bytes, sizeof(bytes), MSG_DONTWAIT),
                     sizeof(struct kelp_shm_note));
    ck_assert_int_eq(recv(kelp_shm_channel_socket(b), bytes, sizeof(bytes), MSG_DONTWAIT), -1);
    kelp_shm_channel_wake(b);
    ck_assert(!kelp_shm_channel_rest(b)); /* something is there */
}
