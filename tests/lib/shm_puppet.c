#include "tests/lib/shm_puppet.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/shm/shm_socket.h"

void kelp_shm_pair_of_sockets(int ret_sockets[2])
{
    ck_assert_int_eq(
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ret_sockets), 0);
}

bool kelp_shm_pair_wait(struct kelp_shm_channel *channel, int timeout_ms)
{
    struct pollfd socket = {.fd = kelp_shm_channel_socket(channel), .events = POLLIN};

    if (!kelp_shm_channel_rest(channel)) {
        return true;
    }
    const int count = poll(&socket, 1, timeout_ms);
    kelp_shm_channel_wake(channel);
    return count != 0; /* a signal: wait again */
}

void kelp_shm_puppet_open(struct kelp_shm_puppet *puppet)
{
    int sockets[2];

    *puppet = (struct kelp_shm_puppet){.socket = -1};
    kelp_shm_pair_of_sockets(sockets);
    puppet->socket = sockets[1];
    ck_assert_int_eq(
        kelp_shm_channel_open(sockets[0], KELP_SHM_PUPPET_MESSAGE_MAX, &puppet->channel, NULL),
        KELP_OK);
    ck_assert_int_eq(kelp_shm_area_create(KELP_SHM_PAGE_BYTES, &puppet->own, NULL), KELP_OK);
    puppet->page = kelp_shm_area_bytes(puppet->own);
}

void kelp_shm_puppet_close(struct kelp_shm_puppet *puppet)
{
    kelp_shm_channel_close(puppet->channel);
    kelp_shm_area_unref(puppet->own);
    if (puppet->socket >= 0) {
        (void)close(puppet->socket);
    }
}

void kelp_shm_puppet_note(struct kelp_shm_puppet *puppet, uint32_t kind, uint32_t value,
                          uint64_t length, int fd)
{
    const struct kelp_shm_note note = {.kind = kind, .value = value, .length = length};

    ck_assert_int_eq(kelp_shm_note_send(puppet->socket, &note, fd), KELP_OK);
}

void kelp_shm_puppet_greet(struct kelp_shm_puppet *puppet)
{
    kelp_shm_puppet_note(puppet, KELP_SHM_NOTE_HELLO, KELP_SHM_VERSION, KELP_SHM_PAGE_BYTES,
                         kelp__shm_area_fd(puppet->own));
}

void kelp_shm_puppet_put(struct kelp_shm_puppet *puppet, const void *bytes, size_t length)
{
    uint8_t *ring = (uint8_t *)puppet->page + KELP_SHM_RING_AT;

    for (size_t i = 0; i < length; i++) {
        ring[puppet->at++ % KELP_SHM_RING_BYTES] = ((const uint8_t *)bytes)[i];
    }
}

void kelp_shm_puppet_publish(struct kelp_shm_puppet *puppet)
{
    atomic_store(&puppet->page->sent, puppet->at);
}

int kelp_shm_memfd(size_t length, int seals, bool filled)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)length), 0);
    ck_assert(!filled || fallocate(fd, 0, 0, (off_t)length) == 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

unsigned kelp_shm_descriptor_count(void)
{
    DIR *folder = opendir("/proc/self/fd");
    unsigned count = 0;

    ck_assert_ptr_nonnull(folder);
    while (readdir(folder)) {
        count++;
    }
    (void)closedir(folder);
    return count;
}
