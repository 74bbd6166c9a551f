/* A channel whose other side lies, in notes, frames and numbers: each lie is one line, and does no
 * harm. */
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/shm/shm_socket.h"
#include "tests/lib/shm_puppet.h"
#include "tests/lib/suite.h"

static unsigned descriptors;
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
