/* Messages between two ends of a channel, both in this process; and an other side that lies. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/shm/shm_socket.h"
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

/* ---- meeting ---- */

static char folder[] = "/tmp/kelp-test-XXXXXX";
static char path[64];

static void folder_setup(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/meet", folder);
}

static void folder_teardown(void)
{
    (void)unlink(path);
    (void)rmdir(folder);
}

KELP_CASE("meeting", .setup = folder_setup, .teardown = folder_teardown)

/* Two ends meet at a path of mode 0600. */
KELP_TEST(listen_and_connect)
{
    struct kelp_error error;
    struct stat about;
    int listener, server, client, none;

    ck_assert_int_eq(kelp_shm_connect(path, &none, &error), KELP_ERR_UNREACHABLE);
    ck_assert_int_eq(kelp_shm_listen(path, &listener, NULL), KELP_OK);
    ck_assert_int_eq(kelp_shm_listen(path, &none, &error), KELP_ERR_EXISTS);
    ck_assert_int_eq(stat(path, &about), 0);
    ck_assert_uint_eq(about.st_mode & 0777, 0600);
    ck_assert_int_eq(kelp_shm_accept(listener, &none, NULL), KELP_ERR_BUSY);
    ck_assert_int_eq(kelp_shm_connect(path, &client, NULL), KELP_OK);
    ck_assert_int_eq(kelp_shm_accept(listener, &server, NULL), KELP_OK);
    ck_assert_int_eq(kelp_shm_channel_open(server, MESSAGE_MAX, &a, NULL), KELP_OK);
    ck_assert_int_eq(kelp_shm_channel_open(client, MESSAGE_MAX, &b, NULL), KELP_OK);
    expect_nothing(a);
    expect_nothing(b);
    ck_assert_int_eq(send_copied(a, "x", 1), KELP_OK);
    kelp_shm_message_release(receive(b));
    kelp_shm_channel_close(a);
    kelp_shm_channel_close(b);
    (void)close(listener);
    ck_assert_int_eq(kelp_shm_connect(path, &none, NULL), KELP_ERR_UNREACHABLE);
}

/* Paths that no socket can have. */
KELP_TEST(paths)
{
    char longest[200];
    struct kelp_error error;
    int none;

    memset(longest, 'x', sizeof(longest));
    longest[sizeof(longest) - 1] = '\0';
    ck_assert_int_eq(kelp_shm_listen(longest, &none, &error), KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "its path has 1 to 107 bytes"));
    ck_assert_int_eq(kelp_shm_connect("", &none, NULL), KELP_ERR_INVALID);
    (void)snprintf(path, sizeof(path), "%s/none/meet", folder);
    ck_assert_int_eq(kelp_shm_listen(path, &none, &error), KELP_ERR_IO);
    ck_assert_ptr_nonnull(strstr(error.text, "cannot listen at '"));
}

/* Another user's process is turned away, on both sides (root alone can be another one). */
KELP_TEST(another_user)
{
    struct kelp_error error;
    int listener, fd;

    if (geteuid() != 0) {
        return;
    }
    ck_assert_int_eq(kelp_shm_listen(path, &listener, NULL), KELP_OK);
    ck_assert_int_eq(chmod(path, 0666), 0);
    ck_assert_int_eq(chmod(folder, 0755), 0);
    ck_assert_int_eq(seteuid(12345), 0);
    ck_assert_int_eq(kelp_shm_connect(path, &fd, &error), KELP_ERR_DENIED);
    ck_assert_str_eq(error.text, "the other process is user 0's, and this one user 12345's");
    ck_assert_int_eq(seteuid(0), 0);
    ck_assert_int_eq(kelp_shm_accept(listener, &fd, &error), KELP_ERR_DENIED);
    ck_assert_str_eq(error.text, "the other process is user 12345's, and this one user 0's");
    (void)close(listener);
}

/* ---- an other side that lies ---- */

static struct kelp_shm_puppet puppet;

static void hostile_setup(void)
{
    descriptors = kelp_shm_descriptor_count();
    kelp_shm_puppet_open(&puppet);
}

static void hostile_teardown(void)
{
    kelp_shm_puppet_close(&puppet);
    ck_assert_uint_eq(kelp_shm_descriptor_count(), descriptors);
}

static kelp_status hear(struct kelp_error *reterr)
{
    struct kelp_shm_message *message = NULL;
    kelp_status status = KELP_OK;

    *reterr = (struct kelp_error){.text = ""};
    for (unsigned i = 0; i < 10 && (status == KELP_OK || status == KELP_ERR_BUSY); i++) {
        kelp_shm_channel_wake(puppet.channel);
        status = kelp_shm_channel_receive(puppet.channel, &message, reterr);
        if (status == KELP_OK) {
            kelp_shm_message_release(message);
        }
    }
    return status;
}

static void note(uint32_t kind, uint32_t value, uint64_t length, int fd)
{
    kelp_shm_puppet_note(&puppet, kind, value, length, fd);
}

static void with_memfd(uint32_t kind, uint32_t value, uint64_t length, int fd)
{
    note(kind, value, length, fd);
    (void)close(fd);
}

static void greet(void)
{
    kelp_shm_puppet_greet(&puppet);
}

static void pass_area(uint32_t value)
{
    struct kelp_shm_area *passed = NULL;

    ck_assert_int_eq(kelp_shm_area_create(8192, &passed, NULL), KELP_OK);
    note(KELP_SHM_NOTE_AREA, value, 8192, kelp__shm_area_fd(passed));
    kelp_shm_area_unref(passed);
}

static void frame(uint32_t parts, uint32_t copied, uint32_t slot, uint32_t use)
{
    const struct kelp_shm_frame said = {parts, copied, slot, use};

    kelp_shm_puppet_put(&puppet, &said, sizeof(said));
}

static void part(uint32_t in, uint64_t offset, uint64_t length)
{
    const struct kelp_shm_frame_part said = {in, 0, offset, length};

    kelp_shm_puppet_put(&puppet, &said, sizeof(said));
}

static void put_zeros(size_t length)
{
    static const uint8_t zeros[64];

    kelp_shm_puppet_put(&puppet, zeros, length);
}

static void publish(void)
{
    kelp_shm_puppet_publish(&puppet);
}

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

static void hello_of_another_version(void)
{
    note(KELP_SHM_NOTE_HELLO, 2, KELP_SHM_PAGE_BYTES, kelp__shm_area_fd(puppet.own));
}

static void hello_without_memory(void)
{
    note(KELP_SHM_NOTE_HELLO, 1, KELP_SHM_PAGE_BYTES, -1);
}

static void hello_with_a_small_ring(void)
{
    note(KELP_SHM_NOTE_HELLO, 1, 8192, kelp__shm_area_fd(puppet.own));
}

static void hello_with_less_than_said(void)
{
    with_memfd(KELP_SHM_NOTE_HELLO, 1, KELP_SHM_PAGE_BYTES, kelp_shm_memfd(4096, SEALS, true));
}

static void hello_unsealed(void)
{
    with_memfd(KELP_SHM_NOTE_HELLO, 1, KELP_SHM_PAGE_BYTES,
               kelp_shm_memfd(KELP_SHM_PAGE_BYTES, 0, true));
}

static void hello_twice(void)
{
    greet();
    greet();
}

static void bell_before_hello(void)
{
    note(KELP_SHM_NOTE_BELL, 0, 0, -1);
}

static void unknown_note(void)
{
    greet();
    note(77, 0, 0, -1);
}

static void short_note(void)
{
    ck_assert_int_eq(send(puppet.socket, "abcd", 4, 0), 4);
}

static void long_note(void)
{
    uint8_t bytes[100] = {0};

    ck_assert_int_eq(send(puppet.socket, bytes, sizeof(bytes), 0), sizeof(bytes));
}

static void bell_with_a_descriptor(void)
{
    greet();
    note(KELP_SHM_NOTE_BELL, 0, 0, kelp__shm_area_fd(puppet.own));
}

static void two_descriptors(void)
{
    const int both[2] = {kelp__shm_area_fd(puppet.own), kelp__shm_area_fd(puppet.own)};
    struct kelp_shm_note said = {KELP_SHM_NOTE_HELLO, 1, KELP_SHM_PAGE_BYTES};
    struct iovec bytes = {&said, sizeof(said)};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(both))];
    } control = {.bytes = {0}};
    struct msghdr message = {.msg_iov = &bytes,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};

    control.header = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(sizeof(both)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), both, sizeof(both));
    ck_assert_int_eq(sendmsg(puppet.socket, &message, 0), sizeof(said));
}

static void area_without_memory(void)
{
    greet();
    note(KELP_SHM_NOTE_AREA, 1, 4096, -1);
}

static void area_of_no_bytes(void)
{
    greet();
    note(KELP_SHM_NOTE_AREA, 1, 0, kelp__shm_area_fd(puppet.own));
}

static void area_of_too_many_bytes(void)
{
    greet();
    note(KELP_SHM_NOTE_AREA, 1, UINT64_MAX, kelp__shm_area_fd(puppet.own));
}

static void area_with_holes(void)
{
    greet();
    with_memfd(KELP_SHM_NOTE_AREA, 1, 1 << 20, kelp_shm_memfd(1 << 20, SEALS, false));
}

static void area_twice(void)
{
    greet();
    pass_area(3);
    pass_area(3);
}

static void area_zero(void)
{
    greet();
    pass_area(0);
}

static void jump_ahead(void)
{
    greet();
    atomic_store(&puppet.page->sent, KELP_SHM_RING_BYTES + 1);
}

static void jump_back(void)
{
    greet();
    frame(1, 0, KELP_SHM_NO_SLOT, 0);
    part(0, 0, 0);
    publish();
    struct kelp_error error;
    ck_assert_int_eq(hear(&error), KELP_ERR_BUSY);
    atomic_store(&puppet.page->sent, 8);
}

static void less_than_a_frame(void)
{
    greet();
    put_zeros(8);
    publish();
}

static void too_many_parts(void)
{
    greet();
    frame(KELP_SHM_PARTS_MAX + 1, 0, KELP_SHM_NO_SLOT, 0);
    publish();
}

static void too_much_copied(void)
{
    greet();
    frame(1, KELP_SHM_COPIED_MAX + 1, KELP_SHM_NO_SLOT, 0);
    publish();
}

static void no_such_slot(void)
{
    greet();
    frame(1, 0, KELP_SHM_SLOTS, 0);
    publish();
}

static void half_a_frame(void)
{
    greet();
    frame(2, 0, KELP_SHM_NO_SLOT, 0);
    part(0, 0, 0);
    publish();
}

static void offset_outside(void)
{
    greet();
    pass_area(3);
    frame(1, 0, 0, 1);
    part(3, 8193, 0);
    publish();
}

static void end_outside(void)
{
    greet();
    pass_area(3);
    frame(1, 0, 0, 1);
    part(3, 8192, 1);
    publish();
}

static void end_beyond_all(void)
{
    greet();
    pass_area(3);
    frame(1, 0, 0, 1);
    part(3, UINT64_MAX, 2);
    publish();
}

static void longer_than_all(void)
{
    greet();
    pass_area(3);
    frame(1, 0, 0, 1);
    part(3, 0, UINT64_MAX);
    publish();
}

static void sum_longer_than_all(void)
{
    greet();
    pass_area(3);
    frame(200, 0, 0, 1);
    for (unsigned i = 0; i < 200; i++) {
        part(3, 0, 8192);
    }
    publish();
}

static void unknown_area(void)
{
    greet();
    pass_area(3);
    frame(1, 0, 0, 1);
    part(4, 0, 1);
    publish();
}

static void shared_without_a_slot(void)
{
    greet();
    pass_area(3);
    frame(1, 0, KELP_SHM_NO_SLOT, 0);
    part(3, 0, 1);
    publish();
}

static void copied_at_an_offset(void)
{
    greet();
    frame(1, 8, KELP_SHM_NO_SLOT, 0);
    part(0, 1, 7);
    put_zeros(8);
    publish();
}

static void more_copied_than_came(void)
{
    greet();
    frame(2, 8, KELP_SHM_NO_SLOT, 0);
    part(0, 0, 5);
    part(0, 0, 5);
    put_zeros(8);
    publish();
}

static void bytes_of_no_part(void)
{
    greet();
    frame(1, 8, KELP_SHM_NO_SLOT, 0);
    part(0, 0, 5);
    put_zeros(8);
    publish();
}

static void not_zero(void)
{
    const struct kelp_shm_frame_part said = {0, 1, 0, 0};

    greet();
    frame(1, 0, KELP_SHM_NO_SLOT, 0);
    kelp_shm_puppet_put(&puppet, &said, sizeof(said));
    publish();
}

static void drop_of_nothing(void)
{
    greet();
    frame(0, 0, KELP_SHM_NO_SLOT, 9);
    publish();
}

static void used_after_the_drop(void)
{
    greet();
    pass_area(3);
    frame(1, 0, 0, 1);
    part(3, 0, 1);
    frame(0, 0, KELP_SHM_NO_SLOT, 3);
    frame(1, 0, 0, 2);
    part(3, 0, 1);
    publish();
}

static const struct {
    void (*say)(void);
    kelp_status status;
    const char *text;
} lies[] = {
    {hello_of_another_version, KELP_ERR_UNSUPPORTED,
     "the other process speaks version 2 of shared memory, this one 1"},
    {hello_without_memory, KELP_ERR_FORMAT, "a note of kind 1 came without a descriptor"},
    {hello_with_a_small_ring, KELP_ERR_FORMAT, "a ring of 8192 bytes came: it has 266240"},
    {hello_with_less_than_said, KELP_ERR_DENIED, "shared memory of 4096 bytes came as 266240"},
    {hello_unsealed, KELP_ERR_DENIED,
     "shared memory came without its seals: its owner could shorten it"},
    {hello_twice, KELP_ERR_FORMAT, "a second hello came through a socket"},
    {bell_before_hello, KELP_ERR_FORMAT, "a note of kind 3 came, unknown or before hello"},
    {unknown_note, KELP_ERR_FORMAT, "a note of kind 77 came, unknown or before hello"},
    {short_note, KELP_ERR_FORMAT, "a note of 4 bytes came, or with several descriptors: it has 16"},
    {long_note, KELP_ERR_FORMAT, "a note of 16 bytes came, or with several descriptors: it has 16"},
    {bell_with_a_descriptor, KELP_ERR_FORMAT, "a note of kind 3 came with a descriptor"},
    {two_descriptors, KELP_ERR_FORMAT,
     "a note of 16 bytes came, or with several descriptors: it has 16"},
    {area_without_memory, KELP_ERR_FORMAT, "a note of kind 2 came without a descriptor"},
    {area_of_no_bytes, KELP_ERR_LIMIT, "shared memory of 0 bytes came: it has 1 to 68719476736"},
    {area_of_too_many_bytes, KELP_ERR_LIMIT,
     "shared memory of 18446744073709551615 bytes came: it has 1 to 68719476736"},
    {area_with_holes, KELP_ERR_DENIED, "shared memory came with pages left out"},
    {area_twice, KELP_ERR_FORMAT, "shared area 3 came twice, or is one too many"},
    {area_zero, KELP_ERR_FORMAT, "shared area 0 came twice, or is one too many"},
    {jump_ahead, KELP_ERR_CORRUPT,
     "the other process says that it wrote 262145 bytes into a ring of 262144 from which 0 were "
     "taken"},
    {jump_back, KELP_ERR_CORRUPT,
     "the other process says that it wrote 8 bytes into a ring of 262144 from which 40 were taken"},
    {less_than_a_frame, KELP_ERR_FORMAT, "a message of which 8 bytes came"},
    {too_many_parts, KELP_ERR_FORMAT, "a message of 1025 parts, 0 bytes, in slot 4294967295"},
    {too_much_copied, KELP_ERR_FORMAT, "a message of 1 parts, 65537 bytes, in slot 4294967295"},
    {no_such_slot, KELP_ERR_FORMAT, "a message of 1 parts, 0 bytes, in slot 256"},
    {half_a_frame, KELP_ERR_FORMAT, "a message of 64 bytes, of which 40 came"},
    {offset_outside, KELP_ERR_FORMAT, "a part of 0 bytes at 8193 of a shared area of 8192"},
    {end_outside, KELP_ERR_FORMAT, "a part of 1 bytes at 8192 of a shared area of 8192"},
    {end_beyond_all, KELP_ERR_FORMAT,
     "a part of 2 bytes at 18446744073709551615 of a shared area of 8192"},
    {longer_than_all, KELP_ERR_LIMIT, "a message of more than 1048576 bytes"},
    {sum_longer_than_all, KELP_ERR_LIMIT, "a message of more than 1048576 bytes"},
    {unknown_area, KELP_ERR_FORMAT,
     "a message lies in shared area 4, which did not come: no note has come"},
    {shared_without_a_slot, KELP_ERR_FORMAT, "a shared part of a message without a slot"},
    {copied_at_an_offset, KELP_ERR_FORMAT, "a part of 7 bytes at 1 of 8 copied ones"},
    {more_copied_than_came, KELP_ERR_FORMAT, "a part of 5 bytes at 0 of 3 copied ones"},
    {bytes_of_no_part, KELP_ERR_FORMAT, "3 bytes of a message belong to no part"},
    {not_zero, KELP_ERR_FORMAT, "a part of 0 bytes is written in a way that is not known"},
    {drop_of_nothing, KELP_ERR_FORMAT, "shared area 9 was dropped, but never came"},
    {used_after_the_drop, KELP_ERR_FORMAT,
     "a message lies in shared area 3, which did not come: no note has come"},
};

KELP_CASE("lies", .setup = hostile_setup, .teardown = hostile_teardown)

/* Each lie is one line, and leaves no descriptor behind. */
KELP_LOOP_TEST(each_lie, 0, KELP_ARRAY_COUNT(lies))
{
    struct kelp_error error;

    lies[_i].say();
    ck_assert_int_eq(hear(&error), lies[_i].status);
    ck_assert_str_eq(error.text, lies[_i].text);
}

/* A process that dies with notes that it has not read has sent what it has sent all the same. */
KELP_TEST(died_with_unread_notes)
{
    struct kelp_shm_message *message = NULL;
    struct kelp_error error;

    greet();
    ck_assert_int_eq(hear(&error), KELP_ERR_BUSY);
    pass_area(3);
    frame(1, 0, 0, 1);
    part(3, 0, 8192);
    publish();
    ck_assert_int_eq(close(puppet.socket), 0);
    puppet.socket = -1;
    ck_assert_int_eq(kelp_shm_channel_receive(puppet.channel, &message, &error), KELP_OK);
    kelp_shm_message_release(message);
    ck_assert_int_eq(hear(&error), KELP_ERR_CLOSED);
}

/* Who says that it took more than was sent gets nothing more. */
KELP_TEST(took_too_much)
{
    struct kelp_error error;
    const struct kelp_shm_part one = {.bytes = "x", .length = 1};

    greet();
    ck_assert_int_eq(hear(&error), KELP_ERR_BUSY);
    atomic_store(&puppet.page->taken, 1);
    ck_assert_int_eq(kelp_shm_channel_send(puppet.channel, &one, 1, NULL, NULL, &error),
                     KELP_ERR_CORRUPT);
}

/* Releases of what was never lent are nothing. */
KELP_TEST(released_too_much)
{
    struct kelp_error error;
    const struct kelp_shm_part one = {.bytes = "x", .length = 1};

    greet();
    ck_assert_int_eq(hear(&error), KELP_ERR_BUSY);
    for (unsigned i = 0; i < KELP_SHM_SLOTS; i++) {
        atomic_store(&puppet.page->released[i], i * 7);
    }
    kelp_shm_channel_collect(puppet.channel);
    ck_assert_int_eq(kelp_shm_channel_send(puppet.channel, &one, 1, NULL, NULL, NULL), KELP_OK);
    ck_assert_uint_eq(kelp_shm_channel_lent(puppet.channel), 0);
}

/* Who claims to sleep, again and again, and reads no note, does not stop a sender. */
KELP_TEST(sleeps_for_ever)
{
    struct kelp_error error;
    const struct kelp_shm_part one = {.bytes = "x", .length = 1};

    greet();
    ck_assert_int_eq(hear(&error), KELP_ERR_BUSY);
    for (uint32_t i = 0; i < 2000; i++) {
        atomic_store(&puppet.page->naps, 2 * i + 1);
        ck_assert_int_eq(kelp_shm_channel_send(puppet.channel, &one, 1, NULL, NULL, NULL), KELP_OK);
    }
}
